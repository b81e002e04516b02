"""Produce and Fetch by hand: frames made once and sent many times, answers that are only counted.

Rule 1: requests here have fixed versions (Produce 9, Fetch 12); their layouts are these grammars.
Rule 2: of an answer only lengths, offsets and errors are read; what is unusual is left to kio.
"""

# produce 9 := header, transactional_id: compact_string? = null, acks: int16, timeout_ms: int32,
#              topics: [name, partitions: [index: int32, records: compact_bytes, tags], tags], tags
# answer 9  := correlation_id: int32, tags, topics: [name, partitions: [index: int32, error: int16,
#              base_offset: int64, append_time: int64, log_start: int64, record_errors: [],
#              message: compact_string?, tags], tags], throttle_ms: int32, tags
# fetch 12  := header, replica: int32, wait_ms: int32, min_bytes: int32, max_bytes: int32,
#              isolation: int8, session: int32, session_epoch: int32, topics: [name, partitions:
#              [FETCH_PARTITION], tags], forgotten: [], rack: compact_string, tags
# answer 12 := correlation_id: int32, tags, throttle_ms: int32, error: int16, session: int32,
#              topics: [name, partitions: [FETCHED, aborted: [producer: int64, offset: int64, tags],
#              replica: int32, records: compact_bytes?, tags], tags], tags
# header    := api_key: int16, version: int16, correlation_id: int32, client: string, tags
# [x]       := uvarint count + 1, x{count};  compact_* := uvarint size + 1, bytes

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.index import load_response_schema
from kio.serial import entity_reader

from tidelog.client.cluster import check
from tidelog.client.wire import Frame
from tidelog.host import Bytes
from tidelog.model import Offset
from tidelog.records import HEADER_BYTES, PREFIX, PREFIX_BYTES, Record, encode_batch
from tidelog.wire.apis import Api

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
CLIENT: Final = b"\x00\x0ctidelog-load\x00"  # a string, then no tags
TIMEOUT_MS: Final = 30_000
NO_TAGS: Final = b"\x00"

FRAME_HEAD: Final = struct.Struct(">ihhi")  # size, api key, version, correlation id
FETCH_HEAD: Final = struct.Struct(">iiiibii")
FETCH_PARTITION: Final = struct.Struct(">iiqiqib")
FETCHED: Final = struct.Struct(">ihqqq")
PRODUCED: Final = struct.Struct(">ih24xBBB")  # index, error; no record errors, message, tags
LAST_OFFSET_DELTA: Final = struct.Struct(">i")
LAST_OFFSET_DELTA_AT: Final = 23


