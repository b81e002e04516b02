"""How a record names its schema, as Confluent's serializers do.

record  := magic: 0x00, schema_id: uint32, payload            (big-endian)
payload := for Protobuf: indexes, message; for others: the value
indexes := 0x00                                   the first message of the file
         | count: varint, index: varint * count   the way to a message, from the outside in
"""

import struct
from typing import Final

from tidelog.schemas.problems import NotFramed

MAGIC: Final = 0
HEADER: Final = struct.Struct(">BI")


def frame(schema_id: int, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, schema_id) + payload


def unframe(data: bytes) -> tuple[int, bytes]:
    """The schema's id, and what follows it."""
    if len(data) < HEADER.size or data[0] != MAGIC:
        shown = bytes(data[:8]).hex(" ")
        raise NotFramed(
            f"it begins with {shown or 'nothing'}, not with a 0 and a schema's id: it was written "
            "without a schema registry"
        )
    return HEADER.unpack_from(data)[1], data[HEADER.size :]


# Indexes of Protobuf messages; numbers are zigzag varints.


def frame_indexes(indexes: tuple[int, ...]) -> bytes:
    if indexes == (0,):
        return b"\0"
    return b"".join(_varint(number) for number in (len(indexes), *indexes))


def unframe_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """The way to the message, and its bytes."""
    count, at = _read_varint(payload, 0)
    if count == 0:
        return (0,), payload[at:]
    indexes = []
    for _ in range(count):
        index, at = _read_varint(payload, at)
        indexes.append(index)
    return tuple(indexes), payload[at:]


def _varint(number: int) -> bytes:
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    raise NotFramed("the indexes of its message are cut off")
