"""What compaction promises: of every key the latest record, where it was, and nothing lost."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compaction import (
    DAY_MS,
    DIRECTORY,
    EPOCH,
    NOW_MS,
    CompactedLog,
    broken,
    compacted,
    fold,
    latest,
    new_log,
    record,
    sealed,
)
from tidelog.host import read_file
from tidelog.log.compaction import SegmentDamaged, group_segments
from tidelog.log.index import RELATIVE_MAX
from tidelog.log.keymap import KEY_BYTES
from tidelog.log.search import TimeSearch
from tidelog.log.segment import Segment
from tidelog.log.unpacking import split_records
from tidelog.records import (
    CONTROL,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Codec,
    Record,
    decode_batch,
    encode_batch,
    encode_empty,
    read_header,
    stamp,
)


def keys_and_values(log: CompactedLog) -> list[tuple[bytes | None, bytes | None]]:
    return [(r.key, r.value) for r in log.records()]


# What stays.


def test_latest_record_of_every_key_stays_at_its_offset():
    log = new_log()
    log.append(record("a", "1"), record("b", "1"))
    log.append(record("a", "2"), record("c", "1"))
    log.roll()

    log.clean()

    assert [(r.offset, r.key, r.value) for r in log.records()] == [
        (1, b"b", b"1"),
        (2, b"a", b"2"),
        (3, b"c", b"1"),
    ]


def test_active_segment_is_not_touched():
    log = new_log()
    log.append(record("a", "1"))
    log.roll()
    log.append(record("a", "2"))
    log.append(record("a", "3"))
    log.flush()

    log.clean()

    assert log.offsets() == [0, 1, 2]


def test_batch_keeps_its_offsets_sequences_and_epoch():
    log = new_log()
    log.append(*(record("abcab"[at]) for at in range(5)), producer=1, sequence=7)
    log.roll()
    (before,) = log.headers()

    log.clean()

    (after,) = log.headers()
    assert after.record_count == 3
    assert after == before._replace(length=after.length, crc=after.crc, record_count=3)
    assert log.offsets() == [2, 3, 4]


@pytest.mark.parametrize("codec", Codec)
def test_kept_records_keep_headers_times_and_codec(codec):
    log = new_log()
    kept = Record(
        key=b"k" * 200,
        value=b"v" * 3000,
        timestamp_ms=NOW_MS - 999_999,
        headers=(("name", b"value"), ("null", None), ("ümlaut", b"")),
    )
    log.append(record("a"), kept, record("a"), record("b", time_ms=NOW_MS + 70), codec=codec)
    log.append(record("b", time_ms=NOW_MS - 5), codec=codec)
    log.roll()

    log.clean()

    first, _ = log.headers()
    assert first.codec is codec
    assert first.max_timestamp == NOW_MS - 1000
    assert log.records() == [log.written[offset] for offset in (1, 2, 4)]


def test_blocks_of_lz4_stand_alone_as_java_wants_them():
    log = new_log()
    log.append(record("a"), record("a", "x" * 200_000), codec=Codec.LZ4)
    log.roll()

    log.clean()

    ((_, batch),) = log.batches()
    assert batch[HEADER_BYTES + 4] & 0x20


def test_kept_records_keep_their_bytes():
    log = new_log()
    log.append(record("a"), record("b", "x" * 300), record("c"), record("a"))
    log.roll()
    ((header, before),) = log.batches()
    bounds = split_records(before[HEADER_BYTES:], header).bounds

    log.clean()

    ((_, after),) = log.batches()
    assert after[HEADER_BYTES:] == before[HEADER_BYTES + bounds[1] :]


def test_append_time_of_a_batch_stays_whatever_is_removed():
    log = new_log()
    log.append(record("a", time_ms=5), record("b", time_ms=7), attributes=LOG_APPEND_TIME)
    log.append(record("b"))
    log.roll()
    before = log.headers()[0].max_timestamp

    log.clean()

    assert log.headers()[0].max_timestamp == before
    assert log.records()[0].timestamp_ms == before


def test_batch_in_which_nothing_changes_is_copied():
    log = new_log()
    log.append(record("a"), record("b"), codec=Codec.ZSTD)
    log.append(record("c"), record("c"))
    log.roll()
    before = next(log.batches())

    log.clean()

    assert next(log.batches()) == before


def test_batch_that_was_cleaned_before_is_cleaned_again_when_nobody_remembers():
    log = new_log()
    log.append(*(record(key, key * 3) for key in "abcd"))
    log.append(record("b", "2"))
    log.roll()
    log.clean()
    log.append(record("c", "2"))
    log.roll()
    log.first_dirty = 0

    log.clean()

    assert keys_and_values(log) == [(b"a", b"aaa"), (b"d", b"ddd"), (b"b", b"2"), (b"c", b"2")]


def test_segment_in_which_nothing_changes_is_not_replaced():
    log = new_log()
    log.append(record("a"), record("b"))
    log.roll()
    before = log.disk.counts["rename"]

    log.clean()

    # A start names the active segment anew, which takes two.
    assert log.disk.counts["rename"] == before + 2
    assert not any("cleaned" in name for name in log.names())


def test_records_without_a_key_are_dropped_and_counted():
    log = new_log()
    log.append(record("a"), record(None), record(None))
    log.append(record("b"))
    log.roll()

    work = log.clean()

    assert log.offsets() == [0, 3]
    assert work.tally.keyless == 2


def test_control_batches_pass():
    log = new_log()
    marker = Record(key=struct.pack(">hh", 0, 1), value=b"\0" * 6, timestamp_ms=NOW_MS)
    for _ in range(3):
        log.append(marker, attributes=CONTROL)
        log.append(record("a"))
    log.roll()

    log.clean()

    assert [h.base_offset for h in log.headers() if h.is_control] == [0, 2, 4]
    assert log.offsets() == [0, 2, 4, 5]


# Tombstones.


def test_tombstone_stays_for_its_grace_after_it_was_first_cleaned():
    log = new_log(topic=compacted(delete_retention_ms=1000))
    log.append(record("a", "1"))
    log.append(record("a", None, time_ms=NOW_MS - 50 * DAY_MS), record("b", "1"))
    log.roll()

    log.clean()
    assert keys_and_values(log) == [(b"a", None), (b"b", b"1")]
    log.now_ms += 999
    log.clean()
    assert keys_and_values(log) == [(b"a", None), (b"b", b"1")]
    log.now_ms += 1
    log.clean()

    assert keys_and_values(log) == [(b"b", b"1")]


def test_a_pass_tells_below_which_offset_tombstones_are_gone():
    log = new_log(topic=compacted(delete_retention_ms=1000))
    log.append(record("a", None), record("b", None), record("c", "1"))
    log.roll()
    log.clean()
    log.now_ms += 1000

    work = log.compaction(None)
    for _ in work.map_keys():
        pass
    cleaned = log.write(work, work.groups()[0])

    assert cleaned is not None and cleaned.purged_end == 2


def test_a_tombstone_that_a_replica_lacks_stays_past_its_grace():
    log = new_log(topic=compacted(delete_retention_ms=1000))
    log.append(record("a", None), record("b", None), record("c", "1"))
    log.roll()
    log.clean()
    log.now_ms += 1000
    work = log.compaction(None)
    work.purge_limit = 1

    for _ in work.map_keys():
        pass
    cleaned = log.write(work, work.groups()[0])
    log.swap(cleaned, work.groups()[0])
    log.open(log.log.end)

    assert cleaned is not None and cleaned.purged_end == 1
    assert keys_and_values(log) == [(b"b", None), (b"c", b"1")]


@pytest.mark.parametrize("codec", Codec)
def test_horizon_lies_in_the_header_and_changes_no_record(codec):
    log = new_log()
    log.append(
        record("a", None, time_ms=5),
        record("b", "x" * 200, time_ms=NOW_MS),
        Record(key=b"c", value=None, timestamp_ms=NOW_MS - 77, headers=(("h", b"1"),)),
        codec=codec,
    )
    log.roll()

    log.clean()

    (header,) = log.headers()
    assert header.attributes == codec | DELETE_HORIZON
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert header.max_timestamp == NOW_MS
    assert log.records() == list(log.written.values())


def test_horizon_is_set_once():
    log = new_log()
    log.append(record("a", None), record("b"), record("b"))
    log.roll()
    log.clean()
    log.append(record("c"), record("b"))
    log.roll()
    log.now_ms += 50

    log.clean()

    first = log.headers()[0]
    assert first.record_count == 1
    assert first.base_timestamp == NOW_MS + DAY_MS
    assert log.records()[0] == log.written[0]


def test_grace_does_not_begin_before_the_tombstone_has_taken_effect():
    """The map ends inside of the tombstone's batch, so an older value is still there."""
    log = new_log(key_bytes_max=2 * KEY_BYTES)
    log.append(record("z", "old"))
    log.append(record("a"), record("b"), record("z", None))
    log.roll()
    log.first_dirty = 1

    log.clean()

    assert log.first_dirty == 3
    assert not any(header.attributes & DELETE_HORIZON for header in log.headers())


