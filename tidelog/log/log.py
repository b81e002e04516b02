"""One partition's log on one disk: memory first, files in rounds.

Rule 1: `append`, `roll` and `read` touch memory only. What the files must learn is queued as steps
        (see `steps`), which a disk's thread performs; `wrote` and `synced` report back.
Rule 2: start <= synced_end <= written_end <= end. What lies in [written_end, end) is readable from
        the tail alone and is lost if the process dies; nobody was told that it is safe.
Rule 3: a log that is damaged or full is still readable; `refusal` says why it takes no writes.
Rule 4: a log may start inside of a batch: the file then begins with that batch, whole, and `start`
        says which of its records are deleted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tidelog.config import TopicConfig
from tidelog.errors import OffsetOutOfRange, StorageError
from tidelog.host import Bytes, Disk, File, Path
from tidelog.log.epochs import FILE_NAME as EPOCHS_FILE_NAME
from tidelog.log.epochs import EpochHistory
from tidelog.log.producers import ProducerStates
from tidelog.log.reading import ColdRead, Read
from tidelog.log.reserve import Reserve
from tidelog.log.segment import (
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_stem,
)
from tidelog.log.steps import Create, DiskFull, Seal, Step, Write, Written, perform
from tidelog.log.tail import Tail, TailBudget
from tidelog.log.transactions import Transactions, find_marker
from tidelog.model import Epoch, Offset, ProducerId
from tidelog.records import CONTROL, PREFIX_BYTES, BatchHeader


@dataclass(slots=True, kw_only=True)
class LogState:
    """A log as it was found on disk; what `recovery.open_log` hands to `Log`."""

    segments: list[Segment]
    epochs: EpochHistory
    producers: ProducerStates
    start: Offset
    end: Offset
    transactions: Transactions = field(default_factory=Transactions)
    created: bool = True
    """Whether the active segment's file exists."""
    clean: bool = False
    """Whether the files beside the active segment are those of a clean stop at `end`."""
    discarded_bytes: int = 0
    """Bytes of a torn tail that were cut off, and may have been a batch."""
    damaged_at: Offset | None = None
    """The first offset that was durable once and cannot be read any more."""
    is_anew: bool = False
    """Whether this log lacks what its partition had in the same process before, or most of it."""
    lacks_producers: bool = False
    """Whether no file tells who wrote the records that were deleted before the first batch."""
    lacks_before: Offset | None = None
    """The first batch, if the file that told who wrote what was deleted before it is rotten."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Steps of one log for a disk's thread."""

    log: "Log"
    steps: list[Step]
    segment: Segment
    written_end: Offset
    size: int
    """How many bytes of batches it writes."""

    def perform(self, disk: Disk, check: Callable[[], None] | None = None) -> Written | DiskFull:
        reserve = self.log.reserve
        if reserve is None:
            return perform(disk, self.steps, self.written_end, check)
        return perform(disk, self.steps, self.written_end, check, reserve.spend)

    @property
    def creates(self) -> bool:
        """Whether a file is made, whose name must become durable too."""
        return any(type(step) is Create for step in self.steps)

    def unsynced(self) -> list[File | Path]:
        """What must be synced, once performed, for its bytes to be durable."""
        file = self.segment.file
        targets: list[File | Path] = [] if file is None else [file]
        if self.creates:
            targets.append(self.segment.directory)
        return targets


