"""From files to a log: what a start finds, trusts, cuts and refuses to cut.

Rule 1: after a clean stop nothing is scanned: sizes, the active segment's indexes and the last
        few batches say all.
Rule 2: after a crash the active segment is scanned from its start, batch by batch. Every other
        segment was synced before this one was made.
Rule 3: bytes past the durable mark that do not check out are a torn tail and are cut. Bytes below
        it that do not check out are damage: nothing is cut, and the log takes no writes.
        A torn tail may have been rot of batches that were synced, unless it has no room for one:
        a file that rots becomes no shorter.
Rule 4: what the log knows of producers and transactions is the latest snapshot and a fold of the
        batches behind it. What of transactions has ended and may not be decided yet, or is lost
        of the files beside the segments, is a fold from further back.
Rule 5: a log that was begun at an offset never starts below it. If its files end before it, they
        hold deleted records alone and are removed; the log is empty, at its start.
Rule 6: before an end is reported, everything past the durable mark is written again and synced. A
        sync that failed before the crash may have left pages that look clean and are not.
Rule 7: what was scanned contradicts a file beside it. The epoch checkpoint and the producers'
        snapshots may be those of a tail that was lost: what they say past the log is put right on
        the disk before the log is handed out, since the log may grow past it again.
"""

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from tidelog.host import Disk, File, Path, finish_relinks, read_file, relink
from tidelog.log.aborted import AbortedIndex, AbortedIndexDamaged
from tidelog.log.epoch_recovery import load_epochs
from tidelog.log.epochs import FILE_NAME as EPOCHS_FILE_NAME
from tidelog.log.epochs import EpochHistory
from tidelog.log.index import IndexDamaged, OffsetIndex, TimeIndex
from tidelog.log.log import Log, LogState
from tidelog.log.producers import ProducerStates, SnapshotDamaged
from tidelog.log.scan import CHUNK_BYTES, Before, Scan
from tidelog.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_stem,
    find_batch,
    walk,
)
from tidelog.log.steps import rewrite
from tidelog.log.swap import complete_swaps
from tidelog.log.transactions import Transactions, fold
from tidelog.model import Offset
from tidelog.records import HEADER_BYTES

_log = logging.getLogger(__name__)


def open_log(
    disk: Disk,
    directory: Path,
    *,
    clean: bool,
    durable_mark: Offset,
    start: Offset,
    index_interval_bytes: int,
    has_gaps: bool = False,
    before: Before | None = None,
    watermark: Offset | None = None,
    before_cut: Callable[[Offset, int], None] = lambda end, size: None,
) -> LogState:
    """Bring the log in `directory` back.

    `clean`: the last stop was orderly. `durable_mark`: everything below it was synced. `start`:
    where the log began according to the checkpoint. `has_gaps`: offsets may be missing in the
    active segment, too, as a follower finds them in a leader's compacted log. `before`: what this
    process knows of the log, if it opens it again. An earlier one may have failed to sync a name;
    in this one a failed sync is the node's end. `watermark`: what ended below it is decided;
    without one, all that ended before the last snapshot counts as such.
    `before_cut` is called before bytes are discarded that may have been a batch, with the offset
    where the log will end, and how many they are.
    """
    finish_relinks(disk, directory)
    complete_swaps(disk, directory)
    names = disk.list(directory)
    for name in names:
        if name.endswith(".tmp"):
            disk.remove(directory / name)
    bases = _offsets_in(names, LOG_SUFFIX)
    if not bases:
        state = without_batches(directory, start)
        if start < durable_mark:
            _refuse(disk, state, durable_mark)
        else:
            left = _remove_strays(disk, directory, names, state)
            if len(names) > 1:  # what a cut has removed, and a full disk kept it from syncing
                disk.sync_directory(directory)
            _load_transactions(disk, directory, state, left, watermark)
        return state
    sealed = [_open_sealed(disk, directory, base) for base in bases[:-1]]
    active = Segment(directory, bases[-1])
    file = active.open(disk)
    end = _load_active(disk, active, file, durable_mark) if clean else None
    scan = None
    state = LogState(
        segments=[*sealed, active],
        epochs=EpochHistory(),
        producers=ProducerStates(),
        start=max(start, bases[0]),
        end=end if end is not None else active.base,
    )
    state.clean = end is not None
    if end is None:
        scan = Scan(
            active,
            start=state.start,
            mark=durable_mark,
            interval_bytes=index_interval_bytes,
            has_gaps=has_gaps,
            before=before or Before(),
        )
        _scan_active(disk, state, file, scan, durable_mark, before_cut)
        if before is None and active.base >= durable_mark:  # its name may be as new as its bytes
            relink(disk, active.path())
        disk.sync_directory(directory)
    if state.end < start:
        _log.warning("%s: its files end at %d, before its start", directory.name, state.end)
        return _emptied(disk, directory, names, start, state.discarded_bytes, watermark)
    if state.damaged_at is None:
        names = _remove_strays(disk, directory, names, state)
    load_epochs(disk, directory, state)
    _load_transactions(disk, directory, state, names, watermark, scan)
    return state


