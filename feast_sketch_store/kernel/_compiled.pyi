"""What the C files of this folder offer. Arrays are C-contiguous and aligned, and have exactly these types.

A function raises ValueError for arrays that do not fit each other and for numbers out of range, before it
uses them. `calls` has the functions that fill arrays, with the types of these.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BUILT_FROM: str  # a hash of the sources and the compiler's options
MAX_NUM_HASHES: int

_Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint64]
_Owned = memoryview  # of the bytes of a read, which an object without methods owns

def __getattr__(name: str) -> Any:
    """A function that `calls` describes, or its C file."""

def hash_int64_key(prefix: bytes, value: int, /) -> bytes:
    """The hash of one key, a prefix and the 8 bytes of an int64: the 16 bytes of `hash_int64_keys`."""

def hash_key(key: bytes, /) -> bytes:
    """The hash of one serialized key: the 16 bytes of `hash_keys`."""

def hash_message(message: bytes, /) -> bytes | None:
    """The hash of one ``EntityKey`` in wire format; None unless it has one join key, an int64."""

def vectors_to_json(message: bytes, /) -> bytes | None:
    """Vectors of a response as JSON, as Feast's feature server writes them.

    Parameters
    ----------
    message : ``results`` of a ``GetOnlineFeaturesResponse`` in wire format.

    Returns
    -------
    JSON objects with commas between them; None if only Feast's own code can write them.
    """

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

class RowReader:
    """A layer of rows, or a stack of layers from the newest to the oldest.

    The first methods build it. It does not change once it is shared; then any number of threads may read it.
    Reads take the hashes of entities, 16 bytes each in bytes or in an array, and the time before which rows
    have expired. A block of a file is checked when a read first needs it. Reads raise the error of a damaged
    block's `BlockChecks`, or a `ReadFault`. `types.h` has its parts.
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

    def from_rows(self, states: Any, indptr: Any, ids: Any) -> None:
        """Its ids are stored one row after the other."""

    def from_filter(self, *arguments: Any) -> None:
        """It is in a filter."""

    def from_number(self, divisor: int) -> None:
        """It is a digit of the numbers of a static function."""

    def clusters(self, *numbers: Any) -> None:
        """The clusters of rows, which decide the hashes of the last feature's symbols."""

    def from_list(self, *arguments: Any) -> None:
        """It has items with times, or values with counts; or it is these times or counts."""

    def attribute(
        self, code_bits: int, is_wanted: bool, step: int, numbers: Any, offsets: Any, data: Any
    ) -> None:
        """Its items have codes, which are read if they are wanted; a digit of them may be the elements."""

    def attribute_codes(self, *arguments: Any) -> None:
        """The codes of its sealed items."""

    def states(self, *arguments: Any) -> None:
        """The states of the last feature by row, or by the shapes of a range, if its values do not imply
        them."""

    def layer(self, rows: RowReader, names: Any, hashes: Any, deleted: Any) -> None:
        """Add a layer below the others; ``names`` are the ids in answers of its first feature's ids.

        ``hashes`` and ``deleted`` are the entities that a delta decides, or None.
        """

    def fenced(self, delete_barriers: Any) -> None:
        """Mark the rows that hide their entity's rows in older layers, if rows add up: bool[n]."""

    def from_items(self, states: Any, indptr: Any, ids: Any, weights: Any, unit: int) -> None:
        """Its items are stored one row after the other; or it is their times or counts in some unit."""

    def removals(self, *arguments: Any) -> None:
        """The items of the last feature that rows remove from older layers."""

    def limits(
        self, limits: Any, resolutions: Any, most_sealed: Any, num_shown: int, is_named: bool, seed: int
    ) -> None:
        """Make rows in several layers add up.

        ``limits`` and ``resolutions``, int64, say how many items the list of each feature shows, and within
        how many microseconds it shows a value once, 0 to add counts up;
        ``most_sealed``, int64, how many items a seal keeps. The
        first ``num_shown`` features are in answers.
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
        self, entity_hashes: Any, window: Any, limit: int, kind: int, indptr: Any, cut: Any
    ) -> tuple[_Owned, _Owned | None, _Owned | None, int]:
        """The elements of the first feature; of bytes their ends, int64; weights; and the number of rows.

        ``kind`` is one of those of `columns`: names of ids come each once; with weights there are the items
        of lists, newest first and at most ``limit``, and their times, or values and their counts, int64.
        ``indptr``, int64[n + 1] or None, receives where those of each entity begin, and ``cut``, bool[n] or
        None, which lists may lack older items than those of the answer.
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
        """All values of all features; see `layers.row_reader.read`."""
