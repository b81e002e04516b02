"""A log that starts inside of a batch, as DeleteRecords leaves it, and a copy that begins there."""

import pytest

from tests.unit.log.logs import DIRECTORY, Rig, make_batch, new_disk
from tests.unit.log.test_recovery import stop_cleanly
from tidelog.log.segment import file_stem
from tidelog.records import read_header, stamp
from tidelog.simulation.disk import SimulatedCrash

START = 5


def begun_anew(seed: int = 0) -> Rig:
    """A log without batches that begins at `START`."""
    rig = Rig(new_disk(seed, sector_bytes=32))
    return rig.reopened(start=START)


def take(rig: Rig, base: int, count: int) -> bytes:
    """Append the leader's batch of `count` records from `base` on, of producer 7."""
    batch = make_batch(count, producer_id=7, producer_epoch=0, base_sequence=base)
    stamp(batch, base, 3)
    rig.log.append(bytes(batch), read_header(batch), base, 3)
    return bytes(batch)


def test_the_batch_that_holds_the_start_is_taken_whole():
    rig = begun_anew()

    first = take(rig, 0, 10)
    second = take(rig, 10, 2)
    rig.write()
    rig.sync()

    assert (rig.log.start, rig.log.end, rig.log.synced_end) == (START, 12, 12)
    assert rig.read_all() == [first, second]
    assert rig.names() == [file_stem(0) + ".log"]
    found = rig.reopened(start=START, durable_mark=12)
    assert (found.log.start, found.log.end, found.log.refusal) == (START, 12, None)
    assert found.read_all() == [first, second]
    assert list(found.log.epochs) == list(rig.log.epochs) == [(3, START)]
    assert found.log.producers == rig.log.producers


@pytest.mark.parametrize(("base", "count"), [(0, 5), (6, 4)])
def test_a_batch_that_does_not_hold_the_start_is_not_the_first(base, count):
    header = read_header(make_batch(count))._replace(base_offset=base)

    assert begun_anew().log.may_begin_with(header) == (header.last_offset >= START)


def test_only_a_log_without_batches_begins_before_its_start():
    rig = begun_anew()
    take(rig, 0, 10)

    assert not rig.log.may_begin_with(read_header(make_batch(20)))


def test_a_file_that_was_made_for_the_start_gives_way():
    rig = begun_anew()
    rig.write()  # makes the file
    stop_cleanly(rig)
    rig = rig.reopened(start=START)

    first = take(rig, 0, 10)
    rig.write()
    rig.sync()

    assert [name for name in rig.names() if name.startswith(file_stem(START))] == []
    assert rig.reopened(start=START, durable_mark=10).read_all() == [first]


def test_a_log_promises_nothing_before_its_first_batch_is_synced():
    rig = begun_anew()
    assert rig.log.promised_end == 0

    take(rig, 0, 10)
    assert rig.log.promised_end == 0
    rig.write()
    rig.sync()
    assert rig.log.promised_end == 10


@pytest.mark.parametrize("crash", range(1, 12))
def test_a_power_loss_at_any_step_leaves_the_batch_or_an_empty_log_at_the_start(crash):
    rig = begun_anew(seed=crash)
    rig.write()
    rig = rig.reopened(start=START)
    batch = take(rig, 0, 10)
    rig.disk.crash_after(crash)
    try:
        rig.write()
        rig.sync()
    except SimulatedCrash:
        pass
    mark = rig.log.promised_end
    rig.disk.crash()

    found = rig.reopened(start=START, durable_mark=mark)

    assert (found.log.start, found.log.refusal) == (START, None)
    assert (found.log.end, found.read_all()) in [(START, []), (10, [batch])]
    assert found.log.end >= mark
    again = found.reopened(start=START, durable_mark=mark)
    assert (again.log.start, again.log.end) == (START, found.log.end)


def test_files_that_end_before_the_start_are_removed_and_the_log_is_empty():
    rig = Rig(segment_bytes=len(make_batch(2)))
    for _ in range(4):
        rig.store(2)

    found = rig.reopened(start=20)

    assert (found.log.start, found.log.end, len(found.log.epochs)) == (20, 20, 0)
    assert rig.disk.list(DIRECTORY) == []
    found.store(2)
    assert found.reopened(start=20).log.end == 22
