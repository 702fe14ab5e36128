"""The commands for rows of other online stores: ``survey``, ``import`` and ``export``."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

import click
from click.decorators import FC

from feast_sketch_store.bridges import exporting, importing
from feast_sketch_store.bridges.survey import DEFAULT_SAMPLE as DEFAULT_SURVEY
from feast_sketch_store.bridges.survey import SurveyedFeature, SurveyedView
from feast_sketch_store.bridges.survey import survey as survey_store
from feast_sketch_store.cli import pages
from feast_sketch_store.cli.common import (
    FILE,
    JSON_OPTION,
    SOME_VIEWS,
    OpenStore,
    cells,
    or_dash,
    print_json,
    print_outcomes,
    print_table,
    progress_bar,
    progress_of_steps,
    views_of,
)
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.report import bytes_text, count_text, readable_bytes

_MAX_LISTED = 20  # rows that were left out


def _other(name: str, help_text: str) -> Callable[[FC], FC]:
    """The option that names the repository of another store."""
    return click.option(
        name, "other", type=FILE, required=True, metavar="OTHER_FEATURE_STORE_YAML", help=help_text
    )


_PACE = click.option(
    "--max-rows-per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="Read the other store at most this fast.",
)


@click.command("import")
@SOME_VIEWS
@_other("--from", "The feature_store.yaml of the repository whose online store has the rows.")
@click.option(
    "--keys",
    type=FILE,
    metavar="FILE",
    help="Parquet file with a column for each join key, where the other store keeps hashes of keys.",
)
@click.option("--dry-run", is_flag=True, help="Read and check all rows, and change nothing.")
@click.option("--skip-bad", is_flag=True, help="Leave out rows that the view cannot keep, and list them.")
@_PACE
@JSON_OPTION
@click.pass_obj
def import_(
    open_store: OpenStore,
    views: Sequence[str],
    other: Path,
    keys: Path | None,
    dry_run: bool,
    skip_bad: bool,
    max_rows_per_second: float | None,
    as_json: bool,
) -> None:
    """Fill a VIEW with the rows of another online store of Feast.

    The other store is only read. The rows appear in one step at the end, and the view keeps its own; the
    newest row of an entity wins. Run an interrupted import again to continue it.
    """
    store = open_store()
    done = []
    for view in views_of(store, views):
        with progress_bar(f"Importing {view}") as progress:
            done.append(
                importing.import_view(
                    store, view, other, keys, dry_run, max_rows_per_second, progress, skip_bad
                )
            )
    if as_json:
        print_json([asdict(imported) for imported in done])
        return
    print_table(_IMPORT_COLUMNS, cells(_IMPORT_COLUMNS, done))
    for imported in done:
        for number, (key, reason) in enumerate(imported.skipped.items()):
            if number == _MAX_LISTED:
                click.echo(f"... --json lists {len(imported.skipped):,} of them", err=True)
                break
            click.echo(f"{imported.view}: left out {key}: {reason}", err=True)


_IMPORT_COLUMNS: dict[str, Callable[[importing.Imported], str]] = {
    "view": lambda imported: imported.view,
    "from": lambda imported: imported.source,
    "keys": lambda imported: imported.keys,
    "rows read": lambda imported: f"{imported.rows:,}",
    "changed meanwhile": lambda imported: f"{imported.changed:,}",
    "left out": lambda imported: f"{imported.num_skipped:,}",
    "entities": lambda imported: or_dash(imported.entities, "{:,}".format),
}


@click.command()
@SOME_VIEWS
@_other("--to", "The feature_store.yaml with the online store that the rows go to.")
@JSON_OPTION
@click.pass_obj
def export(open_store: OpenStore, views: Sequence[str], other: Path, as_json: bool) -> None:
    """Write the rows of a VIEW into another online store of Feast.

    The rows are exact: they come from the row log. Lists, counts and sets are written as a read shows them;
    rows that have expired are left out. Rows of other entities in the other store stay. Run an interrupted
    export again.
    """
    store, done = open_store(), {}
    for view in views_of(store, views):
        with progress_bar(f"Exporting {view}") as progress:
            done[view] = exporting.export(store, view, other, progress)
    print_outcomes(done, as_json, "rows")


@click.command()
@_other("--from", "The feature_store.yaml of the repository whose online store to survey.")
@click.option("--view", "views", multiple=True, help="A feature view to survey  [default: all]")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=DEFAULT_SURVEY,
    show_default=True,
    metavar="N",
    help="Number of entities to read of each view.",
)
@_PACE
@JSON_OPTION
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the tables as a page, too.",
)
def survey(
    other: Path,
    views: Sequence[str],
    sample: int,
    max_rows_per_second: float | None,
    as_json: bool,
    html: Path | None,
) -> None:
    """Show how this store would keep the views of another store.

    It also shows in how many bytes. It reads a sample of the rows in the other store's own format, and writes
    nothing. It needs only the other repository.
    """
    found: list[SurveyedView] = []
    refused: list[str] = []
    with progress_of_steps() as progress:
        for result in survey_store(
            other,
            views,
            sample,
            max_rows_per_second,
            lambda view, rows: progress(f"Reading {view}", rows, sample),
        ):
            (refused if isinstance(result, str) else found).append(result)  # type: ignore[arg-type]
    views_table = cells(_SURVEY_COLUMNS, found)
    of_features = ["view", *_FEATURE_COLUMNS]
    features_table = [[view.view, *row] for view in found for row in cells(_FEATURE_COLUMNS, view.features)]
    notes = [f"{view.view}: {note}" for view in found for note in view.notes]
    if as_json:
        print_json([asdict(view) for view in found])
    else:
        print_table(_SURVEY_COLUMNS, views_table)
        print_table(of_features, features_table)
        for note in notes:
            click.echo(note)
    for text in refused:
        click.echo(text, err=True)
    if html is not None:
        items = "".join(f"<li>{escape(text)}</li>" for text in (*notes, *refused))
        body = [
            f"<h1>Survey of {escape(str(other))}</h1>",
            "<h2>Views</h2>",
            pages.table("views", [*_SURVEY_COLUMNS], views_table),
            "<h2>Features</h2>",
            pages.table("features", of_features, features_table),
            f"<ul>{items}</ul>",
        ]
        pages.write(html, pages.page(f"Survey of {other}", body))
    if refused:
        sys.exit(1)


_SURVEY_COLUMNS: dict[str, Callable[[SurveyedView], str]] = {
    "view": lambda view: view.view,
    "from": lambda view: view.source,
    "entities": lambda view: count_text(view.entities),
    "sampled": lambda view: f"{view.sampled:,}",
    "oldest": lambda view: view.oldest,
    "newest": lambda view: view.newest,
    "keys": lambda view: view.keys,
    "timestamps": lambda view: view.resolution,
    "bytes there": lambda view: or_dash(view.bytes_there, bytes_text),
    "listpack 512": lambda view: or_dash(view.bytes_listpack, readable_bytes),
    "bytes here": lambda view: bytes_text(view.bytes_here),
    "ratio": lambda view: or_dash(view.ratio, _ratio_text),
    "false/read": lambda view: f"{view.false_per_read:.2g}",
}
_FEATURE_COLUMNS: dict[str, Callable[[SurveyedFeature], str]] = {
    "feature": lambda feature: feature.name,
    "codec": lambda feature: feature.codec,
    "structure": lambda feature: feature.structure,
    "facts": lambda feature: count_text(feature.facts),
    "values": lambda feature: or_dash(feature.values, count_text),
    "because it is": lambda feature: feature.why,
}


def _ratio_text(ratio: Estimate) -> str:
    text = f"1/{ratio.value:.1f}"
    return text if ratio.is_known else f"{text} (1/{ratio.low:.1f} to 1/{ratio.high:.1f})"
