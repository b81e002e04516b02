"""Record batches of format 2: look at the header, check, stamp, encode, decode.

Rule 1: on the produce and fetch paths only the 61 bytes of the header are read. `BatchHeader` and
        `check_batch` never look at a record.
Rule 2: `base offset` and `leader epoch` lie outside of the checksum, so a broker stamps them in
        place. Anything else it changes (only a log-append time) needs a new checksum.
Rule 3: every length read from outside is compared with the bytes that are left before it is used.
"""

# batch   := base_offset: int64, length: int32, leader_epoch: int32, magic: int8 = 2, crc: uint32,
#            attributes: int16, last_offset_delta: int32, base_timestamp: int64,
#            max_timestamp: int64, producer_id: int64, producer_epoch: int16, base_sequence: int32,
#            count: int32, records                                    (big-endian)
#            `length` counts everything after itself; `crc` covers everything after itself.
# records := record{count}, compressed as a whole when attributes says so
# record  := length: varint, attributes: int8, timestamp_delta: varlong, offset_delta: varint,
#            key: bytes?, value: bytes?, headers: varint count, (key: bytes, value: bytes?)*
# marker  := a control batch of one record, whose key is version: int16 = 0, kind: int16 (0 aborts,
#            1 commits) and whose value is version: int16 = 0, coordinator_epoch: int32
# bytes?  := length: varint (-1 is null), that many bytes              (varints are zigzag)

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import cramjam
from crc32c import crc32c

from tidelog.errors import CorruptMessage, InvalidRecord, UnsupportedCompression, UnsupportedForMessageFormat
from tidelog.model import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, Epoch, Offset, ProducerId

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES == 61
PREFIX: Final = struct.Struct(">qi")
"""Base offset and length: enough to hop from batch to batch."""
PREFIX_BYTES: Final = PREFIX.size
MAGIC: Final = 2
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_FROM: Final = 21
_ATTRIBUTES_AT: Final = 21
SEQUENCE_MODULUS: Final = 2**31
"""Sequence numbers wrap to 0 after the largest int32."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_CUT_OFF: Final = "a record is cut off, or a field is longer than its record"
_MISFIT: Final = "a record's length does not fit its fields"
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """What a broker knows of a batch without unpacking it.

    A tuple, because one is made for every batch that passes: a frozen dataclass of thirteen
    fields takes eight times as long to build.
    """

    base_offset: Offset
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return PREFIX_BYTES + self.length

    @property
    def last_offset(self) -> Offset:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def lacks_records(self) -> bool:
        """Whether compaction took records of it; one that never had any bears a time."""
        never_had = not self.last_offset_delta and self.base_timestamp != NO_TIMESTAMP
        return self.record_count <= self.last_offset_delta and not never_had

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id > NO_PRODUCER


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at `at`; the caller has made sure that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, at))


def is_transactional(batch: Buffer) -> bool:
    """Whether a batch says that it is of a transaction; not if it is too short to say anything."""
    return len(batch) >= HEADER_BYTES and bool(batch[_ATTRIBUTES_AT + 1] & TRANSACTIONAL)


def batch_size_at(buffer: Buffer, at: int, end: int) -> int:
    """The size of the batch at `at`, or 0 when `end` cuts its prefix or the length is absurd."""
    if end - at < PREFIX_BYTES:
        return 0
    length: int = _INT32.unpack_from(buffer, at + 8)[0]
    return PREFIX_BYTES + length if length >= HEADER_BYTES - PREFIX_BYTES else 0


def crc_matches(batch: Buffer, header: BatchHeader) -> bool:
    """Whether the checksum fits the bytes; `batch` is exactly one batch."""
    return bool(crc32c(memoryview(batch)[CRC_FROM:]) == header.crc)


def check_batch(batch: Buffer, *, is_internal: bool = False) -> BatchHeader:
    """The header of `batch`, which must be one whole batch as a producer may send it.

    Raises the error that the producer should get. The records are not looked at. With
    `is_internal`, a broker writes in a producer's transaction, and without its sequence.
    """
    size = len(batch)
    if size <= MAGIC_AT:
        raise CorruptMessage(f"a batch has at least {HEADER_BYTES} bytes; this one has {size}")
    magic = batch[MAGIC_AT]
    if magic < MAGIC:
        raise UnsupportedForMessageFormat(
            f"message format {magic} is not stored, only {MAGIC} (clients since Kafka 0.11)"
        )
    if magic > MAGIC or size < HEADER_BYTES:
        raise CorruptMessage(f"not a record batch: {size} bytes, format {magic}")
    header = read_header(batch)
    if HEADER_BYTES <= header.size <= size - HEADER_BYTES:
        raise InvalidRecord("more than one batch came for the partition; send one in each request")
    if header.size != size:
        raise CorruptMessage(f"the batch says {header.size} bytes, {size} came")
    if not crc_matches(batch, header):
        raise CorruptMessage("the checksum does not match the batch")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidRecord(
            f"{header.record_count} records cannot span {header.last_offset_delta + 1} offsets"
        )
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise UnsupportedCompression(f"codec {header.attributes & CODEC_MASK} is unknown")
    if header.producer_id > NO_PRODUCER and header.base_sequence < 0 and not is_internal:
        raise InvalidRecord(f"producer {header.producer_id} sent sequence {header.base_sequence}")
    return header


def stamp(batch: bytearray | memoryview, base_offset: Offset, leader_epoch: int) -> None:
    """Give the batch its place in the log. Both fields lie outside of the checksum."""
    _INT64.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, 12, leader_epoch)


def stamp_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Make `now_ms` the time of every record (`message.timestamp.type=LogAppendTime`)."""
    attributes = int.from_bytes(batch[21:23], "big") | LOG_APPEND_TIME
    batch[21:23] = attributes.to_bytes(2, "big")
    _INT64.pack_into(batch, 35, now_ms)
    _UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


