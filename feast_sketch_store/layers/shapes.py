"""Shapes: what a filter tells of a row besides its values.

A row inserts its *shape* as one symbol more: that it exists, which of its features are missing, null or
empty, and the bucket of its event timestamp. So presence, nulls and timestamps cost one fact per entity
together. A view whose features make more than ``MAX_SHAPES`` different shapes has several shape ranges, each
for some of its features, and then as many facts per entity.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES
from feast_sketch_store.rows.codecs import VALUE
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.structures.answer import FoundRows
from feast_sketch_store.structures.columns import Arrays, checked
from feast_sketch_store.structures.sizing import AnyFacts, FactClass, Hashes, TieredFacts
from feast_sketch_store.succinct import Asked, ShiftingBloomFilter

_Scalar = TypeVar("_Scalar", bound=np.generic)

MAX_SHAPES = 256
MAX_TIMESTAMP_BUCKETS = 16


@dataclass(frozen=True)
class SymbolRange:
    """Consecutive symbols of a layer that are in its filter.

    Parameters
    ----------
    first_word : of a window, where the first of them stands.
    num_symbols : how many they are.
    facts_per_hash : how many of their facts each hash was used for, falling; the first was for all.
    first_symbols : the first symbol that each hash is used for; of none if all are for all symbols.
    false_positive_rate : of a symbol, on average over all of them.
    """

    first_word: int
    num_symbols: int
    facts_per_hash: tuple[int, ...]
    first_symbols: tuple[int, ...]
    false_positive_rate: float

    @classmethod
    def build(
        cls, first_word: int, num_symbols: int, facts: AnyFacts, hashes: Hashes, fill: float
    ) -> "SymbolRange":
        """The range of facts in a table of which a share ``fill`` is ones."""
        first_symbols: Hashes = ()
        rate = fill ** len(hashes)
        if isinstance(facts, TieredFacts):
            first_symbols, rate = hashes, float(facts.symbol_rates(hashes, fill).mean())
        return cls(first_word, num_symbols, facts.facts_per_hash(hashes), first_symbols, rate)

    @property
    def num_facts(self) -> int:
        """How many facts they have."""
        return self.facts_per_hash[0]

    @property
    def num_hashes(self) -> int:
        """The most hashes that one of them has."""
        return len(self.facts_per_hash)

    @property
    def num_words(self) -> int:
        """Words of a window that the range takes up."""
        return words_for(self.num_symbols)

    @cached_property
    def asked(self) -> Asked:
        """The range as the filter takes it."""
        firsts = np.array(self.first_symbols, np.int64) if self.first_symbols else None
        return Asked(self.first_word, self.num_symbols, self.num_hashes, firsts)

    def fact_classes(self, fill: float) -> list[FactClass]:
        """Its facts by their number of hashes."""
        behind = (*self.facts_per_hash, 0)
        numbers = [behind[k] - behind[k + 1] for k in range(self.num_hashes)]
        return [FactClass(number, fill ** (k + 1)) for k, number in enumerate(numbers) if number]

    @classmethod
    def from_snapshot(cls, entry: Mapping[str, Any]) -> "SymbolRange":
        """The range that an entry of a description tells.

        Raises
        ------
        ValueError, KeyError, TypeError : there can be no such range.
        """
        symbols = cls(
            checked(entry["first_word"], int),
            checked(entry["num_symbols"], int),
            tuple(checked(number, int) for number in entry["facts_per_hash"]),
            tuple(checked(number, int) for number in entry["first_symbols"]),
            checked(entry["false_positive_rate"], float),
        )
        facts, firsts = symbols.facts_per_hash, symbols.first_symbols
        if (
            min(symbols.first_word, symbols.num_symbols) < 0
            or not 1 <= len(facts) <= MAX_NUM_HASHES
            or any(fewer > more for more, fewer in itertools.pairwise((*facts, 0)))
            or (firsts and (len(firsts) != len(facts) or firsts[0] or firsts[-1] >= symbols.num_symbols))
            or any(later < first for first, later in itertools.pairwise(firsts))
            or (not firsts and facts[-1] != facts[0])
            or not 0.0 <= symbols.false_positive_rate <= 1.0
            or (symbols.num_facts and not 0.0 < symbols.false_positive_rate < 1.0)
        ):
            raise ValueError(f"{symbols} cannot be")
        return symbols


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


@dataclass(frozen=True)
class ShapedRows:
    """Rows that a filter knows by their shapes.

    Parameters
    ----------
    bloom : the filter.
    shapes : of all features; timestamp buckets stand in the first ones.
    ranges : the symbols of each.
    bucket_bounds : int64[b, 2], the oldest and newest timestamp of each bucket.
    """

    bloom: ShiftingBloomFilter
    shapes: Sequence[Shapes]
    ranges: Sequence[SymbolRange]
    bucket_bounds: NDArray[np.int64]

    def find(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> FoundRows:
        """The possibly-present rows of a batch of entities; see `SketchLayer.read` for the parameters."""
        if len(self.shapes) == 1:
            symbols = self.ranges[0]
            possible, ids = self.bloom.possible_symbols(entity_hashes, symbols.asked)
            num_entities = len(entity_hashes)
            if len(ids) == num_entities and (num_entities == 1 or (possible[1:] > possible[:-1]).all()):
                # As usual, every entity has one shape.
                return self._with_shapes(ids, features, expire_before)
        found = np.arange(len(entity_hashes))
        states: dict[str, NDArray[np.uint8]] = {}
        timestamps = np.zeros(0, np.int64)
        for number, (shapes, symbols) in enumerate(zip(self.shapes, self.ranges, strict=True)):
            if number and not set(features).intersection(shapes.features):
                continue
            possible, ids = self.bloom.possible_symbols(entity_hashes[found], symbols.asked)
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
                oldest, newest = self.bucket_bounds[shapes.buckets[ids]].T
                timestamps = _reduce(np.minimum, oldest, starts)
                is_alive = _reduce(np.maximum, newest, starts) >= expire_before
            else:
                timestamps = timestamps[is_present]
                is_alive = np.ones(len(starts), np.bool_)
            states = {name: known[is_present] for name, known in states.items()} | present_states
            states = {name: known[is_alive] for name, known in states.items()}
            timestamps = timestamps[is_alive]
            found = found[is_present][is_alive]
        return FoundRows(found, timestamps, states)

    def _with_shapes(self, ids: NDArray[np.int32], features: Sequence[str], expire_before: int) -> FoundRows:
        """What `find` finds if each entity has one shape of the first range."""
        found, (oldest, newest) = np.arange(len(ids)), self._bounds
        if expire_before > NO_TIMESTAMP and not (is_alive := newest[ids] >= expire_before).all():
            found, ids = found[is_alive], ids[is_alive]
        states = {name: self._states[name].take(ids) for name in features if name in self._states}
        return FoundRows(found, oldest.take(ids), states)

    @cached_property
    def _states(self) -> dict[str, NDArray[np.uint8]]:
        """The state of each feature in each shape of the first range."""
        shapes = self.shapes[0]
        return {name: shapes.states[:, column].copy() for column, name in enumerate(shapes.features)}

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The oldest and the newest timestamp of the rows of each shape of the first range."""
        bounds = self.bucket_bounds[self.shapes[0].buckets]
        return bounds[:, 0].copy(), bounds[:, 1].copy()

    def to_snapshot(self) -> tuple[list[dict[str, Any]], dict[str, NDArray[np.generic]]]:
        """The shapes as a JSON-serializable description and named arrays."""
        arrays: dict[str, NDArray[np.generic]] = {"bucket_bounds": self.bucket_bounds}
        entries = []
        for number, (shape, symbols) in enumerate(zip(self.shapes, self.ranges, strict=True)):
            entries.append({"features": list(shape.features), **asdict(symbols)})
            arrays[f"shapes.{number}.states"] = shape.states
            arrays[f"shapes.{number}.buckets"] = shape.buckets
        return entries, arrays

    @classmethod
    def from_snapshot(
        cls, entries: Sequence[Mapping[str, Any]], bloom: ShiftingBloomFilter, arrays: Arrays
    ) -> "ShapedRows":
        """The reverse of `to_snapshot`.

        Raises
        ------
        ValueError, KeyError, TypeError : the parts do not fit each other.
        """
        shapes, ranges = [], []
        for number, entry in enumerate(entries):
            states, buckets = arrays[f"shapes.{number}.states"], arrays[f"shapes.{number}.buckets"]
            symbols, names = SymbolRange.from_snapshot(entry), tuple(entry["features"])
            if (
                states.shape != (symbols.num_symbols, len(names))
                or buckets.shape != (symbols.num_symbols,)
                or np.any(states > VALUE)  # type: ignore[operator]
            ):
                raise ValueError(f"shape range {number} does not fit its arrays")
            shapes.append(Shapes(names, states, buckets))  # type: ignore[arg-type]
            ranges.append(symbols)
        bounds: Any = arrays["bucket_bounds"]
        num_buckets = max((int(s.buckets.max()) + 1 for s in shapes if len(s)), default=0)
        if bounds.ndim != 2 or bounds.shape[1] != 2 or len(bounds) < num_buckets:
            raise ValueError("the bounds of the timestamp buckets do not fit the shapes")
        return cls(bloom, shapes, ranges, bounds)


def bucket_timestamps(
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


def number_shapes(
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


def words_for(num_symbols: int) -> int:
    """Words of a window with so many symbols."""
    return -(-num_symbols // 64)


def _reduce(combine: np.ufunc, values: NDArray[_Scalar], starts: NDArray[np.int64]) -> NDArray[_Scalar]:
    """Combine each run of ``values`` that begins at one of ``starts`` into one value."""
    return np.asarray(combine.reduceat(values, starts) if len(starts) else values[:0])
