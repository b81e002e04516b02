"""Clients: of the HTTP face for whoever writes Python, and a small one of Kafka's for ourselves.

    from tidelog.client import Client

    with Client("http://127.0.0.1:8080") as client:
        client.kv("settings").put("theme", {"dark": True})

`Client` and `AsyncClient` are in `http/`, and so are the values and errors that are named here;
docs/client.md teaches them. `EmbeddedReplica` is in `tidelog/copies/embedded/`;
docs/embedded.md teaches it. The rest is what the commands, the tests and the brokers use to talk to
a Kafka listener:

    wire.py         one connection: frames, versions, correlation ids
    security.py     what a client proves, and whom it believes
    cluster.py      the brokers: metadata, leaders, retries
    kafka.py        one method per request of clients
    admin.py        and of Kafka's requests for operators: groups, offsets, settings, moves
    members.py      brokers, and the quorum of the metadata
    transactions.py  transactions listed, described and aborted
    operator.py     all three for a process that goes on asking
    partitioner.py  which partition a record goes to, as Kafka's default decides
    producer.py     records in, batches out
    sender.py       batches that are made already, of one producer
    transactional.py  writing in transactions, and one decision over many of them
    consumer.py     batches in, records out
    group_member.py  one member of a consumer group
    slices.py       a range of offsets, as it was fetched
    frames.py       Produce and Fetch by hand, for those who count and do not decode
    load.py         a load generator

Rule 1: outside of `http/` nothing opens a socket; every connection comes through
        `tidelog.host.Network`.
Rule 2: importing this imports nothing else: a name is looked up when it is used, and httpx is
        imported with the first client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidelog.client.http.awaiting import AsyncClient, AsyncMessage
    from tidelog.client.http.blocking import Client, Message
    from tidelog.client.http.errors import (
        BadAddress,
        BadRequest,
        Conflict,
        NotFound,
        OutcomeUnknown,
        OutOfRange,
        QueueFull,
        TidelogHTTPError,
        TooLarge,
        Unavailable,
    )
    from tidelog.client.http.values import (
        ABSENT,
        BatchResult,
        Change,
        Delete,
        Entry,
        Pointer,
        PointerMessage,
        Produced,
        Put,
        Record,
        Records,
        RoomEvent,
        RoomEvents,
        Told,
        ToProduce,
        ToPublish,
    )
    from tidelog.copies.embedded.errors import (
        ChecksumMismatch,
        ConnectionFailed,
        LogTruncated,
        OffsetNotFound,
        ProtocolError,
        ReplicationError,
        SyncFailed,
    )
    from tidelog.copies.embedded.replica import AsyncEmbeddedReplica, EmbeddedReplica
    from tidelog.copies.embedded.values import PartitionStatus, QueuedMessage, ReplicaStatus

__all__ = [
    "ABSENT",
    "AsyncClient",
    "AsyncEmbeddedReplica",
    "AsyncMessage",
    "BadAddress",
    "BadRequest",
    "BatchResult",
    "Change",
    "ChecksumMismatch",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Delete",
    "EmbeddedReplica",
    "Entry",
    "LogTruncated",
    "Message",
    "NotFound",
    "OffsetNotFound",
    "OutOfRange",
    "OutcomeUnknown",
    "PartitionStatus",
    "Pointer",
    "PointerMessage",
    "Produced",
    "ProtocolError",
    "Put",
    "QueueFull",
    "QueuedMessage",
    "Record",
    "Records",
    "ReplicaStatus",
    "ReplicationError",
    "RoomEvent",
    "RoomEvents",
    "SyncFailed",
    "TidelogHTTPError",
    "ToProduce",
    "ToPublish",
    "Told",
    "TooLarge",
    "Unavailable",
]

_MODULES: Final = {
    "Client": "tidelog.client.http.blocking",
    "Message": "tidelog.client.http.blocking",
    "AsyncClient": "tidelog.client.http.awaiting",
    "AsyncMessage": "tidelog.client.http.awaiting",
    "EmbeddedReplica": "tidelog.copies.embedded.replica",
    "AsyncEmbeddedReplica": "tidelog.copies.embedded.replica",
}
_LATER: Final = (
    "tidelog.client.http.errors",
    "tidelog.client.http.values",
    "tidelog.copies.embedded.errors",
    "tidelog.copies.embedded.values",
)
"""Where the other names are; none of them costs anything to import."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    places = (_MODULES[name],) if name in _MODULES else _LATER
    for place in places:
        module = import_module(place)
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is exported and nowhere to be found")


def __dir__() -> list[str]:
    return __all__
