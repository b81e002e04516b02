"""How large, how slow and how old things may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of the coordinator, with Kafka's names beside them.

    The initial delay is 0 where Kafka's is 3 s: it only saves rebalances when a large group starts
    at once, and everyone else waits for nothing.
    """

    group_size_max: int = 2**31 - 1  # group.max.size
    group_bytes_max: int = 32 * 1024 * 1024
    """What members say of themselves is kept in memory, and stored as one record."""
    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 0  # group.initial.rebalance.delay.ms
    new_member_join_timeout_ms: int = 300_000
    """A new member cannot heartbeat before it has its first answer: so long it may wait."""
    offset_metadata_max: int = 4096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # offsets.retention.minutes
