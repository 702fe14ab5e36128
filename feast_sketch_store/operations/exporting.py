"""Export the metrics of a process that is not a feature server, such as one that seals."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def exported(port: int) -> Iterator[int]:
    """Serve metrics to Prometheus from a thread until the block ends. Yields the port.

    Parameters
    ----------
    port : 0 for any free port.

    Raises
    ------
    OSError : the port is taken.
    """
    importlib.import_module("feast.metrics")  # sets the folder of metrics, before prometheus_client is loaded
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    server, thread = start_http_server(port, registry=registry)
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
