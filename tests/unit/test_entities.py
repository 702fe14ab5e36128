"""Entities as callers give them: arrays, lists, mappings and hashes give the same hashes, or are refused."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.errors import RowError
from feast_sketch_store.reading.entities import EntityColumns
from tests.helpers.cases import for_each
from tests.helpers.keys import user_hashes

USERS = EntityColumns("history", {"user_id": pa.int64()})
VISITS = EntityColumns("history", {"user_id": pa.int64(), "shop": pa.large_string()})


@for_each(
    "given",
    [
        [7, 8],
        np.array([7, 8]),
        np.array([7, 8], np.int32),
        pa.array([7, 8]),
        {"user_id": [7, 8]},
        {"user_id": np.array([7, 8])},
        user_hashes([7, 8]),
    ],
)
def test_every_form_gives_the_same_hashes(given):
    assert USERS.hash(given).tolist() == user_hashes([7, 8]).tolist()


@for_each(
    ("columns", "given", "reason"),
    [
        (USERS, ["a"], "is not int64"),
        (USERS, [7, None], "some are null"),
        (USERS, {"shop": ["a"]}, r"they have the join keys \['shop'\]"),
        (VISITS, [7], "give a mapping with an array for each"),
        (VISITS, {"user_id": [7, 8], "shop": ["a"]}, r"the columns have \[1, 2\] values"),
    ],
)
def test_other_entities_are_refused(columns, given, reason):
    with pytest.raises(RowError, match=f"'history', whose join keys are user_id .*{reason}"):
        columns.hash(given)
