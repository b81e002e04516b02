"""The leader's half of replication.

Rule 1: nothing here reads a clock, file or socket.
Rule 2: the high watermark moves only in this file, and only up.
Rule 3: a record is committed once every member of the in-sync set, the leader included, holds it
        as the topic's `durability` demands: synced, or merely written.

    event                       what happens
    --------------------------  ---------------------------------------------------------------
    wait_written(end, waiter)   released by the `holds_written` that reaches `end` (acks=1)
    wait_committed(end, waiter) released by the watermark that reaches `end` (acks=all)
    written(end)                releases acks=1
    holds(node, end)            may raise the watermark, which releases acks=all
    lose_after(end)             the log could not keep what lies past `end`: those waiters fail
    expire(now)                 waiters past their deadline fail; their records may yet commit

Epochs, watermarks and held ends mean the same with one replica as with many.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.errors import BrokerError
from tidelog.model import Epoch, NodeId, Offset


class Waiter(Protocol):
    """Whoever waits for a record's fate; told exactly once."""

    deadline: float

    def settled(self, error: BrokerError | None) -> None: ...


@dataclass(order=True, slots=True)
class _Wait:
    end: Offset
    waiter: Waiter = field(compare=False)


@dataclass(frozen=True, slots=True)
class Settled:
    """The effect of an event: whom to tell, and whether consumers can see more now."""

    waiters: list[Waiter]
    advanced: bool = False


_NOTHING = Settled([])


class Leader:
    """One partition's leader, in one epoch.

    Invariant: high_watermark <= the least end held by an in-sync replica.
    Owned by one driver; not thread-safe.
    """

    __slots__ = (
        "_committed", "_held", "_written", "epoch", "epoch_start", "high_watermark", "in_sync",
        "me", "written_end",
    )  # fmt: skip

    def __init__(
        self,
        *,
        me: NodeId,
        epoch: Epoch,
        log_end: Offset,
        held: Offset,
        high_watermark: Offset,
        in_sync: Iterable[NodeId],
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.epoch_start = log_end
        self.in_sync = frozenset(in_sync)
        self.written_end = log_end
        self.high_watermark = high_watermark
        self._held: dict[NodeId, Offset] = dict.fromkeys(sorted(self.in_sync), high_watermark)
        self._held[me] = held
        self._written: list[_Wait] = []
        self._committed: list[_Wait] = []
        self._advance()
        assert me in self.in_sync, "a leader is always in sync with itself"

    def __repr__(self) -> str:
        return f"<Leader epoch={self.epoch} watermark={self.high_watermark}>"

    @property
    def knows_watermark(self) -> bool:
        """Whether the watermark is known to be as high as any earlier leader has shown."""
        return self.high_watermark >= self.epoch_start

    @property
    def awaits_written(self) -> bool:
        return bool(self._written)

    @property
    def waiting(self) -> int:
        return len(self._written) + len(self._committed)

    def wait_written(self, end: Offset, waiter: Waiter) -> bool:
        """Wait for the leader alone to have written up to `end`; True if it has."""
        return self._wait(self._written, self.written_end, end, waiter)

    def wait_committed(self, end: Offset, waiter: Waiter) -> bool:
        """Wait for the watermark to reach `end`; True if it has."""
        return self._wait(self._committed, self.high_watermark, end, waiter)

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

    def written(self, end: Offset) -> Settled:
        """This replica has written everything below `end`."""
        self.written_end = end
        return Settled(_take(self._written, end)) if self._written else _NOTHING

    def holds(self, node: NodeId, end: Offset) -> Settled:
        """A replica holds everything below `end` as firmly as the topic demands."""
        if end <= self._held.get(node, -1):
            return _NOTHING
        self._held[node] = end
        if not self._advance():
            return _NOTHING
        return Settled(_take(self._committed, self.high_watermark), advanced=True)

    def _advance(self) -> bool:
        held = self._held
        least = min([held[node] for node in self.in_sync])
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True

    def lose_after(self, end: Offset) -> list[Waiter]:
        """The log ends at `end` again: the waiters for anything later, who must be refused."""
        assert end >= self.high_watermark, "what is committed is never lost"
        lost = []
        for waits in (self._written, self._committed):
            lost += [wait.waiter for wait in waits if wait.end > end]
            waits[:] = [wait for wait in waits if wait.end <= end]
        self.written_end = min(self.written_end, end)
        return lost

    def expire(self, now: float) -> list[Waiter]:
        """Waiters whose deadline has passed; their records may still be committed later."""
        late = []
        for waits in (self._written, self._committed):
            if any(wait.waiter.deadline <= now for wait in waits):
                late += [wait.waiter for wait in waits if wait.waiter.deadline <= now]
                waits[:] = [wait for wait in waits if wait.waiter.deadline > now]
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
