"""The numbers that a master and a replica have of their replication; a node of ours has both.

Of several partitions, offsets are sums, times the longest, and words the worst, as `standing` says.
"""

import msgspec

from tidelog.broker.broker import Broker
from tidelog.faces.compatibility.replication_health import MASTER, REPLICA, following_of_masters
from tidelog.faces.http.standing import rfc3339, survey


class ReplicaMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A node that follows this one."""

    id: str
    status: str
    offset: int | None
    lag_entries: int | None
    lag_ms: int
    connected_at: str | None
    """Since when it reads here without a break."""
    last_ack: str | None
    """When it last told what it holds."""


class MasterMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Of what this node leads."""

    enabled: bool
    """Whether any of it has another replica."""
    current_offset: int
    log_size: int
    """In records, as offsets count them."""
    log_oldest_offset: int
    replicas: list[ReplicaMetrics]


class FollowerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Of what this node follows."""

    enabled: bool
    master_id: str | None
    master_offset: int | None
    local_offset: int | None
    lag_entries: int | None
    lag_ms: int | None
    status: str | None
    operations_applied: int
    """Records that leaders sent and that were appended, since the node began; errors likewise."""
    errors: int
    last_sync: str | None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    master: MasterMetrics
    replica: FollowerMetrics


async def replication_metrics(broker: Broker, topics: frozenset[str] | None = None) -> Metrics:
    """Of all that the node holds, or of some topics."""
    found = await survey(broker, lambda name: topics is None or name.topic in topics)
    applied, errors = broker.replication.fetching.totals()
    following = found.following
    mine = None if following is None else following_of_masters(broker, following)
    return Metrics(
        role=MASTER if found.leads or not found.follows else REPLICA,
        master=MasterMetrics(
            enabled=found.has_followers,
            current_offset=found.end,
            log_size=found.end - found.start,
            log_oldest_offset=found.start,
            replicas=[
                ReplicaMetrics(
                    id=str(node),
                    status=one.status.word,
                    offset=one.offset,
                    lag_entries=one.lag,
                    lag_ms=one.lag_ms,
                    connected_at=rfc3339(broker, one.connected_at),
                    last_ack=rfc3339(broker, one.spoke_at),
                )
                for node, one in sorted(found.followers.items())
            ],
        ),
        replica=FollowerMetrics(
            enabled=mine is not None,
            master_id=None if mine is None else mine.master_id,
            master_offset=None if mine is None else mine.master_offset,
            local_offset=None if mine is None else mine.local_offset,
            lag_entries=None if mine is None else mine.lag_entries,
            lag_ms=None if mine is None else mine.lag_ms,
            status=None if mine is None else mine.status,
            operations_applied=applied,
            errors=errors,
            last_sync=None if mine is None else mine.last_sync,
        ),
    )
