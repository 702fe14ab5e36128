"""Entity keys from stores that keep only their hashes.

Feast's DynamoDB, Bigtable and HBase stores find a row by the MurmurHash3 (x64, 128 bits) of the serialized
entity key. MurmurHash3 is not a cryptographic hash. A key of a single int64 has 64 unknown bits, which can be
computed from the 128 known ones: such hashed ids do not anonymize. Other keys must be given, and are matched
by their hash.

Source: A. Appleby, MurmurHash3.cpp, ``MurmurHash3_x64_128``.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from feast.feature_view import FeatureView
from feast.infra.key_encoding_utils import deserialize_entity_key
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, SettingsError
from feast_sketch_store.rows.entity_keys import (
    SERIALIZATION_VERSION,
    hash_int64_keys,
    int64_prefix,
    serialize_columns,
)
from feast_sketch_store.settings.resolve import join_key_columns

_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_D1, _D2 = 0x52DCE729, 0x38495AB5
_M1, _M2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_BLOCK = 16
_ENTITY_ID = re.compile("[0-9a-f]{32}")

Words = NDArray[np.uint64]
_Word = TypeVar("_Word", np.uint64, NDArray[np.uint64])


def invert_int64_keys(join_key: str, digests: Words) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Compute the values of a single int64 join key from the hashes of their serialized keys.

    ``digests`` are uint64[n, 2], the two halves of each hash, little-endian. Returns int64[n], and whether
    each value has the given hash: bool[n].
    """
    prefix = int64_prefix(join_key)
    values = _last_eight_bytes(prefix, digests).view(np.int64)
    return values, (hash_int64_keys(join_key, values) == digests).all(axis=1)


def _last_eight_bytes(prefix: bytes, digests: Words) -> Words:
    """The eight bytes after a prefix that give each digest, if any do: uint64[n].

    The unknown bytes are the last ones. Those in the tail enter one half of the state, those in the last
    whole block the other half, so each part can be computed alone.
    """
    length = len(prefix) + 8
    num_blocks, in_tail = divmod(length, _BLOCK)
    with np.errstate(over="ignore"):
        h1, h2 = _before_finalization(digests, length)
        known = np.frombuffer(prefix.ljust(_BLOCK * (num_blocks + 1), b"\0"), "<u8").astype(np.uint64)
        if in_tail >= 8:  # all are in the tail, perhaps across its two words
            f1, f2 = _state(known[: 2 * num_blocks])
            words = np.stack([_unmixed1(h1 ^ f1), _unmixed2(h2 ^ f2)], axis=1)
            return _window(words, in_tail - 8)
        f1, f2 = _state(known[: 2 * num_blocks - 2])
        k1, _ = known[2 * num_blocks - 2 : 2 * num_blocks]
        # The first half of the state after the last block does not depend on the unknown bytes.
        g1 = _rotated(f1 ^ _mixed1(k1), 27) + f2
        g1 = g1 * np.uint64(5) + np.uint64(_D1)
        behind = (h2 - np.uint64(_D2)) * _inverse(5) - g1
        second = _unmixed2(_rotated(behind, 64 - 31) ^ f2)
        tail = _unmixed1(h1 ^ g1)
        return _window(np.stack([second, tail], axis=1), in_tail)


def _window(words: Words, start: int) -> Words:
    """Eight bytes of each pair of words, from byte ``start`` on: uint64[n]."""
    as_bytes = np.ascontiguousarray(words.astype("<u8")).view(np.uint8).reshape(len(words), 16)
    window = np.ascontiguousarray(as_bytes[:, start : start + 8])
    return window.view("<u8").reshape(-1).astype(np.uint64)


def _before_finalization(digests: Words, length: int) -> tuple[Words, Words]:
    h1, h2 = digests[:, 0].copy(), digests[:, 1].copy()
    h2 -= h1
    h1 -= h2
    h1, h2 = _unfinalized(h1), _unfinalized(h2)
    h2 -= h1
    h1 -= h2
    return h1 ^ np.uint64(length), h2 ^ np.uint64(length)


def _unfinalized(h: Words) -> Words:
    # x ^= x >> 33 is its own inverse: the bits that move down come from bits that do not change.
    shift = np.uint64(33)
    h = h ^ (h >> shift)
    h = h * _inverse(_M2)
    h = h ^ (h >> shift)
    h = h * _inverse(_M1)
    return h ^ (h >> shift)


