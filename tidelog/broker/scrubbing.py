"""Reads this node's sealed bytes again and again, slowly, and mends what has rotted.

Rule 1: what is read is sealed, synced and committed. It is read with idle priority, in small
        slices, at `scrub.bytes.per.second` at most, and memory keeps none of it.
Rule 2: rot is told at once, and stays in the list until it is healed or deleted.
Rule 3: rot is healed where it is, with the bytes that another replica has at the same offsets. A
        batch of one epoch and offset was written by one leader, once: so a batch that checks out
        and is of the epoch that this log's own history names there is the one that was lost.
        That holds above the high watermark, too: but rot there is looked for only where a follower
        cannot be fed, and is damage if no other replica has the bytes.
Rule 4: where compaction has been at work replicas differ. There only a batch is taken that was
        here for certain (`log.same_batch`). If nobody has it, and where the bytes of no other
        replica fit, a follower begins anew, and a leader hands over first: both as with any damage,
        and only if another replica that is in sync says just then that it is whole. Whoever knows
        of rot says that it is not: so of those in sync one at least stays, and leads, whatever
        rots. What the device does not read counts only if it still does not seconds later: bytes
        may be there.
Rule 5: a sole replica is never changed. Its rot is told, and whoever reads it gets an error.

    found -> healed      another replica had the bytes, and they fit
    found -> damaged     a compacted log, or nothing fits; the replica leaves its sets, and begins
                         anew -> healed
    found -> found       nobody can help yet: asked again every few seconds
    found -> gone        deleted or compacted away meanwhile
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tidelog.broker.replicas import Replicas
from tidelog.cluster.member import Member
from tidelog.cluster.messages import (
    ConfirmWhole,
    ConfirmWholeAnswer,
    FetchRange,
    FetchRangeAnswer,
)
from tidelog.config import NodeConfig
from tidelog.controller.image import PartitionImage
from tidelog.errors import BrokerError, StorageError, UnknownTopicOrPartition
from tidelog.host import Bytes, Host, Lane, Path, read_file, replace_file, unbroken
from tidelog.log.cleaner import Pace
from tidelog.log.log import ColdRead, Log
from tidelog.log.rounds import Rounds
from tidelog.log.same_batch import heal_same
from tidelog.log.scrub import GAP, Fit, SegmentScrub
from tidelog.log.scrub_cycle import FILE_NAME, Rot, ScrubCycle, ScrubState, place_of
from tidelog.log.segment import Segment
from tidelog.model import NO_NODE, NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_log = logging.getLogger(__name__)

T = TypeVar("T")

TEND_SECONDS: Final = 5.0
"""How often whoever may help is asked again."""
_NAP_SECONDS: Final = 1.0
"""How long a wait may last before a changed setting is noticed."""
_WAIT_SECONDS_MAX: Final = 60.0
"""Cycles go by the wall clock, which may jump."""
_ASK_SECONDS_MAX: Final = 2.0
_RANGE_BYTES_MAX: Final = 1024 * 1024
_TURN: Final = 100
"""Partitions that are looked at in one turn of the event loop."""


class ChangeDisk(Protocol):
    """Changes files in a disk's thread; refuses on a full disk, ends the node on any other."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class Declare(Protocol):
    """Lets everybody know that a log is damaged from an offset on."""

    def __call__(self, partition: Partition, log: Log, offset: Offset) -> None: ...


class _Visit(NamedTuple):
    """One segment of one log, being read."""

    partition: Partition
    log: Log
    scrub: SegmentScrub
    is_committed: bool
    """Whether all of the segment is, as far as this node knows."""


