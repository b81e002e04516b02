"""`/api/v1/storage/...`: what a storage service of brokers that push was asked for, and still is.

Replicas here pull (`replication/`): nothing is pushed, and nobody needs these to catch up.
They stay for who reads a log as its leader has it, and for who watches how far followers are.

Rule: what fails says so twice: as a problem, and in the words that were promised (`success`,
`errorMessage`).
"""

from base64 import b64encode
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from tidelog.errors import BrokerError
from tidelog.faces.http.api import Call, Operation, Param, tagged
from tidelog.faces.http.paging import AFTER_PLACE, LIMIT, page_places
from tidelog.faces.http.permissions import ACT_FOR_CLUSTER, DESCRIBE_CLUSTER, FREE
from tidelog.faces.http.problems import Problem, problem_of
from tidelog.faces.http.standing import followers_of
from tidelog.model import TopicPartition
from tidelog.operators.values import Natural, NodeNumber
from tidelog.records import Record

TAG: Final = "replication"
MESSAGES_MAX: Final = 10_000
_FETCH: Final = "/api/v1/storage/fetch-replication"


class FetchWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    topic: str
    partition: Natural
    follower_id: NodeNumber
    """The node that asks; it must hold a replica."""
    start_offset: Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=MESSAGES_MAX)] = 1000


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    offset: int
    key: str | None
    value: str | None
    """In base64."""
    timestamp: int
    headers: dict[str, str | None] = {}
    """In base64; of several of one name, the last."""
    key_encoding: str = "text"
    """`base64` where the key is no text."""


class Fetched(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "start_offset": "startOffset",
        "end_offset": "endOffset",
        "leader_end": "leaderLEO",
        "error_message": "errorMessage",
    },
):
    topic: str
    partition: int
    messages: list[Message]
    start_offset: int
    end_offset: int
    """Where to go on."""
    leader_end: int
    success: bool = True
    error_message: str | None = None


class FollowerLag(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    topic: str
    partition: int
    follower_id: int
    follower_log_end_offset: int | None
    """Null if it has not asked yet since this node leads."""
    offset_lag: int | None
    time_since_caught_up: int
    """In milliseconds."""
    is_out_of_sync: bool


class LagReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    broker_id: int
    partitions: list[FollowerLag]
    next: str | None


async def fetch_replication(call: Call) -> Fetched:
    wanted = call.body
    assert isinstance(wanted, FetchWanted)
    services = call.node.services
    place = TopicPartition(wanted.topic, wanted.partition)
    try:
        found = await services.replica_reads.read(place, wanted.follower_id, wanted.start_offset)
        show = partial(_messages, found.unpack, wanted.max_messages)
        messages, end = await services.records.aside(len(found.data), show)
    except BrokerError as error:
        raise _failed(wanted, problem_of(error)) from error
    return Fetched(
        topic=wanted.topic,
        partition=wanted.partition,
        messages=messages,
        start_offset=wanted.start_offset,
        end_offset=end,
        leader_end=found.leader_end,
    )


def _messages(unpack: Any, count: int) -> tuple[list[Message], int]:
    records, end = unpack(count)
    return [_message(record) for record in records], end


def _message(record: Record) -> Message:
    key, encoding = None, "text"
    if record.key is not None:
        try:
            key = record.key.decode()
        except UnicodeDecodeError:
            key, encoding = _base64(record.key), "base64"
    return Message(
        offset=record.offset,
        key=key,
        key_encoding=encoding,
        value=_base64(record.value),
        timestamp=record.timestamp_ms,
        headers={name: _base64(value) for name, value in record.headers},
    )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _failed(wanted: FetchWanted, why: Problem) -> Problem:
    return Problem(
        why.status,
        why.detail,
        headers=why.headers,
        topic=wanted.topic,
        partition=wanted.partition,
        messages=[],
        startOffset=wanted.start_offset,
        endOffset=wanted.start_offset,
        leaderLEO=None,
        success=False,
        errorMessage=why.detail,
        **why.facts,
    )


async def lag(call: Call) -> LagReport:
    broker = call.broker
    topic, number = call["topic"], call["partition"]
    now = broker.host.clock.monotonic()
    led = {
        partition.name: partition
        for partition in broker.partitions()
        if partition.leads()
        and topic in (None, partition.name.topic)
        and number in (None, partition.name.partition)
    }
    names, after = page_places(led, call)
    found = []
    for name in names:
        leader = led[name].leader
        if leader is None:
            continue
        found += [
            FollowerLag(
                topic=name.topic,
                partition=name.partition,
                follower_id=one.node,
                follower_log_end_offset=one.offset,
                offset_lag=one.lag,
                time_since_caught_up=one.lag_ms,
                is_out_of_sync=one.node not in leader.in_sync,
            )
            for one in followers_of(broker, led[name], leader, now)
            if one.node is not None
        ]
    return LagReport(broker_id=broker.node_id, partitions=found, next=after)


async def gone(call: Call) -> None:
    raise Problem(
        410,
        "nothing is pushed to replicas here: they pull from their leaders by themselves. To write, "
        "POST /v1/topics/{topic}/records; to read what a leader has, "
        f"POST {_FETCH}",
        replaced_by=["/v1/topics/{topic}/records", _FETCH],
    )


OPERATIONS: Final = tagged(
    TAG,
    Operation(
        "POST",
        _FETCH,
        fetch_replication,
        "Read a leader's log, above the high watermark too, for the owner of a replica.",
        body=FetchWanted,
        errors={
            403: "`followerId` holds no replica.",
            404: "There is no such partition.",
            416: "The log does not hold `startOffset`.",
        },
        needs=ACT_FOR_CLUSTER,
    ),
    Operation(
        "GET",
        "/api/v1/storage/lag",
        lag,
        "Report the lag of the followers of this node's leaders, by partition.",
        params=(
            Param(name="topic", doc="Only of this topic."),
            Param(name="partition", kind=int, least=0, doc="Only of this partition."),
            LIMIT,
            AFTER_PLACE,
        ),
        needs=DESCRIBE_CLUSTER,
    ),
    *(
        Operation(
            "POST", path, gone, "Removed: replicas pull.", is_hidden=True, needs_cluster=False, needs=FREE
        )
        for path in ("/api/v1/storage/replicate", "/replicate")
    ),
)
