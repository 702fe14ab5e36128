"""The example repository does what its README says, in a copy of its folder."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from feast import FeatureStore

from tests.helpers.processes import answering, run_as_user, run_command

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "feature_repo_example"


def copy_example(folder):
    """A copy of the example, as it is in a fresh clone."""
    made = shutil.ignore_patterns("sketch", "registry.db", "cache", "__pycache__")
    return Path(shutil.copytree(EXAMPLE, folder / "feature_repo_example", ignore=made))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the example that has been run."""
    return copy_example(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def output(copy):
    """What a run prints, which does what a user does: the plain ``feast`` commands, then a reader."""
    done = run_as_user([sys.executable, "-W", "ignore", copy / "run.py"], cwd=copy.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fleet_commands():
    """The README's commands for several machines, as they stand there."""
    readme = (EXAMPLE.parent / "README.md").read_text()
    section = readme[readme.index("## Serve from several machines") :]
    return re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].splitlines()


def test_a_writer_and_a_replica_share_a_bucket(fleet_commands, moto, tmp_path):
    """As a user does it, but with a server that runs, and Python in forks."""
    folder = copy_example(tmp_path)
    install, server, *commands = fleet_commands
    assert install.endswith('pip install ".[object-store]" "moto[server]"')
    assert server.endswith(" &")
    port, settings = moto.port, folder / "bucket.yaml"
    settings.write_text(settings.read_text().replace(":5050", f":{port}"))
    said = [run_as_user(_words(command, port), cwd=tmp_path) for command in commands]
    assert [done.returncode for done in said] == [0, 0, 0], [done.stderr for done in said]
    assert "sealed" in said[1].stdout
    assert re.search(r"customer 12347, Iceland: \d{3} products", said[2].stdout)
    assert "The replica is SERVING" in said[2].stdout
    assert list((folder / "data" / "cache").iterdir()), "which it maps from there"


def _words(command, port):
    """The words of a command of the README, with this Python and this port."""
    program, *words = shlex.split(command.replace("5050", str(port)))
    folder, _, name = program.rpartition("/")
    if folder == ".venv/bin":
        program = sys.executable if name == "python" else str(Path(sys.executable).with_name(name))
    return [program, *words]


@pytest.mark.has_long_form
def test_nothing_is_lost_and_nothing_added(output):
    assert "kept in:                               sets" in output
    assert "lost by the sketch (false negatives):  0" in output
    assert "added by the sketch (false positives): 0 beside" in output


@pytest.mark.has_long_form
def test_a_filter_of_the_same_rows_keeps_its_error_rate(output):
    """15.6 million candidates: four standard deviations of a rate of 0.01 would be 0.0001, but the
    false positives of one customer cluster, which makes the spread of the rate about three times larger."""
    assert "lost by the filter:                    0" in output
    rate = float(re.search(r"false-positive rate: +([0-9.]+) measured", output)[1])
    assert 0.0095 < rate < 0.0105


def test_the_sketch_is_a_fraction_of_the_exact_stores(output):
    sizes = {
        name: int(size.replace(",", ""))
        for name, size in re.findall(r"^  (\S.*?) {2,}([0-9,]+) +[0-9.]+$", output, re.MULTILINE)
    }
    snapshot, sqlite, sets = (
        next(size for name, size in sizes.items() if word in name) for word in ("snapshot", "SQLite", "dict")
    )
    assert snapshot * 12 < sqlite < sets


@pytest.mark.has_long_form
def test_any_delta_reader_finds_the_exact_rows(output, copy):
    rows = DeltaTable(str(copy / "data/sketch/online_retail/customer_purchases/rows")).to_pandas(
        columns=["customer_id", "products", "country", "__event_timestamp"]
    )
    newest = rows.sort_values("__event_timestamp").groupby("customer_id").tail(1)
    assert len(newest) == 4_339
    assert newest["products"].map(len).sum() == 266_802


@pytest.mark.has_long_form
def test_it_leaves_only_ignored_files(output, copy):
    made = {p.relative_to(copy).parts[:2] for p in copy.rglob("*") if "__pycache__" not in p.parts}
    known = {p.relative_to(EXAMPLE).parts[:2] for p in EXAMPLE.rglob("*")}
    assert made - known <= {("data", "sketch"), ("data", "registry.db")}


def test_the_sketch_says_what_it_holds(output):
    assert "4,339 customers, 3,665 products, 266,802 facts" in output
    assert "rows in the sketch, rows still exact:  4,339, 0" in output
    assert "who does not exist: None" in output


@pytest.mark.parametrize(
    ("page", "num_blocks"), [("README.md", 1), ("docs/how_to/reader.md", 2)], ids=["readme", "reader"]
)
def test_the_code_of_a_page_runs(output, copy, page, num_blocks):
    """As it is printed, from the folder that holds the example."""
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLE.parent / page).read_text("utf-8"), re.DOTALL)
    assert len(blocks) == num_blocks
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        cwd=copy.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _reader_of(repo):
    store = FeatureStore(repo_path=str(repo))

    def read(customer):
        answer = store.get_online_features(
            features=store.get_feature_service("recommender"), entity_rows=[{"customer_id": customer}]
        ).to_dict()
        return answer["products"][0], answer["country"][0]

    return read