def test_value_after_its_tombstone_stays():
    log = new_log()
    log.append(record("a", "1"), record("a", None), record("a", "2"))
    log.roll()

    log.clean()

    assert keys_and_values(log) == [(b"a", b"2")]


# What is not understood.


def restamped(batch: bytes, base_offset: int) -> bytes:
    return struct.pack(">q", base_offset) + batch[8:]


def test_batch_that_cannot_be_unpacked_passes_and_supersedes_nothing():
    log = new_log()
    log.append(record("a", "1"), record("b", "1"))
    log.append_raw(restamped(broken([record("b"), record("a")], damage=0), 2))
    log.append(record("a", "2"))
    log.roll()

    work = log.clean()

    assert [header.base_offset for header in log.headers()] == [0, 2, 4]
    assert [h.record_count for h in log.headers()] == [1, 2, 1]
    assert work.unreadable == 1


def test_no_tombstone_goes_while_a_batch_before_it_cannot_be_unpacked():
    log = new_log(topic=compacted(delete_retention_ms=0))
    log.append_raw(broken([record("a")], damage=0))
    log.append(record("a", None))
    log.roll()
    log.clean()
    log.now_ms += 1

    log.clean()

    assert log.headers()[-1].record_count == 1


@pytest.mark.parametrize("base_ms", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("value", ["1", None])
def test_batch_with_absurd_times_passes(base_ms, value):
    batch = encode_batch([record("a", value), record("b"), record("a", value)], leader_epoch=3)
    struct.pack_into(">q", batch, 27, base_ms)
    batch[HEADER_BYTES + 2 : HEADER_BYTES + 3] = b"\x04"  # the first record's time
    start = HEADER_BYTES + 1 + (batch[HEADER_BYTES] >> 1)
    batch[start + 2] = 0x03
    batch[start + 1 + (batch[start] >> 1) + 2] = 0x04 if base_ms > 0 else 0x03
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    log = new_log()
    log.append_raw(batch)
    log.roll()

    work = log.clean()

    assert work.unreadable == 1
    assert [header.record_count for header in log.headers()] == [3]


def test_bad_checksum_stops_the_work():
    log = new_log()
    log.append(record("a"), record("a"))
    log.append(record("a"))
    log.roll()
    log.disk.flip_bit(log.log.segments[0].path(), 80, 3)

    with pytest.raises(SegmentDamaged):
        log.clean()

    assert len(log.headers()) == 2


@pytest.mark.parametrize("byte", [0, 3, 7])
@pytest.mark.parametrize("batch", [0, 1])
def test_an_offset_that_has_rotted_stops_the_work(byte, batch):
    log = new_log()
    log.append(record("a"), record("a"))
    log.append(record("a"))
    log.roll()
    at = 0 if not batch else next(header.size for header in log.headers())
    log.disk.flip_bit(log.log.segments[0].path(), at + byte, 5)  # no checksum covers it

    with pytest.raises(SegmentDamaged, match="is at offset"):
        log.clean()


def test_cut_off_segment_stops_the_work():
    log = new_log()
    log.append(record("a"), record("a"))
    log.append(record("a"))
    log.roll()
    file = log.log.segments[0].open(log.disk)
    file.truncate(file.size() - 1)

    with pytest.raises(SegmentDamaged):
        log.clean()


# Memory.


def test_more_keys_than_memory_take_more_passes():
    log = new_log(key_bytes_max=10 * KEY_BYTES, topic=compacted(segment_bytes=1000))
    for at in range(35):
        log.append(record(f"k{at % 30}", f"{at}"), record("same", f"{at}"))
        if at % 7 == 6:
            log.roll()
    log.roll()
    passes = 0

    while log.first_dirty < log.log.end:
        before = log.first_dirty
        work = log.clean()
        passes += 1
        assert len(work._keys) <= 10
        assert log.first_dirty > before

    assert passes > 2
    assert log.offsets() == sorted({r.key: r.offset for r in log.written.values()}.values())


def test_one_batch_with_more_keys_than_memory_is_cleaned_in_parts():
    log = new_log(key_bytes_max=3 * KEY_BYTES)
    log.append(*(record(f"k{at % 8}") for at in range(16)))
    log.roll()

    while log.first_dirty < log.log.end:
        log.clean()

    assert log.offsets() == list(range(8, 16))


def test_what_lies_past_the_end_of_the_map_is_not_judged():
    log = new_log(key_bytes_max=KEY_BYTES)
    log.append(record("a"), record("b"), record(None), record("b"))
    log.roll()

    log.clean()

    assert log.first_dirty == 1
    assert log.offsets() == [0, 1, 2, 3]


def test_work_is_done_in_small_pieces():
    log = new_log(topic=compacted(segment_bytes=10**7))
    for at in range(60):
        log.append(record(f"{at % 50}", "x" * 20_000))
    log.append(record("large", "x" * 500_000))
    log.roll()
    work = log.compaction()

    pieces = [*work.map_keys(), *work.clean(work.groups()[0], lambda _: None)]

    assert sum(pieces) > 2_000_000
    assert max(pieces) < 1_300_000
    assert sorted(pieces)[-3] < 300_000


# Segments.


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([40, 40, 40], [[0, 10], [20]]),
        ([100, 1], [[0], [10]]),
        ([101, 1], [[0], [10]]),
        ([1, 98, 1, 1], [[0, 10, 20], [30]]),
        ([0, 0], []),
        ([0, 5, 0], [[0, 10, 20]]),
    ],
)
def test_segments_that_fit_into_one_form_a_group(sizes, expected):
    segments = sealed(*sizes)[:-1]

    groups = group_segments(segments, [s.base + 10 for s in segments], 100)

    assert [[segment.base for segment in group] for group in groups] == expected


