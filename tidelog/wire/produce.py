"""Produce, read and written by hand: batches stay where they were received.

Rule 1: a batch is a view into its request's own memory, so that it is checked, stamped, written to
        disk and sent to followers without ever being copied.
Rule 2: a client that writes to one partition repeats itself: all but the batch and the correlation
        id. `Repeated` recognises that by comparing bytes, and skips the decoding.
"""

# request  := transactional_id: string?, acks: int16, timeout_ms: int32, topic*      (versions 3-13)
# topic    := name: string | id: uuid (13), partition*
# partition := index: int32, records: bytes?
# response := topic*, throttle_ms: int32
# topic    := name | id, partition*
# partition := index: int32, error: int16, base_offset: int64, append_time_ms: int64,
#             log_start: int64 (5+), record_error* (8+), message: string? (8+)
# record_error := place: int32, message: string?
# From version 9 on lengths are uvarints, one more than the length, and every struct ends in tags.

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.model import NO_OFFSET, NO_TIMESTAMP, Offset
from tidelog.wire.lengths import ITEMS_MAX, MessageDamaged, read_uvarint, skip_tags

FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13

STRING_BYTES_MAX: Final = 2**15 - 1

_CORRELATION_AT: Final = 4
_CORRELATION_END: Final = 8
_NO_TAGS: Final = b"\0\0\0"
"""The tags of a partition, its topic and the request when there are none."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_START: Final = struct.Struct(">ihqqq")


class PartitionData(NamedTuple):
    """What a producer sends for one partition."""

    partition: int
    records: memoryview | None
    end: int
    """Where the records end in their request."""


class TopicData(NamedTuple):
    """A topic by name, or from version 13 on by id."""

    topic: str | UUID
    partitions: list[PartitionData]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


@dataclass(slots=True)
class PartitionAnswer:
    """What one partition answers; filled in as the write goes on."""

    index: int
    error: int = 0
    base_offset: Offset = NO_OFFSET
    append_time_ms: int = NO_TIMESTAMP
    log_start: Offset = NO_OFFSET
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    """Records at fault, by their places in the batch."""


def decode_request(frame: bytearray, at: int, version: int) -> ProduceRequest:
    """Read a request; the batches in it are views into `frame`."""
    view = memoryview(frame)
    reader = _Flexible(view, at) if version >= FLEXIBLE_FROM else _Plain(view, at)
    try:
        transactional_id = reader.string()
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, reader.at)
        reader.at += _ACKS_TIMEOUT.size
        topics = []
        for _ in range(reader.count()):
            topic: str | UUID
            if version >= TOPIC_IDS_FROM:
                topic = UUID(bytes=bytes(reader.take(16)))
            else:
                topic = reader.string() or ""
            partitions = []
            for _ in range(reader.count()):
                partition: int = _INT32.unpack_from(view, reader.at)[0]
                reader.at += 4
                records = reader.bytes()
                partitions.append(PartitionData(partition, records, reader.at))
                reader.tags()
            reader.tags()
            topics.append(TopicData(topic, partitions))
        reader.tags()
    except (struct.error, UnicodeDecodeError) as error:
        raise MessageDamaged(f"not a Produce of version {version}: {error}") from error
    if reader.at != len(frame):
        raise MessageDamaged(f"{len(frame) - reader.at} bytes follow a Produce")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


class _Plain:
    """Reads the fields of versions 3 to 8, never past the end."""

    __slots__ = ("_items", "at", "view")

    def __init__(self, view: memoryview, at: int) -> None:
        self.view = view
        self.at = at
        self._items = 0

    def take(self, size: int) -> memoryview:
        start, self.at = self.at, self.at + size
        if size < 0 or self.at > len(self.view):
            raise MessageDamaged("a field is longer than the request")
        return self.view[start : self.at]

    def _int32(self) -> int:
        value: int = _INT32.unpack_from(self.view, self.at)[0]
        self.at += 4
        return value

    def string(self) -> str | None:
        size: int = _INT16.unpack_from(self.view, self.at)[0]
        self.at += 2
        return None if size < 0 else str(self.take(size), "utf-8")

    def bytes(self) -> memoryview | None:
        size = self._int32()
        return None if size < 0 else self.take(size)

    def count(self) -> int:
        return self._believe(self._int32())

    def _believe(self, count: int) -> int:
        """The items of an array, none if it is null; refused if there cannot be so many."""
        self._items += max(count, 0)
        if count > len(self.view) - self.at or self._items > ITEMS_MAX:
            raise MessageDamaged(f"an array of {count} items does not fit the request")
        return max(count, 0)

    def tags(self) -> None:
        """There are none in these versions."""


class _Flexible(_Plain):
    """Reads the fields of versions 9 and later."""

    __slots__ = ()

    def _length(self) -> int:
        value, self.at = read_uvarint(self.view, self.at)
        return value - 1

    def string(self) -> str | None:
        size = self._length()
        return None if size < 0 else str(self.take(size), "utf-8")

    def bytes(self) -> memoryview | None:
        size = self._length()
        return None if size < 0 else self.take(size)

    def count(self) -> int:
        return self._believe(self._length())

    def tags(self) -> None:
        self.at = skip_tags(self.view, self.at)


class Repeated:
    """A request for one partition, as its client will most likely send it again."""

    __slots__ = (
        "_answer_head",
        "_answer_tail",
        "_flexible",
        "_head",
        "_prefix",
        "_prefix_end",
        "_with_start",
        "acks",
        "partition",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(self, frame: bytearray, version: int, request: ProduceRequest, prefix_end: int) -> None:
        self.version = version
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.topic, ((self.partition, _, _),) = request.topics[0]
        self._flexible = version >= FLEXIBLE_FROM
        self._with_start = version >= 5
        self._head = bytes(frame[:_CORRELATION_AT])
        self._prefix = bytes(frame[_CORRELATION_END:prefix_end])
        self._prefix_end = prefix_end
        head = bytearray()
        put_count(head, 1, self._flexible)
        put_topic(head, self.topic, self._flexible)
        put_count(head, 1, self._flexible)
        self._answer_head = bytes(head)
        whole = encode_response(version, [(self.topic, [PartitionAnswer(self.partition)])])
        layout = _PARTITION_START if self._with_start else _PARTITION
        self._answer_tail = whole[len(head) + layout.size :]

    @classmethod
    def of(cls, frame: bytearray, version: int, request: ProduceRequest) -> "Repeated | None":
        """What to expect after `request`; None if it is not of the simple kind."""
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return None
        _, records, records_end = request.topics[0].partitions[0]
        if records is None or request.transactional_id is not None:
            return None
        flexible = version >= FLEXIBLE_FROM
        end = len(frame) - (len(_NO_TAGS) if flexible else 0)
        length = bytearray()
        put_count(length, len(records), flexible)  # a length is written as a count is
        prefix_end = end - len(records) - len(length)
        is_last = records_end == end
        if not is_last or frame[prefix_end : prefix_end + len(length)] != length:
            return None  # it carries tags, or a length written the long way
        return cls(frame, version, request, prefix_end)

    def batch_in(self, frame: bytearray) -> memoryview | None:
        """The batch in `frame` if all the rest is as expected, else None: decode it."""
        if not (frame.startswith(self._prefix, _CORRELATION_END) and frame.startswith(self._head)):
            return None
        at = self._prefix_end
        end = len(frame)
        if not self._flexible:
            if end - at < 4:
                return None
            size: int = _INT32.unpack_from(frame, at)[0]
            at += 4
        else:
            end -= len(_NO_TAGS)
            try:
                size, at = read_uvarint(frame, at)
            except MessageDamaged:
                return None
            size -= 1
            if not frame.endswith(_NO_TAGS):
                return None
        return memoryview(frame)[at:end] if size > 0 and at + size == end else None

    def encode_answer(self, answer: PartitionAnswer) -> bytes:
        """The body of the response."""
        if answer.error:
            return encode_response(self.version, [(self.topic, [answer])])
        if self._with_start:
            middle = _PARTITION_START.pack(
                answer.index, 0, answer.base_offset, answer.append_time_ms, answer.log_start
            )
        else:
            middle = _PARTITION.pack(answer.index, 0, answer.base_offset, answer.append_time_ms)
        return b"".join((self._answer_head, middle, self._answer_tail))


def encode_response(version: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionAnswer]]]) -> bytes:
    """The body of the response, without its header."""
    flexible = version >= FLEXIBLE_FROM
    out = bytearray()
    put_count(out, len(topics), flexible)
    for topic, answers in topics:
        put_topic(out, topic, flexible)
        put_count(out, len(answers), flexible)
        for answer in answers:
            if version >= 5:
                out += _PARTITION_START.pack(
                    answer.index, answer.error, answer.base_offset, answer.append_time_ms, answer.log_start
                )
            else:
                out += _PARTITION.pack(answer.index, answer.error, answer.base_offset, answer.append_time_ms)
            if version >= 8:
                put_count(out, len(answer.record_errors), flexible)
                for place, message in answer.record_errors:
                    out += _INT32.pack(place)
                    put_nullable_string(out, message, flexible)
                    if flexible:
                        out.append(0)
                put_nullable_string(out, answer.message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += b"\0\0\0\0"  # never throttled
    if flexible:
        out.append(0)
    return bytes(out)


def put_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def put_topic(out: bytearray, topic: str | UUID, flexible: bool) -> None:
    if isinstance(topic, UUID):
        out += topic.bytes
        return
    put_nullable_string(out, topic, flexible)


def put_nullable_string(out: bytearray, text: str | None, flexible: bool) -> None:
    data = b"" if text is None else text.encode()
    if len(data) > STRING_BYTES_MAX:
        data = data[:STRING_BYTES_MAX].decode("utf-8", "ignore").encode()  # between characters
    if flexible:
        put_uvarint(out, 0 if text is None else len(data) + 1)
    else:
        out += _INT16.pack(-1 if text is None else len(data))
    out += data
