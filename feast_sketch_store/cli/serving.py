"""The command ``serve``."""

import multiprocessing
from typing import Any

import click

from feast_sketch_store.cli.common import OpenStore, Seconds

_PORT = 6566  # Feast's


@click.command()
@click.option("--host", "-h", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", "-p", type=click.IntRange(0, 65_535), default=_PORT, show_default=True)
@click.option(
    "--workers",
    "-w",
    type=click.IntRange(min=-1),
    default=1,
    show_default=True,
    help="Worker processes; -1 for two per core plus one.",
)
@click.option(
    "--worker-connections",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Concurrent clients per worker.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    help="Restart a worker after this many requests; 0 for never.",
)
@click.option("--max-requests-jitter", type=click.IntRange(min=0), default=50, show_default=True)
@click.option(
    "--keep-alive-timeout",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="Close an idle connection after this time.",
)
@click.option(
    "--registry-ttl",
    "--registry_ttl_sec",
    "-r",
    "registry_ttl_sec",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Load Feast's registry again after this time; 0 for never.",
)
@click.option(
    "--key", "-k", "tls_key_path", type=click.Path(exists=True, dir_okay=False), help="TLS: private key."
)
@click.option(
    "--cert", "-c", "tls_cert_path", type=click.Path(exists=True, dir_okay=False), help="TLS: certificate."
)
@click.option("--metrics", "-m", is_flag=True, help="Export metrics to Prometheus, on the same host.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="Of metrics."
)
@click.option("--no-access-log", is_flag=True, help="Do not print a line for each request.")
@click.option(
    "--type",
    "-t",
    "type_",
    type=click.Choice(["http"], case_sensitive=False),
    default="http",
    show_default=True,
    help="Taken for the sake of scripts: `feast serve` has no other, either.",
)
@click.option(
    "--auth-cache-seconds",
    type=Seconds(),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Keep Feast's decisions that long where changes cannot be seen: Kubernetes users, and permissions "
    "in a registry that is no local file. With 0 Feast's own server answers such requests.",
)
@click.pass_obj
def serve(
    open_store: OpenStore,
    /,
    workers: int,
    tls_key_path: str | None,
    tls_cert_path: str | None,
    **options: Any,
) -> None:
    """Serve features over HTTP, as `feast serve` does.

    Reads of this store are answered several times as fast. Feast's own server, in the same process, answers
    all other requests. Answers are the same, byte for byte.
    """
    if (tls_key_path is None) != (tls_cert_path is None):
        raise click.UsageError("TLS needs both --key and --cert.")
    store = open_store()
    # Not at the head: Feast's server takes a second to import, which other commands need not wait for.
    from feast_sketch_store.serve import run

    run(
        store,
        workers=2 * multiprocessing.cpu_count() + 1 if workers == -1 else workers,
        tls_key_path=tls_key_path or "",
        tls_cert_path=tls_cert_path or "",
        **options,
    )
