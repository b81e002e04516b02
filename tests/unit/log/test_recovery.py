import random
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.logs import DIRECTORY, Rig, make_batch, new_disk
from tidelog.errors import StorageError
from tidelog.host import read_file
from tidelog.log.aborted import AbortedIndex, AbortedTransaction
from tidelog.log.closing import close_logs
from tidelog.log.index import OFFSET_ENTRY, TIME_ENTRY
from tidelog.log.log import LogState
from tidelog.log.producers import ProducerStates
from tidelog.log.recovery import find_damage, open_log, without_batches
from tidelog.log.segment import file_stem, walk
from tidelog.log.truncation import note_producers
from tidelog.records import Marker, read_header, stamp
from tidelog.simulation.disk import SimulatedCrash


def filled(*, count: int = 9, per_segment: int = 3, seed: int = 0, **config: Any) -> Rig:
    """A log of `count` batches with two records each, `per_segment` in a file, all synced."""
    size = len(make_batch(2))
    rig = Rig(new_disk(seed), segment_bytes=per_segment * size, **config)
    for number in range(count):
        rig.store(
            2,
            epoch=number // 4,
            producer_id=number % 2,
            producer_epoch=0,
            base_sequence=2 * (number // 2),
            time_ms=1000 + number,
        )
    return rig


def stop_cleanly(rig: Rig) -> None:
    close_logs(rig.disk, DIRECTORY, [rig.log])


def fold(rig: Rig) -> ProducerStates:
    states = ProducerStates()
    for batch in rig.read_all():
        header = read_header(batch)
        states.note(header, header.base_offset)
    return states


def active_path(rig: Rig):
    return rig.log.active.path()


def assert_same(found: Rig, before: Rig) -> None:
    assert (found.log.start, found.log.end) == (before.log.start, before.log.end)
    assert found.read_all() == before.read_all()
    assert list(found.log.epochs) == list(before.log.epochs)
    assert found.log.producers == before.log.producers
    assert [s.base for s in found.log.segments] == [s.base for s in before.log.segments]
    assert [s.size for s in found.log.segments] == [s.size for s in before.log.segments]


# Nothing there.


def described(state: LogState) -> dict[str, Any]:
    """All that a start has found, in values that compare."""
    values = {name: getattr(state, name) for name in (field.name for field in fields(state))}
    values["segments"] = [(repr(one), one.index_contents()) for one in state.segments]
    values["epochs"] = list(state.epochs)
    transactions = state.transactions
    values["transactions"] = (transactions.aborted, transactions.has_markers, list(transactions._ended))
    return values


def test_a_new_directory_is_an_empty_log():
    rig = Rig()

    assert (rig.log.start, rig.log.end, rig.log.refusal) == (0, 0, None)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("watermark", [None, 0])
def test_a_directory_made_just_now_is_known_without_a_look(clean, watermark):
    disk = new_disk()
    disk.make_directory(DIRECTORY)

    looked = open_log(
        disk, DIRECTORY, clean=clean, durable_mark=0, start=0, index_interval_bytes=4096, watermark=watermark
    )

    assert described(without_batches(DIRECTORY)) == described(looked)


def test_an_emptied_log_begins_where_the_checkpoint_says():
    rig = Rig()

    assert (rig.reopened(start=70).log.start, rig.reopened(start=70).log.end) == (70, 70)


def test_a_log_whose_files_are_gone_is_damaged():
    found = Rig().reopened(durable_mark=10)

    assert found.log.refusal is not None
    assert found.log.end == 10


# After a clean stop.


def test_a_clean_start_finds_everything():
    rig = filled()
    stop_cleanly(rig)

    assert_same(rig.reopened(clean=True, durable_mark=rig.log.end), rig)


def test_a_clean_start_reads_no_more_of_a_large_log_than_of_a_small_one():
    reads = []
    for count in (50, 1000):
        rig = filled(count=count, per_segment=10_000, index_interval_bytes=300)
        stop_cleanly(rig)
        disk = rig.disk
        disk.counts.clear()
        rig.reopened(clean=True, durable_mark=rig.log.end)
        reads.append(disk.counts["read"] + disk.counts["read_cached"])
        assert disk.counts["write"] == disk.counts["datasync"] == 0

    assert reads[0] == reads[1] < 10


def test_a_clean_start_opens_sealed_segments_without_reading_them():
    rig = filled(count=60, per_segment=3)
    stop_cleanly(rig)
    seen = []
    rig.disk.on_operation = lambda operation, path: seen.append((operation, path.name))

    rig.reopened(clean=True, durable_mark=rig.log.end)

    sealed = [segment.path().name for segment in rig.log.segments[:-1]]
    assert [name for operation, name in seen if operation != "open" and name in sealed] == []


def test_a_log_goes_on_after_a_clean_start_as_if_nothing_had_been():
    rig = filled(count=5, per_segment=3, index_interval_bytes=0)
    stop_cleanly(rig)
    found = rig.reopened(clean=True, durable_mark=rig.log.end)
    before = rig.read_all()

    more = [found.store(2, epoch=9) for _ in range(4)]

    assert found.read_all() == before + more
    assert found.reopened().read_all() == before + more


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["missing", "cut off"])
def test_a_clean_start_without_its_indexes_scans(suffix, how):
    rig = filled(count=8, per_segment=100, index_interval_bytes=0)
    stop_cleanly(rig)
    path = DIRECTORY / (file_stem(0) + suffix)
    if how == "missing":
        rig.disk.remove(path)
    else:
        file = rig.disk.open(path)
        file.truncate(file.size() - 1)

    found = rig.reopened(clean=True, durable_mark=rig.log.end)

    assert_same(found, rig)
    assert found.log.refusal is None


