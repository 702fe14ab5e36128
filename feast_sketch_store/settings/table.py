"""The table of settings: each option of the store and each tag once, with its reader, default and meaning.

What an option or tag may be, the errors about it, and the tables of ``docs/configuration.md`` come from here.
An option with parts, such as ``ttl``, is a mapping; a tag is the same as text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from feast_sketch_store.rows.codecs import (
    BACKING,
    BINNED,
    CATEGORICAL,
    COUNTS,
    EXACT,
    LIST,
    MEMBERSHIP,
    SCORE,
)
from feast_sketch_store.settings import values
from feast_sketch_store.settings.values import KeptValues, Reader, Target, nearest_first
from feast_sketch_store.storage.buckets import check_url, is_url
from feast_sketch_store.structures.goals import AUTO
from feast_sketch_store.structures.static import STATIC

TAG_PREFIX: Final = "sketch."

STORE: Final = "store"
VIEW: Final = "view"
FEATURE: Final = "feature"

DEFAULT_PATH: Final = "data/sketch"
DEFAULT_CODECS: Final = (AUTO, EXACT)
FAIL: Final = "fail"
MISSING_FEATURES: Final = "missing"
JOB: Final = "job"

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Ttl:
    """Whether reads hide rows that are older than their view's ttl, and how long seals keep these."""

    expire: bool = False
    keep: timedelta = timedelta(days=7)


@dataclass(frozen=True)
class Backing:
    """The options of another online store, what a read does while it cannot be reached, and whether a
    teardown tears it down, too."""

    store: Mapping[str, Any]
    on_error: str = FAIL
    owned: bool = False


@dataclass(frozen=True)
class Sharding:
    """The number of shards of a new view, and the shards that this process serves; None for all."""

    count: int = 1
    serve: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Refresh:
    """How old answers may be, and the age of the last look from which on a view is not ready."""

    interval: timedelta = timedelta(seconds=1)
    max_staleness: timedelta | None = None

    @property
    def interval_seconds(self) -> float:
        """The interval in seconds."""
        return self.interval.total_seconds()

    @property
    def max_staleness_seconds(self) -> float | None:
        """The age in seconds; None for any."""
        return None if self.max_staleness is None else self.max_staleness.total_seconds()


@dataclass(frozen=True)
class Compaction:
    """Whether only jobs seal, or else from which share and number of unsealed rows on a write does."""

    by_job: bool = False
    share: float = 0.25
    min_rows: int = 1_000


@dataclass(frozen=True)
class Advanced:
    """Error rates of presence and scalars, and the most values with which a feature may be in a filter."""

    presence_error: float = 1e-5
    scalar_error: float = 1e-5
    max_vocabulary: int = 1_000_000


@dataclass(frozen=True)
class ListItems:
    """The tick of a list's times, and how many items a list keeps; None for all."""

    resolution: timedelta = timedelta(seconds=1)
    limit: int | None = None


@dataclass(frozen=True)
class Score:
    """How a score is computed.

    Parameters
    ----------
    of : names of other features of the view.
    weights : the path of a JSON file, relative to the feature repository.
    bits : the step is chosen so that the sealed rows have about ``2**bits`` scores at most.
    """

    of: tuple[str, ...] = ()
    weights: str = ""
    bits: int = 8


class Part(NamedTuple):
    """A part of a setting that is a mapping."""

    name: str
    read: Reader
    form: str
    default: str
    help: str
    places: tuple[str, ...] = (STORE,)


