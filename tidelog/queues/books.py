"""What all requests to the queues of one partition share: their writes, and those that were done.

Rule 1: a request is one write, or a chain of them; what it is answered with is stored first.
Rule 2: what is remembered of a request is the last record of its write.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from tidelog.errors import BrokerError
from tidelog.queues.changes import Asked, Change, GarbageDeleted, RequestsForgotten
from tidelog.queues.events import Event, Outcome, Remembered
from tidelog.queues.limits import DELETED_MAX, Limits
from tidelog.queues.records import deletion, request_key, request_record
from tidelog.queues.requests import Requests
from tidelog.records import Record
from tidelog.shards.effects import Answer, Append, Moment
from tidelog.shards.ledger import Ledger, Write

Effects: TypeAlias = list[Answer | Append]


class Books:
    """The writes in flight, the requests that are known, and what is to be deleted in time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ledger: Ledger[Change] = Ledger()
        self.requests = Requests(limits.request_window_ms / 1000, limits.requests_bytes_max)
        self._garbage: deque[Iterator[bytes]] = deque()
        self._deleting = False
        self.is_forgetting = False

    # Requests.

    def remember(
        self, event: Event, outcome: Outcome, records: list[Record], at: Moment
    ) -> Remembered | None:
        """Have the log remember what came of a request, if it has a key."""
        if not event.request.key:
            return None
        value = Remembered(event.request.body, outcome)
        records.append(request_record(event.request.key, value, now_ms=at.wall_ms))
        return value

    def note(self, write: Write[Change], at: Moment, *, ends: bool = True) -> None:
        """What somebody asked for is stored."""
        change = write.change
        assert isinstance(change, Asked)
        if change.remembered is not None:
            last = write.base_offset + change.records - 1
            key = change.event.request.key
            self.requests.stored(key, change.remembered, last, at.now, ends=ends)
        elif ends:
            self.requests.failed(change.event.request)

    def refuse(self, event: Event, error: BrokerError) -> Answer:
        """It did nothing, and may be asked for again."""
        self.requests.failed(event.request)
        return Answer(to=event.reply, result=error)

    def forget_requests(self, at: Moment) -> Effects:
        """Delete the oldest, if their time is over or they do not fit."""
        forgotten = [] if self.is_forgetting else self.requests.forget(at.now, DELETED_MAX)
        if not forgotten:
            return []
        self.is_forgetting = True
        records = [deletion(request_key(key), at.wall_ms) for key in forgotten]
        return [self.ledger.append(RequestsForgotten(keys=forgotten), records)]

    def requests_forgotten(self, change: RequestsForgotten) -> None:
        self.is_forgetting = False
        for key in change.keys:
            self.requests.deleted(key)

    # What is left of queues that are deleted.

    def throw_away(self, keys: Iterable[bytes], at: Moment) -> Effects:
        """Delete these keys in time; nobody writes them any more."""
        self._garbage.append(iter(keys))
        return self.delete_garbage(at)

    def delete_garbage(self, at: Moment) -> Effects:
        """Delete a piece of it, unless one is on its way."""
        while self._garbage and not self._deleting:
            keys = list(islice(self._garbage[0], DELETED_MAX))
            if keys:
                self._deleting = True
                records = [deletion(key, at.wall_ms) for key in keys]
                return [self.ledger.append(GarbageDeleted(keys=keys), records)]
            self._garbage.popleft()
        return []

    def garbage_deleted(self, at: Moment) -> Effects:
        self._deleting = False
        return self.delete_garbage(at)

    def garbage_stays(self, change: GarbageDeleted) -> None:
        """It was not deleted; it is tried again later."""
        self._deleting = False
        self._garbage.appendleft(iter(change.keys))
