"""Write the rows of a view into another online store of Feast, to go back to it."""

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

from feast import FeatureStore
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig, load_repo_config

from feast_sketch_store.adapter.options import place_of
from feast_sketch_store.adapter.responses import logged_rows
from feast_sketch_store.errors import SettingsError, StorageError, reason_of
from feast_sketch_store.online_store import SketchOnlineStoreConfig, any_feature_view
from feast_sketch_store.operations.maintenance import opened_view
from feast_sketch_store.rows.entity_keys import SERIALIZATION_VERSION
from feast_sketch_store.settings.resolve import ttl_microseconds
from feast_sketch_store.view.live_shard import expire_before_of

_ROWS_A_BATCH = 1_000


def export(
    store: FeatureStore,
    view: str,
    other: Path,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> int:
    """Write what a view shows of each entity into another online store. Returns the number of rows.

    The values are those of the row log: no error rate applies to them. Rows that have expired are left out.
    Rows replace those that the other store has of the same entities, so an export can be run again. Redis
    keeps a row with the same or a newer event timestamp, unless its configuration has ``skip_dedup``.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    other : the ``feature_store.yaml`` with the other online store.
    on_progress : called with the number of rows written, and of all rows.

    Raises
    ------
    SettingsError : the other configuration cannot be used, or is that of this store; or reads of the view are
        held at a snapshot, and the row log has newer rows.
    StorageError : the row log cannot be read, or the other store did not take the rows.
    """
    opened, table = opened_view(store, view), any_feature_view(store, view)
    if any(shard.snapshots.listing().pinned for shard in opened.shards.values()):
        raise SettingsError(
            f"feature view {view!r} is pinned to a snapshot, and an export would also write the rows "
            f"since; run `feast-sketch unpin {quote(view)}` first"
        )
    expire_before = expire_before_of(ttl_microseconds(store.config.online_store, table))
    try:
        config = load_repo_config(other.absolute().parent, other.absolute())
        target: Any = get_online_store_from_config(config.online_store)
    except Exception as error:  # Feast may raise anything for a wrong file or a missing client library
        raise SettingsError(f"{other}: the other store cannot be opened: {reason_of(error)}") from error
    if _place(config) == _place(store.config):
        raise SettingsError(f"{other}: its online store is the one that the rows come from")
    if config.entity_key_serialization_version != SERIALIZATION_VERSION:
        raise SettingsError(
            f"{other}: set entity_key_serialization_version: {SERIALIZATION_VERSION}, in which keys are kept"
        )
    taken = done = 0
    # Ids are those of increments, and do not fit the sums.
    features = [c.feature for c in opened.settings.codecs if not c.is_computed and not c.ids_of]
    absent = {name: Value() for name in features}  # else the other store keeps those of the row before
    parts = opened.kept_rows()
    total = sum(len(kept) for kept in parts)
    try:
        # In a store of this package it would take features that only the other project has for removed ones;
        # there the first write makes what it needs.
        if not isinstance(config.online_store, SketchOnlineStoreConfig):
            target.update(config, [], [table], [], [], True)
        for kept in parts:
            for _, logged in kept.batches():
                for first in range(0, len(logged), _ROWS_A_BATCH):
                    part = logged.slice(first, _ROWS_A_BATCH)
                    shown = logged_rows(opened.settings, features, part, expire_before)
                    rows = [(key, absent | values, *moments) for key, values, *moments in shown]
                    target.online_write_batch(config, table, rows, None)
                    taken, done = taken + min(_ROWS_A_BATCH, len(logged) - first), done + len(rows)
                    on_progress(taken, total)
    except StorageError:
        raise
    except Exception as error:  # of the other store's client
        raise StorageError(
            f"feature view {view!r}: the other store took {done:,} of {total:,} rows, then failed: {error}"
        ) from error
    return done


def _place(config: RepoConfig) -> object:
    """Where the rows of a project are in a store of this package; something else for other stores."""
    if not isinstance(config.online_store, SketchOnlineStoreConfig):
        return config
    path = place_of(config).path
    return config.project, path.resolve() if isinstance(path, Path) else path.rstrip("/")
