"""Settings: the store's options, and the tags of views and features that override them.

A feature's tag beats its view's, which beats ``feature_store.yaml``:

    Field(name="viewed", dtype=Set(String), tags={"sketch.error_rate": "0.001"})
    Field(name="bought", dtype=Set(String), tags={"sketch.vocabulary": "{top: 900}"})
    Field(name="price", dtype=Float64, tags={"sketch.precision": "0.01"})
    FeatureView(..., tags={"sketch.default_codec": "exact"})
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from feast_sketch_store.errors import SettingsError, SketchStoreError, UnsupportedFeatureError, summed_up
from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.rows.binning import Precision, Quantiles
from feast_sketch_store.rows.codecs import (
    BACKING,
    BINNED,
    CATEGORICAL,
    CLUSTER,
    COUNTS,
    EXACT,
    LIST,
    MEMBERSHIP,
    SCORE,
    FeatureCodec,
)
from feast_sketch_store.rows.column_names import clash
from feast_sketch_store.rows.count_log import is_counts_column
from feast_sketch_store.rows.encoding import OWN_COLUMNS
from feast_sketch_store.rows.entity_keys import JoinKeys
from feast_sketch_store.rows.list_log import OPERATION, is_times_column
from feast_sketch_store.structures.goals import (
    DEFAULT_CLUSTERS,
    ERROR_RATE,
    FALSE_PER_READ,
    LEARNED_BLOOM,
    MEMORY,
    NOISE_RATIO,
    SANDWICHED_BLOOM,
    WEIGHTED_BLOOM,
)
from feast_sketch_store.structures.parts import checked
from feast_sketch_store.structures.sizing import AUTO_NOISE_RATIO
from feast_sketch_store.structures.static import STATIC
from feast_sketch_store.view.codec_choice import DEFAULT_CODECS, TAG_PREFIX, choose_codec
from feast_sketch_store.view.computed_settings import (
    CLUSTER_OF,
    SCORE_BITS,
    SCORE_OF,
    SCORE_WEIGHTS,
    Computed,
    computed_codec,
    computed_problems,
    feature_names,
    is_computed_field,
    read_weights,
    score_bits,
)
from feast_sketch_store.view.count_settings import (
    ERROR,
    OF,
    count_codec,
    count_error,
    count_problems,
    is_count_field,
    with_features_of_counts,
)
from feast_sketch_store.view.list_settings import (
    LIMIT,
    RESOLUTION,
    TIMES_OF,
    has_lists,
    is_list_field,
    list_codec,
    list_problems,
)
from feast_sketch_store.view.repairs import OF_VIEW, changed_tags, lines_to_paste, read_field
from feast_sketch_store.view.setting_values import (
    RENAMED_STRUCTURES,
    VocabularySetting,
    byte_count,
    cluster_count,
    duration,
    edges,
    error_rate,
    error_rate_or_auto,
    listed,
    one_of,
    positive_count,
    positive_number,
    resolution,
    structure_name,
    vocabulary_setting,
)
from feast_sketch_store.view.shard_map import check_shard_count

if TYPE_CHECKING:
    from feast.feature_view import FeatureView
    from feast.field import Field

# Options of the store in ``feature_store.yaml``.
DEFAULT_PATH = "data/sketch"
DEFAULT_REFRESH_INTERVAL_SECONDS = 1.0

DEFAULT_EXPIRED_KEPT_FOR = timedelta(days=7)

EXPIRED_KEPT_FOR = "expired_kept_for"

# Former names of options and tags, with their current names.
RENAMED = {"filter": "structure"}


class StoreOptions(Protocol):
    """The options of ``feature_store.yaml`` that a view's settings start from."""

    error_rate: float | Literal["auto"]
    structure: str
    vocabulary: Any
    presence_error_rate: float
    scalar_error_rate: float
    max_vocabulary: int
    default_codec: str
    expire_rows: bool
    expired_kept_for: timedelta
    shards: int

    @property
    def backing_store(self) -> Mapping[str, Any] | None:
        """The options of the backing store; None if there is none."""


