"""Which items of lists a read shows: as of now, or of each entity as of a moment of its own.

A training row asks what a read would have shown at its time. Ticks are whole: of the tick that a moment lies
in nothing is shown, because a sealed item has the time at which its tick began, and what happened after the
moment must not leak into the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.layers.row_reader import NO_LIMIT
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.limits import impossible_moment
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.state import State

if TYPE_CHECKING:
    import pandas as pd

Moments: TypeAlias = Union[
    datetime, Sequence[datetime], pa.Array, "pd.Series[pd.Timestamp]", "pd.DatetimeIndex"
]
"""One moment for all entities, or one for each; each has a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ListWindow:
    """The items of lists that a read shows.

    Parameters
    ----------
    bounds : microseconds since 1970 of the oldest item; or int64[n, 2], for each entity that time and one in
        the first tick that is too new.
    limit : the most items per entity; None for as many as the list shows.
    """

    bounds: int | NDArray[np.int64]
    limit: int | None

    @property
    def is_past(self) -> bool:
        """Whether each entity has a moment of its own."""
        return not isinstance(self.bounds, int)

    def complete(
        self, state: State, codec: FeatureCodec, cut: NDArray[np.bool_], lengths: NDArray[np.int64]
    ) -> NDArray[np.bool_] | None:
        """Which lists have all items that a read at the moment could have shown: bool[n]; None as of now.

        Seals drop items behind the list's limit and its reserve, and expired ones.

        Parameters
        ----------
        cut : bool[n], the lists that end where a seal dropped items behind the limit.
        lengths : int64[n], of the lists that were read.
        """
        if isinstance(self.bounds, int):
            return None
        assert codec.listing is not None
        limit = min(self.limit or NO_LIMIT, codec.listing.limit or NO_LIMIT)
        sealed = [layer for shard in state.shards.values() for layer in shard.sealed_layers]
        kept_since = max((layer.since for layer in sealed), default=NO_TIMESTAMP)
        has_expired = (self.bounds[:, 0] < kept_since) & (lengths < limit)
        return np.asarray(~(cut | has_expired))


def window_of_lists(
    codec: FeatureCodec,
    ttl_microseconds: int | None,
    num_entities: int,
    min_timestamp: datetime | None,
    limit: int | None,
    until: Moments | None,
    is_inclusive: bool,
) -> ListWindow:
    """The items that a read of a list shows; parameters as those of `SketchReader.lists`.

    Raises
    ------
    RowError : the limit is below 1; or a moment has no time zone, or is missing.
    """
    if limit is not None and limit < 1:
        raise RowError(
            f"a limit of {limit} items shows nothing; ask for 1 or more, or for None, which is all"
        )
    oldest = NO_TIMESTAMP if min_timestamp is None else _microseconds_of(min_timestamp)
    if until is None:
        return ListWindow(max(expire_before_of(ttl_microseconds), oldest), limit)
    moments = _moments(until, num_entities, codec.feature)
    bounds = np.empty((num_entities, 2), np.int64)
    bounds[:, 0] = oldest if ttl_microseconds is None else np.maximum(moments - ttl_microseconds, oldest)
    assert codec.listing is not None
    bounds[:, 1] = moments + codec.listing.resolution_microseconds * is_inclusive
    return ListWindow(bounds, limit)


def _microseconds_of(moment: datetime) -> int:
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - _EPOCH) // timedelta(microseconds=1)


def _moments(until: Moments, number: int, feature: str) -> NDArray[np.int64]:
    """Moments in microseconds since 1970, rounded up: int64[number]."""
    given = [until] if isinstance(until, datetime) else until
    what = f"`until` of the list {feature!r}"
    if isinstance(given, Sequence) and not isinstance(given, str):
        for row, moment in enumerate(given):
            if not isinstance(moment, datetime) or moment.tzinfo is None:
                raise RowError(f"row {row} of {what} is {moment!r}, which is no moment with a time zone")
    try:
        times = given if isinstance(given, pa.Array) else pa.array(given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RowError(f"{what} are no moments: {error}") from error
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        raise RowError(
            f"row 0 of {what} is of the type {times.type}, which is no moment with a time zone; give "
            "datetimes with a zone, or a column of timestamps in UTC"
        )
    if times.null_count:
        raise RowError(f"row {int(np.argmax(times.is_null()))} of {what} is missing")
    if isinstance(until, datetime):
        times = pa.concat_arrays([times] * number) if number else times[:0]
    if len(times) != number:
        raise RowError(f"there are {len(times)} moments in {what}, for {number} entities")
    numbers = times.cast(pa.int64()).to_numpy()
    units = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
    moments: NDArray[np.int64] = numbers * units[times.type.unit]
    if times.type.unit == "ns":
        moments = -(-moments // 1_000)
    if (found := impossible_moment(moments)) is not None:
        raise RowError(f"row {found[0]} of {what} is {found[1]}")
    return moments
