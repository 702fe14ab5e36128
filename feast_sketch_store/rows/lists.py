"""Lists, sets and counts: how the items in several rows of an entity are combined.

An item is a value and a time, and may have attributes. In a CSR matrix the values are the ids, and the stamps
are the weights: int64 microseconds since 1970, and what the attributes are (`rows.listing`). A row has its
newest item first; of equal times, the item that was committed last comes first. A set is a list without
times: the times of all its items are 0. So it has each value once, and a removal hides the value whenever it
was added before. Of counts the weights are not times but numbers, which add up; a removal hides all that was
counted before.

There are three kinds of rows:

    append     adds its items
    replace    hides the items of all earlier rows, and adds its own
    remove     hides some values of all earlier rows, each up to a time

"Earlier" is by commit. Rows of the last two kinds have one more feature, with the name
`removed_name`. Its state is EMPTY if the row replaces, and VALUE if it removes; then its symbols are the
removed values, and its times say up to when.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import EMPTY, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.counting import MAX_COUNT
from feast_sketch_store.rows.csr import Csr, bounds_of
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.vocabulary import Vocabulary

_REMOVED = "__removed__"


def removed_name(feature: str) -> str:
    """The name of the feature with what rows remove from a list."""
    return _REMOVED + feature


def is_removed_name(name: str) -> bool:
    """Whether a name is one of `removed_name`."""
    return name.startswith(_REMOVED)


def removed_codec(codec: FeatureCodec) -> FeatureCodec:
    """The codec of the feature with what rows remove from a list."""
    return replace(codec, feature=removed_name(codec.feature))


@dataclass(frozen=True, eq=False)
class EntityGroups:
    """Several rows of the same entities: the entity of each row, and which rows are newer."""

    owners: NDArray[np.int64]  # int64[n], the entity of each row, a number below ``num_owners``
    # int64[n]; of two rows of an entity the one with the smaller number was committed later
    ages: NDArray[np.int64]
    num_owners: int  # number of entities

    def items(self, rows: Csr, listing: Listing, backwards: bool = False) -> Csr:
        """The items of each entity, each once; ``backwards`` if each row has its newest item last."""
        of_row, ids, times = rows.rows, rows.ids, rows.numbers
        if backwards:
            of_row, ids, times = of_row[::-1], ids[::-1], times[::-1]
        # Newest rows first, so that a stable sort puts the newest of equal items first. Rows of few ages are
        # few ascending runs, which one pass merges.
        order = _sorted(self.ages[of_row])
        order = order[_by_time(self.owners[of_row[order]], listing.times_of(times[order]))]
        owners, ids, times = self.owners[of_row[order]], ids[order], times[order]
        items = Csr.of_lengths(np.bincount(owners, minlength=self.num_owners), ids, times)
        return once_a_tick(items, 1, listing)

    def values(self, rows: Csr) -> Csr:
        """The values of each entity's sets, each once, ascending by id."""
        whole = Csr(rows.indptr, rows.ids).united(self.owners, self.num_owners)
        return Csr(whole.indptr, whole.ids, np.zeros(len(whole.ids), np.int64))

    def sums(self, rows: Csr) -> Csr:
        """The values of each entity, each once, with their counts added up."""
        width = int(rows.ids.max(initial=0)) + 1
        facts, places = np.unique(self.owners[rows.rows] * width + rows.ids, return_inverse=True)
        # Doubles add whole numbers exactly up to `MAX_COUNT`.
        counts = np.bincount(places, rows.weights, len(facts)).clip(max=MAX_COUNT).astype(np.int64)
        owners, ids = np.divmod(facts, width)
        return Csr.of_lengths(np.bincount(owners, minlength=self.num_owners), ids.astype(np.int32), counts)


