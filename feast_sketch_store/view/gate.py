"""The gate of a view: what a new version must meet before it is published.

seal, rebuild   draft new bases  ->  compare with those being served  ->  publish, or delete the drafts
fill            stage the rows   ->  compare all rows including these  ->  commit, or hold them back

The rows of a seal are in the row log already, and reads show them with or without it. The rows of a fill that
did not pass are durable, and not read: a file of the view names them until they are committed or deleted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Any, Self

from feast_sketch_store.errors import DamagedFileError, GateError
from feast_sketch_store.layers import SealedRows
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.row_log.data_file import StagedFile
from feast_sketch_store.settings.view_settings import ViewSettings, check_of
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.base import MissingFileError, Storage
from feast_sketch_store.storage.names import HELD_BACK_FILE
from feast_sketch_store.structures.parts import checked

_FORMAT_VERSION = 1  # of the file of a fill

# What happened to a version that does not pass, and what to do.
SEAL = (
    "The snapshot from before stays, and reads go on to show the rows written since; write correct rows, or "
    "publish these nevertheless with `feast-sketch publish {view} --force`"
)
REBUILD = (
    "Nothing has changed; correct the rows, or do without the gate: `feast-sketch rebuild {view} --force`"
)
FILL = (
    "Its rows are kept and not read; write correct ones, or let these count nevertheless with `feast-sketch "
    "publish {view} --force`, or delete them with `feast-sketch discard {view}`"
)
# Rows that are held back are left behind when a view is divided again.
DIVIDED = "Delete the fill with `feast-sketch discard {view}`, and run its job again"


@dataclass(frozen=True)
class Figures:
    """What a gate compares of two versions of a view."""

    entities: int
    # by feature, its facts, including those that a cut left out; a scalar is one fact, a null none
    facts: Mapping[str, int]
    # by feature, its different values; features whose values have no ids are left out
    values: Mapping[str, int]

    @classmethod
    def of(cls, sealed: SealedRows) -> Self:
        """The figures of sealed rows."""
        cut, names = sealed.cut, list(sealed.codecs)
        facts = {name: sum(f.num_facts for f in sealed.features(name)) + cut.get(name, 0) for name in names}
        vocabularies = {name: [f.vocabulary for f in sealed.features(name)] for name in names}
        # All shards have the same ids.
        values = {name: [len(v) for v in known if v is not None] for name, known in vocabularies.items()}
        return cls(sealed.num_entities, facts, {name: max(sizes) for name, sizes in values.items() if sizes})

    @classmethod
    def sum_of(cls, parts: Iterable[Self]) -> Self:
        """The figures of all shards together."""
        entities, facts, values = 0, dict[str, int](), dict[str, int]()
        for part in parts:
            entities += part.entities
            for name, number in part.facts.items():
                facts[name] = facts.get(name, 0) + number
            for name, number in part.values.items():
                values[name] = max(values.get(name, 0), number)
        return cls(entities, facts, values)

    def named(self) -> dict[str, int]:
        """Each figure by its name in messages."""
        return {
            "entities": self.entities,
            **{f"facts of {name!r}": number for name, number in self.facts.items()},
            **{f"values of {name!r}": number for name, number in self.values.items()},
        }


def judge(settings: ViewSettings, before: Figures | None, after: Figures, remedy: str) -> None:
    """Compare a new version of a view with the one being served.

    Parameters
    ----------
    before : None if nothing was sealed yet; then there is no change to compare.
    remedy : `SEAL`, `REBUILD` or `FILL`.

    Raises
    ------
    GateError : it does not meet the gate of the settings; the message has the figures.
    SettingsError : the gate's function cannot be imported.
    """
    reasons = list(_reasons(settings, before, after))
    if reasons:
        error = GateError(
            f"feature view {settings.view!r} does not pass its gate: {'; '.join(reasons)}. "
            + remedy.format(view=quote(settings.view))
        )
        error.reasons = tuple(reasons)
        raise error


def _reasons(settings: ViewSettings, before: Figures | None, after: Figures) -> Iterable[str]:
    gate, known = settings.gate, {} if before is None else before.named()
    if gate.entities is not None and after.entities < gate.entities:
        yield f"{after.entities:,} entities, at least {gate.entities:,} are asked for"
    if gate.change is not None:
        for name, number in after.named().items():
            old = known.get(name, 0)
            if old and abs(number - old) > gate.change * old:
                change = f"{100 * (number - old) / old:+.1f} %"
                yield f"{name}: {old:,} -> {number:,} ({change}, at most {100 * gate.change:g} %)"
    if gate.check is not None:
        check = check_of(settings.view, gate.check, settings.folder)
        try:
            reason = check(settings.view.partition("@")[0], before, after)
        except Exception as error:  # of the user's function: an unchecked version is not published
            reason = f"raised {type(error).__name__}: {error}"
        if reason:
            yield f"{gate.check}: {reason}"


@dataclass(frozen=True)
class HeldBack:
    """A fill that did not pass the gate: when, as an ISO 8601 time, why, and its files
    (`StagedFile.to_report`).
    """

    at: str
    reasons: tuple[str, ...]
    entries: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, files: Sequence[StagedFile], error: GateError) -> Self:
        """A fill of these files, held back now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(now, error.reasons, tuple(file.to_report() for file in files))

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(entry["num_rows"] for entry in self.entries)

    @property
    def names(self) -> set[str]:
        """The names of its files in the row logs of their shards."""
        return {entry["name"] for entry in self.entries}

    @classmethod
    def read(cls, storage: Storage) -> Self | None:
        """The fill that a view holds back; None if there is none.

        Raises DamagedFileError, StorageError: its file is damaged, or cannot be read.
        """
        try:
            content = storage.read(HELD_BACK_FILE)
        except MissingFileError:
            return None
        try:
            given = checked(json.loads(content), dict)
            if given["format_version"] != _FORMAT_VERSION or cls._encoded(given) != content:
                raise ValueError("it was altered, or another release wrote it")  # noqa: TRY301
            entries = tuple({**e, "columns": bytes.fromhex(e["columns"])} for e in given["files"])
            return cls(given["at"], tuple(given["reasons"]), entries)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(
                f"{storage.where(HELD_BACK_FILE)}: does not name a fill that was held back, or is damaged: "
                f"{error}. No row that reads show is lost: remove the file, and fill the view again"
            ) from error

    def _write(self, storage: Storage) -> None:
        files = [{**entry, "columns": entry["columns"].hex()} for entry in self.entries]
        content = {"at": self.at, "files": files, "format_version": _FORMAT_VERSION, "reasons": self.reasons}
        storage.replace(HELD_BACK_FILE, self._encoded(content))

    @staticmethod
    def _encoded(content: Mapping[str, Any]) -> bytes:
        plain = {name: value for name, value in content.items() if name != "checksum"}
        checksum = checksum_of(json.dumps(plain, sort_keys=True).encode())
        return json.dumps({**plain, "checksum": checksum}, sort_keys=True).encode()

    def hold(self, storage: Storage, logs: Mapping[int, RowLog]) -> None:
        """Hold the fill back, in place of another one. The caller holds the view's lease.

        A process that is killed here leaves either fill held back, and files that a vacuum removes.
        """
        before = HeldBack.read(storage)
        self._write(storage)
        if before is not None:
            before.delete_files(storage, logs, self.names)

    def release(self, storage: Storage) -> None:
        """Hold the fill back no longer, unless another one has taken its place."""
        if HeldBack.read(storage) == self:
            storage.delete([HELD_BACK_FILE])

    def delete_files(
        self, storage: Storage, logs: Mapping[int, RowLog], kept: Set[str] = frozenset()
    ) -> None:
        """Delete the files that no commit names from the row logs of shards, except some.

        Where no lease keeps others out, they stay for a vacuum: a process may be publishing the fill.
        """
        for entry in self.entries if storage.supports_leases else ():
            if entry["name"] not in kept and entry["shard"] in logs:
                logs[entry["shard"]].discard_staged(entry["name"])
