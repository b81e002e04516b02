"""One small face over three Kafka clients, so that a promise is written once and kept to each.

Rule 1: an adapter translates names, units and errors. It never retries, hides or mends anything.
Rule 2: every call ends: with an answer, with Refused, or as a failed test after SECONDS_MAX.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

SECONDS_MAX: Final = 20.0
"""Longer than any client needs on a slow machine; only a failing test waits for it."""
RECONNECT_MS_MAX: Final = 200
FETCH_WAIT_MS: Final = 50
"""Shorter than the clients' 500 ms: other requests of a connection wait behind a parked fetch."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Start: TypeAlias = int | Literal["earliest", "latest"]
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class Refused(Exception):
    """A client reported an error: Kafka's code, or the client's own number below zero."""

    def __init__(self, code: int, error: object) -> None:
        super().__init__(f"{code}: {error}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A record as a consumer got it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: Literal["CreateTime", "LogAppendTime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a producer learns of a record that was taken; acks=0 teaches it no offset."""

    partition: int
    offset: int | None
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    name: str
    id: str | None
    """Hexadecimal; None from a client that does not tell."""
    leaders: dict[int, int]
    replicas: dict[int, list[int]]
    in_sync: dict[int, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    id: str
    controller: int
    nodes: list[tuple[int, str, int]]
    """Number, host and port."""


class Pending(Protocol):
    """A record on its way."""

    def result(self) -> Sent: ...


class Producer(ABC):
    inner: Any
    """The library's own, for what only it can do."""

    @abstractmethod
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Pending:
        """Hand a record to the client; await `result` for its fate."""

    @abstractmethod
    def flush(self) -> None:
        """Send what is waiting for company, and wait for its answers."""

    @abstractmethod
    def close(self) -> None: ...

    def send_all(self, topic: str, values: Iterable[bytes], **options: Any) -> list[Sent]:
        """Send `values` as one burst, and wait for all of them."""
        pending = [self.send(topic, value, **options) for value in values]
        self.flush()
        return [each.result() for each in pending]


class TransactionalProducer(Producer):
    """A producer with a transactional id: it is the only one of that id from its making on."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Let the group's offsets move with this transaction, or not at all."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...


class Consumer(ABC):
    inner: Any

    @abstractmethod
    def assign(self, topic: str, starts: Mapping[int, Start]) -> Self:
        """Read these partitions, from offsets or ends, and none else."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Message]:
        """What there is, once there is something, or nothing after `seconds`."""

    @abstractmethod
    def seek(self, topic: str, partition: int, offset: int) -> None: ...

    @abstractmethod
    def earliest(self, topic: str, partition: int = 0) -> int: ...

    @abstractmethod
    def latest(self, topic: str, partition: int = 0) -> int: ...

    @abstractmethod
    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset of that time or later; None if there is none."""

    @abstractmethod
    def close(self) -> None: ...

    def take(self, count: int, seconds: float = SECONDS_MAX) -> list[Message]:
        """The next `count` messages; a failed test if they do not come."""
        taken: list[Message] = []
        deadline = time.monotonic() + seconds
        while len(taken) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(taken)} of {count} messages came in {seconds} s"
            taken += self.poll(left)
        assert len(taken) == count, f"{len(taken)} messages came, not {count}"
        return taken

    def read_all(self, topic: str, partition: int = 0) -> list[Message]:
        """Everything in the partition now."""
        count = self.latest(topic, partition) - self.earliest(topic, partition)
        return self.assign(topic, {partition: EARLIEST}).take(count)


class Admin(ABC):
    inner: Any

    @abstractmethod
    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None: ...

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions to `partitions`."""

    @abstractmethod
    def names(self) -> list[str]: ...

    @abstractmethod
    def describe(self, topic: str) -> TopicDescription: ...

    @abstractmethod
    def describe_cluster(self) -> ClusterDescription: ...

    @abstractmethod
    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete what lies before an offset (-1: everything); the new starts."""

    @abstractmethod
    def close(self) -> None: ...


class Client(ABC):
    """One client library, pointed at one node; closes what was opened through it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def producer(
        self,
        *,
        acks: int | Literal["all"] = "all",
        idempotent: bool = False,
        codec: str = "none",
        linger_ms: int = 0,
        request_bytes_max: int = 1_000_000,
        patience_ms: int = 15_000,
    ) -> Producer:
        """A producer; `patience_ms` is how long it tries before it reports a record as lost."""
        producer = self._producer(
            acks=acks,
            idempotent=idempotent,
            codec=codec,
            linger_ms=linger_ms,
            request_bytes_max=request_bytes_max,
            patience_ms=patience_ms,
        )
        self._opened.callback(producer.close)
        return producer

    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        """A producer that has fenced all others of its id; `timeout_ms` is its transactions'."""
        producer = self._transactional(transactional_id, timeout_ms)
        self._opened.callback(producer.close)
        return producer

    def consumer(
        self,
        *,
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
        wait_ms: int = FETCH_WAIT_MS,
        bytes_min: int = 1,
        partition_bytes_max: int = 1024 * 1024,
    ) -> Consumer:
        """A consumer without a group; `reset` is earliest, latest or none."""
        consumer = self._consumer(
            reset=reset,
            isolation=isolation,
            wait_ms=wait_ms,
            bytes_min=bytes_min,
            partition_bytes_max=partition_bytes_max,
        )
        self._opened.callback(consumer.close)
        return consumer

    def admin(self) -> Admin:
        admin = self._admin()
        self._opened.callback(admin.close)
        return admin

    @abstractmethod
    def _producer(self, **options: Any) -> Producer: ...

    @abstractmethod
    def _transactional(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer: ...

    @abstractmethod
    def _consumer(self, **options: Any) -> Consumer: ...

    @abstractmethod
    def _admin(self) -> Admin: ...
