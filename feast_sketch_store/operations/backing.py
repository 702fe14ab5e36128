"""Operations on a backing store: refill it from the row log, and compare it with the row log."""

from collections.abc import Callable, Iterator, Sequence
from shlex import quote

import numpy as np
import pyarrow as pa
from feast import FeatureStore
from numpy.typing import NDArray

from feast_sketch_store.adapter.backing import BackedView, Lookup
from feast_sketch_store.adapter.options import require_writer
from feast_sketch_store.adapter.responses import logged_rows
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.rows.entity_keys import key_text
from feast_sketch_store.view.semantics import FoldedRows

_ROWS_A_BATCH = 1_000
_MAX_SHOWN = 3


def refill(
    store: FeatureStore, view: str, on_progress: Callable[[int, int], object] = lambda done, total: None
) -> int:
    """Write the backed features of all rows of a view from the row log to its backing store.

    Use it after the backing store lost data, after a feature became backed, or after a write failed half-way.
    ``on_progress`` is called with the number of rows done, and of all rows. Returns the number of rows
    written: those with a value of a backed feature.

    Raises
    ------
    SettingsError : the view has no backed features.
    StorageError : the store is a replica, the backing store did not accept the rows, or the row log cannot be
        read.
    """
    require_writer(store.config)
    backed = _backed(store, view)
    if not backed.features or backed.store is None:
        raise SettingsError(f"feature view {view!r} has no features that a backing store keeps")
    num_written = done = 0
    kept = backed.view.kept_rows()
    total = sum(len(part.keys) for part in kept)
    for table, rows in _parts(backed, kept):
        has_value = np.array([bool(values) for _, values, _, _ in rows])
        chosen = np.flatnonzero(has_value)
        num_written += backed.put(table.take(chosen), [rows[n] for n in chosen.tolist()])
        done += len(rows)
        on_progress(done, total)
    return num_written


def differences(store: FeatureStore, view: str, num_rows: int = 1_000) -> list[str]:
    """Compare a sample of rows with the backing store, and describe each difference in a sentence.

    A view without backed features has no differences.

    Raises StorageError: the backing store or the row log cannot be read.
    """
    backed = _backed(store, view)
    if not (names := backed.features) or backed.store is None:
        return []
    kept = backed.view.kept_rows()
    is_chosen = np.zeros(sum(len(part.keys) for part in kept), np.bool_)
    is_chosen[np.random.default_rng().permutation(len(is_chosen))[:num_rows]] = True
    missing: dict[str, list[str]] = {name: [] for name in names}
    other: dict[str, list[str]] = {name: [] for name in names}
    for _, rows in _parts(backed, kept, is_chosen):
        keys = [key for key, _, _, _ in rows]
        lookup = Lookup(backed.table, keys, names, backed.view.metrics)
        for (key, values, _, _), (_, theirs) in zip(rows, backed.store.fetch(lookup), strict=True):
            for name, value in values.items():
                found = (theirs or {}).get(name)
                if found is None or found.WhichOneof("val") is None:
                    missing[name].append(key_text(key))
                elif found != value:
                    other[name].append(key_text(key))
    way_out = f"; `feast-sketch refill {quote(view)}` writes them again"
    problems = []
    for lost, what in ((missing, "lacks"), (other, "has other values than the row log for")):
        for name, entities in lost.items():
            if entities:
                few = ", ".join(entities[:_MAX_SHOWN])
                problems.append(
                    f"feature {name!r} of view {view!r}: the backing store ({backed.store.kind}) {what} "
                    f"{len(entities)} of {int(is_chosen.sum())} entities, {few} among them{way_out}"
                )
    return problems


def _backed(store: FeatureStore, view: str) -> BackedView:
    online_store, table = online_store_of(store), any_feature_view(store, view)
    return BackedView(online_store.writer(store.config, table), table, online_store.backing(store.config))


def _parts(
    backed: BackedView, kept: Sequence[FoldedRows], is_chosen: NDArray[np.bool_] | None = None
) -> Iterator[tuple[pa.Table, list[FeastRow]]]:
    """Rows in parts, each with its backed features; all, or those chosen of all shards, one shard after the
    other.
    """
    before = 0
    for shard in kept:
        for places, table in shard.batches():
            mine = np.arange(len(table)) if is_chosen is None else np.flatnonzero(is_chosen[before + places])
            for first in range(0, len(mine), _ROWS_A_BATCH):
                rows = table.take(mine[first : first + _ROWS_A_BATCH])
                yield rows, list(map(_with_values, logged_rows(backed.view.settings, backed.features, rows)))
        before += len(shard.keys)


def _with_values(row: FeastRow) -> FeastRow:
    """The row without features that are null in it."""
    key, values, event, created = row
    return key, {name: value for name, value in values.items() if value.WhichOneof("val")}, event, created
