"""What a sketch costs a model that reads it: AUC against memory, on real data, through the real store.

    python tests/benchmarks/click_prediction/run.py [--data FOLDER] [--task NAME] [--curve NAME] [--quick]
                                                    [--json FILE] [--svg FILE]

Needs the dependency group ``benchmark`` and ``redis-server`` on the PATH. Each setting is applied, sealed by
another process, and read back by a new `SketchReader`; a model is fitted on what that reads. ``report.py``
makes the tables and the plot of the docs from the JSON.
"""

import os

# Before NumPy is imported: predictions are timed on one core.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from curves import SETTINGS, Setting, tags_of
from measure import print_set_up, seconds
from model import Bootstrap, ClickModel, interval
from report import print_report, to_svg
from serving import (
    EXACT,
    NONE,
    REDIS,
    SKETCH,
    check,
    csr_bytes,
    in_memory,
    predictions_per_second,
    through_redis,
    through_sketch,
    without_history,
)
from stores import redis_server, temporary_folder
from tasks import WHERE_THE_DATA_IS, Task, add_data_argument, load_or_exit
from through_feast import Repository

TASKS = ("kuairand", "retail")
CHECKED_PEOPLE = 200
QUICK_SETTINGS = 2  # of each curve
TOLERANCE = 1e-3  # between two fits, neither of which is at the optimum


