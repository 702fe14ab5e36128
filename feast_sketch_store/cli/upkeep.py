"""The commands that change what is stored: ``seal``, ``rebuild``, ``delete``, ``pin``, ``vacuum``, others."""

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click

from feast_sketch_store.adapter.options import seal_policy
from feast_sketch_store.cli.common import (
    JSON_OPTION,
    SOME_VIEWS,
    VIEWS_ARGUMENT,
    OpenStore,
    Seconds,
    for_each,
    print_json,
    print_outcomes,
    print_table,
    progress_bar,
    store_with,
    views_of,
)
from feast_sketch_store.engines import seal_job
from feast_sketch_store.engines.seal_job import ENGINES
from feast_sketch_store.errors import counted
from feast_sketch_store.operations import backing, maintenance
from feast_sketch_store.operations.metrics_endpoint import exported
from feast_sketch_store.operations.resharding import reshard
from feast_sketch_store.storage.bucket_check import check_bucket
from feast_sketch_store.storage.buckets import is_url
from feast_sketch_store.threads import lowered_priority
from feast_sketch_store.view.shard import Dropped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOST_LISTED = 20  # entities that are not found
_NO_ROWS = "not sealed: it has no rows"
_IS_BUSY = "another process is sealing it for too long"
_DATETIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])


@click.command()
@VIEWS_ARGUMENT
@click.option("--watch", is_flag=True, help="Seal whenever a seal is due, until interrupted.")
@click.option(
    "--interval",
    type=Seconds(min_open=True),
    metavar="SECONDS",
    help=f"With --watch: seconds between checks.  [default: {maintenance.WATCH_INTERVAL_SECONDS:g}]",
)
@click.option(
    "--share",
    type=click.FloatRange(min=0, min_open=True),
    help="With --watch: used in place of the store's `compaction: {share}`.",
)
@click.option(
    "--min-rows",
    type=click.IntRange(min=0),
    help="With --watch: used in place of the store's `compaction: {min_rows}`.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="Let tasks of Spark or Ray do the work, one per shard.  [default: this process]",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), help="With --watch: export metrics on this port."
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="Address on which metrics are exported."
)
@JSON_OPTION
@click.pass_obj
def seal(
    open_store: OpenStore,
    views: Sequence[str],
    watch: bool,
    interval: float | None,
    share: float | None,
    min_rows: int | None,
    engine: str | None,
    metrics_port: int | None,
    metrics_host: str,
    as_json: bool,
) -> None:
    """Fold all rows into a new snapshot.

    The command runs at a low priority, so that reads of other processes do not wait for it. With --watch it
    leaves them one core, too.

    A view whose new version does not pass its gate keeps the previous snapshot, and the command exits with
    status 1.

    With --watch it does so whenever a seal is due, and prints a line for each seal. On SIGINT or SIGTERM it
    finishes the current seal and exits with status 0. Other processes can write meanwhile.
    """
    if not watch and (share, min_rows, interval) != (None, None, None):
        raise click.UsageError("--share, --min-rows and --interval need --watch")
    if watch and engine is not None:
        raise click.UsageError("--watch seals in this process; leave out --engine")
    if not watch and metrics_port is not None:
        raise click.UsageError("--metrics-port needs --watch: without it the command ends after one seal")
    with lowered_priority(leave_a_core=watch):
        store = open_store()
        if watch:
            views_of(store, views)
            policy = seal_policy(store.config.online_store)
            policy = replace(
                policy,
                share=policy.share if share is None else share,
                min_rows=policy.min_rows if min_rows is None else min_rows,
            )
            seconds = maintenance.WATCH_INTERVAL_SECONDS if interval is None else interval
            exporting = nullcontext() if metrics_port is None else exported(metrics_host, metrics_port)
            with _interrupted() as stop, exporting:
                maintenance.watch(
                    store, views, stop, seconds, lambda view: _print_sealed(view, as_json), policy
                )
            return

        def seal_one(view: str) -> str:
            if maintenance.seal(store, view) if engine is None else seal_job.seal(store, view, engine):
                return "sealed"
            stats = maintenance.opened_view(store, view).stats()
            if stats.sealed_entities or stats.unsealed_rows:
                return f"not sealed: {_IS_BUSY}"
            return _NO_ROWS

        done, failed = for_each("Sealing", views_of(store, views), seal_one)
    print_outcomes(done, as_json, "outcome", failed)


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_sealed(view: str, as_json: bool) -> None:
    """Print that a view was sealed, on a line of its own."""
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"view": view, "sealed_at": moment}) if as_json else f"{moment} {view}: sealed"
    click.echo(line)


