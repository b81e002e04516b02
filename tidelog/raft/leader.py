"""The leader's half: who holds what, and what a majority holds.

Rule 1: the watermark is the greatest end that a majority of the newest set of voters holds synced.
        The leader counts itself only if it is one of them.
Rule 2: it rises only to cover a record of the leader's own epoch: an older epoch's record may be
        on a majority and still be overwritten (Raft, section 5.4.2). It never falls.
Rule 3: a fetch counts once its history agrees with this log, for the disk that sent it, and only
        for what it says is synced.
Rule 4: a fetch with nothing to bring is kept until there is something, or `fetch_wait` has passed.
"""

from dataclasses import dataclass

from tidelog.model import NO_NODE, Endpoint, NodeId, Offset
from tidelog.raft.messages import BeginEpoch, Effect, Fetch, FetchAnswer, Reply, Send, SnapshotId
from tidelog.raft.state import NEVER, RaftMember, ReplicaState
from tidelog.raft.voters import ReplicaKey, VoterSet


@dataclass(slots=True)
class _Progress:
    """What one replica has told this leader in this epoch."""

    since: float
    """When the leader began to listen for it."""
    end: Offset = 0
    synced_end: Offset = 0
    fetched_at: float | None = None
    caught_up_at: float | None = None
    leader_end: Offset = 0
    """Where the leader's log ended at its last fetch."""
    begin_at: float = 0.0
    """When to tell it, if it stays silent, who leads."""
    failures: int = 0

    @property
    def heard_at(self) -> float:
        return self.since if self.fetched_at is None else self.fetched_at


@dataclass(frozen=True, slots=True)
class _Parked:
    token: int
    request: Fetch
    until: float


