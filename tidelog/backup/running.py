"""Threads and lanes, and how they end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work in a thread. Who is cancelled meanwhile waits until it has ended.

    So nobody cleans up behind a thread that is still writing.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what counts
        raise


async def run_lanes(lanes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them side by side; the first failure ends all, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
