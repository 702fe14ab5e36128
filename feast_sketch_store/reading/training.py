"""Training through the sketch: historical rows as a read would show them.

A model that is trained on exact history, but served from a sketch, sees other inputs than in training. Send
its training rows through the sketch as well:

    training = store.get_historical_features(entity_df, features).to_df()
    reader = SketchReader("feature_repo", "user_history")
    training = through_sketch(training, reader, ["viewed", "bought"])
"""

from collections.abc import Sequence
from decimal import Decimal
from shlex import quote
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import SealedRows
from feast_sketch_store.reading.ragged import RaggedLists
from feast_sketch_store.reading.reader import SketchReader
from feast_sketch_store.rows.arrow_rows import feature_column
from feast_sketch_store.rows.codecs import EMPTY, FeatureCodec
from feast_sketch_store.rows.count_log import check_counts
from feast_sketch_store.rows.encoding import (
    EncodedFeature,
    EncodedRows,
    RowKeys,
    encode_column,
    encode_counts,
)
from feast_sketch_store.rows.formulas import Formula

if TYPE_CHECKING:
    import pandas as pd


def through_sketch(
    dataframe: "pd.DataFrame",
    view: SketchReader,
    features: Sequence[str] | None = None,
    *,
    seed: int = 0,
    timestamp_field: str = "event_timestamp",
) -> "pd.DataFrame":
    """Rows as reads of the newest snapshot would show them if they had been sealed with it.

    Values outside the snapshot's vocabularies are left out. A filter adds false values to each row, at the
    rates of its own rows. Numbers are rounded as in reads. Scores are computed from the columns of their
    sources. The rows may have any date, and an entity may have several. Of a base with deltas, rows are shown
    as the base shows them: values that only a delta has are left out until the next base.

    A list that you name and the dataframe lacks is read from the store, as of the time of each row: give rows
    with the join keys and a time, and no copies of histories.

    Parameters
    ----------
    dataframe : one row per example, for instance from ``get_historical_features``; not changed.
    view : a reader of the view.
    features : of the view; by default all that the dataframe has, and those computed from them. The column of
        a feature has its name, or the view's name and its name, as in ``user_history__viewed``.
    seed : of the false values; the same seed gives the same values.
    timestamp_field : the column with the time of each row, with a time zone; for lists that are read.

    Returns
    -------
    A copy with the features' columns replaced, by lists of values in the order of a read or by scalars.
    Columns with the counts of values are replaced, too. UUIDs and decimals become texts. Nulls among whole
    numbers and booleans stay nulls in columns of objects and of pandas' types ``Int64``, ``Int32`` and
    ``boolean``. A list that is read is a new column, newest item first, and so are the attributes of its
    items; a column of booleans, ``<list>__complete``, says where the store still has all items, see
    `SketchReader.lists`.

    Raises
    ------
    SettingsError : the view was not sealed yet; or ``features`` is a text.
    UnsupportedFeatureError : the snapshot does not have the feature.
    RowError : the dataframe lacks the column of a feature or of one of its sources, or the column has another
        type; or it lacks a join key or the times for a list that is to be read, or a time has no zone; or it
        has a list and an attribute of its items; or it is no DataFrame of pandas.
    """
    if not hasattr(dataframe, "iloc"):
        raise RowError(
            f"the rows are a {type(dataframe).__name__}; give a DataFrame of pandas, for instance from "
            "get_historical_features(...).to_df()"
        )
    sealed = view.sealed
    if sealed is None:
        raise SettingsError(
            f"feature view {view.name!r} is not sealed yet; run `feast-sketch seal {quote(view.name)}`"
        )
    if isinstance(features, str):  # which would be taken letter by letter
        raise SettingsError(
            f"features are the text {features!r}; give a list of names, such as [{features!r}]"
        )
    wanted = sealed.codecs if features is None else features
    columns = {name: _column_of(dataframe, view.name, name) for name in wanted}
    if features is None:
        columns = {
            name: column
            for name, column in columns.items()
            if column is not None or _has_sources(dataframe, view.name, sealed.formulas.get(name))
        }
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, (len(dataframe), 2), np.uint64)
    result = dataframe.copy()
    for name, column in columns.items():
        if name not in sealed.codecs:
            raise UnsupportedFeatureError(
                f"the snapshot of feature view {view.name!r} has no feature {name!r}; it has "
                f"{list(sealed.codecs)}"
            )
        codec = sealed.codecs[name]
        if column is None and codec.is_list:
            items = _items_before(dataframe, view, codec, timestamp_field)
            result[name] = items.to_arrow().to_pandas().to_numpy()
            result[f"{name}__complete"] = items.complete
            for attribute in items.attribute_ids:
                result[attribute] = items.as_lists(items.attribute(attribute)).to_pandas().to_numpy()
            continue
        for own in codec.attributes:
            if (of_items := _column_of(dataframe, view.name, own.feature)) is not None:
                raise RowError(
                    f"columns {column!r} and {of_items!r} are the items of a list and their attributes, "
                    f"which would no longer fit each other; drop both, and name {name!r} in features to "
                    "read them from the store as of each row's time"
                )
        if name in sealed.formulas:
            feature, beside = sealed.formulas[name].of(_sources(dataframe, sealed, view.name, name)), None
        else:
            feature, beside = _feature(dataframe, view.name, codec)
        shown = sealed.shown(feature, hashes)
        arrow = shown.to_column()
        if name in sealed.formulas:  # a score that no sealed row has is known all the same
            arrow = pc.coalesce(arrow, feature.to_column())
        result[column or name] = _as_given(arrow, None if column is None else dataframe[column].dtype)
        if beside is not None:
            counts = pa.array(shown.csr.weights)
            lists = pa.LargeListArray.from_arrays(
                pa.array(shown.indptr), counts, mask=pa.array(shown.states < EMPTY)
            )
            result[beside] = lists.to_pandas().to_numpy()
    return result


