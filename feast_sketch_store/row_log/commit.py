"""The commits of a row log: what a commit file says, checked, and what the store adds to one.

The store's own part is a JSON object in ``commitInfo``, with a checksum beside it: the data files with
their rows and checksums, and for a compaction the version it replaces.

Source: github.com/delta-io/delta, PROTOCOL.md, "Delta Log Entries".
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import mmh3

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.row_log.data_file import DataFile

_logger = logging.getLogger(__name__)

_OWN_KEY, _CHECKSUM_KEY = "feastSketchStore", "feastSketchStoreChecksum"


@dataclass(frozen=True)
class Commit:
    """One commit of the log: its version, the data files it added and the names of those it removed.

    ``compacts_through`` is a version for a compaction, whose files replace the commits up to that version;
    -1 otherwise. A compaction keeps what these commits said, unless it names a ``snapshot``: then its rows
    came from elsewhere, and that snapshot holds the same.
    """

    version: int
    files: tuple[DataFile, ...]
    removed: frozenset[str] = frozenset()
    compacts_through: int = -1
    snapshot: str = ""


def commit_metadata(
    files: Sequence[DataFile], after: int, compacts_through: int = -1, snapshot: str = ""
) -> dict[str, str]:
    """What the store adds to ``commitInfo``; ``after`` is a version that the commit comes behind."""
    own = json.dumps(
        {
            "after": after,
            "compacts_through": compacts_through,
            "snapshot": snapshot,
            "files": [
                {"name": file.path.name, "num_rows": file.num_rows, "checksum": file.checksum}
                for file in files
            ],
        },
        separators=(",", ":"),
    )
    return {_OWN_KEY: own, _CHECKSUM_KEY: _checksum(own)}


def read_commit(path: Path, version: int) -> Commit:
    """Read a commit file.

    Raises
    ------
    DamagedFileError : it is missing, truncated or altered.
    """
    try:
        return _parse(path, version)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path}: a commit of the row log is damaged: {error}") from error


def _parse(path: Path, version: int) -> Commit:
    folder = path.parent.parent
    lines = path.read_text("utf-8").splitlines()
    actions: list[dict[str, Any]] = [json.loads(line) for line in lines if line.strip()]
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    added = [unquote(action["add"]["path"]) for action in actions if "add" in action]
    removed = frozenset(unquote(action["remove"]["path"]) for action in actions if "remove" in action)
    if any(name != Path(name).name for name in (*added, *removed)):
        raise ValueError("it names files outside of the table's folder")
    text = info.get(_OWN_KEY)
    if text is None:
        # A file cut at the end of a line is valid JSON: the count tells that an action is missing.
        told = info.get("operationMetrics", {}).get("num_added_files")
        if told is not None and told != len(added):
            raise ValueError(f"it lacks some of its {told} files")
        if added:
            _logger.warning("%s: written by another Delta client; its files have no checksums", path)
        return Commit(version, tuple(DataFile(folder / name, None, None) for name in added), removed)
    if _checksum(text) != info[_CHECKSUM_KEY]:
        raise ValueError("its checksum does not match")
    own = json.loads(text)
    if own["after"] >= version:
        raise ValueError(f"it belongs behind version {own['after']}")
    files = [DataFile(folder / f["name"], f["num_rows"], f["checksum"]) for f in own["files"]]
    if sorted(file.path.name for file in files) != sorted(added):
        raise ValueError("it does not add the files that it lists")
    return Commit(version, tuple(files), removed, own["compacts_through"], own["snapshot"])


def _checksum(text: str) -> str:
    return mmh3.mmh3_x64_128_digest(text.encode()).hex()
