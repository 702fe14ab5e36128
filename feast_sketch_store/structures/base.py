"""The interface of structures; the package's docstring says how the pieces fit together."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.codecs import EMPTY, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.listing import Attribute
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.goals import Goal, Offer
from feast_sketch_store.structures.parts import Described, Parts
from feast_sketch_store.structures.sizing import FactClass

Answer: TypeAlias = EncodedFeature  # of the entities of a read that have rows


def begin_unknown(rows: RowReader) -> None:
    """Add a feature that the rows do not have."""
    rows.feature(b"", False, 0, None, None, None)


def arrays_of(vocabulary: Vocabulary | None) -> Iterator[Any]:
    """Values, or offsets and data, as the kernel takes them; None for the others."""
    arrays = {} if vocabulary is None else vocabulary.to_arrays()
    return (arrays.get(name) for name in ("values", "offsets", "data"))


def begin_feature(rows: RowReader, codec: FeatureCodec, vocabulary: Vocabulary | None) -> None:
    """Begin a feature; its ids are those of the vocabulary, if there is one."""
    rows.feature(codec.tag, codec.is_collection, codec.element_wire_type, *arrays_of(vocabulary))


def attribute_vocabulary(codec: FeatureCodec, feature: str) -> Vocabulary:
    """The values of an attribute of a list's items.

    Raises ValueError: the list has no such attribute, or values of another type.
    """
    assert codec.listing is not None
    attribute, _ = codec.listing.digit_of(feature)
    try:
        values = codec.attribute_values(feature)
        return Vocabulary(FeatureCodec.of_attribute(attribute, codec.feature).to_storage(values))
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"the attribute {feature!r} has values of another type: {error}") from error


def prepare_attribute(rows: RowReader, codec: FeatureCodec, wanted: FeatureCodec | None) -> None:
    """Declare that the items of the last feature, a list, have attributes.

    Parameters
    ----------
    codec : of the list.
    wanted : of an attribute, whose values are read in place of the list's; or of the list, to read its items
        with stamps in place of times. None to read no attributes.
    """
    listing = codec.listing
    if listing is None or not listing.attributes:
        return
    step, vocabulary = 1, None
    if wanted is not None and wanted.attribute_of:
        _, step = listing.digit_of(wanted.feature)
        vocabulary = attribute_vocabulary(codec, wanted.feature)
    is_wanted = wanted is not None and not wanted.times_of
    rows.attribute(listing.code_bits, is_wanted, step, *arrays_of(vocabulary))


def weighted_sums(csr: Csr, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row, the sum of its ids' weights, float64[V], times the ids' own weights: float64[n]."""
    values = np.asarray(weights[csr.ids], np.float64)
    if csr.weights is not None:
        values = values * csr.weights
    sums, has_any = np.zeros(len(csr)), csr.lengths > 0
    if has_any.any():
        sums[has_any] = np.add.reduceat(values, csr.indptr[:-1][has_any])
    return sums


