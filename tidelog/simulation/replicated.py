"""Replicated topics under faults: what clients of a cluster do, are told, and can then find.

Idempotent producers send each batch, with acks=all, to whoever leads until it is acknowledged;
consumers read every partition from its beginning, again and again. All of it is recorded.

What must hold while it runs is said in `replica_watch` and in `quorum`. Then:

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| no client is shown less          | in an epoch, than any client was shown in it or before it     |
| liveness                         | after healing all serve, every in-sync set is whole, every    |
|                                  | producer gets on, and every replica ends where its leader does|
|                                  | and no replica moves any more                                 |
| who holds nothing has no files   | of a partition that others hold by now                        |
| (the rules of `history`)         | of all that was acknowledged and read, and of the replicas    |
| (the rules of `losses`)          | where operators let lead who lacks what is committed          |
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import ANSWER_SECONDS, Refused, check
from tidelog.client.kafka import EARLIEST, KafkaClient
from tidelog.client.wire import Connection
from tidelog.controller.image import ClusterImage, Place
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.model import NO_NODE, NO_OFFSET, Epoch, NodeId, Offset, ProducerId, TopicPartition
from tidelog.records import Record, decode_batch, encode_batch, iterate_batches, read_header
from tidelog.simulation import history, history_check
from tidelog.simulation.history import History
from tidelog.simulation.losses import Losses, truncated
from tidelog.simulation.machine import Machine
from tidelog.simulation.nodes import rack_of
from tidelog.simulation.quorum import QuorumWatch
from tidelog.simulation.replica_watch import COMMITTED, SHOWN, ReplicaWatch
from tidelog.simulation.story import LIVENESS, PAUSE_SECONDS, OneTry, Story, create_topic
from tidelog.simulation.workload import Pace, init_producer_id
from tidelog.simulation.world import Client, World
from tidelog.wire.apis import Api

T = TypeVar("T")

_BRISK_OPERATIONS: Final = 1000
_POLL_BYTES_MAX: Final = 16 * 1024
_FINAL_BYTES_MAX: Final = 256 * 1024
_REMOVAL_SECONDS_MAX: Final = 10.0

LEFT: Final = "who holds nothing has no files"
TOLD: Final = "a reader is told what is lost"


class Polled(NamedTuple):
    """What a leader answered in an epoch; `watermark` is NO_OFFSET if it does not know it yet."""

    epoch: Epoch
    watermark: Offset
    batches: list[bytes]
    stable: Offset = NO_OFFSET
    """The last stable offset."""
    aborted: Sequence[tuple[ProducerId, Offset]] = ()
    """Producer and first offset of transactions that a committed read must not show."""
    nearer: NodeId = NO_NODE
    """Who stands in the reader's rack, and should be asked instead."""


