"""A backup is written into a cluster, where nothing of the same name is.

Rule 1: what is there already is not touched: a topic that exists is refused, unless a restore of
        this backup is gone on with. Such a topic is known by how it is held, and what is there is
        compared with the backup, too. One that was let go is left as it is: programs may use it.
Rule 2: until everything is compared nothing is deleted or compacted: retention of a topic whose
        records are old would be quicker. The topic's own settings are the last that is restored.
Rule 3: a log ends where it ended, and begins where it began: groups that had read everything have
        read everything.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.backup.batches import without_holes
from tidelog.backup.chunks import batches_of, read_chunk
from tidelog.backup.cluster_requests import BackupClient, Connect
from tidelog.backup.comparing import Comparison
from tidelog.backup.existing import HOLD, already_there, is_unused, look_at_begun, other_partitions
from tidelog.backup.manifest import GroupBackup, GroupOffset, Manifest, PartitionBackup, TopicBackup
from tidelog.backup.problems import BackupError, Differs
from tidelog.backup.running import in_thread, run_lanes
from tidelog.backup.storage import Storage
from tidelog.client.admin import ConfigChange, Resource
from tidelog.client.kafka import EARLIEST, LATEST
from tidelog.client.slices import Missing, SliceReader
from tidelog.model import QUEUES_TOPIC, Offset, topic_name_problem
from tidelog.records import BatchHeader, Buffer

LANES: Final = 4
TRIES: Final = 3
"""How often what may be deleted meanwhile is compared anew."""
REQUEST_BYTES: Final = 1024 * 1024
"""What a broker is given at once, unless one batch is larger."""
MIN_IN_SYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to restore, and under which names."""

    topics: tuple[str, ...] = ()
    """All, if none are named; then the offsets of all groups, too."""
    prefix: str = ""
    """What the names of topics and groups get before them."""
    resume: bool = False
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic of the backup, and what becomes of it."""

    source: TopicBackup
    name: str
    replication: int
    configs: Mapping[str, str]
    exists: bool
    is_let_go: bool = False
    """It was restored and compared, and has its own settings again: the cluster goes on with it."""
    may_lack: bool = False
    """Whether its log is compacted while it is restored: it was let go, or is the cluster's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a restore would do."""

    manifest: Manifest
    targets: tuple[Target, ...]
    groups: tuple[GroupBackup, ...]
    notes: tuple[str, ...]

    @property
    def records(self) -> int:
        return sum(chunk.records for target in self.targets for chunk in target.source.chunks)

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for target in self.targets for chunk in target.source.chunks)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a restore has come; each byte is written, and if that is wished, read again."""

    stage: str = "restoring"
    bytes: int = 0
    bytes_total: int = 0


@dataclass(slots=True, kw_only=True)
class Restored:
    plan: RestorePlan
    seconds: float = 0.0
    verified_records: int | None = None
    compacted_records: int = 0
    """Of what the cluster compacted meanwhile, how much it has no more."""
    ids: dict[str, UUID] = field(default_factory=dict)


async def plan_restore(client: BackupClient, manifest: Manifest, wish: Wish) -> RestorePlan:
    """What would be done; BackupError says why it cannot be."""
    notes: list[str] = []
    wanted = _wanted(manifest, wish, notes)
    there = {topic.name: topic for topic in await client.topics()}
    brokers = len((await client.cluster()).brokers)
    targets = []
    for topic in wanted:
        name = topic.name if topic.is_internal else wish.prefix + topic.name
        if problem := topic_name_problem(name):
            raise BackupError(f"--into {wish.prefix}: {problem}")
        found = there.get(name)
        is_let_go, may_lack = False, topic.is_internal
        if found is not None:
            count, needed = len(found.partitions), len(topic.partitions)
            if count != needed:
                raise BackupError(other_partitions(topic, name, count, needed))
            if not wish.resume and not await is_unused(client, name, topic):
                raise BackupError(already_there(topic, name))
            if wish.resume and not topic.is_internal:
                begun = await look_at_begun(client, name, topic)
                is_let_go, may_lack = begun.is_let_go, begun.may_lack
            if is_let_go:
                notes.append(
                    f"{name} was restored and let go: what it has of the backup is compared, and "
                    "the topic and groups' offsets in it are left as they are"
                )
        replication = min(topic.replication, brokers)
        configs = dict(topic.configs)
        if replication < topic.replication:
            notes.append(
                f"{name} gets {replication} replicas instead of {topic.replication}: there are "
                f"{brokers} brokers"
            )
            if int(configs.get(MIN_IN_SYNC, "1")) > replication:
                configs[MIN_IN_SYNC] = str(replication)
                notes.append(f"{name}: {MIN_IN_SYNC} is {replication}, since more cannot be")
        targets.append(
            Target(
                source=topic,
                name=name,
                replication=replication,
                configs=configs,
                exists=found is not None,
                is_let_go=is_let_go,
                may_lack=may_lack,
            )
        )
    groups = tuple(_group_for(one, targets, wish.prefix, notes) for one in manifest.groups)
    return RestorePlan(
        manifest=manifest,
        targets=tuple(targets),
        groups=tuple(one for one in groups if one.offsets),
        notes=tuple(notes),
    )


def _wanted(manifest: Manifest, wish: Wish, notes: list[str]) -> list[TopicBackup]:
    for name in wish.topics:
        if manifest.topic(name) is None:
            raise BackupError(f"the backup {manifest.id} has no topic {name!r}")
    wanted = [one for one in manifest.topics if not wish.topics or one.name in wish.topics]
    if wish.prefix and any(one.is_internal for one in wanted):
        if QUEUES_TOPIC in wish.topics:
            raise BackupError("queues have no other name; restore them without --into")
        notes.append("queues are left out: they can be restored under their own names only")
        wanted = [one for one in wanted if not one.is_internal]
    return wanted


def _group_for(group: GroupBackup, targets: Sequence[Target], prefix: str, notes: list[str]) -> GroupBackup:
    """A group's offsets of topics that are restored, none beyond their ends."""
    names = {target.source.name: target for target in targets}
    offsets = []
    for one in group.offsets:
        target = names.get(one.topic)
        if target is None or target.is_let_go or one.partition >= len(target.source.partitions):
            continue
        part = target.source.partitions[one.partition]
        offset = min(one.offset, part.end)
        if offset < one.offset:
            notes.append(
                f"group {group.group} had read {target.name}-{one.partition} to offset "
                f"{one.offset}, of which {part.end} and later were not committed for good; it goes "
                f"on at {offset}"
            )
        offsets.append(
            GroupOffset(topic=target.name, partition=one.partition, offset=offset, metadata=one.metadata)
        )
    return GroupBackup(group=prefix + group.group, offsets=tuple(offsets))


