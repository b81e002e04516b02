"""Snapshots of the metadata: files beside the metadata log, each the whole of a prefix of it.

Rule 1: a snapshot is written aside, synced and renamed: a file with its name is whole.
Rule 2: it is checked before it is believed; a rotten one counts for nothing.
Rule 3: all calls block on the disk; they are made from its threads.
"""

# <end: 20 digits>-<epoch: 10 digits>.checkpoint := crc32c: uint32 (big-endian), records

import logging
import struct
from typing import Final

import crc32c

from tidelog.host import Disk, Path, read_file, replace_file
from tidelog.raft.messages import SnapshotId

_log = logging.getLogger(__name__)

SUFFIX: Final = ".checkpoint"
_CRC: Final = struct.Struct(">I")


def file_name(snapshot: SnapshotId) -> str:
    return f"{snapshot.end:020d}-{snapshot.epoch:010d}{SUFFIX}"


def parse_name(name: str) -> SnapshotId | None:
    """The snapshot that a file is, by its name; None if it is none."""
    end, dash, epoch = name.removesuffix(SUFFIX).partition("-")
    if not (name.endswith(SUFFIX) and dash and end.isdecimal() and epoch.isdecimal()):
        return None
    found = SnapshotId(int(end), int(epoch))
    return found if file_name(found) == name else None


class Snapshots:
    """The snapshots in one directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    def all(self) -> list[SnapshotId]:
        """From the oldest to the newest."""
        found = (parse_name(name) for name in self._disk.list(self._directory))
        return sorted(snapshot for snapshot in found if snapshot is not None)

    def newest(self) -> tuple[SnapshotId, bytes] | None:
        """The newest one that checks out, and its records."""
        for snapshot in reversed(self.all()):
            content = read_file(self._disk, self._directory / file_name(snapshot))
            records = checked(content)
            if records is not None:
                return snapshot, records
            _log.error("%s is damaged and passed over", self._directory / file_name(snapshot))
        return None

    def write(self, snapshot: SnapshotId, records: bytes) -> None:
        """Keep a snapshot of our own making."""
        self.keep(snapshot, _CRC.pack(crc32c.crc32c(records)) + records)

    def keep(self, snapshot: SnapshotId, content: bytes) -> None:
        """Keep a snapshot as a peer has it, durably."""
        replace_file(self._disk, self._directory / file_name(snapshot), content)

    def read(self, snapshot: SnapshotId, position: int, size: int) -> tuple[int, bytes]:
        """The size of the whole file, and a piece of it; (0, b"") if it is not here."""
        try:
            file = self._disk.open(self._directory / file_name(snapshot))
        except FileNotFoundError:
            return 0, b""
        try:
            return file.size(), file.read(position, size)
        finally:
            file.close()

    def remove_before(self, oldest_kept: SnapshotId) -> None:
        for snapshot in self.all():
            if snapshot < oldest_kept:
                self._disk.remove(self._directory / file_name(snapshot))


def checked(content: bytes) -> bytes | None:
    """The records of a snapshot's file; None if it is damaged."""
    if len(content) < _CRC.size:
        return None
    records = content[_CRC.size :]
    return records if _CRC.unpack_from(content)[0] == crc32c.crc32c(records) else None
