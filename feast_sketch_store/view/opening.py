"""Opens views with the shards that they have."""

import secrets
from collections.abc import Sequence
from contextlib import suppress

from feast_sketch_store.errors import DamagedFileError, SettingsError, StorageError
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.live_shard import LiveShard
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.semantics import named
from feast_sketch_store.view.shard_map import ShardMap
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import ViewFile, stored_map

_NOTE = ".view"  # ends the name of a file on this host


def open_view(
    storage: Storage,
    settings: ViewSettings,
    policy: SealPolicy | None = None,
    refresh_interval_seconds: float = 1.0,
    max_staleness_seconds: float | None = None,
    is_replica: bool = False,
    served: Sequence[int] | None = None,
) -> View:
    """Open a view with as many shards as its settings say; parameters are those of `View`.

    Raises
    ------
    ShardError : the view was created with another number of shards.
    UnsupportedFeatureError : a feature has another type than rows that were written.
    SettingsError : there is no such shard to be served.
    """
    shard_map = _map_of(storage, settings)
    return View(
        storage,
        settings,
        policy,
        refresh_interval_seconds,
        max_staleness_seconds,
        is_replica,
        served if shard_map.num_shards > 1 else None,
        shard_map,
    )


def open_as_stored(
    storage: Storage,
    settings: ViewSettings,
    policy: SealPolicy | None = None,
    refresh_interval_seconds: float = 1.0,
) -> View:
    """Open a view with the shards that it has, whatever its settings say; raises as `open_view`."""
    there = ViewFile.read(storage)
    if there is not None:
        there.check(storage, settings)
    shard_map = ShardMap() if there is None else there.shard_map.settled
    return View(storage, settings, policy, refresh_interval_seconds, shard_map=shard_map)


def open_with(
    storage: Storage, settings: ViewSettings, shard_map: ShardMap, policy: SealPolicy | None = None
) -> View:
    """Open a view with shards that its file does not name yet; writes do not create that file."""
    view = View(storage, settings, policy, 0.0, shard_map=shard_map)
    view.registration = None
    return view


def _map_of(storage: Storage, settings: ViewSettings) -> ShardMap:
    """The shards of a view; if the storage is out of reach, those of its settings."""
    try:
        return stored_map(storage, settings)
    except StorageError:
        if storage.host_path is None:
            raise
        return ShardMap.first(settings.num_shards)  # this host may have kept the rows that it read before


def open_live(
    storage: Storage,
    name: str,
    refresh_interval_seconds: float,
    is_replica: bool = False,
    served: Sequence[int] | None = None,
) -> tuple[LiveView[LiveShard], ViewFile]:
    """A view to be read as its file says, and the file; parameters as of `open_view`.

    Raises
    ------
    DamagedFileError, StorageError : the file cannot be read.
    SettingsError : there is no file yet, or there is no such shard to be served.
    """
    file = _file_of(storage, is_replica)
    if file is None:
        raise SettingsError(
            f"{storage.location}: feature view {name!r} is not there yet; `feast apply` makes it"
        )
    try:
        semantics = named(file.semantics)
    except ValueError as error:
        raise DamagedFileError(f"{storage.location}: {error}") from error

    def open_shard(part: Storage, is_served: bool) -> LiveShard:
        return LiveShard(part, file.codecs, refresh_interval_seconds, semantics, is_replica=is_replica)

    shard_map = file.shard_map.settled
    # A view that is not divided is served whole, and stays so when it is.
    numbers = served if shard_map.num_shards > 1 else None
    return LiveView(storage, name, shard_map, open_shard, numbers), file


def _file_of(storage: Storage, is_replica: bool) -> ViewFile | None:
    """The file of a view. A replica keeps it on its host, for starts while the storage is out of reach."""
    try:
        file = ViewFile.read(storage)
    except StorageError:
        if (known := _known_file(storage)) is None:
            raise
        return known
    if is_replica and file is not None:
        _note_file(storage, file)
    return file


def _note_file(storage: Storage, file: ViewFile) -> None:
    """Keep the file's content on this host for later starts; a failure has no other effect."""
    if (path := storage.host_path) is not None:
        with suppress(OSError):
            note = path.with_name(path.name + _NOTE)
            note.parent.mkdir(parents=True, exist_ok=True)
            draft = note.with_name(f"{note.name}.{secrets.token_hex(4)}.tmp")
            draft.write_bytes(file.encode())
            draft.replace(note)


def _known_file(storage: Storage) -> ViewFile | None:
    """What this host has noted; None if it has noted nothing."""
    if (path := storage.host_path) is None:
        return None
    try:
        note = path.with_name(path.name + _NOTE)
        return ViewFile.decode(note.read_bytes(), str(note))
    except (OSError, DamagedFileError):
        return None
