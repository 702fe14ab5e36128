"""The command line, ``feast-sketch``: maintenance of the views of a feature repository."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar

import click
from feast import FeatureStore
from feast.errors import FeastError, FeastObjectNotFoundException
from tabulate import tabulate

import feast_sketch_store
from feast_sketch_store.bridges import importing
from feast_sketch_store.bridges.survey import DEFAULT_SAMPLE as DEFAULT_SURVEY
from feast_sketch_store.bridges.survey import SurveyedView
from feast_sketch_store.bridges.survey import survey as survey_store
from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.operations import backing, copying, maintenance
from feast_sketch_store.operations.exporting import exported
from feast_sketch_store.operations.health import ViewHealth, health
from feast_sketch_store.operations.maintenance import FeatureReport, ViewReport
from feast_sketch_store.planning.choice import PlanTarget
from feast_sketch_store.planning.plan import Plan
from feast_sketch_store.planning.planner import DEFAULT_SAMPLE, plan_view
from feast_sketch_store.planning.progress import Progress
from feast_sketch_store.planning.report import count_text, fields_text, memory_text, readable_bytes, to_html
from feast_sketch_store.storage.buckets import is_url
from feast_sketch_store.storage.names import folder_name
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.settings import byte_count
from feast_sketch_store.view.view import Dropped

T = TypeVar("T")

_MOST_LISTED = 20  # entities that are not found
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_VIEWS = click.argument("views", nargs=-1, metavar="[VIEW]...")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one array for all views.")
_PACE = click.option(
    "--max-rows-per-second", type=click.FloatRange(min=0, min_open=True), help="Spare the other store."
)
_DATETIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(feast_sketch_store.__version__, prog_name="feast-sketch")
@click.option(
    "--chdir",
    "-c",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder of the feature repository.",
)
@click.option(
    "--feature-store-yaml",
    "-f",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file to read instead of feature_store.yaml.",
)
@click.pass_context
def cli(context: click.Context, chdir: Path, feature_store_yaml: Path | None) -> None:
    """Inspect and maintain the feature views of a sketch online store.

    Without a VIEW, a command applies to all views of the repository.
    """
    context.obj = lambda: FeatureStore(
        repo_path=str(chdir), fs_yaml_file=feature_store_yaml.absolute() if feature_store_yaml else None
    )


@cli.command()
@_VIEWS
@_JSON
@click.pass_obj
def inspect(open_store: Callable[[], FeatureStore], views: Sequence[str], as_json: bool) -> None:
    """Show sizes, error rates and ages.

    Unsealed rows count. bits/fact is what the snapshot takes for each value that was sealed; "in tables" is
    the part of it that the tables and sets take.
    """
    with _errors():
        store = open_store()
        reports = [maintenance.inspect(store, view) for view in _names(store, views)]
    if as_json:
        _print_json([asdict(report) for report in reports])
    else:
        _print_table(_VIEW_COLUMNS, [_view_cells(report) for report in reports])
        _print_table(
            _FEATURE_COLUMNS,
            [_feature_cells(report.view, feature) for report in reports for feature in report.features],
        )
        _print_table(
            ["view", "structure", "memory"],
            [
                [report.view, structure, readable_bytes(size)]
                for report in reports
                for structure, size in report.structure_bytes.items()
            ],
        )
        for name in sorted({report.kernel for report in reports}):
            click.echo(f"Kernel: {name}")


@cli.command()
@_VIEWS
@click.option("--watch", is_flag=True, help="Seal whenever it is time to, until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    default=maintenance.WATCH_INTERVAL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: between two looks.",
)
@click.option(
    "--share",
    type=click.FloatRange(min=0, min_open=True),
    help="With --watch: instead of the store's seal_share.",
)
@click.option(
    "--min-rows", type=click.IntRange(min=0), help="With --watch: instead of the store's seal_min_rows."
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="With --watch: export metrics here.")
@_JSON
@click.pass_obj
def seal(
    open_store: Callable[[], FeatureStore],
    views: Sequence[str],
    watch: bool,
    interval: float,
    share: float | None,
    min_rows: int | None,
    metrics_port: int | None,
    as_json: bool,
) -> None:
    """Fold all rows into a new snapshot: now, or with --watch whenever it is time to.

    With --watch it prints a line for each seal, and ends with exit status 0 on SIGINT and SIGTERM, after a
    seal that is under way. Writers go on meanwhile, in this process or others.
    """
    if not watch and (share is not None or min_rows is not None):
        raise click.UsageError("--share and --min-rows say when it is time to seal; give --watch with them")
    if not watch and metrics_port is not None:
        raise click.UsageError("--metrics-port is for a process that stays; give --watch with it")
    with _errors():
        store = open_store()
        if watch:
            _names(store, views)
            options = store.config.online_store
            policy = SealPolicy(
                options.seal_share if share is None else share,
                options.seal_min_rows if min_rows is None else min_rows,
                options.seal == "job",
                is_url(options.path),
            )
            with _interrupted() as stop, nullcontext() if metrics_port is None else exported(metrics_port):
                maintenance.watch(store, views, stop, interval, lambda view: _tell(view, as_json), policy)
            return
        done = _each("Sealing", _names(store, views), lambda view: maintenance.seal(store, view))
    told = {True: "sealed", False: "not sealed: it has no rows, or another process is sealing it"}
    _print_outcomes({view: told[is_sealed] for view, is_sealed in done.items()}, as_json, "outcome")


@cli.command()
@click.argument("view")
@_JSON
@click.pass_obj
def refill(open_store: Callable[[], FeatureStore], view: str, as_json: bool) -> None:
    """Write a view's backed features to the backing store again.

    From the row log. Do so when that store lost rows, and after a feature became a backed one.
    """
    with _errors(), _progress(f"Filling the backing store with {view}") as tell:
        written = backing.refill(open_store(), view, tell)
    if as_json:
        _print_json({"view": view, "rows": written})
    else:
        click.echo(f"{written:,} rows written")


@cli.command()
@_VIEWS
@click.option(
    "--orphan-age",
    type=click.FloatRange(min=0),
    default=86_400.0,
    show_default=True,
    metavar="SECONDS",
    help="Remove data files that no commit names if they are older than this.",
)
@_JSON
@click.pass_obj
def vacuum(
    open_store: Callable[[], FeatureStore], views: Sequence[str], orphan_age: float, as_json: bool
) -> None:
    """Remove unused files.

    After a seal this removes the last trace of deleted rows.
    """
    with _errors():
        store, age = open_store(), timedelta(seconds=orphan_age)
        done = _each("Vacuuming", _names(store, views), lambda view: maintenance.vacuum(store, view, age))
    _print_outcomes(done, as_json, "files removed")


@cli.command()
@_VIEWS
@_JSON
@click.pass_obj
def verify(open_store: Callable[[], FeatureStore], views: Sequence[str], as_json: bool) -> None:
    """Check every file, and the snapshot against the row log.

    The exit status is 1 if anything is wrong.
    """
    found = {}
    with _errors():
        store = open_store()
        for view in _names(store, views):
            with _progress(f"Verifying {view}") as tell:
                found[view] = maintenance.verify(store, view, tell)
    if as_json:
        _print_json([{"view": view, **asdict(v), "is_sound": v.is_sound} for view, v in found.items()])
    else:
        columns = [
            "view",
            "commits",
            "rows",
            "snapshots",
            "entities compared",
            "facts compared",
        ]
        _print_table(
            [*columns, "leftovers", "problems"],
            [
                [
                    view,
                    *(f"{n:,}" for n in asdict(v).values() if isinstance(n, int)),
                    str(len(v.leftovers)),
                    str(len(v.problems)),
                ]
                for view, v in found.items()
            ],
        )
        for v in found.values():
            for problem in v.problems:
                click.echo(problem, err=True)
        for view, v in found.items():
            if v.leftovers:
                click.echo(
                    f"{view}: {len(v.leftovers)} files are left over from killed seals or rebuilds and may "
                    f"hold deleted rows; `feast-sketch vacuum {view}` removes them",
                    err=True,
                )
    if not all(v.is_sound for v in found.values()):
        sys.exit(1)


@cli.command("health")
@_VIEWS
@click.option("--live", is_flag=True, help="Check only that the repository can be read: for liveness probes.")
@click.option(
    "--max-staleness",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Instead of the store's max_staleness_seconds.",
)
@click.pass_obj
def health_command(
    open_store: Callable[[], FeatureStore], views: Sequence[str], live: bool, max_staleness: float | None
) -> None:
    """Tell probes whether this host can serve: one line of JSON.

    The exit status is 0 if all views are ready, 1 if one is not, and 2 if the repository cannot be read.
    """
    found: dict[str, ViewHealth] = {}
    problem = ""
    try:
        store = open_store()
        names = _names(store, views)
        if not live:
            found = health(store, names, max_staleness)
    except Exception as error:  # a probe tells what is wrong, whatever it is
        problem = error.message if isinstance(error, click.ClickException) else str(error)
    is_ready = not problem and all(view.is_ready for view in found.values())
    told: dict[str, Any] = {"status": "error" if problem else "ready" if is_ready else "not ready"}
    if live and is_ready:
        told["status"] = "live"
    if problem:
        told["problem"] = problem
    told["views"] = {name: asdict(view) for name, view in found.items()}
    click.echo(json.dumps(told))
    sys.exit(2 if problem else 0 if is_ready else 1)


@cli.command()
@click.argument("view")
@click.argument("version", type=click.IntRange(min=0), required=False)
@_JSON
@click.pass_obj
def pin(open_store: Callable[[], FeatureStore], view: str, version: int | None, as_json: bool) -> None:
    """Hold reads of a VIEW at a snapshot: the newest one, or that of a VERSION which inspect showed.

    Processes that serve follow within their refresh interval. Writes are kept and not shown, and no write
    seals, until unpin. So a bad fill is undone in one step.
    """
    with _errors():
        store = open_store()
        (name,) = _names(store, [view])
        pinned = maintenance.pin(store, name, version)
    _print_outcomes({name: pinned}, as_json, "pinned to version")


@cli.command()
@click.argument("view")
@_JSON
@click.pass_obj
def unpin(open_store: Callable[[], FeatureStore], view: str, as_json: bool) -> None:
    """Let reads of a VIEW follow the writes again."""
    with _errors():
        store = open_store()
        (name,) = _names(store, [view])
        was_pinned = maintenance.unpin(store, name)
    outcome = "follows the writes" if was_pinned else "was not pinned"
    _print_outcomes({name: outcome}, as_json, "outcome")


@cli.command()
@click.argument("views", nargs=-1, required=True, metavar="VIEW...")
@click.option(
    "--from", "start", type=_DATETIME, help="First event timestamp  [default: the view's ttl before --to]"
)
@click.option("--to", "end", type=_DATETIME, help="Last event timestamp  [default: now]")
@click.option("--yes", is_flag=True, help="Do not ask before rows are dropped that were only pushed.")
@_JSON
@click.pass_obj
def rebuild(
    open_store: Callable[[], FeatureStore],
    views: Sequence[str],
    start: datetime | None,
    end: datetime | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop all rows of a VIEW and fill it from the offline store.

    Readers get the old rows until the new ones are complete. Rows that are pushed meanwhile
    stay. Rows that were only pushed are dropped: the command prints how many, and asks before it goes on.
    """
    with _errors():
        store = open_store()
        done = {}
        for view in _names(store, views):
            click.echo(f"Rebuilding {view}", err=True)
            entities = maintenance.rebuild(
                store, view, _in_utc(start), _in_utc(end), None if yes else partial(_may_drop, view)
            )
            if entities is None:
                raise click.ClickException(f"{view} was not rebuilt; nothing of it has changed")
            done[view] = entities
    _print_outcomes(done, as_json, "entities")


