"""Values of many entities as arrays, one entity after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, UnsupportedFeatureError
from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.reading.windows import ListWindow
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.view.state import State


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
    complete : bool[n], whether the store still has all items that a read at the entity's moment could have
        shown; None if the read is as of now.
    attributes : by feature, an attribute of each item, in the type of its column; those that were asked for.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    microseconds: NDArray[np.int64]
    storage: pa.Array
    codec: FeatureCodec
    complete: NDArray[np.bool_] | None = None
    attributes: Mapping[str, pa.Array] = field(default_factory=dict)

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
        return self.as_lists(self.values)

    def as_lists(self, elements: pa.Array) -> pa.Array:
        """The values or an attribute of all items as an Arrow array of lists."""
        return pa.LargeListArray.from_arrays(pa.array(self.indptr), elements)


@dataclass(frozen=True)
class Jagged:
    """The ids of the values of n entities, as an embedding bag or a nested tensor takes them.

    Entity ``i`` has ``values[offsets[i]:offsets[i + 1]]``; one without a row has none. Other libraries take
    both arrays without a copy: ``torch.from_dlpack(jagged.values)``.

    Parameters
    ----------
    values : int32[nnz], ids; those of a list are its items, newest first.
    offsets : int32[n + 1]
    vocabulary : the values in the order of their ids.
    complete : bool[n], of lists as of moments, see `RaggedLists`; else None.
    """

    values: NDArray[np.int32]
    offsets: NDArray[np.int32]
    vocabulary: pa.Array
    complete: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        indptr: NDArray[np.int64],
        ids: NDArray[np.int32],
        vocabulary: pa.Array,
        complete: NDArray[np.bool_] | None = None,
    ) -> "Jagged":
        """From rows that begin at ``indptr``, int64[n + 1].

        Raises
        ------
        RowError : the rows have 2**31 ids or more.
        """
        if indptr[-1] > np.iinfo(np.int32).max:
            raise RowError(
                f"{len(indptr) - 1} entities have {indptr[-1]} values, more than 32-bit offsets can number; "
                "read fewer entities at a time"
            )
        return cls(ids, indptr.astype(np.int32), vocabulary, complete)


def column_of(answer: LayerAnswer, codec: FeatureCodec, num_entities: int) -> pa.Array:
    """The values of a feature as an Arrow column: null without a row, and where they are missing or null.

    Parameters
    ----------
    answer : of a read of the entities.
    codec : of the feature.
    """
    states, part = np.zeros(num_entities, np.uint8), answer.features.get(codec.feature)
    if part is None:
        storage = pa.array([], codec.storage_type)
        return codec.to_column(states, np.zeros(num_entities + 1, np.int64), storage)
    states[answer.found] = part.states
    storage = part.decoder.vocabulary.values.take(pa.array(part.symbols))
    return codec.to_column(states, Csr.placed([(answer.found, part.csr)], num_entities).indptr, storage)


def read_attributes(
    state: State,
    codec: FeatureCodec,
    entity_hashes: NDArray[np.uint64],
    window: ListWindow,
    names: Sequence[str],
) -> dict[str, pa.Array]:
    """Attributes of the items of lists, which are read with the same window.

    Parameters
    ----------
    state, codec, entity_hashes, window : as of `read_lists`.
    names : of the attributes' features.

    Raises
    ------
    UnsupportedFeatureError : the items have no such attribute.
    """
    if not names:
        return {}
    own = {attribute.feature: attribute for attribute in codec.attributes}
    if missing := [name for name in names if name not in own]:
        raise UnsupportedFeatureError(
            f"items of the list {codec.feature!r} have no attribute {missing[0]!r}; they have {[*own]}"
        )
    answer, found = state.read(entity_hashes, tuple(names), window.bounds, window.limit), {}
    for name in names:
        of_name = FeatureCodec.of_attribute(own[name], codec.feature)
        part = answer.features.get(name)
        storage = pa.array([], of_name.storage_type)
        if part is not None:
            storage = part.decoder.vocabulary.values.take(pa.array(part.symbols))
        found[name] = of_name.from_storage(storage)
    return found


def read_lists(
    state: State,
    codec: FeatureCodec,
    entity_hashes: NDArray[np.uint64],
    window: ListWindow,
    attributes: Sequence[str] = (),
) -> RaggedLists:
    """The lists of entities in a state; values are numbered as they are met.

    Parameters
    ----------
    state : of the view.
    codec : of the list.
    entity_hashes : uint64[n, 2]
    window : the items to show.
    attributes : see `read_attributes`.
    """
    number = len(entity_hashes)
    cut = np.zeros((1, number), np.bool_)
    answer = state.read(entity_hashes, (codec.feature,), window.bounds, window.limit, cut)
    feature = answer.features.get(codec.feature)
    nothing = Csr.of_lengths(np.zeros(number, np.int64), np.zeros(0, np.int32))
    items = nothing if feature is None else Csr.placed([(answer.found, feature.csr)], number)
    complete = window.complete(state, codec, cut[0], items.lengths)
    times = np.zeros(0, np.int64) if items.weights is None else items.weights
    values = pa.array([], codec.storage_type) if feature is None else feature.decoder.vocabulary.values
    beside = read_attributes(state, codec, entity_hashes, window, attributes)
    return RaggedLists(items.indptr, items.ids, times, values, codec, complete, beside)
