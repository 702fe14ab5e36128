"""Pages of HTML, each one file that loads nothing: headings, tables and pictures with bars."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

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


def write(path: Path, text: str) -> None:
    """Write a page to a file, as UTF-8."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: the page cannot be written: {error.strerror}") from error


def page(title: str, body: Iterable[str]) -> str:
    """A page; ``body`` are its elements."""
    return _PAGE.format(title=escape(title), width=_WIDTH * 3 // 2, body="\n".join(body))


def table(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in header)
    cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
    body = "\n".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f'<div class="scroll"><table data-name="{escape(name)}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def bars(name: str, pairs: Sequence[tuple[str, float, float]], text: Any) -> str:
    """A picture with two bars for each name: before and after; one that is 0 in all is left out."""
    if not pairs:
        return ""
    largest = max((max(old, new) for _, old, new in pairs), default=0) or 1
    kinds = ("before", "after") if any(old for _, old, _ in pairs) else ("after",)
    width, step = _WIDTH - _FIGURES, _NAME + len(kinds) * _BAR + _GAP
    parts = []
    for number, (label, *values) in enumerate(pairs):
        top = number * step
        short = label if len(label) <= _MOST_LETTERS else label[: _MOST_LETTERS - 3] + "..."
        parts.append(f'<text x="0" y="{top + _NAME - 5}">{escape(short)}</text>')
        for row, (kind, value) in enumerate(zip(kinds, values[-len(kinds) :], strict=True)):
            length = round(width * value / largest, 1)
            at = top + _NAME + row * _BAR
            parts.append(f'<rect class="{kind}" x="0" y="{at}" width="{length}" height="{_BAR - 2}"/>')
            parts.append(f'<text x="{length + 6}" y="{at + _BAR - 3}">{escape(text(value))}</text>')
    return (
        f'<svg role="img" aria-label="{escape(name)}" viewBox="0 0 {_WIDTH} {len(pairs) * step}">'
        f"{''.join(parts)}</svg>"
    )
