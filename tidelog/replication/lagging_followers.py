"""Followers of this node's leaders that are behind: noticed, named, paced, and told of.

Rule 1: noticed when they ask, and by a look at all of them from time to time. Of one that does not
        ask, heartbeats say how far it is, as far as this node hears them (a voter does).
Rule 2: what waits for its pace or a place is looked at again when it may go on, and not before:
        there may be thousands. Nothing else waits for it.
Rule 3: a look at many partitions lets others run in between.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from tidelog.config import NodeConfig
from tidelog.controller.image import ClusterImage
from tidelog.controller.reports import ReplicaReports
from tidelog.host import Host
from tidelog.model import NO_OFFSET, NodeId, Offset
from tidelog.partition.catchup import CatchUp, CatchUps, Key, Pace, State
from tidelog.partition.driver import Partition
from tidelog.partition.follower_view import FollowerView
from tidelog.partition.leader import Leader
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

_SLICE: Final = 200
"""Partitions between two breaths."""
_LINES_MAX: Final = 5
"""Catch-ups that are logged one by one, between two looks."""


class Fed(Protocol):
    """What a follower reads of one partition."""

    cluster_id: int

    @property
    def node(self) -> NodeId: ...

    def grew(self) -> None:
        """Look at it again."""
        ...


class LaggingFollowers:
    """Every catch-up that this node's leaders feed."""

    def __init__(
        self,
        host: Host,
        replicas: Replicas,
        *,
        config: Callable[[], NodeConfig],
        image: Callable[[], ClusterImage],
        reports: Callable[[], ReplicaReports],
    ) -> None:
        """`reports` are what this node overhears of heartbeats."""
        self._host = host
        self._replicas = replicas
        self._config = config
        self._image = image
        self._reports = reports
        now = host.clock.monotonic()
        self.all = CatchUps(pace=Pace(config().catchup_limit), concurrent_max=config().catchup_concurrent_max)
        self._held_back: dict[Fed, None] = {}
        self._placeless: dict[Key, Fed] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._looked_at = now
        self._ends: dict[int, Offset] = {}
        """Where the logs that somebody catches up with ended at the last look."""
        self._lines = 0
        self._unsaid = 0

    def configure(self) -> None:
        """Let changed settings take effect, for those under way too."""
        config, now = self._config(), self._host.clock.monotonic()
        self.all.pace.limit(config.catchup_limit, now)
        self.all.allow(config.catchup_concurrent_max, now)
        self._give_places()
        self._release()

    # What followers do.

    def asked(
        self, fed: Fed, partition: Partition, leader: Leader, offset: Offset, now: float
    ) -> CatchUp | None:
        """A follower whose log agrees asks for what follows `offset`; None if it is level."""
        node, cluster_id = fed.node, fed.cluster_id
        lag = partition.log.end - offset
        is_in_sync = node in leader.maximal
        is_far = lag > self._config().catchup_threshold_records
        key = Key(cluster_id, node)
        known = self.all.get(key)
        if known is None and (is_in_sync or not is_far):
            return None
        if lag <= 0 or (is_in_sync and not self._is_late(leader.followers.get(node), now)):
            self._finish(key, partition, offset, now)
            return None
        is_paced = is_far and not is_in_sync
        return self._asks(key, partition, leader, offset, now, is_paced=is_paced)

    def _is_late(self, view: FollowerView | None, now: float) -> bool:
        return view is None or now - view.level_at > self._config().catchup_scan_ms / 1000

    def _asks(
        self, key: Key, partition: Partition, leader: Leader, offset: Offset, now: float, *, is_paced: bool
    ) -> CatchUp:
        is_new = self.all.get(key) is None
        log = partition.log
        known = self.all.asks(
            key,
            partition.name,
            leader.epoch,
            at=offset,
            target=log.end,
            bytes_left=log.bytes_after(offset),
            is_paced=is_paced,
            now=now,
        )
        if is_new:
            self._ends[key.cluster_id] = log.end
            self._say(
                "node %d catches up with %s: %d records, about %d bytes (%s)",
                key.follower,
                partition.name,
                known.records_left,
                known.bytes_left,
                known.id,
            )
        self._give_places()
        return known

    def _finish(self, key: Key, partition: Partition, offset: Offset, now: float) -> None:
        known = self.all.finish(key, offset, now)
        if known is not None:
            self._say(
                "node %d is level with %s, after %.1f s and %d bytes (%s)",
                key.follower,
                partition.name,
                now - known.began_at,
                known.bytes_sent,
                known.id,
            )
            self._give_places()

    def begins_anew(self, fed: Fed, partition: Partition, start: Offset) -> None:
        """What the follower lacks is deleted here."""
        key = Key(fed.cluster_id, fed.node)
        leader, now = partition.leader, self._host.clock.monotonic()
        if leader is not None:
            self._asks(key, partition, leader, start, now, is_paced=True)
            self.all.begins_anew(key, start, now)
            _log.warning(
                "the records that node %d lacks of %s are deleted here: it starts over at %d",
                key.follower,
                partition.name,
                start,
            )

    def troubled(self, fed: Fed, why: str) -> None:
        self.all.trouble(Key(fed.cluster_id, fed.node), why)

    def left(self, fed: Fed, why: str) -> None:
        """The follower stopped reading here; without `why` it is about to ask again."""
        key = Key(fed.cluster_id, fed.node)
        self._held_back.pop(fed, None)
        if self._placeless.get(key) is fed:
            del self._placeless[key]
        if why and len(self.all):
            self.all.interrupt(key, why, self._host.clock.monotonic())
            self._give_places()

    # Pacing.

    def may_send(self, fed: Fed, bytes_max: int) -> int:
        """How much the follower may be sent now; if nothing, it is looked at again."""
        now, key = self._host.clock.monotonic(), Key(fed.cluster_id, fed.node)
        wait = self.all.wait_seconds(key, now)
        if wait == 0:
            return min(bytes_max, self.all.pace.chunk_bytes or bytes_max)
        if wait is None:
            self._placeless[key] = fed
        else:
            self._held_back[fed] = None
            self._wake_at(now + wait)
        return 0

    def sent(self, fed: Fed, size: int) -> None:
        self.all.sent(Key(fed.cluster_id, fed.node), size)

    def _give_places(self) -> None:
        """Let those go on that were given one."""
        admitted, self.all.admitted = self.all.admitted, []
        for key in admitted:
            self._look_again_at(key)

    def _look_again_at(self, key: Key) -> None:
        if (fed := self._placeless.pop(key, None)) is not None:
            fed.grew()

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        wait = max(at - self._host.clock.monotonic(), 0.001)
        self._timer, self._timer_at = loop.call_later(wait, self._release), at

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held_back = self._held_back, {}
        for fed in held:
            fed.grew()

    # Looking.

    async def look(self) -> None:
        """See who is behind, who has stalled, and who is fed here no more."""
        now = self._host.clock.monotonic()
        partitions = self._replicas.all()
        for at in range(0, len(partitions), _SLICE):
            for partition in partitions[at : at + _SLICE]:
                leader = partition.leader
                if leader is not None and leader.followers:
                    self._look_at(partition, leader, now)
            await asyncio.sleep(0)
        self._drop(now)
        self._measure_inflow(now)
        for stalled in self.all.look(now):
            _log.warning("%s does not come closer: %s", stalled.id, stalled.why)
        self._give_places()
        if self._unsaid:
            _log.info("%d more began to catch up, or are level", self._unsaid)
        self._lines = self._unsaid = 0

    def _look_at(self, partition: Partition, leader: Leader, now: float) -> None:
        log, image = partition.log, self._image()
        for node, view in leader.followers.items():
            cluster_id = self._cluster_id(image, partition)
            if cluster_id is None:
                return  # its topic is deleted
            key = Key(cluster_id, node)
            known = self.all.get(key)
            is_in_sync = node in leader.maximal
            if known is None and is_in_sync and not self._is_late(view, now):
                continue
            at = view.offset
            why = ""
            if at == NO_OFFSET or not image.is_alive(node):
                at, why = self._overheard(image, key, at)
            if at == NO_OFFSET or node not in leader.replicas:
                continue
            lag = log.end - at
            if lag <= 0 and not why:
                self._finish(key, partition, at, now)
            elif known is not None or lag > self._config().catchup_threshold_records:
                if known is not None and known.state is State.INTERRUPTED:
                    known.target, known.bytes_left = log.end, log.bytes_after(at)
                else:
                    is_paced = not is_in_sync if known is None else known.is_paced
                    self._asks(key, partition, leader, at, now, is_paced=is_paced)
                if why:
                    self.all.interrupt(key, why, now)
                    self._look_again_at(key)  # it may ask all the same

    def _overheard(self, image: ClusterImage, key: Key, asked: Offset) -> tuple[Offset, str]:
        """How far a follower goes that does not ask, and why it does not."""
        if not image.is_alive(key.follower):
            why = f"node {key.follower} is away"
        else:
            why = f"node {key.follower} does not ask for it"
        report = self._reports().get(key.follower, key.cluster_id)
        if asked != NO_OFFSET or report is None:
            return asked, why
        return report.end, f"{why}; its heartbeats say that it ends at {report.end}"

    @staticmethod
    def _cluster_id(image: ClusterImage, partition: Partition) -> int | None:
        topic = image.topics_by_id.get(partition.topic_id)
        number = partition.name.partition
        if topic is None or number >= len(topic.partitions):
            return None
        return topic.partitions[number].cluster_id

    def _drop(self, now: float) -> None:
        image = self._image()
        for known in list(self.all):
            place = image.places.get(known.key.cluster_id)
            why = ""
            if place is None:
                why = "its topic is deleted"
            elif known.key.follower not in place.partition.replicas:
                why = "its replica is gone"
            else:
                partition = self._replicas.get(place.topic.id, place.number)
                leader = None if partition is None else partition.leader
                if leader is None or leader.epoch != known.epoch:
                    why = f"node {place.partition.leader} leads in epoch {place.partition.epoch}"
            if why:
                self.all.abort(known.key, why, now)

    def _measure_inflow(self, now: float) -> None:
        """How fast the logs grow that are being caught up with, for each who does: together they
        must be faster than that."""
        seconds = now - self._looked_at
        self._looked_at = now
        before, self._ends = self._ends, {}
        inflow = 0.0
        for known in self.all:
            cluster_id = known.key.cluster_id
            self._ends[cluster_id] = known.target
            if known.state is State.RUNNING:
                grown = max(known.target - before.get(cluster_id, known.target), 0)
                per_record = known.bytes_left / known.records_left if known.records_left else 0.0
                inflow += grown * per_record
        self.all.pace.inflow(inflow / seconds if seconds > 0 else 0.0)

    def _say(self, line: str, *values: object) -> None:
        if self._lines < _LINES_MAX:
            self._lines += 1
            _log.info(line, *values)
        else:
            self._unsaid += 1
