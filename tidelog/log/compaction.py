"""Compaction's blocking half: which records stay, and the files that hold them.

Rule 1: of each key the latest record stays, where it was: offsets, times and bytes do not change.
        A batch keeps its offsets, sequences and codec, however few records are left in it.
Rule 2: what is not understood is kept. A batch that cannot be unpacked passes as it is, and no
        tombstone behind it is dropped, for it may hold a value of the same key. Bytes that do not
        check out stop the work, and nothing is replaced.
Rule 3: what a transaction wrote counts if it was committed. If it was aborted, its records go, and
        supersede nothing. Its marker stays while any of its batches is left.
Rule 4: memory is bounded: one budget for keys, a window of offsets, a chunk of a file at a time.
Rule 5: work is done in small pieces. A generator yields the bytes that it moved since it last did,
        so that its caller can pace it and stop it anywhere.

A pass over a log has two halves. `map_keys` reads the dirty part and notes the last offset of each
key, until the budget is spent. `clean` then writes every segment anew, a group into one, without
the records that a mapped one supersedes. What it writes counts for nothing until it is swapped in.

The first half has seen every key of the dirty part, so the second knows by offset alone which
records of it stay: most of its batches pass or go without being unpacked again.
"""

# A tombstone, a record without a value, stays until its *horizon*: `delete.retention.ms` after it
# was first cleaned. Whoever reads the log from its start within that time sees that the key is
# gone. So does the marker of a transaction after the first pass that finds no batch of it: whoever
# has seen the batches must see how they ended. As in Kafka, the header holds it (KIP-534):
#
# attributes bit 0x40 set: base_timestamp is the horizon, and the records' times count from it
#
# One pass removes the batches of an aborted transaction, the next one its entry in the index, and
# one after the horizon its marker. So whoever reads batches and index, in whatever order, never
# gets batches without their entry, nor an entry without its marker.

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import Final, cast

from tidelog.errors import CorruptMessage, TidelogError
from tidelog.host import Bytes, Disk, File
from tidelog.log.aborted import AbortedIndex, AbortedLookup
from tidelog.log.epochs import OFFSET_MAX
from tidelog.log.index import RELATIVE_MAX
from tidelog.log.keymap import STAYS, TOMBSTONE, TOMBSTONE_STAYS, Fates, KeyMap
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, Segment
from tidelog.log.swap import cleaned_path
from tidelog.log.transactions import find_marker
from tidelog.log.unpacking import Split, empty, find_bounds, rebuild, split_records, unpack
from tidelog.model import Offset, ProducerId
from tidelog.records import DELETE_HORIZON, HEADER_BYTES, BatchHeader, batch_size_at, crc_matches, read_header

_READ_BYTES: Final = 128 * 1024
"""Small, because every read lets the event loop have Python's lock for a while."""
_SYNC_BYTES: Final = 16 * 1024 * 1024
"""Synced along the way, so that the last sync does not hold up everyone else's."""


class SegmentDamaged(TidelogError):
    """A segment does not read as it was written, so its log is not compacted any more.

    `tidelog log verify` shows the damage.
    """


# Files.


def read_chunks(
    file: File, end: int, name: object, start: Offset = 0, limit: Offset = OFFSET_MAX
) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
    """All batches up to `end`, as many at a time as a small read returns.

    Raises SegmentDamaged unless they fill those bytes, their checksums match, and they lie one
    after the other from the offset `start` to `limit`: no checksum covers where a batch begins.
    """
    position, wanted = 0, _READ_BYTES
    while position < end:
        chunk = memoryview(file.read(position, min(wanted, end - position)))
        batches: list[tuple[BatchHeader, memoryview]] = []
        at = size = 0
        while len(chunk) - at >= HEADER_BYTES:
            size = batch_size_at(chunk, at, len(chunk))
            if not size or at + size > len(chunk):
                break
            header, batch = read_header(chunk, at), chunk[at : at + size]
            if not crc_matches(batch, header):
                raise SegmentDamaged(f"{name}: bad checksum of the batch at byte {position + at}")
            if not start <= header.base_offset < header.next_offset <= limit:
                raise SegmentDamaged(
                    f"{name}: the batch at byte {position + at} is at offset {header.base_offset}, "
                    f"which is not from {start} to {limit}"
                )
            start = header.next_offset
            batches.append((header, batch))
            at += size
        if batches:
            yield batches
        elif not len(chunk) < size <= end - position or len(chunk) < wanted:
            raise SegmentDamaged(f"{name}: there is no whole batch at byte {position}")
        wanted = max(_READ_BYTES, size)  # a batch that is larger than that is read as a whole
        position += at


