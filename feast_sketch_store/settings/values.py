"""Reads the values of options and tags: YAML values, or the text of a tag.

Every reader takes what it returned, too, because Feast validates configurations that it has dumped. It raises
a ValueError that says what the value must be, and does not name the setting.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import yaml

from feast_sketch_store.rows.binning import Binning, Precision, Quantiles
from feast_sketch_store.storage.buckets import check_url, is_url
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


@dataclass(frozen=True)
class Reader:
    """A function that reads a value, and how the reference page says it is written."""

    form: str
    function: Callable[[Any], Any]

    def __call__(self, given: Any) -> Any:
        """Read a value."""
        return self.function(given)


def _reads(form: str) -> Callable[[Callable[[Any], Any]], Reader]:
    return partial(Reader, form)


@dataclass(frozen=True)
class Target:
    """What a feature is kept for."""

    # ``noise``, wrong values for each right one that a read shows; ``error``, the chance that an absent value
    # reads as present, or how far a count may be off; ``memory``, bytes; or ``auto``
    measure: str
    amount: float = 0.0  # of the measure; 0 for ``auto``
    is_share: bool = False  # whether the amount was written as a percentage

    def __str__(self) -> str:
        if self.measure == MEMORY:
            return f"{self.amount:.0f}B"
        if self.measure == AUTO:
            return AUTO
        return f"{self.measure} " + (f"{self.amount * 100!r}%" if self.is_share else f"{self.amount!r}")


@dataclass(frozen=True)
class KeptValues:
    """Which values of a membership feature are kept; exactly one attribute is set."""

    top: int | None = None
    file: str | None = None
    values: tuple[Any, ...] | None = None


# -- texts and numbers ---------------------------------------------------------------------------------


@_reads("text")
def text(given: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(given, str) or not given.strip():
        raise ValueError("it must be a text, and not empty")
    return given


@_reads("`module:function`")
def import_path(given: Any) -> str:
    """Read where a function is."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", str(given)):
        raise ValueError("it must be a module and a function, such as checks:plausible")
    return str(given)


@_reads("folder or URL")
def path(given: Any) -> str:
    """Read the folder or URL of the store."""
    if is_url(found := str(text(given))):
        try:
            check_url(found)
        except ValueError as error:
            raise ValueError(str(error).removeprefix("path: ")) from error
    return found


@_reads("mapping")
def mapping(given: Any) -> dict[str, Any]:
    """Read a mapping of names to values."""
    if not isinstance(given, Mapping):
        raise ValueError("it must be a mapping of names to values")  # noqa: TRY004
    return {str(name): value for name, value in given.items()}


@_reads("mapping")
def other_store(given: Any) -> dict[str, Any]:
    """Read the options of another online store."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind == "sketch" or kind.endswith("SketchOnlineStore"):
        raise ValueError("it needs the type of another online store, such as {type: redis}")
    return dict(given)


@_reads("boolean")
def flag(given: Any) -> bool:
    """Read true or false."""
    if (found := {"true": True, "false": False}.get(str(given).lower())) is None:
        raise ValueError("it must be true or false")
    return found


def number(given: Any) -> float:
    """Read a number, which may be a percentage."""
    text = str(given).strip()
    try:
        if not isinstance(given, bool):
            return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        pass
    raise ValueError(f"{given!r} is not a number")


def positive(given: Any) -> float:
    """Read a number above 0."""
    if not 0 < (found := number(given)) < math.inf:
        raise ValueError("it must be a number above 0")
    return found


@_reads("share")
def share(given: Any) -> float:
    """Read a share above 0: ``0.2`` or ``20%``; above 1 only ``2000%``, because ``20`` may mean 20 %."""
    found = positive(given)
    if found > 1 and not str(given).strip().endswith("%"):
        raise ValueError(f"a share above 1 is written as a percentage: {found:g}% or {found * 100:g}%")
    return found


def share_text(value: float) -> float | str:
    """A share as `share` reads it."""
    return value if value <= 1 else f"{value * 100!r}%"


@_reads("1e-9 to 0.5")
def error_rate(given: Any) -> float:
    """Read an error rate: ``1e-5`` or ``1%``."""
    if not 1e-9 <= (rate := number(given)) <= 0.5:
        raise ValueError("an error rate must be between 1e-9 and 0.5")
    return rate


def whole(least: int, most: int | None = None) -> Reader:
    """Make a reader of whole numbers within bounds."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    @_reads("count" if most is None else f"{least} to {most}")
    def read(given: Any) -> int:
        is_whole = not isinstance(given, bool | float) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", str(given))
        if not is_whole or int(given) < least or (most is not None and int(given) > most):
            raise ValueError(f"it must be a whole number {bounds}")
        return int(given)

    return read


@_reads(f"power of two, up to {MAX_SHARDS}")
def shard_count(given: Any) -> int:
    """Read a number of shards."""
    if (count := number(given)) not in {1 << power for power in range(MAX_SHARDS.bit_length())}:
        raise ValueError(f"the number of shards must be a power of two from 1 to {MAX_SHARDS}")
    return int(count)


