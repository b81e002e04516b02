"""Which fenced brokers clients are still told of.

librdkafka forgets a broker that Metadata does not list, and one of its transactional producers waits for
ever if that was the coordinator of a group (its issue 5511).

Rule 1: a broker that was unfenced is told of for `TOLD_SECONDS` after it was fenced, by the clock of the
        node that is asked.
Rule 2: a broker that was not unfenced yet, or that was removed, is not told of.
Rule 3: a node that learns of a fenced broker from a snapshot counts from then.
Rule 4: only librdkafka is told, and only when it asks for topics. Administrators ask for brokers alone,
        and ask each of them: one that is gone fails or delays their lists of groups.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    BrokerUnregistered,
    MetadataRecord,
)
from tidelog.model import NodeId

TOLD_SECONDS: Final = 600.0
_UNFENCED: Final = float("inf")


class FencedBrokers:
    """The fenced brokers that clients are told of, and how long."""

    def __init__(self) -> None:
        self._told_until: dict[NodeId, float] = {}

    def applied(self, image: ClusterImage, records: Sequence[MetadataRecord], now: float) -> None:
        """The image has these records by now; without records, it is from a snapshot."""
        if not records:
            before, self._told_until = self._told_until, {}
            for node, broker in image.brokers.items():
                until = min(before.get(node, _UNFENCED), now + TOLD_SECONDS)
                self._told_until[node] = until if broker.fenced else _UNFENCED
        for record in records:
            match record:
                case BrokerUnfenced():
                    self._told_until[record.node] = _UNFENCED
                case BrokerFenced() | BrokerRegistered():
                    if self._told_until.get(record.node) == _UNFENCED:
                        self._told_until[record.node] = now + TOLD_SECONDS
                case BrokerUnregistered():
                    self._told_until.pop(record.node, None)

    @staticmethod
    def are_for(software: str, *, names_topics: bool) -> bool:
        """Whether a Metadata request is one whose answer tells of fenced brokers."""
        return names_topics and "rdkafka" in software

    def is_told(self, node: NodeId, now: float) -> bool:
        """Whether clients are told of this broker although it is fenced."""
        return now < self._told_until.get(node, now)
