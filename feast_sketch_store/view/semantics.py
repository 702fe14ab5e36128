"""Row semantics: how several rows of an entity combine.

Rows of one entity meet in four places, and a semantics decides in all of them:

    in a batch        rows of one commit, or of several that are taken up together
    in the log        all rows, when a view is sealed or verified
    among unsealed    layers of rows in memory are merged as they grow
    in a read         layers that know an entity, newest first

`Replace` is Feast's: the newest row of an entity replaces those before it. `registry` has all by their names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers import ExactLayer
from feast_sketch_store.layers.prepared import Wanted
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.count_log import columns_of
from feast_sketch_store.rows.encoding import (
    NO_TIMESTAMP,
    EncodedRows,
    FeastRow,
    RowKeys,
    encode,
    newest_rows,
    to_arrow,
)
from feast_sketch_store.rows.entity_keys import JoinKeys, find_sorted
from feast_sketch_store.rows.newest import Batches, NewestRows


class FoldedRows(Protocol):
    """The rows of a log that count.

    Attributes
    ----------
    keys : of the entities, ordered by hash.
    num_rows : of the log, those that do not count included.
    has_dead : whether deleted or expired rows were dropped.
    expire_before : microseconds since 1970; older rows were dropped.
    """

    keys: RowKeys
    num_rows: int
    has_dead: bool
    expire_before: int

    def __len__(self) -> int:
        """The number of rows that the log needs to keep."""

    def batches(self) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """Rows of the log that need to stay: which of ``keys`` they belong to, int64[n], and the rows."""

    def encoded(self, codecs: Sequence[FeatureCodec]) -> Iterator[tuple[NDArray[np.int64], EncodedRows]]:
        """One row per entity, in parts: which of ``keys`` they belong to, int64[n], and the rows."""


class RowSemantics(ABC):
    """How rows of one entity combine. Immutable.

    Attributes
    ----------
    name : by which settings and snapshots know it.
    log_column : a column that all its logs have and no others; None if it has none.
    """

    name: str
    log_column: str | None = None

    def of(self, codecs: Sequence[FeatureCodec]) -> "RowSemantics":
        """The semantics for a view with these features. Here it does not depend on them."""
        return self

    def to_log(
        self, rows: Sequence[FeastRow], codecs: Sequence[FeatureCodec], join_keys: JoinKeys | None
    ) -> pa.Table:
        """Turn the rows of one write into a table of the row log; see `encoding.to_arrow`."""
        return to_arrow(rows, codecs, join_keys)

    def columns(self, codecs: Sequence[FeatureCodec]) -> pa.Schema:
        """The columns of the row log that hold features."""
        return columns_of(codecs)

    def wanted(self, features: Sequence[str]) -> Wanted:
        """What a read of some features requests from layers."""
        return Wanted(tuple(features))

    @abstractmethod
    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """The rows of a log that count; parameters as those of `NewestRows`."""

    @abstractmethod
    def encode(self, table: pa.Table, codecs: Sequence[FeatureCodec]) -> EncodedRows:
        """Rows in commit order as one row per entity, ordered by hash."""

    @abstractmethod
    def merge(self, older: EncodedRows, newer: EncodedRows) -> EncodedRows:
        """One row per entity of two parts, ordered by hash."""

    @abstractmethod
    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """Which new rows do not count, because their entities have newer rows: bool[n].

        Parameters
        ----------
        keys : of the new rows, one per entity.
        layers : the unsealed rows, from the oldest to the newest.
        sealed : gives the keys of the sealed rows, which may have to be read from a file; None for none.
        """


class Replace(RowSemantics):
    """The newest row replaces those before it: by event timestamp, created timestamp, order of commit.

    Parameters
    ----------
    codecs : of the view's features; features of counts are treated apart.
    """

    name = "replace"

    def __init__(self, codecs: Sequence[FeatureCodec] = ()):
        self._counts = {codec.feature: codec for codec in codecs if codec.counts_of}

    def of(self, codecs: Sequence[FeatureCodec]) -> RowSemantics:
        """See `RowSemantics.of`."""
        return Replace(codecs) if any(codec.counts_of for codec in codecs) else self

    def wanted(self, features: Sequence[str]) -> Wanted:
        """See `RowSemantics.wanted`: counts stand beside their values."""
        return Wanted(tuple(self._counts.get(name, name) for name in features))

    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """The newest row of each entity that is neither deleted nor expired."""
        return NewestRows(batches, expire_before, kept_microseconds)

    def encode(self, table: pa.Table, codecs: Sequence[FeatureCodec]) -> EncodedRows:
        """The newest row of each entity."""
        return encode(*newest_rows(table), codecs)

    def merge(self, older: EncodedRows, newer: EncodedRows) -> EncodedRows:
        """The newest row of each entity of both."""
        return older.merged_with(newer)

    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """Which rows are older than the known row of their entity."""
        late = np.zeros(len(keys), np.bool_)
        unlisted = np.ones(len(keys), np.bool_)
        for layer in reversed(layers):
            # The newest layer that lists an entity decides. An older one may hold deleted rows.
            found, places = layer.find(keys.entity_hashes)
            first = unlisted[found]
            late[found[first]] = keys.older_than(found[first], layer.rows.keys, places[first])
            unlisted[found] = False
        # A row in an unsealed layer has already won against the sealed row.
        suspects = np.flatnonzero(unlisted)
        if len(suspects) and (order := sealed()) is not None:
            found, places = find_sorted(order.entity_hashes, keys.entity_hashes[suspects])
            late[suspects[found]] |= keys.older_than(suspects[found], order, places)
        return late


REPLACE = Replace()
