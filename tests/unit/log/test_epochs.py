import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.log.epochs import EpochHistory, EpochsDamaged
from tidelog.model import NO_EPOCH, NO_OFFSET

UNKNOWN = (NO_EPOCH, NO_OFFSET)
EPOCHS = st.lists(st.integers(0, 1000), unique=True, max_size=10).map(sorted)


def test_a_new_epoch_begins_where_its_first_record_is():
    history = EpochHistory()

    assert history.latest == NO_EPOCH
    assert history.assign(3, 10)
    assert history.assign(5, 20)
    assert list(history) == [(3, 10), (5, 20)]
    assert history.latest == 5


def test_an_epoch_that_is_known_or_older_changes_nothing():
    history = EpochHistory([(3, 10)])

    assert not history.assign(3, 20)
    assert not history.assign(2, 20)
    assert list(history) == [(3, 10)]


def test_an_epoch_without_records_makes_way_for_the_next():
    history = EpochHistory([(1, 0), (2, 10)])

    history.assign(3, 10)

    assert list(history) == [(1, 0), (3, 10)]


# Kafka's LeaderEpochFileCacheTest, as a table: epochs 2, 4 and 7 begin at 10, 20 and 30.
@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (NO_EPOCH, UNKNOWN),
        (0, (0, 10)),  # deleted: it ended at the latest where the history begins
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),  # never had a record here
        (4, (4, 30)),
        (6, (4, 30)),
        (7, (7, 44)),  # still open
        (8, UNKNOWN),
    ],
)
def test_an_epoch_ends_where_the_next_known_one_begins(epoch, answer):
    history = EpochHistory([(2, 10), (4, 20), (7, 30)])

    assert history.end_of(epoch, 44) == answer


def test_an_empty_history_knows_no_epoch():
    assert EpochHistory().end_of(0, 10) == UNKNOWN
    assert EpochHistory().epoch_at(0) == NO_EPOCH


# As replicas ask: they may know of later epochs, and of none that is deleted.
@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (NO_EPOCH, (NO_EPOCH, 10)),
        (0, (NO_EPOCH, 10)),
        (1, (NO_EPOCH, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 30)),
        (6, (4, 30)),
        (7, (7, 44)),
        (8, (7, 44)),  # this log has no record of it, or of anything after 7
        (999, (7, 44)),
    ],
)
def test_the_greatest_epoch_not_above_another_is_one_that_has_records_here(epoch, answer):
    history = EpochHistory([(2, 10), (4, 20), (7, 30)])

    assert history.not_above(epoch, 44) == answer


@pytest.mark.parametrize("epoch", [NO_EPOCH, 0, 5])
def test_an_empty_history_has_no_epoch_and_ends_with_its_log(epoch):
    assert EpochHistory().not_above(epoch, 44) == (NO_EPOCH, 44)


@given(EPOCHS, st.integers(0, 1001))
def test_not_above_is_what_its_name_says(epochs, epoch):
    history = EpochHistory((e, 10 * at) for at, e in enumerate(epochs))
    below = [e for e in epochs if e <= epoch]

    known, end = history.not_above(epoch, 1000)

    assert known == (below[-1] if below else NO_EPOCH)
    if epochs:
        assert end == (1000 if len(below) == len(epochs) else 10 * len(below))


@pytest.mark.parametrize(
    ("offset", "epoch"), [(9, NO_EPOCH), (10, 2), (19, 2), (20, 4), (29, 4), (30, 7), (99, 7)]
)
def test_every_offset_has_the_epoch_that_began_last_before_it(offset, epoch):
    assert EpochHistory([(2, 10), (4, 20), (7, 30)]).epoch_at(offset) == epoch


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (31, [(2, 10), (4, 20), (7, 30)]),
        (30, [(2, 10), (4, 20)]),
        (21, [(2, 10), (4, 20)]),
        (10, []),
        (0, []),
    ],
)
def test_cutting_the_end_forgets_epochs_that_begin_there_or_later(end, left):
    history = EpochHistory([(2, 10), (4, 20), (7, 30)])

    assert history.cut_end(end) == (len(left) < 3)
    assert list(history) == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (5, [(2, 10), (4, 20), (7, 30)]),
        (10, [(2, 10), (4, 20), (7, 30)]),
        (15, [(2, 15), (4, 20), (7, 30)]),
        (20, [(4, 20), (7, 30)]),
        (99, [(7, 99)]),
    ],
)
def test_cutting_the_start_keeps_the_epoch_of_the_first_record_left(start, left):
    history = EpochHistory([(2, 10), (4, 20), (7, 30)])

    assert history.cut_start(start) == (left != [(2, 10), (4, 20), (7, 30)])
    assert list(history) == left


def test_the_file_ends_with_its_checksum():
    for history, lines in (
        (EpochHistory([(0, 0), (12, 345)]), b"1\n2\n0 0\n12 345\n"),
        (EpochHistory(), b"1\n0\n"),
    ):
        assert history.encode() == lines + b"crc32c %08x\n" % crc32c(lines)


def test_a_file_of_an_earlier_release_is_read():
    assert list(EpochHistory.decode(b"0\n2\n0 0\n12 345\n")) == [(0, 0), (12, 345)]


def test_no_flipped_bit_is_believed():
    data = EpochHistory([(0, 0), (12, 345)]).encode()

    for bit in range(8 * len(data)):
        rotten = bytearray(data)
        rotten[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EpochsDamaged):
            EpochHistory.decode(bytes(rotten))


@settings(max_examples=50)
@given(EPOCHS, EPOCHS)
def test_a_history_reads_back(epochs, offsets):
    history = EpochHistory(zip(epochs, offsets, strict=False))

    assert list(EpochHistory.decode(history.encode())) == list(history)


def test_a_cut_off_file_is_never_taken_for_a_whole_one():
    data = EpochHistory([(0, 0), (12, 345)]).encode()

    for size in range(len(data)):
        with pytest.raises(EpochsDamaged):
            EpochHistory.decode(data[:size])


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n2\n0 0\n",
        b"0\n1\n0\n",
        b"0\n1\nx 0\n",
        b"0\n2\n5 0\n5 9\n",
        b"0\n2\n5 9\n6 0\n",
        b"0\n1\n0 0\n\0\0",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -1\n",
        b"0\n1\n9999999999 0\n",
        b"0\n1\n0 99999999999999999999\n",
        "0\n1\n0 ٣\n".encode(),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(damaged):
    with pytest.raises(EpochsDamaged):
        EpochHistory.decode(damaged)
