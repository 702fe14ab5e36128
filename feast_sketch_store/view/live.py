"""The reading side of a view: a `LiveShard` for each shard that this process serves.

A read goes to one state of all of them. If the rows are divided into other shards, reads follow them.
"""

import itertools
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, SettingsError, SketchStoreError, StorageError, counted
from feast_sketch_store.kernel import ReadFault
from feast_sketch_store.layers import LayerAnswer, SealedRows
from feast_sketch_store.metrics import ViewMetrics
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view.background import Poller
from feast_sketch_store.view.live_shard import Freshness, LiveShard, expire_before_of, last_of_all
from feast_sketch_store.view.loading import EMPTY
from feast_sketch_store.view.shard_map import ShardMap
from feast_sketch_store.view.state import ShardState, State
from feast_sketch_store.view.view_file import ViewFile

_logger = logging.getLogger(__name__)

_PART_OF_INTERVAL = 1 / 32
_MAX_POLLS = 16  # shards of a view in a bucket that are polled at once

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
V = TypeVar("V", bound=LiveShard)

_views: "weakref.WeakValueDictionary[int, LiveView[Any]]" = weakref.WeakValueDictionary()  # of this process

_openings = itertools.count(1)  # of views that differ from others of this process


def _of_process() -> "list[LiveView[Any]]":
    """The views of this process; other threads may open some meanwhile."""
    return [view for reference in _views.valuerefs() if (view := reference()) is not None]


def _reset_locks() -> None:
    for view in _of_process():
        view.reset_locks()


os.register_at_fork(after_in_child=_reset_locks)


