"""What a peer asks for ends nothing here, whatever comes of it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.controller.histories import cluster, image_after
from tidelog.cluster.active import ActiveController
from tidelog.cluster.answering import answered
from tidelog.cluster.electorate import _check_voter
from tidelog.cluster.messages import Beat, ChangeInSync, Register
from tidelog.controller.elections import min_in_sync, own_config
from tidelog.controller.in_sync import WantedInSync
from tidelog.controller.leases import Heartbeat
from tidelog.controller.registration import Registration
from tidelog.model import Endpoint, NodeId
from tidelog.raft.changes import VoterNotFound
from tidelog.raft.voters import ReplicaKey, Voter


class Place:
    is_gone = False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.failed: list[str] = []
        self.send = self.sent.append
        self.fail = self.failed.append


async def fail(error: Exception) -> None:
    raise error


def test_a_fault_of_ours_is_told_to_who_asked_and_a_disk_s_to_the_node(caplog):
    place: Any = Place()

    asyncio.run(answered(place, fail, KeyError("orders")))
    with pytest.raises(OSError, match="disk"):
        asyncio.run(answered(place, fail, OSError("disk")))

    assert place.failed == ["the request failed; see the node's log"]
    assert "KeyError" in caplog.text


def controller() -> ActiveController:
    ignore = lambda *_: None  # noqa: E731
    member: Any = SimpleNamespace(
        metadata=SimpleNamespace(),
        quorum=SimpleNamespace(spawn=lambda work: pytest.fail("it was heard")),
        handle=ignore,
        on_lead=ignore,
        on_follow=ignore,
        on_gone=ignore,
        on_down=ignore,
    )
    host: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), new_id=lambda: SimpleNamespace(hex="p")
    )
    return ActiveController(host, member, min_in_sync(), own_config, lease_seconds=2.0)


def registration(node: NodeId) -> Registration:
    place = Endpoint(host="here", port=1)
    return Registration(cluster_id="ours", node=node, incarnation="x", directory="d", kafka=place, peer=place)


def test_no_node_registers_beats_or_leads_for_another():
    active, place = controller(), Place()
    wanted = WantedInSync(
        topic_id=None,  # type: ignore[arg-type]
        partition=0,
        leader=2,
        broker_epoch=1,
        epoch=0,
        partition_epoch=0,
        in_sync={},
    )

    active._on_register(3, Register(registration=registration(2)), place)  # type: ignore[arg-type]
    beat = Beat(heartbeat=Heartbeat(node=2, broker_epoch=1, metadata_offset=0))
    active._on_heartbeat(3, beat, place)  # type: ignore[arg-type]
    active._on_change_in_sync(3, ChangeInSync(wanted=(wanted,)), place)  # type: ignore[arg-type]

    assert [answer.problem for answer in place.sent] == ["node 3 cannot register node 2"]
    assert len(place.failed) == 2


def test_only_a_broker_s_own_disk_at_its_address_becomes_a_voter():
    image = image_after(*cluster(1, 2))
    broker = image.brokers[2]
    voter = Voter(ReplicaKey(2, broker.directory), broker.peer.host, broker.peer.port)

    _check_voter(image, voter)
    for other in (
        Voter(ReplicaKey(9, broker.directory), broker.peer.host, broker.peer.port),
        Voter(ReplicaKey(2, "another"), broker.peer.host, broker.peer.port),
        Voter(voter.key, "elsewhere", broker.peer.port),
    ):
        with pytest.raises(VoterNotFound):
            _check_voter(image, other)
