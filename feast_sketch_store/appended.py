"""Features to which rows append, opened for writes and reads: arrays in and arrays out.

history = Lists("feature_repo", "user_history", "read")
history.add(users, articles, timestamps)                    what users have just read
recent = history.get(users, limit=50)                       newest first, never an expired item
history.remove([user], article)                             forget one article
history.clear([user])                                       forget all

liked = Sets("feature_repo", "user_likes", "liked")
liked.add(users, articles)                                  one value for each user of the array
liked.remove(users, articles)
liked.get(users)                                            an Arrow array of lists

views = Counts("feature_repo", "author_views", "author")
views.increment(users, authors, event_ids=ids)              each once, however often you call
values, counts = views.get(users)                           two Arrow arrays of lists
views.remove([user], author)                                forget what was counted of one author
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from feast import FeatureStore
from numpy.typing import ArrayLike, NDArray

from feast_sketch_store.adapter.options import require_writer
from feast_sketch_store.errors import (
    RowError,
    UnsupportedFeatureError,
    counted,
    require_names,
    shown,
)
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.reading.entities import Entities, EntityColumns, as_array, is_unmasked
from feast_sketch_store.reading.ragged import (
    Moments,
    RaggedLists,
    column_of,
    question_of_lists,
)
from feast_sketch_store.rows.codecs import MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.count_log import counts_array
from feast_sketch_store.rows.counting import MAX_COUNT
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import TIMESTAMP, deletion_rows
from feast_sketch_store.rows.entity_keys import serialize_columns
from feast_sketch_store.rows.increments import COUNT, check_ids
from feast_sketch_store.rows.limits import aware, impossible_moment
from feast_sketch_store.rows.list_log import REMOVE, REPLACE, ListRows
from feast_sketch_store.settings.resolve import join_key_columns
from feast_sketch_store.view.state import State

_MAX_SECONDS = 1 << 40  # since 1970: later than any item may be, and small enough for microseconds
_ALL_SECONDS = -_MAX_SECONDS, _MAX_SECONDS


class AppendedFeature(ABC):
    """One feature of a view to which rows append. Safe to use from several threads.

    Writes are durable, and visible to this process, when they return. Writes of several threads share a
    commit. Feast's own writes and reads see the same values. What ``feast apply`` changes, such as the ttl,
    counts when Feast has refreshed the registry, as for them, within the refresh interval.

    Parameters
    ----------
    repo : a `FeatureStore`, or the folder of a feature repository.
    feature_view, feature : their names. A view's name may end in a version, as in ``user_history@v2``, to
        fill that version before the registry names it. Otherwise the registry's version is used.

    Raises
    ------
    UnsupportedFeatureError : the view has no such feature, or the repository has no versions.
    SketchStoreError : the online store is of another type, or a name is not a string.
    feast.errors.FeatureViewNotFoundException, feast.errors.FeatureViewVersionNotFound : there is no such
        view, or no such version (from Feast).
    """

    _kind: str  # in messages
    _kinds: str
    _how_declared: str

    def __init__(self, repo: FeatureStore | str | Path, feature_view: str, feature: str):
        require_names(feature_view=feature_view, feature=feature)
        self._store = repo if isinstance(repo, FeatureStore) else FeatureStore(repo_path=str(repo))
        self._names = feature_view, feature
        self._where = f"{self._kind} {feature!r} of feature view {feature_view!r}"  # in messages
        self._sketch_store = online_store_of(self._store)
        # The declaration of a version stays.
        self._version = any_feature_view(self._store, feature_view) if "@" in feature_view else None
        self._interval_seconds = self._store.config.online_store.refresh.interval_seconds
        self._followed_at = -math.inf  # time.monotonic()
        registry: Any = self._store.registry
        registry.refresh(self._store.project)  # a view may have been applied since
        self._follow()

    def _follow(self) -> None:
        """Open the feature as the registry declares it, once per refresh interval; errors as of the class."""
        now = time.monotonic()
        if now - self._followed_at < self._interval_seconds:
            return
        store, (feature_view, feature) = self._store, self._names
        table = self._version or any_feature_view(store, feature_view, allow_cache=True)
        self._view = self._sketch_store.writer(store.config, table)
        settings = self._view.settings
        known = settings.codecs if settings.semantics == "append" else ()
        codecs = {codec.feature: codec for codec in known if self._is_of_kind(codec)}
        if feature not in codecs:
            raise UnsupportedFeatureError(
                f"feature view {feature_view!r} has no {self._kind} {feature!r}; "
                + (f"its {self._kinds} are {list(codecs)}" if codecs else f"it has no {self._kinds}")
                + f". {self._how_declared}"
            )
        self._codec = codecs[feature]
        self._entities = EntityColumns(feature_view, join_key_columns(table))
        self._followed_at = now

    def _columns(self, entities: Entities) -> tuple[dict[str, pa.Array], int]:
        """Entities as one column per join key, and their number."""
        self._follow()
        columns = self._entities.columns(entities)
        return columns, self._entities.number(columns)

    def _hash(self, entities: Entities) -> NDArray[np.uint64]:
        """The hashes of entities: uint64[n, 2]."""
        self._follow()
        return self._entities.hash(entities)

    @staticmethod
    @abstractmethod
    def _is_of_kind(codec: FeatureCodec) -> bool:
        """Whether a feature of a view to which rows append is of this kind."""

    def clear(self, entities: Entities) -> None:
        """Delete everything of entities: this feature and the view's others.

        Raises
        ------
        RowError, StorageError : as `add`.
        """
        require_writer(self._store.config)
        columns, num_rows = self._columns(entities)
        if num_rows:
            self._view.delete(deletion_rows(columns, datetime.now(UTC)))

    def _remove(self, entities: Entities, values: Any, until: datetime | None) -> None:
        """Remove a value of each entity, up to a time; see `Lists.remove`."""
        columns, num_rows = self._columns(entities)
        if _is_single(values):
            values = [values] * num_rows
        events = times = self._times(until, num_rows)
        if (listing := self._codec.listing) is not None:
            # A sealed item has the time at which its tick began: an end within a tick would hide fewer items
            # before a seal than after it.
            tick = listing.resolution_microseconds
            times = (events // tick + 1) * tick - 1
        self._write(columns, (np.arange(num_rows + 1), self._values(values, num_rows), times), events, REMOVE)

    def _bounds(self, indptr: ArrayLike, num_rows: int) -> NDArray[np.int64]:
        """Where the values of rows begin and end: int64[num_rows + 1]."""
        given = np.asarray(indptr)
        bounds = given.astype(np.int64) if given.dtype.kind in "iu" else np.empty(0, np.int64)
        if bounds.shape != (num_rows + 1,) or bounds[0] or (np.diff(bounds) < 0).any():
            raise RowError(
                f"indptr is not the bounds of {num_rows} entities for the {self._where}: give {num_rows + 1} "
                "whole numbers that ascend from 0"
            )
        return bounds

    def _values(self, values: Any, number: int, codec: FeatureCodec | None = None) -> pa.Array:
        """Convert values to ``number`` elements of the feature's column, or of one that accompanies it."""
        codec = codec or self._codec
        beside = (
            ""
            if codec is self._codec
            else f"{'feature of ids' if codec.ids_of else 'attribute'} {codec.feature!r} of the "
        )
        what, kind = beside + self._where, codec.element_type
        try:
            elements = as_array(values, kind)
            codec.check_texts(elements)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise RowError(f"these are not values of the {what}, which is of {kind}: {error}") from error
        if elements.null_count or len(elements) != number:
            nulls, values_given = counted(elements.null_count, "null"), counted(len(elements), "value")
            given = nulls if elements.null_count else values_given
            raise RowError(f"the {what} takes {counted(number, 'value')} here, not {given}")
        return elements

    def _times(self, timestamps: Any, number: int) -> NDArray[np.int64]:
        """Times in microseconds since 1970: int64[number]."""
        if timestamps is None:
            return np.full(number, _now())
        given = np.full(number, timestamps) if _is_single(timestamps) else timestamps
        try:
            times = _microseconds(given, number)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise RowError(f"these are not timestamps for the {self._where}: {error}") from error
        if (found := impossible_moment(times)) is not None:
            row, wrong = found
            raise RowError(
                f"row {row} for the {self._where} has the time {shown(list(given)[row])}, which is missing "
                f"or {wrong}; nothing was written. Give seconds since 1970, datetimes or timestamps"
            )
        return times

    def _write(
        self,
        columns: dict[str, pa.Array],
        items: tuple[NDArray[np.int64], pa.Array, NDArray[np.int64]],
        events: NDArray[np.int64],
        operation: str | None,
        ids: pa.Array | None = None,
        attributes: Mapping[str, pa.Array] | None = None,
    ) -> None:
        require_writer(self._store.config)
        if len(events):
            beside = attributes or {}
            self._view.write(ListRows(columns, self._codec.feature, *items, events, operation, ids, beside))


