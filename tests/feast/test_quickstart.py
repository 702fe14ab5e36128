"""The template of ``feast init`` and Feast's quickstart, with one line of ``feature_store.yaml`` switched."""

import ast
import shutil
import sys
from datetime import UTC, datetime

import pytest
from feast import FeatureStore

from tests.helpers.processes import run_command

QUICKSTART = [
    "driver_hourly_stats:conv_rate",
    "driver_hourly_stats:acc_rate",
    "driver_hourly_stats:avg_daily_trips",
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """What ``feast init`` makes; its data are drawn at random, once."""
    folder = tmp_path_factory.mktemp("init")
    assert run_command(["feast", "init", "shop"], cwd=folder).returncode == 0
    return folder / "shop" / "feature_repo"


@pytest.fixture
def make_repository(template, tmp_path):
    """Makes a copy of it with an online store of a type."""

    def make(store_type):
        folder = tmp_path / store_type
        shutil.copytree(template, folder)
        settings = folder / "feature_store.yaml"
        text = settings.read_text()
        assert text.count("type: sqlite\n") == 1
        settings.write_text(text.replace("type: sqlite\n", f"type: {store_type}\n"))
        return folder

    return make


@pytest.mark.slow
def test_the_workflow_of_the_template_prints_what_it_prints_with_sqlite(make_repository):
    printed = {}
    for store_type in ("sqlite", "sketch"):
        command = [sys.executable, "-W", "ignore", "test_workflow.py"]
        done = run_command(command, cwd=make_repository(store_type))
        output = done.stdout
        assert done.returncode == 0, output + done.stderr
        assert "Error" not in output
        answers = [line.split("  :  ") for line in output.splitlines() if "  :  " in line]
        # Protobuf draws the order of a map's keys anew in each process.
        printed[store_type] = [(name, ast.literal_eval(values)) for name, values in answers]
    assert printed["sketch"] == printed["sqlite"]
    assert len(printed["sketch"]) >= 15
    pushed = dict(printed["sketch"][-9:])
    assert pushed["acc_rate"][0] == 1.0
    assert pushed["driver_metadata"][0] == {"vehicle_type": "truck", "rating": "5.0"}


@pytest.mark.slow
def test_the_quickstart_reads_what_it_reads_with_sqlite(make_repository, warm_feast_cli):
    read = {}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for store_type in ("sqlite", "sketch"):
        repository = make_repository(store_type)
        warm_feast_cli(repository, "apply")
        warm_feast_cli(repository, "materialize-incremental", now)
        store = FeatureStore(repo_path=str(repository))
        entities = [{"driver_id": driver} for driver in (1004, 1005, 1001, 9)]
        answer = store.get_online_features(QUICKSTART, entities)
        read[store_type] = answer.to_dict(include_event_timestamps=True), answer.proto.metadata
    values, _ = read["sketch"]
    assert values["conv_rate"][0] is not None
    assert values["conv_rate"][3] is None
    assert read["sketch"] == read["sqlite"]
