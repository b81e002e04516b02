"""The connections of the HTTP face, with an application that does what its path says."""

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tidelog.config import NodeConfig
from tidelog.faces.http import server as module
from tidelog.faces.http.edge.bodies import LARGE_BYTES, NoRoom
from tidelog.faces.http.edge.connection import HEAD_BYTES_MAX, PIPELINED_MAX
from tidelog.faces.http.edge.messages import ClientDisconnect, Request, Response, Send
from tidelog.faces.http.edge.sockets import (
    FRAGMENTS_MAX,
    SLICE_BYTES,
    TURN_FRAMES,
    SocketConnection,
    WebSocket,
    WebSocketDisconnect,
)
from tidelog.faces.http.server import Server
from tidelog.host import system_host

SECONDS_MAX = 30.0
BODY_BYTES_MAX = 64 * 1024
BAD = b"HTTP/1.1 400 "


class App:
    """Answers with what it was asked; `/wait`, `/stream` and sockets wait for their clients."""

    takes_sockets = True

    def __init__(self) -> None:
        self.asked: list[Request | WebSocket] = []
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, request: Request) -> Response:
        self.asked.append(request)
        path = request.path
        if path == "/unread":
            return Response("unread")
        if path == "/early":
            return Stream(self)
        try:
            body = await request.body()
        except ClientDisconnect:
            self.ends.put_nowait("disconnect in a body")
            return Response()
        except NoRoom:
            return Response("no room", 503, {"connection": "close"})
        if path == "/wait":
            self.waiting.set()
            gone = asyncio.create_task(request.gone())
            done = asyncio.create_task(self.go.wait())
            await asyncio.wait([gone, done], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                self.ends.put_nowait("disconnect")
            gone.cancel()
            done.cancel()
        if path == "/stream":
            return Stream(self)
        if path == "/cancelled":
            await asyncio.sleep(0)
            raise asyncio.CancelledError
        if path == "/forever":
            self.waiting.set()
            await asyncio.Event().wait()
        return Response(bytes(20_000_000) if path == "/much" else f"{path} {len(body)}")

    async def open(self, socket: WebSocket) -> Response | None:
        self.asked.append(socket)
        if socket.path == "/nobody":
            return Response("no", 404)
        if socket.path == "/late":
            self.waiting.set()
            await self.go.wait()
        await socket.accept()
        self.waiting.set()
        try:
            while True:
                await socket.send_text(f"heard {await socket.receive_text()}")
        except WebSocketDisconnect as end:
            self.ends.put_nowait(f"disconnect {end.code}")
        return None


class Stream(Response):
    """One event, and no more until the client goes."""

    is_endless = True

    def __init__(self, app: App) -> None:
        super().__init__(media_type="text/event-stream")
        self.body = None
        self._app = app

    async def write(self, request: Request, send: Send) -> None:
        await send(b"data: 1\n\n")
        await request.gone()
        self._app.ends.put_nowait("disconnect")


class Stage:
    """A server on a port, and its application."""

    def __init__(self, server: Server, app: App, port: int) -> None:
        self.server = server
        self.app = app
        self.port = port

    async def say(self, *parts: bytes, until_end: bool = True) -> bytes:
        """What is answered to these bytes, until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if until_end:
                while chunk := await reader.read(65536):
                    received += chunk
        except ConnectionError:
            pass
        finally:
            writer.close()
        return received

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def socket(self, path: str = "/socket", **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)


Story = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def run(monkeypatch, caplog):
    """Runs a story on a server, and ends it; nothing is worth a line in the log."""

    async def perform(story: Story, settings: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        app = App()
        monkeypatch.setattr(module, "make_app", lambda node: app)
        config = NodeConfig(http_max_body_bytes=BODY_BYTES_MAX, **settings)
        node: Any = SimpleNamespace(
            broker=SimpleNamespace(config=config, host=system_host()),
            is_asked_by_kafka=lambda: False,
            on_crowded=lambda is_crowded: None,
        )
        server = Server(node)
        listening = await loop.create_server(server.connection, "127.0.0.1", 0)
        stage = Stage(server, app, listening.sockets[0].getsockname()[1])
        async with asyncio.timeout(SECONDS_MAX):
            await story(stage)
        listening.close()
        server.close()
        await server.wait_closed(SECONDS_MAX)
        assert server.connections == {}

    def play(story: Story, **settings: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(perform(story, settings))
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []

    return play


# The head of a request.


def head_of(size: int) -> list[bytes]:
    """A request whose target, names and values make up `size` as they are counted."""
    pad = b"y" * (size - len(b"/a") - (len(b"x") + 4) - (len(b"connection") + len(b"close") + 4))
    return [b"GET /a HTTP/1.1\r\nconnection: close\r\nx: ", pad, b"\r\n\r\n"]


@pytest.mark.parametrize("is_split", [False, True], ids=["at once", "in parts"])
def test_a_head_may_be_so_long_and_no_longer(run, is_split):
    async def story(stage):
        for size, start in ((HEAD_BYTES_MAX, b"HTTP/1.1 200 "), (HEAD_BYTES_MAX + 1, BAD)):
            parts = head_of(size)
            said = await stage.say(*(parts if is_split else [b"".join(parts)]))
            assert said.startswith(start)

    run(story)


CHUNKED = b"POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /", b"y"),
        (b"GET / HTTP/1.1\r\nx: ", b"y"),
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n"),
        (b"GET / HTTP/1.1\r\n", b"x"),
        (b"", b"\r\n"),
        (CHUNKED + b"1;", b"x"),
        (CHUNKED + b"0\r\n", b"x: y\r\n"),
        (CHUNKED + b"0\r\nx:", b"y"),
    ],
    ids=["target", "value", "fields", "name", "lines", "extension", "trailers", "trailer"],
)
def test_what_has_no_end_is_refused_with_a_problem(run, start, more):
    async def story(stage):
        piece = more * (8192 // len(more))

        said = await stage.say(start, *[piece] * 40)

        assert said == b"" or (said.startswith(BAD) and b"application/problem+json" in said)
        assert stage.server.connections == {}

    run(story)


def test_a_trailer_is_not_a_header(run):
    async def story(stage):
        said = await stage.say(
            CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
            b"2\r\nhi\r\n0\r\nidempotency-key: x\r\n\r\n",
        )

        assert said.endswith(b"/a 2")
        headers = stage.app.asked[0].headers.raw
        assert [name for name, _ in headers] == [b"transfer-encoding", b"connection"]

    run(story)


def test_an_upgrade_that_is_not_known_is_answered_as_if_it_were_not_asked_for(run):
    async def story(stage):
        asked = b"%s /a HTTP/1.1\r\nconnection: upgrade%s\r\nupgrade: %s\r\n\r\n"
        for method, protocol in ((b"GET", b"h2c"), (b"POST", b"websocket")):
            said = await stage.say(asked % (method, b", close", protocol))
            assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"/a 0")

    run(story)


# Requests behind each other.


def test_answers_come_in_the_order_of_their_requests(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n" + b"GET /b HTTP/1.1\r\n\r\n" * 3)
        await stage.app.waiting.wait()
        writer.write(b"GET /c HTTP/1.1\r\nconnection: close\r\n\r\n")
        stage.app.go.set()

        said = await reader.read()

        assert said.count(b"HTTP/1.1 200 ") == 5
        assert said.index(b"/wait 0") < said.index(b"/b 0") < said.index(b"/c 0")
        writer.close()

    run(story)


@pytest.mark.parametrize(
    "behind",
    [b"nonsense\r\n\r\n", b"GET /b HTTP/1.1\r\n\r\n" * (PIPELINED_MAX + 2)],
    ids=["nonsense", "too many"],
)
def test_what_was_asked_before_too_much_or_nonsense_is_answered_and_then_no_more(run, behind):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n" + behind)
        await stage.app.waiting.wait()
        stage.app.go.set()

        said = await reader.read()

        assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"/wait 0")
        assert len(stage.app.asked) == 1
        writer.close()

    run(story)


def test_an_upgrade_behind_a_request_is_not_taken(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n" + UPGRADE)
        await stage.app.waiting.wait()
        stage.app.go.set()

        said = await reader.read()

        assert said.count(b"HTTP/1.1") == 1 and said.endswith(b"/wait 0")
        writer.close()

    run(story)


def test_a_body_that_breaks_is_refused_and_the_application_told(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(CHUNKED + b"2\r\nhi\r\n")
        while not stage.app.asked:
            await asyncio.sleep(0)
        writer.write(b"nonsense\r\n")

        assert (await reader.read()).startswith(BAD)
        writer.close()
        assert await stage.app.ends.get() == "disconnect in a body"

    run(story)


@pytest.mark.parametrize("more", [b"", b"GET /b HTTP/1.1\r\n\r\n"], ids=["alone", "with others"])
def test_whoever_waits_for_a_client_that_has_gone_hears_of_it(run, more):
    async def story(stage):
        _, writer = await stage.open()
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n" + more)
        await stage.app.waiting.wait()

        writer.transport.abort()

        assert await stage.app.ends.get() == "disconnect"

    run(story)


def test_a_broken_body_that_came_with_its_head_is_refused(run):
    async def story(stage):
        said = await stage.say(CHUNKED + b"2\r\nhi\r\nnonsense\r\n")

        assert said.startswith(BAD) and said.count(BAD) == 1
        assert stage.app.asked == []

    run(story)


# Requests of every kind.


def test_a_request_that_does_not_wait_costs_no_task(run):
    async def story(stage):
        before = asyncio.all_tasks()
        made: list[Any] = []

        def make(loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
            made.append(work)
            return asyncio.Task(work, loop=loop)

        asyncio.get_running_loop().set_task_factory(make)

        said = await stage.say(b"POST /a HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi")

        asyncio.get_running_loop().set_task_factory(None)
        assert said.endswith(b"/a 2") and made == []
        assert asyncio.all_tasks() == before

    run(story)


def test_http_1_0_gets_an_answer_and_the_end_of_its_connection(run):
    async def story(stage):
        said = await stage.say(b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")

        assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"/a 0")
        assert b"connection: close\r\n" in said

    run(story)


def test_http_1_0_gets_a_stream_without_chunks(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /stream HTTP/1.0\r\n\r\n")

        said = await reader.readuntil(b"data: 1\n\n")

        assert b"chunked" not in said and said.endswith(b"\r\n\r\ndata: 1\n\n")
        writer.close()
        assert await stage.app.ends.get() == "disconnect"

    run(story)


@pytest.mark.parametrize("path", [b"/a", b"/stream"])
def test_a_head_request_gets_no_body_and_the_connection_goes_on(run, path):
    async def story(stage):
        said = await stage.say(b"HEAD %b HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nconnection: close\r\n\r\n" % path)

        head, _, rest = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and rest.startswith(b"HTTP/1.1 200 ")
        assert rest.endswith(b"/b 0")

    run(story)


def test_who_asks_whether_to_go_on_is_told_when_the_body_is_wanted(run):
    async def story(stage):
        reader, writer = await stage.open()
        head = b"POST %b HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        writer.write(head % b"/a")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"/a 2")).count(b"HTTP/1.1") == 1

        writer.write(head % b"/unread")

        assert (await reader.readuntil(b"unread")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    run(story)


def test_who_asks_whether_to_go_on_is_told_nothing_in_the_middle_of_an_answer(run):
    async def story(stage):
        reader, writer = await stage.open()
        head = b"GET /early HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        writer.write(head)
        assert (await reader.readuntil(b"data: 1\n\n\r\n")).startswith(b"HTTP/1.1 200 ")
        stage.server.end_streams()

        assert await reader.read() == b"0\r\n\r\n"
        writer.close()

    run(story)


def test_a_body_that_nobody_reads_does_not_disturb_the_next_request(run):
    async def story(stage):
        reader, writer = await stage.open()
        size = 300_000
        writer.write(b"POST /unread HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size)
        assert (await reader.readuntil(b"unread")).startswith(b"HTTP/1.1 200 ")
        writer.write(bytes(size) + b"GET /b HTTP/1.1\r\nconnection: close\r\n\r\n")

        assert (await reader.read()).endswith(b"/b 0")
        writer.close()

    run(story)


def test_large_bodies_together_take_so_much_memory_and_no_more(run):
    async def story(stage):
        held = stage.server.bodies
        head = b"POST /a HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        size, few = BODY_BYTES_MAX, LARGE_BYTES
        ends, leaves = [await stage.open() for _ in range(2)]
        for _, writer in (ends, leaves):
            writer.write(head % size + b"x" * (size - 1))
        while held.bytes_held < 2 * (size - 1):
            await asyncio.sleep(0)

        assert b" 503 " in await stage.say(head % size + b"x" * size)
        assert b" 200 " in await stage.say(head % few + b"x" * few)
        assert held.bytes_held == 2 * (size - 1)

        ends[1].write(b"x")
        assert b" 200 " in await ends[0].read()
        leaves[1].transport.abort()
        await stage.app.ends.get()
        assert b" 200 " in await stage.say(head % size + b"x" * size)
        assert held.bytes_held == 0
        ends[1].close()

    run(story, queued_max_bytes=2 * BODY_BYTES_MAX)


def test_large_messages_that_are_not_whole_count_as_bodies_do(run):
    async def story(stage):
        held, part = stage.server.bodies, b"x" * (BODY_BYTES_MAX - 100)
        async with stage.socket() as first, stage.socket() as second:
            unfinished = asyncio.ensure_future(first.send(endless(part)))
            while held.bytes_held < len(part):
                await asyncio.sleep(0)
            await second.send(b"x" * 2 * LARGE_BYTES)
            with pytest.raises(ConnectionClosed) as closed:
                await second.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
            unfinished.cancel()
        while stage.server.connections:
            await asyncio.sleep(0)
        assert held.bytes_held == 0

    run(story, queued_max_bytes=BODY_BYTES_MAX)


async def endless(part: bytes):
    yield part
    yield b""
    await asyncio.Event().wait()


def test_one_who_does_not_read_answers_has_no_more_of_them_made(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /much HTTP/1.1\r\n\r\n" * 20)
        await reader.readexactly(100)
        assert len(stage.app.asked) == 1
        writer.transport.abort()

    run(story)


# Those who are slow.


def test_one_who_reads_slowly_is_kept_and_one_who_stops_is_let_go(run):
    async def story(stage):
        loop = asyncio.get_running_loop()
        reader, writer = await stage.open()
        writer.write(b"GET /much HTTP/1.1\r\n\r\n")
        await reader.readexactly(100)
        (connection,) = stage.server.connections
        while not connection.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        connection.close_if_stale(loop.time() - 999)

        while connection.transport.get_write_buffer_size() == connection._unsent:
            await reader.read(65536)
        connection.close_if_stale(loop.time() - 0.001)
        assert not connection.transport.is_closing()

        connection.close_if_stale(loop.time() + 999)
        assert connection.transport.is_closing()
        writer.close()

    run(story)


# Sockets.

UPGRADE = (
    b"GET /socket HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """The code and the reason with which the other side ends it."""
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


def test_a_connection_becomes_a_socket(run):
    async def story(stage):
        async with stage.socket() as socket:
            await socket.send("hello")
            assert await socket.recv() == "heard hello"
            assert [type(one) for one in stage.server.connections] == [SocketConnection]
        assert await stage.app.ends.get() == "disconnect 1000"
        while stage.server.connections:
            await asyncio.sleep(0)

    run(story)


def test_a_stop_ends_sockets_with_a_word_and_waits_for_theirs(run):
    async def story(stage):
        async with stage.socket() as socket:
            await stage.app.waiting.wait()

            stage.server.end_streams()
            stage.server.close()

            assert await closed(socket) == (1012, "the node is stopping")
        assert await stage.app.ends.get() == "disconnect 1012"
        await stage.server.wait_closed(99 * SECONDS_MAX)

    run(story)


def test_a_stop_does_not_wait_for_one_who_never_says_goodbye(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()

        stage.server.close()
        await stage.server.wait_closed(0.01)

        assert stage.server.connections == {}
        writer.close()

    run(story)


def frame(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A frame of a client, with a mask that changes nothing."""
    assert len(payload) < 126
    return bytes([opcode | 0x80 * is_last, 0x80 | len(payload)]) + bytes(4) + payload


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(1, b"\xff\xfe"), 1007),
        (frame(1, b"", is_last=False) + frame(0, b"", is_last=False) * FRAGMENTS_MAX * 2, 1008),
        (frame(3, b"x"), 1002),
    ],
    ids=["text", "fragments", "opcode"],
)
def test_what_is_no_message_ends_its_socket_with_a_reason(run, frames, code):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frames)

        said = await reader.read()

        at = said.index(b"\x88")
        assert int.from_bytes(said[at + 2 : at + 4], "big") == code
        writer.close()

    run(story)


