"""A broker of a hundred lines: one node, logs in memory, and faults on demand.

It speaks through kio, so what the client sends is checked against Kafka's own schemas.
"""

import asyncio
import io
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from kio.serial import entity_writer

from tidelog.records import iterate_batches, stamp
from tidelog.wire.apis import Api
from tidelog.wire.entities import decode_request, encode, response_entity, response_type

VERSIONS = {
    Api.PRODUCE: (0, 9),
    Api.FETCH: (4, 17),
    Api.LIST_OFFSETS: (1, 7),
    Api.METADATA: (0, 12),
    Api.API_VERSIONS: (0, 3),
    Api.CREATE_TOPICS: (2, 7),
    Api.DELETE_TOPICS: (1, 6),
    Api.DELETE_RECORDS: (0, 2),
    Api.CREATE_PARTITIONS: (0, 3),
}
FLEXIBLE_FROM = {0: 9, 1: 12, 2: 6, 3: 9, 18: 3, 19: 5, 20: 4, 21: 2, 37: 2}
HEADER = struct.Struct(">hhih")
TOPIC_ID = UUID("11111111-2222-4333-8444-555555555555")


class Log:
    """One partition: batches with their offsets stamped."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, next offset, bytes
        self.start = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def append(self, records: bytes) -> int:
        base = self.end
        for header, view in iterate_batches(records):
            batch = bytearray(view)
            first = self.end
            stamp(batch, first, 0)
            self.batches.append((first, first + header.last_offset_delta + 1, bytes(batch)))
        return base

    def read(self, offset: int) -> bytes:
        return b"".join(batch for _, end, batch in self.batches if end > offset)


class FakeBroker:
    """Topics are lists of logs. `errors[api]` are codes to answer with, one request each."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.errors: dict[Api, deque[int]] = defaultdict(deque)
        self.drops: Counter[Api] = Counter()
        """How many requests of an API to answer by closing the connection."""
        self.silent: set[Api] = set()
        self.seen: list[tuple[Api, int]] = []
        self.versions = dict(VERSIONS)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, api: Api) -> int:
        return sum(key == api for key, _ in self.seen)

    async def __aenter__(self) -> "FakeBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                answer = await self._answer(frame)
                if answer is not None:
                    writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, frame: bytes) -> bytes | None:
        key, version, correlation_id, client_size = HEADER.unpack_from(frame)
        api = Api(key)
        self.seen.append((api, version))
        if self.drops[api] > 0:
            self.drops[api] -= 1
            raise ConnectionResetError
        if api in self.silent:
            await asyncio.sleep(3600)
        low, high = self.versions.get(api, (0, -1))
        if api is Api.API_VERSIONS and not low <= version <= high:
            return struct.pack(">i", correlation_id) + self._encode(api, 0, self._versions(35))
        assert low <= version <= high, f"{api.name} {version} was never offered"
        at = HEADER.size + client_size + (version >= FLEXIBLE_FROM[key])
        request = decode_request(key, version, frame, at)
        error = self.errors[api].popleft() if self.errors[api] else 0
        fields = await getattr(self, f"_{api.name.lower()}")(request, error)
        if fields is None:
            return None
        schema = response_type(key, version).__header_schema__
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, schema(correlation_id=correlation_id))
        return buffer.getvalue() + self._encode(api, version, fields)

    def _encode(self, api: Api, version: int, fields: dict[str, Any]) -> bytes:
        return encode(response_entity(api, version, fields))

    def _versions(self, error: int) -> dict[str, Any]:
        return {
            "error_code": error,
            "api_keys": [
                {"api_key": int(api), "min_version": low, "max_version": high}
                for api, (low, high) in self.versions.items()
            ],
        }

    async def _api_versions(self, request: Any, error: int) -> dict[str, Any]:
        return self._versions(error)

    async def _metadata(self, request: Any, error: int) -> dict[str, Any]:
        names = [topic.name for topic in request.topics] if request.topics else list(self.topics)
        if request.topics == ():
            names = []
        for name in names:
            if name not in self.topics and request.allow_auto_topic_creation and name != "nope":
                self.topics[name] = [Log()]
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
            "cluster_id": "fake",
            "controller_id": 1,
            "topics": [
                {
                    "error_code": error or (0 if name in self.topics else 3),
                    "name": name,
                    "topic_id": TOPIC_ID if name in self.topics else None,
                    "partitions": [
                        {
                            "partition_index": partition,
                            "leader_id": 1,
                            "leader_epoch": 4,
                            "replica_nodes": [1],
                            "isr_nodes": [1],
                        }
                        for partition in range(len(self.topics.get(name, [])))
                    ],
                }
                for name in names
            ],
        }

    async def _create_topics(self, request: Any, error: int) -> dict[str, Any]:
        (topic,) = request.topics
        if not error and topic.name in self.topics:
            error = 36
        if not error:
            self.topics[topic.name] = [Log() for _ in range(max(1, topic.num_partitions))]
        return {"topics": [{"name": topic.name, "error_code": error}]}

    async def _delete_topics(self, request: Any, error: int) -> dict[str, Any]:
        name = request.topics[0].name if hasattr(request, "topics") else request.topic_names[0]
        if self.topics.pop(name, None) is None:
            error = error or 3
        return {"responses": [{"name": name, "error_code": error}]}

    async def _create_partitions(self, request: Any, error: int) -> dict[str, Any]:
        (topic,) = request.topics
        logs = self.topics[topic.name]
        logs += [Log() for _ in range(topic.count - len(logs))]
        return {"results": [{"name": topic.name, "error_code": error}]}

    async def _delete_records(self, request: Any, error: int) -> dict[str, Any]:
        (topic,) = request.topics
        answers = []
        for partition in topic.partitions:
            log = self.topics[topic.name][partition.partition_index]
            log.start = log.end if partition.offset == -1 else partition.offset
            index = partition.partition_index
            answers.append({"partition_index": index, "low_watermark": log.start})
        return {"topics": [{"name": topic.name, "partitions": answers}]}

    async def _produce(self, request: Any, error: int) -> dict[str, Any] | None:
        answers = []
        (topic,) = request.topic_data
        for partition in topic.partition_data:
            log = self.topics[topic.name][partition.index]
            base = -1 if error else log.append(partition.records)
            answers.append({"index": partition.index, "error_code": error, "base_offset": base})
        if request.acks == 0:
            return None
        return {"responses": [{"name": topic.name, "partition_responses": answers}]}

    async def _fetch(self, request: Any, error: int) -> dict[str, Any]:
        (topic,) = request.topics
        logs = self.topics[topic.topic]
        if not error and all(logs[p.partition].end <= p.fetch_offset for p in topic.partitions):
            await asyncio.sleep(request.max_wait.total_seconds() / 10)
        answers = []
        for partition in topic.partitions:
            log = logs[partition.partition]
            gone = not log.start <= partition.fetch_offset <= log.end
            answers.append(
                {
                    "partition_index": partition.partition,
                    "error_code": error or int(gone),
                    "high_watermark": log.end,
                    "last_stable_offset": log.end,
                    "log_start_offset": log.start,
                    "aborted_transactions": None,
                    "records": b"" if error or gone else log.read(partition.fetch_offset),
                }
            )
        return {"responses": [{"topic": topic.topic, "partitions": answers}]}

    async def _list_offsets(self, request: Any, error: int) -> dict[str, Any]:
        (topic,) = request.topics
        answers = []
        for partition in topic.partitions:
            log = self.topics[topic.name][partition.partition_index]
            offset = {-2: log.start, -1: log.end}.get(partition.timestamp)
            if offset is None:
                offset = log.end if partition.timestamp > 1_000_000 else -1
            answers.append(
                {
                    "partition_index": partition.partition_index,
                    "error_code": error,
                    "offset": -1 if error else offset,
                    "timestamp": -1,
                }
            )
        return {"topics": [{"name": topic.name, "partitions": answers}]}


@contextmanager
def in_thread() -> Iterator[FakeBroker]:
    """A broker in its own thread and loop, for commands that run theirs."""
    broker = FakeBroker()
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        async with broker:
            started.set()
            await stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield broker
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
