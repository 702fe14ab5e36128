"""Lists: adds, reads of the newest items and removals, beside Redis sorted sets, in one run.

Both sides hold the same items of the same users and must give the same newest ones. Redis keeps a sorted set
for each user (ZADD, ZREVRANGEBYSCORE with LIMIT, ZREM) and is reached on the loopback device, with pipelines
where a call has several users. It runs twice: without a log, and with `appendfsync everysec`, which may lose
a second of adds. Adds of this store are durable when they return.
"""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from feast import FeatureStore, Field
from feast.types import Array, Int64
from measure import interleaved, number, print_set_up, print_table, seconds
from numpy.typing import NDArray
from redis import Redis
from stores import redis_server, temporary_folder

from feast_sketch_store import Lists, SketchReader, open_view
from feast_sketch_store.operations import maintenance

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what tests share
from tests.helpers.repository import make_repository, make_view

ITEMS, VALUES, NEWEST, DAYS = 200, 20_000, 50, 80
SKETCH, REDIS, REDIS_LOG = "lists", "redis", "redis, AOF everysec"
THREADS, SINGLE_ADDS = 64, 10_000
BATCH = 10_000
_SECONDS_PER_DAY = 86_400

Items = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # users, values, seconds since 1970


def run(quick: bool = False) -> None:
    """Print what adds, reads and removals take on each side, and bytes per item."""
    num_users = 200 if quick else 5_000
    with temporary_folder() as folder, ExitStack() as stack:
        print_set_up(f"{num_users:,} users of {ITEMS} items, ticks of an hour", "numpy", "feast", "redis")
        items = _drawn(num_users)
        store = _store(folder)
        lists = Lists(store, "history", "read")
        servers = {
            REDIS: Redis(port=stack.enter_context(redis_server())),
            REDIS_LOG: Redis(port=stack.enter_context(_with_log())),
        }
        _fill_and_compare(store, lists, servers, items, num_users)
        _reads(lists, servers, num_users, quick)
        maintenance.seal(store, "history")
        _as_of(SketchReader(str(store.repo_path), "history"), num_users, quick)
        _adds(lists, servers, num_users, 100 if quick else SINGLE_ADDS)


def _drawn(num_users: int) -> Items:
    """Items of all users in the order of their times, popular values more often."""
    rng, number_of = np.random.default_rng(7), num_users * ITEMS
    users, now = np.repeat(np.arange(num_users), ITEMS), int(time.time())
    values = (VALUES * rng.random(number_of) ** 3).astype(np.int64)
    times = now - rng.integers(0, DAYS * _SECONDS_PER_DAY, number_of)
    order = np.argsort(times)
    return users[order], values[order], times[order]


def _store(folder: Path) -> FeatureStore:
    row = pd.DataFrame({"user_id": [0], "read": [[0]], "event": [pd.Timestamp.now("UTC")]})
    tags = {"sketch.codec": "list", "sketch.list": f"{{resolution: 1h, limit: {ITEMS}}}"}
    view = make_view([Field(name="read", dtype=Array(Int64), tags=tags)], ttl=timedelta(days=365))
    return make_repository(folder, view, rows=row, compaction={"min_rows": 100_000_000})


@contextmanager
def _with_log() -> Iterator[int]:
    with redis_server() as port:
        client = Redis(port=port)
        client.config_set("appendfsync", "everysec")
        client.config_set("appendonly", "yes")
        yield port


def _add_to_redis(client: Redis, items: Items) -> None:
    pipeline = client.pipeline(transaction=False)
    for user, value, moment in zip(*(part.tolist() for part in items), strict=True):
        pipeline.zadd(f"u{user}", {value: moment})
    pipeline.execute()


def _newest_of_redis(client: Redis, users: NDArray[np.int64]) -> list[list[bytes]]:
    pipeline = client.pipeline(transaction=False)
    for user in users.tolist():
        pipeline.zrevrangebyscore(f"u{user}", "+inf", "-inf", start=0, num=NEWEST, withscores=True)
    return [[value for value, _ in found] for found in pipeline.execute()]


