"""Rows of distinct values: made-up ones, and those of the data sets of `click_prediction/tasks.py`.

Rows of the data sets are left out if these are not there (CLICK_PREDICTION_DATA).
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Lists = Sequence[NDArray[np.generic]]


def shapes(num_rows: int) -> Iterator[tuple[str, Lists]]:
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
    viewed, liked = (history[history.family == family] for family in ("long_view", "like"))
    yield "KuaiRand, last 6 long views", _by(viewed, "user_id", "video_id", 6)
    yield "KuaiRand, likes", _by(liked, "user_id", "video_id")
    sold = pd.read_parquet(products).query("Quantity > 0 and CustomerID == CustomerID")
    invoices = sold.drop_duplicates(["InvoiceNo", "StockCode"])
    yield "Online Retail, last 6 of an invoice", _by(invoices, "InvoiceNo", "StockCode", 6)
    yield "Online Retail, invoices", _by(invoices, "InvoiceNo", "StockCode")


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
