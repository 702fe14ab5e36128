"""The shifting Bloom filter: a Bloom filter whose answers for an entity are in k contiguous windows.

A fact is a pair (entity, symbol). An entity is known by a 128-bit hash, a symbol by a small integer id. A
standard Bloom filter scatters the k bits of each fact, so asking about V symbols takes k * V random probes.
Here the k positions of all symbols of one entity lie side by side:

    position_j(e, s) = 64 * ((offset_j(e) + s div 64) mod num_words) + (s mod 64 + rotation_j(e)) mod 64

    table   ....|--------window 0---------|.......|--------window 1---------|....   64 bits a word
                 ^ offset_0(e)                     ^ offset_1(e)
                 word w, rotated right by          word w, rotated right by
                 rotation_0(e), answers            rotation_1(e), answers
                 symbols 64w .. 64w+63             symbols 64w .. 64w+63

So the answers for all symbols are the AND of k windows, 64 candidates per machine word. A hash may be used
only for the symbols from some symbol on. If popular symbols come first, they get fewer hashes than the
others, and window ``j`` need cover only the symbols that use it. Every position is uniform over the table,
and the k windows are independent. Hence, with a share ``rho`` of ones,

    P("possibly present" | absent) = rho ** k,        P("possibly present" | added) = 1.

The rotation makes a position uniform *within* its word. Without it a popular symbol would crowd the same bit
of every word, and the rate would grow with popularity.

Source: Yang et al., "A Shifting Bloom Filter Framework for Set Queries", PVLDB 9(5), 2016 (offsets
that carry auxiliary information); Goodwin et al., "BitFunnel", SIGIR 2017 (AND of rows).
"""

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import SymbolQuery, plain
from feast_sketch_store.succinct.blocks import BlockChecks
from feast_sketch_store.succinct.packed import unfinished
from feast_sketch_store.threads import Threads

# offset_j uses the upper 32 bits of a mixed hash, so a table has fewer than 2**32 words (32 GiB).
MAX_NUM_WORDS = 2**32 - 1

_EXPECTED_SYMBOLS = 256  # ids per entity for which memory is allocated at first
_WORDS_PER_COUNT = 1 << 20
_MIN_WORDS_PER_PART = 1 << 16  # for fewer words, a thread costs more than it saves


def new_salt() -> tuple[int, int]:
    """A random salt: two unsigned 64-bit integers. Each layer draws one, so positions are unpredictable."""
    return secrets.randbits(64), secrets.randbits(64)


