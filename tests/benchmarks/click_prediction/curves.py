"""What is measured: curves of settings, each a view's or its features' tags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tasks import Task
from through_feast import VIEW, Tags

POPULARITY, MODEL = "popularity", "model"


@dataclass(frozen=True)
class Setting:
    """Tags of the view, and of which values the store keeps how large a share, all features together.

    ``cut`` says which: the most popular ones, or those that a model on the training split gains most from
    per bit.
    """

    label: str
    tags: Mapping[str, str]
    cut: str = ""
    share: float = 1.0


def _each(text: str, tags: Mapping[str, str], values: Sequence[float]) -> list[Setting]:
    return [
        Setting(text.format(value), {tag: form.format(value) for tag, form in tags.items()})
        for value in values
    ]


_SHARES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0)
_EXACT_SETS = {"sketch.structure": "sets"}

SETTINGS: Mapping[str, Sequence[Setting]] = {
    "bloom": _each(
        "error rate {:g}",
        {"sketch.structure": "bloom", "sketch.target": "error {:g}"},
        (0.36, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001, 0.0001),
    ),
    "weighted_bloom": _each(
        "noise ratio {:g}",
        {"sketch.structure": "weighted_bloom", "sketch.target": "noise {:g}"},
        (16, 8, 4, 2, 1, 0.5, 0.2, 0.1, 0.03, 0.01),
    ),
    "sets, popular values": [
        Setting(f"{share:.0%} of the values", _EXACT_SETS, POPULARITY, share) for share in _SHARES
    ],
    "sets, values that a model chose": [
        Setting(f"{share:.0%} of the values", _EXACT_SETS, MODEL, share) for share in _SHARES
    ],
    "auto": [Setting("auto", {"sketch.target": "auto"})],
}


def tags_of(setting: Setting, task: Task, importance: Mapping[str, NDArray[np.float64]]) -> Tags:
    """The tags of a setting for a task.

    Parameters
    ----------
    importance : how much each value moves decisions of a model that was fitted on the training split.
    """
    if not setting.cut or setting.share == 1:
        return Tags(setting.tags)
    kept = values_kept(setting, task, importance)
    if setting.cut == POPULARITY:
        tags = {name: {"sketch.vocabulary": f"{{top: {max(1, len(k))}}}"} for name, k in kept.items()}
        return Tags(setting.tags, tags)
    files = {f"plans/{VIEW}.{name}.json": task.vocabularies[name][k].tolist() for name, k in kept.items()}
    tags = {name: {"sketch.vocabulary": f"{{file: plans/{VIEW}.{name}.json}}"} for name in kept}
    return Tags(setting.tags, tags, files)


def values_kept(
    setting: Setting, task: Task, importance: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.int64]]:
    """The places of the values that a cut keeps, of each feature; see `tags_of`."""
    shares = {name: matrix.sum(axis=0).A1 / len(task.written) for name, matrix in task.history.items()}
    scores = shares
    if setting.cut == MODEL:
        # What a value adds to decisions varies by importance * p(1-p), and an ideal code takes H(p) bits.
        scores = {n: importance[n] * p * (1 - p) / np.maximum(_entropy(p), 1e-9) for n, p in shares.items()}
    pooled = np.sort(np.concatenate(list(scores.values())))[::-1]
    bound = pooled[max(1, round(setting.share * len(pooled))) - 1]
    return {name: np.flatnonzero(score >= bound) for name, score in scores.items()}


def _entropy(share: NDArray[np.float64]) -> NDArray[np.float64]:
    inner = np.clip(share, 1e-12, 1 - 1e-12)
    return -inner * np.log2(inner) - (1 - inner) * np.log2(1 - inner)
