"""Transactions under faults: producers that commit, abort, vanish and come back, and their readers.

Producers write records to several partitions; movers read what is committed, and write something
made of each record, with their own offsets, in one transaction. Several processes have the same
transactional id, and believe to be the only one. Some sleep for longer than a transaction may be
open, and some send a batch that arrives when its transaction is over.

What must hold while it runs is said in `transaction_watch`, `replica_watch` and `quorum`. Then:

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| liveness                         | after healing every transactional id commits, every input is  |
|                                  | moved that is not deleted, and no transaction is left open or |
|                                  | prepared anywhere                                             |
| (the rules of `history`)         | of what was committed, aborted and read                       |

Rule: a process that cannot tell what became of a request goes on under another epoch.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.log.transactions import find_marker
from tidelog.model import NO_OFFSET, Epoch, Offset, TopicPartition
from tidelog.records import TRANSACTIONAL, BatchHeader, crc_matches, read_header
from tidelog.simulation.decisions import PAUSE_SECONDS_MAX, Driver, rows_of
from tidelog.simulation.history import Transacting
from tidelog.simulation.machine import Machine
from tidelog.simulation.replicated import EpochClient, Polled, ReplicatedLoad
from tidelog.simulation.story import LIVENESS
from tidelog.simulation.transaction_watch import BATCH, STABLE_FALLS, TransactionWatch
from tidelog.simulation.transactional import OnceClient, Outcome, Producer, Value
from tidelog.simulation.workload import Pace
from tidelog.simulation.world import Client, World

GROUP: Final = "movers"
MOVES_PATIENCE: Final = 4
"""A transaction that moves may write to every partition."""
_PAUSE_SECONDS: Final = 0.3
_POLL_BYTES_MAX: Final = 4 * 1024
_LATE_SECONDS_MAX: Final = 2.0
_FENCED: Final = (
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
)

Found = list[tuple[str, Offset, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPace:
    """How much is asked of the coordinators, and how badly producers behave."""

    ids: int = 2
    """Transactional ids of producers."""
    rivals: int = 1
    """Processes that have the same id."""
    movers: int = 1
    """Partitions whose records are moved."""
    queries: int = 1
    """Groups of producers whose batches are committed by one decision."""
    drivers: int = 2
    """Processes that write the same group's batches."""
    sends_max: int = 4
    abort_chance: float = 0.2
    nap_chance: float = 0.02
    late_chance: float = 0.05
    """That a batch of a transaction arrives after its end."""
    timeout_ms: int = 1500
    """How long a transaction may be open."""
    patience_seconds: float = 3.0
    new_protocol_chance: float = 0.5


