"""The cluster as the metadata log tells it, up to some offset.

Rule 1: the image changes only by `apply`, and is a fold over the records: same log, same image.
Rule 2: nothing here decides anything; see `decisions`, `registration` and `elections`.
Rule 3: what is looked up is indexed. One record costs what it touches, however much there is.
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, assert_never
from uuid import UUID

import msgspec

from tidelog.controller.acls import binding_of
from tidelog.controller.records import (
    FIRST_EPOCH,
    AclAdded,
    AclRemoved,
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
    PartitionState,
    ProducerIdsGranted,
    SaltsChosen,
    SnapshotBegan,
    TokenGranted,
    TokenRevoked,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
    VotersChanged,
    cluster_id_of,
    topic_id_of,
)
from tidelog.errors import CoordinatorNotAvailable
from tidelog.model import NO_NODE, Endpoint, Epoch, NodeId, TopicPartition
from tidelog.raft.voters import ReplicaKey, VoterSet
from tidelog.security.acls import Acls
from tidelog.security.scram import Verifier
from tidelog.security.tokens import Token

CORDONED: Final = "cordoned.log.dirs"
"""The setting of a node that shall get no more replicas."""


class PartitionImage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Who holds a partition, and who leads it in which epoch; see `PartitionState`."""

    cluster_id: int
    replicas: tuple[NodeId, ...]
    in_sync: frozenset[NodeId]
    leader: NodeId
    epoch: Epoch
    partition_epoch: int = 0
    eligible: frozenset[NodeId] = frozenset()
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()
    lost: tuple[ReplicaKey, ...] = ()
    original: tuple[NodeId, ...] = ()

    @classmethod
    def of(cls, state: PartitionState) -> "PartitionImage":
        return cls(
            cluster_id=state.cluster_id,
            replicas=state.replicas,
            in_sync=frozenset(state.in_sync),
            leader=state.leader,
            epoch=state.epoch,
            partition_epoch=state.partition_epoch,
            eligible=frozenset(state.eligible),
            adding=state.adding,
            removing=state.removing,
            lost=state.lost,
            original=state.original,
        )

    @property
    def state(self) -> PartitionState:
        """This, as a record says it."""
        return PartitionState(
            self.cluster_id,
            self.replicas,
            tuple(sorted(self.in_sync)),
            self.leader,
            self.epoch,
            self.partition_epoch,
            tuple(sorted(self.eligible)),
            self.adding,
            self.removing,
            self.lost,
            self.original,
        )

    @property
    def is_moving(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[NodeId, ...]:
        """Who shall hold it, the preferred leader first."""
        return self.replicas[: len(self.replicas) - len(self.removing)]

    @property
    def replication(self) -> int:
        """The replicas that `min.insync.replicas` goes by: who is being added does not count.

        So it neither rises nor falls while replicas move, but once, at the end, if their number is
        another one then.
        """
        return len(self.replicas) - len(self.adding)

    def edited(self, **changes: Any) -> "PartitionImage":
        """This with other values, on the way to a decision; epochs stay as they are."""
        return msgspec.structs.replace(self, **changes)

    def then(self, after: "PartitionImage") -> "PartitionImage":
        """`after` as what follows this: a partition epoch later, and a leader epoch if need be."""
        return msgspec.structs.replace(
            after, partition_epoch=self.partition_epoch + 1, epoch=self.epoch + (after.leader != self.leader)
        )

    def changed(self, **changes: Any) -> "PartitionImage":
        return self.then(self.edited(**changes))


@dataclass(slots=True, kw_only=True)
class TopicImage:
    """A topic as it is now: it changes with the image that it is part of, and only there."""

    name: str
    id: UUID
    partitions: list[PartitionImage]
    config: dict[str, str]
    sizes: list[int] = field(default_factory=list)
    """How many partitions it had before, each time that some were added."""
    encoded: bytes | None = field(default=None, compare=False, repr=False)
    """This as a snapshot has it, once it was asked for; None again with every change."""


class Place(NamedTuple):
    """One partition of the image, wherever it is looked up; `partition` is as it is now."""

    topic: TopicImage
    number: int

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.number)

    @property
    def partition(self) -> PartitionImage:
        return self.topic.partitions[self.number]


