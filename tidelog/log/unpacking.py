"""The records inside of a batch, as far as compaction cares, and the batch without some of them.

Rule 1: of a record only what decides is read: where it lies, its offset, its key, whether it has a
        value. The rest of it passes as bytes.
Rule 2: nothing inside is trusted. Lengths are compared with what is left, offsets must rise, and a
        batch that would grow too large is not unpacked: CorruptMessage.
Rule 3: a batch is cheap to look at. Compaction reads every record of a log in Python, so what is
        found comes in whole lists, which C walks, and a short number is read in line.
"""

import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.errors import CorruptMessage, InvalidRecord
from tidelog.host import Bytes
from tidelog.log.keymap import TOMBSTONE
from tidelog.model import NO_TIMESTAMP
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
    Record,
    compress,
    decompress,
)

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
UNPACKED_RECORDS_MAX: Final = 256 * 1024
"""A batch that would grow beyond either is not unpacked, so that a bomb stays small."""

FAULTS_MAX: Final = 1000
"""How many records of a batch are named to its sender, who may have sent a million."""

_UINT32: Final = struct.Struct(">I")


class Split(NamedTuple):
    """The records of one batch, in lists of equal length; `bounds` has one more."""

    bounds: list[int]
    """Where each record begins, and after them where the last one ends."""
    marks: list[int]
    """Of each, as `keymap` says, but counted from the batch's base."""
    keys: list[bytes | None]
    keyless: int
    """How many of `keys` are None."""


# Reading.


def unpack(header: BatchHeader, batch: memoryview) -> bytes:
    """The batch's plain records, or CorruptMessage."""
    if not 0 < header.record_count <= UNPACKED_RECORDS_MAX:
        raise CorruptMessage(f"{header.record_count} records are too many")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise CorruptMessage(f"codec {header.attributes & CODEC_MASK} is unknown")
    return decompress(header.codec, batch[HEADER_BYTES:], size_max=UNPACKED_BYTES_MAX)


def split_records(body: bytes, header: BatchHeader) -> Split:
    """Where each record lies, and what decides about it; the rest of it stays unread.

    Offsets must rise within the batch: they come from whoever wrote it, and one that points
    elsewhere would supersede the records of others.

    Varints of one or two bytes are read in line: nearly all are so short, and a call for each
    would make compaction take twice as long.
    """
    bounds: list[int] = []
    marks: list[int] = []
    keys: list[bytes | None] = []
    at, total, keyless = 0, len(body), 0
    before, last = -1, 2 * header.last_offset_delta
    try:
        for _ in range(header.record_count):
            bounds.append(at)
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
            if raw & 1 or not before < raw <= last:
                raise CorruptMessage("the offsets of records do not rise, or leave the batch")
            before = raw
            if (raw := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                raw += (high - 1) << 7
                at += 2
            else:
                raw, at = _read_varint(body, at)
            if raw & 1:
                keys.append(None)
                keyless += 1
            else:
                start = at
                at += raw >> 1
                keys.append(body[start:at])
            if at >= end:
                raise CorruptMessage("a key is longer than its record")
            marks.append(before | body[at] & TOMBSTONE)  # the sign of the value's length
            at = end
    except IndexError:
        raise CorruptMessage("a record is cut off") from None
    if at != total:
        raise CorruptMessage(f"{total - at} bytes follow the last record")
    bounds.append(at)
    return Split(bounds, marks, keys, keyless)


def find_bounds(body: bytes, count: int) -> list[int]:
    """Where each of `count` records begins, and where the last one ends.

    For a body that `split_records` has found in order before: here only lengths are read.
    """
    bounds = [0]
    at = 0
    for _ in range(count):
        if (raw := body[at]) < 0x80:
            at += 1 + (raw >> 1)
        elif (high := body[at + 1]) < 0x80:
            at += 2 + ((raw + ((high - 1) << 7)) >> 1)
        else:
            raw, at = _read_varint(body, at)
            at += raw >> 1
        bounds.append(at)
    if at != len(body):
        raise CorruptMessage("the records do not fill their batch")
    return bounds


def require_keys(header: BatchHeader, batch: Bytes) -> None:
    """Refuse a batch with which compaction could not do anything: InvalidRecord."""
    try:
        found = split_records(unpack(header, memoryview(batch)), header)
    except CorruptMessage as error:
        raise InvalidRecord(f"a compacted topic takes only what it can read: {error}") from None
    if found.keyless:
        places = [at for at, key in enumerate(found.keys) if key is None]
        raise InvalidRecord(
            f"a compacted topic takes no record without a key; {found.keyless} of "
            f"{len(found.keys)} have none",
            records=[(at, "the record has no key") for at in places[:FAULTS_MAX]],
        )


def are_keyed(records: Collection[Record]) -> bool:
    """Whether a plain batch of these records needs no `require_keys`: they are known before it is made."""
    return len(records) <= UNPACKED_RECORDS_MAX and all(record.key is not None for record in records)


# Writing.


def rebuild(
    header: BatchHeader, records: Sequence[bytes], *, horizon_ms: int | None
) -> tuple[BatchHeader, Bytes]:
    """The batch with no more than these of its records; with their times behind a new horizon."""
    max_timestamp = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        max_timestamp = _checked_time(header.base_timestamp + _newest(records))
    header = header._replace(record_count=len(records), max_timestamp=max_timestamp)
    if horizon_ms is not None:
        shift_ms = header.base_timestamp - horizon_ms
        records = [_shift_time(record, shift_ms) for record in records]
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
    return _build(header, compress(header.codec, b"".join(records)))


def empty(header: BatchHeader) -> tuple[BatchHeader, Bytes]:
    """The batch after it has lost all its records; offsets and sequences stay."""
    header = header._replace(
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return _build(header, b"")


def _build(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, Bytes]:
    """The batch of `header` with another payload, and its length and checksum."""
    header = header._replace(length=HEADER_BYTES - PREFIX_BYTES + len(payload))
    batch = bytearray(HEADER.pack(*header))
    batch += payload
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    _UINT32.pack_into(batch, CRC_AT, crc)
    return header._replace(crc=crc), batch


# Times.


def _newest(records: Sequence[bytes]) -> int:
    """The greatest time behind the batch's base."""
    newest = -(2**63)
    for record in records:
        at = 2 if record[0] < 0x80 else 3
        if record[at - 2] < 0x80 and (raw := record[at]) < 0x80:
            delta = (raw >> 1) ^ -(raw & 1)
        else:
            delta = _time_delta(record)[0]
        if delta > newest:
            newest = delta
    return newest


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
