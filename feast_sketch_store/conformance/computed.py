"""A view with computed features, which nobody writes."""

from typing import Any

import numpy as np
import pyarrow as pa

from feast_sketch_store.conformance.views import SealedView, encoded, keys_of, sealed, unknown_users, users
from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.codecs import CATEGORICAL, CLUSTER, SCORE, FeatureCodec
from feast_sketch_store.rows.formulas import Formula, Source, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary


def formulas() -> SealedView:
    """A cluster id with tied sums, and a score of which half the values lie halfway between two steps."""
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
            FeatureCodec("taste", "int64_val", CATEGORICAL),
            CLUSTER,
            (
                Source("liked", tastes, np.array([[9, 0, 2], [0, 7, 2]], np.uint8)),
                Source("sizes", sizes, np.array([[0, 0, 5], [3, 3, 0], [1, 0, 0]], np.uint8)),
            ),
            np.array([-3, -3, -4]),
            version=4,
        ),
        "worth": Formula(
            FeatureCodec("worth", "double_val", CATEGORICAL),
            SCORE,
            (Source("sizes", sizes, np.array([[1], [-3], [2]], np.int32)),),
            np.array([5]),
            unit=0.125,
            step=0.25,
        ),
    }
    rows = with_formulas(encoded(users(numbers), codecs, values), computed)
    goal = Goal("error_rate", 0.01, "sets")
    budget = FeatureBudget(1e-5, {"liked": goal, "sizes": goal, "taste": 1e-5, "worth": 1e-5})
    layer = sealed(rows, budget, formulas=computed)
    return SealedView([layer], [*keys_of(users(numbers)), *unknown_users()], computed=[*computed])