class Scrubber:
    """The scrubber of one node. Owned by the event loop."""

    def __init__(
        self,
        host: Host,
        member: Member,
        replicas: Replicas,
        rounds: Rounds,
        *,
        node_id: NodeId,
        root: Path,
        config: Callable[[], NodeConfig],
        change_disk: ChangeDisk,
        declare: Declare,
    ) -> None:
        self._host = host
        self._member = member
        self._metadata = member.metadata
        self._replicas = replicas
        self._rounds = rounds
        self._node_id = node_id
        self._path = root / FILE_NAME
        self._config = config
        self._change_disk = change_disk
        self._declare = declare
        self._cycle = ScrubCycle(ScrubState())
        self._pace = Pace(0)
        self._wake = asyncio.Event()
        self._is_loaded = False
        self._declared: dict[Rot, Log] = {}
        """Rot because of which a log was declared damaged: another one takes its place."""
        self._unhealed: dict[Rot, _Visit] = {}
        """Where rot lies that nobody could help with so far."""
        self._unread: dict[Rot, float] = {}
        """Since when a device does not read where a log would begin anew for it."""
        self._tending: dict[Partition, asyncio.Future[None]] = {}
        """Where rot is being healed; until that is over."""
        member.handle(FetchRange, self._on_fetch)
        member.handle(ConfirmWhole, self._on_confirm_whole)

    @property
    def state(self) -> ScrubState:
        """What was read and found; for those who tell of it."""
        return self._cycle.state

    def configure(self) -> None:
        """Settings may have changed."""
        self._wake.set()

    # Cycles.

    async def run(self) -> None:
        """Scrub, as long as the node lives."""
        while True:
            self._wake.clear()
            config = self._config()
            if not config.scrub_bytes_per_second:
                await self._wake.wait()
                continue
            if not self._is_loaded:
                self._cycle.go_on(await self._host.offload.run(self._load))
                self._is_loaded = True
            now_ms = self._host.clock.wall_ms()
            wait_ms = self._cycle.wait_ms(now_ms, config.scrub_interval_ms)
            if not wait_ms:
                await self._run_cycle()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_ms / 1000, _WAIT_SECONDS_MAX)):
                    await self._wake.wait()

    async def _run_cycle(self) -> None:
        self._cycle.begin(self._host.clock.wall_ms())
        names = [partition.name for partition in self._replicas.all()]
        names = await self._host.offload.run(partial(sorted, names, key=place_of))
        for number, (name, offset) in enumerate(self._cycle.left(names)):
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            if not self._config().scrub_bytes_per_second:
                return  # it goes on here when it is wanted again
            try:
                partition = self._replicas.find(name.topic, name.partition)
            except UnknownTopicOrPartition:
                continue
            if len(partition.log.segments) > 1:
                await self._scrub(partition, offset)
        state = self._cycle.state
        self._cycle.end(self._host.clock.wall_ms())
        _log.info(
            "scrubbed %d bytes in %.1f s; %d places are rotten",
            state.bytes_read, (state.ended_ms - state.began_ms) / 1000, len(state.open),
        )  # fmt: skip

    async def _scrub(self, partition: Partition, offset: Offset) -> None:
        """Every segment of a partition that ends after `offset`, and is there by now.

        A log that grows faster than it is read would keep the cycle from all others.
        """
        last = partition.log.end
        while offset < last and (visit := await self._visit(partition, offset)) is not None:
            self._cycle.reached(partition.name, visit.scrub.segment.base)
            await self._scrub_segment(visit)
            if not self._config().scrub_bytes_per_second:
                return
            offset = visit.scrub.end

    async def _visit(
        self, partition: Partition, offset: Offset, *, uncommitted: bool = False
    ) -> _Visit | None:
        """The sealed segment that holds `offset`, or the first after it; None if there is none."""
        async with partition.files:  # else a compacted segment's file may be the one before
            return self._visit_now(partition, offset, uncommitted)

    def _visit_now(self, partition: Partition, offset: Offset, uncommitted: bool) -> _Visit | None:
        log = partition.log
        if log.damaged_at is not None or partition.mending.is_busy:
            return None  # it is being brought in line, or will be
        at = max(bisect_right(log.segments, offset, key=lambda segment: segment.base) - 1, 0)
        if at + 1 >= len(log.segments):
            return None
        end = log.segments[at + 1].base
        is_committed = end <= partition.high_watermark
        if not is_committed and (not uncommitted or partition.has_gaps):
            return None
        if end > log.synced_end:  # of an idle log nobody else might ever sync the rest
            partition.sync()
            return None
        scrub = SegmentScrub(
            log.segments[at], end, start=log.start, epochs=log.epochs,
            has_gaps=partition.has_gaps, checks_epochs=partition.is_copy,
            index_interval_bytes=partition.config.index_interval_bytes,
        )  # fmt: skip
        return _Visit(partition, log, scrub, is_committed)

    async def _scrub_segment(self, visit: _Visit) -> None:
        """Read a segment to its end, or as far as it can be read, and mend what can be mended."""
        try:
            await self._read_segment(visit)
        except (OSError, StorageError) as error:  # too many open files, or a full disk
            _log.warning("%r is left to the next cycle: %s", visit.scrub.segment, error)
            visit.scrub.close()

    async def _read_segment(self, visit: _Visit) -> None:
        scrub = visit.scrub
        read = partial(scrub.read, self._host.disk)
        while not scrub.is_done:
            scanned = await self._host.offload.run(read, Lane.IDLE)
            if not self._is_current(visit):
                scrub.close()
                return  # deleted, compacted or cut meanwhile
            self._cycle.read(scanned.size)
            if scrub.problem is not None and not await self._confirm(visit):
                continue
            if scrub.problem is not None and not await self._found(visit):
                is_past = partial(scrub.skip, self._host.disk)
                if not await self._host.offload.run(is_past, Lane.IDLE):
                    return
            if scrub.stale_indexes:
                await self._write_indexes(visit)
            await self._keep_pace(scanned.charge)
            if not self._config().scrub_bytes_per_second:
                return

    async def _confirm(self, visit: _Visit) -> bool:
        """Whether a problem is still there while nobody renames or removes files.

        Nobody waits for an idle read: so it is not made while the files are held.
        """
        async with visit.partition.files:
            await self._host.offload.run(partial(visit.scrub.read, self._host.disk))
        return visit.scrub.problem is not None and self._is_current(visit)

    async def _write_indexes(self, visit: _Visit) -> None:
        """Make indexes again that would mislead those who search."""
        scrub = visit.scrub
        async with visit.partition.files:
            # Those of a segment that was sealed just now may be on their way to the disk.
            await self._rounds.written()
            if self._is_current(visit):
                await unbroken(self._change_disk(partial(scrub.write_indexes, self._host.disk)))
                _log.info(
                    "%s: made %s again",
                    visit.partition.name, ", ".join(path.name for path, _ in scrub.stale_indexes),
                )  # fmt: skip

    def _is_current(self, visit: _Visit) -> bool:
        partition, log, segment = visit.partition, visit.log, visit.scrub.segment
        return (
            self._replicas.holds(partition)
            and partition.log is log
            and log.damaged_at is None
            and not partition.mending.is_busy
            and _segment_at(log, segment.base) is segment
        )

    async def _keep_pace(self, charge: int) -> None:
        limit = self._config().scrub_bytes_per_second
        if limit != self._pace.bytes_per_second_max:
            self._pace = Pace(limit)
        wait = self._pace.wait_seconds(charge, self._host.clock.monotonic())
        while wait > 0 and self._config().scrub_bytes_per_second == limit:
            await asyncio.sleep(min(wait, _NAP_SECONDS))
            wait -= _NAP_SECONDS

    # Rot.

    async def _found(self, visit: _Visit) -> bool:
        """Tell of rot, and mend it; whether the segment can be read on from there."""
        scrub, partition = visit.scrub, visit.partition
        assert scrub.problem is not None
        if scrub.problem == GAP and not partition.is_copy:
            partition.is_sparse = scrub.has_gaps = True  # it was compacted once: nothing is lost
            return True
        name, offset = partition.name, scrub.live_offset
        is_new = self._cycle.find(name, offset) is None
        rot = self._cycle.found(name, offset, scrub.problem, self._host.clock.wall_ms())
        if is_new:
            _log.error(
                "%s is rotten at offset %d, byte %d of %s: %s",
                name, offset, scrub.position, scrub.segment.path().name, scrub.problem,
            )  # fmt: skip
        return await self._heal(visit, rot)

    async def _heal(self, visit: _Visit, rot: Rot) -> bool:
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
            self._unhealed.pop(rot, None)
            self._lose_places(visit.scrub.segment, rot.offset)
        elif rot not in self._declared:
            self._unhealed[rot] = visit._replace(scrub=visit.scrub.fork())
        return is_healed

    def _lose_places(self, segment: Segment, offset: Offset) -> None:
        """Where rot lies behind an offset that is healed: it was found past what was rotten.

        A rotten offset may have misled the reader there. It is found again, or was never there.
        """
        for rot, visit in list(self._unhealed.items()):
            if visit.scrub.segment is segment and rot.offset > offset:
                del self._unhealed[rot]

    async def _try_to_heal(self, visit: _Visit, rot: Rot) -> bool:
        partition = visit.partition
        known = self._known(partition)
        others = self._others(known)
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
                self._healed(rot, source, size)
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
        self, visit: _Visit, rot: Rot, known: PartitionImage | None, others: list[NodeId]
    ) -> bool:
        """Take the batch from another replica that has the very same; begin anew if none has."""
        assert known is not None, "others hold it"
        silent = ""
        for source in () if visit.scrub.is_unread else others:
            try:
                data = await self._ask(source, known.cluster_id, visit)
                work = partial(heal_same, self._host.disk, visit.scrub, data)
                if size := await self._change(visit, work):
                    self._healed(rot, source, size)
                    return True
            except (PeerUnreachable, PeerRefused) as error:
                silent = f"node {source}: {error}"
            except StorageError as error:
                _log.debug("node %d does not help %s: %s", source, rot.name, error)
        if silent:
            rot.why = silent
            return False
        return await self._begin_anew(visit, rot, known)

    async def _change(self, visit: _Visit, work: Callable[[], T]) -> T:
        """Change a segment's file while nobody else does, if it is the one that was looked at."""
        async with visit.partition.files:
            if not self._is_current(visit):
                raise StorageError("the log has changed meanwhile")
            return await unbroken(self._change_disk(work))

    def _is_first(self, rot: Rot) -> bool:
        """Whether no rot before it may have misled the reader to where it lies."""
        mine = [other for other in self._cycle.state.open if other.name == rot.name]
        return rot is min(mine, key=lambda other: other.offset, default=rot)

    def _healed(self, rot: Rot, source: NodeId | None, size: int) -> None:
        self._cycle.healed(rot, self._host.clock.wall_ms(), source=source, size=size)
        if size:
            _log.warning(
                "%s is healed at offset %d: %d bytes came from node %s",
                rot.name, rot.offset, size, source,
            )  # fmt: skip
        elif source is not None:
            _log.warning(
                "%s has the same bytes at offset %d as on node %d: nothing was changed",
                rot.name, rot.offset, source,
            )  # fmt: skip
        else:
            _log.warning("%s has begun anew, and is not rotten any more", rot.name)

    async def _heal_from(
        self, source: NodeId, visit: _Visit, known: PartitionImage | None
    ) -> tuple[Fit, int]:
        """Put right what is rotten, batch by batch, until what follows is sound."""
        assert known is not None, "others hold it"
        scrub, total = visit.scrub, 0
        while True:
            data: Bytes = b""
            if scrub.offset < scrub.end:  # else there is too much, and nothing is lacking
                data = await self._ask(source, known.cluster_id, visit)
            before = scrub.offset
            fit, size = await self._change(visit, partial(scrub.mend, self._host.disk, data))
            total += size
            if fit is not Fit.MORE:
                return fit, total
            if scrub.offset == before:
                return Fit.NONE, total

    async def _ask(self, source: NodeId, cluster_id: int, visit: _Visit) -> Bytes:
        asked = FetchRange(
            cluster_id=cluster_id, offset=visit.scrub.live_offset, end=visit.scrub.end,
            bytes_max=_RANGE_BYTES_MAX, uncommitted=not visit.is_committed,
        )  # fmt: skip
        answer, data = await self._member.hub.ask_data(
            source, asked, FetchRangeAnswer, seconds_max=_ASK_SECONDS_MAX
        )
        if answer.problem or not data:
            raise StorageError(answer.problem or "it has nothing there")
        return data

    async def _begin_anew(self, visit: _Visit, rot: Rot, known: PartitionImage | None) -> bool:
        """Leave it to the way of every damaged replica; whether nothing is left to be done."""
        if visit.scrub.is_unread:
            now = self._host.clock.monotonic()
            if now - self._unread.setdefault(rot, now) < TEND_SECONDS:
                rot.why = "the device did not read it; it is asked again"
                return False
        if known is None or not await self._is_another_whole(known):
            rot.why = "no other replica that is in sync says that it is whole"
            return False
        rot.why = "it cannot be healed where it is: the replica begins anew"
        if self._is_current(visit) and self._known(visit.partition) == known:
            self._declared[rot] = visit.log
            self._declare(visit.partition, visit.log, rot.offset)
        return False

    async def _is_another_whole(self, known: PartitionImage) -> bool:
        asked = ConfirmWhole(cluster_id=known.cluster_id, partition_epoch=known.partition_epoch)
        for node in self._others(known):
            with suppress(PeerUnreachable, PeerRefused):
                answer = await self._member.hub.ask(
                    node, asked, ConfirmWholeAnswer, seconds_max=_ASK_SECONDS_MAX
                )
                if answer.is_whole:
                    return True
        return False

    async def tend(self) -> None:
        """Look again at what is rotten."""
        for rot in list(self._cycle.state.open):
            if rot.state != "open":
                continue  # healed meanwhile, with what lies before it
            now_ms = self._host.clock.wall_ms()
            try:
                partition = self._replicas.find(rot.topic, rot.partition)
            except UnknownTopicOrPartition:
                self._forget(rot, now_ms)
                continue
            if (declared := self._declared.get(rot)) is not None:
                if declared is not partition.log and partition.log.damaged_at is None:
                    self._healed(rot, None, 0)
                    self._forget(rot, now_ms)
            elif _is_gone(partition.log, rot.offset):
                self._forget(rot, now_ms)
            else:
                await self._look_again(partition, rot)

    def _forget(self, rot: Rot, now_ms: int) -> None:
        self._cycle.gone(rot, now_ms)
        self._unhealed.pop(rot, None)
        self._declared.pop(rot, None)
        self._unread.pop(rot, None)

    async def _look_again(self, partition: Partition, rot: Rot) -> None:
        visit = self._unhealed.get(rot)
        is_current = visit is not None and self._is_current(visit)
        if visit is not None and is_current and not visit.scrub.is_unread:
            if await self._heal(visit, rot):
                await self._scrub_segment(visit)
            return
        self._unhealed.pop(rot, None)
        if not is_current:  # found before a restart, or in a log that is there no more
            visit = await self._visit(partition, rot.offset)
        if visit is not None:
            await self._scrub_segment(visit)
            if visit.scrub.is_done and rot not in self._unhealed and rot not in self._declared:
                self._forget(rot, self._host.clock.wall_ms())

    async def inspect(self, partition: Partition, offset: Offset) -> bool:
        """Somebody could not read there: whether that is mended, or will be where it is.

        Not if another replica had something else there: then only a new beginning helps. Nor if
        it is not committed, and nobody else has it.
        """
        visit = await self._visit(partition, offset, uncommitted=True)
        if visit is None:
            return False
        scrub = visit.scrub
        await self._host.offload.run(partial(scrub.seek, self._host.disk))
        if scrub.problem is None or not await self._confirm(visit):
            return True
        rotten_at = scrub.live_offset
        if await self._found(visit):
            return True
        rot = self._cycle.find(partition.name, rotten_at)
        if rot is None or not (rot.is_contradicted if visit.is_committed else rot.is_lacked):
            return True
        self._unhealed.pop(rot, None)
        self._declared[rot] = visit.log  # by whoever has asked
        return False

    # Who may help, and helping others.

    def _known(self, partition: Partition) -> PartitionImage | None:
        topic = self._metadata.image.topics_by_id.get(partition.topic_id)
        return None if topic is None else topic.partitions[partition.name.partition]

    def _others(self, known: PartitionImage | None) -> list[NodeId]:
        """Those that are there and hold the partition: the leader first, then who is in sync."""
        if known is None:
            return []
        nodes = [known.leader, *sorted(known.in_sync), *known.replicas]
        image = self._metadata.image
        return [
            node
            for node in dict.fromkeys(nodes)
            if node not in (NO_NODE, self._node_id) and image.is_alive(node)
        ]

    def _on_fetch(self, source: NodeId, asked: FetchRange, place: Answer | None) -> None:
        assert place is not None, "it waits for the bytes"
        try:
            partition, found = self._read(asked)
        except BrokerError as error:
            place.send_with(FetchRangeAnswer(problem=str(error) or type(error).__name__), ())
            return
        if not isinstance(found, ColdRead):
            place.send_with(FetchRangeAnswer(), found[0])
            return
        work = partial(found.perform_checked, self._host.disk, has_gaps=partition.has_gaps)
        self._host.offload.run(work).add_done_callback(partial(_answer, place))

    def _on_confirm_whole(self, source: NodeId, asked: ConfirmWhole, place: Answer | None) -> None:
        assert place is not None, "it is a question"
        place.send(ConfirmWholeAnswer(is_whole=self._is_whole(asked)))

    def _is_whole(self, asked: ConfirmWhole) -> bool:
        at = self._metadata.image.places.get(asked.cluster_id)
        if at is None or at.partition.partition_epoch != asked.partition_epoch:
            return False
        try:
            partition = self._replicas.find(at.topic.id, at.number)
        except UnknownTopicOrPartition:
            return False
        return (
            self._node_id in at.partition.in_sync
            and partition.log.damaged_at is None
            and not partition.mending.is_busy
            and not any(rot.name == partition.name for rot in self._cycle.state.open)
        )

    def _read(self, asked: FetchRange) -> tuple[Partition, Any]:
        at = self._metadata.image.places.get(asked.cluster_id)
        if at is None:
            raise UnknownTopicOrPartition(f"partition {asked.cluster_id:#x}")
        partition = self._replicas.find(at.topic.id, at.number)
        if partition.mending.is_busy:
            raise StorageError("its log is being brought in line")
        last = partition.log.end if asked.uncommitted else partition.high_watermark
        limit = min(last, asked.end)
        return partition, partition.log.read(asked.offset, asked.bytes_max, limit)

    # Noting.

    def _load(self) -> ScrubCycle:
        try:
            return ScrubCycle.decode(read_file(self._host.disk, self._path))
        except OSError:
            return ScrubCycle(ScrubState())  # it only says where to go on

    async def note(self) -> None:
        """Let the next start know how far this one is. A power loss may take the note."""
        if not self._cycle.is_noted:
            self._cycle.is_noted = True
            content = self._cycle.encode()
            write = partial(replace_file, self._host.disk, self._path, content, durably=False)
            await self._change_disk(write)


def _is_gone(log: Log, offset: Offset) -> bool:
    """Whether what was sealed there was deleted, or cut off."""
    is_sealed = offset < log.segments[-1].base
    return offset < log.start or (not is_sealed and log.damaged_at is None)


def _segment_at(log: Log, base: Offset) -> Segment | None:
    at = bisect_right(log.segments, base, key=lambda segment: segment.base) - 1
    return log.segments[at] if at >= 0 else None


def _answer(place: Answer, future: "asyncio.Future[Bytes]") -> None:
    if future.cancelled():
        place.fail("this node is stopping")
    elif (error := future.exception()) is not None:
        place.send_with(FetchRangeAnswer(problem=str(error) or type(error).__name__), ())
    else:
        place.send_with(FetchRangeAnswer(), (future.result(),))