@cli.command("import")
@click.argument("views", nargs=-1, required=True, metavar="VIEW...")
@click.option(
    "--from",
    "other",
    type=_FILE,
    required=True,
    metavar="OTHER_FEATURE_STORE_YAML",
    help="The feature_store.yaml of the repository whose online store has the rows.",
)
@click.option(
    "--keys",
    type=_FILE,
    metavar="FILE",
    help="Parquet file with a column for each join key, where the other store keeps hashes of keys.",
)
@click.option("--dry-run", is_flag=True, help="Read and check all rows, and change nothing.")
@_PACE
@_JSON
@click.pass_obj
def import_(
    open_store: Callable[[], FeatureStore],
    views: Sequence[str],
    other: Path,
    keys: Path | None,
    dry_run: bool,
    max_rows_per_second: float | None,
    as_json: bool,
) -> None:
    """Fill a VIEW with the rows that another online store of Feast has.

    The other store is only read. The rows appear in one step at the end, beside those that the view has; the
    newest row of an entity wins. An import that was interrupted goes on where it was when you run it again.
    """
    with _errors():
        store = open_store()
        done = []
        for view in _names(store, views):
            with _progress(f"Importing {view}") as tell:
                done.append(
                    importing.import_view(store, view, other, keys, dry_run, max_rows_per_second, tell)
                )
    if as_json:
        _print_json([asdict(imported) for imported in done])
        return
    _print_table(
        ["view", "from", "keys", "rows read", "changed meanwhile", "entities"],
        [
            [
                imported.view,
                imported.source,
                imported.keys,
                f"{imported.rows:,}",
                f"{imported.changed:,}",
                "-" if imported.entities is None else f"{imported.entities:,}",
            ]
            for imported in done
        ],
    )


