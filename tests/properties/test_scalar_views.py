"""Views of scalars, drawn at random and sealed for real: each row reads back, unsealed, sealed and from
files; and what is left to choose takes no more bytes than any other way to keep the same rows.

Views have one to six scalars of any codec and type, some null or never written, and rows of one time or many.
"""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.rows.binning import Quantiles
from feast_sketch_store.rows.codecs import BINNED, CATEGORICAL, EXACT, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import to_arrow
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View
from tests.helpers.histories import NEVER
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.oracle.messages import feast_values

pytestmark = pytest.mark.has_long_form

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NOT_WRITTEN, IS_NULL = object(), None
MAKE = {
    "int64_val": lambda n: n * 7_919 - 10**6,
    "int32_val": lambda n: n,
    "bool_val": lambda n: bool(n % 2),
    "string_val": lambda n: f"value {n}",
    "bytes_val": lambda n: b"%d" % n,
    "uuid_val": lambda n: f"00000000-0000-0000-0000-{n:012d}",
    "double_val": lambda n: n / 8,
}
# How a view is kept; the first is the default.
WAYS = ("auto", "listed", "filter", "static", "exact")
ERROR_RATE = 1e-9  # of values in a filter, so that none is wrong here
# What a static function and the sets of a table take is foretold, and tables are rounded up to words.
TOLERANCE, TOLERANCE_BYTES = 1.01, 256


@dataclass(frozen=True)
class Scalar:
    """A feature: what it is, and how its values and states are drawn."""

    codec: FeatureCodec
    num_values: int
    zipf: float
    share_null: float
    share_missing: float


class ListedSettings(ViewSettings):
    """Settings of a view whose rows are to be listed, whatever is smaller."""

    @property
    def budget(self):
        return replace(super().budget, lists_rows=True)


def draw_view(seed):
    """The scalars, the number of rows and of their times, and the rate of presence."""
    rng = np.random.default_rng([seed, 17])
    # Beside others, those decide how rows are kept.
    kinds = [CATEGORICAL] if seed % 3 else [CATEGORICAL, CATEGORICAL, BINNED, EXACT] if seed % 2 else [BINNED]
    scalars = []
    for number in range(int(rng.choice([1, 1, 2, 2, 3, 6]))):
        name = kinds[0] if len(kinds) == 1 else str(rng.choice(kinds))
        fields = ["double_val", "int64_val"] if name == BINNED else sorted(MAKE.keys() - {"double_val"})
        binning = Quantiles(int(rng.integers(2, 40))) if name == BINNED else None
        codec = FeatureCodec(f"s{number}", str(rng.choice(fields)), name, binning)
        shares = (float(rng.choice([0, 0, rng.uniform(0, 0.9)])), float(rng.choice([0, 0, 0.1])))
        most = rng.choice([1, 3.5])
        scalars.append(Scalar(codec, int(10 ** rng.uniform(0, most)), float(rng.choice([0, 1.1])), *shares))
    sizes = [rng.uniform(0, 2.5), rng.uniform(2.5, by_length(3.3, 3.8))]  # as powers of ten
    num_rows = int(10 ** rng.choice(sizes, p=[0.3, 0.7]))
    return scalars, num_rows, int(rng.choice([1, 5, 1_000])), float(rng.choice([1e-5, 1e-9]))


def draw_rows(seed, scalars, num_rows):
    """Of each scalar a value per row, or one of the two above."""
    rng = np.random.default_rng([seed, 18])
    columns = {}
    for scalar in scalars:
        weights = np.arange(1, scalar.num_values + 1) ** -scalar.zipf
        drawn = rng.choice(scalar.num_values, num_rows, p=weights / weights.sum())
        values = [MAKE[scalar.codec.value_field](int(n)) for n in drawn]
        state, is_missing = rng.random(num_rows), rng.random(num_rows) < scalar.share_missing
        columns[scalar.codec.feature] = [
            NOT_WRITTEN if missing else IS_NULL if u < scalar.share_null else value
            for value, u, missing in zip(values, state, is_missing, strict=True)
        ]
    return columns


