"""Metrics: what they count, in whichever process, and that pages and files name those that there are."""

import errno
import json
import os
import re
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import feast.metrics  # before prometheus_client, as Feast's server does
import pytest
import yaml
from feast.protos.feast.types.Value_pb2 import Value
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from feast_sketch_store import metrics
from feast_sketch_store.errors import DamagedFileError, GateError, RowError, ShardError, StorageError
from feast_sketch_store.operations.metrics_endpoint import exported
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.loading import ShardLoader
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.cases import for_each
from tests.helpers.histories import MOMENT, row, settings_of
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.processes import run_forked

SETTINGS = settings_of(0.01)
DOCS = Path(__file__).parents[2] / "docs"
assert feast.metrics


@pytest.fixture(scope="module", autouse=True)
def files_of_this_process():
    """A scrape reads the files of all processes that ever counted: hundreds, when other tests came before."""
    for file in Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob("*.db"):
        if not file.stem.endswith(f"_{os.getpid()}"):
            file.unlink()


def scraped():
    """What Feast's endpoint would answer: values by name and labels, those of single processes summed up."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "pid"))
            found[sample.name, labels] = found.get((sample.name, labels), 0.0) + sample.value
    return found


def key_of(view, name, **labels):
    """Where a scrape has a metric of a view."""
    return name, tuple(
        sorted({**dict(zip(metrics.READS.labels, view.metrics.labels, strict=True)), **labels}.items())
    )


class Scrape:
    """What changed of one view's metrics since this was made."""

    def __init__(self, view):
        self.view, self.before = view, scraped()

    def all(self, *wanted, **labels):
        self.view.metrics.flush()
        now = scraped()  # of all views of this process
        found = []
        for metric in wanted:
            key = key_of(self.view, metric.name, **labels)
            before = self.before.get(key, 0.0) if metric.kind == metrics.COUNTER else 0.0
            found.append(now.get(key, 0.0) - before)
        return found

    def __call__(self, metric, **labels):
        return self.all(metric, **labels)[0]


@pytest.fixture
def view(tmp_path, request):
    """A view whose metrics no other test has, with as many shards as the test says."""
    folder = tmp_path / "shop" / re.sub(r"\W", "_", request.node.name)
    settings = replace(SETTINGS, num_shards=getattr(request, "param", 1))
    return View(LocalStorage(folder), settings, SealPolicy(1.0, 10**9), 0.0)


@pytest.fixture
def scrape(view):
    return Scrape(view)


def test_reads_and_absent_entities_are_counted(view, scrape):
    view.write([row(1, "x"), row(2, "y")])
    for users in ([1, 2, 3], [3], []):
        view.read(user_hashes(users), ["viewed"])
    assert scrape.all(metrics.READS, metrics.ENTITIES_READ, metrics.ABSENT_ENTITIES) == [3, 4, 2]


def test_reads_of_threads_are_all_counted(view, scrape):
    view.write([row(1, "x")])
    hashes = user_hashes([1, 2])

    def read():
        for _ in range(500):
            view.read(hashes, ["viewed"])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scrape.all(metrics.READS, metrics.ABSENT_ENTITIES) == [2_000, 2_000]


def test_what_is_served_is_told(view, scrape):
    view.write([row(user, f"x{user}") for user in range(50)])
    view.read(user_hashes([1]), [])
    num_rows, size_bytes = scrape.all(metrics.UNSEALED_ROWS, metrics.UNSEALED_BYTES)
    assert num_rows == 50 < size_bytes
    assert view.seal()
    now = [metrics.SEALS, metrics.SEAL_FAILURES, metrics.COMMITS, metrics.UNSEALED_ROWS]
    now += [metrics.SNAPSHOT_VERSION, metrics.SEAL_SECONDS]
    times = [metrics.LAST_SEAL, metrics.SNAPSHOT_TIMESTAMP, metrics.LAST_POLL]
    *counted, took, sealed, snapshot, looked = scrape.all(*now, *times)
    assert counted == [1, 0, 1, 0, 1]
    assert took > 0
    assert 0 <= sealed - snapshot < 60
    assert looked >= snapshot - 1
    expected, sampled = scrape.all(metrics.EXPECTED_RATE, metrics.SAMPLED_RATE, feature="viewed")
    assert 0 < expected <= 0.01
    assert 0 <= sampled <= 0.05  # 5 times as many of 1,000 are no chance


