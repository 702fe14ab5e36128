"""The Parquet files of a row log: written and synced before a commit names them, checked when read."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.snapshot.files import fsync_path

# A row group is what is decoded at a time, so its size bounds the memory of a reader, whoever made the file.
_ROWS_PER_GROUP = 1 << 16
_VALUES_PER_GROUP = 1 << 17  # of the widest column; a longer row has a group of its own
_VALUES_PER_ROW = 1 << 26


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of the table.

    ``num_rows`` and ``checksum``, MurmurHash3 x64 128 in hexadecimal, are those that its commit tells;
    None if another Delta client wrote it.
    """

    path: Path
    num_rows: int | None
    checksum: str | None

    @classmethod
    def write(cls, folder: Path, schema: pa.Schema, batches: Iterable[pa.Table]) -> "DataFile":
        """Write a new file and make it durable, its name apart.

        Parameters
        ----------
        folder : of the table; it exists.
        schema : of the file. Columns that a batch lacks are null.
        batches : the rows.
        """
        path = folder / f"{uuid.uuid4()}.zstd.parquet"
        num_rows = 0
        try:
            # Statistics would repeat values of rows that may have to be forgotten.
            with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as writer:
                for batch in batches:
                    for group in _groups(_with_all_columns(batch, schema)):
                        writer.write_table(group)
                    num_rows += len(batch)
            fsync_path(path)
            return cls(path, num_rows, _checksum_of(path))
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise

    def schema(self) -> pa.Schema:
        """The columns.

        Raises
        ------
        DamagedFileError : the file is missing or damaged.
        """
        try:
            return pq.read_schema(self.path).remove_metadata()
        except (OSError, pa.ArrowException) as error:
            raise DamagedFileError(f"{self.path}: a data file of the row log is damaged: {error}") from error

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in batches of bounded size.

        Parameters
        ----------
        columns : names; one that the file lacks is left out. None for all.

        Raises
        ------
        DamagedFileError : the file is missing, truncated or altered.
        """
        try:
            if self.checksum is not None and self.checksum != _checksum_of(self.path):
                raise DamagedFileError(f"{self.path}: the checksum of a data file does not match its bytes")
            with pq.ParquetFile(self.path) as file:
                if self.num_rows is not None and self.num_rows != file.metadata.num_rows:
                    raise DamagedFileError(
                        f"{self.path}: has {file.metadata.num_rows} rows, its commit tells {self.num_rows}"
                    )
                if columns is not None:
                    columns = [name for name in columns if name in file.schema_arrow.names]
                for number in range(file.num_row_groups):
                    if self.checksum is not None:
                        _check_size(self.path, file.metadata.row_group(number))
                    yield file.read_row_group(number, columns=columns, use_threads=False)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DamagedFileError(f"{self.path}: a data file of the row log is damaged: {error}") from error


def _checksum_of(path: Path) -> str:
    # An empty file cannot be mapped.
    content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    return mmh3.mmh3_x64_128_digest(content.data).hex()


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if unknown := set(table.column_names) - set(schema.names):
        raise ValueError(f"columns {sorted(unknown)} are not in the table")
    columns = [
        table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _groups(table: pa.Table) -> Iterator[pa.Table]:
    """Split a table into row groups."""
    values = np.ones(len(table), np.int64)
    for field in table.schema:
        if pa.types.is_list(field.type):
            lengths = pc.list_value_length(table[field.name]).fill_null(0).to_numpy()
            values = np.maximum(values, lengths)
    ends = np.cumsum(values)
    first = 0
    while first < len(table):
        before = ends[first] - values[first]
        stop = int(np.searchsorted(ends, before + _VALUES_PER_GROUP, side="right"))
        stop = max(first + 1, min(stop, first + _ROWS_PER_GROUP))
        yield table.slice(first, stop - first)
        first = stop


def _check_size(path: Path, group: pq.RowGroupMetaData) -> None:
    """Refuse what the store does not write: a small file can claim any number of values."""
    num_values = max((group.column(number).num_values for number in range(group.num_columns)), default=0)
    limit = _VALUES_PER_ROW if group.num_rows == 1 else _VALUES_PER_GROUP
    if group.num_rows > _ROWS_PER_GROUP or num_values > limit:
        raise DamagedFileError(
            f"{path}: a row group claims {group.num_rows} rows and {num_values} values; the store writes "
            "none so large"
        )
