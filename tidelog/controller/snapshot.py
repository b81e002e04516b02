"""An image as bytes: the shortest log that adds up to it.

Rule 1: a snapshot is a list of records, and is read by the fold that reads the log.
Rule 2: equal images that came about in the same order have equal snapshots.
Rule 3: the caller keeps the checksum, the offset and the epoch; here is only what the image knows.
"""

# snapshot := record*             (the first is SnapshotBegan)
# record   := size: uint32, encoded: bytes[size]     (big-endian; `encoded` as in the log)

import struct
from collections.abc import Iterator
from typing import Final

from tidelog.controller.acls import added
from tidelog.controller.image import BrokerImage, ClusterImage, TopicImage
from tidelog.controller.records import (
    BrokerRegistered,
    BrokerShutdownWanted,
    BrokerUnfenced,
    MetadataRecord,
    NodeConfigChanged,
    NodeRegistered,
    ProducerIdsGranted,
    SaltsChosen,
    SnapshotBegan,
    TokenGranted,
    TopicCreated,
    UserChanged,
    VotersChanged,
    decode,
    encode,
)
from tidelog.model import NO_NODE

VERSION: Final = 1
_SIZE: Final = struct.Struct(">I")


def _records_before_topics(image: ClusterImage) -> Iterator[MetadataRecord]:
    yield SnapshotBegan(
        version=VERSION,
        broker_epoch_last=image.broker_epoch_last,
        quorum_epoch=image.quorum_epoch,
        quorum_leader=image.quorum_leader,
    )
    if len(image.voters):
        yield VotersChanged(voters=list(image.voters))
    for node, incarnation in image.nodes.items():  # before topics: it must open no epoch
        if node in image.brokers:
            yield from _broker(image.brokers[node])
        else:
            yield NodeRegistered(node=node, incarnation=incarnation)
    for changed, config in image.node_configs.items():
        yield NodeConfigChanged(node=changed, config=config)
    yield from map(added, image.acls)
    if image.producer_ids_end:
        yield ProducerIdsGranted(node=NO_NODE, end=image.producer_ids_end)
    if image.salts_secret:
        yield SaltsChosen(secret=image.salts_secret)
    for name, verifiers in image.users.items():
        yield UserChanged(name=name, verifiers=verifiers)
    for token in image.tokens.values():
        yield TokenGranted(token=token)


def _broker(broker: BrokerImage) -> Iterator[MetadataRecord]:
    yield BrokerRegistered(
        node=broker.node,
        incarnation=broker.incarnation,
        broker_epoch=broker.broker_epoch,
        directory=broker.directory,
        kafka=broker.kafka,
        peer=broker.peer,
        http=broker.http,
        rack=broker.rack,
        listeners=broker.listeners,
    )
    if not broker.fenced:
        yield BrokerUnfenced(node=broker.node, broker_epoch=broker.broker_epoch)
    if broker.shutting_down:
        yield BrokerShutdownWanted(node=broker.node, broker_epoch=broker.broker_epoch)


def _topic(topic: TopicImage) -> TopicCreated:
    return TopicCreated(
        name=topic.name,
        id=str(topic.id),
        config=topic.config,
        replicas=[list(partition.replicas) for partition in topic.partitions],
        partitions=[partition.state for partition in topic.partitions],
        sizes=topic.sizes,
    )


def encode_topic(topic: TopicImage) -> bytes:
    """The topic as a snapshot has it; encoded again only if it has changed."""
    encoded = topic.encoded
    if encoded is None:
        encoded = topic.encoded = _framed(_topic(topic))
    return encoded


def encode_snapshot(image: ClusterImage) -> bytes:
    parts = map(_framed, _records_before_topics(image))
    return b"".join((*parts, *map(encode_topic, image.topics.values())))


def _framed(record: MetadataRecord) -> bytes:
    encoded = encode(record)
    return _SIZE.pack(len(encoded)) + encoded


def decode_snapshot(data: bytes) -> ClusterImage:
    """ValueError if it is damaged, or of a later version of Tidelog."""
    image = ClusterImage()
    position = 0
    while position < len(data):
        if position + _SIZE.size > len(data):
            raise ValueError(f"the snapshot is cut off at byte {position}")
        (size,) = _SIZE.unpack_from(data, position)
        start, position = position, position + _SIZE.size + size
        if position > len(data):
            raise ValueError(f"the snapshot is cut off at byte {start}: a record of {size} bytes")
        record = decode(data[start + _SIZE.size : position])
        if isinstance(record, SnapshotBegan) is not (start == 0):
            raise ValueError(f"the snapshot has {type(record).__name__} at byte {start}")
        if isinstance(record, SnapshotBegan) and record.version > VERSION:
            raise ValueError(f"a snapshot of version {record.version}; this one knows {VERSION}")
        image.apply(record)
    if not data:
        raise ValueError("the snapshot is empty")
    return image