@cli.command()
@click.option(
    "--from",
    "other",
    type=_FILE,
    required=True,
    metavar="OTHER_FEATURE_STORE_YAML",
    help="The feature_store.yaml of the repository whose online store to look at.",
)
@click.option("--view", "views", multiple=True, help="A feature view to look at  [default: all]")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=DEFAULT_SURVEY,
    show_default=True,
    metavar="N",
    help="Number of entities to read of each view.",
)
@_PACE
@_JSON
def survey(
    other: Path, views: Sequence[str], sample: int, max_rows_per_second: float | None, as_json: bool
) -> None:
    """Show what the views of another online store would become here, and what they would take.

    It reads a sample of the rows in the other store's own format, and writes nothing. Run it anywhere; it
    needs the other repository only.
    """
    progress = Progress(sys.stderr)
    found: list[SurveyedView] = []
    refused: list[str] = []
    with _errors():
        try:
            for result in survey_store(
                other,
                views,
                sample,
                max_rows_per_second,
                lambda view, rows: progress(f"Reading {view}", rows, 0),
            ):
                (refused if isinstance(result, str) else found).append(result)  # type: ignore[arg-type]
        finally:
            progress.end()
    if as_json:
        _print_json([asdict(view) for view in found])
    else:
        _print_table(_SURVEY_COLUMNS, [_survey_cells(view) for view in found])
        _print_table(
            ["view", "feature", "codec", "structure", "facts", "values", "because it is"],
            [
                [
                    view.view,
                    feature.name,
                    feature.codec,
                    feature.structure,
                    count_text(feature.facts),
                    "-" if feature.values is None else count_text(feature.values),
                    feature.why,
                ]
                for view in found
                for feature in view.features
            ],
        )
        for view in found:
            for note in view.notes:
                click.echo(f"{view.view}: {note}")
    for text in refused:
        click.echo(text, err=True)
    if refused:
        sys.exit(1)


