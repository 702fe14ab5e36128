"""The settings of one feature view, as its row log, its seals and its reads use them."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.rows.codecs import MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.entity_keys import JoinKeys
from feast_sketch_store.settings.files import check_of, cut_of, read_weights
from feast_sketch_store.settings.table import Gate, Score
from feast_sketch_store.settings.values import KeptValues


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
        return self.ttl_microseconds + self.expired_kept_microseconds

    def cut(self, name: str) -> Cut:
        """Which values of a feature are kept; None if all are.

        Raises
        ------
        SettingsError : a file with the values cannot be used.
        """
        feature, where = self.features[name], f"feature {name!r} of view {self.view!r}"
        assert feature.vocabulary is not None
        return cut_of(feature.vocabulary, feature.codec, where, self.folder)

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
