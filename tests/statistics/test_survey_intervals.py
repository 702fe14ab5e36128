"""Intervals of a survey: how often they cover the bytes that the whole view takes.

Samples of two sets of data, 20 of each, or 10 in the short form. At least 90 % of the intervals hold; the
narrowest ones still say something: an interval is at most as wide as the size.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.Value_pb2 import Int64Set, Value
from feast.types import Int64, Set, String

from feast_sketch_store.bridges.survey import snapshot_bytes
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.planning.source import sample_of_rows
from feast_sketch_store.rows.encoding import to_arrow
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.view.folding import fold
from tests.helpers.keys import user_key
from tests.helpers.length import by_length

pytestmark = pytest.mark.has_long_form

ROOT = Path(__file__).parents[2]
RUNS, HELD = by_length((10, 9), (20, 18))
EXACT = {"sketch.codec": "exact"}
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def purchases():
    """The products of 4,339 customers."""
    table = pq.read_table(ROOT / "feature_repo_example" / "data" / "online_retail_purchases.parquet")
    products = table["products"].combine_chunks()
    customers = table["customer_id"].take(products.value_parent_indices())
    return sets_of(customers, products.flatten().dictionary_encode().indices)


def authors():
    """The authors that 1,500 users were shown."""
    table = pq.read_table(ROOT / "tests" / "statistics" / "data" / "kuairand_author_views.parquet")
    return sets_of(table["entity"], table["value"])


def sets_of(entities, values):
    """The values of each entity."""
    pairs = pa.table({"entity": entities, "value": values}).group_by("entity", use_threads=False)
    return [set(row) for row in pairs.aggregate([("value", "distinct")])["value_distinct"].to_pylist()]


def bytes_of(rows, num_entities):
    """The bytes of a snapshot of so many entities, by a survey of these rows; if they are all, of a seal."""
    fields = [Field(name="user_id", dtype=Int64), Field(name="seen", dtype=Set(Int64))]
    fields += [Field(name="segment", dtype=String), Field(name="score", dtype=Int64, tags=EXACT)]
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    source = FileSource(name="rows", path="rows", timestamp_field="event")
    settings = resolve(
        SketchOnlineStoreConfig(), FeatureView(name="history", entities=[user], schema=fields, source=source)
    )
    given = [
        (
            user_key(number),
            {
                "seen": Value(int64_set_val=Int64Set(val=row)),
                "segment": Value(string_val=f"segment {len(row)}"),
                "score": Value(int64_val=sum(row)),
            },
            NOON,
            None,
        )
        for number, row in enumerate(rows)
    ]
    folded = NewestRows(lambda columns: iter([to_arrow(given, settings.codecs)]))
    sizes = np.array([sum(value.ByteSize() for value in values.values()) for _, values, *_ in given])
    sample = sample_of_rows(folded, num_entities, settings)
    return snapshot_bytes(fold(folded, settings), settings, sample, sizes)


@pytest.fixture(scope="module", params=[purchases, authors])
def view(request):
    """All rows, and the bytes that they take."""
    rows = request.param()
    truth = bytes_of(rows, len(rows))
    assert truth.is_known
    return rows, truth.value


@pytest.mark.parametrize("num_sampled", [100, 400])
def test_bytes(view, num_sampled):
    rows, truth = view
    held, widths = 0, []
    for seed in range(RUNS):
        chosen = np.random.default_rng(seed).choice(len(rows), num_sampled, replace=False)
        found = bytes_of([rows[place] for place in chosen], len(rows))
        held += found.low <= truth <= found.high
        widths.append((found.high - found.low) / found.value)
    print(f"{held} of {RUNS} hold; they are {np.mean(widths):.0%} wide")
    assert held >= HELD
    assert np.mean(widths) < 1
