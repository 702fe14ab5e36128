"""Places that cannot be used: servers that answer anything, expired credentials, full and foreign caches."""

import errno
import logging
import os
import time
import traceback
from contextlib import suppress
from unittest.mock import patch

import pytest
from obstore.store import MemoryStore

from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.storage import file_cache
from feast_sketch_store.storage.base import MissingFileError
from feast_sketch_store.storage.buckets import _objects, open_bucket
from feast_sketch_store.storage.object_store import ObjectStorage
from feast_sketch_store.storage.objects import Objects
from feast_sketch_store.view import last_known
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.view import View
from tests.helpers import histories
from tests.helpers.histories import NEVER, items_of, settings_of
from tests.helpers.http_proxy import Answer, Request, request_proxy
from tests.helpers.keys import user_hashes
from tests.helpers.object_servers import copy_objects

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_try")]

ACCESS, SECRET, TOKEN, SIGNATURE = "access-key-4711", "secret-key-4712", "token-4713", "signature-4714"
WORDS = (ACCESS, SECRET, TOKEN, SIGNATURE)
S3 = {"region": "us-east-1", "access_key_id": ACCESS, "secret_access_key": SECRET, "session_token": TOKEN}
AZURE = {"account_name": "account", "sas_key": f"sv=2021-08-06&sig={SIGNATURE}"}
ECHO = "".join(f"<Echo>{word}</Echo>" for word in WORDS)
ANSWERS = {
    "expired": (400, f"<Error><Code>ExpiredToken</Code><Token-0>{TOKEN}</Token-0>{ECHO}</Error>"),
    "unknown key": (403, f"<Error><Code>InvalidAccessKeyId</Code>{ECHO}</Error>"),
    "signature": (403, f"<Error><Code>SignatureDoesNotMatch</Code>{ECHO}</Error>"),
    "unauthorized": (401, ECHO),
    "no bucket": (404, f"<Error><Code>NoSuchBucket</Code>{ECHO}</Error>"),
    "plain 404": (404, f"Not Found {ECHO}"),
    "moved": (301, ECHO),
    "busy": (503, f"<Error><Code>SlowDown</Code>{ECHO}</Error>"),
    "broken": (500, f"<html>{ECHO}"),
    "login page": (200, f"<html>{ECHO}</html>"),
    "nothing": (200, ""),
    "odd code": (400, f"<Error><Code>{SECRET} x</Code></Error>"),
}
SETTINGS = settings_of(1e-9, presence=1e-9)
LONG_SECONDS = 1000.0


@pytest.fixture
def link(moto):
    with request_proxy(moto.port) as running:
        yield running


def answering(kind):
    status, body = ANSWERS[kind]
    headers = [("Content-Type", "application/xml")]
    if status == 301:
        headers.append(("Location", f"http://127.0.0.1:1/?X-Amz-Signature={SIGNATURE}&token={TOKEN}"))
    return lambda request: Answer(
        status, "reported", headers, b"" if request.method == "HEAD" else body.encode()
    )


def create(storage):
    with storage.create("a") as file:
        file.write(b"x")


CALLS = {
    "list": lambda storage: storage.list(),
    "list after": lambda storage: storage.list("rows/", "a"),
    "folders": lambda storage: storage.folders(),
    "info": lambda storage: storage.info("a"),
    "walk": lambda storage: list(storage.walk()),
    "read": lambda storage: storage.read("a"),
    "read range": lambda storage: storage.read("a", 1, 1),
    "map": lambda storage: storage.map("a"),
    "prepare": lambda storage: storage.prepare(),
    "create": create,
    "replace": lambda storage: storage.replace("a", b"x"),
    "delete": lambda storage: storage.delete(["a", "b"]),
    "delete all": lambda storage: storage.delete_all(),
}


