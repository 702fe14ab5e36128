"""Arrays that a seal sets aside come back as they were, wherever they are kept."""

import errno
import logging
import os
import tempfile
from unittest.mock import Mock

import numpy as np
import pytest

from feast_sketch_store.errors import StorageError
from feast_sketch_store.rows import spill
from feast_sketch_store.rows.spill import Spill, SpilledArrays, SpilledWords

ARRAYS = [
    np.arange(1_000, dtype=np.int64) - 500,
    np.zeros(0, np.int32),
    np.arange(7, dtype=np.uint16),
    np.arange(90, dtype=np.int32)[::3],
    np.array([2**64 - 1, 0, 1], np.uint64),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def full_disk(monkeypatch):
    """Lets writes fail from the second one on."""
    real, written = os.pwrite, []

    def pwrite(descriptor, content, offset):
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(len(content))
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return written


def assert_same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("memory_bytes", [0, 100, 10**6])
def test_arrays_come_back_whole_and_in_parts(folder, memory_bytes):
    own = Spill(memory_bytes)
    kept = [own.keep(array) for array in ARRAYS]
    for one, array in zip(kept, ARRAYS, strict=True):
        assert_same(one.read(), array)
        if len(array) > 2:
            assert_same(one.read(1, 3), array[1:3])
    assert list(folder.iterdir()) == []  # the file has no name


def test_little_is_kept_in_memory(monkeypatch):
    monkeypatch.setattr(spill, "_unnamed_file", lambda: pytest.fail("a file is not needed"))
    own = Spill()
    assert_same(own.keep(ARRAYS[0]).read(), ARRAYS[0])


def test_a_write_may_be_short(folder, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, content, offset: real(descriptor, content[:3], offset)
    )
    assert_same(Spill(0).keep(ARRAYS[0]).read(), ARRAYS[0])


def test_without_room_on_the_disk_all_stays_in_memory(folder, full_disk, caplog):
    own = Spill(0)
    with caplog.at_level(logging.WARNING):
        kept = [own.keep(array) for array in ARRAYS]
    for one, array in zip(kept, ARRAYS, strict=True):
        assert_same(one.read(), array)
    (record,) = caplog.records
    assert "No space left on device" in record.getMessage()
    assert "TMPDIR" in record.getMessage()


def test_without_a_folder_for_temporary_files_all_stays_in_memory(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with caplog.at_level(logging.WARNING):
        assert_same(Spill(0).keep(ARRAYS[0]).read(), ARRAYS[0])
    assert "TMPDIR" in caplog.text


def test_a_file_that_was_cut_off_is_an_error(folder):
    kept = Spill(0).keep(ARRAYS[0])
    os.ftruncate(kept.descriptor, 10)
    with pytest.raises(StorageError, match="a temporary file of a seal is shorter than it was"):
        kept.read()


def test_the_file_ends_with_what_needs_it(folder, monkeypatch):
    closed, real = [], os.close
    monkeypatch.setattr(os, "close", lambda descriptor: closed.append(descriptor) or real(descriptor))
    kept = Spill(0).keep(ARRAYS[0])
    descriptor = kept.descriptor
    assert_same(kept.read(), ARRAYS[0])  # though nobody else has the spill
    assert descriptor not in closed
    del kept
    assert descriptor in closed


def test_lists_of_arrays(folder):
    arrays = SpilledArrays(Spill(0))
    for array in ARRAYS:
        arrays.append(array)
    assert len(arrays) == len(ARRAYS)
    for found, wanted in zip(arrays, ARRAYS, strict=True):
        assert_same(found, wanted)
    assert_same(arrays[-1], ARRAYS[-1])
    assert_same(arrays.pop(), ARRAYS[-1])
    assert len(arrays) == len(ARRAYS) - 1


def words_of(*lengths):
    return [np.arange(length, dtype=np.uint64) + np.uint64(10 * length) for length in lengths]


def test_words_are_joined(folder):
    parts = words_of(3, 0, 1, 5_000)
    words = SpilledWords()
    for part in parts:
        words.append(part)
    joined = words.joined()
    del words
    assert_same(joined, np.concatenate(parts))
    assert list(folder.iterdir()) == []


def test_words_are_joined_without_room_on_the_disk(folder, full_disk, caplog):
    parts = words_of(3, 2, 4)
    words = SpilledWords()
    for part in parts:
        words.append(part)
    assert_same(words.joined(), np.concatenate(parts))
    assert len(caplog.records) == 1


def test_words_are_joined_where_the_file_cannot_be_mapped(folder, monkeypatch):
    """As under a limit of the address space; a MemoryError follows if the words do not fit either."""
    refused = Mock(side_effect=OSError(errno.ENOMEM, "Cannot allocate memory"))
    monkeypatch.setattr(spill.mmap, "mmap", refused)
    parts = words_of(3, 1, 5_000)
    words = SpilledWords()
    for part in parts:
        words.append(part)
    assert_same(words.joined(), np.concatenate(parts))
    assert refused.called


def test_no_words():
    assert len(SpilledWords().joined()) == 0
