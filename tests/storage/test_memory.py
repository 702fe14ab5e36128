"""The contract of storages, with a dictionary."""

import pytest

from tests.storage.contract import StorageContract
from tests.storage.memory import Files, MemoryStorage, ObjectsInMemory


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def make(self):
        files = Files()
        return lambda read_only=False: MemoryStorage(files, read_only)


class TestObjectsInMemory(StorageContract):
    @pytest.fixture
    def make(self):
        files = Files()
        return lambda read_only=False: ObjectsInMemory(files, read_only)