def test_group_spans_no_more_offsets_than_an_index_can_count():
    segments = [Segment(DIRECTORY, base, size=1) for base in (0, 10, RELATIVE_MAX + 1)]

    groups = group_segments(segments, [10, RELATIVE_MAX + 1, RELATIVE_MAX + 2], 100)

    assert [[s.base for s in group] for group in groups] == [[0, 10], [RELATIVE_MAX + 1]]


def test_shrunken_segments_are_joined_up_to_the_size_of_one():
    log = new_log(topic=compacted(segment_bytes=1000))
    for at in range(8):
        for _ in range(3):
            log.append(record(f"k{at % 2}", "x" * 60))
        log.append(record(f"unique-{at}", "x" * 100))
        log.roll()
    assert len(log.log.segments) == 9

    log.clean()
    log.append(record("more"))
    log.roll()
    log.clean()

    sizes = [segment.size for segment in log.log.segments[:-1]]
    assert len(sizes) <= 3
    assert all(size <= 1000 for size in sizes)


def test_old_files_go_and_nothing_is_left_aside():
    log = new_log(topic=compacted(segment_bytes=10_000))
    for _ in range(3):
        log.append(record("a"))
        log.roll()

    log.clean()

    assert [name for name in log.names() if name[0] == "0"] == [
        f"{0:020d}.index",
        f"{0:020d}.log",
        f"{0:020d}.timeindex",
        f"{3:020d}.log",
        f"{3:020d}.snapshot",
    ]


