"""Fills of a view with a gate: rows in files that do not count yet, judged together with those that do.

judge     figures of the rows that count and the staged ones    ->  the gate
hold      those that did not pass: a file of the view names them
release   commit them after all, or delete them
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from feast_sketch_store.errors import DamagedFileError, GateError
from feast_sketch_store.row_log.data_file import StagedFile
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.base import MissingFileError, Storage
from feast_sketch_store.storage.names import HELD_BACK_FILE
from feast_sketch_store.structures.parts import checked
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view.gate import Figures
from feast_sketch_store.view.joint_seal import numbered_in_threads
from feast_sketch_store.view.shard import Shard

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class HeldBack:
    """A fill that did not pass the gate.

    Parameters
    ----------
    at : when it was held back, an ISO 8601 time.
    reasons : what it did not meet.
    entries : of its files, see `StagedFile.to_report`.
    """

    at: str
    reasons: tuple[str, ...]
    entries: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, files: Sequence[StagedFile], error: GateError) -> Self:
        """A fill of these files, held back now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(now, error.reasons, tuple(file.to_report() for file in files))

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(entry["num_rows"] for entry in self.entries)

    @property
    def names(self) -> set[str]:
        """The names of its files in the row logs of their shards."""
        return {entry["name"] for entry in self.entries}

    @classmethod
    def read(cls, storage: Storage) -> Self | None:
        """The fill that a view holds back; None if there is none.

        Raises
        ------
        DamagedFileError : its file is damaged.
        StorageError : it cannot be read.
        """
        try:
            content = storage.read(HELD_BACK_FILE)
        except MissingFileError:
            return None
        try:
            given = checked(json.loads(content), dict)
            if given["format_version"] != _FORMAT_VERSION or cls._encoded(given) != content:
                raise ValueError("it was altered, or another release wrote it")  # noqa: TRY301
            entries = tuple({**e, "columns": bytes.fromhex(e["columns"])} for e in given["files"])
            return cls(given["at"], tuple(given["reasons"]), entries)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(
                f"{storage.where(HELD_BACK_FILE)}: does not name a fill that was held back, or is damaged: "
                f"{error}. No row that counts is concerned: remove the file, and fill the view again"
            ) from error

    def write(self, storage: Storage) -> None:
        """Hold the fill back, in place of another one."""
        files = [{**entry, "columns": entry["columns"].hex()} for entry in self.entries]
        content = {"at": self.at, "files": files, "format_version": _FORMAT_VERSION, "reasons": self.reasons}
        storage.replace(HELD_BACK_FILE, self._encoded(content))

    @staticmethod
    def _encoded(content: Mapping[str, Any]) -> bytes:
        plain = {name: value for name, value in content.items() if name != "checksum"}
        checksum = checksum_of(json.dumps(plain, sort_keys=True).encode())
        return json.dumps({**plain, "checksum": checksum}, sort_keys=True).encode()


def figures_with(shards: Mapping[int, Shard], settings: ViewSettings, files: Sequence[StagedFile]) -> Figures:
    """The figures of a seal of all rows, if staged files counted; the caller holds the view's lease.

    It takes as long as a seal, and writes nothing.

    Raises
    ------
    DamagedFileError, StorageError : rows cannot be read.
    """
    logs = {number: shard.row_log.absorb() for number, shard in shards.items()}
    for file in files:
        log = logs[file.shard]
        logs[file.shard] = replace(log, files=(*log.files, file.file))
    joint = numbered_in_threads(settings, shards, logs)
    return Figures.sum_of(in_threads(lambda number: shards[number].figures(logs[number], joint), logs))


def hold_back(storage: Storage, shards: Mapping[int, Shard], fill: HeldBack) -> None:
    """Hold a fill back, in place of another one. The caller holds the view's lease.

    A process that is killed here leaves either fill held back, and files that a vacuum removes.
    """
    before = HeldBack.read(storage)
    fill.write(storage)
    if before is not None:
        delete_files(shards, before, fill.names)


def delete_files(shards: Mapping[int, Shard], fill: HeldBack, kept: Set[str] = frozenset()) -> None:
    """Delete the files of a fill that no commit names, except some."""
    for entry in fill.entries:
        if entry["name"] not in kept and entry["shard"] in shards:
            shards[entry["shard"]].row_log.discard_staged(entry["name"])
