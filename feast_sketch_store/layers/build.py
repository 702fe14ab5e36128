"""Building a sketch layer: rows are taken in parts, so that only ids and keys are in memory together.

While a layer is built a fact takes 2 or 4 bytes (its symbol) beside its bits in the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers.listed import ListedRows
from feast_sketch_store.layers.shapes import ShapedRows, Shapes, SymbolRange, words_for
from feast_sketch_store.layers.sketch import Rounding, SketchLayer
from feast_sketch_store.rows.binning import fit
from feast_sketch_store.rows.codecs import CATEGORICAL, EMPTY, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows, RowKeys, put_csr
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder, narrow
from feast_sketch_store.structures.choice import ERROR_RATE, Popularity, Target, choose
from feast_sketch_store.structures.columns import Column
from feast_sketch_store.structures.set_columns import SetColumns, SetFeature
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    FactClass,
    Geometry,
    TieredFacts,
    expected_fill,
    size_for_rates,
)
from feast_sketch_store.succinct import (
    FingerprintIndex,
    ShiftingBloomFilter,
    ShiftingBloomFilterBuilder,
    new_salt,
)
from feast_sketch_store.succinct.fingerprints import width_for
from feast_sketch_store.threads import NUM_THREADS

MAX_SHAPES = 256
MAX_TIMESTAMP_BUCKETS = 16


@dataclass(frozen=True)
class Cut:
    """The values of a membership feature that are kept. The others cost nothing, and are never read.

    Parameters
    ----------
    top : so many of the most frequent ones.
    min_share : those that at least such a share of the rows has.
    values : these, of the storage type; in ascending order.
    """

    top: int | None = None
    min_share: float = 0.0
    values: pa.Array | None = None

    def kept(self, vocabulary: Vocabulary, counts: NDArray[np.int64], num_rows: int) -> NDArray[np.bool_]:
        """Which values of a vocabulary, of which so many rows have each: bool[V].

        Parameters
        ----------
        vocabulary, counts : from the most frequent value on.
        """
        is_kept = counts >= self.min_share * num_rows
        if self.top is not None:
            is_kept[self.top :] = False
        if self.values is not None:
            is_kept &= pc.is_in(vocabulary.values, self.values).to_numpy(zero_copy_only=False)
        return is_kept


@dataclass(frozen=True)
class FeatureBudget:
    """What a layer is built for.

    Parameters
    ----------
    presence_error_rate : probability that an entity that was never written reads as a row.
    targets : per feature; for a membership feature see `Target`, where a number is an error rate; for a
        categorical one the probability that a read meets a second value.
    ttl_microseconds : how long rows live, if they expire; timestamps are then kept in steps of a
        fifteenth of it.
    cuts : of membership features of which not all values are kept.
    """

    presence_error_rate: float
    targets: Mapping[str, Target | float]
    ttl_microseconds: int | None = None
    cuts: Mapping[str, Cut] = field(default_factory=dict)


class SketchLayerBuilder:
    """Collects rows and builds one layer.

    Parameters
    ----------
    keys : of all rows, one per entity, ordered by entity hash.
    codecs : of the features.
    """

    def __init__(self, keys: RowKeys, codecs: Sequence[FeatureCodec]):
        self._keys = keys
        self._features = {codec.feature: _FeatureBuilder(codec, len(keys)) for codec in codecs}

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
        """The layer of all rows, sized for ``budget``; to be called once, as the rows are used up."""
        keys, features = self._keys, self._features
        for name, feature in features.items():
            feature.finish(budget.cuts.get(name))
        has_exact = any(feature.codec.is_exact for feature in features.values())
        facts = _choose(features, budget, has_exact)
        presence: ShapedRows | ListedRows
        bounds, buckets = _bucket_timestamps(keys.event_timestamps, budget.ttl_microseconds)
        if has_exact or None in facts.values():
            # Beside a list of rows a scalar takes log2(V) bits, in the filter log2(V / error rate) / ln 2.
            columns = {n: f for n, f in features.items() if f.codec.is_exact or not f.codec.is_collection}
            sets = {n: f for n, f in features.items() if n not in columns and facts[n] is None}
            sketched = {n: f for n, f in features.items() if n not in columns and n not in sets}
            timestamps = keys.event_timestamps
            if has_exact:
                bounds = bounds[:0]
            else:
                timestamps = bounds[buckets, 0]
            presence = _list_rows(
                keys, timestamps, bounds, budget.presence_error_rate, sketched, columns, sets
            )
            bloom, ranges = _fill_table(keys, sketched, facts, [], [], presence.salt)
        else:
            sketched, sets = features, {}
            shapes, ids = _number_shapes({n: f.states for n, f in features.items()}, buckets)
            rate = budget.presence_error_rate
            shape_facts = [FactClass(len(keys), rate / max(1, len(s))) for s in shapes]
            bloom, ranges = _fill_table(
                keys, sketched, facts, list(zip(shapes, shape_facts, strict=True)), ids, new_salt()
            )
            presence = ShapedRows(bloom, shapes, ranges[len(sketched) :], bounds)
        return SketchLayer(
            bloom,
            {name: feature.sealed_codec for name, feature in features.items()},
            {name: feature.vocabulary for name, feature in (sketched | sets).items()},
            dict(zip(sketched, ranges, strict=False)),
            presence,
            len(keys),
            int(keys.event_timestamps.max(initial=NO_TIMESTAMP)),
            {name: f.rounding for name, f in features.items() if f.rounding is not None},
            {name: f.num_cut for name, f in features.items() if name in budget.cuts},
        )


class _FeatureBuilder:
    """One feature of all rows, while they come in parts; from `finish` on, ready to be put into a layer."""

    def __init__(self, codec: FeatureCodec, num_rows: int):
        self.codec = codec
        self.states = np.full(num_rows, MISSING, np.uint8)
        self.num_facts = 0
        self.num_cut = 0
        self.counts = np.zeros(0, np.int64)  # of the values of the vocabulary
        self.vocabulary = Vocabulary(pa.array([], codec.storage_type))
        self.rounding: Rounding | None = None
        self._rows: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []  # places and lengths of each part
        self._symbols: list[NDArray[np.integer]] = []
        self._vocabulary_builder = VocabularyBuilder(codec.storage_type)
        self._final_ids: NDArray[np.integer] | None = None  # of the symbols; None if they are final
        self._is_cut = False

    def add(self, places: NDArray[np.int32], feature: EncodedFeature) -> None:
        """Take up the feature of some rows."""
        self.states[places] = feature.states
        self.num_facts += len(feature.symbols)
        self._rows.append((places, np.diff(feature.indptr).astype(np.int32)))
        self._vocabulary_builder.add(feature.vocabulary, feature.symbols)

    def finish(self, cut: Cut | None = None) -> None:
        """Number the values of all parts alike, and leave out those that are cut."""
        vocabulary, counts, self._symbols = self._vocabulary_builder.finish()
        if self.codec.binning is not None:
            numbers = self.codec.to_numbers(vocabulary.values)
            bins = fit(self.codec.binning, numbers, counts)
            stored = self.codec.from_numbers(bins.representatives)
            bins = replace(bins, representatives=self.codec.to_numbers(stored))
            errors = bins.errors(numbers)
            mean_error = float(errors @ counts) / max(1, counts.sum())
            self.rounding = Rounding(bins, float(errors.max(initial=0.0)), mean_error)
            # Bins may share what stands for them.
            kept, kept_ids = Vocabulary.union([Vocabulary(stored)])
            ids = kept_ids[0][bins.find(numbers)]
            self.vocabulary, popularity = kept.reordered(np.bincount(ids, counts, len(kept)))
            self._final_ids = narrow(popularity[ids], len(kept))
        elif self.codec.is_exact:
            self.vocabulary = vocabulary
        else:
            self.vocabulary, popularity = vocabulary.reordered(counts)
            self.counts = -np.sort(-counts)
            self._final_ids = narrow(popularity, len(vocabulary))
            if cut is not None:
                self._cut(cut.kept(self.vocabulary, self.counts, len(self.states)))

    def _cut(self, is_kept: NDArray[np.bool_]) -> None:
        """Leave out values. A row of which nothing is left has an empty set."""
        self.vocabulary = Vocabulary(self.vocabulary.values.filter(pa.array(is_kept)))
        self.num_cut = int(self.counts[~is_kept].sum())
        self.num_facts -= self.num_cut
        self.counts = self.counts[is_kept]
        new_ids = np.cumsum(is_kept) - 1
        rows, symbols = [], []
        for places, indptr, old_ids in self.rows():
            left = np.concatenate(([0], np.cumsum(is_kept[old_ids])))[indptr]
            lengths = np.diff(left)
            self.states[places[(lengths == 0) & (self.states[places] == VALUE)]] = EMPTY
            rows.append((places, lengths.astype(np.int32)))
            symbols.append(narrow(new_ids[old_ids[is_kept[old_ids]]], len(self.vocabulary)))
        self._rows, self._symbols, self._final_ids = rows, symbols, None

    @property
    def sealed_codec(self) -> FeatureCodec:
        """How a layer keeps the feature: a bin is a category like any other."""
        return replace(self.codec, name=CATEGORICAL, binning=None) if self.codec.binning else self.codec

    def rows(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.integer]]]:
        """Per part the places of its rows, and their symbols as indptr and ids of a CSR matrix."""
        while self._rows:  # each part is let go when it has been used
            (places, lengths), symbols = self._rows.pop(), self._symbols.pop()
            indptr = np.zeros(len(places) + 1, np.int64)
            np.cumsum(lengths, out=indptr[1:])
            yield places, indptr, symbols if self._final_ids is None else self._final_ids[symbols]

    def to_column(self, order: NDArray[np.int64]) -> Column:
        """The feature of all rows, by row, in the order that is given: int64[num_rows]."""
        indptr, symbols = _in_order([self], order)
        return Column.build(self.sealed_codec, self.states[order], indptr, self.vocabulary, symbols)

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Per part the places of its rows, and how many values each has."""
        yield from self._rows


