"""Coordinators of this node: shards of state, each joined to the partition that keeps it.

Rule 1: effects of a shard go through one queue, in order, never recursively: writes reach the log
        in the order of their numbers. Those of one turn of the loop are one batch.
Rule 2: nothing is served before a shard's log has been folded to its end.
Rule 3: a write whose outcome is not known ends its shard; the state is read anew from the log.
Rule 4: what cannot be read ends no node (`log_reader.py`). It makes its partition refuse all
        requests: whatever is decided without it could be wrong.
Rule 5: nothing is answered without a lease: another node may coordinate by now, and know of things
        that this one does not.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from tidelog.broker.broker import Broker
from tidelog.broker.joint_writes import BYTES_MAX, size_of
from tidelog.broker.log_reader import LogReader, Unreadable
from tidelog.broker.topics import create_topic
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import BrokerImage
from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PolicyViolation,
    RequestTimedOut,
    StorageError,
    StorageErrorAfterAppend,
    TopicAlreadyExists,
)
from tidelog.log.unpacking import are_keyed
from tidelog.model import NO_EPOCH, NO_PRODUCER, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import HEADER_BYTES, TRANSACTIONAL, BatchHeader, encode_batch
from tidelog.shards.effects import Answer, Append, Moment, Writer
from tidelog.wire.names import partition_for

_log = logging.getLogger(__name__)
_LATE_SECONDS: Final = 1.0
_READING_SECONDS: Final = 0.05
_RESTORING_SECONDS: Final = 600.0
"""A restore that brings no record for so long, and does not say its end either, is given up."""
_UNKNOWN_FATE: Final = (
    RequestTimedOut,
    NotCoordinator,
    NotLeader,
    NotEnoughReplicasAfterAppend,
    StorageErrorAfterAppend,
)
"""The record is in a log, and may yet be committed by this leader or another."""
_NOBODY: Final = Writer(NO_PRODUCER, NO_EPOCH)


class Shard(Protocol):
    """State that is a fold of one partition's log."""

    @property
    def is_loaded(self) -> bool: ...

    def loaded(self, at: Moment) -> Iterable[Any]: ...

    def unload(self, error: BrokerError | None = None) -> Iterable[Any]: ...

    def stored(self, write: int, at: Moment) -> Iterable[Any]: ...

    def store_failed(self, write: int, error: BrokerError, at: Moment) -> Iterable[Any]: ...

    def tick(self, at: Moment) -> Iterable[Any]: ...

    def next_deadline(self) -> float | None: ...


S = TypeVar("S", bound=Shard)


class _Stored:
    """Awaits the fate of one batch, which holds some writes of a shard."""

    __slots__ = ("_driver", "_shard", "_writes", "deadline")

    def __init__(self, driver: "ShardDriver[Any]", shard: Shard, writes: Sequence[int]) -> None:
        self._driver = driver
        self._shard = shard
        self._writes = writes
        self.deadline = float("inf")

    def settled(self, error: BrokerError | None) -> None:
        self._driver.settled(self._shard, self._writes, error)


