"""Ranges of symbols: the consecutive symbols of a feature, or of rows, in a filter."""

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from feast_sketch_store.kernel import MAX_NUM_HASHES
from feast_sketch_store.structures.parts import checked, report_of
from feast_sketch_store.structures.sizing import AnyFacts, FactClass, Hashes, WeightedFacts
from feast_sketch_store.succinct import Asked


@dataclass(frozen=True)
class SymbolRange:
    """Consecutive symbols of a filter.

    Parameters
    ----------
    first_word : the word of a window that holds the first symbol.
    num_symbols : number of symbols.
    facts_per_hash : number of facts that use each hash, descending; all facts use the first.
    first_symbols : first symbol covered by each hash; empty if every hash covers every symbol.
    false_positive_rate : mean of all symbols.
    """

    first_word: int
    num_symbols: int
    facts_per_hash: tuple[int, ...]
    first_symbols: tuple[int, ...]
    false_positive_rate: float

    @classmethod
    def build(
        cls, first_word: int, num_symbols: int, facts: AnyFacts, hashes: Hashes, fill: float
    ) -> "SymbolRange":
        """The range of facts in a table with the share ``fill`` of ones."""
        first_symbols: Hashes = ()
        rate = fill ** len(hashes)
        if isinstance(facts, WeightedFacts):
            first_symbols, rate = hashes, float(facts.symbol_rates(hashes, fill).mean())
        return cls(first_word, num_symbols, facts.facts_per_hash(hashes), first_symbols, rate)

    @property
    def num_facts(self) -> int:
        """The number of facts."""
        return self.facts_per_hash[0]

    @property
    def num_hashes(self) -> int:
        """The most hashes of any symbol."""
        return len(self.facts_per_hash)

    @property
    def num_ones(self) -> int:
        """The number of bits that the facts set."""
        return sum(self.facts_per_hash)

    @property
    def num_words(self) -> int:
        """Words of a window that the range takes."""
        return words_for(self.num_symbols)

    @cached_property
    def asked(self) -> Asked:
        """The range in the form that the filter takes."""
        firsts = np.array(self.first_symbols, np.int64) if self.first_symbols else None
        return Asked(self.first_word, self.num_symbols, self.num_hashes, firsts)

    def fact_classes(self, fill: float) -> list[FactClass]:
        """The facts by their number of hashes."""
        behind = (*self.facts_per_hash, 0)
        numbers = [behind[k] - behind[k + 1] for k in range(self.num_hashes)]
        rates = [max(fill ** (k + 1), sys.float_info.min) for k in range(self.num_hashes)]
        return [FactClass(number, rate) for number, rate in zip(numbers, rates, strict=True) if number]

    def to_snapshot(self) -> dict[str, Any]:
        """The range as an entry of a description."""
        return {
            "first_word": self.first_word,
            "num_symbols": self.num_symbols,
            "num_hashes": self.num_hashes,
            "first_symbols": list(self.first_symbols),
            "report": {
                "facts_per_hash": list(self.facts_per_hash),
                "false_positive_rate": self.false_positive_rate,
            },
        }

    @classmethod
    def from_snapshot(cls, entry: Mapping[str, Any]) -> "SymbolRange":
        """The range in an entry of a description.

        Raises
        ------
        ValueError, KeyError, TypeError : such a range is not possible.
        """
        report = report_of(entry)
        symbols = cls(
            checked(entry["first_word"], int),
            checked(entry["num_symbols"], int),
            tuple(checked(number, int) for number in report["facts_per_hash"]),
            tuple(checked(number, int) for number in entry["first_symbols"]),
            checked(report["false_positive_rate"], float),
        )
        facts, firsts = symbols.facts_per_hash, symbols.first_symbols
        if (
            min(symbols.first_word, symbols.num_symbols) < 0
            or not 1 <= len(facts) <= MAX_NUM_HASHES
            or len(facts) != checked(entry["num_hashes"], int)
            or any(fewer > more for more, fewer in itertools.pairwise((*facts, 0)))
            or (firsts and (len(firsts) != len(facts) or firsts[0] or firsts[-1] >= symbols.num_symbols))
            or any(later < first for first, later in itertools.pairwise(firsts))
            or (not firsts and facts[-1] != facts[0])
            or not 0.0 <= symbols.false_positive_rate <= 1.0
            or (symbols.num_facts and not 0.0 < symbols.false_positive_rate < 1.0)
        ):
            raise ValueError(f"{symbols} is not possible")
        return symbols


def words_for(num_symbols: int) -> int:
    """Words of a window with this many symbols."""
    return -(-num_symbols // 64)
