"""The way to one peer: connect, ask, notice when it is gone, connect again.

Rule 1: one connection, however much is asked through it.
Rule 2: a lost connection is tried again at once, before anybody is told: refused, the process is
        gone; otherwise it may just be the way. When a later try may go, the breaker says.
Rule 3: nothing is sent twice. What was in flight when the connection broke has failed.
Rule 4: a connection is abandoned when a request runs out of time and nothing at all has come for
        `SILENT_SECONDS_MAX`. It may be half-open: the peer, or something on the way, has forgotten
        it, and the news is lost. Whether the peer is there, a new connection tells.
Rule 5: a node that belongs to no cluster is a guest of those that do, and they let it ask little. Once it
        belongs to one, it connects anew.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from tidelog.host import Host
from tidelog.model import Endpoint, NodeId
from tidelog.peers.breaker import Breaker, BreakerStatus
from tidelog.peers.handshake import NONCE_BYTES, Dialer, NotProved, Seals, Trust
from tidelog.peers.stream import PeerUnreachable, Stream, printable
from tidelog.peers.wire import REFUSED, Challenge, Hello, PeerRefused, Refusal, Welcome

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
Answered = TypeVar("Answered")

CONNECT_SECONDS_MAX: Final = 1.0
SILENT_SECONDS_MAX: Final = 2.0
_DYING_SECONDS_MAX: Final = 0.3
_DYING_PAUSE_SECONDS: Final = 0.02


class Link:
    """This node's connection to one peer."""

    def __init__(
        self,
        host: Host,
        node: NodeId,
        *,
        hello: Callable[[], Hello],
        where: Callable[[], Sequence[Endpoint]],
        on_welcome: Callable[[Welcome], None],
        on_down: Callable[[NodeId], None],
        on_lost: Callable[[NodeId], None] = lambda node: None,
        trust: Trust = Trust(),  # noqa: B008
    ) -> None:
        """`where` says where the peer may be; one place after the other is tried.

        `on_lost` is called when a connection was lost, and `on_down` when besides nobody listens there
        any more.
        """
        self.node = node
        self._host = host
        self._hello = hello
        self._where = where
        self._on_welcome = on_welcome
        self._on_down = on_down
        self._tell_lost = on_lost
        self._trust = trust
        self._says_plainly = False
        """Whether the next try leaves the proof out, where that is optional: the last one was refused."""
        self._is_guest = False
        self._stream: Stream | None = None
        self._connecting: asyncio.Task[Stream] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._breaker = Breaker(now=host.clock.monotonic())
        self._place = 0  # which of the places is tried next; the last one that was right
        self._was_reached = False
        self._last_failure = PeerUnreachable(f"node {node} was never reached")
        self._said = ""
        self._decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._stream is not None

    def status(self) -> BreakerStatus:
        return self._breaker.status()

    async def ask(self, message: msgspec.Struct, answer: type[T], *, seconds_max: float) -> T:
        """The peer's answer; PeerUnreachable if there is none in time, PeerRefused if never."""
        decoder = self._decoder(answer)
        return await self._ask(lambda stream: stream.ask(message, decoder), seconds_max)

    async def ask_data(
        self, message: msgspec.Struct, answer: type[T], *, seconds_max: float
    ) -> tuple[T, memoryview]:
        """The peer's answer and the data beside it, which may be none; fails as `ask` does.

        The view is writable memory of its own, to be kept as long as one likes.
        """
        decoder = self._decoder(answer)
        return await self._ask(lambda stream: stream.ask_data(message, decoder), seconds_max)

    async def _ask(
        self, send: "Callable[[Stream], asyncio.Future[Answered]]", seconds_max: float
    ) -> Answered:
        stream: Stream | None = None
        try:
            async with asyncio.timeout(seconds_max):
                if self._is_guest and self._hello().cluster is not None:
                    self._leave()
                stream = self._stream or await self._connect()
                return await send(stream)
        except (PeerUnreachable, PeerRefused):
            self._breaker.request_failed()
            raise
        except TimeoutError:
            self._breaker.request_failed()
            if stream is not None:
                # Later: after a pause of this process, answers may be there and not yet read.
                asyncio.get_running_loop().call_soon(self._doubt, stream)
            raise PeerUnreachable(f"node {self.node} did not answer in time") from None

    def _doubt(self, stream: Stream) -> None:
        """Abandon a connection by which nothing comes any more."""
        if stream is self._stream and stream.silent_seconds >= SILENT_SECONDS_MAX:
            stream.fail(f"it answered nothing for {stream.silent_seconds:.1f} s")

    def note(self, message: msgspec.Struct) -> None:
        """Send something that needs no answer, if there is a connection."""
        if self._stream is not None and not self._is_guest:
            self._stream.note(message)

    def _leave(self) -> None:
        """Let the connection go by which this node is a guest."""
        stream, self._stream, self._is_guest = self._stream, None, False
        if stream is not None:
            stream.fail("this node belongs to the cluster now")

    async def is_down(self) -> bool:
        """Whether nobody listens at any of the peer's places, by tries that begin after this call.

        A try that is under way may be refused for what was before: the peer may have started since.
        A process that dies may yet accept, or have accepted, a connection, which is then reset: so
        whoever answers with nothing but that is looked at again, for a moment.
        """
        if self._connecting is not None:
            with suppress(PeerUnreachable, PeerRefused):
                await asyncio.shield(self._connecting)
        clock = self._host.clock
        began_at = clock.monotonic()
        refused = 0
        while True:
            self._breaker.hurry(clock.monotonic())
            try:
                if self._stream is None:
                    await self._connect()
                return False
            except PeerUnreachable as error:
                refused = refused + 1 if error.is_down else 0
                if refused >= len(self._where()):
                    return error.is_down
                if clock.monotonic() - began_at > _DYING_SECONDS_MAX:
                    return False
                if refused:
                    continue  # it may listen at another place
            except PeerRefused:
                return False
            await asyncio.sleep(_DYING_PAUSE_SECONDS)

    def _decoder(self, answer: type[T]) -> "msgspec.msgpack.Decoder[T]":
        decoder = self._decoders.get(answer)
        if decoder is None:
            decoder = self._decoders[answer] = msgspec.msgpack.Decoder(answer)
        return decoder

    # Connecting.

    async def _connect(self) -> Stream:
        if self._connecting is None:
            if self._closed or not self._breaker.begin(self._host.clock.monotonic()):
                raise self._last_failure
            self._connecting = asyncio.get_running_loop().create_task(self._try())
            self._connecting.add_done_callback(_retrieve)
        connecting, me = self._connecting, asyncio.current_task()
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and me is not None and not me.cancelling():
                # Not who asks is cancelled: the link was closed.
                raise PeerUnreachable(f"this node lets go of node {self.node}") from None
            raise

    async def _try(self) -> Stream:
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                stream = await self._open()
        except (OSError, TimeoutError, PeerRefused, PeerUnreachable) as error:
            raise self._failed(error) from None
        except BaseException:  # cancelled, or a fault of ours: it must not stay half-open for ever
            self._breaker.abandoned(self._host.clock.monotonic())
            raise
        finally:
            self._connecting = None
        self._stream = stream
        self._succeeded()
        return stream

    async def _open(self) -> Stream:
        places = self._where()
        if not places:
            raise PeerUnreachable(f"nobody knows the address of node {self.node}")
        endpoint = places[self._place % len(places)]
        stream = Stream(self._on_frame, self._on_lost)
        await self._host.network.connect(lambda: stream, endpoint.host, endpoint.port)
        hello = self._hello()
        try:
            welcome, seals = await self._greet(stream, hello)
        except BaseException as error:
            stream.fail(str(error) if isinstance(error, PeerRefused) else "it did not say who it is")
            if self._trust.is_optional and isinstance(error, PeerRefused | PeerUnreachable):
                self._says_plainly = not self._says_plainly
            raise
        if stream.lost is not None:  # right behind its answer
            raise PeerUnreachable(stream.lost)
        stream.trust(seals)
        self._is_guest = hello.cluster is None and welcome.cluster is not None
        self._on_welcome(welcome)
        return stream

    async def _greet(self, stream: Stream, hello: Hello) -> tuple[Welcome, Seals | None]:
        secret = None if self._says_plainly else self._trust.secret
        if secret is None:
            return _welcome(await stream.ask(hello, _WELCOMES), self._trust), None
        dialer = Dialer(secret, self._host.random.randbytes(NONCE_BYTES), stream.ends)
        challenge = await stream.ask(dialer.greeting, _CHALLENGES)
        if isinstance(challenge, Refusal):
            raise PeerRefused(challenge.reason)
        try:
            answer = await stream.ask(dialer.challenged(challenge, hello), _WELCOMES)
            welcome = _welcome(answer, self._trust)
            return welcome, dialer.welcomed(welcome)
        except NotProved as error:
            raise PeerRefused(f"node {self.node} is not believed: {error}") from None

    def _succeeded(self) -> None:
        seconds_open = self._breaker.succeeded(self._host.clock.monotonic())
        if seconds_open is not None:
            _log.info("node %d is reached again, after %.1f s", self.node, seconds_open)
        self._was_reached = True
        self._said = ""

    def _failed(self, error: Exception) -> PeerUnreachable | PeerRefused:
        self._place += 1
        is_down = isinstance(error, ConnectionRefusedError)
        what = "nobody listens there" if is_down else printable(str(error)) or "no answer"
        opens = self._breaker.failed(self._host.clock.monotonic(), what, draw=self._host.random.random())
        if isinstance(error, PeerRefused):
            if self._said != what:
                _log.error("node %d refuses to talk: %s", self.node, what)
                self._said = what
            return error
        if opens:
            # Nodes start in any order: one that is not there yet is nothing to worry about.
            level = logging.WARNING if self._was_reached else logging.INFO
            _log.log(level, "node %d is out of reach: %s", self.node, what)
        self._last_failure = PeerUnreachable(f"node {self.node}: {what}", is_down=is_down)
        return self._last_failure

    # Losing it.

    def _on_frame(self, stream: Stream, kind: int, number: int, message: memoryview) -> None:
        stream.fail(f"it sent kind {kind} on a link that it does not own")

    def _on_lost(self, stream: Stream, what: str) -> None:
        if stream is not self._stream:  # still connecting
            stream.tell_lost(is_down=False)
            return
        self._stream, self._is_guest, self._says_plainly = None, False, False
        if self._closed:
            stream.tell_lost(is_down=False)
            return
        self._breaker.lost(what)
        self._tell_lost(self.node)
        self._probe = asyncio.get_running_loop().create_task(self._look(stream))

    async def _look(self, stream: Stream) -> None:
        """Tell those who wait, once it is known whether the process is gone."""
        is_down = await self.is_down()
        stream.tell_lost(is_down=is_down)
        if is_down:
            self._on_down(self.node)

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._stream is not None:
            self._stream.fail("this node is stopping")


_WELCOMES: Final = msgspec.msgpack.Decoder(Welcome | Refusal)
_CHALLENGES: Final = msgspec.msgpack.Decoder(Challenge | Refusal)


def _welcome(answer: Welcome | Refusal, trust: Trust) -> Welcome:
    """The welcome; PeerRefused says what a person can do about a refusal."""
    if isinstance(answer, Welcome):
        return answer
    if answer.reason != REFUSED:
        raise PeerRefused(answer.reason)
    if trust.secret is None:
        raise PeerRefused(
            "refused: it demands the cluster's secret, and this node has none; give it "
            "cluster.secret.file, with the secret that the other nodes have"
        )
    raise PeerRefused(
        "refused: it does not take this node's proof; is the secret in cluster.secret.file the same on both?"
    )


def _retrieve(task: "asyncio.Task[Stream]") -> None:
    """A failure that nobody waits for any more is no news."""
    if not task.cancelled():
        task.exception()
