"""The records of `__consumer_offsets`, in Kafka's own formats.

Rule 1: the newest record of a key is the truth; a record without a value deletes its key.
Rule 2: every length read is compared with the bytes that are left before it is used.
Rule 3: what a later version of Kafka may have written under keys we do not know is passed over
        (KIP-915); a known key with a value that makes no sense is corruption.

An offset belongs to a topic's id, not to its name: a topic that is made anew begins anew. So the id
is part of the value, in the tag that Kafka has for it. Brokers and tools read version 4, the first
with tags, since Kafka 3.5 (KIP-915). Our own tag is one that they pass over.

A static member that restarts has another member id, and nothing else changes. To write the whole
group for that would cost a thousand times as much in a group of a thousand. So it is a record of
the member alone, under a key of ours that Kafka passes over. It counts in the generation that it
names, until the group is written again.
"""

# key     := version: int16, (offset key | group key)                             (big-endian)
# offset key := group: string, topic: string, partition: int32         (version 1; 0 is read too)
# group key  := group: string                                                      (version 2)
# renamed key := group: string, instance_id: string                       (version 1000: ours)
#
# offset  := version: int16 = 4, offset: int64, leader_epoch: int32, metadata: compact string,
#            committed_ms: int64, tags
#            Versions 0 to 3, with plain strings and without tags, are read; they tell no topic id.
#            Version 1 has expires_ms: int64 at its end.
# tags    := count: uvarint, (tag: uvarint, size: uvarint, that many bytes){count}
#            0 topic_id: 16 bytes, 1000 expires_ms: int64 (ours; when a client has set a retention)
# group   := version: int16 = 3, protocol_type: string, generation: int32, protocol: string?,
#            leader: string?, state_since_ms: int64, count: int32, member{count}
# member  := member_id: string, instance_id: string?, client_id: string, client_host: string,
#            rebalance_timeout_ms: int32, session_timeout_ms: int32, subscription: bytes,
#            assignment: bytes
#            Versions 0 to 2, without some of the fields, are read but not written.
# renamed := version: int16 = 0, generation: int32, member
# string  := length: int16, UTF-8            string? := the same; length -1 is null
# bytes   := length: int32, that many bytes  compact string := length + 1: uvarint, UTF-8

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.errors import CorruptMessage
from tidelog.model import NO_EPOCH, NO_TIMESTAMP, Epoch, Offset, TopicPartition
from tidelog.records import Record
from tidelog.wire.reader import Reader

TEXT_BYTES_MAX: Final = 2**15 - 1
"""The longest string of these formats, and so the longest group id or member id."""

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_RENAMED_KEY_VERSION: Final = 1000
_RENAMED_VERSION: Final = 0
_OFFSET_VERSION: Final = 4
_OFFSET_VERSION_WITH_EXPIRY: Final = 1
_OFFSET_VERSION_WITH_TAGS: Final = 4
_TOPIC_ID_TAG: Final = 0
_EXPIRES_TAG: Final = 1000
_GROUP_VERSION: Final = 3

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """How far a group has come in a partition."""

    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""
    committed_ms: int
    expires_ms: int | None = None
    """Set by clients of old versions; otherwise the group's fate decides."""
    topic_id: UUID | None = None
    """Of the topic that was consumed; None in records that were written before they had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member with its share, in one generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A generation of a group, whole; without members the group is empty."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWritten:
    """One offset of a group, or None where it was deleted."""

    group_id: str
    place: TopicPartition
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWritten:
    """A group's newest generation, or None where the group was deleted."""

    group_id: str
    value: GroupRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedMember:
    """A static member under another id, in the place that it had in a generation."""

    generation: int
    member: MemberRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWritten:
    """A static member has restarted; None where the group's record says all there is to say."""

    group_id: str
    instance_id: str
    value: RenamedMember | None


Written: TypeAlias = OffsetWritten | GroupWritten | MemberWritten


def encode(written: Written, wall_ms: int) -> Record:
    """The record that says so."""
    value: bytes | None = None
    match written.value:
        case CommittedOffset():
            value = _encode_offset(written.value)
        case GroupRecord():
            value = _encode_group(written.value)
        case RenamedMember(generation=generation, member=member):
            head = _INT16.pack(_RENAMED_VERSION) + _INT32.pack(generation)
            value = b"".join((head, *_member_parts(member)))
    return Record(key=_encode_key(written), value=value, timestamp_ms=wall_ms)


def decode(record: Record) -> Written | None:
    """What the record says; None if its key is of a kind that we do not know."""
    if record.key is None:
        raise CorruptMessage(f"the record at {record.offset} has no key")
    key = Reader(record.key)
    version = key.int16()
    if 0 <= version <= _OFFSET_KEY_VERSION:
        group_id = key.text()
        place = TopicPartition(key.text(), key.int32())
        key.end()
        offset = None if record.value is None else _decode_offset(Reader(record.value))
        return OffsetWritten(group_id=group_id, place=place, value=offset)
    if version == _GROUP_KEY_VERSION:
        group_id = key.text()
        key.end()
        group = None if record.value is None else _decode_group(Reader(record.value))
        return GroupWritten(group_id=group_id, value=group)
    if version == _RENAMED_KEY_VERSION:
        group_id, instance_id = key.text(), key.text()
        key.end()
        renamed = None if record.value is None else _decode_renamed(Reader(record.value))
        return MemberWritten(group_id=group_id, instance_id=instance_id, value=renamed)
    return None


