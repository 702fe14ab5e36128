"""Let a writer's system calls fail and look at what is left.

    python tests/faults/io_errors.py --faults 500
    python tests/faults/io_errors.py --faults 500 --lists

The workload is that of kill.py, but the disk fills up, breaks or turns read-only: in the child process
that writes, the n-th call under the store's folder fails, with n all over the workload, once or from then
on. After each such round

- a batch whose call returned is there, whole; one whose call raised is there whole or not at all, and the
  error is one of the store's own and names the folder;
- so the writing process reads, when the calls work again, and so does a process that opens the store then;
- the store goes on: a batch is written without faults before the next round.

Now and then the folder really turns read-only, for a process without privileges: reads are right,
everything that writes raises `StorageError`, and no file changes.

The calls are made to fail by a library that is compiled from io_errors.c and preloaded: Python's files and
Arrow call the system from C, where nothing in Python can come between. libfiu could do that too, but knows no
folders and counts no calls.
"""

import argparse
import ast
import ctypes
import errno
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

if "feast" not in sys.modules:  # Only its messages are needed. Its `__init__` takes seconds, and is left out.
    found = find_spec("feast")
    assert found is not None
    sys.modules["feast"] = module_from_spec(found)

import pandas  # noqa: F401  Arrow imports it late: each child would anew.
from kill import PACKAGE, ROWS_AND_DROPS, WRITES_PER_ROUND
from list_workload import LISTS
from workload import Workload, in_child

from feast_sketch_store.errors import SketchStoreError, StorageError
from feast_sketch_store.storage.local import LocalStorage

SOURCE = Path(__file__).with_suffix(".c")
PRELOADED = "IO_ERRORS_PRELOADED"
NOBODY = 65534
SECONDS_PER_ROUND = 180

# In the order of io_errors.c.
KINDS = ("open", "write", "sync", "rename", "link", "unlink", "truncate", "mkdir", "read")
CHANGES_FOLDER = ("open", "rename", "link", "unlink", "truncate", "mkdir")
ERRORS = {
    errno.ENOSPC: ("open", "write", "sync", "rename", "link", "truncate", "mkdir"),
    errno.EIO: KINDS,
    errno.EROFS: CHANGES_FOLDER,
    errno.EACCES: (*CHANGES_FOLDER, "read"),
}


@dataclass(frozen=True)
class Fault:
    """Which call of a round fails, counted among those of the given kinds, and whether all later ones do."""

    error: int
    kinds: tuple[str, ...]
    call: int
    stays: bool

    def arm(self, folder: Path) -> None:
        """Let calls of this process fail from now on."""
        kinds = sum(1 << KINDS.index(kind) for kind in self.kinds)
        library().io_errors_arm(bytes(folder), kinds, ctypes.c_long(self.call), self.error, self.stays)

    def __str__(self) -> str:
        kinds = f"{self.kinds[0]} " if len(self.kinds) == 1 else ""
        return f"{errno.errorcode[self.error]} at {kinds}call {self.call}{' and on' if self.stays else ''}"


COUNTED = ("faults", "rounds", "read-only folders", "batches acknowledged", "batches failed")

NO_FAULT = Fault(0, (), 0, False)
# Numbers of batches of each workload that only write, or only delete.
WRITES, DELETES = 1, 4


@dataclass(frozen=True)
class Possible:
    """One of the contents that a store may have, and where those batches failed that are in it after all."""

    reference: Any
    visible: tuple[str, ...] = ()


@dataclass
class Findings:
    """What was done and what went wrong."""

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))
    failed_calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    visible: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def fail(self, what: str, example: str) -> None:
        self.failures[what] += 1
        self.examples.setdefault(what, example)

    def __str__(self) -> str:
        calls = ", ".join(f"{error} {kind} {n}" for (error, kind), n in sorted(self.failed_calls.items()))
        counts = ", ".join(f"{n} {what}" for what, n in self.counts.items())
        visible, failures = self.visible.total(), self.failures.total()
        return f"{counts}, {visible} of them visible, {failures} failures; failed calls: {calls}"


def library() -> ctypes.CDLL:
    """The functions of io_errors.c, which was loaded with the interpreter."""
    return ctypes.CDLL(None)


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """What an action returned; or what it raised, and where in the package."""
    try:
        return {"result": action()}
    except BaseException as error:  # whatever it is, the parent counts it
        root = error
        while root.__cause__:
            root = root.__cause__
        frames = [f for f in traceback.extract_tb(root.__traceback__) if f.filename.startswith(PACKAGE)]
        calls = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames[-3:])]
        return {
            "error": f"{type(error).__name__}: {error}",
            "is_ours": isinstance(error, SketchStoreError),
            "is_storage_error": isinstance(error, StorageError),
            "where": " < ".join(calls),
        }


