"""Divide the rows of a view into another number of shards: `feast-sketch rebuild VIEW --shards N`.

    fence      `shards.json` says that rows are moving; writers notice within ten seconds, and refuse writes
    fill       write the rows that count from the old row logs into the folder of the new shards; seal there
    check      no process wrote to the old shards meanwhile
    switch     `shards.json` names the new folder

Readers use the old shards until they are restarted with the new number. `vacuum` removes the old shards. A
run that is killed has changed nothing but the fence; the next run starts over, or only removes the fence if
it is given the current number of shards.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from feast import FeatureStore

from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.online_store import (
    any_feature_view,
    online_store_of,
    require_writer,
    seal_policy,
)
from feast_sketch_store.row_log import Position, RowLog
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import FRESH_FOLDER, ROWS_FOLDER, SHARDS_FILE, SNAPSHOTS_FOLDER
from feast_sketch_store.view import joint_seal
from feast_sketch_store.view.opening import AnyView, open_as_stored, open_with
from feast_sketch_store.view.settings import check_shardable, resolve
from feast_sketch_store.view.shard_map import ShardMap, WriteFence, check_shard_count
from feast_sketch_store.view.view import View


def reshard(
    store: FeatureStore, view: str, num_shards: int, wait: Callable[[float], object] = time.sleep
) -> int:
    """Divide the rows of a view into new shards, all of them or none.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    num_shards : a power of two; 1 for an undivided view. After a run that was killed, the current number
        leaves the rows where they are.
    wait : waits a number of seconds for writers to notice the fence.

    Returns
    -------
    The number of entities.

    Raises
    ------
    SettingsError : the view has this many shards already, or a feature cannot be in shards.
    StorageError : another process is sealing the view, divided its rows, or wrote to it despite the fence;
        nothing has changed.
    """
    online_store, table = online_store_of(store), any_feature_view(store, view)
    require_writer(store.config)
    storage, options = online_store.storage(store.config, table), store.config.online_store
    settings = replace(
        resolve(options, table, store.config.repo_path), num_shards=check_shard_count(num_shards)
    )
    policy = replace(seal_policy(options), by_job=True)
    if num_shards > 1:
        check_shardable(settings)
    online_store.forget(store.config, table)
    former = open_as_stored(storage, settings, policy, 0.0)
    shard_map = former.shard_map.followed_by(num_shards)
    with former.unchanging():
        there = ShardMap.of(storage)
        if there.settled != former.shard_map:
            raise StorageError(
                f"feature view {view!r}: another process divided its rows into {there.num_shards} shards "
                "just now; run again to divide them once more"
            )
        if former.shard_map.num_shards == num_shards:
            if not there.is_moving:
                raise SettingsError(f"feature view {view!r} has {num_shards} shards already")
            storage.within(shard_map.folder).delete_all()
            _take_back(storage, former.shard_map)
            return sum(len(part.kept_rows() or ()) for part in former.parts.values())
        storage.replace(SHARDS_FILE, replace(former.shard_map, is_moving=True).encode())
        is_done = False
        try:
            wait(2 * WriteFence(storage, view, former.shard_map).seconds)
            storage.within(shard_map.folder).delete_all()  # left by a run that was killed
            moved = open_with(storage, settings, shard_map, policy)
            ends = [(part, _fill(part, moved)) for part in former.parts.values()]
            # `moved.seal` would wait for the view's lease, which is held here.
            joint_seal.seal_bases(moved.parts, settings)
            for part, end in ends:
                if not RowLog(part.storage).is_at_end(end):
                    raise StorageError(
                        f"{part.storage.location}: feature view {view!r} was written while its rows were "
                        "divided into shards; stop its writers, and run again"
                    )
            storage.replace(SHARDS_FILE, shard_map.encode())
            is_done = True
        finally:
            if not is_done:
                _take_back(storage, former.shard_map)
    entities = moved.stats().sealed_entities
    moved.close()
    former.close()
    return entities


def _fill(part: View, moved: AnyView) -> Position:
    """Write the rows of an old part that count to the new shards. Returns the position read to."""
    log = RowLog(part.storage).read()
    if log:
        for _, table in part.rows_of(log).batches():
            moved.write(table)
    return log.position


def _take_back(storage: Storage, shard_map: ShardMap) -> None:
    """Remove the fence, so that writers go on with the old shards."""
    if shard_map.folder:
        storage.replace(SHARDS_FILE, shard_map.encode())
    else:
        storage.delete([SHARDS_FILE])


def former_files(storage: Storage, shard_map: ShardMap) -> list[str]:
    """The names of files of former shards of a view."""
    if not shard_map.folder:
        return []
    return sorted(
        info.name
        for info in storage.walk()
        if info.name.startswith(("shards-", ROWS_FOLDER, FRESH_FOLDER, SNAPSHOTS_FOLDER))
        and not info.name.startswith(shard_map.folder)
    )


def remove_former(storage: Storage) -> int:
    """Remove former shards, and return the number of files. Removes nothing while rows are moving."""
    # Read the map now: another process may have divided the rows since this one opened the view.
    shard_map = ShardMap.of(storage)
    if shard_map.is_moving:
        return 0
    names = former_files(storage, shard_map)
    if ShardMap.of(storage) != shard_map:
        return 0  # what was found may be new shards, which are being filled
    for folder in sorted({name.partition("/")[0] + "/" for name in names}):
        storage.within(folder).delete_all()
    return len(names)
