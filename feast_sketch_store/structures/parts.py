"""The parts of a sealed layer in a snapshot: a description in JSON, and named arrays.

A part describes itself by both, with names of its own; its holder puts a prefix before the names.
Descriptions and arrays from a file are used only after they were checked here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from feast_sketch_store.kernel import SAMPLED, words_of_bits
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.packed_values import PARTS as PACKED_PARTS
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.succinct import (
    MAX_NUM_WORDS,
    BlockChecks,
    CodedRows,
    EliasFano,
    PackedInts,
    ShiftingBloomFilter,
)

Arrays = Mapping[str, NDArray[np.generic]]
Checks = Mapping[str, BlockChecks]
Described = tuple[dict[str, Any], dict[str, NDArray[np.generic]]]

# The last part of the name of a uint64 array that may grow with the rows. Opening a snapshot does not check
# it as a whole; blocks of it are checked before they are used.
WORDS = "words"

_SALT_HALF = re.compile(r"[0-9a-f]{16}")

_T = TypeVar("_T")


def is_checked_where_read(array: str) -> bool:
    """Whether an array may be large, so that its blocks are checked only before their use."""
    return array.rpartition(".")[2] == WORDS


@dataclass(frozen=True)
class Parts:
    """The arrays of a snapshot with a common prefix, and the checks of those that are checked where read.

    Methods raise KeyError if there is no such array, and ValueError or TypeError if it does not fit.
    """

    arrays: Arrays
    checks: Checks
    prefix: str = ""

    def at(self, name: str) -> "Parts":
        """The arrays whose names continue with ``name`` and a dot."""
        return Parts(self.arrays, self.checks, f"{self.prefix}{name}.")

    def array(self, name: str, kind: DTypeLike, num_axes: int = 1) -> NDArray[Any]:
        """An array of a type, with this many axes."""
        array = self.arrays[self.prefix + name]
        if array.dtype != kind or array.ndim != num_axes:
            raise TypeError(f"array {self.prefix + name!r} has type {array.dtype} and shape {array.shape}")
        return array

    def words(self, name: str) -> tuple[NDArray[np.uint64], BlockChecks | None]:
        """Words that are checked where they are read, and their check; see `WORDS`.

        A snapshot leaves out empty arrays.
        """
        name = f"{name}.{WORDS}"
        if self.prefix + name not in self.arrays:
            return np.zeros(0, np.uint64), None
        return self.array(name, np.uint64), self.checks.get(self.prefix + name)

    def filter(self, description: Mapping[str, Any]) -> ShiftingBloomFilter:
        """The filter that `describe_filter` described, with the words of ``table``."""
        words, check = self.words("table")
        num_words = checked(description["num_words"], int)
        if not 1 <= len(words) - num_words <= num_words <= MAX_NUM_WORDS:
            raise ValueError("the table's length is not that of its words and window")
        return ShiftingBloomFilter(words, num_words, salt_from(description["salt"]), check)

    def packed(self, name: str, description: Mapping[str, Any], min_width: int = 0) -> PackedInts:
        """Packed integers that `describe_packed` described."""
        words, check = self.words(name)
        width, base, length = (checked(description[key], int) for key in ("width", "base", "length"))
        if width < min_width:
            raise ValueError(
                f"{self.prefix + name!r} has numbers of {width} bits, at least {min_width} are expected"
            )
        return PackedInts(words, width, base, length, check)

    def ascending(self, name: str, description: Mapping[str, Any], by_value: bool) -> EliasFano:
        """Ascending integers that `describe_ascending` described."""
        keys = "length", "num_buckets", "low_width", "sample_width"
        length, num_buckets, low_width, sample_width = (checked(description[key], int) for key in keys)
        num_sampled = num_buckets if by_value else length
        highs, check = self.words(f"{name}.highs")
        words, lows_check = self.words(f"{name}.lows")
        lows = PackedInts(words, low_width, 0, length, lows_check)
        words, samples_check = self.words(f"{name}.samples")
        samples = PackedInts(words, sample_width, 0, -(-num_sampled // SAMPLED), samples_check)
        return EliasFano(highs, lows, samples, num_buckets, by_value, check)

    def codes(
        self, description: Mapping[str, Any]
    ) -> tuple[NDArray[np.uint64], int, EliasFano, BlockChecks | None]:
        """The fields of `CodedRows` that `describe_codes` described."""
        num_bits = checked(description["num_bits"], int)
        words, check = self.words("codes")
        if not num_bits and not len(words):
            words = np.zeros(words_of_bits(0), np.uint64)
        return words, num_bits, self.ascending("starts", description["starts"], by_value=False), check

    def vocabulary(self, name: str, codec: FeatureCodec) -> Vocabulary:
        """A vocabulary of the codec's storage type, packed or as plain arrays."""
        own, prefix = self.at(name), f"{self.prefix}{name}."
        if f"{prefix}shape" in self.arrays:
            packed = {n: self.arrays[prefix + n] for n in PACKED_PARTS if prefix + n in self.arrays}
            vocabulary = Vocabulary.from_packed(packed, codec.storage_type)
        elif pa.types.is_int64(codec.storage_type):
            vocabulary = Vocabulary.from_arrays({"values": own.array("values", np.int64)})
        else:
            offsets, data = own.array("offsets", np.int64), own.array("data", np.uint8)
            vocabulary = Vocabulary.from_arrays({"offsets": offsets, "data": data})
        codec.check_storage(vocabulary.values)
        return vocabulary