class EpochClient(KafkaClient):
    """A client that reads as consumers do that know of epochs: from nobody who was deposed."""

    async def read(
        self,
        place: TopicPartition,
        offset: Offset,
        *,
        bytes_max: int = _POLL_BYTES_MAX,
        committed_only: bool = False,
        on_epoch: Callable[[Epoch], object] = lambda epoch: None,
    ) -> Polled:
        """Some batches from the one at `offset` on; `on_epoch` hears the epoch before it asks."""

        async def attempt() -> Polled:
            connection = await self.leader(place.topic, place.partition)
            known = await self.topic(place.topic)
            epoch = known.partitions[place.partition].epoch
            on_epoch(epoch)
            return await self._ask(connection, place, epoch, offset, bytes_max, committed_only)

        return await self.retry(attempt)

    async def end_of(self, place: TopicPartition, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The greatest epoch not above `epoch` in the leader's log, and where it ends."""

        async def attempt() -> tuple[Epoch, Offset]:
            connection = await self.leader(place.topic, place.partition)
            current = (await self.topic(place.topic)).partitions[place.partition].epoch
            asked = {"partition": place.partition, "current_leader_epoch": current, "leader_epoch": epoch}
            response = await connection.call(
                Api.OFFSET_FOR_LEADER_EPOCH,
                replica_id=NO_NODE,
                topics=[{"topic": place.topic, "partitions": [asked]}],
            )
            (answer,) = response.topics[0].partitions
            check(answer.error_code, str(place))
            return answer.leader_epoch, answer.end_offset

        return await self.retry(attempt)

    async def _ask(
        self,
        connection: Connection,
        place: TopicPartition,
        epoch: Epoch,
        offset: Offset,
        bytes_max: int,
        committed_only: bool,
        rack: str = "",
    ) -> Polled:
        """What one broker answers."""
        response = await connection.call(
            Api.FETCH,
            timeout_seconds=self._timeout_seconds + ANSWER_SECONDS / 10,
            replica_id=NO_NODE,
            max_wait=100,
            min_bytes=1,
            max_bytes=bytes_max,
            isolation_level=int(committed_only),
            session_id=0,
            session_epoch=-1,
            forgotten_topics_data=[],
            rack_id=rack,
            topics=[
                {
                    "topic": place.topic,
                    "partitions": [
                        {
                            "partition": place.partition,
                            "current_leader_epoch": epoch,
                            "fetch_offset": offset,
                            "partition_max_bytes": bytes_max,
                        }
                    ],
                }
            ],
        )
        check(getattr(response, "error_code", 0), f"fetch from {place}")
        (answer,) = response.responses[0].partitions
        check(answer.error_code, str(place))
        batches = [
            bytes(batch)
            for header, batch in iterate_batches(answer.records or b"")
            if header.next_offset > offset
        ]
        aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()]
        return Polled(
            epoch,
            answer.high_watermark,
            batches,
            answer.last_stable_offset,
            aborted,
            answer.preferred_read_replica,
        )


class OneTryClient(OneTry, EpochClient):
    """Asks once: what has no sequence would be stored twice."""


class RackClient(EpochClient):
    """Reads from the follower in its rack, as far as there is one that has what it wants.

    What a follower says of the watermark may be old news, and is passed over.
    """

    rack = ""

    async def read(
        self,
        place: TopicPartition,
        offset: Offset,
        *,
        bytes_max: int = _POLL_BYTES_MAX,
        committed_only: bool = False,
        on_epoch: Callable[[Epoch], object] = lambda epoch: None,
    ) -> Polled:
        async def attempt() -> Polled:
            leader = await self.leader(place.topic, place.partition)
            known = await self.topic(place.topic)
            epoch = known.partitions[place.partition].epoch
            on_epoch(epoch)
            wanted = (place, epoch, offset, bytes_max, committed_only, self.rack)
            polled = await self._ask(leader, *wanted)
            if polled.nearer == NO_NODE:
                return polled
            follower = await self.broker(polled.nearer)
            return (await self._ask(follower, *wanted))._replace(watermark=NO_OFFSET)

        return await self.retry(attempt)


