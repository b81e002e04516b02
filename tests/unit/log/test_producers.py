import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.logs import make_batch
from tidelog.errors import InvalidProducerEpoch, OutOfOrderSequence
from tidelog.log.producers import ProducerStates, SnapshotDamaged
from tidelog.records import BatchHeader, read_header

LAST = 2**31 - 1
"""The last sequence number before they begin again at 0."""


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    return read_header(
        make_batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    )


def fold(*batches: BatchHeader) -> ProducerStates:
    """The state after a log of these batches."""
    states = ProducerStates()
    offset = 0
    for batch in batches:
        states.note(batch, offset)
        offset += batch.record_count
    return states


# Sequences.


def test_the_next_sequence_is_taken():
    states = fold(header(0, 3), header(3, 2))

    assert states.check(header(5)) is None


@pytest.mark.parametrize("sequence", [0, 4, 7, LAST])
def test_a_gap_is_refused_and_the_refusal_names_what_was_expected(sequence):
    states = fold(header(1, 3), header(4, 2))

    with pytest.raises(OutOfOrderSequence, match=rf"sent sequence {sequence}; 6 was expected"):
        states.check(header(sequence, 1))


def test_an_unknown_producer_may_begin_anywhere():
    assert fold(header(0)).check(header(55, producer=8)) is None


def test_sequences_begin_again_at_zero_after_the_last_one():
    states = fold(header(LAST - 1, 2))

    assert states.check(header(0)) is None
    with pytest.raises(OutOfOrderSequence, match="0 was expected"):
        states.check(header(1))


def test_a_batch_may_wrap_around_in_its_middle():
    states = fold(header(LAST, 3))  # LAST, 0, 1

    assert states.check(header(2)) is None
    repeated = states.check(header(LAST, 3))
    assert repeated is not None
    assert (repeated.base_offset, repeated.first_sequence, repeated.last_sequence) == (0, LAST, 1)


def test_checking_changes_nothing():
    states = fold(header(0))

    states.check(header(1))
    states.check(header(0, producer=9))

    assert states == fold(header(0))


# Repeats.


def test_the_last_five_batches_are_recognised_with_their_offsets():
    sent = [header(sequence, 2) for sequence in range(0, 14, 2)]
    states = fold(*sent)

    for position, batch in list(enumerate(sent))[-5:]:
        repeated = states.check(batch)
        assert repeated is not None
        assert repeated.base_offset == 2 * position
        assert repeated.last_offset == 2 * position + 1
    for batch in sent[:-5]:
        with pytest.raises(OutOfOrderSequence):
            states.check(batch)


def test_a_batch_of_another_size_is_no_repeat():
    states = fold(header(0, 2), header(2, 2))

    with pytest.raises(OutOfOrderSequence):
        states.check(header(3, 1))


# Epochs.


def test_a_new_epoch_begins_at_sequence_zero():
    states = fold(header(0, 5))

    assert states.check(header(0, epoch=1)) is None
    with pytest.raises(OutOfOrderSequence, match="0 was expected"):
        states.check(header(5, epoch=1))


def test_an_old_epoch_is_fenced():
    states = fold(header(0, 5), header(0, epoch=1))

    with pytest.raises(InvalidProducerEpoch, match="epoch 0; the current one is 1"):
        states.check(header(5, epoch=0))


def test_batches_of_an_older_epoch_are_not_taken_for_repeats():
    states = fold(header(0), header(0, epoch=1), header(1, epoch=1))

    repeated = states.check(header(0, epoch=1))

    assert repeated is not None
    assert repeated.base_offset == 1


# Forgetting.


def test_silent_producers_are_forgotten():
    states = ProducerStates()
    states.note(read_header(make_batch(producer_id=1, base_sequence=0, time_ms=1000)), 0)
    states.note(read_header(make_batch(producer_id=2, base_sequence=0, time_ms=2000)), 1)

    states.expire(before_ms=2000)

    assert states.get(1) is None
    assert states.get(2) is not None
    assert len(states) == 1


# Snapshots.


def test_a_snapshot_has_kafkas_bytes():
    states = ProducerStates()
    states.note(
        read_header(
            make_batch(3, producer_id=5, producer_epoch=2, base_sequence=10, time_ms=0x0102)
        ),
        100,
    )

    data = states.encode()

    entries = bytes.fromhex(
        "00000001"  # count
        "0000000000000005 0002 0000000c 0000000000000066 00000002 0000000000000102"
        "ffffffff ffffffffffffffff"  # no coordinator, no open transaction
    )
    assert data == struct.pack(">hI", 1, crc32c(entries)) + entries


BATCHES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, LAST), st.integers(1, 5)),
    max_size=30,
)


@settings(max_examples=50)
@given(BATCHES)
def test_a_snapshot_reads_back(batches):
    states = fold(*(header(s, n, epoch=e, producer=p) for p, e, s, n in batches))

    assert ProducerStates.decode(states.encode()) == states


@settings(max_examples=50)
@given(BATCHES, st.integers(0, 30))
def test_the_state_is_a_fold_wherever_the_snapshot_was_taken(batches, cut):
    headers = [header(s, n, epoch=e, producer=p) for p, e, s, n in batches]
    whole = fold(*headers)

    states = ProducerStates.decode(fold(*headers[:cut]).encode())
    offset = sum(batch.record_count for batch in headers[:cut])
    for batch in headers[cut:]:
        states.note(batch, offset)
        offset += batch.record_count

    assert states == whole


def test_a_damaged_snapshot_is_never_believed():
    data = fold(header(0), header(1), header(5, producer=8)).encode()

    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(SnapshotDamaged):
            ProducerStates.decode(bytes(damaged))
        with pytest.raises(SnapshotDamaged):
            ProducerStates.decode(data[:position])
    with pytest.raises(SnapshotDamaged):
        ProducerStates.decode(data + b"\0")
