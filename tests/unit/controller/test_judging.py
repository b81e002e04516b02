"""What may be proposed, and what the image can take of what was committed."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from tidelog.config import TopicConfig
from tidelog.controller.decisions import (
    Defaults,
    NewTopic,
    add_partitions,
    change_node_config,
    change_topic_config,
    create_topic,
    delete_topic,
    grant_producer_ids,
)
from tidelog.controller.image import ClusterImage, Place
from tidelog.controller.judging import refusal, unfit
from tidelog.controller.records import (
    AclAdded,
    BrokerFenced,
    BrokerRegistered,
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
    SnapshotBegan,
    TokenGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
    VotersChanged,
)
from tidelog.controller.snapshot import decode_snapshot, encode_snapshot
from tidelog.model import Endpoint
from tidelog.security.scram import Verifier
from tidelog.security.tokens import Token

ID, OTHER_ID = UUID(int=77), UUID(int=78)
DEFAULTS = Defaults(partitions=3, replication=-1, topic=TopicConfig())
ELSEWHERE = Endpoint(host="here", port=1)


def new_topic(image: ClusterImage, name: str = "orders", topic_id: UUID = ID) -> TopicCreated:
    return create_topic(image, NewTopic(name=name, config={"retention.ms": "5"}), topic_id, DEFAULTS)


@pytest.fixture
def image() -> ClusterImage:
    """Three brokers and a topic."""
    image = ClusterImage()
    for node in (1, 2, 3):
        image.apply(
            BrokerRegistered(
                node=node, incarnation="x", broker_epoch=node, directory="d", kafka=ELSEWHERE, peer=ELSEWHERE
            )
        )
        image.apply(BrokerUnfenced(node=node, broker_epoch=node))
    image.apply(new_topic(image))
    return image


def state(image: ClusterImage, **changes: Any) -> PartitionState:
    return msgspec.structs.replace(image.topics["orders"].partitions[0].changed().state, **changes)


def changed(
    image: ClusterImage, topic: str = str(ID), partition: int = 0, **changes: Any
) -> PartitionChanged:
    return PartitionChanged(topic=topic, partition=partition, state=state(image, **changes))


def test_what_nodes_decide_is_taken(image):
    second = new_topic(image, "visits", OTHER_ID)
    records: list[MetadataRecord] = [
        second,
        add_partitions(image, "orders", 5, None),
        change_topic_config(image, name="orders", config={"retention.ms": "7"}, defaults=TopicConfig()),
        change_node_config(image, node=None, config={"num.partitions": "4"}),
        grant_producer_ids(image, 2),
        changed(image),
        delete_topic(image, "orders", None),
    ]
    for record in records:
        assert refusal(image, [record], 2) is None
    assert refusal(image, records, 2) is None


def unfit_records(image: ClusterImage) -> dict[str, MetadataRecord]:
    partition = state(image)
    created = new_topic(image, "visits", OTHER_ID)

    def create(**changes: Any) -> TopicCreated:
        return msgspec.structs.replace(created, **changes)

    def first(**changes: Any) -> TopicCreated:
        one = msgspec.structs.replace(created.partitions[0], **changes)
        return create(partitions=[one, *created.partitions[1:]])

    return {
        "partition of no topic": changed(image, topic=str(OTHER_ID)),
        "partition of nonsense": changed(image, topic="../../etc"),
        "partition too high": changed(image, partition=3),
        "partition below 0": changed(image, partition=-1),
        "another's number": changed(image, cluster_id=partition.cluster_id ^ 1),
        "no replicas": changed(image, replicas=()),
        "a replica twice": changed(image, replicas=(1, 1)),
        "a node below 0": changed(image, replicas=(-5,)),
        "epoch at its end": changed(image, epoch=2**31 - 1),
        "epoch beyond its end": changed(image, epoch=2**40),
        "partition epoch beyond": changed(image, partition_epoch=2**31),
        "leader beyond": changed(image, leader=2**31),
        "name with a path": create(name="../../../tmp/owned"),
        "name with a slash": create(name="a/b"),
        "empty name": create(name=""),
        "name of dots": create(name=".."),
        "name with NUL": create(name="a\0b"),
        "the metadata's own name": create(name="__cluster_metadata"),
        "the metadata's own id": create(id=str(UUID(int=1))),
        "id of nonsense": create(id="nonsense"),
        "known name": create(name="orders"),
        "known id": create(id=str(ID)),
        "number of another": first(cluster_id=partition.cluster_id),
        "number twice": create(partitions=[created.partitions[0]] * 3),
        "new without replicas": create(partitions=[], replicas=[[]]),
        "new with a replica twice": first(replicas=(2, 2)),
        "more of no topic": PartitionsAdded(topic="gone", replicas=[[1]]),
        "delete no topic": TopicDeleted(name="gone"),
        "settings of no topic": TopicConfigChanged(topic="gone", config={}),
        "ids below 0": ProducerIdsGranted(node=1, end=-1),
        "ids beyond": ProducerIdsGranted(node=1, end=2**63),
        "permission of nonsense": AclAdded(
            principal="x",
            host="*",
            operation="Fly",
            effect="Allow",
            kind="Topic",
            name="t",
            pattern="Literal",
        ),
        "fence nobody": BrokerFenced(node=9, broker_epoch=1),
        "forget nobody": BrokerUnregistered(node=9, broker_epoch=1),
    }


UNFIT = [
    "partition of no topic",
    "partition of nonsense",
    "partition too high",
    "partition below 0",
    "another's number",
    "no replicas",
    "a replica twice",
    "a node below 0",
    "epoch at its end",
    "epoch beyond its end",
    "partition epoch beyond",
    "leader beyond",
    "name with a path",
    "name with a slash",
    "empty name",
    "name of dots",
    "name with NUL",
    "the metadata's own name",
    "the metadata's own id",
    "id of nonsense",
    "known name",
    "known id",
    "number of another",
    "number twice",
    "new without replicas",
    "new with a replica twice",
    "more of no topic",
    "delete no topic",
    "settings of no topic",
    "ids below 0",
    "ids beyond",
    "permission of nonsense",
    "fence nobody",
    "forget nobody",
]


@pytest.mark.parametrize("what", UNFIT)
def test_what_breaks_the_image_is_neither_committed_nor_taken(image, what):
    record = unfit_records(image)[what]

    assert unfit(image, record) is not None
    assert refusal(image, [record], 1) is not None


def test_all_that_breaks_the_image_is_tried(image):
    assert list(unfit_records(image)) == UNFIT


def test_what_fits_can_be_applied_and_a_snapshot_of_it_read(image):
    for record in (new_topic(image, "visits", OTHER_ID), changed(image), TopicDeleted(name="orders")):
        assert unfit(image, record) is None
        image.apply(record)

    assert decode_snapshot(encode_snapshot(image)) == image


@pytest.mark.parametrize(
    "record",
    [
        NodeRegistered(node=1, incarnation="x"),
        BrokerFenced(node=2, broker_epoch=2),
        BrokerUnfenced(node=2, broker_epoch=2),
        LeaderChanged(epoch=9, leader=1, voters=[]),
        VotersChanged(voters=[]),
        SnapshotBegan(version=1),
        BrokerUnregistered(node=2, broker_epoch=2),
        UserChanged(name="bob", verifiers={"SCRAM-SHA-256": Verifier(b"salt" * 4, 1, b"", b"")}),
        UserChanged(name="bob", verifiers={"MD5": Verifier(b"salt" * 4, 20_000, b"", b"")}),
        UserChanged(name="nobody", verifiers={}),
        TokenGranted(token=Token(id="x", user="bob", digest=bytes(32), created_ms=1)),
        TokenGranted(token=Token(id="0" * 16, user="bob", digest=b"", created_ms=1)),
        TokenGranted(token=Token(id="0" * 16, user="", digest=bytes(32), created_ms=1)),
        NodeConfigChanged(node=None, config={"data": "/tmp"}),
        NodeConfigChanged(node=None, config={"num.partitions": "many"}),
        NodeConfigChanged(node=9, config={}),
        TopicConfigChanged(topic="orders", config={"retention.ms": "soon"}),
        TopicConfigChanged(topic="orders", config={"no.such": "1"}),
        ProducerIdsGranted(node=2, end=1000),
        ProducerIdsGranted(node=1, end=2**40),
        ProducerIdsGranted(node=1, end=0),
    ],
    ids=str,
)
def test_what_is_not_a_node_s_to_propose_is_refused(image, record):
    assert unfit(image, record) is None
    assert refusal(image, [record], 1) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"partition_epoch": 0},
        {"partition_epoch": 5},
        {"epoch": 7},
        {"epoch": -0, "leader": 2},
        {"leader": 2, "in_sync": (1, 3), "epoch": 1},
        {"in_sync": ()},
        {"in_sync": (1, 2, 3, 4)},
        {"eligible": (1,)},
        {"replicas": (1, 2, 3, 99)},
        {"removing": (1, 2, 3)},
        {"adding": (8,)},
    ],
    ids=str,
)
def test_a_partition_changes_step_by_step_and_makes_sense(image, changes):
    partition = image.topics["orders"].partitions[0]
    assert (partition.epoch, sorted(partition.replicas)) == (0, [1, 2, 3])
    leader = partition.leader
    if changes.get("leader") == leader:
        changes = {**changes, "leader": leader % 3 + 1}
    if "eligible" in changes:
        changes = {"eligible": (leader,)}

    assert refusal(image, [changed(image, **changes)], 1) is not None


def test_records_of_one_proposal_are_judged_one_after_the_other(image):
    once = changed(image)
    again = PartitionChanged(
        topic=once.topic,
        partition=0,
        state=msgspec.structs.replace(once.state, partition_epoch=once.state.partition_epoch + 1),
    )
    second = new_topic(image, "visits", OTHER_ID)

    assert refusal(image, [once, again], 1) is None
    assert refusal(image, [once, once], 1) is not None
    assert refusal(image, [second, second], 1) is not None
    assert refusal(image, [TopicDeleted(name="orders"), TopicDeleted(name="orders")], 1) is not None
    assert refusal(image, [TopicDeleted(name="orders"), once], 1) is not None
    instead = msgspec.structs.replace(second, name="orders")
    assert refusal(image, [TopicDeleted(name="orders"), instead], 1) is None


def test_judging_changes_nothing(image):
    before = encode_snapshot(image)

    refusal(image, [new_topic(image, "visits", OTHER_ID), changed(image), TopicDeleted(name="orders")], 1)

    assert encode_snapshot(image) == before
    assert Place(image.topics["orders"], 0).partition.partition_epoch == 0
