"""The contract of storages, with objects of a bucket, and what is special about them."""

import os
import pickle
import threading
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest
from obstore.store import MemoryStore

from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.storage import file_cache, object_store
from feast_sketch_store.storage.base import FileExistsAlreadyError, UncertainWriteError
from feast_sketch_store.storage.buckets import _objects, check_url, open_bucket, open_objects
from feast_sketch_store.storage.chunks import Chunks, KnownFile
from feast_sketch_store.storage.object_store import ObjectStorage
from feast_sketch_store.storage.objects import Objects
from tests.helpers.cases import for_each
from tests.helpers.http_proxy import request_proxy
from tests.helpers.length import IS_LONG
from tests.helpers.object_servers import SECRET_KEY
from tests.storage.contract import StorageContract, in_threads, names_of, put

pytestmark = pytest.mark.slow


def server_fixture(name):
    @pytest.fixture
    def server(object_server):
        return object_server(name)

    return server


moto = server_fixture("moto")
gcs = server_fixture("gcs")
weed = server_fixture("weed")
azurite = server_fixture("azurite")
s3rver = server_fixture("s3rver")


def opened(server, url, **arguments):
    """A storage with connections of its own, as another process would have them."""
    _objects.cache_clear()
    return open_bucket(url, server.options, **arguments)


def maker(server, **more):
    url = server.bucket() + "/a folder/store"

    def make(read_only=False):
        return opened(server, url, read_only=read_only, **more).within("view/")

    return make


class TestMoto(StorageContract):
    @pytest.fixture
    def make(self, moto):
        return maker(moto)


class TestGoogle(StorageContract):
    """A double, see its module."""

    @pytest.fixture
    def make(self, gcs):
        return maker(gcs)


@pytest.mark.has_long_form
class TestCached(StorageContract):
    """The cache is on this side: in the short form its objects are in this process."""

    @pytest.fixture
    def make(self, request, tmp_path):
        cache = tmp_path / "cache"
        if IS_LONG:
            return maker(request.getfixturevalue("moto"), cache_path=cache)
        objects = MemoryStore()

        def make(read_only=False):
            bucket = Objects(objects, "s3://bucket", "bucket")
            return ObjectStorage(bucket, "a folder/store/", read_only, cache).within("view/")

        return make


def test_no_view_of_a_written_file_is_left_for_the_collector():
    """It would close the file before the view, which Python 3.13 warns of."""
    storage = ObjectStorage(Objects(MemoryStore(), "s3://bucket", "bucket"), "store/")
    with storage.create("a") as file:
        file.write(b"content")
    file.write(b"more")  # a BufferError while there is a view


@pytest.mark.object_servers
class TestWeed(StorageContract):
    @pytest.fixture
    def make(self, weed):
        return maker(weed)


@pytest.mark.object_servers
class TestAzurite(StorageContract):
    @pytest.fixture
    def make(self, azurite):
        return maker(azurite)


@pytest.fixture
def storage(moto):
    return maker(moto)()


# -- writes ------------------------------------------------------------------------------------


@pytest.mark.object_servers
def test_a_server_that_ignores_conditions_is_refused_for_writing(s3rver):
    url = s3rver.bucket()
    storage = opened(s3rver, url)
    for write in (storage.prepare, lambda: put(storage, "a"), lambda: storage.replace("a", b"x")):
        with pytest.raises(StorageError, match=r"ignores conditions of writes.*does not write here"):
            write()
    assert storage.info("a") is None
    assert storage.list() == ["conditions-probe"]


def test_the_probe_is_made_once(storage):
    put(storage, "a")
    answers = []
    made = storage._objects._put
    storage._objects._put = lambda *arguments: answers.append(arguments[0]) or made(*arguments)
    put(storage, "b")
    storage.replace("b", b"x")
    assert [key.rpartition("/")[2] for key in answers] == ["b", "b"]


