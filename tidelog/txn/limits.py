"""How long things may take, and how many may wait."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of the coordinator, with Kafka's names beside them."""

    timeout_max_ms: int = 24 * 60 * 60 * 1000  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000  # transactional.id.expiration.ms
    completion_wait_ms: int = 1_000
    """So long may a partition's entry into the next transaction wait for the end of the one before.

    Kafka refuses at once, and clients come again after 20 ms or more: most often the markers
    stand sooner than that.
    """
    waiting_max: int = 1_000
    """Of one transactional id; the next to come are refused at once."""
    retry_ms: int = 500
    """After a failed write, what must not be left undone is tried again."""
