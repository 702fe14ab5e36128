"""Plans of views with lists: what ticks and limits cost, in bytes and in items.

Lists of sampled entities are coded as in a seal, for each tick and limit. Bytes of codes grow with the number
of entities; values missing from the sample are estimated (Chao). For comparison there are lists in order.
Their size is an estimate by code lengths: ids by their frequencies, and the time from each item to the next
one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import PlanError, counted
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.planning.choice import PlanTarget
from feast_sketch_store.planning.curves import LISTED_HEADER_BYTES, header_bytes
from feast_sketch_store.planning.plan import Estimate, Plan, Point, limits_of_sample
from feast_sketch_store.planning.sample import all_values, spread_of_total, total_by_mean
from feast_sketch_store.planning.source import (
    PlannedView,
    logged_offline_rows,
    logged_rows,
    no_rows,
    no_values,
)
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.lists import as_sealed
from feast_sketch_store.settings.table import CODEC_TAG, TAG_PREFIX
from feast_sketch_store.settings.values import duration_text
from feast_sketch_store.structures.costs import index_bytes, packed_bytes
from feast_sketch_store.structures.lists import ListFeature
from feast_sketch_store.succinct import AttributeCodes, TimedLists
from feast_sketch_store.succinct.coded_rows import code_lengths
from feast_sketch_store.succinct.timed_lists import classes_of
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.semantics import AppendedRows

LISTS = "lists, sets per tick"
IN_ORDER = "lists in order"
TICKS = (1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000)
LIMITS = (None, 200, 50)

_LIST = TAG_PREFIX + "list"


@dataclass(frozen=True)
class ListSample:
    """Lists of sampled entities, whole and with exact times."""

    rows: EncodedRows  # of the sampled entities
    num_entities: int  # of the whole view
    presence_error_rate: float  # of its list of entities

    @property
    def scale(self) -> float:
        """Entities of the view for each sampled one."""
        return self.num_entities / len(self.rows)

    def cut(self, codecs: Sequence[FeatureCodec], listing: Listing) -> Mapping[str, EncodedFeature]:
        """The lists as a seal keeps them with a given tick and limit, with its reserve."""
        wanted = {}
        for codec in codecs:
            assert codec.listing is not None
            own = replace(listing, attributes=codec.listing.attributes)
            wanted[codec.feature] = replace(codec, listing=own)
        return as_sealed(self.rows, wanted).features

    def num_values(self, feature: EncodedFeature) -> Estimate:
        """The number of values in all lists of the view, by Chao's estimate."""
        items = Csr(feature.indptr, feature.symbols).distinct()
        counts = np.bincount(items.ids, minlength=len(feature.vocabulary))
        return all_values(counts, len(self.rows), self.num_entities)


def plan_lists(view: PlannedView, target: PlanTarget, max_entities: int, offline: bool) -> Plan:
    """What the lists of a view cost in bytes, by tick and limit.

    Parameters
    ----------
    view : with lists.
    target : a memory, or none for the declared settings.
    max_entities, offline : see `plan_view`.

    Raises PlanError: the target is of another kind, there are no rows, or nothing fits.
    """
    if target.noise_ratio is not None or target.auc:
        raise PlanError(
            f"feature view {view.table.name!r} has lists, which are exact; plan them by memory, or without a "
            "target"
        )
    sample = _sampled(view, max_entities, offline)
    exact = {codec.feature: sample.rows.features[codec.feature] for codec in view.codecs}
    num_items = sum(len(feature.symbols) for feature in exact.values())
    if not num_items:
        raise no_values(view, "lists", len(sample.rows), sample.num_entities)
    points = [point for tick in _ticks(view) for point in _points(view, sample, tick, num_items)]
    points.sort(key=lambda point: (point.curve != LISTS, point.memory_bytes))
    chosen = _chosen(points, view, target)
    lengths = np.sum([feature.csr.lengths for feature in exact.values()], axis=0)
    return Plan(
        view.table.name,
        sample.num_entities,
        total_by_mean(lengths, sample.num_entities),
        len(sample.rows),
        {name: sample.num_values(feature) for name, feature in exact.items()},
        points,
        chosen,
        chosen,
        _target_text(target),
        list(_limits(sample)),
        fields=view.fields((CODEC_TAG, _LIST)),
        is_current=dict(points[chosen].settings) == _declared(view),
    )


