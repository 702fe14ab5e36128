"""Intervals of a survey: how often they cover the bytes that the whole view takes.

Samples of two sets of data, 20 of each, or 10 in the short form. At least 90 % of the intervals hold; the
narrowest ones still say something: an interval is at most as wide as the size.
"""

from collections import Counter
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.Value_pb2 import Int64Set, Value
from feast.types import Int64, Set

from feast_sketch_store.bridges.survey import Sealed, bytes_per_entity
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import all_values
from feast_sketch_store.rows.encoding import to_arrow
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.view.sealing import fold
from tests.helpers.keys import user_key
from tests.helpers.length import by_length

pytestmark = pytest.mark.has_long_form

ROOT = Path(__file__).parents[2]
RUNS, HELD = by_length((10, 9), (20, 18))
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


def seal(rows):
    fields = [Field(name="user_id", dtype=Int64), Field(name="seen", dtype=Set(Int64))]
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    source = FileSource(name="rows", path="rows", timestamp_field="event")
    view = FeatureView(name="history", entities=[user], schema=fields, source=source)
    settings = resolve(SketchOnlineStoreConfig(), view)
    values = (Value(int64_set_val=Int64Set(val=row)) for row in rows)
    given = [(user_key(number), {"seen": value}, NOON, None) for number, value in enumerate(values)]
    layer = fold(NewestRows(lambda columns: iter([to_arrow(given, settings.codecs)])), settings)
    of_values = layer.features["seen"].vocabulary.packed_bytes
    return Sealed(layer.size_bytes - of_values, of_values, 7_000)


@pytest.fixture(scope="module", params=[purchases, authors])
def view(request):
    """All rows, and the bytes that each takes."""
    rows = request.param()
    whole = seal(rows)
    return rows, (whole.of_rows + whole.of_values + whole.fixed) / len(rows)


@pytest.mark.parametrize("num_sampled", [100, 400])
def test_bytes(view, num_sampled):
    rows, truth = view
    held, widths = 0, []
    for seed in range(RUNS):
        chosen = np.random.default_rng(seed).choice(len(rows), num_sampled, replace=False)
        sample = [rows[place] for place in chosen]
        counts = np.array([*Counter(chain.from_iterable(sample)).values()])
        known, seen = all_values(counts, num_sampled, len(rows)), len(counts)
        known = Estimate(known.value / seen, known.low / seen, known.high / seen)
        each = bytes_per_entity(sample, len(rows), known, seal, len)
        held += each.low <= truth <= each.high
        widths.append((each.high - each.low) / each.value)
    print(f"{held} of {RUNS} hold; they are {np.mean(widths):.0%} wide")
    assert held >= HELD
    assert np.mean(widths) < 1
