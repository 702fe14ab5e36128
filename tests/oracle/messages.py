"""Messages of protobuf, byte by byte."""

import numpy as np
import pyarrow as pa
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.kernel import varint
from feast_sketch_store.rows.codecs import EMPTY, MISSING


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


def feast_values(answer):
    """The values of an `Answer` as messages of Feast; None for an entity that lacks the feature."""
    stored = answer.vocabulary.values
    elements = [
        [_element(answer.codec, value) for value in stored.take(pa.array(ids)).to_pylist()]
        for ids in np.split(answer.symbols, answer.indptr[1:-1])[: len(answer.states)]
    ]
    return [
        None if state == MISSING else Value.FromString(_content(answer.codec, own) if state >= EMPTY else b"")
        for own, state in zip(elements, answer.states.tolist(), strict=True)
    ]


def _element(codec, value):
    if isinstance(value, bytes):
        return (b"\x0a" if codec.is_collection else b"") + varint(len(value)) + value
    if codec.element_kind in ("float", "double"):
        size = 4 if codec.element_kind == "float" else 8
        return (value % 256**size).to_bytes(size, "little")  # those of a forged file may be too large
    return varint(value % 2**64)


def _content(codec, elements):
    content = b"".join(elements)
    if not codec.is_collection:
        return codec.tag + content if content else b""
    if elements and codec.element_kind not in ("string", "bytes", "message"):
        content = b"\x0a" + varint(len(content)) + content
    return codec.tag + varint(len(content)) + content
