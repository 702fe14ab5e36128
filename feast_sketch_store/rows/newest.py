"""The newest row of each entity: found in one pass over the row log, read in another.

Only the keys of all rows are in memory together, about 50 bytes a row. All else is read in batches.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.count_log import columns_of
from feast_sketch_store.rows.encoding import (
    KEY_COLUMNS,
    NO_TIMESTAMP,
    NULLS,
    EncodedRows,
    RowKeys,
    as_damage,
    encode,
    row_keys,
)
from feast_sketch_store.rows.spill import Spill, SpilledArrays
from feast_sketch_store.threads import in_threads

# Reads the rows of a log in commit order, with the given columns; None for all columns.
Batches = Callable[[Sequence[str] | None], Iterator[pa.Table]]


class NewestRows:
    """The rows that count: the newest of each entity that is neither deleted nor expired.

    Parameters
    ----------
    batches : reads the log. It is called several times, and must return the same rows each time.
    expire_before : microseconds since 1970; rows with an older event timestamp do not count.
    kept_microseconds : expire only rows that are older by more than this than the newest event of the log, so
        that a clock that is ahead expires nothing. None to use ``expire_before`` alone.
    keeps_deleted : keep the keys of deleted entities in ``keys``; `batches` then returns rows without values
        for them.
    """

    num_undeclared = 0  # rows of `undeclared`, at most

    def __init__(
        self,
        batches: Batches,
        expire_before: int = NO_TIMESTAMP,
        kept_microseconds: int | None = None,
        keeps_deleted: bool = False,
    ):
        self._batches = batches
        all_keys = _joined(map(row_keys, batches(KEY_COLUMNS)))
        pa.default_memory_pool().release_unused()  # what reading used, before keys are sorted
        self.num_rows = len(all_keys)  # of the log
        if kept_microseconds is not None:
            # A deletion's timestamp is that of the clock, not of an event.
            newest = all_keys.event_timestamps.max(where=~all_keys.deleted, initial=NO_TIMESTAMP)
            expire_before = min(expire_before, int(newest) - kept_microseconds)
        self.expire_before = expire_before  # rows with an older event timestamp were left out
        winners, keys = all_keys.newest()
        del all_keys
        alive = (keeps_deleted | ~keys.deleted) & (keys.event_timestamps >= expire_before)
        self.has_dead = not alive.all()  # whether deleted or expired rows were left out
        if self.has_dead:
            winners, keys = winners[alive], keys.take(np.flatnonzero(alive))
        self.keys = keys  # of the rows that count, ordered by entity hash
        # Half of the memory, unless there are very many rows.
        narrow = np.int32 if self.num_rows < 1 << 31 else np.int64
        self._places = np.argsort(winners).astype(narrow)  # of the keys, in the order of the log
        self._winners = winners[self._places].astype(narrow)

    def __len__(self) -> int:
        return len(self.keys)

    def encoded(self, codecs: Sequence[FeatureCodec]) -> Iterator[tuple[NDArray[np.int64], EncodedRows]]:
        """The rows in encoded batches, by all cores, each with the indices of its rows among ``keys``."""

        def encode_batch(batch: tuple[NDArray[np.int64], pa.Table]) -> tuple[NDArray[np.int64], EncodedRows]:
            indices, table = batch
            return indices, encode(table, self.keys.take(indices), codecs)

        return in_threads(encode_batch, self._taken([NULLS, *columns_of(codecs).names]))

    def batches(self) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """Batches of rows in the order of the log, with their indices among ``keys``, int64[n]."""
        return self._taken(None)

    def undeclared(self) -> Iterator[pa.Table]:
        """Nothing: rows of `batches` are whole."""
        return iter(())

    def _taken(self, columns: Sequence[str] | None) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """`batches` with some columns only; None for all."""
        first = 0
        for batch in self._batches(columns):
            bounds = np.array((first, first + len(batch)), self._winners.dtype)
            start, stop = np.searchsorted(self._winners, bounds)
            if start < stop:
                with as_damage():
                    taken = batch.take(pa.array(self._winners[start:stop] - first))
                yield self._places[start:stop].astype(np.int64), taken
            first += len(batch)
        if first != self.num_rows:
            raise DamagedFileError("rows of the row log have none of the columns of their view")


def _joined(parts: Iterable[RowKeys]) -> RowKeys:
    """The keys of all parts, which are stored until all are there."""
    spill = Spill()
    columns = {name: SpilledArrays(spill) for name in RowKeys.__dataclass_fields__}
    for part in parts:
        for name, arrays in columns.items():
            arrays.append(getattr(part, name).reshape(-1))
    if not len(columns["deleted"]):
        return RowKeys.none()
    whole = {name: arrays.joined() for name, arrays in columns.items()}
    return RowKeys(**{**whole, "entity_hashes": whole["entity_hashes"].reshape(-1, 2)})
