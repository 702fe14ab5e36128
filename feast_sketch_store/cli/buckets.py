"""The command ``check-bucket``."""

from collections.abc import Sequence

import click

from feast_sketch_store.storage.bucket_check import check_bucket


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
