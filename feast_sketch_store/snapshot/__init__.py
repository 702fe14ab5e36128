"""Snapshots: one file per sealed layer, mapped by every process that serves it."""

from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.snapshot.format import decode, encode

__all__ = ["SnapshotFolder", "decode", "encode"]
