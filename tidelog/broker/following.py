"""Acts on what the metadata says, in the order in which it was said.

Rule 1: one thing after the other; who waits for an offset is told when all below it is done.
Rule 2: what a full disk keeps from being done is tried again until it is, or is not wanted.
Rule 3: who keeps something about a topic hears of its end before anybody can ask for another one of
        its name: at once, and not when its files are gone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from tidelog.broker.replicas import Replicas
from tidelog.cluster.metadata import Metadata
from tidelog.controller.difference import Difference, Differences, Replica, Role
from tidelog.controller.records import MetadataRecord, TopicDeleted
from tidelog.errors import StorageError
from tidelog.model import NodeId, Offset, TopicPartition

_log = logging.getLogger(__name__)


class Following:
    """This node's replicas, brought after the image."""

    def __init__(
        self,
        node_id: NodeId,
        metadata: Metadata,
        replicas: Replicas,
        *,
        apply_configs: Callable[[], None],
        tell_deleted: Callable[[str], None],
        tell_moved: Callable[[list[tuple[TopicPartition, bool]]], None],
    ) -> None:
        """`tell_moved` hears what is led anew, or held no more, and whether this node leads it."""
        self._metadata = metadata
        self._replicas = replicas
        self._differences = Differences(node_id)
        self._apply_configs = apply_configs
        self._tell_deleted = tell_deleted
        self._tell_moved = tell_moved
        self._records: list[MetadataRecord] = []
        self._whole = True
        self._is_idle = False
        self._undone: Difference | None = None
        self._wake = asyncio.Event()
        self._done: Offset = 0
        self._waits: list[tuple[Offset, asyncio.Future[None]]] = []
        self._put_off: dict[TopicPartition, Replica] = {}
        metadata.on_applied(self._on_applied)

    def _on_applied(self, records: Sequence[MetadataRecord]) -> None:
        if not records:  # a snapshot
            self._whole = True
        for record in records:
            if isinstance(record, TopicDeleted):
                self._tell_deleted(record.name)
        self._records.extend(records)
        if not (self._is_idle and self._act_now()):
            self._is_idle = False
            self._wake.set()

    def _act_now(self) -> bool:
        """Act on the newest records if that takes no time: who leads what, and who is in sync.

        So clients that learn from this node who leads find it acting accordingly.
        """
        assert self._undone is None, "it was idle"
        if self._whole or self._put_off:
            return False
        difference = self._take()
        is_quick = not (difference.closed or difference.opened)
        if is_quick and not (difference.node_configured or difference.topics_configured):
            waiting = [r for r in difference.led if not self._replicas.become_now(r)]
            for replica in difference.changed:
                self._replicas.become_now(replica)
            self._tell_moved(_roles(r for r in difference.led if r not in waiting))
            if not waiting:
                self._reached(self._metadata.applied, None)
                return True
            difference = Difference(led=waiting)
        self._undone = difference
        return False

    def _take(self) -> Difference:
        image, records = self._metadata.image, self._records
        whole, self._whole = self._whole, False
        self._records = []
        return self._differences.whole(image) if whole else self._differences.after(image, records)

    async def run(self) -> None:
        with suppress(OSError):  # the disk has failed: the node is stopping
            while True:
                self._is_idle = not self._wake.is_set()
                await self._wake.wait()
                self._is_idle = False
                await self.catch_up()

    async def catch_up(self) -> None:
        """Act on everything that the image has by now."""
        self._wake.clear()
        failure: StorageError | None = None
        undone, self._undone = self._undone, None
        applied = self._metadata.applied
        for difference in (undone, self._take()):
            try:
                await self._act(difference or Difference())
            except StorageError as error:
                _log.error("the metadata cannot be followed: %s", error)
                failure = error
        self._reached(applied, failure)

    def _reached(self, applied: Offset, failure: StorageError | None) -> None:
        self._done = applied
        reached = [future for offset, future in self._waits if offset <= applied]
        self._waits = [wait for wait in self._waits if wait[0] > applied]
        for future in reached:
            if not future.done() and failure is None:
                future.set_result(None)
            elif not future.done() and failure is not None:
                future.set_exception(StorageError(str(failure)))

    async def _act(self, difference: Difference) -> None:
        for closed in difference.closed:
            self._put_off.pop(closed.name, None)
        try:
            await self._replicas.close(difference.closed)
        except StorageError as error:  # they are served no more; a start will remove their files
            _log.error("what is left of deleted partitions cannot be removed: %s", error)
        if difference.node_configured or difference.topics_configured:
            self._apply_configs()
        for replica in [*difference.led, *difference.changed]:
            if replica.name in self._put_off:
                self._put_off[replica.name] = replica
            else:
                await self._replicas.become(replica)
        for name in difference.topics_gone:
            self._tell_deleted(name)
        self._tell_moved([(closed.name, False) for closed in difference.closed])
        self._tell_moved(_roles(r for r in difference.led if r.name not in self._put_off))
        self._put_off |= {replica.name: replica for replica in difference.opened}
        if self._put_off:
            opened = list(self._put_off.values())
            await self._replicas.open(opened, self._metadata.image)
            self._put_off.clear()
            self._tell_moved(_roles(opened))

    def retry(self) -> None:
        """Try again what could not be done before."""
        if self._put_off:
            self._is_idle = False
            self._wake.set()

    async def done(self, offset: Offset) -> None:
        """Wait until everything below `offset` was acted on; StorageError if it could not be."""
        if self._done < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waits.append((offset, future))
            await future


def _roles(replicas: Iterable[Replica]) -> list[tuple[TopicPartition, bool]]:
    return [(replica.name, replica.role is Role.LEAD) for replica in replicas]
