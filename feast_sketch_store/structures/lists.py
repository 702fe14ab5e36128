"""Lists and counts: the values of listed rows with a number each, in timed lists.

A *list* has items, values with times, newest first. Its numbers are ages in ticks before the newest one. The
attributes of items are apart from them (`AttributeCodes`), and read only on request.

*Counts* are the values of a row with the number of times that each was counted. They are grouped by count, as
the items of a list are grouped by tick (`TimedLists`): a count takes the place of an age. Counts are numbered
by descending frequency, so the gaps between the groups of a row are small. So a count costs only the bits
that it adds within *its* row. A row whose values were all counted once has one group, and takes a few bits
more than a set. Counts that need not be exact are first rounded to few distinct numbers (`rows.counting`),
which makes fewer and larger groups. They stay exact if rounding saves next to nothing.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.codecs import COUNTS, LIST, FeatureCodec
from feast_sketch_store.rows.counting import MAX_COUNT, Counting, Rounded
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.listing import Attribute, Listing
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import (
    Answer,
    SeparateFeature,
    SeparateFeatures,
    attribute_vocabulary,
    begin_feature,
    prepare_attribute,
)
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.parts import (
    Described,
    Parts,
    describe_codec,
    describe_codes,
    describe_packed,
)
from feast_sketch_store.succinct import AttributeCodes, ListCode, PackedInts, TimedLists

LISTS = "lists"

_MICROSECONDS = 1_000_000
_MAX_TIME = 1 << 61  # so that the kernel can compute differences
_WORTH_ROUNDING = 0.99  # if rounding leaves a larger share of the bytes, counts stay exact


@dataclass(frozen=True)
class NumberedValues(SeparateFeature):
    """The values of n rows, with a number each."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_items: int  # number of values of all rows
    lists: TimedLists  # the values of rows; their numbers are called ages

    def __len__(self) -> int:
        return self.lists.num_rows

    @property
    def num_facts(self) -> int:
        return self.num_items

    @property
    def fact_bits(self) -> int:
        return 8 * self.code_bytes

    @property
    def code_bytes(self) -> int:
        """Bytes of the values and their numbers, without the vocabulary."""
        return self.lists.size_bytes

    @property
    def size_bytes(self) -> int:
        return self.code_bytes + self.vocabulary.packed_bytes

    def to_snapshot(self) -> Described:
        described, lists = self._describe_numbers(), self.lists
        described["report"]["num_items"] = self.num_items
        return {
            **describe_codec(self.codec),
            **described,
            **describe_codes(lists),
            "lengths": lists.code.lengths,
            "run_ends": lists.code.run_ends,
            "run_widths": lists.code.run_widths,
            "vocabulary": self.vocabulary.to_packed(),
        }

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        codec, *numbers = cls._numbers_from(parts)
        vocabulary = parts.vocabulary(codec)
        code = ListCode(
            parts.array("lengths", np.uint8, 2),
            parts.array("run_ends", np.int64),
            parts.array("run_widths", np.uint8),
        )
        lists = TimedLists(*parts.codes(), code)
        num_items = parts.at("report").get("num_items", int)
        if code.num_symbols != len(vocabulary) or num_items < 0:
            raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its code")
        return cls(codec, vocabulary, num_items, lists, *numbers)

    @abstractmethod
    def _describe_numbers(self) -> Described:
        """What numbers mean, with a report."""

    @classmethod
    @abstractmethod
    def _numbers_from(cls, parts: Parts) -> tuple[Any, ...]:
        """The codec, and the further fields of the feature."""


