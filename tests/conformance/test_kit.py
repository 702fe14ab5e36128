"""Test vectors for readers: every process writes the same; the store's reader and Node's pass them."""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import mmh3
import pytest
from click.testing import CliRunner

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.snapshot import encode
from feast_sketch_store.snapshot.manifest import Manifest
from feast_sketch_store.snapshot.sealed import with_checksums
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import ViewFile
from tests.conformance.kit import answers, write_kit
from tests.conformance.kit.__main__ import main
from tests.conformance.kit.rules import RULES, name_of
from tests.helpers.cases import for_each
from tests.helpers.histories import NEVER, put, settings_of
from tests.helpers.length import by_length
from tests.helpers.processes import BARE_FEAST
from tests.helpers.snapshots import load

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
NODE = ROOT / "docs" / "readers" / "node"


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """All vectors, in a folder."""
    folder = tmp_path_factory.mktemp("kit")
    write_kit(folder)
    return folder


def load_vectors(kit, name):
    return json.loads((kit / "vectors" / f"{name}.json").read_text("utf-8"))


def key_from(key):
    """A key of the vectors as it was given."""
    given = {"string": str, "bytes": bytes.fromhex, "int32": int, "int64": int, "timestamp": int}
    return {name: (kind, given[kind](value)) for name, (kind, value) in key.items()}


@pytest.mark.has_long_form
def test_another_process_writes_the_same_bytes(kit, tmp_path):
    module = "tests.conformance.kit"
    without_feast = f"{BARE_FEAST}import runpy; runpy.run_module('{module}', run_name='__main__')"
    command = [sys.executable, *by_length(["-c", without_feast], ["-m", module]), str(tmp_path / "kit")]
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=True, cwd=ROOT)
    names = sorted(path.relative_to(kit) for path in kit.rglob("*") if path.is_file())
    assert f"{len(names)} files" in done.stdout
    theirs = tmp_path / "kit"
    assert sorted(path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()) == names
    for name in names:
        assert (kit / name).read_bytes() == (theirs / name).read_bytes(), name


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 1
    assert "the folder is not empty" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_every_view_has_rows_and_unknown_entities(kit):
    vectors = load_vectors(kit, "reads")
    assert len(vectors) == 16
    for vector in vectors:
        found = [row is not None for row in vector["rows"]]
        assert len(found) == len(vector["keys"])
        assert any(found)
        assert not all(found)


def test_the_store_reads_them_again(kit):
    for vector in load_vectors(kit, "reads"):
        keys = [key_from(key) for key in vector["keys"]]
        assert answers.read(kit / vector["view"], keys) == vector["rows"], vector["view"]


def test_exact_rows_are_those_that_were_written(kit):
    by_view = {vector["view"]: vector for vector in load_vectors(kit, "reads")}
    rows = by_view["views/composite"]["rows"]
    assert [row and row["features"]["count"]["values"] for row in rows] == [
        *([str(n)] for n in range(6)),
        None,
        None,
    ]
    deltas = by_view["views/deltas"]
    counts = {}
    for key, row in zip(deltas["keys"], deltas["rows"], strict=True):
        counts[int(key["user_id"][1])] = row and int(row["features"]["count"]["values"][0])
    expected = {n: 10 * n for n in range(40)} | {4: 49, 7: 79, 51: 519}
    expected |= dict.fromkeys([3, 8, 50, 60, *range(1_000_000, 1_000_020)])
    assert counts == expected
    texts = by_view["views/strings"]["rows"][:400]
    assert [row["features"]["text"]["values"] for row in texts] == [[f"{n}".zfill(200)] for n in range(400)]


def test_hashes_are_those_of_other_implementations(kit):
    vectors = load_vectors(kit, "hashes")
    for vector in vectors["checksum"]:
        assert mmh3.hash_bytes(bytes.fromhex(vector["bytes"])).hex() == vector["checksum"]
    assert len({tuple(vector["entity_hash"]) for vector in vectors["keys"]}) == len(vectors["keys"])


def test_each_clause_of_each_rule_has_a_hostile_view(kit):
    """And each hostile view breaks one that is told; the page's table is made of the same rules."""
    published = {
        (vector["rule"], vector["breaks"], vector["view"]) for vector in load_vectors(kit, "hostile")
    }
    assert published == {
        (rule, clause, f"hostile/{name_of(rule, label)}")
        for rule, clauses in RULES.items()
        for clause, labels in clauses.items()
        for label in labels
    }
    assert all(labels for clauses in RULES.values() for labels in clauses.values())


def test_the_store_refuses_hostile_views(kit):
    vectors = load_vectors(kit, "hostile")
    names = [vector["view"] for vector in vectors]
    assert len({*names}) == len(names) > 150
    accepted = [vector["view"] for vector in vectors if not is_refused(kit, vector)]
    assert accepted == []


