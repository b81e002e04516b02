"""A quorum on a stage: one command, then everything that follows from it, told line by line.

Messages arrive at once and in order, at those whose address the sender knows; disks sync at once.
Time passes only by `wait`, and chance is fixed: the lower a node's number, the sooner its timers
fire. Fetches that bring nothing new are not told.

    voters 1 2 3                    these nodes form the quorum; their logs are empty
    node 3 epoch=2 log=1x4,2x2      node 3 knows epoch 2, and holds 4 records of epoch 1, 2 of 2
                                    (also leader=, voted=; set=1,2: its last record is that set)
    start [N ...]                   processes start (all of them)
    wait SECONDS                    time passes
    write N COUNT                   leader N appends
    kill N / wipe N                 the process dies; and its disk is replaced
    cut N ... / heal                nobody hears N, nor N anybody; all hear each other again
    slow N / sync N                 node N's disk syncs nothing; it syncs all
    resign N                        leader N gives up
    add N M / remove N M            leader N is asked to let M vote, or no longer
    snapshot N                      node N makes a snapshot of what is committed, and cuts its log
    state                           who is what
    quietly COMMAND                 what follows from it is not told
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from tests.support.raft import key, reachable, voter
from tests.support.raft_invariants import Record
from tests.support.raft_world import Disk
from tidelog.errors import BrokerError
from tidelog.model import NO_NODE, NodeId, Offset
from tidelog.raft.machine import Raft
from tidelog.raft.messages import (
    Answer,
    Answered,
    Append,
    Appended,
    Asked,
    BeginEpoch,
    Commit,
    Effect,
    ElectionState,
    EndEpoch,
    Event,
    FetchAnswer,
    Follow,
    GetSnapshot,
    Lead,
    Persist,
    Reply,
    Request,
    Resign,
    Send,
    SnapshotId,
    SnapshotInstalled,
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

REQUEST_TIMEOUT = 1.0


@dataclass(slots=True)
class _Actor:
    me: Voter
    disk: Disk
    raft: Raft | None = None
    syncs: bool = True


@dataclass(slots=True)
class _Call:
    """A request under way."""

    source: NodeId
    to: NodeId
    request: Request
    given_up_at: float
    is_over: bool = False


@dataclass(slots=True)
class Stage:
    """Takes commands, tells what happens."""

    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    _actors: dict[NodeId, _Actor] = field(default_factory=dict)
    _calls: list[_Call] = field(default_factory=list)
    _queue: deque[tuple[NodeId, Event]] = field(default_factory=deque)
    _cut: set[NodeId] = field(default_factory=set)
    _blobs: list[list[Record]] = field(default_factory=list)
    _value: int = 0
    _contacts: list[NodeId] = field(default_factory=list)
    """The first voters: every node's configuration says where these are."""

    def command(self, line: str) -> str:
        """Do what `line` says; what happened, told."""
        self.lines = []
        name, *words = line.split()
        if name == "quietly":
            self.command(" ".join(words))
            return ""
        getattr(self, f"_do_{name}")(*words)
        self._settle()
        return "\n".join(self.lines)

    # Commands.

    def _do_voters(self, *nodes: str) -> None:
        voters = VoterSet(voter(int(node)) for node in nodes)
        self._contacts = voters.ids
        for node in voters.ids:
            self._actors[node] = _Actor(voter(node), Disk("a", voters))

    def _do_node(self, node: str, *settings: str) -> None:
        number = int(node)
        some = next(iter(self._actors.values()))
        actor = self._actors.setdefault(number, _Actor(voter(number), Disk("a", some.disk.voters)))
        given = dict(setting.split("=") for setting in settings)
        for part in given.get("log", "").split(","):
            if part:
                epoch, count = part.split("x")
                actor.disk.records += self._records(int(epoch), int(count))
        if "set" in given:
            voters = VoterSet(voter(int(n)) for n in given["set"].split(","))
            last = actor.disk.records.pop()
            actor.disk.records.append(Record(last.epoch, 0, voters))
        actor.disk.synced_end = actor.disk.end
        actor.disk.state = ElectionState(
            epoch=int(given.get("epoch", 0)),
            leader=int(given["leader"]) if "leader" in given else None,
            voted=key(int(given["voted"])) if "voted" in given else None,
        )

    def _records(self, epoch: int, count: int) -> list[Record]:
        self._value += count
        return [Record(epoch, self._value - count + i, None) for i in range(count)]

    def _do_start(self, *nodes: str) -> None:
        for node in [int(n) for n in nodes] or list(self._actors):
            actor = self._actors[node]
            disk = actor.disk
            actor.raft = Raft(
                me=actor.me,
                state=disk.state,
                voters=disk.voters,
                voters_history=disk.history(),
                epochs=disk.epochs(),
                log_start=disk.start,
                end=disk.end,
                synced_end=disk.synced_end,
                snapshot=disk.snapshot,
                timing=Timing(),
                draw=lambda node=node: node / 10,  # type: ignore[misc]
                now=self.now,
                contacts=self._contacts,
            )
            self._queue.append((node, Ticked()))
            self._settle()

    def _do_wait(self, seconds: str) -> None:
        end = self.now + float(seconds)
        while True:
            moments = [(a.raft.deadline, n) for n, a in self._actors.items() if a.raft]
            calls = [(c.given_up_at, c) for c in self._calls if not c.is_over]
            moment = min([m for m, _ in moments] + [m for m, _ in calls])
            if moment > end:
                break
            self.now = max(self.now, moment)
            for given_up_at, call in calls:
                if given_up_at <= self.now:
                    call.is_over = True
                    self._queue.append((call.source, Unanswered(call.to, call.request)))
            for deadline, node in moments:
                if deadline <= self.now:
                    self._queue.append((node, Ticked()))
            self._settle()
        self.now = end

    def _do_write(self, node: str, count: str) -> None:
        raft = self._raft(int(node))
        assert raft.is_leader
        self._append(int(node), self._records(raft.epoch, int(count)))

    def _do_kill(self, node: str) -> None:
        actor = self._actors[int(node)]
        actor.raft = None
        actor.disk.lose_power(0.0)
        for call in self._calls:
            if call.to == int(node) and not call.is_over:
                call.is_over = True
                gone = Unanswered(call.to, call.request, is_down=True)
                self._queue.append((call.source, gone))

    def _do_wipe(self, node: str) -> None:
        self._do_kill(node)
        self._actors[int(node)] = _Actor(voter(int(node), "b"), Disk("b", VoterSet()))

    def _do_cut(self, *nodes: str) -> None:
        self._cut.update(int(node) for node in nodes)

    def _do_heal(self) -> None:
        self._cut.clear()

    def _do_slow(self, node: str) -> None:
        self._actors[int(node)].syncs = False

    def _do_sync(self, node: str) -> None:
        actor = self._actors[int(node)]
        actor.syncs = True
        self._sync(int(node))

    def _do_resign(self, node: str) -> None:
        self._queue.append((int(node), Resign()))

    def _do_add(self, node: str, other: str) -> None:
        self._change(int(node), other, adding=True)

    def _do_remove(self, node: str, other: str) -> None:
        self._change(int(node), other, adding=False)

    def _change(self, node: NodeId, other: str, *, adding: bool) -> None:
        raft = self._raft(node)
        number, _, directory = other.partition("@")
        changed = voter(int(number), directory or "a")
        try:
            voters = raft.add_voter(changed, self.now) if adding else raft.remove_voter(changed.key)
        except BrokerError as error:
            self.lines.append(f"{node} refuses: {error}")
            return
        self._append(node, [Record(raft.epoch, 0, voters)])

    def _do_snapshot(self, node: str) -> None:
        disk, raft = self._actors[int(node)].disk, self._raft(int(node))
        end = raft.high_watermark
        disk.voters = disk.voters_before(end)
        disk.snapshot = SnapshotId(end, disk.records[end - 1 - disk.start].epoch)
        del disk.records[: end - disk.start]
        disk.start = end
        self._queue.append((int(node), SnapshotTaken(disk.snapshot, end)))

    def _do_state(self) -> None:
        for node, actor in self._actors.items():
            if actor.raft is None:
                self.lines.append(f"{node} is down")
                continue
            raft, log = actor.raft, actor.raft.log
            leader = "" if raft.leader in (None, node) else f" of {raft.leader}"
            self.lines.append(
                f"{node} {raft.role}{leader} epoch={raft.epoch} log={log.start}..{log.end}"
                f" watermark={log.high_watermark} voters={_names(log.voters)}"
            )

    # What happens.

    def _raft(self, node: NodeId) -> Raft:
        raft = self._actors[node].raft
        assert raft is not None, f"{node} is down"
        return raft

    def _settle(self) -> None:
        while self._queue:
            node, event = self._queue.popleft()
            raft = self._actors[node].raft
            if raft is not None:
                for effect in raft.step(event, self.now):
                    self._perform(node, effect)

    def _perform(self, node: NodeId, effect: Effect) -> None:
        disk = self._actors[node].disk
        match effect:
            case Persist():
                before, disk.state = disk.state, effect.state
                is_new = (before.epoch, before.voted) != (effect.state.epoch, effect.state.voted)
                if effect.state.voted is not None and is_new:
                    self._tell(f"{node} notes its vote for {effect.state.voted} in {effect.state.epoch}")
            case Send():
                self._send(node, effect.to, effect.request)
            case Reply():
                self._reply(node, effect.token, effect.answer)
            case Append():
                self._append(node, self._blobs[int(effect.data)])
            case Truncate():
                self._tell(f"{node} truncates to {effect.end}")
                del disk.records[effect.end - disk.start :]
                disk.synced_end = min(disk.synced_end, effect.end)
            case GetSnapshot():
                self._tell(f"{node} fetches the snapshot up to {effect.snapshot.end}")
                disk.voters = self._actors[effect.leader].disk.voters
                disk.snapshot = effect.snapshot
                disk.start = disk.synced_end = effect.snapshot.end
                disk.records = []
                self._queue.append((node, SnapshotInstalled(effect.snapshot, disk.voters)))
            case Lead():
                self._tell(f"{node} leads {effect.epoch}")
                self._append(node, [Record(effect.epoch, 0, effect.voters)])
            case Commit():
                self._tell(f"{node} commits {effect.high_watermark}")
            case Follow():
                if effect.leader is not None:
                    self._tell(f"{node} follows {effect.leader} in {effect.epoch}")

    def _tell(self, line: str) -> None:
        self.lines.append(line)

    def _append(self, node: NodeId, records: list[Record]) -> None:
        disk = self._actors[node].disk
        for record in records:
            start = disk.end
            disk.records.append(record)
            event = Appended(end=disk.end, epoch=record.epoch, start=start)
            self._queue.append((node, event))
            if record.voters is not None:
                self._queue.append((node, VotersFound(start, record.voters)))
        if self._actors[node].syncs:
            self._sync(node)

    def _sync(self, node: NodeId) -> None:
        disk = self._actors[node].disk
        disk.synced_end = disk.end
        self._queue.append((node, Synced(disk.end)))

    def _send(self, node: NodeId, to: NodeId, request: Request) -> None:
        if to not in self._contacts and to not in reachable(self._raft(node)):
            self._tell(f"{node} does not know where {to} is")
            self._queue.append((node, Unanswered(to, request)))
            return
        heard = not {node, to} & self._cut
        told = _question(request)
        if told:
            self._tell(f"{node}->{to} {told}" + ("" if heard else " (unheard)"))
        call = _Call(node, to, request, self.now + REQUEST_TIMEOUT)
        self._calls.append(call)
        if not heard:
            return
        other = self._actors.get(to)
        if other is None or other.raft is None:
            call.is_over = True
            self._queue.append((node, Unanswered(to, request, is_down=True)))
        else:
            self._queue.append((to, Asked(node, request, len(self._calls) - 1)))

    def _reply(self, node: NodeId, token: int, answer: Answer) -> None:
        call = self._calls[token]
        if {node, call.source} & self._cut or call.is_over:
            return
        call.is_over = True
        if isinstance(answer, FetchAnswer):
            answer = self._fill(node, answer)
        told = self._answer(call.request, answer)
        if told:
            self._tell(f"{node}->{call.source} {told}")
        self._queue.append((call.source, Answered(node, call.request, answer)))

    def _fill(self, node: NodeId, answer: FetchAnswer) -> FetchAnswer:
        disk = self._actors[node].disk
        if not answer.accepted or answer.diverging or answer.snapshot:
            return answer
        self._blobs.append(disk.read(answer.offset, disk.end))
        data = str(len(self._blobs) - 1).encode() if self._blobs[-1] else b""
        return msgspec.structs.replace(answer, data=data)

    def _answer(self, request: Request, answer: Answer) -> str:
        match answer:
            case VoteAnswer(granted=True):
                return "yes"
            case VoteAnswer():
                return f"no{_known(answer.epoch, answer.leader, request.epoch)}"
            case FetchAnswer(accepted=False):
                return f"I do not lead{_known(answer.epoch, answer.leader, request.epoch)}"
            case FetchAnswer(diverging=(epoch, end)):
                return f"of epoch {epoch} keep what is below {end}, and nothing later"
            case FetchAnswer(snapshot=SnapshotId() as snapshot):
                return f"begin with the snapshot up to {snapshot.end}"
            case FetchAnswer(data=bytes() as data) if data:
                records = self._blobs[int(data)]
                return f"records {_span(answer.offset, records)}"
            case FetchAnswer():
                return ""
            case _:
                is_news = answer.epoch > request.epoch
                return f"no{_known(answer.epoch, answer.leader, request.epoch)}" if is_news else ""


def _question(request: Request) -> str:
    match request:
        case Vote():
            ask = "would you vote for me" if request.pre else "vote for me"
            last = "empty" if request.end == 0 else f"{request.end} of epoch {request.last_epoch}"
            return f"{ask} in {request.epoch}? (my end: {last})"
        case BeginEpoch():
            return f"I lead {request.epoch}"
        case EndEpoch():
            after = ", ".join(str(node) for node in request.successors)
            return f"{request.epoch} is over; after me: {after or 'anybody'}"
        case _:
            return ""


def _known(epoch: int, leader: NodeId, asked: int) -> str:
    if leader != NO_NODE:
        return f": {leader} leads {epoch}"
    return f": it is {epoch}" if epoch > asked else ""


def _span(offset: Offset, records: list[Record]) -> str:
    epochs = sorted({record.epoch for record in records})
    return f"{offset}..{offset + len(records)} of epoch {', '.join(map(str, epochs))}"


def _names(voters: VoterSet) -> str:
    return ",".join(str(v.key.id) if v.key.directory == "a" else str(v.key) for v in voters)
