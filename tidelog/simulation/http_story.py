"""The HTTP face under faults, through the project's own client: keys, queues, records, backups.

Each client is an `AsyncClient` as users have it, with its retries, its Idempotency-Keys and its
word for what became of a request; its bytes go through the simulated network to the nodes' own
listeners (`http_wire`). Meanwhile backups are made and restored (`backups`).

What clients are told is held against what other stories hold it against, too:

| what is used  | is judged by                                                                  |
|---------------|-------------------------------------------------------------------------------|
| keys          | `registers` and `keyvalue_watch`                                              |
| queues        | `queues`, `queue_operators` and `queue_watch`                                 |
| records       | `history`                                                                     |
| all of them   | `http_clients`: a certain no never happened, a right request is taken         |
| backups       | `backups`                                                                     |
"""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tidelog.client.http.awaiting import AsyncClient
from tidelog.client.http.errors import Conflict, OutcomeUnknown, TidelogHTTPError
from tidelog.client.http.values import Delete, Put
from tidelog.copies.views.kv import Change
from tidelog.model import Offset, TopicPartition
from tidelog.simulation import history_check
from tidelog.simulation.backups import Backups
from tidelog.simulation.http_clients import HttpQueues, check_refusal, http_client, shown
from tidelog.simulation.keyvalue import SAME_ANSWER, KvLoad, KvPace, Session
from tidelog.simulation.queues import QueuePace
from tidelog.simulation.registers import ABSENT, NOTHING, Shown, Write
from tidelog.simulation.replicated import EpochClient
from tidelog.simulation.story import LIVENESS, PAUSE_SECONDS, create_topic
from tidelog.simulation.workload import Pace
from tidelog.simulation.world import Client, World

