"""Columns: features of sealed rows, kept value by value in as few bits as the values take.

A column is read by row number, independently of other rows. It has states and elements. Elements are the
values of the rows, one after the other, in the smallest of three forms:

dictionary   the distinct values once, and an id per element
numbers      the elements themselves, minus the smallest one
bytes        the elements themselves, and where each begins

Of backed features another store has the values. The layer keeps the state of every row and feature, so
nothing but their names is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import AS_BYTES, AS_IDS, AS_NUMBERS, RowReader
from feast_sketch_store.kernel.binary import parts_of
from feast_sketch_store.rows.codecs import BACKING, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer, SeparateFeature, SeparateFeatures, begin_feature
from feast_sketch_store.structures.costs import packed_bytes
from feast_sketch_store.structures.feature_rows import FeatureRows, in_order
from feast_sketch_store.structures.parts import WORDS, Described, Parts, describe_codec, describe_packed
from feast_sketch_store.succinct import BlockChecks, PackedInts
from feast_sketch_store.succinct.packed import NO_NUMBERS, unfinished

COLUMN = "column"


# The forms of elements: how packed integers of each are called in a snapshot, and read by the kernel.
_DICTIONARY, _NUMBERS, _BYTES = "dictionary", "numbers", "bytes"
_PACKED: Final = {
    _DICTIONARY: ("ids", AS_IDS),
    _NUMBERS: ("numbers", AS_NUMBERS),
    _BYTES: ("offsets", AS_BYTES),
}


@dataclass(frozen=True)
class Elements:
    """The elements of a column, in one form."""

    form: str  # one of the three of this module
    # ids of the vocabulary; or the elements themselves, of the storage type int64; or offsets
    packed: PackedInts
    vocabulary: Vocabulary | None = None  # of a dictionary
    # words, check: of bytes, of the storage type large_binary: element ``i`` is those from offset ``i`` up to
    # offset ``i + 1``; ``check`` as in `PackedInts`
    words: NDArray[np.uint64] | None = None
    check: BlockChecks | None = None

    def __len__(self) -> int:
        return self.packed.length - (self.form == _BYTES)

    @classmethod
    def smallest(cls, vocabulary: Vocabulary, symbols: NDArray[np.integer], min_width: int) -> "Elements":
        """The form that takes a reader the least memory.

        Parameters
        ----------
        vocabulary, symbols : the elements as ids of a vocabulary, int[n].
        min_width : the least bits of a number. With 1, a file cannot claim more elements than it has bits;
            0 if the number of rows is stored elsewhere.
        """
        dictionary = cls(_DICTIONARY, PackedInts.pack(symbols, min_width=1), vocabulary)
        most_bytes = dictionary.packed.size_bytes + vocabulary.size_bytes  # a reader unpacks the vocabulary
        if pa.types.is_int64(vocabulary.values.type):
            numbers = vocabulary.values.to_numpy()[symbols]
            plain = cls(_NUMBERS, PackedInts.pack(numbers, min_width))
        else:
            lengths = np.diff(parts_of(vocabulary.values)[0])[symbols]
            offsets = PackedInts.pack(np.concatenate(([0], np.cumsum(lengths))), min_width=1)
            if offsets.size_bytes + lengths.sum() >= most_bytes:
                return dictionary
            _, content = parts_of(vocabulary.values.take(pa.array(symbols)))
            words = np.zeros(-(-len(content) // 8), np.uint64)
            words.view(np.uint8)[: len(content)] = content
            plain = cls(_BYTES, offsets, words=words)
        return plain if plain.size_bytes <= most_bytes else dictionary

    @property
    def kind(self) -> int:
        """The form, as the kernel names it."""
        return _PACKED[self.form][1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        vocabulary = 0 if self.vocabulary is None else self.vocabulary.packed_bytes
        return self.packed.size_bytes + vocabulary + (0 if self.words is None else int(self.words.nbytes))

    def to_snapshot(self) -> Described:
        """A description with arrays."""
        name, _ = _PACKED[self.form]
        described = {"form": self.form, name: describe_packed(self.packed)}
        if self.vocabulary is not None:
            described["vocabulary"] = self.vocabulary.to_packed()
        if self.words is not None:
            described["content"] = {WORDS: self.words}
        return described

    @classmethod
    def from_snapshot(cls, codec: FeatureCodec, parts: Parts, min_width: int) -> "Elements":
        """As `Structure.from_snapshot`, of a part; ``min_width`` as in `smallest`."""
        form, is_integer = parts.get("form", str), pa.types.is_int64(codec.storage_type)
        if form not in (_DICTIONARY, _NUMBERS if is_integer else _BYTES):
            raise ValueError(f"elements of {codec.feature!r} cannot have the form {form!r}")
        name, _ = _PACKED[form]
        packed = parts.at(name).packed(min_width if form == _NUMBERS else 1)
        if form == _DICTIONARY:
            return cls(form, packed, parts.vocabulary(codec))
        if form == _NUMBERS:
            return cls(form, packed)
        if not packed.length:
            raise ValueError(f"the bytes of {codec.feature!r} do not fit their offsets")
        words, check = parts.at("content").words()
        return cls(form, packed, None, words, check)


def scalar_bytes(
    codec: FeatureCodec, states: NDArray[np.uint8], vocabulary: Vocabulary, counts: NDArray[np.int64]
) -> int:
    """Bytes of the column of a scalar, given the states of rows, uint8[n], and the rows with each value."""
    num_rows, size = len(states), packed_bytes(len(states), _steps_of(states)[1])
    num_values, is_binary = len(vocabulary), codec.storage_type == pa.large_binary()
    if num_rows > counts.sum() and (is_binary or not num_values):  # as in `Column.of`
        vocabulary, _ = Vocabulary.union([vocabulary, _filler(codec)])
    ids = packed_bytes(num_rows, max(1, (len(vocabulary) - 1).bit_length()))
    if not is_binary:
        values = vocabulary.values.to_numpy()
        span = int(values.max()) - int(values.min()) if len(values) else 0
        plain = packed_bytes(num_rows, max(1, span.bit_length()))
        return size + (plain if plain <= ids + vocabulary.size_bytes else ids + vocabulary.packed_bytes)
    num_bytes = int(np.diff(parts_of(vocabulary.values)[0])[: len(counts)] @ counts)
    offsets = packed_bytes(num_rows + 1, max(1, num_bytes.bit_length()))
    plain = offsets + 8 * -(-num_bytes // 8)
    return size + (plain if plain <= ids + vocabulary.size_bytes else ids + vocabulary.packed_bytes)


def states_width(states: NDArray[np.uint8]) -> int:
    """Bits of a state in a column."""
    return int(states.max() - states.min()).bit_length() if len(states) else 0


def _steps_of(states: NDArray[np.uint8]) -> tuple[int, int]:
    """The distance between states in a column, and the bits of a number of such steps."""
    if not len(states):
        return 1, 0
    used = np.flatnonzero(np.bincount(states))
    step = max(1, int(np.gcd.reduce(used - used[0])))
    return step, int((used[-1] - used[0]) // step).bit_length()


def _filler(codec: FeatureCodec) -> Vocabulary:
    """The element for a row without a value."""
    return Vocabulary(pa.array([b"" if codec.storage_type == pa.large_binary() else 0], codec.storage_type))


@dataclass(frozen=True)
class Column(SeparateFeature):
    """One feature of n rows."""

    codec: FeatureCodec
    # n of codecs.MISSING, NULL, EMPTY, VALUE. The base of the packed numbers is a state, and each 1 above it
    # stands for ``state_step``
    states: PackedInts
    # of a collection; row ``i`` has the elements ``bounds[i]`` to ``bounds[i + 1]``. None for a scalar, which
    # has one element per row
    bounds: PackedInts | None
    elements: Elements  # of all rows
    state_step: int = 1  # the distance between states

    structure = COLUMN
    vocabulary = None

    @classmethod
    def build(cls, feature: FeatureRows, order: NDArray[np.int64] | None) -> Self:
        assert order is not None
        values = in_order([feature], order)
        return cls.of(feature.sealed_codec, feature.states[order], feature.vocabulary, values)

    @classmethod
    def of(cls, codec: FeatureCodec, states: NDArray[np.uint8], vocabulary: Vocabulary, rows: Csr) -> Self:
        """A column of rows, given by their states, uint8[n], and ids of a vocabulary."""
        symbols = rows.ids
        if codec.is_collection:
            bounds = PackedInts.pack(rows.indptr)
        else:
            bounds = None
            has_value = states == VALUE
            filler = 0  # for rows without a value; any number costs the same
            if not has_value.all() and (not len(vocabulary) or codec.storage_type == pa.large_binary()):
                vocabulary, (_, (filler,)) = Vocabulary.union([vocabulary, _filler(codec)])
            dense = np.full(len(states), filler)
            dense[has_value] = symbols
            symbols = dense
        step, first = _steps_of(states)[0], states.min(initial=VALUE)
        packed = PackedInts.pack((states - first) // step + first)
        return cls(codec, packed, bounds, Elements.smallest(vocabulary, symbols, min_width=1), step)

    def __len__(self) -> int:
        return self.states.length

    @property
    def num_facts(self) -> int:
        if self.bounds is not None:
            return len(self.elements)
        with_value, rest = divmod(VALUE - self.states.base, self.state_step)
        number = self.states.base + with_value  # of the state, as it is packed
        return 0 if rest else sum(int((part == number).sum()) for part in self.states.parts())

    @property
    def size_bytes(self) -> int:
        bounds = self.bounds.size_bytes if self.bounds else 0
        return self.states.size_bytes + bounds + self.elements.size_bytes

    def prepare(self, rows: RowReader) -> None:
        elements = self.elements
        is_text = elements.kind == AS_BYTES and self.codec.element_kind == "string"
        begin_feature(rows, self.codec, elements.vocabulary)
        bounds = NO_NUMBERS if self.bounds is None else self.bounds.arguments
        rows.from_column(
            *self.states.arguments, self.state_step, *bounds, *elements.packed.arguments, elements.kind,
            is_text, elements.words, unfinished(elements.check),
        )  # fmt: skip

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: values come back in their order."""
        written = rows.vocabulary.values.take(pa.array(rows.symbols))
        stored = answer.vocabulary.values.take(pa.array(answer.symbols))
        if not np.array_equal(rows.indptr, answer.indptr) or not written.equals(stored):
            yield f"has other values of feature {self.codec.feature!r} than the row log"

    def to_snapshot(self) -> Described:
        described = {
            **describe_codec(self.codec),
            "states": describe_packed(self.states),
            "state_step": self.state_step,
            "elements": self.elements.to_snapshot(),
            "report": {"codec": self.codec.name},
        }
        if self.bounds is not None:
            described["bounds"] = describe_packed(self.bounds)
        return described

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        codec, states = parts.codec(parts.at("report").get("codec", str)), parts.at("states").packed()
        elements = Elements.from_snapshot(codec, parts.at("elements"), min_width=1)
        bounds = parts.at("bounds").packed() if codec.is_collection else None
        num_rows = bounds.length - 1 if bounds else len(elements)
        state_step = parts.get("state_step", int)
        if states.length != num_rows or not 1 <= state_step <= VALUE:
            raise ValueError(f"the column of {codec.feature!r} has other numbers of states and of rows")
        return cls(codec, states, bounds, elements, state_step)


