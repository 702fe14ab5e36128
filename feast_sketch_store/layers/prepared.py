"""Layers in the form in which the compiled kernel reads one entity in one call.

A read of one entity through arrays costs some dozens of NumPy calls, each about a microsecond. A prepared
layer answers it in one call, from the same arrays. It is made at the first read of a set of features, and
lives as long as the layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.layers.delta import DeltaLayer
from feast_sketch_store.layers.exact import ExactLayer
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec

# Prepared forms that a layer keeps, one for each set of requested features.
_MAX_QUESTIONS = 64


class Wanted(NamedTuple):
    """What reads of one entity request from layers.

    Parameters
    ----------
    features : names; or the codec of a feature whose values may be only in other layers.
    lists : set if the rows of an entity add up: for each feature, how many items its list shows, and the
        microseconds within which it shows a value once. None if the newest layer with an entity answers.
    """

    features: tuple[str | FeatureCodec, ...]
    lists: tuple[tuple[int, int], ...] | None = None


def stack(
    layers: Sequence[SketchLayer | DeltaLayer | ExactLayer],
    wanted: Wanted,
    names: Sequence[NDArray[np.int32] | None] | None = None,
    shards: Sequence[int | None] = (),
) -> PreparedRows | None:
    """Combine layers so that one call reads them all.

    Parameters
    ----------
    layers : from the newest to the oldest; the first that lists an entity answers.
    wanted : the requested features; a layer may lack some of them.
    names : for each layer, int32[V], the ids in answers of its first feature's ids; None if they are equal.
    shards : if entities are divided by the highest bits of their hashes, how many layers each part has, one
        part after the other; None for a part that is not read here.

    Returns
    -------
    The combined layers; None if the kernel is not compiled, or cannot read some feature of a layer.
    """
    prepared = kernel.prepared_rows()
    if prepared is None or not layers:
        return None
    for number, layer in enumerate(layers):
        delta = layer if isinstance(layer, DeltaLayer) else None
        rows = _of_layer(layer.layer if isinstance(layer, DeltaLayer) else layer, wanted.features)
        if rows is None:
            return None
        entities = (None, None) if delta is None else (delta.listed, delta.deleted)
        prepared.layer(rows, names[number] if names else None, *entities)
    if wanted.lists is not None:
        limits, resolutions = (np.array(numbers, np.int64) for numbers in zip(*wanted.lists, strict=True))
        prepared.limits(limits, resolutions, names is not None, kernel.SEED)
    if len(shards) > 1:
        first_layers = np.cumsum([0, *(number or 0 for number in shards)])
        is_served = np.array([number is not None for number in shards])
        prepared.shards(64 - (len(shards) - 1).bit_length(), first_layers, is_served)
    return prepared


def _of_layer(
    layer: SketchLayer | ExactLayer, features: tuple[str | FeatureCodec, ...]
) -> PreparedRows | None:
    known = layer.prepared
    if features not in known:
        if len(known) >= _MAX_QUESTIONS:
            known.clear()
        known[features] = layer.prepare(features)
    return known[features]
