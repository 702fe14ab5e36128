"""The two lengths that some tests have.

In the short form, for which people wait, they try fewer inputs or run for a shorter time. The long form
tries all:

    FEAST_SKETCH_STORE_TESTS=long .venv/bin/pytest -n 3 -m has_long_form

`.ci/run` runs both. A test of two lengths has the mark ``has_long_form``.
"""

import os
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "FEAST_SKETCH_STORE_TESTS"
_LENGTH = os.environ.get(VARIABLE, "short")
if _LENGTH not in ("short", "long"):
    raise ValueError(f"{VARIABLE} must be 'short' or 'long', not {_LENGTH!r}")
IS_LONG = _LENGTH == "long"


def by_length(short: T, long: T) -> T:
    """The value for this run: ``long`` in the long form, else ``short``."""
    return long if IS_LONG else short