def test_a_lost_answer_is_no_conflict(storage):
    objects, lost = storage._objects, []
    storage.prepare()
    made = objects._put

    def put_and_lose_the_answer(key, *arguments):
        assert made(key, *arguments)
        lost.append(key)
        return made(key, *arguments)  # as a retry of the connection would

    objects._put = put_and_lose_the_answer
    put(storage, "a", b"first")
    objects._put = made
    assert len(lost) == 1
    assert storage.read("a") == b"first"
    with pytest.raises(FileExistsAlreadyError):
        put(storage, "a", b"second")


def cut_twice(methods):
    """The first request of some methods is not done, the second has no answer, and further ones have."""
    asked = []

    def handle(request):
        asked.append(request.method)
        num_asked = sum(method in methods for method in asked)
        answer = None if request.method in methods and num_asked == 1 else request.answered()
        return None if request.method in methods and num_asked == 2 else answer

    return handle


@pytest.mark.parametrize(
    "name",
    ["moto", "gcs", *(pytest.param(name, marks=pytest.mark.object_servers) for name in ("weed", "azurite"))],
)
def test_a_call_whose_connection_is_cut_is_made_again(object_server, name):
    server = object_server(name)
    url = server.bucket()
    with request_proxy(server.port) as link:
        objects, _ = open_objects(url, link.options(server.options))
        objects.require_conditions()
        keys = [f"rows/{number}" for number in range(3)]
        link.resets = True
        for key in keys:
            link.handle = cut_twice(["PUT"])
            objects.create(key, b"first")
        with pytest.raises(FileExistsAlreadyError):
            objects.create(keys[0], b"again")
        known = objects.info(keys[0])
        link.handle = cut_twice(["PUT"])
        assert objects.replace(keys[0], b"second", known)
        link.handle = cut_twice(["PUT"])
        assert not objects.replace(keys[0], b"third", known)
        assert [objects.read(key) for key in keys] == [b"second", b"first", b"first"]
        link.handle = cut_twice(["POST", "DELETE"])
        objects.delete(keys)
        assert [objects.info(key) for key in keys] == [None] * 3
        link.handle = lambda request: None
        for call in (lambda: objects.delete(keys), lambda: objects.create("a", b"")):
            with pytest.raises(StorageError, match=r"cannot be .*the server cut the connection"):
                call()


@pytest.mark.parametrize("num_replacements", [1, 255])
def test_an_object_that_others_replace_is_fetched_whole(moto, monkeypatch, num_replacements):
    monkeypatch.setattr(file_cache, "PART_BYTES", 1 << 16)
    size = (1 << 16) * 3 + 5
    make = maker(moto)
    writer, reader = make(), make()
    writer.replace("a", bytes(size))
    parts = []
    read_part = reader._objects.read_part

    def read_slowly(info, start, end):
        parts.append(start)
        if len(parts) <= num_replacements:
            writer.replace("a", bytes([len(parts)]) * size)
        return read_part(info, start, end)

    reader._objects.read_part = read_slowly
    found = reader.map("a")
    assert (found == found[0]).all()
    assert len(found) == size
    assert parts


# -- leases ------------------------------------------------------------------------------------


def test_a_lease_keeps_others_out_while_it_is_renewed(moto, monkeypatch):
    monkeypatch.setattr(object_store, "_RENEWED_EVERY_SECONDS", 0.02)
    make = maker(moto)
    mine, other = make(), make()
    renewed = threading.Event()
    replace = mine._objects.replace
    mine._objects.replace = lambda *arguments: (replace(*arguments), renewed.set())[0]
    with mine.lease("lock") as is_mine:
        assert is_mine
        with other.lease("lock") as is_its, other.lease("another") as is_another:
            assert (is_its, is_another) == (False, True)
        assert renewed.wait(60)
        with other.lease("lock") as is_its:
            assert not is_its
    assert names_of(mine) == []
    with other.lease("lock") as is_its:
        assert is_its


