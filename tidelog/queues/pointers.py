"""A queue that everybody reads at his own pace: a list of messages, and a pointer for each client.

Rule 1: a message can be read once it is stored. Its id is its offset, so ids rise.
Rule 2: a pointer moves from where it is to the next message, by a record that says both. One that
        does not fit is passed over, here and by whoever reads the log again: nothing is skipped,
        and nothing is given twice to those who repeat their request.
Rule 3: a second read of a client begins where the first one, which is not stored yet, will end.
"""

from array import array
from bisect import bisect_right
from typing import Final

from tidelog.model import NO_OFFSET, Offset
from tidelog.queues.records import Moved

START: Final[Offset] = NO_OFFSET
"""Where a client is that has read nothing."""


class PointerQueue:
    """One queue, as the log has it.

    Invariant: `messages` rise; every pointer is START or one of them.
    """

    __slots__ = ("_ahead", "id", "messages", "next_sequence", "pointers")

    def __init__(self, queue_id: int) -> None:
        self.id = queue_id
        self.messages: array[int] = array("q")
        self.pointers: dict[str, Offset] = {}
        self.next_sequence = 0
        self._ahead: dict[str, Offset] = {}

    def __repr__(self) -> str:
        return f"<PointerQueue {self.id} messages={len(self.messages)}>"

    def take_sequence(self) -> int:
        """The number of the next message, which only its key needs."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def stored(self, sequence: int, offset: Offset) -> None:
        """A message stands in the log."""
        self.next_sequence = max(self.next_sequence, sequence + 1)
        assert not self.messages or self.messages[-1] < offset, "offsets rise"
        self.messages.append(offset)

    def beyond(self, after: Offset, most: int) -> list[Offset]:
        """The messages beyond one, so many at most."""
        at = bisect_right(self.messages, after)
        return list(self.messages[at : at + most])

    def begin_read(self, client: str) -> Moved | None:
        """The way of a client's pointer to what it has not read; None if there is nothing."""
        start = self._ahead.get(client, self.pointers.get(client, START))
        at = bisect_right(self.messages, start)
        if at == len(self.messages):
            return None
        moved = Moved(start, self.messages[at])
        self._ahead[client] = moved.to
        return moved

    def moved(self, client: str, way: Moved) -> bool:
        """A pointer's way is stored; whether it counts."""
        self.settle(client, way)
        if self.pointers.get(client, START) != way.start:
            return False
        self.pointers[client] = way.to
        return True

    def settle(self, client: str, way: Moved) -> None:
        """A read is stored or has failed: if nobody went on from there, nothing is ahead."""
        if self._ahead.get(client) == way.to:
            del self._ahead[client]

    def failed(self, client: str) -> None:
        """A read failed, so those that went on from it will not count: begin where it is stored."""
        self._ahead.pop(client, None)
