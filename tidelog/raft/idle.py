"""Following nobody: waiting to campaign, looking for a leader, or having just stopped leading.

Rule 1: a voter waits for its election timeout. An observer, or a voter whose log is not whole, asks
        one voter after the other who leads; it does not campaign.
Rule 2: whoever led an epoch tells every voter that it is over until each has heard, and never
        leads that epoch again.
"""

from collections.abc import Sequence

from tidelog.model import NodeId
from tidelog.raft.follower import next_fetch
from tidelog.raft.messages import Effect, EndEpoch, Send
from tidelog.raft.state import RaftMember


class Unattached:
    """Knows of no leader in this epoch."""

    __slots__ = ("_contacts", "_failures", "_member", "_turn", "deadline")

    def __init__(self, member: RaftMember, *, deadline: float, contacts: Sequence[NodeId] = ()) -> None:
        self._member = member
        self.deadline = deadline
        """When to campaign, or to ask the next voter who leads."""
        self._contacts = contacts
        self._turn = int(member.draw() * 64)
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Unattached deadline={self.deadline:.3f}>"

    def probe(self, now: float) -> list[Effect]:
        """Ask somebody who leads, by a fetch that only a leader would accept."""
        member = self._member
        nodes = sorted({*member.log.voters.ids, *self._contacts} - {member.id})
        # A leader may keep the fetch for a while.
        self.deadline = now + 2 * member.timing.fetch_wait
        if not nodes or member.log.is_appending:
            return []
        self._turn += 1
        return [Send(nodes[self._turn % len(nodes)], next_fetch(member))]

    def answered(self, now: float) -> None:
        """The one who was asked does not know, or did not answer."""
        if not self._member.may_campaign:
            self.deadline = min(self.deadline, now + self._member.backoff(self._failures))
            self._failures += 1


class Resigned:
    """Led this epoch until now, or until its process ended."""

    __slots__ = ("_failures", "_member", "_successors", "_tell_at", "until")

    def __init__(
        self, member: RaftMember, *, until: float, now: float, successors: tuple[NodeId, ...] = ()
    ) -> None:
        self._member = member
        self.until = until
        self._successors = successors
        self._tell_at = {voter.key.id: now for voter in member.peers}
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Resigned until={self.until:.3f} untold={list(self._tell_at)}>"

    @property
    def deadline(self) -> float:
        return min([self.until, *self._tell_at.values()])

    def tell(self, now: float) -> list[Effect]:
        """Tell the voters whose turn it is that this epoch has no leader any more."""
        member = self._member
        request = EndEpoch(epoch=member.epoch, leader=member.id, successors=self._successors)
        due = [node for node, moment in self._tell_at.items() if moment <= now]
        for node in due:
            self._tell_at[node] = now + member.timing.retry_max
        return [Send(node, request) for node in due]

    def answered(self, node: NodeId) -> None:
        self._tell_at.pop(node, None)

    def unanswered(self, node: NodeId, now: float) -> None:
        if node in self._tell_at:
            self._tell_at[node] = now + self._member.backoff(self._failures)
            self._failures += 1