@click.command()
@click.argument("view")
@JSON_OPTION
@click.pass_obj
def refill(open_store: OpenStore, view: str, as_json: bool) -> None:
    """Write a view's backed features to the backing store again.

    The values come from the row log. Run this after the backing store lost rows, and after you moved a
    feature to it.
    """
    with progress_bar(f"Filling the backing store with {view}") as progress:
        written = backing.refill(open_store(), view, progress)
    if as_json:
        print_json({"view": view, "rows": written})
    else:
        click.echo(f"{counted(written, 'row')} written")


@click.command()
@click.argument("view")
@click.option("--force", is_flag=True, help="Publish without asking the gate.")
@JSON_OPTION
@click.pass_obj
def publish(open_store: OpenStore, view: str, force: bool, as_json: bool) -> None:
    """Publish what did not pass the gate of a VIEW.

    From now on reads show the rows of a fill that was held back, and the view is sealed. Without --force the
    gate checks again, for example after you changed its settings.
    """
    store = store_with(open_store, view)
    num_rows = maintenance.publish(store, view, force)
    outcome = "sealed" if maintenance.opened_view(store, view).state.sealed else _NO_ROWS
    if num_rows is not None:
        outcome = f"published: {counted(num_rows, 'row')}"
    print_outcomes({view: outcome}, as_json, "outcome")


@click.command()
@click.argument("view")
@JSON_OPTION
@click.pass_obj
def discard(open_store: OpenStore, view: str, as_json: bool) -> None:
    """Delete the rows of a fill that the gate of a VIEW held back.

    Rows that reads show stay. In a bucket the files of the others stay until a vacuum, a day later.
    """
    store = store_with(open_store, view)
    num_rows = maintenance.discard(store, view)
    outcome = "no fill is held back" if num_rows is None else f"deleted: {counted(num_rows, 'row')}"
    print_outcomes({view: outcome}, as_json, "outcome")


@click.command()
@VIEWS_ARGUMENT
@click.option(
    "--orphan-age",
    type=Seconds(),
    default=86_400.0,
    show_default=True,
    metavar="SECONDS",
    help="Remove unreferenced data files that are older than this.",
)
@JSON_OPTION
@click.pass_obj
def vacuum(open_store: OpenStore, views: Sequence[str], orphan_age: float, as_json: bool) -> None:
    """Remove unused files.

    After a seal this removes the last trace of deleted rows.
    """
    store, age = open_store(), timedelta(seconds=orphan_age)

    def vacuum_one(view: str) -> int | str:
        num_removed = maintenance.vacuum(store, view, age)
        return f"not vacuumed: {_IS_BUSY}" if num_removed is None else num_removed

    done, failed = for_each("Vacuuming", views_of(store, views), vacuum_one)
    print_outcomes(done, as_json, "files removed", failed)


def _versions(context: click.Context, parameter: click.Parameter, given: str | None) -> list[int] | None:
    """Read the versions of snapshots, one for each shard."""
    if given is None:
        return None
    if not all(part.isdecimal() for part in given.split(",")):
        raise click.BadParameter(f"{given!r} is not a version, or several with commas between")
    return [int(part) for part in given.split(",")]