@dataclass(frozen=True, eq=False)
class Tombstones:
    """What n rows hide of a list in earlier rows of the same entities."""

    groups: EntityGroups
    delete_barriers: NDArray[np.bool_]  # bool[n], rows that hide everything
    removals: Csr  # the values that each row hides, as ids of the list's vocabulary, with the newest time

    @classmethod
    def of(
        cls, groups: EntityGroups, removed: EncodedFeature | None, feature: EncodedFeature
    ) -> "Tombstones":
        """What the feature named by `removed_name` records of another; None if rows hide nothing."""
        if removed is None:
            number, none = len(feature.states), np.zeros(0, np.int64)
            hidden = Csr.of_lengths(np.zeros(number, np.int64), none, none)
            return cls(groups, np.zeros(number, np.bool_), hidden)
        csr = removed.csr
        if len(csr.ids):
            csr = csr.mapped(feature.vocabulary.find(removed.vocabulary.values))
        return cls(groups, removed.states == EMPTY, csr)

    @cached_property
    def _counts(self) -> NDArray[np.bool_]:
        """Which rows no later row of their entity hides as a whole: bool[n]."""
        groups, hides = self.groups, self.delete_barriers
        newest = np.full(groups.num_owners, np.iinfo(np.int64).max)
        np.minimum.at(newest, groups.owners[hides], groups.ages[hides])
        return groups.ages <= newest[groups.owners]

    def highest(self, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The highest state of each entity's rows, uint8[entities], from uint8[n]; EMPTY if replaced."""
        owners, counts = self.groups.owners, self._counts
        found = np.full(self.groups.num_owners, MISSING, np.uint8)
        found[owners[self.delete_barriers]] = EMPTY
        np.maximum.at(found, owners[counts], states[counts])
        return found

    def visible(self, rows: Csr) -> Csr:
        """The rows without the items that are hidden."""
        groups, removed = self.groups, self.removals
        if not len(rows.ids) or not (len(removed.ids) or self.delete_barriers.any()):
            return rows
        of_row, ids, times = rows.rows, rows.ids, rows.numbers
        kept = self._counts[of_row]
        if len(removed.ids):
            width = int(max(ids.max(), removed.ids.max())) + 1
            keys = groups.owners[of_row] * width + ids
            wanted = groups.owners[removed.rows] * width + removed.ids
            order = np.argsort(keys)
            first, stop = (np.searchsorted(keys, wanted, side, order) for side in ("left", "right"))
            pairs = Csr.of_lengths(stop - first, np.zeros(0))
            items = order[np.arange(pairs.indptr[-1]) + np.repeat(first - pairs.indptr[:-1], stop - first)]
            by = pairs.rows
            is_before = groups.ages[of_row[items]] > groups.ages[removed.rows[by]]
            kept[items[is_before & (times[items] <= removed.numbers[by])]] = False
        return rows if kept.all() else rows.masked(kept)


def once_a_tick(items: Csr, resolution: int, listing: Listing) -> Csr:
    """Lists, newest item first, in which each value occurs once in a tick: its newest item there, with the
    highest code of all.
    """
    owners, ticks = items.rows, listing.times_of(items.numbers) // resolution
    same = (owners[1:] == owners[:-1]) & (ticks[1:] == ticks[:-1])
    if not same.any():
        return items
    # Items of a tick are adjacent; most ticks have one item, which cannot repeat.
    shares = np.append(False, same)
    shares[:-1] |= same
    indices = np.flatnonzero(shares)
    tick_of = np.cumsum(np.append(True, ~same))[indices]
    ids = items.ids[indices].astype(np.int64)
    keys = tick_of * (int(ids.max()) + 1) + ids
    order = np.argsort(keys, kind="stable")  # the newest of equal items comes first
    is_repeat = np.append(False, np.diff(keys[order]) == 0)
    if not is_repeat.any():
        return items
    stamps = items.numbers
    if listing.attributes:
        stamps, firsts = stamps.copy(), np.flatnonzero(~is_repeat)
        codes = np.maximum.reduceat(listing.codes_of(stamps[indices[order]]), firsts)
        newest = indices[order[firsts]]
        stamps[newest] = listing.stamps(listing.times_of(stamps[newest]), codes)
    kept = np.ones(len(items.ids), np.bool_)
    kept[indices[order[is_repeat]]] = False
    return replace(items, weights=stamps).masked(kept)


def _sorted(ages: NDArray[np.int64]) -> NDArray[np.int64]:
    """A stable order of small numbers."""
    if len(ages) and ages.max() <= np.iinfo(np.int16).max:
        ages = ages.astype(np.int16)  # radix-sorted, in one or two passes
    return np.argsort(ages, kind="stable")


def _by_time(owners: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """A stable order of items: by owner, and from the newest to the oldest."""
    if not len(times):
        return np.zeros(0, np.int64)
    newest = int(times.max())
    span = newest - int(times.min()) + 1
    if (int(owners.max()) + 1) * span >= 2**63:
        return np.lexsort((-times, owners))
    return np.argsort(owners * span + (newest - times), kind="stable")


def newest_of(items: Csr, limit: int | None, since: int) -> Csr:
    """Lists, newest item first, cut to at most ``limit`` items whose stamps are not below ``since``."""
    kept = items.numbers >= since
    lengths = np.diff(bounds_of(kept)[items.indptr])
    if limit is not None:
        np.minimum(lengths, limit, out=lengths)
    if lengths.sum() == len(items.ids):
        return items
    return items.sliced(items.indptr[:-1], lengths)


def united(rows: EncodedRows, backwards: bool = False) -> EncodedRows:
    """Combine rows in commit order into one row per entity, without what was deleted; ``backwards`` is as in
    `EntityGroups.items`.
    """
    _, keys = rows.keys.newest()
    kept, _ = rows.keys.after_barriers()
    if len(kept) < len(rows):
        rows = rows.take(kept)
    _, owners = find_sorted(keys.entity_hashes, rows.keys.entity_hashes)
    groups = EntityGroups(owners, _ages(owners), len(keys))
    features: dict[str, EncodedFeature] = {}
    for name, feature in rows.features.items():
        if not is_removed_name(name):
            removed = rows.features.get(removed_name(name))
            if removed is not None and not removed.states.any():
                removed = None
            tombstones = Tombstones.of(groups, removed, feature)
            items = tombstones.visible(feature.csr)
            if (listing := feature.codec.listing) is not None:
                items = groups.items(items, listing, backwards)
            else:
                items = groups.sums(items) if feature.codec.is_counted else groups.values(items)
            states = tombstones.highest(feature.states)
            features[name] = replace(feature, states=states).with_items(items)
            if removed is not None:
                features[removed_name(name)] = _all_removed(removed, tombstones)
    return EncodedRows(keys, features)


def _ages(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ages of rows that are in commit order, int64[n]. There are few ages if the rows are few sorted parts.

    Rows with ascending owners share an age, because no two of them have the same owner.
    """
    parts = np.cumsum(np.diff(owners, prepend=-1) <= 0)
    return np.asarray(parts[-1:].sum() - parts)


def _all_removed(removed: EncodedFeature, tombstones: Tombstones) -> EncodedFeature:
    """What all rows of each entity together hide of earlier rows."""
    groups = tombstones.groups
    delete_barriers = np.zeros(groups.num_owners, np.bool_)
    delete_barriers[groups.owners[tombstones.delete_barriers]] = True
    csr = removed.csr
    owners = groups.owners[csr.rows]
    order = np.lexsort((-csr.numbers, csr.ids, owners))
    order = order[~delete_barriers[owners[order]]]  # an entity that hides everything needs no removals
    owners, ids, until = owners[order], csr.ids[order], csr.numbers[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (owners[1:] != owners[:-1]) | (ids[1:] != ids[:-1])
    lengths = np.bincount(owners[is_first], minlength=groups.num_owners)
    states = np.where(lengths > 0, np.uint8(VALUE), np.uint8(MISSING))
    states[delete_barriers] = EMPTY
    return removed.with_rows(states, Csr.of_lengths(lengths, ids[is_first], until[is_first]))


def as_sealed(rows: EncodedRows, codecs: Mapping[str, FeatureCodec]) -> EncodedRows:
    """The rows of entities as a seal keeps them: one item per value and tick, however old.

    A list has its limit and a reserve: an item behind the limit is shown once newer ones are removed. A set
    is the same as if it had been written whole.

    Parameters
    ----------
    rows : one per entity, with lists and sets.
    codecs : of the wanted ones, by name.
    """
    features = {}
    for name, codec in codecs.items():
        feature = rows.features[name]
        items, listing = feature.csr, codec.listing
        if listing is not None:
            items = once_a_tick(items, listing.resolution_microseconds, listing)
            items = newest_of(items, listing.most_sealed, listing.first_stamp(NO_TIMESTAMP))
        # Drop values that are in no list or set any more.
        used, ids = np.unique(items.ids, return_inverse=True)
        vocabulary = Vocabulary(feature.vocabulary.values.take(pa.array(used)))
        items = Csr(items.indptr, ids.astype(np.int32), items.weights if codec.is_weighted else None)
        features[name] = replace(feature, codec=codec, vocabulary=vocabulary).with_items(items)
    return EncodedRows(rows.keys, features)
