import asyncio

import pytest

from tests.unit.broker.node import Machine, on_a_node
from tidelog.controller.decisions import PRODUCER_IDS_BLOCK
from tidelog.kafka.producer_ids import ProducerIds
from tidelog.wire.apis import APIS, Api


async def init(node, *, version=4, transactional_id=None):
    return await node.ask(
        Api.INIT_PRODUCER_ID,
        version,
        transactional_id=transactional_id,
        producer_id=-1,
        producer_epoch=-1,
        transaction_timeout=1000,
    )


def test_every_producer_gets_an_id_of_its_own_and_epoch_0_in_every_version():
    async def story(node):
        answers = [await init(node, version=v) for v in range(APIS[Api.INIT_PRODUCER_ID].most + 1)]

        assert [(a.error_code, a.producer_epoch) for a in answers] == [(0, 0)] * len(answers)
        assert len({a.producer_id for a in answers}) == len(answers)

    on_a_node(story)


@pytest.mark.parametrize("killed", [False, True])
def test_no_id_is_given_out_twice_over_restarts(killed):
    machine = Machine()
    given: list[int] = []

    async def some(node):
        given.extend([(await init(node)).producer_id for _ in range(3)])

    for _ in range(3):
        machine.live(some, killed=killed)

    assert len(set(given)) == 9


def test_ids_stay_unique_when_a_block_runs_out_under_many_who_ask_at_once():
    async def story(node):
        ids = ProducerIds(node.broker)
        count = PRODUCER_IDS_BLOCK + 5

        given = await asyncio.gather(*(ids.take() for _ in range(count)))

        assert len(set(given)) == count
        assert node.broker.image.producer_ids_end == 2 * PRODUCER_IDS_BLOCK

    on_a_node(story)


def test_who_has_a_transactional_id_must_find_its_coordinator_first():
    async def story(node):
        answer = await init(node, transactional_id="x")

        assert (answer.error_code, answer.producer_id) == (15, -1)

    on_a_node(story)
