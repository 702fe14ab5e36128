"""Processes that write and read one view at once, for the campaigns of rows and of lists."""

import argparse
import json
import logging
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workload import in_child

from feast_sketch_store.view.view import View

REFRESH_SECONDS = 0.05
# Longest time, beyond the campaign's, until a process that does not end is taken for hung.
PATIENCE_SECONDS = 180
MAX_FAILURES = 5  # of one process; it stops then


class CountedView(View):
    """A view that counts its seals, those by policy too."""

    seals = 0

    def seal(self, as_delta: bool = False) -> bool:
        sealed = super().seal(as_delta)
        self.seals += sealed
        return sealed


class Log(logging.Handler):
    """The failures of one process; a warning of the package is one too unless it is excused.

    ``is_late`` excuses the one warning of a process about rows that came too late.
    """

    def __init__(self, name: str, is_excused: Callable[[], bool] = lambda: False, is_late: bool = False):
        super().__init__()
        self.process, self.failures, self.is_excused, self.num_excused = name, [], is_excused, 0
        self.is_late = is_late
        logging.getLogger("feast_sketch_store").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_late and "rows written are ignored" in record.getMessage():
            self.is_late = False
        elif self.is_excused():
            self.num_excused += 1
        else:
            self.fail(f"logged: {record.getMessage()}")

    def fail(self, what: str) -> None:
        self.failures.append(f"{self.process}, {time.monotonic():.3f}: {what}")

    def run(self, step: Callable[[], None], end: float) -> None:
        """Take a step, and repeat it until the time is over, or too much has failed."""
        is_over = False
        while not is_over:
            try:
                step()
            except Exception:
                self.fail(traceback.format_exc())
            is_over = time.monotonic() >= end or len(self.failures) >= MAX_FAILURES


Task = Callable[[], tuple[Counter[str], Log]]


@dataclass(frozen=True)
class Crowd:
    """What runs at once, until the same time, and then the check of what is left.

    Parameters
    ----------
    counted : what the tasks count, in the order in which it is printed.
    checked : what one of the ``rows`` is called that they checked.
    """

    tasks: Sequence[Task]
    final: Task
    counted: Sequence[str]
    checked: str


def start_child(task: Task, seconds: float) -> tuple[int, Iterator[str]]:
    """Fork a child that reports its counts and failures as one line, or nothing if it hangs."""

    def run(report: int) -> None:
        signal.alarm(int(seconds + PATIENCE_SECONDS))
        try:
            counts, log = task()
            counts["failures"], counts["excused"] = len(log.failures), log.num_excused
            done = counts, log.failures
        except Exception:
            done = Counter(failures=1), [traceback.format_exc()]
        with os.fdopen(report, "w") as pipe:
            pipe.write(json.dumps(done))

    return in_child(run)


def counts_of(children: list[tuple[int, Iterator[str]]]) -> Counter[str]:
    """Wait for children, print what failed, and add up their counts."""
    total: Counter[str] = Counter()
    for pid, lines in children:
        text = "".join(lines)
        _, status = os.waitpid(pid, 0)
        counts, failures = json.loads(text) if text else ({"failures": 1}, [f"a child ended with {status}"])
        total.update(counts)
        print(*failures, sep="\n", end="\n" if failures else "")
    return total


def main(parser: argparse.ArgumentParser, gather: Callable[[Path, argparse.Namespace, float], Crowd]) -> int:
    """Run the campaign of a command, whose options ``parser`` takes besides the usual ones.

    Parameters
    ----------
    gather : what runs on a folder with these options, until a time of the monotonic clock.
    """
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="at-once-"))
    try:
        crowd = gather(folder / "view", options, time.monotonic() + options.seconds)
        total = counts_of([start_child(task, options.seconds) for task in crowd.tasks])
        total += counts_of([start_child(crowd.final, 0)])
    finally:
        shutil.rmtree(folder)
    print(
        *(f"{total[name]} {name}," for name in crowd.counted),
        f"{total['rows']} {crowd.checked} checked, {total['failures']} failures",
    )
    return min(1, total["failures"])