@dataclass(frozen=True)
class Setting:
    """An option of the store, a tag, or both.

    Parameters
    ----------
    name : of the option; a tag has the prefix `TAG_PREFIX`.
    form : how it is written, for the reference page.
    default : what holds where it is not set.
    default_text : the same, for the reference page.
    places : where it may be set.
    help : what it means, in Markdown.
    read, read_above : read it, if it has no parts.
    parts : of a mapping.
    kind : the dataclass that has the parts.
    first : the part that may be written in place of the mapping.
    """

    name: str
    form: str
    default: Any
    default_text: str
    places: tuple[str, ...]
    help: str
    read: Reader = values.text
    read_above: Reader | None = None  # reads it as an option or a tag of a view, if that differs
    parts: tuple[Part, ...] = ()
    kind: Callable[..., Any] | None = None
    first: str = ""
    words: Mapping[str, Any] = field(default_factory=dict)  # texts that stand for a whole value

    def value(self, given: Any, place: str, base: Any = None) -> Any:
        """Read the setting.

        Parameters
        ----------
        base : has the parts that are not given; by default those of the default.

        Raises
        ------
        ValueError : it cannot work; the message does not name the setting.
        """
        if self.kind is None:
            return (self.read_above if self.read_above and place != FEATURE else self.read)(given)
        if isinstance(self.kind, type) and isinstance(given, self.kind):
            return given
        if isinstance(given, str) and given in self.words:
            return self.words[given]
        readers = {part.name: part.read for part in self.parts if place in part.places}
        found = values.parts(readers, self.first)(given)
        base = self.default if base is None else base
        if base is None and (first := self.parts[0].name) not in found:
            raise ValueError(f"it needs the part {first!r}")
        return self.kind(**found) if base is None else replace(base, **found)


def _path(given: Any) -> str:
    """Read the folder or URL of the store."""
    path = values.text(given)
    if is_url(path):
        try:
            check_url(path)
        except ValueError as error:
            raise ValueError(str(error).removeprefix("path: ")) from error
    return path


def _other_store(given: Any) -> dict[str, Any]:
    """Read the options of another online store."""
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str) or _is_own(given["type"]):
        raise ValueError("it needs the type of another online store, such as {type: redis}")
    return dict(given)


def _is_own(kind: str) -> bool:
    return kind == "sketch" or kind.endswith("SketchOnlineStore")


def _texts(given: Any) -> dict[str, Any]:
    """Read a mapping of names to values."""
    if not isinstance(given, Mapping):
        raise ValueError("it must be a mapping of names to values")  # noqa: TRY004
    return {str(name): value for name, value in given.items()}


_EVERYWHERE: Final = (STORE, VIEW, FEATURE)
_ABOVE: Final = (STORE, VIEW)

