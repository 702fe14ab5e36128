"""Bits per fact of a whole snapshot by part, lossless, as sets keep the histories of the two data sets:

    python tests/benchmarks/click_prediction/snapshot_bits.py [kuairand retail] [--data FOLDER]

Parts: the codes of the sets and where rows begin; the index of entities; vocabularies, and all else that
sets are decoded with; the rest: header, timestamps and checksums. Everything is read back and compared.
The time is that of `SketchLayer.read` of a thousand people, all features, per fact on one core.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # for what tests share

import numpy as np
from measure import print_set_up, print_table
from scale import _rows
from tasks import Task, add_data_argument, load_or_exit

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedRows, encode, newest_rows
from feast_sketch_store.snapshot import format as snapshot_format
from feast_sketch_store.snapshot.sealed import with_checksums
from tests.helpers.layers import build_layer

PARTS = ("codes", "offsets", "index", "vocabulary", "rest")
PRESENCE_ERROR_RATE = 1e-5
BATCH = 1_000
_CALLS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description="Bits per fact of a whole snapshot, by part.")
    add_data_argument(parser)
    parser.add_argument("names", nargs="*", default=["kuairand", "retail"], help="data sets")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for name in arguments.names:
        task = load_or_exit(name, arguments.data, parser)
        rows = encoded(task)
        targets = dict.fromkeys(task.history, Goal("error_rate", 0.01, "sets"))
        layer = build_layer(rows, FeatureBudget(PRESENCE_ERROR_RATE, targets))
        lost = list(layer.missing(rows))
        assert not lost, lost
        content, sizes = snapshot_bytes(layer)
        per_fact = [f"{8 * sizes[part] / task.num_facts:.3f}" for part in PARTS]
        whole = f"{8 * content / task.num_facts:.3f}"
        lines.append([name, f"{task.num_facts:,}", *per_fact, whole, f"{read_time(layer, rows) * 1e9:.1f}"])
    print_set_up(f"sets, wrong presence {PRESENCE_ERROR_RATE:g}", "numpy")
    print_table(["data set", "facts", *PARTS, "whole snapshot", "read, ns per fact"], lines)


def encoded(task: Task) -> EncodedRows:
    """The rows that are written of a task."""
    table, _ = _rows(task, 0, task.written)
    kind = "int64_set_val" if task.element == "Int64" else "string_set_val"
    return encode(*newest_rows(table), [FeatureCodec(name, kind) for name in task.history])


def snapshot_bytes(layer: SketchLayer) -> tuple[int, Counter[str]]:
    """The bytes of the file of a layer, and of each part of it."""
    description, arrays = layer.to_snapshot()
    arrays = with_checksums(arrays)
    content = sum(map(len, snapshot_format.encode(description, arrays)))
    sizes = Counter(dict.fromkeys(PARTS, 0))
    for name, array in arrays.items():
        sizes[part_of(name)] += array.nbytes
    sizes["rest"] += content - sum(array.nbytes for array in arrays.values())
    return content, sizes


def part_of(array: str) -> str:
    """The part that an array belongs to."""
    if array.endswith(".checksums"):
        return "rest"
    if array.startswith("structures.sets."):
        if ".codes." in array:
            return "codes"
        return "offsets" if ".starts." in array else "vocabulary"
    return "index" if array.startswith("presence.index") else "rest"


def read_time(layer: SketchLayer, rows: EncodedRows) -> float:
    """Seconds per fact of a read of all features, the best of some hundred batches."""
    random, names, hashes = np.random.default_rng(1), list(rows.features), rows.keys.entity_hashes
    best = np.inf
    for _ in range(_CALLS):
        batch = hashes[random.choice(len(hashes), BATCH, replace=False)]
        started = time.process_time()
        answer = layer.read(batch, names)
        facts = sum(len(feature.symbols) for feature in answer.features.values())
        best = min(best, (time.process_time() - started) / facts)
    return best


if __name__ == "__main__":
    main()
