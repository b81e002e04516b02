import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.logs import DIRECTORY, Rig
from tidelog.log.search import Found, TimeSearch
from tidelog.records import (
    HEADER_BYTES,
    Codec,
    Record,
    check_batch,
    encode_batch,
    iterate_times,
    read_header,
    seal_batch,
    stamp,
)


def append(rig: Rig, *times: int, epoch: int = 0, codec: Codec = Codec.NONE) -> None:
    """One batch with these times, stored."""
    batch = encode_batch([Record(value=b"v", timestamp_ms=t) for t in times], codec=codec)
    stamp(batch, rig.log.end, epoch)
    rig.log.append(bytes(batch), read_header(batch), rig.log.end, epoch)
    rig.write()
    rig.sync()


def first_since(rig: Rig, time_ms: int, limit: int | None = None) -> Found | None:
    return TimeSearch.over(rig.log, rig.log.end if limit is None else limit).first_since(rig.disk, time_ms)


def newest(rig: Rig, limit: int | None = None) -> Found | None:
    return TimeSearch.over(rig.log, rig.log.end if limit is None else limit).newest(rig.disk)


def test_the_first_record_of_a_time_or_later_is_found_inside_its_batch():
    rig = Rig()
    append(rig, 10, 20, 30)
    append(rig, 40, 50, epoch=2)

    assert first_since(rig, 0) == Found(0, 10, 0)
    assert first_since(rig, 20) == Found(1, 20, 0)
    assert first_since(rig, 21) == Found(2, 30, 0)
    assert first_since(rig, 31) == Found(3, 40, 2)
    assert first_since(rig, 51) is None


