"""Data files that tasks of a job write for the shards of a view; see `row_log.staging`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import StorageError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.row_log.staging import StagedFile

# Rows gathered before they are divided, because each part becomes a file.
_ROWS = 1 << 20
_BYTES = 1 << 28


@dataclass(frozen=True)
class ShardFile:
    """A staged file of a shard, with the methods of `StagedFile`. Reports name the shard before the file."""

    shard: int
    staged: StagedFile

    @property
    def file(self) -> DataFile:
        """The file itself."""
        return self.staged.file

    def to_report(self) -> dict[str, Any]:
        """An entry of a report."""
        entry = self.staged.to_report()
        return {**entry, "name": f"{self.shard}/{entry['name']}"}

    def check(self) -> None:
        """Check that the file exists and is complete."""
        self.staged.check()


def shard_of_entry(entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The shard of a report's entry, and the entry without it.

    Raises
    ------
    StorageError : it names none.
    """
    shard, separator, name = str(entry["name"]).partition("/")
    if not separator or not shard.isdecimal():
        raise StorageError(f"{entry['name']}: a task reported a file of no shard; nothing was committed")
    return int(shard), {**entry, "name": name}


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small consecutive tables with the same columns."""
    waiting: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        is_other = waiting and not table.schema.equals(waiting[0].schema)
        if waiting and (is_other or num_rows >= _ROWS or num_bytes >= _BYTES):
            yield pa.concat_tables(waiting)
            waiting, num_rows, num_bytes = [], 0, 0
        waiting.append(table)
        num_rows, num_bytes = num_rows + len(table), num_bytes + table.nbytes
    if waiting:
        yield pa.concat_tables(waiting)
