"""Staged rows: tasks write them into data files, and the job commits all files together.

    task      rows -> data files that no commit names; it reports each of them, see `StagedFile`
    job       checks that what was reported is there, and commits it

A task that runs again, or twice at once, writes separate files. The job commits those of the run that counts,
so no row is written twice. A vacuum removes what a killed job leaves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import StorageError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.row_log.log import RowLog

# Largest file. A bucket takes 5,000 MiB in one put, which is built in memory.
_FILE_ROWS = 1 << 22
_FILE_BYTES = 1 << 28  # before compression

REPORT = pa.schema(
    [
        ("name", pa.string()),
        ("num_rows", pa.int64()),
        ("checksum", pa.string()),
        ("size_bytes", pa.int64()),
        ("columns", pa.binary()),
        ("shard", pa.int64()),
        ("num_shards", pa.int64()),
    ]
)
"""The columns of a report: an entry per file."""


@dataclass(frozen=True)
class StagedFile:
    """A data file with its size and its columns, and the shard that its rows are of."""

    file: DataFile
    size_bytes: int
    schema: pa.Schema
    shard: int
    num_shards: int

    @classmethod
    def from_report(cls, log: RowLog, entry: dict[str, Any]) -> "StagedFile":
        """The file of a report's entry; the reverse of `to_report`."""
        schema = pa.ipc.read_schema(pa.py_buffer(entry["columns"]))
        return cls(log.staged(entry), entry["size_bytes"], schema, entry["shard"], entry["num_shards"])

    def to_report(self) -> dict[str, Any]:
        """An entry of a report."""
        more = {
            "size_bytes": self.size_bytes,
            "columns": self.schema.serialize().to_pybytes(),
            "shard": self.shard,
            "num_shards": self.num_shards,
        }
        return self.file.to_entry() | more

    def check(self) -> None:
        """Check that the file exists and is complete.

        Raises
        ------
        StorageError : it is missing, or its size is wrong.
        """
        if (size := self.file.size_bytes) != self.size_bytes:
            raise StorageError(
                f"{self.file.where}: a task wrote {self.size_bytes} bytes, and {size} are there; nothing was "
                "committed. Run the job again"
            )


def stage(
    log: RowLog, tables: Iterable[pa.Table], label: str, shard: int = 0, num_shards: int = 1
) -> Iterator[StagedFile]:
    """Write tables of the row log into files.

    Parameters
    ----------
    label : the beginning of the files' names.
    shard, num_shards : that all rows are of.

    Raises
    ------
    StorageError : a file cannot be written; earlier files remain.
    """
    for schema, run in _runs(tables):
        file = log.stage(schema, run, label)
        yield StagedFile(file, file.size_bytes, schema, shard, num_shards)


def _runs(tables: Iterable[pa.Table]) -> Iterator[tuple[pa.Schema, Iterator[pa.Table]]]:
    """Group tables of one schema into files, reading at most one table ahead."""
    rest = iter(tables)
    following = next(rest, None)

    def run(schema: pa.Schema) -> Iterator[pa.Table]:
        nonlocal following
        num_rows = num_bytes = 0
        while following is not None and num_rows < _FILE_ROWS and num_bytes < _FILE_BYTES:
            if not following.schema.equals(schema):
                return
            num_rows, num_bytes = num_rows + len(following), num_bytes + following.nbytes
            yield following
            following = next(rest, None)

    while following is not None:
        yield following.schema, run(following.schema)
