"""Vectors of a response become the JSON that Feast's feature server makes of them, or nothing."""

import json
import random

import pytest
from feast.feature_server_utils import convert_response_to_dict
from feast.protos.feast.serving.ServingService_pb2 import GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import RepeatedValue, Value
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from feast_sketch_store import kernel

FIELDS = Value.DESCRIPTOR.oneofs_by_name["val"].fields
NOT_WRITTEN = {"map_val", "map_list_val", "struct_val", "struct_list_val"} | {
    "scalar_map_val",
    "zoned_timestamp_val",
}
OF_TYPE = {
    "bytes": st.binary(max_size=9),
    "string": st.text(max_size=9),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "float": st.floats(width=32),
    "bool": st.booleans(),
    "null": st.just(0),
}
OF_TEXT = {"json": "string", "uuid": "string", "time_uuid": "string", "decimal": "string"}
OF_TEXT["unix_timestamp"] = "int64"


def values_of(field):
    """Values that carry one field of the oneof."""
    kind = field.name.removesuffix("_val")
    if kind in ("list", "set"):
        inner = st.lists(st.deferred(lambda: VALUES), max_size=3)
        return inner.map(lambda values: Value(**{field.name: RepeatedValue(val=values)}))
    if kind.endswith(("_list", "_set")):
        element = kind.rpartition("_")[0]
        make = getattr(Value(), field.name).__class__
        elements = st.lists(OF_TYPE[OF_TEXT.get(element, element)], max_size=5)
        return elements.map(lambda content: Value(**{field.name: make(val=content)}))
    return OF_TYPE[OF_TEXT.get(kind, kind)].map(lambda content: Value(**{field.name: content}))


VALUES = st.one_of(st.just(Value()), *(values_of(field) for field in FIELDS if field.name not in NOT_WRITTEN))
TIMESTAMPS = st.builds(
    Timestamp,
    seconds=st.one_of(st.just(0), st.integers(-30_610_224_000, 253_402_300_799)),
    nanos=st.one_of(
        st.sampled_from([0, 1, 1_000, 1_000_000, 120_000_000, 999_999_999]), st.integers(0, 10**9 - 1)
    ),
)
VECTORS = st.builds(
    GetOnlineFeaturesResponse.FeatureVector,
    values=st.lists(VALUES, max_size=4),
    statuses=st.lists(st.integers(0, 6), max_size=4),
    event_timestamps=st.lists(TIMESTAMPS, max_size=4),
)
RESPONSES = st.builds(GetOnlineFeaturesResponse, results=st.lists(VECTORS, max_size=3))


def as_feast_does(response):
    results = convert_response_to_dict(response)["results"]
    text = json.dumps(results, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text[1:-1].encode()


@given(RESPONSES)
def test_it_is_the_json_of_feast(response):
    assert kernel.vectors_to_json(response.SerializeToString()) == as_feast_does(response)


@pytest.mark.parametrize("name", sorted(NOT_WRITTEN))
def test_what_only_feast_can_write_is_left_to_it(name):
    value = Value()
    getattr(value, name).SetInParent()
    vector = GetOnlineFeaturesResponse.FeatureVector(values=[Value(int64_val=1), value])
    assert kernel.vectors_to_json(GetOnlineFeaturesResponse(results=[vector]).SerializeToString()) is None


@pytest.mark.parametrize("seconds", [-30_610_224_001, 253_402_300_800, -(2**62), 2**62])
def test_years_that_strftime_does_not_write_alike_are_left_to_feast(seconds):
    vector = GetOnlineFeaturesResponse.FeatureVector(event_timestamps=[Timestamp(seconds=seconds)])
    assert kernel.vectors_to_json(GetOnlineFeaturesResponse(results=[vector]).SerializeToString()) is None


def test_deep_lists_of_lists_are_left_to_feast():
    value = Value(int64_val=1)
    for _ in range(30):
        value = Value(list_val=RepeatedValue(val=[value]))
    vector = GetOnlineFeaturesResponse.FeatureVector(values=[value])
    assert kernel.vectors_to_json(GetOnlineFeaturesResponse(results=[vector]).SerializeToString()) is None


@given(RESPONSES, st.randoms(use_true_random=False))
def test_damaged_messages_are_refused_or_written_as_feast_reads_them(response, rng: random.Random):
    message = bytearray(response.SerializeToString())
    for _ in range(rng.randint(1, 3)):
        if message:
            message[rng.randrange(len(message))] = rng.randrange(256)
    damaged = bytes(message[: rng.randint(0, len(message))])
    written = kernel.vectors_to_json(damaged)
    try:
        parsed = GetOnlineFeaturesResponse.FromString(damaged)
    except DecodeError:
        return
    if written is not None:
        assert written == as_feast_does(parsed)
