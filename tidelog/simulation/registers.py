"""What clients did to keys and were told, and whether registers could have told them so.

A key is a register: it has one version after another, or is absent. The log says which versions
there were, in which order; what is judged is whether every client was told the truth, in time.

Rule 1: nothing here reads a clock, file or socket. Times are the recorder's own count.
Rule 2: every value is written once, ever, so that a value found in the log tells whose it is.
Rule 3: `fail` means that it did not happen and never will; who is not sure says `info`, or nothing.
Rule 4: whatever is found is wrong. What could be told in several ways is given the benefit of it.

| anomaly             | meaning                                                                   |
|---------------------|---------------------------------------------------------------------------|
| lost write          | acknowledged, and the log has not that value at that version              |
| repeated write      | asked for once, and twice in the log                                      |
| failed write        | in the log, though its client was told that it was not done               |
| broken condition    | done, though the version before it is not the one that it named           |
| idle refusal        | refused because of the very version that it named                         |
| torn batch          | some changes of a request are in the log, and some are not                |
| phantom read        | somebody was told of a version, or a value of it, that the log has not    |
| stale read          | a strong read, or a refusal, told what was superseded before it was asked |
| read from the future| told before it was asked to be written                                    |
| versions out of order | a later write, acknowledged before an earlier one was asked for         |
| local read went back| older than what the reader, or that replica to it, had shown before       |
| token too low       | it names less than was shown with it                                      |
| torn scan           | at no moment was all so that one scan has shown                           |

A strong operation takes effect at one moment between its call and its return. As the order of
versions is known, the earliest moment at which each can have come is found in one pass, and the
latest in another; all of it takes n log n. An answer that a key is absent may mean several moments
of its history; it is counted against none unless only one is possible.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Final, Literal, NamedTuple, TypeAlias

from tidelog.model import Offset

LOST_WRITE: Final = "lost write"
REPEATED_WRITE: Final = "repeated write"
FAILED_WRITE: Final = "failed write"
BROKEN_CONDITION: Final = "broken condition"
IDLE_REFUSAL: Final = "idle refusal"
TORN_BATCH: Final = "torn batch"
PHANTOM_READ: Final = "phantom read"
STALE_READ: Final = "stale read"
FUTURE_READ: Final = "read from the future"
OUT_OF_ORDER: Final = "versions out of order"
WENT_BACK: Final = "local read went back"
TOKEN: Final = "token too low"
TORN_SCAN: Final = "torn scan"

ABSENT: Final[Offset] = -1
"""The version of a key that is not there."""
NEVER: Final = 2**63 - 1
_ALWAYS: Final = -1
_ANOMALIES_MAX: Final = 20

Key: TypeAlias = tuple[str, bytes]
"""A partition, and a key of it."""
Outcome: TypeAlias = Literal["ok", "refused", "fail", "info"]


class Logged(NamedTuple):
    """A committed record of a key; `value` None deletes it."""

    version: Offset
    value: bytes | None


class Shown(NamedTuple):
    """What a client was told of a key; ABSENT and None if it is not there."""

    version: Offset
    value: bytes | None = None


NOTHING: Final = Shown(ABSENT)


# What is recorded.


@dataclass(slots=True)
class Write:
    """A change that a client asked for."""

    history: "Registers"
    process: str
    key: Key
    value: bytes | None
    """None deletes the key."""
    expects: Offset | None
    """The version that it names, ABSENT for none; None for whatever."""
    request: int
    """Changes of one request have the same."""
    invoked: int
    completed: int = NEVER
    outcome: Outcome = "info"
    version: Offset = ABSENT
    """Where it was written, or, if it was refused, what the key had."""

    def ok(self, version: Offset) -> None:
        """It is committed, at this offset."""
        self._complete("ok", version)

    def refused(self, version: Offset) -> None:
        """It was not done, since the key had another version than it named."""
        self._complete("refused", version)

    def fail(self) -> None:
        self._complete("fail", ABSENT)

    def needless(self) -> None:
        """The key that it was to delete was not there."""
        self.fail()
        self.history.reads.append(
            Read(self.history, self.process, self.key, self.invoked, self.completed, NOTHING)
        )

    def _complete(self, outcome: Outcome, version: Offset) -> None:
        self.completed, self.outcome, self.version = self.history.tick(), outcome, version

    def __str__(self) -> str:
        what = "deletes" if self.value is None else f"puts {_show(self.value)} to"
        condition = "" if self.expects is None else f" if it is {_version(self.expects)}"
        return f"{self.process} {what} {_key(self.key)}{condition}, {self.outcome} {self.version}"


@dataclass(slots=True)
class Read:
    """A strong read of a key."""

    history: "Registers"
    process: str
    key: Key
    invoked: int
    completed: int = NEVER
    shown: Shown | None = None

    def ok(self, shown: Shown) -> None:
        self.completed, self.shown = self.history.tick(), shown

    def __str__(self) -> str:
        assert self.shown is not None
        return f"{self.process} finds {_key(self.key)} {_version(self.shown.version)}"


@dataclass(slots=True)
class LocalRead:
    """A read at some replica, as new as `after` at least."""

    history: "Registers"
    process: str
    key: Key
    after: Offset
    """Everything below it was shown to the reader before, or by the same replica."""
    invoked: int
    completed: int = NEVER
    shown: Shown | None = None
    token: Offset = 0

    def ok(self, shown: Shown, token: Offset) -> None:
        self.completed, self.shown, self.token = self.history.tick(), shown, token

    def __str__(self) -> str:
        assert self.shown is not None
        found = f"{_version(self.shown.version)} with token {self.token}"
        return f"{self.process}, who knows all to {self.after}, finds {_key(self.key)} {found}"


@dataclass(slots=True)
class Scan:
    """Many keys of one partition, as they were at one moment: those that are there, and others."""

    history: "Registers"
    process: str
    partition: str
    after: Offset
    is_strong: bool
    invoked: int
    completed: int = NEVER
    shown: Mapping[bytes, Shown] = field(default_factory=dict)
    token: Offset = 0

    def ok(self, shown: Mapping[bytes, Shown], token: Offset) -> None:
        self.completed, self.shown, self.token = self.history.tick(), shown, token
        for key, one in shown.items():
            at = (self.partition, key)
            read: Read | LocalRead
            if self.is_strong:
                read = Read(self.history, self.process, at, self.invoked, self.completed, one)
                self.history.reads.append(read)
            else:
                read = LocalRead(
                    self.history, self.process, at, self.after, self.invoked, self.completed, one, token
                )
                self.history.locals.append(read)


class Registers:
    """What was asked and told; it is only ever added to.

    writing = history.begin_write("client-1", key, b"7", expects=41)
    writing.ok(42)          # or refused(version), fail(), and nothing at all if nobody knows
    history.begin_read("client-1", key).ok(Shown(42, b"7"))
    """

    def __init__(self, tick: Callable[[], int] | None = None) -> None:
        self.tick: Final = tick or count().__next__
        self.writes: list[Write] = []
        self.reads: list[Read] = []
        self.locals: list[LocalRead] = []
        self.scans: list[Scan] = []
        self._requests = 0

    def __len__(self) -> int:
        return len(self.writes) + len(self.reads) + len(self.locals)

    def begin_write(
        self, process: str, key: Key, value: bytes | None, *, expects: Offset | None = None
    ) -> Write:
        return self.begin_request(process, [(key, value, expects)])[0]

    def begin_request(
        self, process: str, changes: Sequence[tuple[Key, bytes | None, Offset | None]]
    ) -> list[Write]:
        """Changes that are done together or not at all."""
        self._requests += 1
        now = self.tick()
        found = [
            Write(self, process, key, value, expects, self._requests, now) for key, value, expects in changes
        ]
        self.writes += found
        return found

    def begin_read(self, process: str, key: Key) -> Read:
        read = Read(self, process, key, self.tick())
        self.reads.append(read)
        return read

    def begin_local(self, process: str, key: Key, after: Offset) -> LocalRead:
        read = LocalRead(self, process, key, after, self.tick())
        self.locals.append(read)
        return read

    def begin_scan(self, process: str, partition: str, *, after: Offset = 0, is_strong: bool = True) -> Scan:
        scan = Scan(self, process, partition, after, is_strong, self.tick())
        self.scans.append(scan)
        return scan


# What is found.


class Anomaly(NamedTuple):
    rule: str
    problem: str

    def __str__(self) -> str:
        return self.problem


def check(history: Registers, log: Mapping[Key, Sequence[Logged]]) -> list[Anomaly]:
    """What cannot be. `log` is everything that was ever committed of each key, in order."""
    return _Checker(history, log).check()


class _State(NamedTuple):
    """What a key was, from the moment when its record was committed; the first was always."""

    version: Offset
    value: bytes | None
    writer: Write | None

    @property
    def is_absent(self) -> bool:
        return self.value is None


class _Bound(NamedTuple):
    """A moment that something must come after, or before; and who says so."""

    at: int
    by: object = None


class _Timeline:
    """The states of one key, and when each can have come.

    Invariant: neither `earliest` nor `latest` ever falls.
    """

    def __init__(self, states: list[_State]) -> None:
        self.states = states
        self.versions = [state.version for state in states]
        self.absent_before = [0, *accumulate(state.is_absent for state in states)]
        self.low = [
            _Bound(_ALWAYS) if s.writer is None else _Bound(s.writer.invoked, s.writer) for s in states
        ]
        self.high = [
            _Bound(s.writer.completed, s.writer)
            if s.writer is not None and s.writer.outcome == "ok"
            else _Bound(NEVER)
            for s in states
        ]
        self.earliest: list[int] = []
        self.latest: list[int] = []

    def find(self, shown: Shown) -> int | None:
        """The state that somebody was told of; None if there was none. Not for what is absent."""
        at = bisect_left(self.versions, shown.version)
        if at == len(self.versions) or self.versions[at] != shown.version:
            return None
        state = self.states[at]
        return at if state.value is not None and state.value == shown.value else None

    def note(self, at: int, invoked: int, completed: int, by: object) -> None:
        """It was in this state at some moment between these two."""
        if completed < self.high[at].at:
            self.high[at] = _Bound(completed, by)
        if at + 1 < len(self.states) and invoked > self.low[at + 1].at:
            self.low[at + 1] = _Bound(invoked, by)

    def judge(self) -> list[tuple[object, object]]:
        """Find when each state can have come; what must have been before what, and was not."""
        wrong: list[tuple[object, object]] = []
        after = _Bound(_ALWAYS)
        self.earliest = []
        for low, high in zip(self.low, self.high, strict=True):
            since, after = after, max(after, low, key=lambda bound: bound.at)
            if after.at > high.at:
                wrong.append((high.by, after.by))
                after = min(since, high, key=lambda bound: bound.at)
            self.earliest.append(after.at)
        before = NEVER
        self.latest = [before := min(before, high.at) for high in reversed(self.high)][::-1]
        return wrong

    def absences(self, invoked: int, completed: int, after: Offset = 0) -> range:
        """Among these states are all in which it was absent then, with `after` in its log."""
        end = bisect_right(self.earliest, completed)
        # A state lasts until the next one comes, at the latest.
        start = max(bisect_left(self.latest, invoked) - 1, bisect_left(self.versions, after) - 1, 0)
        return range(start, max(end, start))

    def count_absent(self, states: range) -> int:
        return self.absent_before[states.stop] - self.absent_before[states.start]

    def first_absent(self, states: range) -> int:
        return next(at for at in states if self.states[at].is_absent)

    def until(self, at: int) -> Offset:
        """The version that ends a state."""
        return self.versions[at + 1] if at + 1 < len(self.versions) else NEVER


class _Checker:
    def __init__(self, history: Registers, log: Mapping[Key, Sequence[Logged]]) -> None:
        self._history = history
        self._log = log
        self._found: list[Anomaly] = []
        self._counts: dict[str, int] = {}
        self._timelines: dict[Key, _Timeline] = {}
        self._unsure: dict[Key, list[Read]] = {}

    def check(self) -> list[Anomaly]:
        self._place_writes()
        self._check_requests()
        for write in self._history.writes:
            if write.outcome == "refused":
                self._note_refusal(write)
        for read in self._history.reads:
            if read.shown is not None:
                self._note_read(read)
        for key, timeline in self._timelines.items():
            self._check_order(key, timeline)
        for local in self._history.locals:
            if local.shown is not None:
                self._check_local(local, local.shown)
        for scan in self._history.scans:
            if scan.completed != NEVER:
                self._check_scan(scan)
        return self._found

    def _find(self, rule: str, problem: str) -> None:
        self._counts[rule] = self._counts.get(rule, 0) + 1
        if self._counts[rule] <= _ANOMALIES_MAX:
            self._found.append(Anomaly(rule, problem))

    def _timeline(self, key: Key) -> _Timeline:
        if key not in self._timelines:  # nobody has ever written it
            self._timelines[key] = _Timeline([_State(ABSENT, None, None)])
        return self._timelines[key]

    # Writes.

    def _place_writes(self) -> None:
        """Find every write in the log, and every record's writer."""
        by_value = {(w.key, w.value): w for w in self._history.writes if w.value is not None}
        deletions = {
            (w.key, w.version): w for w in self._history.writes if w.value is None and w.outcome == "ok"
        }
        for key, records in self._log.items():
            states = [_State(ABSENT, None, None)]
            places: dict[bytes, Offset] = {}
            for version, value in records:
                if value is None:
                    writer = deletions.get((key, version))
                else:
                    writer = by_value.get((key, value))
                    if value in places:
                        known = writer or _show(value)
                        self._find(REPEATED_WRITE, f"{known}: at {places[value]} and {version}")
                    places[value] = version
                states.append(_State(version, value, writer))
            self._timelines[key] = _Timeline(states)
        for write in self._history.writes:
            self._check_write(write)

    def _check_write(self, write: Write) -> None:
        timeline = self._timeline(write.key)
        if write.outcome == "ok":
            at = bisect_left(timeline.versions, write.version)
            state = timeline.states[at] if at < len(timeline.states) else None
            if state is None or (state.version, state.value) != (write.version, write.value):
                self._find(LOST_WRITE, f"{write}; the log has {state and state[:2]} there")

    def _check_requests(self) -> None:
        placed: dict[int, int] = {}
        for timeline in self._timelines.values():
            for at, state in enumerate(timeline.states):
                if state.writer is not None:
                    self._check_condition(timeline, at, state.writer)
                    if state.value is not None:
                        placed[state.writer.request] = placed.get(state.writer.request, 0) + 1
        wanted: dict[int, list[Write]] = {}
        for write in self._history.writes:
            if write.value is not None:
                wanted.setdefault(write.request, []).append(write)
        for request, found in placed.items():
            if found < len(wanted[request]):
                self._find(TORN_BATCH, f"{found} of {len(wanted[request])}: {wanted[request][0]}")

    def _check_condition(self, timeline: _Timeline, at: int, write: Write) -> None:
        if write.outcome in ("fail", "refused"):
            self._find(FAILED_WRITE, f"{write}; it is at {timeline.versions[at]}")
        before = timeline.states[at - 1]
        had = ABSENT if before.is_absent else before.version
        if write.expects not in (None, had):
            self._find(BROKEN_CONDITION, f"{write}; before it was {_version(had)}")

    # Strong reads.

    def _note_refusal(self, write: Write) -> None:
        if write.version == write.expects:
            self._find(IDLE_REFUSAL, str(write))
            return
        timeline = self._timeline(write.key)
        if write.version == ABSENT:
            read = Read(self._history, write.process, write.key, write.invoked, write.completed)
            read.shown = NOTHING
            self._unsure.setdefault(write.key, []).append(read)
            return
        at = bisect_left(timeline.versions, write.version)
        if at == len(timeline.versions) or timeline.versions[at] != write.version:
            self._find(PHANTOM_READ, str(write))
        elif timeline.states[at].is_absent:
            self._find(PHANTOM_READ, f"{write}; that deleted it")
        else:
            timeline.note(at, write.invoked, write.completed, write)

    def _note_read(self, read: Read) -> None:
        assert read.shown is not None
        if read.shown.version == ABSENT:
            self._unsure.setdefault(read.key, []).append(read)
            return
        timeline = self._timeline(read.key)
        at = timeline.find(read.shown)
        if at is None:
            self._find(PHANTOM_READ, f"{read}: {read.shown}")
        else:
            timeline.note(at, read.invoked, read.completed, read)

    def _check_order(self, key: Key, timeline: _Timeline) -> None:
        timeline.judge()
        for read in self._unsure.get(key, ()):
            states = timeline.absences(read.invoked, read.completed)
            candidates = timeline.count_absent(states)
            if not candidates:
                self._find(STALE_READ, f"{read}; it was there all the time")
            elif candidates == 1:
                timeline.note(timeline.first_absent(states), read.invoked, read.completed, read)
        for earlier, later in timeline.judge():
            if isinstance(later, Read) or (isinstance(later, Write) and later.outcome == "refused"):
                self._find(STALE_READ, f"{later}; before it was asked: {earlier}")
            elif isinstance(earlier, Read) or getattr(earlier, "outcome", "") == "refused":
                self._find(FUTURE_READ, f"{earlier}; asked for later: {later}")
            else:
                self._find(OUT_OF_ORDER, f"{earlier}; asked for later: {later}")

    # Local reads.

    def _check_local(self, read: LocalRead, shown: Shown) -> None:
        timeline = self._timeline(read.key)
        if not timeline.earliest:
            timeline.judge()
        if shown.version == ABSENT:
            # It may be as old as it likes, but for what it must know.
            states = timeline.absences(_ALWAYS, read.completed, read.after)
            if not timeline.count_absent(states):
                self._find(WENT_BACK, f"{read}; it was there from then on")
            return
        at = timeline.find(shown)
        if at is None:
            self._find(PHANTOM_READ, f"{read}: {shown}")
        elif timeline.until(at) < read.after:
            self._find(WENT_BACK, f"{read}; it was {timeline.until(at)} by then")
        elif timeline.earliest[at] > read.completed:
            self._find(FUTURE_READ, str(read))
        elif read.token <= shown.version:
            self._find(TOKEN, str(read))

    def _check_scan(self, scan: Scan) -> None:
        low: tuple[Offset, bytes] = (0, b"")
        high: tuple[Offset, bytes] = (NEVER, b"")
        for key, shown in scan.shown.items():
            timeline = self._timeline((scan.partition, key))
            if shown.version != ABSENT and (at := timeline.find(shown)) is not None:
                low = max(low, (shown.version + 1, key))
                high = min(high, (timeline.until(at), key))
        if low[0] > high[0]:
            self._find(TORN_SCAN, f"{scan.process}: {low[1]!r} with an older {high[1]!r}")
            return
        for key, shown in scan.shown.items():
            if shown.version == ABSENT:
                timeline = self._timeline((scan.partition, key))
                first = max(bisect_left(timeline.versions, low[0]) - 1, 0)
                last = max(bisect_left(timeline.versions, high[0]), first + 1)
                if not timeline.count_absent(range(first, min(last, len(timeline.states)))):
                    self._find(TORN_SCAN, f"{scan.process}: {key!r} is missing with {low[1]!r}")


def _version(version: Offset) -> str:
    return "absent" if version == ABSENT else str(version)


def _key(key: Key) -> str:
    return f"{key[0]} {key[1].decode(errors='replace')}"


def _show(value: bytes) -> str:
    return repr(value[:40])


def log_of(records: Iterable[tuple[Key, Offset, bytes | None]]) -> dict[Key, list[Logged]]:
    """The log of each key, of records in the order of their partitions."""
    log: dict[Key, list[Logged]] = {}
    for key, version, value in records:
        log.setdefault(key, []).append(Logged(version, value))
    return log
