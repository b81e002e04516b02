"""The group coordinator of this node: shards of groups, each joined to its partition.

Rule 1: effects of a shard go through one queue, in order, never recursively: writes reach the log
        in the order of their numbers.
Rule 2: nothing is served before a shard's log has been folded to its end.
Rule 3: a write whose outcome is not known ends its shard; the groups are read anew from the log.
Rule 4: nothing is answered without a lease: another node may coordinate the groups by now, and know
        of commits that this one does not.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.broker.topics import create_topic
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import BrokerImage
from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimedOut,
    StorageError,
    TopicAlreadyExists,
)
from tidelog.groups.events import Result, ShardEffect
from tidelog.groups.limits import Limits
from tidelog.groups.shard import Shard
from tidelog.host import Bytes
from tidelog.log.log import ColdRead
from tidelog.model import OFFSETS_TOPIC, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import decode_batch, encode_batch, iterate_batches
from tidelog.shards.effects import Answer, Append, Moment, partition_for

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * 1024 * 1024
_LATE_SECONDS: Final = 1.0
_UNKNOWN_FATE: Final = (
    RequestTimedOut,
    NotCoordinator,
    NotLeader,
    NotEnoughReplicasAfterAppend,
)
"""The record is in a log, and may yet be committed by this leader or another."""


class _Stored:
    """Awaits the fate of one write of a shard."""

    __slots__ = ("_driver", "_shard", "_write", "deadline")

    def __init__(self, driver: "ShardDriver", shard: Shard, write: int) -> None:
        self._driver = driver
        self._shard = shard
        self._write = write
        self.deadline = float("inf")

    def settled(self, error: BrokerError | None) -> None:
        self._driver.settled(self._shard, self._write, error)


class ShardDriver:
    """One partition of `__consumer_offsets` and the groups in it."""

    def __init__(self, broker: Broker, partition: Partition, limits: Limits) -> None:
        self._broker = broker
        self._partition = partition
        self._limits = limits
        self._queue: deque[ShardEffect] = deque()
        self._performing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self.shard = Shard(limits)

    @property
    def is_counted_on(self) -> bool:
        """Whether no other node can have been given the partition."""
        leader = self._partition.leader
        return leader is not None and (len(leader.replicas) == 1 or self._partition.has_lease())

    def now(self) -> Moment:
        clock = self._broker.host.clock
        return Moment(clock.monotonic(), clock.wall_ms())

    # Loading.

    async def load(self) -> None:
        """Fold the partition's log, once all of it is committed; serve once that is done."""
        shard = self.shard
        await self._partition.committed(self._partition.log.end)
        if self._partition.leader is None or self.shard is not shard:
            return  # it moves elsewhere, or begins anew
        await self._broker.host.offload.run(lambda: self._replay(shard))
        if self.shard is shard:
            self.perform(shard.loaded(self.now()))
            known = set(self._broker.image.topics)
            self.perform(shard.topics_deleted(shard.topics() - known, self.now()))

    def _replay(self, shard: Shard) -> None:
        log = self._partition.log
        offset, end = log.start, log.end
        while offset < end:
            answer = log.read(offset, _READ_BYTES, end)
            if isinstance(answer, ColdRead):
                data: Bytes = answer.perform(self._broker.host.disk)
            else:
                data = b"".join(answer[0])
            assert data, f"{log!r} has a hole at {offset}"
            for header, batch in iterate_batches(data):
                if header.last_offset < offset:
                    continue
                for record in decode_batch(batch):
                    shard.replay(record)
                offset = header.next_offset

    def reload(self) -> None:
        """Forget what is not certain, and read the log again."""
        old, self.shard = self.shard, Shard(self._limits)
        self.perform(old.unload(CoordinatorNotAvailable("the groups are being read again")))
        self._broker.spawn(self.load())

    # Effects.

    def perform(self, effects: Iterable[ShardEffect]) -> None:
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
                else:
                    self._append(effect)
        finally:
            self._performing = False
        self._set_timer()

    def _append(self, effect: Append) -> None:
        shard, write = self.shard, effect.write
        batch = encode_batch(effect.records)
        try:
            *_, done = self._partition.append(
                batch, acks=-1, waiter=_Stored(self, shard, write), pins_bytes=len(batch),
                internal=True,
            )  # fmt: skip
        except BrokerError as error:
            self._queue.extend(shard.store_failed(write, error, self.now()))
        else:
            if done:
                self._queue.extend(shard.stored(write, self.now()))

    def settled(self, shard: Shard, write: int, error: BrokerError | None) -> None:
        if shard is not self.shard:
            return  # of a shard that was given up
        if error is None:
            self.perform(shard.stored(write, self.now()))
        elif isinstance(error, _UNKNOWN_FATE):
            self.reload()
        else:
            self.perform(shard.store_failed(write, error, self.now()))

    # Time.

    def _set_timer(self) -> None:
        due = self.shard.next_deadline()
        if due is None or (self._timer is not None and self._timer_at <= due):
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
            self._timer_at = at.now
            self._timer = asyncio.get_running_loop().call_later(0.05, self._tick)
            return
        self.perform(self.shard.tick(at))

    def stop(self, error: BrokerError) -> None:
        """Serve no more: whoever waits is told `error`."""
        if self._timer is not None:
            self._timer.cancel()
        shard, self.shard = self.shard, Shard(self._limits)
        self.perform(shard.unload(error))
        if self._timer is not None:
            self._timer.cancel()


