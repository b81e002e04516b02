import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.log.index import IndexDamaged, OffsetIndex, TimeIndex

RISING = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=30).map(sorted)


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for relative, position in entries:
        index.add(relative, position)
    return index


def time_index(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex()
    for timestamp_ms, relative in entries:
        index.add(timestamp_ms, relative)
    return index


def test_the_offset_index_has_kafkas_bytes():
    index = offset_index((5, 0x1000), (0x01020304, 0x7FFFFFFF))

    assert index.encode() == bytes.fromhex("00000005 00001000 01020304 7fffffff")


def test_the_time_index_has_kafkas_bytes():
    index = time_index((1_700_000_000_000, 7), (1_700_000_000_001, 0x10000))

    assert index.encode() == bytes.fromhex("0000018bcfe56800 00000007 0000018bcfe56801 00010000")


@pytest.mark.parametrize(
    ("relative", "position"),
    [(0, 0), (10, 0), (19, 0), (20, 100), (29, 100), (30, 200), (31, 200), (2**31 - 1, 200)],
)
def test_a_search_by_offset_begins_before_the_batch_that_holds_it(relative, position):
    index = offset_index((10, 100), (20, 200), (30, 300))

    assert index.position_before(relative) == position


@pytest.mark.parametrize(
    ("timestamp_ms", "relative"), [(-1, 0), (1000, 0), (1001, 10), (2000, 10), (2001, 20), (9999, 20)]
)
def test_a_search_by_time_begins_after_records_that_are_all_older(timestamp_ms, relative):
    index = time_index((1000, 10), (2000, 20))

    assert index.offset_before(timestamp_ms) == relative


def test_an_empty_index_narrows_nothing():
    assert OffsetIndex().position_before(5) == 0
    assert OffsetIndex().last_position() == 0
    assert TimeIndex().offset_before(5) == 0
    assert TimeIndex().last() is None


def test_only_a_greater_time_adds_an_entry():
    index = time_index((1000, 10), (1000, 20), (999, 30), (1001, 40))

    assert index.encode() == time_index((1000, 10), (1001, 40)).encode()
    assert index.last() == (1001, 40)
    assert len(index) == 2


@settings(max_examples=50)
@given(RISING, RISING, st.integers(0, 2**31 - 1))
def test_an_offset_index_reads_back_and_finds_the_same(offsets, positions, wanted):
    entries = list(zip(offsets, positions, strict=False))
    index = offset_index(*entries)

    again = OffsetIndex.decode(index.encode(), size_max=2**31)

    assert again.encode() == index.encode() and len(again) == len(entries)
    before = sorted([0, 0, *(p for o, p in entries if o <= wanted)])
    assert again.position_before(wanted) == before[-2]


@settings(max_examples=50)
@given(RISING, RISING, st.integers(0, 2**31 - 1))
def test_a_time_index_reads_back_and_finds_the_same(times, offsets, wanted):
    entries = list(zip(times, offsets, strict=False))
    index = time_index(*entries)

    again = TimeIndex.decode(index.encode())

    assert again.encode() == index.encode() and len(again) == len(entries)
    assert again.offset_before(wanted) == max([o for t, o in entries if t < wanted], default=0)


@pytest.mark.parametrize(
    "damaged",
    [
        offset_index((10, 100)).encode()[:-1],
        offset_index((10, 100), (10, 200)).encode(),
        offset_index((10, 100), (20, 100)).encode(),
        offset_index((20, 100), (10, 200)).encode(),
        offset_index((10, 1000)).encode(),
    ],
    ids=["cut off", "same offset", "same position", "falling", "past the segment"],
)
def test_an_offset_index_that_makes_no_sense_is_refused(damaged):
    with pytest.raises(IndexDamaged):
        OffsetIndex.decode(damaged, size_max=1000)


@pytest.mark.parametrize(
    "damaged",
    [time_index((10, 100)).encode()[:-1], time_index((20, 1)).encode() + time_index((10, 2)).encode()],
    ids=["cut off", "falling"],
)
def test_a_time_index_that_makes_no_sense_is_refused(damaged):
    with pytest.raises(IndexDamaged):
        TimeIndex.decode(damaged)
