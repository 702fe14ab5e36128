"""The reading side of a shard: its current state, and the rules for when to poll for new rows.

A state is one immutable object. Refreshing builds the next one and swaps the reference, so reads take no
lock. While reads go on, a thread loads new rows.
"""

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from feast_sketch_store.errors import DamagedFileError, SketchStoreError, StorageError
from feast_sketch_store.layers import SealedRows
from feast_sketch_store.metrics import FALLBACKS, LAG_COMMITS, REFRESHES, ViewMetrics, is_loaded
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import SNAPSHOTS_FOLDER
from feast_sketch_store.threads import started
from feast_sketch_store.view.background import Warmer
from feast_sketch_store.view.last_known import LastKnown
from feast_sketch_store.view.loading import EMPTY, REFRESHING, SERVING, STALE, ShardLoader
from feast_sketch_store.view.semantics import RowSemantics
from feast_sketch_store.view.state import ShardState

_logger = logging.getLogger(__name__)

REFRESHER = "feast_sketch_store refresh"  # the name of threads
_AHEAD_SECONDS = 0.02  # for which a new snapshot is read before reads use it; some reads and writes wait then
_SAMPLES = 1_000  # entities that were never written, to measure error rates with

# A process always reads what it wrote. Several objects may share one storage: after a write through one of
# them the next read of the others must poll, and reads of other views need not.
_numbers = itertools.count(1)
_last_writes: dict[str, int] = {}
_last = [0]  # of any storage


@dataclass(frozen=True)
class Freshness:
    """How up to date answers are, for probes and metrics.

        EMPTY -> FETCHING -> CATCHING_UP -> SERVING <-> REFRESHING
                                            SERVING <-> STALE

    Parameters
    ----------
    state : one of these.
    age_seconds : since the last successful poll of the storage; the answers have everything written before
        it. None if there was no such poll.
    max_staleness_seconds : the greatest age at which the view counts as ready; None for any age.
    problem : why the last poll failed; empty if it did not.
    num_commits : of the row log that the answers hold.
    """

    state: str
    age_seconds: float | None
    max_staleness_seconds: float | None = None
    problem: str = ""
    num_commits: int = 0

    @property
    def has_answers(self) -> bool:
        """Whether reads are answered without waiting for the storage."""
        return self.state in (SERVING, REFRESHING, STALE)

    @property
    def is_ready(self) -> bool:
        """Whether reads should be sent here: there are answers, and they are fresh enough."""
        if not self.has_answers or self.max_staleness_seconds is None:
            return self.has_answers
        return self.age_seconds is not None and self.age_seconds <= self.max_staleness_seconds