@click.command()
@click.argument("view")
@click.argument("versions", metavar="[VERSION]", required=False, callback=_versions)
@click.option("--seal", "seals", is_flag=True, help="Seal first, so that reads keep showing all rows.")
@click.option("--yes", is_flag=True, help="Hide rows that are not sealed without asking.")
@JSON_OPTION
@click.pass_obj
def pin(
    open_store: OpenStore,
    view: str,
    versions: Sequence[int] | None,
    seals: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Pin reads of a VIEW to a snapshot.

    Without a VERSION, which inspect shows, this is the newest snapshot. A view with shards has a version for
    each, separated by commas. Serving processes follow within their refresh interval. Until unpin,
    writes are kept but not shown, and do not seal. This undoes a bad fill in one step.

    Unsealed rows are in no snapshot. If there are any, the command prints how many, and asks unless you name
    a VERSION.
    """
    if seals and versions is not None:
        raise click.UsageError("--seal makes a new snapshot, and VERSION names an old one: give one of them")
    store = store_with(open_store, view)
    if seals:
        maintenance.seal(store, view)
    pinned = maintenance.pin(
        store, view, versions, lambda rows: yes or _may_hide(view, rows, versions is None)
    )
    if pinned is None:
        raise click.ClickException(f"{view} was not pinned; reads follow the writes")
    print_outcomes({view: pinned if as_json else ",".join(map(str, pinned))}, as_json, "pinned to version")


def _may_hide(view: str, unsealed_rows: int, asks: bool) -> bool:
    """Print what reads will not show, and ask if wanted."""
    advice = " With --seal they are sealed first, and stay visible." if asks else ""
    click.echo(
        f"{view}: {counted(unsealed_rows, 'row')} came after the newest snapshot. Reads will show nothing of "
        f"that until `unpin`.{advice}",
        err=True,
    )
    return not asks or _confirmed("Pin, and hide them?")


@click.command()
@click.argument("view")
@JSON_OPTION
@click.pass_obj
def unpin(open_store: OpenStore, view: str, as_json: bool) -> None:
    """Let reads of a VIEW follow the writes again."""
    store = store_with(open_store, view)
    was_pinned = maintenance.unpin(store, view)
    outcome = "follows the writes" if was_pinned else "was not pinned"
    print_outcomes({view: outcome}, as_json, "outcome")


@click.command()
@SOME_VIEWS
@click.option(
    "--from", "start", type=_DATETIME, help="First event timestamp  [default: the view's ttl before --to]"
)
@click.option("--to", "end", type=_DATETIME, help="Last event timestamp  [default: now]")
@click.option("--yes", is_flag=True, help="Drop rows that were only pushed without asking.")
@click.option("--force", is_flag=True, help="Replace the rows even if the new ones do not pass the gate.")
@JSON_OPTION
@click.pass_obj
def rebuild(
    open_store: OpenStore,
    views: Sequence[str],
    start: datetime | None,
    end: datetime | None,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Drop all rows of a VIEW and fill it from the offline store.

    Readers get the old rows until the new ones are complete. Rows that are pushed meanwhile
    stay. Rows that were only pushed are dropped: the command prints how many, and asks before it goes on.
    """
    store, done = open_store(), {}
    for view in views_of(store, views):
        click.echo(f"Rebuilding {view}", err=True)
        entities = maintenance.rebuild(
            store, view, start, end, None if yes else partial(_may_drop, view), force
        )
        if entities is None:
            raise click.ClickException(f"{view} was not rebuilt; nothing of it has changed")
        done[view] = entities
    print_outcomes(done, as_json, "entities")


@click.command("reshard")
@SOME_VIEWS
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    required=True,
    metavar="NUMBER",
    help="A power of two; 1 for an undivided view.",
)
@JSON_OPTION
@click.pass_obj
def reshard_command(open_store: OpenStore, views: Sequence[str], shards: int, as_json: bool) -> None:
    """Divide the rows of a VIEW into another number of shards.

    All rows stay, and are divided by the hash of their entity. Writes are refused meanwhile. Running
    processes follow. Set the number in feature_store.yaml or in the tag, too.

    If the command was killed, run it again, or run it with the former number to keep the rows where they are.
    """
    store = open_store()
    done, failed = for_each("Dividing", views_of(store, views), lambda view: reshard(store, view, shards))
    print_outcomes(done, as_json, "entities", failed)


def _may_drop(view: str, dropped: Dropped | None) -> bool:
    """Print what a rebuild drops, and ask."""
    click.echo(
        f"{view}: its rows cannot be read, so those only pushed cannot be counted. A rebuild drops all."
        if dropped is None
        else f"{view}: the offline store lacks {counted(dropped.entities, 'entity')} that the view has, and "
        f"has an older row than the view for {counted(dropped.newer_rows, 'other')}. A rebuild drops "
        "these rows of the view. They were pushed only, or lie outside of --from and --to.",
        err=True,
    )
    return _confirmed("Rebuild, and drop them?")


def _confirmed(question: str) -> bool:
    """Ask on the terminal; False without a terminal."""
    try:
        return click.confirm(f"{question} (--yes goes on without asking)", err=True)
    except click.Abort:
        return False


