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
import ctypes
import errno
import fcntl
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol, TypeAlias, TypeVar
from uuid import UUID

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

    def read_cached(self, position: int, size: int) -> bytes | None:
        """The bytes if memory holds them, None if that would touch the device. Never blocks."""
        ...

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        """Write all of `buffers` one after the other at `position`, or raise OSError.

        After an error any part may have been written; the caller truncates.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None:
        """Return when the file's bytes and its size are durable."""
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

    def lock(self, path: Path) -> File:
        """Open `path` for this process alone; BlockingIOError if another holds it."""
        ...


class Offload(Protocol):
    """Runs blocking work away from the event loop."""

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Start `work`; the future completes on the loop."""
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

    def new_id(self) -> UUID:
        """A random version 4 UUID. Kafka never uses one whose text starts with a dash."""
        while True:
            value = UUID(int=self.random.getrandbits(128), version=4)
            if value.bytes[0] >> 2 != 0b111110:  # base64url's first letter would be '-'
                return value


def replace_file(disk: Disk, path: Path, content: Bytes) -> None:
    """Put `content` at `path` so that a crash leaves the old file or the new one, whole.

    Written and synced aside, then renamed, then the name itself synced.
    """
    aside = path.with_name(path.name + ".tmp")
    file = disk.open(aside, create=True)
    try:
        file.truncate(0)
        file.write(0, [content])
        file.datasync()
    finally:
        file.close()
    disk.rename(aside, path)
    disk.sync_directory(path.parent)


def read_file(disk: Disk, path: Path) -> bytes:
    """The whole content of `path`; FileNotFoundError if it is not there."""
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


# The real ones.

_IOV_MAX = 1024  # Linux's limit of buffers per call
_libc = ctypes.CDLL(None, use_errno=True)


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


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

    def read_cached(self, position: int, size: int) -> bytes | None:
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
                return None
            raise
        if got < size:
            return None  # the rest is on the device, or the file ends here: the caller asks again
        return bytes(buffer)

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
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
        os.fdatasync(self._fd)

    def lock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class SystemDisk:
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
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_everything(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:  # since Linux 5.8 it reports failed write-back
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(path))
        finally:
            os.close(fd)

    def lock(self, path: Path) -> SystemFile:
        file = self.open(path, create=True)
        file.lock()
        return file

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class ThreadOffload:
    """A few threads: one for writes, one for syncs, the rest for cold reads and housekeeping."""

    def __init__(self, threads: int = 6) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="disk")

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


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


def system_host() -> Host:
    """The host of a real node."""
    return Host(
        clock=SystemClock(),
        disk=SystemDisk(),
        offload=ThreadOffload(),
        network=LoopNetwork(),
        random=random.SystemRandom(),
    )


def allow_many_files() -> int:
    """Raise this process's limit of open files as far as it may go; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
