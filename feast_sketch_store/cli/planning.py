"""The command ``plan``."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from textwrap import indent

import click

from feast_sketch_store.cli import pages
from feast_sketch_store.cli.common import (
    FILE,
    OpenStore,
    cells,
    or_dash,
    print_json,
    print_table,
    progress_of_steps,
    report_unfilled,
    store_with,
)
from feast_sketch_store.errors import counted
from feast_sketch_store.planning.choice import PlanTarget
from feast_sketch_store.planning.plan import Estimate, Plan, Point
from feast_sketch_store.planning.planner import DEFAULT_SAMPLE, plan_view
from feast_sketch_store.planning.report import count_text, fields_text, memory_text, readable_bytes, to_html
from feast_sketch_store.settings.values import size
from feast_sketch_store.storage.names import folder_name


def _name_of(target: PlanTarget) -> str:
    """A target as part of a file name; empty without a target."""
    limits = {"noise-ratio": target.noise_ratio, "memory": target.memory_bytes}
    parts = ["auc"] * target.auc
    parts += [f"{limit}-{amount:.12g}" for limit, amount in limits.items() if amount is not None]
    return "-".join(parts)


def _size(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Bytes with a unit, such as 470MB; units are powers of 1000."""
    if text is None:
        return None
    try:
        return float(size(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a size: {error}") from error


@click.command()
@click.option("--view", required=True, help="The feature view to plan.")
@click.option(
    "--noise-ratio", type=float, metavar="X", help="Allow at most X false values for each true one."
)
@click.option("--memory", callback=_size, metavar="SIZE", help="Allow at most SIZE bytes, such as 470MB.")
@click.option(
    "--auc",
    "labels",
    type=FILE,
    metavar="FILE",
    help="Parquet file of labels: join keys, label, maybe split and candidate, and context features.",
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
    help="Where the report goes  [default: VIEW[.TARGET].plan.html]",
)
@click.option("--all", "show_all", is_flag=True, help="Show all points, and the notes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def plan(
    open_store: OpenStore,
    view: str,
    noise_ratio: float | None,
    memory: float | None,
    labels: Path | None,
    offline: bool,
    sample: int,
    html: Path | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show what sizes of a view cost, and what to set.

    The first sentence says what to do. Without a target it is what `target: auto` would choose. With
    labels it measures what each size costs a model, and chooses the values that the model needs. It writes
    lists of these values to the folder `plans` of the feature repository.
    """
    store = store_with(open_store, view)
    if not offline:
        report_unfilled(store, [view], "; sampling its offline source, which is read as a whole")
    target = PlanTarget(noise_ratio, memory, labels is not None)
    with progress_of_steps() as on_progress:
        made = plan_view(store, view, target, labels, sample, offline, on_progress)
    if as_json:
        print_json(asdict(made))
    else:
        _print(made, show_all)
    # At the end: what took minutes is not lost where the page cannot be written.
    report = html or Path(".".join(filter(None, (folder_name(view), _name_of(target), "plan.html"))))
    pages.write(report, to_html(made))
    if not as_json:
        click.echo(f"Report: {report}", err=True)


def _print(made: Plan, show_all: bool) -> None:
    click.echo(_advice(made) + "\n")
    if made.chosen is not None and not made.is_current:
        click.echo(indent(fields_text(made, made.points[made.chosen]), "    ") + "\n")
    values = " + ".join(map(count_text, made.vocabulary_sizes.values()))
    click.echo(
        f"{counted(made.num_entities, 'entity')}, {count_text(made.facts)} facts, {values} values; "
        f"{counted(made.sampled_entities, 'entity')} sampled. Asked for: {made.target}."
    )
    if made.auc_without is not None:
        click.echo(f"AUC without the features: {made.auc_without.value:.4f}.")
    if show_all:
        click.echo()
        points = cells(_POINT_COLUMNS, made.points)
        rows = [[*point, ", ".join(made.marks(number))] for number, point in enumerate(points)]
        print_table([*_POINT_COLUMNS, "remark"], rows)
        click.echo("\n".join(f"- {limit}" for limit in made.limits))
    else:
        click.echo(f"{len(made.points)} points were compared; --all shows them, and the notes.")


def _advice(plan: Plan) -> str:
    """What to do, in one sentence."""
    if plan.chosen is None:
        return f"{plan.view}: the labels do not decide. {plan.limits[0]}"
    point = plan.points[plan.chosen]
    chosen = (
        f"{point.curve}, {point.label}: {memory_text(point)}, {point.false_per_read:.3g} false values a read"
    )
    if plan.is_current:
        return f"{plan.view}: keep what you have ({chosen}). These settings are there already, or equivalent."
    change = f"{plan.view}: set the tags below ({chosen})"
    if plan.saved_bytes is None or not round(plan.saved_bytes):
        return f"{change}."
    size = readable_bytes(abs(plan.saved_bytes))
    return (
        f"{change}. They take {size} {'less' if plan.saved_bytes > 0 else 'more'} than the current settings."
    )


_POINT_COLUMNS: dict[str, Callable[[Point], str]] = {
    "structure": lambda point: point.curve,
    "": lambda point: point.label,
    "memory": memory_text,
    "bits/fact": lambda point: f"{point.bits_per_fact:.2f}",
    "in tables": lambda point: or_dash(point.table_bits_per_fact, "{:.2f}".format),
    "false/read": lambda point: f"{point.false_per_read:.3g}",
    "false/true": lambda point: f"{point.noise_ratio:.2g}",
    "facts kept": lambda point: f"{point.kept_share:.0%}",
    "AUC": lambda point: or_dash(point.auc, lambda auc: f"{auc.value:.4f}"),
    "95 %": lambda point: or_dash(point.auc, lambda auc: f"{auc.low:.4f} - {auc.high:.4f}"),
    "uplift kept": lambda point: or_dash(point.uplift, _share),
}


def _share(uplift: Estimate) -> str:
    return f"{uplift.value:.1%} ({uplift.low:.0%} - {uplift.high:.0%})"
