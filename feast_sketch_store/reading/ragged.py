"""Values of many entities as arrays, one entity after the other; and which items of lists they show.

Lists are read as of now, or of each entity as of a moment of its own: a training row needs what a read would
have shown at its time. Ticks are whole: nothing is shown of the tick of a moment, because a sealed
item has the time at which its tick began, and what happened after the moment must not leak into the row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, UnsupportedFeatureError, counted, shown
from feast_sketch_store.kernel import RowReader
from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.layers.row_reader import NO_LIMIT, Column, read_items
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, TIMESTAMP, EncodedFeature, never_written
from feast_sketch_store.rows.limits import aware, impossible_moment
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.state import State

if TYPE_CHECKING:
    import pandas as pd

Moments: TypeAlias = Union[
    datetime, Sequence[datetime], pa.Array, "pd.Series[pd.Timestamp]", "pd.DatetimeIndex"
]
"""One moment for all entities, or one for each; each has a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(eq=False)  # made for each read; a frozen one takes a microsecond longer
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
    attribute_ids : by feature, uint8[nnz], for each item the index of its attribute among the declared
        values; only requested attributes.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    microseconds: NDArray[np.int64]
    storage: pa.Array
    codec: FeatureCodec
    complete: NDArray[np.bool_] | None = None
    attribute_ids: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def values(self) -> pa.Array:
        """The value of each item."""
        return self.codec.from_storage(self.storage.take(pa.array(self.ids)))

    def attribute(self, feature: str) -> pa.Array:
        """An attribute of each item, in the type of its column.

        Raises
        ------
        KeyError : the attribute was not requested.
        """
        return self.codec.attribute_values(feature).take(pa.array(self.attribute_ids[feature]))

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
    """The values of a feature as an Arrow column: null without a row, and where they are missing or null."""
    part = answer.features.get(codec.feature)
    if part is None:
        return never_written(codec, num_entities).to_column()
    states, csr = np.zeros(num_entities, np.uint8), Csr.placed([(answer.found, part.csr)], num_entities)
    states[answer.found] = part.states
    return EncodedFeature(codec, part.vocabulary, states, csr).to_column()


# -- lists as of now or of moments ------------------------------------------------------------------------


