"""What operators ask of a node: its directories, producers, partitions, elections and quorum.

Rule 1: the answers are true, and are not made up.
Rule 2: elections are the active controller's to decide, and are refused elsewhere: it alone has
        heard for sure how far the replicas go, and which are damaged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from tidelog.broker.broker import Broker
from tidelog.broker.electing import electorate_of, find_place, require_controller
from tidelog.controller import elections
from tidelog.controller.decisions import find_topic
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import PartitionChanged
from tidelog.errors import (
    BrokerError,
    ElectionNotNeeded,
    InconsistentClusterId,
    InvalidRequest,
    NotLeader,
    UnknownTopicOrPartition,
)
from tidelog.kafka.context import Request
from tidelog.kafka.described_topics import describe_partition
from tidelog.log.directory import decode_id, encode_id
from tidelog.model import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    NO_NODE,
    NO_TIMESTAMP,
    NodeId,
    Offset,
    TopicPartition,
)
from tidelog.security.permissions import Kind
from tidelog.security.refusals import ClusterAuthorizationFailed

PREFERRED: Final = 0
UNCLEAN: Final = 1
PARTITIONS_PER_ANSWER_MAX: Final = 2000
_TOPICS_AT_ONCE: Final = 100


async def describe_log_dirs(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The data directory, its partitions' sizes and what room is left."""
    if not context.may(Kind.CLUSTER):
        return {"error_code": ClusterAuthorizationFailed.code, "results": ()}
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(t.topic, number) for t in request.topics for number in t.partitions}
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in broker.partitions():
        name = partition.name
        if wanted is None or (name.topic, name.partition) in wanted:
            topics.setdefault(name.topic, []).append(
                {
                    "partition_index": name.partition,
                    "partition_size": partition.log.size,
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
    disk, root = broker.host.disk, broker.root
    usable, total = await broker.host.offload.run(lambda: (disk.free_bytes(root), disk.total_bytes(root)))
    return {
        "results": [
            {
                "log_dir": str(root),
                "topics": [{"name": n, "partitions": parts} for n, parts in topics.items()],
                "total_bytes": total,
                "usable_bytes": usable,
            }
        ]
    }


def describe_producers(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The idempotent producers that a partition remembers."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers_of(broker, context, topic.name, number) for number in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


def _producers_of(broker: Broker, context: Request, topic: str, number: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"partition_index": number, "error_message": None}
    try:
        context.require(Kind.TOPIC, topic)
        partition = broker.partition(topic, number)
        partition.leading()
    except BrokerError as error:
        return answer | {"error_code": error.code, "error_message": str(error)}
    return answer | {
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.last_sequence,
                "last_timestamp": state.last_timestamp_ms,
                "coordinator_epoch": state.coordinator_epoch,
                "current_txn_start_offset": state.transaction_start,
            }
            for producer_id, state in partition.log.producers.items()
        ]
    }


async def describe_topic_partitions(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Topics and their partitions, a page at a time, in the order of names."""
    asked = {topic.name for topic in request.topics}
    names = sorted(asked or broker.image.topics)
    cursor = request.cursor
    left = min(max(request.response_partition_limit, 1), PARTITIONS_PER_ANSWER_MAX)
    topics: list[dict[str, Any]] = []
    for count, name in enumerate(names, 1):
        if count % _TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
        is_hidden = not asked and not context.may(Kind.TOPIC, name)
        if is_hidden or (cursor is not None and name < cursor.topic_name):
            continue
        first = cursor.partition_index if cursor and name == cursor.topic_name else 0
        if left == 0:
            return {"topics": topics, "next_cursor": _cursor(name, first)}
        try:
            context.require(Kind.TOPIC, name)
            topic = find_topic(broker.image, name)
        except BrokerError as error:
            topics.append({"error_code": error.code, "name": name, "topic_id": None})
            continue
        first = min(max(first, 0), len(topic.partitions))  # a cursor is the client's word
        last = min(first + left, len(topic.partitions))
        topics.append(
            {
                "name": name,
                "topic_id": topic.id,
                "is_internal": name in INTERNAL_TOPICS,
                "partitions": [_describe_whole(broker.image, topic, number) for number in range(first, last)],
                "topic_authorized_operations": context.operations(Kind.TOPIC, name),
            }
        )
        left -= last - first
        if last < len(topic.partitions):
            return {"topics": topics, "next_cursor": _cursor(name, last)}
    return {"topics": topics, "next_cursor": None}


def _describe_whole(image: ClusterImage, topic: TopicImage, number: int) -> dict[str, Any]:
    """A partition with who else may lead it, and whose disks went with the last in sync.

    Never null, which the schema allows and Kafka's own client does not.
    """
    partition = topic.partitions[number]
    return {
        **describe_partition(partition, number, list(filter(image.is_alive, partition.replicas))),
        "eligible_leader_replicas": sorted(partition.eligible),
        "last_known_elr": [key.id for key in partition.lost],
    }


def _cursor(name: str, number: int) -> dict[str, Any]:
    return {"topic_name": name, "partition_index": number}


async def elect_leaders(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Let first replicas lead, or anybody where nobody does; of all partitions, or of some."""
    context.require(Kind.CLUSTER)
    kind = getattr(request, "election_type", PREFERRED)
    if kind not in (PREFERRED, UNCLEAN):
        raise InvalidRequest(f"there is no election of type {kind}")
    asked: dict[TopicPartition, None] | None = None
    if request.topic_partitions is not None:
        asked = {
            TopicPartition(topic.topic, number): None
            for topic in request.topic_partitions
            for number in topic.partitions
        }
    fates = await elect(broker, asked, is_unclean=kind == UNCLEAN)
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, error in fates.items():
        topics.setdefault(name.topic, []).append(
            {
                "partition_id": name.partition,
                "error_code": 0 if error is None else error.code,
                "error_message": None if error is None else str(error),
            }
        )
    return {
        "replica_election_results": [
            {"topic": topic, "partition_result": results} for topic, results in topics.items()
        ]
    }


async def elect(
    broker: Broker, asked: Collection[TopicPartition] | None, *, is_unclean: bool
) -> dict[TopicPartition, BrokerError | None]:
    """What became of each partition; of all, where none are named, only those that needed it."""
    fates: dict[TopicPartition, BrokerError | None] = {}
    elected: set[TopicPartition] = set()
    choose = elections.elect_unclean if is_unclean else elections.elect_preferred

    def decide(image: ClusterImage) -> list[PartitionChanged]:
        require_controller(broker)
        fates.clear()
        electorate = electorate_of(broker, image)
        records = []
        for name in _those_in_need(image, is_unclean) if asked is None else asked:
            try:
                place = find_place(image, name)
                records.append(choose(place, electorate))
                elected.add(name)
                fates[name] = None
            except ElectionNotNeeded as error:
                # If the reply to an earlier attempt was lost, its own outcome is seen here.
                fates[name] = None if name in elected else error
            except BrokerError as error:
                fates[name] = error
        return records

    require_controller(broker)
    await broker.metadata.change(decide)
    await broker.acted()
    return fates


def _those_in_need(image: ClusterImage, is_unclean: bool) -> list[TopicPartition]:
    places = image.led.get(NO_NODE, {}) if is_unclean else image.strayed
    return [place.name for place in places.values()]


def describe_quorum(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The voters and observers of the metadata log, as its leader sees them."""
    context.require(Kind.CLUSTER)
    described = _describe_quorum(broker)
    return {
        "error_message": None,
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    _quorum_of(topic.topic_name, p.partition_index)
                    or {"partition_index": p.partition_index, **described}
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "nodes": [
            {"node_id": voter.key.id, "listeners": [{"name": "PEER", "host": voter.host, "port": voter.port}]}
            for voter in broker.member.quorum.raft.voters
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """One copy of the metadata log, as the quorum's leader sees it."""

    node: NodeId
    directory: str
    votes: bool
    end: Offset
    fetched_ms: int | None
    caught_up_ms: int | None


def quorum_replicas(broker: Broker) -> list[QuorumReplica]:
    """The copies of the metadata log; only the quorum's leader knows of those of others."""
    raft, clock = broker.member.quorum.raft, broker.host.clock
    now, now_ms = clock.monotonic(), clock.wall_ms()

    def wall(moment: float | None) -> int | None:
        return None if moment is None else round(now_ms - (now - moment) * 1000)

    return [
        QuorumReplica(
            node=known.key.id,
            directory=known.key.directory,
            votes=known.votes,
            end=known.synced_end,
            fetched_ms=wall(known.fetched_at),
            caught_up_ms=wall(known.caught_up_at),
        )
        for known in raft.replicas(now)
    ]


def _describe_quorum(broker: Broker) -> dict[str, Any]:
    raft = broker.member.quorum.raft
    replicas = [
        (
            known.votes,
            {
                "replica_id": known.node,
                "replica_directory_id": decode_id(known.directory),
                "log_end_offset": known.end,
                "last_fetch_timestamp": _timestamp(known.fetched_ms),
                "last_caught_up_timestamp": _timestamp(known.caught_up_ms),
            },
        )
        for known in quorum_replicas(broker)
    ]
    is_led_here = raft.is_leader
    return {
        "error_code": 0 if is_led_here else NotLeader.code,
        "error_message": None if is_led_here else f"the quorum's leader is {raft.leader}",
        "leader_id": NO_NODE if raft.leader is None else raft.leader,
        "leader_epoch": raft.epoch,
        "high_watermark": raft.high_watermark,
        "current_voters": [described for votes, described in replicas if votes],
        "observers": [described for votes, described in replicas if not votes],
    }


def _timestamp(milliseconds: int | None) -> int:
    return NO_TIMESTAMP if milliseconds is None else milliseconds


async def add_raft_voter(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Let a broker that follows vote. Without a directory's id, with the one that it has."""
    context.require(Kind.CLUSTER)
    return await _change_voters(broker, request, broker.electorate.add)


async def remove_raft_voter(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Let a voter be one no longer."""
    context.require(Kind.CLUSTER)
    return await _change_voters(broker, request, broker.electorate.remove)


async def _change_voters(
    broker: Broker, request: Any, change: Callable[[NodeId, str | None], Awaitable[None]]
) -> dict[str, Any]:
    directory = request.voter_directory_id
    try:
        if request.cluster_id not in (None, broker.identity.cluster_id):
            raise InconsistentClusterId(f"this is the cluster {broker.identity.cluster_id}")
        await change(request.voter_id, encode_id(directory) if directory else None)
    except BrokerError as error:
        return {"error_code": error.code, "error_message": str(error)}
    return {"error_message": None}


def _quorum_of(topic: str, number: int) -> dict[str, Any] | None:
    """The refusal for a partition that has no quorum; None for the one that has."""
    if topic == METADATA_TOPIC and number == 0:
        return None
    error = UnknownTopicOrPartition(f"{topic}-{number}")
    return {
        "partition_index": number,
        "error_code": error.code,
        "error_message": "only the metadata partition has a quorum",
    }
