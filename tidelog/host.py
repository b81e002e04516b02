"""The only doors to the outside: clock, disk, network, random and threads.

Rule 1: no other module below the faces opens a file or a socket, reads a clock, draws a random
        number or starts a thread. What comes through here can be simulated; nothing else can.
Rule 2: a `File` keeps no position; every read and write says where. Files are shared between the
        event loop and the disk's threads, so a hidden position would be a race.
Rule 3: what a disk was told to write is durable only after `datasync` (bytes), `sync_directory`
        (names) or `sync_everything` returned. Nothing retries a sync that failed: the kernel may
        have dropped the pages and will call the next one a success.
"""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import random
import resource
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from io import BytesIO
from pathlib import PurePosixPath
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidelog.errors import BrokerError

T = TypeVar("T")
Bytes: TypeAlias = bytes | bytearray | memoryview
Path: TypeAlias = PurePosixPath


class Clock(Protocol):
    """Time, of two kinds that must not be mixed."""

    def monotonic(self) -> float:
        """Seconds that never jump: for waits, leases and rates."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, which may jump: only for timestamps and retention."""
        ...


class File(Protocol):
    """An open file without a position. Closed when the last reference goes, or by `close`."""

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def read_cached(self, position: int, size: int) -> Bytes | None:
        """The bytes if memory holds them, None if that would touch the device. Never blocks."""
        ...

    def read_device(self, position: int, size: int) -> bytes:
        """As `read`, but the bytes as the device has them now; memory keeps none of them."""
        ...

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        """Write all of `buffers` one after the other at `position`, or raise OSError.

        After an error any part may have been written; the caller truncates.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None:
        """Return when the file's bytes and its size are durable.

        A failed sync of any kind is EIO, never ENOSPC: the kernel may have dropped what it should
        have written, so nobody may take it for a full disk and try again.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One file system. All calls may block; the broker makes them from `Offload`, or at start."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing. With `create`, make the file if it is not there."""
        ...

    def exists(self, path: Path) -> bool: ...

    def list(self, path: Path) -> list[str]:
        """The names in a directory, sorted; [] if there is no such directory."""
        ...

    def is_directory(self, path: Path) -> bool: ...

    def make_directory(self, path: Path) -> None:
        """Make a directory and its missing parents; nothing happens if it is there."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomically; replaces a file `target`. Durable after `sync_directory` of the parents."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens if it is not there."""
        ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def sync_everything(self, path: Path) -> None:
        """Make the whole file system that holds `path` durable: one call for many dirty files."""
        ...

    def free_bytes(self, path: Path) -> int: ...

    def total_bytes(self, path: Path) -> int: ...

    def lock(self, path: Path) -> File:
        """Open `path` for this process alone; BlockingIOError if another holds it."""
        ...


class Lane(Enum):
    """Which thread runs a piece of work. Work of one lane runs in the order it came."""

    WRITE = "write"
    SYNC = "sync"
    SYNC_PATIENTLY = "sync patiently"
    """Syncs that nobody waits for, so that nobody waits behind them."""
    ANY = "any"
    """Some thread of a few, in no order: reads and housekeeping, which must never hold up a
    write."""
    IDLE = "idle"
    """Reads that may take as long as they like: the device serves everybody else first."""
    SCHEMAS = "schemas"
    """Keys and values by a schema registry's schemas, which may have to be asked for first."""


class Offload(Protocol):
    """Runs blocking work away from the event loop."""

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        """Start `work`; the future completes on the loop."""
        ...


class Database(Protocol):
    """An SQLite database that one thread writes at a time, while the event loop reads.

    Durable only in part: after a crash it is as some earlier transaction left it, whole.
    """

    writer: sqlite3.Connection
    reader: sqlite3.Connection

    def save(self) -> None:
        """Let no more than what comes from now on be lost with the process. It may block."""
        ...

    def close(self) -> None: ...


