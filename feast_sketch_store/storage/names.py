"""Names of the folders of projects and views, and of the contents of a view's folder.

A plain name is used as it is. Any other (upper case, spaces, ``../x``, unicode, 300 characters) becomes its
readable part, a tilde, and a hash. So no two names share a folder on any file system, and no name leaves the
store's folder.
"""

import hashlib
import re

from feast_sketch_store.storage.base import Storage

# The contents of a view's storage.
ROWS_FOLDER = "rows/"  # a Delta table
FRESH_FOLDER = "fresh/"  # commits that are not in the table yet
SNAPSHOTS_FOLDER = "snapshots/"
REBUILD_FOLDER = "rebuild/"  # a store of its own during a rebuild
IMPORT_FOLDER = "import/"  # the rows of an import in progress, or of one to be continued
HELD_BACK_FILE = "held_back.json"  # names the rows of a fill that did not pass the gate, see `view.gate`
SEAL_LOCK = "seal.lock"
APPEND_LOCK = f"{FRESH_FOLDER}lock"  # held during an append to the log
VIEW_FILE = "view.json"  # shards, join keys and features of the view, see `view.view_file`
VIEW_LOCK = "view.lock"  # held while that file is changed

_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
_READABLE_CHARACTERS = 40


def folder_name(name: str) -> str:
    """The folder name of a project or view."""
    if _PLAIN.fullmatch(name):
        return name
    readable = re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:_READABLE_CHARACTERS].strip("-")
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{readable}~{digest}"


def staged_files(storage: Storage) -> list[str]:
    """The names of files of a rebuild or import that is in progress or was killed.

    Hidden files are left out: they were already being removed.
    """
    staged = (REBUILD_FOLDER, IMPORT_FOLDER, ".")
    return sorted(info.name for info in storage.walk() if info.name.startswith(staged))
