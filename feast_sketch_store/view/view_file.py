"""The file of a view: its shards, join keys and features, for processes that do not have its definition.

    view.json    {"checksum": "9c1e...", "features": [...], "format_version": 1, "join_keys": {...},
                  "semantics": ..., "shards": ...}

`feast apply` writes it, and so does the first write of a process, before the row, if it lacks what the row
has. A feature that the definition no longer has stays in the file, because its rows stay in the row log.
"""

import json
import math
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from feast_sketch_store.errors import (
    DamagedFileError,
    FormatVersionError,
    SettingsError,
    SketchStoreError,
    StorageError,
    UnsupportedFeatureError,
    summed_up,
)
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.binning import Binning, Precision, Quantiles
from feast_sketch_store.rows.codecs import ATTRIBUTE, COUNTS, COUNTS_OF, LIST, TIMES, FeatureCodec
from feast_sketch_store.rows.columns import check_new_columns
from feast_sketch_store.rows.counting import Counting
from feast_sketch_store.rows.encoding import ENTITY_KEY
from feast_sketch_store.rows.entity_keys import JoinKeys, join_keys_of, join_keys_text
from feast_sketch_store.rows.listing import Attribute, Listing
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.base import FileExistsAlreadyError, MissingFileError, Storage
from feast_sketch_store.storage.names import ROWS_FOLDER, VIEW_FILE, VIEW_LOCK
from feast_sketch_store.structures.goals import NOISE_RATIO, Goal
from feast_sketch_store.structures.parts import checked
from feast_sketch_store.structures.sizing import AUTO_NOISE_RATIO
from feast_sketch_store.view.shard_map import ShardMap, check_map, found_map

FORMAT_VERSION = 1
_NOTE = ".view"  # ends the name of a view's file on a replica's host
_NO_CHECKSUM = b"0" * 32  # in place of the checksum in the bytes that it is of

_SECONDS = 1.0  # between two checks of the file for other shards; in a bucket ten times as many
_MAX_ATTEMPTS = 20

_REMEDY = "give it a new name, or remove the view with `feast apply`, add it again and materialize"


