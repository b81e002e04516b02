import pytest

from tidelog.backup.batches import fillers, restorable
from tidelog.errors import CorruptMessage, InvalidRecord, OffsetOutOfRange
from tidelog.model import ONCE_PRODUCER_MIN
from tidelog.partition.restored import check_restored
from tidelog.records import CONTROL, TRANSACTIONAL, Record, encode_batch, iterate_batches, read_header


def batch(base, count=2, **options):
    records = [Record(value=b"v%d" % n, timestamp_ms=1000) for n in range(count)]
    return bytes(encode_batch(records, base_offset=base, **options))


def check(*batches, start=0, end=5):
    return check_restored(memoryview(b"".join(batches)), start=start, end=end)


def test_batches_that_follow_the_end_and_each_other_are_taken():
    found = check(batch(5), batch(7, 3), batch(10))

    assert [header.base_offset for header, _ in found] == [5, 7, 10]


def test_a_batch_without_records_stands_for_offsets_that_the_backup_does_not_have():
    filler, *rest = fillers(5, 100, 1000)

    found = check(filler, batch(100))

    assert not rest
    assert [(h.base_offset, h.last_offset, h.record_count) for h, _ in found] == [(5, 99, 0), (100, 101, 2)]


@pytest.mark.parametrize("base", [0, 4, 6])
def test_what_begins_elsewhere_than_the_log_ends_is_refused(base):
    with pytest.raises(OffsetOutOfRange):
        check(batch(base))


def test_a_hole_between_two_batches_is_refused():
    with pytest.raises(InvalidRecord):
        check(batch(5), batch(8))


@pytest.mark.parametrize(
    "wrong",
    [
        batch(5, producer_id=7, producer_epoch=0, base_sequence=0),
        batch(5, attributes=TRANSACTIONAL),
        batch(5, attributes=CONTROL),
        batch(5, attributes=7),  # no such codec
    ],
)
def test_nothing_of_another_cluster_s_producers_is_taken(wrong):
    with pytest.raises(InvalidRecord):
        check(wrong)


def test_the_producer_of_an_idempotency_key_is_everybody_s():
    once = batch(5, producer_id=ONCE_PRODUCER_MIN + 9, producer_epoch=0, base_sequence=0)

    assert check(once)[0][0].producer_id == ONCE_PRODUCER_MIN + 9


def test_a_count_that_does_not_fit_the_offsets_is_refused():
    header = read_header(batch(5))
    assert header.record_count == 2
    lying = restorable_with(batch(5), last_offset_delta=0)

    with pytest.raises(InvalidRecord):
        check(lying)


def restorable_with(data, **changes):
    """The batch with another header and a checksum that fits."""
    header = read_header(data)._replace(
        **changes, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0
    )
    return bytes(restorable(header, data))


@pytest.mark.parametrize("cut", [1, 20, 61])
def test_bytes_that_are_no_whole_batch_are_refused(cut):
    with pytest.raises(CorruptMessage):
        check(batch(5), batch(7)[:cut])


def test_a_flipped_bit_is_refused():
    damaged = bytearray(batch(5))
    damaged[-1] ^= 1

    with pytest.raises(CorruptMessage):
        check(bytes(damaged))


def test_nothing_is_no_batch():
    with pytest.raises(CorruptMessage):
        check()


def test_what_was_checked_are_the_very_batches():
    data = batch(5) + batch(7)

    assert [bytes(one) for _, one in check(data)] == [bytes(one) for _, one in iterate_batches(data)]
