"""The table of settings: each option of the store and each tag once, with its reader, default and meaning.

What an option or tag may be, the errors about it, and the tables of ``docs/reference/settings.md`` come
from here. An option with parts, such as ``ttl``, is a mapping, and each part a field of a dataclass; a tag
is the same as text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

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
from feast_sketch_store.settings.values import (
    KeptValues,
    Reader,
    Target,
    duration_text,
    nearest_first,
    share_text,
)
from feast_sketch_store.structures.goals import AUTO
from feast_sketch_store.structures.scalars import STATIC

TAG_PREFIX: Final = "sketch."
CODEC_TAG: Final = TAG_PREFIX + "codec"

STORE: Final = "store"
VIEW: Final = "view"
FEATURE: Final = "feature"
_ABOVE: Final = (STORE, VIEW)
_EVERYWHERE: Final = (STORE, VIEW, FEATURE)

DEFAULT_PATH: Final = "data/sketch"
FAIL: Final = "fail"
MISSING_FEATURES: Final = "missing"
JOB: Final = "job"

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Setting:
    """An option of the store, a tag, or both; or a part of one, which is a field of a dataclass."""

    name: str  # of the option; a tag has the prefix `TAG_PREFIX`
    read: Reader | type  # its reader, or the dataclass that has its parts
    default: Any  # what holds where it is not set
    help: str  # what it means, in Markdown
    scopes: Sequence[str] = (STORE,)  # where it may be set
    shown: str | None = None  # the default on the reference page; None for the default itself
    form: str = ""  # how it is written, if its reader does not say
    first: str = ""  # the part that may be written in place of a mapping
    words: Mapping[str, Any] = field(default_factory=dict)  # texts that stand for a whole mapping
    of_feature: Reader | None = None  # its reader as a tag of a feature, if that is another one

    def parts(self, scope: str) -> "dict[str, Setting]":
        """The parts that may be set in a scope, by name; none if it is no mapping."""
        found = {each.name: each.metadata["part"] for each in self._fields() if "part" in each.metadata}
        return {name: part for name, part in found.items() if scope in part.scopes}

    def _fields(self) -> Sequence[Any]:
        return fields(self.read) if is_dataclass(self.read) else ()

    def option(self, given: Any) -> Any:
        """Read the setting as an option of the store.

        Raises ValueError: it cannot work; the message does not name the setting.
        """
        if isinstance(self.read, Reader):
            return None if given is None and self.default is None else self.read(given)
        if isinstance(given, self.read) or (given is None and self.default is None):
            return given
        if isinstance(given, str) and given in self.words:
            return self.words[given]
        found = self._given_parts(given, STORE)
        for each in self._fields():
            if each.default is MISSING and each.name not in found:
                raise ValueError(f"it needs the part {each.name!r}")
        return self.read(**found)

    def tag(self, given: Any, scope: str) -> Any:
        """Read the setting as a tag: its value, or a dict with those parts that are given.

        Raises ValueError: it cannot work; the message does not name the setting.
        """
        if isinstance(self.read, Reader):
            return (self.of_feature if self.of_feature and scope == FEATURE else self.read)(given)
        return self._given_parts(given, scope)

    def _given_parts(self, given: Any, scope: str) -> dict[str, Any]:
        known, content = self.parts(scope), values.from_yaml(given)
        if not isinstance(content, Mapping):
            if not self.first:
                forms = " or ".join((*self.words, "a mapping"))
                raise ValueError(f"it must be {forms}, such as {{{next(iter(known))}: ...}}")
            content = {self.first: given}
        found = {}
        for name, value in content.items():
            if name not in known:
                raise ValueError(f"it has no part {name!r}; parts: {nearest_first(str(name), known)}")
            try:
                found[name] = known[name].tag(value, scope)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return found


# -- settings with parts -------------------------------------------------------------------------------


def part(
    read: Reader, default: Any, help_text: str, scopes: Sequence[str] = (STORE,), shown: str | None = None
) -> Any:
    """A field of a dataclass, which is a setting itself; its name is that of the field."""
    return field(default=default, metadata={"part": Setting("", read, default, help_text, scopes, shown)})


@dataclass(frozen=True)
class Ttl:
    """Whether reads hide rows that are older than their view's ttl, and how long seals keep these."""

    expire: bool = part(
        values.flag,
        False,
        "whether reads hide rows older than their view's `ttl`. If false, rows stay until they are "
        "replaced, as in Feast's other stores",
    )
    keep: timedelta = part(
        values.duration, timedelta(days=7), "how long seals keep rows that have expired", _ABOVE
    )


