"""Ray fills a view: Feast's engine as it is, and the one that writes to the row log."""

import os
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("ray", reason="install the extra engines-ray")

import ray
from feast import FileSource
from feast.infra.compute_engines.ray import nodes

from feast_sketch_store.engines import ray_engine, seal_job
from feast_sketch_store.row_log import RowLog
from tests.engines import faulty
from tests.engines.conftest import NOON

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and of Feast's use of it

OWN = {"type": "feast_sketch_store.engines.SketchRayEngine", "write_concurrency": 2}
FEASTS = {"type": "ray.engine", "write_concurrency": 2}


@pytest.fixture(scope="module", autouse=True)
def cluster(workers_find_the_tests):
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        # A worker imports Feast, which takes seconds: it waits for the next test instead of one second.
        _system_config={"idle_worker_killing_time_threshold_ms": 600_000},
    )
    yield
    ray.shutdown()


@pytest.fixture
def ray_repository(make_repository):
    def make(engine, **options):
        return make_repository(engine, {"type": "ray"}, **options)

    return make


def test_a_bucket_is_filled(ray_repository, moto):
    options = {"path": f"{moto.bucket()}/features", "storage_options": moto.options}
    repository = ray_repository(OWN, num_users=200, **options)
    repository.materialize()
    repository.check()


def test_feasts_engine_loses_no_row_with_its_worker(ray_repository, monkeypatch, tmp_path):
    repository = ray_repository(FEASTS, compaction="job")
    write = partial(faulty.feasts_ray_write_and_die, folder=str(tmp_path))
    monkeypatch.setattr(nodes, "write_to_online_store", write)
    repository.materialize()
    assert (tmp_path / "died").exists()
    repository.check()
    written = RowLog(repository.view.storage).read()
    num_rows = sum(map(len, written.batches()))
    assert num_rows > 2 * repository.num_users  # all twice, and those of the killed worker once more
    assert repository.view.seal()
    assert repository.view.stats().sealed_entities == repository.num_users
    repository.check()


def test_a_job_loses_no_row_with_its_worker(ray_repository, monkeypatch, tmp_path):
    repository = ray_repository(OWN)
    monkeypatch.setattr(ray_engine, "write", faulty.dying(tmp_path, partial(os._exit, 1)))
    repository.materialize()
    assert (tmp_path / "died").exists()
    repository.check()
    parts = RowLog(repository.view.storage).read().parts
    assert sum(file.num_rows for file in parts) == repository.num_users


def test_of_rows_of_one_moment_the_one_made_last_counts(ray_repository, tmp_path):
    source = partial(FileSource, created_timestamp_column="made")
    repository = ray_repository(OWN, source=source, num_users=200)
    for path in (tmp_path / "rows").iterdir():
        table = pq.read_table(path).set_column(2, "event_timestamp", pa.repeat(NOON, 100))
        made = [NOON] * 50 + [NOON - timedelta(hours=1)] * 50
        table = table.append_column("made", pa.array(made, pa.timestamp("us", "UTC")))
        pq.write_table(table.take([*range(0, 100, 2), *range(99, 0, -2)]), path)
    repository.materialize()
    repository.check()


def test_a_row_that_cannot_be_written_fails_the_job(ray_repository):
    repository = ray_repository(OWN, has_null=True)
    with pytest.raises(Exception, match="user_id"):
        repository.materialize()
    (of_registry,) = repository.store.list_feature_views()
    assert of_registry.materialization_intervals == []


def test_feasts_engine_hides_a_write_that_failed(ray_repository):
    # As the page of the engines warns; when Feast raises, the warning goes.
    repository = ray_repository(FEASTS, has_null=True)
    repository.materialize()
    assert repository.view.stats().unsealed_rows == 0


def test_shards_are_filled_and_sealed_by_tasks(ray_repository, check_shards):
    check_shards(ray_repository(OWN, compaction="job", shards=4), "ray")


def test_a_seal_begins_with_the_options_of_the_engine(ray_repository, monkeypatch):
    options = {"ray_address": "ray://cluster:10001", "ray_conf": {"runtime_env": {"pip": ["a-package"]}}}
    repository = ray_repository({**OWN, **options}, num_users=0)
    began = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **given: began.append(given))
    assert not seal_job.seal(repository.store, "history", "ray")
    (given,) = began
    assert (given["address"], given["runtime_env"]) == ("ray://cluster:10001", {"pip": ["a-package"]})
