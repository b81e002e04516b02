"""Nodes that share a secret, and strangers at their ports, through the real network."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from tests.unit.peers.peer import HERE, HOST, Peer, Ping, Pong, link_to, run
from tidelog.model import Endpoint
from tidelog.peers import listener
from tidelog.peers.handshake import NONCE_BYTES, Dialer, Trust
from tidelog.peers.listener import STRANGERS_OF_HOST_MAX
from tidelog.peers.stream import PeerUnreachable, Stream
from tidelog.peers.wire import PROTOCOL, REFUSED, Challenge, Greeting, Hello, PeerRefused
from tidelog.security.secrets import Secret

OURS, THEIRS = Trust(Secret([b"o" * 32])), Trust(Secret([b"t" * 32]))
EITHER = Trust(Secret([b"o" * 32]), is_optional=True)
ANYTHING = msgspec.msgpack.Decoder(dict[str, Any])


def hello(**changes: Any) -> Hello:
    of = {"protocol": PROTOCOL, "cluster": "ours", "node": 1, "directory": "here", "wanted": 2}
    return Hello(**{**of, **changes})


@contextmanager
def between_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connections look as if they led to another machine."""
    with monkeypatch.context() as patched:
        patched.setattr(Stream, "ends", None)
        yield


async def stranger(peer: Peer) -> Stream:
    stream = Stream(lambda *frame: None, lambda stream, why: stream.tell_lost(is_down=False))
    await HOST.network.connect(lambda: stream, peer.endpoint.host, peer.endpoint.port)
    return stream


@pytest.mark.parametrize("are_apart", [False, True], ids=["one machine", "two machines"])
def test_nodes_with_the_same_secret_talk(monkeypatch, are_apart):
    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        link = link_to(peer, trust=OURS)

        texts = [*map(str, range(100)), "x" * 3_000_000]
        asked = (link.ask(Ping(text=text), Pong, seconds_max=5) for text in texts)
        assert [answer.text for answer in await asyncio.gather(*asked)] == texts
        link.note(Ping(text="a note"))
        peer.data = [b"small", bytes(100_000), bytearray(b"end")]
        _, data = await link.ask_data(Ping(), Pong, seconds_max=5)

        assert data.tobytes() == b"".join(peer.data)
        assert not data.readonly
        assert (1, Ping(text="a note")) in peer.heard
        (stream,) = peer.listener._streams
        assert (stream._seals is not None) == are_apart
        link.close()
        peer.listener.close()

    if not are_apart:
        run(story())
        return
    with between_machines(monkeypatch):
        run(story())


@pytest.mark.parametrize(
    ("trust", "others", "reason"),
    [
        (THEIRS, OURS, "does not take this node's proof"),
        (Trust(), OURS, "this node has none; give it cluster.secret.file"),
        (OURS, Trust(), "node 2 has no secret"),
        (THEIRS, EITHER, "refused"),
    ],
    ids=["another secret", "none here", "none there", "another, and optional"],
)
def test_nodes_without_the_same_secret_part_with_a_reason_in_the_log_of_the_one_that_dials(
    trust, others, reason, caplog
):
    async def story() -> None:
        peer = await Peer(trust=others).start()
        link = link_to(peer, trust=trust)

        with pytest.raises(PeerRefused, match=reason):
            await link.ask(Ping(), Pong, seconds_max=5)

        assert peer.heard == []
        assert any(reason in record.message for record in caplog.records if record.name.endswith("link"))
        link.close()
        peer.listener.close()

    with caplog.at_level(logging.INFO):
        run(story())


@pytest.mark.parametrize(
    ("trust", "others"),
    [(EITHER, Trust()), (Trust(), EITHER), (EITHER, OURS), (OURS, EITHER), (EITHER, EITHER)],
    ids=["to one without", "from one without", "to one with", "from one with", "both"],
)
def test_while_the_secret_is_optional_everybody_talks(trust, others):
    async def story() -> None:
        peer = await Peer(trust=others).start()
        link = link_to(peer, trust=trust)

        answer: Pong | None = None
        while answer is None:
            try:
                answer = await link.ask(Ping(text="hi"), Pong, seconds_max=5)
            except (PeerUnreachable, PeerRefused):
                await asyncio.sleep(0.01)

        assert answer.text == "hi"
        link.close()
        peer.listener.close()

    run(story())