@_reads("list of numbers")
def shard_numbers(given: Any) -> tuple[int, ...]:
    """Read the numbers of shards: a list."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise ValueError("it must name at least one shard, such as [0, 1]; leave it out to serve all")
    return tuple(whole(0, MAX_SHARDS - 1)(each) for each in given)


@_reads("size")
def size(given: Any) -> float:
    """Read a size such as ``470MB``; without a unit it is in bytes."""
    found = re.fullmatch(rf"\s*({_NUMBER})\s*([kMGT]?B)?\s*", str(given), re.IGNORECASE)
    if found is None:
        raise ValueError("a size is a number and one of B, kB, MB, GB and TB, such as 470MB")
    return positive(number(found[1]) * _SIZES[(found[2] or "B").upper()])


# -- durations -----------------------------------------------------------------------------------------


def seconds(given: Any) -> float:
    """Read a duration that is a number."""
    if not 0 <= (found := number(given)) < math.inf:
        raise ValueError("it must be a number of seconds, 0 or more")
    return found


@_reads("duration")
def duration(given: Any) -> timedelta:
    """Read a duration such as ``7d``."""
    if isinstance(given, timedelta) and given >= timedelta(0):
        return given
    found = re.fullmatch(rf"\s*(?:0|({_NUMBER})\s*(ms|s|min|h|d))\s*", str(given))
    try:
        if found is not None and not isinstance(given, bool):
            return timedelta(seconds=float(found[1] or 0) * _DURATIONS[found[2] or "s"])
    except (ValueError, OverflowError):
        pass
    raise ValueError("a duration is 0, or a number and one of ms, s, min, h and d, such as 7d")


def duration_text(given: timedelta) -> str:
    """A duration as it is written, in the largest unit that divides it."""
    for unit, seconds in reversed(_DURATIONS.items()):
        if given and not given % timedelta(seconds=seconds):
            return f"{given // timedelta(seconds=seconds)}{unit}"
    return f"{given.total_seconds():.6f}s" if given else "0"


@_reads("duration")
def longer_than_0(given: Any) -> timedelta:
    """Read a duration above 0."""
    found: timedelta = duration(given)
    if not found:
        raise ValueError("it must be longer than 0")
    return found


@_reads("duration")
def resolution(given: Any) -> timedelta:
    """Read a duration of one or more whole microseconds, no longer than the calendar."""
    tick: timedelta = duration(given)
    if not timedelta(microseconds=1) <= tick <= datetime.max - datetime.min:
        raise ValueError("a resolution must be from a microsecond to 3652058d, such as 1s, 1min or 1h")
    found = re.fullmatch(rf"\s*({_NUMBER})\s*(ms|s|min|h|d)\s*", str(given))
    if found is not None and Decimal(found[1]) * int(_DURATIONS[found[2]] * 1000) * 1000 % 1:
        raise ValueError("a resolution must be whole microseconds, such as 0.5s, 1min or 1h")
    return tick


# -- what features are kept for, and how ---------------------------------------------------------------


@_reads("`auto`, `noise 0.1`, `error 1%` or `470MB`")
def target(given: Any) -> Target:
    """Read what a feature is kept for; the error of a count may be any number."""
    if isinstance(given, Target):
        return given
    words = str(given).split()
    if words == [AUTO]:
        return Target(AUTO)
    if len(words) > 1 and words[0] in (NOISE, ERROR):
        amount = "".join(words[1:])
        if not 0 <= (found := number(amount)) < math.inf:
            raise ValueError("it must be a number of at least 0")
        return Target(words[0], found, amount.endswith("%"))
    if re.fullmatch(rf"\s*{_NUMBER}\s*[kMGT]?B\s*", str(given), re.IGNORECASE):
        return Target(MEMORY, size(given))
    raise ValueError("a target is auto, or such as `noise 0.1`, `error 1%` or `470MB`")


@_reads(target.form)
def target_of_sets(given: Any) -> Target:
    """Read what Arrays and Sets are kept for."""
    found: Target = target(given)
    if found.measure != AUTO:
        (error_rate if found.measure == ERROR else positive)(found.amount)
    return found


@_reads("`{top: 900}`, `{file: PATH}` or a list")
def kept_values(given: Any) -> KeptValues:
    """Read which values are kept."""
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


@_reads("`0.01` or `64 bins`")
def rounding(given: Any) -> Binning:
    """Read how numbers are rounded: to a step, or into bins."""
    if (found := re.fullmatch(r"\s*([0-9]{1,9})\s+bins\s*", str(given))) is not None:
        return Quantiles(int(found[1]))
    try:
        return Precision(float(given))
    except (TypeError, ValueError) as error:
        raise ValueError("it must be a step above 0, such as 0.01, or such as `64 bins`") from error


@_reads("names")
def feature_names(given: Any) -> tuple[str, ...]:
    """Read names of features: a list, or a text with commas."""
    names = given if isinstance(given, list | tuple) else str(given).split(",")
    found = tuple(str(name).strip() for name in names)
    if not found or not all(found) or len({*found}) < len(found):
        raise ValueError("it must be names of features, each once, such as [viewed, liked]")
    return found


def one_of(*names: str) -> Reader:
    """Make a reader that takes some names."""

    @_reads(", ".join(f"`{name}`" for name in names))
    def read(given: Any) -> str:
        if given not in names:
            raise ValueError(f"it must be one of {nearest_first(str(given), names)}")
        return str(given)

    return read


structure: Final = one_of(AUTO, *registry.tag_names())
clusters: Final = whole(2, MAX_CLUSTERS)


def from_yaml(given: Any) -> Any:
    """The content of a text that is YAML; other values are returned."""
    try:
        return yaml.safe_load(given) if isinstance(given, str) else given
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error


# -- lists of names in messages ------------------------------------------------------------------------


def nearest_first(given: str, names: Iterable[str], words: Mapping[str, Iterable[str]] | None = None) -> str:
    """Names for a message, those first that are most like what was given.

    ``words`` are further words that may be meant by a name.
    """

    def likeness(name: str) -> float:
        known = [name, *(words or {}).get(name, ())]
        return max(difflib.SequenceMatcher(None, given, word).ratio() for word in known)

    return ", ".join(sorted(names, key=lambda name: (-likeness(name), name)))


def listed(names: Iterable[str]) -> str:
    """Names in order, for messages."""
    return ", ".join(sorted(names))
