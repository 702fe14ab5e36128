"""Divides the rows of a view into another number of shards: `feast-sketch rebuild VIEW --shards N`.

    fence      `shards.json` says that rows are moving; writers notice within a second or ten, and refuse
    fill       the rows that count, from the row logs there are, into the folder of new shards; sealed there
    check      no process wrote to the former shards after all
    switch     `shards.json` names the new folder

Readers go on with the former shards until they are started again with the new number. `vacuum` removes these.
A run that is killed has changed nothing but the fence; the next run begins anew.
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
    """Divide the rows of a view into other shards, all of them or none.

    Parameters
    ----------
    num_shards : a power of two; 1 for a view that is not divided.
    wait : waits this many seconds, until writers have noticed.

    Returns
    -------
    The number of entities.

    Raises
    ------
    SettingsError : the view has this many shards already, or a feature cannot be in shards.
    StorageError : another process is sealing the view, or wrote to it in spite of all; nothing has changed.
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
    if former.shard_map.num_shards == num_shards:
        raise SettingsError(f"feature view {view!r} has {num_shards} shards already")
    shard_map = former.shard_map.followed_by(num_shards)
    with former.unchanging():
        storage.replace(SHARDS_FILE, replace(former.shard_map, is_moving=True).encode())
        is_done = False
        try:
            wait(2 * WriteFence(storage, view, former.shard_map).seconds)
            storage.within(shard_map.folder).delete_all()  # of a run that was killed
            moved = open_with(storage, settings, shard_map, policy)
            ends = [(part, _fill(part, moved)) for part in former.parts.values()]
            # Not `moved.seal`, which would wait for the lease of the view, as that is held here.
            joint_seal.seal_bases(moved.parts, settings)
            for part, end in ends:
                if not RowLog(part.storage).is_at_end(end):
                    raise StorageError(
                        f"{part.storage.location}: feature view {view!r} was written while its rows were "
                        "divided anew; stop its writers, and run again"
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
    """Write the rows of a part that count to the new shards: how far its row log was read."""
    log = RowLog(part.storage).read()
    if log:
        for _, table in part.rows_of(log).batches():
            moved.write(table)
    return log.position


def _take_back(storage: Storage, shard_map: ShardMap) -> None:
    """Let writers go on with the shards that there are."""
    if shard_map.folder:
        storage.replace(SHARDS_FILE, shard_map.encode())
    else:
        storage.delete([SHARDS_FILE])


def former_files(storage: Storage, shard_map: ShardMap) -> list[str]:
    """The names of files of shards that a view had before."""
    if not shard_map.folder:
        return []
    return sorted(
        info.name
        for info in storage.walk()
        if info.name.startswith(("shards-", ROWS_FOLDER, FRESH_FOLDER, SNAPSHOTS_FOLDER))
        and not info.name.startswith(shard_map.folder)
    )


def remove_former(storage: Storage) -> int:
    """Remove what a view had before its rows were divided anew: the number of files; none while they are."""
    # As it is now: what another process has divided since this one opened the view is not former.
    shard_map = ShardMap.read(storage) or ShardMap()
    if shard_map.is_moving:
        return 0
    names = former_files(storage, shard_map)
    for folder in sorted({name.partition("/")[0] + "/" for name in names}):
        storage.within(folder).delete_all()
    return len(names)
