"""Make the extract that this example ships from the Online Retail data set.

    python feature_repo_example/make_extract.py PATH_TO/online_retail.parquet

It keeps the purchases of known customers. Each row of the extract has all products that a customer had bought
by the last purchase of a month. So a customer has one row per month with purchases, and the history grows.
"""

import argparse
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

EXTRACT = Path(__file__).parent / "data" / "online_retail_purchases.parquet"
SCHEMA = pa.schema(
    [
        ("customer_id", pa.int64()),
        ("products", pa.list_(pa.string())),
        ("country", pa.string()),
        ("event_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def cumulative_purchases(invoices: pd.DataFrame) -> pd.DataFrame:
    """One row per customer and month: all products bought so far, in order of first purchase."""
    is_purchase = (
        (invoices["Quantity"] > 0)
        & ~invoices["InvoiceNo"].astype(str).str.startswith("C")
        & invoices["CustomerID"].notna()
    )
    purchases = invoices[is_purchase].sort_values(["InvoiceDate", "InvoiceNo", "StockCode"])
    months = purchases["InvoiceDate"].dt.to_period("M")
    rows = []
    for customer, lines in purchases.groupby("CustomerID"):
        bought: dict[str, None] = {}
        for _, month in lines.groupby(months.loc[lines.index]):
            bought.update(dict.fromkeys(month["StockCode"].astype(str)))
            last = month.iloc[-1]
            rows.append((int(customer), list(bought), last["Country"], last["InvoiceDate"]))
    return pd.DataFrame(rows, columns=SCHEMA.names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, help="the data set as a parquet file")
    rows = cumulative_purchases(pd.read_parquet(parser.parse_args().source))
    rows["event_timestamp"] = rows["event_timestamp"].dt.tz_localize("UTC")
    table = pa.Table.from_pandas(rows, SCHEMA, preserve_index=False)
    pq.write_table(table, EXTRACT, compression="zstd", compression_level=19)
    print(f"{EXTRACT}: {len(rows):,} rows, {EXTRACT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
