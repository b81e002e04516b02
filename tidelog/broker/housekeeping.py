"""What a node does for its logs from time to time: checkpoints, retention, compaction.

Rule 1: nothing waits for it, and it waits for nobody: a log that is busy has its turn in the next round.
Rule 2: what the disk refuses for want of room is put off; any other failure of it ends the node.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tidelog.broker.checkpoints import GATHERED_AT_ONCE, Checkpoint
from tidelog.cluster.quorum_log import QuorumLog
from tidelog.config import NodeConfig
from tidelog.errors import StorageError, UnknownTopicOrPartition
from tidelog.host import Host, in_turns, unbroken
from tidelog.log.cleaner import Cleaner
from tidelog.log.closing import close_logs
from tidelog.log.directory import DataDirectory
from tidelog.log.disk_room import ChangeDisk, DiskRoom
from tidelog.log.retention import has_deleted_segments, load_ages, new_start
from tidelog.log.rounds import Rounds
from tidelog.log.steps import is_short, shortage
from tidelog.partition.driver import Partition
from tidelog.replication.replication import Replication

_log = logging.getLogger(__name__)

_SILENT_SECONDS: Final = 3600.0
"""A producer that has written within this time is not forgotten, whatever the times of its records:
it may send again what it has had no answer to."""
_TENDED_AT_ONCE: Final = 100
"""How many are looked at in one turn of the loop."""


class Housekeeping:
    """The upkeep of one node's logs; its methods are repeated by the broker."""

    def __init__(
        self,
        host: Host,
        replication: Replication,
        rounds: Rounds,
        *,
        config: Callable[[], NodeConfig],
        directory: DataDirectory,
        cleaner: Cleaner,
        room: DiskRoom,
        change_disk: ChangeDisk,
        metadata_log: Callable[[], QuorumLog],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._host = host
        self._replication = replication
        self._replicas = replication.replicas
        self._rounds = rounds
        self._config = config
        self._directory = directory
        self._cleaner = cleaner
        self._room = room
        self._change_disk = change_disk
        self._metadata_log = metadata_log
        self._on_fatal = on_fatal

    async def checkpoint(self) -> None:
        """Note durable ends, watermarks and starts; see whether a full disk has room again."""
        partitions = self._replicas.all()
        # That lets go of what ended below; nobody asks a follower.
        await in_turns(partitions, lambda partition: partition.last_stable_offset)
        if self._room.is_short:
            free = await self._change_disk(self._directory.find_room)
            await in_turns(partitions, partial(Partition.retry_full_disk, free_bytes=free))
            if not any(partition.disk_full for partition in partitions):
                self._room.has_again(free)
        self._replication.following.retry()
        await self._replication.removal.retry()
        self._replication.log_starts.retry()
        await self.note()
        if not self._directory.reserve.is_whole:
            await self._change_disk(self._directory.reserve.fill)
        await self._replication.scrubber.note()

    def all_logs(self) -> list[Partition | QuorumLog]:
        """Those of the partitions, and that of the metadata."""
        return [*self._replicas.all(), self._metadata_log()]

    async def delete_old(self) -> None:
        """Retention, and forgetting producers that have gone."""
        now_ms, now = self._host.clock.wall_ms(), self._host.clock.monotonic()
        settings = self._config()
        expiration_ms = settings.producer_id_expiration_ms
        window_ms = settings.idempotency_window_ms
        for count, partition in enumerate(self._replicas.all(), 1):
            if count % _TENDED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others get their turn
            if not self._replicas.holds(partition):
                continue
            log, config = partition.log, partition.config
            log.producers.expire(
                now_ms - expiration_ms,
                end=log.end,
                now=now,
                seconds=min(expiration_ms / 1000, _SILENT_SECONDS),
            )
            log.producers.expire_once(now_ms - window_ms, now=now, seconds=window_ms / 1000)
            if has_deleted_segments(log) and self._replicas.holds(partition):
                await self._remove_deleted(partition)
                log = partition.log
            if not partition.leads():
                continue  # a follower's log begins where its leader's does
            if not config.deletes or (log.refusal is not None and not partition.disk_full):
                continue
            if len(sealed := log.segments[:-1]):
                await self._host.offload.run(partial(load_ages, self._host.disk, list(sealed)))
            if partition.log is not log or not self._replicas.holds(partition):
                continue  # opened again, or deleted, meanwhile
            if not partition.leads():
                continue  # another leads by now
            start = new_start(log, config, partition.high_watermark, now_ms)
            if start == log.end and log.active.size and start > log.start:
                log.roll()  # even the active segment is too old
                self._rounds.mark(partition)
            if start > log.start:
                _log.info("%s: retention moves the start from %d to %d", partition.name, log.start, start)
                partition.log_start.want(start)

    async def _remove_deleted(self, partition: Partition) -> None:
        """Remove files below the log's start that an earlier process has left."""
        try:
            await self._replication.removal.advance_start(partition, partition.log.start)
        except UnknownTopicOrPartition:
            return  # deleted while this waited its turn
        except StorageError as error:
            _log.warning("%s: what is deleted is not all gone: %s", partition.name, error)

    async def compact(self) -> None:
        """Compaction, until no log is due."""
        try:
            while await self._cleaner.clean_due(await self._compacted()):
                _log.debug("a log was compacted; others may be due")
        except OSError as error:
            if is_short(error):
                raise StorageError(shortage(error)) from error
            self._on_fatal(error)
            raise

    async def _compacted(self) -> list[Partition]:
        """Those whose policy is to compact; an active segment that must be compacted is sealed."""
        now_ms = self._host.clock.wall_ms()
        found: list[Partition] = []

        def look_at(partition: Partition) -> None:
            log, config = partition.log, partition.config
            if not config.compacts or not self._replicas.holds(partition):
                return
            found.append(partition)
            is_old = 0 <= log.active.first_timestamp_ms < now_ms - config.max_compaction_lag_ms
            if log.active.size and is_old and log.refusal is None:
                log.roll()
                self._rounds.mark(partition)

        await in_turns(self._replicas.all(), look_at, at_once=1000)
        return found

    async def note(self) -> None:
        """Note durable ends, watermarks and starts."""
        async with self._directory.noting:  # an older state must not be written after a newer one
            checkpoint = Checkpoint(self._directory)
            await in_turns(self.all_logs(), checkpoint.add, at_once=GATHERED_AT_ONCE)
            # Nor after a cut: a thread that still writes holds what was promised before it.
            await unbroken(self._change_disk(checkpoint.write))

    def close(self, partitions: Sequence[Partition | QuorumLog], clean: bool) -> None:
        """Note all of it for the last time, if the disk has it. Blocks on the disk."""
        if clean:
            logs = [p.log for p in partitions]
            close_logs(self._host.disk, self._directory.root, logs)
            for log in logs:
                log.synced(log.written_end)
            Checkpoint(self._directory).add_all(partitions).write()
        self._directory.close(clean=clean)
