"""The shifting Bloom filter: a Bloom filter whose row of answers lies in k contiguous windows.

A fact is a pair (entity, symbol): an entity is known by a 128-bit hash, a symbol is a small integer
id. A standard Bloom filter scatters the k bits of each fact, so asking about V symbols takes k * V
random probes. Here the k positions of all symbols of one entity lie side by side:

    position_j(e, s) = 64 * ((offset_j(e) + s div 64) mod num_words) + (s mod 64 + rotation_j(e)) mod 64

    table   ....|--------window 0---------|.......|--------window 1---------|....   64 bits a word
                 ^ offset_0(e)                     ^ offset_1(e)
                 word w, rotated right by          word w, rotated right by
                 rotation_0(e), answers            rotation_1(e), answers
                 symbols 64w .. 64w+63             symbols 64w .. 64w+63

so the answers for all symbols are the AND of k windows, 64 candidates a machine word. Every position
is uniform over the table and the k windows are independent, hence with a share ``rho`` of ones

    P("possibly present" | absent) = rho ** k,        P("possibly present" | added) = 1.

The rotation is what makes a position uniform *within* its word: without it a popular symbol would
crowd the same bit of every word, and the rate would grow with popularity.

Source: Yang et al., "A Shifting Bloom Filter Framework for Set Queries", PVLDB 9(5), 2016 (offsets
that carry auxiliary information); Goodwin et al., "BitFunnel", SIGIR 2017 (AND of rows).
"""

import secrets

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.filters.bits import set_bits
from feast_sketch_store.filters.packed import Check

# offset_j uses the upper 32 bits of a mixed hash, so a table has fewer than 2**32 words (32 GiB).
MAX_NUM_WORDS = 2**32 - 1

# Of answers: k windows are ANDed, and turned into ids, while they are in the L2 cache. Small temporaries also
# come from the allocator's free lists, where large ones would be mapped, faulted in and unmapped each time.
_CHUNK_BYTES = 1 << 18
_FACTS_PER_CHUNK = 1 << 17
_NARROW_WINDOW_WORDS = 4


def new_salt() -> tuple[int, int]:
    """A random salt: two unsigned 64-bit integers. A layer draws one, so positions cannot be foreseen."""
    return secrets.randbits(64), secrets.randbits(64)