class Columns(SeparateFeatures):
    """The columns of a layer."""

    kind = "columns"
    lists_rows = True
    tells_states = True
    num_facts = 0  # the bytes of a column are not divided by facts
    feature_type = Column


@dataclass(frozen=True)
class BackedFeature(SeparateFeature):
    """A feature of which only states are known. For a row with a value, its answer has no symbol."""

    codec: FeatureCodec

    structure = BACKING
    num_facts = 0
    size_bytes = 0

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        """No values."""
        return Vocabulary(pa.array([], self.codec.storage_type))

    def __len__(self) -> int:
        return 0

    @classmethod
    def build(cls, feature: FeatureRows, order: NDArray[np.int64] | None) -> Self:
        feature.release()
        return cls(feature.sealed_codec)

    def prepare(self, rows: RowReader) -> None:
        begin_feature(rows, self.codec, None)
        rows.from_states()

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: which rows have a value."""
        differ = int((rows.states != answer.states).sum())
        if differ:
            yield f"has wrong states of feature {self.codec.feature!r} in {differ} rows"

    def to_snapshot(self) -> Described:
        return describe_codec(self.codec)

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        return cls(parts.codec(BACKING))


class Backed(SeparateFeatures):
    """The backed features of a layer."""

    kind = "backed"
    codecs = (BACKING,)
    feature_type = BackedFeature
