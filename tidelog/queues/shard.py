"""All queues of one partition of `__queues`: their log is that partition.

Rule 1: nothing is served before the log has been folded to its end.
Rule 2: what anybody is told is stored. What is on its way is known here alone, and is taken back if
        it fails.
Rule 3: a request that was done before, by its key, is answered by what came of it then.
Rule 4: that there is no queue to delete, to purge or to redrive is something that came of it.
Rule 5: no event costs more than a bounded piece of work, however much is in the queues.

    event                        what happens
    ---------------------------  ----------------------------------------------------------------
    replay(record)               one record of the log, in its order, before anything is served
    prepare(at)                  the log is read; queues are made of it, in a thread
    loaded(at)                   the queues are served; what is left of deleted ones is deleted
    ask(event)                   one request (`events.py`); answered by an `Answer`, now or later
    appended(write, offset)      where in the log this write stands; it may yet fail
    stored(write)                the log has committed this write, so all earlier ones too
    store_failed(write, error)   this write is not in the log and never will be
    tick(at)                     messages whose time has come, receivers who waited for too long,
                                 requests and pointers that are forgotten
    unload(error)                another node has these queues now
"""

from typing import Final

from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    IdempotencyKeyReused,
    NotCoordinator,
    OutcomeUnknown,
    UnknownQueue,
)
from tidelog.model import Offset
from tidelog.queues.books import Books, Effects
from tidelog.queues.changes import Asked, Change, GarbageDeleted, RequestRefused, RequestsForgotten
from tidelog.queues.events import (
    FOUND_NOTHING,
    Add,
    Added,
    Create,
    Created,
    Declare,
    Declared,
    Delete,
    Drop,
    Dropped,
    Event,
    Outcome,
    Publish,
    Published,
    Reached,
    Read,
    Receive,
    Received,
    Settle,
    Settled,
    Sweep,
    Swept,
)
from tidelog.queues.fold import Fold
from tidelog.queues.limits import Limits
from tidelog.queues.pointer_desk import POINTER_CHANGES, PointerDesk
from tidelog.queues.pointers import PointerQueue
from tidelog.queues.work import WorkQueue
from tidelog.queues.work_desk import WorkDesk
from tidelog.records import Record
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Answer, Append, Moment, Token
from tidelog.shards.ledger import Write

_ANSWERS: Final[dict[type[Event], type[Outcome]]] = {
    Create: Created,
    Delete: Dropped,
    Add: Added,
    Read: Reached,
    Declare: Declared,
    Drop: Dropped,
    Publish: Published,
    Receive: Received,
    Settle: Settled,
    Sweep: Swept,
}
"""What each request is answered by."""

_DESTROYERS: Final = (Delete, Drop, Sweep)
"""What must never be done to a queue that was made since."""
_REQUESTS: Final = "requests"
_POINTERS: Final = "pointers"
_GARBAGE: Final = "garbage"
_CHORE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_POINTERS_SECONDS_MAX: Final = 3600.0


