import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation import virtual_time
from tests.support.replicas import Replicas, batch_at
from tidelog.cluster.messages import (
    AnswerNow,
    FetchReplicas,
    FetchReplicasAnswer,
    Progress,
    ReplicaPart,
    ReplicaProgress,
)
from tidelog.config import TopicConfig
from tidelog.errors import IneligibleReplica, NotLeader, OffsetOutOfRange
from tidelog.model import NO_EPOCH
from tidelog.partition.driver import Partition
from tidelog.partition.follower import BeginAnew, Cut
from tidelog.peers.stream import PeerUnreachable
from tidelog.replication.leader_fetchers import (
    HOLD_SECONDS_MAX,
    UNWRITTEN_BEHIND_BYTES_MAX,
    UNWRITTEN_BYTES_MAX,
    LeaderFetchers,
)
from tidelog.simulation.host import SimulatedClock

EPOCH = 4
LEADER = 1


class Hub:
    """Stands for the peers: requests wait until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[FetchReplicas] = []
        self.notes: list[Any] = []
        self.said: list[type] = []
        """The kinds of both, in order."""
        self._waiting: list[asyncio.Future[Any]] = []

    def ask_data(self, node: int, message: Any, kind: type, *, seconds_max: float) -> Any:
        assert node == LEADER
        assert not self._waiting, "one request at a time"
        self.asked.append(message)
        self.said.append(type(message))
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    def note(self, node: int, message: Any) -> None:
        self.notes.append(message)
        self.said.append(type(message))

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    async def answer(self, *parts: ReplicaPart, data: bytes = b"", is_known: bool = True) -> None:
        answer = FetchReplicasAnswer(is_known=is_known, parts=parts)
        self._waiting.pop().set_result((answer, memoryview(bytearray(data))))
        await asyncio.sleep(0)

    async def fail(self) -> None:
        self._waiting.pop().set_exception(PeerUnreachable("the way is lost"))
        await asyncio.sleep(0)


class Stage:
    """Node 2 follows partitions 0 and 1 at node 1."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.replicas = Replicas(2, clock)
        self.hub = Hub()
        self.life = 20
        self.tasks: list[asyncio.Task[None]] = []
        self.changes: list[Cut | BeginAnew] = []
        self.starts: list[int] = []
        self.promises: list[Callable[[], None]] = []
        self.may_change = asyncio.Event()
        self.may_change.set()
        self.fetching = LeaderFetchers(
            self.replicas.host,
            SimpleNamespace(hub=self.hub),  # type: ignore[arg-type]
            self.replicas,  # type: ignore[arg-type]
            broker_epoch=lambda: self.life,
            spawn=self.spawn,
            change_log=self.change_log,
            log_starts=self,  # type: ignore[arg-type]
        )
        self.partition = self.follow(0)

    def follow(self, number: int, epoch: int = EPOCH, leader: int = LEADER) -> Partition:
        if number not in self.replicas.partitions:
            self.replicas.open(number)
        partition = self.replicas.partitions[number]
        partition.wait_for_leader()
        partition.follow(epoch, leader)
        self.fetching.follow(number, partition)
        return partition

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def change_log(self, partition: Partition, *wanted: Any) -> None:
        change = wanted[-1]
        self.changes.append(change)
        await self.may_change.wait()
        if isinstance(change, Cut):
            await partition.mending.cut(change.end, lambda *_: None)
        else:
            await partition.mending.begin_anew(change, lambda change: None)

    def move(self, partition: Partition, start: int) -> None:
        """Where the leader's log begins is heard."""
        self.starts.append(start)

    def promise(self, partition: Partition, then: Callable[[], None]) -> None:
        """Something is to be noted, and `then` to be called."""
        self.promises.append(then)

    async def asked(self) -> FetchReplicas:
        """The request that waits, once there is one."""
        async with asyncio.timeout(5):
            while not self.hub.is_waiting:
                await asyncio.sleep(0.001)
        return self.hub.asked[-1]

    async def positions(self) -> list[tuple[int, int, int, int]]:
        request = await self.asked()
        return [(p.cluster_id, p.epoch, p.offset, p.last_epoch) for p in request.positions]

    async def begin(self) -> None:
        """The first request is answered: the logs agree."""
        await self.asked()
        await self.hub.answer(ReplicaPart(0, 0, 0, 0, 0))
        await asyncio.sleep(0)

    async def feed(self, *batches: bytes, watermark: int = 0, start: int = 0, wanted_start: int = -1) -> None:
        """Records are sent, and synced."""
        await self.asked()
        data = b"".join(batches)
        part = ReplicaPart(0, 0, watermark, start, len(data), wanted_start=wanted_start)
        await self.hub.answer(part, data=data)
        await self.replicas.rounds.drained()
        await asyncio.sleep(0)

    @property
    def told(self) -> list[ReplicaProgress]:
        return [one for n in self.hub.notes if isinstance(n, Progress) for one in n.replicas]