async def restore(
    bootstrap: str,
    storage: Storage,
    manifest: Manifest,
    wish: Wish,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    connect: Connect = BackupClient,
) -> Restored:
    """Write a backup into a cluster, and compare what that has then."""
    began = time.monotonic()
    async with connect(bootstrap) as client:
        plan = await plan_restore(client, manifest, wish)
        done = Restored(plan=plan)
        work = _Work(partial(connect, bootstrap), storage, done, on_progress)
        if wish.resume:
            await work.compare_begun()
        for target in plan.targets:
            done.ids[target.name] = await _make_topic(client, target)
        await work.write(is_resumed=wish.resume)
        for group in plan.groups:
            await client.restore_group(group)
        if wish.verify:
            await work.compare()
            await _compare_groups(client, plan.groups)
        for target in plan.targets:
            await _let_go(client, target)
    done.seconds = time.monotonic() - began
    return done


async def _make_topic(client: BackupClient, target: Target) -> UUID:
    """The topic's id; it is made if it is not there, and held until it is compared."""
    held = {} if target.source.is_internal else {**target.configs, **HOLD}
    if not target.exists:
        info = await client.create_topic(
            target.name,
            partitions=len(target.source.partitions),
            replication=target.replication,
            configs=held,
        )
    else:
        if held and not target.is_let_go:
            await client.alter_configs(
                Resource.TOPIC,
                target.name,
                [ConfigChange(name=name, value=value) for name, value in HOLD.items()],
            )
        info = await client.topic(target.name)
    if info.id is None:
        raise BackupError("the brokers do not tell topics' ids; they are too old")
    return info.id


