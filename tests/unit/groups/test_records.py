"""The formats, against bytes laid out by hand from Kafka's message definitions."""

from random import Random
from uuid import UUID

import pytest

from tests.unit.groups.desk import subscription
from tidelog.errors import CorruptMessage
from tidelog.groups.records import (
    CommittedOffset,
    GroupRecord,
    GroupWritten,
    MemberRecord,
    MemberWritten,
    OffsetWritten,
    RenamedMember,
    decode,
    encode,
    fits,
)
from tidelog.model import TopicPartition
from tidelog.records import Record
from tidelog.wire.subscription import subscribed_topics


def unhex(text: str) -> bytes:
    """Bytes as hex, with what they mean behind `#`."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


OFFSET_KEY = unhex("""
    0001                # version 1
    0003 617070         # group "app"
    0006 6f7264657273   # topic "orders"
    00000007            # partition 7
""")
OFFSET_VALUE = unhex("""
    0004                # version 4
    000000000000002a    # offset 42
    00000005            # leader epoch 5
    05 6e6f7465         # metadata "note"
    0000018bcfe56800    # committed at 1700000000000
    01                  # one tag
    00 10               # 0, of 16 bytes: the topic's id
    00112233445566778899aabbccddeeff
""")
OFFSET_VALUE_WITH_EXPIRY = unhex("""
    0004                # version 4
    000000000000002a    # offset 42
    ffffffff            # no leader epoch
    01                  # metadata ""
    0000018bcfe56800    # committed at 1700000000000
    01                  # one tag
    e807 08             # 1000, of 8 bytes: when it expires
    0000018bcfe56be8    # at 1700000001000
""")
GROUP_KEY = unhex("""
    0002                # version 2
    0003 617070         # group "app"
""")
GROUP_VALUE = unhex("""
    0003                    # version 3
    0008 636f6e73756d6572   # protocol type "consumer"
    00000009                # generation 9
    0005 72616e6765         # protocol "range"
    0003 6d2d31             # leader "m-1"
    0000018bcfe56800        # in this state since 1700000000000
    00000002                # two members
    0003 6d2d31             # member id "m-1"
    ffff                    # no instance id
    0001 63                 # client id "c"
    0003 2f6131             # client host "/a1"
    000493e0                # rebalance timeout 300000
    0000afc8                # session timeout 45000
    00000002 0102           # subscription
    00000003 030405         # assignment
    0003 6d2d32             # member id "m-2"
    0003 6f6e65             # instance id "one"
    0000                    # client id ""
    0003 2f6132             # client host "/a2"
    00007530                # rebalance timeout 30000
    00001770                # session timeout 6000
    00000000                # subscription
    00000000                # assignment
""")
EMPTY_GROUP_VALUE = unhex("""
    0003                    # version 3
    0008 636f6e73756d6572   # protocol type "consumer"
    0000000a                # generation 10
    ffff                    # no protocol
    ffff                    # no leader
    0000018bcfe56800        # in this state since 1700000000000
    00000000                # no members
""")

RENAMED_KEY = unhex("""
    03e8                # version 1000: ours
    0003 617070         # group "app"
    0003 6f6e65         # instance id "one"
""")
RENAMED_VALUE = unhex("""
    0000                    # version 0
    00000009                # generation 9
    0003 6d2d32             # member id "m-2"
    0003 6f6e65             # instance id "one"
    0000                    # client id ""
    0003 2f6132             # client host "/a2"
    00007530                # rebalance timeout 30000
    00001770                # session timeout 6000
    00000000                # subscription
    00000000                # assignment
