"""A topic that is deleted, asked for at nodes that have not heard of it."""

import pytest

from tests.simulation.test_moves import order
from tests.simulation.test_planted_replication import TOPIC, Stage, a_stage
from tidelog.broker import topics
from tidelog.client.admin import AdminClient
from tidelog.client.cluster import Refused
from tidelog.client.operator import OperatorClient
from tidelog.model import Offset


def delete(stage: Stage) -> None:
    async def work() -> None:
        async with stage.client(AdminClient, stage.controller) as client:
            await client.delete_topic(TOPIC)

    stage.world.do(work())


def delete_without_an_answer(stage: Stage) -> None:
    """Have it deleted, hear nothing, and ask for it again."""

    async def work() -> None:
        async with stage.client(AdminClient, stage.controller) as client:
            await client.delete_topic(TOPIC)

    stage.world.client("story").spawn(work())
    stage.run_until(lambda: TOPIC not in stage.image.topics)
    with pytest.raises(Refused, match="there is no topic"):
        delete(stage)


def write_to_what_is_not_there() -> Offset | None:
    """The same, of two replicas, if the deletion was not answered and was asked for again."""
    with a_stage() as stage:
        first, second, third = stage.nodes
        stage.commit(5)
        order(stage, first, second)
        stage.run_until(lambda: stage.partition(third) is None)
        stage.world.run(1)  # all know that it has moved
        for node in (first, second):
            stage.world.clog(stage.controller, node, 1.0, seconds=3.0)
        delete_without_an_answer(stage)
        sent = stage.send(first)
        stage.run_until(sent.done)
        written: Offset | None = sent.result()
        return written


def write_to_what_is_deleted() -> Offset | None:
    """What a client is told whose node hears of the deletion late, as the other replicas do."""
    with a_stage() as stage:
        first, second, third = stage.nodes
        stage.commit(5)
        for node, seconds in ((first, 1.0), (second, 1.0), (third, 0.3)):
            stage.world.clog(stage.controller, node, seconds, seconds=3.0)
        delete(stage)
        sent = stage.send(first)
        stage.run_until(sent.done)
        written: Offset | None = sent.result()
        return written


async def _at_once(*_: object) -> None:
    """Nobody is asked."""


def test_nothing_is_acknowledged_of_a_topic_that_somebody_was_told_is_deleted(monkeypatch):
    assert write_to_what_is_deleted() is None

    monkeypatch.setattr(topics, "gone_everywhere", _at_once)
    assert write_to_what_is_deleted() is not None, "the story tells nothing"


def test_nothing_is_acknowledged_of_a_topic_that_somebody_was_told_is_not_there(monkeypatch):
    assert write_to_what_is_not_there() is None

    monkeypatch.setattr(topics, "missing_everywhere", _at_once)
    assert write_to_what_is_not_there() is not None, "the story tells nothing"


def test_a_topic_is_deleted_though_all_of_its_replicas_are_down():
    with a_stage() as stage:
        first, second, third = stage.nodes
        order(stage, first, second)
        stage.run_until(lambda: stage.partition(third) is None)
        stage.world.crash(first)
        stage.world.crash(second)
        delete(stage)
        assert TOPIC not in stage.image.topics


def test_one_link_that_is_cut_does_not_keep_back_that_a_topic_is_not_there():
    with a_stage() as stage:
        first, second, _ = stage.nodes
        delete(stage)
        stage.part(first, second)
        began_at = stage.world.now

        async def delete_again() -> None:
            async with stage.client(OperatorClient, first) as client:
                await client.delete_topic(TOPIC)

        with pytest.raises(Refused, match="there is no topic"):
            stage.world.do(delete_again())
        assert stage.world.now - began_at < 5
