"""What a size costs a model: a logistic regression of labels on the features, trained through each structure.

The features become multi-hot columns beside the context features of the labels. The model is trained on what
reads through the structure would have shown: the kept values, and false values drawn at their rates. So it
learns to live with the noise. It is measured on rows that it was not trained on. Scores are measured with the
weights of the model of the exact features.

The values that are worth most have the highest ``w**2 * p * (1 - p) / H(p)``. ``w`` is the weight that the
exact model gives a value, ``p`` its density, and ``H`` the binary entropy. This is the variance that the
value adds to the model's score, for each bit that it costs in a set.

Needs SciPy, the optional dependency `plan`.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import PlanError
from feast_sketch_store.planning.areas import Area
from feast_sketch_store.planning.interactions import Interactions
from feast_sketch_store.planning.logistic import Columns, Weights, fit
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import Sample, VocabularyMask, order_of
from feast_sketch_store.planning.scores import as_encoded
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.formulas import Formula

LABEL, SPLIT, CANDIDATE = "label", "split", "candidate"
_TRAIN, _TEST = "train", "test"

# C shrinks weights towards 0; weights of history columns are shrunk more, because each says little.
_C, _HISTORY_SCALE = 0.1, 0.2

# More labelled rows than this make a plan slow and its advice no better.
MAX_ROWS = 250_000

# The most values that the training rows of a model may show; a point with more has no AUC.
MAX_FALSE_VALUES = 40_000_000

_SEED = 7

# The points of the curve of `Task.most_worth`.
WORTH_SHARES = (0.05, 0.09, 0.16, 0.22, 0.28, 0.37, 0.55)

# Per feature the values that are kept, bool[V], and the rate of each kept value, float[kept].
_Blocks = Sequence[tuple[NDArray[np.bool_], NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class Labels:
    """n labelled rows.

    Parameters
    ----------
    entity_hashes : uint64[n, 2]
    outcomes : bool[n]
    is_training : bool[n]; the AUC is measured on the other rows.
    context : a SciPy CSR matrix, float32[n, c].
    candidates : the value that each row is about; None if the labels do not say.
    num_given : of rows; more than n if only those of some entities are taken.
    """

    entity_hashes: NDArray[np.uint64]
    outcomes: NDArray[np.bool_]
    is_training: NDArray[np.bool_]
    context: Any
    candidates: pa.Array | None = None
    num_given: int = 0

    @classmethod
    def read(cls, table: pa.Table, entity_hashes: NDArray[np.uint64], join_keys: Sequence[str]) -> "Labels":
        """Read labels; of more than `MAX_ROWS` rows, those of the entities with the smallest hashes.

        Parameters
        ----------
        table : has these columns: the join keys, which are not context; ``label``, 0 or 1; optionally
            ``split``, ``train`` or ``test`` (without it the model is trained on a random half of the
            entities); optionally ``candidate``, a value of a membership feature; and context features.
            Strings, integers, booleans and the candidate become a column per value; floats are standardised.
        entity_hashes : uint64[n, 2]
        join_keys : their names.

        Raises
        ------
        PlanError : a column is missing or has another type or values, or all labels are equal.
        """
        require_scipy()
        num_given = len(table)
        if num_given > MAX_ROWS:
            taken = _of_first_entities(entity_hashes, MAX_ROWS)
            table, entity_hashes = table.take(pa.array(taken)), entity_hashes[taken]
        outcomes = _outcomes(table)
        is_training = _is_training(table, entity_hashes)
        for rows, text in ((is_training, "train the model on"), (~is_training, "measure it on")):
            if len(np.unique(outcomes[rows])) < 2:
                raise PlanError(f"the labels need rows of both classes, 0 and 1, to {text}")
        names = [name for name in table.column_names if name not in {*join_keys, LABEL, SPLIT}]
        blocks = [_context_block(name, table[name].combine_chunks(), is_training) for name in names]
        candidates = table[CANDIDATE].combine_chunks() if CANDIDATE in table.column_names else None
        context = _side_by_side(blocks, len(table))
        return cls(entity_hashes, outcomes, is_training, context, candidates, num_given)

    @cached_property
    def entities(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The m distinct entities ordered by hash, uint64[m, 2]; and the entity of each row, int64[n]."""
        entities, numbers = np.unique(self.entity_hashes, axis=0, return_inverse=True)
        return entities, numbers.reshape(-1)  # some releases of NumPy give a column


