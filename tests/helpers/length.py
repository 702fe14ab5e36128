"""The two lengths that some tests have.

In the short form, for which people wait, they try fewer inputs or run for a shorter time. The long form
tries all:

    FEAST_SKETCH_STORE_TESTS=long .venv/bin/pytest -n 3 -m has_long_form

`.ci/run` runs both. A test of two lengths has the mark ``has_long_form``.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

VARIABLE = "FEAST_SKETCH_STORE_TESTS"
_LENGTH = os.environ.get(VARIABLE, "short")
if _LENGTH not in ("short", "long"):
    raise ValueError(f"{VARIABLE} must be 'short' or 'long', not {_LENGTH!r}")
IS_LONG = _LENGTH == "long"


def by_length(short: T, long: T) -> T:
    """The value for this run: ``long`` in the long form, else ``short``."""
    return long if IS_LONG else short


def combined(*values: Sequence[Any]) -> list[Any]:
    """Cases of several parameters: all combinations of their values in the long form. The short form has each
    value once, with those of the other parameters in turn.
    """
    most = max(map(len, values))
    in_turn = [[one[number % len(one)] for one in values] for number in range(most)]
    cases = by_length(in_turn, [*itertools.product(*values)])
    return [pytest.param(*case, marks=pytest.mark.has_long_form) for case in cases]
