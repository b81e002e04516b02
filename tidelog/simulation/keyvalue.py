"""Keys and values under faults: clients that put, get and compare-and-set at whichever node is up.

Buckets are replicated topics. Clients ask nodes as the HTTP face would, and carry tokens along;
some repeat requests with the same Idempotency-Key at other nodes, long after they were answered.
In some seeds Kafka's producers write to the same topics, in transactions, too, and in some the logs
are compacted all the while.

What must hold while it runs is said in `keyvalue_watch`, `replica_watch` and `quorum`. Then:

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| (the rules of `registers`)       | of all that clients were told                                 |
| a repeat gets the first answer   | who asks again with the same key is told the same version     |
| liveness                         | after healing every client writes and reads at every node,    |
|                                  | every view has what is decided, and what has expired is gone  |
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidelog.broker.writing import once_of
from tidelog.copies.views.kv import Change
from tidelog.errors import OutcomeUnknown, TidelogError
from tidelog.model import NO_PRODUCER, Offset, ProducerId, TopicPartition
from tidelog.records import TRANSACTIONAL, Record, encode_batch
from tidelog.services.kv import Kv
from tidelog.services.kv_work import KvGet, KvGot, KvScanned, KvWritten
from tidelog.simulation import keyvalue_copies, keyvalue_hearing, registers
from tidelog.simulation.keyvalue_anew import BUCKET, Remade
from tidelog.simulation.keyvalue_copies import Copier
from tidelog.simulation.keyvalue_hearing import Watcher
from tidelog.simulation.keyvalue_watch import KeyWatch
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.registers import ABSENT, NOTHING, Key, Registers, Shown, Write
from tidelog.simulation.replicated import EpochClient, ReplicatedLoad
from tidelog.simulation.story import LIVENESS, PAUSE_SECONDS, Story
from tidelog.simulation.transactional import OnceClient, Producer
from tidelog.simulation.workload import Pace, init_producer_id
from tidelog.simulation.world import Client, World
from tidelog.wire.partitioner import partition_for

T = TypeVar("T")

SAME_ANSWER: Final = "a repeat gets the first answer"
_EXPIRY_SECONDS_MAX: Final = 20.0
_BRIEF_SECONDS: Final = 1.0
"""Between the change of a key that nobody changes later and the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPace:
    """How much is asked of buckets, and how."""

    clients: int = 4
    keys: int = 5
    """Of each bucket: few, so that clients meet."""
    think_seconds: float = 0.02
    patience_seconds: float = 2.0
    once_chance: float = 0.4
    """That a write has an Idempotency-Key."""
    ttl_ms_max: int = 3000
    producers: int = 0
    """Kafka's, idempotent."""
    transactions: int = 0
    """Kafka's, transactional."""
    abort_chance: float = 0.3
    nap_chance: float = 0.05
    """That a transaction is left open for longer than it may be."""
    watchers: int = 0
    """Who hear of changes (`keyvalue_hearing`)."""
    copies: int = 0
    """Outside of the cluster (`keyvalue_copies`)."""
    remakes: bool = False
    """Whether a bucket is deleted and made anew (`keyvalue_anew`)."""


class Session:
    """One client: what it has seen, and what it has asked for with which key."""

    def __init__(self, load: "KvLoad", name: str, host: Client) -> None:
        self.name = name
        self.host = host
        self.random: random.Random = load.world.fork(name)
        self.tokens: dict[TopicPartition, Offset] = {}
        """What it must not be shown less than, of each partition."""
        self.at_replica: dict[tuple[int, TopicPartition], Offset] = {}
        """What each replica has shown to it."""
        self.versions: dict[Key, Offset] = {}
        """What it believes that keys have."""
        self.written = 0
        self.repeatable: list[tuple[TopicPartition, Sequence[Change], ProducerId, Offset]] = []
        """Requests with an Idempotency-Key that were answered, and how."""

    def rolls(self, chance: float) -> bool:
        return self.random.random() < chance

    def next_value(self) -> bytes:
        self.written += 1
        padding = b"." * self.random.choice((0, 0, 10, 200))
        return b'"%s/%d%s"' % (self.name.encode(), self.written, padding)

    def saw(self, place: TopicPartition, token: Offset) -> None:
        self.tokens[place] = max(self.tokens.get(place, 0), token)


