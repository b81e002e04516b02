"""The active controller: what it hears, and what it decides by itself.

The law:

1. A decision is made on an image that holds everything decided before it. The driver makes one at
   a time: it asks, proposes the records as one batch, waits until that is committed and applied
   (or lost, with the leadership), and only then asks again.
2. What is heard (`heard`, `gone`) changes soft knowledge at once, even while a batch is under way,
   and decides nothing. What follows from it is found by `due`, which looks at the whole state:
   nothing is forgotten if a proposal fails, and asking twice does no harm.
3. Soft knowledge is in no log. It is worth keeping on every voter (heartbeats come to all); but
   leases begin anew with `begin`, once the first record of the quorum's epoch is applied.
4. Time is monotonic, in seconds, and comes as an argument.

What others want (topics, configs, in-sync sets) is decided by functions of an image; see
`decisions`, `in_sync` and `elections`. They need no controller, only rule 1.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.controller import elections, membership, reassignment, registration
from tidelog.controller.elections import ConfigOf, Electorate, MinInSync, own_config
from tidelog.controller.image import ClusterImage
from tidelog.controller.leases import LEASE_SECONDS, Heartbeat, Leases
from tidelog.controller.records import MetadataRecord, NodeConfigChanged, PartitionChanged, TopicConfigChanged
from tidelog.controller.registration import Registration
from tidelog.controller.reports import ReplicaReports
from tidelog.controller.worklist import CHANGED, Worklist
from tidelog.model import NO_NODE, NodeId, Offset

PREFERRED_SECONDS: Final = 5.0
"""How often leadership is given back to first replicas, and what nobody leads is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a broker is told when it asks."""

    is_known: bool
    """False: this life of it is over, or never began. It must register."""
    is_fenced: bool
    may_stop: bool
    """It leads nothing, and all others know."""


class Controller:
    """Soft knowledge of the cluster, and the decisions that follow from it."""

    def __init__(
        self,
        *,
        cluster_id: str,
        min_in_sync: MinInSync,
        config_of: ConfigOf = own_config,
        lease_seconds: float = LEASE_SECONDS,
        preferred_seconds: float | None = PREFERRED_SECONDS,
    ) -> None:
        """`preferred_seconds` None: leaders stay where they are."""
        self._cluster_id = cluster_id
        self._min_in_sync = min_in_sync
        self._config_of = config_of
        self._preferred_seconds = preferred_seconds
        self._leases = Leases(lease_seconds)
        self.reports = ReplicaReports()
        self._elect_all = True
        self._restore_at = 0.0
        self._to_leave = Worklist()
        """The partitions of brokers that are fenced or about to stop."""
        self._to_elect = Worklist()
        """The partitions that nobody led when they were last looked for."""
        self._to_restore = Worklist()
        """The partitions that another led than their first replica, likewise."""
        self._leaderless: dict[NodeId, tuple[int, Offset]] = {}
        """The brokers that leave and lead nothing, since which end of the log."""

    def electorate(self, image: ClusterImage) -> Electorate:
        brokers, has_told_all = image.brokers.values(), self.reports.has_told_all
        unheard = frozenset(b.node for b in brokers if not has_told_all(b.node, b.broker_epoch))
        return Electorate.of(image, self.reports, self._min_in_sync, self._config_of, unheard=unheard)

    # What happens.

    def begin(self, image: ClusterImage, now: float, end: Offset) -> None:
        """This node leads the quorum, and the image holds all that was committed before."""
        self._leases.begin(image, now)
        self._elect_all = True
        for worklist in (self._to_leave, self._to_elect, self._to_restore):
            worklist.clear()
        for node, broker in image.brokers.items():
            if not broker.is_active:  # the controller before this one may not have come to an end
                self._to_leave.add(image.held.get(node, {}))
        self._restore_at = now + (self._preferred_seconds or 0.0)
        self._leaderless = {}
        self._note_leaderless(image, end)

    def heard(self, image: ClusterImage, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat came in; refused if it is of a life that is over, or not known yet."""
        life = (heartbeat.node, heartbeat.broker_epoch)
        was_known = self.reports.has_told_all(*life)
        self.overheard(heartbeat, now)
        if not was_known and self.reports.has_told_all(*life):
            self._elect_all = True  # what it holds may have waited for its word
        self._leases.heard(image, heartbeat, now)

    def overheard(self, heartbeat: Heartbeat, now: float) -> None:
        """As `heard`, on a voter that does not lead: only what replicas have is of use."""
        self.reports.take(
            heartbeat.node,
            heartbeat.broker_epoch,
            heartbeat.replicas,
            now,
            metadata_offset=heartbeat.metadata_offset,
            disk_full=heartbeat.disk_full,
            has_unheard=heartbeat.has_unheard,
            lacks_files=heartbeat.lacks_files,
        )

    def gone(self, node: NodeId, broker_epoch: int) -> None:
        """A connection was closed *and* another refused: the process of that life is gone."""
        self._leases.gone(node, broker_epoch)

    def applied(self, image: ClusterImage, records: Sequence[MetadataRecord], end: Offset) -> None:
        """The image has `records` now, and the log up to `end`. Called on every voter."""
        for topic in image.deleted:
            self.reports.forget([partition.cluster_id for partition in topic.partitions], end)
        if any(isinstance(record, TopicConfigChanged | NodeConfigChanged) for record in records):
            self._elect_all = True  # what waits may be led by whom it might not be before
        for record in records:
            if isinstance(record, PartitionChanged):
                self.reports.keep_replicas(record.state.cluster_id, record.state.replicas, end)
        self._note_leaderless(image, end)

    def _note_leaderless(self, image: ClusterImage, end: Offset) -> None:
        for node, broker in image.brokers.items():
            if broker.shutting_down and not image.led.get(node):
                since = self._leaderless.get(node)
                if since is None or since[0] != broker.broker_epoch:
                    self._leaderless[node] = (broker.broker_epoch, end)
            else:
                self._leaderless.pop(node, None)

    # What is decided.

    def must_leave_first(self, image: ClusterImage, wanted: Registration) -> bool:
        """Whether the broker's last life holds more than one batch can end; it is fenced then.

        A registration ends that life at once, and with it all that it led. So what it led goes to
        others first, some partitions at a time. A registration that came late ends nothing: the
        life that is known has a process, and that counts on its lease.
        """
        known = image.brokers.get(wanted.node)
        if known is None or known.incarnation == wanted.incarnation:
            return False
        if registration.is_late(known, wanted):
            return False
        if known.directory != wanted.directory or len(image.held.get(wanted.node, ())) <= CHANGED:
            return False
        if not known.fenced:
            self._leases.gone(wanted.node, known.broker_epoch)
        return not known.fenced or bool(self._to_leave)

    def register(self, image: ClusterImage, wanted: Registration, end: Offset) -> list[MetadataRecord]:
        """The records of a registration; `end` is where they will be in the log."""
        return registration.register(
            image, wanted, self.electorate(image), cluster_id=self._cluster_id, end=end
        )

    def due(self, image: ClusterImage, now: float) -> list[MetadataRecord]:
        """The next batch that follows from what is known; empty if there is nothing to do.

        One kind of change at a time, so that each is decided on the image that the others made.
        """
        electorate = self.electorate(image)
        if nodes := self._leases.ended(image, now):
            self._leave(image, nodes)
            return membership.fence(image, nodes, electorate)
        if nodes := self._leases.leaving(image, now):
            self._leave(image, nodes)
            return membership.begin_shutdown(image, nodes, electorate)
        if left := self._left(image, electorate):
            return left
        if nodes := self._leases.ready(image, now):
            self._elect_all = True  # one batch may not have all that they can lead
            return membership.unfence(image, nodes, electorate)
        if records := elections.settle_damage(image, electorate, self.reports.unsettled):
            return list(records)
        self.reports.unsettled.clear()
        if self.reports.full_is_news or self._is_time(now):
            if records := elections.relieve_full(image, electorate, count_max=CHANGED):
                return list(records)
            self.reports.full_is_news = False
        if records := reassignment.completed(image.moving.values(), electorate, count_max=CHANGED):
            return list(records)
        # The controller before this one may not have come to it; or a setting allows it now.
        if self._elect_all or self._is_time(now):
            self._elect_all = False
            self._to_elect.add(image.led.get(NO_NODE, {}))
        if self._is_time(now):
            self._restore_at = now + (self._preferred_seconds or 0.0)
            self._to_restore.add(image.strayed)
        elected = self._to_elect.look(image, lambda place: elections.lead_again(place, electorate))
        return list(
            elected or self._to_restore.look(image, lambda place: elections.given_back(place, electorate))
        )

    def _leave(self, image: ClusterImage, nodes: Collection[NodeId]) -> None:
        for node in nodes:
            self._to_leave.add(image.held.get(node, {}))

    def _left(self, image: ClusterImage, electorate: Electorate) -> list[MetadataRecord]:
        """The next partitions that brokers which are gone, or go, lead no more."""
        gone = image.brokers.keys() - electorate.active
        return list(self._to_leave.look(image, lambda place: elections.left(place, gone, electorate)))

    def _is_time(self, now: float) -> bool:
        return self._preferred_seconds is not None and now >= self._restore_at

    def deadline(self, image: ClusterImage, now: float) -> float | None:
        """When `due` may have something to do though nothing happens; it may be in the past."""
        if self._to_leave or self._to_elect or self._to_restore:
            return now
        ends = self._leases.deadline(image, now)
        is_awaited = image.strayed or self.reports.full()
        if not is_awaited or self._preferred_seconds is None:
            return ends
        return self._restore_at if ends is None else min(ends, self._restore_at)

    @property
    def has_news(self) -> bool:
        """Whether something was heard on which `due` may have to act at once."""
        return bool(self.reports.unsettled) or self.reports.full_is_news or self._elect_all

    # What is answered.

    def standing(self, image: ClusterImage, node: NodeId, broker_epoch: int, now: float) -> Standing:
        """How a life of a broker stands, for the answer to its heartbeat."""
        broker = image.brokers.get(node)
        if broker is None or broker.broker_epoch != broker_epoch:
            return Standing(is_known=False, is_fenced=True, may_stop=True)
        return Standing(
            is_known=True,
            is_fenced=broker.fenced or self._leases.is_over(image, node),
            may_stop=broker.fenced or self._has_left(image, node, now),
        )

    def _has_left(self, image: ClusterImage, node: NodeId, now: float) -> bool:
        since = self._leaderless.get(node)
        if since is None:
            return False
        others = self._leases.reached(image, now, besides=node)
        return others is None or others >= since[1]