class LiveShard:
    """A shard that is read and never written, in a storage that may be empty. Safe to use from several
    threads.

    Parameters
    ----------
    refresh_interval_seconds : how old the writes of other processes may be before a read polls for them.
    is_replica : whether a thread calls `poll` once per interval, so that no read but the first waits. If the
        storage cannot be read, a replica starts from the host's last known state.
    view : the name of the view in its snapshots; None for any.
    """

    def __init__(
        self,
        storage: Storage,
        semantics: RowSemantics,
        refresh_interval_seconds: float = 1.0,
        is_replica: bool = False,
        view: str | None = None,
    ):
        self.storage = storage
        self.metrics = ViewMetrics.at(storage.location)
        self._process_key = storage.identity
        self.refresh_interval_seconds = refresh_interval_seconds
        self.row_log = RowLog(storage)
        self.snapshots = SnapshotFolder(storage.within(SNAPSHOTS_FOLDER))
        host_path = storage.host_path if is_replica else None
        last_known = None if host_path is None else LastKnown(host_path)
        self._loader = ShardLoader(self.row_log, self.snapshots, semantics, last_known, view)
        self.is_polled = is_replica and refresh_interval_seconds > 0  # by the view
        self.state = ShardState(semantics)  # as of the last poll
        self._is_open = False  # until the storage was read for the first time
        self._starts_over = False  # whether the next refresh reads everything again
        self._was_read = False  # since a write reset it
        self._polled_at = -np.inf  # time.monotonic() when the poll began that gave the state
        self._seen_process_write = -1
        self._answered_at: float | None = None  # the same, unless a poll failed since
        self._problem = ""  # why the last poll failed; empty if it did not
        self._last_warning = ""
        # Called with another state: before reads have it, to make it ready, and afterwards. Neither holds the
        # shard, so that a replaced shard is let go at once, without the garbage collector.
        self.before_change: Callable[[ShardState], None] = lambda state: None
        self.on_change: Callable[[ShardState], None] = lambda state: None
        self.emptied_at = 0.0  # time.monotonic() when the rows that were there were gone; 0 if they were not
        self.filled_at = 0.0  # ... when the first rows of an empty shard were found; 0 if it was never empty
        self.reset_locks()

    def reset_locks(self) -> None:
        """Replace locks that another thread of the parent process may have held when it forked."""
        self.row_log.reset()
        self._refresh_lock = threading.Lock()  # guards what a poll changes
        self._refresher: threading.Thread | None = None  # the latest one, which may be done
        self._warmer = Warmer()

    def close(self) -> None:
        """Wait for a refresh that is under way, so that the view's files can be closed."""
        with self._refresh_lock:  # held while a thread is started
            refresher = self._refresher
        if refresher is not None:
            refresher.join()
        self._warmer.stop()

    def warm_up(self) -> None:
        """Open the view, and wait until its snapshot is in memory, so that the first reads do not."""
        self.current()
        self._warmer.wait()

    # -- read ----------------------------------------------------------------------------------

    def current(self) -> ShardState:
        """The state that reads see now."""
        self._was_read = True
        self._refresh_if_due()
        return self.state

    @property
    def has_moved(self) -> bool:
        """Whether the rows were divided into other shards, as of the last poll; the state stays the same."""
        return self._loader.has_moved

    def stay(self, problem: str) -> None:
        """Serve on what was read before, although the rows may be in other shards."""
        self._problem = problem

    # -- refresh -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Load everything that was written or sealed before this call.

        Raises DamagedFileError: a file cannot be read, and there is no earlier state to keep serving.
        """
        with self._refresh_lock:
            self._refresh(self.state, self._was_read)

    def _refresh(self, state: ShardState | None, reads_go_on: bool = False) -> None:
        """Take up what is new.

        Parameters
        ----------
        state : to start from; None to read everything.
        reads_go_on : whether reads use the state before meanwhile, so that this one is made ready for them.
        """
        seen, now = last_write(self._process_key), time.monotonic()
        before = self.state
        new = self._loader.load(None if self._starts_over else state)
        self._make_ready(before, new, reads_go_on and before.sealed is not None)
        self.state = new
        if not new.is_empty:
            self.emptied_at = 0.0
            if before.is_empty and self._is_open:
                self.filled_at = now
        elif not before.is_empty:
            self.emptied_at = now
        self._starts_over = False
        self._seen_process_write, self._polled_at = seen, now
        if not self.has_moved:  # else others may have written where the rows are now
            self._is_open, self._answered_at, self._problem = True, now, ""
        self.on_change(self.state)
        if is_loaded():
            self._measure(before, new)

    def _make_ready(self, before: ShardState, state: ShardState, ahead: bool) -> None:
        """Have a new snapshot read ahead of time, and make what the next reads need."""
        if state.sealed is not None and state.snapshot != before.snapshot:
            checks = [check for layer in state.sealed_layers for check in layer.checks]
            # A read of a block that nobody checked takes many times as long.
            seconds = min(_AHEAD_SECONDS, self.refresh_interval_seconds / 8) if ahead else 0.0
            sealed = SealedRows((state.sealed,))
            self._warmer.start(checks, seconds, functools.partial(self._measure_rates, sealed))
        if ahead:
            self.before_change(state)

    def _measure(self, before: ShardState, state: ShardState) -> None:
        """Update metrics of what is served."""
        metrics = self.metrics
        metrics.polled(True, time.monotonic() - self._polled_at)
        lag = self._loader.lag_commits(state)
        metrics.serves(state.unsealed_rows, state.unsealed_bytes, lag, bool(state.pinned))
        if state.position != before.position or state.newest_seen != before.newest_seen:
            metrics.record(REFRESHES)
        if state.newest_seen not in (before.newest_seen, state.snapshot):
            metrics.record(FALLBACKS)
        if state.snapshot is not None and state.sealed is not None and state.snapshot != before.snapshot:
            with suppress(SketchStoreError):  # reads meet the error and handle it
                published_at = state.snapshot.published_at()
                rates = SealedRows((state.sealed,)).expected_rates()
                metrics.opened(state.snapshot.version, published_at, rates)

    def _measure_rates(self, sealed: SealedRows) -> None:
        """Update the metric of error rates, with a sample that touches many blocks of a filter."""
        if is_loaded():
            with suppress(SketchStoreError, ValueError):  # the same
                self.metrics.sampled(sealed.sampled_rates(sealed.expected_rates(), _SAMPLES))

    def freshness(self, poll: bool = False) -> Freshness:
        """How up to date answers are.

        With ``poll`` it polls the storage first, if a poll is due, and reports if that fails. A probe
        should, because without reads nothing else does.
        """
        if poll:
            with suppress(SketchStoreError):
                self._refresh_if_due()
        state, answered_at, problem = self.state, self._answered_at, self._problem
        if not self._is_open:
            phase = self._loader.phase if self._refresh_lock.locked() else EMPTY
        elif problem:
            phase = STALE
        else:
            phase = REFRESHING if self._refresh_lock.locked() else SERVING
        return Freshness(
            phase,
            None if answered_at is None else max(0.0, time.monotonic() - answered_at),
            None,
            problem,
            state.position.number + 1,
        )

    @property
    def good_until(self) -> float:
        """When the next read must poll for writes of others, by time.monotonic(); -inf for now."""
        return -np.inf if self._is_stale(np.inf) else self._polled_at + self.refresh_interval_seconds

    def is_fresh(self) -> bool:
        """Whether a read would be answered from memory, without a poll of the storage."""
        return not self._is_stale(np.inf if self.is_polled else self.refresh_interval_seconds / 2)

    def _refresh_if_due(self) -> None:
        """Poll the storage if a poll is due.

        A read that must see a write of its own process waits for the poll, and so does a read after a pause.
        While reads follow each other closely, a thread loads new rows half an interval ahead of time.
        """
        if not self.is_fresh():
            self._poll_in_turn()

    def _poll_in_turn(self) -> None:
        """Poll the storage, unless another thread does and the state is fresh enough, or has done so since
        this call began.
        """
        asked_at = time.monotonic()
        # A second reader may use the old state during a refresh, if that is not too old.
        if self._refresh_lock.locked() and not self._is_stale(self.refresh_interval_seconds):
            return
        with self._refresh_lock:  # after an interrupt, a call of `acquire` would leave it locked
            if self._polled_at >= asked_at and not self._is_stale(np.inf):
                return
            if self._is_stale(self.refresh_interval_seconds):
                self._refresh_or_warn()
            elif self._is_stale(self.refresh_interval_seconds / 2) and self._is_outdated():
                if self._refresher is not None and self._refresher.is_alive():
                    return
                self._refresher = threading.Thread(target=self._refresh_in_thread, name=REFRESHER)
                if not started(self._refresher):
                    self._refresher = None
                    self._refresh_or_warn()

    def poll(self) -> None:
        """Poll the storage and load what is new. Raises nothing, because the next poll may succeed."""
        try:
            with self._refresh_lock:
                if self._is_outdated():
                    self._refresh_or_warn(reads_go_on=True)
        except Exception as error:
            self._problem = str(error) or type(error).__name__
            if self._problem != self._last_warning:
                self._last_warning = self._problem
                _logger.warning("%s: cannot be refreshed", self.storage.location, exc_info=True)

    def _is_stale(self, seconds: float) -> bool:
        """Whether the state lacks a write of this process, or is too old to have the writes of others."""
        return self._has_unseen_write() or self._is_older_than(seconds)

    def _is_older_than(self, seconds: float) -> bool:
        is_unknown = not self._is_open or self._starts_over
        return is_unknown or time.monotonic() - self._polled_at >= seconds

    def _is_outdated(self, state: ShardState | None = None) -> bool:
        """Whether a state, by default the one that is served, lacks anything that this thread or others may
        take up.
        """
        state, now = state or self.state, time.monotonic()
        try:
            is_outdated = self._loader.is_outdated(state)
        except SketchStoreError:
            return True  # the refresh meets the error again and reports it
        if not is_outdated:
            self._polled_at = self._answered_at = now
            self._problem = ""
            self.metrics.polled(True, time.monotonic() - now)
        self.metrics.record(LAG_COMMITS, max(is_outdated, self._loader.lag_commits(state)))
        return is_outdated

    def _refresh_in_thread(self) -> None:
        """Load new rows while reads go on."""
        with self._refresh_lock:
            self._refresh_or_warn(reads_go_on=True)

    def _refresh_or_warn(self, reads_go_on: bool = False) -> None:
        """Refresh. If that fails, keep the current state, if there is one."""
        seen = last_write(self._process_key)
        try:
            self._refresh(self.state, reads_go_on)
        except (DamagedFileError, StorageError, MemoryError) as error:
            needs = f"{self.storage.location}: a refresh needs more memory than this process can have"
            self._problem = needs if isinstance(error, MemoryError) else str(error)
            if not self._is_open and not self._start_from_last_known():
                raise
            # Not again at every read; a failure may have taken longer than an interval.
            self._seen_process_write, self._polled_at = seen, time.monotonic()
            self.metrics.polled(False)
            if self._problem != self._last_warning:  # once, not at every refresh
                self._last_warning = self._problem
                _logger.warning("%s; serving what was read before", self._problem)

    def _start_from_last_known(self) -> bool:
        """Serve this host's last known state, if there is one."""
        found = self._loader.last_known()
        if found is None:
            return False
        self.state, age_seconds = found
        self._answered_at = time.monotonic() - age_seconds
        self._is_open, self._starts_over = True, False
        self.on_change(self.state)
        return True

    def give_up_snapshot(self, state: ShardState, error: DamagedFileError) -> None:
        """Serve an older snapshot after a read met a damaged block. Raises without an older one."""
        with self._refresh_lock:
            if state.snapshot is None:
                raise error
            if self.state.snapshot == state.snapshot:  # otherwise another thread was first
                self._loader.give_up(state.snapshot, error)
                self._refresh(None)

    def _has_unseen_write(self) -> bool:
        return self._seen_process_write != last_write(self._process_key)


def expire_before_of(ttl_microseconds: int | None, moment: int | None = None) -> int:
    """The event timestamp before which rows have expired at a moment, now by default; in microseconds since
    1970.
    """
    if ttl_microseconds is None:
        return NO_TIMESTAMP
    return (time.time_ns() // 1000 if moment is None else moment) - ttl_microseconds


def note_write(storage: str) -> int:
    """Record a write of this process to the view whose storage has this identity, and return its number."""
    number = _last_writes[storage] = _last[0] = next(_numbers)
    return number


def last_of_all() -> int:
    """A number that differs after each write of this process, to any view."""
    return _last[0]


def last_write(storage: str) -> int:
    """The number of this process's last write to the view in a storage; 0 if there was none."""
    return _last_writes.get(storage, 0)
