"""Work queues over HTTP: messages that one receiver has at a time, until it acknowledges them.

Rule 1: a message's value is JSON, kept as it came. What is given out is stored as given out first.
Rule 2: `NAME.dead` is what nobody managed to do of NAME: a queue that can be received from, purged
        and brought back, and not published to.
"""

from typing import Any, Final

import msgspec

from tidelog.faces.http.api import Call, Operation, json_answer, tagged
from tidelog.faces.http.edge.messages import Response
from tidelog.faces.http.paging import AFTER, LIMIT, page
from tidelog.faces.http.permissions import DESCRIBES_EACH_QUEUE, on_queue
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.records import while_there
from tidelog.faces.http.writes import IDEMPOTENCY_KEY, SYNC_TIMEOUT_MS, key_of, seconds_of
from tidelog.model import topic_name_problem
from tidelog.queues.events import Kind, request_hash
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import About, Settings
from tidelog.security.permissions import Operation as Right
from tidelog.services.queue_work import (
    NAMES,
    WORK_QUEUES,
    DeclareWork,
    DropWork,
    LookWork,
    Message,
    MoveWork,
    PublishWork,
    QueueAnswer,
    QueueWork,
    ReceiveWork,
    SettleWork,
)
from tidelog.services.queues import DEAD_SUFFIX

SECONDS: Final = 30.0
WAIT_MS_MAX: Final = 30_000
DAY_MS: Final = 24 * 60 * 60 * 1000
MESSAGES_AT_ONCE: Final = 1000
RECEIVED_AT_ONCE: Final = 100
ATTRIBUTES_MAX: Final = 32
TEXT_MAX: Final = 1024

PARAMS: Final = (IDEMPOTENCY_KEY, SYNC_TIMEOUT_MS)


class QueueWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a queue shall give out its messages."""

    visibility_ms: int = 30_000
    max_deliveries: int = 10
    ordered: bool = False
    messages_max: int = 1_000_000


class Lane(msgspec.Struct, kw_only=True):
    """How many messages there are."""

    ready: int
    delayed: int
    in_flight: int
    oldest_ms: int


class QueueShown(msgspec.Struct, kw_only=True):
    name: str
    visibility_ms: int
    max_deliveries: int
    ordered: bool
    messages_max: int
    depth: int
    in_flight: int
    delayed: int
    oldest_ms: int
    dead: int


class QueueNames(msgspec.Struct, kw_only=True):
    queues: list[str]
    next: str | None


class NewMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to be published."""

    value: msgspec.Raw
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None


