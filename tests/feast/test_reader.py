"""`SketchReader` against `online_read` of the same rows, and its own ways in."""

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import Int64List, Int64Set, StringList, StringSet, Value
from feast.types import Array, Bytes, Float64, Int32, Int64, Set, String, UnixTimestamp, Uuid

from feast_sketch_store import SketchReader, SketchStoreError
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from tests.helpers.values import country, numbers, strings

pytestmark = pytest.mark.slow

RATES = {"target": "error 1e-3", "advanced": {"scalar_error": 1e-9, "presence_error": 1e-9}}
FEATURES = {"viewed": Set(Int64), "tags": Array(String), "country": String, "seen": Set(UnixTimestamp)}
NUM_USERS = 60


def values_of(user):
    values = {
        "viewed": numbers(*range(user % 9)),
        "tags": Value(string_list_val=StringList(val=[f"tag-{n}" for n in range(user % 4)])),
        "country": Value(string_val=f"country-{user % 5}") if user % 6 else Value(),
        "seen": Value(unix_timestamp_set_val=Int64Set(val=[user])),
    }
    return {name: value for name, value in values.items() if user % 7 != 5 or name == "viewed"}


@pytest.fixture(params=["unsealed", "sealed", "both", "listed"])
def filled(request, make_harness, make_view):
    features = [Field(name=name, dtype=dtype) for name, dtype in FEATURES.items()]
    if request.param == "listed":
        features.append(Field(name="price", dtype=Float64, tags={"sketch.codec": "exact"}))
    harness = make_harness(view=make_view(features), **RATES)
    harness.write_users({user: values_of(user) for user in range(NUM_USERS)})
    if request.param != "unsealed":
        harness.seal()
    if request.param == "both":
        # New values, and an old row with other ones.
        harness.write_users({0: {"viewed": numbers(3, 4, 500)}, 1_000: {"viewed": numbers(501, 2)}}, hours=1)
    return harness


def reader_of(harness, **options):
    return SketchReader(harness.config.online_store.path, "history", "shop", **options)


USERS = np.array([4, 0, 1_000, -5, 59, 4, 5, 12])


def expected(harness, feature):
    """What `online_read` says: a list of values per user, or None."""
    answers = []
    for values in harness.shown(*USERS.tolist()):
        value = (values or {}).get(feature)
        field = value.WhichOneof("val") if value is not None else None
        if field is None:
            answers.append(None)
        else:
            content = getattr(value, field)
            answers.append(list(content.val) if field.endswith(("list_val", "set_val")) else content)
    return answers


@pytest.mark.parametrize("feature", FEATURES)
def test_arrow_is_what_online_read_says(filled, feature):
    found = reader_of(filled).arrow(feature, USERS)
    found.validate(full=True)
    if feature == "seen":
        moments = [None if row is None else [int(m.timestamp()) for m in row] for row in found.to_pylist()]
        assert moments == expected(filled, feature)
    else:
        # A list comes as it was written until it is sealed, also where that says that order does not matter.
        as_sets = [set(v) if isinstance(v, list) else v for v in found.to_pylist()]
        assert as_sets == [set(v) if isinstance(v, list) else v for v in expected(filled, feature)]


@pytest.mark.parametrize("feature", ["viewed", "tags", "seen"])
@pytest.mark.parametrize("has_vocabulary", [False, True])
def test_one_user_is_read_as_many_are(filled, feature, has_vocabulary):
    values = reader_of(filled).vocabulary(feature)
    given = values.take(pa.array(range(0, len(values), 2)))
    reader = reader_of(filled, **({"vocabularies": {feature: given}} if has_vocabulary else {}))
    weights = np.random.default_rng(2).random(len(reader.vocabulary(feature)))
    asked = pa.concat_arrays([values.slice(1), values])
    candidates = reader.candidates(feature, asked)
    answer = reader.csr(feature, USERS)
    scores, found = reader.scores(feature, USERS, weights), reader.contains(feature, USERS, asked)
    forms = asked.to_pylist(), np.array(asked.to_pylist()), np.array(asked.to_pylist(), object)
    assert found.any()
    for row, user in enumerate(USERS):
        ids = answer.ids[answer.indptr[row] : answer.indptr[row + 1]]
        for entity in (int(user), user, {"user_id": int(user)}):
            np.testing.assert_array_equal(reader.ids(feature, entity), ids)
            assert reader.scores(feature, entity, weights) == pytest.approx(scores[row])
            np.testing.assert_array_equal(reader.contains(feature, entity, asked), found[row])
            np.testing.assert_array_equal(reader.contains(feature, entity, candidates), found[row])
        for others in forms:
            np.testing.assert_array_equal(reader.contains(feature, int(user), others), found[row])
        for alone in (USERS[row : row + 1], {"user_id": [user]}, reader.hash(USERS)[row : row + 1]):
            for others in (asked, candidates, asked.to_pylist()):
                np.testing.assert_array_equal(reader.contains(feature, alone, others), found[[row]])
    np.testing.assert_array_equal(reader.contains(feature, USERS, candidates), found)
    some = reader.hash(USERS)[::-2]  # not one after the other in memory
    np.testing.assert_array_equal(reader.contains(feature, some, asked), found[::-2])
    np.testing.assert_array_equal(reader.scores(feature, some, weights), scores[::-2])


