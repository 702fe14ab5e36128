"""Enforces ``max_vocabulary`` for writes that load nothing: counts values without opening the view.

It counts the values that this process wrote, through any object, and those that the last seal noted in a
small file. Their sum is at least the number of distinct values of both. A write within the limit passes. For
any other write the view is opened and `VocabularyLimit` decides.

The next seal counts what other processes write in the meantime.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from feast_sketch_store.errors import StorageError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.storage.base import MissingFileError, Storage
from feast_sketch_store.storage.names import VOCABULARY_SIZES
from feast_sketch_store.structures.parts import checked
from feast_sketch_store.view.settings import ViewSettings
from feast_sketch_store.view.vocabulary_limit import elements_of, limited

_LOOK_SECONDS = 30.0  # between two looks at what the last seal found


class _Written:
    """The different values of one view that this process wrote, by feature."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, FeatureCodec], list[Vocabulary]] = {}
        self._sealed: Mapping[str, int] = {}
        self._looked_at: float | None = None
        self.reset_lock()

    def reset_lock(self) -> None:
        """Replace the lock, which another thread of the parent process may have held when it forked."""
        self._lock = threading.Lock()

    def surely_holds(self, rows: pa.Table, storage: Storage, settings: ViewSettings) -> bool:
        """See the function below."""
        with self._lock:
            self._look(storage)
            new: dict[tuple[str, FeatureCodec], pa.Array] = {}
            for name, feature in limited(settings):
                codec = feature.codec
                values = pc.unique(codec.rounded(codec.to_storage(elements_of(rows, feature))))
                parts = self._parts.get((name, codec), [])
                for part in parts:
                    values = values.filter(pa.array(part.find(values) < 0))
                num_written = len(values) + sum(map(len, parts))
                if self._sealed.get(name, 0) + num_written > feature.max_vocabulary:
                    return False
                new[name, codec] = values
            for key, values in new.items():
                self._add(key, values)
            return True

    def _add(self, feature: tuple[str, FeatureCodec], values: pa.Array) -> None:
        """Add values of a feature that are not there."""
        if not len(values):
            return
        parts = self._parts.setdefault(feature, [])
        parts.append(Vocabulary(values))
        # This keeps the number of parts small, and each value is copied only a few times.
        while len(parts) > 1 and 2 * len(parts[-1]) >= len(parts[-2]):
            newer, older = parts.pop(), parts.pop()
            parts.append(Vocabulary(pa.concat_arrays([older.values, newer.values])))

    def _look(self, storage: Storage) -> None:
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= _LOOK_SECONDS:
            self._sealed, self._looked_at = _noted_sizes(storage), now


_written: dict[str, _Written] = {}  # by the identity of a view's storage


def _reset_locks() -> None:
    for written in _written.values():
        written.reset_lock()


os.register_at_fork(after_in_child=_reset_locks)


def surely_holds(rows: pa.Table, storage: Storage, settings: ViewSettings) -> bool:
    """Whether rows keep all features within their limits, as far as can be told without opening the view.

    If so, the rows count from then on.

    Parameters
    ----------
    storage : of the view.
    """
    written = _written.setdefault(storage.identity, _Written())
    return written.surely_holds(rows, storage, settings)


def note_sizes(storage: Storage, sizes: Mapping[str, int]) -> None:
    """Note the number of sealed values per feature for writers; a failure only costs them time."""
    with suppress(StorageError):
        storage.replace(VOCABULARY_SIZES, json.dumps(dict(sizes), sort_keys=True).encode())


def _noted_sizes(storage: Storage) -> Mapping[str, int]:
    try:
        content = checked(json.loads(storage.read(VOCABULARY_SIZES)), dict)
        return {str(name): checked(size, int) for name, size in content.items()}
    except MissingFileError:
        return {}
    except (ValueError, TypeError):
        return {}  # another program wrote it; the next seal replaces it
