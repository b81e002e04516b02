import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.log.hands import Hands
from tests.unit.log.logs import DIRECTORY, Rig, new_disk
from tidelog.config import TopicConfig
from tidelog.errors import StorageError
from tidelog.host import Host, Lane
from tidelog.log.log import Log
from tidelog.log.recovery import open_log
from tidelog.log.rounds import SYNC_EACH_MAX, Rounds
from tidelog.log.steps import DiskFull
from tidelog.log.tail import TailBudget
from tidelog.model import Offset
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.host import RefusingNetwork, SimulatedClock

ROOT = DIRECTORY.parent


class Owner:
    """A member that notes what it is told."""

    def __init__(
        self, rig: Rig, *, syncs: bool = True, awaits_written: bool = False, catches_up: bool = False
    ) -> None:
        self.rig = rig
        self.catches_up = catches_up
        self.log = rig.log
        self.syncs = syncs
        self.awaits_written = awaits_written
        self.told: list[tuple[str, Offset]] = []
        self.full: DiskFull | None = None

    def on_written(self, end: Offset) -> None:
        self.told.append(("written", end))

    def on_synced(self, end: Offset) -> None:
        self.told.append(("synced", end))

    def on_disk_full(self, full: DiskFull) -> None:
        self.full = full
        self.log.drop_writes()


