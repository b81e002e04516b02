"""Acts on what the metadata says, in the order in which it was said.

Rule 1: one thing after the other; who waits for an offset is told when all below it is done.
Rule 2: what a full disk keeps from being done is tried again until it is, or is not wanted.
Rule 3: much is found and done in slices, so that others get their turns; what is committed
        meanwhile comes after it.
Rule 4: who keeps something about a topic hears of its end before anybody can ask for another one of
        its name: at once, and not when its files are gone.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from tidelog.cluster.metadata import Metadata
from tidelog.controller.difference import SLICE, Difference, Differences, Replica, Role
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    MetadataRecord,
    NodeRegistered,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from tidelog.errors import StorageError
from tidelog.model import NodeId, Offset, TopicPartition
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

Moved: TypeAlias = list[tuple[TopicPartition, bool]]

_FEW: Final = 50
_OF_MANY: Final = (TopicCreated, PartitionsAdded, TopicDeleted, NodeRegistered)
"""Records that may concern any number of partitions."""


class MetadataChanges:
    """This node's replicas, brought after the image."""

    def __init__(
        self,
        node_id: NodeId,
        metadata: Metadata,
        replicas: Replicas,
        *,
        apply_configs: Callable[[Sequence[str] | None], Coroutine[Any, Any, None]],
        tell_deleted: Callable[[str], None],
        tell_moved: Callable[[Moved], None],
    ) -> None:
        """`tell_moved` hears what is led anew, or held no more, and whether this node leads it.

        `apply_configs` is told of which topics; None: of all, and of the node.
        """
        self._metadata = metadata
        self._replicas = replicas
        self._differences = Differences(node_id)
        self._apply_configs = apply_configs
        self._tell_deleted = tell_deleted
        self._tell_moved = tell_moved
        self._seen = metadata.image
        self._records: list[MetadataRecord] = []
        self._whole = True
        self._is_idle = False
        self._undone: Difference | None = None
        self._wake = asyncio.Event()
        self.acted_on: Offset = 0
        """Everything below it was acted on, as far as the disk allowed."""
        self._waits: list[tuple[Offset, asyncio.Future[None]]] = []
        self._put_off: dict[TopicPartition, Replica] = {}
        metadata.on_applied(self._on_applied)

    def _on_applied(self, records: Sequence[MetadataRecord]) -> None:
        if not records:  # a snapshot, which does not tell of deletions
            self._whole = True
            before, self._seen = self._seen, self._metadata.image
            for name in _gone(before, self._seen):
                self._tell_deleted(name)
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
        if self._whole or self._put_off or len(self._records) > _FEW:
            return False
        if any(isinstance(record, _OF_MANY) for record in self._records):
            return False
        records, self._records = self._records, []
        difference = self._differences.after(self._image(), records)
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

    def _image(self) -> ClusterImage:
        return self._metadata.image

    async def _find(self) -> Difference:
        """What there is to do about all that the image has by now."""
        records, self._records = self._records, []
        whole, self._whole = self._whole, False
        found = Difference()
        if whole:
            slices = self._differences.whole_in_slices(self._image, found)
        else:
            slices = self._differences.after_in_slices(self._image, records, found)
        for _ in slices:
            await asyncio.sleep(0)  # others get their turn
        return found

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
        for difference in (undone, await self._find()):
            try:
                await self._act(difference or Difference())
            except StorageError as error:
                _log.error("the metadata cannot be followed: %s", error)
                failure = error
        self._reached(applied, failure)

    def _reached(self, applied: Offset, failure: StorageError | None) -> None:
        self.acted_on = applied
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
            topics = None if difference.node_configured else difference.topics_configured
            await self._apply_configs(topics)
        for count, replica in enumerate((*difference.led, *difference.changed), 1):
            if replica.name in self._put_off:
                self._put_off[replica.name] = replica
            else:
                await self._replicas.become(replica)
            if count % SLICE == 0:
                await asyncio.sleep(0)
        await self._tell([(closed.name, False) for closed in difference.closed])
        await self._tell(_roles(r for r in difference.led if r.name not in self._put_off))
        self._put_off |= {replica.name: replica for replica in difference.opened}
        if self._put_off:
            opened = list(self._put_off.values())
            await self._replicas.open(opened, self._metadata.image)
            self._put_off.clear()
            await self._tell(_roles(opened))

    async def _tell(self, moved: Moved) -> None:
        for at in range(0, len(moved), SLICE):
            if at:
                await asyncio.sleep(0)
            self._tell_moved(moved[at : at + SLICE])

    def retry(self) -> None:
        """Try again what could not be done before."""
        if self._put_off:
            self._is_idle = False
            self._wake.set()

    async def done(self, offset: Offset) -> None:
        """Wait until everything below `offset` was acted on; StorageError if it could not be."""
        if self.acted_on < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waits.append((offset, future))
            await future


def _gone(before: ClusterImage, now: ClusterImage) -> list[str]:
    """The topics that are no more, wherever their replicas were; made again, it is another one."""
    return [topic.name for topic in before.topics.values() if topic.id not in now.topics_by_id]


def _roles(replicas: Iterable[Replica]) -> Moved:
    return [(replica.name, replica.role is Role.LEAD) for replica in replicas]
