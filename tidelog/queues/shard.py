"""All queues of one partition of `__queues`: their log is that partition.

Rule 1: nothing is served before the log has been folded to its end.
Rule 2: what anybody is told is stored. What is on its way is known here alone, and is taken back if
        it fails.
Rule 3: a request is one write: all of it happens, or nothing.
Rule 4: a request that was done before, by its key, is answered as it was then.

    event                        what happens
    ---------------------------  ----------------------------------------------------------------
    replay(record)               one record of the log, in its order, before anything is served
    loaded(at)                   the log is folded; whoever has a message has it anew
    create, append, read         queues with pointers; answered by an `Answer`, now or later
    declare, drop, publish,      work queues; likewise. A receive may wait for messages.
      receive, settle, move, purge
    appended(write, offset)      where in the log this write stands; it may yet fail
    stored(write)                the log has committed this write, so all earlier ones too
    store_failed(write, error)   this write is not in the log and never will be
    tick(at)                     messages whose time has come, receivers who waited for too long
    unload(error)                another node has these queues now
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.errors import BrokerError, NotCoordinator, QueueFull, UnknownQueue
from tidelog.model import Offset
from tidelog.queues.ledger import Effects
from tidelog.queues.pointer_requests import PointerRequests
from tidelog.queues.records import (
    DEAD,
    MAIN,
    About,
    Delivery,
    DeliveryWritten,
    JobWritten,
    MessageWritten,
    PlaceOf,
    PointerWritten,
    QueueWritten,
    Settings,
    WorkQueueWritten,
    decode,
    delivery_record,
    done_record,
    job_record,
    request_of,
    work_queue_record,
)
from tidelog.queues.work import OTHER, Job, WorkQueue
from tidelog.records import Record
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Answer, Moment, Token

AT_ONCE_MAX: Final = 1000
"""Messages that one write deletes or moves."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A receiver that waits for messages."""

    queue: str
    lane: int
    reply: Token
    count_max: int
    visibility_ms: int
    until: float
    request: bytes


@dataclass(frozen=True, slots=True)
class Given:
    """A message that was given out."""

    offset: Offset
    count: int


@dataclass(slots=True)
class Settled:
    """What became of each receipt: done, or why not."""

    outcomes: list[str] = field(default_factory=list)


