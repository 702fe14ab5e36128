"""Divide the rows of a view into another number of shards: `feast-sketch reshard VIEW --shards N`.

    fence      `view.json` says that rows are moving; writers notice within ten seconds, and refuse writes
    fill       write the rows that count from the old row logs into the folder of the new shards; seal there
    check      no process wrote to the old shards meanwhile
    switch     `view.json` names the new folder
    announce   a file in each old shard sends readers, which find it at their next poll, to `view.json`
    open       `view.json` lets writers go on

`vacuum` removes the old shards. A run that is killed leaves the fence, and so may one that fails. Before the
switch it has changed nothing else; after it, old and new shards have the same rows. The next run marks this
for readers, and starts over; or only removes the fence if it is given the current number of shards.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from shlex import quote

from feast import FeatureStore

from feast_sketch_store.adapter.options import require_writer, seal_policy, settings_of
from feast_sketch_store.errors import SettingsError, SketchStoreError, StorageError, counted
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.row_log import Position
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.settings.table import Gate
from feast_sketch_store.settings.values import shard_count
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.snapshot.files import MOVED, SnapshotFolder
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import FRESH_FOLDER, ROWS_FOLDER, SEAL_LOCK, SNAPSHOTS_FOLDER
from feast_sketch_store.view import joint_seal
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.shard import Shard
from feast_sketch_store.view.shard_map import ShardMap, way_out
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import put_map, seconds_between_checks, shard_map_of


def reshard(
    store: FeatureStore, view: str, num_shards: int, wait: Callable[[float], object] = time.sleep
) -> int:
    """Divide the rows of a view into new shards, all of them or none. Returns the number of entities.

    Parameters
    ----------
    num_shards : a power of two; 1 for an undivided view. After a run that was killed, the current number
        leaves the rows where they are.
    wait : waits a number of seconds for writers to notice the fence.

    Raises
    ------
    SettingsError : the view has this many shards already, or features that this process does not know.
    StorageError : another process is sealing the view, divided its rows, or wrote to it despite the fence;
        nothing has changed. Or files cannot be read or written; it says if the fence is left.
    """
    online_store, table = online_store_of(store), any_feature_view(store, view)
    require_writer(store.config)
    storage = online_store.storage(store.config, table)
    settings = replace(settings_of(store.config, table), num_shards=shard_count(num_shards))
    policy = replace(seal_policy(store.config.online_store), by_job=True)
    online_store.forget(store.config, table)
    return divide(storage, settings, policy, wait, online_store.lock_timeout_seconds)


def divide(
    storage: Storage,
    settings: ViewSettings,
    policy: SealPolicy,
    wait: Callable[[float], object] = time.sleep,
    lock_timeout_seconds: float = 0.0,
) -> int:
    """Divide the rows of a view into the shards of its settings; see `reshard`."""
    view, num_shards = settings.view, settings.num_shards
    as_it_is = replace(settings, num_shards=shard_map_of(storage).num_shards)
    former = open_view(storage, as_it_is, policy, 0.0)
    former.lock_timeout_seconds = lock_timeout_seconds
    known = former.shard_map
    shard_map = known.followed_by(num_shards)
    with former.sealing(), _fence_in_errors(storage, view, known):
        there = shard_map_of(storage)
        if there.settled != known:
            raise StorageError(
                f"feature view {view!r}: another process divided its rows into "
                f"{counted(there.num_shards, 'shard')} just now; run again to divide them once more"
            )
        if former.shard_map.num_shards == num_shards and not there.is_moving:
            raise SettingsError(f"feature view {view!r} has {counted(num_shards, 'shard')} already")
        begun, filled = (replace(m, moves_to=shard_map.folder) for m in (former.shard_map, shard_map))
        put_map(storage, settings, begun, [there])  # from here on, a run that lost its lease fails
        is_done = False
        try:
            if there.is_moving:  # a run was killed, perhaps before it sent readers to the new shards
                if there.moves_to != there.folder:
                    _remove_unfinished(storage, there.moves_to)
                _tell(storage, former_files(storage, former.shard_map))
            if former.shard_map.num_shards == num_shards:
                return sum(map(len, former.kept_rows()))
            former.refresh_all()  # behind the fence, at which a pin looks when it is there
            if former.is_pinned:
                raise StorageError(
                    f"feature view {view!r}: it is pinned to a snapshot, which new shards would not have; "
                    f"run `feast-sketch unpin {quote(view)}` first"
                )
            wait(2 * seconds_between_checks(storage))
            # The rows are those that count already.
            moved = View(storage, replace(settings, gate=Gate()), policy, 0.0, shard_map=shard_map)
            moved.registration = None  # the view's file is not to name these shards yet
            sealed = [layer for part in former.shards.values() for layer in part.state.sealed_layers]
            for part in moved.shards.values():
                part.complete_since = max([layer.complete_since for layer in sealed], default=NO_TIMESTAMP)
            ends = [(part, _fill(part, moved)) for part in former.shards.values()]
            # `moved.seal` would wait for the view's lease, which is held here. A view that was written and
            # then emptied is sealed, too: its readers, and the next rows, need what a seal knows. Its log has
            # no commits if it was emptied before it was divided last.
            was_written = former.state.sealed is not None or any(end.number >= 0 for _, end in ends)
            joint_seal.seal_bases(moved.shards, moved.approve, was_written)
            for part, end in ends:
                if not part.row_log.is_at_end(end):
                    raise StorageError(
                        f"{part.storage.location}: feature view {view!r} was written while its rows were "
                        "divided into shards; stop its writers, and run again"
                    )
            put_map(storage, settings, filled, [begun])
            is_done = True
        finally:
            if not is_done:
                # First the new shards, which makes room on a full disk, unless readers may be there already.
                is_used = shard_map_of(storage) == filled
                if not is_used:
                    _remove_unfinished(storage, shard_map.folder)
                put_map(storage, settings, former.shard_map, [begun, filled])
                if is_used:
                    _remove_unfinished(storage, shard_map.folder)
        # Readers of old shards would miss what is written to the new ones.
        for part in former.shards.values():
            part.snapshots.note_move()
        put_map(storage, settings, shard_map, [filled])
    entities = moved.stats().sealed_entities
    moved.close()
    former.close()
    return entities


@contextmanager
def _fence_in_errors(storage: Storage, view: str, known: ShardMap) -> Iterator[None]:
    """Say in errors how to go on if they leave the fence, or may; ``known`` are the shards before."""
    try:
        yield
    except SketchStoreError as error:
        there = replace(known, moves_to="?")
        with suppress(SketchStoreError):
            there = shard_map_of(storage)
        if not there.is_moving:
            raise
        raise StorageError(
            f"{error}. Until the rows are divided, writes may be refused: {way_out(view, there)}"
        ) from error


def _fill(part: Shard, moved: View) -> Position:
    """Write the rows of an old part that count to the new shards. Returns the position read to."""
    log = part.row_log.read()
    if log:
        for table in part.tables_of(log):
            moved.write(table)
    return log.position


def _remove_unfinished(storage: Storage, folder: str) -> None:
    """Remove shards to which no run can switch any more."""
    storage.within(folder).delete_all()


def _tell(storage: Storage, names: Sequence[str]) -> None:
    """Tell readers of former shards, which have these files, that the rows are elsewhere."""
    parts = (ROWS_FOLDER, FRESH_FOLDER, SNAPSHOTS_FOLDER)
    for folder in sorted({name.rpartition(part)[0] for name in names for part in parts if part in name}):
        SnapshotFolder(storage.within(folder + SNAPSHOTS_FOLDER)).note_move()


def former_files(storage: Storage, shard_map: ShardMap) -> list[str]:
    """The names of files of former shards of a view, and of those that a run left unfinished."""
    undivided = (ROWS_FOLDER, FRESH_FOLDER, SNAPSHOTS_FOLDER) if shard_map.folder else ()
    return sorted(
        info.name
        for info in storage.walk()
        if info.name.startswith(("shards-", *undivided))
        and not (shard_map.folder and info.name.startswith(shard_map.folder))
    )


def remove_former(storage: Storage) -> int:
    """Remove former shards, and return the number of files. Removes nothing while rows are moving.

    It holds the view's lease, for which a drop waits. Without it, the listed files could be those of a new
    view of the same name. Removes nothing if another process holds the lease.
    """
    with storage.lease(SEAL_LOCK, create=False) as is_ours:
        # Read the map now: another process may have divided the rows since this one opened the view.
        shard_map = shard_map_of(storage)
        if not is_ours or shard_map.is_moving:
            return 0
        names = former_files(storage, shard_map)
        if shard_map_of(storage) != shard_map:
            return 0  # what was found may be new shards, which are being filled
        _tell(storage, names)  # if a run was killed before it did
        # A poll meanwhile finds rows only together with the file that says where they are.
        storage.delete(name for name in names if not name.endswith(SNAPSHOTS_FOLDER + MOVED))
        for folder in sorted({name.partition("/")[0] + "/" for name in names}):
            storage.within(folder).delete_all()
        return len(names)