def candidate_ids(
    labels: Labels, sample: Sample, codecs: Sequence[FeatureCodec]
) -> dict[str, NDArray[np.int64]]:
    """For each feature with such values, the candidates of labelled rows as ids: int64[n], -1 for none.

    Raises
    ------
    PlanError : no feature of the sample has any of them.
    """
    if labels.candidates is None:
        return {}
    found = {}
    for codec in codecs:
        try:
            values = labels.candidates.cast(codec.arrow_type.value_type)
        except pa.ArrowException:  # the values have another type
            continue
        given = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        ids = np.full(len(values), -1, np.int64)
        vocabulary = sample.features[codec.feature].vocabulary
        ids[given] = vocabulary.find(codec.to_storage(values.take(pa.array(given))))
        if (ids >= 0).any():
            found[codec.feature] = ids
    if not found:
        names = ", ".join(codec.feature for codec in codecs)
        raise PlanError(f"the column {CANDIDATE!r} of the labels has no value of any of the features {names}")
    return found


def require_scipy() -> None:
    """Check that models can be fitted.

    Raises
    ------
    PlanError : SciPy is not installed.
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise PlanError("a plan with labels needs SciPy: `pip install scipy`") from error


class Task:
    """Models of the labels, trained through any structure.

    Parameters
    ----------
    labels : the labelled rows.
    sample : gives the vocabulary, densities and ids of values.
    labelled : the labelled entities that have rows, with the same vocabulary.
    candidates : per feature int64[n], the id of each labelled row's candidate; -1 for none. The model sees
        how well it fits the history; see `Interactions`.
    """

    def __init__(
        self,
        labels: Labels,
        sample: Sample,
        labelled: Sample,
        candidates: Mapping[str, NDArray[np.int64]] | None = None,
    ):
        self._labels, self._sample, self._labelled = labels, sample, labelled
        entities, self._entity_of = labels.entities
        self._num_entities = len(entities)
        order = labelled.order
        found, places = find_sorted(labelled.entity_hashes[order], entities)
        self._rows = np.full(len(entities), -1)  # of the entities in ``labelled``
        self._rows[found] = order[places]
        self._training, self._tested = np.flatnonzero(labels.is_training), np.flatnonzero(~labels.is_training)
        _, self._tested_entities = np.unique(self._entity_of[self._tested], return_inverse=True)
        self._known: dict[bytes, Area | None] = {}
        self._interactions = Interactions(sample, candidates or {}, self._entity_of)

    @property
    def share_without_row(self) -> float:
        """The share of labelled rows whose entity the view does not have."""
        return float((self._rows[self._entity_of] < 0).mean())

    def auc_without(self) -> Estimate:
        """The AUC of a model of the context alone."""
        return _as_auc(self._without)

    def gain(self) -> Estimate:
        """What the exact features add to the AUC of the context alone, with a paired 95 % interval."""
        return (self._area_of_exact - self._without).estimate

    def auc(
        self, kept: VocabularyMask, rates: Mapping[str, NDArray[np.float64]], formulas: Sequence[Formula] = ()
    ) -> Estimate | None:
        """The AUC of a model that is trained and applied through a structure.

        Parameters
        ----------
        kept, rates, formulas : see `Candidate`; rates of values that the sample lacks are not used.

        Returns
        -------
        None if reads show too many values to fit a model.
        """
        area = self._area_through(kept, rates, formulas)
        return None if area is None else _as_auc(area)

    def uplift(
        self, kept: VocabularyMask, rates: Mapping[str, NDArray[np.float64]], formulas: Sequence[Formula] = ()
    ) -> Estimate | None:
        """The share of the exact features' gain that such a model keeps, on the same rows.

        Returns
        -------
        None if reads show too many values, or the exact features gain nothing.
        """
        area, exact = self._area_through(kept, rates, formulas), self._area_of_exact
        if area is None or exact.value <= self._without.value:
            return None
        return ((area - self._without) / (exact - self._without)).estimate

    @cached_property
    def _without(self) -> Area:
        nothing = [(mask, np.zeros(0)) for mask in self._sample.at_least(math.inf).values()]
        area = self._measure(nothing, ())
        assert area is not None
        return area

    def _area_through(
        self, kept: VocabularyMask, rates: Mapping[str, NDArray[np.float64]], formulas: Sequence[Formula]
    ) -> Area | None:
        blocks = [(mask, rates[name][: int(mask.sum())].astype(np.float32)) for name, mask in kept.items()]
        key = b"".join(part.tobytes() for block in blocks for part in block)
        key += b"".join(formula.digest for formula in formulas)
        if key not in self._known:
            self._known[key] = self._measure(blocks, formulas)
        return self._known[key]

    def weights(self) -> dict[str, NDArray[np.float64]]:
        """What each value adds to the score of the exact model: per feature float64[V]."""
        return self._sample.by_feature(self._exact[1].history)

    def most_worth(self, share: float) -> VocabularyMask:
        """The values that the exact model needs most for the bits they take.

        Parameters
        ----------
        share : how much to spend, as a share of the fewest bits that all values can take as sets. A larger
            share keeps the same values and adds others.
        """
        order, spent = self._worth
        mask = np.zeros(len(order), np.bool_)
        mask[order[: max(1, np.searchsorted(spent, share))]] = True
        return self._sample.by_feature(mask)

    @cached_property
    def _worth(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The values of all features, most worth first, int64[V]; and the share of bits up to each."""
        shown, model = self._exact
        weights, squares = model.history, model.history**2
        counts = np.concatenate([feature.counts for feature in self._sample.features.values()])
        densities = counts / len(self._sample)
        bits = _entropy(densities)
        first = 0
        moments = self._interactions.second_moments(model.interactions, shown.parts)
        added = {name: (mean, square) for name, mean, square in moments}
        for name, mask in self._sample.everything.items():
            part = slice(first, first + len(mask))
            if name in added:
                mean, square = added[name]
                squares[part] += 2 * weights[part] * mean + square
            first += len(mask)
        order = np.argsort(-squares * densities * (1 - densities) / bits, kind="stable")
        return order, np.cumsum(bits[order]) / bits.sum()

    def _measure(self, blocks: _Blocks, formulas: Sequence[Formula]) -> Area | None:
        if all(mask.all() and not rates.any() for mask, rates in blocks) and not formulas:
            return self._area_of_exact
        # Count the false values that reads of all training rows would show.
        num_false = len(self._training) * sum(float(rates.sum()) for _, rates in blocks)
        if num_false > MAX_FALSE_VALUES:
            return None
        if formulas:
            return self._area(self._scores_by(formulas))
        shown = self._history(blocks)
        kept = np.concatenate([mask for mask, _ in blocks])
        return self._area_of(shown, self._fit(shown, self._exact[1].kept(kept)))

    def _scores_by(self, formulas: Sequence[Formula]) -> NDArray[np.float64]:
        """Scores of the rows that the exact model was not trained on, with formulas in place of the history.

        The formulas have weights of the exact model. A model that was fitted once more on its training rows
        would trust them too much, so everything keeps the exact model's weights.
        """
        features, num_rows = as_encoded(self._labelled), len(self._labelled)
        of_rows = np.zeros(num_rows + 1)  # the last one is read for an entity without a row
        for formula in formulas:
            of_rows[:-1] += np.rint(formula.scores(features, num_rows) / formula.step) * formula.step
        of_entities = of_rows[self._rows][self._entity_of[self._tested]]
        return np.asarray(self._labels.context[self._tested] @ self._exact[1].context + of_entities)

    @cached_property
    def _exact(self) -> "tuple[_Shown, Weights]":
        """The history as written, and the model of it."""
        everything = self._sample.everything
        history = self._history([(mask, np.zeros(len(mask))) for mask in everything.values()])
        return history, self._fit(history)

    @cached_property
    def _area_of_exact(self) -> Area:
        return self._area_of(*self._exact)

    def _history(self, blocks: _Blocks) -> "_Shown":
        """What reads of the labelled entities show."""
        from scipy import sparse

        rng = np.random.default_rng(_SEED)
        parts = []
        for (mask, rates), feature in zip(blocks, self._labelled.features.values(), strict=True):
            rows = feature.cut(mask).rows
            num_values = int(mask.sum())
            true = sparse.csr_matrix(
                (np.ones(len(rows.ids), np.float32), rows.ids, rows.indptr),
                shape=(len(self._labelled), num_values),
            )
            # An entity without a row uses an empty last row.
            true = sparse.vstack([true, sparse.csr_matrix((1, num_values), dtype=np.float32)]).tocsr()
            shown = true[self._rows]
            entities, values = _draw_false(rng, rates, self._num_entities)
            if len(entities):
                # Reads of entities without a row, or without any kept value, show nothing.
                is_filled = (np.diff(shown.indptr) > 0)[entities]
                entities, values = entities[is_filled], values[is_filled]
                noise = sparse.csr_matrix(
                    (np.ones(len(entities), np.float32), (entities, values)), shape=shown.shape
                )
                shown = shown.maximum(noise)
            parts.append(shown)
        names = list(self._sample.features)
        kept = {name: mask for name, (mask, _) in zip(names, blocks, strict=True)}
        histories = dict(zip(names, parts, strict=True))
        return _Shown(histories, sparse.hstack(parts).tocsr(), self._interactions.columns(kept, histories))

    def _fit(self, shown: "_Shown", start: Weights | None = None) -> Weights:
        columns, outcomes = self._columns(shown, self._training), self._labels.outcomes[self._training]
        return fit(columns, outcomes, _C, _HISTORY_SCALE, start)

    def _columns(self, shown: "_Shown", rows: NDArray[np.int64]) -> Columns:
        return Columns(self._labels.context, shown.history, self._entity_of, shown.interactions).of(rows)

    def _area_of(self, shown: "_Shown", weights: Weights) -> Area:
        """The area of the rows that a model was not trained on."""
        return self._area(self._columns(shown, self._tested).scores(weights))

    def _area(self, scores: NDArray[np.float64]) -> Area:
        return Area.of(scores, self._labels.outcomes[self._tested], self._tested_entities)


