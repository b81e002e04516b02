"""The queues of a cluster: asked for at any node, kept by the leaders of `__queues`.

Rule 1: the machine (`tidelog.queues`) decides and knows no values. What a message says is read
        from the log when somebody gets it.
Rule 2: a request that was not begun is tried elsewhere; one that was, and whose end nobody saw,
        only if it has a key by which it is known again.
"""

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Any, Final, assert_never

import msgspec

from tidelog.broker.broker import Broker
from tidelog.coordinators.shard_drivers import ShardDriver, ShardKeeper
from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotCoordinator,
    OutcomeUnknown,
    StorageError,
)
from tidelog.model import QUEUES_TOPIC, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.queues.events import (
    Added,
    Created,
    Declared,
    Dropped,
    Outcome,
    Published,
    Reached,
    Received,
    Settled,
    Swept,
)
from tidelog.queues.limits import Limits
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import about_of
from tidelog.queues.shard import Shard
from tidelog.records import BatchHeader, Record, decode_batch
from tidelog.services.queue_values import Values
from tidelog.services.queue_work import (
    POINTER_QUEUES,
    POINTERS,
    SHARD_WORKS,
    WORK_QUEUES,
    ForgetWork,
    LookWork,
    Message,
    QueueAnswer,
    QueueWork,
    ReceiveWork,
    ShardWork,
)
from tidelog.shards.effects import Moment
from tidelog.wire.names import partition_for

DEAD_SUFFIX: Final = ".dead"
"""What nobody managed to do is a queue of its own name."""
_GRACE_SECONDS: Final = 0.05
_FORGET_SECONDS: Final = 5.0
_LATE: Final = object()
"""What a request is told by the clock; whatever its shard says afterwards is heard by nobody."""


class QueuesDriver(ShardDriver[Shard]):
    """One partition of `__queues` and the queues in it."""

    def __init__(self, broker: Broker, partition: Partition) -> None:
        self._partitions = len(broker.image.topics[QUEUES_TOPIC].partitions)
        super().__init__(broker, partition)

    def _new_shard(self) -> Shard:
        self._values = Values(self._broker)
        config = self._broker.config
        limits = Limits(
            request_window_ms=config.idempotency_window_ms,
            requests_bytes_max=config.queues_requests_max_bytes,
            receive_bytes_max=config.queues_receive_max_bytes,
            pointer_retention_ms=config.queues_pointer_retention_ms,
        )
        return Shard(self._partition.name.partition, self._partitions, limits)

    def _replay_batch(self, shard: Shard, header: BatchHeader, batch: memoryview) -> None:
        if not header.is_control:
            for record in decode_batch(batch):
                shard.replay(record)

    def _prepare(self, shard: Shard, at: Moment) -> None:
        shard.prepare(at)

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
        for kind in SHARD_WORKS:
            serving.offer(kind, self._serve)
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

    async def have_done(self, place: TopicPartition, work: QueueWork, *, seconds: float) -> QueueAnswer:
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

    async def _serve(self, partition: Partition, work: ShardWork, deadline: float) -> QueueAnswer:
        driver = self._driver_for(partition)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        at = driver.now()
        driver.perform(driver.shard.ask(work.event(reply), at))
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
        return await self._answer(driver, result)

    def _driver_for(self, partition: Partition) -> QueuesDriver:
        partition.leading()
        driver = self.driver_of(partition.name.partition)
        if driver is None or not driver.is_counted_on:
            raise LeaderNotAvailable("another node may keep these queues by now")
        if driver.refusal is not None:
            raise StorageError(str(driver.refusal))
        if not driver.shard.is_loaded:
            raise CoordinatorLoadInProgress("the queues are being read")
        return driver

    async def _answer(self, driver: QueuesDriver, result: Outcome) -> QueueAnswer:
        match result:
            case Settled():
                return QueueAnswer(outcomes=result.outcomes)
            case Created(queue_id=number) | Added(offset=number) | Swept(count=number):
                return QueueAnswer(number=number)
            case Declared(is_new=is_new):
                return QueueAnswer(number=int(is_new))
            case Dropped():
                return QueueAnswer(number=1)
            case Published():
                return QueueAnswer(offsets=tuple(result.offsets))
            case Reached(offset=offset):
                counts = {} if offset is None else {offset: 0}
                return QueueAnswer(messages=await driver.messages(counts))
            case Received(given=given):
                counts = {one.offset: one.count for one in given}
                return QueueAnswer(messages=await driver.messages(counts))
            case _:
                assert_never(result)

    async def _serve_forget(self, partition: Partition, work: ForgetWork, deadline: float) -> QueueAnswer:
        found = self._waiters.get(work.waiter)
        if found is not None:
            driver, reply = found
            if driver.shard.forget(reply) and not reply.done():
                reply.set_result(Received())
        return QueueAnswer()

    async def _serve_look(self, partition: Partition, work: LookWork, deadline: float) -> QueueAnswer:
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
        return QueueAnswer(document=_listed(shard, work))


def _listed(shard: Shard, work: LookWork) -> dict[str, Any]:
    """A list, of which a page is wanted; a node of an earlier version asks for all at once."""
    match work.what:
        case "names":
            return {WORK_QUEUES: list(islice(shard.work.names.beyond(work.client), work.limit))}
        case "work":
            return {WORK_QUEUES: list(shard.work.names)}
        case "pointer":
            return {POINTER_QUEUES: sorted(shard.pointer_queues)}
        case "pointers":
            return {POINTERS: _pointers(shard, work)}
        case _:
            names, ids = list(shard.work.names), sorted(shard.pointer_queues)
            return {WORK_QUEUES: names, POINTER_QUEUES: ids, POINTERS: []}


def _pointers(shard: Shard, work: LookWork) -> list[tuple[int, str, Offset]]:
    found: list[tuple[int, str, Offset]] = []
    for queue_id in sorted(shard.pointer_queues):
        if queue_id < work.after:
            continue
        after = work.client if queue_id == work.after else ""
        rows = shard.pointer_queues[queue_id].clients(after, work.limit - len(found))
        found += [(queue_id, client, offset) for client, offset in rows]
        if len(found) >= work.limit:
            break
    return found


def _give_up(reply: "asyncio.Future[Any]") -> None:
    if not reply.done():
        reply.set_result(_LATE)


def _message(record: Record, count: int) -> Message:
    about = about_of(record)
    return Message(
        record.offset, record.value or b"", count, about.attributes, about.key, record.timestamp_ms
    )
