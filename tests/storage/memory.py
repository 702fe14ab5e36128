"""A `Storage` in a dictionary, which shows that the interface asks for no file system."""

import io
import itertools
import threading
import time
from contextlib import contextmanager

import numpy as np

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import (
    ZEROS_AFTER,
    FileExistsAlreadyError,
    FileInfo,
    MissingFileError,
    Storage,
    checked_folder,
    checked_name,
)
from feast_sketch_store.storage.object_store import ObjectStorage


class Files:
    """What storages of the same files share."""

    def __init__(self, has_tokens=True):
        self.has_tokens = has_tokens
        self.changed = threading.Condition()
        self.held = set()
        self.files = {}  # name -> (token, time, bytearray or bytes)
        self.tokens = itertools.count()


class MemoryStorage(Storage):
    supports_append = True
    supports_leases = True

    def __init__(self, files=None, read_only=False, prefix=""):
        self.files = Files() if files is None else files
        self.read_only = read_only
        self.prefix = prefix
        self.location = f"memory:/{prefix}".rstrip("/")

    def within(self, folder):
        return type(self)(self.files, self.read_only, self.prefix + checked_folder(folder, self.location))

    def list(self, folder="", after=""):
        start = self.prefix + checked_folder(folder, self.location)
        with self.files.changed:
            rests = [name.removeprefix(start) for name in self.files.files if name.startswith(start)]
        return sorted(rest for rest in rests if "/" not in rest and rest > after)

    def info(self, name):
        with self.files.changed:
            file = self.files.files.get(self._key(name))
            if file is None:
                return None
            token, changed, content = file
            return FileInfo(name, len(content), str(token) if self.files.has_tokens else "", changed)

    def walk(self):
        with self.files.changed:
            names = [name for name in self.files.files if name.startswith(self.prefix)]
        for name in names:
            info = self.info(name.removeprefix(self.prefix))
            if info:
                yield info

    def now(self):
        return time.time()

    def read(self, name, start=0, length=None):
        with self.files.changed:
            content = self._content(name)
            return bytes(content[start : None if length is None else start + length])

    def map(self, name, known=None):
        return np.frombuffer(self.read(name), np.uint8)

    def prepare(self):
        with self._changing():
            pass

    @contextmanager
    def create(self, name):
        with self._changing(), self._absent(name):
            pass
        file = io.BytesIO()
        yield file
        with self._changing(), self._absent(name):
            self._put(name, file.getvalue())

    def replace(self, name, content):
        with self._changing():
            self._put(name, bytes(content))

    def append(self, name, at, pieces):
        with self._changing():
            token, _, content = self.files.files.get(self._key(name)) or (next(self.files.tokens), 0, b"")
            if at > len(content):
                raise StorageError(f"{self.where(name)}: ends before byte {at}")
            kept = content[:at]
            self.files.files[self._key(name)] = (token, time.time(), kept)
            grown = kept + b"".join(bytes(piece) for piece in pieces)
            filled = len(grown) + ZEROS_AFTER
            size_bytes = len(content) if filled <= len(content) else max(4096, 1 << filled.bit_length())
            grown = grown.ljust(size_bytes, b"\0")
            self.files.files[self._key(name)] = (token, time.time(), grown)

    def delete(self, names):
        with self._changing():
            for key in [self._key(name) for name in names]:
                self.files.files.pop(key, None)

    def delete_all(self):
        with self._changing():
            for name in [name for name in self.files.files if name.startswith(self.prefix)]:
                del self.files.files[name]

    @contextmanager
    def lease(self, name, wait=False, create=True):
        key = self._key(name)
        with self._changing():
            is_mine = self.files.changed.wait_for(lambda: key not in self.files.held, None if wait else 0)
            if is_mine:
                self.files.held.add(key)
        try:
            yield is_mine
        finally:
            with self.files.changed:
                if is_mine:
                    self.files.held.remove(key)
                self.files.changed.notify_all()

    def _key(self, name):
        return self.prefix + checked_name(name, self.location)

    def _content(self, name):
        file = self.files.files.get(self._key(name))
        if file is None:
            raise MissingFileError(f"{self.where(name)}: there is no such file")
        return file[2]

    def _put(self, name, content):
        self.files.files[self._key(name)] = (next(self.files.tokens), time.time(), content)

    @contextmanager
    def _changing(self):
        if self.read_only:
            raise StorageError(f"{self.location}: is only read")
        with self.files.changed:
            yield

    @contextmanager
    def _absent(self, name):
        if self._key(name) in self.files.files:
            raise FileExistsAlreadyError(f"{self.where(name)}: another process created the file first")
        yield


class ObjectsInMemory(MemoryStorage):
    """The same without what object stores lack: files that grow, and leases that keep others out."""

    supports_append = False
    supports_leases = False
    append = Storage.append

    @contextmanager
    def lease(self, name, wait=False, create=True):
        yield True


class OwnProcess:
    """A storage that is to each view as if it was in a process of its own."""

    @property
    def identity(self):
        return f"{super().identity} {id(self)}"


class OwnHost(OwnProcess):
    """The same on a host of its own, which fetches files."""

    fetches = True


class Served(ObjectStorage):
    """Objects of a server, of which a folder is a storage of the same kind."""

    def within(self, folder):
        part = super().within(folder)
        return type(self)(part._objects, part._prefix, self.read_only)
