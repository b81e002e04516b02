"""What is read of what members tell each other: their topics, and for operators what each was given.

Protocols are the clients' own affair. Of the type `consumer` the coordinator must know which topics
are consumed, so that it neither expires nor deletes their offsets.
"""

# subscription := version: int16, count: int32, topic{count}, ...        (big-endian)
# topic        := length: int16, UTF-8
#                 What follows the topics differs from version to version and is not read.

from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.model import TopicPartition
from tidelog.wire.reader import Reader

CONSUMER: Final = "consumer"
"""The protocol type of Kafka's consumers; others (`connect`, ...) are opaque."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None where the bytes are not a subscription."""
    reader = Reader(metadata)
    try:
        if reader.int16() < 0:
            return None
        return frozenset([reader.text() for _ in range(reader.count())])
    except CorruptMessage:
        return None


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """What a consumer was given; None where the bytes say something else."""
    # assignment := version: int16, count: int32, topic{count}, user data: bytes?   (big-endian)
    # topic      := name: int16 and UTF-8, count: int32, partition: int32{count}
    # What later versions append is not read.
    if not data:
        return ()
    reader = Reader(data)
    places = []
    try:
        if reader.int16() < 0:
            return None
        for _ in range(reader.count()):
            topic = reader.text()
            places += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
    except CorruptMessage:
        return None
    return tuple(sorted(places))
