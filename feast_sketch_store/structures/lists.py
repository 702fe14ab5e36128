"""Lists: the items of listed rows, values with times, newest first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.rows.codecs import LIST, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer
from feast_sketch_store.structures.base import RowsToSeal, SealedFeature, Structure
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.goals import Goal, Offer
from feast_sketch_store.structures.parts import (
    Described,
    Parts,
    arrays_of_ascending,
    checked,
    describe_ascending,
    prefixed,
    report_of,
    words_of_codes,
)
from feast_sketch_store.structures.prepared import begin_feature
from feast_sketch_store.succinct import ListCode, TimedLists

LISTS = "lists"

_MICROSECONDS = 1_000_000
_MAX_TIME = 1 << 61  # so that the kernel can compute differences


@dataclass(frozen=True)
class ListFeature(SealedFeature):
    """One list of n rows.

    Parameters
    ----------
    codec, vocabulary : of the list.
    num_items : of all rows.
    lists : the items, with ages in ticks before ``newest_tick``.
    newest_tick : of all items.
    """

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_items: int
    lists: TimedLists
    newest_tick: int

    structure = LISTS

    def __post_init__(self) -> None:
        if abs(self.newest_tick) * self.resolution >= _MAX_TIME:
            raise ValueError(f"the times of feature {self.codec.feature!r} are out of range")

    @property
    def num_facts(self) -> int:
        """See `SealedFeature`."""
        return self.num_items

    @property
    def resolution(self) -> int:
        """Microseconds of a tick."""
        assert self.codec.listing is not None
        return self.codec.listing.resolution_microseconds

    def prepare(self, rows: PreparedRows) -> None:
        """See `SealedFeature.prepare`."""
        self._prepare(rows, self.codec, 0)

    def prepare_weights(self, rows: PreparedRows, codec: FeatureCodec) -> None:
        """See `SealedFeature.prepare_weights`: times in seconds."""
        self._prepare(rows, codec, _MICROSECONDS)

    def _prepare(self, rows: PreparedRows, codec: FeatureCodec, unit: int) -> None:
        begin_feature(rows, codec, self.vocabulary)
        rows.from_list(*self.lists.arguments, self.newest_tick, self.resolution, None, unit)

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`: the first values, up to the list's limit."""
        listing, csr = self.codec.listing, self.known(rows)
        assert listing is not None
        if listing.limit is not None:
            csr = csr.masked(np.arange(len(csr.ids)) - csr.indptr[:-1][csr.rows] < listing.limit)
        return Answer(self.decoder, rows.states, csr)

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: a row has exactly its items, at their ticks."""
        ids = self.vocabulary.find(rows.vocabulary.values)
        assert rows.times is not None
        assert answer.csr.weights is not None
        written = rows.csr.rows, rows.times // self.resolution, ids[rows.symbols]
        stored = answer.csr.rows, answer.csr.weights // self.resolution, answer.csr.ids
        # The order within a tick is not defined.
        ours, theirs = (np.stack(items, axis=1).astype(np.int64) for items in (written, stored))
        ours, theirs = (items[np.lexsort(items.T[::-1])] for items in (ours, theirs))
        if not np.array_equal(ours, theirs):
            yield f"has other items of feature {self.codec.feature!r} than the row log"


@dataclass(frozen=True)
class Lists(Structure):
    """The lists of a layer; they share nothing."""

    features: Mapping[str, ListFeature]

    kind = LISTS
    codecs = (LIST,)
    lists_rows = True

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`: a codec asks for lists, never a goal."""
        return None

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; there are no plans."""
        assert rows.order is not None
        return cls({f.sealed_codec.feature: _built(f, rows.order) for f, _ in features})

    @property
    def num_rows(self) -> int:
        """See `Structure`."""
        return next(iter(self.features.values())).lists.num_rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the lists, of their index, and of vocabularies."""
        return round(sum(self.size_bytes_of(name) for name in self.features))

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature."""
        own = self.features[feature]
        return own.lists.size_bytes + own.vocabulary.packed_bytes

    @property
    def fact_bits(self) -> int:
        """Bits of the lists and of their index."""
        return 8 * sum(feature.lists.size_bytes for feature in self.features.values())

    def to_snapshot(self) -> Described:
        """See `Structure.to_snapshot`."""
        entries = []
        arrays: dict[str, NDArray[np.generic]] = {}
        for number, feature in enumerate(self.features.values()):
            lists, listing = feature.lists, feature.codec.listing
            assert listing is not None
            codes, own = describe_codes(lists)
            entries.append(
                {
                    "name": feature.codec.feature,
                    "value_field": feature.codec.value_field,
                    "resolution_microseconds": listing.resolution_microseconds,
                    "limit": listing.limit,
                    "newest_tick": feature.newest_tick,
                    "report": {"num_items": feature.num_items},
                    **codes,
                }
            )
            own |= prefixed("vocabulary", feature.vocabulary.to_packed())
            arrays |= prefixed(str(number), own)
        return {"features": entries}, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> Self:
        """See `Structure.from_snapshot`."""
        features = [
            _from_snapshot(entry, parts.at(str(number)))
            for number, entry in enumerate(description["features"])
        ]
        by_name = {feature.codec.feature: feature for feature in features}
        if len(by_name) != len(features) or len({f.lists.num_rows for f in features}) != 1:
            raise ValueError("a feature has two lists, or the lists differ in their number of rows")
        return cls(by_name)


def _built(feature: FeatureRows, order: NDArray[np.int64]) -> ListFeature:
    """A list of rows in a given order."""
    codec = feature.sealed_codec
    assert codec.listing is not None
    parts = [(places.astype(np.int64), part) for places, part in feature.rows()]
    items = Csr.placed(parts, len(order)).take(order)
    ticks = (
        np.zeros(0, np.int64)
        if items.weights is None
        else items.weights // codec.listing.resolution_microseconds
    )
    newest = int(ticks.max()) if len(ticks) else 0
    ages, ids = newest - ticks, items.ids.astype(np.int32)
    within = np.lexsort((ids, ages, items.rows))
    ids, ages = ids[within], ages[within]
    counts = np.bincount(ids, minlength=len(feature.vocabulary))
    lists = TimedLists.build(counts, items.indptr, ids, ages)
    return ListFeature(codec, feature.vocabulary, len(ids), lists, newest)


def _from_snapshot(entry: Mapping[str, Any], parts: Parts) -> ListFeature:
    limit = entry["limit"]
    listing = Listing(
        checked(entry["resolution_microseconds"], int), None if limit is None else checked(limit, int)
    )
    codec = FeatureCodec(checked(entry["name"], str), entry["value_field"], LIST, listing=listing)
    vocabulary = parts.vocabulary("vocabulary", codec)
    lists = codes_from(entry, parts)
    num_items, newest_tick = checked(report_of(entry)["num_items"], int), checked(entry["newest_tick"], int)
    if lists.code.num_symbols != len(vocabulary) or num_items < 0 or abs(newest_tick) >= 2**62:
        raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its code")
    return ListFeature(codec, vocabulary, num_items, lists, newest_tick)


def describe_codes(lists: TimedLists) -> Described:
    """The codes of timed lists as a description and arrays."""
    arrays: dict[str, NDArray[np.generic]] = {
        **words_of_codes(lists.words, lists.num_bits),
        **arrays_of_ascending("starts", lists.starts),
        "lengths": lists.code.lengths,
        "run_ends": lists.code.run_ends,
        "run_widths": lists.code.run_widths,
    }
    return {"num_bits": lists.num_bits, "starts": describe_ascending(lists.starts)}, arrays


def codes_from(entry: Mapping[str, Any], parts: Parts) -> TimedLists:
    """The codes that `describe_codes` described.

    Raises
    ------
    ValueError, KeyError, TypeError : the parts do not fit each other.
    """
    code = ListCode(
        parts.array("lengths", np.uint8, 2),
        parts.array("run_ends", np.int64),
        parts.array("run_widths", np.uint8),
    )
    num_bits = checked(entry["num_bits"], int)
    words, check = parts.codes(num_bits)
    starts = parts.ascending("starts", entry["starts"], by_value=False)
    return TimedLists(code, words, num_bits, starts, check)
