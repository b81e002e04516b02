"""Which logs are compacted, when and how far; and that a running log stays whole meanwhile."""

import asyncio
import dataclasses
import errno
import random
from typing import Any

import pytest

from tests.support.compaction import NOW_MS, CompactedLog, compacted, end, new_log, record, sealed, write
from tests.unit.log.logs import cold_of
from tidelog.config import TopicConfig
from tidelog.host import Host, Path, read_file
from tidelog.log.checkpoints import decode
from tidelog.log.cleaner import Cleaner, CompactionPlan, Pace, plan
from tidelog.log.directory import FIRST_DIRTY, DataDirectory
from tidelog.log.epochs import OFFSET_MAX
from tidelog.log.keymap import KEY_BYTES
from tidelog.log.purges import Purges
from tidelog.log.rounds import Rounds
from tidelog.log.search import TimeSearch
from tidelog.log.segment import walk
from tidelog.model import TopicPartition
from tidelog.records import decode_batch

# Deciding.


@pytest.mark.parametrize(
    ("case", "first_dirty", "limit", "expected"),
    [
        ("everything is dirty at first", None, 99, (0, 30, 0, 600)),
        ("clean and dirty part at the base of a segment", 10, 99, (10, 30, 100, 500)),
        ("a segment is dirty if a part of it is", 15, 99, (15, 30, 100, 500)),
        ("nothing is dirty", 30, 99, (30, 30, 600, 0)),
        ("only whole segments below the stable offset", None, 29, (0, 20, 0, 300)),
        ("the stable offset at a segment's end", None, 20, (0, 20, 0, 300)),
        ("nothing is stable", None, 0, (0, 0, 0, 0)),
        ("noted past the log's end, which was cut", 77, 99, (0, 30, 0, 600)),
    ],
)
def test_plan_ends_at_whole_stable_segments(case, first_dirty, limit, expected):
    found = plan(
        sealed(100, 200, 300),
        start=0,
        log_end=35,
        first_dirty=first_dirty,
        limit=limit,
        now_ms=NOW_MS,
        policy=compacted(),
    )

    assert (found.first_dirty, found.end, found.clean_bytes, found.dirty_bytes) == expected, case


def test_plan_begins_at_the_log_start_when_the_noted_offset_was_deleted():
    found = plan(
        sealed(100, 200)[1:], start=12, log_end=25, first_dirty=5, limit=99, now_ms=NOW_MS, policy=compacted()
    )

    assert (found.first_dirty, found.end, found.dirty_bytes) == (12, 20, 200)


def test_plan_stops_before_the_first_segment_younger_than_the_minimal_lag():
    segments = sealed(100, 100, 100)
    segments[1].max_timestamp_ms = NOW_MS - 500

    found = plan(
        segments,
        start=0,
        log_end=35,
        first_dirty=None,
        limit=99,
        now_ms=NOW_MS,
        policy=compacted(min_compaction_lag_ms=1000),
    )

    assert found.end == 10


def test_minimal_lag_does_not_hold_up_what_was_clean_before():
    segments = sealed(100, 100, 100)
    segments[0].max_timestamp_ms = NOW_MS - 500

    found = plan(
        segments,
        start=0,
        log_end=35,
        first_dirty=10,
        limit=99,
        now_ms=NOW_MS,
        policy=compacted(min_compaction_lag_ms=1000),
    )

    assert found.end == 30


@pytest.mark.parametrize(("first_ms", "is_due"), [(NOW_MS - 6000, True), (NOW_MS - 4000, False)])
def test_maximal_lag_makes_a_log_due_however_little_is_dirty(first_ms, is_due):
    segments = sealed(100_000, 1)
    segments[1].first_timestamp_ms = first_ms
    policy = compacted(max_compaction_lag_ms=5000)

    found = plan(segments, start=0, log_end=25, first_dirty=10, limit=99, now_ms=NOW_MS, policy=policy)

    assert found.is_overdue == is_due
    assert found.is_due(policy) == is_due


