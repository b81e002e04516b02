"""A broker among brokers: it registers, heartbeats to every voter, and holds a lease.

Rule 1: a lease is counted from the moment the heartbeat was sent; so it ends here before it ends
        at the controller, whatever the network did in between.
Rule 2: a life that the controller does not know is over. The broker begins another one.
Rule 3: a broker asks before it stops, so that others lead what it led before it is gone.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import Beat, HeartbeatAnswer, Register, RegisterAnswer
from tidelog.controller.image import BrokerImage
from tidelog.controller.leases import Heartbeat
from tidelog.controller.registration import Registration
from tidelog.controller.reports import ReplicaReport
from tidelog.errors import DuplicateBrokerRegistration, InconsistentClusterId, StaleBrokerEpoch, TidelogError
from tidelog.host import Host
from tidelog.model import NodeId
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.05
_ASK_SECONDS_MAX: Final = 2.0
_SAY_SECONDS: Final = 5.0
_STOP_SECONDS_MAX: Final = 10.0
_LEADERLESS_SECONDS_MAX: Final = 1.5

Key = TypeVar("Key")


class Reports(Protocol[Key]):
    """What voters are told of the replicas here; see `replication.replica_reports`."""

    def news(self, voter: NodeId) -> dict[Key, ReplicaReport]: ...

    def has_unheard(self, voter: NodeId, news: dict[Key, ReplicaReport]) -> bool: ...

    def acknowledged(self, voter: NodeId, news: dict[Key, ReplicaReport]) -> bool: ...

    def forget(self, voter: NodeId) -> None: ...


class Room(Protocol):
    """What is short on this node; see `broker.room`."""

    @property
    def is_short(self) -> bool: ...

    is_full: bool


class Refused(TidelogError):
    """The cluster does not take this node; the message says what to do."""


class Membership:
    """This broker's place in its cluster."""

    def __init__(
        self,
        host: Host,
        member: ClusterMember,
        *,
        interval_seconds: float,
        lease_seconds: float,
        reporting: Reports[Any],
        room: Room,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._host = host
        self._member = member
        self._metadata = member.metadata
        self._interval = interval_seconds
        self._lease_seconds = lease_seconds
        self._reporting = reporting
        self._room = room
        self._on_fatal = on_fatal
        self._registration: Registration
        self._broker_epoch = -1
        self._known_epoch = -1
        """The newest broker epoch of this node that the controller has named."""
        self.lease_until = float("-inf")
        """When the controller stops counting on this broker, by this node's monotonic clock."""
        self._has_ended = False
        self._wants_stop = False
        self._may_stop = asyncio.Event()
        self._nudges: dict[NodeId, asyncio.Event] = {}
        self._beating: dict[NodeId, asyncio.Task[None]] = {}
        self._registering: asyncio.Task[None] | None = None
        self._leader_news = asyncio.Event()
        member.on_lead(lambda epoch: self._leader_news.set())
        member.on_follow(lambda epoch, leader: self._leader_news.set())
        self._metadata.on_applied(lambda records: self._follow_voters())

    @property
    def me(self) -> NodeId:
        return self._member.me.key.id

    @property
    def broker_epoch(self) -> int:
        """The life that this broker is in; -1 before the first."""
        return self._broker_epoch

    @property
    def broker(self) -> BrokerImage | None:
        """This life as the image has it; None while the image has none, or another one."""
        broker = self._metadata.image.brokers.get(self.me)
        if broker is None or broker.broker_epoch != self._broker_epoch:
            return None
        return broker

    @property
    def has_lease(self) -> bool:
        """Whether the controller still counts on this broker, by this node's own clock."""
        return self._host.clock.monotonic() < self.lease_until

    # Registering.

    async def register(self, registration: Registration) -> None:
        """Become a broker; returns once the image here says so."""
        self._registration = registration
        said_at = began_at = self._host.clock.monotonic()
        while True:
            self._leader_news.clear()
            problem = await self._try()
            if problem is None:
                return
            now = self._host.clock.monotonic()
            if isinstance(problem, Refused) and now - began_at > 2 * self._lease_seconds:
                raise problem
            if now - said_at >= _SAY_SECONDS:
                said_at = now
                _log.warning("not registered yet: %s", problem)
            await _set_within(self._leader_news, _RETRY_SECONDS)

    async def _try(self) -> TidelogError | None:
        leader = self._member.quorum.raft.leader
        if leader is None:
            voters = ", ".join(map(str, self._member.quorum.raft.voters.ids))
            return PeerUnreachable(
                self._member.waits_for()
                or f"the quorum has no leader; it takes more than half of the voters {voters}"
            )
        try:
            answer = await self._member.hub.ask(
                leader,
                Register(registration=self._newest_registration()),
                RegisterAnswer,
                seconds_max=_ASK_SECONDS_MAX,
            )
        except PeerUnreachable as error:
            return error
        except PeerRefused as error:
            return Refused(str(error))
        if answer.problem is not None:
            if answer.code == StaleBrokerEpoch.code:
                self._known_epoch = max(self._known_epoch, answer.broker_epoch)
            final = (DuplicateBrokerRegistration.code, InconsistentClusterId.code)
            return (Refused if answer.code in final else PeerUnreachable)(answer.problem)
        if answer.offset is None:
            return PeerUnreachable(f"node {leader} is not the active controller")
        self._broker_epoch = answer.broker_epoch
        await self._metadata.reached(answer.offset)
        return None

    def _newest_registration(self) -> Registration:
        """With the newest life of this node that is known: an earlier process's is refused."""
        known = self._metadata.image.brokers.get(self.me)
        epoch = -1 if known is None else known.broker_epoch
        return replace(self._registration, known_epoch=max(epoch, self._known_epoch))

    # Beating.

    def start(self) -> None:
        """Heartbeat from now on, to every voter."""
        self._follow_voters(started=True)

    async def unfenced(self) -> None:
        """Wait until this broker may lead."""
        while (broker := self.broker) is None or broker.fenced:
            await self._metadata.reached(self._metadata.applied + 1)

    def nudge(self) -> None:
        """Something has changed that the controller should know soon."""
        for event in self._nudges.values():
            event.set()

    def _follow_voters(self, *, started: bool = False) -> None:
        if not (started or self._beating):
            return
        voters = self._member.quorum.raft.voters.ids
        for node in voters:
            if node not in self._beating:
                self._nudges[node] = asyncio.Event()
                self._beating[node] = self._member.quorum.spawn(self._beat(node))
        for node in [node for node in self._beating if node not in voters]:
            self._beating.pop(node).cancel()
            del self._nudges[node]
            self._reporting.forget(node)
        broker = self.broker
        if self._wants_stop or (broker is not None and (broker.fenced or not self.has_lease)):
            # The controller waits to hear that this has come so far, or this for its lease.
            self.nudge()

    async def _beat(self, voter: NodeId) -> None:
        reporting, nudge = self._reporting, self._nudges[voter]
        listener: tuple[int, str] | None = None
        while True:
            nudge.clear()
            epoch = self._broker_epoch
            if listener is None or listener[0] != epoch:
                listener = None
                reporting.forget(voter)  # what this broker said in another life counts no more
            news = reporting.news(voter)
            sent_at = self._host.clock.monotonic()
            heartbeat = Heartbeat(
                node=self.me,
                broker_epoch=epoch,
                metadata_offset=self._metadata.applied,
                wants_shutdown=self._wants_stop,
                replicas=tuple(news.values()),
                disk_full=self._room.is_short,
                has_unheard=reporting.has_unheard(voter, news),
                lacks_files=self._room.is_short and not self._room.is_full,
            )
            try:
                answer = await self._member.hub.ask(
                    voter,
                    Beat(heartbeat=heartbeat, process="" if listener is None else listener[1]),
                    HeartbeatAnswer,
                    seconds_max=self._lease_seconds,
                )
            except (PeerUnreachable, PeerRefused):
                listener = None  # it may be another process by the next time
            else:
                if listener is not None and listener[1] != answer.process:
                    listener = None  # it has restarted since, and heard only the last news
                    nudge.set()
                else:
                    listener = (epoch, answer.process)
                    if reporting.acknowledged(voter, news):
                        nudge.set()  # the rest follows at once
                        await asyncio.sleep(0)  # this node answers itself in the same turn
                if answer.is_controller and epoch == self._broker_epoch:
                    self._answered(answer, sent_at)
            await _set_within(nudge, self._interval)

    def _answered(self, answer: HeartbeatAnswer, sent_at: float) -> None:
        if not answer.is_known:
            self.lease_until = float("-inf")
            if self._wants_stop:
                self._may_stop.set()
            elif self._registering is None:
                _log.warning("the controller does not know this life of node %d", self.me)
                self._registering = self._member.quorum.spawn(self._begin_again())
            return
        if not answer.is_fenced and not self._has_ended:
            self.lease_until = max(self.lease_until, sent_at + self._lease_seconds)
        if self._wants_stop and answer.may_stop:
            self._may_stop.set()

    async def _begin_again(self) -> None:
        """Register as another life: whatever this one led, it leads no more."""
        try:
            await self.register(replace(self._registration, incarnation=self._host.new_id().hex, clean=False))
        except Refused as error:
            _log.critical("%s", error)
            self._on_fatal(error)
        finally:
            self._registering = None

    # Stopping.

    def end(self) -> None:
        """This process takes part no more: whatever others were promised is theirs to decide."""
        self._has_ended = True
        self.lease_until = float("-inf")

    async def leave(self) -> None:
        """Let others lead what this node leads; not for ever, if nobody answers."""
        self._wants_stop = True
        self.nudge()
        led_at = began_at = self._host.clock.monotonic()
        while not self._may_stop.is_set():
            now = self._host.clock.monotonic()
            if self._member.quorum.raft.leader is not None:
                led_at = now
            if now - began_at > _STOP_SECONDS_MAX or now - led_at > _LEADERLESS_SECONDS_MAX:
                _log.warning("stopping without the controller's word")
                return
            await _set_within(self._may_stop, _RETRY_SECONDS)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, but not longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
