"""Replicas that move, and elections: who holds what, and who of them leads.

Rule 1: a request says what it wants in one way: by hand, by a plan, or as it is best.
Rule 2: the cluster takes or refuses each partition for itself; the answer says which.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from tidelog.client import moves
from tidelog.client.admin import Election
from tidelog.client.elections import elect
from tidelog.client.moves import Targets
from tidelog.controller.moves import Layout
from tidelog.faces.http.admin.asking import (
    AFTER_PLACE,
    Natural,
    NodeNumber,
    PartitionNumber,
    Place,
    RefusedPlace,
    operator,
    page_places,
)
from tidelog.faces.http.admin.brokers import Planned, show_plan, thinking
from tidelog.faces.http.api import Call, Operation, Param
from tidelog.faces.http.paging import LIMIT
from tidelog.faces.http.problems import Problem
from tidelog.model import TopicPartition

TAG: Final = "moves"
Nodes: TypeAlias = Annotated[list[NodeNumber], msgspec.Meta(min_length=1)]
KINDS: Final = {"preferred": Election.PREFERRED, "unclean": Election.UNCLEAN}


# Elections.


class ElectionWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Who shall lead: the first replica, or with `unclean` anybody, whatever is lost."""

    type: Literal["preferred", "unclean"]
    topic: str | None = None
    partition: PartitionNumber | None = None


class Elected(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: int | None
    outcome: str
    """`elected`, `not needed` or `refused`."""
    error: str | None


class Elections(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[Elected]


async def elect_leaders(call: Call) -> Elections:
    wanted = call.body
    assert isinstance(wanted, ElectionWanted)
    if wanted.partition is not None and wanted.topic is None:
        raise Problem(400, "partition goes with topic; without both, all that need one are elected")
    numbers = None if wanted.partition is None else [wanted.partition]
    found = await elect(operator(call), KINDS[wanted.type], wanted.topic, numbers)
    return Elections(
        partitions=[
            Elected(
                topic=one.topic, partition=one.partition, leader=one.leader, outcome=one.outcome,
                error=one.error,
            )
            for one in found
        ]
    )  # fmt: skip


# Moves.


class MoveWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    replicas: Nodes
    log_dirs: list[str] | None = None
    """Taken for Kafka's sake, without effect: a broker has one directory."""


class MovesWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
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
    partition: PartitionNumber | None = None
    throttle_bytes_per_second: Natural | None = None
    """For what each broker sends; it stays until it is unset (`catchup.bytes.per.second`)."""
    dry_run: bool = False
    copies: int | None = None
    """Of a plan that a dry run has answered; it is not looked at."""
    refused: list[RefusedPlace] | None = None
    uncordoned: list[int] | None = None


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


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    cancelled: list[Place]
    refused: list[RefusedPlace]


async def list_moves(call: Call) -> MovesShown:
    client = operator(call)
    moving = await client.list_reassignments()
    known = await moves.known_partitions(client)
    targets = {name: move.target for name, move in moving.items()}
    progress = moves.progress(targets, known, len(moving))
    names, after = page_places(moving, call)
    return MovesShown(
        moving=progress.moving, in_sync=progress.in_sync, replicas=progress.replicas,
        partitions=[
            MovingShown(
                topic=one.topic, partition=one.partition, leader=one.leader,
                target=list(one.target), adding=list(one.adding), removing=list(one.removing),
                in_sync=one.in_sync,
            )
            for one in moves.moving_of({name: moving[name] for name in names}, known)
        ],
        next=after,
    )  # fmt: skip


async def begin_moves(call: Call) -> Planned:
    wanted = call.body
    assert isinstance(wanted, MovesWanted)
    plan = await moves.start(
        operator(call), _plan_of(wanted), drain=wanted.drain or (), dry_run=wanted.dry_run,
        throttle=wanted.throttle_bytes_per_second, think=thinking(call),
    )  # fmt: skip
    return show_plan(plan, dry_run=wanted.dry_run)


def _plan_of(wanted: MovesWanted) -> Callable[[Layout], Targets]:
    """How the plan is made; Problem if it is said too little or too much of it."""
    ways = (wanted.partitions, wanted.replicas, wanted.replication, wanted.drain)
    if sum(way is not None for way in ways) + wanted.balance != 1:
        raise Problem(
            400, "say what to do, once: partitions, replicas, replication, drain or balance"
        )
    is_of_topic = wanted.replicas is not None or wanted.replication is not None
    if is_of_topic != (wanted.topic is not None):
        raise Problem(400, "replicas and replication need a topic, and nothing else takes one")
    if wanted.partition is not None and wanted.replicas is None:
        raise Problem(400, "partition goes with replicas")
    if wanted.partitions is not None:
        planned: Targets = {
            TopicPartition(one.topic, one.partition): tuple(one.replicas)
            for one in wanted.partitions
        }
        return lambda layout: planned
    topics = [] if wanted.topic is None else [wanted.topic]
    if wanted.replicas is not None:
        numbers = None if wanted.partition is None else [wanted.partition]
        return partial(moves.by_hand, topics=topics, numbers=numbers, nodes=tuple(wanted.replicas))
    return partial(
        moves.best, drain=wanted.drain or (), topics=topics, replication=wanted.replication
    )


async def cancel_moves(call: Call) -> Cancelled:
    topic, number = call["topic"], call["partition"]
    if number is not None and topic is None:
        raise Problem(400, "partition goes with topic; without both, all moves are called off")
    names, refused = await moves.cancel(
        operator(call), None if topic is None else [topic], None if number is None else [number]
    )
    return Cancelled(
        cancelled=[
            Place(topic=name.topic, partition=name.partition)
            for name in names
            if name not in refused
        ],
        refused=[
            RefusedPlace(topic=name.topic, partition=name.partition, error=str(error))
            for name, error in refused.items()
        ],
    )


OPERATIONS: Final = (
    Operation(
        method="POST", path="/v1/elections", handler=elect_leaders, tag=TAG, body=ElectionWanted,
        answer=Elections,
        summary="Elect leaders: the first replicas, or anybody where nobody leads.",
        errors={404: "There is no such topic."},
    ),
    Operation(
        method="GET", path="/v1/reassignments", handler=list_moves, tag=TAG, answer=MovesShown,
        params=(LIMIT, AFTER_PLACE),
        summary="The partitions whose replicas move, and how far they are.",
    ),
    Operation(
        method="POST", path="/v1/reassignments", handler=begin_moves, tag=TAG, body=MovesWanted,
        answer=Planned,
        summary="Let other brokers hold partitions: by hand, by a plan, or as it is best.",
        errors={404: "There is no such topic or broker."},
    ),
    Operation(
        method="DELETE", path="/v1/reassignments", handler=cancel_moves, tag=TAG, answer=Cancelled,
        params=(
            Param(name="topic", doc="Only of this topic; else all that moves."),
            Param(name="partition", kind=int, least=0, doc="Only this partition of it."),
        ),
        summary="Let partitions be held by those of before they began to move.",
    ),
)  # fmt: skip