class BrokerImage(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as it registered last, and what became of it since."""

    node: NodeId
    incarnation: str
    broker_epoch: int
    directory: str
    kafka: Endpoint
    peer: Endpoint
    http: Endpoint | None
    rack: str | None
    listeners: dict[str, Endpoint] = {}
    fenced: bool = True
    shutting_down: bool = False

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync."""
        return not self.fenced and not self.shutting_down

    def at(self, listener: str) -> Endpoint:
        """Where clients of the listener connect; CoordinatorNotAvailable if this broker has no such one."""
        found = self.kafka if not listener else self.listeners.get(listener)
        if found is None:
            raise CoordinatorNotAvailable(f"node {self.node} has no listener {listener!r}")
        return found


class ClusterImage:
    """Topics, brokers, voters, permissions and producer ids.

    Invariant: `topics` and `topics_by_id` hold the same topics, and every index what a look at
    all partitions would find.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[UUID, TopicImage] = {}
        self.nodes: dict[NodeId, str] = {}
        """The incarnation of every node, by its number."""
        self.brokers: dict[NodeId, BrokerImage] = {}
        """The nodes that are part of a cluster: all, unless a node is alone."""
        self.broker_epoch_last = -1
        """The greatest that was ever given."""
        self.node_configs: dict[NodeId | None, dict[str, str]] = {}
        """What was changed while nodes ran; None is for all of them."""
        self.acls = Acls()
        """What is allowed and denied to whom."""
        self.producer_ids_end = 0
        self.users: dict[str, dict[str, Verifier]] = {}
        """What is stored of their passwords, by mechanism."""
        self.tokens: dict[str, Token] = {}
        """What is stored of tokens, by their ids."""
        self.salts_secret = b""
        """What the salts of users that do not exist are made of; empty before the first user."""
        self.voters = VoterSet()
        self.quorum_epoch: Epoch = 0
        self.quorum_leader: NodeId = NO_NODE

        self.deleted: list[TopicImage] = []
        """Topics that are no more; whoever applies records empties it once all have seen it."""
        self.places: dict[int, Place] = {}
        """Every partition, by its cluster id."""
        self.held: dict[NodeId, dict[int, Place]] = {}
        """The partitions with a replica on a node: by node, then by cluster id."""
        self.led: dict[NodeId, dict[int, Place]] = {}
        """The partitions that a node leads; NO_NODE has those that nobody leads."""
        self.strayed: dict[int, Place] = {}
        """The partitions that another leads than their first replica."""
        self.moving: dict[int, Place] = {}
        """The partitions of which replicas are being added or removed."""
        self.preferred: dict[NodeId, int] = {}
        """How many partitions have their first replica on a node."""

    def __eq__(self, other: object) -> bool:
        """Whether both know the same; indexes follow from it."""
        return isinstance(other, ClusterImage) and self._known() == other._known()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<ClusterImage {len(self.topics)} topics, {len(self.places)} partitions, "
            f"nodes {sorted(self.nodes)}, quorum epoch {self.quorum_epoch}>"
        )

    def _known(self) -> tuple[object, ...]:
        return (
            self.topics,
            self.nodes,
            self.brokers,
            self.broker_epoch_last,
            self.node_configs,
            self.acls,
            self.producer_ids_end,
            self.users,
            self.tokens,
            self.salts_secret,
            self.voters,
            self.quorum_epoch,
            self.quorum_leader,
        )

    # Looking up.

    def partitions_on(self, node: NodeId) -> list[tuple[TopicImage, TopicPartition]]:
        """Every partition with a replica on `node`."""
        return [(place.topic, place.name) for place in self.held.get(node, {}).values()]

    def replica(self, node: NodeId, cluster_id: int) -> Place | None:
        """The partition `cluster_id`, if `node` holds a replica of it."""
        return self.held.get(node, {}).get(cluster_id)

    def is_alive(self, node: NodeId) -> bool:
        """Whether the node is there, as far as the controller knows."""
        broker = self.brokers.get(node)
        return not broker.fenced if broker is not None else node in self.nodes

    def is_cordoned(self, node: NodeId) -> bool:
        """Whether the node shall get no more replicas; what it holds it keeps (KIP-1066)."""
        common = self.node_configs.get(None, {}).get(CORDONED, "")
        return bool(self.node_configs.get(node, {}).get(CORDONED, common).strip())

    def active_nodes(self) -> list[NodeId]:
        """Those that may lead, in order. A node that is alone is never fenced."""
        brokers = self.brokers
        return [n for n in sorted(self.nodes) if n not in brokers or brokers[n].is_active]

    def free_cluster_ids(self, topic_id: UUID, first: int, count: int) -> list[int]:
        """Ids for the partitions from `first` on: their hashes, or the next that nobody has."""
        ids: dict[int, None] = {}
        for number in range(first, first + count):
            cluster_id = cluster_id_of(topic_id, number)
            while cluster_id in self.places or cluster_id in ids:
                cluster_id = (cluster_id + 1) % 2**32
            ids[cluster_id] = None
        return list(ids)

    # The fold.

    def apply(self, record: MetadataRecord) -> None:
        """Take one record, in the order of the log."""
        match record:
            case PartitionChanged():
                self._change(self.topics_by_id[topic_id_of(record.topic)], record.partition, record.state)
            case TopicCreated():
                topic = TopicImage(
                    name=record.name,
                    id=UUID(record.id),
                    config=dict(record.config),
                    partitions=[],
                    sizes=list(record.sizes),
                )
                self.topics[topic.name] = self.topics_by_id[topic.id] = topic
                self._add_partitions(topic, record)
            case PartitionsAdded():
                topic = self.topics[record.topic]
                topic.sizes.append(len(topic.partitions))
                self._add_partitions(topic, record)
            case TopicDeleted():
                topic = self.topics.pop(record.name)
                del self.topics_by_id[topic.id]
                self.deleted.append(topic)
                for partition in topic.partitions:
                    del self.places[partition.cluster_id]
                    self.moving.pop(partition.cluster_id, None)
                    self._unlink(partition)
            case TopicConfigChanged():
                topic = self.topics[record.topic]
                topic.config, topic.encoded = dict(record.config), None
            case NodeConfigChanged():
                self.node_configs[record.node] = dict(record.config)
            case AclAdded():
                self.acls.add(binding_of(record))
            case AclRemoved():
                self.acls.remove(binding_of(record))
            case ProducerIdsGranted():
                self.producer_ids_end = record.end
            case UserChanged() if record.verifiers:
                self.users[record.name] = dict(record.verifiers)
            case UserChanged():
                self.users.pop(record.name, None)
            case TokenGranted():
                self.tokens[record.token.id] = record.token
            case TokenRevoked():
                self.tokens.pop(record.id, None)
            case SaltsChosen():
                self.salts_secret = record.secret
            case NodeRegistered():
                self.nodes[record.node] = record.incarnation
                self._open_epochs(record.node)
            case LeaderChanged():
                self.quorum_epoch, self.quorum_leader = record.epoch, record.leader
                self.voters = VoterSet(record.voters)
            case VotersChanged():
                self.voters = VoterSet(record.voters)
            case SnapshotBegan():
                self.broker_epoch_last = record.broker_epoch_last
                self.quorum_epoch = record.quorum_epoch
                self.quorum_leader = record.quorum_leader
            case _:
                self._apply_to_brokers(record)

    def _apply_to_brokers(
        self,
        record: BrokerRegistered | BrokerFenced | BrokerUnfenced | BrokerShutdownWanted | BrokerUnregistered,
    ) -> None:
        node, brokers = record.node, self.brokers
        match record:
            case BrokerRegistered():
                self.nodes[node] = record.incarnation
                self.broker_epoch_last = max(self.broker_epoch_last, record.broker_epoch)
                brokers[node] = BrokerImage(
                    node=node,
                    incarnation=record.incarnation,
                    broker_epoch=record.broker_epoch,
                    directory=record.directory,
                    kafka=record.kafka,
                    peer=record.peer,
                    http=record.http,
                    rack=record.rack,
                    listeners=record.listeners,
                )
            case BrokerFenced():
                brokers[node] = msgspec.structs.replace(brokers[node], fenced=True)
            case BrokerUnfenced():
                brokers[node] = msgspec.structs.replace(brokers[node], fenced=False)
            case BrokerShutdownWanted():
                brokers[node] = msgspec.structs.replace(brokers[node], shutting_down=True)
            case BrokerUnregistered():
                del brokers[node], self.nodes[node]
                self.node_configs.pop(node, None)
            case _:
                assert_never(record)

    def _add_partitions(self, topic: TopicImage, record: TopicCreated | PartitionsAdded) -> None:
        if record.partitions:
            added = list(map(PartitionImage.of, record.partitions))
        else:
            ids = self.free_cluster_ids(topic.id, len(topic.partitions), len(record.replicas))
            added = list(map(_all_in_sync, ids, record.replicas))
        topic.encoded = None
        places, link = self.places, self._link
        for number, partition in enumerate(added, len(topic.partitions)):
            place = places[partition.cluster_id] = Place(topic, number)
            link(partition, place)
            if partition.is_moving:
                self.moving[partition.cluster_id] = place
        topic.partitions += added

    def _change(self, topic: TopicImage, number: int, state: PartitionState) -> None:
        before, after = topic.partitions[number], PartitionImage.of(state)
        assert before.cluster_id == after.cluster_id, "a partition keeps its cluster id"
        place = self.places[after.cluster_id]
        topic.partitions[number] = after
        topic.encoded = None
        if before.replicas != after.replicas:
            self._unlink(before)
            self._link(after, place)
        elif before.leader != after.leader:
            # Who holds it is not touched: a large index to which all is added again is made anew.
            _drop(self.led, before.leader, after.cluster_id)
            self._link_leader(after, place)
        if after.is_moving:
            self.moving[after.cluster_id] = place
        else:
            self.moving.pop(after.cluster_id, None)

    def _open_epochs(self, node: NodeId) -> None:
        for topic, number in self.led.get(node, {}).values():
            before = topic.partitions[number]
            topic.partitions[number] = msgspec.structs.replace(before, epoch=before.epoch + 1)
            topic.encoded = None

    # The indexes.

    def _link(self, partition: PartitionImage, place: Place) -> None:
        cluster_id, preferred, held = partition.cluster_id, partition.replicas[0], self.held
        for node in partition.replicas:
            if node not in held:
                held[node] = {}
            held[node][cluster_id] = place
        self.preferred[preferred] = self.preferred.get(preferred, 0) + 1
        self._link_leader(partition, place)

    def _link_leader(self, partition: PartitionImage, place: Place) -> None:
        cluster_id, leader = partition.cluster_id, partition.leader
        if leader not in self.led:
            self.led[leader] = {}
        self.led[leader][cluster_id] = place
        if leader != partition.replicas[0]:
            self.strayed[cluster_id] = place
        else:
            self.strayed.pop(cluster_id, None)

    def _unlink(self, partition: PartitionImage) -> None:
        cluster_id, preferred = partition.cluster_id, partition.replicas[0]
        for node in partition.replicas:
            _drop(self.held, node, cluster_id)
        _drop(self.led, partition.leader, cluster_id)
        self.preferred[preferred] -= 1
        if not self.preferred[preferred]:
            del self.preferred[preferred]
        self.strayed.pop(cluster_id, None)


def _drop(index: dict[NodeId, dict[int, Place]], node: NodeId, cluster_id: int) -> None:
    """Take one entry out; a node with none has no entry, so that equal images have equal ones."""
    del index[node][cluster_id]
    if not index[node]:
        del index[node]


def _all_in_sync(cluster_id: int, replicas: list[NodeId]) -> PartitionImage:
    return PartitionImage(
        cluster_id=cluster_id,
        replicas=tuple(replicas),
        in_sync=frozenset(replicas),
        leader=replicas[0],
        epoch=FIRST_EPOCH,
    )
