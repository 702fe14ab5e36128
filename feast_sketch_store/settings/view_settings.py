"""The settings of one feature view, as its row log, seals and reads use them, and the files they name."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.rows.codecs import MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.entity_keys import JoinKeys
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.settings.table import TAG_PREFIX, Gate, Score
from feast_sketch_store.settings.values import KeptValues
from feast_sketch_store.structures.parts import checked

# From the oldest moment that a row can have to the newest.
_CALENDAR_MICROSECONDS = (datetime.max - datetime.min) // timedelta(microseconds=1)
# Of a score: sums of many weights, and steps that divide them, are then numbers of 64 bits.
_LARGEST_WEIGHT = 1e200


def limited(life_microseconds: int) -> int | None:
    """How long rows live; None for no limit if none of them can become so old."""
    return life_microseconds if life_microseconds < _CALENDAR_MICROSECONDS else None


@dataclass(frozen=True)
class FeatureSettings:
    """One feature: its codec, its target (see `FeatureBudget`), the largest number of values, which of them
    are kept if not all are, whether it becomes a column once it has many values, whether its codec follows
    from its type alone, whether it is to be in a static function, and how a score is computed.
    """

    codec: FeatureCodec
    target: Goal | float
    max_vocabulary: int
    vocabulary: KeptValues | None = None
    may_be_column: bool = False
    by_type: bool = False
    is_static: bool = False
    score: Score | None = None

    @property
    def may_be_in_filter(self) -> bool:
        """Whether a filter may hold the feature, if it has at most ``max_vocabulary`` values."""
        may_be = self.codec.name == MEMBERSHIP or (not self.codec.is_collection and not self.may_be_column)
        return may_be and not self.codec.is_exact and not self.is_static

    @property
    def is_cut(self) -> bool:
        """Whether some of its values are dropped."""
        return self.vocabulary is not None and not self.codec.is_derived


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
    gate: Gate = field(default_factory=Gate)

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
        return limited(self.ttl_microseconds + self.expired_kept_microseconds)

    def cut(self, name: str) -> Cut:
        """Which values of a cut feature are kept; raises as `cut_of`."""
        feature, where = self.features[name], f"feature {name!r} of view {self.view!r}"
        assert feature.vocabulary is not None
        return cut_of(feature.vocabulary, feature.codec, where, self.folder)

    @property
    def budget(self) -> FeatureBudget:
        """The budget of a sealed layer; reads the files that settings name, and raises as `cut_of`."""
        targets = {name: feature.target for name, feature in self.features.items()}
        cuts = {name: self.cut(name) for name, feature in self.features.items() if feature.is_cut}
        columns = frozenset(name for name, feature in self.features.items() if feature.may_be_column)
        is_static = all(feature.is_static for feature in self.features.values())
        limits = {name: f.max_vocabulary for name, f in self.features.items() if f.may_be_in_filter}
        return FeatureBudget(
            self.presence_error_rate,
            targets,
            self.ttl_microseconds,
            cuts,
            columns,
            is_static=is_static,
            max_vocabulary=limits,
        )

    def file_problems(self) -> Iterator[SettingsError]:
        """Find problems with the files that settings name.

        A file with the values of a vocabulary, or with the weights of a score, may be missing, or have values
        of another type; the function of a gate may be missing.
        """
        try:
            if self.gate.check is not None:
                check_of(self.view, self.gate.check, self.folder)
        except SettingsError as error:
            yield error
        codecs = {codec.feature: codec for codec in self.codecs}
        for name, feature in self.features.items():
            try:
                if feature.is_cut:
                    self.cut(name)
                if feature.score is not None and codecs.keys() >= {*feature.score.of}:
                    read_weights(self.view, name, feature.score, codecs, self.folder)
            except SettingsError as error:
                yield error


# -- files: values of a vocabulary, weights of a score, the function of a gate ------------------------


def cut_of(wanted: KeptValues, codec: FeatureCodec, where: str, folder: Path | None) -> Cut:
    """Which values of a feature are kept. Raises SettingsError: a file with the values cannot be used."""
    values, source = wanted.values, "a list"
    if wanted.file is not None:
        path = Path(folder or ".") / wanted.file
        source = str(path)
        try:
            values = tuple(checked(json.loads(path.read_bytes()), list))
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                f"{where} takes its vocabulary from {path}, which cannot be read as a JSON list: {error}"
            ) from error
    if values is None:
        return Cut(wanted.top)
    try:
        element_type = codec.arrow_type.value_type
        kind = element_type
        if pa.types.is_timestamp(kind) and all(type(value) is int for value in values if value is not None):
            kind = pa.timestamp("s", kind.tz)  # as Feast takes integers
        kept = codec.to_storage(pa.array(values, kind).cast(element_type).drop_null())
        if pa.types.is_integer(element_type):
            pa.array(values).cast(element_type)  # refuses fractions, which would be cut off
        codec.check_texts(codec.from_storage(kept))
    except (pa.ArrowTypeError, OverflowError, ValueError) as error:
        raise SettingsError(
            f"{where} takes its vocabulary from {source}, which has a value of another type than the "
            f"feature, {element_type}: {error}. A text that looks like a number or a date needs quotes"
        ) from error
    return Cut(values=kept.unique())


def check_of(view: str, path: str, folder: Path | None) -> Callable[..., Any]:
    """The function that a view's gate calls, given as ``module:function``.

    The module is a file in the folder, or one that Python finds.

    Raises SettingsError: there is none, or its module cannot be imported.
    """
    name, _, function = path.partition(":")
    file = Path(folder or ".").joinpath(*name.split(".")).with_suffix(".py")
    try:
        spec = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
        if spec is None or spec.loader is None:
            module = importlib.import_module(name)
        else:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        found = getattr(module, function)
    except Exception as error:  # a module of the user may raise any
        raise SettingsError(
            f"the gate of feature view {view!r} calls {path}, which cannot be imported, neither from {file} "
            f"nor from an installed module: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise SettingsError(f"the gate of feature view {view!r} calls {path}, which is not a function")
    return found  # type: ignore[no-any-return]


def read_weights(
    view: str, name: str, score: Score, codecs: Mapping[str, FeatureCodec], folder: Path | None
) -> dict[str, tuple[Vocabulary, NDArray[np.float64]]]:
    """Read the weights of a score: per source its values and their weights, float64[V].

    Raises SettingsError: the file is missing, or has other features, values of another type, values twice, or
    weights that are no numbers, or too large or too small to compute with.
    """
    path = Path(folder or ".") / score.weights
    where = f"feature {name!r} of view {view!r} takes its weights from {path}"
    try:
        content = checked(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{where}, which cannot be read as a JSON object: {error}") from error
    if others := sorted({*content} - {*score.of}):
        raise SettingsError(
            f"{where}, which has weights of {others}; {TAG_PREFIX}score names {list(score.of)}"
        )
    found = {}
    for source in score.of:
        try:
            found[source] = _pairs(content.get(source, []), codecs[source])
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise SettingsError(
                f"{where}, where feature {source!r} needs a list of [VALUE, WEIGHT] with each value once, of "
                f"type {codecs[source].arrow_type.value_type}: {error}"
            ) from error
    if not any((np.abs(weights) >= 1 / _LARGEST_WEIGHT).any() for _, weights in found.values()):
        raise SettingsError(f"{where}, all of whose weights are 0, or less than {1 / _LARGEST_WEIGHT:g}")
    return found


def _pairs(entries: Any, codec: FeatureCodec) -> tuple[Vocabulary, NDArray[np.float64]]:
    pairs = [checked(entry, list) for entry in checked(entries, list)]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("an entry is not a pair")
    values = pa.array([value for value, _ in pairs], codec.arrow_type.value_type)
    if values.null_count:
        raise ValueError("a value is null")
    if pa.types.is_integer(values.type):
        pa.array([value for value, _ in pairs]).cast(values.type)  # refuses fractions
    weights = [weight for _, weight in pairs]
    if not all(type(weight) in (int, float) and abs(weight) <= _LARGEST_WEIGHT for weight in weights):
        raise ValueError(f"a weight is not a number from {-_LARGEST_WEIGHT:g} to {_LARGEST_WEIGHT:g}")
    stored = codec.to_storage(values)
    if len(stored.unique()) < len(stored):
        raise ValueError("a value is there twice")
    return Vocabulary(stored), np.array(weights, np.float64)
