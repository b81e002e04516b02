"""What clients do to the nodes of a world, what they were told, and what must then hold.

Each node is a cluster of its own: it gets its own topics, idempotent producers and consumers,
all real clients on the simulated network. They never give up; a batch is sent until it is answered.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| acknowledged is durable          | at the end every acknowledged record is there, at its offset  |
| no record twice                  | a value has one offset, however often its batch was sent      |
| what was shown stays             | an offset has one value, whoever reads it and whenever        |
| the watermark never falls        | neither in one life of a node nor for any client              |
| start <= watermark <= end        | on every partition of every node                              |
| epochs rise                      | with every life of a node, and never fall                     |
| acknowledged is committed        | the watermark covers what was acknowledged                    |
| liveness                         | after healing, every node serves and every producer gets on   |
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused
from tidelog.client.kafka import EARLIEST, LATEST, KafkaClient
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.model import Offset, TopicPartition
from tidelog.records import Record, decode_batch, encode_batch, iterate_batches, read_header
from tidelog.simulation.node_calls import raise_error
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.story import LIVENESS, PAUSE_SECONDS, create_topic
from tidelog.simulation.world import Client, World
from tidelog.wire.apis import Api

ACKNOWLEDGED: Final = "acknowledged is durable"
COMMITTED: Final = "acknowledged is committed"
TWICE: Final = "no record twice"
STAYS: Final = "what was shown stays"
WATERMARK: Final = "the watermark never falls"
BOUNDS: Final = "start <= watermark <= end"
EPOCHS: Final = "epochs rise"

_CHECK_EVERY_EVENTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the clients of one node behave."""

    topics: int = 2
    partitions: int = 2
    replication: int = 1
    """Where nodes form a cluster."""
    producers: int = 4
    lone_producers: int = 0
    """Those that want acks=1 and send everything once; where nodes form a cluster."""
    consumers: int = 2
    rack_readers: int = 0
    """Those of the consumers that read from the replica in their rack."""
    think_seconds: float = 0.02
    batch_records_max: int = 5
    value_bytes_max: int = 200
    timeout_seconds: float = 3.0
    topic_configs: tuple[tuple[str, str], ...] = ()
    may_lose: bool = False
    """Whether operators may let lead who lacks what is committed; where nodes form a cluster."""


@dataclass(slots=True)
class _Known:
    """What the clients of one node know of one partition."""

    values: dict[Offset, bytes] = field(default_factory=dict)
    """Acknowledged or read: what is at an offset."""
    batches: dict[Offset, bytes] = field(default_factory=dict)
    """As they were last read, by base offset: what is the same need not be decoded again."""
    acknowledged: dict[Offset, bytes] = field(default_factory=dict)
    acknowledged_end: Offset = 0
    watermark_shown: Offset = 0


@dataclass(slots=True)
class _Seen:
    """What the world last saw of one partition of a node."""

    life: int
    watermark: Offset
    epoch: int


class Workload:
    """The clients of every node of a world."""

    def __init__(self, world: World, pace: Pace) -> None:
        self.world = world
        self.loads = [NodeLoad(world, number, pace) for number in world.machines]
        world.invariant(WATERMARK, self._check_nodes, every=_CHECK_EVERY_EVENTS)

    @property
    def operations(self) -> int:
        """Requests that were answered."""
        return sum(load.operations for load in self.loads)

    @property
    def acknowledged(self) -> int:
        return sum(len(k.acknowledged) for load in self.loads for k in load.known.values())

    def start(self) -> None:
        for load in self.loads:
            load.start()

    def get_on(self, seconds_max: float) -> None:
        """Nothing is broken any more: see that everybody gets on, then that nothing is missing."""
        world = self.world
        sound = [load for load in self.loads if not load.machine.is_damaged]
        world.run_until(lambda: all(load.machine.is_up for load in sound), seconds_max, name=LIVENESS)
        for load in sound:
            load.expect_progress()
        world.run_until(lambda: all(load.got_on for load in sound), seconds_max, name=LIVENESS)
        for load in self.loads:
            load.stop()
        checks = [load.client.spawn(load.check()) for load in sound]
        world.run_until(lambda: all(check.done() for check in checks), seconds_max, name=LIVENESS)
        for check in checks:
            check.result()
        world.check_now()

    def _check_nodes(self) -> str | None:
        for load in self.loads:
            if (problem := load.check_node()) is not None:
                return problem
        return None


