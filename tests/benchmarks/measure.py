"""What all benchmarks share: interleaved timing, the versions measured with, Markdown tables."""

import gc
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TypeVar

T = TypeVar("T")

# What was printed, for `run.py --json`: one entry per table, in order.
printed: list[dict[str, object]] = []
# The same as Markdown, for `run.py --page`: descriptions and tables.
texts: list[str] = []
_set_up = ""


@dataclass(frozen=True)
class Goal:
    """What must hold: a measured value within a limit, which it must not exceed, or must reach."""

    name: str
    measured: float
    limit: float
    is_least: bool = False

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        holds = self.measured >= self.limit if self.is_least else self.measured <= self.limit
        sign = ">=" if self.is_least else "<="
        share = self.measured / self.limit
        return [
            self.name,
            f"{sign} {number(self.limit)}",
            number(self.measured),
            number(share),
            "yes" if holds else "no",
        ]


def print_goals(goals: Sequence[Goal]) -> None:
    """Print the table of goals, what was measured, and whether they hold."""
    print_table(["goal", "limit", "measured", "measured / limit", "holds"], [goal.cells for goal in goals])


def interleaved(
    sides: Mapping[str, Callable[[T], object]],
    make_input: Callable[[int], T],
    *,
    rounds: int,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of one call of each side, measured in turns, A B A B ..., after an untimed turn.

    What else the machine does falls on all sides alike, so ratios hold where absolute times do not.

    Parameters
    ----------
    sides : what is timed, by name.
    make_input : makes the input of call number i; every call gets a fresh one, made before timing,
        and all sides get equal ones.
    rounds : how often each side has its turn.
    calls : timed calls a turn.
    clock : `time.process_time` leaves out what else the machine does, which interrupts long calls more often.
    """
    samples = interleaved_samples(sides, make_input, rounds=rounds, calls=calls, clock=clock)
    return {name: median(times) for name, times in samples.items()}


def interleaved_samples(
    sides: Mapping[str, Callable[[T], object]],
    make_input: Callable[[int], T],
    *,
    rounds: int,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """The seconds of all timed calls of `interleaved`, in ascending order."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1, rounds):
        for name, run in sides.items():
            inputs = [make_input(max(turn, 0) * calls + call) for call in range(calls)]
            gc.collect()
            times = [seconds(run, argument, clock=clock)[0] for argument in inputs]
            if turn >= 0:
                samples[name] += times
    return {name: sorted(times) for name, times in samples.items()}


def quantile(ascending: Sequence[float], share: float) -> float:
    """The sample below which so large a share of them lies."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def quantiles_beside(samples: Mapping[str, list[float]], base: str) -> dict[str, list[str]]:
    """Cells of each side: its p50 and p99 in microseconds, and the times of the base over both."""
    p50_p99 = {name: [quantile(times, share) for share in (0.5, 0.99)] for name, times in samples.items()}
    return {
        name: [number(time * 1e6) for time in own]
        + [number(of_base / time) for of_base, time in zip(p50_p99[base], own, strict=True)]
        for name, own in p50_p99.items()
    }


def seconds(
    run: Callable[..., T], *arguments: object, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, T]:
    """How long one call takes, and what it returns."""
    start = clock()
    result = run(*arguments)
    return clock() - start, result


def memory(name: str) -> int:
    """A line of this process's memory in bytes, as Linux counts it; 0 elsewhere."""
    status = Path("/proc/self/status")
    match = re.search(rf"{name}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) * 1024 if match else 0


def begin_peak() -> int:
    """Let the peak ``VmHWM`` of this process begin anew, where that can be; gives its bytes now."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")
    return memory("VmRSS")


def print_set_up(text: str, *packages: str) -> None:
    """Print what the table below is measured with."""
    global _set_up
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    _set_up = f"{text}; {', '.join(versions)}."
    _print(_set_up)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table, the first column left-aligned, the others right-aligned, and keep it."""
    named = [dict(zip(header, map(str, row), strict=True)) for row in rows]
    printed.append({"set_up": _set_up, "rows": named})
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    _print("\n".join(map(line, (cells[0], rule, *cells[1:]))))


def _print(text: str) -> None:
    texts.append(text)
    print(text, end="\n\n", flush=True)


def number(value: float) -> str:
    """A number with three significant digits, no exponent and a separator of thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