@dataclass(frozen=True)
class Backing:
    """The options of another online store, what a read does while it cannot be reached, and whether a
    teardown tears it down, too."""

    store: Mapping[str, Any] = part(values.other_store, MISSING, "its options, `type` among them", shown="")
    on_error: str = part(
        values.one_of(FAIL, MISSING_FEATURES),
        FAIL,
        "what a read does while that store cannot be reached: fail, or answer without its features",
    )
    owned: bool = part(
        values.flag,
        False,
        "whether a teardown tears that store down, too, which removes everything of the project there",
    )


@dataclass(frozen=True)
class Sharding:
    """The number of shards of a new view, and the shards that this process serves; None for all."""

    count: int = part(
        values.shard_count,
        1,
        "number of parts into which a view's rows are divided, by the hash of their entity; read only when "
        "the view is created",
        _ABOVE,
    )
    serve: tuple[int, ...] | None = part(
        values.shard_numbers,
        None,
        "the shards that this process serves, such as `[0, 1]`; reads of entities of other shards fail. "
        "Views of one shard are served whole",
        shown="all",
    )


@dataclass(frozen=True)
class Refresh:
    """How old answers may be, and the age of the last poll at which a view is no longer ready."""

    interval: timedelta = part(
        values.duration,
        timedelta(seconds=1),
        "longest time until a read sees what another process wrote; `0` polls at every read",
    )
    max_staleness: timedelta | None = part(
        values.longer_than_0,
        None,
        "after this time without an answer from the storage, a view is not ready, see "
        "[Replicas](../how_to/object_stores.md#replicas-serve-from-many-machines); it still answers reads",
    )

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
    share: float = part(
        values.share,
        0.25,
        "a write seals when the unsealed rows exceed this share of the sealed rows, by number or by bytes of "
        "memory, and there are more than `min_rows` of them",
    )
    min_rows: int = part(
        values.whole(0), 1_000, "while there are at most this many unsealed rows, no write seals"
    )


@dataclass(frozen=True)
class Gate:
    """What a new version of a view must meet to be published; None for no condition."""

    entities: int | None = part(values.whole(1), None, "at least this many entities", _ABOVE)
    change: float | None = part(
        values.share,
        None,
        "largest change from the version being served, such as `20%`: of the number of entities, and of the "
        "facts and the different values of each feature",
        _ABOVE,
    )
    check: str | None = part(
        values.import_path,
        None,
        "a function of yours, see [Gate](../how_to/operate.md#check-a-version-before-it-is-published)",
        _ABOVE,
    )

    @property
    def is_set(self) -> bool:
        """Whether there is a condition."""
        return (self.entities, self.change, self.check) != (None, None, None)


@dataclass(frozen=True)
class Advanced:
    """Error rates of presence and scalars, and the most values with which a feature may be in a filter."""

    presence_error: float = part(
        values.error_rate,
        1e-5,
        "chance that an entity which was never written reads as a row",
        _ABOVE,
        "1e-5",
    )
    scalar_error: float = part(
        values.error_rate,
        1e-5,
        "chance that a scalar reads as another value of its vocabulary",
        _ABOVE,
        "1e-5",
    )
    max_vocabulary: int = part(
        values.whole(1),
        1_000_000,
        "most values with which a feature may be in a filter, because a read tests each of them. With more, "
        "a seal keeps the feature in sets or columns",
        _ABOVE,
    )


@dataclass(frozen=True)
class ListItems:
    """The tick of a list's times, and how many items a list keeps; None for all."""

    resolution: timedelta = part(
        values.resolution,
        timedelta(seconds=1),
        "the tick: a list has a value at most once in a tick, and sealed rows keep the tick of an item",
        (FEATURE,),
    )
    limit: int | None = part(
        values.whole(1), None, "how many items a read returns, the newest", (FEATURE,), "all"
    )


