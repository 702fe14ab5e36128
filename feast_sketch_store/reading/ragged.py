"""Lists as arrays: the items of many entities, one entity after the other."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.state import State

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RaggedLists:
    """The items of n entities, each entity's newest first.

    Entity ``i`` has the items ``indptr[i]`` to ``indptr[i + 1]``; an entity without a row has none.

    Parameters
    ----------
    indptr : int64[n + 1]
    ids : int32[nnz], the id of each item's value; equal values have the same id.
    microseconds : int64[nnz], the time of each item, since 1970 in UTC; for a sealed item the start of its
        tick.
    storage : the values in the order of their ids, in the vocabulary's storage type.
    codec : of the list.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    microseconds: NDArray[np.int64]
    storage: pa.Array
    codec: FeatureCodec

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def values(self) -> pa.Array:
        """The value of each item."""
        return self.codec.from_storage(self.storage.take(pa.array(self.ids)))

    @property
    def vocabulary(self) -> pa.Array:
        """The values in the order of their ids."""
        return self.codec.from_storage(self.storage)

    @property
    def timestamps(self) -> NDArray[np.datetime64]:
        """The time of each item in UTC: datetime64[us]."""
        return self.microseconds.view("datetime64[us]")

    def to_arrow(self) -> pa.Array:
        """The values as an Arrow array of lists."""
        return pa.LargeListArray.from_arrays(pa.array(self.indptr), self.values)


def since_of(min_timestamp: datetime | None, ttl_microseconds: int | None) -> int:
    """The time of the oldest item that a read may show, in microseconds since 1970."""
    since = expire_before_of(ttl_microseconds)
    if min_timestamp is None:
        return since
    moment = min_timestamp if min_timestamp.tzinfo else min_timestamp.replace(tzinfo=UTC)
    return max(since, (moment - _EPOCH) // timedelta(microseconds=1))


def read_lists(
    state: State, codec: FeatureCodec, entity_hashes: NDArray[np.uint64], newest: tuple[int, int | None]
) -> RaggedLists:
    """The lists of entities in a state; values are numbered as they are met.

    Parameters
    ----------
    state : of the view.
    codec : of the list.
    entity_hashes : uint64[n, 2]
    newest : the time of the oldest item, in microseconds since 1970; and the most items per entity, or None.

    Raises
    ------
    RowError : the most items are fewer than 1.
    """
    since, limit = newest
    check_limit(limit)
    answer = state.read(entity_hashes, (codec.feature,), since, limit)
    return lists_of(answer, codec, len(entity_hashes))


def check_limit(limit: int | None) -> None:
    """Refuse to show no items.

    Raises
    ------
    RowError : the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise RowError(
            f"a limit of {limit} items shows nothing; ask for 1 or more, or for None, which is all"
        )


def lists_of(answer: LayerAnswer, codec: FeatureCodec, num_entities: int) -> RaggedLists:
    """The lists in an answer about some entities."""
    feature = answer.features.get(codec.feature)
    if feature is None:
        nothing = np.zeros(0, np.int64)
        values = pa.array([], codec.storage_type)
        return RaggedLists(
            np.zeros(num_entities + 1, np.int64), nothing.astype(np.int32), nothing, values, codec
        )
    items = Csr.placed([(answer.found, feature.csr)], num_entities)
    assert items.weights is not None
    return RaggedLists(items.indptr, items.ids, items.weights, feature.decoder.vocabulary.values, codec)
