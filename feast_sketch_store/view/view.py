"""A feature view: N >= 1 shards, each a complete small view of the entities whose hashes begin alike.

write:    rows, with those of other threads -> a part for each shard -> its row log
seal:     values of all shards counted -> one numbering -> a snapshot of each shard
read:     entities -> their shards
"""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from feast_sketch_store.errors import (
    GateError,
    RowError,
    SketchStoreError,
    StorageError,
    UnsupportedFeatureError,
)
from feast_sketch_store.layers import SealedRows
from feast_sketch_store.metrics import GATE_REFUSALS
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.row_log.data_file import StagedFile
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.rows.limits import gathered
from feast_sketch_store.rows.list_log import ListRows, list_tables
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage, UncertainWriteError
from feast_sketch_store.storage.names import SEAL_LOCK, VIEW_FILE, remove_left_over
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view import joint_seal
from feast_sketch_store.view.background import Sealer
from feast_sketch_store.view.gate import FILL, SEAL, Figures, HeldBack, judge
from feast_sketch_store.view.group_commit import GroupCommit
from feast_sketch_store.view.live import LiveView, Parts
from feast_sketch_store.view.removal import check_not_removed
from feast_sketch_store.view.seal_policy import Due, SealPolicy, Sizes, may_have_deltas
from feast_sketch_store.view.semantics import FoldedRows, named
from feast_sketch_store.view.shard import Shard
from feast_sketch_store.view.shard_map import (
    DIVIDED_BYTES,
    DIVIDED_ROWS,
    RUN_AGAIN,
    OtherShardsError,
    ShardMap,
    check_division,
    check_map,
    divided,
    refusal,
)
from feast_sketch_store.view.view_file import Registration, ViewFile, seconds_between_checks

_logger = logging.getLogger(__name__)

_LEASE_POLL_SECONDS = 0.005  # while another process holds it; in a bucket a hundred times as long
# At this number of commits the write-ahead log is absorbed, so that a new process reads few of them.
_MAX_WAL_COMMITS = 500
_MAX_THREADS = 16  # threads that write to shards at once, because each waits for the disk

Batch: TypeAlias = Sequence[FeastRow] | ListRows | pa.Table


