"""The sizes in docs/results/accuracy.md alone: seals every setting again, and changes the tables and plots.

    python tests/benchmarks/click_prediction/resize.py PAGE --data FOLDER [--task NAME]

For a change of codes, which changes bytes and nothing that a read returns: all AUCs, rates and what is said
of Redis stay as ``run.py`` measured them. Needs no Redis, and one model for each task, which chooses values.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from curves import SETTINGS, tags_of
from measure import number
from model import ClickModel
from report import to_svg
from run import TASKS
from serving import EXACT, NONE
from stores import temporary_folder
from tasks import Task, add_data_argument, load_or_exit
from through_feast import Repository

_AUC = re.compile(r"\d\.\d{4}")
_HEADING = "Through the sketch, {}:\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The sizes of a page of accuracies.")
    parser.add_argument("page", type=Path)
    add_data_argument(parser)
    parser.add_argument("--task", action="append", choices=TASKS, help="default: all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # Feast warns of its own deprecations at every import
    for name in arguments.task or TASKS:
        task = load_or_exit(name, arguments.data, parser)
        sizes = measured(task)
        page = arguments.page.read_text("utf-8")  # which another task may have changed meanwhile
        begin = page.index(f"\n## {task.name}\n")
        end = page.find("\n## ", begin + 1)
        section, result = resized(page[begin:end], sizes, task.num_facts)
        arguments.page.write_text(page[:begin] + section + page[end:], "utf-8")
        plot = arguments.page.with_name(f"{arguments.page.stem}-{task.name}.svg")
        plot.write_text(to_svg({"task": task.name, **result}))


def measured(task: Task) -> dict[tuple[str, str], int]:
    """The bytes of the snapshot of each setting of each curve."""
    sizes = {}
    importance = ClickModel(task, task.history).importance()
    with temporary_folder() as folder:
        online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
        with Repository(folder / "sketch", task, online_store) as repository:
            repository.materialize()
            for curve, settings in SETTINGS.items():
                for setting in settings:
                    size = repository.seal(tags_of(setting, task, importance))["bytes"]
                    sizes[curve, setting.label] = size
                    print(f"{task.name}, {curve}, {setting.label}: {size:,}", file=sys.stderr, flush=True)
    return sizes


def resized(section: str, sizes: dict[tuple[str, str], int], num_facts: int) -> tuple[str, dict[str, Any]]:
    """A section of the page with other sizes, and what its plot shows."""
    aucs = {
        name: float(_AUC.findall(row)[0])
        for name, heading in ((NONE, "no history"), (EXACT, "exact, Redis"))
        for row in section.splitlines()
        if row.startswith(f"| {heading} ")
    }
    redis = next(row for row in section.splitlines() if row.startswith("| exact, Redis "))
    redis_bytes = int(redis.split("|")[2].replace(",", ""))
    curves: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    lines, curve = [], ""
    for line in section.splitlines(keepends=True):
        curve = next((name for name in SETTINGS if line == _HEADING.format(name)), curve)
        cells = line.split("|")
        label = cells[1].strip() if len(cells) > 5 else ""
        if (curve, label) in sizes:
            size = sizes[curve, label]
            told = f"{size:,}", number(size * 8 / num_facts), f"{size / redis_bytes:.2%}"
            for place, text in enumerate(told, start=2):
                cells[place] = f" {text.rjust(len(cells[place]) - 2)} "
            auc = float(_AUC.findall(cells[8])[0])
            curves[curve].append({"bits/fact": size * 8 / num_facts, "auc": auc})
            line = "|".join(cells)
        lines.append(line)
    known = {name: points for name, points in curves.items() if points}
    return "".join(lines), {"curves": known, **{name: {"auc": auc} for name, auc in aucs.items()}}


if __name__ == "__main__":
    main()
