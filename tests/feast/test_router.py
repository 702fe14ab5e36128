"""HAProxy before feature servers that serve a part of the shards each, as `docs/router` configures it."""

import contextlib
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import requests
import uvicorn
from feast.feature_server import get_app

from feast_sketch_store import shard_of
from tests.feast.test_shards import NUM_USERS, fill, make_store, part_of
from tests.helpers.ports import free_port

ROUTER = Path(__file__).parents[2] / "docs/router"
HAPROXY = shutil.which("haproxy")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")


@contextlib.contextmanager
def served(store, port):
    """Feast's feature server of a repository, in a thread."""
    server = uvicorn.Server(uvicorn.Config(get_app(store), port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def proxied(folder, ports):
    """HAProxy with the configuration of the docs, on other ports."""
    config = (ROUTER / "haproxy.cfg").read_text()
    for documented, port in ports.items():
        config, found = re.subn(rf"127\.0\.0\.1:{documented}\b", f"127.0.0.1:{port}", config)
        assert found == 1
    (folder / "haproxy.cfg").write_text(config)
    shutil.copy(ROUTER / "shards.map", folder)
    process = subprocess.Popen([HAPROXY, "-db", "-f", "haproxy.cfg"], cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Asks the proxy about users, with the number of a shard as the header."""
    folder = tmp_path_factory.mktemp("router")
    store = fill(make_store(folder / "whole", 4))
    ports = {documented: free_port() for documented in (6566, 7001, 7002)}
    with contextlib.ExitStack() as stack:
        for documented, shards in {7001: (0, 1), 7002: (2, 3)}.items():
            part = part_of(folder / str(documented), store, *shards)
            stack.enter_context(served(part, ports[documented]))
        stack.enter_context(proxied(folder, ports))
        url = f"http://127.0.0.1:{ports[6566]}/get-online-features"

        def request(users, shard):
            content = {"features": ["history:country"], "entities": {"user_id": list(users)}}
            headers = {} if shard is None else {"x-sketch-shard": str(shard)}
            return requests.post(url, json=content, headers=headers, timeout=60)

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.ConnectionError):
                if all(request([], shard).status_code not in (502, 503) for shard in (0, 2)):
                    break
            threading.Event().wait(0.1)  # a proxy does not announce its checks
        yield request


def test_each_request_reaches_a_server_of_its_shard(ask):
    by_shard = {}
    for user in range(NUM_USERS + 20):
        by_shard.setdefault(shard_of({"user_id": user}, 4), []).append(user)
    assert sorted(by_shard) == [0, 1, 2, 3]
    for shard, users in by_shard.items():
        answer = ask(users, shard)
        assert answer.status_code == 200, answer.text
        names = answer.json()["metadata"]["feature_names"]
        countries = answer.json()["results"][names.index("country")]["values"]
        assert countries == ["FR" if user < NUM_USERS else None for user in users]


def test_a_wrong_shard_is_an_error_and_not_an_absent_row(ask):
    user = next(user for user in range(NUM_USERS) if shard_of({"user_id": user}, 4) == 3)
    answer = ask([user], 0)
    assert answer.status_code >= 400
    assert "shard 3 of 4" in answer.text
    assert ask([user], None).status_code == 400
    assert ask([user], 9).status_code == 404
