"""Bits: the table against the formula, what else a snapshot holds, and the same rows elsewhere.

The formula is that of a standard Bloom filter with any real number of hashes, the sum over facts of
1.4427 * log2(1 / rate). Presence counts as one fact per entity. Three rates can be put into it:

    asked        the settings as the user wrote them
    per symbol   a setting is about a whole read, which asks for several symbols: a scalar's is divided by
                 the other values it could be mistaken for, presence's by the number of row shapes
    expected     what the finished table keeps, a little below because hashes come in whole numbers
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from feast.types import Int64
from measure import number, print_set_up, print_table, seconds
from numpy.typing import NDArray
from stores import (
    NUM_COUNTRIES,
    Backend,
    UserRows,
    redis,
    redis_client,
    redis_server,
    set_up_of,
    sketch,
    sqlite,
    temporary_folder,
)

from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder
from feast_sketch_store.storage.names import SNAPSHOTS_FOLDER
from feast_sketch_store.structures.sizing import FactClass
from feast_sketch_store.succinct.blocks import CHECKSUMS

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what tests share
from tests.helpers.filters import ideal_bits

ERROR_RATES = (0.1, 0.05, 0.01, 0.001)
SHOWN_RATE = 0.01  # of the tables about parts and other stores
PRESENCE_RATE = SCALAR_RATE = 1e-5
NEVER = 10**9  # rows


def run(*, quick: bool) -> None:
    num_users = 6_000 if quick else 60_000
    print_set_up(
        f"{set_up_of(num_users)}, presence rate {PRESENCE_RATE}; country: one of {NUM_COUNTRIES} strings, "
        f"rate {SCALAR_RATE}; one seal each, from the row log to the published snapshot",
        "numpy",
        "pyarrow",
    )
    bits: list[list[str]] = []
    parts: dict[str, Mapping[str, int]] = {}
    for with_country in (False, True):
        for num_timestamps in (1, None):
            rows = UserRows(num_users, with_country=with_country, num_timestamps=num_timestamps)
            name = "viewed + country" if with_country else "viewed"
            name += ", one timestamp" if num_timestamps else ", one timestamp per row"
            for rate, seal_seconds, snapshot, layer in _sealed(rows):
                bits.append(
                    [name, str(rate), *_bits(layer, rate), number(layer.num_facts / seal_seconds / 1e6)]
                )
                if rate == SHOWN_RATE:
                    parts[name] = _parts(snapshot, layer)
    print_table(
        [
            "features",
            "error rate",
            "facts",
            "table bits / fact",
            "table / asked",
            "table / per symbol",
            "table / expected",
            "seal, million facts/s",
        ],
        bits,
    )
    print(f"Parts of a snapshot at error rate {SHOWN_RATE}, bytes:\n")
    print_table(
        ["part", *parts],
        [[part, *(f"{sizes[part]:,}" for sizes in parts.values())] for part in next(iter(parts.values()))],
    )
    _compare_stores(UserRows(num_users, Int64))


def _sealed(rows: UserRows) -> Iterator[tuple[float, float, SnapshotFile, SketchLayer]]:
    """Seal a copy of the same row log for each error rate: the rate, the seconds, the file, its layer."""
    with temporary_folder() as folder:
        unsealed = folder / "unsealed"
        sketch(unsealed, rows, compaction={"min_rows": NEVER}).write(rows.to_feast())
        for rate in ERROR_RATES:
            copy = folder / str(rate)
            shutil.copytree(unsealed, copy)
            backend = sketch(
                copy,
                rows,
                target=f"error {rate}",
                advanced={"presence_error": PRESENCE_RATE, "scalar_error": SCALAR_RATE},
            )
            view = backend.online.view(backend.config, rows.view)  # type: ignore[attr-defined]
            seal_seconds, _ = seconds(view.seal)
            (snapshot,) = SnapshotFolder(view.storage.within(SNAPSHOTS_FOLDER)).list()
            description, arrays = snapshot.open("base")
            yield rate, seal_seconds, snapshot, SketchLayer.from_snapshot(description, arrays)


def _bits(layer: SketchLayer, rate: float) -> list[str]:
    asked, per_symbol = [], []
    for name, feature in layer.features.items():
        symbols = feature.symbols  # type: ignore[attr-defined]
        own_rate, others = (rate, 1) if name == "viewed" else (SCALAR_RATE, symbols.num_symbols - 1)
        asked.append(FactClass(symbols.num_facts, own_rate))
        per_symbol.append(FactClass(symbols.num_facts, own_rate / others))
    for symbols in layer.presence.ranges:  # type: ignore[attr-defined]
        asked.append(FactClass(symbols.num_facts, PRESENCE_RATE))
        per_symbol.append(FactClass(symbols.num_facts, PRESENCE_RATE / symbols.num_symbols))
    table = 8 * layer.table_bytes
    ideals = (ideal_bits(asked), ideal_bits(per_symbol), layer.ideal_bits)
    return [f"{layer.num_facts:,}", f"{table / layer.num_facts:.2f}", *(f"{table / i:.3f}" for i in ideals)]


def _parts(snapshot: SnapshotFile, layer: SketchLayer) -> dict[str, int]:
    content = Path(snapshot.where()).read_bytes()
    _, arrays = snapshot.open("base")
    table_bytes = layer.table_bytes
    return {
        "table": table_bytes,
        "its repeated head": arrays["structures.bloom.table.words"].nbytes - table_bytes,
        "vocabularies": _bytes_of(arrays, ".vocabulary."),
        "shapes and timestamp buckets": _bytes_of(arrays, "presence."),
        "checksums of blocks": _bytes_of(arrays, CHECKSUMS),
        "header": 8 + int.from_bytes(content[:8], "little"),
        "whole snapshot file": len(content),
        "order file, not kept in memory": snapshot.size_bytes("order"),
    }


def _bytes_of(arrays: Mapping[str, NDArray[Any]], part: str) -> int:
    return sum(array.nbytes for name, array in arrays.items() if part in name)


def _compare_stores(rows: UserRows) -> None:
    """The same rows in other stores; each is asked for the bytes that it keeps them in."""
    with temporary_folder() as folder, redis_server() as port:
        ours = sketch(folder, rows, target=f"error {SHOWN_RATE}")
        ours.write(rows.to_feast())
        stats = ours.online.view(ours.config, ours.view).stats()  # type: ignore[attr-defined]
        lite = sqlite(folder, rows)
        lite.write(rows.to_feast())
        sizes = {
            "sketch: table": stats.table_bytes,
            "sketch: snapshot file, mapped into memory": stats.snapshot_bytes,
            "sketch: all files on disk": _folder_bytes(folder / "sketch"),
            "sqlite: file": (folder / "online.db").stat().st_size,
            "redis: growth of used_memory": _redis_growth(redis(folder, rows, port), rows),
            "Python dict of sets of shared ints": _dict_bytes(rows),
        }
    print(f"The same rows elsewhere, sketch at error rate {SHOWN_RATE}:\n")
    print_table(
        ["what", "bytes", "bytes per fact", "times the snapshot"],
        [
            [name, f"{size:,}", number(size / rows.facts.size), number(size / stats.snapshot_bytes)]
            for name, size in sizes.items()
        ],
    )


def _redis_growth(backend: Backend, rows: UserRows) -> int:
    client = redis_client(backend)
    before: int = client.info("memory")["used_memory"]
    backend.write(rows.to_feast())
    after: int = client.info("memory")["used_memory"]
    return after - before


def _dict_bytes(rows: UserRows) -> int:
    held = {user: set(values) for user, values in enumerate(rows.facts.tolist())}
    distinct = np.unique(rows.facts).tolist()
    return sum(map(sys.getsizeof, (held, *held, *held.values(), *distinct)))


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