def _state(words: Words) -> tuple[np.uint64, np.uint64]:
    """The state of the hash after whole blocks of two words each."""
    h1 = h2 = np.uint64(0)
    for k1, k2 in words.reshape(-1, 2):
        h1 = _rotated(h1 ^ _mixed1(k1), 27) + h2
        h1 = h1 * np.uint64(5) + np.uint64(_D1)
        h2 = _rotated(h2 ^ _mixed2(k2), 31) + h1
        h2 = h2 * np.uint64(5) + np.uint64(_D2)
    return h1, h2


def _rotated(x: _Word, bits: int) -> _Word:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _mixed1(k: _Word) -> _Word:
    return _rotated(k * np.uint64(_C1), 31) * np.uint64(_C2)


def _mixed2(k: _Word) -> _Word:
    return _rotated(k * np.uint64(_C2), 33) * np.uint64(_C1)


def _unmixed1(k: Words) -> Words:
    return np.asarray(_rotated(k * _inverse(_C2), 64 - 31) * _inverse(_C1), np.uint64)


def _unmixed2(k: Words) -> Words:
    return np.asarray(_rotated(k * _inverse(_C1), 64 - 33) * _inverse(_C2), np.uint64)


def _inverse(factor: int) -> np.uint64:
    return np.uint64(pow(factor, -1, 1 << 64))


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Join keys of a file in the type of the view; an integer for a timestamp is seconds since 1970."""
    if pa.types.is_timestamp(kind) and pa.types.is_integer(values.type):
        values = values.cast(pa.int64()).cast(pa.timestamp("s", "UTC"))
    return values.cast(kind)


class KeyFinder:
    """Finds the keys of hashed ids.

    Parameters
    ----------
    table : the view that has the keys.
    given : a Parquet file with a column for each join key, or None.

    Raises SettingsError: the file cannot be read, or lacks a join key.
    """

    def __init__(self, table: FeatureView, given: Path | None):
        self._columns = join_key_columns(table)
        self._view = table.name
        self._given = None if given is None else dict(self._read(given))

    @property
    def needs_keys(self) -> bool:
        """Whether keys must be given, because they cannot be computed."""
        return self._given is None and not self._is_int64

    @property
    def _is_int64(self) -> bool:
        return [*self._columns.values()] == [pa.int64()]

    def find(self, entity_ids: Sequence[str]) -> list[EntityKey | None]:
        """The key of each id; None if it is not known. Raises RowError: an id is not a hash of 128 bits."""
        wrong = [entity_id for entity_id in entity_ids if not _ENTITY_ID.fullmatch(entity_id)]
        if wrong:
            raise RowError(f"the entity id {wrong[0]!r} is not a hash of 128 bits")
        content = bytes.fromhex("".join(entity_ids))
        if self._given is not None:
            found = [self._given.get(content[at : at + _BLOCK]) for at in range(0, len(content), _BLOCK)]
            return [
                None if key is None else deserialize_entity_key(key, SERIALIZATION_VERSION) for key in found
            ]
        if not self._is_int64:
            return [None] * len(entity_ids)
        (name,) = self._columns
        digests = np.frombuffer(content, "<u8").astype(np.uint64).reshape(-1, 2)
        values, is_found = invert_int64_keys(name, digests)
        return [
            EntityKey(join_keys=[name], entity_values=[Value(int64_val=value)]) if known else None
            for value, known in zip(values.tolist(), is_found.tolist(), strict=True)
        ]

    def _read(self, file: Path) -> Iterable[tuple[bytes, bytes]]:
        """The hashes and serialized keys of a file."""
        try:
            table = pq.read_table(file, columns=list(self._columns))
            columns = {
                name: _cast(table[name].combine_chunks(), arrow_type)
                for name, arrow_type in self._columns.items()
            }
            serialized = serialize_columns(columns)
        except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
            raise SettingsError(
                f"{file}: the keys of feature view {self._view!r} cannot be read: {error}. The file needs a "
                f"column for each join key: {', '.join(sorted(self._columns))}"
            ) from error
        return ((mmh3.hash_bytes(key), key) for key in serialized.to_pylist())
