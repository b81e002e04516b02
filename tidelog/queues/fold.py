"""Reading the log of queues: what its records say together.

Rule 1: the fold of the compacted log is the fold of the whole log. Whether a queue is there, and
        from which sequence on messages are its own, is known when all is read: compaction keeps
        the newest record of a declaration, which may stand behind messages that are older.
Rule 2: what belongs to no queue is garbage, to be deleted: a deletion that was interrupted goes on.
Rule 3: it runs in a disk's thread, and so does what must be done before the queues are served.
"""

from collections.abc import Iterator

from tidelog.model import NO_OFFSET
from tidelog.queues.backlog import Backlog, Row
from tidelog.queues.books import Books
from tidelog.queues.events import Remembered, Swept
from tidelog.queues.message import Message
from tidelog.queues.old_requests import old_request
from tidelog.queues.pointer_desk import PointerDesk
from tidelog.queues.pointer_desk import keys_of as pointer_keys_of
from tidelog.queues.pointers import PointerQueue
from tidelog.queues.records import (
    PLAIN_HEADERS,
    About,
    Delivery,
    DeliveryWritten,
    JobWritten,
    MessageWritten,
    NumberWritten,
    PlaceOf,
    PointerWritten,
    QueueWritten,
    RequestWritten,
    SequenceWritten,
    Settings,
    WorkQueueWritten,
    decode,
    delivery_key,
    job_key,
)
from tidelog.queues.work import WorkQueue, apply
from tidelog.queues.work_desk import WorkDesk
from tidelog.queues.work_records import key_number
from tidelog.records import Record
from tidelog.shards.effects import Moment


class FoldedQueue:
    """What the log says of messages under one name."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.deleted_at = NO_OFFSET
        """Where a queue of this name was last deleted: what stands before is of that one. In the
        first format sequences began anew with a queue, and nothing else told so."""
        self._rows = Backlog()
        self._last = -1
        self._messages: dict[int, Message] = {}

    def written(self, sequence: int, about: About, size: int, record: Record) -> None:
        row = Row(sequence, record.offset, record.timestamp_ms, size, key_number(about.key))
        if not about.not_before_ms:
            self.add(row)
            return
        self.deleted(sequence)
        message = self._messages[sequence] = _message(row)
        message.not_before_ms, message.delay_ms = about.not_before_ms, about.delay_ms

    def add(self, row: Row) -> None:
        """A message that has no time to wait for."""
        if row.sequence > self._last:
            self._last = row.sequence
            self._rows.append(row)
        else:  # in the first format sequences began anew with a queue, or once all was done
            self.deleted(row.sequence)
            self._messages[row.sequence] = _message(row)

    def deleted(self, sequence: int) -> None:
        if self._messages.pop(sequence, None) is None:
            self._rows.remove(sequence)

    def delivered(self, sequence: int, value: Delivery | None) -> None:
        message = self._messages.get(sequence)
        if message is None:
            row = self._rows.remove(sequence)
            if row is None:
                return  # it is done
            message = self._messages[sequence] = _message(row)
        if value is None or value.offset != message.offset:
            message.has_delivery = value is not None
        else:
            apply(message, value)

    def _is_stranger(self, one: Row | Message) -> bool:
        """Whether it was published to another queue of this name, which is deleted."""
        settings = self.settings
        if settings is None or one.offset < self.deleted_at:
            return True
        return one.sequence < settings.first_sequence

    def queue(self, name: str, at: Moment) -> tuple[WorkQueue, list[tuple[int, bool]]]:
        """The queue, and what is below its first sequence: it is not the queue's."""
        settings = self.settings
        assert settings is not None
        queue = WorkQueue(name, settings)
        strangers: list[tuple[int, bool]] = []
        if settings.is_ordered:
            self._fill_lines(queue, strangers)
        else:
            while (row := self._rows.first()) is not None and self._is_stranger(row):
                strangers.append((row.sequence, False))
                self._rows.pop()
            queue.take_in(self._rows)
        for message in sorted(self._messages.values(), key=lambda one: one.offset):
            if self._is_stranger(message):
                strangers.append((message.sequence, message.has_delivery))
            else:
                queue.enter(message, at)
        return queue, strangers

    def _fill_lines(self, queue: WorkQueue, strangers: list[tuple[int, bool]]) -> None:
        """Rows are put where they wait; the segments that they came from go on the way."""
        while (row := self._rows.pop()) is not None:
            if self._is_stranger(row):
                strangers.append((row.sequence, False))
            else:
                queue.arrive(row)

    def places(self) -> Iterator[tuple[int, bool]]:
        for message in self._messages.values():
            yield message.sequence, message.has_delivery
        for row in self._rows:
            yield row.sequence, False


def _message(row: Row) -> Message:
    return Message(row.offset, row.sequence, row.made_ms, row.size, row.key)


