"""Histories of a cluster, as records that follow each other, for tests of what folds them."""

from uuid import UUID

import msgspec
from hypothesis import strategies as st

from tidelog.controller import elections
from tidelog.controller.acls import added
from tidelog.controller.elections import Electorate, min_in_sync
from tidelog.controller.image import ClusterImage, Place
from tidelog.controller.records import (
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
    TokenGranted,
    TokenRevoked,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
    VotersChanged,
)
from tidelog.controller.reports import ReplicaReport, ReplicaReports
from tidelog.model import NO_NODE, Endpoint
from tidelog.raft.voters import ReplicaKey, Voter
from tidelog.security.acls import Binding, Effect, Pattern
from tidelog.security.permissions import Kind, Operation
from tidelog.security.principals import Principal
from tidelog.security.scram import Verifier
from tidelog.security.tokens import Token

NODES = (1, 2, 3, 4)
AT = Endpoint(host="h", port=9)


def registered(node, *, epoch=1, directory=None, rack=None, incarnation=None):
    return BrokerRegistered(
        node=node,
        incarnation=incarnation or f"i{node}.{epoch}",
        broker_epoch=epoch,
        directory=directory or f"d{node}",
        kafka=Endpoint(host=f"k{node}", port=9092),
        peer=Endpoint(host=f"p{node}", port=9192),
        rack=rack,
    )


def voters(*nodes):
    return [Voter(ReplicaKey(node, f"d{node}"), f"p{node}", 9192) for node in nodes]


def image_after(*records):
    image = ClusterImage()
    for record in records:
        image.apply(record)
    return image


def cluster(*nodes, racks=None):
    """Registered and unfenced brokers, in records; the broker epochs are 1, 2, ..."""
    records: list[MetadataRecord] = []
    for epoch, node in enumerate(nodes, start=1):
        records.append(registered(node, epoch=epoch, rack=(racks or {}).get(node)))
        records.append(BrokerUnfenced(node=node, broker_epoch=epoch))
    return records


@st.composite
def histories(draw, size_max=30):
    """Records that could follow each other in a log, whether or not anybody would decide them."""
    image, records = ClusterImage(), []
    for number in range(draw(st.integers(0, size_max))):
        record = draw(st.sampled_from(_KINDS))(draw, image, number)
        if record is not None:
            image.apply(record)
            records.append(record)
    return records


def _some(draw, *, least=1):
    return draw(st.lists(st.sampled_from(NODES), min_size=least, max_size=3, unique=True))


def _topic(draw, image):
    return draw(st.sampled_from(sorted(image.topics))) if image.topics else None


def _broker(draw, image):
    node = draw(st.sampled_from(sorted(image.brokers))) if image.brokers else None
    return None if node is None else {"node": node, "broker_epoch": image.brokers[node].broker_epoch}


def _states(draw, image, topic_id, first, replicas):
    ids = image.free_cluster_ids(topic_id, first, len(replicas))
    return [
        PartitionState(cluster_id, tuple(nodes), (nodes[0],), nodes[0], 0)
        for cluster_id, nodes in zip(ids, replicas, strict=True)
    ]


def _create(draw, image, number):
    name = draw(st.sampled_from(["a", "b", "c"]))
    if name in image.topics:
        return None
    topic_id = UUID(int=number + 1)
    replicas = [_some(draw) for _ in range(draw(st.integers(1, 3)))]
    states = _states(draw, image, topic_id, 0, replicas) if draw(st.booleans()) else []
    return TopicCreated(name=name, id=str(topic_id), replicas=replicas, partitions=states)


def _grow(draw, image, number):
    name = _topic(draw, image)
    if name is None:
        return None
    replicas = [_some(draw) for _ in range(draw(st.integers(1, 2)))]
    topic = image.topics[name]
    first = len(topic.partitions)
    states = _states(draw, image, topic.id, first, replicas) if draw(st.booleans()) else []
    return PartitionsAdded(topic=name, replicas=replicas, partitions=states)


def _change(draw, image, number):
    name = _topic(draw, image)
    if name is None:
        return None
    topic = image.topics[name]
    place = Place(topic, draw(st.integers(0, len(topic.partitions) - 1)))
    replicas = _some(draw)
    in_sync = frozenset(draw(st.lists(st.sampled_from(replicas), min_size=1)))
    lost = (ReplicaKey(9, "gone"),) if draw(st.booleans()) else ()
    after = place.partition.changed(
        replicas=tuple(replicas),
        in_sync=in_sync,
        leader=draw(st.sampled_from([NO_NODE, *sorted(in_sync)])),
        eligible=frozenset(replicas) - in_sync,
        lost=lost,
        adding=tuple(draw(st.lists(st.sampled_from(replicas), unique=True))),
        removing=tuple(replicas[draw(st.integers(0, len(replicas))) :]),
        original=tuple(_some(draw, least=0)),
    )
    return PartitionChanged(topic=str(topic.id), partition=place.number, state=after.state)


def _delete(draw, image, number):
    name = _topic(draw, image)
    return None if name is None else TopicDeleted(name=name)


