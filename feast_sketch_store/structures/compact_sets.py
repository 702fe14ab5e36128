"""Compact sets: memberships of listed rows in count trees (`succinct.count_tree`).

They are exact like those of `set_columns`, a tenth to a quarter smaller, and several times as slow to read.
So they are used only where a tag names them. Headers, chains and vocabularies are those of `set_columns`;
only the order of the values is that of the tree. Values with given ids keep their order, so their tree fits
badly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.kernel.reference_trees import NUM_CLASSES, NUM_OF_CLASS, bucket_of
from feast_sketch_store.rows.codecs import EMPTY, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal
from feast_sketch_store.structures.costs import Popularity, sets_bytes
from feast_sketch_store.structures.feature_rows import FeatureRows, first_rows, in_order
from feast_sketch_store.structures.goals import Goal, Offer
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    arrays_of_ascending,
    checked,
    describe_ascending,
    describe_packed,
    prefixed,
    report_of,
    words_of_codes,
)
from feast_sketch_store.structures.prepared import begin_feature
from feast_sketch_store.structures.set_columns import SetColumns, SetFeature, known_from, of_each
from feast_sketch_store.structures.shared_values import NO_SET, Chain, find_chains, headers_of
from feast_sketch_store.succinct import PackedInts
from feast_sketch_store.succinct.count_tree import (
    MAX_CONTEXT,
    MAX_MASS_LEVEL,
    CountTrees,
    TreeCode,
    mass_levels,
    size_shares,
)
from feast_sketch_store.succinct.tree_order import (
    UNUSED_CONTEXT,
    Facts,
    concentrations_of,
    fit_members,
    order_of,
)
from feast_sketch_store.succinct.tree_tables import NUM_CONCENTRATIONS

COMPACT_SETS = "compact_sets"

_FIT_FACTS = 5 << 18  # of a chain, to which its tree is fitted
_LEAST_FACTS = 20  # other symbols per symbol, for a symbol to have its own tree
_ID = (1 << 32) - 1


@dataclass(frozen=True)
class CompactFeature(SetFeature):
    """One feature in count trees."""

    structure = COMPACT_SETS

    def prepare(self, rows: PreparedRows) -> bool:
        """See `SealedFeature.prepare`."""
        begin_feature(rows, self.codec, self.vocabulary)
        rows.from_tree(self.number, self.own_ids)
        return True


@dataclass(frozen=True)
class CompactSets(SetColumns):
    """Features of n rows; the attributes are those of `SetColumns`."""

    sets: CountTrees  # type: ignore[assignment]  # in place of Golomb-coded sets

    kind = COMPACT_SETS
    names = (COMPACT_SETS,)
    feature_type = CompactFeature

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`. The bytes are an upper bound: those of Golomb-coded sets."""
        if goal.structure != COMPACT_SETS:
            return None
        return Offer(cls.kind, popularity, sets_bytes([popularity]))

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; the plans are not used."""
        assert rows.order is not None
        own = [feature for feature, _ in features]
        fitted = [_Fit.of(chain, [own[number] for number in chain.features]) for chain in find_chains(own)]
        columns = [column for fit in fitted for column in fit.features]
        shared_ids = [ids for fit in fitted for ids in fit.shared_ids]
        members = in_order(columns, rows.order, shared_ids).distinct()
        headers = np.empty((len(rows.order), len(columns)), np.int32)
        for number, column in enumerate(columns):
            sizes = members.lengths[number :: len(columns)]
            headers[:, number], _ = headers_of(column.states[rows.order], sizes)
        codes = [code for fit in fitted for code in fit.codes()]
        sets = CountTrees.build(codes, headers, members.indptr, members.ids)
        parts = []
        vocabularies = [fit.vocabulary for fit in fitted]
        for column, shared, ids in zip(columns, of_each(codes, vocabularies), shared_ids, strict=True):
            is_known = np.zeros(len(shared), np.bool_)
            is_known[ids] = True
            parts.append((column.sealed_codec, is_known, column.num_facts))
        return cls._of(parts, sets, vocabularies)

    def prepare(self, rows: PreparedRows) -> None:
        """See `Structure.prepare`."""
        rows.trees(*self.sets.arguments)

    def to_snapshot(self) -> Described:
        """See `Structure.to_snapshot`."""
        sets, entries = self.sets, []
        arrays: dict[str, NDArray[np.generic]] = {
            **words_of_codes(sets.words, sets.num_bits),
            **arrays_of_ascending("starts", sets.starts),
        }
        head = sets.codes[0]
        for number, (feature, code) in enumerate(zip(self.features.values(), sets.codes, strict=True)):
            head = head if code.is_dependent else code
            packed: dict[str, NDArray[np.integer]] = {"sizes": code.sizes}
            if not code.is_dependent or code.levels is not head.levels:
                packed["tree"] = code.levels * np.uint16(NUM_CONCENTRATIONS) + code.concentrations
            if code.classes is not None and code.contexts is not None:
                packed |= {"classes": code.classes, "contexts": _used(code.classes, code.contexts)}
            entry: dict[str, Any] = {
                "name": feature.codec.feature,
                "value_field": feature.codec.value_field,
                "num_values": len(feature.vocabulary),
                "no_set": code.no_set,
                "report": {"num_facts": feature.num_facts},
            }
            for name, values in packed.items():
                numbers = PackedInts.pack(values)
                entry[name] = describe_packed(numbers)
                arrays[f"{number}.{name}.{WORDS}"] = numbers.words
            entries.append(entry)
            if feature.own_ids is not None:
                arrays[f"{number}.known"] = np.packbits(feature.own_ids >= 0, bitorder="little")
        heads = [number for number, code in enumerate(sets.codes) if not code.is_dependent]
        for number, vocabulary in zip(heads, self.vocabularies, strict=True):
            arrays |= prefixed(f"{number}.vocabulary", vocabulary.to_packed())
        description = {
            "features": entries,
            "num_bits": sets.num_bits,
            "starts": describe_ascending(sets.starts),
        }
        return description, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> Self:
        """See `Structure.from_snapshot`."""
        features: list[tuple[FeatureCodec, NDArray[np.bool_], int]] = []
        codes: list[TreeCode] = []
        vocabularies: list[Vocabulary] = []
        for number, entry in enumerate(description["features"]):
            codec = FeatureCodec(checked(entry["name"], str), entry["value_field"])
            if not codec.is_collection:
                raise ValueError(f"{codec.feature!r} is not a collection")
            if "classes" not in entry:
                vocabularies.append(parts.vocabulary(f"{number}.vocabulary", codec))
            elif not vocabularies or features[-1][0].element_kind != codec.element_kind:
                raise ValueError(f"{codec.feature!r} is coded relative to another set, but none has its type")
            head = next((code for code in reversed(codes) if not code.is_dependent), None)
            size, num_facts = len(vocabularies[-1]), checked(report_of(entry)["num_facts"], int)
            code = _code_from(parts, number, entry, size, head)
            if num_facts < 0:
                raise ValueError(f"{codec.feature!r} has {num_facts} facts")
            is_known = known_from(parts, f"{number}.known", size, checked(entry["num_values"], int))
            features.append((codec, is_known, num_facts))
            codes.append(code)
        num_bits = checked(description["num_bits"], int)
        words, check = parts.codes(num_bits)
        starts = parts.ascending("starts", description["starts"], by_value=False)
        sets = CountTrees(codes, words, num_bits, starts, check)
        columns = cls._of(features, sets, vocabularies)
        if len(columns.features) != len(features):
            raise ValueError("two features in count trees have the same name")
        return columns


def _code_from(
    parts: Parts, number: int, entry: Mapping[str, Any], num_symbols: int, head: TreeCode | None
) -> TreeCode:
    """The code that an entry describes; a code without a tree uses that of ``head``, the chain's first."""

    def packed(name: str, length: int, most: int) -> NDArray[np.int64]:
        numbers = parts.packed(f"{number}.{name}", entry[name])
        if numbers.length != length:
            raise ValueError(f"{numbers.length} {name} do not fit {num_symbols} values")
        taken = numbers.take(np.arange(length))
        if length and not 0 <= taken.min() <= taken.max() <= most:
            raise ValueError(f"{name} lie outside of 0 to {most}")
        return taken

    classes: NDArray[np.uint8] | None = None
    contexts: NDArray[np.uint8] | None = None
    if "classes" in entry:
        classes = packed("classes", num_symbols, NUM_CLASSES - 1).astype(np.uint8)
        by_class = np.full((3, NUM_CLASSES, NUM_OF_CLASS), UNUSED_CONTEXT, np.uint8)
        num_classes = NUM_CLASSES if classes.any() else 1
        told = packed("contexts", 3 * num_classes * NUM_OF_CLASS, MAX_CONTEXT)
        by_class[:, :num_classes] = told.reshape(3, num_classes, NUM_OF_CLASS)
        contexts = by_class.reshape(-1)
    if "tree" in entry:
        most = NUM_CONCENTRATIONS * (MAX_MASS_LEVEL + 1) - 1
        levels, concentrations = np.divmod(packed("tree", num_symbols, most), NUM_CONCENTRATIONS)
        tree = levels.astype(np.uint8), concentrations.astype(np.uint8)
    elif classes is not None and head is not None:
        tree = head.levels, head.concentrations
    else:
        raise ValueError("a set that is coded by itself has no tree")
    no_set = checked(entry["no_set"], int)
    if no_set not in (0, NO_SET):
        raise ValueError(f"{no_set} kinds of headers for rows without a set are not possible")
    sizes = packed("sizes", bucket_of(no_set + num_symbols)[0] + 1, 2**16)
    return TreeCode(no_set, *tree, sizes, classes, contexts)


