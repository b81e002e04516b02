"""A cluster's metadata under faults: what administrators do to it, and what must then hold.

Real clients make, change and delete topics through whichever node answers. Every topic has one
client that knows it, so that the client knows what the topic must look like at the end.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| one leader in a quorum's epoch   | no two processes ever lead the quorum in one epoch            |
| one durable vote in an epoch     | of each disk, over all lives of its node                      |
| the newest voters count          | a member decides with the newest set that its log names       |
| the quorum's epoch never falls   | within a life of a node                                       |
| what is decided stays            | within a life the quorum's watermark never falls              |
| metadata logs agree              | what two nodes apply at an offset is the same, byte for byte  |
| equal logs, equal images         | snapshot or not: at one offset there is one image             |
| a leader lacks nothing           | who leads the quorum holds all that was ever decided          |
| one leader in a partition's epoch| no two processes ever lead a partition in one epoch           |
| a fenced broker leads nothing    | and is in sync only where it is the last; if it holds little  |
| broker epochs rise               | with every registration, of any broker                        |
| what is written makes sense      | no coordinator refuses to serve what nodes have written       |
| acknowledged changes stay        | at the end every topic is as its client was told              |
| liveness                         | after healing there is a leader, everyone is unfenced, agrees |
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.broker.broker import Broker
from tidelog.broker.log_reader import NO_SENSE
from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.client.cluster import Refused
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.quorum import Quorum
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import LeaderChanged, MetadataRecord, VotersChanged, encode
from tidelog.controller.snapshot import encode_snapshot
from tidelog.controller.worklist import CHANGED
from tidelog.errors import TidelogError
from tidelog.model import INTERNAL_TOPICS, Offset
from tidelog.raft.voters import ReplicaKey, VoterSet
from tidelog.simulation.during import TOPIC as PROBED
from tidelog.simulation.held_answer_watch import HeldAnswerWatch
from tidelog.simulation.lease_watch import LeaseWatch
from tidelog.simulation.machine import Machine
from tidelog.simulation.nodes import OWN
from tidelog.simulation.story import LIVENESS, OneTry, Story
from tidelog.simulation.world import Client, World

T = TypeVar("T")

ONE_VOTE: Final = "one durable vote in an epoch"
VOTERS: Final = "the newest voters count"
ONE_LEADER: Final = "one leader in a quorum's epoch"
EPOCH: Final = "the quorum's epoch never falls"
DECIDED: Final = "what is decided stays"
AGREE: Final = "metadata logs agree"
IMAGES: Final = "equal logs, equal images"
WHOLE: Final = "a leader lacks nothing"
PARTITION_LEADER: Final = "one leader in a partition's epoch"
FENCED: Final = "a fenced broker leads nothing"
BROKER_EPOCHS: Final = "broker epochs rise"
SENSE: Final = "what is written makes sense"
ACKNOWLEDGED: Final = "acknowledged changes stay"

_CHECK_EVERY_EVENTS: Final = 8
_PARTITIONS_EVERY_EVENTS: Final = 64
_PAUSE_SECONDS: Final = 0.3


@dataclass(slots=True)
class _Life:
    """What was last seen of one process."""

    number: int
    quorum: Quorum
    metadata: Metadata
    seen_at: tuple[int, int] = (-1, -1)
    """After which event of the process, and after how many decisions, it was last looked at."""
    epoch: int = 0
    watermark: Offset = 0
    voters_seen: tuple[int, Offset, Offset] | None = None
    """With which set, log and image the voters were last looked at."""


class QuorumWatch:
    """Looks at every node of a world, and remembers what was ever seen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives: dict[int, _Life] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._partition_leaders: dict[tuple[Any, int, int], tuple[int, int]] = {}
        self._decided: dict[int, Offset] = {}
        """How far the log was decided, as nodes in each epoch knew: in that epoch or before it."""
        self._decisions = 0
        """How often that has changed."""
        self._applied: dict[Offset, tuple[Offset, bytes]] = {}
        self._images: dict[Offset, bytes] = {}
        self._broker_epochs: dict[int, int] = {}
        LeaseWatch(world)
        HeldAnswerWatch(world)
        world.invariant("the quorum", self._check, every=_CHECK_EVERY_EVENTS)
        world.invariant("partitions", self._check_partitions, every=_PARTITIONS_EVERY_EVENTS)

    def _fail(self, name: str, problem: str) -> None:
        self._world.fail(name, problem)

    def _check(self) -> str | None:
        for machine in self._world.machines.values():
            process = machine.process
            if process is None:
                continue
            life = self._lives.get(machine.number)
            if life is None or life.number != machine.lives:
                quorum = quorum_of(machine)
                if quorum is None:
                    continue
                life = self._lives[machine.number] = _Life(
                    machine.lives, quorum, machine.node.broker.metadata
                )
                self._watch(machine)
            seen_at = (process.ran_at, self._decisions)
            if seen_at != life.seen_at:
                self._check_member(machine, life)
                life.seen_at = seen_at
        return None

    def _check_member(self, machine: Machine, life: _Life) -> None:
        quorum = life.quorum
        raft, log_end = quorum.raft, quorum.log.end
        epoch, watermark = raft.epoch, raft.high_watermark
        if epoch < life.epoch:
            self._fail(EPOCH, f"{machine.name}: {epoch} after {life.epoch}")
        life.epoch = epoch
        # A full disk may have cut it; what was applied stays applied.
        if watermark < life.watermark and watermark < log_end:
            self._fail(DECIDED, f"{machine.name}: {watermark} after {life.watermark}")
        life.watermark = watermark
        if watermark > self._decided.get(epoch, -1):
            self._decided[epoch] = watermark
            self._decisions += 1
        if quorum.has_won:
            me = (machine.number, machine.lives)
            other = self._leaders.setdefault(epoch, me)
            if other != me:
                self._fail(ONE_LEADER, f"epoch {epoch}: (node, life) {other} and {me}")
            if quorum.leads:
                # One that was deposed, and has not heard of it, may lack what the next one decided.
                decided = max(end for each, end in self._decided.items() if each <= epoch)
                if log_end < decided:
                    self._fail(WHOLE, f"{machine.name} ends at {log_end}, {decided} was decided")
        state = quorum.state
        if state.voted is not None:
            voted = self._votes.setdefault((quorum.me.key, state.epoch), state.voted)
            if voted != state.voted:
                self._fail(ONE_VOTE, f"{quorum.me.key} in {state.epoch}: {voted}, {state.voted}")
        self._check_voters(machine, quorum, life)

    def _check_voters(self, machine: Machine, quorum: Quorum, life: _Life) -> None:
        metadata, voters = life.metadata, quorum.raft.voters
        seen = (id(voters), quorum.log.end, metadata.applied)
        if seen == life.voters_seen or not quorum.is_idle:
            return
        life.voters_seen = seen
        decided = metadata.image.voters
        named = [
            record.voters
            for entry in quorum.log.waiting
            for record in entry.records
            if isinstance(record, LeaderChanged | VotersChanged)
        ]
        newest = VoterSet(named[-1]) if named else decided
        if len(newest) and voters != newest:
            self._fail(VOTERS, f"{machine.name}: {voters} decide, its log names {newest}")

    def _watch(self, machine: Machine) -> None:
        """Hear of all that a process applies from now on."""
        metadata = machine.node.broker.metadata
        last = metadata.applied

        def heard(records: Sequence[MetadataRecord]) -> None:
            nonlocal last
            end = metadata.applied
            if records:
                self._compare_records(machine, last, end, records)
            self._compare_image(machine, end, metadata.image)
            last = end

        metadata.on_applied(heard)
        self._compare_image(machine, last, metadata.image)

    def _compare_records(
        self, machine: Machine, start: Offset, end: Offset, records: Sequence[MetadataRecord]
    ) -> None:
        content = b"".join(map(encode, records))
        before = self._applied.setdefault(start, (end, content))
        if before != (end, content):
            self._world.find(
                AGREE, f"{machine.name} has {list(records)} at {start}..{end}, another had others"
            )

    def _compare_image(self, machine: Machine, end: Offset, image: ClusterImage) -> None:
        digest = blake2b(encode_snapshot(image), digest_size=16).digest()
        if end in self._images:
            if self._images[end] != digest:
                self._world.find(IMAGES, f"{machine.name} at {end}: {image!r} is another")
            return
        self._images[end] = digest
        if (problem := self._look_at(image)) is not None:
            self._world.find(*problem)

    def _look_at(self, image: ClusterImage) -> tuple[str, str] | None:
        for node, broker in image.brokers.items():
            if broker.broker_epoch < self._broker_epochs.get(node, 0):
                # An image of an earlier offset, of a node that lags behind.
                continue
            self._broker_epochs[node] = broker.broker_epoch
        # Who holds more than one batch can change leaves in several.
        gone = {n for n, held in image.held.items() if len(held) <= CHANGED} - {
            n for n in image.held if image.is_alive(n)
        }
        for place in image.places.values():
            state = place.partition
            fenced = [n for n in sorted(state.in_sync) if n in gone]
            if state.leader in gone:
                return FENCED, f"{place.name} is led by {state.leader}"
            if fenced and len(state.in_sync) > 1:
                return FENCED, f"{place.name}: {fenced} are in sync of {sorted(state.in_sync)}"
        epochs = [broker.broker_epoch for broker in image.brokers.values()]
        if len(set(epochs)) != len(epochs):
            return BROKER_EPOCHS, f"two brokers share one: {sorted(epochs)}"
        return None

    def _check_partitions(self) -> str | None:
        for machine in self._world.machines.values():
            if not machine.is_up or machine.is_damaged:
                continue
            me = (machine.number, machine.lives)
            for why in machine.node.broker.unserved.values():
                if NO_SENSE in why:
                    self._fail(SENSE, f"{machine.name}: {why}")
            for partition in machine.node.broker.partitions():
                if partition.leader is not None:
                    at = (partition.topic_id, partition.name.partition, partition.leader.epoch)
                    other = self._partition_leaders.setdefault(at, me)
                    if other != me:
                        self._fail(PARTITION_LEADER, f"{at}: (node, life) {other} and {me}")
        return None


