"""Where Kafka clients may connect: the one listener of `kafka`, and those of `kafka.listeners`.

Rule 1: a listener has a name, and tells its clients the addresses of listeners of that name.
Rule 2: the listener of `kafka` has no name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.errors import ConfigError
from tidelog.model import Endpoint

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")

NAME: Final = r"[a-z][a-z0-9-]{0,31}"
LISTENER: Final = rf"{NAME}={'|'.join(PROTOCOLS).join('()')}://[^,\s]+"
ADVERTISED: Final = rf"{NAME}=[^,=\s]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One place where Kafka clients connect."""

    name: str
    protocol: str
    at: Endpoint
    advertised: Endpoint | None = None
    """Where clients are told to connect, if elsewhere."""

    @property
    def has_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)


def parse_listeners(words: Iterable[str], advertised: Iterable[str]) -> list[Listener]:
    """The listeners of `kafka.listeners` with the addresses of `kafka.listeners.advertised`."""
    told: dict[str, Endpoint] = {}
    for word in advertised:
        name, _, at = word.partition("=")
        told[name] = _endpoint("kafka.listeners.advertised", word, at)
    found: dict[str, Listener] = {}
    for word in words:
        name, _, url = word.partition("=")
        protocol, _, at = url.partition("://")
        if name in found:
            raise ConfigError(f"kafka.listeners has two listeners named {name}; give each a name of its own")
        place = _endpoint("kafka.listeners", word, at)
        found[name] = Listener(name=name, protocol=protocol, at=place, advertised=told.pop(name, None))
    for name in told:
        raise ConfigError(f"kafka.listeners.advertised names {name}, which is not in kafka.listeners")
    return list(found.values())


def _endpoint(setting: str, word: str, text: str) -> Endpoint:
    try:
        return Endpoint.parse(text)
    except ValueError as error:
        raise ConfigError(f"{setting} has {word!r}: {error}") from None