@pytest.mark.parametrize("scheme", ["s3", "az"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_no_answer_of_a_server_leads_to_credentials_in_an_error(link, caplog, scheme, kind):
    caplog.set_level(logging.DEBUG)
    link.handle = answering(kind)
    endpoint = f"http://127.0.0.1:{link.port}"
    options = {**(S3 if scheme == "s3" else AZURE), "endpoint": endpoint}
    storage = open_bucket(f"{scheme}://bucket/store", options).within("view/")
    texts = []
    for call in CALLS.values():
        with suppress(StorageError):  # what else is raised fails the test
            try:
                call(storage)
            except StorageError as error:
                texts += [str(error), repr(error), "".join(traceback.format_exception(error))]
                raise
    assert len(texts) >= 3
    texts.append(caplog.text)
    assert not [(word, text) for text in texts for word in WORDS if word in text]


@pytest.mark.parametrize("status", [403, 404, 500])
def test_missing_credentials_are_no_missing_server(link, moto, monkeypatch, status):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    link.handle = lambda request: Answer(status, "reported", [], b"denied")  # of the machine's role
    options = {"endpoint": moto.options["endpoint"], "region": "us-east-1", "allow_http": "true"}
    options["metadata_endpoint"] = f"http://127.0.0.1:{link.port}"
    with pytest.raises(StorageError, match="no credentials are given"):
        open_bucket("s3://bucket/store", options).list()


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_view_of_a_place_that_is_none_is_not_empty(link, kind):
    """A misspelled bucket is an error, and not a store without rows."""
    link.handle = answering(kind)
    options = {**S3, "endpoint": f"http://127.0.0.1:{link.port}"}
    view = View(open_bucket("s3://bucket/store", options).within("view/"), SETTINGS, NEVER, 0.0)
    with pytest.raises(StorageError, match="s3://bucket/store") as raised:
        view.read(user_hashes([1]), ["viewed"])
    assert not isinstance(raised.value, MissingFileError)
    with pytest.raises(StorageError, match="s3://bucket/store"):
        put(view, 1, "milk")
    view.close()


# -- replicas ------------------------------------------------------------------------------------


def put(view, user, *items, second=0):
    histories.put(view, {user: items}, second)


def read(view):
    return items_of(view, range(5))


class Bucket:
    """A sealed view in a bucket, its writer, and replicas behind a proxy."""

    def __init__(self, server, link, objects):
        self.url, self.options, self.link = server.bucket() + "/store", server.options, link
        copy_objects(objects, server.obstore(self.url))
        self.writer = View(open_bucket(self.url, self.options).within("view/"), SETTINGS, NEVER, 0.0)

    def replica(self, cache):
        _objects.cache_clear()
        options = self.link.options(self.options)
        storage = open_bucket(self.url, options, True, cache).within("view/")
        return View(storage, SETTINGS, NEVER, LONG_SECONDS, is_replica=True)


@pytest.fixture(scope="module")
def sealed():
    """The objects of views in which user 1 has an item, by the item."""
    made = {item: MemoryStore() for item in ("milk", "tea")}
    for item, objects in made.items():
        storage = ObjectStorage(Objects(objects, "s3://bucket", "bucket"), "store/")
        view = View(storage.within("view/"), SETTINGS, NEVER, 0.0)
        put(view, 1, item)
        view.seal()
    return made


@pytest.fixture
def bucket(moto, link, sealed):
    return Bucket(moto, link, sealed["milk"])


@pytest.mark.parametrize("kind", ["expired", "signature", "no bucket", "login page", "busy"])
def test_a_replica_whose_token_expires_serves_on(bucket, link, tmp_path, kind, caplog):
    replica = bucket.replica(tmp_path)
    assert read(replica) == {1: {"milk"}}
    link.handle = answering(kind)
    put(bucket.writer, 2, "tea")
    replica.poll()
    assert read(replica) == {1: {"milk"}}
    reported = replica.freshness()
    assert (reported.state, reported.is_ready) == ("STALE", True)
    assert bucket.url in reported.problem
    assert not [word for word in WORDS if word in reported.problem + caplog.text]
    late = bucket.replica(tmp_path)  # another process of the host, while it lasts
    assert read(late) == {1: {"milk"}}
    link.handle = Request.answered
    for view in (replica, late):
        view.poll()
        assert read(view) == {1: {"milk"}, 2: {"tea"}}
        assert view.freshness().state == "SERVING"
        view.close()


def page_for_listings(request):
    return (answering("login page") if "list-type" in request.path else Request.answered)(request)


def test_a_page_in_the_place_of_listings_hides_no_rows(bucket, link):
    replica = bucket.replica(None)
    assert read(replica) == {1: {"milk"}}
    link.handle = page_for_listings
    replica.poll()
    assert (read(replica), replica.freshness().state) == ({1: {"milk"}}, "STALE")
    late = bucket.replica(None)
    with pytest.raises(StorageError, match="is not one of an object store"):
        read(late)
    for view in (replica, late):
        view.close()


def test_a_page_in_the_place_of_listings_keeps_a_view_from_being_removed(bucket, link):
    _objects.cache_clear()
    storage = open_bucket(bucket.url, link.options(bucket.options)).within("view/")
    link.handle = page_for_listings
    with pytest.raises(StorageError, match="a listing lacks 'being_removed'"):
        remove_view(storage)
    link.handle = Request.answered
    replica = bucket.replica(None)
    assert read(replica) == {1: {"milk"}}
    replica.close()
    remove_view(storage)
    assert not list(storage.walk())


def test_a_cache_that_cannot_be_written_is_named(bucket, tmp_path):
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file" / "cache", "/proc/no/cache"):
        replica = bucket.replica(type(tmp_path)(place))
        with pytest.raises(StorageError, match=f"{place}: the cache cannot be used"):
            read(replica)
        reported = replica.freshness(poll=True)
        assert (reported.state, reported.is_ready) == ("EMPTY", False)
        replica.close()


def test_a_replica_whose_disk_is_full_serves_on(bucket, tmp_path, caplog):
    replica = bucket.replica(tmp_path)
    assert read(replica) == {1: {"milk"}}
    put(bucket.writer, 2, "tea")
    bucket.writer.seal()
    with patch.object(file_cache.os, "fsync", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        replica.poll()
        assert read(replica) == {1: {"milk"}}
        reported = replica.freshness()
        assert reported.state == "STALE"
        assert "the cache cannot be used" in reported.problem
        assert "No space left" in reported.problem
    assert "No space left" in caplog.text
    replica.poll()
    assert read(replica) == {1: {"milk"}, 2: {"tea"}}
    replica.close()


def test_releases_that_keep_different_notes_share_a_cache(bucket, link, tmp_path, monkeypatch):
    def of_newer_release():
        return monkeypatch.setattr(last_known, "_FORMAT_VERSION", 2)

    def of_older_release():
        return monkeypatch.setattr(last_known, "_FORMAT_VERSION", 1)

    views = []
    for number, release in enumerate((of_older_release, of_newer_release, of_older_release), start=2):
        release()
        views.append(bucket.replica(tmp_path))
        put(bucket.writer, number, "tea", second=number)
        assert read(views[-1]) == {1: {"milk"}} | {user: {"tea"} for user in range(2, number + 1)}
    assert len([path for path in tmp_path.iterdir() if not path.suffix]) == 1
    for view in views:
        view.close()
    link.handle = answering("broken")
    assert len(read(bucket.replica(tmp_path))) == 4  # the older one wrote last
    of_newer_release()
    with pytest.raises(StorageError, match="cannot be listed"):
        read(bucket.replica(tmp_path))


def test_buckets_share_a_cache_and_no_rows(moto, link, sealed, tmp_path):
    both = [Bucket(moto, link, sealed[item]) for item in ("milk", "tea")]
    for bucket, items in zip(both, ({"milk"}, {"tea"}), strict=True):
        replica = bucket.replica(tmp_path)
        assert read(replica) == {1: items}
        replica.close()
    link.handle = answering("broken")
    for bucket, items in zip(both, ({"milk"}, {"tea"}), strict=True):
        assert read(bucket.replica(tmp_path)) == {1: items}
    empty = Bucket.__new__(Bucket)
    empty.url, empty.options, empty.link = moto.bucket() + "/store", moto.options, link
    with pytest.raises(StorageError, match="cannot be listed"):
        read(empty.replica(tmp_path))


def test_a_cache_of_a_store_that_was_made_anew_shows_nothing_of_the_old_one(bucket, link, tmp_path):
    replica = bucket.replica(tmp_path)
    assert read(replica) == {1: {"milk"}}
    replica.close()
    bucket.writer.storage.delete_all()
    writer = View(open_bucket(bucket.url, bucket.options).within("view/"), SETTINGS, NEVER, 0.0)
    put(writer, 2, "tea")
    writer.seal()
    replica = bucket.replica(tmp_path)
    assert read(replica) == {2: {"tea"}}
    replica.close()
    link.handle = answering("broken")
    assert read(bucket.replica(tmp_path)) == {2: {"tea"}}


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment_tells_a_bucket_from_others(tmp_path, monkeypatch, variable):
    def path(**options):
        _objects.cache_clear()
        return open_bucket("s3://bucket/store", options, cache_path=tmp_path).host_path

    amazon = path()
    monkeypatch.setenv(variable, "http://127.0.0.1:4000")
    first = path()
    monkeypatch.setenv(variable, "http://127.0.0.1:4001")
    assert len({amazon, first, path()}) == 3
    assert path(endpoint="http://127.0.0.1:4000") == path(AWS_ENDPOINT_URL="http://127.0.0.1:4000") == first
    monkeypatch.setenv(variable, f"http://user:{SECRET}@127.0.0.1:4001")
    with pytest.raises(SettingsError, match=f"{variable} must be like") as raised:
        path()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_an_account_of_the_environment_tells_a_container_from_others(tmp_path, monkeypatch):
    paths = set()
    for account in ("one", "other"):
        _objects.cache_clear()
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
        paths.add(open_bucket("az://box/store", cache_path=tmp_path).host_path)
    assert len(paths) == 2


def test_the_age_of_a_cache_is_that_of_its_own_bucket(moto, link, sealed, tmp_path):
    first = Bucket(moto, link, sealed["milk"])
    replica = first.replica(tmp_path)
    read(replica)
    replica.close()
    link.handle = answering("broken")
    began = time.monotonic()
    other = Bucket.__new__(Bucket)
    other.url, other.options, other.link = first.url + "2", first.options, link
    with pytest.raises(StorageError):
        read(other.replica(tmp_path))
    started = first.replica(tmp_path)
    assert read(started) == {1: {"milk"}}
    assert started.freshness().age_seconds <= time.monotonic() - began + 60
