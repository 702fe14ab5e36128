"""Pages in a headless Chromium. Tests that need it are skipped where it is not installed."""

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # The frame of `layout` looks into a page beside it.
    "--allow-file-access-from-files",
    "--disable-web-security",
    "--virtual-time-budget=3000",
)
_FRAME = """<!doctype html><body style="margin:0">
<iframe style="border:0; width:{width}px; height:900px"></iframe>
<script>
const frame = document.querySelector("iframe");
const box = (node) => node.getBoundingClientRect();
const meet = (one, other) =>
  box(one).left + 1 < box(other).right && box(other).left + 1 < box(one).right
  && box(one).top + 4 < box(other).bottom && box(other).top + 4 < box(one).bottom;
frame.onload = () => {{
  const page = frame.contentDocument;
  const pictures = {{}};
  for (const picture of page.querySelectorAll("svg[aria-label]")) {{
    const texts = [...picture.querySelectorAll("text")], bars = [...picture.querySelectorAll("rect")];
    const hidden = (text) => [...texts, ...bars].some((other) => other !== text && meet(text, other));
    pictures[picture.getAttribute("aria-label")] = {{
      right: Math.max(...[...texts, ...bars].map((node) => box(node).right)),
      overlaps: texts.filter(hidden).map((text) => text.textContent),
      bars: bars.map((bar) =>
        [bar.getAttribute("class"), box(bar).width, frame.contentWindow.getComputedStyle(bar).fill]),
    }};
  }}
  const text = document.createElement("pre");
  text.textContent = JSON.stringify({{ width: page.documentElement.scrollWidth, pictures }});
  document.body.replaceChildren(text);
}};
frame.src = "{page}";
</script>"""


def browse(page: Path, folder: Path) -> str:
    """The elements of a page after its scripts have run; ``folder`` is for the browser's own files."""
    return _run(folder, "--dump-dom", page.as_uri()).stdout


def layout(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """How a page lies in a window of ``width`` pixels.

    Returns its ``width``, and its ``pictures`` by name: how far they go to the ``right``, texts with
    ``overlaps``, and the class, length and colour of their ``bars``.
    """
    frame = page.with_name(f"frame-{page.name}")
    frame.write_text(_FRAME.format(width=width, page=page.name), "utf-8")
    dom = browse(frame, folder)
    found: dict[str, Any] = json.loads(unescape(dom.partition("<pre>")[2].partition("</pre>")[0]))
    return found


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("needs chromium")
    return subprocess.run(
        [browser, *_OPTIONS, f"--user-data-dir={folder / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
