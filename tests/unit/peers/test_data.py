"""Answers with data: as bytes, between two streams without a network, and between two nodes."""

import asyncio
import random
import struct
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from tests.unit.peers.peer import Peer, Ping, Pong, link_to, run
from tidelog.host import Bytes
from tidelog.model import Endpoint, NodeId
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable, Stream
from tidelog.peers.wire import (
    ANSWER,
    DATA_ANSWER,
    DATA_HEADER,
    FAILURE,
    FRAME_BYTES_MAX,
    JOINED_BYTES_MAX,
    Failure,
    Welcome,
    encode_data_frame,
    encode_frame,
)

PONGS = msgspec.msgpack.Decoder(Pong)
HEAD = msgspec.msgpack.encode(Pong(text="head"))
OTHER_HEAD = msgspec.msgpack.encode(Ping(text="head"))


class Pipe:
    """A transport that keeps what is written, in the pieces that it was given."""

    def __init__(self) -> None:
        self.pieces: list[Bytes] = []
        self.aborted = False

    def writelines(self, pieces: Sequence[Bytes]) -> None:
        self.pieces += pieces

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> None:
        """There is no socket below."""


def stream_on(pipe: Pipe) -> Stream:
    def on_frame(stream: Stream, kind: int, number: int, message: memoryview) -> None:
        raise AssertionError(f"a frame of kind {kind}")

    stream = Stream(on_frame, lambda stream, what: stream.tell_lost(is_down=False))
    stream.connection_made(cast(asyncio.Transport, pipe))
    stream.trust()
    return stream


def feed(stream: Stream, content: Bytes, *, at_once_max: int = 1 << 30) -> None:
    rest = memoryview(content)
    while rest and stream.lost is None:
        space = stream.get_buffer(-1)
        size = min(len(space), len(rest), at_once_max)
        space[:size] = rest[:size]
        stream.buffer_updated(size)
        rest = rest[size:]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


BUFFERS = {
    "no buffer": [],
    "an empty buffer": [b""],
    "one byte": [b"x"],
    "just small": [noise(JOINED_BYTES_MAX)],
    "just large": [noise(JOINED_BYTES_MAX + 1)],
    "small around large": [b"a", b"b", noise(70_000), b"", b"c", noise(5_000), noise(6_000), b"d"],
    "every type": [bytearray(noise(9_000)), memoryview(noise(9_001))[1:], bytearray(b"s")],
    "many": [noise(size % 9_000) for size in range(0, 3_000_000, 1_001)],
    "large": [noise(9 * 1024 * 1024)],
}


@pytest.mark.parametrize("buffers", BUFFERS.values(), ids=BUFFERS.keys())
def test_data_crosses_whole_and_belongs_to_its_receiver(buffers: list[Bytes]):
    async def story() -> None:
        peer = await Peer().start()
        peer.data = buffers
        link = link_to(peer)

        for text in ("once", "twice"):
            answer, data = await link.ask_data(Ping(text=text), Pong, seconds_max=10)

            assert answer == Pong(text=text)
            assert data == b"".join(buffers)
            assert not data.readonly
            data[:] = bytes(len(data))  # the sender's stays as it is
        link.close()
        peer.listener.close()

    run(story())


def test_large_buffers_are_sent_as_they_are_and_small_ones_joined():
    large, larger = bytearray(JOINED_BYTES_MAX + 1), memoryview(bytearray(1 << 20))
    pipe = Pipe()

    stream_on(pipe).send_data(7, Pong(text="head"), [b"1", large, b"2", b"3", larger, b"4"])

    assert len(pipe.pieces) == 5
    assert bytes(pipe.pieces[0]).endswith(HEAD + b"1")
    assert pipe.pieces[1] is large
    assert pipe.pieces[2] == b"23"
    assert pipe.pieces[3] is larger
    assert pipe.pieces[4] == b"4"


def test_received_data_is_a_part_of_its_frame_and_outlives_later_ones():
    async def story() -> None:
        stream = stream_on(Pipe())
        futures = [stream.ask_data(Ping(), PONGS) for _ in range(3)]
        sent = [b"a" * 10, b"b" * 200_000, b"c" * 10]

        for number, data in enumerate(sent):
            feed(stream, b"".join(encode_data_frame(number, Pong(), [data])))

        received = [(await future)[1] for future in futures]
        assert received == sent
        assert all(isinstance(data.obj, bytearray) for data in received)

    run(story())


