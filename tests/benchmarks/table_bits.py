"""Bits of the table against the formula, the snapshot's other parts, and what other stores take.

The formula is the sum over facts of 1.4427 * log2(1 / rate), at the rates that were asked for; presence
counts as one fact per entity at its own rate, which is the asked rate divided by the number of shapes.
"""

import math
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from feast.types import Int64
from measure import short, table
from stores import VALUES_PER_USER, every_store, history_rows, history_view, temporary_folder, to_feast

from feast_sketch_store.codecs import FeatureCodec
from feast_sketch_store.layers import FeatureBudget, SketchLayer
from feast_sketch_store.rows import CREATED_TIMESTAMP, ENTITY_KEY, EVENT_TIMESTAMP, NULLS, encode, newest_rows
from feast_sketch_store.snapshot import encode as encode_snapshot

ITEMS = FeatureCodec("items", "int64_list_val")
COUNTRY = FeatureCodec("country", "string_val")
PRESENCE_RATE = SCALAR_RATE = 1e-5


def rows_of(users: int) -> pa.Table:
    """Users with Zipf-distributed items of a vocabulary of 10,000, and one of 40 countries."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 10_001) ** 0.8
    items = rng.choice(10_000, (users, VALUES_PER_USER), p=weights / weights.sum())
    return pa.table(
        {
            "items": pa.ListArray.from_arrays(
                np.arange(users + 1, dtype=np.int32) * VALUES_PER_USER, pa.array(items.ravel())
            ),
            "country": [f"c{user % 40}" for user in range(users)],
            ENTITY_KEY: [user.to_bytes(8, "little") for user in range(users)],
            EVENT_TIMESTAMP: pa.array(np.zeros(users, np.int64)).cast(pa.timestamp("us", tz="UTC")),
            CREATED_TIMESTAMP: pa.nulls(users, pa.timestamp("us", tz="UTC")),
            NULLS: pa.nulls(users, pa.list_(pa.string())),
        }
    )


def run(quick: bool) -> None:
    users = 10_000 if quick else 80_000
    rows = rows_of(users)
    lines = []
    for names in (["items"], ["items", "country"]):
        codecs = [c for c in (ITEMS, COUNTRY) if c.feature in names]
        for rate in (0.1, 0.05, 0.01, 0.001):
            start = time.perf_counter()
            encoded = encode(*newest_rows(rows), codecs)
            layer = SketchLayer.build(
                encoded, FeatureBudget(PRESENCE_RATE, {"items": rate, "country": SCALAR_RATE})
            )
            description, arrays = layer.to_snapshot()
            pieces = encode_snapshot(description, arrays)
            seconds = time.perf_counter() - start
            asked = {"items": rate, "country": SCALAR_RATE / 39}
            wanted = sum(layer.ranges[n].num_facts * math.log2(1 / asked[n]) for n in names)
            wanted = (
                wanted + users * math.log2(layer.shape_ranges[0].num_symbols / PRESENCE_RATE)
            ) / math.log(2)
            vocabulary = sum(v.size_bytes for v in layer.vocabularies.values())
            total = sum(piece.nbytes for piece in pieces)
            lines.append(
                (
                    " + ".join(names),
                    rate,
                    f"{layer.num_facts:,}",
                    f"{layer.bloom.num_bits / layer.ranges['items'].num_facts:.2f}",
                    f"{layer.bloom.num_bits / wanted:.4f}",
                    f"{layer.bloom.num_bits // 8:,}",
                    f"{vocabulary:,}",
                    f"{total - layer.bloom.num_bits // 8 - vocabulary:,}",
                    short(layer.num_facts / seconds / 1e6),
                )
            )
    print(
        f"{users:,} users with {VALUES_PER_USER} draws of 10,000 items, Zipf 0.8, "
        f"presence rate {PRESENCE_RATE}\n"
    )
    table(
        [
            "features",
            "error rate",
            "facts",
            "table bits per item",
            "table bits / formula",
            "table bytes",
            "vocabulary bytes",
            "header, checksums, padding, shapes",
            "sealed, million facts/s",
        ],
        lines,
    )
    beside_other_stores(2_000 if quick else 20_000)


def beside_other_stores(users: int) -> None:
    view = history_view(Int64)
    rows = to_feast(history_rows(users, Int64), view)
    facts = users * VALUES_PER_USER
    with temporary_folder() as folder, every_store(folder) as stores:
        sizes = {"Python dict of sets": _dict_of_sets(rows)}
        for store in stores:
            before = _redis_bytes(store) if store.name == "redis" else 0
            store.write(view, rows)
            if store.name == "sketch":
                stats = store.store.view(store.config, view).stats()
                sizes["sketch, filter"] = stats.table_bytes
                sizes["sketch, whole snapshot"] = stats.snapshot_bytes
                sizes["sketch, row log on disk"] = _folder_bytes(folder / "sketch", "rows")
                sizes["sketch, order index on disk"] = (
                    _folder_bytes(folder / "sketch", "snapshots") - stats.snapshot_bytes
                )
            elif store.name == "redis":
                sizes["Redis through Feast"] = _redis_bytes(store) - before
            else:
                sizes["SQLite through Feast"] = (folder / "online.db").stat().st_size
    print(f"\n{users:,} users with {VALUES_PER_USER} of 10,000 items each, error rate 0.01:\n")
    table(["what", "bytes", "bytes per fact"], [(n, f"{s:,}", short(s / facts)) for n, s in sizes.items()])


def _dict_of_sets(rows: list) -> int:
    held = {row[0].entity_values[0].int64_val: set(row[1]["items"].int64_list_val.val) for row in rows}
    numbers = {number for items in held.values() for number in items}
    objects = [*held.values(), *numbers, *held]
    return sys.getsizeof(held) + sum(map(sys.getsizeof, objects))


def _redis_bytes(store) -> int:
    client = store.store._get_client(store.config.online_store)
    return client.info("memory")["used_memory"]


def _folder_bytes(folder: Path, name: str) -> int:
    return sum(f.stat().st_size for f in folder.rglob(f"{name}/**/*") if f.is_file())
