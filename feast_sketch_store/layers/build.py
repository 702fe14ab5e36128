"""Building a sketch layer: rows are taken in parts, so that only ids and keys are in memory together.

While a layer is built a fact takes 2 or 4 bytes (its symbol) beside its bits in the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.binning import fit
from feast_sketch_store.codecs import CATEGORICAL, MISSING, VALUE, FeatureCodec
from feast_sketch_store.filters import ShiftingBloomFilter, ShiftingBloomFilterBuilder, new_salt
from feast_sketch_store.layers.columns import Column
from feast_sketch_store.layers.listed import ListedRows, fingerprints_of
from feast_sketch_store.layers.shapes import ShapedRows, Shapes, SymbolRange, words_for
from feast_sketch_store.layers.sketch import Rounding, SketchLayer
from feast_sketch_store.rows import NO_TIMESTAMP, EncodedFeature, EncodedRows, RowKeys, put_csr
from feast_sketch_store.sizing import FactClass, Geometry, expected_fill, size_for_rates
from feast_sketch_store.threads import NUM_THREADS
from feast_sketch_store.vocabulary import Vocabulary, VocabularyBuilder, narrow

MAX_SHAPES = 256
MAX_TIMESTAMP_BUCKETS = 16


@dataclass(frozen=True)
class FeatureBudget:
    """The errors that a layer is built for.

    Parameters
    ----------
    presence_error_rate : probability that an entity that was never written reads as a row.
    error_rates : per feature; for a membership feature the probability that a value which is absent
        reads as present, for a categorical one the probability that a read meets a second value.
    ttl_microseconds : how long rows live, if they expire; timestamps are then kept in steps of a
        fifteenth of it.
    """

    presence_error_rate: float
    error_rates: Mapping[str, float]
    ttl_microseconds: int | None = None


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
        for feature in features.values():
            feature.finish()
        presence: ShapedRows | ListedRows
        if any(feature.codec.is_exact for feature in features.values()):
            # Beside a list of rows a scalar takes log2(V) bits, in the filter log2(V / error rate) / ln 2.
            columns = {n: f for n, f in features.items() if f.codec.is_exact or not f.codec.is_collection}
            sketched = {name: feature for name, feature in features.items() if name not in columns}
            presence = _list_rows(keys, sketched, columns)
            bloom, ranges = _fill_table(keys, sketched, budget, [], [], presence.salt)
        else:
            sketched = features
            bounds, buckets = _bucket_timestamps(keys.event_timestamps, budget.ttl_microseconds)
            shapes, ids = _number_shapes({n: f.states for n, f in features.items()}, buckets)
            bloom, ranges = _fill_table(keys, sketched, budget, shapes, ids, new_salt())
            presence = ShapedRows(bloom, shapes, ranges[len(sketched) :], bounds)
        return SketchLayer(
            bloom,
            {name: feature.sealed_codec for name, feature in features.items()},
            {name: feature.vocabulary for name, feature in sketched.items()},
            dict(zip(sketched, ranges, strict=False)),
            presence,
            len(keys),
            int(keys.event_timestamps.max(initial=NO_TIMESTAMP)),
            {name: f.rounding for name, f in features.items() if f.rounding is not None},
        )


class _FeatureBuilder:
    """One feature of all rows, while they come in parts; from `finish` on, ready to be put into a layer."""

    def __init__(self, codec: FeatureCodec, num_rows: int):
        self.codec = codec
        self.states = np.full(num_rows, MISSING, np.uint8)
        self.num_facts = 0
        self.vocabulary = Vocabulary(pa.array([], codec.storage_type))
        self.rounding: Rounding | None = None
        self._rows: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []  # places and lengths of each part
        self._symbols: list[NDArray[np.integer]] = []
        self._vocabulary_builder = VocabularyBuilder(codec.storage_type)
        self._final_ids: NDArray[np.integer] | None = None  # of the symbols; None if they are final

    def add(self, places: NDArray[np.int32], feature: EncodedFeature) -> None:
        """Take up the feature of some rows."""
        self.states[places] = feature.states
        self.num_facts += len(feature.symbols)
        self._rows.append((places, np.diff(feature.indptr).astype(np.int32)))
        self._vocabulary_builder.add(feature.vocabulary, feature.symbols)

    def finish(self) -> None:
        """Number the values of all parts alike."""
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
            self._final_ids = narrow(popularity, len(vocabulary))

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
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        indptr = np.zeros(len(order) + 1, np.int64)
        for places, lengths in self._rows:
            indptr[ranks[places] + 1] = lengths
        np.cumsum(indptr, out=indptr)
        symbols = np.zeros(self.num_facts, np.int32)
        for places, starts, part in self.rows():
            # Facts of a row stand one behind the other in the part, and so they shall in the column.
            put_csr(indptr, symbols, ranks[places], starts, part)
        return Column.build(self.sealed_codec, self.states[order], indptr, self.vocabulary, symbols)


def build_layer(rows: EncodedRows, budget: FeatureBudget) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``."""
    builder = SketchLayerBuilder(rows.keys, [feature.codec for feature in rows.features.values()])
    builder.add(np.arange(len(rows)), rows)
    return builder.build(budget)


