"""The compiled kernel refuses what does not fit together before it touches memory; how it is chosen."""

import os
import subprocess
import sys

import numpy as np
import pytest

from feast_sketch_store import kernel

if not kernel.IS_COMPILED:
    pytest.skip("the kernel is not compiled here, or not wanted", allow_module_level=True)

import feast_sketch_store.kernel._compiled as compiled

WORDS, HASHES, SALT = np.zeros(12, np.uint64), np.zeros((3, 2), np.uint64), (1, 2)
READ = (WORDS, 10, *SALT, HASHES, 0, 128, 3, None)  # a window of 2 words
FOUND = np.zeros(2, np.uint64), np.zeros(2, np.int64)
PARAMETERS, STARTS, LEVELS = np.array([[1, 0]]), np.array([0, 3]), np.zeros(3, np.uint8)
SETS = np.array([2, 1], np.int32), np.array([0, 2, 3]), np.array([0, 1, 2], np.int32)
ENDS = np.zeros(2, np.int64)
CODES = (PARAMETERS, STARTS, LEVELS, WORDS, 100)
OFFSETS = (WORDS, 9, WORDS, 9, 2, 16)
ONE_SET = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(9, np.int32)
INDPTR, IDS = np.zeros(4, np.int64), np.zeros(500, np.int32)


def replaced(arguments, place, value):
    return (*arguments[:place], value, *arguments[place + 1 :])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, WORDS[:11].copy()),  # shorter than table and window
        (0, np.zeros(95, np.uint8)),
        (1, 0),
        (1, -5),
        (1, 11),
        (4, HASHES[:, 0].copy()),
        (5, -1),
        (5, 11),
        (6, 0),
        (6, 129),
        (6, 2**62),
        (7, 0),
        (7, 129),
        (8, np.array([0, 5])),  # of fewer hashes
        (8, np.array([1, 5, 9])),  # no hash for the first symbol
        (8, np.array([0, 9, 5])),
        (8, np.array([0, 5, 128])),
    ],
)
def test_reads_outside_of_a_table_are_refused(place, value):
    read = replaced(READ, place, value)
    for ask in (
        lambda: compiled.windows(*read, np.zeros((3, 2), np.uint64)),
        lambda: compiled.possible_symbols(*read, None, 0, INDPTR.copy(), IDS.copy()),
        lambda: compiled.contains(*read, None, IDS[:5].copy(), 5, np.zeros((3, 5), np.bool_)),
        lambda: compiled.scores(*read, None, np.zeros(128), np.zeros(3)),
        lambda: compiled.touch_blocks(*read, 4, np.ones(3, np.uint8), np.zeros(3, np.uint8)),
    ):
        with pytest.raises(ValueError, match=r"symbols do not lie|do not fit|another type"):
            ask()


