"""The size of the sampled rows in Feast's SQLite and Redis stores, computed from the formats of these stores.

SQLite: rows of the sampled sizes are inserted into a database in memory, with the schema of Feast's store, in
the order of their hashes. Its pages are counted, so the fill of its indices and its overflow pages are real.

Redis: a hash per entity, with a field for the timestamp and one for each feature. A hash is a listpack while
no value is longer than 64 bytes, and a table of strings otherwise. Each allocation takes a size class of
jemalloc.

Keys, timestamps and the planned features count; other features of the view do not.

Source: Redis 7.0 (dict.c, sds.h, listpack.c, t_hash.c), jemalloc's size classes, Feast 0.67 (redis.py and
sqlite.py).
"""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.planning.plan import Point
from feast_sketch_store.planning.sample import Sample, total_by_mean
from feast_sketch_store.planning.stored_rows import StoredRows

REDIS = "Redis"
SQLITE = "SQLite"

_MAX_SQLITE_ROWS, _MAX_SQLITE_BYTES = 20_000, 64_000_000  # of the database in memory

LISTPACK_VALUE, _LISTPACK_ENTRIES = 64, 512  # hash-max-listpack-value and -entries
_DICT_BYTES, _ENTRY_BYTES, _OBJECT_BYTES, _POINTER_BYTES = 56, 24, 16, 8
_FIELD_BYTES, _TIMESTAMP_BYTES = 4, 6  # a hash of the feature's name; a Timestamp in whole seconds


def points_of_other_stores(sample: Sample) -> list[Point]:
    """Points for the sampled rows in other stores; none if the rows are not known."""
    if sample.stored is None:
        return []
    sizes = {REDIS: redis_bytes(sample.stored, sample.num_entities), SQLITE: sqlite_bytes(sample.stored)}
    points = []
    for store, of_rows in sizes.items():
        size = total_by_mean(of_rows, sample.num_entities)
        per_fact = size.value / max(1.0, sample.facts.value)
        label, bounds = f"{per_fact:.3g} bytes per fact", (size.value, size.low, size.high)
        points.append(Point(store, label, *bounds, None, 8 * per_fact, 0.0, 0.0, 1.0))
    return points


def redis_bytes(
    rows: StoredRows, num_entities: int, listpack_value: int = LISTPACK_VALUE
) -> NDArray[np.float64]:
    """Bytes of each sampled row in Redis: float64[n].

    Parameters
    ----------
    rows : sampled.
    listpack_value : the server's ``hash-max-listpack-value``.
    """
    timestamp_field = len(f"_ts:{rows.view}".encode())
    fields = [
        np.full(len(rows), timestamp_field),
        *(np.full(len(rows), _FIELD_BYTES) for _ in rows.value_bytes),
    ]
    values = [np.full(len(rows), _TIMESTAMP_BYTES), *rows.value_bytes.values()]
    is_listpack = np.max([*fields, *values], axis=0) <= listpack_value
    is_listpack &= len(fields) <= _LISTPACK_ENTRIES
    as_listpack = size_class(7 + sum(_listpack_entry(size) for size in (*fields, *values)))
    num_buckets = 1 << max(2, math.ceil(math.log2(len(fields))))
    as_table = size_class(_DICT_BYTES) + size_class(_POINTER_BYTES * num_buckets)
    as_table = as_table + len(fields) * size_class(_ENTRY_BYTES)
    as_table = as_table + sum(size_class(_string_bytes(size)) for size in (*fields, *values))
    keys = size_class(_string_bytes(rows.key_bytes + len(rows.project.encode())))
    buckets = _POINTER_BYTES * 2 ** math.ceil(math.log2(max(4, num_entities))) / num_entities
    beside = size_class(_ENTRY_BYTES) + size_class(_OBJECT_BYTES) + buckets
    return np.asarray(keys + beside + np.where(is_listpack, as_listpack, as_table), np.float64)


def sqlite_bytes(rows: StoredRows) -> NDArray[np.float64]:
    """Bytes of each of the first sampled rows in SQLite: float64[<= n].

    Rows share pages, so each row counts with its share of all bytes.
    """
    own = rows.key_bytes * 3 * len(rows.value_bytes) + sum(rows.value_bytes.values())
    num_rows = min(
        int(np.searchsorted(np.cumsum(own), _MAX_SQLITE_BYTES)) + 1,
        _MAX_SQLITE_ROWS // max(1, len(rows.value_bytes)) + 1,
        len(rows),
    )
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            "CREATE TABLE rows (entity_key BLOB, feature_name TEXT, value BLOB, value_text TEXT, "
            "vector_value BLOB, event_ts timestamp, created_ts timestamp, "
            "PRIMARY KEY(entity_key, feature_name))"
        )
        database.execute("CREATE INDEX rows_ek ON rows (entity_key)")
        inserted = "INSERT INTO rows VALUES (?, ?, zeroblob(?), NULL, NULL, ?, ?)"
        database.executemany(inserted, _sqlite_rows(rows, num_rows))
        (num_pages,) = database.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
    shares = own[:num_rows] / max(1, own[:num_rows].sum())
    return np.asarray(num_pages * page_bytes * shares, np.float64)


def size_class(sizes: Any) -> Any:
    """Bytes that jemalloc takes for allocations: multiples of 16 up to 128, then four classes per doubling.

    These are the classes of jemalloc in Debian and other distributions. The copy in Redis's sources has
    multiples of 8 below 64, with which the shortest rows take up to a tenth less.
    """
    sizes = np.asarray(sizes, np.int64)
    steps = np.exp2(np.maximum(4, np.ceil(np.log2(np.maximum(sizes, 1))) - 3)).astype(np.int64)
    return -(-sizes // steps) * steps


def _sqlite_rows(rows: StoredRows, num_rows: int) -> Iterator[tuple[bytes, str, int, int, int | None]]:
    rng, now = np.random.default_rng(0), 1_780_000_000
    for place in range(num_rows):
        key = rng.bytes(int(rows.key_bytes[place]))  # random, because rows are in the order of hashes
        for name, sizes in rows.value_bytes.items():
            yield key, name, int(sizes[place]), now, now if rows.has_created else None


def _listpack_entry(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of a string of at most 4,095 bytes in a listpack: a header, the string, the length of both."""
    own = np.where(sizes < 64, 1, 2) + sizes
    return np.asarray(own + np.where(own < 128, 1, 2))


def _string_bytes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of Redis strings: a header that depends on the length, the text, and a terminating 0."""
    header = np.select([lengths < 32, lengths < 1 << 8, lengths < 1 << 16], [1, 3, 5], 9)
    return np.asarray(header + lengths + 1)
