"""What both drivers share of httpx: settings of its clients, and its failures as values."""

import re
import time
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from tidelog.client.http.core import Core, Settings
from tidelog.client.http.effects import Lost, Reply, Request
from tidelog.client.http.routes import Routes
from tidelog.client.security import Security, security_of, tls_of
from tidelog.errors import ConfigError
from tidelog.model import is_loopback

CONNECT_SECONDS_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 20
KEEP_ALIVE_SECONDS: Final = 30.0
"""Less than the minute after which a node closes a connection that nobody uses."""
DEFAULT_ADDRESS: Final = "http://127.0.0.1:8080"

_NUMBER: Final = re.compile(r"^\[Errno -?\d+\] ")
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)


def make_core(
    addresses: str | Sequence[str],
    settings: Settings,
    *,
    discover: bool,
    clock: Callable[[], float] | None,
    random: Callable[[], float] | None,
    new_key: Callable[[], str] | None = None,
) -> Core:
    """The decisions of a client; time, chance and Idempotency-Keys are the machine's, unless
    whoever simulates or tests gives others."""
    clock = clock or time.monotonic
    return Core(
        Routes(addresses, clock=clock, discover=discover),
        settings,
        clock=clock,
        random=random or Random().random,
        new_key=new_key or (lambda: str(uuid4())),
    )


def options(core: Core, connections_max: int, security: Security | None = None) -> dict[str, Any]:
    """How an httpx client is made. Proxies of the environment are not for a cluster's nodes."""
    limits = httpx.Limits(
        max_connections=connections_max,
        max_keepalive_connections=connections_max,
        keepalive_expiry=KEEP_ALIVE_SECONDS,
    )
    # Reading the certificates of the world takes longer than many a request.
    is_safe = core.routes.scheme == "https"
    found: dict[str, Any] = {
        "limits": limits,
        "trust_env": False,
        "follow_redirects": False,
        "verify": is_safe,
    }
    known = security or security_of("")
    if is_safe and (known.truststore or known.keystore):
        found["verify"] = tls_of(known)
    if (auth := _auth(known)) is not None:
        if known.has_tls and not is_safe and not all(map(_is_here, core.routes.given)):
            raise ConfigError(
                f"security.protocol is {known.protocol}, and the addresses are http://, which would show the "
                "password to the network; write https://"
            )
        found["auth"] = auth
    return found


def _is_here(origin: str) -> bool:
    return is_loopback(urlsplit(origin).hostname or "")


def _auth(security: Security) -> httpx.Auth | None:
    """What a request shows of who asks."""
    if security.token:
        return _Bearer(security.token)
    return httpx.BasicAuth(security.username, security.password) if security.username else None


class _Bearer(httpx.Auth):
    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = f"Bearer {self._token}"
        yield request


def timeout_of(request: Request) -> httpx.Timeout:
    seconds = request.seconds_max
    return httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX))


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    return Reply(status=response.status_code, headers=response.headers, body=body)


def lost_of(error: httpx.RequestError, request: Request) -> Lost:
    if isinstance(error, httpx.PoolTimeout):
        why = (
            f"every connection of this client was in use for {request.seconds_max:g} s; end "
            "streams that are not read, or give it a larger connections_max"
        )
        return Lost(why=why, was_sent=False, is_ours=True)
    if isinstance(error, httpx.ConnectTimeout):
        why = "it took too long to connect"
    elif isinstance(error, httpx.TimeoutException):
        why = f"there was no answer within {request.seconds_max:g} s"
    elif isinstance(error, httpx.RemoteProtocolError):
        words = str(error).rstrip(".") or "the answer was not HTTP"
        why = f"{words}; is this the http= address of the node's ready line?"
    else:
        why = _NUMBER.sub("", str(error)) or type(error).__name__
    return Lost(why=why, was_sent=not isinstance(error, _NEVER_SENT))