@pytest.mark.parametrize(
    ("clean", "dirty", "ratio_min", "is_due"),
    [
        (100, 101, 0.5, True),
        (100, 100, 0.5, False),
        (100, 1, 0.0, True),
        (100, 0, 0.0, False),
        (0, 0, 0.0, False),
        (0, 1, 1.0, False),
    ],
)
def test_log_is_due_when_more_than_the_ratio_is_dirty(clean, dirty, ratio_min, is_due):
    found = CompactionPlan(first_dirty=0, end=0, clean_bytes=clean, dirty_bytes=dirty, is_overdue=False)

    assert found.is_due(compacted(min_cleanable_dirty_ratio=ratio_min)) == is_due


def test_pace_holds_on_average_and_does_not_save_up():
    pace = Pace(1000)

    assert pace.wait_seconds(500, now=10.0) == pytest.approx(0.5)
    assert pace.wait_seconds(500, now=10.1) == pytest.approx(0.9)
    assert pace.wait_seconds(500, now=99.0) == pytest.approx(0.5)


def test_rate_of_zero_is_no_limit():
    assert Pace(0).wait_seconds(1 << 40, now=1.0) == 0


# The cleaner.


class InlineOffload:
    """Work is done at once; `before` and `after` may look on."""

    def __init__(self) -> None:
        self.before: Any = lambda: None
        self.after: Any = lambda: None

    def run(self, work: Any, lane: Any = None) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self.before()
            future.set_result(work())
            self.after()
        except Exception as error:
            future.set_exception(error)
        return future


class StillClock:
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return NOW_MS


@dataclasses.dataclass
class Owner:
    """A partition, as much of it as the cleaner sees."""

    name: TopicPartition
    log: Any
    config: TopicConfig
    files: asyncio.Lock
    last_stable_offset: int
    purges: Purges = dataclasses.field(default_factory=Purges)

    def purge_limit(self) -> int:
        return OFFSET_MAX


ROOT = Path("/data")
NAME = TopicPartition("topic", 0)


class Node:
    """A cleaner and the one log it cleans."""

    def __init__(self, log: CompactedLog, **options: Any) -> None:
        self.offload = InlineOffload()
        self.host = Host(
            clock=StillClock(),
            disk=log.disk,
            offload=self.offload,
            network=None,  # type: ignore[arg-type]
            random=random.Random(1),
        )
        self.owner = Owner(NAME, log.log, log.topic, asyncio.Lock(), log.log.end)
        self.rounds = Rounds(self.host, ROOT, lambda error: None)
        arguments = {"first_dirty": {}, "key_bytes_max": 10**9, "bytes_per_second_max": 0}
        self.cleaner = Cleaner(
            self.host, self.rounds, DataDirectory(self.host, ROOT), **{**arguments, **options}
        )

    async def clean(self) -> bool:
        return await self.cleaner.clean_due([self.owner])


def dirty_log(**options: Any) -> CompactedLog:
    log = new_log(**options)
    for _ in range(3):
        log.append(record("a", "x" * 100), record("b"))
        log.roll()
    log.append(record("c"))
    log.flush()
    return log


def test_cleaner_swaps_the_segments_of_a_running_log():
    log = dirty_log()
    node = Node(log)
    old: list[Any] = list(log.log.segments)

    assert asyncio.run(node.clean())

    assert log.log.segments == [old[0].replaced_by, old[-1]]
    assert [segment.replaced_by for segment in old[:3]] == log.log.segments[:1] * 3
    assert log.offsets() == [4, 5, 6]
    assert log.consume(0) == log.records()
    log.open(log.log.end)
    assert log.offsets() == [4, 5, 6]


def test_running_log_loses_its_aborted_transactions_with_their_batches():
    log = new_log(topic=compacted(min_cleanable_dirty_ratio=0.0))
    write(log, 1, record("a"))
    end(log, 1, commits=False)
    write(log, 1, record("b"))
    end(log, 1, commits=True)
    log.append(record("c"))
    log.roll()
    node = Node(log)

    asyncio.run(node.clean())
    assert 0 not in log.offsets()
    assert log.log.aborted(0, 5) == [(1, 0)], "who has just read the batch must know"
    log.append(record("d"))
    log.log.roll()
    log.flush()
    node.owner.last_stable_offset = log.log.end
    asyncio.run(node.clean())

    assert log.log.aborted(0, 5) == []
    log.open(log.log.end)
    assert log.log.aborted(0, 5) == []


