"""Metrics for Prometheus on Feast's own endpoint: reads, refreshes, writes, seals and fetches of a process.

They are gauges and counters of `prometheus_client`, and a histogram of its values, made when they are first
set, and only if that package is loaded. Feast loads it through `feast.metrics`, after it has chosen where
forked workers keep their values; loading it here could come too early. Where it is not loaded, nothing can
scrape, so nothing is counted.

Ages are exported as timestamps: an age is ``time() - feast_sketch_last_poll_timestamp_seconds``.
"""

import functools
import logging
import math
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 0.1  # reads in this time are counted together: a counter in a file takes 1 us

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_METHODS = {COUNTER: "inc", GAUGE: "set", HISTOGRAM: "observe"}  # of prometheus_client, by kind
_REASONS = (
    *("DamagedFileError", "FormatVersionError", "GateError", "RowError", "ShardError", "StorageError"),
    *("UncertainWriteError", "UnsupportedFeatureError"),
)
_VIEW = ("project", "view", "shard")
_STORE = ("store",)


@dataclass(frozen=True)
class Metric:
    """A metric: its name, what it measures, and how the values of several processes are combined."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = _VIEW
    mode: str = ""  # of a gauge: see `multiprocess_mode` of prometheus_client


def _counter(name: str, text: str, labels: tuple[str, ...] = _VIEW) -> Metric:
    return Metric(f"feast_sketch_{name}_total", COUNTER, text, labels)


def _gauge(name: str, mode: str, text: str, labels: tuple[str, ...] = _VIEW) -> Metric:
    return Metric(f"feast_sketch_{name}", GAUGE, text, labels, mode)


READS = _counter("reads", "Batches that were read")
ENTITIES_READ = _counter("entities_read", "Entities that were read")
ABSENT_ENTITIES = _counter("absent_entities", "Entities that were read and have no row, or an expired one")
READ_SECONDS = Metric(
    "feast_sketch_read_seconds", HISTOGRAM, "Seconds that a batch took, without Feast's own part"
)
_READ_BOUNDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.05, 0.25, 1.0)
REFRESHES = _counter("refreshes", "Refreshes that found something new")
REFRESH_FAILURES = _counter(
    "refresh_failures", "Polls of the storage that failed; reads show the rows from before"
)
FALLBACKS = _counter("fallbacks", "Snapshots that were damaged; reads use an older one")
COMMITS = _counter("commits", "Commits of rows; several batches may share one")
REFUSED_COMMITS = _counter(
    "refused_commits", "Batches of rows that were refused, by the name of the error", (*_VIEW, "reason")
)
SEALS = _counter("seals", "Seals that published a snapshot")
SEAL_FAILURES = _counter("seal_failures", "Seals that failed; the rows are kept")
GATE_REFUSALS = _counter(
    "gate_refusals", "Seals, rebuilds and fills that did not pass the gate of their view"
)
SEAL_SECONDS = _counter("seal_seconds", "Seconds that seals took, failed ones included")
BACKING_LOOKUPS = _counter("backing_lookups", "Entities whose features were read from the backing store")
BACKING_FAILURES = _counter("backing_failures", "Batches that the backing store could not answer")
BACKING_LOST = _counter("backing_lost", "Values that the backing store should have had but lacked")
FETCHED_BYTES = _counter("fetched_bytes", "Bytes that were fetched from an object store", _STORE)
REQUESTS = _counter(
    "requests", "Calls of an object store: listed, read, written, deleted", (*_STORE, "operation")
)

SNAPSHOT_VERSION = _gauge("snapshot_version", "livemin", "Commits that the served snapshot covers")
SNAPSHOT_TIMESTAMP = _gauge(
    "snapshot_timestamp_seconds", "livemin", "When the served snapshot was published, by the storage's clock"
)
LAST_POLL = _gauge(
    "last_poll_timestamp_seconds",
    "livemin",
    "When the last successful poll of the storage began; everything written before is served",
)
STALE = _gauge("stale", "livemax", "1 while the last poll of the storage failed")
PINNED = _gauge("pinned", "livemax", "1 while reads are pinned to a snapshot by feast-sketch pin")
LAG_COMMITS = _gauge(
    "lag_commits", "livemax", "Least number of commits that the last poll found and that are not served yet"
)
UNSEALED_ROWS = _gauge("unsealed_rows", "livemax", "Rows that no seal has folded yet")
UNSEALED_BYTES = _gauge("unsealed_bytes", "livemax", "Bytes that unsealed rows take in each process")
EXPECTED_RATE = _gauge(
    "expected_false_positive_rate", "livemax", "Rate that the served filter is built for", (*_VIEW, "feature")
)
SAMPLED_RATE = _gauge(
    "sampled_false_positive_rate",
    "livemax",
    "Rate measured with 1,000 random entities once the snapshot was read through",
    (*_VIEW, "feature"),
)
LAST_SEAL = _gauge("last_seal_timestamp_seconds", "max", "When a seal last published a snapshot")

_OF_VIEWS = (
    *(READS, ENTITIES_READ, ABSENT_ENTITIES),
    *(COMMITS, SEALS, SEAL_FAILURES, GATE_REFUSALS, SEAL_SECONDS),
)
_OF_SHARDS = (REFRESH_FAILURES, FALLBACKS)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

# Held during each call of prometheus_client, and by who forks: nothing resets the client's own locks in a
# child, which would wait for them forever.
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

_made: dict[str, Any] = {}
_children: dict[tuple[str, ...], Any] = {}


def is_loaded() -> bool:
    """Whether metrics are recorded."""
    return hasattr(sys.modules.get("prometheus_client"), "Gauge")


def record(metric: Metric, labels: tuple[str, ...], value: Any = 1.0) -> None:
    """Add to a counter, set a gauge, or add amounts to a histogram, which without amounts is created.

    Reads and writes go on whatever that raises.
    """
    if not is_loaded():
        return
    try:
        with _lock:
            getattr(_child(metric, labels), _METHODS[metric.kind])(value)
    except Exception as error:  # an OSError; and after one in a fork, others, as its files are None
        _warn(getattr(error, "strerror", None) or repr(error))


@functools.cache
def _warn(reason: str) -> None:
    """Warn once that values cannot be written, for example because the disk is full."""
    _logger.warning("metrics are incomplete, because their files cannot be written: %s", reason)


def _child(metric: Metric, labels: tuple[str, ...]) -> Any:
    """What takes the values of a metric with these labels; the lock is held."""
    key = (metric.name, *labels)
    child = _children.get(key)
    if child is None:
        child = _children[key] = _made_of(metric).labels(*labels)
    return child


def _made_of(metric: Metric) -> Any:
    """The metric in the registry of prometheus_client; the lock is held."""
    if metric.name not in _made:
        client: Any = sys.modules["prometheus_client"]
        if metric.kind == COUNTER:
            made = client.Counter(metric.name, metric.text, metric.labels)
        elif metric.kind == HISTOGRAM:
            made = _Histogram(metric)
        else:
            made = client.Gauge(metric.name, metric.text, metric.labels, multiprocess_mode=metric.mode)
        _made[metric.name] = made
    return _made[metric.name]


class _Histogram:
    """A histogram that takes many amounts at once: prometheus_client's takes 5 us for each.

    It is a collector, and its values are those that prometheus_client shares among forked workers.
    """

    def __init__(self, metric: Metric):
        self._metric = metric
        self._children: dict[tuple[str, ...], _HistogramChild] = {}
        client: Any = sys.modules["prometheus_client"]
        self._family = client.metrics_core.HistogramMetricFamily
        client.REGISTRY.register(self)

    def labels(self, *labels: str) -> "_HistogramChild":
        """Make the histogram of some labels; `_child` calls this once for each."""
        child = self._children[labels] = _HistogramChild(self._metric, labels)
        return child

    def collect(self) -> Iterable[Any]:
        """The values of this process, for a scrape."""
        family = self._family(self._metric.name, self._metric.text, labels=self._metric.labels)
        for labels, child in list(self._children.items()):
            family.add_metric(labels, child.cumulated(), child.sum.get())
        return [family]


class _HistogramChild:
    """The buckets and the sum of one set of labels."""

    def __init__(self, metric: Metric, labels: tuple[str, ...]):
        client: Any = sys.modules["prometheus_client"]
        self._bounds = [client.utils.floatToGoString(bound) for bound in (*_READ_BOUNDS, math.inf)]
        self._buckets = [
            client.values.ValueClass(
                HISTOGRAM,
                metric.name,
                f"{metric.name}_bucket",
                (*metric.labels, "le"),
                (*labels, bound),
                metric.text,
            )
            for bound in self._bounds
        ]
        self.sum = client.values.ValueClass(
            HISTOGRAM, metric.name, f"{metric.name}_sum", metric.labels, labels, metric.text
        )

    def observe(self, amounts: Sequence[float]) -> None:
        """Add each amount to the first bucket whose bound is not less."""
        for number, count in Counter(bisect_left(_READ_BOUNDS, amount) for amount in amounts).items():
            self._buckets[number].inc(count)
        if amounts:
            self.sum.inc(sum(amounts))

    def cumulated(self) -> list[tuple[str, float]]:
        """Each bound and the number of amounts up to it."""
        return list(zip(self._bounds, accumulate(bucket.get() for bucket in self._buckets), strict=True))


class ViewMetrics:
    """The metrics of one view, or of one of its shards. Safe to use from several threads."""

    def __init__(self, project: str, view: str, shard: str = ""):
        self.labels = (project, view, shard)
        self._pending: deque[tuple[int, int, float | None]] = deque()
        self._flushed_at = 0.0
        self._has_begun = False

    @classmethod
    def at(cls, location: str) -> "ViewMetrics":
        """Metrics of a view whose names are not known, named after its folder and the one above."""
        project, _, view = location.rstrip("/").rpartition("/")
        return cls(project.rpartition("/")[2], view)

    def record(self, metric: Metric, value: float = 1.0) -> None:
        """Add to a counter, or set a gauge."""
        record(metric, self.labels, value)

    def _begin(self) -> None:
        """Start counters at 0, because Prometheus sees no increase in a counter that starts at 1. A shard
        also starts those of its view, which is not polled itself.
        """
        if not self._has_begun and is_loaded():
            self._has_begun = True
            for metric in _OF_SHARDS:
                self.record(metric, 0)
            of_view = (*self.labels[:2], "")
            for metric in _OF_VIEWS:
                record(metric, of_view, 0)
            record(READ_SECONDS, of_view, ())
            for reason in _REASONS:
                record(REFUSED_COMMITS, (*of_view, reason), 0)

    # -- reads, which must not get slower ----------------------------------------------------

    def count_read(self, num_entities: int, num_found: int, seconds: float | None = None) -> None:
        """Count a read, and how long it took if that is known. A read at least a tenth of a second later adds
        it to the counters.
        """
        self._pending.append((num_entities, num_found, seconds))
        if time.monotonic() - self._flushed_at >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Add what was read to the counters."""
        self._flushed_at = time.monotonic()
        if not is_loaded():
            self._pending.clear()
            return
        taken = []
        while self._pending:
            try:
                taken.append(self._pending.popleft())
            except IndexError:  # another thread was faster
                break
        if taken:
            entities, found, seconds = zip(*taken, strict=True)
            self.record(READS, len(taken))
            self.record(ENTITIES_READ, sum(entities))
            self.record(ABSENT_ENTITIES, sum(entities) - sum(found))
            record(READ_SECONDS, self.labels, [each for each in seconds if each is not None])

    def forget(self) -> None:
        """Reset in a forked child, which must not count the parent's reads again."""
        self._pending = deque()

    # -- what is served ------------------------------------------------------------------------

    def polled(self, is_answered: bool, seconds: float = 0.0) -> None:
        """Record the end of a poll of the storage, which took so long."""
        self._begin()
        self.record(STALE, not is_answered)
        if is_answered:
            self.record(LAST_POLL, time.time() - seconds)
        else:
            self.record(REFRESH_FAILURES)

    def serves(self, unsealed_rows: int, unsealed_bytes: int, lag_commits: int, is_pinned: bool) -> None:
        """Record what the process serves now."""
        self.record(UNSEALED_ROWS, unsealed_rows)
        self.record(UNSEALED_BYTES, unsealed_bytes)
        self.record(LAG_COMMITS, lag_commits)
        self.record(PINNED, is_pinned)

    def opened(self, version: int, published_at: float, expected: Mapping[str, float]) -> None:
        """Record that the process serves another snapshot; rates are by feature."""
        self.record(SNAPSHOT_VERSION, version)
        self.record(SNAPSHOT_TIMESTAMP, published_at)
        for feature, rate in expected.items():
            record(EXPECTED_RATE, (*self.labels, feature), rate)

    def sampled(self, rates: Mapping[str, float]) -> None:
        """Record the measured error rates of features."""
        for feature, rate in rates.items():
            record(SAMPLED_RATE, (*self.labels, feature), rate)

    # -- writes and seals ----------------------------------------------------------------------

    def committed(self) -> None:
        """Record a commit."""
        self._begin()
        self.record(COMMITS)

    def refused(self, error: BaseException, num_batches: int = 1) -> None:
        """Record batches that were refused or could not be written."""
        self._begin()
        record(REFUSED_COMMITS, (*self.labels, type(error).__name__), num_batches)

    def sealed(self, seconds: float, is_published: bool) -> None:
        """Record the end of a seal."""
        self._begin()
        self.record(SEAL_SECONDS, seconds)
        if is_published:
            self.record(SEALS)
            self.record(LAST_SEAL, time.time())
        else:
            self.record(SEAL_FAILURES)
