"""Timing in turn, and tables."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Side = Callable[[], object]


def medians(sides: Mapping[str, Side], rounds: int) -> dict[str, float]:
    """Median seconds of each side, run in turn after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for counted in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            if counted:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
    for row in rows:
        print("|", " | ".join(str(cell) for cell in row), "|")


def short(number: float) -> str:
    """Three significant digits, without an exponent."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"
