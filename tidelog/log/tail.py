"""The newest bytes of every log, kept in memory as they arrived.

Rule 1: what is not on disk yet is never evicted; it can be read only from here.
Rule 2: one budget for the whole node; whoever appended first is evicted first.
Rule 3: what compaction has replaced is dropped, or consumers would go on reading what is gone.

Followers and live consumers read the end of the log: from here, without a system call.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final

from tidelog.host import Bytes
from tidelog.model import Offset

ENTRY_OVERHEAD_BYTES: Final = 200
"""About what Python spends on an entry beside its bytes; counted, or small batches would cheat."""

_COMPACT_AT: Final = 512


class Tail:
    """The newest batches of one log, contiguous up to its end."""

    __slots__ = ("_buffers", "_dropped", "_evictable_to", "_head", "_offsets", "_positions", "end")

    def __init__(self, end: Offset) -> None:
        self._offsets: list[Offset] = []
        self._positions: list[int] = []  # in the segment's file
        self._buffers: list[Bytes] = []
        self._head = 0
        self._evictable_to = end  # below this everything is in the file
        self._dropped = 0  # batches that went before their turn, which the budget still counts
        self.end = end

    def __len__(self) -> int:
        return len(self._offsets) - self._head

    @property
    def start(self) -> Offset:
        """The first offset that can be read from memory."""
        return self._offsets[self._head] if self._head < len(self._offsets) else self.end

    @property
    def start_position(self) -> int:
        """Where `start` lies in its segment's file; only if the tail is not empty."""
        return self._positions[self._head]

    def append(self, offset: Offset, next_offset: Offset, position: int, buffer: Bytes) -> None:
        assert offset == self.end, "the tail is contiguous"
        self._offsets.append(offset)
        self._positions.append(position)
        self._buffers.append(buffer)
        self.end = next_offset

    def written(self, end: Offset) -> None:
        """Everything below `end` is in the file and may be evicted."""
        self._evictable_to = end

    def evict(self) -> bool:
        """Drop the oldest batch; False if it must stay because it is not in the file yet."""
        if self._dropped:
            self._dropped -= 1
            return True
        head = self._head
        if head == len(self._offsets):
            return True  # a cut took it before its turn came
        following = self._offsets[head + 1] if head + 1 < len(self._offsets) else self.end
        if following > self._evictable_to:
            return False
        self._drop(1)
        return True

    def drop_before(self, offset: Offset) -> None:
        """Drop all batches below `offset`, where another begins: the file has others now."""
        assert offset <= self._evictable_to, "only what is in the file is replaced"
        count = bisect_left(self._offsets, offset, self._head) - self._head
        self._dropped += count
        self._drop(count)

    def _drop(self, count: int) -> None:
        head = self._head
        self._buffers[head : head + count] = [b""] * count
        self._head = head = head + count
        if head >= _COMPACT_AT and head * 2 >= len(self._offsets):
            del self._offsets[:head], self._positions[:head], self._buffers[:head]
            self._head = 0

    def slice(
        self, offset: Offset, bytes_max: int, limit: Offset, at_least_one: bool
    ) -> tuple[list[Bytes], int]:
        """Batches from the one that holds `offset`, up to `bytes_max` and below `limit`.

        With `at_least_one`, the first of them however large it is.
        """
        assert self.start <= offset < self.end, "the caller reads older bytes from the file"
        offsets, buffers = self._offsets, self._buffers
        first = at = bisect_right(offsets, offset, self._head) - 1
        size = 0
        count = len(offsets)
        while at < count and offsets[at] < limit:
            more = len(buffers[at])
            if size + more > bytes_max and (at > first or not at_least_one):
                break
            size += more
            at += 1
        return buffers[first:at], size

    def clear(self) -> None:
        self._offsets.clear()
        self._positions.clear()
        self._buffers.clear()
        self._head = 0


class TailBudget:
    """Shares the node's memory among all tails, first come first evicted."""

    __slots__ = ("_queue", "bytes_max", "bytes_used")

    def __init__(self, bytes_max: int) -> None:
        self._queue: deque[tuple[Tail, int]] = deque()
        self.bytes_max = bytes_max
        self.bytes_used = 0

    def charge(self, tail: Tail, size: int) -> None:
        """Count a batch just appended to `tail`, and evict what no longer fits."""
        cost = size + ENTRY_OVERHEAD_BYTES
        self._queue.append((tail, cost))
        self.bytes_used += cost
        if self.bytes_used > self.bytes_max:
            self.evict()

    def evict(self) -> None:
        """Drop the oldest batches until the budget holds or the oldest is not written yet."""
        queue = self._queue
        while self.bytes_used > self.bytes_max and queue:
            tail, cost = queue[0]
            if not tail.evict():
                return
            queue.popleft()
            self.bytes_used -= cost
