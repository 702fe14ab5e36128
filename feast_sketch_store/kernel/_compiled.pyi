"""What the C files of this folder offer. Arrays are C-contiguous and aligned, and have exactly these types.

A function raises ValueError for arrays that do not fit each other and for numbers out of range, before it
uses them. Calls fill the arrays named ``out``. Functions that take ``begin`` return how many rows are done:
they stop where the next one has no room, and the caller calls again with more.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MAX_NUM_HASHES: int

_Bools = NDArray[np.bool_]
_Bytes = NDArray[np.uint8]
_Ids = NDArray[np.int32]
_Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]
_Writable = NDArray[Any] | bytearray
_Owned = memoryview  # of the bytes of a read, which an object without methods owns

# -- shifting Bloom filters: filter.c; `arrays.Table` and `arrays.SymbolQuery` describe the first arguments

def possible_symbols(
    words: _Words,
    num_words: int,
    salt: int,
    other_salt: int,
    entity_hashes: _Words,
    first_word: int,
    num_symbols: int,
    num_hashes: int,
    firsts: _Ints | None,
    ends: _Ints | None,
    masks: _Words | None,
    clusters: _Ids | None,
    wanted: _Bools | None,
    begin: int,
    out_indptr: _Ints,
    out_ids: _Ids,
    /,
) -> int: ...
def contains(
    words: _Words,
    num_words: int,
    salt: int,
    other_salt: int,
    entity_hashes: _Words,
    first_word: int,
    num_symbols: int,
    num_hashes: int,
    firsts: _Ints | None,
    ends: _Ints | None,
    masks: _Words | None,
    clusters: _Ids | None,
    wanted: _Bools | None,
    symbols: _Ids,
    per_entity: int,
    out: _Bools,
    /,
) -> None: ...
def touch_blocks(
    words: _Words,
    num_words: int,
    salt: int,
    other_salt: int,
    entity_hashes: _Words,
    first_word: int,
    num_symbols: int,
    num_hashes: int,
    firsts: _Ints | None,
    ends: _Ints | None,
    masks: _Words | None,
    clusters: _Ids | None,
    block_words: int,
    unchecked: _Bytes,
    out_touched: _Bytes,
    /,
) -> int:
    """Mark the unchecked blocks that a read would use. Returns their number."""

def add_facts(
    part: _Words,
    first: int,
    num_words_of_part: int,
    num_words: int,
    salt: int,
    other_salt: int,
    entity_hashes: _Words,
    places: _Ids,
    indptr: _Ints,
    narrow_symbols: NDArray[np.uint16] | None,
    wide_symbols: _Ids | None,
    first_symbol: int,
    num_hashes: int,
    firsts: _Ints | None,
    /,
) -> None: ...

# -- keys: keys.c

def hash_int64_keys(prefix: bytes, values: _Ints, out_hashes: _Words, /) -> None: ...
def hash_keys(offsets: _Ints, data: _Bytes, out_hashes: _Words, /) -> None: ...
def hash_int64_key(prefix: bytes, value: int, /) -> bytes:
    """The hash of one key, a prefix and the 8 bytes of an int64: the 16 bytes of `hash_int64_keys`."""

def hash_key(key: bytes, /) -> bytes:
    """The hash of one serialized key: the 16 bytes of `hash_keys`."""

def hash_message(message: bytes, /) -> bytes | None:
    """The hash of one ``EntityKey`` in wire format; None unless it has one join key, an int64."""

def parse_int64_keys(messages: bytes, lengths: _Ints, out_values: _Ints, /) -> bytes | None: ...

# -- values: values.c, messages.c, json.c

def index_int64(values: _Ints, seed: int, out_slots: _Ids, /) -> None: ...
def find_int64(values: _Ints, seed: int, slots: _Ids, wanted: _Ints, out_ids: _Ids, /) -> None: ...
def index_bytes(offsets: _Ints, data: _Bytes, seed: int, out_slots: _Ids, /) -> None: ...
def find_bytes(
    offsets: _Ints,
    data: _Bytes,
    seed: int,
    slots: _Ids,
    wanted_offsets: _Ints,
    wanted_data: _Bytes,
    out_ids: _Ids,
    /,
) -> None: ...
def sort_rows(indptr: _Ints, ids: _Ids, /) -> None:
    """Sort the ids of each row and drop repetitions, in place."""

def encode_values(
    tag: bytes,
    is_collection: bool,
    is_packed: bool,
    is_present: _Bools,
    indptr: _Ints,
    ids: _Ids,
    offsets: _Ints,
    data: _Bytes,
    out_ends: _Ints,
    /,
) -> bytes: ...
def parse_packed_lists(
    messages: bytes, lengths: _Ints, field: int, width: int, out_ends: _Ints, out_elements: _Writable, /
) -> int | None: ...
def vectors_to_json(message: bytes, /) -> bytes | None:
    """Vectors of a response as JSON, as Feast's feature server writes them.

    Parameters
    ----------
    message : ``results`` of a ``GetOnlineFeaturesResponse`` in wire format.

    Returns
    -------
    JSON objects with commas between them; None if only Feast's own code can write them.
    """

# -- packed and ascending numbers, rows of entities: rows.c, blocks.c

def check_blocks(
    words: _Words, checksums: _Bytes, block_words: int, unchecked: _Bytes, first: int, number: int, /
) -> None:
    """Clear the marks of those blocks that match their checksums.

    Parameters
    ----------
    words : uint64[n].
    checksums : uint8[blocks, 16], MurmurHash3 x64 128 of each block.
    block_words : words of a block.
    unchecked : uint8[blocks]; becomes 0 for blocks that match.
    first, number : the first block, and how many to check.
    """

def take_packed(words: _Words, width: int, length: int, places: _Ints, out: _Words, /) -> None: ...
def take_ascending(
    highs: _Words,
    num_buckets: int,
    length: int,
    lows: _Words,
    low_width: int,
    samples: _Words,
    sample_width: int,
    places: _Ints,
    out: _Words,
    /,
) -> None: ...
def row_hashes(entity_hashes: _Words, salt: int, other_salt: int, out: _Words, /) -> None: ...
def find_rows(
    highs: _Words,
    num_buckets: int,
    length: int,
    lows: _Words,
    low_width: int,
    samples: _Words,
    sample_width: int,
    range: int,
    twins: _Words,
    hashes: _Words,
    out_rows: _Ints,
    /,
) -> None: ...

# -- sets, static functions: sets.c, bloomier.c

def write_sets(
    parameters: _Ints,
    level_starts: _Ints,
    levels: _Bytes,
    left: _Bytes,
    headers: _Ids,
    indptr: _Ints,
    ids: _Ids,
    out_words: _Writable,
    out_ends: _Ints,
    /,
) -> None: ...
def band_rows(
    hashes: _Words,
    values: _Words,
    num_slots: int,
    out_coefficients: _Words,
    out_results: _Words,
    out_left: _Bools,
    /,
) -> None: ...
def solve_slots(coefficients: _Words, results: _Words, width: int, out_words: _Words, /) -> None: ...
def look_up(words: _Words, width: int, num_slots: int, hashes: _Words, out: _Words, /) -> None: ...

# -- rows in layers: prepared.c

class PreparedRows:
    """A layer of rows, or a stack of layers from the newest to the oldest.

    The first methods build it. It does not change once it is shared; then any number of threads may read it.
    Reads take the hashes of entities, 16 bytes each in bytes or in an array, and the time before which rows
    have expired. A block of a file is checked when a read first needs it. Reads raise the error of a damaged
    block's `Check`, or a `ReadFault`. See ``types.h``.
    """

    def listed(self, *arguments: Any) -> None:
        """Rows in the order of their fingerprints."""

    def exact(self, hashes: Any, event_timestamps: Any, deleted: Any) -> None:
        """Rows in the order of their hashes."""

    def shaped(self, *arguments: Any) -> None:
        """Rows whose shapes are in a filter."""

    def shapes(self, *arguments: Any) -> None:
        """The next range of shapes."""

    def numbered(self, *arguments: Any) -> None:
        """Rows that a static function maps to numbers."""

    def sets(self, *arguments: Any) -> None:
        """The sets of listed rows."""

    def feature(
        self, tag: bytes, is_collection: bool, wire_type: int, numbers: Any, offsets: Any, data: Any
    ) -> None:
        """Begin a feature; without one of the next calls the rows do not have it."""

    def ones(self, tag: bytes, wire_type: int) -> None:
        """The last feature has a one for each of its values instead of these."""

    def from_states(self) -> None:
        """Only its states are known."""

    def from_set(self, number: int, own_ids: Any) -> None:
        """It is among the sets."""

    def from_column(self, *arguments: Any) -> None:
        """It has a column of listed rows."""

    def from_digits(self, *arguments: Any) -> None:
        """It is a digit of packed numbers."""

    def from_rows(self, states: Any, indptr: Any, ids: Any, weights: Any) -> None:
        """Its ids are stored one row after the other, perhaps with weights."""

    def from_filter(self, *arguments: Any) -> None:
        """It is in a filter."""

    def from_number(self, divisor: int) -> None:
        """It is a digit of the numbers of a static function."""

    def clusters(self, *numbers: Any) -> None:
        """The clusters of rows, which decide the hashes of the last feature's symbols."""

    def from_list(self, *arguments: Any) -> None:
        """It has items with times, or values with counts; or it is these times or counts."""

    def from_weights(self, states: Any, indptr: Any, weights: Any) -> None:
        """It is the times or counts of another feature's values, one row after the other."""

    def states(self, *arguments: Any) -> None:
        """The states of the last feature by row, or by the shapes of a range, if its values do not imply
        them."""

    def layer(self, rows: PreparedRows, names: Any, hashes: Any, deleted: Any) -> None:
        """Add a layer below the others; ``names`` are the ids in answers of its first feature's ids.

        ``hashes`` and ``deleted`` are the entities that a delta decides, or None.
        """

    def fenced(self, fences: Any) -> None:
        """Mark the rows that hide their entity's rows in older layers, if rows add up: bool[n]."""

    def from_items(self, states: Any, indptr: Any, ids: Any, times: Any, unit: int) -> None:
        """Its items are stored one row after the other; or it is their times in some unit."""

    def removals(self, *arguments: Any) -> None:
        """The items of the last feature that rows remove from older layers."""

    def limits(self, limits: Any, resolutions: Any, num_shown: int, is_named: bool, seed: int) -> None:
        """Make rows in several layers add up.

        ``limits`` and ``resolutions``, int64, say how many items the list of each feature shows, and within
        how many microseconds it shows a value once. The first ``num_shown`` features are in answers.
        ``is_named`` is whether ids have names in one vocabulary.
        """

    def shards(self, shift: int, first_layers: Any, is_served: Any) -> None:
        """Divide the layers among shards, by the highest bits of entities' hashes."""

    def rows(
        self, entity_hashes: Any, expire_before: int
    ) -> tuple[list[tuple[int, bytes, bytes] | Literal[False] | None], int]:
        """For each entity its timestamp, the states of all features and a message of their values; None if it
        has no row, and False if that has expired. And the number of rows found."""

    def vectors(
        self, entity_hashes: Any, expire_before: int, statuses: bytes, max_size: int
    ) -> tuple[bytes, int, int, int]:
        """The vectors of all features of some entities as parts of a response; the numbers of present values,
        of rows, and of expired rows."""

    def csr(
        self, entity_hashes: Any, expire_before: int, limit: int, has_weights: bool, indptr: Any
    ) -> tuple[_Owned, _Owned | None, int]:
        """The ids of the first feature, int32, each once; None; and the number of rows.

        With ``has_weights``, the items of lists, newest first and at most ``limit``, and their times, or
        values and their counts, int64. ``indptr``, int64[n + 1] or None, receives where those of each entity
        begin.
        """

    def bits(self, entity_hashes: Any, expire_before: int, num_words: int, out: Any) -> int:
        """Set the bits of the ids of the first feature in ``out``, uint64[n, num_words], which is zero. The
        number of rows."""

    def contains(
        self, entity_hashes: Any, expire_before: int, num_ids: int, wanted: Any, per_entity: int, out: Any
    ) -> int:
        """Whether the first feature has ids, int32[m] below ``num_ids``, or int32[n, m] if ``per_entity`` is
        not 0; no entity has -1. ``out`` is bool[n, m]. The number of rows."""

    def contains_values(
        self,
        entity_hashes: Any,
        expire_before: int,
        seed: int,
        numbers: Any,
        offsets: Any,
        data: Any,
        objects: list[Any] | None,
        is_text: bool,
        per_entity: int,
        out: Any,
    ) -> int:
        """`contains` for values: int64 numbers, binary values, or a list of strings or of bytes.

        Raises
        ------
        TypeError : the list has other objects.
        """

    def scores(self, entity_hashes: Any, expire_before: int, weights: Any, is_counted: bool, out: Any) -> int:
        """The sums of the weights of the ids of the first feature, each as often as it was counted if you ask
        for that: float64[n]. The number of rows."""

    def found(self, entity_hashes: Any, expire_before: int, statuses: Any, timestamps: Any) -> None:
        """Whether entities have rows, uint8[n], and the timestamps of these, int64[n]."""

    def columns(self, *arguments: Any) -> list[tuple[_Owned, _Owned, _Owned]]:
        """All values of all features; see `layers.prepared.read`."""