""")

PLACE = TopicPartition("orders", 7)
OFFSET = OffsetWritten(
    group_id="app",
    place=PLACE,
    value=CommittedOffset(
        offset=42,
        leader_epoch=5,
        metadata="note",
        committed_ms=1_700_000_000_000,
        topic_id=UUID("00112233-4455-6677-8899-aabbccddeeff"),
    ),
)
EXPIRING = OffsetWritten(
    group_id="app",
    place=PLACE,
    value=CommittedOffset(offset=42, committed_ms=1_700_000_000_000, expires_ms=1_700_000_001_000),
)
MEMBERS = (
    MemberRecord(
        member_id="m-1",
        instance_id=None,
        client_id="c",
        client_host="/a1",
        rebalance_timeout_ms=300_000,
        session_timeout_ms=45_000,
        subscription=b"\x01\x02",
        assignment=b"\x03\x04\x05",
    ),
    MemberRecord(
        member_id="m-2",
        instance_id="one",
        client_id="",
        client_host="/a2",
        rebalance_timeout_ms=30_000,
        session_timeout_ms=6_000,
        subscription=b"",
        assignment=b"",
    ),
)
GROUP = GroupWritten(
    group_id="app",
    value=GroupRecord(
        protocol_type="consumer",
        generation=9,
        protocol="range",
        leader="m-1",
        state_since_ms=1_700_000_000_000,
        members=MEMBERS,
    ),
)
RENAMED = MemberWritten(
    group_id="app", instance_id="one", value=RenamedMember(generation=9, member=MEMBERS[1])
)
EMPTY = GroupWritten(
    group_id="app",
    value=GroupRecord(
        protocol_type="consumer",
        generation=10,
        protocol=None,
        leader=None,
        state_since_ms=1_700_000_000_000,
        members=(),
    ),
)
NO_OFFSET = OffsetWritten(group_id="app", place=PLACE, value=None)
NO_GROUP = GroupWritten(group_id="app", value=None)

EXAMPLES = [
    pytest.param(OFFSET, OFFSET_KEY, OFFSET_VALUE, id="offset"),
    pytest.param(EXPIRING, OFFSET_KEY, OFFSET_VALUE_WITH_EXPIRY, id="offset with expiry"),
    pytest.param(NO_OFFSET, OFFSET_KEY, None, id="offset deleted"),
    pytest.param(GROUP, GROUP_KEY, GROUP_VALUE, id="group"),
    pytest.param(EMPTY, GROUP_KEY, EMPTY_GROUP_VALUE, id="empty group"),
    pytest.param(NO_GROUP, GROUP_KEY, None, id="group deleted"),
    pytest.param(RENAMED, RENAMED_KEY, RENAMED_VALUE, id="renamed member"),
]


@pytest.mark.parametrize(("written", "key", "value"), EXAMPLES)
def test_records_are_written_and_read_byte_for_byte_as_kafka_has_them(written, key, value):
    record = encode(written, 77)

    assert (record.key, record.value, record.timestamp_ms) == (key, value, 77)
    assert decode(record) == written


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (0, "000000000000002a 0000 0000018bcfe56800"),
        (1, "000000000000002a 0000 0000018bcfe56800 ffffffffffffffff"),
        (2, "000000000000002a 0000 0000018bcfe56800"),
        (3, "000000000000002a ffffffff 0000 0000018bcfe56800"),
        (4, "000000000000002a ffffffff 01 0000018bcfe56800 00"),
        (4, "000000000000002a ffffffff 01 0000018bcfe56800 01 07 02 beef"),
    ],
)
def test_older_offsets_are_read(version, body):
    value = version.to_bytes(2, "big") + bytes.fromhex(body)

    written = decode(Record(key=b"\0\0" + OFFSET_KEY[2:], value=value))

    assert isinstance(written, OffsetWritten)
    assert written.value == CommittedOffset(offset=42, committed_ms=1_700_000_000_000)


def test_the_oldest_groups_are_read():
    value = unhex("""
        0000                    # version 0
        0001 78                 # protocol type "x"
        00000001                # generation 1
        0001 70                 # protocol "p"
        0001 6d                 # leader "m"
        00000001                # one member
        0001 6d                 # member id "m"
        0001 63                 # client id "c"
        0001 68                 # client host "h"
        00001770                # session timeout 6000
        00000000 00000000       # subscription and assignment
    """)

    written = decode(Record(key=GROUP_KEY, value=value))

    assert isinstance(written, GroupWritten)
    assert written.value is not None
    assert written.value.state_since_ms == -1
    assert written.value.members[0].rebalance_timeout_ms == 6000


def test_keys_of_later_kinds_are_passed_over():
    assert decode(Record(key=b"\x00\x03\x00\x01g", value=b"whatever")) is None


@pytest.mark.parametrize(("written", "key", "value"), EXAMPLES)
def test_a_record_that_is_cut_off_or_has_more_is_refused(written, key, value):
    damaged = [(key[:size], value) for size in range(len(key))] + [(key + b"\0", value)]
    if value is not None:
        damaged += [(key, value[:size]) for size in range(len(value))] + [(key, value + b"\0")]
    for bad_key, bad_value in damaged:
        with pytest.raises(CorruptMessage):
            decode(Record(key=bad_key, value=bad_value))


@pytest.mark.parametrize(
    "record",
    [
        Record(value=b"no key"),
        Record(key=OFFSET_KEY, value=b"\x00\x05" + OFFSET_VALUE[2:]),
        Record(key=OFFSET_KEY, value=OFFSET_VALUE[:-17] + b"\x02ab"),
        Record(key=GROUP_KEY, value=b"\xff\xff" + GROUP_VALUE[2:]),
        Record(key=GROUP_KEY, value=EMPTY_GROUP_VALUE[:-4] + b"\x7f\xff\xff\xff"),
        Record(key=b"\x00\x02\x00\x01\xff", value=None),
        Record(key=b"\x00\x02\xff\xff", value=None),
    ],
    ids=["no key", "later", "short id", "negative version", "count", "not UTF-8", "null group"],
)
def test_a_record_that_makes_no_sense_is_refused(record):
    with pytest.raises(CorruptMessage):
        decode(record)


def test_random_bytes_are_read_or_refused_and_nothing_else():
    random = Random(1)
    for _ in range(2000):
        value = bytearray(GROUP_VALUE)
        for _ in range(random.randrange(1, 6)):
            value[random.randrange(len(value))] = random.randrange(256)
        try:
            decode(Record(key=GROUP_KEY, value=bytes(value)))
        except CorruptMessage:
            pass


def test_texts_are_measured_in_bytes():
    assert fits("x" * 32_767)
    assert not fits("x" * 32_768)
    assert not fits("é" * 16_384)


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription("orders", "payments"), {"orders", "payments"}),
        (b"\x00\x03" + subscription("orders")[2:] + b"what later versions add", {"orders"}),
        (subscription(), set()),
        (b"", None),
        (b"\xff\xff\x00\x00\x00\x00", None),
        (b"\x00\x00\xff\xff\xff\xff", None),
        (b"\x00\x00\x00\x00\x00\x05", None),
        (b"\x00\x00\x7f\xff\xff\xff" + bytes(100), None),
    ],
)
def test_topics_are_read_from_a_subscription_of_any_version(metadata, topics):
    assert subscribed_topics(metadata) == topics