def test_messages_that_come_at_once_are_all_heard(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame(1, b"x") * 5000)

        assert await reader.readexactly(9 * 5000) == b"\x81\x07heard x" * 5000
        writer.write(frame(8, b"\x03\xe8"))

        assert await reader.read() == b"\x88\x02\x03\xe8"
        assert await stage.app.ends.get() == "disconnect 1000"
        writer.close()

    run(story)


def test_others_get_their_turns_between_the_frames_of_one_socket(run, monkeypatch):
    this_turn, most = 0, 0
    on_frame = SocketConnection._on_frame

    def noted(self, event):
        nonlocal this_turn, most
        this_turn += 1
        most = max(most, this_turn)
        on_frame(self, event)

    monkeypatch.setattr(SocketConnection, "_on_frame", noted)

    async def story(stage):
        nonlocal this_turn
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        message = frame(1, b"", is_last=False) + frame(0, b"", is_last=False) * 40 + frame(0, b"")
        writer.write(message * 1000)
        said = asyncio.create_task(reader.readexactly(8 * 1000))
        while not said.done():
            this_turn = 0
            await asyncio.sleep(0)

        assert said.result().count(b"heard ") == 1000
        assert 0 < most < TURN_FRAMES + SLICE_BYTES // len(frame(0, b""))
        writer.close()

    run(story)


