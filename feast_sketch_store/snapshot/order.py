"""The order index of a snapshot. It decides whether a late row is newer than the sealed one.

    rows           hash, event and created timestamp of each entity, ordered by hash, in blocks of 8
    rows.checks    a checksum of each block
    first_hashes   the first bits of each block's first hash

Few rows are late. So a reader that fetches its files fetches the small arrays, and then only blocks with the
entities of late rows. The whole file is fetched when that is little, or when many blocks are needed.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.snapshot.format import Stretch, header_of, locate
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.base import MissingFileError
from feast_sketch_store.succinct.blocks import block_checksums
from feast_sketch_store.threads import in_threads

_Shaped = TypeVar("_Shaped", NDArray[np.generic], Stretch)

BLOCK_ROWS = 8
_ROW_WORDS = 4
_BLOCK_BYTES = 8 * _ROW_WORDS * BLOCK_ROWS
_FIRST_BITS = 31

_WHOLE_BYTES = 1 << 16  # a smaller file is fetched whole
_WHOLE_SHARE = 1 / 8  # and so is one of which a read needs more than this share of the blocks
_HEADER_BYTES = 512
_FETCHERS = 16


def order_arrays(keys: RowKeys) -> dict[str, NDArray[np.generic]]:
    """The arrays of an order file."""
    rows = np.empty((len(keys), _ROW_WORDS), np.uint64)
    rows[:, :2] = keys.entity_hashes
    rows[:, 2], rows[:, 3] = keys.event_timestamps.view(np.uint64), keys.created_timestamps.view(np.uint64)
    return {"rows": rows, "rows.checks": _checks_of(rows), "first_hashes": _first_bits(rows[::BLOCK_ROWS, 0])}


def load_order(snapshot: SnapshotFile, layer: int = 0, check_all: bool = False) -> RowKeys:
    """The keys of the sealed rows, mapped, and ordered by entity hash if the file is sound.

    Parameters
    ----------
    layer : 0 for the base, 1 for the oldest delta. A delta's keys include deleted entities.
    check_all : check that the small arrays are those of the rows.

    Raises DamagedFileError, StorageError: the file is truncated, altered or of another kind, its parts
    contradict each other, or it cannot be read.
    """
    rows, checks, first = _mapped(snapshot, layer)
    if check_all and (
        (checks != _checks_of(rows)).any() or (first != _first_bits(rows[::BLOCK_ROWS, 0])).any()
    ):
        source = snapshot.where_file("order", layer)
        raise DamagedFileError(f"{source}: the parts of the order index contradict each other")
    return _keys_of(rows)


def by_hash(parts: Sequence[RowKeys]) -> RowKeys:
    """The keys of all parts, ordered by hash."""
    together = RowKeys.concatenate(parts)
    hashes = together.entity_hashes
    return together.take(np.lexsort((hashes[:, 1], hashes[:, 0])))


class OrderIndex:
    """Looks up entities in the order index of a base or a delta. Safe to use from several threads.

    This and all methods raise a DamagedFileError if the file is truncated, altered, or of another kind, and a
    StorageError if it cannot be read. ``layer`` is as of `load_order`.
    """

    def __init__(self, snapshot: SnapshotFile, layer: int = 0):
        self._snapshot, self._layer = snapshot, layer
        self._file, self._source = snapshot.file("order", layer), snapshot.where_file("order", layer)
        self._rows: NDArray[np.uint64] | None = None  # mapped; otherwise blocks are fetched
        self._fetched: dict[int, NDArray[np.uint64]] = {}
        if not snapshot.storage.fetches or self._file.size_bytes <= _WHOLE_BYTES:
            self._rows, _, self._first_hashes = _mapped(snapshot, layer)
            self._num_rows = len(self._rows)
        else:
            self._open()

    def __len__(self) -> int:
        return self._num_rows

    def take(self, rows: NDArray[np.int64]) -> RowKeys:
        """The keys of rows, by their numbers, in ascending order."""
        blocks = np.unique(rows // BLOCK_ROWS)
        within = BLOCK_ROWS * np.searchsorted(blocks, rows // BLOCK_ROWS) + rows % BLOCK_ROWS
        return _keys_of(self._blocks(blocks)[within])

    def of(self, entity_hashes: NDArray[np.uint64]) -> RowKeys:
        """The keys of those of some distinct entities, uint64[n, 2], that are listed; ordered by hash."""
        if not self._num_rows:
            return RowKeys.none()
        first = _first_bits(entity_hashes[:, 0])
        blocks = np.maximum(np.searchsorted(self._first_hashes, first, side="right") - 1, 0)
        rest, found = np.arange(len(blocks)), [RowKeys.none()]
        while len(rest):
            keys = _keys_of(self._blocks(np.unique(blocks[rest])))
            positions, places = find_sorted(keys.entity_hashes, entity_hashes[rest])
            found.append(keys.take(places))
            rest = np.delete(rest, positions)
            # The block before may end with the same first bits.
            rest = rest[(blocks[rest] > 0) & (self._first_hashes[blocks[rest]] == first[rest])]
            blocks[rest] -= 1
        return by_hash(found)

    def _blocks(self, blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The rows of blocks, which are given in ascending order: uint64[m, 4]."""
        fetched = self._fetched  # another thread may come to need the whole file
        if self._rows is None:
            self._fetch([block for block in blocks.tolist() if block not in fetched], fetched)
        if self._rows is None:
            parts = [fetched[block] for block in blocks.tolist()]
            return np.concatenate([np.zeros((0, _ROW_WORDS), np.uint64), *parts])
        numbers = (BLOCK_ROWS * blocks[:, None] + np.arange(BLOCK_ROWS)).reshape(-1)
        rows: NDArray[np.uint64] = self._rows[numbers[numbers < self._num_rows]]
        return rows

    # -- fetch ---------------------------------------------------------------------------------

    def _open(self) -> None:
        """Fetch everything but the rows."""
        head = self._read(0, _HEADER_BYTES)
        arrays = locate(head, self._file.size_bytes, self._source)
        if checksum_of(header_of(np.frombuffer(head, np.uint8))) != self._file.header_checksum:
            raise DamagedFileError(f"{self._source}: is not the file that its manifest names")
        rows, checks, first = _parts_of(arrays, self._source)
        self._checks, self._first_hashes = (
            array.decode(self._read(array.start, array.size_bytes), self._source).view(np.int32)
            for array in (checks, first)
        )
        self._start, self._num_rows = rows.start, rows.shape[0]

    def _fetch(self, blocks: list[int], fetched: dict[int, NDArray[np.uint64]]) -> None:
        """Fetch blocks, or the whole file if there are too many."""
        if len(fetched) + len(blocks) > _WHOLE_SHARE * len(self._checks):
            self._rows, _, _ = _mapped(self._snapshot, self._layer)
            self._fetched = {}
        else:
            fetched |= dict(zip(blocks, in_threads(self._fetch_one, blocks, _FETCHERS), strict=True))

    def _fetch_one(self, block: int) -> NDArray[np.uint64]:
        num_rows = min(BLOCK_ROWS, self._num_rows - BLOCK_ROWS * block)
        content = self._read(self._start + _BLOCK_BYTES * block, 8 * _ROW_WORDS * num_rows)
        rows = np.frombuffer(content, "<u8").reshape(-1, _ROW_WORDS)
        if len(rows) != num_rows or _checks_of(rows)[0] != self._checks[block]:
            raise DamagedFileError(
                f"{self._source}: block {block} does not match its checksum; the file is damaged"
            )
        return rows

    def _read(self, start: int, length: int) -> bytes:
        """Bytes of the file.

        Raises
        ------
        DamagedFileError : it is missing.
        MissingFileError : the snapshot was pruned just now.
        """
        try:
            return self._snapshot.storage.read(self._file.name, start, length)
        except MissingFileError as error:
            raise self._snapshot.damage_of(error) from error


