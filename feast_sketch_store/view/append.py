"""Semantics of list views: the items of all rows of an entity count, until they are removed or expire."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers import ExactLayer, LayerAnswer
from feast_sketch_store.layers.prepared import Wanted
from feast_sketch_store.rows.codecs import EMPTY, MISSING, VALUE, Decoder, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import (
    CREATED_TIMESTAMP,
    DELETED,
    NO_TIMESTAMP,
    EncodedRows,
    FeastRow,
    RowKeys,
    as_damage,
    row_keys,
)
from feast_sketch_store.rows.entity_keys import JoinKeys, find_sorted
from feast_sketch_store.rows.list_log import (
    OPERATION,
    columns_of,
    encode_lists,
    is_times_column,
    to_list_log,
    with_lists,
)
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.lists import (
    Hidden,
    Meeting,
    as_sealed,
    newest_of,
    once_a_tick,
    removed_name,
    united,
)
from feast_sketch_store.rows.newest import Batches
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer, CsrAnswer
from feast_sketch_store.view.semantics import FoldedRows, RowSemantics

_MICROSECONDS = 1_000_000
_NO_LIMIT = 1 << 62


class AppendedRows:
    """The items of all rows of a log that count; attributes as of `FoldedRows`.

    All items are in memory together, 12 bytes each beside their values.
    """

    def __init__(
        self,
        batches: Batches,
        codecs: Sequence[FeatureCodec],
        expire_before: int = NO_TIMESTAMP,
        kept_microseconds: int | None = None,
    ):
        self._batches = batches
        self.num_rows = 0
        parts: list[EncodedRows] = []
        for batch in batches(None):
            self.num_rows += len(batch)
            parts.append(encode_lists(batch, codecs))
            while len(parts) > 1 and 2 * len(parts[-1]) >= len(parts[-2]):
                newer, older = parts.pop(), parts.pop()
                parts.append(united(older.followed_by(newer)))
        while len(parts) > 1:
            newer, older = parts.pop(), parts.pop()
            parts.append(united(older.followed_by(newer)))
        rows = parts[0]
        if kept_microseconds is not None:
            newest = int(rows.keys.event_timestamps.max(initial=NO_TIMESTAMP, where=~rows.keys.deleted))
            expire_before = min(expire_before, newest - kept_microseconds)
        self.expire_before = expire_before
        self.has_dead = bool(rows.keys.fences.any())
        names = [codec.feature for codec in codecs if codec.is_list]
        has_items = np.zeros(len(rows), np.bool_)
        features = {}
        for name in names:
            feature, removed = rows.features[name], rows.features.get(removed_name(name))
            items = newest_of(feature.csr, None, expire_before)
            self.has_dead |= len(items.ids) < len(feature.symbols)
            self.has_dead |= removed is not None and bool(removed.states.any())
            has_items |= items.lengths > 0
            features[name] = feature.with_rows(_emptied(feature.states, items), items)
        events = rows.keys.event_timestamps
        alive = ~rows.keys.deleted & (events > NO_TIMESTAMP) & (has_items | (events >= expire_before))
        self.has_dead |= not alive.all()
        self._rows = EncodedRows(rows.keys, features).take(np.flatnonzero(alive))
        self.keys = self._rows.keys

    def __len__(self) -> int:
        return len(self.keys)

    def batches(self) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """One row of the log per entity: which of ``keys`` they belong to, int64[n], and the rows."""
        is_missing = np.ones(len(self), np.bool_)
        for batch in self._batches(None):
            found, places = find_sorted(self.keys.entity_hashes, row_keys(batch).entity_hashes)
            places, first = np.unique(places, return_index=True)
            is_new = is_missing[places]
            places, found = places[is_new], found[first][is_new]
            if len(places):
                is_missing[places] = False
                with as_damage():
                    yield places, self._logged(batch.take(pa.array(found)), places)

    def _logged(self, table: pa.Table, places: NDArray[np.int64]) -> pa.Table:
        """Rows of the log with whole lists, in place of some rows of the same entities."""
        rows = self._rows.take(places)
        own = [name for name in table.column_names if name in rows.features or is_times_column(name)]
        created = rows.keys.created_timestamps
        columns = {
            CREATED_TIMESTAMP: pa.array(created, mask=created == NO_TIMESTAMP),
            DELETED: pa.nulls(len(table), pa.bool_()),
        }
        table = table.drop_columns(own)
        for name, column in columns.items():
            at = table.column_names.index(name)
            table = table.set_column(at, name, column.cast(table.schema.field(name).type))
        return with_lists(table, rows)

    def lists(self, places: NDArray[np.int64]) -> EncodedRows:
        """The whole lists of some entities, with exact times; entities are given by their places among
        ``keys``.
        """
        return self._rows.take(places)

    def encoded(self, codecs: Sequence[FeatureCodec]) -> Iterator[tuple[NDArray[np.int64], EncodedRows]]:
        """All rows, as a seal keeps them."""
        if len(self):
            lists = {codec.feature: codec for codec in codecs if codec.is_list}
            yield np.arange(len(self)), as_sealed(self._rows, lists, NO_TIMESTAMP)


def _emptied(states: NDArray[np.uint8], items: Csr) -> NDArray[np.uint8]:
    """States of lists, some of which may have lost all their items."""
    return np.where((states == VALUE) & (items.lengths == 0), np.uint8(EMPTY), states)


class Append(RowSemantics):
    """Each row adds items to lists; some rows remove or replace items. See `rows.lists`.

    Parameters
    ----------
    codecs : of the view's lists, and of what gives their times.
    """

    name = "append"
    log_column = OPERATION

    def __init__(self, codecs: Sequence[FeatureCodec] = ()):
        self._lists = {codec.feature: codec for codec in codecs if codec.is_list}
        self._times = {codec.feature: codec for codec in codecs if codec.is_derived}

    def of(self, codecs: Sequence[FeatureCodec]) -> "Append":
        """See `RowSemantics.of`."""
        return Append(codecs)

    def to_log(
        self, rows: Sequence[FeastRow], codecs: Sequence[FeatureCodec], join_keys: JoinKeys | None
    ) -> pa.Table:
        """See `RowSemantics.to_log`."""
        return to_list_log(rows, codecs, join_keys)

    def columns(self, codecs: Sequence[FeatureCodec]) -> pa.Schema:
        """See `RowSemantics.columns`."""
        return columns_of(codecs)

    def sources(self, features: Sequence[str]) -> Sequence[str]:
        """The lists that the features need, with removals from them; all lists if the features name none."""
        wanted = self._wanted(features)
        return [*wanted, *map(removed_name, wanted)]

    def _wanted(self, features: Sequence[str]) -> list[str]:
        names = (self._times[name].times_of if name in self._times else name for name in features)
        return [name for name in dict.fromkeys(names) if name in self._lists] or list(self._lists)

    def wanted(self, features: Sequence[str]) -> Wanted | None:
        """See `RowSemantics.wanted`."""
        lists = []
        for name in features:
            codec = self._lists.get(self._times[name].times_of if name in self._times else name)
            if codec is None or codec.listing is None:
                return None
            limit = _NO_LIMIT if codec.listing.limit is None else codec.listing.limit
            lists.append((limit, codec.listing.resolution_microseconds))
        return Wanted(tuple(self._times.get(name, name) for name in features), tuple(lists))

    def expire_rows_before(self, expire_before: int) -> int:
        """None: items expire, and an old row may still hide items of older ones."""
        return NO_TIMESTAMP

    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """The lists of all entities that are not deleted, without the items that are removed or expired."""
        return AppendedRows(batches, list(self._lists.values()), expire_before, kept_microseconds)

    def encode(self, table: pa.Table, codecs: Sequence[FeatureCodec]) -> EncodedRows:
        """Merge what the rows of each entity add and hide."""
        return encode_lists(table, codecs)

    def merge(self, older: EncodedRows, newer: EncodedRows) -> EncodedRows:
        """Merge what both parts add and hide."""
        return united(older.followed_by(newer))

    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """None: a late item counts."""
        return np.zeros(len(keys), np.bool_)

    def decided(self, answer: LayerAnswer) -> NDArray[np.int64]:
        """Entities with a deletion, which hides everything before it."""
        return answer.fenced

    def combine(
        self,
        answers: Sequence[LayerAnswer],
        features: Sequence[str],
        expire_before: int,
        limit: int | None = None,
    ) -> list[LayerAnswer]:
        """The newest items of each entity that have not expired, up to the limit of each list."""
        if not answers:
            return []
        listings = {name: _limited(self._lists[name], limit) for name in self._wanted(features)}
        times = [self._times[name] for name in features if name in self._times]
        asked = [name for name in features if name in self._lists]
        return list(_Combined(listings, times, asked, expire_before).of(answers))


def _limited(codec: FeatureCodec, limit: int | None) -> tuple[FeatureCodec, Listing]:
    """A list, and how it is cut if a number of items is the limit."""
    listing = codec.listing
    assert listing is not None
    if limit is None or (listing.limit is not None and listing.limit <= limit):
        return codec, listing
    return codec, Listing(listing.resolution_microseconds, limit)


class _Combined:
    """Combines the answers of layers about lists."""

    def __init__(
        self,
        lists: Mapping[str, tuple[FeatureCodec, Listing]],
        times: Sequence[FeatureCodec],
        asked: Sequence[str],
        expire_before: int,
    ):
        self._lists, self._times, self._asked, self._since = lists, times, asked, expire_before

    def of(self, answers: Sequence[LayerAnswer]) -> Iterator[LayerAnswer]:
        """Combine answers: entities that one layer knows are taken as they are, all others are merged."""
        if len(answers) == 1:
            yield self._alone(answers[0], None)
            return
        counts = np.zeros(max(int(a.found[-1]) + 1 if len(a.found) else 0 for a in answers), np.int64)
        for answer in answers:
            counts[answer.found] += 1
        for answer in answers:
            rows = np.flatnonzero(counts[answer.found] == 1)
            if len(rows):
                yield self._alone(answer, rows)
        if (counts > 1).any():
            yield self._together([(a, np.flatnonzero(counts[a.found] > 1)) for a in answers])

    def _alone(self, answer: LayerAnswer, rows: NDArray[np.int64] | None) -> LayerAnswer:
        """Some rows of one layer's answer; None for all."""
        times = answer.event_timestamps if rows is None else answer.event_timestamps[rows]
        if len(times) and times.min() == NO_TIMESTAMP:  # an entity with removals only has no row
            known = np.flatnonzero(times > NO_TIMESTAMP)
            rows, times = known if rows is None else rows[known], times[known]
        found = answer.found if rows is None else answer.found[rows]
        lists: dict[str, CsrAnswer] = {}
        for name, (_, listing) in self._lists.items():
            feature = answer.features.get(name)
            if feature is not None:
                items = feature.newest(rows, listing, self._since)
                states = feature.states if rows is None else feature.states[rows]
                lists[name] = CsrAnswer(feature.decoder, _emptied(states, items), items)
        return self._answer(found, times, lists)

    def _together(self, parts: Sequence[tuple[LayerAnswer, NDArray[np.int64]]]) -> LayerAnswer:
        """Merge the answers of layers, newest first, about entities that several of them know."""
        found, owners = np.unique(
            np.concatenate([answer.found[rows] for answer, rows in parts]), return_inverse=True
        )
        ages = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])
        meeting = Meeting(owners, ages, len(found))
        times = np.full(len(found), NO_TIMESTAMP)
        np.maximum.at(times, owners, np.concatenate([a.event_timestamps[rows] for a, rows in parts]))
        lists = {name: self._list(meeting, parts, *cut) for name, cut in self._lists.items()}
        known = np.flatnonzero(times > NO_TIMESTAMP)
        if len(known) < len(times):
            found, times = found[known], times[known]
            lists = {n: CsrAnswer(a.decoder, a.states[known], a.csr.take(known)) for n, a in lists.items()}
        return self._answer(found, times, lists)

    def _list(
        self,
        meeting: Meeting,
        parts: Sequence[tuple[LayerAnswer, NDArray[np.int64]]],
        codec: FeatureCodec,
        listing: Listing,
    ) -> CsrAnswer:
        name = codec.feature
        vocabulary, states, items = _stacked(parts, name, codec, self._since)
        removed_values, removes, removed = _stacked(parts, removed_name(name), codec, NO_TIMESTAMP)
        hidden = Hidden.of(removes, removed, removed_values, vocabulary)
        of_entities = once_a_tick(meeting.items(items, hidden), listing.resolution_microseconds)
        of_entities = newest_of(of_entities, listing.limit, self._since)
        of_states = _emptied(meeting.highest(states, hidden), of_entities)
        return CsrAnswer(Decoder(codec, vocabulary), of_states, of_entities)

    def _answer(
        self, found: NDArray[np.int64], times: NDArray[np.int64], lists: dict[str, CsrAnswer]
    ) -> LayerAnswer:
        """An answer about the features that were asked for."""
        expired = found[:0]
        if self._since > NO_TIMESTAMP and len(times) and times.min() < self._since:
            alive = times >= self._since
            for answer in lists.values():
                alive |= answer.csr.lengths > 0
            if not alive.all():
                expired, kept = found[~alive], np.flatnonzero(alive)
                found, times = found[kept], times[kept]
                lists = {n: CsrAnswer(a.decoder, a.states[kept], a.csr.take(kept)) for n, a in lists.items()}
        features: dict[str, Answer] = {name: lists[name] for name in self._asked if name in lists}
        for codec in self._times:
            if codec.times_of in lists:
                features[codec.feature] = _times_answer(codec, lists[codec.times_of])
        return LayerAnswer(found, found, times, features, expired=expired)