SETTINGS: Final = (
    Setting(
        "path",
        "folder or URL",
        DEFAULT_PATH,
        "`data/sketch`",
        (STORE,),
        "where the files are: relative to the feature repository or absolute, on a local file system; or "
        "[in a bucket](object_stores.md), `s3://bucket/folder` or `az://container/folder`",
        _path,
    ),
    Setting(
        "storage_options",
        "mapping",
        MappingProxyType({}),
        "none",
        (STORE,),
        "how the object store of a URL is reached, see "
        "[its options](object_stores.md#credentials-and-options)",
        _texts,
    ),
    Setting(
        "cache_path",
        "folder",
        None,
        "none",
        (STORE,),
        "local folder into which one process of a host fetches sealed rows from a bucket, for all to map; "
        "without it each process fetches them into its own memory",
    ),
    Setting(
        "read_only",
        "boolean",
        False,
        "false",
        (STORE,),
        "whether this process is a replica, which only reads: it needs no other permission, never seals, and "
        "refuses writes, `feast apply` and teardown",
        values.flag,
    ),
    Setting(
        "target",
        "`auto`, `noise 0.1`, `error 1%` or `470MB`",
        Target(AUTO),
        "`auto`",
        _EVERYWHERE,
        "what Arrays and Sets are kept for: wrong values for each right one that a read shows; the chance "
        "that a value which a row lacks reads as its element; or the bytes that a feature may take, with its "
        "vocabulary and index. `auto` is `noise 0.1`. See "
        "[What an Array or Set is kept for](#what-an-array-or-set-is-kept-for). As a tag of a scalar "
        "feature: "
        "`error 0.1%`, its own `scalar_error`; of [counts](counts.md): `error 2` or `error 10%`, how far a "
        "sealed count may be off",
        values.target,
        values.target_of_sets,
    ),
    Setting(
        "structure",
        "`auto`, `bloom`, `weighted_bloom`, `learned_bloom`, `sandwiched_bloom`, `sets`",
        AUTO,
        "`auto`",
        _EVERYWHERE,
        "how Arrays and Sets are kept",
        values.structure,
    ),
    Setting(
        "clusters",
        "2 to 256",
        None,
        "16, but none of `weighted_bloom`,",
        (VIEW, FEATURE),
        "clusters of entities for `weighted_bloom`, `learned_bloom` and `sandwiched_bloom`. Features of a "
        "view "
        "share the clusters of the one that has the most",
        values.clusters,
    ),
    Setting(
        "vocabulary",
        "`{top: 900}`, `{file: PATH}` or a list",
        None,
        "all values",
        _EVERYWHERE,
        "which values of Arrays and Sets are kept, see [below](#what-an-array-or-set-is-kept-for)",
        values.kept_values,
    ),
    Setting(
        "default_codec",
        "`auto`, `exact`",
        AUTO,
        "`auto`",
        _ABOVE,
        "how a feature without a codec is kept, see [Types](#types)",
        values.one_of(*DEFAULT_CODECS),
    ),
    Setting(
        "ttl",
        "mapping",
        Ttl(),
        "",
        _ABOVE,
        "see [Expired rows](#expired-rows)",
        parts=(
            Part(
                "expire",
                values.flag,
                "boolean",
                "false",
                "whether reads withhold rows that are older than their view's `ttl`. If false, rows stay "
                "until "
                "they are replaced, as in Feast's other stores",
            ),
            Part(
                "keep",
                values.duration,
                "duration",
                "`7d`",
                "how long seals keep rows that have expired",
                _ABOVE,
            ),
        ),
        kind=Ttl,
    ),
    Setting(
        "backing_store",
        "mapping",
        None,
        "none",
        (STORE,),
        "another online store of Feast, which keeps [what a sketch is not made for](backing_store.md)",
        parts=(
            Part("store", _other_store, "mapping", "", "its options, `type` among them"),
            Part(
                "on_error",
                values.one_of(FAIL, MISSING_FEATURES),
                "`fail`, `missing`",
                "`fail`",
                "what a read does while it cannot be reached: fail, or answer with its features missing",
            ),
            Part(
                "owned",
                values.flag,
                "boolean",
                "false",
                "whether a teardown tears it down, too, which removes everything of the project there",
            ),
        ),
        kind=Backing,
    ),
    Setting(
        "shards",
        "count, or mapping",
        Sharding(),
        "",
        _ABOVE,
        "see [Shards](scaling.md#divide-a-view-into-shards); `shards: 16` is `shards: {count: 16}`",
        parts=(
            Part(
                "count",
                values.shard_count,
                "power of two, up to 4096",
                "1",
                "number of parts that a view's rows are divided into, by the hash of their entity; counts "
                "when the view is created",
                _ABOVE,
            ),
            Part(
                "serve",
                values.shard_numbers,
                "list of numbers",
                "all",
                "the shards that this process serves, such as `[0, 1]`; reads of entities of other shards "
                "fail. Views of one shard are served whole",
            ),
        ),
        kind=Sharding,
        first="count",
    ),
    Setting(
        "refresh",
        "duration, or mapping",
        Refresh(),
        "",
        (STORE,),
        "`refresh: 1s` is `refresh: {interval: 1s}`",
        parts=(
            Part(
                "interval",
                values.duration,
                "duration",
                "`1s`",
                "longest time until a read sees what another process wrote; `0` looks at every read",
            ),
            Part(
                "max_staleness",
                values.longer_than_0,
                "duration",
                "none",
                "after this time without an answer from the storage, a view counts as not ready, see "
                "[Replicas](object_stores.md#replicas-serve-from-many-machines); it still answers reads",
            ),
        ),
        kind=Refresh,
        first="interval",
    ),
    Setting(
        "compaction",
        "`auto`, `job`, or mapping",
        Compaction(),
        "`auto`",
        (STORE,),
        "who seals. `auto`: a write, once the limits below are exceeded. `job`: only "
        "[`feast-sketch seal`](operations.md#when-to-seal-and-vacuum); writes only append. Set `job` for "
        "fills "
        "by several processes, and for a store in a bucket that several machines write",
        parts=(
            Part(
                "share",
                values.positive,
                "share",
                "0.25",
                "a write seals when the unsealed rows exceed this share of the sealed rows, by number or by "
                "bytes of memory, and there are more than `min_rows` of them",
            ),
            Part(
                "min_rows",
                values.whole(0),
                "count",
                "1000",
                "while there are at most this many unsealed rows, no write seals",
            ),
        ),
        kind=Compaction,
        words={AUTO: Compaction(), JOB: Compaction(by_job=True)},
    ),
    Setting(
        "advanced",
        "mapping",
        Advanced(),
        "",
        _ABOVE,
        "seldom set",
        parts=(
            Part(
                "presence_error",
                values.error_rate,
                "1e-9 to 0.5",
                "1e-5",
                "chance that an entity which was never written reads as a row",
                _ABOVE,
            ),
            Part(
                "scalar_error",
                values.error_rate,
                "1e-9 to 0.5",
                "1e-5",
                "chance that a scalar reads as another value of its vocabulary",
                _ABOVE,
            ),
            Part(
                "max_vocabulary",
                values.whole(1),
                "count",
                "1,000,000",
                "different values with which a feature may be in a filter, because a read asks the filter "
                "about each of them. With more, a seal keeps the feature in sets or columns",
                _ABOVE,
            ),
        ),
        kind=Advanced,
    ),
    Setting(
        "codec",
        "`membership`, `categorical`, `static`, `binned`, `exact`, `list`, `counts`, "
        "[`backing`](backing_store.md), [`score`](#scores)",
        None,
        "by the type",
        (FEATURE,),
        "what a read returns of the feature, see [Types](#types)",
        values.one_of(MEMBERSHIP, CATEGORICAL, BINNED, EXACT, BACKING, LIST, COUNTS, STATIC, SCORE),
    ),
    Setting(
        "list",
        "mapping",
        ListItems(),
        "",
        (FEATURE,),
        "of a [list](lists.md)",
        parts=(
            Part(
                "resolution",
                values.resolution,
                "duration",
                "`1s`",
                "the tick: a list has a value at most once in a tick, and sealed rows keep the tick of an "
                "item",
                (FEATURE,),
            ),
            Part(
                "limit",
                values.whole(1),
                "count",
                "all",
                "how many items a read returns, the newest",
                (FEATURE,),
            ),
        ),
        kind=ListItems,
    ),
    Setting(
        "of",
        "name of a feature",
        None,
        "none",
        (FEATURE,),
        "on an Array of timestamps: the [list](lists.md) whose times it gives; on an Array of integers: the "
        "feature whose [counts](counts.md) it has",
    ),
    Setting(
        "score",
        "mapping",
        Score(),
        "",
        (FEATURE,),
        "of a [score](#scores)",
        parts=(
            Part("of", values.feature_names, "names", "", "the Sets whose values have weights", (FEATURE,)),
            Part(
                "weights",
                values.text,
                "path",
                "",
                "the JSON file with the weights, relative to the repository",
                (FEATURE,),
            ),
            Part("bits", values.whole(1, values.MAX_SCORE_BITS), "1 to 16", "8", "of a score", (FEATURE,)),
        ),
        kind=Score,
    ),
    Setting(
        "round",
        "`0.01` or `64 bins`",
        None,
        "`256 bins`",
        (FEATURE,),
        "of a [binned number](#binned-numbers): the step to round to, or the number of quantile bins, 1 to "
        "65,536",
        values.rounding,
    ),
)

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def names_of(place: str) -> list[str]:
    """The names of the settings of a place, in the order of the table."""
    return [setting.name for setting in SETTINGS if place in setting.places]


