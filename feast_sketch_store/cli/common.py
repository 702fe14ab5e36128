"""The command line, ``feast-sketch``, its options before the name of a command, and what commands share."""

import base64
import errno
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from feast import FeatureStore
from feast.constants import FEATURE_STORE_YAML_ENV_NAME
from feast.errors import FeastError, FeastObjectNotFoundException
from feast.repo_config import FeastConfigError
from feast.utils import get_default_yaml_file_path
from tabulate import tabulate

import feast_sketch_store
from feast_sketch_store.errors import (
    DamagedFileError,
    GateError,
    SettingsError,
    SketchStoreError,
    StorageError,
)
from feast_sketch_store.online_store import online_store_of
from feast_sketch_store.operations import maintenance

T = TypeVar("T")
OpenStore = Callable[[], FeatureStore]  # what a command is given
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SOME_VIEWS = click.argument("views", nargs=-1, required=True, metavar="VIEW...")
VIEWS_ARGUMENT = click.argument("views", nargs=-1, metavar="[VIEW]...")
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON, one array for all views.")

# Errors whose text says what happened; of others it says little without the name of their class.
_TOLD = (SketchStoreError, FeastError, FeastObjectNotFoundException, ValueError, OSError)
_LEVELS = ("debug", "info", "warning", "error", "critical")
_MOST_SECONDS = 1_000_000_000  # 31 years; clocks and waits of Python do not take every float


