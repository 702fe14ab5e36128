"""The order in which tests begin, so that no process has a long file left at the end.

`pytest -n` gives each process a share of consecutive tests; a process that is done takes the last tests of
another. Here each share begins with some of the longest files. Files that need the same server are in one
share: an object store, or the process that has imported Feast for forks.
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
        "storage/test_sharded_buckets.py",
        "storage/test_lost_answers.py",
        "storage/test_bad_places.py",
        "feast/test_object_store.py",
        "feast/test_import.py",
        "faults/test_bad_network.py",
        "faults/test_kill_bucket.py",
    ),
    (  # new interpreters
        "feast/test_store_type.py",
        "feast/test_plan.py",
        "feast/test_plan_other_stores.py",
        "feast/test_month.py",
    ),
    (  # processes
        "faults/test_io_errors.py",
        "faults/test_large_rows.py",
        "faults/test_concurrency.py",
        "faults/test_concurrent_lists.py",
        "faults/test_fuzz.py",
        "faults/test_kill.py",
        "feast/test_cli.py",
        "feast/test_feature_server.py",
        "feast/test_quickstart.py",
        "feast/test_click_prediction.py",
        "feast/test_maintenance.py",
        "feast/test_serve.py",
        "feast/test_visibility.py",
        "feast/test_watch.py",
        "feast/test_lists.py",
        "unit/test_benchmarks.py",
        "unit/test_delta_readers.py",
        "properties/test_list_machine.py",
    ),
)
_TESTS = Path(__file__).parents[1]


class Test(Protocol):
    """The part of a pytest item that is used here."""

    path: Path


def in_shares(tests: Sequence[Test], num_shares: int) -> list[Test]:
    """The tests in an order whose ``num_shares`` equal parts each begin with long files."""
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
