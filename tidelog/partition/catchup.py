"""A follower that was away comes back whole: its catch-up has a name, a pace and an end.

Rule 1: nothing here reads a clock, file or socket. Times are seconds of one monotonic clock.
Rule 2: a catch-up is one follower of one partition, fed by one leader in one epoch. It keeps its
        name while the follower goes away and comes back; another leader begins another one.
Rule 3: only who is not in sync is paced, and takes a place. Those in sync never wait for it.
Rule 4: the pace never falls below what would let a catch-up end: the log grows meanwhile.
Rule 5: whoever does not come closer for a while says why, and gives its place to the next.

    state        it                                             until
    -----------  ---------------------------------------------  -----------------------------------
    WAITING      has no place: as many as may are running       a place is free
    RUNNING      is being sent what it lacks                     it is level, goes away or stalls
    STALLED      does not come closer                            it does, goes away, or asks while
                                                                all places are taken: it waits
    INTERRUPTED  is away                                         it asks again (another attempt)
    DONE         is level with the leader                        (for good)
    ABORTED      is fed here no more: another leads, or the      (for good)
                 replica or its topic is gone
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from tidelog.model import Epoch, NodeId, Offset, TopicPartition

STALLED_SECONDS: Final = 10.0
"""Without coming closer for so long, a catch-up is stalled."""
ABOVE_INFLOW: Final = 1.5
"""The least pace, in terms of what is appended meanwhile."""
WINDOW_SECONDS: Final = 8.0
"""The rate is that of so long."""
SAMPLE_SECONDS: Final = 0.25
ENDED_MAX: Final = 100
"""How many catch-ups are remembered after their end."""
BURST_SECONDS: Final = 0.2
"""What may be made up for after a pause, in terms of the pace: the way there and back may be long.
"""
CHUNK_SECONDS: Final = 0.01
"""What is sent at once, in terms of the pace: little, since others wait while it is taken. What
could have been sent while nobody asked comes on top."""
CHUNK_BYTES_MIN: Final = 4096


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"
    DONE = "done"
    ABORTED = "aborted"


class Key(NamedTuple):
    """Who catches up with what."""

    cluster_id: int
    follower: NodeId


class _Sample(NamedTuple):
    at: float
    bytes_sent: int
    bytes_left: int


@dataclass(slots=True, kw_only=True)
class CatchUp:
    """One follower on its way back.

    Invariant: first <= at <= target, unless the leader's log was cut or deleted meanwhile.
    """

    key: Key
    name: TopicPartition
    epoch: Epoch
    number: int
    """Tells it from the others of this leader's node."""
    first: Offset
    """Where the follower's log ended when it began, or where it had to begin anew."""
    at: Offset
    target: Offset
    """Where the leader's log ends."""
    bytes_left: int
    began_at: float
    attempt_at: float
    """When the present attempt began."""
    bytes_sent: int = 0
    attempts: int = 1
    state: State = State.WAITING
    why: str = ""
    """What keeps it, or what became of it."""
    moved_at: float = 0.0
    """When it last came closer, or may next be sent what it waits for its pace with."""
    ended_at: float | None = None
    is_paced: bool = True
    """It is far behind, and not in sync: so others go first."""
    began_anew: bool = False
    """What the follower lacked was deleted: it began again where the leader's log begins."""
    _samples: deque[_Sample] = field(default_factory=deque)

    @property
    def id(self) -> str:
        return f"{self.name}:{self.key.follower}@{self.epoch}.{self.number}"

    @property
    def records_left(self) -> int:
        return max(self.target - self.at, 0)

    @property
    def done(self) -> float:
        """The part that is behind it, from 0 to 1."""
        if self.state is State.DONE:
            return 1.0
        total = self.bytes_sent + self.bytes_left
        return self.bytes_sent / total if total else 0.0

    def begin_again(self, now: float) -> None:
        """The follower was away, and asks again. Nothing is known of how fast it is now."""
        self.attempts += 1
        self.attempt_at = self.moved_at = now
        self._samples.clear()

    def sample(self, now: float) -> None:
        """Note how far it is, from time to time."""
        samples = self._samples
        if samples and now - samples[-1].at < SAMPLE_SECONDS:
            return
        samples.append(_Sample(now, self.bytes_sent, self.bytes_left))
        while len(samples) > 2 and now - samples[1].at >= WINDOW_SECONDS:
            samples.popleft()

    def rate(self) -> float | None:
        """Bytes that are sent per second; None while that is not known."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        return (last.bytes_sent - first.bytes_sent) / (last.at - first.at)

    def eta_seconds(self) -> float | None:
        """When it will be level if all goes on as it does; None if that is not known, or never."""
        if self.state is not State.RUNNING or len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        closer = (first.bytes_left - last.bytes_left) / (last.at - first.at)
        return last.bytes_left / closer if closer > 0 else None


class Pace:
    """How many bytes all catch-ups of a node may take together, from now to now.

    A chunk may be sent whenever nothing is owed; what it is too large is owed.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._limit = bytes_per_second
        self._inflow = 0.0
        self._owed = 0.0
        self._at: float | None = None

    @property
    def bytes_per_second(self) -> float:
        """The pace as it is; 0 for none."""
        return max(self._limit, ABOVE_INFLOW * self._inflow) if self._limit else 0.0

    @property
    def is_raised(self) -> bool:
        """Whether the limit alone would let no catch-up end."""
        return 0 < self._limit < self.bytes_per_second

    @property
    def chunk_bytes(self) -> int | None:
        """How much goes at once, so that it goes evenly; None for as much as one likes."""
        pace = self.bytes_per_second
        if not pace:
            return None
        return max(round(pace * CHUNK_SECONDS), CHUNK_BYTES_MIN) + max(-round(self._owed), 0)

    def limit(self, bytes_per_second: int, now: float) -> None:
        """Another limit; 0 for none. What is owed was sent under the old one, and is forgiven."""
        if bytes_per_second != self._limit:
            self._limit = bytes_per_second
            self._owed, self._at = 0.0, now

    def inflow(self, bytes_per_second: float) -> None:
        """What is appended to the partitions that somebody catches up with."""
        self._inflow = bytes_per_second

    def wait_seconds(self, now: float) -> float:
        """How long until the next chunk may be sent; 0 means at once."""
        pace = self.bytes_per_second
        if not pace:
            return 0.0
        if self._at is not None:
            self._owed = max(self._owed - pace * (now - self._at), -pace * BURST_SECONDS)
        self._at = now
        return max(self._owed / pace, 0.0)

    def spend(self, size: int) -> None:
        self._owed += size


