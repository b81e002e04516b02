"""A whole node: the broker and its faces, from start to a clean stop."""

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.broker.broker import Broker
from tidelog.config import NodeConfig
from tidelog.config.listeners import Listener
from tidelog.errors import ConfigError, TidelogError
from tidelog.faces.first_user import add_first_user, parse_first_user
from tidelog.faces.http.health import why_not_ready
from tidelog.faces.http.listener import HttpListener
from tidelog.faces.identities import Identities
from tidelog.faces.kafka import KafkaListener
from tidelog.faces.notify import notifier
from tidelog.faces.tls import Certificates
from tidelog.host import Host, allow_many_files, keep_files_private, keep_memory, system_host
from tidelog.kafka.requests import Requests
from tidelog.model import Endpoint
from tidelog.operators.desk import Desk
from tidelog.services.services import Services

_log = logging.getLogger(__name__)

EXIT_DISK_FAILED = 74
"""As EX_IOERR of sysexits: the supervisor may start the node again; it will recover."""


ASKED_SECONDS: Final = 0.1
"""For how long after a request of a Kafka client the next one is expected."""
SERVING: Final = "serving"
"""What a supervisor is told of a node that waits for nothing."""
_TELL_SECONDS: Final = 0.2
_WILDCARDS = ("0.0.0.0", "::", "")


class CannotListen(TidelogError):
    """An address is taken or not this machine's; choose another."""


class Node:
    """One broker with its listeners."""

    def __init__(self, host: Host, config: NodeConfig) -> None:
        self.config = config
        self.failure: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.stop_wanted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broker = Broker(host, config, self._on_fatal)
        self.broker.on_stop_asked = self.want_stop
        self.is_serving = False
        """Whether Kafka clients are served: from the end of a start to the beginning of a stop."""
        self.is_stopping = False
        self.on_crowded: Callable[[bool], None] = lambda is_crowded: None
        """Hears when HTTP begins to keep the loop busy, and when it ends; set before a start."""
        self.services: Services
        """There once the broker has opened, before anybody is served."""
        self.desk = Desk(self.broker)
        self.identities = Identities(self.broker)
        self._host = host
        self._listeners: list[KafkaListener] = []
        self._certificates: Certificates | None = None
        self._http: HttpListener | None = None

    @property
    def kafka(self) -> Endpoint:
        """Where Kafka clients connect."""
        return self.broker.endpoint

    @property
    def http(self) -> Endpoint | None:
        """Where HTTP clients connect; None if they cannot."""
        return self.config.http_endpoint

    def is_asked_by_kafka(self) -> bool:
        """Whether a client of Kafka asked for something just now."""
        now = asyncio.get_running_loop().time()
        return any(now - one.heard_at < ASKED_SECONDS for one in self._listeners)

    async def start(self) -> None:
        if self.config.has_tls:
            self._certificates = Certificates(self._host, self.config)
            self._certificates.watch()
        await self._start_http()  # first: it tells what a start is waiting for
        try:
            await self._start()
        except BaseException:
            if self._http is not None:
                self._http.close()
            self._forget_certificates()
            raise

    def _forget_certificates(self) -> None:
        if self._certificates is not None:
            self._certificates.close()

    async def _start_http(self) -> None:
        """Serve HTTP where it was asked for; at the default, unless somebody else is there."""
        at, bound = self.config.http_endpoint, None
        if at is not None:
            tls = self._certificates if self.config.http_has_tls else None
            http = HttpListener(self._host, self, certificates=tls)
            try:
                bound = await http.start(at)
            except OSError as error:
                if self.config.http_chosen:
                    raise CannotListen(
                        f"cannot listen on {at} ({error.strerror or error}); choose another --http"
                    ) from error
                _log.warning(
                    "no HTTP: cannot listen on %s (%s); choose another place with --http",
                    at,
                    error.strerror or error,
                )
            else:
                self._http = http
                host = self.broker.advertised.host if at.host in _WILDCARDS else at.host
                self.broker.http = Endpoint(host=host, port=bound.port)
        # What the node says of its settings is what came of them.
        self.config = replace(self.config, http=str(bound or ""))
        self.broker.config = self.broker.started_with = self.config

    async def _start(self) -> None:
        try:
            await self.broker.open()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
            raise CannotListen(
                f"cannot listen to peers on {self.config.peer_endpoint} "
                f"({error.strerror or error}); choose another --peer"
            ) from error
        requests = Requests(self.broker)
        self.services = Services(self.broker)
        requests.perform = self.desk.perform_json
        self.desk.open(requests)
        # Before the cluster is told of them. Whoever connects now waits until all is served.
        for known in self.config.listeners:
            await self._listen(requests, known)
        await self.broker.begin()
        for listener in self._listeners:
            listener.open()
        self.is_serving = True
        if self.config.first_user:
            self.broker.spawn(add_first_user(self.broker, *parse_first_user(self.config.first_user)))

    async def _listen(self, requests: Requests, known: Listener) -> None:
        """Open one listener of Kafka clients, who wait."""
        listener = KafkaListener(
            self._host,
            requests,
            name=known.name,
            identities=self.identities if known.has_sasl else None,
            certificates=self._certificates if known.has_tls else None,
            intake=self._listeners[0].intake if self._listeners else None,
            is_open=False,
        )
        try:
            bound = await listener.start(known.at)
        except OSError as error:
            for other in self._listeners:
                other.close()
            await self.broker.abandon()
            setting = f"kafka.listeners ({known.name})" if known.name else "--kafka"
            raise CannotListen(
                f"cannot listen on {known.at} ({error.strerror or error}); choose another {setting}"
            ) from error
        self._listeners.append(listener)
        if known.name:
            self.broker.listeners[known.name] = known.advertised or bound
        else:
            self.broker.endpoint = bound
        if known.at.host in _WILDCARDS and known.advertised is None:
            _log.warning(
                "clients elsewhere will be told to connect to %s; set %s to an address that reaches this "
                "node",
                bound,
                f"kafka.listeners.advertised ({known.name})" if known.name else "kafka.advertised",
            )

    async def stop(self) -> None:
        """Answer what was begun, let the clients go, and leave a clean directory."""
        self.is_stopping, self.is_serving = True, False
        for listener in self._listeners:
            listener.close()
        if self._http is not None:
            self._http.end_streams()
        if self.failure.done():
            await self.broker.abandon()
        else:
            await self.broker.finish_writes()
        for listener in self._listeners:
            await listener.stop()
        if not self.failure.done():
            await self.broker.stop()
        if self._http is not None:
            await self._http.stop()
        self._forget_certificates()

    def want_stop(self) -> None:
        """Somebody wants this node to stop in order: a signal, or a request."""
        if not self.stop_wanted.done():
            self.stop_wanted.set_result(None)

    def _on_fatal(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_result(error)


def run(config: NodeConfig, *, announce: Callable[[str], None]) -> int:
    """Run a node until SIGINT or SIGTERM; the exit code of its process.

    Raises TidelogError when the node cannot start.
    """
    import uvloop

    config.check_doors()
    if config.first_user:
        try:
            parse_first_user(config.first_user)
        except ValueError as error:
            raise ConfigError(f"first.user.file {config.first_user_file}: {error}") from None
    if doors := config.open_doors:
        _log.warning("ANYBODY who reaches %s may read, write and delete everything", " and ".join(doors))
    if config.open_peer is None and config.cluster_secret_optional and config.peer_endpoint is not None:
        _log.warning(
            "ANYBODY who reaches peer %s is taken for a node, as long as cluster.secret.optional is set",
            config.peer_endpoint,
        )
    allow_many_files()
    keep_memory()
    keep_files_private()
    _share_interpreter(False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, announce))


