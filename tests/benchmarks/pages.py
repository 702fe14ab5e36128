"""Puts the tables of a benchmark into a page of results: ``run.py NAME --page FILE``."""

import re
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path


def written_by(page: str, name: str, printed: Sequence[str], source: str) -> str:
    """A page with new tables in the section of a benchmark; its text stays.

    Parameters
    ----------
    page : Markdown with a section ``## name``.
    printed : the descriptions and tables that the benchmark printed, in order. They take the place of the
        first ones there.
    source : the day and the commit, for the first line of the section.

    Raises
    ------
    ValueError : there is no such section, or it has no tables.
    """
    sections = re.split(r"(?m)^(?=## )", page)
    titles = [section.partition("\n")[0] for section in sections]
    if titles.count(f"## {name}") != 1:
        raise ValueError(f"the page has no section {name!r}, or several")
    place = titles.index(f"## {name}")
    paragraphs = sections[place].rstrip("\n").split("\n\n")
    old = [number for number, text in enumerate(paragraphs) if _is_printed(text)]
    if not old:
        raise ValueError(f"the section {name!r} has no tables; write its text first, and a table")
    kept = [text for text in paragraphs if not _is_printed(text)]
    kept[old[0] : old[0]] = printed
    kept = [source if text.startswith("Tables of ") else text for text in kept]
    end = "\n\n" if place + 1 < len(sections) else "\n"
    sections[place] = "\n\n".join(kept) + end
    return "".join(sections)


def update(path: Path, name: str, printed: Sequence[str]) -> None:
    """Write the tables of a benchmark into a file; see `written_by`."""
    command = ["git", "-C", str(path.resolve().parent), "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(command, check=True, capture_output=True, text=True)
    source = f"Tables of {date.today()}, commit {commit.stdout.strip()}."
    path.write_text(written_by(path.read_text(), name, [text.strip() for text in printed], source))


def _is_printed(paragraph: str) -> bool:
    """Whether a paragraph is a table, or the description above it, which ends with versions."""
    return paragraph.startswith("|") or bool(re.search(r"; Python 3\.\d+[^;]*\.$", paragraph))