def test_a_clean_start_does_not_believe_files_that_contradict_the_checkpoint():
    rig = filled(count=8, per_segment=100)
    stop_cleanly(rig)
    file = rig.disk.open(active_path(rig))
    file.truncate(file.size() - len(make_batch(2)))

    found = rig.reopened(clean=True, durable_mark=rig.log.end)

    assert found.log.refusal is not None


# After a crash.


def test_a_crash_is_recovered_from_without_a_mark(caplog):
    rig = filled()

    assert_same(rig.reopened(), rig)
    assert caplog.records == [], "nothing was cut, and nothing rebuilt"


def test_what_is_cut_is_counted():
    rig = filled(count=4, per_segment=100)
    file = rig.disk.open(active_path(rig))
    file.write(file.size(), [b"torn" * 20])

    assert rig.open(durable_mark=4).discarded_bytes == 80
    assert rig.open(durable_mark=4).discarded_bytes == 0


@pytest.mark.parametrize(("size", "ends"), [(1, []), (60, []), (61, [(8, 61)])])
def test_bytes_that_are_too_few_for_a_batch_are_cut_and_were_none(size, ends):
    """The smallest batch is a header of 61 bytes. Files that rot do not become shorter."""
    rig = filled(count=4, per_segment=100)
    before = read_file(rig.disk, active_path(rig))
    rig.disk.open(active_path(rig)).write(len(before), [b"t" * size])
    told: list[tuple[int, int]] = []
    opening = partial(open_log, clean=False, durable_mark=0, start=0, index_interval_bytes=4096)

    state = opening(rig.disk, DIRECTORY, before_cut=lambda *cut: told.append(cut))

    assert told == ends
    assert bool(state.discarded_bytes) == bool(ends)
    assert (state.end, read_file(rig.disk, active_path(rig))) == (8, before)


def test_only_the_active_segment_is_scanned():
    rig = filled(count=30, per_segment=3)
    seen = []
    rig.disk.on_operation = lambda operation, path: seen.append((operation, path.name))

    rig.reopened(durable_mark=rig.log.end)

    read = {name for operation, name in seen if operation in ("read", "read_cached")}
    logs = {name for name in read if name.endswith(".log")}
    assert logs == {active_path(rig).name}


