"""A folder of fetched files: who fetches, what a cut leaves, what is given up."""

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage import file_cache
from feast_sketch_store.storage.chunks import Chunks, KnownFile
from feast_sketch_store.storage.file_cache import CachedFile
from tests.helpers.cases import for_each

PART = 1 << 10
SIZE = 10 * PART + 5
CONTENT = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes()
KNOWN = KnownFile(SIZE, Chunks.of([CONTENT], PART))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(file_cache, "PART_BYTES", PART)


class Source:
    """Gives parts of the content, and notes which; fails or waits on request."""

    def __init__(self, fails_from=SIZE, gate=None):
        self.asked = []
        self.fails_from = fails_from
        self.gate = gate

    def __call__(self, start, end):
        self.asked.append(start)
        if self.gate:
            self.gate.wait(60)
        if start >= self.fails_from:
            raise StorageError("cut off")
        return CONTENT[start:end]


def test_a_file_is_fetched_once(tmp_path):
    source = Source()
    first = CachedFile(tmp_path / "cache", "a", KNOWN).map(source)
    second = CachedFile(tmp_path / "cache", "a", KNOWN).map(source)
    assert first.tobytes() == second.tobytes() == CONTENT
    assert sorted(source.asked) == list(range(0, SIZE, PART))
    assert CachedFile(tmp_path / "cache", "b", KNOWN).map(source).tobytes() == CONTENT
    assert len(source.asked) == 22


def test_one_of_many_fetches(tmp_path):
    source = Source(gate=threading.Event())

    def map_it(_):
        return CachedFile(tmp_path, "a", KNOWN).map(source).tobytes()

    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(map_it, n) for n in range(6)]
        source.gate.set()
        assert {each.result() for each in found} == {CONTENT}
    assert sorted(source.asked) == list(range(0, SIZE, PART))


def test_a_fetch_goes_on_where_it_was_cut(tmp_path):
    with pytest.raises(StorageError, match="cut off"):
        CachedFile(tmp_path, "a", KNOWN).map(Source(fails_from=8 * PART))
    source = Source()
    assert CachedFile(tmp_path, "a", KNOWN).map(source).tobytes() == CONTENT
    assert sorted(source.asked) == [8 * PART, 9 * PART, 10 * PART]
    assert [path.suffix for path in tmp_path.iterdir()] == [""]


@pytest.mark.parametrize(("damage", "kept"), [("flip", 3), ("cut", 3), ("longer", 8)])
def test_a_damaged_part_is_fetched_again(tmp_path, damage, kept):
    with pytest.raises(StorageError):
        CachedFile(tmp_path, "a", KNOWN).map(Source(fails_from=8 * PART))
    (partial,) = tmp_path.glob("*.partial")
    if damage == "flip":
        content = bytearray(partial.read_bytes())
        content[3 * PART + 7] ^= 1
        partial.write_bytes(content)
    elif damage == "cut":
        os.truncate(partial, 3 * PART + 9)
    else:
        partial.write_bytes(partial.read_bytes() + b"torn")
    source = Source()
    assert CachedFile(tmp_path, "a", KNOWN).map(source).tobytes() == CONTENT
    assert sorted(source.asked) == list(range(kept * PART, SIZE, PART))


def test_what_nobody_uses_goes(tmp_path):
    mapped = CachedFile(tmp_path, "a", KNOWN).map(Source())
    (old,) = [path for path in tmp_path.iterdir() if not path.suffix]
    long_ago = time.time() - 8 * 86_400
    os.utime(old, (long_ago, long_ago))
    CachedFile(tmp_path, "a", KNOWN).map(Source())
    CachedFile(tmp_path, "b", KNOWN).map(Source())
    assert old.exists()  # used since
    os.utime(old, (long_ago, long_ago))
    CachedFile(tmp_path, "c", KNOWN).map(Source())
    assert not old.exists()
    assert mapped.tobytes() == CONTENT


def test_what_another_file_replaced_goes_an_hour_later(tmp_path):
    files = {content: CachedFile(tmp_path, content, KNOWN) for content in ("old", "kept", "b", "c")}
    for content in ("old", "kept"):
        files[content].map(Source())
        files[content].let_go()
    CachedFile(tmp_path, "not there", KNOWN).let_go()
    files["b"].map(Source())
    assert [content for content, file in files.items() if file.path.exists()] == ["old", "kept", "b"]
    files["kept"].keep()  # by another process, whose rows are those of before
    for content in ("old", "kept"):
        passed = files[content].path.stat().st_mtime - 3601
        os.utime(files[content].path, (passed, passed))
    files["c"].map(Source())
    assert [content for content, file in files.items() if file.path.exists()] == ["kept", "b", "c"]


def test_what_nobody_uses_makes_room_for_what_is_fetched(tmp_path):
    CachedFile(tmp_path, "a", KNOWN).map(Source())
    (old,) = [path for path in tmp_path.iterdir() if not path.suffix]
    os.utime(old, (0, 0))

    def fails(start, end):
        assert not old.exists()
        raise StorageError("no room")

    with pytest.raises(StorageError, match="no room"):
        CachedFile(tmp_path, "b", KNOWN).map(fails)


def test_a_cut_file_is_fetched_again(tmp_path):
    whole = CachedFile(tmp_path, "a", KNOWN).map(Source()).tobytes()
    (path,) = [path for path in tmp_path.iterdir() if not path.suffix]
    for size in (100, 0, SIZE + 1):
        os.truncate(path, size)
        assert CachedFile(tmp_path, "a", KNOWN).map(Source()).tobytes() == whole


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cannot be used"):
        CachedFile(tmp_path / "file", "a", KNOWN).map(Source())


@for_each("cuts", [(), (1, 2), (PART,), (PART - 1, PART + 1, 5 * PART)])
def test_chunks_do_not_depend_on_the_pieces(cuts):
    bounds = [0, *cuts, SIZE]
    pieces = [CONTENT[first:end] for first, end in itertools.pairwise(bounds)]
    assert Chunks.of(pieces, PART) == KNOWN.chunks
    assert len(KNOWN.chunks.checksums) == 11
    assert KNOWN.chunks.are_of(SIZE)
    assert not KNOWN.chunks.are_of(10 * PART)
    assert Chunks.of([], PART).checksums == ()


@pytest.mark.parametrize("damage", ["flip", "cut", "longer"])
def test_a_damaged_copy_is_dropped_and_a_sound_one_is_not(tmp_path, damage):
    copy = CachedFile(tmp_path, "a", KNOWN)
    assert not copy.drop_if_damaged()
    copy.map(Source())
    assert not copy.drop_if_damaged()
    (path,) = [path for path in tmp_path.iterdir() if not path.suffix]
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    elif damage == "cut":
        content.pop()
    else:
        content.append(0)
    path.write_bytes(content)
    assert copy.drop_if_damaged()
    source = Source()
    assert copy.map(source).tobytes() == CONTENT
    assert len(source.asked) == 11


def test_a_lock_that_links_to_nowhere_is_refused(tmp_path):
    file = CachedFile(tmp_path, "a", KNOWN)
    file.path.with_suffix(".lock").symlink_to(tmp_path / "gone" / "lock")
    with pytest.raises(StorageError, match=r"link to a folder that does not exist.*\.lock"):
        file.map(Source())
