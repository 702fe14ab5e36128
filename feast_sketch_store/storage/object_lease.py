"""Leases on an object store: an object that its holder renews. They save work; correctness never needs them.

Two processes may hold the same lease for a while: if a holder is stopped for longer than a lease lasts, or if
a clock is wrong.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import FileExistsAlreadyError
from feast_sketch_store.storage.objects import ObjectInfo, Objects

LASTS_SECONDS = 60.0  # without a renewal
_RENEWED_EVERY_SECONDS = 15.0
_LOOKED_AT_EVERY_SECONDS = 0.5  # while another process waits


@contextmanager
def lease(objects: Objects, key: str, wait: bool) -> Iterator[bool]:
    """Hold a key; see `Storage.lease`."""
    holder = secrets.token_hex(8).encode()
    while not (is_mine := _take(objects, key, holder)) and wait:
        time.sleep(_LOOKED_AT_EVERY_SECONDS)
    if not is_mine:
        yield False
        return
    done = threading.Event()
    renewer = threading.Thread(
        target=_renew, args=(objects, key, holder, done), name="feast_sketch_store lease", daemon=True
    )
    renewer.start()
    try:
        yield True
    finally:
        done.set()
        renewer.join()
        # A lease that cannot be released expires.
        with suppress(StorageError):
            if _held(objects, key, holder) is not None:
                objects.delete([key])


def _take(objects: Objects, key: str, holder: bytes) -> bool:
    with suppress(FileExistsAlreadyError):
        objects.create(key, holder)
        return True
    found = objects.info(key)
    if found is None:
        return False  # it was released just now
    # A lease dated further ahead than it can last was written by a wrong clock, and does not count.
    if abs(time.time() - found.modified_at) < LASTS_SECONDS:
        return False
    return objects.replace(key, holder, found)


def _held(objects: Objects, key: str, holder: bytes) -> ObjectInfo | None:
    """Metadata of the lease, if it still belongs to the holder."""
    with suppress(StorageError):
        info, content = objects.read_all(key)
        if content == holder:
            return info
    return None


def _renew(objects: Objects, key: str, holder: bytes, done: threading.Event) -> None:
    while not done.wait(_RENEWED_EVERY_SECONDS):
        with suppress(StorageError):
            known = _held(objects, key, holder)
            if known is None or not objects.replace(key, holder, known):
                return
