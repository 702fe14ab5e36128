"""Enforces ``max_vocabulary``: counts the values that a batch would add to those of a view.

The values of a view are counted once for each layer. The cost of a check depends on the batch only, whether a
feature has ten values or a million.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from feast_sketch_store.errors import DamagedFileError, VocabularyOverflowError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import SealedFeature
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.sharded_state import AnyState

_Source = SealedFeature | EncodedFeature  # one feature of a layer, sealed or not


@dataclass(frozen=True)
class _Counted:
    """The values of one layer, and how many different ones it and all older layers have.

    ``own`` are the values if they are not those of the source's vocabulary. The source is not kept alive,
    because it may be mapped from an outdated snapshot.
    """

    source: "weakref.ref[_Source]"
    codec: FeatureCodec
    own: Vocabulary | None
    total: int

    @property
    def vocabulary(self) -> Vocabulary:
        """The values as a seal would keep them."""
        if self.own is not None:
            return self.own
        source = self.source()
        assert source is not None
        return source.distinct()


class VocabularyLimit:
    """Checks the batches of one view. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._counted: dict[str, list[_Counted]] = {}  # per feature, from the oldest layer on

    def surely_holds(self, rows: pa.Table, state: AnyState, settings: ViewSettings, num_more: int) -> bool:
        """Whether rows cannot take a feature past its limit, whatever their values are.

        Parameters
        ----------
        num_more : the most values of each feature that the view has in addition to those of the state.
        """
        return all(
            _at_most(state, name) + num_more + _num_elements(rows, feature) <= feature.max_vocabulary
            for name, feature in limited(settings)
        )

    def check(self, rows: pa.Table, state: AnyState, settings: ViewSettings) -> None:
        """Refuse rows that would take a feature past its limit.

        Parameters
        ----------
        rows : with the columns of all features.
        state : of the view.

        Raises
        ------
        VocabularyOverflowError : names the feature.
        DamagedFileError : a part of the snapshot that was not used before is damaged.
        """
        for name, feature in limited(settings):
            elements = elements_of(rows, feature)
            if _at_most(state, name) + len(elements) <= feature.max_vocabulary:
                continue  # cannot overflow, even if all elements are new
            try:
                counted = self._count(name, feature.codec, list(_sources(state, name)))
            except ValueError as error:
                path = state.snapshot.where() if state.snapshot is not None else settings.view
                raise DamagedFileError(f"{path}: {error}") from error
            # The values that the next seal keeps; with a precision these are fewer.
            values = pc.unique(feature.codec.rounded(feature.codec.to_storage(elements)))
            num_new = len(_not_in(values, counted))
            if num_new:
                size = num_new + (counted[-1].total if counted else 0)
                _check_size(size, name, feature, settings.view)

    def _count(self, name: str, codec: FeatureCodec, sources: list[_Source]) -> list[_Counted]:
        """Count the values of layers, starting with the first new layer.

        Raises
        ------
        ValueError : parts of the sealed layer, which came from a file, contradict each other.
        """
        counted = self._counted.get(name, [])
        known = 0
        for entry, source in zip(counted, sources, strict=False):
            if entry.source() is not source or entry.codec != codec:
                break
            known += 1
        counted = counted[:known]
        for source in sources[known:]:
            own, vocabulary = None, source.distinct()
            rounded = codec.rounded(vocabulary.values)
            if rounded is not vocabulary.values:
                vocabulary = Vocabulary(pc.unique(rounded))
            if vocabulary is not source.vocabulary:
                own = vocabulary
            total = (counted[-1].total if counted else 0) + len(_not_in(vocabulary.values, counted))
            counted.append(_Counted(weakref.ref(source), codec, own, total))
        self._counted[name] = counted
        return counted


def limited(settings: ViewSettings) -> Iterator[tuple[str, FeatureSettings]]:
    """The features that have a limit, by name."""
    for name, feature in settings.features.items():
        if not feature.is_bounded and (feature.codec.is_collection or not settings.lists_rows):
            yield name, feature


def elements_of(rows: pa.Table, feature: FeatureSettings) -> pa.Array:
    """The values of a feature in rows of the row log, elements of collections one by one."""
    column = rows[feature.codec.feature].combine_chunks()
    return pc.list_flatten(column) if feature.codec.is_collection else column.drop_null()


def _num_elements(rows: pa.Table, feature: FeatureSettings) -> int:
    """How many values a feature has in rows of the row log, at most."""
    column = rows[feature.codec.feature]
    if not feature.codec.is_collection:
        return len(column)
    return sum(len(chunk.flatten()) for chunk in column.chunks)


def _at_most(state: AnyState, feature: str) -> int:
    """How many different values a feature has at most."""
    return sum(source.num_values for source in _sources(state, feature))


def _sources(state: AnyState, feature: str) -> Iterator[_Source]:
    """A feature of all layers, from the oldest one on."""
    if state.sealed is not None:
        yield from state.sealed.features(feature)
    for delta in state.deltas:
        if feature in delta.layer.features:
            yield delta.layer.features[feature]
    for layer in state.exact:
        if feature in layer.rows.features:
            yield layer.rows.features[feature]


def _not_in(values: pa.Array, counted: list[_Counted]) -> pa.Array:
    """The values that are in no layer."""
    for entry in counted:
        values = values.filter(pa.array(np.asarray(entry.vocabulary.find(values)) < 0))
    return values


def _check_size(size: int, name: str, feature: FeatureSettings, view: str) -> None:
    if size > feature.max_vocabulary:
        raise VocabularyOverflowError(
            f"feature {name!r} of view {view!r} would have {size} distinct values, more than "
            f"max_vocabulary = {feature.max_vocabulary}; nothing of this batch was written. Raise "
            "max_vocabulary (reads enumerate the vocabulary, so they slow down with it), or give the feature "
            'the tag "sketch.codec": "exact", which has no vocabulary'
        )
