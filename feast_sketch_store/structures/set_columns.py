"""Set columns: memberships of listed rows that are kept exactly, as Golomb-coded sets of all features
together.

The header of a set tells the row's state, too: ``n`` for a set of n elements, or ``n + 2`` if there are rows
that have none, whose header is MISSING or NULL itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import EMPTY, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer, CsrAnswer
from feast_sketch_store.structures.base import FoundRows, RowsToSeal, SealedFeature, Structure
from feast_sketch_store.structures.costs import Popularity, sets_bytes
from feast_sketch_store.structures.feature_rows import FeatureRows, in_order
from feast_sketch_store.structures.goals import MEMORY, Goal, Offer
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    checked,
    describe_packed,
    prefixed,
)
from feast_sketch_store.succinct import GolombSets, SetCode

SETS = "sets"

_TRIAL_ERROR = 0.01  # about, of the bits of sets that were coded for some of the rows
_NO_SET = NULL + 1  # headers of rows without a set


@dataclass(frozen=True)
class SetFeature(SealedFeature):
    """One feature in sets; ``number`` is its place among the codes of ``sets``."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_elements: int
    sets: GolombSets
    number: int

    structure = SETS

    @property
    def num_facts(self) -> int:
        """See `SealedFeature`."""
        return self.num_elements

    def read(self, found: FoundRows) -> Answer:
        """See `SealedFeature.read`."""
        assert found.rows is not None
        headers, indptr, symbols = self.sets.read(found.rows, self.number)
        no_set = self.sets.codes[self.number].no_set
        states = np.where(headers > no_set, np.uint8(VALUE), np.uint8(EMPTY))
        if no_set:
            states = np.where(headers < no_set, headers.astype(np.uint8), states)
        return CsrAnswer(self.decoder, states, Csr(indptr, symbols))


@dataclass(frozen=True)
class SetColumns(Structure):
    """Features of n rows; ``sets`` has a code for each of ``features``, in their order."""

    features: Mapping[str, SetFeature]
    sets: GolombSets

    kind = "sets"
    names = (SETS,)
    lists_rows = True
    tells_states = True

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`; the plan is the popularity, of which `joint_bytes` makes its sum."""
        if goal.structure != SETS and not goal.may_choose:
            return None
        num_bytes, coded = sets_bytes([popularity]), popularity.coded
        if goal.measure == MEMORY and coded is not None and len(coded) < popularity.num_rows:
            num_bytes *= 1 + _TRIAL_ERROR
        return Offer(cls.kind, popularity, num_bytes)

    @classmethod
    def joint_bytes(cls, offers: Sequence[Offer]) -> float:
        """See `Structure.joint_bytes`: sets share where the rows begin."""
        return sets_bytes([offer.plan for offer in offers])

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; plans are not needed."""
        assert rows.order is not None
        columns = [feature for feature, _ in features]
        members = in_order(columns, rows.order)
        lengths = members.lengths
        headers = np.empty((len(rows.order), len(columns)), np.int32)
        codes = []
        for number, column in enumerate(columns):
            sizes = lengths[number :: len(columns)]
            headers[:, number], no_set = _headers(column.states[rows.order], sizes)
            codes.append(SetCode.fit(column.counts, headers[:, number], no_set))
        members = members.distinct()
        sets = GolombSets.build(codes, headers, members.indptr, members.ids)
        return cls._of([(c.sealed_codec, c.vocabulary, c.num_facts) for c in columns], sets)

    @staticmethod
    def row_bits(counts: NDArray[np.int64], states: NDArray[np.uint8], members: Csr) -> NDArray[np.int64]:
        """The bits that the sets of one feature take in n rows: int64[n].

        Parameters
        ----------
        counts : how many of all rows have each symbol, int64[V], from the most popular one on.
        states, members : of the n rows, uint8[n] and their symbols.
        """
        headers, no_set = _headers(states, members.lengths)
        code = SetCode.fit(counts, headers, no_set)
        members = members.distinct()
        return GolombSets.lengths(code, headers, members.indptr, members.ids)

    @classmethod
    def _of(cls, features: Sequence[tuple[FeatureCodec, Vocabulary, int]], sets: GolombSets) -> Self:
        return cls(
            {
                codec.feature: SetFeature(codec, vocabulary, num_facts, sets, number)
                for number, (codec, vocabulary, num_facts) in enumerate(features)
            },
            sets,
        )

    @property
    def num_rows(self) -> int:
        """See `Structure`."""
        return self.sets.num_rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the sets, of where they begin, and of the vocabularies."""
        return self.sets.size_bytes + sum(f.vocabulary.size_bytes for f in self.features.values())

    @property
    def fact_bits(self) -> int:
        """Bits of the sets, and of where they begin."""
        return 8 * self.sets.size_bytes

    def to_snapshot(self) -> Described:
        """See `Structure.to_snapshot`."""
        sets = self.sets
        arrays: dict[str, NDArray[np.generic]] = {
            f"codes.{WORDS}": sets.words,
            f"anchors.{WORDS}": sets.anchors.words,
            f"deltas.{WORDS}": sets.deltas.words,
        }
        entries = []
        for number, feature in enumerate(self.features.values()):
            code = sets.codes[number]
            entries.append(
                {
                    "name": feature.codec.feature,
                    "value_field": feature.codec.value_field,
                    "num_facts": feature.num_facts,
                    "header_width": code.header_width,
                    "no_set": code.no_set,
                }
            )
            arrays[f"{number}.level_ends"] = code.level_ends
            arrays |= prefixed(f"{number}.vocabulary", feature.vocabulary.to_arrays())
        description = {
            "features": entries,
            "num_bits": sets.num_bits,
            "anchors": describe_packed(sets.anchors),
            "deltas": describe_packed(sets.deltas),
        }
        return description, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> Self:
        """See `Structure.from_snapshot`."""
        features, codes = [], []
        for number, entry in enumerate(description["features"]):
            codec = FeatureCodec(checked(entry["name"], str), entry["value_field"])
            if not codec.is_collection:
                raise ValueError(f"{codec.feature!r} is no collection")
            vocabulary = parts.vocabulary(f"{number}.vocabulary", codec)
            level_ends = parts.array(f"{number}.level_ends", np.int64)
            code = SetCode(checked(entry["header_width"], int), checked(entry["no_set"], int), level_ends)
            num_facts = checked(entry["num_facts"], int)
            if len(vocabulary) != code.num_symbols or code.no_set not in (0, _NO_SET) or num_facts < 0:
                raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its code")
            features.append((codec, vocabulary, num_facts))
            codes.append(code)
        words, check = parts.words("codes")
        sets = GolombSets(
            codes,
            words,
            checked(description["num_bits"], int),
            parts.packed("anchors", description["anchors"]),
            parts.packed("deltas", description["deltas"]),
            check,
        )
        columns = cls._of(features, sets)
        if len(columns.features) != len(features):
            raise ValueError("two set columns bear the same name")
        return columns


def _headers(states: NDArray[np.uint8], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """The header of each row's set, and how many headers stand for rows without one."""
    has_set = states >= EMPTY
    no_set = 0 if has_set.all() else _NO_SET
    return np.where(has_set, sizes + no_set, states).astype(np.int32), no_set
