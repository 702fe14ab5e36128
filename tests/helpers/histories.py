"""Views of one feature, ``viewed``, a set of strings of each user: settings, rows, and what reads show."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.oracle.messages import feast_values

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
CODEC = FeatureCodec("viewed", "string_set_val")
NEVER, ALWAYS = SealPolicy(1.0, 10**9), SealPolicy(1e-9, 0)


def settings_of(target: Any, max_vocabulary: int = 1000, presence: float = 1e-5, **more: Any) -> ViewSettings:
    """Settings of a view; ``target`` is an error rate or a goal."""
    features = {"viewed": FeatureSettings(CODEC, target, max_vocabulary)}
    return ViewSettings("history", presence, features, **more)


def row(user: Any, *items: str, event: datetime = MOMENT) -> tuple[Any, ...]:
    """A row as Feast writes it."""
    return user_key(user), {"viewed": Value(string_set_val=StringSet(val=items))}, event, None


def put(view: View, users: Mapping[Any, Iterable[str]], second: int = 0) -> dict[Any, set[str]]:
    """Write items of users, so many seconds after the first moment. Returns what reads must show of them."""
    event = MOMENT + timedelta(seconds=second)
    view.write([row(user, *items, event=event) for user, items in users.items()])
    return {user: set(items) for user, items in users.items()}


def items_of(view: View, users: Iterable[Any]) -> dict[Any, set[str]]:
    """What a read shows of users; each that has a row is found once."""
    users = list(users)
    answer = view.read(user_hashes(users), ["viewed"])
    if not len(answer.found):
        return {}
    feature = answer.features["viewed"]
    values = feast_values(feature)
    found = [users[position] for position in answer.found.tolist()]
    assert len(set(found)) == len(found)
    return {user: set(value.string_set_val.val) for user, value in zip(found, values, strict=True)}


def filling(
    settings: ViewSettings, users: Mapping[Any, Iterable[str]], second: int = 0
) -> Callable[[Storage], Storage]:
    """Fills the storage of a rebuild with these rows."""

    def fill(storage: Storage) -> Storage:
        put(View(storage, settings, NEVER, 0.0), users, second)
        return storage

    return fill


class Process:
    """A view over a folder, as a process of its own has it."""

    def __init__(self, folder: Path, settings: ViewSettings, interval: float = 0.0) -> None:
        self.view = View(LocalStorage(folder), settings, NEVER, interval)

    def put(self, user: Any, *items: str, second: int = 0, policy: SealPolicy = NEVER) -> None:
        """Write a row."""
        self.put_all({user: items}, second, policy)

    def put_all(
        self, users: Mapping[Any, Iterable[str]], second: int = 0, policy: SealPolicy = NEVER
    ) -> None:
        """Write rows in one batch."""
        self.view.policy = policy
        put(self.view, users, second)

    def get(self, *users: Any) -> dict[Any, set[str]]:
        """What a read shows."""
        return items_of(self.view, users)
