"""The size that the views of another online store would have here, from a sample of its rows.

The sampled rows are sealed in memory, with the settings that the view would have here, and their bytes are
scaled to all rows.

A sample shows fewer values than the view has, so its codes are too short, and its vocabulary too small. How
much is missing shows in the growth from seals of half the sample to a seal of the whole: bytes per entity
grow by some amount with each doubling of the rows, and that amount shrinks as values become known. So the
truth lies between no further growth, and as much growth with each doubling that the view is larger.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from feast import FeatureStore
from feast.feature_view import FeatureView
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

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
from feast_sketch_store.layers.presence import bucket_timestamps
from feast_sketch_store.online_store import SketchOnlineStoreConfig, stored_views
from feast_sketch_store.planning.choice import knee
from feast_sketch_store.planning.curves import SETS, Grid, candidates
from feast_sketch_store.planning.other_stores import LISTPACK_VALUE, REDIS, StoredRows, redis_bytes
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import (
    FeatureSample,
    Sample,
    all_values,
    spread_of_total,
    total_by_mean,
)
from feast_sketch_store.planning.source import features_of_rows
from feast_sketch_store.rows.codecs import BINNED, CATEGORICAL, EXACT, MEMBERSHIP
from feast_sketch_store.rows.entity_keys import serialize_entity_keys
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.snapshot.format import encode
from feast_sketch_store.snapshot.sealed import with_checksums
from feast_sketch_store.view.sealing import fold
from feast_sketch_store.view.semantics import named

_logger = logging.getLogger(__name__)

DEFAULT_SAMPLE = 20_000
_ASKED_FOR_BYTES = 500  # rows whose size is requested from the store
_WIDER_LISTPACK = 512
_SEED = 7
_FEWEST = 8  # rows, from which growth can be seen

Row = TypeVar("Row")

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
    # the structure of membership features at the planner's knee; empty without one, as without such features
    knee: str
    # bytes_at_knee, false_at_knee: of the snapshot, and of a read, at the knee
    bytes_at_knee: float | None
    false_at_knee: float | None
    features: list[SurveyedFeature]  # of the view
    notes: list[str]  # what the figures do not say


def survey(
    other: Path,
    views: Sequence[str] = (),
    num_rows: int = DEFAULT_SAMPLE,
    max_rows_per_second: float | None = None,
    tell: Callable[[str, int], object] = lambda view, rows: None,
) -> Iterator[SurveyedView | str]:
    """Survey the views of another online store, which is only read.

    Parameters
    ----------
    other : its ``feature_store.yaml``; the registry of that repository knows the views.
    views : their names; empty for all online views.
    num_rows : of the sample of each view.
    max_rows_per_second : spares the other store; None for no limit.
    tell : called with the view and the number of rows read.

    Returns for each view its survey, or why it cannot be surveyed.

    Raises SettingsError: the configuration cannot be used, or a view does not exist.
    """
    store = OtherStore.load(other)
    registry = FeatureStore(repo_path=str(store.file.parent), config=store.config)
    known: dict[str, FeatureView] = {view.name: view for view in stored_views(registry)}
    if unknown := [view for view in views if view not in known]:
        raise SettingsError(
            f"{other}: project {store.config.project!r} has no feature view {unknown[0]!r} online; it has: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    if not known:
        raise SettingsError(
            f"{other}: project {store.config.project!r} has no online feature views in its registry "
            f"{store.config.registry.path}; run `feast apply` in that repository first"
        )
    for name in views or sorted(known):
        try:
            yield _Survey(OtherView(store, known[name]), num_rows, max_rows_per_second, tell).run()
        except Exception as error:  # the other views are surveyed all the same
            _logger.debug("survey of %s", name, exc_info=True)
            reason = str(error) if isinstance(error, SketchStoreError) else f"{type(error).__name__}: {error}"
            yield reason if repr(name) in reason else f"feature view {name!r}: {reason}"


@dataclass(frozen=True)
class Sealed:
    """Bytes of a snapshot: of its rows, of its vocabularies, and those that every snapshot has."""

    of_rows: float
    of_values: float
    fixed: float


class _Knee(NamedTuple):
    """The planner's knee of membership features, beyond which more bytes gain little. ``saved_bytes`` are
    those that it takes less than sets, for all entities.
    """

    label: str
    saved_bytes: float
    false_per_read: float


class _Survey:
    def __init__(
        self,
        view: OtherView,
        num_rows: int,
        max_rows_per_second: float | None,
        tell: Callable[[str, int], object],
    ):
        self._view, self._num_rows, self._tell = view, num_rows, tell
        self._pace = Pace(max_rows_per_second)
        options = SketchOnlineStoreConfig()
        self._settings: ViewSettings = resolve(options, view.table)
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
        looked_at = found = 0
        for page in bridge.sample(self._num_rows):
            looked_at += page.num_looked_at
            found += len(page.rows)
            for row in page.rows:
                rows[row.entity if isinstance(row.entity, str) else row.entity.SerializeToString()] = row
            self._tell(self._view.name, len(rows))
            self._pace.wait(len(page.rows))
        counted = bridge.count()
        is_whole = found < self._num_rows and not bridge.samples_at_random
        if counted is None or is_whole or looked_at >= counted.value:
            return rows, Estimate.exactly(len(rows))  # the scan found all
        share = min(1.0, found / looked_at)  # SCAN of Redis may return more keys than it was asked for
        spread = 1.96 * math.sqrt(max(0.0, share * (1 - share)) / looked_at)
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
        table, num_entities = self._table(given), round(entities.value)
        layer = self._sealed(table)[0]
        newest = NewestRows(lambda columns: iter([table]))
        features = features_of_rows(newest, [c for c in self._settings.codecs if c.feature in layer.codecs])
        at_knee = self._knee(newest, features, num_entities)
        distinct = {name: all_values(f.counts, len(rows), num_entities) for name, f in features.items()}
        numbered = [name for name in layer.codecs if layer.features[name].vocabulary is not None]
        seen = max(1, sum(len(features[name].vocabulary) for name in numbered))
        known = [sum(getattr(distinct[name], end) for name in numbered) for end in ("value", "low", "high")]
        values_known = Estimate(*(number / seen for number in known))
        each = bytes_per_entity(given, entities.value, values_known, self._bytes_of, _row_size)
        ratio = (
            None
            if reported is None
            else Estimate(reported.value / each.value, reported.low / each.high, reported.high / each.low)
        )
        here = _times(each, entities)
        stamps = sorted(row.event for row in rows.values())
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
            here,
            ratio,
            sum(
                (feature.false_positive_rate or 0.0)
                * max(0.0, feature.num_values - feature.num_facts / len(rows))
                for feature in layer.features.values()
            ),
            "" if at_knee is None else at_knee.label,
            None if at_knee is None else here.value - at_knee.saved_bytes,
            None if at_knee is None else at_knee.false_per_read,
            [
                self._feature(layer, name, _num_facts(features[name], entities), distinct[name])
                for name in self._view.features
                if name in features
            ],
            list(self._notes(rows, entities, reported, at_knee)),
        )

    def _knee(
        self, rows: NewestRows, features: Mapping[str, FeatureSample], num_entities: int
    ) -> _Knee | None:
        """The knee of the sample; None without one, or without values of membership features."""
        members = [codec.feature for codec in self._settings.codecs if codec.name == MEMBERSHIP]
        buckets, _ = bucket_timestamps(rows.keys.event_timestamps, self._settings.ttl_microseconds)
        sample = Sample(
            max(num_entities, len(rows)),
            self._settings.presence_error_rate,
            rows.keys.entity_hashes,
            {name: features[name] for name in members},
            buckets=buckets,
        )
        if not sample.num_facts:
            return None
        points = [candidate.point for candidate in candidates(sample, Grid())]
        if (corner := knee(points)) is None:
            return None
        chosen = points[corner]
        as_sets = next(point for point in points if point.curve == SETS)
        saved_bytes = as_sets.memory_bytes - chosen.memory_bytes
        return _Knee(f"{chosen.curve}: {chosen.label}", saved_bytes, chosen.false_per_read)

    def _table(self, rows: Sequence[OtherRow]) -> pa.Table:
        """The rows in the form of the row log."""
        given = [(self._key(row, number), *row[1:]) for number, row in enumerate(rows)]
        return self._semantics.to_log(given, None)

    def _key(self, row: OtherRow, number: int) -> EntityKey:
        """The key of a row; a stand-in for a hash, no matter which: all entities take the same space."""
        if not isinstance(row.entity, str):
            return row.entity
        return EntityKey(join_keys=self._view.join_keys[:1], entity_values=[Value(int64_val=number)])

    def _sealed(self, table: pa.Table) -> tuple[SketchLayer, int]:
        """The rows as a layer, and the bytes of a snapshot besides the layer."""
        layer = fold(self._semantics.fold(lambda columns: iter([table])), self._settings)
        description, arrays = layer.to_snapshot()
        file = encode({"layer": description}, with_checksums(arrays))
        return layer, sum(part.nbytes for part in file) - layer.size_bytes

    def _bytes_of(self, rows: Sequence[OtherRow]) -> Sealed:
        layer, fixed = self._sealed(self._table(rows))
        of_values = sum(
            feature.vocabulary.packed_bytes
            for feature in layer.features.values()
            if feature.vocabulary is not None
        )
        return Sealed(layer.size_bytes - of_values, of_values, fixed)

    def _feature(self, layer: SketchLayer, name: str, facts: Estimate, distinct: Estimate) -> SurveyedFeature:
        feature = layer.features[name]
        codec = next(codec for codec in self._settings.codecs if codec.feature == name)
        return SurveyedFeature(
            name,
            codec.name,
            feature.structure,
            _REASONS.get(codec.name, codec.name),
            facts,
            None if feature.vocabulary is None else distinct,
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
        at_knee: _Knee | None,
    ) -> Iterator[str]:
        if len(rows) < entities.value:
            yield (
                f"{len(rows):,} entities were sampled. How many values there are beyond theirs is estimated "
                "(Chao), which is a lower bound if very many are rare."
            )
        if not entities.is_known:
            yield "The number of entities is estimated, from the keys that were looked at."
        if reported is None:
            yield "The store does not report how many bytes it takes."
        if at_knee is not None:
            yield (
                f"At the knee membership features are kept as {at_knee.label}. After an import "
                "`feast-sketch plan` shows the other points."
            )
        future = datetime.now(UTC)
        if any(row.event > future for row in rows.values()):
            yield "Some event timestamps lie in the future."


def _size_of(value: Value | None) -> int:
    return 0 if value is None else int(value.ByteSize())


def _row_size(row: OtherRow) -> float:
    return sum(map(_size_of, row.values.values()))


def _times(each: Estimate, entities: Estimate) -> Estimate:
    return Estimate(each.value * entities.value, each.low * entities.low, each.high * entities.high)


def _num_facts(feature: FeatureSample, entities: Estimate) -> Estimate:
    """The number of values of all entities, from the mean of the sampled ones."""
    facts = total_by_mean(feature.rows.lengths, max(len(feature.rows), round(entities.value)))
    if entities.is_known:
        return facts
    return Estimate(
        facts.value, facts.low * entities.low / entities.value, facts.high * entities.high / entities.value
    )


# -- the size of a whole view ----------------------------------------------------------------------------


def bytes_per_entity(
    rows: Sequence[Row],
    num_entities: float,
    known_values: Estimate,
    seal: Callable[[Sequence[Row]], Sealed],
    size_of: Callable[[Row], float],
) -> Estimate:
    """The bytes of a snapshot of all rows, for each entity.

    Parameters
    ----------
    rows : the sample, in any order.
    num_entities : of the whole view.
    known_values : the number of values of the whole view, for each one of the sample.
    seal : seals some of the rows.
    size_of : a number to which the bytes of a row are about proportional.
    """
    whole, number = seal(rows), len(rows)
    each = whole.of_rows / number
    if num_entities <= number:
        return Estimate.exactly((whole.of_rows + whole.of_values + whole.fixed) / number)
    growth_of_rows, growth_of_values = 0.0, 1.0
    if number >= _FEWEST:
        order = np.random.default_rng(_SEED).permutation(number)
        halves = [seal([rows[place] for place in half]) for half in np.array_split(order, 2)]
        growth_of_rows = max(0.0, each - sum(half.of_rows for half in halves) / number)
        of_half = sum(half.of_values for half in halves) / 2
        growth_of_values = max(1.0, whole.of_values / of_half) if of_half else 1.0
    doublings = math.log2(num_entities / number)
    sizes = np.array([size_of(row) for row in rows], np.float64)
    spread = spread_of_total(sizes, num_entities) / num_entities / max(1.0, float(sizes.mean()))
    values_low = whole.of_values * known_values.low
    values_high = max(whole.of_values * known_values.high, whole.of_values * growth_of_values**doublings)
    low = each * (1 - spread) + (values_low + whole.fixed) / num_entities
    high = (each + growth_of_rows * doublings) * (1 + spread) + (values_high + whole.fixed) / num_entities
    # Growth shrinks: about half of what would be without that.
    values = (whole.of_values * known_values.value + values_high) / 2
    likely = each + growth_of_rows * doublings / 2 + (values + whole.fixed) / num_entities
    return Estimate(min(max(likely, low), high), low, high)
