import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.simulation import virtual_time
from tests.support.replicas import Member, Producer, Replicas, append, offsets_in
from tests.unit.log.logs import make_batch
from tidelog.cluster.messages import (
    AnswerNow,
    FetchReplicas,
    FetchReplicasAnswer,
    ForgetReplica,
    Progress,
    ReplicaPart,
    ReplicaPosition,
    ReplicaProgress,
)
from tidelog.config import NodeConfig
from tidelog.controller.reports import ReplicaReports
from tidelog.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    NotLeader,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from tidelog.log.producers import ProducerStates
from tidelog.model import NO_EPOCH, NO_OFFSET
from tidelog.partition.catchup import CatchUp, Key, State
from tidelog.partition.driver import Partition
from tidelog.replication import follower_sessions as feeding
from tidelog.replication.follower_sessions import WATERMARK_SECONDS, FollowerSessions
from tidelog.replication.lagging_followers import LaggingFollowers
from tidelog.simulation.host import SimulatedClock

EPOCH = 4
LIFE = 20
WAIT_MS = 500


class Place:
    """Where one answer goes; it may be given once."""

    is_gone = False

    def __init__(self) -> None:
        self.answer: FetchReplicasAnswer | None = None
        self.data = b""

    def send_with(self, message: Any, buffers: Any) -> None:
        assert self.answer is None, "answered twice"
        self.answer, self.data = message, b"".join(buffers)

    def send(self, message: Any) -> None:
        raise AssertionError("data may go beside it")

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)

    @property
    def is_answered(self) -> bool:
        return self.answer is not None

    @property
    def part(self) -> ReplicaPart:
        assert self.answer is not None, "it is parked"
        (part,) = self.answer.parts
        return part


class Stage:
    """Node 1 leads partitions 0 and 1; nodes 2 and 3 ask it."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.replicas = Replicas(1, clock)
        self.member = Member(0, 1, 9)
        self.config = NodeConfig(catchup_threshold_records=3)
        self.catching_up = LaggingFollowers(
            self.replicas.host,
            self.replicas,  # type: ignore[arg-type]
            config=lambda: self.config,
            image=lambda: self.member.metadata.image,
            reports=ReplicaReports,
        )
        self.feeding = FollowerSessions(
            self.replicas.host,
            self.member,  # type: ignore[arg-type]
            self.replicas,  # type: ignore[arg-type]
            self.catching_up,
        )
        self.suspected: list[tuple[Partition, int]] = []
        self.joining: list[Partition] = []
        self.feeding.on_suspect = lambda partition, offset: self.suspected.append((partition, offset))
        self.feeding.on_may_join = self.joining.append
        for number in (0, 1):
            self.replicas.open(number).lead(EPOCH, (1, 2), replicas=(1, 2, 3))
        self.partition = self.replicas.partitions[0]

    def ask(
        self, *positions: tuple[int, ...], node: int = 2, session: int = 1, life: int = LIFE, **more: Any
    ) -> Place:
        """(cluster id, offset, last epoch, epoch); the last two are the leader's if not given."""
        place = Place()
        defaults = (0, 0, NO_EPOCH, EPOCH)
        listed = []
        for position in positions:
            cluster_id, offset, last_epoch, epoch = position + defaults[len(position) :]
            if len(position) < 3 and offset:
                last_epoch = EPOCH
            listed.append(ReplicaPosition(cluster_id, epoch, offset, last_epoch))
        asked = FetchReplicas(
            session=session, broker_epoch=life, positions=tuple(listed), wait_ms=WAIT_MS, **more
        )
        self.member.handlers[FetchReplicas](node, asked, place)
        return place

    def begin_at(self, position: ReplicaPosition) -> Place:
        place = Place()
        asked = FetchReplicas(session=1, broker_epoch=LIFE, is_new=True, positions=(position,))
        self.member.handlers[FetchReplicas](2, asked, place)
        return place

    def begin(self, *positions: tuple[int, ...], **more: Any) -> Place:
        return self.ask(*positions, is_new=True, **more)

    def tell(
        self, end: int, *, cluster_id: int = 0, session: int = 1, life: int = LIFE, epoch: int = EPOCH
    ) -> None:
        told = Progress(
            session=session, broker_epoch=life, replicas=[ReplicaProgress(cluster_id, epoch, end)]
        )
        self.member.handlers[Progress](2, told, None)

    async def synced(self) -> None:
        await self.replicas.rounds.drained()

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.catching_up.configure()

    def catch_up(self, number: int = 0, node: int = 3) -> CatchUp:
        found = self.catching_up.all.get(Key(number, node))
        assert found is not None
        return found


