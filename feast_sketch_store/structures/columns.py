"""Columns: features of sealed rows that are kept value by value, in as few bits as their values take.

A column is read by row number, without its other rows. Its elements stand one behind the other, in
whichever of three forms is the smallest:

    dictionary   the distinct values once, and the number of one per element
    numbers      the elements themselves, less the smallest one
    bytes        the elements themselves, and where each begins
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import MISSING, VALUE, Decoder, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import FeatureAnswer
from feast_sketch_store.structures.costs import packed_bytes
from feast_sketch_store.succinct import Check, PackedInts

Arrays = Mapping[str, NDArray[np.generic]]
Checks = Mapping[str, Check]

_T = TypeVar("_T")

# Values of a dictionary that each reading process keeps ready to be put into answers.
_MAX_DECODED = 1 << 16

# Rows that are read together where all are, which bounds the memory that it takes.
_ROWS_AT_A_TIME = 1 << 18

# Ends of names of arrays that are not checked as a whole when a snapshot is opened.
PACKED = "words"


@dataclass(frozen=True)
class DictionaryElements:
    """Elements as ids of a vocabulary."""

    vocabulary: Vocabulary
    ids: PackedInts

    def __len__(self) -> int:
        return self.ids.length

    @property
    def size_bytes(self) -> int:
        """Bytes of the ids and the vocabulary."""
        return self.ids.size_bytes + self.vocabulary.size_bytes

    def take(self, places: NDArray[np.int64]) -> tuple[Vocabulary, NDArray[np.int64]]:
        """The elements at some places: a vocabulary, and ids of it."""
        ids = self.ids.take(places)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.vocabulary):
            raise ValueError(f"an id lies outside a vocabulary of {len(self.vocabulary)} values")
        return self.vocabulary, ids

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """A description and arrays."""
        ids = {f"ids.{PACKED}": self.ids.words}
        values = {f"vocabulary.{name}": array for name, array in self.vocabulary.to_arrays().items()}
        return {"form": "dictionary", "ids": describe(self.ids)}, {**ids, **values}


@dataclass(frozen=True)
class NumberElements:
    """Elements of the storage type int64."""

    numbers: PackedInts

    def __len__(self) -> int:
        return self.numbers.length

    @property
    def size_bytes(self) -> int:
        """Bytes of the numbers."""
        return self.numbers.size_bytes

    def take(self, places: NDArray[np.int64]) -> tuple[Vocabulary, NDArray[np.int64]]:
        """The elements at some places: a vocabulary, and ids of it."""
        return Vocabulary(pa.array(self.numbers.take(places))), np.arange(len(places))

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """A description and arrays."""
        return {"form": "numbers", "numbers": describe(self.numbers)}, {
            f"numbers.{PACKED}": self.numbers.words
        }


@dataclass(frozen=True)
class BytesElements:
    """Elements of the storage type large_binary.

    Element ``i`` is bytes ``[offsets[i], offsets[i + 1])`` of ``words``; ``check`` as in `PackedInts`.
    """

    offsets: PackedInts
    words: NDArray[np.uint64]
    check: Check | None = None

    def __len__(self) -> int:
        return self.offsets.length - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements and their offsets."""
        return self.offsets.size_bytes + int(self.words.nbytes)

    def take(self, places: NDArray[np.int64]) -> tuple[Vocabulary, NDArray[np.int64]]:
        """The elements at some places: a vocabulary, and ids of it."""
        starts, ends = self.offsets.take(places), self.offsets.take(places + 1)
        if len(places) and not 0 <= starts.min() <= ends.max() <= self.words.nbytes:
            raise ValueError("an element lies outside its bytes")
        if (ends < starts).any():
            raise ValueError("an element ends before it begins")
        if self.check is not None:
            first = starts >> 3
            self.check(first, np.maximum(((ends + 7) >> 3) - first, 1).clip(max=len(self.words) - first))
        content = self.words.view(np.uint8)
        values = [content[a:b].tobytes() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        return Vocabulary(pa.array(values, pa.large_binary())), np.arange(len(places))

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """A description and arrays."""
        return {"form": "bytes", "offsets": describe(self.offsets)}, {
            f"offsets.{PACKED}": self.offsets.words,
            f"content.{PACKED}": self.words,
        }


Elements = DictionaryElements | NumberElements | BytesElements


def smallest(vocabulary: Vocabulary, symbols: NDArray[np.integer]) -> Elements:
    """The smallest form of elements that are given as ids of a vocabulary: int[n]."""
    # A bit at least, so that the file is as long as what it claims to hold.
    dictionary = DictionaryElements(vocabulary, PackedInts.pack(symbols, min_width=1))
    if pa.types.is_int64(vocabulary.values.type):
        plain: Elements = NumberElements(PackedInts.pack(vocabulary.values.to_numpy()[symbols], min_width=1))
    else:
        lengths = np.diff(_offsets_of(vocabulary.values))[symbols]
        offsets = PackedInts.pack(np.concatenate(([0], np.cumsum(lengths))), min_width=1)
        if offsets.size_bytes + lengths.sum() >= dictionary.size_bytes:
            return dictionary
        content = _bytes_of(vocabulary.values.take(pa.array(symbols)))
        words = np.zeros(-(-len(content) // 8), np.uint64)
        words.view(np.uint8)[: len(content)] = content
        plain = BytesElements(offsets, words)
    return min(plain, dictionary, key=lambda form: form.size_bytes)


def scalar_bytes(
    codec: FeatureCodec, states: NDArray[np.uint8], vocabulary: Vocabulary, counts: NDArray[np.int64]
) -> int:
    """Bytes that the column of a scalar will take.

    Parameters
    ----------
    states : of n rows.
    vocabulary, counts : the values of the rows, and how many rows have each: int64[V].
    """
    num_rows, size = len(states), packed_bytes(len(states), states_width(states))
    num_values, is_binary = len(vocabulary), codec.storage_type == pa.large_binary()
    if num_rows > counts.sum() and (is_binary or not num_values):  # as in `Column.build`
        vocabulary, _ = Vocabulary.union([vocabulary, _filler(codec)])
    numbered = packed_bytes(num_rows, max(1, (len(vocabulary) - 1).bit_length())) + vocabulary.size_bytes
    if not is_binary:
        values = vocabulary.values.to_numpy()
        span = int(values.max()) - int(values.min()) if len(values) else 0
        return size + min(numbered, packed_bytes(num_rows, max(1, span.bit_length())))
    num_bytes = int(np.diff(_offsets_of(vocabulary.values))[: len(counts)] @ counts)
    offsets = packed_bytes(num_rows + 1, max(1, num_bytes.bit_length()))
    return size + min(numbered, offsets + 8 * -(-num_bytes // 8))


def states_width(states: NDArray[np.uint8]) -> int:
    """Bits that a state takes in a column."""
    return int(states.max() - states.min()).bit_length() if len(states) else 0


def _filler(codec: FeatureCodec) -> Vocabulary:
    """What stands in a column where a row has no value."""
    return Vocabulary(pa.array([b"" if codec.storage_type == pa.large_binary() else 0], codec.storage_type))


@dataclass(frozen=True)
class Column:
    """One feature of n rows.

    ``states`` are n of codecs.MISSING, NULL, EMPTY, VALUE. Row ``i`` of a collection has the elements
    ``bounds[i]`` to ``bounds[i + 1]``; of a scalar there are no bounds, and an element for each row.
    """

    codec: FeatureCodec
    states: PackedInts
    bounds: PackedInts | None
    elements: Elements

    @classmethod
    def build(
        cls,
        codec: FeatureCodec,
        states: NDArray[np.uint8],
        indptr: NDArray[np.int64],
        vocabulary: Vocabulary,
        symbols: NDArray[np.integer],
    ) -> "Column":
        """A column of rows that are given as states and a CSR matrix of symbols."""
        if codec.is_collection:
            bounds = PackedInts.pack(indptr)
        else:
            bounds = None
            has_value = states == VALUE
            filler = 0  # of rows without a value: a number costs the same whichever it is
            if not has_value.all() and (not len(vocabulary) or codec.storage_type == pa.large_binary()):
                vocabulary, (_, (filler,)) = Vocabulary.union([vocabulary, _filler(codec)])
            dense = np.full(len(states), filler)
            dense[has_value] = symbols
            symbols = dense
        return cls(codec, PackedInts.pack(states), bounds, smallest(vocabulary, symbols))

    def __len__(self) -> int:
        return self.states.length

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        bounds = self.bounds.size_bytes if self.bounds else 0
        return self.states.size_bytes + bounds + self.elements.size_bytes

    def read(self, rows: NDArray[np.int64]) -> FeatureAnswer:
        """The values of some rows.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        states = self.states.take(rows).astype(np.uint8)
        if states.max(initial=MISSING) > VALUE:
            raise ValueError(f"feature {self.codec.feature!r} has a state that cannot be")
        indptr = np.zeros(len(rows) + 1, np.int64)
        if self.bounds is None:
            has_value = states == VALUE
            np.cumsum(has_value, out=indptr[1:])
            places = rows[has_value]
        else:
            starts, ends = self.bounds.take(rows), self.bounds.take(rows + 1)
            if ((starts < 0) | (ends < starts) | (ends > len(self.elements))).any():
                raise ValueError(f"feature {self.codec.feature!r} has a row that lies outside its elements")
            np.cumsum(ends - starts, out=indptr[1:])
            places = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], ends - starts)
        vocabulary, symbols = self.elements.take(places)
        decoder = self._decoder
        if decoder is None:
            if len(vocabulary) > len(symbols):
                vocabulary = Vocabulary(vocabulary.values.take(pa.array(symbols)))
                symbols = np.arange(len(symbols))
            self.codec.check_storage(vocabulary.values)
            decoder = Decoder(self.codec, vocabulary)
        return FeatureAnswer(decoder, states, indptr, symbols)

    def distinct(self) -> Vocabulary:
        """The different values of all rows.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        parts = [Vocabulary(pa.array([], self.codec.storage_type))]
        for first in range(0, len(self), _ROWS_AT_A_TIME):
            answer = self.read(np.arange(first, min(first + _ROWS_AT_A_TIME, len(self))))
            values = answer.decoder.vocabulary.values
            parts.append(Vocabulary(values.take(pa.array(np.unique(answer.symbols)))))
        return Vocabulary.union(parts)[0]

    @cached_property
    def _decoder(self) -> Decoder | None:
        """What decodes all reads of a small dictionary; otherwise each read needs one of its own."""
        if isinstance(self.elements, DictionaryElements) and len(self.elements.vocabulary) <= _MAX_DECODED:
            return Decoder(self.codec, self.elements.vocabulary)
        return None

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """The column as a JSON-serializable description and named arrays."""
        elements, arrays = self.elements.to_snapshot()
        description = {
            "name": self.codec.feature,
            "value_field": self.codec.value_field,
            "codec": self.codec.name,
            "states": describe(self.states),
            "elements": elements,
        }
        arrays[f"states.{PACKED}"] = self.states.words
        if self.bounds is not None:
            description["bounds"] = describe(self.bounds)
            arrays[f"bounds.{PACKED}"] = self.bounds.words
        return description, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: "Parts") -> "Column":
        """The reverse of `to_snapshot`.

        Raises
        ------
        ValueError, KeyError, TypeError : the parts do not fit each other.
        """
        codec = FeatureCodec(
            checked(description["name"], str), description["value_field"], checked(description["codec"], str)
        )
        states = parts.packed("states", description["states"])
        elements = _elements_from(codec, description["elements"], parts)
        bounds = parts.packed("bounds", description["bounds"]) if codec.is_collection else None
        num_rows = bounds.length - 1 if bounds else len(elements)
        if states.length != num_rows:
            raise ValueError(f"the states of {codec.feature!r} are not as many as its rows")
        return cls(codec, states, bounds, elements)


@dataclass(frozen=True)
class Parts:
    """The arrays of a snapshot whose names begin alike, and the checks of the packed ones among them."""

    arrays: Arrays
    checks: Checks
    prefix: str

    def packed(self, name: str, description: Mapping[str, Any], min_width: int = 0) -> PackedInts:
        """Packed integers as `describe` described them."""
        name = f"{self.prefix}{name}.{PACKED}"
        width, base, length = (checked(description[key], int) for key in ("width", "base", "length"))
        if width < min_width:
            raise ValueError(f"{name!r} has numbers of {width} bits, at least {min_width} are expected")
        return PackedInts(self.arrays[name], width, base, length, self.checks.get(name))  # type: ignore[arg-type]

    def vocabulary(self, name: str, codec: FeatureCodec) -> Vocabulary:
        """A vocabulary of the codec's storage type."""
        prefix = f"{self.prefix}{name}."
        vocabulary = Vocabulary.from_arrays(
            {k.removeprefix(prefix): array for k, array in self.arrays.items() if k.startswith(prefix)}
        )
        if vocabulary.values.type != codec.storage_type:
            raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its type")
        codec.check_storage(vocabulary.values)
        return vocabulary


def describe(numbers: PackedInts) -> dict[str, int]:
    """What a snapshot tells of packed integers beside their words."""
    return {"width": numbers.width, "base": numbers.base, "length": numbers.length}


def checked(value: Any, kind: type[_T]) -> _T:
    """The value if it is of the type itself: to JSON, ``true`` and 7.0 are no counts."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} stands where {kind.__name__} is expected")
    return value


def _elements_from(codec: FeatureCodec, description: Mapping[str, Any], parts: Parts) -> Elements:
    form = description["form"]
    if form == "dictionary":
        vocabulary = parts.vocabulary("vocabulary", codec)
        return DictionaryElements(vocabulary, parts.packed("ids", description["ids"], min_width=1))
    if form == "numbers" and pa.types.is_int64(codec.storage_type):
        return NumberElements(parts.packed("numbers", description["numbers"], min_width=1))
    if form == "bytes" and not pa.types.is_int64(codec.storage_type):
        offsets = parts.packed("offsets", description["offsets"], min_width=1)
        name = f"{parts.prefix}content.{PACKED}"
        words: Any = parts.arrays[name]
        if words.ndim != 1 or not offsets.length:
            raise ValueError(f"the bytes of {codec.feature!r} do not fit their offsets")
        return BytesElements(offsets, words, parts.checks.get(name))
    raise ValueError(f"elements of {codec.feature!r} cannot have the form {form!r}")


def _offsets_of(values: pa.Array) -> NDArray[np.int64]:
    return np.asarray(Vocabulary(values).to_arrays()["offsets"], np.int64)


def _bytes_of(values: pa.Array) -> NDArray[np.uint8]:
    return np.asarray(Vocabulary(values).to_arrays()["data"], np.uint8)
