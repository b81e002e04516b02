"""AMQP 0-9-1, as much of it as asking RabbitMQ for messages takes.

Rule 1: requests are bytes that are made beforehand, and of answers no more is looked at than whose
        they are: so the generator costs about what it costs beside the other servers.
Rule 2: whatever is no answer to what was asked makes the run fail.
"""

# frame  := kind: uint8, channel: uint16, size: uint32, payload, 0xCE      (big-endian)
# method := class: uint16, method: uint16, arguments
# a message is a method, then a header with its size and properties, then its body

import socket
import struct
from typing import Final

from benchmarks.closed import Refused

PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEAD: Final = struct.Struct(">BHI")
END: Final = b"\xce"
FRAME_BYTES: Final = HEAD.size + len(END)
"""Of a frame beside its payload."""
SECONDS_MAX: Final = 60.0

_CHANNEL: Final = 1
_METHOD: Final = struct.Struct(">HH")
_PERSISTENT: Final = struct.pack(">HB", 0x1000, 2)
"""The one property of a message: that it is to be kept."""


def method_id(group: int, method: int) -> int:
    return group << 16 | method


DECLARED: Final = method_id(50, 11)
DELIVER: Final = method_id(60, 60)
GOT: Final = method_id(60, 71)
ACK: Final = method_id(60, 80)


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def frame(kind: int, payload: bytes, channel: int = _CHANNEL) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + END


def method(group: int, number: int, arguments: bytes, channel: int = _CHANNEL) -> bytes:
    return frame(METHOD, _METHOD.pack(group, number) + arguments, channel)


# Requests.


def publish(queue: str, value: bytes) -> bytes:
    """One message, straight to a queue."""
    to = struct.pack(">H", 0) + short("") + short(queue) + b"\x00"
    header = struct.pack(">HHQ", 60, 0, len(value)) + _PERSISTENT
    return method(60, 40, to) + frame(HEADER, header) + frame(BODY, value)


def get(queue: str) -> bytes:
    """The next message, which is gone when it is sent."""
    return method(60, 70, struct.pack(">H", 0) + short(queue) + b"\x01")


def consume(queue: str, prefetch: int) -> bytes:
    """From now on messages, of which so many may be unacknowledged."""
    wanted = struct.pack(">H", 0) + short(queue) + short("") + b"\x08" + _long(b"")
    return method(60, 10, struct.pack(">IH?", 0, prefetch, False)) + method(60, 20, wanted)


def ack(tag: int) -> bytes:
    """This message and all before it are done."""
    return method(60, 80, struct.pack(">Q?", tag, True))


class Channel:
    """A connection whose every request waits for its answer; then its socket is for others."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._open()
        except BaseException:
            self.socket.close()
            raise

    def _open(self) -> None:
        self._call(PROTOCOL, method_id(10, 10))
        who = _long(b"") + short("PLAIN") + _long(b"\x00guest\x00guest") + short("en_US")
        tuned = self._call(method(10, 11, who, channel=0), method_id(10, 30))
        channels, size, _ = struct.unpack(">HIH", tuned)
        self.socket.sendall(method(10, 31, struct.pack(">HIH", channels, size, 0), channel=0))
        self._call(method(10, 40, short("/") + short("") + b"\x00", channel=0), method_id(10, 41))
        self._call(method(20, 10, short("")), method_id(20, 11))

    def close(self) -> None:
        self.socket.close()

    def confirm(self) -> None:
        """Let every message that is published be confirmed once it is stored."""
        self._call(method(85, 10, b"\x00"), method_id(85, 11))

    def declare(self, queue: str, *, is_passive: bool = False) -> int:
        """Make a quorum queue, or only look at it; how many messages wait in it."""
        kind = short("x-queue-type") + b"S" + _long(b"quorum")
        bits = bytes([2 | is_passive])  # it is durable
        wanted = struct.pack(">H", 0) + short(queue) + bits + _long(kind)
        told = self._call(method(50, 10, wanted), DECLARED)
        count: int = struct.unpack_from(">I", told, 1 + told[0])[0]
        return count

    def consume_one(self, queue: str) -> None:
        """Have the first message sent; the next one follows its acknowledgement."""
        self.socket.sendall(consume(queue, 1))
        while self._frame()[0] != BODY:
            pass

    def _frame(self) -> tuple[int, bytes]:
        kind, _, size = HEAD.unpack(self._receive(HEAD.size))
        return kind, self._receive(size + len(END))[:-1]

    def _call(self, request: bytes, answer: int) -> bytes:
        """The arguments of the method that answers."""
        self.socket.sendall(request)
        kind, payload = self._frame()
        found = int.from_bytes(payload[:4], "big")
        if kind != METHOD or found != answer:
            raise Refused(f"RabbitMQ answered {found >> 16}.{found & 0xFFFF}: {payload[4:200]!r}")
        return payload[4:]

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("RabbitMQ closed the connection")
            data += more
        return data
