"""What views of another online store would be here, from a sample of their rows.

The sampled rows are sealed in memory, with the settings that the view would have here. So the codec and the
structure of each feature are known, and the bytes of the sample. The planner estimates how many bytes the
other entities add.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from feast import FeatureStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from numpy.typing import NDArray

from feast_sketch_store.bridges.base import (
    Bridge,
    OtherRow,
    OtherStore,
    OtherView,
    Pace,
    entity_key,
    open_bridge,
)
from feast_sketch_store.bridges.hashed_keys import KeyFinder
from feast_sketch_store.errors import SettingsError, SketchStoreError, StorageError
from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.online_store import SketchOnlineStoreConfig, any_feature_view, stored_views
from feast_sketch_store.planning.other_stores import LISTPACK_VALUE, REDIS, StoredRows, redis_bytes
from feast_sketch_store.planning.plan import Estimate, limits_of_sample
from feast_sketch_store.planning.planner import false_values, growth
from feast_sketch_store.planning.sample import Sample, total_by_mean
from feast_sketch_store.planning.source import sample_of_rows
from feast_sketch_store.rows.codecs import BINNED, CATEGORICAL, EXACT, MEMBERSHIP
from feast_sketch_store.rows.entity_keys import serialize_entity_keys
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.snapshot.format import encode
from feast_sketch_store.snapshot.sealed import with_checksums
from feast_sketch_store.view.folding import fold
from feast_sketch_store.view.semantics import named

_logger = logging.getLogger(__name__)

DEFAULT_SAMPLE = 20_000
_ASKED_FOR_BYTES = 500  # rows whose size is requested from the store
_WIDER_LISTPACK = 512
_REASONS = {
    MEMBERSHIP: "which values it has counts: a Set, or an Array of names or numbers",
    CATEGORICAL: "a scalar: its few values have ids, or a column holds them",
    BINNED: "a number in bins, as its tags say",
    EXACT: "a type that is kept as it is: its values hardly repeat",
}


@dataclass(frozen=True)
class SurveyedFeature:
    """A feature, and what it would become here."""

    name: str  # of the feature
    # codec, structure: as in `inspect`
    codec: str
    structure: str
    why: str  # the reason for the codec
    facts: Estimate  # estimated values of all entities
    values: Estimate | None  # estimated distinct values; None if that does not matter


@dataclass(frozen=True)
class SurveyedView:
    """A view of another store."""

    view: str  # its name
    source: str  # the kind of the store
    entities: Estimate  # with a 95 % interval unless they were counted
    sampled: int  # number of entities read
    # oldest, newest: event timestamps of the sample
    oldest: str
    newest: str
    keys: str  # ``exact``, ``recovered`` or ``need --keys``; see `importing`
    resolution: str  # of the store's timestamps
    bytes_there: Estimate | None  # as the store reports; None if it does not
    bytes_listpack: float | None  # in Redis with ``hash-max-listpack-value 512``; None for other stores
    bytes_here: Estimate  # of the snapshot, with the default settings
    ratio: Estimate | None  # of the bytes there to those here
    false_per_read: float  # false values of a read
    features: list[SurveyedFeature]  # of the view
    notes: list[str]  # what the figures do not say


def survey(
    other: Path,
    views: Sequence[str] = (),
    num_rows: int = DEFAULT_SAMPLE,
    max_rows_per_second: float | None = None,
    on_progress: Callable[[str, int], object] = lambda view, rows: None,
) -> Iterator[SurveyedView | str]:
    """Survey the views of another online store, which is only read.

    Parameters
    ----------
    other : its ``feature_store.yaml``; the registry of that repository knows the views.
    views : their names; empty for all online views.
    num_rows : of the sample of each view.
    max_rows_per_second : spares the other store; None for no limit.
    on_progress : called with the view and the number of rows read.

    Returns for each view its survey, or why it cannot be surveyed.

    Raises SettingsError: the configuration cannot be used, or a view does not exist.
    """
    store = OtherStore.load(other)
    registry = FeatureStore(repo_path=str(store.file.parent), config=store.config)
    known = sorted(view.name for view in stored_views(registry))
    if unknown := [view for view in views if view not in known]:
        raise SettingsError(
            f"{other}: project {store.config.project!r} has no feature view {unknown[0]!r} online; it has: "
            f"{', '.join(known) or 'none'}"
        )
    if not known:
        raise SettingsError(
            f"{other}: project {store.config.project!r} has no online feature views in its registry "
            f"{store.config.registry.path}; run `feast apply` in that repository first"
        )
    for name in views or known:
        try:
            # Lists of views lack the join key of those without entities.
            view = OtherView(store, any_feature_view(registry, name))
            yield _Survey(view, num_rows, max_rows_per_second, on_progress).run()
        except Exception as error:  # the other views are surveyed all the same
            _logger.debug("survey of %s", name, exc_info=True)
            reason = str(error) if isinstance(error, SketchStoreError) else f"{type(error).__name__}: {error}"
            yield reason if repr(name) in reason else f"feature view {name!r}: {reason}"


class _Survey:
    def __init__(
        self,
        view: OtherView,
        num_rows: int,
        max_rows_per_second: float | None,
        on_progress: Callable[[str, int], object],
    ):
        self._view, self._num_rows, self._on_progress = view, num_rows, on_progress
        self._pace = Pace(max_rows_per_second)
        options = SketchOnlineStoreConfig()
        self._settings: ViewSettings = resolve(options, view.table, view.config.repo_path)
        self._semantics = named(self._settings.semantics, self._settings.codecs)

    def run(self) -> SurveyedView:
        bridge = open_bridge(self._view)
        try:
            rows, entities = self._sampled(bridge)
            if not rows:
                raise StorageError(f"{self._view}: there are no rows")
            asked = list(rows.values())[:_ASKED_FOR_BYTES]
            reported = bridge.stored_bytes(asked)
            finder = KeyFinder(self._view.table, None)
            keys = "exact" if bridge.has_keys else "need --keys" if finder.needs_keys else "recovered"
            return self._surveyed(rows, entities, reported, keys, bridge.resolution)
        finally:
            bridge.close()

    def _sampled(self, bridge: Bridge) -> tuple[dict[bytes | str, OtherRow], Estimate]:
        """Rows by entity, and the number of entities."""
        rows: dict[bytes | str, OtherRow] = {}
        num_scanned = found = 0
        for page in bridge.sample(self._num_rows):
            num_scanned += page.num_scanned
            found += len(page.rows)
            for row in page.rows:
                rows[row.entity if isinstance(row.entity, str) else row.entity.SerializeToString()] = row
            self._on_progress(self._view.name, len(rows))
            self._pace.wait(len(page.rows))
        counted = bridge.count()
        is_whole = found < self._num_rows and not bridge.samples_at_random
        if counted is None or is_whole or num_scanned >= counted.value:
            return rows, Estimate.exactly(len(rows))  # the scan found all
        share = min(1.0, found / num_scanned)  # SCAN of Redis may return more keys than it was asked for
        spread = 1.96 * math.sqrt(max(0.0, share * (1 - share)) / num_scanned)
        if counted.is_known and share == 1:
            return rows, counted
        low, high = counted.low * max(0.0, share - spread), counted.high * min(1.0, share + spread)
        return rows, Estimate(counted.value * share, max(float(len(rows)), low), high)

    def _surveyed(
        self,
        rows: Mapping[bytes | str, OtherRow],
        entities: Estimate,
        reported: Estimate | None,
        keys: str,
        resolution: str,
    ) -> SurveyedView:
        given = list(rows.values())
        folded = self._semantics.fold(lambda columns: iter([self._table(given)]))
        layer = fold(folded, self._settings)
        sample = sample_of_rows(folded, round(entities.value), self._settings)
        sizes = np.array([sum(map(_size_of, row.values.values())) for row in given], np.int64)
        here = snapshot_bytes(layer, self._settings, sample, sizes)
        each = _each(here, entities)
        stamps = sorted(row.event for row in given)
        return SurveyedView(
            self._view.name,
            self._view.store.kind,
            entities,
            len(rows),
            stamps[0].isoformat(),
            stamps[-1].isoformat(),
            keys,
            resolution,
            None if reported is None else _times(reported, entities),
            self._with_wider_listpacks(given, reported, entities.value),
            _times(each, entities),
            None
            if reported is None
            else Estimate(reported.value / each.value, reported.low / each.high, reported.high / each.low),
            false_values(self._settings, members_of(sample, self._settings)),
            [
                self._feature(layer, sample, name, entities)
                for name in self._view.features
                if name in sample.features
            ],
            list(self._notes(rows, entities, reported)),
        )

    def _table(self, rows: Sequence[OtherRow]) -> pa.Table:
        """The rows in the form of the row log."""
        given = [(self._key(row, number), *row[1:]) for number, row in enumerate(rows)]
        return self._semantics.to_log(given, None)

    def _key(self, row: OtherRow, number: int) -> EntityKey:
        """The key of a row; a stand-in for a hash, no matter which: all entities take the same space."""
        if not isinstance(row.entity, str):
            return row.entity
        return EntityKey(join_keys=self._view.join_keys[:1], entity_values=[Value(int64_val=number)])

    def _feature(self, layer: SketchLayer, sample: Sample, name: str, entities: Estimate) -> SurveyedFeature:
        feature, codec = layer.features[name], self._settings.features[name].codec
        return SurveyedFeature(
            name,
            codec.name,
            feature.structure,
            _REASONS.get(codec.name, codec.name),
            _times(_each(sample.facts_of[name], entities), entities),
            None if feature.vocabulary is None else sample.vocabulary_sizes[name],
        )

    def _with_wider_listpacks(
        self, rows: Sequence[OtherRow], reported: Estimate | None, num_entities: float
    ) -> float | None:
        """The bytes that Redis reports, scaled by the ratio of the two settings' computed sizes."""
        if self._view.store.kind != REDIS or reported is None:
            return None
        lengths = [len(key) for key in serialize_entity_keys([entity_key(row) for row in rows])]
        stored = StoredRows(
            self._view.config.project,
            self._view.name,
            np.array(lengths, np.int64),
            {
                name: np.array([_size_of(row.values.get(name)) for row in rows], np.int64)
                for name in self._view.features
            },
            False,
        )
        number = max(1, round(num_entities))
        usual = redis_bytes(stored, number, LISTPACK_VALUE).mean()
        wider = redis_bytes(stored, number, _WIDER_LISTPACK).mean()
        return float(reported.value * num_entities * (wider / usual))  # of equal sizes exactly the same

    def _notes(
        self,
        rows: Mapping[bytes | str, OtherRow],
        entities: Estimate,
        reported: Estimate | None,
    ) -> Iterator[str]:
        if len(rows) < entities.value:
            yield limits_of_sample(len(rows), round(entities.value))
        if not entities.is_known:
            yield "The number of entities is estimated, from the keys that were read."
        if reported is None:
            yield "The store does not report how many bytes it takes."
        future = datetime.now(UTC)
        if any(row.event > future for row in rows.values()):
            yield "Some event timestamps lie in the future."


