import pytest

from tests.unit.log.logs import make_batch
from tidelog.partition.cut_tail import CutTail
from tidelog.records import BatchHeader, read_header, stamp


def batch(base: int) -> BatchHeader:
    data = bytearray(make_batch(count=2))
    stamp(data, base_offset=base, leader_epoch=1)
    return read_header(data)


SIZE = batch(0).size


@pytest.mark.parametrize(("size", "is_whole"), [(2 * SIZE, True), (2 * SIZE + 1, False)])
def test_what_was_cut_is_back_once_as_many_bytes_were_fetched_behind_it(size, is_whole):
    cut = CutTail(10, size)

    cut.fetched(batch(10))
    assert not cut.is_made_good(12)
    cut.fetched(batch(12))

    assert cut.is_made_good(14) is is_whole


def test_what_was_fetched_counts_once_it_is_synced():
    cut = CutTail(10, SIZE)
    cut.fetched(batch(10))
    cut.fetched(batch(12))

    assert not cut.is_made_good(11)
    assert cut.is_made_good(12)


def test_what_lies_before_the_cut_does_not_count():
    """A replica that begins anew fetches it again, too."""
    cut = CutTail(10, SIZE)

    cut.fetched(batch(8))

    assert not cut.is_made_good(100)


def test_what_was_fetched_before_the_log_changed_does_not_count():
    cut = CutTail(10, 2 * SIZE)
    cut.fetched(batch(10))
    cut.log_changed()
    cut.fetched(batch(10))
    assert not cut.is_made_good(100)

    cut.fetched(batch(12))
    assert cut.is_made_good(100)
    cut.log_changed()
    assert not cut.is_made_good(100)


def test_a_cut_of_unknown_size_is_never_made_good_by_bytes():
    cut = CutTail(10, None)

    cut.fetched(batch(10))

    assert not cut.is_made_good(100)