class SealedFeature(ABC):
    """One feature of sealed rows. Immutable; safe to read from any number of threads."""

    codec: FeatureCodec
    vocabulary: Vocabulary | None  # the values in the order of their ids; None if values have no ids

    @property
    @abstractmethod
    def structure(self) -> str:
        """The name that `inspect` shows: one that a tag may give, or that of a kind of column or list."""

    @property
    @abstractmethod
    def num_facts(self) -> int:
        """The number of values kept."""

    @property
    def false_positive_rate(self) -> float | None:
        """The mean expected rate of a value; None if reads show no false values."""
        return None

    @property
    def rounding_errors(self) -> tuple[float, float] | None:
        """The largest and the mean rounding error of the counts of values; None without rounding."""
        return None

    @property
    def num_values(self) -> int:
        """An upper limit of the number of distinct values."""
        return 0 if self.vocabulary is None else len(self.vocabulary)

    def missing_attribute(
        self, attribute: Attribute, rows: EncodedFeature, answer: Answer, shown: Answer
    ) -> Iterator[str]:
        """Errors of an attribute of sealed items; only lists have attributes."""
        raise NotImplementedError(f"{self.codec.feature!r} has no attributes")

    @abstractmethod
    def prepare(self, rows: RowReader) -> None:
        """Add the feature to rows in the form that the kernel reads."""

    def prepare_weights(self, rows: RowReader, codec: FeatureCodec) -> None:
        """Add what accompanies the values, their times, counts or an attribute, with its ``codec``; or the
        values with stamps, with the list's own codec.
        """
        raise NotImplementedError(f"{self.codec.feature!r} has neither times nor counts")

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """What reads would return for a feature of n rows if they were sealed under these hashes, uint64[n,
        2].

        By default exactly what the rows have.
        """
        return Answer(self.codec, rows.vocabulary, rows.states, rows.csr)

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """Errors of the answer about n sealed rows, in words about the layer.

        Parameters
        ----------
        rows : the feature as it was written, without values that a cut left out.
        entity_hashes : uint64[n, 2]
        answer : about these rows.
        """
        assert self.vocabulary is not None
        ids = self.vocabulary.find(rows.vocabulary.values)
        unknown = np.unique(rows.symbols[ids[rows.symbols] < 0])
        if len(unknown):
            yield f"lacks {len(unknown)} values of feature {self.codec.feature!r} in its vocabulary"
            return
        num_lost, num_false = self.differences(rows.csr.mapped(ids), entity_hashes, answer)
        if num_false:
            yield f"has values of feature {self.codec.feature!r} that were never written"
        if num_lost:
            yield f"has lost {num_lost} facts of feature {self.codec.feature!r}"

    def differences(self, written: Csr, entity_hashes: NDArray[np.uint64], answer: Answer) -> tuple[int, int]:
        """The number of written facts that an answer lacks, and of facts that it must not have.

        By default each row must have exactly its own values.
        """
        width = len(answer.vocabulary)
        ours, theirs = (csr.rows * width + csr.ids for csr in (written, answer.csr))
        num_lost = len(np.setdiff1d(ours, theirs))
        return num_lost, len(theirs) - (len(ours) - num_lost)

    def sampled_rate(self, entity_hashes: NDArray[np.uint64], rng: np.random.Generator) -> float:
        """The share of random values that entities without a row, uint64[n, 2], seem to have."""
        return 0.0

    def known(self, rows: EncodedFeature) -> Csr:
        """The values of rows that are in the vocabulary, by its ids."""
        assert self.vocabulary is not None
        return rows.csr.mapped(self.vocabulary.find(rows.vocabulary.values))

    def known_answer(self, rows: EncodedFeature) -> Answer:
        """The values of rows that are in the vocabulary; a row that has no others is empty."""
        csr = self.known(rows)
        states = np.where((rows.states == VALUE) & (csr.lengths == 0), np.uint8(EMPTY), rows.states)
        return self.answer(states, csr)

    def answer(self, states: NDArray[np.uint8], csr: Csr) -> Answer:
        """An answer in ids of the vocabulary."""
        assert self.vocabulary is not None
        return Answer(self.codec, self.vocabulary, states, csr)


class RowSymbols(NamedTuple):
    """Symbols that record the presence of rows."""

    num_symbols: int
    facts: FactClass  # one for each row, with the target rate
    ids: NDArray[np.int64]  # int64[n], the symbol of each row


class RowsToSeal(NamedTuple):
    """The n rows from which structures are built."""

    entity_hashes: NDArray[np.uint64]  # uint64[n, 2]
    salt: tuple[int, int]  # two unsigned 64-bit integers
    # int64[n], row numbers in the order of the layer's list; None if it has none
    order: NDArray[np.int64] | None
    symbols: Sequence[RowSymbols] = ()  # of the rows; empty if the rows are listed
    growth: float = 1.0  # the factor by which a structure must exceed its plan, after a shortfall


class Shortfall(NamedTuple):
    """A structure would miss its goal."""

    growth: float  # the factor by which to enlarge it in the next try; infinity if no size is enough
    reason: str  # in words


