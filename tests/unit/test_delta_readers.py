"""The table of a row log, checkpoints included, as two implementations of Delta Lake read it.

One is `deltalake`, in Rust. The other, `delta-lake-reader`, in Python, has the same import name and asks for
old releases of its dependencies, so it lies in a folder of its own, and a process of its own imports it.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from feast_sketch_store.row_log import RowLog
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.processes import run_command

pytestmark = pytest.mark.slow

FOLDER = ".delta-lake-reader"
INSTALL = f"pip install --no-deps --target {FOLDER} delta-lake-reader==0.2.16"
OTHER = Path(__file__).parents[2] / FOLDER

READ = """
import json, os, sys
sys.path[:0] = sys.argv[2:]
import deltalake
rows = deltalake.DeltaTable(sys.argv[1]).{to_arrow}().to_pylist()
print(json.dumps([deltalake.__file__, rows]), flush=True)
os._exit(0)  # threads of a reader may not outlive the interpreter
"""


@pytest.fixture(params=["deltalake", "delta-lake-reader"])
def read(request):
    """Reads a table's rows, ordered by name, in a process of its own."""
    is_other = request.param != "deltalake"
    if is_other and not OTHER.is_dir():
        pytest.skip(f"delta-lake-reader is not there; {INSTALL}")
    code = READ.format(to_arrow="to_table" if is_other else "to_pyarrow_table")
    folders = [OTHER] if is_other else []

    def read(storage):
        done = run_command([sys.executable, "-c", code, storage.path / "rows", *folders])
        assert done.returncode == 0, done.stderr
        where, rows = json.loads(done.stdout)
        assert Path(where).is_relative_to(OTHER) == is_other
        return sorted(rows, key=lambda row: row["name"])

    return read


def append(log, *names, **more):
    log.append(pa.table({"name": list(names), "items": [[len(name)] for name in names], **more}))
    return log.absorb()


def row(name, **more):
    return {"name": name, "items": [len(name)], **more}


def test_rows_of_each_commit_are_read(tmp_path, read):
    storage = LocalStorage(tmp_path / "view")
    log = RowLog(storage)
    for number in range(23):
        append(log, f"row {number:02}")
    # One at every tenth version: some readers look at no more commits behind a checkpoint.
    assert [n for n in storage.list("rows/_delta_log/") if "checkpoint" in n] == [
        f"{10:020d}.checkpoint.parquet",
        f"{20:020d}.checkpoint.parquet",
        "_last_checkpoint",
    ]
    assert read(storage) == [row(f"row {number:02}") for number in range(23)]


def test_a_table_whose_commits_were_removed_is_read_from_its_checkpoint(tmp_path, read):
    storage = LocalStorage(tmp_path / "view")
    log = RowLog(storage)
    for number in range(12):
        through = append(log, f"row {number}")
    log.compact([pa.table({"name": ["all"], "items": [[3]]})], through)
    log.prune()
    names = storage.list("rows/_delta_log/")
    assert names == [f"{12:020d}.checkpoint.parquet", f"{12:020d}.json", "_last_checkpoint"]
    assert read(storage) == [row("all")]
    # The checkpoint alone has to do.
    storage.delete([f"rows/_delta_log/{12:020d}.json"])
    assert read(storage) == [row("all")]


def test_commits_behind_a_checkpoint_are_read(tmp_path, read):
    storage = LocalStorage(tmp_path / "view")
    log = RowLog(storage)
    for number in range(3):
        log.compact([pa.table({"name": [f"all {number}"], "items": [[5]]})], append(log, "old"))
        log.prune()
    append(log, "later", price=pa.array([7], pa.int64()))
    log.vacuum(0)
    assert read(storage) == [row("all 2", price=None), row("later", price=7)]
