"""Rank what a customer may buy next: histories from the sketch into a torch model.

    pip install torch scikit-learn
    python feature_repo_example/rank.py

Writes the purchases before a day to a store in a temporary folder. What a customer bought for the first time
after it is to be distinguished from what others bought. Half of the customers train two models, the other
half tests them:

    embeddings             the mean embedding of the products of a history, times that of a candidate
    logistic regression    which product the candidate is, and how often it was bought with those of a history

Arrays of the reader become tensors without a copy. Prints the area under the ROC curve of both, and without
histories.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from feast import FeatureStore
from feast.repo_config import RepoConfig
from features import customer, customer_purchases, recommender
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

from feast_sketch_store import SketchReader
from feast_sketch_store.reading.ragged import Jagged

REPO = Path(__file__).resolve().parent
PURCHASES = REPO / "data" / "online_retail_purchases.parquet"
FIRST, DAY = datetime(2010, 1, 1, tzinfo=UTC), datetime(2011, 9, 1, tzinfo=UTC)
DIMENSIONS, PASSES, BATCH = 32, 8, 4096


class Examples(NamedTuple):
    """Products that may follow a history.

    Parameters
    ----------
    histories : int64[n], which history each belongs to.
    products : int64[n], ids.
    bought : float32[n], 1 if the customer bought the product later, else 0.
    """

    histories: NDArray[np.int64]
    products: NDArray[np.int64]
    bought: NDArray[np.float32]


class Ranker(nn.Module):
    """Scores of products for histories of products."""

    def __init__(self, num_products: int):
        super().__init__()
        self.history = nn.EmbeddingBag(num_products, DIMENSIONS, mode="mean", include_last_offset=True)
        self.product = nn.Embedding(num_products, DIMENSIONS)
        self.popularity = nn.Embedding(num_products, 1)
        nn.init.normal_(self.history.weight, std=0.1)
        nn.init.normal_(self.product.weight, std=0.1)
        nn.init.zeros_(self.popularity.weight)

    def forward(self, values: torch.Tensor, offsets: torch.Tensor, examples: Examples) -> torch.Tensor:
        """Logits of the examples: float32[n]."""
        products = torch.from_numpy(examples.products)
        histories = self.history(values, offsets)[torch.from_numpy(examples.histories)]
        return (histories * self.product(products)).sum(1) + self.popularity(products)[:, 0]


def main() -> None:
    """Print the areas under the curves."""
    rows = pd.read_parquet(PURCHASES).sort_values("event_timestamp")
    newest = rows.groupby("customer_id").tail(1).set_index("customer_id")["products"]
    with tempfile.TemporaryDirectory() as folder:
        materialize(Path(folder))
        reader = SketchReader(Path(folder, "sketch"), customer_purchases.name)
        customers = rows.loc[rows["event_timestamp"] < DAY, "customer_id"].unique()
        histories = reader.jagged("products", customers)
        rng = np.random.default_rng(0)
        rng.shuffle(customers)
        parts = np.array_split(customers, 2)
        train, test = (
            (found, examples(found, newest.loc[part], rng))
            for part in parts
            for found in [reader.jagged("products", part)]
        )
    print(
        f"{len(customers):,} customers, {len(histories.values):,} purchases of {len(histories.vocabulary):,} "
        f"products before {DAY:%Y-%m-%d}; {len(train[1].bought):,} examples to train, "
        f"{len(test[1].bought):,} to test"
    )
    for name, scores in (
        ("without a history", regression(histories, train, test, knows_history=False)),
        ("logistic regression", regression(histories, train, test)),
        ("embeddings", embeddings(histories, train, test)),
    ):
        print(f"{name:22}{roc_auc_score(test[1].bought, scores):.4f}")


def materialize(folder: Path) -> None:
    """Write the purchases before the day."""
    store = FeatureStore(
        config=RepoConfig(
            project="ranking",
            provider="local",
            registry=str(folder / "registry.db"),
            online_store={"type": "sketch", "path": str(folder / "sketch")},
            entity_key_serialization_version=3,
            repo_path=REPO,
        )
    )
    store.apply([customer, customer_purchases, recommender])
    store.materialize(FIRST, DAY)


def examples(histories: Jagged, later: pd.Series, rng: np.random.Generator) -> Examples:
    """First purchases of products after the day, and for each of them one of another customer."""
    ids = {product: number for number, product in enumerate(histories.vocabulary.to_pylist())}
    later_ids = [{ids[product] for product in products if product in ids} for products in later]
    known = [set(ids.tolist()) for ids in np.split(histories.values, histories.offsets[1:-1])]
    bought = np.array(
        [(row, p) for row, (new, old) in enumerate(zip(later_ids, known, strict=True)) for p in new - old]
    )
    others = rng.permutation(bought[:, 1])  # a popular product is as often among these
    is_other = [p not in later_ids[row] for row, p in zip(bought[:, 0], others, strict=True)]
    ignored = np.stack([bought[:, 0], others], axis=1)[is_other]
    rows, products = np.concatenate([bought, ignored]).astype(np.int64).T
    return Examples(rows, products, np.repeat(np.float32([1, 0]), [len(bought), len(ignored)]))


def embeddings(histories: Jagged, train: tuple[Jagged, Examples], test: tuple[Jagged, Examples]) -> NDArray:
    """Scores of the test's examples by a model of embeddings."""
    torch.manual_seed(0)
    model = Ranker(len(histories.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    given, wanted = train
    values, offsets = torch.from_dlpack(given.values), torch.from_dlpack(given.offsets)  # no copy
    for _ in range(PASSES):
        for places in torch.randperm(len(wanted.bought)).split(BATCH):
            batch = Examples(*(array[places.numpy()] for array in wanted))
            logits = model(values, offsets, batch)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.bought))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        asked = torch.from_dlpack(test[0].values), torch.from_dlpack(test[0].offsets)
        return model(*asked, test[1]).numpy()


def regression(
    histories: Jagged,
    train: tuple[Jagged, Examples],
    test: tuple[Jagged, Examples],
    knows_history: bool = True,
) -> NDArray:
    """Scores of the test's examples by a logistic regression, with or without a feature of the history."""
    bought = _matrix(histories)
    weights = bought / np.sqrt(np.asarray(bought.sum(axis=0)).clip(1))
    similar = (weights.T @ weights).tocsr()

    def features(part: tuple[Jagged, Examples]) -> csr_matrix:
        found, wanted = part
        number = len(wanted.products)
        shape = number, len(histories.vocabulary)
        candidate = csr_matrix((np.ones(number), (np.arange(number), wanted.products)), shape=shape)
        near = (_matrix(found) @ similar)[wanted.histories, wanted.products]
        return hstack([candidate, csr_matrix(np.log(np.asarray(near).reshape(-1, 1) + 0.01) * knows_history)])

    model = LogisticRegression(max_iter=1000).fit(features(train), train[1].bought)
    return model.decision_function(features(test))


def _matrix(histories: Jagged) -> csr_matrix:
    shape = len(histories.offsets) - 1, len(histories.vocabulary)
    ones = np.ones(len(histories.values), np.float32)
    return csr_matrix((ones, histories.values, histories.offsets), shape=shape)


if __name__ == "__main__":
    main()
