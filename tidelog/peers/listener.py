"""Where the peers connect: says who is here, and hands over what they say.

Rule 1: nobody is heard before it has said who it is, in time.
Rule 2: a request is answered once, on the connection that it came by; if that is gone, not at all.
Rule 3: a process has one connection here. When it connects anew, it has given the earlier one up,
        even if nothing was heard of that.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from tidelog.host import Bytes, Host
from tidelog.model import Endpoint, NodeId
from tidelog.peers.stream import Stream
from tidelog.peers.wire import (
    ANSWER,
    FAILURE,
    NOTE,
    REQUEST,
    Failure,
    Hello,
    Refusal,
    Welcome,
    decode_greeting,
    greeting_problem,
)

_log = logging.getLogger(__name__)

GREETING_SECONDS_MAX: Final = 5.0


class Answer(Protocol):
    """The place of one answer. One of the three is called, once."""

    def send(self, message: msgspec.Struct) -> None: ...

    def send_with(self, message: msgspec.Struct, buffers: Sequence[Bytes]) -> None:
        """Send data beside the message, for whoever asked by `ask_data`.

        The buffers are not copied: from now on they must not change.
        """
        ...

    def fail(self, reason: str) -> None: ...

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits any more."""
        ...


class PeerListener:
    """Accepts connections of peers and passes on their requests and notes.

    `messages` decodes all that a peer may say; `receive` is called with the peer's node, the
    message, and where its answer goes (None for a note). It must not raise.
    """

    def __init__(
        self,
        host: Host,
        *,
        me: Callable[[], Welcome],
        messages: "msgspec.msgpack.Decoder[Any]",
        receive: Callable[[NodeId, Any, Answer | None], None],
        on_gone: Callable[[NodeId], None] = lambda node: None,
        on_hello: Callable[[Hello], str | None] = lambda hello: None,
    ) -> None:
        """`on_hello` may return another reason to refuse; `on_gone` hears of lost connections."""
        self._host = host
        self._me = me
        self._messages = messages
        self._receive = receive
        self._on_gone = on_gone
        self._on_hello = on_hello
        self._server: asyncio.AbstractServer | None = None
        self._streams: dict[Stream, Hello | None] = {}

    async def start(self, at: Endpoint) -> Endpoint:
        """Listen; returns where, which is news if the port was 0."""
        self._server = await self._host.network.serve(self._accept, at.host, at.port)
        sockets = getattr(self._server, "sockets", None)
        port = sockets[0].getsockname()[1] if sockets else at.port
        return Endpoint(host=at.host, port=port)

    def _accept(self) -> Stream:
        stream = Stream(self._on_frame, self._on_lost)
        self._streams[stream] = None
        asyncio.get_running_loop().call_later(GREETING_SECONDS_MAX, self._hurry, stream)
        return stream

    def _hurry(self, stream: Stream) -> None:
        if stream in self._streams and self._streams[stream] is None:
            stream.fail("it did not say who it is")

    def _on_frame(self, stream: Stream, kind: int, number: int, message: memoryview) -> None:
        peer = self._streams.get(stream)
        if peer is None:
            self._greet(stream, kind, number, message)
        elif kind == REQUEST:
            self._receive(peer.node, self._messages.decode(message), _Place(stream, number))
        elif kind == NOTE:
            self._receive(peer.node, self._messages.decode(message), None)
        else:
            stream.fail(f"it sent kind {kind}")

    def _greet(self, stream: Stream, kind: int, number: int, message: memoryview) -> None:
        hello = decode_greeting(message)
        if kind != REQUEST or not isinstance(hello, Hello):
            stream.fail("it did not say who it is")
            return
        me = self._me()
        problem = greeting_problem(hello, cluster=me.cluster, node=me.node)
        problem = problem or self._on_hello(hello)
        if problem is not None:
            _log.warning("refused a peer: %s", problem)
            stream.send(ANSWER, number, Refusal(reason=problem))
            return
        self._end_earlier(hello)
        self._streams[stream] = hello
        stream.trust()
        stream.send(ANSWER, number, me)

    def _end_earlier(self, hello: Hello) -> None:
        for stream, peer in list(self._streams.items()):
            # Another process with the same number has another directory.
            if peer is not None and (peer.node, peer.directory) == (hello.node, hello.directory):
                stream.fail("it has connected anew")

    def _on_lost(self, stream: Stream, what: str) -> None:
        stream.tell_lost(is_down=False)
        peer = self._streams.pop(stream, None)
        if peer is not None:
            self._on_gone(peer.node)

    def close(self) -> None:
        """Stop listening, and let everybody go."""
        if self._server is not None:
            self._server.close()
        for stream in list(self._streams):
            stream.fail("this node is stopping")


class _Place:
    """One request's answer."""

    __slots__ = ("_number", "_stream")

    def __init__(self, stream: Stream, number: int) -> None:
        self._stream = stream
        self._number = number

    def send(self, message: msgspec.Struct) -> None:
        self._stream.send(ANSWER, self._number, message)

    def send_with(self, message: msgspec.Struct, buffers: Sequence[Bytes]) -> None:
        self._stream.send_data(self._number, message, buffers)

    def fail(self, reason: str) -> None:
        self._stream.send(FAILURE, self._number, Failure(reason=reason))

    @property
    def is_gone(self) -> bool:
        return self._stream.lost is not None
