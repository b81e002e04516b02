"""Which partition a record goes to, as Kafka's default partitioner decides.

Rule 1: the same key goes to the same partition from every client (`tidelog.wire.partitioner`).
Rule 2: records without a key stay on one partition until its batch is full, then move on: few
        large batches instead of many small ones (KIP-480).
"""

from tidelog.wire.partitioner import murmur2, partition_for

__all__ = ["Partitioner", "murmur2", "partition_for"]


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
