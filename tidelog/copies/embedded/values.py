"""What a copy tells of itself and of what it holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

State: TypeAlias = Literal["syncing", "in_sync", "lagging", "disconnected"]
STATES: Final[tuple[State, ...]] = ("in_sync", "lagging", "syncing", "disconnected")
"""From good to bad; a copy of several partitions is as good as the worst of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """How the copy of one partition stands."""

    partition: int
    state: State
    node: str | None
    """Where it copies from."""
    applied_offset: int | None
    """Everything below it is here; None before the first sync."""
    current_offset: int | None
    """As far as the log goes, by what was heard last."""
    lag_entries: int
    lag_ms: int
    """For how long it has lacked something, as far as it knows."""
    operations_applied: int
    full_syncs: int
    bytes_expected: int
    """Of a snapshot that is being received; 0 otherwise."""
    bytes_received: int
    reconnects: int
    errors: int
    last_error: str | None
    last_sync: datetime | None
    """When it last had everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """How a copy stands: the worst of its partitions, their sums, and each of them."""

    replica_id: str
    state: State
    applied_offset: int | None
    """Of all partitions together; None before the first sync of each."""
    lag_entries: int
    lag_ms: int
    errors: int
    last_error: str | None
    last_sync: datetime | None
    partitions: tuple[PartitionStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message of a work queue that was copied."""

    id: int
    sequence: int
    """Its place in the queue."""
    value: Any
    attributes: Mapping[str, str]
    key: str | None
    published_at_ms: int
    delivery_count: int


def overall(replica_id: str, partitions: tuple[PartitionStatus, ...]) -> ReplicaStatus:
    """How the whole stands, of how its parts do."""
    applied = [one.applied_offset for one in partitions]
    synced = [one.last_sync for one in partitions]
    failed = [one for one in partitions if one.last_error is not None]
    return ReplicaStatus(
        replica_id=replica_id,
        state=max((one.state for one in partitions), key=STATES.index),
        applied_offset=None if None in applied else sum(filter(None, applied)),
        lag_entries=sum(one.lag_entries for one in partitions),
        lag_ms=max(one.lag_ms for one in partitions),
        errors=sum(one.errors for one in partitions),
        last_error=failed[0].last_error if failed else None,
        last_sync=None if None in synced else min(one for one in synced if one is not None),
        partitions=partitions,
    )
