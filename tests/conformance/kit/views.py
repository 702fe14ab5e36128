"""Sealed views that together have a row for everything that a reader must handle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.rows.binning import Quantiles
from feast_sketch_store.rows.codecs import BACKING, BINNED, COUNTS, EXACT, LIST, FeatureCodec
from feast_sketch_store.rows.count_log import counts_column
from feast_sketch_store.rows.counting import Counting
from feast_sketch_store.rows.encoding import (
    CREATED_TIMESTAMP,
    DELETED,
    ENTITY_KEY,
    EVENT_TIMESTAMP,
    NAMES,
    NULLS,
    TIMESTAMP,
    EncodedRows,
    encode,
    newest_rows,
)
from feast_sketch_store.rows.entity_keys import hash_serialized_keys, serialize_columns
from feast_sketch_store.rows.list_log import ListRows, encode_lists
from feast_sketch_store.rows.listing import Attribute, Listing
from feast_sketch_store.rows.lists import as_sealed
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.snapshot.format import encode as encode_file
from feast_sketch_store.snapshot.manifest import LayerFiles, Manifest, PartFile, checksum_of
from feast_sketch_store.snapshot.order import order_arrays
from feast_sketch_store.snapshot.sealed import with_checksums
from tests.helpers.layers import build_layer

SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
NOON = 1_777_636_800_000_000  # 2026-05-01T12:00:00Z
HOUR = 3_600_000_000
CREATED_BY = "conformance"

Key = Mapping[str, tuple[str, Any]]  # by join key, its type and value
Arrays = dict[str, NDArray[np.generic]]


@dataclass
class Layer:
    """A base or delta: the description and arrays of its files, which may be changed."""

    version: int
    description: dict[str, Any]
    arrays: Arrays
    order: Arrays


@dataclass
class SealedView:
    """A view's snapshot, from the base to the newest delta, and keys to ask for.

    ``files`` are further files of the folder, by name. ``computed`` names the features that formulas compute.
    """

    layers: list[Layer]
    keys: list[Key]
    files: dict[str, bytes] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)

    def contents(self) -> dict[str, bytes]:
        """The files of the view's folder, by their names."""
        parts, contents = [], dict(self.files)
        for number, layer in enumerate(self.layers):
            name, files = snapshot_name(layer.version), {}
            description = {**layer.description, "row_log_version": layer.version}
            bodies = {"base": (description, with_checksums(layer.arrays)), "order": ({}, layer.order)}
            for part, (own, arrays) in bodies.items():
                content = b"".join(encode_file(own, arrays))
                files[part] = part_file(f"{name}.{part}.sketch", content)
                contents[f"snapshots/{files[part].name}"] = content
            parts.append(files)
            last = number == len(self.layers) - 1
        assert last
        contents[f"snapshots/{name}.json"] = self._manifest(parts).encode()
        return contents

    def _manifest(self, parts: Sequence[Mapping[str, PartFile]]) -> Manifest:
        layers = [LayerFiles(layer.version, files) for layer, files in zip(self.layers, parts, strict=True)]
        return Manifest(1, CREATED_BY, tuple(layers))


def snapshot_name(version: int) -> str:
    """The name of the snapshot of a version."""
    return f"{version:020d}-0001-5a17c0de"


def part_file(name: str, content: bytes) -> PartFile:
    """A manifest's entry for a file."""
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    return PartFile(name, len(content), checksum_of(header))


def users(numbers: Sequence[int]) -> dict[str, pa.Array]:
    """Join keys of users, int64."""
    return {"user_id": pa.array(numbers, pa.int64())}


def keys_of(join_keys: Mapping[str, pa.Array]) -> list[Key]:
    """The keys in columns of join keys."""
    kinds = {"large_string": "string", "large_binary": "bytes", "int32": "int32", "int64": "int64"}
    columns = {}
    for name, values in join_keys.items():
        kind = kinds.get(str(values.type), "timestamp")
        numbers = values.cast(pa.int64()) if kind == "timestamp" else values
        columns[name] = [(kind, value) for value in numbers.to_pylist()]
    length = len(next(iter(columns.values())))
    return [{name: values[row] for name, values in columns.items()} for row in range(length)]


