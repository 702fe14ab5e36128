"""`feast-sketch check-bucket`: what it finds, and that it leaves nothing."""

import pytest
from click.testing import CliRunner

from feast_sketch_store.cli import cli
from feast_sketch_store.storage import bucket_check
from feast_sketch_store.storage.buckets import _objects
from tests.helpers.http_proxy import request_proxy


@pytest.fixture(scope="module")
def moto(object_server):
    return object_server("moto")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(bucket_check, "NUM_PROCESSES", 2)
    _objects.cache_clear()


def check(url, options):
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    done = CliRunner().invoke(cli, ["check-bucket", f"{url}/folder", *given], catch_exceptions=False)
    return done.exit_code, [line.partition(":")[0] for line in done.stdout.splitlines()], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moto", "gcs"])
def test_a_bucket_that_holds(object_server, name):
    server = object_server(name)
    url = server.bucket()
    assert check(url, server.options) == (0, ["holds"] * 6, "")
    assert not server.all_bytes(url)


@pytest.mark.slow
def test_a_bucket_that_ignores_conditions(moto):
    def without_conditions(request):
        request.headers = [
            pair for pair in request.headers if pair[0].lower() not in ("if-none-match", "if-match")
        ]
        return request.answered()

    url = moto.bucket()
    with request_proxy(moto.port) as link:
        link.handle = without_conditions
        status, reported, reason = check(url, link.options(moto.options))
    assert status == 1
    assert "do not keep a store there" in reason
    assert "FAILS" in reported
    assert not moto.all_bytes(url)
