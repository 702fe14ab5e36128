"""Codes of attributes: what is written is read, in about its entropy; what does not fit is refused."""

import itertools

import numpy as np
import pytest

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.succinct import AttributeCodes
from tests.oracle.attribute_codes import decoded


def drawn(seed, num_rows, shares, most=60):
    """Codes of rows with up to ``most`` items, in the given shares."""
    rng = np.random.default_rng(seed)
    indptr = Csr.of_lengths(rng.integers(0, most, num_rows), np.zeros(0)).indptr
    return indptr, rng.choice(len(shares), int(indptr[-1]), p=np.array(shares) / sum(shares))


SHARES = {
    "rare": [0.97, 0.02, 0.01],
    "even": [1, 1, 1, 1],
    "two": [0.7, 0.3],
    "many": [*range(1, 201)],
    "one": [1.0, 0.0],
}


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("num_rows", [0, 1, 300])
def test_codes_are_read_as_they_were_written(name, num_rows):
    indptr, codes = drawn(1, num_rows, SHARES[name])
    coded = AttributeCodes.build(indptr, codes, len(SHARES[name]))
    rows = decoded(coded, np.diff(indptr))
    assert rows == [codes[a:b].tolist() for a, b in itertools.pairwise(indptr)]


@pytest.mark.parametrize("name", SHARES)
def test_codes_take_about_their_entropy(name):
    indptr, codes = drawn(2, 4_000, SHARES[name])
    shares = np.bincount(codes) / len(codes)
    entropy = -sum(share * np.log2(share) for share in shares if share)
    coded = AttributeCodes.build(indptr, codes, len(SHARES[name]))
    # Beside rounding to whole bits, the last block of a row is filled up.
    assert coded.num_bits / len(codes) <= 1.06 * entropy + 0.06


def test_arrays_that_do_not_fit_are_refused():
    indptr, codes = drawn(3, 20, [0.8, 0.2])
    coded = AttributeCodes.build(indptr, codes, 2)
    parts = {name: getattr(coded, name) for name in AttributeCodes.__dataclass_fields__}
    for name, wrong in (
        ("usual", 2),
        ("block_items", 0),
        ("block_items", coded.block_items + 1),
        ("lengths", np.full_like(coded.lengths, 1)),
        ("lengths", np.full_like(coded.lengths, 13)),
        ("num_bits", coded.num_bits + 64),
        ("num_bits", -1),
        ("num_codes", 3),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            AttributeCodes(**{**parts, name: wrong})


def test_the_kernel_refuses_attributes_without_items():
    rows = RowReader()
    rows.exact(np.zeros((1, 2), np.uint64), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    values = np.arange(2), None, None
    for begin in (lambda: None, lambda: rows.feature(b"", True, 0, None, None, None)):
        begin()
        with pytest.raises(ValueError, match="do not fit"):
            rows.attribute(1, True, 1, *values)
    ids, indptr = np.zeros(1, np.int32), np.array([0, 1])
    rows.from_items(np.full(1, 3, np.uint8), indptr, ids, np.zeros(1, np.int64), 0)
    for code_bits, step in ((0, 1), (9, 1), (1, 0)):
        with pytest.raises(ValueError, match="do not fit"):
            rows.attribute(code_bits, True, step, *values)
    rows.attribute(1, True, 1, *values)
    indptr, codes = drawn(3, 1, [0.8, 0.2])
    with pytest.raises(ValueError, match="do not fit"):  # these are not sealed
        rows.attribute_codes(*AttributeCodes.build(indptr, codes, 2).arguments)
