"""How many predictions a second one core makes: without history, with an exact one, and through the sketch.

A prediction is the log odds of one test example: its context's weights, and its person's history, which is
looked up by the person's id. Calls have 1,000 examples, drawn before the clock starts.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from feast import FeatureStore
from measure import interleaved
from model import SIMILARITY_SCALE, ClickModel
from numpy.typing import NDArray
from tasks import Task
from through_feast import VIEW

from feast_sketch_store import SketchReader

NONE, EXACT, SKETCH, REDIS = "no history", "exact, CSR in memory", "sketch", "exact, Feast over Redis"
BATCH = 1_000

Examples = NDArray[np.int64]
Decide = Callable[[Examples], NDArray[np.float64]]


def predictions_per_second(
    sides: Mapping[str, Decide], task: Task, rounds: int, calls: int
) -> dict[str, float]:
    """By side, on one core: medians of interleaved turns."""
    tested = np.flatnonzero(~task.is_train)

    def draw(call: int) -> Examples:
        return np.random.default_rng(call).choice(tested, BATCH)

    with _one_core():
        seconds = interleaved(sides, draw, rounds=rounds, calls=calls)
    return {name: BATCH / each for name, each in seconds.items()}


def check(sides: Mapping[str, Decide], task: Task, expected: Mapping[str, NDArray[np.float64]]) -> None:
    """Check that what is timed decides as the model does.

    Raises
    ------
    AssertionError : it does not.
    """
    tested = np.flatnonzero(~task.is_train)
    chosen = np.random.default_rng(0).choice(len(tested), min(BATCH, len(tested)), replace=False)
    for name, decided in expected.items():
        np.testing.assert_allclose(sides[name](tested[chosen]), decided[chosen], 1e-3, 1e-3, err_msg=name)


def without_history(model: ClickModel) -> Decide:
    """The context alone."""
    context, weights, intercept = model.task.context, model.context_weights, model.intercept
    return lambda examples: context[examples] @ weights + intercept


def in_memory(model: ClickModel) -> Decide:
    """Exact histories as SciPy's CSR matrices, beside a sorted index of people."""
    task = model.task
    index, people, context = task.people, task.people[task.person], without_history(model)
    weights = {name: own.astype(np.float32) for name, own in model.history_weights.items()}

    def decide(examples: Examples) -> NDArray[np.float64]:
        rows = np.searchsorted(index, people[examples])
        decided = context(examples)
        for name, matrix in task.history.items():
            own = matrix[rows]
            if model.similarity is None:
                decided += own @ weights[name]
            else:
                decided += _with_candidates(model, examples, own.indptr, own.indices)
        return decided

    return decide


def csr_bytes(task: Task) -> int:
    """What `in_memory` holds of those who have a history: indices, ones and ends of rows, and the index."""
    size = len(task.written) * task.people.itemsize
    for matrix in task.history.values():
        size += matrix.indices.nbytes + matrix.data.nbytes + len(task.written) * matrix.indptr.itemsize
    return size


def through_sketch(model: ClickModel, repository: Path) -> Decide:
    """Histories from a `SketchReader`."""
    task = model.task
    people, context = task.people[task.person], without_history(model)
    if model.similarity is not None:
        reader = SketchReader(repository, VIEW, vocabularies=task.vocabularies)
        (name,) = task.history

        def decide_by_candidates(examples: Examples) -> NDArray[np.float64]:
            answer = reader.csr(name, people[examples])
            return context(examples) + _with_candidates(model, examples, answer.indptr, answer.ids)

        return decide_by_candidates

    reader = SketchReader(repository, VIEW)
    # By the reader's own ids, so that it need not translate them.
    weights = {}
    for name, own in model.history_weights.items():
        places = np.searchsorted(task.vocabularies[name], reader.vocabulary(name).to_numpy(False))
        weights[name] = own[places]

    def decide(examples: Examples) -> NDArray[np.float64]:
        hashes = reader.hash(people[examples])
        decided = context(examples)
        for name, own in weights.items():
            decided += reader.scores(name, hashes, own)
        return decided

    return decide


def through_redis(model: ClickModel, repository: Path) -> Decide:
    """Exact histories from Feast's ``get_online_features`` over its Redis store on this machine."""
    task = model.task
    people, context = task.people[task.person], without_history(model)
    store = FeatureStore(repo_path=str(repository))
    features = [f"{VIEW}:{name}" for name in task.history]
    ids = {name: {v: i for i, v in enumerate(task.vocabularies[name].tolist())} for name in task.history}

    def decide(examples: Examples) -> NDArray[np.float64]:
        rows = [{task.join_key: person} for person in people[examples].tolist()]
        answer = store.get_online_features(features=features, entity_rows=rows).to_dict()
        decided = context(examples)
        for name, known in ids.items():
            places = [[known[value] for value in values or ()] for values in answer[name]]
            indptr = np.append(0, np.cumsum([len(each) for each in places]))
            flat = np.array([place for each in places for place in each], np.int64)
            if model.similarity is None:
                decided += _row_sums(indptr, model.history_weights[name][flat])
            else:
                decided += _with_candidates(model, examples, indptr, flat)
        return decided

    return decide


def _with_candidates(
    model: ClickModel, examples: Examples, indptr: NDArray[np.integer], ids: NDArray[np.integer]
) -> NDArray[np.float64]:
    """What histories add to the decisions on candidates; see `ClickModel`."""
    assert model.task.candidates is not None
    assert model.similarity is not None
    (weights,), (own, similar) = model.history_weights.values(), model.interaction_weights
    sizes = np.diff(indptr)
    candidates = np.repeat(model.task.candidates[examples], sizes)
    similarity = _row_sums(indptr, model.similarity[candidates, ids])
    return (
        _row_sums(indptr, weights[ids])
        + own * _row_sums(indptr, ids == candidates)
        + similar * SIMILARITY_SCALE * similarity / np.maximum(sizes, 1)
    )


def _row_sums(indptr: NDArray[np.integer], values: NDArray[Any]) -> NDArray[np.float64]:
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.bincount(rows, values, len(indptr) - 1)


@contextmanager
def _one_core() -> Iterator[None]:
    """All threads of this process on one core, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
