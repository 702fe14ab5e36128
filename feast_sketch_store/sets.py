"""`Sets`: add to, read and remove from the sets of a feature view, arrays in and arrays out.

liked = Sets("feature_repo", "user_likes", "liked")
liked.add(users, articles)                                  one value for each user of the array
liked.remove(users, articles)
liked.get(users)                                            an Arrow array of lists
"""

from typing import Any

import pyarrow as pa

from feast_sketch_store.appended import AppendedItems
from feast_sketch_store.reading.entities import Entities
from feast_sketch_store.reading.ragged import column_of
from feast_sketch_store.rows.codecs import MEMBERSHIP, FeatureCodec
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.view.live_shard import expire_before_of


class Sets(AppendedItems):
    """One set of a feature view with the tag ``sketch.rows: append``.

    See `AppendedFeature` for parameters and errors.

    The operation on a value that was committed last counts. So an operation that is written again, or twice
    in a batch, changes nothing.
    """

    _kind = "set"
    _kinds = "sets that grow"
    _how_declared = "The tag sketch.rows: append on a view lets its Arrays and Sets grow"

    @staticmethod
    def _codecs_of(settings: ViewSettings) -> dict[str, FeatureCodec]:
        if settings.semantics != "append":
            return {}
        return {codec.feature: codec for codec in settings.codecs if codec.name == MEMBERSHIP}

    def get(self, entities: Entities) -> pa.LargeListArray:
        """Read the values of each entity: n lists, each with distinct values in any order.

        A list is null if its entity has no row. Sealed sets in a filter may show values that are not theirs,
        as in every read; see `SketchReader` for matrices.

        Raises
        ------
        RowError : the entities do not have the view's join keys.
        DamagedFileError : a file of the view cannot be read.
        """
        hashes, codec = self._entities.hash(entities), self._codec
        expire_before = expire_before_of(self._view.settings.ttl_microseconds)
        return self._view.with_state(
            lambda state: column_of(state.read(hashes, (codec.feature,), expire_before), codec, len(hashes))
        )

    def remove(self, entities: Entities, values: Any) -> None:
        """Remove a value from the set of each entity.

        What was added before is hidden, and the value may be added again. A removal of a value that a set
        does not have changes nothing.

        Parameters
        ----------
        entities : n entities; repeat an entity for each of its values.
        values : one value for all entities, or n values.

        Raises
        ------
        RowError, StorageError : as `add`.
        """
        self._remove(entities, values, None)