def _mapped(
    snapshot: SnapshotFile, layer: int
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int32]]:
    """The arrays of a file, checked."""
    _, arrays = snapshot.open("order", layer=layer)
    return _parts_of(arrays, snapshot.where_file("order", layer))  # type: ignore[return-value]


def _parts_of(arrays: Mapping[str, _Shaped], source: str) -> tuple[_Shaped, _Shaped, _Shaped]:
    """The three arrays of a file, with the right types and shapes."""
    try:
        rows, checks, first_hashes = (arrays[name] for name in ("rows", "rows.checks", "first_hashes"))
    except KeyError as error:
        raise DamagedFileError(f"{source}: is not an order index: {error} is missing") from error
    kinds = rows.dtype == np.uint64 and checks.dtype == np.int32 and first_hashes.dtype == np.int32
    num_blocks = -(-rows.shape[0] // BLOCK_ROWS)
    shapes = rows.shape[1:], checks.shape, first_hashes.shape
    if not kinds or shapes != ((_ROW_WORDS,), (num_blocks,), (num_blocks,)):
        raise DamagedFileError(f"{source}: the parts of the order index do not fit each other")
    return rows, checks, first_hashes


def _keys_of(rows: NDArray[np.uint64]) -> RowKeys:
    nothing = np.zeros(len(rows), np.bool_)
    return RowKeys(rows[:, :2], rows[:, 2].view(np.int64), rows[:, 3].view(np.int64), nothing, nothing)


def _first_bits(hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
    return (hashes >> np.uint64(64 - _FIRST_BITS)).astype(np.int32)


def _checks_of(rows: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The first 4 bytes of the checksum of each block, the last one shorter: int32[blocks]."""
    checksums = block_checksums(np.ascontiguousarray(rows), _BLOCK_BYTES)
    return np.ascontiguousarray(checksums[:, :4]).view("<i4").reshape(-1).astype(np.int32)
