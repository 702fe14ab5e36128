"""The views that an online store keeps open, each as long as its declaration stays the same."""

import copy
import logging
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from feast.feature_view import FeatureView
from feast.repo_config import RepoConfig
from feast.types import FeastType

from feast_sketch_store.adapter.options import (
    OnlineStoreOptions,
    name_in_store,
    seal_policy,
    settings_of,
    view_storage,
)
from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.metrics import ViewMetrics
from feast_sketch_store.settings.resolve import declared_join_keys
from feast_sketch_store.settings.table import Sharding
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.view.opening import is_worker, kept, open_view
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import ViewFile

_logger = logging.getLogger(__name__)

# What the declaration of an open view depends on: features with their types and tags, the view's tags, the
# default codec, and shards.
_Declaration = tuple[list[tuple[str, FeastType, dict[str, str]]], dict[str, str], str, Sharding]
# What settings depend on besides the declaration: columns of join keys, ttl, folder, options.
_Circumstances = tuple[list[tuple[str, FeastType]], timedelta | None, Path | None, OnlineStoreOptions]


class _Opened(NamedTuple):
    """An open view, and copies of what its settings were made from."""

    view: View
    declaration: _Declaration | None  # None if the view is read as its file says
    circumstances: _Circumstances


class OpenViews:
    """Open views by location. In a worker of a compute engine they outlive the stores that opened them."""

    def __init__(self) -> None:
        self.are_of_worker = is_worker()
        self._views: dict[str, _Opened] = kept("views")

    def get(self, config: RepoConfig, table: FeatureView) -> View:
        """The view of a feature view, opened at the first call and again when its features change.

        If its rows do not fit the present declaration, an open view answers on, and another is read as
        its file says: Feast's registries on SQL hold declarations that `feast apply` has refused. It is not
        written meanwhile; see `current`.
        """
        try:
            return self._get(config, table).view
        except (UnsupportedFeatureError, SettingsError) as error:
            storage = storage_of(config, table)
            known = self._views.get(storage.location)
            file = None if known else ViewFile.known(storage, config.online_store.read_only)
            if file is not None and file.has_keys(declared_join_keys(table)):
                view = opened(config, table, file.settings(table.name))
                known = self._keep(view, config, table)._replace(declaration=None)
                self._views[storage.location] = known
            if known is None or _circumstances(config, table) != known.circumstances:
                raise
            _warn_of_refused(known.view.storage.location, table.name, str(error))
            return known.view

    def _get(self, config: RepoConfig, table: FeatureView) -> _Opened:
        known = self._views.get(storage_of(config, table).location)
        if self.are_of_worker and known is not None:
            *_, opened_with = known.circumstances
            if opened_with != config.online_store:  # such as one with expired credentials
                known = None
        if known is None or known.declaration != _declaration(config, table):
            known = self._keep(opened(config, table), config, table)
        return known

    def current(self, config: RepoConfig, table: FeatureView) -> View:
        """The same with the current settings. Tags are read again only when something changed."""
        known = self._get(config, table)
        view = known.view
        view.follow_if_due()
        if known.circumstances != _circumstances(config, table):
            view.settings = settings_of(config, table)
            view.policy = seal_policy(config.online_store)
            self._keep(view, config, table)
        return view

    def _keep(self, view: View, config: RepoConfig, table: FeatureView) -> _Opened:
        """Remember an open view, with its present settings."""
        # Types are immutable. A type that is the same object is compared in a tenth of the time.
        types: dict[int, object] = {id(field.dtype): field.dtype for field in table.features}
        made_from = copy.deepcopy((_declaration(config, table), _circumstances(config, table)), types)
        known = self._views[storage_of(config, table).location] = _Opened(view, *made_from)
        return known

    def has(self, view: View) -> bool:
        """Whether a view is the one that is open at its location."""
        known = self._views.get(view.storage.location)
        return known is not None and known.view is view

    def pop(self, location: str) -> View | None:
        """Take a view out, if it is there."""
        known = self._views.pop(location, None)
        return None if known is None else known.view

    def pop_all(self) -> list[View]:
        """Take all views out."""
        views = [known.view for known in self._views.values()]
        self._views.clear()
        return views


def storage_of(config: RepoConfig, table: FeatureView) -> Storage:
    """The storage of a view, which may be empty."""
    return view_storage(config, name_in_store(config, table))


def opened(config: RepoConfig, table: FeatureView, settings: ViewSettings | None = None) -> View:
    """A new view of a feature view, not kept open; ``settings`` are by default the declared ones."""
    options = config.online_store
    view = open_view(
        storage_of(config, table),
        settings or settings_of(config, table),
        seal_policy(options),
        options.refresh.interval_seconds,
        options.refresh.max_staleness_seconds,
        options.read_only,
        options.shards.serve,
    )
    view.metrics = ViewMetrics(config.project, name_in_store(config, table))
    return view


@lru_cache(maxsize=1024)  # once for each reason
def _warn_of_refused(location: str, view: str, reason: str) -> None:
    _logger.warning(
        "feature view %r in %s cannot be written, and is read as it was declared before, because its present "
        "declaration is refused: %s. Correct it and run `feast apply`",
        view,
        location,
        reason,
    )


def _circumstances(config: RepoConfig, table: FeatureView) -> _Circumstances:
    join_keys = [(column.name, column.dtype) for column in getattr(table, "entity_columns", None) or []]
    return join_keys, getattr(table, "ttl", None), config.repo_path, config.online_store


def _declaration(config: RepoConfig, table: FeatureView) -> _Declaration:
    features = [(feature.name, feature.dtype, feature.tags) for feature in table.features]
    options = config.online_store
    return features, table.tags, options.default_codec, options.shards
