"""The exact layer: rows that are not sealed yet, unchanged.

Unsealed rows are few compared with sealed ones, so their bytes matter little. Because they are exact, they
can be merged in memory and compared by timestamp; sketches cannot.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import RowReader
from feast_sketch_store.layers.row_reader import Layer, WantedFeature, stored_name
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.lists import removed_name
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import arrays_of, begin_feature, begin_unknown, prepare_attribute

_MICROSECONDS = 1_000_000  # per second; times are read in seconds
_ONE = 1  # counts are read without a factor


class ExactLayer(Layer):
    """Exact rows: distinct entities ordered by hash (as `rows.encode` returns them)."""

    def __init__(self, rows: EncodedRows):
        self.rows = rows

    @cached_property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        return {name: feature.codec for name, feature in self.rows.features.items()}

    def numbering(self, feature: str) -> Vocabulary | None:
        """The values of a feature in the order of their ids. Unsealed rows have ids with every codec."""
        return self.rows.features[feature].vocabulary

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays and vocabularies."""
        return self.rows.keys.size_bytes + sum(f.size_bytes for f in self.rows.features.values())

    def find(self, entity_hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The listed entities: their positions in the batch and their row numbers, int64[p] each."""
        return find_sorted(self.rows.keys.entity_hashes, entity_hashes)

    def _prepare(self, features: tuple[WantedFeature, ...]) -> RowReader:
        keys, prepared = self.rows.keys, kernel.RowReader()
        prepared.exact(np.ascontiguousarray(keys.entity_hashes), keys.event_timestamps, keys.deleted)
        prepared.fenced(keys.delete_barriers)
        for wanted in features:
            name = stored_name(wanted)
            feature = None if name is None else self.rows.features.get(name)
            if feature is None:
                begin_unknown(prepared)
                continue
            if feature.times is not None:
                beside = wanted if isinstance(wanted, FeatureCodec) else None
                self._prepare_items(prepared, feature, beside)
                continue
            begin_feature(prepared, feature.codec, feature.vocabulary)
            ids = feature.symbols.astype(np.int32, copy=False)
            prepared.from_rows(feature.states, feature.indptr, np.ascontiguousarray(ids))
        return prepared

    def _prepare_items(self, rows: RowReader, feature: EncodedFeature, beside: FeatureCodec | None) -> None:
        """Prepare values with times or counts, or what stands beside them, with what rows remove from older
        layers."""
        times, codec = feature.times, beside or feature.codec
        assert times is not None
        begin_feature(rows, codec, feature.vocabulary)  # numbers need them too, to be merged
        ids = np.ascontiguousarray(feature.symbols.astype(np.int32, copy=False))
        unit = _MICROSECONDS if codec.times_of else _ONE if codec.counts_of else 0
        rows.from_items(feature.states, feature.indptr, ids, np.ascontiguousarray(times), unit)
        prepare_attribute(rows, feature.codec, beside)
        removed = self.rows.features.get(removed_name(feature.codec.feature))
        if removed is not None:
            assert removed.times is not None
            ids = np.ascontiguousarray(removed.symbols.astype(np.int32, copy=False))
            times = np.ascontiguousarray(removed.times)
            rows.removals(removed.states, removed.indptr, ids, times, *arrays_of(removed.vocabulary))
