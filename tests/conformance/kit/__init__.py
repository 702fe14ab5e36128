"""Test vectors for readers of the online store's files; see ``docs/reference/online_store_format.md``.

    python -m tests.conformance.kit DIR

It writes folders of views, and JSON files that say how to read them or why to refuse them. A release writes
the same bytes in every run.
"""

from tests.conformance.kit.write import write_kit

__all__ = ["write_kit"]
