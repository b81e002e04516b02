"""Who asks, and where the answer goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.host import Bytes
from tidelog.security.principals import ANONYMOUS, Principal
from tidelog.wire.apis import Api

if TYPE_CHECKING:
    from tidelog.kafka.sasl import SaslSession


class Reply(Protocol):
    """The place of one answer on its connection. Exactly one of these is called, once."""

    def send(self, body: Sequence[Bytes]) -> None:
        """Answer with `body`, to which the connection adds the header."""
        ...

    def skip(self) -> None:
        """There is no answer to this request (acks=0)."""
        ...

    def refuse(self, reason: str) -> None:
        """Close the connection: nothing that could be answered would be understood."""
        ...

    def on_gone(self, call: Callable[[], None]) -> None:
        """Call `call` if the client goes away before it is answered."""
        ...


@dataclass(slots=True, kw_only=True)
class Client:
    """Who is at the other end of a connection."""

    address: str
    principal: Principal = ANONYMOUS
    sasl: "SaslSession | None" = None
    """What it has proved by SASL; None where its listener asks for no such proof."""
    software: str = ""
    """The library and its version, as the client said with ApiVersions (KIP-511)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a handler knows of a request beside its body."""

    api: Api
    version: int
    client: Client
    client_id: str | None


def authorize(client: Client, api: Api) -> None:
    """Let the request pass, or raise the error that its sender gets.

    Every request on the Kafka port passes here before its body is read; HTTP requests do not. It allows
    everything: there is no access control.
    """