def _list_rows(
    keys: RowKeys, sketched: Mapping[str, _FeatureBuilder], columns: Mapping[str, _FeatureBuilder]
) -> ListedRows:
    """List all rows under a salt that gives each entity a fingerprint of its own."""
    salt = new_salt()
    while len(np.unique(fingerprints := fingerprints_of(keys.entity_hashes, salt))) < len(keys):
        salt = new_salt()
    order = np.argsort(fingerprints)
    return ListedRows.build(
        salt,
        fingerprints[order],
        keys.event_timestamps[order],
        {name: feature.states[order] for name, feature in sketched.items()},
        {name: feature.to_column(order) for name, feature in columns.items()},
    )


def _fill_table(
    keys: RowKeys,
    features: Mapping[str, _FeatureBuilder],
    budget: FeatureBudget,
    shapes: Sequence[Shapes],
    shape_ids: Sequence[NDArray[np.int64]],
    salt: tuple[int, int],
) -> tuple[ShiftingBloomFilter, list[SymbolRange]]:
    """Fold features and shapes into a table: the filter, and their ranges of symbols in the order given."""
    classes = [FactClass(f.num_facts, _symbol_rate(f, budget.error_rates[n])) for n, f in features.items()]
    classes += [FactClass(len(keys), budget.presence_error_rate / max(1, len(s))) for s in shapes]
    sizes = [len(f.vocabulary) for f in features.values()] + [len(s) for s in shapes]
    geometry = size_for_rates(classes) if classes else Geometry(1, (), 0.5)

    # Fewest hashes first, shapes last: a window that only symbols with many hashes need can
    # then leave out a prefix.
    hashes = geometry.num_hashes
    order = sorted(range(len(features)), key=lambda c: hashes[c])
    order += range(len(features), len(classes))
    ends = np.cumsum([0] + [words_for(sizes[c]) for c in order]).tolist()
    first_words = dict(zip(order, ends, strict=False))
    builder = ShiftingBloomFilterBuilder(geometry.num_bits, max(1, ends[-1]), salt, NUM_THREADS)
    for c, feature in enumerate(features.values()):
        for places, indptr, symbols in feature.rows():
            builder.add_rows(keys.entity_hashes, places, indptr, symbols, hashes[c], first_words[c] * 64)
    entities, one_each = np.arange(len(keys), dtype=np.int32), np.arange(len(keys) + 1)
    for c, ids in enumerate(shape_ids, start=len(features)):
        shape_symbols = ids.astype(np.int32)
        builder.add_rows(
            keys.entity_hashes, entities, one_each, shape_symbols, hashes[c], first_words[c] * 64
        )
    bloom = builder.build()

    fill = expected_fill(classes, hashes, bloom.num_bits) if classes else 0.0
    ranges = [
        SymbolRange(first_words[c], sizes[c], classes[c].num_items, hashes[c], fill ** hashes[c])
        for c in range(len(classes))
    ]
    return bloom, ranges


def _symbol_rate(feature: _FeatureBuilder, error_rate: float) -> float:
    """The rate of one symbol: a categorical read errs if any of the other values is a false positive."""
    return error_rate if feature.codec.is_collection else error_rate / max(1, len(feature.vocabulary) - 1)


def _bucket_timestamps(
    timestamps: NDArray[np.int64], ttl_microseconds: int | None
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Split rows into at most ``MAX_TIMESTAMP_BUCKETS`` buckets.

    Up to that many different timestamps are kept exactly. More of them share buckets: of equal time, so
    that rows expire in steps of a fifteenth of their time to live, or else equally full.

    Returns
    -------
    The oldest and newest timestamp of each bucket, ascending: int64[b, 2], and the bucket of each row:
    uint8[n].
    """
    ordered = np.sort(timestamps)
    edges = ordered[np.flatnonzero(np.diff(ordered, prepend=NO_TIMESTAMP))]
    if len(edges) > MAX_TIMESTAMP_BUCKETS:
        steps = np.arange(MAX_TIMESTAMP_BUCKETS)
        if ttl_microseconds:
            width = -(-ttl_microseconds // (MAX_TIMESTAMP_BUCKETS - 1))
            edges = edges[-1] - width * steps[::-1]
        else:
            edges = ordered[steps * len(timestamps) // MAX_TIMESTAMP_BUCKETS]
    places = np.searchsorted(edges, timestamps, side="right").clip(1) - 1
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
