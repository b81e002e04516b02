import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.logs import make_batch
from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from tidelog.log.producers import ProducerStates, SnapshotDamaged
from tidelog.model import NO_OFFSET, ONCE_PRODUCER_MIN
from tidelog.records import TRANSACTIONAL, BatchHeader, Marker, encode_marker, read_header

LAST = 2**31 - 1
"""The last sequence number before they begin again at 0."""


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    return read_header(make_batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


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


# Transactions.

COMMIT = Marker(commits=True, coordinator_epoch=5)


def in_transaction(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    batch = make_batch(
        count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL
    )
    return read_header(batch)


def marker(*, epoch: int = 0, producer: int = 7, time_ms: int = 1000) -> BatchHeader:
    batch = encode_marker(COMMIT, producer_id=producer, producer_epoch=epoch, now_ms=time_ms)
    return read_header(batch)


def test_transaction_is_open_from_its_first_batch_to_its_marker():
    states = fold(header(0, producer=1), in_transaction(0, 2), in_transaction(2, 2))

    assert states.transaction_start(7) == 1
    assert states.is_in_transaction(7)
    assert states.first_open() == 1
    assert states.note_marker(marker(), COMMIT) == 1
    assert states.transaction_start(7) == NO_OFFSET
    assert states.first_open() == NO_OFFSET
    assert states.note_marker(marker(), COMMIT) is None


def test_first_of_all_open_transactions_is_known():
    states = fold(in_transaction(0, producer=3), in_transaction(0, producer=2))

    assert states.first_open() == 0
    states.note_marker(marker(producer=3), COMMIT)
    assert states.first_open() == 1


def test_sequences_go_on_behind_a_marker_of_the_same_epoch():
    states = fold(in_transaction(0, 3))
    states.note_marker(marker(), COMMIT)

    assert states.check(in_transaction(3)) is None
    assert states.check(in_transaction(0, 3)) is not None, "a late retry is still recognised"
    with pytest.raises(OutOfOrderSequence, match="3 was expected"):
        states.check(in_transaction(1))


def test_sequences_begin_again_behind_a_marker_of_the_next_epoch():
    states = fold(in_transaction(0, 3))
    states.note_marker(marker(epoch=1), COMMIT)

    assert states.check(in_transaction(0, epoch=1)) is None
    with pytest.raises(OutOfOrderSequence, match="0 was expected"):
        states.check(in_transaction(3, epoch=1))
    with pytest.raises(InvalidProducerEpoch, match="epoch 0; the current one is 1"):
        states.check(in_transaction(3, epoch=0))


def test_what_a_coordinator_writes_in_a_transaction_has_no_sequence():
    states = fold(in_transaction(-1, 2))

    assert states.check(in_transaction(-1, 2)) is None
    states.note(in_transaction(-1, 2), 2)
    assert states.check(in_transaction(-1)) is None
    assert states.transaction_start(7) == 0
    states.note_marker(marker(epoch=1), COMMIT)
    with pytest.raises(InvalidProducerEpoch):
        states.check(in_transaction(-1))


def test_plain_batch_is_refused_within_a_transaction():
    states = fold(in_transaction(0))

    with pytest.raises(InvalidTransactionState, match="which began at offset 0"):
        states.check(header(1))
    states.note_marker(marker(), COMMIT)
    assert states.check(header(1)) is None


def test_batch_of_a_newer_epoch_leaves_the_transaction_open():
    states = fold(in_transaction(0), in_transaction(0, epoch=1))

    assert states.transaction_start(7) == 0


# What the producer had before; the marker's epoch, its coordinator's; what it is told.
LATE = [
    ("nothing", 0, 0, False, None),
    ("open", 0, 5, False, None),
    ("open", 1, 5, False, None),
    ("open", 1, 5, True, None),
    ("open in 1", 0, 5, False, InvalidProducerEpoch),
    ("open in 1", 1, 5, False, None),
    ("open in 1", 1, 5, True, InvalidProducerEpoch),
    ("ended in 1", 0, 5, False, InvalidProducerEpoch),
    ("ended in 1", 1, 5, False, None),
    ("ended in 1", 1, 5, True, None),
    ("ended in 1", 1, 6, False, None),
    ("ended in 1", 1, 4, False, TransactionCoordinatorFenced),
    ("ended in 1", 2, 4, True, TransactionCoordinatorFenced),
]


@pytest.mark.parametrize(("before", "epoch", "coordinator", "is_bumped", "refusal"), LATE)
def test_late_marker_is_refused(before, epoch, coordinator, is_bumped, refusal):
    states = ProducerStates()
    if before == "open":
        states.note(in_transaction(0), 0)
    elif before != "nothing":
        states.note(in_transaction(0), 0)
        states.note_marker(marker(epoch=1), COMMIT)
        if before == "open in 1":
            states.note(in_transaction(0, epoch=1), 2)
    found = Marker(commits=False, coordinator_epoch=coordinator)

    if refusal is None:
        states.check_marker(7, epoch, found, is_bumped=is_bumped)
    else:
        with pytest.raises(refusal):
            states.check_marker(7, epoch, found, is_bumped=is_bumped)


# Forgetting.


def test_producer_with_an_open_transaction_is_not_forgotten():
    states = fold(in_transaction(0))

    states.expire(10**15, end=100, now=0.0, seconds=0.0)
    assert states.transaction_start(7) == 0

    states.note_marker(marker(time_ms=5000), COMMIT)
    states.expire(5000, end=100, now=0.0, seconds=0.0)
    assert states.get(7) is not None
    states.expire(5001, end=100, now=0.0, seconds=0.0)
    assert states.get(7) is None


def test_silent_producers_are_forgotten():
    states = ProducerStates()
    states.note(read_header(make_batch(producer_id=1, base_sequence=0, time_ms=1000)), 0)
    states.note(read_header(make_batch(producer_id=2, base_sequence=0, time_ms=2000)), 1)

    states.expire(2000, end=100, now=0.0, seconds=0.0)

    assert states.get(1) is None
    assert states.get(2) is not None
    assert len(states) == 1


def test_who_copies_what_is_old_is_silent_only_once_it_writes_nothing():
    states = ProducerStates()
    states.expire(10**15, end=0, now=0.0, seconds=60.0)
    states.note(read_header(make_batch(producer_id=1, base_sequence=0, time_ms=1000)), 0)
    states.expire(10**15, end=1, now=59.0, seconds=60.0)
    states.note(read_header(make_batch(producer_id=2, base_sequence=0, time_ms=1000)), 1)

    states.expire(10**15, end=2, now=100.0, seconds=60.0)
    assert len(states) == 2
    states.expire(10**15, end=2, now=119.0, seconds=60.0)
    assert states.get(1) is None
    assert states.get(2) is not None
    states.expire(10**15, end=2, now=160.0, seconds=60.0)
    assert len(states) == 0


def requests_of(*numbers, time_ms=1000):
    states = ProducerStates()
    for number in numbers:
        batch = make_batch(producer_id=ONCE_PRODUCER_MIN + number, base_sequence=0, time_ms=time_ms)
        states.note(read_header(batch), number)
    return states


def known(states):
    return [producer_id - ONCE_PRODUCER_MIN for producer_id, _ in states.items()]


def test_a_request_is_forgotten_when_its_time_has_passed_by_both_clocks():
    states = requests_of(1, 2)

    states.expire_once(before_ms=5000, now=10.0, seconds=60)
    states.expire_once(before_ms=5000, now=69.0, seconds=60)
    assert known(states) == [1, 2]
    states.expire_once(before_ms=900, now=70.0, seconds=60)
    assert known(states) == [1, 2]
    states.expire_once(before_ms=5000, now=71.0, seconds=60)

    assert known(states) == []


def test_a_wall_clock_that_jumps_makes_no_request_forgotten():
    states = requests_of(1)
    for now in range(59):
        states.expire_once(before_ms=10**15, now=now, seconds=60)
    states.note(read_header(make_batch(producer_id=ONCE_PRODUCER_MIN + 2, base_sequence=0)), 2)

    states.expire_once(before_ms=10**15, now=64.0, seconds=60)

    assert known(states) == [2]


def test_the_time_of_a_request_begins_anew_with_who_reads_it_from_a_snapshot():
    states = requests_of(1)
    states.expire_once(before_ms=10**15, now=0.0, seconds=60)

    states = ProducerStates.decode(states.encode())
    states.expire_once(before_ms=10**15, now=70.0, seconds=60)
    assert known(states) == [1]
    states.expire_once(before_ms=10**15, now=130.0, seconds=60)

    assert known(states) == []


def test_requests_are_not_forgotten_as_producers_are():
    states = requests_of(1)

    states.expire(10**15, end=100, now=0.0, seconds=0.0)

    assert known(states) == [1]


# Snapshots.


def test_a_snapshot_has_kafkas_bytes():
    states = ProducerStates()
    states.note(
        read_header(make_batch(3, producer_id=5, producer_epoch=2, base_sequence=10, time_ms=0x0102)), 100
    )

    data = states.encode()

    entries = bytes.fromhex(
        "00000001"  # count
        "0000000000000005 0002 0000000c 0000000000000066 00000002 0000000000000102"
        "ffffffff ffffffffffffffff"  # no coordinator, no open transaction
    )
    assert data == struct.pack(">hI", 1, crc32c(entries)) + entries


def test_a_snapshot_of_a_producer_with_nothing_but_a_marker_has_kafkas_bytes():
    states = ProducerStates()
    states.note_marker(marker(epoch=2, time_ms=0x0102), COMMIT)

    data = states.encode()

    entry = "0000000000000007 0002 ffffffff ffffffffffffffff 00000000 0000000000000102 00000005"
    assert data[6:] == bytes.fromhex("00000001" + entry + "ffffffffffffffff")
    assert ProducerStates.decode(data) == states


def test_the_last_entry_of_a_producer_is_its_last_batch():
    states = fold(in_transaction(0, 2))
    states.note_marker(marker(), COMMIT)
    states.note(in_transaction(2, 2), 40)

    data = states.encode()

    entry = "0000000000000007 0000 00000003 0000000000000029 00000001 00000000000003e8 00000005"
    assert data[-46:] == bytes.fromhex(entry + "0000000000000028")


def test_transactions_read_back_from_a_snapshot():
    states = fold(in_transaction(0, 2, producer=9), header(0, producer=1), in_transaction(0))
    states.note_marker(marker(epoch=1, producer=3), COMMIT)
    states.note_marker(marker(epoch=1), COMMIT)
    states.note(in_transaction(0, epoch=1), 30)

    again = ProducerStates.decode(states.encode())

    assert again == states
    assert again.first_open() == 0
    again.note_marker(marker(producer=9), COMMIT)
    assert again.first_open() == 30
    assert again.marked_epochs() == {3: 1}
    assert again.has_markers()


BATCHES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, LAST), st.integers(1, 5)), max_size=30
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


