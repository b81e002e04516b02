"""What brokers said of their replicas: how far each goes, and of which epoch its end is.

Rule 1: this is hearsay. It is in no log, is lost with the process, and never makes an election
        clean; among those who may lead it tells who has the most.
Rule 2: what a broker said in another life counts no more.
Rule 3: a voter may hear of a replica before it has applied what the broker has. What it forgets as
        it applies the rest was said before that; the broker does not say the other things again.
Rule 4: what is damaged is indexed, and so is what has just become so or ceased to be: whoever
        decides looks at these alone.
"""

from collections.abc import Container, Iterable, Iterator

import msgspec

from tidelog.model import Epoch, NodeId, Offset


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """How far a replica goes."""

    cluster_id: int
    last_epoch: Epoch
    """The epoch of its last record."""
    end: Offset
    watermark: Offset
    damaged: bool = False
    """It found that it cannot read what it had committed, and has not got it back yet."""
    cut: bool = False
    """Its start discarded bytes, and it has not been in sync since: what it takes for a torn tail
    may have been rot of a batch, and committed. Or it does not know who wrote records that are
    deleted."""


class ReplicaReports:
    """The last report of every replica, by (broker, partition's cluster id)."""

    __slots__ = ("_by_node", "full_is_news", "unsettled")

    def __init__(self) -> None:
        self._by_node: dict[NodeId, _Said] = {}
        self.unsettled: dict[int, None] = {}
        """The partitions of which a replica was damaged, or became sound, and nobody has looked
        at them since; by cluster id. Whoever has looked takes them out."""
        self.full_is_news = False
        """Whether another broker's disk is full, and nobody has acted on it since."""

    def take(
        self,
        node: NodeId,
        broker_epoch: int,
        replicas: Iterable[ReplicaReport],
        now: float,
        *,
        metadata_offset: Offset = 0,
        disk_full: bool = False,
        has_unheard: bool = False,
        lacks_files: bool = False,
    ) -> None:
        """A broker may tell of all its replicas, or only of those that have changed.

        It has applied all metadata below `metadata_offset`. With `has_unheard` it holds others, of
        which it has told nothing here.
        """
        said = self._by_node.get(node)
        if said is None or said.broker_epoch < broker_epoch:
            self.unsettled |= said.damaged if said is not None else {}
            said = self._by_node[node] = _Said(broker_epoch)
        if said.broker_epoch == broker_epoch:  # else it is late, from an earlier life
            said.at = now
            self.full_is_news |= disk_full and not said.disk_full
            said.disk_full, said.lacks_files = disk_full, lacks_files
            said.has_told_all |= not has_unheard
            for report in replicas:
                said.reports[report.cluster_id] = report
                said.on[report.cluster_id] = metadata_offset
                if report.damaged != (report.cluster_id in said.damaged):
                    self._turn(said, report)

    def _turn(self, said: "_Said", report: ReplicaReport) -> None:
        self.unsettled[report.cluster_id] = None
        if report.damaged:
            said.damaged[report.cluster_id] = None
        else:
            del said.damaged[report.cluster_id]

    def get(self, node: NodeId, cluster_id: int) -> ReplicaReport | None:
        said = self._by_node.get(node)
        return None if said is None else said.reports.get(cluster_id)

    def said_in(self, broker_epoch: int, node: NodeId, cluster_id: int) -> ReplicaReport | None:
        """What this life of the broker said of the partition."""
        said = self._by_node.get(node)
        if said is None or said.broker_epoch != broker_epoch:
            return None
        return said.reports.get(cluster_id)

    def has_told_all(self, node: NodeId, broker_epoch: int) -> bool:
        """Whether this life of the broker has told of every replica that it found at its start."""
        said = self._by_node.get(node)
        return said is not None and said.broker_epoch == broker_epoch and said.has_told_all

    def is_damaged(self, node: NodeId, cluster_id: int) -> bool:
        said = self._by_node.get(node)
        return said is not None and cluster_id in said.damaged

    def is_full(self, node: NodeId) -> bool:
        """Whether the broker said last that its disk is full, or that it lacks descriptors."""
        said = self._by_node.get(node)
        return said is not None and said.disk_full

    def lacks_files(self, node: NodeId) -> bool:
        """Whether the broker said last that it can open no more files, though it has room."""
        said = self._by_node.get(node)
        return said is not None and said.disk_full and said.lacks_files

    def full(self) -> list[NodeId]:
        """The brokers whose disks are full, in order."""
        return sorted(node for node, said in self._by_node.items() if said.disk_full)

    def is_cut(self, node: NodeId, cluster_id: int) -> bool:
        report = self.get(node, cluster_id)
        return report is not None and report.cut

    def damaged(self) -> Iterator[int]:
        """The partitions of which some replica is damaged, by cluster id; one may come twice."""
        for said in self._by_node.values():
            yield from said.damaged

    def age(self, node: NodeId, now: float) -> float | None:
        """How long ago the broker said anything; None if it never did."""
        said = self._by_node.get(node)
        return None if said is None else now - said.at

    def keep_replicas(self, cluster_id: int, replicas: Container[NodeId], applied: Offset) -> None:
        """Forget what others said of the partition: by the log below `applied` they hold it not.

        Should they hold it again, it is another log.
        """
        for node, said in self._by_node.items():
            if node not in replicas and said.on.get(cluster_id, applied) < applied:
                said.forget(cluster_id)

    def forget(self, cluster_ids: Iterable[int], applied: Offset) -> None:
        """These partitions are no more: their topic is deleted, by the log below `applied`."""
        for cluster_id in cluster_ids:
            for said in self._by_node.values():
                if said.on.get(cluster_id, applied) < applied:
                    said.forget(cluster_id)
            if not any(cluster_id in said.damaged for said in self._by_node.values()):
                self.unsettled.pop(cluster_id, None)


class _Said:
    """All that one life of a broker said."""

    __slots__ = ("at", "broker_epoch", "damaged", "disk_full", "has_told_all", "lacks_files", "on", "reports")

    def __init__(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self.at = 0.0
        self.reports: dict[int, ReplicaReport] = {}
        self.on: dict[int, Offset] = {}
        """Below which offset the broker had applied the metadata when it said so."""
        self.damaged: dict[int, None] = {}
        self.disk_full = self.lacks_files = False
        self.has_told_all = False

    def forget(self, cluster_id: int) -> None:
        del self.reports[cluster_id], self.on[cluster_id]
        self.damaged.pop(cluster_id, None)
