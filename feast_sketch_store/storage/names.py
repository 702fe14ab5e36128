"""Names of the folders of projects and views, and of the contents of a view's folder.

A plain name is used as it is. Any other (upper case, spaces, ``../x``, unicode, 300 characters) becomes its
readable part, a tilde, and a hash. So no two names share a folder on any file system, and no name leaves the
store's folder.
"""

import hashlib
import re
import time

from feast_sketch_store.storage.base import FileInfo, Storage

# The contents of a view's storage.
ROWS_FOLDER = "rows/"  # a Delta table
FRESH_FOLDER = "fresh/"  # commits that are not in the table yet
SNAPSHOTS_FOLDER = "snapshots/"
REBUILD_FOLDERS = "rebuild-"  # begins the name of the folder that is a store of its own during a rebuild
IMPORT_FOLDER = "import/"  # the rows of an import in progress, or of one to be continued
HELD_BACK_FILE = "held_back.json"  # names the rows of a fill that did not pass the gate, see `view.gate`
SEAL_LOCK = "seal.lock"
OBJECT_LOG = f"{FRESH_FOLDER}log"  # in a bucket: the identity of the log, without which there is none
APPEND_LOCK = f"{FRESH_FOLDER}lock"  # held during an append to the log
VIEW_FILE = "view.json"  # shards, join keys and features of the view, see `view.view_file`
VIEW_LOCK = "view.lock"  # held while that file is changed
REMOVAL_MARK = "being_removed"  # there while the view is removed, see `view.removal`

_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
_READABLE_CHARACTERS = 40


def folder_name(name: str) -> str:
    """The folder name of a project or view."""
    if _PLAIN.fullmatch(name):
        return name
    readable = re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:_READABLE_CHARACTERS].strip("-")
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{readable}~{digest}"


def kept_name(view: str) -> str:
    """The name by which a view is kept, or a version as in ``history@v2``; the first one has no number."""
    return view.removesuffix("@v0")


def left_over(storage: Storage, age_seconds: float = 86_400.0) -> list[str]:
    """The names of files of a view's rebuild or import that is in progress or was killed, and of hidden ones.

    Files in hidden folders were already being removed. Other hidden files are those of writers that were
    killed; only older ones than ``age_seconds`` count, because younger ones may still be written. The same
    holds for a rebuild or import, by its newest file, where no lease tells that none is in progress.
    """
    found, oldest = list(storage.walk()), time.time() - age_seconds
    changed_at: dict[str, float] = {}
    for info in found:
        top = info.name.partition("/")[0]
        changed_at[top] = max(changed_at.get(top, info.modified_at), info.modified_at)

    def is_left(info: FileInfo) -> bool:
        top, slash, _ = info.name.partition("/")
        if slash and top.startswith((REBUILD_FOLDERS, IMPORT_FOLDER.rstrip("/"))):
            return storage.supports_leases or changed_at[top] < oldest
        return top[0] == "." and (slash != "" or info.modified_at < oldest)

    return sorted(info.name for info in found if is_left(info))


def remove_left_over(storage: Storage, age_seconds: float) -> int:
    """Remove the files that `left_over` names, and return their number."""
    names = left_over(storage, age_seconds)
    storage.delete(name for name in names if "/" not in name)
    for folder in sorted({name.partition("/")[0] + "/" for name in names if "/" in name}):
        storage.within(folder).delete_all()
    return len(names)
