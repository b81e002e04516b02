"""Streams and pub/sub: rooms that remember their events, and topics that remember nothing.

Rule: an event of a room is published once, however often the request is sent. A message of pub/sub
      has no name by which it could be known again: once a node may have got it, it is not repeated.
"""

import json
from typing import Any, Literal

from tidelog.client.http.core import GONE, Ask, Core, path_of, to_json
from tidelog.client.http.effects import Flow, Plan
from tidelog.client.http.errors import NotFound
from tidelog.client.http.routes import Place
from tidelog.client.http.sse import Event
from tidelog.client.http.values import Document, RoomEvent, RoomEvents, Seconds, Told, made_of, milliseconds

PREFIX = "room."
PAGE = 100


class RoomPlans:
    """One room, and what happens in it."""

    def __init__(self, core: Core, name: str) -> None:
        if not name:
            raise ValueError("a room has a name")
        self._core = core
        self._path = path_of("v1", "rooms", name)
        self._place = Place(topic=PREFIX + name, partition=0)
        self.name = name

    # The room itself.

    def create(
        self, *, retention: Seconds | None = None, retention_events: int | None = None
    ) -> Plan[Document]:
        """Make the room, which its first event does, too; one that is there stays as it is.

        It remembers what happened for `retention`, or the last `retention_events`.
        """
        wanted = {
            "retention_ms": None if retention is None else milliseconds(retention),
            "retention_events": retention_events,
        }
        body = to_json({name: value for name, value in wanted.items() if value is not None})
        found: Document = yield from self._core.ask(
            Ask(method="PUT", path=self._path, body=body, seconds_max=self._core.change_seconds)
        )
        self._core.routes.forget(self._place.topic)
        return found

    def describe(self) -> Plan[Document]:
        """The `first` event that it has, the `next` one, and how many `subscribers` listen."""
        found: Document = yield from self._core.ask(Ask(method="GET", path=self._path))
        return found

    def delete(self) -> Plan[bool]:
        """Delete the room with its history; False if there was none."""
        try:
            yield from self._core.ask(
                Ask(method="DELETE", path=self._path, seconds_max=self._core.change_seconds, settled_by=GONE)
            )
        except NotFound as error:
            return error.is_repeat
        finally:
            self._core.routes.forget(self._place.topic)
        return True

    # Events.

    def publish(
        self,
        data: Any,
        *,
        event: str = "message",
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[int]:
        """Tell the room of an event, whose data may be any JSON; its id."""
        found = yield from self._core.write(
            Ask(
                method="POST",
                path=f"{self._path}/events",
                body=to_json({"data": data, "event": event}),
                place=self._place,
            ),
            min_replicas_ack=min_replicas_ack,
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        return int(found["id"])

    def history(
        self,
        from_: int | Literal["earliest", "latest"] = "earliest",
        *,
        limit: int = PAGE,
        wait: Seconds = 0.0,
    ) -> Plan[RoomEvents]:
        """Events from an id on, or the oldest; waits for one that long."""
        wait_ms = milliseconds(wait)
        query = {"from": from_, "limit": limit, "wait_ms": wait_ms or None}
        found = yield from self._core.ask(
            Ask(
                method="GET",
                path=f"{self._path}/events",
                query=query,
                place=self._place,
                seconds_max=self._core.settings.timeout + wait_ms / 1000,
            )
        )
        events = tuple(made_of(RoomEvent, one) for one in found["events"])
        return RoomEvents(events=events, next=found["next"])

    def subscribe(self, *, from_: str | int = "latest") -> Flow[RoomEvent]:
        """Events as they happen: from the `latest`, the `earliest`, an id, or after a cursor.

        It goes on where it was when a node is lost.
        """
        ask = Ask(method="GET", path=f"{self._path}/subscribe", query={"from": str(from_)}, place=self._place)
        return self._core.follow(ask, _event)


class PubSubPlans:
    """Messages to whoever listens now."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def publish(self, topic: str, data: Any) -> Plan[int]:
        """Tell all who listen to a topic, at any node; how many heard."""
        found = yield from self._core.ask(
            Ask(
                method="POST",
                path=path_of("v1", "pubsub", topic),
                body=to_json({"data": data}),
                is_repeatable=False,
            )
        )
        return int(found["receivers"])

    def subscribe(self, *topics: str) -> Flow[Told]:
        """Messages of topics or patterns: `*` is one word between dots, `#` all that follow.

        Listening begins with the first `next`. What is said while a node is lost is not heard.
        """
        if not topics:
            raise ValueError("name at least one topic or pattern")
        ask = Ask(method="GET", path="/v1/pubsub", query={"topics": ",".join(topics)}, has_cursor=False)
        return self._core.follow(ask, _told)

    def stats(self) -> Plan[Document]:
        """How many listen: `subscribers`, and by topic or pattern, `topics`."""
        found: Document = yield from self._core.ask(Ask(method="GET", path="/v1/pubsub/stats"))
        return found


def _event(event: Event) -> RoomEvent:
    return made_of(RoomEvent, json.loads(event.data), cursor=event.id)


def _told(event: Event) -> Told:
    return made_of(Told, json.loads(event.data))
