"""A partition's log, read from its start to its end for a state that is the fold of it.

Rule 1: bytes that have rotted are handed to whoever heals them, as a reader's suspicion is, and
        read again after a while: by then they are mended, or another node leads.
Rule 2: what nobody can mend, and sound bytes that the fold does not understand, are told as
        `Unreadable`. Nothing of it ends the node.
Rule 3: bytes are looked at on the loop, where a log's memory is, and folded in a disk's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tidelog.broker.broker import Broker
from tidelog.errors import OffsetNotAvailable, StorageError
from tidelog.log.reading import Read
from tidelog.model import Offset
from tidelog.partition.driver import Partition
from tidelog.records import BatchHeader, iterate_batches

_log = logging.getLogger(__name__)

NO_SENSE: Final = "makes no sense"
_READ_BYTES: Final = 4 * 1024 * 1024
_HEALING_SECONDS: Final = 0.5
_HEALING_SECONDS_MAX: Final = 30.0
"""Between two looks at what has rotted: at first, and at last."""
_WHAT_TO_DO: Final = (
    "nothing that is kept there is served. If a newer version of Tidelog wrote it, run that one; "
    "otherwise look at it with `tidelog log dump`; a backup can be restored into another cluster"
)

T = TypeVar("T")
Replay = Callable[[BatchHeader, memoryview], None]
"""Takes one batch into the state; in a disk's thread."""


class Unreadable(Exception):
    """A log cannot be folded: what is wrong, where, and what to do."""


class LogReader:
    """Reads one log once, for as long as that `is_wanted`."""

    def __init__(self, broker: Broker, partition: Partition, is_wanted: Callable[[], bool]) -> None:
        self._broker = broker
        self._partition = partition
        self._is_wanted = is_wanted
        self._pause = _HEALING_SECONDS

    async def fold(self, replay: Replay) -> None:
        """Take all of the log, once it is committed, up to where it ends now."""
        partition = self._partition
        offset, end = partition.log.start, partition.log.end
        await partition.committed(end)
        while offset < end and self._is_wanted():
            offset = await self._fold_some(replay, max(offset, partition.log.start), end)

    def understand(self, call: Callable[[], T], what: str = "what is read") -> T:
        """What `call` makes of what was read; Unreadable if it makes no sense to it."""
        try:
            return call()
        except Exception as error:
            told = f"{what} of {self._partition.name} {NO_SENSE}: {str(error) or repr(error)}"
            raise Unreadable(f"{told}; {_WHAT_TO_DO}") from error

    async def _fold_some(self, replay: Replay, offset: Offset, end: Offset) -> Offset:
        """Take a piece of it; where that ends, or `offset` if it is to be read again."""
        partition, offload = self._partition, self._broker.host.offload
        try:
            read = partition.read(offset, _READ_BYTES, end)
            read_to = await offload.run(partial(self._take, replay, read, offset))
        except OffsetNotAvailable:
            await asyncio.sleep(0)  # its segment was compacted meanwhile, and there is another
            return offset
        except StorageError as error:
            await self._heal(offset, error)
            return offset
        self._pause = _HEALING_SECONDS
        return read_to

    def _take(self, replay: Replay, read: Read, offset: Offset) -> Offset:
        """Replay what was read from `offset` on, up to a batch that has rotted; where that ends.

        StorageError if it is the first. In a disk's thread.
        """
        data = read.load_sound(self._broker.host.disk)
        if not data:  # compaction took all that was there
            return read.limit
        for header, batch in iterate_batches(data):
            if header.last_offset >= offset:
                what = f"the batch at offsets {header.base_offset} to {header.last_offset}"
                self.understand(partial(replay, header, batch), what)
                offset = header.next_offset
        return offset

    async def _heal(self, offset: Offset, error: StorageError) -> None:
        """What lies there is not what was written: have it mended, or let another node lead."""
        partition, unserved = self._partition, self._broker.unserved
        if not self._is_wanted():
            return
        told = f"{partition.name} is damaged at offset {offset}: {error}"
        if not partition.is_copy:
            raise Unreadable(f"{told}; it has no other replica to be healed from")
        if partition.name not in unserved:
            _log.error("%s; it is read again when it is healed", told)
            unserved[partition.name] = f"{told}; it is being healed from other replicas"
        self._broker.replication.feeding.on_suspect(partition, offset)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _HEALING_SECONDS_MAX)
