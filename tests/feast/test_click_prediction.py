"""The benchmark of click predictions runs from data to plot, on data that is made up and small."""

import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.processes import run_command

pytestmark = [
    pytest.mark.skipif(not shutil.which("redis-server"), reason="the benchmark runs a Redis"),
]

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "click_prediction"
NUM_PEOPLE, NUM_VIDEOS = 1_500, 60


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """People click on videos of the half that they have been shown before."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(1)
    half = random.integers(0, 2, NUM_PEOPLE)
    users = np.repeat(np.arange(NUM_PEOPLE), 8)
    seen = random.integers(0, NUM_VIDEOS // 2, len(users)) * 2 + half[users]
    families = np.array(["shown", "long_view", "like"])[random.integers(0, 3, len(users))]
    pq.write_table(
        pa.table({"user_id": users, "family": families, "video_id": seen}), folder / "history.parquet"
    )
    users = np.repeat(np.arange(NUM_PEOPLE + 5), 4)  # five have no history
    videos = random.integers(0, NUM_VIDEOS, len(users))
    likes = np.append(half, np.zeros(5, np.int64))[users] == videos % 2
    columns = {name: np.zeros(len(users), np.int64) for name in ("tab", "tag", "hourmin", "freshness_days")}
    columns |= {
        "user_id": users,
        "video_id": videos,
        "duration_ms": random.integers(0, 60_000, len(users)),
        "author_id": videos // 3,
        "is_click": (random.random(len(users)) < np.where(likes, 0.7, 0.3)).astype(np.int64),
        "split": np.where(np.arange(len(users)) % 4 < 2, "train", "test"),
    }
    pq.write_table(pa.table(columns), folder / "impressions.parquet")
    return folder


def run(script, *arguments):
    done = run_command([sys.executable, "-W", "ignore", BENCHMARK / script, *arguments])
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_it_measures_plots_and_writes_the_tables_of_a_page(data, tmp_path):
    results, plot = tmp_path / "results.json", tmp_path / "plot.svg"
    status, output, errors = run(
        "run.py",
        *("--quick", "--data", data, "--task", "kuairand", "--curve", "bloom"),
        *("--json", results, "--svg", plot),
    )
    assert status == 0, errors
    result = json.loads(results.read_text())["kuairand"]
    first, *_, last = points = result["curves"]["bloom"]
    assert first["bytes"] < last["bytes"] < result["redis"]["used_memory"]
    assert first["false per read"] > last["false per read"]
    assert {point["facts kept"] for point in points} == {1.0}
    assert ElementTree.parse(tmp_path / "plot-kuairand.svg").getroot().tag.endswith("svg")

    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- click_prediction: begin -->\nold\n<!-- click_prediction: end -->\nlast\n")
    assert run("report.py", results, "--into", page)[0] == 0
    text = page.read_text()
    assert text.startswith("# Page\n")
    assert text.endswith("\nlast\n")
    assert "old" not in text
    assert all(line in text for line in output.splitlines() if line.startswith("| error rate"))


@pytest.mark.slow
def test_it_says_where_the_data_is_to_be_had(tmp_path):
    status, _, errors = run("run.py", "--data", tmp_path)
    assert status == 2
    assert "https://github.com/chongminggao/KuaiRand" in errors
