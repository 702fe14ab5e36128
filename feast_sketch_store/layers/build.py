"""Building a sketch layer: rows are taken in parts, so that only ids and keys are in memory together.

While a layer is built a fact takes 4 bytes (its symbol) and, at the end, a byte per bit of the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.codecs import MISSING, VALUE, FeatureCodec
from feast_sketch_store.filters import ShiftingBloomFilterBuilder, new_salt
from feast_sketch_store.layers.sketch import Shapes, SketchLayer, SymbolRange, words_for
from feast_sketch_store.rows import NO_TIMESTAMP, EncodedFeature, EncodedRows, RowKeys
from feast_sketch_store.sizing import FactClass, expected_fill, size_for_rates
from feast_sketch_store.vocabulary import Vocabulary, VocabularyBuilder

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
        names = list(features)
        bucket_bounds, buckets = _bucket_timestamps(keys.event_timestamps, budget.ttl_microseconds)
        shapes, shape_ids = _number_shapes({n: f.states for n, f in features.items()}, buckets)
        vocabularies = {name: feature.finish() for name, feature in features.items()}
        classes = [
            FactClass(f.num_facts, _symbol_rate(f.codec, vocabularies[name], budget.error_rates[name]))
            for name, f in features.items()
        ] + [FactClass(len(keys), budget.presence_error_rate / max(1, len(s))) for s in shapes]
        sizes = [len(vocabularies[name]) for name in names] + [len(s) for s in shapes]
        geometry = size_for_rates(classes)

        # Fewest hashes first, shapes last: a window that only symbols with many hashes need can
        # then leave out a prefix.
        hashes = geometry.num_hashes
        order = sorted(range(len(names)), key=lambda c: hashes[c])
        order += range(len(names), len(classes))
        first_words = dict(
            zip(order, np.cumsum([0] + [words_for(sizes[c]) for c in order]).tolist(), strict=False)
        )
        window_words = max(1, sum(map(words_for, sizes)))
        builder = ShiftingBloomFilterBuilder(geometry.num_bits, window_words, new_salt())
        for c, feature in enumerate(features.values()):
            for places, entity_index, symbols in feature.facts():
                symbols += np.int32(first_words[c] * 64)
                builder.add_many(keys.entity_hashes[places], entity_index, symbols, hashes[c])
        entities = np.arange(len(keys), dtype=np.int32)
        for c, ids in enumerate(shape_ids, start=len(names)):
            builder.add_many(keys.entity_hashes, entities, ids + first_words[c] * 64, hashes[c])
        bloom = builder.build()

        fill = expected_fill(classes, hashes, bloom.num_bits)
        ranges = [
            SymbolRange(first_words[c], sizes[c], classes[c].num_items, hashes[c], fill ** hashes[c])
            for c in range(len(classes))
        ]
        return SketchLayer(
            bloom,
            [feature.codec for feature in features.values()],
            vocabularies,
            dict(zip(names, ranges, strict=False)),
            shapes,
            ranges[len(names) :],
            bucket_bounds,
            len(keys),
            int(keys.event_timestamps.max(initial=NO_TIMESTAMP)),
        )


class _FeatureBuilder:
    """One feature of all rows, while they come in parts."""

    def __init__(self, codec: FeatureCodec, num_rows: int):
        self.codec = codec
        self.states = np.full(num_rows, MISSING, np.uint8)
        self.num_facts = 0
        self._vocabulary = VocabularyBuilder(codec.storage_type)
        self._parts: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.integer]]] = []
        self._final_ids = np.zeros(0, np.int32)

    def add(self, places: NDArray[np.int32], feature: EncodedFeature) -> None:
        """Take up the feature of some rows."""
        self.states[places] = feature.states
        self.num_facts += len(feature.symbols)
        lengths = np.diff(feature.indptr).astype(np.int32)
        symbols = self._vocabulary.add(feature.vocabulary, feature.symbols)
        # Ids of the first parts are small: half the memory of most views.
        small = np.uint16 if symbols.max(initial=0) < 2**16 else np.int32
        self._parts.append((places, lengths, symbols.astype(small)))

    def finish(self) -> Vocabulary:
        """The vocabulary of all parts."""
        vocabulary, self._final_ids = self._vocabulary.finish()
        return vocabulary

    def facts(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]]:
        """Per part the places of its rows, and of each fact its row in the part and its symbol."""
        while self._parts:  # each part is let go when it has been used
            places, lengths, symbols = self._parts.pop()
            entity_index = np.repeat(np.arange(len(places), dtype=np.int32), lengths)
            yield places, entity_index, self._final_ids[symbols]


def build_layer(rows: EncodedRows, budget: FeatureBudget) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``."""
    builder = SketchLayerBuilder(rows.keys, [feature.codec for feature in rows.features.values()])
    builder.add(np.arange(len(rows)), rows)
    return builder.build(budget)


def _symbol_rate(codec: FeatureCodec, vocabulary: Vocabulary, error_rate: float) -> float:
    """The rate of one symbol: a categorical read errs if any of the other values is a false positive."""
    return error_rate if codec.is_collection else error_rate / max(1, len(vocabulary) - 1)


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
    edges = np.unique(timestamps)
    if len(edges) > MAX_TIMESTAMP_BUCKETS:
        steps = np.arange(MAX_TIMESTAMP_BUCKETS)
        if ttl_microseconds:
            width = -(-ttl_microseconds // (MAX_TIMESTAMP_BUCKETS - 1))
            edges = edges[-1] - width * steps[::-1]
        else:
            edges = np.sort(timestamps)[steps * len(timestamps) // MAX_TIMESTAMP_BUCKETS]
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
