"""Cutting a log's end off, for good.

Rule 1: the end goes from back to front: wherever a crash comes, what is left is the log, whole, up
        to some batch at or behind the cut. Nothing is left behind a gap.
Rule 2: whoever cuts has lowered the durable mark before, durably; otherwise the next start would
        take the cut for damage. If a sealed segment becomes the last one, whoever cuts has raised
        the mark to what was synced and stays; otherwise the next start would cut rot there.
Rule 3: performed in a disk's thread, while nothing writes to the log; afterwards it is opened anew.
Rule 4: a swap that was decided is finished first. The next start would finish it, and bring back
        what the cut has removed.
Rule 5: a sealed segment may be rotten until it is scrubbed. Where rot hides which bytes lie before
        the cut, none of its segment are removed: whoever opens the log finds the damage.
"""

from bisect import bisect_left
from collections.abc import Sequence

from tidelog.host import Disk, File, Path, replace_file
from tidelog.log.epochs import FILE_NAME as EPOCHS_FILE_NAME
from tidelog.log.epochs import OFFSET_MAX, EpochHistory
from tidelog.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_stem,
    walk,
)
from tidelog.log.swap import complete_swaps
from tidelog.model import Offset


def end_after_cut(disk: Disk, directory: Path, end: Offset, log_end: Offset = OFFSET_MAX) -> Offset:
    """Where the log, which ends at `log_end`, will end once it is cut at `end`.

    The durable mark may be no higher. A batch across `end` goes as a whole, and compaction may have
    left a gap before it. `end` itself where rot hides that.
    """
    complete_swaps(disk, directory)
    bases = _offsets(disk, directory, LOG_SUFFIX)
    at = bisect_left(bases, end) - 1
    if at < 0:
        return end if end in bases[:1] else 0
    file = disk.open(directory / (file_stem(bases[at]) + LOG_SUFFIX))
    try:
        found = _find_cut(file, bases[at], end, _end_of(at, bases, log_end))
    finally:
        file.close()
    return end if found is None else found[1]


def cut_end(
    disk: Disk, directory: Path, end: Offset, epochs: EpochHistory, log_end: Offset = OFFSET_MAX
) -> None:
    """Remove every batch that reaches past `end`, and note `epochs`, which end there.

    `log_end` is where the log ends.
    """
    complete_swaps(disk, directory)
    bases = _offsets(disk, directory, LOG_SUFFIX)
    for at, base in reversed(list(enumerate(bases))):
        if base < end or base == end == bases[0]:  # a log without a file has forgotten producers
            _shorten(disk, directory, base, end, _end_of(at, bases, log_end))
            break
        _remove(disk, directory, base)
    for offset in _offsets(disk, directory, SNAPSHOT_SUFFIX):
        if offset > end:
            disk.remove(directory / (file_stem(offset) + SNAPSHOT_SUFFIX))
    replace_file(disk, directory / EPOCHS_FILE_NAME, epochs.encode())  # syncs the directory, too


def _end_of(at: int, bases: Sequence[Offset], log_end: Offset) -> Offset:
    """No batch of a segment reaches past it."""
    return bases[at + 1] if at + 1 < len(bases) else log_end


def _find_cut(file: File, base: Offset, end: Offset, segment_end: Offset) -> tuple[int, Offset] | None:
    """How many bytes of a segment lie before `end`, and the offset behind; None if rot hides it."""
    size = file.size()
    position, sound_end = 0, base
    for header, at in walk(file, 0, size, base=base, check=True, has_gaps=True):
        if header.next_offset > segment_end:
            break  # its offset is not under the checksum
        if header.next_offset > end:
            return at, sound_end
        position, sound_end = at + header.size, header.next_offset
    return (position, sound_end) if position == size or sound_end >= end else None


def note_producers(disk: Disk, directory: Path, start: Offset, snapshot: bytes) -> None:
    """Note, durably, who wrote what is deleted before the `start` of an empty log."""
    replace_file(disk, directory / (file_stem(start) + SNAPSHOT_SUFFIX), snapshot)


def remove_all(disk: Disk, directory: Path, epochs: EpochHistory) -> None:
    """Empty a log whose content is kept elsewhere (a snapshot); it may begin anywhere after."""
    cut_end(disk, directory, -1, epochs)


def _shorten(disk: Disk, directory: Path, base: Offset, end: Offset, segment_end: Offset) -> None:
    file = disk.open(directory / (file_stem(base) + LOG_SUFFIX))
    try:
        found = _find_cut(file, base, end, segment_end)
        if found is not None and found[0] < file.size():
            file.truncate(found[0])
            file.datasync()
    finally:
        file.close()
    # They may point past the end. So may the index of aborted transactions, but the next start
    # builds that one anew; that it is there tells it to.
    _remove_indexes(disk, directory, base)


def _remove(disk: Disk, directory: Path, base: Offset) -> None:
    """One segment, its batches first: an index alone means nothing to a start."""
    disk.remove(directory / (file_stem(base) + LOG_SUFFIX))
    disk.sync_directory(directory)
    _remove_indexes(disk, directory, base)
    disk.remove(directory / (file_stem(base) + TXN_INDEX_SUFFIX))


def _remove_indexes(disk: Disk, directory: Path, base: Offset) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.remove(directory / (file_stem(base) + suffix))


def _offsets(disk: Disk, directory: Path, suffix: str) -> list[Offset]:
    stems = [n.removesuffix(suffix) for n in disk.list(directory) if n.endswith(suffix)]
    return sorted(int(s) for s in stems if s.isdecimal() and s == file_stem(int(s)))