@dataclass(slots=True)
class Tally:
    """What a pass over a log has done so far."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keyless: int = 0


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A new segment, whole and synced under `.cleaned`, that holds what is left of `old`.

    It is readable before the swap: its file is open, its indexes are in memory.
    """

    old: Sequence[Segment]
    segment: Segment
    end: Offset
    gone: Collection[Offset] = ()
    """Markers of aborted transactions that have no batches left: the index loses them."""
    purged_end: Offset = 0
    """Every tombstone and marker that went for good lies below it; 0 if none did."""


@dataclass(slots=True, kw_only=True)
class Compaction:
    """One pass over a log, for a disk's threads, one at a time.

    Invariant: every key of the records in [first_dirty, end) is mapped, so below `end` a record
    that the map does not supersede is the latest of its key there.
    """

    disk: Disk
    segments: Sequence[Segment]
    """All sealed segments that may be cleaned, from the log's first on."""
    first_dirty: Offset
    """Below it nothing is newer than the last pass; it need not be the base of a segment."""
    limit: Offset
    """Where the last of `segments` ends."""
    producers: Mapping[ProducerId, Offset]
    """The last offset of every active producer."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    key_bytes_max: int
    marked_epochs: Mapping[ProducerId, int] = field(default_factory=dict)
    """The epoch of every active producer that only a marker tells of."""
    aborted: AbortedIndex = field(default_factory=AbortedIndex)
    """A copy of the whole log's: below `limit` every transaction is decided."""
    has_markers: bool = False
    """Whether segments of the log get an index of aborted transactions."""
    purge_limit: Offset = OFFSET_MAX
    """From here on tombstones and markers stay past their horizon: some replica lacks them."""
    tally: Tally = field(default_factory=Tally)
    unreadable: int = 0
    """Batches passed so far that could not be unpacked."""
    end: Offset = field(init=False)
    _keys: KeyMap = field(init=False)
    _fates: Fates = field(init=False)
    _understood_end: Offset = field(init=False)
    """The first dirty batch that could not be unpacked while keys were mapped, or `limit`."""
    _lookup: AbortedLookup | None = field(init=False, default=None)
    _purged_end: Offset = field(init=False, default=0)
    _unended: set[ProducerId] = field(init=False, default_factory=set)
    """Whose transactions had a batch so far, and no marker after it."""

    def __post_init__(self) -> None:
        self.end = self.first_dirty
        self._keys = KeyMap(self.key_bytes_max)
        self._fates = Fates(self._keys)
        self._understood_end = self.limit

    def forget_keys(self) -> None:
        """The pass is over, or given up."""
        self._keys.forget()

    # First half.

    def map_keys(self) -> Iterator[int]:
        """Note the last offset of each key from `first_dirty` on, as far as memory allows."""
        for at, segment in enumerate(self.segments):
            following = self.segments[at + 1].base if at + 1 < len(self.segments) else self.limit
            if following <= self.first_dirty:
                continue
            for batches in self._chunks(segment):
                for header, batch in batches:
                    if not self._map_batch(header, batch):
                        return
                yield sum(header.size for header, _ in batches)
            self.end = following  # over a gap, too

    def _chunks(self, segment: Segment) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
        following = self.segments.index(segment) + 1
        limit = self.segments[following].base if following < len(self.segments) else self.limit
        return read_chunks(segment.open(self.disk), segment.size, segment.path(), segment.base, limit)

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Map one batch; False if the map ends here."""
        if header.next_offset <= self.first_dirty:
            return True
        if header.record_count and not header.is_control and not self._is_aborted(header):
            try:
                split = split_records(unpack(header, batch), header)
            except CorruptMessage:
                self._understood_end = min(self._understood_end, header.base_offset)
            else:
                if not self._map_records(header, split):
                    return False
        self.end = header.next_offset
        return True

    def _map_records(self, header: BatchHeader, split: Split) -> bool:
        base = 2 * header.base_offset
        marks = [base + mark for mark in split.marks]
        keys = cast(list[bytes], split.keys)  # unless some have none
        if split.keyless or header.base_offset < self.first_dirty:
            first = 2 * self.first_dirty
            dirty = [(k, m) for k, m in zip(split.keys, marks, strict=True) if m >= first]
            keys = [key for key, _ in dirty if key is not None]
            marks = [mark for key, mark in dirty if key is not None]
        if (taken := self._keys.put(keys, marks)) < len(keys):
            self.end = marks[taken] >> 1
            return False
        if self._is_understood(header):
            self.tally.keyless += split.keyless
        return True

    def _is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch is of a transaction that was aborted."""
        if not header.is_transactional or not self.aborted:
            return False
        if self._lookup is None:  # here, in a thread
            self._lookup = AbortedLookup(self.aborted)
        return self._lookup.holds(header.producer_id, header.base_offset)

    def _is_understood(self, header: BatchHeader) -> bool:
        """Whether the batch is dirty, and it and all dirty ones before it could be unpacked."""
        return self.first_dirty <= header.base_offset < self._understood_end

    def _is_mapped(self, header: BatchHeader) -> bool:
        """Whether the map knows every record of the batch."""
        return self._is_understood(header) and header.next_offset <= self.end

    # Second half.

    def groups(self) -> list[Sequence[Segment]]:
        """What `clean` is called with, one after the other: segments that fit into one.

        Their sizes before are what counts; the next pass joins what this one has shrunk.
        """
        concerned = [segment for segment in self.segments if segment.base < self.end]
        ends = [segment.base for segment in self.segments[1:]] + [self.limit]
        return group_segments(concerned, ends[: len(concerned)], self.segment_bytes)

    def clean(self, group: Sequence[Segment], done: Callable[[Cleaned], None]) -> Iterator[int]:
        """Write a group anew as one segment; `done` is called if that makes a difference."""
        directory, base = group[0].directory, group[0].base
        new = Segment(directory, base)
        new.file = file = self.disk.open(cleaned_path(directory, base, LOG_SUFFIX), create=True)
        file.truncate(0)
        last = max(at for at, segment in enumerate(group) if segment.size)
        end, unsynced, changed = base, 0, len(group) > 1
        gone: set[Offset] = set()
        self._purged_end = 0
        for at, segment in enumerate(group):
            left = segment.size
            for batches in self._chunks(segment):
                kept: list[Bytes] = []
                position, size = new.size, 0
                for header, batch in batches:
                    size += header.size
                    is_last = at == last and size == left
                    if (found := self._filter(header, batch, gone, is_last=is_last)) is None:
                        changed = True
                        continue
                    changed = changed or found[1] is not batch
                    header = found[0]
                    kept.append(found[1])
                    new.note(header, header.base_offset, self.index_interval_bytes)
                    end = header.next_offset
                if kept:
                    file.write(position, kept)
                unsynced += new.size - position
                if unsynced > _SYNC_BYTES:
                    file.datasync()
                    unsynced = 0
                left -= size
                self.tally.bytes_read += size
                self.tally.bytes_written += new.size - position
                yield size + new.size - position
        if changed:
            file.datasync()
            self._write_indexes(new, end, gone)
            done(Cleaned(group, new, end, gone, self._purged_end))

    def _write_indexes(self, new: Segment, end: Offset, gone: Collection[Offset]) -> None:
        offsets, times = new.index_contents()
        contents = {INDEX_SUFFIX: offsets, TIME_INDEX_SUFFIX: times}
        if self.has_markers:
            aborted = self.aborted.between(new.base, end)
            aborted.remove(gone)
            contents[TXN_INDEX_SUFFIX] = aborted.encode()
        for suffix, content in contents.items():
            file = self.disk.open(cleaned_path(new.directory, new.base, suffix), create=True)
            file.truncate(0)
            file.write(0, [content])
            file.datasync()

    def _filter(
        self, header: BatchHeader, batch: memoryview, gone: set[Offset], *, is_last: bool
    ) -> tuple[BatchHeader, Bytes] | None:
        """What is left of a batch; None if it goes. `gone` gets what it says.

        A batch without records stays while it is the last of an active producer, whose sequence
        would be forgotten, or the last of its segment, which would not cover its range any more.
        """
        stays = is_last or self.producers.get(header.producer_id) == header.last_offset
        self.tally.records_read += header.record_count
        found: tuple[BatchHeader, Bytes] | None = header, batch
        if header.is_transactional and not header.is_control:
            self._unended.add(header.producer_id)
        if not header.record_count:
            found = found if stays else None
        elif header.is_control:
            found = self._filter_control(header, batch, gone, stays=stays)
        elif self._is_aborted(header):
            found = empty(header) if stays else None
        elif header.base_offset < self.end:
            try:
                found = self._shrink(header, batch, stays=stays)
            except CorruptMessage:
                self.unreadable += 1
        self.tally.records_kept += found[0].record_count if found is not None else 0
        return found

    def _filter_control(
        self, header: BatchHeader, batch: memoryview, gone: set[Offset], *, stays: bool
    ) -> tuple[BatchHeader, Bytes] | None:
        """A marker goes behind the batches of its transaction, once its horizon is past.

        The last of an active producer stays as it is: nothing else tells the producer's epoch.
        """
        marker = find_marker(header, batch)
        if marker is None:
            return header, batch
        is_needed = header.producer_id in self._unended
        self._unended.discard(header.producer_id)
        if is_needed or header.next_offset > self.end:
            return header, batch
        if not marker.commits:
            gone.add(header.base_offset)
        if not header.attributes & DELETE_HORIZON:
            horizon_ms = self.now_ms + self.delete_retention_ms
            return rebuild(header, [unpack(header, batch)], horizon_ms=horizon_ms)
        is_fence = self.marked_epochs.get(header.producer_id) == header.producer_epoch
        is_awaited = header.base_offset >= self.purge_limit
        if header.base_timestamp > self.now_ms or is_fence or is_awaited:
            return header, batch
        self._purged_end = header.next_offset
        return empty(header) if stays else None

    def _shrink(
        self, header: BatchHeader, batch: memoryview, *, stays: bool
    ) -> tuple[BatchHeader, Bytes] | None:
        fates = self._fates_in(header)
        if fates is None:
            return self._shrink_by_key(header, batch, stays=stays)
        count = fates.count(STAYS)
        if not count:
            return empty(header) if stays else None
        if count == header.record_count:
            return header, batch
        if header.record_count < len(fates):  # which of them are at which offset?
            return self._shrink_by_key(header, batch, stays=stays)
        body = unpack(header, batch)
        bounds = find_bounds(body, header.record_count)
        records = [body[start:end] for start, end in compress(pairwise(bounds), fates)]
        return rebuild(header, records, horizon_ms=None)

    def _fates_in(self, header: BatchHeader) -> bytes | None:
        """What becomes of every offset of the batch, where the map alone decides that.

        It does not about tombstones: they have a horizon, or get one.
        """
        if not self._is_mapped(header):
            return None
        fates = self._fates.of(header.base_offset, header.next_offset)
        return None if fates is None or TOMBSTONE_STAYS in fates else fates

    def _shrink_by_key(
        self, header: BatchHeader, batch: memoryview, *, stays: bool
    ) -> tuple[BatchHeader, Bytes] | None:
        body = unpack(header, batch)
        split = split_records(body, header)
        kept = self._kept(header, split)
        if not kept:
            return empty(header) if stays else None
        # A batch that goes on past `end` has tombstones whose keys were not mapped yet.
        sets_horizon = (
            not header.attributes & DELETE_HORIZON
            and header.last_offset < self.end
            and any(split.marks[at] & TOMBSTONE for at in kept)
        )
        if len(kept) == len(split.marks) and not sets_horizon:
            return header, batch
        records = [body[split.bounds[at] : split.bounds[at + 1]] for at in kept]
        horizon_ms = self.now_ms + self.delete_retention_ms if sets_horizon else None
        return rebuild(header, records, horizon_ms=horizon_ms)

    def _kept(self, header: BatchHeader, split: Split) -> Sequence[int]:
        """Which of the records stay, the first being 0."""
        is_past_horizon = (
            bool(header.attributes & DELETE_HORIZON)
            and header.base_timestamp <= self.now_ms
            and not self.unreadable
        )
        keys = [key or b"" for key in split.keys]  # those without one go, whatever is found here
        if not (is_past_horizon or split.keyless or self._keys.knows_any(keys)):
            return range(len(keys))
        if not self._is_mapped(header):
            self.tally.keyless += split.keyless  # as Kafka: refused when produced, dropped if found
        base, kept = 2 * header.base_offset, []
        end = 2 * self.end - base
        newest = self._keys.newest(keys)
        limit = 2 * min(self.purge_limit, OFFSET_MAX // 2)
        for at, mark in enumerate(split.marks):
            latest = newest[at]
            if mark >= end:
                kept.append(at)
            elif split.keys[at] is not None and (latest is None or latest <= base + mark):
                if is_past_horizon and mark & TOMBSTONE and base + mark < limit:
                    self._purged_end = ((base + mark) >> 1) + 1
                else:
                    kept.append(at)
        return kept


def group_segments(
    segments: Sequence[Segment], ends: Sequence[Offset], bytes_max: int
) -> list[Sequence[Segment]]:
    """Neighbours that together are no larger than one segment may be, as many as fit.

    `ends` says where each ends. A group spans no more offsets than an index can count.
    """
    groups: list[list[Segment]] = []
    size = 0
    for segment, end in zip(segments, ends, strict=True):
        fits = groups and size + segment.size <= bytes_max and end - 1 - groups[-1][0].base <= RELATIVE_MAX
        if fits:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return [group for group in groups if any(segment.size for segment in group)]
