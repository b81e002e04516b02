"""Removes the files of deleted records and partitions until they are gone.

Rule 1: removal makes room, so it never waits for room: where a full disk keeps a start from being
        noted, the segments that lie wholly before it go first.
Rule 2: a log start is durable before anybody is shown it. Mostly it is noted before files go; then
        one sync of the directory does for all of them. Without a note the log begins with the
        first segment that is left: those before it go one by one, the oldest first and each
        durably, so that a crash leaves no gap, and a leader shows nothing until they are gone.
Rule 3: a removal that failed stays listed, and each checkpoint tries it again.
Rule 4: a start that is under way is not called off, whoever leads meanwhile. A replica that comes
        to lead counts it as promised, so that its followers keep their promises, too.
"""

import logging
from functools import partial

from tidelog.errors import StorageError, UnknownTopicOrPartition
from tidelog.host import Host, unbroken
from tidelog.log.directory import DataDirectory
from tidelog.log.disk_room import ChangeDisk
from tidelog.log.retention import remove_segments
from tidelog.log.rounds import Rounds
from tidelog.model import Offset
from tidelog.partition.driver import Partition
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)


class Removal:
    """The files of this node that nobody needs any more."""

    def __init__(
        self,
        host: Host,
        rounds: Rounds,
        replicas: Replicas,
        *,
        directory: DataDirectory,
        change_disk: ChangeDisk,
    ) -> None:
        self._host = host
        self._rounds = rounds
        self._replicas = replicas
        self._directory = directory
        self._change_disk = change_disk
        self._undone: dict[Partition, None] = {}

    async def advance_start(self, partition: Partition, start: Offset) -> None:
        """Delete everything below `start`.

        UnknownTopicOrPartition if its topic was deleted before it had the files for itself.
        StorageError if the start could not be noted, so that the log begins no later than with the
        segment that holds it, or if a file could not be removed, which is tried again.
        """
        partition.log_start.under_way.append(start)
        try:
            await self._advance_start(partition, start)
        finally:
            partition.log_start.under_way.remove(start)

    async def _advance_start(self, partition: Partition, start: Offset) -> None:
        async with partition.files:
            if not self._replicas.holds(partition):
                raise UnknownTopicOrPartition(partition.name)
            start = min(start, partition.log.end)
            try:
                await self._begin_at(partition, start)
            except StorageError as error:
                _log.warning("%s: its start is noted once files are gone: %s", partition.name, error)
                await self._make_room(partition, start)
                await self._begin_at(partition, start)
            await self._remove(partition)

    async def _begin_at(self, partition: Partition, start: Offset) -> None:
        """Let the log begin at `start` once that is noted."""
        start = max(start, partition.log.start)  # it may have moved while this waited its turn
        async with self._directory.noting:  # or an older start would be noted after it
            work = partial(self._directory.raise_start, partition.name, start)
            await unbroken(self._change_disk(work))
            partition.log.advance_start(start)
        partition.start_moved()

    async def _make_room(self, partition: Partition, start: Offset) -> None:
        """Let the log begin with the segment that holds `start`, by removing those before it."""
        log = partition.log
        if (base := log.base_before(start)) > log.start:
            partition.log_start.hide(base)
            log.advance_start(base)
        await self._remove(partition)

    async def retry(self) -> None:
        """Try again what could not be removed or noted before."""
        try:
            await self._replicas.retry_removal()
        except StorageError as error:
            _log.info("what is left of deleted partitions stays for now: %s", error)
        for partition in list(self._undone):
            async with partition.files:
                if not self._replicas.holds(partition):
                    self._undone.pop(partition, None)
                    continue
                try:
                    await self._remove(partition)
                except StorageError as error:
                    _log.info("%s: what was deleted is not all gone: %s", partition.name, error)

    async def _remove(self, partition: Partition) -> None:
        self._undone[partition] = None
        self._rounds.mark(partition)
        await self._rounds.written()  # a sealed segment's steps must not follow its removal
        log = partition.log
        is_noted = partition.log_start.noted >= log.start
        gone = log.advance_start(log.start)  # a log that was opened again has found old files
        first_kept = log.segments[0].base
        if gone:
            work = partial(remove_segments, self._host.disk, gone, first_kept, singly=not is_noted)
            await self._change_disk(work)
            log.removed(gone)
        if not is_noted:
            partition.start_moved()  # no file says otherwise
        self._undone.pop(partition, None)
