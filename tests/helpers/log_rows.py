"""Rows of a row log with a name each, the names that are read back, and the files that hold them."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from feast_sketch_store.row_log import LogRead, RowLog
from feast_sketch_store.row_log.records import decode_mark
from feast_sketch_store.storage.local import LocalStorage


def rows(*names: str, **more: Any) -> pa.Table:
    """Rows with these names, and other columns."""
    return pa.table({"name": pa.array(names, pa.string()), **more})


def append_and_absorb(log: RowLog, *names: str) -> LogRead:
    """Write a row of each name, and absorb the log."""
    log.append(rows(*names))
    return log.absorb()


def names_of(read: LogRead) -> list[str]:
    """The names in the order of commits."""
    table = read.table()
    return [] if table is None else table["name"].to_pylist()


def segment(storage: LocalStorage) -> Path:
    """The path of the only segment."""
    (name,) = [name for name in storage.list("fresh/") if name.endswith(".log")]
    return storage.path / "fresh" / name


def num_acknowledged(storage: LocalStorage) -> int:
    """How many bytes of the last segment are records; zeros follow."""
    return decode_mark(storage.read("fresh/end"))[1]
