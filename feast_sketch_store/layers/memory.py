"""Memory budgets: which structure a membership feature with a limit in bytes gets.

The limit covers the whole feature: its vocabulary, its part of a table or its sets, and the list of rows that
sets need. As in a plan, least noise comes first, then most facts: sets of all values if they fit, else sets
of the most popular values. A filter is used only if you name it, and only if it shows at most half of the
absent values.
"""

import math
from dataclasses import replace

import numpy as np

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.bloom import BloomTable
from feast_sketch_store.structures.costs import Popularity, noisiest_offer, sets_bytes
from feast_sketch_store.structures.feature_rows import first_rows
from feast_sketch_store.structures.goals import AUTO, Goal
from feast_sketch_store.structures.set_columns import SETS, SetColumns

_TRIAL_FACTS = 1 << 20
_TRIAL_ROWS = 1 << 12
_TRIAL_ERROR = 0.01  # about, relative, of sizes that are estimated from coding some of the rows


def fit_to_memory(feature: CollectedFeature, goal: Goal, list_bytes: float, *, may_cut: bool = True) -> Goal:
    """Cut a feature to its memory, and return the goal for the choice of structures.

    Parameters
    ----------
    feature : collected and numbered; values may be cut.
    goal : the bytes of the whole feature.
    list_bytes : of the list of rows that sets need; 0 if the layer has one anyway.
    may_cut : whether values may be cut. Not if their ids are given, because other layers share them.

    Returns
    -------
    The goal for the sets or the table alone.

    Raises
    ------
    SettingsError : the feature does not fit; the message names the least number of bytes.
    """
    if not len(feature.vocabulary):
        return goal
    if goal.structure in (AUTO, SETS):
        return _in_sets(feature, goal, list_bytes, 1 if may_cut else len(feature.vocabulary))
    if registry.wanted(goal) is not BloomTable:
        return goal  # filters by cluster make their own offer
    return _in_filter(feature, goal)


def num_trial_rows(num_rows: int, num_facts: int) -> int:
    """How many rows to code as sets on trial: about a million facts, and at least some thousand rows."""
    share = min(1.0, _TRIAL_FACTS / max(1, num_facts))
    return min(num_rows, max(_TRIAL_ROWS, int(num_rows * share)))


def _in_sets(feature: CollectedFeature, goal: Goal, list_bytes: float, fewest: int) -> Goal:
    """Keep as many values as fit into the memory, at least ``fewest``."""
    num_rows = len(feature.states)
    num_coded = num_trial_rows(num_rows, feature.num_facts)
    members = first_rows(feature, num_coded)
    ids = np.arange(len(feature.vocabulary), dtype=np.int32)
    error = 0.0 if num_coded == num_rows else _TRIAL_ERROR

    def size_bytes(number: int) -> float:
        """Bytes of the feature with its ``number`` most popular values."""
        counts, kept = feature.counts[:number], members.mapped(np.where(ids < number, ids, -1))
        coded = SetColumns.trial(counts, feature.states[:num_coded], kept).row_bits
        sets = sets_bytes([Popularity(counts, num_rows, coded=coded)]) * (1 + error)
        return sets + feature.vocabulary_bytes_of(number) + list_bytes

    if (least := size_bytes(fewest)) > goal.amount:
        what = "its most popular value alone" if fewest == 1 else "the given vocabulary"
        raise _too_little(feature, goal, least, f"for {what}")
    low, high = fewest, len(ids)
    if size_bytes(high) <= goal.amount:
        low = high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if size_bytes(middle) <= goal.amount else (low, middle)
    if low < len(ids):
        feature.keep_top(low)
    return replace(goal, structure=SETS) if goal.structure == AUTO else goal


def _in_filter(feature: CollectedFeature, goal: Goal) -> Goal:
    vocabulary_bytes = feature.vocabulary.packed_bytes
    least = vocabulary_bytes + noisiest_offer(goal, feature.popularity(0)).num_bytes
    if least > goal.amount:
        raise _too_little(
            feature,
            goal,
            least,
            f"as {goal.structure}. Without {goal.structure}, popular values are kept in sets",
        )
    return replace(goal, amount=goal.amount - vocabulary_bytes)


def _too_little(feature: CollectedFeature, goal: Goal, least: float, what: str) -> SettingsError:
    return SettingsError(
        f"feature {feature.codec.feature!r} cannot be kept for {goal.text}: with its "
        f"vocabulary and index it takes at least {math.ceil(least):,} bytes {what}"
    )
