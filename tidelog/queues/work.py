"""A queue whose messages are given out: each has one owner at a time, until it is acknowledged.

Rule 1: a message is given out by a record that counts it; the receiver is told once that is stored.
        A receipt is the message's offset and that count, so nobody else's receipt fits.
Rule 2: who has a message has it for a while. When that is over it is given to another, with
        another count; after too many times it is dead, which is another lane of the same queue.
Rule 3: how long somebody has had a message is not in the log. After a failover all begin anew.
Rule 4: in an ordered queue, of the messages of one key only the oldest is given out.
Rule 5: who is to wait for some time waits no longer than that from when a leader hears of it, even
        if the clock of the leader that wrote it was wrong.

    state      entered by                                     left by
    ---------  ---------------------------------------------  ------------------------------------
    DELAYED    stored with a later time; put back with one    its time comes -> READY
    READY      stored; its time has come; put back; timed out a receive takes it -> GIVING
    BLOCKED    READY, but another of its key is before it     that one leaves -> READY
    GIVING     a receive takes it                             stored -> GIVEN, failed -> READY
    GIVEN      the delivery is stored                         its time is over -> READY, or dead
    SETTLING   ack, nack, extend, a move to another lane      stored: as it says; failed -> GIVEN
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from tidelog.model import Offset
from tidelog.queues.records import DEAD, MAIN, About, Delivery, PlaceOf, Settings
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Moment


class State(Enum):
    DELAYED = "delayed"
    READY = "ready"
    BLOCKED = "blocked"
    GIVING = "giving"
    GIVEN = "given"
    SETTLING = "settling"


_SHOWN: Final = {
    State.DELAYED: "delayed",
    State.READY: "ready",
    State.BLOCKED: "ready",
    State.GIVING: "in_flight",
    State.GIVEN: "in_flight",
    State.SETTLING: "in_flight",
}
"""What people are told of a message in this state."""


@dataclass(slots=True, eq=False)
class Job:
    """One message of a work queue."""

    offset: Offset
    sequence: int
    key: str | None
    made_ms: int
    count: int = 0
    count_before: int = 0
    lane: int = MAIN
    state: State = State.READY
    visibility_ms: int = -1
    not_before_ms: int = 0
    delay_ms: int = 0
    has_delivery: bool = False
    """Whether the log has a record of how often it was given out, which goes with it."""

    @property
    def receipt(self) -> str:
        return f"{self.offset}-{self.count}"


@dataclass(slots=True)
class Lane:
    """What may be given out, the oldest first."""

    ready: list[Offset] = field(default_factory=list)
    """A heap; an entry whose job is not READY in this lane any more is passed over."""
    heads: dict[str, list[Offset]] = field(default_factory=dict)
    """Of an ordered queue: the messages of each key, a heap; only the first may be given out."""
    shown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SHOWN.values(), 0))
    """How many messages are in it, by what people are told of them."""


class WorkQueue:
    """One work queue.

    Invariants:
      1. A job is in `_timers` if and only if it is DELAYED or GIVEN.
      2. Every lane's `shown` counts the jobs in it, so that looking costs nothing.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.jobs: dict[Offset, Job] = {}
        self.by_sequence: dict[int, Job] = {}
        self.next_sequence = 0
        self._lanes = (Lane(), Lane())
        self._timers: Deadlines[Offset] = Deadlines()

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name} jobs={len(self.jobs)}>"

    def __len__(self) -> int:
        return len(self.jobs)

    def place(self, job: Job) -> PlaceOf:
        return PlaceOf(self.name, job.sequence)

    def take_sequence(self) -> int:
        self.next_sequence += 1
        return self.next_sequence - 1

    # The log says.

    def stored(self, sequence: int, offset: Offset, about: About, made_ms: int, at: Moment) -> Job:
        """A message stands in the log."""
        job = self._add(_job(offset, sequence, about, made_ms))
        self._enter(job, MAIN)
        self.release(job, at)
        return job

    def replayed(self, sequence: int, offset: Offset, about: About, made_ms: int) -> None:
        """A message that was read from the log; `start` gives it a state."""
        if (older := self.by_sequence.get(sequence)) is not None:
            self._remove(older)
        self._add(_job(offset, sequence, about, made_ms))

    def _add(self, job: Job) -> Job:
        self.next_sequence = max(self.next_sequence, job.sequence + 1)
        self.jobs[job.offset] = self.by_sequence[job.sequence] = job
        self._count(job, 1)
        return job

    def _remove(self, job: Job) -> None:
        if self.jobs.pop(job.offset, None) is not None:
            self._count(job, -1)

    def _count(self, job: Job, by: int) -> None:
        self._lanes[job.lane].shown[_SHOWN[job.state]] += by

    def _become(self, job: Job, state: State, lane: int | None = None) -> None:
        """Change a job's state, or its lane as well."""
        is_here = self.jobs.get(job.offset) is job
        if is_here:
            self._count(job, -1)
        job.state = state
        if lane is not None:
            job.lane = lane
        if is_here:
            self._count(job, 1)

    def replayed_delivery(self, sequence: int, value: Delivery | None) -> None:
        job = self.by_sequence.get(sequence)
        if job is None:
            return  # it is done
        if value is None or value.offset != job.offset:
            job.has_delivery = value is not None
            return
        job.has_delivery = True
        self._apply(job, value)

    def _apply(self, job: Job, value: Delivery) -> None:
        job.count, job.count_before = value.count, value.count_before
        if value.lane != job.lane:
            self._become(job, job.state, value.lane)
        job.visibility_ms = value.visibility_ms
        job.not_before_ms, job.delay_ms = value.not_before_ms, value.delay_ms

    def start(self, at: Moment) -> None:
        """The log is read: whoever has a message has it for as long as he asked for, from now."""
        for offset in sorted(self.jobs):
            job = self.jobs[offset]
            self._enter(job, job.lane)
            if job.visibility_ms >= 0:
                self._given(job, at)
            else:
                self.release(job, at)

    def gone(self, sequence: int) -> None:
        """A message is deleted from the log: done, or purged."""
        job = self.by_sequence.pop(sequence, None)
        if job is not None:
            self._remove(job)
            self._timers.cancel(job.offset)
            self._leave(job)

    # Giving out.

    def take(self, lane: int, count_max: int) -> list[Job]:
        """The next messages to be given out; they are GIVING from now on."""
        taken: list[Job] = []
        ready = self._lanes[lane].ready
        while ready and len(taken) < count_max:
            job = self.jobs.get(heappop(ready))
            if job is not None and job.state is State.READY and job.lane == lane:
                self._become(job, State.GIVING)
                taken.append(job)
        return taken

    def take_delayed(self, lane: int, count_max: int) -> list[Job]:
        """Messages whose time has not come, or that wait for another of their key."""
        taken = []
        for job in self.jobs.values():
            if job.lane == lane and job.state in (State.DELAYED, State.BLOCKED):
                taken.append(job)
                if len(taken) == count_max:
                    break
        for job in taken:
            self._timers.cancel(job.offset)
            self._become(job, State.GIVING)
        return taken

    def has_ready(self, lane: int) -> bool:
        ready = self._lanes[lane].ready
        while ready:
            job = self.jobs.get(ready[0])
            if job is not None and job.state is State.READY and job.lane == lane:
                return True
            heappop(ready)
        return False

    def delivery(self, job: Job, visibility_ms: int) -> Delivery:
        """What the log is to know when this message is given out once more."""
        return Delivery(
            job.offset, job.count + 1, job.lane, visibility_ms, count_before=job.count_before
        )

    def given(self, job: Job, value: Delivery, at: Moment) -> None:
        """The delivery is stored."""
        job.has_delivery = True
        self._apply(job, value)
        self._given(job, at)

    def _given(self, job: Job, at: Moment) -> None:
        self._become(job, State.GIVEN)
        self._timers.set(job.offset, at.now + job.visibility_ms / 1000)

    def put_back(self, job: Job, value: Delivery, at: Moment) -> None:
        """It is with nobody, in this lane or another: that is stored."""
        job.has_delivery = True
        if value.lane != job.lane:
            self._leave(job)
            self._apply(job, value)
            self._enter(job, value.lane)
        self._apply(job, value)
        self.release(job, at)

    def release(self, job: Job, at: Moment) -> None:
        """Nobody has it: it may be given out, now or when its time has come."""
        self._timers.cancel(job.offset)
        wait_ms = job.not_before_ms - at.wall_ms
        if job.delay_ms > 0:
            wait_ms = min(wait_ms, job.delay_ms)
        if wait_ms > 0:
            self._become(job, State.DELAYED)
            self._timers.set(job.offset, at.now + wait_ms / 1000)
        elif self._is_first(job):
            self._become(job, State.READY)
            heappush(self._lanes[job.lane].ready, job.offset)
        else:
            self._become(job, State.BLOCKED)

    def settle(self, job: Job) -> None:
        """Its owner has said what shall become of it; that is not stored yet."""
        self._become(job, State.SETTLING)
        self._timers.cancel(job.offset)

    def unsettle(self, job: Job, at: Moment) -> None:
        """That did not come to be: its owner has it, for as long as at the beginning."""
        self._given(job, at)

    def owned(self, receipt: str) -> Job | str:
        """The message that a receipt is for; or why it is for none: unknown, expired or busy."""
        offset, _, count = receipt.partition("-")
        if not (offset.isdecimal() and count.isdecimal() and len(receipt) < 40):
            return "unknown"
        job = self.jobs.get(int(offset))
        if job is None or int(count) > job.count:
            return "unknown"
        if int(count) < job.count or job.state not in (State.GIVEN, State.SETTLING):
            return "expired"
        return "busy" if job.state is State.SETTLING else job

    # Time.

    def next_deadline(self) -> float | None:
        return self._timers.next()

    def due(self, at: Moment) -> Iterator[Job]:
        """Messages whose time has come: delayed ones, and those that somebody had for too long.

        The caller releases each of them, or lets it die.
        """
        while (offset := self._timers.pop_due(at.now)) is not None:
            job = self.jobs[offset]
            if job.state is State.DELAYED and job.delay_ms > 0:
                job.not_before_ms = job.delay_ms = 0  # it has waited, whatever the time is now
            yield job

    def is_dead(self, job: Job) -> bool:
        """Whether it was given out too often to be given out again."""
        most = self.settings.max_deliveries
        return job.lane == MAIN and 0 < most <= job.count - job.count_before

    def to_lane(self, job: Job, lane: int) -> Delivery:
        """What the log is to know when this message goes to another lane, with nobody."""
        return Delivery(job.offset, job.count, lane, count_before=job.count)

    # Order.

    def _enter(self, job: Job, lane: int) -> None:
        assert job.lane == lane, "whoever moves it has said so"
        if self.settings.is_ordered and job.key is not None:
            heappush(self._lanes[lane].heads.setdefault(job.key, []), job.offset)

    def _leave(self, job: Job) -> None:
        """It is not in its lane any more: the next of its key may be given out."""
        if not self.settings.is_ordered or job.key is None:
            return
        lane = self._lanes[job.lane]
        waiting = lane.heads.get(job.key)
        if waiting is None:
            return
        if job.offset in waiting:
            waiting.remove(job.offset)
            waiting.sort()
        if not waiting:
            del lane.heads[job.key]
            return
        following = self.jobs.get(waiting[0])
        if following is not None and following.state is State.BLOCKED:
            self._become(following, State.READY)
            heappush(lane.ready, following.offset)

    def _is_first(self, job: Job) -> bool:
        if not self.settings.is_ordered or job.key is None:
            return True
        waiting = self._lanes[job.lane].heads.get(job.key)
        return not waiting or waiting[0] == job.offset

    # Looking.

    def counts(self, lane: int, now_ms: int) -> dict[str, int]:
        """How many messages there are of each kind, and how old the oldest is."""
        shown = self._lanes[lane].shown
        oldest = now_ms
        if any(shown.values()):
            # They are in the order of their offsets, and few of the other lane lie before.
            oldest = next(job.made_ms for job in self.jobs.values() if job.lane == lane)
        return {**shown, "oldest_ms": max(now_ms - oldest, 0)}

    def in_lane(self, lane: int) -> list[Job]:
        return [job for job in self.jobs.values() if job.lane == lane]


def _job(offset: Offset, sequence: int, about: About, made_ms: int) -> Job:
    return Job(
        offset, sequence, about.key, made_ms, not_before_ms=about.not_before_ms,
        delay_ms=about.delay_ms,
    )  # fmt: skip


OTHER: dict[int, int] = {MAIN: DEAD, DEAD: MAIN}