class Databases(Protocol):
    """Where databases are kept. All calls may block."""

    def open(self, path: Path) -> Database:
        """Open, or make; sqlite3.DatabaseError if what is there is no database."""
        ...

    def remove(self, path: Path) -> None:
        """Remove one that is not open; nothing happens if it is not there."""
        ...

    def copy(
        self, source: sqlite3.Connection, path: Path, check: Callable[[sqlite3.Connection], None]
    ) -> None:
        """Copy one as it is, while others read it, into a file; what `check` of the copy raises."""
        ...

    def seize(self, path: Path) -> BinaryIO:
        """A copy that was made, without its name: its bytes go with whoever holds it."""
        ...


class Network(Protocol):
    """Byte streams between nodes."""

    async def serve(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.AbstractServer: ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Everything a node may touch outside of itself."""

    clock: Clock
    disk: Disk
    offload: Offload
    network: Network
    random: random.Random
    system_databases: Databases | None = None
    """None for databases that live in memory and are saved through `disk`."""

    @property
    def databases(self) -> Databases:
        return self.system_databases or DiskDatabases(self.disk)

    def new_id(self) -> UUID:
        """A random version 4 UUID. Kafka never uses one whose text starts with a dash."""
        while True:
            value = UUID(int=self.random.getrandbits(128), version=4)
            if value.bytes[0] >> 2 != 0b111110:  # base64url's first letter would be '-'
                return value


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


RELINK_SUFFIX: Final = ".relink"


def relink(disk: Disk, path: Path) -> None:
    """Name a file or directory anew, so that the next sync of its parent makes the name durable.

    After a failed sync a kernel may call a name clean that it has never written. A crash in between
    leaves the name with RELINK_SUFFIX; `finish_relinks` puts it right.
    """
    aside = path.parent / (path.name + RELINK_SUFFIX)
    disk.rename(path, aside)
    disk.rename(aside, path)


def finish_relinks(disk: Disk, directory: Path) -> None:
    """Give names back that a crash in the middle of `relink` has left."""
    for name in disk.list(directory):
        original = name.removesuffix(RELINK_SUFFIX)
        if original != name and not disk.exists(directory / original):
            disk.rename(directory / name, directory / original)


def aside_of(path: Path) -> Path:
    """Where a file is written before it takes the place of `path`; a start removes it."""
    return path.with_name(path.name + ".tmp")


def sync_path(path: str | os.PathLike[str]) -> None:
    """Have a real file's bytes, or a real directory's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(disk: Disk, path: Path, content: Bytes, *, durably: bool = True) -> None:
    """Put `content` at `path` so that a crash leaves the old file or the new one, whole.

    Written and synced aside, then renamed, then the name itself synced. Not `durably`, a killed
    process still leaves one of the two; a power loss may leave a damaged one.
    """
    aside = aside_of(path)
    file = disk.open(aside, create=True)
    try:
        file.truncate(0)
        file.write(0, [content])
        if durably:
            file.datasync()
    finally:
        file.close()
    disk.rename(aside, path)
    if durably:
        disk.sync_directory(path.parent)


def read_file(disk: Disk, path: Path) -> bytes:
    """The whole content of `path`; FileNotFoundError if it is not there."""
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


# Databases in memory, saved as files: for a disk that is simulated.


class MemoryDatabase:
    """A database in memory; `save` writes it to the disk as a whole."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.writer = self.reader = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        if disk.exists(path):
            self.writer.deserialize(read_file(disk, path))

    def save(self) -> None:
        replace_file(self._disk, self._path, self.writer.serialize())

    def close(self) -> None:
        self.writer.close()


class DiskDatabases:
    """Databases in memory, saved through a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: Path) -> MemoryDatabase:
        self._disk.make_directory(path.parent)
        return MemoryDatabase(self._disk, path)

    def remove(self, path: Path) -> None:
        self._disk.remove(path)

    def copy(
        self, source: sqlite3.Connection, path: Path, check: Callable[[sqlite3.Connection], None]
    ) -> None:
        target = sqlite3.connect(":memory:")
        try:
            source.backup(target)
            check(target)
            replace_file(self._disk, path, target.serialize())
        finally:
            target.close()

    def seize(self, path: Path) -> BinaryIO:
        data = read_file(self._disk, path)
        self._disk.remove(path)
        return BytesIO(data)


