"""Feast's OnlineStore interface: protos in, protos out, translation only."""

import asyncio
import functools
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from feast import Entity, FeatureService, FeatureStore
from feast.feature_view import FeatureView
from feast.infra.infra_object import InfraObject
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.registry.base_registry import BaseRegistry
from feast.infra.supported_async_methods import SupportedAsyncMethods
from feast.online_response import OnlineResponse
from feast.protos.feast.core.Registry_pb2 import Registry as RegistryProto
from feast.protos.feast.serving.ServingService_pb2 import GetOnlineFeaturesResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey as EntityKeyProto
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from feast.repo_config import RepoConfig
from feast.version_utils import parse_version

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter import backing
from feast_sketch_store.adapter.advice import Hint, advice, summary, warn_of_read, warn_of_write
from feast_sketch_store.adapter.backing import BackedView, BackingStore, Steps
from feast_sketch_store.adapter.list_updates import updates
from feast_sketch_store.adapter.open_views import OpenViews, opened, storage_of
from feast_sketch_store.adapter.options import (
    OnlineStoreOptions,
    place_of,
    require_writer,
    settings_of,
    stored_versions,
)
from feast_sketch_store.adapter.plans import Columns, Plan, Plans, columns_of, question_of, refresh
from feast_sketch_store.adapter.precomputed import from_views, no_vectors_needed, view_of_vectors
from feast_sketch_store.adapter.responses import (
    RawRow,
    Row,
    add_names,
    add_rows,
    hash_entity_keys,
    hash_join_keys,
    read_vectors,
    rows_of,
    with_join_keys,
)
from feast_sketch_store.errors import (
    RowError,
    SettingsError,
    SketchStoreError,
    UnsupportedFeatureError,
    summed_up,
)
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import FeastRow, deletions
from feast_sketch_store.settings.resolve import asked_join_keys, ttl_microseconds
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.removal import remove_project, remove_view
from feast_sketch_store.view.state import State
from feast_sketch_store.view.view import View

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_LOCK_TIMEOUT_SECONDS = 60.0


class SketchOnlineStoreConfig(OnlineStoreOptions):
    """The ``online_store`` section of ``feature_store.yaml``. Feast looks for this class in the store's
    module.
    """


