"""`Counts`: increment, read and remove the counts of a feature view, arrays in and arrays out.

views = Counts("feature_repo", "author_views", "author")
views.increment(users, authors, event_ids=ids)              each once, however often you call
values, counts = views.get(users)                           two Arrow arrays of lists
views.remove([user], author)                                forget what was counted of one author
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from feast_sketch_store.appended import AppendedFeature
from feast_sketch_store.errors import RowError
from feast_sketch_store.reading.entities import Entities
from feast_sketch_store.reading.ragged import column_of
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.count_log import counts_array
from feast_sketch_store.rows.counting import MAX_COUNT
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.entity_keys import serialize_columns
from feast_sketch_store.rows.increments import COUNT, check_ids
from feast_sketch_store.rows.list_log import REPLACE
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.view.live_shard import expire_before_of


class Counted(NamedTuple):
    """The values of n entities, and how often each was counted.

    Parameters
    ----------
    values : n lists of distinct values; null for an entity without a row.
    counts : n lists of int64, with a number for each value.
    """

    values: pa.LargeListArray
    counts: pa.LargeListArray


class Counts(AppendedFeature):
    """One feature of counts in a feature view with the tag ``sketch.rows: append``.

    See `AppendedFeature` for parameters and errors.
    """

    _kind = "feature of counts"
    _kinds = "counts that grow"
    _how_declared = "The tag sketch.rows: append on a view lets its counts grow"

    @staticmethod
    def _codecs_of(settings: ViewSettings) -> dict[str, FeatureCodec]:
        if settings.semantics != "append":
            return {}
        return {codec.feature: codec for codec in settings.codecs if codec.is_counted}

    def increment(
        self,
        entities: Entities,
        values: ArrayLike | pa.Array,
        counts: ArrayLike | None = None,
        event_ids: ArrayLike | pa.Array | None = None,
        timestamps: ArrayLike | pa.Array | None = None,
    ) -> None:
        """Add to the count of a value of each entity.

        Parameters
        ----------
        entities : n entities, as for `SketchReader.hash`; repeat an entity for each of its values.
        values : n values.
        counts : n whole numbers from 0 to `MAX_COUNT`; None to count each value once.
        event_ids : n ids of what is counted, of the type of the feature with the tag ``sketch.ids_of``. What
            an entity counts under an id is counted once, as long as the id is among the entity's newest ones.
            None to count at every call.
        timestamps : of the events, as for `AppendedFeature.add`.

        Raises
        ------
        RowError : the arrays differ in length or have a wrong type; an entity has an id twice, with different
            values or counts. Nothing was written.
        StorageError : nothing was written.
        """
        columns = self._entities.columns(entities)
        num_rows = self._entities.number(columns)
        elements, times = self._values(values, num_rows), self._times(timestamps, num_rows)
        amounts, ids = self._amounts(counts, num_rows), None
        if event_ids is not None:
            ids = self._values(event_ids, num_rows, self._codec_of_ids)
            codecs = self._codec_of_ids, self._codec
            check_ids(serialize_columns(columns), np.arange(num_rows), (ids, elements, amounts), codecs)
        operation = None if ids is None else COUNT
        self._write(columns, (np.arange(num_rows + 1), elements, amounts), times, operation, ids)

    def replace(
        self,
        entities: Entities,
        indptr: ArrayLike,
        values: ArrayLike | pa.Array,
        counts: ArrayLike | None = None,
        timestamps: ArrayLike | pa.Array | None = None,
    ) -> None:
        """Replace all counts of entities. Ids stay known.

        Parameters
        ----------
        entities : n of them.
        indptr : int[n + 1]; entity ``i`` has the values from ``indptr[i]`` to ``indptr[i + 1]``.
        values, counts : as for `increment`.
        timestamps : n times of the rows.

        Raises
        ------
        RowError, StorageError : as `increment`.
        """
        columns = self._entities.columns(entities)
        bounds = self._bounds(indptr, self._entities.number(columns))
        number = int(bounds[-1])
        items = bounds, self._values(values, number), self._amounts(counts, number)
        self._write(columns, items, self._times(timestamps, len(bounds) - 1), REPLACE)

    def get(self, entities: Entities) -> Counted:
        """Read the counts of each entity.

        Sealed counts are as exact as the feature's target says; see `SketchReader` for matrices.

        Raises
        ------
        RowError : the entities do not have the view's join keys.
        DamagedFileError : a file of the view cannot be read.
        """
        hashes, codec = self._entities.hash(entities), self._codec
        expire_before = expire_before_of(self._view.settings.ttl_microseconds)
        answer = self._view.with_state(lambda state: state.read(hashes, (codec.feature,), expire_before))
        values, amounts = column_of(answer, codec, len(hashes)), np.zeros(0, np.int64)
        if (part := answer.features.get(codec.feature)) is not None:
            weights = Csr.placed([(answer.found, part.csr)], len(hashes)).weights
            amounts = amounts if weights is None else weights
        return Counted(values, counts_array(values, amounts))

    def remove(self, entities: Entities, values: Any) -> None:
        """Remove what was counted of a value of each entity. Ids stay known: a retry does not bring it back.

        Parameters
        ----------
        entities : n entities; repeat an entity for each of its values.
        values : one value for all entities, or n values.

        Raises
        ------
        RowError, StorageError : as `increment`.
        """
        self._remove(entities, values, None)

    @property
    def _codec_of_ids(self) -> FeatureCodec:
        codecs: Sequence[FeatureCodec] = self._view.settings.codecs
        return next(codec for codec in codecs if codec.ids_of == self._codec.feature)

    def _amounts(self, counts: ArrayLike | None, number: int) -> NDArray[np.int64]:
        """Counts as int64[number]."""
        if counts is None:
            return np.ones(number, np.int64)
        amounts = np.asarray(counts)
        what = f"the {self._kind} {self._codec.feature!r}"
        if amounts.shape != (number,) or (number and amounts.dtype.kind not in "iu"):
            raise RowError(
                f"{what} takes {number} whole numbers here, not {amounts.dtype}{list(amounts.shape)}"
            )
        if (wrong := (amounts < 0) | (amounts > MAX_COUNT)).any():
            row = int(wrong.argmax())
            raise RowError(
                f"row {row} has the count {amounts[row]} for {what}; a count is a whole number from 0 to "
                f"{MAX_COUNT}"
            )
        return amounts.astype(np.int64)
