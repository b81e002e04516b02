"""Clients of the HTTP face in the simulator: the project's own, unchanged, with their own retries.

Rule 1: a client is told by its own library what became of a request, and takes that at its word:
        an answer is a certain yes, `OutcomeUnknown` means that nobody knows, and every other error
        of a write is a certain no.
Rule 2: a request that is right in itself is not refused as if it were not (400, 422), and no node
        answers that it has a bug (500).

| invariant                     | meaning                                                          |
|-------------------------------|------------------------------------------------------------------|
| a certain no never happened   | of a write that the client said was not done nothing is ever     |
|                               | seen                                                             |
| a right request is taken      | Rule 2                                                           |
"""

import json
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from tidelog.client.http.awaiting import AsyncClient, AsyncMessage
from tidelog.client.http.core import to_json
from tidelog.client.http.errors import Conflict, NotFound, OutcomeUnknown, QueueFull, TidelogHTTPError
from tidelog.client.http.values import Entry, ToPublish
from tidelog.errors import OutOfOrderSequence, TidelogError, UnknownQueue
from tidelog.errors import QueueFull as BrokerQueueFull
from tidelog.queues.message import DEAD
from tidelog.services.queue_work import (
    AppendWork,
    CreateWork,
    DeclareWork,
    DropWork,
    LookWork,
    Message,
    MoveWork,
    PublishWork,
    QueueAnswer,
    QueueWork,
    ReadNextWork,
    ReceiveWork,
    SettleWork,
)
from tidelog.services.queues import Queues
from tidelog.simulation.http_wire import SimulatedTransport
from tidelog.simulation.nodes import http_of
from tidelog.simulation.queue_operators import SMALL
from tidelog.simulation.queues import QueueLoad, QueuePace
from tidelog.simulation.registers import NOTHING, Shown
from tidelog.simulation.replica_watch import ReplicaWatch
from tidelog.simulation.world import Client, World

NEVER: Final = "a certain no never happened"
TAKEN: Final = "a right request is taken"

_KEY_USED: Final = 422
_CLOCKS: Final = "ahead of the broker's clock"
_WRONG: Final = (400, 405, 413, 415, 416, _KEY_USED)


class KeyUsed(TidelogError):
    """An Idempotency-Key was used for another request."""

    code = OutOfOrderSequence.code


def http_client(
    world: World,
    host: Client,
    generator: random.Random,
    *,
    nodes: Sequence[int] | None = None,
    timeout: float,
    retries: int = 3,
) -> AsyncClient:
    """A client that knows all nodes, in an order of its own; or just those of `nodes`."""
    given = list(world.machines) if nodes is None else list(nodes)
    generator.shuffle(given)
    keys = random.Random(generator.random())
    return AsyncClient(
        [f"http://{http_of(node)}" for node in given],
        timeout=timeout,
        retries=retries,
        discover=nodes is None,
        transport=SimulatedTransport(host.network),
        clock=host.process.clock.monotonic,
        random=generator.random,
        new_key=lambda: f"{keys.getrandbits(128):032x}",
    )


def check_refusal(world: World, who: str, error: TidelogHTTPError, expected: Iterable[int] = ()) -> None:
    """See that a client was refused for a reason; `expected` are further statuses that are fine."""
    world.trace.note(who, f"{type(error).__name__}: {error}")
    if _CLOCKS in str(error) and world.faults["jump_clock"]:
        return  # nodes whose clocks are an hour apart refuse each other's times, and say so
    is_bug = error.status >= 500 and error.status not in (502, 503, 504)
    if is_bug or (error.status in _WRONG and error.status not in expected):
        world.fail(TAKEN, f"{who}: {error.status} {error}")


def shown(entry: Entry | None) -> Shown:
    """What a client was told of a key. Values of Kafka's producers are no JSON, but text."""
    if entry is None:
        return NOTHING
    is_text = isinstance(entry.value, str) and entry.value.startswith(f"{entry.key}=")
    return Shown(entry.version, entry.value.encode() if is_text else to_json(entry.value))


class HttpQueues(QueueLoad):
    """Everybody who uses queues, each by a client of its own."""

    def __init__(self, world: World, pace: QueuePace, replicas: ReplicaWatch, *, retries: int) -> None:
        super().__init__(world, pace, replicas)
        self._retries = retries
        self._clients: dict[str, AsyncClient] = {}
        self.never: dict[bytes, str] = {}
        """What clients were told will never be there."""
        self._unsure: set[bytes] = set()
        """Of what an earlier request may have come of: a later refusal says nothing of that one."""
        self.attempted: set[bytes] = set()
        """What anybody has ever asked to be published or appended."""

    def _http(self, who: str) -> AsyncClient:
        if who not in self._clients:
            self._clients[who] = http_client(
                self.world,
                self._host(len(self._clients)),
                self.world.fork(f"{who} http"),
                timeout=self.pace.patience_seconds,
                retries=self._retries,
            )
        return self._clients[who]

    async def try_once(
        self, who: str, generator: random.Random, place: Callable[[Queues], Awaitable[Any]], work: QueueWork
    ) -> QueueAnswer:
        """Have the client do it, who tries as often as it likes."""
        sent = _values(work)
        self.attempted.update(sent)
        for value in sent:
            self.never.pop(value, None)
        try:
            answer = await _ask(self._http(who), work)
        except OutcomeUnknown as error:
            self._unsure.update(sent)
            check_refusal(self.world, who, error)
            raise
        except TidelogHTTPError as error:
            if error.status != _KEY_USED:
                for value in set(sent) - self._unsure:
                    self.never[value] = f"{who}: {error}"
            check_refusal(self.world, who, error, expected=(_KEY_USED,))
            raise _as_broker(error) from error
        for message in answer.messages:
            if message.value in self.never:
                told = self.never[message.value]
                self.world.fail(NEVER, f"{message} is there, and its client was told {told}")
        return answer


