"""Asking the voters: first whether they would, then whether they do.

Rule 1: the newest set of voters in this node's log is asked, and its majority decides.
Rule 2: only an answer to this ballot's own question counts, and only from the disk it names.
Rule 3: a voter that did not answer is asked again, later each time; one that refused is not.
"""

from tidelog.model import NO_NODE, Epoch, NodeId
from tidelog.raft.messages import Effect, Send, Vote, VoteAnswer
from tidelog.raft.state import NEVER, RaftMember
from tidelog.raft.voters import ReplicaKey, Voter


class Ballot:
    """One round of asking, for one epoch; with `pre`, without consequences (KIP-996)."""

    __slots__ = ("_ask_at", "_failures", "_granted", "_member", "_refused", "epoch", "hint", "pre", "until")

    def __init__(self, member: RaftMember, *, epoch: Epoch, pre: bool, now: float) -> None:
        self._member = member
        self.epoch = epoch
        """The epoch that this node would lead."""
        self.pre = pre
        self.until = now + member.election_timeout()
        self.hint: VoteAnswer | None = None
        """Who leads now, and where, as one voter believes; followed if the ballot is lost."""
        self._granted = {member.key}
        self._refused: set[ReplicaKey] = set()
        self._ask_at: dict[ReplicaKey, float] = {}
        self._failures: dict[ReplicaKey, int] = {}

    def __repr__(self) -> str:
        return f"<Ballot epoch={self.epoch} pre={self.pre} granted={len(self._granted)}>"

    @property
    def deadline(self) -> float:
        open_ = [self._ask_at.get(voter.key, 0.0) for voter in self._undecided()]
        return min(self.until, *open_) if open_ else self.until

    @property
    def is_won(self) -> bool:
        voters = self._member.log.voters
        return sum(voter.key in self._granted for voter in voters) >= voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether those who have not refused are too few."""
        voters = self._member.log.voters
        return sum(voter.key not in self._refused for voter in voters) < voters.majority

    def _undecided(self) -> list[Voter]:
        decided = self._granted | self._refused
        return [voter for voter in self._member.peers if voter.key not in decided]

    def ask(self, now: float) -> list[Effect]:
        """Ask every voter whose turn it is."""
        effects: list[Effect] = []
        for voter in self._undecided():
            if self._ask_at.get(voter.key, now) <= now:
                self._ask_at[voter.key] = NEVER  # until the question's fate is known
                effects.append(Send(voter.key.id, self._question(voter.key)))
        return effects

    def _question(self, voter: ReplicaKey) -> Vote:
        log = self._member.log
        return Vote(
            epoch=self.epoch,
            candidate=self._member.key,
            voter=voter,
            last_epoch=log.last_epoch,
            end=log.end,
            pre=self.pre,
        )

    def _asked(self, source: NodeId, request: Vote) -> bool:
        return (
            request.epoch == self.epoch
            and request.pre == self.pre
            and request.voter.id == source
            and request.voter in self._ask_at
        )

    def answered(self, source: NodeId, request: Vote, answer: VoteAnswer) -> None:
        if not self._asked(source, request) or answer.pre != self.pre:
            return
        if answer.granted:
            self._granted.add(request.voter)
            self._refused.discard(request.voter)
        elif request.voter not in self._granted:
            self._refused.add(request.voter)
            names_leader = answer.leader != NO_NODE and answer.epoch == self._member.epoch
            if names_leader and (self.hint is None or answer.endpoint is not None):
                self.hint = answer

    def unanswered(self, source: NodeId, request: Vote, *, is_down: bool, now: float) -> None:
        if not self._asked(source, request):
            return
        if is_down:
            self._refused.add(request.voter)  # for this round; the next one asks again
        failures = self._failures.get(request.voter, 0)
        self._failures[request.voter] = failures + 1
        self._ask_at[request.voter] = now + self._member.backoff(failures)