@dataclass(frozen=True)
class ViewFile:
    """What the file of a view says."""

    shard_map: ShardMap
    codecs: tuple[FeatureCodec, ...] = ()  # one per feature that any process has declared
    semantics: str = "replace"  # how rows of an entity combine, see `view.semantics`
    join_keys: JoinKeys | None = None  # of its rows; None if no process knew them yet
    removed: frozenset[str] = frozenset()  # features that the last `feast apply` no longer declared

    @classmethod
    def of(cls, settings: ViewSettings, shard_map: ShardMap, rows: pa.Table | None = None) -> Self:
        """The file of a view with these settings.

        Types of join keys that settings lack come from the rows of the row log.
        """
        file = cls(shard_map, tuple(settings.codecs), settings.semantics, settings.join_keys)
        if not file.has_join_keys and rows is not None and len(rows):
            file = replace(file, join_keys=join_keys_of(rows[ENTITY_KEY][0].as_py()))
        return file

    @classmethod
    def read(cls, storage: Storage) -> Self | None:
        """Read the file of a view; None if there is none.

        Raises DamagedFileError, StorageError: the file is damaged, or cannot be read.
        """
        try:
            content = storage.read(VIEW_FILE)
        except MissingFileError:
            return None
        return cls.decode(content, storage.where(VIEW_FILE))

    @classmethod
    def known(cls, storage: Storage, notes: bool) -> Self | None:
        """`read`, or what this host has noted while the storage is out of reach.

        With ``notes`` the file is noted on this host, as replicas do.
        """
        try:
            file = cls.read(storage)
        except StorageError:
            with suppress(OSError, DamagedFileError):
                if (path := storage.host_path) is not None:
                    note = path.with_name(path.name + _NOTE)
                    return cls.decode(note.read_bytes(), str(note))
            raise
        if notes and file is not None:
            file.note(storage)
        return file

    def note(self, storage: Storage) -> None:
        """Keep the file on this host for later starts; a failure has no other effect."""
        if (path := storage.host_path) is not None:
            with suppress(OSError):
                note = path.with_name(path.name + _NOTE)
                note.parent.mkdir(parents=True, exist_ok=True)
                draft = note.with_name(f"{note.name}.{secrets.token_hex(4)}.tmp")
                draft.write_bytes(self.encode())
                draft.replace(note)

    @classmethod
    def decode(cls, content: bytes, source: str) -> Self:
        """The reverse of `encode`; errors name the ``source``.

        Raises DamagedFileError, FormatVersionError: the content is truncated, altered, or of another kind or
        version.
        """
        try:
            entries: dict[str, Any] = checked(json.loads(content), dict)
            version, checksum = entries["format_version"], checked(entries["checksum"], str)
            if version != FORMAT_VERSION:
                raise FormatVersionError.of(source, version, FORMAT_VERSION, kind="view file")
            if checksum_of(content.replace(checksum.encode(), _NO_CHECKSUM, 1)) != checksum:
                raise ValueError("its checksum does not match")  # noqa: TRY301
            join_keys, features = entries["join_keys"], checked(entries["features"], list)
            return cls(
                ShardMap.of_entry(entries["shards"]),
                tuple(map(_codec_of, features)),
                checked(entries["semantics"], str),
                None if join_keys is None else dict(checked(join_keys, dict)),
                frozenset(entry["name"] for entry in features if entry.get("is_removed")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(
                f"{source}: not the file of a view, or damaged: {error}. The rows are intact. Restore the "
                "file from a copy, or remove it: `feast apply` makes it again"
            ) from error

    def encode(self) -> bytes:
        """The content of the file."""
        marks = {name: {"is_removed": True} for name in self.removed}
        content: dict[str, Any] = {
            "checksum": _NO_CHECKSUM.decode(),
            "features": [_entry_of(c) | marks.get(c.feature, {}) for c in self.codecs],
            "format_version": FORMAT_VERSION,
            "join_keys": None if self.join_keys is None else dict(self.join_keys),
            "semantics": self.semantics,
            "shards": self.shard_map.to_entry(),
        }
        encoded = json.dumps(content, sort_keys=True).encode()
        return encoded.replace(_NO_CHECKSUM, checksum_of(encoded).encode(), 1)

    def check_known(self, settings: ViewSettings) -> None:
        """Raise SettingsError: the view has features that a process with these settings does not know."""
        if unknown := sorted(self._by_name().keys() - settings.features.keys() - self.removed):
            raise SettingsError(
                f"feature view {settings.view!r} has the features {', '.join(unknown)}, which this process "
                "does not know, so that its seal would hide them. Let it read the registry again, with Feast "
                "by `store.refresh_registry()`; or run `feast apply` if they were removed"
            )

    @property
    def has_join_keys(self) -> bool:
        """Whether the type of each join key is known."""
        return self.join_keys is not None and None not in self.join_keys.values()

    def joined_by(self, newer: "ViewFile", overrides: bool) -> "ViewFile":
        """The file with the features of another one that it does not contradict.

        With ``overrides`` the other one says how features that both have are kept.
        """
        known, added = self._by_name(), newer._by_name()
        codecs = {**added, **known, **added} if overrides else {**known, **added, **known}
        join_keys = self.join_keys if newer.join_keys is None else newer.join_keys
        if join_keys is not None and self.join_keys is not None:
            join_keys = {name: kind or self.join_keys.get(name) for name, kind in join_keys.items()}
        return replace(self, codecs=tuple(codecs.values()), join_keys=join_keys)

    def contradictions(self, newer: "ViewFile", view: str) -> Iterator[SketchStoreError]:
        """Why rows that were written to this view cannot be read as another file says."""
        known = self._by_name()
        both = [(known[codec.feature], codec) for codec in newer.codecs if codec.feature in known]
        are_alike = self.semantics == newer.semantics
        changed = {
            now.feature: f"feature {now.feature!r} of view {view!r} was written as {self._kind_text(was)} "
            f"and is declared as {newer._kind_text(now)} now"
            for was, now in both
            if was.value_field != now.value_field
            or (are_alike and self._kind_text(was) != self._kind_text(now))
        }
        changed |= {
            now.feature: f"list {now.feature!r} of view {view!r} was written with the attributes "
            f"{_attributes_text(was)} and is declared with {_attributes_text(now)} now"
            for was, now in both
            if _attributes_text(was) != _attributes_text(now)
        }
        if changed:
            yield UnsupportedFeatureError(f"{'; '.join(changed.values())}; {_REMEDY}")
        elif self.semantics != newer.semantics:
            yield UnsupportedFeatureError(
                f"the rows of feature view {view!r} {self.semantics}, and are declared to {newer.semantics} "
                "now; give the view a new name, or remove it with `feast apply`, add it again and "
                "materialize"
            )
        try:
            check_new_columns(known, (codec.feature for codec in newer.codecs))
        except UnsupportedFeatureError as error:
            yield error
        if not self.has_keys(newer.join_keys):
            stored, declared = (join_keys_text(file.join_keys or {}) for file in (self, newer))
            yield SettingsError(
                f"the rows of feature view {view!r} are keyed by {stored}, and it has the join keys "
                f"{declared} now: no row could be found. Give the view a new name, or remove it with `feast "
                "apply`, add it again and materialize"
            )

    def has_keys(self, declared: JoinKeys | None) -> bool:
        """Whether rows may have these join keys, as far as names and types are known."""
        stored = self.join_keys
        if stored is None or declared is None:
            return True
        pairs = [(stored.get(name, ""), kind) for name, kind in declared.items()]
        is_other = any(None not in kinds and kinds[0] != kinds[1] for kinds in pairs)
        return not is_other and declared.keys() == stored.keys()

    def settings(self, view: str) -> ViewSettings:
        """Settings with which a view is read as the file says. Nothing is to be sealed with them."""
        goal = Goal(NOISE_RATIO, AUTO_NOISE_RATIO)
        features = {codec.feature: FeatureSettings(codec, goal, 0) for codec in self.codecs}
        number = self.shard_map.num_shards
        return ViewSettings(
            view, 0.0, features, join_keys=self.join_keys, semantics=self.semantics, num_shards=number
        )

    def check(self, storage: Storage, settings: ViewSettings) -> bool:
        """Check that the rows of a view, if there are any, can be read with its settings.

        Returns whether the settings contradict the file, which does not matter because there are no rows.

        Raises UnsupportedFeatureError, SettingsError: a feature or join key has another type than rows that
        were written.
        """
        problems = [*self.contradictions(ViewFile.of(settings, self.shard_map), settings.view)]
        if problems and has_rows(storage, self.shard_map):
            # Feast reports no removal of an on-demand view, nor of one that the registry alone has lost.
            remedy = f"if this one is new, remove {storage.location} first, which has the rows of the former"
            raise summed_up([type(problem)(f"{problem}; {remedy}") for problem in problems])
        return bool(problems)

    def _kind_text(self, codec: FeatureCodec) -> str:
        """The type of a feature, and the tag that gives it other columns in the row log or lets its rows add
        up, for messages and comparisons.
        """
        adds_up = codec.is_counted and self.semantics == "append"
        tag = "of" if codec.is_derived else "ids_of" if codec.ids_of else ""
        tag = tag or (f"codec: {codec.name}" if codec.is_list or adds_up else "")
        return f"{codec.type_text} with the tag sketch.{tag}" if tag else codec.type_text

    def _by_name(self) -> dict[str, FeatureCodec]:
        return {codec.feature: codec for codec in self.codecs}


def _entry_of(codec: FeatureCodec) -> dict[str, Any]:
    """How a feature is declared."""
    entry: dict[str, Any] = {"codec": codec.name, "name": codec.feature, "value_field": codec.value_field}
    if isinstance(codec.binning, Precision):
        entry["precision"] = codec.binning.step
    elif isinstance(codec.binning, Quantiles):
        entry["bins"] = codec.binning.count
    if codec.listing is not None:
        entry["limit"] = codec.listing.limit
        entry["resolution_microseconds"] = codec.listing.resolution_microseconds
        if codec.listing.attributes:
            entry["attributes"] = [attribute.entry for attribute in codec.attributes]
    if codec.counting is not None:
        entry["counts"] = codec.counting.feature
        entry["error"] = [codec.counting.absolute, codec.counting.relative]
    if codec.source or codec.ids_of:
        entry["of"] = codec.source or codec.ids_of
    return entry


def _codec_of(entry: dict[str, Any]) -> FeatureCodec:
    """The reverse of `_entry_of`.

    Raises ValueError, KeyError, TypeError: the entry is not a declaration of a feature.
    """
    kind = checked(entry["codec"], str)
    binning: Binning | None = None
    absolute, relative = entry.get("error", (0, 0.0))
    if "precision" in entry:
        binning = Precision(checked(entry["precision"], float))
    elif "bins" in entry:
        binning = Quantiles(checked(entry["bins"], int))
    return FeatureCodec(
        checked(entry["name"], str),
        checked(entry["value_field"], str),
        kind,
        binning,
        _listing_of(entry) if kind == LIST else None,
        entry["of"] if kind == TIMES else "",
        Counting(absolute, relative, entry["counts"]) if kind == COUNTS else None,
        entry["of"] if kind == COUNTS_OF else "",
        entry.get("of", "") if kind == LIST else "",
        entry["of"] if kind == ATTRIBUTE else "",
    )


def _listing_of(entry: dict[str, Any]) -> Listing:
    attributes = tuple(map(Attribute.of_entry, entry.get("attributes", ())))
    return Listing(entry["resolution_microseconds"], entry["limit"], attributes)


def _attributes_text(codec: FeatureCodec) -> str:
    """The attributes of a list's items, for messages and comparisons."""
    shown = [f"{attribute.feature}: {[*attribute.values]}" for attribute in codec.attributes]
    return ", ".join(shown) or "none"


def has_rows(storage: Storage, shard_map: ShardMap) -> bool:
    """Whether rows were written to a view. A rebuild that was refused leaves a log without commits."""
    return any(
        part.list(ROWS_FOLDER) or part.list(f"{ROWS_FOLDER}_delta_log/") or RowLog(part).read()
        for part in shard_map.storages(storage)
    )


def put_map(
    storage: Storage, settings: ViewSettings, shard_map: ShardMap, known: Collection[ShardMap]
) -> None:
    """Write other shards into the file of a view.

    Raises StorageError: by now it has shards that are not ``known``; nothing has changed.
    """
    with storage.lease(VIEW_LOCK, wait=True):
        for _ in range(_MAX_ATTEMPTS):
            info = storage.info(VIEW_FILE)
            there = None if info is None else ViewFile.read(storage)
            if info is None or there is None:
                with suppress(FileExistsAlreadyError):
                    with storage.create(VIEW_FILE) as file:
                        file.write(ViewFile.of(settings, shard_map).encode())
                    return
                continue
            if there.shard_map not in known:
                raise StorageError(
                    f"{storage.where(VIEW_FILE)}: another process divides the rows of feature view "
                    f"{settings.view!r}; run again when it has ended"
                )
            if storage.replace_known(VIEW_FILE, replace(there, shard_map=shard_map).encode(), info.token):
                return
    raise StorageError(
        f"{storage.where(VIEW_FILE)}: other processes keep changing it; try again when they are idle"
    )


def shard_map_of(storage: Storage) -> ShardMap:
    """The shards of a view, one if it has neither a file nor rows; raises as `ViewFile.read`, `found_map`."""
    file = ViewFile.read(storage)
    return file.shard_map if file is not None else found_map(storage) or ShardMap()


def seconds_between_checks(storage: Storage) -> float:
    """Seconds between a process's checks for other shards of a view; in a bucket a check costs a request."""
    return _SECONDS * (10 if storage.fetches else 1)


class Registration:
    """Keeps the file of a view while a process writes the view. Safe to use from several threads.

    It notices within seconds that the rows are being divided into other shards than those of ``shard_map``.
    """

    def __init__(self, storage: Storage, view: str, shard_map: ShardMap):
        self._storage, self._view, self.shard_map = storage, view, shard_map
        # Of a file that has what this process writes, and allows it; None before there was one.
        self._token: str | None = None
        # Whether the file, if it contradicts this process's declaration, is the older of the two.
        self.is_newer = False
        self._has_join_keys = False
        self._checked_at = -math.inf
        self._logs: Mapping[int, bytes | None] = {}  # of shards, as of that check
        # Between two checks. In a folder each write checks.
        self.seconds = seconds_between_checks(storage) if storage.fetches else 0.0

    def keep(
        self,
        settings: ViewSettings,
        rows: pa.Table | None = None,
        is_applied: bool = False,
        logs: Mapping[int, bytes | None] | None = None,
    ) -> None:
        """Write the file, if it lacks something: before a write, and before the write returns.

        Another process may drop the view meanwhile. Rows that are written after that are of a new view. A
        drop removes this file before the logs. So a process that appends to another log than before checks
        the file at once.

        Parameters
        ----------
        rows : those that are to be written; their join keys are kept.
        is_applied : whether the settings are those of `feast apply`: what they lack is removed.
        logs : of each shard, the log that this process appended to last.

        Raises
        ------
        ShardError, UnsupportedFeatureError, SettingsError : the file contradicts the settings, and there are
            rows, or it was declared anew; the file stays as it is.
        DamagedFileError, StorageError : the file cannot be read or written.
        """
        has_all = self._token is not None and (self._has_join_keys or rows is None or not len(rows))
        now, logs = time.monotonic(), self._logs if logs is None else logs
        is_recent = now - self._checked_at < self.seconds and logs == self._logs
        if has_all and is_recent and not is_applied:
            return
        info = self._storage.info(VIEW_FILE)
        is_known = info is not None and info.token != "" and info.token == self._token
        if not is_known or not has_all or is_applied:
            self._put(settings, rows, is_applied)
        self._checked_at, self._logs = now, logs

    def _put(self, settings: ViewSettings, rows: pa.Table | None, is_applied: bool) -> None:
        wanted, storage = ViewFile.of(settings, self.shard_map, rows), self._storage
        overrides = self._token is None  # later ones leave what `feast apply` changed meanwhile
        for _ in range(_MAX_ATTEMPTS):
            info = storage.info(VIEW_FILE)
            there = None if info is None else ViewFile.read(storage)
            if info is None or there is None:
                # A drop that found no file does not know the shards to which rows would be written.
                with (
                    storage.lease(VIEW_LOCK, wait=True),
                    suppress(FileExistsAlreadyError),
                    storage.create(VIEW_FILE) as file,
                ):
                    file.write(wanted.encode())
                continue
            check_map(self._view, there.shard_map, self.shard_map)
            is_other = there.check(storage, settings)
            if is_other and not (is_applied or self.is_newer):
                raise SettingsError(
                    f"feature view {self._view!r} was declared anew, and this process has the former "
                    "declaration, which contradicts it. Let it read the registry again, with Feast by "
                    "`store.refresh_registry()`"
                )
            merged = wanted if is_other else there.joined_by(wanted, overrides)
            if is_applied:
                merged = replace(
                    merged, removed=frozenset(merged._by_name().keys() - settings.features.keys())
                )
            if merged == there:
                self._token, self._has_join_keys = info.token, merged.has_join_keys
                return
            with storage.lease(VIEW_LOCK, wait=True):
                # Without a token, the content tells whether another process has changed it.
                is_same = info.token != "" or ViewFile.read(storage) == there
                if is_same and storage.replace_known(VIEW_FILE, merged.encode(), info.token):
                    overrides = self.is_newer = False
        raise StorageError(
            f"{storage.where(VIEW_FILE)}: other processes keep changing it; try again when they are idle"
        )
