"""Labelled rows: whether something happened to an entity, and what was known beside its features.

Needs the optional dependencies `plan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import PlanError
from feast_sketch_store.planning.sample import Sample, order_of
from feast_sketch_store.rows.codecs import FeatureCodec

LABEL, SPLIT, CANDIDATE = "label", "split", "candidate"
_TRAIN, _TEST = "train", "test"

# More labelled rows than this make a plan slow and its advice no better.
MAX_ROWS = 250_000


@dataclass(frozen=True, eq=False)
class Labels:
    """n labelled rows."""

    entity_hashes: NDArray[np.uint64]  # uint64[n, 2]
    outcomes: NDArray[np.bool_]  # bool[n]
    is_training: NDArray[np.bool_]  # bool[n]; the AUC is measured on the other rows
    context: Any  # a SciPy CSR matrix, float32[n, c]
    candidates: pa.Array | None  # the value that each row is about; None if the labels do not say
    num_given: int  # of rows; more than n if only those of some entities are taken

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

        Raises PlanError: a column is missing or has another type or values, or all labels are equal.
        """
        require_scipy()
        from scipy import sparse

        num_given = len(table)
        if num_given > MAX_ROWS:
            taken = _of_first_entities(entity_hashes)
            table, entity_hashes = table.take(pa.array(taken)), entity_hashes[taken]
        outcomes = _outcomes(table)
        is_training = _is_training(table, entity_hashes)
        for rows, text in ((is_training, "train the model on"), (~is_training, "measure it on")):
            if len(np.unique(outcomes[rows])) < 2:
                raise PlanError(f"the labels need rows of both classes, 0 and 1, to {text}")
        names = [name for name in table.column_names if name not in {*join_keys, LABEL, SPLIT}]
        blocks = [sparse.csr_matrix((len(table), 0), dtype=np.float32)]
        blocks += [_context_block(name, table[name].combine_chunks(), is_training) for name in names]
        candidates = table[CANDIDATE].combine_chunks() if CANDIDATE in table.column_names else None
        context = sparse.hstack(blocks).tocsr()
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

    Raises PlanError: no feature of the sample has any of them.
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
    """Raise a PlanError if packages that fit models are not installed."""
    if missing := [name for name in ("scipy", "threadpoolctl") if find_spec(name) is None]:
        raise PlanError(f"a plan with labels needs more packages: `pip install {' '.join(missing)}`")


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


def _of_first_entities(entity_hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The rows of whole entities, by their hashes, until there would be more than ``MAX_ROWS``: int64[n].

    An entity with more rows than that has its first ones.
    """
    order = order_of(entity_hashes)
    first, beyond = entity_hashes[order[0]], entity_hashes[order[MAX_ROWS]]
    if (first == beyond).all():
        return np.sort(order[:MAX_ROWS])
    taken = order[:MAX_ROWS]
    return np.sort(taken[(entity_hashes[taken] != beyond).any(axis=1)])


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
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
            differences = np.where(np.isfinite(numbers), numbers - mean, 0.0)
            standard = (differences / (deviation or 1.0)).astype(np.float32)
        if not np.isfinite(deviation) or not np.isfinite(standard).all():
            raise PlanError(
                f"the column {name!r} of the labels has numbers that are too large to be standardised; give "
                "their logarithms, or leave it out"
            )
        return sparse.csr_matrix(standard[:, None])
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