def encoded(
    join_keys: Mapping[str, pa.Array],
    codecs: Sequence[FeatureCodec],
    values: Mapping[str, Sequence[Any]],
    events: Sequence[int] | None = None,
) -> EncodedRows:
    """Rows in the form that a seal takes.

    Parameters
    ----------
    join_keys, codecs : of the rows.
    values : by feature, one per row: a value, a list of elements, None for a null, ``...`` for missing.
        Further columns of the row log may have counts.
    events : microseconds since 1970; by default one hour apart.
    """
    num_rows = len(next(iter(join_keys.values())))
    nulls = [[name for name, column in values.items() if column[row] is None] for row in range(num_rows)]
    columns = {
        codec.feature: pa.array([None if v is ... else v for v in values[codec.feature]], codec.arrow_type)
        for codec in codecs
    }
    for name in values.keys() - columns.keys():  # columns of counts
        columns[name] = pa.array(values[name], pa.large_list(pa.int64()))
    moments = [NOON + HOUR * row for row in range(num_rows)] if events is None else list(events)
    own = {
        ENTITY_KEY: serialize_columns(join_keys),
        EVENT_TIMESTAMP: pa.array(moments, TIMESTAMP),
        CREATED_TIMESTAMP: pa.array([m + 60_000_000 if m % 2 else None for m in moments], TIMESTAMP),
        NULLS: pa.array([names or None for names in nulls], NAMES),
        DELETED: pa.nulls(num_rows, pa.bool_()),
    }
    return encode(*newest_rows(pa.table({**columns, **own})), codecs)


def sealed(rows: EncodedRows, budget: FeatureBudget, version: int = 3, **changes: Any) -> Layer:
    """A layer of rows with a fixed salt, and other parameters of `SketchLayer`."""
    layer = replace(build_layer(rows, budget, SALT), **changes)
    description, arrays = layer.to_snapshot()
    own = {**description, "created_by": CREATED_BY, "view": "history", "row_log_version": version}
    return Layer(version, own, dict(arrays), order_arrays(rows.keys))


def view(
    join_keys: Mapping[str, pa.Array],
    codecs: Sequence[FeatureCodec],
    values: Mapping[str, Sequence[Any]],
    budget: FeatureBudget,
    unknown: Sequence[Key] = (),
) -> SealedView:
    """A view of one layer, and the keys of all its rows and some others."""
    rows = encoded(join_keys, codecs, values)
    return SealedView([sealed(rows, budget)], [*keys_of(join_keys), *unknown])


def unknown_users(number: int = 20) -> list[Key]:
    """Keys of users that no view has."""
    return keys_of(users(range(1_000_000, 1_000_000 + number)))


# -- the views -----------------------------------------------------------------------------------------


def shapes() -> SealedView:
    """A filter that records the rows, with so many shapes that they take several ranges."""
    numbers, rng = range(320), np.random.default_rng(1)
    collections = [FeatureCodec(f"set_{n}", "int64_set_val") for n in range(4)]
    codecs = [*collections, FeatureCodec("country", "string_val"), FeatureCodec("member", "bool_val")]
    choices: list[Any] = [..., None, [], [1, 2]]
    values: dict[str, list[Any]] = {
        codec.feature: [choices[n] for n in rng.integers(0, 4, len(numbers))] for codec in collections
    }
    values["country"] = [[..., None, "DE", "FR", "", "ß"][n] for n in rng.integers(0, 6, len(numbers))]
    values["member"] = [[..., None, False, True][n] for n in rng.integers(0, 4, len(numbers))]
    targets = {codec.feature: 0.01 if codec.is_collection else 1e-5 for codec in codecs}
    return view(users(numbers), codecs, values, FeatureBudget(1e-6, targets), unknown_users())


