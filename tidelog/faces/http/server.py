"""The HTTP connections of a node: the edge's, with the node's application and settings."""

from typing import TYPE_CHECKING

from tidelog.faces.http.app import make_app
from tidelog.faces.http.edge import server as edge
from tidelog.faces.http.pacing import Meter

if TYPE_CHECKING:
    from tidelog.faces.node import Node


class Server(edge.Server):
    """All HTTP connections of a node."""

    def __init__(self, node: "Node") -> None:
        broker = node.broker

        def limits() -> edge.Limits:
            config = broker.config
            return edge.Limits(
                connections=config.connections_max,
                message_bytes=config.http_max_body_bytes,
                silent_seconds=config.frame_timeout_ms / 1000,
                body_bytes=max(config.queued_max_bytes, config.http_max_body_bytes),
            )

        clock = broker.host.clock
        meter = Meter(clock.monotonic, has_others=node.is_asked_by_kafka, on_crowded=node.on_crowded)
        super().__init__(make_app(node), meter, limits=limits, wall_ms=clock.wall_ms)
