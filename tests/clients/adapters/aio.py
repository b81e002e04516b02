"""aiokafka, whose event loop runs in a thread of its own."""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import KafkaError, ProducerFenced, for_code

from tests.clients.adapters import (
    EARLIEST,
    LATEST,
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
from tests.clients.loop import shared_loop

_RETRY_MS: Final = 50
_PRODUCER_FENCED: Final = 90
_TYPES: Final[dict[int, Any]] = {0: "CreateTime", 1: "LogAppendTime"}

T = TypeVar("T")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        code = getattr(error, "errno", None)
        if isinstance(error, ProducerFenced):
            code = _PRODUCER_FENCED  # the library has no number for it
        raise Refused(-1 if code is None else code, error) from error


def _wait(awaitable: Awaitable[T], seconds: float = SECONDS_MAX) -> T:
    async def wait() -> T:
        return await awaitable

    with _translated():
        return shared_loop().run(wait(), seconds)


async def _started(make: Any, **options: Any) -> Any:
    client = make(**options)
    await client.start()
    return client


class _Pending:
    def __init__(self, future: "asyncio.Future[Any]", partition: int | None) -> None:
        self._future = future
        self._partition = partition

    def result(self) -> Sent:
        sent = _wait(self._future)
        if sent is None:  # acks=0
            return Sent(partition=self._partition or 0, offset=None, timestamp_ms=-1)
        return Sent(partition=sent.partition, offset=sent.offset, timestamp_ms=sent.timestamp)


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
        self.inner = _wait(
            _started(
                AIOKafkaProducer,
                bootstrap_servers=bootstrap,
                acks=acks,
                enable_idempotence=idempotent,
                compression_type=None if codec == "none" else codec,
                linger_ms=linger_ms,
                max_request_size=request_bytes_max,
                request_timeout_ms=patience_ms,
                retry_backoff_ms=_RETRY_MS,
            )
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
        future = _wait(
            self.inner.send(
                topic,
                value=value,
                key=key,
                headers=list(headers),
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        )
        return _Pending(future, partition)

    def flush(self) -> None:
        _wait(self.inner.flush())

    def close(self) -> None:
        _wait(self.inner.stop())


class _Transactional(_Producer, TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.inner = _wait(
            _started(
                AIOKafkaProducer,
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                retry_backoff_ms=_RETRY_MS,
            )
        )
        # Otherwise it would begin to be the only one with its first transaction.
        _wait(self.inner._txn_manager.wait_for_pid())

    def begin(self) -> None:
        _wait(self.inner.begin_transaction())

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = {TopicPartition(*place): offset for place, offset in offsets.items()}
        _wait(self.inner.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        _wait(self.inner.commit_transaction())

    def abort(self) -> None:
        _wait(self.inner.abort_transaction())


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
        self.inner = _wait(
            _started(
                AIOKafkaConsumer,
                bootstrap_servers=bootstrap,
                enable_auto_commit=False,
                auto_offset_reset=reset,
                isolation_level=isolation,
                fetch_max_wait_ms=wait_ms,
                fetch_min_bytes=bytes_min,
                max_partition_fetch_bytes=partition_bytes_max,
                request_timeout_ms=60_000,
                retry_backoff_ms=_RETRY_MS,
            )
        )

    def assign(self, topic: str, starts: Mapping[int, Start]) -> Self:
        async def assign() -> None:
            consumer = self.inner
            consumer.assign([TopicPartition(topic, partition) for partition in starts])
            ends: dict[Start, list[TopicPartition]] = {EARLIEST: [], LATEST: []}
            for partition, start in starts.items():
                tp = TopicPartition(topic, partition)
                if start in ends:
                    ends[start].append(tp)
                else:
                    consumer.seek(tp, start)
            if ends[EARLIEST]:
                await consumer.seek_to_beginning(*ends[EARLIEST])
            if ends[LATEST]:
                await consumer.seek_to_end(*ends[LATEST])

        _wait(assign())
        return self

    def poll(self, seconds: float) -> list[Message]:
        polled = _wait(self.inner.getmany(timeout_ms=int(seconds * 1000)), seconds + SECONDS_MAX)
        return [_message(record) for records in polled.values() for record in records]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        async def seek() -> None:
            self.inner.seek(TopicPartition(topic, partition), offset)

        _wait(seek())

    def earliest(self, topic: str, partition: int = 0) -> int:
        tp = TopicPartition(topic, partition)
        return _wait(self.inner.beginning_offsets([tp]))[tp]

    def latest(self, topic: str, partition: int = 0) -> int:
        tp = TopicPartition(topic, partition)
        return _wait(self.inner.end_offsets([tp]))[tp]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        tp = TopicPartition(topic, partition)
        found = _wait(self.inner.offsets_for_times({tp: timestamp_ms}))[tp]
        return None if found is None else found.offset

    def close(self) -> None:
        _wait(self.inner.stop())


def _message(record: Any) -> Message:
    return Message(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        timestamp_ms=record.timestamp,
        timestamp_type=_TYPES[record.timestamp_type],
    )


class _Admin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self.inner = _wait(_started(AIOKafkaAdminClient, bootstrap_servers=bootstrap))

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = NewTopic(topic, partitions, replication, topic_configs=dict(config or {}))
        answer = _wait(self.inner.create_topics([new], validate_only=validate_only))
        _raise_for((code, message) for _, code, message in answer.topic_errors)

    def delete(self, topic: str) -> None:
        answer = _wait(self.inner.delete_topics([topic]))
        _raise_for((code, topic) for topic, code in answer.topic_error_codes)

    def grow(self, topic: str, partitions: int) -> None:
        _wait(self.inner.create_partitions({topic: NewPartitions(partitions)}))

    def names(self) -> list[str]:
        return _wait(self.inner.list_topics())

    def describe(self, topic: str) -> TopicDescription:
        (found,) = _wait(self.inner.describe_topics([topic]))
        _raise_for([(found["error_code"], topic)])
        partitions = found["partitions"]
        return TopicDescription(
            name=found["topic"],
            id=None,
            leaders={p["partition"]: p["leader"] for p in partitions},
            replicas={p["partition"]: p["replicas"] for p in partitions},
            in_sync={p["partition"]: p["isr"] for p in partitions},
        )

    def describe_cluster(self) -> ClusterDescription:
        found = _wait(self.inner.describe_cluster())
        return ClusterDescription(
            id=found["cluster_id"],
            controller=found["controller_id"],
            nodes=[(node["node_id"], node["host"], node["port"]) for node in found["brokers"]],
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        deleted = _wait(
            self.inner.delete_records(
                {
                    TopicPartition(topic, partition): RecordsToDelete(before_offset=end)
                    for partition, end in before.items()
                }
            )
        )
        return {tp.partition: low_watermark for tp, low_watermark in deleted.items()}

    def close(self) -> None:
        _wait(self.inner.close())


def _raise_for(errors: Any) -> None:
    """This client leaves the codes of some answers to its caller."""
    for code, message in errors:
        if code:
            raise Refused(code, f"{for_code(code).__name__}: {message}")


class AioKafkaClient(Client):
    def _producer(self, **options: Any) -> Producer:
        return _Producer(self.bootstrap, **options)

    def _transactional(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return _Transactional(self.bootstrap, transactional_id, timeout_ms)

    def _consumer(self, **options: Any) -> Consumer:
        return _Consumer(self.bootstrap, **options)

    def _admin(self) -> Admin:
        return _Admin(self.bootstrap)
