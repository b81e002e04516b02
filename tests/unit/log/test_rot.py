"""Rot in the files beside a segment: no reader is led past a record, nobody answers with nonsense.

Every single bit of each file is flipped, one at a time.
"""

import pytest

from tests.support.compaction import NOW_MS, CompactedLog, compacted, new_log, record
from tests.unit.log.logs import DIRECTORY, Rig, cold_of
from tidelog.host import Path, read_file
from tidelog.log.retention import load_ages
from tidelog.log.search import Found, TimeSearch
from tidelog.model import NO_TIMESTAMP


def log_with_gaps() -> CompactedLog:
    """A compacted log: many offsets are missing, so no gap looks strange."""
    log = new_log(topic=compacted(segment_bytes=10**6, index_interval_bytes=0))
    for at in range(14):
        log.append(record(f"k{at % 6}", "x" * at, time_ms=NOW_MS + 1000 * at))
    log.roll()
    log.clean()
    return log


def bits(log: CompactedLog, path: Path) -> range:
    size = len(read_file(log.disk, path))
    assert size
    return range(8 * size)


def read_everywhere(log: CompactedLog) -> list[bytes]:
    found = []
    for offset in range(log.log.end):
        read = cold_of(log.log.read(offset, 1, log.log.end))
        found.append(bytes(read.perform_checked(log.disk, has_gaps=True)))
    return found


def test_rot_in_an_index_leads_no_reader_past_a_record():
    log = log_with_gaps()
    path = log.log.segments[0].path(".index")
    truth = read_everywhere(log)

    for bit in bits(log, path):
        log.disk.flip_bit(path, bit // 8, bit % 8)
        assert read_everywhere(log) == truth, f"bit {bit}"
        log.disk.flip_bit(path, bit // 8, bit % 8)


def search(log: CompactedLog) -> list[Found | None]:
    log.open(log.log.end)  # nothing is known of times
    over = TimeSearch.over(log.log, log.log.end)
    times = range(NOW_MS - 1, NOW_MS + 15_000, 2500)
    return [*(over.first_since(log.disk, time_ms) for time_ms in times), over.newest(log.disk)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_rot_in_an_index_changes_no_offset_by_time(suffix):
    log = log_with_gaps()
    path = log.log.segments[0].path(suffix)
    truth = search(log)

    for bit in bits(log, path):
        log.disk.flip_bit(path, bit // 8, bit % 8)
        assert search(log) == truth, f"bit {bit}"
        log.disk.flip_bit(path, bit // 8, bit % 8)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_rot_in_an_index_makes_no_segment_older(suffix):
    log = log_with_gaps()
    path = log.log.segments[0].path(suffix)

    for bit in bits(log, path):
        log.disk.flip_bit(path, bit // 8, bit % 8)
        log.open(log.log.end)
        assert log.log.segments[0].max_timestamp_ms == NO_TIMESTAMP
        load_ages(log.disk, log.log.segments[:-1])
        assert log.log.segments[0].max_timestamp_ms == NOW_MS + 13_000, f"bit {bit}"
        log.disk.flip_bit(path, bit // 8, bit % 8)


def test_rot_in_a_snapshot_of_producers_is_told_and_the_batches_are_read(caplog):
    rig = Rig(segment_bytes=100)
    for number in range(3):
        rig.store(producer_id=7, producer_epoch=0, base_sequence=number)
    rig.disk.sync_everything(DIRECTORY)
    path = DIRECTORY / max(name for name in rig.names() if name.endswith(".snapshot"))

    for bit in range(8 * len(read_file(rig.disk, path))):
        rig.disk.flip_bit(path, bit // 8, bit % 8)
        caplog.clear()
        assert rig.reopened(durable_mark=3).log.producers == rig.log.producers, f"bit {bit}"
        assert "unusable" in caplog.text
        rig.disk.flip_bit(path, bit // 8, bit % 8)
