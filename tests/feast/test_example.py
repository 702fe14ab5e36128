"""The example repository does what its README says, in a copy of its folder."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

EXAMPLE = Path(__file__).parents[2] / "feature_repo_example"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the example, as it is in a fresh clone, that has been run."""
    folder = tmp_path_factory.mktemp("example") / "feature_repo_example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("sketch", "registry.db", "__pycache__"))
    return folder


@pytest.fixture(scope="module")
def output(copy):
    """What two runs print: the second finds the files of the first."""
    runs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", copy / "run.py"],
            capture_output=True,
            text=True,
            check=False,
            cwd=copy.parent,
        )
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    return [run.stdout for run in runs]


def test_nothing_is_lost_and_the_error_rate_is_kept(output):
    """15.6 million candidates: four standard deviations of a rate of 0.01 would be 0.0001, but the
    false positives of one customer cluster, which makes the spread of the rate about three times larger."""
    for text in output:
        assert "lost by the sketch (false negatives):  0" in text
        rate = float(re.search(r"false-positive rate: +([0-9.]+) measured", text)[1])
        assert 0.0095 < rate < 0.0105


def test_the_sketch_is_a_fraction_of_the_exact_stores(output):
    sizes = {
        name: int(size.replace(",", ""))
        for name, size in re.findall(r"^  (\S.*?) {2,}([0-9,]+) +[0-9.]+$", output[0], re.MULTILINE)
    }
    snapshot, sqlite, sets = (
        next(size for name, size in sizes.items() if word in name) for word in ("snapshot", "SQLite", "dict")
    )
    assert snapshot * 8 < sqlite < sets


def test_any_delta_reader_finds_the_exact_rows(output, copy):
    rows = DeltaTable(str(copy / "data/sketch/online_retail/customer_purchases/rows")).to_pandas(
        columns=["customer_id", "products", "country", "__event_timestamp"]
    )
    newest = rows.sort_values("__event_timestamp").groupby("customer_id").tail(1)
    assert len(newest) == 4_339
    assert newest["products"].map(len).sum() == 266_802


def test_it_leaves_only_ignored_files(output, copy):
    made = {p.relative_to(copy).parts[:2] for p in copy.rglob("*") if "__pycache__" not in p.parts}
    known = {p.relative_to(EXAMPLE).parts[:2] for p in EXAMPLE.rglob("*")}
    assert made - known <= {("data", "sketch"), ("data", "registry.db")}
