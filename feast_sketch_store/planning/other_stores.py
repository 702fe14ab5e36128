"""The size of the sampled rows in Feast's SQLite and Redis stores, computed from the formats of these stores.

Feast keeps a row as the serialized entity key and, for each feature, a serialized ``Value``. Its size follows
from the wire format of protocol buffers: a field with the length of an inner message. In it numbers are
packed, and strings have a tag and a length each.

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
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary

REDIS = "Redis"
SQLITE = "SQLite"

_FIXED_BYTES = {"bool": 1, "float": 4, "double": 8}

_MAX_SQLITE_ROWS, _MAX_SQLITE_BYTES = 20_000, 64_000_000  # of the database in memory

LISTPACK_VALUE, _LISTPACK_ENTRIES = 64, 512  # hash-max-listpack-value and -entries
_DICT_BYTES, _ENTRY_BYTES, _OBJECT_BYTES, _POINTER_BYTES = 56, 24, 16, 8
_FIELD_BYTES, _TIMESTAMP_BYTES = 4, 6  # a hash of the feature's name; a Timestamp in whole seconds


@dataclass(frozen=True, eq=False)
class StoredRows:
    """n sampled rows as another store would keep them."""

    # project, view: their names
    project: str
    view: str
    key_bytes: NDArray[np.int64]  # int64[n], of the serialized entity keys
    value_bytes: Mapping[str, NDArray[np.int64]]  # per feature int64[n], of the serialized values
    has_created: bool  # whether rows have created timestamps

    def __len__(self) -> int:
        return len(self.key_bytes)


def value_sizes(
    element_kind: str, field_number: int, vocabulary: Vocabulary, rows: Csr, num_elements: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Bytes of the ``Value`` of each row: int64[n].

    Parameters
    ----------
    element_kind : see `FeatureCodec`.
    field_number : of the feature's field in the ``Value`` message.
    vocabulary, rows : the values, and the distinct values of each row.
    num_elements : int64[n], the number of values with which each row was written. Repeated values are assumed
        to have the mean length of the row's distinct ones.

    Source: protobuf.dev/programming-guides/encoding.
    """
    distinct = np.bincount(rows.rows, _element_sizes(element_kind, vocabulary)[rows.ids], len(rows))
    content = np.rint(distinct * (num_elements / np.maximum(1, rows.lengths))).astype(np.int64)
    if not _is_delimited(vocabulary):  # numbers are packed into one field of the inner message
        content = np.where(content > 0, 1 + varint_sizes(content) + content, 0)
    tag = int(varint_sizes(np.array([field_number << 3]))[0])
    return np.asarray(tag + varint_sizes(content) + content, np.int64)


def varint_sizes(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Bytes of integers as varints, ten for a negative one: int64[n]."""
    sizes = np.ones(len(numbers), np.int64)
    for bits in range(7, 63, 7):
        sizes += numbers >= 1 << bits
    return np.where(numbers < 0, 10, sizes)


def _element_sizes(kind: str, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Bytes of each value of a vocabulary as an element of a list: int64[V]."""
    if kind in _FIXED_BYTES:
        return np.full(len(vocabulary), _FIXED_BYTES[kind], np.int64)
    if _is_delimited(vocabulary):
        lengths = pc.binary_length(vocabulary.values).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.asarray(1 + varint_sizes(lengths) + lengths, np.int64)
    return varint_sizes(vocabulary.values.to_numpy(zero_copy_only=False))


def _is_delimited(vocabulary: Vocabulary) -> bool:
    """Whether elements are strings, bytes or messages, each with a tag and a length of its own."""
    return bool(vocabulary.values.type == pa.large_binary())


def redis_bytes(
    rows: StoredRows, num_entities: int, listpack_value: int = LISTPACK_VALUE
) -> NDArray[np.float64]:
    """Bytes of each sampled row in Redis, with this ``hash-max-listpack-value``: float64[n]."""
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
    beside = size_class(_ENTRY_BYTES) + size_class(_OBJECT_BYTES) + bucket_bytes(num_entities)
    return np.asarray(keys + beside + np.where(is_listpack, as_listpack, as_table), np.float64)


def bucket_bytes(num_keys: float) -> float:
    """Bytes for each key in a table of pointers of Redis, whose length is the next power of two."""
    return float(_POINTER_BYTES * 2 ** math.ceil(math.log2(max(4.0, num_keys))) / max(1.0, num_keys))


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
