"""Where the peers connect: says who is here, and hands over what they say.

Rule 1: nobody is heard before it has said who it is, in time, and has proved it where there is a secret.
Rule 2: a request is answered once, on the connection that it came by; if that is gone, not at all.
Rule 3: a process has one connection here. When it connects anew, it has given the earlier one up,
        even if nothing was heard of that.
Rule 4: whoever has not proved a thing learns nothing: with a secret, every refusal before is the same. Such
        callers are few at once (`_Strangers`), and so are the lines in the log about them.
Rule 5: whoever belongs to no cluster is a guest of a node that does: it may ask what guests may, no more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from tidelog.errors import TidelogError
from tidelog.host import Bytes, Host, Listening
from tidelog.host.complaints import Complaints
from tidelog.model import Endpoint, NodeId
from tidelog.peers.handshake import NONCE_BYTES, Doorkeeper, NotProved, Seals, Trust
from tidelog.peers.stream import Stream, printable
from tidelog.peers.wire import (
    ANSWER,
    FAILURE,
    NOTE,
    REFUSED,
    REQUEST,
    Failure,
    Greeting,
    Hello,
    Refusal,
    Welcome,
    decode_greeting,
    greeting_problem,
)

_log = logging.getLogger(__name__)

GREETING_SECONDS_MAX: Final = 5.0
STRANGERS_MAX: Final = 256
"""How many callers may be here at once that have not said who they are."""
STRANGERS_OF_HOST_MAX: Final = 64


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


class _Caller:
    """What is known of one connection."""

    __slots__ = ("door", "hello", "is_guest", "timer")

    def __init__(self) -> None:
        self.door: Doorkeeper | None = None
        """From its greeting on, where there is a secret."""
        self.hello: Hello | None = None
        """Once it is believed."""
        self.is_guest = False
        self.timer: asyncio.TimerHandle | None = None


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
        trust: Trust = Trust(),  # noqa: B008
        for_guests: Sequence[type[msgspec.Struct]] = (),
    ) -> None:
        """`on_hello` may return another reason to refuse; `on_gone` hears of lost connections."""
        self._host = host
        self._me = me
        self._messages = messages
        self._receive = receive
        self._on_gone = on_gone
        self._on_hello = on_hello
        self._trust = trust
        self._for_guests = tuple(for_guests)
        self._server: Listening | None = None
        self._streams: dict[Stream, _Caller] = {}
        self._strangers: dict[Stream, str] = {}
        """Where each is from that has not said who it is; the earliest first."""
        self._complaints = Complaints(host.clock)

    async def start(self, at: Endpoint) -> Endpoint:
        """Listen; returns where, which is news if the port was 0."""
        self._server = await self._host.network.serve(self._accept, at.host, at.port)
        sockets = getattr(self._server, "sockets", None)
        port = sockets[0].getsockname()[1] if sockets else at.port
        return Endpoint(host=at.host, port=port)

    def _accept(self) -> Stream:
        stream = Stream(self._on_frame, self._on_lost, self._on_made)
        caller = self._streams[stream] = _Caller()
        loop = asyncio.get_running_loop()
        caller.timer = loop.call_later(GREETING_SECONDS_MAX, self._hurry, stream)
        return stream

    def _on_made(self, stream: Stream) -> None:
        """Make room for one more stranger: those that have been here longest take the longest."""
        host = stream.from_host
        of_host = [other for other, there in self._strangers.items() if there == host]
        if len(of_host) >= STRANGERS_OF_HOST_MAX:
            of_host[0].fail("too many connections that do not say who they are")
        elif len(self._strangers) >= STRANGERS_MAX:
            next(iter(self._strangers)).fail("too many connections that do not say who they are")
        self._strangers[stream] = host

    def _hurry(self, stream: Stream) -> None:
        stream.fail("it did not say who it is")

    def _on_frame(self, stream: Stream, kind: int, number: int, message: memoryview) -> None:
        caller = self._streams[stream]
        if caller.hello is None:
            self._greet(stream, caller, kind, number, message)
            return
        if kind not in (REQUEST, NOTE):
            stream.fail(f"it sent kind {kind}")
            return
        decoded = self._messages.decode(message)
        if caller.is_guest and not isinstance(decoded, self._for_guests):
            stream.fail(f"it belongs to no cluster, and sent a {type(decoded).__name__}")
            return
        self._receive(caller.hello.node, decoded, _Place(stream, number) if kind == REQUEST else None)

    # Greeting.

    def _greet(self, stream: Stream, caller: _Caller, kind: int, number: int, message: memoryview) -> None:
        said = decode_greeting(message)
        if kind != REQUEST:
            raise ValueError("it did not say who it is")
        try:
            if isinstance(said, Greeting):
                self._challenge(stream, caller, number, said)
                return
            seals = self._welcome(stream, caller, number, said)
        except NotProved as error:
            self._refuse(stream, number, REFUSED, str(error))
        except _Refused as error:
            self._refuse(stream, number, str(error), str(error))
        else:
            self._believe(stream, caller, said)
            stream.trust(seals)

    def _challenge(self, stream: Stream, caller: _Caller, number: int, greeting: Greeting) -> None:
        node, secret = self._me().node, self._trust.secret
        if secret is None:
            raise _Refused(
                f"node {node} has no secret, and the node that calls has one; give both the same "
                "cluster.secret.file"
            )
        if caller.door is not None:
            raise NotProved("it greets twice")
        caller.door = Doorkeeper(secret, self._host.random.randbytes(NONCE_BYTES), stream.ends)
        stream.send(ANSWER, number, caller.door.greeted(greeting))

    def _welcome(self, stream: Stream, caller: _Caller, number: int, hello: Hello) -> Seals | None:
        """Welcome a caller; `_Refused` and `NotProved` say why not."""
        door, me = caller.door, self._me()
        if door is not None:
            door.proved(hello)
        elif self._trust.secret is not None and not self._trust.is_optional:
            raise NotProved(f"node {hello.node} has no secret; is cluster.secret.file set there?")
        problem = greeting_problem(hello, cluster=me.cluster, node=me.node) or self._on_hello(hello)
        if problem is not None:
            raise _Refused(problem)
        welcome, seals = (me, None) if door is None else door.welcoming(me)
        caller.is_guest = hello.cluster is None and me.cluster is not None
        stream.send(ANSWER, number, welcome)
        return seals

    def _refuse(self, stream: Stream, number: int, told: str, problem: str) -> None:
        more = self._complaints.about(stream.from_host)
        if more is not None:
            _log.warning("refused a peer from %s: %s%s", stream.from_host, printable(problem), more)
        stream.send(ANSWER, number, Refusal(reason=told))
        stream.part(problem)

    def _believe(self, stream: Stream, caller: _Caller, hello: Hello) -> None:
        self._end_earlier(hello)
        caller.hello, caller.door = hello, None
        self._forget_stranger(stream, caller)

    def _end_earlier(self, hello: Hello) -> None:
        for other, known in list(self._streams.items()):
            peer = known.hello
            # Another process with the same number has another directory.
            if peer is not None and (peer.node, peer.directory) == (hello.node, hello.directory):
                other.fail("it has connected anew")

    def _forget_stranger(self, stream: Stream, caller: _Caller) -> None:
        self._strangers.pop(stream, None)
        if caller.timer is not None:
            caller.timer.cancel()

    def _on_lost(self, stream: Stream, what: str) -> None:
        stream.tell_lost(is_down=False)
        caller = self._streams.pop(stream, None)
        if caller is None:
            return
        self._forget_stranger(stream, caller)
        if caller.hello is not None:
            self._on_gone(caller.hello.node)

    def close(self) -> None:
        """Stop listening, and let everybody go."""
        if self._server is not None:
            self._server.close()
        for stream in list(self._streams):
            stream.fail("this node is stopping")


class _Refused(TidelogError):
    """The caller cannot be talked to; the message says to it what to do."""


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