def test_frames_that_come_byte_by_byte_are_put_together():
    async def story() -> None:
        stream = stream_on(Pipe())
        data, plain = stream.ask_data(Ping(), PONGS), stream.ask(Ping(), PONGS)
        content = b"".join(
            encode_data_frame(0, Pong(text="data"), [b"xyz"]) + encode_frame(ANSWER, 1, Pong(text="plain"))
        )

        feed(stream, content, at_once_max=1)

        assert await data == (Pong(text="data"), memoryview(b"xyz"))
        assert await plain == Pong(text="plain")

    run(story())


def test_a_plain_answer_brings_no_data():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)

        answer, data = await link.ask_data(Ping(text="plain"), Pong, seconds_max=5)

        assert answer.text == "plain"
        assert len(data) == 0
        link.close()
        peer.listener.close()

    run(story())


def test_a_failure_fails_a_request_for_data_and_only_that():
    async def story() -> None:
        peer = await Peer().start()
        peer.data = [b"data"]
        link = link_to(peer)

        with pytest.raises(PeerUnreachable, match="not today"):
            await link.ask_data(Ping(text="fail"), Pong, seconds_max=5)

        assert (await link.ask_data(Ping(), Pong, seconds_max=5))[1].tobytes() == b"data"
        assert link.status().connections_lost == 0
        link.close()
        peer.listener.close()

    run(story())


def test_both_ways_data_and_plain_answers_mix_in_any_order():
    """Two nodes ask each other on their two connections, and answer in an order drawn by lot."""

    async def story() -> None:
        one, two = await Peer(node=1).start(), await Peer(node=2).start()
        links = [link_to(two, node=1, wanted=2), link_to(one, node=2, wanted=1)]
        draw = random.Random(4)
        waiting: list[tuple[int, Answer]] = []

        def receive(node: NodeId, message: Any, place: Answer | None) -> None:
            assert place is not None
            waiting.append((int(message.text), place))

        for peer in (one, two):
            peer.listener._receive = receive

        async def ask(link: Any, number: int) -> None:
            ping = Ping(text=str(number))
            if number % 3 == 0:
                assert await link.ask(ping, Pong, seconds_max=10) == Pong(text=str(number))
                return
            answer, data = await link.ask_data(ping, Pong, seconds_max=10)
            assert answer == Pong(text=str(number))
            assert data == (noise(number * 997) if number % 3 == 1 else b"")

        asking = [asyncio.ensure_future(ask(link, n)) for n in range(150) for link in links]
        while not all(task.done() for task in asking):
            draw.shuffle(waiting)
            for number, place in waiting[: draw.randrange(1, 20)]:
                if number % 3 == 1:
                    content = noise(number * 997)
                    cut = len(content) // 3
                    place.send_with(Pong(text=str(number)), [content[:cut], content[cut:]])
                else:
                    place.send(Pong(text=str(number)))
                waiting.remove((number, place))
            await asyncio.sleep(0)

        await asyncio.gather(*asking)
        assert [len(peer.listener._streams) for peer in (one, two)] == [1, 1]
        for link, peer in zip(links, (one, two), strict=True):
            link.close()
            peer.listener.close()

    run(story())


def lie(*, head_size: int, rest: bytes) -> bytes:
    return DATA_HEADER.pack(9 + len(rest), DATA_ANSWER, 0, head_size) + rest


