"""Two nodes on the loopback, through the real network."""

import asyncio
import struct
from typing import Any

import msgspec
import pytest

from tests.unit.peers.peer import Peer, Ping, Pong, Who, link_to, run
from tidelog.model import NodeId
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PROTOCOL, UNSAID, Hello, PeerRefused, decode_greeting


def test_a_request_is_answered_and_many_share_one_connection():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)

        texts = [str(number) for number in range(200)]
        answers = await asyncio.gather(*(link.ask(Ping(text=text), Pong, seconds_max=5) for text in texts))

        assert [answer.text for answer in answers] == texts
        assert len(peer.listener._streams) == 1
        link.close()
        peer.listener.close()

    run(story())


def test_a_large_message_crosses_whole():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)

        answer = await link.ask(Ping(text="x" * 3_000_000), Pong, seconds_max=5)

        assert len(answer.text) == 3_000_000
        link.close()
        peer.listener.close()

    run(story())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cluster": "another"}, "belongs to cluster another"),
        ({"wanted": 3}, "this address is node 2, not node 3"),
        ({"node": 2}, "two nodes call themselves 2"),
        ({"protocol": 9}, "run the same version"),
        ({"protocol": UNSAID}, "speaks protocol 1 between nodes, node 2 speaks 2"),
    ],
)
def test_who_does_not_belong_here_is_told_what_to_do(options, reason):
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer, **options)

        with pytest.raises(PeerRefused, match=reason):
            await link.ask(Ping(), Pong, seconds_max=5)

        assert peer.heard == []
        link.close()
        peer.listener.close()

    run(story())


def test_a_node_says_which_protocol_it_speaks_so_that_older_ones_refuse_it():
    hello = Hello(protocol=PROTOCOL, cluster=None, node=1, directory="here", wanted=2)
    older = {"type": "Hello", "cluster": None, "node": 1, "directory": "here", "wanted": 2}

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hello))["protocol"] == PROTOCOL
    heard = decode_greeting(memoryview(msgspec.msgpack.encode(older)))
    assert isinstance(heard, Hello)
    assert heard.protocol == UNSAID
    assert UNSAID < PROTOCOL


def test_a_node_without_a_cluster_may_ask_what_guests_may_and_connects_anew_once_it_has_one():
    async def story() -> None:
        peer = await Peer().start()
        clusters: list[str | None] = [None]
        link = link_to(peer)
        link._hello = lambda: Hello(
            protocol=PROTOCOL, cluster=clusters[0], node=1, directory="here", wanted=2
        )

        assert (await link.ask(Who(text="hi"), Pong, seconds_max=5)).text == "hi"
        link.note(Ping(text="a note"))
        with pytest.raises(PeerUnreachable):
            await link.ask(Ping(text="let me in"), Pong, seconds_max=5)
        assert peer.heard == [(1, Who(text="hi"))]

        await link.ask(Who(text="again"), Pong, seconds_max=5)
        clusters[0] = "ours"
        assert (await link.ask(Ping(text="now"), Pong, seconds_max=5)).text == "now"
        link.close()
        peer.listener.close()

    run(story())


def test_who_forms_a_cluster_with_others_is_no_guest():
    async def story() -> None:
        peer = await Peer(cluster=None).start()
        link = link_to(peer, cluster=None)

        assert (await link.ask(Ping(text="hi"), Pong, seconds_max=5)).text == "hi"
        peer.cluster = "ours"
        assert (await link.ask(Ping(text="formed"), Pong, seconds_max=5)).text == "formed"
        link.close()
        peer.listener.close()

    run(story())


def test_a_process_that_is_gone_is_known_to_be_gone():
    async def story() -> None:
        peer = await Peer().start()
        down: list[NodeId] = []
        link = link_to(peer, down=down)
        peer.keeps_quiet = True
        waiting = asyncio.ensure_future(link.ask(Ping(), Pong, seconds_max=5))
        while not peer.places:
            await asyncio.sleep(0.001)

        peer.listener.close()

        with pytest.raises(PeerUnreachable) as caught:
            await waiting
        assert caught.value.is_down
        assert down == [2]
        link.close()

    run(story())


def test_a_lost_connection_to_a_living_process_is_not_its_end():
    async def story() -> None:
        peer = await Peer().start()
        down: list[NodeId] = []
        link = link_to(peer, down=down)
        peer.keeps_quiet = True
        waiting = asyncio.ensure_future(link.ask(Ping(), Pong, seconds_max=5))
        while not peer.places:
            await asyncio.sleep(0.001)

        for stream in list(peer.listener._streams):
            stream.fail("a test")

        with pytest.raises(PeerUnreachable) as caught:
            await waiting
        assert not caught.value.is_down
        assert down == []
        assert peer.gone == [1]
        peer.keeps_quiet = False
        assert (await link.ask(Ping(text="again"), Pong, seconds_max=5)).text == "again"
        link.close()
        peer.listener.close()

    run(story())


def test_a_peer_that_moved_is_found_in_its_other_place():
    async def story() -> None:
        gone, peer = await Peer().start(), await Peer().start()
        gone.listener.close()
        link = link_to(peer)
        link._where = lambda: (gone.endpoint, peer.endpoint)

        answer = None
        while answer is None:
            try:
                answer = await link.ask(Ping(text="there"), Pong, seconds_max=5)
            except PeerUnreachable:
                await asyncio.sleep(0.01)

        assert answer.text == "there"
        link.close()
        peer.listener.close()

    run(story())


def test_a_silent_peer_costs_the_asker_its_time_and_nothing_else():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)
        peer.keeps_quiet = True

        with pytest.raises(PeerUnreachable, match="in time"):
            await link.ask(Ping(), Pong, seconds_max=0.05)

        peer.places[0].send(Pong(text="late"))
        peer.keeps_quiet = False
        assert (await link.ask(Ping(text="next"), Pong, seconds_max=5)).text == "next"
        link.close()
        peer.listener.close()

    run(story())


def test_a_request_that_failed_there_fails_here():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)

        with pytest.raises(PeerUnreachable, match="not today"):
            await link.ask(Ping(text="fail"), Pong, seconds_max=5)
        link.close()
        peer.listener.close()

    run(story())


def test_a_peer_that_was_never_there_is_not_tried_in_a_busy_loop():
    async def story() -> None:
        peer = await Peer().start()
        peer.listener.close()
        link = link_to(peer)
        tries = 0
        connect = link._open

        async def counted() -> Any:
            nonlocal tries
            tries += 1
            return await connect()

        link._open = counted  # type: ignore[method-assign]
        for _ in range(500):
            with pytest.raises(PeerUnreachable):
                await link.ask(Ping(), Pong, seconds_max=5)

        assert tries < 20
        link.close()

    run(story())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 1 << 30),
        struct.pack(">i", -1),
        struct.pack(">iBI", 9, 0, 0) + b"\xc1\xc1\xc1\xc1",
        struct.pack(">iBI", 6, 7, 0) + b"\x80",
        struct.pack(">iBI", 6, 1, 0) + b"\x80",
    ],
)
def test_nonsense_ends_its_own_connection_only(sent):
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        reader, writer = await asyncio.open_connection(peer.endpoint.host, peer.endpoint.port)

        writer.write(sent)
        if sent[4:5] != b"\x01":  # an answer that nobody waits for is passed over
            assert await reader.read() == b""

        assert (await link.ask(Ping(text="fine"), Pong, seconds_max=5)).text == "fine"
        writer.close()
        link.close()
        peer.listener.close()

    run(story())
