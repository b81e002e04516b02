"""Drives one member of the quorum: its machine, its log, its vote, its clock and its peers.

Rule 1: one event at a time, in the order they came; the effects of one are begun, and those that
        must be durable are finished, before the next is looked at.
Rule 2: nothing here decides; the machine does (`raft.machine`).
Rule 3: what is committed is handed on in order, once, and never taken back.
Rule 4: the newest set of voters counts that the log names, or else the newest committed one: of a
        start, and of a machine that is made anew while the process lives.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from tidelog.cluster.acknowledged import Acknowledgements
from tidelog.cluster.answering import answered
from tidelog.cluster.hub import Handler, Hub
from tidelog.cluster.promises import decode_promise, encode_promise
from tidelog.cluster.quorum_log import FULL_DISK_SECONDS, Entry, Fetched, QuorumLog, fetched_in
from tidelog.cluster.snapshots import Snapshots, checked
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import LeaderChanged, MetadataRecord, VotersChanged
from tidelog.controller.snapshot import decode_snapshot
from tidelog.errors import BrokerError, CorruptMessage, NotController, StorageError, StorageErrorAfterAppend
from tidelog.host import Host, Path, read_file, replace_file
from tidelog.log.reserve import Reserve
from tidelog.log.steps import DiskFull, is_short, refusal, shortage
from tidelog.model import NO_EPOCH, Epoch, NodeId, Offset
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.raft.machine import Raft
from tidelog.raft.messages import (
    NOWHERE,
    Answered,
    Append,
    Appended,
    Asked,
    BeginEpoch,
    Commit,
    Effect,
    ElectionState,
    EndEpoch,
    EpochAnswer,
    Event,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    Follow,
    GetSnapshot,
    Lead,
    Persist,
    Position,
    Reply,
    Request,
    Resign,
    Send,
    SnapshotFailed,
    SnapshotId,
    SnapshotInstalled,
    SnapshotPiece,
    SnapshotTaken,
    Synced,
    Ticked,
    Truncate,
    Unanswered,
    Vote,
    VoteAnswer,
    VotersFound,
)
from tidelog.raft.state import Timing
from tidelog.raft.voters import Voter, VoterSet

_log = logging.getLogger(__name__)

STATE_FILE: Final = "quorum-state"

_FETCH_BYTES: Final = 1024 * 1024
_SNAPSHOT_PIECE_BYTES: Final = 1024 * 1024
_ANSWERS: Final[dict[type, type]] = {
    Vote: VoteAnswer,
    BeginEpoch: EpochAnswer,
    EndEpoch: EpochAnswer,
    Fetch: FetchAnswer,
}
_ASK_SECONDS_MAX: Final = 1.0
_WORK_AT_ONCE: Final = 50
"""How many events and records are looked at in one turn of the loop, and one batch more."""
_ROOM_BYTES: Final = 64 * 1024
"""A disk with so much room is not full to the metadata log."""


class Quorum:
    """This node's part in deciding what the metadata log holds.

    Owned by the event loop; `run` is its one task.
    """

    def __init__(
        self,
        host: Host,
        log: QuorumLog,
        snapshots: Snapshots,
        *,
        reserve: Reserve,
        acknowledgements: Acknowledgements | None,
        me: Voter,
        timing: Timing,
        contacts: Sequence[NodeId],
        on_commit: Callable[[Entry], None],
        on_snapshot: Callable[[SnapshotId, ClusterImage], VoterSet],
        on_lead: Callable[[Epoch], None],
        on_follow: Callable[[Epoch, NodeId | None], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_snapshot` replaces all that was handed on so far, and says who votes by it.

        Without `acknowledgements`, nobody else hears of what is durable here: this node is alone.
        """
        self._host = host
        self.log = log
        self._snapshots = snapshots
        self._reserve = reserve
        self._acknowledgements = acknowledgements
        self.state = ElectionState()
        """What this node has promised, as its disk has it."""
        self.me = me
        self._timing = timing
        self._contacts = contacts
        self._on_commit = on_commit
        self._on_snapshot = on_snapshot
        self._on_lead = on_lead
        self._on_follow = on_follow
        self._on_fatal = on_fatal
        self._hub: Hub
        self._events: deque[Event | Callable[[], Awaitable[None]]] = deque()
        self._wake: asyncio.Event = asyncio.Event()
        self._is_waiting = False
        self._work = 0
        self._places: dict[int, Answer] = {}
        self._next_token = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._commits: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._leads_since: Offset | None = None
        """Where this node's epoch begins, if it leads; -1 once that is committed."""
        self._lead_epoch: Epoch = NO_EPOCH
        self._partings: list[asyncio.Task[None]] = []
        self._complaint: str | None = None
        self.refusal: str | None = None
        """Why the log has no room; until the disk takes something again."""
        self._decided_voters = VoterSet()
        """The newest committed set of voters that this process has heard of."""
        self._fetched: tuple[bytes, list[Fetched]] = (b"", [])
        """What a leader sent last, and what it holds."""
        self._wanted: GetSnapshot | None = None
        """The snapshot that the machine waits for; None again once the log went another way."""
        self.raft: Raft

    def handlers(self) -> dict[type[msgspec.Struct], Handler]:
        """What peers may ask of a quorum's member."""
        return {
            Vote: self._asked,
            BeginEpoch: self._asked,
            EndEpoch: self._asked,
            Fetch: self._asked,
            FetchSnapshot: self._asked_for_snapshot,
        }

    # Starting.

    async def find_promises(self) -> None:
        """Read what this node has promised, and how far it has acknowledged its log.

        First of all: what is found damaged after that must not be forgotten to have been there.
        """
        await self._host.offload.run(self._find_promises)

    def _find_promises(self) -> None:
        self.state = self._read_state()
        if self._acknowledgements is not None:
            self._acknowledgements.find(self.state.epoch)

    async def open(self, voters: VoterSet, snapshot: SnapshotId | None) -> None:
        """Begin with the log and snapshot found on disk; `voters` if neither names any."""
        self._decided_voters = voters
        self._snapshot = snapshot
        here = self._position(self.log.end)
        if self._acknowledgements is not None:
            await self._acknowledgements.begin(here)
        self._build()
        self._check_loss(here)

    def _check_loss(self, here: Position) -> None:
        """Say it if the log ends before what was acknowledged."""
        if self.raft.log.is_whole:
            return
        if self.raft.voters.ids == [self.me.key.id]:
            raise StorageError(
                f"{self.log.path} has lost metadata that was decided: it ends at offset "
                f"{here.end}, and this node is the only voter. Restore it from a backup"
            )
        _log.error(
            "the disk of node %d has lost metadata that was synced: its log ends at offset %d of "
            "epoch %d. It votes for nobody who lacks that, and leads only once it has it again",
            self.me.key.id,
            here.end,
            here.epoch,
        )

    def _position(self, end: Offset) -> Position:
        """How far the log goes up to `end`."""
        log = self.log.log
        if end > log.start:
            return Position(log.epochs.epoch_at(end - 1), end)
        snapshot = self._snapshot
        is_there = snapshot is not None and snapshot.end == end
        return Position(snapshot.epoch if snapshot is not None and is_there else NO_EPOCH, end)

    def _build(self) -> None:
        log, state, acknowledgements = self.log.log, self.state, self._acknowledgements
        if 0 < state.epoch < log.epochs.latest:
            # Promises are kept before anything is appended, so one of the two files is damaged.
            # Whichever it is: what comes next is later than both.
            _log.warning(
                "the promises of node %d end with epoch %d, its log with %d; going on from that",
                self.me.key.id,
                state.epoch,
                log.epochs.latest,
            )
            state = ElectionState(epoch=log.epochs.latest)
        decided = min(self.log.high_watermark, log.end)  # of this process, if it begins again
        snapshot = self._snapshot
        history = [
            (entry.start, named) for entry in self.log.waiting if (named := _voters_named(entry)) is not None
        ]
        self.raft = Raft(
            me=self.me,
            state=state,
            voters=self._decided_voters,
            voters_history=history,
            epochs=log.epochs,
            log_start=log.start,
            end=log.end,
            synced_end=log.synced_end,
            high_watermark=max(decided, snapshot.end if snapshot is not None else 0),
            snapshot=snapshot,
            timing=self._timing,
            draw=self._host.random.random,
            now=self._host.clock.monotonic(),
            contacts=self._contacts,
            acknowledged=NOWHERE if acknowledgements is None else acknowledgements.noted,
        )
        self._check_voters()

    def _check_voters(self) -> None:
        """The machine and the log name the same voters; two majorities could decide otherwise."""
        named = (_voters_named(entry) for entry in reversed(self.log.waiting))
        newest = next((v for v in named if v is not None), self._decided_voters)
        assert self.raft.voters == newest, f"{self.raft.voters} vote, the log names {newest}"

    def start(self, hub: Hub) -> None:
        """Take part from now on."""
        self._hub = hub
        self.spawn(self._run())

    def _read_state(self) -> ElectionState:
        try:
            content = read_file(self._host.disk, self._state_path)
        except FileNotFoundError:
            return ElectionState()
        try:
            return decode_promise(content, ElectionState)
        except ValueError as error:
            raise StorageError(
                f"{self._state_path} is damaged ({error}): what this node promised is not known. "
                "Start it with an empty directory and a new place in the quorum"
            ) from None

    @property
    def _state_path(self) -> Path:
        return self.log.path / STATE_FILE

    # The loop.

    def post(self, event: Event | Callable[[], Awaitable[None]]) -> None:
        """Let the machine see an event, or do something between two of them."""
        self._events.append(event)
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether the machine knows all that has happened."""
        return self._is_waiting and not self._events

    async def _run(self) -> None:
        self.post(Ticked())
        while True:
            self._is_waiting = True
            await self._wake.wait()
            self._wake.clear()
            self._is_waiting = False
            while self._events:
                self._work += 1
                if self._work > _WORK_AT_ONCE:
                    await self._give_way()
                event = self._events.popleft()
                if callable(event):
                    await event()
                    continue
                effects = self.raft.step(event, self._host.clock.monotonic())
                for effect in effects:
                    await self._perform(effect)
                if self._acknowledgements is not None:
                    self._acknowledgements.knows(self.raft.log.acknowledged)
            if (complaint := self.raft.complaint) is not None and complaint != self._complaint:
                _log.critical("the quorum's leader wants what must not be: %s", complaint)
            self._complaint = self.raft.complaint
            self._set_timer()

    async def _give_way(self) -> None:
        """Let others have their turn."""
        self._work = 0
        await asyncio.sleep(0)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait = max(self.raft.deadline - self._host.clock.monotonic(), 0.0)
        if wait < 3600:
            self._timer = asyncio.get_running_loop().call_later(wait, self.post, Ticked())

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist():
                await self._persist(encode_promise(effect.state))
                self.state = effect.state
            case Truncate():
                self._wanted = None
                _log.info("the metadata log is cut from %d to %d", self.log.end, effect.end)
                if self._acknowledgements is not None:
                    await self._acknowledgements.lower(self.raft.log.acknowledged)
                await self.log.truncate(effect.end)
                if self._is_damaged():
                    return
                # What a sync before the cut has reached is not what it says any more.
                self._events = deque(e for e in self._events if not isinstance(e, Synced))
                self._check_voters()
                if self._acknowledgements is not None:
                    self._acknowledgements.cut()
            case Send():
                task = self.spawn(self._send(effect.to, effect.request))
                if isinstance(effect.request, EndEpoch):
                    self._partings.append(task)
            case Reply():
                self._reply(effect)
            case Append():
                self._wanted = None
                # A full disk keeps a part of the log from its files, and a cut then finds less than
                # the machine believes in. Until `_begin_again` tells it, nothing is appended.
                if self.log.end == self.raft.log.end:
                    self._append_fetched(effect.data)
            case GetSnapshot():
                self._wanted = effect
                self.spawn(self._get_snapshot(effect))
            case Lead():
                self._lead(effect)
            case Follow():
                self._follow(effect)
            case Commit():
                await self._commit(effect.high_watermark)

    async def _persist(self, state: bytes) -> None:
        """Write a promise down. Without room for it this node waits, and promises nothing."""
        write = partial(replace_file, self._host.disk, self._state_path, state)
        while True:
            try:
                await self._host.offload.run(partial(self._reserve.spend, write))
            except OSError as error:
                if not is_short(error):
                    raise
                if self.refusal is None:
                    self.refusal = refusal(error)
                    _log.error("the quorum must wait: %s", self.refusal)
                await asyncio.sleep(FULL_DISK_SECONDS)
            else:
                self._has_room()
                return

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work` beside everything else, no longer than the quorum."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, OSError):  # else the disk has failed
                _log.error("a part of the quorum's driver failed", exc_info=error)
            self._on_fatal(error)

    # Talking.

    def _asked(self, source: NodeId, request: Request, place: Answer | None) -> None:
        if place is None:
            return
        token = self._next_token
        self._next_token += 1
        self._places[token] = place
        self.post(Asked(source, request, token))

    async def _send(self, to: NodeId, request: Request) -> None:
        seconds_max = _ASK_SECONDS_MAX
        if isinstance(request, Fetch):
            seconds_max += self._timing.fetch_wait
        try:
            answer: Any = await self._hub.ask(to, request, _ANSWERS[type(request)], seconds_max=seconds_max)
            if isinstance(answer, FetchAnswer) and answer.data:
                self._fetched = (answer.data, await _checked(answer))
        except PeerUnreachable as error:
            self.post(Unanswered(to, request, error.is_down))
        except PeerRefused:
            self.post(Unanswered(to, request))
        except (CorruptMessage, BrokerError, ValueError) as error:
            _log.error("node %d sent metadata that does not check out: %s", to, error)
            self.post(Unanswered(to, request))
        else:
            self.post(Answered(to, request, answer))

    def _reply(self, effect: Reply) -> None:
        place = self._places.pop(effect.token, None)
        if place is None or place.is_gone:
            return
        answer = effect.answer
        if isinstance(answer, FetchAnswer) and answer.accepted and not (answer.diverging or answer.snapshot):
            self.spawn(answered(place, self._send_data, place, answer))
        else:
            place.send(answer)

    async def _send_data(self, place: Answer, answer: FetchAnswer) -> None:
        if answer.offset < self.log.end:
            try:
                data = await self.log.read(answer.offset, _FETCH_BYTES)
            except CorruptMessage as error:
                place.fail(f"offset {answer.offset} is damaged: {error}")
                if self._acknowledgements is not None:  # else nobody has what is damaged here
                    self._on_fatal(StorageError(f"{self.log.path} is damaged ({error}); a start mends it"))
                return
            except (BrokerError, OSError) as error:  # trimmed or cut meanwhile
                place.fail(f"offset {answer.offset} cannot be read: {error}")
                return
            answer = msgspec.structs.replace(answer, data=data)
        place.send(answer)

    # The log.

    def _append_fetched(self, data: bytes) -> None:
        events: list[Event] = []
        (known, fetched), self._fetched = self._fetched, (b"", [])
        if known is not data:
            fetched = list(fetched_in(data))
        entries = self.log.append_fetched(fetched) if self.log.log.refusal is None else []
        for entry in entries:
            events.append(Appended(entry.end, entry.epoch, entry.start))
            if (voters := _voters_named(entry)) is not None:
                events.append(VotersFound(entry.start, voters))
        if not entries:
            end = self.log.end
            events.append(Appended(end, self.log.log.epochs.latest, end))
        self._events.extendleft(reversed(events))  # before anything else happens
        self._wake.set()

    def _append(self, records: list[MetadataRecord], epoch: Epoch) -> Entry:
        entry = self.log.append(records, epoch)
        self.post(Appended(entry.end, entry.epoch, entry.start))
        if (voters := _voters_named(entry)) is not None:
            self.post(VotersFound(entry.start, voters))
        return entry

    def on_synced(self, end: Offset) -> None:
        self._has_room()
        if self._acknowledgements is None:
            self.post(Synced(end))
        else:
            self._acknowledgements.synced(self._position(end))

    def _has_room(self) -> None:
        """The disk took something; unless the log still waits to be opened again, all is well."""
        if self.log.log.refusal is None:
            self.refusal = None

    def on_disk_full(self, full: DiskFull) -> None:
        """The log could not grow: give way, and begin again with what the disk holds."""
        if self.refusal is None:
            _log.error("the metadata log takes no records: %s", refusal(full.error))
            self.spawn(self._look_for_room())
        self.refusal = refusal(full.error)
        self._fail_commits(StorageErrorAfterAppend(self.refusal))  # other voters may have them
        asyncio.get_running_loop().call_later(FULL_DISK_SECONDS, self.post, self._begin_again)

    async def _look_for_room(self) -> None:
        """Take the refusal back once the disk has room, though nothing may be written for long."""
        look = partial(self._host.disk.free_bytes, self.log.path)
        while self.refusal is not None:
            await asyncio.sleep(FULL_DISK_SECONDS)
            if await self._host.offload.run(look) >= _ROOM_BYTES:
                self._has_room()

    async def _begin_again(self) -> None:
        self._follow(Follow(self.state.epoch, None))  # nobody appends to a log that is opened again
        await self.log.reopen()
        if self._is_damaged():
            return
        if self._snapshot is not None and self.log.end < self._snapshot.end:
            await self.log.restart_at(self._snapshot.end)  # it holds more than the files do
        if self._acknowledgements is not None:
            await self._acknowledgements.replaced(self._position(self.log.end))
        self._events.clear()
        places, self._places = self._places, {}
        for place in places.values():  # the machine that was to answer them is no more
            if not place.is_gone:
                place.fail("its metadata log is opened again")
        self._build()
        self.post(Ticked())

    def _is_damaged(self) -> bool:
        """Whether the log, which was just opened again, has lost what was synced: then end.

        The next start cuts what is damaged, and fetches it from the other voters.
        """
        is_damaged = self.log.log.damaged_at is not None and self._acknowledgements is not None
        if is_damaged:
            self._on_fatal(StorageError(f"the metadata log is damaged: {self.log.log.refusal}"))
        return is_damaged

    # Leading.

    def _lead(self, effect: Lead) -> None:
        if self.log.log.refusal is not None:  # a full disk: the log is opened again in a moment
            self.post(Resign())
            return
        voters = list(effect.voters)
        entry = self._append(
            [LeaderChanged(epoch=effect.epoch, leader=self.me.key.id, voters=voters)], effect.epoch
        )
        self._leads_since = entry.end
        self._lead_epoch = effect.epoch
        _log.info("node %d leads the quorum in epoch %d", self.me.key.id, effect.epoch)

    def _follow(self, effect: Follow) -> None:
        was_leading, self._leads_since = self._leads_since is not None, None
        self._fail_commits(NotController("leadership of the quorum was lost"))
        if was_leading:
            _log.warning("node %d leads the quorum no longer", self.me.key.id)
        self._on_follow(effect.epoch, effect.leader)

    def _fail_commits(self, error: BrokerError) -> None:
        while self._commits:
            _, future = self._commits.popleft()
            if not future.done():
                future.set_exception(error)

    async def _commit(self, high_watermark: Offset) -> None:
        """Hand on what is committed; much of it, at a start or far behind, in several turns.

        Not while this node leads: it decides on an image that lacks nothing.
        """
        self.log.high_watermark = high_watermark
        for entry in self.log.take_committed(high_watermark):
            if self._work > _WORK_AT_ONCE and not self.leads:
                await self._give_way()
            self._work += len(entry.records)
            if (voters := _voters_named(entry)) is not None:
                self._decided_voters = voters
            self._on_commit(entry)
        if self._leads_since not in (None, -1) and high_watermark >= self._leads_since:
            self._leads_since = -1
            self._on_lead(self.raft.epoch)
        while self._commits and self._commits[0][0] <= high_watermark:
            _, future = self._commits.popleft()
            if not future.done():
                future.set_result(None)

    async def propose(self, records: list[MetadataRecord]) -> Offset:
        """Append `records` as one batch and wait until they are committed and handed on.

        NotController if this node does not lead, or ceases to: then their fate is not known.
        StorageError if the disk is full, StorageErrorAfterAppend if it was found to be full too
        late for their fate to be known.
        """
        if self.refusal is not None:
            raise StorageError(self.refusal)
        if not self.leads:
            raise NotController("this node does not lead the quorum")
        entry = self._append(records, self._lead_epoch)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.append((entry.end, future))
        await future
        return entry.end

    @property
    def has_won(self) -> bool:
        """Whether this node leads, and has written down that it voted for itself.

        The machine may know better already while what follows is still being written down: a
        deposed leader must not append another record, least of all in its successor's epoch.
        """
        raft = self.raft
        return self._leads_since is not None and raft.is_leader and raft.epoch == self._lead_epoch

    @property
    def leads(self) -> bool:
        """Whether this node leads, and everything decided before is committed and handed on."""
        return self._leads_since == -1 and self.has_won

    # Snapshots.

    async def keep_snapshot(self, snapshot: SnapshotId, records: bytes) -> bool:
        """Keep a snapshot of what was handed on, and trim what the one before it holds.

        False if the disk has no room for it.
        """
        before = self._snapshot
        if not await self._keep(partial(self._snapshots.write, snapshot, records)):
            return False
        self._snapshot = snapshot
        if before is not None:
            await self.log.trim(before.end)
            await self._try(partial(self._snapshots.remove_before, before), "older snapshots")
        self.post(SnapshotTaken(snapshot, self.log.log.start))
        return True

    async def _keep(self, write: Callable[[], None]) -> bool:
        """Write a snapshot's file; False if the disk has no room, and no reserve for it."""
        return await self._try(partial(self._reserve.spend, write), "a snapshot")

    async def _try(self, work: Callable[[], None], what: str) -> bool:
        """Change files in a disk's thread; False if something is short: another time, then."""
        try:
            await self._host.offload.run(work)
        except OSError as error:
            if not is_short(error):
                raise
            _log.warning("%s of the metadata must wait: %s", what, shortage(error))
            return False
        return True

    def _asked_for_snapshot(self, source: NodeId, request: FetchSnapshot, place: Answer | None) -> None:
        if place is not None:
            self.spawn(answered(place, self._send_piece, request, place))

    async def _send_piece(self, request: FetchSnapshot, place: Answer) -> None:
        position = min(max(request.position, 0), 2**40)  # of a file
        read = partial(self._snapshots.read, request.snapshot, position, _SNAPSHOT_PIECE_BYTES)
        try:
            size, data = await self._host.offload.run(read)
        except OSError as error:
            if not is_short(error):
                raise
            size, data = 0, b""  # who asks tries again
        place.send(SnapshotPiece(epoch=self.raft.epoch, size=size, position=request.position, data=data))

    async def _get_snapshot(self, wanted: GetSnapshot) -> None:
        content = bytearray()
        try:
            while True:
                request = FetchSnapshot(
                    epoch=wanted.epoch, replica=self.me.key, snapshot=wanted.snapshot, position=len(content)
                )
                piece = await self._hub.ask(
                    wanted.leader, request, SnapshotPiece, seconds_max=2 * _ASK_SECONDS_MAX
                )
                content += piece.data
                if len(content) >= piece.size or not piece.data:
                    break
        except (PeerUnreachable, PeerRefused) as error:
            _log.info("the snapshot of node %d could not be fetched: %s", wanted.leader, error)
            self.post(SnapshotFailed())
            return
        records = checked(bytes(content))
        if records is None:
            _log.error("the snapshot of node %d is damaged or gone", wanted.leader)
            self.post(SnapshotFailed())
            return
        try:  # in another thread: it takes a while if there are many partitions
            image = await self._host.offload.run(partial(decode_snapshot, records))
        except ValueError as error:
            _log.error("the snapshot of node %d cannot be read: %s", wanted.leader, error)
            self.post(SnapshotFailed())
            return
        self.post(partial(self._install, wanted, bytes(content), image))

    async def _install(self, wanted: GetSnapshot, content: bytes, image: ClusterImage) -> None:
        """Begin again from a snapshot. The file comes first: a start with both finds its way."""
        if self._wanted is not wanted:
            return
        self._wanted = None
        snapshot = wanted.snapshot
        if not await self._keep(partial(self._snapshots.keep, snapshot, content)):
            self.post(SnapshotFailed())
            return
        await self.log.restart_at(snapshot.end)
        self._snapshot = snapshot
        if self._acknowledgements is not None:
            await self._acknowledgements.replaced(self._position(snapshot.end))
        voters = self._decided_voters = self._on_snapshot(snapshot, image)
        _log.info("the metadata begins again from a snapshot of all below offset %d", snapshot.end)
        self.post(SnapshotInstalled(snapshot, voters))

    # Stopping.

    async def stop(self) -> None:
        """Hand leadership over, if there is any, and stop."""
        if self.raft.is_leader and len(self.raft.voters) > 1:
            resigned = asyncio.get_running_loop().create_future()
            self.post(Resign())
            self.post(partial(_complete, resigned))
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_SECONDS_MAX):
                    await resigned
                    await asyncio.gather(*self._partings)
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _checked(answer: FetchAnswer) -> list[Fetched]:
    """CorruptMessage if a leader of the answer's epoch cannot have sent these entries."""
    end, count = answer.offset, 0
    found: list[Fetched] = []
    for fetched in fetched_in(answer.data):
        entry = fetched.entry
        if entry.epoch > answer.epoch:
            raise CorruptMessage(f"offset {entry.start} is of epoch {entry.epoch}")
        if entry.start > end:
            raise CorruptMessage(f"nothing lies between offsets {end} and {entry.start}")
        end = entry.end
        found.append(fetched)
        count += len(entry.records)
        if count > _WORK_AT_ONCE:
            count = 0
            await asyncio.sleep(0)  # others get their turn
    return found


async def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _voters_named(entry: Entry) -> VoterSet | None:
    for record in reversed(entry.records):
        if isinstance(record, LeaderChanged | VotersChanged):
            return VoterSet(record.voters)
    return None
