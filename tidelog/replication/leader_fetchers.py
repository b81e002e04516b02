"""The followers of this node read from their leaders: one fetcher for each leader's node.

Rule 1: one request at a time for all partitions that this node follows there. It says only what
        has changed since the last one.
Rule 2: what a log was asked to hold is appended as it came, or not at all; whatever goes wrong with
        one partition is tried again later and keeps no other waiting.
Rule 3: what is held is told by notes, coalesced: one for all that a round of the disk has synced.
Rule 4: who has much that is not written yet reads on once it is: memory is bounded, and the writes
        of others do not wait behind more than that.
Rule 5: little is read on once it is held, for a moment at least: so note and request leave together
        and arrive together, and what comes meanwhile is read at once. Much is read on at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import (
    AnswerNow,
    FetchReplicas,
    FetchReplicasAnswer,
    Progress,
    ReplicaPart,
    ReplicaPosition,
    ReplicaProgress,
)
from tidelog.errors import CorruptMessage, OffsetOutOfRange, StorageError
from tidelog.host import Host, in_turns
from tidelog.model import NO_OFFSET, Epoch, NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.partition.follower import BeginAnew, Cut, Follower, LearnProducers, LogChange
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.replication.log_starts import LogStarts
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.5
"""How long a leader keeps a request that it has nothing for."""
_ASK_SECONDS_MAX: Final = 2.0
_RETRY_SECONDS: Final = 0.03
_REFUSED_SECONDS: Final = 1.0
LISTED_MAX: Final = 100
"""How many partitions one message lists: the leader's node looks at all of them in one turn."""
LITTLE_BYTES_MAX: Final = 64 * 1024
"""What takes longer to ask for and to tell of than to write."""
UNWRITTEN_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one partition that is level: more than a disk writes while the next answer comes."""
UNWRITTEN_BEHIND_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of one that catches up: nobody waits for it, and others' writes wait behind it."""
HOLD_SECONDS_MAX: Final = 0.005
"""How long an answer that brought little keeps the next request."""


class _Listed(NamedTuple):
    """What the leader was told last of where a partition reads on."""

    epoch: Epoch
    offset: Offset


