"""Fixtures for tests that drive the store through Feast's interface."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from inspect import signature
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from feast import Entity, FeatureView, Field, FileSource
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig
from feast.types import FeastType, Int64, Set, String

from feast_sketch_store import SketchOnlineStore
from feast_sketch_store.operations import maintenance, reader_memory
from feast_sketch_store.planning.plan import Plan
from feast_sketch_store.planning.planner import plan_view
from feast_sketch_store.storage.system import private_bytes
from feast_sketch_store.view.view import View
from tests.helpers import repository
from tests.helpers.google_fakes import BigtableInMemory, DatastoreInMemory
from tests.helpers.keys import entity_key
from tests.helpers.other_stores import FAKED, SERVED, SERVERS, Other, let_go, options_of
from tests.helpers.processes import run_command, warm_context
from tests.helpers.redis_server import running_redis

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)

Write = tuple[EntityKey, dict[str, Value], datetime, datetime | None]


@dataclass
class Harness:
    """One store with one feature view, as Feast would drive it."""

    config: RepoConfig
    view: FeatureView
    store: Any  # the control has only Feast's methods

    def reopened(self) -> "Harness":
        """The same store as another process would open it."""
        return Harness(self.config, self.view, type(self.store)())

    @property
    def opened(self) -> View:
        """The view as the store has it open."""
        return self.store.view(self.config, self.view)

    @property
    def folder(self) -> Path:
        """The view's folder."""
        return self.store.storage(self.config, self.view).path

    def apply(self, view: FeatureView | None = None) -> None:
        """Declare the view again, or another one in its place."""
        self.view = view or self.view
        self.store.update(self.config, [], [self.view], [], [], False)

    def drop(self) -> None:
        """Remove the view, as an apply without it does."""
        self.store.update(self.config, [self.view], [], [], [], False)

    def seal(self) -> bool:
        """Seal; whether that happened."""
        return self.store.seal(self.config, self.view)

    @staticmethod
    def noon(hours: int = 0) -> datetime:
        """The event timestamp of a row, so many hours after the first."""
        return NOON + timedelta(hours=hours)

    @staticmethod
    def key(**join_keys: Any) -> EntityKey:
        """An entity key; plain ints are int64, strings are strings, a ``Value`` is taken as it is."""
        return entity_key(**join_keys)

    def write(
        self, user: Any, values: dict[str, Value], event: datetime = NOON, created: datetime | None = None
    ) -> None:
        """Write one row."""
        self.write_many([(self.key(user_id=user), values, event, created)])

    def write_users(self, rows: Mapping[Any, dict[str, Value]], hours: int = 0) -> None:
        """Write a row of each user in one batch."""
        self.write_many([(self.key(user_id=u), row, self.noon(hours), None) for u, row in rows.items()])

    def write_many(self, rows: list[Write]) -> None:
        """Write rows in one batch."""
        self.store.online_write_batch(self.config, self.view, rows, None)

    def read(self, *users: Any, features: list[str] | None = None) -> list[Any]:
        """Read rows by ``user_id``."""
        return self.read_keys([self.key(user_id=user) for user in users], features)

    def read_keys(self, keys: list[EntityKey], features: list[str] | None = None) -> list[Any]:
        """Read rows by key."""
        return self.store.online_read(self.config, self.view, keys, features)

    def shown(self, *users: Any, features: list[str] | None = None) -> list[Any]:
        """The values of rows, without their timestamps; None for an absent one."""
        return [values for _, values in self.read(*users, features=features)]

    def countries(self, *users: Any) -> list[str | None]:
        """The countries of users."""
        return [values and values["country"].string_val for values in self.shown(*users)]

    def delete(self, *users: Any) -> None:
        """Delete the rows of users."""
        self.store.delete(self.config, self.view, [self.key(user_id=user) for user in users])


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis of the module's tests, which are skipped if there is none."""
    with running_redis(tmp_path_factory.mktemp("redis")) as (port, _):
        yield port


@pytest.fixture(autouse=True)
def nobody_was_warned(monkeypatch):
    """Forget warnings: a test's folder may have the path of an earlier view with a warning."""
    monkeypatch.setattr("feast_sketch_store.adapter.advice._warned", set())


