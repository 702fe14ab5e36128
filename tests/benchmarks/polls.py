"""What a poll that finds nothing new takes, on a server of this host: one request, and a poll of a view.

A HEAD of the next commit and a LIST from an offset are the least that a poll could be. A view's poll is two
LIST and one GET: a snapshot, a pin, a commit, and another log in its place are all news. Bytes are those of
the answers, with their heads.
"""

import sys
from pathlib import Path

from measure import interleaved_samples, print_set_up, print_table, quantile

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests' servers

import pytest
from replicas import filled_view, replica_of

from feast_sketch_store.storage.buckets import open_bucket
from tests.helpers import object_servers
from tests.helpers.proxy import proxy

_SERVERS = ("weed", "moto", "azurite")
_USERS = 1_000


def run(*, quick: bool) -> None:
    rounds, calls = (2, 5) if quick else (20, 25)
    print_set_up(
        f"{_USERS:,} users, sealed, and one commit since; medians of {rounds * calls} calls", "obstore"
    )
    rows = []
    for server in _SERVERS:
        try:
            rows += _measured(server, rounds, calls)
        except pytest.skip.Exception as error:
            print(f"{server}: left out: {error}")
    print_table(("server", "poll", "bytes", "ms, fastest tenth", "ms, median", "ms, 9 of 10 below"), rows)


def _measured(name: str, rounds: int, calls: int) -> list[tuple[object, ...]]:
    with object_servers.start(name) as server, proxy(server.port) as link:
        url = server.bucket() + "/store"
        filled_view(url, server.options, _USERS)
        view = replica_of(url, server.options)
        view.refresh()
        log = open_bucket(url, server.options).within("view/").within("fresh/")
        last = [file for file in log.list() if file.endswith(".log")][-1]
        sides = {
            "HEAD of the next commit": lambda _: log.info(f"{last}-next"),
            "LIST from an offset": lambda _: log.list(after=last),
            "a view's poll": lambda _: view.poll(),
        }
        samples = interleaved_samples(sides, lambda number: number, rounds=rounds, calls=calls)
        view.close()
        counted = replica_of(url, link.options(server.options))
        counted.refresh()
        before = link.bytes_down
        counted.poll()
        size = {"a view's poll": f"{link.bytes_down - before:,}"}
        counted.close()
    return [
        (
            name,
            side,
            size.get(side, ""),
            *(f"{1e3 * quantile(times, share):.2f}" for share in (0.1, 0.5, 0.9)),
        )
        for side, times in samples.items()
    ]
