"""How programs use the public names: mypy checks that their annotations allow it. Nothing runs this."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from feast import FeatureStore

from feast_sketch_store import (
    Counts,
    Lists,
    Sets,
    SketchReader,
    View,
    ViewStats,
    open_view,
    shard_of,
    through_sketch,
)

NOW = datetime.now(UTC)
USERS = np.array([12347, 17850])
FRAME = pd.DataFrame({"user_id": USERS, "time": pd.Timestamp.now("UTC")})


def read(reader: SketchReader) -> None:
    for users in (USERS, [1, 2], ["a", "b"], (1, 2), range(2), pa.array([1, 2]), FRAME["user_id"]):
        print(reader.csr("viewed", users).indptr, reader.exists(users), reader.contains("viewed", users, [1]))
    pairs = {"user_id": [1, 2], "shop": ["a", "b"]}
    matrix = reader.csr("viewed", pairs, counts=True)
    print(0 if matrix.counts is None else matrix.counts.sum(), len(matrix.vocabulary), reader.hash(pairs))
    print(reader.bits("viewed", USERS).sum(), reader.multi_hot("viewed", USERS, np.zeros((2, 9), np.int8)))
    print(reader.arrow("viewed", USERS).to_pylist(), reader.jagged("viewed", USERS, limit=5).offsets)

    for user in (7, "a", b"a", USERS[0], np.int64(7)):
        print(reader.ids("viewed", user).sum(), reader.lists("viewed", user).timestamps)
    print(reader.ids("viewed", {"user_id": 7, "shop": "a"}), reader.ids("viewed", {"user_id": USERS[0]}))
    shown = reader.candidates("viewed", np.array(["a", "b"]))
    print(reader.contains("viewed", 7, shown).any(), reader.contains("viewed", USERS, shown).any())


def score(reader: SketchReader) -> list[float]:
    weights = np.ones(9, np.float32)
    totals = reader.scores("viewed", USERS, weights, counts=True).tolist()
    return [*totals, reader.scores("viewed", 7, weights), reader.scores("viewed", USERS[0], weights)]


def as_of(reader: SketchReader) -> pd.DataFrame:
    for until in (NOW, [NOW, NOW], FRAME["time"], FRAME["time"].to_numpy(), pa.array([NOW, NOW])):
        lists = reader.lists("viewed", USERS, limit=9, until=until, inclusive=True, attributes=["action"])
        print(lists.indptr, lists.values, lists.attribute("action"), lists.attribute_ids["action"].sum())
    return FRAME[lists.complete]


def write(folder: Path) -> None:
    lists, actions = Lists(FeatureStore(str(folder)), "history", "viewed"), {"action": ["click", "like"]}
    lists.add(USERS, ["a", "b"], [NOW, NOW], actions)
    lists.add([7, 8], [1, 2], NOW)
    lists.add(FRAME["user_id"], FRAME["user_id"], FRAME["time"].to_numpy(), actions)
    lists.replace([7], np.array([0, 2]), [1, 2])
    lists.remove([7], lists.get([7], NOW - timedelta(days=2), 5).values[0].as_py(), until=NOW)
    sets = Sets("repo", "likes", "liked")
    sets.remove([7], sets.get([7])[0].as_py()[0])
    counts = Counts(folder, "clicks", "author")
    counts.increment(USERS, [1, 2], [3, 4], event_ids=[f"event {number}" for number in range(2)])
    values, numbers = counts.get(USERS)
    counts.replace([7], [0, 1], [1], [3])
    print(values.to_pylist(), counts.get(USERS).counts == numbers)
    counts.clear([7])


def sizes(store: FeatureStore, readers: list[SketchReader]) -> tuple[ViewStats, int, pd.DataFrame]:
    view: View = open_view(store, "history")
    shard: int = shard_of({"user_id": 7, "shop": "a"}, 16)
    vocabularies = {"viewed": ["a", "b"]}
    readers += [SketchReader(Path("repo"), "history", vocabularies=vocabularies, ttl=timedelta(days=30))]
    readers += [SketchReader("repo", "history", "shop", vocabularies={"viewed": USERS}, serve_shards=[0])]
    return view.stats(), shard, through_sketch(FRAME, readers[0], ["viewed"])
