"""Replaces all rows of a view, or adds others to them, in one step for the readers of each shard.

begin     absorb each shard; what is written from here on stays, and is newer than the new rows
fill      new rows -> a storage of their own, while writes go on
divide    by shard, unless the new rows are already divided so
confirm   ask if rows would be lost
number    the values of all shards together, if there are several
judge     the figures of the new snapshots of all shards together
replace   the table and the snapshot of one shard after the other
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

from feast_sketch_store.errors import SketchStoreError, StorageError
from feast_sketch_store.row_log import LogRead, RowLog
from feast_sketch_store.rows.limits import gathered
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import REBUILD_FOLDERS
from feast_sketch_store.view import joint_seal
from feast_sketch_store.view.gate import REBUILD, Figures
from feast_sketch_store.view.joint_seal import deleted_on_error
from feast_sketch_store.view.semantics import named
from feast_sketch_store.view.shard import Drafted, Dropped
from feast_sketch_store.view.shard_map import DIVIDED_BYTES, DIVIDED_ROWS, divided, refusal
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import shard_map_of

_DIVIDED = "divided/"  # in the storage of a rebuild


def rebuild(
    view: View,
    fill: Callable[[Storage], Storage],
    confirm: Callable[[Dropped | None], bool] | None = None,
    keep: bool = False,
    force: bool = False,
) -> int | None:
    """Replace all rows of a view by others, or add others to them. Returns the number of entities that were
    sealed; None if it was not confirmed.

    Reads see the old rows of a shard until its new ones are complete, and then the new ones, in one step.
    Rows that any process writes meanwhile stay and compete with the new ones as usual.

    Parameters
    ----------
    fill : is given an empty storage, writes rows to a view in it, and returns that view's storage.
    confirm : called once if the new rows do not cover all existing ones; returns whether to go on. Its
        argument is None if the existing rows cannot be read.
    keep : whether the existing rows stay, and the new ones compete with them as if written when this began.
    force : whether the rows need not pass the gate of the view.

    Raises
    ------
    GateError : the new rows do not pass the gate; nothing has changed.
    SettingsError : this process does not know all features of the view; nothing has changed.
    StorageError : another process is sealing this view, or there are no new rows; nothing has changed. Or
        a shard cannot be written, or another process changed it in spite of this one; shards before it have
        their new rows, which it says.
    UncertainWriteError : the same, and that shard may have its new rows. Or another process divided the
        former rows in spite of this one.
    """
    with view.sealing():
        view.prepare()
        shard_map, parts = view.shard_map, view.shards
        # First: rows that are written from here on are not among those that are replaced.
        before = {number: part.row_log.begin() for number, part in parts.items()}
        # Of its own: a process that has lost its lease may still fill another. A vacuum removes what is left.
        staging = view.storage.within(f"{REBUILD_FOLDERS}{secrets.token_hex(8)}/")
        try:
            new = dict(enumerate(_divided(fill(staging), staging, len(parts))))
            if not any(new.values()):
                raise StorageError(
                    f"{view.storage.location}: there are no rows to rebuild from; nothing has changed"
                )
            if keep:
                new = {n: before[n].followed_by(log) for n, log in new.items()}
            elif confirm is not None:
                dropped = Dropped.sum_of([parts[n].dropped_by(before[n], log) for n, log in new.items()])
                if (dropped is None or any(dropped)) and not confirm(dropped):
                    return None
            joint = joint_seal.numbered_in_threads(parts, new)
            drafts: dict[int, Drafted] = {}
            with deleted_on_error(parts, drafts):
                for number, log in new.items():
                    before[number], drafts[number] = parts[number].replacement(before[number], log, joint)
                figures = Figures.sum_of(draft.figures for draft in drafts.values())
                if not force:
                    view.judge(figures, REBUILD)
                failed = dict[int, SketchStoreError]()
                for number, log in new.items():
                    try:
                        parts[number].replace_rows(before[number], log, drafts.pop(number).snapshot)
                    except SketchStoreError as error:
                        failed = dict.fromkeys(range(number, len(parts)), error)
                        break
                if failed:
                    adds_up = keep and named(view.settings.semantics, view.settings.codecs).adds_up
                    raise refusal(view.name, failed, len(parts), adds_up, "Run it again")
            # Without a lease, another process may have divided the former rows.
            view.keep_file_behind(shard_map, parts)
        finally:
            with suppress(StorageError):
                staging.delete_all()
        return figures.entities


def _divided(filled: Storage, staging: Storage, num_shards: int) -> Sequence[LogRead]:
    """The new rows of each shard."""
    sources = [RowLog(source) for source in shard_map_of(filled).storages(filled)]
    if len(sources) == num_shards:
        return [source.read() for source in sources]
    targets = [RowLog(staging.within(f"{_DIVIDED}{number}/")) for number in range(num_shards)]
    for source in sources:
        for batch in gathered(source.read().batches(), DIVIDED_ROWS, DIVIDED_BYTES):
            for number, part in divided(batch, num_shards).items():
                targets[number].append(part)
    return [target.read() for target in targets]
