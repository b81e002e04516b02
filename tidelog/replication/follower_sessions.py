"""The leaders of this node feed their followers: one session for each follower's node.

Rule 1: a session costs what has changed. Partitions that nothing happens to are not looked at.
Rule 2: one request at a time is parked until there is something to send; what was sent is not sent
        again before the follower says where it reads on.
Rule 3: batches are sent from where they lie. What memory does not hold is read by a disk's thread
        while everything else goes on.
Rule 4: that a follower asks for an offset acknowledges nothing; `Progress` does.
Rule 5: a follower that left the in-sync set, or is about to discard what is damaged, is fed no more
        until it says again where it reads on: what it told before counts no more.
Rule 6: who is in sync or eligible, and may come to lead, is never told to begin anew: it agrees
        with this log up to the first record here. Whoever else is told so hears in the same answer
        who wrote what is deleted.
Rule 7: those in sync go first. Who catches up gets what an answer has room for, and waits for its
        pace (`lagging_followers.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import (
    AnswerNow,
    FetchReplicas,
    FetchReplicasAnswer,
    ForgetReplica,
    ForgetReplicaAnswer,
    Progress,
    ReplicaPart,
    ReplicaPosition,
)
from tidelog.errors import (
    BrokerError,
    IneligibleReplica,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicOrPartition,
)
from tidelog.host import Bytes, Host
from tidelog.model import NO_EPOCH, NO_OFFSET, Epoch, NodeId, Offset
from tidelog.partition.catchup import CatchUp
from tidelog.partition.driver import Partition
from tidelog.partition.follower import NO_PURGES, disagreement
from tidelog.partition.leader import Leader
from tidelog.peers.listener import Answer
from tidelog.replication.lagging_followers import LaggingFollowers
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024 - 64 * 1024
"""With its head less than a receiver sets aside at once: a larger frame would be copied."""
PARTITION_BYTES_MAX: Final = 1024 * 1024
WATERMARK_SECONDS: Final = 0.01
"""How long news of a watermark waits for batches to go with."""
_LEVELS_AT_ONCE: Final = 200
"""How many partitions are looked at in one turn of the loop."""


class Session(NamedTuple):
    """When a follower's node did what, by the monotonic clock."""

    connected_at: float
    asked_at: float
    told_at: float | None
    """When it last told what it holds; None if it has not yet."""


class _Interest:
    """One partition that a follower reads, from one offset on."""

    __slots__ = (
        "catch_up",
        "cluster_id",
        "epoch",
        "is_reading",
        "is_sent",
        "is_unseen",
        "offset",
        "partition",
        "purges",
        "ready",
        "session",
        "told_start",
        "told_wanted",
        "told_watermark",
    )

    def __init__(self, session: "_Session", partition: Partition, at: ReplicaPosition) -> None:
        self.session = session
        self.partition = partition
        self.cluster_id = at.cluster_id
        self.epoch = at.epoch
        self.offset = at.offset
        self.purges = at.purges
        """How many purges the leader had counted when the follower's log began anew."""
        self.is_unseen = True
        """The follower waits to hear that the logs agree."""
        self.is_sent = False
        """Something was sent; the follower has yet to say where it reads on."""
        self.is_reading = False
        self.catch_up: CatchUp | None = None
        self.ready: Bytes = b""
        self.told_watermark = self.told_start = self.told_wanted = NO_OFFSET
        partition.watch_log(self.grew)
        partition.watch(self.watermark_rose)

    @property
    def node(self) -> NodeId:
        return self.session.node

    @property
    def is_paced(self) -> bool:
        return self.catch_up is not None and self.catch_up.is_paced

    def misses_something(self) -> bool:
        """Whether records, or tombstones, from `offset` on are gone."""
        purges = self.partition.purges
        purged = purges.since(None if self.purges == NO_PURGES else self.purges)
        return self.offset < max(self.partition.log.start, purged)

    def close(self, why: str) -> None:
        self.unwatch()
        self.session.catching_up.left(self, why)

    def unwatch(self) -> None:
        self.partition.unwatch_log(self.grew)
        self.partition.unwatch(self.watermark_rose)

    def is_urgent(self) -> bool:
        """Whether there may be more to tell than another watermark."""
        partition = self.partition
        log, leader = partition.log, partition.leader
        return (
            self.offset < log.end
            or self.is_unseen
            or leader is None
            or log.start != self.told_start
            or leader.start_wanted != self.told_wanted
            or leader.awaits(self.node)
        )

    def grew(self) -> None:
        session = self.session
        session.dirty[self.cluster_id] = self
        if session.place is not None and not session.is_looking:
            session.look_soon()

    def watermark_rose(self) -> None:
        session = self.session
        session.dirty[self.cluster_id] = self
        if session.place is not None and not session.is_looking and session.later is None:
            session.look_later()