class Seconds(click.FloatRange):
    """A number of seconds that clocks and waits take."""

    def __init__(self, min_open: bool = False):
        super().__init__(0, _MOST_SECONDS, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number; no comparison with a bound refuses NaN."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


class _Commands(click.Group):
    """Commands whose errors are printed as a reason on standard error, with exit status 1."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if context.params["traceback"] or getattr(error, "errno", None) == errno.EPIPE:
                raise
            raise click.ClickException(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text if text and isinstance(error, _TOLD) else f"{type(error).__name__}: {text}".removesuffix(": ")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(feast_sketch_store.__version__, prog_name="feast-sketch")
@click.option(
    "--chdir",
    "-c",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    envvar="FEATURE_REPO_DIR_ENV_VAR",  # of Feast
    help="Folder of the feature repository.",
)
@click.option(
    "--feature-store-yaml", "-f", type=FILE, help="Configuration file to read instead of feature_store.yaml."
)
@click.option(
    "--lock-timeout",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait while another process seals the view.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    help="Log what Feast and this package do, from this level on.",
)
@click.option("--traceback", is_flag=True, help="Print where an error comes from.")
@click.pass_context
def cli(
    context: click.Context,
    chdir: Path,
    feature_store_yaml: Path | None,
    lock_timeout: float,
    log_level: str | None,
    traceback: bool,
) -> None:
    """Inspect and maintain the feature views of a sketch online store.

    Without a VIEW, a command applies to all views of the repository. A VIEW may end in a version, as in
    history@v1. The environment variables of `feast` count here, too: FEATURE_REPO_DIR_ENV_VAR,
    FEAST_FS_YAML_FILE_PATH and FEATURE_STORE_YAML_BASE64.
    """
    if log_level is not None:
        logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s: %(message)s")
        for name in ("feast", "feast_sketch_store"):
            logging.getLogger(name).setLevel(log_level.upper())
    context.obj = partial(_open_store, chdir, feature_store_yaml, lock_timeout)


def _open_store(folder: Path, configuration: Path | None, lock_timeout: float) -> FeatureStore:
    path = configuration.absolute() if configuration else get_default_yaml_file_path(folder)
    if encoded := os.getenv(FEATURE_STORE_YAML_ENV_NAME):
        # As in Feast it counts before all files, and relative paths in it are of a new folder.
        folder = Path(tempfile.mkdtemp())
        path = folder / "feature_store.yaml"
        try:
            path.write_bytes(base64.b64decode(encoded))
        except ValueError as error:
            raise SettingsError(f"{FEATURE_STORE_YAML_ENV_NAME}: not a file in base64: {error}") from error
    if not path.is_file():
        raise click.ClickException(
            f"{path.absolute()}: there is no such file; run this in the folder of a feature repository, or "
            "name the folder with --chdir"
        )
    try:
        store = FeatureStore(repo_path=str(folder), fs_yaml_file=path)
    except (FeastConfigError, yaml.YAMLError, TypeError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error
    with suppress(SketchStoreError):  # of another kind of store, which the command refuses
        online_store_of(store).lock_timeout_seconds = lock_timeout
    return store


def report_unfilled(store: FeatureStore, views: Sequence[str], then: str = "") -> None:
    """Say which views have nothing to show yet, before anything that takes time."""
    for view in views:
        with suppress(DamagedFileError, StorageError):  # of what follows
            if not maintenance.is_filled(store, view):
                click.echo(f"{view}: nothing was materialized yet{then}", err=True)


def views_of(store: FeatureStore, views: Sequence[str]) -> list[str]:
    """Return the named views of the repository or versions of them, each once, or all views if none is named;
    an unknown name ends the command.
    """
    known = maintenance.views_of(store)
    unknown = [view for view in views if view.partition("@")[0] not in known]
    if unknown:
        raise click.ClickException(
            f"project {store.project!r} has no feature view {unknown[0]!r} in its online store; "
            f"it has: {', '.join(known) or 'none'}"
        )
    if not known:
        click.echo(
            f"project {store.project!r} has no feature views in its online store; run `feast apply` first",
            err=True,
        )
    return list(dict.fromkeys(views)) or known


def store_with(open_store: OpenStore, view: str) -> FeatureStore:
    """Open the repository; an unknown name of a view ends the command."""
    store = open_store()
    views_of(store, [view])
    return store


@contextmanager
def progress_bar(label: str, hidden: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error; call it with the amount done, and the total if it is known."""
    with click.progressbar(length=1, label=label, file=sys.stderr, hidden=hidden) as bar:

        def progress(done: int, total: int | None) -> None:
            bar.length = max(1, total or done)
            bar.update(done - bar.pos)

        yield progress


@contextmanager
def progress_of_steps() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each step, on a terminal; call it with the step's name, the amount done, and the
    total.
    """
    shown: tuple[str, Callable[[int, int | None], None]] | None = None
    with ExitStack() as bars:

        def progress(step: str, done: int, total: int) -> None:
            nonlocal shown
            if shown is None or step != shown[0]:
                bars.close()
                shown = step, bars.enter_context(progress_bar(step, hidden=not sys.stderr.isatty()))
            shown[1](done, total)

        yield progress


def for_each(
    label: str, views: Sequence[str], act: Callable[[str], object]
) -> tuple[dict[str, object], list[SketchStoreError]]:
    """Call a function for each view, with a progress bar on standard error; returns the results.

    A view that fails keeps no other one waiting: its result is a text, and its error is returned.
    """
    done: dict[str, object] = {}
    failed: list[SketchStoreError] = []
    with click.progressbar(
        views, label=label, file=sys.stderr, item_show_func=lambda view: view or ""
    ) as remaining:
        for view in remaining:
            try:
                done[view] = act(view)
            except SketchStoreError as error:
                failed.append(error)
                done[view] = "failed"
                if isinstance(error, GateError):
                    done[view] = f"not published: {'; '.join(error.reasons)}"
    return done, failed


def print_outcomes(
    done: Mapping[str, Any], as_json: bool, column: str, failed: Sequence[SketchStoreError] = ()
) -> None:
    """Print one outcome for each view; errors end the command."""
    if as_json:
        print_json([{"view": view, column.replace(" ", "_"): outcome} for view, outcome in done.items()])
    else:
        print_table(["view", column], [[view, str(outcome)] for view, outcome in done.items()])
    end_if(failed)


def end_if(failed: Sequence[SketchStoreError]) -> None:
    """End the command with the errors of some views, if there are any."""
    if failed:
        raise SketchStoreError("\n".join(dict.fromkeys(map(str, failed)))) from failed[0]


def cells(columns: Mapping[str, Callable[[T], str]], items: Iterable[T]) -> list[list[str]]:
    """The rows of a table: what each column shows of each item."""
    return [[show(item) for show in columns.values()] for item in items]


def or_dash(value: T | None, show: Callable[[T], str] = str) -> str:
    """What a cell shows of a value; a dash for none."""
    return "-" if value is None else show(value)


def print_table(header: Iterable[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text; nothing if it has no rows."""
    if rows:
        align = ["left"] + ["right"] * (len(rows[0]) - 1)
        click.echo(tabulate(rows, [*header], "simple", colalign=align, disable_numparse=True) + "\n")


def print_json(content: object) -> None:
    """Print JSON with line breaks, for people; times, NaN and infinities, which JSON lacks, are texts."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=str)
    click.echo(json.dumps(plain, indent=2))