def run_child(task: Callable[[Callable[..., None]], None]) -> tuple[list[dict[str, Any]], int]:
    """Run a task in a child, which is killed if it hangs: what it reports, and its exit status."""

    def run(pipe: int) -> None:
        signal.alarm(SECONDS_PER_ROUND)
        logging.disable()
        task(lambda **event: os.write(pipe, f"{event!r}\n".encode()))

    pid, lines = in_child(run)
    events = [ast.literal_eval(line) for line in lines]
    return events, os.waitpid(pid, 0)[1]


def play(
    folder: Path, work: Workload, first: int, writes: int, turn: int, fault: Fault
) -> tuple[list[dict[str, Any]], int]:
    """Write batches from number ``first`` on under a fault, and read before, after and without it."""

    def task(report: Callable[..., None]) -> None:
        fault.arm(folder)
        view = work.open(LocalStorage(folder), turn)
        report(did="read", **attempt(lambda: work.read(view)))
        for number in range(first, first + writes):
            outcome = attempt(lambda n=number: work.apply(view, work.plan(n)))
            report(did="write", number=number, **outcome)
            report(did="read", **attempt(lambda: work.read(view)))
        view.settle()  # a seal in a thread meets the fault, too
        calls = library().io_errors_calls()
        NO_FAULT.arm(folder)
        failed = {kind: library().io_errors_failed(number) for number, kind in enumerate(KINDS)}
        report(did="stop failing", calls=calls, failed=failed)
        report(did="read", **attempt(lambda: work.read(view)))

    return run_child(task)


def judge(
    played: tuple[list[dict[str, Any]], int],
    folder: Path,
    work: Workload,
    possible: list[Possible],
    fault: Fault,
    findings: Findings,
    reads_fail: bool = False,
) -> list[Possible]:
    """Check what a child reports: the contents that the store can have now, none if it is broken."""
    events, status = played
    if status:
        findings.fail(f"the process ended with status {status}", f"{fault}: {events}")
        return []
    for event in events:
        error = event.get("error")
        if error and not event["is_ours"]:
            findings.fail(f"{event['did']}: an error not of the store: {event['where']}", f"{fault}: {error}")
        elif error and str(folder) not in error:
            findings.fail(f"{event['did']}: an error without path: {event['where']}", f"{fault}: {error}")
        if event["did"] == "stop failing":
            reads_fail = False
        elif event["did"] == "write":
            write = work.plan(event["number"])
            failed = (event["where"],) if error else ()
            after = [Possible(p.reference.with_write(write), p.visible + failed) for p in possible]
            possible = distinct([*possible, *after] if error else after)
            findings.counts["batches failed" if error else "batches acknowledged"] += 1
        elif not reads_fail and event.get("is_ours", True):  # else what was read before may be served
            if error:
                findings.fail(f"read: refused: {event['where']}", f"{fault}: {error}")
                continue
            fitting = [p for p in possible if work.matches(event["result"], p.reference)]
            if not fitting:
                wanted = [p.reference for p in possible]
                findings.fail("read: wrong rows", f"{fault}: found {event['result']}, wanted {wanted}")
                return []
            possible = fitting
    return [] if "error" in events[-1] else possible


def distinct(possible: list[Possible]) -> list[Possible]:
    """One of each content: the one with the fewest failed batches in it."""
    kept: list[Possible] = []
    for each in sorted(possible, key=lambda p: len(p.visible)):
        if all(each.reference != other.reference for other in kept):
            kept.append(each)
    return kept


