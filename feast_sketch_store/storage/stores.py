"""The place of a store, a local folder or a folder of a bucket, with its projects and views."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feast_sketch_store.storage import names
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.buckets import is_url, open_bucket, option_text
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import folder_name

if TYPE_CHECKING:
    from feast_sketch_store.storage.object_store import ObjectStorage

_Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StorePlace:
    """The place of a store.

    Parameters
    ----------
    path : a local folder or a URL.
    options : of the object store, with credentials; `repr` leaves them out.
    cache_path : local folder for files fetched from a bucket; None to fetch into memory.
    read_only : whether every method that changes something raises.
    """

    path: Path | str
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
        cache = None if cache_path is None else names.store_path(repo_path, cache_path)
        if not is_url(path):
            return cls(names.store_path(repo_path, path), read_only=read_only)
        given = {name: option_text(value) for name, value in (options or {}).items()}
        return cls(path, tuple(sorted(given.items())), cache, read_only)

    def view(self, project: str, view: str) -> Storage:
        """All that the store keeps for one feature view."""
        if isinstance(self.path, Path):
            return LocalStorage(names.view_path(self.path, project, view), self.read_only)
        return self._bucket().within(f"{folder_name(project)}/").within(f"{folder_name(view)}/")

    def project(self, project: str) -> Storage:
        """All that the store keeps for a project."""
        if isinstance(self.path, Path):
            return LocalStorage(names.project_path(self.path, project), self.read_only)
        return self._bucket().within(f"{folder_name(project)}/")

    def views(self, project: str) -> list[Storage]:
        """The storages of the existing views of a project."""
        if isinstance(self.path, Path):
            path = names.project_path(self.path, project)
            # A view may be a symbolic link, for example to another disk.
            return [LocalStorage(path / view, self.read_only) for view in names.folders_in(path)]
        folder = self._bucket().within(f"{folder_name(project)}/")
        return [folder.within(f"{view}/") for view in folder.folders()]

    def find_view(self, project: str | None, view: str) -> Storage:
        """The storage of an existing view.

        Parameters
        ----------
        project : None if the store has only one.
        view : its name.

        Raises
        ------
        SettingsError : there is no such view, or the project must be named.
        """
        if isinstance(self.path, Path):
            return names.find_view(self.path, project, view)
        store = self._bucket()
        folder = store.within(f"{names.project_folder(store.location, project, store.folders)}/")
        views = folder.folders()
        if folder_name(view) not in views:
            raise names.no_view(folder.location, view, views)
        return folder.within(f"{folder_name(view)}/")

    def _bucket(self) -> "ObjectStorage":
        return open_bucket(str(self.path), dict(self.options), self.read_only, self.cache_path)
