"""Operators who decide who leads, while everything else happens.

| kind              | what is asked for                                                          |
|-------------------|----------------------------------------------------------------------------|
| `promote`         | that a replica leads a partition, if nothing is lost by that               |
| `elect_preferred` | that first replicas lead again                                             |
| `manual_failover` | that the controller gives leadership to nobody, for a while                |
| `force`           | that a replica leads, whatever it lacks (`promote --force`)                |
| `elect_unclean`   | that anybody leads where nobody does                                       |
| `allow_unclean`   | that the controller lets anybody lead where nobody else can, for a while   |

Each order is given once, to whichever node answers; whether it was heard, the next one tells. Only
the last three may lose records, and only of the partitions that they name (`losses`).
"""

import asyncio
import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from tidelog.client.admin import AdminClient, ConfigChange, Election, Resource
from tidelog.controller.image import PartitionImage
from tidelog.errors import NotController, TidelogError
from tidelog.model import NO_NODE, NodeId, TopicPartition
from tidelog.services.promotion import promote as promote_partition
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import ask_node, up_from
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import Client, World

_ASK_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 2.0
_FORCE_SECONDS: Final = 4.0
"""For how long operators wait for somebody whom they can let lead by force."""
_GLANCE_SECONDS: Final = 0.01
_PARTITIONS_MAX: Final = 10
_DAMAGED: Final = frozenset(("rot", "metadata rot"))


