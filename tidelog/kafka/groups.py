"""The APIs of consumer groups: what clients say, in the words of `groups/`, and back.

Rule: nothing here decides; a handler turns a request into an event and a result into an answer.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

from tidelog.broker.broker import Broker
from tidelog.broker.topics import partition_exists
from tidelog.coordinators.groups import GroupCoordinator
from tidelog.coordinators.transactions import TransactionCoordinator
from tidelog.errors import (
    BrokerError,
    GroupIdNotFound,
    InvalidRequest,
    MemberIdRequired,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.groups.events import (
    Commit,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    Left,
    OffsetsDone,
    OffsetToCommit,
    Sync,
    Synced,
)
from tidelog.kafka.context import Request
from tidelog.kafka.group_offsets import fetched, key_of, names_of, of_topic, refused_fetch, topic_named
from tidelog.kafka.permissions import NO_OPERATIONS
from tidelog.model import NO_EPOCH, NO_NODE, NodeId, TopicPartition
from tidelog.security.permissions import Kind
from tidelog.txn.placement import coordinator_key

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
CLASSIC: Final = "classic"
DEAD: Final = "Dead"
_AT_ONCE: Final = 100
_KINDS: Final = {GROUP_KEY: Kind.GROUP, TRANSACTION_KEY: Kind.TRANSACTIONAL_ID}


class GroupApis:
    """The handlers, bound to this node's coordinator."""

    def __init__(self, coordinator: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._transactions = transactions

    async def find_coordinator(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        """Where a group is coordinated: at the leader of the partition that keeps it."""
        many = context.version >= 4
        keys = request.coordinator_keys if many else (request.key,)
        kind = getattr(request, "key_type", GROUP_KEY)
        await broker.leader_doubts.settled(
            lambda node: any(self._coordinates(node, kind, key) for key in keys)
        )
        answers = []
        for key in keys:
            answer: dict[str, Any] = {"key": key, "error_message": None}
            try:
                keeper, name = self._keeper(kind, key)
                context.require(_KINDS[kind], key)
                await keeper.ready()
                found = keeper.leader_of(name)
                at = found.at(context.client.listener)
                answer |= {"node_id": found.node, "host": at.host, "port": at.port}
            except BrokerError as error:
                answer |= {
                    "error_code": error.code,
                    "error_message": str(error),
                    "node_id": NO_NODE,
                    "host": "",
                    "port": -1,
                }
            answers.append(answer)
        return {"coordinators": answers} if many else answers[0]

    def _keeper(self, kind: int, key: str) -> tuple[GroupCoordinator | TransactionCoordinator, str]:
        """Who keeps what is coordinated, and by what name."""
        if kind == GROUP_KEY:
            return self._coordinator, key
        if kind == TRANSACTION_KEY:
            return self._transactions, coordinator_key(key)
        raise InvalidRequest("only groups and transactions have coordinators here")

    def _coordinates(self, node: NodeId, kind: int, key: str) -> bool:
        """Whether a node is the coordinator, as far as this one knows."""
        try:
            keeper, name = self._keeper(kind, key)
            return keeper.leader_of(name).node == node
        except BrokerError:
            return False

    async def join_group(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        version = context.version
        rebalance = getattr(request, "rebalance_timeout", None)
        event = partial(
            Join,
            member_id=request.member_id,
            unique=str(broker.host.new_id()),
            instance_id=getattr(request, "group_instance_id", None),
            client_id=context.client_id or "",
            client_host="/" + context.client.address.rpartition(":")[0],
            session_timeout_ms=_milliseconds(request.session_timeout),
            rebalance_timeout_ms=-1 if rebalance is None else _milliseconds(rebalance),
            protocol_type=request.protocol_type,
            protocols=tuple((p.name, p.metadata) for p in request.protocols),
            wants_id_first=version >= 4,
            can_skip_assignment=version >= 9,
        )
        try:
            context.require(Kind.GROUP, request.group_id)
            joined = await self._coordinator.ask(
                request.group_id,
                lambda shard, reply, at: shard.join(request.group_id, event(reply=reply), at),
            )
        except BrokerError as error:
            told = error.member_id if isinstance(error, MemberIdRequired) else request.member_id
            return {
                "error_code": error.code,
                "generation_id": -1,
                "leader": "",
                "protocol_name": None if version >= 7 else "",
                "protocol_type": None,
                "member_id": told,
                "members": (),
            }
        joined = cast(Joined, joined)
        return {
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": joined.protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "metadata": member.metadata,
                }
                for member in joined.members
            ],
        }

    async def sync_group(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        event = partial(
            Sync,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id,
            protocol_type=getattr(request, "protocol_type", None),
            protocol=getattr(request, "protocol_name", None),
            assignments={a.member_id: a.assignment for a in request.assignments},
        )
        try:
            context.require(Kind.GROUP, request.group_id)
            synced = await self._coordinator.ask(
                request.group_id,
                lambda shard, reply, at: shard.sync(request.group_id, event(reply=reply), at),
            )
        except BrokerError as error:
            return {"error_code": error.code, "assignment": b""}
        synced = cast(Synced, synced)
        return {
            "protocol_type": synced.protocol_type,
            "protocol_name": synced.protocol,
            "assignment": synced.assignment,
        }

    async def heartbeat(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        context.require(Kind.GROUP, request.group_id)
        event = partial(
            Heartbeat,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id,
        )
        await self._coordinator.ask(
            request.group_id,
            lambda shard, reply, at: shard.heartbeat(request.group_id, event(reply=reply), at),
        )
        return {}

    async def leave_group(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        context.require(Kind.GROUP, request.group_id)
        one = context.version < 3
        leavers = (
            (Leaver(request.member_id),)
            if one
            else tuple(Leaver(m.member_id, m.group_instance_id) for m in request.members)
        )
        left = await self._coordinator.ask(
            request.group_id,
            lambda shard, reply, at: shard.leave(request.group_id, Leave(reply=reply, members=leavers), at),
        )
        members = cast(Left, left).members
        if one:
            return {"error_code": _code(members[0][1])}
        return {
            "members": [
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.instance_id,
                    "error_code": _code(error),
                }
                for leaver, error in members
            ]
        }

    # Offsets.

    async def offset_commit(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        offsets: dict[TopicPartition, OffsetToCommit] = {}
        refused: dict[tuple[object, int], BrokerError] = {}
        names: dict[object, str] = {}
        for topic in request.topics:
            key, name = topic_named(broker, topic)
            names[key] = name or ""
            is_refused = name is not None and not context.may(Kind.TOPIC, name)
            for asked in topic.partitions:
                if is_refused:
                    refused[key, asked.partition_index] = context.refusal(Kind.TOPIC, name or "")
                    continue
                if not partition_exists(broker, TopicPartition(name or "", asked.partition_index)):
                    refused[key, asked.partition_index] = (
                        UnknownTopicId(key) if name is None else UnknownTopicOrPartition(name)
                    )
                    continue
                offsets[TopicPartition(name or "", asked.partition_index)] = OffsetToCommit(
                    offset=asked.committed_offset,
                    leader_epoch=getattr(asked, "committed_leader_epoch", NO_EPOCH),
                    metadata=asked.committed_metadata or "",
                    topic_id=broker.image.topics[name or ""].id,
                )
        whole: BrokerError | None = None
        done = OffsetsDone()
        if offsets or not refused:
            try:
                context.require(Kind.GROUP, request.group_id)
                done = cast(
                    OffsetsDone,
                    await self._coordinator.ask(request.group_id, _commit(request, context, offsets)),
                )
            except BrokerError as error:
                whole = error
        return {
            "topics": [
                {
                    **names_of(topic),
                    "partitions": [
                        {
                            "partition_index": asked.partition_index,
                            "error_code": _code(
                                refused.get((key_of(topic), asked.partition_index))
                                or whole
                                or done.refused.get(
                                    TopicPartition(names[key_of(topic)], asked.partition_index)
                                )
                            ),
                        }
                        for asked in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    def offset_fetch(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        stable = bool(getattr(request, "require_stable", False))
        if context.version >= 8:
            return {
                "groups": [
                    {"group_id": g.group_id, **self._fetch(broker, context, g.group_id, g.topics, stable)}
                    for g in request.groups
                ]
            }
        return self._fetch(broker, context, request.group_id, request.topics, stable)

    def _fetch(
        self, broker: Broker, context: Request, group_id: str, topics: Any, require_stable: bool
    ) -> dict[str, Any]:
        places: list[TopicPartition] | None = None
        if topics is not None:
            places = [
                TopicPartition(name or "", number)
                for topic in topics
                for _, name in [topic_named(broker, topic)]
                for number in topic.partition_indexes
            ]
        try:
            context.require(Kind.GROUP, group_id)
            shard = self._coordinator.driver(group_id).shard
            found = shard.fetch_offsets(group_id, places, require_stable=require_stable)
        except BrokerError as error:
            return {"error_code": error.code, "topics": refused_fetch(topics, error)}
        found = {
            place: of_topic(broker, place, value)
            if context.may(Kind.TOPIC, place.topic)
            else (None if topics is None else context.refusal(Kind.TOPIC, place.topic))
            for place, value in found.items()
        }
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for place, value in found.items():
            if value is None:
                continue
            by_topic.setdefault(place.topic, []).append(fetched(place.partition, value))
        if topics is None:
            images = broker.image.topics
            return {
                "topics": [
                    {
                        "name": name,
                        "topic_id": images[name].id if name in images else None,
                        "partitions": partitions,
                    }
                    for name, partitions in by_topic.items()
                ]
            }
        return {
            "topics": [
                {
                    **names_of(topic),
                    "partitions": [
                        fetched(number, found.get(TopicPartition(name or "", number)))
                        if name is not None
                        else {**fetched(number, None), "error_code": UnknownTopicId.code}
                        for _, name in [topic_named(broker, topic)]
                        for number in topic.partition_indexes
                    ],
                }
                for topic in topics
            ]
        }

    async def offset_delete(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        context.require(Kind.GROUP, request.group_id)
        asked = [
            (topic.name, [partition.partition_index for partition in topic.partitions])
            for topic in request.topics
        ]
        places = {TopicPartition(name, number) for name, numbers in asked for number in numbers}
        hidden = {place for place in places if not context.may(Kind.TOPIC, place.topic)}
        known = sorted(place for place in places - hidden if partition_exists(broker, place))
        done = cast(
            OffsetsDone,
            await self._coordinator.ask(
                request.group_id,
                lambda shard, reply, at: shard.delete_offsets(request.group_id, known, reply, at),
            ),
        )
        unknown = {place: UnknownTopicOrPartition(place) for place in places.difference(known)}
        refused: dict[TopicPartition, BrokerError] = {**unknown, **done.refused}
        refused |= {place: context.refusal(Kind.TOPIC, place.topic) for place in hidden}
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": number,
                            "error_code": _code(refused.get(TopicPartition(name, number))),
                        }
                        for number in numbers
                    ],
                }
                for name, numbers in asked
            ]
        }

    # Looking and deleting.

    def describe_groups(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        return {"groups": [self._describe(name, request, context) for name in request.groups]}

    def _describe(self, group_id: str, request: Any, context: Request) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "group_id": group_id,
            "error_message": None,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
            "authorized_operations": NO_OPERATIONS,
        }
        try:
            context.require(Kind.GROUP, group_id)
            if getattr(request, "include_authorized_operations", False):
                answer["authorized_operations"] = context.operations(Kind.GROUP, group_id)
            view = self._coordinator.driver(group_id).shard.describe(group_id)
        except BrokerError as error:
            return answer | {"error_code": error.code, "error_message": str(error)}
        if view is None:
            answer["group_state"] = DEAD
            if context.version >= 6:
                missing = GroupIdNotFound(group_id)
                answer |= {"error_code": missing.code, "error_message": str(missing)}
            return answer
        return answer | {
            "group_state": view.state,
            "protocol_type": view.protocol_type,
            "protocol_data": view.protocol,
            "members": [
                {
                    "member_id": m.member_id,
                    "group_instance_id": m.instance_id,
                    "client_id": m.client_id,
                    "client_host": m.client_host,
                    "member_metadata": m.metadata,
                    "member_assignment": m.assignment,
                }
                for m in view.members
            ],
        }

    async def list_groups(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        states = {state.lower() for state in getattr(request, "states_filter", ())}
        types = {kind.lower() for kind in getattr(request, "types_filter", ())}
        groups = []
        known = [group for driver in self._coordinator.drivers() for group in driver.shard.groups()]
        for count, group in enumerate(known, 1):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others get their turn
            view = group.view()
            if states and view.state.lower() not in states:
                continue
            if types and CLASSIC not in types:
                continue
            if not (context.may(Kind.CLUSTER) or context.may(Kind.GROUP, view.group_id)):
                continue
            groups.append(
                {
                    "group_id": view.group_id,
                    "protocol_type": view.protocol_type,
                    "group_state": view.state,
                    "group_type": CLASSIC,
                }
            )
        return {"groups": groups}

    async def delete_groups(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        results = []
        for name in request.groups_names:
            answer: dict[str, Any] = {"group_id": name}
            try:
                context.require(Kind.GROUP, name)
                await self._coordinator.ask(
                    name,
                    lambda shard, reply, at, name=name: shard.delete_group(name, reply, at),  # type: ignore[misc]
                )
            except BrokerError as error:
                answer["error_code"] = error.code
            results.append(answer)
        return {"results": results}


def _commit(request: Any, context: Request, offsets: Mapping[TopicPartition, OffsetToCommit]) -> Any:
    retention = getattr(request, "retention_time", None)
    retention_ms = None if retention is None else _milliseconds(retention)
    event = partial(
        Commit,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id_or_member_epoch,
        offsets=offsets,
        retention_ms=None if retention_ms in (None, -1) else retention_ms,
        knows_group_not_found=context.version >= 9,
    )
    return lambda shard, reply, at: shard.commit(request.group_id, event(reply=reply), at)


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def _code(error: BrokerError | None) -> int:
    return 0 if error is None else error.code