class KeyedProducer(Producer):
    """Writes what buckets take: values that begin with their keys."""

    def batch(self, place: TopicPartition, values: Sequence[bytes]) -> bytes:
        now_ms = self._wall_ms()
        records = [Record(key=value.split(b"=")[0], value=value, timestamp_ms=now_ms) for value in values]
        return bytes(
            encode_batch(
                records,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self._sequences.get(place, 0),
                attributes=TRANSACTIONAL,
            )
        )


class KvLoad(ReplicatedLoad):
    """The clients of a cluster's buckets."""

    def __init__(self, world: World, pace: Pace, kv_pace: KvPace) -> None:
        super().__init__(world, pace)
        self.kv_pace = kv_pace
        self.registers = Registers()
        self.keys = [
            (TopicPartition(topic, partition_for(key, pace.partitions)), key)
            for topic in dict.fromkeys(place.topic for place in self.places)
            for key in (b"key-%d" % number for number in range(kv_pace.keys))
        ]
        self.by_place: dict[TopicPartition, list[bytes]] = {}
        for place, key in self.keys:
            self.by_place.setdefault(place, []).append(key)
        self.used = list(self.by_place)
        remade = (BUCKET,) if kv_pace.remakes else ()
        self.replicas.compacted = frozenset((*(place.topic for place in self.places), *remade))
        self.truth = KeyWatch(world, self.replicas, self.replicas.compacted, remade)
        self.remade = Remade(world, self.truth, self._making()) if remade else None
        self.watchers: list[Watcher] = []
        self.copies: list[Copier] = []
        self._plain: set[int] = set()
        """Requests without an Idempotency-Key."""

    # Asking nodes.

    async def ask(
        self, node: int, work: Callable[[Machine], Awaitable[T]], seconds: float | None = None
    ) -> T:
        """What a node answers; Down if it is not up, TimeoutError if it says nothing."""
        seconds = self.kv_pace.patience_seconds if seconds is None else seconds
        return await ask_node(self.world, node, work, seconds)

    def _any_node(self, session: Session) -> int:
        return session.random.choice(list(self.world.machines))

    # Who comes.

    def _crowd(self) -> None:
        pace = self.kv_pace
        for number in range(pace.clients):
            host = self._host(number)
            self._spawn(host, self._use(Session(self, f"client-{number}", host)))
        for number in range(pace.producers):
            host = self._host(number)
            self._spawn(host, self._produce_keyed(f"producer-{number}", host))
        for number in range(pace.transactions):
            host = self._host(-1 - number)
            self._spawn(host, self._transact_on(f"transactor-{number}", host))
        for number in range(pace.watchers):
            host = self._host(number)
            self._listen(f"watcher-{number}", host)
        for number in range(pace.copies):
            host = self._host(-1 - number)
            self._copy(f"copy-{number}", host)
        if pace.watchers or pace.copies:
            host = self._hosts[-1]
            self._spawn(host, self._use_briefly(Session(self, "brief", host)))

        if self.remade is not None:
            self._remake(self.remade)

    def _making(self) -> dict[str, Any]:
        """How a bucket is made, over HTTP."""
        return {"replication": self.pace.replication, "config": dict(self.pace.topic_configs)}

    def _remake(self, remade: Remade) -> None:
        """Let everybody come who uses the bucket that is made anew."""
        world, truth = self.world, self.truth
        first, second, third = (self._host(number) for number in range(3))
        self._stay(first, remade.remake("remaker"))
        for number, host in enumerate((first, second)):
            self._spawn(host, remade.use(f"user-{number}"))
        watcher = Watcher(
            world,
            truth,
            "watcher-anew",
            second,
            BUCKET,
            is_gone=remade.may_be_gone,
            may_be_missing=remade.may_be_missing,
        )
        copier = Copier(world, truth, "copy-anew", third, BUCKET, format="binary")
        self._stay(second, watcher.run())
        self._stay(third, copier.run())
        self.remade_by = (watcher, copier)

    def _listen(self, name: str, host: Client) -> None:
        choose = self.world.fork(f"{name} chooses")
        place, key = choose.choice(self.keys)
        prefix = choose.choice((b"", b"", key))
        watcher = Watcher(self.world, self.truth, name, host, place.topic, prefix=prefix)
        self.watchers.append(watcher)
        self._stay(host, watcher.run())

    def _copy(self, name: str, host: Client) -> None:
        choose = self.world.fork(f"{name} chooses")
        bucket, format = choose.choice(self.places).topic, choose.choice(("binary", "json"))
        copier = Copier(self.world, self.truth, name, host, bucket, format=format)
        self.copies.append(copier)
        self._stay(host, copier.run())

    def _acts(self) -> "list[tuple[float, Callable[[Session], Coroutine[Any, Any, None]]]]":
        """What a client does, and how often."""
        return [
            (0.30, self._write),
            (0.22, self._get),
            (0.18, self._get_local),
            (0.10, self._get_at_replica),
            (0.08, self._scan),
            (0.07, self._batch),
            (0.05, self._repeat),
        ]

    async def _use(self, session: Session) -> None:
        """Do one thing after the other."""
        acts = self._acts()
        while True:
            act = session.random.choices([each[1] for each in acts], [each[0] for each in acts])[0]
            try:
                await act(session)
            except (TidelogError, TimeoutError) as error:
                self._note_error(session, error)
                await asyncio.sleep(PAUSE_SECONDS * session.random.random())
            await asyncio.sleep(self.kv_pace.think_seconds * 2 * session.random.random())

    async def _use_briefly(self, session: Session) -> None:
        """Put keys and delete them for good: who hears of that late finds no trace of it."""
        topics = list(dict.fromkeys(place.topic for place in self.places))
        number = 0
        while True:
            number += 1
            key = b"brief-%d" % number
            topic = session.random.choice(topics)
            place = TopicPartition(topic, partition_for(key, self.pace.partitions))
            for value in (session.next_value(), None):
                with suppress(TidelogError, TimeoutError):
                    await self._change(session, place, [Change(key, value, None, None, None)])
                await asyncio.sleep(_BRIEF_SECONDS * session.random.random())

    def _note_error(self, session: Session, error: Exception) -> None:
        """Something did not come about."""
        self.world.trace.note(session.name, f"{type(error).__name__}: {error}")

    def _done(self, session: Session, what: str) -> None:
        self.operations += 1
        self._not_yet.pop((session.name, what), None)

    # Writing.

    def _draw_change(self, session: Session, place: TopicPartition, key: bytes) -> Change:
        expects: Offset | None = None
        if session.rolls(0.6):
            expects = session.versions.get((str(place), key), ABSENT)
        value = None if session.rolls(0.15) else session.next_value()
        ttl_ms: int | None = None
        if value is not None and session.rolls(0.15):
            ttl_ms = session.random.randint(200, self.kv_pace.ttl_ms_max)
        return Change(key, value, None, expects, ttl_ms)

    async def _write(self, session: Session) -> None:
        place, key = session.random.choice(self.keys)
        await self._change(session, place, [self._draw_change(session, place, key)])

    async def _batch(self, session: Session) -> None:
        place = session.random.choice(self.used)
        keys = self.by_place[place]
        some = session.random.sample(keys, session.random.randint(1, min(len(keys), 4)))
        changes = [self._draw_change(session, place, key) for key in some]
        await self._change(session, place, changes)

    async def _change(self, session: Session, place: TopicPartition, changes: list[Change]) -> None:
        """Ask for changes; if they have a key, at one node after the other."""
        once, tries = NO_PRODUCER, 1
        if session.rolls(self.kv_pace.once_chance):
            once, tries = once_of(f"{session.name} {self.registers.tick()}"), 4
        begun = self.registers.begin_request(
            session.name, [((str(place), c.key), c.value, c.if_version) for c in changes]
        )
        if once == NO_PRODUCER:
            self._plain.add(begun[0].request)
        is_unsure = False
        for _ in range(tries):
            try:
                written = await self._ask_write(self._any_node(session), place, changes, once)
            except (OutcomeUnknown, TimeoutError) as error:
                self.world.trace.note(session.name, f"{type(error).__name__}: {error}")
                is_unsure = True
                await asyncio.sleep(PAUSE_SECONDS * session.random.random())
            except TidelogError as error:
                self.world.trace.note(session.name, f"{type(error).__name__}: {error}")
                if not is_unsure and once == NO_PRODUCER:
                    for write in begun:
                        write.fail()
                    return
                await asyncio.sleep(PAUSE_SECONDS * session.random.random())
            else:
                self._told(session, place, begun, written)
                if once != NO_PRODUCER:
                    session.repeatable.append((place, changes, once, written.offset))
                return
        if not is_unsure:
            for write in begun:
                write.fail()

    async def _ask_write(
        self, node: int, place: TopicPartition, changes: Sequence[Change], once: ProducerId
    ) -> KvWritten:
        seconds = self.kv_pace.patience_seconds
        return await self.ask(
            node, lambda machine: _kv(machine).write(place, changes, once=once, seconds=seconds)
        )

    def _told(self, session: Session, place: TopicPartition, begun: list[Write], written: KvWritten) -> None:
        """An answer speaks for all tries: what was not done by one is done by none."""
        if written.offset >= 0:
            self.acknowledged += len(begun)
            self.replicas.acknowledged(place, written.offset + len(begun))
            session.saw(place, written.offset + len(begun))
            for number, write in enumerate(begun):
                write.ok(written.offset + number)
                gone = write.value is None
                session.versions[write.key] = ABSENT if gone else written.offset + number
            self.world.trace.note(session.name, f"{place} {written.offset} {len(begun)}")
            self._done(session, "writes")
            return
        refused = dict(written.refused)
        for number, write in enumerate(begun):
            if number in refused:
                version = ABSENT if (found := refused[number]) is None else found
                session.versions[write.key] = version
                if written.is_repeat:  # that is the version now, not when it was judged
                    write.fail()
                else:
                    write.refused(version)
            elif refused:
                write.fail()
            else:
                write.needless()
        self.world.trace.note(session.name, f"{place} refuses {sorted(refused)} of {len(begun)}")
        self._done(session, "writes")

    async def _repeat(self, session: Session) -> None:
        """Ask once more for what was done or not, perhaps long ago and at another leader."""
        if not session.repeatable:
            return
        place, changes, once, offset = session.random.choice(session.repeatable)
        written = await self._ask_write(self._any_node(session), place, changes, once)
        if written.offset != offset:
            self.world.fail(SAME_ANSWER, f"{session.name} {place}: {offset}, then {written}")
        self._done(session, "repeats")

    # Reading.

    async def _get(self, session: Session) -> None:
        place, key = session.random.choice(self.keys)
        seconds = self.kv_pace.patience_seconds
        reading = self.registers.begin_read(session.name, (str(place), key))
        got = await self.ask(
            self._any_node(session),
            lambda machine: _kv(machine).get(place, key, is_strong=True, after=0, seconds=seconds),
        )
        reading.ok(_shown(got))
        self._found(session, place, key, got)
        self._done(session, "reads")

    def _found(self, session: Session, place: TopicPartition, key: bytes, got: KvGot) -> None:
        session.saw(place, got.applied)
        session.versions[str(place), key] = _shown(got).version
        self.world.trace.note(session.name, f"{place} {key!r} {_shown(got).version} {got.applied}")

    async def _get_local(self, session: Session) -> None:
        place, key = session.random.choice(self.keys)
        after, seconds = session.tokens.get(place, 0), self.kv_pace.patience_seconds
        reading = self.registers.begin_local(session.name, (str(place), key), after)
        got = await self.ask(
            self._any_node(session),
            lambda machine: _kv(machine).get(place, key, is_strong=False, after=after, seconds=seconds),
        )
        reading.ok(_shown(got), got.applied)
        self._found(session, place, key, got)
        self._done(session, "reads")

    async def _get_at_replica(self, session: Session) -> None:
        """Ask one replica, without a token: by itself it must never show less than before."""
        place, key = session.random.choice(self.keys)
        node = self._any_node(session)
        after = session.at_replica.get((node, place), 0)
        reading = self.registers.begin_local(f"{session.name} at {node}", (str(place), key), after)
        got = await self.ask(
            node,
            lambda machine: machine.node.broker.serving.call(
                place, KvGet(key=key, is_strong=False), KvGot, seconds_max=0.5, is_repeatable=True, node=node
            ),
        )
        reading.ok(_shown(got), got.applied)
        session.at_replica[node, place] = max(after, got.applied)
        self.world.trace.note(session.name, f"{node} {place} {key!r} {_shown(got).version}")
        self._done(session, "reads")

    async def _scan(self, session: Session) -> None:
        place, is_strong = session.random.choice(self.used), session.rolls(0.5)
        after = 0 if is_strong else session.tokens.get(place, 0)
        limit, seconds = session.random.choice((2, 100)), self.kv_pace.patience_seconds
        scanning = self.registers.begin_scan(session.name, str(place), after=after, is_strong=is_strong)
        found: KvScanned = await self.ask(
            self._any_node(session),
            lambda machine: _kv(machine).scan(
                place,
                prefix=b"key-",
                beyond=None,
                limit=limit,
                is_strong=is_strong,
                after=after,
                seconds=seconds,
            ),
        )
        last = found.entries[-1].key if found.is_cut else b"\xff"
        shown = {key: NOTHING for key in sorted(self.by_place[place]) if key <= last}
        shown |= {entry.key: Shown(entry.version, entry.value) for entry in found.entries}
        scanning.ok(shown, found.applied)
        session.saw(place, found.applied)
        self._done(session, "reads")

    # Kafka's clients.

    async def _produce_keyed(self, name: str, host: Client) -> None:
        generator = self.world.fork(name)
        client = self._client(host, generator, EpochClient)
        producer_id = await self._insist(name, generator, lambda: init_producer_id(client))
        sequences: dict[TopicPartition, int] = {}
        sent = 0
        while True:
            place, key = generator.choice(self.keys)
            sent += 1
            value = None if generator.random() < 0.1 else b"%s=%s/%d" % (key, name.encode(), sent)
            record = Record(key=key, value=value, timestamp_ms=host.process.clock.wall_ms())
            batch = encode_batch(
                [record], producer_id=producer_id, producer_epoch=0, base_sequence=sequences.get(place, 0)
            )
            writing = self.registers.begin_write(name, (str(place), key), value)
            base = await self._insist(
                name,
                generator,
                lambda batch=bytes(batch), place=place: client.produce(  # type: ignore[misc]
                    place.topic, place.partition, bytearray(batch)
                ),
            )
            assert base is not None, "acks=all is answered"
            writing.ok(base)
            self.replicas.acknowledged(place, base + 1)
            sequences[place] = sequences.get(place, 0) + 1
            self.acknowledged += 1
            await asyncio.sleep(self.kv_pace.think_seconds * 4 * generator.random())

    async def _transact_on(self, name: str, host: Client) -> None:
        """Transactions, one after the other, and anew after every failure."""
        generator = self.world.fork(name)
        client = self._client(host, generator, OnceClient)
        producer = KeyedProducer(
            name,
            name,
            client,
            generator,
            bumps=generator.random() < 0.5,
            timeout_ms=1500,
            patience_seconds=3.0,
            wall_ms=host.process.clock.wall_ms,
        )
        while True:
            try:
                await producer.init()
                while not producer.is_unsure:
                    await self._transact(producer)
                    await producer.pause(self.kv_pace.think_seconds * 10)
            except TidelogError as error:
                self.world.trace.note(name, f"{type(error).__name__}: {error}")
            await producer.pause(PAUSE_SECONDS * 2)

    async def _transact(self, producer: KeyedProducer) -> None:
        label = producer.next_label()
        begun: list[Write] = []
        try:
            for number in range(producer.draw(1, 4)):
                place, key = producer.choose(self.keys)
                value = b"%s=%s/%d" % (key, label.encode(), number)
                begun.append(self.registers.begin_write(producer.name, (str(place), key), value))
                await producer.send(place, [value])
                await producer.pause(self.kv_pace.think_seconds * 4)
                if producer.rolls(self.kv_pace.nap_chance):
                    await producer.pause(4.0)
        except TidelogError:  # and it is never asked to be committed
            for write in begun:
                write.fail()
            raise
        outcome = await producer.end(commits=not producer.rolls(self.kv_pace.abort_chance))
        if outcome == "fail":
            for write in begun:
                write.fail()
        self.operations += 1

    # After healing.

    def _healed(self) -> None:
        """Keys are judged by themselves."""

    def _expected(self) -> Iterable[Hashable]:
        """What everybody does again, once nothing is broken."""
        return [
            (f"client-{number}", what)
            for number in range(self.kv_pace.clients)
            for what in ("writes", "reads")
        ]

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        world = self.world
        world.run_while(lambda: self._not_whole(sound), seconds_max, name=LIVENESS)
        self._stop()
        world.run_while(self._not_stable, seconds_max, name=LIVENESS)
        world.run_while(self._not_expired, _EXPIRY_SECONDS_MAX + seconds_max, name=LIVENESS)
        world.run_while(lambda: self._not_settled(sound), seconds_max, name=LIVENESS)
        world.run_while(self.truth.unfolded, seconds_max, name=LIVENESS)
        for watcher in self.watchers:
            watcher.is_steady = True
        for copier in self.copies:
            copier.is_steady = True
        if self.remade is not None:
            self._end_remade(self.remade, seconds_max)
        world.run_while(self._not_heard, seconds_max, name=keyvalue_hearing.ALL)
        world.run_while(self._not_copied, seconds_max, name=keyvalue_copies.ALL)
        self._finish([self._spawn(self._hosts[0], self._read_all(m.number)) for m in sound], seconds_max)
        self._judge()

    def _end_remade(self, remade: Remade, seconds_max: float) -> None:
        """Let the bucket that is there stay; its watch and its copy get everything of it."""
        remade.is_steady = True
        self.world.run_until(remade.is_whole, seconds_max, name=LIVENESS)
        watcher, copier = self.remade_by
        watcher.is_steady = copier.is_steady = True
        world, topic_id = self.world, remade.topic_id
        world.run_while(lambda: watcher.lacks(topic_id), seconds_max, name=keyvalue_hearing.ALL)
        world.run_while(lambda: copier.lacks(topic_id), seconds_max, name=keyvalue_copies.ALL)
        remade.judge()

    def _not_heard(self) -> str | None:
        return next(filter(None, (watcher.lacks() for watcher in self.watchers)), None)

    def _not_copied(self) -> str | None:
        return next(filter(None, (copier.lacks() for copier in self.copies)), None)

    def _not_expired(self) -> str | None:
        walls = [machine.clock.wall_ms() for machine in self.world.machines.values()]
        return self.truth.unexpired(min(walls) - 1000)

    async def _read_all(self, node: int) -> None:
        """Every key at one node, strongly and then locally, with all that is known."""
        name, seconds = f"reader-{node}", self.kv_pace.patience_seconds
        generator = self.world.fork(name)
        for place, key in self.keys:
            at = (str(place), key)

            async def read(place: TopicPartition = place, key: bytes = key, at: Key = at) -> Offset:
                reading = self.registers.begin_read(name, at)
                got = await self.ask(
                    node,
                    lambda machine: _kv(machine).get(place, key, is_strong=True, after=0, seconds=seconds),
                )
                reading.ok(_shown(got))
                return got.applied

            async def read_locally(
                after: Offset, place: TopicPartition = place, key: bytes = key, at: Key = at
            ) -> None:
                reading = self.registers.begin_local(name, at, after)
                got = await self.ask(
                    node,
                    lambda machine: _kv(machine).get(
                        place, key, is_strong=False, after=after, seconds=seconds
                    ),
                )
                reading.ok(_shown(got), got.applied)

            after = await self._patiently(name, generator, read)
            await self._patiently(name, generator, lambda after=after: read_locally(after))  # type: ignore[misc]

    async def _patiently(
        self, who: str, generator: random.Random, attempt: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        return await Story._insist(self, who, generator, attempt, (TidelogError, TimeoutError))

    def _judge(self) -> None:
        if any(self.truth.truth(place).is_behind for place in self.places):
            self.truth.refresh()
        self._blame(registers.check(self.registers, self.truth.log()))
        writes = self.registers.writes
        known = {(write.key, write.version) for write in writes if write.outcome == "ok"}
        unsure = {
            write.key
            for write in writes
            if write.value is None and write.outcome == "info" and write.request in self._plain
        }
        self.truth.check_expiry(known, unsure)
        self.truth.check_logs()


def _kv(machine: Machine) -> Kv:
    found: Kv = machine.node.services.kv
    return found


def _shown(got: KvGot) -> Shown:
    return NOTHING if got.entry is None else Shown(got.entry.version, got.entry.value)
