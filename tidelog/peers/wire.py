"""What crosses a connection between two nodes.

Rule 1: a connection begins with who is there: cluster, node and directory, both ways. What does
        not belong together parts at once, with a reason that a person can act on.
Rule 2: after that, requests, answers in any order, and one-way notes, all tagged msgpack.
Rule 3: a length is compared with the limit before memory is set aside; strangers get little.
Rule 4: bytes beside a message are neither packed nor copied: they follow it in the frame as they
        are, and whoever receives them gets a view of the frame.
"""

# connection := [greeting, challenge], hello, (welcome | refusal), frame*       see `handshake`
# frame      := size: int32, kind: uint8, number: uint32, message, [seal]      (big-endian)
# kind       := 0 a request, 1 its answer (same number), 2 a note (number 0), 3 a failed request,
#               4 an answer with data (same number)
# message    := head                                  of the kinds 0 to 3
#             | head_size: uint32, head, data         of kind 4; data is all that is left
# head       := msgpack map, whose "type" names it
# seal       := 16 bytes, behind a welcome that was proved

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from tidelog.errors import TidelogError
from tidelog.host import Bytes
from tidelog.model import NodeId

PROTOCOL: Final = 2
"""Raised when peers of both sides could misunderstand each other.

2: voters confirm the quorum's epoch before a lease is renewed, the active controller decides
in-sync sets, and followers promise where their logs will begin. A node of 1 answers none of these.
"""
UNSAID: Final = 1
"""What a node speaks that does not say it."""

HEADER: Final = struct.Struct(">iBI")
SIZE_COUNTED: Final = HEADER.size - 4
"""The part of the header that a frame's size counts."""

REQUEST: Final = 0
ANSWER: Final = 1
NOTE: Final = 2
FAILURE: Final = 3
DATA_ANSWER: Final = 4

HEAD_SIZE: Final = struct.Struct(">I")
DATA_HEADER: Final = struct.Struct(">iBII")
"""The header of a frame with data, and its head's size."""

STRANGER_BYTES_MAX: Final = 4 * 1024
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
SEAL_BYTES: Final = 16
JOINED_BYTES_MAX: Final = 4 * 1024
"""A buffer up to this size costs less to copy than to hand to the kernel by itself."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Anything that peers say to each other; the tag is the class's name."""


class Greeting(Message, frozen=True, kw_only=True, tag=True):
    """A node with the cluster's secret connects."""

    nonce: bytes
    ends: tuple[str, ...] = ()
    """The addresses of its own end and of the other, where both are of one machine's loopback."""


class Challenge(Message, frozen=True, kw_only=True, tag=True):
    """Prove that you have the secret."""

    nonce: bytes
    sealed: bool
    """Whether all that follows the welcome is sealed."""


class Hello(Message, frozen=True, kw_only=True, tag=True):
    """Who connects, and whom it wants to reach."""

    protocol: int = UNSAID
    cluster: str | None
    """None while the node does not belong to a cluster yet."""
    node: NodeId
    directory: str
    wanted: NodeId
    proof: bytes = b""


class Welcome(Message, frozen=True, kw_only=True, tag=True):
    """Who was reached."""

    cluster: str | None
    node: NodeId
    directory: str
    proof: bytes = b""


REFUSED: Final = "refused"
"""All that somebody without the secret is told."""


class Refusal(Message, frozen=True, kw_only=True, tag=True):
    """Why the two cannot talk."""

    reason: str


class Failure(Message, frozen=True, kw_only=True, tag=True):
    """The request could not be answered; nothing is known of its effect."""

    reason: str


class PeerRefused(TidelogError):
    """The other side does not belong here; the message says what to do."""


_encode = msgspec.msgpack.Encoder().encode
_greetings: "msgspec.msgpack.Decoder[Greeting | Hello]" = msgspec.msgpack.Decoder(Greeting | Hello)


def encode_frame(kind: int, number: int, message: msgspec.Struct, sealed: int = 0) -> list[Bytes]:
    """The buffers of one frame; whoever sends it adds `sealed` bytes."""
    body = _encode(message)
    return [HEADER.pack(SIZE_COUNTED + len(body) + sealed, kind, number), body]


def encode_data_frame(
    number: int, message: msgspec.Struct, buffers: Sequence[Bytes], sealed: int = 0
) -> list[Bytes]:
    """The buffers of one answer with data: small ones are joined, large ones are those given."""
    head = _encode(message)
    size = SIZE_COUNTED + HEAD_SIZE.size + len(head) + sum(map(len, buffers)) + sealed
    assert size <= FRAME_BYTES_MAX, f"an answer of {size} bytes, which no peer takes"
    pieces: list[Bytes] = []
    small: list[Bytes] = [DATA_HEADER.pack(size, DATA_ANSWER, number, len(head)), head]
    for buffer in buffers:
        if len(buffer) <= JOINED_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        pieces.append(buffer)
    if small:
        pieces.append(b"".join(small))
    return pieces


def split_frame(frame: memoryview) -> tuple[int, int, memoryview]:
    """Kind, number and message of a frame without its size; ValueError if it is too short."""
    if len(frame) < SIZE_COUNTED:
        raise ValueError(f"a frame of {len(frame)} bytes")
    return frame[0], int.from_bytes(frame[1:5], "big"), frame[SIZE_COUNTED:]


def split_data(message: memoryview) -> tuple[memoryview, memoryview]:
    """Head and data of an answer with data; ValueError if the head would be longer than both."""
    if len(message) < HEAD_SIZE.size:
        raise ValueError(f"an answer with data of {len(message)} bytes")
    head_size: int = HEAD_SIZE.unpack_from(message)[0]
    end = HEAD_SIZE.size + head_size
    if end > len(message):
        raise ValueError(f"a head of {head_size} bytes in an answer of {len(message)}")
    return message[HEAD_SIZE.size : end], message[end:]


def decode_greeting(message: memoryview) -> Greeting | Hello:
    """What a dialer says first."""
    return _greetings.decode(message)


def greeting_problem(hello: Hello, *, cluster: str | None, node: NodeId) -> str | None:
    """Say why a caller cannot be talked to, or None if it can."""
    if hello.protocol != PROTOCOL:
        return (
            f"node {hello.node} speaks protocol {hello.protocol} between nodes, node {node} speaks "
            f"{PROTOCOL}; run the same version of tidelog on both"
        )
    if hello.wanted != node:
        return (
            f"this address is node {node}, not node {hello.wanted}; correct the address of node "
            f"{hello.wanted} in --quorum, or in its own --peer"
        )
    if hello.node == node:
        return f"two nodes call themselves {node}; give one of them another --node-id and an empty --data"
    if hello.cluster is not None and cluster is not None and hello.cluster != cluster:
        return (
            f"node {hello.node} belongs to cluster {hello.cluster}, node {node} to cluster "
            f"{cluster}; start it with an empty --data, or point --quorum at its own cluster"
        )
    return None