class AppendedItems(AppendedFeature):
    """A list or a set: see `AppendedFeature`."""

    def add(
        self,
        entities: Entities,
        values: ArrayLike | pa.Array,
        timestamps: ArrayLike | pa.Array | None = None,
        attributes: Mapping[str, ArrayLike | pa.Array] | None = None,
    ) -> None:
        """Add an item to the list of each entity, or a value to its set.

        Parameters
        ----------
        entities : n entities, as for `SketchReader.hash`; repeat an entity for each of its items.
        values : n values.
        timestamps : n times of the items, or one for all, in one form: Arrow or NumPy timestamps, datetimes,
            or seconds since 1970. None means now. Naive times are in UTC. Of a set they are the times of
            rows.
        attributes : of a list whose items have attributes: for each attribute's feature, n values.

        Raises
        ------
        RowError : the arrays differ in length or have a wrong type; nothing was written.
        StorageError : nothing was written.
        """
        columns, num_rows = self._columns(entities)
        elements, times = self._values(values, num_rows), self._times(timestamps, num_rows)
        beside = self._attributes(attributes, num_rows)
        self._write(columns, (np.arange(num_rows + 1), elements, times), times, None, attributes=beside)

    def replace(
        self,
        entities: Entities,
        indptr: ArrayLike,
        values: ArrayLike | pa.Array,
        timestamps: ArrayLike | pa.Array | None = None,
        attributes: Mapping[str, ArrayLike | pa.Array] | None = None,
    ) -> None:
        """Replace the lists or sets of entities.

        Parameters
        ----------
        entities : n of them.
        indptr : int[n + 1]; entity ``i`` has the items from ``indptr[i]`` to ``indptr[i + 1]``.
        values, timestamps, attributes : of the items, as for `add`.

        Raises
        ------
        RowError, StorageError : as `add`.
        """
        columns, num_rows = self._columns(entities)
        bounds = self._bounds(indptr, num_rows)
        times = self._times(timestamps, int(bounds[-1]))
        elements = self._values(values, int(bounds[-1]))
        # By position the newest item of a row is its last.
        order = np.lexsort((times, np.repeat(np.arange(num_rows), np.diff(bounds))))
        elements, times = elements.take(pa.array(order)), times[order]
        beside = self._attributes(attributes, int(bounds[-1]))
        beside = {name: given.take(pa.array(order)) for name, given in beside.items()}
        events = np.full(num_rows, _now())
        has_items = np.diff(bounds) > 0
        events[has_items] = times[bounds[1:][has_items] - 1]
        self._write(columns, (bounds, elements, times), events, REPLACE, attributes=beside)

    def _attributes(self, attributes: Mapping[str, Any] | None, number: int) -> dict[str, pa.Array]:
        """The attributes of items, ``number`` values each, in the types of their columns."""
        declared = {attribute.feature for attribute in self._codec.attributes}
        given = {} if attributes is None else attributes
        if not isinstance(given, Mapping):
            raise RowError(
                f"the attributes of items of the {self._where} are a {type(given).__name__}; give a mapping "
                f"with the values of each of {sorted(declared)}"
            )
        if given.keys() != declared:
            raise RowError(
                f"items of the {self._where} have the attributes {sorted(declared)}, and {[*given]} were "
                "given; give each item a value of each"
            )
        codecs = [codec for codec in self._view.settings.codecs if codec.feature in declared]
        return {codec.feature: self._values(given[codec.feature], number, codec) for codec in codecs}


