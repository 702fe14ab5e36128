"""The Parquet files of a row log: written and synced before a commit names them, checked when read."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.snapshot.files import fsync_path

# What is decoded at a time: a file is read in batches of about so many values in its widest column.
_VALUES_PER_BATCH = 1 << 18
_ROWS_PER_GROUP = 1 << 16


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
                    writer.write_table(_with_all_columns(batch, schema), row_group_size=_ROWS_PER_GROUP)
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
                for batch in file.iter_batches(_rows_per_batch(file.metadata), columns=columns):
                    yield pa.Table.from_batches([batch])
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


def _rows_per_batch(metadata: pq.FileMetaData) -> int:
    """How many rows of a file to decode at a time."""
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    values_per_row = max(
        (g.column(c).num_values / max(1, g.num_rows) for g in groups for c in range(g.num_columns)),
        default=1.0,
    )
    return int(min(_ROWS_PER_GROUP, max(1, _VALUES_PER_BATCH // max(1.0, values_per_row))))
