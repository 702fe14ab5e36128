"""Rows that tasks of a job write into data files, for the job to commit together when all are there.

    task      rows -> data files that no commit names; it reports each of them, see `StagedFile`
    job       checks that what was reported is there, and commits it

A task that is run again, or twice at once, writes files of its own. The job commits those of the run that
counts, so nothing is there twice. What a killed job leaves is removed by a vacuum.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import StorageError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.row_log.log import RowLog

# Of one file. A bucket takes 5,000 MiB in one put, which is made of memory.
_FILE_ROWS = 1 << 22
_FILE_BYTES = 1 << 28  # before compression

REPORT = pa.schema(
    [
        ("name", pa.string()),
        ("num_rows", pa.int64()),
        ("checksum", pa.string()),
        ("size_bytes", pa.int64()),
        ("columns", pa.binary()),
    ]
)
"""The columns of a report: an entry per file."""


@dataclass(frozen=True)
class StagedFile:
    """A data file, how large it is, and its columns."""

    file: DataFile
    size_bytes: int
    schema: pa.Schema

    @classmethod
    def from_report(cls, log: RowLog, entry: dict[str, Any]) -> "StagedFile":
        """The file of a report's entry; the reverse of `to_report`."""
        schema = pa.ipc.read_schema(pa.py_buffer(entry["columns"]))
        return cls(log.staged(entry), entry["size_bytes"], schema)

    def to_report(self) -> dict[str, Any]:
        """An entry of a report."""
        columns = self.schema.serialize().to_pybytes()
        return {**self.file.to_entry(), "size_bytes": self.size_bytes, "columns": columns}

    def check(self) -> None:
        """Check that the file is there, and whole.

        Raises
        ------
        StorageError : it is gone, or of another size.
        """
        if (size := self.file.size_bytes) != self.size_bytes:
            raise StorageError(
                f"{self.file.where}: a task wrote {self.size_bytes} bytes, and {size} are there; nothing was "
                "committed. Run the job again"
            )


def stage(log: RowLog, tables: Iterable[pa.Table], label: str) -> Iterator[StagedFile]:
    """Write tables of the row log into files.

    Parameters
    ----------
    label : what the files' names begin with.

    Raises
    ------
    StorageError : a file cannot be written; those before it are there.
    """
    for schema, run in _runs(tables):
        file = log.stage(schema, run, label)
        yield StagedFile(file, file.size_bytes, schema)


def _runs(tables: Iterable[pa.Table]) -> Iterator[tuple[pa.Schema, Iterator[pa.Table]]]:
    """Tables of one schema that make a file, without reading ahead by more than one."""
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
