"""Bugs to plant into a quorum, each of which the invariants must find.

Nothing in the machine knows of these: each takes the place of one method, in one test.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.support.raft_cluster import Cluster
from tests.support.raft_world import Disk, Node, Swarm
from tidelog.model import Endpoint, Epoch, NodeId, Offset
from tidelog.raft import changes
from tidelog.raft.elections import Elections, Stance
from tidelog.raft.follower import Following
from tidelog.raft.leader import Leading
from tidelog.raft.logview import LogView
from tidelog.raft.messages import Effect, ElectionState, Fetch, SnapshotId
from tidelog.raft.state import RaftMember


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    """The epoch survives a restart, the vote in it does not."""
    crash = Cluster.crash

    def crash_and_forget(self: Cluster, node: Node) -> None:
        crash(self, node)
        node.disk.state = ElectionState(epoch=node.disk.state.epoch)

    patch.setattr(Cluster, "crash", crash_and_forget)


def keep_name_of_wiped_disk(patch: pytest.MonkeyPatch) -> None:
    """An empty disk votes under the name of the one it replaced."""

    def wipe(self: Cluster, node: Node) -> None:
        node.disk = Disk(node.disk.directory, self.first_voters)

    patch.setattr(Cluster, "wipe", wipe)


def campaign_without_asking(patch: pytest.MonkeyPatch) -> None:
    """No pre-vote: whoever loses sight of the leader raises the epoch."""
    campaign = Elections._campaign

    def stand(self: Elections, now: float) -> None:
        if self._member.may_stand:
            self._stand(now)
        else:
            campaign(self, now)

    patch.setattr(Elections, "_campaign", stand)


def commit_older_epochs_by_counting(patch: pytest.MonkeyPatch) -> None:
    """A majority holds it, so it must be committed (Raft, figure 8)."""

    def advance(self: Leading) -> list[Effect]:
        effects = self._member.log.commit(self._held())
        return effects + self.release() if effects else []

    patch.setattr(Leading, "advance", advance)


def ignore_history(patch: pytest.MonkeyPatch) -> None:
    """Logs are compared by their ends alone."""

    def compare(self: LogView, offset: Offset, last_epoch: Epoch) -> tuple[Epoch, Offset] | SnapshotId | None:
        if offset < self.start:
            return self.snapshot
        return None if offset <= self.end else (self.last_epoch, self.end)

    patch.setattr(LogView, "compare", compare)


def truncate_to_own_watermark(patch: pytest.MonkeyPatch) -> None:
    """What I know to be committed is all that is (KIP-101)."""

    def truncate(self: Following, epoch: Epoch, end: Offset, now: float) -> list[Effect]:
        log = self._member.log
        self._fetch_at = now
        return log.truncate(log.high_watermark) if log.high_watermark < log.end else []

    patch.setattr(Following, "_truncate", truncate)


def count_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A fetch from here on means that everything before is durable."""
    note = Leading._note

    def trusting(self: Leading, progress: object, request: Fetch, now: float) -> None:
        note(self, progress, request, now)  # type: ignore[arg-type]
        progress.synced_end = request.offset  # type: ignore[attr-defined]

    patch.setattr(Leading, "_note", trusting)


def count_a_removed_leader(patch: pytest.MonkeyPatch) -> None:
    """The leader counts its own copy, even where it does not vote."""

    def held(self: Leading) -> Offset:
        member = self._member
        ends = [self._progress[voter.key].synced_end for voter in member.peers]
        ends = sorted([*ends, member.log.synced_end], reverse=True)
        return ends[member.log.voters.majority - 1]

    patch.setattr(Leading, "_held", held)


def change_voters_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    """A change does not wait until the one before it is committed."""
    patch.setattr(changes, "_check_settled", lambda member, leading: None)


def keep_voters_of_truncated_records(patch: pytest.MonkeyPatch) -> None:
    """A set of voters goes on counting after its record is truncated."""
    truncate = LogView.truncate

    def keep(self: LogView, end: Offset) -> list[Effect]:
        sets = list(self._sets)
        effects = truncate(self, end)
        self._sets = sets
        return effects

    patch.setattr(LogView, "truncate", keep)