def quorum_of(machine: Machine) -> Quorum | None:
    """The quorum's driver of a process that has come so far."""
    broker: Broker | None = getattr(machine.node, "broker", None)
    member = getattr(broker, "member", None)
    quorum: Quorum | None = getattr(member, "quorum", None)
    return quorum if quorum is not None and hasattr(quorum, "raft") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPace:
    """How the administrators behave."""

    clients: int = 4
    think_seconds: float = 0.02
    topics_each_max: int = 5
    timeout_seconds: float = 5.0


@dataclass(slots=True)
class _Topic:
    """What its client knows of a topic."""

    exists: bool | None = None
    """None while that is not known: asked for, and not answered."""
    partitions: set[int] = field(default_factory=set)
    """How many there may be; more than one while a change is not answered."""
    retention: set[str | None] = field(default_factory=lambda: {None})
    """What it may be: what was answered last, and what was asked for and never answered."""
    retention_told: str | None = None


class _OneTry(OneTry, AdminClient):
    """Asks once. Of what was sent twice, the first may take effect long after the second."""


class QuorumLoad(Story):
    """Administrators at work on one cluster."""

    def __init__(self, world: World, pace: AdminPace) -> None:
        super().__init__(world, timeout_seconds=pace.timeout_seconds)
        self.pace = pace
        self.watch = QuorumWatch(world)
        self.topics: dict[str, _Topic] = {}
        self._names = 0

    def start(self) -> None:
        for number in range(self.pace.clients):
            host = self.world.client(f"client-{number + 1}")
            self._spawn(host, self._administrate(number, host))

    # What they do.

    async def _administrate(self, number: int, host: Client) -> None:
        generator = self.world.fork(f"admin {number}")
        mine: list[str] = []
        while True:
            client = self._client(host, generator, _OneTry)
            try:
                for _ in range(generator.randint(1, 20)):
                    await self._one(client, generator, mine)
                    self._not_yet.pop(number, None)
                    await asyncio.sleep(self.pace.think_seconds * 2 * generator.random())
            except TidelogError as error:
                self.world.trace.note(host.name, f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS * generator.random())
            finally:
                client.close()

    async def _one(self, client: AdminClient, generator: random.Random, mine: list[str]) -> None:
        roll = generator.random()
        if not mine or (roll < 0.2 and len(mine) < self.pace.topics_each_max):
            await self._create(client, generator, mine)
        elif roll < 0.3:
            await self._delete(client, generator.choice(mine), mine)
        elif roll < 0.45:
            await self._grow(client, generator.choice(mine))
        elif roll < 0.97:
            await self._configure(client, generator, generator.choice(mine))
        else:
            await client.topics()
            self.operations += 1

    async def _create(self, client: AdminClient, generator: random.Random, mine: list[str]) -> None:
        self._names += 1
        name = f"tide-{self._names}"
        partitions = generator.randint(1, 3)
        topic = self.topics[name] = _Topic(partitions={partitions})
        mine.append(name)
        replication = generator.choice((-1, 1))
        await self._ask(
            partial(client.create_topic, name, partitions=partitions, replication=replication),
            fine=ErrorCode.topic_already_exists,
        )
        topic.exists = True

    async def _delete(self, client: AdminClient, name: str, mine: list[str]) -> None:
        topic = self.topics[name]
        existed, topic.exists = topic.exists, None
        mine.remove(name)
        await self._ask(partial(client.delete_topic, name), fine=ErrorCode.unknown_topic_or_partition)
        if existed:  # else its creation, never answered, may come after all
            topic.exists = False

    async def _grow(self, client: AdminClient, name: str) -> None:
        topic = self.topics[name]
        if topic.exists is not True or len(topic.partitions) > 1:
            return  # what it has is not known
        count = min(topic.partitions) + 1
        topic.partitions.add(count)
        await self._ask(partial(client.create_partitions, name, count), fine=ErrorCode.invalid_partitions)
        topic.partitions = {count}

    async def _configure(self, client: AdminClient, generator: random.Random, name: str) -> None:
        topic = self.topics[name]
        if topic.exists is not True:
            return
        value = str(generator.randint(10**6, 10**9))
        unanswered = topic.retention - {topic.retention_told}  # may take effect at any time
        topic.retention.add(value)
        await self._ask(
            partial(
                client.alter_configs, Resource.TOPIC, name, [ConfigChange(name="retention.ms", value=value)]
            )
        )
        topic.retention = {value, *unanswered}
        topic.retention_told = value

    async def _ask(
        self, attempt: Callable[[], Coroutine[Any, Any, Any]], *, fine: ErrorCode | None = None
    ) -> None:
        """Once; `fine` is the refusal of what an earlier try has done already."""
        try:
            await attempt()
        except Refused as error:
            if error.code != fine:
                raise
        self.operations += 1
        self.acknowledged += 1

    # After healing.

    def _expected(self) -> Iterable[Hashable]:
        return range(self.pace.clients)

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        for task in self._tasks:
            task.cancel()
        self.world.run_until(lambda: self._is_settled(sound), seconds_max, name=LIVENESS)
        self.world.check_now()
        for machine in sound:
            self._compare(machine)

    def _is_settled(self, sound: list[Machine]) -> bool:
        if not self.world.all_up(sound):
            return False
        everyone = self.world.machines.values()
        if not any((quorum := quorum_of(m)) is not None and quorum.leads for m in everyone):
            return False
        images = [machine.node.broker.image for machine in sound]
        ends = {machine.node.broker.metadata.applied for machine in sound}
        numbers = [machine.number for machine in sound]
        return len(ends) == 1 and all(image.is_alive(n) for image in images for n in numbers)

    def _compare(self, machine: Machine) -> None:
        known = machine.node.broker.image.topics
        for name, topic in self.topics.items():
            found = known.get(name)
            if topic.exists is not None and topic.exists != (found is not None):
                told = "exists" if topic.exists else "is deleted"
                self.world.fail(ACKNOWLEDGED, f"{machine.name}: {name} {told}, as was answered")
            if found is None or topic.exists is not True:
                continue
            if len(found.partitions) not in topic.partitions:
                self.world.fail(
                    ACKNOWLEDGED, f"{name} has {len(found.partitions)} partitions, not {topic.partitions}"
                )
            if found.config.get("retention.ms") not in topic.retention:
                self.world.fail(ACKNOWLEDGED, f"{name} has {found.config}, not one of {topic.retention}")
        others = {*self.topics, *INTERNAL_TOPICS, PROBED}
        strangers = [n for n in known if n not in others and not n.startswith(OWN)]
        if strangers:
            self.world.fail(ACKNOWLEDGED, f"nobody asked for {strangers}")
