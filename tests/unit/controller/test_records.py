from itertools import pairwise
from uuid import UUID

import msgspec
import pytest

from tests.unit.controller.histories import image_after, registered, voters
from tidelog.controller.records import (
    FORMAT,
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerShutdownWanted,
    BrokerUnfenced,
    BrokerUnregistered,
    LeaderChanged,
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
    decode,
    encode,
)
from tidelog.model import Endpoint
from tidelog.raft.voters import ReplicaKey
from tidelog.security.scram import Verifier
from tidelog.security.tokens import Token

STATE = PartitionState(2**32 - 1, (1, 2, 3), (1, 3), -1, 7, 9, (2,), (4,), (2,), (ReplicaKey(1, "d"),))

RECORDS = [
    NodeRegistered(node=1, incarnation="abc"),
    TopicCreated(name="t", id="x", replicas=[[1, 2], [2]], config={"retention.ms": "5"}),
    TopicCreated(name="t", id="x", replicas=[[1]]),
    PartitionsAdded(topic="t", replicas=[[1]]),
    TopicDeleted(name="t"),
    ProducerIdsGranted(node=1, end=2**40),
    TopicConfigChanged(topic="t", config={"a": "b"}),
    NodeConfigChanged(node=None, config={}),
    AclAdded(
        principal="User:a",
        host="*",
        operation="Read",
        effect="Allow",
        kind="Topic",
        name="t",
        pattern="Prefixed",
    ),
    AclRemoved(
        principal="User:a",
        host="*",
        operation="Read",
        effect="Deny",
        kind="Topic",
        name="t",
        pattern="Literal",
    ),
    registered(1, epoch=7),
    msgspec.structs.replace(registered(2, rack="r"), http=Endpoint(host="h", port=80)),
    BrokerFenced(node=1, broker_epoch=7),
    BrokerUnfenced(node=1, broker_epoch=7),
    BrokerShutdownWanted(node=1, broker_epoch=7),
    BrokerUnregistered(node=1, broker_epoch=7),
    LeaderChanged(epoch=3, leader=1, voters=voters(1, 2, 3)),
    VotersChanged(voters=voters(1)),
    TopicCreated(name="t", id="x", replicas=[[1, 2]], partitions=[STATE]),
    PartitionsAdded(topic="t", replicas=[[1, 2]], partitions=[STATE]),
    PartitionChanged(topic="x", partition=0, state=STATE),
    SnapshotBegan(version=1, broker_epoch_last=5),
    UserChanged(name="u", verifiers={"SCRAM-SHA-256": Verifier(b"salt", 16384, b"stored", b"server")}),
    UserChanged(name="u", verifiers={}),
    SaltsChosen(secret=b"secret"),
    TokenGranted(token=Token(id="00", user="u", digest=b"digest", created_ms=1, expires_ms=2, note="n")),
    TokenRevoked(id="00"),
]

ALONE = [
    b"\x01\x83\xa4type\xaeNodeRegistered\xa4node\x01\xabincarnation\xa1a",
    b"\x01\x85\xa4type\xacTopicCreated\xa4name\xa1t\xa2id\xd9$00000000-0000-0000-0"
    b"000-000000000005\xa8replicas\x92\x91\x01\x91\x01\xa6config\x81\xacretention.ms\xa15",
    b"\x01\x83\xa4type\xaeNodeRegistered\xa4node\x01\xabincarnation\xa1b",
    b"\x01\x83\xa4type\xafPartitionsAdded\xa5topic\xa1t\xa8replicas\x91\x91\x01",
    b"\x01\x84\xa4type\xacTopicCreated\xa4name\xa1u\xa2id\xd9$00000000"
    b"-0000-0000-0000-000000000006\xa8replicas\x91\x91\x01",
    b"\x01\x82\xa4type\xacTopicDeleted\xa4name\xa1u",
    b"\x01\x83\xa4type\xb2TopicConfigChanged\xa5topic\xa1t\xa6config\x81\xaasegment.ms\xa17",
    b"\x01\x83\xa4type\xb1NodeConfigChanged\xa4node\xc0\xa6config\x81\xa1a\xa1b",
    b"\x01\x83\xa4type\xb2ProducerIdsGranted\xa4node\x01\xa3end\xcd\x03\xe8",
]
"""The log of a node that was alone, as it was written before there were clusters."""


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_as_it_was_written(record):
    assert decode(encode(record)) == record


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_a_format_byte_and_a_map_tagged_with_its_name(record):
    data = encode(record)

    assert data[0] == FORMAT == 1
    assert msgspec.msgpack.decode(data[1:])["type"] == type(record).__name__


def test_no_secret_of_a_user_is_shown_where_records_are_logged():
    shown = repr(RECORDS[-5:])

    assert "'u'" in shown and "16384" in shown
    assert not any(secret in shown for secret in ("salt", "stored", "server", "secret", "digest"))


def test_a_field_of_a_later_version_is_passed_over():
    data = b"\x01" + msgspec.msgpack.encode({"type": "TopicDeleted", "name": "t", "later": 1})

    assert decode(data) == TopicDeleted(name="t")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + encode(TopicDeleted(name="t"))[1:],
        encode(TopicDeleted(name="t"))[:-1],
        b"\x01" + msgspec.msgpack.encode({"type": "QuotaSet", "name": "t"}),
        b"\x01" + msgspec.msgpack.encode({"type": "TopicDeleted"}),
        b"\x01\xff\xff",
    ],
)
def test_what_is_damaged_or_of_a_later_format_stops_the_reader(data):
    with pytest.raises(ValueError):
        decode(data)


def test_the_log_of_a_node_that_was_alone_means_what_it_meant():
    image = image_after(*map(decode, ALONE))

    assert (image.nodes, image.brokers, image.producer_ids_end) == ({1: "b"}, {}, 1000)
    assert image.node_configs == {None: {"a": "b"}}
    (topic,) = image.topics.values()
    assert (topic.name, topic.id, topic.config) == ("t", UUID(int=5), {"segment.ms": "7"})
    assert [(p.leader, p.in_sync, p.epoch) for p in topic.partitions] == [
        (1, {1}, 1),
        (1, {1}, 1),
        (1, {1}, 0),
    ]
    assert [p.cluster_id for p in topic.partitions] == [
        cluster_id_of(topic.id, number) for number in range(3)
    ]


@pytest.mark.parametrize("data", ALONE)
def test_what_a_node_that_was_alone_wrote_is_written_the_same_today(data):
    assert encode(decode(data)) == data


def test_a_state_may_grow_at_its_end():
    record = PartitionChanged(topic="x", partition=0, state=STATE)
    shorter = msgspec.msgpack.decode(encode(record)[1:])
    longer = {**shorter, "state": [*shorter["state"], "later"]}
    shorter = {**shorter, "state": shorter["state"][:5]}

    assert decode(b"\x01" + msgspec.msgpack.encode(longer)) == record
    known = decode(b"\x01" + msgspec.msgpack.encode(shorter))
    assert isinstance(known, PartitionChanged)
    assert known.state == PartitionState(2**32 - 1, (1, 2, 3), (1, 3), -1, 7)


def test_the_cluster_ids_of_one_topic_differ_and_never_change():
    ids = sorted(cluster_id_of(UUID(int=5), number) for number in range(10_000))

    assert all(one < next_one for one, next_one in pairwise(ids))
    assert cluster_id_of(UUID(int=5), 0) == 0xC73514FD
