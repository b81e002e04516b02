"""Who decides: the voters of a quorum.

Rule 1: a voter is a node *and* its disk. A node whose disk was wiped is another voter, because it
        has forgotten what it promised.
Rule 2: a set is a value; it changes by one voter at a time (see `machine`).
"""

from collections.abc import Iterable, Iterator

import msgspec

from tidelog.model import Endpoint, NodeId


class ReplicaKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A node and the directory that holds its copy of the log."""

    id: NodeId
    directory: str
    """The directory's id, as `meta.properties` writes it."""

    def __str__(self) -> str:
        return f"{self.id}@{self.directory}"


class Voter(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A member of the quorum, and where its peers reach it."""

    key: ReplicaKey
    host: str
    port: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host=self.host, port=self.port)


class VoterSet:
    """The members of a quorum, by node. Equal sets are equal values."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters = {voter.key.id: voter for voter in sorted(voters)}

    def __iter__(self) -> Iterator[Voter]:
        """In the order of their nodes."""
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __contains__(self, key: ReplicaKey) -> bool:
        voter = self._voters.get(key.id)
        return voter is not None and voter.key == key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"<VoterSet {' '.join(str(voter.key) for voter in self)}>"

    @property
    def ids(self) -> list[NodeId]:
        return list(self._voters)

    @property
    def majority(self) -> int:
        """How many of them decide."""
        return len(self._voters) // 2 + 1

    def get(self, node: NodeId) -> Voter | None:
        return self._voters.get(node)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """This set with one voter more; one of the same node is replaced."""
        return VoterSet([*(v for v in self if v.key.id != voter.key.id), voter])

    def without(self, node: NodeId) -> "VoterSet":
        return VoterSet(voter for voter in self if voter.key.id != node)
