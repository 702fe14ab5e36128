"""Backed features: another online store of Feast keeps their values, for the entities that the sketch has.

    write   rows that would be read  -->  the other store  -->  the row log
    read    the sketch  -->  entities that have a value  -->  one batch of the other store

The row log has the values, too: unsealed rows answer from it, and the other store can be filled again.
"""

import asyncio
import copy
import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from shlex import quote
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from feast.errors import FeastModuleImportError, FeastOnlineStoreInvalidName
from feast.feature_view import FeatureView
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig, get_online_config_from_type
from numpy.typing import NDArray
from pydantic import ValidationError

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.options import version_of
from feast_sketch_store.adapter.responses import EPOCH, RawRow, Row
from feast_sketch_store.errors import SettingsError, StorageError, reason_of
from feast_sketch_store.kernel import FOUND
from feast_sketch_store.metrics import BACKING_FAILURES, BACKING_LOOKUPS, BACKING_LOST, ViewMetrics
from feast_sketch_store.rows.codecs import VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, FeastRow, RowKeys, row_keys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.limits import aware
from feast_sketch_store.settings.table import FAIL, MISSING_FEATURES
from feast_sketch_store.view.shard_map import shards_of
from feast_sketch_store.view.view import View

_logger = logging.getLogger(__name__)

# In place of a store's type: features are backed, but writes skip the store; the rebuild fills it at its end.
NOWHERE = "nowhere"

# Of two writes of an entity, the one that wins must also reach the other store last.
_locks: dict[str, threading.Lock] = {}
os.register_at_fork(after_in_child=_locks.clear)

_T = TypeVar("_T")

# Yields lookups, is sent their rows, and returns the result.
Steps = Generator["Lookup", "Sequence[Row] | None", _T]


@functools.cache
def threads() -> ThreadPoolExecutor:
    """For what waits for the other store beside the event loop. The loop's own threads poll the disk, for
    reads of all views: they must not wait for it.
    """
    return ThreadPoolExecutor(thread_name_prefix="feast_sketch_store backing")


os.register_at_fork(after_in_child=threads.cache_clear)


class Lookup(NamedTuple):
    """Rows to read from the other store, of entities that have a value of one of the features."""

    table: FeatureView
    entity_keys: list[EntityKey]
    features: list[str]
    metrics: ViewMetrics