class _Session:
    """All that one follower's node reads here."""

    def __init__(self, feeding: "FollowerSessions", node: NodeId, asked: FetchReplicas) -> None:
        self._feeding = feeding
        self._host = feeding.host
        self.catching_up = feeding.catching_up
        self.node = node
        self.id = asked.session
        self.broker_epoch = asked.broker_epoch
        self.interests: dict[int, _Interest] = {}
        self.dirty: dict[int, _Interest] = {}
        self.place: Answer | None = None
        self.is_looking = False
        self.later: asyncio.TimerHandle | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._refused: list[ReplicaPart] = []
        self._state_bytes = 0
        """Of producers' states that the next answer brings."""
        self.connected_at = self._host.clock.monotonic()
        self.asked_at = 0.0
        self.told_at: float | None = None
        """When it last told what it holds."""

    # Asking.

    def take(self, asked: FetchReplicas, place: Answer) -> None:
        """A request, and where its answer goes."""
        if self.place is not None:  # the follower gave that one up
            self.answer((), ())
        self.asked_at = now = self._host.clock.monotonic()
        self.place = place
        for cluster_id in asked.forgotten:
            self.drop(cluster_id)
        for position in asked.positions:
            self._list(position, now)
        for cluster_id in asked.corrupt:
            if (interest := self.interests.get(cluster_id)) is not None:
                self._feeding.on_suspect(interest.partition, interest.offset)
        for cluster_id, why in asked.troubles:
            if (interest := self.interests.get(cluster_id)) is not None:
                self.catching_up.troubled(interest, why)
        for cluster_id in asked.full:
            if (interest := self.interests.get(cluster_id)) is not None:
                self._feeding.found_full(interest.partition, interest.epoch, self)
        if not self.look(is_patient=True):
            loop = asyncio.get_running_loop()
            self._timeout = loop.call_later(asked.wait_ms / 1000, self.answer_now)

    def _list(self, at: ReplicaPosition, now: float) -> None:
        interest = self.interests.get(at.cluster_id)
        if interest is not None and interest.epoch == at.epoch:
            interest.offset, interest.purges = at.offset, at.purges
            interest.is_sent = False
            interest.ready = b""
        else:
            self.drop(at.cluster_id)
            try:
                partition = self._feeding.find(at.cluster_id)
            except BrokerError as error:
                self._refused.append(ReplicaPart(at.cluster_id, error.code))
                return
            interest = self.interests[at.cluster_id] = _Interest(self, partition, at)
        self.dirty[at.cluster_id] = interest
        part = self._compare(interest, at, now)
        if part is not None:
            self._refused.append(part)
            self.drop(at.cluster_id, "")

    def _compare(self, interest: _Interest, at: ReplicaPosition, now: float) -> ReplicaPart | None:
        """What keeps the follower from reading there; None if nothing does."""
        partition = interest.partition
        try:
            leader = partition.leading(at.epoch)
        except BrokerError as error:
            return ReplicaPart(at.cluster_id, error.code)
        if leader.awaits(self.node) and not interest.is_unseen:
            # It was on its way when what the follower told was forgotten: it must tell that again.
            return ReplicaPart(at.cluster_id, IneligibleReplica.code)
        log = partition.log
        found = disagreement(log.epochs, log.end, at.offset, at.last_epoch)
        if found is not None and found[0] == NO_EPOCH and self._counts_on(interest, leader):
            # It holds all that was committed: up to the first record here the two are the same.
            found = None if at.offset <= found[1] else (at.last_epoch, found[1])
        if found is not None and found[0] != NO_EPOCH:
            return ReplicaPart(
                at.cluster_id,
                watermark=leader.high_watermark,
                start=log.start,
                differs=True,
                epoch=found[0],
                end=found[1],
            )
        is_behind = found is not None or interest.misses_something()
        if is_behind or at.lacks_producers:
            return self._begin_anew(interest, leader, is_behind=is_behind)
        if at.lacks_before != NO_OFFSET:
            return self._tell_producers(interest, at.lacks_before)
        if self.node not in leader.followers:  # it is added, and this node has yet to hear of it
            return ReplicaPart(at.cluster_id, UnknownTopicOrPartition.code)
        leader.fetched(self.node, self.broker_epoch, at.offset, log.end, now)
        self._feeding.may_join(partition, leader, self.node)
        interest.catch_up = self.catching_up.asked(interest, partition, leader, at.offset, now)
        return None

    def _counts_on(self, interest: _Interest, leader: Leader) -> bool:
        """Whether the follower may come to lead by what it holds now."""
        eligible = self._feeding.eligible(interest.cluster_id)
        return self.node in leader.maximal or self.node in eligible

    def _begin_anew(self, interest: _Interest, leader: Leader, *, is_behind: bool) -> ReplicaPart:
        """Where the follower begins anew, and who wrote what lies before.

        One that is not behind is empty, and begins where it is; it has nothing to discard.
        """
        partition, start = interest.partition, interest.offset
        is_kept = is_behind and self._counts_on(interest, leader)
        if is_kept or self._state_bytes > ANSWER_BYTES_MAX - PARTITION_BYTES_MAX:
            return ReplicaPart(interest.cluster_id, IneligibleReplica.code)  # it asks again soon
        if is_behind:
            start = partition.log.start
            leader.forget(self.node)  # it must not join by what it told before
            self.catching_up.begins_anew(interest, partition, start)
        producers = partition.log.producers_before(start, PARTITION_BYTES_MAX)
        self._state_bytes += len(producers)
        return ReplicaPart(
            interest.cluster_id,
            OffsetOutOfRange.code,
            start=start,
            purged=partition.purges.floor,
            purges=partition.purges.count,
            producers=producers,
        )

    def _tell_producers(self, interest: _Interest, start: Offset) -> ReplicaPart:
        """Who wrote what lies before the follower's first batch: its own note of that is rotten."""
        if self._state_bytes > ANSWER_BYTES_MAX - PARTITION_BYTES_MAX:
            return ReplicaPart(interest.cluster_id, IneligibleReplica.code)  # it asks again soon
        producers = interest.partition.log.producers_before(start, PARTITION_BYTES_MAX)
        self._state_bytes += len(producers)
        return ReplicaPart(
            interest.cluster_id, OffsetOutOfRange.code, start=start, producers=producers, is_whole=False
        )

    # Looking.

    def look_soon(self) -> None:
        """Look at the end of this turn, however many appends it has."""
        self.is_looking = True
        asyncio.get_running_loop().call_soon(self._look_again)

    def look_later(self) -> None:
        self.later = asyncio.get_running_loop().call_later(WATERMARK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self.is_looking = False
        self.later = None
        if self.place is not None:
            self.look()

    def look(self, *, is_patient: bool = False) -> bool:
        """Answer if there is anything to say; whether there was.

        With `is_patient` news of a watermark alone waits for batches to go with.
        """
        if is_patient and not (
            self._refused or any(interest.is_urgent() for interest in self.dirty.values())
        ):
            if self.dirty and self.later is None:
                self.look_later()
            return False
        parts, self._refused = self._refused, []
        buffers: list[Bytes] = []
        left, self._state_bytes = ANSWER_BYTES_MAX - self._state_bytes, 0
        kept: dict[int, _Interest] = {}
        for interest in self._in_order():
            if left <= 0:
                kept[interest.cluster_id] = interest
                continue
            part, found = self._serve(interest, left)
            if part is not None:
                parts.append(part)
                buffers += found
                left -= part.size
                if part.size:
                    interest.is_sent = True
                    if interest.catch_up is not None:
                        self.catching_up.sent(interest, part.size)
        self.dirty = kept
        for part in parts:
            if part.error:
                self.drop(part.cluster_id, "")
        if not parts:
            return False
        self.answer(parts, buffers)
        return True

    def _in_order(self) -> Iterable[_Interest]:
        """Those who catch up come last."""
        if not len(self.catching_up.all):
            return self.dirty.values()
        return sorted(self.dirty.values(), key=lambda interest: interest.is_paced)

    def _serve(self, interest: _Interest, left: int) -> tuple[ReplicaPart | None, Sequence[Bytes]]:
        partition = interest.partition
        try:
            leader = partition.leading(interest.epoch)
            if leader.awaits(self.node):
                raise IneligibleReplica(f"{self.node} must say again where it reads on")
            log = partition.log
            if not interest.is_sent and interest.misses_something():
                raise IneligibleReplica(f"what {self.node} waited for has gone: it asks again")
            buffers, size = self._read(interest, leader, left)
        except BrokerError as error:
            start = partition.log.start
            return ReplicaPart(interest.cluster_id, error.code, start=start), ()
        watermark = leader.high_watermark
        is_news = (
            size
            or interest.is_unseen
            or watermark != interest.told_watermark
            or log.start != interest.told_start
            or leader.start_wanted != interest.told_wanted
        )
        if not is_news:
            return None, ()
        interest.is_unseen = False
        interest.told_watermark, interest.told_start = watermark, log.start
        interest.told_wanted = leader.start_wanted
        part = ReplicaPart(
            interest.cluster_id,
            0,
            watermark,
            log.start,
            size,
            has_gaps=partition.has_gaps,
            wanted_start=leader.start_wanted,
        )
        return part, buffers

    def _read(self, interest: _Interest, leader: Leader, left: int) -> tuple[Sequence[Bytes], int]:
        partition = interest.partition
        end = partition.log.end
        if interest.is_sent or interest.is_reading or interest.offset >= end:
            return (), 0
        if interest.ready:
            data, interest.ready = interest.ready, b""
            return (data,), len(data)
        size_max = min(left, PARTITION_BYTES_MAX)
        if interest.is_paced and not (size_max := self.catching_up.may_send(interest, size_max)):
            return (), 0
        found = partition.read(interest.offset, size_max, end)
        if found.cold is None:
            view = leader.followers.get(self.node)
            if found.size and view is not None and view.offset >= view.end_then:
                view.level_at = max(view.level_at, self.asked_at)  # it waited there until now
            return found.buffers, found.size
        interest.is_reading = True
        # Checked: what has rotted must not look like a gap, or the follower would leave it out.
        work = partial(found.load, self._host.disk)
        self._host.offload.run(work).add_done_callback(partial(self._warm, interest, interest.offset))
        return (), 0

    def _warm(self, interest: _Interest, offset: Offset, future: "asyncio.Future[Bytes]") -> None:
        interest.is_reading = False
        if future.cancelled():
            return
        error = future.exception()  # asked for even if nobody reads here any more, or it is logged
        if self.interests.get(interest.cluster_id) is not interest:
            return
        if interest.offset != offset:  # the follower reads elsewhere now
            self.dirty[interest.cluster_id] = interest
        elif error is not None:
            # Its segment was deleted meanwhile, or the disk does not read it: say so another time.
            _log.warning("%s cannot be read for node %d: %s", interest.partition, self.node, error)
            self.catching_up.troubled(interest, f"the leader cannot read it: {error}")
            if isinstance(error, StorageError):
                self._feeding.on_suspect(interest.partition, offset)
            self._refused.append(ReplicaPart(interest.cluster_id, StorageError.code))
            self.drop(interest.cluster_id, "")
        else:
            interest.ready = future.result()
            self.dirty[interest.cluster_id] = interest
        if self.place is not None and not self.is_looking:
            self.look_soon()

    # Answering.

    def answer_now(self) -> None:
        if self.place is not None and not self.look():
            self.answer((), ())

    def answer(self, parts: Sequence[ReplicaPart], buffers: Sequence[Bytes]) -> None:
        place, self.place = self.place, None
        self._cancel_timers()
        if place is not None:
            place.send_with(FetchReplicasAnswer(parts=tuple(parts)), buffers)

    def _cancel_timers(self) -> None:
        for timer in (self.later, self._timeout):
            if timer is not None:
                timer.cancel()
        self.later = self._timeout = None

    # The end.

    def drop(self, cluster_id: int, why: str = "it does not ask for it") -> None:
        """Feed this partition no more; if that is refused here (no `why`), it asks again."""
        interest = self.interests.pop(cluster_id, None)
        self.dirty.pop(cluster_id, None)
        if interest is not None:
            interest.close(why)

    def close(self) -> None:
        self._cancel_timers()
        interests = list(self.interests.values())
        if len(self.catching_up.all):
            for interest in interests:
                self.catching_up.left(interest, f"node {self.node} is away")
        self.interests.clear()
        self.dirty.clear()
        self._unwatch(interests)
        if self.place is not None:
            place, self.place = self.place, None
            place.send_with(FetchReplicasAnswer(is_known=False), ())

    def _unwatch(self, interests: list[_Interest]) -> None:
        """Some at a time: what one still watches wakes nobody."""
        for interest in interests[-_LEVELS_AT_ONCE:]:
            interest.unwatch()
        del interests[-_LEVELS_AT_ONCE:]
        if interests:
            asyncio.get_running_loop().call_soon(self._unwatch, interests)


class FollowerSessions:
    """Every session of this node, by the follower's node."""

    def __init__(
        self, host: Host, member: ClusterMember, replicas: Replicas, catching_up: LaggingFollowers
    ) -> None:
        self.host = host
        self.catching_up = catching_up
        self._metadata = member.metadata
        self._replicas = replicas
        self._sessions: dict[NodeId, _Session] = {}
        self.on_may_join: Callable[[Partition], None] = _ignore
        """Called when a follower that is not in sync has come closer."""
        self.on_suspect: Callable[[Partition, Offset], object] = _ignore
        """Called when a follower says that batches from here are damaged."""
        member.handle(FetchReplicas, self._on_fetch)
        member.handle(AnswerNow, self._on_answer_now)
        member.handle(Progress, self._on_progress)
        member.handle(ForgetReplica, self._on_forget)
        member.on_gone(self._on_gone)

    # What followers say.

    def _on_fetch(self, source: NodeId, asked: FetchReplicas, place: Answer | None) -> None:
        assert place is not None
        session = self._sessions.get(source)
        if asked.is_new:
            if session is not None:
                session.close()
            session = self._sessions[source] = _Session(self, source, asked)
        elif session is None or session.id != asked.session or session.broker_epoch != asked.broker_epoch:
            place.send_with(FetchReplicasAnswer(is_known=False), ())
            return
        session.take(asked, place)

    def _on_answer_now(self, source: NodeId, asked: AnswerNow, place: Answer | None) -> None:
        session = self._sessions.get(source)
        if session is not None and session.id == asked.session:
            session.answer_now()

    def _on_progress(self, source: NodeId, told: Progress, place: Answer | None) -> None:
        session = self._sessions.get(source)
        if session is None or session.id != told.session or session.broker_epoch != told.broker_epoch:
            return
        session.told_at = self.host.clock.monotonic()
        for progress in told.replicas:
            interest = session.interests.get(progress.cluster_id)
            if interest is None:
                continue
            partition, epoch, life = interest.partition, progress.epoch, told.broker_epoch
            partition.follower_holds(source, epoch, progress.end, life, is_synced=progress.is_synced)
            if progress.promised_start != NO_OFFSET:
                partition.log_start.follower_promises(source, epoch, progress.promised_start, life)
            if partition.leader is not None:
                self.may_join(partition, partition.leader, source)

    def _on_forget(self, source: NodeId, asked: ForgetReplica, place: Answer | None) -> None:
        assert place is not None, "it is a question"
        try:
            leader = self.find(asked.cluster_id).leading(asked.epoch)
        except BrokerError:
            place.send(ForgetReplicaAnswer())
            return
        is_forgotten = leader.forget(source)
        if is_forgotten and (session := self._sessions.get(source)) is not None:
            session.drop(asked.cluster_id, "it discards what is damaged")
        place.send(ForgetReplicaAnswer(is_forgotten=is_forgotten, partition_epoch=leader.partition_epoch))

    def _on_gone(self, node: NodeId) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            session.close()

    # For sessions.

    def find(self, cluster_id: int) -> Partition:
        place = self._metadata.image.places.get(cluster_id)
        if place is None:
            raise UnknownTopicOrPartition(f"partition {cluster_id:#x}")
        return self._replicas.find(place.topic.id, place.number)

    def eligible(self, cluster_id: int) -> Collection[NodeId]:
        """Who may lead a partition though it is not in sync, as this node knows."""
        place = self._metadata.image.places.get(cluster_id)
        return () if place is None else place.partition.eligible

    def may_join(self, partition: Partition, leader: Leader, node: NodeId) -> None:
        if node not in leader.maximal:
            self.on_may_join(partition)

    def found_full(self, partition: Partition, epoch: Epoch, session: "_Session") -> None:
        """A follower's disk has no room: nobody should wait for it."""
        if (leader := partition.leader) is not None and leader.epoch == epoch:
            leader.found_full(session.node, session.broker_epoch)
            self.on_may_join(partition)

    # For those who watch over followers.

    def session(self, node: NodeId) -> Session | None:
        """Since when a follower's node reads here, and when it last spoke; None if it does not."""
        session = self._sessions.get(node)
        if session is None:
            return None
        return Session(session.connected_at, session.asked_at, session.told_at)

    async def note_level(self) -> None:
        """Who waits at the end of a log is level with it, though it says nothing.

        Who waits for its pace reads on.
        """
        for node, session in list(self._sessions.items()):
            for count, interest in enumerate(list(session.interests.values()), 1):
                if count % _LEVELS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # others get their turn
                now, at = self.host.clock.monotonic(), session.asked_at
                leader, end = interest.partition.leader, interest.partition.log.end
                if leader is not None and interest.offset >= end:
                    leader.stays_level(node, at, end, now)
                elif leader is not None and interest.is_paced and not interest.is_sent:
                    leader.waits(node, at)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


def _ignore(*_: object) -> None:
    """Nobody wants to know."""
