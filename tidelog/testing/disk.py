"""The system's disk, as one node of a test has it: it can be slow, and it can fail.

Rule 1: what is not failed is done, by the system's own disk: files, locks and syncs are real.
Rule 2: once the life is over nothing is changed: who still wants to is refused.
Rule 3: troubles belong to the node, not to one run of it: who starts on a slow disk is slow.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal, TypeAlias

from tidelog.host import Bytes, File, Path, SystemDatabase, SystemDatabases, SystemDisk, SystemFile
from tidelog.testing.lives import Life

Kind: TypeAlias = Literal["read", "write", "sync"]
KINDS: Final[tuple[Kind, ...]] = ("read", "write", "sync")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiskTrouble:
    """What happens to some kinds of work on a disk."""

    kinds: frozenset[Kind]
    seconds: float = 0.0
    """How much longer it takes."""
    code: int = 0
    """The error that it fails with, of `errno`; 0 if it does not fail."""


class DiskTroubles:
    """What is wrong with a node's disk. Changed by one thread, looked at by many."""

    def __init__(self) -> None:
        self._active: tuple[DiskTrouble, ...] = ()

    def add(self, trouble: DiskTrouble) -> None:
        self._active = (*self._active, trouble)

    def remove(self, trouble: DiskTrouble) -> None:
        self._active = tuple(other for other in self._active if other is not trouble)

    @property
    def is_full(self) -> bool:
        return any(trouble.code == errno.ENOSPC for trouble in self._active)

    def concern(self, kind: Kind) -> bool:
        return any(kind in trouble.kinds for trouble in self._active)

    def strike(self, kind: Kind, life: Life) -> None:
        """Let it take its time, then fail if it should; OSError, too, once the life is over."""
        for trouble in self._active:
            if kind in trouble.kinds:
                if trouble.seconds:
                    life.over.wait(trouble.seconds)
                if trouble.code:
                    raise OSError(trouble.code, f"{os.strerror(trouble.code)}, as the test wants")
        if life.is_over and kind != "read":
            raise OSError(errno.ESHUTDOWN, "the node is gone")


class NodeFile:
    """A file of one life; it closes with its last reference, as every `File`."""

    __slots__ = ("__weakref__", "_disk", "_file")

    def __init__(self, disk: "NodeDisk", file: File) -> None:
        self._disk = disk
        self._file = file
        disk.life.files.add(self)

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, size: int) -> bytes:
        self._disk.strike("read")
        return self._file.read(position, size)

    def read_cached(self, position: int, size: int) -> Bytes | None:
        if self._disk.troubles.concern("read"):
            return None  # a slow disk must not block who reads on the event loop
        return self._file.read_cached(position, size)

    def read_device(self, position: int, size: int) -> bytes:
        self._disk.strike("read")
        return self._file.read_device(position, size)

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        self._disk.strike("write")
        self._file.write(position, buffers)

    def truncate(self, size: int) -> None:
        self._disk.strike("write")
        self._file.truncate(size)

    def datasync(self) -> None:
        self._disk.strike("sync")
        self._file.datasync()

    def close(self) -> None:
        self._file.close()


class NodeDisk:
    """A `tidelog.host.Disk` for one life."""

    def __init__(self, life: Life, troubles: DiskTroubles) -> None:
        self.life = life
        self.troubles = troubles
        self._disk = SystemDisk()

    def strike(self, kind: Kind) -> None:
        self.troubles.strike(kind, self.life)

    def open(self, path: Path, *, create: bool = False) -> NodeFile:
        self.strike("write" if create else "read")
        return NodeFile(self, self._disk.open(path, create=create))

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def list(self, path: Path) -> list[str]:
        return self._disk.list(path)

    def is_directory(self, path: Path) -> bool:
        return self._disk.is_directory(path)

    def make_directory(self, path: Path) -> None:
        self.strike("write")
        self._disk.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.strike("write")
        self._disk.rename(source, target)

    def remove(self, path: Path) -> None:
        self._refuse_if_over()
        self._disk.remove(path)

    def remove_tree(self, path: Path) -> None:
        self._refuse_if_over()
        self._disk.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        self.strike("sync")
        self._disk.sync_directory(path)

    def sync_everything(self, path: Path) -> None:
        """Sync all files below `path`, not the whole file system, on which others work as well."""
        self.strike("sync")
        for directory, _, names in os.walk(path):
            for name in names:
                self._sync_file(Path(directory) / name)
            self._disk.sync_directory(Path(directory))

    def _sync_file(self, path: Path) -> None:
        try:
            file: SystemFile = self._disk.open(path)
        except FileNotFoundError:  # removed meanwhile, or a socket
            return
        try:
            file.datasync()
        finally:
            file.close()

    def free_bytes(self, path: Path) -> int:
        return 0 if self.troubles.is_full else self._disk.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self._disk.total_bytes(path)

    def lock(self, path: Path) -> NodeFile:
        return NodeFile(self, self._disk.lock(path))

    def _refuse_if_over(self) -> None:
        if self.life.is_over:
            raise OSError(errno.ESHUTDOWN, "the node is gone")


class NodeDatabase:
    """A database of one life."""

    def __init__(self, life: Life, database: SystemDatabase) -> None:
        self._database = database
        self.writer: sqlite3.Connection = database.writer
        self.reader: sqlite3.Connection = database.reader
        life.databases.add(self)

    def save(self) -> None:
        self._database.save()

    def close(self) -> None:
        self._database.close()


class NodeDatabases:
    """A `tidelog.host.Databases` for one life. Troubles of the disk do not reach them."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._databases = SystemDatabases()

    def open(self, path: Path) -> NodeDatabase:
        return NodeDatabase(self._life, self._databases.open(path))

    def remove(self, path: Path) -> None:
        self._databases.remove(path)

    def copy(
        self, source: sqlite3.Connection, path: Path, check: Callable[[sqlite3.Connection], None]
    ) -> None:
        self._databases.copy(source, path, check)

    def seize(self, path: Path) -> BinaryIO:
        return self._databases.seize(path)


def kinds_of(what: Iterable[str]) -> frozenset[Kind]:
    """The kinds by their names; ValueError with those that there are."""
    wanted = set(what)
    if unknown := wanted - set(KINDS):
        raise ValueError(f"a disk knows no {', '.join(sorted(unknown))}; only {', '.join(KINDS)}")
    return frozenset(kind for kind in KINDS if kind in wanted)
