"""Cuts a stream of bytes into frames.

Rule 1: bytes in, frames out; nothing here knows a socket.
Rule 2: a length is compared with the limit before memory is set aside for it, and memory grows
        only as bytes arrive: a lying length costs its sender the bytes, not us the memory. Who has
        sent a large frame before gets as much at once for the next: it saves copying.
Rule 3: every frame is memory of its own, which its receiver may keep and change.
"""

# frame := size: int32, that many bytes        (big-endian)

import struct
from typing import Final

from tidelog.errors import TidelogError

SIZE: Final = struct.Struct(">i")
SIZE_BYTES: Final = SIZE.size
FRAME_BYTES_LEAST: Final = 4
"""Nothing on the wire is shorter than a correlation id."""

_SHARED_BYTES: Final = 64 * 1024
_AT_ONCE_BYTES_MAX: Final = 2 * 1024 * 1024


class FrameRefused(TidelogError):
    """The stream is not made of frames, or one is larger than allowed; close the connection."""


_OTHER_PROTOCOLS: Final = {
    **dict.fromkeys((b"HTTP", b"GET ", b"POST", b"PUT ", b"DELE", b"HEAD", b"OPTI"), "HTTP"),
    **dict.fromkeys((b"\x16\x03\x01\x00", b"\x16\x03\x01\x01", b"\x16\x03\x01\x02"), "TLS"),
}
"""The first four bytes of what people send to the wrong port."""


class FrameBuffer:
    """Collects received bytes until a frame is whole.

    `space` is where to receive next; `received` takes the count and returns the finished frames.
    Small frames share a buffer and are copied out; a large one is received where it stays.
    """

    __slots__ = ("_at_once_bytes", "_filled", "_large", "_large_filled", "_large_size", "_shared", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._shared = bytearray(0)  # made when the first byte is expected, let go when idle
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_size = 0
        self._at_once_bytes = _SHARED_BYTES  # what a new large frame gets before it has come

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun that is not whole yet."""
        return self._filled > 0 or self._large is not None

    @property
    def large_bytes(self) -> int:
        """What a large frame that is not whole yet takes in memory."""
        return len(self._large) if self._large is not None else 0

    def space(self) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        if not self._shared:
            self._shared = bytearray(_SHARED_BYTES)
        return memoryview(self._shared)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """`count` bytes have come into `space`; the frames that are whole now, without sizes."""
        if self._large is not None:
            return self._received_large(count)
        shared = self._shared
        filled = self._filled + count
        frames: list[bytearray] = []
        at = 0
        while filled - at >= SIZE_BYTES:
            size: int = SIZE.unpack_from(shared, at)[0]
            if not FRAME_BYTES_LEAST <= size <= self.size_max:
                raise FrameRefused(_refusal(size, self.size_max))
            start = at + SIZE_BYTES
            end = start + size
            if end <= filled:
                frames.append(shared[start:end])
                at = end
                continue
            if SIZE_BYTES + size > _SHARED_BYTES:
                self._begin_large(size, memoryview(shared)[start:filled])
                at = filled
            break
        self._filled = filled - at
        if at and self._filled:
            shared[: self._filled] = shared[at:filled]
        return frames

    def _begin_large(self, size: int, beginning: memoryview) -> None:
        # A bytearray is filled with zeros, so every byte of it takes real memory.
        self._large = bytearray(min(size, self._at_once_bytes))
        self._large_size = size
        self._large_filled = len(beginning)
        self._large[: len(beginning)] = beginning

    def _received_large(self, count: int) -> list[bytearray]:
        large = self._large
        assert large is not None
        self._large_filled += count
        if self._large_filled < len(large):
            return []
        if self._large_filled == self._large_size:
            self._large = None
            self._at_once_bytes = max(self._at_once_bytes, min(len(large), _AT_ONCE_BYTES_MAX))
            return [large]
        grown = bytearray(min(self._large_size, 2 * len(large)))
        grown[: len(large)] = large
        self._large = grown
        return []

    def release_idle(self) -> None:
        """Give back the memory of a connection that waits for its next request."""
        if not self.is_partial:
            self._shared = bytearray(0)


def _refusal(size: int, size_max: int) -> str:
    """What is wrong with a size; one that reads as text came from another protocol."""
    other = _OTHER_PROTOCOLS.get(SIZE.pack(size))
    if other is not None:
        return f"{other} and not Kafka's protocol"
    return f"a frame of {size} bytes; sizes from {FRAME_BYTES_LEAST} to {size_max} are taken"
