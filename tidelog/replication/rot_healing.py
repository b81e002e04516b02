"""Heals what a scrubber has found: with another replica's bytes, or by a new beginning.

Rule 1: rot is healed where it is, with the bytes that another replica has at the same offsets. A
        batch of one epoch and offset was written by one leader, once: so a batch that checks out
        and is of the epoch that this log's own history names there is the one that was lost.
        That holds above the high watermark, too: but rot there is looked for only where a follower
        cannot be fed, and is damage if no other replica has the bytes.
Rule 2: where compaction has been at work replicas differ. There only a batch is taken that was
        here for certain (`log.same_batch`). If nobody has it, and where the bytes of no other
        replica fit, a follower begins anew, and a leader hands over first: both as with any damage,
        and only if another replica that is in sync says just then that it is whole. Whoever knows
        of rot says that it is not: so of those in sync one at least stays, and leads, whatever
        rots. What the device does not read counts only if it still does not seconds later: bytes
        may be there.
Rule 3: a sole replica is never changed. Its rot is told, and whoever reads it gets an error.

    found -> healed      another replica had the bytes, and they fit
    found -> damaged     a compacted log, or nothing fits; the replica leaves its sets, and begins
                         anew -> healed
    found -> found       nobody can help yet: asked again every few seconds
    found -> gone        deleted or compacted away meanwhile
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from tidelog.controller.image import PartitionImage
from tidelog.errors import StorageError
from tidelog.host import Bytes, Host, unbroken
from tidelog.log.disk_room import ChangeDisk
from tidelog.log.log import Log
from tidelog.log.same_batch import heal_same
from tidelog.log.scrub import Fit
from tidelog.log.scrub_cycle import Rot, ScrubCycle
from tidelog.log.segment import Segment
from tidelog.model import NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.replication.replicas import Replicas
from tidelog.replication.rot_helpers import RotHelpers
from tidelog.replication.scrub_visits import Visit

_log = logging.getLogger(__name__)

T = TypeVar("T")

TEND_SECONDS: Final = 5.0
"""How often whoever may help is asked again."""


class Declare(Protocol):
    """Lets everybody know that a log is damaged from an offset on."""

    def __call__(self, partition: Partition, log: Log, offset: Offset) -> None: ...


class RotHealer:
    """Mends the rot of one node. Owned by the event loop."""

    def __init__(
        self,
        host: Host,
        replicas: Replicas,
        cycle: ScrubCycle,
        helpers: RotHelpers,
        *,
        change_disk: ChangeDisk,
        declare: Declare,
    ) -> None:
        self._host = host
        self._replicas = replicas
        self._cycle = cycle
        self._helpers = helpers
        self._change_disk = change_disk
        self._declare = declare
        self.declared: dict[Rot, Log] = {}
        """Rot because of which a log was declared damaged: another one takes its place."""
        self.unhealed: dict[Rot, Visit] = {}
        """Where rot lies that nobody could help with so far."""
        self._unread: dict[Rot, float] = {}
        """Since when a device does not read where a log would begin anew for it."""
        self._tending: dict[Partition, asyncio.Future[None]] = {}
        """Where rot is being healed; until that is over."""

    async def heal(self, visit: Visit, rot: Rot) -> bool:
        """Whether it is healed. One at a time for a partition: the others wait for it."""
        partition = visit.partition
        while (under_way := self._tending.get(partition)) is not None:
            await asyncio.wait([under_way])
        if rot.state != "open":
            return True  # it was healed meanwhile
        done = self._tending[partition] = asyncio.get_running_loop().create_future()
        try:
            is_healed = await self._try_to_heal(visit, rot)
        finally:
            del self._tending[partition]
            done.set_result(None)
        if is_healed:
            self.unhealed.pop(rot, None)
            self._lose_places(visit.scrub.segment, rot.offset)
        elif rot not in self.declared:
            self.unhealed[rot] = visit._replace(scrub=visit.scrub.fork())
        return is_healed

    def _lose_places(self, segment: Segment, offset: Offset) -> None:
        """Where rot lies behind an offset that is healed: it was found past what was rotten.

        A rotten offset may have misled the reader there. It is found again, or was never there.
        """
        for rot, visit in list(self.unhealed.items()):
            if visit.scrub.segment is segment and rot.offset > offset:
                del self.unhealed[rot]

    def forget(self, rot: Rot, now_ms: int) -> None:
        """What was rotten is there no more, or is sound."""
        self._cycle.gone(rot, now_ms)
        self.unhealed.pop(rot, None)
        self.declared.pop(rot, None)
        self._unread.pop(rot, None)

    async def _try_to_heal(self, visit: Visit, rot: Rot) -> bool:
        partition = visit.partition
        known = self._helpers.known(partition)
        others = self._helpers.others(known)
        if not others:
            rot.why = "there is no other replica"
            if known is not None and len(known.replicas) > 1:
                rot.why = "no other replica is there"
            return False
        if visit.scrub.has_gaps:
            return await self._heal_compacted(visit, rot, known, others)
        contradicted = silent = 0
        for source in others:
            try:
                fit, size = await self._heal_from(source, visit, known)
            except (PeerUnreachable, PeerRefused, StorageError) as error:
                rot.why = f"node {source}: {error}"
                silent += not isinstance(error, StorageError)
                continue
            if fit is Fit.WHOLE:
                self.healed(rot, source, size)
                return True
            if fit is Fit.GAP:
                partition.is_sparse = visit.scrub.has_gaps = True
                self._cycle.gone(rot, self._host.clock.wall_ms())  # nothing was ever there
                return True
            rot.why, rot.is_contradicted = f"node {source} has other bytes there", True
            contradicted += 1
        rot.is_lacked = not silent
        if visit.is_committed and contradicted == len(others) and self._is_first(rot):
            return await self._begin_anew(visit, rot, known)
        return False

    async def _heal_compacted(
        self, visit: Visit, rot: Rot, known: PartitionImage | None, others: list[NodeId]
    ) -> bool:
        """Take the batch from another replica that has the very same; begin anew if none has."""
        assert known is not None, "others hold it"
        silent = ""
        for source in () if visit.scrub.is_unread else others:
            try:
                data = await self._helpers.ask(source, known.cluster_id, visit)
                work = partial(heal_same, self._host.disk, visit.scrub, data)
                if size := await self._change(visit, work):
                    self.healed(rot, source, size)
                    return True
            except (PeerUnreachable, PeerRefused) as error:
                silent = f"node {source}: {error}"
            except StorageError as error:
                _log.debug("node %d does not help %s: %s", source, rot.name, error)
        if silent:
            rot.why = silent
            return False
        return await self._begin_anew(visit, rot, known)

    async def _heal_from(self, source: NodeId, visit: Visit, known: PartitionImage | None) -> tuple[Fit, int]:
        """Put right what is rotten, batch by batch, until what follows is sound."""
        assert known is not None, "others hold it"
        scrub, total = visit.scrub, 0
        while True:
            data: Bytes = b""
            if scrub.offset < scrub.end:  # else there is too much, and nothing is lacking
                data = await self._helpers.ask(source, known.cluster_id, visit)
            before = scrub.offset
            fit, size = await self._change(visit, partial(scrub.mend, self._host.disk, data))
            total += size
            if fit is not Fit.MORE:
                return fit, total
            if scrub.offset == before:
                return Fit.NONE, total

    async def _change(self, visit: Visit, work: Callable[[], T]) -> T:
        """Change a segment's file while nobody else does, if it is the one that was looked at."""
        async with visit.partition.files:
            if not visit.is_current(self._replicas):
                raise StorageError("the log has changed meanwhile")
            return await unbroken(self._change_disk(work))

    def _is_first(self, rot: Rot) -> bool:
        """Whether no rot before it may have misled the reader to where it lies."""
        mine = [other for other in self._cycle.state.open if other.name == rot.name]
        return rot is min(mine, key=lambda other: other.offset, default=rot)

    def healed(self, rot: Rot, source: NodeId | None, size: int) -> None:
        """Note what has healed it: bytes of `source`, or a new beginning if that is None."""
        self._cycle.healed(rot, self._host.clock.wall_ms(), source=source, size=size)
        if size:
            _log.warning(
                "%s is healed at offset %d: %d bytes came from node %s", rot.name, rot.offset, size, source
            )
        elif source is not None:
            _log.warning(
                "%s has the same bytes at offset %d as on node %d: nothing was changed",
                rot.name,
                rot.offset,
                source,
            )
        else:
            _log.warning("%s was fetched again from its leader, and is not rotten any more", rot.name)

    # Where nothing fits.

    async def _begin_anew(self, visit: Visit, rot: Rot, known: PartitionImage | None) -> bool:
        """Leave it to the way of every damaged replica; whether nothing is left to be done."""
        if visit.scrub.is_unread:
            now = self._host.clock.monotonic()
            if now - self._unread.setdefault(rot, now) < TEND_SECONDS:
                rot.why = "the device did not read it; it is asked again"
                return False
        if known is None or not await self._helpers.is_another_whole(known):
            rot.why = "no other replica that is in sync says that it is whole"
            return False
        rot.why = "it cannot be healed in place: the replica is fetched again"
        if visit.is_current(self._replicas) and self._helpers.known(visit.partition) == known:
            self.declared[rot] = visit.log
            self._declare(visit.partition, visit.log, rot.offset)
        return False
