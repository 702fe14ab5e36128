"""Tasks that write and then die, or write twice; workers get them in place of the real tasks."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

from feast_sketch_store.engines import write_job
from feast_sketch_store.engines.seal_job import DRAFT, run_step, unpack
from feast_sketch_store.view import opening


def first_to_make(marker):
    """Whether no process has called this with the same file before."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_executor():
    """End the executor of Spark that runs this worker, with all its tasks."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    threading.Event().wait()


def write_and_die(batches, artifacts, label, folder, die):
    """A task that runs twice at once, of which the first to be done takes its process with it."""
    batches = list(batches)
    list(write_job.write(iter(batches), artifacts, label))
    reports = list(write_job.write(iter(batches), artifacts, label))
    if batches and first_to_make(Path(folder) / "died"):
        die()
    yield from reports


def feasts_write_and_die(batches, serialized_artifacts, mode="online", *, folder):
    """The same with the write of Feast's Spark engine; notes which view each batch was written to."""
    from feast.infra.compute_engines.spark.utils import map_in_arrow  # of a package that Ray does not need

    batches = list(batches)
    list(map_in_arrow(iter(batches), serialized_artifacts, mode))
    for batch in batches:
        yield from map_in_arrow(iter([batch]), serialized_artifacts, mode)
        (opened,) = opening.kept("views").values()
        with (Path(folder) / "views").open("a") as file:
            file.write(f"{os.getpid()} {id(opened.view)}\n")
    if batches and first_to_make(Path(folder) / "died"):
        kill_executor()


def feasts_ray_write_and_die(*, folder, **given):
    """The write of Feast's Ray engine, which writes twice, and whose first worker then dies."""
    from feast.infra.compute_engines.ray.utils import (
        write_to_online_store,
    )  # of a package that Spark does not need

    write_to_online_store(**given)
    write_to_online_store(**given)
    if given["arrow_table"].num_rows and first_to_make(Path(folder) / "died"):
        os._exit(1)


def dying(folder, die):
    return partial(write_and_die, folder=str(folder), die=die)


TWINS_TASK = 0  # which task of a job is slow
_DEADLINE_SECONDS = 180


def _done_by_both(folder, attempt):
    """Note that an attempt has written, and wait for its twin, which nobody starts while it is not slow."""
    own, others = (Path(folder) / f"attempt {number}" for number in (attempt, 1 - attempt))
    own.write_text(str(parent_of(os.getppid())))
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not others.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no twin of attempt {attempt} has written")
        threading.Event().wait(0.05)  # of another process, which can only be looked for


def written_by_twins(batches, *rest, write, folder, **options):
    """A task that is slow until Spark runs a twin of it; either reports when both have written all rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    reports = list(write(batches, *rest, **options))
    if context.partitionId() == TWINS_TASK:
        _done_by_both(folder, context.attemptNumber())
    yield from reports


class DyingStep:
    """The step of a seal, whose process dies once, after its files are written."""

    def __init__(self, folder):
        self._folder = folder

    def __call__(self, request, artifacts, joint):
        done = run_step(request, artifacts, joint)
        if unpack(request)[0]["step"] == DRAFT and first_to_make(Path(self._folder) / "died"):
            os._exit(1)
        return done
