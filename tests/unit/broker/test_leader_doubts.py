"""Answers that name a leader in doubt, and when they go out, by a clock of the test's own."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation import virtual_time
from tests.unit.broker.node import Node, on_a_node
from tests.unit.controller.histories import cluster, image_after, voters
from tidelog.broker.leader_doubts import DOUBT_SECONDS_MAX, LeaderDoubts
from tidelog.controller.records import LeaderChanged, PartitionChanged, TopicCreated
from tidelog.errors import StorageError
from tidelog.model import NodeId
from tidelog.simulation.host import SimulatedClock
from tidelog.wire.apis import Api

TOPIC = "00000000000000000000000000000007"


class Stage:
    """Node 1 of three voters, and the topic "t" with one partition led by each of 1, 2 and 3."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.connected = {2, 3}
        self.acted = asyncio.Event()
        self.acted.set()
        replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        self.image = image_after(
            LeaderChanged(epoch=1, leader=1, voters=voters(1, 2, 3)),
            *cluster(1, 2, 3),
            TopicCreated(name="t", id=TOPIC, replicas=replicas),
        )
        self.doubts = LeaderDoubts(
            1, image=lambda: self.image, is_connected=self.connected.__contains__, acted=self.has_acted
        )

    async def has_acted(self) -> None:
        await self.acted.wait()

    def lose(self, node: NodeId) -> None:
        self.connected.discard(node)
        self.doubts.broke(node)

    def elect(self, number: int, leader: NodeId) -> None:
        before = self.image.topics["t"].partitions[number]
        after = before.changed(leader=leader)
        self.image.apply(PartitionChanged(topic=TOPIC, partition=number, state=after.state))
        self.doubts.applied()

    def ask(self, *named: NodeId) -> "asyncio.Task[float]":
        """Ask for what names these leaders; the task tells after how many seconds it was answered."""
        return asyncio.get_running_loop().create_task(self._ask(named))

    async def _ask(self, named: tuple[NodeId, ...]) -> float:
        began = self._clock.monotonic()
        await self.doubts.settled(
            lambda node: node in named and any(p.leader == node for p in self.image.topics["t"].partitions)
        )
        return self._clock.monotonic() - began


def on_a_stage(story: Callable[[Stage], Awaitable[None]]) -> None:
    clock = SimulatedClock()

    async def run() -> None:
        await story(Stage(clock))

    virtual_time.run(run(), clock)


def test_an_answer_that_names_a_doubted_leader_waits_for_the_election():
    async def story(stage: Stage) -> None:
        stage.lose(2)
        asked = stage.ask(2)

        await asyncio.sleep(0.1)
        assert (asked.done(), len(stage.doubts.waiting)) == (False, 1)
        stage.elect(1, leader=3)

        assert await asked == pytest.approx(0.1)
        assert (list(stage.doubts.doubted), stage.doubts.waiting) == ([], {})

    on_a_stage(story)


def test_an_answer_that_names_only_leaders_in_no_doubt_does_not_wait():
    async def story(stage: Stage) -> None:
        stage.lose(2)

        assert await stage.ask(1, 3) == 0
        assert await stage.ask() == 0

    on_a_stage(story)


def test_nothing_waits_longer_than_the_bound_however_often_connections_break():
    async def story(stage: Stage) -> None:
        stage.lose(2)
        first = stage.ask(2, 3)
        for _ in range(8):
            await asyncio.sleep(DOUBT_SECONDS_MAX / 5)
            stage.doubts.reached(2)
            stage.connected.add(2)
            stage.lose(2)

        assert await first == pytest.approx(DOUBT_SECONDS_MAX)

    on_a_stage(story)


def test_a_doubt_is_over_after_its_bound():
    async def story(stage: Stage) -> None:
        stage.lose(2)
        await asyncio.sleep(DOUBT_SECONDS_MAX * 2 / 3)

        assert await stage.ask(2) == pytest.approx(DOUBT_SECONDS_MAX / 3)
        assert await stage.ask(2) == 0

    on_a_stage(story)


def test_a_leader_that_is_reached_again_is_not_doubted():
    async def story(stage: Stage) -> None:
        stage.lose(2)
        asked = stage.ask(2)
        await asyncio.sleep(0.01)
        stage.doubts.reached(2)

        assert await asked == pytest.approx(0.01)

    on_a_stage(story)


def test_the_timer_of_an_earlier_doubt_does_not_end_a_later_one():
    async def story(stage: Stage) -> None:
        stage.lose(2)
        await asyncio.sleep(DOUBT_SECONDS_MAX / 2)
        stage.doubts.reached(2)
        stage.lose(2)

        assert await stage.ask(2) == pytest.approx(DOUBT_SECONDS_MAX)

    on_a_stage(story)


def test_the_connection_from_a_leader_may_break_while_the_one_to_it_holds():
    async def story(stage: Stage) -> None:
        stage.doubts.broke(2)

        assert await stage.ask(2) == 0

    on_a_stage(story)


def test_a_node_that_is_cut_off_from_most_voters_answers_at_once():
    async def story(stage: Stage) -> None:
        stage.lose(2)
        asked = stage.ask(2)
        await asyncio.sleep(0.01)
        stage.lose(3)

        assert await asked == pytest.approx(0.01)
        assert await stage.ask(2, 3) == 0

    on_a_stage(story)


def test_a_broker_that_leads_nothing_is_not_doubted():
    async def story(stage: Stage) -> None:
        stage.elect(1, leader=3)
        stage.lose(2)

        assert list(stage.doubts.doubted) == []

    on_a_stage(story)


def test_an_answer_that_waited_goes_out_once_the_election_was_acted_on():
    async def story(stage: Stage) -> None:
        stage.acted.clear()
        stage.lose(2)
        asked = stage.ask(2)
        await asyncio.sleep(0.05)
        stage.elect(1, leader=1)
        await asyncio.sleep(0.05)
        assert not asked.done()
        stage.acted.set()

        assert await asked == pytest.approx(0.1)

    on_a_stage(story)


def test_an_answer_goes_out_though_the_disk_refused_what_was_elected():
    async def story(stage: Stage) -> None:
        async def refused() -> None:
            raise StorageError("the disk is full")

        stage.doubts = LeaderDoubts(
            1, image=lambda: stage.image, is_connected=stage.connected.__contains__, acted=refused
        )
        stage.lose(2)
        asked = stage.ask(2)
        await asyncio.sleep(0.1)
        stage.elect(1, 3)

        assert await asked == pytest.approx(0.1)

    on_a_stage(story)


def test_metadata_and_coordinators_name_the_leaders_of_what_is_asked():
    async def story(node: Node) -> None:
        await node.create("t")
        await node.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=0)
        named: list[list[NodeId]] = []

        async def settled(names: Callable[[NodeId], bool]) -> None:
            named.append([node for node in (1, 2) if names(node)])

        node.broker.leader_doubts.settled = settled  # type: ignore[method-assign]
        topic_id = node.broker.image.topics["t"].id
        for asked in (None, [{"name": "t"}], [{"name": None, "topic_id": topic_id}], [{"name": "u"}], []):
            await node.ask(Api.METADATA, 12, topics=asked)
        for key_type in (0, 1, 9):
            await node.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=key_type)

        assert named == [[1], [1], [1], [], [], [1], [], []]

    on_a_node(story)
