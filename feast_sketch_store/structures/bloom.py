"""Bloom filters: features of a layer in one shifting Bloom filter, plain or weighted.

A plain filter gives every symbol the same number of hashes; a weighted one gives popular symbols fewer.

One window of the filter holds the symbols of all features, each feature in a range that begins on a word. If
the layer does not list its rows, symbols that describe rows follow:

    | first feature | ... | last feature | symbols of rows |

A sizing uses the expected number of ones in the filter's table. The actual number differs: little in a large
table; but in a small one, windows of entities with many values move the fill by percents. So the ones are
counted, and a table that would show too many false values is filled again, a little larger.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES, RowReader
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
from feast_sketch_store.structures.feature_rows import FeatureRows, Part
from feast_sketch_store.structures.goals import BLOOM, WEIGHTED_BLOOM, Goal, Offer
from feast_sketch_store.structures.parts import Described, Parts, checked, describe_codec, describe_filter
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    Geometry,
    Hashes,
    WeightedFacts,
    fill_limit,
    size_for_rates,
)
from feast_sketch_store.succinct import ShiftingBloomFilter, ShiftingBloomFilterBuilder, SymbolQuery
from feast_sketch_store.threads import num_threads

# How much the expected noise of a finished table may exceed its target, as a share.
TOLERANCE = 0.001

_HEADROOM = 1.002  # factor for a larger table, whose ones will differ a little again
_MOST_AT_ONCE = 2.0  # factor by which a table becomes larger
_MAX_GROWTH = 4.0  # of a table; chance does not explain more missing bits
_SMALL_TABLE = 1 << 16  # bits; in smaller tables chance may demand any growth

# Numbers of rows, their symbols, the hashes that these get, and the first symbol of each; see `SymbolQuery`.
PlacedFacts = tuple[NDArray[np.int32], Csr, int, NDArray[np.int64] | None]


@dataclass(frozen=True)
class SymbolRange:
    """Consecutive symbols of a filter."""

    first_word: int  # the word of a window that holds the first symbol
    num_symbols: int
    num_hashes: int  # the most hashes of any symbol
    num_facts: int
    num_ones: int  # number of bits that the facts set
    # first symbol covered by each hash; empty if every hash covers every symbol
    first_symbols: tuple[int, ...]
    false_positive_rate: float  # mean of all symbols

    @classmethod
    def build(
        cls, first_word: int, num_symbols: int, facts: AnyFacts, hashes: Hashes, fill: float
    ) -> "SymbolRange":
        """The range of facts in a table with the share ``fill`` of ones."""
        first_symbols: Hashes = ()
        rate = fill ** len(hashes)
        if isinstance(facts, WeightedFacts):
            first_symbols, rate = hashes, float(facts.symbol_rates(hashes, fill).mean())
        num_facts, num_ones = facts.num_items, facts.num_ones(hashes)
        return cls(first_word, num_symbols, len(hashes), num_facts, num_ones, first_symbols, rate)

    @property
    def num_words(self) -> int:
        """Words of a window that the range takes."""
        return words_for(self.num_symbols)

    @cached_property
    def query(self) -> SymbolQuery:
        """The range in the form that the filter takes."""
        firsts = np.array(self.first_symbols, np.int64) if self.first_symbols else None
        return SymbolQuery(self.first_word, self.num_symbols, self.num_hashes, firsts)

    def to_snapshot(self) -> Described:
        """The range as a part of a description."""
        return {
            "first_word": self.first_word,
            "num_symbols": self.num_symbols,
            "num_hashes": self.num_hashes,
            "first_symbols": list(self.first_symbols),
            "report": {
                "num_facts": self.num_facts,
                "num_ones": self.num_ones,
                "false_positive_rate": self.false_positive_rate,
            },
        }

    @classmethod
    def from_snapshot(cls, parts: Parts) -> "SymbolRange":
        """The range in a part of a description; raises as `Structure.from_snapshot`."""
        report = parts.at("report")
        symbols = cls(
            parts.get("first_word", int),
            parts.get("num_symbols", int),
            parts.get("num_hashes", int),
            report.get("num_facts", int),
            report.get("num_ones", int),
            tuple(checked(number, int) for number in parts.get("first_symbols", list)),
            report.get("false_positive_rate", float),
        )
        firsts, num_hashes = symbols.first_symbols, symbols.num_hashes
        most_ones = symbols.num_facts * num_hashes
        if (
            min(symbols.first_word, symbols.num_symbols, symbols.num_facts) < 0
            or not 1 <= num_hashes <= MAX_NUM_HASHES
            or (firsts and (len(firsts) != num_hashes or firsts[0] or firsts[-1] >= symbols.num_symbols))
            or any(later < first for first, later in itertools.pairwise(firsts))
            or not (symbols.num_facts if firsts else most_ones) <= symbols.num_ones <= most_ones
            or not 0.0 <= symbols.false_positive_rate <= 1.0
            or (symbols.num_facts and not 0.0 < symbols.false_positive_rate < 1.0)
        ):
            raise ValueError(f"{symbols} is not possible")
        return symbols


def words_for(num_symbols: int) -> int:
    """Words of a window with this many symbols."""
    return -(-num_symbols // 64)


def first_words(nums_symbols: Iterable[int]) -> list[int]:
    """The word of a window at which each of several ranges of symbols begins, and the word after the last."""
    return [0, *itertools.accumulate(map(words_for, nums_symbols))]


def counted_table(
    num_bits: int,
    words: Sequence[int],
    parts: Iterable[Iterable[PlacedFacts]],
    excesses: Sequence[Callable[[float], float]],
    rows: RowsToSeal,
) -> tuple[ShiftingBloomFilterBuilder, float] | Shortfall:
    """A table of the facts of ranges of symbols, and the share of its bits that are ones, below 1.

    Parameters
    ----------
    num_bits : the computed size, which ``rows.growth`` multiplies.
    words : those of `first_words`.
    excesses : what parts would show at a share of ones, relative to their targets; each may be 1 at most.
    """
    size = math.ceil(num_bits * rows.growth - 1e-6)  # rounding of the growth does not add a word
    builder = ShiftingBloomFilterBuilder(size, max(1, words[-1]), rows.salt, num_threads())
    for facts, first_word in zip(parts, words, strict=False):
        for indices, own, num_hashes, firsts in facts:
            builder.add_rows(
                rows.entity_hashes, indices, own.indptr, own.ids, num_hashes, 64 * first_word, firsts
            )
    # A rate must stay below 1 even if all bits are ones.
    fill = min(builder.measured_fill(), 1 - 0.5 / builder.num_bits)
    excess = max((of_part(fill) for of_part in excesses), default=0.0)
    if excess <= 1 + TOLERANCE:
        return builder, fill
    growth = _larger(builder.num_bits, fill, fill_limit(excesses)) / num_bits
    is_hopeless = growth > _MAX_GROWTH and builder.num_bits > _SMALL_TABLE
    reason = f"a table of {builder.num_bits} bits would show {excess:.3g} times what it may"
    return Shortfall(math.inf if is_hopeless else growth, reason)


def _larger(num_bits: int, fill: float, limit: float) -> float:
    """Bits of a table that would keep its targets, given the share of ones that it has and that it may have.

    At least one more word: a table of the same size would show the same noise.
    """
    needed = _HEADROOM * math.log1p(-fill) / math.log1p(-limit) if limit else math.inf
    return max(num_bits * min(_MOST_AT_ONCE, needed), num_bits + 64)


@dataclass(frozen=True)
class TablePart:
    """Facts of consecutive symbols."""

    facts: AnyFacts  # they decide how many hashes each symbol has
    num_symbols: int
    rows: Callable[[], Iterable[Part]]  # returns the facts, as often as it is called
    # whether the target of the facts must be kept; not so for a feature with a memory limit
    is_held: bool = True

    def facts_with(self, hashes: Hashes) -> Iterator[PlacedFacts]:
        """The facts, all with the same hashes."""
        firsts = np.array(hashes) if isinstance(self.facts, WeightedFacts) else None
        for indices, rows in self.rows():
            yield indices, rows, len(hashes), firsts


def fill_table(
    parts: Sequence[TablePart], rows: RowsToSeal
) -> tuple[ShiftingBloomFilterBuilder, list[SymbolRange]] | Shortfall:
    """A table of the facts of some parts, which keeps their targets, and the symbols of each."""
    classes = [part.facts for part in parts]
    geometry = size_for_rates(classes) if classes else Geometry(1, (), 0.5)
    words = first_words(part.num_symbols for part in parts)
    hashed = list(zip(parts, geometry.hashes, strict=True))
    held = [partial(p.facts.excess, hashes) for p, hashes in hashed if p.is_held and p.num_symbols]
    facts = [part.facts_with(hashes) for part, hashes in hashed]
    table = counted_table(geometry.num_bits, words, facts, held, rows)
    if isinstance(table, Shortfall):
        return table
    builder, fill = table
    return builder, [
        SymbolRange.build(first_word, part.num_symbols, part.facts, hashes, fill)
        for (part, hashes), first_word in zip(hashed, words, strict=False)
    ]


@dataclass(frozen=True)
class BloomFeature(SealedFeature):
    """One feature in a filter; ``symbols`` are those of its values."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    symbols: SymbolRange
    filter: ShiftingBloomFilter

    @property
    def structure(self) -> str:
        return WEIGHTED_BLOOM if self.symbols.first_symbols else BLOOM

    @property
    def num_facts(self) -> int:
        return self.symbols.num_facts

    @property
    def false_positive_rate(self) -> float:
        return self.symbols.false_positive_rate

    def prepare(self, rows: RowReader) -> None:
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
        return self.answer(states, Csr.of_lengths(has_any.astype(np.int64), ids))

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`. The hashes show their own false values.

        These follow the law of the layer's own rows: a filter treats all hashes that were not added alike.
        """
        own = self.known(rows)
        noise = Csr(*self.filter.possible_symbols(entity_hashes, self.symbols.query, rows.states == VALUE))
        both = own.joined(noise).distinct()
        if self.codec.is_collection:
            return self.answer(rows.states, both)
        return self._of_scalar(rows.states, both)

    def differences(self, written: Csr, entity_hashes: NDArray[np.uint64], answer: Answer) -> tuple[int, int]:
        """See `SealedFeature.differences`; a filter has false values by design."""
        entities = written.rows
        is_read = answer.states[entities] == VALUE  # otherwise the filter is not asked
        symbols = written.ids.astype(np.int32, copy=False)[:, None]
        found = self.filter.contains(entity_hashes[entities], self.symbols.query, symbols, is_read)
        return int((~found).sum()), 0

    def sampled_rate(self, entity_hashes: NDArray[np.uint64], rng: np.random.Generator) -> float:
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

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`: unless named, a plain filter for an error rate, a weighted one otherwise."""
        return filter_offer(goal, popularity)

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, FilterPlan]], rows: RowsToSeal) -> Self | Shortfall:
        parts = [
            TablePart(plan.facts, len(feature.vocabulary), feature.kept_rows, plan.is_held)
            for feature, plan in features
        ]
        everyone = np.arange(len(rows.entity_hashes), dtype=np.int32)
        one_each = np.arange(len(everyone) + 1)
        for shapes in rows.symbols:
            part = everyone, Csr(one_each, shapes.ids.astype(np.int32))
            parts.append(TablePart(shapes.facts, shapes.num_symbols, partial(iter, [part])))
        table = fill_table(parts, rows)
        if isinstance(table, Shortfall):
            return table
        builder, ranges = table
        for feature, _ in features:
            feature.release()
        bloom, by_name = builder.build(), {}
        for (feature, _), symbols in zip(features, ranges, strict=False):
            codec = feature.sealed_codec
            by_name[codec.feature] = BloomFeature(codec, feature.vocabulary, symbols, bloom)
        return cls(by_name, ranges[len(features) :], bloom)

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
        return self.filter.num_bits // 8

    @property
    def ideal_bits(self) -> float:
        fill = self._expected_fill
        # A fact of k hashes has the rate fill ** k.
        return sum(symbols.num_ones for symbols in self.ranges) * -math.log2(fill) / math.log(2)

    @property
    def _expected_fill(self) -> float:
        num_ones = sum(symbols.num_ones for symbols in self.ranges)
        return -math.expm1(-num_ones / self.filter.num_bits) if num_ones else 0.5

    def to_snapshot(self) -> Described:
        features = [
            {
                **describe_codec(feature.codec),
                **feature.symbols.to_snapshot(),
                "vocabulary": feature.vocabulary.to_packed(),
            }
            for feature in self.features.values()
        ]
        rows = [symbols.to_snapshot() for symbols in self.rows]
        return {**describe_filter(self.filter), "features": features, "rows": rows}

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        bloom = parts.filter()
        features: dict[str, BloomFeature] = {}
        for entry in parts.each("features"):
            codec, symbols = entry.codec(), SymbolRange.from_snapshot(entry)
            name, vocabulary = codec.feature, entry.vocabulary(codec)
            if len(vocabulary) != symbols.num_symbols or name in features:
                raise ValueError(f"the vocabulary of {name!r} does not fit its symbols")
            features[name] = BloomFeature(codec, vocabulary, symbols, bloom)
        rows = [SymbolRange.from_snapshot(entry) for entry in parts.each("rows")]
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
