"""What a model that reads a sketch is trained on: exact rows, rows through the sketch, or reads of it.

    python tests/benchmarks/click_prediction/training.py [--data FOLDER] [--task NAME] [--quick]

Each model is measured on reads of the snapshot that was there when it was trained, and on those of the next
one: a seal draws another salt, so a filter then shows other false values of the same people.
"""

import argparse
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import pandas as pd
from measure import print_set_up, print_table
from model import Bootstrap, ClickModel
from scipy import sparse
from stores import temporary_folder
from tasks import Task, add_data_argument, load_or_exit
from through_feast import VIEW, Repository, Tags

from feast_sketch_store import SketchReader, through_sketch

SETTINGS: Mapping[str, Mapping[str, str]] = {
    **{
        f"bloom, error rate {rate:g}": {"sketch.target": f"error {rate:g}"}
        for rate in (0.1, 0.03, 0.01, 0.001)
    },
    "weighted_bloom, noise ratio 1": {"sketch.structure": "weighted_bloom", "sketch.target": "noise 1"},
    "sets, the 500 most popular values of each feature": {
        "sketch.structure": "sets",
        "sketch.vocabulary": "{top: 500}",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Training on exact rows, through the sketch, or on reads.")
    add_data_argument(parser)
    parser.add_argument("--task", choices=("kuairand", "retail"), default="kuairand")
    parser.add_argument("--quick", action="store_true", help="two settings")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    task = load_or_exit(arguments.task, arguments.data, parser)
    compare(task, 2 if arguments.quick else len(SETTINGS))


def compare(task: Task, num_settings: int) -> None:
    """Train and measure at some settings."""
    bootstrap = Bootstrap(task, 1)
    exact, lines = ClickModel(task, task.history), []
    with temporary_folder() as folder:
        online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
        with Repository(folder / "repository", task, online_store) as repository:
            repository.materialize()
            for label, tags in list(SETTINGS.items())[:num_settings]:
                repository.seal(Tags(tags))
                reads = repository.read()
                models = {
                    "exact rows": exact,
                    "rows through the sketch": ClickModel(task, _through(task, repository.folder)),
                    "reads of the sketch": ClickModel(task, reads),
                }
                now = {name: _auc(bootstrap, model, reads) for name, model in models.items()}
                repository.seal(Tags(tags))
                later = repository.read()
                behind = {name: _auc(bootstrap, model, later) for name, model in models.items()}
                lines.append([label, *(f"{now[name]:.4f}, {behind[name]:.4f}" for name in models)])
    print_set_up(f"{task.name}: AUC on reads of the snapshot at hand, and of the next one", "numpy", "feast")
    print_table(["setting", *(f"trained on {name}" for name in models)], lines)


def _auc(bootstrap: Bootstrap, model: ClickModel, history: Mapping[str, Any]) -> float:
    return float(bootstrap.aucs(model.decide(history))[0])


def _through(task: Task, repository: Path) -> dict[str, sparse.csr_matrix]:
    """The history of all people, through the sketch."""
    rows = pd.DataFrame(
        {
            name: np.split(task.vocabularies[name][matrix.indices], matrix.indptr[1:-1])
            for name, matrix in task.history.items()
        }
    )
    shown = through_sketch(rows, SketchReader(repository, VIEW))
    history = {}
    for name, matrix in task.history.items():
        indptr = np.concatenate(([0], np.cumsum([len(values) for values in shown[name]])))
        values = np.concatenate([*shown[name], task.vocabularies[name][:0]])
        ids = np.searchsorted(task.vocabularies[name], values)
        ones = np.ones(len(ids), np.float32)
        history[name] = sparse.csr_matrix((ones, ids, indptr), matrix.shape)
    return history


if __name__ == "__main__":
    main()
