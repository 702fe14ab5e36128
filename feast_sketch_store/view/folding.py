"""Folds the rows of a shard into a layer, with the features that are computed from others.

The formula of a computed feature has the weights of a file, and a step that divides the scores of the rows.
Its version goes up when the weights change.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from shlex import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError, SketchStoreError
from feast_sketch_store.layers import DeltaLayer, SketchLayer, SketchLayerBuilder
from feast_sketch_store.layers.build import MAX_ROWS
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.rows.codecs import CATEGORICAL, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedRows, RowKeys
from feast_sketch_store.rows.formulas import Formula, Source, same_weights, with_formulas
from feast_sketch_store.rows.newest import Batches, NewestRows
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.settings.view_settings import ViewSettings, read_weights
from feast_sketch_store.view.semantics import REPLACE, FoldedRows

_logger = logging.getLogger(__name__)

# A seal rewrites the row log when rows were deleted or expired, or when this share of it is outdated.
_SUPERSEDED_SHARE = 0.25
_MAX_FILES = 64

_SAMPLE_ROWS = 1 << 17  # whose scores decide the step
_MOST = 1 << 30  # of the weights of a score

Batch = tuple[NDArray[np.int64], EncodedRows]
Ranges = Mapping[str, tuple[float, float]]  # the lowest and the highest score of some rows, by feature


def wants_compaction(rows: FoldedRows, num_files: int) -> bool:
    """Whether to rewrite the table after a seal of these rows, which came from ``num_files`` files."""
    superseded = rows.num_rows - len(rows) - rows.num_undeclared
    return rows.has_dead or superseded > _SUPERSEDED_SHARE * rows.num_rows or num_files > _MAX_FILES


def fold(
    rows: FoldedRows,
    settings: ViewSettings,
    joint: SharedVocabularies | None = None,
    known: Mapping[str, Formula] | None = None,
    complete_since: int = NO_TIMESTAMP,
) -> SketchLayer:
    """Fold rows into a layer. Reads no files except those that settings name.

    Parameters
    ----------
    joint : what this layer shares with other layers of the view.
    known, complete_since : the formulas of the last seal, and what it left out (see `SketchLayer`).

    Raises SketchStoreError: there are more rows than a layer takes.
    """
    if len(rows) > MAX_ROWS:
        raise SketchStoreError(
            f"view {settings.view!r}: {len(rows)} entities have rows, and a seal takes at most {MAX_ROWS}; "
            "the rows are kept. Divide the view into shards, or into more shards, with "
            f"`feast-sketch reshard {quote(settings.view)} --shards 16`"
        )
    formulas: Mapping[str, Formula] = {}
    if joint is not None:
        formulas = joint.formulas
    elif settings.computed:
        formulas = weighted_formulas(settings, known or {})
        formulas = stepped(formulas, settings, [ranges_of(rows, settings, formulas)])
    budget = settings.budget
    if joint is not None:
        budget = joint.budget_of(budget, settings.stored_codecs, len(rows))
    with view_named_in_errors(settings.view):
        layer = builder_of(rows, settings, formulas).build(budget, joint)
    warn_of_exact(settings.view, layer.failed_over)
    layer = replace(layer, formulas=formulas)
    if settings.semantics == REPLACE:
        return layer
    since = rows.expire_before
    complete_since = max(since, complete_since)
    return replace(layer, semantics=settings.semantics, since=since, complete_since=complete_since)


def builder_of(
    rows: FoldedRows, settings: ViewSettings, formulas: Mapping[str, Formula]
) -> SketchLayerBuilder:
    """A builder with rows, and what formulas compute of them."""
    codecs = settings.stored_codecs
    encoded = computed_rows(rows.encoded(codecs), formulas)
    return SketchLayerBuilder(rows.keys, [*map(as_stored, codecs)], encoded)


@contextmanager
def view_named_in_errors(view: str) -> Iterator[None]:
    """Name the view in the errors of layers, which know only features."""
    try:
        yield
    except SettingsError as error:
        error.args = (f"feature view {view!r}: {error}",)
        raise


def warn_of_exact(view: str, reasons: Mapping[str, str]) -> None:
    """Log why features are not in the filter that settings name; ``reasons`` has a reason by feature."""
    for name, reason in reasons.items():
        _logger.warning("feature %r of view %r is sealed exactly: %s", name, view, reason)


def num_kept(deltas: Sequence[DeltaLayer], num_rows: int) -> int:
    """How many deltas stay when this many rows become a new one; the new delta absorbs the others.

    Each delta has more than twice the entities of the next one. So there are few deltas, and each entity is
    sealed again a logarithmic number of times.
    """
    number = len(deltas)
    while number and 2 * num_rows >= len(deltas[number - 1]):
        number -= 1
        num_rows += len(deltas[number])
    return number


def fold_delta(
    batches: Batches,
    settings: ViewSettings,
    cut_vocabularies: Mapping[str, Vocabulary],
    late: Callable[[RowKeys], NDArray[np.bool_]],
    formulas: Mapping[str, Formula],
) -> tuple[SketchLayer, RowKeys]:
    """Fold rows into a delta: the layer, and the keys of its rows and of deleted entities.

    Parameters
    ----------
    cut_vocabularies : the kept values of features with a cut.
    late : which rows are older than the layers below.
    formulas : of the base, which give the rows their computed features.
    """
    rows = NewestRows(batches, keeps_deleted=True)
    is_listed = ~late(rows.keys)
    is_row = is_listed & ~rows.keys.deleted
    new_places = np.cumsum(is_row) - 1

    def alive() -> Iterator[Batch]:
        encoded_rows = computed_rows(rows.encoded(settings.stored_codecs), formulas)
        for places, encoded in encoded_rows:
            taken = np.flatnonzero(is_row[places])
            yield new_places[places[taken]], encoded.take(taken).within(cut_vocabularies)

    budget = replace(settings.budget, cuts={})
    keys = rows.keys.take(np.flatnonzero(is_row))
    builder = SketchLayerBuilder(keys, [*map(as_stored, settings.stored_codecs)], alive())
    return builder.build(budget), rows.keys.take(np.flatnonzero(is_listed))


# -- formulas ------------------------------------------------------------------------------------------


def weighted_formulas(settings: ViewSettings, known: Mapping[str, Formula]) -> dict[str, Formula]:
    """The formulas of all computed features, with the smallest steps; ``known`` are those of the last seal.

    Raises SettingsError: a file of weights cannot be used.
    """
    wanted = {name: f.score for name, f in settings.features.items() if f.score is not None}
    made = {}
    for name, score in wanted.items():
        codecs, before = {n: settings.features[n].codec for n in score.of}, known.get(name)
        weights = read_weights(settings.view, name, score, codecs, settings.folder)
        made[name] = weighted_formula(name, weights, before)
        if before is not None and made[name].version != before.version:
            _logger.warning(
                "feature %r of view %r has version %d now: its numbers have another meaning, so retrain the "
                "models that use it again",
                name,
                settings.view,
                made[name].version,
            )
    return made


def weighted_formula(
    name: str, weights: Mapping[str, tuple[Vocabulary, NDArray[np.float64]]], known: Formula | None = None
) -> Formula:
    """The formula of a score with given weights, by source; its step is its unit. ``known`` is the last
    seal's.
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

    If the rows are a part of all rows, ``share`` is the part of the sample that they give.
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