class Messages(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    messages: list[NewMessage]


class Published(msgspec.Struct, kw_only=True):
    ids: list[int]


class ReceiveWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    max: int = 1
    wait_ms: int = 0
    visibility_ms: int | None = None


class ReceivedMessage(msgspec.Struct, kw_only=True):
    id: int
    receipt: str
    value: Any
    delivery_count: int
    attributes: dict[str, str]
    key: str | None
    published_at_ms: int


class Received(msgspec.Struct, kw_only=True):
    messages: list[ReceivedMessage]


class SettleWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    receipts: list[str]
    delay_ms: int = 0
    visibility_ms: int | None = None


class Outcome(msgspec.Struct, kw_only=True):
    receipt: str
    outcome: str


class SettledReceipts(msgspec.Struct, kw_only=True):
    results: list[Outcome]


class Moved(msgspec.Struct, kw_only=True):
    messages: int


# Queues.


async def list_queues(call: Call) -> QueueNames:
    queues = call.node.services.queues
    names: list[str] = []
    wanted = LookWork(what=NAMES, client=call["after"] or "", limit=call["limit"] + 1)
    for place in await queues.places():
        found = await queues.have_done(place, wanted, seconds=SECONDS)
        names += [name for name in found.document[WORK_QUEUES] if call.may(DESCRIBES_EACH_QUEUE, name)]
    listed, following = page(names, limit=call["limit"], after=call["after"])
    return QueueNames(queues=listed, next=following)


async def declare_queue(call: Call) -> Any:
    wanted: QueueWanted = call.body
    name, lane = _named(call)
    if lane == DEAD or (problem := topic_name_problem(name)) is not None:
        reason = problem if lane == MAIN else f"{DEAD_SUFFIX} is how its dead messages are called"
        raise Problem(400, f"{call.path['queue']!r} cannot be a queue's name: {reason}")
    _check("visibility_ms", wanted.visibility_ms, 1, 12 * 60 * 60 * 1000)
    _check("max_deliveries", wanted.max_deliveries, 0, 1_000_000)
    _check("messages_max", wanted.messages_max, 1, 10_000_000)
    settings = Settings(
        wanted.visibility_ms,
        wanted.max_deliveries,
        wanted.ordered,
        wanted.messages_max,
        call.broker.host.clock.wall_ms(),
    )
    done = await _do(call, DeclareWork(name=name, settings=settings, request=_request(call)))
    return json_answer(await _shown(call, name), 201 if done.number else 200)


async def get_queue(call: Call) -> QueueShown:
    return await _shown(call, _named(call)[0])


async def drop_queue(call: Call) -> dict[str, Any]:
    name, lane = _named(call)
    if lane == DEAD:
        raise Problem(400, f"delete {name!r}, or purge {call.path['queue']!r}")
    await _do(call, DropWork(name=name, request=_request(call)))
    return {"name": name, "deleted": True}


async def _shown(call: Call, name: str) -> QueueShown:
    found = (await _do(call, LookWork(name=name))).document
    main, dead, settings = found["main"], found["dead"], found["settings"]
    return QueueShown(
        name=name,
        visibility_ms=settings["visibility_ms"],
        max_deliveries=settings["max_deliveries"],
        ordered=settings["is_ordered"],
        messages_max=settings["messages_max"],
        depth=main["ready"] + main["delayed"] + main["in_flight"],
        in_flight=main["in_flight"],
        delayed=main["delayed"],
        oldest_ms=main["oldest_ms"],
        dead=dead["ready"] + dead["delayed"] + dead["in_flight"],
    )


# Messages.


async def publish(call: Call) -> Published:
    wanted: Messages = call.body
    name, lane = _named(call)
    if lane == DEAD:
        raise Problem(400, f"publish to {name!r}; {call.path['queue']!r} holds what failed there")
    _check("the number of messages", len(wanted.messages), 1, MESSAGES_AT_ONCE)
    now_ms = call.broker.host.clock.wall_ms()
    messages = tuple((bytes(one.value), _about(one, now_ms)) for one in wanted.messages)
    work = PublishWork(name=name, messages=messages, request=_request(call))
    return Published(ids=list((await _do(call, work)).offsets))


def _about(message: NewMessage, now_ms: int) -> About:
    if len(message.attributes) > ATTRIBUTES_MAX or any(
        len(name) + len(value) > TEXT_MAX for name, value in message.attributes.items()
    ):
        raise Problem(400, f"a message has up to {ATTRIBUTES_MAX} attributes of {TEXT_MAX} characters each")
    if message.key is not None and len(message.key) > TEXT_MAX:
        raise Problem(400, f"a key has up to {TEXT_MAX} characters")
    if message.delay_ms is not None and message.deliver_at_ms is not None:
        raise Problem(400, "give delay_ms or deliver_at_ms, not both")
    _check("delay_ms", message.delay_ms or 0, 0, 366 * DAY_MS)
    _check("deliver_at_ms", message.deliver_at_ms or 0, 0, now_ms + 366 * DAY_MS)
    return About(message.attributes, message.key, message.deliver_at_ms or 0, message.delay_ms or 0)


async def receive(call: Call) -> Received | Response:
    wanted: ReceiveWanted = call.body
    name, lane = _named(call)
    _check("max", wanted.max, 1, RECEIVED_AT_ONCE)
    _check("wait_ms", wanted.wait_ms, 0, WAIT_MS_MAX)
    if wanted.visibility_ms is not None:
        _check("visibility_ms", wanted.visibility_ms, 1, DAY_MS)
    work = ReceiveWork(
        name=name,
        lane=lane,
        count_max=wanted.max,
        wait_seconds=wanted.wait_ms / 1000,
        visibility_ms=wanted.visibility_ms,
        request=_request(call),
        waiter=call.broker.host.new_id().hex,
    )
    if not wanted.wait_ms:
        return await _receive(call, work)
    answer = await while_there(call.request, _receive(call, work))
    if isinstance(answer, Response):
        queues = call.node.services.queues
        await queues.forget(await queues.place_of(name), work.waiter)
    return answer


async def _receive(call: Call, work: ReceiveWork) -> Received:
    found = await _do(call, work, more_seconds=work.wait_seconds)
    return Received(messages=[_received(one) for one in found.messages])


def _received(message: Message) -> ReceivedMessage:
    return ReceivedMessage(
        id=message.offset,
        receipt=f"{message.offset}-{message.count}",
        value=msgspec.Raw(message.value or b"null"),
        delivery_count=message.count,
        attributes=message.attributes,
        key=message.key,
        published_at_ms=message.made_ms,
    )


async def acknowledge(call: Call) -> SettledReceipts:
    return await _settle(call, "ack", 0)


async def put_back(call: Call) -> SettledReceipts:
    _check("delay_ms", call.body.delay_ms, 0, 366 * DAY_MS)
    return await _settle(call, "nack", call.body.delay_ms)


async def extend(call: Call) -> SettledReceipts:
    if call.body.visibility_ms is None:
        raise Problem(400, "visibility_ms is missing: for how long the messages are wanted")
    _check("visibility_ms", call.body.visibility_ms, 1, DAY_MS)
    return await _settle(call, "extend", call.body.visibility_ms)


async def _settle(call: Call, kind: Kind, ms: int) -> SettledReceipts:
    receipts = list(dict.fromkeys(call.body.receipts))
    _check("the number of receipts", len(receipts), 1, MESSAGES_AT_ONCE)
    name, _ = _named(call)
    work = SettleWork(name=name, receipts=tuple(receipts), kind=kind, ms=ms, request=_request(call))
    outcomes = (await _do(call, work)).outcomes
    results = [
        Outcome(receipt=receipt, outcome=outcome) for receipt, outcome in zip(receipts, outcomes, strict=True)
    ]
    failed = [one for one in results if one.outcome != "done"]
    if failed:
        raise Problem(
            409 if len(failed) < len(results) or failed[0].outcome != "unknown" else 404,
            f"receipt {failed[0].receipt!r} is {failed[0].outcome}: {_WHY[failed[0].outcome]}",
            results=[msgspec.structs.asdict(one) for one in results],
        )
    return SettledReceipts(results=results)


_WHY: Final = {
    "unknown": "no message has it, or the message is done",
    "expired": "its time was over, and the message is, or will be, given to another",
    "busy": "it is being settled by another request",
}


async def purge(call: Call) -> Moved:
    return Moved(messages=await _move(call, purges=True))


async def redrive(call: Call) -> Moved:
    name, _ = _named(call)
    return Moved(messages=await _move(call, purges=False, lane=DEAD, name=name))


async def _move(call: Call, *, purges: bool, lane: int | None = None, name: str | None = None) -> int:
    """All that is there; how many messages."""
    named, in_lane = _named(call)
    work = MoveWork(
        name=name or named, lane=in_lane if lane is None else lane, purges=purges, request=_request(call)
    )
    return (await _do(call, work)).number or 0


# What all of them share.


def _named(call: Call) -> tuple[str, int]:
    """The queue that is meant, and whether what is dead of it."""
    name: str = call.path["queue"]
    if name.endswith(DEAD_SUFFIX) and len(name) > len(DEAD_SUFFIX):
        return name.removesuffix(DEAD_SUFFIX), DEAD
    return name, MAIN


def _request(call: Call) -> bytes:
    return request_of(call, call.path["queue"])


def request_of(call: Call, *what: object) -> bytes:
    """What this request is known by; equal keys of other requests, or for others, are apart."""
    key = key_of(call)
    if key is None:
        return b""
    return request_hash("\0".join([call.operation.path, *map(str, what), key]))


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise Problem(400, f"{name} is {value}; it must be from {least} to {most}")


async def _do(call: Call, work: QueueWork, *, more_seconds: float = 0.0) -> QueueAnswer:
    queues = call.node.services.queues
    place = await queues.place_of(work.name)  # type: ignore[attr-defined]
    return await queues.have_done(place, work, seconds=seconds_of(call) + more_seconds)


_MISSING: Final = {404: "There is no such queue."}
_USED: Final = {422: "The Idempotency-Key was used for another request."}
_RECEIPTS: Final = {
    404: "There is no such queue, or no message with this receipt.",
    409: "Some receipts are expired, or unknown; `results` says which. The others are done.",
}
_QUEUE: Final = "/v1/queues/{queue}"

OPERATIONS: Final = tagged(
    "queues",
    Operation(
        "POST",
        _QUEUE + "/receive",
        receive,
        "Receive messages, and hide them from other receivers for a while; optionally wait for some.",
        body=ReceiveWanted,
        params=PARAMS,
        errors=_MISSING | _USED,
        needs=on_queue(Right.READ),
    ),
    Operation(
        "POST",
        _QUEUE + "/messages",
        publish,
        "Publish messages.",
        body=Messages,
        params=PARAMS,
        status=201,
        errors=_MISSING | _USED | {429: "The queue is full."},
        needs=on_queue(Right.WRITE),
    ),
    Operation(
        "POST",
        _QUEUE + "/ack",
        acknowledge,
        "Acknowledge messages: they are done and deleted.",
        body=SettleWanted,
        params=PARAMS,
        errors=_RECEIPTS | _USED,
        needs=on_queue(Right.READ),
    ),
    Operation(
        "POST",
        _QUEUE + "/nack",
        put_back,
        "Put messages back for another delivery; after too many deliveries they become dead letters.",
        body=SettleWanted,
        params=PARAMS,
        errors=_RECEIPTS | _USED,
        needs=on_queue(Right.READ),
    ),
    Operation(
        "POST",
        _QUEUE + "/extend",
        extend,
        "Extend the visibility of messages.",
        body=SettleWanted,
        params=PARAMS,
        errors=_RECEIPTS | _USED,
        needs=on_queue(Right.READ),
    ),
    Operation(
        "POST",
        _QUEUE + "/purge",
        purge,
        "Delete all messages that no receiver has.",
        body=dict,
        params=PARAMS,
        errors=_MISSING | _USED,
        needs=on_queue(Right.DELETE),
    ),
    Operation(
        "POST",
        _QUEUE + "/redrive",
        redrive,
        "Move dead letters that no receiver has back into the queue.",
        body=dict,
        params=PARAMS,
        errors=_MISSING | _USED,
        needs=on_queue(Right.READ, Right.WRITE),
    ),
    Operation(
        "GET",
        "/v1/queues",
        list_queues,
        "List the work queues.",
        params=(LIMIT, AFTER),
        needs=(DESCRIBES_EACH_QUEUE,),
    ),
    Operation(
        "PUT",
        _QUEUE,
        declare_queue,
        "Create a work queue, or change its settings.",
        body=QueueWanted,
        answer=QueueShown,
        status=201,
        params=PARAMS,
        errors={200: "It was there."} | _USED,
        needs=on_queue(Right.CREATE, Right.ALTER),
    ),
    Operation(
        "GET",
        _QUEUE,
        get_queue,
        "Describe a queue: depth, age, messages in flight, settings.",
        errors=_MISSING,
        needs=on_queue(Right.DESCRIBE),
    ),
    Operation(
        "DELETE",
        _QUEUE,
        drop_queue,
        "Delete a queue.",
        params=PARAMS,
        errors=_MISSING | _USED,
        needs=on_queue(Right.DELETE),
    ),
)