_SURVEY_COLUMNS = [
    *("view", "from", "entities", "sampled", "oldest", "newest", "keys", "timestamps"),
    *("bytes there", "listpack 512", "bytes here", "ratio", "false/read"),
]


def _survey_cells(view: SurveyedView) -> list[str]:
    there, here = view.bytes_there, view.bytes_here
    return [
        view.view,
        view.source,
        count_text(view.entities),
        f"{view.sampled:,}",
        view.oldest,
        view.newest,
        view.keys,
        view.resolution,
        "-" if there is None else readable_bytes(there),
        "-" if view.bytes_listpack is None else readable_bytes(view.bytes_listpack),
        readable_bytes(here.value),
        "-" if there is None else f"1/{there / here.value:.1f}",
        f"{view.false_per_read:.2g}",
    ]


@cli.command()
@click.argument("source")
@click.argument("target")
@click.option("--view", "views", multiple=True, help="Copy this view; may be repeated  [default: all]")
@click.option("--yes", is_flag=True, help="Do not ask before rows of the target are dropped.")
@_JSON
@click.pass_obj
def copy(
    open_store: Callable[[], FeatureStore],
    source: str,
    target: str,
    views: Sequence[str],
    yes: bool,
    as_json: bool,
) -> None:
    """Copy the rows of views from the store at SOURCE to that at TARGET: folders, or URLs of buckets.

    Each view appears at the target in one step, and is then compared with the source. Run it again after it
    was cut: views that are the same on both sides are left alone.
    """
    with _errors():
        store = open_store()
        done = {}
        for view in _names(store, views):
            click.echo(f"Copying {view}", err=True)
            copied = copying.copy(store, view, source, target, None if yes else partial(_may_replace, view))
            if copied is None:
                raise click.ClickException(f"{view} was not copied; nothing of it has changed")
            done[view] = f"{copied.entities:,}{' (were there)' if copied.was_there else ''}"
    _print_outcomes(done, as_json, "entities")


