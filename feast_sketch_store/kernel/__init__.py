"""The kernel: the loops that decide how fast the store is.

`compiled` has them in C. Where it could not be built, the modules named `reference` have them in NumPy, with
the same results, and importing this package warns of it. Set ``FEAST_SKETCH_STORE_KERNEL=numpy`` in the
environment to use NumPy, or ``compiled`` to insist on C.
"""

import os
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING

from feast_sketch_store.kernel.prepared import SEED, PreparedRows, ReadableRows
from feast_sketch_store.kernel.reference import MAX_NUM_HASHES, Asked, Table, mix64, row_sums, to_bits, varint
from feast_sketch_store.kernel.reference_gaps import half_octaves
from feast_sketch_store.kernel.reference_lists import ListCodes
from feast_sketch_store.kernel.reference_rows import (
    SAMPLED,
    AscendingNumbers,
    PackedNumbers,
    RowIndex,
    fingerprints_of,
    words_of_bits,
)
from feast_sketch_store.kernel.reference_sets import SetCodes
from feast_sketch_store.kernel.reference_trees import TreeCodes

_ENVIRONMENT = "FEAST_SKETCH_STORE_KERNEL"
_wanted = os.environ.get(_ENVIRONMENT, "")
_is_built = find_spec("feast_sketch_store.kernel._compiled") is not None
if _wanted not in ("", "numpy", "compiled"):
    raise ValueError(f"{_ENVIRONMENT} is {_wanted!r}; set it to 'numpy' or 'compiled', or not at all")
if _wanted == "compiled" and not _is_built:
    raise ImportError(
        f"{_ENVIRONMENT} asks for the compiled kernel, which was not built; install the package where there "
        "is a C compiler"
    )

if not _is_built and not _wanted:
    warnings.warn(
        "feast_sketch_store has no compiled kernel here: reads take 5 to 60 times as long. Install a wheel "
        "that has it: pip install --only-binary feast_sketch_store feast_sketch_store. Or install a C "
        "compiler and Python's headers (apt-get install gcc python3-dev), and then this package again: pip "
        "install --force-reinstall --no-deps --no-cache-dir feast_sketch_store. Set "
        f"{_ENVIRONMENT}=numpy to do without it and silence this warning",
        RuntimeWarning,
        stacklevel=2,
    )

IS_COMPILED = _is_built and _wanted != "numpy"

if TYPE_CHECKING or not IS_COMPILED:
    from feast_sketch_store.kernel.reference import (
        BytesIndex,
        Int64Index,
        add_facts,
        check_blocks,
        contains,
        contains_rows,
        distinct_per_row,
        encode_values,
        hash_int64_key,
        hash_int64_keys,
        hash_key,
        hash_keys,
        hash_message,
        parse_int64_keys,
        parse_packed_lists,
        possible_symbols,
        prepared_rows,
        scores,
        touched_blocks,
        vectors_to_json,
        windows,
    )
    from feast_sketch_store.kernel.reference_lists import find_lists, read_lists
    from feast_sketch_store.kernel.reference_rows import find_rows, row_hashes, take_ascending, take_packed
    from feast_sketch_store.kernel.reference_sets import read_sets, write_sets
    from feast_sketch_store.kernel.reference_static import band_rows, look_up, solve_slots
    from feast_sketch_store.kernel.reference_trees import read_trees, write_trees
else:
    from feast_sketch_store.kernel.compiled import (
        BytesIndex,
        Int64Index,
        add_facts,
        band_rows,
        check_blocks,
        contains,
        contains_rows,
        distinct_per_row,
        encode_values,
        find_lists,
        find_rows,
        hash_int64_key,
        hash_int64_keys,
        hash_key,
        hash_keys,
        hash_message,
        look_up,
        parse_int64_keys,
        parse_packed_lists,
        possible_symbols,
        prepared_rows,
        read_lists,
        read_sets,
        read_trees,
        row_hashes,
        scores,
        solve_slots,
        take_ascending,
        take_packed,
        touched_blocks,
        vectors_to_json,
        windows,
        write_sets,
        write_trees,
    )

__all__ = [
    "IS_COMPILED",
    "MAX_NUM_HASHES",
    "SAMPLED",
    "SEED",
    "AscendingNumbers",
    "Asked",
    "BytesIndex",
    "Int64Index",
    "ListCodes",
    "PackedNumbers",
    "PreparedRows",
    "ReadableRows",
    "RowIndex",
    "SetCodes",
    "Table",
    "TreeCodes",
    "add_facts",
    "band_rows",
    "check_blocks",
    "contains",
    "contains_rows",
    "distinct_per_row",
    "encode_values",
    "find_lists",
    "find_rows",
    "fingerprints_of",
    "half_octaves",
    "hash_int64_key",
    "hash_int64_keys",
    "hash_key",
    "hash_keys",
    "hash_message",
    "look_up",
    "mix64",
    "parse_int64_keys",
    "parse_packed_lists",
    "possible_symbols",
    "prepared_rows",
    "read_lists",
    "read_sets",
    "read_trees",
    "row_hashes",
    "row_sums",
    "scores",
    "solve_slots",
    "take_ascending",
    "take_packed",
    "to_bits",
    "touched_blocks",
    "varint",
    "vectors_to_json",
    "windows",
    "words_of_bits",
    "write_sets",
    "write_trees",
]
