"""How replicas stand, in one word each, for whoever asks how a master and its replicas are.

    in_sync        in the in-sync set, and level but for what is on its way
    lagging        in the set, but behind by more than `catchup.threshold.records` or for longer
                   than `replication.lagging.ms`; or out of the set after it was level
    syncing        out of the set, and not level yet since it connected, or since its leader leads
    disconnected   fenced, or not connected to the leader

Rule 1: a leader speaks for its followers, and a follower for itself; nobody speaks for others.
Rule 2: of many partitions a node's offsets are sums, its time is the longest, its word the worst.
Rule 3: what is not known is null, and counts nowhere.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from heapq import nlargest
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.model import NO_OFFSET, NodeId, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.partition.follower_view import FollowerView
from tidelog.partition.leader import Leader

SLICE: Final = 50
"""Partitions between two breaths."""


class Status(IntEnum):
    """The worse, the greater."""

    IN_SYNC = 0
    LAGGING = 1
    SYNCING = 2
    DISCONNECTED = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(slots=True, kw_only=True)
class Standing:
    """One follower, or all followers of one node, or all that a node follows."""

    node: NodeId | None
    """The follower's, or of what a node follows, the leader's."""
    status: Status
    offset: Offset | None
    """Where the follower's log ends."""
    lag: int | None
    lag_ms: int
    connected_at: float | None
    spoke_at: float | None
    """When the follower last told what it holds; or when its leader last answered it."""
    leader_offset: Offset | None
    """Where the leader's log ends; for a follower, as far as it was told."""

    def add(self, other: "Standing") -> None:
        """Let this one stand for both."""
        if other.status > self.status:
            self.node = other.node  # the one to look at
        self.status = max(self.status, other.status)
        self.offset = _sum(self.offset, other.offset)
        self.lag = _sum(self.lag, other.lag)
        self.lag_ms = max(self.lag_ms, other.lag_ms)
        self.leader_offset = _sum(self.leader_offset, other.leader_offset)
        self.connected_at = _earliest(self.connected_at, other.connected_at)
        self.spoke_at = _earliest(self.spoke_at, other.spoke_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    """One partition of this node: what it leads, by its worst follower, or what it follows."""

    name: TopicPartition
    leads: bool
    offset: Offset
    status: Status
    lag: int | None
    lag_ms: int

    @property
    def badness(self) -> tuple[int, int, int]:
        return self.status, self.lag_ms, self.lag or 0


@dataclass(slots=True, kw_only=True)
class Survey:
    """All that a node holds, or some of it."""

    leads: int = 0
    follows: int = 0
    end: Offset = 0
    """Of all logs that it leads, together; likewise their starts."""
    start: Offset = 0
    has_followers: bool = False
    followers: dict[NodeId, Standing] = field(default_factory=dict)
    following: Standing | None = None
    partitions: list[PartitionStanding] = field(default_factory=list)

    def worst(self, count: int) -> list[PartitionStanding]:
        """Those that stand worst, then the others, by name."""
        found = nlargest(count, self.partitions, key=lambda one: one.badness)
        return sorted(found, key=lambda one: (*(-part for part in one.badness), one.name))


async def survey(broker: Broker, wants: Callable[[TopicPartition], bool]) -> Survey:
    """How the partitions here stand that are wanted; others run in between."""
    found = Survey()
    now = broker.host.clock.monotonic()
    for at, partition in enumerate(broker.partitions()):
        if at % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        if not wants(partition.name):
            continue
        if (leader := partition.leader) is not None:
            _add_led(found, broker, partition, leader, now)
        else:
            _add_followed(found, broker, partition, now)
    return found


def _add_led(found: Survey, broker: Broker, partition: Partition, leader: Leader, now: float) -> None:
    found.leads += 1
    found.end += partition.log.end
    found.start += partition.log.start
    worst: Standing | None = None
    for standing in followers_of(broker, partition, leader, now):
        found.has_followers = True
        assert standing.node is not None
        node = standing.node
        if node in found.followers:
            found.followers[node].add(standing)
        else:
            found.followers[node] = standing
        if worst is None or (standing.status, standing.lag_ms) > (worst.status, worst.lag_ms):
            worst = standing
    found.partitions.append(
        PartitionStanding(
            name=partition.name,
            leads=True,
            offset=partition.log.end,
            status=Status.IN_SYNC if worst is None else worst.status,
            lag=0 if worst is None else worst.lag,
            lag_ms=0 if worst is None else worst.lag_ms,
        )
    )


def _add_followed(found: Survey, broker: Broker, partition: Partition, now: float) -> None:
    found.follows += 1
    standing = following_of(broker, partition, now)
    found.partitions.append(
        PartitionStanding(
            name=partition.name,
            leads=False,
            offset=partition.log.end,
            status=standing.status,
            lag=standing.lag,
            lag_ms=standing.lag_ms,
        )
    )
    if found.following is None:
        found.following = standing
    else:
        found.following.add(standing)


# A leader's side.


def followers_of(broker: Broker, partition: Partition, leader: Leader, now: float) -> Iterator[Standing]:
    """How each follower of a partition that this node leads stands."""
    end = partition.log.end
    for node, view in leader.followers.items():
        if node not in leader.replicas:
            continue
        session = broker.replication.feeding.session(node)
        offset = None if view.offset == NO_OFFSET else view.offset
        lag = None if offset is None else max(end - offset, 0)
        lag_ms = 0 if lag == 0 else _ms(now - view.level_at)
        if session is None or not broker.image.is_alive(node):
            status = Status.DISCONNECTED
        elif node in leader.in_sync:
            status = _in_set(broker, lag or 0, lag_ms)
        else:
            began_at = max(session.connected_at, leader.began_at)
            status = Status.LAGGING if _was_level(view, began_at) else Status.SYNCING
        yield Standing(
            node=node,
            status=status,
            offset=offset,
            lag=lag,
            lag_ms=lag_ms,
            leader_offset=end,
            connected_at=None if session is None else session.connected_at,
            spoke_at=None if session is None else session.told_at,
        )


def _was_level(view: FollowerView, began_at: float) -> bool:
    return view.level_at > began_at


def _in_set(broker: Broker, lag: int, lag_ms: int) -> Status:
    config = broker.config
    is_far = lag > config.catchup_threshold_records or lag_ms > config.replication_lagging_ms
    return Status.LAGGING if is_far else Status.IN_SYNC


# A follower's side.


def following_of(broker: Broker, partition: Partition, now: float) -> Standing:
    """How this node stands to the leader of a partition that it does not lead."""
    follower, end = partition.follower, partition.log.end
    if follower is None:  # nobody leads
        return Standing(
            node=None,
            status=Status.DISCONNECTED,
            offset=end,
            lag=None,
            lag_ms=0,
            connected_at=None,
            spoke_at=None,
            leader_offset=None,
        )
    fetcher = broker.replication.fetching.fetcher(follower.leader)
    connected_at = None if fetcher is None else fetcher.connected_at
    answered_at = None if fetcher is None else fetcher.answered_at
    lag = partition.records_behind
    if lag:
        level_at = connected_at if follower.level_at is None else follower.level_at
    else:
        level_at = now if connected_at is not None else answered_at
    lag_ms = 0 if level_at is None else _ms(now - level_at)
    if connected_at is None:
        status = Status.DISCONNECTED
    elif not follower.is_aligned:
        status = Status.SYNCING
    elif _is_in_sync(broker, partition):
        status = _in_set(broker, lag, lag_ms)
    else:
        status = Status.SYNCING if follower.level_at is None else Status.LAGGING
    return Standing(
        node=follower.leader,
        status=status,
        offset=end,
        lag=lag,
        lag_ms=lag_ms,
        connected_at=connected_at,
        spoke_at=answered_at,
        leader_offset=max(follower.watermark, end) if follower.is_aligned else None,
    )


def _is_in_sync(broker: Broker, partition: Partition) -> bool:
    topic = broker.image.topics_by_id.get(partition.topic_id)
    if topic is None:
        return False
    return broker.node_id in topic.partitions[partition.name.partition].in_sync


# Words.


def rfc3339(broker: Broker, moment: float | None) -> str | None:
    """A moment of the monotonic clock as people and other programs write it."""
    if moment is None:
        return None
    clock = broker.host.clock
    wall_ms = clock.wall_ms() - (clock.monotonic() - moment) * 1000
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _earliest(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
