"""`GET /v1/cluster`: brokers, quorum, and every partition, as this node knows them.

Rule 1: it is built and encoded in slices, and others run in between: with ten thousand partitions
        the loop is kept for less than a millisecond at a time. So it is no snapshot: each partition
        is as it was at its own moment of the answer.
Rule 2: one is built at a time. Whoever asks meanwhile shares the next one, which begins after all
        of them have asked: an answer never tells of a moment before its question.
Rule 3: what is not known is null, never a guess. A node knows its own replicas exactly; of others
        a voter knows what they said in their last heartbeat, and an observer nothing.
"""

import asyncio
from typing import Any, Final

import msgspec

from tidelog.broker.broker import Broker
from tidelog.controller.image import PartitionImage, TopicImage
from tidelog.faces.http.api import JSON, Call, Operation, Param, tagged
from tidelog.faces.http.edge.messages import Response
from tidelog.faces.http.permissions import DESCRIBE_CLUSTER
from tidelog.model import NO_NODE, NodeId, Offset
from tidelog.operators.brokers import brokers_of

SLICE: Final = 100
"""Partitions between two breaths: a third of a millisecond."""

_encode: Final = msgspec.json.Encoder().encode


def wanted_topics(call: Call) -> frozenset[str] | None:
    """The topics that `?topics=a,b` names; None for all."""
    named: str | None = call["topics"]
    return None if named is None else frozenset(filter(None, named.split(",")))


async def get_cluster(call: Call) -> Response:
    view = call.keep(ClusterView)
    return Response(await view.get(wanted_topics(call)), media_type=JSON)


TOPICS: Final = Param(name="topics", doc="Names between commas; empty for none. All by default.")

OPERATIONS: Final = tagged(
    "cluster",
    Operation(
        "GET",
        "/v1/cluster",
        get_cluster,
        "Describe brokers, quorum and every partition, as this node knows them.",
        params=(TOPICS,),
        needs=DESCRIBE_CLUSTER,
    ),
)


class ClusterView:
    """The document, shared between those who ask at the same time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._building = asyncio.Lock()
        self._next: dict[frozenset[str] | None, asyncio.Task[bytes]] = {}

    async def get(self, topics: frozenset[str] | None = None) -> bytes:
        """The document as JSON, with all topics or some."""
        build = self._next.get(topics)
        if build is None:
            build = asyncio.get_running_loop().create_task(self._build(topics))
            self._next[topics] = build
        return await asyncio.shield(build)  # others wait for it, too

    async def _build(self, topics: frozenset[str] | None) -> bytes:
        async with self._building:
            del self._next[topics]
            return await _document(self._broker, topics)


async def _document(broker: Broker, wanted: frozenset[str] | None) -> bytes:
    leader = broker.member.quorum.raft.leader
    head = {
        "brokers": brokers_of(broker),
        "controller": leader,
        "quorum": _quorum(broker),
        "peers": _peers(broker),
    }
    parts = [_encode(head)[:-1], b',"topics":[']
    in_slice = 0
    comma = b""
    for topic in list(broker.image.topics.values()):
        if wanted is not None and topic.name not in wanted:
            continue
        parts += [comma, b'{"name":', _encode(topic.name), b',"partitions":[']
        comma = b","
        count = len(topic.partitions)
        first = 0
        while first < count:
            end = min(first + SLICE - in_slice, count)
            described = [_partition(broker, topic, number) for number in range(first, end)]
            parts += [b"," if first else b"", _encode(described)[1:-1]]
            in_slice += end - first
            first = end
            if in_slice >= SLICE:
                in_slice = 0
                await asyncio.sleep(0)
        parts.append(b"]}")
    parts.append(b"]}")
    return b"".join(parts)


def _peers(broker: Broker) -> list[dict[str, Any]]:
    """This node's ways to the others, and what failed on them."""
    now = broker.host.clock.monotonic()
    failures = broker.replication.fetching.failures()
    return [
        {
            "id": node,
            "state": status.state.value,
            "state_ms": round((now - status.since) * 1000),
            "attempts": status.attempts,
            "failures": status.failures,
            "times_opened": status.times_opened,
            "connections_lost": status.connections_lost,
            "requests_failed": status.requests_failed,
            "replication_failures": failures.get(node, 0),
            "last_error": status.last_error,
        }
        for node, status in broker.member.hub.peers().items()
    ]


def _quorum(broker: Broker) -> dict[str, Any]:
    """Only the leader knows how far the others are; elsewhere their ends are null."""
    raft, clock = broker.member.quorum.raft, broker.host.clock
    now = clock.monotonic()
    known = {copy.key: copy for copy in raft.replicas(now)}
    end = max((copy.synced_end for copy in known.values()), default=0)

    def described(node: NodeId, peer: str | None, key: object) -> dict[str, Any]:
        copy = known.get(key)  # type: ignore[call-overload]
        is_leader = node == raft.leader
        fetched = None if copy is None or is_leader else copy.fetched_at
        return {
            "id": node,
            "peer": peer,
            "end": None if copy is None else copy.synced_end,
            "lag": None if copy is None else max(end - copy.synced_end, 0),
            "fetched_ms_ago": None if fetched is None else round((now - fetched) * 1000),
        }

    voters = [described(v.key.id, f"{v.host}:{v.port}", v.key) for v in raft.voters]
    observers = [described(k.id, None, k) for k, copy in known.items() if not copy.votes]
    return {
        "leader": raft.leader,
        "epoch": raft.epoch,
        "high_watermark": raft.high_watermark,
        "voters": voters,
        "observers": observers if known else None,
    }


def _partition(broker: Broker, topic: TopicImage, number: int) -> dict[str, Any]:
    partition = topic.partitions[number]
    ends, watermarks = _known(broker, topic, number, partition)
    leader = partition.leader
    return {
        "partition": number,
        "leader": None if leader == NO_NODE else leader,
        "epoch": partition.epoch,
        "replicas": partition.replicas,
        "in_sync": sorted(partition.in_sync),
        "eligible": sorted(partition.eligible),
        "adding": partition.adding,
        "removing": partition.removing,
        # The leader's word counts; without it, that of the replica here.
        "high_watermark": watermarks.get(leader, watermarks.get(broker.node_id)),
        "ends": ends,
    }


def _known(
    broker: Broker, topic: TopicImage, number: int, partition: PartitionImage
) -> tuple[dict[str, Offset | None], dict[NodeId, Offset]]:
    """What is known of each replica: its end, and its high watermark."""
    reports = broker.controller.controller.reports
    ends: dict[str, Offset | None] = {}
    watermarks: dict[NodeId, Offset] = {}
    for node in partition.replicas:
        end: Offset | None = None
        if node == broker.node_id:
            replica = broker.replicas.get(topic.id, number)
            if replica is not None:
                end, watermarks[node] = replica.log.end, replica.high_watermark
        elif (report := reports.get(node, partition.cluster_id)) is not None:
            end, watermarks[node] = report.end, report.watermark
        ends[str(node)] = end
    return ends, watermarks