def test_what_was_compacted_is_not_read_from_memory_any_more():
    log = new_log()
    for _ in range(3):
        log.append(record("a", "x" * 100), record("b"))
        log.log.roll()
    log.append(record("c"))
    log.flush()
    node = Node(log)
    assert len(log.consume(0)) == 7, "all of it is in memory"

    assert asyncio.run(node.clean())

    assert [found.offset for found in log.consume(0)] == [4, 5, 6]
    assert log.log.tail.start == 6, "what was not compacted is still there"


def test_cleaner_notes_the_first_dirty_offset():
    log = dirty_log()
    node = Node(log)

    asyncio.run(node.clean())

    assert decode(read_file(log.disk, ROOT / FIRST_DIRTY)) == {NAME: 6}
    assert node.cleaner.first_dirty(NAME) == 6


def test_cleaner_leaves_alone_what_is_not_dirty_enough():
    log = dirty_log()
    node = Node(log)
    asyncio.run(node.clean())
    segments = list(log.log.segments)

    assert not asyncio.run(node.clean())

    assert log.log.segments == segments


def test_cleaner_goes_on_until_all_keys_had_their_turn():
    log = dirty_log(topic=compacted(min_cleanable_dirty_ratio=0.0))
    node = Node(log, key_bytes_max=KEY_BYTES)

    async def run() -> int:
        passes = 0
        while await node.clean():
            passes += 1
        return passes

    assert asyncio.run(run()) > 1
    assert log.offsets() == [4, 5, 6]


def test_cleaner_stays_below_the_stable_offset():
    log = dirty_log()
    node = Node(log)
    node.owner.last_stable_offset = 5

    asyncio.run(node.clean())

    assert log.offsets() == [2, 3, 4, 5, 6]
    assert node.cleaner.first_dirty(NAME) == 4


def test_cleaner_reads_the_times_that_lags_ask_for():
    log = dirty_log(topic=compacted(min_compaction_lag_ms=10_000, max_compaction_lag_ms=20_000))

    assert not asyncio.run(Node(log).clean())

    assert all(s.first_timestamp_ms == NOW_MS - 1000 for s in log.log.segments[:-1])
    assert all(s.max_timestamp_ms == NOW_MS - 1000 for s in log.log.segments[:-1])


def test_cleaner_waits_until_sealed_segments_are_in_their_files():
    """The log has rolled in memory; the step that writes the indexes comes with the next round."""
    log = dirty_log()
    log.log.roll()
    node = Node(log)
    node.owner.last_stable_offset = log.log.end
    node.rounds.written = lambda: _written(log)  # type: ignore[method-assign]

    assert asyncio.run(node.clean())

    assert log.offsets() == [4, 5, 6]
    log.open(log.log.end)
    assert log.offsets() == [4, 5, 6]


async def _written(log: CompactedLog) -> None:
    log.flush()


def test_deleted_partition_leaves_nothing_to_its_namesake():
    log = dirty_log()
    node = Node(log)
    asyncio.run(node.clean())

    node.cleaner.forget(NAME)
    asyncio.run(node.cleaner.clean_due([]))

    assert node.cleaner.first_dirty(NAME) is None
    assert decode(read_file(log.disk, ROOT / FIRST_DIRTY)) == {}


def test_what_was_clean_before_a_cut_is_forgotten_durably():
    log = dirty_log()
    node = Node(log)
    asyncio.run(node.clean())

    node.cleaner.unnote(NAME)

    log.disk.crash()
    assert decode(read_file(log.disk, ROOT / FIRST_DIRTY)) == {}


def test_a_log_that_was_never_cleaned_is_cut_without_a_note():
    log = dirty_log()
    node = Node(log, first_dirty={TopicPartition("other", 0): 3})

    node.cleaner.unnote(NAME)

    assert not log.disk.exists(ROOT / FIRST_DIRTY)