class View(LiveView[Shard]):
    """A feature view in its storage. Safe to use from several threads.

    **A batch is atomic per shard**: if a write fails, some shards may have their rows and others not. Writing
    the batch again is harmless.

    Parameters
    ----------
    storage : the view's own; it may be empty.
    policy : when a write seals; all shards are sealed together.
    refresh_interval_seconds, is_replica : see `LiveShard`.
    served : the shards that reads may be about; None for all. Writes of a process that serves a part
        do not seal.
    shard_map : of the view; None for the one of a new view with these settings.
    """

    _opens_all = True

    def __init__(
        self,
        storage: Storage,
        settings: ViewSettings,
        policy: SealPolicy | None = None,
        refresh_interval_seconds: float = 1.0,
        max_staleness_seconds: float | None = None,
        is_replica: bool = False,
        served: Sequence[int] | None = None,
        shard_map: ShardMap | None = None,
    ):
        self._settings, self.policy = settings, policy or SealPolicy()
        self._semantics = named(settings.semantics, settings.codecs)
        first = shard_map or ShardMap.first(settings.num_shards)
        super().__init__(storage, settings.view, first, refresh_interval_seconds, is_replica, served)
        self.max_staleness_seconds = max_staleness_seconds
        # how long a rebuild, a check or a vacuum waits while another process seals
        self.lock_timeout_seconds = 0.0
        # keeps the view's file; None if the file is not to name these shards yet
        self.registration: Registration | None = Registration(storage, settings.view, first)

    def _open_shard(self, storage: Storage, is_replica: bool) -> Shard:
        shard = Shard(storage, self._settings, self._interval_seconds, is_replica)
        shard.row_log.before_first = partial(check_not_removed, self.storage, self.name)
        return shard

    def reset_locks(self) -> None:
        super().reset_locks()
        self._commits: GroupCommit[Batch] = GroupCommit()
        self._seal_problem = ""  # why the last seal in the background failed; empty if it did not
        self._num_refused = 0  # unsealed rows of the last seal, if the gate refused it
        self._seal_lock = threading.RLock()  # one seal, rebuild or vacuum at a time in this process
        self._is_leased = False  # the view, by this process
        self._sealer = Sealer()  # a fork has no threads

    @property
    def settings(self) -> ViewSettings:
        """Of the view. A seal that is under way keeps those with which it began."""
        return self._settings

    @settings.setter
    def settings(self, settings: ViewSettings) -> None:
        self._settings, self._semantics = settings, named(settings.semantics, settings.codecs)
        if self._seal_lock.acquire(blocking=False):
            try:
                self._hand_on_settings()
            finally:
                self._seal_lock.release()

    def _hand_on_settings(self) -> None:
        """Give shards the current settings, unless they are being sealed; `_seal_lock` is held."""
        if not self._is_leased:
            settings = self._settings
            for shard in self.shards.values():
                shard.settings = settings

    def close(self) -> None:
        """Wait for writes of tasks, refreshes and a seal that are under way."""
        self._commits.settle()
        super().close()
        self.end_seals()

    def prepare(self, is_applied: bool = False) -> None:
        """Check that files can be written, and make the view's folder and its file; see `Registration.keep`.

        Raises ShardError, StorageError: the rows are being divided into other shards, or files cannot be
        written.
        """
        self.storage.prepare()
        self._register(None, is_applied)

    def keep_file(self, rows: pa.Table | None = None, is_applied: bool = False) -> None:
        """Keep the view's file, in the course of a write; it fails if the rows were divided anew."""
        if self.registration is not None:
            self.registration.keep(self.settings, rows, is_applied)

    def keep_file_behind(self, written: ShardMap, shards: Mapping[int, Shard]) -> None:
        """Keep the view's file, after rows were written to these shards.

        Raises UncertainWriteError: the rows may have been divided anew, with these or without them.
        """
        registration = self.registration  # another thread may follow the rows meanwhile
        if registration is None:
            return
        try:
            logs = {number: shard.row_log.appended_to for number, shard in shards.items()}
            registration.keep(self.settings, logs=logs)
            check_map(self.name, registration.shard_map, written)
        except SketchStoreError as error:
            raise UncertainWriteError(f"{error}. What was written may count or not") from error

    def _register(self, rows: pa.Table | None = None, is_applied: bool = False) -> None:
        """Keep the view's file, before rows are written; follow them if they were divided anew."""
        try:
            self.keep_file(rows, is_applied)
        except OtherShardsError:
            if not self.follow():
                raise
            self._register(rows, is_applied)

    def _follow(self, parts: Parts[Shard]) -> bool:
        has_changed = super()._follow(parts)
        if has_changed and self.registration is not None:
            self.registration = Registration(self.storage, self.name, self.shard_map)
        return has_changed

    def follow_if_due(self) -> None:
        """Follow the rows, if they were divided anew and the last check of the view's file is long ago."""
        is_due = time.monotonic() - self._asked_at >= seconds_between_checks(self.storage)
        if is_due and self.registration is not None:
            self.follow()

    # -- write ---------------------------------------------------------------------------------

    def write(self, rows: Batch) -> None:
        """Append rows durably, and seal if due: in the background, unless the policy says to wait for it.

        The rows are as Feast passes them, of one list, or a table of the row log. Writes of several threads
        share a commit. A fill of a view with a gate has commits of its own.

        Raises
        ------
        RowError : nothing of the rows was written.
        GateError : the view with these rows does not pass its gate; they are held back.
        StorageError, UncertainWriteError : the rows of some shards were not written; it names them.
        """
        if self._is_judged(len(rows)):
            self._fill(rows)
        else:
            self._commits.submit(rows, self._commit)
        if self._must_wait(rows):
            self._maintain()

    async def write_async(self, rows: Batch) -> None:
        """`write` for tasks, without a thread for each."""
        if self._is_judged(len(rows)):
            await asyncio.to_thread(self.write, rows)
            return
        await self._commits.submit_of_task(rows, self._commit)
        if self._must_wait(rows):
            await asyncio.to_thread(self._maintain)

    def _commit(self, batches: Sequence[Batch]) -> list[BaseException | None]:
        """Append batches together. Returns for each batch None, or the error that refused it."""
        try:
            table = self.to_table(batches)
        except (RowError, UnsupportedFeatureError) as error:
            if len(batches) == 1:
                self.metrics.refused(error)
                return [error]
            # Each writer gets the error of its own rows, and the other rows are written.
            return [self._commit([batch])[0] for batch in batches]
        is_sealed_soon = self._waits(len(table), len(table))

        def append(shard: Shard, part: pa.Table) -> None:
            shard.append(part, self.policy.by_job, is_sealed_soon)

        try:
            self._write(table, append)
        except SketchStoreError as error:
            self.metrics.refused(error, len(batches))
            raise
        self.metrics.committed()
        # Once here, and not in each write of the commit. A writer that waits for a seal seals by itself.
        if self._is_due() and not any(map(self._must_wait, batches)):
            self._maintain_beside()
        return [None] * len(batches)

    def _is_judged(self, num_rows: int) -> bool:
        """Whether the gate checks a batch before reads show its rows."""
        return self.settings.gate.is_set and self.policy.is_fill(num_rows, self._num_sealed)

    def _fill(self, rows: Batch) -> None:
        """Write the rows of a batch if the view with them passes its gate."""
        label = f"fill-{secrets.token_hex(8)}-"
        try:
            self.commit_staged(list(self.stage([self.to_table([rows])], label)))
        except (GateError, UncertainWriteError) as error:
            self.metrics.refused(error)
            raise  # the rows are held back, or the commit may still appear: both need the files
        except BaseException as error:
            self.metrics.refused(error)
            self.discard_staged(label)
            raise
        self.metrics.committed()
        with suppress(SketchStoreError, MemoryError):  # the rows are durable: their write has not failed
            self.refresh_all()  # so that the seal of these rows is due

    def to_table(self, batches: Sequence[Batch]) -> pa.Table:
        """Batches as one table of the row log.

        Raises RowError, UnsupportedFeatureError: rows cannot be kept.
        """
        rows = [row for batch in batches if not isinstance(batch, pa.Table | ListRows) for row in batch]
        tables = [batch for batch in batches if isinstance(batch, pa.Table)]
        settings, where = self.settings, f"feature view {self.name!r}"
        try:
            tables += list_tables([b for b in batches if isinstance(b, ListRows)], settings.codecs)
            if rows:
                tables.append(self._semantics.to_log(rows, settings.join_keys))
            return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
        except RowError as error:
            raise RowError(f"{where}: {error}") from error
        except MemoryError:
            raise
        except pa.ArrowException as error:
            raise RowError(f"{where}: the rows of the batch contradict each other: {error}") from error

    def delete(self, deletions: pa.Table) -> None:
        """Delete all rows of some entities; see `rows.deletions`.

        Durable, and visible to this process, when it returns. Rows that are written later count again,
        with any timestamps.

        Raises
        ------
        RowError : nothing was deleted.
        StorageError : the rows of some shards were not deleted; it names them.
        """
        self._write(deletions, Shard.delete)

    def _write(self, table: pa.Table, write: Callable[[Shard, pa.Table], None]) -> None:
        """Call a function with the rows of each shard, for all shards at once."""
        self._register(table)
        there = self._parts
        parts = divided(table, len(there.shards))

        def attempt(number: int) -> SketchStoreError | None:
            try:
                write(there.shards[number], parts[number])
            except SketchStoreError as error:
                return error
            return None

        errors = in_threads(attempt, parts, _MAX_THREADS)
        failed = {number: error for number, error in zip(parts, errors, strict=True) if error is not None}
        if failed:
            raise refusal(self.name, failed, len(parts), self._semantics.adds_up)
        self.keep_file_behind(there.shard_map, there.shards)

    def refresh_all(self) -> None:
        """`refresh` of all shards, whether they are served or not."""
        for shard in self.shards.values():
            shard.refresh()

    def kept_rows(self) -> list[FoldedRows]:
        """`Shard.kept_rows` of each shard that has some, wherever the rows are by now."""
        self.follow()
        return [kept for shard in self.shards.values() if (kept := shard.kept_rows()) is not None]

    @property
    def snapshot_versions(self) -> tuple[int | None, ...]:
        """The number of commits that the served snapshot of each shard covers; None for one without."""
        return tuple(shard.state.snapshot_version for shard in self.shards.values())

    # -- write from many processes -----------------------------------------------------------------

    def stage(self, tables: Iterable[pa.Table], label: str) -> Iterator[StagedFile]:
        """Write tables of the row log durably into files of their shards that do not count yet; see
        `commit_staged`.

        The files' names begin with the label. Raises StorageError: files written before the failing one
        remain.
        """

        def registered() -> Iterator[pa.Table]:
            for table in tables:
                self.keep_file(table)
                yield table

        self._register()
        opened = self._parts
        num_shards = opened.shard_map.num_shards
        if num_shards == 1:  # into few files, for any number of rows
            parts: Iterable[tuple[int, Iterable[pa.Table]]] = [(0, registered())]
        else:
            parts = (
                (number, [part])
                for table in gathered(registered(), DIVIDED_ROWS, DIVIDED_BYTES)
                for number, part in divided(table, num_shards).items()
            )
        for number, rows in parts:
            yield from opened.shards[number].row_log.stage(rows, label, number, opened.shard_map.folder)

    def staged(self, entry: dict[str, Any], remedy: str = RUN_AGAIN) -> StagedFile:
        """The file that an entry of a report describes.

        Raises ShardError: the rows were divided again since; ``remedy`` says what to do.
        """
        check_division(self.name, entry["shards_folder"], self.shard_map, remedy)
        return self.shards[entry["shard"]].row_log.staged(entry)

    def commit_staged(self, files: Sequence[StagedFile], force: bool = False) -> None:
        """Commit files of `stage`, from any process, shard by shard.

        Their rows are durable, and visible to this process, when this returns. With ``force`` the view with
        their rows need not pass its gate.

        Raises
        ------
        GateError : it does not pass; the files are held back, see `holding.publish`.
        StorageError : the rows of some shards do not count; it names them.
        """
        if not files:
            return
        self._register()
        self._parts_of(files)
        for file in files:
            file.check()
        if self.settings.gate.is_set and not force:
            self._judge_fill(files)
        parts = self._parts_of(files)
        numbers, failed = sorted({file.shard for file in files}), dict[int, SketchStoreError]()
        for place, number in enumerate(numbers):
            try:
                parts.shards[number].commit_staged([file for file in files if file.shard == number])
            except SketchStoreError as error:
                failed = dict.fromkeys(numbers[place:], error)
                break
        if failed:
            raise refusal(self.name, failed, len(numbers), self._semantics.adds_up)
        self.keep_file_behind(parts.shard_map, parts.shards)

    def _parts_of(self, files: Sequence[StagedFile]) -> Parts[Shard]:
        """The shards as they are now, which must be those that the files are for."""
        parts = self._parts
        for file in files:
            check_division(self.name, file.shards_folder, parts.shard_map)
        return parts

    def discard_staged(self, label: str) -> int:
        """Delete uncommitted staged files whose names begin with a label. Returns their number."""
        return sum(len(shard.row_log.discard_staged(label)) for shard in self.shards.values())

    # -- gate: see `gate` ------------------------------------------------------------------------------------

    def judge(self, figures: Figures, remedy: str = SEAL) -> None:
        """Ask the gate about a new version of the view; parameters and errors as of `gate.judge`."""
        if not self.settings.gate.is_set:
            return
        self.refresh_all()
        layers = [part.state.sealed for part in self.shards.values()]
        sealed = tuple(layer for layer in layers if layer is not None)
        try:
            judge(self.settings, Figures.of(SealedRows(sealed)) if sealed else None, figures, remedy)
        except GateError:
            self.metrics.record(GATE_REFUSALS)
            raise

    def _judge_fill(self, files: Sequence[StagedFile]) -> None:
        with self.unchanging():
            shards = self._parts_of(files).shards  # who held the lease before may have divided the rows
            try:
                self.judge(joint_seal.figures_with(shards, files), FILL)
            except GateError as error:
                HeldBack.of(files, error).hold(self.storage, self.row_logs())
                raise

    def row_logs(self) -> dict[int, RowLog]:
        """The row log of each shard."""
        return {number: shard.row_log for number, shard in self.shards.items()}

    # -- seal ----------------------------------------------------------------------------------

    def seal(self, as_delta: bool = False, timeout_seconds: float = 0.0, force: bool = False) -> bool:
        """Build a new base of each shard from the newest row of each entity, with one numbering of values.

        Writes and reads go on meanwhile. The snapshots are published one after the other, when all of them
        are made. Returns False if another process is sealing this view, so that a second seal is not needed,
        or if there are no rows yet.

        Parameters
        ----------
        as_delta : whether to seal the rows since the last seal as deltas, if possible.
        timeout_seconds : how long to wait while another process seals.
        force : whether the new version need not pass the view's gate; deltas never have to.

        Raises
        ------
        DamagedFileError : a row log cannot be read; the previous snapshots stay.
        GateError : the new version does not pass the gate; the previous snapshots stay.
        SettingsError : the settings lack features of the view; the previous snapshots stay.
        StorageError : shards keep their previous snapshots, or some of them have new ones.
        SketchStoreError : it needs more memory than this process can have; the same.
        """
        began = time.monotonic()
        try:
            with self._naming_what_needs_memory():
                is_published = self._seal(as_delta, timeout_seconds, force)
        except SketchStoreError:
            self.metrics.sealed(time.monotonic() - began, False)
            raise
        if is_published:
            self.metrics.sealed(time.monotonic() - began, True)
        return is_published

    @contextmanager
    def _naming_what_needs_memory(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise SketchStoreError(
                f"{self.storage.location}: a seal needs more memory than this process can have. Give it "
                "more, or divide the view into more shards"
            ) from error

    def _seal(self, as_delta: bool, timeout_seconds: float, force: bool) -> bool:
        with self._seal_lock, self._leased(timeout_seconds) as is_ours:
            if not is_ours:
                return False
            self._check_features()
            if as_delta and joint_seal.seal_deltas(self.shards, self._check_features):
                return True
            try:
                is_sealed = joint_seal.seal_bases(self.shards, partial(self.approve, force=force))
            except GateError:
                self._num_refused = self.sizes().unsealed_rows
                raise
            self._num_refused = 0
            return is_sealed

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """`unchanging`, to seal the view as the settings of this process say.

        Raises
        ------
        SettingsError : the settings lack features of the view.
        StorageError : another process is sealing the view, for as long as `lock_timeout_seconds`.
        """
        with self.unchanging():
            self._check_features()
            yield

    def approve(self, figures: Figures, force: bool = False) -> None:
        """Check a seal again before it is published: a feature may have been applied and written, and its
        rows sealed, after it began. Ask the gate, unless with ``force``; see `judge`.
        """
        self._check_features()
        if not force:
            self.judge(figures)

    def _check_features(self) -> None:
        """Check that a seal would not hide features of which this process does not know."""
        if (file := ViewFile.read(self.storage)) is not None:
            file.check_known(self.settings)

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Keep other processes from sealing, rebuilding or vacuuming the view; they may write.

        Raises StorageError: another process does so, for as long as `lock_timeout_seconds`.
        """
        with self._seal_lock, self._leased(self.lock_timeout_seconds, create=True) as is_ours:
            if not is_ours:
                raise StorageError(
                    f"{self.storage.location}: another process is sealing this view, and did not end within "
                    f"{self.lock_timeout_seconds:g} seconds; try again later, or wait longer with "
                    "`feast-sketch --lock-timeout SECONDS`"
                )
            yield

    @contextmanager
    def _leased(self, timeout_seconds: float = 0.0, create: bool = False) -> Iterator[bool]:
        """Hold the view's seal lock; False if another process holds it, or there is no view to be created."""
        if self._is_leased:  # by this thread, which has `_seal_lock`
            yield True
            return
        until = time.monotonic() + timeout_seconds
        between = _LEASE_POLL_SECONDS * (100 if self.storage.fetches else 1)
        while True:
            with self.storage.lease(SEAL_LOCK, create=create) as is_ours:
                is_gone = not is_ours and not create and self.storage.info(VIEW_FILE) is None
                if is_ours or is_gone or time.monotonic() >= until:
                    if is_ours and self.registration is not None:
                        self.follow()  # who held it before may have divided the rows
                    self._hand_on_settings()
                    self._is_leased = is_ours
                    try:
                        yield is_ours
                    finally:
                        self._is_leased = False
                        self._hand_on_settings()
                    return
            time.sleep(between)  # shorter than the time between two seals of a writer

    def absorb(self) -> None:
        """Move the rows of the write-ahead logs into the tables, unless another process does so, or seals."""
        with self._naming_what_needs_memory(), self._seal_lock, self._leased() as is_ours:
            if is_ours:
                for shard in self.shards.values():
                    shard.absorb()

    def sizes(self) -> Sizes:
        """What is sealed and what is not, as far as this object knows."""
        return Sizes.sum_of(shard.sizes() for shard in self.shards.values())

    def _is_due(self) -> bool:
        """Whether a write of this process makes something due."""
        is_others = self.policy.by_job or len(self.served) < len(self.shards)
        return not is_others and self._due() is not None

    def _due(self) -> Due | None:
        """What the policy says is due."""
        if self.is_pinned:
            return None  # what was written since cannot be distinguished from it
        shards = self.shards.values()
        num_unsealed = sum(shard.num_unsealed for shard in shards)
        # Sizes in bytes take time, and this runs at every commit. The gate is not asked again about less
        # than twice the rows that it refused.
        if num_unsealed > self.policy.min_rows and num_unsealed >= 2 * self._num_refused:
            has_bases = all(shard.state.sealed is not None for shard in shards)
            if due := self.policy.due(self.sizes(), has_bases and may_have_deltas(self.settings)):
                return due
        is_long = any(shard.num_unsealed_commits > _MAX_WAL_COMMITS for shard in shards)
        return Due.ABSORPTION if is_long else None

    def _must_wait(self, rows: Batch) -> bool:
        """Whether the writer of a batch waits for a seal."""
        return self._waits(len(rows)) and self._is_due()

    def _waits(self, num_rows: int, num_more: int = 0) -> bool:
        """Whether the writer of this many rows waits for a due seal, with more rows unsealed."""
        num_unsealed = sum(shard.num_unsealed for shard in self.shards.values())
        return self.policy.waits(num_rows, self._num_sealed, num_unsealed + num_more)

    @property
    def _num_sealed(self) -> int:
        """Entities of all bases, as far as this object knows."""
        bases = (shard.state.sealed for shard in self.shards.values())
        return sum(base.num_entities for base in bases if base is not None)

    def seal_if_due(self) -> bool:
        """Seal or absorb if the policy says that it is due, whichever process wrote the rows.

        Returns whether there is a new snapshot.
        """
        with self._naming_what_needs_memory():
            self.refresh_all()
        return self._seal_if_due()

    def _seal_if_due(self) -> bool:
        with self._seal_lock:
            due = self._due()
            if due is Due.ABSORPTION:
                self.absorb()
            return due in (Due.BASE, Due.DELTA) and self.seal(as_delta=due is Due.DELTA)

    # -- seal in the background, in a thread of the process whose write made one due --------------

    def settle(self) -> None:
        """Wait for a seal that runs in the background, if there is one."""
        self._sealer.settle()

    def end_seals(self) -> None:
        """Wait for the seal that runs in the background, and let no other one begin there."""
        self._sealer.end()

    def _maintain_beside(self) -> None:
        """Seal or absorb in a thread, unless a thread already does."""
        try:
            self._sealer.start(self._maintain, self._is_due)
        except RuntimeError as error:  # the writes of the commit are durable in any case
            where = self.storage.location
            _logger.warning("%s: cannot be sealed: %s; a later write tries again", where, error)

    def _maintain(self) -> bool:
        """Seal or absorb if it is still due; of several threads, the first one does. See `seal_if_due`."""
        try:
            is_published = self._seal_if_due()
        except SketchStoreError as error:
            # The rows are durable and readable; a failed seal must not look like a failed write.
            problem = str(error)
            if problem != self._seal_problem:
                self._seal_problem = problem
                _logger.warning("%s; the rows are kept, a later write seals them", problem)
            return False
        self._seal_problem = ""
        return is_published

    # -- clean up ------------------------------------------------------------------------------

    def vacuum(self, orphan_age_seconds: float = 86_400.0) -> int | None:
        """Remove unused files: replaced rows, snapshots before the newest sound one, and leftovers.

        After a seal this removes the last trace of deleted rows. Processes that still map an old snapshot
        keep it until they refresh. Data files that no commit names, and unfinished files, are removed when
        they are older than ``orphan_age_seconds``; younger ones may belong to a writer that has not committed
        yet.

        Returns the number of files removed; None if another process seals, for as long as
        `lock_timeout_seconds`.
        """
        with self._seal_lock, self._leased(self.lock_timeout_seconds) as is_ours:
            if not is_ours:
                return 0 if ViewFile.read(self.storage) is None else None
            fill = HeldBack.read(self.storage)
            kept = frozenset[str]() if fill is None else fill.names
            num_removed = remove_left_over(self.storage, orphan_age_seconds)
            return num_removed + sum(s.vacuum(orphan_age_seconds, kept) for s in self.shards.values())
