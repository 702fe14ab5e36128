"""Opens views with the shards that they have, and keeps those of worker processes open.

Feast makes a new online store in a worker of Spark or Ray for each batch of rows, which would open the view
and read its rows again.
"""

import logging
import sys
from collections.abc import Sequence
from shlex import quote
from typing import Any

from feast_sketch_store.errors import DamagedFileError, SettingsError, counted
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import kept_name
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.live_shard import LiveShard
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.semantics import named
from feast_sketch_store.view.shard_map import ShardMap, found_map
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import ViewFile

_logger = logging.getLogger(__name__)

_shared: dict[str, dict[str, Any]] = {}  # of the stores of a worker


def open_view(
    storage: Storage,
    settings: ViewSettings,
    policy: SealPolicy | None = None,
    refresh_interval_seconds: float = 1.0,
    max_staleness_seconds: float | None = None,
    is_replica: bool = False,
    served: Sequence[int] | None = None,
) -> View:
    """Open a view with the shards that it has, or those of its settings if it is new; see `View`.

    Raises
    ------
    DamagedFileError, StorageError : the view's file cannot be read.
    UnsupportedFeatureError : a feature has another type than rows that were written.
    SettingsError : there is no such shard to be served.
    """
    file, is_newer = ViewFile.known(storage, is_replica), False
    found = found_map(storage) if file is None else file.shard_map
    # Rows that are being divided may stay where they are in the end; writes then go on.
    shard_map = ShardMap.first(settings.num_shards) if found is None else found.settled
    if file is not None:
        is_newer = file.check(storage, settings)
    if found is not None:
        there, wanted = found.num_shards, settings.num_shards
        if there != wanted:
            _logger.warning(
                "feature view %r has %s, but its settings say %d, which is read only when a view is created. "
                "Set `shards: %d` (or the tag sketch.shards), or divide the rows with `feast-sketch reshard "
                "%s --shards %d`",
                settings.view,
                counted(there, "shard"),
                wanted,
                there,
                quote(settings.view),
                wanted,
            )
    view = View(
        storage,
        settings,
        policy,
        refresh_interval_seconds,
        max_staleness_seconds,
        is_replica,
        served if shard_map.num_shards > 1 else None,
        shard_map,
    )
    if view.registration is not None:
        view.registration.is_newer = is_newer
    return view


class ReadOnlyView(LiveView[LiveShard]):
    """A view that is read as its file says, and never written; parameters as of `LiveView`.

    Raises
    ------
    DamagedFileError, StorageError : the file cannot be read.
    SettingsError : there is no file yet, or there is no such shard to be served.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        refresh_interval_seconds: float,
        is_replica: bool = False,
        served: Sequence[int] | None = None,
    ):
        file = ViewFile.known(storage, is_replica)
        if file is None:
            raise SettingsError(
                f"{storage.location}: feature view {name!r} is not there yet; `feast apply` makes it"
            )
        try:
            self._semantics = named(file.semantics, file.codecs)
        except ValueError as error:
            raise DamagedFileError(f"{storage.location}: {error}") from error
        self.file, shard_map = file, file.shard_map.settled
        # A view that is not divided is served whole, and stays so when it is.
        served = served if shard_map.num_shards > 1 else None
        super().__init__(storage, name, shard_map, refresh_interval_seconds, is_replica, served)

    def _open_shard(self, storage: Storage, is_replica: bool) -> LiveShard:
        return LiveShard(storage, self._semantics, self._interval_seconds, is_replica, kept_name(self.name))


def is_worker() -> bool:
    """Whether this process runs tasks of Spark or Ray for another one."""
    spark, ray = sys.modules.get("pyspark"), sys.modules.get("ray")
    if spark is not None and hasattr(spark, "TaskContext") and spark.TaskContext.get() is not None:
        return True
    if ray is None or not hasattr(ray, "WORKER_MODE") or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def kept(name: str) -> dict[str, Any]:
    """An empty dictionary; in a worker, the dictionary of this name that all stores of the process share."""
    return _shared.setdefault(name, {}) if is_worker() else {}