def test_one_user_is_read_anew_after_a_write(filled):
    reader = reader_of(filled)
    candidates = reader.candidates("viewed", [77, 3])
    before = reader.ids("viewed", 8)
    assert reader.contains("viewed", 8, candidates).tolist() == [False, True]
    filled.write(8, {"viewed": numbers(77)}, filled.noon(2))
    after = reader.ids("viewed", 8)
    assert reader.vocabulary("viewed").take(pa.array(after)).to_pylist() == [77]
    assert len(before) == 8
    assert reader.contains("viewed", 8, candidates).tolist() == [True, False]
    assert reader.scores("viewed", 8, np.ones(len(reader.vocabulary("viewed")))) == 1
    assert reader.scores("viewed", -8, np.ones(len(reader.vocabulary("viewed")))) == 0


def test_what_is_wrong_with_questions_about_one_user_is_told(filled):
    reader = reader_of(filled)
    with pytest.raises(ValueError, match="weights have the shape"):
        reader.scores("viewed", 8, np.ones(1))
    with pytest.raises(RowError, match="not of 'tags'"):
        reader.contains("tags", 8, reader.candidates("viewed", [1]))
    with pytest.raises(RowError, match="one entity"):
        reader.contains("viewed", 8, [[1]])
    for wrong, message in (
        ([1], "not values"),
        (["a", 1], "not values"),
        (["a", None], "null"),
        (["a", ["b"]], "not values"),
    ):
        with pytest.raises(RowError, match=message):
            reader.contains("tags", 8, wrong)
        with pytest.raises(RowError, match=message):
            reader.candidates("tags", wrong)
    with pytest.raises(UnsupportedFeatureError, match="'nothing'"):
        reader.ids("nothing", 8)
    with pytest.raises(RowError, match="not entities"):
        reader.ids("viewed", "eight")