@pytest.fixture(autouse=True, scope="session")
def no_reader_is_measured():
    """Leave out of reports what only a new interpreter can tell, which takes a second to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "reader_bytes", lambda *_: {})
        yield


@pytest.fixture
def readers_are_measured(monkeypatch):
    """Measure the memory of readers; skips the test where the system does not tell."""
    if private_bytes() is None:
        pytest.skip("the system does not tell")
    monkeypatch.setattr(maintenance, "reader_bytes", reader_memory.reader_bytes)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RepoConfig]:
    """Makes a ``RepoConfig``; keywords become options of the online store."""

    def make(project: str = "shop", **options: Any) -> RepoConfig:
        # Filters, unless a test asks for what the default chooses: they have more to get wrong. Each seal
        # draws a salt, so tests that compare whole answers need a rate that shows no false value in years.
        if options.get("type") == "sqlite":
            options = {"type": "sqlite", "path": str(tmp_path / "online.db")}
        else:
            options = {"target": "error 1e-6", **options}
        return repository.make_config(tmp_path, project, **options)

    return make


@pytest.fixture
def make_view() -> Callable[..., FeatureView]:
    """Makes a feature view, by default over ``user_id``, an Int64; features default to a set of strings."""

    def make(
        features: dict[str, FeastType] | list[Field] | None = None,
        name: str = "history",
        entities: list[Entity] | None = None,
        tags: dict[str, str] | None = None,
        join_keys: dict[str, FeastType] | None = None,
    ) -> FeatureView:
        if features is None:
            features = {"viewed": Set(String)}
        if isinstance(features, dict):
            features = [Field(name=name, dtype=dtype) for name, dtype in features.items()]
        if entities is None:
            columns = [
                Field(name=key, dtype=dtype) for key, dtype in (join_keys or {"user_id": Int64}).items()
            ]
            entities = [
                Entity(
                    name=c.name.removesuffix("_id"), join_keys=[c.name], value_type=c.dtype.to_value_type()
                )
                for c in columns
            ]
            features = [*features, *columns]
        source = FileSource(path=repository.ROWS, timestamp_field="event_timestamp")
        return repository.make_view(features, source, name=name, entities=entities, tags=tags)

    return make


@pytest.fixture
def make_harness(
    make_config: Callable[..., RepoConfig], make_view: Callable[..., FeatureView]
) -> Callable[..., Harness]:
    """Makes a store with one applied feature view; options go to the online store."""

    def make(
        features: Any = None, *, view: FeatureView | None = None, project: str = "shop", **options: Any
    ) -> Harness:
        config = make_config(project, **options)
        store = SketchOnlineStore()
        if options.get("type") == "sqlite":
            from feast.infra.online_stores.sqlite import SqliteOnlineStore

            store = SqliteOnlineStore()
        harness = Harness(config, view or make_view(features), store)
        harness.apply()
        return harness

    return make


@pytest.fixture(scope="module")
def plan_once() -> Callable[..., Plan]:
    """`plan_view` for the views of one repository that are not written any more: makes each plan once."""
    known: dict[Any, Plan] = {}

    def plan(*arguments: Any, **named: Any) -> Plan:
        asked = signature(plan_view).bind(*arguments, **named)
        asked.apply_defaults()
        key = tuple(value for name, value in asked.arguments.items() if name not in ("store", "on_progress"))
        if key not in known:
            known[key] = plan_view(*arguments, **named)
        return known[key]

    return plan


@pytest.fixture(scope="session")
def warm() -> ForkServerContext:
    """Starts processes that begin with Feast imported."""
    return warm_context()


@pytest.fixture(scope="session")
def warm_feast_cli() -> Callable[..., str]:
    """Runs the ``feast`` command in a folder, in a process that begins with Feast imported."""

    def run(folder: Path, *arguments: str, expect_failure: bool = False) -> str:
        done = run_command(["feast", *arguments], cwd=folder)
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == expect_failure, output
        return output

    return run


@pytest.fixture(scope="session")
def other_server(
    tmp_path_factory: pytest.TempPathFactory, object_server: Callable[..., Any]
) -> Iterator[Callable[[str], Any]]:
    """Gives the port, or the ports, of a server of other stores, which is started once; or skips the test."""
    with ExitStack() as running:
        started: dict[str, Any] = {}

        def server(name: str) -> Any:
            if name == "moto":
                return object_server("moto").port
            if name not in started:
                started[name] = running.enter_context(SERVERS[name](tmp_path_factory.mktemp(name)))
            return started[name]

        yield server


@pytest.fixture
def google_project(monkeypatch: pytest.MonkeyPatch) -> str:
    """The project of clients that keep everything in this process."""
    datastore = pytest.importorskip("google.cloud.datastore", reason="needs google-cloud-datastore")
    bigtable = pytest.importorskip("google.cloud.bigtable", reason="needs google-cloud-bigtable")
    monkeypatch.setattr(datastore, "Client", DatastoreInMemory)
    monkeypatch.setattr(bigtable, "Client", BigtableInMemory)
    return "tests"


@pytest.fixture(params=[*SERVED, *FAKED])
def other(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other_server: Callable[[str], Any],
) -> Iterator[Other]:
    """Another store with its configuration, in which a project of the test's name has nothing yet."""
    fixtures = {"redis": "redis_port", "google": "google_project"}

    def place(name: str) -> Any:
        return request.getfixturevalue(fixtures[name]) if name in fixtures else other_server(name)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    options = options_of(request.param, place)
    if request.param == "scylladb":  # has no such option; the driver leaves sockets open as it tries versions
        monkeypatch.setattr("cassandra.cluster.Cluster.protocol_version", 4)
    kind = {"cluster": "redis"}.get(request.param, request.param)
    made = Other(tmp_path / "other", kind, options, "p" + tmp_path.name.replace("-", "_"))
    yield made
    let_go(made.store)


@pytest.fixture
def sqlite(tmp_path: Path) -> Other:
    """Feast's SQLite store of a project, in which nothing is yet."""
    return Other(tmp_path / "other", "sqlite", {"path": "online.db"}, "shop")