def _stacked(
    parts: Sequence[tuple[LayerAnswer, NDArray[np.int64]]], name: str, codec: FeatureCodec, since: int
) -> tuple[Vocabulary, NDArray[np.uint8], Csr]:
    """A feature of some rows of several answers, with one vocabulary of the values that are read."""
    vocabularies, states, rows = [], [], []
    for answer, chosen in parts:
        feature = answer.features.get(name)
        if feature is None:
            nothing = np.zeros(0, np.int32), np.zeros(0, np.int64)
            vocabularies.append(Vocabulary(pa.array([], codec.storage_type)))
            states.append(np.full(len(chosen), MISSING, np.uint8))
            rows.append(Csr(np.zeros(len(chosen) + 1, np.int64), *nothing))
            continue
        items = feature.newest(chosen, None, since)
        used, ids = np.unique(items.ids, return_inverse=True)
        vocabularies.append(Vocabulary(feature.decoder.vocabulary.values.take(pa.array(used))))
        states.append(feature.states[chosen])
        rows.append(Csr(items.indptr, ids.astype(np.int32), items.weights))
    vocabulary, new_ids = Vocabulary.union(vocabularies)
    mapped = [part.mapped(ids.astype(np.int32)) for part, ids in zip(rows, new_ids, strict=True)]
    return vocabulary, np.concatenate(states), Csr.stacked(mapped)


def _times_answer(codec: FeatureCodec, items: CsrAnswer) -> CsrAnswer:
    """The times of list items, in seconds, as a separate feature."""
    weights = items.csr.weights
    assert weights is not None
    vocabulary, ids = Vocabulary.of_numbers(weights // _MICROSECONDS)
    return CsrAnswer(Decoder(codec, vocabulary), items.states, Csr(items.csr.indptr, ids.astype(np.int32)))


APPEND = Append()
