import pytest

from tidelog.backup.comparing import Comparison
from tidelog.backup.problems import Differs
from tidelog.records import TRANSACTIONAL, Record, encode_batch, iterate_batches


def record(key, value, **options):
    options = {"timestamp_ms": 1000} | options
    return Record(key=key, value=value, **options)


def batch(base, *records, **options):
    return bytes(encode_batch(records, base_offset=base, **options))


A, B, C = record(b"a", b"1"), record(b"b", b"2"), record(b"a", b"3")


def compare(expected, found, *, start=0, end=100, may_lack=False):
    comparison = Comparison(
        "t-0", iterate_batches(b"".join(expected)), start=start, end=end, may_lack=may_lack
    )
    for one in found:
        comparison.take(one)
    comparison.finish()
    return comparison


def test_the_same_batches_are_the_same_records():
    done = compare([batch(0, A, B), batch(5, C)], [batch(0, A, B), batch(5, C)])

    assert done.records == 3


def test_a_producer_and_its_transaction_may_be_forgotten():
    written = batch(0, A, producer_id=4, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)

    assert compare([written], [batch(0, A)]).records == 1


def test_how_records_are_cut_into_batches_does_not_matter():
    assert compare([batch(0, A, B), batch(2, C)], [batch(0, A), batch(1, B, C)]).records == 3


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (record(b"x", b"1"), "another key"),
        (record(b"a", b"x"), "another value"),
        (record(b"a", b"1", headers=(("h", b"x"),)), "another headers"),
        (record(b"a", b"1", timestamp_ms=7), "another timestamp"),
    ],
)
def test_any_other_record_is_found(other, said):
    with pytest.raises(Differs, match=f"offset 1 has {said}"):
        compare([batch(0, B, A)], [batch(0, B, other)])


def test_a_record_that_is_missing_is_found():
    with pytest.raises(Differs, match="offset 1 is missing"):
        compare([batch(0, A), batch(1, B), batch(2, C)], [batch(0, A), batch(2, C)])
    with pytest.raises(Differs, match="offset 1 is missing"):
        compare([batch(0, A), batch(1, B)], [batch(0, A)])


def test_a_record_too_many_is_found():
    with pytest.raises(Differs, match="offset 1 is not in the backup"):
        compare([batch(0, A)], [batch(0, A), batch(1, B)])
    with pytest.raises(Differs, match="offset 1 is not in the backup"):
        compare([batch(0, A), batch(2, C)], [batch(0, A), batch(1, B), batch(2, C)])


def test_what_others_write_behind_the_end_is_not_compared():
    assert compare([batch(0, A)], [batch(0, A), batch(1, B)], end=1).records == 1


def test_what_lies_before_the_start_is_not_compared():
    done = compare([batch(0, A), batch(1, B, C)], [batch(1, record(b"x", b"x"), C)], start=2)

    assert done.records == 1


def test_a_compacted_log_may_lack_what_a_later_record_supersedes():
    done = compare([batch(0, A), batch(1, B), batch(2, C)], [batch(1, B, C)], may_lack=True)

    assert (done.records, done.lacking) == (2, 1)


def test_a_compacted_log_may_not_lack_the_newest_of_a_key():
    with pytest.raises(Differs, match="offset 1 is missing"):
        compare([batch(0, A), batch(1, B), batch(2, C)], [batch(2, C)], may_lack=True)
    with pytest.raises(Differs, match="offset 1 is missing"):
        compare([batch(0, A), batch(1, B)], [batch(0, A)], may_lack=True)


def test_a_deletion_whose_time_has_come_may_be_lacking():
    gone = record(b"a", None)

    assert compare([batch(0, A), batch(1, gone)], [], may_lack=True).lacking == 2


def test_what_follows_the_backup_is_not_compared_but_may_have_made_its_records_void():
    backup = [batch(0, A), batch(1, B)]

    done = compare(backup, [batch(1, B), batch(2, C)], end=2, may_lack=True)

    assert (done.records, done.lacking) == (1, 1)
    with pytest.raises(Differs, match="offset 0 is missing"):
        compare(backup, [batch(1, B), batch(2, record(b"z", b"3"))], end=2, may_lack=True)