class Log:
    """An ordered sequence of batches, appended at its end and deleted at its start.

    Invariant: start <= synced_end <= written_end <= end.
    Owned by the event loop; only steps and cold reads leave it.
    """

    __slots__ = (
        "__weakref__",
        "_budget",
        "_directory_unsynced",
        "_empty_at",
        "_lacks_producers",
        "_segment_written",
        "_steps",
        "_untaken_bytes",
        "closed_at",
        "config",
        "damaged_at",
        "directory",
        "end",
        "epochs",
        "gone",
        "is_anew",
        "lacks_before",
        "producers",
        "refusal",
        "reserve",
        "segments",
        "start",
        "swaps",
        "synced_end",
        "tail",
        "transactions",
        "unsynced_bytes",
        "unwritten_bytes",
        "written_end",
    )

    def __init__(self, directory: Path, config: TopicConfig, budget: TailBudget, state: LogState) -> None:
        self.directory = directory
        self.config = config
        self.segments = state.segments
        self.gone: list[Segment] = []
        """Segments below the start whose files may be there still, the oldest first."""
        self.epochs = state.epochs
        self.producers = state.producers
        self.transactions = state.transactions
        self.start = state.start
        self.end = self.written_end = self.synced_end = state.end
        self.closed_at = state.end if state.clean or not state.created else None
        """Where the files that a clean stop leaves already say that the log ends."""
        self.tail = Tail(state.end)
        self.is_anew = state.is_anew
        self._lacks_producers = state.lacks_producers
        self.lacks_before = state.lacks_before
        """Before it somebody wrote records that are deleted; who, this log does not know."""
        self.swaps = 0
        """How often compacted segments have taken the place of others."""
        self.unsynced_bytes = 0
        self._untaken_bytes = 0
        self.unwritten_bytes = 0
        """Of what was appended; it is held in memory."""
        self._directory_unsynced = False
        self.refusal: str | None = None
        self.reserve: Reserve | None = None
        """Where this log finds room on a full disk; only the metadata log has one."""
        self.damaged_at: Offset | None = None
        if state.damaged_at is not None:
            self.note_damage(state.damaged_at)
        self._budget = budget
        has_batches = state.damaged_at is not None or any(s.size for s in state.segments)
        self._empty_at = None if has_batches else state.end
        """Where the log ended when it was opened, if it had no batch then."""
        self._segment_written = state.segments[-1]
        self._steps: list[Step] = [] if state.created else [Create(state.segments[-1])]

    def __repr__(self) -> str:
        return f"<Log {self.directory.name} {self.start}..{self.synced_end}..{self.end}>"

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def bytes_after(self, offset: Offset) -> int:
        """About how many bytes lie from `offset` on: of one segment a part is guessed."""
        total = 0
        end = self.end
        for segment in reversed(self.segments):
            if segment.base < offset:
                count = end - segment.base
                return total + (segment.size * max(end - offset, 0) // count if count else 0)
            total += segment.size
            end = segment.base
        return total

    @property
    def lacks_producers(self) -> bool:
        """Whether this log should learn who wrote what was deleted before its first batch."""
        return self._lacks_producers and self.end == self._empty_at

    @property
    def is_ignorant(self) -> bool:
        """Whether this log would take a retry of a batch that is deleted for a new one."""
        return self.lacks_before is not None or self.lacks_producers

    def producers_before(self, start: Offset, bytes_max: int) -> bytes:
        """A snapshot of who wrote what lies before `start`, for a replica that begins there."""
        ended = self.transactions.ended_across(start)
        return self.producers.encode_before(start, bytes_max, ended)

    def note_damage(self, offset: Offset) -> None:
        """What lies from `offset` on was synced once, and cannot be read any more."""
        self.damaged_at = offset
        self.refusal = (
            f"{self.directory.name} is damaged at offset {offset}, below what was synced; "
            "nothing was deleted. `tidelog log verify` shows the damage"
        )

    # Appending.

    def append(self, batch: Bytes, header: BatchHeader, base_offset: Offset, epoch: Epoch) -> None:
        """Take one batch, stamped with `base_offset` and `epoch`, at the end of the log."""
        if self.refusal is not None:
            raise StorageError(self.refusal)
        size = PREFIX_BYTES + header.length
        if base_offset < self.end:
            self._begin_file_at(base_offset)
        segment = self.segments[-1]
        if segment.size and self._must_roll(segment, header, size, base_offset):
            segment = self.roll()
        # Where a follower copies a gap of a compacted log, an epoch is said to begin before it:
        # who claims to have records of an older epoch there is cut rather than believed.
        self.epochs.assign(epoch, self.end)
        position = segment.size
        segment.note(header, base_offset, self.config.index_interval_bytes)
        next_offset = base_offset + header.last_offset_delta + 1
        last = self._steps[-1] if self._steps else None
        if type(last) is Write and last.segment is segment:
            last.buffers.append(batch)
            last.end = next_offset
        else:
            self._steps.append(Write(segment, position, [batch], next_offset))
        self.tail.append(self.end, next_offset, position, batch)
        self._budget.charge(self.tail, size)
        if header.producer_id >= 0:
            if not header.attributes & CONTROL:
                self.producers.note(header, base_offset)
            elif (marker := find_marker(header, batch)) is not None:
                self.transactions.note_marker(self.producers, header, base_offset, marker)
        self.end = next_offset
        self.unsynced_bytes += size
        self._untaken_bytes += size
        self.unwritten_bytes += size

    def may_begin_with(self, header: BatchHeader) -> bool:
        """Whether a batch that begins before the log's end may be its first.

        It holds the log's start: the records before it are deleted, and the leader's log has them
        in the same batch.
        """
        return self._has_no_batch() and self.end <= header.last_offset

    def _has_no_batch(self) -> bool:
        return len(self.segments) == 1 and self.active.base == self.start == self.end

    def _begin_file_at(self, base_offset: Offset) -> None:
        """Let the file of a log without batches begin at `base_offset`, below the log's start."""
        assert self._has_no_batch(), "offsets only rise"
        empty, segment = self.active, Segment(self.directory, base_offset)
        self.segments = [segment]
        self._steps = [Create(segment, instead_of=empty)]

    def _must_roll(self, segment: Segment, header: BatchHeader, size: int, base_offset: Offset) -> bool:
        config = self.config
        return (
            segment.size + size > config.segment_bytes
            or header.max_timestamp - segment.first_timestamp_ms > config.segment_ms
            or not segment.can_index(base_offset + header.last_offset_delta)
        )

    def roll(self) -> Segment:
        """Seal the active segment and begin a new one at the end of the log."""
        sealed = self.segments[-1]
        offsets, times = sealed.seal()
        beside = (
            (sealed.path(INDEX_SUFFIX), offsets),
            (sealed.path(TIME_INDEX_SUFFIX), times),
            (self.directory / EPOCHS_FILE_NAME, self.epochs.encode()),
            (self.directory / (file_stem(self.end) + SNAPSHOT_SUFFIX), self.producers.encode()),
            *self.aborted_file(),
        )
        self._steps.append(Seal(sealed, beside))
        segment = Segment(self.directory, self.end)
        self.segments.append(segment)
        self._steps.append(Create(segment))
        return segment

    def aborted_file(self) -> Sequence[tuple[Path, bytes]]:
        """What should lie beside the active segment as it is now, of aborted transactions.

        A file from the first segment on in which a transaction has ended: an empty one is not
        taken for one that was lost.
        """
        if not self.transactions.has_markers:
            return ()
        active = self.segments[-1]
        found = self.transactions.aborted.between(active.base, self.end)
        return ((active.path(TXN_INDEX_SUFFIX), found.encode()),)

    # Transactions.

    def last_stable(self, watermark: Offset) -> Offset:
        """Below it every transaction is decided, given the watermark.

        What ended below the watermark is forgotten here: ask once in a while.
        """
        stable = self.transactions.last_stable(self.producers, watermark)
        return stable if stable >= self.start else min(self.start, watermark)

    def aborted(self, start: Offset, end: Offset) -> list[tuple[ProducerId, Offset]]:
        """Producer and first offset of each aborted transaction that touches [start, end).

        They are in the order of their markers.
        """
        return self.transactions.aborted.find(start, end)

    # Rounds.

    def take_writes(self) -> WriteJob | None:
        """All steps so far, for a thread; None if there are none."""
        if not self._steps:
            return None
        steps, self._steps = self._steps, []
        size, self._untaken_bytes = self._untaken_bytes, 0
        return WriteJob(self, steps, self.segments[-1], self.written_end, size)

    def drop_writes(self) -> None:
        """Forget steps not taken yet: the disk is full, and the log will be opened again."""
        self._steps = []

    def wrote(self, job: WriteJob, end: Offset) -> None:
        """The thread has performed a job; everything below `end` is in the files."""
        self.written_end = end
        self.unwritten_bytes -= job.size
        self._segment_written = job.segment
        if end <= job.segment.base and job.segment.file is None:  # full before it could be made
            at = bisect_left(self.segments, end, key=lambda s: s.base) - 1
            self._segment_written = self.segments[max(at, 0)]
        self._directory_unsynced |= job.creates
        self.tail.written(end)

    def let_go(self) -> None:
        """Its files are removed: the disk frees them once nobody holds them."""
        for segment in self.segments:
            segment.file = None

    @property
    def is_synced(self) -> bool:
        """Whether all that is written is durable, the names of its files too."""
        return self.synced_end == self.written_end and not self._directory_unsynced

    @property
    def promised_end(self) -> Offset:
        """What a start must find on this disk: nothing, if the log began without any batch.

        What such a log is said to hold, below its start, is deleted.
        """
        return 0 if self.synced_end == self._empty_at else self.synced_end

    def begin_sync(self) -> tuple[list[File | Path], Offset]:
        """What may not be durable yet, and the end that a sync of it now reaches.

        It is one file, and its directory if it is new: all others were sealed.
        """
        self.unsynced_bytes = 0
        file = self._segment_written.file
        targets: list[File | Path] = [] if file is None else [file]
        if self._directory_unsynced:
            targets.append(self.directory)
            self._directory_unsynced = False
        return targets, self.written_end

    def synced(self, end: Offset) -> None:
        """Everything below `end` is durable."""
        if end > self.synced_end:
            self.synced_end = end

    # Reading.

    def read(
        self,
        offset: Offset,
        bytes_max: int,
        limit: Offset,
        *,
        at_least_one: bool = True,
        has_gaps: bool = False,
    ) -> Read:
        """Whole batches from the one that holds `offset`, below `limit`, up to `bytes_max`.

        With `at_least_one`, the first of them however large it is. `has_gaps`: offsets may be
        missing. Raises OffsetOutOfRange, and StorageError from where the log is damaged.
        """
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(offset=offset, start=self.start, end=self.end)
        if offset >= limit:
            return Read((), 0, limit)
        if self.damaged_at is not None:
            if offset >= self.damaged_at:
                raise StorageError(self.refusal)
            limit = min(limit, self.damaged_at)
        tail = self.tail
        if offset >= tail.start:
            buffers, size = tail.slice(offset, bytes_max, limit, at_least_one)
            return Read(buffers, size, limit)
        limit = min(limit, self.written_end)  # at or above the tail's start
        at = bisect_right(self.segments, offset, key=lambda s: s.base) - 1
        to = bisect_left(self.segments, limit, at + 1, key=lambda s: s.base)
        cold = ColdRead(self.segments[at:to], offset, bytes_max, limit, at_least_one)
        return Read((), 0, limit, cold, has_gaps)

    # Compacting and deleting.

    def replace_segments(self, old: Sequence[Segment], new: Segment, gone: Collection[Offset] = ()) -> None:
        """Put `new`, compacted from `old`, in their place; reads of `old` under way find it.

        From now on nobody is given the old batches, not from memory either. `gone` are the markers
        of aborted transactions that have no batches any more.
        """
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == [*old], "the cleaner has looked"
        assert old[-1] is not self.segments[-1], "the active segment is never compacted"
        for segment in old:
            segment.replaced_by = new
        self.segments[at : at + len(old)] = [new]
        self.swaps += 1
        self.transactions.aborted.remove(gone)
        # A batch of a segment that is sealed, or stable, is written: it may go.
        self.tail.drop_before(self.segments[at + 1].base)

    def base_before(self, offset: Offset) -> Offset:
        """Where the segment begins that holds `offset`."""
        return self.segments[self._index_of(offset)].base

    def _index_of(self, offset: Offset) -> int:
        return max(bisect_right(self.segments, offset, key=lambda s: s.base) - 1, 0)

    def advance_start(self, start: Offset) -> list[Segment]:
        """Forget everything below `start`; the segments whose files can go, until `removed`."""
        assert start <= self.end
        self.start = start = max(start, self.start)
        if keep := self._index_of(start):
            self.gone += self.segments[:keep]
            del self.segments[:keep]
            self.transactions.aborted.drop_before(self.segments[0].base)
        # The file follows with the next segment: it must not be cut before the checkpoint says so.
        self.epochs.cut_start(start)
        return list(self.gone)

    def removed(self, segments: Sequence[Segment]) -> None:
        """The files of `segments`, which had gone, are removed."""
        self.gone = [segment for segment in self.gone if segment not in segments]