class Shard:
    """The queues that one partition keeps.

    Invariants:
      1. What is stored of each queue is the fold over the stored records, compacted or not.
      2. Writes are numbered in the order in which their effects are returned, and settled in it.
    Owned by one driver; not thread-safe.
    """

    def __init__(self, partition: int, partitions: int, limits: Limits | None = None) -> None:
        self.is_loaded = False
        self.limits = limits or Limits()
        self.books = Books(self.limits)
        self.pointers = PointerDesk(self.books, partition, partitions)
        self.work = WorkDesk(self.books)
        self._fold: Fold | None = Fold(self.books, self.pointers, self.work)
        self._is_prepared = False
        self._refusal: BrokerError | None = CoordinatorLoadInProgress("the queues are being read")
        self._chores: Deadlines[str] = Deadlines()

    def __repr__(self) -> str:
        queues = f"{len(self.pointers.queues)}+{len(self.work.queues)}"
        return f"<Shard queues={queues} writes={len(self.books.ledger)}>"

    @property
    def pointer_queues(self) -> dict[int, PointerQueue]:
        return self.pointers.queues

    @property
    def work_queues(self) -> dict[str, WorkQueue]:
        return self.work.queues

    def work_queue(self, name: str) -> WorkQueue:
        """The queue of this name; UnknownQueue if there is none."""
        return self.work.queue(name)

    # Loading.

    def replay(self, record: Record) -> None:
        """Take one record of the log; CorruptMessage if it makes no sense."""
        assert self._fold is not None, "a live shard writes the log itself"
        self._fold.replay(record)

    def prepare(self, at: Moment) -> None:
        """The whole log has been replayed: make the queues of it. This may take long."""
        assert self._fold is not None
        self._fold.finish(at)
        self._is_prepared = True

    def loaded(self, at: Moment) -> Effects:
        """The queues are served from now on."""
        assert not self.is_loaded
        if not self._is_prepared:
            self.prepare(at)
        assert self._fold is not None
        garbage, self._fold = self._fold.garbage, None
        self.is_loaded = True
        self._refusal = None
        self.books.requests.start(at.now)
        self._see_to_requests(at)
        if self.limits.pointer_retention_ms >= 0:
            self._chores.set(_POINTERS, at.now)
        effects: Effects = []
        for keys in garbage:
            effects += self.books.throw_away(keys, at)
        return effects

    def unload(self, error: BrokerError | None = None) -> Effects:
        """Serve no more. Who has asked for a write does not know what becomes of it."""
        self._refusal = error or NotCoordinator("the queues have moved to another node")
        effects: Effects = [
            Answer(to=change.event.reply, result=OutcomeUnknown(str(self._refusal)))
            for change in self.books.ledger.give_up()
            if isinstance(change, Asked)
        ]
        effects += self.work.give_up(self._refusal)
        effects += self.pointers.give_up(self._refusal)
        self._chores = Deadlines()
        return effects

    # Requests.

    def ask(self, event: Event, at: Moment) -> Effects:
        """Begin what is asked for, unless it was done before, or cannot be."""
        if self._refusal is not None:
            return [Answer(to=event.reply, result=self._refusal)]
        try:
            done = self.books.requests.begin(event.request, at.now)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        try:
            return self._begin(event, at) if done is None else self._again(event, done, at)
        except UnknownQueue as error:
            if done is None and event.request.key and isinstance(event, _DESTROYERS):
                return [self._remember_refusal(event, error, at)]
            return [self.books.refuse(event, error)]
        except BrokerError as error:
            return [self.books.refuse(event, error)]

    def _begin(self, event: Event, at: Moment) -> Effects:
        match event:
            case Create() | Delete() | Add() | Read():
                return self.pointers.ask(event, at)
            case _:
                return self.work.ask(event, at)

    def _remember_refusal(self, event: Event, error: UnknownQueue, at: Moment) -> Append:
        """It is answered once the log knows that there was nothing to do it to."""
        records: list[Record] = []
        remembered = self.books.remember(event, FOUND_NOTHING, records, at)
        change = RequestRefused(event=event, remembered=remembered, records=len(records), error=error)
        return self.books.ledger.append(change, records)

    def _again(self, event: Event, done: Outcome, at: Moment) -> Effects:
        if done == FOUND_NOTHING and isinstance(event, _DESTROYERS):
            raise UnknownQueue("there was no such queue when this was asked for first")
        if done == FOUND_NOTHING and isinstance(event, Receive):
            return [Answer(to=event.reply, result=Received())]
        if not isinstance(done, _ANSWERS[type(event)]):
            raise IdempotencyKeyReused("the Idempotency-Key was used for another request")
        match event:
            case Create() | Delete() | Add() | Read():
                return [Answer(to=event.reply, result=done)]
            case _:
                return self.work.ask_again(event, done, at)

    def forget(self, reply: Token) -> bool:
        """Whoever asked there has gone; whether it only waited, so that nothing was begun."""
        return self.work.forget(reply)

    # The log reports back.

    def appended(self, number: int, offset: Offset) -> None:
        """The log has given this write its place."""
        self.books.ledger.note(number, offset)

    def stored(self, number: int, at: Moment) -> Effects:
        """The log has committed this write, so all earlier ones too."""
        effects: Effects = []
        for write in self.books.ledger.take_stored(number):
            effects += self._on_stored(write, at)
        self._see_to_requests(at)
        return effects

    def _on_stored(self, write: Write[Change], at: Moment) -> Effects:
        change = write.change
        if isinstance(change, POINTER_CHANGES):
            return self.pointers.stored(write, change, at)
        if isinstance(change, RequestRefused):
            self.books.note(write, at)
            return [Answer(to=change.event.reply, result=change.error)]
        if isinstance(change, RequestsForgotten):
            self.books.requests_forgotten(change)
            return []
        if isinstance(change, GarbageDeleted):
            return self.books.garbage_deleted(at)
        return self.work.stored(write, change, at)

    def store_failed(self, number: int, error: BrokerError, at: Moment) -> Effects:
        """This write is not in the log and never will be."""
        write = self.books.ledger.take_failed(number)
        if write is None:
            return []
        change = write.change
        if isinstance(change, POINTER_CHANGES):
            return self.pointers.failed(change, error, at)
        if isinstance(change, RequestRefused):
            return [self.books.refuse(change.event, error)]
        if isinstance(change, RequestsForgotten):
            self.books.is_forgetting = False
            return []
        if isinstance(change, GarbageDeleted):
            self.books.garbage_stays(change)
            self._chores.set(_GARBAGE, at.now + _RETRY_SECONDS)
            return []
        return self.work.failed(change, error, at)

    # Time.

    def next_deadline(self) -> float | None:
        times = (*self.work.next_deadlines(), self._chores.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, at: Moment) -> Effects:
        """Let what is due happen, so much at a time."""
        effects = self.work.tick(at)
        while (chore := self._chores.pop_due(at.now)) is not None:
            match chore:
                case "requests":
                    effects += self.books.forget_requests(at)
                    self._see_to_requests(at)
                case "pointers":
                    effects += self._forget_pointers(at)
                case "garbage":
                    effects += self.books.delete_garbage(at)
                case _:
                    raise AssertionError(chore)
        return effects

    def _see_to_requests(self, at: Moment) -> None:
        """While some are remembered, look now and then whether they still are to be."""
        requests = self.books.requests
        if requests.is_full and not self.books.is_forgetting:
            self._chores.set(_REQUESTS, at.now)
        elif len(requests) and _REQUESTS not in self._chores:
            self._chores.set(_REQUESTS, at.now + _CHORE_SECONDS)

    def _forget_pointers(self, at: Moment) -> Effects:
        effects, is_more = self.pointers.forget_silent(at)
        seconds = min(self.limits.pointer_retention_ms / 10_000, _POINTERS_SECONDS_MAX)
        self._chores.set(_POINTERS, at.now + (_RETRY_SECONDS if is_more else max(seconds, 1.0)))
        return effects