def _as_given(values: pa.Array, dtype: object) -> Any:
    """Values for a column of pandas, with nulls among whole numbers and booleans if its type has such nulls.

    Whole numbers of columns of floats stay floats, in which numbers beyond 2**53 change.
    """
    import pandas as pd

    has_nulls = isinstance(dtype, pd.api.extensions.ExtensionDtype)
    nullable = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    if has_nulls and values.type in nullable:
        return nullable[values.type].__from_arrow__(values)
    return values.to_pandas(integer_object_nulls=dtype == np.dtype(object)).to_numpy()


def _items_before(
    dataframe: "pd.DataFrame", view: SketchReader, codec: FeatureCodec, timestamp_field: str
) -> RaggedLists:
    """The items of the list of each row's entity before the time of the row, with all their attributes."""
    name = codec.feature
    if missing := [each for each in (*view.join_keys, timestamp_field) if each not in dataframe]:
        raise RowError(
            f"the dataframe has no column {missing[0]!r}, by which to read the list {name!r} of feature view "
            f"{view.name!r}, which it lacks, too; it has {list(dataframe)}. Add the join keys and times"
        )
    entities = {key: dataframe[key].to_numpy() for key in view.join_keys}
    attributes = [attribute.feature for attribute in codec.attributes]
    return view.lists(name, entities, until=dataframe[timestamp_field], attributes=attributes)


def _feature(
    dataframe: "pd.DataFrame", view: str, codec: FeatureCodec, why: str = ""
) -> tuple[EncodedFeature, str | None]:
    """The column of a feature, encoded, and the name of the column with its counts, if any."""
    name = codec.feature
    column = _column_of(dataframe, view, name)
    if column is None:
        raise RowError(
            f"the dataframe has no column {name!r} or {view}__{name}{why}; it has {list(dataframe)}"
        )
    values = _as_column(dataframe[column], codec, column)
    if codec.counting is None:
        return encode_column(values, codec), None
    beside = _column_of(dataframe, view, codec.counting.feature) if codec.counting.feature else None
    counts = None
    if beside is not None:
        numbers = FeatureCodec(codec.counting.feature, "int64_list_val")
        counts = _as_column(dataframe[beside], numbers, beside)
        check_counts(values, counts, (str(column), beside))
    try:
        return encode_counts(values, counts, codec), beside
    except pa.ArrowInvalid as error:
        raise RowError(f"columns {column!r} and {beside!r} do not fit each other: {error}") from error


def _sources(dataframe: "pd.DataFrame", sealed: SealedRows, view: str, name: str) -> EncodedRows:
    """The rows with the features that a computed feature needs."""
    why = f", which {name!r} is computed from"
    sources = [source.feature for source in sealed.formulas[name].sources]
    features = {source: _feature(dataframe, view, sealed.codecs[source], why)[0] for source in sources}
    number = len(dataframe)
    times, flags = np.zeros(number, np.int64), np.zeros(number, np.bool_)
    return EncodedRows(RowKeys(np.zeros((number, 2), np.uint64), times, times, flags, flags), features)


def _has_sources(dataframe: "pd.DataFrame", view: str, formula: Formula | None) -> bool:
    """Whether the dataframe has all sources of a computed feature."""
    return formula is not None and all(
        _column_of(dataframe, view, source.feature) is not None for source in formula.sources
    )


def _column_of(dataframe: "pd.DataFrame", view: str, feature: str) -> str | None:
    return next((name for name in (feature, f"{view}__{feature}") if name in dataframe), None)


def _text(value: Any) -> Any:
    """UUIDs and decimals, as Feast reads them, as the texts that it writes; Arrow would write 1.5 as 1.50."""
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return {*map(_text, value)}
    return [*map(_text, value)] if isinstance(value, list | tuple | np.ndarray) else value


def _as_column(values: "pd.Series[object]", codec: FeatureCodec, name: str) -> pa.Array:
    """A column of the codec's type. Sets become lists; values that pandas treats as missing become null."""
    if values.ndim > 1:
        raise RowError(f"the dataframe has {values.shape[1]} columns {name!r}; leave one of them")
    are_objects = "uuid" in codec.value_field or "decimal" in codec.value_field
    plain = [*map(_text, values)] if are_objects else [*values]
    plain = [sorted(value) if isinstance(value, set | frozenset) else value for value in plain]
    for row, value in enumerate(plain if codec.is_collection else ()):
        if isinstance(value, str | bytes):  # Arrow would split it into characters
            raise RowError(
                f"column {name!r} is not of the feature's type, {codec.arrow_type}: row {row} has "
                f"{value!r}, and needs a list of values"
            )
    try:
        # Of its own type first: Arrow would cut fractions off, and take moments for others.
        return feature_column(pa.chunked_array([pa.array(plain, from_pandas=True)]), codec)
    except (RowError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RowError(
            f"column {name!r} is not of the feature's type, {codec.arrow_type}: {error}"
        ) from error
