"""A queue whose messages are given out: each has one owner at a time, until it is acknowledged.

Rule 1: a receipt is a message's offset and how often it was given out, so nobody else's fits.
Rule 2: who has a message has it for a while. When that is over it is given to another, with
        another count; after too many times it is dead, which is another lane of the same queue.
Rule 3: how long somebody has had a message is not in the log. After a failover all begin anew.
Rule 4: in an ordered queue, messages of one key are given out one after the other (`lines.py`).
Rule 5: who is to wait for some time waits no longer than that from when a leader hears of it, even
        if the clock of the leader that wrote it was wrong.
Rule 6: a message that nobody has had, and that has no time to wait for, is a row of numbers
        (`backlog.py`); any other is a `Message`, whose states and steps are in `message.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tidelog.model import Offset
from tidelog.queues.ages import Ages
from tidelog.queues.backlog import Backlog, Row
from tidelog.queues.events import BUSY, EXPIRED, UNKNOWN
from tidelog.queues.lines import Line
from tidelog.queues.message import DEAD, MAIN, NO_KEY, Message, State, Step, parse_receipt
from tidelog.queues.records import Delivery, PlaceOf, Settings
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Moment

_SHOWN: Final = {
    State.DELAYED: "delayed",
    State.READY: "ready",
    State.BLOCKED: "ready",
    State.GIVING: "in_flight",
    State.GIVEN: "in_flight",
    State.SETTLING: "in_flight",
}
"""What people are told of a message in this state."""


@dataclass(slots=True)
class Lane:
    """What may be given out, the oldest first."""

    ages: Ages
    """All messages of the lane that are objects, and some that were."""
    ready: list[Offset] = field(default_factory=list)
    """A heap; an entry whose message is not READY in this lane any more is passed over."""
    lines: dict[int, Line] = field(default_factory=dict)
    """Of an ordered queue, by what keys are known by."""
    shown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SHOWN.values(), 0))
    """How many messages are in it, by what people are told of them; rows are ready."""
    objects: int = 0


class WorkQueue:
    """One work queue.

    Invariants:
      1. A message is in `_timers` if and only if it is DELAYED or GIVEN.
      2. Every lane's `shown` counts what is in it, so that looking costs nothing.
      3. Rows are READY in the main lane, or wait in a line of it.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.messages: dict[Offset, Message] = {}
        self.arriving = 0
        """Messages on their way to the log."""
        self.is_dropping = False
        self.backlog = Backlog()
        self._rows = 0
        self._lanes = tuple(Lane(Ages(number)) for number in (MAIN, DEAD))
        self._timers: Deadlines[Offset] = Deadlines()

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name} messages={len(self)} objects={len(self.messages)}>"

    def __len__(self) -> int:
        return len(self.messages) + self._rows

    def place(self, sequence: int) -> PlaceOf:
        return PlaceOf(self.name, sequence)

    # Messages come and go.

    def arrive(self, row: Row) -> None:
        """A message stands in the log that may be given out in its turn."""
        line = self._line(MAIN, row.key)
        self._rows += 1
        self._lanes[MAIN].shown["ready"] += 1
        if line is None:
            self.backlog.append(row)
        else:
            line.waiting.append(row)
            self._review(line, MAIN)

    def take_in(self, backlog: Backlog) -> None:
        """All of this is the queue's, which is empty and not ordered."""
        assert not self._rows
        assert not self.settings.is_ordered
        self.backlog, self._rows = backlog, len(backlog)
        self._lanes[MAIN].shown["ready"] += self._rows

    def enter(self, message: Message, at: Moment) -> None:
        """A message stands in the log that was given out before, or has a time to wait for."""
        assert message.state is State.NEW
        self.messages[message.offset] = message
        self._come(message)
        if message.visibility_ms >= 0:
            self._give(message, at)
            self._review_key(message)
        else:
            self.release(message, at)

    def delete(self, message: Message) -> None:
        """Its deletion is stored."""
        self._become(message, Step.DELETED, State.GONE)
        self._go(message)
        del self.messages[message.offset]
        self._review_key(message)

    def _as_message(self, row: Row) -> Message:
        """Make an object of a row that was taken out of where it waited."""
        self._rows -= 1
        self._lanes[MAIN].shown["ready"] -= 1
        message = Message(row.offset, row.sequence, row.made_ms, row.size, row.key)
        self.messages[message.offset] = message
        self._come(message)
        return message

    def _come(self, message: Message) -> None:
        """It is in its lane from now on."""
        lane = self._lanes[message.lane]
        lane.objects += 1
        lane.ages.add(message)
        if (line := self._line(message.lane, message.key)) is not None:
            line.enter(message)

    def _go(self, message: Message) -> None:
        """It is not in its lane any more."""
        lane = self._lanes[message.lane]
        lane.objects -= 1
        lane.ages.tidy(self.messages, lane.objects)

    # Giving out.

    def has_ready(self, lane: int) -> bool:
        return self._first_ready(lane) is not None or (lane == MAIN and bool(self.backlog))

    def _first_ready(self, lane: int) -> Message | None:
        ready = self._lanes[lane].ready
        while ready:
            message = self.messages.get(ready[0])
            if message is not None and message.state is State.READY and message.lane == lane:
                return message
            heappop(ready)
        return None

    def take(self, lane: int, count_max: int, bytes_max: int) -> list[Message]:
        """The next messages to be given out, at least one; they are GIVING from now on."""
        taken: list[Message] = []
        size = 0
        while len(taken) < count_max:
            message, row = self._first_ready(lane), self.backlog.first() if lane == MAIN else None
            if message is None and row is None:
                break
            is_row = message is None or (row is not None and row.offset < message.offset)
            found = row if is_row else message
            assert found is not None
            size += found.size
            if taken and size > bytes_max:
                break
            if is_row:
                assert row is not None
                self.backlog.pop()
                message = self._as_message(row)
                self._become(message, Step.RELEASED, State.READY)
            assert message is not None
            self._become(message, Step.TAKEN, State.GIVING)
            taken.append(message)
        return taken

    def delivery(self, message: Message, visibility_ms: int) -> Delivery:
        """What the log is to know when this message is given out once more."""
        return Delivery(
            message.offset,
            message.count + 1,
            message.lane,
            visibility_ms,
            count_before=message.count_before,
            since=message.since,
        )

    def gave(self, message: Message, value: Delivery, at: Moment) -> None:
        """The delivery is stored: it is its owner's for so long."""
        apply(message, value)
        self._give(message, at)

    def _give(self, message: Message, at: Moment) -> None:
        self._become(message, Step.GAVE, State.GIVEN)
        self._timers.set(message.offset, at.now + message.visibility_ms / 1000)

    def put_back(self, message: Message, value: Delivery, at: Moment) -> None:
        """It is with nobody, in this lane or another: that is stored."""
        if value.lane != message.lane:
            self._change_lane(message, value, at)
        else:
            apply(message, value)
            self.release(message, at)

    def _change_lane(self, message: Message, value: Delivery, at: Moment) -> None:
        before, line = message.lane, self._line(message.lane, message.key)
        self._count(message, -1)
        self._go(message)
        if line is not None and message.is_out:
            line.out -= 1
        apply(message, value)
        self._come(message)
        self._count(message, 1)
        if (now_in := self._line(message.lane, message.key)) is not None and message.is_out:
            now_in.out += 1
        if line is not None:
            self._review(line, before)
            self._drop_if_empty(line, before, message.key)
        self.release(message, at)

    def release(self, message: Message, at: Moment) -> None:
        """Nobody has it: it may be given out, now, in its turn, or when its time has come."""
        self._timers.cancel(message.offset)
        message.visibility_ms = -1
        wait_ms = message.not_before_ms - at.wall_ms
        if message.delay_ms > 0:
            wait_ms = min(wait_ms, message.delay_ms)
        line = self._line(message.lane, message.key)
        if wait_ms > 0:
            self._become(message, Step.RELEASED, State.DELAYED)
            self._timers.set(message.offset, at.now + wait_ms / 1000)
        elif line is None:
            self._become(message, Step.RELEASED, State.READY)
            heappush(self._lanes[message.lane].ready, message.offset)
        else:
            self._become(message, Step.RELEASED, State.BLOCKED)
        if line is not None:
            self._review(line, message.lane)

    def settle(self, message: Message) -> None:
        """What shall become of it is said, and not stored yet."""
        self._timers.cancel(message.offset)
        self._become(message, Step.SETTLED, State.SETTLING)
        if (line := self._line(message.lane, message.key)) is not None:
            self._review(line, message.lane)

    def keep(self, message: Message, at: Moment, visibility_ms: int | None = None) -> None:
        """That did not come to be: its owner has it, for as long as at the beginning."""
        assert message.visibility_ms >= 0, "it was somebody's"
        self._become(message, Step.KEPT, State.GIVEN)
        wait_ms = message.visibility_ms if visibility_ms is None else visibility_ms
        self._timers.set(message.offset, at.now + wait_ms / 1000)

    def owned(self, receipt: str) -> Message | str:
        """The message that a receipt is for; or why it is for none, as `FATES` has it."""
        parsed = parse_receipt(receipt)
        message = None if parsed is None else self.messages.get(parsed.offset)
        if parsed is None or message is None or parsed.delivery > message.count:
            return UNKNOWN
        if parsed.delivery < message.count or message.state not in (State.GIVEN, State.SETTLING):
            return EXPIRED
        return BUSY if message.state is State.SETTLING else message

    def owns(self, offset: Offset, count: int) -> bool:
        """Whether who was given it then has it now."""
        message = self.messages.get(offset)
        return message is not None and message.state is State.GIVEN and message.count == count

    # Time.

    def next_deadline(self) -> float | None:
        return self._timers.next()

    def due(self, at: Moment, count_max: int) -> Iterator[Message]:
        """Messages whose time has come: delayed ones, and those that somebody had for too long.

        The caller releases each of them, or lets it die.
        """
        for _ in range(count_max):
            offset = self._timers.pop_due(at.now)
            if offset is None:
                return
            message = self.messages[offset]
            if message.state is State.DELAYED and message.delay_ms > 0:
                # It has waited, whatever the time is now.
                message.not_before_ms = message.delay_ms = 0
            yield message

    def is_dead(self, message: Message) -> bool:
        """Whether it was given out too often to be given out again."""
        most = self.settings.max_deliveries
        return message.lane == MAIN and 0 < most <= message.count - message.count_before

    def to_lane(self, message: Message, lane: int, since: int) -> Delivery:
        """What the log is to know when this message goes to another lane, with nobody."""
        return Delivery(message.offset, message.count, lane, count_before=message.count, since=since)

    # Sweeping.

    def candidates(self, lane: int) -> "Candidates":
        """What a sweep of the lane is to look at, the oldest first."""
        lines = [*self._lanes[lane].lines.values()] if lane == MAIN else []
        return Candidates(self._lanes[lane].ages.copy(), lines)

    def sweep(self, lane: int, rest: "Candidates", until: int, count_max: int) -> list[Message]:
        """The next messages that nobody has, and that were in the lane before sequence `until`.

        They are SETTLING then.
        """
        found: list[Message] = []
        while len(found) < count_max and (offset := rest.ages.pop()) is not None:
            message = self.messages.get(offset)
            if message is None or message.lane != lane or not message.is_resting:
                continue
            if _is_before(message, until):
                self.settle(message)
                found.append(message)
        while lane == MAIN and len(found) < count_max:
            if (row := self.backlog.pop_below(until)) is None:
                break
            found.append(self._swept(row))
        while rest.lines and len(found) < count_max:
            line = rest.lines[-1]
            first = line.ready
            if first is not None and _is_before(first, until):
                self.settle(first)  # it was a row when the sweep began
                found.append(first)
            elif (row := line.waiting.pop_below(until)) is not None:
                found.append(self._swept(row))
            else:
                rest.lines.pop()
        return found

    def _swept(self, row: Row) -> Message:
        message = self._as_message(row)
        self.settle(message)
        return message

    def places(self) -> Iterator[tuple[int, bool]]:
        """Of all messages the sequence, and whether the log has a delivery of it; then none."""
        while self.messages:
            _, message = self.messages.popitem()
            yield message.sequence, message.has_delivery
        for rows in (self.backlog, *(line.waiting for line in self._lanes[MAIN].lines.values())):
            while (row := rows.pop()) is not None:
                yield row.sequence, False

    # Order.

    def _line(self, lane: int, key: int) -> Line | None:
        if key == NO_KEY or not self.settings.is_ordered:
            return None
        lines = self._lanes[lane].lines
        found = lines.get(key)
        if found is None:
            found = lines[key] = Line()
        return found

    def _review_key(self, message: Message) -> None:
        if (line := self._line(message.lane, message.key)) is not None:
            self._review(line, message.lane)
            self._drop_if_empty(line, message.lane, message.key)

    def _review(self, line: Line, lane: int) -> None:
        """Let the one that may be given out be READY, and no other."""
        first = line.first(self.messages, lane)
        ready = line.ready
        if ready is not None and (line.out or ready is not first):
            self._become(ready, Step.RELEASED, State.BLOCKED)
        if line.out or line.ready is not None or first is None:
            return
        if isinstance(first, Row):
            line.waiting.pop()
            first = self._as_message(first)
            self._become(first, Step.RELEASED, State.BLOCKED)
        if first.state is State.BLOCKED:
            self._become(first, Step.RELEASED, State.READY)
            heappush(self._lanes[lane].ready, first.offset)

    def _drop_if_empty(self, line: Line, lane: int, key: int) -> None:
        if line.first(self.messages, lane) is None:
            del self._lanes[lane].lines[key]

    # Counting.

    def _become(self, message: Message, step: Step, state: State) -> None:
        """Take a step, and keep the counts."""
        line = self._line(message.lane, message.key)
        self._count(message, -1)
        was_out = message.is_out
        message.take(step, state)
        self._count(message, 1)
        if line is not None:
            line.out += message.is_out - was_out
            if state is State.READY:
                line.ready = message
            elif line.ready is message:
                line.ready = None

    def _count(self, message: Message, by: int) -> None:
        if (shown := _SHOWN.get(message.state)) is not None:
            self._lanes[message.lane].shown[shown] += by

    def counts(self, lane: int, now_ms: int) -> dict[str, int]:
        """How many messages there are of each kind, and how old the oldest is."""
        found = self._lanes[lane]
        oldest = now_ms
        if any(found.shown.values()):
            row = self.backlog.first() if lane == MAIN else None
            message = self._oldest(lane)
            if message is not None and (row is None or message.offset < row.offset):
                oldest = message.made_ms
            elif row is not None:
                oldest = row.made_ms
        return {**found.shown, "oldest_ms": max(now_ms - oldest, 0)}

    def _oldest(self, lane: int) -> Message | None:
        """The oldest that is an object; what waits in a line is behind one."""
        return self._lanes[lane].ages.oldest(self.messages)

    # For tests and simulations.

    def rows(self) -> Iterator[Row]:
        yield from self.backlog
        for line in self._lanes[MAIN].lines.values():
            yield from line.waiting

    def assert_invariants(self) -> None:
        """Check everything at length."""
        for number, lane in enumerate(self._lanes):
            mine = [one for one in self.messages.values() if one.lane == number]
            shown = dict.fromkeys(_SHOWN.values(), 0)
            for one in mine:
                shown[_SHOWN[one.state]] += 1
                assert (one.offset in self._timers) == (one.state in (State.DELAYED, State.GIVEN))
            if number == MAIN:
                shown["ready"] += sum(1 for _ in self.rows())
            assert lane.shown == shown, (lane.shown, shown)
            assert lane.objects == len(mine)
            lane.ages.assert_invariants(self.messages)
            ready = {one.offset for one in mine if one.state is State.READY}
            assert ready <= set(lane.ready)
            self._assert_lines(lane, number, mine)

    def _assert_lines(self, lane: Lane, number: int, mine: list[Message]) -> None:
        if not self.settings.is_ordered:
            assert not lane.lines
            assert all(one.state is not State.BLOCKED for one in mine)
            return
        for key, line in lane.lines.items():
            members = [one for one in mine if one.key == key]
            first = line.first(self.messages, number)
            assert first is not None, "an empty line is dropped"
            assert line.out == sum(one.is_out for one in members)
            ready = [one for one in members if one.state is State.READY]
            assert ready == ([] if line.ready is None else [line.ready])
            assert all(one is first and not line.out for one in ready)
            if not line.out and not ready:
                assert isinstance(first, Message)
                assert first.state is State.DELAYED


@dataclass(slots=True)
class Candidates:
    """What a sweep has still to look at."""

    ages: Ages
    lines: list[Line]


def _is_before(message: Message, until: int) -> bool:
    """Whether it was in its lane when `until` was the next sequence."""
    return message.sequence < until and message.since < until


def apply(message: Message, value: Delivery) -> None:
    """The log says this of the message."""
    message.has_delivery = True
    message.count, message.count_before = value.count, value.count_before
    message.lane, message.since = value.lane, value.since
    message.visibility_ms = value.visibility_ms
    message.not_before_ms, message.delay_ms = value.not_before_ms, value.delay_ms
