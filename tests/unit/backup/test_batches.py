from hypothesis import given
from hypothesis import strategies as st

from tidelog.backup.batches import FILLER_OFFSETS_MAX, fillers, restorable, without_holes
from tidelog.model import NO_PRODUCER, ONCE_PRODUCER_MIN
from tidelog.partition.restored import check_restored
from tidelog.records import (
    TRANSACTIONAL,
    Codec,
    Record,
    decode_batch,
    encode_batch,
    iterate_batches,
    read_header,
)


def batch(base, count, *, time_ms=1000, **options):
    records = [Record(key=b"k", value=b"v%d" % n, timestamp_ms=time_ms + n) for n in range(count)]
    return bytes(encode_batch(records, base_offset=base, **options))


def log(*spans, **options):
    """Batches that take these [base, end)."""
    data = b"".join(batch(base, end - base, **options) for base, end in spans)
    return list(iterate_batches(data))


def restored(batches, *, position=0, start=0, end):
    return list(without_holes(batches, position=position, start=start, end=end))


def test_a_batch_of_nobody_stays_as_it_is():
    data = batch(0, 3, codec=Codec.GZIP)

    assert restorable(read_header(data), data) is data


def test_a_transaction_s_batch_loses_its_producer_and_keeps_its_records():
    data = batch(
        7, 3, codec=Codec.ZSTD, producer_id=5, producer_epoch=2, base_sequence=9, attributes=TRANSACTIONAL
    )

    plain = restorable(read_header(data), data)

    header = read_header(plain)
    assert (header.producer_id, header.is_transactional) == (NO_PRODUCER, False)
    assert decode_batch(plain) == decode_batch(data)


def test_the_producer_of_an_idempotency_key_stays():
    data = batch(0, 1, producer_id=ONCE_PRODUCER_MIN, producer_epoch=0, base_sequence=0)

    assert restorable(read_header(data), data) is data


def test_holes_become_batches_without_records():
    found = restored(log((3, 5), (9, 10)), end=20)

    headers = [read_header(one) for one in found]
    assert [(h.base_offset, h.next_offset, h.record_count) for h in headers] == [
        (0, 3, 0),
        (3, 5, 2),
        (5, 9, 0),
        (9, 10, 1),
        (10, 20, 0),
    ]


def test_a_filler_is_no_younger_than_what_follows_it():
    found = restored(log((3, 5), time_ms=7000), end=6)

    times = [read_header(one).max_timestamp for one in found]
    assert times == sorted(times)


def test_a_restore_goes_on_where_it_was_cut_off():
    whole = restored(log((3, 5), (5, 8), (9, 10)), end=12)

    for at, one in enumerate(whole):
        position = read_header(one).next_offset
        rest = restored(log((3, 5), (5, 8), (9, 10)), position=position, end=12)
        assert rest == whole[at + 1 :]


def test_what_lies_below_the_start_is_a_hole():
    found = restored(log((0, 4), (4, 8), (8, 9)), start=6, end=9)

    headers = [read_header(one) for one in found]
    assert [(h.base_offset, h.record_count) for h in headers] == [(0, 0), (4, 4), (8, 1)]


def test_holes_may_be_longer_than_a_batch_can_count():
    found = list(fillers(0, 3 * FILLER_OFFSETS_MAX + 1, 0))

    assert [read_header(one).next_offset for one in found] == [
        FILLER_OFFSETS_MAX,
        2 * FILLER_OFFSETS_MAX,
        3 * FILLER_OFFSETS_MAX,
        3 * FILLER_OFFSETS_MAX + 1,
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=8), st.integers(0, 5))
def test_whatever_is_missing_a_broker_takes_what_comes_of_it(steps, tail):
    spans, at = [], 0
    for gap, count in steps:
        spans.append((at + gap, at + gap + count))
        at += gap + count
    end = at + tail
    data = b"".join(bytes(one) for one in restored(log(*spans), end=end))

    if end:
        found = check_restored(memoryview(data), start=0, end=0)
        assert found[-1][0].next_offset == end
        assert [h.base_offset for h, _ in found if h.record_count] == [base for base, _ in spans]
    else:
        assert data == b""