def on_stage(story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        stage = Stage(clock)
        await story(stage)
        failed = [t.exception() for t in stage.tasks if t.done() and not t.cancelled()]
        assert [error for error in failed if error is not None] == []
        assert stage.replicas.fatal == []
        for task in stage.tasks:
            task.cancel()

    virtual_time.run(main(), clock)


# Asking.


def test_a_request_says_where_each_log_ends_and_in_which_epoch():
    async def story(stage):
        stage.follow(1, epoch=7)

        request = await stage.asked()

        assert request.is_new
        assert request.broker_epoch == 20
        assert await stage.positions() == [(0, EPOCH, 0, NO_EPOCH), (1, 7, 0, NO_EPOCH)]

    on_stage(story)


def test_the_next_request_says_only_what_has_changed():
    async def story(stage):
        stage.follow(1)
        await stage.begin()
        await stage.feed(batch_at(0, 3), batch_at(1, EPOCH, 2))

        request = await stage.asked()

        assert not request.is_new
        assert request.session == stage.hub.asked[0].session
        assert await stage.positions() == [(0, EPOCH, 3, EPOCH)]

    on_stage(story)


def test_a_little_is_read_on_once_it_is_held_so_that_both_are_said_together():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        stage.hub.said.clear()

        await stage.feed(batch_at(0, EPOCH))
        await stage.asked()

        assert stage.hub.said == [Progress, FetchReplicas]

    on_stage(story)


def test_much_is_read_on_at_once():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        stage.hub.said.clear()

        await stage.feed(batch_at(0, EPOCH, size=70_000))

        assert stage.hub.said == [FetchReplicas, Progress]

    on_stage(story)


def test_a_slow_disk_keeps_a_request_for_a_moment_only():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        stage.partition.on_progress = lambda partition: None  # the sync does not come back
        began_at = stage.replicas.host.clock.monotonic()

        await stage.feed(batch_at(0, EPOCH))
        await stage.asked()

        took = stage.replicas.host.clock.monotonic() - began_at
        assert HOLD_SECONDS_MAX <= took < 2 * HOLD_SECONDS_MAX

    on_stage(story)


@pytest.mark.parametrize("is_level", [False, True])
def test_who_has_much_that_is_not_written_reads_on_once_it_is(is_level):
    """Else a slow disk would fill memory, and keep the writes of others waiting."""

    async def story(stage):
        await stage.begin()
        rounds = stage.replicas.rounds
        held: list[Any] = []
        mark, rounds.mark = rounds.mark, held.append  # the disk is slow
        room = UNWRITTEN_BYTES_MAX if is_level else UNWRITTEN_BEHIND_BYTES_MAX
        end = 0
        while (await stage.positions() or end == 0) and end * 900_000 < 2 * room:
            assert stage.partition.log.unwritten_bytes <= room
            batch = batch_at(end, EPOCH, size=900_000)
            end += 1
            part = ReplicaPart(0, 0, 0 if is_level else 1000, 0, len(batch))
            await stage.hub.answer(part, data=batch)
        assert stage.partition.log.unwritten_bytes > room
        assert await stage.positions() == []

        mark(held[0])
        await rounds.drained()
        assert any(isinstance(note, AnswerNow) for note in stage.hub.notes)
        await stage.hub.answer()

        assert (await stage.positions())[0][2] == end
        assert stage.partition.log.unwritten_bytes == 0

    on_stage(story)


def test_what_was_to_be_asked_again_in_an_older_epoch_keeps_nobody_from_reading_on():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, NotLeader.code))  # to be asked again in a moment
        stage.follow(0, epoch=EPOCH + 1)
        batch = batch_at(0, EPOCH + 1, size=70_000)
        await stage.asked()
        await stage.hub.answer()  # it was asked before the new epoch was known
        assert await stage.positions() == [(0, EPOCH + 1, 0, NO_EPOCH)]

        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, len(batch)), data=batch)

        assert await stage.positions() == [(0, EPOCH + 1, 1, EPOCH + 1)]

    on_stage(story)


