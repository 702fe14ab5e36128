"""Attributes of the items of lists: bits an item beside their entropy, and reads with and without them.

Rows of the data sets that `click_prediction/tasks.py` describes are left out if these are not there
(CLICK_PREDICTION_DATA).
"""

import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from feast import FeatureStore, Field
from feast.types import Array, Int64, String
from lists import NEWEST
from measure import interleaved, number, print_set_up, print_table
from numpy.typing import NDArray
from stores import temporary_folder

from feast_sketch_store import Lists, SketchReader, open_view

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what tests share
from tests.helpers.repository import make_repository, make_view

USERS_A_READ = 1_000


class Events(NamedTuple):
    """Items in the order of their times, with one attribute each."""

    users: NDArray[np.int64]
    values: NDArray[np.int64]
    times: pd.Series
    attribute: NDArray[np.object_]


def run(quick: bool = False) -> None:
    """Print what an attribute takes, and what reading it takes."""
    print_set_up("lists with a tick of an hour and one attribute; reads in turns", "numpy", "feast")
    sizes, times = [], []
    for name, events in _all_events(200 if quick else 5_000):
        with temporary_folder() as folder:
            store = _filled(folder, events)
            reader = SketchReader(str(store.repo_path), "history")
            assert reader.sealed is not None
            feature = reader.sealed.layers[0].features["item"]
            codes, num_items = feature.attributes, feature.num_facts  # type: ignore[attr-defined]
            shares = pd.Series(events.attribute).value_counts(normalize=True)
            entropy = -float((shares * np.log2(shares)).sum())
            bits = [
                8 * feature.lists.size_bytes,  # type: ignore[attr-defined]
                codes.num_bits,
                8 * codes.size_bytes - codes.num_bits,
            ]
            shape = [name, f"{num_items:,}", f"{num_items / len(feature):.1f}", len(shares)]
            sizes.append([*shape, *(number(each) for each in (*(b / num_items for b in bits), entropy))])
            times.append([name, *_read_times(reader, events.users, 2 if quick else 15)])
    header = ["items", "number", "of a list", "values", "bits an item without", "of the attribute"]
    print_table([*header, "of its index and code", "entropy"], sizes)
    print_table(["newest 50 of 1,000 users", "without, ms", "with the attribute, ms", "ratio"], times)


def _all_events(num_users: int) -> Iterator[tuple[str, Events]]:
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(num_users), 200)
    now = pd.Timestamp.now("UTC").floor("s")
    ages = pd.Series(pd.to_timedelta(rng.integers(0, 80 * 86_400, len(users)), unit="s"))
    for name, shares in (
        ("drawn, 94 % one of 4", [0.94, 0.04, 0.015, 0.005]),
        ("drawn, 4 evenly", [0.25] * 4),
    ):
        drawn = rng.choice(np.array(["seen", "open", "like", "buy"], object), len(users), p=shares)
        yield name, Events(users, (20_000 * rng.random(len(users)) ** 3).astype(np.int64), now - ages, drawn)
    folder = Path(os.environ.get("CLICK_PREDICTION_DATA", ""))
    shown_path = folder / "kuairand-pure/impressions.parquet"
    sold_path = folder / "online-retail/online_retail.parquet"
    if not shown_path.exists() or not sold_path.exists():
        print(f"KuaiRand and Online Retail: not run, as {folder} lacks them (CLICK_PREDICTION_DATA)\n")
        return
    shown = pd.read_parquet(shown_path)
    moments = pd.Series(pd.to_datetime(shown["time_ms"], unit="ms", utc=True))
    moments += now - moments.max()
    keys = shown["user_id"].to_numpy(np.int64), shown["video_id"].to_numpy(np.int64)
    done = np.select(
        [shown["is_like"] == 1, shown["long_view"] == 1, shown["is_click"] == 1],
        ["like", "long", "click"],
        "seen",
    )
    yield "KuaiRand, what was done", Events(*keys, moments, done.astype(object))
    yield "KuaiRand, tab", Events(*keys, moments, shown["tab"].astype(str).to_numpy(object))
    sold = pd.read_parquet(sold_path).query("Quantity > 0 and CustomerID == CustomerID")
    moments = pd.Series(sold["InvoiceDate"].dt.tz_localize("UTC"))
    moments += now - moments.max()
    amounts = np.array(["1", "2-5", "6-11", "12-23", "more"], object)
    bucket = amounts[np.searchsorted([1, 5, 11, 23], sold["Quantity"].to_numpy())]
    keys = sold["CustomerID"].to_numpy(np.int64), pd.factorize(sold["StockCode"])[0].astype(np.int64)
    yield "Online Retail, quantity", Events(*keys, moments, bucket)


def _filled(folder: Path, events: Events) -> FeatureStore:
    """A sealed view of the events."""
    row = {"user_id": [0], "item": [[0]], "kind": [["-"]], "event": [pd.Timestamp.now("UTC")]}
    known = str([f"{value}" for value in pd.unique(events.attribute)])
    tags = {"sketch.codec": "list", "sketch.list": "{resolution: 1h, limit: 1000}"}
    item = Field(name="item", dtype=Array(Int64), tags=tags)
    kind = Field(name="kind", dtype=Array(String), tags={"sketch.of": "item", "sketch.vocabulary": known})
    view = make_view([item, kind], ttl=timedelta(days=3650))
    store = make_repository(folder, view, rows=pd.DataFrame(row), compaction="job")
    lists = Lists(store, "history", "item")
    for first in range(0, len(events.users), 100_000):
        users, values, times, kinds = (part[first : first + 100_000] for part in events)
        lists.add(users, values, times, {"kind": kinds})
    open_view(store, "history").seal()
    return store


def _read_times(reader: SketchReader, users: NDArray[np.int64], rounds: int) -> list[str]:
    known, rng = np.unique(users), np.random.default_rng(5)
    drawn = [rng.choice(known, USERS_A_READ) for _ in range(rounds * 3)]
    sides: dict[str, Callable[[NDArray[np.int64]], object]] = {
        "without": lambda some: reader.lists("item", some, limit=NEWEST),
        "with": lambda some: reader.lists("item", some, limit=NEWEST, attributes=["kind"]),
    }
    took = interleaved(sides, drawn.__getitem__, rounds=rounds, calls=3)
    ratio = took["with"] / took["without"]
    return [number(took["without"] * 1e3), number(took["with"] * 1e3), number(ratio)]
