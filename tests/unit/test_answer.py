"""Sums of the weights of the values of rows, each counted once or by its own weight."""

import numpy as np

from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures.base import weighted_sums

INDPTR, IDS = np.array([0, 2, 2, 3, 3]), np.array([0, 3, 1], np.int32)
WEIGHTS = np.array([1.0, 10.0, 100.0, 1000.0])


def test_symbols_count_one_each_unless_they_have_weights():
    for own, sums in [
        (None, [1001, 0, 10, 0]),
        (np.array([2, 3, 7]), [3002, 0, 70, 0]),
        (np.array([0.5, -1, 0]), [-999.5, 0, 0, 0]),
    ]:
        assert weighted_sums(Csr(INDPTR, IDS, own), WEIGHTS).tolist() == sums