def test_who_lacks_committed_records_syncs_once_it_has_them():
    async def story(stage):
        await stage.begin()
        log = stage.partition.log

        await stage.feed(batch_at(0, EPOCH), watermark=2)
        await stage.asked()
        assert (log.written_end, log.synced_end) == (1, 0)
        assert stage.told[-1].end == 0

        await stage.feed(batch_at(1, EPOCH), watermark=2)
        assert log.synced_end == 2
        assert stage.told[-1].end == 2

    on_stage(story)


def test_another_leader_does_not_find_it_unsynced():
    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH), watermark=5)
        assert stage.partition.log.synced_end == 0

        stage.follow(0, epoch=EPOCH + 1)
        await stage.replicas.rounds.drained()

        assert stage.partition.log.synced_end == 1

    on_stage(story)


def test_another_epoch_is_asked_for_at_once():
    async def story(stage):
        await stage.begin()
        await stage.asked()

        stage.follow(0, epoch=EPOCH + 1)
        assert [type(note) for note in stage.hub.notes[-1:]] == [AnswerNow]
        await stage.hub.answer()

        assert await stage.positions() == [(0, EPOCH + 1, 0, NO_EPOCH)]

    on_stage(story)


def test_what_is_led_elsewhere_is_forgotten_here():
    async def story(stage):
        stage.follow(1)
        await stage.begin()
        await stage.asked()

        stage.partition.wait_for_leader()
        stage.fetching.follow(0, stage.partition)
        await stage.hub.answer()

        assert (await stage.asked()).forgotten == (0,)

    on_stage(story)


def test_the_last_one_is_forgotten_too_and_then_nothing_is_asked():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        stage.fetching.forget(stage.partition)
        await stage.hub.answer()

        assert (await stage.asked()).forgotten == (0,)
        await stage.hub.answer()
        await asyncio.sleep(5)

        assert not stage.hub.is_waiting

    on_stage(story)


def test_a_session_that_is_lost_is_begun_anew_with_everything():
    async def story(stage):
        stage.follow(1)
        await stage.begin()
        await stage.asked()

        await stage.hub.fail()

        request = await stage.asked()
        assert request.is_new
        assert request.session != stage.hub.asked[0].session
        assert [p[0] for p in await stage.positions()] == [0, 1]
        assert stage.fetching.failures() == {LEADER: 1}

    on_stage(story)


# Taking.


def test_records_are_appended_as_they_came():
    async def story(stage):
        await stage.begin()
        batches = batch_at(0, 2), batch_at(1, EPOCH, 3)

        await stage.feed(*batches, watermark=1)

        log = stage.partition.log
        assert log.read(0, 10**6, log.end).joined == b"".join(batches)
        assert list(log.epochs) == [(2, 0), (EPOCH, 1)]
        assert stage.partition.high_watermark == 1

    on_stage(story)


def test_an_answer_of_an_epoch_that_has_passed_is_not_taken():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        stage.follow(0, epoch=EPOCH + 1)

        batch = batch_at(0, EPOCH)
        await stage.hub.answer(ReplicaPart(0, 0, 1, 0, len(batch)), data=batch)

        assert stage.partition.log.end == 0
        assert stage.partition.high_watermark == 0
        assert not stage.partition.follower.is_aligned

    on_stage(story)


