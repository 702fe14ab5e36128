"""Write the test vectors: ``python -m tests.conformance.kit DIR``."""

from pathlib import Path

import click

from tests.conformance.kit import write_kit


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Write test vectors for readers of the store's files into DIR, a new or empty folder."""
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder}: the folder is not empty; give a new one")
    num_files = write_kit(folder)
    click.echo(f"{folder}: {num_files} files; docs/reference/online_store_format.md says how to use them")


if __name__ == "__main__":
    main(prog_name="python -m tests.conformance.kit")
