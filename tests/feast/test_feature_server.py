"""`feast serve` with two workers over HTTP, with SQLite as the control; both workers are asked each time."""

import asyncio
import functools
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import feast.metrics  # before prometheus_client; the server's workers count in the same folder
import pandas as pd
import pytest
from feast import FeatureService, FeatureStore, FeatureView, Field, FileSource, PushSource
from feast.types import Int64, Set, String
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from requests import RequestException

from tests.helpers.length import by_length
from tests.helpers.ports import free_port
from tests.helpers.processes import PATIENCE_SECONDS, start_command
from tests.helpers.repository import USER, make_config, make_repository

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
APRIL = NOON - timedelta(20)
LARGE = by_length(4_000, 20_000)  # rows

USER_ID, VIEWED = Field(name="user_id", dtype=Int64), Field(name="viewed", dtype=Set(String))
COUNTRY = Field(name="country", dtype=String)

ONLINE_STORES = {
    "sqlite": {"type": "sqlite", "path": "data/online.db"},
    "sketch": {
        "type": "sketch",
        "path": "data/sketch",
        "refresh": "0.1s",
        "compaction": {"min_rows": 5},
        "target": "error 1e-9",
        "advanced": {"scalar_error": 1e-9, "presence_error": 1e-9},
    },
}


@dataclass
class Server:
    """A running feature server."""

    repo: Path
    kind: str
    port: int
    process: BaseProcess

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def send(self, path: str, body: dict | bytes | None = None) -> tuple[int, str]:
        """The status and the text of an answer; a POST if there is a body."""
        if isinstance(body, dict):
            body = json.dumps(body, default=str).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def post(self, path: str, body: dict) -> str:
        status, text = self.send(path, body)
        assert status == 200, f"{status}: {text}"
        return text

    def write(self, df: dict, view: str = "history") -> None:
        self.post("/write-to-online-store", {"feature_view_name": view, "df": df})

    def ask(self, *users: int, **request) -> dict:
        """The values that any worker answers."""
        request = {"features": ["history:viewed", "history:country"], **request}
        answer = json.loads(self.post("/get-online-features", {"entities": {"user_id": users}, **request}))
        columns = zip(answer["metadata"]["feature_names"], answer["results"], strict=True)
        return {
            name: [set(v) if isinstance(v, list) else v for v in column["values"]] for name, column in columns
        }

    def ask_both(self, *users: int, **request) -> list[dict]:
        """The values that each worker answers."""
        answers = []
        for worker in self.workers:
            with self.only(worker):
                answers.append(self.ask(*users, **request))
        assert len(answers) == 2
        return answers

    @contextmanager
    def only(self, worker: int):
        """Stop the other worker for a while, so that this one takes all connections."""
        others = [pid for pid in self.workers if pid != worker]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def countries(self, *users: int, features=("history:country",)) -> list[list]:
        return [answer["country"] for answer in self.ask_both(*users, features=features)]

    def await_countries(self, wanted: list, *users: int, features=("history:country",)) -> None:
        """Wait until both workers answer so: each looks for what others wrote after its refresh interval.

        One is asked first without stopping the other, which may be the one that is writing.
        """
        ask = functools.partial(self.ask, *users, features=features)
        assert _soon(lambda: ask()["country"] == wanted), ask()
        ask_both = functools.partial(self.countries, *users, features=features)
        assert _soon(lambda: ask_both() == [wanted, wanted]), ask_both()


def _soon(is_so) -> bool:
    """Whether something becomes so, with patience for a loaded machine."""
    pause = threading.Event()  # never set: paces the polling of another process
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.05)
    return True


@pytest.fixture(scope="module", params=ONLINE_STORES)
def server(request, tmp_path_factory):
    repo = tmp_path_factory.mktemp(request.param)
    (repo / "data").mkdir()
    registry = {"path": "data/registry.db", "serve_features_while_materializing": True}
    make_repository(repo, *_features(repo / "data"), registry=registry, **ONLINE_STORES[request.param])
    port = free_port()
    options = ["-h", "127.0.0.1", "-p", str(port), "-w", "2", "--max-requests", "1000000"]
    with (repo / "server.log").open("w") as log:
        process = start_command(
            ["feast", "serve", *options], cwd=repo, stdout=log.fileno(), stderr=log.fileno()
        )
        server = Server(repo, request.param, port, process)
        try:
            assert _soon(lambda: _is_healthy(server)), (repo / "server.log").read_text()
            yield server
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.join(PATIENCE_SECONDS)


def _features(folder: Path) -> list:
    """A view with sets and one without, which can be pushed to, and a large one."""
    sources = {}
    for name in ("rows", "large_rows"):
        frame([0], ["a"], "FR").to_parquet(folder / f"{name}.parquet")
        sources[name] = FileSource(
            name=name,
            path=str(folder / f"{name}.parquet"),
            timestamp_field="event_timestamp",
            created_timestamp_column="created",
        )
    history = _view("history", PushSource(name="events", batch_source=sources["rows"]), VIEWED)
    places = _view("places", PushSource(name="moves", batch_source=sources["rows"]))
    large = _view("large", sources["large_rows"], VIEWED)
    return [history, places, large, FeatureService(name="recommender", features=[history])]