MISFITS = {
    "answers": lambda: compiled.windows(*READ, np.zeros(5, np.uint64)),
    "wanted": lambda: compiled.possible_symbols(*READ, np.ones(2, np.bool_), 0, INDPTR.copy(), IDS.copy()),
    "indptr": lambda: compiled.possible_symbols(*READ, None, 0, np.zeros(3, np.int64), IDS.copy()),
    "begin": lambda: compiled.possible_symbols(*READ, None, 4, INDPTR.copy(), IDS.copy()),
    "symbols": lambda: compiled.contains(*READ, None, IDS[:4].copy(), 5, np.zeros((3, 5), np.bool_)),
    "weights": lambda: compiled.scores(*READ, None, np.zeros(127), np.zeros(3)),
    "blocks": lambda: compiled.touch_blocks(*READ, 4, np.ones(2, np.uint8), np.zeros(2, np.uint8)),
    "hashes out": lambda: compiled.hash_int64_keys(b"x", np.zeros(2, np.int64), np.zeros(3, np.uint64)),
    "offsets": lambda: compiled.hash_keys(np.array([0, 5]), np.zeros(4, np.uint8), np.zeros(2, np.uint64)),
    "descending": lambda: compiled.hash_keys(np.array([3, 1]), np.zeros(4, np.uint8), np.zeros(2, np.uint64)),
    "full slots": lambda: compiled.index_int64(np.arange(4), 1, np.full(4, -1, np.int32)),
    "odd slots": lambda: compiled.index_int64(np.arange(2), 1, np.full(5, -1, np.int32)),
    "rows": lambda: compiled.sort_rows(np.array([0, 3, 2]), np.zeros(2, np.int32)),
    "ids": lambda: compiled.encode_values(
        b"x", True, True, np.ones(1, np.bool_), np.array([0, 1]), np.array([9], np.int32), np.array([0, 1]),
        np.zeros(1, np.uint8), np.zeros(2, np.int64),
    ),
    "fragments": lambda: compiled.encode_values(
        b"x", True, True, np.ones(1, np.bool_), np.array([0, 1]), np.array([0], np.int32), np.array([0, 99]),
        np.zeros(1, np.uint8), np.zeros(2, np.int64),
    ),
    "facts": lambda: compiled.add_facts(
        np.zeros(5, np.uint64), 0, 3, 3, *SALT, HASHES, np.array([0], np.int32), np.array([0, 1]),
        np.array([128], np.int32), 4, 0, 3, None,
    ),
    "places": lambda: compiled.add_facts(
        np.zeros(5, np.uint64), 0, 3, 3, *SALT, HASHES, np.array([3], np.int32), np.array([0, 1]),
        np.array([1], np.int32), 4, 0, 3, None,
    ),
    "hashes of facts": lambda: compiled.add_facts(
        np.zeros(5, np.uint64), 0, 3, 3, *SALT, HASHES, np.array([0], np.int32), np.array([0, 1]),
        np.array([1], np.int32), 4, 0, 3, np.array([1, 2, 3]),
    ),
    "packed": lambda: compiled.take_packed(WORDS, 9, 200, np.array([3]), ENDS[:1].copy()),
    "packed out": lambda: compiled.take_packed(WORDS, 9, 8, np.array([3]), ENDS.copy()),
    "row hashes": lambda: compiled.row_hashes(HASHES, *SALT, ENDS.copy()),
    "starts": lambda: compiled.find_rows(WORDS[:1], 8, 9, WORDS, 9, 3, *FOUND),
    "rests": lambda: compiled.find_rows(WORDS, 8, 9, WORDS[:1], 9, 9, *FOUND),
    "width": lambda: compiled.find_rows(WORDS, 65, 2, WORDS, 9, 3, *FOUND),
    "rows found": lambda: compiled.find_rows(WORDS, 8, 9, WORDS, 9, 3, FOUND[0], FOUND[1][:1].copy()),
    "levels": lambda: compiled.write_sets(
        PARAMETERS, np.array([0, 4]), LEVELS, *SETS, WORDS.copy(), ENDS.copy()
    ),
    "parameters": lambda: compiled.write_sets(
        np.array([[31, 0]]), STARTS, LEVELS, *SETS, WORDS.copy(), ENDS.copy()
    ),
    "sizes": lambda: compiled.write_sets(
        PARAMETERS, STARTS, LEVELS, np.array([3, 1], np.int32), *SETS[1:], WORDS.copy(), ENDS.copy()
    ),
    "unordered": lambda: compiled.write_sets(
        PARAMETERS, STARTS, LEVELS, *SETS[:2], np.array([1, 1, 2], np.int32), WORDS.copy(), ENDS.copy()
    ),
    "unknown ids": lambda: compiled.write_sets(
        PARAMETERS, STARTS, LEVELS, *SETS[:2], np.array([0, 3, 2], np.int32), WORDS.copy(), ENDS.copy()
    ),
    "feature": lambda: compiled.read_sets(*CODES, *OFFSETS, np.array([0]), 1, 0, *ONE_SET),
    "bits": lambda: compiled.read_sets(*CODES[:3], WORDS[:2], 128, *OFFSETS, np.array([0]), 0, 0, *ONE_SET),
    "headers": lambda: compiled.read_sets(*CODES, *OFFSETS, np.array([0, 1]), 0, 0, *ONE_SET),
    "deltas": lambda: compiled.read_sets(
        *CODES, WORDS, 9, WORDS[:1], 9, 2, 16, np.array([0]), 0, 0, *ONE_SET
    ),
}  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS.keys())
def test_arrays_that_do_not_fit_are_refused(misfit):
    with pytest.raises(ValueError, match="do not fit"):
        misfit()


@pytest.mark.parametrize("row", [-1, 2])
def test_sets_of_rows_that_do_not_exist_are_refused(row):
    with pytest.raises(ValueError, match="cannot be read"):
        compiled.read_sets(*CODES, *OFFSETS, np.array([row]), 0, 0, *ONE_SET)


def test_read_only_output_is_refused():
    answers = np.zeros((3, 2), np.uint64)
    answers.flags.writeable = False
    with pytest.raises((TypeError, BufferError, ValueError)):
        compiled.windows(*READ, answers)


@pytest.mark.parametrize(
    ("wanted", "printed"), [("numpy", "False"), ("compiled", "True"), ("", "True"), ("fast", "ValueError")]
)
def test_the_environment_chooses_the_kernel(wanted, printed):
    command = [sys.executable, "-c", "from feast_sketch_store import kernel; print(kernel.IS_COMPILED)"]
    environment = {**os.environ, "FEAST_SKETCH_STORE_KERNEL": wanted}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert printed in done.stdout + done.stderr
