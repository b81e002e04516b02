"""The one thing the coordinator reads of what members tell each other: their topics.

Protocols are the clients' own affair. Of the type `consumer` the coordinator must know which topics
are consumed, so that it neither expires nor deletes their offsets.
"""

# subscription := version: int16, count: int32, topic{count}, ...        (big-endian)
# topic        := length: int16, UTF-8
#                 What follows the topics differs from version to version and is not read.

from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.groups.records import Reader

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