class SketchOnlineStore(OnlineStore):
    """Keeps features in Bloom filters and compressed sets inside the serving process, and exact rows on disk.

    Layout of the folder ``path``::

        <project>/<feature view>/fresh/       log of exact rows that were written lately
        <project>/<feature view>/rows/        Delta Lake table of the exact rows before them
        <project>/<feature view>/snapshots/   sealed sketch layers, one mapped file each
        <project>/<feature view>/seal.lock    held by the process that seals

    Safe to use from several threads and, through the folder, from several processes.
    """

    # The versions of a view have folders of their own.
    _versioned_read_supported = True

    def __init__(self) -> None:
        self.lock_timeout_seconds = _LOCK_TIMEOUT_SECONDS  # of seals and rebuilds while another process seals
        self.views = OpenViews()
        self._opened_backing: tuple[tuple[Any, ...], BackingStore | None] | None = None
        self._plans = Plans(self.views)
        no_vectors_needed()

    def _forget_views(self) -> list[View]:
        self._plans = Plans(self.views)
        self._opened_backing = None
        return self.views.pop_all()

    def __getstate__(self) -> dict[str, Any]:
        # Compute engines send a store to their workers, which open the views for themselves.
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        SketchOnlineStore.__init__(self)

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[FeastRow],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Append rows to the view; they are durable, and visible to this process, when this returns.

        Raises
        ------
        RowError : a row's join keys are not the view's, a value is not of its feature's type, or a column
            changed its type.
        GateError : the view with these rows does not pass its gate; they are held back.
        StorageError : the folder cannot be written. Whichever is raised, nothing of the batch was written.
        """
        if data:
            view = self._writable(config, table)
            if view.settings.backed_codecs:
                BackedView(view, table, self.backing(config)).write(data)
            else:
                view.write(data)
        self._tell(config, table, data, progress)

    def backing(self, config: RepoConfig) -> BackingStore | None:
        """The store that keeps backed features, opened once; None if there is none to write to.

        Raises
        ------
        SettingsError : it cannot be opened.
        """
        options = config.online_store
        key = config.project, options.backing_store
        if self._opened_backing is None or self._opened_backing[0] != key:
            self._opened_backing = key, BackingStore.of(config)
        return self._opened_backing[1]

    def _finish(self, config: RepoConfig, steps: Steps[_T]) -> _T:
        return backing.finish(steps, lambda: self._read_backing(config))

    async def _finish_async(self, config: RepoConfig, steps: Steps[_T]) -> _T:
        return await backing.finish_async(steps, lambda: self._read_backing(config))

    def _read_backing(self, config: RepoConfig) -> BackingStore:
        store = self.backing(config)
        assert store is not None, "a store that is only written to is not read"
        return store

    def _tell(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: Sequence[FeastRow],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Warn if rows were written that have expired, and how many."""
        ttl = ttl_microseconds(config.online_store, table)
        warn_of_write(self.storage(config, table).location, table.name, data, ttl)
        if progress:
            progress(len(data))

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[Row]:
        """Read rows; see `OnlineStore.online_read`.

        An absent entity is ``(None, None)``, and so is one whose row has expired. In a row that exists, a
        feature that was not written is left out, a null is an empty ``Value``, and a list or set holds its
        possibly-present elements. The timestamp is that of the row. For a sealed row it may be older, but
        never newer.
        """
        features, hashes = _requested(table, requested_features), hash_entity_keys(entity_keys)
        steps = self._read(config, table, hashes, features, entity_keys.__getitem__)
        rows, _ = self._finish(config, steps)
        return with_join_keys(rows, entity_keys, asked_join_keys(table, features))

    def _read(
        self,
        config: RepoConfig,
        table: FeatureView,
        hashes: bytes,
        features: tuple[str, ...],
        key_of: Callable[[int], EntityKeyProto],
    ) -> Steps[tuple[list[Row], list[RawRow]]]:
        """The rows of entities, with the values that the backing store keeps, and as this store has them.

        ``hashes`` have 16 bytes each; ``key_of`` gives the entity key at a position. The read is counted.

        Raises SettingsError: there is no backing store, and sealed rows need it.
        """
        view, ttl = self.view(config, table), ttl_microseconds(config.online_store, table)
        began, expire_before = time.perf_counter(), expire_before_of(ttl)
        raw, num_found, backed = view.with_state(_raw_rows, features, hashes, expire_before)
        if backed and config.online_store.backing_store is None:
            backing.check_here(view.name, features, backed)
        view.metrics.count_read(len(raw), num_found, time.perf_counter() - began)
        if num_found < len(raw):
            warn_of_read(view.storage.location, table.name, raw.count(False), len(raw), ttl)
        rows = rows_of(raw, features)
        if wanted := backed.intersection(features):
            codecs = [codec for codec in view.settings.codecs if codec.feature in wanted]
            yield from backing.fill(rows, raw, hashes, features, table, codecs, key_of, view.metrics)
        return rows, raw

    def get_online_features(
        self,
        config: RepoConfig,
        features: list[str] | FeatureService,
        entity_rows: Any,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool = False,
        include_feature_view_version_metadata: bool = False,
    ) -> OnlineResponse:
        """See `OnlineStore.get_online_features`. Requests that ask for the same share a plan.

        Feast's own method answers all unusual requests, and raises their errors. A service with
        ``precompute_online`` is answered from its views.
        """
        features = from_views(features)
        options = full_feature_names, include_feature_view_version_metadata
        asked = self._planned(config, features, entity_rows, registry, project, *options)
        answer = None if asked is None else asked[0].respond(asked[1])
        if answer is not None:
            return answer
        return super().get_online_features(config, features, entity_rows, registry, project, *options)

    async def get_online_features_async(
        self,
        config: RepoConfig,
        features: list[str] | FeatureService,
        entity_rows: Any,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool = False,
        include_feature_view_version_metadata: bool = False,
    ) -> OnlineResponse:
        """The same on the event loop; a thread reads the disk."""
        features = from_views(features)
        options = full_feature_names, include_feature_view_version_metadata
        asked = self._planned(config, features, entity_rows, registry, project, *options)
        if asked is not None:
            plan, columns = asked
            await refresh(of_view.view for of_view in plan.views)
            if (answer := plan.respond(columns)) is not None:
                return answer
        return await super().get_online_features_async(
            config, features, entity_rows, registry, project, *options
        )

    def _planned(
        self,
        config: RepoConfig,
        features: list[str] | FeatureService,
        entity_rows: Any,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool,
        with_versions: bool,
    ) -> tuple[Plan, Columns] | None:
        """The plan of a request, and its entities; None if Feast's own method must answer."""
        if self.views.are_of_worker or feast_parts.reads_changed():
            return None
        columns = columns_of(entity_rows)
        if columns is None:
            return None
        question = question_of(features, columns, full_feature_names, with_versions)
        if question is None:
            return None
        try:
            plan = self._plans.of(question, lambda: features, registry, project, config)
        except Exception as error:  # Feast's own method reports it
            _logger.debug("Feast's own method answers: %r", error)
            return None
        values = list(columns.values())
        return None if plan is None or not plan.takes(values) else (plan, values)

    def _read_features_per_fv(self, *arguments: Any, **options: Any) -> None:
        """Reads for `OnlineStore.get_online_features`, without a Python object per row and value.

        Gives what Feast's own method gives; a test compares both. Feast's method handles requests with
        unusual entities, and raises their errors.
        """
        if feast_parts.reads_changed():
            super()._read_features_per_fv(*arguments, **options)
        else:
            self._finish(arguments[0], self._vectors(*arguments, **options))

    def _vectors(
        self,
        config: RepoConfig,
        grouped_refs: list[tuple[FeatureView, list[str]]],
        join_key_values: dict[str, list[ValueProto]],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: GetOnlineFeaturesResponse,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> Steps[None]:
        """See `_read_features_per_fv`. Makes one lookup in the backing store per view that needs it."""
        hashed: dict[tuple[tuple[str, int], ...], bytes | None] = {}  # by columns of join keys
        for table, features in grouped_refs:
            join_keys = feast_parts.JOIN_KEY_VALUES(table, entity_name_to_join_key_map, join_key_values)
            # Feast refuses a request that lacks a join key of any view if one of the views has no join keys.
            is_usual = all(join_keys.values()) and len(join_keys) == len(table.entities)
            entity_hashes: bytes | None = None
            if is_usual and not asked_join_keys(table, features):
                columns = tuple((name, id(values)) for name, values in join_keys.items())
                if columns not in hashed:
                    hashed[columns] = hash_join_keys(join_keys)
                entity_hashes = hashed[columns]
            if entity_hashes is None:
                super()._read_features_per_fv(
                    config,
                    [(table, features)],
                    join_key_values,
                    entity_name_to_join_key_map,
                    online_features_response,
                    full_feature_names,
                    include_feature_view_version_metadata,
                )
                continue
            num_rows = len(entity_hashes) // 16
            view, ttl = self.view(config, table), ttl_microseconds(config.online_store, table)
            vectors = read_vectors(view, table.name, tuple(features), entity_hashes, ttl)
            if vectors is None:
                key_of = functools.partial(_entity_key, join_keys)
                rows, raw = yield from self._read(config, table, entity_hashes, tuple(features), key_of)
                num_present = add_rows(online_features_response, features, rows, raw)
            else:
                message, num_present = vectors
                online_features_response.MergeFromString(message)
            options = full_feature_names, include_feature_view_version_metadata
            add_names(online_features_response, table, features, *options)
            feast_parts.COUNT_STATUSES(table.name, num_present, len(features) * num_rows - num_present)

    async def _read_features_per_fv_async(self, *arguments: Any, **options: Any) -> None:
        """The same on the event loop, or in a thread if a poll of the disk is due.

        Except for large batches, a read of memory takes less time than a hop to a thread and back. In a
        thread it would hold the interpreter just as long.
        """
        if feast_parts.reads_changed():
            await super()._read_features_per_fv_async(*arguments, **options)
            return
        config, grouped_refs = arguments[:2]
        views = [self.view(config, table) for table, _ in grouped_refs]
        if config.online_store.backing_store is not None:
            await refresh(views)
            await self._finish_async(config, self._vectors(*arguments, **options))
        elif all(view.is_fresh() for view in views):
            self._read_features_per_fv(*arguments, **options)
        else:
            await asyncio.to_thread(self._read_features_per_fv, *arguments, **options)

    @property
    def async_supported(self) -> SupportedAsyncMethods:
        """Reads and writes have async versions, which use a thread to read the disk."""
        return SupportedAsyncMethods(read=True, write=True)

    async def online_write_batch_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[FeastRow],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """`online_write_batch` without waiting for the disk. Writes of several tasks share a commit."""
        if data:
            view = self._writable(config, table)
            if view.settings.backed_codecs:
                write = BackedView(view, table, self.backing(config)).write
                await asyncio.get_running_loop().run_in_executor(backing.threads(), write, data)
            else:
                await view.write_async(data)
        self._tell(config, table, data, progress)

    def update_online_store(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[FeastRow],
        update_expressions: dict[str, str],
        progress: Callable[[int], Any] | None = None,
    ) -> None:
        """Add to lists, or replace them; see `list_updates.updates`.

        Raises
        ------
        UnsupportedFeatureError, RowError, StorageError : nothing was written.
        """
        asyncio.run(self.update_online_store_async(config, table, data, update_expressions, progress))

    async def update_online_store_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[FeastRow],
        update_expressions: dict[str, str],
        progress: Callable[[int], Any] | None = None,
    ) -> None:
        """What `FeatureStore.update_online_store` calls; a batch is written as one."""
        if data:
            view = self._writable(config, table)
            await view.write_async(updates(view.settings, data, update_expressions))
        self._tell(config, table, data, progress)

    async def online_read_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[Row]:
        """`online_read` on the event loop, or in a thread if a poll of the disk is due."""
        view, features = self.view(config, table), _requested(table, requested_features)
        if config.online_store.backing_store is not None:
            await refresh([view])
            hashes, key_of = hash_entity_keys(entity_keys), entity_keys.__getitem__
            steps = self._read(config, table, hashes, features, key_of)
            rows, _ = await self._finish_async(config, steps)
            return with_join_keys(rows, entity_keys, asked_join_keys(table, features))
        if view.is_fresh():
            return self.online_read(config, table, entity_keys, requested_features)
        return await asyncio.to_thread(self.online_read, config, table, entity_keys, requested_features)

    async def initialize(self, config: RepoConfig) -> None:
        """Open all views of the project, read their snapshots into memory, and plan a request to each.

        Each worker of Feast's server awaits this before it answers. A view that cannot be opened is logged
        and left to its first read.
        """
        import anyio.to_thread  # of Feast's server: its first use loads modules, now and not in a request

        await asyncio.to_thread(self._initialize, config)  # the thread that polls the disk in requests
        # Over all of Feast's objects, for 0.1 s: else one of the first requests would wait.
        await anyio.to_thread.run_sync(gc.collect)

    def _initialize(self, config: RepoConfig) -> None:
        registered = FeatureStore(repo_path=str(config.repo_path or "."), config=config)
        self._plans = Plans(self.views, config)  # the first request has a plan, too
        for table in stored_views(registered):
            try:
                for part in self.view(config, table).shards.values():
                    part.warm_up()
                if not feast_parts.reads_changed():
                    self._plans.rehearse(table, registered.registry, config)
            except Exception as error:  # its first request reports it; the other views are served
                _logger.warning("feature view %r is not ready: %s", table.name, error)

    async def close(self) -> None:
        """Close all views, with their memory, mapped files and threads. A later call opens them again."""
        opened_backing = self._opened_backing
        for view in self._forget_views():
            await asyncio.to_thread(view.close)
        if opened_backing is not None and opened_backing[1] is not None:
            await opened_backing[1].close()

    def write_precomputed_vector(
        self,
        config: RepoConfig,
        feature_service_name: str,
        project: str,
        entity_key: EntityKeyProto,
        vector_bytes: bytes,
    ) -> None:
        """Keep the precomputed vector of an entity exactly; see `OnlineStore.write_precomputed_vector`."""
        row: FeastRow = (entity_key, {"vector": ValueProto(bytes_val=vector_bytes)}, datetime.now(UTC), None)
        self.online_write_batch(config, view_of_vectors(feature_service_name), [row], None)

    def read_precomputed_vectors(
        self, config: RepoConfig, feature_service_name: str, project: str, entity_keys: list[EntityKeyProto]
    ) -> list[bytes | None]:
        """The precomputed vectors of entities; None for an entity without one."""
        rows = self.online_read(config, view_of_vectors(feature_service_name), entity_keys, ["vector"])
        return [values["vector"].bytes_val if values else None for _, values in rows]

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Check the settings of the views to keep, make their folders, and remove those to delete.

        Raises
        ------
        UnsupportedFeatureError, SettingsError : views cannot be kept here; all are named, and nothing was
            changed.
        """
        require_writer(config)
        hints: list[Hint] = []
        problems: list[SketchStoreError] = []
        backed_views: list[tuple[FeatureView, list[FeatureCodec]]] = []
        views: list[View] = []
        for table in tables_to_keep:
            try:
                view = opened(config, table)
            except (UnsupportedFeatureError, SettingsError) as error:
                problems.append(error)
                continue
            views.append(view)
            if found := [*view.settings.file_problems()]:
                problems += found
                continue
            backed_views.append((table, view.settings.backed_codecs))
            view.refresh()
            hints += advice(table, view.settings, view.state.sealed)
        if problems:
            raise summed_up(problems)
        backed = [(table, [codec.feature for codec in codecs]) for table, codecs in backed_views if codecs]
        dropped = [(table, stored_versions(config, table)) for table in tables_to_delete]
        if (store := self.backing(config)) is not None:
            store.update([each for each in dropped if _has_backed(config, each[0])], backed)
        for view in views:
            view.prepare(is_applied=True)
        if hints:
            _logger.warning("%s", summary(hints))
        for _, versions in dropped:
            for storage in versions.values():
                if (known := self.views.pop(storage.location)) is not None:
                    known.end_seals()  # they would write into what is removed
                remove_view(storage)

    def plan(self, config: RepoConfig, desired_registry_proto: RegistryProto) -> list[InfraObject]:
        """Returns an empty plan: the store has no infrastructure outside its folder."""
        return []

    def teardown(self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]) -> None:
        """Remove everything of the project, because Feast does not name stream views here."""
        for view in self._forget_views():
            view.end_seals()
        require_writer(config)
        versions = [(table, stored_versions(config, table)) for table in tables]
        remove_project(place_of(config), config.project)
        backed = config.online_store.backing_store
        if backed is not None and backed.owned and (store := self.backing(config)) is not None:
            store.teardown(versions)

    def delete(self, config: RepoConfig, table: FeatureView, entity_keys: list[EntityKeyProto]) -> None:
        """Delete all rows of some entities. Rows that are written later count again.

        Durable, and visible to this process, when it returns; other processes see it within their refresh
        interval. `seal` and then `vacuum` remove the rows from the disk.

        Raises
        ------
        RowError : a key is not of the view's join keys; nothing was deleted.
        StorageError : nothing was deleted, or everything except what the backing store keeps of the entities.
        """
        if entity_keys:
            view = self._writable(config, table)
            try:
                rows = deletions(entity_keys, datetime.now(UTC), view.settings.join_keys)
            except RowError as error:
                raise RowError(f"feature view {table.name!r}: {error}") from error
            if view.settings.backed_codecs:
                BackedView(view, table, self.backing(config)).delete(entity_keys, rows)
            else:
                view.delete(rows)

    def seal(self, config: RepoConfig, table: FeatureView) -> bool:
        """Seal a view now; see `View.seal`."""
        return self._writable(config, table).seal(timeout_seconds=self.lock_timeout_seconds)

    def storage(self, config: RepoConfig, table: FeatureView) -> Storage:
        """The storage of a view, which may be empty."""
        return storage_of(config, table)

    def forget(self, config: RepoConfig, table: FeatureView) -> None:
        """Close a view, so that the next call opens it again."""
        if (known := self.views.pop(self.storage(config, table).location)) is not None:
            known.close()

    def view(self, config: RepoConfig, table: FeatureView) -> View:
        """The view's `View`; see `OpenViews.get`."""
        return self.views.get(config, table)

    def writer(self, config: RepoConfig, table: FeatureView) -> View:
        """The same with the current settings."""
        view = self.views.current(config, table)
        view.lock_timeout_seconds = self.lock_timeout_seconds
        return view

    def _writable(self, config: RepoConfig, table: FeatureView) -> View:
        """`writer`, unless the store is a replica."""
        require_writer(config)
        return self.writer(config, table)


