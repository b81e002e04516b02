"""What is asked of queues, and of Redis Streams beside them.

Rule 1: what stands beside each other is the same work as far as the two have it: a pointer that
        the server keeps is a consumer group without receipts (NOACK); a work queue is one with.
        Redis has no request that adds many entries: they are sent together, and it syncs once.
Rule 2: there are several queues, so that of three nodes each keeps some, and as many streams.
Rule 3: what is taken was put there for that, and is counted; what is added is never taken.
"""

import json
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, Protocol
from urllib.request import Request, urlopen

from benchmarks.closed import (
    Refused,
    Target,
    Timed,
    ask_closed,
    http_answer,
    http_request,
    redis_answer,
    redis_request,
)
from benchmarks.http_requests import VALUE, Nodes
from benchmarks.queue_turns import (
    Stock,
    Turn,
    acking,
    acknowledging,
    added_answer,
    stream_answer,
    take_closed,
)
from benchmarks.redis_peer import Redis

QUEUES: Final = 6
MANY: Final = 50
"""Messages of a request that has many."""
FILL_MANY: Final = 500
FILL_CONNECTIONS: Final = 16
FILL_SECONDS_MAX: Final = 300.0
LOOK_SECONDS_MAX: Final = 30.0
GROUP: Final = b"workers"

APPEND: Final = "append"
READ: Final = "read"
PUBLISH: Final = "publish"
PUBLISH_MANY: Final = f"publish {MANY} at once"
TAKE: Final = "receive + ack"
TAKE_MANY: Final = f"receive {MANY} + ack"
COUNTS: Final = {APPEND: 1, READ: 1, PUBLISH: 1, PUBLISH_MANY: MANY, TAKE: 1, TAKE_MANY: MANY}
"""Every kind, and its messages per turn."""
REDIS: Final = {
    APPEND: "XADD",
    READ: "XREADGROUP NOACK",
    PUBLISH: "XADD",
    PUBLISH_MANY: f"{MANY} XADDs",
    TAKE: "XREADGROUP + XACK",
    TAKE_MANY: f"XREADGROUP + XACK of {MANY}",
}
"""What Redis is asked for the same."""


class Subject(Protocol):
    """Somebody who keeps queues."""

    def prepare(self, kind: str, stock: int) -> None:
        """See to it that this can be asked: that every queue to take from has so many messages."""

    def ask(self, kind: str, connections: int, seconds: float) -> Timed: ...

    def check(self) -> None:
        """Whether all that was acknowledged is there."""