def columns() -> SealedView:
    """Exact features of every type, scalars and collections, in every state."""
    bits = [float.fromhex("-0x1.8p-1074"), -0.0, float("inf"), float("nan"), 1.1]
    elements: dict[str, list[Any]] = {
        "bytes": [b"", b"\x00\xff", b"a"],
        "string": ["", "naïve ☕", "\x00", "a" * 300],
        "int32": [-(2**31), 2**31 - 1, 0],
        "int64": [-(2**63), 2**63 - 1, -1],
        "double": bits,
        "float": [0.5, -0.0, float("nan"), 2.0**-140],
        "bool": [False, True],
        "unix_timestamp": [-(10**12) * 1_000_000, 0, 253_402_300_799_000_000],
        "decimal": ["1.50", "-0"],
    }
    codecs, values = [], {}
    for kind, own in elements.items():
        for suffix in ("val", "list_val", "set_val"):
            codec = FeatureCodec(f"{kind}_{suffix}", f"{kind}_{suffix}", EXACT)
            codecs.append(codec)
            rows: list[Any] = [
                ...,
                None,
                *([[], own, own[::-1], own[:1] * 3] if codec.is_collection else own),
            ]
            values[codec.feature] = [rows[(n + len(codecs)) % len(rows)] for n in range(24)]
    # JavaScript's objects take this name for another thing than a member.
    codecs.append(FeatureCodec("__proto__", "int64_val", EXACT))
    values["__proto__"] = [7] * 24
    return view(users(range(24)), codecs, values, FeatureBudget(1e-9, {}), unknown_users())


def scalars() -> SealedView:
    """Scalars that take more than one number together, binned scalars, and an exact one."""
    rng, num_rows = np.random.default_rng(2), 60
    codecs = [FeatureCodec(f"category_{n}", "string_val") for n in range(32)]
    values: dict[str, list[Any]] = {}
    for number, codec in enumerate(codecs):
        chosen = rng.integers(0, 2 + number % 9, num_rows)
        values[codec.feature] = [[..., None, *"abcdefgh"][n] for n in chosen]
    codecs += [
        FeatureCodec("weight", "double_val", BINNED, Quantiles(4)),
        FeatureCodec("stars", "float_val", BINNED, Quantiles(3)),
        FeatureCodec("since", "unix_timestamp_val"),
        FeatureCodec("never", "int64_val"),
        FeatureCodec("note", "string_val", EXACT),
    ]
    values["weight"] = [n / 7 for n in range(num_rows)]
    values["stars"] = [n / 8 if n % 5 else None for n in range(num_rows)]
    values["since"] = [(n % 3) * 86_400_000_000 for n in range(num_rows)]
    values["never"] = [...] * num_rows
    values["note"] = [f"note {n} ☕" for n in range(num_rows)]
    targets = {codec.feature: 1e-5 for codec in codecs}
    return view(users(range(num_rows)), codecs, values, FeatureBudget(1e-9, targets), unknown_users())


def sets() -> SealedView:
    """Sets, some in a chain, one cut, and a weighted filter beside them."""
    rng, num_rows = np.random.default_rng(3), 240
    popularity = 1 / np.arange(1, 301)
    shown = [
        rng.choice(300, size, replace=False, p=popularity / popularity.sum())
        for size in rng.integers(0, 60, num_rows)
    ]
    shown[5] = np.array([299])
    liked = [own[rng.random(len(own)) < 0.45] for own in shown]
    bought = [np.unique(np.append(own[:3], n % 7)) if n % 4 else own[:0] for n, own in enumerate(liked)]
    codecs = [
        FeatureCodec("shown", "string_set_val"),
        FeatureCodec("liked", "string_list_val"),
        FeatureCodec("bought", "string_set_val"),
        FeatureCodec("sizes", "int64_set_val"),
        FeatureCodec("topics", "int64_set_val"),
    ]
    values: dict[str, list[Any]] = {
        name: [[f"video {n}" for n in row] for row in rows]
        for name, rows in (("shown", shown), ("liked", liked), ("bought", bought))
    }
    for row in range(0, num_rows, 11):
        values["shown"][row], values["liked"][row] = None, ...
    values["sizes"] = [[size for size in range(9) if row % (size + 2) == 0] for row in range(num_rows)]
    values["topics"] = [[2**t for t in range(12) if row % (t + 1) == 0] for row in range(num_rows)]
    exactly = Goal("error_rate", 0.01, "sets")
    targets: dict[str, Any] = dict.fromkeys(("shown", "liked", "bought", "sizes"), exactly)
    targets["topics"] = Goal("noise_ratio", 1.0, "weighted_bloom")
    budget = FeatureBudget(1e-6, targets, cuts={"sizes": Cut(top=5)})
    return view(users(range(num_rows)), codecs, values, budget, unknown_users())


