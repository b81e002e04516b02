"""One member of a quorum, set up in a line, for tests that look at single steps."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from tidelog.model import Epoch, NodeId, Offset
from tidelog.raft.machine import Raft
from tidelog.raft.messages import (
    Answer,
    Answered,
    Appended,
    Asked,
    Effect,
    ElectionState,
    Event,
    Fetch,
    Lead,
    Reply,
    Request,
    Send,
    SnapshotId,
    Synced,
    Ticked,
    Vote,
    VoteAnswer,
    VotersFound,
)
from tidelog.raft.state import Role, Timing
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet

T = TypeVar("T")


def key(node: NodeId, directory: str = "a") -> ReplicaKey:
    return ReplicaKey(node, directory)


def voter(node: NodeId, directory: str = "a") -> Voter:
    return Voter(key(node, directory), f"host{node}", 9000 + node)


def voters(*nodes: NodeId) -> VoterSet:
    return VoterSet(voter(node) for node in nodes)


def reachable(raft: Raft) -> list[NodeId]:
    """Whose address a member of the quorum knows, by itself."""
    leader = [] if raft.leader is None or raft.leader_endpoint is None else [raft.leader]
    return leader + raft.voters.ids


class One:
    """A machine, the moment it lives in, and what it last asked for."""

    def __init__(
        self,
        node: NodeId = 1,
        *,
        nodes: Sequence[NodeId] = (1, 2, 3),
        state: ElectionState | None = None,
        epochs: Iterable[tuple[Epoch, Offset]] = (),
        end: Offset = 0,
        start: Offset = 0,
        watermark: Offset = 0,
        snapshot: SnapshotId | None = None,
        history: Iterable[tuple[Offset, VoterSet]] = (),
        directory: str = "a",
        contacts: Sequence[NodeId] = (),
    ) -> None:
        self.now = 100.0
        self.effects: list[Effect] = []
        self._token = 0
        self.raft = Raft(
            me=voter(node, directory),
            state=state or ElectionState(),
            voters=voters(*nodes),
            voters_history=history,
            epochs=epochs,
            log_start=start,
            end=end,
            synced_end=end,
            high_watermark=watermark,
            snapshot=snapshot,
            timing=Timing(),
            draw=lambda: 0.5,
            now=self.now,
            contacts=contacts,
        )

    def step(self, event: Event) -> list[Effect]:
        self.effects = self.raft.step(event, self.now)
        return self.effects

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, ticking whenever the machine wants it; all that it asked for."""
        until = self.now + seconds
        effects: list[Effect] = []
        while self.raft.deadline <= until:
            self.now = max(self.now, self.raft.deadline)
            effects += self.step(Ticked())
        self.now = until
        self.effects = effects
        return effects

    def ask(self, source: NodeId, request: Request) -> Any:
        """What `request` is answered with at once; None if it waits."""
        self._token += 1
        self.step(Asked(source, request, self._token))
        replies = [e.answer for e in self.found(Reply) if e.token == self._token]
        return replies[0] if replies else None

    def role(self) -> Role:
        return self.raft.role

    def replies(self) -> list[Any]:
        return [reply.answer for reply in self.found(Reply)]

    def found(self, kind: type[T]) -> list[T]:
        """The effects of a kind in what the last step returned."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[T]) -> list[tuple[NodeId, T]]:
        return [(e.to, e.request) for e in self.found(Send) if isinstance(e.request, kind)]

    def answer(self, source: NodeId, request: Request, answer: Answer) -> list[Effect]:
        return self.step(Answered(source, request, answer))

    # Common ways.

    def grant(self, *, pre: bool, by: Iterable[NodeId]) -> list[Effect]:
        """Let some of those just asked say yes."""
        asked = dict(self.sent(Vote))
        for node in by:
            request = asked[node]
            assert request.pre is pre
            epoch = self.raft.epoch if pre else request.epoch
            self.answer(node, request, VoteAnswer(epoch=epoch, leader=-1, granted=True, pre=pre))
        return self.effects

    def elect(self, *, by: NodeId = 2) -> None:
        """Make it lead, and its first record durable here."""
        while not self.sent(Vote):
            self.wait(self.raft.deadline - self.now)
        self.grant(pre=True, by=[by])
        self.grant(pre=False, by=[by])
        assert self.raft.is_leader
        self.open_epoch()

    def open_epoch(self) -> None:
        [lead] = self.found(Lead)
        self.append(voters=lead.voters)

    def append(self, count: int = 1, *, voters: VoterSet | None = None) -> list[Effect]:
        """Append as a leader does, and sync."""
        start = self.raft.log.end
        effects: list[Effect] = []
        effects += self.step(Appended(end=start + count, epoch=self.raft.epoch, start=start))
        if voters is not None:
            effects += self.step(VotersFound(start, voters))
        effects += self.step(Synced(start + count))
        self.effects = effects
        return effects

    def fetch(
        self,
        node: NodeId,
        *,
        offset: Offset,
        last_epoch: Epoch | None = None,
        synced_end: Offset | None = None,
        watermark: Offset = 0,
        epoch: Epoch | None = None,
        directory: str = "a",
    ) -> Any:
        """Let `node` fetch; by default it holds the same history, all of it synced."""
        log = self.raft.log
        if last_epoch is None:
            last_epoch = log.last_epoch if offset == log.end else log.epochs.epoch_at(offset - 1)
        return self.ask(
            node,
            Fetch(
                epoch=self.raft.epoch if epoch is None else epoch,
                replica=key(node, directory),
                offset=offset,
                last_epoch=last_epoch,
                synced_end=offset if synced_end is None else synced_end,
                high_watermark=watermark,
            ),
        )
