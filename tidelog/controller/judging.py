"""Which records the image can take, and which of them another node may propose.

Rule 1: `unfit` is a function of the image and the record alone, and the same in every version: each node
        passes over the same committed records. So it names what would break the image or what rests on it
        (a second topic of one name, a partition without replicas, a name that leads out of the data
        directory), and nothing that is a matter of opinion or of settings.
Rule 2: `refusal` judges a proposal before it is committed, as if its records had been applied one after
        the other. It may become stricter with any version.
Rule 3: both cost what the records name, however large the image is, and neither changes it.
"""

from collections.abc import Iterable, Sequence
from typing import Final, assert_never
from uuid import UUID

from tidelog.config import DYNAMIC_NODE_SETTINGS, TopicConfig, all_node_settings, topic_config
from tidelog.controller import membership, users
from tidelog.controller.acls import binding_of
from tidelog.controller.decisions import PARTITIONS_MAX, PRODUCER_IDS_BLOCK
from tidelog.controller.image import ClusterImage, PartitionImage
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
    topic_id_of,
)
from tidelog.errors import BrokerError, ConfigError
from tidelog.model import METADATA_TOPIC, METADATA_TOPIC_ID, NO_NODE, NodeId, topic_name_problem
from tidelog.security.acls import binding_problem
from tidelog.security.scram import HASHES
from tidelog.security.tokens import Token, is_fit

RECORDS_MAX: Final = 250_000
"""Of one proposal: a setting of all nodes may change every partition."""
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
UINT32_MAX: Final = 2**32 - 1
_NOT_PROPOSED: Final = "only the active controller decides this"
_RESERVED: Final = frozenset({METADATA_TOPIC_ID, UUID(int=0)})


def unfit(image: ClusterImage, record: MetadataRecord) -> str | None:
    """Why the image cannot take a record; None if it can."""
    return _Draft(image).unfit(record)


def refusal(image: ClusterImage, records: Sequence[MetadataRecord], source: NodeId) -> str | None:
    """Why records that node `source` proposes must not be committed; None if they may be."""
    if len(records) > RECORDS_MAX:
        return f"{len(records)} records at once; at most {RECORDS_MAX} are taken"
    draft = _Draft(image)
    for record in records:
        problem = draft.unfit(record) or draft.improper(record, source)
        if problem is not None:
            return f"{type(record).__name__}: {problem}"
        draft.take(record)
    return None