def test_compacted_segment_covers_its_range_to_the_end():
    log = new_log(topic=compacted(segment_bytes=200))
    for key in "aabbab":
        log.append(record(key))
        log.roll()

    log.clean()

    ends = [segment.base for segment in log.log.segments[1:]]
    for segment, end in zip(log.log.segments, ends, strict=False):
        file = segment.open(log.disk)
        found = [h for h in log.headers() if segment.base <= h.base_offset < end]
        assert found[-1].next_offset == end
        assert file.size() == sum(h.size for h in found)


def test_indexes_of_a_compacted_segment_lead_to_its_batches():
    log = new_log(topic=compacted(segment_bytes=100_000, index_interval_bytes=300))
    for at in range(100):
        log.append(record(f"k{at % 37}", "x" * 50, time_ms=NOW_MS + at), record(f"l{at % 11}"))
    log.roll()

    log.clean()

    segment = log.log.segments[0]
    assert len(read_file(log.disk, segment.path(".index"))) >= 8 * 5
    for header in log.headers():
        position = segment.position_before(log.disk, header.base_offset)
        assert read_header(segment.open(log.disk).read(position, 61)).base_offset <= (header.base_offset)
        assert position == 0 or segment.position_before(log.disk, header.last_offset) > 0
    segment.load_max_timestamp(log.disk)
    assert segment.max_timestamp_ms == NOW_MS + 99


