"""A read-only copy of a bucket or a work queue inside of the user's process.

    from tidelog.client import EmbeddedReplica

    with EmbeddedReplica("http://127.0.0.1:8080", bucket="config", path="config.db") as config:
        config.wait(10)
        config.get("limits")          # a few microseconds, from any thread, cluster or not

    partitions.py  which partitions a copy has, and which of them are shown
    plan.py        the copy's half of the replication stream
    driver.py      performs what that decides
    files.py       its files, and how they change
    reads.py       how they are read
    cache.py       what is read often
    changes.py     what became another

Rule 1: nothing is decided here. One thread runs the plans of all partitions, and performs their
        effects; reads happen in the threads of their callers.
Rule 2: what was copied can be read whatever becomes of the cluster, and after a restart.
"""

import asyncio
import atexit
import logging
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import httpx

from tidelog.client.http.awaiting import Driver as HttpDriver
from tidelog.client.http.core import Settings
from tidelog.client.http.transport import DEFAULT_ADDRESS, make_core, options
from tidelog.client.http.values import Entry, Seconds, milliseconds
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.driver import SocketDriver
from tidelog.copies.embedded.errors import SyncFailed
from tidelog.copies.embedded.files import About, Layout, Lock, take_up
from tidelog.copies.embedded.partitions import OnChange, Partitions
from tidelog.copies.embedded.plan import Steps
from tidelog.copies.embedded.reads import BucketReads, QueueReads
from tidelog.copies.embedded.values import QueuedMessage, ReplicaStatus, overall
from tidelog.copies.stream.protocol import BINARY_FORMAT, JSON_FORMAT, Source

_log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 30.0
CONNECTIONS_MAX: Final = 4
_END_SECONDS_MAX: Final = 10.0


