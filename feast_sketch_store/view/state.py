"""What reads see of a view: an immutable state of layers, which one call of the kernel reads.

State             shard 0, 1, ...: a read goes to the shard of its entity
  ShardState      exact layers, newest first, over deltas, over the sealed layer
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, ShardError
from feast_sketch_store.kernel import DAMAGED, NOT_SERVED, ReadFault, RowReader
from feast_sketch_store.layers import DeltaLayer, ExactLayer, LayerAnswer, SealedRows, SketchLayer
from feast_sketch_store.layers.row_reader import Column, find, read, stack, stored_name
from feast_sketch_store.row_log import START, Position
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedRows, RowKeys
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.snapshot.order import load_order
from feast_sketch_store.view.semantics import RowSemantics
from feast_sketch_store.view.shard_map import ShardMap, shard_of_hash

Features: TypeAlias = tuple[str | FeatureCodec, ...]  # of a read, as `State.read` takes them

_MAX_QUESTIONS = 64  # combinations of features that are kept prepared
_MAX_CARRIED = 8  # the newest of them are prepared again for the next state


@dataclass(frozen=True)
class ShardState:
    """Everything in a shard up to a position of its row log.

    ``deltas`` lie over the sealed layer, and ``exact`` layers over those, from the oldest to the newest. The
    ``semantics`` decide whether an entity may be in several exact layers. ``unsealed_rows`` and
    ``unsealed_commits`` count what the snapshot lacks.
    """

    semantics: RowSemantics
    position: Position = START
    snapshot: SnapshotFile | None = None
    sealed: SketchLayer | None = None
    deltas: tuple[DeltaLayer, ...] = ()
    exact: tuple[ExactLayer, ...] = ()
    unsealed_rows: int = 0
    unsealed_commits: int = 0
    newest_seen: SnapshotFile | None = None  # the newest that existed, readable or not
    pinned: str = ""  # the name of the snapshot to which reads are pinned, without the commits since

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a snapshot nor a commit of the row log."""
        return self.snapshot is None and self.position.number < 0

    @property
    def unsealed_bytes(self) -> int:
        """Bytes of the exact layers."""
        return sum(layer.size_bytes for layer in self.exact)

    @property
    def sealed_layers(self) -> list[SketchLayer]:
        """The layers of the snapshot: the base, then what deltas hold."""
        base = [] if self.sealed is None else [self.sealed]
        return [*base, *(delta.layer for delta in self.deltas)]

    @property
    def newest_first(self) -> list[SketchLayer | DeltaLayer | ExactLayer]:
        """All layers, in the order of a read."""
        base = [] if self.sealed is None else [self.sealed]
        return [*reversed(self.exact), *reversed(self.deltas), *base]

    @property
    def snapshot_version(self) -> int | None:
        """The number of commits that the snapshot covers; None without a snapshot."""
        return None if self.snapshot is None else self.snapshot.version

    def unsealed_facts(self, features: Iterable[str]) -> int:
        """The number of values of some features in the unsealed rows that count."""
        if not self.exact:
            return 0
        rows = self.semantics.merge([layer.rows for layer in self.exact])
        alive = ~rows.keys.deleted
        return sum(int(rows.features[f].csr.lengths[alive].sum()) for f in features if f in rows.features)

    def row_keys(self) -> RowKeys:
        """The keys of all rows, sealed, unsealed and expired, one per entity, in the order of their hashes.

        Raises DamagedFileError, StorageError: the order index of the snapshot cannot be read.
        """
        parts = [] if self.snapshot is None else [load_order(self.snapshot)]
        for number, delta in enumerate(self.deltas, 1):
            assert self.snapshot is not None
            parts.append(delta.keys(load_order(self.snapshot, number)))
        parts += [layer.rows.keys for layer in self.exact]
        if not parts:
            return RowKeys.none()
        _, keys = RowKeys.concatenate(parts).newest()
        return keys.take(np.flatnonzero(~keys.deleted & (keys.event_timestamps > NO_TIMESTAMP)))