@pytest.mark.parametrize("view", [4], indirect=True, ids=["shards"])
def test_metrics_of_shards_have_the_name_of_their_view(view, scrape):
    view.write([row(user, "x") for user in range(50)])
    view.read(user_hashes([1]), [])
    rows = [scrape(metrics.UNSEALED_ROWS, shard=f"{number:02}") for number in range(4)]
    assert all(rows)
    assert sum(rows) == 50
    assert view.seal()
    of_shards = [metrics.SNAPSHOT_VERSION, metrics.SNAPSHOT_TIMESTAMP, metrics.LAST_POLL, metrics.REFRESHES]
    for number in range(4):
        assert all(scrape.all(*of_shards, shard=f"{number:02}"))
        assert scrape(metrics.EXPECTED_RATE, shard=f"{number:02}", feature="viewed")
    assert scrape.all(metrics.SEALS, metrics.COMMITS, metrics.READS, *of_shards) == [1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("view", [1, 4], indirect=True, ids=["undivided", "shards"])
def test_counters_begin_at_zero_before_the_first_read(view):
    view.current()
    found = scraped()
    counters = metrics.READS, metrics.ENTITIES_READ, metrics.ABSENT_ENTITIES, metrics.SEALS
    for metric in (*counters, metrics.SEAL_FAILURES, metrics.GATE_REFUSALS):
        assert found[key_of(view, metric.name)] == 0
    for error in (RowError, StorageError, UncertainWriteError, GateError, ShardError, DamagedFileError):
        assert found[key_of(view, metrics.REFUSED_COMMITS.name, reason=error.__name__)] == 0
    shard = "" if view.settings.num_shards == 1 else "00"
    assert found[key_of(view, metrics.FALLBACKS.name, shard=shard)] == 0


def test_refused_rows_are_counted_by_their_reason(view, scrape):
    with pytest.raises(RowError):
        view.write([(user_key(7), {"viewed": Value(int64_val=1)}, MOMENT, None)])
    assert scrape(metrics.REFUSED_COMMITS, reason="RowError") == 1
    assert scrape(metrics.COMMITS) == 0


def test_a_poll_that_fails_is_reported_until_one_succeeds(view, scrape):
    view.write([row(1, "x")])
    view.read(user_hashes([1]), [])
    before = scrape(metrics.LAST_POLL)
    with patch.object(ShardLoader, "load", side_effect=StorageError("gone")):
        view.read(user_hashes([1]), [])
    assert scrape.all(metrics.STALE, metrics.REFRESH_FAILURES, metrics.LAST_POLL) == [1, 1, before]
    view.read(user_hashes([1]), [])
    stale, looked = scrape.all(metrics.STALE, metrics.LAST_POLL)
    assert stale == 0
    assert looked > before


def test_what_is_served_is_as_old_as_the_begin_of_its_poll(view, scrape, monkeypatch):
    load, began = ShardLoader.load, []

    def load_slowly(*given):
        began.append(time.time())
        loaded = load(*given)
        threading.Event().wait(0.1)
        return loaded

    monkeypatch.setattr(ShardLoader, "load", load_slowly)
    view.write([row(1, "x")])
    view.read(user_hashes([1]), [])
    assert scrape(metrics.LAST_POLL) <= began[-1] + 0.05


def test_a_seal_that_fails_is_counted(view, scrape):
    view.write([row(1, "x")])
    with (
        patch.object(view.shards[0].snapshots, "publish", side_effect=StorageError("full")),
        pytest.raises(StorageError),
    ):
        view.seal()
    assert scrape.all(metrics.SEALS, metrics.SEAL_FAILURES) == [0, 1]


def test_a_fallback_is_counted_once(view, scrape, tmp_path):
    for user in range(2):
        view.write([row(user, "x")])
        view.seal()
    newest = view.shards[0].snapshots.list()[0]
    (view.storage.path / "snapshots" / f"{newest.name}.base.sketch").write_bytes(b"damaged")
    other = View(view.storage, SETTINGS, SealPolicy(1.0, 10**9), 0.0)
    for _ in range(3):
        assert other.read(user_hashes([0, 1]), [])
    assert scrape(metrics.FALLBACKS) == 1


def _read_in_child(view):
    view.read(user_hashes([1, 2]), [])
    view.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("view", [1, 4], indirect=True, ids=["whole", "shards"])
def test_forked_processes_count_for_themselves(view, scrape):
    view.write([row(1, "x")])
    view.metrics.flush()
    view.metrics._flushed_at = float("inf")  # so that a read is left for later as the children are forked
    view.read(user_hashes([1]), [])
    for _ in range(2):
        run_forked(_read_in_child, view)
    assert scrape.all(metrics.READS, metrics.ENTITIES_READ, metrics.ABSENT_ENTITIES) == [3, 5, 2]


def test_no_process_is_forked_within_a_call_of_the_client(view, monkeypatch):
    """Its locks would stay locked in the child forever."""
    has_lock = []

    class Child:
        def set(self, value):
            has_lock.append(metrics._lock.locked())

        inc = observe = set

    monkeypatch.setattr(metrics, "_child", lambda metric, labels: Child())
    view.write([row(1, "x")])
    view.read(user_hashes([1]), [])
    assert has_lock
    assert all(has_lock)
    run_forked(_read_in_child, view)
    assert not metrics._lock.locked()


def test_nothing_is_counted_where_nobody_can_scrape(view, monkeypatch):
    monkeypatch.delitem(sys.modules, "prometheus_client")
    monkeypatch.setattr(metrics, "_children", {})
    view.write([row(1, "x")])
    view.read(user_hashes([1, 2]), ["viewed"])
    view.seal()
    view.close()
    assert metrics._children == {}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        TypeError("'NoneType' object does not support item assignment"),
    ],
    ids=["disk", "fork"],
)
def test_reads_and_writes_go_on_where_metrics_cannot_be_kept(view, monkeypatch, caplog, error):
    """A process keeps its values in files, which the system may refuse to make or to extend. Where a fork
    that became another user cannot open its own, prometheus_client has none from then on."""
    metrics._warn.cache_clear()
    monkeypatch.setattr(metrics, "_made_of", Mock(side_effect=error))
    monkeypatch.setattr(metrics, "_children", {})
    view.write([row(1, "x")])
    assert view.seal()
    answer = view.read(user_hashes([1]), ["viewed"])
    view.metrics.flush()
    assert len(answer.found) == 1
    assert caplog.text.count("metrics are incomplete") == 1
    assert str(error).rpartition("] ")[2] in caplog.text


