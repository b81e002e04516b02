"""What to scrub next, and what was found: the part of a scrubber that reads no clock and no file.

Rule 1: a cycle visits every partition in the order of their names, and of each every sealed segment
        that is committed and synced, in the order of their offsets. What is written after it has
        come to a partition, or sealed behind its back, is visited by the next one.
Rule 2: the next cycle begins when the last has ended, and not before `interval_ms` have passed
        since the last began.
Rule 3: a restart goes on at the segment where the last note says that the cycle was.
Rule 4: rot stays in the list until it is healed, or what rotted is there no more.
"""

# scrub-state := JSON, see `ScrubState`

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidelog.model import Offset, TopicPartition

FILE_NAME: Final = "scrub-state"
RECENT_MAX: Final = 50


def place_of(name: TopicPartition) -> tuple[str, int]:
    """What partitions are sorted by."""
    return name.topic, name.partition


class Rot(msgspec.Struct, kw_only=True, eq=False):
    """Something that is not what it was, in one partition on this node."""

    topic: str
    partition: int
    offset: Offset
    """The first that cannot be read."""
    what: str
    found_ms: int
    state: str = "open"
    """open, healed, or gone: deleted or compacted away before it was healed."""
    ended_ms: int | None = None
    source: int | None = None
    """The node that the bytes came from."""
    bytes: int = 0
    why: str = ""
    """Why it is not healed yet."""
    is_contradicted: bool = False
    """Whether another replica had bytes that do not fit there."""
    is_lacked: bool = False
    """Whether every other replica that is there was asked last time, and none could help."""

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ScrubState(msgspec.Struct, kw_only=True):
    """What outlives a process."""

    version: int = 0
    cycle: int = 0
    is_running: bool = False
    began_ms: int = 0
    ended_ms: int = 0
    """When the last whole cycle ended; 0 if none has."""
    topic: str = ""
    partition: int = 0
    offset: Offset = 0
    bytes_read: int = 0
    """Of this cycle, or of the last."""
    bytes_total: int = 0
    found: int = 0
    healed: int = 0
    open: list[Rot] = msgspec.field(default_factory=list)
    recent: list[Rot] = msgspec.field(default_factory=list)


@dataclass(slots=True)
class ScrubCycle:
    """How far this node's scrubber is.

    Invariant: `state.open` has one entry for a partition and an offset.
    """

    state: ScrubState
    is_noted: bool = True
    """Whether the file says what `state` says."""

    @classmethod
    def decode(cls, data: bytes) -> "ScrubCycle":
        """Go on where a file says; from the beginning if it says nothing that makes sense."""
        try:
            state = msgspec.json.decode(data, type=ScrubState)
        except msgspec.MsgspecError:
            return cls(ScrubState())
        return cls(state if state.version == 0 else ScrubState())

    def encode(self) -> bytes:
        return msgspec.json.encode(self.state)

    def go_on(self, before: "ScrubCycle") -> None:
        """Go on where the last process was; what this one has found already stays."""
        mine = self.state.open
        self.state = before.state
        for rot in mine:
            if self.find(rot.name, rot.offset) is None:
                self.state.open.append(rot)
                self.state.found += 1

    # The cycle.

    def wait_ms(self, now_ms: int, interval_ms: int) -> int:
        """How long until there is something to do."""
        state = self.state
        if state.is_running or not state.cycle or now_ms < state.began_ms:  # a clock that jumped
            return 0
        return max(state.began_ms + interval_ms - now_ms, 0)

    def begin(self, now_ms: int) -> None:
        """Begin a cycle, unless one is under way."""
        state = self.state
        if not state.is_running:
            state.cycle += 1
            state.is_running, state.began_ms, state.bytes_read = True, now_ms, 0
            state.topic, state.partition, state.offset = "", 0, 0
            self.is_noted = False

    def left(self, names: Sequence[TopicPartition]) -> Iterable[tuple[TopicPartition, Offset]]:
        """Of sorted `names` those that are not done yet, each with where to begin."""
        here, offset = (self.state.topic, self.state.partition), self.state.offset
        at = bisect_left(names, here, key=place_of)
        for name in names[at:]:
            yield name, offset if place_of(name) == here else 0

    def reached(self, name: TopicPartition, offset: Offset) -> None:
        """Everything before this place is done."""
        state = self.state
        state.topic, state.partition, state.offset = name.topic, name.partition, offset
        self.is_noted = False

    def read(self, size: int) -> None:
        self.state.bytes_read += size
        self.state.bytes_total += size

    def end(self, now_ms: int) -> None:
        self.state.is_running = False
        self.state.ended_ms = now_ms
        self.is_noted = False

    # What was found.

    def find(self, name: TopicPartition, offset: Offset) -> Rot | None:
        return next((rot for rot in self.state.open if rot.offset == offset and rot.name == name), None)

    def found(self, name: TopicPartition, offset: Offset, what: str, now_ms: int) -> Rot:
        """Rot is there; it may be known already."""
        rot = self.find(name, offset)
        if rot is None:
            rot = Rot(topic=name.topic, partition=name.partition, offset=offset, what=what, found_ms=now_ms)
            self.state.open.append(rot)
            self.state.found += 1
            self.is_noted = False
        return rot

    def healed(self, rot: Rot, now_ms: int, *, source: int | None, size: int) -> None:
        """It is as it was."""
        if rot.state == "open":
            self.state.healed += 1
            rot.source, rot.bytes = source, size
            self._ended(rot, "healed", now_ms)

    def gone(self, rot: Rot, now_ms: int) -> None:
        """What rotted is there no more."""
        if rot.state == "open":
            self._ended(rot, "gone", now_ms)

    def _ended(self, rot: Rot, state: str, now_ms: int) -> None:
        rot.state, rot.ended_ms, rot.why = state, now_ms, ""
        self.state.open.remove(rot)
        self.state.recent = list(deque([*self.state.recent, rot], RECENT_MAX))
        self.is_noted = False
