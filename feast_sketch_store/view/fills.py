"""Fills of a view with a gate: rows in files that do not count yet, judged together with those that do.

judge     figures of the rows that count and the staged ones    ->  the gate
hold      those that did not pass: a file of the view names them
release   commit them after all, or delete them
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from feast_sketch_store.row_log.staging import StagedFile
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view.gate import Figures, HeldBack
from feast_sketch_store.view.joint_seal import numbered_in_threads
from feast_sketch_store.view.shard import Shard


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
