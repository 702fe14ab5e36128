"""Views to which rows append, sealed by a process that lacks some features: their values stay in the log."""

from datetime import UTC, datetime, timedelta

import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import Int64List, Int64Set, StringList, Value
from feast.types import Array, Int64, Set, String

from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.operations.verification import verify_view
from tests.helpers.keys import user_key
from tests.helpers.length import combined
from tests.helpers.repository import make_config, make_view

NOW = datetime.now(UTC).replace(microsecond=0)
LIST, COUNTS = {"sketch.codec": "list"}, {"sketch.codec": "counts"}
FIELDS = {  # the first one is always declared
    "set": [Field(name="liked", dtype=Set(Int64)), Field(name="owned", dtype=Set(Int64))],
    "list": [
        Field(name="read", dtype=Array(String), tags=LIST),
        Field(name="bought", dtype=Array(String), tags=LIST),
    ],
    "counts": [
        Field(name="liked", dtype=Set(Int64)),
        Field(name="viewed", dtype=Array(String), tags=COUNTS),
        Field(name="views", dtype=Array(Int64), tags={"sketch.of": "viewed"}),
        Field(name="ids", dtype=Array(String), tags={"sketch.ids_of": "viewed"}),
    ],
}


def values_of(kind, number):
    if kind == "list":
        names = {"read": f"r{number}", "bought": f"b{number}"}
        return {name: Value(string_list_val=StringList(val=[item])) for name, item in names.items()}
    liked = {"liked": Value(int64_set_val=Int64Set(val=[number]))}
    if kind == "set":
        return {**liked, "owned": Value(int64_set_val=Int64Set(val=[100 + number]))}
    return {
        **liked,
        "viewed": Value(string_list_val=StringList(val=["v"])),
        "views": Value(int64_list_val=Int64List(val=[10])),
        "ids": Value(string_list_val=StringList(val=[f"id {number}"])),
    }


def shown(store, config, view, user):
    (_, row) = store.online_read(config, view, [user_key(user)])[0]
    return {
        name: sorted(getattr(value, value.WhichOneof("val")).val)
        for name, value in (row or {}).items()
        if name != "ids"
    }


@pytest.mark.parametrize(("kind", "num_shards"), combined([*FIELDS], [4, 1]))
def test_what_is_not_declared_for_a_while_stays(tmp_path, kind, num_shards):
    config = make_config(tmp_path, refresh="0", compaction="job", shards=num_shards, structure="sets")
    tags, ttl = None if kind == "list" else {"sketch.rows": "append"}, timedelta(days=9)
    whole, part = (make_view(FIELDS[kind][:number], tags=tags, ttl=ttl) for number in (None, 1))

    def declared(view):
        """A process with this declaration."""
        store = SketchOnlineStore()
        store.update(config, [], [view], [], [], True)
        return store

    def write(store, user, numbers):
        for number in numbers:
            event = NOW - timedelta(minutes=30 - number)
            store.online_write_batch(
                config, whole, [(user_key(user), values_of(kind, number), event, None)], None
            )

    first = declared(whole)
    for user in range(6):
        write(first, user, range(3))
    first.delete(config, whole, [user_key(0), user_key(1)])
    write(first, 0, range(3, 6))
    expected = {user: shown(first, config, whole, user) for user in range(6)}
    for _ in range(2):
        assert declared(part).seal(config, part)
    assert len(shown(declared(part), config, part, 5)[FIELDS[kind][0].name]) == 3
    last = declared(whole)
    assert last.seal(config, whole)
    assert {user: shown(last, config, whole, user) for user in range(6)} == expected
    for shard in last.view(config, whole).shards.values():
        codecs = last.view(config, whole).settings.codecs
        assert verify_view(shard.storage, codecs, semantics="append").problems == []


@pytest.mark.parametrize("kind", FIELDS)
def test_a_seal_compacts_a_log_that_has_nothing_of_a_new_feature_yet(tmp_path, kind):
    config = make_config(tmp_path, refresh="0", compaction="job", structure="sets")
    tags, ttl = None if kind == "list" else {"sketch.rows": "append"}, timedelta(days=9)
    part, whole = (make_view(FIELDS[kind][:number], tags=tags, ttl=ttl) for number in (1, None))
    name, store = FIELDS[kind][0].name, SketchOnlineStore()
    store.update(config, [], [part], [], [], True)
    for number in range(2):
        row = (user_key(1), {name: values_of(kind, number)[name]}, NOW, None)
        store.online_write_batch(config, part, [row], None)
    expected = shown(store, config, part, 1)
    store.update(config, [], [whole], [], [], True)
    assert store.seal(config, whole)
    assert len(store.view(config, whole).shards[0].row_log.table_state().commits) == 1
    assert shown(store, config, whole, 1)[name] == expected[name]


def test_sets_that_are_not_declared_for_a_while_stay_beside_counts(tmp_path):
    config = make_config(tmp_path, refresh="0", compaction="job", structure="sets")
    fields, tags = FIELDS["counts"], {"sketch.rows": "append"}
    whole, part = (make_view(own, tags=tags) for own in (fields, fields[1:]))
    store = SketchOnlineStore()
    store.update(config, [], [whole], [], [], True)
    for number in range(2):
        row = (user_key(1), values_of("counts", number), NOW, None)
        store.online_write_batch(config, whole, [row], None)
    store.delete(config, whole, [user_key(2)])  # so that a seal compacts the log
    expected = shown(store, config, whole, 1)
    assert expected == {"liked": [0, 1], "viewed": ["v"], "views": [20]}
    for view in (part, whole):
        store.update(config, [], [view], [], [], True)
        assert store.seal(config, view)
    assert shown(store, config, whole, 1) == expected