def test_partition_deleted_during_its_last_swap_leaves_nothing_to_its_namesake():
    log = dirty_log()
    node = Node(log)

    def delete_once_swapped() -> None:
        if len(log.log.segments) == 2:
            log.log.refusal = "the topic is deleted"
            node.cleaner.forget(NAME)

    node.offload.after = delete_once_swapped

    assert not asyncio.run(node.clean())
    assert node.cleaner.first_dirty(NAME) is None


def test_pass_notes_nothing_while_a_new_partition_forgets_its_namesake():
    log = dirty_log()
    node = Node(log)
    directory = DataDirectory(node.host, ROOT)
    node.cleaner._directory = directory

    async def story() -> None:
        async with directory.noting:
            cleaning = asyncio.create_task(node.clean())
            while node.cleaner.first_dirty(NAME) is None:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            node.cleaner.forget(NAME)
        await cleaning

    asyncio.run(story())

    assert directory.read_checkpoint(FIRST_DIRTY) == {}


def test_read_under_way_finds_what_has_taken_its_segment_s_place():
    log = dirty_log(topic=compacted(index_interval_bytes=0))
    reads = [log.log.read(offset, 1, log.log.end) for offset in range(6)]
    search = TimeSearch.over(log.log, log.log.end)

    asyncio.run(Node(log).clean())

    for read in map(cold_of, reads):
        found = decode_batch(read.perform(log.disk))
        assert [r.offset for r in found] == [4, 5]
    first = search.first_since(log.disk, 0)
    assert first is not None and first.offset == 4


def test_read_that_a_swap_overtakes_is_done_again():
    """The old file is open when the swap comes; the index, read by name, would be the new one's."""
    log = dirty_log()
    read = cold_of(log.log.read(0, 1, log.log.end))
    node = Node(log)

    def swap(operation: str, path: Path) -> None:
        if operation == "open" and path == log.log.segments[0].path():
            log.disk.on_operation = None
            asyncio.run(node.clean())

    log.disk.on_operation = swap

    assert [r.offset for r in decode_batch(read.perform(log.disk))] == [4, 5]


def test_compacted_segment_can_be_searched_before_its_files_have_their_names():
    log = new_log(topic=compacted(segment_bytes=10**6, index_interval_bytes=0))
    for at in range(40):
        log.append(record(f"k{at % 15}", "x" * at))
    log.roll()
    node = Node(log)
    old: Any = log.log.segments[0]
    searched = []

    def search() -> None:
        if (new := old.replaced_by) is not None:
            batches = {at: header for header, at in walk(new.open(log.disk), 0, new.size)}
            for offset in range(40):
                found = batches[new.position_before(log.disk, offset)]
                assert found.base_offset <= max(offset, 25)
                searched.append(offset)

    node.offload.before = search

    asyncio.run(node.clean())

    assert len(searched) >= 40
    assert log.log.segments[0].offsets is None
    search()


@pytest.mark.parametrize("piece", ["plan", "map", "clean"])
def test_pass_is_abandoned_when_retention_takes_a_segment(piece):
    log = dirty_log()
    node = Node(log)
    pieces = iter(["map", "clean"])

    def retention(now: str | None) -> None:
        if now == piece:
            for segment in log.log.advance_start(2):
                log.disk.remove(segment.path())

    async def written() -> None:
        retention("plan")

    node.offload.after = lambda: retention(next(pieces, None))
    node.rounds.written = written  # type: ignore[method-assign]

    assert not asyncio.run(node.clean())

    assert len(log.log.segments) == 3
    assert not any("cleaned" in name or "swap" in name for name in log.names())
    assert node.cleaner.first_dirty(NAME) is None
    assert asyncio.run(node.clean())
    assert log.offsets() == [4, 5, 6]


def test_pass_is_abandoned_when_the_log_was_opened_again():
    log = dirty_log()
    node = Node(log)

    def reopen() -> None:
        log.open(log.log.end)
        node.owner.log = log.log

    node.offload.after = reopen

    assert not asyncio.run(node.clean())
    assert len(log.log.segments) == 4