@pytest.mark.parametrize("lost", range(1, 100, 7))
def test_a_torn_tail_is_cut(lost):
    rig = filled(count=4, per_segment=100)
    whole = rig.read_all()
    file = rig.disk.open(active_path(rig))
    file.truncate(file.size() - lost)

    found = rig.reopened(durable_mark=4)

    assert found.log.refusal is None
    assert found.read_all() == whole[: len(found.read_all())]
    assert found.log.end == 2 * len(found.read_all()) >= 4
    assert rig.disk.open(active_path(rig)).size() == found.log.size


@pytest.mark.parametrize("garbage", [bytes(300), b"\xff" * 300, bytes(range(256)), b"x"])
def test_garbage_behind_the_last_batch_is_cut(garbage):
    rig = filled(count=4, per_segment=100)
    file = rig.disk.open(active_path(rig))
    file.write(file.size(), [garbage])

    found = rig.reopened(durable_mark=8)

    assert_same(found, rig)
    assert rig.disk.open(active_path(rig)).size() == rig.log.size


def test_a_batch_whose_checksum_fits_is_cut_when_its_place_in_the_log_is_torn():
    for field in (range(8), range(12, 16)):  # offset and epoch are not under the checksum
        rig = Rig()
        rig.store(2, epoch=0x0101)
        rig.store(0x0102, epoch=0x0101)
        last = rig.store(2, epoch=0x0101)
        file = rig.disk.open(active_path(rig))
        at = rig.log.size - len(last)
        file.write(at + field.start, [bytes(len(field))])

        found = rig.reopened(durable_mark=1)

        assert found.log.end == rig.log.end - 2, f"a hole at {field}"


def test_what_follows_a_hole_is_cut_too():
    rig = filled(count=6, per_segment=100)
    whole = rig.read_all()
    rig.disk.open(active_path(rig)).write(2 * len(whole[0]), [bytes(len(whole[0]))])

    found = rig.reopened(durable_mark=4)

    assert found.read_all() == whole[:2]


def test_a_cut_is_durable_before_the_end_is_reported():
    for seed in range(30):
        rig = filled(count=4, per_segment=100, seed=seed)
        file = rig.disk.open(active_path(rig))
        file.write(file.size(), [b"torn" * 30])
        found = rig.reopened(durable_mark=8)
        found.store(2)
        whole = found.read_all()
        rig.disk.crash()

        again = rig.reopened(durable_mark=10)

        assert again.log.refusal is None
        assert again.read_all() == whole


def test_what_lies_past_the_mark_is_written_again_and_synced():
    """Or found to be gone: after a failed sync, memory may lose the bytes at any time."""
    ends = set()
    for seed in range(200):
        rig = Rig(new_disk(seed))
        rig.store(2)
        rig.append(2)
        rig.write()
        rig.disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            rig.sync()  # the pages now look clean and are not
        rig.disk.kill()

        try:
            found = rig.reopened(durable_mark=2)
        except OSError:  # they went while they were read
            rig.disk.kill()
            found = rig.reopened(durable_mark=2)
        whole, end = found.read_all(), found.log.end
        ends.add(end)
        rig.disk.crash()

        again = rig.reopened(durable_mark=end)
        assert (again.log.damaged_at, again.read_all()) == (None, whole)
    assert ends == {2, 4}


def test_what_lies_below_the_mark_is_not_written_again():
    rig = filled(count=10, per_segment=100)
    rig.disk.counts.clear()

    rig.reopened(durable_mark=rig.log.end)

    assert rig.disk.counts["write"] == 0


def test_the_name_of_the_active_file_is_durable_before_the_end_is_reported():
    for seed in range(30):
        rig = Rig(new_disk(seed))
        batch = rig.append()
        rig.write()
        rig.disk.kill()  # before its directory was synced

        rig.reopened()
        rig.disk.crash()

        assert rig.reopened(durable_mark=1).read_all() == [batch]


def test_losing_power_during_the_rewrite_loses_nothing_that_was_durable():
    for seed in range(50):
        rig = filled(count=9, per_segment=100, seed=seed)
        whole = rig.read_all()
        rig.disk.kill()
        rig.disk.crash_after(2)  # the write happens, its sync does not
        with pytest.raises(SimulatedCrash):
            rig.open()
        rig.disk.crash()

        assert rig.reopened().read_all() == whole


