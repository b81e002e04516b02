"""Who must have acted on a deletion before it is told to be done."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation import virtual_time
from tidelog.broker.topic_deletion import gone_everywhere, missing_everywhere
from tidelog.cluster.messages import ConfirmLeads, ConfirmLeadsAnswer
from tidelog.errors import RequestTimedOut
from tidelog.model import NO_NODE, NO_OFFSET
from tidelog.peers.stream import PeerUnreachable
from tidelog.simulation.host import SimulatedClock

DELETED = 40
"""The deletion lies below it."""
SILENT = -2


class Cluster:
    """Node 1 deletes a topic; the others say how far they have acted, whenever they are asked."""

    def __init__(self, **acted_on: list[int]) -> None:
        self._acted_on = {int(name[1:]): told for name, told in acted_on.items()}
        self.asked: list[int] = []
        self.controller: int | None = None
        self.reaches: set[int] = set()
        """Whom the controller reaches, other than this node."""
        self.passes_on = True
        """Whether the controller knows that it shall ask another."""
        self.alive = {1, 2, 3, 4}
        self.clock = SimulatedClock()

    async def _ask(
        self, node: int, question: ConfirmLeads, answer: object, *, seconds_max: float
    ) -> ConfirmLeadsAnswer:
        self.asked.append(node)
        if question.of != NO_NODE and self.passes_on:
            assert node == self.controller
            reached = DELETED if question.of in self.reaches else DELETED - 1
            return ConfirmLeadsAnswer(confirmed=(), acted_on=reached, of=question.of)
        told = self._acted_on[node]
        acted_on = told.pop(0) if len(told) > 1 else told[0]
        if acted_on == SILENT:
            await asyncio.sleep(seconds_max)
            raise PeerUnreachable("it says nothing")
        return ConfirmLeadsAnswer(confirmed=(), acted_on=acted_on)

    def _broker(self) -> Any:
        async def acted() -> None:
            """It has acted on all that it knows."""

        return SimpleNamespace(
            node_id=1,
            host=SimpleNamespace(clock=self.clock),
            acted=acted,
            member=SimpleNamespace(
                hub=SimpleNamespace(ask=self._ask),
                quorum=SimpleNamespace(raft=SimpleNamespace(leader=self.controller)),
            ),
            metadata=SimpleNamespace(applied=DELETED),
            image=SimpleNamespace(nodes=range(1, 5), is_alive=lambda node: node in self.alive),
        )

    def miss(self) -> None:
        virtual_time.run(missing_everywhere(self._broker(), "t"), self.clock)

    def delete(self, *electable: set[int], eligible: tuple[int, ...] = ()) -> None:
        topic: Any = SimpleNamespace(
            name="t",
            partitions=[
                SimpleNamespace(in_sync=frozenset(nodes), eligible=frozenset(eligible)) for nodes in electable
            ],
        )
        virtual_time.run(gone_everywhere(self._broker(), topic, DELETED), self.clock)


def test_nobody_is_asked_where_this_node_could_be_elected():
    cluster = Cluster(n2=[0])

    cluster.delete({1, 2})

    assert cluster.asked == []


def test_one_of_those_who_may_be_elected_is_enough():
    cluster = Cluster(n2=[0], n3=[DELETED - 1, DELETED])

    cluster.delete({2, 3})

    assert cluster.asked == [2, 3, 2, 3]


def test_every_partition_needs_one():
    cluster = Cluster(n2=[DELETED], n3=[0, 0, DELETED])

    cluster.delete({2}, {3}, {1, 4})

    assert cluster.asked.count(3) == 3
    assert cluster.asked.count(2) == 1


def test_who_is_eligible_counts_though_it_is_not_in_sync():
    cluster = Cluster(n2=[0], n3=[DELETED])

    cluster.delete({2}, eligible=(3,))


def test_nobody_waits_for_those_who_are_fenced():
    cluster = Cluster(n2=[SILENT])
    cluster.alive.remove(2)

    cluster.delete({2})

    assert cluster.asked == []


def test_nodes_that_do_not_say_how_far_they_are_are_not_waited_for():
    cluster = Cluster(n2=[NO_OFFSET])

    cluster.delete({2})

    assert cluster.asked == [2]


@pytest.mark.parametrize("told", [SILENT, DELETED - 1])
def test_a_deletion_that_nobody_acts_on_is_told_to_be_uncertain(told):
    cluster = Cluster(n2=[told])

    with pytest.raises(RequestTimedOut, match="t is deleted"):
        cluster.delete({2})

    assert cluster.clock.monotonic() < 40


def test_every_node_that_is_there_must_know_that_a_topic_is_not():
    cluster = Cluster(n2=[DELETED], n3=[DELETED - 1, DELETED], n4=[SILENT])
    cluster.alive.remove(4)

    cluster.miss()

    assert sorted(cluster.asked) == [2, 3, 3]


def test_a_topic_that_some_node_may_still_serve_is_not_called_missing():
    cluster = Cluster(n2=[DELETED], n3=[DELETED - 1], n4=[DELETED])

    with pytest.raises(RequestTimedOut, match="t does not exist, but"):
        cluster.miss()


def test_the_controller_asks_a_node_that_this_one_does_not_reach():
    cluster = Cluster(n2=[DELETED], n3=[SILENT], n4=[DELETED])
    cluster.controller, cluster.reaches = 4, {3}

    cluster.miss()

    assert cluster.clock.monotonic() < 2


def test_a_controller_that_answers_for_itself_has_said_nothing_of_the_other():
    cluster = Cluster(n2=[DELETED], n3=[SILENT], n4=[DELETED])
    cluster.controller, cluster.passes_on = 4, False

    with pytest.raises(RequestTimedOut):
        cluster.miss()