class ShardDriver(Generic[S]):
    """One partition of a coordinator's topic, and what is kept in it."""

    def __init__(self, broker: Broker, partition: Partition) -> None:
        self._broker = broker
        self._partition = partition
        self._leader = partition.leader
        """In whose epoch it serves. If the partition is led anew, it is by another driver, which
        knows what others have written meanwhile."""
        self._queue: deque[Any] = deque()
        self._gathered: list[Append] = []
        """Writes of this turn, for which the log has no place yet."""
        self._performing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._not_before = 0.0
        """Time passes for the shard no earlier than that: the loop stalled."""
        self._rereading: asyncio.TimerHandle | None = None
        """Set while the log is being restored: when that is given up."""
        self.has_written = False
        """Whether the log has anything that a shard of this driver wrote."""
        self.refusal: BrokerError | None = None
        """Why nothing is served until the log is read again, or another node leads."""
        self.shard = self._new_shard()

    # What kinds of shards differ in.

    def _new_shard(self) -> S:
        raise NotImplementedError

    def _replay_batch(self, shard: S, header: BatchHeader, batch: memoryview) -> None:
        """Fold one batch of the log; in a disk's thread."""
        raise NotImplementedError

    def _prepare(self, shard: S, at: Moment) -> None:
        """The whole log is folded: do what takes long before it is served; in a disk's thread."""

    def _appended(self, shard: S, write: int, offset: Offset) -> None:
        """A write stands at `offset` of the log."""

    def _do(self, effect: Any) -> None:
        """Perform an effect that is neither an answer nor a write."""
        raise NotImplementedError

    def _on_loaded(self, shard: S) -> None:
        """The shard serves from now on."""

    # Who coordinates.

    @property
    def is_counted_on(self) -> bool:
        """Whether no other node can have been given the partition."""
        leader = self._leader
        if leader is None or self._partition.leader is not leader:
            return False
        topic = self._broker.image.topics.get(self._partition.name.topic)
        known = None if topic is None else topic.partitions[self._partition.name.partition]
        if known is not None and known.epoch > leader.epoch:
            return False  # it was given away, which this node has heard of and not acted on
        return len(leader.replicas) == 1 or self._partition.has_lease()

    def now(self) -> Moment:
        clock = self._broker.host.clock
        return Moment(clock.monotonic(), clock.wall_ms())

    # Loading.

    async def load(self) -> None:
        """Fold the partition's log, once all of it is committed; serve once that is done."""
        shard = self.shard
        reader = LogReader(self._broker, self._partition, partial(self._serves, shard))
        try:
            await reader.fold(partial(self._replay_batch, shard))
            if self._serves(shard):
                prepare = partial(self._prepare, shard, self.now())
                await self._broker.host.offload.run(partial(reader.understand, prepare))
            if not self._serves(shard):
                return
            effects = reader.understand(lambda: list(shard.loaded(self.now())))
        except Unreadable as error:
            if self._serves(shard):
                self._refuse(error)
            return
        self._broker.unserved.pop(self._partition.name, None)
        self.perform(effects)
        self._on_loaded(shard)

    def _refuse(self, error: Unreadable) -> None:
        """Serve nothing of this partition, and say so; all else of the node goes on."""
        _log.error("%s", error, exc_info=error.__cause__)
        self._broker.unserved[self._partition.name] = str(error)
        refusal = CoordinatorNotAvailable(str(error))
        self._begin_anew(refusal)
        self.refusal = refusal
        self.perform(self.shard.unload(refusal))

    def _serves(self, shard: S) -> bool:
        """Whether it neither moves elsewhere nor begins anew."""
        return self.shard is shard and self._partition.leader is self._leader is not None

    def _begin_anew(self, error: BrokerError) -> None:
        """Give up the shard and what is left of its effects, but for what it has to say."""
        old, self.shard = self.shard, self._new_shard()
        self.refusal = None
        kept = [effect for effect in self._queue if isinstance(effect, Answer)]
        self._queue.clear()  # its writes would pass for those of the next one
        self._gathered.clear()
        self.perform([*kept, *old.unload(error)])

    def reload(self) -> None:
        """Forget what is not certain, and read the log again."""
        self._begin_anew(CoordinatorNotAvailable("its state is being read again"))
        self._broker.spawn(self.load())

    def restored(self) -> None:
        """Somebody restores the log: serve nothing until that has ended, then read it again."""
        self._begin_anew(CoordinatorNotAvailable("it is being restored from a backup"))
        if self._rereading is not None:
            self._rereading.cancel()
        self._rereading = asyncio.get_running_loop().call_later(_RESTORING_SECONDS, self.restore_ended)

    def restore_ended(self) -> None:
        """All is restored, or nobody goes on with it: serve what there is."""
        if self._rereading is not None:
            self._rereading.cancel()
            self._rereading = None
            self._broker.spawn(self.load())

    # Effects.

    def perform(self, effects: Iterable[Any]) -> None:
        """Do what the shard wants, after all that it wanted before."""
        self._queue.extend(effects)
        if self._performing:
            return
        self._performing = True
        try:
            while self._queue:
                effect = self._queue.popleft()
                if isinstance(effect, Answer):
                    _answer(effect)
                elif isinstance(effect, Append):
                    self._gather(effect)
                else:
                    self._flush()
                    self._do(effect)
        finally:
            self._performing = False
        self._set_timer()

    def _gather(self, effect: Append) -> None:
        """Let a write wait for those that come in this turn; those of a transaction go alone."""
        if effect.writer is not None:
            self._flush()
            self._append([effect], effect.writer, TRANSACTIONAL)
            return
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._gathered.append(effect)

    def _end_turn(self) -> None:
        self._flush()
        self.perform(())  # what came of it

    def _flush(self) -> None:
        """Append what was gathered, in as few batches as may be."""
        bytes_max = min(BYTES_MAX, self._partition.config.max_message_bytes)
        while gathered := self._gathered:  # a shard that is given up on the way leaves nothing
            size, count = HEADER_BYTES + size_of(gathered[0].records), 1
            while count < len(gathered) and (size := size + size_of(gathered[count].records)) <= bytes_max:
                count += 1
            together = gathered[:count]
            del gathered[:count]
            self._append(together, _NOBODY)

    def _append(self, effects: Sequence[Append], writer: Writer, attributes: int = 0) -> None:
        shard, writes = self.shard, [effect.write for effect in effects]
        records = [record for effect in effects for record in effect.records]
        batch = encode_batch(
            records, producer_id=writer.producer_id, producer_epoch=writer.epoch, attributes=attributes
        )
        try:
            if self._partition.leader is not self._leader:
                raise NotLeader(leader=None)
            offset, _, done = self._partition.appender.append(
                batch,
                acks=-1,
                waiter=_Stored(self, shard, writes),
                pins_bytes=len(batch),
                internal=True,
                is_keyed=are_keyed(records),
            )
        except BrokerError as error:
            if self.shard is shard:
                self._fail(shard, writes, error)
            return
        self.has_written = True
        if self.shard is not shard:
            return  # it was given up meanwhile; the next one finds the writes in the log
        for effect in effects:
            self._appended(shard, effect.write, offset)
            offset += len(effect.records)
        if done:
            self._queue.extend(shard.stored(writes[-1], self.now()))

    def _fail(self, shard: S, writes: Sequence[int], error: BrokerError) -> None:
        at = self.now()
        for write in writes:
            self._queue.extend(shard.store_failed(write, error, at))

    def settled(self, shard: S, writes: Sequence[int], error: BrokerError | None) -> None:
        if shard is not self.shard:
            return  # of a shard that was given up
        if error is None:
            self.perform(shard.stored(writes[-1], self.now()))
        elif isinstance(error, _UNKNOWN_FATE):
            self.reload()
        else:
            self._fail(shard, writes, error)
            self.perform(())

    # Time.

    def _set_timer(self) -> None:
        due = self.shard.next_deadline()
        if due is None:
            return
        due = max(due, self._not_before)
        if self._timer is not None and self._timer_at <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        seconds = max(due - self._broker.host.clock.monotonic(), 0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        at = self.now()
        late = at.now - self._timer_at > _LATE_SECONDS
        self._timer, self._timer_at = None, float("inf")
        if late:
            # The loop stalled, and heartbeats may wait in the sockets: let them be read first.
            self._not_before = at.now + _READING_SECONDS
            self._set_timer()
            return
        self.perform(self.shard.tick(at))

    def stop(self, error: BrokerError) -> None:
        """Serve no more: whoever waits is told `error`."""
        for timer in (self._timer, self._rereading):
            if timer is not None:
                timer.cancel()
        self._broker.unserved.pop(self._partition.name, None)
        self._begin_anew(error)
        if self._timer is not None:
            self._timer.cancel()


def result_of(answer: object) -> Any:
    """What a shard has answered; a refusal is raised."""
    if isinstance(answer, BrokerError):
        raise answer
    return answer


def _answer(effect: Answer) -> None:
    assert isinstance(effect.to, asyncio.Future)
    if not effect.to.done():
        effect.to.set_result(effect.result)


D = TypeVar("D", bound=ShardDriver[Any])


class ShardKeeper(Generic[D]):
    """The shards of one topic whose partitions this node leads, by the number of the partition."""

    topic: str
    what: str
    """What is kept in it, for people."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._drivers: dict[int, D] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._creating = asyncio.Lock()

    def _make(self, partition: Partition) -> D:
        raise NotImplementedError

    def _partitions(self) -> int:
        """How many the topic gets when it is made."""
        raise NotImplementedError

    def start(self) -> None:
        """Load the shard of every partition that this node leads, now and later."""
        self._broker.on_moved(self._on_moved)
        self._broker.on_restored(self._on_restoring, self._on_restored)
        self._on_moved(
            [
                (partition.name, partition.leader is not None)
                for partition in self._broker.replicas.of(self.topic)
            ]
        )
        self._broker.on_stop(self.stop)

    def _on_moved(self, moved: list[tuple[TopicPartition, bool]]) -> None:
        for name, is_led in moved:
            if name.topic != self.topic:
                continue
            number = name.partition
            if (before := self._drivers.pop(number, None)) is not None:
                before.stop(NotCoordinator(f"the coordinator of the {self.what} has moved"))
            if is_led:
                driver = self._drivers[number] = self._make(self._broker.partition(self.topic, number))
                self._loading[number] = self._broker.spawn(driver.load())

    def _on_restoring(self, name: TopicPartition) -> None:
        driver = self._drivers.get(name.partition) if name.topic == self.topic else None
        if driver is not None and driver.has_written:
            raise PolicyViolation(f"{name} has {self.what} of this cluster; it is not restored")

    def _on_restored(self, name: TopicPartition, is_whole: bool) -> None:
        driver = self._drivers.get(name.partition) if name.topic == self.topic else None
        if driver is not None and is_whole:
            driver.restore_ended()
        elif driver is not None:
            driver.restored()

    async def ready(self) -> None:
        """Make the topic if it is not there yet."""
        if self.topic in self._broker.image.topics:
            return
        async with self._creating:
            if self.topic in self._broker.image.topics:
                return
            wanted = NewTopic(name=self.topic, partitions=self._partitions(), config={}, internal=True)
            try:
                await create_topic(self._broker, wanted)
            except TopicAlreadyExists:
                pass  # another node was quicker
            for number in list(self._loading):
                await self._loading[number]

    def number_of(self, key: str) -> int:
        """The partition that keeps what is known under `key`."""
        topic = self._broker.image.topics.get(self.topic)
        if topic is None:
            raise CoordinatorNotAvailable("ask FindCoordinator first")
        return partition_for(key, len(topic.partitions))

    def leader_of(self, key: str) -> BrokerImage:
        """The broker that coordinates; CoordinatorNotAvailable if nobody does now."""
        image, number = self._broker.image, self.number_of(key)
        found = image.brokers.get(image.topics[self.topic].partitions[number].leader)
        if found is None:
            raise CoordinatorNotAvailable(f"nobody leads {self.topic}-{number} now")
        return found

    def driver(self, key: str) -> D:
        """Who answers for it on this node, or why nobody does."""
        driver = self._drivers.get(self.number_of(key))
        if driver is None:
            raise NotCoordinator(f"another node coordinates these {self.what}; ask FindCoordinator")
        if not driver.is_counted_on:
            raise NotCoordinator(f"another node may coordinate these {self.what} by now")
        return driver

    def driver_of(self, number: int) -> D | None:
        """Who serves that partition on this node, if anybody does."""
        return self._drivers.get(number)

    def drivers(self) -> list[D]:
        return list(self._drivers.values())

    def counted_on(self) -> dict[int, D]:
        """Those whose partition no other node can have been given, by its number."""
        return {number: driver for number, driver in self._drivers.items() if driver.is_counted_on}

    async def ask(self, key: str, call: Callable[[Any, "asyncio.Future[Any]", Moment], Iterable[Any]]) -> Any:
        """Make a request of a shard and wait for its answer; a refusal is raised."""
        return result_of(await self.begin(key, call))

    def begin(
        self, key: str, call: Callable[[Any, "asyncio.Future[Any]", Moment], Iterable[Any]]
    ) -> "asyncio.Future[Any]":
        """Make a request of a shard; its answer is for `result_of`."""
        driver = self.driver(key)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        driver.perform(call(driver.shard, reply, driver.now()))
        return reply

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop(StorageError("the node is stopping"))