def test_leftovers_of_replaced_files_are_removed():
    rig = filled(count=4)
    rig.disk.open(DIRECTORY / "leader-epoch-checkpoint.tmp", create=True)

    rig.reopened()

    assert not any(name.endswith(".tmp") for name in rig.names())


def test_files_that_are_not_ours_are_left_alone():
    rig = filled(count=4)
    names = ["notes.log", "12.log", "backup.snapshot", "00000000000000000099.log.bak"]
    for name in names:
        rig.disk.open(DIRECTORY / name, create=True)

    assert_same(rig.reopened(), rig)
    assert set(names) <= set(rig.names())


# Damage.


@pytest.mark.parametrize("byte", [0, 3, 7, 8, 11, 16, 17, 21, 27, 40, 57, 70, 90])
def test_damage_below_the_mark_is_refused_and_nothing_is_cut(byte):
    rig = filled(count=6, per_segment=100)
    size = len(rig.read_all()[0])
    path = active_path(rig)
    rig.disk.flip_bit(path, 2 * size + byte, 3)
    rotten = read_file(rig.disk, path)

    found = rig.reopened(durable_mark=12)

    assert read_file(rig.disk, path) == rotten
    assert found.log.refusal is not None and "damaged at offset 4" in found.log.refusal
    with pytest.raises(StorageError, match="damaged"):
        found.append()


def test_a_file_shorter_than_the_mark_is_damaged():
    rig = filled(count=6, per_segment=100)
    file = rig.disk.open(active_path(rig))
    file.truncate(4 * len(make_batch(2)))

    found = rig.reopened(durable_mark=9)

    assert found.log.refusal is not None
    assert rig.disk.open(active_path(rig)).size() == 4 * len(make_batch(2))


def test_a_damaged_log_is_read_up_to_the_damage_and_ends_where_it_did():
    rig = filled(count=6, per_segment=100)
    whole = rig.read_all()
    rig.disk.flip_bit(active_path(rig), 2 * len(whole[0]) + 70, 0)

    found = rig.reopened(durable_mark=12)

    assert found.log.end == found.log.synced_end == 12
    assert found.read(0) == whole[0] + whole[1]
    for offset in (4, 5, 11):
        with pytest.raises(StorageError, match="damaged"):
            found.read(offset)


def test_damage_is_found_again_at_every_start():
    rig = filled(count=6, per_segment=100)
    stop_cleanly(rig)
    rig.disk.flip_bit(active_path(rig), 2 * len(make_batch(2)) + 70, 0)

    found = rig.reopened(durable_mark=12)
    for clean in (False, True, True, False):
        mark = found.log.synced_end
        if clean:
            stop_cleanly(found)
        found = found.reopened(clean=clean, durable_mark=mark)
        assert found.log.refusal is not None, f"after a {'clean stop' if clean else 'crash'}"


# Gaps, as a follower finds them in a compacted log.


def with_gaps(*offsets: int) -> Rig:
    """A log of single records at these offsets, in one segment, all synced."""
    rig = Rig()
    for offset in offsets:
        batch = encode_batch_at(offset)
        rig.log.append(batch, read_header(batch), offset, 0)
    rig.write()
    rig.sync()
    return rig


def reopened_with_gaps(rig: Rig, *, durable_mark: int = 0) -> Rig:
    state = open_log(
        rig.disk,
        DIRECTORY,
        clean=False,
        durable_mark=durable_mark,
        start=0,
        index_interval_bytes=4096,
        has_gaps=True,
    )
    return Rig(rig.disk, state=state)


@pytest.mark.parametrize("mark", [0, 6, 10])
def test_where_there_may_be_gaps_a_log_is_found_whole(mark):
    rig = with_gaps(0, 2, 5, 9)

    found = reopened_with_gaps(rig, durable_mark=mark)

    assert found.log.end == 10
    assert found.log.refusal is None
    assert found.read_all() == rig.read_all()


