"""What clients ask of the queues with pointers of one partition.

A queue's id tells its partition: it is the rest of a division by the number of partitions. Ids are
given to one queue each, also after it is deleted.
"""

from collections.abc import Iterator
from typing import Final, assert_never

from tidelog.errors import BrokerError, CoordinatorLoadInProgress, QueueFull, UnknownQueue
from tidelog.queues.books import Books, Effects
from tidelog.queues.changes import (
    Change,
    MessageAdded,
    NothingToRead,
    PointerMoved,
    PointersForgotten,
    QueueCreated,
    QueueDeleted,
)
from tidelog.queues.events import (
    FOUND_NOTHING,
    Add,
    Added,
    Create,
    Created,
    Delete,
    Dropped,
    PointerEvent,
    Reached,
    Read,
)
from tidelog.queues.limits import DELETED_MAX, POINTER_MESSAGES_MAX
from tidelog.queues.pointers import PointerQueue
from tidelog.queues.records import (
    deletion,
    message_key,
    message_record,
    number_record,
    pointer_key,
    pointer_record,
    queue_record,
)
from tidelog.records import Record
from tidelog.shards.effects import Answer, Append, Moment
from tidelog.shards.ledger import Write

PointerChange = QueueCreated | QueueDeleted | MessageAdded | PointerMoved | NothingToRead | PointersForgotten
POINTER_CHANGES: Final = (
    QueueCreated,
    QueueDeleted,
    MessageAdded,
    PointerMoved,
    NothingToRead,
    PointersForgotten,
)


