import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation import virtual_time
from tests.support.replicas import Producer, Replicas
from tests.unit.coordinators.transacting import Gate, on_a_coordinator, seen
from tests.unit.coordinators.transacting import Producer as Transactional
from tests.unit.log.logs import make_batch
from tidelog.cluster.messages import Place, TransactionEnd, WriteMarkers, WriteMarkersAnswer
from tidelog.config import TopicConfig
from tidelog.coordinators.markers import Ending, MarkerSender, MarkerWriter
from tidelog.errors import NotLeader
from tidelog.model import NO_NODE, OFFSETS_TOPIC, TopicPartition
from tidelog.peers.stream import PeerUnreachable
from tidelog.records import TRANSACTIONAL
from tidelog.simulation.host import SimulatedClock

EPOCH, LIFE = 3, 20
OK, UNKNOWN, NOT_LEADER, TIMED_OUT, SHORT, AFTER_APPEND = 0, 3, 6, 7, 19, 20
INVALID_EPOCH, COORDINATOR_FENCED, STORAGE = 47, 52, 56
PRODUCER = 7


class Answered:
    """Where the answer to a coordinator goes."""

    is_gone = False

    def __init__(self) -> None:
        self.codes: Any = None

    def send(self, message: WriteMarkersAnswer) -> None:
        assert self.codes is None, "answered twice"
        self.codes = message.codes

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


