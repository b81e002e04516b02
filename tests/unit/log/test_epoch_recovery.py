from contextlib import suppress
from typing import Any

import pytest

from tests.unit.log.logs import DIRECTORY, Rig, make_batch, new_disk
from tidelog.host import read_file
from tidelog.log.closing import close_logs
from tidelog.log.epochs import EpochHistory
from tidelog.log.recovery import open_log
from tidelog.records import read_header, stamp
from tidelog.simulation.disk import SimulatedCrash

FILE = DIRECTORY / "leader-epoch-checkpoint"


def stored(*epochs: int, seed: int = 0, **config: Any) -> Rig:
    """A log with a batch of one record in each of `epochs`, all synced."""
    rig = Rig(new_disk(seed), **config)
    for epoch in epochs:
        rig.store(epoch=epoch)
    return rig


def note(rig: Rig, *epochs: tuple[int, int]) -> None:
    """Put a checkpoint there, as an earlier process may have left it."""
    file = rig.disk.open(FILE, create=True)
    file.truncate(0)
    file.write(0, [EpochHistory(epochs).encode()])
    file.datasync()
    rig.disk.sync_directory(DIRECTORY)


def noted(rig: Rig) -> list[tuple[int, int]]:
    return list(EpochHistory.decode(read_file(rig.disk, FILE)))


def stop_cleanly(rig: Rig) -> None:
    close_logs(rig.disk, DIRECTORY, [rig.log])
    rig.disk.kill()


def assert_nothing_was_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    assert not [record for record in caplog.records if "rebuilding" in record.message]


def test_a_power_loss_behind_a_new_epoch_does_not_take_the_history_of_sealed_segments(caplog):
    size = len(make_batch())
    for seed in range(60):
        rig = stored(5, 6, 7, seed=seed, segment_bytes=2 * size)
        rig.append(epoch=8)
        rig.write()
        rig.disk.crash()

        found = rig.reopened(durable_mark=3)

        assert list(found.log.epochs)[:3] == [(5, 0), (6, 1), (7, 2)]
    assert_nothing_was_rebuilt(caplog)


def test_a_power_loss_in_an_orderly_stop_takes_nothing_that_was_durable(caplog):
    """Neither the history of sealed segments, nor the snapshot at their end."""
    size = len(make_batch())
    for seed in range(60):
        for moment in range(1, 20):
            rig = stored(5, 6, 7, 7, seed=seed, segment_bytes=2 * size)
            rig.log.roll()
            rig.write()
            rig.disk.crash_after(moment)
            with suppress(SimulatedCrash):
                close_logs(rig.disk, DIRECTORY, [rig.log])
            rig.disk.crash()

            found = rig.reopened(durable_mark=4)

            assert list(found.log.epochs) == [(5, 0), (6, 1), (7, 2)]
    assert_nothing_was_rebuilt(caplog)
    assert not [record for record in caplog.records if "unusable" in record.message]


@pytest.mark.parametrize("ghost", [(6, 2), (6, 3), (8, 4)])
def test_an_epoch_without_records_in_the_scanned_segment_is_forgotten_and_stays_so(ghost):
    rig = stored(5, 5, 5, 5, 7)
    note(rig, (5, 0), ghost)

    found = rig.reopened(durable_mark=5)

    assert list(found.log.epochs) == [(5, 0), (7, 4)]
    rig.disk.crash()
    assert noted(rig) == [(5, 0), (7, 4)]


def test_an_epoch_that_a_power_loss_took_leaves_no_trace_in_the_history():
    """It was noted, and its only batch was never synced."""
    lost = 0
    for seed in range(60):
        rig = stored(5, 5, seed=seed)
        rig.append(epoch=6)
        rig.write()
        rig.disk.crash()
        second = rig.reopened(durable_mark=2, watermark=2)
        if second.log.end != 2:
            continue
        lost += 1
        second.store(epoch=5)
        second.store(epoch=7)
        rig.disk.crash()

        third = second.reopened(durable_mark=4, watermark=4)

        assert list(third.log.epochs) == [(5, 0), (7, 3)]
    assert lost, "the batch survived every power loss"