def test_a_socket_that_is_closed_meanwhile_parses_no_more(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame(1, b"x") * 5000)
        await reader.readexactly(9)
        writer.transport.abort()

        assert (await stage.app.ends.get()).startswith("disconnect")

    run(story)


def test_a_message_may_be_as_long_as_a_body_and_no_longer(run):
    async def story(stage):
        async with stage.socket() as socket:
            await socket.send("x" * BODY_BYTES_MAX)
            assert len(await socket.recv()) > BODY_BYTES_MAX
            await socket.send("x" * (BODY_BYTES_MAX + 1))
            assert (await closed(socket))[0] == 1009

    run(story)


def test_one_who_speaks_before_it_is_answered_and_nonsense_is_let_go(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE.replace(b"/socket", b"/late"))
        await stage.app.waiting.wait()
        writer.write(frame(3, b"x"))
        stage.app.go.set()
        with suppress(ConnectionError):
            assert (await reader.read()).startswith(b"HTTP/1.1 101 ")
        writer.close()

    run(story)


def test_a_ping_before_the_socket_is_accepted_is_answered_behind_the_head(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE.replace(b"/socket", b"/late") + frame(9, b"early"))
        await stage.app.waiting.wait()
        stage.app.go.set()

        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await reader.readexactly(7) == b"\x8a\x05early"
        writer.close()

    run(story)


