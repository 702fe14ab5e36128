"""Rows of a row log with a name each, and the names that are read back."""

from typing import Any

import pyarrow as pa

from feast_sketch_store.row_log import LogRead


def rows(*names: str, **more: Any) -> pa.Table:
    """Rows with these names, and other columns."""
    return pa.table({"name": pa.array(names, pa.string()), **more})


def names_of(read: LogRead) -> list[str]:
    """The names in the order of commits."""
    table = read.table()
    return [] if table is None else table["name"].to_pylist()
