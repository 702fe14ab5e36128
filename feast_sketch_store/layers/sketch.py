"""Sealed rows, their features in structures: as a layer, as a delta over another, and of a view as a whole.

A layer stores the presence of a row, all that is known except values, in one of three ways. The shape of
the row is one more symbol in a filter (`ShapedRows`), or a digit in a static function (`StaticRows`); or all
rows are listed (`ListedRows`), as soon as one structure is read by row number.

A structure may report an entity that it does not hold. Over a base, such a false positive would hide a row.
So a delta lists the hashes of its entities, 16 bytes each, including deleted ones, and is asked only for
these.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.layers.presence import ListedRows, Presence, ShapedRows, StaticRows
from feast_sketch_store.layers.row_reader import (
    Column,
    Layer,
    Wanted,
    WantedFeature,
    read,
    stack,
    stored_name,
)
from feast_sketch_store.rows.binning import Bins, Rounding
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows, RowKeys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.formulas import Formula, Source
from feast_sketch_store.rows.listing import Attribute
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.base import Answer, SealedFeature, Structure, begin_unknown
from feast_sketch_store.structures.parts import Arrays, Checks, Described, Parts, Snapshot, checked, split
from feast_sketch_store.succinct.blocks import BlockChecks

_PRESENCES: Final[Mapping[str, type[Presence]]] = {
    ShapedRows.kind: ShapedRows,
    ListedRows.kind: ListedRows,
    StaticRows.kind: StaticRows,
}
REPLACE: Final = "replace"  # the newest row of an entity replaces those before it


@dataclass(frozen=True)
class SketchLayer(Layer):
    """Sealed rows. Immutable; safe to read from any number of threads.

    It answers for every entity that no newer layer lists.

    Raises ValueError: the presence and the structures do not fit each other.
    """

    presence: Presence  # the rows without their values
    structures: Sequence[Structure]  # the values of all features; at most one structure of each kind
    num_entities: int
    max_event_timestamp: int  # of the newest row, microseconds since 1970
    roundings: Mapping[str, Rounding] = field(default_factory=dict)
    # by feature that lost some values, the number of facts left out. Values that are kept lose no facts
    cut: Mapping[str, int] = field(default_factory=dict)
    semantics: str = REPLACE  # how the rows of an entity were combined: a name in `view.semantics`
    # microseconds since 1970; older rows were left out. Set only if rows do not replace each other
    since: int = NO_TIMESTAMP
    complete_since: int = NO_TIMESTAMP  # no seal of this log left out a row after it; at least ``since``
    checks: Sequence[BlockChecks] = ()  # of arrays whose checksums are verified at first use
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    # by feature, why this seal does not keep it as requested; no snapshot has it
    failed_over: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for structure in self.structures for name in structure.features]
        stateless = [n for s in self.structures if not s.tells_states for n in s.features]
        num_listed = self.presence.num_listed
        if len({*names}) != len(names) or len({s.kind for s in self.structures}) != len(self.structures):
            raise ValueError("two structures keep the same feature, or are of the same kind")
        if sorted(stateless) != sorted(self.presence.features):
            raise ValueError("the features and those with states are not the same")
        if num_listed not in (None, self.num_entities) or any(
            structure.num_rows != num_listed for structure in self.structures if structure.lists_rows
        ):
            raise ValueError("the structures do not have the rows of the layer")

    @cached_property
    def features(self) -> Mapping[str, SealedFeature]:
        """All features, by name."""
        return {name: feature for s in self.structures for name, feature in s.features.items()}

    @cached_property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        return {name: feature.codec for name, feature in self.features.items()}

    @cached_property
    def backed(self) -> frozenset[str]:
        """Features of which it has only states: their values were in another store when it was sealed."""
        return frozenset(name for name, codec in self.codecs.items() if codec.is_backed)

    @cached_property
    def cut_vocabularies(self) -> dict[str, Vocabulary]:
        """By feature that lost some values, those that it kept."""
        numberings = {name: self.numbering(name) for name in self.cut}
        return {name: vocabulary for name, vocabulary in numberings.items() if vocabulary is not None}

    def numbering(self, feature: str) -> Vocabulary | None:
        return self.features[feature].vocabulary

    # -- read ----------------------------------------------------------------------------------

    def _prepare(self, features: tuple[WantedFeature, ...]) -> RowReader:
        rows = self.presence.prepare()
        for structure in self.structures:
            structure.prepare(rows)
        for wanted in features:
            codec = wanted if isinstance(wanted, FeatureCodec) else None
            name = stored_name(wanted)
            feature = None if name is None else self.features.get(name)
            if feature is None:
                begin_unknown(rows)
                continue
            has_weights = feature.codec.is_list or feature.codec.is_counted
            if codec is not None and has_weights:
                feature.prepare_weights(rows, codec)
            else:
                feature.prepare(rows)
            if (states := self.presence.prepared_states(feature.codec.feature)) is not None:
                rows.states(*states)
            if codec is not None and not has_weights:
                rows.ones(codec.tag, codec.element_wire_type)  # each value was counted once
        return rows

    def read_attribute(self, entity_hashes: NDArray[np.uint64], attribute: Attribute, name: str) -> Answer:
        """An attribute of the items of the list ``name``, of the entities that have rows."""
        codec = FeatureCodec.of_attribute(attribute, name)
        rows = stack([self], Wanted((codec,)))
        return read(rows, [Column(codec.feature, codec)], entity_hashes, NO_TIMESTAMP).features[codec.feature]

    def shown(self, feature: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """What reads would return for a feature of rows if the layer held them under these hashes.

        Values that the layer does not know are left out. A filter adds the false positives of the hashes,
        uint64[n, 2], which are of entities that the layer does not hold.
        """
        return self.features[feature.codec.feature].shown(self._as_sealed(feature), entity_hashes)

    def missing(self, rows: EncodedRows) -> Iterator[str]:
        """Differences between the layer and the rows that were sealed into it, in words."""
        hashes = rows.keys.entity_hashes
        answer = self.read(hashes, list(rows.features))
        if len(answer.found) != len(rows):
            yield f"does not find {len(rows) - len(answer.found)} of its entities"
            return
        if (answer.event_timestamps > rows.keys.event_timestamps).any():
            yield "reports event timestamps that are newer than the rows"
        for name, feature in rows.features.items():
            written, found = self._as_sealed(feature), answer.features[name]
            if (found.states < written.states).any():
                yield f"hides values of feature {name!r}"
            sealed = self.features[name]
            yield from sealed.missing(written, hashes, found)
            for attribute in sealed.codec.attributes:
                shown = self.read_attribute(hashes, attribute, name)
                yield from sealed.missing_attribute(attribute, written, found, shown)

    def _as_sealed(self, feature: EncodedFeature) -> EncodedFeature:
        """A feature of rows as a seal keeps it: without cut values, and rounded."""
        name = feature.codec.feature
        if name in self.cut:
            feature = feature.within(self.cut_vocabularies[name])
        if name in self.roundings:
            values = self.rounded(name, feature.vocabulary.values)
            feature = replace(feature, vocabulary=Vocabulary(values))
        return feature

    def rounded(self, feature: str, values: pa.Array) -> pa.Array:
        """What reads return for values of the storage type: the representatives of their bins, if any."""
        rounding, codec = self.roundings.get(feature), self.codecs[feature]
        if rounding is None or not len(rounding.bins.lows):  # without numbers there are no bins
            return values
        bins = rounding.bins
        return codec.from_numbers(bins.representatives[bins.find(codec.to_numbers(values))])

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes of all structures, of formulas, and of the rows without their values."""
        of_formulas = sum(formula.size_bytes for formula in self.formulas.values())
        return self.presence.size_bytes + of_formulas + sum(s.size_bytes for s in self.structures)

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its column, or its vocabulary and share of a structure; and its formula."""
        of_formula = self.formulas[feature].size_bytes if feature in self.formulas else 0
        return of_formula + next(s.size_bytes_of(feature) for s in self.structures if feature in s.features)

    @property
    def vocabulary_bytes(self) -> int:
        """Bytes of all vocabularies."""
        return sum(f.vocabulary.size_bytes for f in self.features.values() if f.vocabulary is not None)

    @property
    def num_facts(self) -> int:
        """Facts that `fact_bits` counts, including the symbols of rows in filters."""
        return sum(structure.num_facts for structure in self.structures)

    @property
    def fact_bits(self) -> int:
        """Bits of all facts, including the index of rows if facts are found through it."""
        bits = {structure.kind: structure.fact_bits for structure in self.structures}
        is_listed = any(structure.lists_rows and bits[structure.kind] for structure in self.structures)
        return sum(bits.values()) + (8 * self.presence.index_bytes if is_listed else 0)

    @property
    def table_bytes(self) -> int:
        """Bytes of filters."""
        return sum(structure.table_bytes for structure in self.structures)

    @property
    def ideal_bits(self) -> float:
        """Bits that standard Bloom filters need for the facts in filters at the same expected rates."""
        return sum(structure.ideal_bits for structure in self.structures)

    # -- snapshot ------------------------------------------------------------------------------

    def to_snapshot(self) -> Snapshot:
        """The layer as a JSON-serializable description, and its arrays by their paths in it."""
        described: Described = {
            "num_entities": self.num_entities,
            "max_event_timestamp": self.max_event_timestamp,
            "presence": {"kind": self.presence.kind, **self.presence.to_snapshot()},
            "structures": {structure.kind: structure.to_snapshot() for structure in self.structures},
        }
        if self.semantics != REPLACE:
            described["rows"] = {"semantics": self.semantics, "since": self.since}
            if self.complete_since > self.since:
                described["rows"]["complete_since"] = self.complete_since
        if self.cut:
            described["cut"] = dict(self.cut)
        if self.roundings:
            described["roundings"] = [
                {
                    "name": name,
                    "lows": rounding.bins.lows.view(np.int64),
                    "representatives": rounding.bins.representatives.view(np.int64),
                    "report": {"max_error": rounding.max_error, "mean_error": rounding.mean_error},
                }
                for name, rounding in self.roundings.items()
            ]
        if self.formulas:
            described["formulas"] = describe_formulas(self.formulas)
        return split(described)

    @classmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], arrays: Arrays, checks: Checks | None = None
    ) -> "SketchLayer":
        """The layer of parts from `to_snapshot`. Arrays are not copied, mapped or not.

        ``checks`` are of those whose checksums are not verified yet, see `is_checked_where_read`.

        Raises ValueError, KeyError, TypeError: the description and the arrays do not fit each other, or a
        structure is of an unknown kind.
        """
        parts = Parts(checked(description, dict), arrays, checks or {})
        kinds = parts.at("structures")
        structures = [registry.kind(kind).from_snapshot(kinds.at(kind)) for kind in kinds.described]
        own = parts.at("presence")
        presence = _PRESENCES.get(own.get("kind", str))
        if presence is None:
            raise ValueError(f"unknown kind of presence: {own.get('kind', str)!r}")
        layer = cls(
            presence.from_snapshot(own, structures),
            structures,
            parts.get("num_entities", int),
            parts.get("max_event_timestamp", int),
        )
        rows = description.get("rows", {"semantics": REPLACE, "since": NO_TIMESTAMP})
        return replace(
            layer,
            roundings=_roundings_from(parts, layer.codecs),
            cut=_cut_from(parts.at("cut").described, layer.features),
            checks=tuple(parts.checks.values()),
            formulas=formulas_from(parts, layer.codecs),
            semantics=checked(rows["semantics"], str),
            since=checked(rows["since"], int),
            complete_since=checked(rows.get("complete_since", rows["since"]), int),
        )


def _cut_from(entries: Mapping[str, Any], features: Mapping[str, SealedFeature]) -> dict[str, int]:
    cut = {name: checked(number, int) for name, number in entries.items()}
    for name, number in cut.items():
        feature = features.get(name)
        if feature is None or feature.vocabulary is None or not feature.codec.is_collection or number < 0:
            raise ValueError("values are cut from a feature that does not have a vocabulary")
    return cut


def _roundings_from(parts: Parts, codecs: Mapping[str, FeatureCodec]) -> dict[str, Rounding]:
    roundings = {}
    for entry in parts.each("roundings") if parts.has("roundings") else ():
        name, report = entry.get("name", str), entry.at("report")
        if name not in codecs:
            raise ValueError(f"{name!r} has bins, but is not a feature of the layer")
        lows, representatives = (
            entry.array(key, np.int64).view(codecs[name].number_type) for key in ("lows", "representatives")
        )
        if lows.shape != representatives.shape:
            raise ValueError(f"the bins of {name!r} do not fit each other")
        roundings[name] = Rounding(
            Bins(lows, representatives),
            report.get("max_error", float),
            report.get("mean_error", float),
        )
    return roundings


def describe_formulas(formulas: Mapping[str, Formula]) -> list[Described]:
    """Formulas as descriptions with arrays."""
    return [
        {
            "name": name,
            "unit": formula.unit,
            "step": formula.step,
            "sources": [
                {"name": s.feature, "vocabulary": s.vocabulary.to_packed(), "weights": s.weights}
                for s in formula.sources
            ],
            "report": {"version": formula.version},
        }
        for name, formula in formulas.items()
    ]


def formulas_from(parts: Parts, codecs: Mapping[str, FeatureCodec]) -> dict[str, Formula]:
    """The ``formulas`` that `describe_formulas` described, in the same order; none if there is no such key.

    Raises ValueError, KeyError, TypeError: the parts do not fit each other or the features.
    """
    formulas = {}
    for entry in parts.each("formulas") if parts.has("formulas") else ():
        name = entry.get("name", str)
        sources = [(own.get("name", str), own) for own in entry.each("sources")]
        if name in formulas or not {name, *(source for source, _ in sources)} <= codecs.keys():
            raise ValueError(f"there are two formulas of {name!r}, or the layer lacks one of its features")
        if not all(codecs[source].is_collection and not codecs[source].may_repeat for source, _ in sources):
            raise ValueError(f"the formula of {name!r} has a source that is not a set")
        formulas[name] = Formula(
            codecs[name],
            tuple(
                Source(source, own.vocabulary(codecs[source]), own.array("weights", np.int32))
                for source, own in sources
            ),
            entry.get("unit", float),
            entry.get("step", float),
            entry.at("report").get("version", int),
        )
    return formulas


@dataclass(frozen=True)
class DeltaLayer(Layer):
    """Sealed rows that replace those of layers below. Immutable; safe to read from any number of threads.

    ``entity_hashes`` are uint64[n, 2], ascending: of entities with rows and of those that were ``deleted``,
    bool[n]. Raises ValueError: the list does not match the layer, or does not ascend.
    """

    layer: SketchLayer
    entity_hashes: NDArray[np.uint64]
    deleted: NDArray[np.bool_]

    def __post_init__(self) -> None:
        first, second = self.entity_hashes[:, 0], self.entity_hashes[:, 1]
        ascends = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))
        num_alive = len(self.deleted) - int(self.deleted.sum())
        if len(self.deleted) != len(self.entity_hashes) or num_alive != self.layer.num_entities:
            raise ValueError("the list of entities does not match the layer's rows")
        if not ascends.all():
            raise ValueError("the list of entities does not ascend")

    def __len__(self) -> int:
        return len(self.entity_hashes)

    @property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        return self.layer.codecs

    def numbering(self, feature: str) -> Vocabulary | None:
        return self.layer.numbering(feature)

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return self.layer.size_bytes + self.entity_hashes.nbytes + self.deleted.nbytes

    @property
    def max_event_timestamp(self) -> int:
        """Microseconds since 1970, the newest of the rows; deletions do not count."""
        return self.layer.max_event_timestamp

    def _prepare(self, features: tuple[WantedFeature, ...]) -> RowReader:
        return self.layer.row_reader(features)

    @cached_property
    def decides(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        return np.ascontiguousarray(self.entity_hashes), self.deleted

    def keys(self, order: RowKeys) -> RowKeys:
        """The keys of its entities in an order index, marked to hide all rows of layers below."""
        return replace(order, deleted=self.deleted, delete_barriers=np.ones(len(self), np.bool_))

    def find(self, entity_hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The listed entities: their positions in the batch and in the list, int64[p] each."""
        return find_sorted(self.entity_hashes, entity_hashes)


