"""Which shard an entity is in, and the small file that says how many shards a view has.

    shards.json            {"folder": "shards-0/", "format_version": 1, "num_shards": 16}
    shards-0/00/ ...       each shard: a complete small view

A view without that file has no shards: its rows lie in its own folder. The file is written once, when the
view is created; `feast-sketch rebuild VIEW --shards N` puts another one in its place, which names another
folder.
"""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, ShardError
from feast_sketch_store.storage.base import FileExistsAlreadyError, MissingFileError, Storage
from feast_sketch_store.storage.names import SHARDS_FILE
from feast_sketch_store.structures.parts import checked

MAX_SHARDS = 4_096

FENCE_SECONDS = 1.0  # between two looks of a writer in a folder; in a bucket ten times as many

_FORMAT_VERSION = 1
_HASH_BITS = 64


def check_shard_count(number: Any) -> int:
    """Check a number of shards.

    Raises
    ------
    ValueError : it is not a power of two up to `MAX_SHARDS`.
    """
    try:
        count = int(number)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{number!r} is not a number of shards") from error
    if isinstance(number, float | bool) or not 1 <= count <= MAX_SHARDS or count & (count - 1):
        raise ValueError(f"the number of shards must be a power of two from 1 to {MAX_SHARDS}")
    return count


def shards_of(entity_hashes: NDArray[np.uint64], num_shards: int) -> NDArray[np.int64]:
    """The shard of each entity: int64[n].

    Parameters
    ----------
    entity_hashes : uint64[n, 2]; the highest bits of the first half are the number of the shard.
    num_shards : a power of two.
    """
    if num_shards == 1:
        return np.zeros(len(entity_hashes), np.int64)
    shift = np.uint64(_HASH_BITS - (num_shards - 1).bit_length())
    return (entity_hashes[:, 0] >> shift).astype(np.int64)


def shard_of_hash(entity_hash: bytes, num_shards: int) -> int:
    """The same for one entity, given its hash of 16 bytes."""
    first = int.from_bytes(entity_hash[:8], "little")
    return first >> (_HASH_BITS - (num_shards - 1).bit_length()) if num_shards > 1 else 0


@dataclass(frozen=True)
class Routed:
    """A batch of entities divided by shard: the shards with entities, and the places of these."""

    shards: Sequence[int]
    places: Sequence[NDArray[np.int64]]

    @classmethod
    def of(cls, entity_hashes: NDArray[np.uint64], num_shards: int) -> "Routed":
        """Divide entities, uint64[n, 2]; within a shard they stay in their order."""
        numbers = shards_of(entity_hashes, num_shards)
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        counts = np.bincount(numbers, minlength=num_shards)
        shards = np.flatnonzero(counts)
        return cls(shards.tolist(), np.split(order, np.cumsum(counts[shards])[:-1]))


