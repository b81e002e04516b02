"""Who asks, and where the answer goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.errors import BrokerError
from tidelog.host import Bytes
from tidelog.kafka.permissions import ALL_OF, NEEDS, OPERATION_CODES
from tidelog.security.authorizer import Access, Authorizer, host_of, refusal
from tidelog.security.permissions import CLUSTER_NAME, OPERATIONS_OF, Kind
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
    listener: str = ""
    """The name of the listener that it came to."""
    principal: Principal = ANONYMOUS
    sasl: "SaslSession | None" = None
    """What it has proved by SASL; None where its listener asks for no such proof."""
    access: Access | None = None
    """What it may do, by what was found so far."""
    software: str = ""
    """The library and its version, as the client said with ApiVersions (KIP-511)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a handler knows of a request beside its body."""

    api: Api
    version: int
    client: Client
    client_id: str | None

    @property
    def access(self) -> Access:
        """What the client may do; there since the request passed `judge`."""
        access = self.client.access
        assert access is not None, "a request is judged before it is handled"
        return access

    def require(self, kind: Kind, name: str = CLUSTER_NAME) -> None:
        """Let the client do what this API does to such a resource, or raise the error that it gets."""
        self.access.require(NEEDS[self.api][kind], kind, name)

    def may(self, kind: Kind, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may do what this API does to such a resource."""
        return self.access.may(NEEDS[self.api][kind], kind, name)

    def refusal(self, kind: Kind, name: str) -> BrokerError:
        """Why the client may not do what it asks for."""
        return refusal(self.access.principal, NEEDS[self.api][kind], kind, name)

    def operations(self, kind: Kind, name: str = CLUSTER_NAME) -> int:
        """All that the client may do to the resource, as an answer writes it."""
        if not self.access.is_judged:
            return ALL_OF[kind]
        allowed = (one for one in OPERATIONS_OF[kind] if self.access.may(one, kind, name))
        return sum(1 << OPERATION_CODES[one] for one in allowed)


def judge(client: Client, authorizer: Authorizer) -> Access:
    """What the client may do, as whoever it has proved to be by now.

    Every request on the Kafka port passes here before its body is read.
    """
    access = client.access
    if access is None or access.principal is not client.principal:
        host = host_of(client.address.rpartition(":")[0])
        access = client.access = authorizer.access(client.principal, host)
    return access
