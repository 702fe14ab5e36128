"""Samples of a view of a Feast repository: from its row log, or from its offline source."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from sys import stderr
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from feast import FeatureStore
from feast.feature_view import FeatureView
from feast.field import Field
from feast.protos.feast.types.Value_pb2 import Value
from numpy.typing import NDArray

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.options import settings_of
from feast_sketch_store.errors import PlanError
from feast_sketch_store.layers.presence import bucket_timestamps
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.planning.other_stores import StoredRows, value_sizes
from feast_sketch_store.planning.plan import PlannedField
from feast_sketch_store.planning.sample import FeatureSample, Sample, order_of, total_of
from feast_sketch_store.rows.arrow_rows import from_source
from feast_sketch_store.rows.codecs import MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import ENTITY_KEY, NO_TIMESTAMP, EncodedFeature, encode
from feast_sketch_store.rows.entity_keys import find_sorted, hash_columns
from feast_sketch_store.rows.vocabulary import VocabularyBuilder
from feast_sketch_store.settings.resolve import first_moment, join_key_columns
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.semantics import FoldedRows, RowSemantics, named


@dataclass(frozen=True)
class PlannedView:
    """A declared view with membership features, or with lists."""

    # store, table, settings: the repository, the feature view and its settings
    store: FeatureStore
    table: FeatureView
    settings: ViewSettings
    codecs: Sequence[FeatureCodec]  # of the membership features, or of the lists
    join_keys: Mapping[str, pa.DataType]  # their names and the types of their columns

    @classmethod
    def open(cls, store: FeatureStore, view: str) -> "PlannedView":
        """Look a view up.

        Raises
        ------
        SketchStoreError : the repository uses another online store.
        feast.errors.FeatureViewNotFoundException : there is no such view (from Feast).
        PlanError : the view has no membership features, and no lists.
        """
        online_store_of(store)
        table = any_feature_view(store, view)
        settings = settings_of(store.config, table)
        codecs = [codec for codec in settings.codecs if codec.name == MEMBERSHIP or codec.is_plain_list]
        if not codecs:
            raise PlanError(
                f"feature view {view!r} has nothing to plan: `plan` needs a Set, an Array that is not kept "
                "exactly, or a list"
            )
        return cls(store, table, settings, codecs, join_key_columns(table))

    @property
    def semantics(self) -> RowSemantics:
        """How its rows combine."""
        return named(self.settings.semantics, self.settings.codecs)

    def fields(self, chosen: Collection[str]) -> dict[str, PlannedField]:
        """The planned features as declared, without the tags that a plan chooses."""
        names = {codec.feature for codec in self.codecs}
        return {
            field.name: PlannedField(str(field.dtype), field.description or "", tags_beside(field, chosen))
            for field in self.table.features
            if field.name in names
        }

    @property
    def has_lists(self) -> bool:
        """Whether it has lists; then it has no membership features."""
        return self.codecs[0].is_list

    def hash_join_keys(self, columns: pa.Table) -> NDArray[np.uint64]:
        """Hash the entities of a table that has the join keys: uint64[n, 2].

        Raises PlanError: a join key is missing, null or of another type.
        """
        missing = sorted(self.join_keys.keys() - set(columns.column_names))
        if missing:
            raise PlanError(
                f"there is no column {missing[0]!r}: the join keys of view {self.table.name!r} are "
                f"{', '.join(sorted(self.join_keys))}"
            )
        try:
            return hash_columns(
                {
                    name: columns[name].combine_chunks().cast(arrow_type)
                    for name, arrow_type in self.join_keys.items()
                }
            )
        except (ValueError, TypeError) as error:
            raise PlanError(f"the join keys cannot be read: {error}") from error


def tags_beside(field: Field, chosen: Collection[str]) -> dict[str, str]:
    """The tags that a feature has beside those that a plan chooses."""
    return {name: value for name, value in (field.tags or {}).items() if name not in chosen}


def sample_view(
    view: PlannedView, max_entities: int, labelled: NDArray[np.uint64] | None, offline: bool
) -> tuple[Sample, Sample]:
    """Sample the row log of a view, or its offline source if the log is empty or not wanted.

    Parameters
    ----------
    view : the view.
    max_entities : of the sample. The smallest hashes are taken, so a sample is always the same.
    labelled : uint64[m, 2], entities to read besides the sample, ordered by hash; None for none.
    offline : sample the offline source even if the view has rows.

    Returns the sample; and the labelled entities, with the vocabulary of the sample.

    Raises
    ------
    PlanError : the view has no rows.
    StorageError : another process is sealing the view.
    """
    if not offline:
        with logged_rows(view) as logged:
            if logged is not None:
                return _sampled(view, logged, len(logged), max_entities, labelled)
    table = _offline_rows(view)
    if not len(table):
        raise no_rows(view)
    hashes = view.hash_join_keys(table)
    chosen = np.zeros(len(table), np.bool_)
    chosen[order_of(hashes)[:max_entities]] = True
    if labelled is not None:
        chosen |= _is_among(hashes, labelled)
    arrow = from_source(table.filter(pa.array(chosen)), view.table, view.settings.codecs)
    rows = view.semantics.fold(lambda columns: iter([arrow]))
    num_elements = {codec.feature: int(_lengths(table, codec.feature).sum()) for codec in view.codecs}
    return _sampled(view, rows, len(table), max_entities, labelled, num_elements)


def no_rows(view: PlannedView) -> PlanError:
    """The error of a view without rows."""
    return PlanError(
        f"feature view {view.table.name!r} has no rows to plan with, online or in its offline source"
    )


def no_values(view: PlannedView, what: str, num_sampled: int, num_entities: int) -> PlanError:
    """The error of a sample without values; ``what`` is planned, in the plural, such as "lists"."""
    where = f"the {what} of view {view.table.name!r}"
    if num_sampled == num_entities:
        return PlanError(f"{where} have no values in any row yet")
    return PlanError(
        f"{where}: none of the {num_sampled:,} sampled entities, of {num_entities:,}, has a value; raise "
        "--sample (`max_entities`)"
    )


@contextmanager
def logged_rows(view: PlannedView) -> Iterator[FoldedRows | None]:
    """The rows that count of the row logs of all shards, which no seal changes meanwhile; None without any.

    Raises StorageError: another process is sealing the view.
    """
    opened = online_store_of(view.store).view(view.store.config, view.table)
    with opened.unchanging():
        reads = [read for part in opened.shards.values() if (read := part.row_log.read())]

        def batches(columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
            for read in reads:
                yield from read.batches(columns)

        expire_before = expire_before_of(view.settings.ttl_microseconds)
        rows = view.semantics.fold(batches, expire_before) if reads else None
        yield rows if rows is not None and len(rows) else None


def _sampled(
    view: PlannedView,
    rows: FoldedRows,
    num_entities: int,
    max_entities: int,
    labelled: NDArray[np.uint64] | None,
    num_elements: Mapping[str, int] | None = None,
) -> tuple[Sample, Sample]:
    """The sample and the labelled entities, in one pass over rows.

    Parameters
    ----------
    rows : at least those of the sample and of the labelled entities.
    num_entities : of the whole view.
    view, max_entities, labelled : see `sample_view`.
    num_elements : per feature, the number of values in all rows of the view; None if ``rows`` are all rows.
    """
    keys, settings = rows.keys, view.settings
    is_sampled = np.arange(len(rows)) < max_entities  # the keys are ordered by hash
    is_labelled = np.zeros(len(rows), np.bool_)
    if labelled is not None:
        is_labelled = _is_among(keys.entity_hashes, labelled)
    collected = {codec.feature: _Collector(codec) for codec in view.codecs}
    parts, key_parts, counted = [], [], dict.fromkeys(collected, 0)
    for places, batch in rows.batches():
        lengths = {name: _lengths(batch, name) for name in collected}
        for name, of_feature in lengths.items():
            counted[name] += int(of_feature.sum())
        wanted = np.flatnonzero(is_sampled[places] | is_labelled[places])
        if not len(wanted):
            continue
        parts.append(places[wanted])
        taken = batch.take(pa.array(wanted))
        key_parts.append(pc.binary_length(taken[ENTITY_KEY]).to_numpy().astype(np.int64))
        for name, feature in encode(taken, keys.take(places[wanted]), view.codecs).features.items():
            collected[name].add(feature, lengths[name][wanted])

    places, key_bytes = np.concatenate(parts), np.concatenate(key_parts)
    ours, theirs = (np.flatnonzero(chosen[places]) for chosen in (is_sampled, is_labelled))
    features, of_labelled, facts, value_bytes = {}, {}, {}, {}
    for codec in view.codecs:
        name, collector = codec.feature, collected[codec.feature]
        features[name], of_labelled[name] = collector.finish([ours, theirs])
        values, own, written = features[name].vocabulary, features[name].rows, collector.num_elements[ours]
        facts[name] = total_of(own.lengths, written, (num_elements or counted)[name], num_entities)
        number = Value.DESCRIPTOR.fields_by_name[codec.value_field].number
        value_bytes[name] = value_sizes(codec.element_kind, number, values, own, written)
    has_created = bool((keys.created_timestamps[places[ours]] != NO_TIMESTAMP).any())
    stored = StoredRows(view.store.project, view.table.name, key_bytes[ours], value_bytes, has_created)
    buckets, _ = bucket_timestamps(keys.event_timestamps, settings.ttl_microseconds)
    presence, hashes = settings.presence_error_rate, keys.entity_hashes[places]
    return (
        Sample(num_entities, presence, hashes[ours], features, facts, stored, buckets),
        Sample(len(theirs), presence, hashes[theirs], of_labelled),
    )


def sample_of_rows(rows: FoldedRows, num_entities: int, settings: ViewSettings) -> Sample:
    """A sample of features of any codec, from all rows of it, of a view with this many entities."""
    collected = {codec.feature: _Collector(codec) for codec in settings.stored_codecs}
    parts = [np.zeros(0, np.int64)]
    for places, encoded in rows.encoded(settings.stored_codecs):
        parts.append(places)
        for name, collector in collected.items():
            collector.add(encoded.features[name], encoded.features[name].csr.lengths)
    order = np.argsort(np.concatenate(parts), kind="stable")
    buckets, _ = bucket_timestamps(rows.keys.event_timestamps, settings.ttl_microseconds)
    return Sample(
        max(num_entities, len(rows)),
        settings.presence_error_rate,
        rows.keys.entity_hashes,
        {name: collector.finish([order])[0] for name, collector in collected.items()},
        buckets=buckets,
    )


def _lengths(rows: pa.Table, feature: str) -> NDArray[np.int64]:
    """The number of values of each row, including repeated ones: int64[n]."""
    if feature not in rows.column_names or pa.types.is_null(rows[feature].type):
        return np.zeros(len(rows), np.int64)
    return np.asarray(pc.list_value_length(rows[feature]).fill_null(0).to_numpy(), np.int64)


def _is_among(hashes: NDArray[np.uint64], some: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each hash is in an ordered list: bool[n]."""
    found, _ = find_sorted(some, hashes)
    is_among = np.zeros(len(hashes), np.bool_)
    is_among[found] = True
    return is_among


