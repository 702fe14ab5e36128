"""Intervals of a survey: how often they cover the bytes that the whole view takes.

Samples of two sets of data, 20 of each. At least 90 % of the intervals hold; the narrowest ones still say
something: an interval is at most as wide as the size.
"""

from collections import Counter
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.Value_pb2 import Int64Set, Value
from feast.types import Int64, Set

from feast_sketch_store.bridges.survey import Sealed, bytes_per_entity
from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import all_values
from feast_sketch_store.rows.encoding import to_arrow
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.view.sealing import fold
from tests.helpers.keys import user_key

ROOT = Path(__file__).parents[2]
RUNS, HELD = 20, 18
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def purchases():
    """The products of 4,339 customers."""
    table = pq.read_table(ROOT / "feature_repo_example" / "data" / "online_retail_purchases.parquet")
    names: dict[str, int] = {}
    found: dict[int, set[int]] = {}
    for customer, products in zip(
        *(table[name].to_pylist() for name in ("customer_id", "products")), strict=True
    ):
        found.setdefault(customer, set()).update(names.setdefault(name, len(names)) for name in products)
    return list(found.values())


def authors():
    """The authors that 1,500 users were shown."""
    table = pq.read_table(ROOT / "tests" / "statistics" / "data" / "kuairand_author_views.parquet")
    found: dict[int, set[int]] = {}
    for user, author in zip(*(table[name].to_pylist() for name in ("entity", "value")), strict=True):
        found.setdefault(user, set()).add(author)
    return list(found.values())


def seal(rows):
    fields = [Field(name="user_id", dtype=Int64), Field(name="seen", dtype=Set(Int64))]
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    source = FileSource(name="rows", path="rows", timestamp_field="event")
    view = FeatureView(name="history", entities=[user], schema=fields, source=source)
    settings = resolve(SketchOnlineStoreConfig(), view)
    values = (Value(int64_set_val=Int64Set(val=row)) for row in rows)
    given = [(user_key(number), {"seen": value}, NOON, None) for number, value in enumerate(values)]
    sealed = fold(NewestRows(lambda columns: iter([to_arrow(given, settings.codecs)])), settings)
    layer = SketchLayer.from_snapshot(sealed.description, sealed.arrays)
    of_values = layer.features["seen"].vocabulary.packed_bytes
    return Sealed(layer.size_bytes - of_values, of_values, 7_000)


@pytest.mark.parametrize("num_sampled", [100, 400])
@pytest.mark.parametrize("data", [purchases, authors])
def test_bytes(data, num_sampled):
    rows = data()
    whole = seal(rows)
    truth = (whole.of_rows + whole.of_values + whole.fixed) / len(rows)
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
