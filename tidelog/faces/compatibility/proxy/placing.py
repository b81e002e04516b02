"""Which cluster has a queue.

Rule 1: a queue with pointers is known by the id that its cluster gave it, times the number of
        places, plus the cluster's own number. Neither needs to be remembered anywhere.
Rule 2: a work queue is where its name's hash is the greatest (rendezvous): of n clusters a further
        one takes every n-th name, and no other moves.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

DEAD_SUFFIX: Final = ".dead"
"""What nobody managed to do of a queue has its name, and is where the queue is."""


@dataclass(frozen=True, slots=True)
class Places:
    """So many clusters, numbered from 0, and so many numbers that may be given out one day."""

    clusters: int
    slots: int

    def __post_init__(self) -> None:
        if not 1 <= self.clusters <= self.slots:
            raise ValueError(f"{self.clusters} clusters do not fit into {self.slots} places")

    def everywhere(self, local: int, cluster: int) -> int:
        """The id by which everybody knows a queue of a cluster."""
        return local * self.slots + cluster

    def find(self, queue_id: int) -> tuple[int, int] | None:
        """The cluster of a queue, and the id that it has there; None if no cluster can have it."""
        local, cluster = divmod(queue_id, self.slots)
        return (cluster, local) if queue_id >= 0 and cluster < self.clusters else None

    def of_name(self, name: str) -> int:
        """The cluster of a work queue, and of what is dead of it."""
        return self._greatest(without_dead(name))

    def of_key(self, key: str) -> int:
        """The cluster in which a request with this key makes its queue, however often it comes."""
        return self._greatest(f"\0{key}")

    def _greatest(self, text: str) -> int:
        return max(range(self.clusters), key=lambda cluster: _weight(text, cluster))


def _weight(text: str, cluster: int) -> bytes:
    content = f"{cluster}:{text}".encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=8).digest()


def without_dead(name: str) -> str:
    """The queue that is meant, if a name stands for what is dead of it."""
    return name if name == DEAD_SUFFIX else name.removesuffix(DEAD_SUFFIX)