def _fill_and_compare(
    store: FeatureStore, lists: Lists, servers: dict[str, Redis], items: Items, num_users: int
) -> None:
    """Add all items in batches, and compare what each side has then."""
    before = {name: client.info("memory")["used_memory"] for name, client in servers.items()}
    spent = dict.fromkeys([SKETCH, *servers], 0.0)
    for first in range(0, len(items[0]), BATCH):
        batch = tuple(part[first : first + BATCH] for part in items)
        spent[SKETCH] += seconds(lists.add, *batch)[0]
        for name, client in servers.items():
            spent[name] += seconds(_add_to_redis, client, batch)[0]
    view = open_view(store, "history")
    sealing, _ = seconds(view.seal)
    sizes = {SKETCH: view.stats().snapshot_bytes}
    sizes |= {name: client.info("memory")["used_memory"] - before[name] for name, client in servers.items()}
    shared = next(iter(servers.values()))
    kept = {SKETCH: view.stats().sealed_facts}
    kept |= dict.fromkeys(servers, sum(shared.zcard(f"u{user}") for user in range(num_users)))
    print(f"The seal of {len(items[0]):,} items takes {sealing:.1f} s. A sorted set has a value once.\n")
    header = ["side", "items/s added in batches", "items kept", "bytes per item"]
    lines = []
    for name in spent:
        rate, size = number(len(items[0]) / spent[name]), number(sizes[name] / kept[name])
        lines.append([name, rate, f"{kept[name]:,}", size])
    print_table(header, lines)
    for user in range(0, num_users, 50):
        ours = set(lists.get(np.array([user]), limit=NEWEST).values.to_pylist())
        theirs = {int(value) for value in _newest_of_redis(shared, np.array([user]))[0]}
        if len(ours - theirs) > 3:  # of the last tick any items are cut
            raise AssertionError(f"user {user} has other items in Redis: {ours ^ theirs}")


def _reads(lists: Lists, servers: dict[str, Redis], num_users: int, quick: bool) -> None:
    """The newest 50 items of one and of 1,000 users, and the removal of a value."""
    lines = []
    for num_read, calls in ((1, 200), (1_000, 3)):
        sides: dict[str, Callable[[NDArray[np.int64]], object]] = {
            SKETCH: lambda users: lists.get(users, limit=NEWEST),
            **{name: _bound(_newest_of_redis, client) for name, client in servers.items()},
        }
        rng = np.random.default_rng(num_read)
        drawn = [rng.integers(0, num_users, num_read) for _ in range(calls * 9)]
        times = interleaved(sides, drawn.__getitem__, rounds=2 if quick else 9, calls=calls)
        lines.append(
            [f"newest {NEWEST} of {num_read:,}", *(number(times[n] / num_read * 1e6) for n in sides)]
        )
    removals: dict[str, Callable[[int], object]] = {
        SKETCH: lambda user: lists.remove([user], 1),
        **{name: _bound(_remove_of_redis, client) for name, client in servers.items()},
    }
    times = interleaved(removals, lambda call: call % num_users, rounds=2, calls=20)
    lines.append(["removal of a value", *(number(times[name] * 1e6) for name in removals)])
    print_table(["us per user", *removals], lines)


def _as_of(reader: SketchReader, num_users: int, quick: bool) -> None:
    """Whole lists of 1,000 users and their newest 50 items, as of now and as of a moment of each in the last
    days. Newer items than the moment are decoded and left out.
    """
    rng, lines = np.random.default_rng(5), []
    drawn = [rng.integers(0, num_users, 1_000) for _ in range(9 * 3)]
    for limit in (None, NEWEST):
        for days in (1, DAYS // 4, DAYS):
            ages = pd.to_timedelta(rng.integers(0, days * _SECONDS_PER_DAY, 1_000), unit="s")
            moments = pa.array(datetime.now(UTC) - ages, pa.timestamp("us", "UTC"))
            read = partial(reader.lists, "read", limit=limit)
            sides: dict[str, Callable[[NDArray[np.int64]], object]] = {
                "now": read,
                "then": partial(read, until=moments),
            }
            times = interleaved(sides, drawn.__getitem__, rounds=2 if quick else 9, calls=3)
            now, then = times["now"], times["then"]
            items = "all items" if limit is None else f"newest {limit}"
            what = f"{items}, moments in {days} days"
            lines.append([what, number(now * 1e3), number(then * 1e3), number(then / now)])
    print_table(["1,000 users", "as of now, ms", "as of moments, ms", "ratio"], lines)


def _remove_of_redis(client: Redis, user: int) -> object:
    return client.zrem(f"u{user}", 1)


def _bound(run: Callable[..., object], client: Redis) -> Callable[..., object]:
    return lambda argument: run(client, argument)


def _adds(lists: Lists, servers: dict[str, Redis], num_users: int, num_adds: int) -> None:
    """Adds of one item by one thread and by 64."""
    now = int(time.time())

    def ours(number: int) -> None:
        lists.add(np.array([number % num_users]), np.array([number % VALUES]), np.array([now]))

    def theirs(client: Redis) -> Callable[[int], None]:
        return lambda n: client.zadd(f"u{n % num_users}", {n % VALUES: now}) and None

    sides = {SKETCH: ours, **{name: theirs(client) for name, client in servers.items()}}
    lines = []
    for name, add in sides.items():
        alone, _ = seconds(lambda add=add: [add(number) for number in range(num_adds // 4)])
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(add, range(THREADS)))  # threads start here
            together, _ = seconds(lambda pool=pool, add=add: list(pool.map(add, range(num_adds))))
        lines.append([name, number(num_adds // 4 / alone), number(num_adds / together)])
    print_table(["side", "adds/s of one thread", f"adds/s of {THREADS} threads"], lines)
