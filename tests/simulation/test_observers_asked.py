"""What only the active controller can judge is decided by it, whichever node is asked.

A node that does not vote hears no reports: it takes every replica for whole, and every disk for one
with room.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.test_planted_replication import NODES, PLACE, TOPIC, Stage
from tidelog.client.admin import AdminClient, Election
from tidelog.errors import EligibleLeadersNotAvailable, NotController
from tidelog.services.promotion import promote
from tidelog.simulation import layout
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.plan import Plan
from tidelog.simulation.world import World
from tidelog.wire.apis import Api

OBSERVER = NODES


@contextmanager
def a_stage_with_observers() -> Iterator[Stage]:
    plan = Plan(seed=8, nodes=NODES, voters=3, chaos_seconds=1, faults=(), story="replicated")
    with World(8, nodes=NODES, node_factory=layout.node_factory(plan)) as world:
        yield Stage(world)


def ask(stage: Stage, node: int, work: Callable[[Machine], Awaitable[Any]]) -> Any:
    return stage.world.do(ask_node(stage.world, node, work, 5.0))


def promoting(node: int) -> Callable[[Machine], Awaitable[Any]]:
    return lambda machine: promote(machine.node.broker, PLACE, node, force=False, dry_run=False)


def test_nobody_is_promoted_onto_a_full_disk_by_a_node_that_has_not_heard_of_it() -> None:
    with a_stage_with_observers() as stage:
        first, second, _ = stage.nodes
        stage.commit(3)
        stage.world.fill_disk(second)
        stage.send(stage.controller)  # its disk finds no room for it
        controller = stage.world.node(stage.controller).broker.controller.controller
        stage.run_until(lambda: controller.reports.is_full(second))
        assert second in stage.state.in_sync

        with pytest.raises(NotController):
            ask(stage, OBSERVER, promoting(second))
        with pytest.raises(EligibleLeadersNotAvailable, match="full disk"):
            ask(stage, stage.controller, promoting(second))

        assert stage.state.leader == first


def test_clients_that_know_of_an_observer_alone_find_who_decides() -> None:
    with a_stage_with_observers() as stage:
        first, second, third = stage.nodes

        async def work() -> None:
            async with stage.client(AdminClient, OBSERVER) as client:
                assert await client.alter_reassignments({PLACE: (second, first, third)}) == {}
                assert await client.elect_leaders(Election.PREFERRED, [PLACE]) == {PLACE: None}

        stage.world.do(work())

        assert stage.state.replicas == (second, first, third)
        stage.run_until(lambda: stage.leads(second))


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (
            Api.ALTER_PARTITION_REASSIGNMENTS,
            {
                "allow_replication_factor_change": True,
                "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}],
            },
        ),
        (
            Api.ELECT_LEADERS,
            {"election_type": Election.PREFERRED, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}]},
        ),
    ],
)
def test_an_observer_says_that_another_decides(api: Api, fields: dict[str, Any]) -> None:
    with a_stage_with_observers() as stage:

        async def work() -> int:
            async with stage.client(AdminClient, OBSERVER) as client:
                connection = await client.any_connection()
                answer = await connection.call(api, timeout=1000, **fields)
                return int(answer.error_code)

        assert stage.world.do(work()) == NotController.code
