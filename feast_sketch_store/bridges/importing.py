"""Fill a view with the rows of another of Feast's online stores, without the offline store.

    scan     pages of the other store -> keys -> rows of a row log in a folder of its own
    again    a second scan finds what changed during the first, because a scan is not a snapshot
    newest   one row of each entity is left, also where rows would add up: the other store had one
    swap     the rows appear in one step, with those written here; the newest row of an entity wins.
             In a view with shards they appear shard by shard

An interrupted import continues its first scan where it stopped when it is run again; the second one begins
anew, as the other store has changed since. Before the swap an import has changed nothing.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from feast import FeatureStore

from feast_sketch_store.bridges.base import Bridge, OtherStore, OtherView, Pace, Page, entity_key, open_bridge
from feast_sketch_store.bridges.hashed_keys import KeyFinder
from feast_sketch_store.errors import GateError, RowError, SettingsError, StorageError, counted
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.operations.backing import refill
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.encoding import FeastRow, RowKeys, row_keys
from feast_sketch_store.rows.entity_keys import find_sorted, key_text
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import IMPORT_FOLDER
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.semantics import named

EXACT, RECOVERED, GIVEN = "exact", "recovered", "given"

_ROWS_A_COMMIT = 20_000
_STATE_FILE = "import.json"
_MAX_TOLD = 1_000  # rows that a report names


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    view: str  # its name
    source: str  # the kind of the other store
    # where keys come from: ``exact``, from the format; ``recovered``, computed from their hashes; ``given``,
    # from a file
    keys: str
    rows: int  # number of rows read, including repeated ones
    changed: int  # rows that the second scan found to be new or newer
    entities: int | None  # of the view after the import; None for a dry run
    num_skipped: int = 0  # rows that the view cannot keep and that were left out
    # the reasons by the keys of their entities, for the first 1,000 of these rows
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass
class _State:
    """The progress of an import: the scan, the position in it, and the rows read."""

    source: str
    scan: int = 1
    position: str | None = None
    rows: int = 0
    rows_again: int = 0
    changed: int = 0

    @classmethod
    def load(cls, storage: Storage, source: str) -> "_State":
        """The state of an earlier run, if it read from the same source; otherwise removes all of it."""
        if _STATE_FILE in storage.list():
            try:
                state = cls(**json.loads(storage.read(_STATE_FILE)))
            except (ValueError, TypeError):  # written by another version, or not by an import
                state = cls("")
            if state.source == source:
                return state
        storage.delete_all()
        return cls(source)

    def save(self, storage: Storage) -> None:
        storage.replace(_STATE_FILE, json.dumps(vars(self)).encode())


def import_view(
    store: FeatureStore,
    view: str,
    other: Path,
    keys: Path | None = None,
    dry_run: bool = False,
    max_rows_per_second: float | None = None,
    on_progress: Callable[[int, int | None], object] = lambda rows, total: None,
    skip_bad: bool = False,
) -> Imported:
    """Fill a view from another online store, which is only read.

    Rows that are in the view already, or are written meanwhile, are kept and compete with the new ones; in a
    view to which rows append they add up. A row that is imported again, with the same times, counts once.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    other : the ``feature_store.yaml`` of the repository whose online store has the rows.
    keys : a Parquet file with a column for each join key, for stores with hashes of keys that cannot be
        computed back.
    dry_run : read and check all rows, and change nothing.
    max_rows_per_second : spares the other store; None for no limit.
    on_progress : called with the number of rows read in this scan, and the expected total or None.
    skip_bad : leave out rows that the view cannot keep, and report them.

    Raises
    ------
    SettingsError : the other configuration or the keys cannot be used, or keys of some rows are missing.
    RowError : the view as declared cannot keep some rows. A dry run counts them all; otherwise an import ends
        at the first commit that has some.
    GateError : the rows do not pass the gate of the view; the next import reads all of them again.
    StorageError : the other store cannot be read or has no rows of the view, or another process is sealing
        the view.
    """
    online_store, table = online_store_of(store), any_feature_view(store, view)
    other_view = OtherView(OtherStore.load(other), table)
    opened = online_store.writer(store.config, table)
    finder = KeyFinder(table, keys)
    bridge = open_bridge(other_view)
    try:
        if not bridge.has_keys and finder.needs_keys:
            raise SettingsError(
                f"{other_view}: the store keeps hashes of keys, which can be computed back for a single "
                "Int64 join key only; name a Parquet file of all keys with --keys"
            )
        source, pace = _fingerprint(other_view, keys, opened.settings), Pace(max_rows_per_second)
        run = _Import(bridge, finder, pace, on_progress, opened.settings, source, skip_bad)
        how = EXACT if bridge.has_keys else RECOVERED if keys is None else GIVEN
        if dry_run:
            run.check()
            return run.imported(view, how, None)
        staging = opened.storage.within(IMPORT_FOLDER)

        def fill(own: Storage) -> Storage:
            run.stage(staging)
            newest = RowLog(own)
            for _, rows in NewestRows(RowLog(staging).read().batches).batches():
                newest.append(rows)
            return own

        try:
            entities = rebuild(opened, fill, keep=True)
        except GateError:
            staging.delete_all()  # what is corrected over there need not be newer than what was read
            raise
        staging.delete_all()
        if opened.settings.backed_codecs:
            refill(store, view)
    finally:
        bridge.close()
    return run.imported(view, how, entities)


def _fingerprint(view: OtherView, keys: Path | None, settings: ViewSettings) -> str:
    """The source of an import and the declaration of its rows, as a hash because it includes credentials."""
    config: Any = view.config.online_store
    declared = str((settings.codecs, settings.join_keys, settings.semantics))
    parts = [config.model_dump_json(), view.config.project, view.name, declared]
    if keys is not None:
        info = keys.stat()
        parts += [str(keys.absolute()), str(info.st_size), str(info.st_mtime_ns)]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


class _Import:
    """Reads the rows of another store, no faster than allowed, and stages those that the view can keep."""

    def __init__(
        self,
        bridge: Bridge,
        finder: KeyFinder,
        pace: Pace,
        on_progress: Callable[[int, int | None], object],
        settings: ViewSettings,
        source: str,
        skip_bad: bool,
    ):
        self._bridge, self._finder, self._pace, self._on_progress = bridge, finder, pace, on_progress
        self._settings, self._skip_bad = settings, skip_bad
        self._semantics = named(settings.semantics, settings.codecs)
        self.state = _State(source)
        # Of this scan: an earlier one may have found what is corrected by now, here or over there.
        self._num_skipped = 0
        self._skipped: dict[str, str] = {}
        counted = bridge.count()
        self._total = None if counted is None else round(counted.value)

    def imported(self, view: str, how: str, entities: int | None) -> Imported:
        """The result."""
        state, kind = self.state, self._bridge.view.store.kind
        return Imported(
            view, kind, how, state.rows, state.changed, entities, self._num_skipped, self._skipped
        )

    def check(self) -> None:
        """Read all rows, and check whether the view could keep them."""
        for rows, _ in self._rows(None):
            self._kept(rows)
            self.state.rows += len(rows)
        self._refuse(f"of {counted(self.state.rows, 'row')}")

    def stage(self, storage: Storage) -> None:
        """Write all rows to a row log of their own, starting where an earlier run stopped."""
        storage.prepare()
        self.state = _State.load(storage, self.state.source)
        if self.state.scan >= 2:  # what has changed since an earlier run may be anywhere
            self.state.scan, self.state.position, self.state.rows_again = 2, None, 0
        log = RowLog(storage)
        while self.state.scan <= 2:
            known = NewestRows(log.read().batches).keys if self.state.scan == 2 and log.read() else None
            for rows, position in self._commits():
                self._append(log, rows, known)
                self.state.position = position
                self.state.save(storage)
            self.state.scan, self.state.position = self.state.scan + 1, None
            self.state.save(storage)
        if not log.read() or not self.state.rows_again:
            storage.delete_all()  # the next run begins anew
            raise StorageError(f"{self._bridge.view}: {self._why_nothing()}; nothing was imported")

    def _why_nothing(self) -> str:
        """Why two scans have left nothing to import."""
        found = counted(self.state.rows, "row")
        if self.state.rows_again:
            return f"none of {found} can be kept"
        if self.state.rows:
            return f"the first scan found {found}, and the second none: fill that store again"
        return "there are no rows"

    def _rows(self, position: str | None) -> Iterator[tuple[list[FeastRow], str]]:
        """The rows of a scan from ``position`` on, in pages with the position after each.

        Raises SettingsError: the key of a row is not known.
        """
        num_scanned = self._num_skipped = 0
        self._skipped = {}
        for page in self._bridge.pages(position):
            yield self._keyed(page), page.position
            num_scanned += page.num_scanned
            self._on_progress(min(num_scanned, self._total or num_scanned), self._total)
            self._pace.wait(len(page.rows))

    def _keyed(self, page: Page) -> list[FeastRow]:
        if self._bridge.has_keys:
            return [(entity_key(row), *row[1:]) for row in page.rows]
        try:
            found = self._finder.find([str(row.entity) for row in page.rows])
        except RowError as error:
            raise RowError(f"{self._bridge.view}: {error}") from error
        missing = [row.entity for row, key in zip(page.rows, found, strict=True) if key is None]
        if missing:
            raise SettingsError(
                f"{self._bridge.view}: no key is known for {len(missing)} of {len(found)} entity ids of a "
                f"page, {missing[0]} among them; give a Parquet file with the keys of all entities as "
                "--keys. Nothing was imported"
            )
        return [(key, *row[1:]) for row, key in zip(page.rows, found, strict=True) if key is not None]

    def _commits(self) -> Iterator[tuple[list[FeastRow], str]]:
        """Rows for one commit at a time, and the position after them."""
        gathered: list[FeastRow] = []
        position = self.state.position
        for rows, position in self._rows(self.state.position):
            gathered += rows
            if len(gathered) >= _ROWS_A_COMMIT:
                yield gathered, position
                gathered = []
        if gathered and position is not None:
            yield gathered, position

    def _append(self, log: RowLog, rows: list[FeastRow], known: RowKeys | None) -> None:
        if not rows:
            return
        table = self._kept(rows)
        num_read = self.state.rows if self.state.scan == 1 else self.state.rows_again
        self._refuse(f"of the first {counted(num_read + len(rows), 'row')}")
        if self.state.scan == 1:
            self.state.rows += len(rows)
        else:
            self.state.rows_again += len(rows)
            keys = row_keys(table)
            is_new = np.ones(len(keys), np.bool_)
            if known is not None:
                found, places = find_sorted(known.entity_hashes, keys.entity_hashes)
                is_new[found] = known.older_than(places, keys, found)
            self.state.changed += int(is_new.sum())
            # The others are written, too: their values may have changed within the resolution of timestamps.
        if len(table):
            log.append(table)

    def _kept(self, rows: list[FeastRow]) -> pa.Table:
        """The rows that the view can keep, as a table of the row log; notes the others."""
        try:
            return self._table(rows)
        except RowError:
            good = [row for row in rows if self._is_good(row)]
            return self._table(good)

    def _is_good(self, row: FeastRow) -> bool:
        """Whether the view can keep a row; notes one that it cannot keep."""
        try:
            self._table([row])
        except RowError as error:
            self._num_skipped += 1
            if len(self._skipped) < _MAX_TOLD:
                self._skipped[key_text(row[0])] = str(error).replace("row 0 of the batch", "it")
            return False
        return True

    def _table(self, rows: list[FeastRow]) -> pa.Table:
        return self._semantics.to_log(rows, self._settings.join_keys)

    def _refuse(self, among: str) -> None:
        """Raise an error if there are rows that cannot be kept, unless they are left out."""
        if self._num_skipped and not self._skip_bad:
            key, reason = next(iter(self._skipped.items()))
            raise RowError(
                f"{self._bridge.view}: {self._num_skipped:,} {among} cannot be kept. The first is of the "
                f"entity {key}: {reason}. Nothing was imported; declare the view as it was when these rows "
                "were written, or leave such rows out with --skip-bad (`skip_bad=True`). --dry-run counts "
                "them all"
            )
