"""How two nodes prove to each other that they have the cluster's secret.

    dialer    -> listener   Greeting    a nonce
    listener  -> dialer     Challenge   a nonce
    dialer    -> listener   Hello       who it is, whom it wants, and its proof
    listener  -> dialer     Welcome     who it is, and its proof; or Refusal, which says "refused"

Rule 1: nothing here reads a clock, draws a random number or sends; nonces come as arguments.
Rule 2: a proof covers all that both sides have said, and a label of the side that proves. So it is of use on
        no other connection (both nonces), for no other node (whom it wants), and not in the other direction.
Rule 3: the listener says nothing of itself before the dialer has proved, but a nonce.
Rule 4: after the handshake every frame is sealed (`Seal`): whoever sits between two nodes may pass on what
        they say, and cannot add, change, drop, repeat or reorder a frame without breaking the connection.
Rule 5: frames are not sealed only where both ends see the same two addresses of one machine's loopback: then
        nobody sits between them. The addresses are a part of what is proved.
"""

import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from tidelog.errors import TidelogError
from tidelog.host import Bytes
from tidelog.peers.wire import SEAL_BYTES, Challenge, Greeting, Hello, Welcome
from tidelog.security.secrets import Secret, prove

NONCE_BYTES: Final = 32
_DIALER: Final = b"tidelog peer dialer"
_LISTENER: Final = b"tidelog peer listener"
_FROM_DIALER: Final = b"tidelog frames of the dialer"
_FROM_LISTENER: Final = b"tidelog frames of the listener"
_COUNT: Final = struct.Struct(">Q")


class NotProved(TidelogError):
    """The other side does not have the cluster's secret, or is not who it says."""


@dataclass(frozen=True, slots=True)
class Trust:
    """By what this node believes its peers."""

    secret: Secret | None = None
    """None: whoever connects is believed."""
    is_optional: bool = False
    """Whether nodes without the secret are believed, too: while it comes to a running cluster."""

    def __post_init__(self) -> None:
        assert self.secret is not None or not self.is_optional, "only a secret can be optional"


@dataclass(frozen=True, slots=True)
class Ends:
    """The two addresses of a connection, as one side sees them."""

    own: str
    other: str


class Seal:
    """The seals of one direction: of each frame, by its place among them."""

    __slots__ = ("_count", "_hash")

    def __init__(self, key: bytes) -> None:
        self._hash = hmac.new(key, digestmod="sha256")
        self._count = 0

    def of(self, pieces: Iterable[Bytes]) -> bytes:
        """The seal of the next frame, which is `pieces` without its size."""
        sealing = self._hash.copy()
        sealing.update(_COUNT.pack(self._count))
        for piece in pieces:
            sealing.update(piece)
        self._count += 1
        return sealing.digest()[:SEAL_BYTES]

    def open(self, frame: memoryview) -> memoryview:
        """The next frame without the seal at its end; NotProved if that is another one."""
        content, seal = frame[:-SEAL_BYTES], frame[-SEAL_BYTES:]
        if not hmac.compare_digest(self.of([content]), seal):
            raise NotProved("a frame was changed on its way")
        return content


@dataclass(frozen=True, slots=True)
class Seals:
    """How one side seals what it sends, and opens what it gets."""

    sending: Seal
    receiving: Seal


class Dialer:
    """The side that connects."""

    def __init__(self, secret: Secret, nonce: bytes, ends: Ends | None) -> None:
        """`ends` are of the loopback of one machine; None elsewhere."""
        self._secret = secret
        self.greeting = Greeting(nonce=nonce, ends=() if ends is None else (ends.own, ends.other))
        self._said = b""

    def challenged(self, challenge: Challenge, hello: Hello) -> Hello:
        """`hello` with this side's proof."""
        if len(challenge.nonce) != NONCE_BYTES or not (challenge.sealed or self.greeting.ends):
            raise NotProved("it does not ask for a proof as a node would")
        self._said = _said(self.greeting, challenge, hello)
        self._sealed = challenge.sealed
        return msgspec.structs.replace(hello, proof=prove(self._secret.newest, _DIALER, self._said))

    def welcomed(self, welcome: Welcome) -> Seals | None:
        """How to go on with a listener that has proved itself; NotProved if it has not."""
        said = _said_at_last(self._said, welcome)
        key = self._secret.newest
        if not hmac.compare_digest(prove(key, _LISTENER, said), welcome.proof):
            raise NotProved("it does not have this cluster's secret")
        return _seals(key, said, _FROM_DIALER, _FROM_LISTENER) if self._sealed else None


class Doorkeeper:
    """The side that is connected to."""

    def __init__(self, secret: Secret, nonce: bytes, ends: Ends | None) -> None:
        self._secret = secret
        self._nonce = nonce
        self._ends = ends
        self._greeting: Greeting | None = None
        self._challenge: Challenge
        self._said = b""
        self._key: bytes | None = None

    def greeted(self, greeting: Greeting) -> Challenge:
        """What to ask a dialer."""
        if self._greeting is not None or len(greeting.nonce) != NONCE_BYTES:
            raise NotProved("it does not greet as a node would")
        self._greeting = greeting
        ends = self._ends
        is_direct = ends is not None and greeting.ends == (ends.other, ends.own)
        self._challenge = Challenge(nonce=self._nonce, sealed=not is_direct)
        return self._challenge

    def proved(self, hello: Hello) -> None:
        """The dialer has proved what it says in `hello`; NotProved if it has not."""
        if self._greeting is None:
            raise NotProved("it was not asked yet")
        self._said = _said(self._greeting, self._challenge, hello)
        self._key = self._secret.key_of(hello.proof, _DIALER, self._said)
        if self._key is None:
            raise NotProved("it does not have this cluster's secret")

    def welcoming(self, welcome: Welcome) -> tuple[Welcome, Seals | None]:
        """`welcome` with this side's proof, and how to go on behind it."""
        assert self._key is not None, "it has proved itself before it is welcome"
        said = _said_at_last(self._said, welcome)
        proved = msgspec.structs.replace(welcome, proof=prove(self._key, _LISTENER, said))
        if not self._challenge.sealed:
            return proved, None
        return proved, _seals(self._key, said, _FROM_LISTENER, _FROM_DIALER)


_encode = msgspec.msgpack.Encoder().encode


def _said(greeting: Greeting, challenge: Challenge, hello: Hello) -> bytes:
    return _encode(
        (
            greeting.nonce,
            greeting.ends,
            challenge.nonce,
            challenge.sealed,
            hello.protocol,
            hello.cluster,
            hello.node,
            hello.directory,
            hello.wanted,
        )
    )


def _said_at_last(said: bytes, welcome: Welcome) -> bytes:
    return _encode((said, welcome.cluster, welcome.node, welcome.directory))


def _seals(key: bytes, said: bytes, sending: bytes, receiving: bytes) -> Seals:
    return Seals(Seal(prove(key, sending, said)), Seal(prove(key, receiving, said)))