class Bench:
    """Rounds over some logs of one disk."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk if disk is not None else new_disk()
        self.hands = Hands()
        self.fatal: list[BaseException] = []
        host = Host(
            clock=SimulatedClock(),
            disk=self.disk,
            offload=self.hands,
            network=RefusingNetwork(),
            random=None,  # type: ignore[arg-type]
        )
        self.rounds = Rounds(host, ROOT, self.fatal.append)

    def owner(self, name: str = "tide-0", **options: Any) -> Owner:
        rig = Rig.__new__(Rig)
        directory = ROOT / name
        self.disk.make_directory(directory)
        rig.disk, rig.config, rig.budget = self.disk, TopicConfig(), TailBudget(10**6)
        state = open_log(
            self.disk, directory, clean=False, durable_mark=0, start=0, index_interval_bytes=4096
        )
        rig.log = Log(directory, rig.config, rig.budget, state)
        return Owner(rig, **options)

    def append(self, owner: Owner, count: int = 1, **fields: Any) -> None:
        owner.rig.append(count, **fields)
        self.rounds.mark(owner)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


# Group commit.


def test_all_appends_of_a_turn_share_one_write_and_one_sync():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.disk.counts.clear()

        for _ in range(100):
            bench.append(owner)
        await bench.hands.work_off()

        assert bench.rounds.write_rounds == bench.rounds.sync_rounds == 1
        assert bench.disk.counts["datasync"] == 1
        assert owner.told == [("written", 100), ("synced", 100)]

    run(main)


def test_what_comes_during_a_round_goes_together_in_the_next():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner)
        await asyncio.sleep(0)
        for _ in range(50):
            bench.append(owner)
            await asyncio.sleep(0)

        await bench.hands.work_off()

        assert bench.rounds.write_rounds == 2
        assert [told for told in owner.told if told[0] == "synced"] == [("synced", 1), ("synced", 51)]

    run(main)


def test_logs_share_a_round():
    async def main() -> None:
        bench = Bench()
        owners = [bench.owner(f"tide-{number}") for number in range(20)]
        bench.disk.counts.clear()

        for owner in owners:
            bench.append(owner)
        await bench.hands.work_off()

        assert bench.rounds.write_rounds == 1
        assert all(("synced", 1) in owner.told for owner in owners)

    run(main)


def test_many_dirty_files_are_synced_by_one_sync_of_the_file_system():
    async def main() -> None:
        bench = Bench()
        owners = [bench.owner(f"tide-{number}") for number in range(SYNC_EACH_MAX + 1)]
        bench.disk.counts.clear()

        for owner in owners:
            bench.append(owner)
        await bench.hands.work_off()

        assert bench.disk.counts["sync_everything"] == 1
        assert bench.disk.counts["datasync"] == 0

    run(main)


def test_a_large_write_leaves_its_sync_to_the_other_lane_so_that_writes_go_on():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, size=100_000)
        await bench.hands.work(Lane.WRITE)
        assert owner.told == [("written", 1)]

        bench.append(owner, size=100_000)
        await bench.hands.work(Lane.WRITE)
        assert owner.told == [("written", 1), ("written", 2)]

        await bench.hands.work(Lane.SYNC)
        assert owner.told[2:] == [("synced", 1)], "the sync began before the second write"
        await bench.hands.work_off()
        assert owner.told[3:] == [("synced", 2)]

    run(main)


def test_who_waits_for_the_write_alone_need_not_wait_for_a_sync():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner(awaits_written=True)
        bench.append(owner)

        await bench.hands.work(Lane.WRITE)

        assert owner.told == [("written", 1)]

    run(main)


def test_a_log_that_needs_no_sync_gets_none_until_much_is_unsynced(monkeypatch):
    monkeypatch.setattr("tidelog.log.rounds.UNSYNCED_BYTES_MAX", 10_000)

    async def main() -> None:
        bench = Bench()
        owner = bench.owner(syncs=False)
        bench.append(owner)
        await bench.hands.work_off()
        assert (bench.rounds.sync_rounds, owner.told) == (0, [("written", 1)])

        for _ in range(11):
            bench.append(owner, size=1000)
        await bench.hands.work_off()
        assert bench.rounds.sync_rounds == 1

    run(main)


def test_a_sync_that_is_wanted_while_another_thread_writes_and_syncs_comes_after_it():
    async def main() -> None:
        bench = Bench()
        idle, busy = bench.owner("tide-0", syncs=False), bench.owner("tide-1")
        bench.append(idle)
        await bench.hands.work_off()
        bench.append(busy)
        await asyncio.sleep(0)
        assert bench.rounds.sync_rounds == 1

        bench.rounds.sync(idle)
        await bench.hands.work_off()

        assert idle.told == [("written", 1), ("synced", 1)]
        await asyncio.wait_for(bench.rounds.drained(), 1)

    run(main)


@pytest.mark.parametrize("seed", range(8))
def test_the_name_of_a_file_that_was_left_unsynced_is_durable_with_its_first_synced_bytes(seed):
    async def main() -> None:
        bench = Bench(new_disk(seed))
        owner = bench.owner(syncs=False)
        bench.disk.sync_everything(ROOT)
        bench.append(owner)  # makes the file
        await bench.hands.work_off()
        owner.syncs = True
        bench.append(owner)
        await bench.hands.work_off()
        assert owner.told[-1] == ("synced", 2)

        bench.disk.crash()

        found = open_log(
            bench.disk, owner.log.directory, clean=False, durable_mark=0, start=0, index_interval_bytes=4096
        )
        assert found.end == 2

    run(main)


def test_nobody_is_told_of_a_sync_before_the_bytes_are_durable():
    async def main() -> None:
        for seed in range(20):
            bench = Bench(new_disk(seed))
            owner = bench.owner()
            for size in (10, 100_000):
                bench.append(owner, size=size)
                await bench.hands.work_off()
            end = owner.told[-1][1]

            bench.disk.crash()

            state = open_log(
                bench.disk,
                owner.log.directory,
                clean=False,
                durable_mark=0,
                start=0,
                index_interval_bytes=4096,
            )
            assert state.end == end == 2

    run(main)


# Waiting.


def test_written_waits_for_all_that_was_marked_and_for_nothing_else():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        await asyncio.wait_for(bench.rounds.written(), 1)

        bench.append(owner)
        await asyncio.sleep(0)  # its round has begun
        bench.append(owner)
        waiting = asyncio.ensure_future(bench.rounds.written())
        await bench.hands.work()
        assert not waiting.done(), "the second append is not written yet"
        bench.append(owner)
        await bench.hands.work()

        assert waiting.done()

    run(main)


def test_nobody_waits_for_a_round_of_logs_that_were_forgotten():
    async def main() -> None:
        bench = Bench()
        owner, other = bench.owner("tide-0"), bench.owner("tide-1")
        bench.append(other)
        await asyncio.sleep(0)  # a round is under way
        bench.append(owner)
        waiting = asyncio.ensure_future(bench.rounds.written())
        await asyncio.sleep(0)

        bench.rounds.forget(owner)
        await bench.hands.work_off()

        assert waiting.done()

    run(main)


def test_drained_waits_until_everything_is_synced():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, size=100_000)
        waiting = asyncio.ensure_future(bench.rounds.drained())
        await bench.hands.work(Lane.WRITE)
        assert not waiting.done()

        await bench.hands.work_off()

        assert waiting.done()
        assert owner.log.synced_end == 1

    run(main)


def test_a_mark_without_anything_to_write_holds_nobody_up():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        owner.log.take_writes()  # the making of its first file
        bench.rounds.mark(owner)
        await asyncio.wait_for(bench.rounds.written(), 1)
        await asyncio.wait_for(bench.rounds.drained(), 1)
        assert bench.rounds.write_rounds == 0

        owner = bench.owner("tide-1")
        bench.append(owner)
        await bench.hands.work_off()
        assert owner.told[-1] == ("synced", 1)

    run(main)


def test_a_forgotten_log_starts_no_round():
    async def main() -> None:
        bench = Bench()
        owner, other = bench.owner("tide-0"), bench.owner("tide-1")
        bench.append(owner)
        bench.append(other)

        bench.rounds.forget(owner)
        await bench.hands.work_off()

        assert owner.told == []
        assert other.told[-1] == ("synced", 1)
        await asyncio.wait_for(bench.rounds.drained(), 1)

    run(main)


def test_a_log_replaced_during_its_round_is_told_nothing_of_the_old_one():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, 5)
        await asyncio.sleep(0)
        owner.log = bench.owner("tide-1").log

        await bench.hands.work_off()

        assert owner.told == []
        assert owner.log.written_end == 0

    run(main)


# Failures.


@pytest.mark.parametrize("size", [10, 100_000], ids=["in one thread", "in its own lane"])
def test_a_failed_sync_is_fatal_and_is_never_tried_again(size):
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, size=size)
        bench.disk.fail_syncs(times=1)
        await bench.hands.work_off()

        assert [type(error) for error in bench.fatal] == [OSError]
        bench.disk.counts.clear()
        bench.append(owner, size=size)
        await bench.hands.work_off()

        assert bench.disk.counts["datasync"] + bench.disk.counts["sync_everything"] == 0
        assert "synced" not in dict(owner.told)
        assert owner.log.synced_end == 0

    run(main)


def test_a_write_that_ends_after_a_failed_sync_starts_no_other_sync():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, size=100_000)
        await bench.hands.work(Lane.WRITE)
        bench.append(owner, size=100_000)
        await asyncio.sleep(0)
        bench.disk.fail_syncs(times=1)

        await bench.hands.work(Lane.SYNC)
        await bench.hands.work_off()  # the second write ends well

        assert len(bench.fatal) == 1
        assert owner.told == [("written", 1)]

    run(main)


def test_a_sync_counts_for_nothing_after_one_has_failed_in_the_other_lane():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, size=100_000)
        await bench.hands.work(Lane.WRITE)
        owner.log.roll()  # the next write begins with a sync of what the sync lane is to sync
        bench.append(owner)
        await asyncio.sleep(0)
        bench.disk.fail_syncs(times=1)

        tell_of_write = bench.hands.do(Lane.WRITE)
        tell_of_sync = bench.hands.do(Lane.SYNC)  # "succeeds": the kernel has told its story
        tell_of_sync()
        tell_of_write()
        await bench.hands.work_off()

        assert owner.told == [("written", 1)]
        assert owner.log.synced_end == 0
        assert [type(error) for error in bench.fatal] == [OSError]

    run(main)


def test_no_segment_is_made_once_a_sync_has_failed_in_the_other_lane():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner, size=100_000)
        await bench.hands.work(Lane.WRITE)
        owner.log.roll()
        bench.append(owner)
        await asyncio.sleep(0)
        bench.disk.fail_syncs(times=1)

        bench.hands.do(Lane.SYNC)
        bench.hands.do(Lane.WRITE)  # the sealed segment's own sync would "succeed"

        await asyncio.sleep(0)
        names = bench.disk.list(owner.log.directory)
        assert [name for name in names if name.endswith(".log")] == ["00000000000000000000.log"]

    run(main)


def test_a_failed_write_is_fatal():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner)
        bench.disk.fail_writes(errno.EIO)
        await bench.hands.work_off()

        assert [error.errno for error in bench.fatal if isinstance(error, OSError)] == [errno.EIO]
        assert owner.told == []

    run(main)


def test_nothing_is_called_drained_or_written_after_a_failure():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner)
        bench.disk.fail_syncs()
        await bench.hands.work_off()

        with pytest.raises(StorageError, match="the disk has failed"):
            await bench.rounds.drained()
        with pytest.raises(StorageError, match="the disk has failed"):
            await asyncio.wait_for(bench.rounds.written(), 1)

    run(main)


def test_who_waits_for_a_write_that_fails_is_not_told_that_it_succeeded():
    """They would remove a segment whose successor, and the producers' state in it, is not there."""

    async def main() -> None:
        bench = Bench()
        bench.append(bench.owner())
        waiting = asyncio.ensure_future(bench.rounds.written())
        bench.disk.fail_writes(errno.EIO)
        await bench.hands.work_off()

        with pytest.raises(StorageError, match="the disk has failed"):
            await asyncio.wait_for(waiting, 1)

    run(main)


