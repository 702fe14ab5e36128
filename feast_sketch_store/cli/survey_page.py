"""A survey as one self-contained page of HTML, to send to others."""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #ccc; padding: .3em .8em; text-align: left; white-space: nowrap }
th { background: #f3f3f3 }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd } th { background: #2a2a2a } th, td { border-color: #444 }
}
"""


def page_of(
    title: str,
    tables: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
    notes: Iterable[str],
) -> str:
    """A page, to be written as UTF-8.

    Parameters
    ----------
    tables : the heading, the names of columns and the cells of each.
    notes : sentences after them.
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    for heading, columns, rows in tables:
        parts.append(f"<h2>{escape(heading)}</h2>\n<table>")
        parts.append(_row("th", columns))
        parts += [_row("td", row) for row in rows]
        parts.append("</table>")
    parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