def lead(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Operators promote replicas, and give leadership back to first ones."""
    faults = []
    for at in moments(choose, choose.choice((0.2, 0.6, 2.0)), plan.chaos_seconds):
        if choose.random() < 0.2:
            faults.append(Fault(at, "elect_preferred", {}))
        else:
            place = _draw_place(plan, choose)
            named = choose.random() < 0.8
            target = choose.randint(1, plan.nodes) if named else None
            by = choose.randint(1, plan.nodes)
            faults.append(Fault(at, "promote", {**place, "node": target, "by": by}))
    return with_faults(plan, faults)


def fail_over_by_hand(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """For a while operators decide who leads a topic, and promote somebody now and then."""
    topics = [f"tide-{number}" for number in range(plan.pace.topics)]
    topic = choose.choice(topics)
    begins = round(choose.uniform(0, plan.chaos_seconds / 2), 6)
    seconds = round(choose.uniform(0.2, 0.9) * (plan.chaos_seconds - begins), 6)
    faults = [Fault(begins, "manual_failover", {"topic": topic, "seconds": seconds})]
    for at in moments(choose, 1.0, plan.chaos_seconds):
        place = {"topic": topic, "partition": choose.randrange(plan.pace.partitions)}
        by = choose.randint(1, plan.nodes)
        faults.append(Fault(at, "promote", {**place, "node": None, "by": by}))
    return with_faults(plan, faults)


def force(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Operators let lead who lacks what is committed: they bring it about first, to try it."""
    if not _DAMAGED.isdisjoint(plan.situations):
        return plan  # what is whole of a rotten log, nobody could tell
    faults = []
    for at in moments(choose, choose.choice((0.1, 0.3, 0.6)), plan.chaos_seconds):
        place, behind = _draw_place(plan, choose), choose.randint(1, plan.nodes)
        away = round(choose.uniform(0.5, 4), 3)  # until it is not in sync, or not quite
        back, kind = round(at + away, 6), choose.choice(("force", "elect_unclean", "allow_unclean"))
        down_seconds = round(choose.uniform(1, 5), 3)
        faults.append(Fault(at, "crash", {"node": behind, "down_seconds": away}))
        if kind == "force":
            faults.append(Fault(back, kind, {**place, "by": choose.randint(1, plan.nodes)}))
        else:
            faults.append(Fault(back, kind, {**place, "down_seconds": down_seconds}))
    pace = replace(plan.pace, may_lose=True)
    if plan.nodes == 3 and choose.random() < 0.6:  # both others are too many to miss
        pace = replace(pace, replication=2)
    return with_faults(replace(plan, pace=pace), faults)


def _draw_place(plan: Plan, choose: random.Random) -> dict[str, Any]:
    return {
        "topic": f"tide-{choose.randrange(plan.pace.topics)}",
        "partition": choose.randrange(plan.pace.partitions),
    }


# What is asked for.


def promote(world: World, topic: str, partition: int, node: NodeId | None, by: NodeId) -> None:
    """Let `node` lead, or whoever has the longest log; asked of `by`, or of the controller."""
    world.count("promote")
    world.client("operator").spawn(_promote(world, TopicPartition(topic, partition), node, by))


def force_promote(world: World, topic: str, partition: int, by: NodeId) -> None:
    """Let somebody lead who is not in sync, as soon as there is one, whatever is lost."""
    world.count("force")
    world.client("operator").spawn(_force(world, TopicPartition(topic, partition), by))


async def _force(world: World, place: TopicPartition, by: NodeId) -> None:
    if (found := await _one_behind(world, place)) is not None:
        world.may_lose.add(place)
        await _promote(world, place, found[1], up_from(world, by), force=True)


async def _one_behind(world: World, place: TopicPartition) -> tuple[PartitionImage, NodeId] | None:
    """A replica that is up and not in sync; as soon as there is one, if there is."""
    until = world.now + _FORCE_SECONDS
    while world.now < until:
        for state in _states(world, place)[:1]:
            behind = [node for node in state.replicas if node not in state.in_sync]
            there = [node for node in behind if world.is_up(node)]
            if state.leader != NO_NODE and there:
                return state, there[0]
        await asyncio.sleep(_GLANCE_SECONDS)
    return None


async def _leave_behind(world: World, place: TopicPartition, down_seconds: float) -> None:
    """Let all crash who are in sync, while somebody is there who is not."""
    if (found := await _one_behind(world, place)) is not None:
        for node in sorted(found[0].in_sync):
            world.crash(node)
            world.after(down_seconds, world.restart, node)


def _states(world: World, place: TopicPartition) -> list[PartitionImage]:
    """A partition as the nodes know it that are up, the newest first."""
    images = [machine.node.broker.image for machine in world.machines.values() if machine.is_up]
    known = [
        image.topics[place.topic].partitions[place.partition]
        for image in images
        if place.topic in image.topics
    ]
    return sorted(known, key=lambda state: -state.partition_epoch)


async def _promote(
    world: World, place: TopicPartition, node: NodeId | None, by: NodeId, *, force: bool = False
) -> None:
    async def ask(machine: Machine) -> object:
        broker = machine.node.broker
        return await promote_partition(broker, place, node, force=force, dry_run=False)

    try:
        try:
            done = await ask_node(world, by, ask, _ASK_SECONDS)
        except NotController:
            decides = world.node(by).broker.member.quorum.raft.leader
            done = None if decides is None else await ask_node(world, decides, ask, _ASK_SECONDS)
        world.trace.note("operator", f"{place} to {node}: {done}")
    except (TidelogError, TimeoutError, AssertionError) as error:
        world.trace.note("operator", f"{place} to {node}: {type(error).__name__}: {error}")


def elect_preferred(world: World) -> None:
    """Let first replicas lead again."""
    world.count("elect_preferred")
    host = world.client("operator")
    host.spawn(_elect(world, host, Election.PREFERRED, None))


def elect_unclean(world: World, topic: str, partition: int, down_seconds: float) -> None:
    """Let anybody lead, once all who are in sync are gone."""
    world.count("elect_unclean")
    place = TopicPartition(topic, partition)
    world.client("operator").spawn(_elect_unclean(world, place, down_seconds))


async def _elect_unclean(world: World, place: TopicPartition, down_seconds: float) -> None:
    await _leave_behind(world, place, down_seconds)
    until, host = world.now + _FORCE_SECONDS, world.client("operator")
    while world.now < until:
        states = _states(world, place)
        if states and states[0].leader == NO_NODE:
            world.may_lose.add(place)
            await _elect(world, host, Election.UNCLEAN, [place])
        await asyncio.sleep(_GLANCE_SECONDS)


async def _elect(
    world: World, host: Client, kind: Election, places: Collection[TopicPartition] | None
) -> None:
    client = _client(world, host)
    try:
        fates = await client.elect_leaders(kind, places)
        world.trace.note(host.name, f"elect {kind.name}: {fates}")
    except TidelogError as error:
        world.trace.note(host.name, f"elect: {type(error).__name__}: {error}")
    finally:
        client.close()


def manual_failover(world: World, topic: str, seconds: float) -> None:
    """For so long an operator decides who leads the topic; then the controller does again."""
    world.count("manual_failover")
    _set_for_a_while(world, topic, seconds, ConfigChange(name="failover.mode", value="manual"))


def allow_unclean(world: World, topic: str, partition: int, down_seconds: float) -> None:
    """For a while anybody may lead the topic where nobody else can; then all in sync are gone."""
    world.count("allow_unclean")
    change = ConfigChange(name="unclean.leader.election.enable", value="true")
    world.may_lose.update(TopicPartition(topic, number) for number in range(_PARTITIONS_MAX))
    _set_for_a_while(world, topic, _FORCE_SECONDS + down_seconds, change)
    place = TopicPartition(topic, partition)
    world.client("operator").spawn(_leave_behind(world, place, down_seconds))


def _set_for_a_while(world: World, topic: str, seconds: float, change: ConfigChange) -> None:
    host = world.client("operator")
    host.spawn(_set(world, host, topic, change))
    world.after(seconds, lambda: host.spawn(_keep_away(world, host, topic, change)))


async def _set(world: World, host: Client, topic: str, change: ConfigChange) -> None:
    client = _client(world, host)
    try:
        await client.alter_configs(Resource.TOPIC, topic, [change])
        world.trace.note(host.name, f"{topic}: {change}")
    except TidelogError as error:
        world.trace.note(host.name, f"{topic} {change}: {type(error).__name__}: {error}")
    finally:
        client.close()


async def _keep_away(world: World, host: Client, topic: str, change: ConfigChange) -> None:
    """Take a setting back, and look again and again: an older order may come late.

    A backup keeps the settings of its moment; so has what is restored of it under another name.
    """
    while True:
        images = [machine.node.broker.image for machine in world.machines.values() if machine.is_up]
        named = {
            name
            for image in images
            for name, found in image.topics.items()
            if name.endswith(topic) and found.config.get(change.name) == change.value
        }
        for name in sorted(named):
            await _set(world, host, name, ConfigChange(name=change.name, value=None))
        await asyncio.sleep(_LOOK_SECONDS)


def _client(world: World, host: Client) -> AdminClient:
    return AdminClient(
        ",".join(map(bootstrap, world.machines)), network=host.network, timeout_seconds=_ASK_SECONDS
    )