@click.command()
@click.argument("view")
@click.argument("entities", nargs=-1, metavar="[KEY=VALUE[,KEY=VALUE]...]...")
@click.option(
    "--file",
    type=click.File(encoding="utf-8-sig"),
    help='JSON Lines with one entity per line: {"user_id": 7}; - for standard input.',
)
@JSON_OPTION
@click.pass_obj
def delete(open_store: OpenStore, view: str, entities: Sequence[str], file: Any, as_json: bool) -> None:
    """Delete entities from a VIEW.

    For example: feast-sketch delete history user_id=7

    An entity may also be a JSON object, as in --file, where a value has a comma. Text for a join key of bytes
    is encoded as UTF-8; other bytes of an argument are taken as they are.

    Reads no longer find them: here at once, in other processes after their next refresh. To remove them from
    the disk as well, run seal and then vacuum. Remove them from the offline store first, or a materialize
    brings them back. Entities that the view lacks are listed; all others are deleted.
    """
    store = store_with(open_store, view)
    types = maintenance.join_key_types(store, view)
    rows = [entity_row_of(text, types) for text in entities]
    if file is not None:
        try:
            rows += [
                _entity_of(line, types, f"line {number} of {file.name}")
                for number, line in enumerate(file, 1)
                if line.strip()
            ]
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{file.name} is not JSON Lines: {error}") from error
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
    """``a=1,b=x``, or a JSON object, as join keys and their values; ``types`` are those of the view."""
    if text.startswith("{"):
        return _entity_of(text, types, repr(text))
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        raise click.UsageError(f"{text!r} is not KEY=VALUE[,KEY=VALUE]...")
    try:
        row = _each_once([(key.strip(), value) for key, _, value in pairs])
    except ValueError as error:
        raise click.UsageError(f"{text!r}: {error}; give each entity as an argument of its own") from error
    return _typed(row, types, text)


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dictionary, which would keep only the last value of a repeated key."""
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise ValueError(f"{key} is given twice")
        row[key] = value
    return row


def _entity_of(line: str, types: dict[str, str], where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{where} is not a JSON object of join keys: {error}") from error
    return _typed(row, types, where)


def _typed(row: Any, types: dict[str, str], where: str) -> dict[str, Any]:
    """Convert text to integers for integer join keys, and to UTF-8 for bytes; other values stay."""
    if not isinstance(row, dict):
        raise click.UsageError(f"{where}: {row!r} is not a JSON object of join keys")
    typed = {}
    for key, value in row.items():
        kind = types.get(key, "") if isinstance(value, str) else ""
        try:
            if kind.startswith("INT"):
                typed[key] = _whole_number(value)
            else:  # Python has bytes of arguments that are not UTF-8 as surrogates
                typed[key] = value.encode(errors="surrogateescape") if kind == "BYTES" else value
        except ValueError as error:
            wanted = "text that is UTF-8" if kind == "BYTES" else "a whole number"
            raise click.UsageError(
                f"{where}: join key {key!r} is {kind}, and {value!r} is not {wanted}"
            ) from error
    return typed


def _whole_number(text: str) -> int:
    """The integer of a text. Python also reads ``1_000`` and digits of other scripts, which are slips here.

    Raises ValueError: it is none.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return int(text)


@click.command("check-bucket")
@click.argument("url", metavar="URL")
@click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of storage_options, such as endpoint=http://127.0.0.1:8333; may be repeated.",
)
def check_bucket_command(url: str, options: Sequence[str]) -> None:
    """Check that a bucket can hold a store.

    URL is that of a store, such as s3://bucket/folder. Credentials are those of the environment, or options.
    The command writes some 1,300 small objects into a folder of its own, and removes them. The exit status is
    1 if anything does not hold.
    """
    if not is_url(url):
        raise click.UsageError(f"{url!r} is not the URL of a bucket, such as s3://bucket/folder")
    given = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator:
            raise click.UsageError(f"{name!r} is not NAME=VALUE")
        given[name] = value
    failed = 0
    for what, problem in check_bucket(url, given):
        click.echo(f"{'FAILS' if problem else 'holds'}: {what}{f': {problem}' if problem else ''}")
        failed += bool(problem)
    if failed:
        raise click.ClickException(f"{failed} of the above do not hold: do not keep a store there")