@dataclass(frozen=True)
class Score:
    """How a score is computed."""

    # names of other features of the view
    of: tuple[str, ...] = part(values.feature_names, (), "the Sets whose values have weights", (FEATURE,), "")
    # the path of a JSON file, relative to the feature repository
    weights: str = part(
        values.text, "", "path of the JSON file with the weights, relative to the repository", (FEATURE,)
    )
    # the step is chosen so that the sealed rows have about ``2**bits`` scores at most
    bits: int = part(values.whole(1, values.MAX_SCORE_BITS), 8, "of a score", (FEATURE,))


# -- the table -----------------------------------------------------------------------------------------


SETTINGS: Final = (
    Setting(
        "path",
        values.path,
        DEFAULT_PATH,
        "where the files are: relative to the feature repository or absolute, on a local file system; or "
        "[in a bucket](../how_to/object_stores.md), `s3://bucket/folder`, `az://container/folder` or `gs://bucket/folder`",
    ),
    Setting(
        "storage_options",
        values.mapping,
        MappingProxyType({}),
        "how the object store of a URL is reached, see "
        "[its options](../how_to/object_stores.md#credentials-and-options)",
        shown="none",
    ),
    Setting(
        "cache_path",
        values.text,
        None,
        "local folder into which one process of a host fetches sealed rows from a bucket, for all to map; "
        "without it each process fetches them into its own memory",
        form="folder",
    ),
    Setting(
        "read_only",
        values.flag,
        False,
        "whether this process is a replica, which only reads: it needs only permission to read, never seals, "
        "and refuses writes, `feast apply` and teardown",
    ),
    Setting(
        "target",
        values.target_of_sets,
        Target(AUTO),
        "what Arrays and Sets [are kept for](types.md#what-an-array-or-set-is-kept-for). `noise`: the wrong "
        "values that a read shows for each right one. `error`: the chance that a value which a row lacks "
        "reads as its element. Or the bytes that a feature may take, with its vocabulary and index. `auto` "
        "is `noise 0.1`. As a tag of a scalar feature: `error 0.1%`, its own `scalar_error`; of "
        "[counts](../how_to/counts.md): `error 2` or `error 10%`, how far a sealed count may be off",
        _EVERYWHERE,
        of_feature=values.target,
    ),
    Setting("structure", values.structure, AUTO, "how Arrays and Sets are kept", _EVERYWHERE),
    Setting(
        "clusters",
        values.clusters,
        None,
        "clusters of entities for `weighted_bloom`, `learned_bloom` and `sandwiched_bloom`. Features of a "
        "view share the clusters of the one that has the most",
        (VIEW, FEATURE),
        "16, but none of `weighted_bloom`,",
    ),
    Setting(
        "vocabulary",
        values.kept_values,
        None,
        "which values of Arrays and Sets are kept, see "
        "[A cut vocabulary](types.md#what-an-array-or-set-is-kept-for); of an "
        "[attribute](../how_to/lists.md#attributes-of-items): its values",
        _EVERYWHERE,
        "all values",
    ),
    Setting(
        "default_codec",
        values.one_of(AUTO, EXACT),
        AUTO,
        "how a feature without a codec is kept, see [Types](types.md#types)",
        _ABOVE,
    ),
    Setting("ttl", Ttl, Ttl(), "see [Expired rows](types.md#expired-rows)", _ABOVE),
    Setting(
        "rows",
        values.one_of("replace", "append"),
        "replace",
        "what a row does to the earlier row of its entity: replace it, or append its values to "
        "[sets that grow](../how_to/sets.md). Rows of a view with [lists](../how_to/lists.md) append",
        (VIEW,),
    ),
    Setting(
        "backing_store",
        Backing,
        None,
        "another online store of Feast, for "
        "[features that gain nothing from a sketch](../how_to/backing_store.md)",
    ),
    Setting(
        "shards",
        Sharding,
        Sharding(),
        "see [Shards](../how_to/scale.md#divide-a-view-into-shards); `shards: 16` is `shards: {count: 16}`",
        _ABOVE,
        form="count, or mapping",
        first="count",
    ),
    Setting(
        "refresh",
        Refresh,
        Refresh(),
        "`refresh: 1s` is `refresh: {interval: 1s}`",
        form="duration, or mapping",
        first="interval",
    ),
    Setting(
        "compaction",
        Compaction,
        Compaction(),
        "who seals. `auto`: a write, once the limits below are exceeded. `job`: only "
        "[`feast-sketch seal`](../how_to/operate.md#when-to-seal-and-vacuum); writes only append. Set `job` "
        "for fills by several processes, and for a store in a bucket that several machines write",
        shown="`auto`",
        form="`auto`, `job`, or mapping",
        words={AUTO: Compaction(), JOB: Compaction(by_job=True)},
    ),
    Setting(
        "gate",
        Gate,
        Gate(),
        "what a seal, a rebuild or a fill must meet to be published, see "
        "[Gate](../how_to/operate.md#check-a-version-before-it-is-published)",
        _ABOVE,
        shown="none",
    ),
    Setting("advanced", Advanced, Advanced(), "rarely needed", _ABOVE),
    Setting(
        "codec",
        values.one_of(MEMBERSHIP, CATEGORICAL, STATIC, BINNED, EXACT, LIST, COUNTS, BACKING, SCORE),
        None,
        "what a read returns of the feature, see [Types](types.md#types), "
        "[backing](../how_to/backing_store.md) and [scores](types.md#scores)",
        (FEATURE,),
        "by the type",
    ),
    Setting("list", ListItems, ListItems(), "of a [list](../how_to/lists.md)", (FEATURE,)),
    Setting(
        "of",
        values.text,
        None,
        "on an Array of timestamps: the [list](../how_to/lists.md) whose times it gives; on an Array with "
        "`sketch.vocabulary`: the list of whose items it is an "
        "[attribute](../how_to/lists.md#attributes-of-items); on an Array of Int64: the feature whose "
        "[counts](../how_to/counts.md) it has",
        (FEATURE,),
        form="name of a feature",
    ),
    Setting(
        "ids_of",
        values.text,
        None,
        "on an Array of Int64 or String: the feature to whose "
        "[increments](../how_to/counts.md#counts-that-grow) its ids belong",
        (FEATURE,),
        form="name of a feature",
    ),
    Setting("score", Score, Score(), "of a [score](types.md#scores)", (FEATURE,)),
    Setting(
        "round",
        values.rounding,
        None,
        "of a [binned number](types.md#binned-numbers): the step to round to, or the number of "
        "quantile bins, 1 to 65,536",
        (FEATURE,),
        "`256 bins`",
    ),
)

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def names_of(scope: str) -> list[str]:
    """The names of the settings of a scope, in the order of the table."""
    return [setting.name for setting in SETTINGS if scope in setting.scopes]


