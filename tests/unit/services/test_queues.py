"""Queues at one node: pointers that neither skip nor repeat, messages with one owner at a time."""

import asyncio

import pytest

from tests.unit.broker.node import Machine, Node, on_a_node
from tidelog.errors import QueueFull, UnknownQueue
from tidelog.queues.events import request_hash
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import About, Settings
from tidelog.services.queue_work import (
    NAMES,
    AppendWork,
    CreateWork,
    DeclareWork,
    LookWork,
    MoveWork,
    PublishWork,
    ReadNextWork,
    ReceiveWork,
    SettleWork,
)
from tidelog.services.services import Services

SECONDS = 5.0


class Desk:
    """Asks for queues at one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.queues = Services(node.broker).queues

    async def create(self, key=None):
        request = request_hash(key)
        place = await self.queues.place_for_new(request)
        done = await self.queues.have_done(place, CreateWork(request=request), seconds=SECONDS)
        return done.number

    async def append(self, queue_id, value, key=None):
        work = AppendWork(queue_id=queue_id, value=value, request=request_hash(key))
        place = await self.queues.place_of_id(queue_id)
        return (await self.queues.have_done(place, work, seconds=SECONDS)).number

    async def read(self, queue_id, client, key=None):
        work = ReadNextWork(queue_id=queue_id, client=client, request=request_hash(key))
        place = await self.queues.place_of_id(queue_id)
        found = (await self.queues.have_done(place, work, seconds=SECONDS)).messages
        return (found[0].offset, found[0].value) if found else None

    async def declare(self, name="q", **settings):
        return await self._do(name, DeclareWork(name=name, settings=Settings(**settings)))

    async def publish(self, *values, name="q", key=None, about=None):
        messages = tuple((value, about or About()) for value in values)
        work = PublishWork(name=name, messages=messages, request=request_hash(key))
        return (await self._do(name, work)).offsets

    async def receive(self, name="q", *, most=1, wait=0.0, visible=None, lane=MAIN, key=None, waiter=""):
        work = ReceiveWork(
            name=name,
            lane=lane,
            count_max=most,
            wait_seconds=wait,
            visibility_ms=visible,
            request=request_hash(key),
            waiter=waiter,
        )
        found = (await self._do(name, work)).messages
        return [(one.value, f"{one.offset}-{one.count}") for one in found]

    async def settle(self, kind, *receipts, name="q", ms=0, key=None):
        work = SettleWork(name=name, receipts=receipts, kind=kind, ms=ms, request=request_hash(key))
        return (await self._do(name, work)).outcomes

    async def look(self, name="q"):
        return (await self._do(name, LookWork(name=name))).document

    async def _do(self, name, work):
        place = await self.queues.place_of(name)
        return await self.queues.have_done(place, work, seconds=SECONDS)


def at_a_desk(story, **settings):
    async def on(node):
        await story(Desk(node))

    on_a_node(on, **settings)


# Pointers.


def test_each_client_reads_every_message_once_in_order():
    async def story(desk):
        queue = await desk.create()
        ids = [await desk.append(queue, b"%d" % n) for n in range(3)]

        assert ids == sorted(ids)
        for client in ("a", "b"):
            found = [await desk.read(queue, client) for _ in range(4)]
            assert found == [*((i, b"%d" % n) for n, i in enumerate(ids)), None]

    at_a_desk(story)


def test_reads_of_one_client_at_once_get_different_messages():
    async def story(desk):
        queue = await desk.create()
        for n in range(5):
            await desk.append(queue, b"%d" % n)

        found = await asyncio.gather(*(desk.read(queue, "a") for _ in range(5)))

        assert sorted(value for _, value in found) == [b"0", b"1", b"2", b"3", b"4"]

    at_a_desk(story)


def test_a_repeated_request_gets_the_same_answer_after_a_restart_too():
    machine = Machine()
    known = {}

    async def first(node):
        desk = Desk(node)
        known["queue"] = await desk.create("c")
        known["id"] = await desk.append(known["queue"], b"x", "a")
        await desk.append(known["queue"], b"y")
        known["read"] = await desk.read(known["queue"], "me", "r")
        await again(node)

    async def again(node):
        desk = Desk(node) if "desk" not in known else known["desk"]
        assert await desk.create("c") == known["queue"]
        assert await desk.append(known["queue"], b"x", "a") == known["id"]
        assert await desk.read(known["queue"], "me", "r") == known["read"] == (known["id"], b"x")

    machine.live(first, killed=True)
    machine.live(again)


def test_an_unknown_queue_says_how_to_make_it():
    async def story(desk):
        with pytest.raises(UnknownQueue, match="create_queue"):
            await desk.append(7, b"x")
        with pytest.raises(UnknownQueue, match="PUT /v1/queues/none"):
            await desk.publish(b"x", name="none")

    at_a_desk(story)


# Work.


def test_a_message_has_one_owner_until_it_is_acknowledged():
    async def story(desk):
        await desk.declare()
        await desk.publish(b"1", b"2")

        first = await desk.receive()
        second = await desk.receive()
        assert [first[0][0], second[0][0], await desk.receive()] == [b"1", b"2", []]
        assert await desk.settle("ack", first[0][1]) == ("done",)
        assert await desk.settle("ack", first[0][1]) == ("unknown",)
        assert (await desk.look())["main"] == {"ready": 0, "delayed": 0, "in_flight": 1, "oldest_ms": 0}

    at_a_desk(story)


def test_of_messages_published_together_each_receiver_gets_its_own():
    async def story(desk):
        await desk.declare()
        for at in range(0, 12, 4):
            await desk.publish(*(b"%d" % n for n in range(at, at + 4)))

        found = [await desk.receive(most=most) for most in (1, 2, 3, 1, 5)]
        await desk.settle("nack", found[0][0][1], found[3][0][1], found[4][4][1])
        again = await desk.receive(most=3)

        values = [value for some in found for value, _ in some]
        assert values == [b"%d" % n for n in range(12)]
        assert sorted(value for value, _ in again) == [b"0", b"11", b"6"]

    at_a_desk(story)


def test_one_that_is_not_acknowledged_in_time_is_given_to_another_and_counted():
    async def story(desk):
        await desk.declare()
        await desk.publish(b"1")
        [(_, old)] = await desk.receive(visible=1000)

        await asyncio.sleep(1.5)
        [(value, new)] = await desk.receive()

        assert (value, old.partition("-")[2], new.partition("-")[2]) == (b"1", "1", "2")
        assert await desk.settle("ack", old) == ("expired",)
        assert await desk.settle("ack", new) == ("done",)

    at_a_desk(story)


def test_who_waits_gets_what_comes():
    async def story(desk):
        await desk.declare()
        waiting = asyncio.ensure_future(desk.receive(wait=3.0))
        await asyncio.sleep(0.5)

        await desk.publish(b"1")

        assert [value for value, _ in await waiting] == [b"1"]
        assert await desk.receive(wait=0.5) == []

    at_a_desk(story)


def test_who_waited_for_longer_than_its_request_may_last_keeps_no_message_from_others():
    async def story(desk):
        await desk.declare()
        work = ReceiveWork(name="q", lane=MAIN, count_max=1, wait_seconds=60.0, visibility_ms=None)
        place = await desk.queues.place_of("q")

        gone = await desk.queues.have_done(place, work, seconds=0.2)
        await desk.publish(b"a")

        assert gone.messages == ()
        assert [value for value, _ in await desk.receive()] == [b"a"]

    at_a_desk(story)


@pytest.mark.parametrize("how", ["by its name", "by its end"])
def test_who_goes_while_it_waits_keeps_no_message_from_others(how):
    async def story(desk):
        await desk.declare()
        waiting = asyncio.ensure_future(desk.receive(wait=60.0, waiter="w"))
        await asyncio.sleep(0.5)
        assert not waiting.done()

        if how == "by its name":  # as the node does that was asked, if another keeps the queue
            await desk.queues.forget(await desk.queues.place_of("q"), "another")
            assert not waiting.done()
            await desk.queues.forget(await desk.queues.place_of("q"), "w")
            assert await waiting == []
        else:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await desk.publish(b"a")

        assert [value for value, _ in await desk.receive()] == [b"a"]
        assert not desk.queues._waiters
        await desk.queues.forget(await desk.queues.place_of("q"), "w")  # too late is as good

    at_a_desk(story)


def test_a_message_put_back_comes_after_its_delay_and_an_extended_one_later():
    async def story(desk):
        await desk.declare()
        await desk.publish(b"1", b"2")
        [(_, one), (_, two)] = await desk.receive(most=2, visible=1000)
        assert await desk.settle("nack", one, ms=2000) == ("done",)
        assert await desk.settle("extend", two, ms=5000) == ("done",)

        assert await desk.receive() == []
        await asyncio.sleep(2.5)
        assert [value for value, _ in await desk.receive()] == [b"1"]
        assert await desk.receive() == []
        assert await desk.settle("ack", two) == ("done",)

    at_a_desk(story)


def test_a_delayed_message_is_not_given_out_before_its_time():
    async def story(desk):
        await desk.declare()
        later = About(not_before_ms=desk.node.clock.wall_ms() + 1000)
        await desk.publish(b"later", about=later)
        await desk.publish(b"now")

        assert [value for value, _ in await desk.receive()] == [b"now"]
        assert [value for value, _ in await desk.receive(wait=3.0)] == [b"later"]

    at_a_desk(story)


def test_what_nobody_manages_to_do_is_dead_and_can_be_brought_back():
    async def story(desk):
        await desk.declare(max_deliveries=2)
        await desk.publish(b"1")
        for _ in range(2):
            [(_, receipt)] = await desk.receive()
            await desk.settle("nack", receipt)

        assert await desk.receive() == []
        [(value, _)] = await desk.receive(lane=DEAD, visible=1)
        assert value == b"1"
        await asyncio.sleep(0.5)
        moved = await desk._do("q", MoveWork(name="q", lane=DEAD, count_max=10))
        assert moved.number == 1
        [(value, receipt)] = await desk.receive()
        assert (value, receipt.partition("-")[2]) == (b"1", "4"), "no receipt fits twice"

    at_a_desk(story)


def test_of_one_key_messages_are_given_out_one_after_the_other():
    async def story(desk):
        await desk.declare(is_ordered=True)
        for value, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b")):
            await desk.publish(value, about=About(key=key))

        first = await desk.receive(most=3)
        assert [value for value, _ in first] == [b"a1", b"b1"]
        await desk.settle("ack", first[0][1])
        assert [value for value, _ in await desk.receive(most=3)] == [b"a2"]

    at_a_desk(story)


def test_a_full_queue_says_so_and_a_purged_one_is_empty():
    async def story(desk):
        await desk.declare(messages_max=2)
        await desk.publish(b"1", b"2")

        with pytest.raises(QueueFull, match="may hold 2"):
            await desk.publish(b"3")
        purged = await desk._do("q", MoveWork(name="q", lane=MAIN, count_max=0, purges=True))
        assert purged.number == 2
        assert await desk.receive() == []
        await desk.publish(b"3")

    at_a_desk(story)


def test_after_a_crash_owners_still_own_what_they_had_for_the_whole_time():
    machine = Machine()
    known = {}

    async def first(node):
        desk = Desk(node)
        await desk.declare(visibility_ms=2000)
        await desk.publish(b"1", b"2")
        [(_, known["receipt"])] = await desk.receive(key="k")
        await asyncio.sleep(1.5)

    async def second(node):
        desk = Desk(node)
        [(_, receipt)] = await desk.receive(key="k")
        assert receipt == known["receipt"]
        await asyncio.sleep(1.5)
        assert await desk.settle("ack", known["receipt"]) == ("done",)
        assert [value for value, _ in await desk.receive(most=5)] == [b"2"]

    machine.live(first, killed=True)
    machine.live(second)


@pytest.mark.parametrize("kind", ["ack", "nack", "extend"])
def test_who_settles_again_after_a_restart_hears_which_receipts_did_not_fit(kind):
    machine = Machine()
    known = {}

    async def first(node):
        desk = Desk(node)
        await desk.declare()
        await desk.publish(b"1", b"2")
        [(_, one), (_, two)] = await desk.receive(most=2, visible=1000)
        await asyncio.sleep(1.5)
        [(_, one_again)] = await desk.receive()
        assert await desk.receive()
        known["receipts"] = (one, one_again, two)
        await again(node, desk)

    async def again(node, desk=None):
        desk = desk or Desk(node)
        outcomes = await desk.settle(kind, *known["receipts"], key="k", ms=60_000)
        assert outcomes == ("expired", "done", "expired")

    machine.live(first, killed=True)
    machine.live(again)


def test_time_goes_on_after_the_loop_has_stalled_though_requests_keep_coming():
    async def story(desk):
        await desk.declare()
        await desk.publish(b"first")
        assert await desk.receive(visible=1000)
        (driver,) = (one for one in desk.queues.drivers() if one.shard.work_queues)
        driver._timer.cancel()
        await asyncio.sleep(5.0)
        driver._tick()  # as the loop would, much too late

        for _ in range(20):  # each sets the timer anew
            await desk.publish(b"another")
            await asyncio.sleep(0.01)

        assert [value for value, _ in await desk.receive()] == [b"first"]

    at_a_desk(story)


# Lists.


def test_a_page_of_names_is_no_longer_than_asked_for():
    async def story(desk):
        for number in range(5):
            await desk.declare(f"q{number}")
        (place,) = await desk.queues.places()
        work = LookWork(what=NAMES, client="q0", limit=2)

        page = (await desk.queues.have_done(place, work, seconds=SECONDS)).document

        assert page == {"work": ["q1", "q2"]}

    at_a_desk(story, queues_topic_num_partitions=1)