class Leader:
    """Node 1 leads a partition; node 2 holds it, too, and commits what is appended."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.replicas = Replicas(1, clock)
        self.partition = self.replicas.open(0)
        self.lead(EPOCH)
        broker: Any = SimpleNamespace(partition=self.replicas.find, host=self.replicas.host)
        self.ended: list[tuple[int, int]] = []
        self.offsets: list[tuple[int, int, bool, int]] = []
        self.writer = MarkerWriter(
            broker,
            on_end=lambda partition, producer, epoch: self.ended.append((producer, epoch)),
            on_offsets=lambda *told: self.offsets.append(told),
        )

    def lead(self, epoch: int, in_sync: tuple[int, ...] = (1, 2)) -> None:
        self.partition.lead(epoch, in_sync, replicas=(1, 2), replication=1)

    def write(self, count: int = 1, sequence: int = 0) -> None:
        """A batch of the producer's transaction, in epoch 0."""
        batch = make_batch(
            count,
            time_ms=self.replicas.host.clock.wall_ms(),
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        self.partition.appender.append(
            batch, acks=-1, waiter=Producer(), pins_bytes=len(batch), is_transactional=True
        )

    def ask(self, *ends: TransactionEnd) -> Any:
        answer: Any = Answered()
        self.writer.on_write_markers(2, WriteMarkers(ends=ends), answer)
        return answer

    async def commit(self) -> None:
        """Let everything appended be held by both."""
        while self.partition.log.synced_end < self.partition.log.end:
            await asyncio.sleep(0.01)
        leader, end = self.partition.leading(), self.partition.log.end
        leader.fetched(2, LIFE, end, end, 0.0)
        self.partition.follower_holds(2, leader.epoch, end, LIFE)

    async def commit_alone(self) -> None:
        while self.partition.high_watermark < self.partition.log.end:
            await asyncio.sleep(0.01)

    @property
    def markers(self) -> int:
        """How many stand, beside the one batch of the transaction."""
        return self.partition.log.end - 1

    @property
    def is_open(self) -> bool:
        return self.partition.log.producers.is_in_transaction(PRODUCER)


def end_of(
    number: int = 1,
    *,
    topic: str = "tide",
    partition: int = 0,
    epoch: int = 0,
    is_bumped: bool = False,
    coordinator_epoch: int = 5,
) -> TransactionEnd:
    return TransactionEnd(
        PRODUCER, epoch, True, is_bumped, coordinator_epoch, number, (Place(topic, partition),)
    )


def leading(story: Callable[[Leader], Coroutine[Any, Any, None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        await story(Leader(clock))

    virtual_time.run(main(), clock)


# Writing.


def test_a_marker_is_answered_once_it_is_committed_and_ends_the_transaction():
    async def story(leader):
        leader.write()
        answer = leader.ask(end_of())
        assert not leader.is_open
        assert not answer.codes

        await leader.commit()

        assert answer.codes == ((OK,),)
        assert leader.ended == [(PRODUCER, 1)], "epoch 0 has ended, 1 has not"

    leading(story)


def test_a_marker_of_the_next_epoch_ends_only_those_before():
    async def story(leader):
        leader.write()

        leader.ask(end_of(epoch=1, is_bumped=True))

        assert leader.ended == [(PRODUCER, 1)]

    leading(story)


def test_a_marker_that_is_asked_for_again_is_not_written_again():
    async def story(leader):
        leader.write()
        answers = [leader.ask(end_of()), leader.ask(end_of())]
        assert leader.markers == 1

        await leader.commit()
        answers.append(leader.ask(end_of()))

        assert [answer.codes for answer in answers] == [((OK,),)] * 3
        assert leader.markers == 1

    leading(story)


def test_a_marker_that_was_held_up_does_not_end_the_next_transaction_of_the_same_epoch():
    async def story(leader):
        leader.write()
        leader.ask(end_of(1))
        await leader.commit()
        leader.write(sequence=1)

        answer = leader.ask(end_of(1))

        assert answer.codes == ((OK,),)
        assert leader.is_open
        leader.ask(end_of(2))
        assert not leader.is_open
        leader.write(sequence=2)
        leader.ask(end_of(1, coordinator_epoch=6))
        assert not leader.is_open, "another coordinator counts anew"

    leading(story)


def test_a_zombie_of_a_coordinator_is_refused():
    async def story(leader):
        leader.ask(end_of(1, coordinator_epoch=6))
        leader.partition.resign(NotLeader(leader=None))
        leader.lead(EPOCH + 1)  # who knows nothing of numbers
        leader.write(sequence=0)

        assert leader.ask(end_of(2, coordinator_epoch=5)).codes == ((COORDINATOR_FENCED,),)
        assert leader.is_open

    leading(story)


@pytest.mark.parametrize(("partition", "code"), [(0, NOT_LEADER), (1, UNKNOWN)])
def test_what_is_not_led_here_is_refused_at_once(partition, code):
    async def story(leader):
        leader.partition.resign(NotLeader(leader=2))

        assert leader.ask(end_of(partition=partition)).codes == ((code,),)

    leading(story)


def test_one_partition_that_cannot_commit_spoils_only_its_own_answer():
    async def story(leader):
        other = leader.replicas.open(1)
        other.lead(EPOCH, (1,))
        answer = leader.ask(end_of(1), end_of(2, partition=1))
        await asyncio.sleep(1)
        assert not answer.codes

        await asyncio.sleep(1.1)
        leader.partition.expire_waits(leader.replicas.host.clock.monotonic())  # as the node does

        assert answer.codes == ((TIMED_OUT,), (OK,))
        assert leader.partition.leading().waiting == 0

    leading(story)


def test_a_partition_that_is_short_of_replicas_is_not_waited_for():
    async def story(leader):
        first = leader.ask(end_of())
        leader.partition.configure(TopicConfig(min_insync_replicas=2))
        leader.partition.decided((1,), 9, (1, 2), 2)
        assert leader.partition.leading().is_short
        assert first.codes == ((AFTER_APPEND,),)

        again = leader.ask(end_of())

        assert again.codes == ((SHORT,),)
        assert leader.partition.leading().waiting == 0

    leading(story)


def test_groups_hear_of_a_marker_though_its_first_attempt_was_refused():
    async def story(leader):
        end = end_of(topic=OFFSETS_TOPIC)
        first = leader.ask(end)
        for waiter in leader.partition.leading().take_uncommitted():
            waiter.settled(NotLeader(leader=None))  # or too few were in sync for a moment
        assert first.codes == ((NOT_LEADER,),)
        assert leader.offsets == []

        again = leader.ask(end)
        await leader.commit()

        assert again.codes == ((OK,),)
        assert leader.offsets == [(0, PRODUCER, True, 0)]

    leading(story)


def test_a_marker_that_a_full_disk_has_lost_is_written_again():
    async def story(leader):
        leader.partition.resign(NotLeader(leader=None))
        leader.partition.lead(EPOCH + 1, (1,))
        leader.write()
        await leader.commit_alone()
        disk = leader.replicas.disk
        disk.capacity_bytes = disk._used_bytes
        lost = leader.ask(end_of())
        while lost.codes is None:
            await asyncio.sleep(0.01)
        assert lost.codes == ((STORAGE,),)
        early = leader.ask(end_of())
        while leader.partition.mending.is_busy:
            await asyncio.sleep(0.01)
        disk.capacity_bytes = None
        leader.partition.retry_full_disk(10**9)
        assert early.codes == ((STORAGE,),), "nobody waits for what is lost"
        assert leader.is_open

        again = leader.ask(end_of())
        while again.codes is None:
            await asyncio.sleep(0.01)

        assert again.codes == ((OK,),)
        assert not leader.is_open

    leading(story)


def test_a_topic_of_the_same_name_knows_nothing_of_the_markers_of_the_last():
    async def story(leader):
        leader.ask(end_of())
        fresh = leader.replicas.open(1)
        fresh.lead(EPOCH, (1,))
        leader.replicas.partitions[0] = fresh
        fresh.name = leader.partition.name

        leader.ask(end_of())

        assert fresh.log.end == 1

    leading(story)


# Sending.


class Coordinator:
    """A node that sends markers; `answers` says what each node answers."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.leaders = {"a": [1, 2], "b": [1]}
        self.asked: list[tuple[int, Any]] = []
        self.answer: Callable[[int, WriteMarkers], Any] = lambda node, asked: OK
        self.is_wanted = True
        self.marked: list[tuple[TopicPartition, ...]] = []
        self.tasks: list[Any] = []
        host = SimpleNamespace(random=random.Random(1), clock=clock)
        member = SimpleNamespace(hub=self)
        self.broker: Any = SimpleNamespace(host=host, member=member, spawn=self._spawn)
        broker: Any = self.broker
        self.sender = MarkerSender(broker)

    @property
    def image(self) -> Any:
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(partitions=[SimpleNamespace(leader=n) for n in leaders])
                for name, leaders in self.leaders.items()
            }
        )

    def _spawn(self, work: Any) -> Any:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def ask(self, node: int, asked: WriteMarkers, kind: type, *, seconds_max: float) -> Any:
        self.asked.append((node, [[(p.topic, p.partition) for p in end.places] for end in asked.ends]))
        code = self.answer(node, asked)
        if isinstance(code, BaseException):
            raise code
        if isinstance(code, asyncio.Event):
            await code.wait()
            code = OK
        return WriteMarkersAnswer(codes=tuple((code,) * len(end.places) for end in asked.ends))

    def ending(self, number: int = 1) -> Ending:
        return Ending(
            transactional_id="tx",
            producer_id=7,
            epoch=0,
            commits=True,
            is_bumped=False,
            coordinator_epoch=1,
            number=number,
            is_wanted=lambda: self.is_wanted,
            marked=self.marked.append,
        )

    def send(self, *places: tuple[str, int], number: int = 1) -> None:
        self.broker.image = self.image
        self.sender.send(self.ending(number), tuple(TopicPartition(*place) for place in places))

    def standing(self) -> set[tuple[str, int]]:
        return {(place.topic, place.partition) for places in self.marked for place in places}


def coordinating(story: Callable[[Coordinator], Coroutine[Any, Any, None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        coordinator = Coordinator(clock)
        await story(coordinator)
        assert all(task.exception() is None for task in coordinator.tasks if task.done())
        for task in coordinator.tasks:
            task.cancel()

    virtual_time.run(main(), clock)


def test_one_request_goes_to_each_broker_however_many_transactions_end():
    async def story(coordinator):
        coordinator.send(("a", 0), ("a", 1), ("b", 0), number=1)
        coordinator.send(("a", 0), number=2)
        await asyncio.sleep(0.01)

        assert coordinator.asked == [(1, [[("a", 0), ("b", 0)], [("a", 0)]]), (2, [[("a", 1)]])]
        assert coordinator.standing() == {("a", 0), ("a", 1), ("b", 0)}

    coordinating(story)


@pytest.mark.parametrize("failure", [NOT_LEADER, TIMED_OUT, STORAGE, PeerUnreachable("no answer")])
def test_a_marker_is_sent_until_it_stands_whoever_leads_by_then(failure):
    async def story(coordinator):
        coordinator.answer = lambda node, asked: failure if node == 1 else OK
        coordinator.send(("b", 0))
        await asyncio.sleep(1)
        assert len(coordinator.asked) > 5
        assert coordinator.marked == []

        coordinator.leaders["b"] = [2]
        coordinator.broker.image = coordinator.image
        await asyncio.sleep(0.2)

        assert coordinator.standing() == {("b", 0)}

    coordinating(story)


def test_a_partition_without_a_leader_is_waited_for_and_one_that_is_gone_is_not():
    async def story(coordinator):
        coordinator.leaders["b"] = [NO_NODE]
        coordinator.send(("b", 0), ("gone", 0), ("a", 2))
        assert coordinator.standing() == {("gone", 0), ("a", 2)}
        await asyncio.sleep(0.5)
        assert coordinator.asked == []

        coordinator.leaders["b"] = [1]
        coordinator.broker.image = coordinator.image
        await asyncio.sleep(0.2)
        assert coordinator.standing() == {("gone", 0), ("a", 2), ("b", 0)}

    coordinating(story)


def test_a_topic_that_is_deleted_while_its_marker_is_on_its_way_needs_none():
    async def story(coordinator):
        coordinator.answer = lambda node, asked: UNKNOWN
        coordinator.send(("b", 0))
        await asyncio.sleep(0.01)

        del coordinator.leaders["b"]
        coordinator.broker.image = coordinator.image
        await asyncio.sleep(0.2)

        assert coordinator.standing() == {("b", 0)}

    coordinating(story)


def test_an_epoch_that_has_passed_there_has_its_marker():
    async def story(coordinator):
        coordinator.answer = lambda node, asked: INVALID_EPOCH
        coordinator.send(("b", 0))
        await asyncio.sleep(0.01)

        assert coordinator.standing() == {("b", 0)}

    coordinating(story)


def test_a_coordinator_that_is_fenced_leaves_it_to_the_next():
    async def story(coordinator):
        coordinator.answer = lambda node, asked: COORDINATOR_FENCED
        coordinator.send(("b", 0))
        await asyncio.sleep(1)

        assert len(coordinator.asked) == 1
        assert coordinator.marked == []

    coordinating(story)


def test_who_coordinates_no_more_sends_nothing_and_is_told_nothing():
    async def story(coordinator):
        held = asyncio.Event()
        coordinator.answer = lambda node, asked: held
        coordinator.send(("b", 0))
        await asyncio.sleep(0.01)

        coordinator.is_wanted = False
        coordinator.send(("a", 0))
        held.set()
        await asyncio.sleep(0.2)

        assert len(coordinator.asked) == 1
        assert coordinator.marked == []

    coordinating(story)


def test_a_request_that_is_not_answered_holds_up_no_other():
    async def story(coordinator):
        held = asyncio.Event()
        coordinator.answer = lambda node, asked: held if asked.ends[0].number == 1 else OK
        coordinator.send(("b", 0), number=1)
        await asyncio.sleep(0.01)

        coordinator.send(("a", 0), number=2)
        await asyncio.sleep(0.1)

        assert coordinator.standing() == {("a", 0)}
        held.set()
        await asyncio.sleep(0.01)
        assert coordinator.standing() == {("a", 0), ("b", 0)}

    coordinating(story)


# Both, on a node.


def test_a_transaction_whose_markers_were_on_their_way_is_ended_by_whoever_coordinates_next():
    async def story(node):
        producer = Transactional(node)
        await producer.init()
        gate = Gate(node)
        assert await producer.write(b"a") == 0
        gate.shut(WriteMarkers)
        await producer.end(commits=True)
        keeper = node.requests._verification._coordinator_of.__self__
        (driver,) = keeper.drivers()

        driver.reload()
        await asyncio.sleep(0.1)
        gate.open(WriteMarkers)
        await producer.completed()

        assert await seen(node) == [b"a"]
        assert node.broker.partition("t", 0).log.end == 2, "one batch, one marker"

    on_a_coordinator(story)
