import asyncio
from dataclasses import replace

import pytest

from tests.unit.faces.cli.test_promote import topic
from tidelog.client.members import BrokerInfo, QuorumInfo, ReplicaInfo
from tidelog.faces.cli.common import UserError
from tidelog.faces.cli.restart import _require_running, wait_whole, why_not_whole
from tidelog.faces.local.layout import ClusterFile, NodeEntry, State
from tidelog.model import NO_NODE, Endpoint

NOW_MS = 1_000_000
WELL = topic("t", (1, (1, 2, 3), (1, 2, 3)), (2, (2, 3), (2, 3)))


def brokers(*fenced):
    at = Endpoint(host="h", port=1)
    return {n: BrokerInfo(node=n, kafka=at, rack=None, fenced=n in fenced) for n in (1, 2, 3)}


def quorum(**fetched_ms_ago):
    def voter(node):
        ago = fetched_ms_ago.get(f"n{node}", 200)
        fetched = None if node == 1 or ago is None else NOW_MS - ago
        return ReplicaInfo(node=node, end=9, lag=0, fetched_ms=fetched, caught_up_ms=None, peer=None)

    return QuorumInfo(leader=1, epoch=1, high_watermark=9, voters=tuple(map(voter, (1, 2, 3))), observers=())


def test_one_node_may_be_missed_when_all_are_there_and_everything_is_in_sync():
    assert why_not_whole(brokers(), [WELL], quorum(), NOW_MS) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((brokers(2), [WELL], quorum()), "broker 2 is fenced"),
        ((brokers(), [WELL], quorum(n3=60_000)), "voter 3 does not follow the quorum"),
        ((brokers(), [WELL], quorum(n2=None)), "voter 2 does not follow the quorum"),
        ((brokers(), [topic("t", (1, (1, 2, 3), (1,)))], quorum()), "t-0 on 2, 3 is not in sync"),
        (
            (brokers(), [topic("t", (NO_NODE, (1, 2), (1, 2)))], quorum()),
            "t-0 has no leader (`tidelog promote t`)",
        ),
    ],
)
def test_whatever_is_missing_is_told(found, reason):
    known, topics, voters = found

    assert why_not_whole(known, topics, voters, NOW_MS) == [reason]


def test_where_no_cluster_runs_nothing_is_restarted(tidelog, tmp_path):
    result = tidelog("cluster", "restart", "--data", tmp_path)

    assert (result.code, result.out) == (1, "")
    assert "tidelog cluster up" in result.err


class Known:
    """A cluster that is as it is told to be."""

    def __init__(self, *fenced):
        self.fenced = set(fenced)

    async def brokers(self):
        found = brokers(*self.fenced)
        self.fenced.discard(2)  # it comes back while somebody waits
        return found

    async def topics(self):
        return [WELL]

    async def quorum(self):
        voters = quorum()
        return replace(voters, voters=voters.voters[:1])


def test_a_node_waits_until_all_is_well_and_tells_for_what(capfd):
    asyncio.run(wait_whole(Known(2), 5))  # type: ignore[arg-type]

    assert "waiting: broker 2 is fenced" in capfd.readouterr().err


def test_what_stays_behind_ends_a_rolling_restart():
    with pytest.raises(UserError, match=r"no node is stopped: broker 3 is fenced"):
        asyncio.run(wait_whole(Known(3), 0.1))  # type: ignore[arg-type]


def test_only_a_cluster_whose_nodes_all_run_is_restarted(tmp_path):
    def content(state):
        entry = NodeEntry(id=2, kafka="h:1", http="h:2", peer="h:3", state=state)
        return ClusterFile(quorum="2@h:3", nodes=[entry])

    _require_running(content(State.RUNNING), tmp_path)
    with pytest.raises(UserError, match=r"node 2 is killed.*tidelog cluster start 2"):
        _require_running(content(State.KILLED), tmp_path)
