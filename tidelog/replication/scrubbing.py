"""Reads this node's sealed bytes again and again, slowly, and mends what has rotted.

Rule 1: what is read is sealed, synced and committed. It is read with idle priority, in small
        slices, at `scrub.bytes.per.second` at most, and memory keeps none of it.
Rule 2: rot is told at once, and stays in the list until it is healed or deleted.
Rule 3: what is found is mended where it is, or the replica begins anew: `rot_healing.py` has the
        rules.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.cluster.member import ClusterMember
from tidelog.config import NodeConfig
from tidelog.errors import StorageError, UnknownTopicOrPartition
from tidelog.host import Host, Lane, Path, read_file, replace_file, unbroken
from tidelog.log.cleaner import Pace
from tidelog.log.disk_room import ChangeDisk
from tidelog.log.log import Log
from tidelog.log.rounds import Rounds
from tidelog.log.scrub import GAP
from tidelog.log.scrub_cycle import FILE_NAME, Rot, ScrubCycle, ScrubState, place_of
from tidelog.model import NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.replication.replicas import Replicas
from tidelog.replication.rot_healing import Declare, RotHealer
from tidelog.replication.rot_helpers import RotHelpers
from tidelog.replication.scrub_visits import Visit, visit_at

_log = logging.getLogger(__name__)

_NAP_SECONDS: Final = 1.0
"""How long a wait may last before a changed setting is noticed."""
_WAIT_SECONDS_MAX: Final = 60.0
"""Cycles go by the wall clock, which may jump."""
_TURN: Final = 100
"""Partitions that are looked at in one turn of the event loop."""


class Scrubber:
    """The scrubber of one node. Owned by the event loop."""

    def __init__(
        self,
        host: Host,
        member: ClusterMember,
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
        self._replicas = replicas
        self._rounds = rounds
        self._path = root / FILE_NAME
        self._config = config
        self._change_disk = change_disk
        self._cycle = ScrubCycle(ScrubState())
        self._pace = Pace(0)
        self._wake = asyncio.Event()
        self._is_loaded = False
        helpers = RotHelpers(host, member, replicas, self._cycle, node_id=node_id)
        self._healer = RotHealer(
            host, replicas, self._cycle, helpers, change_disk=change_disk, declare=declare
        )

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
            state.bytes_read,
            (state.ended_ms - state.began_ms) / 1000,
            len(state.open),
        )

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
    ) -> Visit | None:
        """The sealed segment that holds `offset`, or the first after it; None if there is none."""
        async with partition.files:
            return visit_at(partition, offset, uncommitted=uncommitted)

    async def _scrub_segment(self, visit: Visit) -> None:
        """Read a segment to its end, or as far as it can be read, and mend what can be mended."""
        try:
            await self._read_segment(visit)
        except (OSError, StorageError) as error:  # too many open files, or a full disk
            _log.warning("%r is left to the next cycle: %s", visit.scrub.segment, error)
            visit.scrub.close()

    async def _read_segment(self, visit: Visit) -> None:
        scrub = visit.scrub
        read = partial(scrub.read, self._host.disk)
        while not scrub.is_done:
            scanned = await self._host.offload.run(read, Lane.IDLE)
            if not visit.is_current(self._replicas):
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

    async def _confirm(self, visit: Visit) -> bool:
        """Whether a problem is still there while nobody renames or removes files.

        Nobody waits for an idle read: so it is not made while the files are held.
        """
        async with visit.partition.files:
            await self._host.offload.run(partial(visit.scrub.read, self._host.disk))
        return visit.scrub.problem is not None and visit.is_current(self._replicas)

    async def _write_indexes(self, visit: Visit) -> None:
        """Make indexes again that would mislead those who search."""
        scrub = visit.scrub
        async with visit.partition.files:
            # Those of a segment that was sealed just now may be on their way to the disk.
            await self._rounds.written()
            if visit.is_current(self._replicas):
                await unbroken(self._change_disk(partial(scrub.write_indexes, self._host.disk)))
                _log.info(
                    "%s: made %s again",
                    visit.partition.name,
                    ", ".join(path.name for path, _ in scrub.stale_indexes),
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

    async def _found(self, visit: Visit) -> bool:
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
                name,
                offset,
                scrub.position,
                scrub.segment.path().name,
                scrub.problem,
            )
        return await self._healer.heal(visit, rot)

    async def tend(self) -> None:
        """Look again at what is rotten."""
        for rot in list(self._cycle.state.open):
            if rot.state != "open":
                continue  # healed meanwhile, with what lies before it
            now_ms = self._host.clock.wall_ms()
            try:
                partition = self._replicas.find(rot.topic, rot.partition)
            except UnknownTopicOrPartition:
                self._healer.forget(rot, now_ms)
                continue
            if (declared := self._healer.declared.get(rot)) is not None:
                if declared is not partition.log and partition.log.damaged_at is None:
                    self._healer.healed(rot, None, 0)
                    self._healer.forget(rot, now_ms)
            elif _is_gone(partition.log, rot.offset):
                self._healer.forget(rot, now_ms)
            else:
                await self._look_again(partition, rot)

    async def _look_again(self, partition: Partition, rot: Rot) -> None:
        visit = self._healer.unhealed.get(rot)
        is_current = visit is not None and visit.is_current(self._replicas)
        if visit is not None and is_current and not visit.scrub.is_unread:
            if await self._healer.heal(visit, rot):
                await self._scrub_segment(visit)
            return
        self._healer.unhealed.pop(rot, None)
        if not is_current:  # found before a restart, or in a log that is there no more
            visit = await self._visit(partition, rot.offset)
        if visit is not None:
            await self._scrub_segment(visit)
            if visit.scrub.is_done and rot not in self._healer.unhealed and rot not in self._healer.declared:
                self._healer.forget(rot, self._host.clock.wall_ms())

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
        self._healer.unhealed.pop(rot, None)
        self._healer.declared[rot] = visit.log  # by whoever has asked
        return False

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