@dataclass(frozen=True)
class ListFeature(NumberedValues):
    """One list of n rows; ``newest_tick`` is that of all items, from which ages count, and ``attributes`` are
    the codes of items, if there are any."""

    newest_tick: int
    attributes: AttributeCodes | None = None

    structure = LISTS

    def __post_init__(self) -> None:
        codes, listing = self.attributes, self.listing
        if (codes.num_codes if codes is not None else 1) != listing.num_codes or (
            codes is not None and len(codes.starts) != self.lists.num_rows
        ):
            raise ValueError(f"the attributes of feature {self.codec.feature!r} do not fit it")
        if abs(self.newest_tick) * self.resolution >= _MAX_TIME:
            raise ValueError(f"the times of feature {self.codec.feature!r} are out of range")

    @classmethod
    def build(cls, feature: FeatureRows, order: NDArray[np.int64] | None) -> Self:
        codec, items = feature.sealed_codec, _in_order(feature, order)
        listing = codec.listing
        assert listing is not None
        stamps = items.numbers
        ticks = listing.times_of(stamps) // listing.resolution_microseconds
        newest = int(ticks.max()) if len(ticks) else 0
        counts = np.bincount(items.ids, minlength=len(feature.vocabulary))
        lists, within = _coded(counts, items, newest - ticks)
        attributes = None
        if listing.attributes:
            codes = listing.codes_of(stamps[within])
            attributes = AttributeCodes.build(items.indptr, codes, listing.num_codes)
        return cls(codec, feature.vocabulary, len(ticks), lists, newest, attributes)

    @property
    def code_bytes(self) -> int:
        return super().code_bytes + (0 if self.attributes is None else self.attributes.size_bytes)

    @property
    def listing(self) -> Listing:
        """Which items the list has, and how exact their times are."""
        assert self.codec.listing is not None
        return self.codec.listing

    @property
    def resolution(self) -> int:
        """Microseconds of a tick."""
        return self.listing.resolution_microseconds

    def prepare(self, rows: RowReader) -> None:
        self._prepare(rows, self.codec, 0)

    def prepare_weights(self, rows: RowReader, codec: FeatureCodec) -> None:
        """See `SealedFeature.prepare_weights`: times in seconds, an attribute, or items with stamps."""
        if codec.times_of:
            self._prepare(rows, codec, _MICROSECONDS)
            return
        self._prepare(rows, codec, 0)
        assert self.attributes is not None
        prepare_attribute(rows, self.codec, codec)
        rows.attribute_codes(*self.attributes.arguments)

    def _prepare(self, rows: RowReader, codec: FeatureCodec, unit: int) -> None:
        begin_feature(rows, codec, self.vocabulary)
        rows.from_list(*self.lists.arguments, self.newest_tick, self.resolution, None, unit)

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`: the first values, up to the list's limit."""
        listing, csr = self.listing, self.known(rows)
        if listing.limit is not None:
            csr = csr.masked(np.arange(len(csr.ids)) - csr.indptr[:-1][csr.rows] < listing.limit)
        return self.answer(rows.states, csr)

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: a row has exactly its items, at their ticks."""
        if not self._agree(rows, answer, 0, 0):
            yield f"has other items of feature {self.codec.feature!r} than the row log"

    def missing_attribute(
        self, attribute: Attribute, rows: EncodedFeature, answer: Answer, shown: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing_attribute`; ``shown`` is the attribute of the items in ``answer``."""
        listing = self.listing
        _, step = listing.digit_of(attribute.feature)
        digits = listing.codes_of(rows.csr.numbers) // step % len(attribute.values)
        known = attribute_vocabulary(self.codec, attribute.feature)
        stored = known.find(shown.vocabulary.values)[shown.symbols]
        if len(stored) != len(answer.symbols) or not self._agree(rows, answer, digits, stored):
            yield f"has other values of attribute {attribute.feature!r} than the row log"

    def _agree(
        self,
        rows: EncodedFeature,
        answer: Answer,
        ours: NDArray[np.integer] | int,
        theirs: NDArray[np.integer] | int,
    ) -> bool:
        """Whether rows and an answer have the same items with the same numbers, int[nnz]."""
        listing, ids = self.listing, self.vocabulary.find(rows.vocabulary.values)
        written = rows.csr.rows, listing.times_of(rows.csr.numbers) // self.resolution, ids[rows.symbols]
        stored = answer.csr.rows, answer.csr.numbers // self.resolution, answer.csr.ids

        # The order within a tick is not defined.
        def sorted_table(items: Sequence[NDArray[Any]], numbers: NDArray[np.integer] | int) -> Any:
            table = np.stack([*items, np.broadcast_to(numbers, len(items[0]))], axis=1).astype(np.int64)
            return table[np.lexsort(table.T[::-1])]

        return np.array_equal(sorted_table(written, ours), sorted_table(stored, theirs))

    def _describe_numbers(self) -> Described:
        listing, codes = self.listing, self.attributes
        described: Described = {
            "resolution_microseconds": listing.resolution_microseconds,
            "limit": listing.limit,
            "newest_tick": self.newest_tick,
            "report": {},
        }
        if codes is not None:
            described["attributes"] = {
                "features": [attribute.entry for attribute in listing.attributes],
                "block_items": codes.block_items,
                "usual": codes.usual,
                "lengths": codes.lengths,
                **describe_codes(codes),
            }
        return described

    @classmethod
    def _numbers_from(cls, parts: Parts) -> tuple[Any, ...]:
        limit = None if parts.described["limit"] is None else parts.get("limit", int)
        own = parts.at("attributes") if parts.has("attributes") else None
        attributes = tuple(map(Attribute.of_entry, () if own is None else own.get("features", list)))
        listing = Listing(parts.get("resolution_microseconds", int), limit, attributes)
        codec = parts.codec(LIST, listing=listing)
        for attribute in listing.attributes:
            attribute_vocabulary(codec, attribute.feature)  # refuses values of another type
        newest_tick = parts.get("newest_tick", int)
        if own is None:
            return codec, newest_tick
        codes = AttributeCodes(
            *own.codes(),
            listing.num_codes,
            own.get("block_items", int),
            own.get("usual", int),
            own.array("lengths", np.uint8),
        )
        return codec, newest_tick, codes


@dataclass(frozen=True)
class CountsFeature(NumberedValues):
    """The counts of n rows."""

    counts: NDArray[np.int64]  # int64[C], the count of each number, the most frequent one first
    # int64[C], the smallest count that is read as each; None if counts are exact
    firsts: NDArray[np.int64] | None = None
    # max_error, mean_error: of all values, the distances between counts and what was written
    max_error: int = 0
    mean_error: float = 0.0

    structure = COUNTS

    @classmethod
    def build(cls, feature: FeatureRows, order: NDArray[np.int64] | None) -> "CountsFeature":
        codec, items = feature.sealed_codec, _in_order(feature, order)
        assert codec.counting is not None
        written, indices, times = np.unique(items.numbers, return_inverse=True, return_counts=True)

        def coded(counting: Counting) -> CountsFeature:
            rounded = Rounded.of(written, times, counting)
            by_frequency = np.argsort(-np.bincount(rounded.indices, times, len(rounded.read)), kind="stable")
            numbers = np.empty(len(by_frequency), np.int64)
            numbers[by_frequency] = np.arange(len(by_frequency))
            lists, _ = _coded(feature.counts, items, numbers[rounded.indices[indices]])
            errors = rounded.max_error, rounded.mean_error(times)
            firsts = None if counting.is_exact else rounded.firsts[by_frequency]
            read = rounded.read[by_frequency]
            return cls(codec, feature.vocabulary, len(items.ids), lists, read, firsts, *errors)

        exact = coded(Counting())
        if codec.counting.is_exact:
            return exact
        rounded = coded(codec.counting)
        return rounded if rounded.code_bytes < _WORTH_ROUNDING * exact.code_bytes else exact

    @property
    def code_bytes(self) -> int:
        tables = [self.counts] if self.firsts is None else [self.counts, self.firsts]
        return self.lists.size_bytes + sum(PackedInts.pack(table).size_bytes for table in tables)

    @property
    def counting(self) -> Counting:
        """How exact the counts are."""
        assert self.codec.counting is not None
        return self.codec.counting

    @property
    def rounding_errors(self) -> tuple[float, float] | None:
        return None if self.counting.is_exact else (float(self.max_error), self.mean_error)

    def prepare(self, rows: RowReader) -> None:
        begin_feature(rows, self.codec, self.vocabulary)
        rows.from_list(*self.lists.arguments, 0, 1, self.counts, 0)

    def prepare_weights(self, rows: RowReader, codec: FeatureCodec) -> None:
        begin_feature(rows, codec, self.vocabulary)
        rows.from_list(*self.lists.arguments, 0, 1, self.counts, 1)

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`: the values in the vocabulary, with counts as they are read, most
        frequent counts first.
        """
        known = self.known_answer(rows)
        csr, counts = known.csr, self._as_sealed(known.csr.numbers)
        ascending = np.argsort(self.counts)
        places = np.searchsorted(self.counts, counts, sorter=ascending).clip(max=len(self.counts) - 1)
        numbers = ascending[places] if len(self.counts) else counts
        order = np.lexsort((csr.ids, numbers, csr.rows))
        return self.answer(known.states, Csr(csr.indptr, csr.ids[order], counts[order]))

    def _as_sealed(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts as they are read. A count that no row has stays unchanged if the nearest one is too far."""
        if self.firsts is None:
            return counts
        order = np.argsort(self.firsts)
        runs = np.searchsorted(self.firsts[order], counts, side="right") - 1
        read = self.counts[order][np.maximum(runs, 0)]
        least, most = self.counting.bounds(counts)
        return np.where((read >= least) & (read <= most), read, counts)

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: a row has exactly its values, with counts within the error."""
        name = self.codec.feature
        ids = self.vocabulary.find(rows.vocabulary.values)
        width = len(self.vocabulary) + 1
        written, stored = rows.csr, answer.csr
        # A value outside the vocabulary has the id -1, which no stored value has.
        ours, theirs = written.rows * width + ids[written.ids] + 1, stored.rows * width + stored.ids + 1
        order, other = np.argsort(ours), np.argsort(theirs)
        if not np.array_equal(ours[order], theirs[other]):
            yield f"has other values of feature {name!r} than the row log"
            return
        least, most = self.counting.bounds(written.numbers[order])
        counts = stored.numbers[other]
        if num_wrong := int(((counts < least) | (counts > most)).sum()):
            yield f"has {num_wrong} counts of feature {name!r} that are too far from the row log"

    def _describe_numbers(self) -> Described:
        counting, firsts = self.counting, self.firsts
        return {
            "counts_feature": counting.feature,
            "counts": describe_packed(PackedInts.pack(self.counts)),
            "firsts": None if firsts is None else describe_packed(PackedInts.pack(firsts)),
            "report": {
                "absolute_error": counting.absolute,
                "relative_error": float(counting.relative),
                "max_error": self.max_error,
                "mean_error": self.mean_error,
            },
        }

    @classmethod
    def _numbers_from(cls, parts: Parts) -> tuple[Any, ...]:
        report = parts.at("report")
        errors = report.get("absolute_error", int), report.get("relative_error", float)
        codec = parts.codec(COUNTS, counting=Counting(*errors, parts.get("counts_feature", str)))

        def table(name: str) -> NDArray[np.int64]:
            packed = parts.at(name).packed()
            return packed.take(np.arange(packed.length))

        counts, firsts = table("counts"), None if parts.described["firsts"] is None else table("firsts")
        max_error, mean_error = report.get("max_error", int), report.get("mean_error", float)
        if (firsts is not None and len(firsts) != len(counts)) or max_error < 0:
            raise ValueError(f"the rounded counts of {codec.feature!r} do not fit each other")
        if len(counts) and not 1 <= counts.min() <= counts.max() <= 2 * MAX_COUNT:
            raise ValueError(f"a count of {codec.feature!r} is out of range")
        return codec, counts, firsts, max_error, mean_error


class Lists(SeparateFeatures):
    """The lists of a layer."""

    kind = LISTS
    codecs = (LIST,)
    lists_rows = True
    feature_type = ListFeature


class Counts(SeparateFeatures):
    """The counts of a layer."""

    kind = COUNTS
    codecs = (COUNTS,)
    lists_rows = True
    feature_type = CountsFeature


def _in_order(feature: FeatureRows, order: NDArray[np.int64] | None) -> Csr:
    """The values of rows in a given order, with their weights."""
    assert order is not None
    parts = [(indices.astype(np.int64), part) for indices, part in feature.rows()]
    return Csr.placed(parts, len(order)).take(order)


def _coded(
    counts: NDArray[np.int64], items: Csr, ages: NDArray[np.int64]
) -> tuple[TimedLists, NDArray[np.int64]]:
    """Items with an age each, int64[nnz], given how often each symbol occurs, int64[V]; and their order."""
    ids = items.ids.astype(np.int32)
    within = np.lexsort((ids, ages, items.rows))
    return TimedLists.build(counts, items.indptr, ids[within], ages[within]), within
