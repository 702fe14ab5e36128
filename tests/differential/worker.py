"""One side of a comparison of two versions of the package: obeys operations, answers with plain values.

Runs with the Python of an environment that has some version installed, and uses what users use: Feast's
calls, `SketchReader`, `Lists`, `open_view` and the command line. Reads lines of JSON, a list of operations
each; writes for each a line of JSON with the answers. See `compare.py`.
"""

import contextlib
import io
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Array, Float64, Int64, Map, Set, String, UnixTimestamp
from views import VIEWS, WEIGHTS, spelled_options, spelled_tags

from feast_sketch_store import Lists, SketchReader, open_view
from feast_sketch_store.cli import cli
from feast_sketch_store.errors import SketchStoreError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = {
    "Set(Int64)": Set(Int64),
    "Set(String)": Set(String),
    "Array(Int64)": Array(Int64),
    "Array(String)": Array(String),
    "Array(UnixTimestamp)": Array(UnixTimestamp),
    "Int64": Int64,
    "Float64": Float64,
    "String": String,
    "Map": Map,
}
SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)


def same_salts() -> None:
    """Draw one salt always, so that both versions have the same false positives."""
    from feast_sketch_store.layers import build

    build.new_salt = lambda: SALT


class Side:
    """A repository with all views, in a folder of its own."""

    def __init__(self, spelling: str, shards: int):
        self.folder = Path(tempfile.mkdtemp(prefix="differential-"))
        options = spelled_options(spelling, shards)
        config = {
            "project": "shop",
            "provider": "local",
            "registry": {"registry_type": "file", "path": "registry.db", "cache_ttl_seconds": 0},
            "entity_key_serialization_version": 3,
            "online_store": {"type": "sketch", "path": "sketch", **options},
        }
        (self.folder / "feature_store.yaml").write_text(json.dumps(config))
        (self.folder / "scores.json").write_text(json.dumps({"viewed": [*WEIGHTS.items()]}))
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        shop = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
        source = FileSource(path=str(self.folder / "none.parquet"), timestamp_field="event")
        views = [
            FeatureView(
                name=name,
                entities=[user, shop] if view.composite else [user],
                schema=[
                    Field(name=f, dtype=TYPES[kind], tags=spelled_tags(spelling, meaning))
                    for f, (kind, meaning) in view.features.items()
                ],
                source=source,
                ttl=timedelta(days=36_500),
            )
            for name, view in VIEWS.items()
        ]
        FeatureStore(repo_path=str(self.folder)).apply([user, shop, *views])
        self.reopen()

    def reopen(self) -> None:
        """Forget everything in memory."""
        self.store = FeatureStore(repo_path=str(self.folder))
        self.tables = {name: self.store.get_feature_view(name) for name in VIEWS}
        self.online = self.store._get_provider().online_store
        self.readers: dict[str, SketchReader] = {}

    def obey(self, operation: Mapping[str, Any]) -> list[Any]:
        """The answers of an operation, of which each has a name."""
        do: Callable[..., Any] = getattr(self, "do_" + operation["do"])
        given = {name: value for name, value in operation.items() if name != "do"}
        try:
            return plain(do(**given))
        except Exception as error:  # a crash of one version is a difference, and not the end
            return ["raised", type(error).__name__, str(error)]

    # -- changes -----------------------------------------------------------------------------------

    def do_reopen(self) -> str:
        self.reopen()
        return "reopened"

    def do_write(self, view: str, rows: Sequence[Mapping[str, Any]]) -> int:
        data = [
            (
                key_of(view, row["entity"]),
                {name: value_of(VIEWS[view].features[name][0], v) for name, v in row["values"].items()},
                EPOCH + timedelta(seconds=row["event"]),
                None,
            )
            for row in rows
        ]
        self.online.online_write_batch(self.store.config, self.tables[view], data, None)
        return len(rows)

    def do_items(
        self, view: str, entities: Sequence[int], values: Sequence[int], times: Sequence[int]
    ) -> int:
        moments = pa.array([EPOCH + timedelta(seconds=t) for t in times], pa.timestamp("us", "UTC"))
        self.lists(view).add(np.array(entities), values, moments)
        return len(entities)

    def do_remove(self, view: str, entity: int, value: int, until: int) -> None:
        self.lists(view).remove(np.array([entity]), value, EPOCH + timedelta(seconds=until))

    def do_delete(self, view: str, entities: Sequence[int]) -> None:
        self.online.delete(self.store.config, self.tables[view], [key_of(view, e) for e in entities])

    def do_seal(self, view: str, as_delta: bool) -> None:
        open_view(self.store, view).seal(as_delta)

    def do_vacuum(self, view: str) -> None:
        open_view(self.store, view).vacuum(orphan_age_seconds=0.0)

    # -- reads -------------------------------------------------------------------------------------

    def do_verify(self, view: str) -> int:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                cli.main(["-c", str(self.folder), "verify", view], standalone_mode=False)
            except SystemExit as end:
                return int(end.code or 0)
        return 0

    def do_online_read(self, view: str, entities: Sequence[int], features: Sequence[str] | None) -> Any:
        keys = [key_of(view, entity) for entity in entities]
        rows = self.online.online_read(self.store.config, self.tables[view], keys, features)
        return [
            None if values is None else [moment, {n: of_value(view, n, v) for n, v in sorted(values.items())}]
            for moment, values in rows
        ]

    def do_get(self, views: Sequence[str], entities: Sequence[int]) -> Any:
        features = [f"{view}:{name}" for view in views for name in VIEWS[view].features]
        rows: dict[str, list[Any]] = {"user_id": list(entities)}
        if any(VIEWS[view].composite for view in views):
            rows["shop_id"] = [shop_of(entity) for entity in entities]
        response = self.store.get_online_features(features, rows, full_feature_names=True).proto
        return {
            name: [
                [of_value(*name.partition("__")[::2], v), s, t.ToMicroseconds()]
                for v, s, t in zip(r.values, r.statuses, r.event_timestamps, strict=True)
            ]
            for name, r in zip(response.metadata.feature_names.val, response.results, strict=True)
        }

    def do_reader(self, view: str, entities: Sequence[int], feature: str, candidates: Sequence[Any]) -> Any:
        if view not in self.readers:
            try:
                self.readers[view] = SketchReader(self.folder, view, refresh_interval_seconds=0)
            except SketchStoreError:
                return ["raised", "SketchStoreError", "nothing yet"]
        reader, asked = self.readers[view], self.entities(view, entities)
        kind, meaning = VIEWS[view].features[feature]
        values = reader.arrow(feature, asked).to_pylist()
        if is_set(view, feature):
            values = [row and sorted({*row}) for row in values]
        answers: dict[str, Any] = {"exists": reader.exists(asked), "arrow": values}
        if "list" in meaning:
            lists = reader.lists(feature, asked)
            answers["lists"] = [lists.indptr, lists.values, lists.timestamps]
        elif kind.startswith("Set") or "counts" in meaning:
            rows = reader.csr(feature, asked, counts="counts" in meaning)
            values = rows.vocabulary.take(pa.array(rows.ids)).to_pylist()
            counts = [1] * len(values)
            if "counts" in meaning:  # the other version may name them `weights`
                counts = (rows.counts if hasattr(rows, "counts") else rows.weights).tolist()
            bounds = rows.indptr.tolist()
            answers["csr"] = [
                sorted(zip(values[a:b], counts[a:b], strict=True)) for a, b in itertools.pairwise(bounds)
            ]
            answers["contains"] = reader.contains(feature, asked, candidates)
            alone = self.entities(view, entities[:1])
            answers["contains of one"] = reader.contains(feature, alone, candidates)
            answers["bits"] = [
                bin(int.from_bytes(r.tobytes(), "little")).count("1") for r in reader.bits(feature, asked)
            ]
            weights_of = np.ones(len(rows.vocabulary))
            answers["scores"] = reader.scores(feature, asked, weights_of)
            if not VIEWS[view].composite:
                vocabulary = reader.vocabulary(feature)
                ids = [reader.ids(feature, entity) for entity in entities[:3]]
                answers["ids"] = [sorted(vocabulary.take(pa.array(i)).to_pylist()) for i in ids]
                answers["score of one"] = float(reader.scores(feature, int(entities[0]), weights_of))
        return answers

    # -- parts -------------------------------------------------------------------------------------

    def lists(self, view: str) -> Lists:
        return Lists(self.store, view, "items")

    def entities(self, view: str, entities: Sequence[int]) -> Any:
        if VIEWS[view].composite:
            return {"user_id": np.array(entities), "shop_id": [shop_of(e) for e in entities]}
        return np.array(entities)