@dataclass(frozen=True)
class ShardMap:
    """The number of shards of a view, and where they are.

    Parameters
    ----------
    num_shards : 1 for a view that is not divided.
    folder : of the shards, in the view's storage; empty for a view without shards.
    is_moving : whether the rows are being divided again; no process may write meanwhile.
    """

    num_shards: int = 1
    folder: str = ""
    is_moving: bool = False

    @classmethod
    def first(cls, num_shards: int) -> "ShardMap":
        """The map of a new view with this many shards."""
        return cls(num_shards, "shards-0/") if num_shards > 1 else cls()

    def followed_by(self, num_shards: int) -> "ShardMap":
        """The map of the same view after its rows are divided again."""
        last = int(self.folder.removeprefix("shards-").removesuffix("/")) if self.folder else -1
        return ShardMap(num_shards, f"shards-{last + 1}/")

    @property
    def settled(self) -> "ShardMap":
        """The same, for processes that go on with these shards whether rows are being moved or not."""
        return replace(self, is_moving=False)

    @classmethod
    def read(cls, storage: Storage) -> "ShardMap | None":
        """Read the file of a view; None if there is none.

        Raises
        ------
        DamagedFileError : the file is damaged.
        StorageError : it cannot be read.
        """
        try:
            content = storage.read(SHARDS_FILE)
        except MissingFileError:
            return None
        try:
            return cls.decode(content)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{storage.where(SHARDS_FILE)}: {error}") from error

    @classmethod
    def of(cls, storage: Storage) -> "ShardMap":
        """The map of a view, which is undivided if it has no file; raises as `read`."""
        return cls.read(storage) or cls()

    @classmethod
    def decode(cls, content: bytes) -> "ShardMap":
        """The reverse of `encode`.

        Raises
        ------
        ValueError, KeyError, TypeError : the content is not a shard map.
        """
        entries = checked(json.loads(content), dict)
        if entries["format_version"] != _FORMAT_VERSION:
            raise ValueError("it is of another format version")
        folder = checked(entries["folder"], str)
        num_shards = check_shard_count(checked(entries["num_shards"], int))
        if re.fullmatch(r"shards-[0-9]+/", folder) is None and (folder or num_shards > 1):
            raise ValueError(f"{folder!r} is not the folder of shards")
        return cls(num_shards, folder, checked(entries.get("is_moving", False), bool))

    def encode(self) -> bytes:
        """The content of the file."""
        content: dict[str, Any] = {
            "folder": self.folder,
            "format_version": _FORMAT_VERSION,
            "num_shards": self.num_shards,
        }
        if self.is_moving:
            content["is_moving"] = True
        return json.dumps(content, sort_keys=True).encode()

    def create(self, storage: Storage, view: str) -> None:
        """Write the file of a view that has none. A view without shards needs none.

        Raises
        ------
        ShardError : another process has created the view with another number of shards.
        StorageError : the file cannot be written.
        """
        if not self.folder:
            return
        try:
            with storage.create(SHARDS_FILE) as file:
                file.write(self.encode())
        except FileExistsAlreadyError as error:
            if (there := ShardMap.read(storage)) != self:
                raise other_number(view, there or ShardMap(), self.num_shards) from error

    @property
    def folders(self) -> list[str]:
        """The folder of each shard in the view's storage; none for a view whose rows lie there themselves."""
        return [f"{self.folder}{number:02}/" for number in range(self.num_shards)] if self.folder else []

    def storages(self, storage: Storage) -> list[Storage]:
        """The storage of each shard."""
        return [storage.within(folder) for folder in self.folders] or [storage]


def seconds_between_looks(storage: Storage) -> float:
    """How often a writer looks at the shards of a view; in a bucket a look costs a request."""
    return FENCE_SECONDS * (10 if storage.fetches else 1)


class WriteFence:
    """Notices within seconds that the rows of a view are being divided again. Safe to use from several
    threads.

    Parameters
    ----------
    storage : of the view.
    view : its name, for messages.
    shard_map : the one that the view was opened with.
    """

    def __init__(self, storage: Storage, view: str, shard_map: ShardMap):
        self._storage, self._view, self._map = storage, view, shard_map
        self._known: str | None = None  # the token of a file that allows writes
        self._looked_at = -math.inf
        self.seconds = seconds_between_looks(storage)

    def check(self) -> None:
        """Check, if a check is due, that the view may still be written as it was opened.

        Raises
        ------
        ShardError : it has other shards now, or its rows are being divided again; nothing was written.
        """
        now = time.monotonic()
        if now - self._looked_at < self.seconds:
            return
        info = self._storage.info(SHARDS_FILE)
        token = "" if info is None else info.token
        if token != self._known:
            there = ShardMap.of(self._storage)
            if there.is_moving:
                raise ShardError(
                    f"feature view {self._view!r}: its rows are being divided into other shards; nothing was "
                    "written. Try again when that is done; if it was killed, run `feast-sketch rebuild "
                    f"{self._view} --shards` with its number again, or with {self._map.num_shards} to leave "
                    "the rows where they are"
                )
            # A view that has no file yet gets the one of its settings with the first row.
            if token and there != self._map:
                raise ShardError(
                    f"feature view {self._view!r}: its rows were divided into {there.num_shards} shards; "
                    "nothing was written. Start this process again, with this number in its settings"
                )
            self._known = token
        self._looked_at = now


def other_number(view: str, there: ShardMap, wanted: int) -> ShardError:
    """The error of a view that has another number of shards than its settings say."""
    has = f"{there.num_shards} shards" if there.num_shards > 1 else "no shards"
    return ShardError(
        f"feature view {view!r} has {has}, and its settings say {wanted}. The number is fixed when a view "
        f"is created: set `shards: {there.num_shards}` (or the tag sketch.shards) again, or divide its rows "
        f"with `feast-sketch rebuild {view} --shards {wanted}`"
    )


def not_served(view: str, shard: int, num_shards: int, served: Sequence[int]) -> ShardError:
    """The error of a read of an entity whose shard this process does not serve."""
    return ShardError(
        f"feature view {view!r}: an entity of the request is in shard {shard} of {num_shards}, and this "
        f"process serves the shards {', '.join(map(str, served))} (option serve_shards); send the request to "
        f"a server of shard {shard}"
    )