class TransactionLoad(ReplicatedLoad):
    """Transactional producers, movers and readers of one cluster."""

    def __init__(self, world: World, pace: Pace, transaction_pace: TransactionPace) -> None:
        super().__init__(world, pace)
        self.txn_pace = transaction_pace
        self.transactions = TransactionWatch(world, self.replicas)
        self._stable_shown: dict[TopicPartition, dict[Epoch, Offset]] = {p: {} for p in self.places}
        self._writers: list[asyncio.Task[None]] = []
        self._movers: list[asyncio.Task[None]] = []

    # Who comes.

    def _crowd(self) -> None:
        pace = self.txn_pace
        for number in range(pace.ids):
            for rival in range(pace.rivals):
                producer, host = self.producer(f"writer-{number}{'abc'[rival]}", f"id-{number}")
                self._writers.append(self._spawn(host, self._produce_on(producer, host)))
        for number in range(min(pace.movers, len(self.places))):
            for rival in range(pace.rivals):
                name = f"mover-{number}{'abc'[rival]}"
                producer, host = self.producer(name, f"moves-{number}", patience=MOVES_PATIENCE)
                work = self._move_on(producer, self.places[number])
                self._movers.append(self._spawn(host, work))
        for number in range(pace.queries):
            for rival in range(pace.drivers):
                driver = Driver(self, f"spark.query-{number}", f"driver-{number}{'abc'[rival]}")
                self._writers.append(self._spawn(driver.host, driver.drive()))
        for number in range(self.pace.consumers):
            host = self._hosts[-1 - number % len(self._hosts)]
            self._spawn(host, self._consume(number, host))
        self._spawn(self._hosts[-1], self._consume_all(self._hosts[-1]))

    def producer(
        self, name: str, transactional_id: str, *, bumps: bool | None = None, patience: int = 1
    ) -> tuple[Producer, Client]:
        """A process, and the host that it runs on; `patience` times as patient as others."""
        generator, pace = self.world.fork(name), self.txn_pace
        host = generator.choice(self._hosts)
        drawn = generator.random() < pace.new_protocol_chance
        producer = Producer(
            name,
            transactional_id,
            self._client(host, generator, OnceClient),
            generator,
            bumps=drawn if bumps is None else bumps,
            timeout_ms=pace.timeout_ms * patience,
            patience_seconds=pace.patience_seconds,
            wall_ms=host.process.clock.wall_ms,
        )
        return producer, host

    def got_on(self, who: str) -> None:
        """A transaction of `who` was committed."""
        self.operations += 1
        self.acknowledged += 1
        self._not_yet.pop(who, None)

    async def live_on(self, producer: Producer, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin, go on until something goes wrong, and begin again."""
        goes_on = False
        fenced_pause = _PAUSE_SECONDS
        while True:
            is_fenced = False
            try:
                await producer.init(goes_on=goes_on)
                self.operations += 1
                await live()
                goes_on = producer.rolls(0.5)
                fenced_pause = _PAUSE_SECONDS
            except TidelogError as error:
                self.world.trace.note(producer.name, f"{type(error).__name__}: {error}")
                is_fenced = isinstance(error, Refused) and error.code in _FENCED
                goes_on = producer.rolls(0.5) and not is_fenced
            fenced_pause = min(fenced_pause * 2, PAUSE_SECONDS_MAX) if is_fenced else fenced_pause
            await producer.pause(fenced_pause if is_fenced else _PAUSE_SECONDS)

    # Producers.

    async def _produce_on(self, producer: Producer, host: Client) -> None:
        await self.live_on(producer, lambda: self._produce_some(producer, host))

    async def _produce_some(self, producer: Producer, host: Client) -> None:
        while not producer.is_unsure:
            txn = self.history.begin_txn(producer.name)
            label = producer.next_label()
            try:
                outcome = await self._transact(producer, host, txn, label)
            except TidelogError:
                self._over(txn, "fail", producer, label)
                raise
            self._over(txn, outcome, producer, label)
            await producer.pause(self.think_seconds() * 2)

    def _over(self, txn: Transacting, outcome: Outcome, producer: Producer, label: str) -> None:
        {"ok": txn.ok, "fail": txn.fail, "info": txn.info}[outcome]()
        self.world.trace.note(producer.name, f"{label}: {outcome}")
        if outcome == "ok":
            self.got_on(producer.id)

    async def _transact(self, producer: Producer, host: Client, txn: Transacting, label: str) -> Outcome:
        pace, count = self.txn_pace, 0
        for _ in range(producer.draw(1, pace.sends_max)):
            values = []
            for _ in range(producer.draw(1, self.pace.batch_records_max)):
                value = Value("r", label, count, "-")
                values.append(value.encode(producer.draw(0, self.pace.value_bytes_max)))
                count += 1
            await self.send(producer, txn, producer.choose(self.places), values)
            if producer.rolls(pace.nap_chance):
                await producer.pause(pace.timeout_ms * 3 / 1000)
            await producer.pause(self.think_seconds())
        commits = not producer.rolls(pace.abort_chance)
        if producer.rolls(pace.late_chance):
            place, late = producer.choose(self.places), [Value("r", label, count, "-").encode()]
            txn.send(str(place), late)
            self._spawn(host, self._send_late(producer, host, place, producer.batch(place, late)))
            producer.is_unsure, commits = True, False
        return await producer.end(commits=commits)

    async def send(
        self, producer: Producer, txn: Transacting, place: TopicPartition, values: Sequence[bytes]
    ) -> None:
        offset: Offset | None = None
        try:
            offset = await producer.send(place, values)
        finally:
            txn.send(str(place), values, offset)
        self.operations += 1
        self.replicas.acknowledged(place, offset + len(values))

    async def _send_late(self, producer: Producer, host: Client, place: TopicPartition, batch: bytes) -> None:
        """What was held up on its way, while its producer has given it up."""
        await producer.pause(_LATE_SECONDS_MAX)
        client = self._client(host, self.world.fork(f"{producer.name} late"), OnceClient)
        try:
            offset = await producer.post(client, place, batch)
            self.world.trace.note(producer.name, f"late: {place} {offset}")
        except TidelogError as error:
            self.world.trace.note(producer.name, f"late: {type(error).__name__}: {error}")
        client.close()

    # Movers.

    async def _move_on(self, producer: Producer, place: TopicPartition) -> None:
        await self.live_on(producer, lambda: self._move_some(producer, place))

    async def _move_some(self, producer: Producer, place: TopicPartition) -> None:
        looking = self.history.begin_commit(producer.name, GROUP)
        since = len(self.transactions.applied.get((GROUP, place), ()))
        position = await producer.insist(lambda: producer.client.committed(GROUP, place))
        self.transactions.looked_up(GROUP, place, position, since)
        looking.ok({str(place): position})
        position = max(position, 0)
        self._assign(producer.name, [])
        self._assign(producer.name, [place])
        while not producer.is_unsure:
            found, after, _ = await self._read(
                producer.name, producer.generator, producer.client, place, position
            )
            if after == position:
                await producer.pause(self.think_seconds() * 4)
                continue
            txn = self.history.begin_txn(producer.name)
            txn.poll(found)
            label = producer.next_label()
            try:
                outcome = await self._move(producer, txn, label, place, found, after)
            except TidelogError:
                self._over(txn, "fail", producer, label)
                raise
            self._over(txn, outcome, producer, label)
            if outcome != "ok":
                return  # read it again
            position = after
            await producer.pause(self.think_seconds() * 2)

    async def _move(
        self,
        producer: Producer,
        txn: Transacting,
        label: str,
        place: TopicPartition,
        found: Found,
        after: Offset,
    ) -> Outcome:
        made: dict[TopicPartition, list[bytes]] = {}
        inputs = [value for _, _, data in found if (value := Value.decode(data)).kind != "d"]
        for number, value in enumerate(inputs):
            values = made.setdefault(producer.choose(self.places), [])
            values.append(Value("d", label, number, value.id).encode())
        for target, values in made.items():
            await self.send(producer, txn, target, values)
        await producer.send_offsets(GROUP, {place: after})
        if producer.rolls(self.txn_pace.nap_chance):
            await producer.pause(self.txn_pace.timeout_ms * 3 / 1000)
        if producer.rolls(self.txn_pace.abort_chance):
            return await producer.end(commits=False)
        writing = self.history.begin_commit(producer.name, GROUP, {str(place): after})
        outcome = await producer.end(commits=True)
        if outcome == "ok":
            writing.ok()
        else:
            writing.info()
        return outcome

    # Readers.

    async def _poll(
        self,
        process: str,
        generator: random.Random,
        client: EpochClient,
        place: TopicPartition,
        offset: Offset,
        bytes_max: int = _POLL_BYTES_MAX,
    ) -> tuple[Offset, bool]:
        polling = self.history.begin_poll(process)
        found, after, is_end = await self._read(process, generator, client, place, offset, bytes_max)
        polling.ok(found)
        return after, is_end

    async def _read(
        self,
        process: str,
        generator: random.Random,
        client: EpochClient,
        place: TopicPartition,
        offset: Offset,
        bytes_max: int = _POLL_BYTES_MAX,
    ) -> tuple[Found, Offset, bool]:
        """What is committed from `offset` on; where to read next, and whether that is the end."""
        floor, shown = NO_OFFSET, self._stable_shown[place]

        def on_epoch(epoch: Epoch) -> None:
            nonlocal floor
            floor = max((shown[e] for e in shown if e <= epoch), default=NO_OFFSET)

        polled = await self._insist(
            process,
            generator,
            lambda: self._read_once(
                client, place, offset, bytes_max=bytes_max, committed_only=True, on_epoch=on_epoch
            ),
        )
        if polled is None:
            return [], await self._start_after(process, generator, client, place, offset), False
        stable = polled.stable
        if polled.watermark != NO_OFFSET:
            if stable < floor:
                self.world.fail(STABLE_FALLS, f"{place}: {stable} is shown, {floor} was before")
            shown[polled.epoch] = max(shown.get(polled.epoch, NO_OFFSET), stable)
        found: Found = []
        after = offset
        try:
            for at, value, next_offset in self._committed(place, polled):
                after = next_offset
                if value is not None and at >= offset:
                    self.transactions.shown(place, at, value, stable)
                    found.append((str(place), at, value))
        except CorruptMessage as error:
            await self._bear(process, error)
        return found, after, 0 <= polled.watermark <= after

    def _committed(
        self, place: TopicPartition, polled: Polled
    ) -> Iterable[tuple[Offset, bytes | None, Offset]]:
        """Each record that a client shows, or none, and where the next batch is."""
        waiting = sorted(polled.aborted, key=lambda each: each[1])
        aborted: set[int] = set()
        for batch in polled.batches:
            header = _checked_header(batch)
            while waiting and waiting[0][1] <= header.last_offset:
                aborted.add(waiting.pop(0)[0])
            yield header.base_offset, None, header.next_offset
            if header.is_control:
                marker = find_marker(header, batch)
                if marker is not None and not marker.commits:
                    aborted.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in aborted):
                values = self._values(place, header.base_offset, batch)
                for at, value in enumerate(values, header.base_offset):
                    yield at, value, header.next_offset

    async def _consume_all(self, host: Client) -> None:
        """Reads everything, decided or not."""
        process = "peeker"
        generator = self.world.fork(process)
        client = self._client(host, generator, EpochClient)
        offsets = dict.fromkeys(self.places, 0)
        while True:
            place = generator.choice(self.places)
            offset = offsets[place]
            polled = await self._insist(
                process,
                generator,
                lambda place=place, offset=offset: self._read_once(client, place, offset),  # type: ignore[misc]
            )
            if polled is None:
                offsets[place] = await self._start_after(process, generator, client, place, offset)
                continue
            try:
                for batch in polled.batches:
                    header = _checked_header(batch)
                    if not header.is_control:
                        values = self._values(place, header.base_offset, batch)
                        for at, value in enumerate(values, header.base_offset):
                            self.transactions.shown_undecided(place, at, value)
                    offsets[place] = header.next_offset
            except CorruptMessage as error:
                await self._bear(process, error)
            await asyncio.sleep(self.think_seconds() * 4 * generator.random())

    # After healing.

    def _expected(self) -> Iterable[Hashable]:
        pace = self.txn_pace
        return [
            *(f"id-{number}" for number in range(pace.ids)),
            *(f"spark.query-{number}" for number in range(pace.queries)),
        ]

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        world = self.world
        for task in self._writers:
            task.cancel()
        world.run_while(self._not_moved, seconds_max, name=LIVENESS)
        self._stop()
        world.run_while(self.transactions.unfinished, seconds_max, name=LIVENESS)
        world.run_while(lambda: self._not_settled(sound), seconds_max, name=LIVENESS)
        world.run_while(self._not_stable, seconds_max, name=LIVENESS)
        readers = self._read_in_the_end(seconds_max)
        self.replicas.check_producers()
        self._check_batches()
        self._check_history(readers, sound)

    def _not_moved(self) -> str | None:
        if problem := self.transactions.unfinished():
            return problem
        watched = set(self.places[: self.txn_pace.movers])
        known = self.transactions
        starts = self._starts()
        left = [
            name
            for name, (place, offset) in known.inputs.items()
            if place in watched and name not in known.moved and offset >= starts.get(place, 0)
        ]
        return f"{left[:5]} of {len(left)} are not moved" if left else None

    def _starts(self) -> dict[TopicPartition, Offset]:
        """Where logs begin, as their leaders have them: what was before is deleted."""
        return {
            partition.name: partition.log.start
            for machine in self.world.machines.values()
            if machine.is_up and not machine.is_damaged
            for partition in machine.node.broker.partitions()
            if partition.leader is not None
        }

    def _check_batches(self) -> None:
        known = self.transactions
        for group, last in known.decisions.items():
            for batch in range(last + 1):
                rows = known.rows.get((group, batch), {})
                if set(rows) != {str(row) for row in range(rows_of(batch))}:
                    self.world.fail(BATCH, f"{group} {batch} of {last}: only {rows}")


def _checked_header(batch: bytes) -> BatchHeader:
    """What a batch says of itself, if its checksum matches: rot may make a marker of records."""
    header = read_header(batch)
    if not crc_matches(batch, header):
        raise CorruptMessage(f"the checksum of the batch at {header.base_offset} does not match")
    return header
