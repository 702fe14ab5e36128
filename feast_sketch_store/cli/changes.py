"""The commands that tell what changed: ``diff`` and ``history``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from feast import FeatureStore

from feast_sketch_store.cli import change_pages as pages
from feast_sketch_store.cli.common import JSON_OPTION, print_json, print_table, store_with
from feast_sketch_store.cli.rows import entity_row_of
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.entity_history import entity_history
from feast_sketch_store.operations.versions import diff

_HTML_OPTION = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with pictures.",
)


@click.command("diff")
@click.argument("view")
@click.argument("before", metavar="[V1", required=False)
@click.argument("after", metavar="V2]", required=False)
@_HTML_OPTION
@JSON_OPTION
@click.pass_obj
def diff_command(
    open_store: Callable[[], FeatureStore],
    view: str,
    before: str | None,
    after: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what changed between two versions of a VIEW.

    V1 and V2 are versions that inspect shows, with commas between those of several shards, or "now", which
    has the rows since the last seal, too. Without them, the last snapshot is compared with the one before; if
    there is but one, with "now". All rows of both versions are read.
    """
    store = store_with(open_store, view)
    found = diff(maintenance.opened_view(store, view), before, after)
    _write(html, lambda: pages.diff_page(found))
    if as_json:
        print_json(pages.as_json(found))
        return
    print_table(
        [view, f"version {found.before}", f"version {found.after}", "change"], pages.summary_cells(found)
    )
    print_table(
        ["feature", "structure before", "after", "error rate before", "after"],
        [pages.structure_cells(feature) for feature in found.features],
    )
    for feature in found.features:
        rows = [pages.mover_cells(mover) for mover in feature.values]
        print_table([f"values of {feature.name} that moved most", "before", "after", "change"], rows)
    print_table(
        ["entities that moved most", "facts before", "after", "change"],
        [pages.mover_cells(mover) for mover in found.movers],
    )


@click.command("history")
@click.argument("view")
@click.argument("entity", metavar="KEY=VALUE[,KEY=VALUE]...")
@_HTML_OPTION
@JSON_OPTION
@click.pass_obj
def history_command(
    open_store: Callable[[], FeatureStore], view: str, entity: str, html: Path | None, as_json: bool
) -> None:
    """Show the rows of an entity, and what reads showed.

    For example: feast-sketch history clicks user_id=7

    A row has its commit, its event timestamp, and whether it is sealed. Values that a filter shows now and
    that nobody wrote are listed apart. A compaction removes rows that were replaced from the log.
    """
    store = store_with(open_store, view)
    row: Mapping[str, Any] = entity_row_of(entity, maintenance.join_key_types(store, view))
    found = entity_history(store, view, row)
    _write(html, lambda: pages.history_page(found))
    if as_json:
        print_json(pages.as_json(found))
        return
    if not found.rows:
        click.echo(f"{view}: the row log has no row of {found.entity}")
    print_table(
        ["commit", "event", "sealed", "written", "reads showed"], [pages.row_cells(row) for row in found.rows]
    )
    print_table(
        ["feature", "reads show now", "of it not written"],
        [
            [feature, str(value), str(found.not_written.get(feature, ""))]
            for feature, value in (found.shown or {}).items()
        ],
    )


def _write(path: Path | None, page: Callable[[], str]) -> None:
    if path is not None:
        path.write_text(page(), "utf-8")
        click.echo(f"written to {path}", err=True)
