"""Prepared rows of shards: a read of an entity goes to the rows of its shard."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import ReadableRows
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.view.shard_map import Routed, shard_of_hash


class _NoRows:
    """Rows of a shard that has none."""

    def ids(self, *_: Any) -> Literal[False]:
        """No entity has a row."""
        return False

    score = contains_ids = contains_numbers = contains_bytes = contains_objects = row = ids


class RoutedRows(ReadableRows):
    """The rows of shards, to be read one entity a call; see `ReadableRows`.

    An entity of a shard that is not served is left to the usual way, which tells.

    Parameters
    ----------
    num_shards : of the view.
    parts : the rows of each shard that is served; None of one that has no rows.
    """

    def __init__(self, num_shards: int, parts: Mapping[int, ReadableRows | None]):
        self._num_shards = num_shards
        self._parts: dict[int, ReadableRows] = {
            number: cast("ReadableRows", _NoRows()) if part is None else part
            for number, part in parts.items()
        }

    def _of(self, entity_hash: bytes) -> ReadableRows | None:
        return self._parts.get(shard_of_hash(entity_hash, self._num_shards))

    def ids(self, entity_hash: bytes, expire_before: int) -> bytearray | Literal[False] | None:
        """See `ReadableRows.ids`."""
        part = self._of(entity_hash)
        return None if part is None else part.ids(entity_hash, expire_before)

    def score(self, entity_hash: bytes, expire_before: int, weights: Any) -> float | Literal[False] | None:
        """See `ReadableRows.score`."""
        part = self._of(entity_hash)
        return None if part is None else part.score(entity_hash, expire_before, weights)

    def contains_ids(
        self, entity_hash: bytes, expire_before: int, names: Any, places: Any, out: Any
    ) -> bool | None:
        """See `ReadableRows.contains_ids`."""
        part = self._of(entity_hash)
        return None if part is None else part.contains_ids(entity_hash, expire_before, names, places, out)

    def contains_numbers(
        self, entity_hash: bytes, expire_before: int, seed: int, values: Any, out: Any
    ) -> bool | None:
        """See `ReadableRows.contains_numbers`."""
        part = self._of(entity_hash)
        return None if part is None else part.contains_numbers(entity_hash, expire_before, seed, values, out)

    def contains_bytes(
        self, entity_hash: bytes, expire_before: int, seed: int, offsets: Any, data: Any, out: Any
    ) -> bool | None:
        """See `ReadableRows.contains_bytes`."""
        part = self._of(entity_hash)
        if part is None:
            return None
        return part.contains_bytes(entity_hash, expire_before, seed, offsets, data, out)

    def contains_objects(
        self, entity_hash: bytes, expire_before: int, seed: int, values: list[Any], is_text: bool, out: Any
    ) -> bool | None:
        """See `ReadableRows.contains_objects`."""
        part = self._of(entity_hash)
        if part is None:
            return None
        return part.contains_objects(entity_hash, expire_before, seed, values, is_text, out)

    def row(self, entity_hash: bytes, expire_before: int) -> tuple[int, bytes, bytes] | Literal[False] | None:
        """See `ReadableRows.row`."""
        part = self._of(entity_hash)
        return None if part is None else part.row(entity_hash, expire_before)

    def vectors(
        self, entity_hashes: bytes, expire_before: int, statuses: bytes, max_size: int
    ) -> tuple[bytes, int, int] | None:
        """See `ReadableRows.vectors`; None for more than one entity."""
        if len(entity_hashes) != 16:
            return None
        part = self._of(entity_hashes)
        if part is None or isinstance(part, _NoRows):
            return None
        return part.vectors(entity_hashes, expire_before, statuses, max_size)

    def csr(
        self, entity_hashes: NDArray[np.uint64], expire_before: int, indptr: NDArray[np.int64]
    ) -> tuple[bytearray, int] | None:
        """See `ReadableRows.csr`: shard by shard, then put in the order of the entities."""
        routed = Routed.of(entity_hashes, self._num_shards)
        if not routed.shards:
            indptr[:] = 0
            return bytearray(), 0
        order = np.concatenate(routed.places)
        hashes, lengths = entity_hashes[order], np.zeros(len(order), np.int64)
        found, contents, first = 0, [], 0
        for shard, places in zip(routed.shards, routed.places, strict=True):
            part, end = self._parts.get(shard), first + len(places)
            if part is None:
                return None
            if not isinstance(part, _NoRows):
                bounds = np.empty(len(places) + 1, np.int64)
                answer = part.csr(hashes[first:end], expire_before, bounds)
                if answer is None:
                    return None
                contents.append(answer[0])
                found += answer[1]
                np.subtract(bounds[1:], bounds[:-1], out=lengths[first:end])
            first = end
        return bytearray(_in_order(contents, lengths, order, indptr).tobytes()), found


def _in_order(
    contents: list[bytearray],
    lengths: NDArray[np.int64],
    order: NDArray[np.int64],
    indptr: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Rows that stand in an order, int[n], of given lengths, as they were; ``indptr`` is filled."""
    rows = Csr.of_lengths(lengths, np.frombuffer(b"".join(contents), np.int32))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    placed = rows.take(back)
    indptr[:] = placed.indptr
    return placed.ids
