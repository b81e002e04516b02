"""Compaction's blocking half: which records stay, and the files that hold them.

Rule 1: of each key the latest record stays, where it was: offsets, times and bytes do not change.
        A batch keeps its offsets, sequences and codec, however few records are left in it.
Rule 2: what is not understood is kept. A batch that cannot be unpacked passes as it is, and no
        tombstone behind it is dropped, for it may hold a value of the same key. Bytes that do not
        check out stop the work, and nothing is replaced.
Rule 3: memory is bounded: one budget for keys, and a chunk of a file at a time.
Rule 4: work is done in small pieces. A generator yields the bytes that it moved since it last did,
        so that its caller can pace it and stop it anywhere.

A pass over a log has two halves. `map_keys` reads the dirty part and notes the last offset of each
key, until the budget is spent. `clean` then writes every segment anew, a group into one, without
the records that a mapped one supersedes. What it writes counts for nothing until it is swapped in.
"""

# A tombstone, a record without a value, stays until its *horizon*: `delete.retention.ms` after it
# was first cleaned. Whoever reads the log from its start within that time sees that the key is
# gone. As in Kafka, the header holds it (KIP-534):
#
# attributes bit 0x40 set: base_timestamp is the horizon, and the records' times count from it

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, TypeAlias

from crc32c import crc32c

from tidelog.errors import CorruptMessage, InvalidRecord, TidelogError
from tidelog.host import Bytes, Disk, File
from tidelog.log.index import RELATIVE_MAX
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from tidelog.log.swap import cleaned_path
from tidelog.model import NO_OFFSET, NO_TIMESTAMP, Offset, ProducerId
from tidelog.records import (
    CODEC_MASK,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    BatchHeader,
    Codec,
    batch_size_at,
    compress,
    crc_matches,
    decompress,
    read_header,
)

KEY_BYTES: Final = 208
"""What a mapped key costs at most: its bytes object, its offset, its share of a growing dict."""

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
UNPACKED_RECORDS_MAX: Final = 256 * 1024
"""A batch that would grow beyond either is not unpacked, so that a bomb stays small."""

_SHORT_KEY_BYTES: Final = 40
_DIGEST_BYTES: Final = _SHORT_KEY_BYTES + 1
_READ_BYTES: Final = 128 * 1024
"""Small, because every read lets the event loop have Python's lock for a while."""
_SYNC_BYTES: Final = 16 * 1024 * 1024
"""Synced along the way, so that the last sync does not hold up everyone else's."""
_UINT32: Final = struct.Struct(">I")

RecordSlice: TypeAlias = tuple[int, int, int, bytes | None, bool]
"""Where it begins and ends, its offset behind the batch's base, its key, whether it has a value."""


class SegmentDamaged(TidelogError):
    """A segment does not read as it was written, so its log is not compacted any more.

    `tidelog log verify` shows the damage.
    """


# Keys.


class KeyMap:
    """The last offset of each key in the dirty part of a log, in bounded memory.

    Short keys stand for themselves. A longer one is represented by a hash which is longer than any
    short key, so that the two never meet, and strong, so that nobody can make one key pass for
    another.
    """

    __slots__ = ("_keys_max", "_offsets")

    def __init__(self, bytes_max: int) -> None:
        self._offsets: dict[bytes, Offset] = {}
        self._keys_max = max(1, bytes_max // KEY_BYTES)

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: Offset) -> bool:
        """Note the key's newest offset; False if that would pass the budget."""
        if len(key) > _SHORT_KEY_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        offsets = self._offsets
        if len(offsets) >= self._keys_max and key not in offsets:
            return False
        offsets[key] = offset
        return True

    def latest(self, key: bytes) -> Offset:
        """The key's newest offset, or NO_OFFSET."""
        if len(key) > _SHORT_KEY_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(key, NO_OFFSET)


# Records.


