"""Joins one machine to one log, and performs what the machine decides.

Rule 1: no task and no queue per partition: calls come in, the rounds report back, waiters are told.
Rule 2: nothing here unpacks a record.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from uuid import UUID

from tidelog.config import TopicConfig
from tidelog.config.topic import min_in_sync_of
from tidelog.errors import (
    BrokerError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    RequestTimedOut,
    StorageError,
    StorageErrorAfterAppend,
)
from tidelog.host import Host, Path
from tidelog.log.epochs import OFFSET_MAX
from tidelog.log.log import Log, LogState
from tidelog.log.purges import Purges
from tidelog.log.reading import Read
from tidelog.log.rounds import Rounds
from tidelog.log.steps import DiskFull, refusal
from tidelog.log.tail import TailBudget
from tidelog.model import NO_EPOCH, Epoch, NodeId, Offset, TopicPartition
from tidelog.partition.appending import Appender
from tidelog.partition.client_epochs import check_epoch
from tidelog.partition.cut_tail import CutTail
from tidelog.partition.fetched import following, kept
from tidelog.partition.follower import Follower
from tidelog.partition.leader import Leader, Settled
from tidelog.partition.log_start import LogStart
from tidelog.partition.mending import Mending

_log = logging.getLogger(__name__)

_UNSYNCED_BEHIND_BYTES_MAX = 4 * 1024 * 1024
"""Who catches up syncs after this much: a sync of more would keep those of others waiting."""
_COPYING_SECONDS_MAX = 10.0
"""Tombstones wait for a follower that has asked for records within this time."""


class Partition:
    """One partition of a topic on this node, and the machine that runs it: a leader or a follower.

    Watchers are called after the watermark has risen, and those of the log after it has grown,
    until they take themselves off.
    Invariant: `leader` and `follower` are never both there. Owned by the event loop.
    """

    __slots__ = (
        "__weakref__",
        "_host",
        "_last_watermark",
        "_log_watchers",
        "_refusal",
        "_replication",
        "_rounds",
        "_watchers",
        "appender",
        "awaits_room",
        "config",
        "cut_tail",
        "disk_full",
        "files",
        "follower",
        "has_lease",
        "is_copy",
        "is_sparse",
        "leader",
        "leads_damaged",
        "log",
        "log_start",
        "me",
        "mending",
        "name",
        "on_changed",
        "on_progress",
        "on_reopened",
        "on_short",
        "on_spent",
        "on_waits",
        "path",
        "purges",
        "topic_id",
    )

    def __init__(
        self,
        *,
        name: TopicPartition,
        topic_id: UUID,
        me: NodeId,
        config: TopicConfig,
        path: Path,
        state: LogState,
        host: Host,
        rounds: Rounds,
        budget: TailBudget,
        high_watermark: Offset | None = None,
        is_copy: bool = False,
        promised_start: Offset = 0,
        purged: Offset = 0,
    ) -> None:
        """`high_watermark` is the last that was noted, if any was.

        `promised_start` is where it has promised to begin once its leader does. Below `purged` its
        log may lack tombstones.

        `is_copy`: there are other replicas, and what one of them had compacted may be missing.
        """
        self.name = name
        self.topic_id = topic_id
        self.me = me
        self.config = config
        self.path = path
        self.log = Log(path, config, budget, state)
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.has_lease: Callable[[], bool] = _always
        """Whether the controller still counts on this node, by this node's own clock."""
        self.awaits_room = False
        """Whether a follower reads on only once more is written: its disk is slow."""
        self.on_progress: Callable[[Partition], None] = _ignore
        """Called when this replica, as a follower, holds more that its leader should know of."""
        self.on_changed: Callable[[Partition], None] = _ignore
        """Called when what this replica holds, knows to be committed, or has lost is different."""
        self.on_reopened: Callable[[Partition], None] = _ignore
        """Called when a follower's log may end earlier than it did: a full disk kept the rest."""
        self.on_spent: Callable[[Partition], object] = _ignore
        """Called when this replica, as a leader, may append nothing more in its epoch."""
        self.on_short: Callable[[OSError], object] = _ignore
        """Called when the disk has no room for what this log should hold, or opens no file."""
        self.on_waits: Callable[[Partition], None] = _ignore
        """Called when somebody waits for this leader, whose time may be up one day."""
        self.log_start = LogStart(self, noted=state.start, promised=promised_start, on_agreed=_ignore)
        self.purges = Purges(purged)
        self.appender = Appender(self, host.clock, rounds)
        self.leads_damaged = False
        """Whether it was given the lead though it was damaged: by force, or as the sole replica."""
        self.is_copy = is_copy
        self.cut_tail: CutTail | None = None
        """What a start has cut off that may have been a batch; until it is back, or in sync."""
        self.is_sparse = False
        """Whether offsets were found to be missing, though the topic is not compacted now."""
        self.disk_full = False
        """Whether writes wait for room, or for descriptors."""
        self._refusal = ""
        """What was short last, and what to do."""
        self.files = asyncio.Lock()
        """Held while sealed segments' files are read over several turns, renamed or removed."""
        self.mending = Mending(self, host, rounds, budget)
        self._replication = 0
        self._host = host
        self._rounds = rounds
        self._last_watermark = state.start if high_watermark is None else high_watermark
        self._watchers: dict[Callable[[], None], None] = {}
        self._log_watchers: dict[Callable[[], None], None] = {}

    def __repr__(self) -> str:
        return f"<Partition {self.name} {self.log!r} {self.leader or self.follower!r}>"

    def configure(self, config: TopicConfig) -> None:
        """Go on with other settings."""
        synced_before = self.is_held_when_synced
        self.config = self.log.config = config
        if not synced_before:
            self._sync_rest()  # what was only written may count no more
        if (leader := self.leader) is not None:
            leader.min_in_sync = min_in_sync_of(config, self._replication)
            if self.is_held_when_synced and not synced_before:
                leader.count_what_is_synced(self.log.synced_end)
            self._settle(leader.advance())
            self._refuse_if_short(leader)
            if not self.is_held_when_synced:
                self._settle(leader.holds(self.me, self.log.written_end))
        else:
            self.on_progress(self)

    # Leading.

    def lead(
        self,
        epoch: Epoch,
        in_sync: Iterable[NodeId],
        *,
        replicas: Iterable[NodeId] = (),
        partition_epoch: int = 0,
        replication: int | None = None,
    ) -> None:
        """Open `epoch` as the leader.

        `min.insync.replicas` goes by `replication`, which is fewer than the replicas while some of
        them are being added.
        """
        log = self.log
        self.follower = None
        self.cut_tail = None
        self.leads_damaged = log.damaged_at is not None
        replicas = tuple(replicas) or tuple(in_sync)
        self._replication = len(replicas) if replication is None else replication
        self.leader = Leader(
            me=self.me,
            epoch=epoch,
            log_end=log.end,
            held=self.held_end,
            high_watermark=min(self._last_watermark, log.end),
            in_sync=in_sync,
            replicas=replicas,
            partition_epoch=partition_epoch,
            now=self._host.clock.monotonic(),
            min_in_sync=min_in_sync_of(self.config, self._replication),
            start=self.log_start.noted,
            promised=max(self.log_start.promised, log.start, *self.log_start.under_way),
        )
        self.log_start.look(self.leader)
        self._sync_rest()
        self.on_changed(self)
        self.tell_log_watchers()

    def decided(
        self,
        in_sync: Iterable[NodeId],
        partition_epoch: int,
        replicas: Iterable[NodeId],
        replication: int | None = None,
    ) -> None:
        """The metadata shows who is in sync, in the epoch that this node leads in."""
        leader = self.leading()
        in_sync_before = leader.in_sync
        leader.set_replicas(replicas, self._host.clock.monotonic())
        self._replication = len(leader.replicas) if replication is None else replication
        leader.min_in_sync = min_in_sync_of(self.config, self._replication)
        self._settle(leader.decided(in_sync, partition_epoch))
        self._refuse_if_short(leader)
        if in_sync_before - leader.in_sync:
            self.tell_log_watchers()  # whoever feeds those who left has them fetch anew

    def _refuse_if_short(self, leader: Leader) -> None:
        if leader.is_short:
            error = NotEnoughReplicasAfterAppend(in_sync=len(leader.in_sync), needed=leader.min_in_sync)
            for waiter in leader.take_uncommitted():
                waiter.settled(error)

    def follower_holds(
        self, node: NodeId, epoch: Epoch, end: Offset, broker_epoch: int, *, is_synced: bool = True
    ) -> None:
        """A follower tells how much it holds, synced or only written.

        It may not have heard yet that the topic demands syncs: then it will tell again.
        """
        counts = is_synced or not self.is_held_when_synced
        if counts and (leader := self.leader) is not None and leader.epoch == epoch:
            log_end, now = self.log.end, self._host.clock.monotonic()
            end = min(end, log_end)
            self._settle(leader.holds(node, end, broker_epoch, is_synced=is_synced, log_end=log_end, now=now))

    def proposal_refused(self, *, certain: bool) -> None:
        """The in-sync set that was proposed did not come through."""
        if self.leader is not None:
            self._settle(self.leader.refused(certain=certain))

    @property
    def held_end(self) -> Offset:
        """Everything below it is here as firmly as the topic demands."""
        return self.log.synced_end if self.is_held_when_synced else self.log.written_end

    @property
    def is_held_when_synced(self) -> bool:
        """Whether a write counts only once it is synced."""
        return self.config.durability == "fsync"

    @property
    def syncs(self) -> bool:
        """Whether what is written is synced at once.

        A follower that lacks committed records is in no in-sync set: nobody waits for its disk,
        and one that catches up syncs from time to time. Not too late: others wait meanwhile.
        """
        return self.is_held_when_synced and (
            not self.records_behind or self.log.unsynced_bytes > _UNSYNCED_BEHIND_BYTES_MAX
        )

    @property
    def catches_up(self) -> bool:
        return bool(self.records_behind)

    def _sync_rest(self) -> None:
        """Sync what was left unsynced, since somebody may wait for it now."""
        if self.is_held_when_synced:
            self.sync()

    def sync(self) -> None:
        """Make durable what is written, though nobody waits for it."""
        if self.log.synced_end < self.log.written_end:
            self._rounds.sync(self)

    def leads(self) -> bool:
        """Whether this node leads it, now."""
        return self.leader is not None

    @property
    def awaits_written(self) -> bool:
        """Whether a producer with acks=1 waits."""
        return self.leader is not None and self.leader.awaits_written

    def leading(self, epoch: Epoch = NO_EPOCH) -> Leader:
        """The leader machine, if this node leads and the caller's `epoch` is not another."""
        leader = self.leader
        if leader is None:
            raise NotLeader(leader=None if self.follower is None else self.follower.leader)
        check_epoch(epoch, leader.epoch)
        return leader

    def readable_end(self, epoch: Epoch, *, followers_too: bool) -> Offset | None:
        """How far a consumer may read here; None while that is not known.

        A follower may be read once its leader has found the two logs to agree.
        """
        follower = self.follower
        if follower is None or not followers_too:
            leader = self.leading(epoch)
            return leader.high_watermark if leader.knows_watermark else None
        check_epoch(epoch, follower.epoch)
        return self._last_watermark if follower.is_aligned else None

    @property
    def high_watermark(self) -> Offset:
        return self.leader.high_watermark if self.leader is not None else self._last_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Below it no transaction is undecided. Without transactions, the watermark."""
        return self.log.last_stable(self.high_watermark)

    def visible_end(self) -> Offset:
        """The watermark that clients may be told of."""
        leader = self.leading()
        if not leader.knows_watermark:
            raise OffsetNotAvailable(f"the watermark of epoch {leader.epoch} is not known yet")
        return leader.high_watermark

    # Reading.

    def read(self, offset: Offset, bytes_max: int, limit: Offset, *, at_least_one: bool = True) -> Read:
        """Whole batches from the one that holds `offset`, below `limit`; see `log.reading`."""
        return self.log.read(offset, bytes_max, limit, at_least_one=at_least_one, has_gaps=self.has_gaps)

    # Following.

    def follow(self, epoch: Epoch, leader: NodeId) -> None:
        """Follow another node in this epoch."""
        assert self.leader is None, "it has resigned"
        self.follower = Follower(epoch=epoch, leader=leader)
        self._sync_rest()

    def wait_for_leader(self) -> None:
        """Nobody leads: keep the log, serve nothing."""
        assert self.leader is None, "it has resigned"
        self.follower = None
        self._sync_rest()

    def append_fetched(self, data: memoryview, pins_bytes: int, *, has_gaps: bool) -> None:
        """Append what the leader sent, as it is. `pins_bytes` is the size of what `data` is of.

        `has_gaps`: the leader's log was compacted, so that offsets may be missing.
        """
        follower, log = self.follower, self.log
        assert follower is not None
        if log.refusal is not None:
            raise StorageError(log.refusal)
        self._rounds.mark(self)  # first: what comes before a damaged batch is written all the same
        for header, batch in following(data, self.name, log, follower.epoch, has_gaps=has_gaps):
            log.append(kept(batch, pins_bytes), header, header.base_offset, header.leader_epoch)
            if self.cut_tail is not None and not has_gaps:
                self.cut_tail.fetched(header)

    def start_moved(self) -> None:
        """The log begins later, as its disk knows: followers and those who wait hear of it."""
        self.log_start.noted = self.log.start
        if (leader := self.leader) is not None:
            self._settle(leader.start_moved(self.log.start))
        self._tell_watchers()
        self.tell_log_watchers()

    def learn_watermark(self, watermark: Offset) -> None:
        """The leader says what is committed; here it counts as far as the files go."""
        if self.follower is not None:
            self.follower.watermark = watermark
        watermark = min(watermark, self.log.written_end)
        if watermark > self._last_watermark:
            self._last_watermark = watermark
            self._tell_watchers()

    @property
    def records_behind(self) -> int:
        """How many records a follower lacks of what its leader says is committed."""
        return 0 if self.follower is None else max(self.follower.watermark - self.log.end, 0)

    @property
    def is_cut(self) -> bool:
        """Whether a start has cut off what may have been a batch, and what it had is not back."""
        return self.cut_tail is not None

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may be missing in this log."""
        return self.config.compacts or self.is_sparse

    def purge_limit(self) -> Offset:
        """From where on followers have yet to copy tombstones; those that do not ask do not count.

        They begin anew when they come back. Those count that this leader itself keeps waiting: they
        would begin anew again and again.
        """
        if self.leader is None:
            return OFFSET_MAX
        since = self._host.clock.monotonic() - _COPYING_SECONDS_MAX
        views = self.leader.followers.values()
        copying = (v.offset for v in views if max(v.fetched_at, v.waited_at) > since)
        return min(copying, default=OFFSET_MAX)

    def take_log(self, log: Log) -> None:
        """Go on with a log that was opened again: it may end, or begin, elsewhere."""
        self.log.tail.clear()
        self.log = log
        if self.cut_tail is not None:
            self.cut_tail.log_changed()
        # What a full disk kept from being noted is not noted by opening the log again.
        noted = self.log_start.noted
        self.log_start.noted = log.start if log.is_anew else min(noted, log.start)
        if log.refusal is not None:
            self.disk_full = False  # it is damaged, which no room will mend
        elif self.disk_full:
            log.refusal = self._refusal
        if self.leader is not None:
            self._settle(self.leader.written(log.written_end))
            self._settle(self.leader.holds(self.me, log.synced_end))
        else:
            self._last_watermark = max(min(self._last_watermark, log.end), log.start)
            self.on_reopened(self)
        self._tell_watchers()  # a view looks whether it is a fold of this log, too

    def note_damage(self, offset: Offset) -> None:
        """What the log has from `offset` on cannot be read, though it was committed."""
        self.log.note_damage(offset)
        self.on_changed(self)

    # Rounds report back.

    def on_written(self, end: Offset) -> None:
        if (leader := self.leader) is not None:
            if leader.awaits_written and len(leader.replicas) > 1 and not self.has_lease():
                for waiter in leader.take_written():
                    waiter.settled(NotLeader(leader=None))
            self._settle(leader.written(end))
            if not self.is_held_when_synced:
                self._settle(leader.holds(self.me, end))
        elif self.follower is not None:
            self.learn_watermark(self.follower.watermark)
            if not self.is_held_when_synced or self.awaits_room:
                self.on_progress(self)

    def on_synced(self, end: Offset) -> None:
        if self.cut_tail is not None and self.cut_tail.is_made_good(end):
            self.cut_tail = None
        self.on_changed(self)
        if (leader := self.leader) is not None:
            self._settle(leader.holds(self.me, end))
        else:
            self.on_progress(self)

    def _settle(self, settled: Settled) -> None:
        for waiter in settled.waiters:
            waiter.settled(None)
        if settled.advanced:
            self._tell_watchers()
        if self.leader is not None:
            self.log_start.look(self.leader)

    def expire_waits(self, now: float) -> bool:
        """Tell producers whose time is up; whether others wait still."""
        leader = self.leader
        if leader is None or not leader.waiting:
            return False
        for waiter in leader.expire(now):
            waiter.settled(RequestTimedOut("not committed within the request's timeout"))
        return leader.waiting > 0

    def resign(self, error: BrokerError) -> None:
        """Stop serving: everyone who waits is told `error`."""
        leader, self.leader = self.leader, None
        self.leads_damaged = False
        if leader is not None:
            self._last_watermark = leader.high_watermark
            lost = leader.lose_after(leader.high_watermark)
            for waiter in (*lost, *leader.take_copied(), *leader.take_started()):
                waiter.settled(error)
        self.follower = None
        self._tell_watchers()
        self.tell_log_watchers()

    # A full disk.

    def on_disk_full(self, full: DiskFull) -> None:
        """Refuse writes, fail those that did not fit, and bring the log back from its files."""
        self.find_short(full.error)
        self.log.drop_writes()
        self.log.refusal = self._refusal
        _log.error("%s takes no writes: %s", self.name, self._refusal)
        if self.leader is not None:
            is_copied = len(self.leader.replicas) > 1
            error = (StorageErrorAfterAppend if is_copied else StorageError)(self._refusal)
            for waiter in self.leader.lose_after(max(full.end, self.leader.high_watermark)):
                waiter.settled(error)
            if is_copied:
                self.appender.spent_epoch = self.leader.epoch
                self.on_spent(self)
        self.mending.reopen(self._rounds.fail)

    def find_short(self, error: OSError) -> None:
        """The disk has no room, or opens no file: writes wait until it does."""
        self.disk_full = True
        self._refusal = refusal(error)
        self.on_short(error)

    @property
    def is_spent(self) -> bool:
        """Whether followers may hold what this leader has lost, in the epoch that it leads in."""
        return self.leader is not None and self.leader.epoch == self.appender.spent_epoch

    def retry_full_disk(self, free_bytes: int) -> None:
        """Take writes again once there is room."""
        if self.mending.is_busy or not self.disk_full:
            return
        if free_bytes > 2 * self.config.max_message_bytes + 16 * 1024 * 1024:
            self.disk_full = False
            self.log.refusal = None
            _log.warning("%s takes writes again", self.name)

    # Watching.

    async def committed(self, end: Offset) -> None:
        """Wait until everything below `end` is committed, or this node leads no more."""
        if (leader := self.leader) is None or leader.high_watermark >= end:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            is_over = self.leader is not leader or leader.high_watermark >= end
            if is_over and not reached.done():
                reached.set_result(None)

        self.watch(look)
        try:
            await reached
        finally:
            self.unwatch(look)

    def watch(self, watcher: Callable[[], None]) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._watchers.pop(watcher, None)

    def watch_log(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after every append, and when this node leads or leads no more."""
        self._log_watchers[watcher] = None

    def unwatch_log(self, watcher: Callable[[], None]) -> None:
        self._log_watchers.pop(watcher, None)

    def _tell_watchers(self) -> None:
        self.on_changed(self)
        for watcher in list(self._watchers):
            watcher()

    def tell_log_watchers(self) -> None:
        """The log has grown, or this node leads or leads no more."""
        for watcher in list(self._log_watchers):
            watcher()


def _always() -> bool:
    return True


def _ignore(_: object) -> None:
    """Nobody wants to know."""
