"""Seal rows into a sketch layer. Rows arrive in parts, so only keys are in memory at once.

While a layer is built, a fact takes 2 or 4 bytes (its symbol) in what the seal sets aside (`rows.spill`),
besides its bits in the structures.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers.budget import Cut, FeatureBudget
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.layers.plan import Assignment, LayerPlan, fit_to_memory
from feast_sketch_store.layers.presence import ListedRows, Presence, ShapedRows, StaticRows
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedRows, RowKeys
from feast_sketch_store.rows.spill import Spill
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.base import RowsToSeal, Shortfall, Structure
from feast_sketch_store.structures.bloom import BloomTable
from feast_sketch_store.structures.costs import index_bytes
from feast_sketch_store.structures.scalars import StaticScalars
from feast_sketch_store.succinct import FingerprintIndex, new_salt
from feast_sketch_store.succinct.fingerprints import expected_twins

__all__ = ["Cut", "FeatureBudget", "SketchLayerBuilder"]

MAX_ROWS = (1 << 31) - 1  # of one layer: places of rows are int32
_INDEX_MARGIN_BYTES = 64
_TWINS_DEVIATIONS = 6  # standard deviations above the expected number of entities with equal fingerprints
_MAX_TRIES = 12  # to build structures that meet their targets; after that, sets and columns are used


class SketchLayerBuilder:
    """Collects rows and builds one layer of them. Reads and writes no files but a temporary one, so it may
    run in any thread, process or task.

    Parameters
    ----------
    keys : of all rows, one per entity, ordered by entity hash.
    codecs : of the features.
    batches : int[n], the place of each row among the keys, and n rows with all features, whose keys are
        ignored.

    Raises SketchStoreError: there are more than `MAX_ROWS` rows.
    """

    def __init__(
        self,
        keys: RowKeys,
        codecs: Sequence[FeatureCodec],
        batches: Iterable[tuple[NDArray[np.integer], EncodedRows]],
    ):
        if len(keys) > MAX_ROWS:
            raise SketchStoreError(
                f"{len(keys)} entities have rows, and a seal takes at most {MAX_ROWS}; divide the feature "
                "view into shards"
            )
        self._keys = keys
        spill = Spill()
        self._features = {codec.feature: CollectedFeature(codec, len(keys), spill) for codec in codecs}
        for places, rows in batches:
            for name, feature in self._features.items():
                feature.add(places.astype(np.int32), rows.features[name])

    def build(self, budget: FeatureBudget, joint: SharedVocabularies | None = None) -> SketchLayer:
        """The layer of all rows, sized for ``budget``. Call it once: it uses the rows up.

        A structure that misses its target is replaced by a larger one, or by sets and columns. By default a
        layer makes its own bins, and numbers its own values, the most popular one first. What is ``joint``
        with other layers has these of some features: all values of the rows, or those that a cut leaves.

        Raises
        ------
        SettingsError : a feature does not fit into its memory.
        ValueError : a row has a value outside of the given vocabulary.
        """
        pa.default_memory_pool().release_unused()  # free what reading used, before tables are allocated
        keys, features, joint = self._keys, self._features, joint or SharedVocabularies()
        self._finish(budget, joint)
        budget, too_large = self._within_limits(budget)
        plan = LayerPlan(keys, features, self._within_memory(budget, joint.vocabularies))
        presence, structures, assignment = self._presence_and_structures(plan)
        failed = {name: offer.failed for name, offer in assignment.offers.items() if offer.failed}
        return SketchLayer(
            presence,
            structures,
            len(keys),
            int(keys.event_timestamps.max(initial=NO_TIMESTAMP)),
            {name: f.rounding for name, f in features.items() if f.rounding is not None},
            {name: f.num_cut for name, f in features.items() if f.is_cut},
            failed_over={**too_large, **failed},
        )

    def _finish(self, budget: FeatureBudget, joint: SharedVocabularies) -> None:
        for name, feature in self._features.items():
            feature.finish(budget.cuts.get(name), joint.vocabularies.get(name), joint.bins.get(name))

    def _within_limits(self, budget: FeatureBudget) -> tuple[FeatureBudget, dict[str, str]]:
        """The budget without limits. Features beyond theirs are kept in sets and columns; of those for which
        a filter was named, the reasons by name.
        """
        sizes = {name: len(self._features[name].vocabulary) for name in budget.max_vocabulary}
        beyond = {name: size for name, size in sizes.items() if budget.is_beyond(name, size)}
        reasons = {name: budget.reason_against_filter(name, size) for name, size in beyond.items()}
        exact = budget.without_filters(self._features[name].codec for name in beyond)
        return exact, {name: reason for name, reason in reasons.items() if reason}

    def values_within_memory(self, budget: FeatureBudget, joint: SharedVocabularies) -> dict[str, int]:
        """For each feature with a memory budget, how many of its most popular values fit into it.

        Call it in place of `build`. Raises SettingsError: not even one value fits.
        """
        self._finish(budget, joint)
        self._within_memory(budget, ())
        return {name: len(self._features[name].vocabulary) for name in budget.with_memory}

    def _within_memory(self, budget: FeatureBudget, given: Collection[str]) -> FeatureBudget:
        """The budget without vocabularies and indexes; cuts features that exceed their memory, except those
        whose values are given.
        """
        if not len(self._keys):  # the share of a shard without rows is no memory at all
            return budget
        targets = dict(budget.targets)
        is_listed = any(feature.codec.is_exact for feature in self._features.values())
        list_bytes = 0.0 if is_listed else index_bytes(len(self._keys), budget.presence_error_rate)
        if list_bytes:  # more rows than expected may share fingerprints, by chance
            twins = expected_twins(len(self._keys), budget.presence_error_rate)
            list_bytes += _INDEX_MARGIN_BYTES + 8 * _TWINS_DEVIATIONS * math.sqrt(2 * twins)
        for name, goal in budget.with_memory.items():
            feature, may_cut = self._features[name], name not in given
            targets[name] = fit_to_memory(feature, goal, list_bytes, budget.share, may_cut=may_cut)
        return replace(budget, targets=targets)

    def _presence_and_structures(self, plan: LayerPlan) -> tuple[Presence, list[Structure], Assignment]:
        """The first structures that meet their targets, and the presence that goes with them."""
        hashes, order, salt, growth = self._keys.entity_hashes, None, None, 1.0
        assignment = plan.choose_offers(growth)
        for tried in range(1, _MAX_TRIES + 2):
            if assignment.is_listed:
                order = order or _Order.find(self._keys)
                rows = RowsToSeal(hashes, order.salt, order.rows, growth=growth)
            else:
                salt = salt or new_salt()
                rows = RowsToSeal(hashes, salt, None, plan.row_symbols, growth)
            structures = self._structures(assignment, rows)
            if not isinstance(structures, Shortfall):
                break
            growth, may_grow = structures.growth, tried < _MAX_TRIES and structures.growth < math.inf
            assignment = (
                plan.choose_offers(growth) if may_grow else plan.exactly(assignment, structures.reason)
            )
        assert not isinstance(structures, Shortfall), "sets and columns keep what they are given"
        if assignment.is_listed and order is not None:
            return _list_rows(plan, order, structures), structures, assignment
        if assignment.holder == StaticScalars.kind:
            static = StaticRows(StaticScalars.among(structures), plan.shapes, plan.bounds)
            return static, structures, assignment
        return ShapedRows(BloomTable.among(structures), plan.shapes, plan.bounds), structures, assignment

    def _structures(self, assignment: Assignment, rows: RowsToSeal) -> list[Structure] | Shortfall:
        """One structure of each kind in use; or the shortfall of the first that misses its target."""
        structures = []
        for kind in registry.kinds():
            features = [
                (self._features[n], o.plan) for n, o in assignment.offers.items() if o.kind == kind.kind
            ]
            if features or (kind.kind == assignment.holder and rows.symbols):
                built = kind.build(features, rows)
                if isinstance(built, Shortfall):
                    return built
                structures.append(built)
        return structures


@dataclass(frozen=True)
class _Order:
    """The order of listed rows, under a salt that gives each entity a hash of its own.

    ``hashes`` are uint64[n], ascending and distinct; ``rows`` is int64[n], the row that each belongs to.
    """

    salt: tuple[int, int]
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int64]

    @classmethod
    def find(cls, keys: RowKeys) -> "_Order":
        """Try salts until the hashes are distinct. Nearly every salt works."""
        while True:
            salt = new_salt()
            hashes = row_hashes(keys.entity_hashes, salt)
            rows = np.argsort(hashes)
            hashes = hashes[rows]
            if (hashes[1:] != hashes[:-1]).all():
                return cls(salt, hashes, rows)


def _list_rows(plan: LayerPlan, order: _Order, structures: Sequence[Structure]) -> ListedRows:
    """List all rows, with the states that structures do not store."""
    # Timestamps beside an exact feature are exact, too.
    bounds = plan.bounds[:0] if plan.has_exact else plan.bounds
    index = FingerprintIndex.build(order.hashes, plan.budget.presence_error_rate)
    if plan.has_exact:
        timestamps = plan.keys.event_timestamps[order.rows]
    else:
        timestamps = plan.bounds[plan.buckets[order.rows], 0]
    stateless = [name for s in structures if not s.tells_states for name in s.features]
    return ListedRows.build(
        order.salt,
        index,
        timestamps,
        bounds,
        {name: plan.features[name].states[order.rows] for name in stateless},
    )
