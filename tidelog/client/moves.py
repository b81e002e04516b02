"""Replicas that move: plans that are made and begun, how far they are, and how they are called off.

Plans are made here, from what the cluster says of itself (`controller.moves`); the cluster takes
them or refuses them, partition by partition.

Rule: a broker that is drained is cordoned once it is known that the others can take all it holds,
      and the plan is made anew then: whatever it got until there goes, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode

from tidelog.client.admin import ConfigChange, Reassignment, Resource
from tidelog.client.cluster import PartitionInfo, Refused
from tidelog.client.members import MembersClient
from tidelog.controller import moves
from tidelog.controller.moves import Layout
from tidelog.model import NodeId, TopicPartition

Targets: TypeAlias = dict[TopicPartition, tuple[NodeId, ...]]
Make: TypeAlias = Callable[[Layout], Targets]

CORDONED: Final = "cordoned.log.dirs"
THROTTLE: Final = "catchup.bytes.per.second"


# Planning.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who shall hold what, and what became of it."""

    layout: Layout
    targets: Targets
    refused: Mapping[TopicPartition, Refused]
    uncordoned: Sequence[NodeId] = field(default=())
    """Brokers that are drained, but do not run, and so cannot be cordoned."""

    @property
    def begun(self) -> Targets:
        """What was not refused."""
        return {name: to for name, to in self.targets.items() if name not in self.refused}

    def copies(self) -> dict[TopicPartition, int]:
        """How many replicas of each partition must be copied."""
        return {
            name: len(set(target).difference(self.layout.replicas.get(name, ())))
            for name, target in self.targets.items()
        }


async def _at_once(make: Make, layout: Layout) -> Targets:
    return make(layout)


async def start(
    client: MembersClient,
    make: Make,
    *,
    drain: Sequence[NodeId] = (),
    throttle: int | None = None,
    dry_run: bool,
    think: Callable[[Make, Layout], Awaitable[Targets]] = _at_once,
) -> Plan:
    """Make a plan and begin it, unless that is a dry run.

    `think` runs `make`, which takes its time where there are many partitions.
    """
    layout = await read_layout(client, without=drain)
    targets = await think(make, layout)
    if dry_run:
        return Plan(layout=layout, targets=targets, refused={})
    uncordoned: list[NodeId] = []
    if drain:
        uncordoned = [node for node in drain if not await cordon(client, node, is_cordoned=True)]
        layout = await read_layout(client, without=drain)
        targets = await think(make, layout)
    if throttle is not None:
        await set_throttle(client, throttle)
    refused = await client.alter_reassignments(targets)
    return Plan(layout=layout, targets=targets, refused=refused, uncordoned=uncordoned)


def best(
    layout: Layout,
    *,
    drain: Sequence[NodeId] = (),
    topics: Sequence[str] = (),
    replication: int | None = None,
) -> Targets:
    """All off some brokers, so many replicas of some topics, or else as even as can be."""
    if drain:
        return moves.drain(layout, drain)
    if replication is None:
        return moves.balance(layout)
    found: Targets = {}
    for topic in topics:
        found |= moves.change_replication(layout, topic, replication)
    return found


def by_hand(
    layout: Layout,
    topics: Sequence[str],
    numbers: Sequence[int] | None,
    nodes: tuple[NodeId, ...],
) -> Targets:
    """These brokers, for some partitions or all of the topics."""
    found: Targets = {}
    for topic in topics:
        all_of_it = [name.partition for name in layout.replicas if name.topic == topic]
        if not all_of_it:
            raise Refused(
                ErrorCode.unknown_topic_or_partition, f"topic {topic!r}",
                "it does not exist; see `tidelog topics list`",
            )  # fmt: skip
        for number in all_of_it if numbers is None else numbers:
            found[TopicPartition(topic, number)] = nodes
    return found


