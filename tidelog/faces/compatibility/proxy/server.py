"""The process of a proxy: from its first socket to its end."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.errors import ConfigError
from tidelog.faces.compatibility.proxy.app import BODY_BYTES_MAX, Proxy, make_app
from tidelog.faces.compatibility.proxy.clusters import Cluster
from tidelog.faces.compatibility.proxy.placing import Places
from tidelog.faces.http.edge.server import Limits, Server
from tidelog.faces.http.pacing import Meter
from tidelog.model import Endpoint

_log = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 5
BACKLOG: Final = 2048
CONNECTIONS_MAX: Final = 10_000
BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
SILENT_SECONDS_MAX: Final = 30.0
"""For how long a client may be silent that has begun to say something, or has something to read."""


def run(
    clusters: Sequence[str], listen: Endpoint, *, slots: int, discover: bool, announce: Callable[[str], None]
) -> int:
    """Serve until SIGINT or SIGTERM; the exit code of the process."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(clusters, listen, slots, discover, announce))


async def _run(
    addresses: Sequence[str], listen: Endpoint, slots: int, discover: bool, announce: Callable[[str], None]
) -> int:
    places = Places(len(addresses), slots)
    clusters = [Cluster(n, one, discover=discover) for n, one in enumerate(addresses)]
    proxy = Proxy(clusters, places)
    listening = _listen(listen)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, proxy.stopping.set)
    await asyncio.gather(*(cluster.look() for cluster in clusters))
    for cluster in clusters:
        cluster.start()
    port = listening.getsockname()[1]
    announce(f"ready http={Endpoint(host=listen.host, port=port)} clusters={len(clusters)}")
    server = Server(
        make_app(proxy),
        Meter(has_others=lambda: False, always_tasks=True),
        limits=lambda: Limits(CONNECTIONS_MAX, BODY_BYTES_MAX, SILENT_SECONDS_MAX, BODIES_BYTES_MAX),
        wall_ms=lambda: time.time_ns() // 1_000_000,
    )
    try:
        accepting = await loop.create_server(server.connection, sock=listening, backlog=BACKLOG)
        await proxy.stopping.wait()
        accepting.close()
        server.close()
        await server.wait_closed(STOP_SECONDS_MAX)
    finally:
        await asyncio.gather(*(cluster.stop() for cluster in clusters))
    _log.info("stopped")
    return 0


def _listen(at: Endpoint) -> socket.socket:
    """A socket that clients can connect to from now on."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((at.host, at.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"--listen {at}: {error.strerror}") from None
    listening.setblocking(False)
    return listening
