"""Runs the same random operations on two versions of the package, and compares all answers.

    python tests/differential/compare.py --other OLD/.venv/bin/python --operations 100000

The other version needs an environment of its own with the package and Feast. Both draw the same salts, so
filters show the same wrong values unless the versions number the values differently. Then both must have
every value that was written, and no row a newer time, and the answer is counted apart. So are operations at
which only the other version raised an error. Where both raise, the errors must be of one type. Without
``--other`` it compares this version with itself.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from views import SPELLINGS, VIEWS, WEIGHTS

WORKER = Path(__file__).parent / "worker.py"
NUM_ENTITIES = 40
WORDS = ["", "a", "b", "ä", "a long word " * 5]
NOT_FOUND = 3  # of Feast's statuses
LARGEST_STEP = sum(WEIGHTS.values()) / (2**6 - 1)  # of scores
FIRST_EVENT = 1_767_225_600  # seconds since 1970, as `worker.EPOCH`
CHANGES_A_MESSAGE, READS_A_MESSAGE, MESSAGES_A_HISTORY = 3, 60, 60


class Version:
    """A process with one version, and a repository of its own."""

    def __init__(self, python: str, spelling: str, shards: int):
        command = [python, "-W", "ignore", str(WORKER), spelling, str(shards)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def send(self, operations: list[dict[str, Any]]) -> None:
        """Have operations carried out."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(operations) + "\n")
        self.process.stdin.flush()

    def answers(self) -> list[Any]:
        """The answers of the operations that were sent."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a version ended:\n{self.process.stderr.read()[-4_000:]}")
        answers: list[Any] = json.loads(line)
        return answers

    def end(self) -> None:
        """End the process."""
        self.process.communicate()


class History:
    """Random operations, and what was written."""

    def __init__(self, rng: random.Random, num_shards: int):
        self.rng, self.num_shards = rng, num_shards
        # By view and entity: the event, and the elements of each feature of which reads may show others.
        self.written: dict[tuple[str, int], tuple[int, dict[str, set[Any]]]] = {}
        self.binned: dict[int, float | None] = {}  # by entity, the number of which reads show a bin
        self.numbers = set[float]()  # all that were ever written of it; bins show some of them

    def message(self) -> list[dict[str, Any]]:
        """Some changes, then some reads."""
        changes = [self.change() for _ in range(self.rng.randint(1, CHANGES_A_MESSAGE))]
        return changes + [self.read() for _ in range(READS_A_MESSAGE)]

    def entities(self, most: int) -> list[int]:
        return self.rng.sample(range(NUM_ENTITIES), self.rng.randint(1, most))

    def change(self) -> dict[str, Any]:
        """A write more often than anything else."""
        rng, view = self.rng, self.rng.choice(list(VIEWS))
        what = rng.choices(["write", "delete", "seal", "delta", "vacuum", "reopen"], [12, 1, 3, 3, 0.5, 0.5])[
            0
        ]
        if what == "reopen":
            return {"do": "reopen"}
        if what == "vacuum":
            return {"do": "vacuum", "view": view}
        if what in ("seal", "delta"):
            return {"do": "seal", "view": view, "as_delta": what == "delta"}
        if what == "delete":
            entities = self.entities(5 if rng.random() < 0.9 else NUM_ENTITIES)
            for entity in entities:
                self.written.pop((view, entity), None)
            return {"do": "delete", "view": view, "entities": entities}
        if view == "timed" and rng.random() < 0.8:
            entities = self.entities(12)
            times = [rng.randint(0, 10_000) for _ in entities]
            if rng.random() < 0.15:
                value = rng.randint(0, 30)
                return {"do": "remove", "view": view, "entity": entities[0], "value": value, "until": 20_000}
            values = [rng.randint(0, 30) for _ in entities]
            return {"do": "items", "view": view, "entities": entities, "values": values, "times": times}
        return {"do": "write", "view": view, "rows": [self.row(view, e) for e in self.entities(25)]}

    def row(self, view: str, entity: int) -> dict[str, Any]:
        rng, event = self.rng, self.rng.randint(0, 1_000)
        values = {}
        for name, (kind, meaning) in VIEWS[view].features.items():
            if meaning in ("times", "counts of", "score") or rng.random() < 0.05:
                continue
            values[name] = None if rng.random() < 0.05 else self.content(kind, meaning)
        if values.get("items") is not None:
            times = sorted(rng.randint(0, 10_000) for _ in values["items"])
            values["items_at"] = [FIRST_EVENT + t for t in times]
        if values.get("spent") is not None:
            self.numbers.add(values["spent"])
        if self.written.get((view, entity), (-1, {}))[0] <= event:
            self.written[view, entity] = event, {f: set(values.get(f) or ()) for f in VIEWS[view].lossy}
            if view == "scalars":
                self.binned[entity] = values.get("spent")
        return {"entity": entity, "event": event, "values": values}

    def content(self, kind: str, meaning: str) -> Any:
        rng = self.rng
        if "(" in kind:
            number = min(rng.choice([0, 1, 3, 10, 40]), 500)
            numbers = [min(int(rng.paretovariate(0.7)), 300) for _ in range(number)]
            if kind.startswith("Set"):
                numbers = sorted(set(numbers))
            return [f"v{n}" for n in numbers] if "String" in kind else numbers
        if kind == "String":
            return rng.choice(WORDS)
        return rng.randint(0, 90) if kind != "Float64" else rng.randint(-40, 40) / 8

    def read(self) -> dict[str, Any]:
        """A read of some view by one of the ways."""
        rng, view = self.rng, self.rng.choice(list(VIEWS))
        most = rng.choice([1, 1, 3, 10, NUM_ENTITIES])
        entities = [n + rng.choice([0, 0, 0, 0, 100]) for n in self.entities(most)]
        what = rng.choices(["online_read", "get", "reader", "verify"], [4, 4, 4, 0.2])[0]
        if what == "verify":
            return {"do": "verify", "view": view}
        if what == "get":
            views = [view, *rng.sample(list(VIEWS), rng.choice([0, 0, 1, 3]))]
            return {"do": "get", "views": list(dict.fromkeys(views)), "entities": entities}
        names = list(VIEWS[view].features)
        if what == "online_read":
            features = rng.choice([None, rng.sample(names, rng.randint(1, len(names)))])
            return {"do": "online_read", "view": view, "entities": entities, "features": features}
        meanings = {name: meaning for name, (_, meaning) in VIEWS[view].features.items()}
        feature = rng.choice(
            [name for name in names if meanings[name] not in ("times", "counts of", "score")]
        )
        kind = VIEWS[view].features[feature][0]
        candidates: list[Any] = [rng.randint(1, 320) for _ in range(12)]
        if "String" in kind:
            candidates = [f"v{number}" for number in candidates]
        elif kind in ("Float64", "Map"):
            candidates = [number / 8 for number in candidates]
        return {
            "do": "reader",
            "view": view,
            "entities": entities,
            "feature": feature,
            "candidates": candidates,
        }


def raised_by(answer: Any) -> str | None:
    """The type of the error that an operation raised; None if it raised none."""
    is_raised = isinstance(answer, list) and bool(answer) and answer[0] == "raised"
    return answer[1] if is_raised else None


def in_order_of_counts(operation: dict[str, Any], answer: Any) -> Any:
    """An answer whose values with equal counts are in ascending order, because a read may give them in any;
    without counts all are.
    """
    if raised_by(answer):
        return answer
    pairs: list[tuple[Any, Any]] = []
    if operation["do"] == "reader" and operation["view"] == "counted":
        answer["arrow"] = [row and sorted(row) for row in answer["arrow"]]
    if operation["do"] == "online_read" and operation["view"] == "counted":
        rows = [row[1] for row in answer if row and row[1].get("viewed")]
        pairs = [(row["viewed"], row["viewed_n"]) for row in rows if "viewed_n" in row]
        for row in rows:
            if "viewed_n" not in row:
                row["viewed"][1].sort()
    if operation["do"] == "get" and "counted" in operation["views"]:
        columns = [answer[f"counted__{name}"] for name in ("viewed", "viewed_n")]
        pairs = [(value[0], count[0]) for value, count in zip(*columns, strict=True)]
    for values, counts in pairs:
        if values and counts and len(values[1]) == len(counts[1]):
            order = sorted(zip(counts[1], values[1], strict=True))
            counts[1], values[1] = [count for count, _ in order], [value for _, value in order]
    return answer


def is_lossy_alike(operation: dict[str, Any], one: Any, other: Any, history: History) -> bool:
    """Whether two answers differ only in values that were not written, where reads may show such, in times of
    rows, which a seal may round down, in scores that only this version has or of which both are within a
    step, and in bins: before, a delta of a view with shards had those of all rows.
    """
    if raised_by(one) or raised_by(other) or operation["do"] not in ("online_read", "get", "reader"):
        return False
    other = _with_bins(operation, one, _with_scores(operation, one, other, history), history)
    (exact, *lossy), (other_exact, *other_lossy) = _parts(operation, one), _parts(operation, other)
    return exact == other_exact and all(
        _has_written(operation, columns, history) and _are_no_newer(operation, times, history)
        for columns, times in (lossy, other_lossy)
    )


Columns = list[tuple[str, str, list[Any]]]
Times = list[tuple[str, list[float | None]]]


def _parts(operation: dict[str, Any], answer: Any) -> tuple[Any, Columns, Times]:
    """What must be equal of an answer; the rest by view and feature: per entity a value of `worker`, None
    where there is none; and the times of rows that may be in filters, in seconds since 1970.
    """
    if operation["do"] == "reader":
        view, feature = operation["view"], operation["feature"]
        if feature not in VIEWS[view].lossy:
            return answer, [], []
        return answer["exists"], [(view, feature, [row and ["", row] for row in answer["arrow"]])], []
    if operation["do"] == "get":
        places = {f"{view}__{f}": (view, f) for view in operation["views"] for f in VIEWS[view].lossy}
        rounded = {name: name.partition("__")[0] for name in answer if "__" in name}
        rounded = {name: view for name, view in rounded.items() if VIEWS[view].lossy}
        exact = {
            name: [cells[name in places : 2 if name in rounded else 3] for cells in column]
            for name, column in answer.items()
        }
        times = [(view, [cells[2] / 1e6 or None for cells in answer[n]]) for n, view in rounded.items()]
        return (
            exact,
            [(*place, [cells[0] for cells in answer[name]]) for name, place in places.items()],
            times,
        )
    view = operation["view"]
    lossy = VIEWS[view].lossy
    if not lossy:
        return answer, [], []
    exact_rows = [row and {f: v for f, v in row[1].items() if f not in lossy} for row in answer]
    asked = lossy if operation["features"] is None else [f for f in lossy if f in operation["features"]]
    moments = [row and row[0] and datetime.fromisoformat(row[0]).timestamp() for row in answer]
    return (
        exact_rows,
        [(view, f, [row and row[1].get(f) for row in answer]) for f in asked],
        [(view, moments)],
    )


def _with_scores(operation: dict[str, Any], one: Any, other: Any, history: History) -> Any:
    """The other answer with the scores that it lacks: before, a shard without sealed rows showed none. A view
    with such a shard got no delta, so that its scores got steps of their own.
    """
    scores = {f"{v}__{f}": f for v in VIEWS for f, (_, m) in VIEWS[v].features.items() if m == "score"}

    def is_near(entity: int, *cells: list[Any]) -> bool:
        _, written = history.written.get(("scored", entity), (0, {}))
        true = sum(WEIGHTS.get(value, 0.0) for value in written.get("viewed", ()))
        return all(value and abs(value[1] - true) <= LARGEST_STEP for value, *_ in cells)

    if operation["do"] == "get":
        return {
            name: [
                a if name in scores and (b[1] == NOT_FOUND or is_near(entity, a, b)) else b
                for entity, a, b in zip(operation["entities"], one[name], column, strict=True)
            ]
            for name, column in other.items()
        }
    if operation["do"] == "online_read":
        for entity, row, other_row in zip(operation["entities"], one, other, strict=True):
            for f in {*scores.values()} if row and other_row else ():
                value, other_value = row[1].get(f), other_row[1].get(f)
                if f in row[1] and (other_value is None or is_near(entity, [value], [other_value])):
                    other_row[1][f] = value
    return other


def _with_bins(operation: dict[str, Any], one: Any, other: Any, history: History) -> Any:
    """The other answer with the bins of this one that are at least as near to the number, or that show a
    number of another row of a view with shards.
    """
    pairs: list[tuple[Any, Any]] = []
    if operation["do"] == "online_read" and operation["view"] == "scalars":
        rows = [[row[1].get("spent") if row else None for row in answer] for answer in (one, other)]
        pairs = list(zip(*rows, strict=True))
    if operation["do"] == "get" and "scalars" in operation["views"]:
        cells = [[cell[0] for cell in answer["scalars__spent"]] for answer in (one, other)]
        pairs = list(zip(*cells, strict=True))
    is_column = operation["do"] == "reader" and operation["feature"] == "spent"
    if is_column:
        columns = [[["", n] if n is not None else None for n in answer["arrow"]] for answer in (one, other)]
        pairs = list(zip(*columns, strict=True))
    for entity, (value, other_value) in zip(operation["entities"], pairs, strict=bool(pairs)):
        number = history.binned.get(entity)
        if number is None or not (value and other_value):
            continue
        is_nearer = abs(value[1] - number) <= abs(other_value[1] - number)
        if is_nearer or (history.num_shards > 1 and value[1] in history.numbers):
            other_value[1] = value[1]
    if is_column:
        return {**other, "arrow": [value and value[1] for _, value in pairs]}
    return other


def _are_no_newer(operation: dict[str, Any], columns: Times, history: History) -> bool:
    for view, column in columns:
        for entity, time_of_row in zip(operation["entities"], column, strict=True):
            event, _ = history.written.get((view, entity), (0, {}))
            if time_of_row is not None and time_of_row > FIRST_EVENT + event:
                return False
    return True


def _has_written(operation: dict[str, Any], columns: Columns, history: History) -> bool:
    for view, feature, column in columns:
        for entity, value in zip(operation["entities"], column, strict=True):
            wanted = history.written.get((view, entity), (0, {}))[1].get(feature, set())
            if view != "cut" and wanted and (value is None or not wanted <= set(value[1])):
                return False
    return True


def main() -> int:
    """Compare, print the counts of operations, and exit with 1 at the first difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", default=sys.executable, help="Python of the other version's environment")
    parser.add_argument("--other-spelling", default=list(SPELLINGS)[-1], choices=list(SPELLINGS))
    parser.add_argument("--operations", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began, compared, number = time.monotonic(), Counter[str](), 0
    while compared.total() < arguments.operations:
        rng = random.Random(f"{arguments.seed} {number}")
        shards = rng.choice([1, 1, 4])
        versions = [
            Version(sys.executable, list(SPELLINGS)[-1], shards),
            Version(arguments.other, arguments.other_spelling, shards),
        ]
        history, done = History(rng, shards), []
        for _ in range(MESSAGES_A_HISTORY):
            message = history.message()
            for version in versions:
                version.send(message)
            for operation, *answers in zip(message, *(v.answers() for v in versions), strict=True):
                one, other = (in_order_of_counts(operation, answer) for answer in answers)
                done.append(operation)
                compared[operation["do"]] += 1
                error, other_error = raised_by(one), raised_by(other)
                if one == other or (error and error == other_error):
                    continue
                if other_error and not error:
                    compared[operation["do"]] -= 1
                    compared[f"the other raised {other_error}"] += 1
                    continue
                if is_lossy_alike(operation, one, other, history):
                    compared[operation["do"]] -= 1
                    compared["other wrong values of filters"] += 1
                    continue
                print(
                    f"seed {arguments.seed}, history {number}, {shards} shards: operation {len(done)} differs"
                )
                print(
                    json.dumps(operation),
                    f"this:  {json.dumps(one)[:3000]}",
                    f"other: {json.dumps(other)[:3000]}",
                    sep="\n",
                )
                about = {operation.get("view"), *operation.get("views", ())}
                changes = [
                    o
                    for o in done
                    if o.get("view") in about
                    and o["do"] in ("write", "items", "remove", "delete", "seal", "vacuum")
                ]
                Path("difference.json").write_text(json.dumps([*changes, operation]))
                for version in versions:
                    version.end()
                return 1
        for version in versions:
            version.end()
        number += 1
        print(f"{compared.total():,} operations, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{number} histories, 0 differences:", dict(compared))
    return 0


if __name__ == "__main__":
    sys.exit(main())
