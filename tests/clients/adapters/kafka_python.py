"""kafka-python."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self
from uuid import UUID

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

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

_MS_MAX: Final = int(SECONDS_MAX * 1000)
_TYPES: Final[dict[int, Any]] = {0: "CreateTime", 1: "LogAppendTime"}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        code = getattr(error, "errno", None)
        raise Refused(-1 if code is None else code, error) from error


def _common(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": RECONNECT_MS_MAX,
        "retry_backoff_ms": 20,
        "bootstrap_timeout_ms": _MS_MAX,
    }


def _hurry(cluster: Any) -> None:
    """Let metadata be asked for as soon as a topic is named: `retry_backoff_ms` is not told it."""
    cluster.config["retry_backoff_ms"] = 0


class _Pending:
    def __init__(self, future: Any) -> None:
        self._future = future

    def result(self) -> Sent:
        with _translated():
            sent = self._future.get(timeout=SECONDS_MAX)
        return Sent(
            partition=sent.partition,
            offset=sent.offset if sent.offset >= 0 else None,
            timestamp_ms=sent.timestamp,
        )


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
        self.inner = KafkaProducer(
            **_common(bootstrap),
            acks=acks,
            enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec,
            linger_ms=linger_ms,
            max_request_size=request_bytes_max,
            max_block_ms=patience_ms,
            request_timeout_ms=patience_ms,
            delivery_timeout_ms=2 * patience_ms,
        )
        _hurry(self.inner._metadata)

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
        with _translated():
            future = self.inner.send(
                topic,
                value=value,
                key=key,
                headers=list(headers),
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        return _Pending(future)

    def flush(self) -> None:
        self.inner.flush(SECONDS_MAX)

    def close(self) -> None:
        self.inner.close(timeout=SECONDS_MAX)


class _Transactional(_Producer, TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.inner = KafkaProducer(
            **_common(bootstrap),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=0,
            max_block_ms=_MS_MAX,
        )
        _hurry(self.inner._metadata)
        with _translated():
            self.inner.init_transactions()

    def begin(self) -> None:
        with _translated():
            self.inner.begin_transaction()

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()
        }
        with _translated():
            self.inner.send_offsets_to_transaction(places, group)

    def commit(self) -> None:
        with _translated():
            self.inner.commit_transaction()

    def abort(self) -> None:
        with _translated():
            self.inner.abort_transaction()

    def close(self) -> None:
        self.inner.close(timeout=0)  # else it would abort first, even where it is fenced


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
        self.inner = KafkaConsumer(
            **_common(bootstrap),
            enable_auto_commit=False,
            auto_offset_reset=reset,
            isolation_level=isolation,
            fetch_max_wait_ms=wait_ms,
            fetch_min_bytes=bytes_min,
            max_partition_fetch_bytes=partition_bytes_max,
            request_timeout_ms=60_000,
        )
        _hurry(self.inner._cluster)

    def assign(self, topic: str, starts: Mapping[int, Start]) -> Self:
        consumer = self.inner
        consumer.assign([TopicPartition(topic, partition) for partition in starts])
        for partition, start in starts.items():
            tp = TopicPartition(topic, partition)
            if start == EARLIEST:
                consumer.seek_to_beginning(tp)
            elif start == LATEST:
                consumer.seek_to_end(tp)
            else:
                consumer.seek(tp, start)
        return self

    def poll(self, seconds: float) -> list[Message]:
        with _translated():
            polled = self.inner.poll(timeout_ms=int(seconds * 1000))
        return [_message(record) for records in polled.values() for record in records]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.inner.seek(TopicPartition(topic, partition), offset)

    def earliest(self, topic: str, partition: int = 0) -> int:
        tp = TopicPartition(topic, partition)
        with _translated():
            return self.inner.beginning_offsets([tp], timeout_ms=_MS_MAX)[tp]

    def latest(self, topic: str, partition: int = 0) -> int:
        tp = TopicPartition(topic, partition)
        with _translated():
            return self.inner.end_offsets([tp], timeout_ms=_MS_MAX)[tp]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        tp = TopicPartition(topic, partition)
        with _translated():
            found = self.inner.offsets_for_times({tp: timestamp_ms}, timeout_ms=_MS_MAX)[tp]
        return None if found is None else found.offset

    def close(self) -> None:
        self.inner.close(timeout_ms=_MS_MAX)


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
        self.inner = KafkaAdminClient(**_common(bootstrap), request_timeout_ms=_MS_MAX)

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        wanted = {
            "num_partitions": partitions,
            "replication_factor": replication,
            "configs": dict(config or {}),
        }
        with _translated():
            self.inner.create_topics({topic: wanted}, validate_only=validate_only)

    def delete(self, topic: str) -> None:
        with _translated():
            self.inner.delete_topics([topic])

    def grow(self, topic: str, partitions: int) -> None:
        with _translated():
            self.inner.create_partitions({topic: partitions})

    def names(self) -> list[str]:
        with _translated():
            return self.inner.list_topics()

    def describe(self, topic: str) -> TopicDescription:
        with _translated():
            (found,) = self.inner.describe_topics([topic])
        if found["error_code"]:
            raise Refused(found["error_code"], found)
        partitions = found["partitions"]
        return TopicDescription(
            name=found["name"],
            id=UUID(found["topic_id"]).hex,
            leaders={p["partition_index"]: p["leader_id"] for p in partitions},
            replicas={p["partition_index"]: p["replica_nodes"] for p in partitions},
            in_sync={p["partition_index"]: p["isr_nodes"] for p in partitions},
        )

    def describe_cluster(self) -> ClusterDescription:
        with _translated():
            found = self.inner.describe_cluster()
        return ClusterDescription(
            id=found["cluster_id"],
            controller=found["controller_id"],
            nodes=[(node["broker_id"], node["host"], node["port"]) for node in found["brokers"]],
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        with _translated():
            deleted = self.inner.delete_records(
                {TopicPartition(topic, partition): end for partition, end in before.items()}
            )
        return {tp.partition: answer["low_watermark"] for tp, answer in deleted.items()}

    def close(self) -> None:
        self.inner.close()


class KafkaPythonClient(Client):
    def _producer(self, **options: Any) -> Producer:
        return _Producer(self.bootstrap, **options)

    def _transactional(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return _Transactional(self.bootstrap, transactional_id, timeout_ms)

    def _consumer(self, **options: Any) -> Consumer:
        return _Consumer(self.bootstrap, **options)

    def _admin(self) -> Admin:
        return _Admin(self.bootstrap)
