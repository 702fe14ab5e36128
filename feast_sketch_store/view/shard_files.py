"""Rows divided by shard, and the data files that tasks of a job write of them; see `row_log.staging`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import ShardError, StorageError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.row_log.staging import StagedFile
from feast_sketch_store.rows.encoding import ENTITY_KEY
from feast_sketch_store.rows.entity_keys import hash_serialized_keys
from feast_sketch_store.view.shard_map import Routed, ShardMap

# Rows gathered before they are divided, because each part becomes a file.
_ROWS = 1 << 20
_BYTES = 1 << 28


@dataclass(frozen=True)
class ShardFile:
    """A staged file of a shard, with the methods of `StagedFile`. Reports name the shard before the file."""

    shard_map: ShardMap
    shard: int
    staged: StagedFile

    @property
    def file(self) -> DataFile:
        """The file itself."""
        return self.staged.file

    def to_report(self) -> dict[str, Any]:
        """An entry of a report."""
        entry = self.staged.to_report()
        return {**entry, "name": f"{self.shard_map.num_shards}/{self.shard}/{entry['name']}"}

    def check(self) -> None:
        """Check that the file exists and is complete."""
        self.staged.check()


def shard_of_entry(entry: dict[str, Any], view: str, shard_map: ShardMap) -> tuple[int, dict[str, Any]]:
    """The shard of a report's entry, and the entry without it.

    Raises
    ------
    StorageError : it names none.
    ShardError : it names one of another division of the rows.
    """
    parts = str(entry["name"]).split("/", 2)
    if len(parts) != 3 or not all(part.isdecimal() for part in parts[:2]):
        raise StorageError(f"{entry['name']}: a task reported a file of no shard; nothing was committed")
    check_division(view, int(parts[0]), shard_map)
    shard = int(parts[1])
    return shard, {**entry, "name": parts[2]}


def check_division(view: str, num_shards: int, shard_map: ShardMap) -> None:
    """Check that files for a number of shards may be committed.

    Raises
    ------
    ShardError : the rows are divided into others by now.
    """
    if num_shards != shard_map.num_shards:
        raise ShardError(
            f"feature view {view!r}: its rows were divided into {shard_map.num_shards} shards while tasks "
            f"wrote files for {num_shards}; nothing was committed. Run the job again"
        )


def divided(table: pa.Table, num_shards: int) -> dict[int, pa.Table]:
    """The rows of each shard that has some, in their order."""
    if not len(table):
        return {}
    if num_shards == 1:
        return {0: table}
    routed = Routed.of(hash_serialized_keys(table[ENTITY_KEY].combine_chunks()), num_shards)
    if len(routed.shards) == 1:
        return {routed.shards[0]: table}
    return {
        number: table.take(pa.array(places))
        for number, places in zip(routed.shards, routed.places, strict=True)
    }


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
