"""The limit of a feature's vocabulary, held when rows are written."""

import pyarrow as pa
import pyarrow.compute as pc

from feast_sketch_store.errors import VocabularyOverflowError
from feast_sketch_store.view.settings import ViewSettings
from feast_sketch_store.view.state import State


def check_vocabularies(rows: pa.Table, settings: ViewSettings, state: State) -> None:
    """Check that no feature gets more than ``max_vocabulary`` values with some rows.

    Raises
    ------
    VocabularyOverflowError : one does.
    """
    for name, feature in settings.features.items():
        if feature.codec.is_bounded or (settings.lists_rows and not feature.codec.is_collection):
            continue
        column = rows[name].combine_chunks()
        elements = pc.list_flatten(column) if feature.codec.is_collection else column.drop_null()
        known = _known_values(state, name)
        if sum(map(len, known)) + len(elements) <= feature.max_vocabulary:
            continue  # cannot overflow, whatever the elements are
        # What the next seal keeps of them: with a precision, fewer than there are.
        known = [feature.codec.rounded(values) for values in known]
        new = pc.unique(feature.codec.rounded(feature.codec.to_storage(elements)))
        if known:
            new = new.filter(pc.invert(pc.is_in(new, pa.concat_arrays(known))))
        size = len(pc.unique(pa.concat_arrays([*known, new])))
        if len(new) and size > feature.max_vocabulary:
            raise VocabularyOverflowError(
                f"feature {name!r} of view {settings.view!r} would have {size} distinct values, more "
                f"than max_vocabulary = {feature.max_vocabulary}; nothing of this batch was written. "
                "Raise max_vocabulary (reads enumerate the vocabulary, so they slow down with it), or "
                'give the feature the tag "sketch.codec": "exact", which has no vocabulary'
            )


def _known_values(state: State, feature: str) -> list[pa.Array]:
    known = [
        layer.rows.features[feature].vocabulary.values
        for layer in state.exact
        if feature in layer.rows.features
    ]
    if state.base is not None and feature in state.base.vocabularies:
        known.append(state.base.vocabularies[feature].values)
    return known
