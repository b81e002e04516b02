"""DeleteRecords holds on every replica that may lead, and is done by a leader alone."""

from collections.abc import Callable

import pytest

from tests.simulation.test_catchup import TOPIC, Story
from tidelog.client.admin import AdminClient
from tidelog.client.cluster import Refused
from tidelog.simulation.nodes import bootstrap

NODES = (1, 2, 3)


def starts(story: Story) -> set[int]:
    return {story.replica(n).log.start for n in NODES if story.world.is_up(n)}


def ask(story: Story, node: int, offset: int) -> Callable[[], object]:
    """Ask one node; whether it has answered, or refused, by now."""
    answers: list[object] = []

    async def delete() -> None:
        where, network = bootstrap(node), story.world.client("deleter").network
        async with AdminClient(where, network=network, timeout_seconds=60) as client:
            try:
                answers.append(await client.delete_records(TOPIC, {0: offset}))
            except (Refused, OSError) as error:
                answers.append(error)

    story.world.client("deleter").spawn(delete())
    return lambda: answers[0] if answers else None


def test_what_was_deleted_stays_deleted_when_another_leads():
    with Story(7) as story:
        story.fill(100)

        story.delete_before(80)
        story.world.lose_power(story.first)

        story.until(lambda: story.leader() != story.first)
        story.until(lambda: starts(story) == {80})
        story.world.restart(story.first)
        story.until(lambda: story.is_whole(*NODES))
        assert starts(story) == {80}


def test_nothing_is_deleted_before_every_replica_in_sync_has_promised_it():
    with Story(7) as story:
        story.fill(100)
        story.world.run(seconds=2)
        for node in (story.other, story.away):
            story.world.cut(story.first, node)

        has_answered = ask(story, story.first, 80)
        story.world.run(seconds=1)

        assert not has_answered()
        assert starts(story) == {0}


def test_a_deposed_leader_without_a_lease_deletes_nothing():
    with Story(7) as story:
        story.fill(100)
        others = (story.other, story.away)
        for node in others:
            story.world.cut(story.first, node)
            story.world.cut(node, story.first)
        story.until(lambda: any(story.replica(n).leader for n in others))
        story.world.run(seconds=3)

        with pytest.raises(Refused):
            story.world.do(_delete_at(story, story.first))
        story.world.heal()

        story.until(lambda: story.is_whole(*NODES))
        assert starts(story) == {0}


async def _delete_at(story: Story, node: int) -> None:
    network = story.world.client("deleter").network
    async with AdminClient(bootstrap(node), network=network) as client:
        await client.delete_records(TOPIC, {0: -1})