def _answer(effect: Answer) -> None:
    assert isinstance(effect.to, asyncio.Future)
    if not effect.to.done():
        effect.to.set_result(effect.result)


class Coordinator:
    """The shards whose partitions this node leads, by the number of the partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._drivers: dict[int, ShardDriver] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._creating = asyncio.Lock()
        self._limits = _limits(broker)

    def start(self) -> None:
        """Load the groups of every partition that this node leads, now and later."""
        self._broker.on_moved(self._on_moved)
        self._on_moved(
            [
                (partition.name, partition.leader is not None)
                for partition in self._broker.replicas.of(OFFSETS_TOPIC)
            ]
        )
        self._broker.repeat(
            self._broker.config.offsets_retention_check_interval_ms / 1000, self._expire
        )
        self._broker.on_stop(self.stop)
        self._broker.on_topic_deleted(self.topic_deleted)

    def _on_moved(self, moved: list[tuple[TopicPartition, bool]]) -> None:
        for name, is_led in moved:
            if name.topic != OFFSETS_TOPIC:
                continue
            number = name.partition
            if (before := self._drivers.pop(number, None)) is not None:
                before.stop(NotCoordinator("the group's coordinator has moved"))
            if is_led:
                partition = self._broker.partition(OFFSETS_TOPIC, number)
                driver = self._drivers[number] = ShardDriver(self._broker, partition, self._limits)
                self._loading[number] = self._broker.spawn(driver.load())

    async def ready(self) -> None:
        """Make `__consumer_offsets` if it is not there yet."""
        if OFFSETS_TOPIC in self._broker.image.topics:
            return
        async with self._creating:
            if OFFSETS_TOPIC in self._broker.image.topics:
                return
            wanted = NewTopic(
                name=OFFSETS_TOPIC, partitions=self._broker.config.offsets_topic_num_partitions,
                config={}, internal=True,
            )  # fmt: skip
            try:
                await create_topic(self._broker, wanted)
            except TopicAlreadyExists:
                pass  # another node was quicker
            for number in list(self._loading):
                await self._loading[number]

    def leader_of(self, group_id: str) -> BrokerImage:
        """The broker that coordinates a group; CoordinatorNotAvailable if nobody does now."""
        image = self._broker.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable("ask FindCoordinator first")
        number = partition_for(group_id, len(topic.partitions))
        found = image.brokers.get(topic.partitions[number].leader)
        if found is None:
            raise CoordinatorNotAvailable(f"nobody leads {OFFSETS_TOPIC}-{number} now")
        return found

    def driver(self, group_id: str) -> ShardDriver:
        """Who answers for a group on this node, or why nobody does."""
        topic = self._broker.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable("ask FindCoordinator first")
        driver = self._drivers.get(partition_for(group_id, len(topic.partitions)))
        if driver is None:
            raise NotCoordinator("another node coordinates this group; ask FindCoordinator")
        if not driver.is_counted_on:
            raise NotCoordinator("another node may coordinate this group by now")
        return driver

    def drivers(self) -> list[ShardDriver]:
        return list(self._drivers.values())

    async def ask(
        self, group_id: str, call: Callable[[Shard, "asyncio.Future[Result]", Moment], object]
    ) -> Result:
        """Make a request of a shard and wait for its answer; a refusal is raised."""
        driver = self.driver(group_id)
        reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        effects = call(driver.shard, reply, driver.now())
        driver.perform(effects)  # type: ignore[arg-type]
        result = await reply
        if isinstance(result, BrokerError):
            raise result
        return result

    def topic_deleted(self, name: str) -> None:
        for driver in self._drivers.values():
            if driver.shard.is_loaded:
                driver.perform(driver.shard.topics_deleted({name}, driver.now()))

    async def _expire(self) -> None:
        for driver in self.drivers():
            driver.perform(driver.shard.expire(driver.now()))

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop(StorageError("the node is stopping"))


def _limits(broker: Broker) -> Limits:
    config = broker.config
    return Limits(
        group_size_max=config.group_max_size,
        group_bytes_max=config.group_max_bytes,
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )
