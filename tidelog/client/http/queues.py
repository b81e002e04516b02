"""Work queues: what each call asks, and what it makes of the answer.

Rule 1: a message is somebody's until its time is over. Who settles it later is told so, by
        Conflict or NotFound; `error.problem["results"]` has what became of each receipt.
Rule 2: who consumes acknowledges a message when it asks for the next one, and puts back what it
        holds when it leaves: so each message is done at least once.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidelog.client.http.core import ANSWER_MARGIN_SECONDS, GONE, Ask, Core, path_of, to_json
from tidelog.client.http.effects import Plan, Wait
from tidelog.client.http.errors import NotFound, OutcomeUnknown, TidelogHTTPError, Unavailable
from tidelog.client.http.routes import Place
from tidelog.client.http.values import Document, Received, Seconds, ToPublish, made_of, milliseconds
from tidelog.model import QUEUES_TOPIC

CONSUME_WAIT_SECONDS: Final = 20.0
"""For how long a consumer waits at a time; a node takes up to 30 s."""


class MessagePlans:
    """A message that was received, and what can be done with it."""

    def __init__(self, queue: "QueuePlans", received: Received) -> None:
        self._queue = queue
        self.received = received
        self.is_settled = False
        """Whether it was acknowledged or put back."""

    def ack(self) -> Plan[None]:
        """It is done: forget it."""
        yield from self._queue.ack(self.received.receipt)
        self.is_settled = True

    def nack(self, delay: Seconds = 0.0) -> Plan[None]:
        """Put it back, for whoever asks next once `delay` has passed."""
        yield from self._queue.nack(self.received.receipt, delay=delay)
        self.is_settled = True

    def extend(self, visibility: Seconds) -> Plan[None]:
        """Keep it for so long, from now on."""
        yield from self._queue.extend(self.received.receipt, visibility=visibility)


class QueuePlans:
    """One work queue. `NAME.dead` is what nobody managed to do of NAME."""

    def __init__(self, core: Core, name: str) -> None:
        if not name:
            raise ValueError("a queue has a name")
        self.core = core
        self._path = path_of("v1", "queues", name)
        self.name = name

    # The queue itself.

    def declare(
        self,
        *,
        visibility: Seconds | None = None,
        max_deliveries: int | None = None,
        ordered: bool | None = None,
        messages_max: int | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[Document]:
        """Make the queue, or change how it gives out its messages; what is left out is a default.

        A receiver has a message for `visibility`. After `max_deliveries` it is dead (0: never).
        An `ordered` queue gives out messages of one key one after the other.
        """
        wanted = {
            "visibility_ms": None if visibility is None else milliseconds(visibility),
            "max_deliveries": max_deliveries,
            "ordered": ordered,
            "messages_max": messages_max,
        }
        body = {name: value for name, value in wanted.items() if value is not None}
        found: Document = yield from self._write(
            "PUT", "", body, idempotency_key, sync_timeout=self.core.change_seconds
        )
        return found

    def describe(self) -> Plan[Document]:
        """Its settings, `depth`, `in_flight`, `delayed`, `oldest_ms` and how many are `dead`."""
        found: Document = yield from self.core.ask(Ask(method="GET", path=self._path, place=self._place()))
        return found

    def delete(self, *, idempotency_key: str | None = None) -> Plan[bool]:
        """Delete the queue with all that is in it; False if there was none."""
        try:
            yield from self.core.write(
                Ask(method="DELETE", path=self._path, place=self._place(), settled_by=GONE),
                sync_timeout=self.core.change_seconds,
                idempotency_key=idempotency_key,
            )
        except NotFound:
            return False
        return True

    # Sending.

    def publish(
        self,
        value: Any,
        *,
        attributes: Mapping[str, str] | None = None,
        key: str | None = None,
        delay: Seconds | None = None,
        deliver_at_ms: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[int]:
        """Publish a message, which may be any JSON; its id."""
        message = ToPublish(
            value=value, attributes=attributes or {}, key=key, delay=delay, deliver_at_ms=deliver_at_ms
        )
        (published,) = yield from self.publish_many(
            [message], sync_timeout=sync_timeout, idempotency_key=idempotency_key
        )
        return published

    def publish_many(
        self,
        messages: Iterable[ToPublish],
        *,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[list[int]]:
        """Publish up to a thousand messages, all or none; their ids, in order."""
        body = {"messages": [_to_json(message) for message in messages]}
        found = yield from self._write("POST", "/messages", body, idempotency_key, sync_timeout=sync_timeout)
        ids: list[int] = found["ids"]
        return ids

    # Receiving.

    def receive(
        self,
        max: int = 1,
        *,
        wait: Seconds = 0.0,
        visibility: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[list[MessagePlans]]:
        """Up to `max` messages, which nobody else gets for a while; waits for one that long."""
        body: Document = {"max": max, "wait_ms": milliseconds(wait)}
        if visibility is not None:
            body["visibility_ms"] = milliseconds(visibility)
        timeout = self.core.settings.timeout
        found = yield from self.core.ask(
            Ask(
                method="POST",
                path=f"{self._path}/receive",
                body=to_json(body),
                query={"sync_timeout_ms": milliseconds(timeout)},
                place=self._place(),
                idempotency_key=idempotency_key,
                seconds_max=timeout + body["wait_ms"] / 1000 + ANSWER_MARGIN_SECONDS,
            )
        )
        return [MessagePlans(self, made_of(Received, one)) for one in found["messages"]]

    def ack(self, *receipts: str, idempotency_key: str | None = None) -> Plan[None]:
        """The messages with these receipts are done: forget them."""
        yield from self._settle("/ack", {"receipts": receipts}, idempotency_key)

    def nack(self, *receipts: str, delay: Seconds = 0.0, idempotency_key: str | None = None) -> Plan[None]:
        """Put messages back, for whoever asks next once `delay` has passed."""
        body = {"receipts": receipts, "delay_ms": milliseconds(delay)}
        yield from self._settle("/nack", body, idempotency_key)

    def extend(self, *receipts: str, visibility: Seconds, idempotency_key: str | None = None) -> Plan[None]:
        """Keep messages for so long, from now on."""
        body = {"receipts": receipts, "visibility_ms": milliseconds(visibility)}
        yield from self._settle("/extend", body, idempotency_key)

    # All of it.

    def purge(self, *, idempotency_key: str | None = None) -> Plan[int]:
        """Delete all messages that nobody has; how many."""
        return (yield from self._move("/purge", idempotency_key))

    def redrive(self, *, idempotency_key: str | None = None) -> Plan[int]:
        """Bring back all that is dead; how many."""
        return (yield from self._move("/redrive", idempotency_key))

    # Parts.

    def _move(self, what: str, idempotency_key: str | None) -> Plan[int]:
        found = yield from self._write(
            "POST", what, {}, idempotency_key, sync_timeout=self.core.change_seconds, settled_by=GONE
        )
        return int(found["messages"])

    def _settle(self, what: str, body: Document, idempotency_key: str | None) -> Plan[None]:
        yield from self._write("POST", what, body, idempotency_key)

    def _write(
        self,
        method: str,
        what: str,
        body: Document,
        idempotency_key: str | None,
        *,
        sync_timeout: Seconds | None = None,
        settled_by: frozenset[int] = frozenset(),
    ) -> Plan[Any]:
        return (
            yield from self.core.write(
                Ask(
                    method=method,
                    path=self._path + what,
                    body=to_json(body),
                    place=self._place(),
                    settled_by=settled_by,
                ),
                sync_timeout=sync_timeout,
                idempotency_key=idempotency_key,
            )
        )

    def _place(self) -> Place:
        return Place(topic=QUEUES_TOPIC, choose=self._partition)

    def _partition(self, count: int) -> int:
        from tidelog.wire.names import partition_for

        return partition_for(self.name.removesuffix(".dead"), count)


class MessageFacts:
    """What a message says, whichever client it came through."""

    _plans: MessagePlans

    @property
    def id(self) -> int:
        return self._plans.received.id

    @property
    def receipt(self) -> str:
        """Stands for this delivery of it: `queue.ack(receipt)`, from anywhere."""
        return self._plans.received.receipt

    @property
    def value(self) -> Any:
        return self._plans.received.value

    @property
    def attributes(self) -> Mapping[str, str]:
        return self._plans.received.attributes

    @property
    def key(self) -> str | None:
        return self._plans.received.key

    @property
    def delivery_count(self) -> int:
        """1 for the first time."""
        return self._plans.received.delivery_count

    @property
    def published_at_ms(self) -> int:
        return self._plans.received.published_at_ms

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or put back here."""
        return self._plans.is_settled

    def __repr__(self) -> str:
        return f"<Message {self.id} of delivery {self.delivery_count}: {self.value!r}>"