def _view(name: str, source, *fields: Field) -> FeatureView:
    schema = [USER_ID, COUNTRY, *fields]
    return FeatureView(name=name, entities=[USER], schema=schema, source=source, ttl=timedelta(0))


def _is_healthy(server: Server) -> bool:
    assert server.process.exitcode is None, (server.repo / "server.log").read_text()
    try:
        return server.send("/health")[0] == 200 and len(server.workers) == 2
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def frame(users, viewed, country, moment=NOON) -> pd.DataFrame:
    """Rows of one moment; all users viewed the same, in the same country."""
    viewed = [viewed] * len(users)
    return pd.DataFrame({"user_id": users, "viewed": viewed, "country": country}).assign(
        event_timestamp=moment, created=moment
    )


def columns(users, viewed, country, moment=NOON) -> dict:
    """The same, as JSON takes them."""
    return frame(users, viewed, country, moment.isoformat()).to_dict("list")


@pytest.mark.slow
def test_requests_by_features_and_by_service(server):
    server.write(columns([10, 11], ["a", "b"], "FR"))
    server.await_countries(["FR", "FR", None], 10, 11, 19)
    wanted = {"user_id": [10, 19], "viewed": [{"a", "b"}, None], "country": ["FR", None]}
    assert server.ask_both(10, 19) == [wanted] * 2
    assert server.ask_both(10, 19, features=[], feature_service="recommender") == [wanted] * 2
    full = {"user_id": [10], "history__viewed": [{"a", "b"}], "history__country": ["FR"]}
    assert server.ask_both(10, full_feature_names=True) == [full] * 2
    request = {"features": ["history:country"], "entities": {"user_id": [10, 19]}}
    request["include_feature_view_version_metadata"] = True
    answer = json.loads(server.post("/get-online-features", request))
    country = answer["results"][answer["metadata"]["feature_names"].index("country")]
    assert country["statuses"] == ["PRESENT", "NOT_FOUND"]
    assert country["event_timestamps"] == ["2026-05-01T12:00:00Z", "1970-01-01T00:00:00Z"]
    assert [view["name"] for view in answer["metadata"]["feature_view_metadata"]] == ["history"]


COUNTERS = ("feast_sketch_reads_total", "feast_sketch_absent_entities_total")


