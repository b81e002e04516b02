"""Work that goes on beside everything else, and ends with its owner."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from tidelog.errors import StorageError

_log = logging.getLogger(__name__)


class Tasks:
    """Tasks of one owner. One that fails is fatal to it; what Ctrl-C or a stop cancels does not fail."""

    def __init__(self, owner: str, on_fatal: Callable[[BaseException], None]) -> None:
        self._owner = owner
        self._on_fatal = on_fatal
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work` beside everything else, no longer than its owner."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, OSError | StorageError):  # else the disk has failed
                _log.error("a part of the %s failed", self._owner, exc_info=error)
            self._on_fatal(error)

    async def cancel(self) -> None:
        """End them all, and wait for that."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