class Shard(PointerRequests):
    """The queues that one partition keeps.

    Invariants:
      1. What is stored of each queue is the fold over the stored records.
      2. Writes are numbered in the order in which their effects are returned, and settled in it.
    Owned by one driver; not thread-safe.
    """

    def __init__(self, partition: int, partitions: int) -> None:
        super().__init__(partition, partitions)
        self.is_loaded = False
        self.work_queues: dict[str, WorkQueue] = {}
        self._waiting: dict[tuple[str, int], deque[_Waiting]] = {}
        self._dropping: set[str] = set()
        self._deadlines: Deadlines[str] = Deadlines()
        self._patience: Deadlines[_Waiting] = Deadlines()

    def __repr__(self) -> str:
        return (
            f"<Shard queues={len(self.pointer_queues)}+{len(self.work_queues)} "
            f"writes={len(self._writes)}>"
        )

    # Loading.

    def replay(self, record: Record) -> None:
        """Take one record of the log; CorruptMessage if it makes no sense."""
        assert not self.is_loaded, "a live shard writes the log itself"
        outcome = self._fold(record)
        self.recent.note(request_of(record), outcome)

    def _fold(self, record: Record) -> Any:
        """Apply one record that was read; what its request is answered with."""
        match decode(record):
            case QueueWritten(queue_id=queue_id, is_alive=True):
                self._queue_stored(queue_id)
                return queue_id
            case QueueWritten(queue_id=queue_id):
                self.pointer_queues.pop(queue_id, None)
            case MessageWritten(queue_id=queue_id, sequence=sequence, is_alive=True):
                if (queue := self.pointer_queues.get(queue_id)) is not None:
                    queue.stored(sequence, record.offset)
                return record.offset
            case PointerWritten(queue_id=queue_id, client=client, value=moved):
                if (queue := self.pointer_queues.get(queue_id)) is None or moved is None:
                    return None
                if client not in queue.pointers:  # earlier moves were compacted away
                    queue.pointers[client] = moved.start
                return moved.to if queue.moved(client, moved) else None
            case WorkQueueWritten(name=name, value=Settings() as settings):
                known = self.work_queues.get(name)
                if known is None:
                    self.work_queues[name] = WorkQueue(name, settings)
                else:
                    known.settings = settings
                return True
            case WorkQueueWritten(name=name):
                self.work_queues.pop(name, None)
                return True
            case JobWritten(place=place, about=About() as about):
                if (work := self.work_queues.get(place.queue)) is not None:
                    work.replayed(place.sequence, record.offset, about, record.timestamp_ms)
                return record.offset
            case JobWritten(place=place, done=done):
                if (work := self.work_queues.get(place.queue)) is not None:
                    work.gone(place.sequence)
                return done
            case DeliveryWritten(place=place, value=value):
                if (work := self.work_queues.get(place.queue)) is not None:
                    work.replayed_delivery(place.sequence, value)
                return None if value is None else Given(value.offset, value.count)
            case _:
                pass
        return None

    def loaded(self, at: Moment) -> Effects:
        """The whole log has been replayed."""
        assert not self.is_loaded
        self.is_loaded = True
        self._refusal = None
        for queue in self.work_queues.values():
            queue.start(at)
            self._touch(queue)
        return []

    def unload(self, error: BrokerError | None = None) -> Effects:
        """Serve no more. Who has asked for a write does not know what becomes of it."""
        self._refusal = error or NotCoordinator("the queues have moved to another node")
        effects = self._give_up(self._refusal)
        for waiting in self._waiting.values():
            effects += [Answer(to=one.reply, result=self._refusal) for one in waiting]
        self._waiting.clear()
        self._deadlines, self._patience = Deadlines(), Deadlines()
        self.pointer_queues.clear()
        self.work_queues.clear()
        return effects

    # Work queues.

    def work_queue(self, name: str) -> WorkQueue:
        queue = self.work_queues.get(name)
        if queue is None or name in self._dropping:
            raise UnknownQueue(f"there is no queue {name!r}; PUT /v1/queues/{name} makes it")
        return queue

    def declare(
        self, name: str, settings: Settings, reply: Token, request: bytes, at: Moment
    ) -> Effects:
        """Make a work queue, or change its settings; answered with whether it is new."""

        def begin() -> Effects:
            known = self.work_queues.get(name)
            if (
                known is not None
                and known.settings.is_ordered != settings.is_ordered
                and len(known)
            ):
                raise QueueFull(
                    f"{name!r} holds messages: its order can be changed when it is empty"
                )

            def then(offset: Offset, at: Moment) -> Effects:
                queue = self.work_queues.get(name)
                is_new = queue is None
                if queue is None:
                    self.work_queues[name] = WorkQueue(name, settings)
                else:
                    queue.settings = settings
                self.recent.note(request, is_new)
                return [Answer(to=reply, result=is_new)]

            record = work_queue_record(name, settings, now_ms=at.wall_ms, request=request)
            return [self._write([record], then, self._failing(reply, request), reply)]

        effects, done = self._ask(reply, request, begin)
        return effects if done is None else [Answer(to=reply, result=done[0])]

    def drop(self, name: str, reply: Token, at: Moment) -> Effects:
        """Delete a work queue and all that is in it, which must be little enough for one write."""

        def begin() -> Effects:
            queue = self.work_queue(name)
            if len(queue) > AT_ONCE_MAX:
                raise QueueFull(f"{name!r} holds {len(queue)} messages; purge it first")
            self._dropping.add(name)

            def then(offset: Offset, at: Moment) -> Effects:
                self._dropping.discard(name)
                self.work_queues.pop(name, None)
                gone = self._waiting.pop((name, MAIN), deque())
                gone.extend(self._waiting.pop((name, DEAD), ()))
                error = UnknownQueue(f"the queue {name!r} was deleted")
                told: Effects = []
                for one in gone:
                    self._patience.cancel(one)
                    told += self._failing(one.reply, one.request)(error, at)
                self._deadlines.cancel(name)
                return [*told, Answer(to=reply, result=True)]

            def otherwise(error: BrokerError, at: Moment) -> Effects:
                self._dropping.discard(name)
                return [Answer(to=reply, result=error)]

            records = [*self._tombstones(queue, queue.jobs.values(), b"", at)]
            records.append(work_queue_record(name, None, now_ms=at.wall_ms))
            return [self._write(records, then, otherwise, reply)]

        return self._ask(reply, b"", begin)[0]

    def publish(
        self,
        name: str,
        messages: Sequence[tuple[bytes, About]],
        reply: Token,
        request: bytes,
        at: Moment,
    ) -> Effects:
        """Add messages; answered with their offsets."""

        def begin() -> Effects:
            queue = self.work_queue(name)
            if len(queue) + len(messages) > queue.settings.messages_max:
                raise QueueFull(
                    f"{name!r} holds {len(queue)} messages, and may hold "
                    f"{queue.settings.messages_max}; wait until some are done"
                )
            made_ms = at.wall_ms
            numbered = [
                (queue.take_sequence(), value, about.from_now(made_ms)) for value, about in messages
            ]

            def then(offset: Offset, at: Moment) -> Effects:
                offsets = list(range(offset, offset + len(numbered)))
                for one, (sequence, _, about) in zip(offsets, numbered, strict=True):
                    queue.stored(sequence, one, about, made_ms, at)
                    self.recent.note(request, one)
                return [Answer(to=reply, result=offsets), *self._serve(queue, at)]

            records = [
                job_record(PlaceOf(name, sequence), value, about, now_ms=made_ms, request=request)
                for sequence, value, about in numbered
            ]
            return [self._write(records, then, self._failing(reply, request), reply)]

        effects, done = self._ask(reply, request, begin)
        return effects if done is None else [Answer(to=reply, result=done)]

    def receive(
        self,
        name: str,
        lane: int,
        reply: Token,
        request: bytes,
        at: Moment,
        *,
        count_max: int,
        wait_seconds: float,
        visibility_ms: int | None,
    ) -> Effects:
        """Give out messages, now or when there are any; answered with a list of `Given`."""

        def begin() -> Effects:
            queue = self.work_queue(name)
            visible = queue.settings.visibility_ms if visibility_ms is None else visibility_ms
            waiting = _Waiting(
                name, lane, reply, count_max, visible, at.now + wait_seconds, request
            )
            if queue.has_ready(lane) and not self._waiting.get((name, lane)):
                return self._give(queue, waiting, at)
            if wait_seconds <= 0:
                self.recent.failed(request)
                return [Answer(to=reply, result=[])]
            self._waiting.setdefault((name, lane), deque()).append(waiting)
            self._patience.set(waiting, waiting.until)
            return []

        effects, done = self._ask(reply, request, begin)
        return effects if done is None else [Answer(to=reply, result=self._still(name, done))]

    def _still(self, name: str, done: list[Any]) -> list[Given]:
        """Of what a request was given, what is still its: it asks again."""
        queue = self.work_queues.get(name)
        return [
            one
            for one in done
            if isinstance(one, Given)
            and queue is not None
            and (job := queue.jobs.get(one.offset)) is not None
            and job.count == one.count
        ]

    def _give(self, queue: WorkQueue, to: _Waiting, at: Moment) -> Effects:
        jobs = queue.take(to.lane, to.count_max)
        given = [(job, queue.delivery(job, to.visibility_ms)) for job in jobs]

        def then(offset: Offset, at: Moment) -> Effects:
            found = []
            for job, delivery in given:
                queue.given(job, delivery, at)
                one = Given(job.offset, delivery.count)
                self.recent.note(to.request, one)
                found.append(one)
            self._touch(queue)
            return [Answer(to=to.reply, result=found)]

        def otherwise(error: BrokerError, at: Moment) -> Effects:
            for job, _ in given:
                queue.release(job, at)
            self._touch(queue)
            return self._failing(to.reply, to.request)(error, at)

        records = [
            delivery_record(queue.place(job), delivery, now_ms=at.wall_ms, request=to.request)
            for job, delivery in given
        ]
        return [self._write(records, then, otherwise, to.reply)]

    def _serve(self, queue: WorkQueue, at: Moment) -> Effects:
        """Give to those who wait."""
        effects: Effects = []
        self._touch(queue)
        for lane in (MAIN, DEAD):
            waiting = self._waiting.get((queue.name, lane))
            while waiting and queue.has_ready(lane):
                one = waiting.popleft()
                self._patience.cancel(one)
                effects += self._give(queue, one, at)
            if waiting is not None and not waiting:
                del self._waiting[queue.name, lane]
        return effects

    def forget(self, reply: Token) -> bool:
        """Whoever asked there has gone; whether it only waited, so that nothing was begun."""
        for waiting in self._waiting.values():
            for one in waiting:
                if one.reply is reply:
                    waiting.remove(one)
                    self._patience.cancel(one)
                    self.recent.failed(one.request)
                    return True
        return False

    def settle(
        self,
        name: str,
        receipts: Sequence[str],
        kind: str,
        reply: Token,
        request: bytes,
        at: Moment,
        *,
        ms: int,
    ) -> Effects:
        """`ack`, `nack` (not before `ms` have passed) or `extend` (to `ms` from now).

        Answered with `Settled`: of each receipt `done`, `unknown`, `expired` or `busy`. Those that
        are not done change nothing.
        """

        def begin() -> Effects:
            queue = self.work_queue(name)
            found = [queue.owned(receipt) for receipt in dict.fromkeys(receipts)]
            jobs = [one for one in found if isinstance(one, Job)]
            outcomes = ["done" if isinstance(one, Job) else one for one in found]
            if not jobs:
                self.recent.failed(request)
                return [Answer(to=reply, result=Settled(outcomes))]
            values = {job: _settling(queue, job, kind, ms, at) for job in jobs}
            for job in jobs:
                queue.settle(job)

            def then(offset: Offset, at: Moment) -> Effects:
                for job, value in values.items():
                    _settled(queue, job, value, at)
                self.recent.note(request, outcomes)
                return [Answer(to=reply, result=Settled(outcomes)), *self._serve(queue, at)]

            def otherwise(error: BrokerError, at: Moment) -> Effects:
                for job in jobs:
                    queue.unsettle(job, at)
                self._touch(queue)
                return self._failing(reply, request)(error, at)

            records: list[Record] = []
            for job, value in values.items():
                if value is None:
                    records += self._tombstones(queue, [job], request, at)
                else:
                    records.append(
                        delivery_record(queue.place(job), value, now_ms=at.wall_ms, request=request)
                    )
            return [self._write(records, then, otherwise, reply)]

        effects, done = self._ask(reply, request, begin)
        if done is None:
            return effects
        return [Answer(to=reply, result=Settled(_known(done, receipts)))]

    def move(self, name: str, lane: int, count_max: int, reply: Token, at: Moment) -> Effects:
        """Bring up to so many ready messages of a lane into the other; answered with how many."""

        def begin() -> Effects:
            queue = self.work_queue(name)
            jobs = queue.take(lane, min(count_max, AT_ONCE_MAX))
            if not jobs:
                return [Answer(to=reply, result=0)]
            return self._move(queue, jobs, reply, at)

        return self._ask(reply, b"", begin)[0]

    def _move(
        self, queue: WorkQueue, jobs: Sequence[Job], reply: Token | None, at: Moment
    ) -> Effects:
        values = [(job, queue.to_lane(job, OTHER[job.lane])) for job in jobs]

        def then(offset: Offset, at: Moment) -> Effects:
            for job, value in values:
                if job.offset in queue.jobs:
                    queue.put_back(job, value, at)
            told: Effects = [] if reply is None else [Answer(to=reply, result=len(values))]
            return [*told, *self._serve(queue, at)]

        def otherwise(error: BrokerError, at: Moment) -> Effects:
            for job, _ in values:
                queue.release(job, at)
            self._touch(queue)
            return [] if reply is None else [Answer(to=reply, result=error)]

        records = [
            delivery_record(queue.place(job), value, now_ms=at.wall_ms) for job, value in values
        ]
        return [self._write(records, then, otherwise, reply)]

    def purge(self, name: str, lane: int, reply: Token, at: Moment) -> Effects:
        """Delete up to a thousand messages that nobody has; answered with how many."""

        def begin() -> Effects:
            queue = self.work_queue(name)
            jobs = queue.take(lane, AT_ONCE_MAX) or queue.take_delayed(lane, AT_ONCE_MAX)
            if not jobs:
                return [Answer(to=reply, result=0)]

            def then(offset: Offset, at: Moment) -> Effects:
                for job in jobs:
                    queue.gone(job.sequence)
                return [Answer(to=reply, result=len(jobs)), *self._serve(queue, at)]

            def otherwise(error: BrokerError, at: Moment) -> Effects:
                for job in jobs:
                    queue.release(job, at)
                self._touch(queue)
                return [Answer(to=reply, result=error)]

            return [self._write(self._tombstones(queue, jobs, b"", at), then, otherwise, reply)]

        return self._ask(reply, b"", begin)[0]

    @staticmethod
    def _tombstones(
        queue: WorkQueue, jobs: Iterable[Job], request: bytes, at: Moment
    ) -> list[Record]:
        records = []
        for job in jobs:
            place = queue.place(job)
            records.append(done_record(place, job.receipt, now_ms=at.wall_ms, request=request))
            if job.has_delivery:
                records.append(delivery_record(place, None, now_ms=at.wall_ms))
        return records

    # Time.

    def _touch(self, queue: WorkQueue) -> None:
        """Its next deadline may be another one now."""
        due = queue.next_deadline()
        if due is None:
            self._deadlines.cancel(queue.name)
        else:
            self._deadlines.set(queue.name, due)

    def next_deadline(self) -> float | None:
        times = (self._deadlines.next(), self._patience.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, at: Moment) -> Effects:
        effects: Effects = []
        while (name := self._deadlines.pop_due(at.now)) is not None:
            if (queue := self.work_queues.get(name)) is not None:
                effects += self._tick_queue(queue, at)
        while (one := self._patience.pop_due(at.now)) is not None:
            self._waiting[one.queue, one.lane].remove(one)
            self.recent.failed(one.request)
            effects.append(Answer(to=one.reply, result=[]))
        return effects

    def _tick_queue(self, queue: WorkQueue, at: Moment) -> Effects:
        """Messages come due: they may be given out again, or are dead."""
        effects: Effects = []
        dying = []
        for job in queue.due(at):
            if queue.is_dead(job) and job.visibility_ms >= 0:
                queue.settle(job)
                dying.append(job)
            else:
                job.visibility_ms = -1
                queue.release(job, at)
        if dying:
            effects += self._move(queue, dying, None, at)
        return [*effects, *self._serve(queue, at)]


