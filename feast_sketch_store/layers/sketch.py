"""The sketch layer: sealed rows as one shifting Bloom filter and its vocabularies.

The symbols of a layer are numbered through one window of the filter, in ranges that begin on a word:

    | feature with the fewest hashes | ... | feature with the most hashes | shapes |

A row inserts its values as symbols of their features, and its *shape* as one symbol more. A shape says
what a Bloom filter cannot: that the row exists, which of its features are missing, null or empty, and
the bucket of its event timestamp. So presence, nulls and timestamps cost one fact per entity together.
A view whose features make more than ``MAX_SHAPES`` different shapes has several shape ranges, each for
some of its features, and then as many facts per entity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.codecs import NULL, VALUE, Decoder, FeatureCodec
from feast_sketch_store.filters import (
    MAX_NUM_WORDS,
    ShiftingBloomFilter,
)
from feast_sketch_store.layers.answer import FeatureAnswer, LayerAnswer
from feast_sketch_store.rows import NO_TIMESTAMP
from feast_sketch_store.sizing import MAX_NUM_HASHES, FactClass, ideal_bits
from feast_sketch_store.vocabulary import Vocabulary

# By the last part of an array's name; the others are int64.
_ARRAY_TYPES = {
    "table": np.uint64,
    "checksums": np.uint8,
    "states": np.uint8,
    "buckets": np.uint8,
    "data": np.uint8,
}

_T = TypeVar("_T")
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True)
class SymbolRange:
    """Consecutive symbols of a layer that share their number of hashes."""

    first_word: int
    num_symbols: int
    num_facts: int
    num_hashes: int
    false_positive_rate: float

    @property
    def num_words(self) -> int:
        """Words of a window that the range takes up."""
        return words_for(self.num_symbols)


@dataclass(frozen=True)
class Shapes:
    """The shapes of some features.

    ``states`` is uint8[num_shapes, len(features)]; ``buckets`` uint8[num_shapes], the timestamp bucket.
    """

    features: tuple[str, ...]
    states: NDArray[np.uint8]
    buckets: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.states)


class SketchLayer:
    """Sealed rows. Immutable; safe to read from any number of threads.

    A layer keeps no list of its entities: whatever no newer layer lists is asked here.
    """

    def __init__(
        self,
        bloom: ShiftingBloomFilter,
        codecs: Sequence[FeatureCodec],
        vocabularies: Mapping[str, Vocabulary],
        ranges: Mapping[str, SymbolRange],
        shapes: Sequence[Shapes],
        shape_ranges: Sequence[SymbolRange],
        bucket_bounds: NDArray[np.int64],
        num_entities: int,
        max_event_timestamp: int,
    ):
        self.bloom = bloom
        self.codecs = {codec.feature: codec for codec in codecs}
        self.vocabularies = vocabularies
        self.ranges = ranges
        self.num_entities = num_entities
        self.max_event_timestamp = max_event_timestamp
        self.shape_ranges = shape_ranges
        self._shapes = shapes
        self._bucket_bounds = bucket_bounds

    # -- read ----------------------------------------------------------------------------------

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        expire_before: int = NO_TIMESTAMP,
    ) -> LayerAnswer:
        """The possibly-present rows of a batch.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; those the layer does not know are left out of the answer.
        expire_before : microseconds since 1970; a row is not returned once all of its bucket is older.
        """
        features = [name for name in features if name in self.ranges]
        found = np.arange(len(entity_hashes))
        states: dict[str, NDArray[np.uint8]] = {}
        timestamps = np.zeros(0, np.int64)
        for number, (shapes, symbols) in enumerate(zip(self._shapes, self.shape_ranges, strict=True)):
            if number and not set(features).intersection(shapes.features):
                continue
            possible, ids = self._possible(entity_hashes[found], symbols)
            is_present = np.diff(possible) > 0
            starts = possible[:-1][is_present]
            # Of several possible shapes the one counts that hides least (see codecs.VALUE): the highest
            # state, the oldest timestamp to report and the newest one to expire by.
            present_states = {
                name: _reduce(np.maximum, shapes.states[ids, column], starts)
                for column, name in enumerate(shapes.features)
                if name in features
            }
            if number == 0:
                oldest, newest = self._bucket_bounds[shapes.buckets[ids]].T
                timestamps = _reduce(np.minimum, oldest, starts)
                is_alive = _reduce(np.maximum, newest, starts) >= expire_before
            else:
                timestamps = timestamps[is_present]
                is_alive = np.ones(len(starts), np.bool_)
            states = {name: known[is_present] for name, known in states.items()} | present_states
            states = {name: known[is_alive] for name, known in states.items()}
            timestamps = timestamps[is_alive]
            found = found[is_present][is_alive]
        answers = {name: self._read_feature(name, entity_hashes[found], states[name]) for name in features}
        return LayerAnswer(found, found, timestamps, answers)

    def _read_feature(
        self, name: str, entity_hashes: NDArray[np.uint64], states: NDArray[np.uint8]
    ) -> FeatureAnswer:
        indptr, symbols = self._possible(entity_hashes, self.ranges[name], states == VALUE)
        if not self.codecs[name].is_collection:
            # Ids ascend from the most popular value: the first candidate is the most probable.
            candidates = np.diff(indptr)
            symbols = symbols[indptr[:-1][candidates > 0]]
            # A shape that claims a value which no symbol backs is a false positive of the shapes.
            states = np.where((states == VALUE) & (candidates == 0), NULL, states)
            indptr = np.concatenate(([0], np.cumsum(candidates > 0)))
        return FeatureAnswer(self._decoders[name], states, indptr, symbols)

    def _possible(
        self,
        entity_hashes: NDArray[np.uint64],
        symbols: SymbolRange,
        wanted: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The possibly-present symbols of a range: a CSR matrix of int64[n + 1] and int64[nnz]."""
        return self.bloom.possible_symbols(
            entity_hashes, symbols.first_word, symbols.num_symbols, symbols.num_hashes, wanted
        )

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        return {name: Decoder(codec, self.vocabularies[name]) for name, codec in self.codecs.items()}

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes of the table and the vocabularies."""
        return self.bloom.words.nbytes + sum(v.size_bytes for v in self.vocabularies.values())

    @property
    def num_facts(self) -> int:
        """Facts in the table, one per entity and shape range included."""
        return sum(r.num_facts for r in (*self.ranges.values(), *self.shape_ranges))

    @property
    def ideal_bits(self) -> float:
        """Bits of a standard Bloom filter for the same facts at the same expected rates."""
        return ideal_bits(
            [
                FactClass(r.num_facts, r.false_positive_rate)
                for r in (*self.ranges.values(), *self.shape_ranges)
                if r.num_facts
            ]
        )

    # -- snapshot ------------------------------------------------------------------------------

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """The layer as a JSON-serializable description and named arrays."""
        arrays: dict[str, NDArray[np.generic]] = {
            "table": self.bloom.words,
            "bucket_bounds": self._bucket_bounds,
        }
        features = []
        for number, (name, symbols) in enumerate(self.ranges.items()):
            features.append({"name": name, "value_field": self.codecs[name].value_field, **asdict(symbols)})
            for part, array in self.vocabularies[name].to_arrays().items():
                arrays[f"vocabulary.{number}.{part}"] = array
        shapes = []
        for number, (shape, symbols) in enumerate(zip(self._shapes, self.shape_ranges, strict=True)):
            shapes.append({"features": list(shape.features), **asdict(symbols)})
            arrays[f"shapes.{number}.states"] = shape.states
            arrays[f"shapes.{number}.buckets"] = shape.buckets
        return {
            "num_words": self.bloom.num_words,
            "salt": [f"{half:016x}" for half in self.bloom.salt],
            "num_entities": self.num_entities,
            "max_event_timestamp": self.max_event_timestamp,
            "features": features,
            "shapes": shapes,
        }, arrays

    @classmethod
    def from_snapshot(
        cls,
        description: Mapping[str, Any],
        arrays: Mapping[str, NDArray[np.generic]],
        check: Callable[[NDArray[np.int64], int], None] | None = None,
    ) -> "SketchLayer":
        """The reverse of `to_snapshot`; the arrays are used as they are, mapped or not.

        Parameters
        ----------
        check : of the table's words, see `ShiftingBloomFilter`.

        Raises
        ------
        ValueError, KeyError, TypeError : the description and the arrays do not fit each other.
        """
        _check_types(arrays)
        codecs, vocabularies, ranges = [], {}, {}
        for number, feature in enumerate(description["features"]):
            name = _checked(feature["name"], str)
            codec = FeatureCodec(name, feature["value_field"])
            prefix = f"vocabulary.{number}."
            parts = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            vocabulary, symbols = Vocabulary.from_arrays(parts), _range_from(feature)
            if len(vocabulary) != symbols.num_symbols or vocabulary.values.type != codec.storage_type:
                raise ValueError(f"the vocabulary of {name!r} does not fit its symbols or type")
            codec.check_storage(vocabulary.values)
            codecs.append(codec)
            vocabularies[name], ranges[name] = vocabulary, symbols
        shapes, shape_ranges = [], []
        for number, shape in enumerate(description["shapes"]):
            states, buckets = arrays[f"shapes.{number}.states"], arrays[f"shapes.{number}.buckets"]
            symbols, names = _range_from(shape), tuple(shape["features"])
            if (
                states.shape != (symbols.num_symbols, len(names))
                or buckets.shape != (symbols.num_symbols,)
                or np.any(states > VALUE)  # type: ignore[operator]
            ):
                raise ValueError(f"shape range {number} does not fit its arrays")
            shapes.append(Shapes(names, states, buckets))  # type: ignore[arg-type]
            shape_ranges.append(symbols)
        shaped = [name for shape in shapes for name in shape.features]
        if len(codecs) != len(ranges) or len(shaped) != len(ranges) or set(shaped) != set(ranges):
            raise ValueError("the features and those of the shapes are not the same")
        window_words = 0
        for symbols in sorted([*ranges.values(), *shape_ranges], key=lambda r: (r.first_word, r.num_words)):
            if symbols.first_word != window_words:
                raise ValueError("the ranges of symbols do not lie one behind the other")
            window_words += symbols.num_words
        window_words = max(1, window_words)
        num_words = _checked(description["num_words"], int)
        words = arrays["table"]
        if not window_words <= num_words <= MAX_NUM_WORDS or words.shape != (num_words + window_words,):
            raise ValueError("the table's length is not that of its words and window")
        bounds = arrays["bucket_bounds"]
        num_buckets = max((int(s.buckets.max()) + 1 for s in shapes if len(s)), default=0)
        if bounds.ndim != 2 or bounds.shape[1] != 2 or len(bounds) < num_buckets:
            raise ValueError("the bounds of the timestamp buckets do not fit the shapes")
        first, second = (int(half, 16) for half in description["salt"])
        if not 0 <= min(first, second) <= max(first, second) < 2**64:
            raise ValueError("the salt is not two 64-bit numbers")
        return cls(
            ShiftingBloomFilter(words, num_words, (first, second), check),  # type: ignore[arg-type]
            codecs,
            vocabularies,
            ranges,
            shapes,
            shape_ranges,
            bounds,  # type: ignore[arg-type]
            _checked(description["num_entities"], int),
            _checked(description["max_event_timestamp"], int),
        )


def words_for(num_symbols: int) -> int:
    """Words of a window with so many symbols."""
    return -(-num_symbols // 64)


def _range_from(entry: Mapping[str, Any]) -> SymbolRange:
    symbols = SymbolRange(
        _checked(entry["first_word"], int),
        _checked(entry["num_symbols"], int),
        _checked(entry["num_facts"], int),
        _checked(entry["num_hashes"], int),
        _checked(entry["false_positive_rate"], float),
    )
    if (
        min(symbols.first_word, symbols.num_symbols, symbols.num_facts) < 0
        or not 1 <= symbols.num_hashes <= MAX_NUM_HASHES
        or not 0.0 <= symbols.false_positive_rate <= 1.0
        or (symbols.num_facts and not 0.0 < symbols.false_positive_rate < 1.0)
    ):
        raise ValueError(f"{symbols} cannot be")
    return symbols


def _check_types(arrays: Mapping[str, NDArray[np.generic]]) -> None:
    for name, array in arrays.items():
        wanted = _ARRAY_TYPES.get(name.rpartition(".")[2], np.int64)
        if array.dtype != wanted:
            raise TypeError(f"array {name!r} has type {array.dtype}")


def _checked(value: Any, kind: type[_T]) -> _T:
    """The value if it is of the type itself: to JSON, ``true`` and 7.0 are no counts."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} stands where {kind.__name__} is expected")
    return value


def _reduce(combine: np.ufunc, values: NDArray[_Scalar], starts: NDArray[np.int64]) -> NDArray[_Scalar]:
    """Combine each run of ``values`` that begins at one of ``starts`` into one value."""
    return np.asarray(combine.reduceat(values, starts) if len(starts) else values[:0])