def _may_replace(view: str, dropped: Dropped | None) -> bool:
    """Ask on the terminal; False where there is none."""
    what = (
        f"{view}: the rows of the target cannot be read, so those that the source lacks cannot be counted"
        if dropped is None
        else f"{view}: the target has {dropped.entities:,} entities that the source lacks, and newer rows of "
        f"{dropped.newer_rows:,} others"
    )
    click.echo(f"{what}. A copy drops them.", err=True)
    try:
        return click.confirm("Copy, and drop them? (--yes goes on without asking)", err=True)
    except click.Abort:
        return False


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


@cli.command()
@click.argument("view")
@click.argument("entities", nargs=-1, metavar="[KEY=VALUE[,KEY=VALUE]...]...")
@click.option(
    "--file",
    type=click.File(),
    help='JSON Lines with one entity per line: {"user_id": 7}; - for standard input.',
)
@_JSON
@click.pass_obj
def delete(
    open_store: Callable[[], FeatureStore],
    view: str,
    entities: Sequence[str],
    file: Any,
    as_json: bool,
) -> None:
    """Delete entities from a VIEW: feast-sketch delete history user_id=7

    Reads no longer find them: here at once, in other processes after their next refresh. To remove them from
    the disk as well, run seal and then vacuum. Remove them from the offline store first, or a materialize
    brings them back. Entities that the view does not have are listed; the rest is deleted all the same.
    """
    with _errors():
        store = open_store()
        (name,) = _names(store, [view])
        types = maintenance.join_key_types(store, name)
        rows = [_typed(_entity_row(text), types, text) for text in entities]
        if file is not None:
            rows += [
                _typed(_entity_object(line, number), types, f"line {number} of {file.name}")
                for number, line in enumerate(file, 1)
                if line.strip()
            ]
        if not rows:
            raise click.UsageError("name at least one entity, as KEY=VALUE or in --file")
        deleted = maintenance.delete(store, name, rows)
    if as_json:
        _print_json([{"view": view, **asdict(deleted)}])
        return
    _print_table(
        ["view", "entities deleted", "not found"], [[view, str(deleted.found), str(len(deleted.not_found))]]
    )
    for row in deleted.not_found[:_MOST_LISTED]:
        click.echo(f"not found: {','.join(f'{key}={value}' for key, value in row.items())}", err=True)
    if (more := len(deleted.not_found) - _MOST_LISTED) > 0:
        click.echo(f"... and {more:,} more; --json lists all", err=True)