def test_a_flood_of_pongs_ends_the_socket(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            writer.write(frame(10, b"") * 100_000)
            assert (await reader.read())[:4] == b"\x88" + bytes(
                [len("too many pings or pongs at once") + 2, 3, 240]
            )
        writer.close()

        assert await stage.app.ends.get() == "disconnect 1008"

    run(story)


def test_a_body_behind_the_offer_of_another_protocol_is_a_body(run):
    async def story(stage):
        hidden = b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"
        head = b"POST /shown HTTP/1.1\r\nhost: a\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n"

        told = await stage.say(head + b"content-length: %d\r\n\r\n" % len(hidden) + hidden)

        assert told.count(b"HTTP/1.1 ") == 1
        assert told.endswith(b"/shown %d" % len(hidden))
        assert [request.path for request in stage.app.asked] == ["/shown"]

    run(story)


def test_a_tunnel_is_refused(run):
    async def story(stage):
        assert (await stage.say(b"CONNECT /x HTTP/1.1\r\nhost: a\r\n\r\n")).startswith(BAD)

    run(story)


def test_an_answer_that_is_cancelled_ends_the_connection(run):
    async def story(stage):
        cancelled = b"GET /cancelled HTTP/1.1\r\nhost: a\r\n\r\n"

        assert await stage.say(cancelled + cancelled.replace(b"cancelled", b"next")) == b""

    run(story)


def test_a_body_of_endless_tiny_chunks_is_refused(run):
    async def story(stage):
        head = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"

        assert (await stage.say(head + b"1\r\n \r\n" * 10_000 + b"0\r\n\r\n")).startswith(BAD)

    run(story)


def test_a_head_of_countless_headers_is_refused(run):
    async def story(stage):
        head = b"GET /x HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * 1000

        assert (await stage.say(head + b"\r\n")).startswith(BAD)

    run(story)


def test_one_who_pings_and_does_not_listen_is_let_go(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        pings = frame(9, bytes(125)) * 1000
        while stage.server.connections:
            writer.write(pings)
            await asyncio.sleep(0)
        writer.transport.abort()

    run(story)


@pytest.mark.parametrize(
    "head",
    [
        UPGRADE.replace(b"sec-websocket-key", b"x"),
        UPGRADE.replace(b"\r\nhost", b"\r\nx: y" * 200 + b"\r\nhost"),
        UPGRADE.replace(b"version: 13", b"version: 1"),
    ],
    ids=["no key", "many headers", "version"],
)
def test_a_bad_handshake_is_refused_with_a_problem(run, head):
    async def story(stage):
        said = await stage.say(head)

        start, _, body = said.partition(b"\r\n\r\n")
        status = json.loads(body)["status"]
        assert 400 <= status < 500 and start.startswith(b"HTTP/1.1 %d " % status)
        assert b"content-type: application/problem+json" in start.lower()
        assert stage.app.asked == []

    run(story)


def test_a_socket_counts_as_a_connection(run):
    async def story(stage):
        async with stage.socket():
            assert stage.server.is_full
            assert await stage.say(b"GET /a HTTP/1.1\r\n\r\n") == b""

    run(story, connections_max=1)


def test_a_socket_to_nobody_is_refused_by_the_application_with_a_status(run):
    async def story(stage):
        with pytest.raises(InvalidStatus) as refused:
            await stage.socket("/nobody")
        assert refused.value.response.status_code == 404

    run(story)


# The end.


def test_connections_and_requests_are_kept_in_the_order_of_coming(run):
    """A stop ends them in that order: the simulator's history must not change from run to run."""

    async def story(stage):
        writers, ports, tasks = [], [], []
        for _ in range(20):
            _, writer = await stage.open()
            writers.append(writer)
            ports.append(writer.get_extra_info("sockname")[1])
            stage.app.waiting.clear()
            writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
            await stage.app.waiting.wait()
            tasks += [task for task in stage.server.tasks.values() if task not in tasks]

        assert [one.client[1] for one in stage.server.connections] == ports
        assert list(stage.server.tasks.values()) == tasks
        assert len(tasks) == 20
        for writer in writers:
            writer.close()

    run(story)


def test_a_stop_gives_streams_an_end_and_tells_the_application(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /stream HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"data: 1\n\n\r\n")

        stage.server.end_streams()

        assert await reader.read() == b"0\r\n\r\n"
        assert await stage.app.ends.get() == "disconnect"
        writer.close()

    run(story)


def test_a_stop_waits_for_answers_under_way(run):
    async def story(stage):
        reader, writer = await stage.open()
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
        await stage.app.waiting.wait()
        stage.server.close()
        stage.app.go.set()

        await stage.server.wait_closed(SECONDS_MAX)

        assert (await reader.read()).endswith(b"/wait 0")
        writer.close()

    run(story)


def test_a_stop_ends_what_would_never_end(run):
    async def story(stage):
        _, writer = await stage.open()
        writer.write(b"GET /forever HTTP/1.1\r\n\r\n")
        await stage.app.waiting.wait()
        stage.server.close()

        await stage.server.wait_closed(0.01)

        assert (stage.server.connections, stage.server.tasks) == ({}, {})
        writer.close()

    run(story)