def clustered() -> SealedView:
    """Filters with hashes by cluster, of each style."""
    num_rows = 60
    codecs = [
        FeatureCodec("viewed", "string_set_val"),
        FeatureCodec("sizes", "int64_list_val"),
        FeatureCodec("topics", "int64_set_val"),
    ]
    kinds = [100 * (row % 3) for row in range(num_rows)]
    values: dict[str, list[Any]] = {
        "viewed": [[f"item {kind + row % n}" for n in (2, 3, 5)] for row, kind in enumerate(kinds)],
        "sizes": [[kind + size for size in range(row % 7)] for row, kind in enumerate(kinds)],
        "topics": [[kind + t for t in range(70) if row % (t + 1) == 0] for row, kind in enumerate(kinds)],
    }
    for row in range(0, num_rows, 10):
        values["viewed"][row], values["sizes"][row] = None, ...
    targets = {
        "viewed": Goal("noise_ratio", 0.2, "learned_bloom", 2),
        "sizes": Goal("noise_ratio", 0.07, "sandwiched_bloom", 3),
        "topics": Goal("noise_ratio", 0.1, "weighted_bloom", 2),
    }
    return view(users(range(num_rows)), codecs, values, FeatureBudget(1e-9, targets), unknown_users())


def lists() -> SealedView:
    """Lists with times and attributes: with many and few items in a tick, old and recent."""
    how, stars = ("seen", "opened", "liked"), (1, 2, 3, 4, 5)
    attributes = Attribute("how", "string_list_val", how), Attribute("stars", "int64_list_val", stars)
    codec = FeatureCodec("read", "string_list_val", LIST, listing=Listing(60_000_000, 40, attributes))
    rng, owners, values, times = np.random.default_rng(4), [], [], []
    for user in range(50):
        size = user % 45
        owners += [user] * size
        values += [f"article {n}" for n in (rng.random(size) ** 3 * 90).astype(int)]
        spread = [1, 40, 10_000, 10_000_000][user % 4]
        times += sorted(NOON - rng.integers(0, spread, size) * 60_000_000)
    moments = np.array(times, np.int64)
    rows = ListRows(
        users(owners),
        "read",
        np.arange(len(owners) + 1),
        pa.array(values, pa.large_string()),
        moments,
        moments,
        attributes={
            "how": pa.array(rng.choice(how, len(owners), p=[0.9, 0.08, 0.02]).tolist(), pa.large_string()),
            "stars": pa.array(rng.choice(stars, len(owners))),
        },
    )
    codecs = [codec, *(FeatureCodec.of_attribute(attribute, "read") for attribute in attributes)]
    log = as_sealed(encode_lists(rows.to_log(codecs), [codec]), {"read": codec})
    layer = sealed(log, FeatureBudget(1e-9, {"read": 0.0}), semantics="append", since=0)
    return SealedView([layer], [*keys_of(users(range(50))), *unknown_users()])


