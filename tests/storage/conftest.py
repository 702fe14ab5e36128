"""The contract is a module beside the tests, whose assertions pytest is to explain all the same."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from feast_sketch_store.storage import buckets

pytest.register_assert_rewrite("tests.storage.contract")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On the disk, where inodes come again and syncs take time; that of other tests may be in memory."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What cannot be reached is an error at once, on connections that no other test has."""
    monkeypatch.setattr(buckets, "_RETRIES", 0)
    buckets._objects.cache_clear()
    yield
    buckets._objects.cache_clear()
