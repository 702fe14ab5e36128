"""The newest row of each entity, found in one pass over the row log and read in another.

Only the keys of all rows are in memory together, about 50 bytes a row; the rest comes in batches.
"""

from collections.abc import Callable, Iterator, Sequence

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
from feast_sketch_store.threads import in_threads

# Gives the rows of a log in commit order, with the columns that are asked for or all.
Batches = Callable[[Sequence[str] | None], Iterator[pa.Table]]


class NewestRows:
    """The rows that count: the newest of each entity that is neither deleted nor expired.

    Parameters
    ----------
    batches : reads the log; it is called several times and gives the same rows each time.
    expire_before : microseconds since 1970; rows with an older event timestamp do not count ...
    kept_microseconds : ... unless they are at most this much older than the newest event of the log. So a
        clock that is ahead expires nothing. None to go by ``expire_before`` alone.
    keeps_deleted : whether the keys of deleted entities stay among ``keys``; `batches` has rows of theirs
        without values.

    Attributes
    ----------
    keys : of the rows, ordered by entity hash.
    num_rows : of the log.
    has_dead : whether deleted or expired rows were left out.
    expire_before : microseconds since 1970; rows with an older event timestamp were left out.
    """

    def __init__(
        self,
        batches: Batches,
        expire_before: int = NO_TIMESTAMP,
        kept_microseconds: int | None = None,
        keeps_deleted: bool = False,
    ):
        self._batches = batches
        all_keys = RowKeys.concatenate([row_keys(batch) for batch in batches(KEY_COLUMNS)])
        self.num_rows = len(all_keys)
        if kept_microseconds is not None:
            # The time of a deletion is the clock's, not an event timestamp.
            newest = all_keys.event_timestamps.max(where=~all_keys.deleted, initial=NO_TIMESTAMP)
            expire_before = min(expire_before, int(newest) - kept_microseconds)
        self.expire_before = expire_before
        winners, keys = all_keys.newest()
        del all_keys
        alive = (keeps_deleted | ~keys.deleted) & (keys.event_timestamps >= expire_before)
        self.has_dead = not alive.all()
        if self.has_dead:
            winners, keys = winners[alive], keys.take(np.flatnonzero(alive))
        self.keys = keys
        self._places = np.argsort(winners).astype(np.int64)  # of the keys, in the order of the log
        self._winners = winners[self._places]

    def __len__(self) -> int:
        return len(self.keys)

    def encoded(self, codecs: Sequence[FeatureCodec]) -> Iterator[tuple[NDArray[np.int64], EncodedRows]]:
        """The rows as `encode` makes them, by all cores: which of ``keys`` they belong to, and the rows."""

        def encode_batch(batch: tuple[NDArray[np.int64], pa.Table]) -> tuple[NDArray[np.int64], EncodedRows]:
            places, table = batch
            return places, encode(table, self.keys.take(places), codecs)

        return in_threads(encode_batch, self._taken([NULLS, *columns_of(codecs).names]))

    def batches(self) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """The rows in the order of the log: which of ``keys`` they belong to, int64[n], and the rows."""
        return self._taken(None)

    def _taken(self, columns: Sequence[str] | None) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """The same with some columns only; None for all."""
        first = 0
        for batch in self._batches(columns):
            start, stop = np.searchsorted(self._winners, [first, first + len(batch)])
            if start < stop:
                with as_damage():
                    taken = batch.take(pa.array(self._winners[start:stop] - first))
                yield self._places[start:stop], taken
            first += len(batch)
        if first != self.num_rows:
            raise DamagedFileError("rows of the row log have none of the columns of their view")
