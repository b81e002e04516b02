"""SQLite databases: in memory and saved through a `Disk`, or files of their own."""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from io import BytesIO
from typing import BinaryIO

from tidelog.host.doors import Disk, Path
from tidelog.host.files import read_file, replace_file


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