class ShiftingBloomFilterBuilder:
    """Collects facts and builds one immutable filter.

    Several threads each fill a part of the table, which is also more likely to stay in a cache. A window
    belongs to the part in which it begins. It continues in extra words, which are folded into the next part
    at the end.

    Parameters
    ----------
    num_bits : table size, rounded up to whole words, and to at least one window.
    window_words : words of a full window, ``ceil(symbols / 64)``; symbol ids stay below 64 times it.
    salt : two unsigned 64-bit integers, see `new_salt`.
    num_threads : the most threads that fill the table.

    Raises ValueError: the table would have more than ``MAX_NUM_WORDS`` words.
    """

    def __init__(self, num_bits: int, window_words: int, salt: tuple[int, int], num_threads: int = 1):
        if window_words < 1:
            raise ValueError(f"window_words is {window_words}; a window has at least one word")
        # A table shorter than a window would map several symbols of an entity to the same bits.
        self._num_words = max(-(-num_bits // 64), window_words)
        if self._num_words > MAX_NUM_WORDS:
            raise ValueError(f"{num_bits} bits are more than {MAX_NUM_WORDS} words; split the view")
        self._window_words = window_words
        self._salt = salt
        num_parts = max(1, min(num_threads, self._num_words // _MIN_WORDS_PER_PART))
        bounds = [self._num_words * number // num_parts for number in range(num_parts + 1)]
        self._firsts = bounds[:-1]
        self._parts = [
            np.zeros(stop - first + window_words, np.uint64) for first, stop in itertools.pairwise(bounds)
        ]

    @property
    def num_bits(self) -> int:
        """Bits of the table."""
        return self._num_words * 64

    def add_rows(
        self,
        entity_hashes: NDArray[np.uint64],
        indices: NDArray[np.int32],
        indptr: NDArray[np.int64],
        symbols: NDArray[np.integer],
        num_hashes: int,
        first_symbol: int = 0,
        firsts: NDArray[np.int64] | None = None,
    ) -> None:
        """Add the facts of rows.

        Parameters
        ----------
        entity_hashes : uint64[m, 2]
        indices : int32[n], the hash of each row, as an index.
        indptr, symbols : int64[n + 1], and uint16[nnz] or int32[nnz]: a CSR matrix.
        num_hashes : k of these facts, at least 1.
        first_symbol : added to all symbols, which then lie in ``[0, 64 * window_words)``.
        firsts : int64[num_hashes], see `SymbolQuery`; None if all facts have all hashes.

        Raises IndexError: a symbol id does not fit into the window.
        """
        if len(symbols):
            lowest, highest = int(symbols.min()) + first_symbol, int(symbols.max()) + first_symbol
            if not 0 <= lowest <= highest < self._window_words * 64:
                raise IndexError(
                    f"symbol ids run from {lowest} to {highest}, "
                    f"but a window of {self._window_words} words holds {self._window_words * 64}"
                )
        is_narrow = symbols.dtype.itemsize == 2
        narrow, wide = (symbols.view(np.uint16), None) if is_narrow else (None, symbols.view(np.int32))
        table = self._num_words, *self._salt
        rows = plain(entity_hashes, np.uint64), indices, indptr, narrow, wide
        fills = []
        for first, part in zip(self._firsts, self._parts, strict=True):
            own = part, first, len(part) - self._window_words
            fills.append(partial(kernel.add_facts, *own, *table, *rows, first_symbol, num_hashes, firsts))
        _run_all(fills)

    def measured_fill(self) -> float:
        """Share of ones in the table of all facts added so far."""
        self._fold()
        num_ones = sum(_num_ones(part[: -self._window_words]) for part in self._parts)
        return num_ones / (64 * self._num_words)

    def build(self) -> "ShiftingBloomFilter":
        """The filter of all facts added so far; call it once."""
        self._fold()
        if len(self._parts) == 1:
            words = self._parts.pop()
        else:
            words = np.empty(self._num_words + self._window_words, np.uint64)
            for first in self._firsts:
                own = self._parts.pop(0)[: -self._window_words]  # each part is released after use
                words[first : first + len(own)] = own
        # The head is repeated after the end, so that every window is one contiguous slice.
        words[self._num_words :] = words[: self._window_words]
        return ShiftingBloomFilter(words, self._num_words, self._salt)

    def _fold(self) -> None:
        """Move the bits past the end of each part to the words where they belong."""
        own = [part[: -self._window_words] for part in self._parts]
        for first, words, part in zip(self._firsts, own, self._parts, strict=True):
            tail, index = part[len(words) :], first + len(words)
            while len(tail):  # it may be longer than the next part
                index %= self._num_words
                number = int(np.searchsorted(self._firsts, index, side="right")) - 1
                into = own[number][index - self._firsts[number] :][: len(tail)]
                into |= tail[: len(into)]
                tail[: len(into)] = 0
                tail, index = tail[len(into) :], index + len(into)


@dataclass(frozen=True, eq=False)
class ShiftingBloomFilter:
    """An immutable table with its salt. Safe to read from any number of threads."""

    # uint64[num_words + window_words], may be memory-mapped; the last ``window_words`` repeat the first ones
    words: NDArray[np.uint64]
    num_words: int  # of the table, without the repeated ones
    salt: tuple[int, int]  # of the builder
    check: BlockChecks | None = None  # see `BlockChecks`; None if all words have been checked

    @property
    def window_words(self) -> int:
        """Words of a window."""
        return len(self.words) - self.num_words

    @property
    def num_bits(self) -> int:
        """Bits of the table, without the repeated head."""
        return self.num_words * 64

    def possible_symbols(
        self, entity_hashes: NDArray[np.uint64], query: SymbolQuery, wanted: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The ids of each entity's possibly-present symbols, out of consecutive symbols.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        query : the symbols; the first counts as id 0.
        wanted : bool[n], entities to answer; the others get no symbols. None for all.

        Returns a CSR matrix: indptr, int64[n + 1], and the ids, int32[nnz], ascending within an entity.
        """
        if not query.num_symbols:
            return np.zeros(len(entity_hashes) + 1, np.int64), np.zeros(0, np.int32)
        num_entities = len(entity_hashes)
        indptr = np.zeros(num_entities + 1, np.int64)
        ids = np.empty(num_entities * min(query.num_symbols, _EXPECTED_SYMBOLS) + 2, np.int32)
        question = self._checked_question(entity_hashes, query)
        done = kernel.possible_symbols(*question, wanted, 0, indptr, ids)
        while done < num_entities:
            # Assume as many for the other entities as for those so far, and at least all for the next one.
            count = int(indptr[done])
            capacity = max(count * num_entities // (done + 1) * 5 // 4, count + query.num_symbols + 2)
            ids = np.concatenate((ids[:count], np.empty(capacity - count, np.int32)))
            done = kernel.possible_symbols(*question, wanted, done, indptr, ids)
        return indptr, ids[: indptr[-1]]

    def contains(
        self,
        entity_hashes: NDArray[np.uint64],
        query: SymbolQuery,
        symbols: NDArray[np.int32],
        wanted: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_]:
        """Whether entities possibly have some symbols: bool[n, m].

        Parameters
        ----------
        entity_hashes, query, wanted : as of `possible_symbols`.
        symbols : int32[m], for every entity, or int32[n, m]; no entity has a symbol outside of ``query``.
        """
        if not query.num_symbols:
            return np.zeros((len(entity_hashes), symbols.shape[-1]), np.bool_)
        per_entity = symbols.shape[-1]
        found = np.empty((len(entity_hashes), per_entity), np.bool_)
        question = self._checked_question(entity_hashes, query)
        kernel.contains(*question, wanted, plain(symbols, np.int32), per_entity, found)
        return found

    def arguments(self, query: SymbolQuery) -> tuple[Any, ...]:
        """Symbols in the form in which the kernel reads them; see `RowReader`."""
        return *self.question(np.zeros((0, 2), np.uint64), query), unfinished(self.check)

    def question(self, entity_hashes: NDArray[np.uint64], query: SymbolQuery) -> tuple[Any, ...]:
        """What entities, uint64[n, 2], are asked, as functions of the kernel take it."""
        return self.words, self.num_words, *self.salt, plain(entity_hashes, np.uint64), *query

    def _checked_question(self, entity_hashes: NDArray[np.uint64], query: SymbolQuery) -> tuple[Any, ...]:
        """The question, after the blocks were checked that an answer uses."""
        question, check = self.question(entity_hashes, query), unfinished(self.check)
        if check is not None:
            touched = np.zeros(len(check.unchecked), np.uint8)
            kernel.touch_blocks(*question, check.block_words, check.unchecked, touched)
            check.check_blocks(touched.nonzero()[0])
        return question


def _num_ones(words: NDArray[np.uint64]) -> int:
    """The ones in all words."""
    chunks = (words[first : first + _WORDS_PER_COUNT] for first in range(0, len(words), _WORDS_PER_COUNT))
    return sum(int(np.bitwise_count(chunk).sum(dtype=np.int64)) for chunk in chunks)


def _run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks side by side, if there are several."""
    if len(tasks) == 1:
        tasks[0]()
        return
    with Threads(len(tasks)) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()