def test_each_part_gets_its_own_bytes_though_others_are_not_taken():
    async def story(stage):
        other = stage.follow(1)
        await stage.begin()
        await stage.asked()
        stage.follow(0, epoch=EPOCH + 1)
        first, second = batch_at(0, EPOCH, size=33), batch_at(0, EPOCH, 2)

        await stage.hub.answer(
            ReplicaPart(0, 0, 0, 0, len(first)), ReplicaPart(1, 0, 0, 0, len(second)), data=first + second
        )

        assert (stage.partition.log.end, other.log.end) == (0, 2)

    on_stage(story)


@pytest.mark.parametrize("damage", ["checksum", "gap", "epoch above", "epoch below"])
def test_what_does_not_check_out_is_not_appended_and_is_told(damage):
    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, 3))
        bad = {
            "checksum": batch_at(1, 3)[:-1] + b"?",
            "gap": batch_at(2, 3),
            "epoch above": batch_at(1, EPOCH + 1),
            "epoch below": batch_at(1, 2),
        }[damage]

        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, len(bad)), data=bad)

        assert stage.partition.log.end == 1
        assert (await stage.asked()).corrupt == (0,)
        assert await stage.positions() == []
        await asyncio.sleep(2)
        await stage.hub.answer()
        assert await stage.positions() == [(0, EPOCH, 1, 3)]

    on_stage(story)


def test_what_came_before_a_damaged_batch_is_written_and_told_of():
    async def story(stage):
        await stage.begin()
        damaged = bytearray(batch_at(1, EPOCH))
        damaged[-1] ^= 1

        await stage.feed(batch_at(0, EPOCH), bytes(damaged))
        await asyncio.sleep(HOLD_SECONDS_MAX)

        assert (stage.partition.log.end, stage.partition.log.synced_end) == (1, 1)
        assert stage.told[-1].end == 1

    on_stage(story)


def test_a_gap_is_taken_where_the_leader_says_that_there_may_be_some():
    async def story(stage):
        await stage.begin()
        await stage.asked()
        data = batch_at(5, EPOCH)

        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, len(data), has_gaps=True), data=data)

        assert stage.partition.log.end == 6

    on_stage(story)


def test_whoever_does_not_lead_yet_is_asked_again_soon():
    async def story(stage):
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, NotLeader.code))
        assert await stage.positions() == []
        await asyncio.sleep(0.1)
        assert [type(note) for note in stage.hub.notes] == [AnswerNow]
        await stage.hub.answer()

        assert await stage.positions() == [(0, EPOCH, 0, NO_EPOCH)]

    on_stage(story)


def test_a_log_is_brought_to_where_the_leaders_begins():
    async def story(stage):
        await stage.begin()

        await stage.feed(batch_at(0, EPOCH), watermark=1, start=1)

        assert stage.starts == [1]

    on_stage(story)


def test_a_promise_is_told_once_it_is_noted():
    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH), batch_at(1, EPOCH), watermark=2, wanted_start=2)
        assert not any(one.promised_start == 2 for one in stage.told)
        [noted] = stage.promises

        stage.partition.log_start.promised = 2
        noted()
        await asyncio.sleep(0.1)

        assert stage.told[-1] == ReplicaProgress(0, EPOCH, 2, 2)

    on_stage(story)


# Changing the log.


def test_what_differs_is_cut_and_asked_for_again():
    async def story(stage):
        await stage.begin()
        await stage.feed(*(batch_at(offset, 1) for offset in range(5)))
        stage.follow(0, epoch=EPOCH + 1)
        await stage.hub.answer()
        assert await stage.positions() == [(0, EPOCH + 1, 5, 1)]

        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, 0, differs=True, epoch=1, end=3))
        await asyncio.sleep(0.1)
        assert stage.changes == [Cut(3)]
        assert stage.partition.log.end == 3
        await stage.hub.answer()

        assert await stage.positions() == [(0, EPOCH + 1, 3, 1)]

    on_stage(story)


def test_a_log_that_keeps_nothing_begins_anew_where_the_leader_does():
    """Not where the two part: it would lack what the leader has before, and may come to lead."""

    async def story(stage):
        await stage.begin()
        await stage.feed(*(batch_at(offset, 1) for offset in range(5)))
        stage.partition.log.advance_start(4)
        stage.follow(0, epoch=EPOCH + 1)
        await stage.hub.answer()
        await stage.positions()

        await stage.hub.answer(ReplicaPart(0, start=1, differs=True, epoch=1, end=3))
        await asyncio.sleep(0.1)

        assert stage.changes == [BeginAnew(1)]

    on_stage(story)


