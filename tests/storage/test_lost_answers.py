"""Puts whose answer is lost, and puts that arrive twice: at every step of writing, sealing and rebuilding."""

import re
from contextlib import suppress
from unittest.mock import Mock, patch

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.storage import buckets, object_store, objects
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.storage.buckets import open_bucket
from feast_sketch_store.storage.object_store import ObjectStorage
from feast_sketch_store.storage.objects import Objects
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.view import View
from tests.faults.publishing import STEPS
from tests.helpers.histories import CODEC, NEVER, items_of, put, settings_of
from tests.helpers.http_proxy import Request, request_proxy
from tests.helpers.length import by_length

pytestmark = pytest.mark.slow

SETTINGS = settings_of(1e-9, presence=1e-9)
PUTS = [name for name, pattern in STEPS.items() if pattern.startswith("PUT")]
OF_SEALS = [name for name in PUTS if name != "commit"]
POINTS_OF_NO_RETURN = ["commit of the table", "manifest"]
OF_REBUILDS = [name for name in PUTS if name != "lease"]  # held before there are new rows


class Fault:
    """Loses or doubles the n-th put of a step.

    ``lost``: it is done, the answer is lost. ``twice``: it is done twice, and the second answer comes back.
    ``late``: it is done, and once more when the fault ends. ``delayed``: the answer is lost; it is done when
    the fault ends. ``then_down``: nothing is answered until then.
    """

    def __init__(self, kind, step, then_down=False):
        self.kind = kind
        self.num_met = 0
        self._then_down = then_down
        self._is_down = False
        self._again = None
        self._pattern = re.compile(STEPS[step])

    def of(self, what, call):
        """What comes back of a call, which may be made again; None if its answer is lost."""
        if self._is_down:
            return None
        if not self._pattern.search(what):
            return call()
        self.num_met += 1
        if self.num_met != 1:
            return call()
        self._is_down = self._then_down
        if self.kind == "delayed":
            self._again = call
            return None
        answer = call()
        if self.kind == "lost":
            return None
        if self.kind == "twice":
            return call()
        self._again = call
        return answer

    def end(self):
        self._is_down = False
        if self._again is not None:
            with suppress(AlreadyExistsError):
                self._again()


class InMemory:
    """A view in a bucket in this process, whose calls may fail."""

    def __init__(self, monkeypatch):
        self.fault = None
        self._store = MemoryStore()
        monkeypatch.setattr(objects, "obstore", self)

    def __getattr__(self, name):
        made = getattr(obstore, name)

        def call(store, key=None, *arguments, **options):
            if self.fault is None or store is not self._store:
                return made(self._store, key, *arguments, **options)
            what = f"{name.upper()} /{key}"
            answer = self.fault.of(what, lambda: (made(self._store, key, *arguments, **options),))
            if answer is None:
                raise OSError("error sending request")
            return answer[0]

        return call

    def storage(self, through_fault=False):
        store = self._store if through_fault else object()
        return ObjectStorage(Objects(store, "s3://bucket", f"bucket of {store}"), "store/").within("view/")


class Served:
    """A view in a bucket of a server, reached through a proxy."""

    def __init__(self, server, link):
        self._server, self._link = server, link
        self._url = server.bucket() + "/store"

    @property
    def fault(self):
        return None

    @fault.setter
    def fault(self, fault):
        def handle(request):
            return fault.of(f"{request.method} {request.target}", request.answered)

        self._link.handle = Request.answered if fault is None else handle

    def storage(self, through_fault=False):
        options = self._server.options
        options = self._link.options(options) if through_fault else options
        return open_bucket(self._url, options).within("view/")


@pytest.fixture(autouse=True)
def leases_that_have_ended(monkeypatch):
    """One who could not release a lease keeps nobody out for a minute."""
    monkeypatch.setattr(object_store, "LEASE_SECONDS", 0.0)


@pytest.fixture
def bucket(monkeypatch):
    return InMemory(monkeypatch)


@pytest.fixture
def served(moto):
    buckets._objects.cache_clear()
    with request_proxy(moto.port) as link:
        yield Served(moto, link)
    buckets._objects.cache_clear()


def opened(bucket, through_fault=False):
    return View(bucket.storage(through_fault), SETTINGS, NEVER, 0.0)