class CatchUps:
    """All that catch up with the leaders of one node.

    Invariant: `_running` and `_waiting` have the paced ones in these states, the latter in the
    order in which they came; nobody waits while there is a place.
    """

    def __init__(self, *, pace: Pace, concurrent_max: int) -> None:
        self.pace = pace
        self.concurrent_max = concurrent_max
        self.bytes_sent = 0
        """By all of them, ever."""
        self.ended: deque[CatchUp] = deque(maxlen=ENDED_MAX)
        self.began = self.finished = 0
        self.admitted: list[Key] = []
        """Those that were given a place; the caller takes them off, and lets them go on."""
        self._live: dict[Key, CatchUp] = {}
        self._running: dict[Key, None] = {}
        self._waiting: dict[Key, None] = {}
        self._numbers = 0

    def __iter__(self) -> Iterator[CatchUp]:
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    def get(self, key: Key) -> CatchUp | None:
        return self._live.get(key)

    def allow(self, concurrent_max: int, now: float) -> None:
        """So many may run from now on; those that do go on."""
        self.concurrent_max = concurrent_max
        self._admit(now)

    # Beginning and ending.

    def asks(
        self,
        key: Key,
        name: TopicPartition,
        epoch: Epoch,
        *,
        at: Offset,
        target: Offset,
        bytes_left: int,
        is_paced: bool = True,
        now: float,
    ) -> CatchUp:
        """A follower that is behind asks for what follows `at`."""
        known = self._live.get(key)
        if known is not None and known.epoch != epoch:
            self.abort(key, f"epoch {epoch} has begun", now)
            known = None
        if known is None:
            self._numbers += 1
            self.began += 1
            known = self._live[key] = CatchUp(
                key=key,
                name=name,
                epoch=epoch,
                number=self._numbers,
                first=at,
                at=at,
                target=target,
                bytes_left=bytes_left,
                began_at=now,
                moved_at=now,
                attempt_at=now,
                is_paced=is_paced,
            )
            self._turn(known, State.WAITING)
        elif known.state is State.INTERRUPTED:
            self._resume(known, now)
        elif known.is_paced != is_paced:
            known.is_paced = is_paced
            self._turn(known, State.WAITING)
        if at != known.at:
            known.moved_at = now
            if known.state is State.STALLED:
                self._turn(known, State.WAITING)
            elif known.state is State.RUNNING:
                known.why = ""
        known.at, known.target, known.bytes_left = at, target, bytes_left
        self._admit(now)
        known.sample(now)
        return known

    def begins_anew(self, key: Key, start: Offset, now: float) -> None:
        """What the follower lacks is deleted here: it takes all that is left, from `start` on."""
        known = self._live.get(key)
        if known is not None:
            known.first = known.at = start
            known.began_anew = True
            known.moved_at = now

    def interrupt(self, key: Key, why: str, now: float) -> None:
        """The follower is away."""
        known = self._live.get(key)
        if known is not None and known.state is not State.INTERRUPTED:
            self._turn(known, State.INTERRUPTED, why)
            self._admit(now)

    def finish(self, key: Key, at: Offset, now: float) -> CatchUp | None:
        """The follower is level."""
        known = self._live.get(key)
        if known is not None:
            known.at = known.target = at
            known.bytes_left = 0
            self.finished += 1
            self._end(known, State.DONE, "", now)
        return known

    def abort(self, key: Key, why: str, now: float) -> None:
        """It is fed here no more."""
        known = self._live.get(key)
        if known is not None:
            self._end(known, State.ABORTED, why, now)

    def _end(self, known: CatchUp, state: State, why: str, now: float) -> None:
        self._turn(known, state, why)
        known.ended_at = now
        del self._live[known.key]
        self.ended.append(known)
        self._admit(now)

    # Going on.

    def wait_seconds(self, key: Key, now: float) -> float | None:
        """How long until this one, which asks, may be sent a chunk; None while it has no place."""
        known = self._live.get(key)
        if known is None:
            return 0.0
        if known.state is State.INTERRUPTED:  # a fenced one asks, too; it says so only once
            self._resume(known, now)
            self._admit(now)
        if known.state is State.STALLED and len(self._running) >= self.concurrent_max:
            self._turn(known, State.WAITING)  # it gave its place away, and needs another
        if known.state is State.WAITING:
            return None
        # One that has stalled is sent something, too: it would never come closer otherwise.
        wait = self.pace.wait_seconds(now)
        known.moved_at = now + wait if wait else min(known.moved_at, now)
        return wait

    def sent(self, key: Key, size: int) -> None:
        """A chunk was sent."""
        known = self._live.get(key)
        if known is not None:
            known.bytes_sent += size
            known.bytes_left = max(known.bytes_left - size, 0)
            self.bytes_sent += size
            self.pace.spend(size)

    def trouble(self, key: Key, why: str) -> None:
        """The follower, or this disk, says what keeps it."""
        known = self._live.get(key)
        if known is not None and known.state is not State.INTERRUPTED:
            known.why = why

    def look(self, now: float) -> list[CatchUp]:
        """Time has passed: those that are stalled since the last look."""
        stalled = [
            known
            for known in self._live.values()
            if known.state is State.RUNNING and now - known.moved_at > STALLED_SECONDS
        ]
        for known in stalled:
            self._turn(known, State.STALLED, known.why or "it does not ask for more")
        self._admit(now)
        return stalled

    def _resume(self, known: CatchUp, now: float) -> None:
        known.begin_again(now)
        self._turn(known, State.WAITING)

    def _turn(self, known: CatchUp, state: State, why: str = "") -> None:
        self._running.pop(known.key, None)
        self._waiting.pop(known.key, None)
        if state is State.WAITING and not known.is_paced:
            state = State.RUNNING
        known.state, known.why = state, why
        if not known.is_paced:
            return
        if state is State.RUNNING:
            self._running[known.key] = None
        elif state is State.WAITING:
            self._waiting[known.key] = None
            known.why = "others go first (catchup.concurrent.max)"

    def _admit(self, now: float) -> None:
        """Give free places to those who wait, in the order in which they came."""
        while self._waiting and len(self._running) < self.concurrent_max:
            known = self._live[next(iter(self._waiting))]
            known.moved_at = now
            self._turn(known, State.RUNNING)
            self.admitted.append(known.key)
