"""Produce: batches in, offsets out, answered when they are as safe as `acks` asks.

Rule 1: the cost is per batch: nothing here looks at a record.
Rule 2: one bad partition spoils only its own answer.
Rule 3: the first batch of a transaction in a partition waits for the transaction's coordinator.
Rule 4: a batch is judged before its partition is looked for. Of a request that repeats another, what was
        allowed is allowed until a permission changes.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.broker.topics import name_of
from tidelog.coordinators.verification import Verification, Wanted
from tidelog.errors import (
    BrokerError,
    CorruptMessage,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTransactionState,
    TransactionAbortable,
)
from tidelog.kafka.context import Reply
from tidelog.kafka.permissions import NEEDS
from tidelog.partition.driver import Partition
from tidelog.records import is_transactional, read_header
from tidelog.security.authorizer import Access, remember
from tidelog.security.permissions import Kind
from tidelog.wire.apis import Api
from tidelog.wire.produce import PartitionAnswer, Repeated, decode_request, encode_response
from tidelog.wire.requests import Header

_log = logging.getLogger(__name__)

_ACKS: Final = (-1, 0, 1)
_ADDS_FROM: Final = 12
"""From this version on a partition joins the transaction with the first batch (KIP-890, part 2)."""
_ABORTABLE_FROM: Final = 11
"""From this version on, clients know that a transaction may have to be aborted (KIP-890)."""
_REFUSED_SILENTLY: Final = "acks=0, and a batch was refused: {}"


class _Pending:
    """A request whose batches are on their way to the disk."""

    __slots__ = ("_acks", "_reply", "_topics", "_version", "deadline", "waiting")

    def __init__(self, reply: Reply, version: int, acks: int, deadline: float) -> None:
        self._reply = reply
        self._version = version
        self._acks = acks
        self._topics: list[tuple[str | UUID, list[PartitionAnswer]]] = []
        self.deadline = deadline
        self.waiting = 1  # for `launched`

    def add(self, topic: str | UUID, answers: list[PartitionAnswer]) -> None:
        self._topics.append((topic, answers))

    def finished_one(self) -> None:
        self.waiting -= 1
        if self.waiting == 0:
            self._finish()

    def _finish(self) -> None:
        if self._acks != 0:
            self._reply.send((encode_response(self._version, self._topics),))
            return
        refused = [a for _, answers in self._topics for a in answers if a.error]
        if refused:
            # Nobody is told with acks=0; as with Kafka, only a closed connection tells.
            self._reply.refuse(_REFUSED_SILENTLY.format(refused[0].message))
        else:
            self._reply.skip()


class _Write:
    """One partition's part of a request; told when its batch is safe."""

    __slots__ = ("_pending", "answer", "deadline")

    def __init__(self, pending: _Pending, answer: PartitionAnswer) -> None:
        self._pending = pending
        self.answer = answer
        self.deadline = pending.deadline

    def settled(self, error: BrokerError | None) -> None:
        if error is not None:
            _refuse(self.answer, error)
        self._pending.finished_one()


class _SingleWrite:
    """A request that writes one batch, and its answer."""

    __slots__ = ("_repeated", "_reply", "answer", "deadline")

    def __init__(self, reply: Reply, repeated: Repeated, deadline: float) -> None:
        self._reply = reply
        self._repeated = repeated
        self.answer = PartitionAnswer(repeated.partition)
        self.deadline = deadline

    def settled(self, error: BrokerError | None) -> None:
        if error is not None:
            _refuse(self.answer, error)
        self._reply.send((self._repeated.encode_answer(self.answer),))


def _refuse(answer: PartitionAnswer, error: BrokerError) -> None:
    answer.error = error.code
    answer.base_offset = -1
    answer.message = str(error)
    if isinstance(error, InvalidRecord):
        answer.record_errors = error.records


def _judge(broker: Broker, access: Access, topic: str | UUID) -> None:
    """Let the client write to the topic, or raise the error that it gets."""
    access.require(NEEDS[Api.PRODUCE][Kind.TOPIC], Kind.TOPIC, name_of(broker, topic))
    remember(access.answers().writable, topic)


