"""Key-value over compacted topics: buckets, whose every write is a record.

Rule 1: a write is decided by the leader of its partition, over what is committed (the view) and
        what is still in flight (the overlay), and answered once it is committed. Between the decision and
        the append nothing else happens.
Rule 2: what is answered without a write (a read, a refused condition) is as new as any
        acknowledged write: it waits until all that it tells of is committed, and until those in
        sync have confirmed that this node leads.
        Had it a key by which it is known again, and could it be done if it came again, the log
        remembers first that it was not: a no stays a no.
Rule 3: a local read is answered by any replica in sync from its own view, which only moves on:
        after a restart, too, since it asks its leader first how far that must be.
Rule 4: a key expires when its leader appends a tombstone. Before that everybody sees it. In a topic
        that is not compacted nothing expires: it is no bucket.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec

from tidelog.broker.broker import Broker
from tidelog.broker.cold_reads import load
from tidelog.broker.joint_writes import JointWrite, size_of
from tidelog.broker.lead_confirmation import Confirming
from tidelog.broker.writing import Write, digest_of, find_repeated, reused
from tidelog.copies.node.views import View, Views
from tidelog.copies.views.kv import (
    Change,
    Entry,
    KvView,
    find_refused,
    get_entry,
    may_be_met,
    scan,
    version_of,
)
from tidelog.errors import (
    BrokerError,
    InvalidTopic,
    NotLeader,
    OffsetNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from tidelog.model import INTERNAL_TOPICS, NO_OFFSET, NO_PRODUCER, Offset, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.services.kv_expiring import Expiring
from tidelog.services.kv_state import Asked, Decision, Decisions, LeaderState, tell_all
from tidelog.services.kv_work import KvGet, KvGot, KvScan, KvScanned, KvStable, KvStableAt, KvWrite, KvWritten
from tidelog.wire.partitioner import partition_for

A = TypeVar("A", bound=msgspec.Struct)

_EXPIRE_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 1.0
_SCAN_BYTES_MAX: Final = 4 * 1024 * 1024
_NOT_DONE: Final = (b"nothing to do", b"refused")
"""How a request came out that changed nothing, where the log remembers it."""
_LOCAL_SECONDS_MAX: Final = 0.5
"""How long a replica may take to reach what a reader has seen elsewhere; then another is asked."""


class Kv:
    """The buckets of a cluster, as seen from this node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._confirming = Confirming(broker)
        self.views = Views(broker, KvView(), lambda partition: partition.config.kv_view)
        """Of every replica of a bucket on this node."""
        self.views.on_led = self._on_led
        self._leading: dict[TopicPartition, LeaderState] = {}
        self._turn = 0
        serving = broker.serving
        serving.offer(KvGet, self._serve_get)
        serving.offer(KvScan, self._serve_scan)
        serving.offer(KvStable, self._serve_stable)
        serving.offer(KvWrite, self._serve_write)
        broker.repeat(_EXPIRE_SECONDS, self._expire)

    # What faces ask for.

    async def places(self, bucket: str) -> list[TopicPartition]:
        """The partitions of a bucket; the error that says why it is none, if that is certain."""
        count = await self._partition_count(bucket)
        return [TopicPartition(bucket, number) for number in range(count)]

    async def place_of(self, bucket: str, key: bytes) -> TopicPartition:
        return TopicPartition(bucket, partition_for(key, await self._partition_count(bucket)))

    async def _partition_count(self, bucket: str) -> int:
        if bucket not in self._broker.image.topics:
            # Another node may have made it just now, and told its client so.
            await self._broker.metadata.caught_up()
        topic = self._broker.image.topics.get(bucket)
        if topic is None:
            raise UnknownTopicOrPartition(bucket)
        if bucket in INTERNAL_TOPICS or not self._broker.topic_config(topic).compacts:
            raise InvalidTopic(
                f"{bucket!r} is not compacted, so it is no bucket: `tidelog configs set topic "
                f"{bucket} cleanup.policy=compact`, or choose another name"
            )
        return len(topic.partitions)

    async def get(
        self, place: TopicPartition, key: bytes, *, is_strong: bool, after: Offset, seconds: float
    ) -> KvGot:
        """What a key is; strong: as new as any acknowledged write."""
        return await self._read(place, KvGet(key=key, is_strong=is_strong, after=after), KvGot, seconds)

    async def scan(
        self,
        place: TopicPartition,
        *,
        prefix: bytes,
        beyond: bytes | None,
        limit: int,
        is_strong: bool,
        after: Offset,
        seconds: float,
    ) -> KvScanned:
        work = KvScan(prefix=prefix, beyond=beyond, limit=limit, is_strong=is_strong, after=after)
        return await self._read(place, work, KvScanned, seconds)

    async def write(
        self,
        place: TopicPartition,
        changes: Sequence[Change],
        *,
        once: ProducerId = NO_PRODUCER,
        copies: int | None = None,
        seconds: float,
    ) -> KvWritten:
        """Change keys of one partition, all or none; OutcomeUnknown if nobody can tell."""
        return await self._broker.serving.call(
            place,
            KvWrite(changes=tuple(changes), once=once, copies=copies),
            KvWritten,
            seconds_max=seconds,
            is_repeatable=once != NO_PRODUCER,
        )

    async def _read(self, place: TopicPartition, work: KvGet | KvScan, answer: type[A], seconds: float) -> A:
        call = self._broker.serving.call
        if not work.is_strong:
            for node in self._replicas(place):
                with suppress(BrokerError):
                    return await call(
                        place,
                        work,
                        answer,
                        seconds_max=min(seconds, _LOCAL_SECONDS_MAX),
                        is_repeatable=True,
                        node=node,
                    )
            work = msgspec.structs.replace(work, is_strong=True)
        return await call(place, work, answer, seconds_max=seconds, is_repeatable=True)

    def _replicas(self, place: TopicPartition) -> list[int]:
        """Who may answer a local read: this node if it can, then the others in sync in turn."""
        broker = self._broker
        topic = broker.image.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return []  # it was made anew just now
        known = topic.partitions[place.partition]
        there = [n for n in known.replicas if n in known.in_sync and broker.image.is_alive(n)]
        if broker.node_id in there:
            there.remove(broker.node_id)
            return [broker.node_id, *there[:1]]
        self._turn += 1
        at = self._turn % len(there) if there else 0
        return [*there[at:], *there[:at]][:2]

    # Reading.

    async def _serve_get(self, partition: Partition, work: KvGet, deadline: float) -> KvGot:
        if not work.is_strong:
            view = await self._view_for(partition, False, work.after, deadline)
            return _got(view, view.ask(partial(get_entry, key=work.key)))
        index = max(work.after, await self._read_index(partition, deadline))
        state = await self._ready(partition, deadline)
        entry = state.current(work.key)
        is_committed = state.overlay.certain_at(work.key) <= state.leader.high_watermark
        if not is_committed or state.overlay.is_undecided(work.key):
            # What the key was before, or is to be, the view will know.
            await state.view.reached(index, deadline)
            entry = state.view.ask(partial(get_entry, key=work.key))
        return _got(state.view, entry)

    async def _serve_scan(self, partition: Partition, work: KvScan, deadline: float) -> KvScanned:
        view = await self._view_for(partition, work.is_strong, work.after, deadline)
        entries, is_cut = view.ask(partial(_scan, work=work))
        return KvScanned(entries=entries, applied=view.shown, is_cut=is_cut)

    async def _view_for(self, partition: Partition, is_strong: bool, after: Offset, deadline: float) -> View:
        """The view of a partition, once it has what the reader must see."""
        view = self.views.of(partition)
        if is_strong:
            after = max(after, await self._read_index(partition, deadline))
            await view.reached(after, deadline)
            return view
        while True:
            await self._fresh(view, deadline)
            await view.reached(after, deadline)
            if view.is_fresh:  # still
                return view

    async def _read_index(self, partition: Partition, deadline: float) -> Offset:
        """How far the log is committed, by the word of all who could know of more."""
        leader = partition.leading()
        await self._known(partition, leader, deadline)
        index = leader.high_watermark
        await self._confirming.confirm(partition, leader, deadline)
        return index

    async def _known(self, partition: Partition, leader: Leader, deadline: float) -> None:
        """Wait until a new leader knows that all from before its epoch is committed."""
        if leader.knows_watermark:
            return
        left = deadline - self._broker.host.clock.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(left, 0)):
                await partition.committed(leader.epoch_start)
        if partition.leader is not leader:
            raise NotLeader(leader=None)
        if not leader.knows_watermark:
            raise OffsetNotAvailable(f"the watermark of epoch {leader.epoch} is not known yet")

    async def _fresh(self, view: View, deadline: float) -> None:
        """Return once this replica has all that it, or another, can have shown."""
        await view.reached(0, deadline)
        if view.is_fresh:
            return
        follower, doubts = view.partition.follower, view.doubts
        if follower is None:
            raise OffsetNotAvailable("this replica has not caught up since it started")
        told = await self._broker.serving.call(
            view.partition.name,
            KvStable(epoch=follower.epoch),
            KvStableAt,
            seconds_max=deadline - self._broker.host.clock.monotonic(),
            is_repeatable=True,
            node=follower.leader,
        )
        await view.reached(told.offset, deadline)
        if view.doubts == doubts:
            view.is_fresh = True

    async def _serve_stable(self, partition: Partition, work: KvStable, deadline: float) -> KvStableAt:
        leader = partition.leading(work.epoch)
        await self._known(partition, leader, deadline)
        return KvStableAt(offset=partition.last_stable_offset)

    # Writing.

    async def _serve_write(self, partition: Partition, work: KvWrite, deadline: float) -> KvWritten:
        if work.once != NO_PRODUCER or work.copies is not None:
            return await self._write_alone(partition, work, deadline)
        loop = asyncio.get_running_loop()
        while True:
            state = await self._ready(partition, deadline)
            asked = Asked(work.changes, deadline, loop.create_future())
            state.asked.put(asked)
            told = await asked.reply
            if isinstance(told, KvWritten):
                return told
            if told is not None:
                await self._certain(partition, state.leader, told.seen, deadline)
                return KvWritten(offset=NO_OFFSET, existed=told.existed, refused=told.refused)

    def _write_together(self, state: LeaderState, asked: Sequence[Asked]) -> int:
        """Decide what came in one turn, and append it as one batch; how many that were."""
        clock, taken = self._broker.host.clock, 0
        try:
            is_known = not state.is_over and state.catch_up() is None and state.is_known
        except BrokerError as error:
            return tell_all(asked, error)
        if not is_known:
            return tell_all(asked, None)  # they come again once it is
        write = JointWrite(state.partition, clock, state.asked.pace)
        decisions = Decisions(state, write.base, clock.wall_ms())
        unwritten: list[tuple[Asked, Decision]] = []
        for one in asked:
            if not one.reply.done():  # else it has left
                try:
                    decision = decisions.decide(one.changes)
                except BrokerError as error:
                    one.reply.set_exception(error)
                else:
                    records, size = decision.records, size_of(decision.records)
                    if not write.has_room(size):
                        break
                    if records:
                        answer = KvWritten(offset=write.end, existed=decision.existed)
                        write.add(records, size, one.reply, answer, one.deadline)
                        decisions.keep(records)
                    else:
                        unwritten.append((one, decision))
            taken += 1
        is_written = write.append()
        if is_written and not write.is_stamped:
            state.overlay.take(decisions.entries, write.end)
        for one, decision in unwritten:
            # What it was decided on may not be in the log: then it is decided anew.
            one.reply.set_result(decision if is_written or decision.seen <= write.base else None)
        return taken

    async def _write_alone(self, partition: Partition, work: KvWrite, deadline: float) -> KvWritten:
        """A write that is known by a key, or waits for other replicas than the next one."""
        state = await self._ready(partition, deadline)
        write = Write(partition, self._broker.host.clock, copies=work.copies, deadline=deadline)
        # From here to the append there is no other turn.
        done = digest_of(msgspec.msgpack.encode(work.changes))
        void, stale = (digest_of(b"%d %s" % (done, outcome)) for outcome in _NOT_DONE)
        repeated = find_repeated(partition, work.once, done, void, stale)
        if repeated is not None:
            write.repeat(repeated)
            if repeated.first_sequence == stale:
                return await self._still_refused(state, work, write, deadline)
            is_void = repeated.first_sequence == void
            if not is_void and repeated.offset_delta + 1 != len(work.changes):
                raise reused()
            offset = await write.committed()
            # It appends nothing that only a leader could commit: the bucket may be deleted by now.
            await self._confirming.confirm(partition, state.leader, deadline)
            if is_void:
                return KvWritten(offset=NO_OFFSET, existed=(False,))
            return KvWritten(offset=offset)
        decisions = Decisions(state, partition.log.end, self._broker.host.clock.wall_ms())
        made = decisions.decide(work.changes)
        if not made.records:
            unmet = [work.changes[at] for at, _ in made.refused]
            settled_to = state.leader.high_watermark
            remembers = work.once != NO_PRODUCER and all(may_be_met(c, settled_to) for c in unmet)
            if remembers:  # all that it depends on lies before it in the log
                write.append_nothing(work.once, stale if made.refused else void)
                await write.committed()
            if not remembers or work.copies == 0:
                await self._certain(partition, state.leader, made.seen, deadline)
            return KvWritten(offset=NO_OFFSET, existed=made.existed, refused=made.refused)
        write.append(made.records, work.once, done)
        return KvWritten(offset=await write.committed(), existed=made.existed)

    async def _still_refused(
        self, state: LeaderState, work: KvWrite, write: Write, deadline: float
    ) -> KvWritten:
        """The answer to a repeat of what was refused: with what the keys' versions are now."""
        now = [state.current(change.key) if change.asks else None for change in work.changes]
        seen = max(state.overlay.certain_at(change.key) for change in work.changes)
        await write.committed()
        await self._certain(state.partition, state.leader, seen, deadline)
        refused = find_refused(work.changes, now) or tuple(
            (at, version_of(entry))
            for at, (change, entry) in enumerate(zip(work.changes, now, strict=True))
            if change.if_version is not None
        )
        return KvWritten(offset=NO_OFFSET, refused=refused, is_repeat=True)

    async def _certain(self, partition: Partition, leader: Leader, end: Offset, deadline: float) -> None:
        """Wait until what lies below `end` is committed, and this node known to lead."""
        left = deadline - self._broker.host.clock.monotonic()
        try:
            async with asyncio.timeout(max(left, 0)):
                await partition.committed(max(end, leader.epoch_start))
        except TimeoutError:
            raise RequestTimedOut("what this depends on was not committed in time") from None
        await self._confirming.confirm(partition, leader, deadline)

    async def _ready(self, partition: Partition, deadline: float) -> LeaderState:
        """What this node knows as the leader of a partition, to the end of its log."""
        while True:
            leader = partition.leading()
            state = self._leading.get(partition.name)
            if state is None or state.partition is not partition or state.is_over:
                state = await self._begin_leading(partition, leader, deadline)
            found = state.catch_up()
            if found is not None and found.cold is not None:
                data = await load(self._broker, partition, found)
                if found.cold.offset == max(state.overlay.end, state.log.start):
                    state.fold(data)
                    if not data:
                        state.overlay.skip(found.limit)
            elif state.is_known:
                return state
            elif state.is_full:
                await state.view.reached(state.view.applied + 1, deadline)
            else:
                await state.view.reached(state.overlay.start, deadline)

    async def _begin_leading(self, partition: Partition, leader: Leader, deadline: float) -> LeaderState:
        """Begin with a view that has all that it can have, so that there is little beside it."""
        view = self.views.of(partition)
        await self._known(partition, leader, deadline)
        await view.reached(min(leader.epoch_start, partition.last_stable_offset), deadline)
        if partition.leader is not leader:
            raise NotLeader(leader=None)
        state = self._leading.get(partition.name)
        if state is None or state.partition is not partition or state.is_over:
            state = self._leading[partition.name] = LeaderState(partition, leader, view, self._write_together)
            view.on_applied = state.settle
        return state  # else another was quicker

    # Expiring.

    def _on_led(self, partition: Partition) -> None:
        if partition.config.kv_view:
            self._broker.spawn(self._begin(partition))

    async def _begin(self, partition: Partition) -> None:
        """Watch over the keys of a partition from now on, though nobody asks."""
        leader = partition.leader
        while leader is not None and partition.leader is leader:
            try:
                await self._ready(partition, self._broker.host.clock.monotonic() + 60.0)
            except BrokerError:  # too few are in sync, or the disk does not read
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _expire(self) -> None:
        """Let keys expire in every partition that this node leads, a few of each in turn."""
        for name, state in list(self._leading.items()):
            if state.is_over:
                del self._leading[name]
                self._on_led(state.partition)
        rounds = [
            Expiring(state, self._broker)
            for state in self._leading.values()
            if state.partition.config.compacts  # else it is no bucket before it is restored
        ]
        while rounds:
            for one in list(rounds):
                if not one.go_on():
                    rounds.remove(one)
                await asyncio.sleep(0)


def _got(view: View, entry: Entry | None) -> KvGot:
    seen = 0 if entry is None else entry.version + 1
    is_there = entry is not None and entry.value is not None
    # Asked last: the view may have moved on since it was asked for the entry, and never back.
    return KvGot(entry=entry if is_there else None, applied=max(view.shown, seen))


def _scan(database: sqlite3.Connection, work: KvScan) -> tuple[tuple[Entry, ...], bool]:
    """What is asked for, as much of it as fits an answer; whether there is more."""
    entries: list[Entry] = []
    size = 0
    for entry in islice(scan(database, work.prefix, work.beyond), work.limit + 1):
        size += len(entry.key) + len(entry.value or b"")
        if len(entries) == work.limit or (entries and size > _SCAN_BYTES_MAX):
            return tuple(entries), True
        entries.append(entry)
    return tuple(entries), False