@pytest.mark.parametrize("cluster", ["ours", None, "another"])
@pytest.mark.parametrize("wanted", [2, 3])
def test_a_stranger_is_told_nothing_but_refused_and_nothing_more_is_read(cluster, wanted):
    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        stream = await stranger(peer)

        told = [
            stream.ask(message, ANYTHING)
            for message in (hello(cluster=cluster, wanted=wanted), Ping(text="let me in"), hello())
        ]

        assert await told[0] == {"type": "Refusal", "reason": REFUSED}
        for ignored in told[1:]:
            with pytest.raises(PeerUnreachable):
                await ignored
        assert peer.heard == []
        assert peer.gone == []
        assert not peer.listener._streams
        peer.listener.close()

    run(story())


def test_a_stranger_without_the_secret_gets_a_nonce_and_is_refused():
    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        stream = await stranger(peer)
        dialer = Dialer(Secret([b"guessed" * 10]), bytes(NONCE_BYTES), None)

        challenge = await stream.ask(dialer.greeting, ANYTHING)
        assert set(challenge) == {"type", "nonce", "sealed"}
        proved = dialer.challenged(msgspec.convert(challenge, Challenge), hello())
        assert await stream.ask(proved, ANYTHING) == {"type": "Refusal", "reason": REFUSED}

        assert peer.heard == []
        peer.listener.close()

    run(story())


@pytest.mark.parametrize(
    "frames", [[hello(directory="x" * 10_000)], [Greeting(nonce=bytes(32))] * 2, [Ping(text="hi")]], ids=str
)
def test_nonsense_instead_of_a_greeting_ends_the_connection(frames):
    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        stream = await stranger(peer)

        told = [stream.ask(frame, ANYTHING) for frame in frames]
        for answer in told:
            try:
                said = await answer
            except PeerUnreachable:
                continue
            assert said["type"] == "Challenge" or said["reason"] == REFUSED

        assert peer.heard == []
        stream.fail("a test")
        peer.listener.close()

    run(story())


def test_strangers_that_say_nothing_are_few_and_not_in_the_way_of_peers(monkeypatch):
    monkeypatch.setattr(listener, "GREETING_SECONDS_MAX", 0.2)

    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        silent = [await stranger(peer) for _ in range(STRANGERS_OF_HOST_MAX + 20)]
        link = link_to(peer, trust=OURS)

        assert (await link.ask(Ping(text="hi"), Pong, seconds_max=5)).text == "hi"

        assert len(peer.listener._strangers) <= STRANGERS_OF_HOST_MAX
        while any(stream.lost is None for stream in silent):
            await asyncio.sleep(0.01)
        assert (await link.ask(Ping(text="still"), Pong, seconds_max=5)).text == "still"
        assert len(peer.listener._streams) == 1
        link.close()
        peer.listener.close()

    run(story())


def test_the_log_says_of_a_stranger_that_knocks_and_knocks_that_it_does(caplog):
    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        for _ in range(50):
            stream = await stranger(peer)
            await stream.ask(hello(), ANYTHING)

        said = [record for record in caplog.records if "refused a peer" in record.message]
        assert len(said) == 1
        assert "127.0.0.1" in said[0].message
        assert "is cluster.secret.file set there?" in said[0].message
        peer.listener.close()

    run(story())


def test_somebody_between_two_nodes_cannot_add_to_what_they_say():
    """A relay that passes the proofs on, and then speaks for one of them."""

    async def story() -> None:
        peer = await Peer(trust=OURS).start()
        to_peer: list[asyncio.StreamWriter] = []

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(peer.endpoint.host, peer.endpoint.port)
            to_peer.append(there[1])
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

        server = await asyncio.start_server(relay, HERE.host, 0)
        at = Endpoint(host=HERE.host, port=server.sockets[0].getsockname()[1])
        link = link_to(peer, trust=OURS, at=at)
        assert (await link.ask(Ping(text="hi"), Pong, seconds_max=5)).text == "hi"

        (stream,) = peer.listener._streams
        body = msgspec.msgpack.encode(Ping(text="forged"))
        to_peer[0].write((5 + len(body)).to_bytes(4, "big") + b"\x02\0\0\0\0" + body)
        while stream.lost is None:
            await asyncio.sleep(0.001)

        assert stream.lost == "a frame was changed on its way"
        assert [message.text for _, message in peer.heard] == ["hi"]
        link.close()
        peer.listener.close()
        server.close()

    run(story())


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except OSError:
        pass
    writer.close()
