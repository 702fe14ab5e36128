"""Reads the values of options and tags: YAML values, or the text of a tag.

Every reader takes what it returned, too, because Feast validates configurations that it has dumped.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import yaml

from feast_sketch_store.rows.binning import Binning, Precision, Quantiles
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.clusters import MAX_CLUSTERS
from feast_sketch_store.structures.goals import AUTO

NOISE: Final = "noise"
ERROR: Final = "error"
MEMORY: Final = "memory"

MAX_SHARDS: Final = 4_096
MAX_SCORE_BITS: Final = 16

_DURATIONS: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NUMBER: Final = r"[0-9.]+(?:e[-+]?[0-9]+)?"

Reader = Callable[[Any], Any]


@dataclass(frozen=True)
class Target:
    """What a feature is kept for.

    Parameters
    ----------
    measure : ``noise``, wrong values for each right one that a read shows; ``error``, the chance that an
        absent value reads as present, or how far a count may be off; ``memory``, bytes; or ``auto``.
    amount : of the measure; 0 for ``auto``.
    is_share : whether the amount was written as a percentage.
    """

    measure: str
    amount: float = 0.0
    is_share: bool = False

    def __str__(self) -> str:
        if self.measure == MEMORY:
            return f"{self.amount:.0f}B"
        if self.measure == AUTO:
            return AUTO
        return (
            f"{self.measure} {self.amount * 100!r}%" if self.is_share else f"{self.measure} {self.amount!r}"
        )


@dataclass(frozen=True)
class KeptValues:
    """Which values of a membership feature are kept; exactly one attribute is set."""

    top: int | None = None
    file: str | None = None
    values: tuple[Any, ...] | None = None


def number(given: Any) -> float:
    """Read a number, which may be a percentage.

    Raises
    ------
    ValueError : it is not a number.
    """
    text = str(given).strip()
    try:
        if not isinstance(given, bool):
            return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        pass
    raise ValueError(f"{given!r} is not a number")


def positive(given: Any) -> float:
    """Read a number above 0; raises as `number`."""
    found = number(given)
    if not 0 < found < math.inf:
        raise ValueError("it must be a number above 0")
    return found


def error_rate(given: Any) -> float:
    """Read an error rate: ``1e-5`` or ``1%``.

    Raises
    ------
    ValueError : it is not a number between 1e-9 and 0.5.
    """
    if not 1e-9 <= (rate := number(given)) <= 0.5:
        raise ValueError("an error rate must be between 1e-9 and 0.5")
    return rate


def whole(least: int, most: int | None = None) -> Reader:
    """Make a reader of whole numbers within bounds."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(given: Any) -> int:
        text = str(given).strip()
        if isinstance(given, bool | float) or re.fullmatch(r"-?[0-9]{1,18}", text) is None:
            raise ValueError(f"it must be a whole number {bounds}")
        if int(text) < least or (most is not None and int(text) > most):
            raise ValueError(f"it must be a whole number {bounds}")
        return int(text)

    return read


def shard_count(given: Any) -> int:
    """Read a number of shards.

    Raises
    ------
    ValueError : it is not a power of two up to `MAX_SHARDS`.
    """
    try:
        count: int = whole(1, MAX_SHARDS)(given)
    except ValueError:
        count = 0
    if count < 1 or count & (count - 1):
        raise ValueError(f"the number of shards must be a power of two from 1 to {MAX_SHARDS}")
    return count


def shard_numbers(given: Any) -> tuple[int, ...]:
    """Read the numbers of shards: a list."""
    if not isinstance(given, list | tuple) or not given:
        raise ValueError("it must name at least one shard, such as [0, 1]; leave it out to serve all")
    return tuple(whole(0, MAX_SHARDS - 1)(each) for each in given)


def flag(given: Any) -> bool:
    """Read true or false."""
    found = {"true": True, "false": False}.get(str(given).lower())
    if found is None:
        raise ValueError("it must be true or false")
    return found


