"""Replicas that move: plans that are made and begun, how far they are, and how they are called off.

Rule 1: a request says what it wants in one way: by hand, by a plan, or as it is best.
Rule 2: the cluster takes or refuses each partition for itself; the answer says which.
Rule 3: a broker that is drained is cordoned once it is known that the others can take all it holds,
        and the plan is made anew then: whatever it got until there goes, too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tidelog.controller import moves
from tidelog.controller.image import Place as KnownPlace
from tidelog.controller.moves import Layout
from tidelog.errors import (
    BrokerError,
    BrokerIdNotRegistered,
    InvalidRequest,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.kafka import reassignments
from tidelog.model import NodeId, TopicPartition
from tidelog.operators.configs import ALL_BROKERS, ChangeBrokerConfigs
from tidelog.operators.values import (
    LIMIT,
    AfterPlace,
    Limit,
    Natural,
    NodeNumber,
    Nodes,
    PartitionNumber,
    Partitions,
    Place,
    RefusedPlace,
    page_places,
    place_of,
    refused,
)
from tidelog.operators.verbs import ALTER_CLUSTER, DESCRIBE_CLUSTER, Http, Verb, at_controller

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

Targets: TypeAlias = dict[TopicPartition, tuple[NodeId, ...]]
Fates: TypeAlias = dict[TopicPartition, BrokerError]

CORDONED: Final = "cordoned.log.dirs"
THROTTLE: Final = "catchup.bytes.per.second"
REASSIGNED_AT_ONCE: Final = 500
"""Partitions in one decision."""


class MoveWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    replicas: Nodes
    log_dirs: list[str] | None = None
    """Taken for Kafka's sake, without effect: a broker has one directory."""


class MovesWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Exactly one of `partitions`, `replicas`, `replication`, `drain` and `balance`."""

    version: Literal[1] = 1
    partitions: list[MoveWanted] | None = None
    """A plan: of Kafka's form, or what a dry run has answered."""
    replicas: Nodes | None = None
    """These brokers, for `topic`; the preferred leader first."""
    replication: NodeNumber | None = None
    """So many replicas of each partition of `topic`."""
    drain: Nodes | None = None
    """All off these brokers."""
    balance: bool = False
    """As many replicas and leads on every broker."""
    topic: str | None = None
    topics: Annotated[list[str], Meta(min_length=1)] | None = None
    """Several, instead of one."""
    partition: PartitionNumber | None = None
    numbers: Partitions | None = None
    """Several partitions, instead of one."""
    throttle_bytes_per_second: Natural | None = None
    """For what each broker sends; it stays until it is unset (`catchup.bytes.per.second`)."""
    dry_run: bool = False
    copies: int | None = None
    """Of a plan that a dry run has answered; it is not looked at."""
    refused: list[RefusedPlace] | None = None
    uncordoned: list[int] | None = None


