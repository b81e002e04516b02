"""Drives the active controller: leases, registrations, elections.

Rule 1: it decides only while this node leads the quorum; what it hears is kept on every voter.
Rule 2: one decision at a time, through `Metadata`, like everybody else's.
Rule 3: a closed connection makes it look at once; closed and refused counts as gone.
Rule 4: a heartbeat is answered by a controller that has proof to have led after it came
        (`leadership`). A deposed one, who does not know, must renew no lease: its successor counts
        whole leases from its own beginning. Nor may it end a life that began under its successor.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tidelog.cluster.answering import answered
from tidelog.cluster.leadership import Leadership
from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import (
    Beat,
    ChangeInSync,
    HeartbeatAnswer,
    Judged,
    Register,
    RegisterAnswer,
    StepDown,
)
from tidelog.controller.controller import Controller
from tidelog.controller.elections import ConfigOf, MinInSync, step_down
from tidelog.controller.image import ClusterImage
from tidelog.controller.image import Place as PartitionPlace
from tidelog.controller.in_sync import WantedInSync, change_many
from tidelog.controller.leases import Heartbeat
from tidelog.controller.records import MetadataRecord, PartitionChanged
from tidelog.errors import BrokerError, InvalidRequest, NotController, StaleBrokerEpoch, StorageError
from tidelog.host import Host
from tidelog.model import Epoch, NodeId
from tidelog.peers.listener import Answer

_log = logging.getLogger(__name__)


class ActiveController:
    """The controller of this node, active or not."""

    def __init__(
        self,
        host: Host,
        member: ClusterMember,
        min_in_sync: MinInSync,
        config_of: ConfigOf,
        *,
        lease_seconds: float,
    ) -> None:
        self._host = host
        self._member = member
        self._metadata = member.metadata
        self._min_in_sync = min_in_sync
        self._config_of = config_of
        self._lease_seconds = lease_seconds
        self._leadership = Leadership(member)
        member.metadata.led_since = self._leadership.confirmed
        self._process = host.new_id().hex
        self._controller: Controller | None = None
        self._wake = asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None
        member.handle(Register, self._on_register)
        member.handle(Beat, self._on_heartbeat)
        member.handle(ChangeInSync, self._on_change_in_sync)
        member.handle(StepDown, self._on_step_down)
        member.on_lead(self._begin)
        member.on_follow(self._end)
        member.on_gone(self._on_gone)
        member.on_down(self._on_gone)

    def start(self) -> None:
        """Begin to listen: the node knows its cluster now."""
        metadata = self._metadata
        self._controller = controller = Controller(
            cluster_id=self._member.identity.cluster_id,
            min_in_sync=self._min_in_sync,
            config_of=self._config_of,
            lease_seconds=self._lease_seconds,
        )

        def applied(records: Sequence[MetadataRecord]) -> None:
            controller.applied(metadata.image, records, metadata.applied)
            if metadata.image.moving:
                self._wake.set()  # somebody may be in sync whom a move waited for

        metadata.on_applied(applied)

    @property
    def controller(self) -> Controller:
        assert self._controller is not None, "started before it is asked"
        return self._controller

    def _now(self) -> float:
        return self._host.clock.monotonic()

    # Leading.

    def _begin(self, epoch: Epoch) -> None:
        self.controller.begin(self._metadata.image, self._now(), self._metadata.applied)
        self._deciding = self._member.quorum.spawn(self._decide())
        for node, broker in self._metadata.image.brokers.items():
            if not broker.fenced:  # it may have gone while nobody led, or with whoever did
                self._member.quorum.spawn(self._look_for(node))

    def _end(self, epoch: Epoch, leader: NodeId | None) -> None:
        if self._deciding is not None:
            self._deciding.cancel()
            self._deciding = None

    async def _decide(self) -> None:
        """Do whatever is due, then wait until something may be."""
        while True:
            self._wake.clear()
            try:
                decided = await self._metadata.decide_here(self._due)
            except NotController:
                return
            except StorageError as error:  # the disk is full
                _log.warning("the controller must wait: %s", error)
                await asyncio.sleep(1)
                continue
            if decided:
                self._report(decided)
                continue
            deadline = self.controller.deadline(self._metadata.image, self._now())
            timer = None
            if deadline is not None:
                wait = max(deadline - self._now(), 0.001)
                timer = asyncio.get_running_loop().call_later(wait, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _due(self, image: ClusterImage) -> list[MetadataRecord]:
        return self.controller.due(image, self._now())

    def _report(self, records: list[MetadataRecord]) -> None:
        kinds: dict[str, int] = {}
        for record in records:
            kinds[type(record).__name__] = kinds.get(type(record).__name__, 0) + 1
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        _log.info("decided: %s (%s)", records[0], told)

    # Hearing.

    def _on_register(self, source: NodeId, asked: Register, place: Answer | None) -> None:
        assert place is not None
        if asked.registration.node != source:
            problem = f"node {source} cannot register node {asked.registration.node}"
            place.send(RegisterAnswer(problem=problem, code=InvalidRequest.code))
            return
        self._spawn(place, self._register, asked)

    def _spawn(self, place: Answer, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Begin what ends with an answer at `place`, its last argument."""
        self._member.quorum.spawn(answered(place, work, *args, place))

    async def _register(self, asked: Register, place: Answer) -> None:
        wanted, metadata = asked.registration, self._metadata
        if self._member.quorum.leads and self.controller.must_leave_first(metadata.image, wanted):
            self._wake.set()
            problem = f"others take over what node {wanted.node} led before; it may register then"
            place.send(RegisterAnswer(problem=problem))
            return
        try:
            await metadata.decide_here(
                lambda image: self.controller.register(image, wanted, metadata.applied)
            )
        except NotController:
            place.send(RegisterAnswer())
        except StaleBrokerEpoch as error:
            place.send(RegisterAnswer(problem=str(error), code=error.code, broker_epoch=error.current))
        except BrokerError as error:
            place.send(RegisterAnswer(problem=str(error), code=error.code))
        else:
            broker = metadata.image.brokers[wanted.node]
            place.send(RegisterAnswer(offset=metadata.applied, broker_epoch=broker.broker_epoch))
            self._wake.set()

    def _on_heartbeat(self, source: NodeId, beat: Beat, place: Answer | None) -> None:
        assert place is not None
        heartbeat, now = beat.heartbeat, self._now()
        if heartbeat.node != source:
            place.fail(f"node {source} has no heart of node {heartbeat.node}")
            return
        if beat.process not in ("", self._process):  # it told the rest to this node's last process
            heartbeat = replace(heartbeat, has_unheard=True)
        if self._controller is None:
            place.fail("this node is starting")
            return
        if not self._member.quorum.leads:
            self.controller.overheard(heartbeat, now)
            place.send(HeartbeatAnswer(is_controller=False, process=self._process))
            return
        with suppress(BrokerError):  # of a life that is over, or not known here: so it is told
            self.controller.heard(self._metadata.image, heartbeat, now)
        self._spawn(place, self._tell_standing, heartbeat)

    async def _tell_standing(self, heartbeat: Heartbeat, place: Answer) -> None:
        """Say how the broker stands once it is certain that nobody else could."""
        if not await self._leadership.confirmed():
            place.send(HeartbeatAnswer(is_controller=False, process=self._process))
            return
        standing = self.controller.standing(
            self._metadata.image, heartbeat.node, heartbeat.broker_epoch, self._now()
        )
        place.send(
            HeartbeatAnswer(
                is_controller=True,
                is_known=standing.is_known,
                is_fenced=standing.is_fenced,
                may_stop=standing.may_stop,
                process=self._process,
            )
        )
        if standing.is_fenced or heartbeat.wants_shutdown or self.controller.has_news:
            self._wake.set()

    # What leaders ask for.

    def _on_change_in_sync(self, source: NodeId, asked: ChangeInSync, place: Answer | None) -> None:
        assert place is not None, "it is a question"
        if any(wanted.leader != source for wanted in asked.wanted):
            place.fail(f"node {source} speaks for other leaders")
            return
        self._spawn(place, self._judge, asked.wanted)

    async def _judge(self, wanted: Sequence[WantedInSync], place: Answer) -> None:
        refused: dict[int, BrokerError] = {}

        def decide(image: ClusterImage) -> list[PartitionChanged]:
            changed, reasons = change_many(image, wanted, self.controller.electorate(image))
            keys = [(one.topic_id, one.partition) for one in wanted]
            refused.update((i, reasons[key]) for i, key in enumerate(keys) if key in reasons)
            return changed

        await self._have_decided(decide, refused, place)

    def _on_step_down(self, source: NodeId, asked: StepDown, place: Answer | None) -> None:
        assert place is not None, "it is a question"

        def decide(image: ClusterImage) -> list[PartitionChanged]:
            topic = image.topics_by_id.get(asked.topic_id)
            if topic is None or asked.partition >= len(topic.partitions):
                return []
            at = PartitionPlace(topic, asked.partition)
            if (at.partition.leader, at.partition.epoch) != (asked.leader, asked.epoch):
                return []  # it is done
            return [step_down(at, self.controller.electorate(image))]

        self._spawn(place, self._have_decided, decide, {})

    async def _have_decided(
        self,
        decide: Callable[[ClusterImage], list[PartitionChanged]],
        refused: Mapping[int, BrokerError],
        place: Answer,
    ) -> None:
        try:
            await self._metadata.decide_here(decide)
        except (NotController, StorageError):  # it may be in the log, and may be committed yet
            place.send(Judged())
            return
        reasons = {number: (error.code, str(error)) for number, error in refused.items()}
        place.send(Judged(is_decided=True, offset=self._metadata.applied, refused=reasons))

    def _on_gone(self, node: NodeId) -> None:
        if self._member.quorum.leads:
            self._member.quorum.spawn(self._look_for(node))

    async def _look_for(self, node: NodeId) -> None:
        """Find out whether the process of a broker's present life is gone.

        It listened before it registered, so a connection that is refused from now on proves it.
        Another life may begin meanwhile, of which that says nothing.
        """
        broker = self._metadata.image.brokers.get(node)
        if broker is None or not await self._member.hub.is_down(node):
            return
        if self._member.quorum.leads:
            _log.info("the process of node %d is gone", node)
            self.controller.gone(node, broker.broker_epoch)
            self._wake.set()
