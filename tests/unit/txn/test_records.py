"""The formats, against bytes laid out by hand from Kafka's message definitions."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptMessage
from tidelog.model import NO_EPOCH, NO_PRODUCER, TopicPartition
from tidelog.records import Record
from tidelog.txn.records import (
    Decision,
    DecisionWritten,
    State,
    TransactionRecord,
    TransactionWritten,
    decode,
    encode,
    fits,
)
from tidelog.wire.batches_decided import Counting


def unhex(text: str) -> bytes:
    """Bytes as hex, with what they mean behind `#`."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


KEY = unhex("""
    0000                # version 0
    0003 617070         # transactional id "app"
""")
ONGOING = unhex("""
    0001                # version 1
    00000000000003e8    # producer id 1000
    0005                # epoch 5
    0000ea60            # timeout 60000
    01                  # Ongoing
    03                  # two topics
    07 6f7264657273     #   "orders"
    03 00000000 00000007 #  partitions 0 and 7
    00                  #   no tags
    05 70616964         #   "paid"
    02 00000001         #   partition 1
    00                  #   no tags
    0000018bcfe56be8    # updated at 1700000001000
    0000018bcfe56800    # started at 1700000000000
    00                  # no tags
""")
PREPARED = unhex("""
    0001                # version 1
    00000000000003e8    # producer id 1000
    7fff                # epoch 32767
    0000ea60            # timeout 60000
    02                  # PrepareCommit
    02                  # one topic
    05 70616964         #   "paid"
    02 00000001         #   partition 1
    00                  #   no tags
    0000018bcfe56be8    # updated at 1700000001000
    0000018bcfe56800    # started at 1700000000000
    04                  # four tags
    00 08 00000000000003e8 # previous producer id 1000
    01 08 00000000000003e9 # next producer id 1001
    02 02 0002          # client version 2
    e807 02 7ffe        # tag 1000, ours: the last epoch 32766
""")
EMPTY = unhex("""
    0001                # version 1
    00000000000003e8    # producer id 1000
    0000                # epoch 0
    0000ea60            # timeout 60000
    00                  # Empty
    00                  # no array of topics
    0000018bcfe56be8    # updated at 1700000001000
    ffffffffffffffff    # not started
    00                  # no tags
""")
OLD = unhex("""
    0000                # version 0
    00000000000003e8    # producer id 1000
    0005                # epoch 5
    0000ea60            # timeout 60000
    01                  # Ongoing
    00000002            # two topics
    0006 6f7264657273   #   "orders"
    00000002 00000000 00000007
    0004 70616964       #   "paid"
    00000001 00000001
    0000018bcfe56be8    # updated at 1700000001000
    0000018bcfe56800    # started at 1700000000000
""")
OLD_EMPTY = unhex("""
    0000 00000000000003e8 0000 0000ea60 00
    ffffffff            # no array of topics
    0000018bcfe56be8 ffffffffffffffff
""")
DECISION_KEY = unhex("""
    03e8                # version 1000: ours
    0007 737061726b2e71 # group "spark.q"
""")
DECISION = unhex("""
    0001                # version 1
    000000000000002a    # batch 42
    0000018bcfe56be8    # decided at 1700000001000
    00000003            # three members
    0000000000000028    # after batch 40
    01                  # batches of a query
    00                  # no tags
""")
PROVEN_DECISION = DECISION[:-1] + unhex("""
    01                  # one tag
    00 05 70726f6f66    # proof: "proof"
""")
OLD_DECISION = unhex("""
    0000                # version 0
    000000000000002a    # batch 42
    0000018bcfe56be8    # decided at 1700000001000
    00000003            # three members
""")

PLACES = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 7), TopicPartition("paid", 1)})


def transaction(**fields: Any) -> TransactionRecord:
    defaults: dict[str, Any] = {
        "producer_id": 1000,
        "epoch": 5,
        "timeout_ms": 60_000,
        "state": State.ONGOING,
        "places": PLACES,
        "updated_ms": 1700000001000,
        "started_ms": 1700000000000,
    }
    return TransactionRecord(**{**defaults, **fields})


VALUES = [
    (ONGOING, transaction()),
    (
        PREPARED,
        transaction(
            epoch=32767,
            state=State.PREPARE_COMMIT,
            places=frozenset({TopicPartition("paid", 1)}),
            previous_producer_id=1000,
            next_producer_id=1001,
            client_version=2,
            last_epoch=32766,
        ),
    ),
    (EMPTY, transaction(epoch=0, state=State.EMPTY, places=frozenset(), started_ms=-1)),
]


@pytest.mark.parametrize(("data", "value"), VALUES)
def test_a_transaction_is_written_as_kafka_writes_it(data, value):
    written = TransactionWritten(transactional_id="app", value=value)

    record = encode(written, 123)

    assert (record.key, record.value, record.timestamp_ms) == (KEY, data, 123)
    assert decode(record) == written


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (OLD, transaction()),
        (OLD_EMPTY, transaction(epoch=0, state=State.EMPTY, places=frozenset(), started_ms=-1)),
    ],
)
def test_the_older_version_is_read(data, value):
    assert decode(Record(key=KEY, value=data)) == TransactionWritten(transactional_id="app", value=value)