class OurQueues:
    """The queues of a cluster, asked at all of its nodes in turn."""

    def __init__(self, nodes: Nodes) -> None:
        self._ports = nodes.http_ports
        self._ids = [self._call("POST", "/create_queue", {})["queue_id"] for _ in range(QUEUES)]
        self._read_ids = [self._call("POST", "/create_queue", {})["queue_id"] for _ in range(QUEUES)]
        self._taken = [f"taken-{number}" for number in range(QUEUES)]
        self._added = [f"added-{number}" for number in range(QUEUES)]
        for name in (*self._taken, *self._added):
            self._call("PUT", f"/v1/queues/{name}", {})
        self._stocks = [Stock(0) for _ in range(QUEUES)]
        self._to_read = 0
        self._published = 0
        self._clients = count()

    def prepare(self, kind: str, stock: int) -> None:
        if kind == READ and self._to_read == 0:
            self._fill([_append(one) for one in self._read_ids], 1, [stock] * QUEUES)
            self._to_read = stock
        if kind in (TAKE, TAKE_MANY):
            rounded = -(-stock // FILL_MANY) * FILL_MANY
            lacking = [-(-max(0, rounded - one.left) // FILL_MANY) for one in self._stocks]
            requests = [_publish(name, FILL_MANY) for name in self._taken]
            self._fill(requests, FILL_MANY, [number * FILL_MANY for number in lacking])
            for one, number in zip(self._stocks, lacking, strict=True):
                one.left += number * FILL_MANY

    def _fill(self, requests: Sequence[bytes], size: int, counts: Sequence[int]) -> None:
        """Send each so often that so many messages are there."""
        for request, wanted in zip(requests, counts, strict=True):
            if wanted:
                stock = Stock(wanted)
                port = self._ports[0]
                turn = Turn(port=port, ask=request, count=size, stock=stock)
                take_closed([turn] * FILL_CONNECTIONS, http_answer, seconds=FILL_SECONDS_MAX)
                assert stock.left == 0, "there was time enough to fill the queues"

    def ask(self, kind: str, connections: int, seconds: float) -> Timed:
        if kind in (READ, TAKE, TAKE_MANY):
            turns = [self._turn(kind, at) for at in range(connections)]
            read = _message_answer if kind == READ else http_answer
            return take_closed(turns, read, seconds=seconds)
        if kind == APPEND:
            requests = [_append(one) for one in self._ids]
        else:
            requests = [_publish(name, COUNTS[kind]) for name in self._added]
        targets = [Target(port, requests) for port in self._ports]
        timed = ask_closed(targets, http_answer, connections=connections, seconds=seconds)
        if kind != APPEND:
            self._published += timed.requests * COUNTS[kind]
        return timed

    def _turn(self, kind: str, at: int) -> Turn:
        # Whoever asks a node's queues through that node alone would not meet the others.
        port, queue = self._ports[(at + at // QUEUES) % len(self._ports)], at % QUEUES
        if kind == READ:
            client = {"queue_id": self._read_ids[queue], "client_id": f"c-{next(self._clients)}"}
            ask = http_request("POST", "/read", _json(client))
            return Turn(port=port, ask=ask, count=1, stock=Stock(self._to_read))
        name, size = self._taken[queue], COUNTS[kind]
        return Turn(
            port=port,
            ask=http_request("POST", f"/v1/queues/{name}/receive", _json({"max": size})),
            count=size,
            stock=self._stocks[queue],
            settle=acknowledging(name, size),
        )

    def check(self) -> None:
        depth = sum(self._call("GET", f"/v1/queues/{name}")["depth"] for name in self._added)
        assert depth == self._published, f"{self._published} were published, there are {depth}"
        left = sum(self._call("GET", f"/v1/queues/{name}")["depth"] for name in self._taken)
        wanted = sum(one.left for one in self._stocks)
        assert left == wanted, f"{wanted} were not acknowledged, there are {left}"

    def _call(self, method: str, path: str, document: Any = None) -> Any:
        url = f"http://127.0.0.1:{self._ports[0]}{path}"
        body = None if document is None else _json(document)
        request = Request(url, body, {"content-type": "application/json"}, method=method)
        with urlopen(request, timeout=LOOK_SECONDS_MAX) as answer:
            return json.load(answer)


class RedisStreams:
    """The same of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._port = redis.port
        self._added = [b"added-%d" % number for number in range(QUEUES)]
        self._taken = [b"taken-%d" % number for number in range(QUEUES)]
        self._read = [b"read-%d" % number for number in range(QUEUES)]
        self._stocks = [Stock(0) for _ in range(QUEUES)]
        self._to_read = 0
        self._clients = count()
        for stream in (*self._taken, *self._read):
            self._once(redis_request(b"XGROUP", b"CREATE", stream, GROUP, b"0", b"MKSTREAM"))

    def _once(self, request: bytes) -> None:
        ask_closed([Target(self._port, [request])], redis_answer, connections=1, seconds=0.0)

    def prepare(self, kind: str, stock: int) -> None:
        if kind == READ and self._to_read == 0:
            for stream in self._read:
                self._fill(stream, stock)
            self._to_read = -(-stock // FILL_MANY) * FILL_MANY
        if kind in (TAKE, TAKE_MANY):
            for stream, one in zip(self._taken, self._stocks, strict=True):
                one.left += self._fill(stream, stock - one.left)

    def _fill(self, stream: bytes, wanted: int) -> int:
        """Add at least so many entries; how many were."""
        times = max(0, -(-wanted // FILL_MANY))
        if times:
            stock = Stock(times)
            turn = Turn(port=self._port, ask=_xadd(stream) * FILL_MANY, count=1, stock=stock)
            take_closed([turn], added_answer(FILL_MANY), seconds=FILL_SECONDS_MAX)
            assert stock.left == 0, "there was time enough to fill the streams"
        return times * FILL_MANY

    def ask(self, kind: str, connections: int, seconds: float) -> Timed:
        size = COUNTS[kind]
        if kind in (READ, TAKE, TAKE_MANY):
            turns = [self._turn(kind, at) for at in range(connections)]
            return take_closed(turns, stream_answer(size), seconds=seconds)
        target = Target(self._port, [_xadd(stream) * size for stream in self._added])
        return ask_closed([target], added_answer(size), connections=connections, seconds=seconds)

    def _turn(self, kind: str, at: int) -> Turn:
        queue, size = at % QUEUES, COUNTS[kind]
        if kind == READ:
            group, stream = b"c-%d" % next(self._clients), self._read[queue]
            self._once(redis_request(b"XGROUP", b"CREATE", stream, group, b"0"))
            ask = redis_request(
                b"XREADGROUP", b"GROUP", group, b"one", b"COUNT", b"1", b"NOACK", b"STREAMS", stream, b">"
            )
            return Turn(port=self._port, ask=ask, count=1, stock=Stock(self._to_read))
        stream = self._taken[queue]
        ask = redis_request(
            b"XREADGROUP",
            b"GROUP",
            GROUP,
            b"worker-%d" % at,
            b"COUNT",
            b"%d" % size,
            b"STREAMS",
            stream,
            b">",
        )
        return Turn(
            port=self._port, ask=ask, count=size, stock=self._stocks[queue], settle=acking(stream, GROUP)
        )

    def check(self) -> None:
        """Every answer was looked at as it came."""


def _message_answer(data: bytes) -> int:
    size = http_answer(data)
    if size and b'"message_id":null' in data:
        raise Refused("there was no message where one should be")
    return size


def _append(queue_id: int) -> bytes:
    return http_request("POST", "/append", _json({"queue_id": queue_id, "value": VALUE}))


def _publish(name: str, size: int) -> bytes:
    body = _json({"messages": [{"value": VALUE}] * size})
    return http_request("POST", f"/v1/queues/{name}/messages", body)


def _xadd(stream: bytes) -> bytes:
    return redis_request(b"XADD", stream, b"*", b"v", VALUE.encode())


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