def main() -> None:
    parser = argparse.ArgumentParser(
        description="AUC against memory, on real data.",
        epilog=WHERE_THE_DATA_IS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_data_argument(parser)
    parser.add_argument("--task", action="append", choices=TASKS, help="default: all")
    parser.add_argument("--curve", action="append", choices=SETTINGS, help="default: all")
    parser.add_argument("--quick", action="store_true", help="two settings of each curve, few repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results, too")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where to plot; the task's name is added")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # Feast warns of its own deprecations at every import
    results: dict[str, Any] = {}
    for name in arguments.task or TASKS:
        task = load_or_exit(name, arguments.data, parser)
        results[name] = measure_task(task, arguments.curve or list(SETTINGS), quick=arguments.quick)
        print_report(results[name])
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        if arguments.svg:
            path = arguments.svg.with_stem(f"{arguments.svg.stem}-{name}")
            path.write_text(to_svg(results[name]))


def measure_task(task: Task, curves: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """All settings of some curves, and what they are compared with."""
    resamples, rounds, calls = (50, 2, 2) if quick else (500, 9, 5)
    set_up = (
        f"{task.title}. {len(task.written):,} people with {task.num_facts:,} facts, "
        f"{sum(map(len, task.vocabularies.values())):,} values; {task.is_train.sum():,} examples to train "
        f"on, {(~task.is_train).sum():,} to test on; {resamples} resamples of the people tested on"
    )
    print(f"## {task.name}\n")
    print_set_up(set_up, "numpy", "scipy", "feast", "redis")
    bootstrap = Bootstrap(task, resamples)
    plain, exact = ClickModel(task, None), ClickModel(task, task.history)
    decided = {NONE: plain.decide(None), EXACT: exact.decide(task.history)}
    samples = {name: bootstrap.aucs(each) for name, each in decided.items()}
    result: dict[str, Any] = {
        "task": task.name,
        "set_up": set_up,
        "facts": task.num_facts,
        NONE: _auc(samples[NONE]),
        EXACT: _auc(samples[EXACT]),
        "CSR bytes": csr_bytes(task),
        "curves": {},
    }
    reference = bootstrap.aucs(exact.reference(task.history))[0]
    if abs(reference - samples[EXACT][0]) > TOLERANCE:
        raise AssertionError(f"the exact AUC is {samples[EXACT][0]}, but scikit-learn's {reference}")
    with temporary_folder() as folder:
        with redis_server() as port:
            result["redis"] = _measure_redis(task, exact, decided[EXACT], folder / "redis", port, quick=quick)
        online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
        with Repository(folder / "sketch", task, online_store) as repository:
            repository.materialize()
            importance = exact.importance()
            for name in curves:
                points = result["curves"][name] = []
                for setting in _some(SETTINGS[name], quick=quick):
                    sealed = repository.seal(tags_of(setting, task, importance))
                    size = sealed["bytes"]
                    history = repository.read()
                    repository.check(history, _sample(task))
                    point = {"setting": setting.label, "bytes": size, "bits/fact": size * 8 / task.num_facts}
                    point["sealed in, s"] = sealed["seconds"]
                    point["share of Redis"] = size / result["redis"]["used_memory"]
                    point |= _compare(task, history)
                    fit_seconds, model = seconds(ClickModel, task, history)
                    through = model.decide(history)
                    of_exact = bootstrap.aucs(exact.decide(history))
                    own = bootstrap.aucs(through)
                    uplift = (own - samples[NONE]) / (samples[EXACT] - samples[NONE])
                    point |= {
                        **_auc(own),
                        "uplift kept": float(uplift[0]),
                        "uplift interval": interval(uplift),
                        "trained on exact": _auc(of_exact),
                    }
                    sides = {
                        NONE: without_history(plain),
                        EXACT: in_memory(exact),
                        SKETCH: through_sketch(model, repository.folder),
                    }
                    check(sides, task, {**decided, SKETCH: through})
                    point["predictions/s"] = predictions_per_second(sides, task, rounds, calls)
                    points.append(point)
                    print(
                        f"{name}, {setting.label}: {point['bits/fact']:.2f} bits/fact, AUC {own[0]:.4f}, "
                        f"fitted in {fit_seconds:.0f} s",
                        file=sys.stderr,
                        flush=True,
                    )
    return result


def _measure_redis(
    task: Task, exact: ClickModel, decided: Any, folder: Path, port: int, *, quick: bool
) -> dict[str, Any]:
    """The same rows in Feast's Redis store: bytes, and predictions per second through Feast."""
    import redis

    address = f"127.0.0.1:{port}"
    client = redis.Redis(port=port)
    with Repository(folder, task, {"type": "redis", "connection_string": address}) as repository:
        before = client.info("memory")["used_memory"]
        repository.materialize()
        used = client.info("memory")["used_memory"] - before
        summed = sum(_memory_usage(client))
        repository.check(task.history, _sample(task))
        sides = {REDIS: through_redis(exact, folder)}
        check(sides, task, {REDIS: decided})
        rate = predictions_per_second(sides, task, *((1, 1) if quick else (3, 3)))[REDIS]
    return {"used_memory": used, "MEMORY USAGE": summed, "predictions/s": rate}


def _memory_usage(client: Any) -> Iterator[int]:
    """Of each key, all nested values counted."""
    keys = list(client.scan_iter(count=10_000))
    for first in range(0, len(keys), 10_000):
        pipeline = client.pipeline(transaction=False)
        for key in keys[first : first + 10_000]:
            pipeline.memory_usage(key, samples=0)
        yield from pipeline.execute()


def _some(settings: Sequence[Setting], *, quick: bool) -> Sequence[Setting]:
    """All settings of a curve, or some from its middle."""
    return settings[2 :: len(settings) // QUICK_SETTINGS or 1] or settings if quick else settings


def _sample(task: Task) -> Any:
    count = min(CHECKED_PEOPLE, len(task.people))
    return np.random.default_rng(5).choice(len(task.people), count, replace=False)


def _compare(task: Task, history: Mapping[str, Any]) -> dict[str, Any]:
    """False symbols that a read of somebody with a history shows, and the true facts that it lacks."""
    written = task.written
    false, shown_facts = {}, 0
    for name, exact in task.history.items():
        shown = int(exact.multiply(history[name]).nnz)
        shown_facts += shown
        false[name] = (history[name][written].nnz - shown) / len(written)
    total = sum(false.values()) * len(written)
    return {
        "false per read": sum(false.values()),
        "false per read, by feature": false,
        "noise ratio": total / max(shown_facts, 1),
        "facts kept": shown_facts / task.num_facts,
    }


def _auc(samples: Any) -> dict[str, Any]:
    return {"auc": float(samples[0]), "interval": interval(samples)}


if __name__ == "__main__":
    main()
