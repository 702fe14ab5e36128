"""A Redis server for tests, on a free port of 127.0.0.1; it stops with the test."""

import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest
import redis

from tests.helpers.ports import free_port, free_ports


@contextmanager
def running_cluster(folder, num_nodes=3):
    """The ports of a cluster of servers without replicas; skips the test where there is no Redis."""
    with ExitStack() as servers:
        ports = free_ports(num_nodes)  # the one 10,000 above is that of the cluster's bus
        for port in ports:
            options = ["--cluster-enabled", "yes", "--cluster-config-file", f"{port}.conf"]
            servers.enter_context(running_redis(folder, *options, port=port))
        nodes = [f"127.0.0.1:{port}" for port in ports]
        subprocess.run(
            ["redis-cli", "--cluster", "create", *nodes, "--cluster-replicas", "0", "--cluster-yes"],
            check=True,
            capture_output=True,
        )
        for port in ports:
            with redis.Redis(port=port) as client:
                while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                    time.sleep(0.05)  # no event tells
        yield ports


@contextmanager
def running_redis(folder, *options, port=None):
    """The port of a server with a client of it; skips the test where there is no Redis."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    port = port or free_port()
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