@dataclass(frozen=True)
class FeatureSettings:
    """One feature: its codec, its target (see `FeatureBudget`), the largest number of values, which of them
    are kept if not all are, whether it becomes a column once it has many values, whether its codec follows
    from its type alone, whether it is to be in a static function, and its formula if it is computed.
    """

    codec: FeatureCodec
    target: Goal | float
    max_vocabulary: int
    vocabulary: VocabularySetting | None = None
    may_be_column: bool = False
    by_type: bool = False
    is_static: bool = False
    computed: Computed | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether ``max_vocabulary`` does not apply to the feature, whatever its values are."""
        return self.codec.is_bounded or (self.may_be_column and self.codec.binning is None)

    @property
    def is_cut(self) -> bool:
        """Whether some of its values are dropped."""
        return self.vocabulary is not None


@dataclass(frozen=True)
class ViewSettings:
    """One feature view: its name for messages, the error rate of presence, its features, and how long
    its rows live."""

    view: str
    presence_error_rate: float
    features: Mapping[str, FeatureSettings]
    ttl_microseconds: int | None = None
    folder: Path | None = None  # that paths in settings are relative to
    join_keys: JoinKeys | None = None  # None if the view does not say
    expired_kept_microseconds: int = 0  # how long seals keep rows that have expired
    semantics: str = "replace"  # how rows of an entity combine, see `view.semantics`
    num_shards: int = 1

    @property
    def codecs(self) -> list[FeatureCodec]:
        """The codecs of all features, in the view's order."""
        return [feature.codec for feature in self.features.values()]

    @cached_property
    def backed_codecs(self) -> list[FeatureCodec]:
        """The codecs of features whose values another store keeps; called at every write."""
        return [codec for codec in self.codecs if codec.is_backed]

    @property
    def stored_codecs(self) -> list[FeatureCodec]:
        """The codecs of stored features; the others are computed from these."""
        return [codec for codec in self.codecs if not codec.is_derived]

    @property
    def computed(self) -> Set[str]:
        """The features that are computed from others."""
        return {codec.feature for codec in self.codecs if codec.is_computed}

    @property
    def lists_rows(self) -> bool:
        """Whether sealed layers list their rows. Scalars are then columns without a vocabulary."""
        return any(codec.is_exact for codec in self.codecs)

    @property
    def retention_microseconds(self) -> int | None:
        """How long seals keep rows after their event timestamp; None for no limit."""
        if self.ttl_microseconds is None:
            return None
        return self.ttl_microseconds + self.expired_kept_microseconds

    def cut(self, name: str) -> Cut:
        """Which values of a feature are kept; None if all are.

        Raises
        ------
        SettingsError : a file with the values cannot be used.
        """
        return _cut(self.features[name], f"feature {name!r} of view {self.view!r}", self.folder)

    @property
    def budget(self) -> FeatureBudget:
        """The budget of a sealed layer; reads the files that settings name.

        Raises
        ------
        SettingsError : a file with the values of a vocabulary cannot be used.
        """
        targets = {name: feature.target for name, feature in self.features.items()}
        cuts = {name: self.cut(name) for name, feature in self.features.items() if feature.is_cut}
        columns = frozenset(name for name, feature in self.features.items() if feature.may_be_column)
        is_static = all(feature.is_static for feature in self.features.values())
        return FeatureBudget(
            self.presence_error_rate, targets, self.ttl_microseconds, cuts, columns, is_static=is_static
        )


def file_problems(settings: ViewSettings, table: "FeatureView") -> Iterator[SketchStoreError]:
    """Find problems with the files that the settings of a view name.

    A file with the values of a vocabulary, or with the weights of a score, may be missing, or have values of
    another type. Each problem has the line to paste.
    """
    codecs = {codec.feature: codec for codec in settings.codecs}
    known: set[tuple[str, ...]] = set()
    for name, feature in settings.features.items():
        try:
            if feature.is_cut:
                settings.cut(name)
            how = feature.computed
            if how is not None and feature.codec.name == SCORE and codecs.keys() >= {*how.sources}:
                read_weights(settings.view, name, how, codecs, settings.folder)
        except SettingsError as error:
            field = next(field for field in table.features if field.name == name)
            tags = ("vocabulary",) if feature.is_cut else ("codec", SCORE_OF, SCORE_WEIGHTS, SCORE_BITS)
            owner = name if TAG_PREFIX + tags[0] in (field.tags or {}) else OF_VIEW
            if owner == name or TAG_PREFIX + tags[0] in (table.tags or {}):
                error.new_tags = {owner: {TAG_PREFIX + tag: None for tag in tags}}
            lines = tuple(lines_to_paste(table, [error]))
            error.lines = () if lines in known else lines  # those of the view's own tags
            known.add(lines)
            yield error


