"""See a customer's products come back from a sketch.

    python feature_repo_example/run.py

Applies the repository beside this file, materializes it, and reads it back in another process: one customer
in full, then all of them against the exact rows.
"""

import subprocess
import sys
import sysconfig
import tempfile
from datetime import datetime
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from feast import FeatureStore
from feast.infra.online_stores.sqlite import SqliteOnlineStore
from feast.repo_config import RepoConfig
from feast.utils import _convert_arrow_to_proto
from feast.value_type import ValueType
from tqdm import tqdm

from feast_sketch_store import ViewStats, open_view

REPO = Path(__file__).resolve().parent
VIEW = "customer_purchases"
CUSTOMER = 12347
END = "2011-12-31T00:00:00"
BATCH = 500


def main() -> int:
    if sys.argv[1:] == ["read"]:
        return read_back()
    feast = Path(sysconfig.get_path("scripts")) / "feast"
    for command in (["apply"], ["materialize", "2010-01-01T00:00:00", END]):
        print(f"\n$ feast {' '.join(command)}", flush=True)
        subprocess.run([feast, *command], cwd=REPO, check=True)
    print("\nAnother process reads:", flush=True)
    return subprocess.run([sys.executable, __file__, "read"], check=False).returncode


def read_back() -> int:
    """Compare what the store returns with the exact rows: 0 if nothing that was written is lost."""
    store = FeatureStore(repo_path=str(REPO))
    exact = newest_rows()
    show_customer(store, exact)
    lost, false, candidates, wrong_countries = compare_all(store, exact)
    stats = open_view(store, VIEW).stats()
    vocabulary = stats.vocabulary_sizes["products"]
    facts = int(exact["products"].map(len).sum())
    print(
        f"\n{len(exact):,} customers bought {facts:,} times one of {vocabulary:,} products."
        f"\n  lost by the sketch (false negatives):  {lost}"
        f"\n  added by the sketch (false positives): {false:,}, that is {false / len(exact):.1f} beside the "
        f"{facts / len(exact):.1f} true products of a customer"
        f"\n  false-positive rate:                   {false / candidates:.5f} measured, "
        f"{stats.expected_false_positive_rates['products']:.5f} expected"
        f"\n  wrong countries:                       {wrong_countries}"
    )
    show_memory(store, exact, stats, facts)
    return 1 if lost else 0


def newest_rows() -> pd.DataFrame:
    """The newest row of each customer, indexed by customer."""
    rows = pd.read_parquet(REPO / "data" / "purchases.parquet").sort_values("event_timestamp")
    return rows.groupby("customer_id").last()


def show_customer(store: FeatureStore, exact: pd.DataFrame) -> None:
    read = read_features(store, [CUSTOMER])
    bought, returned = set(exact.at[CUSTOMER, "products"]), set(read["products"][0])
    print(
        f"  customer {CUSTOMER} from {read['country'][0]}"
        f"\n  bought:   {' '.join(sorted(bought)[:8])} ... {len(bought)} products"
        f"\n  returned: {' '.join(sorted(bought & returned)[:8])} ... {len(bought & returned)} of them"
        f"\n  and, by chance, {len(returned - bought)} more: {' '.join(sorted(returned - bought)[:8])} ..."
    )


def compare_all(store: FeatureStore, exact: pd.DataFrame) -> tuple[int, int, int, int]:
    """Over all customers: products lost, added, and that could have been added, and wrong countries."""
    vocabulary = {product for products in exact["products"] for product in products}
    lost = false = candidates = wrong_countries = 0
    customers = exact.index.to_list()
    for first in tqdm(range(0, len(customers), BATCH), desc="  comparing with the exact rows", unit="batch"):
        batch = customers[first : first + BATCH]
        read = read_features(store, batch)
        for customer, products, country in zip(batch, read["products"], read["country"], strict=True):
            bought, returned = set(exact.at[customer, "products"]), set(products or ())
            lost += len(bought - returned)
            false += len(returned - bought)
            candidates += len(vocabulary) - len(bought)
            wrong_countries += country != exact.at[customer, "country"]
    return lost, false, candidates, wrong_countries


def read_features(store: FeatureStore, customers: list[int]) -> dict[str, list]:
    return store.get_online_features(
        features=store.get_feature_service("recommender"),
        entity_rows=[{"customer_id": customer} for customer in customers],
    ).to_dict()


def show_memory(store: FeatureStore, exact: pd.DataFrame, stats: ViewStats, facts: int) -> None:
    rows = {
        "filter in memory": stats.table_bytes,
        "snapshot file (filter, vocabulary, header)": stats.snapshot_bytes,
        "the same rows in SQLite through Feast": sqlite_bytes(store),
        "the same rows as a Python dict of sets": dict_of_sets_bytes(exact),
    }
    print(f"\n  {'':44}{'bytes':>12}{'per fact':>10}")
    for name, size in rows.items():
        print(f"  {name:44}{size:>12,}{size / facts:>10.2f}")


def sqlite_bytes(store: FeatureStore) -> int:
    """Size of Feast's SQLite store with the same rows."""
    view = store.get_feature_view(VIEW)
    table = pq.read_table(REPO / "data" / "purchases.parquet").combine_chunks()
    rows = _convert_arrow_to_proto(table, view, {"customer_id": ValueType.INT64})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "online.db"
        config = RepoConfig(
            project=store.project,
            provider="local",
            registry="not used",
            online_store={"type": "sqlite", "path": str(path)},
            entity_key_serialization_version=3,
        )
        sqlite = SqliteOnlineStore()
        sqlite.update(config, [], [view], [], [], False)
        bar = tqdm(total=len(rows), desc="  writing to SQLite for comparison", unit="row")
        sqlite.online_write_batch(config, view, rows, bar.update)
        bar.close()
        return path.stat().st_size


def dict_of_sets_bytes(exact: pd.DataFrame) -> int:
    """Size of ``{customer: (set of products, country)}``; equal strings are held once."""
    strings: dict[str, str] = {}
    rows = {
        customer: (
            {strings.setdefault(p, p) for p in row["products"]},
            strings.setdefault(row["country"], ""),
        )
        for customer, row in exact.iterrows()
    }
    size = sys.getsizeof(rows) + sum(map(sys.getsizeof, strings))
    for customer, row in rows.items():
        size += sys.getsizeof(customer) + sys.getsizeof(row) + sys.getsizeof(row[0])
    return size


if __name__ == "__main__":
    started = datetime.now()
    status = main()
    if len(sys.argv) == 1:
        print(f"\nDone in {(datetime.now() - started).seconds} seconds.")
    sys.exit(status)
