"""Every change of the cluster's metadata, as a value that goes into the metadata log.

Rule 1: a record says what happened, never how to compute it; applying one needs no clock, no
        random number and no config, so that every node comes to the same image.
Rule 2: records are tagged msgpack maps. A field may be added with a default; none is ever renamed
        or removed. An unknown tag stops the node: it would be wrong to go on without knowing.
"""

from typing import Final, TypeAlias

import msgspec

from tidelog.model import Epoch, NodeId


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """A change; the tag is the class's name."""


class NodeRegistered(_Record, frozen=True, tag="NodeRegistered"):
    """A process of a node has started. It opens a new epoch on every partition that it led.

    No process appends in an epoch that it did not open: what an earlier one left half written can
    then be told apart.
    """

    node: NodeId
    incarnation: str


class TopicCreated(_Record, frozen=True, tag="TopicCreated"):
    name: str
    id: str
    replicas: list[list[NodeId]]
    """For each partition its replicas, the preferred leader first."""
    config: dict[str, str] = {}


class PartitionsAdded(_Record, frozen=True, tag="PartitionsAdded"):
    topic: str
    replicas: list[list[NodeId]]


class TopicDeleted(_Record, frozen=True, tag="TopicDeleted"):
    name: str


class TopicConfigChanged(_Record, frozen=True, tag="TopicConfigChanged"):
    """The topic's own settings are these now, and no others."""

    topic: str
    config: dict[str, str]


class NodeConfigChanged(_Record, frozen=True, tag="NodeConfigChanged"):
    """What was changed of a node's settings while it ran is this now; None is every node."""

    node: NodeId | None
    config: dict[str, str]


class ProducerIdsGranted(_Record, frozen=True, tag="ProducerIdsGranted"):
    """All producer ids below `end` belong to someone; the next grant begins there."""

    node: NodeId
    end: int


MetadataRecord: TypeAlias = (
    NodeRegistered
    | TopicCreated
    | PartitionsAdded
    | TopicDeleted
    | TopicConfigChanged
    | NodeConfigChanged
    | ProducerIdsGranted
)

FORMAT: Final = 1
"""The first byte of every encoded record."""

_encoder = msgspec.msgpack.Encoder()
_decoder: "msgspec.msgpack.Decoder[MetadataRecord]" = msgspec.msgpack.Decoder(MetadataRecord)

FIRST_EPOCH: Final[Epoch] = 0


def encode(record: MetadataRecord) -> bytes:
    return bytes([FORMAT]) + _encoder.encode(record)


def decode(data: bytes) -> MetadataRecord:
    """ValueError if the record is damaged or of a later version of Tidelog."""
    if not data or data[0] != FORMAT:
        raise ValueError(f"a metadata record of format {data[:1]!r}; this version knows {FORMAT}")
    return _decoder.decode(data[1:])
