"""Compares two versions of a view, as reads show them: entities, facts, sizes, and what moved most."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
from feast.infra.key_encoding_utils import deserialize_entity_key
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError, shown
from feast_sketch_store.row_log import Position
from feast_sketch_store.rows.codecs import EMPTY, FeatureCodec
from feast_sketch_store.rows.encoding import ENTITY_KEY, NO_TIMESTAMP, RowKeys
from feast_sketch_store.rows.entity_keys import (
    SERIALIZATION_VERSION,
    find_sorted,
    hash_serialized_keys,
    key_text,
)
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.view.holding import snapshots_of
from feast_sketch_store.view.semantics import named
from feast_sketch_store.view.state import ShardState, State
from feast_sketch_store.view.view import View

NOW = "now"
_BATCH = 1 << 14  # entities that are read at once
_MOST = 10  # movers of a kind
_BUCKETS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-256", "257 and more")


@dataclass(frozen=True)
class Mover:
    """An entity or a value, and its number of facts in both versions."""

    name: str
    before: int
    after: int


@dataclass(frozen=True)
class FeatureVersion:
    """A feature in one version of a view."""

    structure: str  # of its sealed rows; empty without any
    facts: int  # values that a read of all entities shows
    lengths: Mapping[str, int]  # by a range of lengths, the number of rows with so many values
    size_bytes: int  # of its sealed rows, with its vocabulary
    error_rate: float | None  # that its filter is built for; None without a filter


@dataclass(frozen=True)
class FeatureDiff:
    """A feature in both versions, None where it was not sealed or written, and the values that moved most."""

    name: str
    before: FeatureVersion
    after: FeatureVersion
    values: Sequence[Mover]


@dataclass(frozen=True)
class ViewDiff:
    """Two versions of a view."""

    view: str
    # before, after: what the versions are: the numbers of commits that snapshots cover, or ``now``
    before: str
    after: str
    entities: tuple[int, int]  # in each version
    # added, removed, replaced: entities with a row in one version only, and those whose row has another time
    added: int
    removed: int
    replaced: int
    size_bytes: tuple[int, int]  # of each version, in memory
    features: Sequence[FeatureDiff]
    movers: Sequence[Mover]  # the entities whose number of facts changed most


def diff(view: View, before: str | None = None, after: str | None = None) -> ViewDiff:
    """Compare two versions of a view.

    Parameters
    ----------
    before, after : versions of the snapshot of each shard, with commas between, as `feast-sketch inspect`
        shows them; or ``now``, which has the rows since, too. ``before`` alone is compared with ``now``. By
        default the snapshot before the last one, and the last one; if there is but one, that one and ``now``.

    Raises
    ------
    SettingsError : there is no such version, or no snapshot to compare.
    DamagedFileError, StorageError : files cannot be read.
    """
    view.refresh()
    published = [part.snapshots.list() for part in view.shards.values()]
    older: Sequence[SnapshotFile] | None
    newer: Sequence[SnapshotFile] | None
    if before is None and not any(published):
        raise SettingsError(
            f"feature view {view.name!r} has no snapshot to compare; seal it first: "
            f"`feast-sketch seal {quote(view.name)}`"
        )
    if before is None:
        has_two = all(len(files) > 1 for files in published)
        older = [files[1 if has_two else 0] for files in published] if all(published) else None
        newer = [files[0] for files in published] if has_two else None
    else:
        older = _snapshots_of(view, before)
        newer = _snapshots_of(view, after or NOW)
    states = [_state_of(view, files) for files in (older, newer)]
    keys = [state.row_keys() for state in states]
    rest = keys[1]
    known, places = find_sorted(keys[0].entity_hashes, rest.entity_hashes)
    has_other_time = keys[0].event_timestamps[places] != rest.event_timestamps[known]
    contents = [_Content(view.settings.codecs, state, own) for state, own in zip(states, keys, strict=True)]
    moved = _largest(*(content.lengths_of_entities for content in contents))
    names = _names_of(view, [name for name, _, _ in moved])
    return ViewDiff(
        view.name,
        _text(older),
        _text(newer),
        (len(keys[0]), len(keys[1])),
        len(rest) - len(known),
        len(keys[0]) - len(known),
        int(has_other_time.sum()),
        (_size_of(states[0]), _size_of(states[1])),
        [_feature_diff(codec, states, contents) for codec in view.settings.codecs],
        [Mover(names.get(entity, entity.hex()), old, new) for entity, old, new in moved],
    )


def _text(files: Sequence[SnapshotFile] | None) -> str:
    return NOW if files is None else ",".join(str(file.version) for file in files)


def _snapshots_of(view: View, version: str) -> Sequence[SnapshotFile] | None:
    """The snapshots of a version, the newest that each shard has of it; None for the rows since, too."""
    if version == NOW:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", version) or version.count(",") + 1 != len(view.shards):
        raise SettingsError(
            f"feature view {view.name!r}: {version!r} is not a version: give {NOW!r}, or the version of each "
            f"of its {len(view.shards)} shards with commas between, as `feast-sketch inspect` shows them"
        )
    return snapshots_of(view, [int(number) for number in version.split(",")])


def _state_of(view: View, files: Sequence[SnapshotFile] | None) -> State:
    """The rows of these snapshots of all shards; of None, also the rows since."""
    if files is None:
        return view.state
    shards = {}
    for number, file in enumerate(files):
        sealed, deltas = open_layers(file)
        semantics = named(sealed.semantics, view.settings.codecs)
        position = Position(file.version - 1)
        shards[number] = ShardState(semantics, position, file, sealed, deltas)
    return State(view.name, view.shard_map, shards)


def _size_of(state: State) -> int:
    shards = state.shards.values()
    return sum(layer.size_bytes for shard in shards for layer in shard.newest_first)


class _Content:
    """What a read of all entities of a version shows, counted: the facts of each entity, by its hash; and by
    feature its facts, how many rows have each stored value, and how many rows have so many values.
    """

    def __init__(self, codecs: Sequence[FeatureCodec], state: State, keys: RowKeys):
        names = [codec.feature for codec in codecs]
        self.lengths_of_entities: Counter[bytes] = Counter()
        self.values: dict[str, Counter[Any]] = {name: Counter() for name in names}
        self.lengths: dict[str, Counter[str]] = {name: Counter() for name in names}
        self.facts: Counter[str] = Counter()
        for start in range(0, len(keys), _BATCH):
            hashes = keys.entity_hashes[start : start + _BATCH]
            answer = state.read(hashes, names, NO_TIMESTAMP)
            totals = np.zeros(len(answer.found), np.int64)
            for name, feature in answer.features.items():
                lengths = np.diff(feature.indptr)
                totals += lengths
                self.facts[name] += int(lengths.sum())
                buckets = np.bincount(_bucket_of(lengths[feature.states >= EMPTY]), minlength=len(_BUCKETS))
                self.lengths[name].update(dict(zip(_BUCKETS, buckets.tolist(), strict=True)))
                ids, counts = np.unique(feature.symbols, return_counts=True)
                stored = feature.vocabulary.values.take(pa.array(ids)).to_pylist()
                self.values[name].update(dict(zip(stored, counts.tolist(), strict=True)))
            found = hashes[answer.found]
            self.lengths_of_entities.update(
                {entity.tobytes(): total for entity, total in zip(found, totals.tolist(), strict=True)}
            )


def _bucket_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index of each length in `_BUCKETS`."""
    logarithms = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64) + 1
    return np.where(lengths == 0, 0, np.minimum(logarithms, len(_BUCKETS) - 1))


