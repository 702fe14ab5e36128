"""Check everything that must hold of a view on disk, without trusting any of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, FormatVersionError, StorageError
from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.row_log import RowLog, records
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, RowKeys, row_keys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.snapshot import format as snapshot_format
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.manifest import MANIFEST_VERSION, PARTS
from feast_sketch_store.snapshot.order import load_order
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import ROWS_FOLDER, SNAPSHOTS_FOLDER
from feast_sketch_store.view.folding import computed_rows
from feast_sketch_store.view.semantics import REPLACE, named
from feast_sketch_store.view.shard_map import shards_of

_MAX_PROBLEMS = 100  # reported of each kind


@dataclass
class Verification:
    """How much was checked, and what is wrong.

    ``problems`` are sentences that name the file. ``format_versions`` are the ascending versions of the files
    of each kind: ``"row log"``, ``"manifest"`` and ``"snapshot"``. ``leftovers`` are unused files of killed
    seals, rebuilds and imports, and of former shards; they may hold rows that were deleted since, until
    `View.vacuum` removes them.
    """

    commits: int = 0
    rows: int = 0
    snapshots: int = 0
    compared_entities: int = 0
    compared_facts: int = 0
    format_versions: dict[str, list[int]] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Verification") -> Self:
        """Add what was found in another part of the view."""
        self.commits += other.commits
        self.rows += other.rows
        self.snapshots += other.snapshots
        self.compared_entities += other.compared_entities
        self.compared_facts += other.compared_facts
        for kind, versions in other.format_versions.items():
            for version in versions:
                self.note_version(kind, version)
        self.leftovers += other.leftovers
        self.problems += other.problems
        return self

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def note_version(self, kind: str, version: int) -> None:
        """Note the format version of a file."""
        known = self.format_versions.get(kind, [])
        self.format_versions[kind] = sorted({*known, version})

    def note_problem(self, error: DamagedFileError | StorageError, kind: str) -> None:
        """Note why a file cannot be read, and its version if that is the reason."""
        self.problems.append(str(error))
        if isinstance(error, FormatVersionError) and type(error.version) is int:
            self.note_version(error.kind or kind, error.version)


def verify_view(
    storage: Storage,
    codecs: Sequence[FeatureCodec],
    expire_before: int = NO_TIMESTAMP,
    progress: Callable[[int], object] = lambda num_bytes: None,
    semantics: str = REPLACE,
    shard: tuple[int, int] = (0, 1),
) -> Verification:
    """Check a view's storage. No process may seal or vacuum the view meanwhile.

    - Every commit and data file of the row log can be read, and has the right rows and checksum.
    - Every snapshot has the right checksums, its parts fit each other, and its order index is ascending.
    - The newest snapshot has exactly the entities of the row log up to its version, with their timestamps,
      and reports every fact of every row: no false negatives.

    Parameters
    ----------
    expire_before : microseconds since 1970; older rows may be in the log and not in the snapshot.
    progress : called with the number of bytes of each file checked.
    shard : the number of this storage's shard, and the number of shards.
    """
    found = Verification()
    log = RowLog(storage)
    is_log_sound = _verify_log(log, found, progress, shard)
    newest: _Sealed | None = None
    folder = SnapshotFolder(storage.within(SNAPSHOTS_FOLDER))
    snapshots = folder.list()
    for snapshot in snapshots:
        try:
            sealed = _verify_snapshot(snapshot)
            newest = newest or sealed
            found.snapshots += 1
            found.note_version("manifest", MANIFEST_VERSION)
            found.note_version("snapshot", snapshot_format.FORMAT_VERSION)
        except (DamagedFileError, StorageError) as error:
            found.note_problem(error, "snapshot")
        progress(sum(map(snapshot.size_bytes, PARTS)))
    if newest is not None and newest.snapshot == snapshots[0] and is_log_sound:
        _compare(log, newest, codecs, expire_before, found, semantics)
    found.leftovers += (SNAPSHOTS_FOLDER + name for name in folder.leftovers())
    return found


def size_of(storage: Storage) -> int:
    """The total number of bytes that `verify_view` reports to ``progress``."""
    rows, snapshots = storage.within(ROWS_FOLDER), storage.within(SNAPSHOTS_FOLDER)
    log = sum(map(rows.size_bytes, (name for name in rows.list() if name.endswith(".parquet"))))
    return log + sum(s.size_bytes(part) for s in SnapshotFolder(snapshots).list() for part in PARTS)


def _verify_log(
    log: RowLog, found: Verification, progress: Callable[[int], object], shard: tuple[int, int]
) -> bool:
    try:
        parts = log.read().parts
    except (DamagedFileError, StorageError) as error:
        found.note_problem(error, "row log")
        return False
    if parts:
        found.note_version("row log", records.FORMAT_VERSION)
    num_problems = len(found.problems)
    for part in parts:
        try:
            for batch in part.batches():
                found.rows += len(batch)
                if num_others := _num_of_others(batch, shard):
                    found.problems.append(
                        f"{log.where}: {num_others} rows are of entities of other shards than {shard[0]}"
                    )
            found.commits += 1
        except (DamagedFileError, StorageError) as error:
            found.note_problem(error, "row log")
        progress(part.size_bytes)
    if found.problems[num_problems:]:
        return False
    found.leftovers += log.cut_off()
    return True


def _num_of_others(batch: pa.Table, shard: tuple[int, int]) -> int:
    """How many rows belong to entities of other shards."""
    number, num_shards = shard
    if num_shards == 1:
        return 0
    return int((shards_of(row_keys(batch).entity_hashes, num_shards) != number).sum())


@dataclass(frozen=True)
class _Sealed:
    """A snapshot as it was read.

    ``keys`` are those of the rows that reads find, ordered by entity hash. ``owners`` is int64[n], the layer
    of each row; 0 is the base.
    """

    snapshot: SnapshotFile
    layers: list[SketchLayer]
    keys: RowKeys
    owners: NDArray[np.int64]


def _verify_snapshot(snapshot: SnapshotFile) -> _Sealed:
    base, deltas = open_layers(snapshot, check_all=True)
    layers, orders = [base], [_verify_order(snapshot, 0, base, base.num_entities)]
    for number, delta in enumerate(deltas, 1):
        order = _verify_order(snapshot, number, delta.layer, len(delta), ~delta.deleted)
        if (order.entity_hashes != delta.entity_hashes).any():
            source = snapshot.where_file("order", number)
            raise DamagedFileError(f"{source}: a delta lists other entities than its index")
        layers.append(delta.layer)
        orders.append(delta.keys(order))
    winners, keys = RowKeys.concatenate(orders).newest()
    owners = np.searchsorted(np.cumsum([len(order) for order in orders]), winners, side="right")
    alive = np.flatnonzero(~keys.deleted)
    return _Sealed(snapshot, layers, keys.take(alive), owners[alive])


def _verify_order(
    snapshot: SnapshotFile,
    number: int,
    layer: SketchLayer,
    num_entities: int,
    is_row: NDArray[np.bool_] | None = None,
) -> RowKeys:
    """The keys in the order index of a layer, checked; ``is_row`` says which entities are rows."""
    order, source = load_order(snapshot, number, check_all=True), snapshot.where_file("order", number)
    first, second = order.entity_hashes[:, 0], order.entity_hashes[:, 1]
    ascends = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))
    if len(order) != num_entities or not ascends.all():
        raise DamagedFileError(f"{source}: is not the order index of {num_entities} entities")
    events = order.event_timestamps if is_row is None else order.event_timestamps[is_row]
    if events.max(initial=NO_TIMESTAMP) != layer.max_event_timestamp:
        raise DamagedFileError(f"{source}: has other timestamps than the snapshot")
    return order


def _compare(
    log: RowLog,
    newest: _Sealed,
    codecs: Sequence[FeatureCodec],
    expire_before: int,
    found: Verification,
    semantics: str,
) -> None:
    """Compare the newest snapshot with the rows that it was sealed from."""
    snapshot, order, base = newest.snapshot, newest.keys, newest.layers[0]

    def problem(text: str) -> None:
        if len(found.problems) < _MAX_PROBLEMS:
            found.problems.append(f"{snapshot.where()}: {text}")

    # A snapshot's version is the number of commits that it covers.
    read = log.sealed_rows(snapshot.version - 1, snapshot.name)
    if read is None:
        return  # readers no longer use the snapshot, because the rows were replaced since
    if not read.files:
        if len(order):
            problem(f"holds {len(order)} entities, but the row log has none up to version {snapshot.version}")
        return
    rows = named(semantics, codecs).fold(read.batches, base.since)
    keys = rows.keys
    at_ours, at_theirs = find_sorted(order.entity_hashes, keys.entity_hashes)
    found.compared_entities = len(at_ours)
    is_lost = keys.event_timestamps >= expire_before
    is_lost[at_ours] = False
    if is_lost.any():
        problem(f"lacks {int(is_lost.sum())} entities of the row log")
    if len(at_theirs) < len(order):
        problem(f"holds {len(order) - len(at_theirs)} entities that the row log lacks")
    for name in ("event_timestamps", "created_timestamps"):
        differ = getattr(keys, name)[at_ours] != getattr(order, name)[at_theirs]
        if differ.any():
            problem(f"has other {name} of {int(differ.sum())} entities than the row log")
    owners = np.full(len(keys), -1)
    owners[at_ours] = newest.owners[at_theirs]
    for number, layer in enumerate(newest.layers):
        # Use the layer's codecs: a feature may have got another codec since the seal.
        sealed = [layer.codecs[codec.feature] for codec in codecs if codec.feature in layer.codecs]
        for places, encoded in computed_rows(rows.encoded(sealed), base.formulas):
            part = encoded.take(np.flatnonzero(owners[places] == number))
            found.compared_facts += part.num_facts
            if number:  # deltas lack the features that the base lacks
                part = part.within(base.cut_vocabularies)
            for text in layer.missing(part):
                problem(text)
