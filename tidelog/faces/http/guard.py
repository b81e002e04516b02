"""What a request must show before anything is done for it: where it was sent, whose page it is of, who asks.

Rule 1: a request names the node by an address, or by a name that the node knows to be its own or
        `http.allowed.hosts` has. A page of anybody's whose name was made to point here names its own.
Rule 2: what changes something is not taken from a page of another origin, unless `http.cors.origins`
        names it: neither by its `Origin` nor by what its browser says of it.
Rule 3: who shows credentials is believed or refused, never taken for nobody. Where proof is wanted,
        nobody is served but those who ask whether the node is up.
"""

import asyncio
import base64
import binascii
import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidelog.config.setting import split_list
from tidelog.faces.http.edge.messages import Head
from tidelog.faces.http.problems import Problem
from tidelog.model import Endpoint
from tidelog.security.failures import AuthenticationFailed
from tidelog.security.principals import ANONYMOUS

if TYPE_CHECKING:
    from tidelog.faces.node import Node

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_TO_ALL: Final = frozenset({"/health/live", "/health/ready"})
"""What whoever runs nodes asks without credentials."""
FAILED_SECONDS: Final = 0.2
"""How long a failed proof waits for its answer: guessing takes time."""
CHALLENGE: Final = {"www-authenticate": 'Basic realm="tidelog", charset="UTF-8", Bearer realm="tidelog"'}
_OWN_PAGES: Final = (None, "same-origin", "none")
"""What browsers say of pages of ours, and of what somebody typed; older ones and programs say nothing."""


class Guard:
    """Lets requests of one node in."""

    def __init__(self, node: "Node") -> None:
        config = node.broker.config
        self._node = node
        self._hosts = _names_of(node)
        self._is_proof_wanted = config.http_security_protocol.startswith("SASL_")

    async def let_in(self, request: Head) -> None:
        """Say who asks, in the request; Problem if it may not come in."""
        first = request.headers.first
        host = first.get(b"host")
        if host is not None:
            self._check_host(host)
        if request.method not in SAFE:
            refuse_foreign_page(self._node, request)
        given = first.get(b"authorization")
        if given is not None:
            await self._prove(given, request)
        elif self._is_proof_wanted and request.principal == ANONYMOUS and request.path not in OPEN_TO_ALL:
            raise Problem(401, "say who asks: by a user and a password, or by a token", headers=CHALLENGE)

    # Where it was sent.

    def _check_host(self, sent: bytes) -> None:
        name = name_of_host(sent)
        if name is None or name in self._hosts or "*" in self._hosts:
            return
        for broker in self._node.broker.image.brokers.values() if self._node.broker.quorum else ():
            if broker.http is not None and broker.http.host.lower() == name:
                return
        raise Problem(
            421, f"this node does not call itself {name!r}; if clients should, add it to http.allowed.hosts"
        )

    # Who asks.

    async def _prove(self, given: bytes, request: Head) -> None:
        identities = self._node.identities
        try:
            scheme, _, credentials = given.decode("latin-1").strip().partition(" ")
            if scheme.lower() == "basic":
                name, password = _name_and_password(credentials)
                stored = identities.verifiers(name)
                request.principal = await identities.check_password(name, password, request.host)
                request.is_still_proved = lambda: identities.verifiers(name) == stored
            elif scheme.lower() == "bearer":
                token = credentials.strip()
                request.principal = (await identities.check_token(token)).principal
                request.is_still_proved = lambda: identities.token(token) is not None
            else:
                raise AuthenticationFailed("this node knows Basic and Bearer")
        except AuthenticationFailed as error:
            await asyncio.sleep(FAILED_SECONDS)
            raise Problem(401, str(error), headers=CHALLENGE) from None


def refuse_foreign_page(node: "Node", asked: Head) -> None:
    """Problem if a page asks that may not read our answers, where its browser would let it."""
    origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site")
    is_ours = origin is None or origin.partition("://")[2] == asked.headers.get("host")
    if is_ours and site in _OWN_PAGES:
        return
    allowed = split_list(node.broker.config.http_cors_origins)
    if origin not in allowed and "*" not in allowed:
        raise Problem(
            403,
            f"pages of {origin or 'elsewhere'!r} may not do that here; http.cors.origins has those that may",
        )


def _names_of(node: "Node") -> frozenset[str]:
    """What this node may be called, beside its addresses."""
    config = node.broker.config
    places = [config.http, config.kafka, config.kafka_advertised]
    names = {Endpoint.parse(place).host.lower() for place in places if place}
    names |= {one.advertised.host.lower() for one in config.listeners if one.advertised is not None}
    return frozenset({*names, *(name.lower() for name in split_list(config.http_allowed_hosts))})


@lru_cache(maxsize=256)
def name_of_host(sent: bytes) -> str | None:
    """The name that a Host header has; None if it is an address, or a name without a domain.

    Nobody can make a name that has no domain point elsewhere but whoever runs the client's machine.
    """
    text = sent.decode("latin-1").strip().lower()
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    else:
        host = text.partition(":")[0]
    host = host.removesuffix(".")
    if "." not in host and ":" not in host:
        return None
    if host.endswith(".localhost"):
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return None


def _name_and_password(credentials: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("Basic takes the base64 of USER:PASSWORD") from None
    if not (name and colon and password):
        raise AuthenticationFailed("the user or the password is wrong")
    return name, password
