"""What is asked of the work queues of one partition, and what becomes of it.

Rule 1: what anybody is told is stored. What is on its way is known here alone, and is taken back if
        it fails.
Rule 2: nothing is begun with a queue that is being deleted, not even by its clock: so its deletion
        is the last that the log says of it, but for the deletion of what was in it.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, assert_never

from tidelog.errors import BrokerError, CoordinatorLoadInProgress, QueueFull, UnknownQueue
from tidelog.queues.backlog import Row
from tidelog.queues.books import Books, Effects
from tidelog.queues.changes import (
    Arriving,
    Asked,
    Change,
    MessagesDied,
    MessagesGiven,
    MessagesPublished,
    MessagesSettled,
    MessagesSwept,
    QueueDeclared,
    QueueDropped,
    SweepUnderWay,
)
from tidelog.queues.events import (
    DONE,
    Declare,
    Declared,
    Drop,
    Dropped,
    Given,
    Outcome,
    Publish,
    Published,
    Receive,
    Received,
    Settle,
    Settled,
    Sweep,
    Swept,
    WorkEvent,
)
from tidelog.queues.limits import SEQUENCES_AT_ONCE, SWEPT_MAX
from tidelog.queues.message import DEAD, MAIN, OTHER, Message
from tidelog.queues.names import Names
from tidelog.queues.records import (
    Delivery,
    PlaceOf,
    Settings,
    delivery_record,
    job_record,
    sequence_record,
    size_of,
    work_queue_record,
)
from tidelog.queues.work import WorkQueue
from tidelog.queues.work_records import apply_all, key_number, keys_of, records_of, settling
from tidelog.records import Record
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Answer, Moment, Token
from tidelog.shards.ledger import Write

WorkChange = (
    QueueDeclared
    | QueueDropped
    | MessagesPublished
    | MessagesGiven
    | MessagesSettled
    | MessagesSwept
    | MessagesDied
)
_RETRY_MS: Final = 1000
"""After a failed write, a message that is to die is tried again."""


class WorkDesk:
    """The work queues, who waits for their messages, and what is on its way to them."""

    def __init__(self, books: Books) -> None:
        self.queues: dict[str, WorkQueue] = {}
        self.names: Names[str] = Names()
        """Of all queues."""
        self.next_sequence = 0
        """Of the next message of any queue."""
        self.told = 0
        """The log says that messages may have any sequence below this one."""
        self._books = books
        self._waiting: dict[tuple[str, int], deque[Receive]] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._patience: Deadlines[Receive] = Deadlines()

    def queue(self, name: str) -> WorkQueue:
        queue = self.queues.get(name)
        if queue is None:
            raise UnknownQueue(f"there is no queue {name!r}; PUT /v1/queues/{name} makes it")
        if queue.is_dropping:
            raise CoordinatorLoadInProgress(f"the queue {name!r} is being deleted; ask again")
        return queue

    def sequence_seen(self, sequence: int) -> None:
        """The log names a sequence: it is given to no message that comes."""
        self.next_sequence = max(self.next_sequence, sequence + 1)

    def begin(self, queues: dict[str, WorkQueue]) -> None:
        """These are the queues, as the log has them."""
        self.queues, self.names = queues, Names(queues)
        for queue in queues.values():
            self._touch(queue)

    # Requests.

    def ask(self, event: WorkEvent, at: Moment) -> Effects:
        """Begin what is asked for; a BrokerError if that cannot be."""
        match event:
            case Declare():
                return self._declare(event, at)
            case Drop():
                return self._drop(event, at)
            case Publish():
                return self._publish(event, at)
            case Receive():
                return self._receive(event, at)
            case Settle():
                return self._settle(event, at)
            case Sweep():
                return self._sweep(event, at)
            case _:
                assert_never(event)

    def ask_again(self, event: WorkEvent, done: Outcome, at: Moment) -> Effects:
        """It was done, or begun: what is true of that now."""
        match event, done:
            case Receive(name=name), Received(given=given):
                queue = self.queues.get(name)
                still = [one for one in given if queue is not None and queue.owns(one.offset, one.count)]
                return [Answer(to=event.reply, result=Received(tuple(still)))]
            case Sweep(), Swept(is_finished=False) if event.name in self.queues:
                queue = self.queue(event.name)
                self._books.requests.resume(event.request)
                if done.until <= queue.settings.first_sequence:
                    return self._finish(event, done.count, at)  # of another queue of this name
                return self._sweep(event, at, until=done.until, count=done.count)
            case Sweep(), Swept(is_finished=False):
                return [Answer(to=event.reply, result=Swept(done.count))]
            case _:
                return [Answer(to=event.reply, result=done)]

    def _declare(self, event: Declare, at: Moment) -> Effects:
        name, wanted = event.name, event.settings
        known = self.queues.get(name)
        if known is not None:
            self.queue(name)
        coming = [change.settings for change in self._declaring(name)]
        stored = [known.settings] if known is not None else []
        is_held = known is not None and bool(len(known) or known.arriving)
        if is_held and any(one.is_ordered != wanted.is_ordered for one in (*stored, *coming)):
            raise QueueFull(f"{name!r} holds messages: its order can be changed when it is empty")
        earlier = (*stored, *coming)
        first = earlier[0].first_sequence if earlier else self.next_sequence
        settings = Settings(
            wanted.visibility_ms,
            wanted.max_deliveries,
            wanted.is_ordered,
            wanted.messages_max,
            wanted.made_ms,
            first,
        )
        records = [work_queue_record(name, settings, now_ms=at.wall_ms)]
        is_new = not earlier
        remembered = self._books.remember(event, Declared(is_new), records, at)
        change = QueueDeclared(
            event=event, remembered=remembered, records=len(records), settings=settings, is_new=is_new
        )
        return [self._books.ledger.append(change, records)]

    def _declaring(self, name: str) -> Iterator[QueueDeclared]:
        for write in self._books.ledger:
            if isinstance(write.change, QueueDeclared) and write.change.event.name == name:
                yield write.change

    def _drop(self, event: Drop, at: Moment) -> Effects:
        queue = self.queue(event.name)
        if any(self._declaring(event.name)):
            raise CoordinatorLoadInProgress(f"{event.name!r} is being declared; ask again")
        queue.is_dropping = True
        self._deadlines.cancel(queue.name)
        records = [work_queue_record(event.name, None, now_ms=at.wall_ms)]
        remembered = self._books.remember(event, Dropped(), records, at)
        change = QueueDropped(event=event, remembered=remembered, records=len(records), queue=queue)
        return [self._books.ledger.append(change, records)]

    def _publish(self, event: Publish, at: Moment) -> Effects:
        queue, made_ms = self.queue(event.name), at.wall_ms
        held = len(queue) + queue.arriving
        if held + len(event.messages) > queue.settings.messages_max:
            raise QueueFull(
                f"{event.name!r} holds {held} messages, and may hold "
                f"{queue.settings.messages_max}; wait until some are done"
            )
        records: list[Record] = []
        arriving = []
        for value, said in event.messages:
            about = said.from_now(made_ms)
            sequence = self.next_sequence
            self.next_sequence += 1
            records.append(job_record(PlaceOf(event.name, sequence), value, about, now_ms=made_ms))
            arriving.append(
                Arriving(
                    sequence,
                    size_of(value, about),
                    key_number(about.key),
                    about.not_before_ms,
                    about.delay_ms,
                )
            )
        queue.arriving += len(arriving)
        count, told = len(arriving), self.told
        if self.next_sequence > told:
            told = self.next_sequence + SEQUENCES_AT_ONCE
            records.append(sequence_record(told, now_ms=made_ms))
        remembered = self._books.remember(event, Published(-len(records), count), records, at)
        change = MessagesPublished(
            event=event,
            remembered=remembered,
            records=len(records),
            queue=queue,
            messages=arriving,
            made_ms=made_ms,
            told=told,
        )
        return [self._books.ledger.append(change, records)]

    def _receive(self, event: Receive, at: Moment) -> Effects:
        queue, place = self.queue(event.name), (event.name, event.lane)
        if queue.has_ready(event.lane) and not self._waiting.get(place):
            return self._give(queue, event, at)
        if event.wait_seconds <= 0:
            self._books.requests.found_nothing(event.request, at.now)
            return [Answer(to=event.reply, result=Received())]
        self._waiting.setdefault(place, deque()).append(event)
        self._patience.set(event, at.now + event.wait_seconds)
        return []

    def _give(self, queue: WorkQueue, event: Receive, at: Moment) -> Effects:
        visible = event.visibility_ms
        visible = queue.settings.visibility_ms if visible is None else visible
        assert 0 <= visible < 2**63, "else the log takes no delivery, and messages are taken by now"
        messages = queue.take(event.lane, event.count_max, self._books.limits.receive_bytes_max)
        given = [(one, queue.delivery(one, visible)) for one in messages]
        records = [
            delivery_record(queue.place(one.sequence), value, now_ms=at.wall_ms) for one, value in given
        ]
        outcome = Received(tuple([Given(one.offset, value.count) for one, value in given]))
        remembered = self._books.remember(event, outcome, records, at)
        change = MessagesGiven(
            event=event, remembered=remembered, records=len(records), queue=queue, given=given
        )
        return [self._books.ledger.append(change, records)]

    def _serve(self, queue: WorkQueue, at: Moment) -> Effects:
        """Give to those who wait."""
        effects: Effects = []
        if queue.is_dropping:
            return effects
        for lane in (MAIN, DEAD):
            waiting = self._waiting.get((queue.name, lane))
            while waiting and queue.has_ready(lane):
                event = waiting.popleft()
                self._patience.cancel(event)
                effects += self._give(queue, event, at)
            if waiting is not None and not waiting:
                del self._waiting[queue.name, lane]
        self._touch(queue)
        return effects

    def forget(self, reply: Token) -> bool:
        """Whoever asked there has gone; whether it only waited, so that nothing was begun."""
        for place, waiting in self._waiting.items():
            for event in waiting:
                if event.reply is reply:
                    waiting.remove(event)
                    self._patience.cancel(event)
                    self._books.requests.failed(event.request)
                    if not waiting:
                        del self._waiting[place]
                    return True
        return False

    def _settle(self, event: Settle, at: Moment) -> Effects:
        queue = self.queue(event.name)
        found = [queue.owned(receipt) for receipt in dict.fromkeys(event.receipts)]
        fates = "".join([DONE if isinstance(one, Message) else one for one in found])
        messages = [one for one in found if isinstance(one, Message)]
        if not messages:
            self._books.requests.failed(event.request)
            return [Answer(to=event.reply, result=Settled(fates))]
        settled = [(one, settling(queue, one, event, self.next_sequence, at)) for one in messages]
        records = records_of(queue, settled, at)
        remembered = self._books.remember(event, Settled(fates), records, at)
        for message in messages:  # after all that may be refused: none is left half settled
            queue.settle(message)
        change = MessagesSettled(
            event=event,
            remembered=remembered,
            records=len(records),
            queue=queue,
            settled=settled,
            fates=fates,
        )
        return [self._books.ledger.append(change, records)]

    # Sweeps.

    def _sweep(self, event: Sweep, at: Moment, *, until: int | None = None, count: int = 0) -> Effects:
        """Begin, or go on where another leader has stopped."""
        queue = self.queue(event.name)
        if until is None:  # no message has the last below it: who comes into a lane now is beyond
            self.next_sequence = until = self.next_sequence + 1
        sweep = SweepUnderWay(
            event=event, queue=queue, until=until, rest=queue.candidates(event.lane), count=count
        )
        return self._sweep_on(sweep, at)

    def _sweep_on(self, sweep: SweepUnderWay, at: Moment) -> Effects:
        event, queue = sweep.event, sweep.queue
        messages = queue.sweep(event.lane, sweep.rest, sweep.until, SWEPT_MAX)
        is_last = len(messages) < SWEPT_MAX
        if not messages:
            return self._finish(event, sweep.count, at)
        other = OTHER[event.lane]
        swept: list[tuple[Message, Delivery | None]] = [
            (one, None if event.deletes else queue.to_lane(one, other, self.next_sequence))
            for one in messages
        ]
        records = records_of(queue, swept, at)
        so_far = Swept(sweep.count + len(messages), -1 if is_last else sweep.until)
        remembered = self._books.remember(event, so_far, records, at)
        change = MessagesSwept(
            event=event,
            remembered=remembered,
            records=len(records),
            sweep=sweep,
            swept=swept,
            is_last=is_last,
        )
        return [self._books.ledger.append(change, records)]

    def _finish(self, event: Sweep, count: int, at: Moment) -> Effects:
        """Nothing is left to sweep: whoever has a key is to hear the same when it asks again."""
        if not event.request.key:
            return [Answer(to=event.reply, result=Swept(count))]
        records: list[Record] = []
        queue = self.queue(event.name)
        remembered = self._books.remember(event, Swept(count), records, at)
        sweep = SweepUnderWay(event=event, queue=queue, until=0, rest=queue.candidates(DEAD), count=count)
        change = MessagesSwept(
            event=event, remembered=remembered, records=len(records), sweep=sweep, swept=(), is_last=True
        )
        return [self._books.ledger.append(change, records)]

    # The log reports back.

    def stored(self, write: Write[Change], change: WorkChange, at: Moment) -> Effects:
        if isinstance(change, Asked):
            self._books.note(write, at, ends=not isinstance(change, MessagesSwept) or change.is_last)
        match change:
            case QueueDeclared(event=event, settings=settings):
                if (known := self.queues.get(event.name)) is None:
                    self.queues[event.name] = WorkQueue(event.name, settings)
                    self.names.add(event.name)
                else:
                    known.settings = settings
                return [Answer(to=event.reply, result=Declared(change.is_new))]
            case QueueDropped(event=event, queue=queue):
                del self.queues[queue.name]
                self.names.remove(queue.name)
                told = self._end_waits(queue.name)
                garbage = self._books.throw_away(keys_of(queue), at)
                return [*told, Answer(to=event.reply, result=Dropped()), *garbage]
            case MessagesPublished(event=event, queue=queue):
                self.told = max(self.told, change.told)
                self._arrived(change, write.base_offset, at)
                published = Published(write.base_offset, len(change.messages))
                return [Answer(to=event.reply, result=published), *self._serve(queue, at)]
            case MessagesGiven(event=event, queue=queue, given=given):
                for message, value in given:
                    queue.gave(message, value, at)
                self._touch(queue)
                told_given = tuple([Given(one.offset, value.count) for one, value in given])
                return [Answer(to=event.reply, result=Received(told_given))]
            case MessagesSettled(event=event, queue=queue, settled=settled):
                apply_all(queue, settled, at)
                answer = Answer(to=event.reply, result=Settled(change.fates))
                return [answer, *self._serve(queue, at)]
            case MessagesSwept(sweep=sweep, swept=swept):
                apply_all(sweep.queue, swept, at)
                sweep.count += len(swept)
                return [*self._sweep_stored(change, at), *self._serve(sweep.queue, at)]
            case MessagesDied(queue=queue, died=died):
                apply_all(queue, died, at)
                return self._serve(queue, at)
            case _:
                assert_never(change)

    def _arrived(self, change: MessagesPublished, base_offset: int, at: Moment) -> None:
        queue, made_ms = change.queue, change.made_ms
        queue.arriving -= len(change.messages)
        for offset, one in enumerate(change.messages, base_offset):
            if not one.not_before_ms:
                queue.arrive(Row(one.sequence, offset, made_ms, one.size, one.key))
                continue
            message = Message(offset, one.sequence, made_ms, one.size, one.key)
            message.not_before_ms, message.delay_ms = one.not_before_ms, one.delay_ms
            queue.enter(message, at)

    def _sweep_stored(self, change: MessagesSwept, at: Moment) -> Effects:
        sweep = change.sweep
        event = sweep.event
        if change.is_last:
            return [Answer(to=event.reply, result=Swept(sweep.count))]
        if sweep.queue.is_dropping:
            error = CoordinatorLoadInProgress(f"{event.name!r} is being deleted; ask again")
            return [self._books.refuse(event, error)]
        return self._sweep_on(sweep, at)

    def _end_waits(self, name: str) -> Effects:
        told: Effects = []
        error = UnknownQueue(f"the queue {name!r} was deleted")
        for lane in (MAIN, DEAD):
            for event in self._waiting.pop((name, lane), ()):
                self._patience.cancel(event)
                told.append(self._books.refuse(event, error))
        self._deadlines.cancel(name)
        return told

    def failed(self, change: WorkChange, error: BrokerError, at: Moment) -> Effects:
        effects: Effects = []
        match change:
            case QueueDeclared():
                pass
            case QueueDropped(queue=queue):
                queue.is_dropping = False
                effects = self._serve(queue, at)
            case MessagesPublished(queue=queue, messages=messages):
                queue.arriving -= len(messages)
            case MessagesGiven(queue=queue, given=given):
                for message, _ in given:
                    queue.release(message, at)
                effects = self._serve(queue, at)
            case MessagesSettled(queue=queue, settled=settled):
                for message, _ in settled:
                    queue.keep(message, at)
                self._touch(queue)
            case MessagesSwept(sweep=sweep, swept=swept):
                for message, _ in swept:
                    sweep.queue.release(message, at)
                effects = self._serve(sweep.queue, at)
            case MessagesDied(queue=queue, died=died):
                for message, _ in died:
                    queue.keep(message, at, _RETRY_MS)
                self._touch(queue)
            case _:
                assert_never(change)
        if isinstance(change, Asked):
            effects.insert(0, self._books.refuse(change.event, error))
        return effects

    def give_up(self, error: BrokerError) -> Effects:
        """Those who wait for messages are told this."""
        waiting = [event for events in self._waiting.values() for event in events]
        self._waiting.clear()
        self._deadlines, self._patience = Deadlines(), Deadlines()
        self.queues, self.names = {}, Names()
        return [Answer(to=event.reply, result=error) for event in waiting]

    # Time.

    def _touch(self, queue: WorkQueue) -> None:
        """Its next deadline may be another one now."""
        due = None if queue.is_dropping else queue.next_deadline()
        if due is None:
            self._deadlines.cancel(queue.name)
        else:
            self._deadlines.set(queue.name, due)

    def next_deadlines(self) -> tuple[float | None, float | None]:
        return self._deadlines.next(), self._patience.next()

    def tick(self, at: Moment) -> Effects:
        """Let what is due happen, so much at a time."""
        effects: Effects = []
        left = SWEPT_MAX
        while left > 0 and (name := self._deadlines.pop_due(at.now)) is not None:
            queue = self.queues[name]
            count, more = self._tick_queue(queue, left, at)
            effects += more
            left -= count + 1
        while (event := self._patience.pop_due(at.now)) is not None:
            place = event.name, event.lane
            self._waiting[place].remove(event)
            if not self._waiting[place]:
                del self._waiting[place]
            self._books.requests.found_nothing(event.request, at.now)
            effects.append(Answer(to=event.reply, result=Received()))
        return effects

    def _tick_queue(self, queue: WorkQueue, count_max: int, at: Moment) -> tuple[int, Effects]:
        """Messages come due: they may be given out again, or are dead."""
        dying: list[tuple[Message, Delivery]] = []
        count = 0
        for message in queue.due(at, count_max):
            count += 1
            if message.visibility_ms >= 0 and queue.is_dead(message):
                queue.settle(message)
                dying.append((message, queue.to_lane(message, DEAD, self.next_sequence)))
            else:
                queue.release(message, at)
        effects: Effects = []
        if dying:
            records = records_of(queue, dying, at)
            change = MessagesDied(queue=queue, died=dying)
            effects.append(self._books.ledger.append(change, records))
        return count, [*effects, *self._serve(queue, at)]