def shop_of(entity: int) -> str:
    """The second join key of an entity, where it has two."""
    return f"shop {entity % 3}"


def key_of(view: str, entity: int) -> EntityKey:
    """The key of an entity, in a view."""
    if VIEWS[view].composite:
        values = [Value(string_val=shop_of(entity)), Value(int64_val=entity)]
        return EntityKey(join_keys=["shop_id", "user_id"], entity_values=values)
    return EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=entity)])


def value_of(kind: str, content: Any) -> Value:
    """A value of a type of Feast."""
    value = Value()
    if content is None:
        return value
    field = {"Int64": "int64", "Float64": "double", "String": "string", "UnixTimestamp": "unix_timestamp"}
    if kind == "Map":
        value.map_val.val["a"].int64_val = content
    elif "(" in kind:
        outer, inner = kind.removesuffix(")").split("(")
        name = f"{field[inner]}_{'set' if outer == 'Set' else 'list'}_val"
        getattr(value, name).SetInParent()
        getattr(value, name).val.extend(content)
    else:
        setattr(value, field[kind] + "_val", content)
    return value


def is_set(view: str, feature: str) -> bool:
    """Whether the values of a feature have no order."""
    kind, meaning = VIEWS[view].features[feature] if view in VIEWS else ("", "")
    return kind.startswith("Set") or (kind.startswith("Array") and not meaning)


def of_value(view: str, feature: str, value: Value) -> Any:
    """A value of a feature as JSON; elements without an order are sorted."""
    field = value.WhichOneof("val")
    if field is None:
        return None
    content = getattr(value, field)
    if field.endswith(("list_val", "set_val")):
        return [field, sorted(content.val) if is_set(view, feature) else list(content.val)]
    return [field, str(content) if field == "map_val" else content]


def plain(answer: Any) -> Any:
    """An answer as JSON."""
    if isinstance(answer, pa.Array | pa.ChunkedArray):
        return plain(answer.to_pylist())
    if isinstance(answer, np.ndarray):
        return plain(answer.tolist())
    if isinstance(answer, Mapping):
        return {name: plain(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(value) for value in answer]
    if isinstance(answer, datetime):
        return answer.isoformat()
    if isinstance(answer, float) and not math.isfinite(answer):
        return str(answer)
    if isinstance(answer, bytes):
        return answer.hex()
    return answer


def main() -> None:
    """Obey the operations on standard input until it ends."""
    spelling, shards = sys.argv[1], int(sys.argv[2])
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may be among the answers
    same_salts()
    side = Side(spelling, shards)
    for line in sys.stdin:
        print(json.dumps([side.obey(operation) for operation in json.loads(line)]), file=answers, flush=True)


if __name__ == "__main__":
    main()
