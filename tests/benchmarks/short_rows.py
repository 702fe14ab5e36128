"""Sets of short rows: bits a fact of the whole snapshot by part, and times of reads of one user and of 1,000.

Short rows share the start of a group. The same rows are also kept with a start for each, and both are read
in turns.
"""

import sys
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parent / "click_prediction"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for what tests share

import numpy as np
import pyarrow as pa
from measure import interleaved, print_set_up, print_table
from numpy.typing import NDArray
from row_shapes import Lists, shapes
from snapshot_bits import PARTS, snapshot_bytes

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer
from feast_sketch_store.layers.row_reader import Column, Wanted, read, stack
from feast_sketch_store.rows.codecs import VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows, RowKeys
from feast_sketch_store.rows.entity_keys import hash_int64_keys
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.layers import build_layer

PRESENCE_ERROR_RATE = 1e-5
EVENT = 1_780_000_000_000_000  # microseconds since 1970
BATCHES = (1, 1_000)


def run(*, quick: bool) -> None:
    rounds, calls = (3, 5) if quick else (25, 20)
    print_set_up(f"sets, wrong presence {PRESENCE_ERROR_RATE:g}; reads in {rounds} turns of {calls}", "numpy")
    sizes, times = [], []
    for name, lists in shapes(5_000 if quick else 20_000):
        rows = _encoded(lists)
        with mock.patch("feast_sketch_store.succinct.golomb_sets._GROUPS", ()):
            alone = _layer(rows)
        grouped = _layer(rows)
        content, parts = snapshot_bytes(grouped)
        before, _ = snapshot_bytes(alone)
        sets = grouped.features["viewed"].sets  # type: ignore[attr-defined]
        per_fact = [
            f"{8 * size / rows.num_facts:.2f}" for size in (*(parts[part] for part in PARTS), content)
        ]
        shape = [name, f"{rows.num_facts / len(rows):.1f}", sets.group_rows]
        sizes.append([*shape, *per_fact, f"{8 * before / rows.num_facts:.2f}"])
        for batch in BATCHES:
            took = _times({"alone": alone, "grouped": grouped}, rows, batch, rounds, calls)
            ratio = took["grouped"] / took["alone"]
            times.append([*shape, batch, *(f"{t / batch * 1e6:.2f}" for t in took.values()), f"{ratio:.2f}"])
    header = ["rows", "facts a row", "rows a group"]
    print_table([*header, *PARTS, "bits a fact", "with a start for each row"], sizes)
    print_table([*header, "users", "a start for each row, us a user", "groups, us a user", "ratio"], times)


def _encoded(lists: Lists) -> EncodedRows:
    values = pa.array(np.concatenate(lists))
    is_number = pa.types.is_integer(values.type)
    vocabulary, ids = Vocabulary.by_popularity(values.cast(pa.int64() if is_number else pa.large_binary()))
    codec = FeatureCodec("viewed", "int64_set_val" if is_number else "string_set_val")
    indptr, n = np.cumsum([0, *map(len, lists)]), len(lists)
    ids = ids[np.lexsort((ids, np.repeat(np.arange(n), np.diff(indptr))))]
    feature = EncodedFeature(codec, vocabulary, np.full(n, VALUE, np.uint8), Csr(indptr, ids))
    times, flags = np.full(n, EVENT), np.zeros(n, np.bool_)
    hashes = hash_int64_keys("user_id", np.arange(n))
    return EncodedRows(RowKeys(hashes, times, times, flags, flags), {"viewed": feature})


def _layer(rows: EncodedRows) -> SketchLayer:
    layer = build_layer(
        rows, FeatureBudget(PRESENCE_ERROR_RATE, {"viewed": Goal("error_rate", 0.01, "sets")}), (1, 2)
    )
    assert not list(layer.missing(rows))
    return layer


def _times(
    layers: dict[str, SketchLayer], rows: EncodedRows, batch: int, rounds: int, calls: int
) -> dict[str, float]:
    """Seconds of a read of the values of some users."""
    hashes, ask = rows.keys.entity_hashes, {}
    for name, layer in layers.items():
        column = Column("viewed", layer.codecs["viewed"], layer.numbering("viewed"))
        ask[name] = partial(read, stack([layer], Wanted(("viewed",))), [column], expire_before=NO_TIMESTAMP)

    def users(call: int) -> NDArray[np.uint64]:
        return hashes[np.random.default_rng(call).choice(len(hashes), batch, replace=False)]

    return interleaved(ask, users, rounds=rounds, calls=calls * (1 if batch > 1 else 50))
