"""Write the rows of a view into another online store of Feast, to go back to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from feast import FeatureStore
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.repo_config import load_repo_config

from feast_sketch_store.errors import SettingsError, StorageError, UnsupportedFeatureError
from feast_sketch_store.online_store import any_feature_view
from feast_sketch_store.operations.backing import feast_rows
from feast_sketch_store.operations.maintenance import opened_view
from feast_sketch_store.rows.codecs import LIST
from feast_sketch_store.rows.entity_keys import SERIALIZATION_VERSION

_ROWS_A_BATCH = 1_000


def export(
    store: FeatureStore,
    view: str,
    other: Path,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> int:
    """Write the newest row of each entity of a view into another online store.

    The values are those of the row log: no error rate applies to them. Rows are written beside those that the
    other store has, so an interrupted export can be run again.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    other : the ``feature_store.yaml`` with the other online store.
    tell : called with the number of rows written, and of all rows.

    Returns
    -------
    The number of rows.

    Raises
    ------
    SettingsError : the other configuration cannot be used.
    UnsupportedFeatureError : the view has lists or counts.
    StorageError : the row log cannot be read, or the other store did not take the rows.
    """
    opened, table = opened_view(store, view), any_feature_view(store, view)
    codecs = opened.settings.stored_codecs
    if added := [codec.feature for codec in opened.settings.codecs if codec.name == LIST or codec.counts_of]:
        raise UnsupportedFeatureError(
            f"feature view {view!r}: {', '.join(map(repr, added))} cannot be exported, because lists and "
            "counts are kept in parts; fill the other store from the offline store with `feast materialize`"
        )
    try:
        config = load_repo_config(other.absolute().parent, other.absolute())
        target: Any = get_online_store_from_config(config.online_store)
    except Exception as error:  # Feast may raise anything for a wrong file or a missing client library
        raise SettingsError(f"{other}: the other store cannot be opened: {error}") from error
    if config.entity_key_serialization_version != SERIALIZATION_VERSION:
        raise SettingsError(
            f"{other}: set entity_key_serialization_version: {SERIALIZATION_VERSION}, in which keys are kept"
        )
    done = 0
    parts = [kept for part in opened.shards.values() if (kept := part.kept_rows()) is not None]
    total = sum(len(kept) for kept in parts)
    try:
        target.update(config, [], [table], [], [], True)
        for kept in parts:
            for _, rows in kept.batches():
                for first in range(0, len(rows), _ROWS_A_BATCH):
                    taken = rows.take(np.arange(first, min(first + _ROWS_A_BATCH, len(rows))))
                    target.online_write_batch(config, table, feast_rows(taken, codecs, with_nulls=True), None)
                    done += len(taken)
                    tell(done, total)
    except StorageError:
        raise
    except Exception as error:  # of the other store's client
        raise StorageError(
            f"feature view {view!r}: the other store took {done:,} of {total:,} rows, then failed: {error}"
        ) from error
    return done
