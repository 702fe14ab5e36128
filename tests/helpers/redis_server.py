"""A Redis server for tests, on a free port of 127.0.0.1; it is ended by its process."""

import shutil
import socket
import subprocess
from contextlib import contextmanager

import pytest


def free_port():
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_redis(folder, *options):
    """The port of a server with a client of it; skips the test where there is no Redis."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    redis = pytest.importorskip("redis")
    port = free_port()
    command = [
        "redis-server",
        "--databases",
        "64",
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    server = subprocess.Popen([*command, "--dir", str(folder), *options], stdout=subprocess.PIPE, text=True)
    try:
        # The server says so when it listens.
        assert any("Ready to accept connections" in line for line in server.stdout)
        client = redis.Redis(port=port)
        yield port, client
        client.close()
    finally:
        server.terminate()
        server.communicate()