def make_batch(record_bytes: int, batch_bytes: int, *, now_ms: int) -> tuple[bytes, int]:
    """One batch of equal records that has at most `batch_bytes`, and how many it holds."""
    value = (b"tidelog " * (record_bytes // 8 + 1))[:record_bytes]
    record = Record(value=value, timestamp_ms=now_ms)
    with_overhead = len(encode_batch([record])) - HEADER_BYTES + 4  # an offset's varint may grow
    count = max(1, (batch_bytes - HEADER_BYTES) // with_overhead)
    return bytes(encode_batch([record] * count)), count


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(frame: Frame, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


@dataclass(frozen=True, slots=True)
class ProduceFrame:
    """A Produce request that lacks only its first 12 bytes."""

    size: int
    rest: tuple[Bytes, ...]
    answer_at: int
    """Where the answers of the partitions begin in the response."""
    partitions: int

    @classmethod
    def make(cls, topic: str, partitions: Sequence[int], batch: bytes, acks: int) -> "ProduceFrame":
        name = uvarint(len(topic) + 1) + topic.encode()
        count = uvarint(len(partitions) + 1)
        body = CLIENT + b"\x00" + struct.pack(">hi", acks, TIMEOUT_MS) + uvarint(2) + name + count
        rest: list[Bytes] = []
        for partition in partitions:
            rest += [body + struct.pack(">i", partition) + uvarint(len(batch) + 1), batch]
            body = NO_TAGS
        rest.append(NO_TAGS * 3)  # of the last partition, the topic, the request
        size = FRAME_HEAD.size - 4 + sum(map(len, rest))
        return cls(size, tuple(rest), 4 + 1 + 1 + len(name) + len(count), len(partitions))

    def buffers(self, correlation_id: int) -> list[Bytes]:
        head = FRAME_HEAD.pack(self.size, Api.PRODUCE, PRODUCE_VERSION, correlation_id)
        return [head, *self.rest]

    def check(self, frame: Frame, topic: str) -> None:
        """Raise what the broker answered, unless it is a plain success for every partition."""
        at = self.answer_at
        for _ in range(self.partitions):
            if PRODUCED.unpack_from(frame, at)[1:] != (0, 1, 0, 0):
                return _explain(frame, topic)
            at += PRODUCED.size
        return None


def _explain(frame: Frame, topic: str) -> None:
    """Decode an answer that is not the usual one, and raise the error in it, if any."""
    read: Any = entity_reader(load_response_schema(Api.PRODUCE, PRODUCE_VERSION))
    response, _ = read(memoryview(frame).toreadonly(), 5)
    for answered in response.responses:
        for partition in answered.partition_responses:
            check(partition.error_code, f"{topic}-{partition.index}", partition.error_message)


def fetch_frame(
    correlation_id: int,
    topic: str,
    positions: Mapping[int, Offset],
    *,
    wait_ms: int,
    bytes_max: int,
    partition_bytes_max: int,
) -> bytes:
    body = bytearray(CLIENT)
    body += FETCH_HEAD.pack(-1, wait_ms, 1, bytes_max, 0, 0, -1)
    body += uvarint(2) + uvarint(len(topic) + 1) + topic.encode() + uvarint(len(positions) + 1)
    for partition, offset in positions.items():
        body += FETCH_PARTITION.pack(partition, -1, offset, -1, -1, partition_bytes_max, 0)
    body += NO_TAGS + uvarint(1) + uvarint(1) + NO_TAGS  # topic's tags, forgotten, rack, tags
    size = FRAME_HEAD.size - 4 + len(body)
    return FRAME_HEAD.pack(size, Api.FETCH, FETCH_VERSION, correlation_id) + body


def read_fetched(frame: Frame, topic: str) -> Iterator[tuple[int, Offset, int]]:
    """For each partition that sent records: its number, the offset after them, their bytes."""
    check(int.from_bytes(frame[9:11], "big", signed=True), f"fetch from {topic}")
    topics, at = read_uvarint(frame, 15)
    for _ in range(topics - 1):
        name_size, at = read_uvarint(frame, at)
        partitions, at = read_uvarint(frame, at + name_size - 1)
        for _ in range(partitions - 1):
            partition, error, *_ = FETCHED.unpack_from(frame, at)
            check(error, f"{topic}-{partition}")
            aborted, at = read_uvarint(frame, at + FETCHED.size)
            at += 17 * max(0, aborted - 1) + 4
            size, at = read_uvarint(frame, at)
            start, at = at, at + max(0, size - 1)
            found = _after_whole_batches(frame, start, at)
            if found is not None:
                yield partition, *found
            at = _skip_tags(frame, at)
        at = _skip_tags(frame, at)


def _after_whole_batches(frame: Frame, at: int, end: int) -> tuple[Offset, int] | None:
    """The offset after the last whole batch, and the bytes up to it."""
    start, last, base = at, -1, 0
    while end - at >= HEADER_BYTES:
        offset, length = PREFIX.unpack_from(frame, at)
        after = at + PREFIX_BYTES + length
        if after > end or length <= 0:
            break
        last, base, at = at, offset, after
    if last < 0:
        return None
    (delta,) = LAST_OFFSET_DELTA.unpack_from(frame, last + LAST_OFFSET_DELTA_AT)
    return base + delta + 1, at - start


def _skip_tags(frame: Frame, at: int) -> int:
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        _, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        at += size
    return at