def test_an_error_of_ours_in_a_callback_is_fatal_too():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        owner.on_written = lambda end: 1 // 0  # type: ignore[method-assign,assignment]
        bench.append(owner)
        await bench.hands.work_off()

        assert [type(error) for error in bench.fatal] == [ZeroDivisionError]

    run(main)


# A full disk.


def squeeze(disk: SimulatedDisk, room: int) -> None:
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes -= disk.free_bytes(ROOT) - room


def test_a_full_disk_is_the_logs_own_to_bear():
    async def main() -> None:
        bench = Bench()
        poor, rich = bench.owner("tide-0"), bench.owner("tide-1")
        for owner in (poor, rich):
            bench.append(owner)
        await bench.hands.work_off()
        squeeze(bench.disk, 200)

        bench.append(poor, size=500)
        bench.append(rich, size=10)
        await bench.hands.work_off()

        assert bench.fatal == []
        assert poor.full is not None
        assert (poor.full.end, poor.full.error.errno) == (1, errno.ENOSPC)
        assert rich.full is None and rich.told[-1] == ("synced", 2)

    run(main)


def test_want_of_descriptors_is_the_logs_own_to_bear():
    async def main() -> None:
        bench = Bench()
        poor, rich = bench.owner("tide-0"), bench.owner("tide-1")
        for owner in (poor, rich):
            bench.append(owner)
        await bench.hands.work_off()
        bench.disk.descriptors_max = bench.disk.open_files

        poor.log.roll()
        bench.append(poor)
        bench.append(rich)
        await bench.hands.work_off()

        assert bench.fatal == []
        assert poor.full is not None
        assert (poor.full.end, poor.full.error.errno) == (1, errno.EMFILE)
        assert rich.full is None and rich.told[-1] == ("synced", 2)

    run(main)