def test_the_lease_of_a_dead_holder_ends(moto, monkeypatch):
    make = maker(moto)
    dead, other = make(), make()
    dead._objects.create("a folder/store/view/lock", b"dead")
    with other.lease("lock") as is_its:
        assert not is_its
    for seconds in (object_store.LEASE_SECONDS + 2, -3 * object_store.LEASE_SECONDS):
        pass_seconds(monkeypatch, seconds)
        with other.lease("lock") as is_its:
            assert is_its
        dead._objects.create("a folder/store/view/lock", b"dead")


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_clock_that_is_off_ends_no_lease(monkeypatch, seconds):
    storage = ObjectStorage(Objects(MemoryStore(), "s3://bucket", "bucket")).within("view/")
    now = time.time()
    with storage.lease("lock"):
        monkeypatch.setattr(time, "time", lambda: now + seconds)
        asked = Mock(wraps=Objects.now)
        monkeypatch.setattr(Objects, "now", lambda objects: asked(objects))
        for _ in range(3):
            with storage.lease("lock") as is_mine:
                assert not is_mine
    assert asked.call_count == 1, "some object stores take one put of an object a second"


def pass_seconds(monkeypatch, seconds):
    """Set the clock of object stores forward."""
    for name in ("now", "known_now"):
        now = getattr(Objects, name)
        monkeypatch.setattr(Objects, name, lambda objects, now=now: now(objects) + seconds)


def test_of_eight_one_takes_over(moto, monkeypatch):
    make = maker(moto)
    storages = [make() for _ in range(8)]
    storages[0]._objects.create("a folder/store/view/lock", b"dead")
    pass_seconds(monkeypatch, object_store.LEASE_SECONDS + 2)
    key = "a folder/store/view/lock"
    taken = in_threads(lambda s: object_store._take(s._objects, key, b"new"), storages)
    # Whoever comes after the first sees a lease from 62 seconds ago as well, by this clock.
    assert sum(taken) >= 1
    assert storages[0].read("lock") == b"new"


def test_who_waits_gets_the_lease_of_one_who_lets_go(moto):
    make = maker(moto)
    storages = [make(), make()]
    inside, most = [], []

    def hold(storage):
        for _ in range(3):
            with storage.lease("lock", wait=True) as is_mine:
                assert is_mine
                inside.append(1)
                most.append(len(inside))
                inside.pop()
        return True

    assert all(in_threads(hold, storages))
    assert max(most) == 1


# -- secrets -----------------------------------------------------------------------------------


def test_credentials_appear_nowhere(moto, tmp_path):
    url = moto.bucket()
    storage = opened(moto, url + "/store")
    texts = [repr(storage), repr(storage._objects), storage.location, storage.identity, storage.where("a")]
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(storage)
    for options in (
        {**moto.options, "endpoint": "http://127.0.0.1:1"},
        {**moto.options, "secret_access_key": "wrong/secret", "endpoint": "nonsense"},
        {**moto.options, "timeout": "nonsense-secret"},
        {**moto.options, "nonsense": "nonsense-secret"},
    ):
        with pytest.raises((StorageError, SettingsError)) as raised:
            open_bucket(url, {**options, "session_token": "token-secret"}).read("a")
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
        texts.append(str(raised.value))
    for text in texts:
        assert not [
            word
            for word in ("secret", SECRET_KEY, moto.options["access_key_id"])
            if word in text.replace("'secret_access_key'", "")
        ], text


def test_errors_say_where_and_why(moto):
    url = moto.bucket()
    nowhere = open_bucket(url, {**moto.options, "endpoint": "http://127.0.0.1:1", "connect_timeout": "1s"})
    with pytest.raises(StorageError, match=f"{url}/rows/a: .* cannot be reached"):
        nowhere.read("rows/a")
    with pytest.raises(UncertainWriteError, match="cannot be written: the object store cannot be reached"):
        nowhere.prepare()
    missing = open_bucket("s3://no-such-bucket", moto.options)
    for call in (missing.list, lambda: put(missing, "a")):
        with pytest.raises(
            StorageError, match=r"no-such-bucket.*(there is no such bucket|answers 404 NoSuchBucket)"
        ):
            call()


