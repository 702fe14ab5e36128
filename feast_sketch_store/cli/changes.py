"""The commands that show what changed: ``diff`` and ``history``, with their pages."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import click

from feast_sketch_store.cli import pages
from feast_sketch_store.cli.common import JSON_OPTION, OpenStore, print_json, print_table, store_with
from feast_sketch_store.cli.upkeep import entity_row_of
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.entity_history import EntityHistory, LoggedRow, entity_history
from feast_sketch_store.operations.versions import FeatureDiff, Mover, ViewDiff, diff
from feast_sketch_store.planning.report import readable_bytes

_HTML_OPTION = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with pictures.",
)


@click.command("diff")
@click.argument("view")
@click.argument("before", metavar="[V1", required=False)
@click.argument("after", metavar="[V2]]", required=False)
@_HTML_OPTION
@JSON_OPTION
@click.pass_obj
def diff_command(
    open_store: OpenStore,
    view: str,
    before: str | None,
    after: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what changed between two versions of a VIEW.

    V1 and V2 are versions that inspect shows, with commas between those of several shards, or "now", which
    has the rows since the last seal, too. V1 alone is compared with "now". Without them, the last snapshot is
    compared with the one before; if there is but one, with "now". All rows of both versions are read.
    """
    store = store_with(open_store, view)
    found = diff(maintenance.opened_view(store, view), before, after)
    if as_json:
        print_json(asdict(found))
    else:
        _print_diff(found)
    _write(html, lambda: _diff_page(found))


def _print_diff(found: ViewDiff) -> None:
    print_table(
        [found.view, f"version {found.before}", f"version {found.after}", "change"], _summary_cells(found)
    )
    print_table(
        ["feature", "structure before", "after", "error rate before", "after"],
        [_structure_cells(feature) for feature in found.features],
    )
    for feature in found.features:
        rows = [_mover_cells(mover) for mover in feature.values]
        print_table([f"values of {feature.name} that moved most", "before", "after", "change"], rows)
    print_table(
        ["entities that moved most", "facts before", "after", "change"],
        [_mover_cells(mover) for mover in found.movers],
    )


@click.command("history")
@click.argument("view")
@click.argument("entity", metavar="KEY=VALUE[,KEY=VALUE]...")
@_HTML_OPTION
@JSON_OPTION
@click.pass_obj
def history_command(open_store: OpenStore, view: str, entity: str, html: Path | None, as_json: bool) -> None:
    """Show the rows of an entity, and what reads showed.

    For example: feast-sketch history clicks user_id=7, or as a JSON object '{"user_id": 7}'

    A row has its commit, its event timestamp, and whether it is sealed. Values that a filter shows now and
    that nobody wrote are listed apart. A compaction removes rows that were replaced from the log.
    """
    store = store_with(open_store, view)
    row: Mapping[str, Any] = entity_row_of(entity, maintenance.join_key_types(store, view))
    found = entity_history(store, view, row)
    if as_json:
        print_json(asdict(found))
    else:
        _print_history(found)
    _write(html, lambda: _history_page(found))


