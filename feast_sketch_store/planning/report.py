"""A plan as a page: its curves, the settings to paste, and every figure in a table.

The page is one file that loads nothing. What Python writes is complete without JavaScript. The script in
``report.html`` adds the curves, and lets a reader choose another point.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from feast_sketch_store.planning.plan import Estimate, Plan, PlannedField, Point

_MAX_LINE = 88
_UNKNOWN_FIELD = PlannedField("...")
_NOT_EMBEDDED = {"memory_low", "memory_high", "settings"}  # of points: the script shows them as text
_IS_CURRENT = "The view has these settings already, or equivalent ones."
_NO_SETTINGS = "# Nothing to set: this point is only for comparison."


def to_html(plan: Plan) -> str:
    """The page of a plan, to be written as UTF-8."""
    shown = plan.points[plan.shown]
    parts = {
        "view": escape(plan.view),
        "target": escape(plan.target),
        "summary": "\n".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in _summary(plan)),
        "chosen": escape(f"{shown.curve}: {shown.label}"),
        "mark": "" if plan.chosen is None else "<mark>chosen</mark>",
        "is_current": _IS_CURRENT if plan.is_current else "",
        "fields": escape(fields_text(plan, shown)),
        "table": _table(plan),
        "limits": "\n".join(f"<li>{escape(limit)}</li>" for limit in plan.limits),
        "plan": _embedded(plan),
    }
    template = files(__package__).joinpath("report.html").read_text("utf-8")
    # Replace all in one pass, because a value may look like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _summary(plan: Plan) -> Iterable[tuple[str, str]]:
    yield "Entities", f"{plan.num_entities:,}"
    yield "Facts", count_text(plan.facts)
    yield "Sampled entities", f"{plan.sampled_entities:,}"
    for feature, size in plan.vocabulary_sizes.items():
        yield f"Values of <code>{escape(feature)}</code>", count_text(size)


def _table(plan: Plan) -> str:
    with_auc = any(point.auc for point in plan.points)
    figures = {key: figure for key, figure in _FIGURES.items() if with_auc or key != "auc"}
    names = {"curve": "Curve", "label": "Point"} | {key: name for key, (name, _) in figures.items()}
    header = "".join(f'<th scope="col" data-key="{key}">{name}</th>' for key, name in names.items())
    rows = []
    for number, point in enumerate(plan.points):
        marks = [f" <mark>{mark}</mark>" for mark in plan.marks(number)]
        cells = [
            f'<th scope="row">{escape(point.curve)}</th>',
            f"<td><span>{escape(point.label)}</span>{''.join(marks)}</td>",
            *(f'<td data-name="{name}">{show(point)}</td>' for name, show in figures.values()),
        ]
        rows.append(f'<tr data-point="{number}">{"".join(cells)}</tr>')
    return f"<thead><tr>{header}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>"


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"


def count_text(count: Estimate) -> str:
    """A count, with its interval unless it is exact."""
    if count.is_known:
        return f"{count.value:,.0f}"
    return f"{count.value:,.0f} ({count.low:,.0f} to {count.high:,.0f})"


def memory_text(point: Point) -> str:
    """A point's bytes, with half of the interval unless they are exact."""
    return bytes_text(Estimate(point.memory_bytes, point.memory_low, point.memory_high))


def bytes_text(size: Estimate) -> str:
    """A size, with half of its interval unless it is exact."""
    text = readable_bytes(size.value)
    margin = max(size.high - size.value, size.value - size.low)
    if not margin or not math.isfinite(margin) or not size.value:
        return text
    percent = 100 * margin / size.value
    return f"{text} ± {percent:.0f} %" if percent >= 1 else f"{text} ± {percent:.1g} %"


def _number(number: float) -> str:
    if not math.isfinite(number):
        return "-"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


# The figures of a point by its field: what its column is called, and what it shows.
_FIGURES: dict[str, tuple[str, Callable[[Point], str]]] = {
    "memory_bytes": ("Memory", memory_text),
    "bits_per_fact": ("Bits per fact", lambda point: _number(point.bits_per_fact)),
    "table_bits_per_fact": (
        "In tables",
        lambda point: "-" if point.table_bits_per_fact is None else _number(point.table_bits_per_fact),
    ),
    "false_per_read": ("False values per read", lambda point: _number(point.false_per_read)),
    "noise_ratio": ("Noise ratio", lambda point: _number(point.noise_ratio)),
    "kept_share": ("Facts kept", lambda point: f"{100 * point.kept_share:.3g} %"),
    "auc": ("AUC (95 % interval)", lambda point: "-" if point.auc is None else _estimate(point.auc)),
}


def readable_bytes(number: float) -> str:
    """A size with three digits, in the largest unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:  # :.3g would round more to 1e+03
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{_number(number)} TB"


def fields_text(plan: Plan, point: Point) -> str:
    """The settings of a point as fields to paste into the schema of the feature view."""
    fields = [
        _field(feature, plan.fields.get(feature, _UNKNOWN_FIELD), tags)
        for feature, tags in point.settings.items()
    ]
    return "\n".join(fields) or _NO_SETTINGS


def _field(feature: str, declared: PlannedField, chosen: Mapping[str, str]) -> str:
    tags = {**declared.tags, **chosen}
    pairs = [f"{_literal(key)}: {_literal(value)}" for key, value in tags.items()]
    arguments = [f"name={_literal(feature)}", f"dtype={declared.dtype}"]
    if declared.description:
        arguments.append(f"description={_literal(declared.description)}")
    line = f"Field({', '.join(arguments)}, tags={{{', '.join(pairs)}}}),"
    if len(line) <= _MAX_LINE:
        return line
    outer = "".join(f"    {argument},\n" for argument in arguments)
    inner = "".join(f"        {pair},\n" for pair in pairs)
    return f"Field(\n{outer}    tags={{\n{inner}    }},\n),"


def _literal(text: str) -> str:
    """A Python string in double quotes; the escapes of JSON are valid in Python, too."""
    return json.dumps(text, ensure_ascii=False)


def _embedded(plan: Plan) -> str:
    """The data for the script, as JSON that is safe inside an HTML element."""
    content = {
        "chosen": plan.chosen,
        "shown": plan.shown,
        "knee": plan.knee,
        "auc_without": _plain(plan.auc_without),
        "auc_exact": _plain(plan.auc_exact),
        "points": [
            {
                **{name: _plain(value) for name, value in vars(point).items() if name not in _NOT_EMBEDDED},
                "fields": fields_text(plan, point),
            }
            for point in plan.points
        ],
    }
    text = json.dumps(content, allow_nan=False)
    # Then "</script>" or "<!--" cannot end or hide the element.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """Estimates as mappings; None for infinity, which a ratio to nothing gives and JSON lacks."""
    if isinstance(value, Estimate):
        return {name: _plain(number) for name, number in vars(value).items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
