"""What a wire does to what goes over it: nothing, unless its way is in trouble."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidelog.testing.lives import Life
from tidelog.testing.wires import CLIENTS, Way, Ways, WayTrouble, Wire

CUT = WayTrouble(is_cut=True)


class Socket(asyncio.Transport):
    """The transport of an event loop, as far as a wire sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.ended = ""
        self.is_read = True
        self.wire: Any = None

    def write(self, data):
        self.sent += bytes(data)

    def writelines(self, list_of_data):
        self.sent += b"".join(list_of_data)

    def is_closing(self):
        return bool(self.ended)

    def close(self):
        self._end("closed")

    def abort(self):
        self._end("aborted")

    def _end(self, how):
        if not self.ended:
            self.ended = how
            asyncio.get_running_loop().call_soon(self.wire.connection_lost, None)

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def get_write_buffer_size(self):
        return 0


class Inner(asyncio.Protocol):
    """A node's protocol, which notes what it is told."""

    def __init__(self) -> None:
        self.received = b""
        self.told: list[str] = []

    def connection_made(self, transport):
        self.told.append("made")

    def data_received(self, data):
        self.received += data

    def eof_received(self):
        self.told.append("eof")

    def connection_lost(self, exc):
        self.told.append("lost" if exc is None else f"lost: {exc}")

    def pause_writing(self):
        self.told.append("pause")

    def resume_writing(self):
        self.told.append("resume")


class Buffered(asyncio.BufferedProtocol):
    """One that takes three bytes at a time."""

    def __init__(self) -> None:
        self.received = b""
        self._space = bytearray(3)

    def get_buffer(self, sizehint):
        return memoryview(self._space)

    def buffer_updated(self, nbytes):
        self.received += self._space[:nbytes]


class Story:
    """A wire between a socket and a node's protocol."""

    def __init__(self, inner: Any = None) -> None:
        self.life = Life("a node")
        self.ways = Ways("a seed")
        self.out = self.ways.between(1, 2)
        self.back = self.ways.between(2, 1)
        self.inner = inner or Inner()
        self.socket = Socket()
        self.wire = Wire(self.inner, self.life, self.ways, out=self.out, back=self.back)
        self.socket.wire = self.wire
        self.transport = self.wire.transport
        self.wire.connection_made(self.socket)


def on_a_wire(tell: Callable[[Story], Awaitable[None]], inner: Any = None) -> None:
    async def run() -> None:
        story = Story(inner)
        try:
            await tell(story)
        finally:
            await story.life.end()

    asyncio.run(run())


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


def test_where_nothing_is_wrong_bytes_pass_in_the_call_that_brings_them():
    async def tell(story: Story) -> None:
        story.transport.write(b"out")
        story.transport.writelines([b"si", b"de"])
        story.wire.data_received(b"inside")

        assert story.socket.sent == b"outside"
        assert story.inner.received == b"inside"

    on_a_wire(tell)


def test_a_buffered_protocol_gets_everything_in_pieces_that_it_has_room_for():
    async def tell(story: Story) -> None:
        story.wire.data_received(b"more than three")

        assert story.inner.received == b"more than three"

    on_a_wire(tell, Buffered())


def test_a_cut_holds_everything_and_lets_it_go_in_order_when_it_is_mended():
    async def tell(story: Story) -> None:
        story.out.add(CUT)
        story.back.add(CUT)
        for number in b"123":
            story.transport.write(bytes([number]))
            story.wire.data_received(bytes([number]))
        story.wire.eof_received()
        await turns()
        assert (story.socket.sent, story.inner.received) == (b"", b"")

        story.out.remove(CUT)
        story.back.remove(CUT)
        await turns()

        assert (story.socket.sent, story.inner.received) == (b"123", b"123")
        assert story.inner.told == ["made", "eof", "lost"]

    on_a_wire(tell)


def test_a_cut_has_a_direction():
    async def tell(story: Story) -> None:
        story.out.add(CUT)
        story.transport.write(b"unheard")
        story.wire.data_received(b"heard")

        assert (story.socket.sent, story.inner.received) == (b"", b"heard")

    on_a_wire(tell)


def test_two_cuts_must_both_be_mended():
    async def tell(story: Story) -> None:
        again = WayTrouble(is_cut=True)
        story.out.add(CUT)
        story.out.add(again)
        story.transport.write(b"late")

        story.out.remove(CUT)
        await turns()
        assert story.socket.sent == b""

        story.out.remove(again)
        await turns()
        assert story.socket.sent == b"late"

    on_a_wire(tell)


