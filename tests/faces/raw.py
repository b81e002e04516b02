"""A client that sends whatever it is told to, and a well-behaved one that must not notice."""

import io
import itertools
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from kio.serial import entity_reader

from tidelog.records import Record, decode_batch, encode_batch, iterate_batches
from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import build, encode, request_type, response_type

ANSWER_SECONDS_MAX: Final = 20.0
TOPIC: Final = "bystander"
PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 11


def header(api: int, version: int, correlation_id: int = 1, client: bytes | None = b"raw") -> bytes:
    """The header of a request; with the tags that its version has, if the node knows it."""
    head = struct.pack(">hhih", api, version, correlation_id, -1 if client is None else len(client))
    known = {key.value: versions for key, versions in APIS.items()}.get(api)
    flexible = known is not None and version >= known.flexible_from
    return head + (client or b"") + (b"\0" if flexible else b"")


def body(api: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """A request as kio writes it."""
    return encode(build(request_type(api, version), fields))


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(
    api: int, version: int, fields: Mapping[str, Any] | None = None, correlation_id: int = 1
) -> bytes:
    """A whole request, ready to be sent."""
    return framed(header(api, version, correlation_id) + body(api, version, fields or {}))


def produce_fields(
    batch: bytes | None, topic: str = TOPIC, partition: int = 0, **more: Any
) -> dict[str, Any]:
    """A Produce of one batch; `more` replaces fields."""
    return {
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        **more,
    }


def fetch_fields(topic: str = TOPIC, partition: int = 0, offset: int = 0, **more: Any) -> dict[str, Any]:
    """A Fetch of one partition; `more` replaces fields of the request."""
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "current_leader_epoch": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
        ],
        **more,
    }


class RawClient:
    """A socket to a node."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = io.BytesIO()
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send; a node that has closed the connection already is no failure here."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def read_frame(self) -> bytes | None:
        """The next frame, or None if the node has closed the connection."""
        size = self._read(4)
        return None if size is None else self._read(struct.unpack(">i", size)[0])

    def _read(self, size: int) -> bytes | None:
        parts = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except ConnectionResetError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def read_answer(self, api: int, version: int) -> tuple[int, Any]:
        """The correlation id and the body of the next answer, which has that shape to its end."""
        frame = self.read_frame()
        assert frame is not None, "the node closed the connection instead of answering"
        flexible = version >= APIS[Api(api)].flexible_from and api != Api.API_VERSIONS
        read: Any = entity_reader(response_type(api, version))
        at = 5 if flexible else 4
        answer, size = read(memoryview(frame), at)
        assert at + size == len(frame), f"{len(frame) - at - size} bytes follow the answer"
        return struct.unpack_from(">i", frame)[0], answer

    def ask(self, api: int, version: int, fields: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return its answer."""
        correlation_id = next(self._correlation_ids)
        self.send(request(api, version, fields, correlation_id))
        answered, answer = self.read_answer(api, version)
        assert answered == correlation_id
        return answer

    def produce(self, batch: bytes | None, topic: str = TOPIC, partition: int = 0) -> Any:
        """The answer for one batch's partition."""
        fields = produce_fields(batch, topic, partition)
        return self.ask(Api.PRODUCE, PRODUCE_VERSION, fields).responses[0].partition_responses[0]

    def fetch(self, topic: str = TOPIC, partition: int = 0, offset: int = 0) -> Any:
        """The answer for one partition."""
        fields = fetch_fields(topic, partition, offset)
        return self.ask(Api.FETCH, FETCH_VERSION, fields).responses[0].partitions[0]

    def values(self, topic: str, partition: int = 0, offset: int = 0) -> list[bytes | None]:
        """Everything in a partition from `offset` on."""
        found: list[bytes | None] = []
        while True:
            answer = self.fetch(topic, partition, offset)
            assert answer.error_code == 0, answer
            if not answer.records:
                return found
            for head, batch in iterate_batches(answer.records):
                found += [r.value for r in decode_batch(batch) if r.offset >= offset]
                offset = head.next_offset

    def is_closed(self) -> bool:
        """Whether the node closes the connection now, without an answer."""
        return self.read_frame() is None

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        answer = self.ask(
            Api.CREATE_TOPICS,
            5,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "assignments": (),
                        "configs": [
                            {"name": key.replace("_", "."), "value": value} for key, value in config.items()
                        ],
                    }
                ],
                "timeout": 10_000,
            },
        )
        assert answer.topics[0].error_code == 0, answer

    def end_offset(self, topic: str, partition: int = 0) -> int:
        fields = {
            "replica_id": -1,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
                    ],
                }
            ],
        }
        found = self.ask(Api.LIST_OFFSETS, 5, fields).topics[0].partitions[0]
        assert found.error_code == 0, found
        return int(found.offset)


class Bystander(threading.Thread):
    """Writes and reads on one connection, one record after the other, as long as it lives."""

    def __init__(self, port: int) -> None:
        super().__init__(name="bystander", daemon=True)
        self._client = RawClient(port)
        self._client.create_topic(TOPIC)
        self._stopping = threading.Event()
        self._round = threading.Condition()
        self.acknowledged: list[bytes] = []
        self.slowest_seconds = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                self._write_and_read(b"%d" % len(self.acknowledged))
                with self._round:
                    self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
                    self._round.notify_all()
                self._stopping.wait(0.01)
        except BaseException as error:
            with self._round:
                self.failure = error
                self._round.notify_all()

    def _write_and_read(self, value: bytes) -> None:
        answer = self._client.produce(bytes(encode_batch([Record(value=value, timestamp_ms=1)])))
        assert answer.error_code == 0, answer
        assert answer.base_offset == len(self.acknowledged)
        self.acknowledged.append(value)
        found = self._client.values(TOPIC, offset=answer.base_offset)
        assert found == [value]

    def wait_served(self, rounds: int = 2) -> None:
        """Wait until it was served so many times from now on; its failure is raised here."""
        target = len(self.acknowledged) + rounds
        with self._round:
            self._round.wait_for(
                lambda: self.failure is not None or len(self.acknowledged) >= target, ANSWER_SECONDS_MAX
            )
        if self.failure is not None:
            raise AssertionError(f"the bystander was not served: {self.failure!r}")
        assert len(self.acknowledged) >= target, "the bystander waits for an answer"

    def stop(self) -> None:
        self._stopping.set()
        self.join(ANSWER_SECONDS_MAX)
        self._client.close()
