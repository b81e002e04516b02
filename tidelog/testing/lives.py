"""One run of a node inside of this process, with all that belongs to it, so that it can be ended.

| what        | how it is found          | what becomes of it at the end       |
|-------------|--------------------------|-------------------------------------|
| tasks       | made in its context      | cancelled                           |
| listeners   | made through its network | closed: whoever connects is refused |
| connections | made through its network | closed; what was not sent is lost   |
| threads     | its own                  | end with what they are at           |
| files       | opened through its disk  | closed, and so are their locks      |
| databases   | opened through its host  | closed                              |

Rule 1: a life that is over changes nothing any more: its disk refuses, its connections are closed.
        A task that still comes to be in its context is cancelled after its first step.
Rule 2: it ends once, however many want it to.

So a node is killed as the kernel would end its process: what it had written stays, synced or not,
and its peers see closed connections.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, Final, Protocol, TypeVar

from tidelog.host import ThreadOffload

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ROUNDS: Final = 50
_ROUND_SECONDS_MAX: Final = 0.1


class Abandoned(Protocol):
    """A connection."""

    def abandon(self) -> None:
        """Its process is gone: close it without a word to either side."""
        ...


class Life:
    """What one run of a node has made.

    Owned by the event loop of its cluster; files and databases come from any thread.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.context = Context()
        self.context.run(_LIFE.set, self)
        self.over = threading.Event()
        """For threads that wait on its behalf."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done as soon as it is over, before it is all cleaned up."""
        self.offload = ThreadOffload()
        self.listeners: list[asyncio.AbstractServer] = []
        self.connections: dict[Abandoned, None] = {}
        self.files: weakref.WeakSet[Any] = weakref.WeakSet()
        self.databases: weakref.WeakSet[Any] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Life of {self.name}{', over' if self.is_over else ''}, {len(self._tasks)} tasks>"

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run `work` as a part of this life."""
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.is_over:
            # Not sooner: a coroutine that it was to await would complain that it never was.
            asyncio.get_running_loop().call_soon(task.cancel, context=Context())

    async def end(self) -> None:
        """End it here and now; returns when nothing of it is left."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(), context=Context())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self.over.set()
        self.ended.set_result(None)
        for listener in self.listeners:
            listener.close()
        for connection in list(self.connections):
            connection.abandon()
        await self._cancel_tasks()
        try:
            releasing = asyncio.get_running_loop().run_in_executor(None, self._release)
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            self._release()
        else:
            await releasing

    async def _cancel_tasks(self) -> None:
        await asyncio.sleep(0)  # those that were made just now take their first step
        for _ in range(_ROUNDS):
            tasks = list(self._tasks)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_ROUND_SECONDS_MAX)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()  # of a node that is gone: nobody wants to know
        _log.error("%s: tasks do not end: %s", self.name, self._tasks)

    def _release(self) -> None:
        """Wait for the threads, then close what they worked on."""
        self.offload.close()
        for opened in (*self.databases, *self.files):
            opened.close()


_LIFE: Final[ContextVar[Life]] = ContextVar("life of a node")


def life_of(context: Context | None) -> Life | None:
    """The life that a context belongs to, this one if None is given; None if to no node's."""
    return _LIFE.get(None) if context is None else context.get(_LIFE)
