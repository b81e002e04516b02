"""How compacted segments take the place of old ones, whole at any crash.

Rule 1: new files are written and synced under `.cleaned`, where they count for nothing.
Rule 2: the name `<base>.log.swap` decides. While it is not there, the old segments are the log;
        once it is, the new one is, and a start finishes what the crash interrupted.
Rule 3: a compacted segment keeps the last batch of its range, if need be without records. So the
        file itself tells which old segments it replaces: those whose base lies inside of it.
Rule 4: each step is durable before one that relies on it.

    <base>.log.cleaned --commit--> <base>.log.swap --finish--> <base>.log
           |                              ^
        discard                    complete_swaps, at the next start

The names are Kafka's, and so is the rule by which a start finds what was replaced.
"""

import logging
from typing import Final

from tidelog.host import Disk, File, Path
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, file_stem
from tidelog.model import Offset
from tidelog.records import HEADER_BYTES, batch_size_at, read_header

_log = logging.getLogger(__name__)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_INDEXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
"""Not every segment has the last one."""
_CHUNK_BYTES: Final = 1024 * 1024


def cleaned_path(directory: Path, base: Offset, suffix: str) -> Path:
    """Where a file of a segment is written before it counts."""
    return directory / (file_stem(base) + suffix + CLEANED_SUFFIX)


def commit_swap(disk: Disk, directory: Path, base: Offset) -> None:
    """Decide for the new segment at `base`. Its files are whole and synced by now."""
    stem = file_stem(base)
    for suffix in _INDEXES:
        cleaned = directory / (stem + suffix + CLEANED_SUFFIX)
        if disk.exists(cleaned):
            disk.rename(cleaned, directory / (stem + suffix + SWAP_SUFFIX))
    disk.sync_directory(directory)  # else the decision could outlive the indexes' names
    disk.rename(
        directory / (stem + LOG_SUFFIX + CLEANED_SUFFIX), directory / (stem + LOG_SUFFIX + SWAP_SUFFIX)
    )
    disk.sync_directory(directory)


def finish_swap(disk: Disk, directory: Path, base: Offset, end: Offset) -> None:
    """Remove what the new segment, which covers `base` to `end`, replaces; give it its name.

    Whatever of it was done before a crash is done already, and the rest is done now.
    """
    stem = file_stem(base)
    for name in disk.list(directory):
        number, _, kind = name.partition(".")
        # Of the producers' snapshots only those at the two ends are still of use.
        if number.isdigit() and base < int(number) < end and not kind.endswith(SWAP_SUFFIX):
            disk.remove(directory / name)
    for suffix in _INDEXES:
        swap = directory / (stem + suffix + SWAP_SUFFIX)
        if disk.exists(swap):
            disk.rename(swap, directory / (stem + suffix))
    disk.sync_directory(directory)  # the log's own rename ends the story, so it comes last
    disk.rename(directory / (stem + LOG_SUFFIX + SWAP_SUFFIX), directory / (stem + LOG_SUFFIX))
    disk.sync_directory(directory)


def discard_cleaned(disk: Disk, directory: Path, base: Offset) -> None:
    """Remove files that were written and will not be used."""
    for suffix in (LOG_SUFFIX, *_INDEXES):
        disk.remove(cleaned_path(directory, base, suffix))


def complete_swaps(disk: Disk, directory: Path) -> None:
    """Finish every swap that was decided, and remove what was written for others.

    A start calls it before it looks for segments.
    """
    names = disk.list(directory)
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            # If a process died, not the machine, we may see a decision that is not durable yet.
            disk.sync_directory(directory)
            base = int(name.partition(".")[0])
            end = _end_of(disk.open(directory / name), base)
            _log.warning(
                "%s: finishing the swap of the segment for offsets %d to %d that was compacted",
                directory.name,
                base,
                end - 1,
            )
            finish_swap(disk, directory, base, end)
    for name in names:
        # An index that waits for a swap without a log belongs to one that was not decided.
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            disk.remove(directory / name)


def _end_of(file: File, base: Offset) -> Offset:
    """The offset after the last batch; only headers are looked at."""
    position, size, end = 0, file.size(), base
    while position < size:
        chunk = file.read(position, min(_CHUNK_BYTES, size - position))
        at = 0
        while len(chunk) - at >= HEADER_BYTES and (batch := batch_size_at(chunk, at, len(chunk))):
            end = read_header(chunk, at).next_offset
            at += batch
        if at == 0:
            break
        position += at
    return end
