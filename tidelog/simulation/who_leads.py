"""Operators who decide who leads, while everything else happens.

| kind              | what is asked for                                                          |
|-------------------|----------------------------------------------------------------------------|
| `promote`         | that a replica leads a partition, if nothing is lost by that               |
| `elect_preferred` | that first replicas lead again                                             |
| `manual_failover` | that the controller gives leadership to nobody, for a while                |

Each order is given once, to whichever node answers; whether it was heard, the next one tells. None
of them may lose a record, and what must hold is what must hold anyhow.
"""

import asyncio
import random
from collections.abc import Collection
from typing import Any, Final

from tidelog.broker.promotion import promote as promote_partition
from tidelog.client.admin import AdminClient, ConfigChange, Election, Resource
from tidelog.errors import NotController, TidelogError
from tidelog.model import NodeId, TopicPartition
from tidelog.simulation.asking import ask_node
from tidelog.simulation.machine import Machine
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import Client, World

_ASK_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 2.0
_MODE: Final = "failover.mode"


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


async def _promote(world: World, place: TopicPartition, node: NodeId | None, by: NodeId) -> None:
    async def ask(machine: Machine) -> object:
        broker = machine.node.broker
        return await promote_partition(broker, place, node, force=False, dry_run=False)

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
    host.spawn(_elect(world, host))


async def _elect(world: World, host: Client) -> None:
    client = _client(world, host)
    try:
        await client.elect_leaders(Election.PREFERRED)
    except TidelogError as error:
        world.trace.note(host.name, f"elect: {type(error).__name__}: {error}")
    finally:
        client.close()


def manual_failover(world: World, topic: str, seconds: float) -> None:
    """For so long an operator decides who leads the topic; then the controller does again."""
    world.count("manual_failover")
    host = world.client("operator")
    host.spawn(_set_mode(world, host, topic, "manual"))
    world.after(seconds, lambda: host.spawn(_keep_automatic(world, host, topic)))


async def _set_mode(world: World, host: Client, topic: str, mode: str) -> None:
    client = _client(world, host)
    try:
        changes = [ConfigChange(name=_MODE, value=mode)]
        await client.alter_configs(Resource.TOPIC, topic, changes)
    except TidelogError as error:
        world.trace.note(host.name, f"{topic} {mode}: {type(error).__name__}: {error}")
    finally:
        client.close()


async def _keep_automatic(world: World, host: Client, topic: str) -> None:
    """Look again and again: an older order may come late."""
    while True:
        images = [machine.node.broker.image for machine in world.machines.values() if machine.is_up]
        known = [image.topics[topic] for image in images if topic in image.topics]
        if any(found.config.get(_MODE) == "manual" for found in known):
            await _set_mode(world, host, topic, "auto")
        await asyncio.sleep(_LOOK_SECONDS)


def _client(world: World, host: Client) -> AdminClient:
    return AdminClient(
        ",".join(map(bootstrap, world.machines)), network=host.network,
        timeout_seconds=_ASK_SECONDS,
    )  # fmt: skip
