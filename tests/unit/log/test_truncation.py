import random
from typing import Any

import pytest

from tests.support.compaction import DIRECTORY as COMPACTED
from tests.support.compaction import CompactedLog, compacted, new_log, record
from tests.unit.log.logs import DIRECTORY, Rig, new_disk
from tidelog.log.epochs import EpochHistory
from tidelog.log.recovery import open_log
from tidelog.log.retention import remove_segments
from tidelog.log.segment import walk
from tidelog.log.swap import commit_swap
from tidelog.log.truncation import cut_end, end_after_cut, remove_all
from tidelog.records import read_header
from tidelog.simulation.disk import SimulatedCrash


def history(rig: Rig, end: int) -> EpochHistory:
    epochs = EpochHistory(rig.log.epochs)
    epochs.cut_end(end)
    return epochs


def filled(seed: int = 0, batches: int = 20, **config: Any) -> tuple[Rig, list[bytes]]:
    """A log of several segments and epochs."""
    choose = random.Random(seed)
    rig = Rig(new_disk(seed), **config)
    stored = [
        rig.store(choose.choice((1, 3)), size=choose.choice((5, 50)), epoch=number // 6)
        for number in range(batches)
    ]
    return rig, stored


def ends(stored: list[bytes]) -> list[int]:
    return [0, *(read_header(batch).next_offset for batch in stored)]


@pytest.mark.parametrize("kept", range(21))
def test_what_lies_before_the_cut_stays_and_the_log_goes_on_from_there(kept):
    rig, stored = filled(segment_bytes=400)
    end = ends(stored)[kept]

    cut_end(rig.disk, DIRECTORY, end, history(rig, end))

    again = rig.reopened(durable_mark=end)
    assert again.log.end == end
    assert again.log.refusal is None
    assert again.read_all() == stored[:kept]
    assert list(again.log.epochs) == list(history(rig, end))
    more = again.store(epoch=9)
    rig.disk.crash()
    assert again.reopened(durable_mark=end).read_all() == [*stored[:kept], more]


def test_a_batch_across_the_cut_goes_as_a_whole():
    rig = Rig()
    first = rig.store(2)
    rig.store(4)

    cut_end(rig.disk, DIRECTORY, 4, history(rig, 4))

    assert rig.reopened(durable_mark=2).read_all() == [first]


def test_a_cut_behind_the_end_changes_nothing():
    rig, stored = filled(segment_bytes=400)
    end = rig.log.end

    cut_end(rig.disk, DIRECTORY, end + 5, history(rig, end + 5))

    assert rig.reopened(durable_mark=end).read_all() == stored


def test_an_emptied_log_may_begin_anywhere():
    rig, _ = filled(segment_bytes=400)

    remove_all(rig.disk, DIRECTORY, EpochHistory())

    again = rig.reopened(start=1000, durable_mark=0)
    assert (again.log.start, again.log.end, list(again.log.epochs)) == (1000, 1000, [])
    batch = again.store(epoch=7)
    assert again.read_all() == [batch]


@pytest.mark.parametrize("block", range(10))
def test_a_crash_at_any_moment_leaves_the_log_whole_up_to_some_batch(block):
    for seed in range(block * 30, block * 30 + 30):
        choose = random.Random(seed)
        rig, stored = filled(seed, segment_bytes=choose.choice((200, 400, 4000)))
        kept = choose.randrange(len(stored))
        end = ends(stored)[kept]
        rig.disk.crash_after(choose.randint(1, 30))
        try:
            cut_end(rig.disk, DIRECTORY, end, history(rig, end))
        except SimulatedCrash:
            pass
        rig.disk.crash()

        again = rig.reopened(durable_mark=end)

        assert again.log.refusal is None, f"seed {seed}"
        found = again.read_all()
        assert found == stored[: len(found)], f"seed {seed}"
        assert len(found) >= kept, f"seed {seed}"
        assert again.log.epochs.latest == (read_header(found[-1]).leader_epoch if found else -1)


@pytest.mark.parametrize(("end", "left"), [(0, 0), (1, 0), (2, 2), (4, 2), (6, 6), (9, 6)])
def test_the_mark_falls_to_where_the_log_will_end(end, left):
    """Batches go whole; a mark above the log would make the next start call it damaged."""
    rig = Rig()
    rig.store(2)
    rig.store(4)

    assert end_after_cut(rig.disk, DIRECTORY, end) == left

    cut_end(rig.disk, DIRECTORY, end, history(rig, end))
    again = rig.reopened(durable_mark=left)
    assert (again.log.end, again.log.refusal) == (left, None)


def test_the_mark_falls_below_a_gap():
    log = new_log(topic=compacted(segment_bytes=100_000))
    for key in ("a", "b", "c", "c", "c", "a"):
        log.append(record(key))
    log.roll()
    log.clean()

    assert [end_after_cut(log.disk, COMPACTED, end) for end in range(1, 7)] == [0, 2, 2, 2, 5, 6]


def test_an_emptied_log_that_is_cut_at_its_end_keeps_its_producers():
    rig = Rig(segment_bytes=100)
    rig.store(producer_id=1, producer_epoch=0, base_sequence=7)
    rig.log.roll()
    rig.write()
    remove_segments(rig.disk, rig.log.advance_start(1), 1)

    cut_end(rig.disk, DIRECTORY, 1, history(rig, 1))

    again = rig.reopened(start=1, durable_mark=1)
    assert again.log.producers == rig.log.producers


@pytest.mark.parametrize("start", [1, 5])
def test_a_log_that_lost_its_last_name_keeps_its_producers_if_they_are_its_own(start):
    """Retention removed all old files; the power failed, and the new one had no durable name."""
    rig = Rig(segment_bytes=100)
    rig.store(producer_id=1, producer_epoch=0, base_sequence=7)
    rig.log.roll()
    rig.write()
    for name in rig.names():
        if name.endswith(".log"):
            rig.disk.remove(DIRECTORY / name)

    again = rig.reopened(start=start, durable_mark=1)

    assert len(again.log.producers) == (1 if start == 1 else 0)


def decided(log: CompactedLog) -> None:
    """Compact all that is sealed as far as the decision; a full disk kept the rest from it."""
    work = log.compaction()
    for _ in work.map_keys():
        pass
    (group,) = work.groups()
    cleaned = log.write(work, group)
    assert cleaned is not None
    commit_swap(log.disk, COMPACTED, cleaned.segment.base)


@pytest.mark.parametrize("end", [0, 1, 3, 4, 5])
def test_a_swap_that_was_decided_brings_nothing_back_that_was_cut(end):
    log = new_log(topic=compacted(segment_bytes=100_000))
    for at in range(6):
        log.append(record(f"{at % 4}", f"{at}"))
        log.roll()
    decided(log)

    cut_end(log.disk, COMPACTED, end, EpochHistory())

    state = open_log(
        log.disk, COMPACTED, clean=False, durable_mark=0, start=0, index_interval_bytes=200, has_gaps=True
    )
    batches = [
        header.base_offset
        for segment in state.segments
        if state.created
        for header, _ in walk(segment.open(log.disk), 0, segment.size)
    ]
    assert batches == [at for at in (2, 3, 4, 5) if at < end]
    assert not [name for name in log.names() if name.endswith(".swap")]
