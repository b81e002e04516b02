"""Queues with read pointers: every client reads all messages, in order, each once.

Rule: a read carries a key, so one that is repeated gets the same message. A client that dies with
      the answer in its hands has read that message; who must not miss one uses a work queue.
"""

from typing import Any

from tidelog.client.http.core import GONE, Ask, Core, to_json
from tidelog.client.http.effects import Emit, Flow, Plan
from tidelog.client.http.errors import NotFound
from tidelog.client.http.routes import Place
from tidelog.client.http.values import Document, Pointer, PointerMessage, Seconds, made_of
from tidelog.model import QUEUES_TOPIC

PAGE = 1000


class PointerQueuesPlans:
    """All queues with read pointers, by their numbers."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def create(self, *, idempotency_key: str | None = None) -> Plan[int]:
        """Make a queue; its id."""
        found = yield from self._core.write(
            Ask(method="POST", path="/create_queue", body=to_json({})),
            sync_timeout=self._core.change_seconds,
            idempotency_key=idempotency_key,
        )
        return int(found["queue_id"])

    def delete(self, queue_id: int, *, idempotency_key: str | None = None) -> Plan[bool]:
        """Delete a queue with all that is in it; False if there was none."""
        try:
            yield from self._core.write(
                Ask(
                    method="POST",
                    path="/delete_queue",
                    body=to_json({"queue_id": queue_id}),
                    place=_place(queue_id),
                    settled_by=GONE,
                ),
                sync_timeout=self._core.change_seconds,
                idempotency_key=idempotency_key,
            )
        except NotFound:
            return False
        return True

    def append(
        self,
        queue_id: int,
        value: Any,
        *,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[int]:
        """Add a message, which may be any JSON; its id."""
        body = {"queue_id": queue_id, "value": value}
        found = yield from self._core.write(
            Ask(method="POST", path="/append", body=to_json(body), place=_place(queue_id)),
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        return int(found["message_id"])

    def read(
        self,
        queue_id: int,
        client_id: str,
        *,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[PointerMessage | None]:
        """The next message that this client has not read; None if it has read all."""
        body = {"queue_id": queue_id, "client_id": client_id}
        found = yield from self._core.write(
            Ask(method="POST", path="/read", body=to_json(body), place=_place(queue_id)),
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        if found["message_id"] is None:
            return None
        return PointerMessage(id=found["message_id"], queue_id=queue_id, value=found["value"])

    def list(self) -> Plan[list[int]]:
        """The ids of all queues."""
        ids: list[int] = []
        after = None
        while True:
            found = yield from self._page("/get_all_queues", after)
            ids += found["queue_ids"]
            after = found.get("next")
            if after is None:
                return ids

    def messages(self) -> Flow[PointerMessage]:
        """Every message of every queue, page by page."""
        after = None
        while True:
            found = yield from self._page("/get_all_messages", after)
            for one in found["messages"]:
                yield Emit(PointerMessage(id=one["message_id"], queue_id=one["queue_id"], value=one["value"]))
            after = found.get("next")
            if after is None:
                return

    def pointers(self) -> Flow[Pointer]:
        """How far every client has read, page by page."""
        after = None
        while True:
            found = yield from self._page("/get_all_pointers", after)
            for one in found["pointers"]:
                yield Emit(made_of(Pointer, one))
            after = found.get("next")
            if after is None:
                return

    def broker_info(self) -> Plan[Document]:
        """Which node answers, and what it leads."""
        found: Document = yield from self._core.ask(Ask(method="POST", path="/broker_info", body=to_json({})))
        return found

    def _page(self, path: str, after: Any) -> Plan[Any]:
        body: Document = {"limit": PAGE}
        if after is not None:
            body["after"] = after
        return (yield from self._core.ask(Ask(method="POST", path=path, body=to_json(body))))


def _place(queue_id: int) -> Place:
    return Place(topic=QUEUES_TOPIC, choose=lambda count: queue_id % count)