class _Collector:
    """One feature of rows that come in parts."""

    def __init__(self, codec: FeatureCodec):
        self._vocabulary = VocabularyBuilder(codec.storage_type)
        self._lengths: list[NDArray[np.int64]] = []
        self._num_elements: list[NDArray[np.int64]] = []

    def add(self, feature: EncodedFeature, num_elements: NDArray[np.int64]) -> None:
        """Add some rows, and the number of values with which each was written."""
        self._vocabulary.add(feature.vocabulary, feature.symbols)
        self._lengths.append(feature.csr.lengths)
        self._num_elements.append(num_elements)

    @property
    def num_elements(self) -> NDArray[np.int64]:
        """The number of values of each row, including repeated ones: int64[n]."""
        return np.concatenate(self._num_elements)

    def finish(self, samples: Sequence[NDArray[np.int64]]) -> list[FeatureSample]:
        """The feature in the rows of each sample, with the vocabulary of the first sample."""
        vocabulary, _, parts = self._vocabulary.finish()
        symbols = np.concatenate([np.zeros(0, np.int32), *(part.astype(np.int32) for part in parts)])
        rows = Csr.of_lengths(np.concatenate(self._lengths), symbols)
        return FeatureSample.of(vocabulary, rows, samples)


def _offline_rows(view: PlannedView) -> pa.Table:
    """The newest row of each entity in the offline source, as Feast materializes it."""
    table, store = view.table, view.store
    source = getattr(table, "batch_source", None)
    if source is None:
        raise PlanError(f"feature view {table.name!r} has no rows and no batch source; write some rows first")
    end = datetime.now(UTC)
    entities = [store.get_entity(name) for name in table.entities if name != "__dummy"]
    join_keys, features, timestamp, created = feast_parts.COLUMN_NAMES(table, entities)
    offline_store: Any = store.provider.offline_store
    try:
        with redirect_stdout(stderr):
            job = offline_store.pull_latest_from_table_or_query(
                config=store.config,
                data_source=source,
                join_key_columns=join_keys,
                feature_name_columns=features,
                timestamp_field=timestamp,
                created_timestamp_column=created,
                start_date=first_moment(table, end),
                end_date=end,
            )
            rows: pa.Table = job.to_arrow()
    except Exception as error:  # of any offline store
        raise PlanError(
            f"feature view {table.name!r}: its batch source {source.name!r} cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    mapping = source.field_mapping or {}
    return rows.rename_columns([mapping.get(name, name) for name in rows.column_names])


def logged_offline_rows(view: PlannedView) -> pa.Table:
    """Rows of the offline source of a view with lists, in the form of the row log.

    Raises PlanError, RowError: there is no batch source; a row has another number of times than of items.
    """
    table, settings = _offline_rows(view).combine_chunks(), view.settings
    types = {column.name: column.dtype.to_value_type() for column in view.table.entity_columns}
    rows = feast_parts.ARROW_TO_PROTO(table, view.table, types) if len(table) else []
    return view.semantics.to_log(rows, settings.join_keys)