def test_an_epoch_begins_before_the_gap_that_its_first_batch_follows():
    """Who claims to have records of an older epoch there is cut rather than believed."""
    rig = Rig()
    for offset, epoch in ((0, 1), (1, 1), (5, 2)):
        batch = encode_batch_at(offset, epoch)
        rig.log.append(batch, read_header(batch), offset, epoch)
    rig.write()
    rig.sync()
    assert list(rig.log.epochs) == [(1, 0), (2, 2)]
    rig.disk.remove(epochs_file(rig))

    assert list(reopened_with_gaps(rig).log.epochs) == [(1, 0), (2, 2)]


def test_where_there_can_be_no_gap_what_follows_one_is_cut():
    rig = with_gaps(0, 2, 5, 9)

    assert rig.reopened().log.end == 1


@pytest.mark.parametrize("byte", [0, 4, 7])
def test_an_offset_that_jumps_past_its_successors_is_no_gap(byte):
    """Were it believed, all that follows it would look torn, and be cut."""
    rig = with_gaps(0, 2, 5, 9)
    size = len(encode_batch_at(0))
    rig.disk.flip_bit(active_path(rig), size + byte, 6)
    rotten = read_file(rig.disk, active_path(rig))

    found = reopened_with_gaps(rig, durable_mark=10)

    assert found.log.damaged_at == 1
    assert read_file(rig.disk, active_path(rig)) == rotten


def test_gaps_excuse_no_damage():
    rig = with_gaps(0, 2, 5, 9)
    rig.disk.flip_bit(active_path(rig), 2 * len(encode_batch_at(0)) + 70, 0)

    assert reopened_with_gaps(rig, durable_mark=10).log.damaged_at == 3


# Damage that somebody else has noticed.


def test_a_whole_log_has_no_damage_wherever_one_looks():
    rig = filled(count=9, per_segment=3)

    for offset in range(rig.log.end):
        assert find_damage(rig.disk, rig.log, offset) == (None, False)


@pytest.mark.parametrize(("batch", "found"), [(0, 0), (1, 2), (2, 4)])
def test_damage_is_found_in_a_sealed_segment(batch, found):
    rig = filled(count=9, per_segment=3)
    size = len(make_batch(2))
    rig.disk.flip_bit(rig.log.segments[0].path(), batch * size + 70, 0)

    for offset in range(6):
        assert find_damage(rig.disk, rig.log, offset) == (found, False)
    assert find_damage(rig.disk, rig.log, 6)[0] is None, "another segment is not looked at"


def test_damage_is_found_in_the_active_segment():
    rig = filled(count=5, per_segment=100)
    rig.disk.flip_bit(active_path(rig), 3 * len(make_batch(2)) + 70, 0)

    assert find_damage(rig.disk, rig.log, 0) == (6, False)


def test_what_is_not_written_yet_is_not_missed():
    rig = filled(count=3, per_segment=100)
    rig.append(2)

    assert find_damage(rig.disk, rig.log, 6) == (None, False)


def test_what_was_written_and_is_gone_is_damage():
    rig = filled(count=3, per_segment=100)
    rig.disk.open(active_path(rig)).truncate(2 * len(make_batch(2)))

    assert find_damage(rig.disk, rig.log, 5) == (4, False)


def test_a_torn_end_of_a_sealed_segment_is_damage():
    rig = filled(count=9, per_segment=3)
    path = rig.log.segments[0].path()
    rig.disk.open(path).truncate(3 * len(make_batch(2)) - 1)

    assert find_damage(rig.disk, rig.log, 0) == (4, False)


def test_a_gap_is_no_damage_and_is_told_of():
    rig = with_gaps(0, 2, 5, 9)

    assert find_damage(rig.disk, rig.log, 3) == (None, True)


def test_a_gap_before_the_next_segment_is_told_of():
    rig = filled(count=9, per_segment=3)
    rig.disk.open(rig.log.segments[0].path()).truncate(2 * len(make_batch(2)))

    assert find_damage(rig.disk, rig.log, 0) == (None, True)


def test_a_last_batch_that_claims_offsets_of_the_next_segment_is_damage():
    rig = filled(count=9, per_segment=3)
    rig.disk.flip_bit(rig.log.segments[0].path(), 2 * len(make_batch(2)) + 7, 3)

    assert find_damage(rig.disk, rig.log, 0)[0] == 4


