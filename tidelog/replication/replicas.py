"""The partitions on this node: opened, led, closed, looked up.

Rule 1: a partition is here because the metadata says so, and is what the metadata says it is.
Rule 2: nothing is served before its log is recovered and its epoch opened.
Rule 3: a replica's files are removed only once nobody reads them; and, if others hold the partition
        now, only once the metadata says who. What could not be removed is never opened again.
Rule 4: of a replica that was never opened, a full disk or a crash may leave a directory that is
        half made. It is removed only if it holds no file but `partition.metadata`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.config import TopicConfig
from tidelog.controller.difference import Closed, Replica, Role
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.errors import BrokerError, NotLeader, UnknownTopicId, UnknownTopicOrPartition
from tidelog.host import Host, in_turns
from tidelog.log.cleaner import Cleaner
from tidelog.log.directory import DataDirectory
from tidelog.log.disk_room import ChangeDisk
from tidelog.log.log import LogState
from tidelog.log.recovery import open_log, without_batches
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import NO_NODE, NodeId, TopicPartition
from tidelog.partition.cut_tail import CutTail
from tidelog.partition.driver import Partition

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 20
"""How many partitions are opened or closed in one turn of the loop."""


class Replicas:
    """All partitions of one node, by topic name and by topic id."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        host: Host,
        directory: DataDirectory,
        rounds: Rounds,
        budget: TailBudget,
        cleaner: Cleaner,
        config_of: Callable[[TopicImage], TopicConfig],
        change_disk: ChangeDisk,
        has_lease: Callable[[], bool],
        on_role: Callable[[int, Partition], None],
        on_closed: Callable[[Partition], None],
        on_spent: Callable[[Partition], object],
        on_short: Callable[[OSError], object],
    ) -> None:
        """`on_role` hears, with the partition's cluster id, whenever one follows another node."""
        self._node_id = node_id
        self._host = host
        self._directory = directory
        self._rounds = rounds
        self._budget = budget
        self._cleaner = cleaner
        self._config_of = config_of
        self._change_disk = change_disk
        self._has_lease = has_lease
        self._on_role = on_role
        self._on_closed = on_closed
        self._on_spent = on_spent
        self._on_short = on_short
        self._topics: dict[str, list[Partition | None]] = {}
        self._topics_by_id: dict[UUID, list[Partition | None]] = {}
        self._held: dict[Partition, None] = {}
        self._awaited: dict[Partition, None] = {}
        """Those at which somebody waits, or waited a moment ago."""
        self._left: dict[TopicPartition, None] = {}
        """Those that were closed, and whose files could not be removed: the disk was full."""
        self._unopened: dict[TopicPartition, None] = {}
        """Those that others hold and that were never opened; their directories may be there."""
        self.on_start_agreed: Callable[[Partition], None] = _ignore
        """Called when a leader here may let its log begin later."""
        self.on_opened: Callable[[Partition], None] = _ignore
        """Called when a partition is there, as its files have it: nobody leads or follows yet."""
        self.on_decided: Callable[[Partition], None] = _ignore
        """Called when the metadata has changed what a partition is."""
        self.on_changed: Callable[[Partition], None] = _ignore
        """Called when what a partition holds, or knows to be committed, has changed."""

    # Looking up.

    def find(self, topic: str | UUID, number: int) -> Partition:
        """The partition on this node, or the error that a client should get."""
        by_name = type(topic) is str
        found = self._topics.get(topic) if by_name else self._topics_by_id.get(topic)  # type: ignore[arg-type]
        if found is None and not by_name:
            raise UnknownTopicId(topic)
        if found is None or not 0 <= number < len(found) or (p := found[number]) is None:
            raise UnknownTopicOrPartition(f"{topic}-{number}")
        return p

    def get(self, topic_id: UUID, number: int) -> Partition | None:
        numbers = self._topics_by_id.get(topic_id, ())
        return numbers[number] if number < len(numbers) else None

    def holds(self, partition: Partition) -> bool:
        """Whether it is still there: whoever waits may come back to one whose topic is deleted."""
        return self.get(partition.topic_id, partition.name.partition) is partition

    def named(self, name: TopicPartition) -> Partition | None:
        """The partition of that name, whatever its topic's id; None if it is not on this node."""
        numbers = self._topics.get(name.topic, ())
        return numbers[name.partition] if name.partition < len(numbers) else None

    def all(self) -> list[Partition]:
        """In the order in which they came."""
        return list(self._held)

    def of(self, topic: str) -> list[Partition]:
        return [p for p in self._topics.get(topic, ()) if p is not None]

    def _note_waits(self, partition: Partition) -> None:
        self._awaited[partition] = None

    async def expire_waits(self) -> None:
        """Tell those who wait here whose time is up; it costs nothing where nobody waits."""

        def expire(partition: Partition) -> None:
            if not partition.expire_waits(self._host.clock.monotonic()):
                self._awaited.pop(partition, None)

        await in_turns(list(self._awaited), expire)

    # Opening.

    async def open(self, wanted: Sequence[Replica], image: ClusterImage) -> None:
        """Make or recover these partitions, and be what the metadata says."""
        by_topic: dict[UUID, list[Replica]] = {}
        for replica in wanted:
            by_topic.setdefault(replica.topic_id, []).append(replica)
        topics = {i: topic for i in by_topic if (topic := image.topics_by_id.get(i)) is not None}
        configs = {i: self._config_of(topic) for i, topic in topics.items()}

        def make() -> list[tuple[Replica, LogState]]:
            opened = []
            if left:
                self._directory.remove(left)
            if unopened:
                self._directory.remove_half_made(unopened)
            for topic_id in topics:
                replicas, config = by_topic[topic_id], configs[topic_id]
                fresh = self._directory.make_partitions([r.name for r in replicas], topic_id)
                for r in replicas:
                    is_fresh = r.name in fresh
                    path = self._directory.path(r.name)
                    opened.append((r, without_batches(path) if is_fresh else self._open_log(r, config)))
            return opened

        # What was noted of an earlier topic of that name is forgotten, and must not be noted again.
        # Nor may what was noted of these be left out, before they are here.
        async with self._directory.noting:
            left = [replica.name for replica in wanted if replica.name in self._left]
            unopened = [replica.name for replica in wanted if replica.name in self._unopened]
            states = await self._change_disk(make)
            for name in left:
                self._left.pop(name, None)
            for name in unopened:
                self._unopened.pop(name, None)
            for count, (replica, state) in enumerate(states, 1):
                self._add(replica, configs[replica.topic_id], state)
                is_done = self.become_now(replica)
                assert is_done, "nothing can have changed a log that is here only now"
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # others get their turn

    def _open_log(self, replica: Replica, config: TopicConfig) -> LogState:
        directory, name = self._directory, replica.name
        is_copy = len(replica.partition.replicas) > 1  # perhaps of a log that was compacted once
        mark = directory.durable_marks.get(name, 0)
        if config.durability == "fsync" and not directory.was_clean:
            # What was committed was synced here, though a cut since may have lowered the mark. Up
            # to its start a log promises nothing: it may have been begun anew there.
            watermark = directory.watermarks.get(name, 0)
            if watermark > directory.log_starts.get(name, 0):
                mark = max(mark, watermark)
        work = partial(
            open_log,
            self._host.disk,
            directory.path(name),
            clean=directory.was_clean,
            durable_mark=mark,
            start=directory.log_starts.get(name, 0),
            index_interval_bytes=config.index_interval_bytes,
            has_gaps=config.compacts or is_copy,
            watermark=directory.watermarks.get(name, 0),
            before_cut=partial(directory.note_cut, name),
        )
        return directory.reserve.spend(work)

    def _add(self, replica: Replica, config: TopicConfig, state: LogState) -> None:
        name = replica.name
        if not state.created:
            self._cleaner.forget(name)  # what is known of an earlier topic of that name
        partition = Partition(
            name=name,
            topic_id=replica.topic_id,
            me=self._node_id,
            config=config,
            path=self._directory.path(name),
            state=state,
            host=self._host,
            rounds=self._rounds,
            budget=self._budget,
            high_watermark=max(min(self._directory.watermarks.get(name, 0), state.end), state.start),
            is_copy=len(replica.partition.replicas) > 1,
            promised_start=self._directory.promised_starts.get(name, 0),
            purged=self._directory.purged.get(name, 0),
        )
        numbers = self._topics.setdefault(name.topic, [])
        self._topics_by_id[replica.topic_id] = numbers
        while len(numbers) <= name.partition:
            numbers.append(None)
        # A start that finds nothing to discard may be the second after one that did.
        if partition.is_copy and (cut_at := self._directory.cuts.places.get(name)) is not None:
            partition.cut_tail = CutTail(cut_at, self._directory.cuts.sizes.get(name))
        partition.has_lease = self._has_lease
        partition.on_spent = self._on_spent
        partition.on_changed = self.on_changed
        partition.on_short = self._on_short
        partition.log_start.on_agreed = self.on_start_agreed
        partition.on_waits = self._note_waits
        self._held[partition] = None
        numbers[name.partition] = partition
        self.on_opened(partition)

    async def become(self, replica: Replica) -> None:
        """Lead or follow from now on, as the metadata says."""
        while not self.become_now(replica):
            partition = self.get(replica.topic_id, replica.name.partition)
            assert partition is not None, "it waits for its log"
            await partition.mending.quiet()

    def become_now(self, replica: Replica) -> bool:
        """As `become`; False if it must wait, since an earlier leader wanted its log to be cut."""
        partition = self.get(replica.topic_id, replica.name.partition)
        if partition is None:
            return True  # it could not be opened
        self.on_decided(partition)
        known = replica.partition
        partition.is_copy |= len(known.replicas) > 1
        leader, follower = partition.leader, partition.follower
        if leader is not None and replica.role is Role.LEAD and leader.epoch == known.epoch:
            partition.decided(known.in_sync, known.partition_epoch, known.replicas, known.replication)
            return True
        is_followed = follower is not None and (
            (follower.epoch, follower.leader) == (known.epoch, known.leader)
        )
        if is_followed and replica.role is Role.FOLLOW:
            if self._node_id in known.in_sync:
                partition.cut_tail = None  # its leader has let it in
            return True
        if leader is not None:
            elsewhere = None if known.leader in (NO_NODE, self._node_id) else known.leader
            partition.resign(NotLeader(leader=elsewhere))
        partition.wait_for_leader()
        if partition.mending.is_busy:
            return False
        if replica.role is Role.LEAD:
            partition.lead(
                known.epoch,
                known.in_sync,
                replicas=known.replicas,
                partition_epoch=known.partition_epoch,
                replication=known.replication,
            )
        elif replica.role is Role.FOLLOW:
            partition.follow(known.epoch, known.leader)
        self._on_role(known.cluster_id, partition)
        return True

    # Closing.

    async def close(self, closed: Iterable[Closed]) -> None:
        """Stop serving these partitions, and remove their files."""
        gone: list[Partition] = []
        topics: dict[UUID, str] = {}
        for replica in closed:
            numbers = self._topics_by_id.get(replica.topic_id)
            number = replica.name.partition
            if numbers is None or number >= len(numbers) or (p := numbers[number]) is None:
                if replica.name not in self._left:
                    self._unopened[replica.name] = None
                continue
            numbers[number] = None
            topics[replica.topic_id] = replica.name.topic
            error: BrokerError = NotLeader(leader=None)  # another does, unless the topic is gone
            if replica.is_deleted:
                error = UnknownTopicOrPartition(p.name)
            self._end(p, error)
            gone.append(p)
            if len(gone) % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others get their turn
        for topic_id, topic in topics.items():
            numbers = self._topics_by_id[topic_id]
            if not any(numbers):
                del self._topics_by_id[topic_id]
                if self._topics.get(topic) is numbers:
                    del self._topics[topic]
        if gone:
            await self._remove(gone)
        await self._remove_half_made()

    def _end(self, partition: Partition, error: BrokerError) -> None:
        """Serve it no more; its files are still there."""
        del self._held[partition]
        partition.resign(error)
        self._on_closed(partition)
        self._rounds.forget(partition)
        partition.log.tail.clear()
        partition.log.refusal = "the replica is removed"
        self._cleaner.forget(partition.name)

    async def drop_topic(self, name: str, topic_id: UUID) -> None:
        """Stop serving a topic, and remove its files."""
        await self.close(
            [
                Closed(name=p.name, topic_id=topic_id, is_deleted=True)
                for p in self._topics_by_id.get(topic_id, [])
                if p is not None
            ]
        )

    async def _remove(self, gone: Sequence[Partition]) -> None:
        locked: list[asyncio.Lock] = []
        try:
            await self._rounds.written()
            for partition in gone:
                await partition.files.acquire()
                locked.append(partition.files)
                if len(locked) % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # others get their turn
            await self._remove_files([partition.name for partition in gone])
        except BaseException:
            self._left |= {partition.name: None for partition in gone}
            raise
        finally:
            for lock in locked:
                lock.release()
            for partition in gone:
                partition.log.let_go()

    async def retry_removal(self) -> None:
        """Try again to remove the files of closed partitions; StorageError if they stay."""
        if self._left:
            async with self._directory.noting:  # or a replica that comes back would be removed
                await self._remove_files(list(self._left))
        await self._remove_half_made()

    async def _remove_files(self, names: Sequence[TopicPartition]) -> None:
        await self._change_disk(partial(self._directory.remove, names))
        for name in names:
            self._left.pop(name, None)

    async def remove_half_made(self, names: Iterable[TopicPartition]) -> None:
        """Remove directories of partitions that others hold; StorageError if it is tried again.

        A directory stays if it has files other than `partition.metadata`, or if it is served.
        """
        self._unopened |= dict.fromkeys(names)
        await self._remove_half_made()

    async def _remove_half_made(self) -> None:
        if not self._unopened:
            return
        async with self._directory.noting:  # until then nobody opens a partition of that name
            closed = list(self._unopened)
            absent = [name for name in closed if self.named(name) is None]
            work = partial(self._directory.remove_half_made, absent)
            for name in await self._change_disk(work):
                _log.warning("%s was never opened, and has files: they are kept", name)
            for name in closed:
                self._unopened.pop(name, None)


def _ignore(partition: Partition) -> None:
    """Nobody wants to know."""
