"""`feast-sketch check-bucket`: what it finds, and that it leaves nothing."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from feast_sketch_store.cli import cli
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.storage import bucket_check
from feast_sketch_store.storage.buckets import _objects
from tests.helpers.http_proxy import Answer, request_proxy

OTHERS = [pytest.param(name, marks=pytest.mark.object_servers) for name in ("weed", "azurite")]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(bucket_check, "NUM_PROCESSES", 2)
    _objects.cache_clear()


def check(url, options):
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    done = CliRunner().invoke(cli, ["check-bucket", f"{url}/folder", *given], catch_exceptions=False)
    return done.exit_code, done.stdout.splitlines(), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moto", "gcs", *OTHERS])
def test_a_bucket_that_holds(object_server, name):
    server = object_server(name)
    url = server.bucket()
    status, reported, reason = check(url, server.options)
    assert len(reported) == 6
    assert [line for line in reported if not line.startswith("holds: ")] == []
    assert (status, reason) == (0, "")
    assert not server.all_bytes(url)


def test_a_folder_is_no_bucket(tmp_path):
    status, reported, reason = check(str(tmp_path), {})
    assert (status, reported) == (2, [])
    assert "is not the URL of a bucket, such as s3://bucket/folder" in reason


def test_a_bucket_without_a_name_is_not_looked_for():
    with pytest.raises(SettingsError, match="plain name of a bucket"):
        next(bucket_check.check_bucket("s3://"))


def without(method, *names, among="", share=1.0):
    """Requests of a method reach the server without some headers, or a share of them does."""
    chance = random.Random(1)

    def handle(request):
        if request.method in method and among in request.path and chance.random() < share:
            request.headers = [pair for pair in request.headers if pair[0].lower() not in names]
        return request.answered()

    return handle


def unlisted(request):
    """A listing lacks what was written lately."""
    answer = request.answered()
    if "list-type" in request.path:
        before, found, last = answer.body.rpartition(b"<Contents>")
        answer.body = before + last.partition(b"</Contents>")[2] if found else last
        others = [pair for pair in answer.headers if pair[0].lower() != "content-length"]
        answer.headers = [*others, ("content-length", str(len(answer.body)))]
    return answer


def forgotten(request):
    """A commit is acknowledged, and not kept."""
    if request.method == "PUT" and request.path.endswith("/race/00003"):
        return Answer(200, "OK", [("content-length", "0"), ("etag", '"a"')], b"")
    return request.answered()


BROKEN = {
    "no conditions": (without("PUT", "if-none-match", "if-match"), "ignores conditions of writes"),
    "replaces any version": (without("PUT", "if-match"), "a version that was gone was replaced"),
    "reads any version": (without("GET", "if-match"), "a part of another version was read"),
    "no metadata": (without("PUT", "x-amz-meta-writeid"), "metadata of an object are lost"),
    "a late listing": (unlisted, "objects were listed"),
    "two writers at once": (
        without("PUT", "if-none-match", among="/race/", share=0.3),
        "acknowledged commits are not there",
    ),
    "a lost commit": (forgotten, "acknowledged commits are not there"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BROKEN)
def test_a_bucket_that_breaks_a_promise(moto, monkeypatch, case):
    handle, problem = BROKEN[case]
    monkeypatch.setattr(bucket_check, "_MANY", 20)
    monkeypatch.setattr(bucket_check, "ProcessPoolExecutor", lambda number, _: ThreadPoolExecutor(number))
    url = moto.bucket()
    with request_proxy(moto.port) as link:
        link.handle = handle
        status, reported, reason = check(url, link.options(moto.options))
    assert status == 1
    assert "do not keep a store there" in reason
    assert any(line.startswith("FAILS") and problem in line for line in reported), reported
    assert not moto.all_bytes(url)
