"""A snapshot as large as one of tens of millions of users, whose table is made up, but for some users."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from stores import Backend, UserRows, entity_keys, sketch

from feast_sketch_store.rows.entity_keys import hash_serialized_keys, serialize_entity_keys
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.sealed import with_checksums
from feast_sketch_store.succinct import ShiftingBloomFilterBuilder


def large_sketch(folder: Path, rows: UserRows, size_bytes: int) -> tuple[Backend, SnapshotFile]:
    """A store of the rows whose newest snapshot is that large."""
    store = sketch(folder, rows, target="error 0.01")  # a filter, which can be made as large as it takes
    store.write(rows.to_feast())
    return store, _enlarge(store, rows, size_bytes)


def _enlarge(store: Backend, rows: UserRows, size_bytes: int) -> SnapshotFile:
    """Replace the newest snapshot of a view with ``viewed`` by one whose table has a given size.

    The users are in the table as they were, so reads find them. Half of the bits are ones at random, as in
    any sealed table, so reads find as many false positives as usual.
    """
    view = store.online.view(store.config, rows.view)  # type: ignore[attr-defined]
    view.refresh()
    (shard,) = view.state.shards.values()
    layer, small = shard.sealed, shard.snapshot
    hashes = hash_serialized_keys(serialize_entity_keys(entity_keys(list(range(rows.num_users)))))
    description, arrays = small.open("base")
    feature = layer.features["viewed"]
    window_words = len(feature.filter.words) - feature.filter.num_words
    builder = ShiftingBloomFilterBuilder(size_bytes * 8, window_words, feature.filter.salt)

    users = np.arange(rows.num_users, dtype=np.int32)
    viewed, vocabulary = feature.symbols, feature.vocabulary.values
    elements = rows.table["viewed"].combine_chunks().flatten().cast(vocabulary.type)
    symbols = pc.index_in(elements, vocabulary).to_numpy()
    indptr = np.arange(rows.num_users + 1) * rows.facts.shape[1]
    builder.add_rows(hashes, users, indptr, symbols, viewed.num_hashes, 64 * viewed.first_word)
    for shapes in layer.presence.ranges:
        indptr, symbols = feature.filter.possible_symbols(hashes, shapes.query)
        builder.add_rows(hashes, users, indptr, symbols, shapes.num_hashes, 64 * shapes.first_word)
    bloom = builder.build()
    words = bloom.words | np.random.default_rng(1).integers(0, 2**64, len(bloom.words), np.uint64)
    words[bloom.num_words :] = words[:window_words]

    description["structures"]["bloom"]["num_words"] = bloom.num_words
    arrays |= with_checksums({"structures.bloom.table.words": words})
    _, order = small.open("order")
    folder = SnapshotFolder(small.storage)
    large = folder.publish(folder.write(small.version, description, arrays, order))
    folder.prune(1)
    return large
