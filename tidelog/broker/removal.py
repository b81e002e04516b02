"""Removes the files of deleted records and partitions until they are gone.

Rule 1: removal makes room, so it never waits for room: what a full disk keeps from being noted is
        noted after the files are gone.
Rule 2: a log start is noted before anybody is shown it, and before files go; then one sync of the
        directory does for all files. A start that could not be noted lets segments go one by one,
        the oldest first and each durably: a crash leaves the log from some segment on, without a
        gap.
Rule 3: a removal that failed stays listed, and each checkpoint tries it again.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tidelog.broker.replicas import ChangeDisk, Replicas
from tidelog.errors import StorageError, UnknownTopicOrPartition
from tidelog.host import Host, unbroken
from tidelog.log.directory import DataDirectory
from tidelog.log.retention import remove_segments
from tidelog.log.rounds import Rounds
from tidelog.model import Offset
from tidelog.partition.driver import Partition

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
        note: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`note` notes all log starts durably, or raises StorageError if there is no room."""
        self._host = host
        self._rounds = rounds
        self._replicas = replicas
        self._directory = directory
        self._change_disk = change_disk
        self._note = note
        self._undone: dict[Partition, None] = {}

    async def advance_start(self, partition: Partition, start: Offset) -> None:
        """Delete everything below `start`.

        UnknownTopicOrPartition if its topic was deleted before it had the files for itself.
        StorageError if the start could not be noted or a file could not be removed: the log begins
        at `start` nevertheless, and both are tried again.
        """
        async with partition.files:
            if not self._replicas.holds(partition):
                raise UnknownTopicOrPartition(partition.name)
            is_noted = await self._begin_at(partition, min(start, partition.log.end))
            self._undone[partition] = None
            self._rounds.mark(partition)
            await self._rounds.written()  # a sealed segment's steps must not follow its removal
            await self._remove(partition, is_noted=is_noted)

    async def _begin_at(self, partition: Partition, start: Offset) -> bool:
        """Let the log begin at `start`; whether its disk knows. Nobody is shown it before."""
        start = max(start, partition.log.start)  # it may have moved while this waited its turn
        async with self._directory.noting:  # or an older start would be noted after it
            work = partial(self._directory.raise_start, partition.name, start)
            try:
                await unbroken(self._change_disk(work))
            except StorageError as error:
                _log.warning(
                    "%s: its start is noted once files are gone: %s", partition.name, error
                )
                partition.log.advance_start(start)
                return False
            partition.log.advance_start(start)
        partition.start_moved()
        return True

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
                    await self._remove(partition, is_noted=await self._try_to_note(partition))
                except StorageError as error:
                    _log.info("%s: what was deleted is not all gone: %s", partition.name, error)

    async def _try_to_note(self, partition: Partition) -> bool:
        if partition.noted_start < partition.log.start:
            try:
                await self._note()
            except StorageError:
                return False
            partition.start_moved()
        return True

    async def _remove(self, partition: Partition, *, is_noted: bool) -> None:
        log = partition.log
        gone = log.advance_start(log.start)  # a log that was opened again has found old files
        first_kept = log.segments[0].base
        if gone:
            work = partial(remove_segments, self._host.disk, gone, first_kept, singly=not is_noted)
            await self._change_disk(work)
            log.removed(gone)
        if not is_noted:
            await self._note()
            partition.start_moved()
        self._undone.pop(partition, None)
