"""Which shard an entity is in, where shards are, and rows divided by shard.

    view.json              {"shards": {"folder": "shards-0-16/", "num_shards": 16}, ...}, see `view_file`
    shards-0-16/00/ ...    each shard: a complete small view

The rows of a view without shards lie in its own folder. Shards are fixed when the view is created;
`feast-sketch reshard VIEW --shards N` names another number and another folder.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, ShardError, SketchStoreError, StorageError, counted
from feast_sketch_store.rows.encoding import ENTITY_KEY
from feast_sketch_store.rows.entity_keys import hash_serialized_keys
from feast_sketch_store.settings.values import shard_count
from feast_sketch_store.snapshot.files import MOVED
from feast_sketch_store.storage.base import Storage, UncertainWriteError
from feast_sketch_store.storage.names import FRESH_FOLDER, REMOVAL_MARK, SNAPSHOTS_FOLDER, VIEW_FILE
from feast_sketch_store.structures.parts import checked

_HASH_BITS = 64
_FOLDER = re.compile(r"shards-[0-9]+-(?P<num_shards>[0-9]+)(-[0-9a-f]{8})?/")
# The beginning of a log, without which a shard has no rows; or the note that its rows are elsewhere now.
_LOG_OR_NOTE = re.compile(
    rf"((?P<folder>{_FOLDER.pattern})[0-9]+/)?"
    rf"({FRESH_FOLDER}(log|[0-9]{{20}}\.log)|(?P<note>{SNAPSHOTS_FOLDER}{MOVED}))"
)

# Rows gathered before they are divided, because each part becomes a file.
DIVIDED_ROWS = 1 << 20
DIVIDED_BYTES = 1 << 28

RUN_AGAIN = "Run the job again"


def shards_of(entity_hashes: NDArray[np.uint64], num_shards: int) -> NDArray[np.int64]:
    """The shard of each entity: int64[n].

    ``entity_hashes`` are uint64[n, 2]; the highest bits of the first half are the number of the shard.
    """
    if num_shards == 1:
        return np.zeros(len(entity_hashes), np.int64)
    shift = np.uint64(_HASH_BITS - (num_shards - 1).bit_length())
    return (entity_hashes[:, 0] >> shift).astype(np.int64)


def shard_of_hash(entity_hash: bytes, num_shards: int) -> int:
    """The same for one entity, given its hash of 16 bytes."""
    first = int.from_bytes(entity_hash[:8], "little")
    return first >> (_HASH_BITS - (num_shards - 1).bit_length()) if num_shards > 1 else 0


def places_by_shard(entity_hashes: NDArray[np.uint64], num_shards: int) -> dict[int, NDArray[np.int64]]:
    """By shard, the indexes of its entities, uint64[n, 2], in their order; only shards that have some."""
    numbers = shards_of(entity_hashes, num_shards)
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    counts = np.bincount(numbers, minlength=num_shards)
    shards = np.flatnonzero(counts)
    places = np.split(order, np.cumsum(counts[shards])[:-1])
    return dict(zip(shards.tolist(), places, strict=True))


@dataclass(frozen=True)
class ShardMap:
    """The number of shards of a view, and where they are."""

    num_shards: int = 1
    # of the shards, in the view's storage; empty if the rows lie in the storage itself. It names how
    # often the rows were divided and the number of shards, so that a process that has opened a view finds
    # nothing there if the view was removed and made again with another number
    folder: str = ""
    moves_to: str = ""  # the folder of a run that divides the rows again; no process may write meanwhile

    @classmethod
    def first(cls, num_shards: int) -> "ShardMap":
        """The map of a new view with this many shards."""
        return cls(num_shards, f"shards-0-{num_shards}/") if num_shards > 1 else cls()

    def followed_by(self, num_shards: int) -> "ShardMap":
        """The map of the same view after its rows are divided again, with a folder that no other run has."""
        last = int(self.folder.split("-")[1]) if self.folder else -1
        return ShardMap(num_shards, f"shards-{last + 1}-{num_shards}-{secrets.token_hex(4)}/")

    @property
    def is_moving(self) -> bool:
        """Whether the rows are being divided again."""
        return bool(self.moves_to)

    @property
    def settled(self) -> "ShardMap":
        """The same, for processes that use these shards even while rows are being moved."""
        return replace(self, moves_to="")

    @classmethod
    def of_entry(cls, entry: Any) -> "ShardMap":
        """The map of an entry of `to_entry`.

        Raises ValueError, KeyError, TypeError: the entry is not a shard map.
        """
        entry = checked(entry, dict)
        num_shards = shard_count(checked(entry["num_shards"], int))
        folder, moves_to = checked(entry["folder"], str), checked(entry.get("moves_to", ""), str)
        for each in (folder, moves_to):
            if each and _FOLDER.fullmatch(each) is None:
                raise ValueError(f"{each!r} is not the folder of shards")
        if num_shards > 1 and not folder:
            raise ValueError(f"{num_shards} shards have no folder")
        return cls(num_shards, folder, moves_to)

    def to_entry(self) -> dict[str, Any]:
        """The entry of a view's file."""
        entry: dict[str, Any] = {"folder": self.folder, "num_shards": self.num_shards}
        return {**entry, "moves_to": self.moves_to} if self.moves_to else entry

    @property
    def folders(self) -> list[str]:
        """The folder of each shard in the view's storage; none if the rows lie in the storage itself."""
        return [f"{self.folder}{number:02}/" for number in range(self.num_shards)] if self.folder else []

    def storages(self, storage: Storage) -> list[Storage]:
        """The storage of each shard."""
        return [storage.within(folder) for folder in self.folders] or [storage]


