"""Count trees in Python: sets of ids by an arithmetic coder.

Each decision depends on the one before it, so NumPy cannot help. Rows are coded one by one, hundreds of times
as slowly as in C.
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.reference_rows import AscendingNumbers, take_ascending, words_of_bits

NUM_NODES = 330  # shares by concentrations
MOST_TOLD = 16  # up to this count, each count has a table of splits
BINS = (16, 32, 32, 64, 64, 64)  # into which splits of larger counts are divided, by octaves
TABLE_BITS = 15
NUM_SIZES = 108  # buckets
CAP = 12  # ids that the context of a member remembers
NUM_CLASSES = 8
NUM_OF_CLASS = (CAP + 1) * (CAP + 2) // 2
NUM_CONTEXTS = 3 * NUM_CLASSES * NUM_OF_CLASS
MOST_MASS = 1 << 24  # below this, one symbol is found at once

_WHOLE = 1 << TABLE_BITS
_LEAST_RANGE = 1 << 31
_MASK = (1 << 32) - 1
_DAMAGED = "a set cannot be read"
_DO_NOT_FIT = "the sets do not fit their trees"


class TreeCodes(NamedTuple):
    """How the sets of each of F features are coded; `succinct.count_tree` has the model.

    In arrays with one number per symbol, feature ``f`` has those from ``symbol_starts[f]`` to
    ``symbol_starts[f + 1]``; in ``mass``, one more.

    Parameters
    ----------
    parameters : int64[F, 2], the number of headers for rows without a set, 0 to 2; and 1 if the set is coded
        relative to those before it. Such a set has as many symbols as the one before it, and is never first.
    mass : int64, ascending from 0 on for each feature; symbol ``s`` has ``mass[s + 1] - mass[s]``, at least
        1.
    nodes : uint16, below 330; the share and the concentration of the node whose middle a symbol is.
    classes : uint8, below 8; of a symbol that an earlier set has.
    sizes : uint32[F, 109], cumulated from 0 on; the share of each bucket of headers.
    contexts : uint16[F, 2184], the share of members, in 2**15.
    small : uint16[330, 17, 18], cumulated from 0 to 2**15; the share of each count on the left, of 0 to 16
        ids.
    large : uint16[330, 6, 66], the same for ranges of counts, of more ids.
    """

    parameters: NDArray[np.int64]
    symbol_starts: NDArray[np.int64]
    mass: NDArray[np.int64]
    nodes: NDArray[np.uint16]
    classes: NDArray[np.uint8]
    sizes: NDArray[np.uint32]
    contexts: NDArray[np.uint16]
    small: NDArray[np.uint16]
    large: NDArray[np.uint16]


def write_trees(
    codes: TreeCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Code sets; parameters as in `write_sets`.

    Returns
    -------
    The words, uint64[w], two more than the codes fill, filled from the highest bit of each; and the bit after
    each row, int64[n].

    Raises
    ------
    ValueError : the sets do not fit their trees.
    """
    trees = _trees(codes)
    _check_sets(trees, headers, indptr, ids)
    bits: list[int] = []
    ends = np.zeros(len(headers), np.int64)
    for row, header in enumerate(headers.tolist()):
        coder, seen = _Encoder(), _Union()
        for number, tree in enumerate(trees):
            segment = row * len(trees) + number
            own = ids[indptr[segment] : indptr[segment + 1]].tolist()
            _encode_set(coder, tree, seen, header[number], own)
        bits += coder.finished()
        ends[row] = len(bits)
    padded = np.zeros(words_of_bits(len(bits)) * 64, np.uint8)
    padded[: len(bits)] = bits
    return np.packbits(padded).view(">u8").astype(np.uint64), ends


