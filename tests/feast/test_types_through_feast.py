"""Values of every type as users hand them to Feast and get them back: as from Feast's SQLite store."""

import math
import uuid
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal as PythonDecimal

import pandas as pd
import pytest
from feast import FeatureStore, Field
from feast.types import (
    Array,
    Bool,
    Bytes,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    Json,
    Map,
    Set,
    String,
    Struct,
    TimeUuid,
    UnixTimestamp,
    Uuid,
)

from tests.helpers.repository import USER, read_users

pytestmark = pytest.mark.slow

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ZONED = datetime(2026, 5, 1, 12, 30, 15, 123456, timezone(timedelta(hours=5, minutes=30)))
ONE_UUID = str(uuid.UUID(int=1))

# The rows of one batch; None is a null. What Feast 0.67 cannot turn into a Value is left out.
CASES = {
    "string": (String, ["", "é", "e\u0301", "🛒", None, "x" * 2**20]),
    "int32": (Int32, [0, -1, 2**31 - 1, -(2**31)]),
    "int64": (Int64, [0, -1, 2**63 - 1, -(2**63)]),
    "bool": (Bool, [True, False]),
    "bytes": (Bytes, [b"", b"\0\xff", None]),
    "float32": (Float32, [0.5, -0.0, math.inf, 1e-45]),
    "float64": (Float64, [0.1, -0.0, -math.inf, 5e-324]),
    "timestamp": (UnixTimestamp, [NOON, ZONED, NOON + timedelta(microseconds=1)]),
    "uuid": (Uuid, [ONE_UUID, str(uuid.UUID(int=2**128 - 1))]),
    "time uuid": (TimeUuid, [str(uuid.UUID(fields=(1, 2, 0x1003, 4, 5, 6)))]),
    "decimal": (Decimal, [PythonDecimal("1.10"), PythonDecimal("-1E+30")]),
    "json": (Json, ['{"b": 1, "a": [2]}', "null"]),
    "map": (Map, [{"a": "x"}, {}, {"n": {"deep": "y"}}]),
    "struct": (Struct({"a": Int64, "b": String}), [{"a": 1, "b": "x"}]),
    "strings": (Array(String), [["b", "a", "b"], [], None, [""]]),
    "int64s": (Array(Int64), [[3, 1, 3], [], [2**63 - 1]]),
    "bools": (Array(Bool), [[True, False, True]]),
    "floats": (Array(Float32), [[0.25, -0.0, 0.25]]),
    "doubles": (Array(Float64), [[0.1, math.inf]]),
    "timestamps": (Array(UnixTimestamp), [[NOON, ZONED], [NOON, pd.NaT], [pd.NaT]]),
    "byte strings": (Array(Bytes), [[b"\0", b""]]),
    "nested": (Array(Array(Int64)), [[[1, 2], [], [1]]]),
    "set of strings": (Set(String), [{"a", "b"}, set()]),
    "set of numbers": (Set(Int64), [{1, -1}]),
}
STORES = {
    "sqlite": {"type": "sqlite"},
    "unsealed": {"default_codec": "exact"},
    "sealed": {"default_codec": "exact", "compaction": {"min_rows": 0}, "target": "error 1e-9"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_data_frame_comes_back_as_from_sqlite(make_config, make_view, tmp_path, case):
    dtype, values = CASES[case]
    view = make_view([Field(name="x", dtype=dtype)])
    users = list(range(len(values) + 1))  # the last one is not there
    frame = pd.DataFrame(
        {"user_id": users[:-1], "x": pd.Series(values, dtype=object), "event_timestamp": NOON}
    )
    answers = {}
    for name, options in STORES.items():
        store = FeatureStore(config=make_config(f"types_{name}", **options))
        store.apply([USER, view])
        store.write_to_online_store("history", frame)
        response = store.get_online_features(["history:x"], [{"user_id": u} for u in users])
        names = list(response.proto.metadata.feature_names.val)
        column = response.proto.results[names.index("x")]
        answers[name] = [comparable(value, dtype) for value in column.values], list(column.statuses)
    assert answers["unsealed"] == answers["sqlite"]
    assert answers["sealed"] == answers["sqlite"]
    assert any(answers["sqlite"][0])


def comparable(value, dtype):
    """The bytes of a value; of a Set, which has no order, the sorted ones of its elements."""
    field = value.WhichOneof("val")
    if isinstance(dtype, Set) and field:
        return field, sorted(map(repr, getattr(value, field).val))
    return value.SerializeToString(deterministic=True)


@pytest.mark.parametrize("options", STORES.values(), ids=STORES)
def test_a_null_among_the_elements_is_refused_by_feast(make_config, make_view, options):
    """Its proto has no place for one, in any store."""
    view = make_view([Field(name="x", dtype=Array(Int64))])
    store = FeatureStore(config=make_config(**options))
    store.apply([USER, view])
    frame = pd.DataFrame({"user_id": [1], "x": [[1, None]], "event_timestamp": NOON})
    with pytest.raises(TypeError):
        store.write_to_online_store("history", frame)
    assert read_users(store, ["history:x"], [1])["x"] == [None]


@pytest.mark.parametrize("options", [{}, *STORES.values()], ids=["default", *STORES])
def test_a_null_among_moments_is_read_as_null(make_config, make_view, options):
    """Feast writes it as a number."""
    dtypes = {"one": UnixTimestamp, "some": Array(UnixTimestamp), "any": Set(UnixTimestamp)}
    store = FeatureStore(config=make_config(**options))
    store.apply([USER, make_view([Field(name=name, dtype=dtype) for name, dtype in dtypes.items()])])
    users = list(range(40))  # so many that rows are read in bulk
    columns = {
        "one": [NOON if user % 3 else pd.NaT for user in users],
        "some": [[NOON, pd.NaT] if user % 2 else [NOON] for user in users],
        "any": [{NOON, pd.NaT} if user % 5 else {NOON} for user in users],
    }
    frame = pd.DataFrame({"user_id": users, **columns, "event_timestamp": NOON})
    store.write_to_online_store("history", frame)
    read = read_users(store, [f"history:{name}" for name in dtypes], users)
    assert read["one"] == [NOON if user % 3 else None for user in users]
    assert read["some"] == [[NOON, None] if user % 2 else [NOON] for user in users]
    assert read["any"] == [{NOON, None} if user % 5 else {NOON} for user in users]
