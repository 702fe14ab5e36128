"""Views of many features: the work grows with their number, not with its square. It is counted, not timed."""

import cProfile
import pstats
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.layers import Goal, SketchLayer
from feast_sketch_store.row_log import data_file
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import encode, row_keys, to_arrow
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.succinct.static_function import width_for
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def codecs_of(number):
    scalars = [FeatureCodec(f"f{n}", "int64_val") for n in range(number)]
    return [*scalars[: number // 2], *(FeatureCodec(f"s{n}", "int64_set_val") for n in range(number // 2))]


def rows_of(codecs):
    def value(codec, user):
        if user == 2:
            return Value()
        return Value(int64_set_val=Int64Set(val=[user])) if codec.is_collection else Value(int64_val=user)

    return [(user_key(user), {c.feature: value(c, user) for c in codecs}, NOON, None) for user in range(3)]


def calls(function):
    """The calls of Python and built-in functions that a call makes."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


class Looks:
    """A table that counts the looks at its columns; Arrow makes their list at each."""

    def __init__(self, table):
        self._table, self.number = table, 0

    def __getattr__(self, name):
        self.number += name in ("column_names", "schema")
        return getattr(self._table, name)

    def __getitem__(self, name):
        return self._table[name]

    def __len__(self):
        return len(self._table)


def test_the_columns_of_a_table_are_looked_at_a_few_times(tmp_path, monkeypatch):
    codecs = codecs_of(40)
    table = to_arrow(rows_of(codecs), codecs)
    looks = Looks(table)
    assert data_file._with_all_columns(looks, table.schema).equals(table)
    assert looks.number == 1
    looks = Looks(table)
    assert len(encode(looks, row_keys(table), codecs).features) == 40
    assert looks.number == 0
    num_looks = 0

    class File(pq.ParquetFile):
        @property
        def schema_arrow(self):
            nonlocal num_looks
            num_looks += 1
            return super().schema_arrow

    file = DataFile.write(LocalStorage(tmp_path), table.schema, [table])
    monkeypatch.setattr(data_file.pq, "ParquetFile", File)
    (read,) = file.batches(table.column_names)
    assert read.num_columns == table.num_columns
    assert num_looks <= 2


@pytest.mark.slow
def test_twice_the_features_take_twice_the_calls(tmp_path):
    counts = {}
    for number in (60, 120, 240):
        codecs = codecs_of(number)
        targets = [1e-5] * (number // 2) + [0.01, Goal("noise_ratio", 0.1, "sets")] * (number // 4)
        features = {
            codec.feature: FeatureSettings(codec, target, 10**6)
            for codec, target in zip(codecs, targets, strict=True)
        }
        settings = ViewSettings(f"of {number}", 1e-5, features, num_shards=1)
        view = View(LocalStorage(tmp_path / str(number)), settings, SealPolicy(1.0, 10**9), 0.0)
        rows, names = rows_of(codecs), [codec.feature for codec in codecs]

        def first_read(view=view, settings=settings, names=names):
            other = View(view.storage, settings, SealPolicy(1.0, 10**9), 0.0)
            assert len(other.read(user_hashes([1]), names).features) == len(names)

        def read_of_each(view=view, names=names):
            assert all(len(view.read(user_hashes([1]), [name]).features) == 1 for name in names)

        counts[number] = [
            calls(lambda view=view, rows=rows: view.write(rows)),
            calls(view.seal),
            calls(first_read),
            calls(read_of_each),
        ]
        assert isinstance(view.state.sealed.layers[0], SketchLayer)
    small, medium, large = (np.array(counts[number]) for number in (60, 120, 240))
    # What does not depend on the features is in all three, so their differences grow as the features do.
    assert ((large - medium) < 2.3 * (medium - small)).all(), counts


def test_the_product_of_many_vocabularies_is_no_float():
    assert width_for(10**400, 1e-5) == 1346
    assert [width_for(n, 1 / 256) for n in (0, 1, 2, 3, 1 << 20)] == [8, 8, 9, 10, 28]