def test_a_clean_stop_writes_the_history():
    rig = stored(5, 5)
    found = rig.reopened(durable_mark=2)
    found.store(epoch=5)
    note(found, (5, 0), (6, 2))

    stop_cleanly(found)

    assert noted(rig) == [(5, 0)]
    assert list(found.reopened(clean=True, durable_mark=3).log.epochs) == [(5, 0)]


@pytest.mark.parametrize("stale", [[(5, 0)], [(5, 0), (6, 1)], [(5, 0), (9, 1)]])
def test_after_a_clean_stop_the_last_batch_contradicts_the_file(stale):
    rig = stored(5, 5, 7, 7)
    stop_cleanly(rig)
    note(rig, *stale)

    found = rig.reopened(clean=True, durable_mark=4)

    assert list(found.log.epochs) == [(5, 0), (7, 2)]
    assert noted(rig) == [(5, 0), (7, 2)]


def test_a_clean_start_that_finds_the_history_right_writes_nothing():
    rig = stored(5, 5, 7)
    stop_cleanly(rig)
    before = rig.disk.counts["write"]

    rig.reopened(clean=True, durable_mark=3, start=2)

    assert rig.disk.counts["write"] == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_has_a_later_epoch_before_the_active_segment_is_rebuilt(clean):
    size = len(make_batch())
    rig = stored(5, 5, 6, 6, 6, segment_bytes=2 * size)
    if clean:
        stop_cleanly(rig)
    note(rig, (5, 0), (9, 3))

    found = rig.reopened(clean=clean, durable_mark=5)

    assert list(found.log.epochs) == [(5, 0), (6, 2)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("per_segment", [2, 100])
def test_an_epoch_is_rebuilt_from_before_the_gap_that_its_first_batch_follows(per_segment, clean):
    """As the log said when it took the batch: nobody keeps older records there."""
    size = len(make_batch())
    rig = Rig(new_disk(), segment_bytes=per_segment * size, cleanup_policy="compact")
    for offset, epoch in ((0, 5), (1, 5), (2, 5), (8, 7), (9, 7), (20, 8)):
        batch = make_batch()
        stamp(batch, offset, epoch)
        rig.log.append(bytes(batch), read_header(batch), offset, epoch)
    rig.write()
    rig.sync()
    before = list(rig.log.epochs)
    assert before == [(5, 0), (7, 3), (8, 10)]
    if clean:
        stop_cleanly(rig)
    rig.disk.remove(FILE)

    found = open_with_gaps(rig, clean=clean)

    assert found == before


def open_with_gaps(rig: Rig, *, clean: bool) -> list[tuple[int, int]]:
    state = open_log(
        rig.disk, DIRECTORY, clean=clean, durable_mark=21, start=0, index_interval_bytes=4096, has_gaps=True
    )
    return list(state.epochs)


def test_behind_damage_the_file_is_believed_and_left_alone():
    rig = stored(5, 5, 6, 6)
    note(rig, (5, 0), (6, 2))
    rig.disk.flip_bit(rig.log.active.path(), rig.log.active.size // 2 - 1, 1)  # of the second
    content = read_file(rig.disk, FILE)

    found = rig.reopened(durable_mark=4)

    assert found.log.damaged_at == 1
    assert list(found.log.epochs) == [(5, 0), (6, 2)]
    assert read_file(rig.disk, FILE) == content


def test_a_full_disk_puts_the_writing_of_the_history_off():
    rig = stored(5, 5)
    note(rig, (5, 0), (6, 1))
    rig.disk.capacity_bytes = rig.disk.used_bytes

    found = rig.reopened(durable_mark=2)

    assert list(found.log.epochs) == [(5, 0)]
    rig.disk.capacity_bytes = None
    found.log.roll()
    found.write()
    assert noted(rig) == [(5, 0)]