def read_trees(
    codes: TreeCodes,
    words: NDArray[np.uint64],
    num_bits: int,
    starts: AscendingNumbers,
    rows: NDArray[np.int64],
    feature: int,
    own_ids: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """The sets of one feature in some rows; parameters, results and errors are those of `read_sets`."""
    trees = _trees(codes)[: feature + 1]
    try:
        bits = take_ascending(starts, rows).tolist()
    except ValueError as error:
        raise ValueError(_DAMAGED) from error
    headers, indptr = np.zeros(len(rows), np.int32), np.zeros(len(rows) + 1, np.int64)
    sets: list[int] = []
    for row, bit in enumerate(bits):
        coder, seen = _Decoder(words, num_bits, bit), _Union()
        own: list[int] = []
        for tree in trees:
            headers[row], own = _decode_set(coder, tree, seen)
        sets += own
        indptr[row + 1] = len(sets)
    ids = np.array(sets, np.int32)
    if own_ids is not None:
        ids = own_ids[ids]
        if (ids < 0).any():
            raise ValueError(_DAMAGED)
    return headers, indptr, ids


class _Tree(NamedTuple):
    """How the sets of one feature are coded; see `TreeCodes`."""

    no_set: int
    is_dependent: bool
    mass: list[int]
    nodes: list[int]
    classes: list[int]
    sizes: list[int]
    contexts: list[int]
    small: NDArray[np.uint16]
    large: NDArray[np.uint16]


class _Union:
    """The ascending ids seen in a row, with 1 if the set right before has it, plus 2 if an earlier one."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}

    def marked(self, members: set[int], others: list[int]) -> None:
        marks = {s: 2 | (s in members) for s in self.marks} | dict.fromkeys(others, 1)
        self.marks = {s: marks[s] for s in sorted(marks)}


def _trees(codes: TreeCodes) -> list[_Tree]:
    trees, starts = [], codes.symbol_starts.tolist()
    sizes = np.diff(codes.symbol_starts).tolist()
    for number, (no_set, is_dependent) in enumerate(codes.parameters.tolist()):
        if is_dependent and (number == 0 or sizes[number] != sizes[number - 1]):
            raise ValueError("the trees do not fit each other")
        first, end = starts[number : number + 2]
        of_symbols = (codes.nodes[first:end].tolist(), codes.classes[first:end].tolist())
        mass = codes.mass[first + number : end + number + 1].tolist()
        sizes_of, contexts = codes.sizes[number].tolist(), codes.contexts[number].tolist()
        trees.append(
            _Tree(no_set, bool(is_dependent), mass, *of_symbols, sizes_of, contexts, codes.small, codes.large)
        )
    return trees


def _check_sets(
    trees: list[_Tree], headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> None:
    for segment, header in enumerate(headers.reshape(-1).tolist()):
        tree = trees[segment % len(trees)]
        own = ids[indptr[segment] : indptr[segment + 1]]
        if (
            header < 0
            or len(own) != max(header - tree.no_set, 0)
            or (np.diff(own) <= 0).any()
            or (len(own) and not 0 <= own[0] <= own[-1] < len(tree.nodes))
        ):
            raise ValueError(_DO_NOT_FIT)


def share_place(mark: int, kind: int, seen: int, ones: int) -> int:
    """The index in the contexts of a symbol's class, after ``ones`` members among ``seen`` ids."""
    if seen > CAP:
        seen, ones = CAP, (2 * ones * CAP + seen) // (2 * seen)
    return ((mark - 1) * NUM_CLASSES + kind) * NUM_OF_CLASS + seen * (seen + 1) // 2 + ones


def bucket_of(size: int) -> tuple[int, int]:
    """The bucket of a header, and how many lower bits distinguish it inside the bucket."""
    if size < 8:
        return size, 0
    rest = size.bit_length() - 3
    return 8 + (rest - 1) * 4 + (size >> rest & 3), rest


def _large_class(number: int) -> int:
    return min(max(number.bit_length() - 5, 0), len(BINS) - 1)


def _bin_start(place: int, number: int, bins: int) -> int:
    return (place * (number + 1) + bins - 1) // bins


class _Encoder:
    """Writes the bits of one row."""

    def __init__(self) -> None:
        self._bits: list[int] = []
        self._low, self._range = 0, _MASK

    def put(self, before: int, own: int, whole: int) -> None:
        if not own:
            raise ValueError(_DO_NOT_FIT)
        unit = self._range // whole
        self._low += before * unit
        self._range = self._range - before * unit if before + own == whole else own * unit
        if self._low >> 32:
            self._carry()
            self._low &= _MASK
        while self._range < _LEAST_RANGE:
            self._bits.append(self._low >> 31)
            self._low = self._low << 1 & _MASK
            self._range <<= 1

    def finished(self) -> list[int]:
        """All bits, and the fewest more that identify the row, whatever follows."""
        for length in range(33):
            step = 1 << (32 - length)
            value = -(-self._low // step) * step
            if value + step <= self._low + self._range:
                break
        if value >> 32:
            self._carry()
        return self._bits + [value >> (31 - place) & 1 for place in range(length)]

    def _carry(self) -> None:
        place = len(self._bits) - 1
        while self._bits[place]:
            self._bits[place] = 0
            place -= 1
        self._bits[place] = 1


def _encode_set(coder: _Encoder, tree: _Tree, seen: _Union, header: int, ids: list[int]) -> None:
    if not tree.is_dependent:
        seen.marks = {}
    members = set(ids) & seen.marks.keys()
    others = [s for s in ids if s not in members]
    has_set = header >= tree.no_set
    size = tree.no_set + len(others) if has_set else header
    bucket, rest = bucket_of(size)
    if bucket >= NUM_SIZES or not tree.sizes[-1]:
        raise ValueError(_DO_NOT_FIT)
    coder.put(tree.sizes[bucket], tree.sizes[bucket + 1] - tree.sizes[bucket], tree.sizes[-1])
    if rest:
        coder.put(size & ((1 << rest) - 1), 1, 1 << rest)
    ones = 0
    for place, (symbol, mark) in enumerate(seen.marks.items() if has_set else ()):
        share = tree.contexts[share_place(mark, tree.classes[symbol], place, ones)]
        if symbol in members:
            coder.put(0, share, _WHOLE)
            ones += 1
        else:
            coder.put(share, _WHOLE - share, _WHOLE)
    _encode_ids(coder, tree, others, 0, len(tree.nodes))
    seen.marked(members, others)


def _encode_ids(coder: _Encoder, tree: _Tree, ids: list[int], low: int, high: int) -> None:
    number, mass = len(ids), tree.mass
    if number in (0, high - low):
        return
    if number == 1 and mass[high] - mass[low] < MOST_MASS:
        own = ids[0]
        coder.put(mass[own] - mass[low], mass[own + 1] - mass[own], mass[high] - mass[low])
        return
    middle = low + (high - low) // 2
    left = sum(s < middle for s in ids)
    least, most = max(0, number - (high - middle)), min(number, middle - low)
    if least < most and number <= MOST_TOLD:
        table = tree.small[tree.nodes[middle], number].tolist()
        coder.put(table[left], table[left + 1] - table[left], _WHOLE)
    elif least < most:
        kind = _large_class(number)
        bins, table = BINS[kind], tree.large[tree.nodes[middle], kind].tolist()
        place = left * bins // (number + 1)
        coder.put(table[place], table[place + 1] - table[place], _WHOLE)
        first = max(_bin_start(place, number, bins), least)
        end = min(_bin_start(place + 1, number, bins), most + 1)
        if end - first > 1:
            coder.put(left - first, 1, end - first)
    _encode_ids(coder, tree, ids[:left], low, middle)
    _encode_ids(coder, tree, ids[left:], middle, high)


class _Decoder:
    """Reads the bits of one row; raises ValueError when it reads past the last ones."""

    def __init__(self, words: NDArray[np.uint64], num_bits: int, bit: int):
        if bit > num_bits:
            raise ValueError(_DAMAGED)
        self._words, self._limit = words, num_bits + 32
        self._bit, self._range = bit, _MASK
        self._value = 0
        self._take(32)

    def unit(self, whole: int) -> int:
        """Divide the range into this many equal units. Returns the unit in which the value is."""
        self._unit = self._range // whole
        return self._value // self._unit

    def consume(self, before: int, own: int, is_last: bool) -> None:
        """Continue with the ``own`` units after the first ``before``."""
        self._value = (self._value - before * self._unit) & _MASK
        self._range = (self._range - before * self._unit if is_last else own * self._unit) & _MASK
        if self._range < _LEAST_RANGE:
            shift = 32 - self._range.bit_length() if self._range else 31
            self._range = self._range << shift if self._range else _LEAST_RANGE
            self._take(shift)

    def is_below(self, share: int) -> bool:
        """Whether the value is below this many units."""
        return self._value < share * self._unit

    def flat(self, whole: int) -> int:
        """A number below ``whole``; all are equally likely."""
        number = min(self.unit(whole), whole - 1)
        self.consume(number, 1, number + 1 == whole)
        return number

    def _take(self, length: int) -> None:
        word, shift = self._bit >> 6, self._bit & 63
        both = int(self._words[word]) << 64 | int(self._words[word + 1])
        taken = both >> (128 - shift - length) & ((1 << length) - 1)
        self._value = (self._value << length | taken) & _MASK
        self._bit += length
        if self._bit > self._limit:
            raise ValueError(_DAMAGED)


def _decode_set(coder: _Decoder, tree: _Tree, seen: _Union) -> tuple[int, list[int]]:
    """The header of a set, and its ids."""
    if not tree.is_dependent:
        seen.marks = {}
    size = _decode_size(coder, tree)
    num_others = max(size - tree.no_set, 0)
    if num_others > len(tree.nodes) - len(seen.marks):
        raise ValueError(_DAMAGED)
    members: list[int] = []
    for place, (symbol, mark) in enumerate(seen.marks.items() if size >= tree.no_set else ()):
        share = tree.contexts[share_place(mark, tree.classes[symbol] & 7, place, len(members))]
        coder.unit(_WHOLE)
        if coder.is_below(share):
            coder.consume(0, share, False)
            members.append(symbol)
        else:
            coder.consume(share, _WHOLE - share, True)
    others: list[int] = []
    _decode_ids(coder, tree, num_others, 0, len(tree.nodes), others)
    if not seen.marks.keys().isdisjoint(others):
        raise ValueError(_DAMAGED)
    seen.marked(set(members), others)
    return size if size < tree.no_set else size + len(members), sorted(members + others)


def _decode_size(coder: _Decoder, tree: _Tree) -> int:
    sizes = tree.sizes
    if not sizes[-1]:
        raise ValueError(_DAMAGED)
    number = min(coder.unit(sizes[-1]), sizes[-1] - 1)
    bucket = bisect_right(sizes, number) - 1
    coder.consume(sizes[bucket], sizes[bucket + 1] - sizes[bucket], sizes[bucket + 1] == sizes[-1])
    if bucket < 8:
        return bucket
    rest = 1 + (bucket - 8) // 4
    return ((4 + (bucket - 8) % 4) << rest) + coder.flat(1 << rest)


def _decode_ids(coder: _Decoder, tree: _Tree, number: int, low: int, high: int, ids: list[int]) -> None:
    mass = tree.mass
    if number == high - low:
        ids += range(low, high)
    elif number == 1 and mass[high] - mass[low] < MOST_MASS:
        whole = mass[high] - mass[low]
        target = mass[low] + min(coder.unit(whole), whole - 1)
        own = bisect_right(mass, target, low, high) - 1
        coder.consume(mass[own] - mass[low], mass[own + 1] - mass[own], mass[own + 1] == mass[high])
        ids.append(own)
    elif number:
        middle = low + (high - low) // 2
        least, most = max(0, number - (high - middle)), min(number, middle - low)
        left = least
        if least < most:
            left = _decode_left(coder, tree, tree.nodes[middle], number, least, most)
        if not least <= left <= most:
            raise ValueError(_DAMAGED)
        _decode_ids(coder, tree, left, low, middle, ids)
        _decode_ids(coder, tree, number - left, middle, high, ids)


def _decode_left(coder: _Decoder, tree: _Tree, node: int, number: int, least: int, most: int) -> int:
    value = coder.unit(_WHOLE)
    if number <= MOST_TOLD:
        table = tree.small[node, number].tolist()
        left = bisect_right(table, value, 1, number + 1) - 1
        coder.consume(table[left], table[left + 1] - table[left], left == number)
        return left
    kind = _large_class(number)
    bins, table = BINS[kind], tree.large[node, kind].tolist()
    place = bisect_right(table, value, 1, bins) - 1
    coder.consume(table[place], table[place + 1] - table[place], place == bins - 1)
    first = max(_bin_start(place, number, bins), least)
    end = min(_bin_start(place + 1, number, bins), most + 1)
    return first + coder.flat(end - first) if end - first > 1 else first
