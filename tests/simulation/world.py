"""One node through many lives on one simulated disk, and what it must never forget.

`World` plays the clients: it appends batches, remembers what it was told, and after every start
compares the node with its memory (`World.verify`). The node is a real `Broker`; the machine under
it loses power, kills its process, runs out of space or lies, as the test's story wants.

Invariants, checked after every start and on every answer:

1. Every acknowledged record is there: in order, once, at the offset acknowledged.
2. Whatever is in a log was appended by somebody, byte for byte, in one unbroken row.
3. No watermark shown is lower than one shown before, or than an acknowledged end.
4. Epochs rise with every life; in a log they never fall; the epoch history says what they are.
5. The producers' state is the fold of the log.
6. No producer id is given out twice.
7. Nothing is reported as damaged, and nothing lies behind the end of a log.
8. Nothing is left of a topic once its deletion is committed.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID

from tests.simulation import virtual_time
from tidelog.broker.broker import Broker
from tidelog.broker.topics import create_topic
from tidelog.cluster.quorum_log import METADATA_PARTITION
from tidelog.config import NodeConfig, TopicConfig
from tidelog.controller import decisions
from tidelog.controller.decisions import NewTopic
from tidelog.errors import BrokerError
from tidelog.host import Path
from tidelog.kafka.producer_ids import ProducerIds
from tidelog.log import rounds
from tidelog.log.epochs import EpochHistory
from tidelog.log.producers import ProducerStates
from tidelog.model import NO_EPOCH, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import (
    HEADER_BYTES,
    SEQUENCE_MODULUS,
    Codec,
    Record,
    crc_matches,
    decode_batch,
    encode_batch,
    iterate_batches,
    read_header,
)
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk
from tidelog.simulation.host import SimulatedClock, simulated_host

T = TypeVar("T")

DATA = Path("/srv/tidelog/data")
SEED_VARIABLE = "TIDELOG_SEED"
LIFE_SECONDS_MAX = 3600.0


class Dead(Exception):
    """The node's life is over; what was to be done in it will not be done."""


@dataclass
class Sent:
    """A batch on its way: as the client has it, to be sent again if need be."""

    data: bytes
    base_sequence: int
    acknowledged: bool = False
    refused: bool = False


@dataclass
class Producer:
    """A client that writes to one partition, idempotent unless its id is -1."""

    partition: TopicPartition
    id: int
    epoch: int
    next_sequence: int
    codec: Codec
    in_flight: list[Sent] = field(default_factory=list)

    def prune(self) -> int:
        """Forget what was acknowledged; how many batches are still in flight."""
        self.in_flight = [sent for sent in self.in_flight if not sent.acknowledged]
        return len(self.in_flight)


@dataclass
class Memory:
    """What the clients know of one partition."""

    topic_id: UUID
    batches: dict[Offset, bytes] = field(default_factory=dict)
    """Every batch that may be in the log, by its base offset; also those deleted on purpose."""
    acknowledged: dict[Offset, bytes] = field(default_factory=dict)
    acknowledged_end: Offset = 0
    shown: Offset = 0
    start: Offset = 0
    start_max: Offset = 0
    """How far somebody wanted the start moved; a crash may have come first."""
    retention_records: int | None = None
    epoch: int = -1
    loses: bool = False
    """Whether the topic's durability lets a power loss take what was acknowledged."""


class _Ack:
    """Waits for one batch's fate."""

    def __init__(self, settle: Callable[[BrokerError | None], None]) -> None:
        self.deadline = float("inf")
        self.settled = settle


