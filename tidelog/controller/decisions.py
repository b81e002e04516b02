"""What the controller answers to those who want the metadata changed.

Rule 1: a decision looks at an image and returns records; it changes nothing and waits for nothing.
Rule 2: what cannot be done is refused with the error that Kafka's clients know.
Rule 3: a new partition says who is in sync: in a cluster all of its replicas that are there, since
        its log is empty and so they hold all of it. A node that is alone need not say so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.config import TopicConfig, check_together, topic_config
from tidelog.config.topic import min_in_sync_of
from tidelog.controller.elections import change
from tidelog.controller.image import ClusterImage, Place, TopicImage
from tidelog.controller.placement import candidates, check_replication, place
from tidelog.controller.records import (
    FIRST_EPOCH,
    NodeConfigChanged,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    ProducerIdsGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from tidelog.errors import (
    ConfigError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.model import INTERNAL_TOPICS, NO_NODE, NodeId, topic_name_problem

PARTITIONS_MAX: Final = 100_000
PRODUCER_IDS_BLOCK: Final = 1000
REPLICATION_DEFAULT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic that somebody wants; -1 asks for the cluster's default."""

    name: str
    partitions: int = -1
    replication: int = -1
    assignment: Mapping[int, Sequence[NodeId]] | None = None
    config: Mapping[str, str | None]
    internal: bool = False
    """Made by a node itself, under a name that clients cannot use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the cluster gives a topic that does not say."""

    partitions: int
    replication: int
    topic: TopicConfig


def create_topic(image: ClusterImage, wanted: NewTopic, topic_id: UUID, defaults: Defaults) -> TopicCreated:
    """The record that creates the topic, or the reason why not."""
    if problem := topic_name_problem(wanted.name):
        raise InvalidTopic(problem)
    if wanted.name in image.topics or (wanted.name in INTERNAL_TOPICS and not wanted.internal):
        raise TopicAlreadyExists(wanted.name)
    # Kafka's metrics turn dots into underscores, so such a pair of names cannot be told apart.
    twin = wanted.name.replace(".", "_")
    if any(name.replace(".", "_") == twin for name in image.topics):
        raise InvalidTopic(f"{wanted.name!r} differs from another topic only in '.' and '_'")
    config = {name: value for name, value in wanted.config.items() if value is not None}
    _check_config(config, defaults.topic)
    if wanted.assignment:
        replicas = _assigned(wanted, sorted(image.nodes))
    else:
        partitions = defaults.partitions if wanted.partitions == -1 else wanted.partitions
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"a topic has from 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        replicas = place(
            candidates(image),
            partitions=partitions,
            start=len(image.topics),
            replication=_replication(image, wanted.replication, defaults),
        )
    return TopicCreated(
        name=wanted.name,
        id=str(topic_id),
        replicas=replicas,
        config=config,
        partitions=_first_states(image, topic_id, 0, replicas),
    )


def add_partitions(
    image: ClusterImage, name: str, count: int, assignment: Sequence[Sequence[NodeId]] | None
) -> PartitionsAdded:
    """The record that grows the topic to `count` partitions."""
    topic = find_topic(image, name)
    if name in INTERNAL_TOPICS:
        raise InvalidTopic(f"where {name} keeps what goes by how many partitions it has")
    more = count - len(topic.partitions)
    if more <= 0:
        raise InvalidPartitions(
            f"{name!r} has {len(topic.partitions)} partitions already; their number can only be raised"
        )
    if count > PARTITIONS_MAX:
        raise InvalidPartitions(f"a topic has at most {PARTITIONS_MAX} partitions, not {count}")
    replication = len(topic.partitions[0].target)
    if assignment is not None:
        if len(assignment) != more:
            raise InvalidReplicaAssignment(
                f"{more} partitions are added, replicas are given for {len(assignment)}"
            )
        for replicas in assignment:
            _check_replicas(replicas, sorted(image.nodes))
            if len(replicas) != replication:
                raise InvalidReplicaAssignment(
                    f"{name!r} has {replication} replicas of each partition, not {len(replicas)}"
                )
        placed = [list(replicas) for replicas in assignment]
    else:
        placed = place(
            candidates(image),
            partitions=more,
            replication=replication,
            topic=topic,
            start=len(image.topics) + len(topic.partitions),
        )
    states = _first_states(image, topic.id, len(topic.partitions), placed)
    return PartitionsAdded(topic=name, replicas=placed, partitions=states)


def delete_topic(image: ClusterImage, name: str | None, topic_id: UUID | None) -> TopicDeleted:
    """The record that deletes a topic, given by name or by id."""
    if name is not None:
        return TopicDeleted(name=find_topic(image, name).name)
    topic = image.topics_by_id.get(topic_id) if topic_id is not None else None
    if topic is None:
        raise UnknownTopicId(topic_id)
    return TopicDeleted(name=topic.name)