class PlannedPlace(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: list[int]
    """Who shall hold it, the preferred leader first."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Replicas that move, or would; a plan that `POST /v1/reassignments` takes."""

    partitions: list[PlannedPlace]
    copies: int
    """Replicas that must be copied."""
    dry_run: bool
    refused: list[RefusedPlace]
    uncordoned: list[int] = []
    """Brokers that are drained and do not run, so that they cannot be told."""


class ListMoves(msgspec.Struct, frozen=True, kw_only=True):
    limit: Limit = LIMIT
    after: AfterPlace = None


class MovingShown(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: int | None
    target: list[int]
    adding: list[int]
    removing: list[int]
    in_sync: int
    """How many of the target are."""


class MovesShown(msgspec.Struct, frozen=True, kw_only=True):
    moving: int
    """Partitions that are not there yet, on this page or not."""
    in_sync: int
    """Replicas of all their targets that are in sync, of so many."""
    replicas: int
    partitions: list[MovingShown]
    next: str | None


class CancelMoves(msgspec.Struct, frozen=True, kw_only=True):
    topic: Annotated[str | None, Meta(description="Only of this topic; else all that moves.")] = None
    partition: Annotated[PartitionNumber | None, Meta(description="Only this partition of it.")] = None


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    cancelled: list[Place]
    refused: list[RefusedPlace]


# Looking.


async def list_moves(desk: "Desk", asked: ListMoves) -> MovesShown:
    moving = {place.name: place for place in desk.broker.image.moving.values()}
    names, after = page_places(moving, limit=asked.limit, after=asked.after)
    return MovesShown(
        moving=len(moving),
        in_sync=sum(map(_in_sync, moving.values())),
        replicas=sum(len(place.partition.target) for place in moving.values()),
        partitions=[_show(moving[name]) for name in names],
        next=after,
    )


def _in_sync(place: KnownPlace) -> int:
    return len(set(place.partition.target).intersection(place.partition.in_sync))


def _show(place: KnownPlace) -> MovingShown:
    partition = place.partition
    return MovingShown(
        topic=place.topic.name,
        partition=place.number,
        leader=partition.leader,
        target=list(partition.target),
        adding=list(partition.adding),
        removing=list(partition.removing),
        in_sync=_in_sync(place),
    )


# Beginning.


async def begin_moves(desk: "Desk", asked: MovesWanted) -> Planned:
    return await start(
        desk,
        _plan_of(asked),
        drain=asked.drain or (),
        dry_run=asked.dry_run,
        throttle=asked.throttle_bytes_per_second,
    )


def _plan_of(asked: MovesWanted) -> Callable[[Layout], Targets]:
    """How the plan is made; InvalidRequest if it is said too little or too much of it."""
    ways = (asked.partitions, asked.replicas, asked.replication, asked.drain)
    if sum(way is not None for way in ways) + asked.balance != 1:
        raise InvalidRequest("say what to do, once: partitions, replicas, replication, drain or balance")
    topics = [] if asked.topic is None else [asked.topic]
    topics += asked.topics or ()
    numbers = [] if asked.partition is None else [asked.partition]
    numbers += asked.numbers or ()
    if (asked.replicas is not None or asked.replication is not None) != bool(topics):
        raise InvalidRequest("replicas and replication need a topic, and nothing else takes one")
    if numbers and asked.replicas is None:
        raise InvalidRequest("partition goes with replicas")
    if asked.partitions is not None:
        planned = {TopicPartition(one.topic, one.partition): tuple(one.replicas) for one in asked.partitions}
        return lambda layout: planned
    if asked.replicas is not None:
        return partial(by_hand, topics=topics, numbers=numbers, nodes=tuple(asked.replicas))
    if asked.drain is not None:
        return partial(moves.drain, nodes=asked.drain)
    if asked.replication is None:
        return moves.balance
    return partial(_with_replication, topics=topics, replication=asked.replication)


def _with_replication(layout: Layout, topics: Sequence[str], replication: int) -> Targets:
    found: Targets = {}
    for topic in topics:
        found |= moves.change_replication(layout, topic, replication)
    return found


def by_hand(
    layout: Layout, topics: Sequence[str], numbers: Sequence[int], nodes: tuple[NodeId, ...]
) -> Targets:
    """These brokers, for some partitions or all of the topics."""
    found: Targets = {}
    for topic in topics:
        all_of_it = [name.partition for name in layout.replicas if name.topic == topic]
        if not all_of_it:
            raise error_of(
                UnknownTopicOrPartition.code, f"topic {topic!r}: it does not exist; see `tidelog topics list`"
            )
        for number in numbers or all_of_it:
            found[TopicPartition(topic, number)] = nodes
    return found


async def start(
    desk: "Desk",
    make: Callable[[Layout], Targets],
    *,
    drain: Sequence[NodeId] = (),
    throttle: int | None = None,
    dry_run: bool,
) -> Planned:
    """Make a plan and begin it, unless that is a dry run.

    `make` runs in a thread: with very many partitions it takes longer than others wait.
    """
    broker, offload = desk.broker, desk.broker.host.offload
    layout = Layout.of(broker.image)
    targets = await offload.run(partial(make, layout))
    fates: Fates = {}
    uncordoned: list[NodeId] = []
    if not dry_run:
        if drain:
            uncordoned = [node for node in drain if not await cordon(desk, node, is_cordoned=True)]
            layout = Layout.of(broker.image)
            targets = await offload.run(partial(make, layout))
        if throttle is not None:
            await change_settings(desk, ALL_BROKERS, {THROTTLE: throttle or None})
        fates = await _alter(desk, targets)
    return Planned(
        partitions=[
            PlannedPlace(topic=name.topic, partition=name.partition, replicas=list(target))
            for name, target in sorted(targets.items())
        ],
        copies=sum(len(set(to).difference(layout.replicas.get(name, ()))) for name, to in targets.items()),
        dry_run=dry_run,
        refused=[refused(name, error) for name, error in fates.items()],
        uncordoned=uncordoned,
    )


async def _alter(desk: "Desk", targets: reassignments.Wanted) -> Fates:
    """Let these nodes hold each partition, or with None cancel its move; what was refused."""
    names = sorted(targets)
    fates: Fates = {}
    for first in range(0, len(names), REASSIGNED_AT_ONCE):
        some = {name: targets[name] for name in names[first : first + REASSIGNED_AT_ONCE]}
        found = await reassignments.alter(desk.broker, some, may_resize=True)
        fates |= {name: error for name, error in found.items() if error is not None}
    return fates


async def cordon(desk: "Desk", node: NodeId, *, is_cordoned: bool) -> bool:
    """Let a broker get no more replicas, or some again; False if it does not run to hear it."""
    known = desk.broker.image.brokers.get(node)
    if known is None:
        raise BrokerIdNotRegistered(node)
    if known.fenced:
        return False
    await change_settings(desk, str(node), {CORDONED: "*" if is_cordoned else None})
    return True


async def change_settings(desk: "Desk", broker: str, settings: dict[str, str | int | None]) -> None:
    """Change settings of a broker, at that broker."""
    await desk.ask("configs.change_broker", ChangeBrokerConfigs(broker=broker, settings={**settings}))


# Calling it off.


async def cancel_moves(desk: "Desk", asked: CancelMoves) -> Cancelled:
    if asked.partition is not None and asked.topic is None:
        raise InvalidRequest("partition goes with topic; without both, all moves are called off")
    names = sorted(
        name
        for name in (place.name for place in desk.broker.image.moving.values())
        if asked.topic in (None, name.topic) and asked.partition in (None, name.partition)
    )
    fates = await _alter(desk, dict.fromkeys(names))
    return Cancelled(
        cancelled=[place_of(name) for name in names if name not in fates],
        refused=[refused(name, error) for name, error in fates.items()],
    )


_PATH: Final = "/v1/reassignments"

VERBS: Final = (
    Verb(
        name="moves.list",
        do=list_moves,
        permission=DESCRIBE_CLUSTER,
        summary="List the partitions whose replicas move, and their progress.",
        http=Http("GET", _PATH),
    ),
    Verb(
        name="moves.begin",
        do=begin_moves,
        where=at_controller,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Move replicas to other brokers: by hand, by a plan, or balanced.",
        http=Http("POST", _PATH, errors={404: "There is no such topic or broker."}),
    ),
    Verb(
        name="moves.cancel",
        do=cancel_moves,
        where=at_controller,
        permission=ALTER_CLUSTER,
        summary="Cancel moves: partitions go back to their former replicas.",
        http=Http("DELETE", _PATH),
    ),
)
