"""Asking a node for what its faces offer, without a face: in its own process, for as long as it
lives."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from tidelog.errors import TidelogError
from tidelog.simulation.machine import Machine
from tidelog.simulation.world import World

T = TypeVar("T")

_HOME_SECONDS: Final = 0.5
"""How much longer a client waits than it tells a node to."""


class Down(TidelogError):
    """Nobody is there to be asked."""


def up_from(world: World, node: int) -> int:
    """The node, or the next one that is up, as somebody tries who has a list of them."""
    others = [number for number in world.machines if number > node]
    others += [number for number in world.machines if number < node]
    return next((number for number in (node, *others) if world.is_up(number)), node)


async def ask_node(world: World, node: int, work: Callable[[Machine], Awaitable[T]], seconds: float) -> T:
    """What a node answers; Down if it is not up, TimeoutError if it says nothing."""
    machine = world.machines[node]
    if not machine.is_up or machine.process is None:
        raise Down(f"node {node} is down")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    # In the node's own process: what it begins ends with it, and keeps it until then.
    work_there = _answer(work, machine, answer)
    loop.create_task(work_there, context=machine.process.context.copy())  # noqa: RUF006
    async with asyncio.timeout(seconds + _HOME_SECONDS):
        return await answer


async def _answer(
    work: Callable[[Machine], Awaitable[T]], machine: Machine, answer: "asyncio.Future[T]"
) -> None:
    try:
        found = await work(machine)
    except TidelogError as error:
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(found)


def raise_error(task: "asyncio.Task[Any]") -> None:
    """Let the world hear of what a task that nobody awaits has failed by."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
