"""The command line, ``feast-sketch``, and its options before the name of a command."""

from pathlib import Path

import click
from feast import FeatureStore

import feast_sketch_store


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
