"""The brokers of one cluster: who leads what, a connection to each, and patience with both.

Rule 1: a request goes to the partition's leader as metadata knows it; on a retriable error, or a
        lost connection, metadata is asked again and the request repeated, for a bounded time.
        Where a node does not lead what it is said to, or cannot get a write committed, another
        node is asked: who told so may be cut off, and tells the same for as long as that lasts.
Rule 2: a cluster that was never reached fails at once: a wrong address does not heal by waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.client.security import security_of
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.errors import BrokerError, ConfigError, TidelogError
from tidelog.host import Network
from tidelog.model import NO_EPOCH, NO_NODE, Endpoint, NodeId
from tidelog.wire.apis import Api

T = TypeVar("T")

KAFKA_PORT: Final = 9092
BACKOFF_SECONDS: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0
UNKNOWN_TOPIC_SECONDS_MAX: Final = 0.5
"""How long an unknown topic may be one whose creation has not reached every node yet."""
UNKNOWN_ID_SECONDS_MAX: Final = 5.0
"""The same for an id: who has it has heard of the topic, so it is worth waiting for."""
ANSWER_SECONDS: Final = 10.0
"""Time for an answer to travel, on top of the time that the request itself may take."""
_NO_LEADERS_ANSWERS: Final = (ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out)
"""What a node answers that was named as a leader and is none, or none any more."""

ADVICE: Final = {cls.code: (cls.__doc__ or "").strip() for cls in BrokerError.__subclasses__()}


class Refused(TidelogError):
    """A broker answered with an error; `code` is Kafka's, the message says what to do."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        known = ErrorCode(code)
        advice = message or ADVICE.get(code) or (known.name.replace("_", " ").upper())
        super().__init__(f"{what}: {advice}" if what else advice)
        self.code = code
        self.retriable = known.retriable


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """Where one partition lives."""

    partition: int
    leader: NodeId
    epoch: int
    replicas: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic and its partitions, in order."""

    name: str
    id: UUID | None
    internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The brokers that clients may talk to."""

    cluster_id: str | None = None
    controller: NodeId = NO_NODE
    brokers: Mapping[NodeId, Endpoint] = field(default_factory=dict)


def parse_bootstrap(text: str) -> list[Endpoint]:
    """The addresses in `host:port,host:port`; ConfigError with the form that was expected."""
    try:
        endpoints = [
            Endpoint.parse(part, default_port=KAFKA_PORT) for part in text.split(",") if part.strip()
        ]
    except ValueError as error:
        raise ConfigError(f"bootstrap: {error}") from None
    if not endpoints:
        raise ConfigError("bootstrap is empty; it must be HOST:PORT, for example 127.0.0.1:9092")
    return endpoints