def without_batches(directory: Path, start: Offset = 0, discarded_bytes: int = 0) -> LogState:
    """A log without batches, or a file for them; as it is in a directory made just now."""
    return LogState(
        segments=[Segment(directory, start)],
        epochs=EpochHistory(),
        producers=ProducerStates(),
        start=start,
        end=start,
        created=False,
        discarded_bytes=discarded_bytes,
    )


def _emptied(
    disk: Disk,
    directory: Path,
    names: Sequence[str],
    start: Offset,
    discarded_bytes: int,
    watermark: Offset | None,
) -> LogState:
    """Remove a log's files, from back to front, so that a crash leaves no gap in it."""
    for base in reversed(_offsets_in(names, LOG_SUFFIX)):
        disk.remove(directory / (file_stem(base) + LOG_SUFFIX))
        disk.sync_directory(directory)
    disk.remove(directory / EPOCHS_FILE_NAME)
    disk.sync_directory(directory)
    state = without_batches(directory, start, discarded_bytes)
    left = _remove_strays(disk, directory, names, state)
    _load_transactions(disk, directory, state, left, watermark)
    return state


def _offsets_in(names: Sequence[str], suffix: str) -> list[Offset]:
    """The offsets in the names of a kind of file; names that are not ours are passed over."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(s) for s in stems if s.isdecimal() and s == file_stem(int(s)))


def _open_sealed(disk: Disk, directory: Path, base: Offset) -> Segment:
    segment = Segment(directory, base)
    segment.size = disk.open(segment.path()).size()
    segment.offsets = segment.times = None
    return segment


def _load_active(disk: Disk, active: Segment, file: File, durable_mark: Offset) -> Offset | None:
    """The end of a log that was stopped cleanly, or None if its files contradict that."""
    size = file.size()
    try:
        active.offsets = OffsetIndex.decode(read_file(disk, active.path(INDEX_SUFFIX)), size_max=size)
        active.times = TimeIndex.decode(read_file(disk, active.path(TIME_INDEX_SUFFIX)))
    except (FileNotFoundError, IndexDamaged):
        active.offsets, active.times = OffsetIndex(), TimeIndex()
        return None
    end, position = active.base, active.offsets.last_position()
    for header, at in walk(file, position, size):
        end = header.next_offset
        position = at + header.size
    if position != size or end != durable_mark:  # a clean stop leaves nothing that is not durable
        active.offsets, active.times = OffsetIndex(), TimeIndex()
        return None
    if last := active.times.last():
        active.max_timestamp_ms, relative = last
        active.max_timestamp_offset = active.base + relative
    first = find_batch(file, 0, size, active.base)
    if first is not None:
        active.first_timestamp_ms = first[1].max_timestamp
    active.size = size
    return end


def _scan_active(
    disk: Disk,
    state: LogState,
    file: File,
    scan: Scan,
    durable_mark: Offset,
    before_cut: Callable[[Offset, int], None],
) -> None:
    """Check every batch; cut a torn tail, or note damage; make what is left durable."""
    active, size = state.segments[-1], file.size()
    scan.run(file)
    state.end, state.epochs = scan.end, scan.epochs
    if state.end < durable_mark:
        _refuse(disk, state, durable_mark)
        return
    if active.size < size:
        torn_bytes = size - active.size
        _log.warning(
            "%s: cut %d bytes of a torn tail after offset %d", active.directory.name, torn_bytes, state.end
        )
        if torn_bytes >= HEADER_BYTES:
            state.discarded_bytes = torn_bytes
            before_cut(state.end, torn_bytes)
        file.truncate(active.size)
    for position in range(scan.marked_size, active.size, CHUNK_BYTES):
        chunk = file.read(position, min(CHUNK_BYTES, active.size - position))
        file.write(position, [chunk])
    file.datasync()
    # An earlier sync may have failed. The kernel then calls pages clean that it never wrote, and may
    # drop them between two reads: the second one gets older bytes from the device. The next start
    # finds those, and cuts them.
    if not scan.is_still_there(file):
        raise OSError(
            errno.EIO, f"bytes past {scan.marked_size} have changed since they were read", str(active.path())
        )


def _refuse(disk: Disk, state: LogState, durable_mark: Offset) -> None:
    """Note damage. The log still ends where it did, so that nobody is shown less than before."""
    active = state.segments[-1]
    _log.error(
        "%s cannot be read at offset %d, byte %d of %s, though everything below offset %d was "
        "synced. Nothing is cut; the partition takes no writes",
        active.directory.name,
        state.end,
        active.size,
        active.path().name,
        durable_mark,
    )
    state.damaged_at, state.end = state.end, durable_mark
    # Neither written at the next stop nor found at the next start, which must scan again.
    active.offsets = active.times = None
    disk.remove(active.path(INDEX_SUFFIX))
    disk.remove(active.path(TIME_INDEX_SUFFIX))


def find_damage(disk: Disk, log: Log, offset: Offset) -> tuple[Offset | None, bool]:
    """Look at the segment that holds `offset`.

    Its first batch that does not check out, if any, and whether offsets are missing before that.
    """
    written_end = log.written_end
    segments = list(log.segments)
    at = bisect_right(segments, offset, key=lambda s: s.base) - 1
    if at < 0:
        return None, False
    segment = segments[at]
    file = segment.open(disk)
    size, position, has_gap = file.size(), 0, False
    end = last = segment.base
    for header, found in walk(file, 0, size, base=segment.base, check=True, has_gaps=True):
        has_gap |= header.base_offset > end
        last, position, end = end, found + header.size, header.next_offset
    if segment is segments[-1]:
        return (None if end >= written_end else end), has_gap
    if position < size:
        return end, has_gap
    following = segments[at + 1].base
    if end > following:  # the last batch is not where it says
        return last, has_gap
    return None, has_gap or end < following


def _remove_strays(disk: Disk, directory: Path, names: Sequence[str], state: LogState) -> list[str]:
    """Remove, durably, what lies beside segments that are gone; the names that are left.

    A cut that was interrupted leaves them. Were the log to grow past it, a snapshot of producers
    would be believed that have written nothing here. Where no segment is left, only a snapshot at
    the log's very start is of its own past: retention has deleted the rest.
    """
    bases = {segment.base for segment in state.segments} if state.created else ()
    gone = [
        file_stem(offset) + suffix
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
        for offset in _offsets_in(names, suffix)
        if (
            offset > state.end or (offset != state.end and not state.created)
            if suffix == SNAPSHOT_SUFFIX
            else offset not in bases
        )
    ]
    for name in gone:
        disk.remove(directory / name)
    if gone:
        disk.sync_directory(directory)
    return [name for name in names if name not in gone]


def _load_transactions(
    disk: Disk,
    directory: Path,
    state: LogState,
    names: Sequence[str],
    watermark: Offset | None,
    scan: Scan | None = None,
) -> None:
    """The producers' state, which transactions may be undecided, and which were aborted.

    What a `scan` has just checked is not checked again.
    """
    snapshots = _offsets_in(names, SNAPSHOT_SUFFIX)
    producers, folded_to, is_noted = _newest_snapshot(disk, state, snapshots)
    with_index = _offsets_in(names, TXN_INDEX_SUFFIX)
    found: list[AbortedIndex | None] = []
    transactions = Transactions()
    rotten: set[Segment] = set()
    if with_index or producers.has_markers():
        found = _read_aborted(disk, state, with_index)
        lost = [s.base for s, index in zip(state.segments, found, strict=True) if index is None]
        needed_from = min([folded_to if watermark is None else watermark, *lost])
        if needed_from < folded_to:
            usable = [offset for offset in snapshots if offset <= needed_from]
            if not usable:  # whatever ended before the log's start is decided
                usable = [offset for offset in snapshots if offset <= state.start]
            earlier, start, _ = _newest_snapshot(disk, state, usable)
            _fold(disk, state, start, folded_to, earlier, transactions, rotten, scan)
    producers = _fold(disk, state, folded_to, state.end, producers, transactions, rotten, scan)
    transactions.has_markers |= bool(found)
    if found:
        _mend_aborted(disk, state, found, transactions, rotten)
    state.producers, state.transactions = producers, transactions
    has_batches = state.damaged_at is not None or any(s.size for s in state.segments)
    is_known = has_batches or state.end == 0 or (is_noted and folded_to == state.end)
    state.lacks_producers = not is_known
    first = state.segments[0].base
    if has_batches and first > 0 and snapshots and not is_noted:
        state.lacks_before = first


def _newest_snapshot(
    disk: Disk, state: LogState, snapshots: Sequence[Offset]
) -> tuple[ProducerStates, Offset, bool]:
    """The last of `snapshots` that is usable and its offset; else nothing, at the first batch.

    And whether there was a usable one.
    """
    directory = state.segments[0].directory
    for offset in reversed(snapshots):
        path = directory / (file_stem(offset) + SNAPSHOT_SUFFIX)
        try:
            return ProducerStates.decode(read_file(disk, path)), offset, True
        except (FileNotFoundError, SnapshotDamaged) as error:
            _log.warning("%s: %s is unusable (%s)", directory.name, path.name, error)
    return ProducerStates(), state.segments[0].base, False


def _fold(
    disk: Disk,
    state: LogState,
    start: Offset,
    end: Offset,
    producers: ProducerStates,
    transactions: Transactions,
    rotten: set[Segment],
    scan: Scan | None,
) -> ProducerStates:
    """Take every batch of [start, end); how producers stand then. Note which segments are `rotten`.

    A sealed segment may be rotten until it is scrubbed. What rot hides there may have ended a
    transaction, which counts as undecided until the watermark has passed the segment; and the
    snapshot at the segment's end tells how producers stood.
    """
    for segment, segment_end in _spans(state):
        if not segment.size or segment_end <= start or segment.base >= end:
            continue
        scanned = scan if segment is state.segments[-1] else None
        sound_end = _fold_segment(disk, segment, segment_end, start, end, producers, transactions, scanned)
        if sound_end is None:
            continue
        _log.warning("%r is rotten at offset %d", segment, sound_end)
        rotten.add(segment)
        transactions.note_hidden(producers, sound_end, segment_end)
        path = segment.directory / (file_stem(segment_end) + SNAPSHOT_SUFFIX)
        with suppress(FileNotFoundError, SnapshotDamaged):
            producers = ProducerStates.decode(read_file(disk, path))
    return producers


def _fold_segment(
    disk: Disk,
    segment: Segment,
    segment_end: Offset,
    start: Offset,
    end: Offset,
    producers: ProducerStates,
    transactions: Transactions,
    scan: Scan | None,
) -> Offset | None:
    """Take the batches of one segment; where the first lies that does not check out, if any."""
    file, sound_end = segment.open(disk), segment.base
    position = segment.position_before(disk, start)
    if scan is not None:
        position = max(position, segment.size if scan.written_from is None else scan.written_from)
    batches = walk(file, position, segment.size, base=segment.base, check=scan is None, has_gaps=True)
    for header, at in batches:
        if header.next_offset > segment_end:
            break  # its offset is not under the checksum
        if header.next_offset > end:
            return None
        # A log that was begun inside of a batch has that batch and a snapshot from before it.
        if header.next_offset > start and header.is_idempotent:
            batch = file.read(at, header.size) if header.is_control else b""
            fold(producers, transactions, header, batch)
        sound_end, position = header.next_offset, at + header.size
    return None if position == segment.size else sound_end


def _spans(state: LogState) -> list[tuple[Segment, Offset]]:
    """Each segment, and where it ends."""
    ends = [segment.base for segment in state.segments[1:]] + [state.end]
    return list(zip(state.segments, ends, strict=True))


def _read_aborted(disk: Disk, state: LogState, with_index: Sequence[Offset]) -> list[AbortedIndex | None]:
    """The aborted transactions of each segment by its file; None where only the batches can tell.

    A segment has a file if a transaction had ended in the log when it was sealed. So before the
    first one that has, the snapshot at a segment's end tells whether it lacks one.
    """
    found: list[AbortedIndex | None] = []
    is_expected = True
    for segment, end in reversed(_spans(state)):
        index: AbortedIndex | None = None
        is_active = segment is state.segments[-1]
        if segment.base in with_index and (state.clean or not is_active):
            try:
                data = read_file(disk, segment.path(TXN_INDEX_SUFFIX))
                index = AbortedIndex.decode(data, start=segment.base, end=end)
            except (FileNotFoundError, AbortedIndexDamaged) as error:
                _log.warning("%s: its index of aborted transactions is lost (%s)", segment, error)
        elif not is_active:
            is_expected = is_expected and (
                segment.base > min(with_index, default=state.end)
                or _had_markers(disk, segment.directory, end)
            )
            index = None if is_expected else AbortedIndex()
        found.append(index)
    return found[::-1]


def _had_markers(disk: Disk, directory: Path, offset: Offset) -> bool:
    """Whether a transaction had ended before `offset`, or nobody knows."""
    try:
        path = directory / (file_stem(offset) + SNAPSHOT_SUFFIX)
        return ProducerStates.decode(read_file(disk, path)).has_markers()
    except (FileNotFoundError, SnapshotDamaged):
        return True


def _mend_aborted(
    disk: Disk,
    state: LogState,
    found: Sequence[AbortedIndex | None],
    transactions: Transactions,
    rotten: Collection[Segment],
) -> None:
    """Take what the files tell of aborted transactions, and what the fold does where they do not.

    Files that were lost are written again, that of an active segment only after a clean stop; on a
    full disk, or if rot hides some of the segment, another time.
    """
    folded, transactions.aborted = transactions.aborted, AbortedIndex()
    for (segment, end), index in zip(_spans(state), found, strict=True):
        if index is None:
            index = folded.between(segment.base, end)
            is_whole = state.clean or segment is not state.segments[-1]
            if is_whole and segment not in rotten:
                rewrite(disk, segment.path(TXN_INDEX_SUFFIX), index.encode())
        transactions.aborted.extend(index)
