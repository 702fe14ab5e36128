"""Sets in codes of Golomb and Rice, by the description in `succinct.golomb_sets`, one code at a time."""

from feast_sketch_store.kernel import DIRECT_CODES, words_of_bits
from tests.oracle.bits import Bits, DamagedError, ascending_at, half_octaves


class Feature:
    """How the sets of one feature are coded."""

    def __init__(self, codes, number):
        first, end = codes.level_starts[number : number + 2]
        self.header_width, self.no_set, self.others_width = codes.parameters[number].tolist()
        self.levels, self.left = codes.levels[first:end].tolist(), codes.left[number].tolist()
        self.headers = codes.headers[number].tolist()

    def width(self, symbol, left):
        """The width of the gap that begins at a symbol, with ``left`` ids left."""
        own = self.left[left if left < DIRECT_CODES else DIRECT_CODES + half_octaves(left)]
        return max(self.levels[symbol] - own, 0) >> 2

    def put_header(self, bits, header):
        bits.put_code(self.headers.index(header) if header < len(self.headers) else header, self.header_width)

    def take_header(self, bits):
        rank = bits.take_code(self.header_width)
        return self.headers[rank] if rank < len(self.headers) else rank

    def put_gaps(self, bits, ids):
        following = 0
        for index, symbol in enumerate(ids):
            bits.put_code(symbol - following, self.width(following, len(ids) - index))
            following = symbol + 1

    def take_gaps(self, bits, num_bits, size):
        ids, following = [], 0
        for left in range(size, 0, -1):
            if bits.bit > num_bits or following >= len(self.levels):
                raise DamagedError
            following += bits.take_code(self.width(following, left)) + 1
            ids.append(following - 1)
        if following > len(self.levels):
            raise DamagedError
        return ids


def features_of(codes):
    return [Feature(codes, number) for number in range(len(codes.parameters))]


def form_of(num_seen, members):
    """How the members among the ids seen are coded: whether those are that are not members; how many codes,
    None for a bitmap; and their width."""
    is_reversed = 2 * members > num_seen
    fewer = num_seen - members if is_reversed else members
    if fewer and 8 * fewer >= 3 * num_seen:
        return is_reversed, None, 0
    return is_reversed, fewer, max(0, half_octaves(num_seen) - half_octaves(fewer) - 1) >> 1


def put_inside(bits, seen, members):
    is_reversed, coded, width = form_of(len(seen), len(members))
    following = 0
    for index, symbol in enumerate(seen):
        if coded is None:
            bits.put(symbol in members, 1)
        elif coded and (symbol in members) != is_reversed:
            bits.put_code(index - following, width)
            following = index + 1


def take_inside(bits, num_bits, seen, members):
    is_reversed, coded, width = form_of(len(seen), members)
    if coded is None:
        if bits.bit + len(seen) > num_bits:
            raise DamagedError
        found = [symbol for symbol in seen if bits.take(1)]
    else:
        indices, following = set(), 0
        for _ in range(coded):
            if bits.bit > num_bits:
                raise DamagedError
            following += bits.take_code(width) + 1
            if following > len(seen):
                raise DamagedError
            indices.add(following - 1)
        found = [symbol for index, symbol in enumerate(seen) if (index in indices) != is_reversed]
    if len(found) != members:
        raise DamagedError
    return found


def write_sets(codes, headers, indptr, ids):
    """The words, and the bit after each row; parameters are those of `kernel.write_sets`."""
    bits, features, ends = Bits(), features_of(codes), []
    for row in range(len(headers)):
        seen = []
        for number, feature in enumerate(features):
            segment = row * len(features) + number
            own = ids[indptr[segment] : indptr[segment + 1]].tolist()
            feature.put_header(bits, int(headers[row, number]))
            if feature.others_width < 0:
                feature.put_gaps(bits, own)
                seen = own
                continue
            others = sorted(set(own) - set(seen))
            if own and seen:
                bits.put_code(len(others), feature.others_width)
            put_inside(bits, seen, set(own) & set(seen))
            feature.put_gaps(bits, others)
            seen = sorted({*seen, *others})
        ends.append(bits.bit)
    return bits.words(words_of_bits(bits.bit)), ends


def read_row(codes, words, num_bits, starts, group_rows, row, feature):
    """The header of a row's set of a feature, and the set; ``starts`` are those of groups of rows.

    Raises
    ------
    DamagedError
    """
    bits, features = Bits(words), features_of(codes)
    bits.bit = ascending_at(starts, row // group_rows)
    for _ in range(row % group_rows):
        take_row(bits, num_bits, features)
    return take_row(bits, num_bits, features[: feature + 1])


def take_row(bits, num_bits, features):
    """The header and the set of the last of some features."""
    seen = []
    for own in features:
        if bits.bit > num_bits:
            raise DamagedError
        header = own.take_header(bits)
        size = max(0, header - own.no_set)
        if size > len(own.levels):
            raise DamagedError
        if own.others_width < 0:
            found = seen = own.take_gaps(bits, num_bits, size)
            continue
        num_others = size
        if size and seen:
            if bits.bit > num_bits:
                raise DamagedError
            num_others = bits.take_code(own.others_width)
        if not 0 <= size - num_others <= len(seen) or len(seen) + num_others > len(own.levels):
            raise DamagedError
        inside = take_inside(bits, num_bits, seen, size - num_others)
        others = own.take_gaps(bits, num_bits, num_others)
        if not set(seen).isdisjoint(others):
            raise DamagedError
        found, seen = sorted(inside + others), sorted(seen + others)
    return header, found