def _requested(table: FeatureView, features: Sequence[str] | None) -> tuple[str, ...]:
    return tuple([feature.name for feature in table.features] if features is None else features)


def _raw_rows(
    state: State, features: tuple[str, ...], hashes: bytes, expire_before: int
) -> tuple[list[RawRow], int, frozenset[str]]:
    return *state.row_reader(features).rows(hashes, expire_before), state.backed


def _has_backed(config: RepoConfig, table: FeatureView) -> bool:
    """Whether a view that is being dropped had backed features, as far as its definition shows."""
    try:
        settings = settings_of(config, table)
    except SketchStoreError:
        return False
    return bool(settings.backed_codecs)


def open_view(store: FeatureStore, feature_view: str) -> View:
    """Open the view that stores a feature view of a Feast repository, for sizes, seals and reads without
    protos.

    Raises
    ------
    SketchStoreError : the repository's online store is of another type.
    feast.errors.FeatureViewNotFoundException : there is no such view (from Feast).
    """
    return online_store_of(store).view(store.config, any_feature_view(store, feature_view))


def online_store_of(store: FeatureStore) -> SketchOnlineStore:
    """The online store of a Feast repository. Raises SketchStoreError: it is of another type."""
    online_store = store.provider.online_store
    if not isinstance(online_store, SketchOnlineStore):
        raise SketchStoreError(
            f"project {store.project!r} has an online store of type {type(online_store).__name__}; "
            "set `online_store: {type: sketch}` in feature_store.yaml"
        )
    return online_store


