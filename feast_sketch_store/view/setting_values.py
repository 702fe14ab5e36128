"""Reads and checks the values of options in ``feature_store.yaml`` and of tags."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

import yaml

from feast_sketch_store.rows.binning import Edges
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.clusters import MAX_CLUSTERS
from feast_sketch_store.structures.goals import AUTO, BLOOM, WEIGHTED_BLOOM

# Former names of structures, with their current names.
RENAMED_STRUCTURES = {"uniform": BLOOM, "tiers": WEIGHTED_BLOOM}

_DURATIONS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class VocabularySetting:
    """Which values of a membership feature are kept; exactly one attribute is set."""

    top: int | None = None
    min_share: float | None = None
    file: str | None = None
    values: tuple[Any, ...] | None = None


def error_rate(text: Any) -> float:
    """Read an error rate.

    Raises
    ------
    ValueError : it is not a number between 1e-9 and 0.5.
    """
    rate = _number(text)
    if not 1e-9 <= rate <= 0.5:
        raise ValueError("an error rate must be between 1e-9 and 0.5")
    return rate


def error_rate_or_auto(text: Any) -> float | Literal["auto"]:
    """Read an error rate or ``auto``.

    Raises
    ------
    ValueError : it is neither ``auto`` nor a number between 1e-9 and 0.5.
    """
    return "auto" if text == "auto" else error_rate(text)


def positive_count(text: Any) -> int:
    """Read a count of at least 1.

    Raises
    ------
    ValueError : it is not a whole number of at least 1.
    """
    count = int(text) if isinstance(text, str) else text
    if type(count) is not int or count < 1:
        raise ValueError("it must be a whole number and at least 1")
    return count


def positive_number(text: Any) -> float:
    """Read a number above 0.

    Raises
    ------
    ValueError : it is not such a number.
    """
    number = _number(text)
    if not 0 < number < math.inf:
        raise ValueError("it must be a number above 0")
    return number


def _number(text: Any) -> float:
    try:
        return float(text)
    except TypeError as error:
        raise ValueError(f"{text!r} is not a number") from error


def byte_count(text: Any) -> float:
    """Read a size such as ``470MB``; without a unit it is in bytes.

    Raises
    ------
    ValueError : it is not a size.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kMGT]?B)?\s*", str(text), re.IGNORECASE)
    if found is None:
        raise ValueError("a size is a number and one of B, kB, MB, GB and TB, such as 470MB")
    return positive_number(found[1]) * _UNITS[(found[2] or "B").upper()]


def duration(text: Any) -> timedelta:
    """Read a duration such as ``7d``.

    Raises
    ------
    ValueError : it is not a duration, or below 0.
    """
    if isinstance(text, timedelta) and text >= timedelta(0):
        return text
    found = re.fullmatch(r"\s*(0|[0-9.]+\s*(s|min|h|d))\s*", str(text))
    try:
        if found is not None:
            number = found[1].removesuffix(found[2] or "")
            return timedelta(seconds=float(number) * _DURATIONS[found[2] or "s"])
    except (ValueError, OverflowError):
        pass
    raise ValueError("a duration must be 0, or a number and one of s, min, h and d, such as 7d")


def resolution(text: Any) -> timedelta:
    """Read a duration of one or more whole microseconds.

    Raises
    ------
    ValueError : it is not such a duration.
    """
    if (tick := duration(text)) < timedelta(microseconds=1):
        raise ValueError("a resolution must be at least a microsecond, such as 1s, 1min or 1h")
    found = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h|d)\s*", str(text))
    if found is not None and Decimal(found[1]) * int(_DURATIONS[found[2]]) * 1_000_000 % 1:
        raise ValueError("a resolution must be whole microseconds, such as 0.5s, 1min or 1h")
    return tick


def vocabulary_setting(given: Any) -> VocabularySetting:
    """Read which values are kept: ``{top: 900}``, ``{min_share: 0.001}``, ``{file: PATH}`` or a list.

    Also accepts a parsed setting, and a dictionary of its parts.

    Raises
    ------
    ValueError : it has another form.
    """
    if isinstance(given, VocabularySetting):
        return given
    try:
        content = yaml.safe_load(given) if isinstance(given, str) else given
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {error}") from error
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if value is not None}
    if isinstance(content, list):
        return VocabularySetting(values=tuple(content))
    if isinstance(content, dict) and len(content) == 1:
        ((name, value),) = content.items()
        if name == "values" and isinstance(value, tuple):
            return VocabularySetting(values=value)
        if name == "top":
            return VocabularySetting(top=positive_count(value))
        if name == "min_share":
            share = positive_number(value)
            if share <= 1:
                return VocabularySetting(min_share=share)
        if name == "file" and isinstance(value, str):
            return VocabularySetting(file=value)
    raise ValueError(
        "it must be {top: COUNT}, {min_share: SHARE OF THE ENTITIES}, {file: PATH OF A JSON LIST} or a "
        "list of values"
    )


def cluster_count(text: Any) -> int:
    """Read a number of clusters.

    Raises
    ------
    ValueError : it is not a whole number between 2 and `MAX_CLUSTERS`.
    """
    if not 2 <= (number := positive_count(text)) <= MAX_CLUSTERS:
        raise ValueError(f"it must be a whole number between 2 and {MAX_CLUSTERS}")
    return number


def structure_name(text: Any) -> str:
    """Read the name of a structure.

    Raises
    ------
    ValueError : it is neither ``auto`` nor a name that a registered structure goes by.
    """
    if text in RENAMED_STRUCTURES:
        raise ValueError(f"{text!r} is called {RENAMED_STRUCTURES[text]!r} now")
    return one_of(AUTO, *registry.tag_names())(text)


def one_of(*names: str) -> Callable[[Any], str]:
    """Make a reader that accepts some names, and raises a ValueError for any other text."""

    def read(text: Any) -> str:
        if text not in names:
            raise ValueError(f"it must be one of {listed(names)}")
        return str(text)

    return read


def edges(text: Any) -> Edges:
    """Read edges of bins: numbers with commas between them.

    Raises
    ------
    ValueError : the text has another form, or the edges do not ascend.
    """
    return Edges(tuple(float(edge) for edge in str(text).split(",")))


def listed(names: Iterable[str]) -> str:
    """Names in order, for messages."""
    return ", ".join(sorted(names))
