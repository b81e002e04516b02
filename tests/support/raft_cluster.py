"""A quorum in one seeded, single-threaded process: machines, disks and a network that fails.

Rule 1: the same seed gives the same history; nothing here asks the clock or the system for chance.
Rule 2: a disk keeps what was persisted or synced, and of the rest a random part.
Rule 3: the invariants (`raft_invariants`) look at every effect of every step.

A run has three parts: faults; then healing, after which the quorum must come to serve again; then
one voter is cut off and comes back, which must disturb nobody.

    python -m tests.support.raft_cluster SEED      # replay a seed, with its whole trace
"""

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.raft_invariants import Invariants, Record, Violation
from tidelog.errors import BrokerError
from tidelog.log.epochs import EpochHistory
from tidelog.model import NodeId, Offset
from tidelog.raft.machine import Raft
from tidelog.raft.messages import (
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
    Reply,
    Request,
    Resign,
    Send,
    SnapshotFailed,
    SnapshotId,
    SnapshotInstalled,
    SnapshotTaken,
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
        )


class Cluster:
    """Nodes, their network and their faults, in virtual time."""

    machine: type[Raft] = Raft

    def __init__(
        self,
        seed: int,
        *,
        nodes: int | None = None,
        trace: bool = False,
        swarm: Swarm | None = None,
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
            contacts=list(self.nodes),
        )
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
        return FetchAnswer(
            epoch=answer.epoch,
            leader=answer.leader,
            high_watermark=answer.high_watermark,
            offset=answer.offset,
            data=str(len(self.blobs) - 1).encode(),
        )

    def _deliver_answer(
        self, source: NodeId, to: NodeId, incarnation: int, request: Request, answer: Answer
    ) -> None:
        node = self.nodes[to]
        if self._reaches(source, to) and node.incarnation == incarnation:
            node.answered.append(request)
            self._step(node, Answered(source, request, answer))

    # Faults and load.

    def _begin_faults(self) -> None:
        swarm = self.swarm
        kinds: list[tuple[float, Callable[[], None]]] = [
            (swarm.write, self.write),
            (swarm.crash, self._crash_some),
            (swarm.pause, self._pause_some),
            (swarm.cut, self._cut_some),
            (swarm.change, self.change_voters),
            (swarm.snapshot, self._take_snapshot),
            (swarm.resign, self._resign_some),
            (swarm.wipe, self._wipe_some),
        ]
        for rate, do in kinds:
            if rate > 0:
                self._repeat(rate, do)

    def _repeat(self, rate: float, do: Callable[[], None]) -> None:
        def again() -> None:
            if not self.is_calm:
                do()
                self._later(self.chance.expovariate(rate), again)

        self._later(self.chance.expovariate(rate), again)

    def _some(self) -> Node:
        """Any node; leaders more often, since most goes wrong around them."""
        leaders = list(self.leaders())
        if leaders and self.chance.random() < 0.4:
            return self.chance.choice(leaders)
        return self.chance.choice(list(self.nodes.values()))

    def leaders(self) -> Iterator[Node]:
        return (n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader)

    def write(self) -> None:
        """A client writes to whoever believes that it leads."""
        for node in list(self.leaders()):
            assert node.raft is not None
            if node.paused_until <= self.now:
                self._value += 1
                self._write(node, [Record(node.raft.epoch, self._value, None)])

    def crash(self, node: Node) -> None:
        if node.raft is None:
            return
        self._log(node, "crash")
        node.raft = None
        node.incarnation += 1
        node.paused_until = 0.0
        node.disk.lose_power(self.chance.choice([0.0, self.chance.random(), 1.0]))
        for source, incarnation, request in node.tokens.values():
            if self.chance.random() < 0.7:  # whoever waits sees its connection close
                gone = Unanswered(node.id, request, is_down=True)
                self._later(self._delay(), self._resume, self.nodes[source], incarnation, gone)
        node.tokens.clear()

    def _crash_some(self) -> None:
        chance = self.chance
        all_at_once = chance.random() < 0.05
        for node in list(self.nodes.values()) if all_at_once else [self._some()]:
            if node.raft is not None:
                self.crash(node)
                self._later(chance.choice([0.01, 0.3, 3.0]) * chance.random(), self._start, node)

    def _pause_some(self) -> None:
        node = self._some()
        node.paused_until = self.now + self.chance.random() * 5.0

    def _cut_some(self) -> None:
        chance = self.chance
        ids = list(self.nodes)
        first = self._some().id
        others = [node for node in ids if node != first]
        side = [first, *chance.sample(others, chance.randint(0, len(others) // 2))]
        both = chance.random() < 0.5
        cut = [(a, b) for a in side for b in ids if b not in side]
        cut += [(b, a) for a, b in cut] if both else []
        if chance.random() < 0.5:
            cut = [(b, a) for a, b in cut]
        self.blocked.update(cut)
        self._log(self.nodes[side[0]], "cut", cut)
        self._later(chance.random() * 5.0, self.blocked.difference_update, cut)

    def _resign_some(self) -> None:
        for node in list(self.leaders()):
            self._step(node, Resign())

    def change_voters(self) -> None:
        """An operator adds a node that does not vote, or removes one that does."""
        for node in list(self.leaders()):
            raft = node.raft
            assert raft is not None
            if node.paused_until > self.now:
                continue
            try:
                voters = self._changed(raft)
            except BrokerError:
                continue
            self._log(node, "change", voters)
            self._write(node, [Record(raft.epoch, 0, voters)])

    def _changed(self, raft: Raft) -> VoterSet:
        voters = raft.voters
        dead = [v.key for v in voters if self.nodes[v.key.id].key != v.key]
        spare = [n for n in self.nodes.values() if voters.get(n.id) is None]
        if dead:
            return raft.remove_voter(self.chance.choice(dead))
        if spare and (len(voters) < 3 or self.chance.random() < 0.5):
            return raft.add_voter(self.chance.choice(spare).voter, self.now)
        return raft.remove_voter(self.chance.choice(list(voters)).key)

    def _take_snapshot(self) -> None:
        node = self._some()
        raft, disk = node.raft, node.disk
        if raft is None or node.paused_until > self.now or raft.log.is_installing:
            return
        least = max(disk.start, disk.snapshot.end if disk.snapshot else 0)
        if raft.high_watermark <= least:
            return
        end = self.chance.randint(least + 1, raft.high_watermark)
        if end > disk.synced_end:
            return
        start = self.chance.choice([end, self.chance.randint(disk.start, end)])
        voters = disk.voters_before(end)
        disk.snapshot = SnapshotId(end, disk.records[end - 1 - disk.start].epoch)
        disk.voters = voters
        del disk.records[: start - disk.start]
        disk.start = start
        self._step(node, SnapshotTaken(disk.snapshot, start))

    def _wipe_some(self) -> None:
        """Replace a voter's disk, if the quorum can bear it for good."""
        for leader in self.leaders():
            raft = leader.raft
            assert raft is not None
            node = self._some()
            dead = sum(self.nodes[v.key.id].key != v.key for v in raft.voters)
            bearable = dead + 1 <= len(raft.voters) - raft.voters.majority
            if (
                raft.leads
                and raft.log.are_voters_committed
                and bearable
                and not self._is_changing()
            ):
                self.crash(node)
                self.wipe(node)
                self._later(self.chance.random(), self._start, node)
            return

    def _is_changing(self) -> bool:
        sets = {n.raft.voters for n in self.nodes.values() if n.raft is not None}
        return len(sets) > 1 or any(n.raft is None for n in self.nodes.values())

    def wipe(self, node: Node) -> None:
        self._log(node, "wipe")
        directory = f"{node.id}{chr(ord(node.disk.directory[-1]) + 1)}"
        node.disk = Disk(directory, VoterSet())

    # A whole run.

    def story(self, *, faults_seconds: float = 8.0) -> None:
        try:
            self._begin_faults()
            self.run(faults_seconds)
            self.heal()
            self.check_liveness()
            self.check_rejoin()
        except Violation as violation:
            violation.add_note(f"replay: python -m tests.support.raft_cluster {self.seed}")
            raise

    def heal(self) -> None:
        self.is_calm = True
        self.blocked.clear()
        for node in self.nodes.values():
            node.paused_until = min(node.paused_until, self.now)
            self._start(node)

    def serving(self) -> Node | None:
        """The leader, if the quorum serves."""
        for node in self.leaders():
            assert node.raft is not None
            newest = node.raft.epoch == max(n.raft.epoch for n in self.nodes.values() if n.raft)
            if node.raft.leads and newest:
                return node
        return None

    def check_liveness(self) -> None:
        if not self.run(30.0, until=lambda: self.serving() is not None):
            raise Violation("a healed quorum elects a leader", self._describe())
        known = self.invariants.decided
        before = len(known)

        def everybody_knows() -> bool:
            raft_of = [node.raft for node in self.nodes.values() if node.raft is not None]
            written = any(record.value for record in known[before:])
            return written and min(raft.high_watermark for raft in raft_of) == len(known)

        for _ in range(30):  # what one leader took may be lost with it, so write again
            self.write()
            if self.run(1.0, until=everybody_knows):
                return
        raise Violation("a healed quorum commits, and everybody learns it", self._describe())

    def check_rejoin(self) -> None:
        leader = self.serving()
        if leader is None or leader.raft is None or len(leader.raft.voters) < 3:
            return
        self.run(3.0)
        leader = self.serving()
        assert leader is not None and leader.raft is not None
        epoch = leader.raft.epoch
        live = [
            self.nodes[v.key.id] for v in leader.raft.voters if self.nodes[v.key.id].key == v.key
        ]
        if len(live) <= leader.raft.voters.majority:
            return
        lonely = self.chance.choice([node for node in live if node is not leader])
        cut = [(lonely.id, n) for n in self.nodes] + [(n, lonely.id) for n in self.nodes]
        self.blocked.update(cut)
        self._log(lonely, "cut off")
        self.run(6.0)
        self.blocked.clear()
        self.run(4.0)
        after = self.serving()
        if after is not leader or leader.raft.epoch != epoch:
            raise Violation("an isolated voter that returns disturbs nobody", self._describe())

    def _describe(self) -> str:
        return "\n".join(str(node.raft) for node in self.nodes.values())

    def print_trace(self) -> None:
        for moment, node, *what in self.trace:
            print(f"{moment:9.4f} {node}", *what)


def main() -> None:
    cluster = Cluster(int(sys.argv[1]), trace=True)
    try:
        cluster.story()
    finally:
        cluster.print_trace()


if __name__ == "__main__":
    main()
