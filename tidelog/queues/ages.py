"""How old the messages of one lane are, of those that are objects.

Rule 1: an entry of a message that has left the lane stays until it comes up, or is tidied away.
Rule 2: tidying goes on by a few entries with each message that leaves, so that no single one pays
        for all. Two heaps take part: entries leave the one at its end, which leaves it a heap, and
        those of messages that are still there enter the other.
Rule 3: a message has one entry at most, which a bit of it tells.
"""

from heapq import heappop, heappush
from typing import Final

from tidelog.model import Offset
from tidelog.queues.message import MAIN, Message

_STALE_ALLOWED: Final = 64
"""Tidying begins when there are more than twice as many entries as messages, and this many."""
_TIDIED_AT_ONCE: Final = 4


class Ages:
    """The offsets of a lane's messages, the oldest first."""

    __slots__ = ("_lane", "_tidied", "_untidy")

    def __init__(self, lane: int = MAIN) -> None:
        self._lane = lane
        self._tidied: list[Offset] = []
        self._untidy: list[Offset] = []
        """What is being tidied; empty unless that is under way. Both are heaps."""

    def __len__(self) -> int:
        return len(self._tidied) + len(self._untidy)

    def add(self, message: Message) -> None:
        """It is in the lane."""
        if not message.aged & 1 << self._lane:
            message.aged |= 1 << self._lane
            heappush(self._tidied, message.offset)

    def tidy(self, messages: dict[Offset, Message], count: int) -> None:
        """One has left the lane, which holds `count` now: let go of a few entries in vain."""
        if not self._untidy:
            if len(self._tidied) <= 2 * count + _STALE_ALLOWED:
                return
            self._untidy, self._tidied = self._tidied, []
        for _ in range(min(_TIDIED_AT_ONCE, len(self._untidy))):
            offset = self._untidy.pop()
            if self._of_lane(offset, messages) is not None:
                heappush(self._tidied, offset)

    def _of_lane(self, offset: Offset, messages: dict[Offset, Message]) -> Message | None:
        """The message of an entry; None if it has left, and then the entry goes too."""
        message = messages.get(offset)
        if message is None or message.lane == self._lane:
            return message
        message.aged &= ~(1 << self._lane)
        return None

    def oldest(self, messages: dict[Offset, Message]) -> Message | None:
        """The oldest message of the lane."""
        while (heap := self._first()) is not None:
            message = self._of_lane(heap[0], messages)
            if message is not None:
                return message
            heappop(heap)
        return None

    def _first(self) -> list[Offset] | None:
        """The heap that has the oldest entry."""
        one, other = self._tidied, self._untidy
        if not (one and other):
            return one or other or None
        return one if one[0] < other[0] else other

    def copy(self) -> "Ages":
        """The same entries, to be popped; it knows of no message."""
        copy = Ages(self._lane)
        copy._tidied, copy._untidy = self._tidied.copy(), self._untidy.copy()
        return copy

    def pop(self) -> Offset | None:
        """Take out the oldest entry of a copy."""
        heap = self._first()
        return None if heap is None else heappop(heap)

    def assert_invariants(self, messages: dict[Offset, Message]) -> None:
        """Check everything at length; for tests and simulations."""
        entries = [*self._tidied, *self._untidy]
        assert len(entries) == len(set(entries))
        marked = {one.offset for one in messages.values() if one.aged & 1 << self._lane}
        assert marked == {offset for offset in entries if offset in messages}
        assert all(one.offset in marked for one in messages.values() if one.lane == self._lane)
