"""The size of sampled features as sets, built as in a seal, with chains and vocabularies."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.planning.sample import FeatureSample, Sample, VocabularyMask
from feast_sketch_store.rows.codecs import EMPTY, VALUE, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal
from feast_sketch_store.structures.feature_rows import Part
from feast_sketch_store.structures.set_columns import SetColumns


def build_sets(parts: Mapping[str, FeatureSample], order: NDArray[np.int64]) -> SetColumns:
    """The sets of all features of the sampled rows, in this order, int64[n]."""
    rows = RowsToSeal(np.zeros((len(order), 2), np.uint64), (0, 0), order)
    return SetColumns.build([(_SampledRows(name, part), None) for name, part in parts.items()], rows)


def codec_of(name: str, feature: FeatureSample) -> FeatureCodec:
    """A codec that keeps sets of values of such a type."""
    kind = "int64" if pa.types.is_int64(feature.vocabulary.values.type) else "bytes"
    return FeatureCodec(name, f"{kind}_set_val")


def vocabulary_bytes(sample: Sample, kept: VocabularyMask, sampled_bytes: float) -> float:
    """Bytes of the vocabularies of the whole view, from those of the sampled values."""
    num_sampled = sum(int(np.count_nonzero(mask)) for mask in kept.values())
    num_values = sum(map(len, sample.kept_counts(kept).values()))
    return sampled_bytes * num_values / max(1, num_sampled)


class _SampledRows:
    """One feature of the sample in the form that structures take; see `FeatureRows`."""

    is_numbered = False

    def __init__(self, name: str, sample: FeatureSample):
        self.sealed_codec = codec_of(name, sample)
        self.states = np.where(sample.rows.lengths > 0, np.uint8(VALUE), np.uint8(EMPTY))
        self.vocabulary: Vocabulary = sample.vocabulary
        self.counts = sample.counts
        self.num_facts = sample.num_facts
        self._rows = sample.rows

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        yield self._places, self._rows.lengths.astype(np.int32)

    def kept_rows(self) -> Iterator[Part]:
        yield self._places, self._rows

    def rows(self) -> Iterator[Part]:
        yield from self.kept_rows()

    def release(self) -> None:
        pass

    @property
    def _places(self) -> NDArray[np.int32]:
        return np.arange(len(self.states), dtype=np.int32)