def fits(text: str) -> bool:
    """Whether the formats have room for `text`."""
    return len(text) <= TEXT_BYTES_MAX and len(text.encode()) <= TEXT_BYTES_MAX


# Writing.


def _encode_key(written: Written) -> bytes:
    match written:
        case OffsetWritten(group_id=group_id, place=place):
            return b"".join(
                (
                    _INT16.pack(_OFFSET_KEY_VERSION),
                    _text(group_id),
                    _text(place.topic),
                    _INT32.pack(place.partition),
                )
            )
        case GroupWritten(group_id=group_id):
            return _INT16.pack(_GROUP_KEY_VERSION) + _text(group_id)
        case MemberWritten(group_id=group_id, instance_id=instance_id):
            return _INT16.pack(_RENAMED_KEY_VERSION) + _text(group_id) + _text(instance_id)


def _encode_offset(value: CommittedOffset) -> bytes:
    metadata = value.metadata.encode()
    tags: list[tuple[int, bytes]] = []
    if value.topic_id is not None:
        tags.append((_TOPIC_ID_TAG, value.topic_id.bytes))
    if value.expires_ms is not None:
        tags.append((_EXPIRES_TAG, _INT64.pack(value.expires_ms)))
    parts = [
        _INT16.pack(_OFFSET_VERSION),
        _INT64.pack(value.offset),
        _INT32.pack(value.leader_epoch),
        _uvarint(len(metadata) + 1),
        metadata,
        _INT64.pack(value.committed_ms),
        _uvarint(len(tags)),
    ]
    for tag, data in tags:
        parts += (_uvarint(tag), _uvarint(len(data)), data)
    return b"".join(parts)


def _encode_group(value: GroupRecord) -> bytes:
    parts = [
        _INT16.pack(_GROUP_VERSION),
        _text(value.protocol_type),
        _INT32.pack(value.generation),
        _text(value.protocol),
        _text(value.leader),
        _INT64.pack(value.state_since_ms),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += _member_parts(member)
    return b"".join(parts)


def _member_parts(member: MemberRecord) -> tuple[bytes, ...]:
    return (
        _text(member.member_id),
        _text(member.instance_id),
        _text(member.client_id),
        _text(member.client_host),
        _INT32.pack(member.rebalance_timeout_ms),
        _INT32.pack(member.session_timeout_ms),
        _bytes(member.subscription),
        _bytes(member.assignment),
    )


def _text(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    encoded = text.encode()
    assert len(encoded) <= TEXT_BYTES_MAX, "texts are checked where they come in"
    return _INT16.pack(len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Reading.


def _version(reader: Reader, newest: int) -> int:
    version = reader.int16()
    if not 0 <= version <= newest:
        raise CorruptMessage(f"version {version} of a value; those up to {newest} are known")
    return version


def _decode_offset(reader: Reader) -> CommittedOffset:
    version = _version(reader, _OFFSET_VERSION)
    offset = reader.int64()
    has_tags = version >= _OFFSET_VERSION_WITH_TAGS
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata = reader.text(is_compact=has_tags)
    committed_ms = reader.int64()
    expires_ms = reader.int64() if version == _OFFSET_VERSION_WITH_EXPIRY else NO_TIMESTAMP
    tags = reader.tags() if has_tags else {}
    reader.end()
    topic_id = _tagged(tags, _TOPIC_ID_TAG, 16)
    if (expires := _tagged(tags, _EXPIRES_TAG, _INT64.size)) is not None:
        (expires_ms,) = _INT64.unpack(expires)
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        committed_ms=committed_ms,
        expires_ms=None if expires_ms == NO_TIMESTAMP else expires_ms,
        topic_id=None if topic_id in (None, bytes(16)) else UUID(bytes=topic_id),
    )


def _tagged(tags: dict[int, bytes], tag: int, size: int) -> bytes | None:
    data = tags.get(tag)
    if data is not None and len(data) != size:
        raise CorruptMessage(f"tag {tag} has {len(data)} bytes, not {size}")
    return data


def _decode_group(reader: Reader) -> GroupRecord:
    version = _version(reader, _GROUP_VERSION)
    protocol_type = reader.text()
    generation = reader.int32()
    protocol = reader.nullable_text()
    leader = reader.nullable_text()
    state_since_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple([_decode_member(reader, version) for _ in range(reader.count())])
    reader.end()
    if members and protocol is None:
        raise CorruptMessage("a group with members has no protocol")
    return GroupRecord(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_since_ms=state_since_ms,
        members=members,
    )


def _decode_renamed(reader: Reader) -> RenamedMember:
    _version(reader, _RENAMED_VERSION)
    generation = reader.int32()
    member = _decode_member(reader, _GROUP_VERSION)
    reader.end()
    return RenamedMember(generation=generation, member=member)


def _decode_member(reader: Reader, version: int) -> MemberRecord:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id = reader.text()
    client_host = reader.text()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    return MemberRecord(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms),
        subscription=reader.blob(),
        assignment=reader.blob(),
    )