def scraped() -> list[float]:
    """Counters of the view ``history``, as Feast's endpoint adds them up from the files of all workers."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    samples = [sample for family in registry.collect() for sample in family.samples]
    own = [sample for sample in samples if sample.labels.get("view") == "history"]
    return [sum(sample.value for sample in own if sample.name == name) for name in COUNTERS]


def test_metrics_of_forked_workers_add_up(server):
    assert feast.metrics
    for worker in server.workers:
        before = scraped()

        def are_counted(before=before):
            server.ask(10**6)  # nobody; what was counted before is written with the next read
            return [now > then for now, then in zip(scraped(), before, strict=True)]

        with server.only(worker):
            if server.kind == "sketch":
                assert _soon(lambda: all(are_counted())), f"worker {worker} counts nothing"
            else:  # workers of the other server, which is ending, may still write what they counted
                assert _soon(lambda: not any(are_counted(scraped())))


def test_push(server):
    for number, country in enumerate(["FR", "DE"]):
        df = columns([30], [country], country, NOON + timedelta(hours=number))
        server.post("/push", {"push_source_name": "events", "df": df, "to": "online"})
        server.await_countries([country], 30)
    assert server.ask(30)["viewed"] == [{"DE"}]


def test_materialize_and_materialize_incremental(server):
    rows = pd.concat([frame([40], ["a"], "FR"), frame([41], ["b"], "DE", NOON + timedelta(2))])
    rows.to_parquet(server.repo / "data" / "rows.parquet")
    body = {"start_ts": APRIL.isoformat(), "end_ts": (NOON + timedelta(1)).isoformat()}
    server.post("/materialize", {**body, "feature_views": ["history"]})
    server.await_countries(["FR", None], 40, 41)
    body = {"end_ts": (NOON + timedelta(3)).isoformat(), "feature_views": ["history"]}
    server.post("/materialize-incremental", body)
    server.await_countries(["FR", "DE"], 40, 41)


def test_materialize_without_waiting_for_it(server):
    frame([50], ["a"], "FR", NOON + timedelta(4)).to_parquet(server.repo / "data" / "rows.parquet")
    body = {"start_ts": (NOON + timedelta(3)).isoformat(), "end_ts": (NOON + timedelta(5)).isoformat()}
    status, text = server.send("/materialize?async=true", {**body, "feature_views": ["history"]})
    assert (status, json.loads(text)["status"]) == (202, "accepted")
    server.await_countries(["FR"], 50)


READ, WRITE = "/get-online-features", "/write-to-online-store"
GOOD_READ = {"features": ["history:country"], "entities": {"user_id": [60]}}
ROWS = columns([61], ["a"], "FR")
BACKWARDS = {"start_ts": NOON.isoformat(), "end_ts": APRIL.isoformat()}


def write_of(df, view="history"):
    return {"feature_view_name": view, "df": df}


WRONG_REQUESTS = {
    "unknown feature": (READ, {**GOOD_READ, "features": ["history:age"]}, "age"),
    "wrong entity type": (READ, {**GOOD_READ, "entities": {"user_id": ["one"]}}, ""),
    "unknown push source": ("/push", {"push_source_name": "nobody", "df": ROWS}, "nobody"),
    "unknown target": ("/push", {"push_source_name": "events", "df": ROWS, "to": "moon"}, "moon"),
    "written to an unknown view": (WRITE, write_of(ROWS, "past"), "past"),
    "written with a feature missing": (
        WRITE,
        write_of({name: values for name, values in ROWS.items() if name != "country"}),
        "country",
    ),
    "written with a wrong type": (WRITE, write_of({**ROWS, "user_id": ["one"]}), ""),
    "written with columns of different lengths": (
        WRITE,
        write_of({**ROWS, "country": ["FR", "DE"]}),
        "length",
    ),
    "materialized backwards": ("/materialize", BACKWARDS, "before"),
}


@pytest.mark.parametrize("case", WRONG_REQUESTS)
def test_a_wrong_request_gets_an_error_and_the_next_an_answer(server, case):
    path, body, reported = WRONG_REQUESTS[case]
    workers = server.workers
    for worker in workers:
        with server.only(worker):
            status, text = server.send(path, body)
        assert 400 <= status <= 599
        assert len(text) > 2
        assert reported in text
    assert server.countries(60, 61) == [[None, None]] * 2
    assert server.workers == workers


@pytest.mark.slow
def test_the_remote_online_store_of_another_repository(server, tmp_path):
    """Its client reads and writes through the server, and shares its registry."""
    registry = str(server.repo / "data" / "registry.db")
    config = make_config(tmp_path, registry=registry, type="remote", path=server.url)
    client = FeatureStore(config=config)
    rows, places = [{"user_id": 70}, {"user_id": 79}], ["places:country"]
    try:
        # Feast 0.67's remote store cannot write sets, nor timestamps under other names than these.
        client.write_to_online_store("places", frame([70], ["a"], "FR"))
        server.await_countries(["FR"], 70, features=places)
        assert client.get_online_features(places, rows).to_dict()["country"] == ["FR", None]
        client.push("moves", frame([70], ["a"], "DE", NOON + timedelta(1)))
        server.await_countries(["DE"], 70, features=places)
        answer = client.get_online_features(places, rows, full_feature_names=True).to_dict()
        assert answer["places__country"] == ["DE", None]

        server.write(columns([70], ["a", "b"], "IT"))
        server.await_countries(["IT"], 70)
        answer = client.get_online_features(client.get_feature_service("recommender"), rows).to_dict()
        assert answer["country"] == ["IT", None]
        assert set(answer["viewed"][0]) == {"a", "b"}
        with pytest.raises((RuntimeError, RequestException)):
            client.get_online_features(["history:age"], rows)
    finally:
        asyncio.run(client.close())


@pytest.mark.slow
@pytest.mark.has_long_form
def test_reads_go_on_while_another_process_materializes(server, warm_feast_cli):
    """Each answer is one of before or of after, none is missing, and in the end all are of after."""
    if server.kind == "sqlite":
        pytest.skip("Feast's SQLite store locks its file meanwhile")
    features = ["large:viewed", "large:country"]
    server.write(columns(list(range(1_000)), ["a", "b"], "FR"), view="large")
    server.await_countries(["FR"] * 1_000, *range(1_000), features=features)
    seen, wrong, ended = set(), [], threading.Event()

    def read(first):
        is_last = False  # which is one that begins after both workers have the new rows
        while not is_last:
            is_last = ended.wait(0.01)
            answer = server.ask(*range(first, first + 10), features=features)
            for country, viewed in zip(answer["country"], answer["viewed"], strict=True):
                seen.add(country)
                if (country, viewed) not in [("FR", {"a", "b"}), ("DE", {"b", "c"})]:
                    wrong.append((country, viewed))
            first = (first + 20) % 1_000

    after = frame(range(LARGE), ["b", "c"], "DE", NOON + timedelta(2))
    after.to_parquet(server.repo / "data" / "large_rows.parquet")
    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(read, first) for first in (0, 10)]
        try:
            moments = ("2026-05-02T00:00:00", "2026-05-04T00:00:00")
            warm_feast_cli(server.repo, "materialize", "--views", "large", *moments)
            server.await_countries(["DE"] * 4, 0, 999, 1_000, LARGE - 1, features=features)
        finally:
            ended.set()
    for reader in reading:
        reader.result()
    assert not wrong
    assert seen == {"FR", "DE"}
    store = FeatureStore(repo_path=str(server.repo))
    answer = store.get_online_features(["large:country"], {"user_id": list(range(LARGE))}).to_dict()
    assert answer["country"] == ["DE"] * LARGE