def resolve(options: StoreOptions, table: "FeatureView", folder: Path | None = None) -> ViewSettings:
    """Read the settings of a view; paths in them are relative to ``folder``.

    Raises
    ------
    SettingsError : a tag is unknown or has a value that cannot work.
    UnsupportedFeatureError : no codec takes a feature, or a name cannot be a column. Both errors list all
        features of the view, and end with the lines to paste, if any.
    """
    join_keys = declared_join_keys(table)
    problems = list(_name_problems(table, join_keys or ()))
    view_tags, right_tags, tag_problems = _view_tags(table)
    problems += tag_problems
    features, tags_of = {}, {}
    for field in table.features:
        found, tags_of[field.name], field_problems = read_field(
            field,
            lambda field: _feature_settings(options, table.name, field, view_tags),
            RENAMED_STRUCTURES,
        )
        if found is not None:
            features[field.name] = found
        problems += field_problems
    by_name = {name: feature.codec for name, feature in features.items()}
    problems += count_problems(table.name, by_name)
    for name, codec in with_features_of_counts(by_name).items():
        features[name] = replace(features[name], codec=codec)
    codecs = [feature.codec for feature in features.values()]
    problems += list_problems(table, codecs, ttl_microseconds(options, table))
    if any(codec.is_list for codec in codecs) and any(codec.is_backed for codec in codecs):
        problems.append(
            SettingsError.of_view(
                f"feature view {table.name!r} has lists and features of the backing store, whose rows come "
                "together in different ways; put them into views of their own",
                moved=[codec.feature for codec in codecs if codec.is_backed],
            )
        )
    problems += _static_problems(table.name, features)
    num_shards = view_tags.get("shards", options.shards)
    if num_shards > 1:
        problems += _shard_problems(table.name, features)
    computed = {name: feature.computed for name, feature in features.items() if feature.computed is not None}
    problems += computed_problems(table.name, computed, codecs)
    settings = ViewSettings(
        table.name,
        view_tags.get("presence_error_rate", options.presence_error_rate),
        features,
        ttl_microseconds(options, table),
        folder,
        join_keys,
        view_tags.get(EXPIRED_KEPT_FOR, options.expired_kept_for) // timedelta(microseconds=1),
        "append" if any(codec.is_list for codec in codecs) else "replace",
        num_shards,
    )
    if problems:
        # Files are otherwise checked by `feast apply` alone; a refusal names all that is wrong.
        for problem in file_problems(settings, table):
            problem.lines = ()  # one line per feature has all its changes
            problems.append(problem)
        lines = tuple(lines_to_paste(table, problems, right_tags, tags_of))
        for problem in problems:
            problem.lines = ()
        problems[-1].lines = lines
        raise summed_up(problems)
    return settings


def _static_problems(view: str, features: Mapping[str, FeatureSettings]) -> Iterator[SettingsError]:
    """Check that all features of a view, or none, are in a static function, which holds whole rows."""
    others = [name for name, feature in features.items() if not feature.is_static]
    if others and len(others) < len(features):
        yield SettingsError.of_view(
            f"feature view {view!r} has features with the codec {STATIC!r}, and others: {listed(others)}. A "
            f"static function holds whole rows; give all features the codec {STATIC!r}, or move the others "
            "to a view of their own",
            moved=others,
        )


def check_shardable(settings: ViewSettings) -> None:
    """Check that the rows of a view can be divided into shards.

    Raises
    ------
    SettingsError : a feature cannot be in shards.
    """
    problems: list[SketchStoreError] = list(_shard_problems(settings.view, settings.features))
    if problems:
        raise summed_up(problems)


