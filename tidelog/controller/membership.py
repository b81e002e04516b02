"""Brokers that go, come back, want to stop or are removed: what changes with them.

Rule 1: a broker's record comes first, then those of the partitions that it changes, as many as go
        into one batch (`worklist`). The rest follows: until then a fenced broker may still be named
        as a leader, or in sync. It neither leads, without a lease, nor is it elected, or let in.
Rule 2: several brokers at once are one decision: leadership never moves to one who goes, too.
"""

from collections.abc import Collection
from itertools import islice
from typing import Final

from tidelog.controller import elections
from tidelog.controller.elections import Electorate
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    BrokerFenced,
    BrokerShutdownWanted,
    BrokerUnfenced,
    BrokerUnregistered,
    MetadataRecord,
)
from tidelog.controller.worklist import CHANGED
from tidelog.errors import BrokerIdNotRegistered, InvalidRequest
from tidelog.model import NodeId

_NAMED_MAX: Final = 5
"""How many of a broker's partitions are named where it cannot go because of them."""


def fence(image: ClusterImage, nodes: Collection[NodeId], electorate: Electorate) -> list[MetadataRecord]:
    """Their leases are over: others lead what they led, or nobody does."""
    records: list[MetadataRecord] = [
        BrokerFenced(node=node, broker_epoch=image.brokers[node].broker_epoch) for node in sorted(nodes)
    ]
    records += islice(elections.leave(image, nodes, electorate.without_nodes(nodes)), CHANGED)
    return records


def unfence(image: ClusterImage, nodes: Collection[NodeId], electorate: Electorate) -> list[MetadataRecord]:
    """They are there: what nobody led is led again, if they or others can."""
    records: list[MetadataRecord] = [
        BrokerUnfenced(node=node, broker_epoch=image.brokers[node].broker_epoch) for node in sorted(nodes)
    ]
    records += islice(elections.come(image, nodes, electorate.with_nodes(nodes)), CHANGED)
    return records


def begin_shutdown(
    image: ClusterImage, nodes: Collection[NodeId], electorate: Electorate
) -> list[MetadataRecord]:
    """They want to stop: move what they lead to others, while they still answer for it."""
    records: list[MetadataRecord] = [
        BrokerShutdownWanted(node=node, broker_epoch=image.brokers[node].broker_epoch)
        for node in sorted(nodes)
    ]
    records += islice(elections.leave(image, nodes, electorate.without_nodes(nodes)), CHANGED)
    return records


def unregister(image: ClusterImage, node: NodeId) -> BrokerUnregistered:
    """Forget a broker that will not come back."""
    broker = image.brokers.get(node)
    if broker is None:
        raise BrokerIdNotRegistered(node)
    if held := image.held.get(node):
        named = [str(place.name) for place in islice(held.values(), _NAMED_MAX)]
        more = f" and {len(held) - len(named)} more" if len(held) > len(named) else ""
        raise InvalidRequest(
            f"broker {node} holds replicas of {', '.join(named)}{more}; move them elsewhere "
            f"(`tidelog brokers drain {node}`) and wait until they are there"
        )
    if not broker.fenced:
        raise InvalidRequest(f"broker {node} is running; stop it first")
    if node in image.voters.ids:
        raise InvalidRequest(
            f"broker {node} is a voter of the quorum; let it be one no longer "
            f"(`tidelog quorum remove {node}`)"
        )
    return BrokerUnregistered(node=node, broker_epoch=broker.broker_epoch)
