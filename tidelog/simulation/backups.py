"""Backups of a cluster under faults, and what comes back of them.

Somebody makes backups while clients write and nodes fail, the later ones on top of the first. One
is restored into new topics of the same cluster, under the same faults; in the end the last one is
restored, with its queues, into another cluster that has nothing.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| a backup has what was            | what clients were told of before a backup was begun is in it, |
|   acknowledged                   | at the offset that they were told                             |
| a backup invents nothing         | every key, record and message of it is as the cluster had it  |
|                                  | where the backup ends; nothing that was done is there again   |
| a restore is the backup          | keys, records, queues and pointers come back as they were, at |
|                                  | their offsets                                                 |
| a backup is whole                | `verify` finds no damage in any of them                       |
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.backup import creating, restoring
from tidelog.backup.checking import verify
from tidelog.backup.chunks import batches_of, read_chunk
from tidelog.backup.cluster_requests import BackupClient
from tidelog.backup.kept import load_manifests
from tidelog.backup.manifest import Manifest, PartitionBackup
from tidelog.backup.problems import Damaged, Differs
from tidelog.backup.storage import Output
from tidelog.client.http.awaiting import AsyncClient
from tidelog.client.http.core import to_json
from tidelog.client.http.errors import TidelogHTTPError
from tidelog.errors import TidelogError
from tidelog.model import QUEUES_TOPIC, Offset, TopicPartition
from tidelog.records import decode_batch
from tidelog.simulation import history
from tidelog.simulation.http_clients import http_client, shown
from tidelog.simulation.nodes import bootstrap, http_of, real_node
from tidelog.simulation.registers import NOTHING, Shown
from tidelog.simulation.world import Client, World

if TYPE_CHECKING:
    from tidelog.simulation.http_story import HttpLoad

T = TypeVar("T")

HAS: Final = "a backup has what was acknowledged"
INVENTS: Final = "a backup invents nothing"
SAME: Final = "a restore is the backup"
WHOLE: Final = "a backup is whole"

INTO: Final = "again-"
"""How the topics begin that a backup is restored into, in the same cluster."""
_PAUSE_SECONDS: Final = 0.5
_TIMEOUT_SECONDS: Final = 3.0
_CHUNK_BYTES: Final = 4000
_RECEIVE_AT_ONCE: Final = 100
_RECEIVE_SECONDS: Final = 10.0
_VISIBLE_SECONDS: Final = 3600.0
_RETURNS_SECONDS_MAX: Final = 400.0


class MemoryStorage:
    """Files of backups, in memory: a disk that never fails."""

    location = "memory"
    is_shared = False

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def exists(self) -> bool:
        return True

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(f"{folder}/"))

    def unfinished(self, folder: str) -> list[str]:
        return []

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise Damaged(f"{name} is missing")
        return self.files[name]

    def create(self, name: str) -> Output:
        return _MemoryOutput(self, name)

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    @contextmanager
    def claim(self) -> Iterator[None]:
        yield


class _MemoryOutput(Output):
    def __init__(self, storage: MemoryStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._data = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def finish(self) -> None:
        self._storage.files[self._name] = bytes(self._data)

    def abandon(self) -> None:
        self._data.clear()


@dataclass(slots=True)
class Taken:
    """One backup, and what clients had been told when it was begun and when it was there."""

    manifest: Manifest
    begun: int
    """By the count of the registers."""
    records_begun: int
    """By the count of the history."""
    published: Mapping[Offset, bytes]
    done: frozenset[Offset]
    """Messages that were acknowledged for certain before it was begun."""
    appended: Mapping[Offset, bytes]
    read: Mapping[str, Offset]
    """The message that each reader had got last, of the queue with pointers."""
    maybe_done: frozenset[Offset] = frozenset()
    """Messages that may have been acknowledged before it was there."""
    attempted: frozenset[bytes] = frozenset()
    """What anybody had asked to be published or appended."""

    def may_bring_back(self, topic: str) -> bool:
        """Whether it says of a topic that keys may be back that were deleted meanwhile."""
        return any(
            note.startswith(f"{topic}:") and "delete.retention.ms" in note for note in self.manifest.notes
        )

    def part(self, place: TopicPartition) -> PartitionBackup:
        topic = self.manifest.topic(place.topic)
        assert topic is not None, f"{place} is in every backup"
        return topic.partitions[place.partition]


class Backups:
    """Who makes backups of a cluster, and restores them."""

    def __init__(self, load: "HttpLoad") -> None:
        self._load = load
        self._world = load.world
        self.storage = MemoryStorage()
        self.taken: list[Taken] = []
        self._host: Client = load.world.client("backup")
        self._random = load.world.fork("backup")
        self._restored: Taken | None = None
        """The one that was restored into the same cluster."""

    def start(self) -> None:
        self._load._spawn(self._host, self._work())

    def not_done(self) -> str | None:
        pace = self._load.http_pace
        if len(self.taken) < len(pace.backups_at):
            return f"{len(self.taken)} backups were made"
        return "no backup was restored" if pace.restores and self._restored is None else None

    def _connect(self, addresses: str) -> BackupClient:
        return BackupClient(addresses, network=self._host.network, timeout_seconds=_TIMEOUT_SECONDS)

    def _addresses(self) -> str:
        nodes = list(self._world.machines)
        self._random.shuffle(nodes)
        return ",".join(map(bootstrap, nodes))

    async def _work(self) -> None:
        world, pace = self._world, self._load.http_pace
        for at in pace.backups_at:
            await asyncio.sleep(max(at - world.now, 0.0))
            self.taken.append(await self._insist(self._take))
            world.trace.note("backup", f"{self.taken[-1].manifest.records} records")
            if pace.restores and self._restored is None:
                await self._restore_beside(self.taken[-1])

    async def _insist(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await attempt()
            except (TidelogError, TimeoutError) as error:
                if isinstance(error, (Damaged, Differs)):
                    self._world.fail(WHOLE, str(error))
                self._world.trace.note("backup", f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS * self._random.random())

    async def _take(self) -> Taken:
        load, queues = self._load, self._load.queues
        taken = Taken(
            manifest=None,  # type: ignore[arg-type]  # it comes
            begun=load.registers.tick(),
            records_begun=load.history.tick(),
            published=dict(queues.published),
            done=frozenset(queues.acked),
            appended=dict(queues.appended),
            read=queues.pointers(),
        )
        made = await creating.create(
            self._addresses(),
            self.storage,
            creating.Wish(chunk_bytes=_CHUNK_BYTES),
            now_ms=self._host.process.clock.wall_ms,
            connect=self._connect,
        )
        taken.manifest = made.manifest
        taken.maybe_done = frozenset(queues.maybe_acked)
        taken.attempted = frozenset(queues.attempted)
        return taken

    async def _restore_beside(self, taken: Taken) -> None:
        """Into topics of other names, while everything goes on; from where it was cut off."""
        resume = False

        async def attempt() -> None:
            nonlocal resume
            resumes, resume = resume, True
            await restoring.restore(
                self._addresses(),
                self.storage,
                taken.manifest,
                restoring.Wish(prefix=INTO, resume=resumes),
                connect=self._connect,
            )

        await self._insist(attempt)
        self._restored = taken
        self._world.trace.note("backup", "it is restored")  # its id is drawn by chance

    # After healing.

    def judge(self, seconds_max: float) -> None:
        """Hold every backup against what was told, and restore the last one elsewhere."""
        manifests, damaged = load_manifests(self.storage)
        for error in damaged:
            self._world.fail(WHOLE, str(error))
        for one in verify(self.storage, manifests, deep=True):
            if one.damage:
                self._world.fail(WHOLE, f"{one.manifest.id}: {one.damage}")
        for taken in self.taken:
            self._judge_keys(taken)
            self._judge_records(taken)
        if self._restored is not None:
            self._world.do(self._compare_beside(self._restored), seconds_max=seconds_max)
        if self.taken:
            self._judge_elsewhere(self.taken[-1], seconds_max)

    def _records(self, part: PartitionBackup) -> Iterator[tuple[Offset, bytes | None, Any]]:
        for chunk in part.chunks:
            for header, batch in batches_of(read_chunk(self.storage, chunk), chunk):
                if not header.is_control:
                    for record in decode_batch(batch):
                        if part.start <= record.offset < part.end:
                            yield record.offset, record.key, record.value

    def _keys(self, taken: Taken, place: TopicPartition) -> dict[bytes, tuple[Offset, bytes]]:
        """What every key is by a backup: the fold of its records."""
        found: dict[bytes, tuple[Offset, bytes]] = {}
        for offset, key, value in self._records(taken.part(place)):
            assert key is not None
            if value is None:
                found.pop(key, None)
            else:
                found[key] = (offset, value)
        return found

    def _judge_keys(self, taken: Taken) -> None:
        load = self._load
        for place in load.places:
            end = taken.part(place).end
            found, wanted = self._keys(taken, place), load.truth.truth(place).at(end)
            if taken.may_bring_back(place.topic):
                found = {key: what for key, what in found.items() if key in wanted}
            if found != wanted:
                wrong = [
                    f"{key!r} is {found.get(key)}, not {wanted.get(key)}"
                    for key in sorted(found.keys() | wanted.keys())
                    if found.get(key) != wanted.get(key)
                ]
                self._world.fail(INVENTS, f"{taken.manifest.id} {place} to {end}: {wrong}")
        if load.kv_pace.transactions:
            return  # what stands behind an open one is not in it (docs/backup.md)
        for write in load.registers.writes:
            if write.outcome == "ok" and write.completed < taken.begun:
                place = _place(write.key[0])
                if write.version >= (end := taken.part(place).end):
                    self._world.fail(HAS, f"{taken.manifest.id} ends at {end} of {place}: {write}")

    def _judge_records(self, taken: Taken) -> None:
        load = self._load
        found = {
            str(place): {offset: value or b"" for offset, _, value in self._records(taken.part(place))}
            for place in load.streams
        }
        there: dict[str, dict[Offset, bytes]] = {str(place): {} for place in load.streams}
        for operation in load.history:
            if isinstance(operation, history.Poll):
                for read in operation.reads:
                    there[read.partition].update(zip(read.offsets, read.values, strict=True))
            is_early = operation.type == "ok" and operation.completed < taken.records_begun
            if isinstance(operation, history.Send) and is_early:
                assert operation.offset is not None, "a client is told where a record stands"
                told = found[operation.partition].get(operation.offset)
                if told != operation.values[0]:
                    self._world.fail(HAS, f"{taken.manifest.id}: {told!r}, not {operation}")
        for name, records in found.items():
            for offset, value in records.items():
                if there[name].get(offset) != value:
                    self._world.fail(
                        INVENTS,
                        f"{taken.manifest.id} {name} {offset}: {value!r}, and the cluster has "
                        f"{there[name].get(offset)!r}",
                    )

    async def _compare_beside(self, taken: Taken) -> None:
        """What the new topics of the same cluster hold, by HTTP."""
        http = http_client(self._world, self._host, self._random, timeout=_TIMEOUT_SECONDS)
        await self._compare(self._world, http, taken, INTO)

    async def _compare(self, world: World, http: AsyncClient, taken: Taken, prefix: str) -> None:
        load = self._load
        for place, key in load.keys:
            wanted = Shown(*self._keys(taken, place).get(key, NOTHING))
            bucket = http.kv(prefix + place.topic)
            found = shown(await _patiently(partial(bucket.get, key.decode())))
            is_over = prefix and found == NOTHING and self._expires(place, key, wanted.version)
            if found != wanted and not is_over:
                world.fail(SAME, f"{prefix}{place} {key!r} is {found}, not {wanted}")
        for place in load.streams:
            part = taken.part(place)
            offset = part.start
            read: dict[Offset, bytes] = {}
            while offset < part.end:
                topic = http.topic(prefix + place.topic)
                page = await _patiently(partial(topic.read, place.partition, offset, encoding="text"))
                read |= {one.offset: str(one.value).encode() for one in page.records}
                if page.next_offset == offset:
                    world.fail(SAME, f"{prefix}{place} ends at {offset}, not at {part.end}")
                offset = page.next_offset
            wanted_records = {at: value for at, _, value in self._records(part)}
            if read != wanted_records or offset != part.end:
                world.fail(SAME, f"{prefix}{place}: {read}, not {wanted_records}")

    def _expires(self, place: TopicPartition, key: bytes, version: Offset) -> bool:
        """Whether a version of a key is one for a while."""
        return any(
            one.version == version and one.expires_at_ms is not None
            for one in self._load.truth.truth(place).keys.get(key, ())
        )

    # Another cluster.

    def _judge_elsewhere(self, taken: Taken, seconds_max: float) -> None:
        """Restore everything into a cluster of one node, which nothing befalls."""
        outer = self._world
        with World(
            f"{outer.seed} elsewhere",
            nodes=1,
            replay=outer._replay,
            node_factory=lambda host, number: real_node(
                host, number, http=http_of(number), **self._load.elsewhere
            ),
        ) as world:
            world.start()
            host = world.client("story")
            connect = partial(BackupClient, network=host.network, timeout_seconds=_TIMEOUT_SECONDS)

            async def restore() -> None:
                try:
                    await restoring.restore(
                        bootstrap(1), self.storage, taken.manifest, restoring.Wish(), connect=connect
                    )
                except TidelogError as error:
                    world.fail(SAME, f"{taken.manifest.id} cannot be restored: {error}")
                http = http_client(world, host, world.fork("http"), nodes=[1], timeout=_TIMEOUT_SECONDS)
                await self._compare(world, http, taken, "")
                if taken.manifest.topic(QUEUES_TOPIC) is not None:
                    await self._compare_queue(world, http, taken)
                    await self._compare_pointers(world, http, taken)
                elif taken.published or taken.appended:
                    world.fail(HAS, f"{taken.manifest.id} has no queues")

            world.do(restore(), seconds_max=seconds_max + 2 * _RETURNS_SECONDS_MAX)

    async def _compare_queue(self, world: World, http: AsyncClient, taken: Taken) -> None:
        """Everything that is there is given out, once all who had something are late."""
        given: dict[Offset, bytes] = {}
        must = taken.published.keys() - taken.maybe_done
        began = world.now
        names = await http.queues()
        if self._load.queues.name not in names:
            if must:
                world.fail(HAS, f"{taken.manifest.id} has no queue, and had {sorted(must)}")
            return
        while True:
            got = []
            for lane in ("", ".dead"):
                queue = http.queue(self._load.queues.name + lane)
                found = await queue.receive(_RECEIVE_AT_ONCE, visibility=_VISIBLE_SECONDS)
                if found:  # of an ordered key the next one comes when this one is done
                    await queue.ack(*(message.receipt for message in found))
                got += found
            for message in got:
                value = to_json(message.value)
                if message.id in taken.done:
                    world.fail(INVENTS, f"message {message.id} was done before the backup began")
                if value not in taken.attempted:
                    world.fail(INVENTS, f"message {message.id}: nobody has published {value!r}")
                if self._load.queues.published.get(message.id, value) != value:
                    world.fail(SAME, f"message {message.id} is {value!r}")
                given[message.id] = value
            left = await http.queue(self._load.queues.name).describe()
            if not left["depth"] + left["dead"] or world.now - began > _RETURNS_SECONDS_MAX:
                break
            if not got:
                await asyncio.sleep(_RECEIVE_SECONDS)
        if missing := must - given.keys():
            world.fail(HAS, f"{taken.manifest.id} lacks messages {sorted(missing)}: {left}")

    async def _compare_pointers(self, world: World, http: AsyncClient, taken: Taken) -> None:
        queue_id = self._load.queues.queue_id
        found: dict[Offset, bytes] = {}
        async for message in http.pointer_queues.messages():
            if message.queue_id == queue_id:
                found[message.id] = to_json(message.value)
        for offset, value in taken.appended.items():
            if found.get(offset) != value:
                world.fail(HAS, f"{offset} of queue {queue_id}: {found.get(offset)!r}, not {value!r}")
        for offset, value in found.items():
            if value not in taken.attempted:
                world.fail(INVENTS, f"{offset} of queue {queue_id}: nobody has appended {value!r}")
        pointers = {}
        async for one in http.pointer_queues.pointers():
            if one.queue_id == queue_id:
                pointers[one.client_id] = one.message_id
        for client, offset in taken.read.items():
            if pointers.get(client, -1) < offset:
                world.fail(HAS, f"{client} had read {offset}, and is at {pointers.get(client)}")


def _place(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


async def _patiently(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    while True:
        try:
            return await ask()
        except TidelogHTTPError:
            await asyncio.sleep(_PAUSE_SECONDS)
