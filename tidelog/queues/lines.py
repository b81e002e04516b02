"""Order by key: of the messages of one key, one may be given out at a time, the oldest first.

Rule 1: a line holds all messages of one key in one lane, whatever their state.
Rule 2: a message of a line is READY only if it is the oldest of it and no other of it is out. So
        an older one that comes back is given out before those that were published after it.
Rule 3: who is behind in its line only waits: it is a row of numbers, not an object.
"""

from heapq import heappop, heappush

from tidelog.model import Offset
from tidelog.queues.backlog import Backlog, Row
from tidelog.queues.message import Message


class Line:
    """The messages of one key in one lane.

    Invariant: `out` counts those that are out; `ready` is the one that is READY, if any is.
    """

    __slots__ = ("_objects", "out", "ready", "waiting")

    def __init__(self) -> None:
        self._objects: list[Offset] = []
        """A heap; an offset whose message is not in the line any more is passed over."""
        self.waiting = Backlog()
        self.out = 0
        self.ready: Message | None = None

    def enter(self, message: Message) -> None:
        heappush(self._objects, message.offset)

    def first(self, messages: dict[Offset, Message], lane: int) -> Message | Row | None:
        """The oldest of it; None if it is empty."""
        objects = self._objects
        while objects:
            message = messages.get(objects[0])
            if message is not None and message.lane == lane:
                break
            heappop(objects)
        row = self.waiting.first()
        if not objects:
            return row
        if row is not None and row.offset < objects[0]:
            return row
        return messages[objects[0]]