def _used(classes: NDArray[np.uint8], contexts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The contexts of all classes, or of the first class if no symbol has another one."""
    by_class = contexts.reshape(3, NUM_CLASSES, NUM_OF_CLASS)
    return (by_class if classes.any() else by_class[:, :1]).reshape(-1)


@dataclass(frozen=True)
class _Fit:
    """A chain whose values are in the order of a tree.

    Parameters
    ----------
    features, vocabulary, shared_ids : as those of a `Chain`.
    keys : int64[facts] for each feature: row and shared id of each fact of some rows, ascending and distinct.
    num_rows : number of these rows.
    """

    features: Sequence[FeatureRows]
    vocabulary: Vocabulary
    shared_ids: Sequence[NDArray[np.int32]]
    keys: Sequence[NDArray[np.int64]]
    num_rows: int

    @classmethod
    def of(cls, chain: Chain, features: Sequence[FeatureRows]) -> "_Fit":
        """The chain of some features in the best order, learned from some of their rows."""
        num_values = len(chain.vocabulary)
        shared = [np.arange(num_values, dtype=np.int32) if ids is None else ids for ids in chain.shared_ids]
        all_facts, all_rows = sum(feature.num_facts for feature in features), len(features[0].states)
        num_rows = min(all_rows, 1 + all_rows * _FIT_FACTS // max(1, all_facts))
        rows = [first_rows(feature, num_rows) for feature in features]
        rank, vocabulary = np.arange(num_values), chain.vocabulary
        keys = [_keys(part.rows, ids[part.ids]) for part, ids in zip(rows, shared, strict=True)]
        if not any(feature.is_numbered for feature in features):
            whole = np.unique(np.concatenate(keys))
            order = order_of(Facts(whole >> 32, whole & _ID), num_values)
            rank[order] = np.arange(num_values)
            vocabulary = Vocabulary(vocabulary.values.take(pa.array(order)))
            keys = [np.sort(part & ~_ID | rank[part & _ID]) for part in keys]
        return cls(features, vocabulary, [rank[ids].astype(np.int32) for ids in shared], keys, num_rows)

    def codes(self) -> list[TreeCode]:
        """The code of each feature."""
        codes: list[TreeCode] = []
        num_values = len(self.vocabulary)
        seen, marks = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for feature, ids, keys in zip(self.features, self.shared_ids, self.keys, strict=True):
            is_member, others = np.isin(seen, keys), keys[~np.isin(keys, seen)]
            states = feature.states[: self.num_rows]
            no_set = 0 if (feature.states >= EMPTY).all() else NO_SET
            num_others = np.bincount(others >> 32, minlength=self.num_rows)
            sizes = size_shares(np.where(states >= EMPTY, num_others + no_set, states), no_set + num_values)
            if not codes:
                counts = np.zeros(num_values, np.int64)
                counts[ids] = feature.counts
                codes.append(TreeCode(no_set, *_tree(others, mass_levels(counts)), sizes))
            else:
                tree = codes[0].levels, codes[0].concentrations
                if len(others) > _LEAST_FACTS * num_values:
                    tree = _tree(others, mass_levels(np.bincount(others & _ID, minlength=num_values)))
                told = (states >= EMPTY)[seen >> 32]
                members = fit_members(seen[told], marks[told], is_member[told], num_values)
                codes.append(TreeCode(no_set, *tree, sizes, *members))
            seen = np.concatenate((seen, others))
            marks = np.concatenate((is_member | 2, np.ones(len(others), np.int64)))
            order = np.argsort(seen, kind="stable")
            seen, marks = seen[order], marks[order]
        return codes


def _keys(rows: NDArray[np.int64], ids: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.unique(rows << 32 | ids.astype(np.int64))


def _tree(keys: NDArray[np.int64], levels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Levels, and the concentrations that fit them."""
    return levels, concentrations_of(keys >> 32, keys & _ID, levels)
