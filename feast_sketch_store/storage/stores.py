"""Where a store is, a local folder or a folder of a bucket, with its projects and views."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.buckets import is_url, open_bucket, option_text
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import folder_name

if TYPE_CHECKING:
    from feast_sketch_store.storage.object_store import ObjectStorage

_Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StorePlace:
    """Where a store is."""

    path: Path | str  # a local folder or a URL
    # of the object store, with credentials; `repr` leaves them out
    options: _Options = field(default=(), repr=False)
    cache_path: Path | None = None
    read_only: bool = False

    @classmethod
    def of(
        cls,
        repo_path: Path | None,
        path: str,
        options: Mapping[str, Any] | None = None,
        cache_path: str | None = None,
        read_only: bool = False,
    ) -> "StorePlace":
        """The store of a configured path, relative to the feature repository, or of a URL."""
        cache = None if cache_path is None else _local_path(repo_path, cache_path)
        if not is_url(path):
            return cls(_local_path(repo_path, path), read_only=read_only)
        given = {name: option_text(value) for name, value in (options or {}).items()}
        return cls(path, tuple(sorted(given.items())), cache, read_only)

    def view(self, project: str, view: str) -> Storage:
        """All that the store keeps for one feature view."""
        return self.project(project).within(f"{folder_name(view)}/")

    def project(self, project: str) -> "LocalStorage | ObjectStorage":
        """All that the store keeps for a project."""
        return self._root().within(f"{folder_name(project)}/")

    def views(self, project: str) -> list[Storage]:
        """The storages of the existing views of a project."""
        folder = self.project(project)
        return [folder.within(f"{view}/") for view in folder.folders()]

    def find_view(self, project: str | None, view: str) -> Storage:
        """The storage of a view that `feast apply` has made; a project may be None if the store has only one.

        Raises SettingsError: there is no such view, or the project must be named.
        """
        store = self._root()
        projects = store.folders() if project is None else [folder_name(project)]
        if len(projects) != 1:
            raise SettingsError(
                f"{store.location}: the store has the projects {list(projects)}; name one with `project`"
            )
        folder, name = store.within(f"{projects[0]}/"), folder_name(view)
        if name not in (views := folder.folders()):
            made = f"there are {list(views)}" if views else "there is none yet"
            raise SettingsError(
                f"{folder.location}: there is no feature view {view!r}; {made}. `feast apply` makes views"
            )
        return folder.within(f"{name}/")

    def _root(self) -> "LocalStorage | ObjectStorage":
        if isinstance(self.path, Path):
            return LocalStorage(self.path, self.read_only)
        return open_bucket(self.path, dict(self.options), self.read_only, self.cache_path)


def _local_path(repo_path: Path | None, path: str) -> Path:
    """The folder of a store; its configured path is relative to the feature repository."""
    return Path(repo_path or "", Path(path).expanduser()).absolute()