def test_a_directory_that_cannot_be_opened_is_synced_with_everything():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.disk.sync_everything(ROOT)
        bench.append(owner)
        await asyncio.sleep(0)
        bench.hands.do()()  # it is written, and its name is not durable

        bench.disk.descriptors_max = bench.disk.open_files
        await bench.hands.work_off()

        assert (bench.fatal, owner.told[-1]) == ([], ("synced", 1))
        bench.disk.crash()
        bench.disk.heal()
        assert bench.disk.list(ROOT / "tide-0")

    run(main)


def test_what_was_appended_meanwhile_is_not_written_behind_the_hole():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner()
        bench.append(owner)
        await bench.hands.work_off()
        size = owner.log.active.open(bench.disk).size()
        squeeze(bench.disk, 200)
        bench.append(owner, size=500)
        await asyncio.sleep(0)
        bench.append(owner, size=10)  # would fit

        await bench.hands.work_off()

        assert owner.log.active.open(bench.disk).size() == size
        assert owner.told[-1] == ("synced", 1)

    run(main)


def test_deleting_a_directory_during_its_sync_is_no_failure():
    async def main() -> None:
        bench = Bench()
        owner = bench.owner(awaits_written=True)
        bench.append(owner)
        await bench.hands.work(Lane.WRITE)

        bench.disk.remove_tree(owner.log.directory)
        await bench.hands.work_off()

        assert bench.fatal == []

    run(main)


# Who catches up.


def test_nobody_waits_behind_the_sync_of_a_log_that_catches_up():
    async def main() -> None:
        bench = Bench()
        late, level = bench.owner("late-0", catches_up=True), bench.owner("level-0")
        bench.append(late, size=100_000)
        await bench.hands.work(Lane.WRITE)

        bench.append(level)
        await bench.hands.work(Lane.WRITE)

        assert level.told == [("written", 1), ("synced", 1)]
        assert late.told == [("written", 1)]
        await bench.hands.work(Lane.SYNC_PATIENTLY)
        assert late.told == [("written", 1), ("synced", 1)]

    run(main)


def test_a_log_is_synced_in_one_lane_at_a_time():
    """Else a later sync of its new segment would count what the earlier one has not synced yet."""

    async def main() -> None:
        bench = Bench()
        owner = bench.owner(catches_up=True)
        bench.append(owner, size=100_000)
        await bench.hands.work(Lane.WRITE)
        owner.catches_up = False  # it is level now, while its sync is under way
        bench.append(owner)
        await bench.hands.work(Lane.WRITE)
        bench.rounds.sync(owner)

        assert owner.told == [("written", 1), ("written", 2)]
        await bench.hands.work(Lane.SYNC_PATIENTLY)
        await bench.hands.work(Lane.SYNC_PATIENTLY)

        assert owner.told[2:] == [("synced", 1), ("synced", 2)]
        assert owner.log.is_synced

    run(main)
