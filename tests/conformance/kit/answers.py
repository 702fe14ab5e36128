"""Expected answers for a view's folder, as JSON, from the store's own reader."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.entity_keys import hash_serialized_keys, serialize_columns
from feast_sketch_store.rows.listing import Attribute
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.snapshot.order import load_order
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.structures.base import Answer
from feast_sketch_store.view.shard_map import ShardMap, places_by_shard
from feast_sketch_store.view.view_file import shard_map_of
from tests.conformance.kit.views import Key

_KEY_TYPES = {
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "timestamp": pa.timestamp("s"),
}


def hashes_of(keys: Sequence[Key]) -> NDArray[np.uint64]:
    """The hashes of keys: uint64[n, 2]."""
    return hash_serialized_keys([serialized(key) for key in keys])


def serialized(key: Key) -> bytes:
    """A serialized key."""
    columns = {name: pa.array([value], _KEY_TYPES[kind]) for name, (kind, value) in key.items()}
    content: bytes = serialize_columns(columns)[0].as_py()
    return content


def key_json(key: Key) -> dict[str, list[Any]]:
    """A key: the type and value of each join key; integers as strings, bytes in hexadecimal."""
    return {name: [kind, _plain(value)] for name, (kind, value) in key.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, str) else str(value)


def read(folder: Path, keys: Sequence[Key]) -> list[dict[str, Any] | None]:
    """The rows in the newest snapshot of a view; None for an entity without one.

    Raises
    ------
    DamagedFileError, ValueError : the files are damaged.
    """
    shard_map = shard_map_of(LocalStorage(folder))
    if shard_map.folder:
        return _read_shards(folder, shard_map, keys)
    (snapshot, *_) = SnapshotFolder(LocalStorage(folder / "snapshots")).list()
    base, deltas = open_layers(snapshot)
    for number in range(1 + len(deltas)):
        load_order(snapshot, number)
    hashes = hashes_of(keys)
    rows: list[dict[str, Any] | None] = [None] * len(keys)
    left = np.arange(len(keys))
    for delta in reversed(deltas):
        answer = delta.read(hashes[left], list(delta.codecs))
        _fill(rows, left, answer, delta.codecs)
        left = np.delete(left, delta.find(hashes[left])[0])
    _fill(rows, left, base.read(hashes[left], list(base.codecs)), base.codecs)
    for name, codec in base.codecs.items():
        for attribute in codec.attributes:
            _fill_attribute(rows, name, attribute, base.read_attribute(hashes, attribute, name))
    return rows


def _fill_attribute(
    rows: list[dict[str, Any] | None], name: str, attribute: Attribute, answer: Answer
) -> None:
    """Put an attribute of the items of a list beside them."""
    values = value_json(FeatureCodec.of_attribute(attribute, name), answer.vocabulary.values)
    alive = [row["features"][name] for row in rows if row is not None]
    for entry, start in zip(alive, answer.indptr.tolist(), strict=False):
        shown = answer.symbols[start : start + len(entry["values"])].tolist()
        entry.setdefault("attributes", {})[attribute.feature] = [values[n] for n in shown]


def _read_shards(folder: Path, shard_map: ShardMap, keys: Sequence[Key]) -> list[dict[str, Any] | None]:
    """The rows of keys, each from its shard; a shard without a snapshot has none."""
    rows: list[dict[str, Any] | None] = [None] * len(keys)
    for number, places in places_by_shard(hashes_of(keys), shard_map.num_shards).items():
        own = folder / shard_map.folder / f"{number:02}"
        if own.is_dir():
            found = read(own, [keys[index] for index in places.tolist()])
            for index, row in zip(places.tolist(), found, strict=True):
                rows[index] = row
    return rows


def _fill(
    rows: list[dict[str, Any] | None],
    positions: NDArray[np.int64],
    answer: LayerAnswer,
    codecs: Mapping[str, FeatureCodec],
) -> None:
    """Put the rows that a layer found into their positions."""
    features = {name: _feature(codec, answer, name) for name, codec in codecs.items()}
    for index, position in enumerate(answer.found.tolist()):
        rows[positions[position]] = {
            "event_timestamp": str(answer.event_timestamps[index]),
            "features": {name: entries[index] for name, entries in features.items()},
        }


def _feature(codec: FeatureCodec, answer: LayerAnswer, name: str) -> list[dict[str, Any]]:
    """One feature of all rows found."""
    own = answer.features[name]
    csr, values = own.csr, value_json(codec, own.vocabulary.values)
    entries = []
    for index, state in enumerate(own.states.tolist()):
        start, stop = csr.indptr[index : index + 2].tolist()
        if codec.listing is not None and codec.listing.limit is not None:
            stop = min(stop, start + codec.listing.limit)  # the newest, which come first
        part = slice(start, stop)
        entry: dict[str, Any] = {
            "value_field": codec.value_field,
            "state": state,
            "values": [values[n] for n in csr.ids[part].tolist()],
        }
        if codec.is_weighted and csr.weights is not None:
            beside = "times" if codec.is_list else "counts"
            entry[beside] = [str(number) for number in csr.weights[part].tolist()]
        entries.append(entry)
    return entries


def value_json(codec: FeatureCodec, stored: pa.Array) -> list[Any]:
    """Values of the storage type: integers as strings; bits of floats, and bytes, in hexadecimal."""
    kind, values = codec.element_kind, stored.to_pylist()
    if kind == "string":
        return [value.decode() for value in values]
    if kind in ("bytes", "message"):
        return [value.hex() for value in values]
    if kind == "bool":
        return [bool(value) for value in values]
    if kind == "double":
        return [struct.pack(">q", value).hex() for value in values]
    if kind == "float":
        return [struct.pack(">i", value).hex() for value in values]
    return [str(value) for value in values]