def default_of(name: str) -> Any:
    """What holds where a setting is not set."""
    return _BY_NAME[name].default


def read_options(given: Mapping[str, Any], where: str = "online_store") -> dict[str, Any]:
    """Read the options of a store; the result has only those that are given.

    Parameters
    ----------
    given : as YAML gives them, or as this function has returned them; ``type`` is passed over.
    where : begins messages.

    Raises
    ------
    ValueError : options are unknown or cannot work; all of them are named.
    """
    found, problems = dict[str, Any](), list[str]()
    for name, value in given.items():
        if name == "type":
            continue
        if name not in names_of(STORE):
            problems.append(
                f"{where} has no option {name!r}; options, nearest first: {_nearest(name, STORE)}"
            )
            continue
        setting = _BY_NAME[name]
        if value is None and setting.default is None:
            found[name] = None
            continue
        try:
            _check_variables(value)
            found[name] = setting.value(value, STORE)
        except ValueError as error:
            problems.append(f"{where}: {name}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _nearest(given: Any, place: str, prefix: str = "") -> str:
    """The names of the settings of a place, those first that are most like what was given."""
    words = {
        prefix + setting.name: [
            setting.name,
            *re.findall("[a-z_]{3,}", setting.form),
            *(part.name for part in setting.parts),
        ]
        for setting in SETTINGS
        if place in setting.places
    }
    return nearest_first(str(given), words, words)


def _check_variables(given: Any) -> None:
    """Refuse an environment variable that is not set, which Feast leaves as it is written."""
    if isinstance(given, str):
        if (found := _VARIABLE.search(given)) is not None:
            raise ValueError(f"the environment variable {found[1]} is not set")
    elif isinstance(given, Mapping):
        for value in given.values():
            _check_variables(value)
    elif isinstance(given, list | tuple):
        for value in given:
            _check_variables(value)


def read_tags(tags: Mapping[str, str] | None, place: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """Check the tags of a view or feature that are the store's.

    Returns
    -------
    The texts of the tags that can work, by the names of the settings, for `tag_value`; and all problems.
    """
    found, problems = dict[str, Any](), list[str]()
    for tag, value in (tags or {}).items():
        if not tag.startswith(TAG_PREFIX):
            continue
        name = tag.removeprefix(TAG_PREFIX)
        if name not in names_of(place):
            known = _nearest(name, place, TAG_PREFIX)
            problems.append(f"{where} has the unknown tag {tag!r}; tags of a {place}, nearest first: {known}")
            continue
        try:
            _check_variables(value)
            _BY_NAME[name].value(value, place)
            found[name] = value
        except ValueError as error:
            problems.append(f"{where} has the tag {tag}={value!r}: {error}")
    return found, problems


def tag_value(name: str, tags: Mapping[str, Any], place: str, base: Any = None) -> Any:
    """The value of a tag that `read_tags` accepted; ``base``, or the default, if it is not there.

    Parameters
    ----------
    base : what holds without the tag; it also has the parts that the tag does not give.
    """
    if name not in tags:
        return _BY_NAME[name].default if base is None else base
    return _BY_NAME[name].value(tags[name], place, base)


def read_parts(name: str, tags: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The parts that a tag gives; none if it is not there."""
    if name not in tags:
        return {}
    setting = _BY_NAME[name]
    readers = {part.name: part.read for part in setting.parts if place in part.places}
    found: dict[str, Any] = values.parts(readers, setting.first)(tags[name])
    return found


def plain(value: Any) -> Any:
    """A value of a setting as YAML, which its reader takes."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds()!r}s"
    if isinstance(value, Target):
        return str(value)
    if isinstance(value, KeptValues):
        if value.values is not None:
            return list(value.values)
        return {"file": value.file} if value.top is None else {"top": value.top}
    if isinstance(value, Compaction):
        return JOB if value.by_job else {"share": value.share, "min_rows": value.min_rows}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return dict(value) if isinstance(value, MappingProxyType) else value


# -- the reference page ------------------------------------------------------------------------------


def option_rows() -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table of options: name, form, default, meaning."""
    for setting in SETTINGS:
        if STORE in setting.places:
            yield from _rows(setting, STORE, setting.name)


def tag_rows() -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table of tags: name, where it may be set, form, meaning."""
    for setting in SETTINGS:
        places = [place for place in (VIEW, FEATURE) if place in setting.places]
        if not places:
            continue
        name, on = TAG_PREFIX + setting.name, ", ".join(places)
        if STORE in setting.places:
            parts = [part.name for part in setting.parts if VIEW in part.places]
            form = f"`{{{', '.join(f'{part}: ...' for part in parts)}}}`" if parts else setting.form
            if setting.first:
                form = "count"
            yield f"`{name}`", on, form, "as the option"
        else:
            for title, form, default, meaning in _rows(setting, FEATURE, name):
                yield title, on, form, meaning + (f"; {default} by default" if default else "")


def _rows(setting: Setting, place: str, name: str) -> Iterator[tuple[str, str, str, str]]:
    yield f"`{name}`", setting.form, setting.default_text, setting.help
    for part in setting.parts:
        if place in part.places:
            yield f"`{name}: {{{part.name}}}`", part.form, part.default, part.help


def markdown(kind: str) -> str:
    """The table of ``options`` or ``tags`` of the reference page."""
    heads = {
        "options": ("option", "written as", "default", "meaning"),
        "tags": ("tag", "on", "written as", "meaning"),
    }
    rows = {"options": option_rows, "tags": tag_rows}[kind]()
    lines = [heads[kind], ("---",) * 4, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
