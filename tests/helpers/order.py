"""The order in which tests begin, so that no process is left with a long file at the end.

`pytest -n` gives each process a share of consecutive tests, and one that has finished takes the last of
another. Here each share begins with some of the longest files; those that need the same server lie in one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

FIRST = (
    (  # an object store
        "feast/test_example.py",
        "storage/test_object_store.py",
        "storage/test_object_races.py",
        "storage/test_replicas.py",
        "feast/test_object_store.py",
        "feast/test_import.py",
        "feast/test_copy.py",
    ),
    (  # new interpreters
        "feast/test_store_type.py",
        "feast/test_cli.py",
        "feast/test_plan.py",
        "feast/test_plan_other_stores.py",
    ),
    (  # processes
        "faults/test_io_errors.py",
        "faults/test_bad_network.py",
        "faults/test_large_rows.py",
        "faults/test_concurrency.py",
        "faults/test_fuzz.py",
        "faults/test_kill.py",
        "feast/test_feature_server.py",
        "feast/test_quickstart.py",
        "feast/test_click_prediction.py",
        "feast/test_month.py",
        "unit/test_delta_readers.py",
    ),
)
_TESTS = Path(__file__).parents[1]


class Test(Protocol):
    """What is needed of an item of pytest."""

    path: Path


def in_shares(tests: Sequence[Test], num_shares: int) -> list[Test]:
    """The tests in an order of which ``num_shares`` equal parts begin with the longest files."""
    places = {_TESTS / name: group for group, names in enumerate(FIRST) for name in names}
    ranks = {_TESTS / name: rank for names in FIRST for rank, name in enumerate(names)}
    first: list[list[Test]] = [[] for _ in range(num_shares)]
    for test in sorted((t for t in tests if t.path in places), key=lambda t: ranks[t.path]):
        first[places[test.path] % num_shares].append(test)
    rest = [test for test in tests if test.path not in places]
    ordered: list[Test] = []
    for share, begin in enumerate(first):
        # As pytest-xdist divides what is left among the processes that have none yet.
        size = (len(tests) - len(ordered)) // (num_shares - share)
        more = max(0, size - len(begin))
        ordered += begin + rest[:more]
        del rest[:more]
    return ordered + rest
