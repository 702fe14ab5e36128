"""Export metrics to Prometheus, from this process or from a server's workers."""

import importlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, NoReturn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from feast_sketch_store.errors import SketchStoreError


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _bound(host: str, port: int) -> _Server:
    """A server of all metrics that Feast's processes count; it listens, and does not answer yet."""
    importlib.import_module("feast.metrics")  # sets the folder of metrics, before prometheus_client is loaded
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_Bound", (_Server,), {"address_family": family})
        server: _Server = kind((host, port), _QuietHandler)
    except OSError as error:
        raise SketchStoreError(
            f"metrics cannot be exported on {host}, port {port}: {error.strerror}; choose another "
            "--metrics-port"
        ) from error
    server.set_app(make_wsgi_app(registry))
    return server


@contextmanager
def exported(host: str, port: int) -> Iterator[int]:
    """Serve metrics to Prometheus from a thread until the block ends. Yields the port; 0 asks for any free
    one.

    Raises SketchStoreError: the port is taken, or the host is not of this machine.
    """
    with _bound(host, port) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def exported_by_child(host: str, port: int) -> Iterator[int]:
    """The same from a process of its own, so that this one may fork and answers wait for no scrape.

    The process ends with the block and all forks that are in it. `multiprocessing` would end it at the end
    of any fork.
    """
    with _bound(host, port) as server:
        until, held = os.pipe()
        if os.fork() == 0:
            os.close(held)
            _serve_until_closed(server, until)
    os.close(until)
    try:
        yield int(server.server_port)
    finally:
        os.close(held)


def _serve_until_closed(server: _Server, until: int) -> NoReturn:
    """Serve in a fork until the other end of a pipe is closed everywhere; then the process ends."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.read(until, 1)
    finally:
        os._exit(0)
