"""Raft by pulling: the machine of one member of a quorum (KIP-595, KIP-853, KIP-996).

Rule 1: nothing here reads a clock, file, socket or generator. `step` takes one event and the
        moment it happened, and returns what the driver must do, in order.
Rule 2: whatever a peer sends is answered, refused or ignored; it never raises.
Rule 3: a promise is persisted before anybody hears of it: `Persist` comes before the answer or
        question that rests on it.
Rule 4: one vote in an epoch, for one disk, and only for a log that lacks nothing of this one, nor
        of what this disk has acknowledged and lost (`logview`, rule 5). A question meant for
        another disk in this node is refused: a wiped disk has promised nothing.
Rule 5: whoever asks to be elected is judged by its log, not by whether the voter's newest set
        names it; and a node that is asked by name answers even if its own newest set leaves it
        out (KIP-853). The set that counts is the candidate's, and it may be the newer one.
Rule 6: nobody raises the epoch before a majority said that it would vote (pre-vote). Nobody says
        so who leads, or who heard from its leader within the fetch timeout. Saying so promises
        nothing and changes nothing.
Rule 7: an epoch is led by at most one process. A leader that restarts has resigned.
Rule 8: an epoch further ahead than `EPOCH_JUMP_MAX` is nonsense, whoever names it.
Rule 9: the watermark rises by `leader`'s rules at the leader, and by the leader's word elsewhere.

    from          to            when
    ------------  ------------  --------------------------------------------------------------
    (start)       Resigned      it led its last epoch
                  Follower      it knew its epoch's leader
                  Unattached    otherwise
    Unattached    Prospective   its time has come (a voter; a sole one goes on to Leader at once)
                  Follower      somebody says who leads
    Follower      Prospective   no answer from the leader for the fetch timeout
                  Unattached    the leader's process is gone, or says that it does not lead, or
                                ended its epoch: campaigns after a short, random wait
                  Candidate     the leader ended its epoch and names this node first
    Prospective   Candidate     a majority would vote for it
                  Follower      a leader says that it leads; or, once lost, a voter named one
                  Unattached    too many refused
    Candidate     Leader        a majority voted for it
                  Unattached    too many refused
                  Prospective   the election timeout has passed
    Leader        Resigned      told to; or no majority fetched for 1.5 fetch timeouts; or a
                                committed set of voters leaves it out
    Resigned      Prospective   the election timeout has passed
    any           Unattached    a greater epoch is heard of, its leader unknown
    any           Follower      a greater epoch is heard of, with its leader

An Observer is a Follower or Unattached that no set of voters names which counts, or could count
again. It fetches, or asks around whom to fetch from, and never campaigns. A node that only an
uncommitted set leaves out is no observer yet: it may be the only one who can have that set
committed. It campaigns, and leads, without counting itself.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never

from tidelog.log.epochs import EPOCH_MAX
from tidelog.model import NO_EPOCH, NO_NODE, Epoch, NodeId, Offset
from tidelog.raft import changes
from tidelog.raft.candidate import Ballot
from tidelog.raft.elections import Elections
from tidelog.raft.follower import Following
from tidelog.raft.idle import Resigned, Unattached
from tidelog.raft.leader import Leading
from tidelog.raft.logview import LogView
from tidelog.raft.messages import (
    NOWHERE,
    Answer,
    Answered,
    Appended,
    Asked,
    BeginEpoch,
    Effect,
    ElectionState,
    EndEpoch,
    EpochAnswer,
    Event,
    Fetch,
    FetchAnswer,
    Gone,
    Position,
    Reply,
    Request,
    Resign,
    SnapshotFailed,
    SnapshotId,
    SnapshotInstalled,
    SnapshotTaken,
    Synced,
    Ticked,
    Unanswered,
    Vote,
    VoteAnswer,
    VotersFound,
)
from tidelog.raft.state import RaftMember, ReplicaState, Role, Timing
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet

EPOCH_JUMP_MAX: Final = 2**20
"""How far ahead an epoch may be that this member hears of: more elections than it can have missed. Epochs
end at `EPOCH_MAX`, and one message must not bring a quorum there."""


class Raft(Elections):
    """One member of a quorum.

    The driver sends `Ticked` when `deadline` comes, and at once after making the machine.
    Of the log it tells the truth in order: `VotersFound` beside its `Appended`, before any `Synced`
    that covers it; no `Synced` of a sync that began before a `Truncate`; and for every `Append` one
    `Appended` per epoch in it, or, if it failed, one whose end is where the log ended before.

    Owned by one driver; not thread-safe.
    """

    def __init__(
        self,
        *,
        me: Voter,
        state: ElectionState,
        voters: VoterSet,
        voters_history: Iterable[tuple[Offset, VoterSet]] = (),
        epochs: Iterable[tuple[Epoch, Offset]] = (),
        log_start: Offset = 0,
        end: Offset = 0,
        synced_end: Offset = 0,
        high_watermark: Offset = 0,
        snapshot: SnapshotId | None = None,
        timing: Timing,
        draw: Callable[[], float],
        now: float,
        contacts: Sequence[NodeId] = (),
        acknowledged: Position = NOWHERE,
    ) -> None:
        """`voters` counted before any record of `voters_history`, of which the last one counts.

        `contacts` are nodes to ask who leads, beside the voters. `acknowledged` is noted apart from
        the log: how far others may have been told that this disk holds it durably.
        """
        log = LogView(
            start=log_start,
            end=end,
            synced_end=synced_end,
            high_watermark=high_watermark,
            epochs=epochs,
            snapshot=snapshot,
            voters=voters,
            history=voters_history,
            acknowledged=acknowledged,
        )
        member = RaftMember(me=me, log=log, state=state, timing=timing, draw=draw)
        super().__init__(member, now=now, contacts=contacts)
        self.deadline = now
        """When `Ticked` must come, at the latest."""

    def __repr__(self) -> str:
        return f"<Raft {self._member.key} {self.role} epoch={self.epoch} {self._member.log}>"

    # What the driver may ask.

    @property
    def role(self) -> Role:
        match self._stance:
            case Leading():
                return Role.LEADER
            case Resigned():
                return Role.RESIGNED
            case Ballot(pre=True):
                return Role.PROSPECTIVE
            case Ballot():
                return Role.CANDIDATE
            case Following():
                return Role.FOLLOWER if self._member.may_lead else Role.OBSERVER
            case Unattached():
                return Role.UNATTACHED if self._member.may_lead else Role.OBSERVER

    @property
    def state(self) -> ElectionState:
        return self._member.state

    @property
    def log(self) -> LogView:
        return self._member.log

    @property
    def voters(self) -> VoterSet:
        """The newest set in the log, committed or not."""
        return self._member.log.voters

    @property
    def high_watermark(self) -> Offset:
        return self._member.log.high_watermark

    @property
    def leads(self) -> bool:
        """Whether this node leads and everything committed before it is known to it as such."""
        return isinstance(self._stance, Leading) and self._stance.leads

    @property
    def complaint(self) -> str | None:
        """What this node's leader asked for and must not get; a safety violation somewhere."""
        return self._stance.complaint if isinstance(self._stance, Following) else None

    def replicas(self, now: float) -> list[ReplicaState]:
        """What this leader knows of every copy; empty if it does not lead."""
        return self._stance.replicas(now) if isinstance(self._stance, Leading) else []

    # Changing the voters.

    def add_voter(self, voter: Voter, now: float) -> VoterSet:
        """The set to append, or why not. To add a voter again says where it is reached now."""
        leading = self._leading()
        voters = changes.with_voter(voter, member=self._member, leading=leading, now=now)
        leading.proposed = voters
        return voters

    def remove_voter(self, key: ReplicaKey) -> VoterSet:
        """The set to append, or why not."""
        leading = self._leading()
        voters = changes.without_voter(key, member=self._member, leading=leading)
        leading.proposed = voters
        return voters

    # Events.

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what the driver must do, in order."""
        self._out = []
        match event:
            case Ticked():
                pass
            case Asked():
                self._asked(event, now)
            case Answered():
                self._answered(event, now)
            case Unanswered():
                self._unanswered(event, now)
            case Appended():
                self._appended(event, now)
            case Synced():
                self._synced(event.end, now)
            case Gone():
                if isinstance(self._stance, Leading):
                    self._stance.gone(event.token)
            case VotersFound():
                self._member.log.found(event.offset, event.voters)
                if isinstance(self._stance, Leading):
                    self._stance.note_voters(now)
                    self._out += self._stance.advance()
            case SnapshotTaken():
                self._member.log.taken(event.snapshot, event.log_start)
            case SnapshotInstalled():
                self._out += self._member.log.installed(event.snapshot, event.voters)
                if isinstance(self._stance, Following):
                    self._stance.installed(now)
            case SnapshotFailed():
                self._member.log.is_installing = False
                if isinstance(self._stance, Following):
                    self._stance.unanswered(now)
            case Resign():
                if isinstance(self._stance, Leading):
                    self._resign(now)
            case _:
                assert_never(event)
        # One append may come as several events; nothing is decided in the middle of them.
        if self.is_leader or not isinstance(event, Appended | VotersFound):
            self._do_what_is_due(now)
        self.deadline = self._stance.deadline
        return self._out

    # Requests.

    def _asked(self, event: Asked, now: float) -> None:
        source, request, token = event.source, event.request, event.token
        is_far = request.epoch - self.epoch > EPOCH_JUMP_MAX
        if is_far or not _makes_sense(source, request) or source == self._member.id:
            self._out.append(Reply(token, self._refusal(request)))
            return
        match request:
            case Vote():
                answer: Answer = self._asked_to_vote(request, now)
            case BeginEpoch():
                answer = self._told_of_begin(request, now)
            case EndEpoch():
                answer = self._told_of_end(request, now)
            case Fetch():
                if request.epoch > self.epoch:
                    self._adopt(request.epoch, None, now)
                if request.epoch == self.epoch and isinstance(self._stance, Leading):
                    self._out += self._stance.fetched(request, token, now)
                    return
                answer = self._refusal(request)
            case _:
                assert_never(request)
        self._out.append(Reply(token, answer))

    def _refusal(self, request: Request) -> Answer:
        """What to answer, as things are now, to whoever gets nothing."""
        epoch, endpoint = self.epoch, self.leader_endpoint
        leader = NO_NODE if self.leader is None else self.leader
        match request:
            case Vote():
                return self._vote_answer(request, granted=False)
            case Fetch():
                return FetchAnswer(epoch=epoch, leader=leader, endpoint=endpoint, accepted=False)
            case _:
                return EpochAnswer(epoch=epoch, leader=leader, endpoint=endpoint)

    def _vote_answer(self, request: Vote, *, granted: bool) -> VoteAnswer:
        return VoteAnswer(
            epoch=self.epoch,
            leader=NO_NODE if self.leader is None else self.leader,
            endpoint=self.leader_endpoint,
            granted=granted,
            pre=request.pre,
        )

    def _asked_to_vote(self, request: Vote, now: float) -> Answer:
        member = self._member
        if request.voter != member.key or request.epoch < self.epoch:
            return self._refusal(request)
        if request.pre:
            granted = request.epoch > self.epoch and self._would_vote(request, now)
        else:
            granted = self._vote(request, now)
        return self._vote_answer(request, granted=granted)

    def _would_vote(self, request: Vote, now: float) -> bool:
        match self._stance:
            case Leading():
                return False
            case Following() if self._stance.is_led(now):
                return False
        return not self._member.log.is_ahead_of(request.last_epoch, request.end)

    def _vote(self, request: Vote, now: float) -> bool:
        member = self._member
        behind = member.log.is_ahead_of(request.last_epoch, request.end)
        if request.epoch > self.epoch:
            voted = None if behind else request.candidate
            self._persist(ElectionState(epoch=request.epoch, voted=voted))
            self._detach(member.election_timeout(), now)
            return not behind
        state = member.state
        if state.voted is not None or state.leader is not None:
            return state.voted == request.candidate
        if behind:
            return False
        self._persist(ElectionState(epoch=state.epoch, voted=request.candidate))
        self._detach(member.election_timeout(), now)
        return True

    def _told_of_begin(self, request: BeginEpoch, now: float) -> Answer:
        if request.epoch > self.epoch:
            self._adopt(request.epoch, None, now)
        leader, endpoint = request.leader.key.id, request.leader.endpoint
        # If this epoch had a leader that this node lost sight of, there is no other.
        if request.epoch == self.epoch and self.state.leader in (None, leader):
            if isinstance(self._stance, Following):
                self._stance.endpoint = endpoint
            else:
                self._follow(leader, now, endpoint=endpoint, heard_at=now)
        return self._refusal(request)

    def _told_of_end(self, request: EndEpoch, now: float) -> Answer:
        if request.epoch > self.epoch:
            self._adopt(request.epoch, None, now)
        if request.epoch == self.epoch and self.state.leader in (None, request.leader):
            self._succeed(request.successors, now)
        return self._refusal(request)

    def _succeed(self, successors: tuple[NodeId, ...], now: float) -> None:
        """The epoch's leader has ended it: the first successor stands, the others give it time."""
        member = self._member
        rank = successors.index(member.id) if member.id in successors else len(successors)
        if rank == 0 and successors and member.may_stand:
            self._stand(now)
            return
        wait = (rank + member.draw()) * member.timing.failover_jitter
        match self._stance:
            case Following():
                self._detach(0.0 if member.is_alone else wait, now)
            case Unattached():
                self._stance.deadline = min(self._stance.deadline, now + wait)

    # Answers.

    def _answered(self, event: Answered, now: float) -> None:
        source, request, answer = event.source, event.request, event.answer
        if not 0 <= answer.epoch < EPOCH_MAX or answer.epoch - self.epoch > EPOCH_JUMP_MAX:
            return
        if answer.epoch > self.epoch:
            self._adopt(answer.epoch, answer.leader, now, answer.endpoint)
            return
        match self._stance, request, answer:
            case Ballot() as ballot, Vote(), VoteAnswer():
                ballot.answered(source, request, answer)
                if answer.leader == source and not answer.granted:
                    self._hear(answer, now)
            case Following() as following, Fetch(), FetchAnswer():
                if following.is_waiting_for(source, request):
                    self._fetch_answered(following, answer, now)
            case Unattached() as unattached, Fetch(), FetchAnswer():
                unattached.answered(now)
                self._hear(answer, now)
            case Resigned() as resigned, EndEpoch(), EpochAnswer():
                if request.epoch == self.epoch:
                    resigned.answered(source)

    def _fetch_answered(self, following: Following, answer: FetchAnswer, now: float) -> None:
        if answer.accepted and answer.epoch == self.epoch and answer.leader == following.leader:
            self._losses = 0
            self._out += following.answered(answer, now)
        elif answer.epoch == self.epoch and answer.leader != following.leader:
            self._lose_leader(now)
        else:
            following.unanswered(now)  # it is behind, or did not understand

    def _unanswered(self, event: Unanswered, now: float) -> None:
        match self._stance, event.request:
            case Ballot() as ballot, Vote() as vote:
                ballot.unanswered(event.destination, vote, is_down=event.is_down, now=now)
            case Following() as following, Fetch() as fetch:
                if following.is_waiting_for(event.destination, fetch):
                    if event.is_down:
                        self._lose_leader(now)
                    else:
                        following.unanswered(now)
            case Unattached() as unattached, Fetch():
                unattached.answered(now)
            case Leading() as leading, BeginEpoch():
                leading.unanswered(event.destination, now)
            case Resigned() as resigned, EndEpoch():
                resigned.unanswered(event.destination, now)

    # The log.

    def _appended(self, event: Appended, now: float) -> None:
        log = self._member.log
        was_appending = log.is_appending
        failed = event.end == log.end
        log.appended(epoch=event.epoch, start=event.start, end=event.end)
        match self._stance:
            case Leading():
                assert event.epoch == self.epoch, "a leader appends in its own epoch"
                self._out += self._stance.release()
            case Following() if was_appending and failed:
                self._stance.unanswered(now)
            case Following():
                self._out += self._stance.appended(now)

    def _synced(self, end: Offset, now: float) -> None:
        self._member.log.synced(end)
        match self._stance:
            case Leading():
                self._out += self._stance.advance()
            case Following():
                self._stance.synced(now)


def _makes_sense(source: NodeId, request: Request) -> bool:
    """Whether a request could come from `source` and mean something."""
    if not 0 <= request.epoch < EPOCH_MAX:
        return False
    match request:
        case Vote():
            in_range = request.end >= 0 and request.last_epoch >= NO_EPOCH
            return request.candidate.id == source and in_range and request.last_epoch < request.epoch
        case BeginEpoch():
            return request.leader.key.id == source
        case EndEpoch():
            return request.leader == source
        case Fetch():
            in_range = min(request.offset, request.synced_end, request.high_watermark) >= 0
            return request.replica.id == source and in_range and request.last_epoch >= NO_EPOCH
