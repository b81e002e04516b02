"""Where a key goes, as every Kafka client agrees: the hash is Kafka's own."""

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, as the signed number that Java has."""
    size = len(data)
    h = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if size > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key; the hash is made positive as Kafka does, by dropping its sign."""
    return 0 if partitions == 1 else (murmur2(key) & 0x7FFFFFFF) % partitions