@dataclass(frozen=True)
class ViewStats:
    """Sizes of a view as this process serves it; bytes and counts.

    ``sealed_facts`` counts the facts that are kept, and in a filter one more for each row. ``table_bytes`` is
    the filter, ``ideal_bits`` the size of a standard Bloom filter for the same facts at the same expected
    rates, ``fact_bytes`` the filter and the sets with their indexes, ``snapshot_bytes`` the whole file that
    readers map. ``structures`` names the structure of each feature, see `SealedFeature.structure`.
    """

    sealed_entities: int
    sealed_facts: int
    unsealed_rows: int
    unsealed_bytes: int
    table_bytes: int
    ideal_bits: float
    vocabulary_bytes: int
    snapshot_bytes: int
    expected_false_positive_rates: dict[str, float] = field(default_factory=dict)
    vocabulary_sizes: dict[str, int] = field(default_factory=dict)
    fact_bytes: int = 0
    structures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, shards: Sequence[ShardState]) -> "ViewStats":
        """The sizes of some shards together."""
        layers = [layer for shard in shards for layer in shard.sealed_layers]
        bases = [shard.sealed for shard in shards if shard.sealed is not None]
        vocabulary_sizes: dict[str, int] = {}
        for layer in layers:
            for name, feature in layer.features.items():
                if feature.vocabulary is not None:
                    vocabulary_sizes[name] = max(len(feature.vocabulary), vocabulary_sizes.get(name, 0))
        return cls(
            sum(base.num_entities for base in bases),
            sum(layer.num_facts for layer in layers),
            sum(shard.unsealed_rows for shard in shards),
            sum(shard.unsealed_bytes for shard in shards),
            sum(layer.table_bytes for layer in layers),
            sum(layer.ideal_bits for layer in layers),
            sum(layer.vocabulary_bytes for layer in layers),
            sum(shard.snapshot.layers_bytes() for shard in shards if shard.snapshot is not None),
            SealedRows(tuple(bases)).expected_rates(),
            vocabulary_sizes,
            -(-sum(layer.fact_bits for layer in layers) // 8),
            {name: feature.structure for layer in layers for name, feature in layer.features.items()},
        )


@dataclass(frozen=True)
class Parts(Generic[V]):
    """The shards of a view, as of one division of its rows.

    ``shards`` are those that this process has opened, by number; of them, reads may be about the ``served``.
    """

    shard_map: ShardMap
    shards: Mapping[int, V]
    served: Mapping[int, V]


class LiveView(ABC, Generic[V]):
    """A view that is read: its shards, of which each refreshes by itself. Safe to use from several threads.

    Parameters
    ----------
    refresh_interval_seconds, is_replica : see `LiveShard`.
    served : the shards that reads may be about; None for all. After another division of the rows these are
        the shards with the same entities.

    Raises SettingsError: there is no such shard to be served.
    """

    _opens_all = False  # whether to open shards that are not served, too

    def __init__(
        self,
        storage: Storage,
        name: str,
        shard_map: ShardMap,
        refresh_interval_seconds: float,
        is_replica: bool,
        served: Sequence[int] | None,
    ):
        self.storage, self._identity = storage, storage.identity
        self.name = name
        self._interval_seconds, self._is_replica = refresh_interval_seconds, is_replica
        self._polls = is_replica and refresh_interval_seconds > 0
        self._asked_at = 0.0  # time.monotonic() when the view's file was last asked for its shards
        self._asked_after = -1  # which write of this process came before that
        # The last opening of other shards of the view in this process, and the last one before the file was
        # asked.
        self._other_opening = self._asked_opening = 0
        self._last_warning = ""
        # How old answers may be for the view to count as ready; None for any age.
        self.max_staleness_seconds: float | None = None
        self._metrics = ViewMetrics.at(storage.location)
        self._good_until, self._seen_writes = -np.inf, -1
        self._joined: State | None = None  # of the last read
        self._next: State | None = None  # made ready before reads use it
        self._parts = self._opened(shard_map, checked_served(name, shard_map, served))
        self.reset_locks()
        _views[id(self)] = self

    def reset_locks(self) -> None:
        """Replace locks that another thread of the parent process may have held when it forked."""
        for shard in self.shards.values():
            shard.reset_locks()
        self._metrics.forget()
        self._follow_lock = threading.Lock()
        self._poller: Poller | None = None
        self._poller_lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"feature view {self.name!r} in {self.storage.location} stays in its process: open it in each "
            "process that reads it, as in the `worker_init_fn` of a DataLoader"
        )

    @abstractmethod
    def _open_shard(self, storage: Storage, is_replica: bool) -> V:
        """Open a shard."""

    def _opened(self, shard_map: ShardMap, served: Sequence[int]) -> Parts[V]:
        shards = {
            # Shards that are not read need no thread that polls.
            number: self._open_shard(part, self._is_replica and number in served)
            for number, part in enumerate(shard_map.storages(self.storage))
            if self._opens_all or number in served
        }
        for number, shard in shards.items():
            self._listen(number, shard)
        parts = Parts(shard_map, shards, {number: shards[number] for number in served})
        self._label(parts)
        # This process may write to shards that one of them does not know.
        for view in _of_process():
            if view._identity == self._identity and view is not self and view.shard_map != shard_map:
                view._other_opening = self._other_opening = next(_openings)
        return parts

    def _listen(self, number: int, shard: V) -> None:
        this = weakref.ref(self)

        def forget(state: ShardState) -> None:
            if (view := this()) is not None:
                view._joined, view._good_until = None, -np.inf
                made = view._next
                if made is not None and made.shards.get(number) is not state:
                    view._next = None

        def make_ready(state: ShardState) -> None:
            if (view := this()) is not None:
                view._prepare(number, state)

        shard.on_change, shard.before_change = forget, make_ready

    def _prepare(self, number: int, state: ShardState) -> None:
        """Prepare the last requests of reads for another state of a shard."""
        parts, before = self._parts, self._joined or self._next
        if before is not None and number in parts.served:
            states = [state if n == number else shard.state for n, shard in parts.served.items()]
            made = self._joint(parts, states)
            made.prepare_as(before)
            self._next = made

    @property
    def shard_map(self) -> ShardMap:
        """The division of the rows that reads and writes use now."""
        return self._parts.shard_map

    @property
    def shards(self) -> Mapping[int, V]:
        """The shards that this process has opened, by number."""
        return self._parts.shards

    @property
    def served(self) -> Mapping[int, V]:
        """The shards that reads may be about."""
        return self._parts.served

    @property
    def metrics(self) -> ViewMetrics:
        """Metrics of reads. Each of several shards has its own for everything else."""
        return self._metrics

    @metrics.setter
    def metrics(self, metrics: ViewMetrics) -> None:
        self._metrics = metrics
        self._label(self._parts)

    def _label(self, parts: Parts[V]) -> None:
        project, view, _ = self._metrics.labels
        for number, shard in parts.shards.items():
            is_only = parts.shard_map.num_shards == 1
            shard.metrics = self._metrics if is_only else ViewMetrics(project, view, f"{number:02}")

    def close(self) -> None:
        """Wait for refreshes that are under way, so that the view's files can be closed."""
        with self._poller_lock:
            poller, self._poller = self._poller, None
        if poller is not None:
            poller.stop()
        for shard in self.shards.values():
            shard.close()
        self.metrics.flush()

    # -- read ----------------------------------------------------------------------------------

    def read(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], ttl_microseconds: int | None = None
    ) -> LayerAnswer:
        """Read a batch of entities, each in its shard.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; one that the view does not have is left out.
        ttl_microseconds : rows whose event timestamp is older are not returned; None for no limit.

        Raises ShardError: an entity is of a shard that this process does not serve; nothing was read.
        """
        expire_before = expire_before_of(ttl_microseconds)
        answer = self.with_state(lambda state: state.read(entity_hashes, features, expire_before))
        self.metrics.count_read(len(entity_hashes), len(answer.found))
        return answer

    def with_state(self, read: Callable[[State, *Ts], T], *arguments: *Ts, of_all_shards: bool = False) -> T:
        """Apply a function to the state that reads see now, and further arguments.

        If it meets damage in a part of a snapshot that was not used before, it is called again with an older
        state. With ``of_all_shards`` the state also has shards that this process has opened and does not
        serve.

        Raises DamagedFileError: there is no older state; it names the file, and the block if one is damaged.
        """
        while True:
            state = self._of_all_shards() if of_all_shards else self.current()
            try:
                return read(state, *arguments)
            except (DamagedFileError, ReadFault) as error:
                self._give_up_snapshot(state, _damage_of(state, error))

    def _of_all_shards(self) -> State:
        parts = self._parts
        return State(self.name, parts.shard_map, {n: shard.current() for n, shard in parts.shards.items()})

    def current(self) -> State:
        """The state that reads see now.

        Each shard checks whether a poll is due, but not twice within a small part of the interval.
        """
        now, seen = time.monotonic(), last_of_all()
        joined = self._joined
        if joined is not None and now < self._good_until and seen == self._seen_writes:
            return joined
        parts = self._parts
        served = list(parts.served.values())
        states = [shard.current() for shard in served]
        if self._polls:
            self._start_poller()
        if self._may_have_moved(served, states, now) and self._follow_or_stay(parts):
            return self.current()
        soon = now + _PART_OF_INTERVAL * self._interval_seconds
        for joined in (self._joined, self._next):
            if joined is not None and joined.is_of(parts.shard_map, states):
                break
        else:
            joined = self._joint(parts, states)
        self._joined, self._next, self._seen_writes = joined, None, seen
        for shard, state in zip(served, states, strict=True):
            # Another thread may have loaded a state meanwhile.
            soon = min(soon, shard.good_until if shard.state is state else -np.inf)
        self._good_until = soon
        return joined

    def _may_have_moved(self, served: Sequence[V], states: Sequence[ShardState], now: float) -> bool:
        """Whether the view's file has to be asked for its shards before these states are read."""
        for shard in served:
            if shard.has_moved or shard.emptied_at > self._asked_at:
                return True
        if self._other_opening != self._asked_opening and self._asked_after != last_of_all():
            return True
        # Former shards are removed some time after the rows were divided, and so are dropped views. A poll
        # once per interval finds out while they are there.
        is_due = now - self._asked_at >= self._interval_seconds / 2
        return ((is_due and not self._polls) or not self._asked_at) and any(
            state.is_empty for state in states
        )

    def _follow_or_stay(self, parts: Parts[V]) -> bool:
        """Follow the rows. While the view's file cannot be read, stay where rows are."""
        try:
            return self._follow(parts)
        except (DamagedFileError, StorageError) as error:
            for shard in parts.served.values():
                shard.stay(str(error))
            if any(
                shard.emptied_at > self._asked_at or not shard.freshness().has_answers
                for shard in parts.served.values()
            ):
                raise
            if str(error) != self._last_warning:
                self._last_warning = str(error)
                _logger.warning("%s; serving what was read before", error)
            return False

    def follow(self) -> bool:
        """Use the shards that the view's file names now. Returns whether these are others.

        Raises DamagedFileError, StorageError: the file cannot be read.
        """
        return self._follow(self._parts)

    def _follow(self, parts: Parts[V]) -> bool:
        with self._follow_lock:
            if self._parts is not parts:
                return True
            asked_at, asked_after, opening = time.monotonic(), last_of_all(), self._other_opening
            file = ViewFile.read(self.storage)
            self._asked_at, self._asked_after = asked_at, asked_after
            if file is not None:
                self._asked_opening = opening
            if file is not None and self._polls:
                file.note(self.storage)
            if file is None or file.shard_map.settled == parts.shard_map:
                return False
            there = file.shard_map
            _logger.warning(
                "%s: the rows are divided into %s now",
                self.storage.location,
                counted(there.num_shards, "shard"),
            )
            served = _same_entities(list(parts.served), parts.shard_map, there)
            self._parts = self._opened(there.settled, served)
            self._joined, self._good_until = None, -np.inf
        for shard in parts.shards.values():
            shard.close()
        return True

    def _joint(self, parts: Parts[V], states: Sequence[ShardState]) -> State:
        return State(self.name, parts.shard_map, dict(zip(parts.served, states, strict=True)))

    @property
    def state(self) -> State:
        """The state as of the last poll, without a new poll."""
        parts = self._parts
        return self._joint(parts, [shard.state for shard in parts.served.values()])

    def _start_poller(self) -> None:
        """Let a thread poll; reads poll as long as none can be started."""
        if self._poller is None:
            with self._poller_lock:
                if self._poller is None:
                    with suppress(RuntimeError):
                        self._poller = Poller(self.poll, self._interval_seconds)
                for shard in self.served.values():
                    shard.is_polled = self._poller is not None

    def poll(self) -> None:
        """Poll the storage and load what is new. Raises nothing, because the next poll may succeed."""
        parts = self._parts
        served = list(parts.served.values())
        if self.storage.fetches:
            list(in_threads(LiveShard.poll, served, _MAX_POLLS))
        else:
            for shard in served:
                shard.poll()
        # The first write of a view makes its file, which a later start may need from this host.
        is_filled = any(shard.filled_at > self._asked_at for shard in served)
        with suppress(SketchStoreError):  # a read meets the error
            states = [shard.state for shard in served]
            if is_filled or self._may_have_moved(served, states, time.monotonic()):
                self._follow_or_stay(parts)

    def _give_up_snapshot(self, state: State, error: DamagedFileError) -> None:
        """Serve an older snapshot of the shard whose file an error names, or raise the error."""
        named = [
            (shard, known)
            for number, shard in self.shards.items()
            if (known := state.shards.get(number)) is not None
            and known.snapshot is not None
            and shard.storage.location in str(error)
        ]
        if not named:
            raise error
        # The longest: the place of shard 1 is a part of that of shard 10.
        shard, known = max(named, key=lambda one: len(one[0].storage.location))
        shard.give_up_snapshot(known, error)

    # -- refresh -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """`LiveShard.refresh` of all served shards; follow the rows if they were divided anew."""
        parts = self._parts
        served = list(parts.served.values())
        for shard in served:
            shard.refresh()
        states = [shard.state for shard in served]
        if self._may_have_moved(served, states, time.monotonic()) and self._follow(parts):
            self.refresh()

    def is_fresh(self) -> bool:
        """Whether a read would be answered from memory, without a poll of the storage."""
        return all(shard.is_fresh() and not shard.has_moved for shard in self.served.values())

    def freshness(self, poll: bool = False) -> Freshness:
        """How up to date answers are: the age of the oldest shard, and the commits of all.

        Parameters
        ----------
        poll : see `LiveShard.freshness`.
        """
        if poll:
            with suppress(SketchStoreError):
                self.current()  # follows the rows if they were divided anew
        found = [shard.freshness(poll) for shard in self.served.values()]
        worst = max(found, key=lambda one: (not one.has_answers, one.state == EMPTY, one.age_seconds or 0.0))
        num_commits = sum(one.num_commits for one in found)
        return replace(worst, max_staleness_seconds=self.max_staleness_seconds, num_commits=num_commits)

    @property
    def is_pinned(self) -> bool:
        """Whether reads of a shard are pinned to a snapshot, as of its last poll."""
        return any(shard.state.pinned for shard in self.shards.values())

    # -- sizes ---------------------------------------------------------------------------------

    def stats(self) -> ViewStats:
        """Sizes of all served shards together, as of now."""
        self.refresh()
        return ViewStats.of(list(self.state.shards.values()))


def _damage_of(state: State, error: DamagedFileError | ReadFault) -> DamagedFileError:
    """The damage that a read of a state met. Raises SketchStoreError: it met something else."""
    if isinstance(error, DamagedFileError):
        return error
    explained = state.error_of(error)
    if not isinstance(explained, DamagedFileError):
        raise explained
    explained.__cause__ = error
    return explained


def checked_served(name: str, shard_map: ShardMap, served: Sequence[int] | None) -> list[int]:
    """The shards to be served, in ascending order."""
    if served is None:
        return list(range(shard_map.num_shards))
    wrong = [number for number in served if not 0 <= number < shard_map.num_shards]
    if wrong or not served:
        raise SettingsError(
            f"feature view {name!r} has the shards 0 to {shard_map.num_shards - 1}, and this process is to "
            f"serve {wrong or 'none'}; name existing shards"
        )
    return sorted(set(served))


def _same_entities(served: Sequence[int], former: ShardMap, now: ShardMap) -> list[int]:
    """The shards of now that have the entities of some former shards."""
    numbers = set()
    for number in served:
        first = number * now.num_shards // former.num_shards
        end = (number + 1) * now.num_shards // former.num_shards
        numbers |= set(range(first, max(end, first + 1)))
    return sorted(numbers)
