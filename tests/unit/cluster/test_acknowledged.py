"""Notes of what was acknowledged, on a disk whose threads work when the test says so."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tests.unit.log.hands import Hands
from tidelog.cluster.acknowledged import COPY_BYTES, FILE_NAME, SLOT_BYTES, AcknowledgedNote, Acknowledgements
from tidelog.host import Host, Path, read_file, replace_file
from tidelog.log.reserve import Reserve
from tidelog.model import Offset
from tidelog.raft.logview import UNKNOWN_END
from tidelog.raft.messages import Position
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk
from tidelog.simulation.host import RefusingNetwork, SimulatedClock

ROOT = Path("/data")


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(0))
    disk.make_directory(ROOT)
    return disk


def spoil(disk: SimulatedDisk, slot: int, copies: Sequence[int] = (0, 1)) -> None:
    """Rot a bit of some copies of the note in a place."""
    for copy in copies:
        disk.flip_bit(ROOT / FILE_NAME, slot * SLOT_BYTES + copy * COPY_BYTES + 5, 3)


def test_the_last_note_is_found_again(disk):
    note = AcknowledgedNote(disk, ROOT)
    assert note.read() is None
    note.begin(Position(1, 2))
    for end in range(3, 9):
        note.write(Position(1, end))

        assert AcknowledgedNote(disk, ROOT).read() == Position(1, end)


def test_a_note_may_say_less_than_the_one_before(disk):
    note = AcknowledgedNote(disk, ROOT)
    note.begin(Position(3, 9))

    note.write(Position(2, 5))

    assert AcknowledgedNote(disk, ROOT).read() == Position(2, 5)


def written(disk: SimulatedDisk, writes: int) -> AcknowledgedNote:
    note = AcknowledgedNote(disk, ROOT)
    note.begin(Position(1, 0))
    for end in range(1, writes + 1):
        note.write(Position(1, end))
    return note


@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("copy", [0, 1])
def test_a_note_of_which_one_copy_rots_still_counts(disk, writes, copy):
    written(disk, writes)

    spoil(disk, writes % 2, [copy])  # two were written at the beginning, so the last is there

    assert AcknowledgedNote(disk, ROOT).read() == Position(1, writes)


@pytest.mark.parametrize("slot", [0, 1])
def test_the_note_before_a_rotten_one_does_not_count(disk, slot):
    """It says less than others may have heard; which of the two is the newer one, nobody knows."""
    written(disk, 3)

    spoil(disk, slot)

    with pytest.raises(ValueError, match="damaged"):
        AcknowledgedNote(disk, ROOT).read()


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_torn_note_leaves_the_one_before_or_counts(disk, writes):
    """Wherever the new bytes end and the old ones begin: a power loss is not rot."""
    note = written(disk, writes - 1)
    before = read_file(disk, ROOT / FILE_NAME)
    note.write(Position(1, writes))
    after = read_file(disk, ROOT / FILE_NAME)
    at = writes % 2 * SLOT_BYTES
    found = []
    for cut in range(at, at + SLOT_BYTES + 1):
        torn = before[:at] + after[at:cut] + before[cut:]
        replace_file(disk, ROOT / FILE_NAME, torn)
        position = AcknowledgedNote(disk, ROOT).read()
        assert position is not None
        found.append(position)

    assert found == sorted(found)
    assert {*found} == {Position(1, writes - 1), Position(1, writes)}


def test_if_no_note_is_left_that_is_said(disk):
    AcknowledgedNote(disk, ROOT).begin(Position(1, 7))
    spoil(disk, 0)
    spoil(disk, 1)

    with pytest.raises(ValueError, match="damaged"):
        AcknowledgedNote(disk, ROOT).read()


def test_a_note_without_a_second_copy_is_read(disk):
    """As an earlier version has written it."""
    written(disk, 2)
    file = disk.open(ROOT / FILE_NAME)
    for slot in (0, 1):
        file.write(slot * SLOT_BYTES + COPY_BYTES, [bytes(SLOT_BYTES - COPY_BYTES)])

    assert AcknowledgedNote(disk, ROOT).read() == Position(1, 2)


class Stage:
    """Acknowledgements of a log, and what was told of them."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.hands = Hands()
        self.told: list[Offset] = []
        self.tasks: list[asyncio.Task[None]] = []
        host = Host(
            clock=SimulatedClock(),
            disk=disk,
            offload=self.hands,
            network=RefusingNetwork(),
            random=random.Random(0),
        )
        self.acknowledgements = Acknowledgements(
            host, ROOT, Reserve(disk, ROOT, 0), on_noted=self.told.append, spawn=self._spawn
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        while not task.done():
            await self.hands.work_off()
        await task

    @property
    def on_disk(self) -> Position | None:
        return AcknowledgedNote(self.disk, ROOT).read()


def on_stage(disk: SimulatedDisk, story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        stage = Stage(disk)
        stage.acknowledgements.find(4)
        await stage.finish(stage.acknowledgements.begin(Position(1, 3)))
        await story(stage)

    asyncio.run(main())


def test_nobody_hears_what_is_synced_before_it_is_noted(disk):
    async def story(stage: Stage) -> None:
        stage.acknowledgements.synced(Position(1, 5))
        await asyncio.sleep(0)
        assert stage.told == []

        await stage.hands.work_off()

        assert (stage.told, stage.on_disk) == ([5], Position(1, 5))

    on_stage(disk, story)


def test_one_note_covers_all_that_was_synced_while_the_last_was_written(disk):
    async def story(stage: Stage) -> None:
        for end in (5, 6, 7, 8):
            stage.acknowledgements.synced(Position(1, end))
            await asyncio.sleep(0)

        await stage.hands.work_off()

        assert stage.told == [5, 8]

    on_stage(disk, story)


def test_what_was_synced_before_a_cut_is_not_told_after_it(disk):
    async def story(stage: Stage) -> None:
        stage.acknowledgements.synced(Position(1, 5))
        await asyncio.sleep(0)
        tell = stage.hands.do()  # it is written, and the loop has not heard of it
        lowering = asyncio.ensure_future(stage.acknowledgements.lower(Position(1, 4)))
        await asyncio.sleep(0)
        tell()
        while not lowering.done():
            await stage.hands.work_off()
            await asyncio.sleep(0)
        stage.acknowledgements.cut()
        await stage.hands.work_off()

        assert (stage.told, stage.on_disk) == ([4], Position(1, 4))

    on_stage(disk, story)


def test_a_note_is_lowered_before_the_log_is_cut_and_not_raised_until_it_is(disk):
    async def story(stage: Stage) -> None:
        stage.acknowledgements.synced(Position(1, 9))
        await stage.hands.work_off()

        await stage.finish(stage.acknowledgements.lower(Position(1, 4)))
        stage.acknowledgements.synced(Position(1, 9))
        await stage.hands.work_off()
        assert (stage.told, stage.on_disk) == ([9], Position(1, 4))

        stage.acknowledgements.cut()
        stage.acknowledgements.synced(Position(2, 6))
        await stage.hands.work_off()
        assert (stage.told, stage.on_disk) == ([9, 4, 6], Position(2, 6))

    on_stage(disk, story)


@pytest.mark.parametrize("seed", range(20))
def test_a_note_that_a_start_goes_by_is_durable(seed):
    """The process before it may have ended between the write of a note and its sync."""
    disk = SimulatedDisk(random.Random(seed))
    disk.make_directory(ROOT)
    note = written(disk, 3)
    disk.sync_everything(ROOT)
    disk.crash_after(2)
    with pytest.raises(SimulatedCrash):
        note.write(Position(1, 4))
    disk.kill()

    async def main() -> Stage:
        stage = Stage(disk)
        stage.acknowledgements.find(4)
        await stage.finish(stage.acknowledgements.begin(Position(1, 4)))
        return stage

    stage = asyncio.run(main())
    assert stage.acknowledgements.noted == Position(1, 4)
    disk.crash()

    assert stage.on_disk == Position(1, 4)


def test_damage_without_a_note_is_noted_before_it_is_cut(disk):
    async def main() -> None:
        stage = Stage(disk)
        stage.acknowledgements.find(4)

        stage.acknowledgements.note_loss()

        assert stage.on_disk == Position(4, UNKNOWN_END)

    asyncio.run(main())


def test_a_loss_leaves_a_note_as_it_is(disk):
    async def story(stage: Stage) -> None:
        stage.acknowledgements.note_loss()

        assert stage.on_disk == Position(1, 3)

    on_stage(disk, story)