class PointerDesk:
    """The queues with pointers, and what is on its way to them."""

    def __init__(self, books: Books, partition: int, partitions: int) -> None:
        self.queues: dict[int, PointerQueue] = {}
        self._books = books
        self._partition = partition
        self._partitions = partitions
        self.next_number = 0

    def queue(self, queue_id: int) -> PointerQueue:
        queue = self.queues.get(queue_id)
        if queue is None:
            raise UnknownQueue(f"there is no queue {queue_id}; POST /create_queue makes one")
        if queue.is_dropping:
            raise CoordinatorLoadInProgress(f"queue {queue_id} is being deleted; ask again")
        return queue

    def number_seen(self, queue_id: int) -> None:
        """The log names a queue: its id is given to no other."""
        self.next_number = max(self.next_number, queue_id // self._partitions + 1)

    # Requests.

    def ask(self, event: PointerEvent, at: Moment) -> Effects:
        """Begin what is asked for; a BrokerError if that cannot be."""
        match event:
            case Create():
                return self._create(event, at)
            case Delete():
                return self._delete(event, at)
            case Add():
                return self._add(event, at)
            case Read():
                return self._read(event, at)
            case _:
                assert_never(event)

    def _create(self, event: Create, at: Moment) -> Effects:
        queue_id = self.next_number * self._partitions + self._partition
        self.next_number += 1
        records = [queue_record(queue_id, made_ms=at.wall_ms)]
        remembered = self._books.remember(event, Created(queue_id), records, at)
        change = QueueCreated(event=event, remembered=remembered, records=len(records), queue_id=queue_id)
        return [self._books.ledger.append(change, records)]

    def _delete(self, event: Delete, at: Moment) -> Effects:
        queue = self.queue(event.queue_id)
        queue.is_dropping = True
        records = [
            queue_record(queue.id, made_ms=at.wall_ms, alive=False),
            number_record(self.next_number, now_ms=at.wall_ms),
        ]
        remembered = self._books.remember(event, Dropped(), records, at)
        change = QueueDeleted(event=event, remembered=remembered, records=len(records), queue=queue)
        return [self._books.ledger.append(change, records)]

    def _add(self, event: Add, at: Moment) -> Effects:
        queue = self.queue(event.queue_id)
        if len(queue.messages) >= POINTER_MESSAGES_MAX:
            raise QueueFull(f"queue {queue.id} has {POINTER_MESSAGES_MAX} messages")
        sequence = queue.take_sequence()
        records = [message_record(queue.id, sequence, event.value, now_ms=at.wall_ms)]
        remembered = self._books.remember(event, Added(-1), records, at)
        change = MessageAdded(
            event=event, remembered=remembered, records=len(records), queue=queue, sequence=sequence
        )
        return [self._books.ledger.append(change, records)]

    def _read(self, event: Read, at: Moment) -> Effects:
        queue = self.queue(event.queue_id)
        if queue.waits(event):
            return []
        way = queue.way(event.client)
        books = self._books
        if way is None:
            return [self._nothing_to_read(event, at)]
        queue.begin(event.client)
        records = [pointer_record(queue.id, event.client, way, now_ms=at.wall_ms)]
        remembered = books.remember(event, Reached(way.to), records, at)
        change = PointerMoved(
            event=event,
            remembered=remembered,
            records=len(records),
            queue=queue,
            way=way,
            moved_ms=at.wall_ms,
        )
        return [books.ledger.append(change, records)]

    def _nothing_to_read(self, event: Read, at: Moment) -> Answer | Append:
        """Answer that nothing is there.

        Where another copy of the request may be on its way, the log is told first: that copy may
        come after a failover, when there is something to read and nobody waits for it.
        """
        books = self._books
        if not event.is_repeat or not event.request.key:
            books.requests.found_nothing(event.request, at.now)
            return Answer(to=event.reply, result=FOUND_NOTHING)
        records: list[Record] = []
        remembered = books.remember(event, FOUND_NOTHING, records, at)
        change = NothingToRead(event=event, remembered=remembered, records=len(records))
        return books.ledger.append(change, records)

    def _go_on(self, queue: PointerQueue, client: str, at: Moment) -> Effects:
        """Whoever has waited for a move of the client has its turn."""
        effects: Effects = []
        for event in queue.end(client):
            try:
                effects += self._read(event, at)
            except BrokerError as error:
                effects.append(self._books.refuse(event, error))
        return effects

    # The log reports back.

    def stored(self, write: Write[Change], change: PointerChange, at: Moment) -> Effects:
        books = self._books
        if not isinstance(change, PointersForgotten):
            books.note(write, at)
        match change:
            case QueueCreated(event=event, queue_id=queue_id):
                self.queues[queue_id] = PointerQueue(queue_id)
                self.queues[queue_id].sort()
                return [Answer(to=event.reply, result=Created(queue_id))]
            case QueueDeleted(event=event, queue=queue):
                del self.queues[queue.id]
                garbage = books.throw_away(keys_of(queue), at)
                return [Answer(to=event.reply, result=Dropped()), *garbage]
            case MessageAdded(event=event, queue=queue, sequence=sequence):
                queue.stored(sequence, write.base_offset)
                return [Answer(to=event.reply, result=Added(write.base_offset))]
            case NothingToRead(event=event):
                return [Answer(to=event.reply, result=FOUND_NOTHING)]
            case PointerMoved(event=event, queue=queue, way=way):
                queue.moved(event.client, way, change.moved_ms)
                told = Answer(to=event.reply, result=Reached(way.to))
                return [told, *self._go_on(queue, event.client, at)]
            case PointersForgotten(queue=queue, clients=clients):
                effects: Effects = []
                for client in clients:
                    queue.forgotten(client)
                    effects += self._go_on(queue, client, at)
                return effects
            case _:
                assert_never(change)

    def failed(self, change: PointerChange, error: BrokerError, at: Moment) -> Effects:
        match change:
            case QueueCreated(event=event) | MessageAdded(event=event) | NothingToRead(event=event):
                return [self._books.refuse(event, error)]
            case QueueDeleted(event=event, queue=queue):
                queue.is_dropping = False
                return [self._books.refuse(event, error)]
            case PointerMoved(event=event, queue=queue):
                told = self._books.refuse(event, error)
                return [told, *self._go_on(queue, event.client, at)]
            case PointersForgotten(queue=queue, clients=clients):
                effects: Effects = []
                for client in clients:
                    effects += self._go_on(queue, client, at)
                return effects
            case _:
                assert_never(change)

    def give_up(self, error: BrokerError) -> Effects:
        """Those who wait for their turn are told this."""
        told: Effects = [
            Answer(to=event.reply, result=error)
            for queue in self.queues.values()
            for event in queue.waiting()
        ]
        self.queues.clear()
        return told

    # Time.

    def forget_silent(self, at: Moment) -> tuple[Effects, bool]:
        """Forget clients that have read nothing for too long; whether there may be more."""
        since_ms = at.wall_ms - self._books.limits.pointer_retention_ms
        effects: Effects = []
        left = DELETED_MAX
        for queue in self.queues.values():
            clients = [] if queue.is_dropping else queue.silent(since_ms, left)
            if not clients:
                continue
            records: list[Record] = []
            for client in clients:
                queue.begin(client)
                records.append(deletion(pointer_key(queue.id, client), at.wall_ms))
            change = PointersForgotten(queue=queue, clients=clients)
            effects.append(self._books.ledger.append(change, records))
            left -= len(clients)
            if left <= 0:
                return effects, True
        return effects, False


def keys_of(queue: PointerQueue, first: int = 0) -> Iterator[bytes]:
    """What the log may have of a queue from sequence `first` on, but that it is there."""
    for sequence in range(first, queue.next_sequence):
        yield message_key(queue.id, sequence)
    for client in queue.pointers:
        yield pointer_key(queue.id, client)
