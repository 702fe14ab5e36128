"""Building a sketch layer: rows are taken in parts, so that only ids and keys are in memory together.

While a layer is built a fact takes 2 or 4 bytes (its symbol) beside its bits in the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers.budget import Cut, FeatureBudget
from feast_sketch_store.layers.collect import CollectedFeature, in_order
from feast_sketch_store.layers.listed import ListedRows
from feast_sketch_store.layers.plan import Kept, LayerPlan
from feast_sketch_store.layers.shapes import ShapedRows
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.layers.table import FilledTable, fill_table
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedRows, RowKeys
from feast_sketch_store.structures.set_columns import SetColumns, SetFeature
from feast_sketch_store.succinct import FingerprintIndex, new_salt
from feast_sketch_store.succinct.fingerprints import width_for

__all__ = ["Cut", "FeatureBudget", "SketchLayerBuilder", "build_layer"]

_MAX_TABLES = 12  # that are filled until one keeps every target
_MAX_GROWTH = 4.0  # of a table; what lacks more is not due to chance
_SMALL_TABLE = 1 << 16  # bits; of smaller ones chance may ask for any growth


class SketchLayerBuilder:
    """Collects rows and builds one layer.

    Parameters
    ----------
    keys : of all rows, one per entity, ordered by entity hash.
    codecs : of the features.
    """

    def __init__(self, keys: RowKeys, codecs: Sequence[FeatureCodec]):
        self._keys = keys
        self._features = {codec.feature: CollectedFeature(codec, len(keys)) for codec in codecs}
        self._failed_over: dict[str, str] = {}

    @property
    def failed_over(self) -> Mapping[str, str]:
        """Why features that are wanted in a filter are in sets or columns in the layer that was built."""
        return self._failed_over

    def add(self, places: NDArray[np.integer], rows: EncodedRows) -> None:
        """Take up some rows.

        Parameters
        ----------
        places : int[n], which of the keys the rows belong to.
        rows : n rows with all features; their own keys are not looked at.
        """
        for name, feature in self._features.items():
            feature.add(places.astype(np.int32), rows.features[name])

    def build(self, budget: FeatureBudget) -> SketchLayer:
        """The layer of all rows, sized for ``budget``; to be called once, as the rows are used up.

        A table that would show more than it may is not kept: a larger one takes its place, or else sets and
        columns do.

        Raises
        ------
        SettingsError : the memory that a feature may take is too little for its facts.
        """
        keys, features = self._keys, self._features
        for name, feature in features.items():
            feature.finish(budget.cuts.get(name))
        plan = LayerPlan(keys, features, budget)
        kept, table, order = self._fill(plan)
        # Beside a list of rows a scalar takes log2(V) bits, in the filter log2(V / error rate) / ln 2.
        sketched = {n: f for n, f in features.items() if n in kept.facts}
        sets = {n: f for n, f in features.items() if n in plan.targets and n not in sketched}
        for feature in sketched.values():
            feature.release()
        bloom = table.builder.build()
        presence: ShapedRows | ListedRows
        if order is None:
            presence = ShapedRows(bloom, plan.shapes, table.ranges[len(sketched) :], plan.bounds)
        else:
            columns = {n: f for n, f in features.items() if n not in sketched and n not in sets}
            presence = _list_rows(plan, order, sketched, columns, sets)
        return SketchLayer(
            bloom,
            {name: feature.sealed_codec for name, feature in features.items()},
            {name: feature.vocabulary for name, feature in (sketched | sets).items()},
            dict(zip(sketched, table.ranges, strict=False)),
            presence,
            len(keys),
            int(keys.event_timestamps.max(initial=NO_TIMESTAMP)),
            {name: f.rounding for name, f in features.items() if f.rounding is not None},
            {name: f.num_cut for name, f in features.items() if name in budget.cuts},
        )

    def _fill(self, plan: LayerPlan) -> "tuple[Kept, FilledTable, _Order | None]":
        """What is kept how, the first table that keeps every target, and the order of rows if listed."""
        order, salt, growth = None, None, 1.0
        for _ in range(_MAX_TABLES):
            kept = plan.choose(growth)
            if kept.is_listed:
                order = order or _Order.find(self._keys, plan.budget.presence_error_rate)
            else:
                salt = salt or new_salt()
            used = order.salt if kept.is_listed and order else salt
            assert used is not None
            table = fill_table(self._keys.entity_hashes, plan.table_parts(kept), used, growth)
            if table.keeps_targets:
                self._failed_over = {
                    name: f"no filter keeps a {target.measure} of {target.amount:g}"
                    for name, target in plan.targets.items()
                    if name not in kept.facts and plan.wanted_in_filter(name)
                }
                return kept, table, order if kept.is_listed else None
            growth, num_bits = table.growth, table.builder.num_bits
            reason = (
                f"a table of {table.builder.num_bits} bits would show {table.excess:.3g} times what it may"
            )
            del table  # before the next one takes memory
            if growth > _MAX_GROWTH and num_bits > _SMALL_TABLE:
                break
        self._failed_over = dict.fromkeys(kept.facts, reason)
        order = order or _Order.find(self._keys, plan.budget.presence_error_rate)
        return Kept({}, True), fill_table(self._keys.entity_hashes, [], order.salt, 1.0), order


@dataclass(frozen=True)
class _Order:
    """The order of listed rows, under a salt that gives each entity a fingerprint of its own.

    ``hashes`` are uint64[n], in ascending order, of which the upper ``width`` bits are distinct; ``rows`` is
    int64[n], the row that each belongs to.
    """

    salt: tuple[int, int]
    width: int
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int64]

    @classmethod
    def find(cls, keys: RowKeys, presence_error_rate: float) -> "_Order":
        """Try salts until one does."""
        width = width_for(len(keys), presence_error_rate)
        while True:
            salt = new_salt()
            hashes = row_hashes(keys.entity_hashes, salt)
            rows = np.argsort(hashes)
            hashes = hashes[rows]
            shifted = hashes >> np.uint64(64 - width)
            if (shifted[1:] != shifted[:-1]).all():
                return cls(salt, width, hashes, rows)
            width = min(63, width + 1)  # of many rows, some always collide at the width that would do


def build_layer(rows: EncodedRows, budget: FeatureBudget) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``."""
    builder = SketchLayerBuilder(rows.keys, [feature.codec for feature in rows.features.values()])
    builder.add(np.arange(len(rows)), rows)
    return builder.build(budget)


def _list_rows(
    plan: LayerPlan,
    order: _Order,
    sketched: Mapping[str, CollectedFeature],
    columns: Mapping[str, CollectedFeature],
    sets: Mapping[str, CollectedFeature],
) -> ListedRows:
    """List all rows with what is not in the filter."""
    # Beside an exact feature timestamps are exact, too.
    bounds = plan.bounds[:0] if plan.has_exact else plan.bounds
    timestamps = plan.keys.event_timestamps if plan.has_exact else plan.bounds[plan.buckets, 0]
    set_columns = None
    if sets:
        features = list(sets.values())
        set_columns = SetColumns.build(
            [SetFeature(f.codec, f.vocabulary, f.num_facts) for f in features],
            [f.counts for f in features],
            [f.states[order.rows] for f in features],
            *in_order(features, order.rows),
        )
    return ListedRows.build(
        order.salt,
        FingerprintIndex.build(order.hashes, order.width),
        timestamps[order.rows],
        bounds,
        {name: feature.states[order.rows] for name, feature in sketched.items()},
        {name: feature.to_column(order.rows) for name, feature in columns.items()},
        set_columns,
    )
