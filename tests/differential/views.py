"""The views of a comparison: features of every kind, and how each version spells their settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EXACT = {"exact", "list", "times", "counts", "counts of"}


@dataclass(frozen=True)
class View:
    """Features by name: a type of Feast, and a meaning, which `SPELLINGS` has tags for."""

    features: Mapping[str, tuple[str, str]]
    composite: bool = False

    @property
    def lossy(self) -> list[str]:
        """Features of which reads may show what was not written: a seal may put any set in a filter."""
        return [f for f, (kind, meaning) in self.features.items() if "(" in kind and meaning not in EXACT]


VIEWS = {
    "plain_sets": View({"viewed": ("Set(Int64)", ""), "age": ("Int64", ""), "city": ("String", "")}),
    "text_sets": View({"viewed": ("Set(String)", "")}),
    "arrays": View(
        {"viewed": ("Array(Int64)", ""), "liked": ("Array(Int64)", ""), "kept": ("Array(Int64)", "exact")}
    ),
    "two_keys": View({"viewed": ("Set(Int64)", ""), "age": ("Int64", "")}, composite=True),
    "bloom": View({"viewed": ("Set(Int64)", "bloom"), "age": ("Int64", "")}),
    "weighted": View({"viewed": ("Set(Int64)", "weighted"), "age": ("Int64", "")}),
    "clustered": View({"viewed": ("Set(Int64)", "clustered")}),
    "learned": View({"viewed": ("Set(Int64)", "learned")}),
    "sandwiched": View({"viewed": ("Set(Int64)", "sandwiched"), "city": ("String", "")}),
    "bloomier": View({"age": ("Int64", "static"), "city": ("String", "static")}),
    "scalars": View(
        {"age": ("Int64", "categorical"), "price": ("Float64", "rounded"), "spent": ("Float64", "bins")}
    ),
    "exact": View({"price": ("Float64", ""), "words": ("Map", ""), "note": ("String", "exact")}),
    "timed": View({"items": ("Array(Int64)", "list"), "items_at": ("Array(UnixTimestamp)", "times")}),
    "counted": View({"viewed": ("Array(Int64)", "counts"), "viewed_n": ("Array(Int64)", "counts of")}),
    "cut": View({"viewed": ("Set(Int64)", "top 20")}),
    "scored": View({"viewed": ("Set(Int64)", ""), "liking": ("Float64", "score")}),
}

WEIGHTS = {number: 1 / (1 + number) for number in range(60)}  # of values, for scores in 6 bits

# Before the one table of settings, and after it.
SPELLINGS: dict[str, Mapping[str, Mapping[str, str]]] = {
    "before": {
        "": {},
        "exact": {"sketch.codec": "exact"},
        "bloom": {"sketch.error_rate": "0.01"},
        "weighted": {"sketch.structure": "weighted_bloom", "sketch.noise_ratio": "0.5"},
        "clustered": {
            "sketch.structure": "weighted_bloom",
            "sketch.noise_ratio": "0.5",
            "sketch.clusters": "4",
        },
        "learned": {"sketch.structure": "learned_bloom", "sketch.noise_ratio": "0.5", "sketch.clusters": "4"},
        "sandwiched": {
            "sketch.structure": "sandwiched_bloom",
            "sketch.noise_ratio": "0.5",
            "sketch.clusters": "4",
        },
        "static": {"sketch.codec": "static"},
        "categorical": {"sketch.codec": "categorical"},
        "rounded": {"sketch.precision": "0.5"},
        "bins": {"sketch.bins": "8"},
        "list": {"sketch.codec": "list", "sketch.list.resolution": "1s", "sketch.list.limit": "500"},
        "times": {"sketch.list.times_of": "items"},
        "counts": {"sketch.codec": "counts"},
        "counts of": {"sketch.counts_of": "viewed"},
        "top 20": {"sketch.vocabulary": "{top: 20}"},
        "score": {
            "sketch.codec": "score",
            "sketch.score_of": "viewed",
            "sketch.score.weights": "scores.json",
            "sketch.score.bits": "6",
        },
    }
}


SPELLINGS["after"] = {
    **SPELLINGS["before"],
    "bloom": {"sketch.target": "error 0.01"},
    "weighted": {"sketch.structure": "weighted_bloom", "sketch.target": "noise 0.5"},
    **{
        name: {"sketch.structure": structure, "sketch.target": "noise 0.5", "sketch.clusters": "4"}
        for name, structure in (
            ("clustered", "weighted_bloom"),
            ("learned", "learned_bloom"),
            ("sandwiched", "sandwiched_bloom"),
        )
    },
    "rounded": {"sketch.round": "0.5"},
    "bins": {"sketch.round": "8 bins"},
    "list": {"sketch.codec": "list", "sketch.list": "{resolution: 1s, limit: 500}"},
    "times": {"sketch.of": "items"},
    "counts of": {"sketch.of": "viewed"},
    "score": {"sketch.codec": "score", "sketch.score": "{of: [viewed], weights: scores.json, bits: 6}"},
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "before": {"refresh_interval_seconds": 0, "seal": "job"},
    "after": {"refresh": 0, "compaction": "job"},
}


def spelled_tags(spelling: str, meaning: str) -> dict[str, str]:
    """The tags of a feature."""
    return dict(SPELLINGS[spelling][meaning])


def spelled_options(spelling: str, shards: int) -> dict[str, Any]:
    """The options of the store: it looks at each read, and seals only when it is told to."""
    return {**OPTIONS[spelling], "shards": shards}