def write(view, users, item, second=0):
    put(view, dict.fromkeys(users, (item,)), second)


def read(view):
    return items_of(view, range(60))


def started(bucket):
    """A view with sealed rows and rows since, and what reads must give."""
    view = opened(bucket, through_fault=True)
    write(view, range(40), "a")
    view.seal()
    write(view, range(30, 50), "b", 1)
    return view, {user: {"a"} for user in range(30)} | {user: {"b"} for user in range(30, 50)}


def check_goes_on(bucket, view, wanted):
    """A view of another process reads the same, a seal and a vacuum work, and nothing is wrong."""
    assert verify_view(bucket.storage(), [CODEC]).problems == []
    assert read(view) == read(opened(bucket)) == wanted
    write(view, [55], "c", 2)
    wanted = wanted | {55: {"c"}}
    assert view.seal()
    view.vacuum(0.0)
    assert read(view) == read(opened(bucket)) == wanted
    found = verify_view(bucket.storage(), [CODEC])
    assert (found.problems, found.leftovers) == ([], [])


KINDS = ["lost", "twice", "late"]
FAILING = ("lost", "delayed")
OF_POINTS = ["delayed", "lost, then down"]


def fault_of(kind, step):
    kind, _, then = kind.partition(", ")
    return Fault(kind, step, then_down=bool(then))


def check_commits(bucket, *kinds):
    view, wanted = started(bucket)
    for user, kind in enumerate(kinds, 50):
        before = RowLog(bucket.storage()).read().position.number
        bucket.fault = fault = fault_of(kind, "commit")
        try:
            write(view, [user], kind, 2)
        except UncertainWriteError:
            assert fault.kind in FAILING
        fault.end()
        assert fault.num_met >= 1
        bucket.fault = None
        assert RowLog(bucket.storage()).read().position.number == before + 1
        wanted[user] = {kind}
    check_goes_on(bucket, view, wanted)


def check_seal(bucket, step, kind, as_delta):
    view, wanted = started(bucket)
    bucket.fault = fault = fault_of(kind, step)
    try:
        view.seal(as_delta)
    except StorageError:
        assert fault.kind in FAILING
    assert fault.num_met
    assert read(view) == wanted, "reads go on with what they have"
    fault.end()
    bucket.fault = None
    check_goes_on(bucket, view, wanted)


def check_rebuild(bucket, step, kind):
    view, old = started(bucket)
    new = {user: {"new"} for user in range(20)}
    fault, is_done = fault_of(kind, step), True

    def fill(staging):
        write(View(staging, SETTINGS, NEVER, 0.0), range(20), "new", -5)
        bucket.fault = fault  # before, nothing of the view is at stake
        return staging

    try:
        rebuild(view, fill)
    except StorageError:
        assert fault.kind in FAILING
        is_done = False
    assert read(view) in ([new] if is_done else [old, new]), "reads go on with what they have"
    fault.end()
    bucket.fault = None
    assert fault.num_met
    wanted = read(opened(bucket))
    assert wanted in ([new] if is_done else [old, new])
    check_goes_on(bucket, view, wanted)
    fault = None
    assert rebuild(view, fill)
    assert read(view) == read(opened(bucket)) == new


@pytest.mark.parametrize("kind", [*KINDS, *OF_POINTS])
def test_a_commit_counts_once(bucket, kind):
    check_commits(bucket, kind)


def test_commits_over_a_network_count_once(served):
    check_commits(served, *KINDS)


def test_a_commit_that_was_written_again_reads_as_if_it_was_written_once(bucket):
    view, wanted = started(bucket)
    bucket.fault = Fault("lost", "commit")
    with pytest.raises(UncertainWriteError):
        write(view, [50, 51], "d", 2)
    write(view, [50, 51], "d", 2)
    check_goes_on(bucket, view, wanted | {user: {"d"} for user in (50, 51)})


SEALS = [
    *((step, kind, False) for step in OF_SEALS for kind in KINDS),
    *((step, kind, False) for step in POINTS_OF_NO_RETURN for kind in OF_POINTS),
    *((step, kind, True) for step in POINTS_OF_NO_RETURN for kind in OF_POINTS),
    *((step, "lost", True) for step in ("sealed rows", "manifest")),
]
REBUILDS = [
    *((step, kind) for step in OF_REBUILDS for kind in KINDS),
    *((step, "lost, then down") for step in POINTS_OF_NO_RETURN),
    ("manifest", "delayed"),
]


