"""Pages of two versions of a view, and of what happened to an entity. Each is one file that loads nothing."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from feast_sketch_store.operations.entity_history import EntityHistory, LoggedRow
from feast_sketch_store.operations.versions import FeatureDiff, Mover, ViewDiff
from feast_sketch_store.planning.report import readable_bytes

# Of a picture, in its own pixels; it is as wide as a phone's window, or up to half as wide again.
_WIDTH, _BAR, _GAP, _NAME, _FIGURES = 480, 16, 8, 18, 120
_MOST_LETTERS = 50  # of a name

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --bg: #fff; --fg: #1b1f24; --muted: #57606a; --line: #d0d7de;
  --before: #8a94a0; --after: #0072b2; }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --bg: #0f1318; --fg: #e6e9ed; --muted: #a3adb8; --line: #38414c;
    --before: #7d8894; --after: #3d94e0; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 1080px; padding: 1.2rem clamp(.8rem, 3vw, 2rem) 3rem;
  background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }}
h2 {{ font-size: 1.15rem; margin: 2rem 0 .6rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid var(--line); }}
td:first-child {{ max-width: 13rem; overflow-wrap: anywhere; }}
thead th, .muted {{ color: var(--muted); font-weight: normal; }}
svg {{ display: block; width: 100%; max-width: {width}px; height: auto; margin-top: .6rem; font-size: 14px; }}
svg text {{ fill: var(--fg); }}
svg .before {{ fill: var(--before); }}
svg .after {{ fill: var(--after); }}
.key::before {{ content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .3em; }}
.key.before::before {{ background: var(--before); }}
.key.after::before {{ background: var(--after); }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def diff_page(found: ViewDiff) -> str:
    """The page of two versions, to be written as UTF-8."""
    features = found.features
    rates = [f for f in features if f.before.error_rate is not None or f.after.error_rate is not None]
    body = [
        f"<h1>Changes of <code>{escape(found.view)}</code></h1>",
        f'<p class="muted"><span class="key before">version {escape(found.before)}</span> and '
        f'<span class="key after">version {escape(found.after)}</span>, as reads show them.</p>',
        _table("summary", ("", "before", "after", "change"), summary_cells(found)),
        "<h2>Facts</h2>",
        _bars("facts", [(f.name, f.before.facts, f.after.facts) for f in features], "{:,}".format),
        "<h2>Bytes of sealed rows</h2>",
        _bars("sizes", [(f.name, f.before.size_bytes, f.after.size_bytes) for f in features], readable_bytes),
        "<h2>Structures and error rates</h2>",
        _table(
            "structures",
            ("feature", "before", "after", "error rate before", "after"),
            [structure_cells(feature) for feature in features],
        ),
        _bars(
            "rates",
            [(f.name, f.before.error_rate or 0.0, f.after.error_rate or 0.0) for f in rates],
            "{:.2g}".format,
        ),
    ]
    for feature in features:
        names = [
            *feature.before.lengths,
            *(n for n in feature.after.lengths if n not in feature.before.lengths),
        ]
        pairs = [(n, feature.before.lengths.get(n, 0), feature.after.lengths.get(n, 0)) for n in names]
        name = escape(feature.name)
        body += [
            f"<h2>Rows by the number of <code>{name}</code> they have</h2>",
            _bars(f"lengths of {feature.name}", [p for p in pairs if p[1] or p[2]], "{:,}".format),
            f"<h2>Values of <code>{name}</code> that moved most</h2>",
            _movers(f"values of {feature.name}", feature.values),
        ]
    body += ["<h2>Entities that moved most</h2>", _movers("entities", found.movers)]
    return _page(f"Changes of {found.view}", body)


def history_page(found: EntityHistory) -> str:
    """The page of an entity, to be written as UTF-8."""
    names = sorted({name for row in found.rows for name in row.shown or {}})
    body = [
        f"<h1>{escape(found.entity)} in <code>{escape(found.view)}</code></h1>",
        f'<p class="muted">Shard {found.shard}; commits that its snapshot covers: '
        f"{found.snapshot_version or 0:,}.</p>",
        "<h2>Reads show now</h2>",
        "<p>No row.</p>" if found.shown is None else _table("now", ("feature", "value"), _named(found.shown)),
    ]
    if found.not_written:
        body += ["<h2>Shown by a filter, never written</h2>"]
        body += [_table("not written", ("feature", "values"), _named(found.not_written))]
    body += [
        "<h2>Rows, in the order of commits</h2>",
        _table("rows", ("commit", "event", "sealed", "written", "reads showed"), map(row_cells, found.rows)),
    ]
    for name in names:
        pairs = [(f"commit {row.commit}", 0, _length((row.shown or {}).get(name))) for row in found.rows]
        body += [f"<h2>Values of <code>{escape(name)}</code> that reads showed</h2>"]
        body += [_bars(f"lengths of {name}", pairs, "{:,}".format)]
    return _page(f"{found.entity} in {found.view}", body)


# -- cells, of the pages and of the command line -------------------------------------------------------


def summary_cells(found: ViewDiff) -> list[list[str]]:
    """What a view has in both versions."""
    (old, new), (old_bytes, new_bytes) = found.entities, found.size_bytes
    return [
        ["entities", f"{old:,}", f"{new:,}", change_text(old, new)],
        ["... added", "", f"{found.added:,}", ""],
        ["... removed", f"{found.removed:,}", "", ""],
        ["... replaced", "", f"{found.replaced:,}", ""],
        *(
            [
                f"facts of {f.name}",
                f"{f.before.facts:,}",
                f"{f.after.facts:,}",
                change_text(f.before.facts, f.after.facts),
            ]
            for f in found.features
        ),
        ["memory", readable_bytes(old_bytes), readable_bytes(new_bytes), change_text(old_bytes, new_bytes)],
    ]


def structure_cells(feature: FeatureDiff) -> list[str]:
    """The structures of a feature and their error rates."""
    versions = feature.before, feature.after
    rates = ["-" if each.error_rate is None else f"{each.error_rate:.2g}" for each in versions]
    return [feature.name, *(each.structure or "-" for each in versions), *rates]


def mover_cells(mover: Mover) -> list[str]:
    """An entity or a value that moved."""
    return [mover.name, f"{mover.before:,}", f"{mover.after:,}", change_text(mover.before, mover.after)]


def row_cells(row: LoggedRow) -> list[str]:
    """A row of an entity."""
    written = "the entity is deleted" if row.is_deletion else _json(row.values)
    shown = "no row" if row.shown is None else _json(row.shown)
    return [row.commit, row.event_timestamp or "-", "yes" if row.is_sealed else "no", written, shown]


def change_text(before: float, after: float) -> str:
    """How much something changed, in percent of what it was."""
    return f"{100 * (after - before) / before:+.1f} %" if before else "-" if not after else "new"


def _named(values: Mapping[str, Any]) -> list[list[str]]:
    return [[name, _json(value)] for name, value in values.items()]


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else int(value is not None)


# -- HTML ------------------------------------------------------------------------------------------------


def _page(title: str, body: Iterable[str]) -> str:
    return _PAGE.format(title=escape(title), width=_WIDTH * 3 // 2, body="\n".join(body))


def _movers(name: str, movers: Sequence[Mover]) -> str:
    if not movers:
        return "<p>None: all have as many facts as before.</p>"
    return _table(name, ("", "facts before", "after", "change"), map(mover_cells, movers))


def _table(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in header)
    cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
    body = "\n".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f'<div class="scroll"><table data-name="{escape(name)}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _bars(name: str, pairs: Sequence[tuple[str, float, float]], text: Any) -> str:
    """A picture with two bars for each name: before and after; one that is 0 in all is left out."""
    if not pairs:
        return ""
    largest = max((max(old, new) for _, old, new in pairs), default=0) or 1
    kinds = ("before", "after") if any(old for _, old, _ in pairs) else ("after",)
    room, step = _WIDTH - _FIGURES, _NAME + len(kinds) * _BAR + _GAP
    parts = []
    for number, (label, *values) in enumerate(pairs):
        top = number * step
        short = label if len(label) <= _MOST_LETTERS else label[: _MOST_LETTERS - 3] + "..."
        parts.append(f'<text x="0" y="{top + _NAME - 5}">{escape(short)}</text>')
        for row, (kind, value) in enumerate(zip(kinds, values[-len(kinds) :], strict=True)):
            length = round(room * value / largest, 1)
            at = top + _NAME + row * _BAR
            parts.append(f'<rect class="{kind}" x="0" y="{at}" width="{length}" height="{_BAR - 2}"/>')
            parts.append(f'<text x="{length + 6}" y="{at + _BAR - 3}">{escape(text(value))}</text>')
    return (
        f'<svg role="img" aria-label="{escape(name)}" viewBox="0 0 {_WIDTH} {len(pairs) * step}">'
        f"{''.join(parts)}</svg>"
    )


def as_json(found: ViewDiff | EntityHistory) -> dict[str, Any]:
    """The same for programs; times are ISO 8601 texts."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(found), default=str))
    return plain
