"""Read the example's store and compare it with the exact rows: errors and memory.

    python feature_repo_example/compare.py

`run.py` starts this in another process after it has materialized the rows. Exits with 1 if anything that was
written is lost.
"""

import gc
import math
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from feast import FeatureStore
from feast.repo_config import RepoConfig
from tqdm import tqdm

import feast_sketch_store
from feast_sketch_store import ViewStats, open_view

REPO = Path(__file__).resolve().parent
PURCHASES = REPO / "data" / "online_retail_purchases.parquet"
VIEW = "customer_purchases"
CUSTOMER, NO_CUSTOMER = 12347, 1
BATCH = 500
ERROR_RATE = 0.01


def main() -> int:
    """Compare what the store returns with the exact rows. Returns the exit status."""
    store = FeatureStore(repo_path=str(REPO))
    exact = newest_rows()
    show_customer(store, exact)
    lost, false, _, wrong_countries = compare_all(store, exact)
    stats = open_view(store, VIEW).stats()
    vocabulary = stats.vocabulary_sizes["products"]
    facts = int(exact["products"].map(len).sum())
    print(
        f"\n{len(exact):,} customers, {vocabulary:,} products, {facts:,} facts (a customer and a product)"
        f"\n  kept in:                               {stats.structures['products']}"
        f"\n  lost by the sketch (false negatives):  {lost}"
        f"\n  added by the sketch (false positives): {false:,} beside the {facts / len(exact):.1f} true "
        "products of a customer"
        f"\n  wrong countries:                       {wrong_countries}"
        f"\n  rows in the sketch, rows still exact:  {stats.sealed_entities:,}, {stats.unsealed_rows:,}"
    )
    with tempfile.TemporaryDirectory() as folder:
        filters = copied_store(store, exact, folder, {"type": "sketch", "target": f"error {ERROR_RATE}"})
        open_view(filters, VIEW).refresh()
        lost_by_filter, false, candidates, _ = compare_all(filters, exact)
        filter_stats = open_view(filters, VIEW).stats()
        print(
            f"\nThe same rows with `target: error {ERROR_RATE}`, in a Bloom filter"
            f"\n  lost by the filter:                    {lost_by_filter}"
            f"\n  added by the filter:                   {false:,}, {false / len(exact):.1f} a customer"
            f"\n  false-positive rate:                   {false / candidates:.5f} measured, "
            f"{filter_stats.expected_false_positive_rates['products']:.5f} expected"
        )
        show_memory(store, exact, stats, filter_stats, facts)
    return 1 if lost + lost_by_filter else 0


def newest_rows() -> pd.DataFrame:
    """The newest row of each customer, indexed by customer."""
    rows = pd.read_parquet(PURCHASES).sort_values("event_timestamp")
    return rows.groupby("customer_id").tail(1).set_index("customer_id").sort_index()


def show_customer(store: FeatureStore, exact: pd.DataFrame) -> None:
    read = read_features(store, [CUSTOMER, NO_CUSTOMER])
    bought, returned = set(exact.at[CUSTOMER, "products"]), set(read["products"][0])
    print(
        f"  customer {CUSTOMER} from {read['country'][0]}"
        f"\n  bought:   {' '.join(sorted(bought)[:8])} ... {len(bought)} products"
        f"\n  read:     {' '.join(sorted(bought & returned)[:8])} ... {len(bought & returned)} of them"
        f"\n  and {len(returned - bought)} others"
        f"\n  customer {NO_CUSTOMER}, who does not exist: {read['products'][1]}",
        flush=True,
    )


def compare_all(store: FeatureStore, exact: pd.DataFrame) -> tuple[int, int, int, int]:
    """Count, over all customers: products lost, products added, products not bought, and wrong countries."""
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


