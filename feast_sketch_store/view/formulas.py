"""Makes the formulas of a view's scores at a seal.

A formula has the weights of a file, and a step that divides the scores of the rows. Its version goes up when
the weights change.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import CATEGORICAL, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows
from feast_sketch_store.rows.formulas import Formula, Source, same_weights, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder
from feast_sketch_store.settings.view_settings import ViewSettings, read_weights
from feast_sketch_store.view.semantics import FoldedRows

_logger = logging.getLogger(__name__)

_SAMPLE_ROWS = 1 << 17
_MOST = 1 << 30  # of the weights of a score

Batch = tuple[NDArray[np.int64], EncodedRows]


class Sampled(NamedTuple):
    """A sample of rows to make formulas from: their features."""

    features: Mapping[str, EncodedFeature]
    num_rows: int

    @classmethod
    def of(cls, parts: Sequence["Sampled"]) -> "Sampled":
        """Samples of several parts of the rows together, in their order."""
        if len(parts) == 1:
            return parts[0]
        features = {name: _united([part.features[name] for part in parts]) for name in parts[0].features}
        return cls(features, sum(part.num_rows for part in parts))


def sample_of(rows: FoldedRows, settings: ViewSettings, share: float = 1.0) -> Sampled:
    """Take a sample of rows to make the formulas of a view from.

    Parameters
    ----------
    share : of the sample to take from these rows, if they are a part of all rows.
    """
    wanted = [f.score for f in settings.features.values() if f.score is not None]
    names = list(dict.fromkeys(source for score in wanted for source in score.of))
    codecs = [settings.features[name].codec for name in names]
    return _sample(rows, codecs, max(1, int(_SAMPLE_ROWS * share)))


def formulas_of(sample: Sampled, settings: ViewSettings, known: Mapping[str, Formula]) -> dict[str, Formula]:
    """The formulas of all computed features.

    Parameters
    ----------
    sample : of the rows to be sealed.
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
        made[name] = score_formula(name, weights, score.bits, sample, before)
        if before is not None and made[name].version != before.version:
            _logger.warning(
                "feature %r of view %r has version %d now: its numbers mean something else, so train the "
                "models that use it again",
                name,
                settings.view,
                made[name].version,
            )
    return made


def computed_rows(batches: Iterator[Batch], formulas: Mapping[str, Formula]) -> Iterator[Batch]:
    """Add the features that formulas compute to rows."""
    for places, rows in batches:
        yield places, with_formulas(rows, formulas)


def as_stored(codec: FeatureCodec) -> FeatureCodec:
    """The codec with which a layer keeps a feature: a computed one is kept as a number."""
    return FeatureCodec(codec.feature, codec.value_field, CATEGORICAL) if codec.is_computed else codec


def _sample(rows: FoldedRows, codecs: Sequence[FeatureCodec], num_wanted: int) -> Sampled:
    """The sources of some rows, in the order of their keys, with values from the most popular one on."""
    step = max(1, len(rows) // num_wanted)
    num_rows = -(-len(rows) // step)
    builders = {codec.feature: VocabularyBuilder(codec.storage_type) for codec in codecs}
    parts: dict[str, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {c.feature: [] for c in codecs}
    for places, encoded in rows.encoded(codecs):
        taken = np.flatnonzero(places % step == 0)
        for name, builder in builders.items():
            feature = encoded.features[name].take(taken)
            builder.add(feature.vocabulary, feature.symbols)
            parts[name].append((places[taken] // step, feature.csr.lengths))
    features = {}
    for codec in codecs:
        name = codec.feature
        vocabulary, counts, symbols = builders[name].finish()
        vocabulary, ids = vocabulary.reordered(counts)
        placed = [
            (places, Csr.of_lengths(lengths, ids[own]))
            for (places, lengths), own in zip(parts[name], symbols, strict=True)
        ]
        members = Csr.placed(placed, num_rows)
        states = np.zeros(num_rows, np.uint8)  # not looked at
        features[name] = EncodedFeature(codec, vocabulary, states, members.indptr, members.ids)
    return Sampled(features, num_rows)


def _united(parts: Sequence[EncodedFeature]) -> EncodedFeature:
    """One feature of several parts of the rows, with values from the most popular one on."""
    builder = VocabularyBuilder(parts[0].codec.storage_type)
    for part in parts:
        builder.add(part.vocabulary, part.symbols)
    vocabulary, counts, symbols = builder.finish()
    vocabulary, ids = vocabulary.reordered(counts)
    lengths = np.concatenate([part.csr.lengths for part in parts])
    members = Csr.of_lengths(lengths, np.concatenate([ids[own] for own in symbols]))
    states = np.zeros(len(lengths), np.uint8)  # not looked at
    return EncodedFeature(parts[0].codec, vocabulary, states, members.indptr, members.ids)


def score_formula(
    name: str,
    weights: Mapping[str, tuple[Vocabulary, NDArray[np.float64]]],
    bits: int,
    sample: Sampled,
    known: Formula | None = None,
) -> Formula:
    """The formula of a score with given weights. Its step divides the scores of the rows."""
    largest = max(float(np.abs(own).max(initial=0.0)) for _, own in weights.values())
    unit = largest / _MOST
    sources = []
    for source, (vocabulary, own) in weights.items():
        whole = np.rint(own / unit).astype(np.int32)
        used = np.flatnonzero(whole)
        values = Vocabulary(vocabulary.values.take(pa.array(used)))
        sources.append(Source(source, values, whole[used]))
    codec = FeatureCodec(name, "double_val", CATEGORICAL)
    formula = Formula(codec, tuple(sources), unit, unit)
    scores = formula.scores(sample.features, sample.num_rows)
    width = float(np.ptp(scores)) if len(scores) else 0.0
    version = 1
    if known is not None:
        version = known.version + (not same_weights(known, formula))
    step = max(width / (2**bits - 1), unit)
    return Formula(codec, formula.sources, unit, step, version)