def on_stage(story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        stage = Stage(clock)
        await story(stage)
        assert stage.replicas.fatal == []

    virtual_time.run(main(), clock)


# Full disks.


def test_a_follower_whose_disk_is_full_is_left_out_at_once():
    async def story(stage):
        stage.begin((0, 0))
        stage.joining.clear()

        stage.ask(full=(0, 7))

        assert stage.joining == [stage.partition]
        assert stage.partition.leader.propose(0.0, 30.0, {1: 10, 2: LIFE, 3: 30}) == {1: 10}

    on_stage(story)


# One request at a time, parked.


def test_a_new_session_hears_at_once_that_the_logs_agree():
    async def story(stage):
        place = stage.begin((0, 0))

        assert place.part == ReplicaPart(0, 0, 0, 0, 0, wanted_start=0)

    on_stage(story)


def test_what_is_there_is_sent_from_the_offset_that_is_asked_for():
    async def story(stage):
        for _ in range(3):
            append(stage.partition)

        place = stage.begin((0, 1))

        assert offsets_in(place.data) == [(EPOCH, 1), (EPOCH, 2)]
        assert place.part.size == len(place.data)

    on_stage(story)


def test_a_request_that_finds_nothing_is_parked_until_a_record_comes():
    async def story(stage):
        stage.begin((0, 0))
        place = stage.ask()
        await asyncio.sleep(0.2)
        assert place.answer is None

        append(stage.partition)
        append(stage.partition)
        await asyncio.sleep(0)

        assert offsets_in(place.data) == [(EPOCH, 0), (EPOCH, 1)]

    on_stage(story)


def test_a_parked_request_is_answered_when_its_time_is_up():
    async def story(stage):
        stage.begin((0, 0))
        place = stage.ask()

        await asyncio.sleep(WAIT_MS / 1000 - 0.01)
        assert place.answer is None
        await asyncio.sleep(0.02)
        assert place.answer == FetchReplicasAnswer()

    on_stage(story)


def test_a_follower_that_has_something_else_to_ask_is_answered_now():
    async def story(stage):
        stage.begin((0, 0))
        place = stage.ask()

        stage.member.handlers[AnswerNow](2, AnswerNow(session=99), None)
        assert not place.is_answered
        stage.member.handlers[AnswerNow](2, AnswerNow(session=1), None)
        assert place.is_answered
        stage.member.handlers[AnswerNow](2, AnswerNow(session=1), None)  # late: nothing waits

    on_stage(story)


def test_a_request_that_the_follower_gave_up_is_answered_before_the_next_is_parked():
    async def story(stage):
        stage.begin((0, 0))
        first, second = stage.ask(), stage.ask()

        assert first.answer == FetchReplicasAnswer()
        assert second.answer is None

    on_stage(story)


def test_what_was_sent_is_not_sent_again_until_the_follower_says_where_it_reads_on():
    async def story(stage):
        append(stage.partition)
        assert stage.begin((0, 0)).part.size

        append(stage.partition)
        place = stage.ask()
        await asyncio.sleep(0)
        assert place.answer is None

        stage.member.handlers[AnswerNow](2, AnswerNow(session=1), None)
        assert offsets_in(stage.ask((0, 1)).data) == [(EPOCH, 1)]

    on_stage(story)


def test_the_same_offset_again_brings_the_same_records_again():
    async def story(stage):
        append(stage.partition)
        first = stage.begin((0, 0))

        assert stage.ask((0, 0)).data == first.data

    on_stage(story)


def test_partitions_that_nothing_happens_to_are_not_told_of():
    async def story(stage):
        stage.begin((0, 0), (1, 0))
        place = stage.ask()

        append(stage.replicas.partitions[1])
        await asyncio.sleep(0)

        assert place.part.cluster_id == 1

    on_stage(story)


def test_an_answer_holds_so_much_and_the_rest_goes_with_the_next(monkeypatch):
    monkeypatch.setattr("tidelog.replication.follower_sessions.ANSWER_BYTES_MAX", 100)

    async def story(stage):
        for partition in stage.replicas.all():
            append(partition, size=100)

        first = stage.begin((0, 0), (1, 0))
        assert first.part.cluster_id == 0
        second = stage.ask()
        assert second.part.cluster_id == 1

    on_stage(story)


# Watermarks.


def test_news_of_a_watermark_waits_a_little_for_records_to_go_with():
    async def story(stage):
        append(stage.partition)
        stage.begin((0, 0))
        await stage.synced()
        place = stage.ask((0, 1))
        assert place.answer is None

        stage.tell(1)
        await asyncio.sleep(WATERMARK_SECONDS / 2)
        assert place.answer is None
        await asyncio.sleep(WATERMARK_SECONDS)

        assert place.part == ReplicaPart(0, 0, 1, 0, 0, wanted_start=0)

    on_stage(story)


def test_news_of_a_watermark_goes_with_records():
    async def story(stage):
        append(stage.partition)
        stage.begin((0, 0))
        await stage.synced()
        place = stage.ask((0, 1))
        stage.tell(1)

        append(stage.partition)
        await asyncio.sleep(0)

        assert (place.part.watermark, offsets_in(place.data)) == (1, [(EPOCH, 1)])

    on_stage(story)


def test_every_rise_is_told_though_an_earlier_look_found_nothing():
    """A watermark that was told already leaves nothing behind that keeps the next from being."""

    async def story(stage):
        append(stage.partition, 2)
        stage.begin((0, 0))
        await stage.synced()
        place = stage.ask((0, 2))
        for interest in stage.feeding._sessions[2].interests.values():
            interest.watermark_rose()  # no news
        await asyncio.sleep(2 * WATERMARK_SECONDS)
        assert place.answer is None

        stage.tell(1)
        await asyncio.sleep(2 * WATERMARK_SECONDS)

        assert place.part.watermark == 1

    on_stage(story)


# Comparing.


@pytest.mark.parametrize(("offset", "last_epoch", "found"), [(5, 2, (2, 0)), (9, EPOCH, (EPOCH, 3))])
def test_a_log_that_differs_is_told_where(offset, last_epoch, found):
    async def story(stage):
        append(stage.partition, 3)

        part = stage.begin((0, offset, last_epoch)).part

        assert part.differs
        assert (part.epoch, part.end) == found
        assert 0 not in stage.feeding._sessions[2].interests

    on_stage(story)


def test_what_differs_counts_nowhere():
    async def story(stage):
        append(stage.partition, 3)
        await stage.synced()
        stage.begin((0, 9))

        stage.tell(3)

        assert stage.partition.high_watermark == 0
        assert stage.partition.leading().followers[2].offset == NO_OFFSET

    on_stage(story)


@pytest.mark.parametrize(
    ("position", "error"),
    [
        ((0, 0, NO_EPOCH, EPOCH - 1), FencedLeaderEpoch),
        ((0, 0, NO_EPOCH, EPOCH + 1), UnknownLeaderEpoch),
        ((9, 0), UnknownTopicOrPartition),  # in the metadata, not open yet
        ((5, 0), UnknownTopicOrPartition),
    ],
)
def test_who_asks_for_what_is_not_led_here_is_told_so_and_forgotten(position, error):
    async def story(stage):
        place = stage.begin(position)

        assert place.part.error == error.code
        assert stage.feeding._sessions[2].interests == {}

    on_stage(story)


def test_what_is_deleted_is_told_with_where_the_log_begins():
    async def story(stage):
        append(stage.partition, 3)
        append(stage.partition, 3)
        stage.partition.log.advance_start(3)

        part = stage.begin((0, 2), node=3).part

        assert (part.error, part.start) == (OffsetOutOfRange.code, 3)

    on_stage(story)


def append_as(partition: Partition, producer_id: int, count: int = 1) -> None:
    batch = make_batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    partition.appender.append(batch, acks=1, waiter=Producer(), pins_bytes=len(batch))


def test_who_begins_anew_is_told_who_wrote_what_is_deleted():
    async def story(stage):
        append_as(stage.partition, 7, 3)
        append_as(stage.partition, 8, 3)
        stage.partition.log.advance_start(3)

        told = ProducerStates.decode(stage.begin((0, 2), node=3).part.producers)

        assert told.last_offsets() == {7: 2}

    on_stage(story)


def test_an_empty_log_that_knows_no_producers_is_told_of_them_where_it_is():
    async def story(stage):
        append_as(stage.partition, 7, 3)
        append_as(stage.partition, 8, 3)
        stage.partition.log.advance_start(3)
        position = ReplicaPosition(0, EPOCH, 6, NO_EPOCH, lacks_producers=True)

        part = stage.begin_at(position).part

        assert (part.error, part.start) == (OffsetOutOfRange.code, 6)
        assert ProducerStates.decode(part.producers).last_offsets() == {7: 2, 8: 5}

    on_stage(story)


def with_nothing_before(stage: Stage) -> None:
    """A log that begins at 3, where a later epoch begins; what is deleted was written by 7."""
    append_as(stage.partition, 7, 3)
    stage.partition.log.advance_start(3)
    stage.partition.resign(NotLeader(leader=None))
    stage.partition.lead(EPOCH + 1, (1, 2), replicas=(1, 2, 3))
    append(stage.partition)
    assert list(stage.partition.log.epochs) == [(EPOCH + 1, 3)]


@pytest.mark.parametrize("offset", [3, 5])
def test_who_has_nothing_of_what_is_here_is_told_at_once_who_wrote_what_is_deleted(offset):
    async def story(stage):
        with_nothing_before(stage)

        part = stage.begin((0, offset, EPOCH, EPOCH + 1), node=3).part

        assert (part.error, part.start) == (OffsetOutOfRange.code, 3)
        assert ProducerStates.decode(part.producers).last_offsets() == {7: 2}

    on_stage(story)


def make_eligible(stage: Stage, node: int) -> None:
    stage.partition.decided((1,), 1, (1, 2, 3))
    stage.member.metadata.image.places[0].partition.eligible = frozenset({node})


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_who_may_lead_keeps_what_is_deleted_here_and_reads_on_behind_it(is_in_sync):
    async def story(stage):
        with_nothing_before(stage)
        if not is_in_sync:
            make_eligible(stage, 2)

        place = stage.begin((0, 3, EPOCH, EPOCH + 1))

        assert place.part.error == 0
        assert offsets_in(place.data) == [(EPOCH + 1, 3)]

    on_stage(story)


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_who_may_lead_cuts_what_the_leader_never_had_and_no_more(is_in_sync):
    async def story(stage):
        with_nothing_before(stage)
        if not is_in_sync:
            make_eligible(stage, 2)

        part = stage.begin((0, 5, EPOCH, EPOCH + 1)).part

        assert (part.differs, part.epoch, part.end) == (True, EPOCH, 3)

    on_stage(story)


@pytest.mark.parametrize("position", [(0, 2), (0, 9, NO_EPOCH)])
@pytest.mark.parametrize("is_in_sync", [True, False])
def test_who_may_lead_begins_anew_only_once_it_may_not(is_in_sync, position):
    async def story(stage):
        append(stage.partition, 3)
        append(stage.partition, 3)
        stage.partition.log.advance_start(3)
        if not is_in_sync:
            make_eligible(stage, 2)
        assert stage.begin(position).part.error == IneligibleReplica.code

        make_eligible(stage, 3)

        assert stage.ask(position).part.error == OffsetOutOfRange.code

    on_stage(story)


def test_what_a_follower_told_before_it_begins_anew_is_forgotten():
    """By that it might join the in-sync set, and lead, when it holds nothing any more."""

    async def story(stage):
        append(stage.partition)
        stage.partition.decided((1,), 1, (1, 2, 3))
        stage.begin((0, 1))
        stage.tell(1)
        assert stage.partition.leading().followers[2].held == 1
        stage.partition.purges.add(2)

        assert stage.begin((0, 1)).part.error == OffsetOutOfRange.code
        stage.tell(1)  # it was on its way

        assert stage.partition.leading().followers[2].held == NO_OFFSET

    on_stage(story)


def test_an_answer_tells_of_so_many_producers_and_who_hears_nothing_asks_again(monkeypatch):
    monkeypatch.setattr(feeding, "ANSWER_BYTES_MAX", feeding.PARTITION_BYTES_MAX)

    async def story(stage):
        for partition in stage.replicas.partitions.values():
            append(partition, 3)
            partition.log.advance_start(3)

        parts = stage.begin((0, 0), (1, 0), node=3).answer.parts

        assert [p.error for p in parts] == [OffsetOutOfRange.code, IneligibleReplica.code]
        again = stage.ask((1, 0), node=3).part
        assert again.error == OffsetOutOfRange.code and again.producers

    on_stage(story)


def test_a_follower_of_an_older_release_is_understood():
    found = msgspec.msgpack.decode(msgspec.msgpack.encode((0, EPOCH, 6, 2, -1)), type=ReplicaPosition)

    assert found == ReplicaPosition(0, EPOCH, 6, 2)
    assert not found.lacks_producers


def test_who_loses_the_lead_says_so_to_those_who_wait():
    async def story(stage):
        stage.begin((0, 0), (1, 0))
        place = stage.ask()

        stage.partition.resign(NotLeader(leader=3))
        await asyncio.sleep(0)

        assert place.part.error == NotLeader.code
        assert list(stage.feeding._sessions[2].interests) == [1]
        assert stage.partition._watchers == stage.partition._log_watchers == {}

    on_stage(story)


def test_another_epoch_is_another_comparison():
    async def story(stage):
        append(stage.partition, 3)
        stage.begin((0, 0))
        stage.partition.resign(NotLeader(leader=None))
        stage.partition.lead(EPOCH + 1, (1, 2), replicas=(1, 2, 3))

        assert stage.ask((0, 3)).part.error == FencedLeaderEpoch.code
        assert stage.ask((0, 3, EPOCH, EPOCH + 1)).part.error == 0

    on_stage(story)


# Progress.


def test_an_offset_that_is_asked_for_acknowledges_nothing():
    async def story(stage):
        producer = append(stage.partition)
        await stage.synced()

        stage.begin((0, 1))
        assert producer.told == []
        stage.tell(1)
        assert producer.told == [None]

    on_stage(story)


@pytest.mark.parametrize(
    "wrong", [{"session": 2}, {"life": LIFE - 1}, {"epoch": EPOCH - 1}, {"cluster_id": 1}]
)
def test_a_word_of_another_session_life_or_epoch_is_passed_over(wrong):
    async def story(stage):
        append(stage.partition)
        await stage.synced()
        stage.begin((0, 1))

        stage.tell(1, **wrong)

        assert stage.partition.high_watermark == 0

    on_stage(story)


def test_nobody_holds_more_than_there_is():
    async def story(stage):
        append(stage.partition)
        await stage.synced()
        stage.begin((0, 1))

        stage.tell(99)

        assert stage.partition.leading().followers[2].held == 1

    on_stage(story)


def test_who_is_not_in_sync_and_comes_closer_is_looked_at():
    async def story(stage):
        stage.begin((0, 0), node=3)
        assert stage.joining == [stage.partition]

        stage.begin((0, 0), node=2)
        stage.tell(0)
        assert stage.joining == [stage.partition], "2 is in sync"

    on_stage(story)


def test_who_leaves_the_set_is_told_to_say_again_what_it_holds():
    async def story(stage):
        append(stage.partition)
        stage.begin((0, 1))
        place = stage.ask()

        stage.partition.decided((1,), 1, (1, 2, 3))
        await asyncio.sleep(0)
        assert place.part.error == IneligibleReplica.code
        stage.tell(1)
        assert stage.partition.leading().followers[2].held == NO_OFFSET

        stage.ask((0, 1))
        stage.tell(1)
        assert stage.partition.leading().followers[2].held == 1

    on_stage(story)


def test_a_request_on_its_way_when_its_follower_left_the_set_is_refused():
    """What was told with it is forgotten; an idle follower would never tell it again."""

    async def story(stage):
        append(stage.partition)
        stage.begin((0, 0))
        stage.partition.decided((1,), 1, (1, 2, 3))

        stage.tell(1)
        place = stage.ask((0, 1))

        assert place.part.error == IneligibleReplica.code
        place = stage.ask((0, 1))
        assert place.part.error == 0, "it hears that the logs agree, and tells again"
        stage.tell(1)
        assert stage.partition.leading().followers[2].held == 1

    on_stage(story)


class Question(Place):
    """Where the answer to a question without data goes."""

    def send(self, message: Any) -> None:
        self.answer = message


def forget(stage: Stage, node: int, epoch: int = EPOCH) -> Any:
    place = Question()
    asked = ForgetReplica(cluster_id=0, epoch=epoch)
    stage.member.handlers[ForgetReplica](node, asked, place)
    return place.answer


def test_what_a_follower_discards_is_forgotten_once_nobody_counts_on_it():
    async def story(stage):
        append(stage.partition)
        stage.begin((0, 1))
        stage.tell(1)
        assert not forget(stage, 2).is_forgotten, "it is in sync"

        stage.partition.decided((1,), 7, (1, 2, 3))
        assert stage.ask((0, 1)).part.error == IneligibleReplica.code
        stage.ask((0, 1))
        stage.tell(1)
        answer = forget(stage, 2)

        assert (answer.is_forgotten, answer.partition_epoch) == (True, 7)
        stage.tell(1)  # it was on its way
        assert stage.partition.leading().followers[2].held == NO_OFFSET

    on_stage(story)


def test_nobody_but_the_leader_of_the_epoch_forgets_a_follower():
    async def story(stage):
        assert not forget(stage, 3, epoch=EPOCH + 1).is_forgotten
        assert forget(stage, 3).is_forgotten

    on_stage(story)


def test_what_a_follower_found_damaged_is_looked_into_from_where_it_reads():
    async def story(stage):
        append(stage.partition, 3)
        stage.begin((0, 0), (1, 0))

        stage.ask(corrupt=(0, 9))

        assert stage.suspected == [(stage.partition, 0)]

    on_stage(story)


# Sessions.


def test_a_session_that_is_not_known_must_be_begun_anew():
    async def story(stage):
        assert stage.ask((0, 0)).answer == FetchReplicasAnswer(is_known=False)
        stage.begin((0, 0))
        assert stage.ask((0, 0), session=2).answer == FetchReplicasAnswer(is_known=False)
        assert stage.ask((0, 0), life=LIFE + 1).answer == FetchReplicasAnswer(is_known=False)
        assert stage.ask((0, 0)).answer is None

    on_stage(story)


def test_a_new_session_ends_the_old_one_and_answers_what_it_parked():
    async def story(stage):
        stage.begin((0, 0), (1, 0))
        parked = stage.ask()

        stage.begin((0, 0), session=2)

        assert parked.answer == FetchReplicasAnswer(is_known=False)
        assert len(stage.partition._log_watchers) == len(stage.partition._watchers) == 1
        assert stage.replicas.partitions[1]._log_watchers == {}

    on_stage(story)


def test_a_lost_connection_ends_the_session_and_leaves_no_watcher():
    async def story(stage):
        stage.begin((0, 0), (1, 0))
        stage.ask()

        for call in stage.member.gone:
            call(2)
            call(2)
        await asyncio.sleep(1)

        assert stage.feeding._sessions == {}
        assert all(not p._watchers and not p._log_watchers for p in stage.replicas.all())

    on_stage(story)


def test_what_is_forgotten_is_fed_no_more():
    async def story(stage):
        stage.begin((0, 0), (1, 0))
        place = stage.ask(forgotten=(0,))

        append(stage.partition)
        await asyncio.sleep(0.1)

        assert place.answer is None
        assert stage.partition._log_watchers == {}

    on_stage(story)


# Reading from disk.


async def with_cold_records(stage):
    """Three batches, of which memory holds the last."""
    for _ in range(3):
        append(stage.partition)
    await stage.synced()
    stage.partition.log.tail.drop_before(2)
    assert stage.partition.log.tail.start == 2


def test_what_memory_does_not_hold_is_read_while_everything_else_goes_on():
    async def story(stage):
        await with_cold_records(stage)

        place = stage.begin((0, 0), (1, 0))
        assert [part.size for part in place.answer.parts] == [0, 0], "it is not waited for"
        place = stage.ask()
        await asyncio.sleep(0.1)

        assert offsets_in(place.data) == [(EPOCH, 0), (EPOCH, 1), (EPOCH, 2)]

    on_stage(story)


def test_a_follower_that_reads_elsewhere_meanwhile_is_not_kept_waiting():
    async def story(stage):
        await with_cold_records(stage)
        stage.begin((0, 0))
        place = stage.ask((0, 1))
        await asyncio.sleep(WAIT_MS / 1000 / 2)

        assert offsets_in(place.data)[0] == (EPOCH, 1)

    on_stage(story)


def test_what_is_read_while_tombstones_behind_it_go_is_not_sent():
    """It may lack them, and the follower would read on behind what was purged."""

    async def story(stage):
        await with_cold_records(stage)

        stage.begin((0, 0), node=3)
        stage.partition.purges.add(2)
        place = stage.ask(node=3)
        await asyncio.sleep(0.1)

        assert (place.part.error, place.data) == (IneligibleReplica.code, b"")
        part = stage.ask((0, 0), node=3).part
        assert (part.error, part.purged, part.purges) == (OffsetOutOfRange.code, 2, 1)

    on_stage(story)


def test_who_waits_for_a_place_while_tombstones_go_asks_again_and_begins_anew():
    async def story(stage):
        stage.configure(catchup_concurrent_max=1)
        for partition in stage.replicas.all():
            append(partition, 10)
        await stage.synced()
        stage.begin((0, 0), (1, 0), node=3)
        assert stage.catch_up(1).state is State.WAITING

        stage.replicas.partitions[1].purges.add(5)
        place = stage.ask((0, 10), node=3)
        await asyncio.sleep(0.01)

        part = next(part for part in place.answer.parts if part.cluster_id == 1)
        assert part.error == IneligibleReplica.code
        part = stage.ask((1, 0), node=3).part
        assert (part.error, part.purged, part.purges) == (OffsetOutOfRange.code, 5, 1)

    on_stage(story)


def test_a_read_for_a_session_that_has_ended_goes_nowhere():
    async def story(stage):
        await with_cold_records(stage)
        stage.begin((0, 0))
        place = stage.begin((0, 3), session=2)
        assert place.part.size == 0
        place = stage.ask(session=2)
        await asyncio.sleep(0.1)

        assert place.answer is None

    on_stage(story)


def test_what_cannot_be_read_is_told_and_asked_for_again():
    async def story(stage):
        await with_cold_records(stage)
        stage.partition.log.segments[0].file = None
        stage.replicas.disk.remove(stage.partition.log.segments[0].path())
        stage.begin((0, 0))
        place = stage.ask()
        await asyncio.sleep(0.1)

        assert place.part.error != 0
        assert stage.feeding._sessions[2].interests == {}

    on_stage(story)


# Who is level.


def test_who_waits_at_the_end_stays_level_though_it_says_nothing():
    async def story(stage):
        stage.begin((0, 0))
        for _ in range(10):
            stage.ask()
            await asyncio.sleep(WAIT_MS / 1000)
        await stage.feeding.note_level()

        assert stage.partition.leading().followers[2].level_at >= 4.5

    on_stage(story)


def test_who_asks_but_does_not_reach_the_end_does_not_stay_level():
    async def story(stage):
        append(stage.partition, 3)
        stage.begin((0, 0))
        for _ in range(10):
            stage.ask()
            await asyncio.sleep(WAIT_MS / 1000)
        await stage.feeding.note_level()

        assert stage.partition.leading().followers[2].level_at == 0

    on_stage(story)


# Catching up.


def test_a_follower_far_behind_and_out_of_sync_is_a_catch_up():
    async def story(stage):
        append(stage.partition, 10)
        await stage.synced()

        place = stage.begin((0, 0), node=3)

        assert place.is_answered
        found = stage.catch_up()
        assert (found.first, found.target, found.state) == (0, 10, State.RUNNING)
        assert found.bytes_sent == len(place.data)

        stage.ask((0, 10), node=3)
        assert len(stage.catching_up.all) == 0
        assert [one.state for one in stage.catching_up.all.ended] == [State.DONE]

    on_stage(story)


def test_nobody_near_or_in_sync_is_one():
    async def story(stage):
        append(stage.partition, 10)
        await stage.synced()

        stage.begin((0, 0), node=2)
        stage.begin((0, 8), node=3)

        assert len(stage.catching_up.all) == 0

    on_stage(story)


def test_who_catches_up_waits_for_its_pace_and_nobody_else_does():
    async def story(stage):
        stage.configure(catchup_bytes_per_second=1000)
        for _ in range(5):
            append(stage.partition, 5, size=300)
        await stage.synced()
        first = stage.begin((0, 0), node=3)
        stage.begin((0, 25), node=2, session=2)
        for _ in range(5):
            append(stage.partition, 5, size=300)
        await stage.synced()
        sent = len(first.data)
        began_at = stage.clock.monotonic()

        second = stage.ask((0, 25), node=3)
        others = stage.ask((0, 25), node=2, session=2)
        assert others.is_answered
        assert not second.is_answered

        while not second.is_answered or not second.data:
            if second.is_answered:
                second = stage.ask(node=3)
            await asyncio.sleep(0.01)
        assert stage.clock.monotonic() - began_at >= sent / 1000 - 0.2

    on_stage(story)


def test_another_pace_holds_for_those_who_wait():
    async def story(stage):
        stage.configure(catchup_bytes_per_second=1)
        append(stage.partition, 10, size=300)
        await stage.synced()
        stage.begin((0, 0), node=3)
        append(stage.partition, 10, size=300)
        waiting = stage.ask((0, 10), node=3)
        await asyncio.sleep(0.1)
        assert not waiting.is_answered

        stage.configure(catchup_bytes_per_second=0)
        await asyncio.sleep(0)

        assert waiting.data

    on_stage(story)


def test_only_so_many_catch_up_at_once():
    async def story(stage):
        stage.configure(catchup_concurrent_max=1)
        for partition in stage.replicas.all():
            append(partition, 10)
        await stage.synced()

        first = stage.begin((0, 0), (1, 0), node=3)
        assert [(part.cluster_id, part.size > 0) for part in first.answer.parts] == [(0, True), (1, False)]
        assert stage.catch_up(1).state is State.WAITING

        second = stage.ask((0, 10), node=3)  # it is done with the first
        await asyncio.sleep(0.01)

        assert [(part.cluster_id, part.size > 0) for part in second.answer.parts][-1] == (1, True)

    on_stage(story)


def test_a_follower_that_comes_back_goes_on():
    async def story(stage):
        append(stage.partition, 10)
        await stage.synced()
        stage.begin((0, 0), node=3)
        found = stage.catch_up()
        for call in stage.member.gone:
            call(3)
        assert (found.state, found.why) == (State.INTERRUPTED, "node 3 is away")

        stage.begin((0, 5), node=3, session=2)

        assert stage.catch_up() is found
        assert (found.state, found.attempts, found.first) == (State.RUNNING, 2, 0)

    on_stage(story)


def test_what_was_deleted_is_begun_anew_and_said_so():
    async def story(stage):
        append(stage.partition, 10)
        await stage.synced()
        stage.partition.log.advance_start(6)

        place = stage.begin((0, 0), node=3)

        assert place.part.error == OffsetOutOfRange.code
        found = stage.catch_up()
        assert (found.began_anew, found.first) == (True, 6)

    on_stage(story)


def test_a_follower_says_what_keeps_it():
    async def story(stage):
        append(stage.partition, 10)
        await stage.synced()
        stage.begin((0, 0), node=3)

        stage.ask((0, 0), node=3, troubles=((0, "the disk is full"),))

        assert stage.catch_up().why == "the disk is full"

    on_stage(story)


def test_what_the_leader_cannot_read_stalls_it_and_is_said():
    async def story(stage):
        for _ in range(10):
            append(stage.partition)
        await stage.synced()
        log = stage.partition.log
        log.tail.drop_before(9)
        log.segments[0].file = None
        stage.replicas.disk.remove(log.segments[0].path())
        stage.begin((0, 0), node=3)
        for _ in range(15):
            await asyncio.sleep(1)
            stage.ask((0, 0), node=3)
        stage.catching_up.all.look(stage.clock.monotonic())

        found = stage.catch_up()
        assert (found.state, found.attempts) == (State.STALLED, 1)
        assert "the leader cannot read it" in found.why

    on_stage(story)


def test_what_is_older_than_all_epochs_here_is_begun_anew_and_said_so():
    async def story(stage):
        append(stage.partition, 10)
        await stage.synced()

        place = stage.begin((0, 3, EPOCH - 1), node=3)

        assert (place.part.error, place.part.start) == (OffsetOutOfRange.code, 0)
        found = stage.catch_up()
        assert (found.began_anew, found.first) == (True, 0)

    on_stage(story)


def test_who_waits_for_a_place_is_looked_at_once_it_has_one_and_not_before():
    async def story(stage):
        stage.configure(catchup_concurrent_max=1)
        for partition in stage.replicas.all():
            append(partition, 10)
        await stage.synced()
        stage.begin((0, 0), (1, 0), node=3)
        may_send, looks = stage.catching_up.may_send, []

        def look(*args: Any) -> int:
            looks.append(args)
            return may_send(*args)

        stage.catching_up.may_send = look
        for _ in range(10):
            waiting = stage.ask(node=3)
            await asyncio.sleep(WAIT_MS / 1000)
        waiting = stage.ask(node=3)
        assert (waiting.answer, looks) == (None, [])

        stage.configure(catchup_concurrent_max=2)
        await asyncio.sleep(0)

        assert (waiting.part.cluster_id, waiting.part.size > 0) == (1, True)

    on_stage(story)