async def read_layout(client: MembersClient, *, without: Sequence[NodeId] = ()) -> Layout:
    """The cluster, as a plan needs it; `without` are not asked whether they are cordoned."""
    brokers, topics = await client.brokers(), await client.topics()
    moving = await client.list_reassignments()
    there = [node for node, broker in brokers.items() if not broker.fenced and node not in without]
    configs = await asyncio.gather(
        *(client.describe_configs(Resource.BROKER, str(node)) for node in there)
    )
    cordoned = {
        node
        for node, values in zip(there, configs, strict=True)
        if any(one.name == CORDONED and one.value for one in values)
    }
    known = {
        TopicPartition(topic.name, one.partition): one
        for topic in topics
        for one in topic.partitions
    }
    return Layout(
        racks={node: broker.rack for node, broker in brokers.items()},
        open=frozenset(there) - cordoned,
        replicas={
            name: moving[name].target if name in moving else one.replicas
            for name, one in known.items()
        },
        in_sync={name: frozenset(one.in_sync) for name, one in known.items()},
    )


async def cordon(client: MembersClient, node: NodeId, *, is_cordoned: bool) -> bool:
    """Let a broker get no more replicas, or some again; False if it does not run to hear it."""
    broker = (await client.brokers()).get(node)
    if broker is None:
        raise Refused(
            ErrorCode.broker_id_not_registered, f"broker {node}",
            "there is none of that id; see `tidelog brokers list`",
        )  # fmt: skip
    if broker.fenced:
        return False
    change = ConfigChange(name=CORDONED, value="*" if is_cordoned else None)
    await client.alter_configs(Resource.BROKER, str(node), [change])
    return True


async def set_throttle(client: MembersClient, bytes_per_second: int) -> None:
    """The limit of all brokers; 0 takes it away."""
    value = str(bytes_per_second) if bytes_per_second else None
    await client.alter_configs(Resource.BROKER, "", [ConfigChange(name=THROTTLE, value=value)])


# Watching.


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far moves are."""

    in_sync: int
    """Replicas of the targets that are in sync, of so many."""
    replicas: int
    moving: int
    """Partitions that are not there yet."""

    def __str__(self) -> str:
        return (
            f"{self.in_sync} of {self.replicas} replicas are in sync, "
            f"{self.moving} partitions are moving"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """One partition whose replicas move."""

    topic: str
    partition: int
    leader: NodeId | None
    target: tuple[NodeId, ...]
    adding: tuple[NodeId, ...]
    removing: tuple[NodeId, ...]
    in_sync: int
    """Of the target."""


async def known_partitions(client: MembersClient) -> dict[TopicPartition, PartitionInfo]:
    """Every partition, asked anew."""
    return {
        TopicPartition(topic.name, one.partition): one
        for topic in await client.topics()
        for one in topic.partitions
    }


def progress(
    targets: Mapping[TopicPartition, Sequence[NodeId]],
    known: Mapping[TopicPartition, PartitionInfo],
    moving: int,
) -> Progress:
    return Progress(
        in_sync=sum(
            len(set(target).intersection(known[name].in_sync))
            for name, target in targets.items()
            if name in known
        ),
        replicas=sum(map(len, targets.values())),
        moving=moving,
    )


def moving_of(
    moving: Mapping[TopicPartition, Reassignment], known: Mapping[TopicPartition, PartitionInfo]
) -> list[Moving]:
    """Every partition whose replicas move, by name."""
    found = []
    for name, move in sorted(moving.items()):
        one = known.get(name)
        found.append(
            Moving(
                topic=name.topic, partition=name.partition,
                leader=None if one is None else one.leader, target=move.target,
                adding=move.adding, removing=move.removing,
                in_sync=0 if one is None else len(set(move.target).intersection(one.in_sync)),
            )
        )  # fmt: skip
    return found


# Calling it off.


async def cancel(
    client: MembersClient, topics: Collection[str] | None, numbers: Collection[int] | None
) -> tuple[list[TopicPartition], dict[TopicPartition, Refused]]:
    """Let these partitions, or all that move, be held by those of before; what was refused."""
    moving = await client.list_reassignments()
    names = sorted(
        name
        for name in moving
        if (topics is None or name.topic in topics) and (not numbers or name.partition in numbers)
    )
    return names, await client.alter_reassignments(dict.fromkeys(names))
