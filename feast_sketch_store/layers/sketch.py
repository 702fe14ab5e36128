"""The sketch layer: sealed rows as a shifting Bloom filter or compressed sets, with their vocabularies.

The symbols of the features in the filter are numbered through one window, in ranges that begin on a word:

    | first feature | ... | last feature | shapes |

A row inserts its values as symbols of these features; values of the others are in sets and columns. What
else there is to tell of it is known in one of two ways: by its shape, one symbol more (`ShapedRows`), or
from a list of all rows (`ListedRows`), which a layer has if a feature of it is to come back exactly as it
was written, or takes fewer bits in sets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.layers.listed import ListedRows
from feast_sketch_store.layers.shapes import ShapedRows, SymbolRange
from feast_sketch_store.rows.binning import Bins
from feast_sketch_store.rows.codecs import EMPTY, NULL, VALUE, Decoder, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, put_csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import AnyAnswer, FeatureAnswer, FilterAnswer, LayerAnswer
from feast_sketch_store.structures.choice import SETS, TIERS, UNIFORM
from feast_sketch_store.structures.columns import Arrays, Checks, Parts, checked
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.sizing import ideal_bits
from feast_sketch_store.succinct import MAX_NUM_WORDS, ShiftingBloomFilter

# By the last part of an array's name; the others are int64.
_ARRAY_TYPES = {
    "table": np.uint64,
    "words": np.uint64,
    "checksums": np.uint8,
    "states": np.uint8,
    "buckets": np.uint8,
    "data": np.uint8,
}

# What grows with the rows is not checked as a whole when a snapshot is opened, but where it is read.
_CHECKED_WHERE_READ = ("table", "words")


def is_checked_where_read(array: str) -> bool:
    """Whether an array of a layer may be large, so that blocks of it are checked before their use."""
    return array.rpartition(".")[2] in _CHECKED_WHERE_READ


@dataclass(frozen=True)
class Rounding:
    """How the numbers of a binned feature were rounded: what stands for them, and how far off it is.

    ``bins.representatives`` are what a read gives. The errors are of the numbers at the seal, NaN and
    infinities left out.
    """

    bins: Bins
    max_error: float
    mean_error: float


@dataclass(frozen=True)
class SketchLayer:
    """Sealed rows. Immutable; safe to read from any number of threads.

    Whatever no newer layer lists is asked here.

    Parameters
    ----------
    bloom : the filter.
    codecs : of all features, by name.
    vocabularies : of the features in the filter and in sets.
    ranges : of the features in the filter.
    presence : what is known of rows besides values that are in the filter.
    num_entities, max_event_timestamp : of the rows.
    roundings : of binned features.
    cut : of features of which not all values are kept, how many facts were left out; of kept values none is.
    """

    bloom: ShiftingBloomFilter
    codecs: Mapping[str, FeatureCodec]
    vocabularies: Mapping[str, Vocabulary]
    ranges: Mapping[str, SymbolRange]
    presence: ShapedRows | ListedRows
    num_entities: int
    max_event_timestamp: int
    roundings: Mapping[str, Rounding] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

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

        Raises
        ------
        ValueError : parts that were not used before contradict each other; the layer came from a file.
        """
        features = [name for name in features if name in self.codecs]
        found = self.presence.find(entity_hashes, features, expire_before)
        if len(found.positions) < len(entity_hashes):
            entity_hashes = entity_hashes[found.positions]
        answers: dict[str, AnyAnswer] = {}
        for name in features:
            if name in self.ranges:
                answers[name] = self._read_range(name, entity_hashes, found.states[name])
            elif isinstance(self.presence, ListedRows) and found.rows is not None:
                answers[name] = self.presence.read(name, found.rows)
        return LayerAnswer(found.positions, found.positions, found.event_timestamps, answers)

    def _read_range(
        self, name: str, entity_hashes: NDArray[np.uint64], states: NDArray[np.uint8]
    ) -> AnyAnswer:
        decoder, asked = self._decoders[name], self.ranges[name].asked
        answer = FilterAnswer(decoder, states, self.bloom, asked, entity_hashes)
        if self.codecs[name].is_collection:
            return answer
        # Ids ascend from the most popular value: the first candidate is the most probable.
        candidates = np.diff(answer.indptr)
        ids = answer.symbols[answer.indptr[:-1][candidates > 0]]
        # A shape that claims a value which no symbol backs is a false positive of the shapes.
        states = np.where((states == VALUE) & (candidates == 0), NULL, states)
        indptr = np.concatenate(([0], np.cumsum(candidates > 0)))
        return FeatureAnswer(answer.decoder, states, indptr, ids)

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        return {name: Decoder(self.codecs[name], v) for name, v in self.vocabularies.items()}

    def shown(self, feature: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> FeatureAnswer:
        """What reads would give of a feature of rows, were they in the layer under such hashes.

        Values that the layer does not know are left out, and where it has a filter the hashes have its false
        positives. Both follow the law of the layer's own rows: to a filter any hash that it was not given is
        like any other.

        Parameters
        ----------
        feature : of n rows.
        entity_hashes : uint64[n, 2], of entities that the layer does not hold.
        """
        name, codec = feature.codec.feature, self.codecs[feature.codec.feature]
        values = self.rounded(name, feature.vocabulary.values)
        if name not in self.vocabularies:
            return FeatureAnswer(
                Decoder(codec, Vocabulary(values)), feature.states, feature.indptr, feature.symbols
            )
        ids = self.vocabularies[name].find(values)[feature.symbols]
        indptr, ids = np.concatenate(([0], np.cumsum(ids >= 0)))[feature.indptr], ids[ids >= 0]
        states = feature.states
        if name in self.ranges:
            has_values = states == VALUE
            noise = self.bloom.possible_symbols(entity_hashes, self.ranges[name].asked, has_values)
            both = indptr + noise[0]
            joined = np.empty(both[-1], np.int32)
            rows, places = np.arange(len(states)), both.copy()
            put_csr(places, joined, rows, indptr, ids)
            places[:-1] += np.diff(indptr)
            put_csr(places, joined, rows, *noise)
            indptr, ids = kernel.distinct_per_row(both, joined)
        has_any = np.diff(indptr) > 0
        if codec.is_collection:
            if name not in self.ranges or name in self.cut:
                states = np.where((states == VALUE) & ~has_any, np.uint8(EMPTY), states)
        else:  # as in `_read_range`
            ids = ids[indptr[:-1][has_any]]
            states = np.where((states == VALUE) & ~has_any, np.uint8(NULL), states)
            indptr = np.concatenate(([0], np.cumsum(has_any)))
        return FeatureAnswer(self._decoders[name], states, indptr, ids)

    def rounded(self, feature: str, values: pa.Array) -> pa.Array:
        """What stands for values, which are of the storage type: themselves, unless the feature is binned."""
        rounding, codec = self.roundings.get(feature), self.codecs[feature]
        if rounding is None:
            return values
        bins = rounding.bins
        return codec.from_numbers(bins.representatives[bins.find(codec.to_numbers(values))])

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def shape_ranges(self) -> Sequence[SymbolRange]:
        """The symbols of the shapes; none if the layer lists its rows."""
        return self.presence.ranges if isinstance(self.presence, ShapedRows) else ()

    @property
    def sets(self) -> SetColumns | None:
        """The features that are kept in sets."""
        return self.presence.sets if isinstance(self.presence, ListedRows) else None

    @property
    def size_bytes(self) -> int:
        """Bytes of the table, the vocabularies, and the list of rows if there is one."""
        size = self.bloom.words.nbytes + sum(v.size_bytes for v in self.vocabularies.values())
        return int(size) + (self.presence.size_bytes if isinstance(self.presence, ListedRows) else 0)

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its column, or its vocabulary and its share of the table or the sets."""
        if isinstance(self.presence, ListedRows) and feature in self.presence.columns:
            return self.presence.columns[feature].size_bytes
        if self.sets is not None and feature in self.sets.numbers:
            facts = [f.num_facts for f in self.sets.features]
            share, size = facts[self.sets.numbers[feature]] / max(1, sum(facts)), self.sets.size_bytes
        else:
            bits = {name: sum(r.facts_per_hash) for name, r in self.ranges.items()}
            all_bits = sum(bits.values()) + sum(sum(r.facts_per_hash) for r in self.shape_ranges)
            share, size = bits[feature] / max(1, all_bits), self.bloom.words.nbytes
        return share * size + self.vocabularies[feature].size_bytes

    @property
    def num_facts_of(self) -> dict[str, int]:
        """The facts of each feature in the filter or in sets."""
        facts = {name: symbols.num_facts for name, symbols in self.ranges.items()}
        return facts | {
            f.codec.feature: f.num_facts for f in (() if self.sets is None else self.sets.features)
        }

    @property
    def num_facts(self) -> int:
        """Facts in the table and in sets, one per entity and shape range included."""
        return sum(self.num_facts_of.values()) + sum(r.num_facts for r in self.shape_ranges)

    @property
    def fact_bits(self) -> int:
        """Bits of the table and of the sets, with what it takes to find them."""
        listed = self.presence if isinstance(self.presence, ListedRows) else None
        sets = 0
        if listed is not None and listed.sets is not None:
            sets = 8 * (listed.index.size_bytes + listed.sets.size_bytes)
        return sets + (self.bloom.num_bits if self.ranges or self.shape_ranges else 0)

    def structure_of(self, feature: str) -> str:
        """How a feature is kept: uniform or tiers, which are filters, sets or column."""
        if feature in self.ranges:
            return TIERS if self.ranges[feature].first_symbols else UNIFORM
        return SETS if self.sets is not None and feature in self.sets.numbers else "column"

    @property
    def ideal_bits(self) -> float:
        """Bits of standard Bloom filters for the facts in the table at the same expected rates."""
        ranges = (*self.ranges.values(), *self.shape_ranges)
        num_ones = sum(sum(r.facts_per_hash) for r in ranges)
        fill = -math.expm1(-num_ones / self.bloom.num_bits) if num_ones else 0.5
        return ideal_bits([facts for symbols in ranges for facts in symbols.fact_classes(fill)])

    # -- snapshot ------------------------------------------------------------------------------

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """The layer as a JSON-serializable description and named arrays."""
        description: dict[str, Any] = {
            "num_words": self.bloom.num_words,
            "salt": [f"{half:016x}" for half in self.bloom.salt],
            "num_entities": self.num_entities,
            "max_event_timestamp": self.max_event_timestamp,
        }
        arrays: dict[str, NDArray[np.generic]] = {"table": self.bloom.words}
        description["features"] = []
        for number, (name, symbols) in enumerate(self.ranges.items()):
            value_field = self.codecs[name].value_field
            description["features"].append({"name": name, "value_field": value_field, **asdict(symbols)})
            for part, array in self.vocabularies[name].to_arrays().items():
                arrays[f"vocabulary.{number}.{part}"] = array
        if self.cut:
            description["cut"] = dict(self.cut)
        key = "listed" if isinstance(self.presence, ListedRows) else "shapes"
        description[key], parts = self.presence.to_snapshot()
        arrays |= parts
        if self.roundings:
            description["roundings"] = []
            for number, (name, rounding) in enumerate(self.roundings.items()):
                errors = {"max_error": rounding.max_error, "mean_error": rounding.mean_error}
                description["roundings"].append({"name": name, **errors})
                for part in ("lows", "representatives"):
                    numbers = getattr(rounding.bins, part)
                    arrays[f"roundings.{number}.{part}"] = numbers.view(np.int64)
        return description, arrays

    @classmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], arrays: Arrays, checks: Checks | None = None
    ) -> "SketchLayer":
        """The reverse of `to_snapshot`; the arrays are used as they are, mapped or not.

        Parameters
        ----------
        checks : of the arrays that were not checked, see `is_checked_where_read`.

        Raises
        ------
        ValueError, KeyError, TypeError : the description and the arrays do not fit each other.
        """
        _check_types(arrays)
        checks = checks or {}
        codecs, vocabularies, ranges = {}, {}, {}
        for number, feature in enumerate(description["features"]):
            name = checked(feature["name"], str)
            codec = FeatureCodec(name, feature["value_field"])
            vocabulary = Parts(arrays, checks, "vocabulary.").vocabulary(str(number), codec)
            symbols = SymbolRange.from_snapshot(feature)
            if len(vocabulary) != symbols.num_symbols or name in codecs:
                raise ValueError(f"the vocabulary of {name!r} does not fit its symbols")
            codecs[name], vocabularies[name], ranges[name] = codec, vocabulary, symbols
        first, second = (int(half, 16) for half in description["salt"])
        if not 0 <= min(first, second) <= max(first, second) < 2**64:
            raise ValueError("the salt is not two 64-bit numbers")
        salt = first, second

        num_words = checked(description["num_words"], int)
        words: Any = arrays["table"]
        bloom = ShiftingBloomFilter(words, num_words, salt, checks.get("table"))
        num_entities = checked(description["num_entities"], int)
        presence: ShapedRows | ListedRows
        if "listed" in description:
            presence = ListedRows.from_snapshot(description["listed"], salt, arrays, checks)
            known, shape_ranges = list(presence.states), []
            codecs |= {name: column.codec for name, column in presence.columns.items()}
            sets = [] if presence.sets is None else list(presence.sets.features)
            codecs |= {f.codec.feature: f.codec for f in sets}
            vocabularies |= {f.codec.feature: f.vocabulary for f in sets}
            if len(presence) != num_entities or len(codecs) != len(ranges) + len(presence.columns) + len(
                sets
            ):
                raise ValueError("the listed rows do not fit the layer")
        else:
            presence = ShapedRows.from_snapshot(description["shapes"], bloom, arrays)
            known = [name for shape in presence.shapes for name in shape.features]
            shape_ranges = list(presence.ranges)
        if len(known) != len(ranges) or set(known) != set(ranges):
            raise ValueError("the features and those whose states are known are not the same")
        window_words = _window_words([*ranges.values(), *shape_ranges])
        if not window_words <= num_words <= MAX_NUM_WORDS or words.shape != (num_words + window_words,):
            raise ValueError("the table's length is not that of its words and window")
        return cls(
            bloom,
            codecs,
            vocabularies,
            ranges,
            presence,
            num_entities,
            checked(description["max_event_timestamp"], int),
            _roundings_from(description.get("roundings", []), codecs, arrays),
            _cut_from(checked(description.get("cut", {}), dict), codecs, vocabularies),
        )


def _window_words(ranges: Sequence[SymbolRange]) -> int:
    window_words = 0
    for symbols in sorted(ranges, key=lambda r: (r.first_word, r.num_words)):
        if symbols.first_word != window_words:
            raise ValueError("the ranges of symbols do not lie one behind the other")
        window_words += symbols.num_words
    return max(1, window_words)


def _cut_from(
    entries: Mapping[str, Any], codecs: Mapping[str, FeatureCodec], vocabularies: Mapping[str, Vocabulary]
) -> dict[str, int]:
    cut = {name: checked(number, int) for name, number in entries.items()}
    if (
        any(n not in vocabularies or not codecs[n].is_collection for n in cut)
        or min(cut.values(), default=0) < 0
    ):
        raise ValueError("facts are cut of features that have no vocabulary to be cut")
    return cut


def _roundings_from(
    entries: Sequence[Mapping[str, Any]], codecs: Mapping[str, FeatureCodec], arrays: Arrays
) -> dict[str, Rounding]:
    roundings = {}
    for number, entry in enumerate(entries):
        name = checked(entry["name"], str)
        parts = [arrays[f"roundings.{number}.{part}"] for part in ("lows", "representatives")]
        if any(part.ndim != 1 or part.shape != parts[0].shape for part in parts) or name not in codecs:
            raise ValueError(f"the bins of {name!r} do not fit each other")
        lows, representatives = (np.asarray(part.view(codecs[name].number_type)) for part in parts)
        roundings[name] = Rounding(
            Bins(lows, representatives),
            checked(entry["max_error"], float),
            checked(entry["mean_error"], float),
        )
    return roundings


def _check_types(arrays: Arrays) -> None:
    for name, array in arrays.items():
        wanted = _ARRAY_TYPES.get(name.rpartition(".")[2], np.int64)
        if array.dtype != wanted:
            raise TypeError(f"array {name!r} has type {array.dtype}")