def test_times_that_do_not_rise_are_found_by_offset():
    rig = Rig()
    append(rig, 50, 10)
    append(rig, 30, 60)

    assert first_since(rig, 40) == Found(0, 50, 0)
    assert first_since(rig, 51) == Found(3, 60, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_packed_batches_are_searched_too(codec):
    rig = Rig()
    append(rig, 10, 20, 30, codec=codec)

    assert first_since(rig, 15) == Found(1, 20, 0)


def test_nothing_at_or_past_the_limit_is_found():
    rig = Rig()
    append(rig, 10, 20, 30)
    append(rig, 40)

    assert first_since(rig, 25, limit=2) is None
    assert first_since(rig, 40, limit=3) is None
    assert newest(rig, limit=3) == Found(2, 30, 0)


def test_nothing_before_the_start_is_found():
    rig = Rig()
    append(rig, 10, 90, 30)
    append(rig, 40)
    rig.log.advance_start(2)

    assert first_since(rig, 0) == Found(2, 30, 0)
    assert first_since(rig, 35) == Found(3, 40, 0)
    assert newest(rig) == Found(3, 40, 0)


def test_the_first_of_the_newest_records_is_found():
    rig = Rig(segment_bytes=200)
    for times in ([10, 20], [70, 30], [50, 70], [60]):
        append(rig, *times)

    assert newest(rig) == Found(2, 70, 0)


def test_an_empty_log_has_no_times():
    rig = Rig()

    assert first_since(rig, 0) is None
    assert newest(rig) is None


def test_a_new_segment_whose_file_is_not_made_yet_holds_nothing():
    rig = Rig()
    append(rig, 10)
    rig.log.roll()

    assert first_since(rig, 11) is None
    assert newest(rig) == Found(0, 10, 0)


def test_a_segment_deleted_during_the_search_is_passed_over():
    rig = Rig(segment_bytes=200)
    for time_ms in (10, 20, 30, 40, 50):
        append(rig, time_ms)
    found = rig.reopened()
    rig.disk.remove(DIRECTORY / "00000000000000000000.log")

    assert first_since(found, 0) == Found(2, 30, 0)


def put(rig: Rig, payload: bytes, *, base_ms: int, max_ms: int, codec: Codec = Codec.NONE) -> None:
    """One batch of one record that a producer has made up, stored."""
    batch = seal_batch(
        payload,
        count=1,
        attributes=codec,
        base_timestamp=base_ms,
        max_timestamp=max_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    check_batch(batch)  # as a broker asks of every producer
    stamp(batch, rig.log.end, 0)
    rig.log.append(bytes(batch), read_header(batch), rig.log.end, 0)
    rig.write()
    rig.sync()


def garbage(rig: Rig, time_ms: int) -> None:
    put(rig, b"\x01" * 50, base_ms=time_ms, max_ms=time_ms)


def lie(rig: Rig, time_ms: int, *, claim_ms: int) -> None:
    body = encode_batch([Record(value=b"v", timestamp_ms=time_ms)])[HEADER_BYTES:]
    put(rig, bytes(body), base_ms=time_ms, max_ms=claim_ms)


def bomb(rig: Rig, time_ms: int) -> None:
    records = [Record(value=bytes(17 * 1024 * 1024), timestamp_ms=time_ms)]
    payload = bytes(encode_batch(records, codec=Codec.ZSTD)[HEADER_BYTES:])
    put(rig, payload, base_ms=time_ms, max_ms=time_ms, codec=Codec.ZSTD)


@pytest.mark.parametrize("unreadable", [garbage, bomb])
def test_a_batch_that_cannot_be_unpacked_has_the_time_of_its_header(unreadable):
    rig = Rig()
    append(rig, 10)
    unreadable(rig, 50)
    append(rig, 40, 60)

    assert first_since(rig, 20) == Found(1, 50, 0)
    assert first_since(rig, 55) == Found(3, 60, 0)
    assert newest(rig) == Found(3, 60, 0)


def test_a_batch_that_cannot_be_unpacked_is_the_newest_only_if_no_other_can_be():
    rig = Rig()
    garbage(rig, 90)
    assert newest(rig) == Found(0, 90, 0)

    append(rig, 10)

    assert newest(rig) == Found(1, 10, 0)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("segment_bytes", [100, 250, 10_000])
def test_a_header_that_lies_about_its_time_hides_no_other_record(segment_bytes, restarts):
    rig = Rig(segment_bytes=segment_bytes, index_interval_bytes=0)
    append(rig, 10)
    lie(rig, 20, claim_ms=900)
    append(rig, 60)
    lie(rig, 30, claim_ms=800)
    append(rig, 50)
    rig = rig.reopened() if restarts else rig

    assert newest(rig) == Found(2, 60, 0)
    assert newest(rig, limit=2) == Found(1, 20, 0)
    assert first_since(rig, 25) == Found(2, 60, 0)
    assert first_since(rig, 700) is None


def test_the_search_for_the_newest_record_unpacks_few_batches(monkeypatch):
    unpacked: list[bytes] = []

    def counted(batch, *, size_max):
        unpacked.append(batch)
        return iterate_times(batch, size_max=size_max)

    monkeypatch.setattr("tidelog.log.search.iterate_times", counted)
    rising, same = Rig(segment_bytes=5000), Rig(segment_bytes=5000)
    for number in range(600):
        append(rising, number)
        append(same, 7)

    assert newest(rising) == Found(599, 599, 0)
    assert newest(same) == Found(0, 7, 0)
    assert len(unpacked) == 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), max_size=12),
    st.integers(0, 51),
    st.booleans(),
    st.booleans(),
)
def test_a_search_finds_what_a_look_at_every_record_finds(batches, wanted, restarts, indexed):
    rig = Rig(segment_bytes=250, index_interval_bytes=0)
    for times in batches:
        append(rig, *times)
    if restarts:
        rig = rig.reopened()
    if not indexed:
        for name in rig.names():
            if name.endswith("index"):
                rig.disk.remove(DIRECTORY / name)
    times = [time for batch in batches for time in batch]

    by_time = next(((o, t) for o, t in enumerate(times) if t >= wanted), None)
    greatest = max(((t, -o) for o, t in enumerate(times)), default=None)

    found = first_since(rig, wanted)
    assert (found and (found.offset, found.timestamp_ms)) == by_time
    found = newest(rig)
    assert (found and (found.timestamp_ms, -found.offset)) == greatest
