"""Topics as Metadata describes them, in bytes that are kept for as long as they are true.

Rule 1: what is kept of some partitions stands beside the values that it was made of: those of the
        partitions, and which nodes are there. Beside other values it is made anew. So a change need
        not be told here, and costs the partitions beside it, not the topic.
Rule 2: it is made in slices, with the topic as it is by then. Who asks meanwhile goes on where
        others are, and makes none of it twice.
"""

import asyncio
from collections.abc import Collection
from struct import Struct
from typing import Any, Final, TypeAlias
from uuid import UUID

from tidelog.controller.image import ClusterImage, PartitionImage, TopicImage
from tidelog.errors import LeaderNotAvailable
from tidelog.kafka.permissions import NO_OPERATIONS
from tidelog.model import INTERNAL_TOPICS, NO_NODE, NodeId
from tidelog.wire.apis import APIS, Api
from tidelog.wire.slices import ITEMS_AT_ONCE, Encoded, encode_items

OPERATIONS_FROM: Final = 8
"""From this version on, a topic says what its client may do to it."""
_INT32: Final = Struct(">i")
VERSIONS_KEPT: Final = 3
"""Of a topic's descriptions; clients of one cluster speak few versions."""
COMPARED_AT_ONCE: Final = 2000
"""Partitions that are compared with what is kept in one turn of the loop."""

_Nodes: TypeAlias = frozenset[NodeId]
_Values: TypeAlias = tuple[bool, _Nodes, list[PartitionImage]]


class _Kept:
    """Some partitions in a row, and their bytes; of a small topic those of the whole topic."""

    __slots__ = ("encoded", "made_of")

    def __init__(self, made_of: _Values, encoded: Encoded) -> None:
        self.made_of = made_of
        self.encoded = encoded


class DescribedTopics:
    """What was described of each topic, by its id and by the version of the answer."""

    def __init__(self) -> None:
        self._kept: dict[UUID, dict[int, list[_Kept]]] = {}

    def forget_gone(self, image: ClusterImage) -> None:
        """Keep nothing of topics that are no more."""
        if len(self._kept) > len(image.topics):
            self._kept = {i: kept for i, kept in self._kept.items() if i in image.topics_by_id}

    async def describe(
        self, image: ClusterImage, topic: TopicImage, version: int, operations: int = NO_OPERATIONS
    ) -> Encoded:
        """The topic as an item of an answer of that version, with what its client may do to it."""
        described = await self._describe(image, topic, version)
        return described if operations == NO_OPERATIONS else _with_operations(described, operations, version)

    async def _describe(self, image: ClusterImage, topic: TopicImage, version: int) -> Encoded:
        kept = self._of(topic.id, version)
        alive = frozenset(filter(image.is_alive, image.nodes))
        size = len(topic.partitions)
        is_small = size <= ITEMS_AT_ONCE
        parts: list[Encoded] = []
        for number, at in enumerate(range(0, size, ITEMS_AT_ONCE)):
            some = topic.partitions[at : at + ITEMS_AT_ONCE]
            values = (is_small, alive, some)
            known = kept[number] if number < len(kept) else None
            if known is None or known.made_of != values:
                encoded = _partitions(at, some, alive, version)
                known = _Kept(values, _topic(topic, [encoded], version) if is_small else encoded)
                kept[number : number + 1] = [known]
                if not is_small:
                    await asyncio.sleep(0)  # others get their turn
            elif at and at % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            parts.append(known.encoded)
        return parts[0] if is_small else _topic(topic, parts, version)

    def _of(self, topic_id: UUID, version: int) -> list[_Kept]:
        versions = self._kept.setdefault(topic_id, {})
        if version not in versions:
            while len(versions) >= VERSIONS_KEPT:
                del versions[next(iter(versions))]
            versions[version] = []
        return versions[version]


def _topic(topic: TopicImage, partitions: list[Encoded], version: int) -> Encoded:
    fields = {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "topic_authorized_operations": NO_OPERATIONS,
        "partitions": partitions,
    }
    return encode_items(Api.METADATA, version, ("topics",), [fields])


def _with_operations(topic: Encoded, operations: int, version: int) -> Encoded:
    """The topic with other operations: they stand last, and no tags follow them."""
    if version < OPERATIONS_FROM:
        return topic
    end = len(topic.data) - (version >= APIS[Api.METADATA].flexible_from)
    at = end - _INT32.size
    return Encoded(topic.items, topic.data[:at] + _INT32.pack(operations) + topic.data[end:])


def _partitions(first: int, partitions: list[PartitionImage], alive: _Nodes, version: int) -> Encoded:
    described = [describe_partition(one, number, alive) for number, one in enumerate(partitions, first)]
    return encode_items(Api.METADATA, version, ("topics", "partitions"), described)


def describe_partition(partition: PartitionImage, number: int, alive: Collection[NodeId]) -> dict[str, Any]:
    return {
        "error_code": LeaderNotAvailable.code if partition.leader == NO_NODE else 0,
        "partition_index": number,
        "leader_id": partition.leader,
        "leader_epoch": partition.epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": sorted(partition.in_sync),
        "offline_replicas": [node for node in partition.replicas if node not in alive],
    }
