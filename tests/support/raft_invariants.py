"""What must hold of a quorum at every step, whatever fails.

Each check has a name, which a `Violation` carries; a planted bug must be found by one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.model import Epoch, NodeId, Offset
from tidelog.raft.messages import Answer, ElectionState, Request, Vote, VoteAnswer
from tidelog.raft.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from tests.support.raft_world import Node


class Violation(AssertionError):
    """An invariant does not hold; `name` says which."""

    def __init__(self, name: str, facts: str) -> None:
        super().__init__(f"{name}: {facts}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log; a value is written once, so equal records are the same record."""

    epoch: Epoch
    value: int
    voters: VoterSet | None


class Invariants:
    """Sees every promise, every leader and every commit of a whole run."""

    def __init__(self, voters: VoterSet, nodes: Mapping[NodeId, "Node"]) -> None:
        self._nodes = nodes
        self.decided: list[Record] = []
        self._decided_in: dict[int, Offset] = {}
        """How far the log was decided on, by the epoch that did it."""
        """What is committed, by the word of whoever said so first."""
        self.leaders: dict[Epoch, tuple[ReplicaKey, int]] = {}
        self.votes: dict[tuple[ReplicaKey, Epoch], ReplicaKey] = {}
        self._epochs: dict[ReplicaKey, Epoch] = {}
        self._watermarks: dict[NodeId, Offset] = {}
        self._truncations: dict[NodeId, int] = {}

    def started(self, node: "Node") -> None:
        assert node.raft is not None
        self._watermarks[node.id] = node.raft.high_watermark
        if node.raft.is_leader:
            raise Violation("a process leads only epochs that it opened", str(node.raft))

    def stepped(self, node: "Node", now: float) -> None:
        raft, disk = node.raft, node.disk
        assert raft is not None
        log = raft.log
        if log.high_watermark < self._watermarks[node.id]:
            raise Violation("the watermark never falls", str(raft))
        self._watermarks[node.id] = log.high_watermark
        if log.start != disk.start or log.end != disk.end or log.synced_end > disk.synced_end:
            raise Violation("the machine knows its log", f"{raft}, {disk.start}..{disk.end}")
        if not log.start <= log.high_watermark <= log.end:
            raise Violation("the watermark lies in the log", str(raft))
        if disk.truncations != self._truncations.get(node.id):
            self._truncations[node.id] = disk.truncations
            if raft.voters != disk.voters_before(disk.end):
                raise Violation("the newest set in the log counts", f"{raft} {raft.voters}")
        if raft.complaint:
            raise Violation("no leader asks to undo what is committed", raft.complaint)

    def persisted(self, node: "Node", state: ElectionState) -> None:
        if state.epoch < self._epochs.get(node.key, 0):
            raise Violation("a durable epoch never falls", f"{node.key}: {state}")
        self._epochs[node.key] = state.epoch
        if state.voted is not None:
            self._voted(node.key, state.epoch, state.voted)

    def replied(self, node: "Node", request: Request, answer: Answer) -> None:
        if isinstance(request, Vote) and isinstance(answer, VoteAnswer) and answer.granted:
            if request.pre:
                return
            if node.disk.state.epoch < request.epoch or node.disk.state.voted != request.candidate:
                facts = f"{node.key} says yes to {request.candidate} with {node.disk.state}"
                raise Violation("a vote is durable before it is given", facts)
            self._voted(request.voter, request.epoch, request.candidate)

    def _voted(self, voter: ReplicaKey, epoch: Epoch, candidate: ReplicaKey) -> None:
        before = self.votes.setdefault((voter, epoch), candidate)
        if before != candidate:
            facts = f"{voter} voted for {before} and {candidate} in {epoch}"
            raise Violation("one vote in an epoch", facts)

    def leads(self, node: "Node", epoch: Epoch) -> None:
        me = (node.key, node.incarnation)
        if self.leaders.setdefault(epoch, me) != me:
            raise Violation("one leader in an epoch", f"{self.leaders[epoch]} and {me} in {epoch}")
        # Votes may come late: who wins an epoch after a later one began lacks what that decided.
        needed = max((end for at, end in self._decided_in.items() if at < epoch), default=0)
        self._check_prefix(node, needed, "a leader holds all that is committed")

    def committed(self, node: "Node", watermark: Offset) -> None:
        disk, raft = node.disk, node.raft
        assert raft is not None
        self._check_prefix(node, min(watermark, len(self.decided)), "what is committed is one log")
        if watermark <= len(self.decided):
            return
        if self.leaders.get(raft.epoch) != (node.key, node.incarnation):
            facts = f"{raft} commits {watermark}, which no leader has"
            raise Violation("leaders commit", facts)
        self._check_majority(node, watermark)
        self.decided += disk.read(len(self.decided), watermark)
        self._decided_in[raft.epoch] = watermark

    def _check_majority(self, leader: "Node", watermark: Offset) -> None:
        raft, disk = leader.raft, leader.disk
        assert raft is not None
        last = disk.records[watermark - 1 - disk.start]
        holders = 0
        for voter in raft.voters:
            other = self._nodes[voter.key.id].disk
            if other.directory != voter.key.directory:
                holders += 1  # wiped since; the run makes sure that the others suffice
            elif other.has_lost:
                holders += 1  # rotten since; it votes by what it had
            elif other.synced_end >= watermark:
                # The same record, of the same epoch: then all before it is the same, too.
                kept = watermark > other.start
                holders += not kept or other.records[watermark - 1 - other.start] == last
        if holders < raft.voters.majority:
            facts = f"{raft} commits {watermark}, which {holders} of {raft.voters} hold"
            raise Violation("what is committed is synced on a majority", facts)

    def truncated(self, node: "Node", end: Offset) -> None:
        disk = node.disk
        held = disk.read(end, min(disk.end, len(self.decided)))
        decided = self.decided[end : end + len(held)]
        for offset, (mine, theirs) in enumerate(zip(held, decided, strict=True), end):
            if mine == theirs:
                facts = f"{node.raft} truncates to {end}; {offset} is committed"
                raise Violation("what is committed is not truncated", facts)

    def _check_prefix(self, node: "Node", end: Offset, name: str) -> None:
        disk = node.disk
        if disk.end < end:
            raise Violation(name, f"{node.raft} ends at {disk.end}, committed is {end}")
        # From the end: histories that differ anywhere differ in what was decided last, mostly.
        start = max(disk.start, end - 40)
        mine, theirs = disk.read(start, end), self.decided[start:end]
        if mine != theirs:
            raise Violation(name, f"{node.raft} holds {mine}, decided is {theirs}")
