"""The command line, ``feast-sketch``, and its options before the name of a command."""

import base64
import errno
import logging
import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml
from feast import FeatureStore
from feast.constants import FEATURE_STORE_YAML_ENV_NAME
from feast.errors import FeastError, FeastObjectNotFoundException
from feast.repo_config import FeastConfigError
from feast.utils import get_default_yaml_file_path

import feast_sketch_store
from feast_sketch_store.cli.common import FILE
from feast_sketch_store.errors import SettingsError, SketchStoreError
from feast_sketch_store.online_store import online_store_of

# Errors whose text says what happened; of others it says little without the name of their class.
_TOLD = (SketchStoreError, FeastError, FeastObjectNotFoundException, ValueError, OSError)
_LEVELS = ("debug", "info", "warning", "error", "critical")


class _Commands(click.Group):
    """Commands whose errors are printed as a reason on standard error, with exit status 1."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if context.params["traceback"] or getattr(error, "errno", None) == errno.EPIPE:
                raise
            raise click.ClickException(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text if text and isinstance(error, _TOLD) else f"{type(error).__name__}: {text}".removesuffix(": ")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(feast_sketch_store.__version__, prog_name="feast-sketch")
@click.option(
    "--chdir",
    "-c",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    envvar="FEATURE_REPO_DIR_ENV_VAR",  # of Feast
    help="Folder of the feature repository.",
)
@click.option(
    "--feature-store-yaml",
    "-f",
    type=FILE,
    help="Configuration file to read instead of feature_store.yaml.",
)
@click.option(
    "--lock-timeout",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait while another process seals the view.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    help="Log what Feast and this package do, from this level on.",
)
@click.option("--traceback", is_flag=True, help="Print where an error comes from.")
@click.pass_context
def cli(
    context: click.Context,
    chdir: Path,
    feature_store_yaml: Path | None,
    lock_timeout: float,
    log_level: str | None,
    traceback: bool,
) -> None:
    """Inspect and maintain the feature views of a sketch online store.

    Without a VIEW, a command applies to all views of the repository. The environment variables of `feast`
    count here, too: FEATURE_REPO_DIR_ENV_VAR, FEAST_FS_YAML_FILE_PATH and FEATURE_STORE_YAML_BASE64.
    """
    if log_level is not None:
        logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s: %(message)s")
        for name in ("feast", "feast_sketch_store"):
            logging.getLogger(name).setLevel(log_level.upper())
    context.obj = partial(_open_store, chdir, feature_store_yaml, lock_timeout)


def _open_store(folder: Path, configuration: Path | None, lock_timeout: float) -> FeatureStore:
    path = configuration.absolute() if configuration else get_default_yaml_file_path(folder)
    if encoded := os.getenv(FEATURE_STORE_YAML_ENV_NAME):
        # As in Feast it counts before all files, and relative paths in it are of a new folder.
        folder = Path(tempfile.mkdtemp())
        path = folder / "feature_store.yaml"
        try:
            path.write_bytes(base64.b64decode(encoded))
        except ValueError as error:
            raise SettingsError(f"{FEATURE_STORE_YAML_ENV_NAME}: not a file in base64: {error}") from error
    if not path.is_file():
        raise click.ClickException(
            f"{path.absolute()}: there is no such file; run this in the folder of a feature repository, or "
            "name the folder with --chdir"
        )
    try:
        store = FeatureStore(repo_path=str(folder), fs_yaml_file=path)
    except (FeastConfigError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: {error}") from error
    with suppress(SketchStoreError):  # of another kind of store, which the command refuses
        online_store_of(store).lock_timeout_seconds = lock_timeout
    return store
