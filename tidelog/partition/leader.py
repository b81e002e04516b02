"""The leader's half of replication.

Rule 1: nothing here reads a clock, file or socket.
Rule 2: the high watermark moves only in this file, and only up.
Rule 3: a record is committed once every member of the maximal in-sync set, the leader included,
        holds it as the topic's `durability` demands: synced, or merely written. The maximal set is
        the committed one and all that was proposed and may yet be committed.
Rule 4: while the committed set is smaller than the topic demands, nothing is committed.
Rule 5: what a follower holds or promises counts only in this epoch, and in the life that it told
        it in. A follower that leaves the in-sync set tells it again: it may have left because it is
        damaged.
Rule 6: the log's start moves as a record is committed: only to where every member of the maximal
        in-sync set has promised, durably, that its log will begin, never past the watermark, and
        not while the set is too small. So no later leader begins earlier than this one has shown.

    event                       what happens
    --------------------------  ---------------------------------------------------------------
    wait_written(end, waiter)   released by the `written` that reaches `end` (acks=1)
    wait_committed(end, waiter) released by the watermark that reaches `end` (acks=all)
    wait_copied(end, n, waiter) released by the `holds` of the follower that is the n-th to have it
    written(end)                releases acks=1
    wait_start(start, waiter)   released by the `start_moved` that reaches `start`
    want_start(start)           followers are asked to promise that their logs will begin there
    promises(node, start)       may raise `start_agreed`: the driver moves the log's start there
    hide_start(start)           clients are shown nothing before `start_moved` reaches it
    start_moved(start)          this log begins there, durably
    holds(node, end)            may raise the watermark, which releases acks=all
    count_what_is_synced(end)   the topic demands syncs from now on: what was only written counts no more
    found_full(node)            its disk has no room: it leaves the set until it reads again
    fetched(node, offset)       a follower is level if it reads at the end that it last saw
    propose(now)                who joined and who fell behind: another set to be decided on
    decided(in_sync)            the metadata shows a set: proposals made on older ones are dead, and
                                what those who left it held is forgotten
    forget(node)                a follower that nobody counts on discards what it told of
    refused()                   the proposal is certain to have failed
    lose_after(end)             the log could not keep what lies past `end`: those waiters fail
    expire(now)                 waiters past their deadline fail; their records may yet commit

Epochs, watermarks and held ends mean the same with one replica as with many.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.errors import BrokerError
from tidelog.model import NO_OFFSET, Epoch, NodeId, Offset
from tidelog.partition.follower_view import NO_LIFE, FollowerView


class Waiter(Protocol):
    """Whoever waits for a record's fate; told exactly once."""

    deadline: float

    def settled(self, error: BrokerError | None) -> None: ...


@dataclass(order=True, slots=True)
class _Wait:
    end: Offset
    waiter: Waiter = field(compare=False)


@dataclass(slots=True)
class _Copies:
    end: Offset
    count: int
    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Settled:
    """The effect of an event: whom to tell, and whether consumers can see more now."""

    waiters: list[Waiter]
    advanced: bool = False


_NOTHING = Settled([])


