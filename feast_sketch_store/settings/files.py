"""Reads the files that settings name: values of a vocabulary, weights of a score, the function of a gate."""

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers import Cut
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.settings.table import TAG_PREFIX, Score
from feast_sketch_store.settings.values import KeptValues
from feast_sketch_store.structures.parts import checked


def cut_of(wanted: KeptValues, codec: FeatureCodec, where: str, folder: Path | None) -> Cut:
    """Which values of a feature are kept.

    Raises
    ------
    SettingsError : a file with the values cannot be used.
    """
    values, source = wanted.values, "a list"
    if wanted.file is not None:
        path = Path(folder or ".") / wanted.file
        source = str(path)
        try:
            values = tuple(checked(json.loads(path.read_text()), list))
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                f"{where} takes its vocabulary from {path}, which cannot be read as a JSON list: {error}"
            ) from error
    if values is None:
        return Cut(wanted.top)
    try:
        element_type = codec.arrow_type.value_type
        kept = codec.to_storage(pa.array(values, element_type).drop_null())
        if pa.types.is_integer(element_type):
            pa.array(values).cast(element_type)  # refuses fractions, which would be cut off
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise SettingsError(
            f"{where} takes its vocabulary from {source}, which has a value of another type than the "
            f"feature, {element_type}: {error}"
        ) from error
    return Cut(values=kept)


def check_of(view: str, path: str, folder: Path | None) -> Callable[..., Any]:
    """The function that a view's gate calls.

    Parameters
    ----------
    path : ``module:function``; the module is a file in the folder, or one that Python finds.

    Raises
    ------
    SettingsError : there is none, or its module cannot be imported.
    """
    name, _, function = path.partition(":")
    file = Path(folder or ".").joinpath(*name.split(".")).with_suffix(".py")
    try:
        spec = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
        if spec is None or spec.loader is None:
            module = importlib.import_module(name)
        else:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        found = getattr(module, function)
    except Exception as error:  # a module of the user may raise any
        raise SettingsError(
            f"the gate of feature view {view!r} calls {path}, which cannot be imported, neither from {file} "
            f"nor from an installed module: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise SettingsError(f"the gate of feature view {view!r} calls {path}, which is not a function")
    return found  # type: ignore[no-any-return]


def read_weights(
    view: str, name: str, score: Score, codecs: Mapping[str, FeatureCodec], folder: Path | None
) -> dict[str, tuple[Vocabulary, NDArray[np.float64]]]:
    """Read the weights of a score: per source its values and their weights, float64[V].

    Raises
    ------
    SettingsError : the file is missing, or has other features, values of another type, values twice, or
        weights that are not finite numbers.
    """
    path = Path(folder or ".") / score.weights
    where = f"feature {name!r} of view {view!r} takes its weights from {path}"
    try:
        content = checked(json.loads(path.read_text()), dict)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{where}, which cannot be read as a JSON object: {error}") from error
    if others := sorted({*content} - {*score.of}):
        raise SettingsError(
            f"{where}, which has weights of {others}; {TAG_PREFIX}score names {list(score.of)}"
        )
    found = {}
    for source in score.of:
        try:
            found[source] = _pairs(content.get(source, []), codecs[source])
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise SettingsError(
                f"{where}, where feature {source!r} needs a list of [VALUE, WEIGHT] with each value once, of "
                f"type {codecs[source].arrow_type.value_type}: {error}"
            ) from error
    if not any(weights.any() for _, weights in found.values()):
        raise SettingsError(f"{where}, which has no weight but 0")
    return found


def _pairs(entries: Any, codec: FeatureCodec) -> tuple[Vocabulary, NDArray[np.float64]]:
    pairs = [checked(entry, list) for entry in checked(entries, list)]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("an entry is not a pair")
    values = pa.array([value for value, _ in pairs], codec.arrow_type.value_type)
    if values.null_count:
        raise ValueError("a value is null")
    if pa.types.is_integer(values.type):
        pa.array([value for value, _ in pairs]).cast(values.type)  # refuses fractions
    weights = [weight for _, weight in pairs]
    if not all(type(weight) in (int, float) and math.isfinite(weight) for weight in weights):
        raise ValueError("a weight is not a finite number")
    stored = codec.to_storage(values)
    if len(stored.unique()) < len(stored):
        raise ValueError("a value is there twice")
    return Vocabulary(stored), np.array(weights, np.float64)