class _Draft:
    """An image, and what records would make of it that are not applied."""

    __slots__ = ("_cluster_ids", "_counts", "_image", "_names", "_partitions")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._names: dict[str, UUID | None] = {}
        """The ids of topics that were created; None of those that were deleted."""
        self._counts: dict[UUID, int] = {}
        """How many partitions topics have that were created or grew; 0 once they are deleted."""
        self._partitions: dict[tuple[UUID, int], PartitionImage] = {}
        self._cluster_ids: dict[int, None] = {}

    # Looking.

    def _id_of(self, name: str) -> UUID | None:
        if name in self._names:
            return self._names[name]
        topic = self._image.topics.get(name)
        return None if topic is None else topic.id

    def _count_of(self, topic_id: UUID) -> int:
        if topic_id in self._counts:
            return self._counts[topic_id]
        topic = self._image.topics_by_id.get(topic_id)
        return 0 if topic is None else len(topic.partitions)

    def _partition(self, topic_id: UUID, number: int) -> PartitionImage | None:
        found = self._partitions.get((topic_id, number))
        if found is None:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is not None and number < len(topic.partitions):
                found = topic.partitions[number]
        return found

    # What breaks the image.

    def unfit(self, record: MetadataRecord) -> str | None:
        """Why the image cannot take the record, once it has those that were taken before."""
        match record:
            case PartitionChanged():
                return self._unfit_change(record)
            case TopicCreated():
                return self._unfit_creation(record)
            case PartitionsAdded():
                topic_id = self._id_of(record.topic)
                if topic_id is None:
                    return f"there is no topic {record.topic!r}"
                return self._unfit_partitions(record.replicas, record.partitions)
            case TopicDeleted():
                return None if self._id_of(record.name) else f"there is no topic {record.name!r}"
            case TopicConfigChanged():
                return None if self._id_of(record.topic) else f"there is no topic {record.topic!r}"
            case AclAdded() | AclRemoved():
                return _unfit_binding(record)
            case ProducerIdsGranted():
                return None if 0 <= record.end <= INT64_MAX else f"producer ids end at {record.end}"
            case BrokerRegistered():
                if not (0 <= record.node <= INT32_MAX and 0 <= record.broker_epoch <= INT64_MAX):
                    return f"a broker {record.node} of epoch {record.broker_epoch}"
                return None
            case BrokerFenced() | BrokerUnfenced() | BrokerShutdownWanted() | BrokerUnregistered():
                image = self._image
                is_known = record.node in image.brokers and record.node in image.nodes
                return None if is_known else f"there is no broker {record.node}"
            case _:
                return None

    def _unfit_change(self, record: PartitionChanged) -> str | None:
        topic_id = _uuid(record.topic)
        if topic_id is None or not 0 <= record.partition < self._count_of(topic_id):
            return f"there is no partition {record.partition} of {record.topic!r}"
        before = self._partition(topic_id, record.partition)
        if before is None or before.cluster_id != record.state.cluster_id:
            return f"partition {record.partition} of {record.topic} keeps its number in the cluster"
        return _unfit_state(record.state)

    def _unfit_creation(self, record: TopicCreated) -> str | None:
        if problem := topic_name_problem(record.name):
            return problem
        topic_id = _uuid(record.id)
        if topic_id is None or topic_id in _RESERVED or record.name == METADATA_TOPIC:
            return f"no topic {record.name!r} can have the id {record.id!r}"
        if self._id_of(record.name) is not None or self._count_of(topic_id):
            return f"there is a topic {record.name!r}, or one with the id {record.id}"
        return self._unfit_partitions(record.replicas, record.partitions)

    def _unfit_partitions(
        self, replicas: Sequence[Sequence[NodeId]], states: Sequence[PartitionState]
    ) -> str | None:
        for nodes in replicas if not states else ():
            if problem := _unfit_replicas(nodes):
                return problem
        places = self._image.places
        seen: set[int] = set()
        for state in states:
            cluster_id = state.cluster_id
            if cluster_id in places or cluster_id in self._cluster_ids or cluster_id in seen:
                return f"another partition has the number {cluster_id} in the cluster"
            seen.add(cluster_id)
            if problem := _unfit_state(state):
                return problem
        return None

    # What another node may not propose.

    def improper(self, record: MetadataRecord, source: NodeId) -> str | None:
        """Why a record that fits is none that node `source` may propose."""
        match record:
            case PartitionChanged():
                topic_id = UUID(record.topic)
                before = self._partition(topic_id, record.partition)
                assert before is not None, "it fits"
                if record.topic != str(topic_id):
                    return f"the id {record.topic!r} is not written as ids are"
                return self._improper_change(before, PartitionImage.of(record.state))
            case TopicCreated():
                if record.id != str(UUID(record.id)) or record.sizes:
                    return f"the topic {record.name!r} is not written as new ones are"
                return _improper_settings(record.config) or self._improper_partitions(record, 0)
            case PartitionsAdded():
                grown = self._id_of(record.topic)
                assert grown is not None, "it fits"
                return self._improper_partitions(record, self._count_of(grown))
            case TopicDeleted():
                return None
            case TopicConfigChanged():
                return _improper_settings(record.config)
            case NodeConfigChanged():
                return self._improper_node_settings(record)
            case AclAdded():
                return binding_problem(binding_of(record))
            case AclRemoved():
                return None
            case ProducerIdsGranted():
                most = self._image.producer_ids_end + PRODUCER_IDS_BLOCK
                if record.node != source or not self._image.producer_ids_end < record.end <= most:
                    return f"node {source} cannot grant node {record.node} producer ids up to {record.end}"
                return None
            case BrokerUnregistered():
                try:
                    wanted = membership.unregister(self._image, record.node)
                except BrokerError as error:
                    return str(error)
                return None if record == wanted else f"broker {record.node} has begun another life"
            case UserChanged():
                return self._improper_user(record)
            case TokenGranted():
                return self._improper_token(record.token)
            case TokenRevoked():
                return None
            case SaltsChosen():
                is_first = not self._image.salts_secret and record.secret
                return None if is_first else "the salts were chosen already"
            case NodeRegistered() | BrokerRegistered() | BrokerFenced() | BrokerUnfenced():
                return _NOT_PROPOSED
            case BrokerShutdownWanted() | LeaderChanged() | VotersChanged() | SnapshotBegan():
                return _NOT_PROPOSED
            case _:
                assert_never(record)

    def _improper_change(self, before: PartitionImage, after: PartitionImage) -> str | None:
        if after.partition_epoch != before.partition_epoch + 1:
            return f"partition epoch {after.partition_epoch} does not follow {before.partition_epoch}"
        rises = after.epoch - before.epoch
        if rises not in (0, 1) or (after.leader != before.leader and not rises):
            return f"leader epoch {after.epoch} does not follow {before.epoch}"
        known = {*self._image.nodes, *before.replicas}
        return _improper_state(after, known)

    def _improper_partitions(self, record: TopicCreated | PartitionsAdded, there: int) -> str | None:
        count = len(record.replicas)
        if not 1 <= count <= PARTITIONS_MAX - there:
            return f"{count} more partitions"
        if not record.partitions and self._image.brokers:
            return "in a cluster each new partition says who is in sync"
        if record.partitions and [list(s.replicas) for s in record.partitions] != record.replicas:
            return "the partitions' replicas are said twice, in two ways"
        known = set(self._image.nodes)
        for state in map(PartitionImage.of, record.partitions):
            if (state.epoch, state.partition_epoch) != (FIRST_EPOCH, 0) or state.leader == NO_NODE:
                return "a new partition begins in its first epoch, with a leader"
            if state.eligible or state.adding or state.removing or state.lost or state.original:
                return "a new partition has no history"
            if problem := _improper_state(state, known):
                return problem
        if not record.partitions and not known.issuperset(
            node for nodes in record.replicas for node in nodes
        ):
            return "there is no such node"
        return None

    def _improper_node_settings(self, record: NodeConfigChanged) -> str | None:
        image = self._image
        if not (record.node is None or record.node in image.nodes or record.node in image.node_configs):
            return f"there is no node {record.node}"
        known = all_node_settings()
        for key, value in record.config.items():
            if key not in DYNAMIC_NODE_SETTINGS:
                return f"{key!r} cannot be changed at runtime"
            try:
                known[key].parse(value)
            except ConfigError as error:
                return str(error)
        return None

    def _improper_user(self, record: UserChanged) -> str | None:
        image = self._image
        if not record.verifiers:
            return None if record.name in image.users else f"there is no user {record.name!r}"
        if record.name not in image.users and len(image.users) >= users.USERS_MAX:
            return f"there are {users.USERS_MAX} users"
        if not HASHES.keys() >= record.verifiers.keys():
            return "a mechanism that is not known"
        try:
            users.check_name(record.name)
            for verifier in record.verifiers.values():
                users.check_cost(verifier.iterations, verifier.salt)
        except BrokerError as error:
            return str(error)
        return None

    def _improper_token(self, token: Token) -> str | None:
        if token.id in self._image.tokens or len(self._image.tokens) >= users.TOKENS_MAX:
            return f"there is a token {token.id!r}, or there are {users.TOKENS_MAX}"
        if not is_fit(token):
            return f"the token {token.id!r} has no id or digest that one can have"
        try:
            users.check_name(token.user)
        except BrokerError as error:
            return str(error)
        return None

    # Going on.

    def take(self, record: MetadataRecord) -> None:
        """Go on as if the record, which fits, had been applied."""
        match record:
            case PartitionChanged():
                place = (UUID(record.topic), record.partition)
                self._partitions[place] = PartitionImage.of(record.state)
            case TopicCreated():
                topic_id = self._names[record.name] = UUID(record.id)
                self._add(topic_id, 0, record)
            case PartitionsAdded():
                known = self._id_of(record.topic)
                assert known is not None, "it fits"
                self._add(known, self._count_of(known), record)
            case TopicDeleted():
                gone = self._id_of(record.name)
                assert gone is not None, "it fits"
                self._names[record.name] = None
                self._counts[gone] = 0
            case _:
                pass

    def _add(self, topic_id: UUID, there: int, record: TopicCreated | PartitionsAdded) -> None:
        count = len(record.partitions) or len(record.replicas)
        self._counts[topic_id] = there + count
        for number, state in enumerate(record.partitions, there):
            self._cluster_ids[state.cluster_id] = None
            self._partitions[topic_id, number] = PartitionImage.of(state)