@pytest.mark.parametrize("feature", ["viewed", "tags"])
def test_all_forms_agree(filled, feature):
    reader = reader_of(filled)
    wanted = [set(row or ()) for row in expected(filled, feature)]
    answer = reader.csr(feature, USERS)
    values = answer.vocabulary.to_pylist()
    assert (answer.indptr.dtype, answer.ids.dtype) == (np.int64, np.int32)
    rows = [
        [values[number] for number in answer.ids[start:stop]]
        for start, stop in zip(answer.indptr, answer.indptr[1:], strict=False)
    ]
    assert [set(row) for row in rows] == wanted
    assert [len(row) for row in rows] == [len(row) for row in wanted]
    assert answer.vocabulary.equals(reader.vocabulary(feature))

    dense = np.array([[value in row for value in values] for row in wanted])
    bits = reader.bits(feature, USERS)
    assert bits.shape == (len(USERS), -(-len(values) // 64))
    unpacked = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").astype(bool)
    np.testing.assert_array_equal(unpacked[:, : len(values)], dense)
    assert not unpacked[:, len(values) :].any()

    np.testing.assert_array_equal(reader.multi_hot(feature, USERS), dense.astype(np.float32))
    out = np.full((len(USERS), len(values) + 3), 9, np.int8)
    assert reader.multi_hot(feature, USERS, out) is out
    np.testing.assert_array_equal(out[:, : len(values)], dense)

    weights = np.random.default_rng(1).random(len(values))
    np.testing.assert_allclose(reader.scores(feature, USERS, weights), dense @ weights, rtol=1e-12)

    asked = [*values, "never written" if feature == "tags" else -77]
    found = reader.contains(feature, USERS, asked)
    np.testing.assert_array_equal(found[:, :-1], dense)
    assert not found[:, -1].any()
    np.testing.assert_array_equal(reader.contains(feature, USERS, pa.array(asked)), found)
    own = [asked[number % len(asked) :] + asked[: number % len(asked)] for number in range(len(USERS))]
    rotated = [np.roll(row, -(number % len(asked))) for number, row in enumerate(found)]
    np.testing.assert_array_equal(reader.contains(feature, USERS, np.array(own)), rotated)


def test_which_entities_exist(filled):
    found = reader_of(filled).exists(USERS)
    assert found.tolist() == [timestamp is not None for timestamp, _ in filled.read(*USERS.tolist())]


def test_a_model_brings_its_vocabulary(filled):
    vocabulary = [7, 500, 3, 999]
    reader = reader_of(filled, vocabularies={"viewed": vocabulary})
    wanted = np.array([[v in (row or ()) for v in vocabulary] for row in expected(filled, "viewed")])
    np.testing.assert_array_equal(reader.multi_hot("viewed", USERS), wanted)
    weights = np.array([1.0, 10.0, 100.0, 1_000.0])
    np.testing.assert_array_equal(reader.scores("viewed", USERS, weights), wanted @ weights)
    assert reader.vocabulary("viewed").to_pylist() == vocabulary
    bits = np.unpackbits(reader.bits("viewed", USERS).view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, :4], wanted)


def test_numbers_in_a_column_without_ids_are_looked_for(make_harness, make_view):
    codec = {"sketch.codec": "categorical"}
    fields = [
        Field(name="viewed", dtype=Set(Int64), tags={"sketch.structure": "sets"}),
        Field(name="age", dtype=Int64, tags=codec),  # all differ: a dictionary would be larger
    ]
    harness = make_harness(view=make_view(fields))
    ages = {user: Value(int64_val=1_000 + user) for user in range(NUM_USERS)}
    harness.write_users({user: {"viewed": numbers(1), "age": age} for user, age in ages.items()})
    reader = reader_of(harness, refresh_interval_seconds=0)
    users, asked = np.array([3, 4, 10**6]), np.array([1_004, 7, 1_003])
    for is_sealed in (False, True):
        for values in (asked, reader.candidates("age", asked)):
            assert reader.contains("age", users, values).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
            assert reader.contains("age", 4, values).tolist() == [1, 0, 0]
        assert reader.contains("age", users, [[1_003], [1_003], [1_003]]).tolist() == [[1], [0], [0]]
        if not is_sealed:
            harness.seal()
    with pytest.raises(UnsupportedFeatureError, match="kept exactly"):
        reader.csr("age", users)
    given = reader_of(harness, vocabularies={"age": asked})
    answer = given.csr("age", users)
    assert (answer.indptr.tolist(), answer.ids.tolist()) == ([0, 1, 2, 2], [2, 0])
    assert (given.ids("age", 4).tolist(), given.ids("age", 5).tolist()) == ([0], [])
    assert given.bits("age", users).tolist() == [[4], [1], [0]]
    assert given.scores("age", users, np.array([1.0, 10.0, 100.0])).tolist() == [100, 1, 0]
    assert given.contains("age", users, [1_003, 1_005]).tolist() == [[1, 0], [0, 0], [0, 0]]


def test_uuids_are_given_as_objects_or_as_text(make_harness, make_view):
    ids = [UUID(int=number) for number in (0, 7, 9)]
    harness = make_harness(view=make_view({"ids": Set(Uuid), "best": Uuid}))
    known = {"ids": Value(uuid_set_val=StringSet(val=map(str, ids[:2]))), "best": Value(uuid_val=str(ids[1]))}
    harness.write(3, known)
    reader = reader_of(harness, vocabularies={"best": ids})
    assert reader.ids("best", 3).tolist() == [1]
    for _ in range(2):
        for given in (ids, [*map(str, ids)], np.array(ids), pa.array(ids)):
            assert reader.contains("ids", 3, given).tolist() == [1, 1, 0]
            assert reader.contains("ids", [3, 4], [given, given]).tolist() == [[1, 1, 0], [0, 0, 0]]
        harness.seal()
    with pytest.raises(RowError, match="a value of feature 'ids' is null"):
        reader.contains("ids", 3, [ids[0], None])


def test_exact_features_have_no_ids_unless_given(make_harness, make_view):
    tags = {"sketch.codec": "exact"}
    fields = [
        Field(name="price", dtype=Float64, tags=tags),
        Field(name="path", dtype=Array(String), tags=tags),
    ]
    harness = make_harness(view=make_view(fields))
    for user in range(4):
        path = Value(string_list_val=StringList(val=["b", "a", "b"][:user]))
        harness.write(user, {"price": Value(double_val=user / 4), "path": path})
    for _is_sealed in (False, True):
        reader = reader_of(harness)
        assert reader.arrow("price", [3, 9, 1]).to_pylist() == [0.75, None, 0.25]
        assert reader.arrow("path", [3, 9, 1, 0]).to_pylist() == [["b", "a", "b"], None, ["b"], []]
        assert reader.contains("path", [3, 1], ["a", "b", "c"]).tolist() == [[1, 1, 0], [0, 1, 0]]
        for ask, *more in (
            (reader.csr, [1]),
            (reader.ids, 1),
            (reader.bits, [1]),
            (reader.scores, [1], np.ones(2)),
            (reader.vocabulary,),
        ):
            with pytest.raises(UnsupportedFeatureError, match="kept exactly"):
                ask("path", *more)
        given = reader_of(harness, vocabularies={"path": ["a", "b"]})
        assert sorted(given.csr("path", [3]).ids.tolist()) == [0, 1]
        assert given.scores("path", [3, 1], np.array([1.0, 10.0])).tolist() == [11.0, 10.0]
        harness.seal()


def test_a_reader_of_a_feature_that_is_exact_no_longer_is_told_to_open_again(make_harness, make_view):
    harness = make_harness([Field(name="ids", dtype=Array(Int64), tags={"sketch.codec": "exact"})])
    harness.write(1, {"ids": Value(int64_list_val=Int64List(val=[7]))})
    reader = reader_of(harness, refresh_interval_seconds=0)
    harness.apply(make_view({"ids": Array(Int64)}))
    harness.seal()
    with pytest.raises(UnsupportedFeatureError, match="no longer is; open the reader again"):
        reader.ids("ids", 1)
    assert reader_of(harness).ids("ids", 1).tolist() == [0]


def test_new_values_come_behind_until_a_seal(make_harness):
    harness = make_harness({"viewed": Set(String)}, refresh="0", **RATES)
    harness.write(1, {"viewed": strings("a")})
    harness.seal()
    reader = reader_of(harness)
    assert reader.vocabulary("viewed").to_pylist() == ["a"]
    for user in (2, 3):
        harness.write(user, {"viewed": strings("z", "a")}, harness.noon(user))
    assert reader.vocabulary("viewed").to_pylist() == ["a", "z"]
    assert reader.csr("viewed", [2, 1]).ids.tolist() == [0, 1, 0]
    harness.seal()
    assert reader.csr("viewed", [2]).vocabulary.to_pylist() == ["a", "z"]


TEXTS, NUMBERS = ["ada", "", "ü"], [1, -1, 9]
KEYS = {
    "strings": (String, [Value(string_val=v) for v in TEXTS], [TEXTS, pa.array(TEXTS), np.array(TEXTS)]),
    "int64": (
        Int64,
        [Value(int64_val=v) for v in NUMBERS],
        [NUMBERS, np.array(NUMBERS), np.array(NUMBERS, np.int8)],
    ),
    "int32": (Int32, [Value(int32_val=v) for v in NUMBERS], [NUMBERS, np.array(NUMBERS, np.int16)]),
    "bytes": (Bytes, [Value(bytes_val=v) for v in (b"x", b"")], [[b"x", b""], pa.array([b"x", b""])]),
    "timestamps": (
        UnixTimestamp,
        [Value(unix_timestamp_val=v) for v in (0, 1_700_000_000)],
        [[0, 1_700_000_000], np.array([0, 1_700_000_000], "datetime64[s]"), pa.array([0, 1_700_000_000])],
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_entities_of_every_type(make_harness, make_view, name):
    key_type, keys, forms = KEYS[name]
    harness = make_harness(view=make_view({"country": String}, join_keys={"user_id": key_type}))
    for number, key in enumerate(keys):
        harness.write(key, country(str(number)))
    reader = reader_of(harness)
    for form in [*forms, {"user_id": forms[0]}]:
        assert reader.arrow("country", form).to_pylist() == [str(number) for number in range(len(keys))]
        assert (reader.hash(form) == reader.hash(reader.hash(form))).all()


def test_composite_keys(make_harness, make_view):
    harness = make_harness(view=make_view({"country": String}, join_keys={"user_id": Int64, "shop": String}))
    for user, shop in ((1, "b"), (2, "a")):
        key = harness.key(user_id=user, shop=shop)
        harness.write_many([(key, country(shop + str(user)), harness.noon(), None)])
    reader = reader_of(harness)
    assert reader.join_keys == ["shop", "user_id"]
    asked = {"user_id": np.array([1, 2, 1]), "shop": ["b", "a", "a"]}
    assert reader.arrow("country", asked).to_pylist() == ["b1", "a2", None]
    for wrong, reason in (
        ([1, 2], "give a mapping with an array for each"),
        ({"user_id": [1]}, r"they have the join keys \['user_id'\]"),
        ({"user_id": [1], "shop": ["a", "b"]}, r"the columns have \[1, 2\] values"),
    ):
        with pytest.raises(RowError, match=f"'history', whose join keys are .*user_id .*{reason}"):
            reader.exists(wrong)


@pytest.mark.parametrize(
    ("entities", "reason"),
    [
        *((["1"], "string is not int64"), ([1.5], "double is not int64"), ([1, None], "some are null")),
        *(([None], "some are null"), ([[1]], "is not int64"), (pa.array([True]), "bool is not int64")),
        *(([2**63], ""), (np.array([2**63], np.uint64), ""), ([object()], "")),
    ],
)
def test_entities_of_another_type_are_refused(make_harness, entities, reason):
    harness = make_harness({"country": String})
    harness.write(1, country("pe"))
    with pytest.raises(RowError, match=f"'history', whose join keys are user_id .*{reason}"):
        reader_of(harness).arrow("country", entities)


def test_no_entities(filled):
    reader = reader_of(filled)
    for nobody in ([], np.zeros(0, np.int64), pa.array([], pa.int64())):
        assert len(reader.exists(nobody)) == 0
        assert reader.csr("viewed", nobody).indptr.tolist() == [0]
        assert len(reader.arrow("country", nobody)) == 0
        assert reader.contains("viewed", nobody, [1, 2]).shape == (0, 2)
        assert len(reader.multi_hot("viewed", nobody)) == 0
    assert reader.contains("viewed", [1], []).shape == (1, 0)


def test_wrong_questions_are_refused(filled):
    reader = reader_of(filled)
    with pytest.raises(UnsupportedFeatureError, match="'vieved' of view 'history'"):
        reader.csr("vieved", USERS)
    for single in (1, "a"):
        with pytest.raises(RowError, match=f"{single!r} is a single value; give an array or a list"):
            reader.csr("viewed", single)
    with pytest.raises(RowError, match="not values of feature 'viewed'"):
        reader.contains("viewed", USERS, ["a"])
    with pytest.raises(RowError, match="null"):
        reader.contains("viewed", USERS, [1, None])
    with pytest.raises(RowError, match="shape"):
        reader.contains("viewed", USERS, [[1]])
    with pytest.raises(ValueError, match="weights have the shape"):
        reader.scores("viewed", USERS, np.ones(3))
    with pytest.raises(ValueError, match="out has the shape"):
        reader.multi_hot("viewed", USERS, np.zeros((1, 1)))
    with pytest.raises(SettingsError, match="repeats"):
        reader_of(filled, vocabularies={"viewed": [1, 1]})


def test_ways_to_a_view(make_harness, tmp_path, monkeypatch):
    harness = make_harness({"country": String})
    harness.write(1, country("pe"))
    config = tmp_path / "feature_store.yaml"
    monkeypatch.setenv("STORE_PATH", "sketch")
    config.write_text("project: shop\nonline_store: {type: sketch, path: $STORE_PATH}\n")
    for path in (config, tmp_path, str(tmp_path), tmp_path / "sketch"):
        assert SketchReader(path, "history").features == ["country"]
    for path, view, project, message in (
        (tmp_path / "nowhere", "history", None, "is neither"),
        (tmp_path, "hystory", None, r"no feature view 'hystory'.*history"),
        (tmp_path, "history", "shoe", "no feature view"),
    ):
        with pytest.raises(SettingsError, match=message):
            SketchReader(path, view, project)
    make_harness({"country": String}, project="other")
    with pytest.raises(SettingsError, match=r"projects \['other', 'shop'\]"):
        SketchReader(tmp_path / "sketch", "history")
    assert SketchReader(tmp_path / "sketch", "history", "other").arrow("country", [1]).to_pylist() == [None]
    for content, message in (
        (b"project: shop\nonline_store: {type: redis}\n", "'redis', not sketch"),
        (b"online_store: [", "feature_store.yaml: it is not YAML: "),
        (b"\xff\xfe", "feature_store.yaml: it is not YAML: "),
        (b"from feast import FeatureStore", "feature_store.yaml: it is not a feature_store.yaml"),
    ):
        config.write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            SketchReader(tmp_path, "history")
    with pytest.raises(TypeError, match="not RepoConfig"):
        SketchReader(harness.config, "history")


def test_a_damaged_snapshot_is_passed_over(make_harness, caplog):
    harness = make_harness({"viewed": Set(Int64)}, **RATES)
    for hour in range(2):
        for user in range(50):
            harness.write(user, {"viewed": numbers(*range(hour * 40, hour * 40 + 40))}, harness.noon(hour))
        harness.seal()
    view = harness.reopened().opened
    view.refresh()
    (shard,) = view.state.shards.values()
    path, layer = Path(shard.snapshot.where()), shard.sealed
    content, table = path.read_bytes(), layer.features["viewed"].filter.words.tobytes()
    place = content.index(table)
    path.write_bytes(content[:place] + bytes(len(table)) + content[place + len(table) :])
    # Users are asked for first, so each form meets the damage by itself.
    for ask in (
        lambda reader: reader.exists(range(50)).all(),
        lambda reader: (np.diff(reader.csr("viewed", range(50)).indptr) >= 40).all(),
        lambda reader: reader.contains("viewed", range(50), range(40, 80)).all(),
        lambda reader: (
            reader.scores("viewed", range(50), np.ones(len(reader.vocabulary("viewed")))) > 30
        ).all(),
    ):
        caplog.clear()
        assert ask(reader_of(harness))
        assert "does not match its checksum" in caplog.text


def test_threads_share_a_reader(filled):
    reader = reader_of(filled)
    users = np.arange(NUM_USERS)
    wanted = reader.csr("viewed", users)
    wrong = []

    def read():
        for _ in range(50):
            answer = reader.csr("viewed", users)
            if not np.array_equal(answer.ids, wanted.ids):
                wrong.append(answer)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    reader.close()


READ_WITHOUT_FEAST = """
import sys
from feast_sketch_store import SketchReader
print(SketchReader(sys.argv[1], "history", "shop").arrow("viewed", [1, 2]).to_pylist())
found = {"feast", "google.protobuf"} & sys.modules.keys()
assert not found, found
"""


def test_another_process_reads_without_feast(make_harness):
    harness = make_harness({"viewed": Set(String)})
    harness.write(1, {"viewed": strings("a")})
    harness.seal()
    harness.write(2, {"viewed": strings("b")})
    command = [sys.executable, "-c", READ_WITHOUT_FEAST, harness.config.online_store.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[['a'], ['b']]\n", "")


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_a_reader_that_is_sent_to_a_worker_says_what_to_do(make_harness, send):
    harness = make_harness({"viewed": Set(String)})
    harness.write(1, {"viewed": Value(string_set_val=StringSet(val=["a"]))})
    with pytest.raises(TypeError, match=r"'history' in .* stays in its process: open it in each process"):
        send(reader_of(harness))


def test_errors_are_of_one_family():
    assert issubclass(RowError, SketchStoreError)