def test_below_the_log_there_is_nothing_to_look_at():
    rig = filled(count=9, per_segment=3)
    rig.log.advance_start(7)

    assert find_damage(rig.disk, rig.log, 3) == (None, False)


# What can be rebuilt.


def epochs_file(rig: Rig):
    return DIRECTORY / "leader-epoch-checkpoint"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"0\n0\n", b"0\n1\n1 8\n"])
def test_a_lost_epoch_history_is_rebuilt_from_the_batches(clean, content):
    rig = filled()
    assert list(rig.log.epochs) == [(0, 0), (1, 8), (2, 16)]
    if clean:
        stop_cleanly(rig)
    rig.disk.remove(epochs_file(rig))
    if content is not None:
        rig.disk.open(epochs_file(rig), create=True).write(0, [content])

    found = rig.reopened(clean=clean, durable_mark=rig.log.end)

    assert list(found.log.epochs) == list(rig.log.epochs)


def test_a_clean_start_knows_epochs_that_the_file_lost_in_a_power_loss():
    rig = filled(count=6, per_segment=100)
    old = b"0\n1\n0 0\n"  # its renaming was not durable when the power went
    file = rig.disk.open(epochs_file(rig), create=True)
    file.truncate(0)
    file.write(0, [old])
    recovered = rig.reopened()
    assert list(recovered.log.epochs) == [(0, 0), (1, 8)]
    stop_cleanly(recovered)

    found = rig.reopened(clean=True, durable_mark=rig.log.end)

    assert list(found.log.epochs) == [(0, 0), (1, 8)]


def test_an_epoch_whose_batches_were_torn_away_is_forgotten():
    rig = Rig()
    rig.store(2, epoch=0)
    rig.append(2, epoch=1)
    rig.write()
    file = rig.disk.open(active_path(rig))
    file.truncate(file.size() - 1)

    found = rig.reopened(durable_mark=2)

    assert list(found.log.epochs) == [(0, 0)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["none", "all lost", "newest lost", "all damaged"])
def test_the_producers_are_the_fold_of_the_log_whatever_is_left_of_the_snapshots(clean, how):
    rig = filled(count=10, per_segment=3)
    if clean:
        stop_cleanly(rig)
    snapshots = [name for name in rig.names() if name.endswith(".snapshot")]
    assert len(snapshots) == 3 + clean
    for name in {"none": [], "newest lost": snapshots[-1:]}.get(how, snapshots):
        if how == "all damaged":
            rig.disk.flip_bit(DIRECTORY / name, 12, 1)
        else:
            rig.disk.remove(DIRECTORY / name)

    found = rig.reopened(clean=clean, durable_mark=rig.log.end)

    assert found.log.producers == fold(rig)


def test_a_snapshot_of_a_tail_that_was_cut_is_removed_and_not_believed():
    rig = filled(count=4, per_segment=100)
    later = ProducerStates()
    later.note(read_header(make_batch(producer_id=99, producer_epoch=0, base_sequence=0)), 50)
    path = DIRECTORY / (file_stem(51) + ".snapshot")
    rig.disk.open(path, create=True).write(0, [later.encode()])

    found = rig.reopened(durable_mark=8)

    assert found.log.producers == fold(rig)
    assert not rig.disk.exists(path)


def test_the_snapshot_of_a_tail_that_was_cut_does_not_come_back():
    """The log grows up to where the snapshot was, and the power fails."""
    for seed in range(40):
        rig = filled(count=4, per_segment=100, seed=seed)
        later = ProducerStates()
        later.note(read_header(make_batch(producer_id=99, producer_epoch=0, base_sequence=0)), 9)
        rig.disk.open(DIRECTORY / (file_stem(10) + ".snapshot"), create=True).write(0, [later.encode()])
        rig.disk.sync_everything(DIRECTORY)

        found = rig.reopened(durable_mark=8)
        found.store(2)
        rig.disk.crash()

        assert found.reopened(durable_mark=10).log.producers == found.log.producers