@dataclass(frozen=True)
class SealedRows:
    """The sealed rows of a view, to be inspected. Immutable; safe to use from several threads."""

    bases: tuple[SketchLayer, ...]  # of each shard that has sealed rows; at least one
    deltas: tuple[SketchLayer, ...] = ()  # the rows of deltas, which replace some of the bases

    @property
    def layers(self) -> tuple[SketchLayer, ...]:
        """All layers, the bases first."""
        return (*self.bases, *self.deltas)

    @property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""
        return {name: codec for layer in self.layers for name, codec in layer.codecs.items()}

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """By computed feature, its formula. A view has one set of formulas, so all layers agree."""
        return {name: formula for layer in self.layers for name, formula in layer.formulas.items()}

    @property
    def cut(self) -> Mapping[str, int]:
        """By feature that lost some values, the number of facts left out."""
        names = dict.fromkeys(name for layer in self.layers for name in layer.cut)
        return {name: sum(layer.cut.get(name, 0) for layer in self.layers) for name in names}

    @property
    def num_entities(self) -> int:
        """Entities of all layers."""
        return sum(layer.num_entities for layer in self.layers)

    @property
    def num_facts(self) -> int:
        """Facts of all features, kept or cut."""
        kept = sum(feature.num_facts for layer in self.layers for feature in layer.features.values())
        return kept + sum(self.cut.values())

    def features(self, name: str) -> list[SealedFeature]:
        """The feature in each layer; empty if there is no such feature."""
        return [layer.features[name] for layer in self.layers if name in layer.features]

    def shown(self, feature: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """What reads of the largest layer with a feature would return for rows; see `SketchLayer.shown`."""
        name = feature.codec.feature
        layers = [layer for layer in self.layers if name in layer.features]
        return max(layers, key=lambda layer: layer.num_entities).shown(feature, entity_hashes)

    def expected_rates(self) -> dict[str, float]:
        """The error rate that the filter of each feature is built for, the largest of all layers; features
        without a filter have none.
        """
        found = {name: [f.false_positive_rate for f in self.features(name)] for name in self.codecs}
        known = {name: [rate for rate in rates if rate is not None] for name, rates in found.items()}
        return {name: max(rates) for name, rates in known.items() if rates}

    def sampled_rates(self, names: Iterable[str], num_samples: int) -> dict[str, float]:
        """By feature, the share of (entity, value) pairs that read as written, of entities that never were.

        Raises DamagedFileError: a part of a snapshot that was not used before is damaged.
        """
        rng = np.random.default_rng()
        hashes = _unknown(rng, num_samples)
        return {
            name: float(np.mean([feature.sampled_rate(hashes, rng) for feature in self.features(name)]))
            for name in names
        }

    def sampled_presence(self, num_samples: int) -> float:
        """The share of entities that seem to have a row, of those that never had one; raises likewise."""
        hashes = _unknown(np.random.default_rng(), num_samples)
        return float(np.mean([len(base.read(hashes, ()).found) / num_samples for base in self.bases]))


def _unknown(rng: np.random.Generator, number: int) -> NDArray[np.uint64]:
    return rng.integers(0, 2**64, (number, 2), np.uint64)
