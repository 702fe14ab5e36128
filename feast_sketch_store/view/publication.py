"""Publishes or discards what the gate of a view held back."""

from feast_sketch_store.storage.names import HELD_BACK_FILE
from feast_sketch_store.view import fills
from feast_sketch_store.view.gate import HeldBack
from feast_sketch_store.view.view import View


def publish(view: View, force: bool = False) -> int | None:
    """Let the rows of a fill that was held back count, if there is one, and seal.

    Parameters
    ----------
    force : whether to do so without asking the gate.

    Returns
    -------
    The number of rows that count now; None if no fill was held back.

    Raises
    ------
    GateError : the view still does not pass.
    ShardError : the rows were divided into other shards since; the fill must be discarded.
    DamagedFileError, StorageError : files cannot be read or written.
    """
    fill = HeldBack.read(view.storage)
    if fill is not None:
        files = [view.staged(entry) for entry in fill.entries]
        # A run that was killed may have committed some of them.
        committed = {name for shard in view.shards.values() for name in shard.row_log.committed()}
        view.commit_staged([file for file in files if file.file.name not in committed], force)
        view.storage.delete([HELD_BACK_FILE])
    view.seal(timeout_seconds=view.lock_timeout_seconds, force=force)
    return None if fill is None else fill.num_rows


def discard(view: View) -> int | None:
    """Delete the rows of a fill that was held back. Returns their number; None if there is none.

    Raises
    ------
    DamagedFileError, StorageError : files cannot be read or written.
    """
    with view.unchanging():
        fill = HeldBack.read(view.storage)
        if fill is not None:
            view.storage.delete([HELD_BACK_FILE])
            fills.delete_files(view.shards, fill)
    return None if fill is None else fill.num_rows
