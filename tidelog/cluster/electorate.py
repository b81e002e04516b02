"""Changing who votes, from any node: by the broker's number, or by its disk as well.

Rule 1: one voter at a time; what may be changed, and when, `raft.changes` says.
Rule 2: a voter that is let in is a broker that follows already: its disk and address are known.
"""

from typing import Final

from tidelog.cluster.answering import answered
from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import ChangeVoters, ChangeVotersAnswer
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import VotersChanged
from tidelog.errors import BrokerError, BrokerIdNotRegistered, NotController
from tidelog.host import Host
from tidelog.model import NodeId
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.raft.changes import DuplicateVoter, VoterChangeRefused, VoterNotFound, VotersNotSettled
from tidelog.raft.voters import ReplicaKey, Voter

_ASK_SECONDS_MAX: Final = 10.0


class Electorate:
    """The voters, as operators change them."""

    def __init__(self, host: Host, member: ClusterMember) -> None:
        self._host = host
        self._member = member
        member.handle(ChangeVoters, self._on_change)

    async def add(self, node: NodeId, directory: str | None = None) -> None:
        """Let a broker vote; refused unless it has caught up."""
        broker = self._member.metadata.image.brokers.get(node)
        if broker is None:
            raise BrokerIdNotRegistered(node)
        if directory is not None and directory != broker.directory:
            raise VoterNotFound(f"node {node} has the directory {broker.directory}")
        key = ReplicaKey(node, broker.directory)
        await self._ask(ChangeVoters(add=Voter(key, broker.peer.host, broker.peer.port)))

    async def remove(self, node: NodeId, directory: str | None = None) -> None:
        """Let a voter be one no longer; it goes on as a broker that follows."""
        voter = self._member.quorum.raft.voters.get(node)
        if voter is None or directory not in (None, voter.key.directory):
            raise VoterNotFound(f"node {node} is no voter with this directory")
        await self._ask(ChangeVoters(remove=voter.key))

    async def _ask(self, change: ChangeVoters) -> None:
        leader = self._member.quorum.raft.leader
        if leader is None:
            raise NotController("the quorum has no leader now; try again")
        try:
            answer = await self._member.hub.ask(
                leader, change, ChangeVotersAnswer, seconds_max=_ASK_SECONDS_MAX
            )
        except (PeerUnreachable, PeerRefused) as error:
            raise NotController(f"the quorum's leader does not answer: {error}") from None
        if answer.problem is not None:
            raise _refusal(answer)

    # At the leader.

    def _on_change(self, source: NodeId, change: ChangeVoters, place: Answer | None) -> None:
        assert place is not None
        self._member.quorum.spawn(answered(place, self._change, change, place))

    async def _change(self, change: ChangeVoters, place: Answer) -> None:
        def decide(image: ClusterImage) -> VotersChanged:
            raft, now = self._member.quorum.raft, self._host.clock.monotonic()
            if change.add is not None:
                _check_voter(image, change.add)
                voters = raft.add_voter(change.add, now)
            elif change.remove is not None:
                voters = raft.remove_voter(change.remove)
            else:
                raise VoterNotFound("neither a voter to add nor one to remove")
            return VotersChanged(voters=list(voters))

        try:
            await self._member.metadata.decide_here(decide)
        except BrokerError as error:
            place.send(ChangeVotersAnswer(problem=str(error), code=error.code))
        else:
            place.send(ChangeVotersAnswer())


_REFUSALS: Final[dict[int, type[BrokerError]]] = {
    kind.code: kind for kind in (NotController, DuplicateVoter, VoterNotFound, VotersNotSettled)
}


def _check_voter(image: ClusterImage, voter: Voter) -> None:
    """Only a broker can become a voter, with its disk and at its address."""
    broker = image.brokers.get(voter.key.id)
    if broker is None or (broker.directory, broker.peer) != (voter.key.directory, voter.endpoint):
        raise VoterNotFound(f"no broker is {voter.key} at {voter.endpoint}")


def _refusal(answer: ChangeVotersAnswer) -> BrokerError:
    """The leader's own refusal, passed on."""
    return _REFUSALS.get(answer.code, VoterChangeRefused)(answer.problem)
