"""What an operator asks about the cluster itself: its brokers, and the quorum that decides.

Rule 1: any node tells of the brokers; only the quorum's leader knows how far the others are, and
        whoever is asked says who that is.
Rule 2: a fenced broker is one that clients cannot use, and the one that an operator looks for.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient, Resource
from tidelog.client.cluster import Refused, check
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.model import METADATA_TOPIC, NO_NODE, NO_TIMESTAMP, Endpoint, Epoch, NodeId, Offset
from tidelog.wire.apis import Api

_CHANGE_MS = 10_000
_NO_LEADER = "the quorum has no leader; more than half of its voters must be running"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A broker as the cluster knows it."""

    node: NodeId
    kafka: Endpoint
    rack: str | None
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """One copy of the metadata log, as the quorum's leader sees it."""

    node: NodeId
    end: Offset
    lag: int
    """How many records it lacks that the leader has."""
    fetched_ms: int | None
    """When it last asked for more, by the leader's clock; None for the leader itself."""
    caught_up_ms: int | None
    peer: Endpoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumInfo:
    """The metadata quorum, as its leader sees it."""

    leader: NodeId
    epoch: Epoch
    high_watermark: Offset
    voters: tuple[ReplicaInfo, ...]
    observers: tuple[ReplicaInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The cluster as one of its nodes sees it: who is there, and who decides."""

    leader: NodeId | None
    epoch: Epoch
    brokers: dict[NodeId, BrokerInfo]


class MembersClient(AdminClient):
    """A cluster that can be asked about itself."""

    async def brokers(self) -> dict[NodeId, BrokerInfo]:
        """Every broker that the cluster knows, fenced ones too, by id."""

        async def attempt() -> dict[NodeId, BrokerInfo]:
            return await _brokers(await self.any_connection())

        return await self.retry(attempt)

    async def view(self) -> View:
        """What the first node that answers sees, right or not; it need not be the leader."""

        async def attempt() -> View:
            connection = await self.any_connection()
            brokers, (quorum, _) = await asyncio.gather(_brokers(connection), _quorum(connection))
            leader = quorum.leader_id
            return View(
                leader=None if leader == NO_NODE else leader, epoch=quorum.leader_epoch, brokers=brokers
            )

        return await self.retry(attempt)

    async def quorum(self) -> QuorumInfo:
        """The quorum as its leader sees it, wherever that is."""

        async def attempt() -> QuorumInfo:
            connection = await self.any_connection()
            found, response = await _quorum(connection)
            if found.error_code == ErrorCode.not_leader_or_follower:
                found, response = await self._ask_leader(connection, found.leader_id)
            check(found.error_code, "the quorum", found.error_message)
            return _quorum_info(found, response)

        return await self.retry(attempt)

    async def add_voter(self, node: NodeId) -> None:
        """Let a broker that follows the quorum vote in it."""
        await self._change_voters(Api.ADD_RAFT_VOTER, node, timeout=_CHANGE_MS, listeners=[])

    async def remove_voter(self, node: NodeId) -> None:
        """Let a voter be one no longer; it goes on as a broker."""
        await self._change_voters(Api.REMOVE_RAFT_VOTER, node)

    async def _change_voters(self, api: Api, node: NodeId, **fields: Any) -> None:
        async def attempt() -> None:
            connection = await self.any_connection()
            response = await connection.call(
                api, cluster_id=None, voter_id=node, voter_directory_id=None, **fields
            )
            check(response.error_code, f"voter {node}", response.error_message)

        await self.retry(attempt)

    async def _ask_leader(self, connection: Connection, leader: NodeId) -> tuple[Any, Any]:
        at = (await _brokers(connection)).get(leader)
        if at is None:
            raise Refused(ErrorCode.leader_not_available, "the quorum", _NO_LEADER)
        return await _quorum(await self._connect(at.kafka))

    async def http_endpoint(self, broker: BrokerInfo) -> Endpoint | None:
        """Where a broker speaks HTTP; None if it does not, or does not answer."""
        try:
            configs = await self.describe_configs(Resource.BROKER, str(broker.node))
        except (Refused, ConnectionFailed):
            return None
        address = next((one.value for one in configs if one.name == "http"), None)
        if not address:
            return None
        at = Endpoint.parse(address)
        # Listening everywhere, it is also where its Kafka clients find it.
        return replace(at, host=broker.kafka.host) if at.host in ("0.0.0.0", "::") else at


async def _brokers(connection: Connection) -> dict[NodeId, BrokerInfo]:
    response = await connection.call(
        Api.DESCRIBE_CLUSTER,
        endpoint_type=1,
        include_fenced_brokers=True,
        include_cluster_authorized_operations=False,
    )
    check(response.error_code, "the cluster", response.error_message)
    return {
        found.broker_id: BrokerInfo(
            node=found.broker_id,
            kafka=Endpoint(host=found.host, port=found.port),
            rack=found.rack,
            fenced=getattr(found, "is_fenced", False),
        )
        for found in sorted(response.brokers, key=lambda found: found.broker_id)
    }


async def _quorum(connection: Connection) -> tuple[Any, Any]:
    """The metadata partition in the answer, and the answer."""
    response = await connection.call(
        Api.DESCRIBE_QUORUM, topics=[{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    )
    check(response.error_code, "the quorum", getattr(response, "error_message", None))
    return response.topics[0].partitions[0], response


def _quorum_info(found: Any, response: Any) -> QuorumInfo:
    peers = {
        node.node_id: Endpoint(host=node.listeners[0].host, port=node.listeners[0].port)
        for node in getattr(response, "nodes", ())
        if node.listeners
    }
    copies = [*found.current_voters, *found.observers]
    ends = {copy.replica_id: copy.log_end_offset for copy in copies}
    end = ends.get(found.leader_id, max(ends.values(), default=0))

    def described(copy: Any) -> ReplicaInfo:
        is_leader = copy.replica_id == found.leader_id
        fetched = getattr(copy, "last_fetch_timestamp", NO_TIMESTAMP)
        caught_up = getattr(copy, "last_caught_up_timestamp", NO_TIMESTAMP)
        return ReplicaInfo(
            node=copy.replica_id,
            end=copy.log_end_offset,
            lag=max(end - copy.log_end_offset, 0),
            fetched_ms=None if is_leader or fetched == NO_TIMESTAMP else fetched,
            caught_up_ms=None if caught_up == NO_TIMESTAMP else caught_up,
            peer=peers.get(copy.replica_id),
        )

    return QuorumInfo(
        leader=found.leader_id,
        epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        voters=tuple(map(described, found.current_voters)),
        observers=tuple(map(described, found.observers)),
    )
