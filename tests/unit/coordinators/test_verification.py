import asyncio
from functools import partial
from typing import Any

import pytest

from tests.unit.coordinators.transacting import ADDS, Gate, Producer, on_a_coordinator, seen
from tidelog.cluster.messages import AddToTransactions, WriteMarkers
from tidelog.coordinators.verification import Wanted
from tidelog.errors import CoordinatorNotAvailable, NotLeader
from tidelog.partition.appending import Appender

ABORTABLE, INVALID_EPOCH, INVALID_STATE, NOT_ENOUGH_REPLICAS, NOT_LEADER = 120, 47, 48, 19, 6
INVALID_MAPPING, STORAGE, OUT_OF_ORDER, UNKNOWN_SERVER_ERROR = 49, 56, 45, -1
EXPLICIT = 9
"""A version of Produce whose clients add partitions by themselves."""


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_next_transaction_may_begin_while_the_markers_of_the_last_are_written():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        assert await producer.write(b"first") == 0
        gate.shut(WriteMarkers)
        assert await producer.end(commits=True) == 0

        waiting = producer.send(b"second")
        await turns()
        gate.open(WriteMarkers)

        assert await producer.answer(waiting) == 0
        assert await producer.end(commits=False) == 0
        await producer.completed()
        assert await seen(node) == [b"first"]

    on_a_coordinator(story)


@pytest.mark.parametrize("version", [EXPLICIT, ADDS])
def test_a_batch_is_refused_if_its_transaction_ends_while_the_coordinator_is_asked(version):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        if version == EXPLICIT:
            await producer.add(0)
        gate = Gate(node)
        gate.keep_answers(AddToTransactions)
        waiting = producer.send(b"late", version=version)
        await turns()

        assert await producer.end(commits=True, version=3 if version == EXPLICIT else 5) == 0
        await producer.completed()
        gate.give_answers(AddToTransactions)

        assert await producer.answer(waiting, version) == INVALID_STATE
        assert await seen(node, committed=False) == []

    on_a_coordinator(story)


def test_a_batch_of_the_next_epoch_is_not_taken_by_the_answer_for_the_one_before():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        gate.keep_answers(AddToTransactions)
        late = producer.send(b"aborted")
        await turns()
        gate.shut(WriteMarkers)
        assert await producer.end(commits=False) == 0

        following = producer.send(b"committed")
        await turns()
        gate.give_answers(AddToTransactions)
        await turns()
        gate.open(WriteMarkers)

        assert await producer.answer(late) == 0, "it came before the marker"
        assert await producer.answer(following) == 0
        assert await producer.end(commits=True) == 0
        await producer.completed()
        assert await seen(node) == [b"committed"]

    on_a_coordinator(story)


def test_a_zombie_that_is_asked_about_does_not_fence_who_goes_on():
    async def story(node):
        zombie, producer = Producer(node), Producer(node)
        await zombie.init()
        await producer.init()
        assert (zombie.id, zombie.epoch + 1) == (producer.id, producer.epoch)
        gate = Gate(node)
        gate.shut(AddToTransactions)

        refused, taken = zombie.send(b"zombie"), producer.send(b"living")
        await turns()
        gate.open(AddToTransactions)

        assert await producer.answer(refused) == INVALID_EPOCH
        assert await producer.answer(taken) == 0

    on_a_coordinator(story)


def test_batches_that_wait_are_appended_in_order_and_those_behind_follow():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        gate.shut(AddToTransactions)

        waiting = [producer.send(value) for value in (b"a", b"b", b"c")]
        await turns()
        gate.open(AddToTransactions)

        assert [await producer.answer(place) for place in waiting] == [0, 0, 0]
        assert await producer.write(b"d") == 0
        assert len(gate.asked) == 1
        await producer.end(commits=True)
        await producer.completed()
        assert await seen(node) == [b"a", b"b", b"c", b"d"]

    on_a_coordinator(story)