class ShiftingBloomFilterBuilder:
    """Collects facts and builds one immutable filter.

    While it builds, a bit takes a byte: NumPy writes single bytes three times faster than it ORs
    words in place, and packing at the end is a sequential pass.

    Parameters
    ----------
    num_bits : wanted table size; rounded up to whole words, and to at least one window.
    window_words : words of one full window, ``ceil(symbols / 64)``; symbol ids stay below 64 times it.
    salt : two unsigned 64-bit integers, see `new_salt`.

    Raises
    ------
    ValueError : the table would have more than ``MAX_NUM_WORDS`` words.
    """

    def __init__(self, num_bits: int, window_words: int, salt: tuple[int, int]):
        if window_words < 1:
            raise ValueError(f"window_words is {window_words}; a window has at least one word")
        # A table shorter than a window would fold symbols onto each other for good.
        self._num_words = max(-(-num_bits // 64), window_words)
        if self._num_words > MAX_NUM_WORDS:
            raise ValueError(f"{num_bits} bits are more than {MAX_NUM_WORDS} words; split the view")
        self._window_words = window_words
        self._salt = salt
        # Windows that pass the end run on into a tail that is folded back once, in `build`.
        self._bits = np.zeros((self._num_words + window_words) * 64, np.uint8)

    def add_many(
        self,
        entity_hashes: NDArray[np.uint64],
        entity_index: NDArray[np.integer],
        symbols: NDArray[np.integer],
        num_hashes: int,
    ) -> None:
        """Add facts.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        entity_index : int[m], the row of ``entity_hashes`` that a fact belongs to.
        symbols : int[m], in ``[0, 64 * window_words)``.
        num_hashes : k of these facts, at least 1.

        Raises
        ------
        IndexError : a symbol id does not fit the window.
        """
        if symbols.size and not 0 <= symbols.min() <= symbols.max() < self._window_words * 64:
            raise IndexError(
                f"symbol ids run from {symbols.min()} to {symbols.max()}, "
                f"but a window of {self._window_words} words holds {self._window_words * 64}"
            )
        for j in range(num_hashes):
            offsets, rotations = _positions(entity_hashes, self._salt, self._num_words, range(j, j + 1))
            starts, shifts = offsets[0] * 64, rotations[0].astype(np.int64)
            for first in range(0, symbols.size, _FACTS_PER_CHUNK):
                chunk = slice(first, first + _FACTS_PER_CHUNK)
                entity, symbol = entity_index[chunk], symbols[chunk].astype(np.int64)
                self._bits[starts[entity] + (symbol & ~63) + ((symbol + shifts[entity]) & 63)] = 1

    def build(self) -> "ShiftingBloomFilter":
        """The filter of all facts added so far."""
        words = np.packbits(self._bits, bitorder="little").view("<u8")
        table, tail = words[: self._num_words], words[self._num_words :]
        table[: self._window_words] |= tail
        # Repeating the head behind the end keeps every window one contiguous slice.
        tail[:] = table[: self._window_words]
        return ShiftingBloomFilter(words, self._num_words, self._salt)


class ShiftingBloomFilter:
    """An immutable table with its salt. Safe to read from any number of threads.

    Parameters
    ----------
    words : uint64[num_words + window_words], may be memory-mapped; the last ``window_words`` repeat
        the first ones.
    num_words : words of the table proper.
    salt : the builder's salt.
    check : see `Check`; None if all words are known to be good.
    """

    def __init__(
        self,
        words: NDArray[np.uint64],
        num_words: int,
        salt: tuple[int, int],
        check: Check | None = None,
    ):
        self.words = words
        self.num_words = num_words
        self.salt = salt
        self._check = check

    @property
    def num_bits(self) -> int:
        """Bits of the table, the repeated head not counted."""
        return self.num_words * 64

    def measured_fill(self) -> float:
        """Share of ones in the table: reads all of it."""
        return float(np.bitwise_count(self.words[: self.num_words]).sum(dtype=np.int64)) / self.num_bits

    def windows(
        self,
        entity_hashes: NDArray[np.uint64],
        first_word: int,
        num_words: int,
        num_hashes: int,
    ) -> NDArray[np.uint64]:
        """The answers for ``64 * num_words`` consecutive symbols of each entity.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        first_word : the symbols asked about begin at ``64 * first_word``.
        num_words : how many words of symbols.
        num_hashes : the k these symbols were added with.

        Returns
        -------
        uint64[n, num_words] : a one is "possibly present", a zero "definitely absent"; bit ``s % 64`` of
            word ``s // 64`` answers symbol ``64 * first_word + s``.
        """
        answers = np.empty((len(entity_hashes), num_words), np.uint64)
        if num_words <= _NARROW_WINDOW_WORDS:
            rows = max(1, _CHUNK_BYTES // (8 * num_words * num_hashes))
            gather = _and_narrow_windows
        else:
            rows = max(1, _CHUNK_BYTES // (8 * num_words))
            gather = _and_windows
        # Row i of this view is the window that starts at word i; nothing is copied.
        every_window = np.ndarray((self.num_words, num_words), np.uint64, buffer=self.words, strides=(8, 8))
        for first in range(0, len(entity_hashes), rows):
            chunk = slice(first, first + rows)
            offsets, rotations = _positions(
                entity_hashes[chunk], self.salt, self.num_words, range(num_hashes)
            )
            offsets += first_word
            starts = np.where(offsets >= self.num_words, offsets - self.num_words, offsets)
            if self._check is not None:
                self._check(starts, num_words)
            gather(every_window, starts, rotations, answers[chunk])
        return answers

    def possible_symbols(
        self,
        entity_hashes: NDArray[np.uint64],
        first_word: int,
        num_symbols: int,
        num_hashes: int,
        wanted: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of the possibly-present symbols of each entity, out of consecutive ones.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        first_word : the symbols asked about begin at ``64 * first_word``, which counts as id 0.
        num_symbols : how many symbols.
        num_hashes : the k these symbols were added with.
        wanted : bool[n], entities to answer; the others get no symbols. None for all.

        Returns
        -------
        A CSR matrix: indptr, int64[n + 1], and the ids, int64[nnz], ascending within an entity.
        """
        num_words = -(-num_symbols // 64)
        if not num_words:
            return np.zeros(len(entity_hashes) + 1, np.int64), np.zeros(0, np.int64)
        last_word = np.uint64(2**64 - 1) >> np.uint64(num_words * 64 - num_symbols)
        rows = max(1, _CHUNK_BYTES // (8 * num_words))
        starts, ids = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
        for first in range(0, len(entity_hashes), rows):
            chunk = slice(first, first + rows)
            words = self.windows(entity_hashes[chunk], first_word, num_words, num_hashes)
            words[:, -1] &= last_word
            if wanted is not None:
                words *= wanted[chunk, None]
            indptr, positions = set_bits(words)
            starts.append(starts[-1][-1] + indptr[1:])
            ids.append(positions)
        return np.concatenate(starts), np.concatenate(ids)

    def contains_many(
        self,
        entity_hashes: NDArray[np.uint64],
        symbols: NDArray[np.integer],
        num_hashes: int,
    ) -> NDArray[np.bool_]:
        """Ask about one symbol per entity: bool[n], True for "possibly present".

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        symbols : int[n]
        num_hashes : the k these symbols were added with.
        """
        offsets, rotations = _positions(entity_hashes, self.salt, self.num_words, range(num_hashes))
        places = (offsets + (symbols.astype(np.int64) >> 6)) % self.num_words
        if self._check is not None:
            self._check(places, 1)
        words = self.words[places]
        bits = (symbols.astype(np.uint64) + rotations) & np.uint64(63)
        return np.asarray(((words >> bits) & np.uint64(1) != 0).all(axis=0))


def _positions(
    entity_hashes: NDArray[np.uint64], salt: tuple[int, int], num_words: int, hashes: range
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """``offset_j`` in words, int64[k, n] in [0, num_words), and ``rotation_j``, uint64[k, n] in [0, 64)."""
    start = mix64(entity_hashes[:, 0] ^ np.uint64(salt[0]))
    # An odd step makes start + j * step distinct for all j.
    step = mix64(entity_hashes[:, 1] ^ np.uint64(salt[1])) | np.uint64(1)
    mixed = mix64(start + step * np.array(hashes, np.uint64)[:, None])
    # Multiply-shift maps 32 random bits to [0, num_words) without a division
    # (Lemire, "Fast Random Integer Generation in an Interval", 2019).
    offsets = ((mixed >> np.uint64(32)) * np.uint64(num_words)) >> np.uint64(32)
    return offsets.astype(np.int64), mixed & np.uint64(63)


def _and_windows(
    every_window: NDArray[np.uint64],
    starts: NDArray[np.int64],
    rotations: NDArray[np.uint64],
    answers: NDArray[np.uint64],
) -> None:
    """AND k wide windows into ``answers``, one hash at a time."""
    for j, (start, rotation) in enumerate(zip(starts, rotations, strict=True)):
        rotated = _rotate_right(every_window[start], rotation[:, None])
        if j == 0:
            answers[:] = rotated
        else:
            answers &= rotated


def _and_narrow_windows(
    every_window: NDArray[np.uint64],
    starts: NDArray[np.int64],
    rotations: NDArray[np.uint64],
    answers: NDArray[np.uint64],
) -> None:
    """AND k windows of a few words: all hashes at once, because NumPy's calls would cost more."""
    rotated = _rotate_right(every_window[starts], rotations[:, :, None])
    np.bitwise_and.reduce(rotated, axis=0, out=answers)


def _rotate_right(words: NDArray[np.uint64], distance: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Rotate in place: ``words >> d | words << (64 - d)``; a distance of 0 must not shift by 64."""
    low = words << ((np.uint64(64) - distance) & np.uint64(63))
    words >>= distance
    words |= low
    return words


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64, a bijection in which every input bit reaches every output bit.

    Source: Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
    figure 18.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
