"""The real node as the world runs it: a broker behind its Kafka listener, unchanged."""

from typing import Any, Final

from tidelog.config import NodeConfig
from tidelog.faces.node import Node
from tidelog.host import Host

KAFKA_PORT: Final = 9092
HTTP_PORT: Final = 8080
DATA: Final = "/srv/tidelog/data"
OWN: Final = "ops-"
"""How the names of topics and groups begin that only operators use."""


def node_config(number: int, **settings: Any) -> NodeConfig:
    # One story asks for HTTP; situations draw who keeps a reserve, of what size, and who scrubs.
    settings = {"http": "", "disk_reserve_bytes": 0, "scrub_bytes_per_second": 0, **settings}
    return NodeConfig(node_id=number, data=DATA, kafka=f"node-{number}:{KAFKA_PORT}", **settings)


def real_node(host: Host, number: int, **settings: Any) -> Node:
    """A node that clients reach at `node-<number>:9092`."""
    return Node(host, node_config(number, **settings))


def bootstrap(number: int) -> str:
    return f"node-{number}:{KAFKA_PORT}"


def http_of(number: int) -> str:
    """Where clients of HTTP reach it, in the story that has some."""
    return f"node-{number}:{HTTP_PORT}"


def peer_of(number: int) -> str:
    """Where other nodes reach it."""
    return f"node-{number}:9192"


def rack_of(number: int) -> str:
    """Where it stands, in the situations with racks."""
    return f"rack-{number}"
