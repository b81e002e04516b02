"""A node among its peers, itself included."""

import asyncio
from typing import Any

import pytest

from tests.unit.peers.peer import HERE, HOST, Ping, Pong, run
from tidelog.cluster.hub import Hub
from tidelog.host import Bytes
from tidelog.model import Endpoint, NodeId
from tidelog.peers.breaker import BreakerState
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import Welcome

DATA: list[Bytes] = [b"small", bytes(100_000), bytearray(b"end")]


class Member:
    """A hub that answers pings as their text says."""

    def __init__(self, node: NodeId, places: dict[NodeId, Endpoint]) -> None:
        self.node = node
        self.notes: list[tuple[NodeId, str]] = []
        self._places = places
        self.hub = Hub(
            HOST,
            me=lambda: Welcome(cluster="ours", node=node, directory=str(node)),
            where=lambda other: [places[other]] if other in places else [],
            handlers={Ping: self._receive},
        )

    async def start(self) -> "Member":
        self._places[self.node] = await self.hub.listen(HERE)
        return self

    def _receive(self, node: NodeId, message: Any, place: Answer | None) -> None:
        if place is None:
            self.notes.append((node, message.text))
        elif message.text == "data":
            place.send_with(Pong(text="data"), DATA)
        elif message.text == "fail":
            place.fail("not today")
        elif message.text == "plain":
            place.send(Pong(text="plain"))


async def two() -> tuple[Member, Member]:
    places: dict[NodeId, Endpoint] = {}
    return await Member(1, places).start(), await Member(2, places).start()


@pytest.mark.parametrize("node", [1, 2], ids=["itself", "its peer"])
def test_a_node_answers_itself_as_it_answers_others(node):
    async def story() -> None:
        one, other = await two()
        hub = one.hub

        answer, data = await hub.ask_data(node, Ping(text="data"), Pong, seconds_max=5)
        assert (answer.text, data.tobytes()) == ("data", b"".join(DATA))
        assert not data.readonly

        answer, data = await hub.ask_data(node, Ping(text="plain"), Pong, seconds_max=5)
        assert (answer.text, len(data)) == ("plain", 0)

        assert (await hub.ask(node, Ping(text="plain"), Pong, seconds_max=5)).text == "plain"
        with pytest.raises(PeerUnreachable, match="not today"):
            await hub.ask_data(node, Ping(text="fail"), Pong, seconds_max=5)
        with pytest.raises(PeerUnreachable, match="in time"):
            await hub.ask_data(node, Ping(text="silence"), Pong, seconds_max=0.02)
        with pytest.raises(PeerUnreachable):
            await hub.ask(node, Ping(text="data"), Pong, seconds_max=5)
        one.hub.close()
        other.hub.close()

    run(story())


def test_a_note_reaches_itself_at_once_and_a_peer_if_it_is_connected():
    async def story() -> None:
        one, other = await two()

        one.hub.note(1, Ping(text="mine"))
        one.hub.note(2, Ping(text="too early"))
        assert one.hub.peers() == {}  # a note alone makes no connection
        await one.hub.ask(2, Ping(text="plain"), Pong, seconds_max=5)
        one.hub.note(2, Ping(text="yours"))
        await one.hub.ask(2, Ping(text="plain"), Pong, seconds_max=5)

        assert one.notes == [(1, "mine")]
        assert other.notes == [(1, "yours")]
        one.hub.close()
        other.hub.close()

    run(story())


def test_the_state_of_every_peer_is_told_by_node():
    async def story() -> None:
        one, other = await two()

        with pytest.raises(PeerUnreachable):
            await one.hub.ask(9, Ping(text="plain"), Pong, seconds_max=5)
        await one.hub.ask(2, Ping(text="plain"), Pong, seconds_max=5)
        await one.hub.ask(1, Ping(text="plain"), Pong, seconds_max=5)

        peers = one.hub.peers()
        assert list(peers) == [2, 9]
        assert peers[2].state is BreakerState.CLOSED
        assert (peers[2].attempts, peers[2].requests_failed) == (1, 0)
        assert peers[9].state is BreakerState.OPEN
        assert peers[9].last_error == "nobody knows the address of node 9"
        other.hub.close()
        while one.hub.peers()[2].state is BreakerState.CLOSED:
            await asyncio.sleep(0.001)
        assert one.hub.peers()[2].connections_lost == 1
        one.hub.close()

    run(story())
