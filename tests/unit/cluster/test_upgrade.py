"""A directory of a node from before there were clusters, which kept its metadata by itself."""

from uuid import UUID

import pytest

from tests.unit.broker.node import Machine, batch_of
from tidelog.cluster.quorum_log import METADATA_PARTITION
from tidelog.controller.records import (
    MetadataRecord,
    NodeRegistered,
    ProducerIdsGranted,
    TopicCreated,
    encode,
)
from tidelog.errors import StorageError
from tidelog.host import Path, read_file
from tidelog.log.directory import META, PARTITION_METADATA, encode_id
from tidelog.model import METADATA_TOPIC_ID, TopicPartition
from tidelog.records import Record, encode_batch, stamp

TOPIC_ID = UUID(int=77 << 64)
LOG = "00000000000000000000.log"


def write(machine: Machine, path: Path, content: bytes) -> None:
    machine.disk.make_directory(path.parent)
    file = machine.disk.open(path, create=True)
    file.write(0, [content])
    file.close()


def old_directory(machine: Machine) -> None:
    """As version 0.1 left it when it was killed: no voters, no brokers, no checkpoints."""
    root = Path(machine.config.data)
    identity = f"version=1\ncluster.id={encode_id(UUID(int=5))}\nnode.id=1\n"
    write(machine, root / META, f"{identity}directory.id={encode_id(UUID(int=6))}\n".encode())
    metadata = b""
    records: tuple[MetadataRecord, ...] = (
        NodeRegistered(node=1, incarnation="first"),
        TopicCreated(name="tide", id=str(TOPIC_ID), replicas=[[1]]),
        ProducerIdsGranted(node=1, end=1000),
        NodeRegistered(node=1, incarnation="second"),
    )
    for offset, record in enumerate(records):
        batch = encode_batch([Record(value=encode(record), timestamp_ms=0)])
        stamp(batch, offset, 0 if offset < 3 else 1)
        metadata += batch
    for name, topic_id, content in (
        (METADATA_PARTITION, METADATA_TOPIC_ID, metadata),
        (TopicPartition("tide", 0), TOPIC_ID, placed(batch_of(b"kept"))),
    ):
        text = f"version: 0\ntopic_id: {encode_id(topic_id)}\n"
        write(machine, root / str(name) / PARTITION_METADATA, text.encode())
        write(machine, root / str(name) / LOG, content)
    machine.disk.sync_everything(root)


def placed(batch: bytes) -> bytes:
    stamped = bytearray(batch)
    stamp(stamped, 0, 0)
    return bytes(stamped)


def test_a_node_from_before_clusters_becomes_a_quorum_of_one_and_keeps_everything():
    machine = Machine()
    old_directory(machine)

    async def first(node):
        broker = node.broker
        assert broker.identity.cluster_id == encode_id(UUID(int=5))
        assert broker.member.quorum.raft.voters.ids == [1]
        assert broker.image.topics["tide"].id == TOPIC_ID
        assert broker.image.producer_ids_end == 1000
        assert (await node.fetch_one("tide")).high_watermark == 1
        await node.produce("tide", batch_of(b"new"))

    async def second(node):
        assert (await node.fetch_one("tide")).high_watermark == 2

    machine.live(first, killed=True)
    machine.live(second)


def test_a_lone_node_that_took_another_name_for_its_disk_is_refused_with_what_to_do():
    machine = Machine()

    async def story(node):
        await node.create("tide")

    machine.live(story)
    path = Path(machine.config.data) / META
    content = read_file(machine.disk, path).split(b"directory.id=")[0]
    write(machine, path, content + b"directory.id=" + encode_id(UUID(int=9)).encode() + b"\n")

    with pytest.raises(StorageError, match="put that id back"):
        machine.live(story)
