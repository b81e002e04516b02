"""Queues with read pointers, under the names that their users know: `/create_queue`, `/append`,
`/read`, `/delete_queue` and what lists all.

Rule 1: these are POSTs with JSON whatever they do, because their clients are written so.
Rule 2: a read that is repeated with its Idempotency-Key gets the same message. Without a key it is
        at most once: whoever does not hear the answer has missed that message.
Rule 3: what replicas used to tell each other is answered with what replaced it.
"""

from typing import Any, Final

import msgspec

from tidelog.faces.http.api import Call, Operation, tagged
from tidelog.faces.http.permissions import DESCRIBE_CLUSTER, FREE, Need, on_pointers
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.queues import PARAMS, SECONDS, request_of
from tidelog.faces.http.writes import IDEMPOTENCY_REPEAT, seconds_of
from tidelog.security.permissions import Operation as Right
from tidelog.services.queue_work import (
    POINTER_QUEUES,
    POINTERS,
    AppendWork,
    CreateWork,
    DeleteWork,
    LookWork,
    ReadNextWork,
)

CREATES: Final = on_pointers(Right.CREATE, "`pointers:`", or_cluster=True)
APPENDS: Final = on_pointers(Right.WRITE)
READS: Final = on_pointers(Right.READ)
DELETES: Final = on_pointers(Right.DELETE)
SHOWS_QUEUES: Final = on_pointers(Right.DESCRIBE, "of each that is shown")
SHOWS_MESSAGES: Final = on_pointers(Right.READ, "of each that is shown")
CLIENT_MAX: Final = 256
LISTED_MAX: Final = 1000
BYTES_MAX: Final = 8 * 1024 * 1024


class Nothing(msgspec.Struct, kw_only=True):
    """Whatever is in the body does not matter."""