def test_full_disk_costs_the_pass_and_nothing_else():
    log = dirty_log()
    node = Node(log)
    log.disk.fail_writes(errno.ENOSPC)

    with pytest.raises(OSError, match="No space"):
        asyncio.run(node.clean())

    log.disk.heal()
    assert not any("cleaned" in name for name in log.names())
    assert asyncio.run(node.clean())
    assert log.offsets() == [4, 5, 6]


@pytest.mark.parametrize("fail", ["fail_reads", "fail_writes"])
def test_device_that_fails_costs_the_pass_and_neither_the_node_nor_other_logs(fail, caplog):
    log = dirty_log()
    node = Node(log)
    getattr(log.disk, fail)(errno.EIO)

    assert not asyncio.run(node.clean())

    log.disk.heal()
    assert "is not compacted this time" in caplog.text
    assert node.cleaner.uncleanable == {}
    assert not any("cleaned" in name for name in log.names())
    assert asyncio.run(node.clean())
    assert log.offsets() == [4, 5, 6]


def test_room_is_left_to_those_who_write_records():
    log = dirty_log()
    node = Node(log)
    log.disk.capacity_bytes = 32 * 1024 * 1024

    with pytest.raises(OSError, match="No space"):
        asyncio.run(node.clean())

    assert len(log.log.segments) == 4


def test_damaged_log_is_left_alone():
    log = dirty_log()
    log.disk.flip_bit(log.log.segments[1].path(), 80, 3)
    node = Node(log)

    assert not asyncio.run(node.clean())

    assert "checksum" in node.cleaner.uncleanable[NAME]
    assert len(log.log.segments) == 4
    assert not asyncio.run(node.clean())


def test_bug_in_one_log_does_not_stop_the_cleaning_of_others(caplog):
    log = dirty_log()
    node = Node(log)
    nonsense: Any = None
    bad = dataclasses.replace(
        node.owner, name=TopicPartition("bad", 0), config=compacted(segment_bytes=nonsense)
    )

    assert asyncio.run(node.cleaner.clean_due([bad, node.owner]))

    assert list(node.cleaner.uncleanable) == [bad.name]
    assert "TypeError" in caplog.text
    assert log.offsets() == [4, 5, 6]


def test_slices_are_paced():
    log = dirty_log()
    size = sum(segment.size for segment in log.log.segments[:3])
    node = Node(log, bytes_per_second_max=100)
    slept: list[float] = []

    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", lambda seconds: _note(slept, seconds))
            await node.clean()

    asyncio.run(run())

    waits = _joined(slept)
    assert waits[0] == pytest.approx(size / 100)
    assert waits[-1] == pytest.approx((2 * size + log.log.segments[0].size) / 100)


def test_a_change_of_the_rate_ends_a_wait():
    log = dirty_log()
    node = Node(log, bytes_per_second_max=1)
    slept: list[float] = []

    async def nap(seconds: float) -> None:
        slept.append(seconds)
        node.cleaner.configure(key_bytes_max=10**9, bytes_per_second_max=0)

    async def run() -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", nap)
            return await node.clean()

    assert asyncio.run(run())
    assert slept == [1.0]


def test_the_same_rate_again_forgives_nothing():
    cleaner = Node(dirty_log(), bytes_per_second_max=10).cleaner
    pace = cleaner.pace

    cleaner.configure(key_bytes_max=5, bytes_per_second_max=10)

    assert cleaner.pace is pace and cleaner.key_bytes_max == 5


def _joined(naps: list[float]) -> list[float]:
    """The waits that were taken nap by nap: each ends with one of less than a second."""
    waits = [0.0]
    for seconds in naps:
        waits[-1] += seconds
        if seconds < 1:
            waits.append(0.0)
    return waits[:-1]


async def _note(slept: list[float], seconds: float) -> None:
    slept.append(seconds)


def test_cancelled_cleaner_waits_for_its_thread():
    log = dirty_log()
    node = Node(log)

    async def run() -> bool:
        release: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        node.offload.run = lambda work, lane=None: release  # type: ignore[method-assign]
        cleaning = asyncio.create_task(node.clean())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)
        finishing = asyncio.create_task(node.cleaner.finish())
        await asyncio.sleep(0)
        waits = not finishing.done()
        release.set_exception(OSError("gone"))
        await finishing
        return waits

    assert asyncio.run(run())