def play_read_only(folder: Path, work: Workload, scratch: Path) -> tuple[list[dict[str, Any]], int]:
    """Let a process without privileges do everything in a folder that it may only read."""
    write, delete = work.plan(WRITES), work.plan(DELETES)

    def everything(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        view = work.open(LocalStorage(folder))
        yield "read", attempt(lambda: work.read(view))
        yield "write", attempt(lambda: work.apply(view, write))
        yield "delete", attempt(lambda: work.apply(view, delete))
        yield "seal", attempt(lambda: view.seal())
        yield "vacuum", attempt(lambda: view.vacuum(0.0))
        yield (
            "write of a new view",
            attempt(lambda: work.apply(work.open(LocalStorage(folder / "new")), write)),
        )
        yield "read", attempt(lambda: work.read(view))

    def task(report: Callable[..., None]) -> None:
        # What is imported late must be there before the interpreter's folder may be out of reach.
        list(everything(scratch))
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        for did, outcome in everything(folder):
            report(did=did, **outcome)

    return run_child(task)


def check_read_only(folder: Path, work: Workload, reference: Any, findings: Findings) -> None:
    """Reads of a folder that turned read-only are right, all else raises, and nothing changes."""
    before = contents(folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    events, status = play_read_only(folder, work, folder.with_name("scratch"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(folder.with_name("scratch"))
    if status:
        findings.fail("read-only: the process failed", f"status {status} after {events}")
    if contents(folder) != before:
        findings.fail("read-only: a file changed", str(before.keys() ^ contents(folder).keys()))
    for event in events:
        if event["did"] == "read":
            is_right = "result" in event and work.matches(event["result"], reference)
        else:
            is_right = event.get("is_storage_error", False) and str(folder) in event["error"]
        if not is_right:
            findings.fail(f"read-only: {event['did']}: {event.get('where')}", str(event))
    findings.counts["read-only folders"] += 1


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """When each file of a folder was changed, and its bytes."""
    return {
        str(path): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in (folder, *folder.rglob("*"))
    }


def choose_fault(rng: random.Random, longest: dict[tuple[str, ...], int]) -> Fault:
    """Any error, at all calls that can have it or at those of one kind, which also meets the rare ones."""
    error = rng.choice([errno.ENOSPC, errno.EIO, errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
    kinds = (rng.choice(ERRORS[error]),)
    if rng.random() < 0.4 or longest.get(kinds) == 0:
        kinds = ERRORS[error]
    # Spread over the whole round: the rounds find out how many calls there are.
    return Fault(error, kinds, rng.randrange(1, longest.get(kinds, 20) + 1), rng.random() < 0.5)


def campaign(folder: Path, work: Workload, faults: int, seed: int) -> Findings:
    """Run rounds until a call has failed in so many of them."""
    rng = random.Random(seed)
    findings = Findings()
    longest: dict[tuple[str, ...], int] = {}
    possible: list[Possible] = []
    number = 0
    view = folder / "view"
    while findings.counts["faults"] < faults:
        if not possible or rng.random() < 0.05:  # faults also meet the first writes of a store
            if possible and view.exists():
                check_read_only(view, work, possible[0].reference, findings)
            shutil.rmtree(view, ignore_errors=True)
            possible = [Possible(work.nothing)]
        fault = choose_fault(rng, longest)
        findings.counts["rounds"] += 1
        turn = findings.counts["rounds"]
        played = play(view, work, number, WRITES_PER_ROUND, turn, fault)
        number += WRITES_PER_ROUND
        for event in played[0]:
            if event["did"] == "stop failing":
                longest[fault.kinds] = max(longest.get(fault.kinds, 0), event["calls"])
                findings.counts["faults"] += any(event["failed"].values())
                findings.failed_calls.update(
                    {(errno.errorcode[fault.error], kind): n for kind, n in event["failed"].items() if n}
                )
        possible = judge(played, view, work, possible, fault, findings, "read" in fault.kinds)
        if possible:
            possible = judge(
                play(view, work, number, 1, turn, NO_FAULT), view, work, possible, fault, findings
            )
            number += 1
        if possible:
            findings.visible.update(possible[0].visible)
            possible = [Possible(possible[0].reference)]
    return findings


def preloaded(temporary: Path) -> int:
    """Run this command again with the library of io_errors.c: its exit code."""
    built = temporary / "io_errors.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built, SOURCE], check=True)
    environment = os.environ | {"LD_PRELOAD": str(built), PRELOADED: "1"}
    return subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lists", action="store_true", help="write lists")
    options = parser.parse_args()
    temporary = Path(tempfile.mkdtemp(prefix="io-errors-"))
    temporary.chmod(0o755)  # within reach of the process without privileges
    try:
        if PRELOADED not in os.environ:
            return preloaded(temporary)
        work = LISTS if options.lists else ROWS_AND_DROPS
        findings = campaign(temporary, work, options.faults, options.seed)
    finally:
        shutil.rmtree(temporary)
    for what, times in findings.failures.most_common():
        print(f"{times} times {what}\n    {findings.examples[what]}")
    for where, times in findings.visible.most_common():
        print(f"{times} times a batch is visible that failed at {where}")
    print(findings)
    return min(1, len(findings.failures))


if __name__ == "__main__":
    sys.exit(main())
