"""Seals: facts per second and memory, and the same rows through SQLite's ``online_write_batch``.

A seal reads the row log, finds the newest row of each entity, folds, and writes the snapshot; where a part
of the log is outdated it also rewrites the log. It runs in a process of its own. Memory is the peak of its
resident set during the seal, less what it had before and less the size of the new snapshot.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from feast.types import Array, FeastType, Int64, String
from measure import begin_peak, memory, number, print_set_up, print_table, seconds
from stores import UserRows, set_up_of, sketch, sqlite, temporary_folder

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View

NEVER = 10**9  # rows
BATCH = 50_000  # rows of an online_write_batch
OVERWRITTEN = 0.4  # of the rows, in the second seal


def run(*, quick: bool) -> None:
    num_users = 20_000 if quick else 500_000
    rounds = 1 if quick else 3
    print_set_up(
        f"{set_up_of(num_users)}, one event timestamp per row, in sets, batches of {BATCH:,} rows; "
        f"{rounds} seals of the same log, one after {OVERWRITTEN:.0%} of the rows were written again; facts "
        "count presence",
        "numpy",
        "feast",
        "pyarrow",
    )
    lines, comparison = [], []
    for element in (Int64, String):
        with temporary_folder() as folder:
            rows = UserRows(num_users, element)
            store = sketch(folder, rows, compaction={"min_rows": NEVER})
            peer = sqlite(folder, rows)
            ours = theirs = 0.0
            for first in range(0, num_users, BATCH):
                ours += seconds(store.write, rows.to_feast(first, BATCH))[0]
                theirs += seconds(peer.write, rows.to_feast(first, BATCH))[0]
            storage = store.online.storage(store.config, store.view)  # type: ignore[attr-defined]
            path = Path(storage.location)
            seals = [_seal(path, element) for _ in range(rounds)]
            for first in range(0, int(num_users * OVERWRITTEN), BATCH):
                store.write(rows.to_feast(first, BATCH))
            for name, results in (("seal", seals), ("seal that rewrites the log", [_seal(path, element)])):
                duration = median(each["seconds"] for each in results)
                lines.append(
                    [
                        f"{name}, Array({element})",
                        f"{results[0]['facts']:,}",
                        number(duration),
                        number(results[0]["facts"] / duration / 1e6),
                        number(max(each["memory"] for each in results) / results[0]["facts"]),
                    ]
                )
            sealed = ours + median(each["seconds"] for each in seals)
            comparison.append(
                [f"Array({element})", *map(number, (ours, sealed, theirs, ours / theirs, sealed / theirs))]
            )
    print_table(["step", "facts", "s", "million facts/s", "bytes of memory per fact"], lines)
    print("The same rows through `online_write_batch`, all batches, in seconds:\n")
    print_table(
        ["rows", "sketch", "sketch and seal", "sqlite", "sketch / sqlite", "sketch and seal / sqlite"],
        comparison,
    )


def _seal(path: Path, element: FeastType) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(path), "int64" if element == Int64 else "string"],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _seal_here(path: Path, element: FeastType) -> None:
    codec = FeatureCodec.for_feature("viewed", Array(element))
    settings = ViewSettings("history", 1e-5, {"viewed": FeatureSettings(codec, 0.01, 10**6)})
    view = View(LocalStorage(path), settings)
    before = begin_peak()
    duration, _ = seconds(view.seal)
    (shard,) = view.state.shards.values()
    assert shard.sealed is not None
    assert shard.snapshot is not None
    grown = memory("VmHWM") - before - shard.snapshot.size_bytes()
    print(json.dumps({"seconds": duration, "facts": shard.sealed.num_facts, "memory": grown}))


if __name__ == "__main__":
    _seal_here(Path(sys.argv[1]), Int64 if sys.argv[2] == "int64" else String)
