"""Names of projects and views as folder names.

A plain name stands for itself. Any other (upper case, spaces, ``../x``, unicode, 300 characters) becomes
its readable part, a tilde, and a hash: no two names share a folder, on no file system, and none leaves
the store's own folder.
"""

import hashlib
import re
import shutil
from pathlib import Path

from feast_sketch_store.errors import StorageError

# Of a view: its row log, see `row_log`.
FRESH_FOLDER = "fresh/"
ROWS_FOLDER = "rows/"

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
    """The folder of a store, whose configured path counts from the feature repository."""
    return Path(repo_path or ".").absolute() / Path(path).expanduser()


def project_path(store_path: Path, project: str) -> Path:
    """The folder of everything that the store keeps for a project."""
    return store_path / folder_name(project)


def view_path(store_path: Path, project: str, view: str) -> Path:
    """The folder of one feature view."""
    return project_path(store_path, project) / folder_name(view)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, if it exists.

    Raises
    ------
    StorageError : it cannot be removed.
    """
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: the folder cannot be removed: {error}") from error