def counts() -> SealedView:
    """Counts: small and large, exact and rounded, in rows with few and with many distinct counts."""
    rng, num_rows = np.random.default_rng(6), 120
    codecs = [
        FeatureCodec("viewed", "string_list_val", COUNTS, counting=Counting(feature="views")),
        FeatureCodec("bought", "int64_list_val", COUNTS, counting=Counting(relative=0.1)),
        FeatureCodec("country", "string_val"),
    ]
    values: dict[str, list[Any]] = {"viewed": [], "bought": [], "country": []}
    amounts: dict[str, list[Any]] = {"viewed": [], "bought": []}
    for row in range(num_rows):
        for name, numbers in (
            ("viewed", rng.geometric(0.6, row % 30)),
            ("bought", rng.integers(1, 10**6, 9)),
        ):
            own = np.unique((rng.random(len(numbers)) ** 3 * 90).astype(int)).tolist()
            values[name].append([f"video {n}" for n in own] if name == "viewed" else own)
            amounts[name].append(numbers[: len(own)].tolist())
        values["country"].append("DE" if row % 5 else "FR")
    values["viewed"][7], amounts["viewed"][7] = ["video 3"], [2**53]
    values["viewed"][8], amounts["viewed"][8] = None, None
    values["bought"][9], amounts["bought"][9] = ..., None
    columns = values | {counts_column(name): own for name, own in amounts.items()}
    budget = FeatureBudget(1e-9, {"viewed": 0.0, "bought": 0.0, "country": 1e-5})
    return view(users(range(num_rows)), codecs, columns, budget, unknown_users())


def strings() -> SealedView:
    """String keys; plain strings, as in large vocabularies; front-coded ones and numbers in runs; several
    blocks, twins."""
    num_rows = 400
    codecs = [
        FeatureCodec("seen", "string_set_val"),
        FeatureCodec("articles", "string_set_val"),
        FeatureCodec("text", "string_val", EXACT),
        FeatureCodec("numbers", "int64_set_val"),
    ]
    values: dict[str, list[Any]] = {
        "seen": [[f"{(row * 11 + n) ** 3:x}" for n in range(11)] for row in range(num_rows)],
        "articles": [[f"article 0000{row % 397}"] for row in range(num_rows)],
        "text": [f"{row}".zfill(200) for row in range(num_rows)],
        "numbers": [[row % 350 * 9_973 % 40_009 - 20_000] for row in range(num_rows)],
    }
    exactly = Goal("error_rate", 0.01, "sets")
    budget = FeatureBudget(1 / 64, {"seen": exactly, "articles": exactly, "text": 0.0, "numbers": exactly})
    join_keys = {"name": pa.array([f"zoë {row}" for row in range(num_rows)], pa.large_string())}
    others = {"name": pa.array([f"nobody {row}" for row in range(200)], pa.large_string())}
    made = view(join_keys, codecs, values, budget, keys_of(others))
    _make_plain("structures.sets.features.0.vocabulary.", made.layers[0])
    return made


def _make_plain(prefix: str, layer: Layer) -> None:
    """Write strings as a seal does if there are more than 262,144, which would make a large file."""
    packed = {name: array for name, array in layer.arrays.items() if name.startswith(prefix)}
    for name in packed:
        del layer.arrays[name]
    own = {name.removeprefix(prefix): array for name, array in packed.items()}
    plain = Vocabulary.from_packed(own, pa.large_string()).to_arrays()
    layer.arrays.update({prefix + name: array for name, array in plain.items()})


def composite() -> SealedView:
    """Several join keys of all types, with names that are not in order."""
    num_rows = 6
    join_keys = {
        "z": pa.array(range(num_rows), pa.int64()),
        "ключ": pa.array(["", "a", "ä", "☕", "b", "c"], pa.large_string()),
        "a": pa.array([-(2**31), 2**31 - 1, 0, 1, 2, 3], pa.int32()),
        "B": pa.array([b"", b"\x00", b"\xff", b"x" * 200, b"1", b"2"], pa.large_binary()),
        "day": pa.array(range(num_rows), pa.timestamp("s")),
    }
    codecs = [FeatureCodec("count", "int64_val", EXACT)]
    others = {name: values.take(pa.array([1, 2])) for name, values in join_keys.items()}
    others["z"] = pa.array([7, 8], pa.int64())
    budget = FeatureBudget(1e-9, {})
    return view(join_keys, codecs, {"count": list(range(num_rows))}, budget, keys_of(others))


