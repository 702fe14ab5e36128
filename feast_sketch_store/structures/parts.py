"""The parts of a sealed layer in a snapshot: a description in JSON, in which any value may be an array.

A file has the arrays apart, each named by its path in the description, as ``presence.index.twins``. `split`
does so. `Parts` is a part of a description that was read, with the arrays in it. Values and arrays from a
file are used only after they were checked here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

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

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
Checks: TypeAlias = Mapping[str, BlockChecks]
# JSON-serializable but for arrays. Lists have arrays only inside objects.
Described: TypeAlias = dict[str, Any]
Snapshot: TypeAlias = tuple[dict[str, Any], dict[str, NDArray[np.generic]]]  # of `split`

# The key of a uint64 array that may grow with the rows. Opening a snapshot does not check it as a whole;
# blocks of it are checked before they are used.
WORDS = "words"

_SALT_HALF = re.compile(r"[0-9a-f]{16}")

_T = TypeVar("_T")


def is_checked_where_read(array: str) -> bool:
    """Whether an array may be large, so that its blocks are checked only before their use."""
    return array.rpartition(".")[2] == WORDS


def split(described: Described) -> Snapshot:
    """A description without arrays, and the arrays by their paths.

    Objects with nothing else are left out, and so are empty arrays that are checked where they are read.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    return _without_arrays(described, "", arrays), arrays


def _without_arrays(
    described: Described, prefix: str, arrays: dict[str, NDArray[np.generic]]
) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in described.items():
        path = f"{prefix}{key}"
        if isinstance(value, np.ndarray):
            if value.size or key != WORDS:
                arrays[path] = value
        elif isinstance(value, dict):
            if own := _without_arrays(value, f"{path}.", arrays):
                plain[key] = own
        elif isinstance(value, list):
            plain[key] = [
                _without_arrays(entry, f"{path}.{number}.", arrays) if isinstance(entry, dict) else entry
                for number, entry in enumerate(value)
            ]
        else:
            plain[key] = value
    return plain


