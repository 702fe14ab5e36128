"""Names of the folders of projects and views, and of the contents of a view's folder.

A plain name is used as it is. Any other (upper case, spaces, ``../x``, unicode, 300 characters) becomes its
readable part, a tilde, and a hash. So no two names share a folder on any file system, and no name leaves the
store's folder.

Code above a view uses paths; the view and all below it use a `Storage`.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.local import LocalStorage

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


def store_path(repo_path: Path | None, path: str) -> Path:
    """The folder of a store; its configured path is relative to the feature repository."""
    return Path(repo_path or ".").absolute() / Path(path).expanduser()


def project_path(store_path: Path, project: str) -> Path:
    """The folder of everything that the store keeps for a project."""
    return store_path / folder_name(project)


def view_path(store_path: Path, project: str, view: str) -> Path:
    """The folder of one feature view."""
    return project_path(store_path, project) / folder_name(view)


def find_view(store_path: Path, project: str | None, view: str) -> LocalStorage:
    """The storage of a view that `feast apply` has made.

    Parameters
    ----------
    store_path : the folder of the store.
    project : None if the store has only one.
    view : its name.

    Raises
    ------
    SettingsError : there is no such view, or the project must be named.
    """
    folder = store_path / project_folder(str(store_path), project, lambda: folders_in(store_path))
    path = folder / folder_name(view)
    if not path.is_dir():
        raise no_view(str(path), view, folders_in(folder))
    return LocalStorage(path)


def no_view(location: str, view: str, views: Sequence[str]) -> SettingsError:
    """The error of a reader that asks for a view which no folder has."""
    made = f"there are {list(views)}" if views else "there is none yet"
    return SettingsError(f"{location}: there is no feature view {view!r}; {made}. `feast apply` makes views")


def project_folder(store: str, project: str | None, folders: Callable[[], Sequence[str]]) -> str:
    """The name of a project's folder.

    Parameters
    ----------
    store : its location, for messages.
    project : None if the store has only one.
    folders : lists the folders of the store.

    Raises
    ------
    SettingsError : the project must be named.
    """
    if project is not None:
        return folder_name(project)
    projects = folders()
    if len(projects) != 1:
        raise SettingsError(f"{store}: the store has the projects {list(projects)}; say which one is meant")
    return projects[0]


def folders_in(path: Path) -> list[str]:
    """The names of folders, except those that are being removed."""
    if not path.is_dir():
        return []
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")


def staged_files(storage: Storage) -> list[str]:
    """The names of files of a rebuild or import that is in progress or was killed.

    Hidden files are left out: they were already being removed.
    """
    staged = (REBUILD_FOLDER, IMPORT_FOLDER, ".")
    return sorted(info.name for info in storage.walk() if info.name.startswith(staged))