def _shard_problems(view: str, features: Mapping[str, FeatureSettings]) -> Iterator[SettingsError]:
    """Find features that shards do not support."""
    for name, feature in features.items():
        if feature.codec.is_backed:
            yield SettingsError.of_view(
                f"feature {name!r} of view {view!r} is kept by the backing store, which views with shards do "
                f"not have yet; keep it in another way, or give the view the tag {TAG_PREFIX}shards=1",
                {OF_VIEW: {TAG_PREFIX + "shards": "1"}},
            )


def _feature_settings(
    options: StoreOptions, view: str, field: "Field", view_tags: Mapping[str, Any]
) -> FeatureSettings:
    where = f"feature {field.name!r} of view {view!r}"
    own_tags = _own_tags(field.tags, where, _FEATURE_TAGS)
    tags = {**view_tags, **own_tags}
    if is_list_field(own_tags):
        return FeatureSettings(list_codec(field, own_tags, where), 0.0, options.max_vocabulary)
    if is_count_field(own_tags):
        limit = tags.get("max_vocabulary", options.max_vocabulary)
        return FeatureSettings(count_codec(field, own_tags, where), 0.0, limit)
    if is_computed_field(own_tags):
        codec, computed, rest = computed_codec(field, own_tags, where)
        rate = _target(codec, options, view_tags, rest, where)
        return FeatureSettings(codec, rate, options.max_vocabulary, may_be_column=True, computed=computed)
    default = view_tags.get("default_codec", options.default_codec)
    is_static = tags.get("codec") == STATIC
    if is_static:
        usual = FeatureCodec.for_feature(field.name, field.dtype)
        if CATEGORICAL not in usual.possible_names:
            raise SettingsError.of_tags(
                f"{where} has type {field.dtype}, which the codec {STATIC!r} does not take; set the tag "
                f"{TAG_PREFIX}codec to one of {listed(usual.possible_names)}, or remove it",
                {f"{TAG_PREFIX}codec": None},
            )
        tags, own_tags = ({**some, "codec": CATEGORICAL} for some in (tags, own_tags))
    codec, may_be_column, by_type = choose_codec(
        field, tags, own_tags, default, where, options.backing_store is not None
    )
    if codec.is_exact and (idle := [TAG_PREFIX + tag for tag in _IDLE_IF_EXACT if tag in own_tags]):
        raise SettingsError.of_tags(
            f"{where} is kept exactly, so these tags have no effect: {listed(idle)}; "
            f"remove the tag, or choose another {TAG_PREFIX}codec",
            dict.fromkeys(idle),
        )
    return FeatureSettings(
        codec,
        _target(codec, options, view_tags, own_tags, where),
        tags.get("max_vocabulary", options.max_vocabulary),
        tags.get("vocabulary", options.vocabulary) if codec.name == MEMBERSHIP else None,
        may_be_column,
        by_type,
        is_static,
    )


def declared_join_keys(table: "FeatureView") -> JoinKeys | None:
    """The join keys of a view, each with the field of Feast's ``Value`` that carries it.

    The field is None where Feast does not know the type. None for all if the view does not say: one that was
    not applied yet, or an on-demand view.
    """
    from feast.type_map import VALUE_TYPE_TO_PROTO_VALUE_MAP

    columns = getattr(table, "entity_columns", None) or []
    if not columns or len(columns) < len(table.entities):
        return None
    return {c.name: VALUE_TYPE_TO_PROTO_VALUE_MAP.get(c.dtype.to_value_type()) for c in columns}


def _name_problems(table: "FeatureView", join_keys: Iterable[str]) -> Iterator[SketchStoreError]:
    """Find names that cannot be columns of one table."""
    names = [*join_keys, *(field.name for field in table.features)]
    for name in names:
        if name.lower() in (*OWN_COLUMNS, OPERATION) or _is_beside(name.lower()):
            error = UnsupportedFeatureError(
                f"feature or join key {name!r} of view {table.name!r} has a name that the row log reserves "
                "for itself; rename it"
            )
            error.new_names = {name: re.sub("_+", "_", name.strip("_"))}
            yield error
    while (found := clash(names)) is not None:
        error = UnsupportedFeatureError(
            f"feature view {table.name!r} has {found[0]!r} and {found[1]!r}, which differ only by case: "
            "Delta Lake takes both for one column. Rename one of them, or put it into another view"
        )
        error.new_names = {found[1]: f"{found[1]}_2"}
        yield error
        names.remove(found[1])