def _size_of(value: Value | None) -> int:
    return 0 if value is None else int(value.ByteSize())


def _each(total: Estimate, entities: Estimate) -> Estimate:
    return Estimate(*(number / entities.value for number in astuple(total)))


def _times(each: Estimate, entities: Estimate) -> Estimate:
    return Estimate(each.value * entities.value, each.low * entities.low, each.high * entities.high)


def members_of(sample: Sample, settings: ViewSettings) -> Sample:
    """The membership features of a sample of features of any codec."""
    names = {codec.feature for codec in settings.codecs if codec.name == MEMBERSHIP}
    return replace(sample, features={name: f for name, f in sample.features.items() if name in names})


def snapshot_bytes(
    layer: SketchLayer, settings: ViewSettings, sample: Sample, row_bytes: NDArray[np.int64]
) -> Estimate:
    """The bytes of a snapshot of all entities of a view: those of its sealed sample, and what the others add.

    The planner estimates what they add to membership features and to the list of entities. Other features
    grow with the number of entities, and their vocabularies with the number of values.

    Parameters
    ----------
    layer, sample : the sampled rows, sealed with the ``settings``, and as features of any codec.
    row_bytes : int64[n], of the values of each sampled row, for the spread of the bytes of other features.
    """
    description, arrays = layer.to_snapshot()
    file = encode(description, with_checksums(arrays))
    size = np.full(3, sum(part.nbytes for part in file), np.float64)  # and the ends of its interval
    members, planned = members_of(sample, settings), None
    others, of_rows = {*layer.features}, float(layer.size_bytes)
    if members.num_facts and (planned := growth(settings, members)) is not None:
        size += astuple(planned)
        others -= members.features.keys()
        of_rows = sum(map(layer.size_bytes_of, others))
    for name in others & sample.features.keys():
        if (vocabulary := layer.features[name].vocabulary) is not None:
            seen = max(1, len(sample.features[name].vocabulary))
            size += vocabulary.packed_bytes * (np.array(astuple(sample.vocabulary_sizes[name])) / seen - 1)
            of_rows -= vocabulary.packed_bytes
    total = np.array(astuple(total_by_mean(row_bytes + 1, sample.num_entities)))
    size += of_rows * (total / (row_bytes + 1).sum() - 1)
    return Estimate(*size.tolist())
