"""The metadata quorum: who votes, how far each is, and who shall vote."""

from typing import Final

import msgspec

from tidelog.client.members import ReplicaInfo
from tidelog.faces.http.admin.asking import operator
from tidelog.faces.http.api import Call, Operation
from tidelog.faces.http.problems import Problem
from tidelog.model import NodeId

TAG: Final = "quorum"
NODE_MAX: Final = 2**31 - 1


class QuorumReplica(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    end: int
    lag: int
    """Records of the metadata log that it lacks."""
    fetched_ms: int | None
    """When it last asked for more, since 1970, by the leader's clock; null of the leader."""
    caught_up_ms: int | None
    peer: str | None


class Quorum(msgspec.Struct, frozen=True, kw_only=True):
    leader: int
    epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]


class NoBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An empty object."""


class Votes(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    votes: bool


async def describe_quorum(call: Call) -> Quorum:
    """As its leader sees it, whichever node is asked."""
    found = await operator(call).quorum()
    return Quorum(
        leader=found.leader, epoch=found.epoch, high_watermark=found.high_watermark,
        voters=[_show(copy) for copy in found.voters],
        observers=[_show(copy) for copy in found.observers],
    )  # fmt: skip


def _show(copy: ReplicaInfo) -> QuorumReplica:
    return QuorumReplica(
        node=copy.node, end=copy.end, lag=copy.lag, fetched_ms=copy.fetched_ms,
        caught_up_ms=copy.caught_up_ms, peer=None if copy.peer is None else str(copy.peer),
    )  # fmt: skip


def _node(call: Call) -> NodeId:
    """The node that the path names; whether it can vote is for the quorum to say."""
    node: NodeId = call.path["id"]
    if node > NODE_MAX:
        raise Problem(404, f"there is no node {node}; no id is greater than {NODE_MAX}")
    return node


async def add_voter(call: Call) -> Votes:
    node = _node(call)
    await operator(call).add_voter(node)
    return Votes(node=node, votes=True)


async def remove_voter(call: Call) -> Votes:
    node = _node(call)
    await operator(call).remove_voter(node)
    return Votes(node=node, votes=False)


_VOTER: Final = "/v1/quorum/voters/{id:int}"

OPERATIONS: Final = (
    Operation(
        method="GET", path="/v1/quorum", handler=describe_quorum, tag=TAG, answer=Quorum,
        summary="The nodes that keep the cluster's metadata, as their leader sees them.",
    ),
    Operation(
        method="POST", path=_VOTER, handler=add_voter, tag=TAG, body=NoBody, answer=Votes,
        summary="Let a broker vote, once it has caught up with the others.",
        errors={404: "There is no such broker."},
    ),
    Operation(
        method="DELETE", path=_VOTER, handler=remove_voter, tag=TAG, answer=Votes,
        summary="Let a voter be one no longer; it goes on as a broker that follows.",
        errors={404: "No node can have that id."},
    ),
)  # fmt: skip
