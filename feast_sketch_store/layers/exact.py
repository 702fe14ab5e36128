"""The exact layer: rows that are not sealed yet, kept as they are.

Unsealed rows are few beside the sealed ones, so their bytes matter little; being exact, they can be
merged in memory and compared by timestamp, which a sketch cannot.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import Decoder
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedRows, take_csr
from feast_sketch_store.structures.answer import AnyAnswer, FeatureAnswer, LayerAnswer


class ExactLayer:
    """Exact rows, one per entity.

    Parameters
    ----------
    rows : encoded rows, distinct entities ordered by hash (as `rows.encode` returns them).
    """

    def __init__(self, rows: EncodedRows):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays and vocabularies."""
        return self.rows.keys.size_bytes + sum(
            f.states.nbytes + f.indptr.nbytes + f.symbols.nbytes + f.vocabulary.size_bytes
            for f in self.rows.features.values()
        )

    def merged_with(self, newer: "ExactLayer") -> "ExactLayer":
        """One layer with the newest row of each entity of both."""
        return ExactLayer(self.rows.merged_with(newer.rows))

    def find(self, entity_hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of the entities are listed: their positions in the batch and their rows, int64[p] each."""
        return find_sorted(self.rows.keys.entity_hashes, entity_hashes)

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        expire_before: int = NO_TIMESTAMP,
    ) -> LayerAnswer:
        """The rows of those entities that are listed.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; those the layer does not know are left out of the answer.
        expire_before : microseconds since 1970; older rows are not returned.
        """
        decided, rows = self.find(entity_hashes)
        keys = self.rows.keys
        alive = ~keys.deleted[rows] & (keys.event_timestamps[rows] >= expire_before)
        fenced = decided[keys.fences[rows]]
        found, rows = decided[alive], rows[alive]
        answers: dict[str, AnyAnswer] = {}
        for name in features:
            feature = self.rows.features.get(name)
            if feature is not None:
                indptr, symbols = take_csr(feature.indptr, feature.symbols, rows)
                answers[name] = FeatureAnswer(self._decoders[name], feature.states[rows], indptr, symbols)
        return LayerAnswer(decided, found, keys.event_timestamps[rows], answers, fenced)

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        return {
            name: Decoder(feature.codec, feature.vocabulary) for name, feature in self.rows.features.items()
        }


def find_sorted(
    listed: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Look up 128-bit hashes in a sorted list.

    Parameters
    ----------
    listed : uint64[m, 2], ordered by the first, then the second half.
    wanted : uint64[n, 2]

    Returns
    -------
    Positions in ``wanted`` that are listed, ascending, and where they are listed: int64[p] each.
    """
    places = np.searchsorted(listed[:, 0], wanted[:, 0])
    unsettled = np.arange(len(wanted))
    positions, rows = [], []
    # One round settles all but entities that share the first 64 bits with another one.
    while unsettled.size:
        unsettled = unsettled[places[unsettled] < len(listed)]
        at_place = listed[places[unsettled]]
        same_first = at_place[:, 0] == wanted[unsettled, 0]
        same = same_first & (at_place[:, 1] == wanted[unsettled, 1])
        positions.append(unsettled[same])
        rows.append(places[unsettled[same]])
        unsettled = unsettled[same_first & ~same]
        places[unsettled] += 1
    if not positions:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(found := np.concatenate(positions), kind="stable")
    return found[order], np.concatenate(rows)[order]
