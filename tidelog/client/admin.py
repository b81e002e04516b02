"""What an operator asks of a cluster: groups and their offsets, settings, replicas that move.

Rule 1: what concerns a group is asked of its coordinator, which is looked up for every attempt: it
        moves, and these questions are rare.
Rule 2: topics have names here. From the version on that names them by id, an offset of a topic
        that is gone could not be shown, so older versions are spoken.
Rule 3: bytes that members wrote for each other are decoded with suspicion, and left alone where
        they are not what they should be.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused, check
from tidelog.client.kafka import KafkaClient
from tidelog.client.wire import Connection
from tidelog.model import NO_EPOCH, NO_NODE, NO_OFFSET, Endpoint, NodeId, Offset, TopicPartition
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity
from tidelog.wire.subscription import CONSUMER, decode_assignment

T = TypeVar("T")

GROUP_KEY: Final = 0
DEAD: Final = "Dead"
"""What a coordinator of before version 6 calls a group that it does not have."""
NO_GENERATION: Final = -1
"""Who commits without being a member says so; it is refused while there are members."""
REASSIGNED_AT_ONCE: Final = 500
"""Partitions in one request; they are one decision."""
NAMED_MOST: Final = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""


class Resource(IntEnum):
    """What can have settings."""

    TOPIC = 2
    BROKER = 4


class Source(IntEnum):
    """Where a setting's value comes from, the strongest first."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    START = 4
    DEFAULT = 5


class Election(IntEnum):
    """Who shall lead: the first replica, or anybody where nobody does, whatever is lost."""

    PREFERRED = 0
    UNCLEAN = 1


class Operation(IntEnum):
    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group as its coordinator lists it; `state` is empty where the node is too old to tell."""

    group: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """One member of a group and what it was given."""

    member: str
    instance: str | None
    client: str
    host: str
    assignment: tuple[TopicPartition, ...] | None
    """None where the bytes are not an assignment of Kafka's consumers."""
    assignment_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Where a group goes on in one partition."""

    offset: Offset
    epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A value that a setting has, or would have if nothing stronger were set."""

    value: str | None
    """None for a secret."""
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfo:
    """One setting of a topic or a broker."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    doc: str | None
    values: tuple[ConfigValue, ...]
    """All that compete, the strongest first."""

    @property
    def is_default(self) -> bool:
        return self.source == Source.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Set a setting, or with None give it back to what lies below."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition whose replicas move: `adding` come, `removing` go once those are in sync."""

    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...]
    removing: tuple[NodeId, ...]

    @property
    def target(self) -> tuple[NodeId, ...]:
        """Who shall hold it, the preferred leader first."""
        return tuple(node for node in self.replicas if node not in self.removing)