# -- options and tags ----------------------------------------------------------------------------------


def read_options(given: Mapping[str, Any], where: str = "online_store") -> dict[str, Any]:
    """Read the options of a store; the result has only those that are given.

    Parameters
    ----------
    given : as YAML gives them, or as this function has returned them; ``type`` is passed over.
    where : begins messages.

    Raises ValueError: options are unknown or cannot work; all of them are named.
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
        try:
            _check_variables(value)
            found[name] = _BY_NAME[name].option(value)
        except ValueError as error:
            problems.append(f"{where}: {name}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return found


def read_tags(tags: Mapping[str, str] | None, scope: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """Read the tags of a view or feature that are the store's.

    Returns by the names of the settings what the tags give, for `settled`; and all problems.
    """
    found, problems = dict[str, Any](), list[str]()
    for tag, value in (tags or {}).items():
        if not tag.startswith(TAG_PREFIX):
            continue
        name = tag.removeprefix(TAG_PREFIX)
        if name not in names_of(scope):
            known = _nearest(name, scope, TAG_PREFIX)
            problems.append(f"{where} has the unknown tag {tag!r}; tags of a {scope}, nearest first: {known}")
            continue
        try:
            _check_variables(value)
            found[name] = _BY_NAME[name].tag(value, scope)
        except ValueError as error:
            problems.append(f"{where} has the tag {tag}={value!r}: {error}")
    return found, problems


def settled(name: str, base: Any, *tags: Mapping[str, Any]) -> Any:
    """The effective value of a setting: a base, changed by tags of `read_tags`; the last ones override."""
    for given in tags:
        if name in given:
            base = replace(base, **given[name]) if isinstance(given[name], dict) else given[name]
    return base


def _nearest(given: Any, scope: str, prefix: str = "") -> str:
    """The names of the settings of a scope, those most like the given one first."""
    words = {
        prefix + setting.name: [
            setting.name,
            *re.findall("[a-z_]{3,}", _form(setting)),
            *setting.parts(scope),
        ]
        for setting in SETTINGS
        if scope in setting.scopes
    }
    return nearest_first(str(given), words, words)


def _check_variables(given: Any) -> None:
    """Refuse an environment variable that is not set, which Feast does not replace."""
    if isinstance(given, str):
        if (found := _VARIABLE.search(given)) is not None:
            raise ValueError(f"the environment variable {found[1]} is not set")
    elif isinstance(given, Mapping | list | tuple):
        for value in given.values() if isinstance(given, Mapping) else given:
            _check_variables(value)


def plain(value: Any) -> Any:
    """A value of a setting as YAML, which its reader takes."""
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, Target):
        return str(value)
    if isinstance(value, KeptValues):
        if value.values is not None:
            return list(value.values)
        return {"file": value.file} if value.top is None else {"top": value.top}
    if isinstance(value, Compaction):
        return JOB if value.by_job else {"share": share_text(value.share), "min_rows": value.min_rows}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        if isinstance(value, Gate) and value.change is not None:
            parts["change"] = share_text(value.change)
        return {name: part for name, part in parts.items() if part is not None}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


# -- the reference page --------------------------------------------------------------------------------


def markdown(kind: str) -> str:
    """The table of ``options`` or ``tags`` of the reference page."""
    heads = {
        "options": ("option", "written as", "default", "meaning"),
        "tags": ("tag", "on", "written as", "meaning"),
    }
    rows = {"options": _option_rows, "tags": _tag_rows}[kind]()
    lines = [heads[kind], ("---",) * 4, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _option_rows() -> Iterator[tuple[str, str, str, str]]:
    for setting in SETTINGS:
        if STORE in setting.scopes:
            yield from _rows(setting, STORE, setting.name)


def _tag_rows() -> Iterator[tuple[str, str, str, str]]:
    for setting in SETTINGS:
        name, on = TAG_PREFIX + setting.name, ", ".join(scope for scope in setting.scopes if scope != STORE)
        if STORE not in setting.scopes:
            for title, form, default, meaning in _rows(setting, FEATURE, name):
                yield title, on, form, meaning + (f"; {default} by default" if default else "")
        elif on:
            parts = "{" + ", ".join(f"{part}: ..." for part in setting.parts(VIEW)) + "}"
            form = setting.first or (f"`{parts}`" if setting.parts(VIEW) else _form(setting))
            yield f"`{name}`", on, form, "as the option"


def _rows(setting: Setting, scope: str, name: str) -> Iterator[tuple[str, str, str, str]]:
    default = "" if is_dataclass(setting.default) and setting.parts(scope) else _shown(setting.default)
    yield f"`{name}`", _form(setting), default if setting.shown is None else setting.shown, setting.help
    for title, part in setting.parts(scope).items():
        default = _shown(part.default) if part.shown is None else part.shown
        yield f"`{name}: {{{title}}}`", _form(part), default, part.help


def _form(setting: Setting) -> str:
    return setting.form or (setting.read.form if isinstance(setting.read, Reader) else "mapping")


def _shown(default: Any) -> str:
    if default is None or isinstance(default, bool):
        return "none" if default is None else str(default).lower()
    if isinstance(default, int | float):
        return f"{default:,}"
    return f"`{plain(default)}`" if default else ""
