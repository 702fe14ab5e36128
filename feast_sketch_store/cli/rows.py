"""The commands that change rows: ``rebuild``, ``copy`` and ``delete``."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from feast import FeatureStore

from feast_sketch_store.cli.common import (
    JSON_OPTION,
    print_json,
    print_outcomes,
    print_table,
    store_with,
    views_of,
)
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.resharding import reshard
from feast_sketch_store.view.shard import Dropped

_MOST_LISTED = 20  # entities that are not found
_DATETIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])


@click.command()
@click.argument("views", nargs=-1, required=True, metavar="VIEW...")
@click.option(
    "--from", "start", type=_DATETIME, help="First event timestamp  [default: the view's ttl before --to]"
)
@click.option("--to", "end", type=_DATETIME, help="Last event timestamp  [default: now]")
@click.option("--yes", is_flag=True, help="Drop rows that were only pushed without asking.")
@click.option("--force", is_flag=True, help="Replace the rows even if the new ones do not pass the gate.")
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Divide the view's own rows into N shards, without reading the offline store.",
)
@JSON_OPTION
@click.pass_obj
def rebuild(
    open_store: Callable[[], FeatureStore],
    views: Sequence[str],
    start: datetime | None,
    end: datetime | None,
    yes: bool,
    force: bool,
    shards: int | None,
    as_json: bool,
) -> None:
    """Drop all rows of a VIEW and fill it from the offline store.

    Readers get the old rows until the new ones are complete. Rows that are pushed meanwhile
    stay. Rows that were only pushed are dropped: the command prints how many, and asks before it goes on.

    With --shards all rows stay and are divided by the hash of their entity. Writes are refused meanwhile.
    Running processes follow. Set the number in feature_store.yaml or in the tag, too.
    If the command was killed, run it again; with the number of before, rows stay where they are.
    """
    if shards is not None and (start or end or yes or force):
        raise click.UsageError(
            "--shards divides the rows that there are: give no --from, --to, --yes or --force"
        )
    store = open_store()
    done = {}
    if shards is not None:
        done = {view: reshard(store, view, shards) for view in views_of(store, views)}
        views = []
    for view in views_of(store, views) if views else []:
        click.echo(f"Rebuilding {view}", err=True)
        entities = maintenance.rebuild(
            store, view, _in_utc(start), _in_utc(end), None if yes else partial(_may_drop, view), force
        )
        if entities is None:
            raise click.ClickException(f"{view} was not rebuilt; nothing of it has changed")
        done[view] = entities
    print_outcomes(done, as_json, "entities")


def _may_drop(view: str, dropped: Dropped | None) -> bool:
    """Ask on the terminal; False without a terminal."""
    click.echo(
        f"{view}: its rows cannot be read, so those only pushed cannot be counted. A rebuild drops all."
        if dropped is None
        else f"{view}: the offline store lacks {dropped.entities:,} entities that the view has, and has an "
        f"older row than the view for {dropped.newer_rows:,} others. A rebuild drops these rows of the view. "
        "They were pushed only, or lie outside of --from and --to.",
        err=True,
    )
    try:
        return click.confirm("Rebuild, and drop them? (--yes goes on without asking)", err=True)
    except click.Abort:
        return False


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


@click.command()
@click.argument("view")
@click.argument("entities", nargs=-1, metavar="[KEY=VALUE[,KEY=VALUE]...]...")
@click.option(
    "--file",
    type=click.File(),
    help='JSON Lines with one entity per line: {"user_id": 7}; - for standard input.',
)
@JSON_OPTION
@click.pass_obj
def delete(
    open_store: Callable[[], FeatureStore],
    view: str,
    entities: Sequence[str],
    file: Any,
    as_json: bool,
) -> None:
    """Delete entities from a VIEW.

    For example: feast-sketch delete history user_id=7

    Reads no longer find them: here at once, in other processes after their next refresh. To remove them from
    the disk as well, run seal and then vacuum. Remove them from the offline store first, or a materialize
    brings them back. Entities that the view does not have are listed; all others are deleted.
    """
    store = store_with(open_store, view)
    types = maintenance.join_key_types(store, view)
    rows = [entity_row_of(text, types) for text in entities]
    if file is not None:
        rows += [
            _typed(_entity_object(line, number), types, f"line {number} of {file.name}")
            for number, line in enumerate(file, 1)
            if line.strip()
        ]
    if not rows:
        raise click.UsageError("name at least one entity, as KEY=VALUE or in --file")
    deleted = maintenance.delete(store, view, rows)
    if as_json:
        print_json([{"view": view, **asdict(deleted)}])
        return
    print_table(
        ["view", "entities deleted", "not found"], [[view, str(deleted.found), str(len(deleted.not_found))]]
    )
    for row in deleted.not_found[:_MOST_LISTED]:
        click.echo(f"not found: {','.join(f'{key}={value}' for key, value in row.items())}", err=True)
    if (more := len(deleted.not_found) - _MOST_LISTED) > 0:
        click.echo(f"... and {more:,} more; --json lists all", err=True)


def entity_row_of(text: str, types: dict[str, str]) -> dict[str, Any]:
    """``a=1,b=x`` as join keys and their values; ``types`` are those of the view."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        raise click.UsageError(f"{text!r} is not KEY=VALUE[,KEY=VALUE]...")
    return _typed({key.strip(): value for key, _, value in pairs}, types, text)


def _entity_object(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise click.UsageError(
            f"line {number} of --file is not a JSON object of join keys: {error}"
        ) from error


def _typed(row: Any, types: dict[str, str], where: str) -> dict[str, Any]:
    """Convert text to integers for integer join keys; other values stay."""
    if not isinstance(row, dict):
        raise click.UsageError(f"{where}: {row!r} is not a JSON object of join keys")
    typed = {}
    for key, value in row.items():
        is_text_of_integer = isinstance(value, str) and types.get(key, "").startswith("INT")
        try:
            typed[key] = int(value) if is_text_of_integer else value
        except ValueError as error:
            raise click.UsageError(
                f"{where}: join key {key!r} is {types[key]}, and {value!r} is not a whole number"
            ) from error
    return typed