def text(given: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(given, str) or not given.strip():
        raise ValueError("it must be a text, and not empty")
    return given


def size(given: Any) -> float:
    """Read a size such as ``470MB``; without a unit it is in bytes.

    Raises
    ------
    ValueError : it is not a size.
    """
    found = re.fullmatch(rf"\s*({_NUMBER})\s*([kMGT]?B)?\s*", str(given), re.IGNORECASE)
    if found is None:
        raise ValueError("a size is a number and one of B, kB, MB, GB and TB, such as 470MB")
    return positive(found[1]) * _SIZES[(found[2] or "B").upper()]


def duration(given: Any) -> timedelta:
    """Read a duration such as ``7d``.

    Raises
    ------
    ValueError : it is not a duration, or below 0.
    """
    if isinstance(given, timedelta) and given >= timedelta(0):
        return given
    found = re.fullmatch(rf"\s*(?:0|({_NUMBER})\s*(ms|s|min|h|d))\s*", str(given))
    try:
        if found is not None and not isinstance(given, bool):
            return timedelta(seconds=float(found[1] or 0) * _DURATIONS[found[2] or "s"])
    except (ValueError, OverflowError):
        pass
    raise ValueError("a duration is 0, or a number and one of ms, s, min, h and d, such as 7d")


def longer_than_0(given: Any) -> timedelta:
    """Read a duration above 0."""
    if not (found := duration(given)):
        raise ValueError("it must be longer than 0")
    return found


def resolution(given: Any) -> timedelta:
    """Read a duration of one or more whole microseconds; raises as `duration`."""
    if (tick := duration(given)) < timedelta(microseconds=1):
        raise ValueError("a resolution must be at least a microsecond, such as 1s, 1min or 1h")
    found = re.fullmatch(r"\s*([0-9.]+)\s*(ms|s|min|h|d)\s*", str(given))
    if found is not None and Decimal(found[1]) * int(_DURATIONS[found[2]] * 1000) * 1000 % 1:
        raise ValueError("a resolution must be whole microseconds, such as 0.5s, 1min or 1h")
    return tick


def target(given: Any) -> Target:
    """Read what a feature is kept for: ``noise 0.1``, ``error 1%``, ``470MB`` or ``auto``.

    Raises
    ------
    ValueError : it is none of these.
    """
    if isinstance(given, Target):
        return given
    words = str(given).split()
    if words == [AUTO]:
        return Target(AUTO)
    if words and words[0] in (NOISE, ERROR):
        amount = "".join(words[1:])
        return Target(words[0], positive_or_0(amount), amount.endswith("%"))
    if re.fullmatch(rf"\s*{_NUMBER}\s*[kMGT]?B\s*", str(given), re.IGNORECASE):
        return Target(MEMORY, size(given))
    raise ValueError("a target is auto, or such as `noise 0.1`, `error 1%` or `470MB`")


def target_of_sets(given: Any) -> Target:
    """Read what Arrays and Sets are kept for; raises as `target`."""
    found = target(given)
    if found.measure == ERROR:
        error_rate(found.amount)
    elif found.measure != AUTO:
        positive(found.amount)
    return found


def positive_or_0(given: Any) -> float:
    """Read a number of at least 0."""
    if not 0 <= (found := number(given)) < math.inf:
        raise ValueError("it must be a number of at least 0")
    return found


def kept_values(given: Any) -> KeptValues:
    """Read which values are kept: ``{top: 900}``, ``{file: PATH}`` or a list.

    Raises
    ------
    ValueError : it has another form.
    """
    if isinstance(given, KeptValues):
        return given
    content = from_yaml(given)
    if isinstance(content, list | tuple):
        return KeptValues(values=tuple(content))
    if isinstance(content, dict) and content.keys() == {"top"}:
        return KeptValues(top=whole(1)(content["top"]))
    if isinstance(content, dict) and content.keys() == {"file"}:
        return KeptValues(file=text(content["file"]))
    raise ValueError("it must be {top: COUNT}, {file: PATH OF A JSON LIST} or a list of values")


def rounding(given: Any) -> Binning:
    """Read how numbers are rounded: to a step such as ``0.01``, or into bins such as ``64 bins``.

    Raises
    ------
    ValueError : it is neither.
    """
    if (found := re.fullmatch(r"\s*([0-9]{1,9})\s+bins\s*", str(given))) is not None:
        return Quantiles(int(found[1]))
    try:
        return Precision(float(given))
    except (TypeError, ValueError) as error:
        raise ValueError("it must be a step above 0, such as 0.01, or such as `64 bins`") from error


def feature_names(given: Any) -> tuple[str, ...]:
    """Read names of features: a list, or a text with commas.

    Raises
    ------
    ValueError : there is no name, or a name twice.
    """
    names = given if isinstance(given, list | tuple) else str(given).split(",")
    found = tuple(str(name).strip() for name in names)
    if not found or not all(found) or len({*found}) < len(found):
        raise ValueError("it must be names of features, each once, such as [viewed, liked]")
    return found


def one_of(*names: str) -> Reader:
    """Make a reader that accepts some names, and raises a ValueError for any other text."""

    def read(given: Any) -> str:
        if given not in names:
            raise ValueError(f"it must be one of {nearest_first(str(given), names)}")
        return str(given)

    return read


def structure(given: Any) -> str:
    """Read the name of a structure, or ``auto``."""
    return str(one_of(AUTO, *registry.tag_names())(given))


clusters: Final = whole(2, MAX_CLUSTERS)


def from_yaml(given: Any) -> Any:
    """The content of a text that is YAML; other values are returned.

    Raises
    ------
    ValueError : the text is not YAML.
    """
    try:
        return yaml.safe_load(given) if isinstance(given, str) else given
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error


def parts(readers: Mapping[str, Reader], first: str = "") -> Reader:
    """Make a reader of mappings with some keys. It returns what was given, read.

    Parameters
    ----------
    first : the key for a value that is not a mapping, such as ``16`` for ``{count: 16}``; empty for none.
    """

    def read(given: Any) -> dict[str, Any]:
        content = from_yaml(given)
        if not isinstance(content, Mapping):
            if not first:
                raise ValueError(f"it must be a mapping, such as {{{next(iter(readers))}: ...}}")
            content = {first: given}
        found = {}
        for name, value in content.items():
            if name not in readers:
                raise ValueError(f"it has no part {name!r}; parts: {nearest_first(str(name), readers)}")
            try:
                found[name] = readers[name](value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return found

    return read


def nearest_first(given: str, names: Iterable[str], words: Mapping[str, Iterable[str]] | None = None) -> str:
    """Names for a message, those first that are most like what was given.

    Parameters
    ----------
    words : of names, further words that may be meant by them.
    """

    def likeness(name: str) -> float:
        known = [name, *(words or {}).get(name, ())]
        return max(difflib.SequenceMatcher(None, given, word).ratio() for word in known)

    return ", ".join(sorted(names, key=lambda name: (-likeness(name), name)))


def listed(names: Iterable[str]) -> str:
    """Names in order, for messages."""
    return ", ".join(sorted(names))
