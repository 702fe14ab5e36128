"""A view with a score, which nobody writes."""

from typing import Any

import numpy as np
import pyarrow as pa

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.codecs import CATEGORICAL, FeatureCodec
from feast_sketch_store.rows.formulas import Formula, Source, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.conformance.kit.views import SealedView, encoded, keys_of, sealed, unknown_users, users


def formulas() -> SealedView:
    """A score of which half the values lie halfway between two steps, and one of two features."""
    numbers = range(60)
    codecs = [FeatureCodec("liked", "string_set_val"), FeatureCodec("sizes", "int64_set_val")]
    values: dict[str, list[Any]] = {
        "liked": [["tea", "milk", "café"][: n % 4] if n % 5 else None for n in numbers],
        "sizes": [[size for size in range(-2, 3) if n >> (size + 2) & 1] for n in numbers],
    }
    tastes = Vocabulary(pa.array([value.encode() for value in ("café", "tea")], pa.large_binary()))
    sizes = Vocabulary(pa.array([-2, 2, 1]))
    computed = {
        "taste": Formula(
            FeatureCodec("taste", "double_val", CATEGORICAL),
            (
                Source("liked", tastes, np.array([9, -7], np.int32)),
                Source("sizes", sizes, np.array([-2, 2**31 - 1, 1], np.int32)),
            ),
            version=4,
        ),
        "worth": Formula(
            FeatureCodec("worth", "double_val", CATEGORICAL),
            (Source("sizes", sizes, np.array([1, -3, 2], np.int32)),),
            unit=0.125,
            step=0.25,
        ),
    }
    rows = with_formulas(encoded(users(numbers), codecs, values), computed)
    goal = Goal("error_rate", 0.01, "sets")
    budget = FeatureBudget(1e-5, {"liked": goal, "sizes": goal, "taste": 1e-5, "worth": 1e-5})
    layer = sealed(rows, budget, formulas=computed)
    return SealedView([layer], [*keys_of(users(numbers)), *unknown_users()], computed=[*computed])
