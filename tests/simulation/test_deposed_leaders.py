"""What a leader that was deposed, and has not heard of it, may say to who has seen more than it has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.test_catchup import TOPIC, Story
from tests.simulation.test_racks import fetch
from tidelog.errors import NotLeader, OffsetOutOfRange, RequestTimedOut
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.streams import Cursor, begin_stream, write_cursor
from tidelog.model import Offset
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import ask_node

OLD, NEW = 10, 20
SECONDS = 3.0


@contextmanager
def a_deposed_leader() -> Iterator[Story]:
    """The first node believes that it leads, and holds `OLD` records; there are `NEW`."""
    with Story(7) as story:
        story.fill(OLD)
        world, others = story.world, (story.other, story.away)
        for node in others:
            world.cut(story.first, node)
            world.cut(node, story.first)
        story.until(lambda: any(story.replica(node).leader for node in others))
        world.run(seconds=3)
        way = "story", f"node-{story.first}"
        world.network.cut(*way)  # else it may write to whom it asked before
        story.fill(NEW - OLD)
        world.network.mend(*way)
        assert story.replica(story.first).leader is not None
        yield story


def next_leader(story: Story) -> int:
    return next(node for node in (story.other, story.away) if story.replica(node).leader)


async def read(machine: Machine, offset: Offset) -> int:
    """How many records a node gives to who asks over HTTP for those from `offset` on."""
    found = await machine.node.services.records.read(TOPIC, 0, offset=offset)
    return len(found.unpack(NEW, 1 << 20)[0])


async def watch(machine: Machine, offset: Offset) -> Any:
    """A stream that goes on where its client was told that it is."""
    topic = machine.node.broker.image.topics[TOPIC].id.hex
    cursor = write_cursor(Cursor(topic, {0: offset}))
    return await begin_stream(machine.node.services.records, TOPIC, cursor, lambda *_: ([], 0))


@pytest.mark.parametrize("work", [read, watch])
def test_it_does_not_say_over_http_that_there_is_no_more(work: Any) -> None:
    with a_deposed_leader() as story:
        world = story.world

        with pytest.raises((TimeoutError, RequestTimedOut)):
            world.do(ask_node(world, story.first, lambda node: work(node, NEW - 1), SECONDS))

        world.heal()
        world.do(ask_node(world, story.first, lambda node: work(node, NEW - 1), SECONDS))


@pytest.mark.parametrize("work", [read, watch])
def test_who_leads_says_that_there_is_no_more(work: Any) -> None:
    with a_deposed_leader() as story:
        world, told = story.world, (OffsetOutOfRange, Problem)

        async def ask(node: Machine) -> str:
            with pytest.raises(told) as refusal:
                await work(node, NEW + 1)
            return str(refusal.value)

        assert f"0 to {NEW}" in world.do(ask_node(world, next_leader(story), ask, SECONDS))


def test_it_does_not_say_so_to_kafka_clients() -> None:
    with a_deposed_leader() as story:
        answer = story.world.do(fetch(story.world, story.first, NEW - 1, rack=""))

        assert answer.error_code == NotLeader.code