class NodeLoad:
    """The clients of one node."""

    def __init__(self, world: World, number: int, pace: Pace) -> None:
        self.world = world
        self.machine = world.machines[number]
        self.pace = pace
        self.client: Client = world.client(f"client-{number}")
        self.random = world.fork(f"client {number}")
        self.known: dict[TopicPartition, _Known] = {}
        self.operations = 0
        self._seen: dict[TopicPartition, _Seen] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._waiting: dict[int, None] = {}  # the producers that have to show progress

    def start(self) -> None:
        self._spawn(self._begin())

    def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    def expect_progress(self) -> None:
        self._waiting = dict.fromkeys(range(self.pace.producers))

    @property
    def got_on(self) -> bool:
        return not self._waiting

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.client.spawn(work)
        task.add_done_callback(raise_error)  # a client ends only when it is told to
        self._tasks.append(task)

    def _new_client(self) -> KafkaClient:
        return KafkaClient(
            bootstrap(self.machine.number),
            network=self.client.network,
            timeout_seconds=self.pace.timeout_seconds,
        )

    # What they do.

    async def _begin(self) -> None:
        pace = self.pace
        client = self._new_client()
        for number in range(pace.topics):
            name = f"tide-{number}"
            await self._insist(lambda name=name: self._create(client, name))  # type: ignore[misc]
            for partition in range(pace.partitions):
                self.known[TopicPartition(name, partition)] = _Known()
        client.close()
        places = list(self.known)
        for number in range(pace.producers):
            generator = random.Random(f"{self.random.random()} producer")
            self._spawn(self._produce(number, generator.choice(places), generator))
        for _ in range(pace.consumers):
            generator = random.Random(f"{self.random.random()} consumer")
            self._spawn(self._consume(generator))

    async def _create(self, client: KafkaClient, name: str) -> None:
        configs = dict(self.pace.topic_configs)
        await create_topic(client, name, partitions=self.pace.partitions, configs=configs)

    async def _insist(self, attempt: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Try again until it is done, whatever the node says: it has its troubles."""
        while True:
            try:
                answer = await attempt()
            except TidelogError as error:
                self.world.trace.note(self.client.name, f"{type(error).__name__}: {error}")
                await asyncio.sleep(PAUSE_SECONDS * self.random.random())
            else:
                self.operations += 1
                return answer

    async def _produce(self, number: int, place: TopicPartition, generator: random.Random) -> None:
        """One idempotent producer, which sends each batch until it is acknowledged."""
        client = self._new_client()
        producer_id = await self._insist(lambda: init_producer_id(client))
        sequence = values = 0
        while True:
            records = []
            for _ in range(generator.randint(1, self.pace.batch_records_max)):
                values += 1
                padding = b"." * generator.randint(0, self.pace.value_bytes_max)
                value = b"%d/%d/%d %s" % (number, producer_id, values, padding)
                records.append(Record(value=value, timestamp_ms=self.client.process.clock.wall_ms()))
            batch = bytes(
                encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            )
            base = await self._insist(
                lambda batch=batch: client.produce(place.topic, place.partition, bytearray(batch))  # type: ignore[misc]
            )
            sequence += len(records)
            self._acknowledge(place, base, [record.value or b"" for record in records])
            self._waiting.pop(number, None)
            await asyncio.sleep(self.pace.think_seconds * 2 * generator.random())

    def _acknowledge(self, place: TopicPartition, base: Offset, values: list[bytes]) -> None:
        known = self.known[place]
        self.world.trace.note(self.client.name, f"acknowledged {place} {base} {values[0][:16]!r}")
        for offset, value in enumerate(values, base):
            self._learn(place, offset, value)
            known.acknowledged[offset] = value
        known.acknowledged_end = max(known.acknowledged_end, base + len(values))

    def _learn(self, place: TopicPartition, offset: Offset, value: bytes) -> None:
        before = self.known[place].values.setdefault(offset, value)
        if before != value and not self.machine.is_damaged:
            self._fail(STAYS, f"{place} at {offset} is {value!r} and was {before!r}")

    def _learn_batch(self, place: TopicPartition, batch: bytes) -> None:
        try:
            for offset, value in _records(batch):
                self._learn(place, offset, value)
        except CorruptMessage as error:  # the client sees through it; nobody gets wrong records
            if not self.machine.is_damaged:
                self._fail(STAYS, f"{place}: {error}")

    async def _consume(self, generator: random.Random) -> None:
        """Reads everything from the beginning, again and again, one partition after another."""
        client = self._new_client()
        positions: dict[TopicPartition, Offset] = dict.fromkeys(self.known, 0)
        while True:
            place = generator.choice(list(positions))
            known, position = self.known[place], positions[place]
            shown = known.watermark_shown
            watermark, found = await self._insist(lambda p=place, o=position: _read(client, p, o))  # type: ignore[misc]
            if watermark < shown and not self.machine.is_damaged:
                self._fail(WATERMARK, f"{place}: {watermark} is shown after {shown}")
            known.watermark_shown = max(known.watermark_shown, watermark)
            for base, batch in found:
                if known.batches.get(base) != batch:  # most were read before
                    known.batches[base] = batch
                    self._learn_batch(place, batch)
            positions[place] = read_header(found[-1][1]).next_offset if found else 0
            if generator.random() < 0.1:
                await self._insist(
                    lambda p=place: client.list_offsets(p.topic, {p.partition: LATEST})  # type: ignore[misc]
                )
            await asyncio.sleep(self.pace.think_seconds * 2 * generator.random())

    # What must hold.

    def check_node(self) -> str | None:
        """What can be seen from outside of time: the state of the node itself."""
        machine = self.machine
        if not machine.is_up or machine.is_damaged or machine.is_paused:
            return None
        life = machine.lives
        for partition in machine.node.broker.partitions():
            leader = partition.leader
            if leader is None:
                continue
            name, watermark, epoch = partition.name, partition.high_watermark, leader.epoch
            seen = self._seen.get(name)
            if seen is None:
                self._seen[name] = _Seen(life, watermark, epoch)
            elif seen.life == life:
                if watermark < seen.watermark:
                    return f"{machine.name} {name}: from {seen.watermark} to {watermark}"
                seen.watermark = watermark
                if epoch < seen.epoch:  # it may rise: a node that was paused for long is fenced
                    self._fail(EPOCHS, f"{name}: from {seen.epoch} to {epoch} in one life")
                seen.epoch = epoch
            else:
                if epoch <= seen.epoch:
                    self._fail(EPOCHS, f"{name}: {epoch} in a new life, {seen.epoch} in the last")
                self._seen[name] = _Seen(life, watermark, epoch)
            log = partition.log
            if not log.start <= watermark <= log.end:
                self._fail(BOUNDS, f"{name}: {log.start}, {watermark}, {log.end}")
            known = self.known.get(name)
            if known is not None and watermark < known.acknowledged_end:
                self._fail(COMMITTED, f"{name}: {known.acknowledged_end} > {watermark}")
        return None

    async def check(self) -> None:
        """After healing: read everything and compare it with what was acknowledged."""
        client = self._new_client()
        for place, known in self.known.items():
            start = await self._insist(lambda p=place: _earliest(client, p))  # type: ignore[misc]
            found: dict[Offset, bytes] = {}
            offset = start
            while True:
                watermark, batches = await self._insist(
                    lambda p=place, o=offset: _read(client, p, o)  # type: ignore[misc]
                )
                for _, batch in batches:
                    found.update(_records(batch))
                if not batches:
                    break
                offset = read_header(batches[-1][1]).next_offset
                if offset >= watermark:
                    break
            for offset, value in known.acknowledged.items():
                if offset >= start and found.get(offset) != value:
                    self._fail(
                        ACKNOWLEDGED,
                        f"{place} at {offset}: {value[:40]!r} was acknowledged, "
                        f"{found.get(offset, b'nothing')[:40]!r} is there",
                    )
            places: dict[bytes, Offset] = {}
            for offset, value in found.items():
                self._learn(place, offset, value)
                if (other := places.setdefault(value, offset)) != offset:
                    self._fail(TWICE, f"{place}: {value[:40]!r} is at {other} and at {offset}")
        client.close()

    def _fail(self, name: str, problem: str) -> None:
        self.world.fail(name, f"{self.machine.name} {problem}")


async def init_producer_id(client: KafkaClient) -> int:
    async def attempt() -> int:
        connection = await client.any_connection()
        response = await connection.call(
            Api.INIT_PRODUCER_ID,
            transactional_id=None,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        if response.error_code != ErrorCode.none:
            raise Refused(response.error_code, "producer id")
        return int(response.producer_id)

    return await client.retry(attempt)


async def _earliest(client: KafkaClient, place: TopicPartition) -> Offset:
    found = await client.list_offsets(place.topic, {place.partition: EARLIEST})
    return found[place.partition].offset


async def _read(
    client: KafkaClient, place: TopicPartition, offset: Offset
) -> tuple[Offset, list[tuple[Offset, bytes]]]:
    """The watermark shown, and some batches from the one at `offset` on, by their base offsets."""
    (fetched,) = await client.fetch(
        place.topic, {place.partition: offset}, wait_ms_max=100, partition_bytes_max=16 * 1024
    )
    found = [
        (header.base_offset, bytes(batch))
        for header, batch in iterate_batches(fetched.records)
        if header.next_offset > offset
    ]
    return fetched.high_watermark, found


def _records(batch: bytes) -> Iterator[tuple[Offset, bytes]]:
    for record in decode_batch(batch):
        yield record.offset, record.value or b""
