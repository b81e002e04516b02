"""Moves the starts of this node's logs: where leaders have agreed on, and followers have heard of.

Rule 1: a leader's log begins later once every in-sync replica has promised so (`partition.leader`);
        a follower's, once its leader's does.
Rule 2: a promise is on the disk before the leader hears of it. Promises are noted together: one
        write for all that came while the disk was busy.
Rule 3: a follower whose disk has no room for a promise deletes at once what it should promise to
        delete: that makes room. Where descriptors are short, that would help nobody: it waits.
Rule 4: a start counts in the epoch in which it was heard of: it is not begun in a later one, which
        may not want it. What a disk refuses is tried again at the next checkpoint, in that epoch.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from tidelog.errors import StorageError, UnknownTopicOrPartition
from tidelog.host import unbroken
from tidelog.log.directory import DataDirectory
from tidelog.log.disk_room import ChangeDisk
from tidelog.log.steps import is_full
from tidelog.model import Offset
from tidelog.partition.driver import Partition
from tidelog.partition.follower import Follower
from tidelog.partition.leader import Leader
from tidelog.replication.removal import Removal
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class _Target(NamedTuple):
    """Where a log should begin."""

    start: Offset
    role: Leader | Follower | None
    """What this replica was when it heard so; in another epoch it is another."""

    def counts_at(self, partition: Partition) -> bool:
        return self.role is (partition.leader or partition.follower)


class LogStarts:
    """Where the logs of this node should begin, until they do."""

    def __init__(
        self,
        directory: DataDirectory,
        replicas: Replicas,
        removal: Removal,
        *,
        change_disk: ChangeDisk,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self._directory = directory
        self._replicas = replicas
        self._removal = removal
        self._change_disk = change_disk
        self._spawn = spawn
        self._targets: dict[Partition, _Target] = {}
        self._refused: dict[Partition, _Target] = {}
        self._promises: dict[Partition, Callable[[], None]] = {}
        self._is_noting = False

    # Moving.

    def agreed(self, partition: Partition) -> None:
        """The in-sync replicas have promised the leader here that their logs will begin later."""
        if (leader := partition.leader) is not None:
            self.move(partition, leader.start_agreed)

    def move(self, partition: Partition, start: Offset) -> None:
        """Let a log begin at `start`, as far as it is committed."""
        start = min(start, partition.high_watermark)
        if start <= partition.log.start:
            return
        target = _Target(start, partition.leader or partition.follower)
        if (busy := self._targets.get(partition)) is not None:
            if start > busy.start or busy.role is not target.role:
                self._targets[partition] = target
            return
        if (refused := self._refused.get(partition)) is not None and refused.role is target.role:
            self._refused[partition] = target
            return
        self._targets[partition] = target
        self._spawn(self._move(partition))

    async def _move(self, partition: Partition) -> None:
        try:
            while self._replicas.holds(partition):
                target = self._targets[partition]
                start = min(target.start, partition.high_watermark)
                if start <= partition.log.start or not target.counts_at(partition):
                    break
                await self._removal.advance_start(partition, start)
        except UnknownTopicOrPartition:
            return  # it was deleted meanwhile
        except StorageError as error:
            _log.info("%s keeps what is deleted, for now: %s", partition.name, error)
            self._refused[partition] = self._targets[partition]
            partition.log_start.refused(error)
        finally:
            del self._targets[partition]

    def retry(self) -> None:
        """Try again what disks have refused. Another leader may not want it."""
        refused, self._refused = self._refused, {}
        for partition, target in refused.items():
            if target.counts_at(partition):
                self.move(partition, target.start)

    # Promising.

    def promise(self, partition: Partition, then: Callable[[], None]) -> None:
        """Note what a follower promises its leader, and call `then` once that is durable."""
        self._promises[partition] = then
        if not self._is_noting:
            self._is_noting = True
            self._spawn(self._note())

    async def _note(self) -> None:
        try:
            while self._promises:
                promises, self._promises = self._promises, {}
                try:
                    await self._note_all(promises)
                except StorageError as error:
                    _log.info("log starts cannot be promised: %s", error)
                    if isinstance(error.__cause__, OSError) and is_full(error.__cause__):
                        for partition in promises:
                            await self._delete_instead(partition)
                    self._promises = promises | self._promises
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._is_noting = False

    async def _note_all(self, promises: dict[Partition, Callable[[], None]]) -> None:
        async with self._directory.noting:
            due = {
                partition: start
                for partition in promises
                if self._replicas.holds(partition)
                and (start := partition.log_start.promise_due()) is not None
            }
            if due:
                work = partial(self._directory.note_promises, {p.name: start for p, start in due.items()})
                await unbroken(self._change_disk(work))
        for partition, start in due.items():
            partition.log_start.promised = start
        for partition, then in promises.items():
            if self._replicas.holds(partition):
                then()

    async def _delete_instead(self, partition: Partition) -> None:
        if start := partition.log_start.promise_due():
            try:
                start = min(start, partition.high_watermark)
                await self._removal.advance_start(partition, start)
            except (StorageError, UnknownTopicOrPartition) as error:
                _log.info("%s keeps what is deleted, for now: %s", partition.name, error)
