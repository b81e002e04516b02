"""What is asked of the HTTP face, of Redis and of the Kafka face, made beforehand.

Rule: what stands beside each other is the same work as far as the two have it: keys and values of
the same size, as many of them in a request, and safe on a disk before the answer.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any, Final, TypeVar

from benchmarks.bench import ASK_SECONDS_MAX, run_fast
from benchmarks.closed import (
    ReadAnswer,
    Target,
    ask_once,
    http_answer,
    http_request,
    kafka_answer,
    redis_answer,
    redis_request,
)
from benchmarks.delivery import Waiting
from benchmarks.pump import produce_request
from benchmarks.redis_peer import Redis
from tidelog.client.frames import ProduceFrame, fetch_frame
from tidelog.client.kafka import LATEST, KafkaClient
from tidelog.records import Record, encode_batch

T = TypeVar("T")

KEYS: Final = 1000
VALUE: Final = "x" * 100
MANY: Final = 100
"""Records, or changes, in a request that has many."""
WAIT_MS: Final = 10_000

BUCKET: Final = "keys"
WRITTEN: Final = "written-by-http"
PRODUCED: Final = "produced-by-kafka"
READ: Final = "read"
WAITED: Final = "waited-for"
COMPACTED: Final = {"cleanup.policy": "compact", "kv.view": "true"}

PUT: Final = "put"
GET_STRONG: Final = "get strong"
GET_LOCAL: Final = "get local"
PUT_MANY: Final = f"put {MANY} at once"
PRODUCE: Final = "produce"
PRODUCE_MANY: Final = f"produce {MANY} at once"
READ_MANY: Final = f"read {MANY} records"
LONG_POLL: Final = "long poll"

SET: Final = "Redis SET, always"
SET_LATER: Final = "Redis SET, everysec"
GET: Final = "Redis GET"
SET_MANY: Final = f"Redis MSET of {MANY}, always"
KAFKA_PRODUCE: Final = "Kafka produce"
KAFKA_PRODUCE_MANY: Final = f"Kafka produce {MANY}"
KAFKA_FETCH: Final = f"Kafka fetch {MANY}"
KAFKA_WAIT: Final = "Kafka fetch that waits"

BESIDE: Final = {
    PUT: SET,
    GET_STRONG: GET,
    GET_LOCAL: GET,
    PUT_MANY: SET_MANY,
    PRODUCE: KAFKA_PRODUCE,
    PRODUCE_MANY: KAFKA_PRODUCE_MANY,
    READ_MANY: KAFKA_FETCH,
    LONG_POLL: KAFKA_WAIT,
}
"""What each is measured beside."""


@dataclass(slots=True, kw_only=True)
class Nodes:
    """A cluster as clients find it, and what they have written to it."""

    name: str
    bootstrap: str
    http_ports: Sequence[int]
    pids: Sequence[int]
    records: dict[str, int] = field(default_factory=dict)
    """How many each topic must have."""

    def ask(self, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
        async def run() -> T:
            async with KafkaClient(self.bootstrap, timeout_seconds=ASK_SECONDS_MAX) as client:
                return await work(client)

        return run_fast(run())

    def leader_ports(self, topic: str) -> list[int]:
        """Of its partitions, in order."""
        found = self.ask(lambda client: client.leaders(topic))
        return [found[number].port for number in sorted(found)]

    def over_http(self, requests: Sequence[bytes]) -> list[Target]:
        return [Target(port, requests) for port in self.http_ports]

    def check(self) -> None:
        """Whether every topic has what it must have."""

        async def count(client: KafkaClient, topic: str) -> int:
            partitions = (await client.topic(topic)).partitions
            ends = await client.list_offsets(topic, dict.fromkeys(range(len(partitions)), LATEST))
            return sum(end.offset for end in ends.values())

        for topic, wanted in self.records.items():
            found = self.ask(lambda client, topic=topic: count(client, topic))  # type: ignore[misc]
            assert found == wanted, f"{wanted} records were written to {topic}, it has {found}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One kind of request: who is asked, how an answer is read, and what it writes."""

    targets: Sequence[Target]
    read: ReadAnswer
    topic: str = ""
    records: int = 0


def fill(nodes: Nodes) -> None:
    """Make the topics, and what is read of them; let every node load its HTTP face."""
    count = len(nodes.http_ports)

    async def make(client: KafkaClient) -> None:
        for topic, partitions in ((WRITTEN, count), (PRODUCED, count), (READ, 1), (WAITED, 1)):
            await client.create_topic(topic, partitions=partitions, replication=count)
        await client.create_topic(BUCKET, partitions=count, replication=count, configs=COMPACTED)
        await client.produce(READ, 0, _batch(MANY))
        await client.produce(WAITED, 0, _batch(1))

    nodes.ask(make)
    nodes.records.update({WRITTEN: 0, PRODUCED: 0, READ: MANY, WAITED: 1, BUCKET: KEYS})
    for port in nodes.http_ports:
        ask_once(port, http_request("GET", "/health/ready"), http_answer)
    for request in _puts_of_many():
        ask_once(nodes.http_ports[0], request, http_answer)


