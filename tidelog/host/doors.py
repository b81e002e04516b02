"""The doors: clock, disk, threads, databases and network, as a node sees them."""

import asyncio
import sqlite3
import ssl
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol, TypeAlias, TypeVar

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


class Listening(Protocol):
    """Accepts connections."""

    def close(self) -> None:
        """Accept no further ones."""


class Network(Protocol):
    """Byte streams between nodes."""

    async def serve(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Listening: ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...