def _size(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Bytes with a unit, such as 470MB; units are powers of 1000."""
    if text is None:
        return None
    try:
        return byte_count(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a size: {error}") from error


@cli.command()
@click.option("--view", required=True, help="The feature view to plan.")
@click.option("--false-per-read", type=float, metavar="X", help="Allow at most X false values per read.")
@click.option(
    "--noise-ratio", type=float, metavar="X", help="Allow at most X false values for each true one."
)
@click.option("--memory", callback=_size, metavar="SIZE", help="Allow at most SIZE bytes, such as 470MB.")
@click.option(
    "--auc",
    "labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Parquet file of labels: join keys, label, maybe split and candidate, and context features.",
)
@click.option(
    "--model",
    type=click.Choice(["logistic"]),
    default="logistic",
    show_default=True,
    help="Fitted to labels.",
)
@click.option("--offline", is_flag=True, help="Sample the offline source, even if the view has rows.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=DEFAULT_SAMPLE,
    show_default=True,
    metavar="N",
    help="Number of entities to sample.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the report goes  [default: VIEW.TARGET.plan.html]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def plan(
    open_store: Callable[[], FeatureStore],
    view: str,
    false_per_read: float | None,
    noise_ratio: float | None,
    memory: float | None,
    labels: Path | None,
    model: str,
    offline: bool,
    sample: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what a view costs in bytes and in accuracy, and which settings to take.

    Without a target it looks for what `error_rate: auto` would take. With labels it measures what each size
    costs a model, and chooses the values that the model needs; lists of them go to the folder `plans` of the
    feature repository.
    """
    with _errors():
        store = open_store()
        (name,) = _names(store, [view])
        target = PlanTarget(false_per_read, noise_ratio, memory, labels is not None)
        progress = Progress(sys.stderr)
        try:
            made = plan_view(store, name, target, labels, sample, offline, progress)
        finally:
            progress.end()
    report = html or Path(".".join(filter(None, (folder_name(name), target.name, "plan.html"))))
    _write_report(made, report)
    if as_json:
        _print_json(asdict(made))
        return
    click.echo(
        f"{name}: {made.num_entities:,} entities, {count_text(made.facts)} facts, "
        f"{_values_text(made)} values; {made.sampled_entities:,} entities sampled\n"
    )
    _print_table(_POINT_COLUMNS, [_point_cells(made, number) for number in range(len(made.points))])
    if made.auc_without is not None:
        click.echo(f"AUC without the features: {made.auc_without.value:.4f}\n")
    click.echo(f"Asked for: {made.target}.")
    if made.chosen is None:
        click.echo("Nothing chosen: the labels do not decide. See the first note.\n")
    else:
        chosen = made.points[made.chosen]
        click.echo(f"Chosen: {chosen.curve}, {chosen.label}.\n")
        if made.is_current:
            click.echo("The view has these settings already, or others that come to the same.\n")
        click.echo(indent(fields_text(made, chosen), "    ") + "\n")
    click.echo("\n".join(f"- {limit}" for limit in made.limits))
    click.echo(f"Report: {report}", err=True)


def _values_text(plan: Plan) -> str:
    """How many values all features have."""
    sizes = plan.vocabulary_sizes
    return " + ".join(count_text(size) for size in sizes.values())


def _write_report(plan: Plan, path: Path) -> None:
    try:
        path.write_text(to_html(plan), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: the report cannot be written: {error}") from error


@contextmanager
def _errors() -> Iterator[None]:
    """Print errors of the store as one line on standard error, and exit with status 1."""
    try:
        yield
    except (SketchStoreError, FeastError, FeastObjectNotFoundException, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _names(store: FeatureStore, views: Sequence[str]) -> list[str]:
    known = maintenance.views_of(store)
    unknown = [view for view in views if view not in known]
    if unknown:
        raise click.ClickException(
            f"project {store.project!r} has no feature view {unknown[0]!r} in its online store; "
            f"it has: {', '.join(known) or 'none'}"
        )
    return list(views) or known


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


def _tell(view: str, as_json: bool) -> None:
    """Print that a view was sealed, on a line of its own."""
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"view": view, "sealed_at": moment}) if as_json else f"{moment} {view}: sealed"
    click.echo(line)


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, and what to tell it: how much is done, and in all if that is known."""
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def tell(done: int, total: int | None) -> None:
            bar.length = max(1, total or done)
            bar.update(done - bar.pos)

        yield tell


def _each(label: str, views: Sequence[str], act: Callable[[str], T]) -> dict[str, T]:
    done = {}
    with click.progressbar(
        views, label=label, file=sys.stderr, item_show_func=lambda view: view or ""
    ) as remaining:
        for view in remaining:
            done[view] = act(view)
    return done


def _print_outcomes(done: dict[str, Any], as_json: bool, column: str) -> None:
    if as_json:
        _print_json([{"view": view, column.replace(" ", "_"): outcome} for view, outcome in done.items()])
    else:
        _print_table(["view", column], [[view, str(outcome)] for view, outcome in done.items()])


_FEATURE_COLUMNS = [
    *("view", "feature", "codec", "structure", "vocabulary", "facts", "facts cut", "memory"),
    *("expected rate", "sampled rate", "within, 95 %", "max error", "mean error"),
]
_VIEW_COLUMNS = [
    "view",
    "entities",
    "facts",
    "unsealed rows",
    "expired",
    "bits/fact",
    "in tables",
    "memory",
    "disk",
    "version",
    "snapshot age",
    "newest event",
    "unknown entities that read as rows",
]


_POINT_COLUMNS = [
    *(
        "structure",
        "",
        "memory",
        "bits/fact",
        "in tables",
        "false/read",
        "false/true",
        "facts kept",
        "AUC",
        "95 %",
    ),
    "remark",
]


def _point_cells(plan: Plan, number: int) -> list[str]:
    point = plan.points[number]
    remarks = [text for text, at in (("chosen", plan.chosen), ("knee", plan.knee)) if at == number]
    return [
        point.curve,
        point.label,
        memory_text(point),
        f"{point.bits_per_fact:.2f}",
        "-" if point.table_bits_per_fact is None else f"{point.table_bits_per_fact:.2f}",
        f"{point.false_per_read:.3g}",
        f"{point.noise_ratio:.2g}",
        f"{point.kept_share:.0%}",
        "-" if point.auc is None else f"{point.auc.value:.4f}",
        "-" if point.auc is None else f"{point.auc.low:.4f} - {point.auc.high:.4f}",
        ", ".join(remarks),
    ]


def _view_cells(report: ViewReport) -> list[str]:
    age = report.snapshot_age_seconds
    return [
        report.view,
        f"{report.entities:,}",
        f"{report.facts:,}",
        f"{report.unsealed_rows:,}",
        f"{report.expired_rows:,}",
        *(
            "-" if bits is None else f"{bits:.2f}"
            for bits in (report.bits_per_fact, report.table_bits_per_fact)
        ),
        readable_bytes(report.memory_bytes),
        readable_bytes(report.disk_bytes),
        _version(report),
        "-" if age is None else str(timedelta(seconds=int(age))),
        report.newest_event or "-",
        "-" if report.presence_sampled_rate is None else _rate(report.presence_sampled_rate),
    ]


def _version(report: ViewReport) -> str:
    version = "-" if report.snapshot_version is None else str(report.snapshot_version)
    return f"{version} (pinned)" if report.is_pinned else version


def _feature_cells(view: str, feature: FeatureReport) -> list[str]:
    errors = [feature.max_error, feature.mean_error]
    return [
        view,
        feature.name,
        feature.codec,
        feature.structure,
        "-" if feature.vocabulary is None else f"{feature.vocabulary:,}",
        f"{feature.facts:,}",
        f"{feature.facts_cut:,}",
        readable_bytes(feature.size_bytes),
        *map(_rate, (feature.expected_rate, feature.sampled_rate, feature.sampled_within)),
        *("-" if error is None else f"{error:.3g}" for error in errors),
    ]


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        align = ["left"] + ["right"] * (len(header) - 1)
        click.echo(tabulate(rows, header, "simple", colalign=align, disable_numparse=True) + "\n")


def _print_json(content: object) -> None:
    click.echo(json.dumps(content, indent=2))


def _rate(rate: float) -> str:
    return f"{rate:.2g}"


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _entity_row(text: str) -> dict[str, str]:
    """``a=1,b=x`` as a dictionary of strings."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        raise click.UsageError(f"{text!r} is not KEY=VALUE[,KEY=VALUE]...")
    return {key.strip(): value for key, _, value in pairs}


def _entity_object(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise click.UsageError(
            f"line {number} of --file is not a JSON object of join keys: {error}"
        ) from error


def _typed(row: Any, types: dict[str, str], where: str) -> dict[str, Any]:
    """Integers for integer join keys that came as text; the rest as it is."""
    if not isinstance(row, dict):
        raise click.UsageError(f"{where}: {row!r} is not a JSON object of join keys")
    typed = {}
    for key, value in row.items():
        is_text_of_integer = isinstance(value, str) and types.get(key, "").startswith("INT")
        try:
            typed[key] = int(value) if is_text_of_integer else value
        except ValueError as error:
            raise click.UsageError(
                f"{where}: join key {key!r} is {types[key]}, and {value!r} is no whole number. "
                "Nothing was deleted"
            ) from error
    return typed
