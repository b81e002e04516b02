"""Which partition a record goes to, as Kafka's default partitioner decides.

Rule 1: the same key goes to the same partition from every client, so the hash is Kafka's own.
Rule 2: records without a key stay on one partition until its batch is full, then move on: few
        large batches instead of many small ones (KIP-480).
"""

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
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner:
    """Picks partitions for one producer of one topic."""

    def __init__(self, partitions: int, *, first: int = 0) -> None:
        assert partitions > 0, "a topic has at least one partition"
        self._partitions = partitions
        self._sticky = first % partitions

    def pick(self, key: bytes | None) -> int:
        return self._sticky if key is None else partition_for(key, self._partitions)

    def move_on(self) -> None:
        """The sticky partition's batch is full; keyless records go to the next one."""
        self._sticky = (self._sticky + 1) % self._partitions
