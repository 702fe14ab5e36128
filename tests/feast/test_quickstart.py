"""Templates of ``feast init`` and Feast's quickstart, with another ``online_store`` and nothing else changed.

The templates are those that need no account, server, compute engine or model, and that each supported release
of Feast has.
"""

import ast
import re
import shutil
import sys
from datetime import UTC, datetime

import pytest
import yaml
from click.testing import CliRunner
from feast import FeatureStore
from feast.cli.cli import cli

from tests.helpers.length import by_length
from tests.helpers.processes import run_command

TEMPLATES = ("local", "cassandra", "hazelcast", "hbase", "milvus", "pytorch_nlp")
QUICKSTART = [
    "driver_hourly_stats:conv_rate",
    "driver_hourly_stats:acc_rate",
    "driver_hourly_stats:avg_daily_trips",
]


@pytest.fixture(scope="module")
def template(request, tmp_path_factory):
    """What ``feast init`` makes of a template; its data are drawn at random, once."""
    folder = tmp_path_factory.mktemp("init")
    name = getattr(request, "param", "local")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # Some ask for the addresses and passwords of a store, which are in a section that is not used here.
        done = CliRunner().invoke(cli, ["init", "--template", name, "shop"], input="C\n" + 20 * "\n")
    assert done.exit_code == 0, done.output
    return folder / "shop" / "feature_repo"


@pytest.fixture
def make_repository(template, tmp_path):
    """Makes a copy of it with an online store of a type."""

    def make(store_type):
        folder = tmp_path / store_type
        shutil.copytree(template, folder)
        settings = folder / "feature_store.yaml"
        document = yaml.safe_load(settings.read_text())
        document["online_store"] = {"type": store_type, "path": "data/online_store.db"}
        settings.write_text(yaml.safe_dump(document, sort_keys=False))
        return folder

    return make


def _run_workflow(repository):
    """What the template's workflow prints: features with their values, and the error that ends it."""
    done = run_command([sys.executable, "-W", "ignore", "test_workflow.py"], cwd=repository)
    errors = re.findall(r"^(\w+Error: .*)$", done.stdout + done.stderr, re.MULTILINE)
    lines = re.findall(r"^ *([a-z]\w*) *: +(\[.*\])$", done.stdout, re.MULTILINE)
    # Evaluated, because Protobuf draws the order of a map's keys anew in each process.
    return done.returncode, errors, [(name, ast.literal_eval(values)) for name, values in lines]


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize("template", by_length(TEMPLATES[:1], TEMPLATES), indirect=True)
def test_the_workflow_of_a_template_does_what_it_does_with_sqlite(make_repository):
    # Some end in an error with any store: what they push lacks columns of their sources.
    sqlite, sketch = (_run_workflow(make_repository(store_type)) for store_type in ("sqlite", "sketch"))
    assert sketch == sqlite
    answers = sketch[-1]
    assert len(answers) >= 6
    assert any(value is not None for _, values in answers for value in values)


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
