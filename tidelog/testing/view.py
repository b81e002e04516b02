"""What the nodes of a cluster know, looked at from inside.

Rule 1: only those are asked that run, and of several the one that knows the newest epoch is right.
Rule 2: nothing waits here; it runs where the nodes do.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.controller.image import PartitionImage
from tidelog.model import NO_NODE, NodeId
from tidelog.testing.node import InProcessNode, NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition, as the node knows it that knows the newest of it."""

    partition: int
    leader: NodeId | None
    epoch: int
    replicas: tuple[NodeId, ...]
    in_sync: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """How the nodes are."""

    controller: NodeId | None
    """Who leads the metadata quorum; None if nobody says that it does."""
    nodes: tuple[NodeStatus, ...]


class View:
    """The nodes, seen together."""

    def __init__(self, nodes: Mapping[NodeId, InProcessNode]) -> None:
        self._nodes = nodes

    def running(self) -> list[InProcessNode]:
        return [node for node in self._nodes.values() if node.is_running]

    def status(self) -> ClusterStatus:
        found = self.controller()
        return ClusterStatus(
            controller=None if found is None else found.id,
            nodes=tuple(node.look() for node in self._nodes.values()),
        )

    def controller(self) -> InProcessNode | None:
        """Who says of itself that it leads the quorum; of several the newest."""
        rafts = {node.id: node.node.broker.member.quorum.raft for node in self.running()}
        leading = [(raft.epoch, node) for node, raft in rafts.items() if raft.leader == node]
        return self._nodes[max(leading)[1]] if leading else None

    def is_whole(self, wanted: set[NodeId]) -> bool:
        """Whether the controller counts on all of these."""
        controller = self.controller()
        if controller is None:
            return False
        image = controller.node.broker.image
        return all(image.is_alive(node) for node in wanted)

    # Topics.

    def partitions(self, topic: str) -> list[PartitionStatus]:
        return [
            PartitionStatus(
                partition=number,
                leader=None if part.leader == NO_NODE else part.leader,
                epoch=part.epoch,
                replicas=part.replicas,
                in_sync=part.in_sync,
            )
            for number, part in enumerate(self._newest(topic))
        ]

    def leader(self, topic: str, partition: int) -> InProcessNode | None:
        """Who leads it, runs, and knows that it does."""
        newest = self._newest(topic)
        if partition >= len(newest):
            return None
        part = newest[partition]
        leader = self._nodes.get(part.leader)
        if leader is None or not leader.is_running:
            return None
        own = self._known(topic).get(leader.id, [])
        knows = partition < len(own) and own[partition].epoch == part.epoch
        return leader if knows else None

    def is_led_everywhere(self, topic: str) -> bool:
        """Whether every node that runs knows the topic, and all of its partitions are led."""
        if len(self._known(topic)) < len(self.running()):
            return False
        newest = self._newest(topic)
        return bool(newest) and all(self.leader(topic, number) for number in range(len(newest)))

    def is_in_sync(self, topic: str, members: frozenset[NodeId] | None) -> bool:
        """Whether all partitions are led, with these replicas in sync of all that they have."""
        newest = self._newest(topic)
        return bool(newest) and all(
            self.leader(topic, number) is not None
            and part.in_sync
            == frozenset(part.replicas if members is None else members) & frozenset(part.replicas)
            for number, part in enumerate(newest)
        )

    def _known(self, topic: str) -> dict[NodeId, list[PartitionImage]]:
        """The partitions, as every node has them that runs, and knows the topic."""
        images = {node.id: node.node.broker.image for node in self.running()}
        return {
            node: image.topics[topic].partitions for node, image in images.items() if topic in image.topics
        }

    def _newest(self, topic: str) -> list[PartitionImage]:
        known = self._known(topic).values()
        return [
            max(
                (partitions[number] for partitions in known if number < len(partitions)),
                key=lambda part: (part.epoch, part.partition_epoch),
            )
            for number in range(max(map(len, known), default=0))
        ]
