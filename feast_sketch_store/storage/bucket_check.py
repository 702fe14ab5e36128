"""Checks that a bucket keeps what the store relies on: conditions of writes, and reads that see them at once.

All objects lie in a folder of their own, which is removed at the end.
"""

import functools
import multiprocessing
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import FileExistsAlreadyError, MissingFileError
from feast_sketch_store.storage.buckets import open_objects

if TYPE_CHECKING:
    from feast_sketch_store.storage.objects import Objects

NUM_PROCESSES, NUM_COMMITS = 8, 12  # of each process
_MANY = 1_200  # more than an answer of a listing holds

Options = Mapping[str, str]


class Checked(NamedTuple):
    """What was checked, and what is wrong; empty if it holds."""

    what: str
    problem: str


def check_bucket(url: str, options: Options | None = None) -> Iterator[Checked]:
    """Check a bucket, one property after the other, in a folder below the URL, which is removed; see
    `open_bucket`.

    Raises SettingsError, StorageError: the URL or an option is invalid, or the objects of the check cannot
    be removed.
    """
    open_objects(url, options)  # refuses a URL without a bucket, whose place the added name would take
    url = f"{url.removesuffix('/')}/check-bucket-{secrets.token_hex(8)}"
    objects, folder = open_objects(url, options)
    of_race = f"of {NUM_PROCESSES} processes with {NUM_COMMITS} commits each, none loses a commit"
    checks: dict[str, Callable[[Objects, str], str]] = {
        "an object is read as it was written, whole and in parts": _reads,
        "a second creation of an object is refused (If-None-Match)": _creates_once,
        "a replacement or a read of a version that is gone is refused (If-Match)": _replaces,
        "a listing shows every object at once, in order, over several pages": _lists,
        "a deleted object is gone at once": _deletes,
        of_race: functools.partial(_race, url, options),
    }
    try:
        for what, check in checks.items():
            try:
                yield Checked(what, check(objects, folder))
            except StorageError as error:
                yield Checked(what, str(error))
    finally:
        # By name, too: a listing may not show what was written lately.
        named = {f"{folder}{name}" for name in ("conditions-probe", "read", "created", "replaced")}
        named |= {_commit_key(folder, number) for number in range(NUM_PROCESSES * NUM_COMMITS)}
        objects.delete([*named.union(info.key for info in objects.listed(folder))])


def _reads(objects: "Objects", folder: str) -> str:
    key, content = f"{folder}read", bytes(range(256)) * 1_000
    objects.replace(key, content)
    info, whole = objects.read_all(key)
    if whole != content or info.size_bytes != len(content):
        return f"{len(whole):,} bytes were read, not the {len(content):,} that were written"
    if objects.read_range(key, 1_000, 3_000) != content[1_000:3_000]:
        return "a part has other bytes"
    if not info.write_id:
        return "metadata of an object are lost, by which a write is known again"
    objects.replace(key, b"new")
    later, content = objects.read_all(key)
    return "" if content == b"new" and later.token != info.token else "an older version is read after a write"


def _creates_once(objects: "Objects", folder: str) -> str:
    objects.require_conditions()
    key = f"{folder}created"
    objects.create(key, b"first")
    try:
        objects.create(key, b"second")
    except FileExistsAlreadyError:
        return "" if objects.read_all(key)[1] == b"first" else "a refused creation replaced the object"
    return "it was created twice"


def _replaces(objects: "Objects", folder: str) -> str:
    key = f"{folder}replaced"
    objects.replace(key, b"first")
    first = objects.info(key)
    if not objects.replace(key, b"second", first):
        return "a replacement of the present version was refused"
    if objects.replace(key, b"third", first) or objects.read_all(key)[1] != b"second":
        return "a version that was gone was replaced"
    if first is None or objects.read_part(first, 0, 3) is not None:
        return "a part of another version was read"
    return ""


def _lists(objects: "Objects", folder: str) -> str:
    keys = _listed_keys(folder)
    for key in keys:
        objects.replace(key, b"")
    found = [info.key for info in objects.listed(f"{folder}listed/")]
    if found != keys:
        return f"{len(found):,} of {len(keys):,} objects were listed, or in another order"
    after = [info.key for info in objects.listed(f"{folder}listed/", after=keys[_MANY // 2])]
    if after != keys[_MANY // 2 + 1 :]:
        return "a listing from the middle has other objects"
    return "" if "listed" in objects.folders(folder) else "a folder is not listed"


def _listed_keys(folder: str) -> list[str]:
    return [f"{folder}listed/{number:05}" for number in range(_MANY)]


def _deletes(objects: "Objects", folder: str) -> str:
    keys = _listed_keys(folder)
    objects.delete([*keys, f"{folder}never there"])
    if left := len(list(objects.listed(f"{folder}listed/"))):
        return f"{left:,} of {len(keys):,} are listed after their deletion"
    try:
        objects.read_all(keys[0])
    except MissingFileError:
        return ""
    return "it is still read"


def _race(url: str, options: Options | None, objects: "Objects", folder: str) -> str:
    with ProcessPoolExecutor(NUM_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        processes = [
            pool.submit(_commit, url, dict(options or {}), number) for number in range(NUM_PROCESSES)
        ]
    for process in processes:
        if error := process.exception():
            return f"a process failed: {error}"
    commits = [commit for process in processes for commit in process.result()]
    lost = sum(_content(objects, _commit_key(folder, number)) != content for number, content in commits)
    return f"{lost} of {len(commits)} acknowledged commits are not there" if lost else ""


def _content(objects: "Objects", key: str) -> bytes | None:
    try:
        return objects.read_all(key)[1]
    except MissingFileError:
        return None


def _commit_key(folder: str, number: int) -> str:
    return f"{folder}race/{number:05}"


def _commit(url: str, options: Options, process: int) -> list[tuple[int, bytes]]:
    """Create the next object again and again, as commits of the row log do; returns those that succeeded."""
    objects, folder = open_objects(url, options)
    number = 0
    commits: list[tuple[int, bytes]] = []
    while len(commits) < NUM_COMMITS:
        content = f"{process} {number}".encode()
        try:
            objects.create(_commit_key(folder, number), content)
            commits.append((number, content))
        except FileExistsAlreadyError:
            pass
        number += 1
    return commits