STREAM: Final = "stream"
"""The topic of records that are no keys' values."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPace:
    """How clients of HTTP ask, and what operators do meanwhile."""

    timeout_seconds: float = 2.0
    retries: int = 3
    writers: int = 2
    """Of records."""
    readers: int = 1
    partitions: int = 1
    """Of the topic of records."""
    queue_partitions: int = 1
    """Of the log that queues are kept in."""
    unknown_chance: float = 0.5
    """That a client lets it be where nobody knows what became of a write."""
    backups_at: tuple[float, ...] = (5.0, 12.0)
    """Seconds after which a backup is begun, once the one before is there."""
    restores: bool = True
    """Whether the first backup is restored into new topics of the same cluster meanwhile."""


@dataclass(slots=True)
class Repeatable:
    """A write that was answered, and can be asked for again."""

    place: TopicPartition
    change: Change
    key: str
    version: Offset


class HttpSession(Session):
    """One client, which is a client of the HTTP face."""

    def __init__(self, load: "HttpLoad", name: str, host: Client) -> None:
        super().__init__(load, name, host)
        pace = load.http_pace
        self.http: AsyncClient = http_client(
            load.world, host, self.random, timeout=pace.timeout_seconds, retries=pace.retries
        )
        self.answered: list[Repeatable] = []

    def token(self, place: TopicPartition) -> Offset:
        """How far the client knows that it has seen a partition."""
        token = self.http._plans.core.tokens.of(place.topic, place.partition)
        return 0 if token is None else int(token.split(":")[1])


class HttpLoad(KvLoad):
    """The users of one cluster over HTTP."""

    def __init__(
        self, world: World, pace: Pace, kv_pace: KvPace, queue_pace: QueuePace, http_pace: HttpPace
    ) -> None:
        super().__init__(world, pace, kv_pace)
        self.http_pace = http_pace
        self.queues = HttpQueues(world, queue_pace, self.replicas, retries=http_pace.retries)
        self.streams = [TopicPartition(STREAM, number) for number in range(http_pace.partitions)]
        self.elsewhere = {"queues_topic_num_partitions": http_pace.queue_partitions}
        """The settings of a cluster that a backup is restored into."""
        self.backups = Backups(self)

    # Who comes.

    async def _begin(self) -> None:
        pace, generator = self.http_pace, self.world.fork("stream")
        await super()._begin()
        client = self._client(self._hosts[0], generator, EpochClient)

        async def create() -> None:
            await create_topic(client, STREAM, partitions=pace.partitions, replication=self.pace.replication)

        await self._insist("client-1", generator, create)
        client.close()
        for number in range(pace.writers):
            self._spawn(self._host(number), self._write_records(f"writer-{number}"))
        for number in range(pace.readers):
            self._spawn(self._host(-1 - number), self._read_records(f"consumer-{number}"))
        self.backups.start()

    def start(self) -> None:
        super().start()
        self.queues.start()

    def _crowd(self) -> None:
        for number in range(self.kv_pace.clients):
            host = self._host(number)
            self._spawn(host, self._use(HttpSession(self, f"client-{number}", host)))
        for number in range(self.kv_pace.producers):
            host = self._host(number)
            self._spawn(host, self._produce_keyed(f"producer-{number}", host))
        for number in range(self.kv_pace.transactions):
            host = self._host(-1 - number)
            self._spawn(host, self._transact_on(f"transactor-{number}", host))

    def _acts(self) -> list[tuple[float, Callable[[Any], Coroutine[Any, Any, None]]]]:
        return [
            (0.36, self._write),
            (0.24, self._get),
            (0.18, self._get_local),
            (0.07, self._scan),
            (0.08, self._batch),
            (0.07, self._repeat),
        ]

    def _note_error(self, session: Session, error: Exception) -> None:
        assert isinstance(error, TidelogHTTPError), "a client of HTTP has no others"
        check_refusal(self.world, session.name, error)

    # Keys.

    async def _change(self, session: Session, place: TopicPartition, changes: list[Change]) -> None:
        """Ask for changes; where nobody knows what became of them, perhaps once more."""
        assert isinstance(session, HttpSession)
        key = None
        if session.rolls(self.kv_pace.once_chance):
            key = f"{session.name} {self.registers.tick()}"
        begun = self.registers.begin_request(
            session.name, [((str(place), c.key), c.value, c.if_version) for c in changes]
        )
        is_unsure = False
        for _ in range(_TRIES):
            try:
                if len(changes) == 1:
                    await self._change_one(session, place, changes[0], key, begun[0], is_unsure)
                else:
                    await self._change_some(session, place, changes, key, begun, is_unsure)
                self._done(session, "writes")
                return
            except OutcomeUnknown as error:
                check_refusal(self.world, session.name, error)
                key, is_unsure = error.idempotency_key, True
                if session.rolls(self.http_pace.unknown_chance):
                    return
            except TidelogHTTPError as error:
                check_refusal(self.world, session.name, error)
                if not is_unsure:  # else what was asked for before may yet be done
                    for write in begun:
                        write.fail()
                    raise
            await asyncio.sleep(PAUSE_SECONDS * session.random.random())

    async def _change_one(
        self,
        session: HttpSession,
        place: TopicPartition,
        change: Change,
        key: str | None,
        write: Write,
        is_unsure: bool,
    ) -> None:
        bucket, name = session.http.kv(place.topic), change.key.decode()
        before = session.token(place)
        try:
            version = await _ask_for(session, bucket, name, change, key)
        except Conflict as error:
            found = ABSENT if error.version is None else error.version
            session.versions[write.key] = found
            if not is_unsure:
                _refused(write, error)
            return
        if version is None:  # there was nothing to delete, or it is not told why it was not done
            if not is_unsure:
                if change.value is None:
                    write.needless()
                else:
                    write.fail()
            return
        after = session.token(place)
        if change.value is None:
            version = after - 1
        if not before < after or after != version + 1:
            self.world.fail(
                history_check.STALE_OFFSET, f"{session.name} {place}: {before}, {version}, {after}"
            )
        self._written(session, place, version, [write])
        if key is not None:
            session.answered.append(Repeatable(place, change, key, version))

    def _written(
        self, session: HttpSession, place: TopicPartition, version: Offset, begun: Sequence[Write]
    ) -> None:
        self.acknowledged += len(begun)
        self.replicas.acknowledged(place, version + len(begun))
        for number, write in enumerate(begun):
            write.ok(version + number)
            session.versions[write.key] = ABSENT if write.value is None else version + number
        self.world.trace.note(session.name, f"{place} {version} {len(begun)}")

    async def _change_some(
        self,
        session: HttpSession,
        place: TopicPartition,
        changes: list[Change],
        key: str | None,
        begun: list[Write],
        is_unsure: bool,
    ) -> None:
        results = await session.http.kv(place.topic).batch(
            [_operation(change) for change in changes], idempotency_key=key
        )
        first = results[0].version
        if all(one.ok for one in results):
            if first is not None:
                self._written(session, place, first, begun)
            elif not is_unsure:
                for write in begun:
                    write.needless()
            return
        for write, result in zip(begun, results, strict=True):
            if isinstance(result.error, Conflict):
                found = ABSENT if result.error.version is None else result.error.version
                session.versions[write.key] = found
                if not is_unsure:
                    _refused(write, result.error)
            elif not is_unsure and not isinstance(result.error, OutcomeUnknown):
                write.fail()

    async def _repeat(self, session: Session) -> None:
        """Ask once more for what was done, perhaps long ago and at another leader."""
        assert isinstance(session, HttpSession)
        if not session.answered:
            return
        one = session.random.choice(session.answered)
        bucket, name = session.http.kv(one.place.topic), one.change.key.decode()
        operation = _operation(one.change)
        if isinstance(operation, Delete):
            done = await bucket.delete(name, if_version=operation.if_version, idempotency_key=one.key)
            again = one.version if done else ABSENT
        else:
            entry = await bucket.put(
                name,
                operation.value,
                ttl=operation.ttl,
                if_version=operation.if_version,
                idempotency_key=one.key,
            )
            again = entry.version
        if again != one.version:
            self.world.fail(SAME_ANSWER, f"{session.name} {one}: then {again}")
        self._done(session, "repeats")

    async def _get(self, session: Session) -> None:
        assert isinstance(session, HttpSession)
        place, key = session.random.choice(self.keys)
        reading = self.registers.begin_read(session.name, (str(place), key))
        found = await _read(session.http, place, key, "strong")
        reading.ok(found)
        session.versions[str(place), key] = found.version
        self._done(session, "reads")

    async def _get_local(self, session: Session) -> None:
        assert isinstance(session, HttpSession)
        place, key = session.random.choice(self.keys)
        reading = self.registers.begin_local(session.name, (str(place), key), session.token(place))
        found = await _read(session.http, place, key, "local")
        reading.ok(found, session.token(place))
        self._done(session, "reads")

    async def _scan(self, session: Session) -> None:
        """Page by page, so each key is as it was at some moment in between."""
        assert isinstance(session, HttpSession)
        bucket = session.random.choice(self.places).topic
        keys = [(place, key) for place, key in self.keys if place.topic == bucket]
        reading = {key: self.registers.begin_read(session.name, (str(place), key)) for place, key in keys}
        found: dict[bytes, Shown] = {}
        page = session.random.choice((2, 100))
        async for entry in session.http.kv(bucket).scan("key-", page=page, consistency="strong"):
            found[entry.key.encode()] = shown(entry)
        for key, read in reading.items():
            read.ok(found.get(key, NOTHING))
        self._done(session, "reads")

    # Records.

    async def _write_records(self, name: str) -> None:
        generator, pace = self.world.fork(name), self.http_pace
        http = http_client(
            self.world,
            self._host(generator.randrange(9)),
            generator,
            timeout=pace.timeout_seconds,
            retries=pace.retries,
        )
        life = sent = 0
        while True:
            sent += 1
            place = generator.choice(self.streams)
            value = f"{name}/{sent}" + "." * generator.choice((0, 0, 100))
            # What nobody knows of may come later: whatever follows it is another's.
            sending = self.history.begin_send(f"{name}.{life}", str(place), [value.encode()])
            outcome = await self._produce_record(name, generator, http, place, value)
            if outcome == "fail":
                sending.fail()
            elif outcome == "info":
                sending.info()
                life += 1
            else:
                sending.ok(outcome)
                self.acknowledged += 1
                self.replicas.acknowledged(place, outcome + 1)
                self._not_yet.pop((name, "writes"), None)
            await asyncio.sleep(self.kv_pace.think_seconds * 4 * generator.random())

    async def _produce_record(
        self, name: str, generator: random.Random, http: AsyncClient, place: TopicPartition, value: str
    ) -> Any:
        """Where it stands; or `fail`, or `info`."""
        key: str | None = None
        for _ in range(_TRIES):
            try:
                produced = await http.topic(place.topic).produce(
                    value, partition=place.partition, idempotency_key=key
                )
                self.operations += 1
                return produced.offset
            except OutcomeUnknown as error:
                check_refusal(self.world, name, error)
                key = error.idempotency_key
                if generator.random() < self.http_pace.unknown_chance:
                    return "info"
            except TidelogHTTPError as error:
                check_refusal(self.world, name, error)
                if key is None:
                    await asyncio.sleep(PAUSE_SECONDS * generator.random())
                    return "fail"
            await asyncio.sleep(PAUSE_SECONDS * generator.random())
        return "info"

    async def _read_records(self, name: str) -> None:
        generator, pace = self.world.fork(name), self.http_pace
        http = http_client(
            self.world,
            self._host(generator.randrange(9)),
            generator,
            timeout=pace.timeout_seconds,
            retries=pace.retries,
        )
        while True:
            place = generator.choice(self.streams)
            self._assign(name, [place])
            offset = 0
            for _ in range(generator.randint(1, 20)):
                offset, _ = await self._poll_records(name, generator, http, place, offset)
                await asyncio.sleep(self.kv_pace.think_seconds * 4 * generator.random())
            self._assign(name, [])

    async def _poll_records(
        self, name: str, generator: random.Random, http: AsyncClient, place: TopicPartition, offset: Offset
    ) -> tuple[Offset, bool]:
        """Read on from `offset`; where to read next, and whether that was the end."""
        polling = self.history.begin_poll(name)
        while True:
            try:
                found = await http.topic(place.topic).read(place.partition, offset, encoding="text")
            except TidelogHTTPError as error:
                check_refusal(self.world, name, error)
                await asyncio.sleep(PAUSE_SECONDS * generator.random())
                continue
            polling.ok((str(place), one.offset, str(one.value).encode()) for one in found.records)
            self.operations += 1
            self._not_yet.pop((name, "reads"), None)
            return found.next_offset, found.next_offset >= found.high_watermark

    # After healing.

    def _expected(self) -> Iterable[Hashable]:
        pace = self.http_pace
        return [
            *super()._expected(),
            *((f"writer-{number}", "writes") for number in range(pace.writers)),
            *((f"consumer-{number}", "reads") for number in range(pace.readers)),
        ]

    def get_on(self, seconds_max: float) -> None:
        """Nothing is broken any more: everybody gets on, and everything is true."""
        self.world.run_while(self.backups.not_done, 2 * seconds_max, name=LIVENESS)
        super().get_on(seconds_max)
        self.operations += self.queues.operations
        self.acknowledged += self.queues.acknowledged
        self.queues.get_on(seconds_max)
        self.backups.judge(seconds_max)

    async def _read_all(self, node: int) -> None:
        """Every key and every record at one node, which nobody helps but other nodes."""
        name = f"reader-{node}"
        generator = self.world.fork(name)
        http = http_client(
            self.world, self._hosts[0], generator, nodes=[node], timeout=self.http_pace.timeout_seconds
        )
        for place, key in self.keys:
            reading = self.registers.begin_read(name, (str(place), key))
            ask = partial(_read, http, place, key, "strong")
            reading.ok(await self._patiently(name, generator, ask))
        for place in self.streams:
            self._assign(name, [place])
            offset, is_end = 0, False
            while not is_end:
                offset, is_end = await self._poll_records(name, generator, http, place, offset)

    def _judge(self) -> None:
        super()._judge()
        readers = [f"reader-{node}" for node in self.world.machines]
        self._blame(history_check.check(self.history, final_reads=readers))


def _refused(write: Write, error: Conflict) -> None:
    """A condition did not hold; of a repeat, the version is that of now."""
    if error.problem.get("repeated"):
        write.fail()
    else:
        write.refused(ABSENT if error.version is None else error.version)


async def _ask_for(
    session: HttpSession, bucket: Any, name: str, change: Change, key: str | None
) -> Offset | None:
    """The version that a change has; of a deletion, any. None if it was not done."""
    operation = _operation(change)
    if isinstance(operation, Delete):
        done = await bucket.delete(name, if_version=operation.if_version, idempotency_key=key)
        return 0 if done else None
    if change.if_version is not None and key is None and session.rolls(0.5):
        version = None if change.if_version == ABSENT else change.if_version
        entry = await bucket.compare_and_set(name, operation.value, version, ttl=operation.ttl)
        return None if entry is None else int(entry.version)
    entry = await bucket.put(
        name, operation.value, ttl=operation.ttl, if_version=operation.if_version, idempotency_key=key
    )
    return int(entry.version)


def _operation(change: Change) -> Put | Delete:
    """The change as the client takes it."""
    name = change.key.decode()
    if change.value is None:
        return Delete(name, if_version=change.if_version)
    ttl = None if change.ttl_ms is None else change.ttl_ms / 1000
    return Put(name, json.loads(change.value), ttl, change.if_version)


async def _read(http: AsyncClient, place: TopicPartition, key: bytes, how: Any) -> Shown:
    return shown(await http.kv(place.topic).get(key.decode(), consistency=how))
