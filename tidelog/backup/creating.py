"""A backup is made: what is committed and new since the last one goes into files.

Rule 1: groups' offsets are asked for first and the ends of logs after them, so that no group is
        beyond the end of what is backed up. Topics' ids are noted before both: an offset counts
        only in the topic for which it was committed, not in another of its name.
Rule 2: the manifest is written when everything else is in its place. Before that, whatever ends
        the run removes what it wrote; what a killed run left is removed by the next.
Rule 3: a compacted log is read on until it is certain that nothing was compacted away before it
        was read which the end of the backup does not make void: a record goes only once a newer
        one of its key is committed. So a log that had gaps is asked for its end again, and what
        came meanwhile is read, too, until that comes without a gap.
Rule 4: of a manifest that cannot be read nobody knows which files it needs. While there is one,
        no file is removed.
"""

import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex
from typing import Final

import tidelog
from tidelog.backup import chunks, manifest
from tidelog.backup.chunks import ChunkWriter
from tidelog.backup.cluster_requests import BackupClient, Connect, TopicNow
from tidelog.backup.kept import ID_TIME, load_manifests, manifest_name, prune, remove_orphans, write_manifest
from tidelog.backup.manifest import GroupBackup, Manifest, PartitionBackup, TopicBackup
from tidelog.backup.planning import Before, Share, plan
from tidelog.backup.problems import BackupError
from tidelog.backup.running import in_thread, run_lanes
from tidelog.backup.storage import Storage
from tidelog.client.cluster import Refused
from tidelog.client.slices import Missing, SliceReader
from tidelog.model import Offset, TopicPartition
from tidelog.records import iterate_batches

LANES: Final = 4
"""Partitions that are read at the same time, each over connections of its own: a broker answers
the requests of one connection in turn."""
TRIES: Final = 3
"""How often a partition is begun anew because retention was quicker."""
PASSES: Final = 100
"""How often a compacted log is read on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to back up, and how."""

    topics: tuple[str, ...] = ()
    """All, if none are named; then the offsets of all groups, too."""
    full: bool = False
    """Whether to read everything again, though earlier backups have it."""
    keep: int = 0
    """How many backups to keep, this one counted; 0 keeps all."""
    chunk_bytes: int = chunks.BYTES_MAX


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run has come; offsets are what is known beforehand."""

    offsets: int = 0
    offsets_total: int = 0
    bytes: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A backup that is there."""

    manifest: Manifest
    new_bytes: int
    new_records: int
    seconds: float
    removed: tuple[str, ...] = ()
    """Backups that were given up for it."""


@dataclass(slots=True)
class _Run:
    """One run: what it has written so far, and what people should know of it."""

    id: str
    taken_ms: int
    writers: list[ChunkWriter] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)


async def create(
    bootstrap: str,
    storage: Storage,
    wish: Wish,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    connect: Connect = BackupClient,
) -> Created:
    """Make a backup, in a storage that nobody else changes meanwhile."""
    began = time.monotonic()
    with storage.claim():
        found, damaged = await in_thread(load_manifests, storage)
        taken_ms = now_ms()
        moment = datetime.fromtimestamp(taken_ms / 1000, UTC).strftime(ID_TIME)
        run = _Run(f"{moment}-{token_hex(3)}", taken_ms)
        run.notes += [f"{error}; nothing is removed while it is there" for error in damaged]
        if not damaged:
            await in_thread(remove_orphans, storage, found, taken_ms)
        try:
            made = await _make(partial(connect, bootstrap), storage, wish, run, found, on_progress, now_ms)
        except BaseException:
            _abandon(storage, run)
            raise
        removed: tuple[str, ...] = ()
        if wish.keep and not damaged:
            removed = await in_thread(prune, storage, [*found, made], wish.keep)
    return Created(
        manifest=made,
        new_bytes=run.progress.bytes,
        new_records=run.progress.records,
        seconds=time.monotonic() - began,
        removed=removed,
    )


def _abandon(storage: Storage, run: _Run) -> None:
    """Remove all that a run wrote; the manifest first, as it needs the rest."""
    with suppress(OSError):
        storage.remove(manifest_name(run.id))
        for writer in run.writers:
            with suppress(OSError):  # what one cannot remove is no reason to leave the others'
                writer.abandon()


