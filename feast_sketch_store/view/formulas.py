"""Makes the formulas of a view's scores at a seal.

A formula has the weights of a file, and a step that divides the scores of the rows. Its version goes up when
the weights change.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import CATEGORICAL, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedRows
from feast_sketch_store.rows.formulas import Formula, Source, same_weights, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.settings.files import read_weights
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.view.semantics import FoldedRows

_logger = logging.getLogger(__name__)

_SAMPLE_ROWS = 1 << 17
_MOST = 1 << 30  # of the weights of a score

Batch = tuple[NDArray[np.int64], EncodedRows]
Ranges = Mapping[str, tuple[float, float]]  # the lowest and the highest score of some rows, by feature


def weighted_formulas(settings: ViewSettings, known: Mapping[str, Formula]) -> dict[str, Formula]:
    """The formulas of all computed features, with the smallest steps.

    Parameters
    ----------
    known : formulas of the last seal; empty for none.

    Raises
    ------
    SettingsError : a file of weights cannot be used.
    """
    wanted = {name: f.score for name, f in settings.features.items() if f.score is not None}
    made = {}
    for name, score in wanted.items():
        codecs, before = {n: settings.features[n].codec for n in score.of}, known.get(name)
        weights = read_weights(settings.view, name, score, codecs, settings.folder)
        made[name] = weighted_formula(name, weights, before)
        if before is not None and made[name].version != before.version:
            _logger.warning(
                "feature %r of view %r has version %d now: its numbers mean something else, so train the "
                "models that use it again",
                name,
                settings.view,
                made[name].version,
            )
    return made


def weighted_formula(
    name: str,
    weights: Mapping[str, tuple[Vocabulary, NDArray[np.float64]]],
    known: Formula | None = None,
) -> Formula:
    """The formula of a score with given weights, by source; its step is its unit.

    Parameters
    ----------
    known : of the last seal.
    """
    largest = max(float(np.abs(own).max(initial=0.0)) for _, own in weights.values())
    unit = largest / _MOST
    sources = []
    for source, (vocabulary, own) in weights.items():
        whole = np.rint(own / unit).astype(np.int32)
        used = np.flatnonzero(whole)
        values = Vocabulary(vocabulary.values.take(pa.array(used)))
        sources.append(Source(source, values, whole[used]))
    formula = Formula(FeatureCodec(name, "double_val", CATEGORICAL), tuple(sources), unit, unit)
    if known is None:
        return formula
    return replace(formula, version=known.version + (not same_weights(known, formula)))


def ranges_of(
    rows: FoldedRows, settings: ViewSettings, formulas: Mapping[str, Formula], share: float = 1.0
) -> Ranges:
    """The ranges of the scores of a sample of rows; none if there are no rows.

    Parameters
    ----------
    share : of the sample to take from these rows, if they are a part of all rows.
    """
    sources = dict.fromkeys(source.feature for formula in formulas.values() for source in formula.sources)
    codecs = [settings.features[name].codec for name in sources]
    step = max(1, len(rows) // max(1, int(_SAMPLE_ROWS * share)))
    found: list[Ranges] = []
    for places, encoded in rows.encoded(codecs):
        taken = encoded.take(np.flatnonzero(places % step == 0))
        if len(taken):
            scores = {name: formula.scores(taken.features, len(taken)) for name, formula in formulas.items()}
            found.append({name: (float(own.min()), float(own.max())) for name, own in scores.items()})
    return _joint_ranges(found)


def stepped(
    formulas: Mapping[str, Formula], settings: ViewSettings, ranges: Sequence[Ranges]
) -> dict[str, Formula]:
    """Formulas whose steps divide the scores of all parts of the rows."""
    together, made = _joint_ranges(ranges), {}
    for name, formula in formulas.items():
        score = settings.features[name].score
        assert score is not None
        low, high = together.get(name, (0.0, 0.0))
        made[name] = with_step(formula, score.bits, high - low)
    return made


def with_step(formula: Formula, bits: int, width: float) -> Formula:
    """The formula with a step that divides a range of scores of this width into numbers of so many bits."""
    return replace(formula, step=max(width / (2**bits - 1), formula.unit))


def _joint_ranges(parts: Sequence[Ranges]) -> Ranges:
    lows = {name: min(part[name][0] for part in parts if name in part) for part in parts for name in part}
    return {name: (low, max(part[name][1] for part in parts if name in part)) for name, low in lows.items()}


def computed_rows(batches: Iterator[Batch], formulas: Mapping[str, Formula]) -> Iterator[Batch]:
    """Add the features that formulas compute to rows."""
    for places, rows in batches:
        yield places, with_formulas(rows, formulas)


def as_stored(codec: FeatureCodec) -> FeatureCodec:
    """The codec with which a layer keeps a feature: a computed one is kept as a number."""
    return FeatureCodec(codec.feature, codec.value_field, CATEGORICAL) if codec.is_computed else codec
