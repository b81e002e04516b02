"""The queues of a cluster: asked for at any node, kept by the leaders of `__queues`.

Rule 1: the machine (`tidelog.queues`) decides and knows no values. What a message says is read
        from the log when somebody gets it.
Rule 2: a request that was not begun is tried elsewhere; one that was, and whose end nobody saw,
        only if it has a key by which it is known again.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from tidelog.broker.broker import Broker
from tidelog.broker.queue_values import Values
from tidelog.broker.serving import Work
from tidelog.broker.shards import ShardDriver, ShardKeeper
from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotCoordinator,
    OutcomeUnknown,
)
from tidelog.model import QUEUES_TOPIC, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.queues.records import DEAD, MAIN, About, Settings, about_of
from tidelog.queues.shard import Given, Settled, Shard
from tidelog.records import BatchHeader, Record, decode_batch
from tidelog.shards.effects import Moment, Token, partition_for

DEAD_SUFFIX: Final = ".dead"
"""What nobody managed to do is a queue of its own name."""
_GRACE_SECONDS: Final = 0.05
_FORGET_SECONDS: Final = 5.0
_LATE: Final = object()
"""What a request is told by the clock; whatever its shard says afterwards is heard by nobody."""

A = TypeVar("A", bound=msgspec.Struct)
Call = Callable[[Shard, Token, Moment], Iterable[Any]]


class QueueWork(Work, frozen=True, kw_only=True):
    """Anything that is asked of queues."""

    request: bytes = b""
    """The hash of its Idempotency-Key; empty without one."""


class CreateWork(QueueWork, frozen=True, kw_only=True):
    """Make a queue with pointers."""


class AppendWork(QueueWork, frozen=True, kw_only=True):
    queue_id: int
    value: bytes


class ReadNextWork(QueueWork, frozen=True, kw_only=True):
    queue_id: int
    client: str


class DeclareWork(QueueWork, frozen=True, kw_only=True):
    name: str
    settings: Settings


class DropWork(QueueWork, frozen=True, kw_only=True):
    name: str


class PublishWork(QueueWork, frozen=True, kw_only=True):
    name: str
    messages: tuple[tuple[bytes, About], ...]


class ReceiveWork(QueueWork, frozen=True, kw_only=True):
    name: str
    lane: int
    count_max: int
    wait_seconds: float
    visibility_ms: int | None
    waiter: str = ""
    """By which it can be taken back while it waits."""


class ForgetWork(QueueWork, frozen=True, kw_only=True):
    """Whoever waited for messages has gone."""

    waiter: str


class SettleWork(QueueWork, frozen=True, kw_only=True):
    name: str
    receipts: tuple[str, ...]
    kind: str
    ms: int


class MoveWork(QueueWork, frozen=True, kw_only=True):
    """Bring messages of a lane into the other, or with `purges` delete them."""

    name: str
    lane: int
    count_max: int
    purges: bool = False


class LookWork(QueueWork, frozen=True, kw_only=True):
    """What there is: one work queue, or with no name all queues of the partition."""

    is_read: ClassVar[bool] = True
    name: str = ""
    queue_id: int = -1
    after: Offset = -1
    limit: int = 1000
    """Messages of the queue `queue_id`, so many beyond `after`."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message, as somebody gets it."""

    offset: Offset
    value: bytes
    count: int = 0
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None
    made_ms: int = 0


class QueueAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it; the fields that it does not concern stay empty."""

    number: int | None = None
    offsets: tuple[Offset, ...] = ()
    messages: tuple[Message, ...] = ()
    outcomes: tuple[str, ...] = ()
    document: Any = None


class QueuesDriver(ShardDriver[Shard]):
    """One partition of `__queues` and the queues in it."""

    def __init__(self, broker: Broker, partition: Partition) -> None:
        self._partitions = len(broker.image.topics[QUEUES_TOPIC].partitions)
        super().__init__(broker, partition)

    def _new_shard(self) -> Shard:
        self._values = Values(self._broker.host)
        return Shard(self._partition.name.partition, self._partitions)

    def _replay_batch(self, shard: Shard, header: BatchHeader, batch: memoryview) -> None:
        if not header.is_control:
            for record in decode_batch(batch):
                shard.replay(record)

    def _appended(self, shard: Shard, write: int, offset: Offset) -> None:
        shard.appended(write, offset)

    async def messages(self, counts: dict[Offset, int]) -> tuple[Message, ...]:
        """The messages at these offsets, with their counts, as the log has them."""
        found = await self._values.at(self._partition, counts)
        return tuple(_message(record, counts[offset]) for offset, record in found.items())


class Queues(ShardKeeper[QueuesDriver]):
    """The queues, as seen from this node."""

    topic = QUEUES_TOPIC
    what = "queues"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._turn = broker.host.random.getrandbits(30)
        self._waiters: dict[str, tuple[QueuesDriver, asyncio.Future[Any]]] = {}
        """Receivers that may be waiting here, for others and for this node."""
        serving = broker.serving
        for kind, begin in _BEGIN.items():
            serving.offer(kind, partial(self._serve, begin))
        serving.offer(ForgetWork, self._serve_forget)
        serving.offer(LookWork, self._serve_look)
        self.start()

    def _make(self, partition: Partition) -> QueuesDriver:
        return QueuesDriver(self._broker, partition)

    def _partitions(self) -> int:
        return self._broker.config.queues_topic_num_partitions

    # Where a queue is kept.

    async def count(self) -> int:
        """How many partitions there are; they are made if they are not there yet."""
        await self.ready()
        return len(self._broker.image.topics[QUEUES_TOPIC].partitions)

    async def place_of(self, name: str) -> TopicPartition:
        """Where a work queue is kept, and all that nobody managed to do of it."""
        return TopicPartition(QUEUES_TOPIC, partition_for(name, await self.count()))

    async def place_of_id(self, queue_id: int) -> TopicPartition:
        return TopicPartition(QUEUES_TOPIC, queue_id % await self.count())

    async def place_for_new(self, request: bytes) -> TopicPartition:
        """Where the next queue with pointers goes; a repeated request finds the same place."""
        self._turn += 1
        number = int.from_bytes(request[:8], "big") if request else self._turn
        return TopicPartition(QUEUES_TOPIC, number % await self.count())

    async def places(self) -> list[TopicPartition]:
        return [TopicPartition(QUEUES_TOPIC, number) for number in range(await self.count())]

    async def have_done(
        self, place: TopicPartition, work: QueueWork, *, seconds: float
    ) -> QueueAnswer:
        """Have it done by whoever keeps the queue."""
        is_repeatable = bool(work.request) or isinstance(work, LookWork | ForgetWork)
        return await self._broker.serving.call(
            place, work, QueueAnswer, seconds_max=seconds, is_repeatable=is_repeatable
        )

    async def forget(self, place: TopicPartition, waiter: str) -> None:
        """Whoever waited for messages has gone: none is to be given to it any more."""
        with suppress(BrokerError):  # then it waits until its time is over
            await self.have_done(place, ForgetWork(waiter=waiter), seconds=_FORGET_SECONDS)

    # Serving.

    async def _serve(
        self,
        begin: Callable[[Any], Call],
        partition: Partition,
        work: Any,
        deadline: float,
    ) -> QueueAnswer:
        driver = self._driver_for(partition)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        at = driver.now()
        driver.perform(begin(work)(driver.shard, reply, at))
        late = loop.call_later(max(deadline - at.now, _GRACE_SECONDS), _give_up, reply)
        waiter = work.waiter if isinstance(work, ReceiveWork) else ""
        if waiter:
            self._waiters[waiter] = driver, reply
        try:
            result = await reply
        except asyncio.CancelledError:
            driver.shard.forget(reply)
            raise
        finally:
            late.cancel()
            self._waiters.pop(waiter, None)
        if result is _LATE:
            if driver.shard.forget(reply):
                return QueueAnswer()  # it waited for messages, and none came
            raise OutcomeUnknown("it was not stored in time; it may be yet")
        if isinstance(result, OutcomeUnknown):
            raise result
        if isinstance(result, NotCoordinator | CoordinatorNotAvailable):
            raise LeaderNotAvailable(str(result))
        if isinstance(result, BrokerError):
            raise result
        if isinstance(work, ReadNextWork):
            counts = {} if result is None else {result: 0}
            return QueueAnswer(messages=await driver.messages(counts))
        return await self._answer(driver, result)

    def _driver_for(self, partition: Partition) -> QueuesDriver:
        partition.leading()
        driver = self.driver_of(partition.name.partition)
        if driver is None or not driver.is_counted_on:
            raise LeaderNotAvailable("another node may keep these queues by now")
        if not driver.shard.is_loaded:
            raise CoordinatorLoadInProgress("the queues are being read")
        return driver

    async def _answer(self, driver: QueuesDriver, result: Any) -> QueueAnswer:
        match result:
            case Settled(outcomes=outcomes):
                return QueueAnswer(outcomes=tuple(outcomes))
            case bool() | int():
                return QueueAnswer(number=int(result))
            case [Given(), *_]:
                counts = {one.offset: one.count for one in result}
                return QueueAnswer(messages=await driver.messages(counts))
            case list():
                return QueueAnswer(offsets=tuple(result))
            case _:
                return QueueAnswer()

    async def _serve_forget(
        self, partition: Partition, work: ForgetWork, deadline: float
    ) -> QueueAnswer:
        found = self._waiters.get(work.waiter)
        if found is not None:
            driver, reply = found
            if driver.shard.forget(reply) and not reply.done():
                reply.set_result([])
        return QueueAnswer()

    async def _serve_look(
        self, partition: Partition, work: LookWork, deadline: float
    ) -> QueueAnswer:
        driver = self._driver_for(partition)
        shard = driver.shard
        if work.queue_id >= 0:
            queue = shard.pointer_queues.get(work.queue_id)
            found = [] if queue is None else queue.beyond(work.after, work.limit)
            return QueueAnswer(
                messages=await driver.messages(dict.fromkeys(found, 0)),
                number=None if queue is None else len(queue.messages),
            )
        if work.name:
            work_queue = shard.work_queue(work.name)
            now_ms = self._broker.host.clock.wall_ms()
            return QueueAnswer(
                document={
                    "settings": msgspec.structs.asdict(work_queue.settings),
                    "main": work_queue.counts(MAIN, now_ms),
                    "dead": work_queue.counts(DEAD, now_ms),
                }
            )
        return QueueAnswer(
            document={
                "work": sorted(shard.work_queues),
                "pointer": sorted(shard.pointer_queues),
                "pointers": [
                    [queue.id, client, to]
                    for queue in shard.pointer_queues.values()
                    for client, to in queue.pointers.items()
                ],
            }
        )


def _give_up(reply: "asyncio.Future[Any]") -> None:
    if not reply.done():
        reply.set_result(_LATE)


def _message(record: Record, count: int) -> Message:
    about = about_of(record)
    return Message(
        record.offset, record.value or b"", count, about.attributes, about.key,
        record.timestamp_ms,
    )  # fmt: skip


# What each piece of work asks of its shard.


def _read_next(work: ReadNextWork) -> Call:
    return lambda shard, reply, at: shard.read(work.queue_id, work.client, reply, work.request, at)


def _receive(work: ReceiveWork) -> Call:
    return lambda shard, reply, at: shard.receive(
        work.name, work.lane, reply, work.request, at, count_max=work.count_max,
        wait_seconds=work.wait_seconds, visibility_ms=work.visibility_ms,
    )  # fmt: skip


def _move(work: MoveWork) -> Call:
    if work.purges:
        return lambda shard, reply, at: shard.purge(work.name, work.lane, reply, at)
    return lambda shard, reply, at: shard.move(work.name, work.lane, work.count_max, reply, at)


_BEGIN: Final[dict[type[QueueWork], Callable[[Any], Call]]] = {
    CreateWork: lambda work: lambda shard, reply, at: shard.create(reply, work.request, at),
    AppendWork: lambda work: (
        lambda shard, reply, at: shard.append(work.queue_id, work.value, reply, work.request, at)
    ),
    ReadNextWork: _read_next,
    DeclareWork: lambda work: (
        lambda shard, reply, at: shard.declare(work.name, work.settings, reply, work.request, at)
    ),
    DropWork: lambda work: lambda shard, reply, at: shard.drop(work.name, reply, at),
    PublishWork: lambda work: (
        lambda shard, reply, at: shard.publish(work.name, work.messages, reply, work.request, at)
    ),
    ReceiveWork: _receive,
    SettleWork: lambda work: (
        lambda shard, reply, at: shard.settle(
            work.name, work.receipts, work.kind, reply, work.request, at, ms=work.ms
        )
    ),
    MoveWork: _move,
}