class ReplicatedLoad(Story):
    """Producers and consumers of one cluster."""

    def __init__(self, world: World, pace: Pace) -> None:
        super().__init__(world, timeout_seconds=pace.timeout_seconds)
        self.pace = pace
        self.watch = QuorumWatch(world)
        self.losses = Losses() if pace.may_lose else None
        self.replicas = ReplicaWatch(world, self.losses)
        self.history = History()
        self.places = [
            TopicPartition(f"tide-{topic}", partition)
            for topic in range(pace.topics)
            for partition in range(pace.partitions)
        ]
        self._shown: dict[TopicPartition, dict[Epoch, Offset]] = {p: {} for p in self.places}
        self._decoded: dict[tuple[TopicPartition, Offset], tuple[bytes, list[bytes]]] = {}
        self._written_in: dict[int, list[Epoch]] = {}
        """By when a poll was begun, the epochs of the records that it found."""
        self._read_in: dict[str, tuple[Epoch, Epoch]] = {}
        """Of who reads: the epoch of the last record, and of the leader that was asked."""

    def think_seconds(self) -> float:
        """How long a client waits between operations; longer once there have been many.

        Faults and situations find bugs, not thousands of operations like those before.
        """
        return self.pace.think_seconds * (1 if self.operations < _BRISK_OPERATIONS else 10)

    # What they do.

    async def _begin(self) -> None:
        generator = self.world.fork("topics")
        client = self._client(self._hosts[0], generator, EpochClient)
        for name in dict.fromkeys(place.topic for place in self.places):
            await self._insist("client-1", generator, lambda n=name: self._create(client, n))  # type: ignore[misc]
        client.close()
        self._crowd()

    def _crowd(self) -> None:
        """Everything is there: let the clients come."""
        pace = self.pace
        for number in range(pace.producers):
            place = self.places[number % len(self.places)]
            host = self._hosts[number % len(self._hosts)]
            self._spawn(host, self._produce(number, host, place))
        for number in range(pace.lone_producers):
            host = self._hosts[number % len(self._hosts)]
            self._spawn(host, self._produce_alone(number, host))
        for number in range(pace.consumers):
            host = self._hosts[-1 - number % len(self._hosts)]
            self._spawn(host, self._consume(number, host))

    async def _create(self, client: KafkaClient, name: str) -> None:
        pace = self.pace
        await create_topic(
            client,
            name,
            partitions=pace.partitions,
            replication=pace.replication,
            configs=dict(pace.topic_configs),
        )

    async def _insist(
        self,
        who: str,
        generator: random.Random,
        attempt: Callable[[], Coroutine[Any, Any, T]],
        errors: tuple[type[Exception], ...] = (TidelogError,),
    ) -> T:
        answer = await super()._insist(who, generator, attempt, errors)
        self.operations += 1
        return answer

    async def _produce(self, number: int, host: Client, place: TopicPartition) -> None:
        process, partition = f"producer-{number}", str(place)
        generator = self.world.fork(process)
        client = self._client(host, generator, EpochClient)
        producer_id = await self._insist(process, generator, lambda: init_producer_id(client))
        sequence = sent = 0
        while True:
            records = []
            for _ in range(generator.randint(1, self.pace.batch_records_max)):
                sent += 1
                padding = b"." * generator.randint(0, self.pace.value_bytes_max)
                records.append(
                    Record(
                        value=b"%d/%d %s" % (number, sent, padding), timestamp_ms=host.process.clock.wall_ms()
                    )
                )
            values = [record.value or b"" for record in records]
            batch = bytes(
                encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            )
            sending = self.history.begin_send(process, partition, values)
            base = await self._insist(
                process,
                generator,
                lambda batch=batch: self._send(client, place, bytearray(batch)),  # type: ignore[misc]
            )
            if base is None:  # what was before it is lost: it cannot know of this one, either
                sending.info()
                producer_id = await self._insist(process, generator, lambda: init_producer_id(client))
                sequence = 0
                continue
            sending.ok(base)
            self.world.trace.note(process, f"acknowledged {place} {base} {len(values)}")
            self.acknowledged += len(values)
            self.replicas.acknowledged(place, base + len(values))
            if self.losses and (problem := self.losses.not_committed(partition, base, values)):
                self.world.fail(COMMITTED, problem)
            sequence += len(records)
            self._not_yet.pop(number, None)
            await asyncio.sleep(self.think_seconds() * 2 * generator.random())

    async def _send(self, client: KafkaClient, place: TopicPartition, batch: bytearray) -> Offset | None:
        """Where a batch is; None if its producer's order is lost, as it may be by force."""
        try:
            base = await client.produce(place.topic, place.partition, batch)
        except Refused as error:
            if error.code != ErrorCode.out_of_order_sequence_number or not self.world.forced[place]:
                raise
            self.world.trace.note("producer", f"{place}: {error}")
            return None
        assert base is not None, "acks=all is answered"
        return base

    async def _produce_alone(self, number: int, host: Client) -> None:
        """Sends records of which only the leader has to know; any of them may be lost."""
        process = f"lone-producer-{number}"
        generator = self.world.fork(process)
        client = self._client(host, generator, OneTryClient)
        sent = 0
        while True:
            place = generator.choice(self.places)
            sent += 1
            record = Record(
                value=b"%s/%d" % (process.encode(), sent), timestamp_ms=host.process.clock.wall_ms()
            )
            sending = self.history.begin_send(process, str(place), [record.value or b""])
            epoch, fenced = self.replicas.epoch_of(place), self.replicas.fenced()
            try:
                base = await client.produce(place.topic, place.partition, encode_batch([record]), acks=1)
                known = await client.topic(place.topic)
            except TidelogError as error:
                self.world.trace.note(process, f"{type(error).__name__}: {error}")
                client.close()
                client = self._client(host, generator, OneTryClient)
            else:
                node = known.partitions[place.partition].leader
                self.world.trace.note(process, f"acknowledged {place} {base} by {node}")
                if base is not None and node in fenced:
                    self.replicas.acknowledged_alone(place, node, base, epoch)
            sending.info()
            await asyncio.sleep(self.think_seconds() * 10 * generator.random())

    async def _consume(self, number: int, host: Client) -> None:
        """Reads a partition from its beginning, for a while, and then another."""
        process = f"consumer-{number}"
        generator = self.world.fork(process)
        client = self._reader(number, host, generator)
        while True:
            place = generator.choice(self.places)
            self._assign(process, [place])
            self._read_in.pop(process, None)
            offset = 0
            for _ in range(generator.randint(1, 60)):
                offset, is_end = await self._poll(process, generator, client, place, offset)
                await asyncio.sleep(self.think_seconds() * 2 * generator.random())
                if is_end and generator.random() < 0.2:
                    break
            self._assign(process, [])

    def _reader(self, number: int, host: Client, generator: random.Random) -> EpochClient:
        if number >= self.pace.rack_readers:
            return self._client(host, generator, EpochClient)
        client = self._client(host, generator, RackClient)
        client.rack = rack_of(generator.choice(list(self.world.machines)))
        return client

    def _assign(self, process: str, places: Iterable[TopicPartition]) -> None:
        self.history.begin_assign(process, map(str, places)).ok()

    async def _poll(
        self,
        process: str,
        generator: random.Random,
        client: EpochClient,
        place: TopicPartition,
        offset: Offset,
        bytes_max: int = _POLL_BYTES_MAX,
    ) -> tuple[Offset, bool]:
        """Read on from `offset`; where to read next, and whether that was the end."""
        floor = NO_OFFSET
        shown = self._shown[place]

        def on_epoch(epoch: Epoch) -> None:
            nonlocal floor
            floor = max(
                (self._left(place, e, epoch, shown[e]) for e in shown if e <= epoch), default=NO_OFFSET
            )

        polling = self.history.begin_poll(process)

        polled = await self._insist(
            process,
            generator,
            lambda: self._read_once(client, place, offset, bytes_max=bytes_max, on_epoch=on_epoch),
        )
        asked_in = None if polled is None else polled.epoch
        if self.losses and await self._is_truncated(process, generator, client, place, offset, asked_in):
            polling.ok([])
            self._assign(process, [])
            self._assign(process, [place])
            return 0, False
        if polled is None:
            polling.ok([])
            return await self._start_after(process, generator, client, place, offset), False
        watermark = polled.watermark
        if watermark != NO_OFFSET:
            if watermark < floor:
                self.world.fail(
                    SHOWN, f"{place}: {watermark} in epoch {polled.epoch}, {floor} was shown before"
                )
            shown[polled.epoch] = max(shown.get(polled.epoch, NO_OFFSET), watermark)
        found: list[tuple[str, Offset, bytes]] = []
        written_in: list[Epoch] = []
        try:
            for batch in polled.batches:
                header = read_header(batch)
                base = header.base_offset
                found += [
                    (str(place), at, value)
                    for at, value in enumerate(self._values(place, base, batch), base)
                    if at >= offset
                ]
                written_in += [header.leader_epoch] * (len(found) - len(written_in))
        except CorruptMessage as error:
            await self._bear(process, error)
        if self.losses and found:
            self._written_in[polling.invoked] = written_in
            self._read_in[process] = (written_in[-1], polled.epoch)
        polling.ok(found)
        if found:
            offset = found[-1][1] + 1
        return offset, 0 <= watermark <= offset

    async def _read_once(
        self, client: EpochClient, place: TopicPartition, offset: Offset, **options: Any
    ) -> Polled | None:
        """None if the log begins later than that by now, or does not reach so far."""
        try:
            return await client.read(place, offset, **options)
        except Refused as error:
            if error.code != ErrorCode.offset_out_of_range:
                raise
            return None

    async def _start_after(
        self,
        process: str,
        generator: random.Random,
        client: EpochClient,
        place: TopicPartition,
        offset: Offset,
    ) -> Offset:
        """Where to read on whoever was told that there is no such offset."""
        started = await self._insist(process, generator, lambda: _earliest(client, place))
        if started <= offset:
            await asyncio.sleep(PAUSE_SECONDS)  # another leads, who knows more
        return max(offset, started)

    def _left(self, place: TopicPartition, since: Epoch, epoch: Epoch, offset: Offset) -> Offset:
        """What is to be seen in `epoch` of all that was shown below `offset` in `since`."""
        if self.losses is None:
            return offset
        return min(offset, self.losses.of(str(place)).floor(since, epoch, offset))

    async def _is_truncated(
        self,
        process: str,
        generator: random.Random,
        client: EpochClient,
        place: TopicPartition,
        offset: Offset,
        asked_in: Epoch | None,
    ) -> bool:
        """Whether what was read before is lost, as consumers find out when another leads.

        Or when there is no such offset, which they hear without an epoch.
        """
        if process not in self._read_in or offset == 0:
            return False
        epoch, before = self._read_in[process]
        if asked_in == before:
            return False
        told = await self._insist(process, generator, lambda: client.end_of(place, epoch))
        if not truncated(epoch, *told, offset):
            self._read_in[process] = (epoch, before if asked_in is None else asked_in)
            return False
        self.world.trace.note(process, f"{place}: read {offset} in {epoch}, and is told {told}")
        if not self.world.forced[place] or told[1] == NO_OFFSET:
            self.world.fail(TOLD, f"{place}: {told} ends epoch {epoch}, {offset} was read in it")
        del self._read_in[process]
        return True

    async def _bear(self, process: str, error: CorruptMessage) -> None:
        """A client sees by the checksum that a batch is rotten, and asks again after a pause."""
        self.world.trace.note(process, str(error))
        if not any(m.is_damaged or m.is_rotten for m in self.world.machines.values()):
            raise error
        await asyncio.sleep(PAUSE_SECONDS)

    def _values(self, place: TopicPartition, base: Offset, batch: bytes) -> list[bytes]:
        """Most batches were read before, and need not be decoded again."""
        known = self._decoded.get((place, base))
        if known is None or known[0] != batch:
            values = [record.value or b"" for record in decode_batch(batch)]
            known = self._decoded[place, base] = (batch, values)
        return known[1]

    # After healing.

    def _healed(self) -> None:
        self.replicas.check_producers()

    def _expected(self) -> Iterable[Hashable]:
        return range(self.pace.producers)

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        world = self.world
        world.run_while(lambda: self._not_whole(sound), seconds_max, name=LIVENESS)
        self._stop()
        world.run_while(lambda: self._not_settled(sound), seconds_max, name=LIVENESS)
        world.run_while(lambda: self._left_behind(sound), _REMOVAL_SECONDS_MAX, name=LEFT)
        readers = self._read_in_the_end(seconds_max)
        self.replicas.check_producers()
        self._check_history(readers, sound)

    def _read_in_the_end(self, seconds_max: float) -> list[str]:
        """Everybody reads everything; under which names."""
        readers = [f"reader-{number}" for number in range(1, len(self._hosts) + 1)]
        reading = [
            self._spawn(host, self._read_everything(name, host))
            for name, host in zip(readers, self._hosts, strict=True)
        ]
        self._finish(reading, seconds_max)
        return readers

    def _known_places(self, image: ClusterImage) -> list[Place]:
        """Where the partitions are; fewer while not all are known."""
        return [
            Place(image.topics[place.topic], place.partition)
            for place in self.places
            if place.topic in image.topics
        ]

    def _not_whole(self, sound: list[Machine]) -> str | None:
        """What is not led, or who is not in sync and could be."""
        if not self.world.all_up(sound):
            return "not all are up"
        numbers = {machine.number for machine in sound}
        for machine in sound:
            places = self._known_places(machine.node.broker.image)
            if len(places) < len(self.places):
                return f"{machine.name} does not know all topics"
            for place in places:
                state = place.partition
                if state.leader == NO_NODE or numbers.intersection(state.replicas) - state.in_sync:
                    return f"{machine.name}: {place.name} is led by {state.leader}: {state}"
                if state.is_moving and numbers.issuperset(state.target):
                    return f"{machine.name}: {place.name} does not come to an end: {state}"
        return None

    def _not_settled(self, sound: list[Machine]) -> str | None:
        """Which replica does not end where its leader does, or is not committed to its end."""
        if problem := self._not_whole(sound):
            return problem
        for place in self._known_places(sound[0].node.broker.image):
            ends: dict[int, tuple[Offset, Offset, Offset]] = {}
            for machine in sound:
                if machine.number in place.partition.replicas:
                    partition = machine.node.broker.replicas.get(place.topic.id, place.number)
                    if partition is None:
                        return f"{machine.name} has not opened {place.name}"
                    log = partition.log
                    ends[machine.number] = (partition.high_watermark, partition.held_end, log.end)
            if len({end for each in ends.values() for end in each}) > 1:
                return f"{place.name}: (watermark, held, end) {ends}"
        return None

    def _not_stable(self) -> str | None:
        """Where a transaction is undecided."""
        for machine in self.world.machines.values():
            if machine.is_damaged or not machine.is_up:
                continue
            for partition in machine.node.broker.partitions():
                watermark, stable = partition.high_watermark, partition.last_stable_offset
                if watermark != stable:
                    return f"{machine.name} {partition.name}: {stable}, and {watermark} committed"
        return None

    def _left_behind(self, sound: list[Machine]) -> str | None:
        """Which node has files of a partition that it does not hold."""
        for place in self._known_places(sound[0].node.broker.image):
            for machine in sound:
                path = machine.node.broker.root / str(place.name)
                is_held = machine.number in place.partition.replicas
                if not is_held and machine.disk.exists(path):
                    return f"{machine.name} has {path.name}: {place.partition}"
        return None

    async def _read_everything(self, process: str, host: Client) -> None:
        generator = self.world.fork(process)
        client = self._client(host, generator, EpochClient)
        for place in self.places:
            self._assign(process, [place])
            self._read_in.pop(process, None)
            offset, is_end = 0, False
            while not is_end:
                offset, is_end = await self._poll(process, generator, client, place, offset, _FINAL_BYTES_MAX)
        client.close()

    def _check_history(self, readers: list[str], sound: list[Machine]) -> None:
        copies: dict[str, dict[int, list[tuple[Offset, bytes]]]] = {}
        watermarks: dict[str, Offset] = {}
        starts: dict[str, Offset] = {}
        for place in self._known_places(sound[0].node.broker.image):
            name = str(place.name)
            for machine in sound:
                found = machine.node.broker.replicas.get(place.topic.id, place.number)
                if found is None:
                    continue
                starts[name] = max(found.log.start, starts.get(name, 0))
                watermarks[name] = min(found.high_watermark, watermarks.get(name, history.NEVER))
                if self.losses and found.leader is not None:
                    self.losses.committed(
                        name, found.leader.epoch, (), found.high_watermark, found.log.epochs
                    )
                copies.setdefault(name, {})[machine.number] = [
                    (header.base_offset, bytes(batch))
                    for header, batch in machine.batches(found.log, 0, found.log.end)
                ]
        happened: Iterable[history.Operation] = self.history
        if self.losses:
            happened = list(self.losses.surviving(self.history, self._written_in))
        self._blame(
            history_check.check(
                happened, final_reads=readers, replicas=copies, watermarks=watermarks, log_starts=starts
            )
        )


async def _earliest(client: KafkaClient, place: TopicPartition) -> Offset:
    found = await client.list_offsets(place.topic, {place.partition: EARLIEST})
    return found[place.partition].offset
