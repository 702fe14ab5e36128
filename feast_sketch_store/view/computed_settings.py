"""Computed features: reads their tags and checks what they need.

Field(name="taste", dtype=Int64, tags={
    "sketch.codec": "cluster", "sketch.cluster_of": "viewed, liked", "sketch.clusters": "64"})
Field(name="click_score", dtype=Float64, tags={
    "sketch.codec": "score", "sketch.score_of": "viewed, liked",
    "sketch.score.weights": "plans/history.score.json", "sketch.score.bits": "8"})
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.rows.codecs import CLUSTER, MEMBERSHIP, SCORE, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.parts import checked
from feast_sketch_store.view.codec_choice import TAG_PREFIX

if TYPE_CHECKING:
    from feast.field import Field

CLUSTER_OF: Final = "cluster_of"
CLUSTERS: Final = "clusters"
SCORE_OF: Final = "score_of"
SCORE_WEIGHTS: Final = "score.weights"
SCORE_BITS: Final = "score.bits"

DEFAULT_TASTES: Final = 64  # clusters of a cluster id
DEFAULT_SCORE_BITS: Final = 8
MAX_SCORE_BITS: Final = 16

_TAGS: Final = {CLUSTER: {CLUSTER_OF, CLUSTERS}, SCORE: {SCORE_OF, SCORE_WEIGHTS, SCORE_BITS}}
_NEEDED: Final = {CLUSTER: (CLUSTER_OF,), SCORE: (SCORE_OF, SCORE_WEIGHTS)}
_TYPES: Final = {CLUSTER: "Int64", SCORE: "Float64"}


@dataclass(frozen=True)
class Computed:
    """How a feature is computed.

    Parameters
    ----------
    sources : names of other features of the view.
    num_clusters : the most clusters of a cluster id.
    weights : for a score, the path of a JSON file, relative to the feature repository.
    bits : for a score: the step is chosen so that the sealed rows have about ``2**bits`` scores at most.
    """

    sources: tuple[str, ...]
    num_clusters: int = 0
    weights: str = ""
    bits: int = 0


def feature_names(text: str) -> tuple[str, ...]:
    """Read names of features, separated by commas.

    Raises
    ------
    ValueError : there is no name, or a name twice.
    """
    names = tuple(name.strip() for name in str(text).split(","))
    if not all(names) or len({*names}) < len(names):
        raise ValueError("it must be names of features, each once, separated by commas")
    return names


def score_bits(text: Any) -> int:
    """Read a number of bits.

    Raises
    ------
    ValueError : it is not a whole number between 1 and `MAX_SCORE_BITS`.
    """
    if not 1 <= (number := int(text)) <= MAX_SCORE_BITS:
        raise ValueError(f"it must be a whole number between 1 and {MAX_SCORE_BITS}")
    return number


def is_computed_field(own_tags: Mapping[str, Any]) -> bool:
    """Whether tags of a feature, read and without their prefix, declare that it is computed."""
    of_computed = {CLUSTER_OF, SCORE_OF, SCORE_WEIGHTS, SCORE_BITS}
    return own_tags.get("codec") in _TAGS or not own_tags.keys().isdisjoint(of_computed)


def computed_codec(
    field: "Field", own_tags: Mapping[str, Any], where: str
) -> tuple[FeatureCodec, Computed, dict[str, Any]]:
    """The codec of a computed feature, how it is computed, and the remaining tags.

    Raises
    ------
    SettingsError : tags contradict each other or the type, or one is missing.
    """
    name = own_tags.get("codec")
    if name not in _TAGS:
        found = sorted({tag for tags in _TAGS.values() for tag in tags - {CLUSTERS}} & own_tags.keys())
        wanted = CLUSTER if CLUSTER_OF in found else SCORE
        raise SettingsError.of_tags(
            f"{where} has {TAG_PREFIX}{found[0]}, which only the codec {wanted!r} takes; set the tag "
            f"{TAG_PREFIX}codec to {wanted!r}, or remove {TAG_PREFIX}{found[0]}",
            {TAG_PREFIX + tag: None for tag in found},
        )
    usual = FeatureCodec.for_feature(field.name, field.dtype)
    if name not in usual.possible_names:
        raise SettingsError.of_tags(
            f"{where} has type {field.dtype}, and the codec {name!r} gives {_TYPES[name]}; declare it as "
            f"{_TYPES[name]}, or remove the tag {TAG_PREFIX}codec",
            {f"{TAG_PREFIX}codec": None, **dict.fromkeys(TAG_PREFIX + tag for tag in _TAGS[name])},
        )
    if idle := sorted(own_tags.keys() - _TAGS[name] - {"codec", "error_rate"}):
        raise SettingsError.of_tags(
            f"{where} has the codec {name!r}, so these tags have no effect: "
            f"{', '.join(TAG_PREFIX + tag for tag in idle)}; remove them",
            dict.fromkeys(TAG_PREFIX + tag for tag in idle),
        )
    if missing := [TAG_PREFIX + tag for tag in _NEEDED[name] if tag not in own_tags]:
        raise SettingsError.of_tags(
            f"{where} has the codec {name!r}, and no tag {missing[0]}; {_EXPLAINED[missing[0]]}",
            {TAG_PREFIX + tag: None for tag in own_tags.keys() - {"error_rate"}},
        )
    rest = {tag: value for tag, value in own_tags.items() if tag == "error_rate"}
    codec = FeatureCodec(field.name, usual.value_field, name)
    if name == CLUSTER:
        return codec, Computed(own_tags[CLUSTER_OF], own_tags.get(CLUSTERS, DEFAULT_TASTES)), rest
    bits = own_tags.get(SCORE_BITS, DEFAULT_SCORE_BITS)
    return codec, Computed(own_tags[SCORE_OF], 0, own_tags[SCORE_WEIGHTS], bits), rest


_EXPLAINED: Final = {
    TAG_PREFIX + CLUSTER_OF: "name the Sets that clusters are learned from, such as 'viewed, liked'",
    TAG_PREFIX + SCORE_OF: "name the Sets whose values have weights, such as 'viewed, liked'",
    TAG_PREFIX + SCORE_WEIGHTS: 'name a JSON file, {"viewed": [[VALUE, WEIGHT], ...], ...}',
}


def computed_problems(
    view: str, computed: Mapping[str, Computed], codecs: Sequence[FeatureCodec]
) -> Iterator[SettingsError]:
    """Find problems with the sources of computed features."""
    sets = [codec.feature for codec in codecs if codec.name == MEMBERSHIP]
    for name, how in computed.items():
        if others := [source for source in how.sources if source not in sets]:
            codec = CLUSTER if how.num_clusters else SCORE
            tag = TAG_PREFIX + (CLUSTER_OF if how.num_clusters else SCORE_OF)
            kept = ", ".join(source for source in how.sources if source in sets)
            removed = {TAG_PREFIX + own: None for own in ("codec", *_TAGS[codec])}
            yield SettingsError.of_view(
                f"feature {name!r} of view {view!r} is to be computed from {others}, which are not Sets or "
                f"Arrays of the view that are kept as sets; those are {sets}",
                {name: {tag: kept} if kept else removed},
            )


def read_weights(
    view: str, name: str, how: Computed, codecs: Mapping[str, FeatureCodec], folder: Path | None
) -> dict[str, tuple[Vocabulary, NDArray[np.float64]]]:
    """Read the weights of a score: per source its values and their weights, float64[V].

    Raises
    ------
    SettingsError : the file is missing, or has other features, values of another type, values twice, or
        weights that are not finite numbers.
    """
    path = Path(folder or ".") / how.weights
    where = f"feature {name!r} of view {view!r} takes its weights from {path}"
    try:
        content = checked(json.loads(path.read_text()), dict)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{where}, which cannot be read as a JSON object: {error}") from error
    if others := sorted({*content} - {*how.sources}):
        raise SettingsError(
            f"{where}, which has weights of {others}; {TAG_PREFIX}{SCORE_OF} names {list(how.sources)}"
        )
    found = {}
    for source in how.sources:
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
