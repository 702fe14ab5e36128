"""Operations on a view of a Feast repository: inspect, seal, clean up, verify, rebuild, delete.

Every function takes a ``FeatureStore`` and the name of a feature view. The command line in `cli` is a thin
layer over them.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from feast import FeatureStore
from feast.errors import FeastObjectNotFoundException
from feast.feature_view import FeatureView
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.type_map import python_values_to_proto_values
from feast.value_type import ValueType

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.backing import NOWHERE
from feast_sketch_store.adapter.options import name_in_store, place_of, require_writer
from feast_sketch_store.errors import RowError, SketchStoreError
from feast_sketch_store.layers import SealedRows, SketchLayer
from feast_sketch_store.online_store import (
    SketchOnlineStore,
    any_feature_view,
    online_store_of,
    stored_views,
)
from feast_sketch_store.operations.backing import differences, refill
from feast_sketch_store.operations.reader_memory import reader_bytes
from feast_sketch_store.operations.resharding import former_files, remove_former
from feast_sketch_store.operations.verification import Verification, size_of, verify_view
from feast_sketch_store.rows.codecs import BINNED, SCORE
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.rows.entity_keys import find_sorted, hash_serialized_keys, serialize_entity_keys
from feast_sketch_store.rows.limits import aware
from feast_sketch_store.settings.resolve import first_moment, ttl_microseconds
from feast_sketch_store.settings.table import Backing
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import left_over
from feast_sketch_store.structures.sizing import within
from feast_sketch_store.view import holding, rebuilding
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.shard import Dropped
from feast_sketch_store.view.shard_map import way_out
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import shard_map_of

_logger = logging.getLogger(__name__)

WATCH_INTERVAL_SECONDS = 5.0
_SAMPLES = 200_000
_NO_SEAL = 2**62  # rows: a rebuild seals once, at its end
# With so many entities for each shard that has some, the probability of an empty shard is exp(-64).
_SURELY_IN_ALL = 64


@dataclass(frozen=True)
class FeatureReport:
    """One feature of a sealed view.

    Parameters
    ----------
    name, codec : of the feature.
    structure : bloom, weighted_bloom, learned_bloom, sandwiched_bloom or sets, as a tag may give it; or
        column, static, lists, counts, or backing.
    vocabulary : number of values; for a binned feature, number of distinct representatives. None if values
        have no ids.
    facts : facts that are kept.
    facts_cut : facts whose values are outside of the vocabulary.
    size_bytes : share of the snapshot: its column, or its vocabulary and its share of the table or the sets.
    expected_rate : false-positive rate that the table is sized for, the largest of all shards; 0 without a
        filter.
    sampled_rate : rate measured just now: the share of random values of the vocabulary that random unknown
        entities seem to have, the mean of all shards; 0 without a filter.
    max_error, mean_error : of a binned feature, the distances between numbers and their stored values at the
        last seal. For a score ``max_error`` is half of its step.
    sampled_within : the true rate is within this of ``sampled_rate`` with a confidence of 95 %, by a Chernoff
        bound.
    version : of a score. A seal that changes the meaning of its numbers increases it; then
        train the models that use it again.
    """

    name: str
    codec: str
    structure: str
    vocabulary: int | None
    facts: int
    facts_cut: int
    size_bytes: int
    expected_rate: float
    sampled_rate: float
    max_error: float | None = None
    mean_error: float | None = None
    sampled_within: float = 0.0
    version: int | None = None


@dataclass(frozen=True)
class ViewReport:
    """A view as it is served; sizes in bytes, ages in seconds. Figures of a snapshot are None without one.

    Parameters
    ----------
    view : its name.
    entities : of all rows, sealed or not.
    facts : values of all features, sealed or not, kept or cut; a scalar is one fact, a null none.
    unsealed_rows : number of them.
    expired_rows : rows that the view's ttl hides; ``entities`` includes them.
    bits_per_fact : of the snapshot, per sealed fact, kept or cut.
    table_bits_per_fact : of its tables, sets and static functions alone, with the index of rows that they
        need; None if it has none of them.
    memory_bytes : the snapshot, which processes share, and the unsealed rows, which each process has.
    private_bytes : memory of a process that reads all features, in addition to the snapshot that it
        shares, measured in such a process; None where the system does not report it.
    disk_bytes : all files of the view.
    snapshot_versions : of each shard, the number of commits that its snapshot covers; None without one.
    is_pinned : whether reads are pinned to this snapshot; then the report is about it.
    snapshot_age_seconds : since it was sealed.
    newest_event : event timestamp of the newest row, sealed or not.
    presence_sampled_rate : share of random unknown entities that seem to have a row.
    structure_bytes : of each structure in the snapshot; ``rows`` is the index of rows and their timestamps.
    features : a report for each feature.
    """

    view: str
    entities: int
    facts: int
    unsealed_rows: int
    expired_rows: int
    bits_per_fact: float | None
    table_bits_per_fact: float | None
    memory_bytes: int
    private_bytes: int | None
    disk_bytes: int
    snapshot_versions: tuple[int | None, ...]
    is_pinned: bool
    snapshot_age_seconds: float | None
    newest_event: str | None
    presence_sampled_rate: float | None
    structure_bytes: dict[str, int]
    features: list[FeatureReport]


def is_filled(store: FeatureStore, view: str) -> bool:
    """Whether anything was ever written to a view; reads nothing but its newest commits."""
    opened = opened_view(store, view)
    return opened.stats().unsealed_rows > 0 or any(v is not None for v in opened.snapshot_versions)


def inspect(store: FeatureStore, view: str) -> ViewReport:
    """Sizes, rates and ages of a view.

    Raises
    ------
    SketchStoreError : the online store is not a sketch store, or the view cannot be read.
    """
    reports, failed = inspect_all(store, [view])
    if failed:
        raise failed[0]
    return reports[0]


def inspect_all(store: FeatureStore, views: Sequence[str]) -> tuple[list[ViewReport], list[SketchStoreError]]:
    """`inspect` of several views, in less time than one after another; and the errors of those that cannot be
    read.
    """
    tables = [_resolve(store, view)[1] for view in views]
    reports: dict[str, ViewReport] = {}
    failed = []
    for view, table in zip(views, tables, strict=True):
        try:
            reports[name_in_store(store.config, table)] = _report(store, view, table)
        except SketchStoreError as error:
            failed.append(error)
    measured = reader_bytes(place_of(store.config), store.project, [*reports]) if reports else {}
    return [replace(report, private_bytes=measured.get(name)) for name, report in reports.items()], failed


def _report(store: FeatureStore, view: str, table: FeatureView) -> ViewReport:
    """All but the memory of a process that reads."""
    opened = online_store_of(store).writer(store.config, table)
    stats, state = opened.stats(), opened.state
    sealed, shards, keys = state.sealed, state.shards.values(), state.row_keys()
    options = store.config.online_store
    expire_before = expire_before_of(ttl_microseconds(options, table))
    layers = () if sealed is None else sealed.layers
    sealed_facts = 0 if sealed is None else sealed.num_facts
    all_names = [codec.feature for codec in opened.settings.codecs]
    unsealed_facts = sum(shard.unsealed_facts(all_names) for shard in shards)
    published = [shard.snapshot.published_at() for shard in shards if shard.snapshot is not None]
    presence, features = None, []
    if sealed is not None:
        presence = sealed.sampled_presence(_SAMPLES)
        rates = sealed.sampled_rates(sealed.codecs, _SAMPLES)
        declared = [field.name for field in table.features]
        names = sorted(sealed.codecs, key=lambda n: declared.index(n) if n in declared else len(declared))
        features = [_feature_report(sealed, name, rates[name]) for name in names]

    def per_fact(num_bits: int) -> float | None:
        return num_bits / sealed_facts if sealed_facts and num_bits else None

    return ViewReport(
        view,
        len(keys),
        sealed_facts + unsealed_facts,
        stats.unsealed_rows,
        int((keys.event_timestamps < expire_before).sum()),
        per_fact(8 * stats.snapshot_bytes),
        per_fact(sum(layer.fact_bits for layer in layers)),
        stats.snapshot_bytes + stats.unsealed_bytes,
        None,
        sum(info.size_bytes for info in opened.storage.walk()),
        opened.snapshot_versions,
        opened.is_pinned,
        max(0.0, time.time() - max(published)) if published else None,
        _as_text(keys.event_timestamps.max()) if len(keys) else None,
        presence,
        _structure_bytes(layers, features),
        features,
    )


def _as_text(microseconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds))).isoformat()


def _structure_bytes(layers: Sequence[SketchLayer], features: Sequence[FeatureReport]) -> dict[str, int]:
    """Bytes of each structure, and of the index of rows."""
    sizes: dict[str, int] = {}
    for feature in features:
        sizes[feature.structure] = sizes.get(feature.structure, 0) + feature.size_bytes
    if layers:
        sizes["rows"] = max(0, sum(layer.size_bytes for layer in layers) - sum(sizes.values()))
    return sizes


def _feature_report(sealed: SealedRows, name: str, sampled_rate: float) -> FeatureReport:
    features = sealed.features(name)
    feature = features[0]
    roundings = [layer.roundings[name] for layer in sealed.layers if name in layer.roundings]
    errors = [(rounding.max_error, rounding.mean_error) for rounding in roundings]
    errors += [own for feature in features if (own := feature.rounding_errors) is not None]
    formula = sealed.formulas.get(name)
    max_errors = [largest for largest, _ in errors]
    if formula is not None:
        max_errors.append(formula.max_error)
    return FeatureReport(
        name,
        BINNED if roundings else feature.codec.name if formula is None else SCORE,
        feature.structure,
        _num_values(sealed, name),
        sum(part.num_facts for part in features),
        sealed.cut.get(name, 0),
        round(sum(layer.size_bytes_of(name) for layer in sealed.layers)),
        max(part.false_positive_rate or 0.0 for part in features),
        sampled_rate,
        max(max_errors, default=None),
        max((mean for _, mean in errors), default=None),
        within(sampled_rate, _SAMPLES) if any(part.false_positive_rate for part in features) else 0.0,
        None if formula is None else formula.version,
    )


def _num_values(sealed: SealedRows, name: str) -> int | None:
    """How many values a feature has in all layers; None if that is not known.

    Each layer has the smallest structure for its own rows, with ids or without. Bins are common to all
    shards.
    """
    for layer in sealed.layers:
        if name in layer.roundings:
            representatives = layer.roundings[name].bins.representatives
            return len(pc.unique(layer.codecs[name].from_numbers(representatives)))
    known = [part.vocabulary.values for part in sealed.features(name) if part.vocabulary is not None]
    return len(pc.unique(pa.chunked_array(known))) if known else None


def seal(store: FeatureStore, view: str) -> bool:
    """Seal a view now. False if it has no rows, or if another process is sealing it."""
    online_store, table = _resolve(store, view)
    return online_store.seal(store.config, table)


def publish(store: FeatureStore, view: str, force: bool = False) -> int | None:
    """Let a fill that the gate held back count, if there is one, and seal the view.

    With ``force`` the gate is not asked. Returns the number of rows that count now; None if no fill was held
    back.

    Raises
    ------
    GateError : the view still does not pass.
    ShardError : the rows were divided into other shards since; the fill must be discarded.
    """
    require_writer(store.config)
    return holding.publish(opened_view(store, view), force)


def discard(store: FeatureStore, view: str) -> int | None:
    """Delete the rows of a fill that the gate held back. Returns their number; None if there is none.

    In a bucket, where another process may be publishing them, a vacuum deletes their files later.
    """
    require_writer(store.config)
    return holding.discard(opened_view(store, view))


def watch(
    store: FeatureStore,
    views: Sequence[str],
    stop: threading.Event,
    interval_seconds: float = WATCH_INTERVAL_SECONDS,
    on_progress: Callable[[str], object] = lambda view: None,
    policy: SealPolicy | None = None,
) -> None:
    """Seal views whenever they are due, until stopped. Other processes may write meanwhile.

    A seal that fails is logged once for each reason, and tried again.

    Parameters
    ----------
    store : the repository.
    views : their names; empty for all views of the repository, including those added later.
    stop : ends the loop, after the seal in progress.
    interval_seconds : between two checks of the views.
    on_progress : called with the name of each view that was sealed.
    policy : when to seal; None for the store's policy.

    Raises StorageError: the store is a replica.
    """
    require_writer(store.config)
    warned: dict[str, str] = {}
    while not stop.is_set():
        for view in views or views_of(store):
            if stop.is_set():
                return
            try:
                opened = opened_view(store, view)
                opened.policy = policy or opened.policy
                if opened.seal_if_due():
                    on_progress(view)
                warned.pop(view, None)
            except (SketchStoreError, FeastObjectNotFoundException) as error:
                # The view may have been dropped just now, or come back later.
                if warned.get(view) != str(error):
                    warned[view] = str(error)
                    _logger.warning("%s; feature view %r is tried again", error, view)
        stop.wait(interval_seconds)


def pin(
    store: FeatureStore,
    view: str,
    versions: Sequence[int] | None = None,
    may_hide: Callable[[int], bool] = lambda unsealed_rows: True,
) -> tuple[int, ...] | None:
    """Hold reads of a view at a snapshot in all processes, until `unpin`. Writes are kept, and not shown.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    versions : of a snapshot of each shard; None for the newest ones.
    may_hide : asked if rows have been written since the newest snapshot, with their number. Reads will not
        show them. If it returns False, nothing is done.

    Returns
    -------
    The versions of the snapshots; None if reads are not held.
    """
    opened = opened_view(store, view)
    if not opened.is_pinned:
        unsealed_rows = opened.stats().unsealed_rows
        if unsealed_rows and opened.state.sealed and not may_hide(unsealed_rows):
            return None
    return holding.pin(opened, versions)


def unpin(store: FeatureStore, view: str) -> bool:
    """Let reads of a view follow writes again. Returns whether they were held."""
    return holding.unpin(opened_view(store, view))


def vacuum(store: FeatureStore, view: str, orphan_age: timedelta = timedelta(days=1)) -> int | None:
    """Remove unused files and return their number; None if another process seals. See `View.vacuum`."""
    opened = opened_view(store, view)
    num_removed = opened.vacuum(orphan_age.total_seconds())
    return None if num_removed is None else num_removed + remove_former(opened.storage)


def verify(
    store: FeatureStore, view: str, progress: Callable[[int, int], object] = lambda done, total: None
) -> Verification:
    """Check all files of a view and compare its snapshot with its row log; see `verify_view`.

    For backed features, a sample of rows is compared with the backing store.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    progress : called with the bytes done and the total.

    Raises
    ------
    StorageError : another process is sealing the view.
    """
    opened = opened_view(store, view)
    settings = opened.settings
    total, done = sum(size_of(part.storage) for part in opened.shards.values()), 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(min(done, total), total)

    with opened.unchanging():
        found = Verification()
        empty: list[int] = []
        for number, part in opened.shards.items():
            own = verify_view(
                part.storage,
                settings.codecs,
                expire_before_of(settings.ttl_microseconds),
                count,
                settings.semantics,
                (number, len(opened.shards)),
            )
            if not (own.rows or own.snapshots or own.problems):
                empty.append(number)
            found += own
        num_others = len(opened.shards) - len(empty)
        if empty and num_others and found.compared_entities >= _SURELY_IN_ALL * num_others:
            found.problems.append(
                f"feature view {view!r}: the shards {', '.join(map(str, empty))} have no rows, and all "
                f"others have {found.compared_entities} entities: their folders were removed, or no write "
                "reached them; materialize the view again"
            )
        found.leftovers += left_over(opened.storage)
        there = shard_map_of(opened.storage)
        if there.is_moving:  # and who moves them holds the lock that is held here
            found.problems.append(
                f"feature view {view!r}: a process that divided its rows into other shards was killed, and "
                f"writes are refused; {way_out(view, there)}"
            )
        else:
            found.leftovers += former_files(opened.storage, opened.shard_map)
        if found.is_sound:
            found.problems += differences(store, view)
        return found


@dataclass(frozen=True)
class Deleted:
    """The result of `delete`: how many entities had rows, and the entity rows that had none."""

    found: int
    not_found: list[dict[str, Any]]


def delete(store: FeatureStore, view: str, entity_rows: Sequence[Mapping[str, Any]]) -> Deleted:
    """Delete all rows of some entities.

    When it returns, the deletion is durable and visible to this process; other processes see it within their
    refresh interval. `seal` and then `vacuum` remove the rows from the disk. A later write brings an entity
    back, so remove it from the offline store first.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    entity_rows : join keys and values, as for ``get_online_features``: ``[{"user_id": 7}]``.

    Returns
    -------
    Which of the entities had rows, expired rows included.

    Raises
    ------
    RowError : a row does not have the view's join keys, or a value has another type; nothing was deleted.
    """
    online_store, table = _resolve(store, view)
    try:
        keys = entity_keys_of(table, entity_rows)
    except RowError as error:
        raise RowError(f"{error}. Nothing was deleted") from error
    opened = online_store.writer(store.config, table)
    opened.refresh_all()  # this process may serve some shards only
    known = RowKeys.concatenate([shard.state.row_keys() for shard in opened.shards.values()])
    numbers = dict(zip(serialize_entity_keys(keys), range(len(keys)), strict=True))  # each entity once
    found, _ = find_sorted(known.entity_hashes, hash_serialized_keys([*numbers]))
    online_store.delete(store.config, table, [keys[number] for number in numbers.values()])
    not_found = np.delete(np.array([*numbers.values()], np.int64), found)
    return Deleted(len(found), [dict(entity_rows[number]) for number in not_found.tolist()])


def rebuild(
    store: FeatureStore,
    view: str,
    start: datetime | None = None,
    end: datetime | None = None,
    confirm: Callable[[Dropped | None], bool] | None = None,
    force: bool = False,
) -> int | None:
    """Drop all rows of a view and fill it from the offline store. Readers see one change.

    Reads see the old rows until the new ones are complete. Rows that are written meanwhile are kept.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    start : the first event timestamp; None for the view's ttl before ``end``, or for all rows.
    end : the last event timestamp; None for now.
    confirm : called before anything changes if rows would be dropped that the offline store lacks; its
        argument is None if the view's rows cannot be read.
    force : whether the new rows need not pass the view's gate.

    Returns
    -------
    The number of entities after the rebuild; None if it was not confirmed, and nothing has changed.

    Raises
    ------
    GateError : the new rows do not pass the view's gate; nothing has changed.
    StorageError : the offline store returned no rows, or another process is sealing the view; nothing has
        changed.
    SketchStoreError : the view has no batch source, or Feast cannot read it; or the start is after the end.
    """
    online_store, table = _resolve(store, view)
    source = getattr(table, "batch_source", None)
    if source is None:
        raise SketchStoreError(f"feature view {view!r} has no batch source to rebuild from")
    last = aware(end or datetime.now(UTC))
    first = aware(start or first_moment(table, last))
    if first > last:
        raise SketchStoreError(
            f"feature view {view!r}: there is no time from {first} to {last} to rebuild it from; "
            "give an earlier start, or a later end"
        )
    opened = online_store.writer(store.config, table)

    def fill(staging: Storage) -> Storage:
        options = store.config.online_store
        changed: dict[str, Any] = {
            "path": staging.location,
            "compaction": replace(options.compaction, min_rows=_NO_SEAL),
        }
        if options.backing_store is not None:
            changed["backing_store"] = Backing({"type": NOWHERE})  # keeps the old rows until this is done
        options = options.model_copy(update=changed)
        config = feast_parts.with_online_store(store.config, options, options.model_dump())
        # Feast prints its progress on standard output, which belongs to the caller.
        with contextlib.redirect_stdout(sys.stderr):
            filled = FeatureStore(repo_path=str(store.repo_path), config=config)
            name, _, version = view.partition("@")
            try:
                filled.materialize(first, last, feature_views=[name], version=version or None)
            except SketchStoreError:
                raise
            except Exception as error:  # of any offline store
                raise SketchStoreError(
                    f"feature view {view!r}: its batch source {source.name!r} cannot be "
                    f"materialized: {type(error).__name__}: {error}; nothing has changed"
                ) from error
        return online_store.storage(config, table)

    entities = rebuilding.rebuild(opened, fill, confirm, force=force)
    if entities is not None and opened.settings.backed_codecs:
        refill(store, view)
    return entities


def views_of(store: FeatureStore) -> list[str]:
    """The names of all views in the online store."""
    online_store_of(store)
    return sorted(view.name for view in stored_views(store))


def opened_view(store: FeatureStore, view: str) -> View:
    """A view of the repository, opened with the current settings; see `SketchOnlineStore.writer`."""
    online_store, table = _resolve(store, view)
    return online_store.writer(store.config, table)


def join_key_types(store: FeatureStore, view: str) -> dict[str, str]:
    """The join keys of a view and the names of their Feast value types."""
    table = any_feature_view(store, view)
    return {field.name: field.dtype.to_value_type().name for field in table.entity_columns}


def _resolve(store: FeatureStore, view: str) -> tuple[SketchOnlineStore, FeatureView]:
    return online_store_of(store), any_feature_view(store, view)


def entity_keys_of(table: FeatureView, entity_rows: Sequence[Mapping[str, Any]]) -> list[EntityKey]:
    """Entity keys, made as Feast makes them from the rows of ``get_online_features``.

    Raises RowError: a row does not have the view's join keys, or a value has another type.
    """
    types = {field.name: field.dtype.to_value_type() for field in table.entity_columns}
    for number, row in enumerate(entity_rows):
        if row.keys() != types.keys():
            raise RowError(
                f"entity row {number} has the keys {sorted(row)}, but feature view {table.name!r} has the "
                f"join keys {sorted(types)}"
            )
    columns = []
    for name, value_type in types.items():
        values = [row[name] for row in entity_rows]
        try:
            columns.append(_converted(values, value_type))
        except _REFUSALS as error:
            number = _first_refused(values, value_type)
            raise RowError(
                f"entity row {number}: join key {name!r} of feature view {table.name!r} is "
                f"{value_type.name}, not {values[number]!r} ({error})"
            ) from error
    return [EntityKey(join_keys=list(types), entity_values=values) for values in zip(*columns, strict=True)]


def _first_refused(values: Sequence[Any], value_type: ValueType) -> int:
    """The position of the first value that is not of the type."""
    for number, value in enumerate(values):
        try:
            _converted([value], value_type)
        except _REFUSALS:
            return number
    return 0  # each value alone is valid: the combination is wrong


def _converted(values: Sequence[Any], value_type: ValueType) -> list[Value]:
    """Values as protos. Feast would make other keys of nulls, of true and false, and of fractions."""
    for value in values:
        is_fraction = isinstance(value, float | np.floating) and not float(value).is_integer()
        if value is None or isinstance(value, bool | np.bool_) or (is_fraction and value_type in _WHOLE):
            raise TypeError("a key is not null, nor true or false, nor a fraction for a whole number")
    if value_type is ValueType.BYTES:  # Feast would make nulls of empty ones
        return [Value(bytes_val=value) for value in values]
    converted: list[Value] = python_values_to_proto_values(list(values), value_type)
    if any(value.WhichOneof("val") is None for value in converted):
        raise TypeError("Feast has no key of it")
    return converted


_REFUSALS = (AssertionError, TypeError, ValueError)  # of Feast's conversion
_WHOLE = (ValueType.INT32, ValueType.INT64, ValueType.UNIX_TIMESTAMP)
