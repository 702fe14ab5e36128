"""The compiled kernel's reads of single entities. The kernel in NumPy has nothing like them."""

import secrets
from typing import Any, Literal, Protocol

SEED = secrets.randbits(64)  # of hash tables, so that an attacker cannot choose values that collide

# Packed numbers as arguments: words, width, base, length, the marks of unchecked blocks, and the words of a
# block.
Numbers = tuple[Any, int, int, int, Any, int]

AS_IDS, AS_NUMBERS, AS_BYTES = range(3)  # kinds of the elements of a column


class ReadableRows(Protocol):
    """Rows that can be read one entity per call, from any number of threads.

    Reads take the hash of an entity, 16 bytes, and the time before which rows have expired. They return False
    if the entity has no row, or its row is withheld. They return None if they meet an unchecked block of a
    file, or damage; then the caller reads in the usual way, which says what is wrong. See ``prepared.c``.
    """

    def ids(self, entity_hash: bytes, expire_before: int) -> bytearray | Literal[False] | None:
        """The ids of the first feature, int32."""

    def items(
        self, entity_hash: bytes, since: int, limit: int
    ) -> tuple[bytearray, bytearray] | Literal[False] | None:
        """The items of the first feature, newest first, none older than ``since`` and at most ``limit`` of
        them: their ids, int32, and times, int64."""

    def score(self, entity_hash: bytes, expire_before: int, weights: Any) -> float | Literal[False] | None:
        """The sum of the weights of the ids of the first feature."""

    def contains_ids(
        self, entity_hash: bytes, expire_before: int, names: Any, places: Any, out: Any
    ) -> bool | None:
        """Set ``out`` at ``places`` where the first feature has the given ascending ids."""

    def contains_numbers(
        self, entity_hash: bytes, expire_before: int, seed: int, values: Any, out: Any
    ) -> bool | None:
        """Set ``out`` where the first feature has the given numbers."""

    def contains_bytes(
        self, entity_hash: bytes, expire_before: int, seed: int, offsets: Any, data: Any, out: Any
    ) -> bool | None:
        """Set ``out`` where the first feature has the given binary values."""

    def contains_objects(
        self, entity_hash: bytes, expire_before: int, seed: int, values: list[Any], is_text: bool, out: Any
    ) -> bool | None:
        """`contains_bytes` for a list of strings, or of bytes; None if it has other objects."""

    def row(self, entity_hash: bytes, expire_before: int) -> tuple[int, bytes, bytes] | Literal[False] | None:
        """The timestamp, the states of all features and a message of their values; None if it is withheld."""

    def vectors(
        self, entity_hashes: bytes, expire_before: int, statuses: bytes, max_size: int
    ) -> tuple[bytes, int, int] | None:
        """The vectors of all features of some entities as parts of a response, the number of present values,
        and the number of rows; None if a row is withheld, or a vector is longer than ``max_size``."""

    def csr(self, entity_hashes: Any, expire_before: int, indptr: Any) -> tuple[bytearray, int] | None:
        """The int32 ids of the first feature of many entities, uint64[n, 2], and the number of rows;
        ``indptr``, int64[n + 1], receives where the ids of each entity begin."""


class PreparedRows(ReadableRows, Protocol):
    """A layer of rows, or a stack of layers from the newest to the oldest.

    These methods build it. It does not change once it is shared; then it is safe to read.
    """

    def listed(self, *arguments: Any) -> None:
        """Rows in the order of their fingerprints."""

    def exact(self, hashes: Any, event_timestamps: Any, deleted: Any) -> None:
        """Rows in the order of their hashes."""

    def shaped(self, *arguments: Any) -> None:
        """Rows whose shapes are in a filter."""

    def numbered(self, *arguments: Any) -> None:
        """Rows that a static function maps to numbers."""

    def sets(self, *arguments: Any) -> None:
        """The sets of listed rows."""

    def feature(
        self, tag: bytes, is_collection: bool, wire_type: int, numbers: Any, offsets: Any, data: Any
    ) -> None:
        """Begin a feature; without one of the next nine calls the rows do not have it."""

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

    def trees(self, *arguments: Any) -> None:
        """The sets of listed rows in count trees."""

    def from_tree(self, number: int, own_ids: Any) -> None:
        """It is among the sets in trees."""

    def from_list(self, *arguments: Any) -> None:
        """It has items with times, or values with counts; or it is these times or counts."""

    def from_weights(self, states: Any, indptr: Any, weights: Any) -> None:
        """It is the times or counts of another feature's values, one row after the other."""

    def states(self, *numbers: Any) -> None:
        """The states of the last feature by row, if its values do not imply them."""

    def layer(self, rows: "PreparedRows", names: Any, hashes: Any, deleted: Any) -> None:
        """Add a layer below the others; ``names`` are the ids in answers of its first feature's ids.

        ``hashes`` and ``deleted`` are the entities that a delta decides, or None.
        """

    def fenced(self, fences: Any) -> None:
        """Mark the rows that hide their entity's rows in older layers, if rows add up: bool[n]."""

    def from_items(self, states: Any, indptr: Any, ids: Any, times: Any, unit: int) -> None:
        """Its items are stored one row after the other; or it is their times in some unit."""

    def removals(self, *arguments: Any) -> None:
        """The items of the last feature that rows remove from older layers."""

    def limits(self, limits: Any, resolutions: Any, is_named: bool, seed: int) -> None:
        """Make rows in several layers add up.

        ``limits`` and ``resolutions``, int64, say how many items the list of each feature shows, and within
        how many microseconds it shows a value once. ``is_named`` is whether ids have names in one vocabulary.
        """

    def shards(self, shift: int, first_layers: Any, is_served: Any) -> None:
        """Divide the layers among shards, by the highest bits of entities' hashes."""