def test_what_is_deleted_at_the_leader_makes_the_log_begin_anew():
    async def story(stage):
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, OffsetOutOfRange.code, start=70))
        await asyncio.sleep(0.1)
        assert stage.changes == [BeginAnew(70)]
        await stage.hub.answer()

        assert await stage.positions() == [(0, EPOCH, 70, NO_EPOCH)]

    on_stage(story)


@pytest.mark.parametrize("how", ["fail", "unknown", "another epoch"])
def test_a_log_that_is_being_cut_is_neither_listed_nor_cut_twice(how):
    """Whatever happens meanwhile: it would be appended to while its files are changed."""

    async def story(stage):
        await stage.begin()
        await stage.feed(*(batch_at(offset, 1) for offset in range(5)))
        stage.may_change.clear()
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, 0, differs=True, epoch=1, end=3))
        await stage.asked()

        if how == "fail":
            await stage.hub.fail()
        elif how == "unknown":
            await stage.hub.answer(is_known=False)
        else:
            stage.follow(0, epoch=EPOCH + 1)
            await stage.hub.answer()
        assert await stage.positions() == []
        late = batch_at(5, 1)
        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, len(late)), data=late)
        assert stage.partition.log.end == 5

        stage.may_change.set()
        await asyncio.sleep(0.1)
        await stage.hub.answer()
        assert [p[2] for p in await stage.positions()] == [3]
        assert stage.changes == [Cut(3)]

    on_stage(story)


# Telling.


def test_what_is_held_is_told_once_it_is_synced():
    async def story(stage):
        await stage.begin()
        assert stage.told == [ReplicaProgress(0, EPOCH, 0)]

        await stage.feed(batch_at(0, EPOCH), batch_at(1, EPOCH))

        assert stage.told[1:] == [ReplicaProgress(0, EPOCH, 2)]
        note = stage.hub.notes[-1]
        assert (note.session, note.broker_epoch) == (stage.hub.asked[0].session, 20)

    on_stage(story)


def test_what_was_told_as_written_is_told_again_once_it_is_synced():
    """The leader may count only what is synced by then, and waits for that word."""

    async def story(stage):
        stage.partition.configure(TopicConfig(durability="replicated"))
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH))
        assert stage.told[-1] == ReplicaProgress(0, EPOCH, 1, is_synced=False)

        stage.partition.configure(TopicConfig())
        await stage.replicas.rounds.drained()
        await asyncio.sleep(0)

        assert stage.told[-1] == ReplicaProgress(0, EPOCH, 1)

    on_stage(story)


def test_what_was_synced_already_is_told_so_when_the_topic_demands_it():
    async def story(stage):
        stage.partition.configure(TopicConfig(durability="replicated"))
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH))
        stage.partition.sync()
        await stage.replicas.rounds.drained()
        await asyncio.sleep(0)

        stage.partition.configure(TopicConfig())
        await asyncio.sleep(0)

        assert stage.told[-1] == ReplicaProgress(0, EPOCH, 1)

    on_stage(story)


def test_nothing_is_told_before_the_logs_agree():
    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH))
        told = len(stage.told)
        stage.follow(0, epoch=EPOCH + 1)
        stage.partition.on_synced(1)
        await asyncio.sleep(0.01)
        assert len(stage.told) == told

        await stage.hub.answer()
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, 0))
        await asyncio.sleep(0)

        assert stage.told[told:] == [ReplicaProgress(0, EPOCH + 1, 1)]

    on_stage(story)


def test_partitions_synced_together_are_told_of_together():
    async def story(stage):
        stage.follow(1)
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, 0), ReplicaPart(1, 0, 0, 0, 0))
        await asyncio.sleep(0)

        (note,) = stage.hub.notes
        assert [one.cluster_id for one in note.replicas] == [0, 1]

    on_stage(story)