def _whole(lookup: Lookup, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of an answer. Raises ValueError: it does not have one for each entity."""
    if len(rows) != len(lookup.entity_keys):
        raise ValueError(f"it gave {len(rows)} rows for {len(lookup.entity_keys)} entities")
    return rows


class BackingStore:
    """Another online store of Feast, named by that of a repository, which keeps the backed features of views.

    Raises SettingsError: there is no such store, its options are wrong, or its client library is missing.
    """

    def __init__(self, config: RepoConfig):
        self._given: Mapping[str, Any] = config.online_store.backing_store.store
        self.kind = str(self._given.get("type"))
        self._fails = config.online_store.backing_store.on_error == FAIL
        try:
            kind = get_online_config_from_type(self.kind)
            # Rows that lose are sorted out before. Redis would refuse a row that wins only by its created
            # timestamp or its position.
            own = {"skip_dedup": True} if "skip_dedup" in kind.model_fields else {}
            options = kind(**{**own, **self._given})
            self._store: OnlineStore = get_online_store_from_config(options)
        except (FeastModuleImportError, FeastOnlineStoreInvalidName) as error:
            raise SettingsError(f"project {config.project!r}: backing_store: {reason_of(error)}") from error
        except ValidationError as error:
            # Without the given values: credentials are among them.
            wrong = error.errors(include_input=False, include_url=False, include_context=False)
            reasons = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong)
            raise SettingsError(
                f"project {config.project!r}: the backing_store of type {self.kind!r} has wrong options: "
                f"{reasons}"
            ) from None
        except Exception as error:  # Feast raises many types for wrong options or a missing client library
            raise SettingsError(
                f"project {config.project!r}: the backing_store of type {self.kind!r} cannot be opened: "
                f"{error}"
            ) from error
        self._config = feast_parts.with_online_store(config, options, dict(self._given))

    @classmethod
    def of(cls, config: RepoConfig) -> "BackingStore | None":
        """The store that a repository names; None if it names none or rows are not written to it.

        Raises SettingsError: it cannot be opened.
        """
        given = config.online_store.backing_store
        return None if given is None or given.store["type"] == NOWHERE else cls(config)

    def write(
        self, table: FeatureView, rows: Sequence[FeastRow], features: Sequence[str], otherwise: str
    ) -> None:
        """Write features of rows; a feature that a row lacks is written as empty.

        A row replaces all of the row before it. Without the empty values, stores that merge rows would keep
        old ones.

        Raises StorageError: the store did not take the rows. The error says ``otherwise``: what of them is in
        the view.
        """
        absent = Value()
        complete = [
            (entity_key, {name: values.get(name, absent) for name in features}, event, created)
            for entity_key, values, event, created in rows
        ]
        part = self._with_features(table, features)
        with self._telling(f"feature view {table.name!r}", f"did not take {len(rows)} rows, {otherwise}"):
            self._store.online_write_batch(self._config, part, complete, None)

    def fetch(self, lookup: Lookup) -> Sequence[Row]:
        """The rows that are wanted. Raises StorageError: the store cannot be reached."""
        question = self._question(lookup)
        with self._counting(lookup):
            return _whole(lookup, self._store.online_read(*question))

    def read(self, lookup: Lookup) -> Sequence[Row] | None:
        """Read the rows of a lookup; None if the store cannot be reached and reads go on without it.

        Raises StorageError: it cannot be reached, and ``on_error`` of ``backing_store`` is ``fail``.
        """
        try:
            return self.fetch(lookup)
        except StorageError as error:
            self._without(error)
            return None

    async def read_async(self, lookup: Lookup) -> Sequence[Row] | None:
        """`read` on the event loop where the store can, or else in a thread."""
        if not self._store.async_supported.read:
            return await asyncio.get_running_loop().run_in_executor(threads(), self.read, lookup)
        question = self._question(lookup)
        try:
            with self._counting(lookup):
                return _whole(lookup, await self._store.online_read_async(*question))
        except StorageError as error:
            self._without(error)
            return None

    def _question(self, lookup: Lookup) -> tuple[RepoConfig, FeatureView, list[EntityKey], list[str]]:
        table = self._with_features(lookup.table, lookup.features)
        return self._config, table, lookup.entity_keys, lookup.features

    @functools.cached_property
    def _keeps_versions(self) -> bool:
        return feast_parts.keeps_versions(self._store)

    def _with_features(self, table: FeatureView, features: Sequence[str]) -> FeatureView:
        """A view with some of its features.

        Raises SettingsError: it is a later version, which would share values with the first one.
        """
        if version_of(self._config, table) and not self._keeps_versions:
            raise SettingsError(
                f"feature view {table.name!r}: the backing store ({self.kind}) does not keep the versions of "
                "a view apart, so a view with versions cannot have features there; keep "
                f"{', '.join(features)} with the codec 'exact', or in a view of their own"
            )
        chosen = _version(table, getattr(table, "current_version_number", None))
        chosen.features = [field for field in table.features if field.name in features]
        return chosen

    @contextmanager
    def _counting(self, lookup: Lookup) -> Iterator[None]:
        """Raise a failed read as a `StorageError`, and count it."""
        try:
            with self._telling(f"feature view {lookup.table.name!r}", "could not be read"):
                yield
        except StorageError:
            lookup.metrics.record(BACKING_FAILURES)
            raise

    @contextmanager
    def _telling(self, where: str, failure: str) -> Iterator[None]:
        """Raise the store's errors as `StorageError`; each store has types of its own."""
        try:
            yield
        except Exception as error:
            raise StorageError(
                f"{where}: the backing store ({self.kind}) {failure}: {type(error).__name__}: {error}"
            ) from error

    def _without(self, error: StorageError) -> None:
        """Log an error of the store and go on, or raise it, as ``on_error`` says."""
        if self._fails:
            raise StorageError(
                f"{error}. Reads go on without its features if you set `on_error: {MISSING_FEATURES}` of "
                "backing_store"
            ) from error.__cause__
        _logger.warning("%s; its features are missing from the answer", error)

    def update(
        self,
        to_delete: Sequence[tuple[FeatureView, Iterable[int]]],
        to_keep: Sequence[tuple[FeatureView, Sequence[str]]],
    ) -> None:
        """Create what the store needs for some views, and remove what it has of versions of others. All have
        backed features.

        Raises
        ------
        SettingsError : the store does not keep versions apart.
        StorageError : the store did not do it.
        """
        if to_delete or to_keep:
            kept = [self._with_features(table, features) for table, features in to_keep]
            with self._telling(f"project {self._config.project!r}", "could not prepare its views"):
                self._store.update(self._config, _each_version(to_delete), kept, [], [], True)

    def teardown(self, tables: Sequence[tuple[FeatureView, Iterable[int]]]) -> None:
        """Remove views of the project, with these versions, from the store.

        Raises StorageError: the store did not do it.
        """
        with self._telling(f"project {self._config.project!r}", "could not be torn down"):
            self._store.teardown(self._config, _each_version(tables), [])

    async def close(self) -> None:
        """Close connections."""
        await self._store.close()


class BackedView(NamedTuple):
    """A view with backed features, and the store that keeps them; None if nothing is written to it."""

    view: View
    table: FeatureView
    store: BackingStore | None

    @property
    def features(self) -> list[str]:
        """The names of the backed features."""
        return [codec.feature for codec in self.view.settings.backed_codecs]

    @property
    def _lock(self) -> threading.Lock:
        return _locks.setdefault(self.view.storage.location, threading.Lock())

    def write(self, data: Sequence[FeastRow]) -> None:
        """Write rows to the other store, then to the row log.

        Raises
        ------
        RowError : a row cannot be kept; nothing was written.
        StorageError : nothing was written to the row log.
        """
        with self._lock:
            rows = self.view.to_table([data])
            self._send(rows, data)
            self.view.write(rows)

    def put(self, rows: pa.Table, data: Sequence[FeastRow]) -> int:
        """Write rows of the row log, with ``data`` in the form of Feast, to the other store alone, except
        those that were replaced or deleted since. Returns how many were written.

        Raises StorageError: the other store did not take them.
        """
        with self._lock:
            return self._send(rows, data, are_known=True)

    def _send(self, rows: pa.Table, data: Sequence[FeastRow], are_known: bool = False) -> int:
        if self.store is None:
            return 0
        kept = [data[number] for number in winning(self.view, rows, are_known).tolist()]
        if kept:
            refill = f"run `feast-sketch refill {quote(self.view.name)}` when it takes them again"
            otherwise = f"which the view has; {refill}" if are_known else "so they were not written"
            self.store.write(self.table, kept, self.features, otherwise)
        return len(kept)

    def delete(self, entity_keys: Sequence[EntityKey], deletions: pa.Table) -> None:
        """Delete entities, by rows of the row log. Then empty their backed features, because Feast's stores
        cannot delete rows.

        Raises StorageError: the rows are not deleted, or the other store may still have their values.
        """
        with self._lock:
            self.view.delete(deletions)
            if self.store is not None:
                now = datetime.now(UTC)
                emptied: list[FeastRow] = [(key, {}, now, None) for key in entity_keys]
                otherwise = (
                    "which empty what the view has deleted; delete the entities again when it takes them"
                )
                self.store.write(self.table, emptied, self.features, otherwise)


def finish(steps: Steps[_T], store: Callable[[], BackingStore]) -> _T:
    """Run steps to their end, answering each lookup from the other store."""
    try:
        lookup = next(steps)
        while True:
            lookup = steps.send(store().read(lookup))
    except StopIteration as stop:
        result: _T = stop.value
        return result


async def finish_async(steps: Steps[_T], store: Callable[[], BackingStore]) -> _T:
    """The same on the event loop."""
    try:
        lookup = next(steps)
        while True:
            lookup = steps.send(await store().read_async(lookup))
    except StopIteration as stop:
        result: _T = stop.value
        return result


def winning(view: View, table: pa.Table, are_known: bool = False) -> NDArray[np.int64]:
    """Positions of the rows of a log table that reads would show if they were written now, ascending.

    Rows that lose by their timestamps must not reach the other store, which may not compare timestamps. With
    ``are_known`` they were read from the row log, so an entity that has no row now was deleted since.
    """
    winners, keys = row_keys(table).newest()
    statuses, events = view.with_state(
        lambda state: state.find(keys.entity_hashes, NO_TIMESTAMP), of_all_shards=True
    )
    events[statuses != FOUND] = np.iinfo(np.int64).max if are_known else NO_TIMESTAMP
    wins, ties = keys.event_timestamps > events, np.flatnonzero(keys.event_timestamps == events)
    if len(ties):  # answers do not say when rows were created
        numbers = np.unique(shards_of(keys.entity_hashes[ties], view.shard_map.num_shards))
        shards = [view.shards[number] for number in numbers.tolist()]
        for shard in shards:
            shard.refresh()  # files of a snapshot may be gone since the last poll
        known = RowKeys.concatenate([shard.state.row_keys() for shard in shards])
        found, places = find_sorted(known.entity_hashes, keys.entity_hashes[ties])
        wins[ties] = True
        wins[ties[found]] = ~keys.older_than(ties[found], known, places)
    return np.sort(winners[wins])


def _version(table: FeatureView, version: int | None) -> FeatureView:
    """A copy of a view as one of its versions, which Feast's copies lack."""
    copied = copy.copy(table)
    copied.current_version_number = version
    return copied


def _each_version(tables: Sequence[tuple[FeatureView, Iterable[int]]]) -> list[FeatureView]:
    return [_version(table, version) for table, versions in tables for version in versions]


def check_here(view: str, features: Sequence[str], backed: Collection[str]) -> None:
    """Raise SettingsError: sealed rows need a backing store for some of the features, and there is none."""
    if names := ", ".join(feature for feature in features if feature in backed):
        raise SettingsError(
            f"feature view {view!r}: the sealed values of {names} are in a backing store, and "
            f"feature_store.yaml names none; name it again, or run `feast-sketch seal {quote(view)}`, which "
            "takes the values from the row log"
        )


def fill(
    rows: list[Row],
    raw: Sequence[RawRow],
    entity_hashes: bytes,
    features: Sequence[str],
    table: FeatureView,
    codecs: Sequence[FeatureCodec],
    key_of: Callable[[int], EntityKey],
    metrics: ViewMetrics,
) -> Steps[None]:
    """Add the values of backed features to rows. They are read in one lookup, if any are needed.

    A value that the other store lacks is missing from its row. The older of both event timestamps counts.

    Parameters
    ----------
    raw : the same rows, of the entities with these hashes, 16 bytes each.
    codecs : of those of the features of which sealed rows have only states.
    key_of : the entity key at a position of the batch.
    """
    lacking = {}
    for position, row in enumerate(raw):
        if not row:
            continue
        names = [codec.feature for codec in codecs if _lacks(row, rows[position], features, codec)]
        if names:
            lacking[position] = names
    hashes = {position: entity_hashes[16 * position : 16 * position + 16] for position in lacking}
    asked = {entity_hash: position for position, entity_hash in hashes.items()}
    if not asked:
        return
    metrics.record(BACKING_LOOKUPS, len(asked))
    keys = [key_of(position) for position in asked.values()]
    found = yield Lookup(table, keys, [codec.feature for codec in codecs], metrics)
    theirs = {} if found is None else dict(zip(asked, found, strict=True))
    for position, names in lacking.items():
        of_other = theirs.get(hashes[position], (None, None))
        num_lost, rows[position] = _filled(rows[position], names, of_other)
        if num_lost and theirs:
            metrics.record(BACKING_LOST, num_lost)


def _lacks(raw: RawRow, row: Row, features: Sequence[str], codec: FeatureCodec) -> bool:
    """Whether a row has a value of a feature, and not here."""
    if not raw or raw[1][features.index(codec.feature)] != VALUE:
        return False
    assert row[1] is not None
    value = row[1][codec.feature]
    is_empty = value.WhichOneof("val") is None
    return is_empty or (codec.is_collection and not getattr(value, codec.value_field).val)


def _filled(row: Row, names: Sequence[str], theirs: Row) -> tuple[int, Row]:
    """A row with some values of the other store's row, and the number of those that this lacks."""
    moment, values = row
    assert moment is not None
    assert values is not None
    event, other = theirs
    num_lost = 0
    for name in names:
        value = (other or {}).get(name)
        if value is None or value.WhichOneof("val") is None:
            num_lost += 1
            del values[name]
        else:
            values[name] = value
            moment = min(moment, _moment(event, moment))
    return num_lost, (moment, values)


def _moment(moment: datetime | None, otherwise: datetime) -> datetime:
    """A time in UTC. Stores without timestamps give None, or 1970 itself."""
    if moment is None:
        return otherwise
    return otherwise if aware(moment) == EPOCH else aware(moment)
