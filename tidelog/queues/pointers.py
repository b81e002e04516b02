"""A queue that everybody reads at his own pace: a list of messages, and a pointer for each client.

Rule 1: a message can be read once it is stored. Its id is its offset, so ids rise.
Rule 2: a pointer moves from where it is to the next message, by a record that says both.
Rule 3: one move of a pointer is on its way at a time. Whoever reads meanwhile, for the same client,
        waits for its turn: so every move that is stored counts, whatever became of others.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from tidelog.model import NO_OFFSET, Offset
from tidelog.queues.events import Read
from tidelog.queues.names import Names
from tidelog.queues.records import Moved

START: Final[Offset] = NO_OFFSET
"""Where a client is that has read nothing."""


class Pointer(NamedTuple):
    """Where a client is, and since when."""

    offset: Offset
    moved_ms: int


class PointerQueue:
    """One queue, as the log has it.

    Invariants:
      1. `messages` rise; every pointer is one of them, the one that moved last at the end.
      2. `_clients` are those who have a pointer, in order.
    """

    __slots__ = ("_clients", "_moving", "id", "is_dropping", "messages", "next_sequence", "pointers")

    def __init__(self, queue_id: int) -> None:
        self.id = queue_id
        self.messages: array[int] = array("q")
        self.pointers: dict[str, Pointer] = {}
        self.next_sequence = 0
        self.is_dropping = False
        self._clients: Names[str] | None = None
        self._moving: dict[str, deque[Read]] = {}

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

    # Moving.

    def waits(self, event: Read) -> bool:
        """Whether another move of its client is on its way; then it gets its turn later."""
        waiting = self._moving.get(event.client)
        if waiting is None:
            return False
        waiting.append(event)
        return True

    def way(self, client: str) -> Moved | None:
        """The way of a client's pointer to what it has not read; None if there is nothing."""
        pointer = self.pointers.get(client)
        start = START if pointer is None else pointer.offset
        at = bisect_right(self.messages, start)
        return Moved(start, self.messages[at]) if at < len(self.messages) else None

    def begin(self, client: str) -> None:
        """A move of the client is on its way."""
        assert client not in self._moving
        self._moving[client] = deque()

    def end(self, client: str) -> deque[Read]:
        """It is stored, or has failed; who has waited for it."""
        return self._moving.pop(client)

    def moved(self, client: str, way: Moved, moved_ms: int) -> None:
        """A pointer's way is stored."""
        known = self.pointers.pop(client, None)
        self.pointers[client] = Pointer(way.to, moved_ms)
        if known is None and self._clients is not None:
            self._clients.add(client)

    def forgotten(self, client: str) -> None:
        """That the client has a pointer is deleted."""
        if self.pointers.pop(client, None) is not None and self._clients is not None:
            self._clients.remove(client)

    def waiting(self) -> Iterator[Read]:
        """Those who wait for their turn; they are told otherwise."""
        for waiting in self._moving.values():
            yield from waiting
            waiting.clear()

    # Looking.

    def silent(self, since_ms: int, count_max: int) -> list[str]:
        """Clients that have read nothing since then, the first of them first."""
        found = []
        for client, pointer in islice(self.pointers.items(), count_max):
            if pointer.moved_ms >= since_ms:
                break
            if client not in self._moving:
                found.append(client)
        return found

    def sort(self) -> None:
        """Have what lists of pointers need; takes long for many, so do it in a thread."""
        self._clients = Names(self.pointers)

    def clients(self, after: str, most: int) -> list[tuple[str, Offset]]:
        """Where clients are, by their names beyond one."""
        if self._clients is None:
            self.sort()
        assert self._clients is not None
        names = islice(self._clients.beyond(after), most)
        return [(name, self.pointers[name].offset) for name in names]
