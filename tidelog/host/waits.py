"""Work of the event loop: in slices, and not broken off."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from tidelog.errors import BrokerError

T = TypeVar("T")


async def in_turns(items: Iterable[T], work: Callable[[T], object], *, at_once: int = 100) -> None:
    """Do `work` for each of `items`, so many in one turn of the loop: others get theirs."""
    for count, item in enumerate(items, 1):
        work(item)
        if count % at_once == 0:
            await asyncio.sleep(0)


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Do all of `work`: who is cancelled meanwhile waits for its end, and is cancelled then.

    For files that memory describes. A thread that changes them goes on whoever is cancelled, and
    whoever did not wait for it would describe what is no longer there. If `work` fails, that is
    raised, cancelled or not; but a refusal (`BrokerError`) is not raised to who was cancelled: it
    would be tried again, by somebody who has been told to end.
    """
    task = asyncio.get_running_loop().create_task(_outcome(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    result, failure = task.result()
    if cancelled is not None and (failure is None or isinstance(failure, BrokerError)):
        raise cancelled
    if failure is not None:
        raise failure
    return result[0]


async def _outcome(work: Coroutine[Any, Any, T]) -> tuple[list[T], Exception | None]:
    """What came of `work`. It is not raised: the process may end before anybody asks the task."""
    try:
        return [await work], None
    except Exception as error:
        return [], error