@pytest.mark.has_long_form
@pytest.mark.parametrize(("step", "kind", "as_delta"), SEALS[:: by_length(4, 1)])
def test_a_seal_loses_nothing(bucket, step, kind, as_delta):
    check_seal(bucket, step, kind, as_delta)


@pytest.mark.has_long_form
@pytest.mark.parametrize(("step", "kind"), REBUILDS[:: by_length(4, 1)])
def test_a_rebuild_happens_whole_or_not_at_all(bucket, step, kind):
    check_rebuild(bucket, step, kind)


def test_a_rebuild_that_is_done_after_it_failed_shows_with_the_next_seal(bucket):
    view, old = started(bucket)
    new = {user: {"new"} for user in range(20)}
    fault = Fault("delayed", "commit of the table")

    def fill(staging):
        write(View(staging, SETTINGS, NEVER, 0.0), range(20), "new", -5)
        bucket.fault = fault
        return staging

    with pytest.raises(StorageError):
        rebuild(view, fill)
    assert read(view) == old
    fault.end()
    bucket.fault = None
    opened(bucket).seal()
    check_goes_on(bucket, view, new)


def test_where_nothing_may_be_deleted_a_seal_works_and_a_vacuum_says_so(bucket, monkeypatch, caplog):
    view, wanted = started(bucket)
    refused = GenericError("status code: 403 <Code>AccessDenied</Code>")
    monkeypatch.setattr(obstore, "delete", Mock(side_effect=refused))
    assert all(view.seal() for _ in range(3))
    for kept in (r"snapshots/\S+\.json", r"seal\.lock"):
        assert re.search(f"{kept}: cannot be deleted: access is denied", caplog.text)
    assert read(view) == wanted
    with pytest.raises(StorageError, match=r"snapshots/.* cannot be deleted: access is denied"):
        view.vacuum(0.0)


def test_a_rebuild_whose_answer_is_lost_on_a_network_happened(served):
    check_rebuild(served, "commit of the table", "lost")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_put_that_may_have_been_made_is_uncertain(is_new):
    """Its answer is lost, the next try is refused, and whose object is there gets no answer."""
    bucket = Objects(MemoryStore(), "s3://bucket", "bucket")
    if not is_new:
        bucket.create("key", b"old")
    bucket.require_conditions()
    known, put = bucket.info("key"), obstore.put

    def put_unanswered(*arguments, **options):
        put(*arguments, **options)
        raise GenericError("ConnectionReset")

    with (
        patch.object(obstore, "put", put_unanswered),
        patch.object(obstore, "get", side_effect=GenericError("kind: Timeout")),
        pytest.raises(UncertainWriteError),
    ):
        bucket.create("key", b"new") if is_new else bucket.replace("key", b"new", known)
    assert bucket.read("key") == b"new"


@pytest.mark.parametrize("refused", [PermissionDeniedError("status code: 403"), FileNotFoundError()])
def test_a_put_whose_next_try_is_refused_is_uncertain(monkeypatch, refused):
    """Credentials expire after a try whose answer is lost."""
    bucket = Objects(MemoryStore(), "s3://bucket", "bucket")
    bucket.require_conditions()
    put, answers = obstore.put, iter([GenericError("ConnectionReset"), refused])

    def put_unanswered(*arguments, **options):
        with suppress(AlreadyExistsError):
            put(*arguments, **options)
        raise next(answers)

    monkeypatch.setattr(obstore, "put", put_unanswered)
    with pytest.raises(UncertainWriteError):
        bucket.create("key", b"new")
    assert bucket.read("key") == b"new"


def test_an_object_that_must_not_be_changed_is_not_called_replaced(monkeypatch):
    """Azure answers 409 in a container of immutable blobs."""
    bucket = Objects(MemoryStore(), "az://box", "box")
    bucket.replace("key", b"old")
    monkeypatch.setattr(obstore, "put", Mock(side_effect=AlreadyExistsError("status code: 409")))
    for write in (lambda: bucket.replace("key", b"new"), bucket.now):
        with pytest.raises(
            UncertainWriteError, match=r"^az://box/.*: the object store refuses to overwrite it"
        ):
            write()