def _unfit_binding(record: AclAdded | AclRemoved) -> str | None:
    try:
        binding_of(record)
    except ValueError as error:
        return str(error)
    return None


def _uuid(written: str) -> UUID | None:
    try:
        return topic_id_of(written)
    except ValueError:
        return None


def _unfit_replicas(replicas: Sequence[NodeId]) -> str | None:
    if not replicas or len(set(replicas)) != len(replicas):
        return f"replicas {list(replicas)} are none or repeat a node"
    if min(replicas) < 0 or max(replicas) > INT32_MAX:
        return f"replicas {list(replicas)} are no nodes"
    return None


def _unfit_state(state: PartitionState) -> str | None:
    if not (
        0 <= state.cluster_id <= UINT32_MAX
        and 0 <= state.epoch < INT32_MAX
        and 0 <= state.partition_epoch < INT32_MAX
        and NO_NODE <= state.leader <= INT32_MAX
    ):
        return f"a number is out of range in {state}"
    return _unfit_replicas(state.replicas)


def _improper_state(state: PartitionImage, known: Iterable[NodeId]) -> str | None:
    replicas = set(state.replicas)
    if not replicas.issubset(known):
        return f"replicas {list(state.replicas)} name a node that is not there"
    if not state.in_sync.issubset(replicas) or not state.eligible.issubset(replicas):
        return "who is in sync or eligible has no replica"
    if state.in_sync & state.eligible:
        return "a node is in sync and has left"
    if state.leader != NO_NODE and state.leader not in state.in_sync:
        return f"node {state.leader} leads and is not in sync"
    if not state.in_sync and not state.lost:
        return "nobody is in sync, and nobody is lost"
    if len(state.removing) >= len(state.replicas) or not replicas.issuperset(
        (*state.adding, *state.removing)
    ):
        return "who is added or removed has no replica"
    return None


def _improper_settings(config: dict[str, str]) -> str | None:
    try:
        topic_config(config, TopicConfig())
    except ConfigError as error:
        return str(error)
    return None
