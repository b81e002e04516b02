"""confluent-kafka, which is librdkafka."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.clients.adapters import (
    EARLIEST,
    LATEST,
    RECONNECT_MS_MAX,
    SECONDS_MAX,
    Admin,
    Client,
    ClusterDescription,
    Consumer,
    Headers,
    Message,
    Producer,
    Refused,
    Sent,
    Start,
    TopicDescription,
    TransactionalProducer,
)

_POLL_MANY: Final = 1000
_ENDS: Final[dict[Start, int]] = {EARLIEST: ck.OFFSET_BEGINNING, LATEST: ck.OFFSET_END}
_TYPES: Final[dict[int, Any]] = {
    ck.TIMESTAMP_CREATE_TIME: "CreateTime",
    ck.TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime",
}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ck.KafkaException as error:
        raise Refused(error.args[0].code(), error) from error


def _common(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "error_cb": lambda error: None,  # it reports lost connections, which some tests provoke
        "log_level": 0,
    }


class _Pending:
    def __init__(self, producer: ck.Producer) -> None:
        self._producer = producer
        self.done: Future[Sent] = Future()

    def delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.done.set_exception(Refused(error.code(), error))
            return
        offset = message.offset()
        self.done.set_result(
            Sent(partition=message.partition(), offset=offset, timestamp_ms=message.timestamp()[1])
        )

    def result(self) -> Sent:
        deadline = time.monotonic() + SECONDS_MAX
        while not self.done.done() and time.monotonic() < deadline:
            self._producer.poll(0.1)
        return self.done.result(0)


class _Producer(Producer):
    def __init__(
        self,
        bootstrap: str,
        *,
        acks: int | str,
        idempotent: bool,
        codec: str,
        linger_ms: int,
        request_bytes_max: int,
        patience_ms: int,
    ) -> None:
        self.inner = ck.Producer(
            {
                **_common(bootstrap),
                "acks": acks,
                "enable.idempotence": idempotent,
                "compression.type": codec,
                "linger.ms": linger_ms,
                "message.max.bytes": request_bytes_max,
                "message.timeout.ms": patience_ms,
                "topic.metadata.propagation.max.ms": 500,
                "partitioner": "murmur2_random",  # as Java and the other two clients
            }
        )

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> _Pending:
        pending = _Pending(self.inner)
        with _translated():
            self.inner.produce(
                topic,
                value=value,
                key=key,
                headers=list(headers),
                partition=-1 if partition is None else partition,
                timestamp=timestamp_ms or 0,
                on_delivery=pending.delivered,
            )
        return pending

    def flush(self) -> None:
        assert self.inner.flush(SECONDS_MAX) == 0, "some records were not delivered"

    def close(self) -> None:
        self.inner.purge()
        self.inner.flush(SECONDS_MAX)


class _Transactional(_Producer, TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self.inner = ck.Producer(
            {
                **_common(bootstrap),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "topic.metadata.propagation.max.ms": 500,
            }
        )
        with _translated():
            self.inner.init_transactions(SECONDS_MAX)

    def flush(self) -> None:
        # The library's own fails with a SystemError where the producer is fenced.
        deadline = time.monotonic() + SECONDS_MAX
        while len(self.inner):
            assert time.monotonic() < deadline, "some records were not delivered"
            with _translated():
                self.inner.poll(0.01)

    def close(self) -> None:
        self.inner.purge()
        with suppress(Refused):  # said before, where it mattered
            self.flush()

    def begin(self) -> None:
        with _translated():
            self.inner.begin_transaction()

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = [ck.TopicPartition(*place, offset) for place, offset in offsets.items()]
        # The library takes a group only from a member of it; this one has not joined.
        consumer = ck.Consumer({**_common(self._bootstrap), "group.id": group})
        try:
            with _translated():
                self.inner.send_offsets_to_transaction(
                    places, consumer.consumer_group_metadata(), SECONDS_MAX
                )
        finally:
            consumer.close()

    def commit(self) -> None:
        with _translated():
            self.inner.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        with _translated():
            self.inner.abort_transaction(SECONDS_MAX)


class _Consumer(Consumer):
    def __init__(
        self,
        bootstrap: str,
        *,
        reset: str,
        isolation: str,
        wait_ms: int,
        bytes_min: int,
        partition_bytes_max: int,
    ) -> None:
        self.inner = ck.Consumer(
            {
                **_common(bootstrap),
                "group.id": "none",  # the library wants one; nothing is ever committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error" if reset == "none" else reset,
                "isolation.level": isolation,
                "fetch.wait.max.ms": wait_ms,
                "fetch.min.bytes": bytes_min,
                "max.partition.fetch.bytes": partition_bytes_max,
                "fetch.error.backoff.ms": 20,
                "topic.metadata.propagation.max.ms": 500,
                "socket.timeout.ms": 60_000,
            }
        )

    def assign(self, topic: str, starts: Mapping[int, Start]) -> Self:
        with _translated():
            # Left alone, it looks for a new topic's leader only twice a second.
            self.inner.list_topics(topic, timeout=SECONDS_MAX)
            self.inner.assign(
                [
                    ck.TopicPartition(topic, partition, int(_ENDS.get(start, start)))
                    for partition, start in starts.items()
                ]
            )
        return self

    def poll(self, seconds: float) -> list[Message]:
        with _translated():
            first = self.inner.poll(seconds)
            if first is None:
                return []
            # `consume` alone would wait for the full number.
            return [_message(m) for m in [first, *self.inner.consume(_POLL_MANY, 0)]]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        with _translated():
            self.inner.seek(ck.TopicPartition(topic, partition, offset))

    def earliest(self, topic: str, partition: int = 0) -> int:
        return self._watermarks(topic, partition)[0]

    def latest(self, topic: str, partition: int = 0) -> int:
        return self._watermarks(topic, partition)[1]

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        with _translated():
            return self.inner.get_watermark_offsets(ck.TopicPartition(topic, partition), timeout=SECONDS_MAX)

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        with _translated():
            (found,) = self.inner.offsets_for_times(
                [ck.TopicPartition(topic, partition, timestamp_ms)], timeout=SECONDS_MAX
            )
        if found.error is not None:
            raise Refused(found.error.code(), found.error)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        self.inner.close()


def _message(message: Any) -> Message:
    if (error := message.error()) is not None:
        raise Refused(error.code(), error)
    timestamp_type, timestamp_ms = message.timestamp()
    return Message(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=timestamp_ms,
        timestamp_type=_TYPES[timestamp_type],
    )


class _Admin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self.inner = AdminClient(_common(bootstrap))

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = NewTopic(topic, partitions, replication, config=dict(config or {}))
        with _translated():
            made = self.inner.create_topics([new], validate_only=validate_only)
            made[topic].result(SECONDS_MAX)

    def delete(self, topic: str) -> None:
        with _translated():
            self.inner.delete_topics([topic])[topic].result(SECONDS_MAX)

    def grow(self, topic: str, partitions: int) -> None:
        with _translated():
            grown = self.inner.create_partitions([NewPartitions(topic, partitions)])
            grown[topic].result(SECONDS_MAX)

    def names(self) -> list[str]:
        with _translated():
            return list(self.inner.list_topics(timeout=SECONDS_MAX).topics)

    def describe(self, topic: str) -> TopicDescription:
        with _translated():
            asked = self.inner.describe_topics(ck.TopicCollection([topic]))
            found = asked[topic].result(SECONDS_MAX)
        high, low = found.topic_id.get_most_significant_bits(), found.topic_id
        return TopicDescription(
            name=found.name,
            id=f"{high % 2**64:016x}{low.get_least_significant_bits() % 2**64:016x}",
            leaders={p.id: p.leader.id for p in found.partitions},
            replicas={p.id: [node.id for node in p.replicas] for p in found.partitions},
            in_sync={p.id: [node.id for node in p.isr] for p in found.partitions},
        )

    def describe_cluster(self) -> ClusterDescription:
        with _translated():
            found = self.inner.describe_cluster().result(SECONDS_MAX)
        return ClusterDescription(
            id=found.cluster_id,
            controller=found.controller.id,
            nodes=[(node.id, node.host, node.port) for node in found.nodes],
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        with _translated():
            # Left alone, a client that is not connected yet looks for leaders after three seconds.
            self.inner.list_topics(topic, timeout=SECONDS_MAX)
            deleted = self.inner.delete_records(
                [ck.TopicPartition(topic, partition, end) for partition, end in before.items()]
            )
            return {tp.partition: future.result(SECONDS_MAX).low_watermark for tp, future in deleted.items()}

    def close(self) -> None:
        """The library closes it when it is collected."""


class ConfluentClient(Client):
    def _producer(self, **options: Any) -> Producer:
        return _Producer(self.bootstrap, **options)

    def _transactional(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return _Transactional(self.bootstrap, transactional_id, timeout_ms)

    def _consumer(self, **options: Any) -> Consumer:
        return _Consumer(self.bootstrap, **options)

    def _admin(self) -> Admin:
        return _Admin(self.bootstrap)
