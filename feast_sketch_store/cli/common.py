"""Shared parts of the commands: options, errors, progress, and printed results."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from feast import FeatureStore
from tabulate import tabulate

from feast_sketch_store.operations import maintenance

T = TypeVar("T")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
VIEWS_ARGUMENT = click.argument("views", nargs=-1, metavar="[VIEW]...")
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON, one array for all views.")


def tell_unfilled(store: FeatureStore, views: Sequence[str], then: str = "") -> None:
    """Say which views have nothing to show yet, before anything that takes time."""
    for view in views:
        if not maintenance.is_filled(store, view):
            click.echo(f"{view}: nothing was materialized yet{then}", err=True)


def views_of(store: FeatureStore, views: Sequence[str]) -> list[str]:
    """Return the named views of the repository, or all if none is named; an unknown name ends the command."""
    known = maintenance.views_of(store)
    unknown = [view for view in views if view not in known]
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
    return list(views) or known


def store_with(open_store: Callable[[], FeatureStore], view: str) -> FeatureStore:
    """Open the repository; an unknown name of a view ends the command."""
    store = open_store()
    views_of(store, [view])
    return store


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error; call it with the amount done, and the total if it is known."""
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def tell(done: int, total: int | None) -> None:
            bar.length = max(1, total or done)
            bar.update(done - bar.pos)

        yield tell


def for_each(label: str, views: Sequence[str], act: Callable[[str], T]) -> dict[str, T]:
    """Call a function for each view, with a progress bar on standard error; returns the results."""
    done = {}
    with click.progressbar(
        views, label=label, file=sys.stderr, item_show_func=lambda view: view or ""
    ) as remaining:
        for view in remaining:
            done[view] = act(view)
    return done


def print_outcomes(done: dict[str, Any], as_json: bool, column: str) -> None:
    """Print one outcome for each view."""
    if as_json:
        print_json([{"view": view, column.replace(" ", "_"): outcome} for view, outcome in done.items()])
    else:
        print_table(["view", column], [[view, str(outcome)] for view, outcome in done.items()])


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text; nothing if it has no rows."""
    if rows:
        align = ["left"] + ["right"] * (len(header) - 1)
        click.echo(tabulate(rows, header, "simple", colalign=align, disable_numparse=True) + "\n")


def print_json(content: object) -> None:
    """Print JSON with line breaks, for people."""
    click.echo(json.dumps(content, indent=2))