def deltas() -> SealedView:
    """A base and two deltas, with rows that are new, replaced, deleted and written again."""
    codecs = [FeatureCodec("viewed", "int64_set_val"), FeatureCodec("count", "int64_val", EXACT)]
    budget = FeatureBudget(1e-9, {"viewed": 0.01, "count": 0.0})

    def rows(numbers: Sequence[int], version: int) -> EncodedRows:
        values: dict[str, list[Any]] = {
            "viewed": [[n, version] for n in numbers],
            "count": [10 * n + version for n in numbers],
        }
        events = [NOON + HOUR * (n + version) for n in numbers]
        return encoded(users(numbers), codecs, values, events)

    layers = [sealed(rows(range(40), 0), budget, 3)]
    for version, (alive, deleted) in ((5, ([3, 4, 50], [7, 8])), (9, ([4, 7, 51], [3, 50, 60]))):
        own, everyone = rows(alive, version), rows([*alive, *deleted], version)
        layer = sealed(own, budget, version)
        gone = ~np.isin(everyone.keys.entity_hashes[:, 0], own.keys.entity_hashes[:, 0])
        layer.arrays |= {
            "listed.entity_hashes": everyone.keys.entity_hashes,
            "listed.deleted": gone.astype(np.uint8),
        }
        layer.order = order_arrays(everyone.keys)
        layers.append(layer)
    return SealedView(layers, [*keys_of(users([*range(40), 50, 51, 60])), *unknown_users()])


def backed() -> SealedView:
    """A feature whose values are in another store, beside one in a filter."""
    codecs = [FeatureCodec("vector", "float_list_val", BACKING), FeatureCodec("tags", "string_set_val")]
    choices: list[Any] = [..., None, [], [1.0, 2.0]]
    values: dict[str, list[Any]] = {
        "vector": [choices[n % 4] for n in range(20)],
        "tags": [["a", "b", "c"][: n % 4] for n in range(20)],
    }
    budget = FeatureBudget(1e-9, {"vector": 0.0, "tags": 0.01})
    return view(users(range(20)), codecs, values, budget, unknown_users())


def static() -> SealedView:
    """Scalars and shapes in a static function."""
    num_rows = 1_000
    codecs = [FeatureCodec("country", "string_val"), FeatureCodec("level", "int64_val")]
    values: dict[str, list[Any]] = {
        "country": [["DE", "FR", "naïve ☕"][row % 3] if row % 8 else None for row in range(num_rows)],
        "level": [row % 7 - 3 if row % 9 else ... for row in range(num_rows)],
    }
    budget = FeatureBudget(1e-2, {"country": 1e-5, "level": 1e-5}, is_static=True)
    own = view(users(range(num_rows)), codecs, values, budget, unknown_users(200))
    # A small table holds all rows, so add one beside it that a larger table might have left over.
    (left, *_) = row_hashes(hash_serialized_keys(serialize_columns(users([1_000_000]))), SALT)
    own.layers[0].arrays |= {
        "structures.static.left.hashes": np.array([left], np.uint64),
        "structures.static.left.numbers": np.array([0], np.int64),
    }
    return own


def one_row() -> SealedView:
    """A single row, so packed integers have no width."""
    codecs = [FeatureCodec("liked", "int64_set_val"), FeatureCodec("country", "string_val")]
    values: dict[str, list[Any]] = {"liked": [[5]], "country": ["DE"]}
    budget = FeatureBudget(1e-9, {"liked": Goal("error_rate", 0.01, "sets"), "country": 1e-5})
    return view(users([1]), codecs, values, budget, unknown_users())


VIEWS: Mapping[str, Callable[[], SealedView]] = {
    make.__name__: make
    for make in (
        shapes,
        columns,
        scalars,
        sets,
        clustered,
        lists,
        counts,
        strings,
        composite,
        deltas,
        backed,
        static,
        one_row,
    )
}
