"""What operators do to whole nodes while clients go on: restarts in turn, drains, stops in order.

Rule 1: a step waits for the step before it, as operators do, but never longer than it was given:
        faults may come in between.
Rule 2: whoever was stopped is started again, in the end by the world.

What must hold meanwhile is what must hold anyhow.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from tidelog.client.kafka import KafkaClient
from tidelog.controller.image import ClusterImage
from tidelog.errors import TidelogError
from tidelog.model import NodeId
from tidelog.simulation.node_calls import raise_error
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Fault, Plan, with_faults
from tidelog.simulation.world import World

_POLL_SECONDS: Final = 0.1
_STOP_SECONDS_MAX: Final = 6.0
"""Then a supervisor would kill it."""
_ASK_SECONDS: Final = 3.0


def roll(world: World, nodes: Sequence[NodeId], seconds: float) -> None:
    """Restart nodes one after the other, each when all replicas are in sync again."""
    world.count("roll")
    _spawn(world, _roll(world, nodes, world.now + seconds))


def shut_down(world: World, nodes: Sequence[NodeId], gap_seconds: float, back: Sequence[NodeId]) -> None:
    """Stop all nodes in order, and start them again in another order."""
    world.count("shut_down")
    _spawn(world, _shut_down(world, nodes, gap_seconds, back))


def drain(world: World, node: NodeId, seconds: float) -> None:
    """Let others hold all that a node holds; stop it once it holds nothing, and start it again."""
    world.count("drain")
    _spawn(world, _drain(world, node, world.now + seconds))


def draw_upkeep(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """One of the three, once; early enough that it can be done before everything is healed."""
    nodes = list(range(1, plan.nodes + 1))
    choose.shuffle(nodes)
    at = round(choose.uniform(0.5, plan.chaos_seconds / 3), 3)
    seconds = round(plan.chaos_seconds - at - 1.0, 3)
    kind = choose.choice(("roll", "roll", "shut_down", "drain"))
    arguments: dict[str, Any] = {"nodes": tuple(nodes), "seconds": seconds}
    if kind == "shut_down":
        back = tuple(choose.sample(nodes, len(nodes)))
        gap = choose.choice((0.0, 0.2, 1.0))
        arguments = {"nodes": tuple(nodes), "gap_seconds": gap, "back": back}
    elif kind == "drain":
        arguments = {"node": nodes[0], "seconds": seconds}
    return with_faults(plan, [Fault(at, kind, arguments)])


# The steps.


async def _roll(world: World, nodes: Sequence[NodeId], until: float) -> None:
    for node in nodes:
        if not await _wait(world, partial(is_whole, world), until):
            return
        await _stop(world, node)
        world.restart(node)
        if not await _wait(world, partial(world.is_up, node), until):
            return
    _note(world, f"restarted {list(nodes)} in turn")


async def _shut_down(
    world: World, nodes: Sequence[NodeId], gap_seconds: float, back: Sequence[NodeId]
) -> None:
    for node in nodes:
        await _stop(world, node)
        await asyncio.sleep(gap_seconds)
    _note(world, "all were stopped")
    for node in back:
        world.restart(node)
        await asyncio.sleep(gap_seconds)


async def _drain(world: World, node: NodeId, until: float) -> None:
    others = [number for number in world.machines if number != node]
    async with KafkaClient(
        ",".join(map(bootstrap, others or [node])),
        network=world.client("keeper").network,
        timeout_seconds=_ASK_SECONDS,
    ) as client:
        try:
            plan = (await client.perform("brokers.drain", id=node))["plan"]
            count = len(plan["partitions"]) - len(plan["refused"])
            _note(world, f"node {node} is drained: {count} partitions move")
            if await _wait(world, lambda: not _newest(world).held.get(node), until):
                await _stop(world, node)
                await asyncio.sleep(1.0)
                world.restart(node)
                await _wait(world, partial(world.is_up, node), until)
            await client.perform("brokers.drain", id=node, undo=True)
        except TidelogError as error:
            _note(world, f"node {node} is not drained: {type(error).__name__}: {error}")


async def _stop(world: World, node: NodeId) -> None:
    """Stop a node that is up, and kill it if it takes too long."""
    if not world.is_up(node):
        return
    machine = world.machines[node]
    life = machine.lives
    world.stop(node)
    is_gone = partial(lambda: machine.process is None or machine.lives != life)
    if not await _wait(world, is_gone, world.now + _STOP_SECONDS_MAX):
        world.crash(node)


async def _wait(world: World, condition: Callable[[], bool], until: float) -> bool:
    while not condition():
        if world.now >= until:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


def is_whole(world: World) -> bool:
    """Whether everybody serves, and every replica is in sync: one node may be missed."""
    if not world.all_up():
        return False
    image = _newest(world)
    return all(image.is_alive(node) for node in world.machines) and all(
        set(place.partition.replicas) == place.partition.in_sync for place in image.places.values()
    )


def _newest(world: World) -> ClusterImage:
    """The image of whoever has applied most."""
    up = [machine.node.broker for machine in world.machines.values() if machine.is_up]
    if not up:
        return ClusterImage()
    newest = max(up, key=lambda broker: broker.metadata.applied)
    image: ClusterImage = newest.image
    return image


def _note(world: World, what: str) -> None:
    world.trace.note("keeper", what)


def _spawn(world: World, work: Coroutine[Any, Any, None]) -> None:
    world.client("keeper").spawn(work).add_done_callback(raise_error)
