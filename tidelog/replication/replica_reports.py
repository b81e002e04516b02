"""What this node tells the voters of its replicas: how far each of them goes.

Rule 1: the cost follows what changed. A replica is looked at once it is marked as changed, and each
        look passes over some of the others in turn, so that no change stays untold for good.
Rule 2: a voter is told what it has not acknowledged. One that did not answer may be another process
        by the next time, and is told everything again.
Rule 3: one heartbeat looks at a few hundred replicas, and carries at most `NEWS_MAX` reports; the
        next one follows at once.
Rule 4: until a voter was told of every replica, it hears that there are others: it may let this
        node lead none of them, for the next heartbeat may tell that one is damaged.
"""

from collections.abc import Container
from itertools import islice
from typing import Final

from tidelog.cluster.metadata import Metadata
from tidelog.controller.reports import ReplicaReport
from tidelog.model import NodeId
from tidelog.partition.driver import Partition
from tidelog.replication.replicas import Replicas

NEWS_MAX: Final = 250
_LOOKED_AT_ONCE: Final = 250
_SWEPT_AT_ONCE: Final = 100


class Reporting:
    """The reports of one node's replicas, and who has heard which of them."""

    def __init__(self, node_id: NodeId, metadata: Metadata, replicas: Replicas) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._replicas = replicas
        self._reports: dict[Partition, ReplicaReport] = {}
        self._marked: dict[Partition, None] = {}
        self._is_behind = False
        """Whether the last look has left some of the marked ones to the next."""
        self._untold: dict[NodeId, dict[Partition, ReplicaReport]] = {}
        self._unheard: dict[NodeId, dict[Partition, None]] = {}
        """Of which replicas each voter has heard nothing yet."""
        self._to_sweep: list[Partition] = []

    # What happens here.

    def mark(self, partition: Partition) -> None:
        """Its report may have changed; or it is held here no more."""
        self._marked[partition] = None

    def repeat(self, partition: Partition) -> None:
        """The metadata has changed who holds it: the voters may have forgotten what was said."""
        self._reports.pop(partition, None)
        self._marked[partition] = None

    # What voters hear.

    def news(self, voter: NodeId) -> dict[Partition, ReplicaReport]:
        """What the voter is to be told next."""
        untold = self._untold.get(voter)
        self._look()
        if untold is None:
            untold = self._untold[voter] = dict(self._reports)
            self._unheard[voter] = dict.fromkeys(self._replicas.all())
        return dict(islice(untold.items(), NEWS_MAX))

    def has_unheard(self, voter: NodeId, news: Container[Partition]) -> bool:
        """Whether there are replicas of which the voter knows nothing, even with these news."""
        return any(partition not in news for partition in self._unheard.get(voter, ()))

    def acknowledged(self, voter: NodeId, news: dict[Partition, ReplicaReport]) -> bool:
        """The voter knows these; whether there are more to tell it at once."""
        untold = self._untold.get(voter)
        if untold is None:
            return True
        unheard = self._unheard[voter]
        for partition, report in news.items():
            unheard.pop(partition, None)
            if untold.get(partition) is report:
                del untold[partition]
        return bool(untold or unheard) or self._is_behind

    def forget(self, voter: NodeId) -> None:
        """It did not answer, or votes no more: what it knows is not known here."""
        self._untold.pop(voter, None)
        self._unheard.pop(voter, None)

    # Looking.

    def _look(self) -> None:
        for partition in list(islice(self._marked, _LOOKED_AT_ONCE)):
            del self._marked[partition]
            self._look_at(partition)
        self._is_behind = bool(self._marked)
        if not self._to_sweep:
            self._to_sweep = self._replicas.all()
        for partition in self._to_sweep[-_SWEPT_AT_ONCE:]:
            self._look_at(partition)
        del self._to_sweep[-_SWEPT_AT_ONCE:]

    def _look_at(self, partition: Partition) -> None:
        report = self._report(partition)
        if report is None:
            self._reports.pop(partition, None)
            for voter, untold in self._untold.items():
                untold.pop(partition, None)
                self._unheard[voter].pop(partition, None)
        elif self._reports.get(partition) != report:
            self._reports[partition] = report
            for untold in self._untold.values():
                untold[partition] = report

    def _report(self, partition: Partition) -> ReplicaReport | None:
        """How far the replica goes; None if the metadata does not say that this node holds it."""
        image, number = self._metadata.image, partition.name.partition
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is None or not self._replicas.holds(partition):
            return None
        cluster_id = topic.partitions[number].cluster_id
        if image.replica(self._node_id, cluster_id) is None:
            return None
        log = partition.log
        is_ignorant = partition.leader is None and log.is_ignorant
        return ReplicaReport(
            cluster_id,
            log.epochs.latest,
            log.synced_end,
            partition.high_watermark,
            log.damaged_at is not None and not partition.leads_damaged,
            partition.is_cut or is_ignorant,
        )
