"""What the compiled kernel offers for reads of one entity; the kernel in NumPy has nothing of the kind."""

import secrets
from typing import Any, Literal, Protocol

SEED = secrets.randbits(64)  # of hash tables, so that no attacker can choose values that collide

# Packed numbers as arguments: words, width, base, length, the marks of unchecked blocks and the words of one.
Numbers = tuple[Any, int, int, int, Any, int]

AS_IDS, AS_NUMBERS, AS_BYTES = range(3)  # what the elements of a column are


class ReadableRows(Protocol):
    """Rows to be read one entity a call, from any number of threads.

    Reads take the hash of an entity, 16 bytes, and the moment before which rows have expired. They return
    None if they meet a block of a file that was not checked yet, or anything
    damaged: the caller reads again in the usual way, which says why. Of an entity without a row, or whose row
    is withheld, the answer is False. See ``prepared.c``.
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
        """Set ``out`` at the places of those of some ascending ids that the first feature has."""

    def contains_numbers(
        self, entity_hash: bytes, expire_before: int, seed: int, values: Any, out: Any
    ) -> bool | None:
        """Which of some numbers the first feature has."""

    def contains_bytes(
        self, entity_hash: bytes, expire_before: int, seed: int, offsets: Any, data: Any, out: Any
    ) -> bool | None:
        """Which of some binary values the first feature has."""

    def contains_objects(
        self, entity_hash: bytes, expire_before: int, seed: int, values: list[Any], is_text: bool, out: Any
    ) -> bool | None:
        """The same of a list of strings, or else of bytes; None if there are other objects in it."""

    def row(self, entity_hash: bytes, expire_before: int) -> tuple[int, bytes, bytes] | Literal[False] | None:
        """The timestamp, the states of all features and a message of their values; None if it is withheld."""

    def vectors(
        self, entity_hashes: bytes, expire_before: int, statuses: bytes, max_size: int
    ) -> tuple[bytes, int, int] | None:
        """The vectors of all features of some entities as parts of a response, how many values are present,
        and how many rows there are; None if one of these is withheld, or a vector is longer than that."""

    def csr(self, entity_hashes: Any, expire_before: int, indptr: Any) -> tuple[bytearray, int] | None:
        """The ids of the first feature of many entities, uint64[n, 2], as int32, and how many rows there are;
        ``indptr``, int64[n + 1], becomes where those of each begin."""


class PreparedRows(ReadableRows, Protocol):
    """A layer of rows, or a stack of layers from the newest to the oldest.

    It is put together by these methods, and does not change once it is shared; then it is safe to read.
    """

    def listed(self, *arguments: Any) -> None:
        """Rows in the order of their fingerprints."""

    def exact(self, hashes: Any, event_timestamps: Any, deleted: Any) -> None:
        """Rows in the order of their hashes."""

    def shaped(self, *arguments: Any) -> None:
        """Rows that a filter knows by their shapes."""

    def numbered(self, *arguments: Any) -> None:
        """Rows that a static function knows by their numbers."""

    def sets(self, *arguments: Any) -> None:
        """The sets of listed rows."""

    def feature(
        self, tag: bytes, is_collection: bool, wire_type: int, numbers: Any, offsets: Any, data: Any
    ) -> None:
        """Begin a feature; without one of the next nine the rows do not know it."""

    def from_set(self, number: int, own_ids: Any) -> None:
        """It is among the sets."""

    def from_column(self, *arguments: Any) -> None:
        """It has a column of listed rows."""

    def from_digits(self, *arguments: Any) -> None:
        """It is a digit of packed numbers."""

    def from_rows(self, states: Any, indptr: Any, ids: Any) -> None:
        """Its ids stand one row after the other."""

    def from_filter(self, *arguments: Any) -> None:
        """It is in a filter."""

    def from_number(self, divisor: int) -> None:
        """It is a digit of the numbers of a static function."""

    def clusters(self, *numbers: Any) -> None:
        """The clusters of rows, by which the symbols of the last feature have their hashes."""

    def trees(self, *arguments: Any) -> None:
        """The sets of listed rows in count trees."""

    def from_tree(self, number: int, own_ids: Any) -> None:
        """It is among the sets in trees."""

    def from_list(self, *arguments: Any) -> None:
        """It has items with times, or values with counts; or is what stands beside them."""

    def from_weights(self, states: Any, indptr: Any, weights: Any) -> None:
        """It is what stands beside the ids of another, one row behind the other."""

    def states(self, *numbers: Any) -> None:
        """The states of the last feature, by row, where its values do not imply them."""

    def layer(self, rows: "PreparedRows", names: Any, hashes: Any, deleted: Any) -> None:
        """Put rows below those that there are; ``names`` are what ids of its first feature are called.

        ``hashes`` and ``deleted`` are the entities that a delta decides, or None.
        """

    def fenced(self, fences: Any) -> None:
        """Tell which rows hide those of their entity in older layers, where rows add up: bool[n]."""

    def from_items(self, states: Any, indptr: Any, ids: Any, times: Any, unit: int) -> None:
        """Its items stand one row after the other, or in place of the ids their times in some unit."""

    def removals(self, *arguments: Any) -> None:
        """What rows remove of the last feature, which has items, in older layers."""

    def limits(self, limits: Any, resolutions: Any, is_named: bool, seed: int) -> None:
        """Tell that rows in several layers add up.

        ``limits`` and ``resolutions``, int64, are how many items the list of each feature shows, and in how
        many microseconds it shows a value once; ``is_named`` is whether ids have names, of one vocabulary.
        """

    def shards(self, shift: int, first_layers: Any, is_served: Any) -> None:
        """Tell which of the layers belong to which shard, by the highest bits of entities' hashes."""
