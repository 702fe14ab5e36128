"""Prints pages of ``docs/reference`` from the code; `.ci/check-docs` compares or writes them."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from feast_sketch_store import errors, metrics
from feast_sketch_store.cli import cli
from feast_sketch_store.settings.table import markdown

_ROOT = Path(__file__).parents[1]
_PRINTED = "<!-- Printed from the code by `.ci/check-docs --write`: change the code, not this page. -->"

_SETTINGS = """\
# Options and tags

Set options in the `online_store` section of `feature_store.yaml`, and tags on a `FeatureView` or a `Field`.
An unknown name or a wrong value fails when Feast loads the file, or at `feast apply`; the error lists the
known names, the nearest first. `feast-sketch settings` prints these tables.

The parts of a mapping follow it: `ttl: {expire: true, keep: 7d}`. A duration is `0`, or a
number and `ms`, `s`, `min`, `h` or `d`. A share is `0.2` or `20%`; above 1 it must be a percentage. `type` is
`sketch`, or `feast_sketch_store.online_store.SketchOnlineStore` where the short name is missing.

## Options
"""

_TAGS = """\
## Tags

A feature's tag overrides its view's tag, and a view's tag overrides the option. Feast requires strings, so
quote the YAML: `"sketch.ttl": "{keep: 30d}"`. A tag with parts overrides only the parts that it gives.
`feast apply` refuses a `sketch.` tag that is unknown, cannot work, or has no effect. A new rate, structure or
codec takes effect at the next seal.
"""

_METRICS = """\
# Metrics

`feast serve --metrics` and `feast-sketch serve --metrics` export these with Feast's own. A process that
has not loaded `prometheus_client` counts nothing. The endpoint adds up the counters of all workers, and
shows one worker's gauge, by the column "of workers". The age of the served rows is `time() -
feast_sketch_last_poll_timestamp_seconds`. The label `shard` is empty, except in a view with several
shards: there, metrics of polls, refreshes, snapshots, unsealed rows and false positives name the shard.
For a version of a view after the first, the label `view` has the version, as in `history@v2`.
"""

_WORKERS = {"livemin": "least", "livemax": "greatest", "max": "greatest, ended ones too", "": "sum"}

_ERRORS = """\
# Errors

Every error that the store raises on purpose is a `SketchStoreError`. Import the classes from
`feast_sketch_store.errors`. A message says what happened, where (project, view, feature, row or file) and
what to do. `feast-sketch` prints it on standard error and exits with 1; `feast-sketch --traceback COMMAND`
prints the traceback.
"""

_PYTHON = """\
# Python API

Import `SketchReader`, `Lists`, `Sets`, `Counts`, `open_view`, `shard_of` and `through_sketch` from
`feast_sketch_store`, the others from the named module. Everything else is private and may change.
"""

# The module, the names in it, and whether methods and arguments of a class are public: those of `True` are.
_API: tuple[tuple[str, Sequence[str], bool], ...] = (
    ("reading.reader", ("SketchReader", "CsrMatrix"), True),
    ("reading.ragged", ("RaggedLists", "Jagged"), True),
    ("appended", ("AppendedFeature", "AppendedItems", "Lists", "Sets", "Counts", "Counted"), True),
    ("reading.training", ("through_sketch",), True),
    ("reading.entities", ("shard_of",), True),
    ("online_store", ("open_view",), True),
    ("view.live", ("LiveView.freshness", "LiveView.stats", "ViewStats"), False),
    ("view.live_shard", ("Freshness",), True),
    (
        "operations.maintenance",
        (
            *("inspect", "inspect_all", "seal", "publish", "discard", "watch", "pin", "unpin"),
            *("vacuum", "verify", "delete", "rebuild"),
        ),
        True,
    ),
    ("operations.maintenance", ("ViewReport", "FeatureReport"), False),
    ("operations.health", ("health", "ViewHealth"), True),
    ("planning.planner", ("plan_view",), True),
    ("planning.choice", ("PlanTarget",), False),
    ("serve.app", ("create_app", "over_feast"), True),
    ("engines.spark_engine", ("SketchSparkEngine",), False),
    ("engines.ray_engine", ("SketchRayEngine",), False),
    ("online_store", ("SketchOnlineStore",), False),
)


def pages() -> dict[str, str]:
    """The text of each page, by its path below the repository."""
    printed = {
        "settings": f"{_SETTINGS}\n{markdown('options')}\n\n{_TAGS}\n{markdown('tags')}",
        "commands": "\n\n".join(_commands()),
        "metrics": f"{_METRICS}\n{_metrics()}",
        "errors": _ERRORS + "\n" + "\n\n".join(_errors()),
        "python": _PYTHON + "\n" + "\n\n".join(_python()),
    }
    return {f"docs/reference/{name}.md": f"{_PRINTED}\n\n{text.rstrip()}\n" for name, text in printed.items()}


def _table(*rows: Sequence[str]) -> str:
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others))


# -- commands ------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield from _command(cli, "feast-sketch")
    for name, command in sorted(cli.commands.items()):
        yield f"## {name}"
        yield from _command(command, f"feast-sketch {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"```\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield inspect.cleandoc(command.help or "")
    records = [
        option.get_help_record(context) for option in command.params if isinstance(option, click.Option)
    ]
    rows = [
        (f"`{name}`".replace("|", r"\|"), text.replace("|", r"\|")) for name, text in filter(None, records)
    ]
    yield _table(("option", "meaning"), *rows)


