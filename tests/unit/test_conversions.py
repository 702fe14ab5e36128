"""Numbers in another field than their feature's are converted where they can be meant, else refused."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.codecs import FeatureCodec, converted
from tests.helpers.cases import for_each
from tests.helpers.values import MAPS

BIG = 2**53 + 1  # no double


@for_each(
    ("target", "source", "number", "kept"),
    [
        ("float_val", "double_val", 0.1, float(np.float32(0.1))),
        ("float_val", "double_val", math.inf, math.inf),
        ("float_val", "int64_val", 7, 7.0),
        ("double_val", "float_val", 0.5, 0.5),
        ("double_val", "int32_val", -3, -3.0),
        ("double_val", "int64_val", BIG, float(BIG)),
        ("int64_val", "int32_val", -5, -5),
        ("int64_val", "double_val", 5.0, 5),
        ("int64_val", "bool_val", True, 1),
        ("int64_val", "unix_timestamp_val", 1_700_000_000, 1_700_000_000),
        ("int32_val", "int64_val", 2**31 - 1, 2**31 - 1),
        ("int32_val", "double_val", -(2.0**31), -(2**31)),
        ("bool_val", "int64_val", 1, True),
        ("unix_timestamp_val", "int64_val", 1_700_000_000, 1_700_000_000),
    ],
)
def test_what_can_be_meant_is_converted(make_value, target, source, number, kept):
    of_lists = [field.replace("_val", "_list_val") for field in (target, source)]
    of_sets = [field.replace("_val", "_set_val") for field in (target, source)]
    for (to, of), form in [((target, source), False), (of_lists, True), (of_sets, True)]:
        codec, wrap = FeatureCodec("x", to), (lambda n, form=form: [n, n] if form else n)
        values = [make_value(to, wrap(kept)), make_value(of, wrap(number)), None]
        column, nulls = codec.to_arrow(values)
        assert column[0].equals(column[1])
        assert (column[2].as_py(), nulls) == (None, [])


@for_each(
    ("target", "source", "number", "reason"),
    [
        ("int64_val", "string_val", "7", r"has string_val '7'; correct"),
        ("int32_val", "int64_val", 2**40, r"1099511627776, which is not between -2147483648 and 2147483647"),
        ("int64_val", "double_val", 1.5, r"1\.5, which is not a whole number"),
        ("int64_val", "double_val", math.nan, r"nan, which is not a whole number"),
        ("int64_val", "double_val", 1e300, "not between"),
        ("int64_val", "double_val", 2.0**63, "not between"),
        ("float_val", "double_val", 1e300, "too large for a 32-bit float"),
        ("bool_val", "int64_val", 2, "not between 0 and 1"),
        ("string_val", "int64_val", 7, "has int64_val 7;"),
        ("double_val", "string_val", "x" * 200, r"has string_val 'x{79}\.\.\.;"),
        ("double_val", "double_list_val", [1.0], "has double_list_val"),
        ("int64_list_val", "int64_set_val", [1], "has int64_set_val"),
        ("int64_list_val", "double_list_val", [1.0, 2.5], r"has double_list_val 2\.5, which is not a whole"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_row_and_value(make_value, target, source, number, reason):
    values = [None, make_value(source, number)]
    with pytest.raises(RowError, match=rf"feature 'x' takes {target}, but row 1 of the batch .*{reason}"):
        FeatureCodec("x", target).to_arrow(values)


INTEGERS = {"int32": 31, "int64": 63, "timestamp": 63}
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.integers(-5, 5), st.booleans())


@given(NUMBERS, st.sampled_from([*INTEGERS, "float", "double", "bool"]))
def test_a_conversion_is_equal_or_the_nearest_float(number, target):
    source = {bool: "bool", int: "int64", float: "double"}[type(number)]
    try:
        back = converted(number, source, target)
    except ValueError:
        if target in ("float", "double"):
            assert abs(number) > float(np.finfo(np.float32).max)
        elif target == "bool":
            assert number not in (0, 1)
        else:
            bits = INTEGERS[target]
            assert number != number or number % 1 or not -(2**bits) <= number < 2**bits
        return
    if target in ("float", "double") and number == number:
        assert back == (np.float32(number) if target == "float" else float(number))
    else:
        assert back == number or (back != back and number != number)


def test_kinds_that_are_no_numbers_stay_apart(make_value):
    values = {"string_val": "1", "bytes_val": b"1", "map_val": MAPS[0], "int64_val": 1}
    for target, source in itertools.permutations(values, 2):
        with pytest.raises(RowError, match=f"takes {target}, but row 0 of the batch has {source}"):
            FeatureCodec("x", target).to_arrow([make_value(source, values[source])])
