"""Sets of short rows: bits a fact of the whole snapshot by part, and times of reads of one user and of 1,000.

Short rows share the start of a group. The same rows are also kept with a start for each, and both are read
in turns. Rows of the data sets that `click_prediction/tasks.py` describes are left out if these are not
there (CLICK_PREDICTION_DATA).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parent / "click_prediction"))
sys.path.append(str(Path(__file__).resolve().parents[2]))  # for what tests share

import numpy as np
import pandas as pd
import pyarrow as pa
from measure import interleaved, print_set_up, print_table
from numpy.typing import NDArray
from snapshot_bits import PARTS, snapshot_bytes

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer
from feast_sketch_store.layers.row_reader import Column, Wanted, read, stack
from feast_sketch_store.rows.codecs import VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows, RowKeys
from feast_sketch_store.rows.entity_keys import hash_int64_keys
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.layers import build_layer

PRESENCE_ERROR_RATE = 1e-5
EVENT = 1_780_000_000_000_000  # microseconds since 1970
BATCHES = (1, 1_000)
Lists = Sequence[NDArray[np.generic]]


def run(*, quick: bool) -> None:
    rounds, calls = (3, 5) if quick else (25, 20)
    print_set_up(f"sets, wrong presence {PRESENCE_ERROR_RATE:g}; reads in {rounds} turns of {calls}", "numpy")
    sizes, times = [], []
    for name, lists in _shapes(5_000 if quick else 20_000):
        rows = _encoded(lists)
        with mock.patch("feast_sketch_store.succinct.golomb_sets._GROUPS", ()):
            alone = _layer(rows)
        grouped = _layer(rows)
        content, parts = snapshot_bytes(grouped)
        before, _ = snapshot_bytes(alone)
        sets = grouped.features["viewed"].sets
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


def _shapes(num_rows: int) -> Iterator[tuple[str, Lists]]:
    """Rows by name, each a list of distinct values."""
    yield "2 of 10,000 values, Zipf 0.8", _drawn(num_rows, 2, 10_000, 0.8)
    yield "10 of 100 values, Zipf 2", _drawn(num_rows, 10, 100, 2.0)
    yield "20 of 1,000 values, Zipf 0.8", _drawn(num_rows, 20, 1_000, 0.8)
    folder = Path(os.environ.get("CLICK_PREDICTION_DATA", ""))
    videos, products = (
        folder / "kuairand-pure/history.parquet",
        folder / "online-retail/online_retail.parquet",
    )
    if not videos.exists() or not products.exists():
        print(f"KuaiRand and Online Retail: not run, as {folder} lacks them (CLICK_PREDICTION_DATA)\n")
        return
    history = pd.read_parquet(videos).drop_duplicates(["user_id", "family", "video_id"])
    for family, name in (("long_view", "KuaiRand, last 6 long views"), ("like", "KuaiRand, likes")):
        yield (
            name,
            _by(
                history[history.family == family], "user_id", "video_id", 6 if family == "long_view" else None
            ),
        )
    sold = pd.read_parquet(products).query("Quantity > 0 and CustomerID == CustomerID")
    yield (
        "Online Retail, invoices",
        _by(sold.drop_duplicates(["InvoiceNo", "StockCode"]), "InvoiceNo", "StockCode"),
    )


def _drawn(num_rows: int, per_row: int, num_values: int, exponent: float) -> Lists:
    rng = np.random.default_rng(1)
    shares = np.arange(1, num_values + 1) ** -exponent
    values = rng.permutation(num_values)
    return [
        values[rng.choice(num_values, per_row, replace=False, p=shares / shares.sum())]
        for _ in range(num_rows)
    ]


def _by(table: pd.DataFrame, key: str, value: str, last: int | None = None) -> Lists:
    return [own.to_numpy()[-(last or len(own)) :] for _, own in table.groupby(key)[value]]


def _encoded(lists: Lists) -> EncodedRows:
    values = pa.array(np.concatenate(lists))
    is_number = pa.types.is_integer(values.type)
    vocabulary, ids = Vocabulary.by_popularity(values.cast(pa.int64() if is_number else pa.large_binary()))
    codec = FeatureCodec("viewed", "int64_set_val" if is_number else "string_set_val")
    indptr, n = np.cumsum([0, *map(len, lists)]), len(lists)
    ids = ids[np.lexsort((ids, np.repeat(np.arange(n), np.diff(indptr))))]
    feature = EncodedFeature(codec, vocabulary, np.full(n, VALUE, np.uint8), indptr, ids)
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
