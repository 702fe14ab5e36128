"""Spark fills a view: Feast's engine as it is, and the one that writes to the row log.

Executors are processes of their own here, so that one can be killed. Their workers have two addresses, as if
they were of two hosts, because Spark runs no twin of a task on the host of its first attempt. The workers of
``local-cluster`` share one address; so the module starts what that starts.
"""

import gc
import tracemalloc
from functools import partial

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="install the extra engines-spark")

from feast.infra.common.serde import SerializedArtifacts
from feast.infra.compute_engines.spark import nodes
from feast.infra.compute_engines.spark.compute import SparkComputeEngine
from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource
from pyspark import SparkContext
from pyspark.sql import SparkSession

from feast_sketch_store.engines import spark_engine
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.view import opening
from tests.engines import faulty
from tests.engines.conftest import NOON, items_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of Feast's Spark offline store, and of py4j's sockets

OWN = {"type": "feast_sketch_store.engines.SketchSparkEngine"}


HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def cluster(workers_find_the_tests, tmp_path_factory):
    """The address of a master with a worker for each host, in the Java process of this one."""
    SparkContext._ensure_initialized()
    java, gateway = SparkContext._jvm, SparkContext._gateway
    deploy, conf = java.org.apache.spark.deploy, java.org.apache.spark.SparkConf()
    conf.set("spark.master.rest.enabled", "false")
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)._1()
    urls = gateway.new_array(java.java.lang.String, 1)
    urls[0] = f"spark://{HOSTS[0]}:{master.address().port()}"
    nothing = java.scala.Option.empty()
    workers = []
    for number, host in enumerate(HOSTS):
        folder = str(tmp_path_factory.mktemp("worker"))
        numbered = java.scala.Option.apply(number)
        workers.append(
            deploy.worker.Worker.startRpcEnvAndEndpoint(
                host, 0, 0, 1, 800, urls, folder, numbered, conf, nothing
            )
        )
    yield urls[0]
    for started in (*workers, master):
        started.shutdown()
        started.awaitTermination()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at which Java ends
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def session(cluster):
    session = (
        SparkSession.builder.master(cluster)
        .config("spark.executor.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")  # which would make one task of so few rows
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.task.maxFailures", "2")
        .config("spark.python.daemon.module", "tests.engines.daemon")
        .config("spark.locality.wait", "0")
        .config("spark.speculation", "true")
        .config("spark.speculation.efficiency.enabled", "false")
        .config(
            "spark.speculation.quantile", "1.0"
        )  # of the tasks must be done: no twins, but where a test asks
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def twins_of_slow_tasks(session):
    """Spark runs a twin of a task that takes longer than others did."""
    conf = session.sparkContext._jsc.sc().conf()  # which each set of tasks reads anew
    conf.set("spark.speculation.quantile", "0.25")
    yield
    conf.set("spark.speculation.quantile", "1.0")


def parquet(**options):
    return SparkSource(file_format="parquet", **options)


def renamed(path, **options):
    """The same rows, whose join key has another name in the source."""
    query = f"SELECT user_id AS number, viewed, event_timestamp FROM parquet.`{path}`"
    return SparkSource(query=query, field_mapping={"number": "user_id"}, **options)


@pytest.fixture
def spark_repository(session, make_repository):
    def make(engine, source=parquet, **options):
        return make_repository(engine, {"type": "spark"}, source, **options)

    return make


def test_feasts_engine_loses_no_row_with_its_executor(spark_repository, monkeypatch, tmp_path):
    repository = spark_repository({"type": "spark.engine"}, compaction="job")
    folder = str(tmp_path)

    def write(batches, serialized_artifacts, mode="online"):
        return faulty.feasts_write_and_die(batches, serialized_artifacts, mode, folder=folder)

    monkeypatch.setattr(nodes, "map_in_arrow", write)
    repository.materialize()
    assert (tmp_path / "died").exists()
    repository.check()
    log = RowLog(repository.view.storage).read()
    num_rows = sum(len(commit.rows) for commit in log.commits)
    assert num_rows >= 2 * repository.num_users + 100  # all twice, and those of the killed task once more
    # A process opens the view once, for all the stores that Feast makes.
    views = {}
    for line in (tmp_path / "views").read_text().splitlines():
        pid, view = line.split()
        views.setdefault(pid, []).append(view)
    assert all(len(set(of_process)) == 1 for of_process in views.values())
    assert max(map(len, views.values())) > 1


def test_a_job_loses_no_row_with_its_executor(spark_repository, monkeypatch, tmp_path):
    repository = spark_repository(OWN)
    monkeypatch.setattr(spark_engine, "write", faulty.dying(tmp_path, faulty.kill_executor))
    repository.materialize()
    assert (tmp_path / "died").exists()
    repository.check()
    view = repository.view
    stats = view.stats()
    assert (stats.sealed_entities, stats.unsealed_rows) == (repository.num_users, 0)
    # Nothing is there twice, and nothing is left of the other runs.
    files = RowLog(view.storage).read().parts
    assert sum(file.num_rows for file in files) == repository.num_users
    named = {file.name for file in files}
    assert {name for name in view.storage.within("rows/").list() if name.endswith(".parquet")} == named


def written_by_two_executors(folder):
    return len({(folder / f"attempt {number}").read_text() for number in (0, 1)}) == 2


def test_twins_under_feasts_engine_write_twice_and_harm_nothing(
    spark_repository, twins_of_slow_tasks, monkeypatch, tmp_path
):
    repository = spark_repository({"type": "spark.engine"}, compaction="job")
    write = partial(faulty.written_by_twins, write=nodes.map_in_arrow, folder=str(tmp_path))
    monkeypatch.setattr(nodes, "map_in_arrow", write)
    repository.materialize()
    assert written_by_two_executors(tmp_path)
    repository.check()
    num_rows = sum(map(len, RowLog(repository.view.storage).read().batches()))
    assert num_rows > repository.num_users
    assert repository.view.seal()
    assert repository.view.stats().sealed_entities == repository.num_users
    repository.check()


def test_of_twins_one_counts(spark_repository, twins_of_slow_tasks, monkeypatch, tmp_path):
    repository = spark_repository(OWN)
    write = partial(faulty.written_by_twins, write=spark_engine.write, folder=str(tmp_path))
    monkeypatch.setattr(spark_engine, "write", write)
    repository.materialize()
    assert written_by_two_executors(tmp_path)
    repository.check()
    view = repository.view
    files = RowLog(view.storage).read().parts
    assert sum(file.num_rows for file in files) == view.stats().sealed_entities == repository.num_users
    named = {file.name for file in files}
    assert {name for name in view.storage.within("rows/").list() if name.endswith(".parquet")} == named


def test_the_memory_of_feasts_task_does_not_grow_with_its_rows(spark_repository, monkeypatch):
    repository = spark_repository({"type": "spark.engine"}, compaction="job")
    monkeypatch.setattr(opening, "is_worker", lambda: True)  # this process stands for one
    monkeypatch.setattr(opening, "_shared", {})
    artifacts = SerializedArtifacts.serialize(
        repository.store.get_feature_view("history"), repository.store.config
    )

    def batch(first):
        users = range(first, first + 100)
        columns = [pa.array(users), pa.array(map(items_of, users)), pa.array([NOON] * 100)]
        return pa.record_batch(columns, ["user_id", "viewed", "event_timestamp"])

    def peak(num_batches):
        tracemalloc.start()
        before, held = pa.total_allocated_bytes(), []
        try:
            for given in nodes.map_in_arrow(map(batch, range(0, 100 * num_batches, 100)), artifacts):
                gc.collect()  # what waits to be collected is not held
                held.append(pa.total_allocated_bytes() - before)
                assert len(given) == 100
            return max(held) + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # opens the view
    few, many = peak(10), peak(100)
    assert many < 1.5 * few


@pytest.mark.parametrize("engine", ["spark.engine", OWN["type"]])
def test_a_bucket_is_filled(spark_repository, moto, engine):
    options = {"path": f"{moto.bucket()}/features", "storage_options": moto.options}
    repository = spark_repository({"type": engine}, **options)
    repository.materialize()
    repository.check()


@pytest.mark.parametrize("source", [parquet, renamed])
@pytest.mark.parametrize(("deduplicate", "rows"), [("auto", 1), ("seal", 2)])
def test_the_newest_row_counts_whoever_finds_it(spark_repository, deduplicate, rows, source):
    # Each user has two rows: too many for `auto` to leave them to the seal.
    repository = spark_repository({**OWN, "deduplicate": deduplicate}, source, compaction="job")
    repository.materialize()
    written = RowLog(repository.view.storage).read()
    assert sum(map(len, written.batches())) == rows * repository.num_users
    repository.check()
    assert repository.view.seal()
    assert repository.view.stats().sealed_entities == repository.num_users
    repository.check()


def test_a_row_that_cannot_be_written_fails_the_job(spark_repository):
    repository = spark_repository(OWN, has_null=True)
    with pytest.raises(Exception, match="user_id"):
        repository.materialize()
    view = repository.view
    assert view.stats().unsealed_rows == 0
    assert not [name for name in view.storage.within("rows/").list() if name.endswith(".parquet")]
    (of_registry,) = repository.store.list_feature_views()
    assert of_registry.materialization_intervals == []


def test_the_private_method_of_feasts_engine_is_there():
    assert callable(SparkComputeEngine._get_feature_view_spark_session)


def test_shards_are_filled_and_sealed_by_tasks(spark_repository, check_shards):
    check_shards(spark_repository(OWN, compaction="job", shards=4), "spark")