# Records: for the command line, the coordinators, the tests and the tools; never on the hot path.


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message. `offset` and `timestamp_ms` are absolute; a None value is a tombstone."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = NO_TIMESTAMP
    offset: Offset = 0


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    base_offset: Offset = 0,
    leader_epoch: int = NO_EPOCH,
    attributes: int = 0,
) -> bytearray:
    """One batch of `records`, whose offsets are numbered from `base_offset`."""
    assert records, "a batch holds at least one record"
    base_timestamp = records[0].timestamp_ms
    encoded = [_encode_record(r, r.timestamp_ms - base_timestamp, delta) for delta, r in enumerate(records)]
    return seal_batch(
        compress(codec, b"".join(encoded)),
        count=len(records),
        attributes=attributes | codec,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp_ms for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def encode_empty(
    *, producer_id: ProducerId, producer_epoch: int, base_sequence: int, now_ms: int
) -> bytearray:
    """A batch that takes an offset and holds no record: it says no more than its sequence."""
    batch = seal_batch(
        b"",
        count=1,
        attributes=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    _INT32.pack_into(batch, HEADER_BYTES - _INT32.size, 0)
    _UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def seal_batch(
    payload: Buffer,
    *,
    count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: Offset = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The batch around `count` records, which are encoded, and packed as `attributes` says."""
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_BYTES - PREFIX_BYTES + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    batch += payload
    _UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


class Marker(NamedTuple):
    """The end of a transaction in one partition."""

    commits: bool
    coordinator_epoch: Epoch


def encode_marker(marker: Marker, *, producer_id: ProducerId, producer_epoch: int, now_ms: int) -> bytearray:
    """The control batch that ends a producer's transaction."""
    record = Record(
        key=_MARKER_KEY.pack(0, int(marker.commits)),
        value=_MARKER_VALUE.pack(0, marker.coordinator_epoch),
        timestamp_ms=now_ms,
    )
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )


def read_marker(batch: Buffer) -> Marker | None:
    """What a control batch says of its producer's transaction; None if it says another thing."""
    record = decode_batch(batch)[0]
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY.size or len(value) < _MARKER_VALUE.size:
        raise CorruptMessage("a control record is cut off")
    kind = _MARKER_KEY.unpack_from(key)[1]
    if kind not in (0, 1):
        return None
    return Marker(commits=kind == 1, coordinator_epoch=_MARKER_VALUE.unpack_from(value)[1])


def decode_batch(batch: Buffer, *, size_max: int = 256 * 1024 * 1024) -> list[Record]:
    """The records of one whole batch, its checksum verified.

    `size_max` bounds what a compressed batch may grow to, so that a bomb stays small.
    """
    header, data = _open(batch, size_max)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records, at = [], 0
    for _ in range(header.record_count):
        record, at = _read_record(data, at, header, append_time)
        records.append(record)
    _expect_end(data, at)
    return records


def iterate_records(
    batch: Buffer, *, start: Offset = 0, size_max: int = 256 * 1024 * 1024
) -> Iterator[Record]:
    """The records of a batch from `start` on, one after the other; as `decode_batch` otherwise.

    For who may stop early: a small batch may hold millions of records.
    """
    header, data = _open(batch, size_max)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    is_before, at = header.base_offset < start, 0
    for _ in range(header.record_count):
        if is_before:
            offset, _, end = _read_place(data, at, header)
            is_before = offset < start
            if is_before:
                at = end
                continue
        record, at = _read_record(data, at, header, append_time)
        yield record
    _expect_end(data, at)


def iterate_times(batch: Buffer, *, size_max: int) -> Iterator[tuple[Offset, int]]:
    """Offset and time of every record of a batch, one after the other: nothing else is kept.

    A small batch may say that it holds millions of records, and do so; hence the short ways.
    """
    header, data = _open(batch, size_max)
    last_delta = header.last_offset_delta
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    at, size = 0, len(data)
    short = abs(header.base_timestamp) < 2**62
    for _ in range(header.record_count):
        if short and at + 3 < size and data[at] | data[at + 2] | data[at + 3] < 0x80:
            # Length, time and offset are one byte each, and not negative if they are even.
            zigzag, time_delta, delta = data[at], data[at + 2], data[at + 3]
            end = at + 1 + (zigzag >> 1)
            time_delta = (time_delta >> 1) ^ -(time_delta & 1)
            if (zigzag | delta) & 1 or end > size or end < at + 4 or delta >> 1 > last_delta:
                raise CorruptMessage("a record lies outside of its batch, or of time")
            offset, time = header.base_offset + (delta >> 1), header.base_timestamp + time_delta
        else:
            offset, time, end = _read_place(data, at, header)
        at = end
        yield offset, time if append_time is None else append_time
    _expect_end(data, at)


def _open(batch: Buffer, size_max: int) -> tuple[BatchHeader, bytes]:
    """The header of a batch, its checksum verified, and its unpacked records."""
    if len(batch) < HEADER_BYTES:
        raise CorruptMessage(f"a batch has at least {HEADER_BYTES} bytes; this one has {len(batch)}")
    header = read_header(batch)
    if header.size != len(batch) or not crc_matches(batch, header):
        raise CorruptMessage(f"the checksum of the batch at {header.base_offset} does not match")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise CorruptMessage(f"codec {header.attributes & CODEC_MASK} is unknown")
    payload = memoryview(batch)[HEADER_BYTES:]
    return header, decompress(header.codec, payload, size_max=size_max)


def _read_place(data: bytes, at: int, header: BatchHeader) -> tuple[Offset, int, int]:
    """Offset and time of the record at `at`, and where it ends."""
    try:
        offset, timestamp, at, end = _begin_record(data, at, header)
    except IndexError:
        raise CorruptMessage(_CUT_OFF) from None
    if at > end:
        raise CorruptMessage(_MISFIT)
    return offset, timestamp, end


def _read_record(data: bytes, at: int, header: BatchHeader, append_time: int | None) -> tuple[Record, int]:
    """The record at `at`, and where it ends.

    A field that would end beyond the data is found out by what must follow it.
    """
    key = value = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    try:
        offset, timestamp, at, end = _begin_record(data, at, header)
        size, at = _read_varint(data, at)
        if size >= 0:
            key = data[at : at + size]
            at += size
        size, at = _read_varint(data, at)
        if size >= 0:
            value = data[at : at + size]
            at += size
        count, at = _read_varint(data, at)
        if count or at > end:
            headers, at = _read_headers(data, at, count, end)
    except IndexError:
        raise CorruptMessage(_CUT_OFF) from None
    if at != end:
        raise CorruptMessage(_MISFIT)
    record = Record(
        key=key,
        value=value,
        headers=headers,
        offset=offset,
        timestamp_ms=timestamp if append_time is None else append_time,
    )
    return record, end


def _read_headers(
    data: bytes, at: int, count: int, end: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if count < 0 or count > end - at:
        raise CorruptMessage(f"a record cannot hold {count} headers")
    headers = []
    for _ in range(count):
        name, at = _read_nullable(data, at)
        value, at = _read_nullable(data, at)
        headers.append(((name or b"").decode("utf-8", "replace"), value))
    return tuple(headers), at


def _read_nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _begin_record(data: bytes, at: int, header: BatchHeader) -> tuple[Offset, int, int, int]:
    """Offset and time of the record at `at`, where its key begins, and where it ends."""
    size, at = _read_varint(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise CorruptMessage("a record is longer than its batch")
    time_delta, at = _read_varint(data, at + 1)  # after the attributes, which the format has unused
    delta, at = _read_varint(data, at)
    timestamp = header.base_timestamp + time_delta
    if not -(2**63) <= timestamp < 2**63 or not 0 <= delta <= header.last_offset_delta:
        raise CorruptMessage("a record lies outside of its batch, or of time")
    return header.base_offset + delta, timestamp, at, end


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; IndexError if the data ends before."""
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise CorruptMessage("a length in a record is absurd")
    value |= byte << shift
    if value >= 2**64:
        raise CorruptMessage("a number in a record does not fit 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def _expect_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise CorruptMessage(f"{len(data) - at} bytes follow the last record")


def _long_varint(value: int) -> bytes:
    out, value = bytearray(), (value << 1) ^ (value >> 63)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_VARINTS: Final = tuple(_long_varint(value) for value in range(1024))


def _varint(value: int) -> bytes:
    return _VARINTS[value] if 0 <= value < 1024 else _long_varint(value)


def _nullable(value: bytes | None) -> bytes:
    return b"\1" if value is None else _varint(len(value)) + value  # zigzag of -1


def _encode_record(record: Record, timestamp_delta: int, delta: int) -> bytes:
    place, headers = _varint(timestamp_delta) + _varint(delta), _varint(len(record.headers))
    for name, header in record.headers:
        headers += _nullable(name.encode()) + _nullable(header)
    body = b"\0%b%b%b%b" % (place, _nullable(record.key), _nullable(record.value), headers)
    return _varint(len(body)) + body


def iterate_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every whole batch in a fetched buffer; a partial one at its end is legal and passed over."""
    view = memoryview(buffer)
    at, end = 0, len(view)
    while (size := batch_size_at(view, at, end)) and at + size <= end:
        yield read_header(view, at), view[at : at + size]
        at += size


# Codecs.


_SNAPPY_JAVA_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_JAVA_HEADER_BYTES: Final = 16


def compress(codec: Codec, data: bytes) -> bytes:
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            # Blocks that stand alone: Kafka's own client refuses to read others. And level 1: more
            # would take six times as long, and who chooses lz4 chooses speed.
            compressor = cramjam.lz4.Compressor(level=1, block_linked=False)
            compressor.compress(data)
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def decompress(codec: Codec, data: Buffer, *, size_max: int) -> bytes:
    """The plain bytes; CorruptMessage if they are damaged or would pass `size_max`."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return _grow(cramjam.gzip.decompress_into, codec, bytes(data), size_max)
        case Codec.SNAPPY:
            return _decompress_snappy(bytes(data), size_max)
        case Codec.LZ4:
            return _grow(cramjam.lz4.decompress_into, codec, bytes(data), size_max)
        case Codec.ZSTD:
            return _grow(cramjam.zstd.decompress_into, codec, bytes(data), size_max)


def _grow(into: Callable[..., int], codec: Codec, data: bytes, size_max: int) -> bytes:
    """Decompress into a buffer that is quadrupled until it suffices or `size_max` is reached."""
    size = min(size_max, max(4 * len(data), 4096))
    while True:
        out = bytearray(size)
        try:
            size_found = into(data, out)
            return bytes(memoryview(out)[:size_found])
        except cramjam.DecompressionError as error:
            if size == size_max:
                raise CorruptMessage(
                    f"the {codec.name.lower()} data is damaged or holds over {size_max} bytes"
                ) from error
            size = min(size_max, 4 * size)


def _decompress_snappy(data: bytes, size_max: int) -> bytes:
    """Raw snappy, or the framing of snappy-java that some clients send.

    framing := magic: 8 bytes, version: int32, compatible: int32, (size: int32, raw snappy)*
    """
    if not data.startswith(_SNAPPY_JAVA_MAGIC):
        return _decompress_snappy_block(data, size_max)
    parts: list[bytes] = []
    at, left = _SNAPPY_JAVA_HEADER_BYTES, size_max
    while at < len(data):
        if len(data) - at < 4:
            raise CorruptMessage("the snappy data is cut off")
        size = _INT32.unpack_from(data, at)[0]
        at += 4
        if size < 0 or size > len(data) - at:
            raise CorruptMessage("a snappy block is longer than its data")
        parts.append(_decompress_snappy_block(data[at : at + size], left))
        left -= len(parts[-1])
        at += size
    return b"".join(parts)


def _decompress_snappy_block(data: bytes, size_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)  # what the sender says: checked first
        if size > size_max:
            raise CorruptMessage(f"the snappy data says {size} bytes; at most {size_max} are taken")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"the snappy data is damaged: {error}") from error