def lead_on_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Who led the epoch before its process ended goes on leading it."""
    first = Elections._first_stance

    def first_stance(self: Elections, now: float) -> Stance:
        if self._member.state.leader == self._member.id:
            return Leading(self._member, now=now)
        return first(self, now)

    patch.setattr(Elections, "_first_stance", first_stance)


def vote_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks first gets the vote, whatever its log lacks."""
    patch.setattr(LogView, "is_ahead_of", lambda self, last_epoch, end: False)


def vote_by_what_is_left(patch: pytest.MonkeyPatch) -> None:
    """A voter whose disk lost what it had acknowledged judges candidates by the rest."""
    patch.setattr(LogView, "is_whole", True)
    patch.setattr(
        LogView, "is_ahead_of", lambda self, last_epoch, end: (self.last_epoch, self.end) > (last_epoch, end)
    )


def believe_only_the_leader_where_it_is(patch: pytest.MonkeyPatch) -> None:
    """Whoever names a leader says where it is, and is not believed."""
    begin = Following.__init__

    def distrust(
        self: Following,
        member: RaftMember,
        *,
        leader: NodeId,
        now: float,
        endpoint: Endpoint | None = None,
        heard_at: float | None = None,
    ) -> None:
        known = None if heard_at is None else endpoint
        begin(self, member, leader=leader, now=now, endpoint=known, heard_at=heard_at)

    patch.setattr(Following, "__init__", distrust)


_STORM = Swarm(
    loss=0.05,
    duplicates=0.05,
    slow=0.1,
    crash=3.0,
    pause=0.3,
    cut=1.0,
    write=8.0,
    change=0.0,
    snapshot=0.0,
    resign=0.3,
    wipe=0.0,
    rot=0.0,
    stall=0.2,
    batch_max=1,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A bug, the weather in which it shows, and the invariants that may find it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: frozenset[str]
    nodes: int = 3
    swarm: Swarm = _STORM

    def __str__(self) -> str:
        return self.plant.__name__


def _fault(
    plant: Callable[[pytest.MonkeyPatch], None], *found_by: str, nodes: int = 3, **weather: float
) -> Fault:
    return Fault(plant, frozenset(found_by), nodes, replace(_STORM, **weather))  # type: ignore[arg-type]


VOTE = "one vote in an epoch"
LEADER = "one leader in an epoch"
COMPLETE = "a leader holds all that is committed"
ONE_LOG = "what is committed is one log"
MAJORITY = "what is committed is synced on a majority"
TRUNCATED = "what is committed is not truncated"
UNDONE = "no leader asks to undo what is committed"

FAULTS = [
    _fault(forget_votes, VOTE, LEADER, crash=8.0, slow=0.3, cut=2.0, resign=2.0),
    _fault(
        keep_name_of_wiped_disk,
        VOTE,
        LEADER,
        COMPLETE,
        MAJORITY,
        "a durable epoch never falls",
        wipe=4.0,
        crash=0.5,
    ),
    _fault(campaign_without_asking, "an isolated voter that returns disturbs nobody"),
    _fault(
        commit_older_epochs_by_counting,
        COMPLETE,
        ONE_LOG,
        TRUNCATED,
        crash=6.0,
        cut=0.0,
        resign=2.0,
        stall=0.4,
        slow=0.0,
        write=20.0,
    ),
    _fault(ignore_history, ONE_LOG, MAJORITY, COMPLETE),
    _fault(truncate_to_own_watermark, TRUNCATED),
    _fault(count_what_is_not_synced, MAJORITY),
    _fault(count_a_removed_leader, MAJORITY, change=4.0),
    _fault(change_voters_twice_at_once, COMPLETE, ONE_LOG, LEADER, nodes=5, change=8.0, cut=3.0),
    _fault(
        keep_voters_of_truncated_records, "the newest set in the log counts", nodes=5, change=6.0, cut=3.0
    ),
    _fault(lead_on_after_a_restart, "a process leads only epochs that it opened"),
    _fault(vote_for_shorter_logs, COMPLETE),
    _fault(vote_by_what_is_left, COMPLETE, ONE_LOG, TRUNCATED, UNDONE, rot=4.0, crash=1.0),
    _fault(
        believe_only_the_leader_where_it_is,
        "a healed quorum commits, and everybody learns it",
        change=3.0,
        wipe=1.0,
        crash=2.0,
        resign=2.0,
        cut=0.0,
        loss=0.0,
        slow=0.0,
        stall=0.0,
    ),
]
