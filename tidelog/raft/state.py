"""What every role of a quorum's member shares.

Rule 1: a timeout is a setting, a moment is an argument; nothing here reads a clock.
Rule 2: whatever is repeated is repeated later each time, and never at the same moment as others.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.log.epochs import EPOCH_MAX
from tidelog.model import Epoch, NodeId, Offset
from tidelog.raft.logview import LogView
from tidelog.raft.messages import ElectionState
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet

NEVER = float("inf")


class Role(enum.StrEnum):
    """What a member of the quorum is doing; `machine` shows how one becomes another."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a member waits for what, in seconds."""

    election_timeout_min: float = 1.0
    election_timeout_max: float = 2.0
    fetch_timeout: float = 2.0
    """A follower that the leader has not answered for so long looks for another."""
    fetch_wait: float = 0.5
    """How long a leader keeps a fetch that it has nothing new for."""
    retry_min: float = 0.05
    retry_max: float = 1.0
    failover_jitter: float = 0.1
    """Those who see a leader die spread their campaigns over this long."""
    observer_memory: float = 300.0
    """An observer silent for so long is no longer listed."""

    def __post_init__(self) -> None:
        assert 0 < self.election_timeout_min <= self.election_timeout_max
        assert 0 < self.fetch_wait < self.fetch_timeout, "waiting must not look like silence"
        assert 0 < self.retry_min <= self.retry_max

    @property
    def quorum_timeout(self) -> float:
        """A leader that no majority has fetched from for so long resigns.

        Longer than the followers' own patience, so that by then they look for another anyway.
        """
        return 1.5 * self.fetch_timeout

    @property
    def begin_interval(self) -> float:
        """How often a leader makes itself known to a voter that does not fetch."""
        return self.fetch_timeout / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What a leader knows of one copy of the log, its own included."""

    key: ReplicaKey
    votes: bool
    end: Offset
    synced_end: Offset
    fetched_at: float | None
    caught_up_at: float | None
    """When it last held all that the leader did."""


@dataclass(slots=True, kw_only=True)
class RaftMember:
    """This member of the quorum: who it is, what it holds, and what it has promised."""

    me: Voter
    log: LogView
    state: ElectionState
    timing: Timing
    draw: Callable[[], float]
    """A number in [0, 1), drawn evenly."""
    _voters: VoterSet | None = None
    """The set for which the next two were found."""
    _votes: bool = False
    _peers: tuple[Voter, ...] = ()

    @property
    def key(self) -> ReplicaKey:
        return self.me.key

    @property
    def id(self) -> NodeId:
        return self.me.key.id

    @property
    def epoch(self) -> Epoch:
        return self.state.epoch

    @property
    def votes(self) -> bool:
        """Whether the newest set names this node: only then its own vote and copy count."""
        self._look_at_voters()
        return self._votes

    @property
    def may_lead(self) -> bool:
        """Whether this node may campaign: also if only an uncommitted set leaves it out.

        It may be the only one that holds that set, and without it nobody could win (Ongaro's
        thesis, 4.2.2). As a leader it then commits the set, and resigns.
        """
        return self.votes or self.log.may_need(self.key)

    @property
    def may_campaign(self) -> bool:
        """Whether this node asks for votes, or else only who leads.

        A disk that lost what it had acknowledged may have lost the newest set of voters, too: it
        cannot wait for a leader that counts it among them.
        """
        return self.may_lead and self.log.is_whole

    @property
    def is_alone(self) -> bool:
        """Whether this node's own vote is a majority."""
        return self.votes and self.log.voters.majority == 1

    @property
    def peers(self) -> tuple[Voter, ...]:
        """The other voters, in the order of their nodes."""
        self._look_at_voters()
        return self._peers

    def _look_at_voters(self) -> None:
        voters = self.log.voters
        if voters is not self._voters:
            self._voters = voters
            self._votes = self.key in voters
            self._peers = tuple(voter for voter in voters if voter.key != self.key)

    @property
    def may_stand(self) -> bool:
        """Whether this node could lead now.

        Not while batches are on their way to its disk: a set of voters might be among them, which
        the new leader's first record would undo. Nor while a snapshot is: all that it lacks is
        committed, so others know more. Nor while its log lacks what it has acknowledged.
        """
        is_settled = not self.log.is_appending and not self.log.is_installing
        return self.may_campaign and is_settled and self.epoch + 1 < EPOCH_MAX

    def election_timeout(self) -> float:
        least, most = self.timing.election_timeout_min, self.timing.election_timeout_max
        return least + self.draw() * (most - least)

    def backoff(self, failures: int) -> float:
        """How long to wait after so many failures in a row; at least half of it is certain."""
        longest = min(self.timing.retry_max, self.timing.retry_min * 2.0 ** min(failures, 30))
        return longest * (0.5 + 0.5 * self.draw())