class Lists(AppendedItems):
    """One list of a feature view; see `AppendedFeature` for its parameters and errors."""

    _kind = "list"
    _kinds = "lists"
    _how_declared = "The tag sketch.codec: list on an Array makes one"

    @staticmethod
    def _is_of_kind(codec: FeatureCodec) -> bool:
        return codec.is_plain_list

    def get(
        self,
        entities: Entities,
        min_timestamp: datetime | None = None,
        limit: int | None = None,
        *,
        until: Moments | None = None,
        inclusive: bool = False,
        attributes: Sequence[str] = (),
    ) -> RaggedLists:
        """Read the items of each entity, newest first, without expired items and up to the list's limit.

        Parameters
        ----------
        min_timestamp : of the oldest item to return; a naive time is in UTC. None for all.
        limit : the most items to return for each entity.
        until, inclusive, attributes : read the lists as of moments, and attributes of their items; see
            `SketchReader.lists`.

        Raises
        ------
        RowError : the entities do not have the view's join keys, the limit is not a whole number from 1,
            ``min_timestamp`` is no datetime, or a moment has no time zone.
        UnsupportedFeatureError : the items lack an attribute.
        DamagedFileError : a file of the view cannot be read.
        """
        hashes = self._hash(entities)
        question = question_of_lists(
            self._where,
            self._codec,
            self._view.settings.ttl_microseconds,
            len(hashes),
            min_timestamp,
            limit,
            until,
            inclusive,
            attributes,
        )
        asked = (self._codec if attributes else self._codec.feature,)

        def read(state: State) -> RaggedLists:
            rows, (column,) = state.row_reader(asked), state.columns(asked)
            lists, num_found = question.read(state, rows, column, hashes)
            self._view.metrics.count_read(len(hashes), num_found)
            return lists

        return self._view.with_state(read)

    def remove(self, entities: Entities, values: Any, until: datetime | None = None) -> None:
        """Remove a value from lists, with all its items.

        Items that were added before are hidden. The same item may be added again.

        Parameters
        ----------
        entities : n of them.
        values : one value for all entities, or n values.
        until : the time of the newest items to remove, with all of their tick; None for now.

        Raises
        ------
        RowError, StorageError : as `add`.
        """
        self._remove(entities, values, until)


