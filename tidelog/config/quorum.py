"""Which nodes keep the cluster's metadata, as an option says it."""

from tidelog.errors import ConfigError
from tidelog.model import Endpoint, NodeId


def parse_quorum(text: str) -> dict[NodeId, Endpoint]:
    """`ID@HOST:PORT,...` as nodes with their addresses."""
    quorum: dict[NodeId, Endpoint] = {}
    for part in text.split(","):
        number, at, address = part.strip().partition("@")
        try:
            endpoint = Endpoint.parse(address)
        except ValueError:
            endpoint = None
        if not (at and number.isdecimal() and endpoint):
            raise ConfigError(f"--quorum: {part.strip()!r} is not ID@HOST:PORT, for example 1@10.0.0.1:9192")
        if int(number) in quorum:
            raise ConfigError(f"--quorum names node {number} twice")
        quorum[int(number)] = endpoint
    if len(quorum) % 2 == 0:
        raise ConfigError(
            f"--quorum names {len(quorum)} nodes; a quorum has 1, 3, 5 or 7: one more than an odd "
            "number survives no more failures"
        )
    if len(quorum) > 7:
        raise ConfigError("--quorum names more than 7 nodes; let the others follow: leave them out")
    return quorum
