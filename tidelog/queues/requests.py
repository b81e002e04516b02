"""The requests that had an Idempotency-Key and were done, for those who ask again.

Rule 1: what is remembered of a request that wrote something is a record of the log, and so a fold
        of it; it is forgotten by the record's deletion, the oldest first.
Rule 2: it is remembered for a time, and in so many bytes at most. The time begins when a leader
        hears of it, by that leader's own clock: a leader whose wall clock is ahead would forget
        what whoever asked still counts on. So after a failover all are remembered anew.
Rule 3: a request that found nothing to read or to receive writes nothing; it is remembered in
        memory alone, as long, and not over a failover. So a copy of it that was late on its way
        does nothing when it comes, long after whoever asked was answered by another copy and
        went on. A read by a pointer that says that it is repeated (`is_repeat`) is remembered by
        a record all the same: a late copy of it would move the pointer past a message for nobody.
Rule 4: a deletion, a purge or a redrive that found no queue is remembered by a record, as if it
        had written something: it is never done to a queue that was made since.
Rule 5: a key that was used for one request is refused for another, also while that is under way.
"""

from itertools import islice
from math import inf
from typing import Final

from tidelog.errors import CoordinatorLoadInProgress, IdempotencyKeyReused
from tidelog.model import Offset
from tidelog.queues.events import FOUND_NOTHING, Outcome, Received, Remembered, Request, Settled, placed

_ENTRY_BYTES: Final = 350
"""About what Python spends on one."""


def _bytes_of(value: Remembered) -> int:
    match value.outcome:
        case Received(given=given):
            return _ENTRY_BYTES + 120 * len(given)
        case Settled(fates=fates):
            return _ENTRY_BYTES + len(fates)
        case _:
            return _ENTRY_BYTES


class Requests:
    """What came of requests, by the hash of their keys, the oldest first.

    Invariant: `bytes` is the sum of what those that are remembered take.
    """

    def __init__(self, seconds: float, bytes_max: int) -> None:
        self.known: dict[bytes, Remembered] = {}
        """What the log says."""
        self._until: dict[bytes, float] = {}
        self._seconds = seconds
        self._bytes_max = bytes_max
        self.bytes = 0
        self._until_of_old = inf
        """For how long what was read from the log is remembered."""
        self._under_way: dict[bytes, bytes] = {}
        self._empty: dict[bytes, tuple[float, bytes]] = {}

    def __len__(self) -> int:
        return len(self.known)

    def start(self, now: float) -> None:
        """The log is read; the time of what it says begins."""
        self._until_of_old = now + self._seconds

    def begin(self, request: Request, now: float) -> Outcome | None:
        """What came of it; None if it begins now.

        IdempotencyKeyReused if its key is another request's, CoordinatorLoadInProgress if it is
        under way.
        """
        if not request.key:
            return None
        found = self._found(request, now)
        if found is None:
            self._under_way[request.key] = request.body
        return found

    def _found(self, request: Request, now: float) -> Outcome | None:
        key = request.key
        body: bytes | None = None
        outcome: Outcome | None = None
        if (done := self.known.get(key)) is not None and now < self._ends(key):
            body, outcome = done.body, done.outcome
        elif (empty := self._empty.get(key)) is not None and now < empty[0]:
            body, outcome = empty[1], FOUND_NOTHING
        under_way = self._under_way.get(key)
        for used in (body, under_way):
            if used and request.body and used != request.body:
                raise IdempotencyKeyReused("the Idempotency-Key was used for another request")
        if under_way is not None:
            raise CoordinatorLoadInProgress("the same request is under way; ask again")
        return outcome

    def _ends(self, key: bytes) -> float:
        return self._until.get(key, self._until_of_old)

    def resume(self, request: Request) -> None:
        """It was begun, and goes on."""
        self._under_way[request.key] = request.body

    def failed(self, request: Request) -> None:
        """It did nothing; who asks again begins anew."""
        self._under_way.pop(request.key, None)

    def found_nothing(self, request: Request, now: float) -> None:
        """It is answered with nothing, and has written nothing."""
        if not request.key:
            return
        self._under_way.pop(request.key, None)
        self._empty.pop(request.key, None)
        self._empty[request.key] = (now + self._seconds, request.body)
        while len(self._empty) * _ENTRY_BYTES > self._bytes_max:
            del self._empty[next(iter(self._empty))]

    # The log says.

    def stored(
        self, key: bytes, value: Remembered, offset: Offset, now: float | None = None, *, ends: bool = True
    ) -> None:
        """The record of a request stands at `offset`; unless `ends`, the request goes on.

        It was written now, or, if that is None, is read from the log.
        """
        if ends:
            self._under_way.pop(key, None)
        self.deleted(key)
        self.known[key] = Remembered(value.body, placed(value.outcome, offset))
        if now is not None:
            self._until[key] = now + self._seconds
        self.bytes += _bytes_of(value)

    def deleted(self, key: bytes) -> None:
        """The record of a request is deleted."""
        if (value := self.known.pop(key, None)) is not None:
            self._until.pop(key, None)
            self.bytes -= _bytes_of(value)

    # Forgetting.

    @property
    def is_full(self) -> bool:
        return self.bytes > self._bytes_max

    def forget(self, now: float, count_max: int) -> list[bytes]:
        """The oldest whose time is over, or that do not fit; `deleted` once that is stored.

        One that goes on is left: its next record says the same again.
        """
        forgotten: list[bytes] = []
        # Some room is made at once: one deletion for each new request would be a write for each.
        bytes_max = self._bytes_max * 9 // 10 if self.is_full else self._bytes_max
        size = self.bytes
        for key, value in self.known.items():
            is_over = size > bytes_max or self._ends(key) <= now
            if not is_over or len(forgotten) == count_max:
                break
            if key not in self._under_way:
                forgotten.append(key)
                size -= _bytes_of(value)
        for key, (until, _) in list(islice(self._empty.items(), count_max)):
            if until > now:
                break
            del self._empty[key]
        return forgotten