class ListQuestion(NamedTuple):
    """What a read of a list asks for."""

    codec: FeatureCodec  # of the list, which no layer may have yet
    # microseconds since 1970 of the oldest item; or int64[n, 2], for each entity that time and one in the
    # first tick that is too new
    bounds: int | NDArray[np.int64]
    limit: int  # the most items per entity; NO_LIMIT for as many as the list shows
    attributes: Sequence[str] = ()  # features that are attributes of the items, to be read with them

    def read(
        self, state: State, rows: RowReader, column: Column, entity_hashes: NDArray[np.uint64]
    ) -> tuple[RaggedLists, int]:
        """The lists of entities, uint64[n, 2], in a state, and how many of them have a row.

        ``rows`` and ``column`` are of the state, with the list alone, with stamps if attributes are wanted.
        """
        cut = None if isinstance(self.bounds, int) else np.zeros(len(entity_hashes), np.bool_)
        if column.codec is None:
            column = Column(self.codec.feature, self.codec)
        indptr, ids, stamps, vocabulary, num_found = read_items(
            rows, column, entity_hashes, self.bounds, self.limit, cut
        )
        times, beside = self._without_codes(stamps)
        complete = None if cut is None else self._complete(state, cut, indptr, times)
        lists = RaggedLists(indptr, ids, times, vocabulary.values, self.codec, complete, beside)
        return lists, num_found

    def _without_codes(
        self, stamps: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[np.uint8]]]:
        """The times of items, int64[nnz], and the ids of their attributes, see `RaggedLists`. If none are
        wanted, the stamps are times.
        """
        if not self.attributes:
            return stamps, {}
        listing, ids = self._listing, {}
        codes = listing.codes_of(stamps).astype(np.uint16)
        for name in self.attributes:
            attribute, step = listing.digit_of(name)
            ids[name] = (codes // step % len(attribute.values)).astype(np.uint8)
        return listing.times_of(stamps), ids

    def _complete(
        self, state: State, cut: NDArray[np.bool_], indptr: NDArray[np.int64], times: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which lists have all items that a read at the moment could have shown: bool[n].

        Seals drop items beyond the list's limit and reserve, and expired ones. A list that is ``cut``,
        bool[n], ends where a seal dropped items beyond the limit.
        """
        assert not isinstance(self.bounds, int)
        limit = min(self.limit, self._listing.limit or NO_LIMIT)
        sealed = [layer for shard in state.shards.values() for layer in shard.sealed_layers]
        complete_since = max((layer.complete_since for layer in sealed), default=NO_TIMESTAMP)
        may_lack = self.bounds[:, 0] < complete_since
        # Of a full list only items count that are newer than its last one.
        full = np.flatnonzero(np.diff(indptr) >= limit)
        may_lack[full] &= times[indptr[full + 1] - 1] < complete_since
        return np.asarray(~(cut | may_lack))

    @property
    def _listing(self) -> Listing:
        assert self.codec.listing is not None
        return self.codec.listing


def question_of_lists(
    where: str,
    codec: FeatureCodec,
    ttl_microseconds: int | None,
    num_entities: int,
    min_timestamp: datetime | None,
    limit: Any,
    until: Moments | None,
    is_inclusive: bool,
    attributes: Any,
) -> ListQuestion:
    """What a read of a list asks for; parameters as those of `SketchReader.lists`.

    ``where`` is the list in messages.

    Raises
    ------
    UnsupportedFeatureError : the items lack an attribute.
    RowError : the limit is not a whole number from 1; ``min_timestamp`` is no datetime; or a moment has no
        time zone, or is missing.
    """
    _require_attributes(where, codec, attributes)
    if limit is None:
        limit = NO_LIMIT
    elif not isinstance(limit, int | Integral) or isinstance(limit, bool) or limit < 1:
        raise RowError(
            f"the limit {limit!r} for the {where} is not a whole number from 1; give one, or None for all"
        )
    limit = min(int(limit), NO_LIMIT)
    oldest = NO_TIMESTAMP if min_timestamp is None else _microseconds_of(min_timestamp, where)
    if until is None:
        return ListQuestion(codec, max(expire_before_of(ttl_microseconds), oldest), limit, attributes)
    moments = _moments(until, num_entities, where)
    bounds = np.empty((num_entities, 2), np.int64)
    bounds[:, 0] = oldest if ttl_microseconds is None else np.maximum(moments - ttl_microseconds, oldest)
    assert codec.listing is not None
    bounds[:, 1] = moments + codec.listing.resolution_microseconds * is_inclusive
    return ListQuestion(codec, bounds, limit, attributes)


def _microseconds_of(moment: object, where: str) -> int:
    if not isinstance(moment, datetime) or moment != moment:  # pandas' NaT
        raise RowError(f"min_timestamp is {moment!r} for the {where}; give a datetime, or None for all items")
    return (aware(moment) - _EPOCH) // timedelta(microseconds=1)


def _moments(until: Moments, number: int, where: str) -> NDArray[np.int64]:
    """Moments in microseconds since 1970, rounded up: int64[number]."""
    given = [until] if isinstance(until, datetime) else until
    what = f"`until` of the {where}"
    if isinstance(given, Sequence) and not isinstance(given, str):
        for row, moment in enumerate(given):
            if not isinstance(moment, datetime) or moment.tzinfo is None:
                raise RowError(f"row {row} of {what} is {moment!r}, which is not a time with a time zone")
    try:
        is_empty = isinstance(given, Sequence) and not given
        times = given if isinstance(given, pa.Array) else pa.array(given, TIMESTAMP if is_empty else None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RowError(f"{what} are not times: {error}") from error
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        raise RowError(
            f"row 0 of {what} is of the type {times.type}, which is not a time with a time zone; give "
            "datetimes with a zone, or a column of timestamps in UTC"
        )
    if times.null_count:
        raise RowError(f"row {int(np.argmax(times.is_null()))} of {what} is missing")
    if isinstance(until, datetime):
        times = pa.concat_arrays([times] * number) if number else times[:0]
    if len(times) != number:
        raise RowError(f"{what} has {counted(len(times), 'moment')}, for {counted(number, 'entity')}")
    if times.type.unit == "ns":
        moments: NDArray[np.int64] = -(times.cast(pa.int64()).to_numpy() // -1_000)
    else:
        try:
            moments = times.cast(TIMESTAMP).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:  # seconds or milliseconds that no number of microseconds holds
            raise RowError(f"{what} are not times: {error}") from error
    if (found := impossible_moment(moments)) is not None:
        raise RowError(f"row {found[0]} of {what} is {found[1]}")
    return moments


def _require_attributes(where: str, codec: FeatureCodec, names: Any) -> None:
    """Raise UnsupportedFeatureError: the items of a list lack some attributes."""
    are_names = isinstance(names, tuple | list | Sequence) and not isinstance(names, str)
    if are_names and not names:
        return
    own = [attribute.feature for attribute in codec.attributes]
    if not are_names:
        raise UnsupportedFeatureError(
            f"the attributes to be read of the {where} are {shown(names)}; give a list of names, of {own}"
        )
    if missing := [name for name in names if name not in own]:
        raise UnsupportedFeatureError(
            f"items of the {where} have no attribute {missing[0]!r}; they have {own}"
        )
