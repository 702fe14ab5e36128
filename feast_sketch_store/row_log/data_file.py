"""The Parquet files of a row log: written and durable before a commit names them, checked when read.

Tasks of a job stage rows, and the job commits all files together:

    task      rows -> data files that no commit names; it reports each of them, see `StagedFile`
    job       checks that what was reported is there, and commits it

A task that runs again, or twice at once, writes separate files. The job commits those of the run that counts,
so no row is written twice. A vacuum removes what a killed job leaves.
"""

import io
import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import mmh3
import pyarrow as pa
import pyarrow.parquet as pq

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.rows.columns import large_schema, memory_errors_apart, with_large_types
from feast_sketch_store.rows.encoding import CREATED_TIMESTAMP, ENTITY_KEY, EVENT_TIMESTAMP
from feast_sketch_store.rows.limits import GROUP_ELEMENTS, GROUP_ROWS, MAX_ELEMENTS, gathered, groups
from feast_sketch_store.storage.base import MissingFileError, Storage

RESTORE = "Restore it from a copy, or remove the view with `feast apply`, add it again and materialize"
SUFFIX = ".zstd.parquet"

_FILE_ROWS = 1 << 22  # of the largest file

REPORT = pa.schema(
    [
        ("name", pa.string()),
        ("num_rows", pa.int64()),
        ("checksum", pa.string()),
        ("size_bytes", pa.int64()),
        ("columns", pa.binary()),
        ("shard", pa.int64()),
        ("shards_folder", pa.string()),
    ]
)
"""The columns of a task's report: an entry per file."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file in the storage of the table's folder, with the rows and the checksum (MurmurHash3 x64
    128 in hexadecimal) that its commit has.
    """

    storage: Storage
    name: str
    num_rows: int
    checksum: str

    @classmethod
    def write(
        cls, storage: Storage, schema: pa.Schema, batches: Iterable[pa.Table], label: str = ""
    ) -> "DataFile":
        """Write a new file durably, whose name begins with the label.

        Parameters
        ----------
        schema : of the file. Columns that a batch lacks are null.
        batches : the rows; small ones are put together in row groups.

        Raises StorageError: it cannot be written; no file remains.
        """
        schema, name, num_rows = large_schema(schema), f"{label}{uuid.uuid4()}{SUFFIX}", 0
        with (
            storage.create(name) as file,
            pq.ParquetWriter(
                hashed := _Hashed(file),
                schema,
                compression="zstd",
                use_dictionary=_with_dictionaries(schema),
                # Statistics would repeat values of rows that may have to be deleted.
                write_statistics=False,
            ) as writer,
        ):
            # The rows of many small commits become large row groups, as reading a small one takes as long as
            # a large one.
            for part in gathered(_with_all_columns(part, schema) for part in gathered(batches)):
                for group in groups(part.combine_chunks()):
                    writer.write_table(group)
                num_rows += len(part)
        return cls(storage, name, num_rows, hashed.hexdigest())

    @classmethod
    def from_entry(cls, storage: Storage, entry: dict[str, object]) -> "DataFile":
        """The file of an entry of `to_entry`.

        Raises ValueError, KeyError, TypeError: the entry does not describe a data file.
        """
        name, num_rows, checksum = entry["name"], entry["num_rows"], entry["checksum"]
        if type(name) is not str or type(num_rows) is not int or type(checksum) is not str:
            raise TypeError("the entry of a data file has values of other types")
        if "/" in name or not name.endswith(SUFFIX):
            raise ValueError(f"{name!r} is not the name of a data file")
        return cls(storage, name, num_rows, checksum)

    def to_entry(self) -> dict[str, object]:
        """The file's entry in a commit."""
        return {"name": self.name, "num_rows": self.num_rows, "checksum": self.checksum}

    @property
    def where(self) -> str:
        """The file's location, for messages."""
        return self.storage.where(self.name)

    @property
    def size_bytes(self) -> int:
        """The file's size; 0 if it is gone."""
        return self.storage.size_bytes(self.name)

    def size_to_commit(self) -> int:
        """The file's size, for a commit that names it. Raises StorageError: it is gone."""
        if not (size_bytes := self.size_bytes):
            raise StorageError(
                f"{self.where}: was removed before its rows counted; nothing has changed. Its writer paused "
                "for so long that a vacuum removed it as a leftover; try again"
            )
        return size_bytes

    def schema(self) -> pa.Schema:
        """The columns. Raises DamagedFileError: the file is missing or damaged."""
        with self._reading():
            return large_schema(pq.read_schema(pa.BufferReader(self._content())).remove_metadata())

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in batches of bounded size, with large types; only the named columns that the file
        has, if any are named.

        Raises DamagedFileError: the file is missing, truncated or altered.
        """
        with self._reading():
            content = self._content()
            if self.checksum != mmh3.mmh3_x64_128_digest(content).hex():
                raise self._damaged("its checksum does not match")
            with pq.ParquetFile(pa.BufferReader(content)) as file:
                if self.num_rows != file.metadata.num_rows:
                    raise self._damaged(f"{file.metadata.num_rows} rows, its commit says {self.num_rows}")
                if columns is not None:
                    known = {*file.schema_arrow.names}  # each access makes the schema anew
                    columns = [name for name in columns if name in known]
                for number in range(file.num_row_groups):
                    self._check_size(file.metadata.row_group(number))
                    group = file.read_row_group(number, columns=columns, use_threads=False)
                    yield with_large_types(group)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with memory_errors_apart():
                yield
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(error) from error

    def _damaged(self, what: object) -> DamagedFileError:
        return DamagedFileError(
            f"{self.where}: a data file of the row log is damaged: {what}. Restore it from a copy, or fill "
            "the view anew with `feast-sketch rebuild`"
        )

    def _content(self) -> pa.Buffer:
        try:
            return pa.py_buffer(self.storage.map(self.name))
        except MissingFileError as error:
            raise self._damaged("it is missing") from error

    def _check_size(self, group: pq.RowGroupMetaData) -> None:
        """Refuse what the store does not write: a small file can claim any number of values."""
        columns = range(group.num_columns)
        num_values = max((group.column(number).num_values for number in columns), default=0)
        limit = MAX_ELEMENTS if group.num_rows == 1 else GROUP_ELEMENTS
        if group.num_rows > GROUP_ROWS or num_values > limit:
            raise self._damaged(
                f"a row group claims {group.num_rows} rows and {num_values} values; the store writes none so "
                "large"
            )


@dataclass(frozen=True)
class StagedFile:
    """A data file that a task wrote, with its size and its columns, and the shard that its rows are of: its
    number, and the `folder` of the view's shards.
    """

    file: DataFile
    size_bytes: int
    schema: pa.Schema
    shard: int
    shards_folder: str

    @classmethod
    def from_report(cls, storage: Storage, entry: dict[str, Any]) -> "StagedFile":
        """The file of an entry of `to_report`."""
        schema = pa.ipc.read_schema(pa.py_buffer(entry["columns"]))
        file = DataFile.from_entry(storage, entry)
        return cls(file, entry["size_bytes"], schema, entry["shard"], entry["shards_folder"])

    def to_report(self) -> dict[str, Any]:
        """An entry of a report."""
        more = {
            "size_bytes": self.size_bytes,
            "columns": self.schema.serialize().to_pybytes(),
            "shard": self.shard,
            "shards_folder": self.shards_folder,
        }
        return self.file.to_entry() | more

    def check(self) -> None:
        """Check that the file exists and is complete.

        Raises StorageError: it is missing, or its size is wrong.
        """
        if not (size := self.file.size_bytes):
            raise StorageError(
                f"{self.file.where}: a task wrote it, and it is gone: the view was dropped meanwhile, or a "
                "vacuum took the file for left over; nothing was committed. Run the job again"
            )
        if size != self.size_bytes:
            raise StorageError(
                f"{self.file.where}: a task wrote {self.size_bytes} bytes, and {size} are there; nothing was "
                "committed. Run the job again"
            )


class _Hashed(io.RawIOBase):
    """Writes to a file, and hashes what is written: to read it again could fail, or take a download."""

    def __init__(self, file: BinaryIO):
        self._file, self._hasher = file, mmh3.mmh3_x64_128()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._hasher.update(content)
        return self._file.write(content)

    def hexdigest(self) -> str:
        """The checksum of the written bytes."""
        digest: bytes = self._hasher.digest()
        return digest.hex()


def runs(tables: Iterable[pa.Table], max_bytes: float = math.inf) -> Iterator[Iterator[pa.Table]]:
    """Split tables into runs for one file each, without reading ahead."""
    rest = iter(tables)

    def run(table: pa.Table) -> Iterator[pa.Table]:
        num_rows, num_bytes = len(table), table.nbytes
        yield table
        while num_rows < _FILE_ROWS and num_bytes < max_bytes:
            if (following := next(rest, None)) is None:
                return
            num_rows, num_bytes = num_rows + len(following), num_bytes + following.nbytes
            yield following

    for first in rest:
        yield run(first)


def _with_dictionaries(schema: pa.Schema) -> list[str]:
    """The Parquet columns whose values may repeat. For others a dictionary only costs time and bytes."""
    return [
        f"{field.name}.list.element" if pa.types.is_large_list(field.type) else field.name
        for field in schema
        if field.name not in (ENTITY_KEY, EVENT_TIMESTAMP, CREATED_TIMESTAMP)
    ]


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    known = {*table.column_names}
    if unknown := known - {*schema.names}:
        raise ValueError(f"columns {sorted(unknown)} are not in the table")
    columns = [
        table[f.name].cast(f.type) if f.name in known else pa.nulls(len(table), f.type) for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