def split_records(body: bytes, header: BatchHeader) -> list[RecordSlice]:
    """Where each record lies, and what decides about it; the rest of it stays unread.

    Offsets must rise within the batch: they come from whoever wrote it, and one that points
    elsewhere would supersede the records of others.

    Varints of one or two bytes are read in line: nearly all are so short, and a call for each
    would make compaction take twice as long.
    """
    records: list[RecordSlice] = []
    at, total = 0, len(body)
    before, last = -1, header.last_offset_delta
    try:
        for _ in range(header.record_count):
            start = at
            if (raw := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                raw += (high - 1) << 7
                at += 2
            else:
                raw, at = _read_varint(body, at)
            end = at + (raw >> 1)
            if raw & 1 or end > total:
                raise CorruptMessage("a record is longer than its batch")
            at += 1  # attributes, unused by the format
            while body[at] >= 0x80:  # the time is of no interest yet
                at += 1
            at += 1
            if (raw := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                raw += (high - 1) << 7
                at += 2
            else:
                raw, at = _read_varint(body, at)
            delta = raw >> 1
            if raw & 1 or not before < delta <= last:
                raise CorruptMessage("the offsets of records do not rise, or leave the batch")
            before = delta
            if (raw := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                raw += (high - 1) << 7
                at += 2
            else:
                raw, at = _read_varint(body, at)
            key = None
            if not raw & 1:
                key = body[at : at + (raw >> 1)]
                at += raw >> 1
            if at >= end:
                raise CorruptMessage("a key is longer than its record")
            has_value = not body[at] & 1  # the sign of its length
            records.append((start, end, delta, key, has_value))
            at = end
    except IndexError:
        raise CorruptMessage("a record is cut off") from None
    if at != total:
        raise CorruptMessage(f"{total - at} bytes follow the last record")
    return records


def _unpack(header: BatchHeader, batch: memoryview) -> tuple[bytes, list[RecordSlice]]:
    """The batch's plain records and where they lie, or CorruptMessage."""
    if not 0 < header.record_count <= UNPACKED_RECORDS_MAX:
        raise CorruptMessage(f"{header.record_count} records are too many")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise CorruptMessage(f"codec {header.attributes & CODEC_MASK} is unknown")
    body = decompress(header.codec, batch[HEADER_BYTES:], size_max=UNPACKED_BYTES_MAX)
    return body, split_records(body, header)


FAULTS_MAX: Final = 1000
"""How many records of a batch are named to its sender, who may have sent a million."""


def require_keys(header: BatchHeader, batch: Bytes) -> None:
    """Refuse a batch with which compaction could not do anything: InvalidRecord."""
    try:
        _, records = _unpack(header, memoryview(batch))
    except CorruptMessage as error:
        raise InvalidRecord(f"a compacted topic takes only what it can read: {error}") from None
    keyless = [at for at, (_, _, _, key, _) in enumerate(records) if key is None]
    if keyless:
        raise InvalidRecord(
            f"a compacted topic takes no record without a key; {len(keyless)} of "
            f"{len(records)} have none",
            records=[(at, "the record has no key") for at in keyless[:FAULTS_MAX]],
        )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` before its zigzag is undone, and where it ends."""
    value = shift = 0
    while shift <= 63:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise CorruptMessage("a length or a time in a record is absurd")


def _write_varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _time_delta(record: bytes) -> tuple[int, int, int]:
    """A record's time behind the batch's base, and where it lies."""
    _, attributes_at = _read_varint(record, 0)
    raw, end = _read_varint(record, attributes_at + 1)
    return (raw >> 1) ^ -(raw & 1), attributes_at + 1, end


def _shift_time(record: bytes, shift_ms: int) -> bytes:
    """The same record in a batch whose base timestamp is earlier by `shift_ms`."""
    delta, start, end = _time_delta(record)
    delta = _checked_time(delta + shift_ms)
    body = record[start - 1 : start] + _write_varint(delta) + record[end:]
    return _write_varint(len(body)) + body


def _checked_time(time_ms: int) -> int:
    if not -(2**63) <= time_ms < 2**63:
        raise CorruptMessage(f"a record's time is absurd: {time_ms}")
    return time_ms


def _build(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, Bytes]:
    """The batch of `header` with another payload, and its length and checksum."""
    header = header._replace(length=HEADER_BYTES - PREFIX_BYTES + len(payload))
    batch = bytearray(HEADER.pack(*header))
    batch += payload
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    _UINT32.pack_into(batch, CRC_AT, crc)
    return header._replace(crc=crc), batch


# Files.


def read_chunks(
    file: File, end: int, name: object
) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
    """All batches up to `end`, as many at a time as a small read returns.

    Raises SegmentDamaged unless they fill those bytes and their checksums match.
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

    bytes_mapped: int = 0
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
    tally: Tally = field(default_factory=Tally)
    unreadable: int = 0
    """Batches passed so far that could not be unpacked."""
    end: Offset = field(init=False)
    _keys: KeyMap = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.first_dirty
        self._keys = KeyMap(self.key_bytes_max)

    # First half.

    def map_keys(self) -> Iterator[int]:
        """Note the last offset of each key from `first_dirty` on, as far as memory allows."""
        for at, segment in enumerate(self.segments):
            following = self.segments[at + 1].base if at + 1 < len(self.segments) else self.limit
            if following <= self.first_dirty:
                continue
            for batches in read_chunks(segment.open(self.disk), segment.size, segment.path()):
                for header, batch in batches:
                    if not self._map_batch(header, batch):
                        return
                size = sum(header.size for header, _ in batches)
                self.tally.bytes_mapped += size
                yield size
            self.end = following  # over a gap, too

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Map one batch; False if the map ends here."""
        first_dirty, put = self.first_dirty, self._keys.put
        if header.next_offset <= first_dirty:
            return True
        if header.is_control:
            self.end = header.next_offset
            return True
        if header.is_transactional:
            # Until someone can tell which transactions were aborted: theirs must not supersede.
            self.end = max(self.end, header.base_offset)
            return False
        try:
            _, records = _unpack(header, batch)
        except CorruptMessage:
            records = []
        for _, _, delta, key, _ in records:
            offset = header.base_offset + delta
            if key is not None and offset >= first_dirty and not put(key, offset):
                self.end = offset
                return False
        self.end = header.next_offset
        return True

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
        for at, segment in enumerate(group):
            left = segment.size
            for batches in read_chunks(segment.open(self.disk), segment.size, segment.path()):
                kept: list[Bytes] = []
                position, size = new.size, 0
                for header, batch in batches:
                    size += header.size
                    is_last = at == last and size == left
                    if (found := self._filter(header, batch, is_last=is_last)) is None:
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
            self._write_indexes(new)
            done(Cleaned(group, new, end))

    def _write_indexes(self, new: Segment) -> None:
        for suffix, content in zip(
            (INDEX_SUFFIX, TIME_INDEX_SUFFIX), new.index_contents(), strict=True
        ):
            file = self.disk.open(cleaned_path(new.directory, new.base, suffix), create=True)
            file.truncate(0)
            file.write(0, [content])
            file.datasync()

    def _filter(
        self, header: BatchHeader, batch: memoryview, *, is_last: bool
    ) -> tuple[BatchHeader, Bytes] | None:
        """What is left of a batch; None if it goes.

        A batch without records stays while it is the last of an active producer, whose sequence
        would be forgotten, or the last of its segment, which would not cover its range any more.
        """
        stays = is_last or self.producers.get(header.producer_id) == header.last_offset
        self.tally.records_read += header.record_count
        found: tuple[BatchHeader, Bytes] | None = header, batch
        if not header.record_count:
            found = found if stays else None
        elif not header.is_control and header.base_offset < self.end:
            try:
                found = self._shrink(header, batch, stays=stays)
            except CorruptMessage:
                self.unreadable += 1
        self.tally.records_kept += found[0].record_count if found is not None else 0
        return found

    def _shrink(
        self, header: BatchHeader, batch: memoryview, *, stays: bool
    ) -> tuple[BatchHeader, Bytes] | None:
        body, records = _unpack(header, batch)
        kept = self._kept(header, records)
        if not kept:
            return _build(_emptied(header), b"") if stays else None
        # A batch that goes on past `end` has tombstones whose keys were not mapped yet.
        sets_horizon = (
            not header.attributes & DELETE_HORIZON
            and header.last_offset < self.end
            and not all(has_value for *_, has_value in kept)
        )
        if len(kept) == len(records) and not sets_horizon:
            return header, batch
        parts = [body[start:end] for start, end, *_ in kept]
        max_timestamp = header.max_timestamp
        if not header.attributes & LOG_APPEND_TIME:
            newest = max(_time_delta(part)[0] for part in parts)
            max_timestamp = _checked_time(header.base_timestamp + newest)
        header = header._replace(record_count=len(kept), max_timestamp=max_timestamp)
        if sets_horizon:
            horizon_ms = self.now_ms + self.delete_retention_ms
            parts = [_shift_time(part, header.base_timestamp - horizon_ms) for part in parts]
            header = header._replace(
                attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms
            )
        return _build(header, compress(header.codec, b"".join(parts)))

    def _kept(self, header: BatchHeader, records: list[RecordSlice]) -> list[RecordSlice]:
        latest, base, end = self._keys.latest, header.base_offset, self.end
        is_past_horizon = (
            bool(header.attributes & DELETE_HORIZON)
            and header.base_timestamp <= self.now_ms
            and not self.unreadable
        )
        kept = []
        for record in records:
            _, _, delta, key, has_value = record
            offset = base + delta
            if offset >= end or (
                key is not None and latest(key) <= offset and (has_value or not is_past_horizon)
            ):
                kept.append(record)
            elif key is None:
                self.tally.keyless += 1  # as Kafka: refused when produced, dropped if found
        return kept


def _emptied(header: BatchHeader) -> BatchHeader:
    """The header of a batch that has lost all its records; offsets and sequences stay."""
    return header._replace(
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        base_timestamp=NO_TIMESTAMP, record_count=0,
    )  # fmt: skip


def group_segments(
    segments: Sequence[Segment], ends: Sequence[Offset], bytes_max: int
) -> list[Sequence[Segment]]:
    """Neighbours that together are no larger than one segment may be, as many as fit.

    `ends` says where each ends. A group spans no more offsets than an index can count.
    """
    groups: list[list[Segment]] = []
    size = 0
    for segment, end in zip(segments, ends, strict=True):
        fits = (
            groups
            and size + segment.size <= bytes_max
            and end - 1 - groups[-1][0].base <= RELATIVE_MAX
        )
        if fits:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return [group for group in groups if any(segment.size for segment in group)]
