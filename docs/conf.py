"""The site of the pages, made by `.ci/site`.

Sphinx with MyST, because it resolves links between Markdown files and to headings as a repository's host
does, fails on a broken one, and its search needs no server.

The source is the whole repository, so links to README.md, tests and examples hold, too.
"""

from typing import Any

from sphinx.application import Sphinx

project = "feast_sketch_store"
copyright = "the authors of feast_sketch_store"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "tests/**.md", "feature_repo_example/**.md"]
exclude_patterns = [".*", "docs/news", "**/node_modules", "build", "dist", "LICENSE.md"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "feast_sketch_store"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
html_last_updated_fmt = None

_CHAPTERS = {
    "Tutorials": ["tutorials/first_store", "tutorials/first_bucket", "tutorials/model"],
    "How to": ["how_to/*"],
    "Reference": ["reference/*", "readers/node/README"],
    "Explanation": ["explanation/*", "decisions/README"],
    "Results": ["results/*"],
    "Project": ["/README", "/CONTRIBUTING", "/SECURITY", "/CHANGELOG"],
}
_HIDDEN = {
    "docs/decisions/README": ["0*"],
    "CONTRIBUTING": [
        *("/tests/*", "/tests/*/*", "/tests/*/*/*"),
        *("/feature_repo_example/*", "/feature_repo_example/*/*"),
    ],
}


def _toctree(caption: str, pages: list[str]) -> str:
    title = f":caption: {caption}\n" if caption else ""
    return "\n".join(("", "```{toctree}", f":hidden:\n:glob:\n{title}", *pages, "```", ""))


def _add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation, which the pages of the repository do without."""
    if page == root_doc:
        source[0] += "".join(_toctree(caption, pages) for caption, pages in _CHAPTERS.items())
    elif page in _HIDDEN:
        source[0] += _toctree("", _HIDDEN[page])


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the navigation."""
    app.connect("source-read", _add_navigation)
    return {"parallel_read_safe": True}
