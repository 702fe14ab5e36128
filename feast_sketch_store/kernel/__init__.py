"""The kernel: the loops that decide how fast the store is.

`compiled` has them in C; where it could not be built, `reference` has them in NumPy, with the same results.
``FEAST_SKETCH_STORE_KERNEL=numpy`` in the environment chooses the latter, ``compiled`` insists on the former.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from feast_sketch_store.kernel.reference import (
    MAX_NUM_HASHES,
    Asked,
    PackedNumbers,
    SetCodes,
    Table,
    half_octaves,
    mix64,
    row_sums,
    to_bits,
    varint,
)

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

IS_COMPILED = _is_built and _wanted != "numpy"

if TYPE_CHECKING or not IS_COMPILED:
    from feast_sketch_store.kernel.reference import (
        BytesIndex,
        Int64Index,
        add_facts,
        contains,
        distinct_per_row,
        encode_values,
        find_rows,
        hash_int64_keys,
        hash_keys,
        parse_int64_keys,
        possible_symbols,
        read_sets,
        row_hashes,
        scores,
        take_packed,
        touched_blocks,
        windows,
        write_sets,
    )
else:
    from feast_sketch_store.kernel.compiled import (
        BytesIndex,
        Int64Index,
        add_facts,
        contains,
        distinct_per_row,
        encode_values,
        find_rows,
        hash_int64_keys,
        hash_keys,
        parse_int64_keys,
        possible_symbols,
        read_sets,
        row_hashes,
        scores,
        take_packed,
        touched_blocks,
        windows,
        write_sets,
    )

__all__ = [
    "IS_COMPILED",
    "MAX_NUM_HASHES",
    "Asked",
    "BytesIndex",
    "Int64Index",
    "PackedNumbers",
    "SetCodes",
    "Table",
    "add_facts",
    "contains",
    "distinct_per_row",
    "encode_values",
    "find_rows",
    "half_octaves",
    "hash_int64_keys",
    "hash_keys",
    "mix64",
    "parse_int64_keys",
    "possible_symbols",
    "read_sets",
    "row_hashes",
    "row_sums",
    "scores",
    "take_packed",
    "to_bits",
    "touched_blocks",
    "varint",
    "windows",
    "write_sets",
]
