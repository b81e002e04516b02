"""Clients of a replicated topic: an administrator, a writer that says what it wants, a reader."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.load import QUICK, WAIT_SECONDS_MAX
from tests.faces.raw import PRODUCE_VERSION, RawClient, produce_fields
from tidelog.model import NodeId, Offset
from tidelog.records import Record, encode_batch
from tidelog.wire.apis import Api

OK: Final = 0
REQUEST_TIMED_OUT: Final = 7
NOT_LEADER_OR_FOLLOWER: Final = 6
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20

ALL: Final = -1


def create_topic(bootstrap: str, topic: str, replicas: Sequence[Sequence[NodeId]], **config: str) -> None:
    """A topic whose partitions have these replicas, the preferred leader first."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    wanted = NewTopic(
        topic, len(replicas), replica_assignment=[list(nodes) for nodes in replicas], config=settings
    )
    admin.create_topics([wanted])[topic].result(WAIT_SECONDS_MAX)


def write(
    port: int, topic: str, value: bytes, *, acks: int, partition: int = 0, timeout_ms: int = 10_000
) -> tuple[int, Offset]:
    """One record, once, to that node and no other: the error code, and where the record is."""
    batch = bytes(encode_batch([Record(value=value)]))
    fields = produce_fields(batch, topic, partition, acks=acks, timeout=timeout_ms)
    with RawClient(port) as client:
        answer = client.ask(Api.PRODUCE, PRODUCE_VERSION, fields)
    found: Any = answer.responses[0].partition_responses[0]
    return int(found.error_code), int(found.base_offset)


class Reader(threading.Thread):
    """The only member of a group, as an application writes it: whatever goes wrong, it is told."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(name=f"reader of {topic}", daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "check.crcs": True,
                **QUICK,
            }
        )
        self._consumer.subscribe([topic])
        self._stopping = threading.Event()
        self.offsets: dict[int, list[Offset]] = defaultdict(list)
        """What came, by partition, in the order in which it came."""
        self.count = 0
        self.failure: str | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                message = self._consumer.poll(0.1)
                if message is None:
                    continue
                partition, offset = message.partition(), message.offset()
                if message.error() is not None:
                    self.failure = f"{self.name} was told of {message.error()}"
                    return
                assert partition is not None
                assert offset is not None
                self.offsets[partition].append(offset)
                self.count += 1
            self._consumer.close()
        except Exception as error:
            self.failure = f"{self.name}: {error!r}"

    def wait_read(self, count: int) -> None:
        """Wait until it has got so many records, of all it ever got."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.count < count:
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, f"{self.name} got {self.count} of {count}"
            self._stopping.wait(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self.join(WAIT_SECONDS_MAX)
        assert not self.is_alive()