def _in_order(
    features: Sequence[_FeatureBuilder], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The symbols of F features of all rows, in the order that is given: int64[num_rows].

    Returns
    -------
    int64[num_rows * F + 1] and int32[nnz]: row ``r * F + f`` of this CSR matrix is feature ``f`` of row
    ``r``.
    """
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) * len(features)
    indptr = np.zeros(len(order) * len(features) + 1, np.int64)
    for number, feature in enumerate(features, start=1):
        for places, lengths in feature.lengths():
            indptr[ranks[places] + number] = lengths
    np.cumsum(indptr, out=indptr)
    symbols = np.zeros(indptr[-1], np.int32)
    for number, feature in enumerate(features):
        for places, starts, part in feature.rows():
            # Facts of a row stand one behind the other in the part, and so they shall here.
            put_csr(indptr, symbols, ranks[places] + number, starts, part)
    return indptr, symbols


def build_layer(rows: EncodedRows, budget: FeatureBudget) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``."""
    builder = SketchLayerBuilder(rows.keys, [feature.codec for feature in rows.features.values()])
    builder.add(np.arange(len(rows)), rows)
    return builder.build(budget)


def _choose(
    features: Mapping[str, _FeatureBuilder], budget: FeatureBudget, is_listed: bool
) -> dict[str, AnyFacts | None]:
    """What a filter is to hold of each feature; None for one that is to be in sets."""
    targets, popularity, facts = {}, {}, dict[str, AnyFacts | None]()
    for name, feature in features.items():
        if feature.codec.is_exact:
            continue  # a column, whatever it is wanted for
        target = budget.targets[name]
        if not feature.codec.is_collection:
            # A categorical read errs if any of the other values is a false positive.
            assert isinstance(target, float)
            facts[name] = FactClass(feature.num_facts, target / max(1, len(feature.vocabulary) - 1))
            continue
        targets[name] = target if isinstance(target, Target) else Target(ERROR_RATE, target)
        popularity[name] = Popularity(
            feature.counts, len(feature.states), int((feature.states != VALUE).sum())
        )
    return facts | choose(targets, popularity, budget.presence_error_rate, is_listed)


def _list_rows(
    keys: RowKeys,
    timestamps: NDArray[np.int64],
    bucket_bounds: NDArray[np.int64],
    presence_error_rate: float,
    sketched: Mapping[str, _FeatureBuilder],
    columns: Mapping[str, _FeatureBuilder],
    sets: Mapping[str, _FeatureBuilder],
) -> ListedRows:
    """List all rows under a salt that gives each entity a fingerprint of its own."""
    width = width_for(len(keys), presence_error_rate)
    while True:
        salt = new_salt()
        hashes = row_hashes(keys.entity_hashes, salt)
        order = np.argsort(hashes)
        hashes = hashes[order]
        shifted = hashes >> np.uint64(64 - width)
        if (shifted[1:] != shifted[:-1]).all():
            break
        width = min(63, width + 1)  # of many rows, some always collide at the width that would do
    set_columns = None
    if sets:
        features = list(sets.values())
        set_columns = SetColumns.build(
            [SetFeature(f.codec, f.vocabulary, f.num_facts) for f in features],
            [f.counts for f in features],
            [f.states[order] for f in features],
            *_in_order(features, order),
        )
    return ListedRows.build(
        salt,
        FingerprintIndex.build(hashes, width),
        timestamps[order],
        bucket_bounds,
        {name: feature.states[order] for name, feature in sketched.items()},
        {name: feature.to_column(order) for name, feature in columns.items()},
        set_columns,
    )


def _fill_table(
    keys: RowKeys,
    features: Mapping[str, _FeatureBuilder],
    facts: Mapping[str, AnyFacts | None],
    shapes: Sequence[tuple[Shapes, FactClass]],
    shape_ids: Sequence[NDArray[np.int64]],
    salt: tuple[int, int],
) -> tuple[ShiftingBloomFilter, list[SymbolRange]]:
    """Fold features and shapes into a table: the filter, and their ranges of symbols in the order given."""
    classes = [known for name in features if (known := facts[name]) is not None]
    classes += [known for _, known in shapes]
    sizes = [len(f.vocabulary) for f in features.values()] + [len(s) for s, _ in shapes]
    geometry = size_for_rates(classes) if classes else Geometry(1, (), 0.5)

    ends = np.cumsum([0, *map(words_for, sizes)]).tolist()
    builder = ShiftingBloomFilterBuilder(geometry.num_bits, max(1, ends[-1]), salt, NUM_THREADS)
    for c, feature in enumerate(features.values()):
        hashes = geometry.hashes[c]
        firsts = np.array(hashes) if isinstance(classes[c], TieredFacts) else None
        for places, indptr, symbols in feature.rows():
            builder.add_rows(keys.entity_hashes, places, indptr, symbols, len(hashes), ends[c] * 64, firsts)
    entities, one_each = np.arange(len(keys), dtype=np.int32), np.arange(len(keys) + 1)
    for c, ids in enumerate(shape_ids, start=len(features)):
        shape_symbols = ids.astype(np.int32)
        num_hashes = len(geometry.hashes[c])
        builder.add_rows(keys.entity_hashes, entities, one_each, shape_symbols, num_hashes, ends[c] * 64)
    bloom = builder.build()

    fill = expected_fill(classes, geometry.hashes, bloom.num_bits) if classes else 0.0
    ranges = [
        SymbolRange.build(ends[c], sizes[c], classes[c], geometry.hashes[c], fill)
        for c in range(len(classes))
    ]
    return bloom, ranges


def _bucket_timestamps(
    timestamps: NDArray[np.int64], ttl_microseconds: int | None
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Split rows into at most ``MAX_TIMESTAMP_BUCKETS`` buckets.

    Up to that many different timestamps are kept exactly. More of them share buckets: of equal time, so
    that rows expire in steps of a fifteenth of their time to live, or else equally full. What is older than
    the newest row by more than the time to live has a bucket of its own, so it shows with none that lives.

    Returns
    -------
    The oldest and newest timestamp of each bucket, ascending: int64[b, 2], and the bucket of each row:
    uint8[n].
    """
    ordered = np.sort(timestamps)
    edges = ordered[np.flatnonzero(np.diff(ordered, prepend=NO_TIMESTAMP))]
    if len(edges) > MAX_TIMESTAMP_BUCKETS:
        num_steps = MAX_TIMESTAMP_BUCKETS - 1
        if ttl_microseconds:
            width, newest = -(-ttl_microseconds // num_steps), int(edges[-1])
            edges = np.array([max(newest - width * n, NO_TIMESTAMP) for n in range(num_steps, 0, -1)])
        else:  # the first bucket has the rows before the first edge
            edges = ordered[np.arange(1, MAX_TIMESTAMP_BUCKETS) * len(timestamps) // MAX_TIMESTAMP_BUCKETS]
    places = np.searchsorted(edges, timestamps, side="right")
    used, buckets = np.unique(places, return_inverse=True)
    bounds = np.empty((len(used), 2), np.int64)
    bounds[:, 0], bounds[:, 1] = np.iinfo(np.int64).max, NO_TIMESTAMP
    np.minimum.at(bounds[:, 0], buckets, timestamps)
    np.maximum.at(bounds[:, 1], buckets, timestamps)
    return bounds, buckets.astype(np.uint8)


def _number_shapes(
    states_of: Mapping[str, NDArray[np.uint8]], buckets: NDArray[np.uint8]
) -> tuple[list[Shapes], list[NDArray[np.int64]]]:
    """The distinct shapes of the rows, in as few ranges as ``MAX_SHAPES`` allows.

    Returns
    -------
    The ranges, and per range the shape of each row: int64[n].
    """
    ranges: list[Shapes] = []
    ids_per_range: list[NDArray[np.int64]] = []
    names: list[str] = []
    ids = buckets.astype(np.int64)

    def close_range() -> None:
        _, first_rows, shape_ids = np.unique(ids, return_index=True, return_inverse=True)
        states = np.zeros((len(first_rows), len(names)), np.uint8)
        for column, name in enumerate(names):
            states[:, column] = states_of[name][first_rows]
        ranges.append(Shapes(tuple(names), states, buckets[first_rows]))
        ids_per_range.append(shape_ids)

    for name, feature_states in states_of.items():
        joint = ids * (VALUE + 1) + feature_states
        distinct, joint_ids = np.unique(joint, return_inverse=True)
        if len(distinct) > MAX_SHAPES:
            close_range()
            # Timestamps stand in the first range only.
            names, buckets = [], np.zeros_like(buckets)
            joint_ids = np.unique(feature_states, return_inverse=True)[1]
        names.append(name)
        ids = joint_ids
    close_range()
    return ranges, ids_per_range
