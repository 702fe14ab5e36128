"""Scalars that are kept exactly: reads, seals and memory, beside the default and Feast's SQLite store.

Every store has the same rows. The sketch has them twice: with exact features, and as scalars are by default.
Bytes are those of the newest snapshot without the keys of its rows, and of SQLite's file. One entity is also
asked for through `get_online_features`, beside the floor, which looks up finished protos. The last table has
the goals, what was measured, and whether it holds.
"""

from functools import partial
from pathlib import Path
from typing import Any

import floor as floor_store
import numpy as np
from feast import Entity, FeatureStore, ValueType
from measure import Goal, interleaved, number, print_goals, print_set_up, print_table, seconds
from stores import FLOOR, SKETCH, SQLITE, config_of, entity_keys, scalar_rows, scalar_view, temporary_folder

EXACT = "sketch, exact features"
NAMES = [f"f{number}" for number in range(10)]
BATCHES = {1: 200, 10: 100, 100: 30, 1_000: 8}


class Side:
    """The rows in one store."""

    def __init__(self, folder: Path, kind: str, tags: dict[str, str], num_users: int):
        folder.mkdir()
        options = {"type": kind, "path": str(folder / "online")}
        if kind == SKETCH:
            options["compaction"] = {"min_rows": 10**9}
        if kind == FLOOR:
            options = {"type": floor_store.NAME}
        self._config = config_of(folder, options)
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        self._view = scalar_view(user, "users", NAMES, tags)
        self._store = FeatureStore(config=self._config)
        self._store.apply([user, self._view])
        self._online: Any = self._store._get_provider().online_store
        protos = scalar_rows(self._view, num_users, 0)
        self.write_seconds, _ = seconds(
            self._online.online_write_batch, self._config, self._view, protos, None
        )
        self.seal_seconds, self.num_bytes = 0.0, 0
        if kind == SKETCH:
            self.seal_seconds, _ = seconds(self._online.seal, self._config, self._view)  # type: ignore[attr-defined]
            stats = self._online.view(self._config, self._view).stats()  # type: ignore[attr-defined]
            if stats.unsealed_rows:
                raise AssertionError(f"the view is not sealed: {stats}")
            self.num_bytes = stats.snapshot_bytes
        elif kind == SQLITE:
            self.num_bytes = (folder / "online").stat().st_size

    def read(self, keys: list[Any]) -> Any:
        """Rows as Feast gets them."""
        return self._online.online_read(self._config, self._view, keys, NAMES)

    def respond(self, user: int) -> Any:
        """A response of Feast about one user."""
        features = [f"users:{name}" for name in NAMES]
        return self._store.get_online_features(features=features, entity_rows=[{"user_id": user}])


def run(*, quick: bool) -> None:
    num_users = 2_000 if quick else 50_000
    with temporary_folder() as folder:
        sides = {
            EXACT: Side(folder / "exact", SKETCH, {"sketch.codec": "exact"}, num_users),
            SKETCH: Side(folder / "default", SKETCH, {}, num_users),
            SQLITE: Side(folder / "sqlite", SQLITE, {}, num_users),
        }
        floor = Side(folder / "floor", FLOOR, {}, num_users)
        _check(sides, num_users)
        _measure(sides, num_users, rounds=3 if quick else 9)
        _respond({**sides, FLOOR: floor}, num_users, rounds=3 if quick else 9)


def _measure(sides: dict[str, Side], num_users: int, rounds: int) -> None:
    calls = ", ".join(map(str, BATCHES.values()))
    print_set_up(
        f"{num_users:,} users, {len(NAMES)} features: Int64 of 1,000 values, Float64, String of 50; "
        f"`online_read`, {rounds} turns of {calls} calls",
        "numpy",
        "feast",
    )
    times = {}
    for batch, per_turn in BATCHES.items():

        def keys(call: int, batch: int = batch) -> list[Any]:
            users = np.random.default_rng(call).choice(num_users, batch, replace=False)
            return entity_keys(users.tolist())

        reads = {name: partial(Side.read, side) for name, side in sides.items()}
        times[batch] = interleaved(reads, keys, rounds=rounds, calls=per_turn)
    header = ["store", "bytes per row", "written, rows/s", "sealed, rows/s"]
    header += [f"{batch:,}, us" for batch in BATCHES] + [f"{batch:,} / sqlite" for batch in BATCHES]
    lines = []
    for name, side in sides.items():
        sealed = number(num_users / side.seal_seconds) if side.seal_seconds else "-"
        line = [name, number(side.num_bytes / num_users), number(num_users / side.write_seconds), sealed]
        line += [number(times[batch][name] * 1e6) for batch in BATCHES]
        lines.append(line + [number(times[batch][name] / times[batch][SQLITE]) for batch in BATCHES])
    print_table(header, lines)


def _respond(sides: dict[str, Side], num_users: int, rounds: int) -> None:
    """One entity through Feast."""
    answers = {name: side.respond(7).to_dict() for name, side in sides.items()}
    for name, answer in answers.items():
        if answer != answers[SQLITE]:
            raise AssertionError(f"{name} answers otherwise than {SQLITE}")
    calls = BATCHES[1]
    times = interleaved(
        {name: side.respond for name, side in sides.items()},
        lambda call: int(np.random.default_rng(call).integers(num_users)),
        rounds=rounds,
        calls=calls,
    )
    print_set_up(f"the same; `get_online_features` of one entity, {rounds} turns of {calls} calls", "feast")
    print_table(
        ["store", "us", "/ sqlite", "/ floor"],
        [
            [name, *(number(n) for n in (time * 1e6, time / times[SQLITE], time / times[FLOOR]))]
            for name, time in times.items()
        ],
    )
    print_goals(
        [
            Goal(f"get_online_features of 1, {name}, against {peer}", times[name] / times[peer], limit)
            for name in (EXACT, SKETCH)
            for peer, limit in ((SQLITE, 0.7), (FLOOR, 1.15))
        ]
    )


def _check(sides: dict[str, Side], num_users: int) -> None:
    """All stores answer alike."""
    keys = entity_keys(list(range(0, num_users, max(1, num_users // 50))))
    answers = {name: side.read(keys) for name, side in sides.items()}
    for name in (EXACT, SKETCH):
        for (_, ours), (_, theirs) in zip(answers[name], answers[SQLITE], strict=True):
            if ours != theirs:
                raise AssertionError(f"{name}: {ours} is not {theirs}")
