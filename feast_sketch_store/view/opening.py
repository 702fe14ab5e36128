"""Opens views, with or without shards."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import FRESH_FOLDER, ROWS_FOLDER
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.settings import ViewSettings
from feast_sketch_store.view.shard_map import ShardMap, other_number
from feast_sketch_store.view.sharded import ShardedView
from feast_sketch_store.view.sharded_live import ShardedLiveView, checked_served
from feast_sketch_store.view.view import View

_NOTE = ".shards"  # ends the name of a file on this host

AnyView: TypeAlias = View | ShardedView
AnyLiveView: TypeAlias = LiveView | ShardedLiveView[LiveView]


def open_view(
    storage: Storage,
    settings: ViewSettings,
    policy: SealPolicy | None = None,
    refresh_interval_seconds: float = 1.0,
    max_staleness_seconds: float | None = None,
    is_replica: bool = False,
    served: Sequence[int] | None = None,
) -> AnyView:
    """Open a view with as many shards as its settings say; parameters are those of `ShardedView`.

    Raises
    ------
    ShardError : the view was created with another number of shards.
    SettingsError : there is no such shard to be served.
    """
    return _opened(
        storage,
        settings,
        _map_of(storage, settings),
        (policy, refresh_interval_seconds, max_staleness_seconds, is_replica),
        served,
    )


def open_as_stored(
    storage: Storage,
    settings: ViewSettings,
    policy: SealPolicy | None = None,
    refresh_interval_seconds: float = 1.0,
) -> AnyView:
    """Open a view with the shards that it has, whatever its settings say."""
    shard_map = ShardMap.of(storage).settled
    return _opened(storage, settings, shard_map, (policy, refresh_interval_seconds, None, False), None)


def open_with(
    storage: Storage, settings: ViewSettings, shard_map: ShardMap, policy: SealPolicy | None = None
) -> AnyView:
    """Open a view with shards that its file does not name yet; writes do not create that file."""
    view = _opened(storage, settings, shard_map, (policy, 0.0, None, False), None)
    if isinstance(view, ShardedView):
        view.is_created = True
    return view


def _opened(
    storage: Storage,
    settings: ViewSettings,
    shard_map: ShardMap,
    rest: tuple[SealPolicy | None, float, float | None, bool],
    served: Sequence[int] | None,
) -> AnyView:
    if shard_map.num_shards == 1:
        (own,) = shard_map.storages(storage)
        view = View(own, settings, *rest)
        view.shard_map = shard_map
        return view
    return ShardedView(storage, settings, shard_map, *rest, served=served)


def undivided(view: AnyView, what: str) -> View:
    """Check that a view has no shards.

    Raises
    ------
    SettingsError : it has shards, so ``what`` cannot be done with it.
    """
    if isinstance(view, ShardedView):
        raise SettingsError(f"feature view {view.name!r} has shards; such a view cannot be {what} yet")
    return view


def _map_of(storage: Storage, settings: ViewSettings) -> ShardMap:
    """The shards of a view. If it has no file of them yet, these are the shards of its settings."""
    wanted = ShardMap.first(settings.num_shards)
    try:
        there = ShardMap.read(storage)
    except StorageError:
        if storage.host_path is None:
            raise
        return wanted  # out of reach: this host may have kept the rows that it read before
    if there is None and wanted.folder and _has_rows(storage):
        there = ShardMap()
    if there is not None and there.num_shards != wanted.num_shards:
        raise other_number(settings.view, there, wanted.num_shards)
    # Rows that are being divided may stay where they are after all, and writes go on then.
    return wanted if there is None else there.settled


def _has_rows(storage: Storage) -> bool:
    """Whether there are rows of a view that has no shards."""
    return any(storage.list(folder) for folder in (FRESH_FOLDER, ROWS_FOLDER, f"{ROWS_FOLDER}_delta_log/"))


def open_live(
    storage: Storage,
    name: str,
    refresh_interval_seconds: float,
    is_replica: bool = False,
    served: Sequence[int] | None = None,
) -> AnyLiveView:
    """A view to be read with the codecs that its rows were written with; parameters as of `open_view`.

    Raises
    ------
    DamagedFileError, StorageError : it cannot be read.
    SettingsError : there is no such shard to be served.
    """
    try:
        shard_map = ShardMap.of(storage)
    except StorageError:
        if storage.host_path is None:
            raise
        shard_map = _known_map(storage) or ShardMap()  # a view without shards has no note
    if shard_map.num_shards == 1:
        (own,) = shard_map.storages(storage)
        return LiveView(own, None, refresh_interval_seconds, is_replica=is_replica)
    parts = shard_map.storages(storage)
    shards: Mapping[int, LiveView] = {
        number: LiveView(parts[number], None, refresh_interval_seconds, is_replica=is_replica)
        for number in checked_served(name, shard_map, served)
    }
    view = ShardedLiveView(storage, name, shard_map, shards, list(shards))
    view.adopt_joint()
    if is_replica:
        _note_map(storage, shard_map)
    return view


def _note_map(storage: Storage, shard_map: ShardMap) -> None:
    """Keep the file's content on this host for later starts; a failure has no other effect."""
    if (path := storage.host_path) is not None:
        with suppress(OSError):
            note = path.with_name(path.name + _NOTE)
            draft = note.with_name(f"{note.name}.{secrets.token_hex(4)}.tmp")
            draft.write_bytes(shard_map.encode())
            draft.replace(note)


def _known_map(storage: Storage) -> ShardMap | None:
    """What this host has noted; None if it has noted nothing."""
    if (path := storage.host_path) is None:
        return None
    try:
        return ShardMap.decode(path.with_name(path.name + _NOTE).read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return None
