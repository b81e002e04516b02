"""What a broker has to do when the image has changed: open, close, lead, follow, configure.

Rule 1: a difference lies between what this broker was told last and the image as it is now; what
        came and went in between is not told.
Rule 2: it costs what the records touch, not what there is. Only after a snapshot, and at the
        start, is everything compared.
Rule 3: close before opening: a new topic may have the name of one that is gone.
Rule 4: what is long is compared in slices, each with the image as it is by then. What changes in
        between is compared again, after the records that changed it; nothing is acted on before
        the last slice.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from tidelog.controller.image import ClusterImage, PartitionImage, TopicImage
from tidelog.controller.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerShutdownWanted,
    BrokerUnfenced,
    BrokerUnregistered,
    LeaderChanged,
    MetadataRecord,
    NodeConfigChanged,
    NodeRegistered,
    PartitionChanged,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    VotersChanged,
    topic_id_of,
)
from tidelog.model import NO_NODE, NodeId, TopicPartition

SLICE: Final = 100
"""How many partitions are compared in one turn of the loop."""
_Key: TypeAlias = tuple[UUID, int]


class Role(Enum):
    LEAD = "lead"
    FOLLOW = "follow"
    WAIT = "wait"
    """Nobody leads: keep the log, serve nothing."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """What this broker is to do with one of its partitions from now on."""

    name: TopicPartition
    topic_id: UUID
    role: Role
    partition: PartitionImage
    """Leader, epochs, in-sync set and the rest."""


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """This broker holds the partition no more; its files go."""

    name: TopicPartition
    topic_id: UUID
    is_deleted: bool
    """The whole topic is; otherwise the replica has moved elsewhere."""


@dataclass(slots=True, kw_only=True)
class Difference:
    """In the order in which to act on it."""

    closed: list[Closed] = field(default_factory=list)
    opened: list[Replica] = field(default_factory=list)
    led: list[Replica] = field(default_factory=list)
    """Another leader or epoch, for partitions that were open."""
    changed: list[Replica] = field(default_factory=list)
    """The same leader in the same epoch, with other replicas or in-sync ones."""
    topics_configured: list[str] = field(default_factory=list)
    node_configured: bool = False
    brokers: list[NodeId] = field(default_factory=list)
    """Registered, fenced, unfenced, leaving or gone."""
    quorum_changed: bool = False

    def __bool__(self) -> bool:
        return self != Difference()


class Differences:
    """What one broker was told of its partitions so far.

    Invariant: after each call, or its last slice, the partitions told are those that the image has
    on this node, but for what was applied since the slices began.
    """

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._told: dict[UUID, dict[int, PartitionImage]] = {}
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, list[UUID]] = {}
        """Of each name. Two while one difference closes a topic and opens its namesake."""

    def after(self, image: ClusterImage, records: Sequence[MetadataRecord]) -> Difference:
        """What to do after `records`, which the image has."""
        difference = Difference()
        deque(self.after_in_slices(lambda: image, records, difference), maxlen=0)
        return difference

    def whole(self, image: ClusterImage) -> Difference:
        """What to do about everything: at the start, and after a snapshot was installed."""
        difference = Difference()
        deque(self.whole_in_slices(lambda: image, difference), maxlen=0)
        return difference

    def after_in_slices(
        self, image: Callable[[], ClusterImage], records: Sequence[MetadataRecord], into: Difference
    ) -> Iterator[None]:
        """As `after`, into a difference that is complete with the last slice."""
        yield from self._compare(image, self._touched_by(image, records, into), into)

    def whole_in_slices(self, image: Callable[[], ClusterImage], into: Difference) -> Iterator[None]:
        """As `whole`, into a difference that is complete with the last slice."""
        now = image()
        held = list(now.held.get(self._node, {}).values())
        into.topics_configured += now.topics
        into.node_configured = into.quorum_changed = True
        into.brokers += sorted(now.nodes)
        yield from self._compare(image, self._told_by_now(), into)
        for count, place in enumerate(held, 1):
            if place.number not in self._told.get(place.topic.id, ()):
                self._compare_one(image(), place.topic.id, place.number, into)
            if count % SLICE == 0:
                yield

    def _told_by_now(self) -> Iterator[_Key]:
        for topic_id in list(self._told):
            yield from [(topic_id, number) for number in self._told.get(topic_id, ())]

    def _touched_by(
        self, image: Callable[[], ClusterImage], records: Sequence[MetadataRecord], into: Difference
    ) -> Iterator[_Key]:
        """Each once: in between it must not be opened, and then closed, by one difference."""
        touched: dict[_Key, None] = {}
        for record in records:
            self._note(image(), record, into)
            for key in self._touched(image(), record):
                if key not in touched:
                    touched[key] = None
                    yield key

    def _touched(self, image: ClusterImage, record: MetadataRecord) -> Iterable[tuple[UUID, int]]:
        match record:
            case PartitionChanged():
                return [(topic_id_of(record.topic), record.partition)]
            case TopicCreated():
                topic_id = UUID(record.id)
                return [(topic_id, number) for number in range(len(record.replicas))]
            case PartitionsAdded() if (topic := image.topics.get(record.topic)) is not None:
                return [(topic.id, number) for number in range(len(topic.partitions))]
            case TopicDeleted():
                known = self._ids.get(record.name, ())
                return [(one, number) for one in known for number in self._told[one]]
            case NodeRegistered():
                return [
                    (topic_id, number)
                    for topic_id, told in self._told.items()
                    for number, partition in told.items()
                    if partition.leader == record.node
                ]
            case _:
                return ()

    def _note(self, image: ClusterImage, record: MetadataRecord, difference: Difference) -> None:
        match record:
            case TopicConfigChanged():
                if record.topic in image.topics:
                    difference.topics_configured.append(record.topic)
            case NodeConfigChanged():
                difference.node_configured |= record.node in (None, self._node)
            case (
                NodeRegistered()
                | BrokerRegistered()
                | BrokerFenced()
                | BrokerUnfenced()
                | BrokerShutdownWanted()
                | BrokerUnregistered()
            ):
                if record.node not in difference.brokers:
                    difference.brokers.append(record.node)
            case LeaderChanged() | VotersChanged():
                difference.quorum_changed = True
            case _:
                pass

    def _compare(
        self, image: Callable[[], ClusterImage], keys: Iterable[_Key], into: Difference
    ) -> Iterator[None]:
        for count, (topic_id, number) in enumerate(keys, 1):
            self._compare_one(image(), topic_id, number, into)
            if count % SLICE == 0:
                yield

    def _compare_one(self, image: ClusterImage, topic_id: UUID, number: int, into: Difference) -> None:
        topic = image.topics_by_id.get(topic_id)
        before = self._told.get(topic_id, {}).get(number)
        now = None if topic is None else topic.partitions[number]
        if now is None or self._node not in now.replicas:
            if before is not None:
                name = TopicPartition(self._names[topic_id], number)
                into.closed.append(Closed(name=name, topic_id=topic_id, is_deleted=topic is None))
                self._forget(topic_id, number)
            return
        assert topic is not None, "what it holds is of a topic"
        if before is None:
            into.opened.append(self._replica(topic, number, now))
        elif (before.leader, before.epoch) != (now.leader, now.epoch):
            into.led.append(self._replica(topic, number, now))
        elif before != now:
            into.changed.append(self._replica(topic, number, now))
        self._remember(topic, number, now)

    def _replica(self, topic: TopicImage, number: int, now: PartitionImage) -> Replica:
        if now.leader == self._node:
            role = Role.LEAD
        else:
            role = Role.WAIT if now.leader == NO_NODE else Role.FOLLOW
        name = TopicPartition(topic.name, number)
        return Replica(name=name, topic_id=topic.id, role=role, partition=now)

    def _remember(self, topic: TopicImage, number: int, now: PartitionImage) -> None:
        self._told.setdefault(topic.id, {})[number] = now
        if topic.id not in self._names:
            self._names[topic.id] = topic.name
            self._ids.setdefault(topic.name, []).append(topic.id)

    def _forget(self, topic_id: UUID, number: int) -> None:
        del self._told[topic_id][number]
        if not self._told[topic_id]:
            del self._told[topic_id]
            name = self._names.pop(topic_id)
            self._ids[name].remove(topic_id)
            if not self._ids[name]:
                del self._ids[name]
