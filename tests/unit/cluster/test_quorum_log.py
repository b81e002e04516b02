"""The metadata log, on a disk whose threads work when the test says so."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.log.hands import Hands
from tidelog.cluster import quorum_log
from tidelog.cluster.quorum_log import METADATA_PARTITION, QuorumLog
from tidelog.controller.records import ProducerIdsGranted
from tidelog.errors import StorageError
from tidelog.host import Host, Path, read_file
from tidelog.log.closing import close_logs
from tidelog.log.directory import DURABLE_MARKS, DataDirectory
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import Offset
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.host import RefusingNetwork, SimulatedClock

ROOT = Path("/data")
EPOCH_BYTE = 15
"""The last one of a batch's leader epoch, which is not under its checksum."""


class Stage:
    """A metadata log with some synced records, one in each batch, noted as durable."""

    def __init__(self, reserve_bytes: int = 0, segment_bytes: int = 10**6) -> None:
        self.disk = SimulatedDisk(random.Random(0))
        self._settings = (reserve_bytes, segment_bytes)
        self.begin_process()

    def begin_process(self) -> None:
        """Another process, on the same disk; its log is not open yet."""
        reserve_bytes, segment_bytes = self._settings
        self.disk.kill()
        self.hands = Hands()
        self.fatal: list[BaseException] = []
        self.host = host = Host(
            clock=SimulatedClock(),
            disk=self.disk,
            offload=self.hands,
            network=RefusingNetwork(),
            random=random.Random(0),
        )
        self.directory = DataDirectory(host, ROOT, reserve_bytes=reserve_bytes)
        self.directory.open(1)
        self.rounds = Rounds(host, ROOT, self.fatal.append)
        self.log = QuorumLog(
            host,
            self.rounds,
            self.directory,
            TailBudget(10**6),
            on_synced=lambda end: None,
            on_disk_full=lambda full: None,
            segment_bytes=segment_bytes,
            before_mending=lambda: None,
        )

    async def fill(self, count: int) -> None:
        await self.finish(self.log.open(0))
        for number in range(count):
            self.log.append([ProducerIdsGranted(node=1, end=number)], epoch=1)
        await self.finish(self.rounds.drained())
        self.directory.durable_marks = {METADATA_PARTITION: count}
        self.directory.write_checkpoint(DURABLE_MARKS, self.directory.durable_marks)

    def stop(self) -> None:
        """Stop cleanly: the next start believes in the indexes, and scans nothing."""
        close_logs(self.disk, self.log.path, [self.log.log])
        self.directory.close(clean=True)

    def rot(self, record: int, byte: int = -1) -> None:
        """Flip a bit of one record's batch; all are equally long."""
        path = self.log.log.segments[0].path()
        size = len(read_file(self.disk, path)) // self.log.end
        self.disk.flip_bit(path, record * size + byte % size, 3)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        while not task.done():
            await self.hands.work_off()
        await task

    async def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let it come as far as the disk's thread."""
        task = asyncio.get_running_loop().create_task(work)
        while not self.hands.waiting:
            await asyncio.sleep(0)
        return task

    @property
    def mark(self) -> Offset:
        return self.directory.read_checkpoint(DURABLE_MARKS)[METADATA_PARTITION]


def on_stage(story: Callable[[Stage], Coroutine[Any, Any, None]], **settings: int) -> None:
    async def main() -> None:
        stage = Stage(**settings)
        await stage.fill(5)
        await story(stage)

    asyncio.run(main())


def test_a_cut_log_ends_where_it_was_cut_and_promises_no_more():
    async def story(stage: Stage) -> None:
        await stage.finish(stage.log.truncate(3))

        assert (stage.log.end, stage.mark) == (3, 3)
        assert [entry.end for entry in stage.log.waiting] == [1, 2, 3]

    on_stage(story)


def test_who_is_cancelled_while_the_log_is_cut_leaves_it_as_its_files_are():
    # A stop closes the log as it is known, and notes its end as durable: the next start would
    # take what was cut for damage.
    async def story(stage: Stage) -> None:
        cutting = await stage.begin(stage.log.truncate(3))

        tell = stage.hands.do()  # the files are cut, and the loop has not heard of it
        cutting.cancel()
        await asyncio.sleep(0)
        assert stage.directory.noting.locked(), "nobody notes what is no longer there"
        tell()
        with pytest.raises(asyncio.CancelledError):
            await cutting

        assert (stage.log.log.synced_end, stage.log.end, stage.mark) == (3, 3, 3)

    on_stage(story)


