"""Timed lists by the description in `succinct.timed_lists`, one item at a time."""

from feast_sketch_store.kernel import AGES, GAPS, NUM_WIDTHS, PREFIX_BITS, SIZES
from tests.oracle.bits import Bits, DamagedError

MAX_AGE = 1 << 60
LAST_CLASS = 121  # of numbers of 61 bits


def read_list(codes, words, start, stop, limit, oldest):
    """The newest items of the list in bits ``start`` to ``stop``: their ages and ids.

    Raises
    ------
    DamagedError
    """
    bits, items, age = Bits(words), [], -1
    bits.bit = start
    num_symbols = codes.widths.shape[1]

    def take_number(kind):
        entry = int(codes.tables[kind][bits.at(bits.bit, PREFIX_BITS)])
        own = entry >> 4
        if not entry or own > LAST_CLASS:
            raise DamagedError
        bits.bit += entry & 15
        extra = max((own >> 1) - 1, 0)
        number = (own if own < 4 else (2 | own & 1) << extra) + bits.take(extra)
        check_end()
        return number

    def check_end():
        if bits.bit > stop:
            raise DamagedError

    while bits.bit < stop and len(items) < limit:
        age += take_number(AGES if age < 0 else GAPS) + 1
        left, following = take_number(SIZES) + 1, 0
        if age >= MAX_AGE or left > num_symbols:
            raise DamagedError
        if age > oldest:
            break
        while left and len(items) < limit:
            if following >= num_symbols:
                raise DamagedError
            octaves = (left - 1).bit_length()
            width = int(codes.widths[min(octaves, NUM_WIDTHS - 1), following])
            following += bits.take_code(max(width - max(octaves - (NUM_WIDTHS - 1), 0), 0)) + 1
            check_end()
            if following > num_symbols:
                raise DamagedError
            items.append((age, following - 1))
            left -= 1
    return items
