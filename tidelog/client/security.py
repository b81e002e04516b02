"""What a client proves, and whom it believes: Kafka's client properties, from options or a file.

Rule 1: the names are those of Kafka's clients, so that one file serves them all.
Rule 2: a secret is in a file or in an option of a program, never on a command line; it is in no `repr`.
Rule 3: what is not understood is an error: a misspelt property must not turn a proof off.
"""

import os
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self, TypeAlias

from tidelog.errors import ConfigError
from tidelog.security.scram import HASHES, ScramClient

CLIENT_CONFIG: Final = "TIDELOG_CLIENT_CONFIG"
"""The environment variable that names a file of properties."""
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*HASHES, PLAIN, OAUTHBEARER)
PROPERTIES: Final = {
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "sasl.token": "token",
    "ssl.truststore.location": "truststore",
    "ssl.ca.location": "truststore",
    "ssl.keystore.location": "keystore",
    "ssl.keystore.key": "key",
}
"""Each property that is taken, and what it is here."""
JAAS: Final = "sasl.jaas.config"
IGNORED: Final = frozenset({"bootstrap.servers", "client.id"})
"""What files of properties have beside, and that says nothing of who asks."""
ONLY: Final = {
    "ssl.truststore.type": "pem",
    "ssl.keystore.type": "pem",
    "ssl.endpoint.identification.algorithm": "https",
}
"""Properties that can have one value here."""

_MODULE: Final = re.compile(
    r"\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL
)
_OPTION: Final = re.compile(r"""\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")
_MODULES: Final = ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a client connects."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    truststore: str = ""
    """PEM file with the authorities that sign the nodes' certificates; those of the machine if empty."""
    keystore: str = ""
    """PEM file with this client's certificate, and its key unless `key` has it."""
    key: str = ""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(
                f"security.protocol is {self.protocol!r}; it must be one of {', '.join(PROTOCOLS)}"
            )
        if not self.has_sasl:
            return
        if self.mechanism not in MECHANISMS:
            known = ", ".join(MECHANISMS)
            raise ConfigError(f"sasl.mechanism is {self.mechanism!r}; it must be one of {known}")
        if self.mechanism == OAUTHBEARER:
            if not self.token:
                raise ConfigError("sasl.token must be set for OAUTHBEARER")
        elif not (self.username and self.password):
            raise ConfigError("sasl.username and sasl.password must be set, or sasl.jaas.config")

    @property
    def has_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def context(self) -> ssl.SSLContext | None:
        """For connections; None without TLS. ConfigError if the files make none."""
        return tls_of(self) if self.has_tls else None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """What client properties say; names are compared without case."""
        found: dict[str, str] = {}
        for name, value in properties.items():
            lower = name.lower()
            if lower == JAAS:
                found |= parse_jaas(value)
            elif lower in PROPERTIES:
                found[PROPERTIES[lower]] = value.strip() if lower != "sasl.password" else value
            elif lower in ONLY:
                if value.strip().lower() != ONLY[lower]:
                    raise ConfigError(f"{name} is {value!r}; it must be {ONLY[lower]}")
            elif lower not in IGNORED:
                known = ", ".join((*PROPERTIES, JAAS))
                raise ConfigError(f"{name} is no property of a client here; there are {known}")
        for name in ("protocol", "mechanism"):
            if name in found:
                found[name] = found[name].upper()
        return cls(**found)


PLAINTEXT: Final = Security()

Say: TypeAlias = Callable[[bytes], Awaitable[tuple[bytes, int]]]
"""Sends a message of an exchange; the node's answer, and for how many ms the session lasts (0: no end)."""


async def prove(security: Security, say: Say) -> int:
    """Prove who asks, message by message; for how many ms that holds (0: no end)."""
    if security.mechanism == PLAIN:
        _, lifetime_ms = await say(f"\0{security.username}\0{security.password}".encode())
    elif security.mechanism == OAUTHBEARER:
        _, lifetime_ms = await say(f"n,,\x01auth=Bearer {security.token}\x01\x01".encode())
    else:
        kind = HASHES[security.mechanism]
        scram = ScramClient(kind, security.username, security.password, nonce=secrets.token_hex(16))
        challenge, _ = await say(scram.first())
        answer, lifetime_ms = await say(scram.final(challenge))
        scram.check(answer)
    return lifetime_ms


class Servers(str):
    """Addresses of a cluster, as text, and how to connect there; its text has no secret.

    Equal texts are equal, whatever their security.
    """

    security: Security

    def __new__(cls, text: str, security: Security) -> Self:
        found = super().__new__(cls, text)
        found.security = security
        return found

    def __reduce__(self) -> tuple[type["Servers"], tuple[str, Security]]:
        return Servers, (str(self), self.security)


def servers_of(text: str, options: Mapping[str, str]) -> str:
    """The servers with what options of Spark's Kafka source say (`kafka.sasl.mechanism`), or the environment.

    The names of the options are in lower case.
    """
    properties = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl."))
    }
    return Servers(text, Security.of(properties)) if properties else resolved(text)


def resolved(servers: str) -> str:
    """The servers with what the environment says of how to connect; other machines have another one."""
    found = security_of(servers)
    return servers if found == PLAINTEXT else Servers(servers, found)


def security_of(servers: str) -> Security:
    """How to connect to these servers: as they say, or the environment, or else in the plain way."""
    if isinstance(servers, Servers):
        return servers.security
    path = os.environ.get(CLIENT_CONFIG, "")
    return read_properties(path) if path else Security()


@lru_cache(maxsize=8)
def read_properties(path: str) -> Security:
    """What a file of client properties says."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{CLIENT_CONFIG}: cannot read {path}: {error}") from None
    properties = {}
    for line in lines:
        if line and line[0] not in "#!":
            name, equals, value = line.partition("=")
            if not equals:
                raise ConfigError(f"{CLIENT_CONFIG}: {path} has a line that is not NAME=VALUE")
            properties[name.strip()] = value.strip()
    try:
        return Security.of(properties)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_jaas(text: str) -> dict[str, str]:
    """The user and the password in a `sasl.jaas.config`."""
    found = _MODULE.fullmatch(text)
    if found is None or found[1].rpartition(".")[2] not in _MODULES:
        raise ConfigError(
            f"sasl.jaas.config must name one of {', '.join(_MODULES)}, then `required` and options"
        )
    options = {}
    at, rest = 0, found[2]
    while at < len(rest) and (one := _OPTION.match(rest, at)) is not None:
        name, double, single, bare = one.groups()
        options[name] = re.sub(r"\\(.)", r"\1", double) if double is not None else (single or bare or "")
        at = one.end()
    if rest[at:].strip():
        raise ConfigError('sasl.jaas.config: options are written as NAME="VALUE"')
    return {name: options[name] for name in ("username", "password", "token") if name in options}


def tls_of(security: Security) -> ssl.SSLContext:
    """For connections over TLS, whatever the protocol of Kafka's clients is."""
    return _context(security.truststore, security.keystore, security.key)


@lru_cache(maxsize=32)
def _context(truststore: str, keystore: str, key: str) -> ssl.SSLContext:
    """Made once for all connections: to read the authorities takes longer than to connect."""
    try:
        context = ssl.create_default_context(cafile=truststore or None)
    except OSError as error:
        raise ConfigError(
            f"ssl.truststore.location: {truststore} holds no certificates as PEM ({error})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if keystore:
        try:
            context.load_cert_chain(keystore, key or None, password=lambda: "")
        except OSError as error:
            raise ConfigError(
                f"ssl.keystore.location: {keystore} holds no certificate with its key as PEM ({error})"
            ) from None
    return context
