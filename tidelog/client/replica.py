"""A read-only copy of a bucket or a work queue inside of the user's process.

    from tidelog.client import EmbeddedReplica

    with EmbeddedReplica("http://127.0.0.1:8080", bucket="config", path="config.db") as config:
        config.wait(10)
        config.get("limits")          # a few microseconds, from any thread, cluster or not

    replica_plan.py     the copy's half of the replication stream
    replica_files.py    its files, and how they change
    replica_reads.py    how they are read
    replica_cache.py    what is read often
    replica_changes.py  what became another

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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tidelog.client.http.awaiting import Driver as HttpDriver
from tidelog.client.http.core import Core, Settings
from tidelog.client.http.effects import Lost, Send, Wait
from tidelog.client.http.transport import DEFAULT_ADDRESS, make_core, options
from tidelog.client.http.values import Change, Entry, Seconds, milliseconds
from tidelog.client.replica_cache import Recent
from tidelog.client.replica_errors import SyncFailed
from tidelog.client.replica_files import About, Copy, Layout, Lock, take_up
from tidelog.client.replica_plan import Aside, Connect, Following, Hear, Say, Steps
from tidelog.client.replica_reads import BucketReads, File, QueueReads
from tidelog.client.replica_values import QueuedMessage, ReplicaStatus, overall
from tidelog.copying.kinds import kind_of
from tidelog.copying.protocol import BINARY_FORMAT, JSON_FORMAT, HelloAck, Source

_log = logging.getLogger(__name__)

D = TypeVar("D")

OnChange = Callable[[Sequence[Change]], None]

MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
CLOSE_SECONDS_MAX: Final = 1.0
PING_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 30.0
CONNECTIONS_MAX: Final = 4
_END_SECONDS_MAX: Final = 10.0


class SocketDriver:
    """Performs the effects of one plan: a socket, requests, pauses, and work in threads."""

    def __init__(self, http: HttpDriver, core: Core) -> None:
        self._http = http
        self._core = core
        self._socket: ClientConnection | None = None

    async def run(self, plan: Steps[None]) -> None:
        came: Any = None
        try:
            while True:
                came = await self._perform(plan.send(came))
        except StopIteration:
            return
        finally:
            plan.close()
            await self._close()

    async def _perform(self, effect: object) -> Any:
        match effect:
            case Hear(seconds_max):
                return await self._hear(seconds_max)
            case Say(message):
                return await self._say(message)
            case Connect(url):
                return await self._connect(url)
            case Aside(work):
                return await asyncio.to_thread(work)
            case Wait(_):
                await self._close()
                return await self._http.perform(effect)
            case Send():
                return await self._http.perform(effect)
            case _:
                raise AssertionError(f"{effect} is no effect of a copy")

    async def _connect(self, url: str) -> Lost | None:
        await self._close()
        try:
            self._socket = await connect(
                url, compression=None, proxy=None, max_size=MESSAGE_BYTES_MAX,
                open_timeout=self._core.settings.timeout, close_timeout=CLOSE_SECONDS_MAX,
                ping_interval=PING_SECONDS, ping_timeout=PING_SECONDS,
            )  # fmt: skip
        except InvalidStatus as error:
            return Lost(why=_refusal(error), was_sent=False)
        except (OSError, TimeoutError, WebSocketException) as error:
            return Lost(why=str(error) or type(error).__name__, was_sent=False)
        return None

    async def _say(self, message: bytes) -> None:
        assert self._socket is not None, "it was connected"
        try:
            await self._socket.send(message, text=True)
        except WebSocketException:
            pass  # whoever listens next hears of it

    async def _hear(self, seconds_max: float) -> str | bytes | Lost:
        assert self._socket is not None, "it was connected"
        try:
            async with asyncio.timeout(seconds_max):
                return await self._socket.recv()
        except TimeoutError:
            return Lost(why=f"nothing was heard for {seconds_max:g} s", was_sent=True)
        except WebSocketException as error:
            return Lost(why=str(error), was_sent=True)

    async def _close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
            self._socket = None


def _refusal(error: InvalidStatus) -> str:
    """What a node answered that opens no socket."""
    try:
        return str(msgspec.json.decode(error.response.body or b"")["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f"it answered with {error.response.status_code}"


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
            raise ValueError("name a bucket or a queue: what shall be copied")
        if format not in (JSON_FORMAT, BINARY_FORMAT):
            raise ValueError(f"format is {format!r}; it must be json or binary")
        settings = Settings(timeout=timeout, backoff=backoff)
        self._core = make_core(addresses, settings, discover=discover, clock=None, random=None)
        self._source = Source(bucket=bucket, queue=queue)
        self._format = format
        self._on_change = on_change
        self._temporary = tempfile.mkdtemp(prefix="tidelog-replica-") if path is None else None
        self._layout = Layout(Path(self._temporary if path is None else path))  # type: ignore[arg-type]
        self._lock, self._about = self._open(replica_id)
        self._following: list[Following] = []
        self._files: tuple[File, ...] = ()
        self._recent = Recent()
        self._bucket = BucketReads((), self._recent)
        self._queue = QueueReads(queue or "", ())
        self._changes = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: HttpDriver
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over: asyncio.Event
        self._is_closed = False
        try:
            self._grow(max(self._about.partitions, 1))
        except BaseException:
            self._lock.release()
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
        return self._about.replica_id

    @property
    def path(self) -> Path:
        return self._layout.path

    # The thread.

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(ready))
        except Exception:
            _log.exception("the copy in %s is not kept any more", self._layout.path)

    async def _main(self, ready: threading.Event) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        async with httpx.AsyncClient(**options(self._core, CONNECTIONS_MAX)) as http:
            self._driver = HttpDriver(http, asyncio.sleep)
            for following in self._following:
                self._start(following)
            ready.set()
            await self._is_over.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, following: Following) -> None:
        driver = SocketDriver(self._driver, self._core)
        task = asyncio.get_running_loop().create_task(driver.run(following.run()))
        task.add_done_callback(_report)
        self._tasks.append(task)

    def _grow(self, count: int) -> list[Following]:
        """Keep so many partitions; the new ones among them."""
        made = []
        for number in range(len(self._following), count):
            source = msgspec.structs.replace(self._source, partition=number)
            kind = kind_of(source)
            assert kind is not None, "buckets and queues are kept"
            tells = self._on_change is not None
            copy = Copy(self._layout.file(number), kind, source, self._recent, tells=tells)
            copy.open()
            name = self.replica_id if number == 0 else f"{self.replica_id}/{number}"
            made.append(
                Following(
                    self._core, source, name, copy, format=self._format,
                    wall=lambda: datetime.now(UTC), changed=self._changed if tells else None,
                    told=self._tell, greeted=self._greeted,
                )
            )  # fmt: skip
            file = File(self._layout.file(number))
            copy.on_removed = file.reconnect
            self._files += (file,)
        self._following += made
        self._bucket.files = self._queue.files = self._files
        return made

    def _greeted(self, ack: HelloAck) -> None:
        """A node has said how many partitions there are."""
        count = 1 if self._source.queue is not None else ack.partitions
        if count > len(self._following):
            for following in self._grow(count):
                self._start(following)
        if count != self._about.partitions:
            self._about = msgspec.structs.replace(self._about, partitions=count)
            self._layout.write_about(self._about)

    def _tell(self) -> None:
        with self._changes:
            self._changes.notify_all()

    def _changed(self, changes: Sequence[Change]) -> None:
        assert self._on_change is not None
        try:
            self._on_change(changes)
        except Exception:
            _log.exception("on_change of %s failed", self._layout.path)

    # Reading.

    def status(self) -> ReplicaStatus:
        """How the copy stands: its state, its lag, what failed."""
        return overall(self.replica_id, tuple(one.status() for one in self._following))

    def get(self, key: str, default: D | None = None) -> Any | D | None:
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

    def __len__(self) -> int:
        """How many keys or messages there are."""
        return (self._bucket if self._source.queue is None else self._queue).count()

    @property
    def _reads(self) -> BucketReads:
        if self._source.bucket is None:
            raise TypeError("this is a copy of a queue; ask for messages()")
        return self._bucket

    @property
    def _queue_reads(self) -> QueueReads:
        if self._source.queue is None:
            raise TypeError("this is a copy of a bucket; ask for keys")
        return self._queue

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
                if left <= 0:
                    self._raise_late(until if is_token else "in sync", seconds)  # type: ignore[arg-type]
                self._changes.wait(left)
        return self.status()

    def _is_in_sync(self) -> bool:
        return bool(self._about.partitions) and self.status().state == "in_sync"

    def _has(self, token: str) -> Callable[[], bool]:
        partition, _, offset = token.partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise ValueError(f"{token!r} is no token, such as an entry has")
        number, wanted = int(partition), int(offset)

        def is_there() -> bool:
            if number >= len(self._following):
                return False
            copy = self._following[number].copy
            return copy.is_whole and copy.applied >= wanted

        return is_there

    def _raise_late(self, wanted: str, seconds: Seconds) -> None:
        errors = [one.last_error for one in self._following if one.last_error is not None]
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
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(_END_SECONDS_MAX)
        self._tell()
        with self._recent.changing(None):
            for file in self._files:
                file.close()
        for following in self._following:  # who writes closes last, and leaves one file of each
            following.copy.close()
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

    def wait(
        self, until: str | Seconds | None = None, *, timeout: Seconds = WAIT_SECONDS
    ) -> ReplicaStatus:
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


def _report(task: "asyncio.Task[None]") -> None:
    """A plan never ends by itself: if it does, there is a bug, and somebody should hear of it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a copy is not kept any more", exc_info=error)