def settings_of(way, scalars, presence_error_rate):
    """Settings that have the view kept in such a way; None if it cannot be."""
    codecs = [scalar.codec for scalar in scalars]
    if way in ("static", "filter") and any(codec.is_exact for codec in codecs):
        return None
    if way == "exact":
        codecs = [c if c.binning else FeatureCodec(c.feature, c.value_field, EXACT) for c in codecs]
    features = {
        codec.feature: FeatureSettings(
            codec,
            ERROR_RATE,
            10**6,
            may_be_column=not codec.is_exact and way != "filter",
            is_static=way == "static",
        )
        for codec in codecs
    }
    kind = ListedSettings if way == "listed" else ViewSettings
    return kind("people", presence_error_rate, features)


STRANGERS = user_hashes(range(10**6, 10**6 + 1_000))


def table_of(columns, num_times, codecs):
    """The rows of users 0, 1, ... as they are written."""
    num_rows = len(next(iter(columns.values())))
    rows = []
    for user in range(num_rows):
        values = {}
        for codec in codecs:
            value = columns[codec.feature][user]
            if value is not NOT_WRITTEN:
                values[codec.feature] = Value() if value is IS_NULL else Value(**{codec.value_field: value})
        rows.append((user_key(user), values, EPOCH + timedelta(seconds=user % num_times), None))
    return to_arrow(rows, codecs)


def read(view, columns, sealed):
    """Read all rows, and compare them with what was written; numbers that have bins with these."""
    num_rows = len(next(iter(columns.values())))
    found = {}
    answer = view.read(user_hashes(range(num_rows)), list(columns))
    for name, feature in answer.features.items():
        codec = feature.codec
        values = feast_values(feature)
        for user, state, value in zip(answer.found.tolist(), feature.states, values, strict=True):
            kind = None if value is None else value.WhichOneof("val")
            assert kind in (None, codec.value_field)
            assert (kind is not None) == (state == VALUE)
            without = NOT_WRITTEN if state == MISSING else IS_NULL
            found[user, name] = getattr(value, kind) if kind else without
    for name, written in columns.items():
        bins = sealed.roundings[name].bins if sealed is not None and name in sealed.roundings else None
        for user, value in enumerate(written):
            expected = value
            if bins is not None and value not in (NOT_WRITTEN, IS_NULL):
                expected = bins.representatives[bins.find(np.array([value], bins.lows.dtype))][0]
            assert found[user, name] == expected, (user, name)


@pytest.mark.parametrize("seed", range(by_length(4, 12)))
def test_rows_read_back_and_nothing_smaller_was_left(tmp_path, seed):
    scalars, num_rows, num_times, presence_error_rate = draw_view(seed)
    columns = draw_rows(seed, scalars, num_rows)
    sizes, kinds = {}, {}
    for way in WAYS:
        settings = settings_of(way, scalars, presence_error_rate)
        if settings is None:
            continue
        storage = LocalStorage(tmp_path / way)
        view = View(storage, settings, NEVER, 0.0)
        view.write(table_of(columns, num_times, settings.codecs))
        if way == "auto":
            read(view, columns, None)
        assert view.seal()
        if way == "auto":
            view = View(storage, settings, NEVER, 0.0)
        (layer,) = view.current().sealed.layers
        read(view, columns, layer)
        strangers = view.read(STRANGERS, list(columns))
        # Of 1,000 strangers 0.01 at most are expected to read as rows.
        assert len(strangers.found) <= 1
        sizes[way], kinds[way] = layer.size_bytes, {structure.kind for structure in layer.structures}
    assert math.isfinite(sizes["auto"])
    limit = TOLERANCE * min(sizes.values()) + TOLERANCE_BYTES
    assert sizes["auto"] <= limit, (sizes, kinds, scalars)
