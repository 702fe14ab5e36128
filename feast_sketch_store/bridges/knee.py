"""The planner's knee for rows of another store: beyond it more bytes gain little."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from feast_sketch_store.layers.presence import bucket_timestamps
from feast_sketch_store.planning.choice import knee
from feast_sketch_store.planning.curves import SETS, Grid, candidates
from feast_sketch_store.planning.plan import Point
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.planning.source import features_of_rows
from feast_sketch_store.rows.codecs import MEMBERSHIP
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.settings.view_settings import ViewSettings


@dataclass(frozen=True)
class Knee:
    """The knee of a view's membership features.

    Parameters
    ----------
    label : the structure at the knee.
    saved_bytes : bytes saved against sets, for all entities; below 0 if it takes more.
    false_per_read : false values of a read.
    """

    label: str
    saved_bytes: float
    false_per_read: float


def knee_of_rows(table: pa.Table, settings: ViewSettings, view: str, num_entities: int) -> Knee | None:
    """The knee of a sample of rows; None without a knee, without membership features, or without values.

    Parameters
    ----------
    table : the rows in the form of the row log, one per entity.
    num_entities : of the whole view.
    """
    codecs = [codec for codec in settings.codecs if codec.name == MEMBERSHIP]
    if not codecs:
        return None
    rows = NewestRows(lambda columns: iter([table]))
    features = features_of_rows(rows, codecs)
    buckets, _ = bucket_timestamps(rows.keys.event_timestamps, settings.ttl_microseconds)
    number = max(num_entities, len(rows))
    rate, hashes = settings.presence_error_rate, rows.keys.entity_hashes
    sample = Sample(view, number, rate, hashes, features, buckets=buckets)
    if not sample.num_facts:
        return None
    points: Sequence[Point] = [candidate.point for candidate in candidates(sample, Grid())]
    if (corner := knee(points)) is None:
        return None
    chosen = points[corner]
    as_sets = next(point for point in points if point.curve == SETS)
    return Knee(
        f"{chosen.curve}: {chosen.label}",
        as_sets.memory_bytes - chosen.memory_bytes,
        chosen.false_per_read,
    )
