import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.log.hands import Hands
from tests.unit.log.logs import make_batch
from tests.unit.partition.test_driver import Stage, run
from tidelog.errors import StorageError
from tidelog.host import read_file
from tidelog.log.producers import ProducerStates
from tidelog.model import Offset
from tidelog.partition import mending
from tidelog.partition.follower import NO_PURGES, BeginAnew
from tidelog.records import Record, encode_batch, read_header, stamp

BATCH_BYTES = len(encode_batch([Record(value=b"v", timestamp_ms=0)]))


async def finish(work: Coroutine[Any, Any, None], hands: Hands) -> None:
    """Let the disk's threads work until `work` is done."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        await hands.work_off()
    await task


class Follower(Stage):
    """A partition that follows node 2, and holds some batches of one record each."""

    def __init__(self, **config: Any) -> None:
        super().__init__(in_sync=(), **config)
        self.partition.is_copy = True
        self.partition.follow(3, 2)
        self.noted: list[Offset] = []
        self.synced_end: Offset = -1

    def fetch(self, count: int, epoch: int = 3) -> None:
        for _ in range(count):
            batch = encode_batch([Record(value=b"v", timestamp_ms=self.clock.wall_ms())])
            stamp(batch, self.partition.log.end, epoch)
            self.partition.append_fetched(memoryview(batch), len(batch), has_gaps=False)

    async def settle(self) -> None:
        await finish(self.partition._rounds.drained(), self.hands)

    def note(self, mark: Offset, synced_end: Offset) -> None:
        self.noted.append(mark)
        self.synced_end = synced_end

    def note_anew(self, change: BeginAnew) -> None:
        self.noted.append(change.start)


def follow(story: Callable[[Follower], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def main() -> None:
        await story(Follower(**config))

    run(main)


def test_a_cut_log_ends_where_it_was_cut_and_grows_on_from_there():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(5)
        await stage.settle()

        await finish(partition.mending.cut(3, stage.note), stage.hands)
        stage.fetch(2, epoch=3)
        await stage.settle()

        assert stage.noted == [3], "what follows is no longer promised"
        assert stage.synced_end == 0, "the next checkpoint notes it"
        assert (partition.log.synced_end, partition.log.end) == (5, 5)
        assert len(stage.read()) > 0

    follow(story)


def test_what_was_not_written_yet_is_gone_with_a_cut():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(5)

        await finish(partition.mending.cut(3, stage.note), stage.hands)

        assert partition.log.end <= 3
        assert partition.log.end == partition.log.synced_end, "the log is what its files hold"

    follow(story)


def test_a_log_begun_anew_is_empty_and_begins_where_the_leader_does():
    async def story(stage: Follower) -> None:
        stage.fetch(5)
        await stage.settle()

        mending = stage.partition.mending
        await finish(mending.begin_anew(BeginAnew(40, 30, 2), stage.note_anew), stage.hands)

        log = stage.partition.log
        assert (log.start, log.end, len(log.epochs)) == (40, 40, 0)
        assert stage.partition.purges.floor == 30
        assert stage.partition.follower is not None and stage.partition.follower.purges == 2
        assert stage.partition.high_watermark == 40

    follow(story)


def written_by(producer_id: int, last_offset: Offset) -> ProducerStates:
    """One batch of a producer, of one record."""
    batch = make_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
    states = ProducerStates()
    states.note(read_header(batch), last_offset)
    return states


def test_a_log_begun_anew_knows_who_wrote_what_is_deleted_and_so_does_the_next_start():
    async def story(stage: Follower) -> None:
        partition, told = stage.partition, written_by(7, 30)
        await finish(partition.mending.begin_anew(BeginAnew(40), stage.note_anew), stage.hands)
        lacked = partition.log.lacks_producers

        change = BeginAnew(40, producers=told.encode())
        await finish(partition.mending.begin_anew(change, stage.note_anew), stage.hands)

        assert partition.log.producers == told
        assert (lacked, partition.log.lacks_producers) == (True, False)
        stage.disk.crash()
        found = partition.mending._open(40)
        assert (found.producers, found.lacks_producers) == (told, False)

    follow(story)


def test_producers_that_cannot_be_read_are_asked_for_once():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        change = BeginAnew(40, producers=b"of a later release")
        await finish(partition.mending.begin_anew(change, stage.note_anew), stage.hands)

        assert len(partition.log.producers) == 0
        assert not partition.log.lacks_producers

    follow(story)


def test_a_log_begun_anew_inside_of_a_batch_takes_that_batch():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        batch = stage.batch(10)
        stamp(batch, 0, 3)
        await finish(partition.mending.begin_anew(BeginAnew(5), stage.note_anew), stage.hands)

        partition.append_fetched(memoryview(batch), len(batch), has_gaps=False)
        await stage.settle()

        assert (partition.log.start, partition.held_end, partition.log.end) == (5, 10, 10)

    follow(story)


def test_a_full_disk_leaves_a_log_begun_inside_of_a_batch_empty():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        batch = stage.batch(10)
        stamp(batch, 0, 3)
        await finish(partition.mending.begin_anew(BeginAnew(5), stage.note_anew), stage.hands)
        stage.squeeze(0)

        partition.append_fetched(memoryview(batch), len(batch), has_gaps=False)
        await finish(partition._rounds.written(), stage.hands)
        await finish(partition.mending.quiet(), stage.hands)

        assert (partition.log.start, partition.log.end) == (5, 5)
        assert partition.log.damaged_at is None
        stage.squeeze(10**9)
        partition.retry_full_disk(10**9)
        partition.append_fetched(memoryview(batch), len(batch), has_gaps=False)
        await stage.settle()
        assert (partition.log.start, partition.held_end) == (5, 10)

    follow(story)


FIELDS = {"offset": 7, "length": 11, "epoch": 15, "checksum": 20, "records": 65}
"""A byte of each in a batch."""


@pytest.mark.parametrize("byte", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("at", [3, 4, 5])
@pytest.mark.parametrize("end", [5, 6])
def test_rot_in_what_a_cut_leaves_is_damage_and_no_torn_tail(end, at, byte):
    """Segments hold three batches; the cut lies in the second one, or at its end."""

    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(9)
        await stage.settle()
        partition.learn_watermark(9)
        size = len(stage.read(8))
        path = partition.log.segments[1].path()
        before = read_file(stage.disk, path)
        stage.disk.flip_bit(path, (at - 3) * size + byte, 0)

        await finish(partition.mending.cut(end, stage.note), stage.hands)

        log = partition.log
        assert stage.synced_end == end, "the segment is sealed no more"
        if at >= end:  # the rot goes with the cut
            assert (log.end, log.damaged_at) == (end, None)
            return
        assert (log.end, log.damaged_at) == (end, at)
        assert stage.noted == [end], "a start finds it damaged, too"
        assert partition.high_watermark == end
        stage.disk.flip_bit(path, (at - 3) * size + byte, 0)
        assert read_file(stage.disk, path)[: size * (end - 3)] == before[: size * (end - 3)]
        stage.disk.flip_bit(path, (at - 3) * size + byte, 0)

        await finish(partition.mending.cut(at, stage.note), stage.hands)  # nobody counts on it
        assert (partition.log.end, partition.log.refusal) == (at, None)
        stage.fetch(9 - at)
        await stage.settle()
        assert read_file(stage.disk, path)[: len(before)] == before

    follow(story, segment_bytes=3 * BATCH_BYTES)


@pytest.mark.parametrize("byte", FIELDS.values(), ids=FIELDS)
def test_rot_is_no_torn_tail_when_a_full_disk_keeps_a_cut_from_being_done(byte):
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(9)
        await stage.settle()
        path = partition.log.segments[1].path()
        stage.disk.flip_bit(path, byte, 0)
        stage.squeeze(0)  # what is removed makes no room for the history of epochs

        await finish(partition.mending.cut(5, lambda *_: stage.squeeze(-1000)), stage.hands)

        assert partition.log.damaged_at == 3

    follow(story, segment_bytes=3 * BATCH_BYTES)


def test_a_batch_below_the_start_may_be_of_an_epoch_that_is_forgotten():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(2, epoch=1)
        stage.fetch(4, epoch=3)
        await stage.settle()
        partition.log.advance_start(3)

        await finish(partition.mending.cut(5, stage.note), stage.hands)

        assert (partition.log.start, partition.log.end) == (3, 5)
        assert partition.log.damaged_at is None

    follow(story)


def test_nothing_is_appended_while_a_log_is_cut():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(5)
        await stage.settle()
        cutting = asyncio.get_running_loop().create_task(partition.mending.cut(3, stage.note))
        await asyncio.sleep(0)

        assert partition.mending.is_busy
        with pytest.raises(StorageError, match="being cut"):
            stage.fetch(1)

        quiet = asyncio.get_running_loop().create_task(partition.mending.quiet())
        while not cutting.done():
            assert not quiet.done(), "nobody leads or follows with it meanwhile"
            await stage.hands.work_off()
        await quiet
        stage.fetch(1)

    follow(story)


def test_who_is_cancelled_while_a_log_is_cut_leaves_it_as_its_files_are():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(5)
        await stage.settle()
        cutting = asyncio.get_running_loop().create_task(partition.mending.cut(3, stage.note))
        while not stage.hands.waiting:
            await asyncio.sleep(0)

        tell = stage.hands.do()  # the files are cut, and the loop has not heard of it
        cutting.cancel()
        await asyncio.sleep(0)
        assert partition.mending.is_changing
        tell()
        with pytest.raises(asyncio.CancelledError):
            await cutting

        assert (partition.log.synced_end, partition.log.end) == (3, 3)

    follow(story)


def test_a_full_disk_in_the_middle_of_a_cut_leaves_what_the_files_hold():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        stage.fetch(5)
        await stage.settle()

        def full(mark: Offset, synced_end: Offset) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        await finish(partition.mending.cut(3, full), stage.hands)

        assert partition.log.end == 5, "nothing was cut"
        assert partition.disk_full
        with pytest.raises(StorageError, match="full"):
            stage.fetch(1)
        partition.retry_full_disk(1 << 30)
        await finish(partition.mending.cut(3, stage.note), stage.hands)
        assert partition.log.end == 3

    follow(story)


def test_a_cut_without_descriptors_waits_until_the_log_can_be_opened(monkeypatch):
    monkeypatch.setattr(mending, "_RETRY_SECONDS", 0)

    async def story(stage: Follower) -> None:
        partition, disk, hands = stage.partition, stage.disk, stage.hands
        stage.fetch(5)
        await stage.settle()
        disk.descriptors_max = 0

        cutting = asyncio.get_running_loop().create_task(partition.mending.cut(3, stage.note))
        while not partition.disk_full:
            await asyncio.sleep(0)
            while hands.waiting and not partition.disk_full:
                await hands.work()
        for _ in range(5):
            await hands.work()
        assert not cutting.done()
        disk.descriptors_max = None
        while not cutting.done():
            await hands.work_off()

        await cutting
        assert partition.log.end == 5, "nothing was cut"
        partition.retry_full_disk(1 << 30)
        await finish(partition.mending.cut(3, stage.note), hands)
        assert partition.log.end == 3

    follow(story)


def test_any_other_failure_of_a_cut_is_raised():
    async def story(stage: Follower) -> None:
        stage.fetch(5)
        await stage.settle()

        def broken(mark: Offset, synced_end: Offset) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with pytest.raises(OSError, match="Input/output"):
            await finish(stage.partition.mending.cut(3, broken), stage.hands)

    follow(story)


def test_a_followers_log_that_was_opened_again_is_told_of():
    async def story(stage: Follower) -> None:
        partition = stage.partition
        told: list[Offset] = []
        partition.on_reopened = lambda p: told.append(p.log.end)
        stage.fetch(2)
        await stage.settle()
        stage.squeeze(0)
        stage.fetch(3)
        while not told:
            await stage.hands.work_off()

        assert told == [2]
        assert partition.log.end == 2
        assert partition.high_watermark <= 2

    follow(story)


def test_a_log_that_a_full_disk_keeps_from_beginning_anew_says_that_some_of_it_is_gone():
    """Views of it, and whoever saw its watermark, must not take it for the log that it was."""

    async def story(stage: Follower) -> None:
        partition, told = stage.partition, written_by(7, 30)
        stage.fetch(5)
        await stage.settle()
        stage.squeeze(0)

        change = BeginAnew(40, 30, 2, producers=told.encode())
        await finish(partition.mending.begin_anew(change, stage.note_anew), stage.hands)

        assert partition.log.end < 5
        assert partition.log.is_anew
        assert partition.follower is not None and partition.follower.purges == NO_PURGES
        assert partition.purges.floor == 0

    follow(story)
