"""Every structure on the two data sets of the click model: bits, false values, AUC and time of a read.

All membership features of a data set are kept alike, once at each noise ratio. The model is trained and
measured on histories as reads of the sealed rows show them, at one false value per true one. Needs the data
sets, see `click_prediction/tasks.py`; without them it says so.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parent / "click_prediction"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for what tests share

import numpy as np
import pyarrow as pa
from measure import print_set_up, print_table
from model import Bootstrap, ClickModel
from scipy import sparse
from snapshot_bits import encoded, snapshot_bytes
from tasks import History, Task, load

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer
from feast_sketch_store.rows.encoding import EncodedRows
from feast_sketch_store.rows.entity_keys import hash_serialized_keys, serialize_columns
from tests.helpers.layers import build_layer

PRESENCE_ERROR_RATE = 1e-5
BATCH = 1_000
NUM_CLUSTERS = 16
RATIOS = (0.1, 1.0, 5.0)
WITH_AUC = (0.0, 1.0)  # a model is fitted for each, which takes most of the time


class Kept(NamedTuple):
    """How all features are kept."""

    label: str
    structure: str
    clusters: int = 0


FILTERS = (
    Kept("bloom", "bloom"),
    Kept("weighted_bloom", "weighted_bloom"),
    Kept("learned_bloom", "learned_bloom", NUM_CLUSTERS),
    Kept("sandwiched_bloom", "sandwiched_bloom", NUM_CLUSTERS),
    Kept(f"weighted_bloom, {NUM_CLUSTERS} clusters", "weighted_bloom", NUM_CLUSTERS),
)
SETS = Kept("sets", "sets")


def run(*, quick: bool) -> None:
    folder = Path(
        os.environ.get("CLICK_PREDICTION_DATA", Path(__file__).parent / "click_prediction" / "data")
    )
    for name in ("retail",) if quick else ("kuairand", "retail"):
        try:
            task = load(name, folder)
        except FileNotFoundError as error:
            print(f"{name}: not run, as its data set is not there (CLICK_PREDICTION_DATA): {error}\n")
            continue
        people = f"{len(task.written):,} people with {task.num_facts:,} facts in {len(task.history)} features"
        print_set_up(f"{name}: {people}; read {BATCH} at once, all features, on one core", "numpy")
        header = [
            "false per true",
            "structure",
            "bits a fact",
            "in tables",
            "false a read",
            "AUC",
            "ns a fact",
        ]
        print_table(header, list(_lines(task, quick)))


def _lines(task: Task, quick: bool) -> Iterator[list[str]]:
    rows, bootstrap = encoded(task), Bootstrap(task, 1)
    hashes = rows.keys.entity_hashes
    layers: dict[tuple[float, Kept], SketchLayer] = {(0.0, SETS): _layer(rows, SETS, 0.1)}
    for ratio in RATIOS[1:2] if quick else RATIOS:
        layers |= {(ratio, kept): _layer(rows, kept, ratio) for kept in FILTERS}
    times = _times(layers, hashes)
    none = bootstrap.aucs(ClickModel(task, None).decide(None))[0]
    yield ["", "no history", "0", "0", "0", f"{none:.4f}", "0"]
    for (ratio, kept), layer in layers.items():
        history, auc = _shown(task, rows, layer), "-"
        num_false = sum(matrix.nnz for matrix in history.values()) - task.num_facts
        if ratio in WITH_AUC:
            auc = f"{bootstrap.aucs(ClickModel(task, history).decide(history))[0]:.4f}"
        yield [
            f"{ratio:g}",
            kept.label,
            f"{8 * snapshot_bytes(layer)[0] / task.num_facts:.2f}",
            f"{layer.fact_bits / task.num_facts:.2f}",
            f"{num_false / len(rows):.1f}",
            auc,
            f"{times[ratio, kept] / task.num_facts * len(rows) * 1e9:.1f}",
        ]


def _layer(rows: EncodedRows, kept: Kept, ratio: float) -> SketchLayer:
    goal = Goal("noise_ratio", ratio, kept.structure, kept.clusters)
    return build_layer(rows, FeatureBudget(PRESENCE_ERROR_RATE, dict.fromkeys(rows.features, goal)))


def _times(
    layers: dict[tuple[float, Kept], SketchLayer], hashes: np.ndarray
) -> dict[tuple[float, Kept], float]:
    """Seconds of a read of one of many rows: the median of turns in which each layer has its own."""
    rng, seconds = np.random.default_rng(0), {key: [] for key in layers}
    for _ in range(9):
        asked = hashes[rng.choice(len(hashes), min(BATCH, len(hashes)), replace=False)]
        for key, layer in layers.items():
            start = time.process_time()
            for _ in range(5):
                layer.read(asked, list(layer.codecs))
            seconds[key].append((time.process_time() - start) / 5 / len(asked))
    return {key: float(np.median(own)) for key, own in seconds.items()}


def _shown(task: Task, rows: EncodedRows, layer: SketchLayer) -> History:
    """The histories of all people as reads show them; those who are not written have none."""
    answer = layer.read(rows.keys.entity_hashes, list(rows.features))
    person = _people_of(task, rows)
    shown = {}
    for name, matrix in task.history.items():
        csr, vocabulary = answer.features[name].csr, answer.features[name].vocabulary
        values = vocabulary.values.to_numpy(zero_copy_only=False)
        own = task.vocabularies[name]
        known = np.array([value.decode() for value in values], object) if own.dtype == object else values
        ids = np.searchsorted(own, known)[csr.ids]
        ones = np.ones(len(ids), np.float32)
        shown[name] = sparse.csr_matrix((ones, (person[csr.rows], ids)), matrix.shape)
    return shown


def _people_of(task: Task, rows: EncodedRows) -> np.ndarray:
    """Which person each row is, int64[n]: rows are in the order of hashes."""
    keys = serialize_columns({task.join_key: pa.array(np.arange(len(task.written)))})
    hashes = hash_serialized_keys(keys.to_pylist())
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    assert (hashes[order] == rows.keys.entity_hashes).all()
    return task.written[order]
