"""What a view holds: reads at a snapshot that it is pinned to, and a fill that its gate held back."""

from collections.abc import Sequence
from contextlib import suppress
from shlex import quote

from feast_sketch_store.errors import SettingsError, counted
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.base import MissingFileError
from feast_sketch_store.view.gate import DIVIDED, HeldBack
from feast_sketch_store.view.shard_map import OtherShardsError, check_map
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import shard_map_of

_TRIES = 10


def pin(view: View, versions: Sequence[int] | None = None) -> tuple[int, ...]:
    """Pin reads of all processes to a snapshot of each shard, until `unpin`. Returns their versions.

    Writes are kept, and not shown. No write seals meanwhile; `seal` still does. ``versions`` are those that
    `feast-sketch inspect` shows; None for the newest that can be read.

    Raises
    ------
    SettingsError : there are no such snapshots, or a shard was not sealed yet; or values of theirs are in a
        backing store, which has only the newest ones.
    ShardError : the rows are being divided into other shards.
    StorageError : the storage cannot be written; reads follow the writes.
    """
    view.prepare()
    for _ in range(_TRIES - 1):
        with suppress(MissingFileError, OtherShardsError):  # a seal or a division came between
            return _pinned(view, versions)
    return _pinned(view, versions)


def _pinned(view: View, versions: Sequence[int] | None) -> tuple[int, ...]:
    """`pin` once.

    Raises MissingFileError, OtherShardsError: a seal removed a snapshot, or the rows were divided, meanwhile.
    """
    view.follow()
    shard_map, shards = view.shard_map, view.shards  # in this order, as another thread may follow the rows
    newest = {number: shard.newest_snapshot() for number, shard in shards.items()}
    if unsealed := [number for number, snapshot in newest.items() if snapshot is None]:
        of_shards = f" of the shards {', '.join(map(str, unsealed))}" if len(shards) > 1 else ""
        raise SettingsError(
            f"feature view {view.name!r} has no snapshot{of_shards} to pin reads to; "
            "seal it first: `feast-sketch seal`"
        )
    if versions is not None and len(versions) != len(newest):
        raise SettingsError(
            f"feature view {view.name!r} has {counted(len(newest), 'shard')}, and "
            f"{counted(len(versions), 'version')} given; give the version of each shard, as "
            "`feast-sketch inspect` shows them"
        )
    if versions is None:
        chosen = [snapshot for snapshot in newest.values() if snapshot is not None]
    else:
        chosen = snapshots_of(view, versions)
    for base, deltas in map(open_layers, chosen):
        if backed := base.backed.union(*[delta.layer.backed for delta in deltas]):
            raise SettingsError(
                f"feature view {view.name!r} was sealed with features in a backing store "
                f"({', '.join(sorted(backed))}), which has only their newest values; it cannot be pinned"
            )
    try:
        for shard, snapshot in zip(shards.values(), chosen, strict=True):
            shard.snapshots.pin(snapshot)
        # A division that began before does not know of the pins; one that begins now does.
        check_map(view.name, shard_map_of(view.storage), shard_map)
        view.refresh_all()
    except BaseException:
        for shard in shards.values():
            shard.snapshots.unpin()
        raise
    return tuple(snapshot.version for snapshot in chosen)


def snapshots_of(view: View, versions: Sequence[int]) -> list[SnapshotFile]:
    """The newest snapshot of each shard that has its version.

    Raises SettingsError: there is no such snapshot.
    """
    chosen = []
    for version, shard in zip(versions, view.shards.values(), strict=True):
        files = shard.snapshots.list()
        found = next((snapshot for snapshot in files if snapshot.version == version), None)
        if found is None:
            there = ", ".join(str(snapshot.version) for snapshot in files) or "none"
            raise SettingsError(
                f"{shard.storage.location}: there is no snapshot of version {version}; "
                f"there are the versions: {there}"
            )
        chosen.append(found)
    return chosen


def unpin(view: View) -> bool:
    """Let reads of all shards follow the writes again. Returns whether they were pinned."""
    view.follow()  # pins of the shards into which the rows were divided meanwhile hold the reads
    was_pinned = [shard.snapshots.unpin() for shard in view.shards.values()]
    view.refresh_all()
    return any(was_pinned)


def publish(view: View, force: bool = False) -> int | None:
    """Let the rows of a fill that was held back count, if there is one, and seal.

    With ``force`` the gate is not asked. Returns the number of rows that count now; None if no fill was held
    back.

    Raises
    ------
    GateError : the view still does not pass.
    ShardError : the rows were divided into other shards since; the fill must be discarded.
    DamagedFileError, StorageError : files cannot be read or written.
    """
    with view.unchanging():  # nobody discards the files meanwhile
        fill = HeldBack.read(view.storage)
        if fill is not None:
            remedy = DIVIDED.format(view=quote(view.name))
            files = [view.staged(entry, remedy) for entry in fill.entries]
            # A run that was killed may have committed some of them.
            committed = {name for log in view.row_logs().values() for name in log.committed()}
            view.commit_staged([file for file in files if file.file.name not in committed], force)
            fill.release(view.storage)
    view.seal(timeout_seconds=view.lock_timeout_seconds, force=force)
    return None if fill is None else fill.num_rows


def discard(view: View) -> int | None:
    """Delete the rows of a fill that was held back. Returns their number; None if there is none.

    In a bucket, where another process may be publishing them, a vacuum deletes their files later.
    """
    with view.unchanging():
        fill = HeldBack.read(view.storage)
        if fill is None:
            return None
        fill.release(view.storage)
        fill.delete_files(view.storage, view.row_logs())
        return fill.num_rows