def test_a_batch_is_refused_if_the_partition_was_led_anew_while_the_coordinator_was_asked():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        gate.keep_answers(AddToTransactions)
        waiting = producer.send(b"a")
        await turns()

        partition = node.broker.partition("t", 0)
        epoch = partition.leader.epoch
        partition.resign(NotLeader(leader=None))
        partition.lead(epoch + 2, {node.broker.node_id})
        gate.give_answers(AddToTransactions)

        assert await producer.answer(waiting) == NOT_LEADER
        assert partition.log.end == 0

    on_a_coordinator(story)


def test_who_does_not_lead_asks_nobody():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        node.broker.partition("t", 0).resign(NotLeader(leader=None))

        assert await producer.write(b"a") == NOT_LEADER
        assert gate.asked == []

    on_a_coordinator(story)


def test_one_slow_transaction_does_not_hold_up_the_questions_of_others():
    async def story(node):
        slow, quick = Producer(node, "slow"), Producer(node, "quick")
        await slow.init()
        await quick.init()
        gate = Gate(node)
        assert await slow.write(b"a") == 0
        gate.shut(WriteMarkers)
        await slow.end(commits=True)

        waiting = slow.send(b"b")  # until the markers of the last transaction stand
        await asyncio.sleep(0.06)
        began = node.clock.monotonic()
        assert await quick.write(b"c") == 0

        assert node.clock.monotonic() - began < 0.2
        assert not waiting.body.done()
        gate.open(WriteMarkers)
        assert await slow.answer(waiting) == 0

    on_a_coordinator(story)


def test_all_questions_of_one_turn_go_together():
    async def story(node):
        producers = [Producer(node, f"tx{number}") for number in range(3)]
        for producer in producers:
            await producer.init()
        gate = Gate(node)

        places = [producer.send(b"a", partition=n) for producer in producers for n in (0, 1)]

        assert [await Producer.answer(place) for place in places] == [0] * 6
        assert [len(asked.transactions) for asked in gate.asked] == [6]

    on_a_coordinator(story)


@pytest.mark.parametrize(
    ("version", "header", "code"),
    [
        (ADDS, {"producer_id": 999}, INVALID_MAPPING),
        (EXPLICIT, {"producer_id": 999}, INVALID_MAPPING),
        (ADDS, {"producer_id": -1}, INVALID_MAPPING),
        (ADDS, {"producer_epoch": 7}, INVALID_EPOCH),
        (ADDS, {"producer_epoch": -1}, INVALID_EPOCH),
        (EXPLICIT, {}, INVALID_STATE),
        (11, {}, ABORTABLE),
    ],
)
def test_who_is_not_in_the_transaction_is_told_so_as_its_version_knows_it(version, header, code):
    async def story(node):
        producer = Producer(node)
        await producer.init()

        assert await producer.write(b"a", version=version, **header) == code
        assert await seen(node, committed=False) == []

    on_a_coordinator(story)


@pytest.mark.parametrize("version", [EXPLICIT, ADDS])
def test_a_batch_does_not_overtake_those_that_were_refused_and_will_come_again(version):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        if version == EXPLICIT:
            await producer.add(0)
        write = partial(producer.write, version=version)
        verification = node.requests._verification
        coordinator_of = verification._coordinator_of
        verification._coordinator_of = nobody
        assert await write(b"a") == await write(b"b") == NOT_ENOUGH_REPLICAS
        verification._coordinator_of = coordinator_of

        assert await write(b"c") == await write(b"b", base_sequence=1) == OUT_OF_ORDER

        assert await write(b"a", base_sequence=0) == 0
        assert await write(b"b", base_sequence=1) == 0
        assert not verification._refused
        await producer.end(commits=True)
        await producer.completed()
        assert await seen(node) == [b"a", b"b"]

    on_a_coordinator(story)


@pytest.mark.parametrize("how", ["it takes too long", "its transaction ends"])
def test_what_was_refused_is_not_waited_for_when(how):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.add(0)
        verification = node.requests._verification
        coordinator_of = verification._coordinator_of
        verification._coordinator_of = nobody
        assert await producer.write(b"a", version=EXPLICIT) == NOT_ENOUGH_REPLICAS
        verification._coordinator_of = coordinator_of

        if how == "it takes too long":
            await asyncio.sleep(31)
            assert await producer.write(b"b", version=EXPLICIT, base_sequence=5) == 0
        else:
            assert await producer.end(commits=False, version=3) == 0
            await producer.completed()
        assert not verification._refused

    on_a_coordinator(story)