class Fetcher:
    """All that this node follows at one leader's node."""

    def __init__(self, fetching: "LeaderFetchers", leader: NodeId) -> None:
        self._fetching = fetching
        self._host = fetching.host
        self._hub = fetching.member.hub
        self._leader = leader
        self._session = 0
        self._is_new = True
        self._parked = False
        self._followed: dict[int, Partition] = {}
        self._to_list: dict[int, None] = {}
        self._listed: dict[int, _Listed] = {}
        self._forgotten: dict[int, None] = {}
        self._corrupt: dict[int, None] = {}
        self._troubles: dict[int, str] = {}
        self._full: dict[int, None] = {}
        self._changing: dict[int, None] = {}
        """Their logs are being cut, begun anew or mended: nothing is asked or taken for them."""
        self._retries: dict[int, asyncio.TimerHandle] = {}
        """What could not be read is asked for again then."""
        self._progress: dict[int, Partition] = {}
        self._telling = False
        self._wanted = asyncio.Event()
        self._has_more = False
        """Whether the last request could not list all that was to be listed."""
        self._unheld: dict[int, Partition] = {}
        """What the last answer brought, if that was little, until it is held."""
        self._all_held: asyncio.Future[None] | None = None
        self.failures = 0
        """Requests that were not answered."""
        self.errors = 0
        """Those, and answers that could not be taken."""
        self.applied = 0
        """Offsets that were appended of what it sent."""
        self.answered_at: float | None = None
        self.connected_at: float | None = None
        """Since when it answers; None while it does not."""

    # What to follow.

    def add(self, cluster_id: int, partition: Partition) -> None:
        """Follow a partition, or the same one in another epoch."""
        self._followed[cluster_id] = partition
        partition.on_progress = partial(self._progressed, cluster_id)
        partition.on_reopened = partial(self.list_again, cluster_id)
        self._forgotten.pop(cluster_id, None)
        self.list_again(cluster_id, partition)

    def remove(self, cluster_id: int, partition: Partition) -> None:
        if self._followed.get(cluster_id) is partition:
            del self._followed[cluster_id]
            partition.on_progress = partition.on_reopened = _ignore
            partition.awaits_room = False
            self._to_list.pop(cluster_id, None)
            self._progress.pop(cluster_id, None)
            self._unheld.pop(cluster_id, None)
            if self._listed.pop(cluster_id, None) is not None:
                self._forgotten[cluster_id] = None

    def list_again(self, cluster_id: int, partition: Partition) -> None:
        """Say, with the next request, where this partition reads on."""
        if (
            self._followed.get(cluster_id) is not partition
            or (follower := partition.follower) is None
            or cluster_id in self._changing
        ):
            return
        if partition.log.damaged_at is not None:  # the leader has what was there
            follower.doubt()
            change: LogChange = Cut(partition.log.damaged_at)
            if partition.has_gaps:
                # What the leader compacted away above the cut may have deleted keys below it.
                change = BeginAnew(partition.log.start)
            self._change(partition, follower, cluster_id, change)
            return
        partition.awaits_room = False
        self._to_list[cluster_id] = None
        self._wanted.set()
        self._hold_no_more()
        if self._parked:
            self._parked = False
            self._hub.note(self._leader, AnswerNow(session=self._session))

    async def look(self, threshold: int) -> list[tuple[int, Partition]]:
        """Those that are behind, and by how much; whatever kept them, they ask again."""
        behind = []

        def look_at(followed: tuple[int, Partition]) -> None:
            cluster_id, partition = followed
            lag = partition.records_behind
            if lag > threshold and self._followed.get(cluster_id) is partition:
                behind.append((lag, partition))
                if cluster_id not in self._listed and cluster_id not in self._retries:
                    self.list_again(cluster_id, partition)

        await in_turns(list(self._followed.items()), look_at)
        return behind

    # The loop.

    async def run(self) -> None:
        while True:
            if not self._followed and not self._forgotten:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                answer, data = await self._ask()
            except (PeerUnreachable, PeerRefused) as error:
                self.failures += 1
                self.errors += 1
                self.connected_at = None
                _log.debug("node %d does not feed its followers here: %s", self._leader, error)
                await self._begin_again()
                await asyncio.sleep(_RETRY_SECONDS * (0.5 + self._host.random.random()))
                continue
            finally:
                self._parked = False
            self.answered_at = self._host.clock.monotonic()
            if self.connected_at is None:
                self.connected_at = self.answered_at
            if not answer.is_known:
                await self._begin_again()
                await asyncio.sleep(_RETRY_SECONDS * self._host.random.random())
                continue
            self._take(answer.parts, data)
            if self._has_more:
                self._unheld.clear()  # the rest is listed at once
            elif self._unheld:
                await self._hold()

    async def _hold(self) -> None:
        """Let the disk finish what the last answer brought, unless that takes long."""
        loop = asyncio.get_running_loop()
        self._all_held = held = loop.create_future()
        timer = loop.call_later(HOLD_SECONDS_MAX, self._hold_no_more)
        try:
            await held
        finally:
            timer.cancel()
            self._all_held = None
            self._unheld.clear()
        self._tell()

    def _hold_no_more(self) -> None:
        if self._all_held is not None and not self._all_held.done():
            self._all_held.set_result(None)

    async def _ask(self) -> tuple[FetchReplicasAnswer, memoryview]:
        is_new, self._is_new = self._is_new, False
        if is_new:
            self._session = self._host.random.getrandbits(31)
        positions = self._positions()
        request = FetchReplicas(
            session=self._session,
            broker_epoch=self._fetching.broker_epoch(),
            is_new=is_new,
            positions=positions,
            forgotten=tuple(self._forgotten),
            corrupt=tuple(self._corrupt),
            troubles=tuple(self._troubles.items()),
            full=tuple(self._full),
            wait_ms=int(WAIT_SECONDS * 1000) if self._followed and not self._has_more else 0,
        )
        self._forgotten.clear()
        self._corrupt.clear()
        self._troubles.clear()
        self._full.clear()
        self._parked = not self._has_more
        return await self._hub.ask_data(
            self._leader, request, FetchReplicasAnswer, seconds_max=_ASK_SECONDS_MAX + WAIT_SECONDS
        )

    def _positions(self) -> tuple[ReplicaPosition, ...]:
        positions = []
        wanted = list(islice(self._to_list, LISTED_MAX))
        for cluster_id in wanted:
            del self._to_list[cluster_id]
            partition = self._followed[cluster_id]
            follower, log = partition.follower, partition.log
            if follower is None or cluster_id in self._changing:
                continue
            self._listed[cluster_id] = _Listed(follower.epoch, log.end)
            positions.append(
                ReplicaPosition(
                    cluster_id,
                    follower.epoch,
                    log.end,
                    log.epochs.latest,
                    follower.purges,
                    log.lacks_producers,
                    NO_OFFSET if log.lacks_before is None else log.lacks_before,
                )
            )
        self._has_more = bool(self._to_list)
        return tuple(positions)

    async def _begin_again(self) -> None:
        """Nothing that was said before counts, and notes may have been lost."""
        self._is_new = True
        self._listed.clear()
        self._forgotten.clear()
        await in_turns(list(self._followed.items()), self._begin_one_again)

    def _begin_one_again(self, followed: tuple[int, Partition]) -> None:
        cluster_id, partition = followed
        if self._followed.get(cluster_id) is partition and partition.follower is not None:
            partition.follower.tell_again()
            self.list_again(cluster_id, partition)

    # Answers.

    def _take(self, parts: Sequence[ReplicaPart], data: memoryview) -> None:
        at, pins_bytes = 0, len(data)
        for part in parts:
            batches = data[at : at + part.size]
            at += part.size
            partition = self._followed.get(part.cluster_id)
            listed = self._listed.get(part.cluster_id)
            if partition is None or listed is None or part.cluster_id in self._changing:
                continue  # it follows another by now
            follower = partition.follower
            if follower is None or listed != (follower.epoch, partition.log.end):
                if follower is not None and part.error:
                    follower.tell_again()  # the leader may have forgotten what it was told
                continue  # it follows another epoch, was cut, or has no room; it is listed anew
            self._take_part(part, partition, follower, batches, pins_bytes)
        if pins_bytes > LITTLE_BYTES_MAX:
            self._unheld.clear()

    def _take_part(
        self,
        part: ReplicaPart,
        partition: Partition,
        follower: Follower,
        batches: memoryview,
        pins_bytes: int,
    ) -> None:
        cluster_id = part.cluster_id
        if part.differs:
            log = partition.log
            found: LogChange = follower.differs(
                part.epoch, part.end, mine=log.epochs, start=log.start, log_end=log.end
            )
            if isinstance(found, BeginAnew):
                # Nothing here is of use: all that the leader has is copied, from its start on.
                found = BeginAnew(part.start)
            self._change(partition, follower, cluster_id, found)
            return
        if part.error == OffsetOutOfRange.code:
            if part.is_whole:
                found = follower.is_behind(part.start, part.purged, part.purges, part.producers)
            else:
                found = LearnProducers(part.start, part.producers)
            self._change(partition, follower, cluster_id, found)
            return
        if part.error:  # one of the two does not know yet what the other does
            follower.tell_again()
            is_patient = part.error == StorageError.code  # the leader's disk does not read it
            self.errors += is_patient
            self._retry(cluster_id, partition, _REFUSED_SECONDS if is_patient else _RETRY_SECONDS)
            return
        if follower.agreed():
            self._progressed(cluster_id, partition)
        is_taken = False
        if part.size:
            end_before = partition.log.end
            try:
                partition.append_fetched(batches, pins_bytes, has_gaps=part.has_gaps)
            except CorruptMessage as error:
                _log.error("node %d sent what does not check out: %s", self._leader, error)
                self.errors += 1
                self._corrupt[cluster_id] = None
                self._retry(cluster_id, partition, _REFUSED_SECONDS)
            except StorageError as error:
                _log.info("%s cannot be followed: %s", partition.name, error)
                self.errors += 1
                self._troubles[cluster_id] = str(error)
                if partition.disk_full:
                    self._full[cluster_id] = None
                self._retry(cluster_id, partition, _REFUSED_SECONDS)
            else:
                is_taken = True
                self._unheld[cluster_id] = partition
            self.applied += partition.log.end - end_before
        partition.learn_watermark(part.watermark)
        if partition.records_behind:  # its disk takes its time, and nobody waits for it
            self._unheld.pop(cluster_id, None)
        else:
            follower.level_at = self.answered_at
        if is_taken:
            if _has_room(partition):
                self._to_list[cluster_id] = None
            else:
                partition.awaits_room = True
        if part.start > partition.log.start:
            self._fetching.log_starts.move(partition, part.start)
        if part.wanted_start != follower.wanted_start:
            follower.wanted_start = part.wanted_start
            self._promise(cluster_id, partition)

    def _promise(self, cluster_id: int, partition: Partition) -> None:
        """Tell the leader where this log will begin, once that is noted."""
        told = partial(self._progressed, cluster_id, partition)
        if partition.log_start.promise_due() is None:
            told()
        else:
            self._fetching.log_starts.promise(partition, told)

    def _retry(self, cluster_id: int, partition: Partition, seconds: float) -> None:
        self._listed.pop(cluster_id, None)
        if (timer := self._retries.pop(cluster_id, None)) is not None:
            timer.cancel()
        wait = seconds * (0.5 + self._host.random.random())
        self._retries[cluster_id] = asyncio.get_running_loop().call_later(
            wait, self._ask_again, cluster_id, partition
        )

    def _ask_again(self, cluster_id: int, partition: Partition) -> None:
        del self._retries[cluster_id]
        follower = partition.follower
        is_told = follower is not None and follower.is_aligned
        if partition.disk_full and is_told and self._followed.get(cluster_id) is partition:
            # The leader knows; what it would send meanwhile, again and again, would be refused.
            self._retry(cluster_id, partition, _REFUSED_SECONDS)
        else:
            self.list_again(cluster_id, partition)

    def _change(self, partition: Partition, follower: Follower, cluster_id: int, change: LogChange) -> None:
        self._listed.pop(cluster_id, None)
        self._to_list.pop(cluster_id, None)
        self._changing[cluster_id] = None

        def then() -> None:
            self._changing.pop(cluster_id, None)
            if partition.log.refusal is None or partition.log.damaged_at is not None:
                self.list_again(cluster_id, partition)
            else:  # a full disk has kept it from being done
                self._full[cluster_id] = None
                self._retry(cluster_id, partition, _REFUSED_SECONDS)

        self._fetching.change_log(partition, follower, change, then)

    # Telling.

    def _progressed(self, cluster_id: int, partition: Partition) -> None:
        self._progress[cluster_id] = partition
        if partition.awaits_room and _has_room(partition):
            self.list_again(cluster_id, partition)
        if self._all_held is not None:
            if partition.held_end >= partition.log.end:
                self._unheld.pop(cluster_id, None)
            if not self._unheld:
                self._hold_no_more()
        else:
            self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        replicas = []
        for cluster_id in list(islice(self._progress, LISTED_MAX)):
            partition = self._progress.pop(cluster_id)
            follower = partition.follower
            if follower is not None and follower.leader == self._leader:
                held, promised = partition.held_end, partition.log_start.promised_to_leader
                is_synced = partition.is_held_when_synced
                if follower.news(held, promised, is_synced=is_synced):
                    replicas.append(ReplicaProgress(cluster_id, follower.epoch, held, promised, is_synced))
        if replicas:
            told = Progress(
                session=self._session, broker_epoch=self._fetching.broker_epoch(), replicas=replicas
            )
            self._hub.note(self._leader, told)
        if self._progress:
            self._tell_soon()


