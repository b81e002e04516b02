"""One connection between two nodes, from either side.

Rule 1: a stream fails as a whole and once; everyone who waits on it is told the same.
Rule 2: what a peer sends is checked before it is believed; nonsense ends the stream.
Rule 3: a peer that does not read is given up once `UNSENT_BYTES_MAX` wait for it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from tidelog.errors import TidelogError
from tidelog.peers.wire import (
    ANSWER,
    FAILURE,
    FRAME_BYTES_MAX,
    NOTE,
    REQUEST,
    STRANGER_BYTES_MAX,
    Failure,
    encode_frame,
    split_frame,
)
from tidelog.wire.frames import FrameBuffer, FrameRefused

UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
_NUMBERS: Final = 2**32


class PeerUnreachable(TidelogError):
    """A peer does not answer. `is_down`: nobody listens there, so its process is gone."""

    retriable = True

    def __init__(self, what: str, *, is_down: bool = False) -> None:
        super().__init__(what)
        self.is_down = is_down


class Stream(asyncio.BufferedProtocol):
    """Frames, both ways, with requests matched to their answers.

    Invariant: every number in `_waiting` was sent and not yet answered.
    Owned by one event loop.
    """

    def __init__(
        self,
        on_frame: "Callable[[Stream, int, int, memoryview], None]",
        on_lost: "Callable[[Stream, str], None]",
    ) -> None:
        """`on_frame` gets kind, number and message of everything but answers."""
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = FrameBuffer(STRANGER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Any], msgspec.msgpack.Decoder[Any]]] = {}
        self._next_number = 0
        self.lost: str | None = None

    # Sending.

    def ask(
        self, message: msgspec.Struct, decoder: "msgspec.msgpack.Decoder[Any]"
    ) -> "asyncio.Future[Any]":
        """Send a request; the future is its answer, or PeerUnreachable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost is not None:
            future.set_exception(PeerUnreachable(self.lost))
            return future
        number = self._next_number
        self._next_number = (number + 1) % _NUMBERS
        self._waiting[number] = future, decoder
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self.send(REQUEST, number, message)
        return future

    def send(self, kind: int, number: int, message: msgspec.Struct) -> None:
        transport = self._transport
        if self.lost is not None or transport is None:
            return
        transport.writelines(encode_frame(kind, number, message))
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.fail("it does not read what is sent to it")

    def note(self, message: msgspec.Struct) -> None:
        """Send something that needs no answer."""
        self.send(NOTE, 0, message)

    # Receiving.

    def trust(self) -> None:
        """The other side has said who it is: larger frames are taken."""
        self._buffer.size_max = FRAME_BYTES_MAX

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        if self.lost is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._buffer.received(nbytes):
                self._take(*split_frame(frame))
                if self.lost is not None:
                    return
        except (FrameRefused, ValueError, msgspec.MsgspecError) as error:
            self.fail(f"it sent nonsense ({error})")

    def _take(self, kind: int, number: int, message: memoryview) -> None:
        if kind not in (ANSWER, FAILURE):
            self._on_frame(self, kind, number, message)
            return
        future, decoder = self._waiting.get(number, (None, None))
        if future is None or decoder is None or future.done():
            return  # nobody waits any more
        if kind == FAILURE:
            reason = msgspec.msgpack.decode(message, type=Failure).reason
            future.set_exception(PeerUnreachable(reason))
        else:
            future.set_result(decoder.decode(message))

    # The end.

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

    def tell_lost(self, *, is_down: bool) -> None:
        """Let those go who still wait for an answer."""
        assert self.lost is not None
        for future, _ in list(self._waiting.values()):
            if not future.done():
                future.set_exception(PeerUnreachable(self.lost, is_down=is_down))
                future.exception()  # whoever asked may be gone, and then this is no news
        self._waiting.clear()
