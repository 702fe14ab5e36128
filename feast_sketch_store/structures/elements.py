"""Elements: the values of a column's rows, one after the other, in the smallest of three forms.

dictionary   the distinct values once, and an id per element
numbers      the elements themselves, minus the smallest one
bytes        the elements themselves, and where each begins
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel.binary import parts_of
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.parts import WORDS, Described, Parts, describe_packed, prefixed
from feast_sketch_store.succinct import Check, PackedInts


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
        return self.ids.size_bytes + self.vocabulary.packed_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes in a process that reads them, including the whole vocabulary."""
        return self.ids.size_bytes + self.vocabulary.size_bytes

    def take(self, places: NDArray[np.int64]) -> tuple[Vocabulary, NDArray[np.int64]]:
        """The elements at some places: a vocabulary, and ids of it."""
        ids = self.ids.take(places)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.vocabulary):
            raise ValueError(f"an id lies outside a vocabulary of {len(self.vocabulary)} values")
        return self.vocabulary, ids

    def to_snapshot(self) -> Described:
        """A description and arrays."""
        values = prefixed("vocabulary", self.vocabulary.to_packed())
        return {"form": "dictionary", "ids": describe_packed(self.ids)}, {
            f"ids.{WORDS}": self.ids.words,
            **values,
        }


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

    def to_snapshot(self) -> Described:
        """A description and arrays."""
        return {"form": "numbers", "numbers": describe_packed(self.numbers)}, {
            f"numbers.{WORDS}": self.numbers.words
        }


@dataclass(frozen=True)
class BytesElements:
    """Elements of the storage type large_binary.

    Element ``i`` is the bytes from ``offsets[i]`` up to ``offsets[i + 1]`` of ``words``; ``check`` as in
    `PackedInts`.
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

    def to_snapshot(self) -> Described:
        """A description and arrays."""
        return {"form": "bytes", "offsets": describe_packed(self.offsets)}, {
            f"offsets.{WORDS}": self.offsets.words,
            f"content.{WORDS}": self.words,
        }


Elements = DictionaryElements | NumberElements | BytesElements


def smallest(vocabulary: Vocabulary, symbols: NDArray[np.integer], min_width: int = 1) -> Elements:
    """The form of elements that takes a reader the least memory.

    Parameters
    ----------
    vocabulary, symbols : the elements as ids of a vocabulary, int[n].
    min_width : the least bits of a number. With 1, a file cannot claim more elements than it has bits.
    """
    dictionary = DictionaryElements(vocabulary, PackedInts.pack(symbols, min_width=1))
    if pa.types.is_int64(vocabulary.values.type):
        numbers = vocabulary.values.to_numpy()[symbols]
        plain: Elements = NumberElements(PackedInts.pack(numbers, min_width))
    else:
        lengths = np.diff(offsets_of(vocabulary.values))[symbols]
        offsets = PackedInts.pack(np.concatenate(([0], np.cumsum(lengths))), min_width=1)
        if offsets.size_bytes + lengths.sum() >= dictionary.memory_bytes:
            return dictionary
        content = _bytes_of(vocabulary.values.take(pa.array(symbols)))
        words = np.zeros(-(-len(content) // 8), np.uint64)
        words.view(np.uint8)[: len(content)] = content
        plain = BytesElements(offsets, words)
    return plain if plain.size_bytes <= dictionary.memory_bytes else dictionary


def elements_from(
    codec: FeatureCodec, description: Mapping[str, Any], parts: Parts, min_width: int = 1
) -> Elements:
    """Elements from their description and arrays; ``min_width`` as in `smallest`.

    Raises
    ------
    ValueError, KeyError, TypeError : the parts do not fit each other.
    """
    form = description["form"]
    if form == "dictionary":
        vocabulary = parts.vocabulary("vocabulary", codec)
        return DictionaryElements(vocabulary, parts.packed("ids", description["ids"], min_width=1))
    if form == "numbers" and pa.types.is_int64(codec.storage_type):
        return NumberElements(parts.packed("numbers", description["numbers"], min_width))
    if form == "bytes" and not pa.types.is_int64(codec.storage_type):
        offsets = parts.packed("offsets", description["offsets"], min_width=1)
        words, check = parts.words("content")
        if not offsets.length:
            raise ValueError(f"the bytes of {codec.feature!r} do not fit their offsets")
        return BytesElements(offsets, words, check)
    raise ValueError(f"elements of {codec.feature!r} cannot have the form {form!r}")


def offsets_of(values: pa.Array) -> NDArray[np.int64]:
    """Where each of some large binary values begins: int64[n + 1]."""
    return parts_of(values)[0]


def _bytes_of(values: pa.Array) -> NDArray[np.uint8]:
    return parts_of(values)[1]