def _sampled(view: PlannedView, max_entities: int, offline: bool) -> ListSample:
    rows = None
    if not offline:
        with logged_rows(view) as rows:
            pass  # all items are in memory now
    if rows is None:
        table = logged_offline_rows(view)
        since = expire_before_of(view.settings.ttl_microseconds)
        rows = view.semantics.fold(lambda columns: iter([table]), since)
    if not len(rows):
        raise no_rows(view)
    assert isinstance(rows, AppendedRows)
    # Keys are ordered by hash, so a sample is always the same.
    sampled = rows.lists(np.arange(min(max_entities, len(rows))))
    return ListSample(sampled, len(rows), view.settings.presence_error_rate)


def _ticks(view: PlannedView) -> list[int]:
    declared = {codec.listing.resolution_microseconds for codec in view.codecs if codec.listing}
    return sorted({*TICKS, *declared})


def _points(view: PlannedView, sample: ListSample, tick: int, num_items: int) -> Iterator[Point]:
    """The points of one tick: all limits that cut some list, and lists in order."""
    declared = {codec.listing.limit for codec in view.codecs if codec.listing}
    limits = sorted(
        {*LIMITS, *declared}, key=lambda limit: math.inf if limit is None else limit, reverse=True
    )
    whole = sample.cut(view.codecs, Listing(tick))
    longest = max(int(feature.csr.lengths.max()) for feature in whole.values())
    num_whole = sum(len(feature.symbols) for feature in whole.values())
    for limit in limits:
        most = Listing(tick, limit).most_sealed
        if most is not None and most >= longest and limit not in declared:
            continue
        lists = whole if limit is None else sample.cut(view.codecs, Listing(tick, limit))
        kept = sum(len(feature.symbols) for feature in lists.values()) / max(1, num_whole)
        text = f"tick {duration_text(timedelta(microseconds=tick))}" + (
            "" if limit is None else f", limit {limit}"
        )
        tags = {codec.feature: _tags(tick, limit) for codec in view.codecs}
        sealed = [_sealed(feature) for feature in lists.values()]
        beside = sum(map(_attribute_bits, sealed), np.zeros(len(sample.rows)))
        row_bits = sum((_bits_of_rows(feature.lists) for feature in sealed), beside)
        yield _point(LISTS, text, sample, lists, row_bits, (num_items, kept), tags)
        if limit is None:
            row_bits = sum(map(_order_bits, lists.values()), beside)
            yield _point(IN_ORDER, text, sample, lists, row_bits, (num_items, kept), {})


def _point(
    curve: str,
    label: str,
    sample: ListSample,
    lists: Mapping[str, EncodedFeature],
    row_bits: NDArray[np.float64],
    items: tuple[int, float],
    settings: Mapping[str, Mapping[str, str]],
) -> Point:
    """A point with these bits per row; ``items`` has the sample's number of items, and the kept share."""
    num_items, kept_share = items
    code_bytes = float(row_bits.sum()) * sample.scale / 8
    row_bytes = index_bytes(sample.num_entities, sample.presence_error_rate)
    row_bytes += packed_bytes(sample.num_entities, 1)  # of timestamps, taken for two different ones
    # The index of rows: ascending numbers take the logarithm of their mean distance, and 2 bits each.
    starts = len(lists) * sample.num_entities * (2 + math.log2(max(1.0, row_bits.mean()))) / 8
    values = 0.0
    for feature in lists.values():
        values += feature.vocabulary.packed_bytes_of(sample.num_values(feature).value)
    memory = code_bytes + starts + row_bytes + values + LISTED_HEADER_BYTES + header_bytes(1)
    error = spread_of_total(row_bits, sample.num_entities) / 8
    all_items = num_items * sample.scale
    in_lists = 8 * (code_bytes + starts + row_bytes) / all_items
    bits = 8 * memory / all_items
    bounds = memory - error, memory + error
    return Point(curve, label, memory, *bounds, in_lists, bits, 0.0, 0.0, kept_share, None, settings)


