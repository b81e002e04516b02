"""What brokers said of their replicas: how far each goes, and of which epoch its end is.

Rule 1: this is hearsay. It is in no log, is lost with the process, and never makes an election
        clean; among those who may lead it tells who has the most.
Rule 2: what a broker said in another life counts no more.
"""

from collections.abc import Container, Iterable

import msgspec

from tidelog.model import Epoch, NodeId, Offset


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """How far a replica goes."""

    cluster_id: int
    last_epoch: Epoch
    """The epoch of its last record."""
    end: Offset
    watermark: Offset


class ReplicaReports:
    """The last report of every replica, by (broker, partition's cluster id)."""

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[NodeId, _Said] = {}

    def take(
        self, node: NodeId, broker_epoch: int, replicas: Iterable[ReplicaReport], now: float
    ) -> None:
        """A broker may tell of all its replicas, or only of those that have changed."""
        said = self._by_node.get(node)
        if said is None or said.broker_epoch < broker_epoch:
            said = self._by_node[node] = _Said(broker_epoch)
        if said.broker_epoch == broker_epoch:  # else it is late, from an earlier life
            said.at = now
            for report in replicas:
                said.reports[report.cluster_id] = report

    def get(self, node: NodeId, cluster_id: int) -> ReplicaReport | None:
        said = self._by_node.get(node)
        return None if said is None else said.reports.get(cluster_id)

    def age(self, node: NodeId, now: float) -> float | None:
        """How long ago the broker said anything; None if it never did."""
        said = self._by_node.get(node)
        return None if said is None else now - said.at

    def keep_only(self, known: Container[int]) -> None:
        """Forget the partitions that are not `known`: their topics are deleted."""
        for said in self._by_node.values():
            for cluster_id in [i for i in said.reports if i not in known]:
                del said.reports[cluster_id]


class _Said:
    """All that one life of a broker said."""

    __slots__ = ("at", "broker_epoch", "reports")

    def __init__(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self.at = 0.0
        self.reports: dict[int, ReplicaReport] = {}