def test_behind_a_cut_the_end_of_a_connection_is_not_heard_either():
    async def tell(story: Story) -> None:
        story.out.add(CUT)
        story.transport.abort()
        await turns()
        assert story.inner.told == ["made", "lost"]
        assert story.socket.ended == ""

        story.out.remove(CUT)
        await turns()
        assert story.socket.ended == "aborted"
        assert story.inner.told == ["made", "lost"]

    on_a_wire(tell)


def test_closing_waits_for_what_is_held_back():
    async def tell(story: Story) -> None:
        story.out.add(CUT)
        story.transport.write(b"the last words")
        story.transport.close()
        story.transport.write(b"too late")
        await turns()
        assert story.socket.ended == ""

        story.out.remove(CUT)
        await turns()
        assert (story.socket.sent, story.socket.ended) == (b"the last words", "closed")

    on_a_wire(tell)


def test_what_is_delayed_keeps_its_order():
    async def tell(story: Story) -> None:
        story.back.add(WayTrouble(seconds=(0.0, 0.01)))
        sent = bytes(range(50))
        for number in sent:
            story.wire.data_received(bytes([number]))
        assert story.inner.received == b""
        while len(story.inner.received) < len(sent):
            await turns(1)

        assert story.inner.received == sent

    on_a_wire(tell)


def test_a_drop_breaks_the_connection_for_both_sides():
    async def tell(story: Story) -> None:
        story.out.add(WayTrouble(break_chance=1.0))
        story.transport.write(b"x")
        await turns()

        assert (story.socket.sent, story.socket.ended) == (b"", "aborted")
        assert len(story.inner.told) == 2
        assert story.inner.told[1].startswith("lost")

    on_a_wire(tell)


def test_a_protocol_that_pauses_is_spared_until_it_goes_on():
    async def tell(story: Story) -> None:
        story.back.add(WayTrouble(seconds=(0.001, 0.001)))
        story.wire.data_received(b"later")
        story.transport.pause_reading()
        await turns(8)
        assert story.inner.received == b""
        assert not story.socket.is_read

        story.transport.resume_reading()
        await turns(8)
        assert story.inner.received == b"later"
        assert story.socket.is_read

    on_a_wire(tell)


def test_who_sends_much_into_a_cut_is_asked_to_pause():
    async def tell(story: Story) -> None:
        story.out.add(CUT)
        story.transport.write(bytes(2 * 1024 * 1024))
        assert story.inner.told == ["made", "pause"]

        story.out.remove(CUT)
        await turns()
        assert story.inner.told == ["made", "pause", "resume"]

    on_a_wire(tell)


def test_much_that_comes_through_a_cut_is_left_in_the_socket():
    async def tell(story: Story) -> None:
        story.back.add(CUT)
        story.wire.data_received(bytes(2 * 1024 * 1024))
        assert not story.socket.is_read

        story.back.remove(CUT)
        await turns()
        assert story.socket.is_read

    on_a_wire(tell)


def test_who_is_gone_is_told_nothing_and_its_sockets_close():
    async def tell(story: Story) -> None:
        await story.life.end()
        await turns()

        assert story.inner.told == ["made"]
        assert story.socket.ended == "aborted"

    on_a_wire(tell)


def test_a_connection_is_not_made_through_a_cut():
    async def run() -> None:
        way = Way(random.Random(1))
        way.add(CUT)
        passing = asyncio.create_task(way.passable())
        await turns()
        assert not passing.done()

        way.remove(CUT)
        await passing

    asyncio.run(run())


@pytest.mark.parametrize("place", [3, CLIENTS])
def test_only_connections_of_the_ways_named_are_reset(place):
    async def tell(story: Story) -> None:
        assert story.ways.break_all([story.ways.between(1, place)]) == 0
        assert story.ways.break_all([story.ways.between(1, 2)]) == 1
        await turns()

        assert story.socket.ended == "aborted"

    on_a_wire(tell)


def test_ways_draw_from_their_seed():
    def draws(seed: str) -> list[float]:
        way = Ways(seed).between(1, 2)
        way.add(WayTrouble(seconds=(0.0, 1.0)))
        return [way.delay() for _ in range(5)]

    assert draws("a") == draws("a")
    assert draws("a") != draws("b")
