"""Work that is sent to leaders: what is tried again, and what is told of it in the end."""

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pytest

from tests.simulation import virtual_time
from tidelog.broker.serving import Serving, Work
from tidelog.cluster.messages import ServeAnswer
from tidelog.errors import (
    BrokerError,
    InvalidTopic,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.model import TopicPartition
from tidelog.peers.stream import PeerUnreachable
from tidelog.simulation.host import SimulatedClock

PLACE = TopicPartition("b", 0)


class OfAnotherRoom(BrokerError):
    """Means more than its code, by which alone an error crosses."""

    code = NotLeader.code


class Add(Work, frozen=True, kw_only=True):
    def is_settled_by(self, answer):
        return answer.is_done


class Look(Work, frozen=True, kw_only=True):
    is_read: ClassVar[bool] = True


class Added(msgspec.Struct, frozen=True):
    is_done: bool


LOST = PeerUnreachable("the connection was lost")
SHORT = ServeAnswer(code=NotEnoughReplicas.code, detail="too few")
WRONG = ServeAnswer(code=InvalidTopic.code, detail="no")
ELSEWHERE = ServeAnswer(code=NotLeader.code, detail="not here")


SILENCE = object()
"""The quorum does not say what was decided."""


def answer(is_done):
    return ServeAnswer(result=msgspec.Raw(msgspec.msgpack.encode(Added(is_done))))


def a_topic(number=1, partitions=1):
    leader = SimpleNamespace(leader=2)
    return SimpleNamespace(id=UUID(int=number), partitions=[leader] * partitions)


def call(*answers, work=Add(), is_repeatable=True, place=PLACE, topics=(a_topic(),), decided=None):  # noqa: B008
    """What comes of work whose tries are answered so, one after the other; the last for ever.

    After each try the metadata here has the next of `topics`, and what was `decided` once that is
    asked for.
    """
    left, images = list(answers), list(topics)

    async def ask(node, asked, kind, *, seconds_max):
        told = left.pop(0) if len(left) > 1 else left[0]
        if len(images) > 1:
            images.pop(0)
            become(images[0])
        if isinstance(told, Exception):
            raise told
        return told

    async def reached(offset):
        await asyncio.sleep(10)

    async def caught_up():
        await asyncio.sleep(0.1 if decided is not SILENCE else 10)
        become(decided)

    def become(topic):
        broker.image = SimpleNamespace(topics={} if topic is None else {"b": topic})

    clock = SimulatedClock()
    broker: Any = SimpleNamespace(
        node_id=1,
        host=SimpleNamespace(clock=clock),
        member=SimpleNamespace(hub=SimpleNamespace(ask=ask)),
        metadata=SimpleNamespace(applied=0, reached=reached, caught_up=caught_up),
    )
    become(images[0])
    return virtual_time.run(
        Serving(broker).call(place, work, Added, seconds_max=2.0, is_repeatable=is_repeatable), clock
    )


def test_work_is_tried_again_while_nobody_leads():
    assert call(ELSEWHERE, ELSEWHERE, answer(True)) == Added(True)


def test_work_that_must_not_be_done_twice_is_not_sent_again():
    with pytest.raises(OutcomeUnknown):
        call(LOST, answer(True), is_repeatable=False)


def test_work_that_is_known_again_is_sent_until_it_is_answered():
    assert call(LOST, LOST, ELSEWHERE, answer(True)) == Added(True)


@pytest.mark.parametrize("refusal", [SHORT, WRONG])
def test_a_refusal_does_not_say_that_an_earlier_try_came_to_nothing(refusal):
    with pytest.raises(OutcomeUnknown):
        call(LOST, refusal)


def test_an_answer_that_nothing_was_done_does_not_say_so_of_an_earlier_try():
    assert call(answer(False)) == Added(False)
    with pytest.raises(OutcomeUnknown):
        call(LOST, answer(False))


def test_who_finds_no_leader_after_an_unknown_try_still_does_not_know():
    with pytest.raises(OutcomeUnknown):
        call(LOST, ELSEWHERE)


def test_a_refusal_of_the_first_try_is_one():
    with pytest.raises(InvalidTopic):
        call(ELSEWHERE, WRONG)


def test_of_a_read_only_the_last_try_counts():
    assert call(LOST, answer(False), work=Look()) == Added(False)
    with pytest.raises(InvalidTopic):
        call(LOST, WRONG, work=Look())


def test_a_topic_that_is_made_anew_while_metadata_arrives_is_not_denied():
    """What this node knew of it led nowhere; then it hears of the deletion first."""
    topics = (a_topic(1), None)

    assert call(ELSEWHERE, answer(True), topics=topics, decided=a_topic(2)) == Added(True)


def test_a_topic_is_denied_once_all_that_was_decided_is_known():
    with pytest.raises(UnknownTopicOrPartition):
        call(ELSEWHERE, topics=(a_topic(1), None), decided=None)
    with pytest.raises(UnknownTopicOrPartition):
        call(ELSEWHERE, place=TopicPartition("b", 1), decided=a_topic(1))


def test_a_topic_is_not_denied_while_nobody_says_what_was_decided():
    with pytest.raises(LeaderNotAvailable, match="not known"):
        call(ELSEWHERE, topics=(None,), decided=SILENCE)


@pytest.mark.parametrize("before", [1, 3])
def test_work_is_not_sent_to_a_topic_that_has_other_partitions_than_when_it_began(before):
    """Its key may belong to another one there."""
    topics = (a_topic(1, before), a_topic(2, 2))

    with pytest.raises(LeaderNotAvailable, match=f"had {before} partitions, and has 2 now"):
        call(ELSEWHERE, answer(True), topics=topics)
    with pytest.raises(OutcomeUnknown):
        call(LOST, answer(True), topics=topics)


def test_a_partition_that_is_made_anew_with_fewer_others_is_not_denied():
    topics = (a_topic(1, 2), a_topic(2, 1))

    with pytest.raises(LeaderNotAvailable, match="retry"):
        call(ELSEWHERE, topics=topics, decided=a_topic(2, 1), place=TopicPartition("b", 1))


@pytest.mark.parametrize("error", [UnknownTopicId("gone"), UnknownTopicOrPartition(PLACE)])
def test_a_leader_that_knows_no_such_topic_may_be_ahead_of_who_asks_or_behind(error):
    def partition(topic, number):
        raise error

    serving = Serving(SimpleNamespace(partition=partition))  # type: ignore[arg-type]

    with pytest.raises(LeaderNotAvailable, match="not yet"):
        asyncio.run(serving._serve(UUID(int=1), 0, Look(), 0.0))
