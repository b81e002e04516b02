"""Where a group or a transaction is kept: a partition of its coordinator's topic, by its name."""

import struct
from typing import Final

_UTF16_UNIT: Final = struct.Struct(">H")


def partition_for(name: str, count: int) -> int:
    """The partition that holds a group or a transaction, as every Kafka client agrees.

    Java's `String.hashCode`: 31 * hash + unit over the UTF-16 units, in 32 bits; its least value
    has no positive counterpart and counts as 0.
    """
    value = 0
    for (unit,) in _UTF16_UNIT.iter_unpack(name.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return (0 if signed == -(2**31) else abs(signed)) % count
