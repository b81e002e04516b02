"""One append for what many requests write to a partition in one turn of the loop, or meanwhile.

Rule 1: what comes for a partition in a turn becomes one batch: one header, one checksum, one wait for
        the replicas, one timer. Its cost is per batch, not per request. So what comes while a batch
        is on its way to replicas waits for it, but not longer than `GATHER_SECONDS`.
Rule 2: whoever decides what is written does so right before the append; nothing happens in between.
Rule 3: a request that is refused, leaves or runs out of time takes no other one with it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.broker.writing import batch_of, outcome_unknown
from tidelog.errors import BrokerError, OutcomeUnknown
from tidelog.host import Clock
from tidelog.log.unpacking import are_keyed
from tidelog.model import NO_PRODUCER, NO_TIMESTAMP, Offset
from tidelog.partition.driver import Partition
from tidelog.records import HEADER_BYTES, Record

T = TypeVar("T")

AT_ONCE_MAX: Final = 64
"""Requests that are handed on in one turn, so that none is long."""
GATHER_SECONDS: Final = 0.005
"""For which a batch waits for room at most: replicas may be far away."""
BYTES_MAX: Final = 64 * 1024
"""A batch of more takes no other request's records."""
_RECORD_BYTES: Final = 32
"""About what the format spends on a record beside its key and value."""
_GRACE_SECONDS: Final = 1.0
_LATE: Final = "it was not committed in time"


class Pace:
    """When what was gathered goes: at the end of the turn, or once there is room.

    Invariant: while something is wanted, `go` is going to be called, whatever becomes of the batches
    that are under way.
    """

    __slots__ = ("_go", "_is_wanted", "_timer", "_under_way")

    def __init__(self, go: Callable[[], None]) -> None:
        self._go = go
        self._is_wanted = False
        """Whether `go` is going to be called."""
        self._timer: asyncio.TimerHandle | None = None
        """Set while it waits for room: when that is over."""
        self._under_way = 0

    def want(self, *, now: bool = False) -> None:
        """There is something to go; `now`: whether or not there is room."""
        if self._is_wanted:
            return
        self._is_wanted = True
        loop = asyncio.get_running_loop()
        if now or not self._under_way:
            loop.call_soon(self._end)
        else:
            self._timer = loop.call_later(GATHER_SECONDS, self._end)

    def begun(self) -> None:
        """A batch is on its way to replicas: one more would wait for the same disks, and cost all
        nodes its messages."""
        self._under_way += 1

    def ended(self) -> None:
        """It is no more."""
        self._under_way -= 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._is_wanted, self._timer = False, None
        self._go()


class Gathered(Generic[T]):
    """What comes for one partition, handed on together."""

    __slots__ = ("_hand_on", "_items", "pace")

    def __init__(self, hand_on: Callable[[Sequence[T]], int]) -> None:
        """`hand_on` says how many it has taken, at least one; the others come again in the next turn.

        It raises nothing: whatever goes wrong, it tells the items.
        """
        self._hand_on = hand_on
        self._items: list[T] = []
        self.pace = Pace(self._end)

    def put(self, item: T) -> None:
        self._items.append(item)
        self.pace.want()

    def _end(self) -> None:
        taken = self._hand_on(self._items[:AT_ONCE_MAX])
        del self._items[:taken]
        if self._items:
            self.pace.want(now=True)  # what went was full


class _Member(NamedTuple):
    """One request of a batch."""

    reply: "asyncio.Future[object]"
    answer: object
    offset: Offset
    end: Offset
    deadline: float


def size_of(records: Sequence[Record]) -> int:
    """About what these take in a batch, and not less."""
    size = 0
    for one in records:
        size += _RECORD_BYTES + len(one.key or b"") + len(one.value or b"")
        for name, value in one.headers:
            size += _RECORD_BYTES + 4 * len(name) + len(value or b"")
    return size


class JointWrite:
    """One batch, and the requests whose records it holds.

    Invariant: until `append`, `base` is where the partition's log ends.
    """

    __slots__ = (
        "_clock",
        "_is_under_way",
        "_leader",
        "_members",
        "_pace",
        "_partition",
        "_records",
        "_size",
        "_timer",
        "base",
        "deadline",
        "is_stamped",
    )

    def __init__(self, partition: Partition, clock: Clock, pace: Pace) -> None:
        """NotLeader if this node does not lead the partition. `pace` hears that it is under way."""
        self._pace = pace
        self._partition = partition
        self._clock = clock
        self._leader = partition.leading()
        self._records: list[Record] = []
        self._members: list[_Member] = []
        self._size = HEADER_BYTES
        self._is_under_way = False
        self._timer: asyncio.TimerHandle | None = None
        self.base = partition.log.end
        self.deadline = 0.0
        """As the partition knows it; each request's own is looked after here."""
        self.is_stamped = False
        """Whether the log gave the records another time than they had."""

    @property
    def end(self) -> Offset:
        """Where the next record will stand."""
        return self.base + len(self._records)

    def has_room(self, size: int) -> bool:
        """Whether records of `size` bytes may join: alone they may be of any."""
        size_max = min(BYTES_MAX, self._partition.config.max_message_bytes)
        return not self._records or self._size + size <= size_max

    def add(
        self, records: Sequence[Record], size: int, reply: "asyncio.Future[T]", answer: T, deadline: float
    ) -> None:
        """Let these be written, and `reply` be told `answer` once they are committed."""
        offset = self.end
        self._records += records
        self._size += size
        self._members.append(_Member(reply, answer, offset, offset + len(records), deadline))  # type: ignore[arg-type]

    def append(self) -> bool:
        """Write what was added; whether it stands in the log now. If not, who waits is told why."""
        members = self._members
        if not members:
            return True
        self.deadline = max([one.deadline for one in members]) + _GRACE_SECONDS
        try:
            batch = batch_of(self._records, NO_PRODUCER)
            offset, append_time, is_done = self._partition.appender.append(
                batch, acks=-1, waiter=self, pins_bytes=len(batch), is_keyed=are_keyed(self._records)
            )
        except BrokerError as error:
            for one in members:
                if not one.reply.done():
                    one.reply.set_exception(error)
            return False
        assert offset == self.base, "nothing was appended since it was begun"
        self.is_stamped = append_time != NO_TIMESTAMP
        if is_done:
            self.settled(None)
        else:
            if len(self._leader.replicas) > 1:
                self._pace.begun()
                self._is_under_way = True
            self._set_timer()
        return True

    def settled(self, error: BrokerError | None) -> None:
        """The batch is committed, or it is not known whether it will be."""
        if self._is_under_way:
            self._is_under_way = False
            self._pace.ended()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        members, self._members = self._members, []
        for one in members:
            if not one.reply.done():
                if error is None:
                    one.reply.set_result(one.answer)
                else:
                    one.reply.set_exception(self._unknown(one, str(error) or type(error).__name__))

    def _unknown(self, one: _Member, why: str) -> OutcomeUnknown:
        return outcome_unknown(self._partition, self._leader, one.offset, one.end, why)

    def _set_timer(self) -> None:
        due = min([one.deadline for one in self._members])
        seconds = max(due - self._clock.monotonic(), 0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        """The time of some requests is up; the others wait on."""
        now, self._timer = self._clock.monotonic(), None
        late = [one for one in self._members if one.deadline <= now]
        self._members = [one for one in self._members if one.deadline > now]
        for one in late:
            if not one.reply.done():
                one.reply.set_exception(self._unknown(one, _LATE))
        if self._members:
            self._set_timer()