# What a log that begins later is told.


def test_a_log_that_begins_later_knows_what_one_that_holds_all_does():
    """Batches of 0..2, 3..4, 5..5 and 6..9; whoever wrote from the start on is known from there."""
    batches = [header(0, 3), header(0, 2, producer=8), header(3, 1), header(2, 4, producer=8)]
    states = fold(*batches)
    for start in (0, 3, 5, 6, 10):
        found = ProducerStates.decode(states.encode_before(start, 10_000, {}))
        offset = 0
        for batch in batches:
            if offset >= start:
                found.note(batch, offset)
            offset += batch.record_count

        assert found == states, f"from {start} on"


def test_a_batch_across_the_start_is_left_to_the_log_that_takes_it():
    found = ProducerStates.decode(fold(header(0, 3), header(3, 4)).encode_before(5, 10_000, {}))

    state = found.get(7)
    assert state is not None and [batch.last_offset for batch in state.batches] == [2]


def test_a_transaction_is_open_for_a_later_log_if_it_began_before():
    batch = make_batch(producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    later = make_batch(producer_id=7, producer_epoch=0, base_sequence=1, attributes=TRANSACTIONAL)
    states = fold(header(0), read_header(batch), read_header(later))

    before, after = (ProducerStates.decode(states.encode_before(start, 10_000, {})) for start in (1, 2))

    assert (before.first_open(), after.first_open()) == (NO_OFFSET, 1)


def test_of_too_many_producers_those_are_told_of_who_wrote_last():
    states = fold(*(header(0, producer=number) for number in range(100)))
    one = len(fold(header(0)).encode())

    data = states.encode_before(100, one * 10, {})

    assert len(data) <= one * 10
    known = [producer for producer, _ in ProducerStates.decode(data).items()]
    assert known == list(range(100 - len(known), 100)) and len(known) >= 10
