"""The sketch layer: sealed rows, their features in structures.

What is known of a row besides values is its presence, in one of two ways: by its shape, a symbol more in a
filter (`ShapedRows`), or from a list of all rows (`ListedRows`), which a layer has as soon as one of its
structures is read by numbers of rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.layers.answer import LayerAnswer
from feast_sketch_store.layers.formulas import describe_formula, formulas_from
from feast_sketch_store.layers.listed import ListedRows
from feast_sketch_store.layers.presence import Presence
from feast_sketch_store.layers.shapes import ShapedRows
from feast_sketch_store.layers.static_rows import StaticRows
from feast_sketch_store.rows.binning import Bins, Rounding
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature, EncodedRows
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.answer import Answer
from feast_sketch_store.structures.base import SealedFeature, Structure
from feast_sketch_store.structures.parts import (
    Arrays,
    Checks,
    Described,
    Parts,
    checked,
    is_checked_where_read,
    prefixed,
    report_of,
)
from feast_sketch_store.structures.prepared import begin_unknown
from feast_sketch_store.succinct.packed import Check

_PRESENCES: Final[Mapping[str, type[Presence]]] = {
    ShapedRows.kind: ShapedRows,
    ListedRows.kind: ListedRows,
    StaticRows.kind: StaticRows,
}
REPLACE: Final = "replace"  # the newest row of an entity replaces those before it
_PRESENCE, _ROUNDINGS, _FORMULAS = registry.RESERVED  # before the names of arrays, as kinds of structures are


@dataclass(frozen=True)
class SketchLayer:
    """Sealed rows. Immutable; safe to read from any number of threads.

    Whatever no newer layer lists is asked here.

    Parameters
    ----------
    presence : the rows without their values.
    structures : those that keep the features, no two of one kind.
    num_entities, max_event_timestamp : of the rows.
    roundings : of binned features.
    cut : by feature that lost some values, how many facts were left out; kept values lose none.
    semantics : how rows of an entity came together, by the name of `view.semantics`.
    since : microseconds since 1970, before which rows were left out; told if they do not replace each other.
    checks : of arrays that are checked where they are read.
    formulas : of computed features: how they follow from others.

    Raises
    ------
    ValueError : the presence and the structures are not those of one layer.
    """

    presence: Presence
    structures: Sequence[Structure]
    num_entities: int
    max_event_timestamp: int
    roundings: Mapping[str, Rounding] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    semantics: str = REPLACE
    since: int = NO_TIMESTAMP
    checks: Sequence[Check] = ()
    formulas: Mapping[str, Formula] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for structure in self.structures for name in structure.features]
        stateless = [n for s in self.structures if not s.tells_states for n in s.features]
        num_listed = self.presence.num_listed
        if len({*names}) != len(names) or len({s.kind for s in self.structures}) != len(self.structures):
            raise ValueError("a feature is kept twice, or there are two structures of one kind")
        if sorted(stateless) != sorted(self.presence.features):
            raise ValueError("the features and those whose states are known are not the same")
        if num_listed not in (None, self.num_entities) or any(
            structure.num_rows != num_listed for structure in self.structures if structure.lists_rows
        ):
            raise ValueError("the structures do not have the rows of the layer")

    @cached_property
    def features(self) -> Mapping[str, SealedFeature]:
        """All features, by name."""
        return {name: feature for s in self.structures for name, feature in s.features.items()}

    @cached_property
    def prepared(self) -> dict[tuple[str | FeatureCodec, ...], PreparedRows | None]:
        """What was prepared for reads of one entity, by features; see `layers.prepared`."""
        return {}

    @cached_property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""
        return {name: feature.codec for name, feature in self.features.items()}

    @property
    def cut_vocabularies(self) -> dict[str, Vocabulary]:
        """By feature that lost some values, the kept ones."""
        numberings = {name: self.numbering(name) for name in self.cut}
        return {name: vocabulary for name, vocabulary in numberings.items() if vocabulary is not None}

    def numbering(self, feature: str) -> Vocabulary | None:
        """The values of a feature in the order of their ids; None if they have none."""
        return self.features[feature].vocabulary

    # -- read ----------------------------------------------------------------------------------

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        expire_before: int = NO_TIMESTAMP,
    ) -> LayerAnswer:
        """The possibly-present rows of a batch.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; those the layer does not know are left out of the answer.
        expire_before : microseconds since 1970; a row is not returned once all of its bucket is older.

        Raises
        ------
        ValueError : parts that were not used before contradict each other; the layer came from a file.
        """
        known = [name for name in features if name in self.features]
        found = self.presence.find(entity_hashes, known, expire_before)
        answers = {name: self.features[name].read(found) for name in known}
        positions, timestamps = found.positions, found.event_timestamps
        return LayerAnswer(positions, positions, timestamps, answers, expired=found.expired)

    def prepare(self, features: Sequence[str | FeatureCodec]) -> PreparedRows | None:
        """The rows with some features for reads of one entity; see `layers.prepared.Wanted`."""
        rows = self.presence.prepare()
        if rows is None:
            return None
        for structure in self.structures:
            structure.prepare(rows)
        for wanted in features:
            codec = wanted if isinstance(wanted, FeatureCodec) else None
            name = wanted if isinstance(wanted, str) else wanted.source
            feature = self.features.get(name)
            if feature is None:
                begin_unknown(rows)
            elif not (feature.prepare(rows) if codec is None else feature.prepare_weights(rows, codec)):
                return None
            elif (states := self.presence.prepared_states(name)) is not None:
                rows.states(*states)
        return rows

    def newest(
        self, entity_hashes: NDArray[np.uint64], feature: str, limit: int | None, since: int
    ) -> Csr | None:
        """The newest items of lists in one step; see `SealedFeature.newest`; None if `read` must be asked."""
        own, finder = self.features.get(feature), self.presence.finder
        if own is None or finder is None:
            return None
        return own.newest(finder, entity_hashes, limit, since)

    def shown(self, feature: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """What reads would give of a feature of rows, were they in the layer under such hashes.

        Values that the layer does not know are left out, and where it has a filter the hashes have its false
        positives.

        Parameters
        ----------
        feature : of n rows.
        entity_hashes : uint64[n, 2], of entities that the layer does not hold.
        """
        return self.features[feature.codec.feature].shown(self._as_sealed(feature), entity_hashes)

    def missing(self, rows: EncodedRows) -> Iterator[str]:
        """The mistakes of the layer about rows that were sealed into it, in words."""
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
            yield from self.features[name].missing(written, hashes, found)

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
        """The representatives of values of the storage type: themselves, unless the feature is binned."""
        rounding, codec = self.roundings.get(feature), self.codecs[feature]
        if rounding is None:
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
        """Bytes of one feature: its column, or its vocabulary and its share of the structure; its formula."""
        of_formula = self.formulas[feature].size_bytes if feature in self.formulas else 0
        return of_formula + next(s.size_bytes_of(feature) for s in self.structures if feature in s.features)

    @property
    def vocabulary_bytes(self) -> int:
        """Bytes of all vocabularies."""
        return sum(f.vocabulary.size_bytes for f in self.features.values() if f.vocabulary is not None)

    @property
    def num_facts(self) -> int:
        """Facts whose bits `fact_bits` are, one per entity and symbol of rows included."""
        return sum(structure.num_facts for structure in self.structures)

    @property
    def fact_bits(self) -> int:
        """Bits of all facts, with their indexes."""
        bits = {structure.kind: structure.fact_bits for structure in self.structures}
        is_listed = any(structure.lists_rows and bits[structure.kind] for structure in self.structures)
        return sum(bits.values()) + (8 * self.presence.index_bytes if is_listed else 0)

    @property
    def table_bytes(self) -> int:
        """Bytes of filters."""
        return sum(structure.table_bytes for structure in self.structures)

    @property
    def ideal_bits(self) -> float:
        """Bits of standard Bloom filters for the facts in filters at the same expected rates."""
        return sum(structure.ideal_bits for structure in self.structures)

    # -- snapshot ------------------------------------------------------------------------------

    def to_snapshot(self) -> Described:
        """The layer as a JSON-serializable description and named arrays."""
        presence, parts = self.presence.to_snapshot()
        arrays = prefixed(_PRESENCE, parts)
        structures = []
        for structure in self.structures:
            entry, parts = structure.to_snapshot()
            structures.append({"kind": structure.kind, **entry})
            arrays |= prefixed(structure.kind, parts)
        description: dict[str, Any] = {
            "num_entities": self.num_entities,
            "max_event_timestamp": self.max_event_timestamp,
            "presence": {"kind": self.presence.kind, **presence},
            "structures": structures,
        }
        if self.semantics != REPLACE:
            description["rows"] = {"semantics": self.semantics, "since": self.since}
        if self.cut:
            description["cut"] = dict(self.cut)
        if self.roundings:
            description["roundings"] = []
            for number, (name, rounding) in enumerate(self.roundings.items()):
                errors = {"max_error": rounding.max_error, "mean_error": rounding.mean_error}
                description["roundings"].append({"name": name, "report": errors})
                for part in ("lows", "representatives"):
                    numbers = getattr(rounding.bins, part)
                    arrays[f"{_ROUNDINGS}.{number}.{part}"] = numbers.view(np.int64)
        if self.formulas:
            described = [describe_formula(*item) for item in self.formulas.items()]
            description["formulas"] = [entry for entry, _ in described]
            for number, (_, parts) in enumerate(described):
                arrays |= prefixed(f"{_FORMULAS}.{number}", parts)
        return description, {n: a for n, a in arrays.items() if a.size or not is_checked_where_read(n)}

    @classmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], arrays: Arrays, checks: Checks | None = None
    ) -> "SketchLayer":
        """The reverse of `to_snapshot`; the arrays are used as they are, mapped or not.

        Parameters
        ----------
        checks : of the arrays that were not checked, see `is_checked_where_read`.

        Raises
        ------
        ValueError, KeyError, TypeError : the description and the arrays do not fit each other, or a structure
            is of a kind that is not registered.
        """
        parts = Parts(arrays, checks or {})
        structures = []
        for entry in description["structures"]:
            kind = checked(entry["kind"], str)
            structures.append(registry.kind(kind).from_snapshot(entry, parts.at(kind)))
        entry = description["presence"]
        presence = _PRESENCES.get(entry["kind"])
        if presence is None:
            raise ValueError(f"unknown way to store presence: {entry['kind']!r}")
        layer = cls(
            presence.from_snapshot(entry, parts.at(_PRESENCE), structures),
            structures,
            checked(description["num_entities"], int),
            checked(description["max_event_timestamp"], int),
        )
        roundings = _roundings_from(description.get("roundings", []), layer.codecs, parts.at(_ROUNDINGS))
        cut = _cut_from(checked(description.get("cut", {}), dict), layer.features)
        formulas = formulas_from(description.get("formulas", []), layer.codecs, parts.at(_FORMULAS))
        checks_of_all = tuple(parts.checks.values())
        layer = replace(layer, roundings=roundings, cut=cut, checks=checks_of_all, formulas=formulas)
        if (rows := description.get("rows")) is None:
            return layer
        semantics, since = checked(rows["semantics"], str), checked(rows["since"], int)
        return replace(layer, semantics=semantics, since=since)


def _cut_from(entries: Mapping[str, Any], features: Mapping[str, SealedFeature]) -> dict[str, int]:
    cut = {name: checked(number, int) for name, number in entries.items()}
    for name, number in cut.items():
        feature = features.get(name)
        if feature is None or feature.vocabulary is None or not feature.codec.is_collection or number < 0:
            raise ValueError("facts are cut from features without a vocabulary")
    return cut


def _roundings_from(
    entries: Sequence[Mapping[str, Any]], codecs: Mapping[str, FeatureCodec], parts: Parts
) -> dict[str, Rounding]:
    roundings = {}
    for number, entry in enumerate(entries):
        name = checked(entry["name"], str)
        if name not in codecs:
            raise ValueError(f"{name!r}, which has bins, is not a feature of the layer")
        lows, representatives = (
            parts.array(f"{number}.{part}", np.int64).view(codecs[name].number_type)
            for part in ("lows", "representatives")
        )
        if lows.shape != representatives.shape:
            raise ValueError(f"the bins of {name!r} do not fit each other")
        roundings[name] = Rounding(
            Bins(lows, representatives),
            checked(report_of(entry)["max_error"], float),
            checked(report_of(entry)["mean_error"], float),
        )
    return roundings
