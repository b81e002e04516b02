"""Queues with pointers: made, appended to, and read by each client at his own pace."""

from typing import Final

from tidelog.errors import BrokerError, CoordinatorLoadInProgress, QueueFull, UnknownQueue
from tidelog.model import Offset
from tidelog.queues.ledger import Effects, Ledger
from tidelog.queues.pointers import PointerQueue
from tidelog.queues.records import message_record, pointer_record, queue_record
from tidelog.shards.effects import Answer, Moment, Token

MESSAGES_MAX: Final = 10_000_000
"""Of one queue; each costs eight bytes of memory."""


class PointerRequests(Ledger):
    """What clients ask of the queues with pointers of one partition.

    A queue's id tells its partition: it is the rest of a division by the number of partitions.
    """

    def __init__(self, partition: int, partitions: int) -> None:
        super().__init__()
        self.pointer_queues: dict[int, PointerQueue] = {}
        self._partition = partition
        self._partitions = partitions
        self._next_queue = 0

    def _queue_stored(self, queue_id: int) -> None:
        self.pointer_queues.setdefault(queue_id, PointerQueue(queue_id))
        self._next_queue = max(self._next_queue, queue_id // self._partitions + 1)

    def create(self, reply: Token, request: bytes, at: Moment) -> Effects:
        """Make a queue; answered with its id."""

        def begin() -> Effects:
            queue_id = self._next_queue * self._partitions + self._partition
            self._next_queue += 1

            def then(offset: Offset, at: Moment) -> Effects:
                self._queue_stored(queue_id)
                self.recent.note(request, queue_id)
                return [Answer(to=reply, result=queue_id)]

            record = queue_record(queue_id, made_ms=at.wall_ms, request=request)
            return [self._write([record], then, self._failing(reply, request), reply)]

        effects, done = self._ask(reply, request, begin)
        return effects if done is None else [Answer(to=reply, result=done[0])]

    def append(
        self, queue_id: int, value: bytes, reply: Token, request: bytes, at: Moment
    ) -> Effects:
        """Add a message; answered with its id."""

        def begin() -> Effects:
            queue = self._pointer_queue(queue_id)
            if len(queue.messages) >= MESSAGES_MAX:
                raise QueueFull(f"queue {queue_id} has {MESSAGES_MAX} messages")
            sequence = queue.take_sequence()

            def then(offset: Offset, at: Moment) -> Effects:
                queue.stored(sequence, offset)
                self.recent.note(request, offset)
                return [Answer(to=reply, result=offset)]

            record = message_record(queue_id, sequence, value, now_ms=at.wall_ms, request=request)
            return [self._write([record], then, self._failing(reply, request), reply)]

        effects, done = self._ask(reply, request, begin)
        return effects if done is None else [Answer(to=reply, result=done[0])]

    def read(self, queue_id: int, client: str, reply: Token, request: bytes, at: Moment) -> Effects:
        """Move a client on to the next message; answered with its id, None if there is none."""

        def begin() -> Effects:
            queue = self._pointer_queue(queue_id)
            way = queue.begin_read(client)
            if way is None:
                self.recent.found_nothing(request)
                return [Answer(to=reply, result=None)]

            def then(offset: Offset, at: Moment) -> Effects:
                if not queue.moved(client, way):
                    self.recent.failed(request)
                    error = CoordinatorLoadInProgress("an earlier read failed; ask again")
                    return [Answer(to=reply, result=error)]
                self.recent.note(request, way.to)
                return [Answer(to=reply, result=way.to)]

            def otherwise(error: BrokerError, at: Moment) -> Effects:
                queue.failed(client)
                return self._failing(reply, request)(error, at)

            record = pointer_record(queue_id, client, way, now_ms=at.wall_ms, request=request)
            return [self._write([record], then, otherwise, reply)]

        effects, done = self._ask(reply, request, begin)
        return effects if done is None else [Answer(to=reply, result=done[0])]

    def _pointer_queue(self, queue_id: int) -> PointerQueue:
        queue = self.pointer_queues.get(queue_id)
        if queue is None:
            raise UnknownQueue(f"there is no queue {queue_id}; POST /create_queue makes one")
        return queue
