"""What `feast-sketch plan` predicts from a sample, against what the sealed store then takes and shows.

    python tests/benchmarks/click_prediction/planned.py [--data FOLDER] [--task NAME] [--share SHARE]

The plan is made from a share of the people. Its settings are applied to the view as they are printed, sealed
by another process, and read back.
"""

import argparse
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from feast import FeatureStore
from measure import number, print_set_up, print_table
from stores import temporary_folder
from tasks import Task, add_data_argument, load_or_exit
from through_feast import VIEW, Repository, Tags

from feast_sketch_store.planning.curves import BLOOM, POPULAR_BLOOM, POPULAR_SETS, SETS, WEIGHTED_BLOOM
from feast_sketch_store.planning.planner import plan_view

POINTS_PER_CURVE = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Predictions of a plan against the sealed store.")
    add_data_argument(parser)
    parser.add_argument("--task", choices=("kuairand", "retail"), default="kuairand")
    parser.add_argument("--share", type=float, default=0.5, help="of the people that the plan sees")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    task = load_or_exit(arguments.task, arguments.data, parser)
    compare(task, arguments.share)


def compare(task: Task, share: float) -> None:
    """Plan, seal and measure some points of each curve."""
    with temporary_folder() as folder:
        online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
        with Repository(folder / "repository", task, online_store) as repository:
            repository.materialize()
            store = FeatureStore(repo_path=str(repository.folder))
            plan = plan_view(store, VIEW, max_entities=round(share * len(task.written)))
            lines = []
            for curve in (BLOOM, WEIGHTED_BLOOM, SETS, POPULAR_SETS, POPULAR_BLOOM):
                points = [point for point in plan.points if point.curve.split(", error")[0] == curve]
                for point in points[:: max(1, len(points) // POINTS_PER_CURVE)]:
                    size = repository.seal(Tags(of_features=point.settings))["bytes"]
                    shown = repository.read()
                    true = sum(int(m.multiply(shown[name]).nnz) for name, m in task.history.items())
                    false = (sum(m[task.written].nnz for m in shown.values()) - true) / len(task.written)
                    lines.append(
                        [
                            f"{point.curve}, {point.label}",
                            *(f"{number(b / 1e3)}" for b in (point.memory_bytes, size)),
                            f"{point.memory_bytes / size:.3f}",
                            *(number(f) for f in (point.false_per_read, false)),
                            f"{point.false_per_read / false:.3f}" if false else "-",
                        ]
                    )
    print_set_up(
        f"{task.name}: a plan from {plan.sampled_entities:,} of {plan.num_entities:,} people, all sealed",
        "numpy",
        "feast",
    )
    header = ["setting", "predicted kB", "sealed kB", "ratio", "predicted false/read", "measured", "ratio"]
    print_table(header, lines)


if __name__ == "__main__":
    main()
