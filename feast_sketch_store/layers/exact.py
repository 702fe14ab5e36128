"""The exact layer: rows that are not sealed yet, kept as they are.

Unsealed rows are few compared with sealed ones, so their bytes matter little. Because they are exact, they
can be merged in memory and compared by timestamp; sketches cannot.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.layers.answer import LayerAnswer
from feast_sketch_store.rows.codecs import Decoder, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.lists import removed_name
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer, CsrAnswer
from feast_sketch_store.structures.prepared import begin_feature, begin_unknown

_MICROSECONDS = 1_000_000  # per second; times are read in seconds


class ExactLayer:
    """Exact rows, one per entity.

    Parameters
    ----------
    rows : encoded rows, distinct entities ordered by hash (as `rows.encode` returns them).
    """

    def __init__(self, rows: EncodedRows):
        self.rows = rows
        self.prepared: dict[tuple[str | FeatureCodec, ...], PreparedRows | None] = {}  # see `layers.prepared`

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""
        return {name: feature.codec for name, feature in self.rows.features.items()}

    def numbering(self, feature: str) -> Vocabulary | None:
        """The values of a feature in the order of their ids. Unsealed rows have ids with every codec."""
        return self.rows.features[feature].vocabulary

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays and vocabularies."""
        return self.rows.keys.size_bytes + sum(f.size_bytes for f in self.rows.features.values())

    def merged_with(self, newer: "ExactLayer") -> "ExactLayer":
        """One layer with the newest row of each entity of either layer."""
        return ExactLayer(self.rows.merged_with(newer.rows))

    def find(self, entity_hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The listed entities: their positions in the batch and their row numbers, int64[p] each."""
        return find_sorted(self.rows.keys.entity_hashes, entity_hashes)

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        expire_before: int = NO_TIMESTAMP,
    ) -> LayerAnswer:
        """The rows of the entities that are listed.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; features that the layer does not know are left out of the answer.
        expire_before : microseconds since 1970; older rows are withheld.
        """
        decided, rows = self.find(entity_hashes)
        keys = self.rows.keys
        is_old = keys.event_timestamps[rows] < expire_before
        expired = decided[~keys.deleted[rows] & is_old]
        alive = ~keys.deleted[rows] & ~is_old
        fenced = decided[keys.fences[rows]]
        found, rows = decided[alive], rows[alive]
        answers: dict[str, Answer] = {}
        for name in features:
            feature = self.rows.features.get(name)
            if feature is not None:
                csr = feature.csr.take(rows)
                answers[name] = CsrAnswer(self._decoders[name], feature.states[rows], csr)
        return LayerAnswer(decided, found, keys.event_timestamps[rows], answers, fenced, expired)

    def prepare(self, features: Sequence[str | FeatureCodec]) -> PreparedRows | None:
        """Prepare the rows and some features for reads of one entity; see `layers.prepared.Wanted`."""
        keys, prepared = self.rows.keys, kernel.prepared_rows()
        if prepared is None:
            return None
        prepared.exact(np.ascontiguousarray(keys.entity_hashes), keys.event_timestamps, keys.deleted)
        prepared.fenced(keys.fences)
        for wanted in features:
            feature = self.rows.features.get(wanted if isinstance(wanted, str) else wanted.source)
            if feature is None:
                begin_unknown(prepared)
                continue
            if feature.codec.is_list:
                self._prepare_items(prepared, feature, feature.codec if isinstance(wanted, str) else wanted)
                continue
            if isinstance(wanted, FeatureCodec):
                begin_feature(prepared, wanted, None)
                weights = feature.csr.weights
                weights = np.ones(len(feature.symbols), np.int64) if weights is None else weights
                prepared.from_weights(feature.states, feature.indptr, np.ascontiguousarray(weights))
                continue
            begin_feature(prepared, feature.codec, feature.vocabulary)
            ids = feature.symbols.astype(np.int32, copy=False)
            prepared.from_rows(feature.states, feature.indptr, np.ascontiguousarray(ids))
        return prepared

    def _prepare_items(self, rows: PreparedRows, feature: EncodedFeature, codec: FeatureCodec) -> None:
        """Prepare a list, or the times of its items, with the items that rows remove from older layers."""
        times = feature.times
        assert times is not None
        begin_feature(rows, codec, feature.vocabulary)  # times need the values too: they decide what repeats
        ids = np.ascontiguousarray(feature.symbols.astype(np.int32, copy=False))
        unit = 0 if codec.is_list else _MICROSECONDS
        rows.from_items(feature.states, feature.indptr, ids, np.ascontiguousarray(times), unit)
        removed = self.rows.features.get(removed_name(feature.codec.feature))
        if removed is not None:
            assert removed.times is not None
            ids = np.ascontiguousarray(removed.symbols.astype(np.int32, copy=False))
            arrays = removed.vocabulary.to_arrays()
            values = [arrays.get(name) for name in ("values", "offsets", "data")]
            rows.removals(removed.states, removed.indptr, ids, np.ascontiguousarray(removed.times), *values)

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        return {
            name: Decoder(feature.codec, feature.vocabulary) for name, feature in self.rows.features.items()
        }
