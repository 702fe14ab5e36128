"""Counts: the values of listed rows with the number of times that each was counted.

The values of a row are grouped by count, as the items of a list are grouped by tick (`TimedLists`): a count
takes the place of an age. Counts are numbered by descending frequency, so the gaps between the groups of a
row are small. So a count costs only the bits that it adds within *its* row. A row whose values were all
counted once has one group, and takes a few bits more than a set.

Counts that need not be exact are first rounded to few distinct numbers (`rows.counting`), which makes fewer
and larger groups. They stay exact if rounding saves next to nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.rows.codecs import COUNTS, EMPTY, VALUE, FeatureCodec
from feast_sketch_store.rows.counting import MAX_COUNT, Counting, Rounded
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer
from feast_sketch_store.structures.base import RowsToSeal, SealedFeature, Structure
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.goals import Goal, Offer
from feast_sketch_store.structures.lists import codes_from, describe_codes
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    checked,
    describe_packed,
    prefixed,
    report_of,
)
from feast_sketch_store.structures.prepared import begin_feature
from feast_sketch_store.succinct import PackedInts, TimedLists

_WORTH_ROUNDING = 0.99  # if rounding leaves a larger share of the bytes, counts stay exact


@dataclass(frozen=True)
class CountsFeature(SealedFeature):
    """One feature of n rows.

    Parameters
    ----------
    codec, vocabulary : of the feature.
    num_items : number of values of all rows.
    lists : the values of rows, with the number of a count as the age of each.
    counts : int64[C], the count that each number stands for, the most frequent one first.
    firsts : int64[C], the smallest count that is read as each; None if counts are exact.
    max_error, mean_error : of all values, the distances between counts and what was written.
    """

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_items: int
    lists: TimedLists
    counts: NDArray[np.int64]
    firsts: NDArray[np.int64] | None = None
    max_error: int = 0
    mean_error: float = 0.0

    structure = COUNTS

    @property
    def num_facts(self) -> int:
        """See `SealedFeature`."""
        return self.num_items

    @property
    def code_bytes(self) -> int:
        """Bytes of the values and their counts, without the vocabulary."""
        tables = [self.counts] if self.firsts is None else [self.counts, self.firsts]
        return self.lists.size_bytes + sum(PackedInts.pack(table).size_bytes for table in tables)

    @property
    def counting(self) -> Counting:
        """How exact the counts are."""
        assert self.codec.counting is not None
        return self.codec.counting

    @property
    def rounding_errors(self) -> tuple[float, float] | None:
        """See `SealedFeature`."""
        return None if self.counting.is_exact else (float(self.max_error), self.mean_error)

    def prepare(self, rows: PreparedRows) -> None:
        """See `SealedFeature.prepare`."""
        begin_feature(rows, self.codec, self.vocabulary)
        rows.from_list(*self.lists.arguments, 0, 1, self.counts, 0)

    def prepare_weights(self, rows: PreparedRows, codec: FeatureCodec) -> None:
        """See `SealedFeature.prepare_weights`."""
        begin_feature(rows, codec, None)
        rows.from_list(*self.lists.arguments, 0, 1, self.counts, 1)

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`: the values in the vocabulary, with counts as they are read."""
        csr = self.known(rows)
        states = np.where((rows.states == VALUE) & (csr.lengths == 0), np.uint8(EMPTY), rows.states)
        counts = np.ones(len(csr.ids), np.int64) if csr.weights is None else csr.weights
        return Answer(self.decoder, states, Csr(csr.indptr, csr.ids, self._as_sealed(counts)))

    def _as_sealed(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts as they are read. A count that no row has stays as it is if the nearest one is too far."""
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
        assert written.weights is not None
        assert stored.weights is not None
        # A value outside the vocabulary has the id -1, which no stored value has.
        ours, theirs = written.rows * width + ids[written.ids] + 1, stored.rows * width + stored.ids + 1
        order, other = np.argsort(ours), np.argsort(theirs)
        if not np.array_equal(ours[order], theirs[other]):
            yield f"has other values of feature {name!r} than the row log"
            return
        least, most = self.counting.bounds(written.weights[order])
        counts = stored.weights[other]
        if num_wrong := int(((counts < least) | (counts > most)).sum()):
            yield f"has {num_wrong} counts of feature {name!r} that are too far from the row log"


@dataclass(frozen=True)
class Counts(Structure):
    """The counts of a layer; features share nothing."""

    features: Mapping[str, CountsFeature]

    kind = COUNTS
    codecs = (COUNTS,)
    lists_rows = True

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`: a codec asks for counts, never a goal."""
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
        """Bytes of the codes, of the index of rows, of the tables of counts, and of vocabularies."""
        return round(sum(self.size_bytes_of(name) for name in self.features))

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature."""
        own = self.features[feature]
        return own.code_bytes + own.vocabulary.packed_bytes

    @property
    def fact_bits(self) -> int:
        """Bits of the values and their counts, and of the index of rows."""
        return 8 * sum(feature.lists.size_bytes for feature in self.features.values())

    def to_snapshot(self) -> Described:
        """See `Structure.to_snapshot`."""
        entries = []
        arrays: dict[str, NDArray[np.generic]] = {}
        for number, feature in enumerate(self.features.values()):
            codes, own = describe_codes(feature.lists)
            counts = PackedInts.pack(feature.counts)
            firsts = None if feature.firsts is None else PackedInts.pack(feature.firsts)
            entries.append(
                {
                    "name": feature.codec.feature,
                    "value_field": feature.codec.value_field,
                    "counts_feature": feature.counting.feature,
                    "counts": describe_packed(counts),
                    "firsts": None if firsts is None else describe_packed(firsts),
                    "report": {
                        "absolute_error": feature.counting.absolute,
                        "relative_error": float(feature.counting.relative),
                        "max_error": feature.max_error,
                        "mean_error": feature.mean_error,
                        "num_items": feature.num_items,
                    },
                    **codes,
                }
            )
            own[f"counts.{WORDS}"] = counts.words
            if firsts is not None:
                own[f"firsts.{WORDS}"] = firsts.words
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
            raise ValueError("a feature has counts twice, or the counts differ in their number of rows")
        return cls(by_name)


def _built(feature: FeatureRows, order: NDArray[np.int64]) -> CountsFeature:
    """The counts of rows in a given order."""
    codec = feature.sealed_codec
    assert codec.counting is not None
    parts = [(places.astype(np.int64), part) for places, part in feature.rows()]
    items = Csr.placed(parts, len(order)).take(order)
    weights = np.ones(len(items.ids), np.int64) if items.weights is None else items.weights
    written, places, times = np.unique(weights, return_inverse=True, return_counts=True)

    def coded(counting: Counting) -> CountsFeature:
        rounded = Rounded.of(written, times, counting)
        by_frequency = np.argsort(-np.bincount(rounded.places, times, len(rounded.read)), kind="stable")
        numbers = np.empty(len(by_frequency), np.int64)
        numbers[by_frequency] = np.arange(len(by_frequency))
        ages, ids = numbers[rounded.places[places]], items.ids.astype(np.int32)
        within = np.lexsort((ids, ages, items.rows))
        lists = TimedLists.build(feature.counts, items.indptr, ids[within], ages[within])
        errors = rounded.max_error, rounded.mean_error(times)
        firsts = None if counting.is_exact else rounded.firsts[by_frequency]
        read = rounded.read[by_frequency]
        return CountsFeature(codec, feature.vocabulary, len(ids), lists, read, firsts, *errors)

    exact = coded(Counting())
    if codec.counting.is_exact:
        return exact
    rounded = coded(codec.counting)
    return rounded if rounded.code_bytes < _WORTH_ROUNDING * exact.code_bytes else exact


def _from_snapshot(entry: Mapping[str, Any], parts: Parts) -> CountsFeature:
    report = report_of(entry)
    counting = Counting(
        checked(report["absolute_error"], int),
        checked(report["relative_error"], float),
        checked(entry["counts_feature"], str),
    )
    codec = FeatureCodec(checked(entry["name"], str), entry["value_field"], COUNTS, counting=counting)
    vocabulary = parts.vocabulary("vocabulary", codec)
    lists, packed = codes_from(entry, parts), parts.packed("counts", entry["counts"])
    counts, firsts = packed.take(np.arange(packed.length)), None
    if entry["firsts"] is not None:
        packed = parts.packed("firsts", entry["firsts"])
        firsts = packed.take(np.arange(packed.length))
        if len(firsts) != len(counts):
            raise ValueError(f"the rounded counts of {codec.feature!r} do not fit each other")
    num_items, max_error = checked(report["num_items"], int), checked(report["max_error"], int)
    mean_error = checked(report["mean_error"], float)
    if lists.code.num_symbols != len(vocabulary) or num_items < 0 or max_error < 0:
        raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its code")
    if len(counts) and not 1 <= counts.min() <= counts.max() <= 2 * MAX_COUNT:
        raise ValueError(f"a count of {codec.feature!r} is out of range")
    return CountsFeature(codec, vocabulary, num_items, lists, counts, firsts, max_error, mean_error)