def stored_views(store: FeatureStore) -> list[Any]:
    """The feature views of every kind whose rows an online store keeps: of on-demand views, those that are
    computed on write.
    """
    kept = ("online", "write_to_online_store")
    return [
        view for view in store.list_all_feature_views() if any(getattr(view, name, False) for name in kept)
    ]


def any_feature_view(store: FeatureStore, name: str, allow_cache: bool = False) -> Any:
    """A feature view of any kind by its name, which may end in a version, as in ``history@v2``; with
    ``allow_cache`` as of the registry's last refresh.

    Raises
    ------
    UnsupportedFeatureError : a version is named, and views have none, or it is no version.
    feast.errors.FeatureViewNotFoundException, feast.errors.FeatureViewVersionNotFound : there is no such
        feature view, or no such version (from Feast).
    """
    registry: Any = store.registry
    view, at, version = name.partition("@")
    if not at:
        return registry.get_any_feature_view(name, store.project, allow_cache)
    if not store.config.registry.enable_online_feature_view_versioning:
        raise UnsupportedFeatureError(
            f"feature view {view!r} has no versions: set enable_online_feature_view_versioning: true under "
            "registry in feature_store.yaml, or leave out @" + version
        )
    try:
        is_latest, number = parse_version(version)
    except ValueError as error:
        raise UnsupportedFeatureError(f"feature view {view!r}: {error}") from error
    if is_latest:
        raise UnsupportedFeatureError(f"feature view {view!r}: leave out @{version} for the version in use")
    return registry.get_feature_view_by_version(view, store.project, number)


def _entity_key(join_keys: Mapping[str, Sequence[ValueProto]], row: int) -> EntityKeyProto:
    """The key of an entity whose join keys are given as columns."""
    return EntityKeyProto(join_keys=list(join_keys), entity_values=[v[row] for v in join_keys.values()])
