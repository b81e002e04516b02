"""RabbitMQ as a peer: one node or three, with its defaults, as Debian has it.

Rule 1: nothing is tuned. A quorum queue writes to a log and syncs it before it confirms.
Rule 2: its names and ports are its own, also that of the port mapper which Erlang's nodes find each
        other by: another RabbitMQ on the machine is not met.
Rule 3: no process outlives the `with`, nor do its files outlive the caller's directory.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Final, Self

from benchmarks.clients import Unavailable
from benchmarks.process import free_ports, in_session

START_SECONDS_MAX: Final = 240.0
STOP_SECONDS_MAX: Final = 20.0
POLL_SECONDS: Final = 0.1
PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
HOST: Final = "127.0.0.1"

_PLAIN_SCRIPTS: Final = "/usr/lib/rabbitmq/bin"
"""Where Debian keeps the program itself; what it has on the path becomes another user first."""


class Rabbit:
    """So many nodes that are one cluster, while the `with` lasts."""

    def __init__(self, directory: Path, nodes: int = 1) -> None:
        """Unavailable if there is no RabbitMQ. The directory is made."""
        path = os.pathsep.join([_PLAIN_SCRIPTS, os.environ.get("PATH", os.defpath)])
        server, mapper = shutil.which("rabbitmq-server", path=path), shutil.which("epmd")
        if server is None or mapper is None:
            raise Unavailable("no rabbitmq-server (Debian: rabbitmq-server)")
        self._server = server
        self._mapper = mapper
        self._directory = directory
        self._names = [f"bench-{os.getpid()}-{number}@localhost" for number in range(nodes)]
        self._started: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []

    def __enter__(self) -> Self:
        self._directory.mkdir()
        cookie = self._directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (mapper_port,) = free_ports(1)
        try:
            self._start([self._mapper, "-port", str(mapper_port), "-address", HOST], os.environ)
            for name in self._names:  # one after the other: each joins those that are there
                port, peers_port = free_ports(2)
                environment = self._environment(name, port, peers_port, mapper_port)
                self._start([self._server], environment)
                self._wait_ready(port)
                self.ports.append(port)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pids(self) -> list[int]:
        """Of the nodes: each is a session, of a shell and what it has started."""
        return [pid for process in self._started[1:] for pid in in_session(process.pid)]

    def _environment(self, name: str, port: int, peers_port: int, mapper_port: int) -> dict[str, str]:
        home = self._directory / name
        home.mkdir()
        joined = self._names[: self._names.index(name) + 1]
        config, plugins, settings = home / "rabbitmq.conf", home / "plugins", home / "env.conf"
        config.write_text(
            "\n".join(
                [
                    f"listeners.tcp.1 = {HOST}:{port}",
                    "cluster_formation.peer_discovery_backend = classic_config",
                    *(
                        f"cluster_formation.classic_config.nodes.{number} = {one}"
                        for number, one in enumerate(joined, 1)
                    ),
                    "",
                ]
            )
        )
        plugins.write_text("[].\n")
        settings.write_text("")
        return {
            **os.environ,
            "HOME": str(self._directory),  # where the cookie is
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_DIST_PORT": str(peers_port),
            "RABBITMQ_CONF_ENV_FILE": str(settings),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def _start(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._started.append(
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _wait_ready(self, port: int) -> None:
        give_up_at = monotonic() + START_SECONDS_MAX
        while monotonic() < give_up_at and self._started[-1].poll() is None:
            try:
                with socket.create_connection((HOST, port), timeout=5.0) as connection:
                    connection.sendall(PROTOCOL)
                    if connection.recv(1) == b"\x01":  # a method: it says who it is
                        return
            except OSError:
                pass
            sleep(POLL_SECONDS)
        raise RuntimeError("rabbitmq-server did not start")

    def _stop(self) -> None:
        """End the nodes, whose files nobody wants any more, and at last the port mapper."""
        give_up_at = monotonic() + STOP_SECONDS_MAX
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(max(0.0, give_up_at - monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
