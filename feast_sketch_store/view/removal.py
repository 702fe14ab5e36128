"""Removes views and projects, between seals and writes of other processes.

Writers may know shards that a removal cannot know, or hold no lease. So a file marks the view from before its
files are listed until they are deleted, and nobody writes the first commit of a log meanwhile: it might lie
where files are being deleted, or name one of them.
"""

from collections.abc import Iterable
from contextlib import ExitStack

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import (
    APPEND_LOCK,
    FRESH_FOLDER,
    OBJECT_LOG,
    REMOVAL_MARK,
    ROWS_FOLDER,
    SEAL_LOCK,
    SNAPSHOTS_FOLDER,
    VIEW_FILE,
    VIEW_LOCK,
)
from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.view.view_file import shard_map_of

# After which the mark of a removal that holds no lease is one of a killed process, in a bucket: there, two
# processes may hold the same lease for a while.
_CUT_OFF_SECONDS = 60.0


def remove_project(place: StorePlace, project: str) -> None:
    """Remove all that the store keeps for a project, each view when no process seals it or appends to it."""
    for view in place.views(project):
        remove_view(view)
    place.project(project).delete_all()


def remove_view(storage: Storage) -> None:
    """Remove all that is stored of a view, when no process seals it or appends to it.

    Raises StorageError: a file cannot be removed, or a listing is not one of the view's files.
    """
    with ExitStack() as held:
        held.enter_context(storage.lease(SEAL_LOCK, wait=True))
        if storage.supports_leases:
            held.enter_context(storage.lease(VIEW_LOCK, wait=True))  # nobody makes other shards meanwhile
        storage.replace(REMOVAL_MARK, b"")
        names = [info.name for info in storage.walk()]
        if REMOVAL_MARK not in names:  # then others of its files would be left, too
            raise StorageError(
                f"{storage.location}: a listing lacks {REMOVAL_MARK!r}, which was just written there; remove "
                "the view again. If that does not help, check the endpoint, and whether a proxy answers "
                "instead"
            )
        logs = sorted({"", *_folders_of_logs(names), *_folders_of_shards(storage)})
        # Shards seal and absorb under locks of their own: what they write after this would have no log.
        for folder in logs[1:]:
            held.enter_context(storage.lease(folder + SEAL_LOCK, wait=True))
        if storage.supports_leases:
            # A writer knows where the log ends, and would append there in the folder of the next one.
            for folder in logs:
                held.enter_context(storage.lease(folder + APPEND_LOCK, wait=True))
            storage.delete_all()
        else:
            # Writers make it again where they find another log.
            storage.delete([VIEW_FILE])
            for folder in logs:
                _end_log(storage, folder)
            storage.delete([info.name for info in storage.walk() if info.name != REMOVAL_MARK])
            storage.delete([REMOVAL_MARK])


def check_not_removed(storage: Storage, view: str) -> None:
    """Called before the first commit of a log. Raises StorageError: the view is being removed."""
    info = storage.info(REMOVAL_MARK)
    if info is None:
        return
    if storage.supports_leases or storage.now() - info.modified_at > _CUT_OFF_SECONDS:
        with storage.lease(SEAL_LOCK) as is_ours:  # which removals hold
            if is_ours:
                storage.delete([REMOVAL_MARK])
                return
    raise StorageError(
        f"feature view {view!r} is being removed. Write again when that is done or, if the process that "
        f"removed it was killed, after {_CUT_OFF_SECONDS:.0f} seconds"
    )


def _end_log(storage: Storage, folder: str) -> None:
    """Remove a log in steps, of which each may be the last if the drop is cut off.

    A table without its log takes no rows. So no snapshot is left when others may begin a log: it would count
    as one of theirs, and bring dropped rows back.
    """
    storage.delete([folder + OBJECT_LOG])
    for part in (SNAPSHOTS_FOLDER, ROWS_FOLDER):
        storage.within(folder + part).delete_all()


def _folders_of_logs(names: Iterable[str]) -> set[str]:
    """The folders, each with a slash at its end, in which there are row logs."""
    found = (f"/{name}".partition(f"/{FRESH_FOLDER}") for name in names)
    return {f"{folder}/"[1:] for folder, is_log, _ in found if is_log}


def _folders_of_shards(storage: Storage) -> set[str]:
    """The folders of the shards that a view is to have: some of them may have no log yet.

    In a bucket, where no lease keeps writers out, there are none.
    """
    if not storage.supports_leases:
        return set()
    try:
        return set(shard_map_of(storage).folders)
    except (DamagedFileError, StorageError):  # also of a removal that was cut off
        return set()