# The real ones.

_IOV_MAX = 1024  # Linux's limit of buffers per call
_libc = ctypes.CDLL(None, use_errno=True)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
"""The number of the system call, which the C library has no name for."""
_IOPRIO_WHO_PROCESS: Final = 1  # 0 for its id: the calling thread alone
_IOPRIO_CLASS_IDLE: Final = 3
_IOPRIO_CLASS_SHIFT: Final = 13


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class _Closer:
    """Closes files that were deleted, in a thread.

    Their last descriptor is what keeps their bytes: the disk frees these when it is closed, which
    takes half a second for a gigabyte. Files close when nobody refers to them any more, and that
    may be found out anywhere: on the event loop, too.
    """

    def __init__(self) -> None:
        self._fds: SimpleQueue[int] = SimpleQueue()  # may be put to wherever garbage is collected
        self._is_running = False

    def close(self, fd: int) -> None:
        self._fds.put(fd)
        if not self._is_running:
            self._is_running = True
            threading.Thread(target=self._run, daemon=True, name="close").start()

    def _run(self) -> None:
        while True:
            fd = self._fds.get()
            with contextlib.suppress(OSError):  # of a file that is deleted: nothing is lost by it
                os.close(fd)


_closer = _Closer()


@contextlib.contextmanager
def _sync_failures() -> Iterator[None]:
    """Tell a sync for which there was no room as a failed one: its pages may be lost."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(errno.EIO, f"a sync failed: {error.strerror}", error.filename) from error
        raise


class SystemFile:
    """A file descriptor that closes with its last reference.

    A read in a thread keeps the object alive, so dropping a file from a cache never closes a
    descriptor in use.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, position: int, size: int) -> bytearray | None:
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
                return None
            raise
        if got < size:
            return None  # the rest is on the device, or the file ends here: the caller asks again
        return buffer

    def read_device(self, position: int, size: int) -> bytes:
        # What is written and not synced stays in memory; nobody asks for that.
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)
        try:
            return self.read(position, size)
        finally:
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        assert position >= 0, "to the kernel, -1 is the position that a File does not have"
        for start in range(0, len(buffers), _IOV_MAX):
            some = buffers[start : start + _IOV_MAX]
            size = sum(map(len, some))
            written = os.pwritev(self._fd, some, position)
            if written < size:  # a signal, a full disk, or more than 2 GiB: go on with the rest
                rest = memoryview(b"".join(some))[written:]
                while rest:
                    more = os.pwrite(self._fd, rest, position + written)
                    written += more
                    rest = rest[more:]
            position += size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def datasync(self) -> None:
        with _sync_failures():
            os.fdatasync(self._fd)

    def sync_file_system(self, path: Path) -> None:
        with _sync_failures():
            while _libc.syncfs(self._fd) != 0:  # since Linux 5.8 it reports failed write-back
                code = ctypes.get_errno()
                if code != errno.EINTR:  # Python itself repeats only its own calls after a signal
                    raise OSError(code, os.strerror(code), str(path))

    def lock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if os.fstat(fd).st_nlink:
            os.close(fd)
        else:
            _closer.close(fd)

    def __del__(self) -> None:
        self.close()


class SystemDisk:
    def __init__(self) -> None:
        self._roots: dict[Path, SystemFile] = {}
        """Directories of file systems that are synced whole: opened once, as every system call of
        a disk's thread may have to wait for the interpreter afterwards."""

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: Path) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=False)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _sync_failures():
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_everything(self, path: Path) -> None:
        root = self._roots.get(path)
        if root is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            root = self._roots[path] = SystemFile(os.open(path, flags))
        root.sync_file_system(path)

    def lock(self, path: Path) -> SystemFile:
        file = self.open(path, create=True)
        file.lock()
        return file

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize


class ThreadOffload:
    """A thread for writes, two for syncs, an idle one, one for schemas, a few for everything else.

    Simpler than an executor of the standard library, and worth it: a hand-over to the disk and
    back is on the way of every acknowledged record.
    """

    def __init__(self, threads: int = 4) -> None:
        self._lanes: dict[Lane, SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: list[tuple[Lane, threading.Thread]] = []
        for lane in Lane:
            self._lanes[lane] = SimpleQueue()
            for number in range(threads if lane is Lane.ANY else 1):
                serve = _serve_idly if lane is Lane.IDLE else _serve
                thread = threading.Thread(
                    target=serve, args=(self._lanes[lane],), daemon=True, name=f"{lane.value}-{number}"
                )
                self._threads.append((lane, thread))
                thread.start()

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def perform() -> None:
            try:
                result = work()
            except BaseException as error:
                outcome = partial(_fail, future, error)
            else:
                outcome = partial(_succeed, future, result)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(outcome)

        self._lanes[lane].put(perform)
        return future

    def close(self) -> None:
        """Let the threads finish what they have, and wait for them."""
        for lane, _ in self._threads:
            self._lanes[lane].put(None)
        for _, thread in self._threads:
            thread.join()


def _serve(lane: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (perform := lane.get()) is not None:
        perform()


def _serve_idly(lane: "SimpleQueue[Callable[[], None] | None]") -> None:
    """As `_serve`, with the device's idle priority, where the kernel and its scheduler know one.

    The processor's priority stays: a thread that waits for its turn while it holds the
    interpreter's lock would keep all others waiting.
    """
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        _libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE << _IOPRIO_CLASS_SHIFT)
    _serve(lane)


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class LoopNetwork:
    """TCP through the running event loop."""

    async def serve(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.AbstractServer:
        return await asyncio.get_running_loop().create_server(factory, host, port, backlog=1024)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(factory, host, port)


_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def give_up_on_silence(
    transport: asyncio.BaseTransport, *, unacknowledged_seconds_max: int | None = None
) -> None:
    """Let the kernel find out that the other side of a connection is gone without a word.

    An idle connection is probed: one whose machine lost power, or that a firewall has forgotten,
    breaks within a minute. Nothing is probed while bytes wait to be acknowledged: those are sent
    again for a quarter of an hour, or for `unacknowledged_seconds_max`. That bound also ends a
    connection whose other side does not read for so long, so it is not for clients.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if unacknowledged_seconds_max is not None:
            milliseconds = unacknowledged_seconds_max * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class SystemDatabase:
    """A database file in WAL mode: readers do not wait for the writer, nor it for them.

    Its commits are not synced: the log has everything, so a power loss may take the last of them.
    """

    def __init__(self, path: Path) -> None:
        self.writer = self._connect(path)
        self.reader = self._connect(path)
        self.reader.execute("PRAGMA query_only = ON")

    @staticmethod
    def _connect(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def save(self) -> None:
        """Every commit is in the file already."""

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


class SystemDatabases:
    """SQLite files."""

    def open(self, path: Path) -> SystemDatabase:
        os.makedirs(path.parent, exist_ok=True)
        return SystemDatabase(path)

    def remove(self, path: Path) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}{suffix}")

    def copy(
        self, source: sqlite3.Connection, path: Path, check: Callable[[sqlite3.Connection], None]
    ) -> None:
        target = sqlite3.connect(path)
        try:
            source.backup(target)
            check(target)
            # One file, without a log beside it, is what is sent.
            target.execute("PRAGMA journal_mode = DELETE")
        finally:
            target.close()

    def seize(self, path: Path) -> BinaryIO:
        file = open(path, "rb")  # noqa: SIM115 - whoever sends it closes it
        os.unlink(path)
        return file


def system_host() -> Host:
    """The host of a real node."""
    return Host(
        clock=SystemClock(),
        disk=SystemDisk(),
        offload=ThreadOffload(),
        network=LoopNetwork(),
        random=random.SystemRandom(),
        system_databases=SystemDatabases(),
    )


def keep_memory() -> None:
    """Let the allocator keep what large reads and frames give back, up to 64 MiB.

    Otherwise glibc returns each such block to the kernel, which has to clear its pages for the
    next one: most of the cost of a read. Other C libraries have no `mallopt`, and do as they do.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)


def allow_many_files() -> int:
    """Raise this process's limit of open files as far as it may go; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
