"""The cluster as the metadata log tells it, up to some offset.

Rule 1: the image changes only by `apply`, and is a fold over the records: same log, same image.
Rule 2: nothing here decides anything; see `decisions`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never
from uuid import UUID

from tidelog.controller.records import (
    FIRST_EPOCH,
    MetadataRecord,
    NodeConfigChanged,
    NodeRegistered,
    PartitionsAdded,
    ProducerIdsGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from tidelog.model import Epoch, NodeId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """Who holds a partition, and who leads it in which epoch."""

    replicas: tuple[NodeId, ...]
    in_sync: frozenset[NodeId]
    leader: NodeId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    name: str
    id: UUID
    partitions: tuple[PartitionImage, ...]
    config: dict[str, str]


class ClusterImage:
    """Topics, nodes and producer ids.

    Invariant: `topics` and `topics_by_id` hold the same topics.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[UUID, TopicImage] = {}
        self.nodes: dict[NodeId, str] = {}
        """The incarnation of every node, by its number."""
        self.node_configs: dict[NodeId | None, dict[str, str]] = {}
        """What was changed while nodes ran; None is for all of them."""
        self.producer_ids_end = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterImage) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def partitions_on(self, node: NodeId) -> Iterator[tuple[TopicImage, TopicPartition]]:
        """Every partition with a replica on `node`."""
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                if node in partition.replicas:
                    yield topic, TopicPartition(topic.name, number)

    def apply(self, record: MetadataRecord) -> None:
        """Take one record, in the order of the log."""
        match record:
            case TopicCreated():
                self._put(
                    TopicImage(
                        name=record.name, id=UUID(record.id), config=dict(record.config),
                        partitions=tuple(map(_new_partition, record.replicas)),
                    )
                )  # fmt: skip
            case PartitionsAdded():
                topic = self.topics[record.topic]
                added = tuple(map(_new_partition, record.replicas))
                self._put(replace(topic, partitions=topic.partitions + added))
            case TopicDeleted():
                topic = self.topics.pop(record.name)
                del self.topics_by_id[topic.id]
            case NodeRegistered():
                self.nodes[record.node] = record.incarnation
                self._open_epochs(record.node)
            case TopicConfigChanged():
                topic = self.topics[record.topic]
                self._put(replace(topic, config=dict(record.config)))
            case NodeConfigChanged():
                self.node_configs[record.node] = dict(record.config)
            case ProducerIdsGranted():
                self.producer_ids_end = record.end
            case _:
                assert_never(record)

    def _put(self, topic: TopicImage) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.id] = topic

    def _open_epochs(self, node: NodeId) -> None:
        for topic in list(self.topics.values()):
            if any(partition.leader == node for partition in topic.partitions):
                self._put(
                    replace(
                        topic,
                        partitions=tuple(
                            replace(p, epoch=p.epoch + 1) if p.leader == node else p
                            for p in topic.partitions
                        ),
                    )
                )


def _new_partition(replicas: list[NodeId]) -> PartitionImage:
    return PartitionImage(
        replicas=tuple(replicas), in_sync=frozenset(replicas), leader=replicas[0],
        epoch=FIRST_EPOCH,
    )  # fmt: skip
