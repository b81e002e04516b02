"""One event loop and one client per process, for code that cannot await.

Rule 1: the loop has a thread of its own, which ends with the process.
Rule 2: Spark forks its Python workers and uses them again and again. So connections outlive a task,
        and those of a parent are never used by its child: a process is told by its id.
Rule 3: who is interrupted while waiting cancels what was asked.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tidelog.client.admin import AdminClient
from tidelog.client.security import Security, security_of
from tidelog.client.transactional import TransactionalClient

T = TypeVar("T")

CLIENT_ID: Final = "tidelog-spark"
TIMEOUT_SECONDS: Final = 60.0
"""Longer than any failover: a task that fails costs more than one that waits."""


class SparkClient(TransactionalClient, AdminClient):
    """All that the jobs ask of a cluster: reads, writes, decisions, groups."""


@dataclass(slots=True)
class _Process:
    """The loop of one process, and its clients by address."""

    pid: int = field(default_factory=os.getpid)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    clients: dict[tuple[str, Security, float], SparkClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        threading.Thread(target=self.loop.run_forever, name="tidelog-spark", daemon=True).start()


_lock = threading.Lock()
_process: _Process | None = None


def _here() -> _Process:
    global _process
    with _lock:
        if _process is None or _process.pid != os.getpid():
            _process = _Process()
        return _process


def start(work: Coroutine[Any, Any, T]) -> "Future[T]":
    """Run a coroutine on this process's loop, and do not wait for it."""
    return asyncio.run_coroutine_threadsafe(work, _here().loop)


def wait(future: "Future[T]") -> T:
    """Its result; who is interrupted cancels it."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def iterate(work: AsyncGenerator[T, None]) -> Iterator[T]:
    """What an asynchronous generator yields, one after the other; it is closed at the end."""

    async def following() -> list[T]:
        async for found in work:
            return [found]
        return []

    try:
        while found := wait(start(following())):
            yield from found
    finally:
        wait(start(work.aclose()))


def ask(
    bootstrap: str,
    question: Callable[[SparkClient], Awaitable[T]],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> T:
    """Put a question to a cluster, through the client that this process has for it."""
    return wait(ask_later(bootstrap, question, timeout_seconds=timeout_seconds))


def ask_later(
    bootstrap: str,
    question: Callable[[SparkClient], Awaitable[T]],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> "Future[T]":
    """The same, and go on before the answer is there."""

    async def work() -> T:
        return await question(client(bootstrap, timeout_seconds=timeout_seconds))

    return start(work())


def client(bootstrap: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> SparkClient:
    """This process's client of a cluster. To be called, and used, on its loop."""
    clients = _here().clients
    key = (str(bootstrap), security_of(bootstrap), timeout_seconds)
    known = clients.get(key)
    if known is None:
        known = clients[key] = SparkClient(bootstrap, client_id=CLIENT_ID, timeout_seconds=timeout_seconds)
    return known