def test_feast_commands_reach_a_reader_that_was_there_before(tmp_path, warm, warm_feast_cli):
    repo = copy_example(tmp_path)
    assert "feast_sketch_store" not in (repo / "features.py").read_text()
    settings = repo / "feature_store.yaml"
    at_once = "type: sketch\n  refresh: 0"  # so that nothing here depends on time
    text = settings.read_text().replace("type: sketch", at_once)
    assert "compaction: {min_rows: 1000}" in text
    settings.write_text(text.replace("compaction: {min_rows: 1000}", "compaction: {min_rows: 30}"))
    source = repo / "data/online_retail_purchases.parquet"
    purchases = pq.read_table(source, filters=[("customer_id", "<", 12_500)])  # one in thirty customers
    pq.write_table(purchases, source)
    warm_feast_cli(repo, "apply")
    with answering(warm, _reader_of, repo) as ask:
        assert ask(12347) == (None, None)
        # Without a materialization before, Feast's incremental one begins a year before today.
        warm_feast_cli(repo, "materialize", "2010-12-01T00:00:00", "2011-07-01T00:00:00")
        in_july = ask(12347)
        warm_feast_cli(repo, "materialize-incremental", "2011-12-31T00:00:00")
        in_december = ask(12347)
    rows = purchases.to_pylist()
    all_products = {product for row in rows for product in row["products"]}
    rows = sorted((r for r in rows if r["customer_id"] == 12347), key=lambda r: r["event_timestamp"])
    until_july = [r for r in rows if r["event_timestamp"].month < 7 or r["event_timestamp"].year < 2011]
    for (products, country), truth in ((in_july, until_july[-1]), (in_december, rows[-1])):
        assert set(truth["products"]) <= set(products)
        assert len(products) < len(all_products) / 3  # at most 103 true ones, and false ones
        assert country == truth["country"]
    assert list((repo / "data/sketch").rglob("snapshots/*")), "which it read"


INVOICES = [  # invoice, product, quantity, date, customer, country
    ("2", "B", 1, "2011-01-20 10:00", 7.0, "France"),
    ("1", "A", 2, "2011-01-10 10:00", 7.0, "France"),
    ("1", "A", 1, "2011-01-10 10:00", 7.0, "France"),  # the same product again
    ("C3", "C", -1, "2011-01-21 10:00", 7.0, "France"),  # a cancellation
    ("C4", "C", 1, "2011-01-21 10:00", 7.0, "France"),
    ("5", "C", -1, "2011-01-21 10:00", 7.0, "France"),
    ("6", "C", 1, "2011-01-21 10:00", None, "France"),  # nobody known
    ("7", "D", 1, "2011-03-05 10:00", 7.0, "Spain"),
    ("8", "A", 1, "2011-03-05 11:00", 5.0, "Norway"),
]


def test_the_extract_keeps_the_purchases_of_known_customers(tmp_path):
    shutil.copy(EXAMPLE / "make_extract.py", tmp_path)
    (tmp_path / "data").mkdir()
    names = ("InvoiceNo", "StockCode", "Quantity", "InvoiceDate", "CustomerID", "Country")
    source = pa.table(dict(zip(names, map(list, zip(*INVOICES, strict=True)), strict=True)))
    dates = pc.strptime(source["InvoiceDate"], format="%Y-%m-%d %H:%M", unit="us")
    pq.write_table(source.set_column(3, "InvoiceDate", dates), tmp_path / "source.parquet")
    extract = tmp_path / "data/online_retail_purchases.parquet"
    contents = []
    for _ in range(2):
        done = run_command([sys.executable, tmp_path / "make_extract.py", tmp_path / "source.parquet"])
        assert done.returncode == 0, done.stderr
        contents.append(extract.read_bytes())
    assert contents[0] == contents[1]
    rows = [
        (r["customer_id"], r["products"], r["country"], f"{r['event_timestamp']:%m-%d %H:%M}")
        for r in pq.read_table(extract).to_pylist()
    ]
    assert rows == [
        (5, ["A"], "Norway", "03-05 11:00"),
        (7, ["A", "B"], "France", "01-20 10:00"),
        (7, ["A", "B", "D"], "Spain", "03-05 10:00"),
    ]


def test_a_ranking_model_takes_the_arrays_of_the_reader(copy):
    torch = pytest.importorskip("torch")
    ids = np.arange(6, dtype=np.int32)
    assert torch.from_dlpack(ids).data_ptr() == ids.__array_interface__["data"][0]
    done = run_command([sys.executable, "-W", "ignore", copy / "rank.py"])
    assert done.returncode == 0, done.stderr
    areas = {
        name: float(re.search(rf"^{name} +(0\.\d+)$", done.stdout, re.MULTILINE)[1])
        for name in ("without a history", "logistic regression", "embeddings")
    }
    assert areas["without a history"] < areas["logistic regression"] < areas["embeddings"]
