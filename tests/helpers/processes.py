"""Processes that begin with Feast imported.

An import of Feast takes seconds of a processor, the work of a test milliseconds. These processes are forks of
one that has imported Feast and done nothing else: they share no store, file or lock with the test or with
each other. A test of what a new interpreter does, such as resolving `type: sketch`, starts one.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

_PRELOADED = ["pytest", "feast.cli.cli", "feast_sketch_store.online_store", "tests.helpers.keys"]
PATIENCE_SECONDS = 300  # with a process that does not answer or end: the machine may be loaded


def warm_context() -> ForkServerContext:
    """Starts processes; the first of them waits until Feast is imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


@contextmanager
def answering(
    context: ForkServerContext, make: Callable[..., Callable[[Any], Any]], *arguments: Any
) -> Iterator[Callable[[Any], Any]]:
    """A process that makes a function, by ``make(*arguments)``, and answers with it; gives a way to ask."""
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, make, arguments))
    process.start()
    theirs.close()

    def ask(question: Any) -> Any:
        ours.send(question)
        assert ours.poll(PATIENCE_SECONDS), "no answer"
        return ours.recv()

    try:
        yield ask
    finally:
        ours.close()
        process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


def _answer(pipe: Connection, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    answer = make(*arguments)
    while True:
        try:
            question = pipe.recv()
        except EOFError:  # the test has no more
            return
        pipe.send(answer(question))


def run_feast(folder: Path, arguments: tuple[str, ...], output: Path) -> None:
    """The `feast` command in this process, which it ends; both its streams go to a file."""
    os.chdir(folder)
    with output.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = ["feast", *arguments]
    (command,) = entry_points(group="console_scripts", name="feast")
    sys.exit(command.load()())
