"""Makes the formulas of a view's computed features at a seal.

Clusters are learned from some of the rows (`structures.clusters`). The next seal keeps them as they are while
they still fit. If another round of learning would move more than a fifth of the rows, the seal starts from
them and continues to learn. If most of the values are new, it starts from scratch. So ids keep their meaning
from seal to seal, and the version changes when they do not.

A formula knows only the values that tell most about the cluster. The fewer the rows, the smaller it is.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import CATEGORICAL, CLUSTER, SCORE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows
from feast_sketch_store.rows.formulas import WEIGHT_TYPES, Formula, Source, same_weights, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder
from feast_sketch_store.structures.clustered import side_by_side
from feast_sketch_store.structures.clusters import SMOOTHING, count, learn
from feast_sketch_store.view.computed_settings import Computed, read_weights
from feast_sketch_store.view.semantics import FoldedRows
from feast_sketch_store.view.settings import ViewSettings

_logger = logging.getLogger(__name__)

_SAMPLE_ROWS = 1 << 17
_MOVED_SHARE = 0.2  # share of rows that a round of learning may move while clusters stay as they are
_LEAST_CELLS, _CELLS_PER_ROW = 1 << 16, 0.5  # entries of a table of weights, a byte each
_LEVELS, _MOST = 255, 1 << 30  # of the weights of clusters, and of scores

Batch = tuple[NDArray[np.int64], EncodedRows]


class Sampled(NamedTuple):
    """A sample of rows to make formulas from: their features, and the number of all rows."""

    features: Mapping[str, EncodedFeature]
    num_rows: int
    num_all: int

    @classmethod
    def of(cls, parts: Sequence["Sampled"]) -> "Sampled":
        """Samples of several parts of the rows together, in their order."""
        if len(parts) == 1:
            return parts[0]
        features = {name: _united([part.features[name] for part in parts]) for name in parts[0].features}
        return cls(features, sum(part.num_rows for part in parts), sum(part.num_all for part in parts))


def sample_of(rows: FoldedRows, settings: ViewSettings, share: float = 1.0) -> Sampled:
    """Take a sample of rows to make the formulas of a view from.

    Parameters
    ----------
    share : of the sample to take from these rows, if they are a part of all rows.
    """
    wanted = [f.computed for f in settings.features.values() if f.computed is not None]
    names = list(dict.fromkeys(source for how in wanted for source in how.sources))
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
    wanted = {name: f.computed for name, f in settings.features.items() if f.computed is not None}
    made = {}
    for name, how in wanted.items():
        codec, before = settings.features[name].codec, known.get(name)
        made[name] = (
            cluster_formula(name, how, sample, before)
            if codec.name == CLUSTER
            else _score_formula(settings, name, how, sample, before)
        )
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
    return Sampled(features, num_rows, len(rows))


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


def cluster_formula(name: str, how: Computed, sample: Sampled, known: Formula | None = None) -> Formula:
    """The formula of a cluster id: the known one if it still fits, or one learned from rows."""
    features = [sample.features[source] for source in how.sources]
    sizes = [len(feature.vocabulary) for feature in features]
    joint = side_by_side([feature.csr for feature in features], sizes).distinct()
    start, version = None, 1
    num_clusters = max(1, min(how.num_clusters, sample.num_rows))
    if known is not None:
        version = known.version + 1
        is_alike = known.kind == CLUSTER and known.num_clusters == num_clusters
        if is_alike and known.sources_are(how.sources) and _knows_enough(known, features):
            start = known.clusters(sample.features, sample.num_rows)
            moved = learn(joint, sum(sizes), num_clusters, start, num_rounds=1) != start
            if not len(moved) or moved.mean() <= _MOVED_SHARE:
                return known
    clusters = learn(joint, sum(sizes), num_clusters, start)
    weights, offsets, kept = _levels(joint, sum(sizes), clusters, num_clusters, sample.num_all)
    sources, first = [], 0
    for feature, size in zip(features, sizes, strict=True):
        own = kept[(kept >= first) & (kept < first + size)]
        values = Vocabulary(feature.vocabulary.values.take(pa.array(own - first)))
        sources.append(Source(feature.codec.feature, values, weights[np.searchsorted(kept, own)]))
        first += size
    codec = FeatureCodec(name, "int64_val", CATEGORICAL)
    return Formula(codec, CLUSTER, tuple(sources), offsets, version=version)


def _knows_enough(known: Formula, features: Sequence[EncodedFeature]) -> bool:
    """Whether a formula knows at least half of the facts that one with as many values could."""
    counts, found = [], 0
    for source, feature in zip(known.sources, features, strict=True):
        of_values = np.bincount(feature.symbols, minlength=len(feature.vocabulary))
        found += int(of_values[source.vocabulary.find(feature.vocabulary.values) >= 0].sum())
        counts.append(of_values)
    num_values = sum(len(source.vocabulary) for source in known.sources)
    most = np.sort(np.concatenate(counts))[::-1][:num_values].sum()
    return bool(2 * found >= most)


def _levels(
    members: Csr, num_values: int, clusters: NDArray[np.int64], num_clusters: int, num_rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The weights of the values that tell most about clusters, in whole numbers.

    A constant over all clusters does not change which sum is greatest, so each value's smallest weight is 0.

    Returns
    -------
    uint8[kept, C], the sums of a row without values, int64[C]; and the ids of the values, ascending.
    """
    in_cluster = np.bincount(clusters, minlength=num_clusters)[:, None]
    counts = count(members, clusters, (num_clusters, num_values))
    overall = counts.sum(0) / max(1, len(members))
    shares = ((counts + SMOOTHING * overall) / (in_cluster + SMOOTHING)).clip(1e-9, 1 - 1e-6)
    overall = overall.clip(1e-9, 1 - 1e-6)
    told = (in_cluster * _divergence(shares, overall)).sum(0)
    cells = max(_LEAST_CELLS, int(_CELLS_PER_ROW * num_rows))
    kept = np.sort(np.argsort(-told, kind="stable")[: max(1, cells // num_clusters)])
    odds = (np.log(shares) - np.log1p(-shares))[:, kept]
    odds -= odds.min(0, initial=np.inf) if len(kept) else 0.0
    unit = max(float(odds.max(initial=0.0)) / _LEVELS, 1e-9)
    offsets = np.log1p(-shares[:, kept]).sum(1) + np.log(in_cluster[:, 0] + 1.0)
    weights = np.rint(odds.T / unit).astype(WEIGHT_TYPES[CLUSTER])
    return weights, np.rint((offsets - offsets.max()) / unit).astype(np.int64), kept


def _divergence(shares: NDArray[np.float64], overall: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Kullback-Leibler divergence of coins from a coin, in nats."""
    ones = shares * np.log(shares / overall)
    return np.asarray(ones + (1 - shares) * np.log((1 - shares) / (1 - overall)))


def _score_formula(
    settings: ViewSettings, name: str, how: Computed, sample: Sampled, known: Formula | None
) -> Formula:
    codecs = {source: settings.features[source].codec for source in how.sources}
    weights = read_weights(settings.view, name, how, codecs, settings.folder)
    return score_formula(name, weights, how.bits, sample, known)


def score_formula(
    name: str,
    weights: Mapping[str, tuple[Vocabulary, NDArray[np.float64]]],
    bits: int,
    sample: Sampled,
    known: Formula | None = None,
) -> Formula:
    """The formula of a score with given weights; its step divides the scores of the rows."""
    largest = max(float(np.abs(own).max(initial=0.0)) for _, own in weights.values())
    unit = largest / _MOST
    sources = []
    for source, (vocabulary, own) in weights.items():
        whole = np.rint(own / unit).astype(WEIGHT_TYPES[SCORE])
        used = np.flatnonzero(whole)
        values = Vocabulary(vocabulary.values.take(pa.array(used)))
        sources.append(Source(source, values, whole[used][:, None]))
    codec = FeatureCodec(name, "double_val", CATEGORICAL)
    formula = Formula(codec, SCORE, tuple(sources), np.zeros(1, np.int64), unit, unit)
    scores = formula.scores(sample.features, sample.num_rows)
    width = float(np.ptp(scores)) if len(scores) else 0.0
    version = 1
    if known is not None:
        version = known.version + (known.kind != SCORE or not same_weights(known, formula))
    step = max(width / (2**bits - 1), unit)
    return Formula(codec, SCORE, formula.sources, formula.offsets, unit, step, version)
