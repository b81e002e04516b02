"""Verbs that are asked of one node, and done by others."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.cluster.messages import Perform
from tidelog.errors import CoordinatorNotAvailable, InvalidRequest
from tidelog.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from tidelog.operators.group_coordinators import ListGroups
from tidelog.operators.offsets import leader_of
from tidelog.operators.transactions import ListTransactions
from tidelog.security.acls import Acls
from tidelog.security.authorizer import Access, Authorizer
from tidelog.security.principals import ANONYMOUS

ANYBODY = Access(Authorizer(Acls), ANONYMOUS, "")


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    with Cluster(3, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3) as world:
        world.do(world.kafka().create_topic("orders", partitions=1, replication=3))
        for name in "abcdef":
            world.do(world.kafka().commit_offsets(name, {TopicPartition("orders", 0): 0}))
        world.do(world.node(1).desk.transactions.ready())
        yield world


def led_by(world: Cluster, topic: str) -> Any:
    """The node that leads partition 0 of a topic."""
    return world.node(leader_of(world.node(1).broker, TopicPartition(topic, 0)))


def test_a_misspelt_parameter_is_refused_and_nothing_is_done(world):
    desk = world.node(1).desk

    asked = b'{"group":"g","topic":"orders","to":"latest","dryrun":true}'

    with pytest.raises(InvalidRequest, match=r"groups.reset takes no 'dryrun'; it takes group, topic, "):
        world.do(desk.perform_json("groups.reset", asked, ANYBODY))
    with pytest.raises(InvalidRequest, match="takes no 'x'; it takes nothing"):
        world.do(desk.perform_json("quorum.describe", b'{"x":1}', ANYBODY))


@pytest.mark.parametrize(
    ("topic", "keeper", "verb", "asked"),
    [
        (OFFSETS_TOPIC, "coordinator", "groups.list", ListGroups()),
        (TRANSACTIONS_TOPIC, "transactions", "transactions.list", ListTransactions()),
    ],
)
def test_a_list_that_lacks_a_coordinator_is_not_given_out_as_whole(world, topic, keeper, verb, asked):
    other = led_by(world, topic)
    drivers = getattr(other.desk, keeper)._drivers
    driver = drivers.pop(0)  # as between an election and the moment in which its winner acts on it

    with pytest.raises(CoordinatorNotAvailable, match=f"{topic}-0 has no leader now"):
        world.do(world.node(1).desk.perform(verb, asked, access=ANYBODY))
    drivers[0] = driver

    world.do(world.node(1).desk.perform(verb, asked, access=ANYBODY))


def test_pages_of_groups_are_whole_whoever_coordinates_them(world):
    desk, found, after = world.node(2).desk, [], None
    while True:
        answer = world.do(desk.perform("groups.list", ListGroups(limit=1, after=after), access=ANYBODY))
        found += [one.group for one in answer.groups]
        if (after := answer.next) is None:
            break

    assert found == list("abcdef")


def test_who_does_a_verb_for_another_acts_on_what_that_one_knows_first(world):
    node = world.node(3)
    told: list[Any] = []
    asked = msgspec.msgpack.encode({"topic": "young"})
    message = Perform(
        verb="configs.describe_topic", asked=msgspec.Raw(asked), applied=node.broker.metadata.applied + 1
    )

    class Place:
        send = fail = told.append

    async def story() -> None:
        doing = asyncio.ensure_future(node.desk._do(message, Place()))
        await world.kafka().create_topic("young", partitions=1)
        await doing

    world.do(story())

    assert [one.code for one in told] == [0]
