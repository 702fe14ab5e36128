"""A snapshot as large as one of tens of millions of users, whose table is made up, but for some users."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from stores import Backend, UserRows, entity_keys

from feast_sketch_store.entity_keys import hash_serialized_keys, serialize_entity_keys
from feast_sketch_store.filters.shifting_bloom import _positions
from feast_sketch_store.snapshot.blocks import block_checksums
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder, load


def enlarge(store: Backend, rows: UserRows, size_bytes: int) -> SnapshotFile:
    """Replace the newest snapshot by one whose table has a given size.

    Half of its bits are ones at random, as in any sealed table, and the users are in it as they were, so
    reads find them, and as many false positives as usual. To seal as many rows as the table has room for
    would take hours.
    """
    view = store.online.view(store.config, rows.view)  # type: ignore[attr-defined]
    view.refresh()
    layer, small = view.sealed()
    hashes = hash_serialized_keys(serialize_entity_keys(entity_keys(list(range(rows.num_users)))))

    description, arrays = load(small.path)
    num_words = size_bytes // 8
    head = len(arrays["table"]) - layer.bloom.num_words
    words = np.random.default_rng(1).integers(0, 2**64, num_words + head, np.uint64)
    table = words[:num_words]
    every_user = np.repeat(np.arange(rows.num_users), rows.facts.shape[1])
    (viewed,) = layer.ranges.values()
    values = pc.index_in(pa.array(rows.facts.reshape(-1)), layer.vocabularies["viewed"].values).to_numpy()
    _add(table, hashes[every_user], values + 64 * viewed.first_word, viewed.num_hashes, layer.bloom.salt)
    for shapes in layer.shape_ranges:
        indptr, ids = layer.bloom.possible_symbols(
            hashes, shapes.first_word, shapes.num_symbols, shapes.num_hashes
        )
        owners = hashes.repeat(np.diff(indptr), axis=0)
        _add(table, owners, ids + 64 * shapes.first_word, shapes.num_hashes, layer.bloom.salt)
    words[num_words:] = words[:head]

    description["layer"]["num_words"] = num_words
    arrays |= {"table": words, "table.checksums": block_checksums(words)}
    _, order = load(small.order_path)
    folder = SnapshotFolder(small.path.parent)
    large = folder.write(small.version, description, arrays, order)
    folder.publish(large)
    folder.prune(1)
    return large


def _add(
    table: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
    symbols: NDArray[np.int64],
    num_hashes: int,
    salt: tuple[int, int],
) -> None:
    """Set the bits of facts; see `filters.shifting_bloom`, whose builder would take a byte per bit."""
    for j in range(num_hashes):
        offsets, rotations = _positions(hashes, salt, len(table), range(j, j + 1))
        bits = (symbols.astype(np.uint64) + rotations[0]) & np.uint64(63)
        np.bitwise_or.at(table, (offsets[0] + symbols // 64) % len(table), np.uint64(1) << bits)
