"""Tables and plots of the results: ``python report.py RESULTS.json [--into PAGE.md] [--svg FILE]``.

``--into`` replaces what stands in a page between the lines ``<!-- click_prediction: begin -->`` and
``<!-- click_prediction: end -->``; without it the tables are printed.
"""

import argparse
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measure import number, print_table

NONE, EXACT, SKETCH = "no history", "exact, CSR in memory", "sketch"
BEGIN, END = "<!-- click_prediction: begin -->", "<!-- click_prediction: end -->"


def print_report(result: Mapping[str, Any]) -> None:
    """The tables of one task."""
    redis, facts = result["redis"], result["facts"]
    rates = [point["predictions/s"] for points in result["curves"].values() for point in points]
    print("Without the sketch:\n")
    memory = f"{redis['used_memory']:,}", f"{redis['used_memory'] * 8 / facts:,.0f}"
    rows = [["no history", "0", "0", _auc(result[NONE]), _median(rates, NONE)]]
    csr = f"{result['CSR bytes']:,}", number(result["CSR bytes"] * 8 / facts)
    rows.append(["exact, SciPy CSR in the same process", *csr, _auc(result[EXACT]), _median(rates, EXACT)])
    rows.append(["exact, Redis", *memory, _auc(result[EXACT]), number(redis["predictions/s"])])
    header = ["history", "bytes", "bits/fact", "AUC (95 % interval)", "predictions/s on a core"]
    print_table(header, rows)
    print(
        f"Redis: growth of `used_memory` by the rows; the sum of `MEMORY USAGE` is "
        f"{redis['MEMORY USAGE']:,}. Predictions come through `get_online_features`.\n"
    )
    for name, points in result["curves"].items():
        print(f"Through the sketch, {name}:\n")
        header = [
            "setting",
            "snapshot bytes",
            "bits/fact",
            "of Redis",
            "facts kept",
            "false symbols per read",
        ]
        header += ["noise ratio", "AUC (95 % interval)", "uplift kept", "AUC, trained on exact"]
        header += ["predictions/s on a core"]
        print_table(header, [_row(point) for point in points])


def _row(point: Mapping[str, Any]) -> list[str]:
    low, high = point["uplift interval"]
    return [
        point["setting"],
        f"{point['bytes']:,}",
        number(point["bits/fact"]),
        f"{point['share of Redis']:.2%}",
        f"{point['facts kept']:.1%}",
        number(point["false per read"]),
        number(point["noise ratio"]),
        _auc(point),
        f"{point['uplift kept']:.1%} ({low:.0%} to {high:.0%})",
        f"{point['trained on exact']['auc']:.4f}",
        number(point["predictions/s"][SKETCH]),
    ]


def _auc(measured: Mapping[str, Any]) -> str:
    low, high = measured["interval"]
    return f"{measured['auc']:.4f} ({low:.4f} to {high:.4f})"


def _median(rates: Sequence[Mapping[str, float]], side: str) -> str:
    ascending = sorted(rate[side] for rate in rates)
    return number(ascending[len(ascending) // 2]) if ascending else ""


# Readable on white and on black.
_GREY = "#808080"
_COLOURS = ("#2f81f7", "#e5731a", "#2da44e", "#c24fc2", "#d4493f", "#1a9a9a")
_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 60


def to_svg(result: Mapping[str, Any]) -> str:
    """AUC over bits per fact: a line for each curve, dashed ones for no and for the exact history."""
    curves: dict[str, list[tuple[float, float]]] = {
        name: sorted((point["bits/fact"], point["auc"]) for point in points)
        for name, points in result["curves"].items()
    }
    levels = {"exact history": result[EXACT]["auc"], "no history": result[NONE]["auc"]}
    bits = [x for points in curves.values() for x, _ in points] or [1.0]
    aucs = [y for points in curves.values() for _, y in points] + list(levels.values())
    first, last = math.log2(min(bits)) - 0.2, math.log2(max(bits)) + 0.2
    margin = (max(aucs) - min(aucs)) * 0.06
    low, high = min(aucs) - margin, max(aucs) + margin

    def x_of(value: float) -> float:
        return _LEFT + (math.log2(value) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = _GREY) -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'

    def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GREY}" {style}/>'

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(result['task'])}: AUC over bits per fact</title>",
    ]
    for exponent in range(math.ceil(first), math.floor(last) + 1):
        x = x_of(2.0**exponent)
        parts.append(line(x, _TOP, x, bottom, 'stroke-opacity="0.25"'))
        parts.append(text(x, bottom + 18, f"{2.0**exponent:g}"))
    step = next(s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1) if (high - low) / s < 9)
    for tick in range(math.ceil(low / step), math.floor(high / step) + 1):
        y = y_of(tick * step)
        parts.append(line(_LEFT, y, right, y, 'stroke-opacity="0.25"'))
        parts.append(text(_LEFT - 8, y + 4, f"{tick * step:.3f}", "end"))
    parts.append(text((_LEFT + right) / 2, _HEIGHT - 18, "snapshot, bits per fact"))
    parts.append(text(_LEFT - 8, _TOP - 6, "AUC", "end"))
    for name, auc in levels.items():
        parts.append(line(_LEFT, y_of(auc), right, y_of(auc), 'stroke-width="1.5" stroke-dasharray="6 4"'))
        # The curves are low on the left and high on the right.
        x, anchor = (right - 6, "end") if name == "no history" else (_LEFT + 6, "start")
        parts.append(text(x, y_of(auc) - 5, f"{name}, {auc:.4f}", anchor))
    legend = y_of(levels["no history"]) - 24 - 18 * len(curves)  # curves rise, so this corner is empty
    for number_, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[number_ % len(_COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"/>')
        y = legend + 18 * number_
        parts.append(f'<circle cx="{right - 230}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(text(right - 220, y + 4.5, name, "start", colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables and plots of the click prediction results.")
    parser.add_argument("results", type=Path, help="what run.py --json wrote")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="a Markdown page with the two marks")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where to plot; the task's name is added")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    page = io.StringIO()
    with redirect_stdout(page):
        for name, result in results.items():
            print(f"## {name}\n\n{result['set_up']}.\n")
            print_report(result)
    if arguments.svg:
        for name, result in results.items():
            arguments.svg.with_stem(f"{arguments.svg.stem}-{name}").write_text(to_svg(result))
    if not arguments.into:
        print(page.getvalue(), end="")
        return
    before, begin, rest = arguments.into.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        parser.exit(2, f"{arguments.into} lacks the lines {BEGIN} and {END}\n")
    arguments.into.write_text(f"{before}{BEGIN}\n\n{page.getvalue()}{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