class Structure(ABC):
    """Features of rows that are kept together. Immutable; safe to read from any number of threads."""

    kind: ClassVar[str]  # its name in snapshots
    names: ClassVar[tuple[str, ...]] = ()  # names by which a tag may choose it
    codecs: ClassVar[tuple[str, ...]] = ()  # names of the codecs whose features only this structure keeps
    is_filter: ClassVar[bool] = False  # whether it shows false values, and may miss its goal
    # whether it is read by row number, so that the layer has to list its rows
    lists_rows: ClassVar[bool] = False
    # whether it stores the states of rows without a value; otherwise the layer does
    tells_states: ClassVar[bool] = False

    features: Mapping[str, SealedFeature]  # the features that it keeps, by name

    @classmethod
    def among(cls, structures: Sequence["Structure"]) -> Self:
        """The structure of this kind; raises ValueError if there is none."""
        for structure in structures:
            if isinstance(structure, cls):
                return structure
        raise ValueError(f"there is no structure of the kind {cls.kind!r}")

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """How it would keep a feature whose goal names it, or none; and the cost. None if it cannot.

        By default None: the structure serves a codec or a list of rows, never a goal.

        Raises ValueError: the memory limit of the feature is too small.
        """
        return None

    @classmethod
    @abstractmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self | Shortfall:
        """Build the structure from features, which are consumed unless there is a shortfall.

        Each feature comes with the plan of its accepted offer.
        """

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all parts, vocabularies included."""

    @property
    def num_rows(self) -> int:
        """The number of its rows, if it is read by row number."""
        return 0

    @property
    def num_facts(self) -> int:
        """The facts by which a report divides its bits, symbols of rows included."""
        return sum(feature.num_facts for feature in self.features.values())

    @property
    def fact_bits(self) -> int:
        """Bits of these facts, including those needed to find them; 0 if no report divides them."""
        return 0

    @property
    def table_bytes(self) -> int:
        """Bytes of a filter's table."""
        return 0

    @property
    def ideal_bits(self) -> float:
        """Bits of standard Bloom filters for the facts in a filter, at the same expected rates."""
        return 0.0

    @abstractmethod
    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its vocabulary, and its share of what features share."""

    def prepare(self, rows: RowReader) -> None:  # noqa: B027 - most structures have nothing to add
        """Add what its features share to rows prepared for reads of one entity."""

    @abstractmethod
    def to_snapshot(self) -> Described:
        """The structure as a description with arrays."""

    @classmethod
    @abstractmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        """The structure of parts from `to_snapshot`.

        Raises ValueError, KeyError, TypeError: the parts do not fit each other.
        """


class SeparateFeature(SealedFeature):
    """A feature that shares nothing with others. Its length is the number of its rows."""

    @abstractmethod
    def __len__(self) -> int:
        pass

    @classmethod
    @abstractmethod
    def build(cls, feature: FeatureRows, order: NDArray[np.int64] | None) -> Self:
        """Build it from a feature of rows, in the order of the layer's list if it has one."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all parts, the vocabulary included."""

    @property
    def fact_bits(self) -> int:
        """Bits of its facts, including those needed to find them; 0 if no report divides them."""
        return 0

    @abstractmethod
    def to_snapshot(self) -> Described:
        """The feature as a description with arrays."""

    @classmethod
    @abstractmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        """The feature of parts from `to_snapshot`; raises as `Structure.from_snapshot`."""


class SeparateFeatures(Structure):
    """Features that share nothing: each describes itself. A subclass sets their type."""

    feature_type: ClassVar[type[SeparateFeature]]

    features: Mapping[str, SeparateFeature]

    def __init__(self, features: Mapping[str, SeparateFeature]):
        self.features = features

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; there are no plans."""
        return cls({f.sealed_codec.feature: cls.feature_type.build(f, rows.order) for f, _ in features})

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.features.values())))

    @property
    def size_bytes(self) -> int:
        return sum(feature.size_bytes for feature in self.features.values())

    def size_bytes_of(self, feature: str) -> float:
        return self.features[feature].size_bytes

    @property
    def fact_bits(self) -> int:
        return sum(feature.fact_bits for feature in self.features.values())

    def to_snapshot(self) -> Described:
        return {"features": [feature.to_snapshot() for feature in self.features.values()]}

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        features = [cls.feature_type.from_snapshot(entry) for entry in parts.each("features")]
        by_name = {feature.codec.feature: feature for feature in features}
        if len(by_name) != len(features) or len({len(feature) for feature in features}) != 1:
            raise ValueError("a feature is there twice, or the features differ in their number of rows")
        return cls(by_name)