class Leading:
    """One leader in one epoch.

    Invariant: the log's watermark <= what a majority of its voters holds synced.
    """

    __slots__ = ("_member", "_parked", "_progress", "epoch_start", "proposed")

    def __init__(self, member: RaftMember, *, now: float) -> None:
        self._member = member
        self.epoch_start = member.log.end
        """Where the first record of this epoch is, or will be."""
        self.proposed: VoterSet | None = None
        """A set that the driver was given to append, and has not yet."""
        self._progress: dict[ReplicaKey, _Progress] = {}
        self._parked: dict[ReplicaKey, _Parked] = {}
        self.note_voters(now)

    def __repr__(self) -> str:
        return f"<Leading from {self.epoch_start} parked={len(self._parked)}>"

    @property
    def leads(self) -> bool:
        """Whether a record of this epoch is committed: all earlier ones are then known to be."""
        return self._member.log.high_watermark > self.epoch_start

    @property
    def is_removed(self) -> bool:
        """Whether a committed set of voters leaves this leader out."""
        return not self._member.votes and self._member.log.are_voters_committed and self.leads

    @property
    def deadline(self) -> float:
        moments = [parked.until for parked in self._parked.values()]
        moments += [self._begin_at(voter.key) for voter in self._member.peers]
        return min([self.quorum_lost_at, *moments])

    @property
    def quorum_lost_at(self) -> float:
        """When a majority will have been silent for too long, if it stays silent."""
        member = self._member
        needed = member.log.voters.majority - (1 if member.votes else 0)
        if needed == 0:
            return NEVER
        heard = sorted((self._progress[v.key].heard_at for v in member.peers), reverse=True)
        return heard[needed - 1] + member.timing.quorum_timeout

    def note_voters(self, now: float) -> None:
        """The newest set of voters may have changed: listen for every member of it."""
        self.proposed = None
        for voter in self._member.peers:
            if voter.key not in self._progress:
                self._progress[voter.key] = _Progress(since=now)

    # Fetches.

    def fetched(self, request: Fetch, token: int, now: float) -> list[Effect]:
        """A replica asks for what follows `request.offset`; it may raise the watermark."""
        log = self._member.log
        progress = self._progress.get(request.replica)
        if progress is None:
            progress = self._progress[request.replica] = _Progress(since=now)
        effects = self._release(request.replica)  # one fetch of each replica waits at most
        verdict = log.compare(request.offset, request.last_epoch)
        if verdict is None:
            self._note(progress, request, now)
            effects += self.advance()
        progress.fetched_at = now
        progress.failures = 0
        if isinstance(verdict, SnapshotId):
            effects.append(Reply(token, self._answer(request, snapshot=verdict)))
        elif verdict is not None:
            effects.append(Reply(token, self._answer(request, diverging=verdict)))
        elif self._has_news(request):
            effects.append(Reply(token, self._answer(request)))
        else:
            until = now + self._member.timing.fetch_wait
            self._parked[request.replica] = _Parked(token, request, until)
        return effects

    def _note(self, progress: _Progress, request: Fetch, now: float) -> None:
        log_end = self._member.log.end
        if request.offset >= log_end:
            progress.caught_up_at = now
        elif progress.fetched_at is not None and request.offset >= progress.leader_end > 0:
            progress.caught_up_at = progress.fetched_at
        progress.leader_end = log_end
        progress.end = request.offset
        # A late fetch may say less than an earlier one; what was durable in this epoch still is.
        progress.synced_end = max(progress.synced_end, min(request.synced_end, request.offset))

    def _has_news(self, request: Fetch) -> bool:
        log = self._member.log
        return log.end > request.offset or log.high_watermark > request.high_watermark

    def _answer(
        self,
        request: Fetch,
        *,
        diverging: tuple[int, Offset] | None = None,
        snapshot: SnapshotId | None = None,
    ) -> FetchAnswer:
        return FetchAnswer(
            epoch=self._member.epoch,
            leader=self._member.id,
            endpoint=self._member.me.endpoint,
            high_watermark=self._member.log.high_watermark,
            diverging=diverging,
            snapshot=snapshot,
            offset=request.offset,
        )

    def _release(self, key: ReplicaKey) -> list[Effect]:
        parked = self._parked.pop(key, None)
        return [] if parked is None else [Reply(parked.token, self._answer(parked.request))]

    def release(self) -> list[Effect]:
        """Answer every fetch for which there is news now."""
        ready = [key for key, parked in self._parked.items() if self._has_news(parked.request)]
        return [reply for key in ready for reply in self._release(key)]

    def gone(self, token: int) -> None:
        for key, parked in list(self._parked.items()):
            if parked.token == token:
                del self._parked[key]

    def dismiss(self, leader: NodeId | None, endpoint: Endpoint | None) -> list[Effect]:
        """This node leads no longer: refuse everybody who waits, and say who does, and where."""
        answer = FetchAnswer(
            epoch=self._member.epoch,
            leader=NO_NODE if leader is None else leader,
            endpoint=endpoint,
            accepted=False,
        )
        return [Reply(parked.token, answer) for parked in self._parked.values()]

    # The watermark.

    def advance(self) -> list[Effect]:
        """Raise the watermark as far as a majority of the voters allows, and tell who waits."""
        held = self._held()
        if held <= self.epoch_start:
            return []
        effects = self._member.log.commit(held)
        return effects + self.release() if effects else []

    def _held(self) -> Offset:
        """The greatest end that a majority of the voters holds synced."""
        member = self._member
        ends = [
            member.log.synced_end if voter.key == member.key else self._progress[voter.key].synced_end
            for voter in member.log.voters
        ]
        ends.sort(reverse=True)
        return ends[member.log.voters.majority - 1]

    # Time.

    def _begin_at(self, key: ReplicaKey) -> float:
        progress = self._progress[key]
        if progress.fetched_at is None:
            return progress.begin_at
        silent_at = progress.fetched_at + self._member.timing.begin_interval
        return max(progress.begin_at, silent_at)

    def tick(self, now: float) -> list[Effect]:
        """Answer who has waited long enough; make this leader known to voters that are silent."""
        member = self._member
        late = [key for key, parked in self._parked.items() if parked.until <= now]
        effects = [reply for key in late for reply in self._release(key)]
        for voter in member.peers:
            if self._begin_at(voter.key) <= now:
                self._progress[voter.key].begin_at = now + member.timing.begin_interval
                effects.append(Send(voter.key.id, BeginEpoch(epoch=member.epoch, leader=member.me)))
        self._forget_observers(now)
        return effects

    def unanswered(self, voter: NodeId, now: float) -> None:
        """A voter could not be told who leads: try sooner than otherwise."""
        known = self._member.log.voters.get(voter)
        if known is None or known.key not in self._progress:
            return
        progress = self._progress[known.key]
        sooner = now + self._member.backoff(progress.failures)
        progress.failures += 1
        progress.begin_at = min(progress.begin_at, sooner)

    def _forget_observers(self, now: float) -> None:
        oldest = now - self._member.timing.observer_memory
        voters = self._member.log.voters
        for key, progress in list(self._progress.items()):
            if progress.heard_at < oldest and key not in voters:
                del self._progress[key]

    # What others may know.

    def successors(self) -> tuple[NodeId, ...]:
        """The other voters, the one that holds the most first."""
        peers = sorted(self._member.peers, key=lambda v: -self._progress[v.key].end)
        return tuple(voter.key.id for voter in peers)

    def is_caught_up(self, key: ReplicaKey, now: float) -> bool:
        progress = self._progress.get(key)
        if progress is None or progress.caught_up_at is None:
            return False
        return now - progress.caught_up_at <= self._member.timing.fetch_timeout

    def replicas(self, now: float) -> list[ReplicaState]:
        """Every copy this leader knows of, its own first."""
        log = self._member.log
        voters = log.voters
        states = [
            ReplicaState(
                key=self._member.key,
                votes=self._member.votes,
                end=log.end,
                synced_end=log.synced_end,
                fetched_at=now,
                caught_up_at=now,
            )
        ]
        for key, progress in sorted(self._progress.items()):
            states.append(
                ReplicaState(
                    key=key,
                    votes=key in voters,
                    end=progress.end,
                    synced_end=progress.synced_end,
                    fetched_at=progress.fetched_at,
                    caught_up_at=progress.caught_up_at,
                )
            )
        return states
