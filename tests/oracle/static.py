"""Static functions by the description in `succinct.static_function`, one equation and one slot at a time."""

from tests.oracle.bits import MASK, mix64


def equation(key, num_slots):
    """The first slot of a hash's equation, and its 64 coefficients."""
    return key * (num_slots - 63) >> 64, mix64(key + 0x9E3779B97F4A7C15 & MASK) | 1


def band_rows(hashes, values, num_slots):
    """The equation that begins at each slot and its result, and which rows contradict those before them."""
    coefficients, results, left = [0] * num_slots, [0] * num_slots, []
    for key, value in zip(hashes.tolist(), values.tolist(), strict=True):
        slot, own = equation(key, num_slots)
        while own and coefficients[slot]:
            own, value = own ^ coefficients[slot], value ^ results[slot]
            while own and not own & 1:
                own, slot = own >> 1, slot + 1
        if own:
            coefficients[slot], results[slot] = own, value
        left.append(not own and value != 0)
    return coefficients, results, left


def solve_slots(coefficients, results, width):
    """The number of each slot, by which all equations hold."""
    slots = [0] * (len(coefficients) + 64)
    for slot in range(len(coefficients) - 1, -1, -1):
        number = int(results[slot]) & ((1 << width) - 1)
        for step in range(1, 64):
            if int(coefficients[slot]) >> step & 1:
                number ^= slots[slot + step]
        slots[slot] = number
    return slots[: len(coefficients)]


def slots_of(words, width):
    """The numbers in words: bit ``s % 64`` of ``words[s // 64, j]`` is bit j of slot s."""
    return [
        sum((int(column) >> s & 1) << j for j, column in enumerate(row))
        for row in words.reshape(-1, width)
        for s in range(64)
    ]


def look_up(words, width, num_slots, hashes):
    """The number of each hash."""
    slots, numbers = slots_of(words, width), []
    for key in hashes.tolist():
        start, own = equation(key, num_slots)
        number = mix64(key + 0x3C6EF372FE94F82A & MASK) >> (64 - width)
        for step in range(64):
            if own >> step & 1:
                number ^= slots[start + step]
        numbers.append(number)
    return numbers
