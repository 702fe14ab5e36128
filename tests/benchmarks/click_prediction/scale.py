"""A hundred million facts: KuaiRand's people drawn again and again, through the row log and a seal.

    python tests/benchmarks/click_prediction/scale.py [--data FOLDER] [--people N] [--tag NAME=VALUE ...]
                                                      [--quick] [--json FILE]

Zalando's headline is a feature store of this size. Everybody has the history of somebody of KuaiRand-Pure,
drawn with replacement, so values are as frequent as they are there. Rows are appended to the row log as Arrow
tables, as ``online_write_batch`` does with them, without Feast's conversion of each value into a protobuf
message: what ``materialize`` would take is measured on the real people, and told. The seal and the reads are
in processes of their own.
"""

import argparse
import json
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
from measure import memory, number, print_set_up, print_table, seconds
from numpy.typing import NDArray
from stores import temporary_folder
from tasks import Task, add_data_argument, load_or_exit
from through_feast import PROJECT, VIEW, Repository, Tags

from feast_sketch_store import SketchReader
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import CREATED_TIMESTAMP, DELETED, ENTITY_KEY, EVENT_TIMESTAMP, NULLS
from feast_sketch_store.rows.entity_keys import serialize_columns
from feast_sketch_store.storage.stores import StorePlace