def is_refused(kit, vector):
    """Whether the store refuses a view. It reads the log itself, so a newer one is none that it refuses."""
    folder = kit / vector["view"]
    try:
        if vector["rule"].startswith("log."):
            return vector["rule"] == "log.newer" or not RowLog(LocalStorage(folder)).read().parts
        answers.read(folder, [key_from(key) for key in vector["keys"]])
    except (DamagedFileError, ValueError):
        return True
    return False


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")


@needs_node
def test_the_reader_for_node_passes_them(kit):
    command = ["node", str(NODE / "check.mjs"), str(kit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:4000]
    assert " 0 failures" in done.stdout


@needs_node
@pytest.mark.parametrize(
    "stop", ["fresh/00000000000000000002.log", "rows/_delta_log/00000000000000000000.json"]
)
def test_the_reader_for_node_finds_rows_that_move_to_the_table_while_it_looks(kit, tmp_path, stop):
    """It waits at a pipe, after it listed the files of the log, or between the log and the table."""
    shutil.copytree(kit / "hostile" / "log.newer-rows", tmp_path, dirs_exist_ok=True)
    pipe, table = tmp_path / stop, tmp_path / "rows" / "_delta_log"
    table.mkdir(parents=True)
    os.mkfifo(pipe)
    commit = "rows/_delta_log/00000000000000000000.json"

    def move():
        with pipe.open("wb") as end:  # waits for the reader
            pipe.unlink()
            moved = kit / "hostile" / "log.newer-rows-of-the-table" / commit
            shutil.copy(moved, table / "00000000000000000001.json")
            (tmp_path / "fresh" / "00000000000000000003.log").unlink()
            end.write((kit / "views" / "logged" / commit).read_bytes() if pipe.parent == table else b"")

    assert seen_by_node(tmp_path, "view.isOld", move) == "true"


@needs_node
def test_the_reader_for_node_finds_rows_that_move_to_other_shards_while_it_looks(kit, tmp_path):
    shutil.copytree(kit / "views" / "shards", tmp_path, dirs_exist_ok=True)
    told = ViewFile.decode((tmp_path / "view.json").read_bytes(), "view.json")
    pipe = next(tmp_path.glob("*/00/snapshots/*.order.sketch"))  # the last file of the first shard
    content = pipe.read_bytes()
    pipe.unlink()
    os.mkfifo(pipe)

    def move():
        with pipe.open("wb") as end:  # waits for the reader
            pipe.unlink()
            pipe.write_bytes(content)
            followed = told.shard_map.followed_by(8)
            (tmp_path / told.shard_map.folder).rename(tmp_path / followed.folder)
            (tmp_path / "view.json").write_bytes(replace(told, shard_map=followed).encode())
            end.write(content)

    users = "[0, 1, 2, 3, 4, 5, 6, 7, 8]"
    rows = f"{users}.filter((user) => view.read({{ user_id: ['int64', user] }}) !== null).length"
    assert seen_by_node(tmp_path, rows, move) == "9"


@needs_node
@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_reader_for_node_tells_of_rows_of_which_none_is_sealed(tmp_path, num_shards):
    view = View(LocalStorage(tmp_path), settings_of(0.01, num_shards=num_shards), NEVER)
    view.keep_file(is_applied=True)
    seen = "[view.isOld, view.read({ user_id: ['int64', 7] })]"
    assert seen_by_node(tmp_path, seen) == "[ false, null ]"
    put(view, {7: "a"})
    assert seen_by_node(tmp_path, seen) == "[ true, null ]"
    with pytest.raises(AssertionError, match=r"run `feast-sketch seal`, or allow old rows \(log.newer\)"):
        seen_by_node(tmp_path, seen, allow_old=False)


def seen_by_node(folder, expression, move=lambda: None, allow_old=True):
    """What the reader for Node says about a view, whose rows move while it is opened."""
    code = f"import {{ openView }} from {json.dumps(str(NODE / 'index.mjs'))}; "
    code += (
        f"const view = openView({json.dumps(str(folder))}, {{ allowOld: {json.dumps(allow_old)} }}); "
        f"console.log({expression});"
    )
    mover = threading.Thread(target=move, daemon=True)
    mover.start()
    command = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
    mover.join(60)
    assert not mover.is_alive()
    return done.stdout.strip()


FILES = sorted(GOLDEN.glob("*.sketch"))


@for_each("path", FILES)
def test_a_golden_file_is_decoded_and_encoded_to_the_same_bytes(path):
    description, arrays = load(path)
    if "presence" in description:
        own = {key: description[key] for key in ("created_by", "view", "row_log_version")}
        more = {name: array for name, array in arrays.items() if name.startswith("listed.")}
        layer, parts = SketchLayer.from_snapshot(description, arrays).to_snapshot()
        description, arrays = {**own, **layer}, {**with_checksums(parts), **more}
    assert b"".join(encode(description, arrays)) == path.read_bytes()


@for_each("path", sorted(GOLDEN.glob("*.json")))
def test_a_golden_manifest_is_decoded_and_encoded_to_the_same_bytes(path):
    assert Manifest.decode(path.read_bytes(), path.name).encode() == path.read_bytes()