def test_who_is_cancelled_before_the_log_is_emptied_waits_for_it():
    async def story(stage: Stage) -> None:
        emptying = await stage.begin(stage.log.restart_at(40))

        emptying.cancel()
        await stage.hands.work_off()
        with pytest.raises(asyncio.CancelledError):
            await emptying

        assert (stage.log.log.start, stage.log.end, stage.mark) == (40, 40, 0)
        assert not stage.log.waiting

    on_stage(story)


def test_after_a_cut_that_failed_nothing_is_called_clean():
    async def story(stage: Stage) -> None:
        cutting = await stage.begin(stage.log.truncate(3))

        cutting.cancel()  # by a stop, which nobody tells of the failure
        stage.disk.fail_syncs(errno.EIO, times=1)
        await stage.hands.work_off()
        with pytest.raises(OSError, match="Input/output"):
            await cutting

        assert len(stage.fatal) == 1
        with pytest.raises(StorageError, match="the disk has failed"):
            await stage.rounds.drained()

    on_stage(story)


def test_a_full_disk_has_room_for_a_cut_and_for_records_in_the_reserve():
    async def story(stage: Stage) -> None:
        stage.disk.capacity_bytes = stage.disk.used_bytes

        await stage.finish(stage.log.truncate(3))
        stage.log.append([ProducerIdsGranted(node=1, end=9)], epoch=2)
        await stage.finish(stage.rounds.drained())

        assert (stage.log.log.synced_end, stage.log.end, stage.mark) == (4, 4, 3)
        assert not stage.fatal

    on_stage(story, reserve_bytes=4096)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_log, "FULL_DISK_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_cut_waits_for_room_on_a_disk_that_is_full_to_the_last_byte():
    async def story(stage: Stage) -> None:
        stage.disk.capacity_bytes = stage.disk.used_bytes
        cutting = asyncio.get_running_loop().create_task(stage.log.truncate(3))
        for _ in range(5):
            await stage.hands.work_off()
        assert not cutting.done()

        stage.disk.capacity_bytes = None
        while not cutting.done():
            await stage.hands.work_off()

        assert (stage.log.end, stage.mark) == (3, 3)
        assert not stage.fatal

    on_stage(story)


@pytest.mark.usefixtures("impatient")
def test_who_stops_while_a_cut_waits_for_room_leaves_nothing_as_clean():
    async def story(stage: Stage) -> None:
        stage.disk.capacity_bytes = stage.disk.used_bytes
        cutting = asyncio.get_running_loop().create_task(stage.log.truncate(3))
        await stage.hands.work_off()

        cutting.cancel()
        while not cutting.done():
            await stage.hands.work_off()

        assert cutting.cancelled()
        with pytest.raises(StorageError):
            await stage.rounds.drained()

    on_stage(story)


def test_trimmed_segments_are_gone_though_their_removal_cannot_be_noted(monkeypatch):
    async def story(stage: Stage) -> None:
        stage.disk.capacity_bytes = stage.disk.used_bytes
        monkeypatch.setattr(stage.directory, "raise_start", no_room)
        before = len(stage.log.log.segments)

        await stage.finish(stage.log.trim(4))

        assert stage.log.log.start == 4
        files = [name for name in stage.disk.list(stage.log.path) if name.endswith(".log")]
        assert len(files) == len(stage.log.log.segments) < before
        assert not stage.fatal

    on_stage(story, segment_bytes=100)


@pytest.mark.parametrize("rotten", [[2], [0, 3], [1, 4]])
def test_damage_that_the_newest_snapshot_has_is_not_missed(rotten):
    """The log begins before the snapshot ends, and inside of a file. A clean start scans none."""

    async def story(stage: Stage) -> None:
        stage.directory.raise_start(METADATA_PARTITION, 2)
        stage.stop()
        for record in rotten:
            stage.rot(record)
        stage.begin_process()

        await stage.finish(stage.log.open(4))

        log = stage.log.log
        assert log.refusal is None
        assert log.start <= 4 <= log.end
        assert [entry.start for entry in stage.log.waiting] == list(range(log.start, log.end))
        stage.log.append([ProducerIdsGranted(node=1, end=9)], epoch=1)
        await stage.finish(stage.rounds.drained())

    on_stage(story)


@pytest.mark.parametrize("byte", [-1, EPOCH_BYTE], ids=["record", "epoch"])
@pytest.mark.parametrize("change", [lambda log: log.truncate(3), QuorumLog.reopen])
def test_who_opens_a_log_again_does_not_take_damage_for_a_torn_tail(change, byte):
    async def story(stage: Stage) -> None:
        stage.rot(1, byte)

        await stage.finish(change(stage.log))

        assert stage.log.log.damaged_at == 1
        assert stage.log.log.refusal is not None

    on_stage(story)


def no_room(partition: object, start: Offset) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
