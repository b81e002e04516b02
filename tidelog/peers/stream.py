"""One connection between two nodes, from either side.

Rule 1: a stream fails as a whole and once; everyone who waits on it is told the same.
Rule 2: what a peer sends is checked before it is believed; nonsense ends the stream.
Rule 3: a peer that does not read is given up once `UNSENT_BYTES_MAX` wait for it.
Rule 4: behind a proof that asks for it every frame is sealed, both ways; a frame that was changed, left out
        or sent twice on the way ends the stream before anything of it is read.
Rule 5: a peer that closes its half of the connection has closed all of it: nothing is half-open
        by intent. What is still unsent then would wait for ever, so it is dropped.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from tidelog.errors import TidelogError
from tidelog.host import Bytes, give_up_on_silence
from tidelog.peers.handshake import Ends, NotProved, Seals
from tidelog.peers.wire import (
    ANSWER,
    DATA_ANSWER,
    FAILURE,
    FRAME_BYTES_MAX,
    NOTE,
    REQUEST,
    SEAL_BYTES,
    STRANGER_BYTES_MAX,
    Failure,
    encode_data_frame,
    encode_frame,
    split_data,
    split_frame,
)
from tidelog.wire.frames import SIZE_BYTES, FrameBuffer, FrameRefused

UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
KERNEL_SECONDS_MAX: Final = 10
"""For which the kernel waits for an acknowledgement before it gives a connection up."""
_NUMBERS: Final = 2**32
_SHOWN_CHARACTERS_MAX: Final = 500
_NO_DATA: Final = memoryview(bytearray())


def printable(text: str) -> str:
    """What another side said, as it may stand in a log: in one line, and not without end."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_SHOWN_CHARACTERS_MAX])
    return shown if len(text) <= _SHOWN_CHARACTERS_MAX else shown + "..."


class PeerUnreachable(TidelogError):
    """A peer does not answer. `is_down`: nobody listens there, so its process is gone."""

    retriable = True

    def __init__(self, what: str, *, is_down: bool = False) -> None:
        super().__init__(what)
        self.is_down = is_down


class _Asked(NamedTuple):
    """A request that is not answered yet."""

    future: "asyncio.Future[Any]"
    decoder: "msgspec.msgpack.Decoder[Any]"
    takes_data: bool


