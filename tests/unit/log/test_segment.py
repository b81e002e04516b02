from typing import Any

import pytest

from tests.unit.log.logs import DIRECTORY, Rig, make_batch
from tidelog.log.segment import Segment, file_stem, find_batch, read_batches
from tidelog.records import read_header

MIB = 1024 * 1024


def stored(count: int = 10, **config: Any) -> tuple[Rig, list[bytes]]:
    rig = Rig(**config)
    return rig, [rig.store(2, time_ms=1000 + 10 * n) for n in range(count)]


def test_names_sort_as_their_offsets():
    assert file_stem(0) == "00000000000000000000"
    assert file_stem(2**63 - 1) == "09223372036854775807"
    assert sorted(map(file_stem, (9, 10, 100, 2))) == [file_stem(n) for n in (2, 9, 10, 100)]


def test_an_index_entry_is_made_once_enough_bytes_have_passed():
    segment = Segment(DIRECTORY, 100)
    header = read_header(make_batch(5))
    for number in range(10):
        segment.note(header, 100 + 5 * number, interval_bytes=2 * header.size)

    # The batch after more than two batches' bytes, then each third; with its last offset.
    assert segment.offsets is not None
    entries = [(19, 3 * header.size), (34, 6 * header.size), (49, 9 * header.size)]
    assert segment.offsets.encode() == b"".join(
        o.to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in entries
    )


def test_a_segment_knows_its_greatest_time_and_where_it_was_first_seen():
    segment = Segment(DIRECTORY, 0)
    for offset, time_ms in enumerate((5, 9, 7, 9)):
        segment.note(read_header(make_batch(time_ms=time_ms)), offset, interval_bytes=10**6)

    assert (segment.first_timestamp_ms, segment.max_timestamp_ms) == (5, 9)
    assert segment.max_timestamp_offset == 1
    assert segment.seal()[1] == (9).to_bytes(8, "big") + (1).to_bytes(4, "big")


def test_a_sealed_segment_never_grows():
    segment = Segment(DIRECTORY, 0)
    segment.seal()

    with pytest.raises(AssertionError):
        segment.note(read_header(make_batch()), 0, 100)


@pytest.mark.parametrize("sealed", [False, True])
def test_searches_find_the_same_in_memory_and_in_files(sealed):
    rig, batches = stored(index_interval_bytes=0)
    segment = rig.log.active
    if sealed:
        rig.log.roll()
        rig.write()
    size = len(batches[0])

    # Every batch but the first has an entry, by its last offset; the one before it is found.
    assert [segment.position_before(rig.disk, offset) for offset in (0, 2, 3, 10, 19, 99)] == [
        0,
        0,
        0,
        3 * size,
        8 * size,
        8 * size,
    ]
    assert [segment.offset_before(rig.disk, t) for t in (0, 1010, 1011, 1090, 5000)] == [0, 0, 3, 17, 19]


def test_an_index_that_points_past_the_segment_is_not_followed():
    rig, _ = stored(index_interval_bytes=0)
    segment = rig.log.active
    rig.log.roll()
    rig.write()
    index = rig.disk.open(segment.path(".index"))
    index.write(0, [b"\0\0\0\x01\x7f\xff\xff\xff"])

    assert segment.position_before(rig.disk, 2) == 0


def test_the_greatest_time_of_a_sealed_segment_is_read_from_its_index():
    rig, _ = stored()
    rig.log.roll()
    rig.write()
    found = rig.reopened().log.segments[0]

    found.load_max_timestamp(rig.disk)

    assert (found.max_timestamp_ms, found.max_timestamp_offset) == (1090, 19)


def test_a_batch_is_found_by_any_of_its_offsets():
    rig, batches = stored()
    file = rig.log.active.open(rig.disk)
    size = len(batches[0])

    for offset in range(20):
        found = find_batch(file, 0, file.size(), offset)
        assert found is not None
        assert found[0] == offset // 2 * size
        assert found[1].base_offset == offset - offset % 2
    assert find_batch(file, 0, file.size(), 20) is None
    assert find_batch(file, 0, size, 2) is None


def test_a_batch_is_found_behind_large_ones():
    rig = Rig()
    for size in (10, 200_000, 10, 70_000, 10):
        rig.store(size=size)
    file = rig.log.active.open(rig.disk)

    assert [find_batch(file, 0, file.size(), n)[1].base_offset for n in range(5)] == [0, 1, 2, 3, 4]  # type: ignore[index]


def test_nonsense_in_a_file_ends_a_search():
    rig, batches = stored(3)
    file = rig.log.active.open(rig.disk)
    file.write(len(batches[0]), [bytes(100)])

    assert find_batch(file, 0, file.size(), 5) is None


@pytest.mark.parametrize("cache_miss", [0.0, 1.0])
def test_only_whole_batches_are_read(cache_miss):
    rig, batches = stored()
    rig.disk.cache_miss = cache_miss
    file = rig.log.active.open(rig.disk)
    end, size = file.size(), len(batches[0])

    def read(position: int, bytes_max: int, first: int = 0, limit: int | None = None) -> bytes:
        return bytes(read_batches(file, position, end, bytes_max=bytes_max, first_bytes=first, limit=limit))

    assert read(0, MIB) == b"".join(batches)
    assert read(size, 3 * size - 1) == batches[1] + batches[2]
    assert read(size, 1) == b""
    assert read(size, 1, first=size) == batches[1]
    assert read(0, MIB, limit=6) == b"".join(batches[:3])