def _is_beside(name: str) -> bool:
    """Whether a column of such a name would hold the times or counts of another one."""
    return is_times_column(name) or is_counts_column(name)


def ttl_microseconds(options: StoreOptions, table: "FeatureView") -> int | None:
    """How long a view's rows live; None for no limit, which Feast writes as a ttl of zero or none.

    Without ``expire_rows`` rows live for ever, and items of lists as long as their view says.
    """
    if not options.expire_rows and not has_lists(table):
        return None
    ttl = getattr(table, "ttl", None)  # on-demand views have none
    return ttl // timedelta(microseconds=1) if ttl else None


_MEASURES: Mapping[str, Callable[[Any], Any]] = {
    ERROR_RATE: error_rate_or_auto,
    NOISE_RATIO: positive_number,
    FALSE_PER_READ: positive_number,
    MEMORY: byte_count,
}
_TARGET_TAGS: Mapping[str, Callable[[Any], Any]] = {
    **_MEASURES,
    "structure": structure_name,
    "clusters": cluster_count,
    "vocabulary": vocabulary_setting,
}
_FEATURE_TAGS: Mapping[str, Callable[[Any], Any]] = {
    **_TARGET_TAGS,
    "max_vocabulary": positive_count,
    "codec": one_of(MEMBERSHIP, CATEGORICAL, BINNED, EXACT, BACKING, LIST, COUNTS, STATIC, CLUSTER, SCORE),
    CLUSTER_OF: feature_names,
    SCORE_OF: feature_names,
    SCORE_WEIGHTS: str,
    SCORE_BITS: score_bits,
    RESOLUTION: resolution,
    LIMIT: positive_count,
    TIMES_OF: str,
    ERROR: count_error,
    OF: str,
    "bins": lambda text: Quantiles(int(text)),
    "edges": edges,
    "precision": lambda text: Precision(float(text)),
}
_IDLE_IF_EXACT = (*_TARGET_TAGS, "max_vocabulary")
_VIEW_TAGS: Mapping[str, Callable[[Any], Any]] = {
    **_TARGET_TAGS,
    "scalar_error_rate": error_rate,
    "presence_error_rate": error_rate,
    "max_vocabulary": positive_count,
    EXPIRED_KEPT_FOR: duration,
    "default_codec": one_of(*DEFAULT_CODECS),
    "shards": check_shard_count,
}


def _view_tags(table: "FeatureView") -> tuple[dict[str, Any], dict[str, str], list[SketchStoreError]]:
    """The valid tags of a view, parsed and as text, and all problems."""
    where, tags = f"feature view {table.name!r}", dict(table.tags or {})
    takes_measure = any(
        (field.tags or {}).keys().isdisjoint(TAG_PREFIX + measure for measure in _MEASURES)
        for field in table.features
        if hasattr(field.dtype, "base_type")
    )
    problems: list[SketchStoreError] = []
    while True:
        try:
            found = _own_tags(tags, where, _VIEW_TAGS)
            if takes_measure:
                _only_measure(found, where)
        except SettingsError as error:
            problems.append(error)
            tags = changed_tags(tags, error, RENAMED_STRUCTURES)
        else:
            return found, tags, problems


def _own_tags(
    tags: Mapping[str, str] | None, where: str, readers: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Any]:
    values = {}
    for tag, text in (tags or {}).items():
        if not tag.startswith(TAG_PREFIX):
            continue
        name = tag.removeprefix(TAG_PREFIX)
        if name in RENAMED:
            new = TAG_PREFIX + RENAMED[name]
            raise SettingsError.of_tags(f"{where} has the tag {tag!r}, which is called {new} now", {tag: new})
        if name not in readers:
            known = listed(TAG_PREFIX + reader for reader in readers)
            raise SettingsError.of_tags(
                f"{where} has the unknown tag {tag!r}; known here: {known}", {tag: None}
            )
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            is_renamed = name == "structure" and text in RENAMED_STRUCTURES
            message = f"{where} has the tag {tag}={text!r}: {error}"
            raise SettingsError.of_tags(message, {tag: tag if is_renamed else None}) from error
    return values


