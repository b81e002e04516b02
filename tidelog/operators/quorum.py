"""The metadata quorum: who votes, how far each is, and who shall vote."""

from typing import TYPE_CHECKING, Final

import msgspec

from tidelog.errors import NotLeader
from tidelog.kafka.admin import quorum_replicas
from tidelog.operators.values import NodeNumber
from tidelog.operators.verbs import ALTER_CLUSTER, DESCRIBE_CLUSTER, Http, Verb, at_controller

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk


class DescribeQuorum(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing more is said."""


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


class Voter(msgspec.Struct, frozen=True, kw_only=True):
    """An empty object."""

    id: NodeNumber


class Votes(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    votes: bool


async def describe_quorum(desk: "Desk", asked: DescribeQuorum) -> Quorum:
    """As its leader sees it, whichever node is asked."""
    raft = desk.broker.member.quorum.raft
    if not raft.is_leader:
        raise NotLeader(leader=raft.leader)
    peers = {voter.key.id: f"{voter.host}:{voter.port}" for voter in raft.voters}
    replicas = quorum_replicas(desk.broker)
    end = next((one.end for one in replicas if one.node == raft.leader), 0)
    shown = [
        (
            one.votes,
            QuorumReplica(
                node=one.node,
                end=one.end,
                lag=max(end - one.end, 0),
                fetched_ms=None if one.node == raft.leader else one.fetched_ms,
                caught_up_ms=one.caught_up_ms,
                peer=peers.get(one.node),
            ),
        )
        for one in replicas
    ]
    return Quorum(
        leader=desk.broker.node_id,
        epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        voters=[one for votes, one in shown if votes],
        observers=[one for votes, one in shown if not votes],
    )


async def add_voter(desk: "Desk", asked: Voter) -> Votes:
    await desk.broker.electorate.add(asked.id)
    return Votes(node=asked.id, votes=True)


async def remove_voter(desk: "Desk", asked: Voter) -> Votes:
    await desk.broker.electorate.remove(asked.id)
    return Votes(node=asked.id, votes=False)


_VOTER: Final = "/v1/quorum/voters/{id:int}"

VERBS: Final = (
    Verb(
        name="quorum.describe",
        do=describe_quorum,
        where=at_controller,
        permission=DESCRIBE_CLUSTER,
        summary="Describe the voters and observers of the metadata, as their leader sees them.",
        http=Http("GET", "/v1/quorum"),
    ),
    Verb(
        name="quorum.add",
        do=add_voter,
        permission=ALTER_CLUSTER,
        summary="Make a broker a voter, once it has caught up with the others.",
        http=Http("POST", _VOTER, errors={404: "There is no such broker."}),
    ),
    Verb(
        name="quorum.remove",
        do=remove_voter,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Remove a voter; it continues as a broker that only follows the metadata.",
        http=Http("DELETE", _VOTER, errors={404: "No node can have that id."}),
    ),
)