def found_map(storage: Storage) -> ShardMap | None:
    """The shards of a view that lacks its file, by the logs that are there; None if there are none.

    Raises
    ------
    StorageError : the view is being removed.
    DamagedFileError : several divisions of the rows have logs, and nothing tells which one counts.
    """
    names = {info.name for info in storage.walk()}
    marks: dict[str, set[bool]] = {}  # by folder of shards: False for a log, True for a note
    for match in filter(None, map(_LOG_OR_NOTE.fullmatch, names)):
        marks.setdefault(match["folder"] or "", set()).add(match["note"] is not None)
    folders = sorted(folder for folder, found in marks.items() if found == {False})
    if not folders:
        return None
    if len(folders) > 1:
        if REMOVAL_MARK in names:
            raise StorageError(
                f"{storage.location}: the view is being removed. Try again when that is done; if the process "
                "that removed it was killed, remove the view again"
            )
        places = " and in ".join(folder or FRESH_FOLDER for folder in folders)
        raise DamagedFileError(
            f"{storage.where(VIEW_FILE)}: the file is missing, and there are rows in {places}. It says which "
            "of them count: restore it from a copy"
        )
    divided = _FOLDER.fullmatch(folders[0])
    return ShardMap() if divided is None else ShardMap(int(divided["num_shards"]), folders[0])


class OtherShardsError(ShardError):
    """The rows of a view are divided into other shards than a process has opened."""


def way_out(view: str, there: ShardMap) -> str:
    """What to do after the process that divided the rows of a view was killed."""
    return (
        f"run `feast-sketch reshard {quote(view)} --shards` with its number again, or with "
        f"{there.num_shards} to leave the rows where they are"
    )


def check_map(view: str, there: ShardMap, opened: ShardMap) -> None:
    """Check that a view may be written with the shards that it was opened with.

    Raises ShardError: it has other shards now, or its rows are being divided again.
    """
    if there.is_moving:
        raise ShardError(
            f"feature view {view!r}: its rows are being divided into other shards. Try again when "
            f"that is done; if it was killed, {way_out(view, there)}"
        )
    if there != opened:
        raise OtherShardsError(
            f"feature view {view!r}: its rows were divided into {counted(there.num_shards, 'shard')}; "
            "write the batch again"
        )


# -- rows ----------------------------------------------------------------------------------------------


def check_division(view: str, folder: str, shard_map: ShardMap, remedy: str = RUN_AGAIN) -> None:
    """Check that files for the shards of a folder may be committed.

    Raises ShardError: the rows were divided again since.
    """
    if folder != shard_map.folder:
        raise ShardError(
            f"feature view {view!r}: its rows were divided into "
            f"{counted(shard_map.num_shards, 'shard')} after tasks wrote files for other ones; nothing was "
            f"committed. {remedy}"
        )


def refusal(
    view: str,
    failed: Mapping[int, SketchStoreError],
    num_shards: int,
    adds_up: bool,
    remedy: str = "Write the batch again",
) -> SketchStoreError:
    """The error of a write of rows of so many shards, of which these, or all, failed; ``adds_up`` says
    whether rows that are written twice may count twice.
    """
    # If one may have its rows, the caller must know.
    first = min(failed.values(), key=lambda error: not isinstance(error, UncertainWriteError))
    if len(failed) == num_shards:
        return first
    but = ", except for counts without ids, which would count twice" if adds_up else ""
    kind = UncertainWriteError if isinstance(first, UncertainWriteError) else StorageError
    error = kind(
        f"feature view {view!r}: the rows of {counted(num_shards - len(failed), 'shard')} were written, and "
        f"those of the shards {', '.join(map(str, failed))} were not: {first}. "
        f"{remedy}; what is there already does no harm{but}"
    )
    error.__cause__ = first
    return error


def divided(table: pa.Table, num_shards: int) -> dict[int, pa.Table]:
    """The rows of each shard that has some, in their order."""
    if not len(table):
        return {}
    if num_shards == 1:
        return {0: table}
    places = places_by_shard(hash_serialized_keys(table[ENTITY_KEY].combine_chunks()), num_shards)
    if len(places) == 1:
        return dict.fromkeys(places, table)
    return {number: table.take(pa.array(own)) for number, own in places.items()}