def test_a_process_that_seals_exports_them(view):
    view.write([row(1, "x")])
    view.seal()
    with exported("127.0.0.1", 0) as port:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    project, name, _ = view.metrics.labels
    assert f'feast_sketch_seals_total{{project="{project}",shard="",view="{name}"}} 1.0' in answer


# -- pages and files ---------------------------------------------------------------------------

NAMES = {metric.name for metric in metrics.ALL}


def named_in(text):
    return {
        name.removesuffix("_bucket") for name in re.findall(r"\bfeast_sketch_(?!store\b)[a-z_]+[a-z]", text)
    }


@for_each("page", ["how_to/fleet.md", "grafana-dashboard.json", "prometheus-alerts.yaml"])
def test_metrics_that_a_page_names_exist(page):
    named = named_in((DOCS / page).read_text())
    assert named
    assert named <= NAMES


def unit_of(expression):
    if "_seconds" in expression:
        return "time"
    return "flag" if re.search("_(stale|pinned){", expression) else "number"


def test_the_time_of_reads_is_counted(view):
    for seconds in (9e-6, 3e-5, 3e-5, 2.0):
        view.metrics.count_read(1, 1, seconds)
    view.metrics.count_read(1, 1)
    view.metrics.flush()
    found, name = scraped(), "feast_sketch_read_seconds"
    bounds = ("1e-05", "2.5e-05", "5e-05", "1.0", "+Inf")
    assert [found[key_of(view, f"{name}_bucket", le=bound)] for bound in bounds] == [1, 1, 3, 3, 4]
    assert found[key_of(view, f"{name}_count")] == 4
    assert found[key_of(view, f"{name}_sum")] == pytest.approx(2.000069)


def test_the_dashboard_and_the_alerts_are_whole():
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    for panel in panels:
        assert panel["title"]
        assert all(named_in(target["expr"]) for target in panel["targets"])
        assert len({unit_of(target["expr"]) for target in panel["targets"]}) == 1, panel["title"]
    rules = [
        rule
        for group in yaml.safe_load((DOCS / "prometheus-alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert {"FeastSketchStale", "FeastSketchFallback", "FeastSketchSealFailing"} <= {
        r["alert"] for r in rules
    }
    for rule in rules:
        assert named_in(rule["expr"])
        assert rule["for"]
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