class LeaderFetchers:
    """Every fetcher of this node, by the leader's node."""

    def __init__(
        self,
        host: Host,
        member: ClusterMember,
        replicas: Replicas,
        *,
        broker_epoch: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        change_log: Callable[[Partition, Follower, LogChange], Coroutine[Any, Any, None]],
        log_starts: LogStarts,
        threshold: Callable[[], int] = lambda: 0,
    ) -> None:
        """`change_log` cuts a log or begins it anew; `log_starts` deletes its oldest part.

        `threshold` is how many records a replica may be behind without a word.
        """
        self.host = host
        self.member = member
        self._replicas = replicas
        self.broker_epoch = broker_epoch
        self._spawn = spawn
        self._change_log = change_log
        self.log_starts = log_starts
        self._threshold = threshold
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._at: dict[int, tuple[NodeId, Partition]] = {}
        self._ids: dict[Partition, int] = {}

    def follow(self, cluster_id: int, partition: Partition) -> None:
        """Read from the leader that the partition follows now, or from nobody."""
        follower = partition.follower
        self._ids[partition] = cluster_id
        before = self._at.pop(cluster_id, None)
        if before is not None and (follower is None or before != (follower.leader, partition)):
            self._fetchers[before[0]].remove(cluster_id, before[1])
        if follower is None:
            return
        fetcher = self._fetchers.get(follower.leader)
        if fetcher is None:
            fetcher = self._fetchers[follower.leader] = Fetcher(self, follower.leader)
            self._spawn(fetcher.run())
        self._at[cluster_id] = (follower.leader, partition)
        fetcher.add(cluster_id, partition)

    async def look(self) -> None:
        """See which replicas here are behind; said in one line."""
        behind: list[tuple[int, Partition]] = []
        for fetcher in list(self._fetchers.values()):
            behind += await fetcher.look(self._threshold())
        if behind:
            lag, furthest = max(behind, key=lambda found: found[0])
            _log.info(
                "%d replicas here are behind, the furthest is %s by %d records%s",
                len(behind),
                furthest.name,
                lag,
                f": {furthest.log.refusal}" if furthest.log.refusal else "",
            )

    def answered_at(self, leader: NodeId) -> float | None:
        """When the node of a leader last answered its followers here."""
        fetcher = self._fetchers.get(leader)
        return None if fetcher is None else fetcher.answered_at

    def fetcher(self, leader: NodeId) -> Fetcher | None:
        """How it goes with the node of a leader that is, or was, followed here."""
        return self._fetchers.get(leader)

    def totals(self) -> tuple[int, int]:
        """Offsets that were appended of what leaders sent, and errors, since this node began."""
        fetchers = self._fetchers.values()
        return sum(one.applied for one in fetchers), sum(one.errors for one in fetchers)

    def failures(self) -> dict[NodeId, int]:
        """How often a leader's node did not answer its followers here."""
        return {node: fetcher.failures for node, fetcher in self._fetchers.items()}

    def forget(self, partition: Partition) -> None:
        """The partition is here no more."""
        cluster_id = self._ids.pop(partition, None)
        if cluster_id is not None and (before := self._at.pop(cluster_id, None)) is not None:
            self._fetchers[before[0]].remove(cluster_id, partition)

    # For fetchers.

    def change_log(
        self, partition: Partition, follower: Follower, change: LogChange, then: Callable[[], None]
    ) -> None:
        """Change a log for the sake of the leader that `follower` follows, then call `then`."""

        async def work() -> None:
            try:
                await self._change_log(partition, follower, change)
            finally:
                then()

        self._spawn(work())


def _has_room(partition: Partition) -> bool:
    bytes_max = UNWRITTEN_BEHIND_BYTES_MAX if partition.records_behind else UNWRITTEN_BYTES_MAX
    return partition.log.unwritten_bytes <= bytes_max


def _ignore(partition: Partition) -> None:
    """Nobody wants to know."""