def describe_filter(bloom: ShiftingBloomFilter) -> dict[str, Any]:
    """The description of a filter in a snapshot, without its words."""
    return {"num_words": bloom.num_words, "salt": describe_salt(bloom.salt)}


def describe_codes(codes: CodedRows) -> dict[str, Any]:
    """The description of codes of rows in a snapshot, without their words."""
    return {"num_bits": codes.num_bits, "starts": describe_ascending(codes.starts)}


def arrays_of_codes(codes: CodedRows) -> dict[str, NDArray[np.generic]]:
    """The words of codes of rows; none for no bits."""
    words = codes.words if codes.num_bits else codes.words[:0]
    return {f"codes.{WORDS}": words, **arrays_of_ascending("starts", codes.starts)}


def report_of(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of an entry that is for writers and reports; readers in other languages ignore it."""
    return checked(entry["report"], dict)


def describe_packed(numbers: PackedInts) -> dict[str, int]:
    """The description of packed integers in a snapshot, without their words."""
    return {"width": numbers.width, "base": numbers.base, "length": numbers.length}


def describe_ascending(numbers: EliasFano) -> dict[str, int]:
    """The description of ascending integers in a snapshot, without their words."""
    return {
        "length": len(numbers),
        "num_buckets": numbers.num_buckets,
        "low_width": numbers.lows.width,
        "sample_width": numbers.samples.width,
    }


def arrays_of_ascending(name: str, numbers: EliasFano) -> dict[str, NDArray[np.generic]]:
    """The words of ascending integers, under names that begin with ``name``."""
    parts = {"highs": numbers.highs, "lows": numbers.lows.words, "samples": numbers.samples.words}
    return {f"{name}.{part}.{WORDS}": words for part, words in parts.items()}


def describe_salt(salt: tuple[int, int]) -> list[str]:
    """A salt in a snapshot's description: hexadecimal, because JSON has no 64-bit integers."""
    return [f"{half:016x}" for half in salt]


def salt_from(halves: Any) -> tuple[int, int]:
    """The salt that `describe_salt` described. Raises ValueError, TypeError: it is not a salt."""
    first, second = halves
    if not _SALT_HALF.fullmatch(first) or not _SALT_HALF.fullmatch(second):
        raise ValueError("the salt is not two 64-bit numbers")
    return int(first, 16), int(second, 16)


def prefixed(prefix: str, arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """Arrays under longer names: the prefix, a dot, and the old name."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def checked(value: Any, kind: type[_T]) -> _T:
    """The value, if it is of exactly this type: JSON's ``true`` and 7.0 are not counts."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