def _target(
    codec: FeatureCodec,
    options: StoreOptions,
    view_tags: Mapping[str, Any],
    tags: Mapping[str, Any],
    where: str,
) -> Goal | float:
    """The target of a feature: its own tags override those of its view, and these the store's options."""
    if not codec.is_collection:
        # On a scalar feature there is only one rate that the tag can mean.
        own = tags.get(ERROR_RATE, view_tags.get("scalar_error_rate", options.scalar_error_rate))
        idle = [name for name in _TARGET_TAGS if name != ERROR_RATE and name in tags]
        if idle or own == "auto":
            raise SettingsError.of_tags(
                f"{where} is not an Array or Set, so "
                f"{TAG_PREFIX}{idle[0] if idle else 'error_rate=auto'} has no effect; remove the tag",
                dict.fromkeys(TAG_PREFIX + name for name in idle or [ERROR_RATE]),
            )
        return float(own)
    structure = tags.get("structure", view_tags.get("structure", options.structure))
    for given in (tags, view_tags):
        if (measure := _only_measure(given, where)) is not None:
            amount = given[measure]
            break
    else:
        measure, amount = ERROR_RATE, options.error_rate
    if amount == "auto":
        measure, amount = NOISE_RATIO, AUTO_NOISE_RATIO
    clusters = _clusters(structure, measure, tags, view_tags, where) if codec.name == MEMBERSHIP else 0
    return Goal(measure, amount, structure, clusters)


def _only_measure(tags: Mapping[str, Any], where: str) -> str | None:
    """The target that tags give for Arrays and Sets; None if they give none."""
    measures = [name for name in _MEASURES if name in tags]
    if len(measures) > 1:
        raise SettingsError.of_tags(
            f"{where} can be kept for one of {listed(TAG_PREFIX + m for m in _MEASURES)}, and has "
            f"{listed(TAG_PREFIX + m for m in measures)}; remove all but one",
            dict.fromkeys(TAG_PREFIX + m for m in measures[1:]),
        )
    return measures[0] if measures else None


def _clusters(
    structure: str, measure: str, tags: Mapping[str, Any], view_tags: Mapping[str, Any], where: str
) -> int:
    """The number of entity clusters that a feature's filter distinguishes; 0 for other structures."""
    if structure not in (LEARNED_BLOOM, SANDWICHED_BLOOM, WEIGHTED_BLOOM):
        if "clusters" in tags:
            raise SettingsError.of_tags(
                f"{where} has {TAG_PREFIX}clusters, which has no effect on structure {structure!r}; remove "
                f"the tag, or choose {LEARNED_BLOOM}, {SANDWICHED_BLOOM} or {WEIGHTED_BLOOM}",
                {TAG_PREFIX + "clusters": None},
            )
        return 0
    default = 0 if structure == WEIGHTED_BLOOM else DEFAULT_CLUSTERS
    number: int = tags.get("clusters", view_tags.get("clusters", default))
    if number and measure == MEMORY:
        raise SettingsError.of_tags(
            f"{where} has {TAG_PREFIX}memory, for which {structure!r} with clusters cannot be sized; give a "
            f"{TAG_PREFIX}noise_ratio, or choose another structure",
            {TAG_PREFIX + MEMORY: None},
        )
    return number


def _cut(feature: FeatureSettings, where: str, folder: Path | None) -> Cut:
    """Read which values of a feature are kept."""
    wanted, codec = feature.vocabulary, feature.codec
    assert wanted is not None
    values, source = wanted.values, "a list"
    if wanted.file is not None:
        path = Path(folder or ".") / wanted.file
        source = str(path)
        try:
            values = tuple(checked(json.loads(path.read_text()), list))
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                f"{where} takes its vocabulary from {path}, which cannot be read as a JSON list: {error}"
            ) from error
    if values is None:
        return Cut(wanted.top, wanted.min_share or 0.0)
    try:
        element_type = codec.arrow_type.value_type
        kept = codec.to_storage(pa.array(values, element_type).drop_null())
        if pa.types.is_integer(element_type):
            pa.array(values).cast(element_type)  # refuses fractions, which would be cut off
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise SettingsError(
            f"{where} takes its vocabulary from {source}, which has a value of another type than the "
            f"feature, {element_type}: {error}"
        ) from error
    return Cut(values=kept)