def _print_history(found: EntityHistory) -> None:
    if not found.rows:
        click.echo(f"{found.view}: the row log has no row of {found.entity}")
    print_table(
        ["commit", "event", "sealed", "written", "reads showed"], [_row_cells(row) for row in found.rows]
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
        pages.write(path, page())
        click.echo(f"written to {path}", err=True)


def _diff_page(found: ViewDiff) -> str:
    """The page of two versions, to be written as UTF-8."""
    features = found.features
    rates = [f for f in features if f.before.error_rate is not None or f.after.error_rate is not None]
    body = [
        f"<h1>Changes of <code>{escape(found.view)}</code></h1>",
        f'<p class="muted"><span class="key before">version {escape(found.before)}</span> and '
        f'<span class="key after">version {escape(found.after)}</span>, as reads show them.</p>',
        pages.table("summary", ("", "before", "after", "change"), _summary_cells(found)),
        "<h2>Facts</h2>",
        pages.bars("facts", [(f.name, f.before.facts, f.after.facts) for f in features], "{:,}".format),
        "<h2>Bytes of sealed rows</h2>",
        pages.bars(
            "sizes", [(f.name, f.before.size_bytes, f.after.size_bytes) for f in features], readable_bytes
        ),
        "<h2>Structures and error rates</h2>",
        pages.table(
            "structures",
            ("feature", "before", "after", "error rate before", "after"),
            [_structure_cells(feature) for feature in features],
        ),
        pages.bars(
            "rates",
            [(f.name, f.before.error_rate or 0.0, f.after.error_rate or 0.0) for f in rates],
            "{:.2g}".format,
        ),
    ]
    for feature in features:
        names = [
            *feature.before.lengths,
            *(n for n in feature.after.lengths if n not in feature.before.lengths),
        ]
        pairs = [(n, feature.before.lengths.get(n, 0), feature.after.lengths.get(n, 0)) for n in names]
        name = escape(feature.name)
        body += [
            f"<h2>Rows by the number of <code>{name}</code> they have</h2>",
            pages.bars(f"lengths of {feature.name}", [p for p in pairs if p[1] or p[2]], "{:,}".format),
            f"<h2>Values of <code>{name}</code> that moved most</h2>",
            _movers(f"values of {feature.name}", feature.values),
        ]
    body += ["<h2>Entities that moved most</h2>", _movers("entities", found.movers)]
    return pages.page(f"Changes of {found.view}", body)


def _history_page(found: EntityHistory) -> str:
    """The page of an entity, to be written as UTF-8."""
    names = sorted({name for row in found.rows for name in row.shown or {}})
    body = [
        f"<h1>{escape(found.entity)} in <code>{escape(found.view)}</code></h1>",
        f'<p class="muted">Shard {found.shard}; commits that its snapshot covers: '
        f"{found.snapshot_version or 0:,}.</p>",
        "<h2>Reads show now</h2>",
        "<p>No row.</p>"
        if found.shown is None
        else pages.table("now", ("feature", "value"), _named(found.shown)),
    ]
    if found.not_written:
        body += ["<h2>Shown by a filter, never written</h2>"]
        body += [pages.table("not written", ("feature", "values"), _named(found.not_written))]
    body += [
        "<h2>Rows, in the order of commits</h2>",
        pages.table(
            "rows", ("commit", "event", "sealed", "written", "reads showed"), map(_row_cells, found.rows)
        ),
    ]
    for name in names:
        pairs = [(f"commit {row.commit}", 0, _length((row.shown or {}).get(name))) for row in found.rows]
        body += [f"<h2>Values of <code>{escape(name)}</code> that reads showed</h2>"]
        body += [pages.bars(f"lengths of {name}", pairs, "{:,}".format)]
    return pages.page(f"{found.entity} in {found.view}", body)


def _movers(name: str, movers: Sequence[Mover]) -> str:
    if not movers:
        return "<p>None: all have as many facts as before.</p>"
    return pages.table(name, ("", "facts before", "after", "change"), map(_mover_cells, movers))


def _summary_cells(found: ViewDiff) -> list[list[str]]:
    """What a view has in both versions."""
    (old, new), (old_bytes, new_bytes) = found.entities, found.size_bytes
    return [
        ["entities", f"{old:,}", f"{new:,}", _change_text(old, new)],
        ["... added", "", f"{found.added:,}", ""],
        ["... removed", f"{found.removed:,}", "", ""],
        ["... replaced", "", f"{found.replaced:,}", ""],
        *(
            [
                f"facts of {f.name}",
                f"{f.before.facts:,}",
                f"{f.after.facts:,}",
                _change_text(f.before.facts, f.after.facts),
            ]
            for f in found.features
        ),
        ["memory", readable_bytes(old_bytes), readable_bytes(new_bytes), _change_text(old_bytes, new_bytes)],
    ]


def _structure_cells(feature: FeatureDiff) -> list[str]:
    """The structures of a feature and their error rates."""
    versions = feature.before, feature.after
    rates = ["-" if each.error_rate is None else f"{each.error_rate:.2g}" for each in versions]
    return [feature.name, *(each.structure or "-" for each in versions), *rates]


def _mover_cells(mover: Mover) -> list[str]:
    """An entity or a value that moved."""
    return [mover.name, f"{mover.before:,}", f"{mover.after:,}", _change_text(mover.before, mover.after)]


def _row_cells(row: LoggedRow) -> list[str]:
    """A row of an entity."""
    written = "the entity is deleted" if row.is_deletion else _json(row.values)
    shown = "no row" if row.shown is None else _json(row.shown)
    return [row.commit, row.event_timestamp or "-", "yes" if row.is_sealed else "no", written, shown]


def _change_text(before: float, after: float) -> str:
    """How much something changed, in percent of what it was."""
    return f"{100 * (after - before) / before:+.1f} %" if before else "-" if not after else "new"


def _named(values: Mapping[str, Any]) -> list[list[str]]:
    return [[name, _json(value)] for name, value in values.items()]


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else int(value is not None)