class AdminClient(KafkaClient):
    """A cluster that can be asked and told what only operators ask and tell."""

    # Groups.

    async def list_groups(self, states: Iterable[str] = ()) -> list[ListedGroup]:
        """The groups of every coordinator, by name; of all states unless some are given."""
        wanted = list(states)

        async def ask(connection: Connection) -> Any:
            response = await connection.call(Api.LIST_GROUPS, states_filter=wanted, types_filter=[])
            check(response.error_code, "groups")
            return response

        async def attempt() -> list[Any]:
            await self._ask_metadata([], create=False)
            connections = [await self._connect(at) for at in self._cluster.brokers.values()]
            return await asyncio.gather(*(ask(connection) for connection in connections))

        groups = [
            ListedGroup(
                group=group.group_id,
                protocol_type=group.protocol_type,
                state=getattr(group, "group_state", ""),
            )
            for response in await self.retry(attempt)
            for group in response.groups
        ]
        return sorted(groups, key=lambda group: group.group)

    async def describe_group(self, group: str) -> GroupInfo:
        """State and members; Refused with GROUP_ID_NOT_FOUND if there is no such group."""

        async def ask(connection: Connection) -> GroupInfo:
            response = await connection.call(
                Api.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False
            )
            (answer,) = response.groups
            code = answer.error_code
            if code == ErrorCode.none and answer.group_state == DEAD:
                code = ErrorCode.group_id_not_found
            check(code, f"group {group!r}", _missing(code))
            return _group_info(answer)

        return await self.ask_group_coordinator(group, ask)

    async def find_group(self, group: str) -> GroupInfo | None:
        """State and members; None if there is no such group."""
        try:
            return await self.describe_group(group)
        except Refused as error:
            if error.code != ErrorCode.group_id_not_found:
                raise
            return None

    async def group_offsets(self, group: str) -> dict[TopicPartition, Committed]:
        """Every offset that the group has committed, by topic and partition."""

        async def ask(connection: Connection) -> dict[TopicPartition, Committed]:
            response = await connection.request(
                _named(
                    connection,
                    Api.OFFSET_FETCH,
                    groups=[{"group_id": group, "topics": None, "member_id": None}],
                    group_id=group,  # until version 7 there is one group, in the request itself
                    topics=None,
                    require_stable=False,
                )
            )
            (answer,) = getattr(response, "groups", (response,))
            check(getattr(answer, "error_code", 0), f"group {group!r}")
            found = {}
            for topic in answer.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    check(one.error_code, str(place))
                    if one.committed_offset != NO_OFFSET:
                        found[place] = Committed(
                            offset=one.committed_offset,
                            epoch=getattr(one, "committed_leader_epoch", NO_EPOCH),
                            metadata=one.metadata or "",
                        )
            return dict(sorted(found.items()))

        return await self.ask_group_coordinator(group, ask)

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, Offset],
        *,
        metadata: Mapping[TopicPartition, str] | None = None,
        member_id: str = "",
        generation: int = NO_GENERATION,
    ) -> None:
        """Commit as a member, or for a group without members, which it creates if need be."""
        notes = metadata or {}

        async def ask(connection: Connection) -> None:
            response = await connection.request(
                _named(
                    connection,
                    Api.OFFSET_COMMIT,
                    group_id=group,
                    generation_id_or_member_epoch=generation,
                    member_id=member_id,
                    group_instance_id=None,
                    retention_time=-1,
                    topics=[
                        {
                            "name": topic,
                            "partitions": [
                                {
                                    "partition_index": place.partition,
                                    "committed_offset": offsets[place],
                                    "committed_leader_epoch": NO_EPOCH,
                                    "committed_metadata": notes.get(place, ""),
                                }
                                for place in places
                            ],
                        }
                        for topic, places in _by_topic(offsets).items()
                    ],
                )
            )
            _check_places(response.topics)

        await self.ask_group_coordinator(group, ask)

    async def delete_offsets(self, group: str, places: Iterable[TopicPartition]) -> None:
        """Forget offsets of topics that no member consumes."""
        wanted = _by_topic(places)

        async def ask(connection: Connection) -> None:
            response = await connection.call(
                Api.OFFSET_DELETE,
                group_id=group,
                topics=[
                    {"name": topic, "partitions": [{"partition_index": p.partition} for p in some]}
                    for topic, some in wanted.items()
                ],
            )
            check(response.error_code, f"group {group!r}", _missing(response.error_code))
            _check_places(response.topics)

        await self.ask_group_coordinator(group, ask)

    async def delete_group(self, group: str) -> None:
        """Forget a group without members, and its offsets."""

        async def ask(connection: Connection) -> None:
            response = await connection.call(Api.DELETE_GROUPS, groups_names=[group])
            (answer,) = response.results
            check(answer.error_code, f"group {group!r}", _missing(answer.error_code))

        await self.ask_group_coordinator(group, ask)

    async def ask_group_coordinator(self, group: str, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask whoever coordinates the group now; again, where that may help."""

        async def attempt() -> T:
            connection = await self.any_connection()
            response = await connection.call(
                Api.FIND_COORDINATOR, key=group, coordinator_keys=[group], key_type=GROUP_KEY
            )
            (found,) = getattr(response, "coordinators", (response,))
            message = getattr(found, "error_message", None)
            check(found.error_code, f"group {group!r}", message)
            assert found.node_id != NO_NODE, "a coordinator without an error is somewhere"
            return await ask(await self._connect(Endpoint(host=found.host, port=found.port)))

        return await self.retry(attempt)

    # Replicas that move, and brokers that go.

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[NodeId] | None]
    ) -> dict[TopicPartition, Refused]:
        """Let these nodes hold each partition, or with None cancel its move; what was refused.

        Returns once the moves have begun.
        """
        names, refused = sorted(targets), {}
        for first in range(0, len(names), REASSIGNED_AT_ONCE):
            some = _by_topic(names[first : first + REASSIGNED_AT_ONCE])
            response = await self.ask_controller(
                Api.ALTER_PARTITION_REASSIGNMENTS,
                lambda response: [(response.error_code, "replicas cannot move", response.error_message)],
                allow_replication_factor_change=True,
                topics=[
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": p.partition, "replicas": _listed(targets[p])} for p in places
                        ],
                    }
                    for topic, places in some.items()
                ],
            )
            for topic in response.responses:
                for one in topic.partitions:
                    if one.error_code != ErrorCode.none:
                        place = TopicPartition(topic.name, one.partition_index)
                        refused[place] = Refused(one.error_code, str(place), one.error_message)
        return refused

    async def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Every partition whose replicas move."""
        response = await self.ask_controller(
            Api.LIST_PARTITION_REASSIGNMENTS,
            lambda response: [(response.error_code, "moving replicas", response.error_message)],
            topics=None,
        )
        return {
            TopicPartition(topic.name, one.partition_index): Reassignment(
                replicas=tuple(one.replicas),
                adding=tuple(one.adding_replicas),
                removing=tuple(one.removing_replicas),
            )
            for topic in response.topics
            for one in topic.partitions
        }

    async def unregister_broker(self, node: NodeId) -> None:
        """Forget a broker that is gone and holds nothing; it may come back as a new one."""
        await self.ask_controller(
            Api.UNREGISTER_BROKER,
            lambda response: [(response.error_code, f"broker {node}", response.error_message)],
            broker_id=node,
        )

    # Who leads.

    async def elect_leaders(
        self, kind: Election, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Refused | None]:
        """Elect leaders; what became of each partition. Of all that need it if none are named."""
        wanted = None if places is None else _by_topic(places)
        response = await self.ask_controller(
            Api.ELECT_LEADERS,
            lambda response: [(getattr(response, "error_code", 0), "leaders", None)],
            election_type=kind,
            topic_partitions=None
            if wanted is None
            else [
                {"topic": topic, "partitions": [place.partition for place in some]}
                for topic, some in wanted.items()
            ],
        )
        fates: dict[TopicPartition, Refused | None] = {}
        for topic in response.replica_election_results:
            for one in topic.partition_result:
                place = TopicPartition(topic.topic, one.partition_id)
                is_done = one.error_code == ErrorCode.none
                fates[place] = None if is_done else Refused(one.error_code, str(place), one.error_message)
        return dict(sorted(fates.items()))

    # Settings.

    async def describe_configs(self, resource: Resource, name: str) -> list[ConfigInfo]:
        """Every setting of a topic or a broker, by name."""

        async def attempt() -> list[ConfigInfo]:
            connection = await self._node_of(resource, name)
            response = await connection.call(
                Api.DESCRIBE_CONFIGS,
                resources=[{"resource_type": resource, "resource_name": name, "configuration_keys": None}],
                include_synonyms=True,
                include_documentation=True,
            )
            (result,) = response.results
            check(result.error_code, _title(resource, name), result.error_message)
            return sorted(map(_config_info, result.configs), key=lambda config: config.name)

        return await self.retry(attempt)

    async def alter_configs(
        self, resource: Resource, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Change some settings of a topic or a broker, all or none; others stay."""

        async def attempt() -> None:
            connection = await self._node_of(resource, name)
            response = await connection.call(
                Api.INCREMENTAL_ALTER_CONFIGS,
                resources=[
                    {
                        "resource_type": resource,
                        "resource_name": name,
                        "configs": [
                            {
                                "name": change.name,
                                "config_operation": (
                                    Operation.DELETE if change.value is None else Operation.SET
                                ),
                                "value": change.value,
                            }
                            for change in changes
                        ],
                    }
                ],
                validate_only=validate_only,
            )
            (answer,) = response.responses
            check(answer.error_code, _title(resource, name), answer.error_message)

        await self.retry(attempt)

    async def _node_of(self, resource: Resource, name: str) -> Connection:
        """A broker's settings are its own; one that is not known is refused by any other."""
        await self._ask_metadata([], create=False)
        endpoint = None
        if resource is Resource.BROKER and name.isdecimal():
            endpoint = self._cluster.brokers.get(int(name))
        return await (self._connect(endpoint) if endpoint else self.any_connection())


def _named(connection: Connection, api: Api, **fields: Any) -> Any:
    return request_entity(api, min(connection.version(api), NAMED_MOST), fields)


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for place in sorted(places):
        found.setdefault(place.topic, []).append(place)
    return found


def _listed(target: Sequence[NodeId] | None) -> list[NodeId] | None:
    return None if target is None else list(target)


def _check_places(topics: Any) -> None:
    for topic in topics:
        for one in topic.partitions:
            check(one.error_code, f"{topic.name}-{one.partition_index}")


def _missing(code: int) -> str | None:
    if code != ErrorCode.group_id_not_found:
        return None
    return "it does not exist; `tidelog groups list` shows those that do"


def _title(resource: Resource, name: str) -> str:
    return f"topic {name!r}" if resource is Resource.TOPIC else f"broker {name}"


def _group_info(answer: Any) -> GroupInfo:
    return GroupInfo(
        group=answer.group_id,
        state=answer.group_state,
        protocol_type=answer.protocol_type,
        protocol=answer.protocol_data,
        members=tuple(
            MemberInfo(
                member=member.member_id,
                instance=getattr(member, "group_instance_id", None),
                client=member.client_id,
                host=member.client_host,
                assignment=(
                    decode_assignment(bytes(member.member_assignment))
                    if answer.protocol_type == CONSUMER
                    else None
                ),
                assignment_bytes=len(member.member_assignment),
            )
            for member in sorted(answer.members, key=lambda member: member.member_id)
        ),
    )


def _config_info(config: Any) -> ConfigInfo:
    return ConfigInfo(
        name=config.name,
        value=config.value,
        source=config.config_source,
        read_only=config.read_only,
        sensitive=config.is_sensitive,
        doc=getattr(config, "documentation", None),
        values=tuple(ConfigValue(value=synonym.value, source=synonym.source) for synonym in config.synonyms),
    )
