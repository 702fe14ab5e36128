"""A feature view with shards: each shard is a complete small view of the entities whose hashes begin alike.

write:    rows -> a part for each shard -> its row log; each part is durable or not, whatever others are
seal:     values of all shards counted -> one numbering -> a snapshot of each shard
read:     entities -> their shards
"""

import asyncio
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from feast_sketch_store.errors import SettingsError, SketchStoreError, StorageError
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.encoding import ENTITY_KEY, FeastRow
from feast_sketch_store.rows.entity_keys import hash_serialized_keys
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import (
    IMPORT_FOLDER,
    REBUILD_FOLDER,
    SEAL_LOCK,
    SHARDS_FILE,
    staged_files,
)
from feast_sketch_store.threads import Threads
from feast_sketch_store.view import joint_seal, written_values
from feast_sketch_store.view.background_seals import BackgroundSeals
from feast_sketch_store.view.sealing import SealPolicy, Sizes, may_have_deltas
from feast_sketch_store.view.settings import ViewSettings
from feast_sketch_store.view.shard_files import ShardFile, gathered, shard_of_entry
from feast_sketch_store.view.shard_map import Routed, ShardMap, seconds_between_looks
from feast_sketch_store.view.sharded_live import ShardedLiveView, checked_served
from feast_sketch_store.view.sharded_state import ShardedState
from feast_sketch_store.view.view import Batch, Dropped, View
from feast_sketch_store.view.vocabulary_limit import VocabularyLimit

_logger = logging.getLogger(__name__)

_MAX_THREADS = 16  # threads that write to shards at once, because each waits for the disk
_NO_LIMIT = 2**62  # of values in a shard: the view checks its own

_views: "weakref.WeakSet[ShardedView]" = weakref.WeakSet()


def _reset_locks() -> None:
    for view in _views:
        view.reset_locks()


os.register_at_fork(after_in_child=_reset_locks)


class PinnedShards(NamedTuple):
    """The snapshots that reads of shards are held at: the sum of their versions."""

    version: int