# -- metrics and errors --------------------------------------------------------------------------------


def _metrics() -> str:
    rows = [
        (
            f"`{each.name}`",
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            _WORKERS[each.mode],
            each.text,
        )
        for each in metrics.ALL
    ]
    return _table(("metric", "kind", "labels", "of workers", "meaning"), *rows)


def _errors() -> Iterator[str]:
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.SketchStoreError):
            bases = " and ".join(f"`{base.__name__}`" for base in error.__bases__)
            yield f"## {name}\n\nA {bases}. {_prose(inspect.cleandoc(error.__doc__ or ''))}"


# -- Python API, as it is written in the source ----------------------------------------------------------


def _python() -> Iterator[str]:
    for module, names, has_methods in _API:
        file = _ROOT / "feast_sketch_store" / f"{module.replace('.', '/')}.py"
        for name in names:
            found: ast.AST = ast.parse(file.read_text("utf-8"))
            for part in name.split("."):
                (found,) = (
                    node for node in ast.iter_child_nodes(found) if getattr(node, "name", None) == part
                )
            title = name.replace("LiveView", "View")
            yield f"## {title}\n\n`feast_sketch_store.{module}`"
            if isinstance(found, ast.ClassDef):
                yield from _class(found, has_methods)
            elif isinstance(found, ast.FunctionDef):
                yield from _function(found, found.name)


def _class(found: ast.ClassDef, has_methods: bool) -> Iterator[str]:
    public = [
        node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ] * has_methods
    for function in public:
        if function.name == "__init__":
            yield f"```python\n{_signature(function, found.name)}\n```"
    yield _prose(ast.get_docstring(found) or "")
    fields = [ast.unparse(node) for node in found.body if isinstance(node, ast.AnnAssign)]
    if any(ast.unparse(each).startswith("dataclass") for each in found.decorator_list):
        yield "\n".join(("```python", *fields, "```"))
    for function in public:
        if not function.name.startswith("_"):
            yield f"### {found.name}.{function.name}"
            yield from _function(function, function.name)


def _function(found: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[str]:
    yield f"```python\n{_signature(found, name)}\n```"
    yield _prose(ast.get_docstring(found) or "")


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    returns = ast.unparse(function.returns).strip("'\"") if function.returns else ""
    if any(ast.unparse(each) in ("property", "cached_property") for each in function.decorator_list):
        return f"{name}: {returns}"
    split = _arguments(function.args)
    returns = f" -> {returns}" if name == function.name else ""
    text = f"{name}({', '.join(split)}){returns}"
    return (
        text
        if len(text) <= 100
        else f"{name}(\n" + "".join(f"    {each},\n" for each in split) + f"){returns}"
    )


def _arguments(arguments: ast.arguments) -> list[str]:
    def text(argument: ast.arg, default: ast.expr | None) -> str:
        value = "" if default is None else f" = {ast.unparse(default)}"
        return ast.unparse(argument) + value

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    found = [text(*each) for each in zip(positional, defaults, strict=True) if each[0].arg != "self"]
    if arguments.kwonlyargs:
        found += ["*", *map(text, arguments.kwonlyargs, arguments.kw_defaults)]
    return found


def _prose(docstring: str) -> str:
    """A docstring with NumPy sections as Markdown."""
    lines, kept, in_list = docstring.splitlines(), list[str](), False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", line):
            continue
        if re.fullmatch(r"-{3,}", following):
            kept += [f"**{line}**", ""]
            in_list = line in ("Parameters", "Attributes", "Raises")
        elif in_list and line and not line.startswith(" "):
            name, separator, text = line.partition(" : ")
            kept.append(f"- `{name}`: {text}" if separator else f"- {line}")
        elif in_list and line.startswith("    "):
            kept.append(line[2:])
        else:
            kept.append(re.sub(r"::$", ":", line))
    return re.sub(r"``(.+?)``", r"`\1`", "\n".join(kept))