class Leader:
    """One partition's leader, in one epoch.

    Invariant: high_watermark <= the least end held by a member of the maximal in-sync set.
    Owned by one driver; not thread-safe.
    """

    __slots__ = (
        "_committed",
        "_copied",
        "_pending",
        "_started",
        "_unsure",
        "_written",
        "began_at",
        "epoch",
        "epoch_start",
        "followers",
        "held_here",
        "high_watermark",
        "in_flight",
        "in_sync",
        "maximal",
        "me",
        "min_in_sync",
        "partition_epoch",
        "replicas",
        "start",
        "start_agreed",
        "start_first",
        "start_wanted",
        "written_end",
    )

    def __init__(
        self,
        *,
        me: NodeId,
        epoch: Epoch,
        log_end: Offset,
        held: Offset,
        high_watermark: Offset,
        in_sync: Iterable[NodeId],
        replicas: Iterable[NodeId] = (),
        partition_epoch: int = 0,
        min_in_sync: int = 1,
        start: Offset = 0,
        promised: Offset = 0,
        now: float = 0.0,
    ) -> None:
        """`start` is where this log begins, `promised` where it will, or has promised to."""
        self.me = me
        self.epoch = epoch
        self.epoch_start = log_end
        self.began_at = now
        self.in_sync = self.maximal = frozenset(in_sync)
        self.partition_epoch = partition_epoch
        self.min_in_sync = min_in_sync
        self.written_end = log_end
        self.high_watermark = high_watermark
        self.held_here = held
        # Whoever is in sync holds what is committed, and is given the time to show more.
        self.followers = {
            node: FollowerView(now, high_watermark, held_at=now, mark_end=log_end, mark_at=now)
            for node in sorted(self.in_sync - {me})
        }
        self.replicas: tuple[NodeId, ...] = ()
        self.set_replicas(replicas, now)
        self.in_flight = False
        """Whether a proposal is being decided on."""
        self._pending: frozenset[NodeId] = frozenset()
        self._unsure = False
        self.start = self.start_agreed = start
        # An earlier leader may have shown what this replica has promised to it.
        self.start_wanted = self.start_first = max(start, min(promised, log_end))
        self._started: list[_Wait] = []
        self._written: list[_Wait] = []
        self._committed: list[_Wait] = []
        self._copied: list[_Copies] = []
        self.advance()
        assert me in self.in_sync, "a leader is always in sync with itself"

    def __repr__(self) -> str:
        return f"<Leader epoch={self.epoch} watermark={self.high_watermark} in_sync={sorted(self.in_sync)}>"

    @property
    def knows_watermark(self) -> bool:
        """Whether watermark and start may be shown.

        They are as high as any that an earlier leader has shown, and a start that is shown is
        durable here.
        """
        return self.high_watermark >= self.epoch_start and self.start >= self.start_first

    @property
    def is_short(self) -> bool:
        """Whether too few are in sync for anything to be committed."""
        return len(self.in_sync) < self.min_in_sync

    @property
    def awaits_written(self) -> bool:
        return bool(self._written)

    @property
    def waiting(self) -> int:
        starting = len(self._started)
        return len(self._written) + len(self._committed) + len(self._copied) + starting

    # Waiting.

    def wait_written(self, end: Offset, waiter: Waiter) -> bool:
        """Wait for the leader alone to have written up to `end`; True if it has."""
        return self._wait(self._written, self.written_end, end, waiter)

    def wait_committed(self, end: Offset, waiter: Waiter) -> bool:
        """Wait for the watermark to reach `end`; True if it has."""
        return self._wait(self._committed, self.high_watermark, end, waiter)

    def wait_copied(self, end: Offset, count: int, waiter: Waiter) -> bool:
        """Wait until `count` followers hold everything below `end`; True if they do."""
        if self.copies_of(end) >= count:
            return True
        self._copied.append(_Copies(end, count, waiter))
        return False

    def copies_of(self, end: Offset) -> int:
        """How many followers hold everything below `end`."""
        return sum(view.held >= end for view in self.followers.values())

    @staticmethod
    def _wait(waits: list[_Wait], reached: Offset, end: Offset, waiter: Waiter) -> bool:
        if end <= reached:
            return True
        wait = _Wait(end, waiter)
        if waits and end < waits[-1].end:  # a retry of something already in flight
            insort(waits, wait)
        else:
            waits.append(wait)
        return False

    # What is held.

    def written(self, end: Offset) -> Settled:
        """This replica has written everything below `end`."""
        self.written_end = end
        return Settled(_take(self._written, end)) if self._written else _NOTHING

    def holds(
        self,
        node: NodeId,
        end: Offset,
        broker_epoch: int = NO_LIFE,
        *,
        is_synced: bool = True,
        log_end: Offset | None = None,
        now: float = 0.0,
    ) -> Settled:
        """A replica holds everything below `end` as firmly as the topic demands.

        With `log_end`, a follower that holds all of it is known to, `now`, and may join.
        """
        if node == self.me:
            if end <= self.held_here:
                return _NOTHING
            self.held_here = end
        else:
            view = self.followers.get(node)
            if view is None or view.broker_epoch != broker_epoch:
                return _NOTHING
            if is_synced:
                view.synced = max(view.synced, end)
            if end <= view.held:
                return _NOTHING
            view.held = end
            if log_end is not None:
                self._mark(view, log_end, now)
            if self._copied:
                settled = self.advance()
                return Settled([*settled.waiters, *self._take_copied()], settled.advanced)
        return self.advance()

    def count_what_is_synced(self, synced_here: Offset) -> None:
        """The topic demands syncs from now on: what was only written counts no more.

        The watermark stays, since it never falls: what is committed was safe as it was demanded then.
        """
        self.held_here = min(self.held_here, synced_here)
        for view in self.followers.values():
            view.held = min(view.held, view.synced)

    def _take_copied(self) -> list[Waiter]:
        done = [one for one in self._copied if self.copies_of(one.end) >= one.count]
        if done:
            self._copied = [one for one in self._copied if one not in done]
        return [one.waiter for one in done]

    def advance(self) -> Settled:
        """Raise the watermark as far as it may go, and what is agreed on of the start."""
        has_advanced = self._advance()
        if self.start_agreed < self.start_wanted:
            self._agree_on_start()
        if not has_advanced:
            return _NOTHING
        return Settled(_take(self._committed, self.high_watermark), advanced=True)

    def _advance(self) -> bool:
        if self.is_short:
            return False
        least = self.held_here
        followers = self.followers
        for node in self.maximal:
            if node != self.me and followers[node].held < least:
                least = followers[node].held
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True

    # Where the log begins.

    def want_start(self, start: Offset) -> bool:
        """Let the log begin at `start`, which is committed; False if it was asked for already."""
        assert start <= self.high_watermark, "only what is committed is deleted"
        if start <= self.start_wanted:
            return False
        self.start_wanted = start
        self._agree_on_start()
        return True

    def wait_start(self, start: Offset, waiter: Waiter) -> bool:
        """Wait until the log begins at `start`; True if it does."""
        return self._wait(self._started, self.start, start, waiter)

    def promises(self, node: NodeId, start: Offset, broker_epoch: int) -> None:
        """A follower has noted, durably, that its log will begin at `start`."""
        view = self.followers.get(node)
        if view is not None and view.broker_epoch == broker_epoch and start > view.promised:
            view.promised = start
            self._agree_on_start()

    def _agree_on_start(self) -> None:
        if self.is_short:
            return  # whoever was in sync before may be elected, and has promised nothing
        least = min(self.start_wanted, self.high_watermark)
        for node in self.maximal:
            if node != self.me and self.followers[node].promised < least:
                least = self.followers[node].promised
        self.start_agreed = max(self.start_agreed, least)

    def hide_start(self, start: Offset) -> None:
        """This log begins at `start`, but a crash may yet bring back what lies before it."""
        self.start_first = max(self.start_first, start)

    def start_moved(self, start: Offset) -> Settled:
        """This log begins at `start`, durably."""
        self.start = max(self.start, start)
        self.start_wanted = max(self.start_wanted, start)  # else nobody could promise it, and join
        self.start_agreed = max(self.start_agreed, start)
        return Settled(_take(self._started, start))

    def take_started(self) -> list[Waiter]:
        """Everyone who waits for the log to begin later."""
        waiters = [wait.waiter for wait in self._started]
        self._started.clear()
        return waiters

    # Who follows.

    def set_replicas(self, replicas: Iterable[NodeId], now: float) -> None:
        """These hold the partition; who does no more, and counts nowhere, is forgotten."""
        self.replicas = tuple(replicas) or tuple(sorted(self.in_sync))
        for node in self.replicas:
            if node != self.me and node not in self.followers:
                self.followers[node] = FollowerView(now, held_at=now)
        for node in [n for n in self.followers if n not in self.replicas]:
            if node not in self.maximal:
                del self.followers[node]

    def fetched(self, node: NodeId, broker_epoch: int, offset: Offset, log_end: Offset, now: float) -> None:
        """A follower, whose log agrees with this one up to `offset`, reads from there."""
        view = self.followers.get(node)
        if view is None or broker_epoch < view.broker_epoch:
            return  # it holds no replica, or this is a word from an earlier life
        if broker_epoch != view.broker_epoch:
            if view.broker_epoch != NO_LIFE or node not in self.in_sync:
                view.held = view.synced = NO_OFFSET  # it may have lost what it held in the other life
            view.promised = 0
            view.broker_epoch = broker_epoch
        if offset >= log_end:
            view.level_at = now
        elif view.offset != NO_OFFSET and offset >= view.end_then:
            view.level_at = max(view.level_at, view.fetched_at)
        view.offset, view.end_then, view.fetched_at = offset, log_end, now
        view.disk_full = False
        # That it asks for an offset acknowledges nothing; but it cannot hold what it asks for.
        view.held, view.synced = min(view.held, offset), min(view.synced, offset)
        self._mark(view, log_end, now)

    def found_full(self, node: NodeId, broker_epoch: int) -> None:
        """A follower's disk has no room for what comes next."""
        view = self.followers.get(node)
        if view is not None and view.broker_epoch == broker_epoch:
            view.disk_full = True

    def _mark(self, view: FollowerView, log_end: Offset, now: float) -> None:
        if view.held >= view.mark_end:
            view.held_at = max(view.held_at, view.mark_at)
            view.mark_end, view.mark_at = log_end, now
            if view.held >= log_end:
                view.held_at = now

    def stays_level(self, node: NodeId, at: float, log_end: Offset, now: float) -> None:
        """The follower waited at the end of the log `at` this time, and says nothing since."""
        view = self.followers.get(node)
        if view is not None:
            view.level_at = max(view.level_at, at)
            self._mark(view, log_end, now)

    def waits(self, node: NodeId, at: float) -> None:
        """The follower waited `at` this time for what its pace does not let it have yet."""
        if (view := self.followers.get(node)) is not None:
            view.waited_at = max(view.waited_at, at)

    # The in-sync set.

    def propose(
        self, now: float, lag_seconds_max: float, lives: Mapping[NodeId, int]
    ) -> Mapping[NodeId, int] | None:
        """Another set, each member in the life that is meant; None if there is nothing to change.

        `lives` are the broker epochs of those who may be in sync at all. Until `decided` or
        `refused`, both sets count.
        """
        if self.in_flight or (self._pending and not self._unsure):
            return None
        members = {self.me: lives.get(self.me, NO_LIFE)}
        for node, view in self.followers.items():
            life = lives.get(node)
            is_late = view.disk_full or view.is_late(now, lag_seconds_max)
            if node in self.in_sync:
                if not is_late:
                    members[node] = NO_LIFE if life is None else life
            elif life is not None and not is_late and self._may_join(node, view, life):
                members[node] = life
        if members.keys() == self.in_sync and not self._unsure:
            return None
        self.in_flight = True
        self._pending |= frozenset(members)
        self.maximal = self.in_sync | self._pending
        return members

    def _may_join(self, node: NodeId, view: FollowerView, life: int) -> bool:
        return (
            node in self.replicas
            and view.broker_epoch == life
            and view.held >= max(self.high_watermark, self.epoch_start)
            and view.promised >= max(self.start_agreed, self.start_first)
        )

    def decided(self, in_sync: Iterable[NodeId], partition_epoch: int) -> Settled:
        """The metadata shows this set; what was proposed on an older one is dead."""
        if partition_epoch <= self.partition_epoch:
            return _NOTHING
        in_sync_before = self.in_sync
        self.in_sync = self.maximal = frozenset(in_sync)
        self.partition_epoch = partition_epoch
        self._pending = frozenset()
        self._unsure = False
        for node in self.in_sync - {self.me}:
            self.followers.setdefault(node, FollowerView(0.0))
        for node in in_sync_before - self.in_sync:
            self.forget(node)
        return self.advance()

    def forget(self, node: NodeId) -> bool:
        """Let nothing count that the follower told so far; False if it is counted on.

        It is heard again once it fetches anew.
        """
        if node in self.maximal:
            return False
        if (view := self.followers.get(node)) is not None:
            view.held = view.synced = NO_OFFSET
            view.promised, view.broker_epoch = 0, NO_LIFE
        return True

    def awaits(self, node: NodeId) -> bool:
        """Whether the follower must fetch anew before anything that it tells counts."""
        view = self.followers.get(node)
        return view is not None and view.broker_epoch == NO_LIFE

    def refused(self, *, certain: bool) -> Settled:
        """The proposal did not come through; if that is not `certain`, it may yet.

        If an earlier one may yet, too, this changes nothing: only another set, once it is decided,
        ends them all.
        """
        self.in_flight = False
        if not self._pending:
            return _NOTHING  # it was decided meanwhile, by this proposal or another
        if self._unsure or not certain:
            self._unsure = True
            return _NOTHING
        self._pending = frozenset()
        self._unsure = False
        self.maximal = self.in_sync
        return self.advance()

    def proposal_ended(self) -> None:
        """The metadata has taken the proposal, and `decided` has told of it."""
        self.in_flight = False

    # Waiters that fail.

    def take_uncommitted(self) -> list[Waiter]:
        """Everyone who waits for the watermark: too few are in sync for it to move."""
        waiters = [wait.waiter for wait in self._committed]
        self._committed.clear()
        return waiters

    def take_written(self) -> list[Waiter]:
        """Everyone who waits for this replica alone."""
        waiters = [wait.waiter for wait in self._written]
        self._written.clear()
        return waiters

    def take_copied(self) -> list[Waiter]:
        """Everyone who waits for followers, whatever is committed."""
        waiters = [one.waiter for one in self._copied]
        self._copied.clear()
        return waiters

    def lose_after(self, end: Offset) -> list[Waiter]:
        """The log ends at `end` again: the waiters for anything later, who must be refused."""
        assert end >= self.high_watermark, "what is committed is never lost"
        lost = []
        for waits in (self._written, self._committed):
            lost += [wait.waiter for wait in waits if wait.end > end]
            waits[:] = [wait for wait in waits if wait.end <= end]
        lost += [one.waiter for one in self._copied if one.end > end]
        self._copied = [one for one in self._copied if one.end <= end]
        self.written_end = min(self.written_end, end)
        return lost

    def expire(self, now: float) -> list[Waiter]:
        """Waiters whose deadline has passed; their records may still be committed later."""
        late = []
        for waits in (self._written, self._committed, self._started):
            if any(wait.waiter.deadline <= now for wait in waits):
                late += [wait.waiter for wait in waits if wait.waiter.deadline <= now]
                waits[:] = [wait for wait in waits if wait.waiter.deadline > now]
        late += [one.waiter for one in self._copied if one.waiter.deadline <= now]
        self._copied = [one for one in self._copied if one.waiter.deadline > now]
        return late


def _take(waits: list[_Wait], end: Offset) -> list[Waiter]:
    """Remove and return the waiters for ends up to `end`; `waits` is sorted."""
    count = 0
    for wait in waits:
        if wait.end > end:
            break
        count += 1
    taken = [wait.waiter for wait in waits[:count]]
    del waits[:count]
    return taken