class ShardedView(BackgroundSeals, ShardedLiveView[View]):
    """A feature view with shards in its storage. Safe to use from several threads; methods as of `View`.

    **A batch is atomic per shard**: if a write fails, some shards may have their rows and others not. Writing
    the batch again is harmless.

    Parameters
    ----------
    storage : the view's own; it may be empty.
    settings : of the view.
    shard_map : of the view.
    policy : when a write seals; all shards are sealed together.
    refresh_interval_seconds, max_staleness_seconds, is_replica : see `LiveView`.
    served : the shards that reads may be about; None for all. A process that serves a part does not seal
        beside its writes.
    """

    def __init__(
        self,
        storage: Storage,
        settings: ViewSettings,
        shard_map: ShardMap,
        policy: SealPolicy | None = None,
        refresh_interval_seconds: float = 1.0,
        max_staleness_seconds: float | None = None,
        is_replica: bool = False,
        served: Sequence[int] | None = None,
    ):
        policy = policy or SealPolicy()
        numbers = checked_served(settings.view, shard_map, served)
        shards = {
            number: View(
                part,
                _of_shard(settings),
                _never(policy),
                refresh_interval_seconds,
                max_staleness_seconds,
                # Shards that are not read need no thread that looks for news.
                is_replica and number in numbers,
            )
            for number, part in enumerate(shard_map.storages(storage))
        }
        super().__init__(storage, settings.view, shard_map, shards, served)
        self._settings, self._policy = settings, policy
        self._limit = VocabularyLimit()
        self.is_created = False
        self.seconds_between_looks = seconds_between_looks(storage)
        self._asked_at = -math.inf  # time.monotonic() when a bucket was asked whether the view is there
        self.reset_locks()
        _views.add(self)

    def reset_locks(self) -> None:
        """Replace locks that another thread of the parent process may have held when it forked."""
        self._seal_lock = threading.RLock()
        self._limit_lock = threading.Lock()
        self._reset_sealer()

    @property
    def settings(self) -> ViewSettings:
        """Of the view."""
        return self._settings

    @settings.setter
    def settings(self, settings: ViewSettings) -> None:
        self._settings = settings
        for shard in self.shards.values():
            shard.settings = _of_shard(settings)

    @property
    def policy(self) -> SealPolicy:
        """When a write seals."""
        return self._policy

    @policy.setter
    def policy(self, policy: SealPolicy) -> None:
        self._policy = policy
        for shard in self.shards.values():
            shard.policy = _never(policy)

    def close(self) -> None:
        """Wait for writes of tasks, refreshes and a seal to end."""
        super().close()
        self.end_seals()

    def settle(self) -> None:
        """Wait for a seal that runs in the background, if there is one."""
        super().settle()
        for shard in self.shards.values():
            shard.settle()

    @property
    def parts(self) -> dict[int, View]:
        """The views that hold the rows, by the number of the shard."""
        return self.shards

    def prepare(self) -> None:
        """Check that files can be written, and fix the number of shards."""
        self.storage.prepare()
        self._create()

    def _create(self) -> None:
        """Fix the number of shards, unless that is done: before a write, and before it returns.

        Another process may drop the view meanwhile. Rows that are written after that are of a new view.
        """
        if not self.is_created or self._is_dropped():
            self.shard_map.create(self.storage, self.name)
            self.is_created = True

    async def _create_async(self) -> None:
        if self.storage.fetches:
            await asyncio.to_thread(self._create)
        else:
            self._create()

    def _is_dropped(self) -> bool:
        """Whether another process has removed the view; a bucket is asked only now and then."""
        if self.storage.fetches:
            now = time.monotonic()
            if now - self._asked_at < self.seconds_between_looks:
                return False
            self._asked_at = now
        return self.storage.info(SHARDS_FILE) is None

    # -- write ---------------------------------------------------------------------------------

    def write(self, rows: Batch) -> None:
        """Append rows durably to their shards, and seal if due; see `View.write`.

        Raises
        ------
        VocabularyOverflowError, RowError : nothing of the rows was written.
        StorageError : the rows of some shards were not written; it names them.
        """
        self._write(self.checked(rows), lambda shard, part: shard.write(part))
        self._seal_after(rows)

    async def write_async(self, rows: Batch) -> None:
        """`write` for tasks, without a thread for each."""
        table = self.checked(rows)
        await self._create_async()
        parts = self._divided(table)
        done = await asyncio.gather(
            *(self.shards[number].write_async(part) for number, part in parts.items()),
            return_exceptions=True,
        )
        self._raise_first(dict(zip(parts, done, strict=True)))
        await self._create_async()
        if self._must_wait(rows):
            await asyncio.to_thread(self._maintain)
        elif self._is_due():
            self._maintain_beside()

    def checked(self, rows: Batch) -> pa.Table:
        """Rows as a table of the row log that `write` would take now; see `View.checked`."""
        table = self.to_table([rows])
        self._check_vocabulary(table)
        return table

    def to_table(self, batches: Sequence[Batch]) -> pa.Table:
        """Batches as one table of the row log; see `View.to_table`."""
        return self.shards[0].to_table(batches)

    def as_logged(self, rows: Sequence[FeastRow]) -> pa.Table:
        """Rows as Feast passes them in the form of the row log; see `View.as_logged`."""
        return self.to_table([rows])

    def delete(self, deletions: pa.Table) -> None:
        """Delete all rows of some entities; see `View.delete`.

        Raises
        ------
        RowError : nothing was deleted.
        StorageError : the rows of some shards were not deleted; it names them.
        """
        self._write(deletions, lambda shard, part: shard.delete(part))

    def _write(self, table: pa.Table, write: Callable[[View, pa.Table], None]) -> None:
        """Call a function with the rows of each shard, for all shards at once."""
        self._create()
        parts = self._divided(table)

        def attempt(number: int) -> BaseException | None:
            try:
                write(self.shards[number], parts[number])
            except SketchStoreError as error:
                return error
            return None

        if len(parts) <= 1:
            errors = list(map(attempt, parts))
        else:
            with Threads(min(len(parts), _MAX_THREADS)) as pool:
                errors = list(pool.map(attempt, parts))
        self._raise_first(dict(zip(parts, errors, strict=True)))
        self._create()

    def _divided(self, table: pa.Table) -> dict[int, pa.Table]:
        """The rows of each shard that has some, in their order."""
        if not len(table):
            return {}
        hashes = hash_serialized_keys(table[ENTITY_KEY].combine_chunks())
        routed = Routed.of(hashes, self.shard_map.num_shards)
        if len(routed.shards) == 1:
            return {routed.shards[0]: table}
        return {
            number: table.take(pa.array(places))
            for number, places in zip(routed.shards, routed.places, strict=True)
        }

    def _raise_first(self, done: dict[int, BaseException | None]) -> None:
        """Raise the first shard's error, naming the shards whose rows were not written."""
        failed = {number: error for number, error in done.items() if isinstance(error, BaseException)}
        if not failed:
            return
        first = next(iter(failed.values()))
        if len(failed) == len(done) or not isinstance(first, SketchStoreError):
            raise first
        raise StorageError(
            f"feature view {self.name!r}: the rows of {len(done) - len(failed)} shards were written, and "
            f"those of the shards {', '.join(map(str, failed))} were not: {first}. Write the batch again; "
            "what is there already does no harm"
        ) from first

    def _check_vocabulary(self, table: pa.Table) -> None:
        """Check `VocabularyLimit` for the values of all shards together."""
        shards = list(self.shards.values())
        only_appends = self.policy.by_job and not any(shard.was_read for shard in shards)
        if only_appends and written_values.surely_holds(table, self.storage, self.settings):
            return
        num_more = sum(shard.num_deferred_elements for shard in shards)
        if all(shard.knows_all() for shard in shards):
            known = self._state_of_all()
            if self._limit.surely_holds(table, known, self.settings, num_more):
                return
        self.refresh_all()
        with self._limit_lock:
            self._limit.check(table, self._state_of_all(), self.settings)

    def _state_of_all(self) -> ShardedState:
        return joint_seal.joint_state(self.name, self.shards)

    def refresh_all(self) -> None:
        """`refresh` of all shards, whether they are served or not."""
        for shard in self.shards.values():
            shard.refresh()
        self._good_until = -np.inf

    # -- write from many processes -----------------------------------------------------------------

    def stage(self, tables: Iterable[pa.Table], label: str) -> Iterator[ShardFile]:
        """Write rows durably into files of their shards that do not count yet; see `View.stage`."""

        def checked() -> Iterator[pa.Table]:
            for table in tables:
                self._check_vocabulary(table)
                yield table

        self._create()
        for table in gathered(checked()):
            for number, part in self._divided(table).items():
                for file in self.shards[number].stage([part], label):
                    yield ShardFile(number, file)

    def staged(self, entry: dict[str, Any]) -> ShardFile:
        """The file that an entry of a report describes."""
        number, own = shard_of_entry(entry)
        if number not in self.shards:
            raise StorageError(f"feature view {self.name!r} has no shard {number}; nothing was committed")
        return ShardFile(number, self.shards[number].staged(own))

    def commit_staged(self, files: Sequence[ShardFile]) -> None:
        """Commit staged files, shard by shard; see `View.commit_staged`.

        Raises
        ------
        RowError, StorageError : shards before the one that failed have their rows.
        """
        for file in files:
            file.check()
        for number, shard in self.shards.items():
            shard.commit_staged([file.staged for file in files if file.shard == number])

    def discard_staged(self, label: str) -> int:
        """Delete uncommitted staged files whose names begin with a label. Returns their number."""
        return sum(shard.discard_staged(label) for shard in self.shards.values())

    # -- seal ----------------------------------------------------------------------------------

    def seal(self, as_delta: bool = False) -> bool:
        """Seal all shards, with one numbering of values; see `View.seal`.

        The snapshots are published one after the other, when all of them are made.

        Returns
        -------
        False if another process is sealing this view, or if there are no rows yet.

        Raises
        ------
        DamagedFileError, StorageError : shards keep their previous snapshots, or some of them have new ones.
        """
        began = time.monotonic()
        try:
            is_published = self._seal(as_delta)
        except SketchStoreError:
            self.metrics.sealed(time.monotonic() - began, False)
            raise
        if is_published:
            self.metrics.sealed(time.monotonic() - began, True)
        return is_published

    def _seal(self, as_delta: bool) -> bool:
        with self._seal_lock, self.storage.lease(SEAL_LOCK, create=False) as is_ours:
            if not is_ours:
                return False
            with self._all_held():
                if as_delta and joint_seal.seal_deltas(self.shards):
                    return True
                if not joint_seal.seal_bases(self.shards, self.settings):
                    return False
            if self.policy.by_job and (sealed := self._state_of_all().sealed) is not None:
                sizes = {n: max(part.num_values for part in sealed.features(n)) for n in sealed.codecs}
                written_values.note_sizes(self.storage, sizes)
            return True

    @contextmanager
    def _all_held(self) -> Iterator[None]:
        """Keep other processes from sealing or absorbing in any shard."""
        with ExitStack() as stack:
            for shard in self.shards.values():
                stack.enter_context(shard.held())
            yield

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Keep other processes from sealing, rebuilding or vacuuming the view; they may write.

        Raises
        ------
        StorageError : another process is doing so.
        """
        with self._seal_lock, self.storage.lease(SEAL_LOCK) as is_ours:
            if not is_ours:
                raise StorageError(
                    f"{self.storage.location}: another process is sealing this view; try again later"
                )
            with self._all_held():
                yield

    def absorb(self) -> None:
        """See `View.absorb`, of all shards."""
        for shard in self.shards.values():
            shard.absorb()

    def sizes(self) -> Sizes:
        """See `View.sizes`, of all shards together."""
        return Sizes.sum_of(shard.sizes() for shard in self.shards.values())

    def _is_due(self) -> bool:
        shards = self.shards.values()
        if self.policy.by_job or not self.serves_all or any(shard.is_pinned for shard in shards):
            return False
        if sum(shard.num_unsealed for shard in shards) <= self.policy.min_rows:
            return False
        sizes = self.sizes()
        return self.policy.wants_base(sizes) or self._wants_delta(sizes)

    def _wants_delta(self, sizes: Sizes) -> bool:
        has_bases = all(shard.state.sealed is not None for shard in self.shards.values())
        return has_bases and self.policy.wants_delta_of(sizes) and may_have_deltas(self.settings)

    def _must_wait(self, rows: Batch) -> bool:
        sizes = self.sizes()
        return self.policy.waits(len(rows), sizes.sealed_rows, sizes.unsealed_rows) and self._is_due()

    def _seal_after(self, rows: Batch) -> None:
        if self._must_wait(rows):
            self._maintain()
        elif self._is_due():
            self._maintain_beside()

    def seal_if_due(self) -> bool:
        """Seal if the policy says that a seal is due, whichever process wrote the rows; see `View`."""
        self.refresh_all()
        return self._seal_if_due()

    def _seal_if_due(self) -> bool:
        with self._seal_lock:
            if any(shard.is_pinned for shard in self.shards.values()):
                return False
            sizes = self.sizes()
            if self.policy.wants_base(sizes):
                return self.seal()
            if self._wants_delta(sizes):
                return self.seal(as_delta=True)
            for shard in self.shards.values():
                shard.seal_if_due()  # never seals, and absorbs what has become long
            return False

    # -- operate -------------------------------------------------------------------------------

    def rebuild(
        self,
        fill: Callable[[Storage], Storage],
        confirm: Callable[[Dropped | None], bool] | None = None,
    ) -> bool:
        """Replace all rows by others, shard by shard; see `View.rebuild`.

        Readers see the old rows of a shard until its new ones are complete.

        Parameters
        ----------
        fill : is given an empty storage, writes rows to a view with as many shards in it, and returns that
            view's storage.
        confirm : as of `View.rebuild`, asked once before any shard changes.
        """
        with self._seal_lock, self.storage.lease(SEAL_LOCK) as is_ours:
            if not is_ours:
                raise StorageError(
                    f"{self.storage.location}: another process is sealing this view; try again later"
                )
            staging = self.storage.within(REBUILD_FOLDER)
            staging.delete_all()  # of one that was killed
            try:
                filled = fill(staging)
                sources = ShardMap.of(filled).storages(filled)
                is_done = replace_rows(self, sources, confirm)
            finally:
                staging.delete_all()
            self.refresh_all()
            return is_done

    def pin(self, version: int | None = None) -> PinnedShards:
        """Hold reads of all processes at a snapshot of each shard, until `unpin`; see `View.pin`.

        Parameters
        ----------
        version : the sum of what the snapshots cover, as `feast-sketch inspect` shows; None for the newest.

        Raises
        ------
        SettingsError : there are no such snapshots, or a shard was not sealed yet.
        StorageError : the storage cannot be written; reads follow the writes.
        """
        published = {number: shard.published() for number, shard in self.shards.items()}
        if unsealed := [number for number, files in published.items() if not files]:
            raise SettingsError(
                f"feature view {self.name!r}: the shards {', '.join(map(str, unsealed))} have no snapshot "
                "that reads could be held at; seal the view once each of its shards has rows"
            )
        depth = max(map(len, published.values()))
        choices = [{n: f[min(k, len(f) - 1)].version for n, f in published.items()} for k in range(depth)]
        found = [choice for choice in choices if version in (None, sum(choice.values()))]
        if not found:
            there = ", ".join(str(sum(choice.values())) for choice in choices)
            raise SettingsError(
                f"{self.storage.location}: there are no snapshots of version {version}; there are the "
                f"versions: {there}"
            )
        try:
            for number, own in found[0].items():
                self.shards[number].pin(own)
        except BaseException:
            self.unpin()
            raise
        self._good_until = -np.inf
        return PinnedShards(sum(found[0].values()))

    def unpin(self) -> bool:
        """Let reads of all shards follow the writes again. Returns whether they were held."""
        was_pinned = [shard.unpin() for shard in self.shards.values()]
        self._good_until = -np.inf
        return any(was_pinned)

    @property
    def snapshot_version(self) -> int | None:
        """The sum of what the snapshots of shards cover; None without one."""
        versions = [shard.snapshot_version for shard in self.shards.values()]
        return None if all(v is None for v in versions) else sum(v or 0 for v in versions)

    def vacuum(self, orphan_age_seconds: float = 86_400.0) -> int:
        """Remove files that nothing uses any more, of all shards; see `View.vacuum`."""
        with self._seal_lock, self.storage.lease(SEAL_LOCK, create=False) as is_ours:
            if not is_ours:
                return 0
            num_removed = len(staged_files(self.storage))
            self.storage.within(REBUILD_FOLDER).delete_all()
            self.storage.within(IMPORT_FOLDER).delete_all()
            return num_removed + sum(shard.vacuum(orphan_age_seconds) for shard in self.shards.values())

    def check_codecs(self) -> None:
        """Check that the stored values of each feature can be read with its codec; see `View`."""
        for shard in self.shards.values():
            shard.check_codecs()


def replace_rows(
    view: ShardedView, sources: Sequence[Storage], confirm: Callable[[Dropped | None], bool] | None
) -> bool:
    """Replace the rows of each shard by those of a storage, numbered together. Returns whether it was
    confirmed.

    Raises
    ------
    StorageError : there are no rows, or there are none for a shard that has some; nothing has changed.
    SettingsError : the rows are divided into another number of shards.
    """
    if len(sources) != len(view.shards):
        raise SettingsError(
            f"feature view {view.name!r} has {len(view.shards)} shards, and the rows for it are divided into "
            f"{len(sources)}; run `feast-sketch rebuild {view.name} --shards` for one of the two first"
        )
    logs = {number: RowLog(source).read() for number, source in enumerate(sources)}
    given = {number: log for number, log in logs.items() if log}
    lost = [n for n, shard in view.shards.items() if n not in given and shard.stored_schema().names]
    if not given or lost:
        raise StorageError(
            f"{view.storage.location}: there are no rows to rebuild "
            f"{'from' if not given else f'shard {lost[0]} from, which has some'}; nothing has changed"
        )
    if confirm is not None:
        view.absorb()  # what is compared is the table
        dropped = [view.shards[number].dropped_by(log) for number, log in given.items()]
        known = [one for one in dropped if one is not None]
        sums = Dropped(sum(d.entities for d in known), sum(d.newer_rows for d in known))
        whole = sums if len(known) == len(dropped) else None
        if (whole is None or any(whole)) and not confirm(whole):
            return False
    joint = joint_seal.numbered_in_threads(view.settings, view.shards, given)
    for number in given:
        view.shards[number].rebuild(lambda _, number=number: sources[number], joint=joint)  # type: ignore[misc]
    return True


def _of_shard(settings: ViewSettings) -> ViewSettings:
    """The settings of a shard: those of the view, which itself counts the values."""
    features = {n: replace(f, max_vocabulary=_NO_LIMIT) for n, f in settings.features.items()}
    return replace(settings, features=features)


def _never(policy: SealPolicy) -> SealPolicy:
    """The policy of a shard, which never seals by itself and makes no writer wait."""
    return replace(policy, min_rows=_NO_LIMIT, share=math.inf)