class Consuming:
    """One consumer of a queue: what it holds, and what it does next."""

    def __init__(
        self, queue: QueuePlans, *, max: int, visibility: Seconds | None, idle: Seconds | None
    ) -> None:
        self._queue = queue
        self._max = max
        self._visibility = visibility
        self._idle_ms = None if idle is None else milliseconds(idle)
        self._waiting: deque[MessagePlans] = deque()
        self._current: MessagePlans | None = None
        self._heard_at: float | None = None

    def following(self) -> Plan[MessagePlans | None]:
        """The next message, once there is one; None if none came for as long as was asked for."""
        current, self._current = self._current, None
        if current is not None and not current.is_settled:
            yield from current.ack()
        left_ms = self._idle_ms
        while not self._waiting:
            wait_ms = milliseconds(CONSUME_WAIT_SECONDS)
            wait_ms = wait_ms if left_ms is None else min(wait_ms, left_ms)
            self._waiting.extend((yield from self._receive(wait_ms / 1000)))
            if left_ms is not None:
                left_ms -= wait_ms
                if not self._waiting and left_ms <= 0:
                    return None
        self._current = self._waiting.popleft()
        return self._current

    def _receive(self, wait: float) -> Plan[list[MessagePlans]]:
        """A queue that could be asked before is sought, as a stream that was lost is."""
        core = self._queue.core
        failures, key = 0, None
        while True:
            try:
                found = yield from self._queue.receive(
                    self._max, wait=wait, visibility=self._visibility, idempotency_key=key
                )
            except (Unavailable, OutcomeUnknown) as error:
                patience = core.settings.reconnect_seconds
                if self._heard_at is None or core.now() - self._heard_at > patience:
                    raise
                # What was given out in an answer that was lost is given out again by its key.
                key = error.idempotency_key if isinstance(error, OutcomeUnknown) else key
                failures += 1
                yield Wait(core.pause(failures))
            else:
                self._heard_at = core.now()
                return found

    def leave(self) -> Plan[None]:
        """Put back what is held; if that fails, others get it when its time is over."""
        held = [*([] if self._current is None else [self._current]), *self._waiting]
        receipts = [one.received.receipt for one in held if not one.is_settled]
        self._current, self._waiting = None, deque()
        if receipts:
            try:
                yield from self._queue.nack(*receipts)
            except TidelogHTTPError:
                pass


def _to_json(message: ToPublish) -> Document:
    said: Document = {"value": message.value}
    if message.attributes:
        said["attributes"] = dict(message.attributes)
    if message.key is not None:
        said["key"] = message.key
    if message.delay is not None:
        said["delay_ms"] = milliseconds(message.delay)
    if message.deliver_at_ms is not None:
        said["deliver_at_ms"] = message.deliver_at_ms
    return said
