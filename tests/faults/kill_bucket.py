"""Kill a writer at every step of publishing on an object store and look at what is left.

    python tests/faults/kill_bucket.py --server weed --kills 100
    python tests/faults/kill_bucket.py --server weed --kills 100 --lists

The same as kill.py, in a bucket: a child process writes, deletes, vacuums and rebuilds, and each batch is
sealed as a delta or as a new base. It is killed with SIGKILL at a step of publishing (publishing.py), at a
line of the package, or after a random time. After each kill, another process checks that

- every acknowledged batch is there, whole, and the batch that was under way is there whole or not at all;
- the store verifies, although the killed process left parts of snapshots;
- a vacuum leaves what may still be under way, and a seal works beside it;
- a vacuum after the grace leaves no file that nothing names, and reads are as before.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kill import ROWS, kill_after_lines
from list_workload import LISTS
from publishing import MOMENTS, STEPS, Step, proxy_that_kills
from workload import BY_DELTAS, Workload, in_child

from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.storage import object_store
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.buckets import open_bucket
from feast_sketch_store.view.view import View
from tests.helpers import object_servers
from tests.helpers.object_servers import ObjectServer

WRITES_PER_ROUND = 4
GRACE_SECONDS = 3600.0


@dataclass(frozen=True)
class Death:
    """When a child is killed: one of these is given."""

    step: Step | None = None
    line: int | None = None
    seconds: float | None = None


@dataclass
class Bucket:
    """Where the view is. Each process opens it for itself: connections survive no fork."""

    server: ObjectServer
    url: str
    work: Workload = ROWS

    def storage(self, options: dict[str, str] | None = None) -> Storage:
        """The view's storage. A lease that is there is that of a killed process, and has ended."""
        object_store.LEASE_SECONDS = 0.0
        return open_bucket(self.url, options or self.server.options).within("view/")

    def view(self, turn: int, options: dict[str, str] | None = None) -> View:
        """The view, read anew; it builds another structure each turn."""
        return self.work.open(self.storage(options), turn, BY_DELTAS)


def write_round(bucket: Bucket, first: int, turn: int, death: Death) -> tuple[int, Iterator[str]]:
    """Start a child that writes batches from number ``first`` on."""

    def task(report: int) -> None:
        options = bucket.server.options
        if death.step is not None:
            tell = partial(os.write, report, b"met\n")
            options = proxy_that_kills(bucket.server.port, death.step, tell).options(options)
        if death.line is not None:
            kill_after_lines(death.line)
        view = bucket.view(turn, options)
        for number in range(first, first + WRITES_PER_ROUND):
            bucket.work.apply(view, bucket.work.plan(number))
            os.write(report, f"{number}\n".encode())

    return in_child(task)


def check_round(bucket: Bucket, references: list[Any], turn: int) -> tuple[int, int]:
    """Compare the store with the references in a child.

    Returns
    -------
    The index of the one that fits, or -1, and how many files the killed process left.
    """

    def check(report: int) -> None:
        view, work = bucket.view(turn), bucket.work
        rows = work.read(view)
        fitting = [n for n, reference in enumerate(references) if work.matches(rows, reference)]
        problems = verify_view(bucket.storage(), work.codecs, semantics=work.semantics).problems
        young = _maybe_under_way(bucket.storage(), _unnamed(bucket.storage()))
        view.vacuum(GRACE_SECONDS)
        if lost := young - {info.name for info in bucket.storage().walk()}:
            problems.append(f"a vacuum removed {lost} within the grace")
        if not view.seal(as_delta=turn % 2 == 0) and references[0] != work.nothing:
            problems.append("there was no seal")
        view.vacuum(0.0)
        if left := _unnamed(bucket.storage()):
            problems.append(f"a vacuum leaves {left}")
        after = work.read(bucket.view(turn))
        if after.keys() != rows.keys() or not work.matches(after, references[fitting[-1]]):
            problems.append("reads differ after the seal")
        problems += verify_view(bucket.storage(), work.codecs, semantics=work.semantics).problems
        found = fitting[-1] if not problems else -1
        os.write(report, f"{found}\n{len(young)}\n{rows} {problems}\n".encode())

    def task(report: int) -> None:
        try:
            check(report)
        except Exception as error:
            os.write(report, f"-1\n{error!r}\n".encode())

    pid, lines = in_child(task)
    answer = list(lines)
    os.waitpid(pid, 0)
    if not answer or int(answer[0]) < 0:
        print("found:", *answer[1:])
        print("wanted:", *references, sep="\n")
        return -1, 0
    return int(answer[0]), int(answer[1])


