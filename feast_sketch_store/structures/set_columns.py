"""Set columns: exact memberships of listed rows, as Golomb-coded sets of all features together.

The header of a set also has the row's state. It is ``n`` for a set of n elements. If some rows have no set,
it is ``n + 2``, and the header of a row without a set is MISSING or NULL.

Features that imply each other are coded in chains (`shared_values`), with ids of a shared vocabulary. Each
feature also has ids of its own for its values, in the same order; one bit for each shared value says whether
the feature has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as following
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.spill import SpilledWords
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer, RowsToSeal, SealedFeature, Structure, begin_feature
from feast_sketch_store.structures.costs import Popularity, sets_bytes
from feast_sketch_store.structures.feature_rows import FeatureRows, OrderedRows
from feast_sketch_store.structures.goals import SETS, Goal, Offer
from feast_sketch_store.structures.parts import Described, Parts, describe_codec, describe_codes
from feast_sketch_store.structures.shared_values import NO_SET, find_chains, headers_of
from feast_sketch_store.succinct import GolombSets, SetCode
from feast_sketch_store.succinct.golomb_sets import FIT_FACTS, NUM_CLASSES, Levels

_FIT_ROWS = 1 << 17  # to which codes are fitted


@dataclass(frozen=True)
class SetFeature(SealedFeature):
    """One feature in sets."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_elements: int  # of the sets of all rows
    sets: GolombSets  # of all features
    number: int  # the index of its code in ``sets``
    # int32[S], the feature's own id of each value of the shared vocabulary, ascending; -1 for values that it
    # lacks. None if the vocabularies are equal
    own_ids: NDArray[np.int32] | None = None

    structure = SETS

    @property
    def num_facts(self) -> int:
        return self.num_elements

    def prepare(self, rows: RowReader) -> None:
        begin_feature(rows, self.codec, self.vocabulary)
        rows.from_set(self.number, self.own_ids)

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`: the values in the vocabulary, in the order of its ids."""
        known = self.known_answer(rows)
        return self.answer(known.states, known.csr.distinct())


@dataclass(frozen=True)
class SetColumns(Structure):
    """Features of n rows."""

    features: Mapping[str, SetFeature]  # in the order of the codes of ``sets``
    sets: GolombSets  # of all features
    vocabularies: Sequence[Vocabulary]  # the values of each chain in the order of the shared ids

    kind = SETS
    names = (SETS,)
    lists_rows = True
    tells_states = True

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer:
        """See `Structure.offer`; the plan is the popularity, from which `sets_bytes` gives joint sizes."""
        return Offer(cls.kind, popularity, sets_bytes([popularity]))

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; a plan may have levels that were fitted to a sample."""
        assert rows.order is not None
        chains = find_chains([feature for feature, _ in features])
        columns = [features[number][0] for chain in chains for number in chain.features]
        plans = [features[number][1] for chain in chains for number in chain.features]
        on_trial = [plan.gaps if isinstance(plan, Popularity) else None for plan in plans]
        shared_ids = [ids for chain in chains for ids in chain.shared_ids]
        fitted = [code for chain in chains for code in (chain.codes or (None,))]
        ordered = OrderedRows(columns, rows.order, shared_ids)
        ordered.widen_blocks(_rows_to_fit(ordered.sizes))
        headers = np.empty((len(rows.order), len(columns)), np.int32)
        no_sets = []
        for number, column in enumerate(columns):
            headers[:, number], no_set = headers_of(column.states[rows.order], ordered.sizes[:, number])
            no_sets.append(no_set)
        blocks = (block.distinct() for block in ordered.blocks())
        first = next(blocks)
        codes = []
        for number, column in enumerate(columns):
            code = fitted[number]
            if code is None:
                code = SetCode.fit(column.counts, headers[:, number], no_sets[number])
                if (gaps := on_trial[number]) is not None:
                    code = replace(code, gaps=gaps)
                else:
                    own = first.take(np.arange(number, len(first), len(columns))[:_FIT_ROWS])
                    code = code.fitted(own.lengths, own.ids)
            codes.append(code)
        sets = _coded(codes, headers, ordered.starts, following([first], blocks))
        vocabularies = [chain.vocabulary for chain in chains]
        parts = []
        for column, shared, ids in zip(columns, _of_each(codes, vocabularies), shared_ids, strict=True):
            is_known = np.ones(len(shared), np.bool_)
            if ids is not None:
                is_known[:] = False
                is_known[ids] = True
            parts.append((column.sealed_codec, is_known, column.num_facts))
        return cls._of(parts, sets, vocabularies)

    @staticmethod
    def on_trial(popularity: Popularity, states: NDArray[np.uint8], members: Csr) -> Popularity:
        """What is known of a feature after its sets in the first n rows were coded.

        ``popularity`` is of all rows, the most popular symbol first; ``states``, uint8[n], and ``members``
        are of the n rows.
        """
        headers, no_set = headers_of(states, members.lengths)
        members = members.distinct()
        code = SetCode.fit(popularity.counts, headers, no_set).fitted(members.lengths, members.ids)
        row_bits = GolombSets.lengths([code], headers[:, None], members.indptr, members.ids)
        # Fitting to more rows would not improve the levels.
        is_enough = len(states) >= min(popularity.num_rows, _FIT_ROWS) or len(members.ids) >= FIT_FACTS
        return replace(popularity, coded=row_bits, gaps=code.gaps if is_enough else None)

    @classmethod
    def _of(
        cls,
        features: Sequence[tuple[FeatureCodec, NDArray[np.bool_], int]],
        sets: GolombSets,
        vocabularies: Sequence[Vocabulary],
    ) -> Self:
        """Combine features, given by codec, shared values that they have, bool[S], and number of facts."""
        by_name = {}
        shared = _of_each(sets.codes, vocabularies)
        for number, ((codec, is_known, num_facts), whole) in enumerate(zip(features, shared, strict=True)):
            vocabulary, own_ids = whole, None
            if not is_known.all():
                vocabulary = Vocabulary(whole.values.filter(pa.array(is_known)))
                own_ids = np.where(is_known, np.cumsum(is_known) - 1, -1).astype(np.int32)
            by_name[codec.feature] = SetFeature(codec, vocabulary, num_facts, sets, number, own_ids)
        return cls(by_name, sets, vocabularies)

    @property
    def num_rows(self) -> int:
        return self.sets.num_rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the sets, their levels and index, the vocabularies, and the marks of values that features
        have.
        """
        known = sum(-(-len(f.own_ids) // 8) for f in self.features.values() if f.own_ids is not None)
        return self._sets_bytes + sum(v.packed_bytes for v in self.vocabularies) + known

    @property
    def _sets_bytes(self) -> int:
        return self.sets.size_bytes + self.sets.levels_bytes

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its share of the sets, by facts, and of the vocabulary, by values."""
        own, chain_of = self.features[feature], _chains(self.sets.codes)
        chain = chain_of[own.number]
        sharers = [f for f in self.features.values() if chain_of[f.number] == chain]
        of_values = len(own.vocabulary) / max(1, sum(len(f.vocabulary) for f in sharers))
        of_facts = own.num_facts / max(1, self.num_facts)
        return of_facts * self._sets_bytes + of_values * self.vocabularies[chain].packed_bytes

    @property
    def fact_bits(self) -> int:
        """Bits of the sets and of their index."""
        return 8 * self.sets.size_bytes

    def prepare(self, rows: RowReader) -> None:
        rows.sets(*self.sets.arguments)

    def to_snapshot(self) -> Described:
        sets = self.sets
        entries: list[Described] = []
        shared = _of_each(sets.codes, self.vocabularies)
        for feature, vocabulary, code in zip(self.features.values(), shared, sets.codes, strict=True):
            entry = {
                **describe_codec(feature.codec),
                "num_values": len(feature.vocabulary),
                "header_width": code.header_width,
                "no_set": code.no_set,
                "others_width": code.others_width,
                "level_ends": code.gaps.ends,
                "levels": np.concatenate((code.gaps.runs, code.gaps.left, code.headers)),
                "report": {"num_facts": feature.num_facts},
            }
            if feature.own_ids is not None:
                entry["known"] = np.packbits(feature.own_ids >= 0, bitorder="little")
            if code.others_width < 0:
                entry["vocabulary"] = vocabulary.to_packed()
            entries.append(entry)
        return {
            "features": entries,
            "num_rows": sets.num_rows,
            "group_rows": sets.group_rows,
            **describe_codes(sets),
        }

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        features: list[tuple[FeatureCodec, NDArray[np.bool_], int]] = []
        codes: list[SetCode] = []
        vocabularies: list[Vocabulary] = []
        for entry in parts.each("features"):
            codec = entry.codec()
            if not codec.is_collection:
                raise ValueError(f"{codec.feature!r} is not a collection")
            others_width = entry.get("others_width", int)
            if others_width < 0:
                vocabularies.append(entry.vocabulary(codec))
            elif not vocabularies or features[-1][0].element_kind != codec.element_kind:
                raise ValueError(f"{codec.feature!r} is coded relative to another set, but none has its type")
            ends, levels = entry.array("level_ends", np.int64), entry.array("levels", np.uint8)
            runs, left, ranked = np.split(levels, (len(ends), len(ends) + NUM_CLASSES))
            code = SetCode(
                entry.get("header_width", int),
                entry.get("no_set", int),
                Levels(ends, runs, left),
                others_width,
                ranked,
            )
            num_facts, size = entry.at("report").get("num_facts", int), len(vocabularies[-1])
            if size != code.num_symbols or code.no_set not in (0, NO_SET) or num_facts < 0:
                raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its code")
            features.append((codec, _known_from(entry, size), num_facts))
            codes.append(code)
        num_rows, group_rows = parts.get("num_rows", int), parts.get("group_rows", int)
        sets = GolombSets(*parts.codes(), codes, num_rows, group_rows)
        columns = cls._of(features, sets, vocabularies)
        if len(columns.features) != len(features):
            raise ValueError("two set columns have the same name")
        return columns


def _coded(
    codes: Sequence[SetCode], headers: NDArray[np.int32], starts: range, blocks: Iterator[Csr]
) -> GolombSets:
    """The sets of rows that come in blocks, each from one of ``starts`` on."""
    if len(starts) == 1:
        whole = next(blocks)
        return GolombSets.build(codes, headers, whole.indptr, whole.ids)
    parts = (
        (headers[start : start + starts.step], block.indptr, block.ids)
        for start, block in zip(starts, blocks, strict=True)
    )
    return GolombSets.build_in_blocks(codes, len(headers), parts, SpilledWords())


def _rows_to_fit(sizes: NDArray[np.int32]) -> int:
    """How many of the first rows codes are fitted to, at most; ``sizes`` are int32[n, F]."""
    before = np.cumsum(sizes[:_FIT_ROWS], axis=0, dtype=np.int64) <= FIT_FACTS
    return int(min(_FIT_ROWS, 1 + before.sum(axis=0).max(initial=0)))


def _chains(codes: Sequence[SetCode]) -> list[int]:
    """The number of each set's chain."""
    numbers: list[int] = (np.cumsum([not code.is_dependent for code in codes]) - 1).tolist()
    return numbers


def _of_each(codes: Sequence[SetCode], vocabularies: Sequence[Vocabulary]) -> list[Vocabulary]:
    """The vocabulary whose ids each set has."""
    return [vocabularies[chain] for chain in _chains(codes)]


def _known_from(entry: Parts, num_shared: int) -> NDArray[np.bool_]:
    """Which values of the shared vocabulary a feature has: bool[num_shared]."""
    num_values = entry.get("num_values", int)
    if num_values == num_shared:
        return np.ones(num_shared, np.bool_)
    content = entry.array("known", np.uint8)
    is_known = np.unpackbits(content, bitorder="little").astype(np.bool_)
    if len(content) != -(-num_shared // 8) or is_known.sum() != num_values or is_known[num_shared:].any():
        raise ValueError(f"array '{entry.path}known' does not mark {num_values} of {num_shared} values")
    return is_known[:num_shared]
