"""Rooms and pub/sub as clients of HTTP have them."""

import asyncio

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_queues import post
from tests.unit.faces.http.test_records import serving
from tests.unit.faces.http.test_streams import Listener
from tidelog.faces.http import push
from tidelog.faces.http.edge.sockets import WebSocketDisconnect
from tidelog.simulation.http_door import Door, Message


def heard(listener, field="data"):
    return [one[field] for one in listener.events() if not one["kind"]]


async def until(listener, count):
    while len(heard(listener)) < count:
        await asyncio.sleep(0.01)
    return heard(listener)


def test_a_room_has_a_history_and_goes_on_with_what_comes():
    async def story(node):
        app = serving(node)
        assert (await ask(app, "/v1/rooms/lobby/events")).status == 404
        made = await post(app, "/v1/rooms/lobby/events", {"event": "joined", "data": {"who": 1}})
        await post(app, "/v1/rooms/lobby/events", {"data": "hello"})
        assert (made.status, made.json) == (201, {"id": 0})

        history = (await ask(app, "/v1/rooms/lobby/events")).json
        assert [(e["id"], e["event"], e["data"]) for e in history["events"]] == [
            (0, "joined", {"who": 1}),
            (1, "message", "hello"),
        ]
        listener = Listener(app, "/v1/rooms/lobby/subscribe?from=1")
        assert await until(listener, 1) == ["hello"]
        assert (await ask(app, "/v1/rooms/lobby")).json == {
            "name": "lobby",
            "first": 0,
            "next": 2,
            "subscribers": 1,
        }
        await post(app, "/v1/rooms/lobby/events", {"data": None})
        assert await until(listener, 2) == ["hello", None]
        await listener.hang_up()
        assert (await ask(app, "/v1/rooms/lobby")).json["subscribers"] == 0
        assert (await ask(app, "/v1/rooms")).json["rooms"] == ["lobby"]
        assert (await ask(app, "/v1/rooms/lobby", method="DELETE")).json["deleted"] is True
        assert (await ask(app, "/v1/rooms/lobby", method="DELETE")).status == 404

    on_a_node(story)


def test_a_message_is_heard_by_those_who_listen_and_counted():
    async def story(node):
        app = serving(node)
        assert (await post(app, "/v1/pubsub/a.b", {"data": 0})).json["receivers"] == 0
        listener = Listener(app, "/v1/pubsub?topics=a.*,b.%23")
        while not (await ask(app, "/v1/pubsub/stats")).json["subscribers"]:
            await asyncio.sleep(0.01)

        assert (await post(app, "/v1/pubsub/a.b", {"data": {"n": 1}})).json == {
            "topic": "a.b",
            "receivers": 1,
        }
        await post(app, "/v1/pubsub/c", {"data": 2})
        await post(app, "/v1/pubsub/b.c.d", {"data": 3})
        assert await until(listener, 2) == [{"n": 1}, 3]
        assert heard(listener, "topic") == ["a.b", "b.c.d"]
        await listener.hang_up()
        assert (await ask(app, "/v1/pubsub/stats")).json == {"subscribers": 0, "topics": {}}

    on_a_node(story)


def test_who_does_not_read_is_let_go_with_a_reason_and_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(push, "FEED_BYTES_MAX", 1000)
    monkeypatch.setattr(push.Feed.__init__, "__kwdefaults__", {"bytes_max": 1000})

    async def story(node):
        app = serving(node)
        slow, quick = (Listener(app, "/v1/pubsub?topics=a") for _ in range(2))
        while (await ask(app, "/v1/pubsub/stats")).json["subscribers"] < 2:
            await asyncio.sleep(0.01)
        slow.reads.clear()
        receivers = []
        for n in range(100):
            told = await post(app, "/v1/pubsub/a", {"data": "x" * 50 + str(n)})
            receivers.append(told.json["receivers"])
            await asyncio.sleep(0.01)

        assert (receivers[0], receivers[-1]) == (2, 1)
        assert len(await until(quick, 100)) == 100
        slow.reads.set()
        await slow.served
        last = slow.events()[-1]
        assert (last["kind"], last["reason"]) == ("dropped", "slow")
        await quick.hang_up()

    on_a_node(story)


def test_names_that_cannot_be_are_refused():
    async def story(node):
        app = serving(node)

        assert (await post(app, "/v1/pubsub/a..b", {"data": 1})).status == 400
        assert (await ask(app, "/v1/pubsub")).status == 400
        assert (await ask(app, "/v1/pubsub?topics=a.b*")).status == 400
        assert (await post(app, "/v1/rooms/a%20b/events", {"data": 1})).status in (400, 404)
        assert (await ask(app, "/v1/rooms/none/subscribe")).status == 404

    on_a_node(story)


def test_who_goes_before_it_is_told_that_it_listens_leaves_nothing_behind():
    async def story(node):
        app = serving(node)

        async def tell(message: Message) -> None:
            raise WebSocketDisconnect

        await Door(app, "WS", "/v1/pubsub?topics=a", tell).run()

        assert app.node.services.pubsub.counts() == {}

    on_a_node(story)
