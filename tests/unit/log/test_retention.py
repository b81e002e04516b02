import dataclasses
from typing import Any

import pytest

from tests.unit.log.logs import DIRECTORY, Rig, make_batch, new_disk
from tidelog.log.log import Log
from tidelog.log.retention import has_deleted_segments, load_ages, new_start, remove_segments
from tidelog.simulation.disk import SimulatedCrash

SIZE = len(make_batch(2))
NOW_MS = 100_000


def filled(segments: int = 5) -> Rig:
    """Segments of two batches with two records each; segment n has times of n seconds."""
    rig = Rig(segment_bytes=2 * SIZE)
    for number in range(2 * segments):
        rig.store(2, time_ms=1000 * (number // 2))
    assert [segment.base for segment in rig.log.segments] == list(range(0, 4 * segments, 4))
    return rig


def start_of(log: Log, *, watermark: int | None = None, now_ms: int = NOW_MS, **limits: Any) -> int:
    config = dataclasses.replace(log.config, **({"retention_ms": -1} | limits))
    return new_start(log, config, log.end if watermark is None else watermark, now_ms)


def test_without_limits_nothing_goes():
    assert start_of(filled().log) == 0


@pytest.mark.parametrize(("now_ms", "start"), [(5000, 0), (5001, 4), (6000, 4), (6001, 8), (8001, 16)])
def test_segments_go_when_their_newest_record_is_too_old(now_ms, start):
    assert start_of(filled().log, retention_ms=5000, now_ms=now_ms) == start


def test_even_the_active_segment_goes_when_it_is_too_old():
    assert start_of(filled().log, retention_ms=5000, now_ms=9001) == 20


def test_a_young_segment_keeps_all_that_follow():
    rig = filled()
    rig.log.segments[1].max_timestamp_ms = NOW_MS

    assert start_of(rig.log, retention_ms=5000) == 4


@pytest.mark.parametrize(
    ("limit", "start"), [(20 * SIZE, 0), (9 * SIZE, 0), (8 * SIZE, 4), (7 * SIZE, 4), (2 * SIZE, 16), (0, 16)]
)
def test_segments_go_while_what_follows_them_is_still_large_enough(limit, start):
    assert start_of(filled().log, retention_bytes=limit) == start


@pytest.mark.parametrize(("limit", "start"), [(100, 0), (17, 0), (16, 4), (13, 4), (12, 8), (4, 16), (0, 16)])
def test_segments_go_while_enough_records_follow_them(limit, start):
    assert start_of(filled().log, retention_records=limit) == start


def test_records_that_are_not_committed_yet_do_not_count():
    assert start_of(filled().log, retention_records=4, watermark=13) == 8


@pytest.mark.parametrize("watermark", [0, 3, 4, 7, 8, 15])
def test_nothing_goes_past_the_watermark(watermark):
    start = start_of(filled().log, retention_ms=0, watermark=watermark)

    assert start == watermark // 4 * 4


def test_the_first_limit_passed_decides():
    log = filled().log

    assert start_of(log, retention_ms=5000, now_ms=6001, retention_records=12) == 8
    assert start_of(log, retention_ms=5000, now_ms=8001, retention_records=12) == 16
    assert start_of(log, retention_ms=5000, now_ms=5000, retention_records=4) == 16


@pytest.mark.parametrize(
    ("now_ms", "records", "start"),
    [
        (NOW_MS, 8, 12),  # all are old: the count decides
        (7001, 0, 12),  # all are too many: the age decides
        (7001, 12, 8),
        (5000, 0, 0),
        (NOW_MS, 100, 0),
    ],
)
def test_hybrid_needs_both_the_age_and_the_count(now_ms, records, start):
    log = filled().log

    found = start_of(
        log, retention_mode="hybrid", retention_ms=5000, now_ms=now_ms, retention_records=records
    )

    assert found == start


def test_hybrid_still_bounds_the_size():
    log = filled().log

    assert start_of(log, retention_mode="hybrid", retention_bytes=4 * SIZE) == 12


def test_the_start_never_falls():
    rig = filled()
    rig.log.advance_start(6)

    assert start_of(rig.log) == 6
    assert start_of(rig.log, retention_records=12) == 8


def test_an_empty_log_has_nothing_to_delete():
    assert start_of(Rig().log, retention_ms=0, retention_bytes=0, retention_records=0) == 0


def test_the_ages_of_sealed_segments_are_known_after_a_restart():
    rig = filled().reopened()
    assert start_of(rig.log, retention_ms=5000) == 0, "not known yet"

    load_ages(rig.disk, rig.log.segments)

    assert start_of(rig.log, retention_ms=5000) == 20


def test_a_segment_without_its_time_index_is_still_retired():
    rig = filled().reopened()
    rig.disk.remove(DIRECTORY / "00000000000000000004.timeindex")

    load_ages(rig.disk, rig.log.segments)

    assert start_of(rig.log, retention_ms=5000, now_ms=7001) == 12


def test_a_time_index_without_entries_is_not_believed():
    rig = filled().reopened()
    rig.disk.open(DIRECTORY / "00000000000000000004.timeindex").truncate(0)

    load_ages(rig.disk, rig.log.segments)

    assert start_of(rig.log, retention_ms=5000, now_ms=6001) == 8


def with_times(*times_ms: int) -> Rig:
    """A segment for each time."""
    rig = Rig(segment_bytes=SIZE)
    for time_ms in times_ms:
        rig.store(2, time_ms=time_ms)
    return rig


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("times_ms", "start"),
    [
        ((-1, 10_000, 99_000), 4),
        ((10_000, -1, 10_000, 99_000), 6),
        ((10_000, -1, 99_000, 10_000, 99_000), 2),
        ((-1, -1, 10_000, -1), 6),
        ((-1, 99_000), 0),
        ((-1, -1, -1), 0),
    ],
)
def test_a_segment_without_times_is_as_old_as_the_next_that_has_one(times_ms, start, restarts):
    rig = with_times(*times_ms)
    rig = rig.reopened() if restarts else rig

    load_ages(rig.disk, rig.log.segments[:-1])

    assert start_of(rig.log, retention_ms=5000) == start


def test_the_batches_of_a_segment_without_times_are_looked_at_once():
    rig = with_times(-1, 99_000).reopened()
    load_ages(rig.disk, rig.log.segments[:-1])
    before = rig.disk.counts["read"]

    load_ages(rig.disk, rig.log.segments[:-1])

    assert rig.disk.counts["read"] == before


def test_what_lies_wholly_below_the_start_goes_whatever_its_age():
    rig = Rig(segment_bytes=2 * SIZE, retention_ms=5000)
    rig.store(2, time_ms=NOW_MS)
    rig.store(2, time_ms=NOW_MS)
    rig.log.advance_start(4)
    assert not has_deleted_segments(rig.log), "the only segment takes more records"
    for _ in range(4):
        rig.store(2, time_ms=10_000)
    rig.store(2, time_ms=NOW_MS)

    assert has_deleted_segments(rig.log)
    assert start_of(rig.log, retention_ms=5000) == 12
    assert [segment.base for segment in rig.log.advance_start(4)] == [0]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("crash_after", range(1, 16, 2))
def test_segments_that_go_before_their_end_is_noted_leave_no_gap(crash_after, seed):
    rig = Rig(new_disk(seed), segment_bytes=2 * SIZE)
    for _ in range(10):
        rig.store(2)
    rig.disk.sync_everything(DIRECTORY)
    gone = rig.log.advance_start(12)
    rig.disk.crash_after(crash_after)

    with pytest.raises(SimulatedCrash):
        remove_segments(rig.disk, gone, 12, singly=True)
    rig.disk.crash()

    bases = [segment.base for segment in rig.reopened(durable_mark=20).log.segments]
    assert bases == list(range(bases[0], 20, 4))


def test_a_segment_stays_listed_until_its_files_are_removed():
    rig = filled()

    first = rig.log.advance_start(8)
    again = rig.log.advance_start(12)
    rig.log.removed(first)

    assert [segment.base for segment in again] == [0, 4, 8]
    assert [segment.base for segment in rig.log.gone] == [8]
