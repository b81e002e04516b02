"""Replicas that move, and brokers that go for good: AlterPartitionReassignments and the like.

Rule 1: all partitions of a request are one decision; what is refused of it is told apart, and the
        rest is done.
Rule 2: an answer means that the move has begun. The active controller completes it.
Rule 3: where a commit's fate was lost, the decision may find its own change made; that is no
        error. Where none was lost, nothing of it was done: a move that has ended meanwhile, or that
        somebody else has cancelled, is not there to be cancelled.
Rule 4: the active controller decides, and refuses elsewhere: it alone has heard which replicas are
        damaged, so that what goes is on those that stay. Who asks another one, because it ceased to
        be the controller, may find the change made.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidelog.broker.broker import Broker
from tidelog.broker.electing import electorate_of, find_place, require_controller
from tidelog.controller import membership, reassignment
from tidelog.controller.image import ClusterImage, Place
from tidelog.controller.records import BrokerUnregistered, PartitionChanged
from tidelog.errors import BrokerError, BrokerIdNotRegistered, InvalidReplicationFactor, InvalidRequest
from tidelog.kafka.context import Request
from tidelog.model import NodeId, TopicPartition
from tidelog.security.permissions import Kind

Wanted: TypeAlias = Mapping[TopicPartition, Sequence[NodeId] | None]
"""Who shall hold each partition; None cancels the move that is under way."""


async def alter_partition_reassignments(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Begin, replace or cancel moves."""
    context.require(Kind.CLUSTER)
    wanted: dict[TopicPartition, Sequence[NodeId] | None] = {}
    twice: set[TopicPartition] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            name = TopicPartition(topic.name, asked.partition_index)
            if name in wanted:
                twice.add(name)
            wanted[name] = asked.replicas
    may_resize = getattr(request, "allow_replication_factor_change", True)
    once = {name: target for name, target in wanted.items() if name not in twice}
    fates = await alter(broker, once, may_resize=may_resize)
    for name in twice:
        fates[name] = InvalidRequest(f"{name} is named twice in this request")
    return {
        "error_message": None,
        "allow_replication_factor_change": may_resize,
        "responses": [
            {"name": topic, "partitions": [_fate(name, fates[name]) for name in names]}
            for topic, names in _by_topic(wanted).items()
        ],
    }


def _fate(name: TopicPartition, error: BrokerError | None) -> dict[str, Any]:
    return {
        "partition_index": name.partition,
        "error_code": 0 if error is None else error.code,
        "error_message": None if error is None else str(error),
    }


async def alter(
    broker: Broker, wanted: Wanted, *, may_resize: bool
) -> dict[TopicPartition, BrokerError | None]:
    """What became of each partition."""
    fates: dict[TopicPartition, BrokerError | None] = {}
    proposed: dict[TopicPartition, PartitionChanged] = {}
    """How moves were to be cancelled, by an earlier decision."""
    lost_before = broker.metadata.replies_lost

    def decide(image: ClusterImage) -> list[PartitionChanged]:
        require_controller(broker)
        fates.clear()
        electorate = electorate_of(broker, image)
        records = []
        for name, target in wanted.items():
            fates[name] = None
            try:
                place = find_place(image, name)
                if target is None:
                    is_lost = broker.metadata.replies_lost != lost_before
                    if not (is_lost and _is_done(place, proposed.get(name))):
                        proposed[name] = reassignment.cancel(place, electorate)
                        records.append(proposed[name])
                    continue
                if not may_resize:
                    _check_size(place, target)
                record = reassignment.begin(place, target, image, electorate)
                if record is not None:
                    records.append(record)
            except BrokerError as error:
                fates[name] = error
        return records

    require_controller(broker)
    await broker.metadata.change(decide)
    await broker.acted()
    return fates


def _is_done(place: Place, proposed: PartitionChanged | None) -> bool:
    """Whether it moves no more and is where the cancelled move was to leave it: not at its end."""
    if proposed is None or place.partition.is_moving or str(place.topic.id) != proposed.topic:
        return False
    return set(place.partition.replicas) == set(proposed.state.replicas)


def _check_size(place: Place, target: Sequence[NodeId]) -> None:
    if len(target) != place.partition.replication:
        raise InvalidReplicationFactor(
            f"{place.name} has {place.partition.replication} replicas, not {len(target)}, and the "
            "request does not allow their number to change"
        )


def list_partition_reassignments(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The partitions whose replicas move; of all, or of those that are named."""
    context.require(Kind.CLUSTER)
    moving = {place.name: place for place in broker.image.moving.values()}
    if request.topics is not None:
        asked = [
            TopicPartition(topic.name, number)
            for topic in request.topics
            for number in topic.partition_indexes
        ]
        moving = {name: moving[name] for name in asked if name in moving}
    return {
        "error_message": None,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": name.partition,
                        "replicas": moving[name].partition.replicas,
                        "adding_replicas": moving[name].partition.adding,
                        "removing_replicas": moving[name].partition.removing,
                    }
                    for name in names
                ],
            }
            for topic, names in _by_topic(moving).items()
        ],
    }


def _by_topic(names: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for name in sorted(names):
        found.setdefault(name.topic, []).append(name)
    return found


async def unregister_broker(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Forget a broker that is gone and holds nothing."""
    context.require(Kind.CLUSTER)
    await unregister(broker, request.broker_id)
    return {"error_message": None}


async def unregister(broker: Broker, node: NodeId) -> None:
    """Forget a broker that is gone and holds nothing; a refusal is raised."""
    was_there = False

    def decide(image: ClusterImage) -> list[BrokerUnregistered]:
        nonlocal was_there
        try:
            record = membership.unregister(image, node)
        except BrokerIdNotRegistered:
            if was_there:
                return []
            raise
        was_there = True
        return [record]

    await broker.metadata.change(decide)