@dataclass(frozen=True)
class State:
    """The states of the shards that a process serves. Immutable; safe to read from any number of threads.

    Reads raise the DamagedFileError of a block that does not match its checksum, or a `ReadFault`, which
    `error_of` explains. ``shards`` has at least one state; their numbers ascend.
    """

    view: str
    shard_map: ShardMap
    shards: Mapping[int, ShardState]
    _prepared: dict[Features, RowReader] = field(default_factory=dict, init=False, repr=False, compare=False)
    _columns: dict[Features, list[Column]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of_rows(cls, view: str, semantics: RowSemantics, rows: EncodedRows) -> "State":
        """The state of some rows that are not sealed, and nothing else."""
        return cls(view, ShardMap(), {0: ShardState(semantics, exact=(ExactLayer(rows),))})

    def is_of(self, shard_map: ShardMap, shards: Sequence[ShardState]) -> bool:
        """Whether it has exactly these states, of the same division of the rows."""
        return self.shard_map is shard_map and all(map(operator.is_, self.shards.values(), shards))

    @cached_property
    def backed(self) -> frozenset[str]:
        """Features of which a sealed layer has only states, see `SketchLayer.backed`."""
        layers = [layer.backed for shard in self.shards.values() for layer in shard.sealed_layers]
        return frozenset().union(*layers)

    # -- read ------------------------------------------------------------------------------------

    def row_reader(
        self, features: Features, names: Sequence[NDArray[np.int32] | None] | None = None
    ) -> RowReader:
        """The rows with some features; ``names`` are as of `layers.row_reader.stack`, for `newest_first`."""
        if names is not None:
            return self._stacked(features, names)
        known = self._prepared.get(features)
        if known is None:
            if len(self._prepared) >= _MAX_QUESTIONS:
                self._prepared.clear()
                self._columns.clear()
            known = self._prepared[features] = self._stacked(features, None)
        return known

    def columns(self, features: Features) -> list[Column]:
        """How answers show some features: by their ids, if there is one layer."""
        known = self._columns.get(features)
        if known is None:
            known = self._columns[features] = self._new_columns(features)
        return known

    def prepare_as(self, before: "State") -> None:
        """Prepare the last requests of the previous state, so that no read has to."""
        for features in list(before._prepared)[-_MAX_CARRIED:]:
            self.row_reader(features)

    def _stacked(self, features: Features, names: Sequence[NDArray[np.int32] | None] | None) -> RowReader:
        of_shards = {number: shard.newest_first for number, shard in self.shards.items()}
        layers = [layer for own in of_shards.values() for layer in own]
        counts = [len(of_shards[n]) if n in of_shards else None for n in range(self.shard_map.num_shards)]
        if names is None and len(layers) == 1:
            names = [None]
        return stack(layers, self.semantics.wanted(features), names, counts)

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str | FeatureCodec],
        expire_before: int | NDArray[np.int64],
        limit: int | None = None,
        cut: NDArray[np.bool_] | None = None,
    ) -> LayerAnswer:
        """The rows of a batch of entities, with all values of some features.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names, or the codec of a list to read its items with stamps (`rows.listing`) in place of
            times. One that no layer has is left out of the answer.
        expire_before, limit, cut : as of `layers.row_reader.read`.
        """
        asked = tuple(features)
        return read(self.row_reader(asked), self.columns(asked), entity_hashes, expire_before, limit, cut)

    def _new_columns(self, features: Features) -> list[Column]:
        layers, columns = self.newest_first, []
        for feature, wanted in zip(features, self.semantics.wanted(features).features, strict=False):
            name = feature.feature if isinstance(feature, FeatureCodec) else feature
            codec, vocabulary = wanted if isinstance(wanted, FeatureCodec) else None, None
            stored = stored_name(wanted)
            if stored is not None and (codec is None or not codec.is_derived):
                known = [layer for layer in layers if stored in layer.codecs]
                codec = codec or (known[0].codecs[stored] if known else None)
                vocabulary = known[0].numbering(stored) if len(layers) == len(known) == 1 else None
            columns.append(Column(name, codec, vocabulary))
        return columns

    def find(
        self, entity_hashes: NDArray[np.uint64], expire_before: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Whether entities have rows, and their timestamps; see `layers.row_reader.find`."""
        return find(self.row_reader(()), entity_hashes, expire_before)

    def error_of(self, fault: ReadFault) -> Exception:
        """The error of a read that failed: a DamagedFileError with the file whose parts contradict each
        other, or a ShardError if the entity is of a shard that is not served.
        """
        number = shard_of_hash(fault.entity_hash, self.shard_map.num_shards)
        if fault.status == NOT_SERVED:
            return ShardError(
                f"feature view {self.view!r}: an entity of the request is in shard {number} of "
                f"{self.shard_map.num_shards}, and this process serves the shards "
                f"{', '.join(map(str, self.shards))} (option `shards: {{serve}}`); send the request to a "
                f"server of shard {number}"
            )
        snapshot = self.shards[number].snapshot
        if fault.status != DAMAGED or snapshot is None:
            return fault
        return DamagedFileError(f"{snapshot.where()}: {fault}")

    # -- contents --------------------------------------------------------------------------------

    @property
    def semantics(self) -> RowSemantics:
        """How several rows of an entity combine."""
        return next(iter(self.shards.values())).semantics

    @property
    def newest_first(self) -> list[SketchLayer | DeltaLayer | ExactLayer]:
        """The layers of all shards, shard by shard, in the order of a read."""
        return [layer for shard in self.shards.values() for layer in shard.newest_first]

    @cached_property
    def layers(self) -> list[SketchLayer | DeltaLayer | ExactLayer]:
        """All layers, the sealed ones of all shards first: their values have the first ids."""
        shards = self.shards.values()
        sealed = [shard.sealed for shard in shards if shard.sealed is not None]
        deltas = [delta for shard in shards for delta in shard.deltas]
        return [*sealed, *deltas, *(layer for shard in shards for layer in shard.exact)]

    @property
    def sealed(self) -> SealedRows | None:
        """The sealed rows of all shards, for inspection; None if no shard was sealed."""
        shards = self.shards.values()
        bases = tuple(shard.sealed for shard in shards if shard.sealed is not None)
        deltas = tuple(delta.layer for shard in shards for delta in shard.deltas)
        return SealedRows(bases, deltas) if bases else None

    def row_keys(self) -> RowKeys:
        """See `ShardState.row_keys`; shards divide hashes in ascending order, so theirs follow each other."""
        return RowKeys.concatenate([shard.row_keys() for shard in self.shards.values()])