class World:
    """A node, its disk and its clients."""

    def __init__(self, seed: int, story: str, **disk_options: Any) -> None:
        self.seed = seed
        self.random = random.Random(f"{story} {seed}")
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk(
            random.Random(f"{story} {seed} disk"),
            sector_bytes=self.random.choice((32, 128, 512)),
            cache_miss=self.random.choice((0.0, 0.3)),
            **disk_options,
        )
        self.memories: dict[TopicPartition, Memory] = {}
        self.producers: list[Producer] = []
        self.lives = 0
        self.acknowledgements = 0
        self.fatal: BaseException | None = None
        self.damaged: TopicPartition | None = None
        """The one partition that was damaged on purpose."""
        self._deleting: dict[str, UUID] = {}
        self._values = 0
        self._producer_ids: dict[int, None] = {}
        self._dead: asyncio.Future[None] | None = None
        self._broker: Broker | None = None
        self.config = NodeConfig(
            data=str(DATA),
            checkpoint_ms=self.random.choice((10, 100, 1000)),
            retention_check_ms=self.random.choice((50, 500)),
            topic_defaults=TopicConfig(segment_bytes=1000, index_interval_bytes=200),
        )

    # Lives.

    def live(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the node, check everything, and run `story` until it ends or the node dies.

        Afterwards the process is gone, though the machine is not: the caller says how it died.
        """
        self.lives += 1
        self.fatal = None
        # Small logs never need the second lane, nor few of them a sync of everything; so both are
        # made to, now and then.
        at_once_bytes = self.random.choice((0, rounds.SYNC_AT_ONCE_BYTES))
        each_max = self.random.choice((0, rounds.SYNC_EACH_MAX))
        with (
            _reports_kept() as reports,
            patch.object(rounds, "SYNC_AT_ONCE_BYTES", at_once_bytes),
            patch.object(rounds, "SYNC_EACH_MAX", each_max),
        ):
            virtual_time.run(self._live(story), self.clock)
        harmless = ["the disk is full", f"{self.damaged}"]
        if self._ended_itself():
            harmless.append("the disk has failed")  # and so it has: the node is about to end
        alarming = [r for r in reports if not any(text in r for text in harmless)]
        assert alarming == [], alarming

    def _ended_itself(self) -> bool:
        return self.fatal is not None

    async def _live(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._dead = asyncio.get_running_loop().create_future()
        host = simulated_host(
            f"{self.random.random()}",
            self.disk,
            clock=self.clock,
            idle=self.random.choice((0.0, 0.5, 0.9)),
            on_crash=self._die,
        )
        self._broker = Broker(host, self.config, self._on_fatal)
        self._broker.budget.bytes_max = self.random.choice((1000, 5000, 10**6))  # cold reads, too
        try:
            await self._start()
            self.verify()
            await self.unless_dead(story())
        except (Dead, SimulatedCrash):
            pass

    async def _start(self) -> None:
        try:
            await self.unless_dead(self.broker.start())
        except OSError as error:  # a process that cannot start ends
            self.fatal = error
            raise Dead from error

    def _die(self) -> None:
        if self._dead is not None and not self._dead.done():
            self._dead.set_result(None)

    def _on_fatal(self, error: BaseException) -> None:
        """The process ends, but not at once: what is under way may still do harm."""
        self.fatal = self.fatal or error
        asyncio.get_running_loop().call_later(0.01, self._die)

    @property
    def is_dead(self) -> bool:
        return self._dead is None or self._dead.done()

    async def unless_dead(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; `Dead` if the node dies first."""
        assert self._dead is not None
        task = asyncio.get_running_loop().create_task(work)
        either: list[asyncio.Future[Any]] = [task, self._dead]
        ended, _ = await asyncio.wait(either, timeout=LIFE_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        assert ended, "everybody waits, and for nothing; only housekeeping goes on"
        if task.done():
            return task.result()
        task.cancel()
        raise Dead

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def lose_power(self) -> None:
        self.disk.crash()
        for name, memory in self.memories.items():
            if memory.loses:
                memory.acknowledged.clear()
                memory.acknowledged_end = memory.shown = memory.start = 0
                memory.start_max = SEQUENCE_MODULUS
                self.producers = [p for p in self.producers if p.partition != name]

    def kill(self) -> None:
        self.disk.kill()

    # The clients' side.

    async def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        await create_topic(self.broker, NewTopic(name=name, partitions=partitions, config=dict(config)))
        self._remember_topics()

    def _remember_topics(self) -> None:
        """Know every topic that the node knows, also those whose creation nobody answered."""
        for topic in self.broker.image.topics.values():
            retention = topic.config.get("retention.records")
            for number in range(len(topic.partitions)):
                self.memories.setdefault(
                    TopicPartition(topic.name, number),
                    Memory(
                        topic.id,
                        loses=topic.config.get("durability") == "replicated",
                        retention_records=int(retention) if retention else None,
                    ),
                )

    async def delete_topic(self, name: str) -> None:
        topic_id = self._deleting[name] = self.broker.image.topics[name].id
        await self.broker.metadata.change(lambda image: decisions.delete_topic(image, name, topic_id))
        self._forget_topic(name)
        await self.broker.acted()

    def _forget_topic(self, name: str) -> None:
        self._deleting.pop(name, None)
        self.memories = {p: m for p, m in self.memories.items() if p.topic != name}
        self.producers = [p for p in self.producers if p.partition.topic != name]

    async def add_producer(self, partition: TopicPartition) -> Producer:
        producer_id = -1
        if self.random.random() < 0.7:
            producer_id = await ProducerIds(self.broker).take()
            assert producer_id not in self._producer_ids, f"id {producer_id} was given out twice"
            self._producer_ids[producer_id] = None
        first = self.random.choice((0, 0, SEQUENCE_MODULUS - 3))
        producer = Producer(
            partition,
            producer_id,
            0 if producer_id >= 0 else -1,
            first if producer_id >= 0 else -1,
            self.random.choice(list(Codec)),
        )
        self.producers.append(producer)
        return producer

    def send(self, producer: Producer, *, acks: int = -1) -> "asyncio.Future[None]":
        """Send the next batch; the future ends when its fate is known.

        An error raised here means that it was not appended, and its sequence is free again.
        """
        count = self.random.choice((1, 1, 2, 5))
        now_ms = self.clock.wall_ms() + self.random.randint(-1000, 0)
        size = self.random.choice((0, 10, 100, 300))
        records = [
            Record(value=b"%d " % self._next_value() + b"x" * size, timestamp_ms=now_ms) for _ in range(count)
        ]
        batch = encode_batch(
            records,
            codec=producer.codec,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.next_sequence,
        )
        sent = Sent(bytes(batch), producer.next_sequence)
        answer = self._append(producer, sent, acks)
        if producer.id >= 0:
            producer.next_sequence = (producer.next_sequence + count) % SEQUENCE_MODULUS
            producer.in_flight.append(sent)
        return answer

    async def resend(self, producer: Producer) -> None:
        """Send again what was not acknowledged, in order, as a client does after a reconnect."""
        producer.prune()
        for answer in [self._append(producer, sent, -1) for sent in producer.in_flight]:
            await answer

    def _next_value(self) -> int:
        self._values += 1
        return self._values

    def _append(self, producer: Producer, sent: Sent, acks: int) -> "asyncio.Future[None]":
        memory = self.memories[producer.partition]
        partition = self.partition(producer.partition)
        fate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        fate.add_done_callback(lambda f: f.cancelled() or f.exception())  # nobody need await it
        batch = bytearray(sent.data)
        base_offset = -1
        sent.refused = False

        def settled(error: BrokerError | None) -> None:
            assert not fate.done(), "a waiter is told once"
            if error is not None:
                sent.refused = True
                fate.set_exception(error)
                return
            sent.acknowledged = True
            if acks == -1 or (acks == 1 and memory.loses):
                self._acknowledged(memory, base_offset)
            if acks == -1 and partition.leader is not None:
                assert self.look(partition) >= memory.acknowledged_end
            fate.set_result(None)

        acknowledged_before = memory.acknowledged_end
        base_offset, _, done = partition.appender.append(
            batch, acks=acks, waiter=_Ack(settled), pins_bytes=len(batch)
        )
        header = read_header(batch)
        if header.leader_epoch == NO_EPOCH:  # not stamped: it was stored before
            stored = memory.batches[base_offset]
            assert stored[HEADER_BYTES:] == sent.data[HEADER_BYTES:], "another batch is there"
        else:
            assert header.base_offset == base_offset >= acknowledged_before
            # Whatever lay there before could not be kept, and nobody was told that it would.
            memory.batches = {o: b for o, b in memory.batches.items() if o < base_offset}
            memory.batches[base_offset] = bytes(batch)
        if done:
            settled(None)
        return fate

    def _acknowledged(self, memory: Memory, base_offset: Offset) -> None:
        self.acknowledgements += 1
        batch = memory.batches[base_offset]
        memory.acknowledged[base_offset] = batch
        end = base_offset + read_header(batch).last_offset_delta + 1
        memory.acknowledged_end = max(memory.acknowledged_end, end)

    def look(self, partition: Partition) -> Offset:
        """The watermark as a client is shown it."""
        memory = self.memories[partition.name]
        shown = partition.visible_end()
        assert shown >= memory.shown, f"{partition.name}: {shown} after {memory.shown} was shown"
        memory.shown = shown
        return shown

    def partition(self, name: TopicPartition) -> Partition:
        return self.broker.partition(name.topic, name.partition)

    async def read_some(self, name: TopicPartition) -> None:
        """Read like a consumer, from anywhere, and compare with what was written."""
        memory, partition = self.memories[name], self.partition(name)
        log = partition.log
        limit = self.look(partition)
        if log.start == limit:
            return
        offset = self.random.randrange(log.start, limit)
        read = log.read(offset, self.random.choice((0, 500, 5000)), limit)
        if read.cold is not None:
            disk = self.disk
            try:
                found = await self.broker.host.offload.run(lambda: read.load_unchecked(disk))
            except FileNotFoundError:
                found = b""
            is_deleted = self.memories.get(name) is not memory or partition.log.start > offset
            assert found or is_deleted, f"{name}: nothing can be read at {offset}"
        else:
            found = read.joined
            assert found, f"{name}: nothing can be read at {offset}"
        for header, batch in iterate_batches(found):
            assert offset <= header.last_offset and header.base_offset < limit
            assert bytes(batch) == memory.batches[header.base_offset]

    async def delete_records(self, name: TopicPartition) -> None:
        memory, partition = self.memories[name], self.partition(name)
        limit = self.look(partition)
        if limit > partition.log.start:
            start = self.random.randint(partition.log.start + 1, limit)
            memory.start_max = max(memory.start_max, start)
            await self.broker.advance_start(partition, start)
            memory.start = max(memory.start, start)

    # The judge.

    def verify(self) -> None:
        """Compare the node, just started, with what the clients know."""
        for topic, topic_id in [*self._deleting.items()]:
            if topic_id not in self.broker.image.topics_by_id:
                self._forget_topic(topic)
        self._remember_topics()
        for name, memory in self.memories.items():
            if name == self.damaged:
                continue
            partition = self.partition(name)
            assert partition.topic_id == memory.topic_id, name
            self.verify_partition(partition, memory)
        known = {str(name) for name in (*self.memories, METADATA_PARTITION)}
        found = {name for name in self.disk.list(DATA) if self.disk.is_directory(DATA / name)}
        assert found == known, f"left of deleted topics: {sorted(found - known)}"

    def verify_partition(self, partition: Partition, memory: Memory) -> None:
        name, log = partition.name, partition.log
        assert log.refusal is None, log.refusal
        assert partition.leader is not None
        assert partition.leader.epoch > memory.epoch, f"{name}: epochs rise with every life"
        memory.epoch = partition.leader.epoch
        assert memory.start <= log.start <= log.end, f"{name}: the start falls"
        if log.start > memory.start_max:
            assert memory.retention_records is not None, f"{name} begins at {log.start}"
            assert log.end - log.start >= memory.retention_records
        memory.start = log.start
        assert self.look(partition) >= memory.acknowledged_end, (
            f"{name} ends at {log.end}, {memory.acknowledged_end} was acknowledged"
        )
        found = self._read_all(partition)
        for base_offset, batch in found.items():
            assert memory.batches.get(base_offset) == batch, f"{name}: {base_offset} is altered"
        for base_offset, batch in memory.acknowledged.items():
            if base_offset >= log.start:
                assert found.get(base_offset) == batch, f"{name}: {base_offset} is lost"
        for segment in log.segments:
            if self.disk.exists(segment.path()):
                size = self.disk.open(segment.path()).size()
                assert size == segment.size, f"{name}: something lies behind the end of {segment}"
        values = [record.value for batch in found.values() for record in decode_batch(batch)]
        assert len(set(values)) == len(values), f"{name}: a record is there twice"
        memory.batches = {o: b for o, b in memory.batches.items() if o in found or o < log.start}
        self._verify_states(partition, memory, found)

    def _read_all(self, partition: Partition) -> dict[Offset, bytes]:
        log = partition.log
        found: dict[Offset, bytes] = {}
        offset = log.start
        while offset < log.end:
            read = log.read(offset, 700, log.end)
            data = read.load_unchecked(self.disk)
            assert data, f"{partition.name}: nothing can be read at {offset} of {log.end}"
            for header, batch in iterate_batches(data):
                assert header.base_offset == offset or not found, "a gap, or an overlap"
                assert crc_matches(batch, header), f"{partition.name}: {offset} is damaged"
                found[header.base_offset] = bytes(batch)
                offset = header.next_offset
        return found

    @staticmethod
    def _verify_states(partition: Partition, memory: Memory, found: dict[Offset, bytes]) -> None:
        name, log = partition.name, partition.log
        epochs, producers = EpochHistory(), ProducerStates()
        last = -1
        for base_offset, batch in found.items():
            header = read_header(batch)
            assert header.leader_epoch >= last, f"{name}: the epoch falls at {base_offset}"
            last = header.leader_epoch
            epochs.assign(header.leader_epoch, max(base_offset, log.start))
        if not found and len(log.epochs) == 1:  # the last epoch of a log that was emptied
            epochs.assign(log.epochs.latest, log.start)
        expected, known = list(epochs), list(log.epochs)
        assert known == expected, f"{name}: the epochs are {expected}, not {known}"
        for base_offset, batch in memory.batches.items():
            header = read_header(batch)
            if header.is_idempotent:
                producers.note(header, base_offset)
        if not memory.loses or log.start == 0:  # else what was deleted may have been lost before
            assert log.producers == producers, f"{name}: the producers are not the fold of the log"


@contextmanager
def _reports_kept() -> Iterator[list[str]]:
    """What the node reports as an error, or worse."""
    reports: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(record.getMessage())

    keeper = Keeper(logging.ERROR)
    logger = logging.getLogger("tidelog")
    logger.addHandler(keeper)
    try:
        yield reports
    finally:
        logger.removeHandler(keeper)
