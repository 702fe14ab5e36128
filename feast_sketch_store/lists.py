"""`Lists`: add to, read and remove from the lists of a feature view, arrays in and arrays out.

history = Lists("feature_repo", "user_history", "read")
history.add(users, articles, timestamps)                    what users have just read
recent = history.get(users, limit=50)                       newest first, never an expired item
history.remove([user], article)                             forget one article
history.clear([user])                                       forget all
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from feast_sketch_store.appended import AppendedItems
from feast_sketch_store.reading.entities import Entities
from feast_sketch_store.reading.ragged import Moments, RaggedLists, read_lists, window_of_lists
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import ViewSettings


class Lists(AppendedItems):
    """One list of a feature view; see `AppendedFeature` for its parameters and errors."""

    _kind = "list"
    _kinds = "lists"
    _how_declared = "The tag sketch.codec: list on an Array makes one"

    @staticmethod
    def _codecs_of(settings: ViewSettings) -> dict[str, FeatureCodec]:
        return {codec.feature: codec for codec in settings.codecs if codec.is_plain_list}

    def get(
        self,
        entities: Entities,
        min_timestamp: datetime | None = None,
        limit: int | None = None,
        *,
        until: Moments | None = None,
        inclusive: bool = False,
        attributes: Sequence[str] = (),
    ) -> RaggedLists:
        """Read the items of each entity, newest first, without expired items and up to the list's limit.

        Parameters
        ----------
        min_timestamp : of the oldest item to return; a naive time is in UTC. None for all.
        limit : the most items to return for each entity.
        until, inclusive, attributes : read the lists as of moments, and attributes of their items; see
            `SketchReader.lists`.

        Raises
        ------
        RowError : the entities do not have the view's join keys, the limit is below 1, or a moment has no
            time zone.
        UnsupportedFeatureError : the items lack an attribute.
        DamagedFileError : a file of the view cannot be read.
        """
        hashes = self._entities.hash(entities)
        window = window_of_lists(
            self._codec,
            self._view.settings.ttl_microseconds,
            len(hashes),
            min_timestamp,
            limit,
            until,
            inclusive,
        )
        return self._view.with_state(lambda state: read_lists(state, self._codec, hashes, window, attributes))

    def remove(self, entities: Entities, values: Any, until: datetime | None = None) -> None:
        """Remove a value from lists, with all its items.

        Items that were added before are hidden. The same item may be added again.

        Parameters
        ----------
        entities : n of them.
        values : one value for all entities, or n values.
        until : the time of the newest item to remove; None for now.

        Raises
        ------
        RowError, StorageError : as `add`.
        """
        self._remove(entities, values, until)
