"""The kernel refuses what does not fit together before it touches memory; what a package without it says."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feast_sketch_store import kernel
from feast_sketch_store.kernel import SymbolQuery
from feast_sketch_store.kernel import _compiled as compiled
from feast_sketch_store.structures import sizing
from tests.helpers.cases import case

WORDS, HASHES, SALT = np.zeros(12, np.uint64), np.zeros((3, 2), np.uint64), (1, 2)
READ = (WORDS, 10, *SALT, HASHES, 0, 128, 3, None, None, None, None)  # a window of 2 words
MASKED = (*READ[:9], np.array([1, 3]), np.zeros((2, 1, 2), np.uint64), np.array([0, 1, 0], np.int32))
PARAMETERS, STARTS, LEVELS = np.array([[1, 0, -1]]), np.array([0, 3]), np.zeros(3, np.uint8)
LEFT, HEADERS = np.zeros((1, 320), np.uint8), np.arange(256, dtype=np.uint8)[None]
SETS = np.array([2, 1], np.int32), np.array([0, 2, 3]), np.array([0, 1, 2], np.int32)
ENDS = np.zeros(2, np.int64)
CODES = (PARAMETERS, STARTS, LEVELS, LEFT, HEADERS, WORDS, 100)
ASCENDING = (np.array([0b101], np.uint64), 8, 2, WORDS, 9, WORDS, 9)  # one in bucket 0 and one in bucket 1
CHECKED = (*ASCENDING, None, None, None)  # all blocks of highs, lows and samples
INDEX = (*CHECKED, 8 << 9, np.zeros(1, np.uint64))
TABLES, WIDTHS = np.full(3 * 4096, 1, np.uint16), np.zeros(15, np.uint8)
LISTS = (TABLES, WIDTHS, 3, WORDS, 9, None, *CHECKED, 0, 1, None, 0)
INDPTR, IDS = np.zeros(4, np.int64), np.zeros(500, np.int32)


def listed(*index):
    """Two rows without features."""
    rows, times = compiled.RowReader(), (np.zeros(0, np.uint64), 0, 0, 2, None)
    rows.listed(*SALT, *(index or INDEX), *times, None, None)
    return rows


def with_sets():
    """The same with sets, and a feature of 3 values that is not in them yet."""
    rows = listed()
    rows.sets(*CODES, None, *CHECKED, 1)
    rows.feature(b"", True, 0, np.zeros(3, np.int64), None, None)
    return rows


def replaced(arguments, index, value):
    return (*arguments[:index], value, *arguments[index + 1 :])


@pytest.mark.parametrize(
    ("index", "value"),
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
        (8, np.array([0, 5])),  # of fewer hashes
        (8, np.array([1, 5, 9])),  # no hash for the first symbol
        (8, np.array([0, 9, 5])),
        (8, np.array([0, 5, 128])),
    ],
)
def test_reads_outside_of_a_table_are_refused(index, value):
    refuse_reads(replaced(READ, index, value))


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (8, np.array([0, 5, 9])),  # beside masks
        (9, None),
        (9, np.array([3])),
        (9, np.array([2, 4])),
        (9, np.array([2, 2])),  # the last hash is in no group
        (9, np.array([3, 1, 3])),
        (9, np.array([-1, 3])),
        (9, np.arange(66).clip(max=3)),
        (10, np.zeros(3, np.uint64)),
        (11, None),
        (11, np.array([0, 1], np.int32)),
        (11, np.array([0, 2, 0], np.int32)),
        (11, np.array([0, -1, 0], np.int32)),
        (11, np.array([0, 1, 0])),
    ],
)
def test_masks_that_do_not_fit_are_refused(index, value):
    compiled.possible_symbols(*MASKED, None, 0, INDPTR.copy(), IDS.copy())
    refuse_reads(replaced(MASKED, index, value))


def refuse_reads(read):
    for ask in (
        lambda: compiled.possible_symbols(*read, None, 0, INDPTR.copy(), IDS.copy()),
        lambda: compiled.contains(*read, None, IDS[:5].copy(), 5, np.zeros((3, 5), np.bool_)),
        lambda: compiled.touch_blocks(*read, 4, np.ones(3, np.uint8), np.zeros(3, np.uint8)),
    ):
        with pytest.raises(ValueError, match=r"symbols do not lie|do not fit|another type"):
            ask()


RIBBON = np.zeros(64, np.uint64), np.zeros(64, np.uint64)
# Of each function, arguments that it takes, made of arrays alone that are given up to be replaced.
FACTS = (
    *(np.zeros(5, np.uint64), 0, 3, 3, *SALT, HASHES, np.zeros(1, np.int32), np.array([0, 1])),
    *(None, np.array([1], np.int32), 0, 3, None),
)
TEXT = np.array([0, 1, 3]), np.frombuffer(b"abc", np.uint8)
SLOTS = np.full(8, -1, np.int32)
CALLS = {
    "possible_symbols": (
        *(*READ[:8], np.array([0, 5, 9]), None, None, None),
        *(np.ones(3, np.bool_), 0, INDPTR, IDS),
    ),
    "possible_symbols, masked": (*MASKED, None, 0, INDPTR, IDS),
    "contains": (*READ, None, IDS[:5], 5, np.zeros((3, 5), np.bool_)),
    "touch_blocks": (*READ, 4, np.ones(3, np.uint8), np.zeros(3, np.uint8)),
    "add_facts": FACTS,
    "add_facts, narrow": (*FACTS[:9], np.array([1], np.uint16), None, *FACTS[11:13], np.array([0, 0, 1])),
    "hash_int64_keys": (b"x", np.zeros(2, np.int64), np.zeros((2, 2), np.uint64)),
    "parse_int64_keys": (b"xy", np.array([1, 1]), np.zeros(2, np.int64)),
    "parse_packed_lists": (
        *(b"\x72\x03\x0a\x01\x05", np.array([5]), 14, 0, np.zeros(2, np.int64), np.zeros(8, np.uint8)),
    ),
    "hash_keys": (*TEXT, np.zeros((2, 2), np.uint64)),
    "index_int64": (np.arange(2), 1, SLOTS),
    "find_int64": (np.arange(2), 1, SLOTS, np.arange(3), np.zeros(3, np.int32)),
    "index_bytes": (*TEXT, 1, SLOTS),
    "find_bytes": (*TEXT, 1, SLOTS, *TEXT, np.zeros(2, np.int32)),
    "sort_rows": (np.array([0, 2]), np.array([3, 1], np.int32)),
    "take_packed": (WORDS, 9, 8, np.array([3]), np.zeros(1, np.uint64)),
    "row_hashes": (HASHES, *SALT, np.zeros(3, np.uint64)),
    "take_ascending": (*ASCENDING, np.array([1]), np.zeros(1, np.uint64)),
    "write_sets": (*CODES[:5], *SETS, WORDS, ENDS),
    "check_blocks": (WORDS, np.zeros(48, np.uint8), 4, np.ones(3, np.uint8), 1, 2),
    "band_rows": (*(np.zeros(3, np.uint64), np.ones(3, np.uint64)), 64, *RIBBON, np.zeros(3, np.uint8)),
    "solve_slots": (*RIBBON, 3, np.zeros(6, np.uint64)),
    "look_up": (np.zeros(6, np.uint64), 3, 64, np.zeros(2, np.uint64), np.zeros(2, np.uint64)),
}


def call(name, arguments):
    """Call a function with copies of its arrays, so that no call sees what another one wrote."""
    copies = [
        argument.copy() if isinstance(argument, np.ndarray) and argument.flags.aligned else argument
        for argument in arguments
    ]
    return getattr(compiled, name.partition(",")[0])(*copies)


def words(number):
    return np.zeros(number, np.uint64)


# Of a call that is sound, arguments that do not fit the others.
MISFITS = {
    "values of a static function": ("band_rows", {1: words(2)}),
    "slots to fill": ("band_rows", {2: 128}),
    "width of slots": ("solve_slots", {2: 65, 3: words(130)}),
    "words of slots": ("solve_slots", {3: words(5)}),
    "no slots": ("solve_slots", {0: words(0), 1: words(0), 3: words(3)}),
    "slots that are read": ("look_up", {0: words(5)}),
    "numbers that are read": ("look_up", {4: words(3)}),
    "wanted": ("possible_symbols", {12: np.ones(2, np.bool_)}),
    "begin": ("possible_symbols", {13: 4}),
    "indptr": ("possible_symbols", {14: np.zeros(3, np.int64)}),
    "symbols": ("contains", {13: IDS[:4]}),
    "blocks": ("touch_blocks", {13: np.ones(2, np.uint8), 14: np.zeros(2, np.uint8)}),
    "hashes out": ("hash_int64_keys", {2: words(3)}),
    "offsets": ("hash_keys", {0: np.array([0, 1, 5])}),
    "descending": ("hash_keys", {0: np.array([0, 3, 1])}),
    "full slots": ("index_int64", {0: np.arange(4), 2: np.full(4, -1, np.int32)}),
    "odd slots": ("index_int64", {2: np.full(5, -1, np.int32)}),
    "rows": ("sort_rows", {0: np.array([0, 3, 2])}),
    "facts": ("add_facts", {10: np.array([128], np.int32)}),
    "places": ("add_facts", {7: np.array([3], np.int32)}),
    "no symbols": ("add_facts", {10: None}),
    "symbols twice": ("add_facts", {9: np.array([1], np.uint16)}),
    "hashes of facts": ("add_facts", {13: np.array([1, 2, 3])}),
    "packed": ("take_packed", {2: 200}),
    "packed out": ("take_packed", {4: words(2)}),
    "row hashes": ("row_hashes", {3: words(2)}),
    "ascending out": ("take_ascending", {8: words(2)}),
    "levels": ("write_sets", {1: np.array([0, 4])}),
    "parameters": ("write_sets", {0: np.array([[31, 0, -1]])}),
    "sizes": ("write_sets", {5: np.array([3, 1], np.int32)}),
    "unordered": ("write_sets", {7: np.array([1, 1, 2], np.int32)}),
    "unknown ids": ("write_sets", {7: np.array([0, 3, 2], np.int32)}),
}
# The same of rows that are read, and of their sets and lists.
MISFITS_OF_ROWS = {
    "highs": lambda: listed(WORDS[:0], *INDEX[1:]),
    "no buckets": lambda: listed(INDEX[0], 0, *INDEX[2:]),
    "too many buckets": lambda: listed(INDEX[0], sys.maxsize, *INDEX[2:]),
    "fewer rows than none": lambda: listed(*INDEX[:2], -1, *INDEX[3:]),
    "too many rows": lambda: listed(*INDEX[:2], sys.maxsize, *INDEX[3:]),
    "lows": lambda: listed(*INDEX[:3], WORDS[:1], *INDEX[4:]),
    "low width": lambda: listed(*INDEX[:4], 64, *INDEX[5:]),
    "samples": lambda: listed(*INDEX[:5], WORDS[:0], *INDEX[6:]),
    "sample width": lambda: listed(*INDEX[:6], 65, *INDEX[7:]),
    "range": lambda: listed(*INDEX[:10], (8 << 9) + 1, INDEX[11]),
    "no range": lambda: listed(*INDEX[:10], 0, INDEX[11]),
    "codes of sets": lambda: listed().sets(*CODES[:5], WORDS[:2], 128, None, *CHECKED, 1),
    "starts of sets": lambda: listed().sets(*CODES, None, *CHECKED[:3], WORDS[:1], *CHECKED[4:], 1),
    "groups of rows": lambda: listed().sets(*CODES, None, *CHECKED, 0),
    "more groups": lambda: listed().sets(*CODES, None, *CHECKED, 2),
    "large groups": lambda: listed().sets(*CODES, None, *CHECKED, 65),
    "number of a set": lambda: with_sets().from_set(1, None),
    "own ids": lambda: with_sets().from_set(0, np.zeros(2, np.int32)),
    "tables": lambda: with_sets().from_list(TABLES[:9].copy(), *LISTS[1:]),
    "widths": lambda: with_sets().from_list(TABLES, WIDTHS[:9].copy(), *LISTS[2:]),
    "bits of lists": lambda: with_sets().from_list(*LISTS[:4], 64 * 11, *LISTS[5:]),
    "resolution": lambda: with_sets().from_list(*LISTS[:-3], 0, *LISTS[-2:]),
}


def test_arguments_that_do_not_fit_are_refused():
    for name, (function, changes) in MISFITS.items():
        arguments = list(CALLS[function])
        call(function, arguments)
        for index, value in changes.items():
            arguments[index] = value
        with case(name), pytest.raises(ValueError, match="do not fit"):
            call(function, arguments)
    for name, misfit in MISFITS_OF_ROWS.items():
        with case(name), pytest.raises(ValueError, match="do not fit"):
            misfit()


def misaligned(array):
    """The same array one byte behind where its elements may begin."""
    content = np.zeros(array.nbytes + 17, np.uint8)
    first = 9 - content.ctypes.data % 8
    moved = content[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


def test_the_limit_of_hashes_is_one():
    assert compiled.MAX_NUM_HASHES == kernel.MAX_NUM_HASHES == sizing.MAX_NUM_HASHES


def test_every_function_is_among_the_calls():
    functions = {name for name in dir(compiled) if callable(getattr(compiled, name)) and name[0] != "_"}
    without_arrays = {
        "RowReader",
        "hash_int64_key",
        "hash_key",
        "hash_message",  # these in tests/unit/test_row_reader.py
        "vectors_to_json",  # tests/properties/test_json.py
    }
    assert functions == {*without_arrays, *(name.partition(",")[0] for name in CALLS)}


def test_misaligned_arrays_are_refused():
    for name, arguments in CALLS.items():
        call(name, arguments)
        wide = [n for n, a in enumerate(arguments) if isinstance(a, np.ndarray) and a.itemsize > 1]
        assert wide
        for index in wide:
            with case(name, index), pytest.raises(ValueError, match="misaligned or of another type"):
                call(name, replaced(arguments, index, misaligned(arguments[index])))


def test_arrays_of_another_type_are_refused():
    for name, arguments in CALLS.items():
        for index, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                is_wide = argument.itemsize > 1
                other = argument.view(np.uint8) if is_wide else np.zeros(argument.size, np.int16)
                with case(name, index), pytest.raises(ValueError, match="misaligned or of another type"):
                    call(name, replaced(arguments, index, other))


def test_a_wrong_number_of_arguments_is_refused():
    for name, arguments in CALLS.items():
        with case(name), pytest.raises(TypeError, match="too few arguments"):
            call(name, arguments[:-1])
        with case(name), pytest.raises(TypeError, match="too many arguments"):
            call(name, (*arguments, 5))


def test_arrays_are_given_back():
    """Whether a call succeeds or fails, after any number of its arguments."""
    for name, given in CALLS.items():
        arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in given]
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        before = [sys.getrefcount(array) for array in arrays]
        for failing in range(len(arguments)):
            with case(name, failing), pytest.raises(TypeError):
                getattr(compiled, name.partition(",")[0])(*replaced(arguments, failing, "text"))
        getattr(compiled, name.partition(",")[0])(*arguments)
        assert [sys.getrefcount(array) for array in arrays] == before, name


@pytest.mark.parametrize("room", range(8))
@pytest.mark.parametrize("num_ones", [0, 1, 2, 3, 5])
def test_no_id_is_written_behind_the_room_for_them(num_ones, room):
    """Two more are written than there are in the end: an entity is only read if they, too, have room."""
    words = np.full(12, 2**num_ones - 1, np.uint64)
    query, hashes = SymbolQuery(0, 64, 1), HASHES[:1].copy()
    guarded, indptr = np.full(room + 4, -7, np.int32), np.zeros(2, np.int64)
    done = compiled.possible_symbols(words, 11, *SALT, hashes, *query, None, 0, indptr, guarded[:room])
    assert done == (num_ones + 2 <= room)
    assert guarded[room:].tolist() == [-7] * 4
    if done:
        assert indptr[1] == num_ones  # the words are alike, so rotations make no difference


def test_read_only_output_is_refused():
    indptr = INDPTR.copy()
    indptr.flags.writeable = False
    with pytest.raises((TypeError, BufferError, ValueError)):
        compiled.possible_symbols(*READ, None, 0, indptr, IDS.copy())


def test_a_package_without_its_kernel_says_how_to_get_it():
    code = (
        "import sys; sys.modules['feast_sketch_store.kernel._compiled'] = None\n"
        "from feast_sketch_store import SketchReader"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: feast_sketch_store has no kernel for this Python and this machine" in done.stderr
    assert "pip install --editable ." in done.stderr


PARTS_OF_READS = {"look_up", "take_ascending"}  # that tests ask alone


@pytest.mark.slow
def test_types_name_what_there_is_and_python_uses_all_of_it():
    stub = ast.parse(Path(kernel.__file__).with_name("_compiled.pyi").read_text())
    rows = next(node for node in stub.body if isinstance(node, ast.ClassDef))
    methods, functions = (
        {node.name for node in described.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
        for described in (rows, stub)
    )
    assert methods == {name for name in vars(kernel.RowReader) if name[0] != "_"}
    there = {name for name in dir(compiled) if callable(getattr(compiled, name)) and name[0] != "_"}
    assert functions <= there
    package = Path(kernel.__file__).parents[1]
    files = set(package.rglob("*.py")) - {Path(kernel.__file__)}
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    assert {*methods, *there} <= used | {"RowReader"} | PARTS_OF_READS


def test_a_call_that_returns_nothing_counts_its_reference_to_none():
    """What headers of a newer Python may leave out; CI builds with those, and runs this with the oldest."""
    keys = np.zeros(2, np.int64), np.zeros(0, np.uint8)
    before = sys.getrefcount(None)
    for _ in range(10_000):
        kernel.hash_keys(*keys)
    assert abs(sys.getrefcount(None) - before) < 1_000