async def _make(
    connect: Callable[[], BackupClient],
    storage: Storage,
    wish: Wish,
    run: _Run,
    found: Sequence[Manifest],
    on_progress: Callable[[Progress], None],
    now_ms: Callable[[], int],
) -> Manifest:
    async with connect() as client:
        cluster = await client.cluster()
        ids = {topic.name: str(topic.id) for topic in await client.topics()}
        groups = await client.all_group_offsets()
        topics = await _look_at_topics(client, wish, run)
        plans: dict[TopicPartition, Share] = {}
        for topic in topics:
            before = {} if wish.full else await _before(client, topic, found)
            plans |= _plan_topic(topic, before, run)
        run.progress.offsets_total = sum(share.new_offsets for share in plans.values())
        on_progress(run.progress)
        copied = await _Copying(connect, storage, wish, run, on_progress).copy(topics, plans)
        alive = {topic.name: str(topic.id) for topic in await client.topics()}
    _note_tombstones(topics, run, now_ms())
    kept = []
    for topic in topics:
        if alive.get(topic.name) != topic.id or topic.name not in copied:
            run.notes.append(f"{topic.name} was deleted while it was read; it is left out")
        else:
            kept.append(_topic_backup(topic, copied[topic.name]))
    same = {topic.name for topic in kept if ids.get(topic.name) == topic.id}
    run.notes += _note_others(groups, {topic.name for topic in kept} - same)
    made = Manifest(
        id=run.id,
        made_by=f"tidelog {tidelog.__version__}",
        cluster_id=cluster.cluster_id,
        parent=found[-1].id if found else None,
        taken_ms=run.taken_ms,
        finished_ms=now_ms(),
        topics=tuple(kept),
        groups=_groups_of(groups, same),
        notes=tuple(run.notes),
    )
    wrong = manifest.gaps(made)
    assert not wrong, wrong
    await in_thread(write_manifest, storage, made)
    return made


async def _look_at_topics(client: BackupClient, wish: Wish, run: _Run) -> list[TopicNow]:
    """Those that are wished for; of all, those that are still there."""
    topics = []
    for name in list(dict.fromkeys(wish.topics)) or await client.backed_up_topics():
        try:
            topics.append(await client.look_at(name))
        except Refused:
            if wish.topics or await client.has_topic(name):
                raise
            run.notes.append(f"{name} was deleted before it was read; it is left out")
    return topics


async def _before(client: BackupClient, topic: TopicNow, found: Sequence[Manifest]) -> dict[int, Before]:
    """The newest backup of each partition of a topic."""
    for one in reversed(found):
        if (known := one.topic(topic.name)) is not None:
            break
    else:
        return {}
    is_same = known.id == topic.id
    there = {part.partition: part for part in known.partitions if part.partition in topic.logs}
    epochs = {number: part.epoch for number, part in there.items()}
    try:
        ends = await client.epoch_ends(topic.name, epochs) if is_same else {}
    except Refused:
        if await client.has_topic(topic.name, topic.id):
            raise
        return {}  # who copies it will see
    return {
        number: Before(topic_id=known.id, taken_ms=one.taken_ms, partition=part, kept_end=ends.get(number))
        for number, part in there.items()
    }


def _plan_topic(topic: TopicNow, before: dict[int, Before], run: _Run) -> dict[TopicPartition, Share]:
    shares = {}
    reasons: dict[str, list[int]] = {}
    for number, now in topic.logs.items():
        share = plan(
            topic.id, now, before.get(number), tombstones_ms=topic.tombstones_ms, now_ms=run.taken_ms
        )
        shares[TopicPartition(topic.name, number)] = share
        if share.why_anew is not None:
            reasons.setdefault(share.why_anew, []).append(number)
    for why, numbers in reasons.items():
        where = topic.name if len(numbers) == len(topic.logs) else _places(topic.name, numbers)
        run.notes.append(f"{where} starts over: {why}")
    return shares


def _places(topic: str, numbers: Sequence[int]) -> str:
    return ", ".join(f"{topic}-{number}" for number in numbers)


def _note_tombstones(topics: Sequence[TopicNow], run: _Run, now_ms: int) -> None:
    for topic in topics:
        if topic.tombstones_ms is not None and now_ms - run.taken_ms >= topic.tombstones_ms:
            run.notes.append(
                f"{topic.name}: it took longer than delete.retention.ms to read; a key that was "
                "deleted meanwhile may be there again after a restore"
            )


def _topic_backup(topic: TopicNow, partitions: Sequence[PartitionBackup]) -> TopicBackup:
    return TopicBackup(
        name=topic.name,
        id=topic.id,
        replication=topic.replication,
        is_internal=topic.is_internal,
        configs=dict(topic.configs),
        partitions=tuple(sorted(partitions, key=lambda one: one.partition)),
    )


def _note_others(groups: Sequence[GroupBackup], names: Set[str]) -> list[str]:
    """Of topics that were made while groups were asked nobody knows what an offset counts in."""
    return [
        f"{name} was made while groups were asked for their offsets; those of it are left out"
        for name in sorted(names)
        if any(each.topic == name for one in groups for each in one.offsets)
    ]


def _groups_of(groups: Sequence[GroupBackup], names: Set[str]) -> tuple[GroupBackup, ...]:
    """What groups have committed for these topics."""
    found = (
        GroupBackup(group=one.group, offsets=tuple(each for each in one.offsets if each.topic in names))
        for one in groups
    )
    return tuple(one for one in found if one.offsets)


