"""The kernel: the loops that decide how fast the store is, in C.

`calls` has its functions, with the arrays that they take and fill; `formulas` what Python and C compute
alike.
"""

try:
    import feast_sketch_store.kernel._compiled
except ImportError as error:
    raise ImportError(
        "feast_sketch_store has no kernel for this Python and this machine. Install a wheel that has it, or "
        "compile it in a clone: pip install --editable . (without a C compiler, pip takes one from PyPI)"
    ) from error

from feast_sketch_store.kernel._compiled import (
    RowReader,
    add_facts,
    band_rows,
    check_blocks,
    contains,
    hash_int64_key,
    hash_key,
    hash_message,
    possible_symbols,
    solve_slots,
    take_packed,
    touch_blocks,
    vectors_to_json,
)
from feast_sketch_store.kernel.calls import (
    ABSENT,
    AS_BYTES,
    AS_IDS,
    AS_NUMBERS,
    BYTES,
    EXPIRED,
    FOUND,
    NAMES,
    NUMBERS,
    SEED,
    WITH_WEIGHTS,
    BytesIndex,
    Int64Index,
    Numbers,
    SetCodes,
    SymbolQuery,
    distinct_per_row,
    ends_of_sets,
    hash_int64_keys,
    hash_keys,
    parse_int64_keys,
    parse_packed_lists,
    plain,
    row_hashes,
    write_sets,
)
from feast_sketch_store.kernel.faults import DAMAGED, NOT_SERVED, TOO_LONG, ReadFault
from feast_sketch_store.kernel.formulas import (
    AGES,
    DIRECT_CODES,
    GAPS,
    LONGEST_UNARY,
    MAX_NUM_HASHES,
    NUM_CLASSES,
    NUM_LEFT,
    NUM_WIDTHS,
    PREFIX_BITS,
    SAMPLED,
    SIZES,
    ceil_log2,
    fingerprints_of,
    half_octaves,
    masks_of,
    mix64,
    to_bits,
    varint,
    words_of_bits,
)