def _unnamed(storage: Storage) -> set[str]:
    """Files that nothing names: found by the texts of the manifests, and the files of the table."""
    names = {info.name for info in storage.walk()}
    manifests = [name for name in names if name.startswith("snapshots/") and name.endswith(".json")]
    texts = "".join(storage.read(name).decode() for name in manifests)
    table = {f"rows/{file.name}" for file in RowLog(storage).table_state().files}
    return {
        name
        for name in names - table
        if (name.startswith("snapshots/") and name.partition("/")[2] not in texts and name not in manifests)
        or (name.startswith("rows/") and not name.startswith("rows/_delta_log/"))
        or name.startswith("rebuild-")
    }


def _maybe_under_way(storage: Storage, names: set[str]) -> set[str]:
    """Those that a process that lives may name later: not what was replaced, nor what is of a rebuild."""
    compaction = RowLog(storage).table_state().compaction
    replaced = {f"rows/{name}" for name in compaction.tombstones} if compaction else set()
    return {name for name in names - replaced if not name.startswith("rebuild-")}


def campaign(bucket: Bucket, kills: int, seed: int) -> int:
    """Run rounds until so many children were killed: the number of failed checks."""
    rng = random.Random(seed)
    steps = list(product(STEPS, MOMENTS))
    rng.shuffle(steps)
    work = bucket.work
    reference = work.nothing
    number = rounds = killed = failures = left = 0
    longest_lines, longest_seconds = 400, 1.0
    met: set[tuple[str, str]] = set()
    while killed < kills:
        rounds += 1
        if rounds % 4 < 2:
            death = Death(step=Step(*steps[0], rng.choice([1, 1, 2])))
            steps.append(steps.pop(0))
        elif rounds % 4 == 2:
            death = Death(seconds=rng.random() * longest_seconds)
        else:
            death = Death(line=rng.randrange(1, longest_lines + 400))
        began = time.monotonic()
        pid, told = write_round(bucket, number, rounds, death)
        if death.seconds is not None:
            time.sleep(death.seconds)
            os.kill(pid, signal.SIGKILL)
        lines = [text.strip() for text in told]
        _, status = os.waitpid(pid, 0)
        done = [int(text) for text in lines if text.isdecimal()]
        was_killed = os.WIFSIGNALED(status)
        killed += was_killed
        if not was_killed and os.WEXITSTATUS(status):
            print(f"round at write {number}: the writer failed")
            failures += 1
        if not was_killed:
            longest_seconds = time.monotonic() - began
        elif death.line is not None:
            longest_lines = max(longest_lines, death.line)
        elif death.step is not None:
            met.add((death.step.name, death.step.moment))
        for write in done:
            reference = reference.with_write(work.plan(write))
        number += len(done)
        maybe = reference.with_write(work.plan(number)) if was_killed else reference
        found, num_left = check_round(bucket, [reference, maybe], rounds)
        left += num_left
        if found < 0:
            print(f"round at write {number}, {death}: lost, half-written, unreadable or not cleaned")
            return failures + 1
        if found == 1:
            reference = maybe
            number += was_killed
    print(
        f"{killed} kills, at {len(met)} of {len(steps)} steps, {number} batches written, "
        f"{left} files left and removed, {failures} failures"
    )
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", choices=["moto", "weed"], default="moto")
    parser.add_argument("--port", type=int, help="of a moto that runs already")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lists", action="store_true", help="write lists")
    options = parser.parse_args()
    with object_servers.start(options.server, options.port) as server:
        bucket = Bucket(server, server.bucket() + "/store", LISTS if options.lists else ROWS)
        return min(1, campaign(bucket, options.kills, options.seed))


if __name__ == "__main__":
    sys.exit(main())