def _largest(before: Counter[Any], after: Counter[Any]) -> list[tuple[Any, int, int]]:
    """What changed most, the largest change first."""
    changed = [(key, before[key], after[key]) for key in {**before, **after} if before[key] != after[key]]
    return sorted(changed, key=lambda entry: (-abs(entry[2] - entry[1]), str(entry[0])))[:_MOST]


def _feature_diff(codec: FeatureCodec, states: Sequence[State], contents: Sequence[_Content]) -> FeatureDiff:
    name, versions = codec.feature, []
    for state, content in zip(states, contents, strict=True):
        layers = [layer for shard in state.shards.values() for layer in shard.sealed_layers]
        sealed = [layer for layer in layers if name in layer.features]
        rates = [layer.features[name].false_positive_rate for layer in sealed]
        versions.append(
            FeatureVersion(
                sealed[0].features[name].structure if sealed else "",
                content.facts[name],
                dict(content.lengths[name]),
                round(sum(layer.size_bytes_of(name) for layer in sealed)),
                max((rate for rate in rates if rate is not None), default=None),
            )
        )
    moved = _largest(*(content.values[name] for content in contents))
    before, after = versions
    values = codec.from_storage(pa.array([value for value, _, _ in moved], codec.storage_type))
    movers = [Mover(shown(value), old, new) for value, (_, old, new) in zip(values, moved, strict=True)]
    return FeatureDiff(name, before, after, movers)


def _names_of(view: View, hashes: Sequence[bytes]) -> dict[bytes, str]:
    """The keys of entities, by their hash; the row logs have those of living entities."""
    found: dict[bytes, str] = {}
    for part in view.shards.values() if hashes else ():
        for batch in part.row_log.batches_of(part.row_log.read(), [ENTITY_KEY]):
            keys = batch[ENTITY_KEY].combine_chunks()
            own = hash_serialized_keys(keys)
            for entity in {*hashes} - {*found}:
                places = np.flatnonzero((own == np.frombuffer(entity, np.uint64)).all(axis=1))
                if len(places):
                    key = deserialize_entity_key(keys[int(places[0])].as_py(), SERIALIZATION_VERSION)
                    found[entity] = key_text(key)
    return found
