"""What a log asks of the disk, as values; and the one place where they are carried out.

Rule 1: the event loop makes steps and never waits for one; a disk's thread performs them in order.
Rule 2: a failed write is undone before anyone hears of it: all of a step or nothing.
Rule 3: what is short is the log's to bear: room (ENOSPC, EDQUOT), or descriptors (EMFILE, ENFILE).
        Any other error is the node's end.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tidelog.host import Bytes, Disk, Path, replace_file
from tidelog.log.segment import SUFFIXES, Segment
from tidelog.model import Offset

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORT: Final = _FULL | {errno.EMFILE, errno.ENFILE}

FREE_SPACE: Final = "free some space"
ALLOW_FILES: Final = "let the process open more files (`ulimit -n`)"


@dataclass(frozen=True, slots=True)
class Create:
    """Make the file of a new segment. All that came before it is synced by now.

    Its name becomes durable with its first bytes: the round that syncs them syncs the directory.
    """

    segment: Segment
    instead_of: Segment | None = None
    """A segment without batches, whose files go first: the new one covers its offsets."""


@dataclass(slots=True)
class Write:
    """Put `buffers` at `position`; afterwards the log is written up to `end`."""

    segment: Segment
    position: int
    buffers: list[Bytes]
    end: Offset


@dataclass(frozen=True, slots=True)
class Seal:
    """Finish a segment: sync its bytes, and write what a start will read instead of them."""

    segment: Segment
    beside: tuple[tuple[Path, bytes], ...]
    """The indexes, the epochs so far and the state of producers and transactions behind it."""


Step: TypeAlias = Create | Write | Seal


@dataclass(frozen=True, slots=True)
class Written:
    """Everything below `end` is in the files."""

    end: Offset


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Everything below `end` is in the files; the rest was undone: something was short."""

    end: Offset
    error: OSError


def is_full(error: OSError) -> bool:
    """Whether the disk had no room."""
    return error.errno in _FULL


def is_short(error: OSError) -> bool:
    """Whether room or descriptors were short: the disk has lost nothing, and may be asked again."""
    return error.errno in _SHORT


def shortage(error: OSError) -> str:
    """What is short, for who reads it."""
    what = "the disk is full" if is_full(error) else "no more files can be opened"
    return f"{what} ({error.strerror})"


def refusal(error: OSError) -> str:
    """What is short, and what an operator can do about it."""
    return f"{shortage(error)}; {FREE_SPACE if is_full(error) else ALLOW_FILES}"


def rewrite(disk: Disk, path: Path, content: bytes) -> None:
    """Replace a file that a start can do without; where something is short, another time."""
    try:
        replace_file(disk, path, content)
    except OSError as error:
        if not is_short(error):
            raise


def perform(
    disk: Disk,
    steps: list[Step],
    end: Offset,
    check: Callable[[], None] | None = None,
    spend: Callable[[Callable[[], None]], None] = lambda work: work(),
) -> Written | DiskFull:
    """Carry out `steps`; `end` is what was written before them. Raises OSError if all is lost.

    `check` raises if a sync has failed elsewhere. It is asked before a segment is made, after which
    the one before it counts as durable for ever: its own sync may have been told a lie. `spend`
    does a step, and does it again if it knows of more room (`reserve`).
    """
    for step in steps:
        if check is not None and isinstance(step, Create):
            check()
        try:
            spend(partial(_perform, disk, step))
        except OSError as error:
            if is_short(error):
                return DiskFull(end, error)
            raise
        if isinstance(step, Write):
            end = step.end
    return Written(end)


def _perform(disk: Disk, step: Step) -> None:
    match step:
        case Write():
            _write(disk, step)
        case Create():
            if step.instead_of is not None:
                _remove(disk, step.instead_of)
            file = disk.open(step.segment.path(), create=True)
            file.truncate(0)  # of a crash before this segment's first sync
            step.segment.file = file
        case Seal():
            step.segment.open(disk).datasync()
            for path, content in step.beside:
                replace_file(disk, path, content)


def _remove(disk: Disk, segment: Segment) -> None:
    """Remove the files of a segment without batches, durably.

    The snapshot stays: it tells who wrote what is deleted before the log's start.
    """
    for suffix in SUFFIXES:
        disk.remove(segment.path(suffix))
    disk.sync_directory(segment.directory)


def _write(disk: Disk, step: Write) -> None:
    file = step.segment.open(disk)
    try:
        file.write(step.position, step.buffers)
    except OSError as error:
        if is_short(error):
            file.truncate(step.position)
        raise