@dataclass(frozen=True, eq=False)
class _Shown:
    """What reads of m entities show, and which read each of n labelled rows uses.

    ``parts`` and ``history`` are SciPy CSR matrices, float32[m, kept values], per feature and side by side;
    ``interactions`` is float32[n, c].
    """

    parts: Mapping[str, Any]
    history: Any
    interactions: NDArray[np.float32]


def _as_auc(area: Area) -> Estimate:
    """An area with its interval, which ends at 0 and at 1."""
    estimate = area.estimate
    return Estimate(estimate.value, max(0.0, estimate.low), min(1.0, estimate.high))


def _draw_false(
    rng: np.random.Generator, rates: NDArray[Any], num_entities: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw each value for each entity at the value's rate: entities and values, int64[d] each."""
    entities, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for first, end in _runs(rates):
        rate, width = float(rates[first]), end - first
        places = _draw_places(rng, rate, width * num_entities)
        entities.append(places // width)
        values.append(first + places % width)
    return np.concatenate(entities), np.concatenate(values)


def _runs(rates: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Runs of equal rates above 0."""
    bounds = [0, *(np.flatnonzero(np.diff(rates)) + 1).tolist(), len(rates)]
    for first, end in itertools.pairwise(bounds):
        if first < end and rates[first] > 0:
            yield first, end


def _draw_places(rng: np.random.Generator, rate: float, num_places: int) -> NDArray[np.int64]:
    """Choose each place with a probability, by drawing the distances between chosen places."""
    places, at = [np.zeros(0, np.int64)], -1
    while at < num_places:
        expected = (num_places - at) * rate
        steps = rng.geometric(rate, int(expected + 4 * expected**0.5) + 16)
        places.append(at + np.cumsum(steps))
        at = int(places[-1][-1])
    drawn = np.concatenate(places)
    return drawn[drawn < num_places]


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The binary entropy of shares, in bits."""
    p = np.clip(shares, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


def _outcomes(table: pa.Table) -> NDArray[np.bool_]:
    if LABEL not in table.column_names:
        raise PlanError(f"the labels have no column {LABEL!r}; their columns are {table.column_names}")
    try:
        outcomes = table[LABEL].cast(pa.float64()).fill_null(-1).to_numpy()
    except pa.ArrowException as error:
        raise PlanError(f"the column {LABEL!r} of the labels is not a number: {error}") from error
    if not np.isin(outcomes, (0, 1)).all():
        raise PlanError(f"the column {LABEL!r} of the labels has other values than 0 and 1")
    return np.asarray(outcomes == 1)


def _of_first_entities(entity_hashes: NDArray[np.uint64], most: int) -> NDArray[np.int64]:
    """The rows of whole entities, by their hashes, until there would be more than ``most``: int64[<= most].

    An entity with more rows than that has its first ones.
    """
    order = order_of(entity_hashes)
    first, beyond = entity_hashes[order[0]], entity_hashes[order[most]]
    if (first == beyond).all():
        return np.sort(order[:most])
    whole = order[:most][(entity_hashes[order[:most]] != beyond).any(axis=1)]
    return np.sort(whole)


def _is_training(table: pa.Table, entity_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if SPLIT not in table.column_names:
        return np.asarray(entity_hashes[:, 1] % 2 == 0)
    split = table[SPLIT].cast(pa.string()).to_numpy()
    if not np.isin(split, (_TRAIN, _TEST)).all():
        raise PlanError(f"the column {SPLIT!r} of the labels has other values than {_TRAIN!r} and {_TEST!r}")
    return np.asarray(split == _TRAIN)


def _context_block(name: str, column: pa.Array, is_training: NDArray[np.bool_]) -> Any:
    """A context feature as columns: float32[n, values], or float32[n, 1] for a float."""
    from scipy import sparse

    if pa.types.is_floating(column.type):
        numbers = np.array(column.to_numpy(zero_copy_only=False), np.float64)
        known = numbers[is_training & np.isfinite(numbers)]
        mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
        standard = np.where(np.isfinite(numbers), numbers - mean, 0.0) / (deviation or 1.0)
        return sparse.csr_matrix(standard[:, None].astype(np.float32))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text and not pa.types.is_integer(column.type) and not pa.types.is_boolean(column.type):
        raise PlanError(
            f"the column {name!r} of the labels is of type {column.type}; give strings, integers, booleans "
            "or floats, or leave it out"
        )
    codes = pc.dictionary_encode(column, null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    ones = np.ones(len(codes), np.float32)
    return sparse.csr_matrix((ones, (np.arange(len(codes)), codes)))


def _side_by_side(blocks: Sequence[Any], num_rows: int) -> Any:
    from scipy import sparse

    return sparse.hstack(blocks).tocsr() if blocks else sparse.csr_matrix((num_rows, 0), dtype=np.float32)
