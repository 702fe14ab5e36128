"""What a score keeps of a history's uplift, and at how many bits, through the real store.

    python tests/benchmarks/click_prediction/scores.py [kuairand retail] [--data FOLDER] [--resamples N]

Each setting is applied, sealed by another process and read back by a new `SketchReader`; a
model is fitted on what that reads. The weights of scores are those of the exact model, which saw the training
split alone. Bits are those of the whole snapshot: formula, vocabulary, index and header included. The cuts
are those of ``run.py``.
"""

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import pandas as pd
from curves import MODEL, Setting, tags_of
from measure import print_set_up, print_table
from model import Bootstrap, ClickModel, interval
from numpy.typing import NDArray
from scipy import sparse
from stores import temporary_folder
from tasks import History, Task, add_data_argument, load_or_exit
from through_feast import SCORE, VIEW, Repository, Tags

from feast_sketch_store import SketchReader, through_sketch

NOTHING = {"sketch.structure": "sets", "sketch.vocabulary": "[]"}
WEIGHT_SHARES = (0.02, 0.05, 0.1, 0.25, 1.0)
BITS = (4, 6, 8)
CUT_SHARES = (0.01, 0.02, 0.04, 0.1)
COLUMN_SCALE = 5.0  # a column that says much is not to be shrunk as the many of a history
CHECKED_PEOPLE = 500


def main() -> None:
    parser = argparse.ArgumentParser(description="Uplift kept by scores.")
    add_data_argument(parser)
    parser.add_argument("names", nargs="*", default=["kuairand", "retail"], help="data sets")
    parser.add_argument("--resamples", type=int, default=200)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.names:
        measure(load_or_exit(name, arguments.data, parser), arguments.resamples)


def measure(task: Task, resamples: int) -> None:
    """Seal each setting, read it, and print bits and uplift."""
    bootstrap, exact = Bootstrap(task, resamples), ClickModel(task, task.history)
    without = bootstrap.aucs(ClickModel(task, None).decide(None))
    gain = bootstrap.aucs(exact.decide(task.history)) - without
    lines = []
    for label, bits, shown in sealed(task, settings(task, exact)):
        own = bootstrap.aucs(decide(task, shown))
        uplift = (own - without) / gain
        low, high = interval(uplift)
        cells = [label, f"{bits:.2f}", f"{own[0]:.4f}", f"{uplift[0]:.1%}", f"{low:.0%} to {high:.0%}"]
        lines.append(cells)
        print(", ".join(cells), file=sys.stderr, flush=True)
    print_set_up(
        f"{task.title}. {len(task.written):,} people with {task.num_facts:,} facts; AUC {without[0]:.4f} "
        f"without a history; {resamples} resamples of the people tested on",
        "numpy",
        "scipy",
        "feast",
    )
    print_table(["setting", "bits per fact", "AUC", "uplift kept", "95 %"], lines)


def decide(task: Task, shown: History) -> NDArray[np.float64]:
    """The decisions of a model of what reads show. A candidate cannot be compared with a score."""
    own = replace(task, candidates=None) if SCORE in shown else task
    return ClickModel(own, shown).decide(shown)


def sealed(task: Task, all_tags: Iterable[tuple[str, Tags]]) -> Iterator[tuple[str, float, History]]:
    """Seal the rows with each tags, and read them.

    Yields
    ------
    The label of the tags, bits per fact of the snapshot, and what a model sees of everybody.
    """
    with temporary_folder() as folder:
        online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
        with Repository(folder / "repository", task, online_store) as repository:
            repository.materialize()
            for label, tags in all_tags:
                num_bytes = repository.seal(tags)["bytes"]
                yield label, num_bytes * 8 / task.num_facts, read(repository, task, tags)


def settings(task: Task, exact: ClickModel) -> Iterator[tuple[str, Tags]]:
    """What is measured, by its label."""
    for share in WEIGHT_SHARES:
        for bits in BITS if share == 0.25 else (6,):
            yield score(task, exact, share, bits)
    yield from cuts(task, exact)


def cuts(task: Task, exact: ClickModel) -> Iterator[tuple[str, Tags]]:
    """Sets of the values that move the model most, and their labels."""
    importance = exact.importance()
    for share in CUT_SHARES:
        cut = tags_of(Setting("", {"sketch.structure": "sets"}, MODEL, share), task, importance)
        yield f"{share:.0%} of the values, as sets", cut


def score(task: Task, exact: ClickModel, share: float, bits: int) -> tuple[str, Tags]:
    """A score alone, of a share of the weights, and its label."""
    weights = strongest(task, exact, exact.importance(), share)
    sources = ", ".join(task.history)
    tags = {
        "sketch.codec": "score",
        "sketch.score": f"{{of: [{sources}], weights: plans/score.json, bits: {bits}}}",
    }
    of_features = {**dict.fromkeys(task.history, NOTHING), SCORE: tags}
    number = sum(map(len, weights.values()))
    label = f"score, {bits} bits, weights of {number:,} values"
    return label, Tags({}, of_features, {"plans/score.json": weights})


def strongest(
    task: Task, exact: ClickModel, importance: Mapping[str, NDArray[np.float64]], share: float
) -> dict[str, list[list[Any]]]:
    """The weights of the values that bring the most variance into a score."""
    shares = {name: matrix.sum(axis=0).A1 / len(task.written) for name, matrix in task.history.items()}
    moved = {name: importance[name] * p * (1 - p) for name, p in shares.items()}
    pooled = np.sort(np.concatenate(list(moved.values())))[::-1]
    bound = pooled[max(1, round(share * len(pooled))) - 1]
    return {
        name: [
            [value, float(f"{weight:.6g}")]
            for value, weight, moves in zip(
                task.vocabularies[name].tolist(), exact.history_weights[name].tolist(), own, strict=True
            )
            if moves >= bound
        ]
        for name, own in moved.items()
    }


def read(repository: Repository, task: Task, tags: Tags) -> dict[str, sparse.csr_matrix]:
    """What a model sees of everybody, and a check that training rows get the same."""
    shown = repository.read()
    if SCORE in tags.of_features:
        values = repository.score()
        check(repository, task, values)
        shown[SCORE] = column(values)
    return shown


def check(repository: Repository, task: Task, values: NDArray[np.float64]) -> None:
    """Check that `through_sketch` gives some people what reads give.

    Raises
    ------
    AssertionError : it does not.
    """
    places = task.written[:CHECKED_PEOPLE]
    histories = {
        source: [task.vocabularies[source][matrix[place].indices].tolist() for place in places]
        for source, matrix in task.history.items()
    }
    reader = SketchReader(repository.folder, VIEW)
    trained = through_sketch(pd.DataFrame(histories), reader, [SCORE])[SCORE]
    if not np.array_equal(trained.to_numpy(np.float64), values[places]):
        raise AssertionError("training rows have another score than reads")


def column(values: NDArray[np.float64]) -> sparse.csr_matrix:
    """A score as a column."""
    known = np.flatnonzero(~np.isnan(values))
    scaled = np.zeros(len(values), np.float32)
    scaled[known] = values[known] * COLUMN_SCALE / values[known].std()
    return sparse.csr_matrix(scaled[:, None])


if __name__ == "__main__":
    main()
