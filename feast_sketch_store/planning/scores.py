"""Points of scores with the model's own weights.

Formulas are made from the sample as a seal makes them from the rows, and their bytes count. A score is useful
only to the model whose weights it has.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.planning.curves import Candidate, encoded, sets_of
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.rows.codecs import SCORE, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows, RowKeys
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.columns import scalar_bytes
from feast_sketch_store.view.folding import weighted_formula, with_step

SCORE_CURVE = "score of the model's weights"

SCORE_BITS = 6
_WEIGHT_SHARES = (0.02, 0.05, 0.1, 0.25)  # of the values; other values add little but bytes
_WEIGHT_DIGITS = 6

Weights = Mapping[str, tuple[Vocabulary, NDArray[np.float64]]]


def score_name(codecs: Sequence[FeatureCodec]) -> str:
    """The name of the score that a view with such features has, or could have."""
    for codec in codecs:
        if codec.name == SCORE:
            return codec.feature
    taken, name = {codec.feature for codec in codecs}, "model_score"
    while name in taken:
        name += "_"
    return name


def as_encoded(sample: Sample) -> dict[str, EncodedFeature]:
    """The features of sampled entities in the form that formulas take."""
    return {name: encoded(name, feature) for name, feature in sample.features.items()}


def scores(
    sample: Sample,
    weights: Mapping[str, NDArray[np.float64]],
    name: str,
    write: Callable[[Weights, int], str],
) -> Iterator[Candidate]:
    """Points of a score without any values, for those of its weights, float64[V], that move it most.

    ``write`` writes weights, given with how many they are, to a file, and returns its path for a tag.
    """
    num_values = sum(map(len, weights.values()))
    if not any(own.any() for own in weights.values()):
        return  # there is nothing to add up
    for share in _WEIGHT_SHARES:
        chosen = _strongest(sample, weights, max(1, round(share * num_values)))
        number = sum(len(own) for _, own in chosen.values())
        formula = weighted_formula(name, chosen)
        known = formula.scores(as_encoded(sample), len(sample))
        formula = with_step(formula, SCORE_BITS, float(np.ptp(known)) if len(known) else 0.0)
        tags = {
            "sketch.codec": SCORE,
            "sketch.score": f"{{of: [{', '.join(sample.features)}], weights: {write(chosen, number)}, "
            f"bits: {SCORE_BITS}}}",
        }
        nothing_kept = {"sketch.structure": "sets", "sketch.vocabulary": "[]"}
        settings = {**dict.fromkeys(sample.features, nothing_kept), name: tags}
        label = f"{SCORE_BITS} bits, weights of {number:,} values"
        size = _score_bytes(sample, formula)
        candidate = sets_of(sample, sample.at_least(math.inf), SCORE_CURVE, label, settings, size)
        yield replace(candidate, formulas=(formula,))


def _score_bytes(sample: Sample, formula: Formula) -> float:
    """Bytes of a score: its column and its formula."""
    none = np.zeros(len(sample), np.bool_)
    times = np.zeros(len(sample), np.int64)
    keys = RowKeys(sample.entity_hashes, times, times, none, none)
    feature = formula.of(EncodedRows(keys, as_encoded(sample)))
    counts = np.bincount(feature.symbols, minlength=len(feature.vocabulary)).astype(np.int64)
    column = scalar_bytes(formula.codec, feature.states, feature.vocabulary, counts)
    return column * sample.scale + formula.size_bytes


def _strongest(sample: Sample, weights: Mapping[str, NDArray[np.float64]], number: int) -> Weights:
    """The values that add the most variance to a score, with their weights in few digits."""
    shares = {name: feature.counts / len(sample) for name, feature in sample.features.items()}
    moved = np.concatenate([weights[name] ** 2 * p * (1 - p) for name, p in shares.items()])
    is_kept = np.zeros(len(moved), np.bool_)
    is_kept[np.argsort(-moved, kind="stable")[:number]] = True
    chosen = {}
    for name, mask in sample.by_feature(is_kept).items():
        values = Vocabulary(sample.features[name].vocabulary.values.filter(pa.array(mask)))
        rounded = [float(f"{weight:.{_WEIGHT_DIGITS}g}") for weight in weights[name][mask]]
        chosen[name] = values, np.array(rounded, np.float64)
    return chosen
