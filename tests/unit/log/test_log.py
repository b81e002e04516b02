import errno
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from tests.unit.log.logs import DIRECTORY, MIB, Rig, cold_of, joined, make_batch, new_disk
from tidelog.errors import OffsetOutOfRange, StorageError
from tidelog.host import read_file
from tidelog.log.epochs import EpochHistory
from tidelog.log.reading import ColdRead
from tidelog.log.segment import file_stem
from tidelog.log.steps import DiskFull, Written
from tidelog.records import read_header

# Appending.


def test_what_is_appended_is_read_at_once_and_written_later():
    rig = Rig()
    batch = rig.append(3)

    assert (rig.log.end, rig.log.written_end, rig.log.synced_end) == (3, 0, 0)
    assert rig.read(0) == batch
    assert rig.names() == []

    assert rig.write() == Written(3)
    assert (rig.log.written_end, rig.log.synced_end) == (3, 0)

    rig.sync()
    assert rig.log.synced_end == 3
    assert read_file(rig.disk, DIRECTORY / "00000000000000000000.log") == batch


def test_appends_of_a_round_are_written_together():
    rig = Rig()
    batches = [rig.append(2), rig.append(1), rig.append(4)]

    rig.write()

    assert rig.disk.counts["write"] == 1
    assert rig.read_all() == batches
    assert rig.write() is None


def test_a_sync_reaches_only_what_was_written_when_it_began():
    rig = Rig()
    rig.append()
    rig.write()
    rig.append()
    targets, end = rig.log.begin_sync()
    rig.write()

    rig.log.synced(end)

    assert targets
    assert (rig.log.synced_end, rig.log.written_end) == (1, 2)


def test_late_news_of_a_sync_never_lowers_what_is_durable():
    rig = Rig()
    rig.store()
    rig.store()

    rig.log.synced(1)

    assert rig.log.synced_end == 2


def test_synced_batches_and_the_names_of_their_files_survive_power_loss():
    for seed in range(50):
        rig = Rig(new_disk(seed), segment_bytes=200)
        batches = [rig.store() for _ in range(5)]
        rig.append()
        rig.write()

        rig.disk.crash()

        found = rig.reopened(durable_mark=5).read_all()
        assert found[:5] == batches


# Rolling.


def test_a_segment_is_rolled_when_the_next_batch_would_pass_its_size():
    size = len(make_batch())
    rig = Rig(segment_bytes=2 * size)

    for _ in range(5):
        rig.store()

    assert [segment.base for segment in rig.log.segments] == [0, 2, 4]
    assert [segment.size for segment in rig.log.segments] == [2 * size, 2 * size, size]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own():
    rig = Rig(segment_bytes=14)

    batches = [rig.store(size=100), rig.store(size=5000)]

    assert [segment.base for segment in rig.log.segments] == [0, 1]
    assert rig.read_all() == batches


def test_a_segment_is_rolled_when_its_first_record_is_too_old():
    rig = Rig(segment_ms=1000)

    for time_ms in (5000, 5500, 6000, 6001, 7001):
        rig.store(time_ms=time_ms)

    assert [segment.base for segment in rig.log.segments] == [0, 3]


def test_a_segment_is_rolled_before_an_offset_would_overflow_its_index():
    rig = Rig()
    rig.append()
    header = read_header(make_batch())

    rig.log.append(bytes(make_batch()), header, 2**31 - 1, 0)
    rig.log.append(bytes(make_batch()), header, 2**31, 0)

    assert [segment.base for segment in rig.log.segments] == [0, 2**31]


def test_a_sealed_segment_has_kafkas_files_beside_it():
    rig = Rig(segment_bytes=200, index_interval_bytes=0)
    for time_ms in (1000, 3000, 2000):
        rig.store(time_ms=time_ms, producer_id=9, producer_epoch=0, base_sequence=rig.log.end)

    assert rig.names() == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.log",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
    ]
    size = len(make_batch())
    index = read_file(rig.disk, DIRECTORY / "00000000000000000000.index")
    assert index == (1).to_bytes(4, "big") + size.to_bytes(4, "big")
    times = read_file(rig.disk, DIRECTORY / "00000000000000000000.timeindex")
    assert times == (3000).to_bytes(8, "big") + (1).to_bytes(4, "big")
    noted = read_file(rig.disk, DIRECTORY / "leader-epoch-checkpoint")
    assert list(EpochHistory.decode(noted)) == [(0, 0)]


