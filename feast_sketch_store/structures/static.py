"""Static scalars: a row is one number, which a static function returns for its entity's hash.

The digits of the number are the shape of the row, lowest, and the ids of its values. The shape says which
features have a value, and the bucket of the timestamp:

    number = shape + num_shapes * (id_1 + V_1 * (id_2 + V_2 * ...))

So nothing is listed. A row takes ``log2(num_shapes * V_1 * V_2 * ... / presence rate)`` bits, rounded up, and
3 % more. Values are exact; only an entity that was never written may read as a row.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader, row_hashes
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal, SealedFeature, Structure, begin_feature
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    checked,
    describe_salt,
    prefixed,
    report_of,
    salt_from,
)
from feast_sketch_store.succinct.static_function import MAX_WIDTH, StaticFunction, expected_bytes, width_for

STATIC: Final = "static"


@dataclass(frozen=True)
class StaticScalar(SealedFeature):
    """One feature; ``divisor`` is the product of the sizes of the lower digits."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_rows: int
    divisor: int

    structure = STATIC

    @property
    def num_facts(self) -> int:
        """The number of rows."""
        return self.num_rows

    def prepare(self, rows: RowReader) -> None:
        """See `SealedFeature.prepare`."""
        begin_feature(rows, self.codec, self.vocabulary)
        if self.num_rows:
            rows.from_number(self.divisor)
        else:
            rows.from_states()


@dataclass(frozen=True)
class StaticScalars(Structure):
    """The scalars and the shapes of rows in one static function.

    Parameters
    ----------
    features : by name.
    function : maps the hashes of entities under ``salt`` to numbers.
    salt : two unsigned 64-bit integers.
    num_shapes : size of the lowest digit.
    num_entities : number of rows.
    """

    features: Mapping[str, StaticScalar]
    function: StaticFunction
    salt: tuple[int, int]
    num_shapes: int
    num_entities: int

    kind = STATIC
    holds_rows = True

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
            by_name[codec.feature] = StaticScalar(codec, vocabulary, len(numbers), divisor)
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
        """See `Structure.to_snapshot`."""
        arrays: dict[str, NDArray[np.generic]] = {
            f"function.{WORDS}": self.function.words,
            "left.hashes": self.function.left_hashes,
            "left.numbers": self.function.left_numbers,
        }
        entries = []
        for number, feature in enumerate(self.features.values()):
            codec = feature.codec
            report = {"codec": codec.name}
            entries.append({"name": codec.feature, "value_field": codec.value_field, "report": report})
            arrays |= prefixed(f"{number}.vocabulary", feature.vocabulary.to_packed())
        description = {
            "salt": describe_salt(self.salt),
            "width": self.function.width,
            "num_shapes": self.num_shapes,
            "features": entries,
            "report": {"num_entities": self.num_entities},
        }
        return description, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> Self:
        """See `Structure.from_snapshot`."""
        num_shapes = checked(description["num_shapes"], int)
        num_entities = checked(report_of(description)["num_entities"], int)
        if num_shapes < 1 or num_entities < 0:
            raise ValueError(f"{num_entities} rows of {num_shapes} shapes are not possible")
        divisor, features = num_shapes, {}
        for number, entry in enumerate(description["features"]):
            name, kind = checked(entry["name"], str), checked(report_of(entry)["codec"], str)
            codec = FeatureCodec(name, entry["value_field"], kind)
            if codec.is_collection or codec.is_exact or codec.is_list or name in features:
                raise ValueError(f"{name!r} is there twice, or is not a scalar with ids")
            vocabulary = parts.vocabulary(f"{number}.vocabulary", codec)
            features[name] = StaticScalar(codec, vocabulary, num_entities, divisor)
            divisor *= max(1, len(vocabulary))
        words, check = parts.words("function")
        left = parts.array("left.hashes", np.uint64), parts.array("left.numbers", np.int64)
        function = StaticFunction(words, checked(description["width"], int), divisor, *left, check)
        return cls(features, function, salt_from(description["salt"]), num_shapes, num_entities)


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
