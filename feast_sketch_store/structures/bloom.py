"""Bloom filters: features of a layer in one shifting Bloom filter, plain or weighted.

A plain filter gives every symbol the same number of hashes; a weighted one gives popular symbols fewer.

One window of the filter holds the symbols of all features, each feature in a range that begins on a word. If
the layer does not list its rows, symbols that describe rows follow:

    | first feature | ... | last feature | symbols of rows |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.codecs import NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import (
    Answer,
    RowsToSeal,
    SealedFeature,
    Shortfall,
    Structure,
    begin_feature,
)
from feast_sketch_store.structures.costs import FilterPlan, Popularity, filter_offer
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.goals import AUTO, BLOOM, WEIGHTED_BLOOM, Goal, Offer
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    checked,
    describe_filter,
    prefixed,
)
from feast_sketch_store.structures.table import SymbolRange, TablePart, fill_table
from feast_sketch_store.succinct import ShiftingBloomFilter

_MAX_GROWTH = 4.0  # of a table; chance does not explain more missing bits
_SMALL_TABLE = 1 << 16  # bits; in smaller tables chance may demand any growth


@dataclass(frozen=True)
class BloomFeature(SealedFeature):
    """One feature in a filter; ``symbols`` are those of its values."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    symbols: SymbolRange
    filter: ShiftingBloomFilter

    @property
    def structure(self) -> str:
        """See `SealedFeature`."""
        return WEIGHTED_BLOOM if self.symbols.first_symbols else BLOOM

    @property
    def num_facts(self) -> int:
        """See `SealedFeature`."""
        return self.symbols.num_facts

    @property
    def false_positive_rate(self) -> float:
        """See `SealedFeature`."""
        return self.symbols.false_positive_rate

    def prepare(self, rows: RowReader) -> None:
        """See `SealedFeature.prepare`."""
        begin_feature(rows, self.codec, self.vocabulary)
        if self.symbols.num_symbols:
            rows.from_filter(*self.filter.arguments(self.symbols.query))
        else:
            rows.from_states()

    def _of_scalar(self, states: NDArray[np.uint8], candidates: Csr) -> Answer:
        """The first candidate of each row. It is the most probable, because popular values have low ids."""
        has_any = candidates.lengths > 0
        ids = candidates.ids[candidates.indptr[:-1][has_any]]
        # If a shape says that there is a value but no symbol is possible, the shape is a false positive.
        states = np.where((states == VALUE) & ~has_any, np.uint8(NULL), states)
        return Answer(self.decoder, states, Csr.of_lengths(has_any.astype(np.int64), ids))

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`. The hashes show their own false values.

        These follow the law of the layer's own rows: a filter treats all hashes that were not added alike.
        """
        own = self.known(rows)
        noise = Csr(*self.filter.possible_symbols(entity_hashes, self.symbols.query, rows.states == VALUE))
        both = own.joined(noise).distinct()
        if self.codec.is_collection:
            return Answer(self.decoder, rows.states, both)
        return self._of_scalar(rows.states, both)

    def differences(self, written: Csr, entity_hashes: NDArray[np.uint64], answer: Answer) -> tuple[int, int]:
        """See `SealedFeature.differences`; a filter has false values by design."""
        entities = written.rows
        is_read = answer.states[entities] == VALUE  # otherwise the filter is not asked
        symbols = written.ids.astype(np.int32, copy=False)[:, None]
        found = self.filter.contains(entity_hashes[entities], self.symbols.query, symbols, is_read)
        return int((~found).sum()), 0

    def sampled_rate(self, entity_hashes: NDArray[np.uint64], rng: np.random.Generator) -> float:
        """See `SealedFeature.sampled_rate`."""
        num_symbols = max(1, self.symbols.num_symbols)
        ids = rng.integers(0, num_symbols, (len(entity_hashes), 1)).astype(np.int32)
        return float(self.filter.contains(entity_hashes, self.symbols.query, ids).mean())


@dataclass(frozen=True)
class BloomTable(Structure):
    """Features in one filter, and the ranges of the symbols of ``rows`` if the layer does not list them."""

    features: Mapping[str, BloomFeature]
    rows: Sequence[SymbolRange]
    filter: ShiftingBloomFilter

    kind = BLOOM
    names = (BLOOM, WEIGHTED_BLOOM)
    is_filter = True
    holds_rows = True

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`: unless named, a plain filter for an error rate, a weighted one otherwise."""
        return filter_offer(goal, popularity) if goal.structure in (AUTO, *cls.names) else None

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, FilterPlan]], rows: RowsToSeal) -> Self | Shortfall:
        """See `Structure.build`."""
        parts = [
            TablePart(plan.facts, len(feature.vocabulary), feature.kept_rows, plan.is_held)
            for feature, plan in features
        ]
        everyone = np.arange(len(rows.entity_hashes), dtype=np.int32)
        one_each = np.arange(len(everyone) + 1)
        for shapes in rows.symbols:
            part = everyone, Csr(one_each, shapes.ids.astype(np.int32))
            parts.append(TablePart(shapes.facts, shapes.num_symbols, partial(iter, [part])))
        table = fill_table(rows.entity_hashes, parts, rows.salt, rows.growth)
        if not table.keeps_targets:
            bits = table.builder.num_bits
            reason = f"a table of {bits} bits would show {table.excess:.3g} times what it may"
            is_hopeless = table.growth > _MAX_GROWTH and bits > _SMALL_TABLE
            return Shortfall(math.inf if is_hopeless else table.growth, reason)
        for feature, _ in features:
            feature.release()
        bloom, by_name = table.builder.build(), {}
        for (feature, _), symbols in zip(features, table.ranges, strict=False):
            codec = feature.sealed_codec
            by_name[codec.feature] = BloomFeature(codec, feature.vocabulary, symbols, bloom)
        return cls(by_name, table.ranges[len(features) :], bloom)

    @property
    def ranges(self) -> list[SymbolRange]:
        """All symbols of the filter."""
        return [*(feature.symbols for feature in self.features.values()), *self.rows]

    @property
    def size_bytes(self) -> int:
        """Bytes of the table, including the words that it repeats, and of the vocabularies."""
        return int(self.filter.words.nbytes) + sum(f.vocabulary.packed_bytes for f in self.features.values())

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its vocabulary, and its share of the table, by the bits that it sets."""
        of_table = self.features[feature].symbols.num_ones / max(1, sum(r.num_ones for r in self.ranges))
        return of_table * self.filter.words.nbytes + self.features[feature].vocabulary.packed_bytes

    @property
    def num_facts(self) -> int:
        """Facts of the features, and the symbols of rows."""
        return sum(symbols.num_facts for symbols in self.ranges)

    @property
    def fact_bits(self) -> int:
        """Bits of the table."""
        return self.filter.num_bits

    @property
    def table_bytes(self) -> int:
        """Bytes of the table."""
        return self.filter.num_bits // 8

    @property
    def ideal_bits(self) -> float:
        """See `Structure`."""
        fill = self._expected_fill
        # A fact of k hashes has the rate fill ** k.
        return sum(symbols.num_ones for symbols in self.ranges) * -math.log2(fill) / math.log(2)

    @property
    def _expected_fill(self) -> float:
        num_ones = sum(symbols.num_ones for symbols in self.ranges)
        return -math.expm1(-num_ones / self.filter.num_bits) if num_ones else 0.5

    def to_snapshot(self) -> Described:
        """See `Structure.to_snapshot`."""
        entries = []
        arrays: dict[str, NDArray[np.generic]] = {f"table.{WORDS}": self.filter.words}
        for number, (name, feature) in enumerate(self.features.items()):
            codec = {"name": name, "value_field": feature.codec.value_field}
            entries.append({**codec, **feature.symbols.to_snapshot()})
            arrays |= prefixed(f"{number}.vocabulary", feature.vocabulary.to_packed())
        description = {
            **describe_filter(self.filter),
            "features": entries,
            "rows": [symbols.to_snapshot() for symbols in self.rows],
        }
        return description, arrays

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> Self:
        """See `Structure.from_snapshot`."""
        bloom = parts.filter(description)
        features: dict[str, BloomFeature] = {}
        for number, entry in enumerate(description["features"]):
            name = checked(entry["name"], str)
            codec = FeatureCodec(name, entry["value_field"])
            vocabulary = parts.vocabulary(f"{number}.vocabulary", codec)
            symbols = SymbolRange.from_snapshot(entry)
            if len(vocabulary) != symbols.num_symbols or name in features:
                raise ValueError(f"the vocabulary of {name!r} does not fit its symbols")
            features[name] = BloomFeature(codec, vocabulary, symbols, bloom)
        rows = [SymbolRange.from_snapshot(entry) for entry in description["rows"]]
        table = cls(features, rows, bloom)
        if bloom.window_words != _window_words(table.ranges):
            raise ValueError("the table's length is not that of its words and window")
        if table._expected_fill == 1:
            raise ValueError("the table has fewer bits than the number of facts that it names needs")
        return table


def _window_words(ranges: Sequence[SymbolRange]) -> int:
    window_words = 0
    for symbols in sorted(ranges, key=lambda r: (r.first_word, r.num_words)):
        if symbols.first_word != window_words:
            raise ValueError("the ranges of symbols are not consecutive")
        window_words += symbols.num_words
    return max(1, window_words)