def test_everything_before_a_new_segment_is_durable_before_it_is_made():
    for seed in range(50):
        rig = Rig(new_disk(seed), segment_bytes=200)
        for _ in range(5):
            rig.append(producer_id=9, producer_epoch=0, base_sequence=rig.log.end)
        made: list[str] = []

        def crash_at_the_second(operation, path, disk=rig.disk, made=made):
            if operation == "create" and path.suffix == ".log":
                made.append(path.name)
                if len(made) == 3:
                    disk.crash_after(1)

        rig.disk.on_operation = crash_at_the_second
        with pytest.raises(BaseException, match=r"create"):
            rig.write()
        rig.disk.on_operation = None
        rig.disk.crash()

        again = rig.reopened()
        assert again.log.end == 4
        assert (
            again.log.producers.check(
                read_header(make_batch(producer_id=9, producer_epoch=0, base_sequence=4))
            )
            is None
        )


def test_an_epoch_is_known_with_its_first_batch_and_noted_with_its_segment():
    rig = Rig()
    rig.store(2, epoch=1)
    rig.store(2, epoch=1)
    rig.store(2, epoch=4)

    assert list(rig.log.epochs) == [(1, 0), (4, 4)]
    rig.log.roll()
    rig.write()
    written = read_file(rig.disk, DIRECTORY / "leader-epoch-checkpoint")
    assert list(EpochHistory.decode(written)) == [(1, 0), (4, 4)]


# Reading.


def test_an_offset_inside_a_batch_returns_the_whole_batch():
    for tail_bytes in (MIB, 0):
        rig = Rig(tail_bytes=tail_bytes)
        rig.store(5)
        second = rig.store(5)

        assert rig.read(7) == second


def test_evicted_batches_are_read_from_the_files():
    rig = Rig(tail_bytes=0, index_interval_bytes=0)
    batches = [rig.store(2, size=50) for _ in range(20)]
    rig.budget.evict()

    for number, batch in enumerate(batches):
        cold = cold_of(rig.log.read(2 * number, len(batch), rig.log.end))
        assert cold.perform(rig.disk) == batch


def test_old_and_new_bytes_join_without_a_gap_or_an_overlap():
    rig = Rig(tail_bytes=1500, segment_bytes=600)
    batches = []
    for _ in range(30):
        batches.append(rig.append(size=50))
        if len(batches) % 3 == 0:
            rig.write()

    assert 0 < rig.log.tail.start < rig.log.written_end < rig.log.end or rig.log.tail.start > 0
    assert rig.read_all() == batches


def test_a_cold_read_stays_in_its_segment():
    rig = Rig(tail_bytes=0, segment_bytes=300)
    batches = [rig.store() for _ in range(10)]
    rig.budget.evict()
    first = rig.log.segments[1].base

    assert rig.read(0) == b"".join(batches[:first])


@pytest.mark.parametrize("tail_bytes", [MIB, 0])
def test_limits_hold_in_memory_and_on_disk(tail_bytes):
    rig = Rig(tail_bytes=tail_bytes)
    batches = [rig.store(2) for _ in range(10)]
    rig.budget.evict()
    size = len(batches[0])

    assert rig.read(0, limit=6) == b"".join(batches[:3])
    assert rig.read(0, 2 * size + 1) == b"".join(batches[:2])
    assert rig.read(4, 1) == batches[2], "at least one batch"
    nothing = rig.log.read(4, 1, rig.log.end, at_least_one=False)
    assert joined(rig.disk, nothing) == b""
    assert rig.log.read(6, MIB, 6).size == 0


def test_a_batch_that_does_not_fit_is_not_passed_over():
    """A smaller one in the next segment would be taken for what comes next."""
    rig = Rig(tail_bytes=0, segment_bytes=3000)
    for size in (2900, 10, 10):
        rig.store(size=size)
    assert [segment.base for segment in rig.log.segments] == [0, 1]

    read = rig.log.read(0, 200, rig.log.end, at_least_one=False)

    assert joined(rig.disk, read) == b""
    assert cold_of(read).perform_checked(rig.disk, has_gaps=False) == b""