def show_memory(
    store: FeatureStore, exact: pd.DataFrame, stats: ViewStats, filter_stats: ViewStats, facts: int
) -> None:
    rows = {
        "sketch: sets": stats.fact_bytes,
        "sketch: vocabulary, unpacked": stats.vocabulary_bytes,
        "sketch: snapshot, mapped; has both, packed": stats.snapshot_bytes,
        f"sketch: snapshot of a filter, {ERROR_RATE:.0%}": filter_stats.snapshot_bytes,
        "in addition: tables that a reader builds": decoder_bytes(exact),
        "exact: Python dict of sets": dict_of_sets_bytes(exact),
        "exact: SQLite file, written by Feast": sqlite_bytes(store, exact),
        "exact: NumPy arrays of product numbers": arrays_bytes(exact, stats),
        "exact: lower bound for sets of these sizes": information_bound_bytes(exact),
    }
    print(f"\n  {'the same rows':44}{'bytes':>12}{'per fact':>10}")
    for name, size in rows.items():
        print(f"  {name:44}{size:>12,}{size / facts:>10.2f}")


def decoder_bytes(exact: pd.DataFrame) -> int:
    """Bytes that the package keeps after reading all customers; they grow with the vocabulary."""
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    store = FeatureStore(repo_path=str(REPO))
    customers = exact.index.to_list()
    for first in tqdm(range(0, len(customers), BATCH), desc="  tracing memory", unit="batch"):
        read_features(store, customers[first : first + BATCH])
    gc.collect()
    package = tracemalloc.Filter(True, str(Path(feast_sketch_store.__file__).parent / "*"))
    traces = tracemalloc.take_snapshot().filter_traces([package]).traces
    tracemalloc.stop()
    return sum(trace.size for trace in traces) + pa.total_allocated_bytes() - arrow


def dict_of_sets_bytes(exact: pd.DataFrame) -> int:
    """Size of ``{customer: (set of products, country)}``; equal strings are held once."""
    strings: dict[str, str] = {}
    rows = {
        customer: ({strings.setdefault(p, p) for p in products}, strings.setdefault(country, country))
        for customer, products, country in zip(
            exact.index.to_list(), exact["products"], exact["country"], strict=True
        )
    }
    size = sys.getsizeof(rows) + sum(map(sys.getsizeof, strings))
    for customer, row in rows.items():
        size += sys.getsizeof(customer) + sys.getsizeof(row) + sys.getsizeof(row[0])
    return size


def sqlite_bytes(store: FeatureStore, exact: pd.DataFrame) -> int:
    """Size of the file of Feast's SQLite store with the same rows, written once each."""
    with tempfile.TemporaryDirectory() as folder:
        copied_store(store, exact, folder, {"type": "sqlite"})
        return (Path(folder) / "online").stat().st_size


def copied_store(
    store: FeatureStore, exact: pd.DataFrame, folder: str, online_store: dict[str, object]
) -> FeatureStore:
    """A store of another kind in a folder, with the same rows, each written once."""
    copy = FeatureStore(
        config=RepoConfig(
            project=store.project,
            provider="local",
            registry=str(Path(folder) / "registry.db"),
            online_store={**online_store, "path": str(Path(folder) / "online")},
            entity_key_serialization_version=3,
            repo_path=REPO,
        )
    )
    copy.apply(
        [store.get_entity("customer"), store.get_feature_view(VIEW), store.get_feature_service("recommender")]
    )
    copy.write_to_online_store(VIEW, exact.reset_index())
    return copy


def arrays_bytes(exact: pd.DataFrame, stats: ViewStats) -> int:
    """Size of a hand-made exact store: a sorted index of customers, product numbers, countries, names."""
    products = pd.Categorical(np.concatenate(exact["products"].to_list()))
    arrays = (
        exact.index.to_numpy(np.int64),
        np.cumsum(exact["products"].map(len)).to_numpy(np.uint32),
        products.codes.astype(np.min_scalar_type(len(products.categories))),
        pd.Categorical(exact["country"]).codes,
    )
    return sum(array.nbytes for array in arrays) + stats.vocabulary_bytes


def information_bound_bytes(exact: pd.DataFrame) -> int:
    """Sum of log2 C(V, n) over the customers, without index and names; codes by popularity take less."""
    size = len({product for products in exact["products"] for product in products})
    nats = sum(
        math.lgamma(size + 1) - math.lgamma(n + 1) - math.lgamma(size - n + 1)
        for n in exact["products"].map(len)
    )
    return math.ceil(nats / math.log(2) / 8)


if __name__ == "__main__":
    sys.exit(main())