def handle_repeated(
    broker: Broker, repeated: Repeated, batch: memoryview, pins_bytes: int, access: Access, reply: Reply
) -> None:
    """Append one more batch for the partition that the client wrote to before."""
    acks = repeated.acks
    deadline = broker.host.clock.monotonic() + max(repeated.timeout_ms, 0) / 1000
    write = _SingleWrite(reply, repeated, deadline)
    answer = write.answer
    try:
        if acks not in _ACKS:
            raise InvalidRequiredAcks(acks)
        if access.is_judged and repeated.topic not in access.answers().writable:
            _judge(broker, access, repeated.topic)
        partition = broker.partition(repeated.topic, repeated.partition)
        answer.log_start = partition.log.start
        answer.base_offset, answer.append_time_ms, done = partition.appender.append(
            batch, acks=acks, waiter=write, pins_bytes=pins_bytes
        )
    except BrokerError as error:
        if acks == 0:
            reply.refuse(_REFUSED_SILENTLY.format(error))
        else:
            write.settled(error)
        return
    if acks == 0:
        reply.skip()
    elif done:
        write.settled(None)


def handle_produce(
    broker: Broker, verification: Verification, frame: bytearray, header: Header, access: Access, reply: Reply
) -> Repeated | None:
    """Append every batch of the request; the answer follows when the last one is settled.

    Returns what the client will most likely send next.
    """
    request = decode_request(frame, header.body_at, header.version)
    repeated = Repeated.of(frame, header.version, request)
    pins_bytes = len(frame)
    if repeated is not None:
        batch = request.topics[0].partitions[0].records
        assert batch is not None
        handle_repeated(broker, repeated, batch, pins_bytes, access, reply)
        return repeated
    acks = request.acks
    deadline = broker.host.clock.monotonic() + max(request.timeout_ms, 0) / 1000
    pending = _Pending(reply, header.version, acks, deadline)
    refusal: BrokerError | None = None
    if acks not in _ACKS:
        refusal = InvalidRequiredAcks(acks)
    transactional_id = request.transactional_id
    if refusal is None and transactional_id is not None:
        refusal = _refused_id(access, transactional_id)
    adds = header.version >= _ADDS_FROM
    for topic, partitions in request.topics:
        answers = []
        for number, batch, _ in partitions:
            answer = PartitionAnswer(number)
            answers.append(answer)
            try:
                if refusal is not None:
                    raise refusal
                if access.is_judged and topic not in access.answers().writable:
                    _judge(broker, access, topic)
                if batch is None:
                    raise CorruptMessage("there are no records")
                partition = broker.partition(topic, number)
                answer.log_start = partition.log.start
                write = _Write(pending, answer)
                in_transaction = transactional_id is not None and is_transactional(batch)
                if transactional_id is not None and in_transaction:
                    wanted = _wanted(transactional_id, batch, adds=adds)
                    if verification.needs(partition, wanted):
                        pending.waiting += 1
                        append = partial(_append, partition, batch, acks, write, pins_bytes, True)
                        then = partial(_verified, append, write, header.version)
                        verification.ask(partition, wanted, then)
                        continue
                if not _append(partition, batch, acks, write, pins_bytes, in_transaction):
                    pending.waiting += 1
            except BrokerError as error:
                _refuse(answer, error)
        pending.add(topic, answers)
    pending.finished_one()
    return None


def _refused_id(access: Access, transactional_id: str) -> BrokerError | None:
    """Why the client may not write in this transaction; None if it may."""
    try:
        access.require(NEEDS[Api.PRODUCE][Kind.TRANSACTIONAL_ID], Kind.TRANSACTIONAL_ID, transactional_id)
    except BrokerError as error:
        return error
    return None


def _append(
    partition: Partition, batch: memoryview, acks: int, write: _Write, pins_bytes: int, is_transactional: bool
) -> bool:
    """Append the batch, and note where; whether nothing is to be awaited."""
    answer = write.answer
    answer.base_offset, answer.append_time_ms, done = partition.appender.append(
        batch, acks=acks, waiter=write, pins_bytes=pins_bytes, is_transactional=is_transactional
    )
    return done


def _verified(append: Callable[[], bool], write: _Write, version: int, error: BrokerError | None) -> None:
    """The coordinator has answered: append what waited, or refuse it."""
    if isinstance(error, TransactionAbortable) and version < _ABORTABLE_FROM:
        error = InvalidTransactionState(str(error))
    if error is None:
        try:
            if not append():
                return
        except BrokerError as refused:
            error = refused
        except Exception:  # it costs the sender, not all others who wait
            _log.exception("a batch that was verified could not be appended")
            error = BrokerError("an internal error")
    write.settled(error)


def _wanted(transactional_id: str, batch: memoryview, *, adds: bool) -> Wanted:
    header = read_header(batch)
    return Wanted(transactional_id, header.producer_id, header.producer_epoch, adds, header.base_sequence)