class Sets(AppendedItems):
    """One set of a feature view with the tag ``sketch.rows: append``.

    See `AppendedFeature` for parameters and errors.

    The operation on a value that was committed last counts. So an operation that is written again, or twice
    in a batch, changes nothing.
    """

    _kind = "set"
    _kinds = "sets that grow"
    _how_declared = "The tag sketch.rows: append on a view lets its Arrays and Sets grow"

    @staticmethod
    def _is_of_kind(codec: FeatureCodec) -> bool:
        return codec.name == MEMBERSHIP

    def get(self, entities: Entities) -> pa.LargeListArray:
        """Read the values of each entity: n lists, each with distinct values in any order.

        A list is null if its entity has no row. Sealed sets in a filter may show values that are not theirs,
        as in every read; see `SketchReader` for matrices.

        Raises
        ------
        RowError : the entities do not have the view's join keys.
        DamagedFileError : a file of the view cannot be read.
        """
        hashes, codec = self._hash(entities), self._codec
        answer = self._view.read(hashes, (codec.feature,), self._view.settings.ttl_microseconds)
        return column_of(answer, codec, len(hashes))

    def remove(self, entities: Entities, values: Any) -> None:
        """Remove a value from the set of each entity.

        What was added before is hidden, and the value may be added again. A removal of a value that a set
        does not have changes nothing.

        Parameters
        ----------
        entities : n entities; repeat an entity for each of its values.
        values : one value for all entities, or n values.

        Raises
        ------
        RowError, StorageError : as `add`.
        """
        self._remove(entities, values, None)