def nobody(transactional_id):
    raise CoordinatorNotAvailable("it moves")


def test_a_batch_that_we_cannot_append_costs_its_sender_alone(monkeypatch):
    async def story(node):
        producer, other = Producer(node), Producer(node, "other")
        await producer.init()
        await other.init()
        gate = Gate(node)
        gate.shut(AddToTransactions)
        monkeypatch.setattr(Appender, "append", fail_once(Appender.append))

        places = [producer.send(b"a"), other.send(b"b", partition=1)]
        await turns()
        gate.open(AddToTransactions)

        assert [await producer.answer(place) for place in places] == [UNKNOWN_SERVER_ERROR, 0]

    on_a_coordinator(story)


def fail_once(append):
    faults = [ZeroDivisionError("a fault of ours")]

    def failing(self, *batch, **options):
        if faults and self._partition.name.topic == "t":
            raise faults.pop()
        return append(self, *batch, **options)

    return failing


@pytest.mark.parametrize("acks", [0, 1])
def test_batches_with_fewer_acks_wait_for_the_coordinator_all_the_same(acks):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        gate.shut(AddToTransactions)
        place = producer.send(b"a", acks=acks)
        await turns()
        assert node.broker.partition("t", 0).log.end == 0

        gate.open(AddToTransactions)
        await place.body

        await producer.end(commits=True)
        await producer.completed()
        assert await seen(node) == [b"a"]

    on_a_coordinator(story)


def test_a_coordinator_that_does_not_answer_is_not_awaited_for_ever():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        node.requests._verification._broker.on_places_to_add = lambda *asked: None

        began = node.clock.monotonic()
        assert await producer.write(b"a") == NOT_ENOUGH_REPLICAS

        assert 4 < node.clock.monotonic() - began < 6
        assert node.requests._verification._open == {}

    on_a_coordinator(story)


def test_whoever_waits_when_the_node_stops_is_told():
    told = []

    async def story(node):
        producer = Producer(node)
        await producer.init()
        Gate(node).shut(AddToTransactions)
        told.append(producer.send(b"a").body)
        verification = node.requests._verification
        wanted = ("tx", producer.id, producer.epoch, node.broker.partition("t", 1).name)
        confirming = verification.confirm(*wanted, implicit=True, then=lambda: None)
        told.append(asyncio.ensure_future(confirming))
        await turns()

    on_a_coordinator(story)

    produced, confirmed = told
    assert produced.done()
    refused: Any = confirmed.exception()
    assert refused.code == STORAGE


def test_what_is_confirmed_is_done_before_anything_else_can_happen():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        verification = node.requests._verification
        partition = node.broker.partition("t", 0)
        seen_open = []

        def then():
            seen_open.append(dict(verification._open))
            return "done"

        result = await verification.confirm(
            "tx", producer.id, producer.epoch, partition.name, implicit=True, then=then
        )

        assert (result, seen_open) == ("done", [{}])

    on_a_coordinator(story)


def test_a_marker_spoils_only_what_it_ends():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        gate.keep_answers(AddToTransactions)
        verification, partition = node.requests._verification, node.broker.partition("t", 0)
        told: dict[int, Any] = {}
        for epoch in (0, 1):
            wanted = Wanted("tx", producer.id, epoch, True)
            verification.ask(partition, wanted, partial(told.__setitem__, epoch))
        await turns()

        verification.spoil(partition, producer.id, 1)
        verification.spoil(partition, producer.id + 1, 9)
        verification.spoil(node.broker.partition("t", 1), producer.id, 9)
        gate.give_answers(AddToTransactions)
        await turns()

        assert told[0].code == INVALID_STATE, "of epoch 0, which is the producer's"
        assert told[1].code == INVALID_EPOCH, "the coordinator knows of no such epoch"

    on_a_coordinator(story)
