"""Whether a controller still leads, asked of voters that are no more than what they answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.cluster.leadership import Leadership
from tidelog.cluster.messages import ConfirmEpoch, ConfirmEpochAnswer
from tidelog.model import NodeId
from tidelog.peers.stream import PeerUnreachable
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet

EPOCH = 5
VOTERS = VoterSet([Voter(ReplicaKey(node, f"d{node}"), f"p{node}", 9192) for node in (1, 2, 3)])


class Place:
    def __init__(self) -> None:
        self.answer: Any = None

    def send(self, message: Any) -> None:
        self.answer = message


class Quorum:
    """Nodes by their numbers: the epoch of each, and its disk. Node 1 leads in `EPOCH`."""

    def __init__(self, others: dict[NodeId, tuple[int, str]]) -> None:
        self.members = {1: self._member(1, EPOCH, "d1")}
        self.members |= {node: self._member(node, *known) for node, known in others.items()}

    def _member(self, node: NodeId, epoch: int, directory: str) -> Leadership:
        raft = SimpleNamespace(epoch=epoch, voters=VOTERS)
        spawn = lambda work: asyncio.get_running_loop().create_task(work)  # noqa: E731
        member: Any = SimpleNamespace(
            quorum=SimpleNamespace(leads=node == 1, raft=raft, spawn=spawn),
            hub=self,
            me=Voter(ReplicaKey(node, directory), f"p{node}", 9192),
            handle=lambda kind, handler: None,
        )
        return Leadership(member)

    async def ask(self, node: NodeId, message: ConfirmEpoch, *rest: Any, **options: Any) -> Any:
        if node not in self.members:
            raise PeerUnreachable("it is away")
        place: Any = Place()
        self.members[node]._on_confirm(1, message, place)
        assert isinstance(place.answer, ConfirmEpochAnswer)
        return place.answer

    def confirms(self) -> bool:
        return asyncio.run(self.members[1].confirmed())


@pytest.mark.parametrize(
    ("others", "is_certain"),
    [
        ({2: (EPOCH, "d2")}, True),
        ({2: (EPOCH + 1, "d2")}, False),
        ({2: (EPOCH + 1, "d2"), 3: (EPOCH, "d3")}, True),
        ({2: (EPOCH, "another")}, False),
        ({}, False),
    ],
    ids=["a majority", "one that left", "one that left and one that stayed", "wiped", "nobody"],
)
def test_a_leader_is_certain_once_a_majority_of_the_disks_that_vote_is_in_its_epoch(others, is_certain):
    assert Quorum(others).confirms() is is_certain
