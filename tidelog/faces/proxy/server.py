"""The process of a proxy: from its first socket to its end."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import uvicorn

from tidelog.errors import ConfigError
from tidelog.faces.proxy.app import Proxy, make_app
from tidelog.faces.proxy.clusters import Cluster
from tidelog.faces.proxy.placing import Places
from tidelog.model import Endpoint

_log = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 5
BACKLOG: Final = 2048


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to us."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def run(
    clusters: Sequence[str],
    listen: Endpoint,
    *,
    slots: int,
    discover: bool,
    announce: Callable[[str], None],
) -> int:
    """Serve until SIGINT or SIGTERM; the exit code of the process."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(clusters, listen, slots, discover, announce))


async def _run(
    addresses: Sequence[str],
    listen: Endpoint,
    slots: int,
    discover: bool,
    announce: Callable[[str], None],
) -> int:
    places = Places(len(addresses), slots)
    clusters = [Cluster(n, one, discover=discover) for n, one in enumerate(addresses)]
    proxy = Proxy(clusters, places)
    listening = _listen(listen)
    server = _Server(
        uvicorn.Config(
            make_app(proxy), http="httptools", ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
    )  # fmt: skip
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    def stop() -> None:
        proxy.stopping.set()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await asyncio.gather(*(cluster.look() for cluster in clusters))
    for cluster in clusters:
        cluster.start()
    port = listening.getsockname()[1]
    announce(f"ready http={Endpoint(host=listen.host, port=port)} clusters={len(clusters)}")
    try:
        await server.serve(sockets=[listening])
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
