"""The reading side of a view with shards: a `LiveView` for each shard that this process serves."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, SettingsError
from feast_sketch_store.layers import LayerAnswer, Shards
from feast_sketch_store.metrics import ViewMetrics
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.view.freshness import EMPTY, Freshness
from feast_sketch_store.view.live import LiveView, ViewStats, expire_before_of
from feast_sketch_store.view.process_writes import last_of_all
from feast_sketch_store.view.semantics import RowSemantics
from feast_sketch_store.view.shard_map import ShardMap, not_served, shard_of_hash
from feast_sketch_store.view.sharded_state import ShardedState

_PART_OF_INTERVAL = 1 / 32

T = TypeVar("T")
V = TypeVar("V", bound=LiveView)


class ShardedLiveView(Generic[V]):
    """A view with shards that is read. Safe to use from several threads. Methods are those of `LiveView`.

    Each shard refreshes by itself, as a view without shards does.

    Parameters
    ----------
    storage : of the view.
    name : of the view, for messages.
    shard_map : of the view.
    shards : a view for each shard, by number.
    served : the shards that reads may be about; None for all.

    Raises
    ------
    SettingsError : there is no such shard to be served.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        shard_map: ShardMap,
        shards: Mapping[int, V],
        served: Sequence[int] | None = None,
    ):
        self.storage = storage
        self.name = name
        self.shard_map = shard_map
        self.shards = dict(shards)
        self.served = {number: self.shards[number] for number in checked_served(name, shard_map, served)}
        self.serves_all = len(self.served) == shard_map.num_shards
        self._joined = self._joint([view.state for view in self.served.values()])
        self._good_until, self._seen_writes = -np.inf, -1
        self._metrics = ViewMetrics.at(storage.location)

    @property
    def metrics(self) -> ViewMetrics:
        """Metrics of reads. Each shard has its own for everything else, labelled ``<view>/<shard>``."""
        return self._metrics

    @metrics.setter
    def metrics(self, metrics: ViewMetrics) -> None:
        self._metrics = metrics
        project, view = metrics.labels
        for number, shard in self.shards.items():
            shard.metrics = ViewMetrics(project, f"{view}/{number:02}")

    @property
    def max_staleness_seconds(self) -> float | None:
        """How old answers may be for the view to count as ready; None for any age."""
        return next(iter(self.shards.values())).max_staleness_seconds

    @max_staleness_seconds.setter
    def max_staleness_seconds(self, seconds: float | None) -> None:
        for shard in self.shards.values():
            shard.max_staleness_seconds = seconds

    def close(self) -> None:
        """See `LiveView.close`."""
        for shard in self.shards.values():
            shard.close()
        self.metrics.flush()

    # -- read ----------------------------------------------------------------------------------

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        ttl_microseconds: int | None = None,
    ) -> list[LayerAnswer]:
        """Read a batch of entities, each in its shard; see `LiveView.read`.

        Raises
        ------
        ShardError : an entity is of a shard that this process does not serve; nothing was read.
        """
        expire_before = expire_before_of(ttl_microseconds)

        def read(state: ShardedState) -> list[LayerAnswer]:
            answers = state.read(entity_hashes, features, expire_before)
            for answer in answers:
                answer.load()
            return answers

        answers = self.with_state(read)
        self.metrics.count_read(len(entity_hashes), sum(len(answer.found) for answer in answers))
        return answers

    def with_state(self, read: Callable[[ShardedState], T]) -> T:
        """See `LiveView.with_state`."""
        while True:
            state = self.current()
            try:
                return read(state)
            except DamagedFileError as error:
                self._give_up_snapshot(state, error)

    def current(self) -> ShardedState:
        """The state that reads see now.

        Each shard checks whether a look is due, but not twice within a small part of the interval.
        """
        now, seen = time.monotonic(), last_of_all()
        if now < self._good_until and seen == self._seen_writes:
            return self._joined
        states = [view.current() for view in self.served.values()]
        soon = now + _PART_OF_INTERVAL * next(iter(self.served.values())).refresh_interval_seconds
        self._good_until = min(soon, *(view.good_until for view in self.served.values()))
        self._seen_writes = seen
        joined = self._joined
        if any(new is not known for new, known in zip(states, joined.states.values(), strict=True)):
            joined = self._joined = self._joint(states)
        return joined

    def _joint(self, states: Sequence[object]) -> ShardedState:
        return ShardedState(
            self.name,
            self.shard_map.num_shards,
            dict(zip(self.served, states, strict=True)),  # type: ignore[arg-type]
        )

    def _give_up_snapshot(self, state: ShardedState, error: DamagedFileError) -> None:
        """Serve an older snapshot of the shard whose file an error names, or raise the error."""
        for number, view in self.served.items():
            of_shard = state.states[number]
            if of_shard.snapshot is not None and view.storage.location in str(error):
                view.give_up_snapshot(of_shard, error)
                self._good_until = -np.inf
                return
        raise error

    def of_entity(self, entity_hash: bytes) -> V:
        """The shard that an entity is read from, given its hash of 16 bytes.

        Raises
        ------
        ShardError : this process does not serve it.
        """
        number = shard_of_hash(entity_hash, self.shard_map.num_shards)
        view = self.served.get(number)
        if view is None:
            raise not_served(self.name, number, self.shard_map.num_shards, list(self.served))
        return view

    # -- refresh -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See `LiveView.refresh`."""
        for view in self.served.values():
            view.refresh()
        self._good_until = -np.inf

    def is_fresh(self) -> bool:
        """See `LiveView.is_fresh`."""
        return all(view.is_fresh() for view in self.served.values())

    def freshness(self, look: bool = False) -> Freshness:
        """How up to date answers are: the age of the oldest shard, and the commits of all."""
        told = [view.freshness(look) for view in self.served.values()]
        worst = max(told, key=_badness)
        return replace(worst, num_commits=sum(one.num_commits for one in told))

    @property
    def pinned(self) -> SnapshotFile | None:
        """The snapshot of the first shard, if reads of all are held; see `LiveView.pinned`."""
        held = [view.pinned for view in self.served.values()]
        return next((snapshot for snapshot in held if snapshot is not None), None)

    # -- what is stored ------------------------------------------------------------------------

    @property
    def codecs(self) -> Sequence[FeatureCodec]:
        """How features are read."""
        return next(iter(self.shards.values())).codecs

    @property
    def semantics(self) -> RowSemantics:
        """How rows of an entity come together."""
        return next(iter(self.shards.values())).semantics

    def stored_schema(self) -> pa.Schema:
        """The columns of the row logs of all shards; empty without rows."""
        return pa.unify_schemas([view.stored_schema() for view in self.shards.values()])

    def stored_join_keys(self) -> dict[str, str] | None:
        """See `LiveView.stored_join_keys`."""
        found = (view.stored_join_keys() for view in self.shards.values())
        return next((keys for keys in found if keys is not None), None)

    def known_join_keys(self) -> Mapping[str, str] | None:
        """See `LiveView.known_join_keys`."""
        found = (view.known_join_keys() for view in self.served.values())
        return next((keys for keys in found if keys is not None), None)

    def adopt_joint(self) -> None:
        """Let all shards read the features that any of them has; for a view that was opened without its
        settings.
        """
        codecs = {codec.feature: codec for view in self.shards.values() for codec in view.codecs}
        used = [view.semantics for view in self.shards.values() if view.codecs]
        for view in self.shards.values():
            if {codec.feature: codec for codec in view.codecs} != codecs:
                view.adopt(list(codecs.values()), used[0])

    # -- sizes ---------------------------------------------------------------------------------

    def sealed(self) -> tuple[Shards, SnapshotFile] | None:
        """The sealed rows of all shards that are served, and the newest of their files."""
        found = [found for view in self.served.values() if (found := view.sealed()) is not None]
        state = self._joint([view.state for view in self.served.values()])
        if not found or state.sealed is None:
            return None
        return state.sealed, max((file for _, file in found), key=lambda file: file.published_at())

    def row_keys(self) -> RowKeys:
        """See `LiveView.row_keys`; shards divide hashes in ascending order, so theirs follow each other."""
        return RowKeys.concatenate([view.row_keys() for view in self.served.values()])

    def unsealed_facts(self) -> dict[str, int]:
        """See `LiveView.unsealed_facts`."""
        return _summed([view.unsealed_facts() for view in self.served.values()])

    def stats(self) -> ViewStats:
        """Sizes of all served shards together."""
        return reduce(_both, [view.stats() for view in self.served.values()])


