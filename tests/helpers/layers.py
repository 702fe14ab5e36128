"""Rows with features of their own making, and layers of them, built without a view."""

from collections.abc import Iterable
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers import FeatureBudget, SketchLayer, SketchLayerBuilder
from feast_sketch_store.rows.codecs import EMPTY, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows, RowKeys
from feast_sketch_store.rows.vocabulary import Vocabulary


def random_hashes(rng: np.random.Generator, num_rows: int) -> NDArray[np.uint64]:
    """Hashes of entities in the order of rows: uint64[n, 2]."""
    hashes = rng.integers(0, 2**64, (num_rows, 2), np.uint64)
    return hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))]


def sets_of(name: str, csr: Csr, values: pa.Array, field: str = "int64_set_val") -> EncodedFeature:
    """A feature with the sets of a CSR matrix, whose ids are those of values; rows without any are empty."""
    states = np.where(csr.lengths > 0, VALUE, EMPTY).astype(np.uint8)
    csr = Csr(csr.indptr, csr.ids.astype(np.int32))
    return EncodedFeature(FeatureCodec(name, field), Vocabulary(values), states, csr)


def rows_with(
    features: Iterable[EncodedFeature], hashes: NDArray[np.uint64], events: NDArray[np.int64] | None = None
) -> EncodedRows:
    """Rows of features with the hashes of their entities, and with timestamps, by default all the same."""
    events = np.zeros(len(hashes), np.int64) if events is None else events
    nothing = np.zeros(len(hashes), np.bool_)
    keys = RowKeys(hashes, events, events, nothing, nothing)
    return EncodedRows(keys, {feature.codec.feature: feature for feature in features})


def build_layer(rows: EncodedRows, budget: FeatureBudget, salt: tuple[int, int] | None = None) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``; with a salt, it is always the same."""
    codecs = [feature.codec for feature in rows.features.values()]
    builder = SketchLayerBuilder(rows.keys, codecs, [(np.arange(len(rows)), rows)])
    name = "feast_sketch_store.layers.build.new_salt"
    with nullcontext() if salt is None else mock.patch(name, return_value=salt):
        return builder.build(budget)