class Fold:
    """What has been read so far."""

    def __init__(self, books: Books, pointers: PointerDesk, work: WorkDesk) -> None:
        self._books = books
        self._pointers = pointers
        self._work = work
        self._folded: dict[str, FoldedQueue] = {}
        self._by_prefix: dict[bytes, FoldedQueue] = {}
        """By what the keys of their messages begin with."""
        self._pointer_queues: dict[int, PointerQueue] = {}
        self._is_there: dict[int, None] = {}
        self._deleted: dict[int, int] = {}
        """Of queues with pointers, up to which sequence messages are deleted."""
        self.garbage: list[Iterator[bytes]] = []

    def replay(self, record: Record) -> None:
        """Take one record of the log; CorruptMessage if it makes no sense."""
        if record.value is not None and record.headers == PLAIN_HEADERS:
            self._replay_plain(record, record.key or b"", len(record.value))
            return
        written = decode(record)
        if record.headers:
            self._note_old(record)
        match written:
            case JobWritten(place=place, about=About() as about):
                self._work.sequence_seen(place.sequence)
                self._queue(place.queue).written(place.sequence, about, written.size, record)
            case JobWritten(place=place):
                self._work.sequence_seen(place.sequence)
                self._queue(place.queue).deleted(place.sequence)
            case DeliveryWritten(place=place, value=value):
                if value is not None:
                    self._work.sequence_seen(value.since - 1)
                self._queue(place.queue).delivered(place.sequence, value)
            case RequestWritten(key=key, value=Remembered() as value):
                if isinstance(value.outcome, Swept):
                    self._work.sequence_seen(value.outcome.until - 1)
                self._books.requests.stored(key, value, record.offset)
            case RequestWritten(key=key):
                self._books.requests.deleted(key)
            case WorkQueueWritten(name=name, value=Settings() as settings):
                self._work.sequence_seen(settings.first_sequence - 1)
                self._queue(name).settings = settings
            case WorkQueueWritten(name=name):
                queue = self._queue(name)
                queue.settings, queue.deleted_at = None, record.offset
            case MessageWritten(queue_id=queue_id, sequence=sequence, is_alive=is_alive):
                if is_alive:
                    self._pointer_queue(queue_id).stored(sequence, record.offset)
                else:  # of a queue that is deleted, in their order
                    self._deleted[queue_id] = max(self._deleted.get(queue_id, 0), sequence + 1)
            case PointerWritten(queue_id=queue_id, client=client, value=moved):
                queue_read = self._pointer_queue(queue_id)
                if moved is None:
                    queue_read.forgotten(client)
                else:
                    queue_read.moved(client, moved, record.timestamp_ms)
            case QueueWritten(queue_id=queue_id, is_alive=is_alive):
                self._pointers.number_seen(queue_id)
                if is_alive:
                    self._pointer_queue(queue_id)
                    self._is_there[queue_id] = None
                else:
                    self._is_there.pop(queue_id, None)
            case NumberWritten(number=number):
                self._pointers.next_number = max(self._pointers.next_number, number)
            case SequenceWritten(sequence=sequence):
                self._work.told = max(self._work.told, sequence)
                self._work.sequence_seen(sequence - 1)
            case _:
                pass

    def _replay_plain(self, record: Record, key: bytes, size: int) -> None:
        """Most records of a deep queue: a message of which nothing is said beside its value."""
        prefix, sequence = key[:-8], int.from_bytes(key[-8:], "big")
        queue = self._by_prefix.get(prefix)
        if queue is None:
            written = decode(record)
            assert isinstance(written, JobWritten), "only messages have these headers"
            queue = self._by_prefix[prefix] = self._queue(written.place.queue)
        self._work.sequence_seen(sequence)
        queue.add(Row(sequence, record.offset, record.timestamp_ms, size))

    def _note_old(self, record: Record) -> None:
        if (found := old_request(record, self._books.requests.known)) is not None:
            self._books.requests.stored(*found, 0)

    def _queue(self, name: str) -> FoldedQueue:
        found = self._folded.get(name)
        if found is None:
            found = self._folded[name] = FoldedQueue()
        return found

    def _pointer_queue(self, queue_id: int) -> PointerQueue:
        found = self._pointer_queues.get(queue_id)
        if found is None:
            found = self._pointer_queues[queue_id] = PointerQueue(queue_id)
        return found

    def finish(self, at: Moment) -> None:
        """All is read: have queues that can be served."""
        queues: dict[str, WorkQueue] = {}
        for name, folded in self._folded.items():
            if folded.settings is None:
                if next(folded.places(), None) is not None:
                    self.garbage.append(_keys(name, folded.places()))
                continue
            queues[name], strangers = folded.queue(name, at)
            if strangers:
                self.garbage.append(_keys(name, iter(strangers)))
        self._folded, self._by_prefix = {}, {}
        self._work.begin(queues)
        for queue_id, queue in self._pointer_queues.items():
            if queue_id in self._is_there:
                queue.sort()
                self._pointers.queues[queue_id] = queue
            elif (first := self._deleted.get(queue_id, 0)) < queue.next_sequence or queue.pointers:
                self.garbage.append(pointer_keys_of(queue, first))


def _keys(name: str, places: Iterator[tuple[int, bool]]) -> Iterator[bytes]:
    for sequence, has_delivery in places:
        place = PlaceOf(name, sequence)
        yield job_key(place)
        if has_delivery:
            yield delivery_key(place)
