"""Pins reads of a view to snapshots, and lets them follow the writes again."""

from collections.abc import Sequence
from contextlib import suppress

from feast_sketch_store.errors import SettingsError, counted
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.base import MissingFileError
from feast_sketch_store.view.view import View

_TRIES = 10


def pin(view: View, versions: Sequence[int] | None = None) -> tuple[int, ...]:
    """Pin reads of all processes to a snapshot of each shard, until `unpin`. Returns their versions.

    Writes are kept, and not shown. No write seals meanwhile; `seal` still does. ``versions`` are those that
    `feast-sketch inspect` shows; None for the newest.

    Raises
    ------
    SettingsError : there are no such snapshots, or a shard was not sealed yet; or values of theirs are in a
        backing store, which has only the newest ones.
    ShardError : the rows are being divided into other shards.
    StorageError : the storage cannot be written; reads follow the writes.
    """
    view.prepare()
    for _ in range(_TRIES - 1):
        with suppress(MissingFileError):  # a seal removed a snapshot that had just been the newest
            return _pinned(view, versions)
    return _pinned(view, versions)


def _pinned(view: View, versions: Sequence[int] | None) -> tuple[int, ...]:
    """`pin` once. Raises MissingFileError: a seal removed a snapshot meanwhile."""
    published = {number: shard.snapshots.list() for number, shard in view.shards.items()}
    if unsealed := [number for number, files in published.items() if not files]:
        of_shards = f" of the shards {', '.join(map(str, unsealed))}" if len(view.shards) > 1 else ""
        raise SettingsError(
            f"feature view {view.name!r} has no snapshot{of_shards} to pin reads to; "
            "seal it first: `feast-sketch seal`"
        )
    if versions is None:
        versions = [files[0].version for files in published.values()]
    if len(versions) != len(published):
        raise SettingsError(
            f"feature view {view.name!r} has {counted(len(published), 'shard')}, and "
            f"{counted(len(versions), 'version')} given; give the version of each shard, as "
            "`feast-sketch inspect` shows them"
        )
    chosen = snapshots_of(view, versions)
    for base, deltas in map(open_layers, chosen):
        if backed := base.backed.union(*[delta.layer.backed for delta in deltas]):
            raise SettingsError(
                f"feature view {view.name!r} was sealed with features in a backing store "
                f"({', '.join(sorted(backed))}), which has only their newest values; it cannot be pinned"
            )
    try:
        for shard, snapshot in zip(view.shards.values(), chosen, strict=True):
            shard.snapshots.pin(snapshot)
        view.refresh_all()
    except BaseException:
        unpin(view)
        raise
    return tuple(versions)


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