def put_beside(rig: Rig, offset: int, *, producer_id: int = 99) -> list[str]:
    """Files of a history that is gone, at `offset`; their names."""
    producers = ProducerStates()
    header = read_header(make_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
    producers.note(header, max(offset - 1, 0))
    aborted = AbortedIndex()
    aborted.add(AbortedTransaction(producer_id, offset, offset + 1, offset + 2))
    contents = {
        ".snapshot": producers.encode(),
        ".txnindex": aborted.encode(),
        ".index": OFFSET_ENTRY.pack(1, 1),
        ".timeindex": TIME_ENTRY.pack(9, 1),
    }
    for suffix, content in contents.items():
        rig.disk.open(DIRECTORY / (file_stem(offset) + suffix), create=True).write(0, [content])
    rig.disk.sync_everything(DIRECTORY)
    return [file_stem(offset) + suffix for suffix in contents]


def test_what_lies_beside_segments_that_are_gone_is_removed():
    for seed in range(20):
        rig = filled(count=4, per_segment=100, seed=seed)
        names = put_beside(rig, 20)

        found = rig.reopened(durable_mark=8)
        found.store(2)
        rig.disk.crash()

        assert not set(names) & set(rig.names())


@pytest.mark.parametrize("start", [0, 50])
def test_a_log_without_a_segment_left_remembers_nothing(start):
    """All of it was cut, or it was to begin anew; then the process died."""
    for seed in range(40):
        rig = Rig(new_disk(seed))
        put_beside(rig, start + 2)
        put_beside(rig, 1, producer_id=98)
        note_epochs(rig, b"0\n2\n5 0\n6 1\n")

        found = rig.reopened(start=start)
        assert list(found.log.epochs) == []
        found.store(2, epoch=5)
        rig.disk.crash()
        again = found.reopened(durable_mark=start + 2, start=start)

        assert again.log.refusal is None
        assert list(again.log.epochs) == [(5, start)]
        assert len(again.log.producers) == 0
        assert not again.log.aborted(0, start + 2)


def note_epochs(rig: Rig, content: bytes) -> None:
    rig.disk.open(epochs_file(rig), create=True).write(0, [content])
    rig.disk.sync_everything(DIRECTORY)


def test_a_log_whose_segments_are_lost_keeps_what_lies_beside_them():
    rig = Rig()
    names = put_beside(rig, 2)

    found = rig.reopened(durable_mark=2)

    assert found.log.refusal is not None
    assert set(names) - {file_stem(0) + ".index"} <= set(rig.names())


def test_the_start_of_the_checkpoint_counts_inside_a_segment():
    rig = filled()

    found = rig.reopened(start=4)

    assert found.log.start == 4
    assert found.read_all() == rig.read_all()[2:]
    assert list(found.log.epochs) == [(0, 4), (1, 8), (2, 16)]


def test_a_log_begins_with_its_first_file_when_the_checkpoint_is_behind():
    rig = filled()
    for suffix in (".log", ".index", ".timeindex"):
        rig.disk.remove(DIRECTORY / (file_stem(0) + suffix))

    found = rig.reopened(start=2)

    assert found.log.start == 6
    assert found.read_all() == rig.read_all()[3:]


# Whatever comes.


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.lists(st.integers(0, 3), max_size=12))
def test_a_power_loss_at_any_moment_keeps_what_was_synced_and_invents_nothing(seed, crash, doings):
    rig = Rig(new_disk(seed, sector_bytes=32), segment_bytes=300, index_interval_bytes=0)
    chosen = random.Random(seed)
    appended: list[bytes] = []
    rig.disk.crash_after(crash * 5 + 1)
    try:
        for doing in doings:
            actions: list[Callable[[], object]] = [rig.write, rig.sync, rig.disk.write_back]
            if doing == 3:
                appended.append(
                    rig.append(
                        chosen.randint(1, 3),
                        size=chosen.choice((0, 100)),
                        producer_id=1,
                        producer_epoch=0,
                        base_sequence=rig.log.end,
                        epoch=len(appended) // 3,
                    )
                )
            else:
                actions[doing]()
    except SimulatedCrash:
        pass
    mark = rig.log.synced_end
    rig.disk.crash()

    found = rig.reopened(durable_mark=mark)

    assert found.log.refusal is None
    assert found.log.end >= mark
    assert found.read_all() == appended[: len(found.read_all())]
    assert found.log.producers == fold(found)


