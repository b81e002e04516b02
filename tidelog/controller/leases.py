"""Who is there: heartbeats in, and who must be fenced or may be unfenced out.

Rule 1: a lease is counted from the moment a heartbeat was received, by the monotonic clock of the
        node that received it. No wall clock, no time that a broker sent.
Rule 2: leases detect failure; that a fenced broker does no harm to what is committed rests on
        epochs. A broker's own lease, counted from sending, ends before the one that is kept here.
Rule 3: nothing here is in the log. A new controller cannot know what its predecessor heard and
        answered just before: it grants every unfenced broker a whole lease from its own beginning.
        Only a broker whose process is known to be gone is fenced sooner.
Rule 4: a lease that was found to have ended stays so until the broker is fenced: that takes a
        while to be decided, and whoever is heard meanwhile must not take it for a lease.

A broker's states are kept in the image; this is what moves it between them:

    state          trigger                                          record, next state
    -------------  -----------------------------------------------  -----------------------------
    (unknown)      it registers                                     BrokerRegistered, fenced
    fenced         its lease runs, it has applied its registration  BrokerUnfenced, unfenced
                   and told of all its replicas (one that is not
                   told of may be damaged), and does not want to
                   stop
    unfenced       its lease ends, or its process is gone           BrokerFenced, fenced
    unfenced       its heartbeat says that it wants to stop         BrokerShutdownWanted, leaving
    leaving        its lease ends, or its process is gone           BrokerFenced, fenced until it
                                                                    registers again
    any            another process of it registers                  BrokerRegistered, fenced
    fenced         an operator removes it                           BrokerUnregistered

Only unfenced brokers lead or join an in-sync set.
"""

from dataclasses import dataclass
from typing import Final

from tidelog.controller.image import ClusterImage
from tidelog.controller.reports import ReplicaReport
from tidelog.errors import BrokerIdNotRegistered, StaleBrokerEpoch
from tidelog.model import NodeId, Offset

LEASE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker lives, and has come this far."""

    node: NodeId
    broker_epoch: int
    metadata_offset: Offset
    """Everything below it is applied."""
    wants_shutdown: bool = False
    replicas: tuple[ReplicaReport, ...] = ()
    disk_full: bool = False
    """Its disk has no room, or it can open no more files: it should lead nothing that another
    in-sync replica can lead."""
    has_unheard: bool = False
    """It holds replicas of which it has told the receiver nothing yet; it does next."""
    lacks_files: bool = False
    """With `disk_full`: it has room, but can open no more files."""


@dataclass(slots=True, kw_only=True)
class _Lease:
    broker_epoch: int
    until: float
    metadata_offset: Offset = 0
    wants_shutdown: bool = False
    has_unheard: bool = False
    is_over: bool = False
    """It was found to have ended, and the broker is about to be fenced."""


class Leases:
    """One lease for each broker that was heard of, in the life that it is in."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        self._seconds = lease_seconds
        self._leases: dict[NodeId, _Lease] = {}

    # What happens.

    def begin(self, image: ClusterImage, now: float) -> None:
        """This node is the controller from now on."""
        self._leases = {}
        self._unfenced(image, now)

    def heard(self, image: ClusterImage, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat was received. Refused if it is of a life that is over."""
        node = heartbeat.node
        broker = image.brokers.get(node)
        if broker is None:
            raise BrokerIdNotRegistered(node)
        if heartbeat.broker_epoch != broker.broker_epoch:
            raise StaleBrokerEpoch(epoch=heartbeat.broker_epoch, current=broker.broker_epoch)
        if self.is_over(image, node):
            return
        self._leases[node] = _Lease(
            broker_epoch=broker.broker_epoch,
            until=now + self._seconds,
            metadata_offset=heartbeat.metadata_offset,
            wants_shutdown=heartbeat.wants_shutdown,
            has_unheard=heartbeat.has_unheard,
        )

    def is_over(self, image: ClusterImage, node: NodeId) -> bool:
        """Whether the broker is about to be fenced, whatever it says now."""
        broker, lease = image.brokers.get(node), self._leases.get(node)
        return (
            broker is not None
            and lease is not None
            and lease.is_over
            and not broker.fenced
            and lease.broker_epoch == broker.broker_epoch
        )

    def gone(self, node: NodeId, broker_epoch: int) -> None:
        """Its connection was closed and another one refused: the process of that life is no more.

        A heartbeat that comes before that was acted on proves otherwise, and begins a new lease.
        """
        lease = self._leases.get(node)
        if lease is not None and lease.broker_epoch == broker_epoch:
            lease.until = float("-inf")

    # What follows from it.

    def ended(self, image: ClusterImage, now: float) -> list[NodeId]:
        """The brokers that must be fenced, in order; no heartbeat keeps them from it any more."""
        found = []
        for node, lease in self._unfenced(image, now):
            if lease.until <= now:
                lease.is_over = True
                found.append(node)
        return found

    def ready(self, image: ClusterImage, now: float) -> list[NodeId]:
        """The fenced brokers that may be unfenced, in order."""
        return [
            node
            for node, broker in sorted(image.brokers.items())
            if broker.fenced
            and not broker.shutting_down
            and (lease := self._leases.get(node)) is not None
            and lease.broker_epoch == broker.broker_epoch
            and lease.until > now
            and lease.metadata_offset > broker.broker_epoch  # which is its registration's offset
            and not lease.wants_shutdown
            and not lease.has_unheard
        ]

    def leaving(self, image: ClusterImage, now: float) -> list[NodeId]:
        """The brokers that want to stop, and whose leaving has not begun."""
        return [
            node
            for node, lease in self._unfenced(image, now)
            if lease.wants_shutdown and not image.brokers[node].shutting_down
        ]

    def reached(self, image: ClusterImage, now: float, *, besides: NodeId) -> Offset | None:
        """How far every unfenced broker but one has applied the log; None if there is no other."""
        others = [lease for node, lease in self._unfenced(image, now) if node != besides]
        return min((lease.metadata_offset for lease in others), default=None)

    def deadline(self, image: ClusterImage, now: float) -> float | None:
        """When the next lease ends, if nothing is heard until then."""
        return min((lease.until for _, lease in self._unfenced(image, now)), default=None)

    def _unfenced(self, image: ClusterImage, now: float) -> list[tuple[NodeId, _Lease]]:
        """The unfenced brokers and their leases; who was never heard is granted a whole one."""
        found = []
        for node, broker in sorted(image.brokers.items()):
            if broker.fenced:
                continue
            lease = self._leases.get(node)
            if lease is None or lease.broker_epoch != broker.broker_epoch:
                until = now + self._seconds
                lease = self._leases[node] = _Lease(broker_epoch=broker.broker_epoch, until=until)
            found.append((node, lease))
        return found