def test_the_environment_has_credentials(moto, monkeypatch):
    url = moto.bucket()
    names = {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "endpoint": "AWS_ENDPOINT_URL",
        "region": "AWS_REGION",
    }
    for name, variable in names.items():
        monkeypatch.setenv(variable, moto.options[name])
    _objects.cache_clear()
    storage = open_bucket(url)
    put(storage, "a", b"x")
    assert storage.read("a") == b"x"
    _objects.cache_clear()


# -- Google --------------------------------------------------------------------------------------


def test_an_object_of_equal_content_is_another_one(gcs):
    """An ETag of Google's is a checksum of the content; only the generation tells the objects apart."""
    objects = maker(gcs)()._objects
    objects.create("a", b"x")
    known = objects.info("a")
    assert objects.replace("a", b"x", known), "by another process"
    assert objects.info("a").e_tag == known.e_tag
    assert not objects.replace("a", b"y", known)
    assert objects.read("a") == b"x"


def test_google_without_a_token_names_the_cause(gcs):
    _objects.cache_clear()
    storage = open_bucket(gcs.bucket(), {**gcs.options, "bearer_token": "another"})
    with pytest.raises(StorageError, match="access is denied"):
        storage.read("a")


# -- URLs --------------------------------------------------------------------------------------


@for_each(
    "url", ["s3://bucket", "s3://bucket/", "S3://bucket/a/b c/", "az://box/folder", "gs://bucket/folder"]
)
def test_urls(url):
    check_url(url)


@for_each(
    ("url", "words"),
    [
        ("gcs://bucket", r"gcs:// is not supported; use .*gs://bucket/folder"),
        ("http://bucket", "http:// is not supported"),
        ("s3:///folder", "plain name of a bucket"),
        ("s3:/bucket/folder", "after s3:// there must be the plain name of a bucket"),
        ("s3://key:secret@bucket/folder", "credentials and options go to storage_options"),
        ("s3://bucket/a//b", "parts between slashes"),
        ("s3://bucket/../b", "parts between slashes"),
        ("s3://bucket/b?sig=secret", "parts between slashes"),
    ],
)
def test_other_urls_are_refused(url, words):
    with pytest.raises(ValueError, match=words) as raised:
        check_url(url)
    assert "secret" not in str(raised.value)
    with pytest.raises(SettingsError, match=words):
        open_bucket(url)


# -- processes ---------------------------------------------------------------------------------


def test_a_forked_child_is_told(storage):
    put(storage, "a", b"x")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            try:
                storage.read("a")
            except StorageError as error:
                os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert b"was forked" in os.read(reader, 1000)
    os.close(reader)


def test_a_cache_holds_each_content_once(moto, tmp_path):
    make = maker(moto, cache_path=tmp_path)
    storage, other = make(), make()
    for number, content in enumerate((b"first", b"second")):
        storage.replace("a", content)
        known = KnownFile(len(content), Chunks.of([content], 64))
        for each in (storage, other, storage):
            assert each.map("a", known).tobytes() == content
            assert each.map("a").tobytes() == content  # of unknown content, which is not kept
        assert len([path for path in tmp_path.iterdir() if not path.suffix]) == number + 1
    assert isinstance(storage, ObjectStorage)


def test_a_walk_is_a_listing_however_many_files_there_are(monkeypatch):
    storage = ObjectStorage(Objects(MemoryStore(), "s3://bucket", "bucket")).within("view/")
    for name in ("a", "rows/b"):
        put(storage, name, name.encode())
    monkeypatch.setattr(Objects, "info", None)
    assert [(info.name, info.size_bytes) for info in storage.walk()] == [("a", 1), ("rows/b", 6)]
