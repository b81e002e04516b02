import asyncio
from contextlib import aclosing, closing

import httpx
import pytest

from tests.unit.client.http.fleet import Fleet, Gone, events, ok, problem
from tidelog.client import NotFound, OutcomeUnknown, RoomEvent, Told

ROOM = "/v1/rooms/lobby"
PUBSUB = "/v1/pubsub"


def said(number: int, data: str = "1") -> str:
    told = f'{{"id":{number},"event":"joined","data":{data},"at_ms":5}}'
    return f"id: c{number}\ndata: {told}\n\n"


def told(topic: str, data: str = "1") -> str:
    return f'id: 0\ndata: {{"topic":"{topic}","data":{data}}}\n\n'


# Rooms.


def test_a_room_is_made_described_and_deleted():
    fleet = Fleet()
    fleet.says(ROOM, ok({"name": "lobby"}, 201), ok({"next": 3}), ok({}), problem(404))
    room = fleet.client().room("lobby")

    assert room.create(retention=60, retention_events=5) == {"name": "lobby"}
    assert room.describe() == {"next": 3}
    assert room.delete() is True
    assert room.delete() is False
    assert fleet.asked[0].body == {"retention_ms": 60_000, "retention_events": 5}


def test_an_event_is_published_once_however_often_it_is_sent():
    fleet = Fleet()
    fleet.says(f"{ROOM}/events", Gone(httpx.ReadError), ok({"id": 4}, 201))

    assert fleet.client().room("lobby").publish({"who": "ada"}, event="joined") == 4

    asked = fleet.questions(f"{ROOM}/events")
    assert len({one.key for one in asked}) == 1
    assert asked[0].body == {"data": {"who": "ada"}, "event": "joined"}


def test_history_is_read_from_an_id_on():
    fleet = Fleet()
    event = {"id": 7, "event": "message", "data": "hi", "at_ms": 9}
    fleet.says(f"{ROOM}/events", ok({"events": [event], "next": 8}))

    found = fleet.client().room("lobby").history(7, limit=5, wait=2)

    assert found.next == 8
    assert found.events == (RoomEvent(id=7, event="message", data="hi", at_ms=9),)
    assert fleet.asked[0].query == {"from": "7", "limit": "5", "wait_ms": "2000"}


def test_a_subscription_goes_on_after_the_last_event_when_a_node_is_lost():
    fleet = Fleet("a:1", "b:1")
    fleet.says(f"{ROOM}/subscribe", events("id: c0\n\n", said(1), lost=True), events(said(2), said(3)))

    client = fleet.client("http://a:1", "http://b:1")
    with closing(client.room("lobby").subscribe(from_=1)) as heard:
        found = [next(heard) for _ in range(3)]

    assert [(one.id, one.event, one.data, one.cursor) for one in found] == [
        (1, "joined", 1, "c1"),
        (2, "joined", 1, "c2"),
        (3, "joined", 1, "c3"),
    ]
    first, second = fleet.questions(f"{ROOM}/subscribe")
    assert (first.query["from"], second.query["from"]) == ("1", "c1")
    assert (first.node, second.node) == ("a:1", "b:1")


def test_who_listens_to_a_room_that_is_not_there_is_told_so():
    fleet = Fleet()
    fleet.says(f"{ROOM}/subscribe", problem(404, "there is no room"))

    with pytest.raises(NotFound, match="no room"):
        next(fleet.client().room("lobby").subscribe())
    with pytest.raises(ValueError, match="name"):
        fleet.client().room("")


def test_rooms_are_listed():
    fleet = Fleet()
    fleet.says("/v1/rooms", ok({"rooms": ["lobby"], "next": None}))

    assert fleet.client().rooms() == ["lobby"]


def test_coroutines_hear_a_room():
    fleet = Fleet()
    fleet.says(f"{ROOM}/subscribe", events(said(1), said(2)))

    async def story() -> list[int]:
        async with fleet.async_client() as client, aclosing(client.room("lobby").subscribe()) as heard:
            return [(await anext(heard)).id, (await anext(heard)).id]

    assert asyncio.run(story()) == [1, 2]


# Pub/sub.


def test_a_message_tells_how_many_heard_it():
    fleet = Fleet()
    fleet.says(f"{PUBSUB}/a.b", ok({"topic": "a.b", "receivers": 3}))

    assert fleet.client().pubsub.publish("a.b", {"x": 1}) == 3
    assert fleet.asked[0].body == {"data": {"x": 1}}


def test_a_message_that_may_have_been_heard_is_not_sent_again():
    fleet = Fleet()
    fleet.says(f"{PUBSUB}/a", Gone(httpx.ReadError), ok({"receivers": 1}))

    with pytest.raises(OutcomeUnknown):
        fleet.client().pubsub.publish("a", 1)

    assert len(fleet.questions(f"{PUBSUB}/a")) == 1


def test_a_message_that_no_node_got_is_sent_to_another():
    fleet = Fleet("a:1", "b:1")
    fleet.says(f"{PUBSUB}/a", problem(503), Gone(), ok({"receivers": 1}))

    assert fleet.client().pubsub.publish("a", 1) == 1


def test_a_listener_that_was_lost_listens_again_to_whatever_comes_then():
    fleet = Fleet()
    fleet.says(PUBSUB, events(told("a.x"), lost=True), events(told("b", '"y"')))

    with closing(fleet.client().pubsub.subscribe("a.*", "b")) as heard:
        found = [next(heard), next(heard)]

    assert found == [Told(topic="a.x", data=1), Told(topic="b", data="y")]
    assert [asked.query for asked in fleet.questions(PUBSUB)] == [{"topics": "a.*,b"}] * 2
    with pytest.raises(ValueError, match="at least one"):
        fleet.client().pubsub.subscribe()


def test_who_listens_is_counted():
    fleet = Fleet()
    fleet.says(f"{PUBSUB}/stats", ok({"subscribers": 2, "topics": {"a": 2}}))

    assert fleet.client().pubsub.stats()["topics"] == {"a": 2}