@pytest.mark.parametrize("start", range(13))
def test_consumer_reads_through_gaps_and_gets_exactly_what_is_left(start):
    log = new_log(topic=compacted(segment_bytes=400))
    for at in range(12):
        log.append(record("abc"[at % 3], "x" * 80))
        if at % 3 == 2:
            log.roll()
    log.append(record("d"))
    log.flush()
    log.clean()

    assert log.consume(start) == [r for r in log.records() if r.offset >= start]
    assert log.offsets() == [9, 10, 11, 12]


def test_consumer_passes_over_a_segment_that_ends_in_a_gap():
    """As Kafka leaves them: nothing of ours ends so."""
    log = new_log()
    log.append(record("a"))
    log.roll()
    log.append(record("b"))
    log.roll()
    log.append(record("c"))
    log.flush()
    log.open(3)
    for segment in log.log.segments[:2]:
        segment.open(log.disk).truncate(0)
    log.open(3)

    assert [r.offset for r in log.consume(0)] == [2]


# Producers.


def last_sequence(log: CompactedLog, producer: int) -> int:
    state = fold(log).get(producer)
    assert state is not None
    return state.last_sequence


def test_last_sequence_of_an_active_producer_outlives_its_records():
    log = new_log()
    log.append(record("a"), record("b"), producer=1, sequence=0)
    log.append(record("a"), record("b"), producer=2, sequence=40)
    log.append(record("c"))
    log.roll()
    before = log.log.producers

    log.clean()

    assert [header.record_count for header in log.headers()] == [0, 2, 1]
    assert fold(log) == before
    assert last_sequence(log, 1) == 1


def test_empty_batch_keeps_what_its_producer_is_known_by():
    log = new_log()
    log.append(record("a"), record("a"), producer=1, sequence=5, codec=Codec.GZIP)
    log.append(record("a"))
    log.roll()
    before = log.headers()[0]

    log.clean()

    after, batch = next(log.batches())
    assert after.size == HEADER_BYTES
    assert decode_batch(batch) == []
    assert after == before._replace(
        length=after.length, crc=after.crc, attributes=0, base_timestamp=-1, record_count=0
    )


def test_a_batch_that_never_had_records_stays_while_its_producer_is_known():
    log = new_log()
    log.append(record("a"))
    batch = encode_empty(producer_id=1, producer_epoch=0, base_sequence=9, now_ms=NOW_MS)
    stamp(batch, log.log.end, EPOCH)
    log.append_raw(batch)
    log.append(record("a"), record("b"))
    log.roll()
    before = log.log.producers

    log.clean()

    assert [header.record_count for header in log.headers()] == [0, 2]
    assert not log.headers()[0].lacks_records
    assert fold(log) == before
    assert last_sequence(log, 1) == 9


def test_empty_batch_goes_when_its_producer_has_moved_on():
    log = new_log()
    log.append(record("a"), producer=1, sequence=0)
    log.append(record("a"))
    log.roll()
    log.clean()
    assert [header.record_count for header in log.headers()] == [0, 1]
    log.append(record("b"), producer=1, sequence=1)
    log.roll()

    log.clean()

    assert [header.base_offset for header in log.headers()] == [1, 2]
    assert last_sequence(log, 1) == 1