def test_an_offset_outside_of_the_log_is_refused():
    rig = Rig()
    for _ in range(3):
        rig.store()
    rig.log.advance_start(1)

    assert rig.read(1) and rig.log.read(3, MIB, 3).size == 0
    for offset in (0, 4, -1):
        with pytest.raises(OffsetOutOfRange, match="holds 1 to 3"):
            rig.log.read(offset, MIB, 3)


def test_a_cold_read_finds_its_batch_without_an_index():
    rig = Rig(tail_bytes=0, segment_bytes=400, index_interval_bytes=0)
    batches = [rig.store() for _ in range(10)]
    rig.budget.evict()
    for name in rig.names():
        if name.endswith(".index"):
            rig.disk.remove(DIRECTORY / name)

    assert [rig.read(offset, 1) for offset in range(9)] == batches[:9]


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"\0\0\0\0\0\0\0\x05", b"odd"])
def test_a_cold_read_is_not_misled_by_a_wrong_index(content):
    rig = Rig(tail_bytes=0, segment_bytes=400, index_interval_bytes=0)
    batches = [rig.store() for _ in range(10)]
    rig.budget.evict()
    index = rig.disk.open(DIRECTORY / "00000000000000000000.index")
    index.truncate(0)
    index.write(0, [content])

    assert rig.read(2, 1) == batches[2]


def cold(rig: Rig, offset: int) -> ColdRead:
    return cold_of(rig.log.read(offset, 1000, rig.log.end))


def test_what_is_sound_is_read_the_same_with_and_without_a_check():
    rig = Rig(tail_bytes=0, segment_bytes=400, index_interval_bytes=0)
    for _ in range(10):
        rig.store(2)
    rig.budget.evict()

    for offset in range(rig.log.tail.start):
        read = cold(rig, offset)
        assert read.perform_checked(rig.disk, has_gaps=False) == read.perform(rig.disk)


@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("byte", [6, 7, 8, 10, 11, 16, 26, 70])
def test_a_checked_read_passes_over_nothing_that_is_damaged(batch, byte, has_gaps):
    """Bytes of where it begins, how long it is, its magic, how many records it has, and a value."""
    rig = Rig(tail_bytes=0, segment_bytes=400)
    batches = [rig.store(2) for _ in range(10)]
    rig.budget.evict()
    assert len(rig.log.segments) > 2
    rig.disk.flip_bit(rig.log.segments[0].path(), batch * len(batches[0]) + byte, 3)

    for offset in (2 * batch, 2 * batch + 1):
        with pytest.raises(StorageError, match=f"at offset {offset}"):
            cold(rig, offset).perform_checked(rig.disk, has_gaps=has_gaps)


@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("batch", range(5))
def test_no_batch_of_a_checked_read_begins_elsewhere_than_it_did(batch, has_gaps):
    """No checksum covers where a batch begins: a reader would believe it.

    Where there may be gaps, only what lies before it and behind it can contradict it.
    """
    rig = Rig(tail_bytes=0, segment_bytes=600, index_interval_bytes=0)
    batches = [rig.store(3) for _ in range(10)]
    rig.budget.evict()
    first, second = rig.log.segments[:2]
    count = second.base // 3
    assert count == 5
    truth = b"".join(batches[:count])
    for bytes_max, bit in product((1, 1000), range(64)):
        position = batch * len(batches[0]) + bit // 8
        rig.disk.flip_bit(first.path(), position, bit % 8)
        for offset in range(second.base):
            read = cold_of(rig.log.read(offset, bytes_max, rig.log.end))
            with suppress(StorageError):
                found = bytes(read.perform_checked(rig.disk, has_gaps=has_gaps))
                assert found
                begin = truth.find(found)
                assert begin >= 0, (offset, bit)
                assert begin == offset // 3 * len(batches[0]), (offset, bit)
        rig.disk.flip_bit(first.path(), position, bit % 8)


def test_a_gap_is_passed_over_only_where_the_segment_makes_sense():
    rig = Rig(tail_bytes=0, segment_bytes=400)
    batches = [rig.store(2) for _ in range(10)]
    rig.budget.evict()
    first, second = rig.log.segments[:2]
    file = rig.disk.open(first.path())
    file.truncate(len(batches[0]))  # as if the others had been compacted away

    found = cold(rig, 2).perform_checked(rig.disk, has_gaps=True)
    assert read_header(found).base_offset == second.base
    with pytest.raises(StorageError):
        cold(rig, 2).perform_checked(rig.disk, has_gaps=False)
    rig.disk.flip_bit(first.path(), 10, 0)
    with pytest.raises(StorageError):
        cold(rig, 2).perform_checked(rig.disk, has_gaps=True)


