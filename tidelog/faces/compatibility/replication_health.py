"""`GET /health/replication`: how a master's replicas stand, or a replica to its master.

A node of ours leads some partitions and follows others, so it has no role of its own. It answers as
a master where it leads: a partition, if one is asked for; anything at all, if none is. Elsewhere it
answers as a replica. Whoever monitors masters and replicas reads on as before; `position` says it
in our words, and of a node that is both, `following` says the rest.

Rule: the answer is 200 whatever it says; the node's own health is another matter (`/health/ready`).
"""

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tidelog.broker.broker import Broker
from tidelog.errors import UnknownTopicOrPartition
from tidelog.faces.http.api import Call, Operation, Param, tagged
from tidelog.faces.http.permissions import DESCRIBE_CLUSTER
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.standing import PartitionStanding, Standing, Status, Survey, rfc3339, survey
from tidelog.model import TopicPartition

LISTED_MAX: Final = 1000
MASTER: Final = "master"
REPLICA: Final = "replica"
LEADER: Final = "leader"
FOLLOWER: Final = "follower"


class ReplicaOf(msgspec.Struct, frozen=True, kw_only=True):
    """One node that follows this one; of several partitions, their sums and the worst of them."""

    id: str
    node: int
    offset: int | None
    lag_entries: int | None
    lag_ms: int
    status: str


class PartitionHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: of one that is led, how its worst follower stands."""

    topic: str
    partition: int
    role: str
    position: str
    offset: int
    lag_entries: int | None
    lag_ms: int
    status: str


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """How this node stands to those that it follows."""

    master_host: str | None
    master_id: str | None
    master_offset: int | None
    local_offset: int
    lag_entries: int | None
    lag_ms: int
    status: str
    last_sync: str | None


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As a master: `current_offset` and `replicas`. As a replica: the fields of `Following`."""

    role: str
    position: str
    node: int
    status: str
    """The worst of all."""
    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    current_offset: int | UnsetType = UNSET
    replicas: list[ReplicaOf] | UnsetType = UNSET
    master_host: str | UnsetType | None = UNSET
    master_id: str | UnsetType | None = UNSET
    master_offset: int | UnsetType | None = UNSET
    local_offset: int | UnsetType = UNSET
    lag_entries: int | UnsetType | None = UNSET
    lag_ms: int | UnsetType = UNSET
    last_sync: str | UnsetType | None = UNSET
    leads: int | UnsetType = UNSET
    follows: int | UnsetType = UNSET
    following: Following | UnsetType | None = UNSET
    rotten: int | UnsetType = UNSET
    """Places on this node's disk that the scrubber has found rotten and that are not healed yet;
    only if there are any."""
    partitions: list[PartitionHealth] | UnsetType = UNSET
    """The worst first, up to 1,000; not where one was asked for."""


async def replication_health(call: Call) -> Health:
    broker = call.broker
    topic, number = call["topic"], call["partition"]
    if number is not None and topic is None:
        raise Problem(400, "partition goes with topic, such as ?topic=orders&partition=0")
    if topic is not None:
        _require_here(broker, topic, number)
    found = await survey(
        broker, lambda name: topic in (None, name.topic) and number in (None, name.partition)
    )
    health = _as_master(broker, found) if found.leads or not found.follows else None
    if health is None:
        health = _as_replica(broker, found)
    if rotten := len(broker.replication.scrubber.state.open):
        health = msgspec.structs.replace(health, rotten=rotten)
    if number is not None:
        return msgspec.structs.replace(health, topic=topic, partition=number)
    return msgspec.structs.replace(
        health,
        topic=UNSET if topic is None else topic,
        leads=found.leads,
        follows=found.follows,
        partitions=[_partition(one) for one in found.worst(LISTED_MAX)],
    )


def _require_here(broker: Broker, topic: str, number: int | None) -> None:
    """Problem unless this node holds what is asked for: only who does knows how it stands."""
    known = broker.image.topics.get(topic)
    if known is None or (number is not None and number >= len(known.partitions)):
        raise UnknownTopicOrPartition(topic if number is None else TopicPartition(topic, number))
    chosen = known.partitions if number is None else [known.partitions[number]]
    holders = sorted({node for partition in chosen for node in partition.replicas})
    if broker.node_id not in holders:
        what = topic if number is None else f"{topic}-{number}"
        raise Problem(
            404,
            f"node {broker.node_id} holds nothing of {what}; ask one of those that do: "
            f"{', '.join(map(str, holders))}",
            replicas=holders,
        )


def _as_master(broker: Broker, found: Survey) -> Health:
    statuses = [one.status for one in found.followers.values()]
    following = found.following
    if following is not None:
        statuses.append(following.status)
    return Health(
        role=MASTER,
        position=LEADER,
        node=broker.node_id,
        status=max(statuses, default=Status.IN_SYNC).word,
        current_offset=found.end,
        replicas=[
            ReplicaOf(
                id=str(node),
                node=node,
                offset=one.offset,
                lag_entries=one.lag,
                lag_ms=one.lag_ms,
                status=one.status.word,
            )
            for node, one in sorted(found.followers.items())
        ],
        following=UNSET if following is None else following_of_masters(broker, following),
    )


def _as_replica(broker: Broker, found: Survey) -> Health:
    assert found.following is not None, "it follows something"
    mine = following_of_masters(broker, found.following)
    return Health(
        role=REPLICA,
        position=FOLLOWER,
        node=broker.node_id,
        status=mine.status,
        master_host=mine.master_host,
        master_id=mine.master_id,
        master_offset=mine.master_offset,
        local_offset=mine.local_offset,
        lag_entries=mine.lag_entries,
        lag_ms=mine.lag_ms,
        last_sync=mine.last_sync,
    )


def following_of_masters(broker: Broker, standing: Standing) -> Following:
    """What a replica says of itself; of several masters, the one that it stands worst to."""
    master = None if standing.node is None else broker.image.brokers.get(standing.node)
    assert standing.offset is not None, "a log has an end"
    return Following(
        master_host=None if master is None else master.peer.host,
        master_id=None if standing.node is None else str(standing.node),
        master_offset=standing.leader_offset,
        local_offset=standing.offset,
        lag_entries=standing.lag,
        lag_ms=standing.lag_ms,
        status=standing.status.word,
        last_sync=rfc3339(broker, standing.spoke_at),
    )


def _partition(one: PartitionStanding) -> PartitionHealth:
    return PartitionHealth(
        topic=one.name.topic,
        partition=one.name.partition,
        role=MASTER if one.leads else REPLICA,
        position=LEADER if one.leads else FOLLOWER,
        offset=one.offset,
        lag_entries=one.lag,
        lag_ms=one.lag_ms,
        status=one.status.word,
    )


OPERATIONS: Final = tagged(
    "health",
    Operation(
        "GET",
        "/health/replication",
        replication_health,
        "Report the state of replication, in the terms of a master and its replicas.",
        params=(
            Param(name="topic", doc="Only this topic; else all that the node holds."),
            Param(name="partition", kind=int, least=0, doc="Only this partition of it."),
        ),
        errors={404: "There is no such partition, or this node holds none of it."},
        needs=DESCRIBE_CLUSTER,
    ),
)
