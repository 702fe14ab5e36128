"""Set columns: memberships of listed rows that are kept exactly, as Golomb-coded sets of all features
together.

The header of a set tells the row's state, too: ``n`` for a set of n elements, or ``n + 2`` if there are rows
that have none, whose header is MISSING or NULL itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.rows.codecs import EMPTY, NULL, VALUE, Decoder, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import FeatureAnswer
from feast_sketch_store.structures.columns import PACKED, Parts, checked, describe
from feast_sketch_store.succinct import GolombSets, SetCode

_NO_SET = NULL + 1  # headers of rows without a set


@dataclass(frozen=True)
class SetFeature:
    """One feature of set columns; ``num_facts`` is the size of all its sets together."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    num_facts: int


@dataclass(frozen=True)
class SetColumns:
    """Features of n rows; ``sets`` has a code for each of ``features``, in their order."""

    features: Sequence[SetFeature]
    sets: GolombSets

    @classmethod
    def build(
        cls,
        features: Sequence[SetFeature],
        counts: Sequence[NDArray[np.int64]],
        states: Sequence[NDArray[np.uint8]],
        indptr: NDArray[np.int64],
        symbols: NDArray[np.int32],
    ) -> "SetColumns":
        """Columns of n rows.

        Parameters
        ----------
        counts : per feature how many rows have each symbol, int64[V], from the most popular one on.
        states : per feature uint8[n].
        indptr, symbols : int64[n * F + 1] and int32[nnz]; row ``r * F + f`` of this CSR matrix has the
            symbols of feature ``f`` of row ``r``.
        """
        headers = np.empty((len(states[0]), len(features)), np.int32)
        codes = []
        for number, (state, count) in enumerate(zip(states, counts, strict=True)):
            headers[:, number], no_set = _headers(state, np.diff(indptr)[number :: len(features)])
            codes.append(SetCode.fit(count, headers[:, number], no_set))
        indptr, symbols = kernel.distinct_per_row(indptr, symbols)
        return cls(features, GolombSets.build(codes, headers, indptr, symbols))

    @staticmethod
    def row_bits(
        counts: NDArray[np.int64],
        states: NDArray[np.uint8],
        indptr: NDArray[np.int64],
        symbols: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """The bits that the sets of one feature take in n rows: int64[n]; parameters as of `build`."""
        headers, no_set = _headers(states, np.diff(indptr))
        code = SetCode.fit(counts, headers, no_set)
        indptr, symbols = kernel.distinct_per_row(indptr, symbols)
        return GolombSets.lengths(code, headers, indptr, symbols)

    def __len__(self) -> int:
        return self.sets.num_rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the sets and of where they begin; the vocabularies are not counted."""
        return self.sets.size_bytes

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The place of each feature among the features."""
        return {feature.codec.feature: number for number, feature in enumerate(self.features)}

    def read(self, name: str, rows: NDArray[np.int64]) -> FeatureAnswer:
        """One feature of some rows.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        number = self.numbers[name]
        headers, indptr, symbols = self.sets.read(rows, number)
        no_set = self.sets.codes[number].no_set
        states = np.where(headers > no_set, np.uint8(VALUE), np.uint8(EMPTY))
        if no_set:
            states = np.where(headers < no_set, headers.astype(np.uint8), states)
        return FeatureAnswer(self._decoders[number], states, indptr, symbols)

    @cached_property
    def _decoders(self) -> Sequence[Decoder]:
        return [Decoder(feature.codec, feature.vocabulary) for feature in self.features]

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """The columns as a JSON-serializable description and named arrays."""
        sets = self.sets
        arrays: dict[str, NDArray[np.generic]] = {
            f"codes.{PACKED}": sets.words,
            f"anchors.{PACKED}": sets.anchors.words,
            f"deltas.{PACKED}": sets.deltas.words,
        }
        entries = []
        for number, (feature, code) in enumerate(zip(self.features, sets.codes, strict=True)):
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
            for part, array in feature.vocabulary.to_arrays().items():
                arrays[f"{number}.vocabulary.{part}"] = array
        description = {
            "features": entries,
            "num_bits": sets.num_bits,
            "anchors": describe(sets.anchors),
            "deltas": describe(sets.deltas),
        }
        return description, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> "SetColumns":
        """The reverse of `to_snapshot`.

        Raises
        ------
        ValueError, KeyError, TypeError : the parts do not fit each other.
        """
        features, codes = [], []
        for number, entry in enumerate(description["features"]):
            codec = FeatureCodec(checked(entry["name"], str), entry["value_field"])
            if not codec.is_collection:
                raise ValueError(f"{codec.feature!r} is no collection")
            vocabulary = parts.vocabulary(f"{number}.vocabulary", codec)
            level_ends: Any = parts.arrays[f"{parts.prefix}{number}.level_ends"]
            if level_ends.ndim != 1:
                raise ValueError(f"the levels of {codec.feature!r} are no list")
            code = SetCode(checked(entry["header_width"], int), checked(entry["no_set"], int), level_ends)
            num_facts = checked(entry["num_facts"], int)
            if len(vocabulary) != code.num_symbols or code.no_set not in (0, _NO_SET) or num_facts < 0:
                raise ValueError(f"the vocabulary of {codec.feature!r} does not fit its code")
            features.append(SetFeature(codec, vocabulary, num_facts))
            codes.append(code)
        name = f"{parts.prefix}codes.{PACKED}"
        words: Any = parts.arrays[name]
        sets = GolombSets(
            codes,
            words,
            checked(description["num_bits"], int),
            parts.packed("anchors", description["anchors"]),
            parts.packed("deltas", description["deltas"]),
            parts.checks.get(name),
        )
        if len({feature.codec.feature for feature in features}) != len(features):
            raise ValueError("two set columns bear the same name")
        return cls(features, sets)


def _headers(states: NDArray[np.uint8], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """The header of each row's set, and how many headers stand for rows without one."""
    has_set = states >= EMPTY
    no_set = 0 if has_set.all() else _NO_SET
    return np.where(has_set, sizes + no_set, states).astype(np.int32), no_set