class _Copying:
    """Reads partitions, several at a time, and writes their chunks."""

    def __init__(
        self,
        connect: Callable[[], BackupClient],
        storage: Storage,
        wish: Wish,
        run: _Run,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._connect = connect
        self._storage = storage
        self._wish = wish
        self._run = run
        self._on_progress = on_progress
        self._gone: set[str] = set()

    async def copy(
        self, topics: Sequence[TopicNow], plans: dict[TopicPartition, Share]
    ) -> dict[str, list[PartitionBackup]]:
        """The partitions of each topic that is still there."""
        known = {topic.name: topic for topic in topics}
        largest = sorted(plans, key=lambda place: plans[place].new_offsets)
        copied: dict[str, list[PartitionBackup]] = {topic.name: [] for topic in topics}

        async def lane() -> None:
            async with self._connect() as client:
                while largest:
                    place = largest.pop()
                    if place.topic in self._gone:
                        continue
                    part = await self._copy_one(client, known[place.topic], place, plans[place])
                    if part is not None:
                        copied[place.topic].append(part)

        await run_lanes(lane() for _ in range(min(LANES, len(largest))))
        return {name: parts for name, parts in copied.items() if name not in self._gone}

    async def _copy_one(
        self, client: BackupClient, topic: TopicNow, place: TopicPartition, share: Share
    ) -> PartitionBackup | None:
        for _ in range(TRIES):
            writer = ChunkWriter(
                self._storage,
                topic.id,
                place.partition,
                share.read_from,
                self._run.id,
                bytes_max=self._wish.chunk_bytes,
            )
            self._run.writers.append(writer)
            try:
                has_gaps = await self._read(client, place, share.read_from, share.end, writer)
                if has_gaps and topic.tombstones_ms is not None:
                    share = await self._read_on(client, place, share, writer)
                new = await in_thread(writer.finish, share.end)
                return PartitionBackup(
                    partition=place.partition,
                    start=share.start,
                    end=share.end,
                    epoch=share.epoch,
                    chunks=(*share.kept, *new),
                )
            except Missing as missing:
                if missing.first <= missing.wanted:
                    raise BackupError(
                        f"{place}: its leader has not all that is committed; make the backup again"
                    ) from missing
                await in_thread(writer.abandon)
                share = self._after(place, share, missing)
            except Refused:
                if await client.has_topic(place.topic, topic.id):
                    raise
                await in_thread(writer.abandon)
                self._gone.add(place.topic)
                return None
        raise BackupError(f"{place}: records are deleted faster than they can be read; raise its retention")

    async def _read_on(
        self, client: BackupClient, place: TopicPartition, share: Share, writer: ChunkWriter
    ) -> Share:
        """Read what a compacted log got meanwhile (Rule 3); the share that this makes."""
        for _ in range(PASSES):
            now = await client.end_of(place.topic, place.partition)
            if now.offset <= share.end:
                return share
            self._run.progress.offsets_total += now.offset - share.end
            has_gaps = await self._read(client, place, share.end, now.offset, writer)
            share = replace(share, end=now.offset, epoch=now.epoch)
            if not has_gaps:
                return share
        self._run.notes.append(
            f"{place} is compacted faster than it can be read; a key that was written meanwhile "
            "may be missing"
        )
        return share

    async def _read(
        self, client: BackupClient, place: TopicPartition, position: Offset, end: Offset, writer: ChunkWriter
    ) -> bool:
        """Read all records from an offset to another; whether some offsets had none."""
        reader = SliceReader(
            client=client, topic=place.topic, partition=place.partition, position=position, end=end
        )
        at, found_count = position, 0
        async for found in reader.slices():
            bytes_before, records_before = writer.size, writer.records
            await in_thread(writer.take, found.fetched.records, found.fetched.aborted, end=end)
            found_count += _count(found.fetched.records, position, end)
            self._run.progress.bytes += writer.size - bytes_before
            self._run.progress.records += writer.records - records_before
            at = self._advance(at, min(found.next_offset, end))
        self._advance(at, end)
        return found_count < end - position

    def _advance(self, at: Offset, to: Offset) -> Offset:
        self._run.progress.offsets += to - at
        self._on_progress(self._run.progress)
        return to

    def _after(self, place: TopicPartition, share: Share, missing: Missing) -> Share:
        """What is left of a partition once retention has taken what was to be read."""
        start = min(missing.first, missing.end)
        self._run.notes.append(
            f"{place} begins at offset {start}: what came before was deleted while it was read"
        )
        end = max(share.end, start)
        return Share(start=start, end=end, epoch=share.epoch, read_from=start)


def _count(data: bytes, position: Offset, end: Offset) -> int:
    """How many offsets between two have a record, at most."""
    return sum(
        min(header.record_count, header.next_offset - position, end - header.base_offset)
        for header, _ in iterate_batches(data)
        if header.last_offset >= position and header.base_offset < end
    )
