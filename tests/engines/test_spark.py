"""Spark fills a view: Feast's engine as it is, and the one that writes to the row log.

Executors are processes of their own here (``local-cluster``), so that one can be killed.
"""

import pytest

pytest.importorskip("pyspark", reason="install the extra engines-spark")

from feast.infra.compute_engines.spark import nodes
from feast.infra.compute_engines.spark.compute import SparkComputeEngine
from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource
from pyspark import SparkContext
from pyspark.sql import SparkSession

from feast_sketch_store.engines import spark_engine
from feast_sketch_store.row_log import RowLog
from tests.engines import faulty

pytestmark = pytest.mark.filterwarnings("ignore")  # of Feast's Spark offline store, and of py4j's sockets

OWN = {"type": "feast_sketch_store.engines.SketchSparkEngine"}


@pytest.fixture(scope="module")
def session(workers_find_the_tests):
    session = (
        SparkSession.builder.master("local-cluster[2,1,800]")
        .config("spark.executor.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")  # which would make one task of so few rows
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.task.maxFailures", "2")
        .getOrCreate()
    )
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at which Java ends
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def parquet(**options):
    return SparkSource(file_format="parquet", **options)


@pytest.fixture
def spark_repository(session, make_repository):
    def make(engine, **options):
        return make_repository(engine, {"type": "spark"}, parquet, **options)

    return make


def test_feasts_engine_loses_no_row_with_its_executor(spark_repository, monkeypatch, tmp_path):
    repository = spark_repository({"type": "spark.engine"}, seal="job")
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
    files = list(RowLog(view.storage).parts())
    assert sum(file.num_rows for file in files) == repository.num_users
    named = {file.name for file in files}
    assert {name for name in view.storage.within("rows/").list() if name.endswith(".parquet")} == named


@pytest.mark.parametrize("engine", ["spark.engine", OWN["type"]])
def test_a_bucket_is_filled(spark_repository, object_server, engine):
    pytest.importorskip("obstore")
    server = object_server("moto")
    options = {"path": f"{server.bucket()}/features", "storage_options": server.options}
    repository = spark_repository({"type": engine}, **options)
    repository.materialize()
    repository.check()


@pytest.mark.parametrize(("deduplicate", "rows"), [("auto", 1), ("seal", 2)])
def test_the_newest_row_counts_whoever_finds_it(spark_repository, deduplicate, rows):
    # Each user has two rows: too many for `auto` to leave them to the seal.
    repository = spark_repository({**OWN, "deduplicate": deduplicate}, seal="job")
    repository.materialize()
    written = RowLog(repository.view.storage).read()
    assert sum(map(len, written.batches())) == rows * repository.num_users
    repository.check()
    assert repository.view.seal()
    assert repository.view.stats().sealed_entities == repository.num_users
    repository.check()


def test_a_row_that_cannot_be_written_fails_the_job(spark_repository):
    repository = spark_repository(OWN, max_vocabulary=10)
    with pytest.raises(Exception, match="max_vocabulary"):
        repository.materialize()
    view = repository.view
    assert view.stats().unsealed_rows == 0
    assert not [name for name in view.storage.within("rows/").list() if name.endswith(".parquet")]
    (of_registry,) = repository.store.list_feature_views()
    assert of_registry.materialization_intervals == []


def test_the_private_method_of_feasts_engine_is_there():
    assert callable(SparkComputeEngine._get_feature_view_spark_session)


def test_shards_are_filled_and_sealed_by_tasks(spark_repository, check_shards):
    check_shards(spark_repository(OWN, seal="job", shards=4), "spark")
