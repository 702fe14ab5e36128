"""The commands that only read: ``inspect``, ``verify`` and ``health``."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from shlex import quote
from typing import Any

import click

from feast_sketch_store.cli.common import (
    JSON_OPTION,
    VIEWS_ARGUMENT,
    OpenStore,
    Seconds,
    cells,
    end_if,
    or_dash,
    print_json,
    print_table,
    progress_bar,
    report_unfilled,
    views_of,
)
from feast_sketch_store.errors import DamagedFileError, counted
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.health import ViewHealth, health
from feast_sketch_store.operations.maintenance import FeatureReport, ViewReport
from feast_sketch_store.operations.verification import Verification
from feast_sketch_store.planning.report import readable_bytes
from feast_sketch_store.settings.table import markdown


@click.command()
@VIEWS_ARGUMENT
@JSON_OPTION
@click.pass_obj
def inspect(open_store: OpenStore, views: Sequence[str], as_json: bool) -> None:
    """Show sizes, error rates and ages.

    Unsealed rows count. bits/fact is the size of the snapshot per sealed value; "in tables" is the part in
    tables, sets and static functions. "private" is the memory that a reading process takes in addition to the
    snapshot, which all processes of a host share.
    """
    store = open_store()
    views = views_of(store, views)
    report_unfilled(store, views)
    reports, failed = maintenance.inspect_all(store, views)
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        print_table(_VIEW_COLUMNS, cells(_VIEW_COLUMNS, reports))
        print_table(
            ["view", *_FEATURE_COLUMNS],
            [[report.view, *row] for report in reports for row in cells(_FEATURE_COLUMNS, report.features)],
        )
        print_table(
            ["view", "structure", "memory"],
            [
                [report.view, structure, readable_bytes(size)]
                for report in reports
                for structure, size in report.structure_bytes.items()
            ],
        )
    end_if(failed)


_VIEW_COLUMNS: dict[str, Callable[[ViewReport], str]] = {
    "view": lambda report: report.view,
    "entities": lambda report: f"{report.entities:,}",
    "facts": lambda report: f"{report.facts:,}",
    "unsealed rows": lambda report: f"{report.unsealed_rows:,}",
    "expired": lambda report: f"{report.expired_rows:,}",
    "bits/fact": lambda report: or_dash(report.bits_per_fact, "{:.2f}".format),
    "in tables": lambda report: or_dash(report.table_bits_per_fact, "{:.2f}".format),
    "memory": lambda report: readable_bytes(report.memory_bytes),
    "private": lambda report: or_dash(report.private_bytes, readable_bytes),
    "disk": lambda report: readable_bytes(report.disk_bytes),
    "version": lambda report: _version(report),
    "snapshot age": lambda report: or_dash(
        report.snapshot_age_seconds, lambda s: str(timedelta(seconds=int(s)))
    ),
    "newest event": lambda report: or_dash(report.newest_event),
    "unknown entities that read as rows": lambda report: or_dash(report.presence_sampled_rate, _rate),
}
_FEATURE_COLUMNS: dict[str, Callable[[FeatureReport], str]] = {
    "feature": lambda feature: feature.name,
    "codec": lambda feature: feature.codec,
    "structure": lambda feature: feature.structure,
    "vocabulary": lambda feature: or_dash(feature.vocabulary, "{:,}".format),
    "facts": lambda feature: f"{feature.facts:,}",
    "facts cut": lambda feature: f"{feature.facts_cut:,}",
    "memory": lambda feature: readable_bytes(feature.size_bytes),
    "expected rate": lambda feature: _rate(feature.expected_rate),
    "sampled rate": lambda feature: _rate(feature.sampled_rate),
    "within, 95 %": lambda feature: _rate(feature.sampled_within),
    "max error": lambda feature: or_dash(feature.max_error, "{:.3g}".format),
    "mean error": lambda feature: or_dash(feature.mean_error, "{:.3g}".format),
    "version": lambda feature: or_dash(feature.version),
}


def _version(report: ViewReport) -> str:
    versions = [or_dash(version) for version in report.snapshot_versions]
    version = ",".join(versions) if {*versions} != {"-"} else "-"
    return f"{version} (pinned)" if report.is_pinned else version


def _rate(rate: float) -> str:
    return f"{rate:.2g}"


@click.command()
@VIEWS_ARGUMENT
@JSON_OPTION
@click.pass_obj
def verify(open_store: OpenStore, views: Sequence[str], as_json: bool) -> None:
    """Check every file, and the snapshot against the row log.

    The exit status is 1 if anything is wrong.
    """
    found = {}
    store = open_store()
    views = views_of(store, views)
    report_unfilled(store, views)
    for view in views:
        try:
            with progress_bar(f"Verifying {view}") as progress:
                found[view] = maintenance.verify(store, view, progress)
        except DamagedFileError as error:  # the view cannot be opened
            found[view] = Verification(problems=[str(error)])
    if as_json:
        print_json([{"view": view, **asdict(v), "is_sound": v.is_sound} for view, v in found.items()])
    else:
        columns = ["view", "commits", "rows", "snapshots", "entities compared", "facts compared"]
        print_table(
            [*columns, "format versions", "leftovers", "problems"],
            [
                [
                    view,
                    *(f"{n:,}" for n in asdict(v).values() if isinstance(n, int)),
                    ", ".join(f"{kind} {_joined(versions)}" for kind, versions in v.format_versions.items())
                    or "-",
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
                them = "it" if len(v.leftovers) == 1 else "them"
                click.echo(
                    f"{view}: {counted(len(v.leftovers), 'unused file')} may hold deleted rows; "
                    f"`feast-sketch vacuum {quote(view)}` removes {them}",
                    err=True,
                )
    if not all(v.is_sound for v in found.values()):
        sys.exit(1)


def _joined(versions: Sequence[int]) -> str:
    return " and ".join(map(str, versions))


@click.command("health")
@VIEWS_ARGUMENT
@click.option("--live", is_flag=True, help="Check only that the repository can be read: for liveness probes.")
@click.option(
    "--max-staleness",
    type=Seconds(min_open=True),
    metavar="SECONDS",
    help="Use this in place of the store's `refresh: {max_staleness}`.",
)
@click.pass_obj
def health_command(
    open_store: OpenStore, views: Sequence[str], live: bool, max_staleness: float | None
) -> None:
    """Show probes whether this host can serve, as one line of JSON.

    The exit status is 0 if all views are ready, 1 if one is not, and 2 if the repository cannot be read.
    """
    found: dict[str, ViewHealth] = {}
    problem = reason = ""
    try:
        store = open_store()
        names = views_of(store, views)
        if not names:
            reason = "the repository has no feature views in this store; run `feast apply`"
        if not live:
            found = health(store, names, max_staleness)
    except Exception as error:  # a probe reports what is wrong, whatever it is
        problem = error.message if isinstance(error, click.ClickException) else str(error)
    is_ready = not problem and (live or not reason) and all(view.is_ready for view in found.values())
    answer: dict[str, Any] = {"status": "error" if problem else "ready" if is_ready else "not ready"}
    if live and is_ready:
        answer["status"] = "live"
    if problem or reason:
        answer["problem"] = problem or reason
    answer["views"] = {name: asdict(view) for name, view in found.items()}
    click.echo(json.dumps(answer))
    sys.exit(2 if problem else 0 if is_ready else 1)


@click.command()
@click.argument("kind", type=click.Choice(["options", "tags"]), required=False)
def settings(kind: str | None) -> None:
    """Print all options and tags."""
    click.echo("\n\n".join(markdown(each) for each in ([kind] if kind else ["options", "tags"])))