def change_topic_config(
    image: ClusterImage, *, name: str, config: Mapping[str, str], defaults: TopicConfig
) -> TopicConfigChanged:
    """The record that gives a topic these settings of its own."""
    topic = find_topic(image, name)
    if topic.name in INTERNAL_TOPICS:
        raise InvalidTopic(f"the settings of {name} are the cluster's own")
    _check_config(config, defaults)
    return TopicConfigChanged(topic=name, config=dict(config))


def eligible_after(
    image: ClusterImage, changed: TopicConfigChanged | NodeConfigChanged, defaults: TopicConfig
) -> list[PartitionChanged]:
    """What must change together with settings; `defaults` are those that hold afterwards.

    Where fewer replicas suffice from now on, the in-sync set commits what those who left it lack:
    they are not eligible any more (KIP-966). Goes into one batch with `changed`.
    """
    if isinstance(changed, TopicConfigChanged):
        topic = find_topic(image, changed.topic)
        return list(_not_eligible(topic, topic_config(changed.config, defaults)))
    return [
        dropped
        for topic in image.topics.values()
        if topic.name not in INTERNAL_TOPICS  # whose settings are the cluster's own
        if any(partition.eligible for partition in topic.partitions)
        for dropped in _not_eligible(topic, topic_config(topic.config, defaults))
    ]


def _not_eligible(topic: TopicImage, config: TopicConfig) -> Iterator[PartitionChanged]:
    for number, partition in enumerate(topic.partitions):
        is_led = partition.leader != NO_NODE  # else nothing is committed, however few suffice
        minimum = min_in_sync_of(config, partition.replication)
        if partition.eligible and is_led and len(partition.in_sync) >= minimum:
            yield change(Place(topic, number), partition.edited(eligible=frozenset()))


def change_node_config(
    image: ClusterImage, *, node: NodeId | None, config: Mapping[str, str]
) -> NodeConfigChanged:
    """The record that changes a node's settings; the caller has checked them."""
    return NodeConfigChanged(node=node, config=dict(config))


def _check_config(config: Mapping[str, str], defaults: TopicConfig) -> None:
    try:
        check_together(topic_config(config, defaults))
    except ConfigError as error:
        raise InvalidConfig(str(error)) from None


def grant_producer_ids(image: ClusterImage, node: NodeId) -> ProducerIdsGranted:
    """A block of producer ids that nobody had before."""
    return ProducerIdsGranted(node=node, end=image.producer_ids_end + PRODUCER_IDS_BLOCK)


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(name)
    return topic


def _replication(image: ClusterImage, wanted: int, defaults: Defaults) -> int:
    among = candidates(image)
    if wanted == -1:
        wanted = defaults.replication
    if wanted == -1:
        wanted = min(REPLICATION_DEFAULT, sum(not broker.is_cordoned for broker in among))
    check_replication(among, wanted)
    return wanted


def _first_states(
    image: ClusterImage, topic_id: UUID, first: int, replicas: Sequence[Sequence[NodeId]]
) -> list[PartitionState]:
    """New partitions, each led by the first of its replicas that is there."""
    if not image.brokers:
        return []
    active = set(image.active_nodes())
    states = []
    ids = image.free_cluster_ids(topic_id, first, len(replicas))
    for cluster_id, nodes in zip(ids, replicas, strict=True):
        leader = next((node for node in nodes if node in active), None)
        if leader is None:
            raise InvalidReplicaAssignment(
                f"none of {list(nodes)} is running, so nothing would lead; name one of {sorted(active)}"
            )
        in_sync = tuple(sorted(active.intersection(nodes)))
        states.append(PartitionState(cluster_id, tuple(nodes), in_sync, leader, FIRST_EPOCH))
    return states


def _assigned(wanted: NewTopic, nodes: Sequence[NodeId]) -> list[list[NodeId]]:
    assert wanted.assignment is not None
    if wanted.partitions != -1 or wanted.replication != -1:
        raise InvalidReplicaAssignment("replicas given by hand go with -1 partitions and replication -1")
    if sorted(wanted.assignment) != list(range(len(wanted.assignment))):
        raise InvalidReplicaAssignment("replicas must be given for the partitions 0, 1, 2, ...")
    for replicas in wanted.assignment.values():
        _check_replicas(replicas, nodes)
    if len({len(replicas) for replicas in wanted.assignment.values()}) != 1:
        raise InvalidReplicaAssignment("every partition needs the same number of replicas")
    return [list(wanted.assignment[number]) for number in range(len(wanted.assignment))]


def _check_replicas(replicas: Sequence[NodeId], nodes: Sequence[NodeId]) -> None:
    if not replicas or len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"replicas {list(replicas)} are none or repeat a node")
    if unknown := [node for node in replicas if node not in nodes]:
        raise InvalidReplicaAssignment(f"there are no nodes {unknown}; there are {list(nodes)}")
