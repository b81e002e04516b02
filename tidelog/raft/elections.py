"""Who leads: the stance that a member takes, and what makes it take another.

Rule 1: every change of stance is in this file; `machine` has the table.
Rule 2: a new epoch or vote is persisted before anything that follows from it.
Rule 3: every step ends with `_do_what_is_due`, so whatever is due is never forgotten.
"""

from collections.abc import Sequence
from typing import TypeAlias

from tidelog.errors import NotLeader
from tidelog.model import NO_NODE, Endpoint, Epoch, NodeId
from tidelog.raft.candidate import Ballot
from tidelog.raft.follower import Following
from tidelog.raft.idle import Resigned, Unattached
from tidelog.raft.leader import Leading
from tidelog.raft.messages import Answer, Effect, ElectionState, Follow, Lead, Persist
from tidelog.raft.state import RaftMember

Stance: TypeAlias = Unattached | Following | Ballot | Leading | Resigned


class Elections:
    """One member's stance; the effects of a step gather in `_out`."""

    def __init__(self, member: RaftMember, *, now: float, contacts: Sequence[NodeId]) -> None:
        self._member = member
        self._contacts = contacts
        self._losses = 0
        """How often in a row a leader was lost before it answered."""
        self._out: list[Effect] = []
        self._told: tuple[Epoch, NodeId | None] | None = None
        self._stance = self._first_stance(now)

    @property
    def epoch(self) -> Epoch:
        return self._member.state.epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self._stance, Leading)

    @property
    def leader(self) -> NodeId | None:
        match self._stance:
            case Leading():
                return self._member.id
            case Following():
                return self._stance.leader
            case _:
                return None

    @property
    def leader_endpoint(self) -> Endpoint | None:
        """Where the leader is: as it or who named it said, or else as the voters' set has it.

        None if nobody leads, as far as this node knows, or if none of these says so.
        """
        match self._stance:
            case Leading():
                return self._member.me.endpoint
            case Following() as following:
                voter = self._member.log.voters.get(following.leader)
                return following.endpoint or (None if voter is None else voter.endpoint)
            case _:
                return None

    def _leading(self) -> Leading:
        if not isinstance(self._stance, Leading):
            raise NotLeader(leader=self.leader)
        return self._stance

    def _first_stance(self, now: float) -> Stance:
        member = self._member
        leader = member.state.leader
        if leader == member.id:
            until = now if member.is_alone else now + member.election_timeout()
            return Resigned(member, until=until, now=now)
        if leader is not None:
            return Following(member, leader=leader, now=now)
        # Sooner than an election timeout: a pre-vote disturbs nobody, and finds a leader at once.
        wait = 0.0 if member.is_alone else member.draw() * member.timing.election_timeout_min
        return Unattached(member, deadline=now + wait, contacts=self._contacts)

    def _do_what_is_due(self, now: float) -> None:
        """Every step ends here, whatever it was about."""
        stance = self._stance
        match stance:
            case Unattached():
                if stance.deadline <= now:
                    self._campaign(now)
            case Resigned():
                self._out += stance.tell(now)
                if stance.until <= now:
                    self._campaign(now)
            case Following():
                if stance.has_lost(now):
                    self._campaign(now)
                else:
                    self._out += stance.fetch(now)
            case Ballot():
                self._count(stance, now)
            case Leading():
                if stance.is_removed or stance.quorum_lost_at <= now:
                    self._resign(now)
                else:
                    self._out += stance.tick(now)
        self._tell()

    def _tell(self) -> None:
        """Tell the driver who leads, if that has changed and it is not this node."""
        view = (self.epoch, self.leader)
        if view != self._told:
            self._told = view
            if not self.is_leader:
                self._out.append(Follow(*view))

    def _persist(self, state: ElectionState) -> None:
        if state != self._member.state:
            assert state.epoch >= self.epoch, "epochs never fall"
            self._member.state = state
            self._out.append(Persist(state))

    def _become(self, stance: Stance) -> None:
        before, self._stance = self._stance, stance
        self._tell()
        if isinstance(before, Leading):
            self._out += before.dismiss(self.leader, self.leader_endpoint)

    def _adopt(
        self, epoch: Epoch, leader: NodeId | None, now: float, endpoint: Endpoint | None = None
    ) -> None:
        """A greater epoch has begun; whatever this node did in an older one is over."""
        assert epoch > self.epoch
        leader = None if leader in (NO_NODE, self._member.id) else leader
        self._persist(ElectionState(epoch=epoch, leader=leader))
        if leader is None:
            self._detach(self._member.election_timeout(), now)
        else:
            self._become(Following(self._member, leader=leader, now=now, endpoint=endpoint))

    def _follow(
        self, leader: NodeId, now: float, *, endpoint: Endpoint | None, heard_at: float | None = None
    ) -> None:
        """Somebody leads this node's own epoch."""
        state = self._member.state
        assert leader != self._member.id
        self._persist(ElectionState(epoch=state.epoch, voted=state.voted, leader=leader))
        following = Following(self._member, leader=leader, now=now, endpoint=endpoint, heard_at=heard_at)
        self._become(following)

    def _hear(self, answer: Answer, now: float) -> None:
        """Somebody names the leader of an epoch; believe it if it can be true."""
        leader = answer.leader
        can_be = leader not in (NO_NODE, self._member.id)
        if can_be and answer.epoch == self.epoch and self._member.state.leader in (None, leader):
            self._follow(leader, now, endpoint=answer.endpoint)

    def _detach(self, wait: float, now: float) -> None:
        """Follow nobody; campaign after `wait`. Who may not campaign asks around sooner."""
        if not self._member.may_campaign:
            wait = min(wait, self._member.backoff(0))
        self._become(Unattached(self._member, deadline=now + wait, contacts=self._contacts))

    def _lose_leader(self, now: float) -> None:
        """The leader is gone for certain: campaign soon, but not all at the same moment."""
        wait = self._member.draw() * self._member.timing.failover_jitter
        if self._losses > 0:  # others may still see it: do not ask them again and again
            wait += self._member.backoff(self._losses)
        self._losses += 1
        self._detach(0.0 if self._member.is_alone else wait, now)

    def _campaign(self, now: float) -> None:
        """Ask whether a majority would vote for this node; who may not campaign asks who leads."""
        member = self._member
        if not member.may_campaign:
            if isinstance(self._stance, Unattached):
                self._out += self._stance.probe(now)
            else:
                self._detach(0.0, now)
        elif not member.may_stand:
            self._detach(member.election_timeout(), now)
        elif member.is_alone:
            self._stand(now)
        else:
            ballot = Ballot(member, epoch=self.epoch + 1, pre=True, now=now)
            self._become(ballot)
            self._out += ballot.ask(now)

    def _stand(self, now: float) -> None:
        """Open an epoch, vote for oneself in it, and ask the others to."""
        member = self._member
        epoch = self.epoch + 1
        leader = member.id if member.is_alone else None
        self._persist(ElectionState(epoch=epoch, voted=member.key, leader=leader))
        ballot = Ballot(member, epoch=epoch, pre=False, now=now)
        self._become(ballot)
        self._count(ballot, now)

    def _count(self, ballot: Ballot, now: float) -> None:
        member = self._member
        if not member.may_stand:
            self._detach(member.election_timeout(), now)
        elif ballot.is_won:
            if ballot.pre:
                self._stand(now)
            else:
                self._lead(now)
        elif ballot.is_lost:
            self._detach(member.election_timeout(), now)
            if ballot.hint is not None:
                self._hear(ballot.hint, now)
        elif ballot.until <= now:
            self._campaign(now)
        else:
            self._out += ballot.ask(now)

    def _lead(self, now: float) -> None:
        member = self._member
        state = member.state
        assert state.voted == member.key, "whoever leads an epoch voted for itself in it"
        self._persist(ElectionState(epoch=state.epoch, voted=state.voted, leader=member.id))
        leading = Leading(member, now=now)
        self._become(leading)
        self._out.append(Lead(self.epoch, member.log.voters))
        self._out += leading.tick(now)

    def _resign(self, now: float) -> None:
        member = self._member
        successors = self._leading().successors()
        until = now + member.timing.election_timeout_max + member.election_timeout()
        resigned = Resigned(member, until=until, now=now, successors=successors)
        self._become(resigned)
        self._out += resigned.tell(now)