def _known(done: Sequence[Any], receipts: Sequence[str]) -> list[str]:
    """What became of each receipt of a request that comes again.

    Whoever has read the log knows which were done; of the others, that they change nothing.
    """
    if isinstance(done[0], list):
        return done[0]
    fitted = {f"{one.offset}-{one.count}" if isinstance(one, Given) else one for one in done}
    return ["done" if receipt in fitted else "expired" for receipt in dict.fromkeys(receipts)]


def _settling(queue: WorkQueue, job: Job, kind: str, ms: int, at: Moment) -> Delivery | None:
    """What the log is to say of a message that its owner settles; None: it is done."""
    match kind:
        case "ack":
            return None
        case "nack":
            if queue.is_dead(job):
                return queue.to_lane(job, DEAD)
            return Delivery(
                job.offset, job.count, job.lane, not_before_ms=at.wall_ms + ms,
                count_before=job.count_before, delay_ms=ms,
            )  # fmt: skip
        case _:
            return Delivery(job.offset, job.count, job.lane, ms, count_before=job.count_before)


def _settled(queue: WorkQueue, job: Job, value: Delivery | None, at: Moment) -> None:
    if value is None:
        queue.gone(job.sequence)
    elif value.visibility_ms >= 0:
        queue.given(job, value, at)
    else:
        queue.put_back(job, value, at)