def checked_served(name: str, shard_map: ShardMap, served: Sequence[int] | None) -> list[int]:
    """The shards to be served, in ascending order.

    Raises
    ------
    SettingsError : there is no such shard.
    """
    if served is None:
        return list(range(shard_map.num_shards))
    wrong = [number for number in served if not 0 <= number < shard_map.num_shards]
    if wrong or not served:
        raise SettingsError(
            f"feature view {name!r} has the shards 0 to {shard_map.num_shards - 1}, and serve_shards names "
            f"{wrong or 'none'}; name shards that there are"
        )
    return sorted(set(served))


def _badness(one: Freshness) -> tuple[bool, bool, float]:
    return not one.is_ready, one.state == EMPTY, one.age_seconds or 0.0


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: sum(one.get(name, 0) for one in counts) for name in names}


def _both(one: ViewStats, other: ViewStats) -> ViewStats:
    sums = {
        name: add(getattr(one, name), getattr(other, name))
        for name in (
            "sealed_entities",
            "sealed_facts",
            "unsealed_rows",
            "unsealed_bytes",
            "table_bytes",
            "ideal_bits",
            "vocabulary_bytes",
            "snapshot_bytes",
            "fact_bytes",
        )
    }
    rates, sizes = one.expected_false_positive_rates, one.vocabulary_sizes
    others = other.expected_false_positive_rates
    return ViewStats(
        **sums,
        expected_false_positive_rates={n: max(rates.get(n, 0.0), others.get(n, 0.0)) for n in rates | others},
        vocabulary_sizes={
            n: max(sizes.get(n, 0), other.vocabulary_sizes.get(n, 0)) for n in sizes | other.vocabulary_sizes
        },
        structures=one.structures | other.structures,
    )
