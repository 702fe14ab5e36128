"""The two tasks: clicks on short videos (KuaiRand-Pure), and products of the next basket (Online Retail)."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

History = Mapping[str, sparse.csr_matrix]

WHERE_THE_DATA_IS = """\
The data sets are not shipped. Give the folder that has them with --data, or in the variable
CLICK_PREDICTION_DATA:

kuairand  KuaiRand-Pure (CC BY-SA 4.0), https://github.com/chongminggao/KuaiRand, as two files:
          history.parquet      user_id, family (shown, long_view or like), video_id:
                               the last 50 events of each user and family before 25 April 2022
          impressions.parquet  user_id, video_id, tab, tag, hourmin, duration_ms, freshness_days, author_id,
                               is_click, split (train: 25 to 30 April, test: 1 to 8 May)
retail    Online Retail (CC BY 4.0), https://archive.ics.uci.edu/dataset/352, as one file:
          online_retail.parquet  InvoiceNo, StockCode, Quantity, InvoiceDate, CustomerID

Each may also lie in a folder of its own in there, kuairand-pure and online-retail."""

RETAIL_CUT_OFF = datetime(2011, 9, 1)
NEGATIVES_PER_POSITIVE = 4
_SEED = 7


@dataclass(frozen=True)
class Task:
    """Examples to learn from and to be measured on, and the history that the store keeps.

    ``people`` are all whose history is asked for, in ascending order; rows of ``history`` and the numbers in
    ``person`` (of each example) are places in it. Who has no history is not written to the store.
    ``candidates`` is the place of each example's product in the vocabulary, where the model looks for it.
    """

    name: str
    title: str
    join_key: str
    element: str
    moment: datetime
    people: NDArray[np.int64]
    vocabularies: Mapping[str, NDArray[Any]]
    history: History
    context: sparse.csr_matrix
    person: NDArray[np.int64]
    labels: NDArray[np.bool_]
    is_train: NDArray[np.bool_]
    candidates: NDArray[np.int64] | None = None

    @property
    def num_facts(self) -> int:
        """All facts that are written: a person and a value of a feature."""
        return sum(matrix.nnz for matrix in self.history.values())

    @property
    def written(self) -> NDArray[np.int64]:
        """The rows of those who have a history."""
        return np.flatnonzero(sum(np.diff(matrix.indptr) for matrix in self.history.values()))


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """``--data``, the folder of the data sets."""
    default = os.environ.get("CLICK_PREDICTION_DATA", Path(__file__).parent / "data")
    parser.add_argument(
        "--data", type=Path, default=default, metavar="FOLDER", help="where the data sets are"
    )


def load_or_exit(name: str, folder: Path, parser: argparse.ArgumentParser) -> Task:
    """`load`, or the end of the program with a line on where the data is to be had."""
    try:
        return load(name, folder)
    except FileNotFoundError as error:
        parser.exit(2, f"{error}\n")


def load(name: str, folder: Path) -> Task:
    """One task, from its data set.

    Raises
    ------
    FileNotFoundError : the folder lacks a file of the data set.
    """
    return {"kuairand": _kuairand, "retail": _retail}[name](folder)


def _kuairand(folder: Path) -> Task:
    events = pd.read_parquet(_find(folder, "history.parquet"), columns=["user_id", "family", "video_id"])
    events = events.drop_duplicates()
    impressions = pd.read_parquet(_find(folder, "impressions.parquet"))
    people = np.union1d(events["user_id"], impressions["user_id"]).astype(np.int64)
    vocabularies, history = {}, {}
    for family in ("shown", "long_view", "like"):
        of_family = events[events["family"] == family]
        vocabularies[family] = np.unique(of_family["video_id"]).astype(np.int64)
        history[family] = _multi_hot(
            people, vocabularies[family], of_family["user_id"], of_family["video_id"]
        )
    context = [
        impressions["video_id"],
        impressions["tab"],
        impressions["tag"].astype(str),
        impressions["hourmin"] // 100,
        pd.qcut(impressions["duration_ms"], 20, duplicates="drop").cat.codes,
        impressions["freshness_days"].clip(0, 60),
        impressions["author_id"],
    ]
    return Task(
        name="kuairand",
        title="KuaiRand-Pure, is a shown video clicked? Videos shown, viewed for long and liked before "
        "25 April 2022, a Set(Int64) each; trained on impressions of 25 to 30 April, AUC of those of 1 to 8 "
        "May. Logistic regression on video, author, tab, tag, hour, duration, age and the multi-hot sets",
        join_key="user_id",
        element="Int64",
        moment=datetime(2022, 4, 24, tzinfo=UTC),
        people=people,
        vocabularies=vocabularies,
        history=history,
        context=sparse.hstack([_one_hot(column) for column in context], "csr"),
        person=np.searchsorted(people, impressions["user_id"]),
        labels=impressions["is_click"].to_numpy() == 1,
        is_train=(impressions["split"] == "train").to_numpy(),
    )


def _retail(folder: Path) -> Task:
    """Candidates are what a shop would show: products drawn by their popularity before the cut-off."""
    columns = ["InvoiceNo", "StockCode", "Quantity", "InvoiceDate", "CustomerID"]
    invoices = pd.read_parquet(_find(folder, "online_retail.parquet"), columns=columns)
    is_purchase = (invoices["Quantity"] > 0) & invoices["CustomerID"].notna()
    is_purchase &= ~invoices["InvoiceNo"].astype(str).str.startswith("C")  # cancellations
    purchases = invoices[is_purchase].sort_values(["InvoiceDate", "InvoiceNo", "StockCode"])
    purchases = purchases.astype({"CustomerID": np.int64, "StockCode": str})
    is_before = purchases["InvoiceDate"] < RETAIL_CUT_OFF
    before = purchases[is_before][["CustomerID", "StockCode"]].drop_duplicates()
    people = np.unique(before["CustomerID"])
    products = np.unique(before["StockCode"].to_numpy().astype(object))
    bought = _multi_hot(people, products, before["CustomerID"], before["StockCode"])

    after = purchases[~is_before & purchases["CustomerID"].isin(people)]
    next_invoice = after.groupby("CustomerID")["InvoiceNo"].first()
    basket = after[after["InvoiceNo"] == after["CustomerID"].map(next_invoice)]
    basket = basket[basket["StockCode"].isin(products)].drop_duplicates(["CustomerID", "StockCode"])
    buyers = np.searchsorted(people, basket["CustomerID"])
    taken = np.searchsorted(products, basket["StockCode"])

    random = np.random.default_rng(_SEED)
    popularity = np.bincount(bought.indices, minlength=len(products))
    others = np.repeat(buyers, NEGATIVES_PER_POSITIVE)
    shown = random.choice(len(products), len(others), p=popularity / popularity.sum())
    is_in_basket = np.zeros((len(people), len(products)), np.bool_)
    is_in_basket[buyers, taken] = True
    is_negative = ~is_in_basket[others, shown]
    person = np.concatenate([buyers, others[is_negative]])
    candidates = np.concatenate([taken, shown[is_negative]])
    is_train_person = random.random(len(people)) < 0.5
    return Task(
        name="retail",
        title="Online Retail, is a product in the next basket? Products bought before 1 September 2011, a "
        "Set(String); a customer's first basket after it against four times as many products drawn by "
        "popularity; trained on half of the customers, AUC of the others. Logistic regression on product, "
        "multi-hot history, whether the product is in it, and its mean cosine similarity to it",
        join_key="customer_id",
        element="String",
        moment=datetime(2011, 8, 31, tzinfo=UTC),
        people=people,
        vocabularies={"products": products},
        history={"products": bought},
        context=_one_hot(candidates, len(products)),
        person=person,
        labels=np.arange(len(person)) < len(buyers),
        is_train=is_train_person[person],
        candidates=candidates,
    )


def _find(folder: Path, file: str) -> Path:
    for path in (folder / file, folder / "kuairand-pure" / file, folder / "online-retail" / file):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{file} is not in {folder}.\n\n{WHERE_THE_DATA_IS}")


def _one_hot(values: Any, num_columns: int | None = None) -> sparse.csr_matrix:
    codes = values if num_columns else pd.Categorical(values).codes
    ones, rows = np.ones(len(codes)), np.arange(len(codes))
    return sparse.csr_matrix((ones, (rows, codes)), (len(codes), num_columns or codes.max() + 1))


def _multi_hot(people: Any, vocabulary: Any, who: Any, what: Any) -> sparse.csr_matrix:
    """A row per person and a column per value; the pairs are distinct."""
    rows, columns = np.searchsorted(people, who), np.searchsorted(vocabulary, what)
    ones = np.ones(len(rows), np.float32)
    return sparse.csr_matrix((ones, (rows, columns)), (len(people), len(vocabulary)))