# Times.


def test_offsets_by_time_pass_over_empty_batches():
    log = new_log()
    log.append(record("a", time_ms=NOW_MS + 500), producer=1, sequence=0)
    log.append(record("a", time_ms=NOW_MS + 100))
    log.append(record("b", time_ms=NOW_MS + 200))
    log.roll()
    log.clean()
    assert log.headers()[0].record_count == 0

    search = TimeSearch.over(log.log, log.log.end)

    newest = search.newest(log.disk)
    assert newest is not None and (newest.offset, newest.timestamp_ms) == (2, NOW_MS + 200)
    first = search.first_since(log.disk, NOW_MS + 50)
    assert first is not None and first.offset == 1
    assert search.first_since(log.disk, NOW_MS + 300) is None


# Against a model.

a_record = st.builds(
    Record,
    key=st.one_of(st.sampled_from([b"a", b"b", b"c", b"d" * 50]), st.binary(max_size=2)),
    value=st.one_of(st.none(), st.binary(max_size=40)),
    headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(
        tuple
    ),
    timestamp_ms=st.integers(NOW_MS - 10**9, NOW_MS),
)
a_batch = st.tuples(st.lists(a_record, min_size=1, max_size=6), st.sampled_from(Codec))
a_step = st.one_of(
    a_batch, a_batch, a_batch, st.just("roll"), st.just("clean"), st.just("wait"), st.just("forget")
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(a_step, max_size=25),
    keys_max=st.sampled_from([1, 2, 5, 1000]),
    segment_bytes=st.sampled_from([150, 700, 10_000]),
)
def test_compacted_log_says_the_same_as_a_dictionary(steps, keys_max, segment_bytes):
    log = new_log(
        key_bytes_max=keys_max * KEY_BYTES,
        topic=compacted(segment_bytes=segment_bytes, delete_retention_ms=1000),
    )
    for step in [*steps, "roll", "clean", "wait", "clean"]:
        match step:
            case "roll":
                if log.log.active.size:
                    log.roll()
            case "clean":
                log.flush()
                log.clean()
            case "wait":
                log.now_ms += 600
            case "forget":  # the checkpoint is lost: all is dirty, and has been cleaned before
                log.first_dirty = 0
            case records, codec:
                log.append(*records, codec=codec)

    found = log.records()
    written = list(log.written.values())
    assert latest(found) == latest(written)
    assert all(log.written[r.offset] == r for r in found)
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    assert log.consume(0, bytes_max=1000) == found
    newest = {r.key: r.offset for r in written}
    if log.first_dirty == log.log.end:
        assert {r.offset for r in found} <= set(newest.values())


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(a_step, max_size=25),
    keys_max=st.sampled_from([2, 5, 1000]),
    window=st.sampled_from([3, 7, 1000]),
    keyless=st.booleans(),
    opaque=st.booleans(),
)
def test_what_offsets_decide_is_what_keys_decide(steps, keys_max, window, keyless, opaque):
    """A dirty batch is judged by offset where that is enough: the files must not tell."""
    outcomes: list[object] = []
    for size in (window, 0):  # no batch fits into the second: all of them are judged by key
        log = new_log(
            key_bytes_max=keys_max * KEY_BYTES, topic=compacted(segment_bytes=700, delete_retention_ms=1000)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tidelog.log.keymap.WINDOW", size)
            for step in [*steps, "roll", "clean", "forget", "clean"]:
                match step:
                    case "forget":
                        log.first_dirty = 0
                    case "wait":
                        log.now_ms += 600
                    case "roll":
                        if log.log.active.size:
                            log.roll()
                    case "clean":
                        log.flush()
                        work = log.clean()
                        outcomes.append((work.tally, work.unreadable, work.end))
                    case records, codec:
                        log.append(*records, codec=codec)
                        if keyless:
                            log.append(record(None), *records, codec=codec)
                        if opaque:
                            log.append_raw(restamped(broken([record("a")], 0), log.log.end))
        outcomes.append([read_file(log.disk, DIRECTORY / name) for name in log.names()])

    assert outcomes[: len(outcomes) // 2] == outcomes[len(outcomes) // 2 :]