async def _let_go(client: BackupClient, target: Target) -> None:
    """Give a topic the settings that it had."""
    if not (target.source.is_internal or target.is_let_go):
        changes = [ConfigChange(name=name, value=target.configs.get(name)) for name in HOLD]
        await client.alter_configs(Resource.TOPIC, target.name, changes)


async def _compare_groups(client: BackupClient, groups: Sequence[GroupBackup]) -> None:
    for group in groups:
        there = {
            (place.topic, place.partition): (committed.offset, committed.metadata)
            for place, committed in (await client.group_offsets(group.group)).items()
        }
        for one in group.offsets:
            if there.get((one.topic, one.partition)) != (one.offset, one.metadata):
                raise Differs(
                    f"group {group.group} is not at offset {one.offset} of {one.topic}-{one.partition}"
                )


class _Work:
    """Writes and reads partitions, several at a time."""

    def __init__(
        self,
        connect: Callable[[], BackupClient],
        storage: Storage,
        done: Restored,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._connect = connect
        self._storage = storage
        self._done = done
        self._on_progress = on_progress

    async def write(self, *, is_resumed: bool) -> None:
        progress = Progress(bytes_total=self._done.plan.bytes)

        async def one(client: BackupClient, target: Target, part: PartitionBackup) -> None:
            if not target.is_let_go:
                await self._write_one(client, target, part, progress, is_resumed=is_resumed)

        await self._each(one)

    async def compare_begun(self) -> None:
        """Before anything is written: what topics have that are not held must be of this backup."""

        async def one(client: BackupClient, target: Target, part: PartitionBackup) -> None:
            if target.is_let_go:
                await self._compare_let_go(client, target, part, lambda size: None)
                return
            if not (target.exists and target.source.is_internal):
                return
            end = await client.committed_end(target.name, part.partition)
            if end > part.start:
                await self._compare_to(client, target, part, part.start, end, lambda size: None)

        await self._each(one)

    async def compare(self) -> None:
        progress = Progress(stage="comparing", bytes_total=self._done.plan.bytes)
        self._done.verified_records = 0

        async def one(client: BackupClient, target: Target, part: PartitionBackup) -> None:
            await self._compare_one(client, target, part, progress)

        await self._each(one)

    async def _each(self, work: Callable[[BackupClient, Target, PartitionBackup], Awaitable[None]]) -> None:
        """Do something with every partition, the largest first."""
        waiting = sorted(
            (sum(chunk.bytes for chunk in part.chunks), target.name, part.partition)
            for target in self._done.plan.targets
            for part in target.source.partitions
        )
        targets = {target.name: target for target in self._done.plan.targets}

        async def lane() -> None:
            async with self._connect() as client:
                while waiting:
                    _, name, number = waiting.pop()
                    await work(client, targets[name], targets[name].source.partitions[number])

        await run_lanes(lane() for _ in range(min(LANES, len(waiting))))

    # Writing.

    async def _write_one(
        self,
        client: BackupClient,
        target: Target,
        part: PartitionBackup,
        progress: Progress,
        *,
        is_resumed: bool,
    ) -> None:
        name, number = target.name, part.partition
        position = await client.committed_end(name, number) if is_resumed else 0
        if position > part.end:
            if target.source.is_internal:
                return  # it was compared, and the cluster has gone on with it since
            raise BackupError(_beyond(name, part, position))
        topic_id = self._done.ids[name]
        requests = self._requests(part, position)
        while (request := await in_thread(next, requests, None)) is not None:
            await client.restore(name, topic_id, number, request)
            progress.bytes = min(progress.bytes + len(request), progress.bytes_total)
            self._on_progress(progress)
        if (end := await client.committed_end(name, number)) != part.end:
            raise BackupError(f"{name}-{number} ends at offset {end}, not at {part.end}")
        if target.source.is_internal:
            await client.end_restore(name, topic_id, number)
        elif part.start > 0:
            await client.delete_records(name, {number: part.start})

    def _requests(self, part: PartitionBackup, position: Offset) -> Iterator[bytes]:
        """What to send, in order. Reads files: it is for threads."""
        gathered: list[Buffer] = []
        size = 0
        for batch in without_holes(self._batches(part), position=position, start=part.start, end=part.end):
            if size + len(batch) > REQUEST_BYTES and gathered:
                yield b"".join(gathered)
                gathered, size = [], 0
            gathered.append(batch)
            size += len(batch)
        if gathered:
            yield b"".join(gathered)

    def _batches(self, part: PartitionBackup) -> Iterator[tuple[BatchHeader, memoryview]]:
        for chunk in part.chunks:
            yield from batches_of(read_chunk(self._storage, chunk), chunk)

    # Comparing.

    async def _compare_one(
        self, client: BackupClient, target: Target, part: PartitionBackup, progress: Progress
    ) -> None:
        def advance(size: int) -> None:
            progress.bytes = min(progress.bytes + size, progress.bytes_total)
            self._on_progress(progress)

        end = part.end
        if target.source.is_internal:
            end = await client.committed_end(target.name, part.partition)
        if target.is_let_go:
            comparison = await self._compare_let_go(client, target, part, advance)
        else:
            comparison = await self._compare_to(client, target, part, part.start, end, advance)
        assert self._done.verified_records is not None
        self._done.verified_records += comparison.records
        self._done.compacted_records += comparison.lacking

    async def _compare_let_go(
        self, client: BackupClient, target: Target, part: PartitionBackup, advance: Callable[[int], None]
    ) -> Comparison:
        """Compare what retention has left of a partition that was let go."""
        name, number = target.name, part.partition
        for _ in range(TRIES):
            first, last = [
                (await client.list_offsets(name, {number: edge}, read_committed=True))[number]
                for edge in (EARLIEST, LATEST)
            ]
            start = max(part.start, first.offset)
            end = last.offset if target.may_lack else part.end
            with suppress(Missing):
                return await self._compare_to(client, target, part, start, end, advance)
        raise BackupError(f"{name}-{number}: records are deleted faster than they are compared")

    async def _compare_to(
        self,
        client: BackupClient,
        target: Target,
        part: PartitionBackup,
        start: Offset,
        end: Offset,
        advance: Callable[[int], None],
    ) -> Comparison:
        """Compare [start, end); Differs says where it is not as in the backup.

        What follows the backup's end is the cluster's own: queues write by themselves. It is read
        only to know what it has made void.
        """
        name, number = target.name, part.partition
        expected = ((header, one) for header, one in self._batches(part) if header.base_offset < end)
        comparison = Comparison(
            f"{name}-{number}", expected, start=start, end=min(end, part.end), may_lack=target.may_lack
        )
        reader = SliceReader(client=client, topic=name, partition=number, position=start, end=end)
        async for found in reader.slices():
            await in_thread(comparison.take, found.fetched.records)
            advance(len(found.fetched.records))
        await in_thread(comparison.finish)
        return comparison


def _beyond(name: str, part: PartitionBackup, end: Offset) -> str:
    return (
        f"{name}-{part.partition} ends at offset {end}, the backup at {part.end}; somebody has "
        "written to it, so it cannot be gone on with"
    )
