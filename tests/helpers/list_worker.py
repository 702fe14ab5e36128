"""A view of lists that answers a test's questions, in the test's process or in another one."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from feast_sketch_store.reading.ragged import ListQuestion, RaggedLists
from feast_sketch_store.rows.codecs import LIST, FeatureCodec
from feast_sketch_store.rows.encoding import deletion_rows
from feast_sketch_store.rows.list_log import ListRows
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.opening import ReadOnlyView
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.state import State
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes

SECOND = 1_000_000
TICK = 60 * SECOND
TTL = 40 * TICK
LIMIT = 5
CODEC = FeatureCodec("read", "string_list_val", LIST, listing=Listing(TICK, LIMIT))
SETTINGS = ViewSettings(
    "history", 1e-12, {"read": FeatureSettings(CODEC, 0.0, 10**6)}, ttl_microseconds=TTL, semantics="append"
)
NEVER = SealPolicy(1.0, 10**9)

Item = tuple[str, int]  # a value, and microseconds since 1970


class ListWorker:
    """Answers questions ``(name, *arguments)``, its methods.

    Parameters
    ----------
    storage_of : where the view of a version is kept.
    """

    def __init__(self, storage_of: Callable[[int], Storage]):
        self._storage_of = storage_of
        self.open(0)

    def move(self, folder: str) -> None:
        """Go on with versions in another folder."""
        self._storage_of = _storages(folder)
        self.open(0)

    def __call__(self, question: tuple[Any, ...]) -> Any:
        name, *arguments = question
        return getattr(self, name)(*arguments)

    def open(self, version: int) -> None:
        """Open a version anew."""
        self._storage = self._storage_of(version)
        self._view = View(self._storage, SETTINGS, NEVER, 0.0)
        self._view.prepare()

    def write(self, rows: Sequence[tuple[int, list[Item]]], event: int, operation: str | None = None) -> None:
        """Write rows of users as one commit; ``event`` is the time of a row without items."""
        users, lists = [user for user, _ in rows], [items for _, items in rows]
        indptr = np.concatenate(([0], np.cumsum([len(items) for items in lists]))).astype(np.int64)
        values = pa.array([value for items in lists for value, _ in items], pa.large_string())
        times = np.array([moment for items in lists for _, moment in items], np.int64)
        events = np.array([max((t for _, t in items), default=event) for items in lists], np.int64)
        keys = {"user_id": pa.array(users, pa.int64())}
        self._view.write(ListRows(keys, "read", indptr, values, times, events, operation))

    def delete(self, users: Sequence[int]) -> None:
        """Delete users."""
        self._view.delete(deletion_rows({"user_id": pa.array(users, pa.int64())}, datetime.now(UTC)))

    def maintain(self, task: str) -> bool:
        """Refresh, seal, absorb or vacuum; whether a seal was published."""
        if task == "vacuum":
            self._view.vacuum(orphan_age_seconds=0.0)
            return False
        return bool(getattr(self._view, task)()) and task == "seal"

    def read(
        self, num_users: int, since: int, limit: int | None, has_settings: bool = True
    ) -> tuple[list[list[Item]], bool]:
        """The items of each of the first users, newest first, and whether there are sealed ones."""
        view = self._view if has_settings else ReadOnlyView(self._storage, SETTINGS.view, 0.0)
        hashes, question = user_hashes(range(num_users)), ListQuestion(CODEC, since, limit)

        def read_in(state: State) -> RaggedLists:
            asked = (CODEC.feature,)
            rows, (column,) = state.row_reader(asked), state.columns(asked)
            return question.read(state, rows, column, hashes)[0]

        found = view.with_state(read_in)
        items = list(zip(found.values.to_pylist(), found.microseconds.tolist(), strict=True))
        bounds = found.indptr.tolist()
        rows = [items[a:b] for a, b in pairwise(bounds)]
        return rows, view.shards[0].state.sealed is not None


def worker_in(folder: str) -> ListWorker:
    """A worker on versions in a folder."""
    return ListWorker(_storages(folder))


def _storages(folder: str) -> Callable[[int], Storage]:
    return lambda version: LocalStorage(Path(folder) / f"v{version}")