LIES = {
    "a head longer than all": lie(head_size=len(HEAD) + 5, rest=HEAD + b"data"),
    "the longest head": lie(head_size=2**32 - 1, rest=HEAD + b"data"),
    "a head with data in it": lie(head_size=len(HEAD) + 4, rest=HEAD + b"data"),
    "half a head": lie(head_size=len(HEAD) // 2, rest=HEAD + b"data"),
    "no head": lie(head_size=0, rest=b"data"),
    "another message": lie(head_size=len(OTHER_HEAD), rest=OTHER_HEAD),
    "no room for its size": struct.pack(">iBI", 8, DATA_ANSWER, 0) + b"\0\0\0",
    "nothing": struct.pack(">iBI", 5, DATA_ANSWER, 0),
    "too large": struct.pack(">iBII", FRAME_BYTES_MAX + 1, DATA_ANSWER, 0, 1),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES.keys())
def test_a_lying_length_ends_the_stream_for_everybody_who_waits(content: bytes):
    async def story() -> None:
        pipe = Pipe()
        stream = stream_on(pipe)
        futures = [stream.ask_data(Ping(), PONGS), stream.ask(Ping(), PONGS)]

        feed(stream, content)

        assert pipe.aborted
        for future in futures:
            with pytest.raises(PeerUnreachable, match="nonsense"):
                await future

    run(story())


def test_the_truth_beside_those_lies_is_taken():
    async def story() -> None:
        stream = stream_on(Pipe())
        future = stream.ask_data(Ping(), PONGS)

        feed(stream, lie(head_size=len(HEAD), rest=HEAD + b"data"))

        assert await future == (Pong(text="head"), memoryview(b"data"))
        assert stream.lost is None

    run(story())


def test_a_lying_length_ends_the_stream_even_if_nobody_waits():
    stream = stream_on(Pipe())

    feed(stream, lie(head_size=100, rest=HEAD))

    assert stream.lost is not None


def test_data_for_one_who_waits_no_more_is_passed_over():
    async def story() -> None:
        stream = stream_on(Pipe())
        gone, waits = stream.ask_data(Ping(), PONGS), stream.ask_data(Ping(), PONGS)
        gone.cancel()

        for number in (0, 1, 99):
            feed(stream, b"".join(encode_data_frame(number, Pong(), [b"data"])))

        assert (await waits)[1].tobytes() == b"data"
        assert stream.lost is None

    run(story())


def test_data_that_was_not_asked_for_ends_the_stream():
    async def story() -> None:
        stream = stream_on(Pipe())
        future = stream.ask(Ping(), PONGS)

        feed(stream, b"".join(encode_data_frame(0, Pong(), [b"data"])))

        with pytest.raises(PeerUnreachable, match="not asked for"):
            await future

    run(story())


def test_a_failure_is_told_to_whoever_asked_for_data():
    async def story() -> None:
        stream = stream_on(Pipe())
        future = stream.ask_data(Ping(), PONGS)

        feed(stream, b"".join(encode_frame(FAILURE, 0, Failure(reason="not today"))))

        with pytest.raises(PeerUnreachable, match="not today"):
            await future
        assert stream.lost is None

    run(story())


def test_an_answer_larger_than_a_frame_may_be_is_never_sent():
    pipe = Pipe()
    half = memoryview(bytes(FRAME_BYTES_MAX // 2))

    with pytest.raises(AssertionError, match="no peer takes"):
        stream_on(pipe).send_data(0, Pong(), [half, half])

    assert pipe.pieces == []


def test_nothing_is_sent_on_a_lost_stream():
    pipe = Pipe()
    stream = stream_on(pipe)
    stream.fail("a test")

    stream.send_data(0, Pong(), [b"data"])

    assert pipe.pieces == []


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_stream_lost_half_way_fails_the_request_and_the_next_one_is_whole(share: float):
    async def story() -> None:
        peer = await Peer().start()
        peer.data = [noise(3_000_000)]
        frame = b"".join(encode_data_frame(1, Pong(), [noise(3_000_000)]))
        cut = int(share * len(frame))

        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(4)
            welcome = Welcome(cluster="ours", node=2, directory="there")
            writer.writelines(encode_frame(ANSWER, 0, welcome))
            while b"Ping" not in await reader.read(1000):
                pass
            writer.write(frame[:cut])
            peer.endpoint = whole  # where the link looks next
            writer.close()

        whole = peer.endpoint
        server = await asyncio.start_server(half, "127.0.0.1", 0)
        peer.endpoint = Endpoint(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        link = link_to(peer)

        with pytest.raises(PeerUnreachable):
            await link.ask_data(Ping(), Pong, seconds_max=5)
        _, data = await link.ask_data(Ping(), Pong, seconds_max=5)

        assert data == noise(3_000_000)
        status = link.status()
        assert (status.connections_lost, status.requests_failed) == (1, 1)
        link.close()
        server.close()
        peer.listener.close()

    run(story())