def test_what_was_told_in_a_session_that_was_lost_is_told_again():
    """An idle partition would never be told of again, and its records never be committed."""

    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH))
        told = len(stage.told)
        await stage.asked()
        await stage.hub.fail()
        await stage.asked()

        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, 0))
        await asyncio.sleep(0)

        assert stage.told[told:] == [ReplicaProgress(0, EPOCH, 1)]

    on_stage(story)


def test_what_is_synced_between_two_sessions_is_told_in_the_second():
    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH))
        told = len(stage.told)
        await stage.asked()
        await stage.hub.fail()
        stage.partition.on_synced(1)  # a round ends while nobody listens
        await asyncio.sleep(0)
        assert len(stage.told) == told
        await stage.asked()

        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, 0))
        await asyncio.sleep(0)

        assert stage.told[told:] == [ReplicaProgress(0, EPOCH, 1)]
        assert stage.hub.notes[-1].session == stage.hub.asked[-1].session

    on_stage(story)


def test_who_is_refused_while_it_has_much_to_write_tells_again_what_it_holds():
    """The leader has forgotten it: what is told before it is asked anew counts nowhere."""

    async def story(stage):
        await stage.begin()
        rounds = stage.replicas.rounds
        held: list[Any] = []
        mark, rounds.mark = rounds.mark, held.append  # the disk is slow
        batches = b"".join(batch_at(at, EPOCH, size=900_000) for at in range(3))
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, 0, 1000, 0, len(batches)), data=batches)
        assert await stage.positions() == [], "it reads on once there is room"

        await stage.hub.answer(ReplicaPart(0, IneligibleReplica.code))
        await stage.asked()
        mark(held[0])
        await rounds.drained()
        await stage.hub.answer()
        assert (await stage.positions())[0][2] == 3
        told = len(stage.told)

        await stage.hub.answer(ReplicaPart(0, 0, 1000, 0, 0))
        await asyncio.sleep(0)

        assert stage.told[told:] == [ReplicaProgress(0, EPOCH, stage.partition.held_end)]

    on_stage(story)


# A full disk.


def test_a_log_that_a_full_disk_has_shortened_is_listed_anew():
    async def story(stage):
        await stage.begin()
        await stage.feed(batch_at(0, EPOCH))
        disk = stage.replicas.disk
        disk.capacity_bytes = 1 << 40
        disk.capacity_bytes -= disk.free_bytes(stage.partition.path) - 100
        await stage.asked()
        large = batch_at(1, EPOCH, size=70_000)
        await stage.hub.answer(ReplicaPart(0, 0, 0, 0, len(large)), data=large)
        assert await stage.positions() == [(0, EPOCH, 2, EPOCH)]

        await asyncio.sleep(0.1)
        assert stage.partition.log.end == 1
        await stage.hub.answer()

        assert await stage.positions() == [(0, EPOCH, 1, EPOCH)]
        assert stage.told[-1].end == 1

    on_stage(story)


def test_what_a_full_disk_would_refuse_is_not_asked_for_until_there_is_room():
    async def story(stage):
        await stage.begin()
        clock = stage.replicas.host.clock
        stage.partition.disk_full, stage.partition.log.refusal = True, "the disk is full"
        batch = batch_at(0, EPOCH)
        listed, troubles = 0, []
        await stage.asked()
        await stage.hub.answer(ReplicaPart(0, 0, 100, 0, len(batch)), data=batch)

        while clock.monotonic() < 60:
            request = await stage.asked()
            troubles += request.troubles
            if request.positions:
                listed += 1
                await stage.hub.answer(ReplicaPart(0, 0, 100, 0, len(batch)), data=batch)
            else:
                await asyncio.sleep(0.5)
                await stage.hub.answer()
            if int(clock.monotonic()) % 10 == 9:
                await stage.fetching.look()
        assert (listed, troubles) == (0, [(0, "the disk is full")])
        assert [asked.full for asked in stage.hub.asked if asked.full] == [(0,)]

        stage.partition.disk_full, stage.partition.log.refusal = False, None
        await asyncio.sleep(2)
        await stage.hub.answer()
        assert await stage.positions() == [(0, EPOCH, 0, NO_EPOCH)]

    on_stage(story)
