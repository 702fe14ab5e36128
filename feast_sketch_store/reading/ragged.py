"""Lists as arrays: the items of many entities, one entity after the other."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.view.live import expire_before_of
from feast_sketch_store.view.sharded_state import AnyState

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
    state: AnyState,
    codec: FeatureCodec,
    entity_hashes: NDArray[np.uint64],
    newest: tuple[int, int | None],
    vocabulary: Vocabulary | None = None,
) -> RaggedLists:
    """The lists of entities in a state.

    Parameters
    ----------
    state : of the view.
    codec : of the list.
    entity_hashes : uint64[n, 2]
    newest : the time of the oldest item, in microseconds since 1970; and the most items per entity, or None.
    vocabulary : the values with ids; items with other values are left out. None to number all values.

    Raises
    ------
    RowError : the most items are fewer than 1.
    """
    since, limit = newest
    if limit is not None and limit < 1:
        raise RowError(
            f"a limit of {limit} items shows nothing; ask for 1 or more, or for None, which is all"
        )
    listing = codec.listing
    if vocabulary is None and listing is not None:
        most = listing.limit if limit is None else min(limit, listing.limit or limit)
        quick = state.newest(entity_hashes, codec, most, since)
        if quick is not None:
            (indptr, ids, times), values = quick
            return RaggedLists(indptr, ids, times, values.values, codec)
    answers = state.read(entity_hashes, (codec.feature,), since, limit)
    found = [(a.found, a.features[codec.feature]) for a in answers if codec.feature in a.features]
    if vocabulary is None:
        vocabulary = Vocabulary(pa.array([], codec.storage_type))
        if len(found) == 1:
            vocabulary = found[0][1].decoder.vocabulary
        elif found:
            used = [feature.decoder.vocabulary.values.take(pa.array(feature.symbols)) for _, feature in found]
            vocabulary = Vocabulary(pc.unique(pa.concat_arrays(used)))
    parts = []
    for places, feature in found:
        items, known = feature.csr, feature.decoder.vocabulary
        if known is not vocabulary:
            items = items.mapped(vocabulary.find(known.values))
        parts.append((places, items))
    items = Csr.placed(parts, len(entity_hashes))
    times = items.weights if items.weights is not None else np.zeros(0, np.int64)
    return RaggedLists(items.indptr, items.ids, times, vocabulary.values, codec)
