"""SASL: one exchange of messages by which a client proves who it is.

Rule 1: an exchange takes the client's messages and says what comes of each: a `Challenge` to send,
        a `Proved` principal, or a question that takes long to answer (`CheckPassword`,
        `CheckToken`), whose outcome is handed back. Whatever else comes is AuthenticationFailed.
Rule 2: after `Proved` or AuthenticationFailed an exchange takes nothing more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tidelog.security.failures import AuthenticationFailed
from tidelog.security.principals import NAME_CHARACTERS_MAX, USER, Principal
from tidelog.security.scram import HASHES, PASSWORD_BYTES_MAX, ScramServer, Verifier

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*HASHES, PLAIN, OAUTHBEARER)
"""All that there are; a node offers those of `sasl.enabled.mechanisms`."""
MESSAGE_BYTES_MAX: Final = 64 * 1024
"""A token with many claims is the longest."""

_BEARER: Final = b"auth=bearer "


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send this, and wait for the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Proved:
    """The client is who it says; send `data` as the last message."""

    principal: Principal
    data: bytes = b""
    expires_ms: int | None = None
    """When what was proved ends, by the wall clock; None: never."""


@dataclass(frozen=True, slots=True)
class CheckPassword:
    """Is this the user's password?"""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"CheckPassword({self.name!r})"


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Whose token is this, and until when?"""

    token: str

    def __repr__(self) -> str:
        return "CheckToken()"


Step: TypeAlias = Challenge | Proved | CheckPassword | CheckToken


class Exchange(Protocol):
    """One exchange of one mechanism."""

    def step(self, message: bytes) -> Step: ...


class PlainExchange:
    """PLAIN (RFC 4616): the password itself, so only where nobody listens."""

    def step(self, message: bytes) -> Step:
        try:
            authorization, name, password = message.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise AuthenticationFailed("PLAIN has three fields of UTF-8") from None
        if authorization not in ("", name):
            raise AuthenticationFailed("nobody may act for another here")
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or not 0 < len(password) <= PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("the user or the password is wrong")
        return CheckPassword(name, password)


class ScramExchange:
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802)."""

    def __init__(self, server: ScramServer) -> None:
        self._server = server
        self._has_begun = False

    def step(self, message: bytes) -> Step:
        if not self._has_begun:
            self._has_begun = True
            return Challenge(self._server.first(message))
        data = self._server.final(message)
        return Proved(Principal(USER, self._server.name), data)


class BearerExchange:
    """OAUTHBEARER (RFC 7628): a token that somebody signed whom the operator trusts."""

    def step(self, message: bytes) -> Step:
        header, *pairs = message.split(b"\x01")
        tokens = [pair[len(_BEARER) :] for pair in pairs if pair[: len(_BEARER)].lower() == _BEARER]
        if header != b"n,," or pairs[-2:] != [b"", b""] or len(tokens) != 1 or not tokens[0].isascii():
            raise AuthenticationFailed("this is no message of OAUTHBEARER")
        return CheckToken(tokens[0].decode().strip())


def begin(
    mechanism: str,
    *,
    nonce: Callable[[], str],
    verifiers: Callable[[str], Mapping[str, Verifier]],
    secret: bytes,
) -> Exchange:
    """A new exchange. `verifiers` are those of a user, by mechanism; none if there is no such user."""
    if mechanism == PLAIN:
        return PlainExchange()
    if mechanism == OAUTHBEARER:
        return BearerExchange()
    kind = HASHES[mechanism]
    return ScramExchange(
        ScramServer(kind, nonce=nonce(), find=lambda name: verifiers(name).get(mechanism), secret=secret)
    )
