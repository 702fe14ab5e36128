"""Processes that begin with Feast imported.

An import of Feast takes seconds of a processor, the work of a test milliseconds. These processes are forks of
one that has imported Feast and done nothing else: they share no store, file or lock with the test or with
each other. A test of what a new interpreter does, such as resolving `type: sketch`, starts one. A test that
plays a new user has forks, and new interpreters in its long form: `run_as_user`.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.helpers.length import IS_LONG

_PRELOADED = [
    *([] if IS_LONG else ["tests.helpers.unchecked"]),
    "pytest",
    "feast.cli.cli",
    "feast_sketch_store.online_store",
    "tests.helpers.keys",
    # What Feast's commands import once they know the repository.
    "feast.infra.compute_engines.local.compute",
    "feast.infra.offline_stores.dask",
    "feast.infra.passthrough_provider",
    "feast.infra.registry.file",
    "tests.helpers.frozen",  # the last
]
# For a new interpreter that needs some of Feast's modules, without what Feast imports, which takes seconds.
BARE_FEAST = (
    "import importlib.util, sys, types; feast = types.ModuleType('feast')\n"
    "feast.__path__ = importlib.util.find_spec('feast').submodule_search_locations\n"
    "sys.modules['feast'] = feast\n"
)
# For one that needs Feast, without the types that it checks, which is most of those seconds.
UNCHECKED_FEAST = Path(__file__).with_name("unchecked.py").read_text()
# Where Feast's metrics, which are imported, count.
METRICS_FOLDERS = ("PROMETHEUS_MULTIPROCESS_DIR", "PROMETHEUS_MULTIPROC_DIR")
PATIENCE_SECONDS = 300  # with a process that does not answer or end: the machine may be loaded


def warm_context() -> ForkServerContext:
    """Starts processes; the first of them waits until Feast is imported."""
    context = _get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def run_forked(function: Callable[..., object], *arguments: Any) -> None:
    """Run a function in a fork of this process, and wait for its end."""
    child = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    child.start()
    child.join(60)
    child.kill()  # if it hangs
    child.join()
    assert child.exitcode == 0


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


# Held while `__main__` is another, because a process begins by importing what it is; and see `_end_of`.
_MAIN = threading.Lock()


def start_command(
    command: Sequence[str | Path], *, cwd: Path | str | None = None, stdout: int = 1, stderr: int = 2
) -> ForkServerProcess:
    """Start a command of ``feast`` or of this Python in a process that begins with Feast imported.

    It has a session of its own. What it runs by ``subprocess.run``, or by ``multiprocessing`` as a process
    that begins anew, begins with Feast imported, too.

    Parameters
    ----------
    command : ``["feast", ...]``, ``["feast-sketch", ...]``, ``[sys.executable, "-c", code, ...]`` or
        ``[sys.executable, script, ...]``; an option ``-W`` may come first.
    stdout, stderr : descriptors of files that it writes to; they stay open here.
    """
    program, *arguments = map(str, command)
    assert _is_warm(program), program
    streams = Connection(os.dup(stdout)), Connection(os.dup(stderr))  # which can be sent to a process
    process = warm_context().Process(
        target=_run_command, args=(program, arguments, cwd or Path.cwd(), dict(os.environ), *streams)
    )
    with _MAIN:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
    for stream in streams:
        stream.close()
    return process


def run_command(
    command: Sequence[str | Path], *, cwd: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` gives of a command that `start_command` can start, and what it printed."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = start_command(command, cwd=cwd, stdout=stdout.fileno(), stderr=stderr.fileno())
        code = _end_of(process)
        for stream in (stdout, stderr):
            stream.seek(0)
        return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())


def _end_of(process: ForkServerProcess) -> int | None:
    """Wait for a process. Returns its exit code.

    It can be read once, and the start of another process reads those of all that have ended.
    """
    wait([process.sentinel])
    with _MAIN:
        process.join()
    return process.exitcode


def run_as_user(
    command: Sequence[str | Path], *, cwd: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """`run_command`, also for other programs; in the long form all Python in it is new interpreters."""
    if IS_LONG or not _is_warm(str(command[0])):
        return _run_anew(command, cwd=cwd, capture_output=True, text=True, check=False)
    return run_command(command, cwd=cwd)


def _is_warm(program: str) -> bool:
    return program == sys.executable or Path(program).name in ("feast", "feast-sketch")


def _run_command(
    program: str,
    arguments: list[str],
    cwd: Path | str,
    environment: dict[str, str],
    stdout: Connection,
    stderr: Connection,
) -> None:
    """Be the command, which ends this process."""
    os.setsid()
    os.chdir(cwd)
    metrics = {name: folder for name, folder in os.environ.items() if name in METRICS_FOLDERS}
    os.environ.clear()
    os.environ.update({**metrics, **environment})
    for stream, descriptor in ((stdout, 1), (stderr, 2)):
        os.dup2(stream.fileno(), descriptor)
        stream.close()
    subprocess.run = _run_nested
    multiprocessing.get_context = _get_warm_context
    _ask_the_same_server()
    if program != sys.executable:
        sys.argv = [program, *arguments]
        (entry,) = entry_points(group="console_scripts", name=Path(program).name)
        sys.exit(entry.load()())
    sys.orig_argv = [program, *arguments]
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent.resolve()))
        runpy.run_path(arguments[0], run_name="__main__")


def _ask_the_same_server() -> None:
    """Have the server that forked this process fork those that it starts.

    Python means to do so, but looks for the server among the children of a process, where it is not, and
    starts another one, which imports Feast once more.
    """
    server = forkserver._forkserver
    assert server._forkserver_address is not None
    server.ensure_running = lambda: None


_run_anew = subprocess.run
_get_context = multiprocessing.get_context


def _get_warm_context(method: str | None = None) -> BaseContext:
    return warm_context() if method == "spawn" else _get_context(method)


def _run_nested(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` in such a process; what asks for another environment or for pipes begins anew."""
    if options.keys() - {"cwd", "check"} or not _is_warm(str(command[0])):
        return _run_anew(command, **options)
    sys.stdout.flush()
    process = start_command(command, cwd=options.get("cwd"))
    done = subprocess.CompletedProcess(command, _end_of(process))
    if options.get("check"):
        done.check_returncode()
    return done