# Walking.


def test_walking_passes_over_chunk_borders(monkeypatch):
    monkeypatch.setattr("tidelog.log.segment._CHUNK_BYTES", 100)
    disk = new_disk()
    file = disk.open(DIRECTORY / "log", create=True)
    batches: list[bytes] = []
    for size in (10, 300, 0, 1, 77, 500):
        batch = make_batch(size=size)
        stamp(batch, len(batches), 0)
        batches.append(bytes(batch))
    file.write(0, [b"".join(batches)])

    found = [(header.base_offset, at) for header, at in walk(file, 0, file.size(), check=True)]

    assert found == [(n, sum(map(len, batches[:n]))) for n in range(len(batches))]


def test_walking_stops_at_a_batch_that_is_cut_off():
    disk = new_disk()
    file = disk.open(DIRECTORY / "log", create=True)
    first, second = make_batch(), make_batch()
    stamp(second, 1, 0)
    file.write(0, [first, second])

    for end in range(len(first), len(first) + len(second)):
        assert len(list(walk(file, 0, end))) == 1


def test_walking_stops_where_offsets_fall():
    disk = new_disk()
    file = disk.open(DIRECTORY / "log", create=True)
    batches = [encode_batch_at(offset) for offset in (5, 6, 3)]
    file.write(0, batches)

    assert [header.base_offset for header, _ in walk(file, 0, file.size())] == [5, 6]


def encode_batch_at(offset: int, epoch: int = 0) -> bytes:
    batch = make_batch()
    stamp(batch, offset, epoch)
    return bytes(batch)


# Logs that began anew, with what their leader told of producers.


def told(*, is_marked: bool = False) -> ProducerStates:
    states = ProducerStates()
    header = read_header(make_batch(producer_id=99, producer_epoch=0, base_sequence=0))
    states.note(header, 30)
    if is_marked:
        states.note_marker(header, Marker(commits=True, coordinator_epoch=1))
    return states


@pytest.mark.parametrize("base", [36, 40])
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_log_that_began_anew_knows_its_own_producers_and_those_it_was_told_of(base, is_marked):
    """At 36, its first batch holds what is deleted and the log's start, 40."""
    rig, expected = Rig(), told(is_marked=is_marked)
    note_producers(rig.disk, DIRECTORY, 40, expected.encode())
    rig = rig.reopened(start=40)
    batch = make_batch(6, producer_id=5, producer_epoch=0, base_sequence=0)
    stamp(batch, base, 0)
    rig.log.append(bytes(batch), read_header(batch), base, 0)
    rig.write()
    rig.sync()
    expected.note(read_header(batch), base)
    assert rig.log.producers == expected

    found = rig.reopened(start=40, watermark=3)

    assert found.log.producers == expected


def test_a_log_whose_files_end_before_its_start_keeps_what_it_was_told():
    rig = filled(count=4)
    note_producers(rig.disk, DIRECTORY, 40, told().encode())
    # A crash before its files were removed: they end at 8, and the snapshot is of another log.

    found = rig.reopened(start=40)

    assert (found.log.start, found.log.end) == (40, 40)
    assert found.log.producers == told()
    assert not found.log.lacks_producers


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_empty_log_lacks_producers_that_no_snapshot_tells_of(is_damaged):
    rig = Rig()
    if is_damaged:
        note_producers(rig.disk, DIRECTORY, 40, b"damaged")

    assert rig.reopened(start=40).log.lacks_producers
    assert not rig.reopened(start=0).log.lacks_producers


def test_a_log_with_batches_lacks_no_producers():
    rig = Rig().reopened(start=40)
    rig.store()

    assert not rig.log.lacks_producers
    assert not rig.reopened(start=40).log.lacks_producers