class Counted(NamedTuple):
    """The values of n entities, and how often each was counted.

    Parameters
    ----------
    values : n lists of distinct values; null for an entity without a row.
    counts : n lists of int64, with a number for each value.
    """

    values: pa.LargeListArray
    counts: pa.LargeListArray


class Counts(AppendedFeature):
    """One feature of counts in a feature view with the tag ``sketch.rows: append``.

    See `AppendedFeature` for parameters and errors.
    """

    _kind = "feature of counts"
    _kinds = "counts that grow"
    _how_declared = "The tag sketch.rows: append on a view lets its counts grow"

    @staticmethod
    def _is_of_kind(codec: FeatureCodec) -> bool:
        return codec.is_counted

    def increment(
        self,
        entities: Entities,
        values: ArrayLike | pa.Array,
        counts: ArrayLike | None = None,
        event_ids: ArrayLike | pa.Array | None = None,
        timestamps: ArrayLike | pa.Array | None = None,
    ) -> None:
        """Add to the count of a value of each entity.

        Parameters
        ----------
        entities : n entities, as for `SketchReader.hash`; repeat an entity for each of its values.
        values : n values.
        counts : n whole numbers from 0 to `MAX_COUNT`; None to count each value once.
        event_ids : n ids of what is counted, of the type of the feature with the tag ``sketch.ids_of``. What
            an entity counts under an id is counted once, as long as the id is among the entity's newest ones.
            None to count at every call.
        timestamps : of the events, as for `AppendedFeature.add`.

        Raises
        ------
        RowError : the arrays differ in length or have a wrong type; an entity has an id twice, with different
            values or counts. Nothing was written.
        StorageError : nothing was written.
        """
        columns, num_rows = self._columns(entities)
        elements, times = self._values(values, num_rows), self._times(timestamps, num_rows)
        amounts, ids = self._amounts(counts, num_rows), None
        if event_ids is not None:
            ids = self._values(event_ids, num_rows, self._codec_of_ids)
            codecs = self._codec_of_ids, self._codec
            check_ids(serialize_columns(columns), np.arange(num_rows), (ids, elements, amounts), codecs)
        operation = None if ids is None else COUNT
        self._write(columns, (np.arange(num_rows + 1), elements, amounts), times, operation, ids)

    def replace(
        self,
        entities: Entities,
        indptr: ArrayLike,
        values: ArrayLike | pa.Array,
        counts: ArrayLike | None = None,
        timestamps: ArrayLike | pa.Array | None = None,
    ) -> None:
        """Replace all counts of entities. Ids stay known.

        Parameters
        ----------
        entities : n of them.
        indptr : int[n + 1]; entity ``i`` has the values from ``indptr[i]`` to ``indptr[i + 1]``.
        values, counts : as for `increment`.
        timestamps : n times of the rows.

        Raises
        ------
        RowError, StorageError : as `increment`.
        """
        columns, num_rows = self._columns(entities)
        bounds = self._bounds(indptr, num_rows)
        number = int(bounds[-1])
        items = bounds, self._values(values, number), self._amounts(counts, number)
        self._write(columns, items, self._times(timestamps, len(bounds) - 1), REPLACE)

    def get(self, entities: Entities) -> Counted:
        """Read the counts of each entity.

        Sealed counts are as exact as the feature's target says; see `SketchReader` for matrices.

        Raises
        ------
        RowError : the entities do not have the view's join keys.
        DamagedFileError : a file of the view cannot be read.
        """
        hashes, codec = self._hash(entities), self._codec
        answer = self._view.read(hashes, (codec.feature,), self._view.settings.ttl_microseconds)
        values, amounts = column_of(answer, codec, len(hashes)), np.zeros(0, np.int64)
        if (part := answer.features.get(codec.feature)) is not None:
            weights = Csr.placed([(answer.found, part.csr)], len(hashes)).weights
            amounts = amounts if weights is None else weights
        return Counted(values, counts_array(values, amounts))

    def remove(self, entities: Entities, values: Any) -> None:
        """Remove what was counted of a value of each entity. Ids stay known: a retry does not bring it back.

        Parameters
        ----------
        entities : n entities; repeat an entity for each of its values.
        values : one value for all entities, or n values.

        Raises
        ------
        RowError, StorageError : as `increment`.
        """
        self._remove(entities, values, None)

    @property
    def _codec_of_ids(self) -> FeatureCodec:
        codecs: Sequence[FeatureCodec] = self._view.settings.codecs
        return next(codec for codec in codecs if codec.ids_of == self._codec.feature)

    def _amounts(self, counts: ArrayLike | None, number: int) -> NDArray[np.int64]:
        """Counts as int64[number]."""
        if counts is None:
            return np.ones(number, np.int64)
        amounts = np.asarray(counts)
        what = f"the {self._where}"
        if np.ma.is_masked(counts):
            raise RowError(f"{what} takes {number} whole numbers here, and some are masked")
        if amounts.shape != (number,) or (number and amounts.dtype.kind not in "iu"):
            raise RowError(
                f"{what} takes {number} whole numbers here, not {amounts.dtype}{list(amounts.shape)}"
            )
        if (wrong := (amounts < 0) | (amounts > MAX_COUNT)).any():
            row = int(wrong.argmax())
            raise RowError(
                f"row {row} has the count {amounts[row]} for {what}; a count is a whole number from 0 to "
                f"{MAX_COUNT}"
            )
        return amounts.astype(np.int64)