class Stream(asyncio.BufferedProtocol):
    """Frames, both ways, with requests matched to their answers.

    Invariant: every number in `_waiting` was sent and is unanswered.
    Owned by one event loop.
    """

    def __init__(
        self,
        on_frame: "Callable[[Stream, int, int, memoryview], None]",
        on_lost: "Callable[[Stream, str], None]",
        on_made: "Callable[[Stream], None]" = lambda stream: None,
    ) -> None:
        """`on_frame` gets kind, number and message of everything but answers."""
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._buffer = FrameBuffer(STRANGER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Asked] = {}
        self._next_number = 0
        self._seals: Seals | None = None
        self._sealed = 0
        self._silent_since: float | None = None
        """When the first request was sent since the peer was last heard."""
        self.lost: str | None = None

    @property
    def silent_seconds(self) -> float:
        """For how long a request has waited while nothing at all came from the peer."""
        if self._silent_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._silent_since

    # Sending.

    def ask(self, message: msgspec.Struct, decoder: "msgspec.msgpack.Decoder[Any]") -> "asyncio.Future[Any]":
        """Send a request; the future is its answer, or PeerUnreachable."""
        return self._ask(message, decoder, takes_data=False)

    def ask_data(
        self, message: msgspec.Struct, decoder: "msgspec.msgpack.Decoder[Any]"
    ) -> "asyncio.Future[tuple[Any, memoryview]]":
        """Send a request whose answer may bring data; the future is both, or PeerUnreachable.

        The view is writable memory of its own, to be kept as long as one likes. It is empty if
        the answer brought no data.
        """
        return self._ask(message, decoder, takes_data=True)

    def _ask(
        self, message: msgspec.Struct, decoder: "msgspec.msgpack.Decoder[Any]", *, takes_data: bool
    ) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self.lost is not None:
            future.set_exception(PeerUnreachable(self.lost))
            return future
        number = self._next_number
        self._next_number = (number + 1) % _NUMBERS
        self._waiting[number] = _Asked(future, decoder, takes_data)
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        if self._silent_since is None:
            self._silent_since = loop.time()
        self.send(REQUEST, number, message)
        return future

    def send(self, kind: int, number: int, message: msgspec.Struct) -> None:
        if self.lost is None and self._transport is not None:
            self._write(self._transport, encode_frame(kind, number, message, self._sealed))

    def send_data(self, number: int, message: msgspec.Struct, buffers: Sequence[Bytes]) -> None:
        """Answer with data. The buffers are not copied, so they must not change any more."""
        if self.lost is None and self._transport is not None:
            self._write(self._transport, encode_data_frame(number, message, buffers, self._sealed))

    def _write(self, transport: asyncio.Transport, pieces: list[Bytes]) -> None:
        if self._seals is not None:
            first = memoryview(pieces[0])[SIZE_BYTES:]
            pieces.append(self._seals.sending.of([first, *pieces[1:]]))
        transport.writelines(pieces)
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.fail("it does not read what is sent to it")

    def note(self, message: msgspec.Struct) -> None:
        """Send something that needs no answer."""
        self.send(NOTE, 0, message)

    # Receiving.

    def trust(self, seals: Seals | None = None) -> None:
        """The other side has said who it is: larger frames are taken, all of them sealed from now on."""
        self._buffer.size_max = FRAME_BYTES_MAX
        if seals is not None:
            self._seals = seals
            self._sealed = SEAL_BYTES

    @property
    def ends(self) -> Ends | None:
        """Where this connection begins and ends, if both are of this machine's loopback."""
        assert self._transport is not None, "it is connected"
        own, other = map(self._transport.get_extra_info, ("sockname", "peername"))
        if not (isinstance(own, tuple) and isinstance(other, tuple)):
            return None
        if not all(end[0] == "::1" or end[0].startswith("127.") for end in (own, other)):
            return None
        return Ends(*(f"{end[0]} {end[1]}" for end in (own, other)))

    @property
    def from_host(self) -> str:
        """The address of the other side, for logs and limits."""
        other = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(other[0]) if isinstance(other, tuple) else "somewhere"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        give_up_on_silence(transport, unacknowledged_seconds_max=KERNEL_SECONDS_MAX)
        if self.lost is not None:
            self._transport.abort()
        else:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._silent_since = None
        try:
            for received in self._buffer.received(nbytes):
                frame = memoryview(received)
                if self._seals is not None:
                    frame = self._seals.receiving.open(frame)
                self._take(*split_frame(frame))
                if self.lost is not None:
                    return
        except NotProved as error:
            self.fail(str(error))
        except (FrameRefused, ValueError, msgspec.MsgspecError) as error:
            self.fail(f"it sent nonsense ({error})")

    def _take(self, kind: int, number: int, message: memoryview) -> None:
        if kind not in (ANSWER, FAILURE, DATA_ANSWER):
            self._on_frame(self, kind, number, message)
            return
        data = _NO_DATA
        if kind == DATA_ANSWER:
            message, data = split_data(message)
        asked = self._waiting.get(number)
        if asked is None or asked.future.done():
            return  # nobody waits any more
        if kind == FAILURE:
            reason = msgspec.msgpack.decode(message, type=Failure).reason
            asked.future.set_exception(PeerUnreachable(reason))
        elif asked.takes_data:
            asked.future.set_result((asked.decoder.decode(message), data))
        elif kind == ANSWER:
            asked.future.set_result(asked.decoder.decode(message))
        else:
            raise ValueError("data that was not asked for")

    # The end.

    def eof_received(self) -> None:
        # By itself the transport would close once all that is unsent has left: with a peer that
        # reads no more that is never, and the stream would be used until then.
        self.fail("it closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"the connection broke ({exc})" if exc else "it closed the connection")

    def fail(self, what: str) -> None:
        """Give the stream up, for the reason `what`."""
        if self.lost is not None:
            return
        self.lost = what
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self, what)

    def part(self, what: str) -> None:
        """Give the stream up behind what was sent last; nothing more is read."""
        if self.lost is not None:
            return
        self.lost = what
        if self._transport is not None:
            self._transport.pause_reading()
            self._transport.close()
        self._on_lost(self, what)

    def tell_lost(self, *, is_down: bool) -> None:
        """Let those go who still wait for an answer."""
        assert self.lost is not None
        for future, *_ in list(self._waiting.values()):
            if not future.done():
                future.set_exception(PeerUnreachable(self.lost, is_down=is_down))
                future.exception()  # whoever asked may be gone, and then this is no news
        self._waiting.clear()
