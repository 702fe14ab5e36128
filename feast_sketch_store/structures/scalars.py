"""Scalars as the digits of one number per row, so that V values take ``log2(V)`` bits without rounding up.

A digit is the id of a value. The first feature's digit is the lowest:

    digit = number div (V_1 * V_2 * ... * V_(i-1)) mod V_i        of feature i, of V_i symbols

Numbers are kept in one of two ways:

- packed, for listed rows (`Scalars`). The ids after those of the values represent the states of rows without
  one. Numbers have at most 63 bits: features are combined in their order, until the next one would exceed
  that. The numbers are packed integers (`succinct.packed`), so any row is read without the others.
- in a static function, which returns the number of a row for its entity's hash (`StaticScalars`). The lowest
  digit, before those of features, is the shape of the row. It says which features have a value, and the
  bucket of the timestamp. So nothing is listed. A row takes ``log2(num_shapes * V_1 * V_2 * ... / presence
  rate)`` bits, rounded up, and 3 % more. Values are exact; only an entity that was never written may read as
  a row.

Source: Knuth, "The Art of Computer Programming", volume 2, 4.1, mixed radix.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader, row_hashes
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal, SealedFeature, Structure, begin_feature
from feast_sketch_store.structures.columns import COLUMN
from feast_sketch_store.structures.feature_rows import FeatureRows, in_order
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    checked,
    describe_codec,
    describe_packed,
    describe_salt,
)
from feast_sketch_store.succinct import PackedInts
from feast_sketch_store.succinct.static_function import MAX_WIDTH, StaticFunction, expected_bytes, width_for

_MAX_NUMBERS = 1 << 63
_STATES_WITHOUT_VALUE = (MISSING, NULL, EMPTY)

STATIC: Final = "static"


def num_symbols_of(vocabulary: Vocabulary, states: NDArray[np.uint8]) -> int:
    """The number of symbols of a scalar: its values, and the other states of its rows, uint8[n]."""
    return max(1, len(vocabulary) + len(_others_of(states)))


def scalar_bytes(vocabulary: Vocabulary, states: NDArray[np.uint8]) -> float:
    """Approximate bytes of a scalar among others; all together take less than one bit per row more."""
    bits = math.log2(num_symbols_of(vocabulary, states)) * len(states)
    return bits / 8 + vocabulary.packed_bytes


@dataclass(frozen=True)
class Scalar(SealedFeature):
    """One feature of n rows."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    numbers: PackedInts  # those of all features stored together
    divisor: int  # the product of the symbol counts of the features before it
    others: Sequence[int]  # the states of the symbols after the values

    structure = COLUMN

    @property
    def num_facts(self) -> int:
        num_values, num_symbols = len(self.vocabulary), self.num_symbols
        digits = (part // self.divisor % num_symbols for part in self.numbers.parts())
        return sum(int((part < num_values).sum()) for part in digits)

    @property
    def num_symbols(self) -> int:
        """The number of symbols."""
        return max(1, len(self.vocabulary) + len(self.others))

    def prepare(self, rows: RowReader) -> None:
        begin_feature(rows, self.codec, self.vocabulary)
        others = self.others or ([] if len(self.vocabulary) else [MISSING])
        rows.from_digits(*self.numbers.arguments, self.divisor, np.array(others, np.uint8))


@dataclass(frozen=True)
class Scalars(Structure):
    """The scalars of n rows; ``numbers`` has those of each group of features that are stored together."""

    features: Mapping[str, Scalar]
    numbers: Sequence[PackedInts]

    kind = "scalars"
    lists_rows = True
    tells_states = True
    num_facts = 0  # the bytes of a column are not divided by facts

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; there are no plans."""
        assert rows.order is not None
        parts, symbols = [], []
        for feature, _ in features:
            states = feature.states[rows.order]
            others = _others_of(states)
            own = np.zeros(len(states), np.int64)
            own[states == VALUE] = in_order([feature], rows.order).ids
            for number, state in enumerate(others):
                own[states == state] = len(feature.vocabulary) + number
            parts.append((feature.sealed_codec, feature.vocabulary, others))
            symbols.append(own)
        numbers = []
        for group in _groups([len(values) + len(others) for _, values, others in parts]):
            together, divisor = np.zeros(len(rows.order), np.int64), 1
            for number, num_symbols in group:
                together += symbols[number] * divisor
                divisor *= num_symbols
            numbers.append(PackedInts.pack(together, (divisor - 1).bit_length(), base=0))
        return cls._of(parts, numbers)

    @classmethod
    def _of(
        cls, parts: Sequence[tuple[FeatureCodec, Vocabulary, Sequence[int]]], numbers: Sequence[PackedInts]
    ) -> Self:
        """Combine features, given by codec, values, and the states of symbols without a value."""
        by_name = {}
        groups = _groups([len(values) + len(others) for _, values, others in parts])
        if len(groups) != len(numbers):
            raise ValueError("the number of scalars is not the number of digits")
        for group, together in zip(groups, numbers, strict=True):
            divisor = 1
            for number, num_symbols in group:
                codec, values, others = parts[number]
                by_name[codec.feature] = Scalar(codec, values, together, divisor, others)
                divisor *= num_symbols
            if together.width != (divisor - 1).bit_length() or together.base:
                raise ValueError("the numbers of scalars have another width than their digits need")
        return cls(by_name, numbers)

    @property
    def num_rows(self) -> int:
        return self.numbers[0].length

    @property
    def size_bytes(self) -> int:
        """Bytes of all numbers and vocabularies."""
        return sum(numbers.size_bytes for numbers in self.numbers) + sum(
            feature.vocabulary.packed_bytes for feature in self.features.values()
        )

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one scalar: its vocabulary, and its share of the numbers."""
        own = self.features[feature]
        share = math.log2(own.num_symbols) * own.numbers.length / 8
        return share + own.vocabulary.packed_bytes

    def to_snapshot(self) -> Described:
        features = [
            {
                **describe_codec(feature.codec),
                "num_values": len(feature.vocabulary),
                "others": list(feature.others),
                "vocabulary": feature.vocabulary.to_packed(),
                "report": {"codec": feature.codec.name},
            }
            for feature in self.features.values()
        ]
        return {"features": features, "numbers": [describe_packed(each) for each in self.numbers]}

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        features = []
        for entry in parts.each("features"):
            codec = entry.codec(entry.at("report").get("codec", str))
            vocabulary = entry.vocabulary(codec)
            others = tuple(checked(state, int) for state in entry.get("others", list))
            is_known = all(state in _STATES_WITHOUT_VALUE for state in others)
            if codec.is_collection or not is_known or entry.get("num_values", int) != len(vocabulary):
                raise ValueError(f"{codec.feature!r} cannot have such values and states")
            features.append((codec, vocabulary, others))
        numbers = [entry.packed() for entry in parts.each("numbers")]
        scalars = cls._of(features, numbers)
        if len(scalars.features) != len(features) or len({each.length for each in numbers}) != 1:
            raise ValueError("a scalar is there twice, or the scalars differ in their number of rows")
        return scalars


def _others_of(states: NDArray[np.uint8]) -> tuple[int, ...]:
    """The states of rows without a value."""
    used = np.flatnonzero(np.bincount(states, minlength=VALUE + 1))
    return tuple(int(state) for state in used if state != VALUE)


def _groups(num_symbols: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The features in each number: index and number of symbols of each, at least 1."""
    groups: list[list[tuple[int, int]]] = []
    product = _MAX_NUMBERS
    for number, own in enumerate(max(1, own) for own in num_symbols):
        if product * own > _MAX_NUMBERS or not groups:
            groups.append([])
            product = 1
        groups[-1].append((number, own))
        product *= own
    return groups


@dataclass(frozen=True)
class StaticScalar(SealedFeature):
    """One feature; ``divisor`` is the product of the sizes of the lower digits."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_rows: int
    num_with_value: int  # rows with a value; the function does not list them
    divisor: int

    structure = STATIC

    @property
    def num_facts(self) -> int:
        return self.num_with_value

    def prepare(self, rows: RowReader) -> None:
        begin_feature(rows, self.codec, self.vocabulary)
        if self.num_rows:
            rows.from_number(self.divisor)
        else:
            rows.from_states()


@dataclass(frozen=True)
class StaticScalars(Structure):
    """The scalars and the shapes of rows in one static function."""

    features: Mapping[str, StaticScalar]  # by name
    function: StaticFunction  # maps the hashes of entities under ``salt`` to numbers
    salt: tuple[int, int]  # two unsigned 64-bit integers
    num_shapes: int  # size of the lowest digit
    num_entities: int

    kind = STATIC

    @staticmethod
    def expected_bytes(num_rows: int, num_shapes: int, sizes: Sequence[int], rate: float) -> float:
        """Approximate bytes for features with these numbers of values, without vocabularies.

        Infinity if no such function is possible.
        """
        num_symbols = num_shapes * math.prod(max(1, size) for size in sizes)
        fits = width_for(num_symbols, rate) <= MAX_WIDTH
        return expected_bytes(num_rows, num_symbols, rate) if fits else math.inf

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; there are no plans."""
        (shapes,) = rows.symbols
        numbers, divisor, by_name = shapes.ids.astype(np.int64), shapes.num_symbols, {}
        for feature, _ in features:
            codec, vocabulary = feature.sealed_codec, feature.vocabulary
            by_name[codec.feature] = StaticScalar(codec, vocabulary, len(numbers), feature.num_facts, divisor)
            for indices, part in feature.rows():
                numbers[indices[part.lengths > 0]] += part.ids.astype(np.int64) * divisor
            divisor *= max(1, len(vocabulary))
        hashes, salt = _distinct_hashes(rows.entity_hashes, rows.salt)
        rate = shapes.facts.false_positive_rate * shapes.num_symbols
        function = StaticFunction.build(hashes, numbers, divisor, rate)
        return cls(by_name, function, salt, shapes.num_symbols, len(numbers))

    @property
    def size_bytes(self) -> int:
        """Bytes of the function and the vocabularies."""
        return self.function.size_bytes + sum(f.vocabulary.packed_bytes for f in self.features.values())

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its vocabulary, and its share of the bits of a row."""
        own = self.features[feature].vocabulary
        share = math.log2(max(1, len(own))) / self.function.width
        return share * self.function.size_bytes + own.packed_bytes

    @property
    def fact_bits(self) -> int:
        """Bits of the function, which has the rows, too."""
        return 8 * self.function.size_bytes

    def to_snapshot(self) -> Described:
        features = [
            {
                **describe_codec(feature.codec),
                "vocabulary": feature.vocabulary.to_packed(),
                "report": {"codec": feature.codec.name, "num_facts": feature.num_facts},
            }
            for feature in self.features.values()
        ]
        return {
            "salt": describe_salt(self.salt),
            "width": self.function.width,
            "function": {WORDS: self.function.words},
            "left": {"hashes": self.function.left_hashes, "numbers": self.function.left_numbers},
            "num_shapes": self.num_shapes,
            "features": features,
            "report": {"num_entities": self.num_entities},
        }

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        num_shapes = parts.get("num_shapes", int)
        num_entities = parts.at("report").get("num_entities", int)
        if num_shapes < 1 or num_entities < 0:
            raise ValueError(f"{num_entities} rows of {num_shapes} shapes are not possible")
        divisor, features = num_shapes, {}
        for entry in parts.each("features"):
            report = entry.at("report")
            codec = entry.codec(report.get("codec", str))
            name = codec.feature
            if codec.is_collection or codec.is_exact or codec.is_list or name in features:
                raise ValueError(f"{name!r} is there twice, or is not a scalar with ids")
            num_facts = report.get("num_facts", int)
            if not 0 <= num_facts <= num_entities:
                raise ValueError(f"{num_facts} values of {name!r} in {num_entities} rows are not possible")
            vocabulary = entry.vocabulary(codec)
            features[name] = StaticScalar(codec, vocabulary, num_entities, num_facts, divisor)
            divisor *= max(1, len(vocabulary))
        words, check = parts.at("function").words()
        left = parts.array("left.hashes", np.uint64), parts.array("left.numbers", np.int64)
        function = StaticFunction(words, parts.get("width", int), divisor, *left, check)
        return cls(features, function, parts.salt(), num_shapes, num_entities)


def _distinct_hashes(
    entity_hashes: NDArray[np.uint64], salt: tuple[int, int]
) -> tuple[NDArray[np.uint64], tuple[int, int]]:
    """The distinct row hashes of n entities, uint64[n], and the first salt tried that makes them so."""
    for attempt in itertools.count():
        own = salt[0] ^ attempt, salt[1]
        hashes = row_hashes(entity_hashes, own)
        if len(np.unique(hashes)) == len(hashes):
            return hashes, own
    raise AssertionError
