"""The rules of thumb of the pages on accuracy and structures, each measured on two data sets.

A rule is a sentence of a page. It is checked on KuaiRand's clicks and on Online Retail; see
`click_prediction/tasks.py` for the data. A rule that holds on one of them only has to say so on its page, and
`expected` says on which. *As said* is whether the page tells the truth.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parent / "click_prediction"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for what tests share

import numpy as np
import pyarrow as pa
import scores
from curves import MODEL, Setting, values_kept
from measure import print_set_up, print_table
from model import Bootstrap, ClickModel
from scale import _rows
from scipy import sparse
from snapshot_bits import encoded, snapshot_bytes
from structures_on_data import FILTERS, PRESENCE_ERROR_RATE, SETS, Kept, _layer, _shown
from tasks import History, Task, load

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedRows, encode, newest_rows
from tests.helpers.layers import build_layer

ACCURACY, STRUCTURES = "docs/explanation/accuracy.md", "docs/explanation/structures.md"
DATA_SETS = ("kuairand", "retail")
BLOOM, WEIGHTED, LEARNED, SANDWICHED, CLUSTERED = FILTERS
CUT_SHARES = (0.02, 0.04, 0.1)


class Found(NamedTuple):
    """What was measured, and whether the rule holds there."""

    measured: str
    holds: bool


class Rule(NamedTuple):
    """A rule.

    Parameters
    ----------
    page : that has it.
    sentence : of the page, as it stands there but for line breaks.
    check : measures it on a data set.
    expected : the data sets on which the page says that it holds.
    """

    page: str
    sentence: str
    check: Callable[["Data"], Found]
    expected: Sequence[str] = DATA_SETS


class Data:
    """A data set, and what was measured on it already."""

    def __init__(self, task: Task):
        self.task, self._rows, self._bootstrap = task, encoded(task), Bootstrap(task, 0)
        self.bits = cache(self._bits)
        self.model = cache(self._model)
        self.shown = cache(self._shown)

    def auc(self, trained: str, read: str) -> float:
        """The AUC of a model of one history that reads another; see `history`."""
        return self.auc_of(self.model(trained).decide(self.history(read)))

    def auc_of(self, decided: np.ndarray) -> float:
        """The AUC of decisions."""
        return float(self._bootstrap.aucs(decided)[0])

    def gain(self, name: str) -> float:
        """The share of the gain that is kept by a model trained on and applied to a history."""
        without, exact = self.auc("none", "none"), self.auc("exact", "exact")
        return (self.auc(name, name) - without) / (exact - without)

    def history(self, name: str) -> History | None:
        """A history by name.

        ``none``; ``exact``; ``cut SHARE`` with the most popular values of each feature; ``chosen SHARE`` with
        the values from which the exact model gains most per bit; and ``STRUCTURE GOAL RATIO SALT`` as reads
        of that show it.
        """
        kind, *others = name.split()
        if kind == "none":
            return None
        if kind == "exact":
            return self.task.history
        if kind == "cut":
            return {of: _cut(matrix, float(others[0])) for of, matrix in self.task.history.items()}
        if kind == "chosen":
            setting = Setting("", {}, MODEL, float(others[0]))
            kept = values_kept(setting, self.task, self.model("exact").importance())
            return {of: _only(matrix, kept[of]) for of, matrix in self.task.history.items()}
        return self.shown(name)

    def _model(self, name: str) -> ClickModel:
        return ClickModel(self.task, self.history(name))

    def _bits(self, kept: Kept, ratio: float) -> float:
        return 8 * snapshot_bytes(_layer(self._rows, kept, ratio))[0] / self.task.num_facts

    def _shown(self, name: str) -> History:
        structure, goal, amount, salt = name.split()
        wanted = Goal(goal, float(amount), structure)
        budget = FeatureBudget(PRESENCE_ERROR_RATE, dict.fromkeys(self._rows.features, wanted))
        return _shown(self.task, self._rows, build_layer(self._rows, budget, (int(salt), 7)))


def run(*, quick: bool) -> None:
    folder = Path(os.environ.get("CLICK_PREDICTION_DATA", "no folder"))
    lines = []
    for name in ("retail",) if quick else DATA_SETS:
        try:
            data = Data(load(name, folder))
        except FileNotFoundError:
            print(f"{name}: not run, as its data set is not in CLICK_PREDICTION_DATA\n")
            continue
        for rule in RULES:
            found = rule.check(data)
            is_as_said = found.holds == (name in rule.expected)
            answers = ["yes" if is_so else "no" for is_so in (found.holds, is_as_said)]
            lines.append([rule.sentence, Path(rule.page).stem, name, found.measured, *answers])
            print(" | ".join(lines[-1]), flush=True)
    print()
    print_set_up("rules of the pages", "numpy", "scipy")
    print_table(
        ["rule", "page", "data", "measured", "holds", "as said"], sorted(lines, key=lambda line: line[:2])
    )


def _cut(matrix: sparse.csr_matrix, share: float) -> sparse.csr_matrix:
    counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    return _only(matrix, np.argsort(-counts, kind="stable")[: max(1, round(share * len(counts)))])


def _only(matrix: sparse.csr_matrix, values: np.ndarray) -> sparse.csr_matrix:
    kept = np.zeros(matrix.shape[1], np.float32)
    kept[values] = 1
    cut = matrix.multiply(kept).tocsr()
    cut.eliminate_zeros()
    return cut


def _ratios(data: Data, of: Sequence[Kept], to: Sequence[Kept], ratios: Sequence[float]) -> list[float]:
    """Bytes of the smallest of some structures, in those of the smallest of others, at each noise ratio."""
    return [min(data.bits(k, r) for k in of) / min(data.bits(k, r) for k in to) for r in ratios]


def _range(numbers: Sequence[float], form: str = ".2f") -> str:
    low, high = format(min(numbers), form), format(max(numbers), form)
    return low if low == high else f"{low} to {high}"


def _sets_are_smallest(data: Data) -> Found:
    found = [data.bits(SETS, 0.1) / min(data.bits(k, r) for k in FILTERS) for r in (0.1, 1.0)]
    return Found(f"{_range(found)} of the smallest filter", max(found) < 1)


def _filters_win_with_noise(data: Data) -> Found:
    found = min(data.bits(kept, 5.0) for kept in FILTERS) / data.bits(SETS, 0.1)
    return Found(f"{found:.2f} of sets at a noise ratio of 5", found < 1)


def _weighted_is_smaller(data: Data) -> Found:
    found = _ratios(data, [WEIGHTED], [BLOOM], (1.0, 5.0))
    return Found(f"{_range(found)} of `bloom`", max(found) < 1)


def _sandwiched_is_smaller(data: Data) -> Found:
    found = _ratios(data, [SANDWICHED], [WEIGHTED], (0.1, 1.0, 5.0))
    return Found(f"{_range(found)} of `weighted_bloom`", max(found) < 1)


def _clusters_are_smallest(data: Data) -> Found:
    others = [kept for kept in FILTERS if kept != CLUSTERED]
    found = _ratios(data, [CLUSTERED], others, (0.1, 1.0, 5.0))
    return Found(f"{_range(found)} of the smallest other filter", max(found) < 1)


def _learned_is_as_large(data: Data) -> Found:
    found = data.bits(LEARNED, 0.1) / data.bits(BLOOM, 0.1)
    return Found(f"{found:.2f} of `bloom` at a noise ratio of 0.1", 0.95 < found < 1.05)


def _likely_noise_is_worse(data: Data) -> Found:
    plain, weighted = (
        data.auc(name, name) for name in ("bloom noise_ratio 1 1", "weighted_bloom noise_ratio 1 1")
    )
    return Found(f"AUC {plain:.4f} and {weighted:.4f}", plain > weighted)


def _sets_keep_more(data: Data) -> Found:
    share = data.gain("bloom error_rate 0.01 1")
    return Found(f"the filter keeps {share:.0%} of the gain", share < 0.95)


def _cuts_are_trained_through(data: Data) -> Found:
    names = [f"cut {share}" for share in CUT_SHARES]
    found = [data.auc(name, name) - data.auc("exact", name) for name in names]
    return Found(f"{_range(found, '+.4f')} of AUC", min(found) > 0)


def _filters_are_trained_exactly(data: Data) -> Found:
    # Served from the next snapshot, which has other false values.
    names = [f"bloom error_rate {rate}" for rate in (0.01, 0.001)]
    found = [data.auc("exact", f"{name} 2") - data.auc(f"{name} 1", f"{name} 2") for name in names]
    return Found(f"{_range(found, '+.4f')} of AUC", min(found) > 0)


def _snapshot_is_recognized(data: Data) -> Found:
    first, second = "bloom error_rate 0.01 1", "bloom error_rate 0.01 2"
    lost = data.auc(first, first) - data.auc(first, second)
    return Found(f"{lost:.4f} of AUC lost at the next seal", lost > 0.002)


def _few_values_keep_most(data: Data) -> Found:
    share = data.gain("chosen 0.04")
    return Found(f"4 % of the values keep {share:.0%} of the gain", share >= 0.9)


def _score_keeps_more(data: Data) -> Found:
    task, exact = data.task, data.model("exact")
    settings = [scores.score(task, exact, 0.25, 6), *scores.cuts(task, exact)]
    without, whole = data.auc("none", "none"), data.auc("exact", "exact")
    bits, gains = [], []
    for _, own, shown in scores.sealed(task, settings):
        bits.append(own)
        gains.append((data.auc_of(scores.decide(task, shown)) - without) / (whole - without))
    cut = max(gain for gain, own in zip(gains[1:], bits[1:], strict=True) if own < 3)
    measured = (
        f"a score of {bits[0]:.2f} bits a fact keeps {gains[0]:.0%} of the gain, cuts below 3 bits {cut:.0%}"
    )
    return Found(measured, gains[0] > cut)


def _static_is_smaller(data: Data) -> Found:
    saved = []
    for num_scalars in (1, 2):
        rows = _scalars(data.task, num_scalars)
        targets = dict.fromkeys(rows.features, PRESENCE_ERROR_RATE)
        listed, static = (
            build_layer(
                rows,
                FeatureBudget(
                    PRESENCE_ERROR_RATE,
                    targets,
                    may_be_columns=frozenset(targets),
                    is_static=is_static,
                    lists_rows=not is_static,
                ),
            )
            for is_static in (False, True)
        )
        saved.append(8 * (snapshot_bytes(listed)[0] - snapshot_bytes(static)[0]) / len(rows))
    return Found(f"{_range(saved)} bits a row less", min(saved) > 0 and max(saved) < 2)


def _scalars(task: Task, number: int) -> EncodedRows:
    """A row per person of one or two scalars: the octave of its length; its most popular value."""
    matrix = sparse.hstack(list(task.history.values()), "csr")[task.written]
    popularity = np.asarray(matrix.sum(axis=0)).ravel()
    by_popularity = matrix.multiply(popularity).tocsr()
    scalars = {
        "octave": np.log2(np.diff(matrix.indptr)).astype(np.int64),
        "most_popular": np.asarray(by_popularity.argmax(axis=1)).ravel().astype(np.int64),
    }
    table = _rows(task, 0, task.written)[0].drop_columns(list(task.history))
    names = list(scalars)[:number]
    for name in names:
        table = table.append_column(name, pa.array(scalars[name]))
    return encode(*newest_rows(table), [FeatureCodec(name, "int64_val") for name in names])


RULES = (
    Rule(STRUCTURES, "Sets are the smallest at up to one false value for each true one", _sets_are_smallest),
    Rule(STRUCTURES, "Filters win where more noise is harmless", _filters_win_with_noise),
    Rule(
        STRUCTURES, "at more than one false value for each true one, without learning", _weighted_is_smaller
    ),
    Rule(STRUCTURES, "the same, in fewer bytes than without clusters", _sandwiched_is_smaller),
    Rule(
        STRUCTURES,
        "the smallest filter where the bitmaps are negligible",
        _clusters_are_smallest,
        ["kuairand"],
    ),
    Rule(STRUCTURES, "with little noise it is as large as a Bloom filter", _learned_is_as_large),
    Rule(STRUCTURES, "Likely false values are worse for a model", _likely_noise_is_worse),
    Rule(ACCURACY, "False values cost a linear model more than missing values.", _sets_keep_more),
    Rule(
        ACCURACY,
        "Cut vocabularies: train a classifier through the sketch.",
        _cuts_are_trained_through,
        ["kuairand"],
    ),
    Rule(ACCURACY, "Filters: try both.", _filters_are_trained_exactly),
    Rule(ACCURACY, "4 % of the values keep nine tenths of the gain.", _few_values_keep_most, ["kuairand"]),
    Rule(ACCURACY, "On KuaiRand it keeps more below three bits a fact", _score_keeps_more, ["kuairand"]),
    Rule(STRUCTURES, "up to 2 bits a row less than a list", _static_is_smaller),
    Rule(ACCURACY, "Do not evaluate on the snapshot you trained on.", _snapshot_is_recognized, ["kuairand"]),
)
