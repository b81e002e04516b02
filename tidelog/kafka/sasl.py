"""SaslHandshake and SaslAuthenticate: what one connection has proved, and what it may ask until then.

Rule 1: a connection on a listener that wants proof is served nothing but ApiVersions, SaslHandshake
        and SaslAuthenticate until it has proved who it is. A proof that failed closes it.
Rule 2: a proof may be repeated on the same connection (KIP-368), for the same principal. Once the
        session's time is over, nothing else is served.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from tidelog.broker.broker import Broker
from tidelog.kafka.context import Client, Request
from tidelog.security import sasl
from tidelog.security.failures import AuthenticationFailed, IllegalSaslState, UnsupportedMechanism
from tidelog.security.principals import Principal
from tidelog.security.sasl import Challenge, CheckPassword, CheckToken, Exchange, Proved
from tidelog.security.scram import Verifier
from tidelog.wire.apis import Api

AUTHENTICATION_SECONDS_MAX: Final = 10.0
"""For how long a connection may be without a proof, where one is wanted."""
UNPROVED_BYTES_MAX: Final = 64 * 1024
"""The longest request until then."""
FAILED_SECONDS: Final = 0.2
"""How long a failed proof waits for its answer: guessing takes time."""
SESSION_MS_MAX: Final = 30 * 24 * 60 * 60 * 1000
"""The longest session that has an end; a token may hold for longer than an answer can say."""
_BEFORE: Final = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})


class Identities(Protocol):
    """Who knows users, and what is slow to find out about them."""

    @property
    def mechanisms(self) -> list[str]: ...
    @property
    def session_ms_max(self) -> int: ...

    def verifiers(self, name: str) -> Mapping[str, Verifier]: ...
    def salts_secret(self) -> bytes: ...
    def nonce(self) -> str: ...
    def wall_ms(self) -> int: ...
    async def check_password(self, name: str, password: str, host: str) -> Principal: ...
    async def check_token(self, token: str) -> Proved: ...


class SaslSession:
    """The proofs of one connection.

    Invariant: `principal` is set exactly once the first exchange has ended well, and never changes.
    """

    def __init__(self, identities: Identities, clock: Callable[[], float]) -> None:
        self._identities = identities
        self._clock = clock
        self._exchange: Exchange | None = None
        self._ends_at: float | None = None
        self._deadline = clock() + AUTHENTICATION_SECONDS_MAX
        self.mechanism = ""
        self.principal: Principal | None = None
        self.has_failed = False
        """Whether nothing more is served here."""

    def admits(self, api: Api) -> bool:
        """Whether a request of this API may be looked at."""
        if self.has_failed:
            return False
        if api in _BEFORE:
            return True
        is_over = self._ends_at is not None and self._clock() >= self._ends_at
        return self.principal is not None and not is_over and self._exchange is None

    @property
    def offered(self) -> list[str]:
        """The mechanisms that a client may choose from."""
        return self._identities.mechanisms

    @property
    def is_overdue(self) -> bool:
        """Whether its time to prove something is over."""
        return self.principal is None and self._clock() >= self._deadline

    def handshake(self, mechanism: str) -> None:
        """Begin a proof; the error that the client gets, if that cannot be."""
        if self._exchange is not None:
            self.has_failed = True
            raise IllegalSaslState("an exchange is under way")
        if mechanism not in self._identities.mechanisms:
            self.has_failed = True
            offered = ", ".join(self._identities.mechanisms)
            raise UnsupportedMechanism(f"this node offers {offered}, not {mechanism[:100]!r}")
        if self.principal is not None and mechanism != self.mechanism:
            self.has_failed = True
            raise IllegalSaslState(f"this connection proved itself by {self.mechanism}")
        self.mechanism = mechanism
        identities = self._identities
        self._exchange = sasl.begin(
            mechanism,
            nonce=identities.nonce,
            verifiers=identities.verifiers,
            secret=identities.salts_secret(),
        )

    async def authenticate(self, message: bytes, host: str) -> tuple[bytes, int]:
        """Take a message from this host; what to send, and for how many ms the session lasts (0: no end)."""
        exchange = self._exchange
        if exchange is None:
            self.has_failed = True
            raise IllegalSaslState("SaslHandshake comes first")
        try:
            step = exchange.step(message)
            if isinstance(step, Challenge):
                return step.data, 0
            if isinstance(step, CheckPassword):
                step = Proved(await self._identities.check_password(step.name, step.password, host))
            elif isinstance(step, CheckToken):
                step = await self._identities.check_token(step.token)
            if self.principal not in (None, step.principal):
                raise AuthenticationFailed("a connection stays with whom it began with")
        except BaseException:
            self.has_failed = True
            raise
        self._exchange = None
        self.principal = step.principal
        return step.data, self._begin_session(step.expires_ms)

    def _begin_session(self, expires_ms: int | None) -> int:
        limits = [self._identities.session_ms_max] if self._identities.session_ms_max else []
        if expires_ms is not None:
            limits.append(max(expires_ms - self._identities.wall_ms(), 1))
        lifetime = min(*limits, SESSION_MS_MAX) if limits else 0
        self._ends_at = self._clock() + lifetime / 1000 if lifetime else None
        return lifetime


def sasl_handshake(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Choose a mechanism; the answer lists those that there are."""
    session = context.client.sasl
    if session is None:
        error = IllegalSaslState("this listener asks for no proof")
        return {"error_code": error.code, "mechanisms": []}
    code = 0
    try:
        session.handshake(request.mechanism)
    except (IllegalSaslState, UnsupportedMechanism) as refusal:
        code = refusal.code
    return {"error_code": code, "mechanisms": session.offered}


async def sasl_authenticate(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """One message of an exchange, and the one that follows it."""
    session = context.client.sasl
    if session is None:
        raise IllegalSaslState("this listener asks for no proof")
    try:
        host = context.client.address.rpartition(":")[0]
        data, lifetime_ms = await session.authenticate(bytes(request.auth_bytes), host)
    except (AuthenticationFailed, IllegalSaslState):
        await asyncio.sleep(FAILED_SECONDS)
        raise
    if session.principal is not None:
        context.client.principal = session.principal
    return {"error_message": None, "auth_bytes": data, "session_lifetime": lifetime_ms}


def refuses(client: Client, api: Api) -> bool:
    """Whether a request is not even looked at, since its sender has not proved who it is."""
    return client.sasl is not None and not client.sasl.admits(api)
