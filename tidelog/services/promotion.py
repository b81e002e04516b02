"""An operator says who leads a partition: planned, or by force.

Rule 1: the active controller decides, and refuses elsewhere: it alone has heard for sure how far
        replicas go, which of them are damaged, and whose disks are full.
Rule 2: it can be asked for without being done, to learn what may be lost.
"""

from dataclasses import dataclass

from tidelog.broker.broker import Broker
from tidelog.broker.electing import electorate_of, find_place, require_controller
from tidelog.controller import elections
from tidelog.controller.image import ClusterImage, PartitionImage, Place
from tidelog.controller.records import PartitionChanged
from tidelog.errors import ElectionNotNeeded
from tidelog.model import Epoch, NodeId, Offset, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """How far a replica goes, as it said last."""

    end: Offset
    last_epoch: Epoch
    """Of its last record."""
    watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Who leads a partition now, or would, and what that costs."""

    name: TopicPartition
    before: PartitionImage
    after: PartitionImage
    is_clean: bool
    """Whether the leader holds all that was committed."""
    known: dict[NodeId, Known]
    """The replicas of which this node has heard."""

    @property
    def leader(self) -> NodeId:
        return self.after.leader

    @property
    def has_changed(self) -> bool:
        return self.after != self.before

    @property
    def longest(self) -> NodeId | None:
        """Who has the longest log, of those of whom it is known; not by epochs, by its end."""
        return max(self.known, key=lambda node: self.known[node].end, default=None)

    @property
    def records_lost_max(self) -> int | None:
        """How many records past the leader's end some replica has; None if it is not known.

        Nothing that counts is lost with a clean leader: what it lacks was never committed.
        """
        if self.is_clean:
            return 0
        mine = self.known.get(self.leader)
        if mine is None:
            return None
        return max(known.end for known in self.known.values()) - mine.end


async def promote(
    broker: Broker, name: TopicPartition, target: NodeId | None, *, force: bool, dry_run: bool
) -> Promotion:
    """Let `target` lead, or whoever has the longest log."""
    decided: Promotion | None = None

    def decide(image: ClusterImage) -> list[PartitionChanged]:
        nonlocal decided
        require_controller(broker)
        place = find_place(image, name)
        electorate = electorate_of(broker, image)
        before = place.partition
        try:
            record = elections.promote(place, target, electorate, force=force)
        except ElectionNotNeeded:
            # If the reply to an earlier attempt was lost, its own outcome is seen here.
            decided = decided or Promotion(
                name=name, before=before, after=before, is_clean=True, known=known(broker, place)
            )
            return []
        after = PartitionImage.of(record.state)
        is_clean = after.leader == before.leader or elections.loses_nothing(before, after.leader, electorate)
        decided = Promotion(
            name=name, before=before, after=after, is_clean=is_clean, known=known(broker, place)
        )
        return [record]

    require_controller(broker)
    if dry_run:
        decide(broker.image)
    else:
        await broker.metadata.change(decide)
        await broker.acted()
    assert decided is not None, "decided, or refused"
    return decided


def known(broker: Broker, place: Place) -> dict[NodeId, Known]:
    """How far the replicas go: the one here exactly, others as they said in their heartbeats."""
    partition, reports = place.partition, broker.controller.controller.reports
    found: dict[NodeId, Known] = {}
    for node in partition.replicas:
        report = reports.get(node, partition.cluster_id)
        here = broker.replicas.get(place.topic.id, place.number)
        if node == broker.node_id and here is not None:
            log = here.log
            found[node] = Known(end=log.end, last_epoch=log.epochs.latest, watermark=here.high_watermark)
        elif report is not None:
            found[node] = Known(end=report.end, last_epoch=report.last_epoch, watermark=report.watermark)
    return found
