"""Machines on disks and a network that fail, in virtual time; what a seed does with them is in
`raft_cluster`.

Rule 1: the same seed gives the same history; nothing here asks the clock or the system for chance.
Rule 2: a disk keeps what was persisted or synced, and of the rest a random part.
Rule 3: the invariants (`raft_invariants`) look at every effect of every step.
Rule 4: a node reaches only whose address it knows: first and newest voters, a leader with endpoint.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support.raft import reachable
from tests.support.raft_invariants import Invariants, Record, Violation
from tidelog.log.epochs import EpochHistory
from tidelog.model import NodeId, Offset
from tidelog.raft.machine import Raft
from tidelog.raft.messages import (
    NOWHERE,
    Answer,
    Answered,
    Append,
    Appended,
    Asked,
    Commit,
    Effect,
    ElectionState,
    Event,
    FetchAnswer,
    Follow,
    GetSnapshot,
    Lead,
    Persist,
    Position,
    Reply,
    Request,
    Send,
    SnapshotFailed,
    SnapshotId,
    SnapshotInstalled,
    Synced,
    Ticked,
    Truncate,
    Unanswered,
    VotersFound,
)
from tidelog.raft.state import Timing
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet

RPC_TIMEOUT = 1.2
TICKS_AT_ONE_MOMENT_MAX = 20


@dataclass(slots=True)
class Disk:
    """What outlives a process: promises at once, records once they are synced."""

    directory: str
    voters: VoterSet
    """Before the first record of the log, or as the snapshot says."""
    state: ElectionState = field(default_factory=ElectionState)
    snapshot: SnapshotId | None = None
    start: Offset = 0
    records: list[Record] = field(default_factory=list)
    synced_end: Offset = 0
    truncations: int = 0
    acknowledged: Position = NOWHERE
    """How far others may have been told that it is synced here; noted apart from the records."""

    @property
    def has_lost(self) -> bool:
        """Whether it lacks what was acknowledged, and nothing has taken the place of that yet."""
        last = self.records[-1].epoch if self.records else -1
        if not self.records and self.snapshot is not None:
            last = self.snapshot.epoch
        return Position(last, self.end) < self.acknowledged

    @property
    def end(self) -> Offset:
        return self.start + len(self.records)

    def read(self, start: Offset, end: Offset) -> list[Record]:
        return self.records[start - self.start : end - self.start]

    def voters_before(self, end: Offset) -> VoterSet:
        for record in reversed(self.read(self.start, end)):
            if record.voters is not None:
                return record.voters
        return self.voters

    def epochs(self) -> EpochHistory:
        history = EpochHistory()
        for offset, record in enumerate(self.records, self.start):
            history.assign(record.epoch, offset)
        return history

    def history(self) -> list[tuple[Offset, VoterSet]]:
        found = enumerate(self.records, self.start)
        return [(offset, r.voters) for offset, r in found if r.voters is not None]

    def lose_power(self, keep: float) -> None:
        """Lose what was not synced, but for a part of it."""
        unsynced = self.end - self.synced_end
        del self.records[self.synced_end - self.start + int(unsynced * keep) :]
        self.synced_end = self.end  # recovery syncs what it found

    def rot(self, count: int) -> None:
        """Lose the last records, synced as they were, without a trace."""
        del self.records[max(0, len(self.records) - count) :]
        if self.snapshot is not None and self.end < self.snapshot.end:
            self.records, self.start = [], self.snapshot.end
        self.synced_end = self.end


class Node:
    """One process, or the place where one was."""

    def __init__(self, node: NodeId, disk: Disk) -> None:
        self.id = node
        self.disk = disk
        self.raft: Raft | None = None
        self.incarnation = 0
        self.paused_until = 0.0
        self.is_wiped = False
        self.tick_at = float("inf")
        self.ticks_at_once = 0
        self.tokens: dict[int, tuple[NodeId, int, Request]] = {}
        self.answered: deque[Request] = deque(maxlen=8)

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.disk.directory)

    @property
    def voter(self) -> Voter:
        return Voter(self.key, f"host{self.id}", 9000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """Which faults a seed knows, and how often they come. Drawn from the seed."""

    loss: float
    duplicates: float
    slow: float
    """How many messages take far longer than others, and so overtake nobody."""
    crash: float
    """A second, over all nodes; so are the next ones."""
    pause: float
    cut: float
    write: float
    change: float
    snapshot: float
    resign: float
    wipe: float
    rot: float
    """How often a disk loses what it had synced."""
    stall: float
    """How many syncs take far longer than others."""
    batch_max: int

    @classmethod
    def draw(cls, chance: random.Random) -> "Swarm":
        def some(odds: float, most: float) -> float:
            return chance.uniform(0.0, most) if chance.random() < odds else 0.0

        return cls(
            loss=some(0.5, 0.2),
            duplicates=some(0.5, 0.2),
            slow=some(0.5, 0.15),
            crash=some(0.8, 4.0),
            pause=some(0.4, 1.0),
            cut=some(0.6, 1.5),
            write=chance.uniform(2.0, 15.0),
            change=some(0.5, 2.0),
            snapshot=some(0.5, 2.0),
            resign=some(0.3, 0.5),
            wipe=some(0.3, 0.2),
            stall=some(0.4, 0.2),
            batch_max=chance.choice([1, 2, 10]),
            rot=some(0.4, 1.0),
        )


class World:
    """Nodes, their network and their faults, in virtual time."""

    machine: type[Raft] = Raft

    def __init__(
        self, seed: int, *, nodes: int | None = None, trace: bool = False, swarm: Swarm | None = None
    ) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        count = nodes or chance.choice([1, 2, 3, 3, 3, 4, 5, 5, 7])
        self.swarm = swarm or Swarm.draw(chance)
        self.timing = Timing()
        self.now = 0.0
        self.steps = 0
        self.is_calm = False
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=None if trace else 300)
        self.blocked: set[tuple[NodeId, NodeId]] = set()
        self.blobs: list[list[Record]] = []
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._token = 0
        self._value = 0
        spare = 0 if self.swarm.change == 0 else chance.choice([0, 1, 2])
        ids = range(1, count + spare + 1)
        self.first_voters = VoterSet(
            Voter(ReplicaKey(node, f"{node}a"), f"host{node}", 9000) for node in ids[:count]
        )
        self.nodes = {node: Node(node, Disk(f"{node}a", self.first_voters)) for node in ids}
        self.invariants = Invariants(self.first_voters, self.nodes)
        for node in self.nodes.values():
            self._later(chance.random() * 0.5, self._start, node)

    # Time.

    def _later(self, delay: float, do: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, do, args))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as `until` holds."""
        end = self.now + seconds
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, do, args = heapq.heappop(heap)
            do(*args)
            if until is not None and until():
                return True
        self.now = end
        return until is None

    # One node.

    def _start(self, node: Node) -> None:
        if node.raft is not None:
            return
        disk = node.disk
        node.incarnation += 1
        node.tokens.clear()
        node.tick_at = float("inf")
        self._log(node, "start", disk.state, disk.start, disk.end)
        node.raft = self.machine(
            me=node.voter,
            state=disk.state,
            voters=disk.voters,
            voters_history=disk.history(),
            epochs=disk.epochs(),
            log_start=disk.start,
            end=disk.end,
            synced_end=disk.synced_end,
            high_watermark=0,
            snapshot=disk.snapshot,
            timing=self.timing,
            draw=self.chance.random,
            now=self.now,
            contacts=self.first_voters.ids,
            acknowledged=disk.acknowledged,
        )
        disk.acknowledged = node.raft.log.acknowledged
        self.invariants.started(node)
        self._step(node, Ticked())

    def _step(self, node: Node, event: Event) -> None:
        raft = node.raft
        if raft is None:
            return
        if node.paused_until > self.now:
            again = (self._resume, node, node.incarnation, event)
            self._later(node.paused_until - self.now, *again)
            return
        self.steps += 1
        effects = raft.step(event, self.now)
        self._log(node, event, effects)
        for effect in effects:
            self._perform(node, raft, effect)
            if node.raft is not raft:
                return
        node.disk.acknowledged = raft.log.acknowledged
        self.invariants.stepped(node, self.now)
        deadline = max(raft.deadline, self.now)
        if deadline < node.tick_at:
            node.tick_at = deadline
            self._later(deadline - self.now, self._tick, node, node.incarnation, deadline)

    def _resume(self, node: Node, incarnation: int, event: Event) -> None:
        if node.incarnation == incarnation:
            self._step(node, event)

    def _tick(self, node: Node, incarnation: int, moment: float) -> None:
        raft = node.raft
        if raft is None or node.incarnation != incarnation or node.tick_at != moment:
            return
        node.tick_at = float("inf")
        if raft.deadline > self.now:
            node.tick_at = raft.deadline
            self._later(raft.deadline - self.now, self._tick, node, incarnation, raft.deadline)
            node.ticks_at_once = 0
            return
        node.ticks_at_once += 1
        if node.ticks_at_once > TICKS_AT_ONE_MOMENT_MAX:
            raise Violation("no busy loop", f"{raft} is due again and again")
        self._step(node, Ticked())
        if raft.deadline > self.now:
            node.ticks_at_once = 0

    def _log(self, node: Node, *what: Any) -> None:
        self.trace.append((self.now, node.id, *what))

    # Effects.

    def _perform(self, node: Node, raft: Raft, effect: Effect) -> None:
        disk = node.disk
        match effect:
            case Persist():
                self.invariants.persisted(node, effect.state)
                self._persist(disk, effect.state)
            case Send():
                self._send(node, effect.to, effect.request)
            case Reply():
                self._reply(node, effect.token, effect.answer)
            case Append():
                wait = self.chance.random() * 0.002
                self._later(wait, self._append_blob, node, node.incarnation, effect.data)
            case Truncate():
                self.invariants.truncated(node, effect.end)
                del disk.records[effect.end - disk.start :]
                disk.synced_end = min(disk.synced_end, effect.end)
                disk.truncations += 1
            case GetSnapshot():
                wait = self._delay() * 3
                self._later(wait, self._install, node, node.incarnation, effect)
            case Lead():
                self.invariants.leads(node, effect.epoch)
                self._write(node, [Record(effect.epoch, 0, effect.voters)])
            case Commit():
                self.invariants.committed(node, effect.high_watermark)
            case Follow():
                pass

    def _persist(self, disk: Disk, state: ElectionState) -> None:
        disk.state = state

    def _write(self, node: Node, records: list[Record]) -> None:
        """Append what this leader wrote; events follow soon, as from a disk."""
        self._later(0.0, self._append, node, node.incarnation, records)

    def _append_blob(self, node: Node, incarnation: int, data: bytes) -> None:
        if node.incarnation == incarnation and node.raft is not None:
            if self.chance.random() < 0.01 and not self.is_calm:  # the disk is full for a moment
                end = node.disk.end
                self._step(node, Appended(end=end, epoch=node.raft.epoch, start=end))
            else:
                self._append(node, incarnation, self.blobs[int(data)])

    def _append(self, node: Node, incarnation: int, records: list[Record]) -> None:
        raft, disk = node.raft, node.disk
        if node.incarnation != incarnation or raft is None:
            return
        if raft.is_leader and records[0].epoch != raft.epoch:
            return
        if not raft.is_leader and not raft.log.is_appending:
            return  # it led when this was written
        start = disk.end
        for epoch, run in itertools.groupby(records, lambda record: record.epoch):
            first = disk.end
            disk.records += run
            self._events(node, [Appended(end=disk.end, epoch=epoch, start=first)])
        found = enumerate(records, start)
        self._events(node, [VotersFound(o, r.voters) for o, r in found if r.voters is not None])
        wait = self.chance.random() * 0.02
        if self.chance.random() < self.swarm.stall and not self.is_calm:
            wait += self.chance.random() * 3.0
        self._later(wait, self._sync, node, node.incarnation, disk.end, disk.truncations)

    def _events(self, node: Node, events: list[Event]) -> None:
        """Events of one moment reach the machine even of a paused node: it paused after them."""
        paused, node.paused_until = node.paused_until, 0.0
        for event in events:
            self._step(node, event)
        node.paused_until = paused

    def _sync(self, node: Node, incarnation: int, end: Offset, truncations: int) -> None:
        disk = node.disk
        if node.incarnation == incarnation and disk.truncations == truncations:
            disk.synced_end = max(disk.synced_end, end)
            self._step(node, Synced(disk.synced_end))

    def _install(self, node: Node, incarnation: int, effect: GetSnapshot) -> None:
        raft = node.raft
        if node.incarnation != incarnation or raft is None:
            return
        if node.paused_until > self.now:
            self._later(node.paused_until - self.now, self._install, node, incarnation, effect)
            return
        source = self.nodes.get(effect.leader)
        reached = source is not None and source.raft is not None
        if source is None or not reached or not self._reaches(node.id, source.id):
            self._step(node, SnapshotFailed())
            return
        if source.disk.snapshot != effect.snapshot or raft.high_watermark > effect.snapshot.end:
            self._step(node, SnapshotFailed())
            return
        disk = node.disk
        disk.voters = source.disk.voters_before(effect.snapshot.end)
        disk.snapshot = effect.snapshot
        disk.start = effect.snapshot.end
        disk.records = []
        disk.synced_end = disk.start
        disk.truncations += 1
        self._step(node, SnapshotInstalled(effect.snapshot, disk.voters))

    # The network.

    def _delay(self) -> float:
        delay = 0.0005 + self.chance.random() * 0.005
        if not self.is_calm and self.chance.random() < self.swarm.slow:
            delay += self.chance.random() * 3.0
        return delay

    def _reaches(self, source: NodeId, destination: NodeId) -> bool:
        if (source, destination) in self.blocked:
            return False
        return self.is_calm or self.chance.random() >= self.swarm.loss

    def _copies(self) -> int:
        return 1 if self.is_calm or self.chance.random() >= self.swarm.duplicates else 2

    def _send(self, node: Node, to: NodeId, request: Request) -> None:
        assert node.raft is not None, "only a process sends"
        if to not in self.first_voters.ids and to not in reachable(node.raft):
            lost = Unanswered(to, request)
            self._later(self._delay(), self._resume, node, node.incarnation, lost)
            return
        self._later(RPC_TIMEOUT, self._time_out, node, node.incarnation, to, request)
        for _ in range(self._copies()):
            args = (node.id, node.incarnation, to, request)
            self._later(self._delay(), self._deliver, *args)

    def _time_out(self, node: Node, incarnation: int, to: NodeId, request: Request) -> None:
        """Given up, answered or not: the machine must bear both, in any order."""
        if node.incarnation == incarnation and request not in node.answered:
            self._step(node, Unanswered(to, request))

    def _deliver(self, source: NodeId, incarnation: int, to: NodeId, request: Request) -> None:
        if not self._reaches(source, to):
            return
        node = self.nodes.get(to)
        if node is None or node.raft is None:
            args = (self.nodes[source], incarnation, Unanswered(to, request, is_down=True))
            self._later(self._delay(), self._resume, *args)
            return
        self._token += 1
        node.tokens[self._token] = (source, incarnation, request)
        self._step(node, Asked(source, request, self._token))

    def _reply(self, node: Node, token: int, answer: Answer) -> None:
        asked = node.tokens.pop(token, None)
        if asked is None:
            raise Violation("a request is answered once", f"{node.raft}: {answer}")
        source, incarnation, request = asked
        self.invariants.replied(node, request, answer)
        if isinstance(answer, FetchAnswer) and answer.accepted:
            answer = self._fill(node, answer)
        for _ in range(self._copies()):
            args = (node.id, source, incarnation, request, answer)
            self._later(self._delay(), self._deliver_answer, *args)

    def _fill(self, node: Node, answer: FetchAnswer) -> FetchAnswer:
        disk = node.disk
        if answer.diverging or answer.snapshot or answer.offset >= disk.end:
            return answer
        count = self.chance.randint(1, self.swarm.batch_max)
        records = disk.read(answer.offset, min(disk.end, answer.offset + count))
        self.blobs.append(records)
        return msgspec.structs.replace(answer, data=str(len(self.blobs) - 1).encode())

    def _deliver_answer(
        self, source: NodeId, to: NodeId, incarnation: int, request: Request, answer: Answer
    ) -> None:
        node = self.nodes[to]
        if self._reaches(source, to) and node.incarnation == incarnation:
            node.answered.append(request)
            self._step(node, Answered(source, request, answer))
