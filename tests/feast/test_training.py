"""`through_sketch`: training rows look as reads of the snapshot do."""

import decimal
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import StringSet, Value
from feast.types import Bool, Decimal, Float64, Int64, Set, String, Uuid

from feast_sketch_store import SketchReader, through_sketch
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from tests.helpers.values import country, numbers

NUM_USERS, VOCABULARY, SIZE = 2000, 500, 10
IDS = [uuid.UUID(int=number) for number in (7, 8)]


def history(seed=0):
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(VOCABULARY, SIZE, replace=False).tolist()) for _ in range(NUM_USERS)]


def reader_of(harness):
    return SketchReader(harness.config.online_store.path, "history", "shop")


@pytest.fixture
def filled(make_harness, make_view):
    def fill(tags, more=(), seal=True, **options):
        view = make_view([Field(name="viewed", dtype=Set(Int64), tags=tags), *more])
        harness = make_harness(view=view, compaction={"min_rows": 10**6}, **options)
        names, rows = {"viewed", *(field.name for field in more)}, {}
        for user, viewed in enumerate(history()):
            row = {"viewed": numbers(*viewed), "spent": Value(double_val=user / 7)}
            row |= country(f"country-{user % 5}")
            rows[user] = {name: value for name, value in row.items() if name in names}
        harness.write_users(rows)
        if seal:
            harness.seal()
        return reader_of(harness)

    return fill


def false_values(before, after):
    assert all(set(one) <= set(other) for one, other in zip(before, after, strict=True))
    return sum(map(len, after)) - sum(map(len, before))


@pytest.mark.parametrize(
    "tags",
    [{"sketch.target": "error 0.02"}, {"sketch.target": "noise 1", "sketch.structure": "weighted_bloom"}],
)
def test_rows_of_other_dates_show_the_noise_of_reads(filled, tags):
    reader, training = filled(tags), pd.DataFrame({"viewed": history(seed=1)})
    shown = through_sketch(training, reader)
    absent, rate = NUM_USERS * (VOCABULARY - SIZE), 0.02
    # Five standard deviations; the table's fill differs by less than that.
    expected, bound = absent * rate, 5 * np.sqrt(absent * rate) + 0.02 * absent * rate
    assert abs(false_values(training["viewed"], shown["viewed"]) - expected) < bound
    served = reader.csr("viewed", np.arange(NUM_USERS))
    assert abs(len(served.ids) - NUM_USERS * SIZE - expected) < bound
    assert all(isinstance(value, np.ndarray) for value in shown["viewed"])
    assert training["viewed"].tolist() == history(seed=1)


@pytest.mark.parametrize("tags", [{"sketch.target": "error 0.02"}, {"sketch.structure": "sets"}])
def test_values_come_in_the_order_of_a_read(filled, tags):
    reader = filled(tags)
    shown = through_sketch(pd.DataFrame({"viewed": history(seed=1)}), reader)
    places = {value: place for place, value in enumerate(reader.vocabulary("viewed").to_pylist())}
    for values in shown["viewed"]:
        ids = [places[value] for value in values]
        assert ids == sorted(set(ids))


def test_the_seed_decides_and_other_columns_stay(filled):
    reader = filled({"sketch.target": "error 0.1"})
    training = pd.DataFrame({"history__viewed": history(), "label": 1}, index=range(5, 5 + NUM_USERS))
    one, again, other = (through_sketch(training, reader, ["viewed"], seed=seed) for seed in (3, 3, 4))
    assert [v.tolist() for v in one["history__viewed"]] == [v.tolist() for v in again["history__viewed"]]
    assert [v.tolist() for v in one["history__viewed"]] != [v.tolist() for v in other["history__viewed"]]
    assert one.index.equals(training.index)
    assert list(one) == list(training)


def test_sets_show_what_there_is_of_the_kept_values(filled):
    reader = filled({"sketch.structure": "sets", "sketch.vocabulary": "{top: 50}"})
    kept = set(reader.vocabulary("viewed").to_pylist())
    assert len(kept) == 50
    training = pd.DataFrame({"viewed": [*history(seed=1), None, [], {1, 2, 3}, [10**9]]})
    shown = through_sketch(training, reader)["viewed"].tolist()
    for before, after in zip(training["viewed"][:NUM_USERS], shown, strict=False):
        assert set(after) == kept & set(before)
    assert shown[NUM_USERS] is None
    assert [set(values) for values in shown[NUM_USERS + 1 :]] == [set(), kept & {1, 2, 3}, set()]


def test_a_row_of_which_a_cut_leaves_nothing_shows_nothing(filled):
    """As reads of such a row do: the filter is not asked about it."""
    reader = filled({"sketch.target": "error 0.2", "sketch.vocabulary": "{top: 50}"})
    kept = set(reader.vocabulary("viewed").to_pylist())
    nothing_left = [user for user, viewed in enumerate(history()) if not kept & set(viewed)]
    others = np.setdiff1d(np.arange(NUM_USERS), nothing_left)
    served = reader.arrow("viewed", np.arange(NUM_USERS)).to_pylist()
    shown = through_sketch(pd.DataFrame({"viewed": history()}), reader)["viewed"]
    assert nothing_left
    for user in nothing_left:
        assert (served[user], len(shown[user])) == ([], 0)
    written = history()
    wrong = sum(len(set(shown[user]) - set(written[user])) for user in others[:200])
    assert wrong > 200 * 45 * 0.15, "the others have the noise of the filter"