def _now() -> int:
    return int(np.datetime64(datetime.now(UTC).replace(tzinfo=None), "us").astype(np.int64))


def _microseconds(timestamps: Any, number: int) -> NDArray[np.int64]:
    """Convert times to microseconds since 1970: int64[number].

    Raises ValueError, TypeError, OverflowError, pyarrow.ArrowException: these are not times, or not so many.
    """
    if is_unmasked(timestamps) and timestamps.dtype == np.int64 and timestamps.shape == (number,):
        return np.asarray(timestamps.clip(*_ALL_SECONDS) * 1_000_000)
    times = timestamps if isinstance(timestamps, pa.Array) else pa.array(_plain(timestamps))
    if times.null_count or len(times) != number:
        what = f"{times.null_count} nulls" if times.null_count else f"{len(times)}"
        raise ValueError(f"{number} timestamps are needed, not {what}")
    if pa.types.is_floating(times.type):
        seconds = np.nan_to_num(times.to_numpy(zero_copy_only=False), nan=_MAX_SECONDS)
        times = pa.array(np.rint(seconds.clip(*_ALL_SECONDS) * 1e6).astype(np.int64))
    elif pa.types.is_integer(times.type):
        seconds = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
        times = pa.array(seconds.clip(*_ALL_SECONDS) * 1_000_000)
    is_fine = pa.types.is_timestamp(times.type) and times.type.unit == "ns"
    times = times.cast(TIMESTAMP, safe=not is_fine).cast(pa.int64())
    return np.array(times.to_numpy(zero_copy_only=False), np.int64)


def _plain(timestamps: Any) -> Sequence[Any] | NDArray[Any]:
    """Convert timestamps for Arrow.

    Raises TypeError: Arrow would take some for another time, because it takes all for what the first one is.
    """
    if isinstance(timestamps, np.ndarray) and timestamps.dtype != object:
        return timestamps
    plain = [_in_utc(each) for each in timestamps]
    others = (row for row, each in enumerate(plain) if each is not None and not isinstance(each, datetime))
    if (row := next(others, None)) is not None and any(isinstance(each, datetime) for each in plain):
        raise TypeError(f"row {row} is {shown(plain[row])}, and others are datetimes; give all in one form")
    return plain


def _in_utc(moment: Any) -> Any:
    """Dates are their midnights, and naive datetimes are in UTC."""
    if isinstance(moment, datetime):
        if moment != moment:  # pandas' NaT, which is no time
            return None
        return aware(moment)
    return datetime(moment.year, moment.month, moment.day, tzinfo=UTC) if isinstance(moment, date) else moment


def _is_single(given: Any) -> bool:
    """Whether something is one value, and no array of values."""
    return not isinstance(given, list | tuple | pa.Array | pa.ChunkedArray) and np.ndim(given) == 0