NUM_PEOPLE = 2_300_000
ROWS_PER_COMMIT = 100_000
BATCH = 1_000
CHECKED_PEOPLE = 5_000
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SEED = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="A hundred million facts through the row log and a seal.")
    add_data_argument(parser)
    parser.add_argument("--people", type=int, default=NUM_PEOPLE, help="rows, default %(default)s")
    parser.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE", help="tags of the view")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the people")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    task = load_or_exit("kuairand", arguments.data, parser)
    num_people = arguments.people // (50 if arguments.quick else 1)
    result = measure(task, num_people, dict(tag.split("=", 1) for tag in arguments.tag))
    _print(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(task: Task, num_people: int, tags: dict[str, str]) -> dict[str, Any]:
    """Write, seal and read so many people."""
    sources = np.random.default_rng(_SEED).choice(task.written, num_people)
    online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
    result: dict[str, Any] = {"people": num_people, "tags": tags}
    with temporary_folder() as folder:
        with Repository(folder / "small", task, online_store) as small:
            small.apply()
            result["materialize, s per million facts"] = seconds(small.materialize)[0] / task.num_facts * 1e6
        with Repository(folder / "large", task, online_store) as repository:
            repository.apply()
            started = time.perf_counter()
            result["facts"] = _append(task, sources, repository.folder)
            result["append, s"] = time.perf_counter() - started
            result["seal"] = repository.seal(Tags(tags))
        result["bits/fact"] = result["seal"]["bytes"] * 8 / result["facts"]
        with ProcessPoolExecutor(1, get_context("spawn")) as reader:
            result["read"] = reader.submit(_read, str(folder / "large"), task, sources).result()
    return result


def _append(task: Task, sources: NDArray[np.int64], repository: Path) -> int:
    log = RowLog(StorePlace(repository / "sketch").view(PROJECT, VIEW))
    facts = 0
    for first in range(0, len(sources), ROWS_PER_COMMIT):
        rows, count = _rows(task, first, sources[first : first + ROWS_PER_COMMIT])
        log.append(rows)
        facts += count
    return facts


def _rows(task: Task, first: int, sources: NDArray[np.int64]) -> tuple[pa.Table, int]:
    """Rows of people first, first + 1, ... as the row log has them, and the facts in them."""
    people, count, facts = pa.array(np.arange(first, first + len(sources))), len(sources), 0
    columns = {task.join_key: people}
    for name, matrix in task.history.items():
        taken = Csr(matrix.indptr.astype(np.int64), matrix.indices).take(sources)
        values = pa.array(task.vocabularies[name][taken.ids])
        columns[name] = pa.ListArray.from_arrays(pa.array(taken.indptr, pa.int32()), values)
        facts += len(taken.ids)
    moment = pa.scalar(int(task.moment.timestamp()) * 1_000_000, _TIMESTAMP)
    columns[ENTITY_KEY] = serialize_columns({task.join_key: people}).cast(pa.binary())
    columns[EVENT_TIMESTAMP] = pa.repeat(moment, count)
    columns[CREATED_TIMESTAMP] = pa.nulls(count, _TIMESTAMP)
    columns[NULLS] = pa.nulls(count, pa.list_(pa.string()))
    columns[DELETED] = pa.nulls(count, pa.bool_())
    return pa.table(columns), facts


def _read(repository: str, task: Task, sources: NDArray[np.int64]) -> dict[str, Any]:
    """Errors and speed of reads by a process that does nothing else."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    own, mapped = memory("RssAnon"), memory("RssFile")
    opened, reader = seconds(SketchReader, repository, VIEW)
    random = np.random.default_rng(9)
    checked = random.choice(len(sources), min(CHECKED_PEOPLE, len(sources)), replace=False)
    lost = false = 0
    for name, exact in task.history.items():
        places = np.searchsorted(task.vocabularies[name], reader.vocabulary(name).to_numpy(False))
        answer = reader.csr(name, checked)
        ones = np.ones(len(answer.ids), np.float32)
        shape = (len(checked), exact.shape[1])
        shown = type(exact)((ones, places[answer.ids], answer.indptr), shape)
        common = int(exact[sources[checked]].multiply(shown).nnz)
        lost += int(exact[sources[checked]].nnz) - common
        false += shown.nnz - common
    weights = {name: random.random(len(reader.vocabulary(name))) for name in task.history}

    def csr(people: NDArray[np.int64]) -> None:
        hashes = reader.hash(people)
        for name in weights:
            reader.csr(name, hashes)

    def scores(people: NDArray[np.int64]) -> None:
        hashes = reader.hash(people)
        for name, own in weights.items():
            reader.scores(name, hashes, own)

    rates = {}
    for question in (csr, scores):
        # The first turns check blocks of the file, each once.
        times = [seconds(question, random.integers(0, len(sources), BATCH))[0] for _ in range(300)]
        rates[question.__name__] = BATCH / sorted(times[100:])[100]
    return {
        "open, s": opened,
        "facts lost": lost,
        "false per read": false / len(checked),
        "people/s": rates,
        "resident, own": memory("RssAnon") - own,
        "resident, mapped": memory("RssFile") - mapped,
    }


def _print(result: dict[str, Any]) -> None:
    seal, read, facts = result["seal"], result["read"], result["facts"]
    tags = ", ".join(f"{name} {value}" for name, value in result["tags"].items()) or "default settings"
    print_set_up(f"{result['people']:,} people with {facts:,} facts, {tags}", "numpy", "feast", "pyarrow")
    materialize = result["materialize, s per million facts"] * facts / 1e6
    rows = [
        ["rows appended to the row log, s", number(result["append, s"])],
        ["sealed, s", number(seal["seconds"])],
        ["Feast's `materialize` would take, by the real people, s", number(materialize)],
        ["memory of the seal at its peak, with the unsealed rows, MB", number(seal["peak"] / 1e6)],
        ["snapshot, MB", number(seal["bytes"] / 1e6)],
        ["bits per fact", number(result["bits/fact"])],
        ["facts lost, of those of 5,000 people", read["facts lost"]],
        ["false symbols per read, three features", number(read["false per read"])],
        ["people per second on one core, ids of three features", number(read["people/s"]["csr"])],
        ["people per second on one core, scores of three features", number(read["people/s"]["scores"])],
        ["a reader opens, s", number(read["open, s"])],
        [
            "its resident memory of its own, beyond what it had before, MB",
            number(read["resident, own"] / 1e6),
        ],
        ["its resident memory of mapped files, likewise, MB", number(read["resident, mapped"] / 1e6)],
    ]
    print_table(["what", "measured"], rows)


if __name__ == "__main__":
    main()
