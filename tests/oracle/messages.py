"""Messages of protobuf, byte by byte."""

from feast_sketch_store.kernel import varint


def take_varint(message, offset):
    """A number of at most 10 bytes, and the place after it.

    Raises
    ------
    IndexError : the message ends first, or the number is longer.
    """
    number = 0
    for shift in range(10):
        byte = message[offset + shift]
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, offset + shift + 1
    raise IndexError


def packed_list(message, field, width):
    """The elements of a list in a ``Value``, as bits; None if it has anything else."""
    try:
        for tag in (field << 3 | 2, 1 << 3 | 2):
            if not message:
                break
            number, offset = take_varint(message, 0)
            length, start = take_varint(message, offset)
            if number != tag or start + length != len(message):
                return None
            message = message[start:]
        if width:
            parts = [message[offset : offset + width] for offset in range(0, len(message), width)]
            return [int.from_bytes(part, "little") for part in parts] if not len(message) % width else None
        numbers, offset = [], 0
        while offset < len(message):
            number, offset = take_varint(message, offset)
            numbers.append(number)
    except IndexError:
        return None
    return numbers if all(number < 2**64 for number in numbers) else None


def int64_key(message):
    """The name and value of an ``EntityKey`` with one join key, an int64; None if it has anything else."""
    try:
        length, first = take_varint(message, 1)
        stop = first + length
        size = len(message) - stop - 2
        if (
            message[:1] != b"\x0a"
            or not 2 <= size < 0x80
            or message[stop : stop + 3] != bytes((0x12, size, 0x20))
        ):
            return None
        value, end = take_varint(message, stop + 3)
    except IndexError:
        return None
    if end != len(message) or value >= 2**64:
        return None
    return message[first:stop], value - (value >> 63 << 64)


def encoded_value(tag, is_collection, is_packed, fragments):
    """A ``Value`` in a ``RepeatedValue``, of encoded elements."""
    content = b"".join(fragments)
    if is_packed and content:
        content = b"\x0a" + varint(len(content)) + content
    if is_collection:
        content = tag + varint(len(content)) + content
    elif content:
        content = tag + content
    return b"\x0a" + varint(len(content)) + content