@pytest.mark.parametrize("codec", ["binned", "exact"])
def test_scalars(filled, codec):
    tags = {"sketch.codec": codec} | ({"sketch.round": "8 bins"} if codec == "binned" else {})
    more = [Field(name="country", dtype=String), Field(name="spent", dtype=Float64, tags=tags)]
    reader = filled({"sketch.target": "error 0.01"}, more, advanced={"scalar_error": 1e-9})
    users = np.arange(NUM_USERS)
    training = pd.DataFrame({"spent": users / 7, "country": [f"country-{user % 5}" for user in users]})
    training.loc[3, ["spent", "country"]] = None
    shown = through_sketch(training, reader)
    for name in training:
        served = reader.arrow(name, users).to_pylist()
        assert shown[name].drop(3).tolist() == served[:3] + served[4:]
        assert pd.isna(shown[name][3])
    assert shown["spent"].nunique() == (8 if codec == "binned" else NUM_USERS - 1)


def test_nulls_among_whole_numbers_stay_nulls_in_columns_that_have_such(filled):
    exact = {"sketch.codec": "exact"}
    more = [Field(name="number", dtype=Int64, tags=exact), Field(name="is_new", dtype=Bool, tags=exact)]
    reader = filled({}, more)
    numbers, flags = [2**53 + 1, None, -1], [True, None, False]
    training = pd.DataFrame(
        {"number": pd.array(numbers, "Int64"), "is_new": pd.array(flags, "boolean")}, index=[7, 5, 6]
    )
    pd.testing.assert_frame_equal(through_sketch(training, reader), training)
    of_arrow = training.astype({"number": "int64[pyarrow]", "is_new": "bool[pyarrow]"})
    pd.testing.assert_frame_equal(through_sketch(of_arrow, reader), training)
    objects = pd.DataFrame({"number": numbers, "is_new": flags}, dtype=object)
    pd.testing.assert_frame_equal(through_sketch(objects, reader), objects)


def test_objects_that_feast_reads_are_the_texts_that_it_writes(make_harness):
    texts = {"price": ["1.5", "1.50"], "prices": [["1.5"], ["1.5", "2.25", "NaN"]], "id": [*map(str, IDS)]}
    fields = [Field(name="price", dtype=Decimal), Field(name="id", dtype=Uuid)]
    fields += [Field(name="prices", dtype=Set(Decimal), tags={"sketch.structure": "sets"})]
    harness = make_harness(fields)
    for user, (price, prices, own_id) in enumerate(zip(*texts.values(), strict=True)):
        row = {"price": Value(decimal_val=price), "id": Value(uuid_val=own_id)}
        harness.write(user, {**row, "prices": Value(decimal_set_val=StringSet(val=prices))})
    harness.seal()
    prices = [{*map(decimal.Decimal, own)} for own in texts["prices"]]
    read = pd.DataFrame({"price": [*map(decimal.Decimal, texts["price"])], "prices": prices, "id": IDS})
    shown = through_sketch(read, reader_of(harness))
    assert {name: shown[name].tolist() for name in ("price", "id")} == {n: texts[n] for n in ("price", "id")}
    assert [*map(sorted, shown["prices"])] == texts["prices"]


def test_no_rows(filled):
    shown = through_sketch(pd.DataFrame({"viewed": []}), filled({}))
    assert len(shown) == 0


def test_no_features(filled):
    training = pd.DataFrame({"liked": [[1]], "viewed": [["tea"]]})
    assert through_sketch(training, filled({}), []).equals(training)


def test_what_is_refused(filled):
    reader = filled({})
    with pytest.raises(RowError, match="the rows are a Table; give a DataFrame of pandas"):
        through_sketch(pa.table({"viewed": [["tea"]]}), reader)
    with pytest.raises(UnsupportedFeatureError, match="no feature 'liked'"):
        through_sketch(pd.DataFrame({"liked": [[1]]}), reader, ["liked"])
    with pytest.raises(SettingsError, match=r"features are the text 'viewed'; give .* \['viewed'\]"):
        through_sketch(pd.DataFrame({"viewed": [[1]]}), reader, "viewed")
    with pytest.raises(RowError, match=r"no column 'viewed' or history__viewed; it has \['seen'\]"):
        through_sketch(pd.DataFrame({"seen": [[1]]}), reader, ["viewed"])
    with pytest.raises(RowError, match="column 'viewed' is not of the feature's type, large_list<"):
        through_sketch(pd.DataFrame({"viewed": [["tea"]]}), reader)
    with pytest.raises(RowError, match="the dataframe has 2 columns 'viewed'; leave one of them"):
        through_sketch(pd.DataFrame([[[1], [2]]], columns=["viewed", "viewed"]), reader)
    reader = filled({}, [Field(name="words", dtype=Set(String))])
    with pytest.raises(RowError, match="row 1 has 'tea', and needs a list of values"):
        through_sketch(pd.DataFrame({"words": [["tea"], "tea"]}), reader)


def test_a_view_that_was_not_sealed_is_refused(filled):
    with pytest.raises(SettingsError, match="not sealed yet; run `feast-sketch seal history`"):
        through_sketch(pd.DataFrame({"viewed": [[1]]}), filled({}, seal=False))