async def _tell(node: Node, notify: Callable[[str], None]) -> None:
    """Tell the supervisor whether the node serves, and what it waits for; whenever that changes."""
    said: str | None = None
    while True:
        reason = why_not_ready(node)
        if said != (reason or SERVING):
            said = reason or SERVING
            notify(f"STATUS={said}" if reason else f"READY=1\nSTATUS={said}")
        await asyncio.sleep(_TELL_SECONDS)


def _share_interpreter(is_crowded: bool) -> None:
    """Say how soon the disk's threads get the interpreter, which they need between system calls.

    A loop that rests now and then gives it to them by itself, and to take it away costs throughput.
    A crowded one has to be made to: a write with its sync waits for it three times.
    """
    sys.setswitchinterval(0.00005 if is_crowded else 0.001)


async def _run(config: NodeConfig, announce: Callable[[str], None]) -> int:
    loop = asyncio.get_running_loop()
    node = Node(system_host(), config)
    node.on_crowded = _share_interpreter
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.want_stop)
    starting = loop.create_task(node.start())
    if (notify := notifier()) is not None:
        telling = loop.create_task(_tell(node, notify))
        telling.add_done_callback(lambda task: None)  # it lasts as long as the process
    first: list[asyncio.Future[Any]] = [starting, node.stop_wanted, node.failure]
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait for its peers, for ever
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if not node.failure.done():
            _log.info("stopped before it was ready")
            await node.broker.abandon()
            return 0
    elif not node.failure.done():
        starting.result()
    if not node.failure.done():
        gc.collect()
        gc.freeze()  # what a start leaves behind stays; the collector need not look at it again
        http = f" http={node.http}" if node.http else ""
        announce(f"ready kafka={node.kafka}{http} node={config.node_id} data={config.data}")
    ends: list[asyncio.Future[Any]] = [node.stop_wanted, node.failure]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if node.failure.done():
        _log.critical("the disk failed (%s); stopping at once", node.failure.result())
        logging.shutdown()
        os._exit(EXIT_DISK_FAILED)  # a thread may hang in the failing disk for ever
    _log.info("stopping")
    await node.stop()
    return 0
