"""Write features to a bucket, or read them as another machine would.

    python feature_repo_example/bucket.py writer
    python feature_repo_example/bucket.py replica

`bucket.yaml` in this folder says where the bucket is. The writer materializes and seals. The replica only
reads, through a cache.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

REPO = Path(__file__).resolve().parent
PERIOD = ("2010-01-01T00:00:00", "2011-12-31T00:00:00")
CUSTOMERS = (12346, 12347, 17850)


def write() -> None:
    """Apply, materialize and seal with the usual commands."""
    scripts = Path(sysconfig.get_path("scripts"))
    for name, *command in (["feast", "apply"], ["feast", "materialize", *PERIOD], ["feast-sketch", "seal"]):
        print(f"\n$ {name} {' '.join(command)}", flush=True)
        subprocess.run([scripts / name, "-f", REPO / "bucket.yaml", *command], cwd=REPO, check=True)


def read() -> None:
    """Read some customers, as a service on another machine would."""
    from feast import FeatureStore

    from feast_sketch_store import open_view

    store = FeatureStore(repo_path=str(REPO), fs_yaml_file=REPO / "bucket.yaml")
    features = ["customer_purchases:products", "customer_purchases:country"]
    answer = store.get_online_features(features, [{"customer_id": c} for c in CUSTOMERS]).to_dict()
    for customer, products, country in zip(CUSTOMERS, answer["products"], answer["country"], strict=True):
        print(f"customer {customer}, {country}: {len(products)} products")
    view = open_view(store, "customer_purchases")
    told = view.freshness()
    print(f"The replica is {told.state}, {told.age_seconds:.1f} seconds old.")
    view.close()


if __name__ == "__main__":
    role = sys.argv[1] if len(sys.argv) == 2 else ""
    if role not in ("writer", "replica"):
        sys.exit(__doc__)
    os.environ["READ_ONLY"] = "false" if role == "writer" else "true"
    write() if role == "writer" else read()
