"""The size of a whole view, from seals of a sample of its rows.

A sample shows fewer values than the view has, so its codes are too short, and its vocabulary too small. How
much is missing shows in the growth from seals of half the sample to a seal of the whole: bytes per entity
grow by some amount with each doubling of the rows, and that amount shrinks as values become known. So the
truth lies between no further growth, and as much growth with each doubling that the view is larger.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import spread_of_total

_SEED = 7
_FEWEST = 8  # rows, from which growth can be seen

Row = TypeVar("Row")


@dataclass(frozen=True)
class Sealed:
    """Bytes of a snapshot: of its rows, of its vocabularies, and those that every snapshot has."""

    of_rows: float
    of_values: float
    fixed: float


def bytes_per_entity(
    rows: Sequence[Row],
    num_entities: float,
    known_values: Estimate,
    seal: Callable[[Sequence[Row]], Sealed],
    size_of: Callable[[Row], float],
) -> Estimate:
    """The bytes of a snapshot of all rows, for each entity.

    Parameters
    ----------
    rows : the sample, in any order.
    num_entities : of the whole view.
    known_values : the number of values of the whole view, for each one of the sample.
    seal : seals some of the rows.
    size_of : a number to which the bytes of a row are about proportional.
    """
    whole, number = seal(rows), len(rows)
    each = whole.of_rows / number
    if num_entities <= number:
        return Estimate.exactly((whole.of_rows + whole.of_values + whole.fixed) / number)
    growth_of_rows, growth_of_values = 0.0, 1.0
    if number >= _FEWEST:
        order = np.random.default_rng(_SEED).permutation(number)
        halves = [seal([rows[place] for place in half]) for half in np.array_split(order, 2)]
        growth_of_rows = max(0.0, each - sum(half.of_rows for half in halves) / number)
        of_half = sum(half.of_values for half in halves) / 2
        growth_of_values = max(1.0, whole.of_values / of_half) if of_half else 1.0
    doublings = math.log2(num_entities / number)
    sizes = np.array([size_of(row) for row in rows], np.float64)
    spread = spread_of_total(sizes, num_entities) / num_entities / max(1.0, float(sizes.mean()))
    values_low = whole.of_values * known_values.low
    values_high = max(whole.of_values * known_values.high, whole.of_values * growth_of_values**doublings)
    low = each * (1 - spread) + (values_low + whole.fixed) / num_entities
    high = (each + growth_of_rows * doublings) * (1 + spread) + (values_high + whole.fixed) / num_entities
    # Growth shrinks: about half of what would be without that.
    values = (whole.of_values * known_values.value + values_high) / 2
    likely = each + growth_of_rows * doublings / 2 + (values + whole.fixed) / num_entities
    return Estimate(min(max(likely, low), high), low, high)