class Cluster:
    """Connections to the brokers of one cluster, made when needed and remade when lost.

    Owned by one event loop; any number of its tasks may call.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        network: Network | None = None,
        client_id: str = "tidelog",
        timeout_seconds: float = 30.0,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self.security = security_of(bootstrap)
        self._network = network
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._connections: dict[Endpoint, Connection] = {}
        self._connecting: dict[Endpoint, asyncio.Lock] = {}
        self._cluster = ClusterInfo()
        self._topics: dict[str, TopicInfo] = {}
        self._stale = True
        self._reached = False
        self._told_by: Endpoint | None = None
        """Whose metadata is used."""
        self._distrusted: Endpoint | None = None
        """Who named a leader that was none: others are asked first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop every connection at once."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def settle(self) -> None:
        """Return once every broker has read what was sent to it (see `Connection.settle`)."""
        await asyncio.gather(*(connection.settle() for connection in self._connections.values()))

    async def cluster(self) -> ClusterInfo:
        """The brokers, asked anew."""
        await self.retry(lambda: self._ask_metadata([], create=False))
        return self._cluster

    async def topics(self) -> list[TopicInfo]:
        """Every topic, asked anew, by name."""
        answered = await self.retry(lambda: self._ask_metadata(None, create=False))
        return sorted(answered, key=lambda topic: topic.name)

    async def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """One topic, from the cache if it was seen before. `create` allows auto-creation."""
        if (known := self._topics.get(name)) is not None:
            return known
        (topic,) = await self.retry(lambda: self._ask_metadata([name], create=create))
        return topic

    def forget(self, topic: str) -> None:
        """Ask for this topic's metadata when it is needed next."""
        self._topics.pop(topic, None)

    async def leaders(self, name: str) -> dict[int, Endpoint]:
        """Where each partition's leader listens; Refused while one has none."""

        async def attempt() -> dict[int, Endpoint]:
            topic = await self.topic(name)
            return {partition.partition: self._endpoint(name, partition) for partition in topic.partitions}

        return await self.retry(attempt)

    async def _ask_metadata(self, names: Sequence[str] | None, *, create: bool) -> list[TopicInfo]:
        connection = await self.any_connection()
        self._told_by = connection.endpoint
        response = await connection.call(
            Api.METADATA,
            topics=None if names is None else [{"topic_id": None, "name": name} for name in names],
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self._cluster = ClusterInfo(
            cluster_id=getattr(response, "cluster_id", None),
            controller=getattr(response, "controller_id", NO_NODE),
            brokers={
                broker.node_id: Endpoint(host=broker.host, port=broker.port) for broker in response.brokers
            },
        )
        self._stale = False
        topics = []
        for topic in response.topics:
            if names is not None:
                check(topic.error_code, f"topic {topic.name!r}", _missing(topic))
            topics.append(_topic_info(topic))
        self._topics.update((topic.name, topic) for topic in topics if topic.partitions)
        return topics

    async def ask_controller(
        self, api: Api, results: Callable[[Any], Iterable[tuple[int, str, str | None]]], **fields: Any
    ) -> Any:
        """Send an admin request to the controller, and check each of its results."""

        async def attempt() -> Any:
            if self._stale:
                await self._ask_metadata([], create=False)
            endpoint = self._cluster.brokers.get(self._cluster.controller)
            connection = await (self._connect(endpoint) if endpoint else self.any_connection())
            response = await connection.call(
                api,
                timeout=int(self._timeout_seconds * 1000),
                timeout_seconds=self._timeout_seconds + ANSWER_SECONDS,
                **fields,
            )
            for code, what, message in results(response):
                check(code, what, message)
            return response

        return await self.retry(attempt)

    async def ask_leaders(
        self,
        api: Api,
        topic: str,
        partitions: Iterable[int],
        ask: Callable[[Connection, list[int]], Awaitable[Any]],
    ) -> list[Any]:
        """Ask each leader for its partitions, at once; check every partition's error."""

        async def attempt() -> list[Any]:
            groups: dict[Connection, list[int]] = {}
            for partition in partitions:
                groups.setdefault(await self.leader(topic, partition), []).append(partition)
            answers = await asyncio.gather(*(ask(connection, group) for connection, group in groups.items()))
            for answer in answers:
                for answered in answer.responses if api is Api.FETCH else answer.topics:
                    for one in answered.partitions:
                        check(one.error_code, f"{topic}-{one.partition_index}")
            return answers

        return await self.retry(attempt)

    async def leader(self, topic: str, partition: int) -> Connection:
        """A connection to the partition's leader; Refused if it has none. Call it in `retry`."""
        info = self._topics.get(topic)
        if info is None:
            (info,) = await self._ask_metadata([topic], create=False)
        for known in info.partitions:
            if known.partition == partition:
                break
        else:
            raise Refused(
                ErrorCode.unknown_topic_or_partition,
                f"{topic}-{partition}",
                f"{topic!r} has partitions 0 to {len(info.partitions) - 1}",
            )
        return await self._connect(self._endpoint(topic, known))

    async def broker(self, node: NodeId) -> Connection:
        """A connection to one broker; Refused if the cluster does not list it now."""
        endpoint = self._cluster.brokers.get(node)
        if endpoint is None:
            raise Refused(ErrorCode.broker_not_available, f"broker {node}", "it is not there now")
        return await self._connect(endpoint)

    def _endpoint(self, topic: str, partition: PartitionInfo) -> Endpoint:
        endpoint = self._cluster.brokers.get(partition.leader)
        if endpoint is None:
            what = f"{topic}-{partition.partition}"
            raise Refused(ErrorCode.leader_not_available, what, "it has no leader now")
        return endpoint

    async def any_connection(self) -> Connection:
        """A connection to whichever broker answers first in the order they are known.

        One that is open already is preferred, and one that is not distrusted before all.
        """
        for connection in self._connections.values():
            if connection.is_open and connection.endpoint != self._distrusted:
                return connection
        failure: ConnectionFailed | None = None
        known = dict.fromkeys([*self._cluster.brokers.values(), *self._bootstrap])
        for endpoint in sorted(known, key=lambda one: one == self._distrusted):
            try:
                return await self._connect(endpoint)
            except ConnectionFailed as error:
                failure = error
        assert failure is not None, "there is at least one bootstrap address"
        raise failure

    async def _connect(self, endpoint: Endpoint) -> Connection:
        async with self._connecting.setdefault(endpoint, asyncio.Lock()):
            connection = self._connections.get(endpoint)
            if connection is None or not connection.is_open:
                if connection is not None:
                    connection.retire()
                connection = await Connection.open(
                    endpoint,
                    network=self._network,
                    client_id=self._client_id,
                    timeout_seconds=min(self._timeout_seconds, ANSWER_SECONDS),
                    security=self.security,
                )
                self._connections[endpoint] = connection
                self._reached = True
            return connection

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` while its failure may heal, with growing pauses."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        pause = BACKOFF_SECONDS
        while True:
            try:
                return await attempt()
            except (ConnectionFailed, Refused) as error:
                self._topics.clear()
                self._stale = True
                if isinstance(error, Refused) and error.code in _NO_LEADERS_ANSWERS:
                    self._distrusted = self._told_by
                if loop.time() + pause > started + self._patience_seconds(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)

    def _patience_seconds(self, error: ConnectionFailed | Refused) -> float:
        if isinstance(error, ConnectionFailed):
            return self._timeout_seconds if self._reached else 0.0
        if error.code == ErrorCode.unknown_topic_or_partition:
            return min(self._timeout_seconds, UNKNOWN_TOPIC_SECONDS_MAX)
        if error.code == ErrorCode.unknown_topic_id:
            return min(self._timeout_seconds, UNKNOWN_ID_SECONDS_MAX)
        return self._timeout_seconds if error.retriable else 0.0


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise Refused unless `code` means success."""
    if code != ErrorCode.none:
        raise Refused(code, what, message)


def _missing(topic: Any) -> str | None:
    if topic.error_code != ErrorCode.unknown_topic_or_partition:
        return None
    return f"it does not exist; create it with `tidelog topics create {topic.name}`"


def _topic_info(topic: Any) -> TopicInfo:
    partitions = [
        PartitionInfo(
            partition=partition.partition_index,
            leader=partition.leader_id,
            epoch=getattr(partition, "leader_epoch", NO_EPOCH),
            replicas=tuple(partition.replica_nodes),
            in_sync=tuple(partition.isr_nodes),
        )
        for partition in topic.partitions
    ]
    return TopicInfo(
        name=topic.name,
        id=getattr(topic, "topic_id", None),
        internal=getattr(topic, "is_internal", False),
        partitions=tuple(sorted(partitions, key=lambda partition: partition.partition)),
    )