# Over HTTP.


def http_requests(nodes: Nodes) -> dict[str, Asked]:
    read = f"/v1/topics/{READ}/partitions/0/records?offset=0&limit={MANY}"

    def asked(requests: Sequence[bytes], topic: str = "", records: int = 0) -> Asked:
        return Asked(nodes.over_http(requests), http_answer, topic, records)

    return {
        PUT: asked(puts(), BUCKET, 1),
        GET_STRONG: asked(gets()),
        GET_LOCAL: asked(gets("?consistency=local")),
        PUT_MANY: asked(list(_puts_of_many()), BUCKET, MANY),
        PRODUCE: asked([records_request(WRITTEN, 1)], WRITTEN, 1),
        PRODUCE_MANY: asked([records_request(WRITTEN, MANY)], WRITTEN, MANY),
        READ_MANY: asked([http_request("GET", read)]),
    }


def records_request(topic: str, count: int) -> bytes:
    body = _json({"records": [{"value": VALUE}] * count})
    return http_request("POST", f"/v1/topics/{topic}/records", body)


def puts() -> list[bytes]:
    body = _json({"value": VALUE})
    return [http_request("PUT", f"/v1/kv/{BUCKET}/{key}", body) for key in _keys()]


def gets(query: str = "") -> list[bytes]:
    return [http_request("GET", f"/v1/kv/{BUCKET}/{key}{query}") for key in _keys()]


def _puts_of_many() -> Iterator[bytes]:
    for keys in _keys_by_many():
        operations = [{"op": "put", "key": key, "value": VALUE} for key in keys]
        yield http_request("POST", f"/v1/kv/{BUCKET}:batch", _json({"operations": operations}))


def long_polls(nodes: Nodes, connections: int) -> list[Waiting]:
    """At each node in turn."""
    path = f"/v1/topics/{WAITED}/partitions/0/records?limit={MANY}&wait_ms={WAIT_MS}&offset="
    ports = nodes.http_ports
    return [
        Waiting(ports[at % len(ports)], lambda offset: http_request("GET", f"{path}{offset}"))
        for at in range(connections)
    ]


# Over Kafka.


def kafka_requests(nodes: Nodes) -> dict[str, Asked]:
    """At the leaders."""
    ports = nodes.leader_ports(PRODUCED)

    def produce(count: int) -> Asked:
        batch = _batch(count)
        frames = [ProduceFrame.make(PRODUCED, [at], batch, -1) for at in range(len(ports))]
        targets = [
            Target(port, [b"".join(frame.buffers(1))]) for port, frame in zip(ports, frames, strict=True)
        ]
        return Asked(targets, kafka_answer, PRODUCED, count)

    fetch = [Target(nodes.leader_ports(READ)[0], [_fetch(READ, 0)])]
    return {
        KAFKA_PRODUCE: produce(1),
        KAFKA_PRODUCE_MANY: produce(MANY),
        KAFKA_FETCH: Asked(fetch, kafka_answer),
    }


def write_waited(nodes: Nodes) -> Target:
    """What writes a record that others wait for."""
    now_ms = time_ns() // 1_000_000
    request = produce_request(WAITED, 0, record_bytes=len(VALUE), now_ms=now_ms)
    return Target(nodes.leader_ports(WAITED)[0], [request])


def fetches_that_wait(nodes: Nodes, connections: int) -> list[Waiting]:
    (port,) = nodes.leader_ports(WAITED)
    return [Waiting(port, lambda offset: _fetch(WAITED, offset))] * connections


def _fetch(topic: str, offset: int) -> bytes:
    return fetch_frame(1, topic, {0: offset}, wait_ms=WAIT_MS, bytes_max=1 << 20, partition_bytes_max=1 << 20)


# Of Redis.


def redis_requests(always: Redis, everysec: Redis) -> dict[str, Asked]:
    value = VALUE.encode()
    sets = [redis_request(b"SET", key.encode(), value) for key in _keys()]
    many = [
        redis_request(b"MSET", *(word for key in keys for word in (key.encode(), value)))
        for keys in _keys_by_many()
    ]
    for request in many:
        for redis in (always, everysec):
            ask_once(redis.port, request, redis_answer)

    def asked(redis: Redis, requests: Sequence[bytes]) -> Asked:
        return Asked([Target(redis.port, requests)], redis_answer)

    return {
        SET: asked(always, sets),
        SET_LATER: asked(everysec, sets),
        GET: asked(always, [redis_request(b"GET", key.encode()) for key in _keys()]),
        SET_MANY: asked(always, many),
    }


# What they hold.


def _keys() -> Iterator[str]:
    return (f"key-{number:05}" for number in range(KEYS))


def _keys_by_many() -> Iterator[list[str]]:
    keys = list(_keys())
    return (keys[at : at + MANY] for at in range(0, KEYS, MANY))


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _batch(count: int) -> bytes:
    """As the HTTP face makes it of its records."""
    value = json.dumps(VALUE).encode()
    now_ms = time_ns() // 1_000_000
    return bytes(encode_batch([Record(value=value, timestamp_ms=now_ms)] * count))