def _sealed(feature: EncodedFeature) -> ListFeature:
    """The lists of the sampled rows as a seal codes them, in their order."""
    rows = np.arange(len(feature.states))
    collected = CollectedFeature(feature.codec, len(rows))
    collected.add(rows.astype(np.int32), feature)
    collected.finish()
    return ListFeature.build(collected, rows)


def _bits_of_rows(codes: TimedLists | AttributeCodes) -> NDArray[np.float64]:
    """Bits of the codes of each row: float64[n]."""
    starts = codes.starts.to_numbers()
    return np.diff(starts, append=codes.num_bits).astype(np.float64)


def _attribute_bits(feature: ListFeature) -> NDArray[np.float64]:
    """Bits of the attributes of each row, and of the index of these: float64[n]."""
    if feature.attributes is None:
        return np.zeros(feature.lists.num_rows)
    bits = _bits_of_rows(feature.attributes)
    return bits + 2 + math.log2(max(1.0, bits.mean()))


def _order_bits(feature: EncodedFeature) -> NDArray[np.float64]:
    """Bits of each row as ids in order, with the time from each to the next: float64[n]."""
    items, listing = feature.csr, feature.codec.listing
    assert listing is not None
    ticks = listing.times_of(items.numbers) // listing.resolution_microseconds
    gaps = (ticks.max() if len(ticks) else 0) - ticks
    gaps[1:] -= np.where(items.rows[1:] == items.rows[:-1], gaps[:-1], 0)
    classes = classes_of(gaps)
    lengths = code_lengths(np.bincount(classes, minlength=128))
    shares = np.bincount(items.ids)[items.ids] / max(1, len(items.ids))
    bits = lengths[classes] + np.maximum((classes >> 1) - 1, 0) - np.log2(shares)
    return np.bincount(items.rows, bits, len(items)).astype(np.float64)


def _chosen(points: Sequence[Point], view: PlannedView, target: PlanTarget) -> int:
    """The point that fits with the most items, then the finest ticks; without a target the declared one."""
    ours = [number for number, point in enumerate(points) if point.settings]
    if target.memory_bytes is None:
        declared = _declared(view)
        return next((n for n in ours if dict(points[n].settings) == declared), ours[-1])
    fitting = [n for n in ours if points[n].memory_bytes <= target.memory_bytes]
    if not fitting:
        least = min(points[n].memory_bytes for n in ours)
        raise PlanError(
            f"nothing fits in {counted(target.memory_bytes, 'byte')}: the smallest lists of the plan take "
            f"{least:,.0f}"
        )
    return max(fitting, key=lambda n: (points[n].kept_share, points[n].memory_bytes))


def _tags(tick: int, limit: int | None) -> dict[str, str]:
    limited = "" if limit is None else f", limit: {limit}"
    return {
        CODEC_TAG: "list",
        _LIST: f"{{resolution: {duration_text(timedelta(microseconds=tick))}{limited}}}",
    }


def _declared(view: PlannedView) -> dict[str, dict[str, str]]:
    """The current settings of the lists, written as a plan writes them."""
    return {
        codec.feature: _tags(codec.listing.resolution_microseconds, codec.listing.limit)
        for codec in view.codecs
        if codec.listing
    }


def _target_text(target: PlanTarget) -> str:
    if target.memory_bytes is None:
        return "what is declared"
    return f"the most items, and then the finest ticks, in at most {counted(target.memory_bytes, 'byte')}"


def _limits(sample: ListSample) -> Iterator[str]:
    """Sentences that readers of the figures must know."""
    yield (
        "Facts are items that have not expired: an entity, a value and an exact time. Sealed lists keep the "
        "tick of a time, and a value once in a tick."
    )
    yield (
        f"The curve {IN_ORDER!r} is for comparison: bits by code lengths of ids in order, with the time to "
        "the next item. Seals code sets per tick."
    )
    yield (
        "A limit cuts what a read shows; a seal keeps twice as many items in memory, at least 16 more. Rows "
        "on disk keep all items until they expire, so a higher limit brings them back."
    )
    yield (
        "Memory is the lists, where they begin, the list of entities and the vocabulary. Unsealed rows and "
        "what a process keeps ready for answers are extra."
    )
    yield limits_of_sample(len(sample.rows), sample.num_entities)