class Replica:
    """What both kinds of a copy are: files, a thread that keeps them, and reads."""

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        bucket: str | None = None,
        queue: str | None = None,
        path: str | Path | None = None,
        replica_id: str | None = None,
        on_change: OnChange | None = None,
        format: str = BINARY_FORMAT,
        timeout: float = 10.0,
        backoff: float = 0.2,
        discover: bool = True,
    ) -> None:
        if (bucket is None) == (queue is None) or bucket == "" or queue == "":
            raise ValueError("name a bucket or a queue to copy")
        if format not in (JSON_FORMAT, BINARY_FORMAT):
            raise ValueError(f"format is {format!r}; it must be json or binary")
        settings = Settings(timeout=timeout, backoff=backoff)
        self._core = make_core(addresses, settings, discover=discover, clock=None, random=None)
        self._source = Source(bucket=bucket, queue=queue)
        self._temporary = tempfile.mkdtemp(prefix="tidelog-replica-") if path is None else None
        self._layout = Layout(Path(self._temporary if path is None else path))  # type: ignore[arg-type]
        self._recent = Recent()
        self._changes = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over: asyncio.Event
        self._is_closed = False
        self._broken: BaseException | None = None
        """Why it is not kept any more, though nobody has closed it."""
        self._lock, about = self._open(replica_id)
        try:
            self._partitions = Partitions(
                self._layout,
                about,
                self._core,
                self._recent,
                format=format,
                on_change=on_change,
                told=self._tell,
            )
        except BaseException:
            self._leave()
            raise
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"tidelog-{self.replica_id}", daemon=True
        )
        self._thread.start()
        ready.wait()
        atexit.register(self._end)

    def _open(self, replica_id: str | None) -> tuple[Lock, About]:
        self._layout.directory.mkdir(parents=True, exist_ok=True)
        lock = Lock(self._layout.lock)
        try:
            return lock, take_up(self._layout, self._source, replica_id, _new_id)
        except BaseException:
            lock.release()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._layout.path}: {self.status().state}>"

    @property
    def replica_id(self) -> str:
        return self._partitions.about.replica_id

    @property
    def path(self) -> Path:
        return self._layout.path

    # The thread.

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(ready))
        except Exception as error:
            self._break(error)
        finally:
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        async with httpx.AsyncClient(**options(self._core, CONNECTIONS_MAX)) as http:
            self._partitions.run(partial(self._start, HttpDriver(http, asyncio.sleep)))
            ready.set()
            await self._is_over.wait()
            await self._partitions.stop()

    def _start(self, http: HttpDriver, plan: Steps[None]) -> "asyncio.Task[None]":
        driver = SocketDriver(http, self._core)
        task = asyncio.get_running_loop().create_task(driver.run(plan))
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A plan never ends by itself; if it does, there is a bug, and somebody hears of it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        _log.error("the copy in %s is not kept any more", self._layout.path, exc_info=error)
        self._broken = error
        self._tell()

    def _tell(self) -> None:
        with self._changes:
            self._changes.notify_all()

    # Reading.

    def status(self) -> ReplicaStatus:
        """How the copy stands: its state, its lag, what failed."""
        return overall(self.replica_id, tuple(one.following.status() for one in self._partitions.all))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key of the bucket; `default` if there is none."""
        return self._reads.get(key, default)

    def version(self, key: str) -> int | None:
        """The version of a key; None if there is none."""
        return self._reads.version(key)

    def scan(self, prefix: str = "") -> Iterator[Entry]:
        """Every entry whose key begins with `prefix`, by key."""
        return self._reads.scan(prefix)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key with its value, by key."""
        return self._reads.items()

    def messages(self) -> Iterator[QueuedMessage]:
        """Every message of the queue that is not done, the oldest first."""
        return self._queue_reads.scan()

    def message(self, message_id: int) -> QueuedMessage | None:
        """The message of this id; None if it is done, or has not come yet."""
        return self._queue_reads.message(message_id)

    def __contains__(self, item: object) -> bool:
        """Whether there is such a key, or a message of this id."""
        if self._source.queue is not None:
            return isinstance(item, int) and self.message(item) is not None
        return isinstance(item, str) and self.version(item) is not None

    def __len__(self) -> int:
        """How many keys or messages there are."""
        kept = self._partitions
        return (kept.bucket if self._source.queue is None else kept.queue).count()

    def __bool__(self) -> bool:
        """True: an empty copy is one, too."""
        return True

    @property
    def _reads(self) -> BucketReads:
        if self._source.bucket is None:
            raise TypeError("this is a copy of a queue; ask for messages()")
        return self._partitions.bucket

    @property
    def _queue_reads(self) -> QueueReads:
        if self._source.queue is None:
            raise TypeError("this is a copy of a bucket; ask for keys")
        return self._partitions.queue

    # Waiting.

    def _wait(self, until: str | Seconds | None, timeout: Seconds) -> ReplicaStatus:
        is_token = isinstance(until, str)
        seconds = timeout if is_token or until is None else until
        is_there = self._has(until) if isinstance(until, str) else self._is_in_sync
        deadline = time.monotonic() + milliseconds(seconds) / 1000  # type: ignore[arg-type]
        with self._changes:
            while not is_there():
                left = deadline - time.monotonic()
                if self._is_closed:
                    raise SyncFailed("this copy is closed")
                if self._broken is not None:
                    raise SyncFailed(f"this copy is not kept any more: {self._broken!r}")
                if left <= 0:
                    self._raise_late(until if is_token else "in sync", seconds)  # type: ignore[arg-type]
                self._changes.wait(left)
        return self.status()

    def _is_in_sync(self) -> bool:
        return self._partitions.is_shown and self.status().state == "in_sync"

    def _has(self, token: str) -> Callable[[], bool]:
        partition, _, rest = token.partition(":")
        offset = rest.partition(":")[0]
        if not (partition.isdecimal() and offset.isdecimal()):
            raise ValueError(f"{token!r} is no token, such as an entry has")
        number, wanted = int(partition), int(offset)

        def is_there() -> bool:
            kept = self._partitions.all
            if number >= len(kept) or not self._partitions.is_shown:
                return False
            copy = kept[number].copy
            return copy.is_whole and copy.applied >= wanted

        return is_there

    def _raise_late(self, wanted: str, seconds: Seconds) -> None:
        all_errors = (one.following.last_error for one in self._partitions.all)
        errors = [error for error in all_errors if error is not None]
        status = self.status()
        late = f"not {wanted} after {_seconds(seconds):g} s, but {status.state}"
        if errors and status.state != "in_sync":
            raise type(errors[0])(f"{late}: {errors[0]}")
        raise SyncFailed(f"{late}, at offset {status.applied_offset}")

    # The end.

    def _end(self) -> None:
        """Stop copying; what was copied stays."""
        if self._is_closed:
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError("on_change cannot close its copy; let another thread do it")
        self._is_closed = True
        atexit.unregister(self._end)
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(_END_SECONDS_MAX)
        self._tell()
        self._partitions.close()
        self._leave()

    def _leave(self) -> None:
        self._lock.release()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class EmbeddedReplica(Replica):
    """A copy of a bucket or a work queue in files of this process, which any thread may read.

    `addresses` are those of some nodes; the others are found. `path` is a file that ends in `.db`,
    or a directory; without one the copy is gone when this is closed. `on_change` is called with
    some `Change`s whenever they have been applied, in the thread that copies: it should be quick.
    Close it, or use it in a `with`.
    """

    def wait(self, until: str | Seconds | None = None, *, timeout: Seconds = WAIT_SECONDS) -> ReplicaStatus:
        """Wait until the copy has what a token stands for, or is in sync, for so many seconds.

        `until` is the token of an entry (`kv.put(...).token`), or how long to wait until the copy
        is in sync. When the time is over, the error that kept it from that is raised.
        """
        return self._wait(until, timeout)

    def close(self) -> None:
        """Stop copying; what was copied stays."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncEmbeddedReplica(Replica):
    """The same for coroutines. Reads are as they are: they take microseconds."""

    async def wait(
        self, until: str | Seconds | None = None, *, timeout: Seconds = WAIT_SECONDS
    ) -> ReplicaStatus:
        """Wait until the copy has what a token stands for, or is in sync, for so many seconds."""
        return await asyncio.to_thread(self._wait, until, timeout)

    async def close(self) -> None:
        """Stop copying; what was copied stays."""
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _new_id() -> str:
    return f"{socket.gethostname()}-{uuid4().hex[:8]}"


def _seconds(time: Seconds) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time
