"""Files that are replaced or named anew, so that a crash leaves them whole."""

import os
from typing import Final

from tidelog.host.doors import Bytes, Disk, Path

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