@dataclass(frozen=True)
class Parts:
    """A part of a description, and all arrays of the file, with the checks of those that are checked where
    they are read.

    Methods raise KeyError if there is no such part, and ValueError or TypeError if it does not fit.
    """

    described: Mapping[str, Any]
    arrays: Arrays
    checks: Checks
    path: str = ""  # where the part is; empty, or it ends with a dot

    def has(self, key: str) -> bool:
        """Whether there is a value that is not an array."""
        return key in self.described

    def get(self, key: str, kind: type[_T]) -> _T:
        """A value of exactly this type."""
        return checked(self.described[key], kind)

    def at(self, key: str) -> "Parts":
        """The part of a key, which may have only arrays."""
        return self._part(key, self.described.get(key, {}))

    def each(self, key: str) -> "list[Parts]":
        """The parts in a list."""
        entries = self.get(key, list)
        return [self._part(f"{key}.{number}", entry) for number, entry in enumerate(entries)]

    def _part(self, key: str, described: Any) -> "Parts":
        return Parts(checked(described, dict), self.arrays, self.checks, f"{self.path}{key}.")

    def codec(self, *arguments: Any, **options: Any) -> FeatureCodec:
        """The codec that `describe_codec` described, with further arguments."""
        return FeatureCodec(self.get("name", str), self.described["value_field"], *arguments, **options)

    def array(self, key: str, kind: DTypeLike, num_axes: int = 1) -> NDArray[Any]:
        """An array of a type, with this many axes."""
        array = self.arrays[self.path + key]
        if array.dtype != kind or array.ndim != num_axes:
            raise TypeError(f"array {self.path + key!r} has type {array.dtype} and shape {array.shape}")
        return array

    def words(self) -> tuple[NDArray[np.uint64], BlockChecks | None]:
        """The `WORDS` of this part, and their check; none if they were left out."""
        path = self.path + WORDS
        words = self.array(WORDS, np.uint64) if path in self.arrays else np.zeros(0, np.uint64)
        return words, self.checks.get(path)

    def salt(self) -> tuple[int, int]:
        """The salt that `describe_salt` described."""
        first, second = self.described["salt"]
        if not _SALT_HALF.fullmatch(first) or not _SALT_HALF.fullmatch(second):
            raise ValueError("the salt is not two 64-bit numbers")
        return int(first, 16), int(second, 16)

    def filter(self) -> ShiftingBloomFilter:
        """The filter that `describe_filter` described."""
        words, check = self.at("table").words()
        num_words = self.get("num_words", int)
        if not 1 <= len(words) - num_words <= num_words <= MAX_NUM_WORDS:
            raise ValueError("the table's length is not that of its words and window")
        return ShiftingBloomFilter(words, num_words, self.salt(), check)

    def packed(self, min_width: int = 0) -> PackedInts:
        """The packed integers that `describe_packed` described, at least so many bits wide."""
        words, check = self.words()
        width, base, length = (self.get(key, int) for key in ("width", "base", "length"))
        if width < min_width:
            raise ValueError(f"{self.path!r} has numbers of {width} bits, at least {min_width} are expected")
        return PackedInts(words, width, base, length, check)

    def ascending(self, by_value: bool) -> EliasFano:
        """The ascending integers that `describe_ascending` described."""
        keys = "length", "num_buckets", "low_width", "sample_width"
        length, num_buckets, low_width, sample_width = (self.get(key, int) for key in keys)
        num_sampled = num_buckets if by_value else length
        highs, check = self.at("highs").words()
        words, lows_check = self.at("lows").words()
        lows = PackedInts(words, low_width, 0, length, lows_check)
        words, samples_check = self.at("samples").words()
        samples = PackedInts(words, sample_width, 0, -(-num_sampled // SAMPLED), samples_check)
        return EliasFano(highs, lows, samples, num_buckets, by_value, check)

    def codes(self) -> tuple[NDArray[np.uint64], int, EliasFano, BlockChecks | None]:
        """The fields of `CodedRows` that `describe_codes` described."""
        num_bits = self.get("num_bits", int)
        words, check = self.at("codes").words()
        if not num_bits and not len(words):
            words = np.zeros(words_of_bits(0), np.uint64)
        return words, num_bits, self.at("starts").ascending(by_value=False), check

    def vocabulary(self, codec: FeatureCodec) -> Vocabulary:
        """The ``vocabulary`` of the codec's storage type, packed or as plain arrays."""
        own = self.at("vocabulary")
        if f"{own.path}shape" in self.arrays:
            packed = {n: self.arrays[own.path + n] for n in PACKED_PARTS if own.path + n in self.arrays}
            vocabulary = Vocabulary.from_packed(packed, codec.storage_type)
        elif pa.types.is_int64(codec.storage_type):
            vocabulary = Vocabulary.from_arrays({"values": own.array("values", np.int64)})
        else:
            offsets, data = own.array("offsets", np.int64), own.array("data", np.uint8)
            vocabulary = Vocabulary.from_arrays({"offsets": offsets, "data": data})
        codec.check_storage(vocabulary.values)
        return vocabulary


def describe_codec(codec: FeatureCodec) -> Described:
    """The name of a feature, and the field that carries its values."""
    return {"name": codec.feature, "value_field": codec.value_field}


def describe_filter(bloom: ShiftingBloomFilter) -> Described:
    """The description of a filter."""
    return {
        "num_words": bloom.num_words,
        "salt": describe_salt(bloom.salt),
        "table": {WORDS: bloom.words},
    }


def describe_packed(numbers: PackedInts) -> Described:
    """The description of packed integers."""
    return {"width": numbers.width, "base": numbers.base, "length": numbers.length, WORDS: numbers.words}


def describe_ascending(numbers: EliasFano) -> Described:
    """The description of ascending integers."""
    return {
        "length": len(numbers),
        "num_buckets": numbers.num_buckets,
        "low_width": numbers.lows.width,
        "sample_width": numbers.samples.width,
        "highs": {WORDS: numbers.highs},
        "lows": {WORDS: numbers.lows.words},
        "samples": {WORDS: numbers.samples.words},
    }


def describe_codes(codes: CodedRows) -> Described:
    """The description of codes of rows; no words for no bits."""
    words = codes.words if codes.num_bits else codes.words[:0]
    return {
        "num_bits": codes.num_bits,
        "codes": {WORDS: words},
        "starts": describe_ascending(codes.starts),
    }


def describe_salt(salt: tuple[int, int]) -> list[str]:
    """A salt in hexadecimal, because JSON has no 64-bit integers."""
    return [f"{half:016x}" for half in salt]


def checked(value: Any, kind: type[_T]) -> _T:
    """The value, if it is of exactly this type: JSON's ``true`` and 7.0 are not counts."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
