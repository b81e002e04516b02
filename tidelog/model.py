"""Names and values that every room shares.

Rule 1: nothing here imports another module of the project.
Rule 2: every value is frozen; a change makes a new value.
"""

import ipaddress
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

NodeId: TypeAlias = int
Offset: TypeAlias = int
Epoch: TypeAlias = int
ProducerId: TypeAlias = int

NO_NODE: Final = -1
NO_EPOCH: Final[Epoch] = -1
NO_OFFSET: Final[Offset] = -1
NO_PRODUCER: Final[ProducerId] = -1
NO_SEQUENCE: Final = -1
ONCE_PRODUCER_MIN: Final[ProducerId] = 2**62
"""From here on producer ids are not granted: each is made of the Idempotency-Key of one request."""
NO_TIMESTAMP: Final = -1

TOPIC_NAME_MAX: Final = 249
"""Kafka's limit: the name, a dash and a partition number must fit a file name of 255 bytes."""

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka reserves this id for the metadata log."""

OFFSETS_TOPIC: Final = "__consumer_offsets"

TRANSACTIONS_TOPIC: Final = "__transaction_state"

QUEUES_TOPIC: Final = "__queues"

INTERNAL_TOPICS: Final = frozenset({METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, QUEUES_TOPIC})


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a listener can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> "Endpoint":
        """Read `host:port` or `[v6]:port`; raise ValueError with the form that was expected."""
        host, colon, port = text.strip().rpartition(":")
        if not colon and default_port is not None:
            return cls(host=text.strip(), port=default_port)
        bare = host.removeprefix("[").removesuffix("]")
        is_number = port.isascii() and port.isdecimal() and int(port) <= 65535
        if not colon or not bare or not is_number or (":" in bare and bare == host):
            raise ValueError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:9092")
        return cls(host=bare, port=int(port))


def is_loopback(host: str) -> bool:
    """Whether a listener on `host` can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def topic_name_problem(name: str) -> str | None:
    """Say why `name` cannot be a topic's name, or None if it can."""
    if not name:
        return "a topic's name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > TOPIC_NAME_MAX:
        return f"a topic's name has at most {TOPIC_NAME_MAX} characters; this one has {len(name)}"
    if not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        return f"{name!r} may hold only letters, digits, '.', '_' and '-'"
    return None