def _configure(draw, image, number):
    name = _topic(draw, image)
    return None if name is None else TopicConfigChanged(topic=name, config={"n": str(number)})


def _configure_node(draw, image, number):
    return NodeConfigChanged(node=draw(st.sampled_from([None, *NODES])), config={"n": str(number)})


def _change_user(draw, image, number):
    names = draw(st.sets(st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"])))
    verifiers = {name: Verifier(b"salt", number, b"stored", b"server") for name in sorted(names)}
    return UserChanged(name=draw(st.sampled_from(["u", "v"])), verifiers=verifiers)


def _allow(draw, image, number):
    return added(
        Binding(
            principal=Principal("User", draw(st.sampled_from("ab"))),
            operation=draw(st.sampled_from(Operation)),
            effect=draw(st.sampled_from(Effect)),
            kind=Kind.TOPIC,
            name=draw(st.sampled_from(["t", "u", "*"])),
            pattern=draw(st.sampled_from(Pattern)),
        )
    )


def _forbid(draw, image, number):
    known = list(image.acls)
    if not known:
        return None
    return AclRemoved(**msgspec.structs.asdict(added(draw(st.sampled_from(known)))))


def _grant_token(draw, image, number):
    token_id = draw(st.sampled_from(["t", "s"]))
    return TokenGranted(token=Token(id=token_id, user="u", digest=b"digest", created_ms=number))


def _start_alone(draw, image, number):
    node = draw(st.sampled_from(NODES))
    if node in image.brokers:
        return None
    return NodeRegistered(node=node, incarnation=str(number))


def _register(draw, image, number):
    node = draw(st.sampled_from(NODES))
    return registered(node, epoch=image.broker_epoch_last + 1, rack=draw(st.sampled_from([None, "r"])))


def _of_broker(kind):
    def make(draw, image, number):
        known = _broker(draw, image)
        return None if known is None else kind(**known)

    return make


def _lead(draw, image, number):
    return LeaderChanged(
        epoch=image.quorum_epoch + 1, leader=draw(st.sampled_from(NODES)), voters=voters(*_some(draw))
    )


_KINDS = [
    _create,
    _create,
    _grow,
    _change,
    _change,
    _change,
    _delete,
    _configure,
    _configure_node,
    _start_alone,
    _register,
    _of_broker(BrokerFenced),
    _of_broker(BrokerUnfenced),
    _of_broker(BrokerShutdownWanted),
    _of_broker(BrokerUnregistered),
    _lead,
    lambda draw, image, number: VotersChanged(voters=voters(*_some(draw))),
    _change_user,
    _grant_token,
    lambda draw, image, number: TokenRevoked(id=draw(st.sampled_from(["t", "s"]))),
    lambda draw, image, number: SaltsChosen(secret=bytes([number % 256])),
    lambda draw, image, number: ProducerIdsGranted(node=1, end=image.producer_ids_end + 1000),
    _allow,
    _forbid,
]


# One partition in one topic, for tests of who leads it.

TOPIC_ID = UUID(int=5)
CLUSTER_ID = 7


def partition_in(state_replicas, in_sync, leader, *, eligible=(), epoch=3, lost=(), config=None):
    """The record of a topic `t` with this one partition, at partition epoch 4."""
    state = PartitionState(
        CLUSTER_ID,
        tuple(state_replicas),
        tuple(in_sync),
        leader,
        epoch,
        4,
        tuple(eligible),
        (),
        (),
        tuple(lost),
    )
    return TopicCreated(
        name="t", id=str(TOPIC_ID), replicas=[list(state_replicas)], partitions=[state], config=config or {}
    )


def the_place(image):
    return Place(image.topics["t"], 0)


def states(records):
    """What the records make of partitions: (leader, in sync, eligible, epoch, partition epoch)."""
    return [
        (r.state.leader, r.state.in_sync, r.state.eligible, r.state.epoch, r.state.partition_epoch)
        for r in records
        if isinstance(r, PartitionChanged)
    ]


def electorate(image, *, reports=None, minimum=1):
    return Electorate.of(image, reports or ReplicaReports(), min_in_sync(minimum))


def reported(**ends):
    """Reports of the one partition: n1=(last epoch, end) or n1=(last epoch, end, damaged).

    Each is of the life that `cluster` begins.
    """
    reports = ReplicaReports()
    for name, (last_epoch, end, *damaged) in ends.items():
        report = ReplicaReport(CLUSTER_ID, last_epoch, end, 0, *damaged)
        node = int(name[1:])
        reports.take(node, node, [report], now=0.0)
    return reports


def elect_all(image, able):
    """Everything that nobody leads and somebody can, as the controller finds it."""
    places = list(image.led.get(NO_NODE, {}).values())
    found = [elections.lead_again(place, able) for place in places]
    return [record for record in found if record is not None]


def restore_preferred(image, able, *, count_max):
    """What goes back to first replicas, as the controller finds it."""
    found = [elections.given_back(place, able) for place in image.strayed.values()]
    return [record for record in found if record is not None][:count_max]