def test_a_gap_may_reach_past_what_is_committed():
    rig = Rig(tail_bytes=0, segment_bytes=4000)
    batches = [rig.store(2) for _ in range(10)]
    rig.budget.evict()
    first = rig.log.segments[0]
    file = rig.disk.open(first.path())
    file.truncate(0)  # as if the first of them had been compacted away
    file.write(0, batches[5:])
    read = cold_of(rig.log.read(2, 1000, 6))

    assert read.perform_checked(rig.disk, has_gaps=True) == b""
    with pytest.raises(StorageError):
        read.perform_checked(rig.disk, has_gaps=False)
    rig.disk.flip_bit(first.path(), 6, 0)
    with pytest.raises(StorageError):
        read.perform_checked(rig.disk, has_gaps=True)


# Deleting.


def test_the_start_moves_up_and_whole_segments_go():
    rig = Rig(segment_bytes=200)
    batches = [rig.store() for _ in range(6)]
    bases = [segment.base for segment in rig.log.segments]
    assert bases == [0, 2, 4]

    assert rig.log.advance_start(1) == []
    assert [segment.base for segment in rig.log.advance_start(5)] == [0, 2]
    assert (rig.log.start, rig.log.end) == (5, 6)
    assert rig.read_all() == batches[5:]


def test_the_start_never_falls():
    rig = Rig()
    for _ in range(3):
        rig.store()
    rig.log.advance_start(2)

    assert rig.log.advance_start(1) == []
    assert rig.log.start == 2


def test_an_emptied_log_goes_on_where_it_ended():
    rig = Rig()
    rig.store(5)
    rig.log.roll()
    rig.write()

    gone = rig.log.advance_start(5)
    batch = rig.store(2, epoch=3)

    assert [segment.base for segment in gone] == [0]
    assert (rig.log.start, rig.log.end) == (5, 7)
    assert rig.read(5) == batch
    assert list(rig.log.epochs) == [(3, 5)]


# A full disk.


def full_rig(room: int, **config: Any) -> Rig:
    disk = new_disk()
    rig = Rig(disk, **config)
    rig.store(size=300)
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes -= disk.free_bytes(DIRECTORY) - room
    return rig


def test_a_write_that_does_not_fit_is_undone_whole():
    rig = full_rig(room=150)
    size = rig.log.size
    rig.append(size=100)

    outcome = rig.write()

    assert isinstance(outcome, DiskFull)
    assert (outcome.end, outcome.error.errno) == (1, errno.ENOSPC)
    assert rig.log.written_end == 1
    file = rig.disk.open(rig.log.active.path())
    assert file.size() == size


def test_steps_after_the_one_that_did_not_fit_are_not_performed():
    rig = full_rig(room=200, segment_bytes=500)
    rig.append(size=10)
    rig.append(size=300)  # rolls, and does not fit
    rig.append(size=300)

    outcome = rig.write()

    assert isinstance(outcome, DiskFull)
    assert outcome.end == 2
    logs = [DIRECTORY / name for name in rig.names() if name.endswith(".log")]
    assert [path.stem for path in logs] == [file_stem(0), file_stem(2)]
    assert rig.disk.open(logs[1]).size() == 0


def test_what_a_full_disk_has_written_is_synced_in_the_segment_that_holds_it():
    for seed in range(50):
        rig = full_rig(room=300, segment_bytes=500)
        rig.disk._random.seed(seed)
        rig.append(size=10)
        assert rig.write() == Written(2)
        rig.append(size=400)  # rolls; there is no room for what a sealed segment needs
        rig.append(size=400)
        rig.write()

        rig.sync()
        rig.disk.crash()

        assert rig.log.synced_end == 2
        assert rig.reopened().log.end >= 2


def test_a_log_that_refuses_is_still_read():
    rig = Rig()
    batch = rig.store()
    rig.log.refusal = "the disk is full"

    with pytest.raises(StorageError, match="the disk is full"):
        rig.append()
    assert rig.read(0) == batch
