"""Replicas of a view in a bucket: what a refresh fetches, and what 1, 4 and 16 processes of a host take.

The bucket is moto's, in a process of this host, behind a proxy that counts bytes: times are those of that
server and of two busy cores, bytes are those of any.
"""

import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from facts import draw_facts
from measure import number, print_set_up, print_table
from stores import temporary_folder

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests' servers

from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.buckets import open_bucket
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers import object_servers
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.processes import warm_context
from tests.helpers.proxy import Proxy, proxy
from tests.oracle.messages import feast_values

VALUES = 20  # of a user ...
VOCABULARY = 10_000  # ... of so many
INTERVAL_SECONDS = 1.0
BATCH = 100
_CODEC = FeatureCodec("viewed", "int64_set_val")
_SETTINGS = ViewSettings("history", 1e-5, {"viewed": FeatureSettings(_CODEC, 0.01, 10**6)})
_NEVER = SealPolicy(1.0, 10**12)
_NEW = 10**6  # a value that nobody has
_seconds = count(1_000)  # of events: each is newer than all before


def run(*, quick: bool) -> None:
    num_users = 2_000 if quick else 100_000
    with object_servers.start("moto") as server, proxy(server.port) as link, temporary_folder() as folder:
        url = server.bucket() + "/store"
        writer = filled_view(url, server.options, num_users)
        print_set_up(f"{num_users:,} users with {VALUES} of {VOCABULARY:,} values", "obstore", "moto")
        replica_options = link.options(server.options)
        _refreshes(writer, url, replica_options, link, folder, num_users)
        writer.seal()
        rows = []
        for num_replicas in (1, 2) if quick else (1, 4, 16):
            cache = folder / f"cache of {num_replicas}"
            rows.append(_fleet(writer, url, replica_options, link, cache, num_replicas))
        header = (
            "replicas",
            "fetched, MB",
            "s to SERVING, last",
            "MB in all",
            "s until the last sees a write",
        )
        print_table(header, rows)


def filled_view(url: str, options: dict[str, str], num_users: int) -> View:
    """A view of a bucket with rows that are sealed."""
    view = View(open_bucket(url, options).within("view/"), _SETTINGS, _NEVER, 0.0)
    _write(view, range(num_users), seconds=0)
    view.seal()
    return view


def _write(view: View, users: Any, seconds: int, extra: int | None = None) -> None:
    facts = draw_facts(len(users), VOCABULARY, seed=seconds + 1)
    event = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    values = facts.reshape(len(users), -1)[:, :VALUES].tolist()
    more = [] if extra is None else [extra]
    view.write(
        [
            (user_key(int(user)), {"viewed": Value(int64_set_val=Int64Set(val=[*some, *more]))}, event, None)
            for user, some in zip(users, values, strict=True)
        ]
    )


def replica_of(
    url: str, options: dict[str, str], cache: Path | None = None, interval_seconds: float = 1000.0
) -> View:
    """A replica of it; the cache is the host's."""
    storage = open_bucket(url, options, True, cache).within("view/")
    return View(storage, _SETTINGS, _NEVER, interval_seconds, is_replica=True)


# -- what a refresh fetches ----------------------------------------------------------------------


def _refreshes(
    writer: View, url: str, options: dict[str, str], link: Proxy, folder: Path, num_users: int
) -> None:
    """Bytes that one host fetches after a commit, after a delta over it, and after a new base."""
    replica = replica_of(url, options, folder / "cache")
    start = link.bytes_down
    replica.refresh()
    base = link.bytes_down - start
    rng, rows = np.random.default_rng(1), []

    def fetched() -> int:
        before = link.bytes_down
        replica.poll()
        replica.read(user_hashes(range(BATCH)), ["viewed"])
        return link.bytes_down - before

    nothing = fetched()
    for second, share in enumerate((0.001, 0.01, 0.05), start=1):
        users = rng.choice(num_users, max(1, int(share * num_users)), replace=False)
        _write(writer, users, second)
        commit = fetched()
        writer.seal(as_delta=True)
        delta = fetched()
        writer.seal()
        new_base = fetched()
        per_row = (commit + delta) / len(users)
        rows.append((f"{share:.1%}", len(users), commit, delta, new_base, number(per_row)))
    _write(writer, range(1), 0)
    late = fetched()
    _write(writer, range(1), 0)
    another = fetched()
    replica.close()
    print(f"\nfirst fetch {base:,} bytes, a poll that finds nothing {nothing:,}")
    print(f"a late row {late:,} bytes, with the order index; the next one {another:,}")
    header = (
        "changed",
        "rows",
        "commit, bytes",
        "delta, bytes",
        "new base, bytes",
        "bytes a row, commit + delta",
    )
    print_table(header, rows)


# -- a host with several processes ---------------------------------------------------------------


def _fleet(
    writer: View, url: str, options: dict[str, str], link: Proxy, cache: Path, num_replicas: int
) -> tuple[object, ...]:
    """One row of the table: so many processes that start at once with an empty cache."""
    context = warm_context()
    pipes, processes = [], []
    for _ in range(num_replicas):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, url, options, cache), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    before = sum(pipe.recv() for pipe in pipes)  # imports are done
    start = link.bytes_down
    for pipe in pipes:
        pipe.send("open")
    serving = max(pipe.recv() for pipe in pipes)
    fetched = link.bytes_down - start
    memory = sum(_ask(pipe, "memory") for pipe in pipes) - before
    seen = []
    for _ in range(5):
        second = next(_seconds)
        for pipe in pipes:
            pipe.send(("see", _NEW + second))
        for pipe in pipes:
            pipe.recv()  # it waits for the value
        _write(writer, [0], second, _NEW + second)
        written = time.time()
        seen.append(max(pipe.recv() for pipe in pipes) - written)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.close()
        process.join()
    return (
        num_replicas,
        number(fetched / 1e6),
        number(serving),
        number(memory / 1e6),
        f"{number(float(np.median(seen)))} ({number(min(seen))} to {number(max(seen))})",
    )


def _ask(pipe: Any, question: object) -> Any:
    pipe.send(question)
    return pipe.recv()


def _serve(pipe: Connection, url: str, options: dict[str, str], cache: Path) -> None:
    """A replica: answers to ``open``, ``memory`` and ``("see", value)`` until the pipe ends."""
    pipe.send(_memory_bytes())
    view: View | None = None
    hashes = user_hashes(range(BATCH))
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        if question == "open":
            began = time.monotonic()
            view = replica_of(url, options, cache, INTERVAL_SECONDS)
            view.read(hashes, ["viewed"])
            assert view.freshness().state in ("SERVING", "REFRESHING")
            pipe.send(time.monotonic() - began)
        elif question == "memory":
            pipe.send(_memory_bytes())
        else:
            assert view is not None
            pipe.send("looking")
            while question[1] not in _values_of_first(view, hashes):
                time.sleep(0.005)
            pipe.send(time.time())


def _values_of_first(view: View, hashes: Any) -> list[int]:
    answer = view.read(hashes[:1], ["viewed"])
    feature = answer.features["viewed"]
    for value in feast_values(feature):
        return list(value.int64_set_val.val)
    return []


def _memory_bytes() -> int:
    """What the process takes, of pages that it shares with others its part of them."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