def test_a_decision_is_written_under_a_key_of_ours():
    value = Decision(batch_id=42, decided_ms=1700000001000, members=3, after=40, counting=Counting.QUERY)
    written = DecisionWritten(group="spark.q", value=value)

    record = encode(written, 123)

    assert (record.key, record.value) == (DECISION_KEY, DECISION)
    assert decode(record) == written


def test_a_proof_is_a_tag_of_its_decision_which_older_nodes_pass_over():
    value = Decision(
        batch_id=42, decided_ms=1700000001000, members=3, after=40, counting=Counting.QUERY, proof=b"proof"
    )
    written = DecisionWritten(group="spark.q", value=value)

    record = encode(written, 123)

    assert (record.key, record.value) == (DECISION_KEY, PROVEN_DECISION)
    assert decode(record) == written


def test_older_decisions_are_read_and_what_later_ones_say_in_tags_is_passed_over():
    old = Decision(batch_id=42, decided_ms=1700000001000, members=3)
    new = replace(old, after=40, counting=Counting.QUERY)
    later = DECISION[:-1] + bytes.fromhex("01 07 02 beef")

    assert decode(Record(key=DECISION_KEY, value=OLD_DECISION)) == DecisionWritten(group="spark.q", value=old)
    assert decode(Record(key=DECISION_KEY, value=later)) == DecisionWritten(group="spark.q", value=new)


@pytest.mark.parametrize(
    "written",
    [TransactionWritten(transactional_id="app", value=None), DecisionWritten(group="spark.q", value=None)],
)
def test_what_is_forgotten_has_no_value(written):
    record = encode(written, 123)

    assert record.value is None
    assert decode(record) == written


def test_keys_of_other_kinds_are_passed_over():
    assert decode(Record(key=b"\x00\x01whatever", value=b"")) is None


def test_tags_of_later_versions_are_passed_over():
    later = ONGOING[:-1] + b"\x01\x05\x03abc"

    assert decode(Record(key=KEY, value=later)) == TransactionWritten(
        transactional_id="app", value=transaction()
    )


@pytest.mark.parametrize(
    "damaged",
    [
        Record(key=None, value=ONGOING),
        Record(key=KEY + b"\x00", value=ONGOING),
        Record(key=KEY, value=ONGOING + b"\x00"),
        Record(key=KEY, value=b"\x00\x02" + ONGOING[2:]),
        Record(key=KEY, value=ONGOING[:16] + b"\x06" + ONGOING[17:]),
        Record(key=KEY, value=ONGOING[:-1] + b"\x01\x00\x02\x00\x00"),
        Record(key=DECISION_KEY, value=b"\x00\x02" + DECISION[2:]),
        Record(key=DECISION_KEY, value=DECISION[:-2] + b"\x07\x00"),
    ],
)
def test_what_makes_no_sense_is_corruption(damaged):
    with pytest.raises(CorruptMessage):
        decode(damaged)


@given(st.sampled_from([ONGOING, PREPARED, EMPTY, OLD, DECISION, PROVEN_DECISION]), st.data())
def test_damage_is_corruption_or_another_value_and_never_worse(data, draw):
    at = draw.draw(st.integers(0, len(data) - 1))
    cut = draw.draw(st.booleans())
    damaged = data[:at] if cut else data[:at] + draw.draw(st.binary(min_size=1)) + data[at + 1 :]
    key = DECISION_KEY if data in (DECISION, PROVEN_DECISION) else KEY
    try:
        decode(Record(key=key, value=damaged))
    except CorruptMessage:
        return
    assert not cut


names = st.text("abcé.-", min_size=1, max_size=6)
epochs = st.integers(0, 2**15 - 1)
producers = st.integers(0, 2**63 - 1)
places = st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=200)
transactions = st.builds(
    TransactionRecord,
    producer_id=producers,
    epoch=epochs,
    timeout_ms=st.integers(0, 2**31 - 1),
    previous_producer_id=producers | st.just(NO_PRODUCER),
    next_producer_id=producers | st.just(NO_PRODUCER),
    last_epoch=epochs | st.just(NO_EPOCH),
    state=st.sampled_from([state for state in State if state is not State.EMPTY]),
    places=places,
    updated_ms=producers,
    started_ms=producers | st.just(-1),
    client_version=st.integers(0, 2),
)


@given(names, transactions)
def test_what_is_written_is_read_back(name, value):
    written = TransactionWritten(transactional_id=name, value=value)

    assert decode(encode(written, 0)) == written


def test_an_id_of_more_than_32767_bytes_does_not_fit():
    assert fits("é" * 16383)
    assert not fits("é" * 16384)
