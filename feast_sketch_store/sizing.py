"""From error rates to the geometry of one bit table, and from a bit budget back to error rates.

A table is shared by several *classes* of facts, each with its own target false-positive rate
(membership features, scalar features, presence). They share one table and so one fill ``rho``;
a class differs from another only in its number of hashes:

    rho                  = 1 - exp(-sum_c(num_items_c * num_hashes_c) / num_bits)
    false_positive_rate_c = rho ** num_hashes_c

The textbook choice ``rho = 1/2`` makes ``log2(1 / rate)`` hashes optimal, but that number is seldom
an integer. Moving ``rho`` a little, so that the heaviest class needs exactly an integer, costs
almost nothing, because the bits spent are flat around the optimum:

    rate 0.01, rho 0.500: 7 hashes, 10.10 bits/fact        rate 0.01, rho 0.518: 7 hashes, 9.59 bits/fact

Source: Broder & Mitzenmacher, "Network Applications of Bloom Filters: A Survey", section 2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_NUM_HASHES = 64

# The optimum lies near one half; only rates above one half, at a fraction of a bit per fact, need more.
_MIN_FILL, _MAX_FILL = 0.3, 0.999


@dataclass(frozen=True)
class FactClass:
    """Facts that share one target error.

    Parameters
    ----------
    num_items : number of facts that will be added, at least 0.
    false_positive_rate : wanted probability that an absent fact is "possibly present", in (0, 1).
    """

    num_items: int
    false_positive_rate: float

    def __post_init__(self) -> None:
        if self.num_items < 0:
            raise ValueError(f"num_items is {self.num_items}; it cannot be negative")
        if not 0.0 < self.false_positive_rate < 1.0:
            raise ValueError(
                f"false_positive_rate is {self.false_positive_rate}; it must lie between 0 and 1"
            )


@dataclass(frozen=True)
class Geometry:
    """The size of a table and, per class in the order given, its number of hashes.

    ``fill`` is the expected share of ones after all facts were added.
    """

    num_bits: int
    num_hashes: tuple[int, ...]
    fill: float

    @property
    def false_positive_rates(self) -> tuple[float, ...]:
        """Expected rate per class: ``fill ** num_hashes``."""
        return tuple(self.fill**k for k in self.num_hashes)


def ideal_bits(classes: Sequence[FactClass]) -> float:
    """Bits of a standard Bloom filter with fractional hashes: ``sum n * log2(1/rate) / ln 2``."""
    return sum(c.num_items * math.log2(1.0 / c.false_positive_rate) for c in classes) / math.log(2)


def size_for_rates(classes: Sequence[FactClass]) -> Geometry:
    """The smallest table that keeps every class at or below its rate.

    Raises
    ------
    ValueError : there is no class, or a rate asks for more than ``MAX_NUM_HASHES`` hashes.
    """
    if not classes:
        raise ValueError("sizing needs at least one class of facts")
    best: Geometry | None = None
    for fill in _candidate_fills(classes):
        hashes = tuple(_hashes_for(c.false_positive_rate, fill) for c in classes)
        if max(hashes) > MAX_NUM_HASHES:
            continue
        bits_set = sum(c.num_items * k for c, k in zip(classes, hashes, strict=True))
        num_bits = max(1, math.ceil(bits_set / -math.log1p(-fill)))
        if best is None or num_bits < best.num_bits:
            best = Geometry(num_bits, hashes, fill)
    if best is None:
        rate = min(c.false_positive_rate for c in classes)
        raise ValueError(f"false_positive_rate {rate} would take more than {MAX_NUM_HASHES} hashes")
    return best


def size_for_bits(classes: Sequence[FactClass], num_bits: int) -> Geometry:
    """The lowest rates that fit in ``num_bits``, all classes scaled by one common exponent.

    Class rates ``r`` become ``r ** t``: their ratios on a log scale, that is the share of the bits
    that each class gets per fact, stay as given.

    Raises
    ------
    ValueError : even rates near 1 do not fit.
    """
    low, high = 1e-3, 1e3  # the exponent t; bits grow with t
    best: Geometry | None = None
    for _ in range(60):
        middle = math.sqrt(low * high)
        geometry = _try_exponent(classes, middle)
        if geometry is not None and geometry.num_bits <= num_bits:
            best, low = geometry, middle
        else:
            high = middle
    if best is None:
        raise ValueError(f"{num_bits} bits are too few for {sum(c.num_items for c in classes)} facts")
    return Geometry(num_bits, best.num_hashes, expected_fill(classes, best.num_hashes, num_bits))


def expected_fill(classes: Sequence[FactClass], num_hashes: Sequence[int], num_bits: int) -> float:
    """Expected share of ones in a table of ``num_bits`` once all facts were added."""
    bits_set = sum(c.num_items * k for c, k in zip(classes, num_hashes, strict=True))
    return -math.expm1(-bits_set / num_bits)


def _try_exponent(classes: Sequence[FactClass], exponent: float) -> Geometry | None:
    rates = (c.false_positive_rate**exponent for c in classes)
    try:
        return size_for_rates([FactClass(c.num_items, rate) for c, rate in zip(classes, rates, strict=True)])
    except ValueError:  # a rate of 0.0 or 1.0 after rounding, or too many hashes
        return None


def _candidate_fills(classes: Sequence[FactClass]) -> list[float]:
    """Fills at which some class needs an integer number of hashes: the optimum is one of them."""
    fills = {c.false_positive_rate ** (1.0 / k) for c in classes for k in range(1, MAX_NUM_HASHES + 1)}
    return sorted(fill for fill in fills if _MIN_FILL <= fill <= _MAX_FILL) or [0.5]


def _hashes_for(rate: float, fill: float) -> int:
    # The tolerance keeps a fill that was made for exactly k hashes from asking for k + 1.
    return max(1, math.ceil(math.log(rate) / math.log(fill) - 1e-9))
