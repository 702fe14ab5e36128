"""Reads attribute codes bit by bit; succinct/attribute_codes.py has the format."""

from feast_sketch_store.succinct.coded_rows import prefix_codes


def decoded(coded, sizes):
    """The codes of each row, given how many items each has."""
    words = {}
    for block, (code, length) in enumerate(zip(prefix_codes(coded.lengths), coded.lengths, strict=True)):
        if length:
            words[int(code), int(length)] = block
    bits = sum(int(word) << (64 * place) for place, word in enumerate(coded.words))
    starts = [*coded.starts.to_numbers().tolist(), coded.num_bits]
    rows = []
    for start, stop, size in zip(starts, starts[1:], sizes, strict=False):
        codes, place = [], start
        while place < stop:
            length = next(n for n in range(1, 13) if ((bits >> place) & ((1 << n) - 1), n) in words)
            block = words[(bits >> place) & ((1 << length) - 1), length]
            codes += [block // coded.num_codes**item % coded.num_codes for item in range(coded.block_items)]
            place += length
        rows.append((codes + [coded.usual] * size)[:size])
    return rows