def _values(work: QueueWork) -> list[bytes]:
    """What will be there if it is done; what many say alike is left out."""
    if isinstance(work, AppendWork):
        return [work.value]
    if not isinstance(work, PublishWork) or work.name == SMALL:
        return []
    return [value for value, _ in work.messages]


def _as_broker(error: TidelogHTTPError) -> TidelogError:
    """The error as nodes name it: operators go by that."""
    if isinstance(error, NotFound):
        return UnknownQueue(str(error))
    if isinstance(error, QueueFull):
        return BrokerQueueFull(str(error))
    return KeyUsed(str(error)) if error.status == _KEY_USED else error


async def _ask(http: AsyncClient, work: QueueWork) -> QueueAnswer:
    """What the client answers; its values as the nodes' own."""
    key = work.request.hex() or None
    pointers = http.pointer_queues
    match work:
        case CreateWork():
            return QueueAnswer(number=await pointers.create(idempotency_key=key))
        case AppendWork():
            value = json.loads(work.value)
            made = await pointers.append(work.queue_id, value, idempotency_key=key)
            return QueueAnswer(number=made)
        case ReadNextWork():
            found = await pointers.read(work.queue_id, work.client, idempotency_key=key)
            if found is None:
                return QueueAnswer()
            return QueueAnswer(messages=(Message(found.id, to_json(found.value)),))
    name = work.name  # type: ignore[attr-defined]
    queue = http.queue(f"{name}.dead" if getattr(work, "lane", None) == DEAD else name)
    match work:
        case DeclareWork():
            settings = work.settings
            await queue.declare(
                visibility=settings.visibility_ms / 1000,
                max_deliveries=settings.max_deliveries,
                ordered=settings.is_ordered,
                messages_max=settings.messages_max,
                idempotency_key=key,
            )
            return QueueAnswer()
        case DropWork():
            if not await queue.delete(idempotency_key=key):
                raise NotFound(f"there is no queue {name}")
            return QueueAnswer()
        case PublishWork():
            messages = [
                ToPublish(
                    value=json.loads(value),
                    key=about.key,
                    delay=about.delay_ms / 1000 if about.delay_ms else None,
                )
                for value, about in work.messages
            ]
            return QueueAnswer(offsets=tuple(await queue.publish_many(messages, idempotency_key=key)))
        case ReceiveWork():
            got = await queue.receive(work.count_max, wait=work.wait_seconds, idempotency_key=key)
            return QueueAnswer(messages=tuple(map(_message, got)))
        case SettleWork():
            return QueueAnswer(outcomes=await _settle(http, work, key))
        case MoveWork() if work.purges:
            return QueueAnswer(number=await queue.purge(idempotency_key=key))
        case MoveWork():
            return QueueAnswer(number=await http.queue(name).redrive(idempotency_key=key))
        case LookWork():
            shown = await queue.describe()
            ready = shown["depth"] - shown["in_flight"] - shown["delayed"]
            main = {"ready": ready, "delayed": shown["delayed"], "in_flight": shown["in_flight"]}
            dead = {"ready": shown["dead"], "delayed": 0, "in_flight": 0}
            return QueueAnswer(document={"main": main, "dead": dead})
        case _:
            raise AssertionError(f"nobody asks for {work} over HTTP")


async def _settle(http: AsyncClient, work: SettleWork, key: str | None) -> tuple[str, ...]:
    """What became of each receipt."""
    queue = http.queue(work.name)
    try:
        if work.kind == "ack":
            await queue.ack(*work.receipts, idempotency_key=key)
        elif work.kind == "nack":
            await queue.nack(*work.receipts, delay=work.ms / 1000, idempotency_key=key)
        else:
            await queue.extend(*work.receipts, visibility=work.ms / 1000, idempotency_key=key)
    except (Conflict, NotFound) as error:
        if "results" not in error.problem:
            raise
        return tuple(one["outcome"] for one in error.problem["results"])
    return ("done",) * len(work.receipts)


def _message(found: AsyncMessage) -> Message:
    return Message(
        found.id,
        to_json(found.value),
        found.delivery_count,
        dict(found.attributes),
        found.key,
        found.published_at_ms,
    )
