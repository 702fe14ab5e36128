"""Situations that need to be shown once, not in each test run; each prints what it saw, or fails.

python tests/faults/once.py                       # all of them, 15 minutes
python tests/faults/once.py start_methods another_user
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pandas as pd
from feast import FeatureStore, Field
from feast.types import Array, Int64, String

from feast_sketch_store import SketchReader, open_view
from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.operations import maintenance
from tests.helpers.ports import free_ports
from tests.helpers.repository import make_repository, make_view, read_users

NOW = datetime.now(UTC).replace(microsecond=0)
NOBODY = 65534  # a user without rights
SEAL = """
import sys
from feast import FeatureStore
from feast_sketch_store.operations import maintenance
store = FeatureStore(repo_path=sys.argv[1])
print("begun", flush=True)
while True:
    maintenance.seal(store, "history")
"""


def frame(users: Any, items: Any) -> pd.DataFrame:
    """Rows of one item list each."""
    return pd.DataFrame({"user_id": users, "items": list(items), "event": NOW})


def repository(folder: Path, *views: Any, **options: Any) -> FeatureStore:
    """A repository with a view of the items of users, or other views."""
    view = make_view([Field(name="items", dtype=Array(Int64))], pushed="items")
    rows = frame([0], [[0]])
    return make_repository(folder / "repository", *(views or [view]), rows=rows, refresh=0, **options)


def _items_of(path: str, users: list[int]) -> list[Any]:
    found = read_users(FeatureStore(repo_path=path), ["history:items"], users)["items"]
    return [value and sorted(value) for value in found]


def _work(store: FeatureStore | str, number: int, answers: Any) -> None:
    """Read what the parent wrote, and write a row, in a process that was started in some way."""
    store = FeatureStore(repo_path=store) if isinstance(store, str) else store
    found = read_users(store, ["history:items"], [1])["items"]
    store.push("items", frame([number], [[number]]))
    answers.put((found, read_users(store, ["history:items"], [number])["items"]))


def start_methods(folder: Path) -> str:
    """Processes by spawn, by forkserver, and forked from a parent that has read, as with --preload."""
    store = repository(folder)
    store.push("items", frame([1], [[1, 2]]))
    read_users(store, ["history:items"], [1])
    open_view(store, "history").seal()
    for number, method in enumerate(("spawn", "forkserver", "fork"), start=10):
        context = multiprocessing.get_context(method)
        answers = context.Queue()
        given = store if method == "fork" else str(store.repo_path)
        child = context.Process(target=_work, args=(given, number, answers))  # type: ignore[attr-defined]
        child.start()
        assert answers.get(timeout=120) == ([[1, 2]], [[number]])
        child.join()
        assert child.exitcode == 0
        assert read_users(store, ["history:items"], [number])["items"] == [[number]]
    return "spawn, forkserver, fork: each read, wrote and was read"


def sigterm_in_a_seal(folder: Path) -> str:
    """SIGTERM to a process that seals all the time, while another one writes."""
    store, rng, ended = repository(folder, compaction="job"), random.Random(5), 0
    for number in range(20):
        users = [*range(500)]
        store.push("items", frame(users, [[number, user] for user in users]))
        sealer = subprocess.Popen(
            [sys.executable, "-c", SEAL, str(store.repo_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert sealer.stdout is not None
        sealer.stdout.readline()
        time.sleep(rng.random() * 0.5)  # a random moment is the point
        sealer.send_signal(signal.SIGTERM)
        ended += sealer.wait(60) != 0
        wanted = [sorted({number, user}) for user in users]
        assert _items_of(str(store.repo_path), users) == wanted
    assert maintenance.seal(store, "history") or True
    assert maintenance.verify(store, "history").problems == []
    return f"{ended} of 20 sealers ended by SIGTERM, no row lost, verify found nothing"


def many_views(folder: Path) -> str:
    """2,000 views in one process: written, read, sealed. A push would read all views from the registry."""
    views = [
        make_view([Field(name="items", dtype=Array(Int64))], name=f"view_{number}", pushed=f"items_{number}")
        for number in range(2_000)
    ]
    store = repository(folder, *views)
    spent = {}

    def read(number: int) -> None:
        assert read_users(store, [f"view_{number}:items"], [1])["items"] == [[number]]

    for what, run in {
        "a write to each": lambda n: store.write_to_online_store(f"view_{n}", frame([1], [[n]])),
        "a read of each": read,
        "a seal of each": lambda n: open_view(store, f"view_{n}").seal(),
        "a second read of each": read,
    }.items():
        begun = time.perf_counter()
        for number in range(len(views)):
            run(number)
        spent[what] = (time.perf_counter() - begun) / len(views)
    descriptors = len(os.listdir("/proc/self/fd"))
    times = ", ".join(f"{what} {1e3 * each:.1f} ms" for what, each in spent.items())
    return f"{times}; {_most_memory():,} MB of memory at most, {descriptors} open descriptors"


def large_vocabulary(folder: Path) -> str:
    """A vocabulary of 3 million values, each in one row."""
    store = repository(folder, make_view([Field(name="items", dtype=Array(String))], pushed="items"))
    size, users = 3_000_000, 300_000
    values = np.char.add("item ", np.arange(size).astype(str)).reshape(users, -1)
    for first in range(0, users, 50_000):
        part = slice(first, first + 50_000)
        rows = pd.DataFrame({"user_id": np.arange(users)[part], "items": values[part].tolist(), "event": NOW})
        store.write_to_online_store("history", rows)
    begun = time.perf_counter()
    open_view(store, "history").seal()
    sealed = time.perf_counter() - begun
    reader = SketchReader(str(store.repo_path), "history")
    some = np.random.default_rng(1).integers(0, users, 1_000)
    begun = time.perf_counter()
    found = reader.arrow("items", some).to_pylist()
    read = time.perf_counter() - begun
    assert all({*row} >= {*values[user].tolist()} for user, row in zip(some, found, strict=True))
    return (
        f"sealed in {sealed:.1f} s; 1,000 users read in {1e3 * read:.0f} ms, all right; {_most_memory():,} "
        "MB of memory at most"
    )


def another_user(folder: Path) -> str:
    """A folder that belongs to another user and cannot be written: reads are right, a write says why not."""
    if os.getuid():
        return "skipped: only root can become another user"
    store = repository(folder)
    store.push("items", frame([1], [[1, 2]]))
    open_view(store, "history").seal()
    store.push("items", frame([2], [[3]]))
    folder.chmod(0o755)
    path, reading, writing = str(store.repo_path), *os.pipe()
    pid = os.fork()
    if not pid:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ["HOME"] = "/nonexistent"
        try:
            said = f"{_items_of(path, [1, 2])} "
            try:
                FeatureStore(repo_path=path).push("items", frame([3], [[4]]))
            except SketchStoreError as error:
                said += f"{type(error).__name__}: {error}"
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    assert said.startswith("[[1, 2], [3]] StorageError"), said
    assert "ermission" in said, said
    assert _items_of(path, [3]) == [None]
    return said.replace(str(folder), "FOLDER")[:200]


def restarted_server(folder: Path) -> str:
    """The server of a bucket is killed and started again, under a writer and a reader that go on."""
    from tests.helpers import object_servers

    ports = free_ports(4)
    (folder / "server").mkdir()
    with object_servers.weed(folder / "server", ports) as server:
        place = {"path": f"{server.bucket()}/features", "storage_options": server.options}
        store = repository(folder, **place)
        store.push("items", frame([1], [[1]]))
        assert read_users(store, ["history:items"], [1])["items"] == [[1]]
        open_view(store, "history").seal()
        assert read_users(store, ["history:items"], [1])["items"] == [[1]]
    refused = 0
    assert read_users(store, ["history:items"], [1])["items"] == [[1]]
    try:
        store.push("items", frame([2], [[2]]))
    except SketchStoreError:
        refused = 1
    with object_servers.weed(folder / "server", ports):
        deadline = time.monotonic() + 120
        while True:
            try:
                store.push("items", frame([3], [[3]]))
                break
            except SketchStoreError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
        assert read_users(store, ["history:items"], [1, 3])["items"] == [[1], [3]]
        fresh = FeatureStore(repo_path=store.repo_path)
        assert read_users(fresh, ["history:items"], [1, 3])["items"] == [[1], [3]]
        assert maintenance.verify(store, "history").problems == []
    return f"reads went on while it was down, {refused} write was refused, and all went on after its start"


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


ALL: dict[str, Callable[[Path], str]] = {
    run.__name__: run
    for run in (
        start_methods,
        sigterm_in_a_seal,
        another_user,
        restarted_server,
        many_views,
        large_vocabulary,
    )
}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", nargs="*", choices=[[], *ALL], help="of a situation; all by default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.name or ALL:
        folder = Path(tempfile.mkdtemp(prefix="once-"))
        try:
            print(f"{name}: {ALL[name](folder)}", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