class Listing(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which page is wanted; without `after` the first."""

    limit: int = LISTED_MAX
    after: list[int | str] | None = None


class AppendWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    queue_id: int
    value: msgspec.Raw


class DeleteWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    queue_id: int


class ReadWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    queue_id: int
    client_id: str


class QueueMade(msgspec.Struct, kw_only=True):
    queue_id: int


class Appended(msgspec.Struct, kw_only=True):
    message_id: int


class ReadMessage(msgspec.Struct, kw_only=True):
    """Both are null if the client has read everything."""

    message_id: int | None
    value: Any


class QueueGone(msgspec.Struct, kw_only=True):
    deleted: bool


class QueueIds(msgspec.Struct, kw_only=True):
    queue_ids: list[int]
    next: list[int | str] | None


class AllMessages(msgspec.Struct, kw_only=True):
    messages: list[dict[str, Any]]
    next: list[int | str] | None


class AllPointers(msgspec.Struct, kw_only=True):
    pointers: list[dict[str, Any]]
    next: list[int | str] | None


async def create_queue(call: Call) -> QueueMade:
    CREATES.of(call.access, "")
    queues, request = call.node.services.queues, request_of(call)
    place = await queues.place_for_new(request)
    done = await queues.have_done(place, CreateWork(request=request), seconds=seconds_of(call))
    assert done.number is not None, "a queue that was made has an id"
    return QueueMade(queue_id=done.number)


async def append(call: Call) -> Appended:
    wanted: AppendWanted = call.body
    APPENDS.of(call.access, str(wanted.queue_id))
    queues = call.node.services.queues
    work = AppendWork(
        queue_id=wanted.queue_id, value=bytes(wanted.value), request=request_of(call, wanted.queue_id)
    )
    place = await queues.place_of_id(_id(wanted.queue_id))
    done = await queues.have_done(place, work, seconds=seconds_of(call))
    assert done.number is not None, "a message that was appended has an id"
    return Appended(message_id=done.number)


async def read(call: Call) -> ReadMessage:
    wanted: ReadWanted = call.body
    READS.of(call.access, str(wanted.queue_id))
    if not 0 < len(wanted.client_id) <= CLIENT_MAX:
        raise Problem(400, f"client_id has 1 to {CLIENT_MAX} characters")
    queues = call.node.services.queues
    work = ReadNextWork(
        queue_id=wanted.queue_id,
        client=wanted.client_id,
        request=request_of(call, wanted.queue_id, wanted.client_id),
        is_repeat=call[IDEMPOTENCY_REPEAT.name],
    )
    place = await queues.place_of_id(_id(wanted.queue_id))
    found = (await queues.have_done(place, work, seconds=seconds_of(call))).messages
    if not found:
        return ReadMessage(message_id=None, value=None)
    return ReadMessage(message_id=found[0].offset, value=msgspec.Raw(found[0].value))


async def delete_queue(call: Call) -> QueueGone:
    wanted: DeleteWanted = call.body
    DELETES.of(call.access, str(wanted.queue_id))
    queues = call.node.services.queues
    work = DeleteWork(queue_id=wanted.queue_id, request=request_of(call, wanted.queue_id))
    place = await queues.place_of_id(_id(wanted.queue_id))
    await queues.have_done(place, work, seconds=seconds_of(call))
    return QueueGone(deleted=True)


# Listing.


def _after(call: Call, *kinds: type) -> tuple[Any, ...] | None:
    """Where the answer before ended, of these kinds; None at the beginning."""
    given = call.body.after
    if not given:
        return None
    if [type(one) for one in given] != [*kinds]:
        raise Problem(400, "after is what an answer had as next")
    return tuple(given)


async def get_all_queues(call: Call) -> QueueIds:
    found = sorted(await _ids(call, SHOWS_QUEUES))
    (after,) = _after(call, int) or (-1,)
    ids, more = _page([one for one in found if one > after], call)
    return QueueIds(queue_ids=ids, next=[ids[-1]] if more else None)


async def get_all_pointers(call: Call) -> AllPointers:
    after = _after(call, int, str) or (-1, "")
    wanted = LookWork(what=POINTERS, after=after[0], client=after[1], limit=_limit(call) + 1)
    looks = await _look(call, wanted)
    rows = [tuple(one) for look in looks for one in look[POINTERS]]
    found = sorted(one for one in rows if SHOWS_QUEUES.is_met(call.access, str(one[0])))
    rows, more = _page([one for one in found if one[:2] > after], call)
    pointers = [{"queue_id": q, "client_id": c, "message_id": m} for q, c, m in rows]
    return AllPointers(pointers=pointers, next=list(rows[-1][:2]) if more else None)


async def get_all_messages(call: Call) -> AllMessages:
    """Queue by queue, up to a bound in number and in bytes."""
    queues = call.node.services.queues
    first, beyond = _after(call, int, int) or (-1, -1)
    ids = sorted(one for one in await _ids(call, SHOWS_MESSAGES) if one >= first)
    messages: list[dict[str, Any]] = []
    size = 0
    for queue_id in ids:
        after = beyond if queue_id == first else -1
        place = await queues.place_of_id(queue_id)
        while True:
            left = _limit(call) - len(messages)
            if left <= 0 or size > BYTES_MAX:
                last = messages[-1]
                return AllMessages(messages=messages, next=[last["queue_id"], last["message_id"]])
            work = LookWork(queue_id=queue_id, after=after, limit=min(left, 100))
            found = (await queues.have_done(place, work, seconds=SECONDS)).messages
            if not found:
                break
            for one in found:
                size += len(one.value)
                messages.append(
                    {"message_id": one.offset, "queue_id": queue_id, "value": msgspec.Raw(one.value)}
                )
            after = found[-1].offset
    return AllMessages(messages=messages, next=None)


async def broker_info(call: Call) -> dict[str, Any]:
    broker = call.broker
    queues = call.node.services.queues
    await queues.ready()
    topic = broker.image.topics[queues.topic]
    leads = [n for n, one in enumerate(topic.partitions) if one.leader == broker.node_id]
    return {
        "broker_id": broker.node_id,
        "is_leader": bool(leads),
        "leads_partitions": leads,
        "leader_id": broker.member.quorum.raft.leader,
        "url": None if broker.http is None else f"http://{broker.http}",
        "peer_urls": [f"http://{one.http}" for one in broker.image.brokers.values() if one.http is not None],
        "ready": call.node.is_serving,
    }


async def _ids(call: Call, need: Need) -> list[int]:
    looks = await _look(call, LookWork(what=POINTER_QUEUES))
    ids = (one for look in looks for one in look[POINTER_QUEUES])
    return [one for one in ids if need.is_met(call.access, str(one))]


async def _look(call: Call, wanted: LookWork) -> list[dict[str, Any]]:
    """What each partition of `__queues` says."""
    queues = call.node.services.queues
    return [
        (await queues.have_done(place, wanted, seconds=SECONDS)).document for place in await queues.places()
    ]


def _limit(call: Call) -> int:
    limit: int = call.body.limit
    if not 0 < limit <= LISTED_MAX:
        raise Problem(400, f"limit is {limit}; it must be from 1 to {LISTED_MAX}")
    return limit


def _page(found: list[Any], call: Call) -> tuple[list[Any], bool]:
    limit = _limit(call)
    return found[:limit], len(found) > limit


def _id(queue_id: int) -> int:
    if not 0 <= queue_id < 2**62:
        raise Problem(404, f"there is no queue {queue_id}; POST /create_queue makes one")
    return queue_id


# What is no more.

_REPLACED: Final = {
    "/apply_create_queue": "replicas copy the log of `__queues`; POST /create_queue makes a queue",
    "/apply_append": "replicas copy the log of `__queues`; POST /append adds a message",
    "/apply_set_pointer": "replicas copy the log of `__queues`; POST /read moves a pointer",
    "/heartbeat": "nodes heartbeat to their quorum by themselves; GET /v1/cluster shows who leads",
    "/set_follower_urls": "followers are chosen by the cluster; see POST /v1/reassignments",
    "/set_peer_urls": "peers find each other by --quorum; see GET /v1/cluster",
}


async def replaced(call: Call) -> None:
    raise Problem(410, f"{call.operation.path} is not needed: {_REPLACED[call.operation.path]}")


def _listing(path: str, handler: Any, answer: Any, summary: str, needs: tuple[Need, ...]) -> Operation:
    return Operation("POST", path, handler, summary, body=Listing, answer=answer, needs=needs)


_MISSING: Final = {404: "There is no such queue."}

OPERATIONS: Final = tagged(
    "queues with pointers",
    Operation(
        "POST",
        "/create_queue",
        create_queue,
        "Create a pointer queue.",
        body=Nothing,
        params=PARAMS,
        needs=(CREATES,),
    ),
    Operation(
        "POST",
        "/append",
        append,
        "Append a message to a pointer queue.",
        body=AppendWanted,
        params=PARAMS,
        errors=_MISSING,
        needs=(APPENDS,),
    ),
    Operation(
        "POST",
        "/read",
        read,
        "Read the next message for this client, and advance its pointer.",
        body=ReadWanted,
        params=(*PARAMS, IDEMPOTENCY_REPEAT),
        errors=_MISSING,
        needs=(READS,),
    ),
    Operation(
        "POST",
        "/delete_queue",
        delete_queue,
        "Delete a pointer queue, its messages and its pointers.",
        body=DeleteWanted,
        params=PARAMS,
        errors=_MISSING,
        needs=(DELETES,),
    ),
    Operation(
        "POST",
        "/broker_info",
        broker_info,
        "Report the id of this node and what it leads.",
        body=Nothing,
        needs=DESCRIBE_CLUSTER,
    ),
    _listing("/get_all_queues", get_all_queues, QueueIds, "List the pointer queues.", (SHOWS_QUEUES,)),
    _listing(
        "/get_all_messages",
        get_all_messages,
        AllMessages,
        "List the messages of all pointer queues.",
        (SHOWS_MESSAGES,),
    ),
    _listing(
        "/get_all_pointers",
        get_all_pointers,
        AllPointers,
        "List the pointers of all clients.",
        (SHOWS_QUEUES,),
    ),
    *(
        Operation(
            "POST",
            path,
            replaced,
            "Removed: answers 410.",
            is_hidden=True,
            needs_cluster=False,
            errors={410: "Removed: answers 410."},
            needs=FREE,
        )
        for path in _REPLACED
    ),
)
